package dbtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-relock/relock/internal/test/process"
	"github.com/go-relock/relock/internal/test/redistest"
)

// startLimit bounds the wait for a server.
const startLimit = 60 * time.Second

// errBind says that another process took the port before the server.
var errBind = errors.New("the port is taken")

// engine is a kind of SQL server, with the one server of this test binary.
type engine struct {
	name     string
	account  string // the user that runs the server where the test runs as root
	install  string // how to get the programs, for people
	programs []string

	// Command lines: to make the data directory, to run the server, to run one statement.
	prepare, serve func(*server) []string
	query          func(*server, string) []string
	where          string // the statement that returns the data directory
	stop           syscall.Signal

	mu        sync.Mutex
	server    *server
	failed    error // of the start, which is tried once
	databases int   // so far
}

// server is a running server.
type server struct {
	engine *engine
	path   map[string]string // of each program
	dir    string
	port   int // 0 before the first start
	// durable says that a commit outlasts a crash of the server.
	durable bool
	proc    *process.Process
}

// Main is for TestMain, in the place of [redistest.Main], which it calls: it runs the tests and
// stops the servers.
//
//	func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }
func Main(m *testing.M) int {
	code := redistest.Main(m)
	if err := Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "dbtest:", err)
		code = max(code, 1)
	}
	return code
}

// Stop ends the servers and removes their data. [Main] does it; only a program that is no test
// needs to.
func Stop() error { return errors.Join(postgres.end(), mariadb.end()) }

// database returns the server, which the first call starts, and the name of a new database in it.
func (e *engine) database(t testing.TB) (s *server, name string) {
	t.Helper()
	path := e.find(t)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil && e.failed == nil {
		e.server, e.failed = e.start(path, false)
	}
	if e.failed != nil {
		t.Fatalf("dbtest: %s: %v", e.name, e.failed)
	}
	e.databases++
	name = "test" + strconv.Itoa(e.databases)
	e.server.create(t, name)
	return e.server, name
}

func (s *server) create(t testing.TB, name string) {
	t.Helper()
	if _, err := s.ask(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("dbtest: %s: %v\n%s", s.engine.name, err, s.log())
	}
}

// Server is a server of one test, with a database of its own. A commit outlasts its crash.
type Server struct {
	t testing.TB
	s *server
}

// own starts a server that ends with the test.
func (e *engine) own(t testing.TB) *Server {
	t.Helper()
	s, err := e.start(e.find(t), true)
	if err != nil {
		t.Fatalf("dbtest: %s: %v", e.name, err)
	}
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Errorf("dbtest: %v", err)
		}
	})
	s.create(t, ownDatabase)
	return &Server{t, s}
}

const ownDatabase = "test"

// Crash ends the server at once, without the work of a shutdown.
func (s *Server) Crash() {
	s.t.Helper()
	if err := s.s.proc.Stop(s.s.engine.stop); err != nil {
		s.t.Fatalf("dbtest: %v", err)
	}
}

// Restart starts a server that has crashed, with its data.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.s.run(); err != nil {
		s.t.Fatalf("dbtest: %s: %v", s.s.engine.name, err)
	}
}

// end stops the server, if one was started. A server that has ended by itself is an error.
func (e *engine) end() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil
	}
	s := e.server
	e.server = nil
	return s.end()
}

// Directories with programs that are often not in PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
	"/usr/sbin", "/usr/libexec",
}

// find returns the path of each program, or skips or fails the test.
func (e *engine) find(t testing.TB) map[string]string {
	t.Helper()
	path := map[string]string{}
	for _, program := range e.programs {
		for _, place := range places {
			found, _ := filepath.Glob(filepath.Join(place, program))
			if len(found) > 0 {
				path[program] = found[len(found)-1] // the newest version
				break
			}
		}
		if path[program] != "" {
			continue
		}
		found, err := exec.LookPath(program)
		if err != nil {
			redistest.NotTested(t, "there is no %s: %v; install it (%s)", e.name, err, e.install)
		}
		path[program] = found
	}
	return path
}

// start makes the data directory and runs the server on it. Between the choice of a port and the
// server's bind another process can take the port. Then start tries the next port.
func (e *engine) start(path map[string]string, durable bool) (*server, error) {
	dir, err := os.MkdirTemp("", "dbtest-")
	if err != nil {
		return nil, err
	}
	s := &server{engine: e, path: path, dir: dir, durable: durable}
	err = s.prepare()
	for range 5 {
		if err != nil {
			break
		}
		if s.port, err = freePort(); err != nil {
			break
		}
		if err = s.run(); !errors.Is(err, errBind) {
			break
		}
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

func (s *server) prepare() error {
	account, err := s.engine.credential()
	if err != nil {
		return err
	}
	if account != nil {
		if err := os.Chown(s.dir, int(account.Uid), int(account.Gid)); err != nil {
			return err
		}
	}
	cmd, err := s.command(context.Background(), s.engine.prepare(s))
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd.Path, err, out)
	}
	return nil
}

func freePort() (int, error) {
	ports, err := process.FreePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// run starts the server on its port, and returns when it answers.
func (s *server) run() error {
	cmd, err := s.command(context.Background(), s.engine.serve(s))
	if err != nil {
		return err
	}
	log := filepath.Join(s.dir, "log")
	_ = os.Remove(log) // of an earlier start
	if s.proc, err = process.StartLogged(cmd, log); err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return errors.Join(err, s.proc.Kill())
	}
	return nil
}

// ready returns when the server answers with its own data directory: another process that took the
// port may answer too.
func (s *server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	err := s.proc.Ready(startLimit, func() error {
		out, err := s.ask(ctx, s.engine.where)
		if err == nil && filepath.Clean(strings.TrimSpace(out)) != s.data() {
			err = fmt.Errorf("the data are in %s", out)
		}
		return err
	})
	if errors.Is(err, process.ErrEnded) && bytes.Contains(s.log(), []byte("in use")) {
		return errBind
	}
	return err
}

// ask runs one statement with the command-line client and returns its output.
func (s *server) ask(ctx context.Context, statement string) (string, error) {
	args := s.engine.query(s, statement)
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", statement, err, out)
	}
	return string(out), nil
}

// end stops the server and removes its data.
func (s *server) end() error {
	defer func() { _ = os.RemoveAll(s.dir) }()
	select {
	case <-s.proc.Done():
		return fmt.Errorf("%s ended by itself: %w\n%s", s.engine.name, s.proc.Err(), s.log())
	default:
	}
	return s.proc.Stop(s.engine.stop)
}

// log returns what the server has printed.
func (s *server) log() []byte {
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return log
}

// command makes a command that runs in the server's directory, as the account of the engine.
func (s *server) command(ctx context.Context, args []string) (*exec.Cmd, error) {
	account, err := s.engine.credential()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	return cmd, nil
}

// credential returns the account of the engine if this process runs as root, and nil otherwise.
func (e *engine) credential() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil // a command without a credential runs as this process does
	}
	account, err := user.Lookup(e.account)
	if err != nil {
		return nil, fmt.Errorf("this is root, and the server needs a user of its own: %w", err)
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
