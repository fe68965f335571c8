package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/ticket"
)

// How does one grant serve all calls of a client that stand behind each other? In fake time.

// run is a client whose section was granted with those that wait behind it.
type run struct {
	*stage.EmbeddedPeer
	w       *stage.Embedded
	l       *relock.Lock
	section context.Context
	waiting []*stage.Attempt
}

// newRun has a section of another client free the lock for a client with n more waits.
func newRun(t *testing.T, w *stage.Embedded, n int, options ...relock.Option) *run {
	t.Helper()
	m := w.NewClient(options...)
	r := &run{EmbeddedPeer: m, w: w, l: m.NewLock("a")}
	before := w.NewClient().NewLock("a")
	theirs := w.Enter(t.Context(), before)
	for range n + 1 {
		r.wait()
	}
	w.Leave(theirs, before)
	r.section = r.waiting[0].Section()
	r.waiting = r.waiting[1:]
	stage.Settle()
	r.Net.Reset()
	return r
}

// start begins a call with an arrival of its own.
func start(w *stage.Embedded, l *relock.Lock) *stage.Attempt {
	a := w.Start(w.T.Context(), l)
	stage.Pass(time.Millisecond)
	return a
}

func (r *run) wait() *stage.Attempt {
	a := start(r.w, r.l)
	r.waiting = append(r.waiting, a)
	return a
}

// next unlocks the section, and enters the next one.
func (r *run) next() {
	r.w.T.Helper()
	require.NoError(r.w.T, r.l.Unlock(r.section))
	r.section = r.waiting[0].Section()
	stage.Keep(r.w.T, r.section)
	r.waiting = r.waiting[1:]
}

func (r *run) sent() int { stage.Settle(); return r.Net.Commands("EVALSHA") }

// leaveAll serves all that wait, without time for a lease to end.
func (r *run) leaveAll() {
	r.w.T.Helper()
	begun := time.Now()
	for len(r.waiting) > 0 {
		r.next()
	}
	r.w.Leave(r.section, r.l)
	require.Less(r.w.T, time.Since(begun), 100*time.Millisecond, "nobody sleeps for a lease")
	r.w.RequireTokensOnly()
}

func TestAGrantServesAllOfAClientThatStandBehindEachOther(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		r := newRun(t, w, 40)
		for range 40 {
			r.next()
		}
		require.Zero(t, r.sent(), "nobody asks")
		w.Leave(r.section, r.l)
		require.Equal(t, 1, r.sent())
		w.RequireTokensOnly()
	})
}

func TestARunIsNoLongerThanSixtyFour(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		r := newRun(t, w, 70)
		for range 63 {
			r.next()
		}
		require.Zero(t, r.sent())
		r.next()
		require.Equal(t, 1, r.sent())
		r.leaveAll()
	})
}

func TestRunsKeepTheOrderOfTheQueue(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		locks := []*relock.Lock{w.NewClient().NewLock("a"), w.NewClient().NewLock("a"), w.NewClient().NewLock("a", relock.WithTTL(time.Minute))}
		owner := w.NewClient().NewLock("a")
		theirs := w.Enter(t.Context(), owner)
		var queue []*stage.Attempt
		for range 60 {
			queue = append(queue, start(w, locks[rand.IntN(len(locks))]))
		}
		w.Leave(theirs, owner)
		latest := int64(0)
		for i, a := range queue {
			section := a.Section()
			for _, later := range queue[i+1:] {
				require.True(t, later.Waits())
			}
			token, err := a.Lock.Token(section)
			require.NoError(t, err)
			require.Greater(t, token, latest, "each section draws its own token")
			latest = token
			a.Leave()
		}
		w.RequireTokensOnly()
	})
}

func TestThoseBehindTheEndOfARunKeepTheirPlaces(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *run) (lost bool){
		"a loan": func(t *testing.T, r *run) bool {
			_, err := ticket.Lend(r.section, r.l)
			require.NoError(t, err)
			return false
		},
		"a ticket": func(t *testing.T, r *run) bool {
			_, err := ticket.ToResume(r.section, r.l)
			require.NoError(t, err)
			return false
		},
		"a script that may run yet": func(t *testing.T, r *run) bool {
			stuck := r.Net.Once(redistest.WithArg("late"), redistest.Hold())
			bound, cancel := context.WithTimeout(r.section, time.Second)
			defer cancel()
			_, err := r.l.Eval(bound, "return 1", nil, "late")
			require.ErrorIs(t, err, relock.ErrUnsure)
			t.Cleanup(stuck.LetGo)
			return false
		},
		"ForceUnlock": func(t *testing.T, r *run) bool {
			stage.Pass(time.Second) // the client watches for ends
			require.NoError(t, r.w.NewClient().NewLock("a").ForceUnlock(t.Context()))
			return true
		},
		"a loss of the key": func(t *testing.T, r *run) bool {
			r.w.Redis.Del("relock:{a}")
			stage.Pass(relock.DefaultTTL / 3)
			return true
		},
		"HandOff": func(t *testing.T, r *run) bool {
			given, err := ticket.HandOff(r.section, r.l)
			require.NoError(t, err)
			there := r.w.NewClient().NewLock("a")
			section, err := ticket.Accept(t.Context(), there, given)
			require.NoError(t, err)
			r.w.Leave(section, there)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				r := newRun(t, w, 10)
				r.next()
				r.next()
				there := w.NewClient().NewLock("a")
				last := w.Start(t.Context(), there)
				ended := r.section
				if end(t, r) {
					stage.Pass(50 * time.Millisecond)
					require.Error(t, ended.Err())
					require.True(t, r.waiting[0].Comes(100*time.Millisecond), "nobody sleeps for a lease")
					r.section = r.waiting[0].Section() // in its turn
					r.waiting = r.waiting[1:]
					require.Error(t, r.l.Unlock(ended))
					require.NoError(t, r.section.Err())
				} else {
					r.Net.Reset()
					r.next()
					require.Positive(t, r.sent(), "by the store")
				}
				for range 4 {
					r.next()
				}
				require.True(t, last.Waits())
				for len(r.waiting) > 0 {
					r.next()
				}
				require.True(t, last.Waits())
				w.Leave(r.section, r.l)
				require.True(t, last.Comes(100*time.Millisecond), "nobody sleeps for a lease")
				last.Leave()
				stage.Pass(2 * relock.DefaultTTL)
				w.RequireTokensOnly()
			})
		})
	}
}

func TestARunEndsBeforeACallThatWantsAnotherLease(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		before := w.NewClient().NewLock("a")
		theirs := w.Enter(t.Context(), before)
		m := w.NewClient(relock.WithTTL(9 * time.Second))
		var queue []*stage.Attempt
		for _, l := range []*relock.Lock{
			m.NewLock("a"), m.NewLock("a"), m.NewLock("a", relock.WithTTL(7*time.Second)),
			m.NewLock("a", relock.WithTTL(8*time.Second), relock.WithLockDelay(time.Second)), // the same for Redis
			m.NewLock("a", relock.WithTTL(5*time.Second)),
			m.NewLock("a", relock.WithFixedLease(5*time.Second)),
		} {
			queue = append(queue, start(w, l))
		}
		w.Leave(theirs, before)
		for i, releases := range []int{0, 1, 1, 1, 0, 1} {
			section := queue[i].Section()
			stage.Settle()
			m.Net.Reset()
			w.Leave(section, queue[i].Lock)
			require.Equal(t, releases, m.Net.Commands("EVALSHA"), i)
		}
		w.RequireTokensOnly()
	})
}

func TestLocksWithAQueueLimitAreGrantedOneByOne(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		r := newRun(t, w, 3, relock.WithMaxWaiters(4))
		r.next()
		require.Equal(t, 1, r.sent())
		r.leaveAll()
	})
}

func TestALeaseIsNotPassedOnOnceTheStoreServesTheNextOfTheRun(t *testing.T) {
	for name, passes := range map[string]int{"the first hold": 0, "a hold that was passed the lease": 2} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				r := newRun(t, w, 6)
				for range passes {
					r.next()
				}
				require.NoError(t, w.NewClient().NewLock("a").ForceUnlock(t.Context())) // too early for the watch
				next := r.waiting[0].Section()
				require.ErrorIs(t, r.l.Unlock(r.section), relock.ErrLockLost)
				stage.Settle()
				require.True(t, r.waiting[1].Waits(), "its turn is behind the next one")
				r.section, r.waiting = next, r.waiting[1:]
				r.leaveAll()
				stage.Pass(2 * relock.DefaultTTL)
				w.RequireTokensOnly()
			})
		})
	}
}

func TestALeaseThatAnExtendHasMadeLongerIsNotPassedOn(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		const lease = 3 * time.Second
		r := newRun(t, w, 1, relock.WithFixedLease(lease))
		require.NoError(t, r.l.Extend(r.section, time.Hour))
		r.next()
		require.LessOrEqual(t, r.l.Remaining(r.section), lease)
		r.leaveAll()
	})
}

func TestAClientThatDiesInARunCostsOthersOneLease(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		r := newRun(t, w, 5)
		r.next()
		r.next()
		other := w.NewClient().NewLock("a")
		waiting := w.Start(t.Context(), other)
		r.Net.Refuse()
		r.Net.Cut()
		defer r.Net.Heal()
		begun := time.Now()
		section := waiting.Section()
		require.LessOrEqual(t, time.Since(begun), relock.DefaultTTL+10*time.Second)
		require.Error(t, r.section.Err())
		w.Leave(section, other)
		r.Net.Heal()
		for len(r.waiting) > 0 { // whoever asks first comes first: nobody was in the queue
			r.waiting = slices.DeleteFunc(r.waiting, func(a *stage.Attempt) bool {
				comes := a.Comes(time.Second)
				if comes {
					a.Leave()
				}
				return comes
			})
		}
	})
}

func TestAWaitThatEndsAsItIsPassedALockHoldsUpNobody(t *testing.T) {
	for n := range 150 {
		stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
			r := newRun(t, w, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			second := r.waiting[0]
			r.waiting = nil
			third, forth := w.Start(ctx, r.l), r.wait()
			w.Leave(r.section, r.l)
			section := second.Section()
			switch n % 3 {
			case 0:
				cancel()
				require.NoError(t, r.l.Unlock(section))
			case 1:
				require.NoError(t, r.l.Unlock(section))
				cancel()
			default:
				go cancel()
				require.NoError(t, r.l.Unlock(section))
			}
			if _, err := third.Result(); err == nil {
				third.Leave()
			} else {
				require.ErrorIs(t, err, context.Canceled)
			}
			require.True(t, forth.Comes(100*time.Millisecond), "nobody sleeps for a lease")
			forth.Leave()
			stage.Pass(2 * relock.DefaultTTL)
			w.RequireTokensOnly()
		})
	}
}

func TestAWaitThatAsksAgainAsItIsPassedALockIsServedOnce(t *testing.T) {
	const ttl = 300 * time.Millisecond
	for n := range 30 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				r := newRun(t, w, 8, relock.WithTTL(ttl))
				for len(r.waiting) > 0 {
					stage.Pass(ttl/2 + time.Duration(rand.IntN(200))*time.Millisecond)
					require.NoError(t, r.section.Err())
					r.next()
					for _, a := range r.waiting {
						require.True(t, a.Waits())
					}
				}
				r.leaveAll()
			})
		})
	}
}

func TestCloseInARunEndsItsWaits(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		r := newRun(t, w, 5)
		r.next()
		other := w.NewClient().NewLock("a")
		last := w.Start(t.Context(), other)
		require.NoError(t, r.Close())
		for _, a := range r.waiting {
			require.ErrorIs(t, a.Failure(), relock.ErrClosed)
		}
		require.NoError(t, r.l.Unlock(r.section))
		require.True(t, last.Comes(100*time.Millisecond))
		last.Leave()
		w.RequireTokensOnly()
	})
}

// A release whose answers are lost is the end of a run, too. The places of the sections that were served stay for
// a moment, and are given back.
func TestTheEndOfARunWithoutAnAnswerHoldsUpNobody(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		r := newRun(t, w, 3)
		r.next()
		r.next()
		r.next()
		r.wait() // keeps the subscription
		other := w.NewClient().NewLock("a")
		last := w.Start(t.Context(), other)
		r.Net.Once(stage.ScriptCalls, redistest.DropReply(redistest.EOF))
		require.NoError(t, r.l.Unlock(r.section))
		r.waiting[0].Leave()
		require.True(t, last.Comes(100*time.Millisecond))
		last.Leave()
		stage.Pass(2 * relock.DefaultTTL)
		w.RequireTokensOnly()
	})
}

func TestARandomRunOfFaultsKeepsTheLockExclusive(t *testing.T) {
	for n := range 10 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				var inside, visits atomic.Int64
				done := make(chan error, 60)
				for c := range 3 {
					m := w.NewClient(relock.WithTTL(time.Second))
					l := m.NewLock("a")
					for range 20 {
						go func() {
							var failed error
							for range 15 {
								ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(3000))*time.Millisecond)
								section, err := l.Lock(ctx)
								if err != nil {
									cancel()
									continue
								}
								if n := inside.Add(1); n > 1 {
									failed = fmt.Errorf("%d inside", n)
								}
								visits.Add(1)
								<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
								inside.Add(-1)
								if err := l.Unlock(section); err != nil && section.Err() == nil {
									failed = err
								}
								cancel()
							}
							done <- failed
						}()
					}
					if c == 0 {
						m.Net.On(stage.ScriptCalls, redistest.DropReply(redistest.EOF)).Skip(20).Times(3)
					}
				}
				for range cap(done) {
					require.NoError(t, <-done)
				}
				require.Greater(t, visits.Load(), int64(100))
				stage.Pass(5 * time.Second)
				w.RequireTokensOnly()
			})
		})
	}
}

// The waits stand behind each other with the same lease, and one of them demands what others need not.
func TestARunEndsBeforeACallThatWantsConfirmations(t *testing.T) {
	w := stage.OnShared(t)
	p := w.Peer()
	before, acked := w.Peer().NewLock("a"), p.NewLock("a", relock.WithReplicaAcks(1, 50*time.Millisecond))
	theirs := w.Enter(t.Context(), before)
	first := w.Start(t.Context(), p.NewLock("a"))
	w.AwaitWaiters("a", 1)
	second := w.Start(t.Context(), acked)
	w.AwaitWaiters("a", 2)
	require.False(t, second.Comes(50*time.Millisecond)) // it knows of its place
	w.Leave(theirs, before)
	w.Leave(first.Section(), p.NewLock("a"))
	require.ErrorIs(t, second.Failure(), relock.ErrNotReplicated)
}

func TestEachLeaderOfAClientHasAHoldOfItsOwn(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		before, there := w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
		theirs := w.Enter(t.Context(), before)
		l := w.NewClient().NewLock("a")
		terms, done := make(chan relock.Holder), make(chan error)
		for range 3 {
			go func() {
				done <- leader.Run(t.Context(), l, func(term context.Context) error {
					terms <- stage.HolderOf(t, term)
					state, err := there.State(term)
					if err == nil && state.Holder != stage.HolderOf(t, term) {
						err = fmt.Errorf("others see %s", state.Holder)
					}
					return err
				})
			}()
			stage.Pass(time.Millisecond)
		}
		w.Leave(theirs, before)
		for range 3 {
			<-terms
		}
		for range 3 {
			require.NoError(t, <-done)
		}
	})
}

// TestStateInARunNamesWhoWaits looks from the process of the run, which knows whom it has served.
func TestStateInARunNamesWhoWaits(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		r := newRun(t, w, 3)
		r.next()
		r.next()
		state, err := r.l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, stage.HolderOf(t, r.section), state.Holder)
		require.Len(t, state.Queue, 1)
		last := state.Queue[0].Holder
		r.next()
		require.Equal(t, last, stage.HolderOf(t, r.section))
		r.leaveAll()
	})
}
