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

var ErrBroken = errors.New("broken")

// Outages are ways in which a store does not confirm a renewal.
var Outages = map[string]func(k *Link) *Fault{
	"the server is down": func(k *Link) *Fault { return k.On(Refuse(store.Unavailable(ErrBroken))) },
	"an odd error":       func(k *Link) *Fault { return k.On(Refuse(ErrBroken)) },
	"silence":            func(k *Link) *Fault { return k.Cut() },
	"lost answers":       func(k *Link) *Fault { return k.On(LoseAnswer(ErrBroken)) },
}

func TestASectionLastsManyTTLs(t *testing.T) {
	for ttl, n := range map[time.Duration]int{relock.MinTTL: 1000, time.Second: 100, relock.DefaultTTL: 100, relock.MaxTTL: 3} {
		t.Run(ttl.String(), func(t *testing.T) {
			Fake(t, func(t *testing.T, w *World) {
				l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
				section := w.Enter(t.Context(), l)
				owner := w.Owner("a")
				for range n {
					Pass(ttl)
					require.NoError(t, section.Err())
					require.Positive(t, l.Remaining(section))
					require.Less(t, l.Remaining(section), w.Lease("a"), "less than the store keeps it")
				}
				require.Equal(t, owner, w.Owner("a"), "the hold is the same")
				w.Leave(section, l)
				w.RequireFree("a")
			})
		})
	}
}

func TestALeaseIsRenewedEveryThirdOfItsTTL(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const ttl = 30 * time.Second
		var r Recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		begun := time.Now()
		Pass(10*ttl + time.Second)
		renewals := TimesOf[relock.Renewed](&r)
		require.Len(t, renewals, 30)
		for i, at := range renewals {
			require.Equal(t, time.Duration(i+1)*ttl/3, at.Sub(begun))
		}
		for _, event := range EventsOf[relock.Renewed](&r) {
			require.Equal(t, relock.Renewed{Locks: 1}, event)
		}
		require.Equal(t, 31, m.Link.Sent())
		w.Leave(section, l)
		m.Link.Reset()
		Pass(time.Hour)
		require.Zero(t, m.Link.Sent(), "nothing is renewed after Unlock")
	})
}

func TestReentryAndInnerExitRenewTheLeaseOnTheirWay(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const ttl = 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		for range 10 { // something every 9 s, so the watchdog has nothing to do
			Pass(9 * time.Second)
			inner := w.Enter(section, l)
			require.Equal(t, ttl, w.Lease("a"))
			require.Equal(t, ttl-Margin(ttl), l.Remaining(section))
			Pass(9 * time.Second)
			w.Leave(inner, l)
			require.Equal(t, ttl, w.Lease("a"))
			require.Equal(t, ttl-Margin(ttl), l.Remaining(section))
		}
		require.Zero(t, m.Link.Sent(CmdRenew))
	})
}

func TestAHoldSurvivesAnOutageThatEndsBeforeItsDeadline(t *testing.T) {
	for name, outage := range Outages {
		t.Run(name, func(t *testing.T) {
			Fake(t, func(t *testing.T, w *World) {
				const ttl = 30 * time.Second
				var r Recorder
				var log Logbook
				m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				Pass(25 * time.Second) // the last renewal was 5 s ago
				end := outage(m.Link)
				m.Link.Reset()
				Pass(23 * time.Second)
				require.NoError(t, section.Err(), "the deadline is 1.7 s away")
				require.Less(t, m.Link.Sent(), 60, "no hot loop")
				end.End()
				Pass(1500 * time.Millisecond)
				require.Greater(t, l.Remaining(section), 15*time.Second, "an attempt came in time")
				Pass(10 * ttl)
				require.NoError(t, section.Err())
				failed := 0
				for _, event := range EventsOf[relock.Renewed](&r) {
					require.Equal(t, 1, event.Locks)
					require.Equal(t, event.Failed == 1, event.Err != nil)
					failed += event.Failed
				}
				require.GreaterOrEqual(t, failed, 3)
				warnings := log.About("renewal not confirmed")
				require.Len(t, warnings, failed)
				require.Equal(t, slog.LevelWarn, warnings[0].Level)
				require.Empty(t, EventsOf[relock.Lost](&r))
				w.Leave(section, l)
				w.RequireFree("a")
			})
		})
	}
}

func TestAttemptsOfARenewalHaveGrowingPauses(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		var r Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		w.Enter(t.Context(), m.NewLock("a"))
		for range 2 { // the pauses begin anew after a success
			before := len(TimesOf[relock.Renewed](&r))
			failing := m.Link.On(Refuse(ErrBroken))
			Pass(relock.DefaultTTL/3 + 4*time.Second)
			times := TimesOf[relock.Renewed](&r)[before:]
			require.Greater(t, len(times), 8)
			var pauses []time.Duration
			for i, at := range times[1:9] {
				pauses = append(pauses, at.Sub(times[i])/time.Millisecond)
			}
			require.Equal(t, []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000}, pauses, "in milliseconds")
			failing.End()
			Pass(2 * time.Second)
		}
	})
}

func TestAShortLeaseInABatchWithALongOneIsRetriedInTime(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const long, short = 3 * time.Second, 100 * time.Millisecond
		m := w.NewClient()
		w.Enter(t.Context(), m.NewLock("a", relock.WithTTL(long)))
		Pass(long/3 - short/3 + time.Millisecond) // the long one is due a millisecond before the short one
		section := w.Enter(t.Context(), m.NewLock("b", relock.WithTTL(short)))
		silent := m.Link.Once(Silence, CmdRenew)
		Pass(time.Second)
		require.EqualValues(t, 1, silent.Hits.Load())
		require.NoError(t, section.Err())
	})
}

func TestALeaseHasOneRenewalInFlight(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		var inFlight, most, sent atomic.Int64
		m := w.NewClient()
		l := m.NewLock("a")
		m.Link.On(func(_ context.Context, _ *Fault, run func() error) error {
			sent.Add(1)
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
			<-time.After(100 * time.Millisecond)
			return run()
		}, CmdRenew)
		outer := w.Enter(t.Context(), l)
		m.Link.On(Refuse(ErrBroken), CmdEnter)
		for range 100 { // each of these makes the store be asked about the count
			_, err := l.Lock(outer)
			require.ErrorIs(t, err, ErrBroken)
			Pass(10 * time.Millisecond)
		}
		require.EqualValues(t, 1, most.Load())
		require.LessOrEqual(t, sent.Load(), int64(11))
		require.NoError(t, outer.Err())
	})
}

func TestARenewalThatOutlastsItsHoldIsNoSuccess(t *testing.T) {
	for name, end := range map[string]func(w *World, l *relock.Lock, section context.Context){
		"lost": func(w *World, _ *relock.Lock, section context.Context) {
			w.T.Helper()
			w.LostBecause(section, relock.LossExpired)
		},
		"unlocked": func(w *World, l *relock.Lock, section context.Context) {
			w.T.Helper()
			Pass(relock.DefaultTTL/3 + time.Second)
			require.Error(w.T, l.Unlock(section))
		},
	} {
		t.Run(name, func(t *testing.T) {
			Fake(t, func(t *testing.T, w *World) {
				var r Recorder
				var log Logbook
				m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				m.Link.Cut()
				end(w, l, section)
				again := len(log.About("trying again"))
				Pass(time.Minute)
				require.Len(t, log.About("trying again"), again, "no attempt for a hold that is over")
				renewed := EventsOf[relock.Renewed](&r)
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
	Fake(t, func(t *testing.T, w *World) {
		var r Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		late := m.Link.Once(Delay(time.Second, 0), CmdRenew)
		Pass(relock.DefaultTTL / 3)
		require.EqualValues(t, 1, late.Hits.Load())
		w.Leave(section, l)
		Pass(time.Minute)
		require.Empty(t, EventsOf[relock.Renewed](&r))
		require.Empty(t, EventsOf[relock.Lost](&r))
	})
}

func TestRemainingIsNeverMoreThanTheLeaseInTheStore(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		for range 20 {
			owner := w.Enter(t.Context(), other)
			slow := m.Link.On(Delay(rand.N(time.Second/2), rand.N(time.Second/2)))
			a := w.Start(t.Context(), l) // with a late grant too
			Pass(rand.N(3 * ttl))
			w.Leave(owner, other)
			section := a.Section()
			for range 20 {
				remaining, lease := l.Remaining(section), w.Lease("a")
				require.Positive(t, remaining)
				require.LessOrEqual(t, remaining, lease-Margin(ttl))
				slow.End()
				slow = m.Link.On(Delay(rand.N(time.Second/5), rand.N(time.Second/5)))
				Pass(rand.N(ttl))
			}
			w.Leave(section, l)
			slow.End()
		}
	})
}

func TestASectionSurvivesASlowLink(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, part := range []time.Duration{20, 10, 8, 7} {
			t.Run(fmt.Sprintf("%s, a round trip of a %dth", ttl, part), func(t *testing.T) {
				Fake(t, func(t *testing.T, w *World) {
					m := w.NewClient(relock.WithTTL(ttl))
					m.Link.On(Delay(ttl/part/2, ttl/part/2))
					l := m.NewLock("a")
					section := w.Enter(t.Context(), l)
					Pass(20 * ttl)
					require.NoError(t, section.Err())
					w.Leave(section, l)
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
			Fake(t, func(t *testing.T, w *World) {
				m := w.NewClient(append(options, relock.WithTTL(ttl))...)
				m.Link.On(Delay(time.Millisecond, time.Millisecond))
				l := m.NewLock("a")
				request, cancel := context.WithCancel(t.Context())
				outer := w.Enter(request, l)
				cancel()
				Pass(ttl / 2) // the watchdog has seen that
				require.Zero(t, m.Link.Sent(CmdRenew))
				inner := w.Enter(context.WithoutCancel(outer), l)
				require.Equal(t, 2, l.Count(inner))
				Pass(10 * ttl)
				require.True(t, l.Held(inner))
				w.Leave(inner, l)
				w.Leave(outer, l)
			})
		})
	}
}

func TestAHoldIsRenewedAsLongAsOneOfItsSectionsIsWorkedIn(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		short, cancel := context.WithCancel(t.Context())
		outer := w.Enter(short, l)
		inner := w.Enter(context.WithoutCancel(outer), l)
		cancel()
		Pass(10 * ttl)
		require.ErrorIs(t, outer.Err(), context.Canceled)
		require.True(t, l.Held(inner))
		w.Leave(inner, l)
		Pass(ttl)
		require.True(t, w.Free("a"), "the context of the other section is done")
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

// Many leases.

func TestTenThousandLeasesTakeOneGoroutineAndFewRoundTrips(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const n, ttl = 10_000, 30 * time.Second
		var r Recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{Renewed: r.Hooks().Renewed, Lost: r.Hooks().Lost}))
		sections := make([]context.Context, n)
		for i := range sections {
			section, err := m.NewLock(fmt.Sprint(i)).Lock(t.Context())
			require.NoError(t, err)
			sections[i] = section //nolint:fatcontext // one each
		}
		require.Equal(t, 1, Goroutines("(*watchdog).run"))
		require.Less(t, Goroutines("relock.(*"), 10, "none for each lock")
		m.Link.Reset()
		Pass(ttl / 3)
		require.Equal(t, n/1000, m.Link.Sent(CmdRenew), "a thousand a round trip")
		renewed := 0
		for _, event := range EventsOf[relock.Renewed](&r) {
			require.NoError(t, event.Err)
			renewed += event.Locks
		}
		require.Equal(t, n, renewed)
		require.Empty(t, EventsOf[relock.Lost](&r))
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestLeasesThatBeganAtDifferentTimesAreRenewedTogether(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const n, ttl = 300, 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		var sections []context.Context
		for i := range n {
			sections = append(sections, w.Enter(t.Context(), m.NewLock(fmt.Sprint(i))))
			Pass(ttl / n)
		}
		Pass(ttl)
		m.Link.Reset()
		Pass(10 * ttl)
		require.Less(t, m.Link.Sent(CmdRenew), 10*3*10, "a lease goes up to a tenth of its interval early")
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestLeasesOfDifferentLengthsAreEachRenewedInTime(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		m := w.NewClient()
		var sections []context.Context
		for i := range 50 {
			ttl := time.Duration(10+rand.IntN(10_000)) * time.Millisecond
			sections = append(sections, w.Enter(t.Context(), m.NewLock(fmt.Sprint(i), relock.WithTTL(ttl))))
			Pass(rand.N(10 * time.Millisecond))
		}
		Pass(30 * time.Second)
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestTheWatchdogStartsWithTheFirstHoldAndOnce(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		m := w.NewClient()
		l := m.NewLock("a")
		_, err := l.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, Goroutines("go-relock/relock.(*"))
		for range 5 {
			section := w.Enter(t.Context(), l)
			require.Equal(t, 1, Goroutines("(*watchdog).run"))
			Pass(time.Hour)
			require.NoError(t, section.Err())
			w.Leave(section, l)
		}
		require.NoError(t, m.Close())
		require.Zero(t, Goroutines("go-relock/relock.(*"))
	})
}
