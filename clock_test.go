package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/ticket"
)

// What does a client believe when its machine was suspended, or when its clock was set? The
// monotonic clock of a suspended machine stands still, and the store goes on: in these tests the
// wall clock of the client leaps, and the store loses what is over.

// suspended returns a client, its wall clock, and a section that was renewed or entered just now.
func suspended(t *testing.T, w *stage.World, options ...relock.Option) (*stage.Member, *relock.WallClock, *relock.Lock, context.Context) {
	t.Helper()
	m := w.NewClient(options...)
	wall := relock.SetWallClock(m.Client)
	l := m.NewLock("a")
	section := w.Enter(t.Context(), l)
	stage.Pass(time.Millisecond) // what is before a leap is before
	return m, wall, l, section
}

// asked counts the commands but those of cleanup.
func asked(m *stage.Member) int { return m.Link.Sent() - m.Link.Sent(stage.CmdForget) }

func TestASuspendedMachineDoesNotBelieveInALeaseThatIsOver(t *testing.T) {
	for name, options := range map[string][]relock.Option{
		"renewed": {relock.WithTTL(15 * time.Second)}, "fixed": {relock.WithFixedLease(15 * time.Second)},
		"short": {relock.WithTTL(time.Second)}, "long": {relock.WithTTL(24 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m, wall, l, section := suspended(t, w, options...)
				if name != "fixed" {
					stage.Pass(l.Remaining(section) / 3) // a renewal
				}
				m.Link.Deaf()
				other := w.NewClient().NewLock("a")
				suspend := l.Remaining(section) + time.Second
				w.Store.Lose("a")
				theirs := w.Enter(t.Context(), other)

				wall.Leap(suspend)
				require.False(t, l.Held(section))
				require.Zero(t, l.Remaining(section))
				require.Zero(t, l.Count(section))
				sent := asked(m)
				require.LessOrEqual(t, w.LostBecause(section, event.LossExpired), time.Second)
				require.Equal(t, sent, asked(m), "the store was not asked")
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
				w.RequireOwner("a", theirs)
				w.Leave(theirs, other)
			})
		})
	}
}

func TestCallsInALeaseThatIsOverByTheWallClockFindTheLoss(t *testing.T) {
	calls := map[string]func(l *relock.Lock, ctx context.Context) error{
		"Lock":   func(l *relock.Lock, ctx context.Context) error { _, err := l.Lock(ctx); return err },
		"Unlock": func(l *relock.Lock, ctx context.Context) error { return l.Unlock(ctx) },
		"Token":  func(l *relock.Lock, ctx context.Context) error { _, err := l.Token(ctx); return err },
		"Lend":   func(l *relock.Lock, ctx context.Context) error { _, err := ticket.Lend(ctx, l); return err },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m, wall, l, section := suspended(t, w)
				wall.Leap(relock.DefaultTTL)
				sent := asked(m)
				require.ErrorIs(t, call(l, section), relock.ErrLockLost)
				require.Error(t, section.Err())
				require.Equal(t, sent, asked(m), "the store was not asked")
				_ = l.Unlock(section)
			})
		})
	}
}

func TestAShortSuspensionMakesRenewalsDueAndLosesNothing(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, wall, l, section := suspended(t, w)
		before := l.Remaining(section)
		wall.Leap(relock.DefaultTTL / 2)
		require.Equal(t, before-relock.DefaultTTL/2, l.Remaining(section))
		stage.Pass(time.Second)
		require.Equal(t, 1, m.Link.Sent(stage.CmdRenew))
		require.Greater(t, l.Remaining(section), before-time.Second)
		stage.Pass(time.Hour)
		require.NoError(t, section.Err())
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestALeaseThatCannotBeRenewedEndsByTheWallClock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, wall, l, section := suspended(t, w)
		m.Link.Cut()
		wall.Leap(relock.DefaultTTL / 2)
		require.Equal(t, l.Remaining(section), w.LostBecause(section, event.LossExpired))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestASectionWithoutWorkEndsByTheWallClock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		wall := relock.SetWallClock(m.Client)
		l := m.NewLock("a")
		ctx, cancel := context.WithCancel(t.Context())
		section := w.Enter(ctx, l)
		cancel()
		stage.Pass(time.Millisecond)
		wall.Leap(relock.DefaultTTL / 2)
		left := l.Remaining(section)
		stage.Pass(left - time.Nanosecond)
		require.True(t, l.Held(section))
		stage.Pass(time.Nanosecond)
		require.False(t, l.Held(section))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestAClockThatIsSetBackChangesNothing(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, wall, l, section := suspended(t, w)
		before := l.Remaining(section)
		wall.Leap(-time.Hour)
		require.Equal(t, before, l.Remaining(section))
		stage.Pass(time.Minute)
		require.NoError(t, section.Err())
		m.Link.Cut()
		require.Equal(t, l.Remaining(section), w.LostBecause(section, event.LossExpired), "the monotonic clock counts")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestALeaseThatIsOverWhenItComesIsNotEntered(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		wall := relock.SetWallClock(m.Client)
		l := m.NewLock("a")
		m.Link.Once(stage.Delay(time.Second, time.Second), stage.CmdTry)
		call := w.Begin(t.Context(), l.TryLock)
		stage.Pass(1500 * time.Millisecond)
		w.Store.Lose("a") // while the machine is suspended, and the answer is on its way
		wall.Leap(relock.DefaultTTL)
		section := call.Section()
		w.RequireOwner("a", section)
		require.Greater(t, l.Remaining(section), relock.DefaultTTL/2, "the lock was taken anew")
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestALeaseIsNotPassedOnWhenItIsOverByTheWallClock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewPassing()
		wall := relock.SetWallClock(m.Client)
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		waiting := w.Start(t.Context(), l)
		stage.Pass(time.Millisecond)
		wall.Leap(relock.DefaultTTL * 2 / 3)
		w.Leave(section, l)
		next := waiting.Section()
		require.Greater(t, l.Remaining(next), relock.DefaultTTL/2, "the store was asked")
		w.Leave(next, l)
	})
}

func TestAClientWithoutHoldsDoesNotLookAtTheClock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_, wall, l, section := suspended(t, w)
		stage.Pass(time.Minute)
		require.Greater(t, wall.Looks(), 60, "a held lock costs a look each second")
		w.Leave(section, l)
		stage.Pass(time.Minute)
		looks := wall.Looks()
		stage.Pass(time.Hour)
		require.Equal(t, looks, wall.Looks())
	})
}

// The times of a synctest bubble have no reading of the monotonic clock, and those of a process
// have.
func TestBothRealClocksCount(t *testing.T) {
	c, err := relock.Open(mem.New())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	wall := relock.SetWallClock(c)
	l := c.NewLock("a")
	section, err := l.Lock(t.Context())
	require.NoError(t, err)
	require.True(t, l.Held(section))
	wall.Leap(-time.Hour)
	require.True(t, l.Held(section))
	wall.Leap(time.Hour + relock.DefaultTTL)
	require.False(t, l.Held(section))
	select {
	case <-section.Done():
	case <-time.After(time.Minute):
		require.Fail(t, "the section does not end")
	}
	require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
}
