package core_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/quorum"
)

// When does a section end because its lock is lost?

func TestAtTheDeadlineASectionEndsBeforeItsLease(t *testing.T) {
	for name, outage := range stage.Outages {
		if name == "lost answers" {
			continue // then the lease is renewed all the time, and only the holder does not know
		}
		for _, ttl := range []time.Duration{relock.MinTTL, 100 * time.Millisecond, 30 * time.Second, time.Hour} {
			t.Run(fmt.Sprint(name, " ", ttl), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					var r stage.Recorder
					m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
					l := m.NewLock("a")
					outer := w.Enter(t.Context(), l)
					inner := w.Enter(outer, l)
					token, err := l.Token(inner)
					require.NoError(t, err)
					begun, holder := time.Now(), stage.HolderOf(t, outer)
					stage.Pass(ttl / 4)
					end := outage(m.Link)
					_, cause := w.Ends(inner)
					require.Equal(t, ttl-stage.Margin(ttl), time.Since(begun))
					require.Equal(t, stage.Margin(ttl), w.Lease("a"), "nobody else can have the lock yet")
					stage.Settle()
					require.Equal(t, &relock.LostError{Name: "a", Holder: holder, Token: token, Reason: event.LossExpired}, cause)
					require.Equal(t, cause, context.Cause(outer))
					require.False(t, l.Held(inner))
					require.Zero(t, l.Remaining(inner))
					require.Zero(t, l.Count(inner))
					_, err = l.Token(inner)
					require.ErrorIs(t, err, relock.ErrLockLost)
					require.Len(t, stage.EventsOf[event.Lost](&r), 1, "once, however many entries the hold had")
					require.Equal(t, cause, l.Unlock(inner), "at once, and without the store")
					require.Equal(t, cause, l.Unlock(outer))
					require.ErrorIs(t, l.Unlock(outer), relock.ErrNotHeld)
					end.End()
					stage.Pass(2 * ttl)
					w.RequireFree("a")
				})
			})
		}
	}
}

func TestALostAnswerLeavesNoLeaseThatKeepsOthersOut(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		section := w.Enter(t.Context(), m.NewLock("a"))
		waiting := w.Start(t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a"))
		// Every renewal arrives, so the store keeps the lease while the holder has to believe that
		// the lease is over.
		rule := m.Link.On(stage.LoseAnswer(stage.ErrBroken), stage.CmdRenew)
		w.LostBecause(section, event.LossExpired)
		rule.End()
		waiting.Section()
		require.Equal(t, ttl-stage.Margin(ttl), waiting.Took(), "cleanup gives the rest of the lease back")
	})
}

func TestTheNextHolderEntersAfterTheSectionBeforeHasEnded(t *testing.T) {
	for name, outage := range stage.Outages {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				const ttl = 10 * time.Second
				m := w.NewClient(relock.WithTTL(ttl))
				section := w.Enter(t.Context(), m.NewLock("a"))
				next := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
				waiting := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
					mine, err := next.Lock(ctx)
					require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
					return mine, err
				})
				stage.Pass(17 * time.Second)
				end := outage(m.Link)
				mine := waiting.Section()
				end.End()
				stage.Pass(5 * ttl)
				require.NoError(t, mine.Err(), "late commands of the first do not touch the second")
			})
		})
	}
}

func TestALossIsReportedAtOnceOrAtTheNextRenewal(t *testing.T) {
	const ttl = 30 * time.Second
	losses := map[string]func(t *testing.T, w *stage.World, l *relock.Lock){
		"the store loses the hold": func(_ *testing.T, w *stage.World, _ *relock.Lock) { w.Store.Lose("a") },
		"ForceUnlock": func(t *testing.T, _ *stage.World, l *relock.Lock) {
			require.NoError(t, l.ForceUnlock(t.Context()))
		},
		"another hold has the lock": func(t *testing.T, w *stage.World, _ *relock.Lock) {
			w.Store.Lose("a")
			_, err := w.Store.Try(t.Context(), store.Claim{Name: "a", ID: "other:1:1", TTL: time.Hour, Limit: 1})
			require.NoError(t, err)
		},
	}
	for name, loss := range losses {
		for _, deaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, deaf %v", name, deaf), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					var r stage.Recorder
					m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
					l := m.NewLock("a")
					bystander := w.Enter(t.Context(), m.NewLock("b"))
					section := w.Enter(t.Context(), l)
					stage.Pass(25 * time.Second)
					want, batch := time.Duration(0), 1
					if deaf {
						want, batch = 5*time.Second, 2
						m.Link.Deaf()
					}
					loss(t, w, l)
					require.Equal(t, want, w.LostBecause(section, event.LossTaken))
					require.Len(t, stage.EventsOf[event.Lost](&r), 1)
					events := stage.EventsOf[event.Renewed](&r)
					require.Equal(t, event.Renewed{Locks: batch, Lost: 1}, events[len(events)-1])
					require.Equal(t, context.Cause(section), l.Unlock(section))
					stage.Pass(10 * ttl)
					require.True(t, m.NewLock("b").Held(bystander), "others in the batch keep theirs")
				})
			})
		}
	}
}

func TestALossOfAYoungSectionIsReportedOnceItIsWatched(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), l)
		w.Store.Lose("a")
		require.Equal(t, 200*time.Millisecond, w.LostBecause(section, event.LossTaken))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestAnInterruptionMakesAllRenewalsDueAtItsEnd(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		section := w.Enter(t.Context(), m.NewLock("a"))
		stage.Pass(12 * time.Second) // the lease was renewed 2 s ago
		end := w.Store.Interrupt(nil)
		stage.Pass(time.Second)
		require.Less(t, w.NewClient().NewLock("a").Remaining(section), time.Nanosecond)
		m.Link.Reset()
		end()
		require.Equal(t, 1, m.Link.Sent(stage.CmdRenew))
		require.Equal(t, relock.DefaultTTL-stage.Margin(relock.DefaultTTL), m.NewLock("a").Remaining(section))
	})
}

func TestTheStoreIsWatchedForSectionsThatLastOnly(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		watching := 0
		s := &countedWatch{Link: stage.NewLink(w.Store), change: func(n int) { watching += n }}
		c, err := relock.Open(s)
		require.NoError(t, err)
		l := c.NewLock("a")
		for range 100 {
			section := w.Enter(t.Context(), l)
			stage.Pass(20 * time.Millisecond)
			w.Leave(section, l)
		}
		require.Zero(t, watching, "sections of 20 ms are short")
		section := w.Enter(t.Context(), l)
		stage.Pass(time.Second)
		require.Equal(t, 1, watching)
		stage.Pass(time.Hour)
		require.Equal(t, 1, watching)
		w.Leave(section, l)
		stage.Pass(time.Minute)
		require.Zero(t, watching, "nobody watches for nothing")
		section = w.Enter(t.Context(), l)
		stage.Pass(time.Second)
		require.Equal(t, 1, watching)
		require.NoError(t, c.Close())
		require.Zero(t, watching)
		w.Leave(section, l)
	})
}

// countedWatch counts who watches a store.
type countedWatch struct {
	*stage.Link
	change func(int)
}

func (s *countedWatch) Watch(client string, doubt func(store.ID)) (stop func()) {
	s.change(1)
	end := s.Link.Watch(client, doubt)
	return func() { s.change(-1); end() }
}

func TestADoneContextStopsRenewal(t *testing.T) {
	for name, end := range map[string]func(t *testing.T) (context.Context, func()){
		"cancelled": func(t *testing.T) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			return ctx, func() { stage.Pass(31 * time.Second); cancel() }
		},
		"its deadline is over": func(t *testing.T) (context.Context, func()) {
			ctx, cancel := context.WithTimeout(t.Context(), 31*time.Second)
			t.Cleanup(cancel)
			return ctx, func() { stage.Pass(31 * time.Second) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				const ttl = 10 * time.Second
				var r stage.Recorder
				l := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks())).NewLock("a")
				request, done := end(t)
				section := w.Enter(request, l)
				inner := w.Enter(section, l)
				waiting := w.Start(t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a"))
				done()
				over, renewals := time.Now(), len(stage.EventsOf[event.Renewed](&r))
				waiting.Section()
				require.LessOrEqual(t, waiting.Ended.Sub(over), ttl)
				require.Len(t, stage.EventsOf[event.Renewed](&r), renewals)
				lost := stage.EventsOf[event.Lost](&r)
				require.Len(t, lost, 1)
				require.Equal(t, event.LossAbandoned, lost[0].Reason)
				require.False(t, stage.TimesOf[event.Lost](&r)[0].After(waiting.Ended), "before anybody else has the lock")
				require.ErrorIs(t, l.Unlock(inner), relock.ErrLockLost)
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			})
		})
	}
}

// hanging is a store whose Watch hangs until the end of the test. So the watchdog is late for every
// deadline.
type hanging struct {
	*mem.Store
	over context.Context
}

func (s hanging) Watch(string, func(store.ID)) (stop func()) { <-s.over.Done(); return func() {} }

func TestTheReasonForALossIsTheSameThoughTheWatchdogIsLate(t *testing.T) {
	for name, end := range map[string]func(request, own context.CancelFunc){
		"abandoned": func(request, _ context.CancelFunc) { request() },
		"expired":   func(_, own context.CancelFunc) { own() }, // the outer entry is still worked in
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				over, stop := context.WithCancel(context.Background())
				c, err := relock.Open(hanging{w.Store, over})
				require.NoError(t, err)
				defer func() { stop(); require.NoError(t, c.Close()) }()
				l := c.NewLock("a")
				request, cancel := context.WithCancel(t.Context())
				defer cancel()
				outer := w.Enter(request, l)
				own, cancelOwn := context.WithCancel(outer)
				defer cancelOwn()
				inner := w.Enter(own, l)
				stage.Pass(time.Second)
				end(cancel, cancelOwn)
				stage.Pass(relock.DefaultTTL)
				for _, section := range []context.Context{outer, inner} {
					var lost *relock.LostError
					require.ErrorAs(t, l.Unlock(section), &lost)
					require.Equal(t, event.LossReason(name), lost.Reason)
				}
			})
		})
	}
}

func TestAnInnerExitOfADoneRequestDoesNotRenewTheLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		outer := w.Enter(request, l)
		inner := w.Enter(outer, l)
		cancel()
		stage.Pass(ttl / 2)
		w.Leave(inner, l)
		require.Equal(t, ttl/2, w.Lease("a"), "a lock outlives its request by one TTL at most")
		stage.Pass(ttl / 2)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

func TestAllSectionsThatAreLostTogetherEndBeforeAnythingElse(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const locks = 900 // as many as are ended at once, and a few less
		var sections []context.Context
		var losses, early atomic.Int64
		m := w.NewClient(relock.WithHooks(event.Hooks{Lost: func(event.Lost) {
			losses.Add(1)
			if slices.ContainsFunc(sections, func(section context.Context) bool { return section.Err() == nil }) {
				early.Add(1)
			}
		}}))
		for i := range locks {
			sections = append(sections, w.Enter(t.Context(), m.NewLock(fmt.Sprint(i))))
		}
		m.Link.Cut()
		stage.Pass(relock.DefaultTTL)
		require.EqualValues(t, locks, losses.Load())
		require.Zero(t, early.Load())
	})
}

func TestMoreLeasesThanAreEndedAtOnceEndAtTheirDeadline(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		var late atomic.Int64
		deadline := time.Now().Add(relock.DefaultTTL - stage.Margin(relock.DefaultTTL))
		for i := range 3500 {
			section := w.Enter(t.Context(), m.NewLock(fmt.Sprint(i)))
			context.AfterFunc(section, func() {
				if time.Now().After(deadline) {
					late.Add(1)
				}
			})
		}
		m.Link.Cut()
		stage.Pass(relock.DefaultTTL)
		require.Zero(t, late.Load())
		require.Zero(t, w.Waiters("0"))
	})
}

// lockDelay is the lock delay of the tests. It is longer than any lease.
const lockDelay = 2 * relock.DefaultTTL

func TestALostLockStaysTakenForItsDelay(t *testing.T) {
	for name, test := range map[string]struct {
		options []relock.Option
		lives   time.Duration // from the begin of the hold to the end of its lease in the store
		lose    func(w *stage.World, m *stage.Member, l *relock.Lock, section context.Context)
	}{
		"no store": {nil, 40 * time.Second, func(w *stage.World, m *stage.Member, _ *relock.Lock, _ context.Context) {
			stage.Pass(10 * time.Second) // and the lease is renewed
			m.Link.Cut()
		}},
		"no store after a nested call": {nil, 35 * time.Second, func(w *stage.World, m *stage.Member, l *relock.Lock, section context.Context) {
			stage.Pass(5 * time.Second)
			w.Leave(w.Enter(section, l), l)
			m.Link.Cut()
		}},
		"a fixed lease": {stage.Options(relock.WithFixedLease(20 * time.Second)), 20 * time.Second, nil},
		"an extended lease": {stage.Options(relock.WithFixedLease(20 * time.Second)), 50 * time.Second,
			func(w *stage.World, m *stage.Member, l *relock.Lock, section context.Context) {
				stage.Pass(10 * time.Second)
				require.NoError(w.T, l.Extend(section, 40*time.Second))
			}},
		"the longest hold": {stage.Options(relock.WithMaxHold(time.Minute)), time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(append(test.options, relock.WithLockDelay(lockDelay))...)
				l := m.NewLock("a")
				begun := time.Now()
				section := w.Enter(t.Context(), l)
				waiter := w.Start(t.Context(), w.NewClient().NewLock("a"))
				if test.lose != nil {
					test.lose(w, m, l, section)
				}
				w.Lost(section)
				lost := time.Since(begun)
				require.Greater(t, test.lives, lost, "the section ends before its lease, whatever the delay")
				require.LessOrEqual(t, test.lives-stage.Margin(time.Minute), lost)
				m.Link.Heal() // a renewal comes late
				waiter.Section()
				require.GreaterOrEqual(t, waiter.Ended.Sub(begun), lost+lockDelay)
				require.LessOrEqual(t, waiter.Ended.Sub(begun), test.lives+lockDelay+time.Second)
			})
		})
	}
}

func TestADelayHoldsUpNobodyAfterAnUnlock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		one, two := w.NewClient(relock.WithLockDelay(lockDelay)).NewLock("a"), w.NewClient(relock.WithLockDelay(lockDelay)).NewLock("a")
		for _, end := range []func(context.Context) error{one.Unlock, func(context.Context) error { return two.ForceUnlock(t.Context()) }} {
			section := w.Enter(t.Context(), one)
			require.Equal(t, relock.DefaultTTL+lockDelay, w.Lease("a"))
			stage.Pass(time.Minute)
			require.NoError(t, end(section))
			w.Leave(w.Enter(t.Context(), two), two)
		}
		w.RequireFree("a")
	})
}

func TestCloseDoesNotCutADelayShort(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithLockDelay(lockDelay), relock.WithFixedLease(10*time.Second))
		section := w.Enter(t.Context(), m.NewLock("a"))
		w.Lost(section)
		require.NoError(t, m.Close())
		require.InDelta(t, lockDelay, w.Lease("a"), float64(time.Second))
	})
}

func TestAWaiterThatGivesUpLeavesNoDelay(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, tape := w.NewTape(relock.WithLockDelay(lockDelay))
		tape.Keep(stage.CmdTry)
		ctx, cancel := context.WithTimeout(t.Context(), stage.AskAgain/2)
		defer cancel()
		require.Error(t, w.Begin(ctx, m.NewLock("a").TryLock).Failure())
		tape.Play() // the hold comes after its caller has gone
		stage.Pass(2 * time.Second)
		w.RequireFree("a")
	})
}

// A caller may cancel its context with the loss of another lock as the cause.
func TestACauseOfTheCallersContextIsNoLoss(t *testing.T) {
	cause := fmt.Errorf("the row has gone: %w", store.ErrGone)
	members := func() store.Store {
		s, err := quorum.New(mem.New(), mem.New(), mem.New())
		require.NoError(t, err)
		return s
	}
	for kind, newStore := range map[string]func() store.Store{
		"memory": func() store.Store { return mem.New() },
		"quorum": members,
	} {
		for name, call := range map[string]func(l *relock.Lock, ctx context.Context) error{
			"Token":       func(l *relock.Lock, ctx context.Context) error { return stage.ErrorOf(l.Token(ctx)) },
			"Extend":      func(l *relock.Lock, ctx context.Context) error { return l.Extend(ctx, time.Minute) },
			"Lock":        func(l *relock.Lock, ctx context.Context) error { return stage.ErrorOf(l.Lock(ctx)) },
			"ForceUnlock": func(l *relock.Lock, ctx context.Context) error { return l.ForceUnlock(ctx) },
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					held := &slow{Store: newStore()}
					c, err := relock.Open(held, relock.WithFixedLease(30*time.Second))
					require.NoError(t, err)
					l := c.NewLock("a")
					section := w.Enter(t.Context(), l)
					ctx, cancel := context.WithCancelCause(section)
					held.cancel = func() { cancel(cause) }
					err = call(l, ctx)
					require.ErrorIs(t, err, context.Canceled)
					require.NotErrorIs(t, err, relock.ErrLockLost)
					require.NoError(t, section.Err())
					require.Positive(t, l.Remaining(section))
					stage.Pass(time.Second)
					require.True(t, l.Held(section))
					w.Leave(section, l)
					require.NoError(t, c.Close())
					require.NoError(t, held.Close())
				})
			})
		}
	}
}

// slow is a store whose commands on a hold come after cancel.
type slow struct {
	store.Store
	cancel func()
}

func (s *slow) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	s.cancel()
	stage.Settle()
	return s.Store.Enter(ctx, l, count)
}

func (s *slow) Token(ctx context.Context, l store.Lease) (int64, error) {
	s.cancel()
	stage.Settle()
	return s.Store.Token(ctx, l)
}

func (s *slow) Break(ctx context.Context, a store.Claim) error {
	s.cancel()
	stage.Settle()
	return s.Store.Break(ctx, a)
}
