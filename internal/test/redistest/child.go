package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-relock/relock/internal/test/process"
)

// childEnv names the function that a process started by Child runs.
const childEnv = "RELOCK_CHILD"

// ChildFunc is the work of a child process. args are those of [Child]. in is the standard input,
// and ends when the parent closes the pipe or dies. The parent reads the lines of out, the standard
// output. The process ends when ChildFunc returns.
type ChildFunc func(args []string, in *bufio.Reader, out io.Writer)

var children = struct {
	mu      sync.Mutex
	funcs   map[string]ChildFunc
	hasMain bool // Main has been called, so a child will find its function
}{funcs: map[string]ChildFunc{}}

// RegisterChild gives a function the name by which [Child] runs the function. Call RegisterChild in
// a variable declaration or init of the test package. A name given twice panics.
func RegisterChild(name string, fn ChildFunc) {
	children.mu.Lock()
	defer children.mu.Unlock()
	if children.funcs[name] != nil {
		panic("redistest: there is already a child named " + name)
	}
	children.funcs[name] = fn
}

// runChild runs the child's function if this process is a child.
func runChild() (code int, is bool) {
	children.mu.Lock()
	children.hasMain = true
	name, is := os.LookupEnv(childEnv)
	fn := children.funcs[name]
	children.mu.Unlock()
	if !is {
		return 0, false
	}
	if fn == nil {
		fmt.Fprintf(os.Stderr, "redistest: no child is named %q\n", name)
		return 1, true
	}
	_ = os.Unsetenv(childEnv) // not for its own children
	fn(os.Args[1:], bufio.NewReader(os.Stdin), os.Stdout)
	return 0, true
}

// Process is a child process of a test. Its methods fail the test when the child does not obey.
type Process struct {
	t    testing.TB
	name string
	proc *process.Process
	in   *os.File
	log  string // file with its standard error
	read chan struct{}

	mu      sync.Mutex
	lines   []string // printed and not yet asked for
	ended   bool     // no more lines will come
	watched bool     // the test killed it or waited for it, so its end is no surprise
}

// Child runs the registered function in a process of its own: the test binary, started again, so
// TestMain must use [Main]. The child is killed when the test ends. The test fails if the child has
// failed on its own before.
func Child(t testing.TB, name string, args ...string) *Process {
	t.Helper()
	children.mu.Lock()
	fn, hasMain := children.funcs[name], children.hasMain
	children.mu.Unlock()
	if fn == nil {
		t.Fatalf("redistest: no child is named %q", name)
	}
	if !hasMain {
		t.Fatal("redistest: a child needs redistest.Main in TestMain")
	}
	p := &Process{t: t, name: name, log: filepath.Join(t.TempDir(), "stderr"), read: make(chan struct{})}
	if err := p.start(args); err != nil {
		t.Fatalf("redistest: start child %s: %v", name, err)
	}
	t.Cleanup(p.stop)
	return p
}

func (p *Process) start(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close()
	// Pipes of our own: those of exec.Cmd are closed by Wait, which runs from the
	// start, and the last lines would be lost.
	stdin, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		_ = in.Close()
		return err
	}
	defer stdout.Close()
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+p.name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, log
	if p.proc, err = process.Start(cmd); err != nil {
		_ = in.Close()
		_ = out.Close()
		return err
	}
	p.in = in
	go p.readLines(out) // ends when the child has; stop waits for it
	return nil
}

func (p *Process) readLines(out *os.File) {
	defer close(p.read)
	defer out.Close()
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		p.mu.Lock()
		if line != "" {
			p.lines = append(p.lines, strings.TrimRight(line, "\r\n"))
		}
		p.ended = err != nil
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *Process) stop() {
	_ = p.in.Close()
	p.mu.Lock()
	watched := p.watched
	p.mu.Unlock()
	if !watched && !p.proc.Alive() && p.proc.Err() != nil {
		p.t.Errorf("redistest: child %s failed: %v\n%s", p.name, p.proc.Err(), tail(p.log, 60))
	} else if p.t.Failed() {
		p.t.Logf("redistest: what child %s wrote to standard error:\n%s", p.name, tail(p.log, 60))
	}
	if err := p.proc.Kill(); err != nil {
		p.t.Errorf("redistest: child %s: %v", p.name, err)
		return
	}
	<-p.read
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.proc.Pid() }

// Send writes a line to the child's standard input.
func (p *Process) Send(line string) {
	p.t.Helper()
	_ = p.in.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatalf("redistest: send %q to child %s: %v\n%s", line, p.name, err, tail(p.log, 60))
	}
}

var errNoLine = errors.New("no line came")

// Line returns the next line that the child prints, and fails the test if none
// comes in time.
func (p *Process) Line(within time.Duration) string {
	p.t.Helper()
	var line string
	err := poll(within, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case len(p.lines) > 0:
			line, p.lines = p.lines[0], p.lines[1:]
			return nil
		case p.ended:
			return permanent(errors.New("it has ended"))
		}
		return errNoLine
	})
	if err != nil {
		p.t.Fatalf("redistest: waiting for a line of child %s: %v\n%s", p.name, err, tail(p.log, 60))
	}
	return line
}

// Expect returns the next line that begins with prefix, without the prefix. It
// fails the test if another line comes, or none in time.
func (p *Process) Expect(prefix string, within time.Duration) string {
	p.t.Helper()
	line := p.Line(within)
	rest, ok := strings.CutPrefix(line, prefix)
	if !ok {
		p.t.Fatalf("redistest: child %s printed %q instead of %q\n%s", p.name, line, prefix, tail(p.log, 60))
	}
	return rest
}

// Wait waits for the child's end and returns nil or an *exec.ExitError. It fails
// the test if the child does not end in time.
func (p *Process) Wait(within time.Duration) error {
	p.t.Helper()
	p.watch()
	select {
	case <-p.proc.Done():
		return p.proc.Err()
	case <-time.After(within):
		p.t.Fatalf("redistest: child %s has not ended after %v\n%s", p.name, within, tail(p.log, 60))
		return nil
	}
}

// Kill ends the child with SIGKILL and returns when it is gone.
func (p *Process) Kill() {
	p.t.Helper()
	p.watch()
	if err := p.proc.Kill(); err != nil {
		p.t.Fatalf("redistest: kill child %s: %v", p.name, err)
	}
}

func (p *Process) watch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watched = true
}

// Pause stops the child with SIGSTOP and returns when all its threads stand
// still.
func (p *Process) Pause() {
	p.t.Helper()
	if err := p.proc.Pause(); err != nil {
		p.t.Fatalf("redistest: pause child %s: %v", p.name, err)
	}
}

// Resume lets a paused child go on.
func (p *Process) Resume() {
	p.t.Helper()
	if err := p.proc.Resume(); err != nil {
		p.t.Fatalf("redistest: resume child %s: %v", p.name, err)
	}
}
