package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/redistest"
)

// soon bounds what takes a moment: to start a program, to ask a server. It leaves room for a busy
// machine.
const soon = time.Minute

var (
	buildFlags []string // race_test.go adds to them
	binary     string   // the program under test
)

// quickExit keeps a program with the race detector from waiting a second at its end for what others
// may still do.
const quickExit = "GORACE=atexit_sleep_ms=0"

// TestMain builds the program: it is tested as what a user runs.
func TestMain(m *testing.M) {
	if mode := os.Getenv(probeMode); mode != "" {
		os.Exit(probe(mode))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// What is started from here has the default of a signal that is caught here, also under nohup.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	dir, err := os.MkdirTemp("", "relock-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "relock")
	build := exec.Command("go", append(append([]string{"build", "-o", binary}, buildFlags...), ".")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return dbtest.Main(m)
}

// probeMode makes the test binary a command for relock to run, that says which signals it gets. A
// shell would do, but shells differ in when a trap runs.
const probeMode = "RELOCK_TEST_PROBE"

// probe prints "ready PID", then "got SIGNAL" for each signal. The mode is one word or more of:
//
//	ignore   SIGTERM does not end it
//	tree     it has a child that does the same, whose lines begin with "child "
//	leave    as tree, but only the child ignores SIGTERM
//
// It ends with 9 when SIGTERM comes or standard input ends.
func probe(mode string) int {
	has := func(word string) bool { return slices.Contains(strings.Fields(mode), word) }
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	who := ""
	if has("child") {
		who = "child "
	}
	if has("tree") || has("leave") {
		cmd := exec.Command(os.Args[0])
		childMode := "child"
		if has("ignore") || has("leave") {
			childMode += " ignore"
		}
		cmd.Env = append(os.Environ(), probeMode+"="+childMode)
		cmd.Stdout = os.Stdout
		stdin, _ := cmd.StdinPipe() // open for as long as we live
		if err := cmd.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
		defer stdin.Close()
		if !has("leave") {
			defer func() { _ = cmd.Wait() }()
		}
	}
	ended := make(chan struct{})
	if !has("ignore") || who == "" { // else its parent's end does not end it
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, os.Stdin)
		}()
	}
	fmt.Printf("%sready %d\n", who, os.Getpid())
	for {
		select {
		case s := <-signals:
			fmt.Printf("%sgot %s\n", who, s)
			if s == syscall.SIGTERM && !has("ignore") {
				return 9
			}
		case <-ended:
			return 9
		case <-time.After(2 * time.Minute): // a test that failed has forgotten it
			return 99
		}
	}
}

// output is what a program has printed so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// lines are the whole lines so far.
func (o *output) lines() []string {
	text := o.String()
	end := strings.LastIndexByte(text, '\n')
	if end < 0 {
		return nil
	}
	return strings.Split(text[:end], "\n")
}

// program is a relock that runs.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout output
	stderr output
	ended  chan struct{}
}

// setup is what a test says about a program before it starts.
type setup func(*program)

// env adds to the environment; the last of a name wins.
func env(vars ...string) setup { return func(p *program) { p.cmd.Env = append(p.cmd.Env, vars...) } }

// on is the server by way of the environment.
func on(s *redistest.Server) setup { return env("REDIS_URL=" + s.URL()) }

// start runs relock with args. It is killed when the test ends, should it still run.
func start(t *testing.T, setups []setup, args ...string) *program {
	t.Helper()
	return startProgram(t, binary, setups, args...)
}

// newProgram returns a program that finds nothing of ours in its environment.
func newProgram(t *testing.T, setups []setup, path string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "REDIS") || strings.HasPrefix(v, "RELOCK_") || strings.HasPrefix(v, "ENV=")
	})
	p.cmd.Env = append(p.cmd.Env, quickExit)
	for _, f := range setups {
		f(p)
	}
	return p
}

func startProgram(t *testing.T, path string, setups []setup, args ...string) *program {
	t.Helper()
	p := newProgram(t, setups, path, args...)
	p.cmd.Stdout = cmp.Or[io.Writer](p.cmd.Stdout, &p.stdout)
	p.cmd.Stderr = cmp.Or[io.Writer](p.cmd.Stderr, &p.stderr)
	p.cmd.WaitDelay = 2 * time.Second // a process that is left over may keep the pipes open
	var err error
	if p.cmd.Stdin == nil {
		p.stdin, err = p.cmd.StdinPipe()
		require.NoError(t, err)
	}
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s %s\nstdout: %s\nstderr: %s", path, strings.Join(args, " "), &p.stdout, &p.stderr)
		}
	})
	return p
}

// code waits for the end and returns the exit code.
func (p *program) code() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(soon):
		p.t.Fatalf("relock has not ended after %s", soon)
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() { // as a shell has it
		return codeSignal + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// runs says whether it has not ended yet.
func (p *program) runs() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// expect waits for a line of o that begins with prefix, and returns the rest of it.
func (p *program) expect(o *output, prefix string) (rest string) {
	p.t.Helper()
	redistest.Eventually(p.t, soon, func() bool {
		for _, line := range o.lines() {
			if r, ok := strings.CutPrefix(line, prefix); ok {
				rest = r
				return true
			}
		}
		return false
	}, "printed: a line that begins with %q", prefix)
	return rest
}

// ready waits for a probe, and returns its pid.
func (p *program) ready(who string) int {
	p.t.Helper()
	pid, err := strconv.Atoi(p.expect(&p.stdout, who+"ready "))
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		if alive(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pid
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// event waits for an event on stderr, and returns it.
func (p *program) event(name string) (found map[string]any) {
	p.t.Helper()
	redistest.Eventually(p.t, soon, func() bool {
		for _, line := range p.stderr.lines() {
			if found = object(p.t, line); found["event"] == name {
				return true
			}
		}
		return false
	}, "told: the event %q", name)
	return found
}

// object reads a line of JSON.
func object(t *testing.T, line string) map[string]any {
	t.Helper()
	var o map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &o), "%s", line)
	return o
}

// result is a relock that has ended.
type result struct {
	code           int
	stdout, stderr string
}

// do runs relock to its end.
func do(t *testing.T, setups []setup, args ...string) result {
	t.Helper()
	p := start(t, setups, args...)
	_ = p.stdin.Close() // an error if relock has ended by now
	code := p.code()
	return result{code, p.stdout.String(), p.stderr.String()}
}

// state is that of a process, a letter and more as ps prints it, "-" if there is none.
func state(pid int) string {
	if runtime.GOOS == "linux" { // small systems have no ps
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, rest, ok := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " "); err == nil && ok && rest != "" {
			return rest[:1]
		}
		return "-"
	}
	out, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	if s := strings.TrimSpace(string(out)); err == nil && s != "" {
		return s
	}
	return "-"
}

// alive says whether a process is there and is no zombie.
func alive(pid int) bool {
	s := state(pid)
	return s != "-" && s[0] != 'Z'
}

// site is a server with a client of the library beside the program under test.
type site struct {
	t      *testing.T
	server *redistest.Server
	rdb    *redis.Client
	client *relock.Client
}

// onShared is a site on the common server, emptied.
func onShared(t *testing.T) *site {
	t.Helper()
	return newSite(t, redistest.Shared(t))
}

// onOwn is a site on a server of its own.
func onOwn(t *testing.T, args ...string) *site {
	t.Helper()
	return newSite(t, redistest.Start(t, args...))
}

func newSite(t *testing.T, server *redistest.Server) *site {
	t.Helper()
	s := &site{t: t, server: server, rdb: server.Client()}
	require.NoError(t, s.rdb.FlushAll(t.Context()).Err())
	s.client = newClient(t, s.rdb)
	return s
}

func newClient(t *testing.T, rdb redis.UniversalClient) *relock.Client {
	t.Helper()
	client, err := relock.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// on is the setup of a program that uses the site, and more.
func (s *site) on(more ...setup) []setup { return append([]setup{on(s.server)}, more...) }

// hold takes a lock, until the test ends or what it returns is called.
func (s *site) hold(name string) (release func()) {
	s.t.Helper()
	return holdWith(s.t, s.client, name)
}

func holdWith(t *testing.T, client *relock.Client, name string) (release func()) {
	t.Helper()
	lock := client.NewLock(name)
	section, err := lock.TryLock(context.Background())
	require.NoError(t, err)
	var once sync.Once
	release = func() { once.Do(func() { _ = lock.Unlock(section) }) }
	t.Cleanup(release)
	return release
}

// state asks the library.
func (s *site) state(name string) relock.State {
	s.t.Helper()
	state, err := s.client.NewLock(name).State(s.t.Context())
	require.NoError(s.t, err)
	return state
}

// until waits for a state of a lock.
func (s *site) until(name, what string, is func(relock.State) bool) {
	s.t.Helper()
	redistest.Eventually(s.t, soon, func() bool { return is(s.state(name)) }, "%s: %q", what, name)
}

func (s *site) free(name string) {
	s.t.Helper()
	s.until(name, "free", func(l relock.State) bool { return !l.Locked() })
}

func (s *site) waiting(name string, n int) {
	s.t.Helper()
	s.until(name, "queued", func(l relock.State) bool { return l.Waiters == n })
}

// startProbe runs a probe under a lock, and returns when it is ready.
func (s *site) startProbe(mode string, args ...string) (p *program, pid int) {
	s.t.Helper()
	self, err := os.Executable()
	require.NoError(s.t, err)
	p = start(s.t, s.on(env(probeMode+"="+mode)), append(append([]string{"run"}, args...), "--", self)...)
	pid = p.ready("")
	return p, pid
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool { return !alive(pid) }, "ended: process %d", pid)
}

// closedAddr is an address where nobody listens.
const closedAddr = "127.0.0.1:1"

// inFrontOf takes connections for a server.
func inFrontOf(t *testing.T, listener net.Listener, server string) {
	t.Helper()
	t.Cleanup(func() { _ = listener.Close() })
	pipe := func(to, from net.Conn) {
		defer to.Close()
		_, _ = io.Copy(to, from)
	}
	go func() {
		for {
			front, err := listener.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("tcp", server)
			if err != nil {
				_ = front.Close()
				continue
			}
			go pipe(front, back)
			go pipe(back, front)
		}
	}()
}

// keyOf returns the key of a lock without a hash tag in its name.
func keyOf(prefix, name string) string { return prefix + "{" + name + "}" }
