package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/process"
)

// startLimit bounds every wait for a single server to start or answer.
const startLimit = 20 * time.Second

// Server is a redis-server that belongs to a test. Its methods fail the test when the server does
// not obey.
type Server struct {
	t testing.TB
	*instance
}

// instance is a redis-server on one port, through all its restarts.
type instance struct {
	bin  string
	dir  string // removed by stop
	port int
	args []string
	env  []string // in addition to the environment of this process; only a clock needs some

	paused atomic.Bool

	mu     sync.Mutex
	proc   *process.Process
	killed bool // on purpose: the end is no failure
}

// Start runs a redis-server on a free loopback port, without persistence. args are further
// configuration ("--maxmemory", "1mb"). The server is stopped when the test ends. The test fails if
// the server has died on its own before.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	in, err := newInstance(binary(t), args)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return in.of(t)
}

// of makes the instance belong to a test.
func (in *instance) of(t testing.TB) *Server {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("redistest: the end of the log of redis-server %s:\n%s", in.addr(), tail(in.log(), 20))
		}
		if err := in.stop(); err != nil {
			t.Errorf("redistest: %v", err)
		}
	})
	return &Server{t: t, instance: in}
}

var shared struct {
	mu sync.Mutex
	in *instance
}

// Shared returns the one server of this test binary, started on first use and stopped by [Main].
// All tests share its keys, so each test separates or flushes the keys. A test that pauses or kills
// its server must use [Start].
func Shared(t testing.TB) *Server {
	t.Helper()
	bin := binary(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.in == nil {
		in, err := newInstance(bin, nil)
		if err != nil {
			t.Fatalf("redistest: %v", err)
		}
		shared.in = in
	}
	if !shared.in.running() {
		t.Fatalf("redistest: the shared server has died or was killed by a test:\n%s", tail(shared.in.log(), 20))
	}
	return &Server{t: t, instance: shared.in}
}

// Stop ends the shared server. Only a TestMain without [Main] needs Stop.
func Stop() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.in == nil {
		return nil
	}
	in := shared.in
	shared.in = nil
	return in.stop()
}

// Main is for TestMain. Main runs the tests and stops the shared server. In a process started by
// [Child], Main runs the child's function instead.
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
func Main(m *testing.M) int {
	if code, is := runChild(); is {
		return code
	}
	code := m.Run()
	if err := Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "redistest:", err)
		return max(code, 1)
	}
	return code
}

// Addr returns host:port.
func (s *Server) Addr() string { return s.addr() }

// URL returns the address in the form of redis.ParseURL, with the password of the server if any.
func (s *Server) URL() string {
	if p := s.arg("--requirepass"); p != "" {
		return "redis://:" + p + "@" + s.addr()
	}
	return "redis://" + s.addr()
}

// Options returns new options for this server. All other options are go-redis's defaults.
func (s *Server) Options() *redis.Options {
	return &redis.Options{Addr: s.addr(), Password: s.arg("--requirepass")}
}

// Client returns a new client of this server, closed when the test ends. mod may change the options
// first.
func (s *Server) Client(mod ...func(*redis.Options)) *redis.Client {
	opt := s.Options()
	for _, f := range mod {
		f(opt)
	}
	rdb := redis.NewClient(opt)
	s.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Pid returns the process id. Restart changes the process id.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.Pid()
}

// Pause stops the server with SIGSTOP: connections stay open and silent. The server executes
// commands sent meanwhile after Resume.
func (s *Server) Pause() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.Pause(); err != nil {
		s.t.Fatalf("redistest: pause %s: %v", s.addr(), err)
	}
	s.paused.Store(true)
}

// Resume lets a paused server go on.
func (s *Server) Resume() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.Resume(); err != nil {
		s.t.Fatalf("redistest: resume %s: %v", s.addr(), err)
	}
	s.paused.Store(false)
}

// Kill ends the server with SIGKILL and returns when it is gone.
func (s *Server) Kill() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = true
	s.paused.Store(false)
	if err := s.endLocked(); err != nil {
		s.t.Fatalf("redistest: kill %s: %v", s.addr(), err)
	}
}

// Restart kills a running server, starts the server again on the same port, and returns when the
// server answers. Unless args asked for persistence, data and scripts are gone. A cluster node
// keeps its place in the cluster.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arg("--save") == "" && s.arg("--appendonly") == "" {
		// A replication left dump.rdb on either side, and the server would load the file.
		_ = os.Remove(filepath.Join(s.dir, "dump.rdb"))
	}
	// Somebody else can have the port for a moment, e.g. as the near end of an
	// outgoing connection.
	err := poll(startLimit, func() error {
		err := s.runLocked()
		if err != nil && !errors.Is(err, errBind) {
			return permanent(err)
		}
		return err
	})
	if err != nil {
		s.t.Fatalf("redistest: restart %s: %v", s.addr(), err)
	}
}

// AtLeast reports whether the server's version is major.minor or newer.
func (s *Server) AtLeast(major, minor int) bool { return atLeast(s.bin, major, minor) }

// newInstance starts a server on a free port. Another process can take the port before the server
// binds the port. If so, newInstance tries the next port.
func newInstance(bin string, args []string, env ...string) (*instance, error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	for range 20 {
		port, err := takePort()
		if err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		in := &instance{bin: bin, dir: dir, port: port, args: args, env: env}
		in.mu.Lock()
		err = in.runLocked()
		in.mu.Unlock()
		if err == nil {
			return in, nil
		}
		givePort(port)
		if !errors.Is(err, errBind) {
			_ = os.RemoveAll(dir)
			return nil, err
		}
	}
	_ = os.RemoveAll(dir)
	return nil, errors.New("no free port in 20 tries")
}

var (
	errBind     = errors.New("port is taken") // the chosen port is in use
	errNotReady = errors.New("redis-server is not ready")
)

// runLocked starts the process and waits for its first answer.
func (in *instance) runLocked() error {
	args := []string{
		"--port", strconv.Itoa(in.port), "--bind", "127.0.0.1", "--dir", in.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "notice",
	}
	if atLeast(in.bin, 7, 0) {
		// DEBUG makes a server slow for a test; before 7.0 DEBUG needs no permission.
		args = append(args, "--enable-debug-command", "local")
	}
	cmd := exec.Command(in.bin, append(args, in.args...)...)
	cmd.Dir = in.dir
	cmd.Env = append(os.Environ(), in.env...)
	proc, err := startLogged(cmd, in.log())
	if err != nil {
		return err
	}
	in.proc = proc
	err = waitReady(proc, in.log(), func() error {
		// An answer on the port alone could come from another process with the same port. The log
		// is the server's own.
		if b, err := os.ReadFile(in.log()); err != nil || !bytes.Contains(b, []byte("Ready to accept connections")) {
			return errors.Join(err, errNotReady)
		}
		reply, err := in.call("PING")
		if err == nil && reply != "PONG" {
			err = fmt.Errorf("PING: %s", reply)
		}
		return err
	})
	if err != nil {
		_ = in.endLocked()
		return err
	}
	in.killed = false
	return nil
}

// startLogged starts a redis-server or a sentinel with a new log.
func startLogged(cmd *exec.Cmd, log string) (*process.Process, error) {
	if err := os.RemoveAll(log); err != nil {
		return nil, err
	}
	return process.StartLogged(cmd, log)
}

// waitReady is [process.Process.Ready], with errBind for a server whose port another process has.
func waitReady(p *process.Process, log string, ready func() error) error {
	err := p.Ready(bound.Of(startLimit), ready)
	if b, _ := os.ReadFile(log); errors.Is(err, process.ErrEnded) &&
		(bytes.Contains(b, []byte("in use")) || bytes.Contains(b, []byte("Failed listening"))) {
		return errBind
	}
	return err
}

func (in *instance) addr() string { return "127.0.0.1:" + strconv.Itoa(in.port) }

func (in *instance) log() string { return filepath.Join(in.dir, "redis.log") }

// arg returns the value of a configuration argument of the test.
func (in *instance) arg(name string) string {
	if i := slices.Index(in.args, name); i >= 0 && i+1 < len(in.args) {
		return in.args[i+1]
	}
	return ""
}

func (in *instance) running() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.proc.Alive()
}

// stop kills the server: there is no data to save. stop returns an error if the server had ended on
// its own.
func (in *instance) stop() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	defer givePort(in.port)
	defer os.RemoveAll(in.dir)
	var died error
	if !in.killed && !in.proc.Alive() {
		died = fmt.Errorf("redis-server %s ended by itself (%v):\n%s", in.addr(), in.proc.Err(), tail(in.log(), 40))
	}
	in.killed = true
	return errors.Join(died, in.endLocked())
}

// endLocked kills the process.
func (in *instance) endLocked() error {
	err := in.proc.Kill()
	if len(in.env) > 0 {
		forgetClock(in.proc.Pid())
	}
	return err
}

// call sends one command on a connection of its own and returns the reply: a status, number or bulk
// as text, any other reply unchanged. An error of the server is an error.
func (in *instance) call(args ...string) (string, error) {
	if in.paused.Load() {
		return "", fmt.Errorf("%s is paused", in.addr())
	}
	return call(in.addr(), in.arg("--requirepass"), args...)
}

func call(addr, password string, args ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	commands := [][]string{args}
	if password != "" {
		commands = [][]string{{"AUTH", password}, args}
	}
	replies := newReplyReader(conn)
	var raw []byte
	for _, c := range commands {
		if _, err := conn.Write(encodeCommand(c)); err != nil {
			return "", err
		}
		if raw, err = replies.read(); err != nil {
			return "", err
		}
		if raw[0] == '-' {
			return "", fmt.Errorf("%s: %s", c[0], replyText(raw))
		}
	}
	return replyText(raw), nil
}

// The ports of this process. All are below the range of ephemeral ports (32768 and up on Linux,
// 49152 on macOS). A client that dials a dead server in that range can get the server's port as its
// own, connect to itself, and keep the server from restarting.
var ports = struct {
	mu    sync.Mutex
	taken map[int]bool
}{taken: map[int]bool{}}

const firstPort, lastPort = 12000, 21999 // +10000 stays below 32768 as well

// takePort returns a port without a listener. port+10000 is free too: older servers put their
// cluster bus there.
func takePort() (int, error) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if !ports.taken[port] && portFree(port) && portFree(port+10000) {
			ports.taken[port] = true
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port from %d to %d", firstPort, lastPort)
}

func givePort(port int) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	delete(ports.taken, port)
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// binary finds redis-server, or skips or fails the test.
func binary(t testing.TB) string {
	t.Helper()
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path) // servers run in a directory of their own
	}
	if err == nil {
		return path
	}
	const install = "install it (apt-get install redis-server, brew install redis) or set REDIS_SERVER to its path"
	NotTested(t, "there is no redis-server: %v; %s", err, install)
	return ""
}

var versions sync.Map // path of a redis-server → [2]int

// atLeast asks the binary for its version once. An unreadable version counts as new.
func atLeast(bin string, major, minor int) bool {
	v, ok := versions.Load(bin)
	if !ok {
		version := [2]int{1 << 20, 0}
		out, _ := exec.Command(bin, "--version").Output()
		if m := regexp.MustCompile(`v=(\d+)\.(\d+)`).FindStringSubmatch(strings.TrimSpace(string(out))); m != nil {
			version[0], _ = strconv.Atoi(m[1])
			version[1], _ = strconv.Atoi(m[2])
		}
		v, _ = versions.LoadOrStore(bin, version)
	}
	have := v.([2]int)
	return have[0] > major || have[0] == major && have[1] >= minor
}
