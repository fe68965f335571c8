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
)

// Does each hold have one end?

// This file is about the one end that each hold has.

// endsOf returns how the holds of a lock ended, for each holder that got it.
func endsOf(r *recorder, name string) map[relock.Holder][]string {
	ends := make(map[relock.Holder][]string)
	note := func(of string, holder relock.Holder, end ...string) {
		if of == name {
			ends[holder] = append(ends[holder], end...)
		}
	}
	for _, event := range r.all() {
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
	for name, do := range map[string]func(t *testing.T, w *world, m *member, l *relock.Lock){
		"its Unlock is on the way": func(t *testing.T, w *world, m *member, l *relock.Lock) {
			t.Helper()
			section := w.enter(t.Context(), l)
			m.link.on(delay(0, time.Second), cmdRelease)
			unlocking := w.begin(section, unlock(l))
			require.NoError(t, m.Close())
			_ = unlocking.section()
		},
		"it is unlocked while Close waits for something else": func(t *testing.T, w *world, m *member, l *relock.Lock) {
			t.Helper()
			_ = w.enter(t.Context(), w.NewClient().NewLock("b"))
			waiting := w.start(t.Context(), m.NewLock("b"))
			m.link.on(delay(0, 10*time.Millisecond), cmdForget, cmdRelease)
			do := w.begin(t.Context(), func(ctx context.Context) (context.Context, error) {
				return ctx, l.Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
			})
			require.NoError(t, m.Close())
			_ = do.section()
			require.ErrorIs(t, waiting.failure(), relock.ErrClosed)
		},
		"its renewal finds it lost": func(t *testing.T, w *world, m *member, l *relock.Lock) {
			t.Helper()
			_ = w.enter(t.Context(), l)
			pass(time.Second) // from now on the store is watched
			renewal := m.link.on(delay(0, 2*time.Second), cmdRenew)
			w.Lose("a")
			pass(time.Second)
			require.Positive(t, renewal.hits.Load())
			require.NoError(t, m.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				do(t, w, m, m.NewLock("a"))
				pass(time.Minute)
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
	fake(t, func(t *testing.T, w *world) {
		kinds := make(map[string]int)
		for range 50 {
			var r recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()))
			m.link.on(delay(time.Millisecond, 2*time.Millisecond))
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
			pass(100*time.Millisecond + rand.N(20*time.Millisecond))
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
		fake(t, func(t *testing.T, w *world) {
			var r recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithTTL(2*time.Second))
			l := m.NewLock("a")
			section := w.enter(t.Context(), l)
			silent := m.link.cut()
			require.NotErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			silent.end()
			pass(4 * time.Second)
			require.Len(t, eventsOf[relock.Released](&r), 1)
			require.Empty(t, eventsOf[relock.Lost](&r))
			w.requireFree("a")
		})
	}
}

func TestAHoldThatIsLostDuringItsLastUnlockHasOneEnd(t *testing.T) {
	for name, test := range map[string]struct {
		release action
		end     string
	}{
		"the release finds the loss": {delay(time.Second, 0), "Lost"},
		"the release is refused":     {refuse(errOdd), "Released"},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				pass(time.Second) // from now on the store is watched
				m.link.once(test.release, cmdRelease)
				exit := w.begin(section, unlock(l))
				w.Lose("a")
				require.Error(t, exit.failure())
				pass(time.Minute)
				for _, ends := range endsOf(&r, "a") {
					require.Equal(t, []string{test.end}, ends)
				}
			})
		})
	}
}

func TestALossAfterCloseIsTheErrorOfItsUnlockOnly(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		var log logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		require.NoError(t, m.Close())
		w.Lose("a")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		settle()
		require.Empty(t, eventsOf[relock.Lost](&r))
		require.Empty(t, log.about("lost"))
	})
}
