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
	c := &console{program: &program{t: t, cmd: exec.Command(path, args...), ended: make(chan struct{})}}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "REDIS") && !strings.HasPrefix(v, "RELOCK_") && !strings.HasPrefix(v, "ENV=") {
			c.cmd.Env = append(c.cmd.Env, v)
		}
	}
	c.cmd.Env = append(c.cmd.Env, "PS1=$ ", "TERM=xterm", "relock="+binary, quickExit)
	for _, f := range setups {
		f(c.program)
	}
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
	ctrlS = "\x13"
	ctrlZ = "\x1a"
	quit  = "\x1c"
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

func TestAnInteractiveCommandHasTheTerminal(t *testing.T) {
	s := onShared(t)
	c := openConsole(t, s.on(), binary, "run", "job", "--", "sh", "-c", `printf 'name? '; read name; echo "<$name>"; exit 7`)
	c.sees("name? ")
	require.True(t, s.state("job").Locked())
	c.press("fox\n")
	c.sees("<fox>")
	require.Equal(t, 7, c.code())
	require.False(t, s.state("job").Locked())
}

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

func TestCtrlCInAShellEndsAPlainCommand(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run job -- sh -c 'echo \"pid <$$>\"; exec sleep 60'\n")
	c.foreground(c.pid())
	c.press(ctrlC)
	c.seesTimes("$ ", 2)
	c.press("echo \"<$?>\"\n")
	c.sees("<130>")
	require.False(t, s.state("job").Locked())
	// The shell has its terminal back.
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
}

// held waits until a lock is held.
func (s *site) held(name string) {
	s.t.Helper()
	redistest.Eventually(s.t, soon, func() bool { return s.state(name).Locked() }, "held: %q", name)
}

func TestCtrlCEndsTheScriptAroundToo(t *testing.T) {
	s := onShared(t)
	for _, c := range []struct{ shell, key string }{
		{"sh", ctrlC},
		{"bash", ctrlC}, // goes on after a command that has not died of it
		{"dash", quit},  // bash does not care for it
	} {
		shell, err := exec.LookPath(c.shell)
		if err != nil {
			continue
		}
		later := filepath.Join(t.TempDir(), "later")
		script := openConsole(t, s.on(), shell, "-c",
			`ulimit -c 0; $relock run job -- sh -c 'echo "pid <$$>"; exec sleep 60'; echo x > "$1"`, "sh", later)
		pid := script.pid()
		script.foreground(pid)
		script.press(c.key)
		script.code()
		gone(t, pid)
		require.False(t, s.state("job").Locked())
		require.NoFileExists(t, later, c.shell)
	}
}

func TestCtrlCEndsTheScriptAroundAlsoWhereItComesToRelock(t *testing.T) {
	s := onShared(t)
	bash, err := exec.LookPath("bash")
	if err != nil {
		redistest.NotTested(t, "only bash goes on after a command that has not died of Ctrl-C, and it is not here")
	}
	later := filepath.Join(t.TempDir(), "later")
	// The command has not the terminal, as its output goes elsewhere.
	c := openConsole(t, s.on(), bash, "-c",
		`$relock run job -- sh -c 'echo "pid <$$>" >&2; exec sleep 60' > /dev/null; echo x > "$1"`, "bash", later)
	pid := c.pid()
	c.press(ctrlC)
	c.code()
	gone(t, pid)
	require.False(t, s.state("job").Locked())
	require.NoFileExists(t, later, "while the command ran")

	s.hold("job")
	c = openConsole(t, s.on(), bash, "-c", `$relock run job -- echo never; echo x > "$1"`, "bash", later)
	c.sees(`"job" is locked, waiting; 0 before this`)
	c.press(ctrlC)
	c.code()
	require.Equal(t, 0, s.state("job").Waiters)
	require.NoFileExists(t, later, "during a wait")
}

func TestASignalThatRelockHandsOnDoesNotEndTheScriptAround(t *testing.T) {
	s := onShared(t)
	for _, name := range []string{"sh", "bash"} {
		shell, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		// Not by the keyboard, but by way of relock.
		c := openConsole(t, s.on(), shell, "-c",
			`$relock run job -- sh -c 'kill -INT $PPID; exec sleep 60'; echo "<$?>"`)
		c.sees("<130>")
		require.Equal(t, 0, c.code())
	}
}

func TestCtrlCEndsAWait(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	c := s.shell()
	c.press("$relock run job -- echo never\n")
	c.sees(`"job" is locked, waiting; 0 before this`)
	c.press(ctrlC)
	c.seesTimes("$ ", 2)
	c.press("echo \"<$?>\"\n")
	c.sees("<130>")
	require.Equal(t, 0, s.state("job").Waiters)
}

func TestAScriptHasItsTerminalBackAfterARun(t *testing.T) {
	s := onShared(t)
	// A shell without job control, which does not take the terminal by itself.
	c := openConsole(t, s.on(), "/bin/sh", "-c", `$relock run job -- true; printf 'more? '; read x; echo "<$x>"`)
	c.sees("more? ")
	c.press("fox\n")
	c.sees("<fox>")
	require.Equal(t, 0, c.code())
}

func TestAScriptHasItsTerminalBackAlsoFromAJobOfAShell(t *testing.T) {
	s := onShared(t)
	c := openConsole(t, s.on(), "/bin/sh", "-c",
		`$relock run job --ttl 1s --grace 100ms -- sh -i; printf 'more? '; read x; echo "<$x>"`)
	c.sees("$ ")
	c.press("sh -c 'echo \"pid <$$>\"; exec sleep 60'\n") // in a process group of its own
	c.pid()
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	c.sees("more? ")
	c.press("fox\n")
	c.sees("<fox>")
	require.Equal(t, 0, c.code())
}

func TestCtrlZStopsTheWholeJobAndFgGoesOnWithTheLock(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run job -- sh -c 'echo $(( 40+2 )); read x; echo \"<$x>\"; exit 7'; echo \"[$?]\"\n")
	c.sees("42")
	token := s.state("job").Token
	c.press(ctrlZ)
	c.sees("Stopped")
	c.press("fg\n")
	c.press("fox\n")
	c.sees("<fox>")
	require.Equal(t, token, s.state("job").Token)
	s.free("job")
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
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

func TestACommandThatStopsItselfLeavesTheTerminalToTheShellUntilFg(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	// As nano does at its Ctrl-Z, and bash for suspend.
	c.press("$relock run job -- sh -c 'echo \"pid <$$>\"; read x; kill -STOP $$; read y; echo \"<$x $y>\"'\n")
	c.foreground(c.pid())
	token := s.state("job").Token
	c.press("red\n")
	c.sees("Stopped")
	c.press("fg\n")
	c.press("fox\n")
	c.sees("<red fox>")
	require.Equal(t, token, s.state("job").Token)
	s.free("job")
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
	s.held("job")
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
	s.held("job")
	c.press("fox\n")
	c.sees("<vixen>")
	s.free("job")
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
}

func TestACommandInAPipelineGetsTheTerminalToTidyUpAfterALoss(t *testing.T) {
	s := onShared(t)
	c := s.shell()
	c.press("$relock run job --ttl 1s -- sh -c 'trap \"stty sane </dev/tty; echo tidy; exit 3\" TERM; echo $((40+2)); while :; do sleep 0.05; done' | cat\n")
	c.sees("42")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	c.sees("has ended with 3")
	c.sees("\ntidy")
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

func TestATerminalThatAKilledCommandLeftInDisorderIsRestored(t *testing.T) {
	s := onShared(t)
	c := openConsole(t, s.on(), binary, "run", "job", "--ttl", "1s", "--grace", "0", "--", "sh", "-c",
		`stty -echo -icanon; echo "$((40+2))"; sleep 60`)
	c.sees("42")
	local := func() uint64 {
		modes, err := unix.IoctlGetTermios(int(c.tty.Fd()), getTermios)
		require.NoError(t, err)
		return uint64(modes.Lflag)
	}
	require.Zero(t, local()&(unix.ECHO|unix.ICANON))
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	redistest.Eventually(t, soon, func() bool { return local()&(unix.ECHO|unix.ICANON) == unix.ECHO|unix.ICANON }, "restored: the terminal")
	require.Equal(t, codeLost, c.code())
}

func TestALossIsActedOnBehindCtrlS(t *testing.T) {
	s := onShared(t)
	heard := filepath.Join(t.TempDir(), "heard")
	c := openConsole(t, s.on(), binary, "run", "job", "--ttl", "1s", "--", "sh", "-c",
		`echo "pid <$$>"; exec >/dev/null 2>&1; read x; echo x > "$1"; exec sleep 60`, "sh", heard)
	pid := c.pid()
	c.press(ctrlS + "x\n") // once the one is heard the other was, too
	redistest.Eventually(t, soon, func() bool { _, err := os.Stat(heard); return err == nil }, "heard: a line")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	gone(t, pid)
	require.Equal(t, codeLost, c.code())
}

// drawn is what stands on the screen: the last drawing, without the commands to the terminal.
func (c *console) drawn() string {
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

func TestWatchAtATerminalIsOneTableThatChanges(t *testing.T) {
	s := onShared(t)
	release := s.hold("orders:1")
	c := openConsole(t, s.on(), binary, "watch", "--interval", "100ms")
	c.draws(`1 held, 0 waiting`)
	c.draws(`orders:1 +exclusive +1 +\d+s +0 +- +[0-9a-f-]{36}:\d+`)
	require.True(t, strings.HasPrefix(c.screen.String(), enterScreen))
	s.hold("stock:2")
	c.draws(`(?s)2 held.*orders:1.*stock:2`)
	release()
	c.draws(`(?s)1 held, 0 waiting[^o]*stock:2[^o]*$`)
	c.press(ctrlC)
	require.Equal(t, 0, c.code())
	redistest.Eventually(t, soon, func() bool { return strings.HasSuffix(c.screen.String(), leaveScreen) }, "given back: the screen")
}

func TestWatchFitsTheTerminal(t *testing.T) {
	s := onShared(t)
	for _, name := range strings.Fields("a b c d e f g h i j") {
		s.hold(name)
	}
	c := openConsole(t, s.on(), binary, "watch", "--interval", "1h")
	c.draws(`(?s)\na .*\nj `)
	require.NoError(t, pty.Setsize(c.tty, &pty.Winsize{Rows: 6, Cols: 30}))
	c.draws(`… 8 more`) // at once, not after an hour
	lines := strings.Split(c.drawn(), "\r\n")
	require.Len(t, lines, 6)
	for _, line := range lines {
		require.LessOrEqual(t, len([]rune(line)), 30)
	}
	c.press(ctrlC)
	require.Equal(t, 0, c.code())
}

func TestWideCharactersDoNotWrapInWatch(t *testing.T) {
	s := onShared(t)
	s.hold(strings.Repeat("注文", 50)) // a hundred characters, two hundred columns
	c := openConsole(t, s.on(), binary, "watch", "--interval", "1h")
	c.draws(`注文`)
	const noWrap, wrap = "\x1b[?7l", "\x1b[?7h"
	require.Contains(t, c.screen.String(), noWrap)
	require.NotContains(t, c.screen.String(), wrap)
	c.press(ctrlC)
	require.Equal(t, 0, c.code())
	c.sees(wrap)
}

func TestWatchTellsWhenItsTableIsOld(t *testing.T) {
	s := onOwn(t)
	s.hold("job")
	c := openConsole(t, s.on(), binary, "watch", "--interval", "100ms")
	c.draws(`1 held`)
	s.server.Kill()
	c.draws(`(?s)! no answer from Redis.*\njob `)
	s.server.Restart()
	c.draws(`0 held, 0 waiting`)
	c.press(ctrlC)
	require.Equal(t, 0, c.code())
}

func TestCtrlZInWatchGivesTheScreenBackUntilFg(t *testing.T) {
	s := onShared(t)
	s.hold("orders:1")
	c := s.shell()
	c.press("$relock watch --interval 1h\n")
	c.draws(`orders:1`)
	c.press(ctrlZ)
	c.sees("Stopped")
	text := c.screen.String()
	require.Greater(t, strings.LastIndex(text, leaveScreen), strings.LastIndex(text, enterScreen))
	c.press("fg\n")
	c.seesTimes(enterScreen, 2)
	c.draws(`orders:1`)
	c.press(ctrlC)
	c.seesTimes(leaveScreen, 2)
	c.press("echo \"<$((40+2))>\"\n")
	c.sees("<42>")
}

func TestWatchEndsWith0AlsoWhereTheTerminalHasHungUp(t *testing.T) {
	s := onShared(t)
	screen, tty, err := pty.Open()
	require.NoError(t, err)
	defer screen.Close()
	p := start(t, s.on(func(p *program) {
		p.cmd.Stdin, p.cmd.Stdout = tty, tty
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}), "watch")
	require.NoError(t, tty.Close())
	text := ""
	for buf := make([]byte, 4096); !strings.Contains(text, "LONGEST WAIT"); {
		n, err := screen.Read(buf)
		require.NoError(t, err)
		text += string(buf[:n])
	}
	require.NoError(t, screen.Close())
	require.Equal(t, 0, p.code())
	require.Empty(t, p.stderr.String())
}

func TestWatchGivesTheScreenBackAlsoAtCtrlBackslash(t *testing.T) {
	s := onShared(t)
	c := openConsole(t, s.on(), binary, "watch")
	c.sees("LONGEST WAIT")
	c.press(quit)
	require.Equal(t, 0, c.code())
	redistest.Eventually(t, soon, func() bool { return strings.HasSuffix(c.screen.String(), leaveScreen) }, "the screen is given back")
}
