package locktest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store/mem"
)

// program is a test of a user, whose failures are looked at.
type program struct {
	testing.TB
	failed  []string
	cleanup func()
	ends    []func() // all cleanups
}

func (p *program) Helper()          {}
func (p *program) Cleanup(f func()) { p.cleanup, p.ends = f, append(p.ends, f) }
func (p *program) Errorf(format string, args ...any) {
	p.failed = append(p.failed, fmt.Sprintf(format, args...))
}

func TestASectionThatIsLeftOpenFailsTheTest(t *testing.T) {
	for what, c := range map[string]struct {
		run   func(ctx context.Context, l *relock.Lock)
		fails int
	}{
		"Do": {func(ctx context.Context, l *relock.Lock) {
			_ = l.Do(ctx, func(ctx context.Context) error { return l.Do(ctx, nothing) })
		}, 0},
		"a panic": {func(ctx context.Context, l *relock.Lock) {
			defer func() { _ = recover() }()
			_ = l.Do(ctx, func(context.Context) error { panic("no") })
		}, 0},
		"no":       {func(ctx context.Context, l *relock.Lock) { _, _ = l.Lock(ctx) }, 1},
		"one of 2": {func(ctx context.Context, l *relock.Lock) { s, _ := l.Lock(ctx); s, _ = l.Lock(s); _ = l.Unlock(s) }, 1},
		"refused":  {func(ctx context.Context, l *relock.Lock) { s, _ := l.Lock(ctx); _, _ = l.TryLock(ctx); _ = l.Unlock(s) }, 0},
	} {
		for _, closes := range []bool{true, false} {
			p := &program{TB: t}
			client, err := relock.Open(mem.New(), relock.WithHooks(locktest.NoneOpen(p)))
			require.NoError(t, err)
			c.run(t.Context(), client.NewLock("a"))
			if closes {
				require.NoError(t, client.Close())
			}
			p.cleanup()
			require.Len(t, p.failed, c.fails, what)
			if c.fails > 0 {
				require.Contains(t, p.failed[0], `no Unlock of "a", taken at locktest/open_test.go:`)
			}
			require.NoError(t, client.Close())
		}
	}
}

func nothing(context.Context) error { return nil }

func TestACandidateThatGoesOnFailsTheTest(t *testing.T) {
	p := &program{TB: t}
	client, err := relock.Open(mem.New(), relock.WithHooks(locktest.NoneOpen(p)))
	require.NoError(t, err)
	candidate := leader.Campaign(t.Context(), client.NewLock("a"))
	for changes := candidate.Changes(); !candidate.IsLeader(); changes = candidate.Changes() {
		<-changes
	}
	p.cleanup()
	require.Equal(t, []string{`locktest: no Unlock of "a", taken by a candidate, which goes on`}, p.failed)
	require.NoError(t, client.Close())
}

func TestAClientForATestEndsWithIt(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		p := &program{TB: t}
		server := mem.New()
		client, other := locktest.ClientOn(p, server), locktest.ClientOn(p, server)
		require.NoError(t, client.NewLock("a").Do(t.Context(), nothing))
		section, err := client.NewLock("a").Lock(t.Context())
		require.NoError(t, err)
		_, err = other.NewLock("a").TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked, "the clients share a server")
		_, err = locktest.Client(p).NewLock("a").TryLock(t.Context())
		require.NoError(t, err, "and this one has a server of its own")
		if !leaves {
			require.NoError(t, client.NewLock("a").Unlock(section))
		}
		for _, end := range slices.Backward(p.ends) {
			end()
		}
		_, err = client.NewLock("b").TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		if leaves {
			require.Len(t, p.failed, 2)
		} else {
			require.Len(t, p.failed, 1)
		}
		require.Contains(t, p.failed[0], `no Unlock of "a", taken at locktest/open_test.go:`)
	}
}
