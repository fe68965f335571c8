package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestTheCodeOfTheCommandIsPassedOn(t *testing.T) {
	s := onShared(t)
	for _, code := range []int{0, 1, 3, 64, 75, 79, 255} {
		got := do(t, s.on(), "run", "job", "--", "sh", "-c", fmt.Sprintf("exit %d", code))
		require.Equal(t, result{code: code}, got)
	}
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

func TestTheLockIsRenewedForAsLongAsTheCommandRuns(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job", "--ttl", "6s")
	before, renewals := s.state("job"), 0
	redistest.Eventually(t, soon, func() bool {
		state := s.state("job")
		require.True(t, state.Locked())
		require.Equal(t, before.Token, state.Token)
		if state.TTL > before.TTL {
			renewals++
		}
		before = state
		return renewals == 2
	}, "the lease is renewed twice")
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

func TestAReleaseThatRedisDoesNotConfirmIsNoFailureOfTheCommand(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	p, _ := s.startProbe("plain", "job", "--ttl", "2s")
	s.server.Kill()
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
	require.Contains(t, p.stderr.String(), "not confirmed by the store")
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

func TestTheCommandFindsItsLockInTheEnvironment(t *testing.T) {
	s := onShared(t)
	outer := env("RELOCK_TOKEN=1", "RELOCK_NAME=outer", "RELOCK_HOLDER=outer", "KEPT=yes")
	p := start(t, s.on(outer), "run", "orders:42", "--", "sh", "-c", "env; echo end; read x")
	p.expect(&p.stdout, "end")
	state := s.state("orders:42")
	require.Positive(t, state.Token)
	for _, want := range []string{
		"RELOCK_NAME=orders:42", "RELOCK_HOLDER=" + state.Holder.String(), fmt.Sprintf("RELOCK_TOKEN=%d", state.Token), "KEPT=yes",
	} {
		require.Contains(t, p.stdout.lines(), want)
	}
	require.NotContains(t, p.stdout.String(), "outer", "an outer run's")
	require.NoError(t, p.stdin.Close())
	p.code()
}

func TestTheOwnerSaysWhoHasTheLock(t *testing.T) {
	s := onShared(t)
	for flags, owner := range map[string]string{"": defaultOwner(), "--owner=cron@db-1": "cron@db-1"} {
		p, _ := s.startProbe("plain", strings.Fields("job "+flags)...)
		require.Contains(t, do(t, s.on(), "run", "job", "--no-wait", "--", "true").stderr, `"job" is locked by `+owner+"/")
		require.Contains(t, do(t, s.on(), "ls").stdout, " "+owner+"/")
		require.NoError(t, p.stdin.Close())
		require.Equal(t, 9, p.code())
	}
	require.Regexp(t, `^relock@[A-Za-z0-9._-]+$`, defaultOwner())
}

func TestTheConflictExitCodeAndQuietAreForABusyLockOnly(t *testing.T) {
	s := onShared(t)
	release := s.hold("job")
	for _, flags := range []string{"-E9 --no-wait", "--conflict-exit-code=9 --wait 150ms"} {
		got := do(t, s.on(), append(append([]string{"run", "job"}, strings.Fields(flags)...), "--", "echo", "never")...)
		require.Equal(t, 9, got.code)
		require.Contains(t, got.stderr, s.state("job").Holder.String())
		got = do(t, s.on(), append(append([]string{"run", "job", "-q"}, strings.Fields(flags)...), "--", "echo", "never")...)
		require.Equal(t, result{code: 9}, got, "cron sends no mail")
	}
	require.Equal(t, result{}, do(t, s.on(), "run", "nightly", "job", "-E0", "-q", "--no-wait", "--json", "--", "echo", "never"))
	release()
	require.Equal(t, codeBusy, do(t, s.on(), "run", "job", "-E9", "--", "sh", "-c", "exit 75").code, "the command's own")
	got := do(t, s.on(), "run", "job", "-E9", "-q", "--ttl=1s", "--max-hold=1s", "--", "sleep", "60")
	require.Equal(t, codeLost, got.code)
	require.Contains(t, got.stderr, "lost by", "a loss is told")
	got = do(t, []setup{env("REDIS_URL=redis://" + closedAddr)}, "run", "job", "-q", "--no-wait", "--", "true")
	require.Contains(t, got.stderr, closedAddr, "so is a server that is away")
}

func TestARunInsideARunOfTheSameLockDoesNotWaitForItself(t *testing.T) {
	s := onShared(t)
	for _, inner := range []string{"run job", "run job --wait 1m", "run other -- " + binary + " run job"} {
		args := append([]string{"run", "job", "--", binary}, strings.Fields(inner)...)
		got := do(t, s.on(), append(args, "--", "echo", "never")...)
		require.Equal(t, codeBusy, got.code, inner)
		require.Empty(t, got.stdout)
		require.Contains(t, got.stderr, "the relock run around this one")
	}
	got := do(t, s.on(), "run", "job", "--", binary, "run", "other", "--", "sh", "-c", "echo $RELOCK_NAME")
	require.Equal(t, result{stdout: "other\n"}, got, "another lock is another matter")
}

func TestSignalsReachTheWholeTreeOfTheCommand(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("tree", "job")
	p.ready("child ")
	for _, signal := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM,
	} {
		require.True(t, p.runs())
		require.True(t, s.state("job").Locked())
		p.signal(signal)
		p.expect(&p.stdout, "got "+signal.String())
		p.expect(&p.stdout, "child got "+signal.String())
	}
	require.Equal(t, 9, p.code(), "the command decides how it ends")
	require.False(t, s.state("job").Locked())
}

func TestACommandThatIgnoresTheLossIsKilledAfterTheGrace(t *testing.T) {
	s := onShared(t)
	p, pid := s.startProbe("ignore tree", "job", "--ttl", "1s", "--grace", "300ms", "--json")
	child := p.ready("child ")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP), "one that is stopped hears of the loss too")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.Equal(t, codeLost, p.code())
	require.False(t, alive(pid))
	require.False(t, alive(child))
	p.expect(&p.stdout, "got terminated")
	require.EqualValues(t, 137, p.event("exited")["exit_code"])
	at := func(name string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, p.event(name)["time"].(string))
		require.NoError(t, err)
		return when
	}
	require.GreaterOrEqual(t, at("killed").Sub(at("lost")), 290*time.Millisecond)
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
	require.Contains(t, p.event("unstopped")["message"], "still there")
}

func TestTheCommandEndsWithRelock(t *testing.T) {
	s := onShared(t)
	p, pid := s.startProbe("plain", "job", "--ttl", "2s")
	p.signal(syscall.SIGKILL)
	if runtime.GOOS == "linux" { // which alone tells a process that its parent is gone
		gone(t, pid)
		p.expect(&p.stdout, "got terminated")
	}
	s.free("job") // after its lease
}

func TestALossIsActedOnAlsoWhenStderrHasNoRoom(t *testing.T) {
	s := onShared(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _, _ = r.Close(), w.Close() }()
	fd := int(w.Fd())
	require.NoError(t, syscall.SetNonblock(fd, true))
	for size := 4096; size > 0; {
		if _, err := syscall.Write(fd, make([]byte, size)); err != nil {
			require.ErrorIs(t, err, syscall.EAGAIN)
			size /= 2
		}
	}
	require.NoError(t, syscall.SetNonblock(fd, false))
	self, err := os.Executable()
	require.NoError(t, err)
	p := start(t, s.on(env(probeMode+"=plain"), func(p *program) { p.cmd.Stderr = w }), "run", "job", "--ttl", "1s", "--", self)
	pid := p.ready("")
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	gone(t, pid)
	p.expect(&p.stdout, "got terminated")
	require.Equal(t, codeLost, p.code())
}

func TestALossThatOnlyTheEndFindsIsTold(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job", "--ttl", "5m") // no renewal is due for long
	require.NoError(t, s.rdb.Del(t.Context(), keyOf("relock:", "job")).Err())
	require.NoError(t, p.stdin.Close())
	require.Equal(t, codeLost, p.code())
	require.Contains(t, p.stderr.String(), "the command had ended with 9")
}

func TestACommandThatCannotRunIsFoundOutBeforeAnybodyWaits(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/plain", []byte("text"), 0o600))
	for command, want := range map[string]result{
		"no-such-command-here": {code: codeNotFound, stderr: "relock: no-such-command-here: command not found\n"},
		dir + "/plain":         {code: codeCannotRun, stderr: "permission denied"},
		dir:                    {code: codeCannotRun, stderr: "is a directory"},
		dir + "/plain/more":    {code: codeCannotRun, stderr: "not a directory"},
	} {
		got := do(t, []setup{env("REDIS_URL=redis://" + closedAddr)}, "run", "job", "--", command)
		require.Equal(t, want.code, got.code)
		require.Contains(t, got.stderr, want.stderr)
	}
}

func TestEveryEventOfARunIsALineOfJSON(t *testing.T) {
	s := onShared(t)
	got := do(t, s.on(), "--json", "run", "job", "--", "sh", "-c", "echo out; exit 3")
	require.Equal(t, 3, got.code)
	require.Equal(t, "out\n", got.stdout, "stdout is the command's own")
	var names []any
	for line := range strings.Lines(got.stderr) {
		e := object(t, line)
		require.Equal(t, "job", e["name"])
		require.NotEmpty(t, e["time"])
		names = append(names, e["event"])
		if e["event"] == "acquired" || e["event"] == "released" {
			require.Len(t, e["tokens"], 1)
		}
	}
	require.Equal(t, []any{"acquired", "started", "exited", "released"}, names)

	s.hold("job")
	e := object(t, do(t, s.on(), "run", "job", "--json", "--no-wait", "--", "true").stderr)
	require.Equal(t, "busy", e["error"])
	require.EqualValues(t, codeBusy, e["exit_code"])
	require.Equal(t, s.state("job").Holder.String(), e["holder"])
	require.Positive(t, e["lease_ms"])
	require.Equal(t, "usage", object(t, do(t, s.on(), "--json", "bogus").stderr)["error"])
}

func TestWrongUsageIs64AndSaysWhatIsAllowed(t *testing.T) {
	s := onShared(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"rnu"}, `unknown command "rnu"; did you mean run?`},
		{[]string{"bogus"}, `unknown command "bogus"; relock --help lists all`},
		{[]string{""}, "unknown command"},
		{[]string{"run"}, "behind --"},
		{[]string{"run", "job", "--"}, "no command"},
		{[]string{"run", "job", "ls", "-l"}, "behind --"},
		{[]string{"run", "--", "ls"}, "a lock name before --"},
		{[]string{"run", "a", "{a}", "--", "ls"}, "the same lock"},
		{[]string{"run", "--shared", "--write", "a", "--", "ls"}, "[shared write]"},
		{[]string{"run", "--permits", "0", "a", "--", "ls"}, "--permits 0"},
		{[]string{"run", "", "--", "true"}, "empty"},
		{[]string{"run", "job", "--no-wait", "--wait", "1s", "--", "true"}, "[no-wait wait]"},
		{[]string{"run", "job", "--wait", "-1s", "--", "true"}, "must be 0"},
		{[]string{"run", "job", "-E", "256", "--", "true"}, "from 0 to 255"},
		{[]string{"run", "job", "--owner", "a b", "--", "true"}, `--owner("a b"): must be 1 to 64 letters`},
		{[]string{"run", "job", "--ttl", "1ms", "--", "true"}, "--ttl(1ms): must be whole milliseconds"},
		{[]string{"run", "job", "--ttl", "10s", "--max-hold", "5s", "--", "true"}, "--max-hold(5s): must be at least the TTL"},
		{[]string{"ls", "--prefix", "app{}:"}, `--prefix("app{}:"): it has an empty hash tag`},
		{[]string{"run", "job", "--timeout", "0s", "--", "true"}, "above 0"},
		{[]string{"show"}, "show: there must be one lock name, not 0"},
		{[]string{"ls", "a["}, "a [ without a ]"},
		{[]string{"watch", "--interval", "1ms"}, "at least"},
		{[]string{"unlock", "job"}, "--force"},
	} {
		got := do(t, s.on(), c.args...)
		require.Equal(t, codeUsage, got.code, "%q: %s", c.args, got.stderr)
		require.Contains(t, got.stderr, c.says, "%q", c.args)
		require.Empty(t, got.stdout)
		require.Equal(t, 1, strings.Count(got.stderr, "\n"), "one line, not a page: %s", got.stderr)
	}
}

func TestARunWithSeveralNamesHasAllLocksOrNone(t *testing.T) {
	s := onShared(t)
	free := s.hold("b")
	got := do(t, s.on(), "run", "c", "b", "a", "--no-wait", "--", "echo", "never")
	require.Equal(t, codeBusy, got.code)
	require.Contains(t, got.stderr, `"b" is locked by `)
	require.False(t, s.state("a").Locked())

	p := start(t, s.on(), "run", "c", "b", "a", "--json", "--", "sh", "-c",
		"echo $RELOCK_TOKENS; echo ${RELOCK_TOKEN-none}${RELOCK_NAME-none}; echo $RELOCK_HOLDER; echo end; read x")
	require.Equal(t, "b", p.event("waiting")["name"])
	free()
	p.expect(&p.stdout, "end")
	lines := p.stdout.lines()
	require.Equal(t, "nonenone", lines[1], "one of several is not all")
	for i, name := range []string{"c", "b", "a"} {
		state := s.state(name)
		require.Equal(t, lines[2], state.Holder.String())
		require.Equal(t, strconv.FormatInt(state.Token, 10), strings.Fields(lines[0])[i], "in the order of the command line")
	}
	require.NotContains(t, p.event("acquired"), "name")
	require.Len(t, p.event("acquired")["tokens"], 3)
	require.Equal(t, 0, do(t, s.on(), "unlock", "--force", "b").code)
	require.Equal(t, codeLost, p.code())
	require.Equal(t, "b", p.event("lost")["name"])
	s.free("a")
	s.free("c")
}

func TestRunsTakeTheKindsOfLocksThatTheFlagsName(t *testing.T) {
	s := onShared(t)
	token := func(mode string) string {
		return do(t, s.on(), "run", mode, "prices", "--", "sh", "-c", "echo $RELOCK_TOKEN").stdout
	}
	first := token("--write")
	require.Equal(t, "-"+first, token("--shared"), "a reader has that of the last writer")
	require.Less(t, first, token("--write"))
	for _, flags := range []string{"--shared prices", "prices --shared", "--permits 2 tills", "tills --permits=2"} {
		_, _ = s.startProbe("plain", strings.Fields(flags)...)
	}
	s.hold("job")
	for _, flags := range []string{"--write prices", "--permits=2 tills"} {
		require.Equal(t, codeBusy, do(t, s.on(), append(append([]string{"run", "--no-wait"}, strings.Fields(flags)...), "--", "true")...).code)
	}
	for _, flags := range []string{"prices", "tills", "--permits=2 prices", "--shared tills", "--write job", "x tills"} {
		got := do(t, s.on(), append(append([]string{"run", "--no-wait"}, strings.Fields(flags)...), "--", "echo", "never")...)
		require.Equal(t, codeUsage, got.code, "another kind, %q: %s", flags, got.stderr)
		require.Contains(t, got.stderr, "--permits is for a semaphore", flags)
	}
}

// The run has begun to wait last: it waits for c, whose holder waits for a of the run.
func TestADeadlockSaysWhatToDo(t *testing.T) {
	s := onShared(t)
	freeB := s.hold("b")
	section, err := s.client.NewLock("c").TryLock(t.Context())
	require.NoError(t, err)
	p := start(t, s.on(), "run", "-q", "--json", "a", "b", "c", "--", "echo", "never")
	s.waiting("b", 1)
	other := make(chan error, 1)
	go func() { other <- s.client.NewLock("a").Do(section, func(context.Context) error { return nil }) }()
	s.waiting("a", 1)
	freeB()
	require.Equal(t, codeBusy, p.code())
	require.NoError(t, <-other, "the other one goes on")
	e := p.event("error")
	require.Equal(t, "deadlock", e["error"])
	require.Contains(t, e["message"], "in the same order everywhere")
	s.free("a")
	require.NoError(t, s.client.NewLock("c").Unlock(section))
}
