package redistest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func init() {
	// echo repeats its arguments, and each line of its input.
	redistest.RegisterChild("echo", func(args []string, in *bufio.Reader, out io.Writer) {
		fmt.Fprintln(out, "args", strings.Join(args, " "))
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(out, "echo ", line)
		}
	})
	redistest.RegisterChild("fail", func([]string, *bufio.Reader, io.Writer) {
		fmt.Fprintln(os.Stderr, "the reason")
		os.Exit(7)
	})
	// server starts a server as a test would, and is killed afterwards.
	redistest.RegisterChild("server", func(_ []string, in *bufio.Reader, out io.Writer) {
		t := &fakeT{dir: os.TempDir()}
		s := redistest.Start(t)
		fmt.Fprintln(out, s.Pid())
		_, _ = in.ReadString('\n')
	})
}

// fakeT shows a test how a helper fails.
type fakeT struct {
	testing.TB
	dir      string
	cleanups []func()
	errors   []string
	skipped  string
}

func (t *fakeT) Helper()          {}
func (t *fakeT) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }
func (t *fakeT) Failed() bool     { return len(t.errors) > 0 }
func (t *fakeT) TempDir() string  { return t.dir }
func (t *fakeT) Logf(string, ...any) {
}
func (t *fakeT) Errorf(f string, a ...any) { t.errors = append(t.errors, fmt.Sprintf(f, a...)) }
func (t *fakeT) Fatalf(f string, a ...any) { t.Errorf(f, a...); runtime.Goexit() }
func (t *fakeT) Skipf(f string, a ...any)  { t.skipped = fmt.Sprintf(f, a...); runtime.Goexit() }

// failures runs a test with its cleanups, and returns how the test failed.
func failures(t *testing.T, test func(t *fakeT)) *fakeT {
	t.Helper()
	fake := &fakeT{dir: t.TempDir()}
	step := func(f func()) {
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
	}
	step(func() { test(fake) })
	for _, f := range slices.Backward(fake.cleanups) {
		step(f)
	}
	return fake
}

func TestAServerThatDiesByItselfFailsTheTest(t *testing.T) {
	fake := failures(t, func(fake *fakeT) {
		s := redistest.Start(fake)
		_ = s.Client().ShutdownNoSave(t.Context())
		redistest.Eventually(t, 30*time.Second, func() bool {
			_, err := net.Dial("tcp", s.Addr())
			return err != nil
		}, "the server is gone")
		redistest.Eventually(t, 30*time.Second, s.Ended, "its process, too, which closes the port before it ends")
	})
	require.Len(t, fake.errors, 1)
	require.Contains(t, fake.errors[0], "ended by itself")
}

func TestAMissingServerSkipsOrFailsAsTheEnvironmentSays(t *testing.T) {
	t.Setenv("REDIS_SERVER", filepath.Join(t.TempDir(), "none"))
	t.Setenv("RELOCK_REQUIRE_REDIS", "")
	fake := failures(t, func(fake *fakeT) { redistest.Start(fake) })
	require.Empty(t, fake.errors)
	require.Contains(t, fake.skipped, "NOT TESTED")
	t.Setenv("RELOCK_REQUIRE_REDIS", "1")
	fake = failures(t, func(fake *fakeT) { redistest.Start(fake) })
	require.Len(t, fake.errors, 1)
	require.Contains(t, fake.errors[0], "install")
}

func TestAChildThatFailsFailsTheTestUnlessItWasWaitedFor(t *testing.T) {
	fake := failures(t, func(fake *fakeT) {
		c := redistest.Child(fake, "fail")
		redistest.Eventually(t, 10*time.Second, c.Ended, "it has ended")
	})
	require.Len(t, fake.errors, 1)
	require.Contains(t, fake.errors[0], "the reason")

	c := redistest.Child(t, "fail")
	var exit *exec.ExitError
	require.ErrorAs(t, c.Wait(10*time.Second), &exit)
	require.Equal(t, 7, exit.ExitCode())
}

func TestNoGoroutineLeftFindsALeak(t *testing.T) {
	redistest.SetLeakLimit(t, 50*time.Millisecond)
	end := make(chan struct{})
	defer close(end)
	fake := failures(t, func(fake *fakeT) {
		redistest.NoGoroutineLeft(fake, "redistest_test.leak")
		running := make(chan struct{})
		go leak(running, end)
		<-running // before, the stack of the goroutine does not show the library
	})
	require.Len(t, fake.errors, 1)
	require.Contains(t, fake.errors[0], "redistest_test.leak")

	fake = failures(t, func(fake *fakeT) { redistest.NoGoroutineLeft(fake, "redistest_test.leak") })
	require.Empty(t, fake.errors, "it was there before")
}

func leak(running chan<- struct{}, end <-chan struct{}) {
	close(running)
	<-end
}
