package relock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// What does Close end, and what does Close leave?

// closing returns Close, for begin.
func closing(m *member) locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, m.Close() }
}

func TestCloseEndsWaitsAndSections(t *testing.T) {
	for name, options := range map[string][]relock.Option{
		"": nil, "with release": {relock.WithReleaseOnClose()}, "with local pass": {relock.WithLocalPass(0, 0)},
	} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, silent %v", name, silent), func(t *testing.T) {
				fake(t, func(t *testing.T, w *world) {
					owner := w.enter(t.Context(), w.NewClient().NewLock("a"))
					m := w.NewClient(options...)
					mine := w.enter(t.Context(), m.NewLock("b"))
					calls := []*attempt{
						w.start(t.Context(), m.NewLock("a")),
						w.start(t.Context(), m.NewLock("a")),
						w.begin(t.Context(), tryFor(m.NewLock("a"), time.Hour)),
						w.start(relock.WithoutHolder(mine), m.NewLock("b")),
					}
					if silent {
						m.link.cut()
						calls = append(calls, w.begin(t.Context(), m.NewLock("c").TryLock), w.start(mine, m.NewLock("b")))
					}
					pass(time.Minute / 10)
					end := w.begin(t.Context(), closing(m))
					require.ErrorIs(t, mine.Err(), context.Canceled)
					require.ErrorIs(t, context.Cause(mine), relock.ErrClosed)
					for _, a := range calls {
						require.ErrorIs(t, a.failure(), relock.ErrClosed)
						require.Equal(t, end.begun, a.ended, "at once")
					}
					require.NoError(t, end.failure())
					if !silent {
						require.Zero(t, end.took())
					}
					require.LessOrEqual(t, end.took(), time.Second+50*ms)
					for _, lock := range []locking{m.NewLock("a").Lock, m.NewLock("c").TryLock, tryFor(m.NewLock("c"), time.Second)} {
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
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		for range 2 {
			end := w.begin(t.Context(), closing(m))
			require.NoError(t, end.failure())
			require.Zero(t, end.took())
		}
	})
}

func TestBothOfTwoClosesWait(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		m.link.once(mute, cmdWait)
		m.link.on(delay(0, 500*ms), cmdForget)
		w.giveUp(t.Context(), m.NewLock("a").Lock)
		one, two := w.begin(t.Context(), closing(m)), w.begin(t.Context(), closing(m))
		require.NoError(t, one.failure())
		require.NoError(t, two.failure())
		require.Positive(t, one.took())
		require.Equal(t, one.took(), two.took())
	})
}

func TestUnlockWorksAfterClose(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		require.NoError(t, m.Close())
		w.leave(inner, l)
		w.requireCount("a", 1)
		w.leave(outer, l)
		w.requireFree("a")
		require.ErrorIs(t, l.Unlock(outer), relock.ErrNotHeld)
	})
	t.Run("of which the answer is lost", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient()
			l := m.NewLock("a")
			section := w.enter(t.Context(), l)
			require.NoError(t, m.Close())
			m.link.once(silence, cmdRelease)
			require.ErrorContains(t, l.Unlock(section), "not confirmed")
			pass(100 * ms)
			w.requireFree("a") // a section that outlives its client is cleaned up behind
		})
	})
	t.Run("in a store that is down", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient()
			l := m.NewLock("a")
			section := w.enter(t.Context(), l)
			require.NoError(t, m.Close())
			m.link.cut()
			require.ErrorContains(t, l.Unlock(section), "not confirmed")
			pass(2 * time.Second)
			require.Zero(t, goroutines("go-relock/relock.(*"), "nothing goes on for long")
		})
	})
}

func TestStateAndForceUnlockWorkAfterClose(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		holder := holderOf(t, section)
		require.NoError(t, m.Close())
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, holder, state.Holder)
		require.NoError(t, l.ForceUnlock(t.Context()))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		_, err = l.Token(context.WithoutCancel(section))
		require.ErrorIs(t, err, relock.ErrNotHeld)
	})
}

func TestTokenOfASectionWhoseClientIsClosedIsErrClosed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		section := w.enter(t.Context(), m.NewLock("a"))
		require.NoError(t, m.Close())
		for _, ctx := range []context.Context{section, context.WithoutCancel(section)} {
			_, err := m.NewLock("a").Token(ctx)
			require.ErrorIs(t, err, relock.ErrClosed)
		}
	})
}

func TestOneHoldHasOneTokenWhoeverDrawsIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		m.link.on(delay(time.Second, time.Second), cmdToken)
		var tokens [3]int64
		var all sync.WaitGroup
		for i := range tokens {
			all.Go(func() { tokens[i], _ = l.Token(section) })
		}
		all.Wait()
		require.Positive(t, tokens[0])
		require.Equal(t, tokens[0], tokens[1])
		require.Equal(t, tokens[0], tokens[2])
		w.leave(section, l)
	})
}

func TestASectionThatIsNotUnlockedIsFreeAfterItsTTL(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		section := w.enter(t.Context(), m.NewLock("a"))
		pass(10 * ttl)
		require.NoError(t, m.Close())
		pass(w.lease("a") - 1)
		require.False(t, w.free("a"))
		pass(1)
		require.True(t, w.free("a"))
		require.Zero(t, m.NewLock("a").Remaining(section))
	})
}

func TestWithReleaseOnCloseTheLockIsFreeWhenItsSectionsHaveEnded(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithReleaseOnClose(), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a", relock.WithFixedLease(time.Hour))
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		waiting := w.start(t.Context(), w.NewClient().NewLock("a"))
		end := w.begin(t.Context(), closing(m))
		require.NoError(t, end.failure())
		require.Zero(t, end.took())
		waiting.section()
		require.Zero(t, waiting.ended.Sub(end.ended))
		for _, section := range []context.Context{inner, outer} {
			require.ErrorIs(t, l.Unlock(section), relock.ErrClosed)
			require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
			require.False(t, l.Held(section))
		}
		require.Len(t, eventsOf[relock.Closed](&r), 1)
		require.Empty(t, eventsOf[relock.Lost](&r))
		require.Empty(t, eventsOf[relock.Released](&r))
	})
}

// takenBack is a link that shows what is forgotten.
type takenBack struct {
	*link
	see func(name string)
}

func (s *takenBack) Forget(ctx context.Context, asks []store.Ask) []error {
	for _, a := range asks {
		s.see(a.Name)
	}
	return s.link.Forget(ctx, asks)
}

func TestWithReleaseOnCloseManyLocksAreFreedInFewRoundTrips(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		sections := map[string]context.Context{}
		early := 0
		s := &takenBack{link: newLink(w.Store), see: func(name string) {
			if sections[name].Err() == nil {
				early++
			}
		}}
		s.on(delay(10*ms, 10*ms), cmdForget)
		c, err := relock.Open(s, relock.WithReleaseOnClose())
		require.NoError(t, err)
		for i := range 600 {
			sections[fmt.Sprint(i)] = w.enter(t.Context(), c.NewLock(fmt.Sprint(i))) //nolint:fatcontext // one each
		}
		require.NoError(t, c.Close())
		require.LessOrEqual(t, s.sent(cmdForget), 5)
		require.Zero(t, early, "locks were given away before their sections had ended")
		for name := range sections {
			require.True(t, w.free(name))
		}
	})
}

func TestWithReleaseOnCloseAnUnlockInFlightFreesTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithReleaseOnClose())
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		m.link.once(delay(time.Second, time.Second), cmdRelease)
		call := w.begin(section, unlock(l))
		require.NoError(t, m.Close())
		require.NoError(t, call.failure())
		w.requireFree("a")
	})
}

func TestCloseWaitsASecondForWhatIsNotTakenBack(t *testing.T) {
	for name, broken := range map[string]func(k *link){
		"the store is silent":      func(k *link) { k.cut() },
		"the store is down":        func(k *link) { k.on(refuse(store.Unavailable(errBroken))) },
		"the answers are lost":     func(k *link) { k.on(loseAnswer(errBroken)) },
		"the answers take a while": func(k *link) { k.on(delay(0, 1500*ms), cmdForget) },
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient()
				m.link.once(mute, cmdWait)
				w.giveUp(t.Context(), m.NewLock("a").Lock)
				m.link.once(silence, cmdWait)
				broken(m.link)
				w.giveUp(t.Context(), func(ctx context.Context) (context.Context, error) {
					<-ctx.Done()
					_, err := m.NewLock("b").Lock(ctx)
					return ctx, err
				})
				pass(300 * ms)
				end := w.begin(t.Context(), closing(m))
				require.NoError(t, end.failure())
				require.LessOrEqual(t, end.took(), time.Second+50*ms)
			})
		})
	}
}

func TestCloseGoesOnForAsLongAsTheStoreConfirms(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const n = 2000
		m := w.NewClient()
		m.link.on(mute, cmdWait) // each call takes its lock, and does not learn of that
		m.link.on(delay(300*ms, 300*ms), cmdForget)
		ctx, cancel := context.WithCancel(t.Context())
		var calls []*attempt
		for i := range n {
			calls = append(calls, w.start(ctx, m.NewLock(fmt.Sprint(i))))
		}
		cancel()
		for _, a := range calls {
			require.Error(t, a.failure())
		}
		require.NoError(t, m.Close())
		for i := range n {
			require.True(t, w.free(fmt.Sprint(i)), "%d", i)
		}
	})
}

func TestAClientMayBeClosedAtAnyInstant(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewLock("a")
		for range 100 {
			m := w.NewClient(relock.WithTTL(100 * ms))
			m.link.on(delay(rand.N(ms), rand.N(ms)))
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for {
						err := m.NewLock("a").Do(t.Context(), func(ctx context.Context) error {
							<-time.After(rand.N(ms))
							return nil
						})
						if errors.Is(err, relock.ErrClosed) && relock.NotEntered(err) {
							return
						}
						require.NoError(t, err)
					}
				})
			}
			pass(rand.N(12 * ms))
			end := w.begin(t.Context(), closing(m))
			require.NoError(t, end.failure())
			require.Less(t, end.took(), 10*ms)
			all.Wait()
			require.NoError(t, other.Do(t.Context(), func(context.Context) error { return nil }))
			w.requireFree("a")
		}
	})
}

func TestCloseWithThousandsOfWaitersLeavesNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		owner := w.NewClient().NewLock("a")
		section := w.enter(t.Context(), owner)
		m := w.NewClient()
		var all sync.WaitGroup
		for range 3000 {
			all.Go(func() {
				_, err := m.NewLock("a").Lock(t.Context())
				require.ErrorIs(t, err, relock.ErrClosed)
			})
		}
		settle()
		require.Equal(t, 3000, w.waiters("a"))
		require.NoError(t, m.Close())
		all.Wait()
		require.Zero(t, w.waiters("a"))
		w.leave(section, owner)
		w.requireFree("a")
	})
}

// closeCounter counts the Closes of a store.
type closeCounter struct {
	*link
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func TestTheStoreOfOpenStaysOpen(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		s := &closeCounter{link: newLink(w.Store)}
		c, err := relock.Open(s)
		require.NoError(t, err)
		require.NoError(t, c.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, c.Close())
		require.Zero(t, s.closed)
	})
}

func TestReleaseOnCloseFreesThousandsOfLocks(t *testing.T) {
	for range 10 {
		s := mem.New()
		c, err := relock.Open(s, relock.WithReleaseOnClose())
		require.NoError(t, err)
		for i := range 1000 {
			section, err := c.NewLock(strconv.Itoa(i)).Lock(t.Context())
			require.NoError(t, err)
			keep(t, section)
		}
		require.NoError(t, c.Close())
		for i := range 1000 {
			state, err := s.Look(t.Context(), store.Ask{Name: strconv.Itoa(i)})
			require.NoError(t, err)
			require.Empty(t, state.Owner)
		}
	}
}
