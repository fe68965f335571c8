package relock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/stage"
)

// Does each hold have one end?

// This file is about the one end that each hold has.

// endsOf returns how the holds of a lock ended, for each holder that got it.
func endsOf(r *stage.Recorder, name string) map[relock.Holder][]string {
	ends := make(map[relock.Holder][]string)
	note := func(of string, holder relock.Holder, end ...string) {
		if of == name {
			ends[holder] = append(ends[holder], end...)
		}
	}
	for _, event := range r.All() {
		switch e := event.(type) {
		case relock.AcquireFinished:
			if e.Outcome == relock.OutcomeAcquired {
				note(e.Name, e.Holder)
			}
		case relock.Released:
			note(e.Name, e.Holder, "Released")
		case relock.Lost:
			note(e.Name, e.Holder, "Lost")
		case relock.Closed:
			note(e.Name, e.Holder, "Closed")
		}
	}
	return ends
}

func TestAHoldWhoseClientIsClosedHasOneEnd(t *testing.T) {
	for name, do := range map[string]func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock){
		"its Unlock is on the way": func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock) {
			t.Helper()
			section := w.Enter(t.Context(), l)
			m.Link.On(stage.Delay(0, time.Second), stage.CmdRelease)
			unlocking := w.Begin(section, stage.Unlock(l))
			require.NoError(t, m.Close())
			_ = unlocking.Section()
		},
		"it is unlocked while Close waits for something else": func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock) {
			t.Helper()
			_ = w.Enter(t.Context(), w.NewClient().NewLock("b"))
			waiting := w.Start(t.Context(), m.NewLock("b"))
			m.Link.On(stage.Delay(0, 10*time.Millisecond), stage.CmdForget, stage.CmdRelease)
			do := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
				return ctx, l.Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
			})
			require.NoError(t, m.Close())
			_ = do.Section()
			require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		},
		"its renewal finds it lost": func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock) {
			t.Helper()
			_ = w.Enter(t.Context(), l)
			stage.Pass(time.Second) // from now on the store is watched
			renewal := m.Link.On(stage.Delay(0, 2*time.Second), stage.CmdRenew)
			w.Store.Lose("a")
			stage.Pass(time.Second)
			require.Positive(t, renewal.Hits.Load())
			require.NoError(t, m.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				do(t, w, m, m.NewLock("a"))
				stage.Pass(time.Minute)
				holds := endsOf(&r, "a")
				require.Len(t, holds, 1)
				for _, ends := range holds {
					require.Equal(t, []string{"Closed"}, ends)
				}
			})
		})
	}
}

func TestEveryHoldHasOneEndWheneverItsClientIsClosed(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		kinds := make(map[string]int)
		for range 50 {
			var r stage.Recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()))
			m.Link.On(stage.Delay(time.Millisecond, 2*time.Millisecond))
			l := m.NewLock("a")
			var working sync.WaitGroup
			for range 4 {
				working.Go(func() {
					for t.Context().Err() == nil {
						err := l.Do(t.Context(), func(ctx context.Context) error {
							select {
							case <-ctx.Done():
							case <-time.After(time.Millisecond):
							}
							return nil
						})
						if errors.Is(err, relock.ErrClosed) {
							return
						}
					}
				})
			}
			stage.Pass(100*time.Millisecond + rand.N(20*time.Millisecond))
			require.NoError(t, m.Close())
			working.Wait()
			for holder, ends := range endsOf(&r, "a") {
				require.Len(t, ends, 1, "holder %s", holder)
				kinds[ends[0]]++
			}
		}
		require.Positive(t, kinds["Released"])
		require.Positive(t, kinds["Closed"])
	})
}

func TestAHoldWhoseLastExitMeetsItsDeadlineHasOneEnd(t *testing.T) {
	for range 20 { // what happens at the same instant does so in any order
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			var r stage.Recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithTTL(2*time.Second))
			l := m.NewLock("a")
			section := w.Enter(t.Context(), l)
			silent := m.Link.Cut()
			require.NotErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			silent.End()
			stage.Pass(4 * time.Second)
			require.Len(t, stage.EventsOf[relock.Released](&r), 1)
			require.Empty(t, stage.EventsOf[relock.Lost](&r))
			w.RequireFree("a")
		})
	}
}

func TestAHoldThatIsLostDuringItsLastUnlockHasOneEnd(t *testing.T) {
	for name, test := range map[string]struct {
		release stage.Action
		end     string
	}{
		"the release finds the loss": {stage.Delay(time.Second, 0), "Lost"},
		"the release is refused":     {stage.Refuse(stage.ErrOdd), "Released"},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				stage.Pass(time.Second) // from now on the store is watched
				m.Link.Once(test.release, stage.CmdRelease)
				exit := w.Begin(section, stage.Unlock(l))
				w.Store.Lose("a")
				require.Error(t, exit.Failure())
				stage.Pass(time.Minute)
				for _, ends := range endsOf(&r, "a") {
					require.Equal(t, []string{test.end}, ends)
				}
			})
		})
	}
}

func TestALossAfterCloseIsTheErrorOfItsUnlockOnly(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		var log stage.Logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		require.NoError(t, m.Close())
		w.Store.Lose("a")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		stage.Settle()
		require.Empty(t, stage.EventsOf[relock.Lost](&r))
		require.Empty(t, log.About("lost"))
	})
}
