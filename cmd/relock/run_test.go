package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestTheCodeOfTheCommandIsPassedOn(t *testing.T) {
	s := onShared(t)
	for _, code := range []int{0, 1, 3, 64, 75, 79, 255} {
		got := do(t, s.on(), "run", "job", "--", "sh", "-c", fmt.Sprintf("exit %d", code))
		require.Equal(t, result{code: code}, got)
	}
}

func TestASignalThatEndsTheCommandIsPassedOnAs128AndItsNumber(t *testing.T) {
	s := onShared(t)
	for signal, code := range map[string]int{"TERM": 143, "KILL": 137, "INT": 130} {
		got := do(t, s.on(), "run", "job", "--", "sh", "-c", "kill -"+signal+" $$")
		require.Equal(t, code, got.code, signal)
	}
}

func TestTheLockIsHeldWhileTheCommandRunsAndNoLonger(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job")
	require.True(t, s.state("job").Locked())
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
	require.False(t, s.state("job").Locked())
	require.Empty(t, p.stderr.String())
}

func TestTheCommandFindsItsLockInTheEnvironment(t *testing.T) {
	s := onShared(t)
	outer := env("RELOCK_TOKEN=1", "RELOCK_NAME=outer", "RELOCK_HOLDER=outer", "KEPT=yes",
		"RELOCK_SENTINEL_PASSWORD=hunter2", "RELOCK_SENTINEL_USERNAME=fox")
	p := start(t, s.on(outer), "run", "orders:42", "--", "sh", "-c", "env; echo end; read x")
	p.expect(&p.stdout, "end")
	state := s.state("orders:42")
	require.Positive(t, state.Token)
	printed := p.stdout.lines()
	for _, want := range []string{
		"RELOCK_NAME=orders:42", "RELOCK_HOLDER=" + state.Holder.String(), fmt.Sprintf("RELOCK_TOKEN=%d", state.Token), "KEPT=yes",
	} {
		require.Contains(t, printed, want)
	}
	require.NotContains(t, p.stdout.String(), "outer", "an outer run's")
	require.NotContains(t, p.stdout.String(), "hunter2", "the password of the sentinels is not for the command")
	require.NoError(t, p.stdin.Close())
	p.code()
}

func TestTheOwnerSaysWhoHasTheLock(t *testing.T) {
	s := onShared(t)
	for flags, owner := range map[string]string{"": defaultOwner(), "--owner=cron@db-1": "cron@db-1"} {
		p, _ := s.startProbe("plain", strings.Fields("job "+flags)...)
		require.Regexp(t, "^"+regexp.QuoteMeta(owner)+"/[0-9a-f-]{36}:\\d+$", s.state("job").Holder.String())
		got := do(t, s.on(), "run", "job", "--no-wait", "--", "true")
		require.Equal(t, codeBusy, got.code)
		require.Contains(t, got.stderr, `"job" is locked by `+owner)
		require.Contains(t, do(t, s.on(), "ls").stdout, " "+owner+"/")
		require.Regexp(t, `(?m)^holder +`+owner+`/`, do(t, s.on(), "show", "job").stdout)
		require.NoError(t, p.stdin.Close())
		require.Equal(t, 9, p.code())
	}
	require.Regexp(t, `^relock(@[A-Za-z0-9._-]+)?$`, defaultOwner())
	require.LessOrEqual(t, len(defaultOwner()), 64)
}

func TestTheTokenIsDrawnBeforeTheCommandStarts(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	// The user may take the lock and give it back, and has no right to draw a token.
	require.NoError(t, s.rdb.Do(t.Context(), "acl", "setuser", "fox", "on", ">fox", "~relock:*", "&relock:*", "+@all", "-set").Err())
	got := do(t, []setup{env("REDIS_URL=redis://fox:fox@" + s.server.Addr())}, "run", "job", "--", "echo", "never")
	require.Equal(t, codeNoPerm, got.code, got.stderr)
	require.Empty(t, got.stdout)
	require.False(t, s.state("job").Locked())
}

func TestTokensGrowFromRunToRun(t *testing.T) {
	s := onShared(t)
	last := int64(0)
	for range 3 {
		got := do(t, s.on(), "run", "job", "--", "sh", "-c", "echo $RELOCK_TOKEN")
		token, err := strconv.ParseInt(strings.TrimSpace(got.stdout), 10, 64)
		require.NoError(t, err)
		require.Greater(t, token, last)
		last = token
	}
}

func TestTheCommandHasOurStandardFiles(t *testing.T) {
	s := onShared(t)
	p := start(t, s.on(), "run", "job", "--", "sh", "-c", "cat; echo trouble >&2")
	data := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	_, err := p.stdin.Write(data)
	require.NoError(t, err)
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 0, p.code())
	require.Equal(t, string(data), p.stdout.String())
	require.Equal(t, "trouble\n", p.stderr.String())
}

func TestFlagsBehindTheDashesBelongToTheCommand(t *testing.T) {
	s := onShared(t)
	got := do(t, s.on(), "run", "job", "--", "echo", "--json", "-v", "--", "--wait", "x")
	require.Equal(t, result{stdout: "--json -v -- --wait x\n"}, got)
}

func TestTheLockIsRenewedForAsLongAsTheCommandRuns(t *testing.T) {
	s := onShared(t)
	const ttl = 1500 * time.Millisecond
	p, _ := s.startProbe("plain", "job", "--ttl", ttl.String())
	token := s.state("job").Token
	began := time.Now()
	redistest.Eventually(t, soon, func() bool {
		state := s.state("job")
		require.True(t, state.Locked())
		require.Equal(t, token, state.Token)
		return time.Since(began) > 3*ttl
	}, "over: three leases")
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
}

func TestABusyLockIs75(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	for _, flags := range [][]string{{"--no-wait"}, {"--wait", "0"}, {"--wait", "150ms"}} {
		began := time.Now()
		got := do(t, s.on(), append(append([]string{"run", "job"}, flags...), "--", "echo", "never")...)
		require.Equal(t, codeBusy, got.code, flags)
		require.Empty(t, got.stdout)
		require.Contains(t, got.stderr, s.state("job").Holder.String(), "it says who has the lock")
		if flags[0] == "--wait" && flags[1] != "0" {
			require.GreaterOrEqual(t, time.Since(began), 150*time.Millisecond)
		}
	}
	s.waiting("job", 0)
}

func TestTheConflictExitCodeIsForABusyLockOnly(t *testing.T) {
	s := onShared(t)
	release := s.hold("job")
	for _, flags := range [][]string{{"-E", "9", "--no-wait"}, {"--conflict-exit-code=9", "--wait", "150ms"}} {
		got := do(t, s.on(), append(append([]string{"run", "job"}, flags...), "--", "echo", "never")...)
		require.Equal(t, 9, got.code)
		require.Contains(t, got.stderr, s.state("job").Holder.String())
	}
	e := object(t, do(t, s.on(), "run", "job", "-E0", "--no-wait", "--json", "--", "echo", "never").stderr)
	require.Equal(t, "busy", e["error"])
	require.EqualValues(t, 0, e["exit_code"])
	release()
	require.Equal(t, codeBusy, do(t, s.on(), "run", "job", "-E9", "--", "sh", "-c", "exit 75").code, "the command's own")
	require.Equal(t, codeLost, do(t, s.on(), "run", "job", "-E9", "--ttl=1s", "--max-hold=1s", "--", "sleep", "60").code)
	for _, wrong := range []string{"-1", "256", "x"} {
		require.Equal(t, codeUsage, do(t, s.on(), "run", "job", "-E", wrong, "--", "true").code)
	}
}

func TestABusyLockIsWaitedFor(t *testing.T) {
	s := onShared(t)
	for _, flags := range [][]string{nil, {"--wait", "1m"}} {
		release := s.hold("job")
		p := start(t, s.on(), append(append([]string{"run", "job"}, flags...), "--", "echo", "mine")...)
		s.waiting("job", 1)
		require.Empty(t, p.stdout.String())
		release()
		require.Equal(t, 0, p.code())
		require.Equal(t, "mine\n", p.stdout.String())
		require.Empty(t, p.stderr.String(), "nobody looks on")
	}
}

func TestAWaitIsToldWithItsPlaceInTheQueue(t *testing.T) {
	s := onShared(t)
	release := s.hold("job")
	first := start(t, s.on(), "run", "job", "--json", "--", "true")
	require.EqualValues(t, 0, first.event("waiting")["position"])
	second := start(t, s.on(), "run", "job", "--verbose", "--", "true")
	second.expect(&second.stderr, `relock: "job" is locked, waiting; 1 before this`)
	release()
	require.Equal(t, 0, first.code())
	require.Equal(t, 0, second.code())
	require.Positive(t, first.event("acquired")["waited_ms"])
}

// lateWriter keeps lines that say "waiting" back until another has come, or a moment has passed.
type lateWriter struct {
	mu    sync.Mutex
	lines []string
	other chan struct{} // another has come
	begun func()        // called when one says "waiting"
}

func (w *lateWriter) Write(line []byte) (int, error) {
	if strings.Contains(string(line), `"event":"waiting"`) {
		w.begun()
		select {
		case <-w.other:
		case <-time.After(300 * time.Millisecond):
		}
	} else {
		select {
		case w.other <- struct{}{}:
		default:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, string(line))
	return len(line), nil
}

func TestThatARunWaitsIsToldBeforeItsEnd(t *testing.T) {
	s := onShared(t)
	release := s.hold("job")
	w := &lateWriter{other: make(chan struct{}, 1), begun: release}
	r := &runner{
		app: &app{json: true, stderr: w, conn: connection{timeout: soon}}, runOptions: runOptions{waitSet: true, wait: soon}, names: []string{"job"}, told: make(chan struct{}, 1),
	}
	client, err := relock.New(s.rdb, relock.WithHooks(r.hooks()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, r.open(client))
	require.NoError(t, r.take())
	defer r.quit()
	require.NoError(t, r.release(0))
	require.Len(t, w.lines, 3)
	for i, event := range []string{"waiting", "acquired", "released"} {
		require.Contains(t, w.lines[i], `"event":"`+event+`"`)
	}
}

func TestASignalEndsAWaitAndLeavesNothingInRedis(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129, syscall.SIGUSR1: 138} {
		for _, flags := range [][]string{nil, {"--wait", "1m"}} {
			p := start(t, s.on(), append(append([]string{"run", "job"}, flags...), "--", "echo", "never")...)
			s.waiting("job", 1)
			p.signal(signal)
			require.Equal(t, code, p.code())
			require.Empty(t, p.stdout.String())
			require.Empty(t, p.stderr.String())
			require.Equal(t, 0, s.state("job").Waiters)
		}
	}
}

func TestARunInsideARunOfTheSameLockDoesNotWaitForItself(t *testing.T) {
	s := onShared(t)
	got := do(t, s.on(), "run", "job", "--", binary, "run", "job", "--", "echo", "never")
	require.Equal(t, codeBusy, got.code)
	require.Empty(t, got.stdout)
	require.Contains(t, got.stderr, "the relock run around this one")
	// Nor with one of another lock between them.
	got = do(t, s.on(), "run", "job", "--", binary, "run", "other", "--", binary, "run", "job", "--", "echo", "never")
	require.Equal(t, codeBusy, got.code)
	require.Empty(t, got.stdout)
	require.Contains(t, got.stderr, "the relock run around this one")
	// It is busy as any other.
	got = do(t, s.on(), "run", "job", "--", "sh", "-c", `echo $RELOCK_HOLDER; exec "$@"`, "sh", binary, "run", "--json", "job", "--", "echo", "never")
	e := object(t, got.stderr)
	require.Equal(t, "busy", e["error"])
	require.Equal(t, "job", e["name"])
	require.Equal(t, strings.TrimSpace(got.stdout), e["holder"])
	require.Positive(t, e["lease_ms"])
	// Another lock is another matter.
	got = do(t, s.on(), "run", "job", "--", binary, "run", "other", "--", "sh", "-c", "echo $RELOCK_NAME")
	require.Equal(t, result{stdout: "other\n"}, got)
}

func TestSignalsReachTheWholeTreeOfTheCommand(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("tree", "job")
	p.ready("child ")
	for _, signal := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM,
	} {
		require.True(t, p.runs())
		p.signal(signal)
		p.expect(&p.stdout, "got "+signal.String())
		p.expect(&p.stdout, "child got "+signal.String())
	}
	require.Equal(t, 9, p.code(), "the command decides how it ends")
	require.False(t, s.state("job").Locked())
}

func TestTheLockIsKeptUntilACommandThatTakesItsTimeHasEnded(t *testing.T) {
	s := onShared(t)
	const ttl = 1500 * time.Millisecond
	p, _ := s.startProbe("ignore", "job", "--ttl", ttl.String())
	p.signal(syscall.SIGTERM)
	p.expect(&p.stdout, "got terminated")
	began := time.Now()
	redistest.Eventually(t, soon, func() bool {
		require.True(t, s.state("job").Locked())
		return time.Since(began) > 2*ttl
	}, "over: two leases")
	require.True(t, p.runs())
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
}

func TestALockThatIsTakenAwayStopsTheCommand(t *testing.T) {
	s := onShared(t)
	for what, take := range map[string]func(){
		"deleted": func() { require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err()) },
		"forced":  func() { require.Equal(t, 0, do(t, s.on(), "unlock", "--force", "job").code) },
	} {
		t.Run(what, func(t *testing.T) {
			ttl := "1s"
			if what == "forced" { // relock is told at once, long before a renewal is due
				ttl = "5m"
			}
			p, pid := s.startProbe("tree", "job", "--ttl", ttl)
			child := p.ready("child ")
			take()
			require.Equal(t, codeLost, p.code())
			p.expect(&p.stdout, "got terminated")
			p.expect(&p.stdout, "child got terminated")
			require.False(t, alive(pid))
			require.False(t, alive(child))
			require.Contains(t, p.stderr.String(), `"job" lost by `)
			require.Contains(t, p.stderr.String(), "has ended with 9")
		})
	}
}

func TestALockThatRedisCannotConfirmStopsTheCommand(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	p, pid := s.startProbe("plain", "job", "--ttl", "1s", "--json")
	s.server.Pause()
	defer s.server.Resume()
	require.Equal(t, codeLost, p.code())
	require.False(t, alive(pid))
	lost := p.event("lost")
	require.Equal(t, "expired", lost["reason"])
	require.Equal(t, "lost", lost["error"])
	require.EqualValues(t, 9, p.event("exited")["exit_code"])
}

func TestACommandThatIgnoresTheLossIsKilledAfterTheGrace(t *testing.T) {
	s := onShared(t)
	p, pid := s.startProbe("ignore tree", "job", "--ttl", "1s", "--grace", "300ms", "--json")
	child := p.ready("child ")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.Equal(t, codeLost, p.code())
	gone(t, pid)
	gone(t, child)
	p.expect(&p.stdout, "got terminated")
	exited := p.event("exited")
	require.EqualValues(t, 137, exited["exit_code"])
	require.Equal(t, "SIGKILL", exited["signal"])
	lost, killed := at(t, p.event("lost")), at(t, p.event("killed"))
	require.GreaterOrEqual(t, killed.Sub(lost), 290*time.Millisecond)
}

// at is when an event was.
func at(t *testing.T, e map[string]any) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, e["time"].(string))
	require.NoError(t, err)
	return when
}

func TestNothingOfTheCommandOutlivesALoss(t *testing.T) {
	s := onShared(t)
	// The first process ends with SIGTERM, and leaves one behind that does not.
	p, pid := s.startProbe("leave", "job", "--ttl", "1s", "--grace", "300ms")
	child := p.ready("child ")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.Equal(t, codeLost, p.code())
	gone(t, pid)
	gone(t, child)
	require.NotContains(t, p.stderr.String(), "still there")
}

func TestWhatSIGKILLLeavesOfTheCommandIsWaitedForAndTold(t *testing.T) {
	s := onShared(t)
	p, pid := s.startProbe("plain", "job", "--ttl", "1s", "--grace", "300ms", "--json")
	// One of its group whose end we do not ask for is there for as long as we like.
	left := exec.Command("sleep", "60")
	left.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: pid}
	require.NoError(t, left.Start())
	defer func() { _ = left.Wait() }()
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.Equal(t, codeLost, p.code())
	unstopped := p.event("unstopped")
	require.Contains(t, unstopped["message"], "still there")
	require.Greater(t, at(t, unstopped).Sub(at(t, p.event("killed"))), time.Second)
}

func TestACommandThatWeMustNotStopIsTold(t *testing.T) {
	t.Run("the system refuses", func(t *testing.T) {
		section, lose := context.WithCancelCause(t.Context())
		lose(&relock.LostError{Name: "job", Reason: relock.LossTaken})
		var said bytes.Buffer
		refuse := func(int, syscall.Signal) error { return syscall.EPERM }
		r := &runner{
			app: &app{stderr: &said}, runOptions: runOptions{grace: time.Minute}, names: []string{"job"}, command: []string{"theirs"},
			section: section, child: &child{pid: 1, kill: refuse},
		}
		r.stop()
		r.killGroup()
		require.Equal(t, 2, strings.Count(said.String(), "relock: theirs cannot be stopped: operation not permitted\n"),
			"of SIGTERM and of SIGKILL: %s", &said)
		require.NotContains(t, said.String(), "killing it")
	})
	if os.Getuid() == 0 { // who else could make a program that belongs to another user?
		t.Run("a program of another user", aProgramOfAnotherUserIsToldWhenItMustBeStopped)
	}
}

func aProgramOfAnotherUserIsToldWhenItMustBeStopped(t *testing.T) {
	s := onShared(t)
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "relock-cli-") //nolint:usetesting // t.TempDir is for nobody else
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	for from, to := range map[string]string{binary: "relock", self: "probe"} {
		data, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dir+"/"+to, data, 0o755))
	}
	require.NoError(t, os.Chmod(dir+"/probe", 0o755|os.ModeSetuid))
	asNobody := func(cmd *exec.Cmd) {
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	try := exec.Command(dir + "/probe")
	try.Env = []string{probeMode + "=root"}
	asNobody(try)
	if _ = try.Run(); try.ProcessState.ExitCode() != 9 {
		t.Log("not shown with a real one: here a program runs as whoever has started it")
		return
	}
	nobody := func(p *program) { asNobody(p.cmd) }
	p := startProgram(t, dir+"/relock", s.on(nobody, env(probeMode+"=root")),
		"run", "job", "--ttl", "1s", "--grace", "300ms", "--", dir+"/probe")
	p.ready("")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	told := "relock: " + dir + "/probe cannot be stopped: operation not permitted"
	redistest.Eventually(t, soon, func() bool { return strings.Count(p.stderr.String(), told) == 2 }, "told: of SIGTERM and of SIGKILL")
	require.NotContains(t, p.stderr.String(), "killing it")
	require.True(t, p.runs(), "79 means that the command has ended")
	require.NoError(t, p.stdin.Close())
	require.Equal(t, codeLost, p.code())
}

func TestAGraceOfZeroKillsAtOnce(t *testing.T) {
	s := onShared(t)
	p, pid := s.startProbe("plain", "job", "--ttl", "1s", "--grace", "0")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.Equal(t, codeLost, p.code())
	gone(t, pid)
	require.NotContains(t, p.stdout.String(), "got")
}

func TestACommandThatIsStoppedHearsOfTheLossToo(t *testing.T) {
	s := onShared(t)
	p, pid := s.startProbe("plain", "job", "--ttl", "1s")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.Equal(t, codeLost, p.code())
	p.expect(&p.stdout, "got terminated")
}

func TestMaxHoldStopsTheCommand(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job", "--ttl", "1s", "--max-hold", "1500ms", "--json")
	require.Equal(t, codeLost, p.code())
	require.Equal(t, "max_hold", p.event("lost")["reason"])
	s.free("job")
}

func TestALossThatOnlyTheEndFindsIsTold(t *testing.T) {
	s := onShared(t)
	lock := s.client.NewLock("job")
	section, err := lock.TryLock(t.Context())
	require.NoError(t, err)
	r := &runner{app: &app{stderr: io.Discard, conn: connection{timeout: soon}}, names: []string{"job"}, all: lock, section: section}
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err()) // long before a renewal is due
	var exit *exitError
	require.ErrorAs(t, r.release(9), &exit)
	require.Equal(t, codeLost, exit.code)
	require.ErrorContains(t, exit, "the command had ended with 9")
}

func TestAReleaseThatRedisDoesNotConfirmIsNoFailureOfTheCommand(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	p, _ := s.startProbe("plain", "job", "--ttl", "2s")
	s.server.Kill()
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
	require.Contains(t, p.stderr.String(), "not confirmed by the store")
}

func TestASilentRedisKeepsRunNoLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	p, _ := s.startProbe("plain", "job", "--timeout", "500ms")
	s.server.Pause()
	defer s.server.Resume()
	began := time.Now()
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
	require.Less(t, time.Since(began), bound.Of(5*time.Second))
	require.Contains(t, p.stderr.String(), "not confirmed by the server")
}

func TestASignalEndsARunWhoseCommandHasEnded(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	p, _ := s.startProbe("plain", "job", "--json")
	s.server.Pause()
	defer s.server.Resume()
	began := time.Now()
	require.NoError(t, p.stdin.Close())
	p.event("exited")
	p.signal(syscall.SIGTERM)
	require.Equal(t, 9, p.code(), "the command's still")
	require.Less(t, time.Since(began), bound.Of(5*time.Second))
	p.event("unconfirmed")
}

func TestALossIsActedOnAlsoWhenNobodyReadsStderr(t *testing.T) {
	s := onShared(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	p := start(t, s.on(env(probeMode+"=plain"), func(p *program) { p.cmd.Stderr = w }), "run", "job", "--ttl", "1s", "--", self)
	pid := p.ready("")
	require.NoError(t, w.Close())
	require.NoError(t, r.Close())
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.Equal(t, codeLost, p.code())
	gone(t, pid)
}

// withoutRoom is the setup of a program whose stderr is a pipe that nobody reads. What it returns
// leaves no room in it.
func withoutRoom(t *testing.T) (stderr setup, fill func()) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	fill = func() {
		t.Helper()
		fd := int(w.Fd())
		require.NoError(t, syscall.SetNonblock(fd, true))
		for size := 4096; size > 0; {
			if _, err := syscall.Write(fd, make([]byte, size)); err != nil {
				require.ErrorIs(t, err, syscall.EAGAIN)
				size /= 2
			}
		}
		require.NoError(t, syscall.SetNonblock(fd, false))
	}
	return func(p *program) { p.cmd.Stderr = w }, fill
}

func TestALossIsActedOnAlsoWhenStderrHasNoRoom(t *testing.T) {
	s := onShared(t)
	stderr, fill := withoutRoom(t)
	fill()
	self, err := os.Executable()
	require.NoError(t, err)
	p := start(t, s.on(env(probeMode+"=plain"), stderr), "run", "job", "--ttl", "1s", "--", self)
	pid := p.ready("")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	gone(t, pid)
	p.expect(&p.stdout, "got terminated")
	require.Equal(t, codeLost, p.code())
}

func TestALockIsGivenBackAlsoWhenStderrHasNoRoom(t *testing.T) {
	s := onShared(t)
	stderr, fill := withoutRoom(t)
	self, err := os.Executable()
	require.NoError(t, err)
	p := start(t, s.on(env(probeMode+"=plain"), stderr), "run", "job", "--verbose", "--", self)
	p.ready("")
	fill()
	require.NoError(t, p.stdin.Close())
	s.free("job")
	require.Equal(t, 9, p.code())
}

func TestACommandDoesNotStartWithALostLock(t *testing.T) {
	s := onShared(t)
	lock := s.client.NewLock("job", relock.WithTTL(time.Second))
	section, err := lock.TryLock(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	<-section.Done()
	r := &runner{app: &app{stderr: io.Discard}, names: []string{"job"}, command: []string{"never"}, all: lock, section: section}
	_, err = r.work() // it would say that there is no such command
	var exit *exitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, codeLost, exit.code)
	require.ErrorContains(t, err, "was not started")
	require.NoError(t, r.release(0), "there is nothing to give back")
}

func TestASignalThatWasIgnoredStaysIgnored(t *testing.T) {
	s := onShared(t)
	self, err := os.Executable()
	require.NoError(t, err)
	// As nohup does.
	p := startProgram(t, "/bin/sh", s.on(env(probeMode+"=plain")), "-c",
		`trap "" HUP; exec "$@"`, "sh", binary, "run", "job", "--", self)
	p.ready("")
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGUSR1) // comes after it
	p.expect(&p.stdout, "got user defined signal 1")
	require.NotContains(t, p.stdout.String(), "got hangup")
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
}

func TestACommandThatCannotRunIsFoundOutBeforeAnybodyWaits(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/plain", []byte("text"), 0o600))
	nowhere := []setup{env("REDIS_URL=redis://" + closedAddr)}
	got := do(t, nowhere, "run", "job", "--", "no-such-command-here")
	require.Equal(t, codeNotFound, got.code)
	require.Equal(t, "relock: no-such-command-here: command not found\n", got.stderr)
	got = do(t, nowhere, "run", "job", "--", dir+"/plain")
	require.Equal(t, codeCannotRun, got.code)
	require.Contains(t, got.stderr, "permission denied")
	got = do(t, nowhere, "run", "job", "--", dir)
	require.Equal(t, codeCannotRun, got.code)
	require.Equal(t, "relock: "+dir+": is a directory\n", got.stderr)
	got = do(t, nowhere, "run", "job", "--", dir+"/plain/more")
	require.Equal(t, codeCannotRun, got.code)
	require.Contains(t, got.stderr, "not a directory")
}

func TestAScriptNeedsNoFirstLineThatNamesItsShell(t *testing.T) {
	s := onShared(t)
	path := t.TempDir() + "/script"
	require.NoError(t, os.WriteFile(path, []byte("echo \"<$0>\" \"<$1>\"\n"), 0o700))
	require.Equal(t, result{stdout: "<" + path + "> <a b>\n"}, do(t, s.on(), "run", "job", "--", path, "a b"))
}

func TestAStartThatTheSystemHasNoRoomForIs70(t *testing.T) {
	for cause, code := range map[error]int{
		syscall.EAGAIN: codeInternal, syscall.ENOMEM: codeInternal, syscall.EACCES: codeCannotRun, syscall.E2BIG: codeCannotRun,
	} {
		var exit *exitError
		require.ErrorAs(t, cannotStart("make", &os.PathError{Op: "fork/exec", Path: "/bin/make", Err: cause}), &exit)
		require.Equal(t, code, exit.code, cause)
	}
}

func TestAProgramThatTheSystemRefusesGivesTheLockBack(t *testing.T) {
	s := onShared(t)
	path := t.TempDir() + "/garbage"
	require.NoError(t, os.WriteFile(path, []byte{0x7f, 'E', 'L', 'F', 0}, 0o700))
	got := do(t, s.on(), "run", "job", "--", path)
	require.Equal(t, codeCannotRun, got.code)
	require.False(t, s.state("job").Locked())
}

func TestEveryEventOfARunIsALineOfJSON(t *testing.T) {
	s := onShared(t)
	got := do(t, s.on(), "--json", "run", "job", "--", "sh", "-c", "echo out; exit 3")
	require.Equal(t, 3, got.code)
	require.Equal(t, "out\n", got.stdout, "stdout is the command's own")
	var names []string
	var token any
	for line := range strings.Lines(got.stderr) {
		e := object(t, line)
		require.Equal(t, "job", e["name"])
		require.NotEmpty(t, e["time"])
		names = append(names, e["event"].(string))
		switch e["event"] {
		case "acquired":
			token = e["token"]
			require.Positive(t, token)
			require.NotEmpty(t, e["holder"])
		case "started":
			require.Positive(t, e["pid"])
		case "exited":
			require.EqualValues(t, 3, e["exit_code"])
			require.NotContains(t, e, "signal")
		case "released":
			require.Equal(t, token, e["token"])
		}
	}
	require.Equal(t, []string{"acquired", "started", "exited", "released"}, names)
}

func TestAFailureInJSONHasItsCodeAndWhoIsInTheWay(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	got := do(t, s.on(), "run", "job", "--json", "--no-wait", "--", "true")
	require.Equal(t, codeBusy, got.code)
	e := object(t, got.stderr)
	require.Equal(t, "error", e["event"])
	require.Equal(t, "busy", e["error"])
	require.EqualValues(t, codeBusy, e["exit_code"])
	require.Equal(t, "job", e["name"])
	require.Equal(t, s.state("job").Holder.String(), e["holder"])
	require.Positive(t, e["lease_ms"])
}

func TestRunsOfOneLockNeverOverlap(t *testing.T) {
	s := onShared(t)
	// Each run adds its mark, and takes it away: two marks would be two at once.
	dir := t.TempDir()
	script := `mkdir "$1/busy" || exit 50; echo x >> "$1/log"; rmdir "$1/busy" || exit 51`
	const runs = 8
	var programs []*program
	for range runs {
		programs = append(programs, start(t, s.on(), "run", "job", "--wait", "1m", "--", "sh", "-c", script, "sh", dir))
	}
	for _, p := range programs {
		require.Equal(t, 0, p.code())
	}
	log, err := os.ReadFile(dir + "/log")
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x\n", runs), string(log))
}

func TestRunAndTheLibraryExcludeEachOther(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job")
	lock := s.client.NewLock("job")
	_, err := lock.TryLock(t.Context())
	require.ErrorContains(t, err, "locked")
	require.NoError(t, p.stdin.Close())
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	section, err := lock.Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(section))
	require.Equal(t, 9, p.code())
}

func TestWrongUsageIs64AndSaysWhatIsAllowed(t *testing.T) {
	s := onShared(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"bogus"}, "unknown command"},
		{[]string{"lss"}, `unknown command "lss" for "relock"`},
		{[]string{""}, "unknown command"},
		{[]string{"--", "true"}, "unknown command"},
		{[]string{"--url", "redis://x", "--", "true"}, "unknown command"},
		{[]string{"help", "bogus"}, "no command"},
		{[]string{"completion", "bogus"}, "unknown command"},
		{[]string{"run"}, "behind --"},
		{[]string{"run", "job"}, "behind --"},
		{[]string{"run", "job", "--"}, "no command"},
		{[]string{"run", "job", "ls"}, "behind --"},
		{[]string{"run", "job", "ls", "-l"}, "behind --"},
		{[]string{"run", "--", "ls"}, "a lock name before --"},
		{[]string{"run", "a", "{a}", "--", "ls"}, "the same lock"},
		{[]string{"run", "a", "b"}, "stands behind --"},
		{[]string{"run", "--shared", "--write", "a", "--", "ls"}, "only one of them"},
		{[]string{"run", "--permits", "0", "a", "--", "ls"}, "--permits 0"},
		{[]string{"run", "--permits", "2147483647", "a", "--", "ls"}, "permits"},
		{[]string{"run", "--redisson", "--shared", "a", "--", "ls"}, "mutexes only"},
		{[]string{"run", "", "--", "true"}, "empty"},
		{[]string{"run", "}x", "--", "true"}, "must not begin with"},
		{[]string{"run", strings.Repeat("n", 1025), "--", "true"}, "at most 1024"},
		{[]string{"run", "job", "--no-wait", "--wait", "1s", "--", "true"}, "only one"},
		{[]string{"run", "job", "--wait", "-1s", "--", "true"}, "must be 0"},
		{[]string{"run", "job", "--wait", "soon", "--", "true"}, "invalid"},
		{[]string{"run", "job", "--grace", "-1s", "--", "true"}, "must be 0"},
		{[]string{"run", "job", "--owner", "a b", "--", "true"}, `--owner "a b": must be 1 to 64 letters`},
		{[]string{"run", "job", "--ttl", "1ms", "--", "true"}, "--ttl 1ms: must be whole milliseconds"},
		{[]string{"run", "job", "--ttl", "10s", "--max-hold", "5s", "--", "true"}, "--max-hold 5s: must be at least the TTL"},
		{[]string{"ls", "--prefix", "app{}:"}, `--prefix "app{}:": it has an empty hash tag`},
		{[]string{"ls", "--prefix", strings.Repeat("p", 1025)}, "--prefix: 1025 bytes"},
		{[]string{"run", "job", "--timeout", "0s", "--", "true"}, "above 0"},
		{[]string{"show"}, "show: there must be one lock name, not 0"},
		{[]string{"unlock", "--force", "a", "b"}, "unlock: there must be one lock name, not 2"},
		{[]string{"show", ""}, "empty"},
		{[]string{"ls", "a", "b"}, "at most 1 arg"},
		{[]string{"watch", "--interval", "1ms"}, "at least"},
		{[]string{"watch", "--count", "-1"}, "must be 0"},
		{[]string{"unlock", "job"}, "--force"},
		{[]string{"ls", "--sentinel", "m@" + closedAddr, "--cluster", closedAddr}, "only one"},
		{[]string{"ls", "--sentinel", closedAddr}, "NAME@HOST:PORT"},
		{[]string{"ls", "--sentinel", "m@nowhere"}, "not HOST:PORT"},
		{[]string{"ls", "--cluster", "nowhere"}, "not HOST:PORT"},
		{[]string{"ls", "--cluster", closedAddr, "--url", "redis://x/3"}, "no database"},
		{[]string{"ls", "--cluster", closedAddr, "--url", "unix:///tmp/x"}, "unix socket"},
		{[]string{"ls", "--url", "http://x"}, "redis://"},
		{[]string{"run", "--url=", "job", "--", "true"}, "empty"},
		{[]string{"run", "--sentinel=", "job", "--", "true"}, "empty"},
		{[]string{"run", "--cluster=", "job", "--", "true"}, "not HOST:PORT"},
		{[]string{"run", "--cluster", closedAddr + ",", "job", "--", "true"}, "not HOST:PORT"},
		{[]string{"run", "--redisson=", "job", "--", "true"}, "empty"},
	} {
		got := do(t, s.on(), c.args...)
		require.Equal(t, codeUsage, got.code, "%q: %s", c.args, got.stderr)
		require.Contains(t, got.stderr, c.says, "%q", c.args)
		require.Empty(t, got.stdout)
		require.Equal(t, 1, strings.Count(got.stderr, "\n"), "one line, not a page: %s", got.stderr)
	}
}

func TestErrorsOfUsageAreJSONToo(t *testing.T) {
	for _, args := range [][]string{
		{"--json", "bogus"}, {"run", "job", "--bogus", "--json", "--", "true"}, {"show", "--json"}, {"ls", "--timeout", "x", "--json"},
	} {
		got := do(t, nil, args...)
		require.Equal(t, codeUsage, got.code, "%q", args)
		require.Equal(t, "usage", object(t, got.stderr)["error"], "%q", args)
	}
	got := do(t, nil, "run", "job", "--bogus", "--", "echo", "--json")
	require.Contains(t, got.stderr, "relock: ", "that is the command's")
}
