// Package curator_test shows that Go and Java share locks: package relockzk, and InterProcessMutex and
// InterProcessReadWriteLock of Curator in a Java process.
package curator_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/zktest"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const (
	patience = 30 * time.Second
	session  = 3 * time.Second
	lockPath = "/locks/orders"
)

// world is a server with a mutex and a read-write lock in Go, of one name.
type world struct {
	testing.TB
	server  *zktest.Server
	session time.Duration
	conn    *zk.Conn
	lock    *relock.Lock
	rw      *relock.RWLock
}

func newWorld(t testing.TB) *world { return newWorldOf(t, session) }

// newWorldOf has sessions of a length, and leases of two thirds of it.
func newWorldOf(t testing.TB, session time.Duration) *world {
	t.Helper()
	server := zktest.Start(t)
	s, err := relockzk.New(server.Address(), relockzk.WithRoot("/locks"), relockzk.WithSessionTimeout(session))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c, err := relock.Open(s, relock.WithTTL(2*session/3))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	conn, _, err := zk.Connect([]string{server.Address()}, patience, zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return &world{TB: t, server: server, session: session, conn: conn, lock: c.NewLock("orders"), rw: c.NewRWLock("orders")}
}

// waitNodes waits until the lock has n nodes: the holder and the waiters.
func (w *world) waitNodes(n int) {
	w.Helper()
	redistest.Eventually(w, patience, func() bool {
		nodes, _, err := w.conn.Children(lockPath)
		return err == nil && len(nodes) == n
	}, "the lock has %d nodes", n)
}

// java is a process with a Curator client that answers lines with lines.
type java struct {
	*world
	cmd     *exec.Cmd
	in      io.Writer
	answers chan string
}

// java starts a process with a Curator client and one InterProcessMutex.
func (w *world) java() *java {
	w.Helper()
	return w.run(w.session, "-XX:TieredStopAtLevel=1", "relock.interop.Main")
}

// run starts a Java program, with the server, the lock and the session in front of the arguments.
func (w *world) run(session time.Duration, flag, program string, args ...string) *java {
	w.Helper()
	target, err := filepath.Abs(filepath.Join("java", "target"))
	require.NoError(w, err)
	if _, err := os.Stat(filepath.Join(target, "classes")); err != nil {
		redistest.NotTested(w, "the Java program is not built: run make interop: %v", err)
	}
	classpath := filepath.Join(target, "classes") + string(os.PathListSeparator) + filepath.Join(target, "lib", "*")
	args = append([]string{
		"-Xmx128m", "-XX:+UseSerialGC", flag, "-cp", classpath, program,
		w.server.Address(), lockPath, strconv.FormatInt(session.Milliseconds(), 10),
	}, args...)
	cmd := exec.CommandContext(context.Background(), "java", args...)
	cmd.Stderr = w.Output()
	in, err := cmd.StdinPipe()
	require.NoError(w, err)
	out, err := cmd.StdoutPipe()
	require.NoError(w, err)
	require.NoError(w, cmd.Start())
	j := &java{world: w, cmd: cmd, in: in, answers: make(chan string, 10)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			j.answers <- lines.Text()
		}
	}()
	w.Cleanup(func() {
		j.kill()
		<-read
		_ = cmd.Wait()
	})
	return j
}

func (j *java) kill() { _ = j.cmd.Process.Kill() }

func (j *java) send(line string) {
	j.Helper()
	_, err := io.WriteString(j.in, line+"\n")
	require.NoError(j, err)
}

func (j *java) expect(answer string) {
	j.Helper()
	require.Equal(j, answer, j.answer())
}

func (j *java) answer() string {
	j.Helper()
	select {
	case answer := <-j.answers:
		return answer
	case <-time.After(patience):
		require.FailNow(j, "no answer of Java")
		return ""
	}
}

// enter takes the mutex in a goroutine.
func (w *world) enter() chan context.Context { return w.begin(w.Context(), w.lock.Lock) }

// begin calls lock in a goroutine.
func (w *world) begin(ctx context.Context, lock func(context.Context) (context.Context, error)) chan context.Context {
	sections := make(chan context.Context, 1)
	go func() {
		if section, err := lock(ctx); err == nil {
			sections <- section
		}
	}()
	return sections
}

// has takes a lock at once.
func (w *world) has(ctx context.Context, lock func(context.Context) (context.Context, error)) context.Context {
	w.Helper()
	return w.get(w.begin(ctx, lock))
}

func (w *world) get(sections chan context.Context) context.Context {
	w.Helper()
	select {
	case section := <-sections:
		return section
	case <-time.After(patience):
		require.FailNow(w, "Go does not get the lock")
		return nil
	}
}

func TestGoAndJavaExcludeEachOtherInOneOrder(t *testing.T) {
	w := newWorld(t)
	first, second := w.java(), w.java()
	first.send("lock mutex")
	first.expect("locked mutex")
	_, err := w.lock.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	require.ErrorContains(t, err, "_c_", "the refusal names the node of Java")
	sections := w.enter()
	w.waitNodes(2)
	second.send("lock mutex")
	w.waitNodes(3)
	behind := w.enter()
	w.waitNodes(4)

	require.Empty(t, sections)
	first.send("unlock mutex")
	first.expect("unlocked mutex")
	section := w.get(sections)
	token, err := w.lock.Token(section)
	require.NoError(t, err)
	require.Empty(t, second.answers)
	require.NoError(t, w.lock.Unlock(section))
	second.expect("locked mutex")
	require.Empty(t, behind)
	second.send("unlock mutex")
	second.expect("unlocked mutex")
	section = w.get(behind)
	newer, err := w.lock.Token(section)
	require.NoError(t, err)
	require.Greater(t, newer, token)
	require.NoError(t, w.lock.Unlock(section))
}

func TestGoGetsTheLockOfJavaThatWasKilled(t *testing.T) {
	w := newWorld(t)
	holder, waiter := w.java(), w.java()
	holder.send("lock mutex")
	holder.expect("locked mutex")
	waiter.send("lock mutex")
	w.waitNodes(2)
	sections := w.enter()
	w.waitNodes(3)
	waiter.kill()
	holder.kill()
	require.NoError(t, w.lock.Unlock(w.get(sections)))
}

var _ = func() bool {
	redistest.RegisterChild("hold", func(args []string, in *bufio.Reader, out io.Writer) {
		s, err := relockzk.New(args[0], relockzk.WithRoot("/locks"), relockzk.WithSessionTimeout(session))
		if err != nil {
			panic(err)
		}
		c, err := relock.Open(s, relock.WithTTL(2*time.Second))
		if err != nil {
			panic(err)
		}
		section, err := c.NewLock("orders").Lock(context.Background())
		_, _ = fmt.Fprintln(out, "locked", err)
		_, _ = in.ReadString('\n')
		_ = c.NewLock("orders").Unlock(section)
	})
	return true
}()

func TestJavaGetsTheLockOfGoThatWasKilled(t *testing.T) {
	w := newWorld(t)
	holder := redistest.Child(t, "hold", w.server.Address())
	holder.Expect("locked <nil>", patience)
	j := w.java()
	j.send("lock mutex")
	w.waitNodes(2)
	holder.Kill()
	j.expect("locked mutex")
	j.send("unlock mutex")
	j.expect("unlocked mutex")
}

func TestJavaGetsTheLockOfGoThatIsForced(t *testing.T) {
	w := newWorld(t)
	section := w.get(w.enter())
	j := w.java()
	j.send("lock mutex")
	w.waitNodes(2)
	require.NoError(t, w.lock.ForceUnlock(t.Context()))
	j.expect("locked mutex")
	require.ErrorIs(t, w.lock.Unlock(section), relock.ErrLockLost)
	j.send("unlock mutex")
	j.expect("unlocked mutex")
}
