package relock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// When are leases renewed?

var errBroken = errors.New("broken")

// outages are ways in which a store does not confirm a renewal.
var outages = map[string]func(k *link) *fault{
	"the server is down": func(k *link) *fault { return k.on(refuse(store.Unavailable(errBroken))) },
	"an odd error":       func(k *link) *fault { return k.on(refuse(errBroken)) },
	"silence":            func(k *link) *fault { return k.cut() },
	"lost answers":       func(k *link) *fault { return k.on(loseAnswer(errBroken)) },
}

func TestASectionLastsManyTTLs(t *testing.T) {
	for ttl, n := range map[time.Duration]int{relock.MinTTL: 1000, time.Second: 100, relock.DefaultTTL: 100, relock.MaxTTL: 3} {
		t.Run(ttl.String(), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
				section := w.enter(t.Context(), l)
				owner := w.owner("a")
				for range n {
					pass(ttl)
					require.NoError(t, section.Err())
					require.Positive(t, l.Remaining(section))
					require.Less(t, l.Remaining(section), w.lease("a"), "less than the store keeps it")
				}
				require.Equal(t, owner, w.owner("a"), "the hold is the same")
				w.leave(section, l)
				w.requireFree("a")
			})
		})
	}
}

func TestALeaseIsRenewedEveryThirdOfItsTTL(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		var r recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		begun := time.Now()
		pass(10*ttl + time.Second)
		renewals := timesOf[relock.Renewed](&r)
		require.Len(t, renewals, 30)
		for i, at := range renewals {
			require.Equal(t, time.Duration(i+1)*ttl/3, at.Sub(begun))
		}
		for _, event := range eventsOf[relock.Renewed](&r) {
			require.Equal(t, relock.Renewed{Locks: 1}, event)
		}
		require.Equal(t, 31, m.link.sent())
		w.leave(section, l)
		m.link.reset()
		pass(time.Hour)
		require.Zero(t, m.link.sent(), "nothing is renewed after Unlock")
	})
}

func TestReentryAndInnerExitRenewTheLeaseOnTheirWay(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		for range 10 { // something every 9 s, so the watchdog has nothing to do
			pass(9 * time.Second)
			inner := w.enter(section, l)
			require.Equal(t, ttl, w.lease("a"))
			require.Equal(t, ttl-margin(ttl), l.Remaining(section))
			pass(9 * time.Second)
			w.leave(inner, l)
			require.Equal(t, ttl, w.lease("a"))
			require.Equal(t, ttl-margin(ttl), l.Remaining(section))
		}
		require.Zero(t, m.link.sent(cmdRenew))
	})
}

func TestAHoldSurvivesAnOutageThatEndsBeforeItsDeadline(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				const ttl = 30 * time.Second
				var r recorder
				var log logbook
				m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				pass(25 * time.Second) // the last renewal was 5 s ago
				end := outage(m.link)
				m.link.reset()
				pass(23 * time.Second)
				require.NoError(t, section.Err(), "the deadline is 1.7 s away")
				require.Less(t, m.link.sent(), 60, "no hot loop")
				end.end()
				pass(1500 * time.Millisecond)
				require.Greater(t, l.Remaining(section), 15*time.Second, "an attempt came in time")
				pass(10 * ttl)
				require.NoError(t, section.Err())
				failed := 0
				for _, event := range eventsOf[relock.Renewed](&r) {
					require.Equal(t, 1, event.Locks)
					require.Equal(t, event.Failed == 1, event.Err != nil)
					failed += event.Failed
				}
				require.GreaterOrEqual(t, failed, 3)
				warnings := log.about("renewal not confirmed")
				require.Len(t, warnings, failed)
				require.Equal(t, slog.LevelWarn, warnings[0].level)
				require.Empty(t, eventsOf[relock.Lost](&r))
				w.leave(section, l)
				w.requireFree("a")
			})
		})
	}
}

func TestAttemptsOfARenewalHaveGrowingPauses(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		w.enter(t.Context(), m.NewLock("a"))
		for range 2 { // the pauses begin anew after a success
			before := len(timesOf[relock.Renewed](&r))
			failing := m.link.on(refuse(errBroken))
			pass(relock.DefaultTTL/3 + 4*time.Second)
			times := timesOf[relock.Renewed](&r)[before:]
			require.Greater(t, len(times), 8)
			var pauses []time.Duration
			for i, at := range times[1:9] {
				pauses = append(pauses, at.Sub(times[i])/time.Millisecond)
			}
			require.Equal(t, []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000}, pauses, "in milliseconds")
			failing.end()
			pass(2 * time.Second)
		}
	})
}

func TestAShortLeaseInABatchWithALongOneIsRetriedInTime(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const long, short = 3 * time.Second, 100 * time.Millisecond
		m := w.NewClient()
		w.enter(t.Context(), m.NewLock("a", relock.WithTTL(long)))
		pass(long/3 - short/3 + time.Millisecond) // the long one is due a millisecond before the short one
		section := w.enter(t.Context(), m.NewLock("b", relock.WithTTL(short)))
		silent := m.link.once(silence, cmdRenew)
		pass(time.Second)
		require.EqualValues(t, 1, silent.hits.Load())
		require.NoError(t, section.Err())
	})
}

func TestALeaseHasOneRenewalInFlight(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var inFlight, most, sent atomic.Int64
		m := w.NewClient()
		l := m.NewLock("a")
		m.link.on(func(_ context.Context, _ *fault, run func() error) error {
			sent.Add(1)
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
			<-time.After(100 * time.Millisecond)
			return run()
		}, cmdRenew)
		outer := w.enter(t.Context(), l)
		m.link.on(refuse(errBroken), cmdEnter)
		for range 100 { // each of these makes the store be asked about the count
			_, err := l.Lock(outer)
			require.ErrorIs(t, err, errBroken)
			pass(10 * time.Millisecond)
		}
		require.EqualValues(t, 1, most.Load())
		require.LessOrEqual(t, sent.Load(), int64(11))
		require.NoError(t, outer.Err())
	})
}

func TestARenewalThatOutlastsItsHoldIsNoSuccess(t *testing.T) {
	for name, end := range map[string]func(w *world, l *relock.Lock, section context.Context){
		"lost": func(w *world, _ *relock.Lock, section context.Context) {
			w.t.Helper()
			w.lostBecause(section, relock.LossExpired)
		},
		"unlocked": func(w *world, l *relock.Lock, section context.Context) {
			w.t.Helper()
			pass(relock.DefaultTTL/3 + time.Second)
			require.Error(w.t, l.Unlock(section))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				var log logbook
				m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				m.link.cut()
				end(w, l, section)
				again := len(log.about("trying again"))
				pass(time.Minute)
				require.Len(t, log.about("trying again"), again, "no attempt for a hold that is over")
				renewed := eventsOf[relock.Renewed](&r)
				require.NotEmpty(t, renewed)
				for _, event := range renewed {
					require.Equal(t, 1, event.Locks)
					require.Equal(t, 1, event.Failed)
					require.Error(t, event.Err)
				}
			})
		})
	}
}

func TestALateRenewalOfWhatWasUnlockedIsNoSuccessAndNoLoss(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		late := m.link.once(delay(time.Second, 0), cmdRenew)
		pass(relock.DefaultTTL / 3)
		require.EqualValues(t, 1, late.hits.Load())
		w.leave(section, l)
		pass(time.Minute)
		require.Empty(t, eventsOf[relock.Renewed](&r))
		require.Empty(t, eventsOf[relock.Lost](&r))
	})
}

func TestRemainingIsNeverMoreThanTheLeaseInTheStore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		for range 20 {
			owner := w.enter(t.Context(), other)
			slow := m.link.on(delay(rand.N(time.Second/2), rand.N(time.Second/2)))
			a := w.start(t.Context(), l) // with a late grant too
			pass(rand.N(3 * ttl))
			w.leave(owner, other)
			section := a.section()
			for range 20 {
				remaining, lease := l.Remaining(section), w.lease("a")
				require.Positive(t, remaining)
				require.LessOrEqual(t, remaining, lease-margin(ttl))
				slow.end()
				slow = m.link.on(delay(rand.N(time.Second/5), rand.N(time.Second/5)))
				pass(rand.N(ttl))
			}
			w.leave(section, l)
			slow.end()
		}
	})
}

func TestASectionSurvivesASlowLink(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, part := range []time.Duration{20, 10, 8, 7} {
			t.Run(fmt.Sprintf("%s, a round trip of a %dth", ttl, part), func(t *testing.T) {
				fake(t, func(t *testing.T, w *world) {
					m := w.NewClient(relock.WithTTL(ttl))
					m.link.on(delay(ttl/part/2, ttl/part/2))
					l := m.NewLock("a")
					section := w.enter(t.Context(), l)
					pass(20 * ttl)
					require.NoError(t, section.Err())
					w.leave(section, l)
				})
			})
		}
	}
}

func TestAHoldWithoutWorkIsRenewedOnceSomebodyEntersAgain(t *testing.T) {
	const ttl = 30 * time.Second
	for name, options := range map[string][]relock.Option{
		"in the store": nil,
		"locally":      {relock.WithLocalReentry()},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(append(options, relock.WithTTL(ttl))...)
				m.link.on(delay(time.Millisecond, time.Millisecond))
				l := m.NewLock("a")
				request, cancel := context.WithCancel(t.Context())
				outer := w.enter(request, l)
				cancel()
				pass(ttl / 2) // the watchdog has seen that
				require.Zero(t, m.link.sent(cmdRenew))
				inner := w.enter(context.WithoutCancel(outer), l)
				require.Equal(t, 2, l.Count(inner))
				pass(10 * ttl)
				require.True(t, l.Held(inner))
				w.leave(inner, l)
				w.leave(outer, l)
			})
		})
	}
}

func TestAHoldIsRenewedAsLongAsOneOfItsSectionsIsWorkedIn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		short, cancel := context.WithCancel(t.Context())
		outer := w.enter(short, l)
		inner := w.enter(context.WithoutCancel(outer), l)
		cancel()
		pass(10 * ttl)
		require.ErrorIs(t, outer.Err(), context.Canceled)
		require.True(t, l.Held(inner))
		w.leave(inner, l)
		pass(ttl)
		require.True(t, w.free("a"), "the context of the other section is done")
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

// Many leases.

func TestTenThousandLeasesTakeOneGoroutineAndFewRoundTrips(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const n, ttl = 10_000, 30 * time.Second
		var r recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{Renewed: r.Hooks().Renewed, Lost: r.Hooks().Lost}))
		sections := make([]context.Context, n)
		for i := range sections {
			section, err := m.NewLock(fmt.Sprint(i)).Lock(t.Context())
			require.NoError(t, err)
			sections[i] = section //nolint:fatcontext // one each
		}
		require.Equal(t, 1, goroutines("(*watchdog).run"))
		require.Less(t, goroutines("relock.(*"), 10, "none for each lock")
		m.link.reset()
		pass(ttl / 3)
		require.Equal(t, n/1000, m.link.sent(cmdRenew), "a thousand a round trip")
		renewed := 0
		for _, event := range eventsOf[relock.Renewed](&r) {
			require.NoError(t, event.Err)
			renewed += event.Locks
		}
		require.Equal(t, n, renewed)
		require.Empty(t, eventsOf[relock.Lost](&r))
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestLeasesThatBeganAtDifferentTimesAreRenewedTogether(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const n, ttl = 300, 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		var sections []context.Context
		for i := range n {
			sections = append(sections, w.enter(t.Context(), m.NewLock(fmt.Sprint(i))))
			pass(ttl / n)
		}
		pass(ttl)
		m.link.reset()
		pass(10 * ttl)
		require.Less(t, m.link.sent(cmdRenew), 10*3*10, "a lease goes up to a tenth of its interval early")
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestLeasesOfDifferentLengthsAreEachRenewedInTime(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		var sections []context.Context
		for i := range 50 {
			ttl := time.Duration(10+rand.IntN(10_000)) * time.Millisecond
			sections = append(sections, w.enter(t.Context(), m.NewLock(fmt.Sprint(i), relock.WithTTL(ttl))))
			pass(rand.N(10 * time.Millisecond))
		}
		pass(30 * time.Second)
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestTheWatchdogStartsWithTheFirstHoldAndOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		_, err := l.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, goroutines("go-relock/relock.(*"))
		for range 5 {
			section := w.enter(t.Context(), l)
			require.Equal(t, 1, goroutines("(*watchdog).run"))
			pass(time.Hour)
			require.NoError(t, section.Err())
			w.leave(section, l)
		}
		require.NoError(t, m.Close())
		require.Zero(t, goroutines("go-relock/relock.(*"))
	})
}
