package redisson_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// jvm is what keeps a JVM small and quick to start. Redisson's log goes to standard error.
var jvm = []string{
	"-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
	"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
}

// built returns the java that built the program in java/, and the program's class path. Without a build the test fails
// under make, as everywhere, and is skipped otherwise.
func built(t testing.TB) (java, classpath string) {
	t.Helper()
	target, err := filepath.Abs(filepath.Join("java", "target"))
	require.NoError(t, err)
	properties, err := os.ReadFile(filepath.Join(target, "classes", "jvm.properties"))
	if err != nil {
		redistest.NotTested(t, "the Java program is not built: run make interop: %v", err)
	}
	for line := range strings.Lines(string(properties)) {
		if home, ok := strings.CutPrefix(line, "home="); ok {
			java = filepath.Join(strings.TrimSpace(home), "bin", "java")
		}
	}
	list := string(os.PathListSeparator)
	return java, filepath.Join(target, "classes") + list + filepath.Join(target, "lib", "*")
}

// java is a Java process with one Redisson client: the program in java/.
type java struct {
	id  string // of the client, the first half of the holder of each of its threads
	cmd *exec.Cmd
	in  io.WriteCloser
	log string // file with its standard error

	done chan struct{} // closed when it has ended and all its answers are out

	mu      sync.Mutex
	last    int
	waiting map[string]chan string // by request id
	killed  bool
}

// startJava runs one and connects it. It ends with the test.
func startJava(t *testing.T, s servers, watchdog time.Duration) *java {
	t.Helper()
	program, classpath := built(t)
	j := &java{
		log:     filepath.Join(t.TempDir(), "stderr"),
		done:    make(chan struct{}),
		waiting: map[string]chan string{},
	}
	log, err := os.Create(j.log)
	require.NoError(t, err)
	defer log.Close()
	j.cmd = exec.Command(program, append(jvm, "-cp", classpath, "relock.interop.Main")...)
	j.cmd.Stderr = log
	j.in, err = j.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := j.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, j.cmd.Start())
	go j.read(out)
	t.Cleanup(func() { j.end(t) })
	master := s.Master
	if master == "" {
		master = "-"
	}
	const starting = 3 * soon // many programs may start at once
	j.id = j.thread(t, "main").ask("connect", s.Kind, watchdog.Milliseconds(), master, strings.Join(s.Addrs, ",")).in(starting)
	return j
}

// read hands each answer to whoever waits for it. It ends with the process.
func (j *java) read(out io.Reader) {
	defer close(j.done)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		id, rest, _ := strings.Cut(lines.Text(), " ")
		j.mu.Lock()
		if answer := j.waiting[id]; answer != nil {
			delete(j.waiting, id)
			answer <- rest
		} else if id != "0" { // stop
			fmt.Fprintf(os.Stderr, "java: an answer that nobody waits for: %s\n", lines.Text())
		}
		j.mu.Unlock()
	}
	// Wait after the last line: it closes the pipe.
	_ = j.cmd.Wait()
}

// end stops the process in good order.
func (j *java) end(t *testing.T) {
	t.Helper()
	defer j.in.Close()
	_, _ = io.WriteString(j.in, "0 main stop\n") // fails if it has ended already
	select {
	case <-j.done:
	case <-time.After(soon):
		_ = j.cmd.Process.Kill()
		<-j.done
		t.Errorf("the Java process did not stop")
	}
	j.mu.Lock()
	killed := j.killed
	j.mu.Unlock()
	if state := j.cmd.ProcessState; !killed && !state.Success() {
		t.Errorf("the Java process failed: %v", state)
	}
	if t.Failed() {
		t.Logf("what the Java process wrote to standard error:\n%s", j.tail())
	}
}

// tail returns the end of its standard error.
func (j *java) tail() string {
	b, err := os.ReadFile(j.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}

// kill ends the process with SIGKILL and returns when it is gone.
func (j *java) kill(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	j.killed = true
	j.mu.Unlock()
	require.NoError(t, j.cmd.Process.Kill())
	select {
	case <-j.done:
	case <-time.After(soon):
		t.Fatal("the Java process is still there after SIGKILL")
	}
}

// thread is a Java thread, which is what holds a lock in Redisson.
type thread struct {
	t    *testing.T
	java *java
	name string
}

// thread names a thread of this test. It runs from its first request on.
func (j *java) thread(t *testing.T, name string) *thread {
	t.Helper()
	return &thread{t: t, java: j, name: t.Name() + "/" + name}
}

// holder returns the field by which this thread holds a lock.
func (th *thread) holder() string {
	th.t.Helper()
	return th.java.id + ":" + th.do("thread")
}

// ask sends a request and does not wait.
func (th *thread) ask(command ...any) *answer {
	th.t.Helper()
	j := th.java
	a := &answer{t: th.t, java: j, asked: fmt.Sprint(command...), reply: make(chan string, 1)}
	j.mu.Lock()
	j.last++
	id := strconv.Itoa(j.last)
	j.waiting[id] = a.reply
	line := id + " " + th.name
	for _, word := range command {
		line += fmt.Sprint(" ", word)
	}
	// Under the mutex, so that the lines of two tests do not mix. The program reads without waiting for anything.
	_, err := io.WriteString(j.in, line+"\n")
	j.mu.Unlock()
	require.NoError(th.t, err, "send %q to the Java process", line)
	return a
}

// do sends a request and returns its value.
func (th *thread) do(command ...any) string {
	th.t.Helper()
	return th.ask(command...).in(soon)
}

// refused sends a request and returns the exception that it must end with.
func (th *thread) refused(command ...any) string {
	th.t.Helper()
	reply, err := th.ask(command...).wait(soon)
	require.NoError(th.t, err)
	failure, ok := strings.CutPrefix(reply, "failed ")
	require.True(th.t, ok, "%v was answered with %q, not with an exception", command, reply)
	return failure
}

// answer is what a request will be answered with.
type answer struct {
	t     *testing.T
	java  *java
	asked string
	reply chan string
}

func (a *answer) wait(limit time.Duration) (string, error) {
	select {
	case reply := <-a.reply:
		return reply, nil
	case <-a.java.done:
		select {
		case reply := <-a.reply:
			return reply, nil
		default:
		}
		return "", errors.New("the Java process has ended:\n" + a.java.tail())
	case <-time.After(limit):
		return "", fmt.Errorf("no answer to %q within %v", a.asked, limit)
	}
}

// in waits for the answer and returns its value. An exception fails the test.
func (a *answer) in(limit time.Duration) string {
	a.t.Helper()
	reply, err := a.wait(limit)
	require.NoError(a.t, err)
	value, ok := strings.CutPrefix(reply, "ok")
	require.True(a.t, ok, "%s: %s\n%s", a.asked, reply, a.java.tail())
	return strings.TrimSpace(value)
}

// pending fails the test if the answer has come.
func (a *answer) pending(msg string) {
	a.t.Helper()
	require.Empty(a.t, a.reply, "%s: %s", a.asked, msg)
}

func TestTheJavaProgramEndsWithItsInputAlsoWhileAThreadWaits(t *testing.T) {
	server := redistest.Start(t)
	j := startJava(t, servers{Kind: "single", Addrs: []string{server.Addr()}}, long)
	j.thread(t, "a").do("lock", "x", -1)
	j.thread(t, "b").ask("lock", "x", -1)
	require.NoError(t, j.in.Close())
	select {
	case <-j.done:
	case <-time.After(soon):
		t.Fatal("it goes on")
	}
}

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
