package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// startHold starts a hold, and returns it and its tokens when it has the locks.
func (s *site) startHold(args ...string) (p *program, tokens string) {
	s.t.Helper()
	p = start(s.t, s.on(), append([]string{"hold"}, args...)...)
	return p, p.expect(&p.stdout, "held ")
}

func TestHoldKeepsTheLockUntilItsInputEnds(t *testing.T) {
	s := onShared(t)
	p, token := s.startHold("job", "--owner", "cron")
	state := s.state("job")
	require.Equal(t, fmt.Sprint(state.Token), token)
	require.Regexp(t, "^cron/", state.Holder.String())
	_, err := p.stdin.Write([]byte("input is ignored\n"))
	require.NoError(t, err)
	require.Equal(t, codeBusy, do(t, s.on(), "hold", "job", "--no-wait").code)
	require.Equal(t, 9, do(t, s.on(), "hold", "job", "--wait", "150ms", "-E", "9").code)
	require.True(t, p.runs())
	require.NoError(t, p.stdin.Close())
	require.Zero(t, p.code())
	require.Empty(t, p.stderr.String())
	require.False(t, s.state("job").Locked())
}

func TestASignalEndsAHoldWith0(t *testing.T) {
	s := onShared(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p, _ := s.startHold("job")
		p.signal(signal)
		require.Zero(t, p.code(), signal)
		require.False(t, s.state("job").Locked())
	}
}

func TestHoldInJSON(t *testing.T) {
	s := onShared(t)
	p := start(t, s.on(), "hold", "--json", "--shared", "a", "b")
	line := p.expect(&p.stdout, "{")
	held := object(t, "{"+line)
	require.Equal(t, "acquired", held["event"])
	require.Equal(t, p.event("acquired")["holder"], held["holder"])
	require.Equal(t, p.event("acquired")["locks"], held["locks"])
	require.Len(t, held["locks"], 2)
	require.Equal(t, "shared", held["mode"])
	p.signal(syscall.SIGTERM)
	require.Zero(t, p.code())
	require.NotNil(t, p.event("released"))
	require.Len(t, p.stdout.lines(), 1)
}

func TestALostLockEndsAHoldAtOnceWith79(t *testing.T) {
	s := onShared(t)
	p, _ := s.startHold("a", "b")
	require.NoError(t, s.client.NewLock("a").ForceUnlock(t.Context()))
	require.Equal(t, codeLost, p.code())
	require.Contains(t, p.stderr.String(), `"a"`)
	require.NotContains(t, p.stderr.String(), "command")
	require.False(t, s.state("b").Locked(), "the other one was given back")

	p, _ = s.startHold("job", "--ttl", "1s", "--max-hold", "1s")
	require.Equal(t, codeLost, p.code())
	require.Len(t, p.stderr.lines(), 1)
}

func TestTheWaitOfAHoldEndsWithItsInput(t *testing.T) {
	s := onShared(t)
	require.Equal(t, 0, do(t, s.on(), "hold", "job").code, "a free lock is taken")
	release := s.hold("job")
	p := start(t, s.on(), "hold", "job", "-E", "9")
	s.waiting("job", 1)
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 9, p.code())
	require.Contains(t, p.stderr.String(), "standard input has ended")
	s.waiting("job", 0)
	waiter := start(t, s.on(), "hold", "job")
	s.waiting("job", 1)
	release()
	waiter.expect(&waiter.stdout, "held ")
	waiter.signal(syscall.SIGTERM)
	require.Zero(t, waiter.code())
}

func TestAHoldThatCannotSayThatItHoldsIs70(t *testing.T) {
	s := onShared(t)
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	defer writer.Close()
	p := start(t, s.on(func(p *program) { p.cmd.Stdout = writer }), "hold", "job")
	require.Equal(t, codeInternal, p.code())
	require.False(t, s.state("job").Locked())
}

func TestHoldRefusesWhatIsForRun(t *testing.T) {
	for _, args := range [][]string{{}, {"job", "--", "true"}, {"job", "--grace", "1s"}, {"job", "--shared", "--write"}, {""}} {
		require.Equal(t, codeUsage, do(t, nil, append([]string{"hold"}, args...)...).code, "%q", args)
	}
}

func TestARunInsideAHoldOfTheSameNameIsAnotherHolder(t *testing.T) {
	s := onShared(t)
	p, _ := s.startHold("job")
	require.Equal(t, codeBusy, do(t, s.on(), "run", "job", "--no-wait", "--", "true").code)
	require.NoError(t, p.stdin.Close())
	require.Zero(t, p.code())
	got := do(t, s.on(), "run", "job", "--", binary, "hold", "job")
	require.Equal(t, codeBusy, got.code, "instead of a wait for its own end")
}

// guarded is a script of docs/CLI.md, whose steps say that they have begun, and wait for a file.
type guarded struct {
	*site
	dir, script string
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{site: onShared(t), dir: t.TempDir()}
	for _, block := range shellBlocks(t) {
		if strings.Contains(block, "mkfifo") {
			g.script = block
		}
	}
	require.NotEmpty(t, g.script)
	require.NoError(t, os.Symlink(binary, filepath.Join(g.dir, "relock")))
	for _, step := range []string{"build", "deploy"} {
		text := "#!/bin/sh\necho " + step + " $1\nwhile [ ! -e " + step + " ]; do sleep 0.02; done\n"
		require.NoError(t, os.WriteFile(filepath.Join(g.dir, step+".sh"), []byte(text), 0o700))
	}
	return g
}

func (g *guarded) start(script string) *program {
	g.t.Helper()
	return startProgram(g.t, "/bin/sh", g.on(func(p *program) {
		p.cmd.Dir = g.dir
		p.cmd.Env = append(p.cmd.Env, "PATH="+g.dir+":"+os.Getenv("PATH"), "TMPDIR="+g.dir, "REDIS_URL="+g.server.URL()+"/0?client_name=held")
	}), "-c", script)
}

// end ends a step.
func (g *guarded) end(step string) {
	g.t.Helper()
	require.NoError(g.t, os.WriteFile(filepath.Join(g.dir, step), nil, 0o600))
}

func TestAShellScriptHoldsALockWhileItsStepsRun(t *testing.T) {
	g := newGuarded(t)
	p := g.start(g.script)
	p.expect(&p.stdout, "build")
	token := g.state("deploy").Token
	require.Positive(t, token)
	g.end("build")
	require.Equal(t, fmt.Sprint(token), p.expect(&p.stdout, "deploy "))
	require.True(t, g.state("deploy").Locked())
	g.end("deploy")
	require.Zero(t, p.code())
	require.Empty(t, p.stderr.String())
	require.False(t, g.state("deploy").Locked())
}

func TestAShellScriptEndsWithTheCodeOfABusyLock(t *testing.T) {
	g := newGuarded(t)
	g.hold("deploy")
	p := g.start(strings.ReplaceAll(g.script, "--wait 5m", "--no-wait"))
	require.Equal(t, codeBusy, p.code())
	require.Empty(t, p.stdout.String())
}

func TestAShellScriptNoticesALossBeforeTheNextStep(t *testing.T) {
	g := newGuarded(t)
	p := g.start(g.script)
	p.expect(&p.stdout, "build")
	require.NoError(t, g.client.NewLock("deploy").ForceUnlock(t.Context()))
	redistest.Eventually(t, soon, func() bool {
		return !strings.Contains(g.rdb.ClientList(t.Context()).Val(), "name=held")
	}, "ended: the hold")
	g.end("build")
	require.Equal(t, codeLost, p.code())
	require.NotContains(t, p.stdout.String(), "deploy")
}

func TestTheLockOfAScriptThatIsKilledLastsUntilItsStepEnds(t *testing.T) {
	g := newGuarded(t)
	p := g.start(g.script)
	p.expect(&p.stdout, "build")
	require.NoError(t, p.cmd.Process.Kill())
	p.code()
	require.True(t, g.state("deploy").Locked())
	g.end("build")
	g.free("deploy")
}
