package relock_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// margin is what a section ends before its lease does: 1 % for clocks that run apart and 2 ms for Redis's resolution.
func margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ---------------------------------------------------------------------------------------------------------------------
// Renewal.

func TestASectionLastsAHundredTTLs(t *testing.T) {
	for _, ttl := range []time.Duration{relock.MinTTL, time.Second, relock.DefaultTTL, relock.MaxTTL} {
		t.Run(ttl.String(), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
				section := enter(t, t.Context(), l)
				holder, _ := relock.HolderFrom(section)
				token := l.Token(section)
				for range 100 {
					pass(ttl)
					require.NoError(t, section.Err())
					require.Positive(t, l.Remaining(section))
					require.Less(t, l.Remaining(section), w.lease("a"), "less than Redis keeps it")
				}
				state, err := l.State(section)
				require.NoError(t, err)
				require.Equal(t, holder, state.Holder)
				require.Equal(t, token, l.Token(section), "it is the same hold")
				require.NoError(t, l.Unlock(section))
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestALeaseIsRenewedEveryThirdOfItsTTL(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		var r recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
		w.warm(m)
		section := enter(t, t.Context(), m.NewLock("a"))
		begun := time.Now()
		require.Equal(t, 1, m.scripts(), "a lock that nobody has is taken with one command")
		pass(10*ttl + time.Second)
		renewals := timesOf[relock.Renewed](&r)
		for i, at := range renewals {
			require.Equal(t, time.Duration(i+1)*ttl/3, at.Sub(begun))
		}
		require.Len(t, renewals, 30)
		require.Equal(t, 1+30+1, m.scripts(), "one command each, and the script's text once")
		for _, event := range eventsOf[relock.Renewed](&r) {
			require.Equal(t, relock.Renewed{Locks: 1}, event)
		}
		require.NoError(t, section.Err())
	})
}

func TestNothingIsRenewedAfterUnlock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		section := enter(t, t.Context(), m.NewLock("a"))
		pass(time.Minute)
		require.NoError(t, m.NewLock("a").Unlock(section))
		m.net.Reset()
		pass(time.Hour)
		require.Zero(t, m.net.Commands())
	})
}

func TestReentryAndPartialExitRenewTheLeaseOnTheirWay(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		w.warm(m)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		m.net.Reset()
		// Something every 9 s: the watchdog has nothing to do.
		for range 10 {
			pass(9 * time.Second)
			inner := enter(t, section, l)
			require.Equal(t, ttl, w.lease("a"))
			require.Equal(t, ttl-margin(ttl), l.Remaining(section))
			pass(9 * time.Second)
			require.NoError(t, l.Unlock(inner))
			require.Equal(t, ttl, w.lease("a"))
			require.Equal(t, ttl-margin(ttl), l.Remaining(section))
		}
		require.Equal(t, 20, m.scripts())
		require.NoError(t, l.Unlock(section))
	})
}

// outages are ways in which Redis does not confirm a renewal. Each returns its end.
var outages = map[string]func(w *world, m *member) (end func()){
	"error replies": func(w *world, _ *member) func() {
		w.SetError("LOADING Redis is loading the dataset in memory")
		return func() { w.SetError("") }
	},
	"permanent error replies": func(w *world, _ *member) func() {
		w.SetError("NOAUTH Authentication required.")
		return func() { w.SetError("") }
	},
	"the server is down": func(_ *world, m *member) func() {
		m.net.Refuse()
		m.net.Cut()
		return m.net.Heal
	},
	"silence": func(_ *world, m *member) func() {
		m.net.Partition()
		return m.net.Heal
	},
	"lost replies": func(_ *world, m *member) func() {
		return m.net.On(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF)).Remove
	},
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
				section := enter(t, t.Context(), l)
				pass(25 * time.Second) // the last renewal was 5 s ago
				end := outage(w, m)
				m.net.Reset()
				pass(23 * time.Second)
				require.NoError(t, section.Err(), "the deadline is 1.7 s away")
				require.Less(t, m.net.Commands(), 200, "no hot loop")
				end()
				pass(1500 * time.Millisecond)
				require.NoError(t, section.Err())
				require.Greater(t, l.Remaining(section), 15*time.Second, "a try came in time")
				pass(10 * ttl)
				require.NoError(t, section.Err())

				failed := 0
				for _, event := range eventsOf[relock.Renewed](&r) {
					if event.Failed > 0 {
						failed++
						require.Equal(t, 1, event.Locks)
						require.Equal(t, 1, event.Failed)
						require.Error(t, event.Err)
					} else {
						require.NoError(t, event.Err)
					}
				}
				require.GreaterOrEqual(t, failed, 3)
				warnings := log.about("renewal not confirmed")
				require.Len(t, warnings, failed)
				require.Equal(t, slog.LevelWarn, warnings[0].level)
				require.Empty(t, eventsOf[relock.Lost](&r))
				require.NoError(t, l.Unlock(section))
				pass(ttl)
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestTriesOfARenewalHaveGrowingPausesThatBeginAnewAfterASuccess(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		_ = enter(t, t.Context(), m.NewLock("a"))
		for range 2 {
			before := len(timesOf[relock.Renewed](&r))
			failing := m.net.On(redistest.Named("EVALSHA"), redistest.Answer("-LOADING Redis is loading the dataset in memory"))
			pass(relock.DefaultTTL/3 + 4*time.Second)
			times := timesOf[relock.Renewed](&r)[before:]
			require.Greater(t, len(times), 8)
			var pauses []time.Duration
			for i, at := range times[1:9] {
				pauses = append(pauses, at.Sub(times[i])/time.Millisecond)
			}
			require.Equal(t, []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000}, pauses, "in milliseconds")
			failing.Remove()
			pass(2 * time.Second)
		}
	})
}

func TestAShortLeaseThatIsRenewedWithALongOneIsTriedAgainInTime(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const long, short = 3 * time.Second, 100 * time.Millisecond
		m := w.NewClient()
		_ = enter(t, t.Context(), m.NewLock("a", relock.WithTTL(long)))
		pass(long/3 - short/3 + time.Millisecond) // the renewal of the long one is due a millisecond before that of the short one
		section := enter(t, t.Context(), m.NewLock("b", relock.WithTTL(short)))
		silent := m.net.On(redistest.Named("EVALSHA"), redistest.Stall()).Times(1)
		pass(time.Second)
		require.Equal(t, 1, silent.Hits())
		require.NoError(t, section.Err())
	})
}

func TestARenewalThatOutlastsItsHoldIsNoSuccess(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, l *relock.Lock, section context.Context){
		"lost": func(t *testing.T, _ *relock.Lock, section context.Context) {
			t.Helper()
			_, cause := ends(t, section)
			require.ErrorIs(t, cause, relock.ErrLockLost)
		},
		"unlocked": func(t *testing.T, l *relock.Lock, section context.Context) {
			t.Helper()
			pass(relock.DefaultTTL/3 + time.Second)
			require.Error(t, l.Unlock(section))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				var log logbook
				m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
				w.warm(m)
				l := m.NewLock("a")
				section := enter(t, t.Context(), l)
				m.net.Partition() // silent from now on
				end(t, l, section)
				settle()
				again := len(log.about("trying again"))
				pass(time.Minute)
				require.Len(t, log.about("trying again"), again, "what has ended is not tried again")
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

func TestARenewalOfWhatWasUnlockedMeanwhileIsNeitherASuccessNorALoss(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		pass(relock.DefaultTTL/3 + time.Second) // so that the script is known
		late := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		pass(relock.DefaultTTL / 3)
		require.Equal(t, 1, late.Hits())
		require.NoError(t, l.Unlock(section))
		late.LetGo()
		pass(time.Minute)
		require.Len(t, eventsOf[relock.Renewed](&r), 1, "the first one")
		require.Empty(t, eventsOf[relock.Lost](&r))
	})
}

func TestAtTheDeadlineTheSectionEndsBeforeItsLeaseDoes(t *testing.T) {
	for name, outage := range outages {
		if name == "lost replies" {
			continue // then the lease is renewed all the time, and only the holder does not know
		}
		for _, ttl := range []time.Duration{100 * time.Millisecond, 30 * time.Second, time.Hour} {
			t.Run(fmt.Sprint(name, " ", ttl), func(t *testing.T) {
				fake(t, func(t *testing.T, w *world) {
					var r recorder
					var log logbook
					m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
					l := m.NewLock("a")
					outer := enter(t, t.Context(), l)
					inner := enter(t, outer, l)
					begun := time.Now()
					token := l.Token(outer)
					holder, _ := relock.HolderFrom(outer)
					pass(ttl / 4)

					end := outage(w, m)
					_, cause := ends(t, inner)
					require.Equal(t, ttl-margin(ttl), time.Since(begun))
					require.GreaterOrEqual(t, w.lease("a"), margin(ttl).Truncate(time.Millisecond), "nobody else can have it yet")
					settle()
					require.Equal(t, &relock.LostError{Name: "a", Holder: holder, Token: token, Reason: relock.LossExpired}, cause)
					require.Equal(t, cause, context.Cause(outer))
					require.False(t, l.Held(inner))
					require.Zero(t, l.Remaining(inner))
					require.Zero(t, l.Token(inner))
					require.Zero(t, l.Count(inner))

					lost := eventsOf[relock.Lost](&r)
					require.Equal(t, []relock.Lost{{
						Name: "a", Holder: holder, Token: token, TTL: ttl, Reason: relock.LossExpired, Held: ttl - margin(ttl), MaxDepth: 2,
					}}, lost, "told once, however many entries it had")
					require.Equal(t, []logLine{{slog.LevelError, "relock: lock lost", map[string]any{
						"lock": "a", "holder": holder.String(), "token": token, "reason": "expired",
					}}}, log.about("lost"))

					require.Equal(t, cause, l.Unlock(inner), "at once, and without Redis")
					require.Equal(t, cause, l.Unlock(outer))
					require.ErrorIs(t, l.Unlock(outer), relock.ErrNotHeld)
					end()
					pass(2 * ttl)
					w.requireNothingLeft("a")
				})
			})
		}
	}
}

func TestALostReplyLeavesNoLeaseBehindThatKeepsOthersOut(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		section := enter(t, t.Context(), m.NewLock("a"))
		waiting := begin(t, t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a").Lock)
		pass(ttl) // every script is known to the server
		rule := m.net.On(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		// Every renewal arrives, so Redis keeps the lease while the holder has to believe that it is over.
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.Greater(t, w.lease("a"), ttl/2)
		rule.Remove()
		_ = waiting.section()
		require.Less(t, waiting.took(), 2*ttl+3*time.Second, "what is left of the lease is given back")
	})
}

func TestTheNextHolderNeverEntersBeforeThePreviousSectionHasEnded(t *testing.T) {
	for name, outage := range outages {
		if name == "error replies" || name == "permanent error replies" {
			continue // these are everybody's
		}
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				const ttl = 10 * time.Second
				m := w.NewClient(relock.WithTTL(ttl))
				section := enter(t, t.Context(), m.NewLock("a"))
				waiting := begin(t, t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a").Lock)
				pass(17 * time.Second)
				end := outage(w, m)
				ended := make(chan time.Time, 1)
				go func() {
					<-section.Done()
					ended <- time.Now()
				}()
				next := waiting.section()
				require.True(t, (<-ended).Before(waiting.ended))
				end()
				pass(5 * ttl)
				require.NoError(t, next.Err(), "what comes late from the first does not touch the second")
			})
		})
	}
}

func TestWhatASilentNetworkHeldBackDoesNotTouchTheNextHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		inner := enter(t, section, l)
		m.net.Partition() // what is sent from now on arrives at Heal
		pass(ttl / 2)
		unlock := make(chan error, 1)
		go func() { unlock <- l.Unlock(inner) }()
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.Error(t, <-unlock)

		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		next := enter(t, t.Context(), other)
		deeper := enter(t, next, other)
		pass(ttl/3 - time.Millisecond)
		lease := w.lease("a")
		m.net.Heal()
		settle()
		state, err := other.State(t.Context())
		require.NoError(t, err)
		holder, _ := relock.HolderFrom(next)
		require.Equal(t, holder, state.Holder)
		require.Equal(t, 2, state.Count)
		require.Equal(t, lease.Truncate(time.Millisecond), state.TTL)
		pass(5 * ttl)
		require.NoError(t, deeper.Err())
		require.NoError(t, other.Unlock(deeper))
		require.NoError(t, other.Unlock(next))
		pass(5 * ttl)
		w.requireNothingLeft("a")
	})
}

func TestALossIsToldAtTheNextRenewal(t *testing.T) {
	const ttl = 30 * time.Second
	for name, loss := range map[string]func(t *testing.T, w *world, l *relock.Lock){
		"the key is deleted":    func(_ *testing.T, w *world, _ *relock.Lock) { w.Del(base("a")) },
		"everything is deleted": func(_ *testing.T, w *world, _ *relock.Lock) { w.FlushAll() },
		"ForceUnlock": func(t *testing.T, _ *world, l *relock.Lock) {
			t.Helper()
			require.NoError(t, l.ForceUnlock(t.Context()))
		},
		"the lease is cut": func(_ *testing.T, w *world, _ *relock.Lock) { w.SetTTL(base("a"), time.Millisecond) },
		"another has it":   func(_ *testing.T, w *world, _ *relock.Lock) { w.Del(base("a")); w.HSet(base("a"), "x:1:1", "1") },
		"a key of another type": func(t *testing.T, w *world, _ *relock.Lock) {
			t.Helper()
			w.Del(base("a"))
			require.NoError(t, w.Set(base("a"), "x"))
		},
		"the scripts are forgotten": nil, // that is no loss
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				var log logbook
				m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
				l := m.NewLock("a")
				// Others in the same batch keep theirs.
				bystander := enter(t, t.Context(), m.NewLock("b"))
				section := enter(t, t.Context(), l)
				pass(25 * time.Second)
				if loss == nil {
					require.NoError(t, m.redis.ScriptFlush(t.Context()).Err())
					pass(10 * ttl)
					require.NoError(t, section.Err())
					return
				}
				loss(t, w, l)
				hit := 1
				if name == "everything is deleted" {
					hit = 2
				}
				took, cause := ends(t, section)
				require.Equal(t, 5*time.Second, took)
				require.ErrorIs(t, cause, relock.ErrLockLost)
				var lost *relock.LostError
				require.ErrorAs(t, cause, &lost)
				require.Equal(t, relock.LossTaken, lost.Reason)
				require.Len(t, eventsOf[relock.Lost](&r), hit)
				require.Len(t, log.about("lost"), hit)
				events := eventsOf[relock.Renewed](&r)
				require.Equal(t, relock.Renewed{Locks: 2, Lost: hit}, events[len(events)-1])
				require.Equal(t, cause, l.Unlock(section))
				pass(10 * ttl)
				require.Equal(t, hit == 1, m.NewLock("b").Held(bystander))
			})
		})
	}
}

func TestAProcessThatWasPausedLearnsThatItsLockIsLost(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		var r recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		waiting := begin(t, t.Context(), other.Lock)
		// A renewal goes out, and the process hears the answer only after more than a lease.
		rule := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		m.net.StallPubSub()
		pass(ttl / 3)
		require.Equal(t, 1, rule.Hits())
		m.net.Partition()
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		next := waiting.section()
		pass(ttl)
		rule.LetGo()
		m.net.Heal()
		pass(5 * ttl)
		require.Len(t, eventsOf[relock.Lost](&r), 1)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.NoError(t, next.Err())
		require.NoError(t, other.Unlock(next))
		w.requireNothingLeft("a")
	})
}

func TestRemainingIsNeverMoreThanTheLeaseOnTheServer(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		for range 20 {
			held := enter(t, t.Context(), other)
			m.net.DelayOneWay(rand.N(time.Second/2), rand.N(time.Second/2))
			a := begin(t, t.Context(), l.Lock) // with a late grant too
			pass(rand.N(3 * ttl))
			require.NoError(t, other.Unlock(held))
			section := a.section()
			for range 20 {
				remaining, lease := l.Remaining(section), w.lease("a")
				require.Positive(t, remaining)
				require.LessOrEqual(t, remaining, lease-margin(ttl)+time.Millisecond)
				m.net.DelayOneWay(rand.N(time.Second/5), rand.N(time.Second/5))
				pass(rand.N(ttl))
			}
			require.NoError(t, l.Unlock(section))
		}
	})
}

func TestASectionSurvivesALinkThatIsSlow(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		m.net.Delay(ttl / 10)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		pass(20 * ttl)
		require.NoError(t, section.Err())
		require.NoError(t, l.Unlock(section))
	})
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, part := range []time.Duration{6, 5, 4} { // the answer to a renewal is later than the watchdog waits for it
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(ttl))
				l := m.NewLock("a")
				section := enter(t, t.Context(), l)
				pass(ttl) // every script and connection is there
				m.net.Delay(ttl / part)
				pass(10 * ttl)
				require.NoError(t, section.Err(), "%s, a round trip of a %dth", ttl, part)
				require.NoError(t, l.Unlock(section))
			})
		}
	}
}

func TestADeadlineThatHasPassedStaysPassedThoughARenewalIsConfirmedLate(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout = time.Minute }, relock.WithTTL(10*time.Second))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		pass(4 * time.Second)
		m.net.DelayOneWay(0, 9*time.Second)
		pass(4 * time.Second) // the second renewal has reached Redis
		closing := begin(t, t.Context(), func(ctx context.Context) (context.Context, error) { return ctx, m.Close() })
		pass(6 * time.Second)
		require.False(t, l.Held(context.WithoutCancel(section)))
		pass(2 * time.Second)
		_ = closing.section()
		require.Positive(t, w.lease("a"))
		require.False(t, l.Held(context.WithoutCancel(section)), "others may have thought so")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestALateFirstTryOfALockThatIsTakenByThenIsTakenBackLongBeforeItsLeaseEnds(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, operator := w.NewClient(), w.NewClient()
		w.warm(m)
		l := m.NewLock("a")
		stuck := m.net.On(redistest.Named("EVALSHA"), redistest.Hold()).Times(1)
		section := enter(t, t.Context(), l)
		require.NoError(t, operator.NewLock("a").ForceUnlock(t.Context()))
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		pass(time.Second)
		require.True(t, w.free("a"))
		require.Len(t, stuck.Release(t), 1)
		pass(5 * time.Second)
		require.True(t, w.free("a"), "it got the lock, for nobody")
	})
}

func TestALossThatIsAnsweredLateIsTold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 9 * time.Second
		var r recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		pass(ttl)
		w.Del(base("a"))
		m.net.Delay(ttl / 4)
		took, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.LessOrEqual(t, took, ttl/3+ttl/4)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.Len(t, eventsOf[relock.Lost](&r), 1)
		require.Equal(t, relock.LossTaken, eventsOf[relock.Lost](&r)[0].Reason)
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// What is not renewed.

func TestADoneContextStopsRenewalAndTheLeaseRunsOutWithinOneTTL(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		var r recorder
		l := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks())).NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		section := enter(t, request, l)
		start := time.Now()
		waiting := begin(t, t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a").Lock)
		pass(3*ttl + time.Second)
		renewals := len(eventsOf[relock.Renewed](&r))
		cancel()
		done := time.Now()
		_ = waiting.section()
		require.LessOrEqual(t, waiting.ended.Sub(done), ttl+10*time.Millisecond)
		require.Len(t, eventsOf[relock.Renewed](&r), renewals)
		lost := eventsOf[relock.Lost](&r)
		require.Len(t, lost, 1)
		require.Equal(t, relock.LossAbandoned, lost[0].Reason)
		require.Less(t, timesOf[relock.Lost](&r)[0].Sub(start), 4*ttl-margin(ttl)+time.Millisecond, "told at the deadline, before anybody else can have it")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestADeadlineOfTheRequestStopsRenewalToo(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		request, cancel := context.WithTimeout(t.Context(), 5*ttl)
		defer cancel()
		section := enter(t, request, l)
		_ = enter(t, section, l)
		pass(5*ttl - time.Millisecond)
		require.False(t, w.free("a"))
		pass(ttl + time.Millisecond)
		require.True(t, w.free("a"))
	})
}

func TestTheDeadlineOfARequestCountsThoughAnOuterSectionWasLeftFirst(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		c := w.NewClient(relock.WithTTL(ttl))
		a, b := c.NewLock("a"), c.NewLock("b")
		outer := enter(t, t.Context(), a)
		request, cancel := context.WithTimeout(outer, time.Minute)
		defer cancel()
		inner := enter(t, request, b)
		require.NoError(t, a.Unlock(outer))
		pass(time.Minute - time.Second)
		require.True(t, b.Held(inner))
		pass(2 * ttl)
		require.True(t, w.free("b"))
	})
}

func TestUnlockAfterTheRequestIsDoneFreesTheLockAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		section := enter(t, request, l)
		cancel()
		pass(relock.DefaultTTL / 2) // the work takes a while to notice
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestAnInnerExitAfterTheRequestIsDoneDoesNotRenewTheLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		outer := enter(t, request, l)
		inner := enter(t, outer, l)
		cancel()
		pass(ttl / 2)
		require.NoError(t, l.Unlock(inner))
		require.LessOrEqual(t, w.lease("a"), ttl/2, "a lock outlives its request by one TTL at most")
		pass(ttl / 2)
		require.True(t, w.free("a"))
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

func TestAHoldThatWasLeftToRunOutIsRenewedOnceSomebodyEntersItAgain(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		var r recorder
		l := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks())).NewLock("a")
		ctx, cancel := context.WithCancel(holderContext(t))
		outer := enter(t, ctx, l)
		cancel()
		pass(12 * time.Second)
		require.Empty(t, eventsOf[relock.Renewed](&r))
		holder, _ := relock.HolderFrom(outer)
		entered := time.Now()
		inner := enter(t, relock.WithHolder(t.Context(), holder), l)
		require.Equal(t, 2, l.Count(inner))
		pass(ttl / 3)
		times := timesOf[relock.Renewed](&r)
		require.Len(t, times, 1)
		require.Equal(t, ttl/3, times[0].Sub(entered))
	})
}

func TestAHoldIsRenewedAsLongAsOneOfItsSectionsIsWorkedIn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		parent := relock.WithHolder(t.Context(), relock.NewHolder())
		short, cancel := context.WithCancel(parent)
		one := enter(t, short, l)
		two := enter(t, parent, l)
		cancel()
		pass(10 * ttl)
		require.ErrorIs(t, one.Err(), context.Canceled)
		require.NoError(t, two.Err())
		require.True(t, l.Held(two))
		require.NoError(t, l.Unlock(two))
		pass(ttl)
		require.True(t, w.free("a"), "the other one's context is done")
	})
}

// forget locks, and drops the section without Unlock.
//
//go:noinline
func forget(t *testing.T, ctx context.Context, l *relock.Lock) relock.Holder { //nolint:revive // t comes first in a test helper
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	holder, _ := relock.HolderFrom(section)
	return holder
}

func TestALeakedHoldIsReportedAndItsLeaseRunsOut(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		var r recorder
		var log logbook
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
		kept := enter(t, t.Context(), m.NewLock("b"))
		holder := forget(t, t.Context(), m.NewLock("a"))
		begun := time.Now()
		waiting := begin(t, t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a").Lock)

		// The garbage collector tells in its own time; the watchdog hears of it at a renewal.
		for range 1000 {
			runtime.GC()
			pass(ttl / 3)
			if len(eventsOf[relock.Leaked](&r)) > 0 {
				break
			}
		}
		events := eventsOf[relock.Leaked](&r)
		require.Len(t, events, 1)
		require.Positive(t, events[0].Token)
		require.Equal(t, relock.Leaked{Name: "a", Holder: holder, Token: events[0].Token, Held: time.Since(begun)}, events[0])
		lines := log.about("leaked")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelError, lines[0].level)
		require.Equal(t, map[string]any{"lock": "a", "holder": holder.String(), "token": events[0].Token}, lines[0].attrs)

		reported := time.Now()
		_ = waiting.section()
		require.LessOrEqual(t, waiting.ended.Sub(reported), ttl)
		lost := eventsOf[relock.Lost](&r)
		require.Len(t, lost, 1)
		require.Equal(t, relock.LossLeaked, lost[0].Reason)
		require.NoError(t, kept.Err())
		require.True(t, m.NewLock("b").Held(kept))
	})
}

func TestALeakIsReportedAlsoWhereNothingIsRenewed(t *testing.T) {
	for name, option := range map[string]relock.Option{
		"fixed lease":    relock.WithFixedLease(30 * time.Second),
		"the least hold": relock.WithMaxHold(30 * time.Second),
		"a longer one":   relock.WithMaxHold(time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				l := w.NewClient(relock.WithTTL(30*time.Second), option, relock.WithHooks(r.Hooks())).NewLock("a")
				forget(t, t.Context(), l)
				for range 20 { // the garbage collector tells in its own time
					runtime.GC()
					settle()
				}
				pass(time.Minute)
				require.Len(t, eventsOf[relock.Leaked](&r), 1)
				require.Len(t, eventsOf[relock.Lost](&r), 1)
				require.True(t, w.free("a"))
			})
		})
	}
}

func TestALeakOfOneEntryDoesNotEndTheOthers(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		var r recorder
		l := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks())).NewLock("a")
		outer := enter(t, t.Context(), l)
		_ = forget(t, outer, l)
		for range 1000 {
			runtime.GC()
			pass(ttl / 3)
			if len(eventsOf[relock.Leaked](&r)) > 0 {
				break
			}
		}
		require.Len(t, eventsOf[relock.Leaked](&r), 1)
		pass(10 * ttl)
		require.NoError(t, outer.Err())
		require.True(t, l.Held(outer))
		require.Len(t, eventsOf[relock.Leaked](&r), 1, "it is told once")
		// Whoever leaves last cannot free the lock, as an entry is still open: its lease does.
		require.NoError(t, l.Unlock(outer))
		pass(ttl)
		require.True(t, w.free("a"))
	})
}

func TestALossOfASectionThatIsWorkedInIsNoLeakThoughAnEntryWasDropped(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		_ = forget(t, outer, l)
		for range 1000 {
			runtime.GC()
			if pass(relock.DefaultTTL / 3); len(eventsOf[relock.Leaked](&r)) > 0 {
				break
			}
		}
		m.net.Partition()
		_, cause := ends(t, outer)
		m.net.Heal()
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, relock.LossExpired, lost.Reason)
		require.Len(t, eventsOf[relock.Leaked](&r), 1)
	})
}

// forgetNested enters l twice, one inside the other, and drops both contexts.
//
//go:noinline
func forgetNested(t *testing.T, l *relock.Lock) {
	t.Helper()
	section, err := l.Lock(context.Background())
	require.NoError(t, err)
	forget(t, section, l)
}

func TestEachEntryThatIsDroppedIsReportedAndTheLeaseRunsOut(t *testing.T) {
	for name, drop := range map[string]func(t *testing.T, l *relock.Lock){
		"one inside the other": forgetNested,
		"side by side": func(t *testing.T, l *relock.Lock) {
			t.Helper()
			shared := relock.WithHolder(context.Background(), relock.NewHolder())
			forget(t, shared, l)
			forget(t, shared, l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				const ttl = 30 * time.Second
				var leaked atomic.Int64 // and no event of an acquire, which has the caller's context
				l := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{Leaked: func(relock.Leaked) { leaked.Add(1) }})).NewLock("a")
				drop(t, l)
				for range 1000 {
					runtime.GC()
					if pass(ttl / 3); leaked.Load() == 2 {
						break
					}
				}
				require.EqualValues(t, 2, leaked.Load())
				pass(ttl)
				require.True(t, w.free("a"))
			})
		})
	}
}

func TestALeakIsReportedWhoeverFindsTheLossFirst(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		outer := enter(t, t.Context(), l)
		_ = forget(t, outer, l)
		pass(relock.DefaultTTL / 3) // from then on it is watched
		for range 20 {
			runtime.GC()
			settle()
		}
		require.Empty(t, eventsOf[relock.Leaked](&r), "the watchdog has not looked since")
		w.Del(base("a"))
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		pass(time.Hour)
		require.Len(t, eventsOf[relock.Lost](&r), 1)
		require.Len(t, eventsOf[relock.Leaked](&r), 1)
	})
}

func TestALeakIsReportedByCloseIfTheWatchdogHasNotComeToIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		request := &overheard{Context: context.Background(), done: make(chan struct{})}
		holder := forget(t, request, m.NewLock("a"))
		pass(relock.DefaultTTL / 3) // from then on it is watched
		for range 20 {
			runtime.GC()
			settle()
		}
		require.Empty(t, eventsOf[relock.Leaked](&r), "the watchdog has not looked since")
		require.NoError(t, m.Close())
		leaks := eventsOf[relock.Leaked](&r)
		require.Len(t, leaks, 1)
		require.Equal(t, holder, leaks[0].Holder)
		require.Zero(t, request.heard.Load(), "the request's context has nothing of the section any more")
	})
}

func TestALeakIsReportedAlthoughAHoldLastsThatBeganInTheSection(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 30 * time.Second
		var leaked atomic.Int64
		c := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{Leaked: func(relock.Leaked) { leaked.Add(1) }}))
		one, two := c.NewLock("one"), c.NewLock("two")
		shared := relock.WithHolder(t.Context(), relock.NewHolder())
		kept := func() context.Context { // in a function of its own: nothing here refers to the section of two afterwards
			outer, err := two.Lock(shared)
			require.NoError(t, err)
			first, err := one.Lock(outer)
			require.NoError(t, err)
			kept := enter(t, shared, one)
			require.NoError(t, one.Unlock(first))
			return kept
		}()
		for range 1000 {
			runtime.GC()
			pass(ttl / 3)
			if leaked.Load() > 0 {
				break
			}
		}
		require.EqualValues(t, 1, leaked.Load())
		require.True(t, one.Held(kept))
		require.NoError(t, one.Unlock(kept))
	})
}

func TestASectionInUseIsNoLeak(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		derived, cancel := context.WithCancel(section) // only this refers to the section from now on
		defer cancel()
		for range 5 {
			runtime.GC()
			pass(relock.DefaultTTL)
		}
		require.Empty(t, eventsOf[relock.Leaked](&r))
		require.True(t, l.Held(derived))
		require.NoError(t, l.Unlock(derived))
	})
}

func TestASectionThatIsNeverUnlockedIsNotRenewedAfterClose(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		c := w.NewClient(relock.WithTTL(ttl))
		section := enter(t, t.Context(), c.NewLock("a"))
		pass(10 * ttl)
		require.NoError(t, c.Close())
		left := w.lease("a")
		pass(left - time.Millisecond)
		require.False(t, w.free("a"))
		pass(time.Millisecond)
		require.True(t, w.free("a"))
		require.Zero(t, c.NewLock("a").Remaining(section))
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// WithMaxHold and WithFixedLease.

func TestWithMaxHoldEndsTheHoldThen(t *testing.T) {
	for _, c := range []struct{ ttl, maxHold time.Duration }{
		{30 * time.Second, 30 * time.Second},
		{30 * time.Second, 30*time.Second + time.Millisecond},
		{30 * time.Second, 40 * time.Second},
		{30 * time.Second, time.Hour},
		{100 * time.Millisecond, 150 * time.Millisecond},
		{100 * time.Millisecond, time.Second},
		{10 * time.Millisecond, 25 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(c.ttl, " ", c.maxHold), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithTTL(c.ttl), relock.WithMaxHold(c.maxHold), relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				section := enter(t, t.Context(), l)
				waiting := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
				m.net.Reset()
				took, cause := ends(t, section)
				require.LessOrEqual(t, took, c.maxHold)
				require.GreaterOrEqual(t, took, c.maxHold-margin(c.ttl)-relock.MinTTL)
				var lost *relock.LostError
				require.ErrorAs(t, cause, &lost)
				require.Equal(t, relock.LossMaxHold, lost.Reason)
				require.Less(t, m.net.Commands(), 20+4*int(c.maxHold/c.ttl), "no hot loop towards the end")

				_ = waiting.section()
				require.GreaterOrEqual(t, waiting.took(), took, "not before the section has ended")
				require.LessOrEqual(t, waiting.took(), c.maxHold, "and not later than promised")
				require.Len(t, eventsOf[relock.Lost](&r), 1)
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			})
		})
	}
}

func TestALossWithMaxHoldSaysWhetherItWasTheLimit(t *testing.T) {
	const ttl, maxHold = 30 * time.Second, time.Minute
	for name, test := range map[string]struct {
		silent time.Duration // from then on
		reason relock.LossReason
	}{
		"an outage long before": {5 * time.Second, relock.LossExpired},
		"an outage at the end":  {maxHold - 5*time.Second, relock.LossMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(maxHold))
				section := enter(t, t.Context(), m.NewLock("a"))
				pass(test.silent)
				m.net.Partition()
				_, cause := ends(t, section)
				var lost *relock.LostError
				require.ErrorAs(t, cause, &lost)
				require.Equal(t, test.reason, lost.Reason)
				m.net.Heal()
			})
		})
	}
}

func TestALossWithMaxHoldThatUnlockFindsSaysWhetherItWasTheLimitToo(t *testing.T) {
	const ttl = 30 * time.Second
	for maxHold, reason := range map[time.Duration]relock.LossReason{ttl: relock.LossMaxHold, 2 * ttl: relock.LossExpired} {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(maxHold))
			l := m.NewLock("a")
			section := enter(t, t.Context(), l)
			require.NoError(t, m.Close()) // so that no watchdog is there before
			pass(2 * maxHold)
			var lost *relock.LostError
			require.ErrorAs(t, l.Unlock(section), &lost)
			require.Equal(t, reason, lost.Reason, "%s", maxHold)
		})
	}
}

func TestWithMaxHoldIsNotMovedByReentryOrPartialExit(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl, maxHold = 30 * time.Second, time.Minute
		l := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(maxHold)).NewLock("a")
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
		begun := time.Now()
		for section.Err() == nil && time.Since(begun) < 2*maxHold {
			pass(4 * time.Second)
			inner, err := l.Lock(section)
			if err != nil {
				break
			}
			pass(time.Second)
			if l.Unlock(inner) != nil {
				break
			}
		}
		_ = waiting.section()
		require.LessOrEqual(t, waiting.took(), maxHold+10*time.Millisecond)
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
	})
}

// What was asked for first is the rest of the longest hold as it was then.
func TestWithMaxHoldIsNotMovedByWhatIsSentAgainOfAReentryOrPartialExit(t *testing.T) {
	for name, call := range map[string]func(l *relock.Lock, section, inner context.Context) locking{
		"re-entry": func(l *relock.Lock, section, _ context.Context) locking {
			return func(context.Context) (context.Context, error) { return l.Lock(section) }
		},
		"partial exit": func(l *relock.Lock, _, inner context.Context) locking {
			return func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(inner) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				const ttl, maxHold = 30 * time.Second, 40 * time.Second
				m := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(maxHold))
				w.warm(m)
				l := m.NewLock("a")
				section := enter(t, t.Context(), l)
				waiting := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
				inner := enter(t, section, l)
				pass(maxHold - 20*time.Second)
				unanswered := m.net.On(redistest.Named("EVALSHA"), redistest.CutBefore(redistest.EOF))
				nested := begin(t, t.Context(), call(l, section, inner))
				pass(8 * time.Second)
				require.True(t, nested.waits())
				unanswered.Remove()
				_ = nested.section()
				_, cause := ends(t, section)
				var lost *relock.LostError
				require.ErrorAs(t, cause, &lost)
				require.Equal(t, relock.LossMaxHold, lost.Reason)
				_ = waiting.section()
				require.LessOrEqual(t, waiting.took(), maxHold)
			})
		})
	}
}

func TestWithMaxHoldIsNotMovedByAReentryThatIsSentAgainAsItsScriptWasNotThere(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const maxHold = 40 * time.Second
		m := w.NewClient(relock.WithMaxHold(maxHold))
		w.warm(m)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		began := time.Now()
		pass(maxHold / 2)
		rdb, _ := w.NewRedis()
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		m.net.Delay(2800 * time.Millisecond)
		enter(t, section, l)
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.LessOrEqual(t, time.Since(began), maxHold)
	})
}

func TestASectionThatEndsBeforeItsMaxHoldIsLikeAnyOther(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient(relock.WithMaxHold(10 * time.Minute)).NewLock("a")
		for range 3 {
			section := enter(t, t.Context(), l)
			pass(9 * time.Minute)
			require.NoError(t, section.Err())
			require.NoError(t, l.Unlock(section), "each hold has the whole time")
			w.requireNothingLeft("a")
		}
	})
}

func TestWithFixedLeaseEndsThenAndNothingRenewsIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const lease = time.Minute
		var r recorder
		m := w.NewClient(relock.WithFixedLease(lease), relock.WithHooks(r.Hooks()))
		w.warm(m)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
		require.Equal(t, lease-margin(lease), l.Remaining(section))

		// Re-entry and partial exit leave the lease alone.
		pass(lease / 2)
		inner := enter(t, section, l)
		pass(lease / 4)
		require.NoError(t, l.Unlock(inner))
		require.Equal(t, lease/4, w.lease("a"))
		require.Equal(t, lease/4-margin(lease), l.Remaining(section))

		took, cause := ends(t, section)
		require.Equal(t, lease/4-margin(lease), took)
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, relock.LossExpired, lost.Reason)
		_ = waiting.section()
		require.GreaterOrEqual(t, waiting.took(), lease-margin(lease))
		require.LessOrEqual(t, waiting.took(), lease+10*time.Millisecond)
		require.Empty(t, eventsOf[relock.Renewed](&r))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestAFixedLeaseThatIsUnlockedInTimeIsLikeAnyOther(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient(relock.WithFixedLease(time.Minute)).NewLock("a")
		section := enter(t, t.Context(), l)
		pass(30 * time.Second)
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

// A grant says no more than that the lease began after the waiter last knew that the lock was not its own.
func TestAFixedLeaseThatIsGrantedIsAskedForWhereMoreThanATenthOfItMayBeGone(t *testing.T) {
	const lease = time.Minute
	const most = lease/10 - lease/100 - 2*time.Millisecond // beside the margin
	for name, c := range map[string]struct {
		waited, left time.Duration
		asked        int
	}{
		"a tenth":             {most, lease - lease/10, 0},
		"more than a tenth":   {most + time.Nanosecond, lease - margin(lease), 1},
		"almost half of it":   {lease/2 - 2*margin(lease), lease - margin(lease), 1},
		"more than all of it": {2 * lease, lease - margin(lease), 1},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				owner := w.NewClient(relock.WithTTL(time.Hour)).NewLock("a")
				section := enter(t, t.Context(), owner)
				m := w.NewClient(relock.WithFixedLease(lease))
				w.warm(m)
				l := m.NewLock("a")
				waiting := begin(t, t.Context(), l.Lock)
				pass(c.waited)
				m.net.Reset()
				require.NoError(t, owner.Unlock(section))
				granted := waiting.section()
				require.Equal(t, c.left, l.Remaining(granted))
				require.Equal(t, c.asked, m.scripts())
				require.Equal(t, lease, w.lease("a"))
				require.NoError(t, l.Unlock(granted))
			})
		})
	}
}

func TestExtendMovesTheEndOfAFixedLeaseAndNeverShortensIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const lease = time.Minute
		l := w.NewClient(relock.WithFixedLease(lease)).NewLock("a")
		section := enter(t, t.Context(), l)
		pass(lease / 2)
		require.NoError(t, l.Extend(section, lease))
		require.Equal(t, lease, w.lease("a"))
		require.Equal(t, lease-margin(lease), l.Remaining(section))

		require.NoError(t, l.Extend(section, time.Second))
		require.Equal(t, lease, w.lease("a"), "it never shortens")
		require.Equal(t, lease-margin(lease), l.Remaining(section))

		require.NoError(t, l.Extend(section, time.Hour))
		require.Equal(t, time.Hour, w.lease("a"))
		took, cause := ends(t, section)
		require.Equal(t, time.Hour-margin(time.Hour), took)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.ErrorIs(t, l.Extend(section, lease), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.ErrorIs(t, l.Extend(section, lease), relock.ErrNotHeld)
		pass(time.Second)
		w.requireNothingLeft("a")
	})
}

func TestAnUnlockAfterExtendThatRedisDoesNotConfirmIsTakenBackForAsLongAsTheLeaseMayLast(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(5 * time.Second))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		require.NoError(t, l.Extend(section, time.Hour))
		m.net.Partition()
		require.ErrorContains(t, l.Unlock(section), "free within 59m5", "what may be left by then")
		pass(30 * time.Minute)
		require.False(t, w.free("a"))
		m.net.Heal()
		pass(10 * time.Second)
		w.requireNothingLeft("a")
	})
}

func TestAnUnlockThatRedisDoesNotConfirmKnowsTheLongestLeaseThatExtendHasAskedFor(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Minute))
		w.warm(m)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		m.net.Partition()
		for _, d := range []time.Duration{time.Hour, time.Second} {
			ctx, cancel := context.WithTimeout(section, 5*time.Second)
			require.ErrorIs(t, l.Extend(ctx, d), context.DeadlineExceeded)
			cancel()
		}
		require.ErrorContains(t, l.Unlock(section), "free within 1h0m3", "the first one may run yet")
		m.net.Heal()
		pass(10 * time.Second)
		w.requireNothingLeft("a")
	})
}

func TestAnExtendThatIsRefusedHasAskedForNoLease(t *testing.T) {
	for name, refused := range map[string]func(t *testing.T, m *member, l *relock.Lock, section context.Context){
		"its entry is left": func(t *testing.T, _ *member, l *relock.Lock, section context.Context) {
			t.Helper()
			inner := enter(t, section, l)
			require.NoError(t, l.Unlock(inner))
			require.ErrorIs(t, l.Extend(inner, time.Hour), relock.ErrNotHeld)
		},
		"its context is done": func(t *testing.T, _ *member, l *relock.Lock, section context.Context) {
			t.Helper()
			ctx, cancel := context.WithCancel(section)
			cancel()
			require.ErrorIs(t, l.Extend(ctx, time.Hour), context.Canceled)
		},
		"its client is closed": func(t *testing.T, m *member, l *relock.Lock, section context.Context) {
			t.Helper()
			require.NoError(t, m.Close())
			require.ErrorIs(t, l.Extend(section, time.Hour), relock.ErrClosed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithFixedLease(5 * time.Second))
				l := m.NewLock("a")
				section := enter(t, t.Context(), l)
				refused(t, m, l, section)
				m.net.Partition()
				require.ErrorContains(t, l.Unlock(section), "free within 5s at the latest")
				m.net.Heal()
				pass(10 * time.Second)
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestExtendOfALockThatIsGoneIsErrLockLostAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithFixedLease(time.Minute), relock.WithHooks(r.Hooks()))
		w.warm(m)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		require.NoError(t, l.ForceUnlock(t.Context()))
		late := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		extending := begin(t, context.WithoutCancel(section), func(ctx context.Context) (context.Context, error) {
			return ctx, l.Extend(ctx, time.Minute)
		})
		require.ErrorIs(t, l.Extend(section, time.Minute), relock.ErrLockLost)
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		late.LetGo()
		_, err := extending.result()
		require.ErrorIs(t, err, relock.ErrLockLost, "whoever has found out")
		require.Len(t, eventsOf[relock.Lost](&r), 1)
		require.True(t, w.free("a"), "it has not come back by that")
	})
}

func TestExtendOfAnInnerEntryThatIsUnlockedMeanwhileIsErrNotHeldAndTheOuterSectionKeepsItsHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Minute))
		w.warm(m)
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		late := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		extending := begin(t, context.WithoutCancel(inner), func(ctx context.Context) (context.Context, error) {
			return ctx, l.Extend(ctx, time.Hour)
		})
		require.NoError(t, l.Unlock(inner))
		late.LetGo()
		_, err := extending.result()
		require.ErrorIs(t, err, relock.ErrNotHeld)
		require.NoError(t, outer.Err())
		require.Equal(t, time.Hour-margin(time.Hour), l.Remaining(outer), "it was extended all the same")
		require.NoError(t, l.Unlock(outer))
		w.requireNothingLeft("a")
	})
}

func TestExtendWhoseAnswerComesAfterTheLossSaysSo(t *testing.T) {
	const lease = time.Minute
	for name, late := range map[string]time.Duration{"at the deadline": lease/2 - margin(lease), "later": lease} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout = time.Hour }, relock.WithFixedLease(lease))
				l := m.NewLock("a")
				section := enter(t, t.Context(), l)
				pass(lease / 2)
				m.net.DelayOneWay(0, late)
				detached := context.WithoutCancel(section) // or the end of the section would end the call
				require.ErrorIs(t, l.Extend(detached, time.Hour), relock.ErrLockLost)
				require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
				m.net.Delay(0)
				pass(2 * late)
				w.requireNothingLeft("a") // though Redis had extended it
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			})
		})
	}
}

func TestExtendWithoutAnAnswerEndsWithTheLeaseWhereItsContextDoesNot(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Minute))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		m.net.Partition()
		begun := time.Now()
		require.ErrorIs(t, l.Extend(context.WithoutCancel(section), time.Hour), relock.ErrLockLost)
		require.Equal(t, time.Minute-margin(time.Minute), time.Since(begun))
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		m.net.Heal()
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestAFixedLeaseThatIsGoneWhenRedisIsToldOfAnInnerExitOnceMoreIsLost(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithFixedLease(time.Hour), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		m.net.Partition()
		require.Error(t, l.Unlock(inner))
		w.Del(base("a"))
		m.net.Heal()
		pass(10 * time.Second)
		require.ErrorIs(t, context.Cause(outer), relock.ErrLockLost, "nothing else would tell it before its deadline")
		lost := eventsOf[relock.Lost](&r)
		require.Len(t, lost, 1)
		require.Equal(t, relock.LossTaken, lost[0].Reason)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

func TestExtendOfALockThatTheWatchdogKeepsIsErrInvalid(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		err := l.Extend(section, time.Hour)
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.EqualError(t, err, `relock: invalid: Extend of "a": it is for a lock that was taken WithFixedLease; the watchdog renews this one (TTL 30s)`)
		require.Equal(t, relock.DefaultTTL, w.lease("a"))
		require.NoError(t, l.Unlock(section))
	})
}

func TestExtendWithoutAnAnswerEndsWithItsContext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Minute))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		m.net.Partition()
		ctx, cancel := context.WithTimeout(section, 10*time.Second)
		defer cancel()
		begun := time.Now()
		err := l.Extend(ctx, time.Hour)
		require.Equal(t, 10*time.Second, time.Since(begun))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, relock.ErrLockLost)
		require.NoError(t, section.Err())
		require.Equal(t, 50*time.Second-margin(time.Minute), l.Remaining(section), "count on the shorter")
		m.net.Heal()
		require.NoError(t, l.Unlock(section))
	})
}

func TestExtendAfterCloseIsErrClosedWhateverItsContext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Minute))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		require.NoError(t, m.Client.Close())
		for _, ctx := range []context.Context{section, context.WithoutCancel(section)} {
			require.ErrorIs(t, l.Extend(ctx, time.Hour), relock.ErrClosed)
		}
		require.Equal(t, time.Minute, w.lease("a"), "what is not unlocked is free after its TTL")
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// WithLocalReentry.

func TestWithLocalReentryAnEntryIsRenewedThoughNobodyElseWorksInTheHold(t *testing.T) {
	const ttl = 30 * time.Second
	for name, options := range map[string][]relock.Option{
		"local":             {relock.WithLocalReentry()},
		"local, with hooks": {relock.WithLocalReentry(), relock.WithHooks(new(recorder).Hooks())},
		"not local":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				l := w.NewClient(append(options, relock.WithTTL(ttl))...).NewLock("a")
				request, cancel := context.WithCancel(t.Context())
				outer := enter(t, request, l)
				cancel()
				pass(ttl / 2) // the watchdog has seen that
				inner := enter(t, context.WithoutCancel(outer), l)
				pass(10 * ttl)
				require.True(t, l.Held(inner))
				require.NoError(t, l.Unlock(inner))
				require.NoError(t, l.Unlock(outer))
			})
		})
	}
}

func TestWithLocalReentryNestedPairsSendNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithLocalReentry(), relock.WithHooks(r.Hooks()))
		w.warm(m)
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		require.Equal(t, 1, m.scripts())
		for i := range 100 {
			inner := enter(t, outer, l)
			deeper, err := l.TryLock(inner)
			require.NoError(t, err)
			require.Equal(t, 3, l.Count(deeper))
			first, second := inner, deeper
			if i%2 == 0 {
				first, second = deeper, inner
			}
			require.NoError(t, l.Unlock(first))
			require.ErrorIs(t, l.Unlock(first), relock.ErrNotHeld)
			require.NoError(t, l.Unlock(second))
			require.Equal(t, 1, l.Count(outer))
		}
		require.Equal(t, 1, m.net.Commands())
		require.Len(t, eventsOf[relock.Released](&r), 1, "of the warm-up")

		require.NoError(t, l.Unlock(outer))
		require.Equal(t, 2, m.net.Commands())
		w.requireNothingLeft("a")
		released := eventsOf[relock.Released](&r)
		require.Equal(t, 3, released[len(released)-1].MaxDepth)
	})
}

func TestWithLocalReentryTheLastExitFreesTheLockWhicheverItIs(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithLocalReentry(), relock.WithTTL(ttl)).NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		require.NoError(t, l.Unlock(outer))
		pass(10 * ttl)
		require.False(t, w.free("a"))
		require.True(t, l.Held(inner))
		require.NoError(t, l.Unlock(inner))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalReentryANestedEntryAfterTheDeadlineIsRefused(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithLocalReentry(), relock.WithTTL(ttl))
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		m.net.Partition()
		inner := enter(t, outer, l)
		require.NoError(t, inner.Err())
		_, cause := ends(t, inner)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		_, err := l.Lock(outer)
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(inner), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

func TestWithLocalReentryALossIsToldThoughAnEntryThatWasRefusedIsCollected(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const lease = 10 * time.Second
		m := w.NewClient(relock.WithLocalReentry())
		busy := make(chan struct{})
		defer close(busy)
		slow := &overheard{Context: t.Context(), done: make(chan struct{}), left: func() { <-busy }}
		enter(t, slow, m.NewLock("slow", relock.WithFixedLease(lease)))
		l := m.NewLock("a", relock.WithFixedLease(2*lease))
		outer := enter(t, t.Context(), l)
		pass(2 * lease) // the watchdog is busy with the end of the other section
		require.Zero(t, l.Remaining(outer))
		require.NoError(t, outer.Err())

		// Nobody refers any more to what was made for this call when that is given up.
		ctx := &overheard{Context: outer, done: make(chan struct{}), left: func() {
			for range 20 {
				runtime.GC()
				settle()
			}
		}}
		_, err := l.Lock(ctx)
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.ErrorIs(t, context.Cause(outer), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

func TestWithLocalReentryAContextThatIsDoneEntersNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient(relock.WithLocalReentry()).NewLock("a")
		section := enter(t, t.Context(), l)
		ctx, cancel := context.WithCancel(section)
		cancel()
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Second)} {
			got, err := lock(ctx)
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, ctx, got)
		}
		require.Equal(t, 1, l.Count(section))
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalReentryADetachedContextDoesNotEnterWhatWasUnlocked(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l, rival := w.NewClient(relock.WithLocalReentry()).NewLock("a"), w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		detached := context.WithoutCancel(section) // it has not ended, and leads to the hold all the same
		require.NoError(t, l.Unlock(section))
		theirs := enter(t, t.Context(), rival)
		_, err := l.TryLock(detached)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, rival.Unlock(theirs))
	})
}

func TestWithLocalReentryAnExitInsideOfWhatWasTakenIsErrLockLost(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient(relock.WithLocalReentry()).NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		require.NoError(t, l.ForceUnlock(t.Context()))
		pass(relock.DefaultTTL / 3) // the renewal finds out, long before the deadline
		require.ErrorIs(t, context.Cause(inner), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(inner), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

func TestALockInsideOfAnotherIsNotRenewedWhereTheContextBetweenThemWasCancelled(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		a, b := c.NewLock("a"), c.NewLock("b")
		outer := enter(t, t.Context(), a)
		between, cancel := context.WithCancel(outer)
		inner := enter(t, between, b)
		cancel()
		pass(relock.DefaultTTL + time.Second)
		require.True(t, w.free("b"))
		require.True(t, a.Held(outer))
		require.ErrorIs(t, b.Unlock(inner), relock.ErrLockLost)
		require.NoError(t, a.Unlock(outer))
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Many leases.

func TestTenThousandLeasesTakeOneGoroutineAndAHundredRenewalsATime(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const n, ttl = 10_000, 30 * time.Second
		var r recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{Renewed: r.Hooks().Renewed, Lost: r.Hooks().Lost}))
		w.warm(m)
		require.Equal(t, 1, goroutines("(*watchdog).run"))
		sections := make([]context.Context, n)
		for i := range sections {
			sections[i] = enter(t, t.Context(), m.NewLock(fmt.Sprint(i))) //nolint:fatcontext // they do not nest
		}
		require.Equal(t, 1, goroutines("(*watchdog).run"))
		require.Less(t, goroutines("relock.(*"), 10, "none for each lock")
		pass(ttl / 3) // the script's text has been sent

		m.net.Reset()
		pass(ttl / 3)
		require.GreaterOrEqual(t, m.scripts(), n/100)
		require.LessOrEqual(t, m.scripts(), n/100+3)
		require.LessOrEqual(t, m.net.Stats().RoundTrips, n/1000, "many a pipeline")
		renewed := 0
		for _, event := range eventsOf[relock.Renewed](&r) {
			require.NoError(t, event.Err)
			renewed += event.Locks
		}
		require.Equal(t, 2*n, renewed)
		require.Empty(t, eventsOf[relock.Lost](&r))
		for i, section := range sections {
			require.NoError(t, section.Err())
			if i%1000 == 0 {
				require.NoError(t, m.NewLock(fmt.Sprint(i)).Unlock(section))
			}
		}
	})
}

func TestLeasesThatBeganAtDifferentTimesAreRenewedTogetherWhereTheyCanBe(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const n, ttl = 300, 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		w.warm(m)
		var sections []context.Context
		for i := range n {
			sections = append(sections, enter(t, t.Context(), m.NewLock(fmt.Sprint(i))))
			pass(ttl / n)
		}
		pass(ttl)
		m.net.Reset()
		pass(10 * ttl)
		require.Less(t, m.scripts(), 10*n, "a third of what each for itself would take")
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
			sections = append(sections, enter(t, t.Context(), m.NewLock(fmt.Sprint(i), relock.WithTTL(ttl))))
			pass(rand.N(10 * time.Millisecond))
		}
		pass(30 * time.Second)
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestTheWatchdogStartsWithTheFirstLockAndOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		_, err := l.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, goroutines("(*watchdog).run"))
		for range 5 {
			section := enter(t, t.Context(), l)
			require.Equal(t, 1, goroutines("(*watchdog).run"))
			pass(time.Hour)
			require.NoError(t, section.Err())
			require.NoError(t, l.Unlock(section))
		}
		require.NoError(t, m.Close())
		require.Zero(t, goroutines("(*watchdog).run"))
	})
}

func TestTheWatchdogIsThereBeforeTheGrantThatIsWaitedFor(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 9 * time.Second
		first, next := w.NewClient(relock.WithTTL(ttl)), w.NewClient(relock.WithTTL(ttl))
		for _, idle := range []time.Duration{0, ttl, 10 * ttl} {
			l := first.NewLock("a")
			section := enter(t, t.Context(), l)
			waiting := begin(t, t.Context(), next.NewLock("a").Lock)
			require.True(t, waiting.waits())
			require.Equal(t, 2, goroutines("(*watchdog).run"), "one of each client")
			pass(idle)
			require.NoError(t, l.Unlock(section))
			mine := waiting.section()
			pass(3 * ttl)
			require.NoError(t, mine.Err(), "its lease is renewed")
			require.NoError(t, next.NewLock("a").Unlock(mine))
		}
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Unlock without an answer.

func TestUnlockWithoutAnAnswerReturnsInTimeAndTheLockIsTakenBackInTheBackground(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		m.net.Partition()
		begun := time.Now()
		err := l.Unlock(section)
		require.Equal(t, 10*time.Second, time.Since(begun))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "free within 30s")
		require.NotErrorIs(t, err, relock.ErrLockLost)
		require.Equal(t, relock.ErrReleased, context.Cause(section))
		require.False(t, l.Held(section))
		require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		m.net.Heal()
		pass(3 * time.Second)
		w.requireNothingLeft("a")
	})
}

func TestUnlockDoesNotTryLongerThanTheLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 2 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		m.net.Partition()
		begun := time.Now()
		require.Error(t, l.Unlock(section))
		require.Equal(t, ttl-margin(ttl), time.Since(begun))
		m.net.Heal()
		pass(2 * ttl)
		w.requireNothingLeft("a")
	})
}

func TestALostReplyOfUnlockIsNotALostLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		w.warm(m)
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		require.NoError(t, l.Unlock(inner))
		state, err := l.State(outer)
		require.NoError(t, err)
		require.Equal(t, 1, state.Count)
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.Reset))
		require.NoError(t, l.Unlock(outer), "the second try finds nothing, and that was the first one's doing")
		pass(relock.DefaultTTL)
		w.requireNothingLeft("a")
	})
}

func TestAllSectionsThatAreLostTogetherEndBeforeAnythingElseIsDone(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const locks = 1_500 // more than are ended at once
		var sections []context.Context
		var losses, early atomic.Int64
		m := w.NewClient(relock.WithHooks(relock.Hooks{Lost: func(relock.Lost) {
			losses.Add(1)
			if slices.ContainsFunc(sections, func(section context.Context) bool { return section.Err() == nil }) {
				early.Add(1)
			}
		}}))
		for i := range locks {
			sections = append(sections, enter(t, t.Context(), m.NewLock(fmt.Sprint(i))))
		}
		m.net.Partition()
		pass(relock.DefaultTTL)
		require.EqualValues(t, locks, losses.Load())
		require.Zero(t, early.Load())
		m.net.Heal()
	})
}
