//go:build linux || darwin

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// console is a terminal with a program in it, which is the leader of its session.
type console struct {
	*program
	tty    *os.File // the keyboard and screen end
	screen output
}

// openConsole runs a program in a terminal of 24 lines and 120 columns.
func openConsole(t *testing.T, setups []setup, path string, args ...string) *console {
	t.Helper()
	c := &console{program: newProgram(t, append(setups, env("PS1=$ ", "TERM=xterm", "relock="+binary)), path, args...)}
	var err error
	c.tty, err = pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 24, Cols: 120})
	require.NoError(t, err)
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := c.tty.Read(buf)
			_, _ = c.screen.Write(buf[:n])
			if err != nil { // the last program has closed it
				return
			}
		}
	}()
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.tty.Close()
		<-c.ended
		<-read
		if t.Failed() {
			t.Logf("screen: %q", c.screen.String())
		}
	})
	return c
}

// shell is a console with a shell that knows job control; $relock is the program under test.
func (s *site) shell() *console {
	s.t.Helper()
	c := openConsole(s.t, s.on(), "/bin/sh", "-i")
	c.sees("$ ")
	return c
}

// press sends keys.
func (c *console) press(keys string) {
	c.t.Helper()
	_, err := c.tty.WriteString(keys)
	require.NoError(c.t, err)
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
	ctrlZ = "\x1a"
)

// sees waits until the screen has shown text, n times in all.
func (c *console) seesTimes(text string, n int) {
	c.t.Helper()
	redistest.Eventually(c.t, soon, func() bool { return strings.Count(c.screen.String(), text) >= n }, "on the screen %d times: %q", n, text)
}

func (c *console) sees(text string) {
	c.t.Helper()
	c.seesTimes(text, 1)
}

// pid waits for a script to print "pid <$$>", and returns that. It is killed when the test ends,
// should it still run.
func (c *console) pid() (pid int) {
	c.t.Helper()
	redistest.Eventually(c.t, soon, func() bool {
		found := regexp.MustCompile(`pid <(\d+)>`).FindStringSubmatch(c.screen.String())
		if found == nil {
			return false
		}
		pid, _ = strconv.Atoi(found[1])
		return true
	}, "printed: the pid")
	c.t.Cleanup(func() {
		if alive(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pid
}

// foreground waits until a process group has the keyboard.
func (c *console) foreground(group int) {
	c.t.Helper()
	redistest.Eventually(c.t, soon, func() bool {
		got, err := unix.IoctlGetInt(int(c.tty.Fd()), unix.TIOCGPGRP)
		return err == nil && got == group
	}, "in the foreground: %d", group)
}

// The text that a shell is told to print must not be in the line that tells it, which the terminal
// shows too. So scripts print "<$?>", and tests look for "<0>".

func TestCtrlCGoesToTheCommandAndOnlyOnce(t *testing.T) {
	s := onShared(t)
	self, err := os.Executable()
	require.NoError(t, err)
	c := openConsole(t, s.on(env(probeMode+"=tree")), binary, "run", "job", "--", self)
	c.seesTimes("ready ", 2)
	c.press(ctrlC)
	c.seesTimes("got interrupt", 2)
	c.press(ctrlC)
	c.seesTimes("got interrupt", 4)
	c.sees("child got interrupt")
	require.True(t, c.runs(), "the command decides what Ctrl-C means")
	c.signal(syscall.SIGTERM)
	require.Equal(t, 9, c.code())
	require.Equal(t, 4, strings.Count(c.screen.String(), "got interrupt"), "each has got each Ctrl-C once")
}

func TestCtrlCEndsTheScriptAroundToo(t *testing.T) {
	s := onShared(t)
	for _, name := range []string{"sh", "bash"} { // bash goes on after a command that has not died of it
		shell, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		later := filepath.Join(t.TempDir(), "later")
		script := openConsole(t, s.on(), shell, "-c",
			`$relock run job -- sh -c 'echo "pid <$$>"; exec sleep 60'; echo x > "$1"`, "sh", later)
		pid := script.pid()
		script.foreground(pid)
		script.press(ctrlC)
		script.code()
		gone(t, pid)
		require.False(t, s.state("job").Locked())
		require.NoFileExists(t, later, name)
	}
}

func TestCtrlZStopsARunInsideARunToo(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run outer -- $relock run -v job -- sh -c 'echo \"pid <$$>\"; while read x; do echo \"<$x>\"; done'\n")
	c.pid()
	c.sees("has pid")
	outer, token := s.state("outer").Token, s.state("job").Token
	c.press(ctrlZ)
	c.sees("Stopped")
	c.press("fg\n")
	c.press("fox\n")
	c.sees("<fox>")
	c.press(ctrlZ)
	c.seesTimes("Stopped", 2)
	c.press("fg\n")
	c.press("vixen\n")
	c.sees("<vixen>")
	require.Equal(t, token, s.state("job").Token)
	require.Equal(t, outer, s.state("outer").Token)
	c.press(ctrlD)
	s.free("outer")
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
}

func TestAJobThatWasStoppedLongerThanItsLeaseIsEnded(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run job --ttl 1s -- sh -c 'trap \"echo told; exit 3\" TERM; echo $(( 40+2 )); read x; echo \"<$x>\"'\n")
	c.sees("42")
	c.press(ctrlZ)
	c.sees("Stopped")
	s.free("job") // nobody renews it
	release := s.hold("job")
	defer release()
	c.press("fg; echo \"<$?>\"\n")
	c.sees("lost by")
	c.sees("\ntold")
	c.sees("<79>")
}

func TestAJobInTheBackgroundDoesNotTakeTheTerminal(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run job -- sh -c 'read x; echo \"<$x>\"' &\n")
	s.until("job", "held", relock.State.Locked)
	// The shell reads the keyboard still.
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
	c.press("echo; jobs\n")
	redistest.Eventually(t, soon, func() bool {
		c.press("jobs\n")
		return strings.Contains(c.screen.String(), "Stopped")
	}, "stopped: the job that wants to read")
	c.press("fg\n")
	c.press("fox\n")
	c.sees("<fox>")
	s.free("job")
}

func TestACommandInAPipelineGetsTheTerminalWhenItAsks(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run job -- sh -c 'read x; echo \"<$x>\"' | sed 's/fox/vixen/'\n")
	s.until("job", "held", relock.State.Locked)
	c.press("fox\n")
	c.sees("<vixen>")
	s.free("job")
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
}

func TestCtrlCAndCtrlZReachACommandInAPipeline(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run job -- sh -c 'echo \"pid <$$>\"; exec sleep 60' | cat\n")
	pid := c.pid()
	c.press(ctrlZ)
	c.sees("Stopped")
	require.Equal(t, "T", state(pid)[:1], "the shell says so when all have stopped")
	c.press("fg\n")
	redistest.Eventually(t, soon, func() bool { return state(pid)[:1] == "S" }, "going on: the command")
	c.press(ctrlC)
	gone(t, pid)
	s.free("job")
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
}

func TestCtrlZWithoutAShellChangesNothing(t *testing.T) {
	s := onShared(t)
	// As in a container: nobody could ever say fg.
	c := openConsole(t, s.on(), binary, "run", "job", "--", "sh", "-c", `echo "$((40+2))"; read x; echo "<$x>"`)
	c.sees("42")
	c.press(ctrlZ)
	c.press("fox\n")
	c.sees("<fox>")
	require.Equal(t, 0, c.code())
}

// drawn is what stands on the screen: the last drawing, without the commands to the terminal.
func (c *console) drawn() string {
	const home = "\x1b[H"
	text := c.screen.String()
	if i := strings.LastIndex(text, home); i >= 0 {
		text = text[i+len(home):]
	}
	return strings.TrimRight(regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`).ReplaceAllString(text, ""), "\r\n")
}

func (c *console) draws(pattern string) {
	c.t.Helper()
	re := regexp.MustCompile(pattern)
	redistest.Eventually(c.t, soon, func() bool { return re.MatchString(c.drawn()) }, "drawn: %s", pattern)
}

func TestWatchAtATerminalIsOneTableThatChangesAndFits(t *testing.T) {
	s := onShared(t)
	release := s.hold("orders:1")
	c := openConsole(t, s.on(), binary, "watch", "--interval", "100ms")
	c.draws(`orders:1 +exclusive +1 +\S+ \d+s +0 +- +[0-9a-f]{8}:\d+`)
	s.hold("stock:2")
	c.draws(`(?s)2 held.*orders:1.*stock:2`)
	release()
	c.draws(`(?s)1 held, 0 waiting[^o]*stock:2[^o]*$`)
	for _, name := range strings.Fields("a b c d e f g h i") {
		s.hold(name)
	}
	c.draws(`(?s)\na .*\ni `)
	require.NoError(t, pty.Setsize(c.tty, &pty.Winsize{Rows: 6, Cols: 30}))
	c.draws(`… 9 more`)
	lines := strings.Split(c.drawn(), "\r\n")
	require.Len(t, lines, 5, "the last line is for the cursor")
	for _, line := range lines {
		require.LessOrEqual(t, len([]rune(line)), 30)
	}
	c.press(ctrlC)
	require.Equal(t, 0, c.code())
}
