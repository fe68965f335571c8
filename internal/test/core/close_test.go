package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// What does Close end, and what does Close leave?

// closing returns Close, for begin.
func closing(m *stage.Member) stage.Locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, m.Close() }
}

func TestCloseEndsWaitsAndSections(t *testing.T) {
	for name, options := range map[string][]relock.Option{
		"": nil, "with release": {relock.WithReleaseOnClose()},
	} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, silent %v", name, silent), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					owner := w.Enter(t.Context(), w.NewClient().NewLock("a"))
					m := w.NewClient(options...)
					mine := w.Enter(t.Context(), m.NewLock("b"))
					calls := []*stage.Attempt{
						w.Start(t.Context(), m.NewLock("a")),
						w.Start(t.Context(), m.NewLock("a")),
						w.Begin(t.Context(), stage.TryFor(m.NewLock("a"), time.Hour)),
						w.Start(relock.WithoutHolder(mine), m.NewLock("b")),
					}
					if silent {
						m.Link.Cut()
						calls = append(calls, w.Begin(t.Context(), m.NewLock("c").TryLock), w.Start(mine, m.NewLock("b")))
					}
					stage.Pass(time.Second)
					end := w.Begin(t.Context(), closing(m))
					require.ErrorIs(t, mine.Err(), context.Canceled)
					require.ErrorIs(t, context.Cause(mine), relock.ErrClosed)
					for _, a := range calls {
						require.ErrorIs(t, a.Failure(), relock.ErrClosed)
						require.Equal(t, end.Begun, a.Ended, "at once")
					}
					require.NoError(t, end.Failure())
					if !silent {
						require.Zero(t, end.Took())
					}
					require.LessOrEqual(t, end.Took(), time.Second+50*time.Millisecond)
					for _, lock := range []stage.Locking{m.NewLock("a").Lock, m.NewLock("c").TryLock, stage.TryFor(m.NewLock("c"), time.Second)} {
						_, err := lock(t.Context())
						require.ErrorIs(t, err, relock.ErrClosed)
					}
					require.NoError(t, owner.Err())
				})
			})
		}
	}
}

func TestAClientThatWasNeverUsedClosesAtOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		for range 2 {
			end := w.Begin(t.Context(), closing(m))
			require.NoError(t, end.Failure())
			require.Zero(t, end.Took())
		}
	})
}

func TestBothOfTwoClosesWait(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		m.Link.Once(stage.Mute, stage.CmdWait)
		m.Link.On(stage.Delay(0, 500*time.Millisecond), stage.CmdForget)
		w.GiveUp(t.Context(), m.NewLock("a").Lock)
		one, two := w.Begin(t.Context(), closing(m)), w.Begin(t.Context(), closing(m))
		require.NoError(t, one.Failure())
		require.NoError(t, two.Failure())
		require.Positive(t, one.Took())
		require.Equal(t, one.Took(), two.Took())
	})
}

// Package locktest asks this of a store that answers.
func TestUnlockWorksAfterClose(t *testing.T) {
	t.Run("of which the answer is lost", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m := w.NewClient()
			l := m.NewLock("a")
			section := w.Enter(t.Context(), l)
			require.NoError(t, m.Close())
			m.Link.Once(stage.Silence, stage.CmdRelease)
			require.ErrorContains(t, l.Unlock(section), "not confirmed")
			stage.Pass(100 * time.Millisecond)
			w.RequireFree("a") // a section that outlives its client is cleaned up behind
		})
	})
	t.Run("in a store that is down", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m := w.NewClient()
			l := m.NewLock("a")
			section := w.Enter(t.Context(), l)
			require.NoError(t, m.Close())
			m.Link.Cut()
			require.ErrorContains(t, l.Unlock(section), "not confirmed")
			stage.Pass(2 * time.Second)
			require.Zero(t, stage.Goroutines("go-relock/relock.(*"), "nothing goes on for long")
		})
	})
}

func TestTokenOfASectionWhoseClientIsClosedIsErrClosed(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		section := w.Enter(t.Context(), m.NewLock("a"))
		require.NoError(t, m.Close())
		for _, ctx := range []context.Context{section, context.WithoutCancel(section)} {
			_, err := m.NewLock("a").Token(ctx)
			require.ErrorIs(t, err, relock.ErrClosed)
		}
	})
}

// takenBack is a link that shows what is forgotten.
type takenBack struct {
	*stage.Link
	see func(name string)
}

func (s *takenBack) Forget(ctx context.Context, claims []store.Claim) []error {
	for _, a := range claims {
		s.see(a.Name)
	}
	return s.Link.Forget(ctx, claims)
}

func TestWithReleaseOnCloseManyLocksAreFreedInFewRoundTrips(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		sections := map[string]context.Context{}
		early := 0
		s := &takenBack{Link: stage.NewLink(w.Store), see: func(name string) {
			if sections[name].Err() == nil {
				early++
			}
		}}
		s.On(stage.Delay(10*time.Millisecond, 10*time.Millisecond), stage.CmdForget)
		c, err := relock.Open(s, relock.WithReleaseOnClose())
		require.NoError(t, err)
		for i := range 600 {
			sections[fmt.Sprint(i)] = w.Enter(t.Context(), c.NewLock(fmt.Sprint(i)))
		}
		require.NoError(t, c.Close())
		require.LessOrEqual(t, s.Sent(stage.CmdForget), 5)
		require.Zero(t, early, "locks were given away before their sections had ended")
		for name := range sections {
			require.True(t, w.Free(name))
		}
	})
}

func TestWithReleaseOnCloseAnUnlockInFlightFreesTheLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithReleaseOnClose())
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		m.Link.Once(stage.Delay(time.Second, time.Second), stage.CmdRelease)
		call := w.Begin(section, stage.Unlock(l))
		require.NoError(t, m.Close())
		require.NoError(t, call.Failure())
		w.RequireFree("a")
	})
}

func TestCloseWaitsASecondForWhatIsNotTakenBack(t *testing.T) {
	for name, broken := range map[string]func(k *stage.Link){
		"the store is silent":      func(k *stage.Link) { k.Cut() },
		"the store is down":        func(k *stage.Link) { k.On(stage.Refuse(store.Unavailable(stage.ErrBroken))) },
		"the answers are lost":     func(k *stage.Link) { k.On(stage.LoseAnswer(stage.ErrBroken)) },
		"the answers take a while": func(k *stage.Link) { k.On(stage.Delay(0, 1500*time.Millisecond), stage.CmdForget) },
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient()
				m.Link.Once(stage.Mute, stage.CmdWait)
				w.GiveUp(t.Context(), m.NewLock("a").Lock)
				m.Link.Once(stage.Silence, stage.CmdWait)
				broken(m.Link)
				w.GiveUp(t.Context(), func(ctx context.Context) (context.Context, error) {
					<-ctx.Done()
					return m.NewLock("b").Lock(ctx)
				})
				stage.Pass(300 * time.Millisecond)
				end := w.Begin(t.Context(), closing(m))
				require.NoError(t, end.Failure())
				require.LessOrEqual(t, end.Took(), time.Second+50*time.Millisecond)
			})
		})
	}
}

func TestCloseGoesOnForAsLongAsTheStoreConfirms(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const n = 2000
		m := w.NewClient()
		m.Link.On(stage.Mute, stage.CmdWait) // each call takes its lock, and does not learn of that
		m.Link.On(stage.Delay(300*time.Millisecond, 300*time.Millisecond), stage.CmdForget)
		ctx, cancel := context.WithCancel(t.Context())
		var calls []*stage.Attempt
		for i := range n {
			calls = append(calls, w.Start(ctx, m.NewLock(fmt.Sprint(i))))
		}
		cancel()
		for _, a := range calls {
			require.Error(t, a.Failure())
		}
		require.NoError(t, m.Close())
		for i := range n {
			require.True(t, w.Free(fmt.Sprint(i)), "%d", i)
		}
	})
}

// closeCounter counts the Closes of a store.
type closeCounter struct {
	*stage.Link
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func TestTheStoreOfOpenStaysOpen(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &closeCounter{Link: stage.NewLink(w.Store)}
		c, err := relock.Open(s)
		require.NoError(t, err)
		require.NoError(t, c.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, c.Close())
		require.Zero(t, s.closed)
	})
}
