package relock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// ---------------------------------------------------------------------------------------------------------------------
// A reply is lost: the server has run the script, and the client cannot know.

func TestALostReplyOfLockEntersOnce(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a")
			calls := w.counter(p, luaAcquire)
			lose := p.faults.Once(w.script(luaAcquire), redistest.DropReply(how))
			section := w.enter(t.Context(), l, soon)
			require.Equal(t, 1, lose.Hits())
			require.Equal(t, 2, calls(), "asked again once, by us alone")
			w.requireCount("a", 1)
			require.Equal(t, 1, l.Count(section))
			w.leave(section, l, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestManyLostRepliesOfLockEnterOnce(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	p.faults.On(w.script(luaAcquire), redistest.DropReply(redistest.EOF)).Times(6)
	section := w.enter(t.Context(), l, soon)
	w.requireCount("a", 1)
	w.leave(section, l, soon)
	w.awaitFree("a", 0)
}

func TestALostReplyOfLockOnABusyLockQueuesOnce(t *testing.T) {
	// The first call says that the lock is busy, the second joins the queue.
	for _, call := range []int{0, 1} {
		t.Run(fmt.Sprint("call ", call), func(t *testing.T) {
			for name, how := range breaks {
				t.Run(name, func(t *testing.T) {
					w := onShared(t)
					owner, p := w.peer(), w.peer()
					l := owner.NewLock("a")
					section := w.enter(t.Context(), l, soon)
					lose := p.faults.Once(w.script(luaAcquire), redistest.DropReply(how)).Skip(call)
					waiter := w.start(t.Context(), p.NewLock("a"))
					lose.WaitHits(t, 1)
					w.awaitWaiters("a", 1)
					w.leave(section, l, soon)
					mine := waiter.in(soon)
					w.requireCount("a", 1)
					w.leave(mine, waiter.lock, soon)
					w.awaitFree("a", 0)
				})
			}
		})
	}
}

func TestALostReplyOfANestedLockCountsOnce(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a")
			outer := w.enter(t.Context(), l, soon)
			calls := w.counter(p, luaAcquire)
			p.faults.Once(w.script(luaAcquire), redistest.DropReply(how))
			inner := w.enter(outer, l, soon)
			require.Equal(t, 2, calls())
			w.requireCount("a", 2)
			require.Equal(t, 2, l.Count(inner))
			require.Equal(t, l.Token(outer), l.Token(inner))
			w.leave(inner, l, soon)
			w.requireCount("a", 1)
			w.leave(outer, l, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestALostReplyOfAnInnerUnlockLeavesTheOuterSectionItsHold(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a")
			outer := w.enter(t.Context(), l, soon)
			inner := w.enter(outer, l, soon)
			calls := w.counter(p, luaRelease)
			p.faults.Once(w.script(luaRelease), redistest.DropReply(how))
			w.leave(inner, l, soon)
			require.Equal(t, 2, calls())
			w.requireCount("a", 1)
			require.True(t, l.Held(outer))
			require.NoError(t, outer.Err())
			w.leave(outer, l, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestALostReplyOfTheLastUnlockIsNoLoss(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			calls := w.counter(p, luaRelease)
			p.faults.Once(w.script(luaRelease), redistest.DropReply(how))
			w.leave(section, l, soon)
			require.Equal(t, 2, calls())
			w.awaitFree("a", 0)
			require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
		})
	}
}

func TestALostReplyOfTheLastUnlockIsNoLossWhenTheNextIsInAlready(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p, next := w.peer(), w.peer()
			l := p.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			waiter := w.start(t.Context(), next.NewLock("a"))
			w.awaitWaiters("a", 1)
			p.faults.Once(w.script(luaRelease), redistest.DropReply(how))
			w.leave(section, l, soon)
			mine := waiter.in(soon)
			w.requireCount("a", 1)
			w.leave(mine, waiter.lock, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestAnUnlockWhoseEveryReplyIsLostSaysSoAndLeavesTheLockFree(t *testing.T) {
	w := onShared(t)
	const ttl = 800 * time.Millisecond
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	p.faults.On(w.script(luaRelease), redistest.DropReply(redistest.EOF))
	err := w.call(ttl+200*time.Millisecond, func() error { return l.Unlock(section) })
	require.Error(t, err)
	require.NotErrorIs(t, err, relock.ErrLockLost, "it was released, and never lost")
	require.ErrorContains(t, err, "not confirmed")
	w.awaitFree("a", 0)
	require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
}

func TestALostReplyOfARenewalIsNoLoss(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			const ttl = 1500 * time.Millisecond
			p := w.peer(relock.WithTTL(ttl))
			l := p.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			calls := w.counter(p, luaRenew)
			lose := p.faults.Once(w.script(luaRenew), redistest.DropReply(how))
			lose.WaitHits(t, 1)
			// The second call makes up for the lost one, the third is due a third of the TTL later: past the first lease.
			redistest.Eventually(t, soon, func() bool { return calls() >= 4 }, "renewals go on")
			require.NoError(t, section.Err())
			require.Greater(t, l.Remaining(section), ttl/4)
			w.requireCount("a", 1)
			w.leave(section, l, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestALostReplyOfExtendExtendsOnce(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a", relock.WithFixedLease(5*time.Second))
			section := w.enter(t.Context(), l, soon)
			calls := w.counter(p, luaRenew)
			p.faults.Once(w.script(luaRenew), redistest.DropReply(how))
			require.NoError(t, w.call(soon, func() error { return l.Extend(section, 10*time.Second) }))
			require.Equal(t, 2, calls())
			require.Greater(t, w.lease("a"), 7*time.Second)
			require.LessOrEqual(t, w.lease("a"), 10*time.Second)
			require.Greater(t, l.Remaining(section), 7*time.Second)
			w.requireCount("a", 1)
			w.leave(section, l, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestALostReplyOfForceUnlockFreesTheLockAndHitsNobodyElse(t *testing.T) {
	for _, lua := range []string{luaState, luaForce} {
		t.Run(lua, func(t *testing.T) {
			for name, how := range breaks {
				t.Run(name, func(t *testing.T) {
					w := onShared(t)
					operator, owner, next := w.peer(), w.peer(relock.WithTTL(600*time.Millisecond)), w.peer()
					l := owner.NewLock("a")
					section := w.enter(t.Context(), l, soon)
					waiter := w.start(t.Context(), next.NewLock("a"))
					w.awaitWaiters("a", 1)
					calls := w.counter(operator, lua)
					operator.faults.Once(w.script(lua), redistest.DropReply(how))
					require.NoError(t, w.call(soon, func() error { return operator.NewLock("a").ForceUnlock(t.Context()) }))
					require.Equal(t, 2, calls())
					mine := waiter.in(soon)
					w.requireCount("a", 1)
					require.Equal(t, relock.LossTaken, w.lost(section, soon).Reason)
					require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
					require.NoError(t, mine.Err())
					w.leave(mine, waiter.lock, soon)
					w.awaitFree("a", 0)
				})
			}
		})
	}
}

func TestALostReplyOfAnAbandonIsAskedAgain(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			owner, p, next := w.peer(), w.peer(), w.peer()
			l := owner.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			ctx, cancel := context.WithCancel(t.Context())
			gone := w.start(ctx, p.NewLock("a"))
			w.awaitWaiters("a", 1)
			waiter := w.start(t.Context(), next.NewLock("a"))
			w.awaitWaiters("a", 2)
			calls := w.counter(p, luaAbandon)
			lose := p.faults.Once(w.script(luaAbandon), redistest.DropReply(how))
			cancel()
			require.True(t, isDone(gone.out(promptly)))
			lose.WaitHits(t, 1)
			redistest.Eventually(t, soon, func() bool { return calls() >= 2 }, "it is asked again")
			w.awaitWaiters("a", 1)
			w.leave(section, l, soon)
			w.leave(waiter.in(soon), waiter.lock, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestALostReplyOfStateIsAskedAgain(t *testing.T) {
	for name, how := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			calls := w.counter(p, luaState)
			p.faults.Once(w.script(luaState), redistest.DropReply(how))
			var state relock.State
			require.NoError(t, w.call(soon, func() (err error) { state, err = l.State(t.Context()); return err }))
			require.Equal(t, 2, calls())
			holder, _ := relock.HolderFrom(section)
			require.Equal(t, holder, state.Holder)
			require.Equal(t, 1, state.Count)
			require.Equal(t, l.Token(section), state.Token)
			w.leave(section, l, soon)
		})
	}
}

// go-redis sends a command again after a broken connection, up to three times, and tells nobody. Ours it must not.
func TestGoRedisNeverSendsAScriptAgainByItself(t *testing.T) {
	w := onShared(t)
	var mu sync.Mutex
	var renewals int
	p := w.peerOn(func(o *redis.Options) {
		o.MaxRetries = 3
		o.PoolSize, o.PipelinePoolSize = 1, -1 // so that none is idle when one has ended: that would be no try
	}, relock.WithTTL(2*time.Second), relock.WithHooks(relock.Hooks{Renewed: func(relock.Renewed) { mu.Lock(); renewals++; mu.Unlock() }}))
	l := p.NewLock("a")

	lose := p.faults.On(w.script(luaAcquire), redistest.DropReply(redistest.EOF))
	calls := w.counter(p, luaAcquire)
	_, err := l.TryLock(t.Context())
	require.Error(t, err)
	require.Equal(t, 3, calls(), "TryLock asks three times")
	lose.Remove()
	w.awaitFree("a", soon) // and takes back what it may have got

	lose = p.faults.On(w.script(luaState), redistest.DropReply(redistest.EOF))
	calls = w.counter(p, luaState)
	_, err = l.State(t.Context())
	require.Error(t, err)
	require.Equal(t, 3, calls(), "State asks three times")
	lose.Remove()

	section := w.enter(t.Context(), l, soon)
	lose = p.faults.On(w.script(luaRenew), redistest.DropReply(redistest.EOF)).Times(4)
	calls = w.counter(p, luaRenew)
	lose.WaitHits(t, 4)
	redistest.Eventually(t, soon, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return renewals >= 5 && renewals == calls()
	}, "each renewal is one command")
	w.leave(section, l, soon)
}

// ---------------------------------------------------------------------------------------------------------------------
// All idle connections have ended, as after a restart of the server, or where it ends what is idle for long. go-redis looks whether
// one has before it uses it, but cannot where that does not show, as over TLS: then it finds out one by one.

// sealed is a connection of which nothing shows that it has ended, until it is used.
type sealed struct{ net.Conn }

// sealing is a dialer of such connections.
func sealing(dial redistest.DialFunc) redistest.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return sealed{conn}, err
	}
}

// sealedPeer is a peer with 30 idle connections of that kind, and 8 in the pool that go-redis has for pipelines.
func (w *arena) sealedPeer(options ...relock.Option) *peer {
	w.t.Helper()
	const idle, pipelines = 30, 8
	p := w.peerOn(func(o *redis.Options) {
		o.Dialer = sealing(o.Dialer)
		o.PoolSize, o.PipelinePoolSize, o.ReadTimeout = idle, pipelines, 5*time.Second
	}, options...)
	p.connect(w.t, idle)
	pings := p.faults.On(redistest.Named("PING"), redistest.Hold())
	done := make(chan error)
	for range pipelines {
		go func() {
			_, err := p.rdb.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
				return pipe.Ping(context.Background()).Err()
			})
			done <- err
		}()
	}
	pings.WaitHits(w.t, pipelines)
	pings.Remove()
	pings.Release(w.t)
	for range pipelines {
		require.NoError(w.t, <-done)
	}
	stats := p.rdb.PoolStats()
	require.EqualValues(w.t, idle, stats.IdleConns)
	require.EqualValues(w.t, pipelines, stats.PipelineStats.IdleConns)
	return p
}

func TestIdleConnectionsThatHaveEndedAreNoTriesOfACallAndMakeItNoSlower(t *testing.T) {
	for name, prepare := range map[string]func(w *arena, l *relock.Lock) (call func() error){
		"Lock": func(w *arena, l *relock.Lock) func() error {
			return func() error { return l.Do(w.t.Context(), func(context.Context) error { return nil }) }
		},
		"TryLock": func(w *arena, l *relock.Lock) func() error {
			return func() error { return l.DoFor(w.t.Context(), 0, func(context.Context) error { return nil }) }
		},
		"State": func(w *arena, l *relock.Lock) func() error {
			return func() error { _, err := l.State(w.t.Context()); return err }
		},
		"Unlock": func(w *arena, l *relock.Lock) func() error {
			section := w.enter(w.t.Context(), l, soon)
			return func() error { return l.Unlock(section) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			var log logbook
			p := w.sealedPeer(relock.WithLogger(log.logger()))
			call := prepare(w, p.NewLock("a"))
			p.faults.Cut()
			require.NoError(t, w.call(soon, call))
			require.NoError(t, p.Close()) // all is told
			require.Empty(t, log.lines, "no warning that Redis does not serve it")
		})
	}
}

func TestIdleConnectionsThatHaveEndedCostNoRenewal(t *testing.T) {
	w := onShared(t)
	renewals := make(chan relock.Renewed, 100)
	p := w.sealedPeer(relock.WithTTL(3*time.Second), relock.WithHooks(relock.Hooks{Renewed: func(r relock.Renewed) { renewals <- r }}))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	p.faults.Cut()
	var first relock.Renewed
	require.NoError(t, w.call(soon, func() error { first = <-renewals; return first.Err }))
	require.Equal(t, 1, first.Locks)
	w.leave(section, l, soon)
}

func TestAServerThatEndsEveryConnectionIsAskedNoMoreOftenThanThereWereIdleOnes(t *testing.T) {
	w := onShared(t)
	p := w.sealedPeer()
	ends := p.faults.On(w.script(luaAcquire), redistest.CutBefore(redistest.EOF))
	_, err := p.NewLock("a").TryLock(t.Context())
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 30+3, ends.Hits())

	waiter := w.start(t.Context(), p.NewLock("a"))
	sleepUntil(time.Now().Add(500 * time.Millisecond))
	require.True(t, waiter.waiting(), "%v", waiter.err)
	require.LessOrEqual(t, ends.Hits(), 30+3+15, "no hot loop")
	ends.Remove()
	w.leave(waiter.in(soon), waiter.lock, soon)
}

// ---------------------------------------------------------------------------------------------------------------------
// A command runs late: the client has given it up, and goes on with its life.

// giveUp begins to lock with ctx, lets the call's script get stuck on the wire, and cancels.
func (w *arena) giveUp(ctx context.Context, p *peer, l *relock.Lock, stuck *redistest.Rule) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := w.start(ctx, l)
	stuck.WaitHits(w.t, 1)
	require.True(w.t, a.waiting())
	cancel()
	err := a.out(promptly)
	require.True(w.t, isDone(err), "%v", err)
	require.Equal(w.t, ctx, a.section, "the context comes back as it was")
}

// holder is a context with a holder of its own, for one that locks again and again.
func holderContext(t testing.TB) context.Context {
	t.Helper()
	return relock.WithHolder(t.Context(), relock.NewHolder())
}

func TestALateLockTouchesNothingOfTheSameHolderThatHasLockedAgain(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	me := holderContext(t)
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	w.giveUp(me, p, l, stuck)

	outer := w.enter(me, l, soon)
	inner := w.enter(outer, l, soon)
	hold, _ := w.owner("a")
	require.Len(t, stuck.Release(t), 1)
	again, count := w.owner("a")
	require.Equal(t, hold, again)
	require.Equal(t, 2, count)
	require.Zero(t, w.waiters("a"))
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	w.awaitFree("a", 0)
}

func TestALateLockThatNobodyWantsIsTakenBackLongBeforeItsLeaseEnds(t *testing.T) {
	w := onShared(t)
	p := w.peer() // 30 s
	l := p.NewLock("a")
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	w.giveUp(t.Context(), p, l, stuck)
	abandoned := w.counter(p, luaAbandon)
	redistest.Eventually(t, soon, func() bool { return abandoned() >= 2 }, "it is abandoned, more than once")
	w.awaitFree("a", 0)

	require.Positive(t, tokenOf(t, stuck.Release(t)[0]), "it got the lock, for nobody")
	w.awaitFree("a", soon)
}

func TestALateFirstTryOfALockThatIsUnlockedByThenIsTakenBackLongBeforeItsLeaseEnds(t *testing.T) {
	w := onShared(t)
	p := w.peer() // 30 s
	l := p.NewLock("a")
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	abandoned := w.counter(p, luaAbandon)
	w.leave(w.enter(t.Context(), l, soon), l, soon)
	redistest.Eventually(t, soon, func() bool { return abandoned() >= 2 }, "it is abandoned, more than once")
	w.awaitFree("a", 0)

	require.Positive(t, tokenOf(t, stuck.Release(t)[0]), "it got the lock, for nobody")
	w.awaitFree("a", soon)
}

func TestALateLockOfAClosedClientIsFreeAfterItsLease(t *testing.T) {
	w := onShared(t)
	const ttl = 300 * time.Millisecond
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	w.giveUp(t.Context(), p, l, stuck)
	require.NoError(t, w.call(soon, p.Close))
	require.Positive(t, tokenOf(t, stuck.Release(t)[0]), "it got the lock, for nobody")
	w.awaitFree("a", ttl+200*time.Millisecond)
}

func TestALateJoinOfTheQueueIsTakenBackAndTheSameHolderKeepsItsNewPlace(t *testing.T) {
	w := onShared(t)
	owner, p := w.peer(), w.peer()
	ol, l := owner.NewLock("a"), p.NewLock("a")
	section := w.enter(t.Context(), ol, soon)
	me := holderContext(t)
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold()).Skip(1) // the first only says that it is busy
	w.giveUp(me, p, l, stuck)

	waiter := w.start(me, l)
	w.awaitWaiters("a", 1)
	queue := w.holders("a")
	require.Contains(t, stuck.Release(t)[0], "\r\n:1\r\n", "it joined the queue, behind the one there, for nobody")
	w.awaitWaiters("a", 1)
	require.Equal(t, queue, w.holders("a"))
	require.True(t, waiter.waiting())
	w.leave(section, ol, soon)
	w.leave(waiter.in(soon), l, soon)
	w.awaitFree("a", 0)
}

func TestALateJoinOfTheQueueThatNobodyTakesBackIsPassedOver(t *testing.T) {
	// After its lease nobody tries to take it back any more: a grant finds that nobody hears it ("deaf"), or is given
	// back by a client that does, for another waiter ("heard").
	w := onShared(t)
	const ttl = 200 * time.Millisecond
	owner, p, next := w.peer(), w.peer(), w.peer()
	locks := []string{"deaf", "heard"}
	var sections []context.Context
	stuck := map[string]*redistest.Rule{}
	for _, name := range locks {
		sections = append(sections, w.enter(t.Context(), owner.NewLock(name), soon))
		stuck[name] = p.faults.Once(w.script(luaAcquire).And(redistest.WithArg(baseKey(name))), redistest.Hold()).Skip(1)
		w.giveUp(t.Context(), p, p.NewLock(name, relock.WithTTL(ttl)), stuck[name])
	}
	given := time.Now()
	stays := w.start(t.Context(), p.NewLock("heard"))
	w.awaitWaiters("heard", 1)
	sleepUntil(given.Add(ttl + 2200*time.Millisecond)) // the last try is at most 2 s after the lease
	for i, name := range locks {
		stuck[name].Release(t)
		before := w.waiters(name)
		waiter := w.start(t.Context(), next.NewLock(name))
		w.awaitWaiters(name, before+1)
		w.leave(sections[i], owner.NewLock(name), soon)
		if name == "heard" {
			w.leave(stays.in(soon), stays.lock, soon)
		}
		w.leave(waiter.in(soon), waiter.lock, soon)
		w.awaitFree(name, 0)
	}
}

func TestALateNestedLockDoesNotRaiseTheCount(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	outer := w.enter(holderContext(t), l, soon)
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	w.giveUp(outer, p, l, stuck)
	require.Equal(t, 1, l.Count(outer))

	w.leave(w.enter(outer, l, soon), l, soon)
	w.requireCount("a", 1)
	stuck.Release(t)
	w.requireCount("a", 1)
	w.leave(outer, l, soon)
	w.awaitFree("a", 0)
}

func TestALateNestedLockIsTakenOutOfTheCountThoughNothingElseHappens(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	outer := w.enter(holderContext(t), l, soon)
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	w.giveUp(outer, p, l, stuck)
	stuck.Release(t)
	redistest.Eventually(t, soon, func() bool { _, count := w.owner("a"); return count == 1 }, "the count is right again")
	w.leave(outer, l, soon)
	w.awaitFree("a", 0)
}

func TestTheCountIsSetRightForAsLongAsTheLockIsHeld(t *testing.T) {
	const ttl = 300 * time.Millisecond
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a", relock.WithTTL(ttl))
	outer := w.enter(holderContext(t), l, soon)
	entered := p.faults.Once(w.script(luaAcquire), redistest.DropReply(redistest.Silence))
	lost := p.faults.On(w.script(luaRelease), redistest.CutBefore(redistest.EOF))
	w.giveUp(outer, p, l, entered)
	sleepUntil(time.Now().Add(2 * ttl))
	require.True(t, l.Held(outer), "renewals go on")
	w.requireCount("a", 2)
	lost.Remove()
	redistest.Eventually(t, soon, func() bool { _, count := w.owner("a"); return count == 1 }, "the count is right again")
	w.leave(outer, l, soon)
	w.awaitFree("a", 0)
}

func TestAnInnerUnlockIsTriedForAsLongAsTheLeaseIsRenewed(t *testing.T) {
	const ttl = 300 * time.Millisecond
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a", relock.WithTTL(ttl))
	outer := w.enter(holderContext(t), l, soon)
	inner := w.enter(outer, l, soon)
	lost := p.faults.On(w.script(luaRelease), redistest.CutBefore(redistest.EOF))
	removed := make(chan struct{})
	timer := time.AfterFunc(2*ttl, func() { lost.Remove(); close(removed) })
	defer timer.Stop()
	w.leave(inner, l, soon)
	select {
	case <-removed:
	default:
		require.Fail(t, "it was released through a network that lets no release through")
	}
	w.requireCount("a", 1)
	w.leave(outer, l, soon)
	w.awaitFree("a", 0)
}

func TestALateNestedLockOfAnEarlierHoldTouchesNothing(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	me := holderContext(t)
	outer := w.enter(me, l, soon)
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	w.giveUp(outer, p, l, stuck)
	w.leave(outer, l, soon)

	section := w.enter(me, l, soon)
	stuck.Release(t)
	w.requireCount("a", 1)
	w.leave(section, l, soon)
	w.awaitFree("a", 0)
}

func TestALateNestedLockOnAFreeLockDoesNotTakeIt(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	outer := w.enter(t.Context(), l, soon)
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	w.giveUp(outer, p, l, stuck)
	w.leave(outer, l, soon)
	stuck.Release(t)
	w.awaitFree("a", 0)
}

func TestALateInnerUnlockDoesNotLowerTheCount(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	me := holderContext(t)
	outer := w.enter(me, l, soon)
	inner := w.enter(outer, l, soon)
	stuck := p.faults.Once(w.script(luaRelease), redistest.Hold())
	w.leave(inner, l, soon) // the first try hangs, the second is answered
	w.requireCount("a", 1)

	inner = w.enter(outer, l, soon)
	stuck.Release(t)
	w.requireCount("a", 2)
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	w.awaitFree("a", 0)
}

func TestALateInnerUnlockOfAnEarlierHoldTouchesNothing(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	me := holderContext(t)
	outer := w.enter(me, l, soon)
	inner := w.enter(outer, l, soon)
	stuck := p.faults.Once(w.script(luaRelease), redistest.Hold())
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)

	outer = w.enter(me, l, soon)
	inner = w.enter(outer, l, soon)
	stuck.Release(t)
	w.requireCount("a", 2)
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	w.awaitFree("a", 0)
}

func TestALateLastUnlockDoesNotFreeWhatIsHeldByThen(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same holder %v", same), func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a")
			me := holderContext(t)
			section := w.enter(me, l, soon)
			stuck := p.faults.Once(w.script(luaRelease), redistest.Hold())
			w.leave(section, l, soon)
			w.awaitFree("a", 0)

			if !same {
				me = holderContext(t)
			}
			section = w.enter(me, l, soon)
			stuck.Release(t)
			w.requireCount("a", 1)
			require.NoError(t, section.Err())
			w.leave(section, l, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestUnlocksThatAllHangFreeTheLockSoonAndTouchNothingWhenTheyRun(t *testing.T) {
	w := onShared(t)
	const ttl = 900 * time.Millisecond
	p, next := w.peer(relock.WithTTL(ttl)), w.peer()
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	stuck := p.faults.On(w.script(luaRelease), redistest.Hold())
	waiter := w.start(t.Context(), next.NewLock("a"))
	w.awaitWaiters("a", 1)
	err := w.call(ttl+promptly, func() error { return l.Unlock(section) })
	require.Error(t, err)
	mine := waiter.in(soon)
	require.GreaterOrEqual(t, len(stuck.Release(t)), 2)
	w.requireCount("a", 1)
	stuck.Remove()
	w.leave(mine, waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestALateRenewalDoesNotExtendWhatIsHeldByThen(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same holder %v", same), func(t *testing.T) {
			w := onShared(t)
			p := w.peer(relock.WithTTL(3 * time.Second))
			l := p.NewLock("a")
			me := holderContext(t)
			section := w.enter(me, l, soon)
			stuck := p.faults.Once(w.script(luaRenew), redistest.Hold())
			stuck.WaitHits(t, 1)
			w.leave(section, l, soon)

			if !same {
				me = holderContext(t)
			}
			short := p.NewLock("a", relock.WithFixedLease(time.Second))
			section = w.enter(me, short, soon)
			stuck.Release(t)
			w.requireCount("a", 1)
			require.LessOrEqual(t, w.lease("a"), time.Second)
			w.leave(section, short, soon)
			stuck.Release(t)
			w.awaitFree("a", 0)
		})
	}
}

func TestALateAbandonDoesNotTakeTheSameHoldersNewPlaceOrLock(t *testing.T) {
	w := onShared(t)
	owner, p := w.peer(), w.peer()
	ol, l := owner.NewLock("a"), p.NewLock("a")
	section := w.enter(t.Context(), ol, soon)
	me := holderContext(t)
	ctx, cancel := context.WithCancel(me)
	waiter := w.start(ctx, l)
	w.awaitWaiters("a", 1)
	stuck := p.faults.Once(w.script(luaAbandon), redistest.Hold())
	cancel()
	require.True(t, isDone(waiter.out(promptly)))
	stuck.WaitHits(t, 1)
	w.awaitWaiters("a", 0) // by the next try

	waiter = w.start(me, l)
	w.awaitWaiters("a", 1)
	stuck.Release(t)
	require.Equal(t, 1, w.waiters("a"))
	w.leave(section, ol, soon)
	mine := waiter.in(soon)
	w.requireCount("a", 1)
	w.leave(mine, l, soon)
	w.awaitFree("a", 0)
}

func TestALateForceUnlockDoesNotHitTheNextHolder(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same holder %v", same), func(t *testing.T) {
			w := onShared(t)
			operator, p := w.peer(), w.peer(relock.WithTTL(600*time.Millisecond))
			l := p.NewLock("a")
			me := holderContext(t)
			section := w.enter(me, l, soon)
			stuck := operator.faults.Once(w.script(luaForce), redistest.Hold())
			require.NoError(t, w.call(soon, func() error { return operator.NewLock("a").ForceUnlock(t.Context()) }))
			w.lost(section, soon)

			if !same {
				me = holderContext(t)
			}
			section = w.enter(me, l, soon)
			stuck.Release(t)
			w.requireCount("a", 1)
			w.leave(section, l, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestALateStateChangesNothing(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	stuck := p.faults.Once(w.script(luaState), redistest.Hold())
	_, err := l.State(t.Context())
	require.NoError(t, err)
	section := w.enter(t.Context(), l, soon)
	stuck.Release(t)
	w.requireCount("a", 1)
	w.leave(section, l, soon)
	w.awaitFree("a", 0)
}

// ---------------------------------------------------------------------------------------------------------------------
// Every command of a whole story, one after another.

// story is two clients and a waiter: what they do, and that it ends well. It runs on clients of its own each time, on
// one lock each time.
func (w *arena) story(p, other *peer, name string) {
	w.t.Helper()
	l := p.NewLock(name)
	outer := w.enter(w.t.Context(), l, soon)
	inner := w.enter(outer, l, soon)
	w.requireCount(name, 2)
	waiter := w.start(w.t.Context(), other.NewLock(name))
	w.awaitWaiters(name, 1)
	w.leave(inner, l, soon)
	w.requireCount(name, 1)
	require.True(w.t, waiter.waiting())
	w.leave(outer, l, soon)
	mine := waiter.in(soon)
	w.requireCount(name, 1)
	require.Positive(w.t, waiter.lock.Token(mine))

	ctx, cancel := context.WithCancel(w.t.Context())
	gone := w.start(ctx, l)
	w.awaitWaiters(name, 1)
	cancel()
	require.True(w.t, isDone(gone.out(promptly)))
	w.awaitWaiters(name, 0)
	w.leave(mine, waiter.lock, soon)
	w.awaitFree(name, 0)
}

// The commands of interest: all but the handshake of a connection.
var ofInterest = redistest.Named("EVALSHA", "EVAL", "SUBSCRIBE", "UNSUBSCRIBE")

func TestAConnectionMayBreakAtAnyCommandOfTheStory(t *testing.T) {
	w := onShared(t)
	for _, fault := range []struct {
		name   string
		match  redistest.Match
		action redistest.Action
	}{
		{"before it", ofInterest, redistest.CutBefore(redistest.EOF)},
		{"after it", ofInterest, redistest.DropReply(redistest.EOF)},
		// A silent SUBSCRIBE takes seconds to find out, and has a test of its own.
		{"after it, silently", w.script(scriptNames...), redistest.DropReply(redistest.Silence)},
	} {
		t.Run(fault.name, func(t *testing.T) {
			for _, mine := range []bool{true, false} {
				for n := 0; ; n++ {
					w := w.in(t)
					p, other := w.peer(), w.peer()
					victim := other
					if mine {
						victim = p
					}
					rule := victim.faults.Once(fault.match, fault.action).Skip(n)
					w.story(p, other, fmt.Sprintf("a%v%d", mine, n))
					require.NoError(t, p.Close())
					require.NoError(t, other.Close())
					if rule.Hits() == 0 { // there are no more commands
						t.Logf("%d commands, each of them once (mine: %v)", n, mine)
						require.GreaterOrEqual(t, n, 3)
						break
					}
				}
			}
		})
	}
}

func TestScriptsMayBeFlushedBeforeAnyCommandOfTheStory(t *testing.T) {
	w := onOwn(t)
	for n := 0; ; n++ {
		w := w.in(t)
		p, other := w.peer(), w.peer()
		sent := 0
		var mu sync.Mutex
		flush := redistest.Before(func([]string) {
			mu.Lock()
			defer mu.Unlock()
			if sent++; sent == n+1 {
				_ = w.plain.ScriptFlush(context.Background()).Err()
			}
		})
		p.faults.On(ofInterest, flush)
		other.faults.On(ofInterest, flush)
		w.story(p, other, fmt.Sprint("a", n))
		require.NoError(t, p.Close())
		require.NoError(t, other.Close())
		mu.Lock()
		last := sent <= n // there are no more commands
		mu.Unlock()
		if last {
			t.Logf("%d commands, a flush before each of them once", n)
			require.GreaterOrEqual(t, n, 10)
			return
		}
	}
}

func TestACommandThatRunsTwiceOrThreeTimesDoesWhatItDoesOnce(t *testing.T) {
	for _, times := range []int{2, 3} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			w := onShared(t)
			p, other := w.peer(), w.peer()
			for _, victim := range []*peer{p, other} {
				victim.faults.On(w.script(scriptNames...), redistest.Duplicate(times, redistest.First))
			}
			w.story(p, other, "a")
		})
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// The server refuses.

// limit of a call that should not wait for anything.
const atOnce = 500 * time.Millisecond

func TestARefusalThatStaysIsReturnedAtOnceAndAskedOnce(t *testing.T) {
	for _, reply := range []string{
		"OOM command not allowed when used memory > 'maxmemory'.",
		"NOAUTH Authentication required.",
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"WRONGTYPE Operation against a key holding the wrong kind of value",
		"MISCONF Redis is configured to save RDB snapshots",
		"ERR unknown command 'EVALSHA'",
		"ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
	} {
		code, _, _ := strings.Cut(reply, " ")
		t.Run(reply, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			calls := w.counter(p, luaAcquire)
			p.faults.On(w.script(luaAcquire), redistest.Answer("-"+reply))
			a := w.start(t.Context(), p.NewLock("a"))
			require.ErrorContains(t, a.out(atOnce), code)
			var refusal redis.Error
			require.ErrorAs(t, a.err, &refusal)
			require.Equal(t, 1, calls())
		})
	}
}

func TestARefusalThatPassesIsAskedAgainWhileTheContextAllows(t *testing.T) {
	for _, reply := range []string{
		"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"CLUSTERDOWN The cluster is down",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"BUSY Redis is busy running a script.",
		"NOREPLICAS Not enough good replicas to write.",
		"ERR max number of clients reached",
		"ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write",
	} {
		t.Run(reply, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			l := p.NewLock("a")
			calls := w.counter(p, luaAcquire)
			refuse := p.faults.On(w.script(luaAcquire), redistest.Answer("-"+reply)).Times(3)
			section := w.enter(t.Context(), l, soon)
			require.Equal(t, 4, calls())
			w.leave(section, l, soon)
			refuse.Remove()

			p.faults.On(w.script(luaAcquire), redistest.Answer("-"+reply))
			before := calls()
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			err := w.start(ctx, l).out(150*time.Millisecond + promptly)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			code, _, _ := strings.Cut(reply, " ")
			require.ErrorContains(t, err, code, "the error says what was in the way")
			require.LessOrEqual(t, calls()-before, 12, "no hot loop")
		})
	}
}

func TestOutOfMemoryRefusesNewLocksAndStillServesThoseHeld(t *testing.T) {
	w := onOwn(t, "--maxmemory-policy", "noeviction")
	const ttl = 600 * time.Millisecond
	p, next := w.peer(relock.WithTTL(ttl)), w.peer()
	l := p.NewLock("a")
	outer := w.enter(t.Context(), l, soon)
	inner := w.enter(outer, l, soon)
	waiter := w.start(t.Context(), next.NewLock("a"))
	w.awaitWaiters("a", 1)
	require.NoError(t, w.plain.ConfigSet(t.Context(), "maxmemory", "1").Err())

	calls := w.counter(next, luaAcquire)
	require.ErrorContains(t, w.start(t.Context(), next.NewLock("b")).out(atOnce), "OOM")
	require.Equal(t, 1, calls())
	renewals := w.counter(p, luaRenew)
	redistest.Eventually(t, soon, func() bool { return renewals() >= 4 }, "the lease is renewed")
	require.NoError(t, outer.Err())
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	mine := waiter.in(soon)
	w.leave(mine, waiter.lock, soon)
	w.awaitFree("a", 0)
	require.NoError(t, w.plain.ConfigSet(t.Context(), "maxmemory", "0").Err())
	w.leave(w.enter(t.Context(), next.NewLock("b"), soon), next.NewLock("b"), soon)
}

func TestAReadOnlyServerIsWaitedForAndItsHolderIsToldInTime(t *testing.T) {
	for _, serveStale := range []string{"yes", "no"} { // READONLY, MASTERDOWN
		t.Run("serve stale "+serveStale, func(t *testing.T) {
			w := onOwn(t, "--replica-serve-stale-data", serveStale)
			const ttl = 600 * time.Millisecond
			p, next := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl))
			l := p.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			host, port, _ := strings.Cut(w.server.Addr(), ":")
			// It follows itself, which never comes to a synchronization: a replica without its master.
			require.NoError(t, w.plain.ReplicaOf(t.Context(), host, port).Err())
			waiter := w.start(t.Context(), next.NewLock("b"))
			calls := w.counter(next, luaAcquire)
			require.Equal(t, relock.LossExpired, w.lost(section, ttl+promptly).Reason)
			require.True(t, waiter.waiting())
			require.LessOrEqual(t, calls(), 15, "no hot loop")
			require.NoError(t, w.plain.ReplicaOf(t.Context(), "no", "one").Err())
			w.leave(waiter.in(soon), waiter.lock, soon)
			other := next.NewLock("a")
			w.leave(w.enter(t.Context(), other, soon), other, soon)
			require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		})
	}
}

func TestAClusterThatIsDownIsWaitedForAndItsHolderIsToldInTime(t *testing.T) {
	w := onOwn(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "500")
	slots := make([]int, 16384)
	for i := range slots {
		slots[i] = i
	}
	require.NoError(t, w.plain.ClusterAddSlots(t.Context(), slots...).Err())
	const ttl = 600 * time.Millisecond
	p, next := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, 10*time.Second)                // it takes its time to be up
	require.NoError(t, w.plain.ClusterDelSlots(t.Context(), 0).Err()) // nobody has one slot: all of them are down
	redistest.Eventually(t, soon, func() bool {
		return redis.HasErrorPrefix(w.plain.Exists(t.Context(), "b").Err(), "CLUSTERDOWN")
	}, "it is down")
	waiter := w.start(t.Context(), next.NewLock("b"))
	calls := w.counter(next, luaAcquire)
	require.Equal(t, relock.LossExpired, w.lost(section, ttl+promptly).Reason)
	require.True(t, waiter.waiting())
	require.LessOrEqual(t, calls(), 15, "no hot loop")
	require.NoError(t, w.plain.ClusterAddSlots(t.Context(), 0).Err())
	w.leave(waiter.in(10*time.Second), waiter.lock, soon)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	other := next.NewLock("a")
	w.leave(w.enter(t.Context(), other, soon), other, soon)
}

func TestALoadingServerIsWaitedFor(t *testing.T) {
	if !redistest.Shared(t).AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a server that loads little does not answer meanwhile")
	}
	// With an option for persistence of its own, the server keeps its file when it is started again.
	w := onOwn(t, "--appendonly", "no", "--key-load-delay", "1500", "--loading-process-events-interval-bytes", "1024")
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = time.Second })
	l := p.NewLock("a")
	w.leave(w.enter(t.Context(), l, soon), l, soon)
	pipe := w.plain.Pipeline()
	for i := range 600 {
		pipe.Set(t.Context(), fmt.Sprintf("filler:%d", i), strings.Repeat("x", 100), time.Hour)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	require.NoError(t, w.plain.Save(t.Context()).Err())

	loading := p.faults.On(w.script(luaAcquire), redistest.After(func([]string, string) {}))
	var mu sync.Mutex
	said := 0
	p.faults.On(w.script(luaAcquire), redistest.After(func(_ []string, reply string) {
		if strings.HasPrefix(reply, "LOADING") || strings.HasPrefix(reply, "-LOADING") {
			mu.Lock()
			said++
			mu.Unlock()
		}
	}))
	restarted := make(chan struct{})
	var section context.Context
	w.server.Kill()
	waiter := w.start(t.Context(), l)
	go func() { defer close(restarted); w.server.Restart() }()
	section = waiter.in(10 * time.Second)
	<-restarted
	mu.Lock()
	require.Positive(t, said, "the server said LOADING")
	mu.Unlock()
	require.LessOrEqual(t, loading.Hits(), 40, "no hot loop")
	w.leave(section, l, soon)
	require.NoError(t, w.plain.FlushAll(t.Context()).Err())
}

func TestAServerWithoutRoomForConnectionsIsWaitedFor(t *testing.T) {
	w := onOwn(t)
	clients, err := w.plain.Do(t.Context(), "INFO", "clients").Text()
	require.NoError(t, err)
	_, after, _ := strings.Cut(clients, "connected_clients:")
	digits, _, _ := strings.Cut(after, "\r\n")
	require.NoError(t, w.plain.ConfigSet(t.Context(), "maxclients", digits).Err())
	p := w.peer()
	l := p.NewLock("a")
	waiter := w.start(t.Context(), l)
	sleepUntil(time.Now().Add(400 * time.Millisecond))
	require.True(t, waiter.waiting(), "%v", waiter.err)
	require.LessOrEqual(t, p.faults.Stats().Dials, 15, "no hot loop")
	require.NoError(t, w.plain.ConfigSet(t.Context(), "maxclients", "1000").Err())
	w.leave(waiter.in(soon), l, soon)
}

func TestAMissingPasswordIsToldAtOnce(t *testing.T) {
	w := onOwn(t, "--requirepass", "secret")
	p := w.peerOn(func(o *redis.Options) { o.Password = "" })
	// NOAUTH, or "unauthenticated multibulk length" where a script call is longer than what Redis reads from a stranger.
	require.Regexp(t, "NOAUTH|unauthenticated", w.start(t.Context(), p.NewLock("a")).out(atOnce))
	q := w.peerOn(func(o *redis.Options) { o.Password = "wrong" })
	require.ErrorContains(t, w.start(t.Context(), q.NewLock("a")).out(atOnce), "WRONGPASS")
}

func TestAWrongTypeUnderAKeyOfTheLockIsToldAtOnceAndLeftAlone(t *testing.T) {
	for _, suffix := range []string{"", ":queue", ":token"} {
		t.Run("key"+suffix, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			require.NoError(t, w.plain.SAdd(t.Context(), baseKey("a")+suffix, "x").Err())
			calls := w.counter(p, luaAcquire)
			require.ErrorContains(t, w.start(t.Context(), p.NewLock("a")).out(atOnce), "WRONGTYPE")
			require.Equal(t, 1, calls())
			require.Equal(t, []string{baseKey("a") + suffix}, redistest.Keys(t, w.plain))
			require.NoError(t, w.plain.FlushAll(t.Context()).Err())
		})
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// ACL.

// aclCommands is the fewest commands that a Redis user needs to do everything with locks on a server that is no cluster,
// beside `~relock:* &relock:*`. TestTheCommandsForAnACLUserAreEnoughAndNoneIsTooMany derives it. The README shows it.
var aclCommands = []string{
	// Sent by the client.
	"evalsha", "eval", "subscribe", "unsubscribe", "ping",
	// Used in the scripts.
	"del", "exists", "get", "hdel", "hexists", "hgetall", "hmget", "hset", "incrby", "pexpire", "pttl", "publish", "pubsub|numsub", "time",
	"zadd", "zcard", "zpopmin", "zrange", "zrank", "zrem", "zscore",
}

// aclReplicaAcks is what WithReplicaAcks needs in addition.
var aclReplicaAcks = []string{"wait"}

// aclUser makes a user with a client of its own.
func (w *arena) aclUser(name string, rules []string, options ...relock.Option) *peer {
	w.t.Helper()
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">" + name}
	for _, r := range rules {
		args = append(args, r)
	}
	require.NoError(w.t, w.plain.Do(context.Background(), args...).Err())
	return w.peerOn(func(o *redis.Options) { o.Username, o.Password = name, name }, options...)
}

func allow(commands ...string) []string {
	rules := []string{"~relock:*", "resetchannels", "&relock:*"}
	for _, c := range commands {
		rules = append(rules, "+"+c)
	}
	return rules
}

func TestAUserWhoMayNotSetLeasesLeavesNoLockWithoutOne(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from commands in scripts in this way")
	}
	const ttl = 2 * time.Second
	others := w.peer(relock.WithTTL(ttl))
	p := w.aclUser("lessor", []string{"~*", "&*", "+@all", "-pexpire", "-pexpireat"})
	const names = 64
	for i := range names { // so that their tokens have a TTL
		l := others.NewLock(fmt.Sprint(i))
		w.leave(w.enter(t.Context(), l, soon), l, soon)
	}
	isRefused := func(name string) {
		t.Helper()
		_, err := p.NewLock(name).TryLock(t.Context())
		require.ErrorContains(t, err, "can't run this command")
		require.NotEqual(t, time.Duration(-1), w.plain.PTTL(t.Context(), "relock:{"+name+"}").Val())
	}
	isRefused("0")

	dead := redis.Z{Score: 1, Member: "dead:1:1|dead|30000"}
	require.NoError(t, w.plain.ZAdd(t.Context(), "relock:{0}:queue", dead).Err())
	isRefused("0")

	section := w.enter(t.Context(), others.NewLock("0"), soon)
	waiter := w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("0"))
	w.awaitWaiters("0", 1)
	require.NoError(t, w.plain.Del(t.Context(), "relock:{0}").Err()) // the lease is over, and nobody has found out
	isRefused("0")
	require.ErrorIs(t, others.NewLock("0").Unlock(section), relock.ErrLockLost)
	w.leave(waiter.in(soon), waiter.lock, soon)

	var all sync.WaitGroup
	for i := range names { // together, so that some share a script call
		all.Go(func() { _, _ = p.NewLock(fmt.Sprint(i)).TryLock(t.Context()) })
	}
	all.Wait()
	for i := range names {
		require.Zero(t, w.plain.Exists(t.Context(), fmt.Sprintf("relock:{%d}", i)).Val())
	}
}

func TestARenewalThatMayNotLookWhoseTheLockIsDoesNotFreeIt(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from commands in scripts in this way")
	}
	const ttl = 600 * time.Millisecond
	p := w.aclUser("blind", []string{"~*", "&*", "+@all", "-hexists"}, relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	renewals := w.counter(p, luaRenew)
	redistest.Eventually(t, soon, func() bool { return renewals() >= 2 }, "the first one is not confirmed, and not the last one")
	require.Equal(t, relock.LossExpired, w.lost(section, ttl+promptly).Reason)
	w.awaitFree("a", soon)

	fixed := p.NewLock("b", relock.WithFixedLease(time.Minute))
	section = w.enter(t.Context(), fixed, soon)
	require.ErrorContains(t, fixed.Extend(section, time.Hour), "can't run this command")
	w.requireCount("b", 1)
	w.leave(section, fixed, soon)
}

// complaints collects what goes wrong for a user: errors, and what only the log and the hooks tell of.
type complaints struct {
	mu   sync.Mutex
	list []string
}

func (c *complaints) add(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if strings.Contains(text, "no answer from Redis yet") {
		return // a renewal on a busy machine; who may not renew is told so
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, text)
}

func (c *complaints) check(what string, err error) {
	if err != nil {
		c.add("%s: %v", what, err)
	}
}

func (c *complaints) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

func (c *complaints) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}
func (c *complaints) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	if !strings.Contains(text, "lock lost") { // the tour forces one
		c.add("logged: %s", text)
	}
	return nil
}
func (c *complaints) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c *complaints) WithGroup(string) slog.Handler      { return c }

// tour does everything that a lock can do as one user, and returns what went wrong.
func (w *arena) tour(name string, rules []string) []string {
	var c complaints
	options := []relock.Option{
		relock.WithTTL(3 * time.Second), relock.WithLogger(slog.New(&c)),
		relock.WithHooks(relock.Hooks{
			Reconnected: func(relock.Reconnected) { c.add("the pub/sub connection was lost") },
			Renewed:     func(e relock.Renewed) { c.check("renew", e.Err) },
		}),
	}
	p, q := w.aclUser(name, rules, options...), w.aclUser(name, rules, options...)
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Second)
	defer cancel()
	l, other := p.NewLock(name), q.NewLock(name)
	second, waited := p.NewLock(name+":second"), q.NewLock(name+":second")

	long, err := second.Lock(ctx)
	c.check("lock", err)
	last := w.start(ctx, waited)
	outer, err := l.Lock(ctx)
	c.check("lock", err)
	inner, err := l.Lock(outer)
	c.check("nested lock", err)
	waiting, stop := context.WithCancel(ctx)
	gone := w.start(waiting, other)
	waiter := w.start(ctx, other)
	// Long enough that the pub/sub connection asks for a sign of life, and leases are renewed.
	within := func(d time.Duration, f func() bool) bool {
		for end := time.Now().Add(d); time.Now().Before(end); {
			if f() {
				return true
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return f()
	}
	queue := func(n int) func() bool {
		return func() bool {
			got, err := w.plain.ZCard(context.Background(), baseKey(name)+":queue").Result()
			return err == nil && int(got) == n
		}
	}
	if !within(time.Second, queue(2)) {
		c.add("two should be queued")
	}
	stop()
	within(time.Second, func() bool { return !gone.waiting() })
	if !within(time.Second, queue(1)) {
		c.add("the one that gave up is still queued")
	}
	within(2300*time.Millisecond, func() bool { return !waiter.waiting() || !last.waiting() })
	if state, err := l.State(ctx); err != nil || state.Count != 2 || state.Waiters != 1 {
		c.add("state: %+v %v", state, err)
	}
	c.check("unlock", l.Unlock(inner))
	c.check("last unlock", l.Unlock(outer))
	if !within(soon, func() bool { return !waiter.waiting() }) {
		c.add("the waiter is not in")
		<-waiter.done
	}
	c.check("the waiter", waiter.err)
	c.check("force", l.ForceUnlock(ctx))
	if err := other.Unlock(waiter.section); !errors.Is(err, relock.ErrLockLost) {
		c.add("unlock after force: %v", err)
	}
	fixed := p.NewLock(name, relock.WithFixedLease(time.Second))
	section, err := fixed.Lock(ctx)
	c.check("fixed", err)
	c.check("extend", fixed.Extend(section, 2*time.Second))
	c.check("unlock fixed", fixed.Unlock(section))
	// A subscription that nobody needs ends while the connection is in use for another.
	if !within(soon+soon/2, func() bool {
		channels, err := w.plain.PubSubChannels(context.Background(), "*").Result()
		return err == nil && !slices.ContainsFunc(channels, func(c string) bool { return strings.HasPrefix(c, baseKey(name)+":") })
	}) {
		c.add("the subscription stays")
	}
	c.check("unlock", second.Unlock(long))
	if !within(soon, func() bool { return !last.waiting() }) {
		c.add("the last waiter is not in")
		<-last.done
	}
	c.check("the last waiter", last.err)
	c.check("unlock", waited.Unlock(last.section))
	c.check("close", p.Close())
	c.check("close", q.Close())
	return c.all()
}

func TestTheCommandsForAnACLUserAreEnoughAndNoneIsTooMany(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from channels or from commands in scripts in this way")
	}
	without := func(command string) []string {
		return allow(slices.DeleteFunc(slices.Clone(aclCommands), func(c string) bool { return c == command })...)
	}
	lack := func(command string) string { return "no-" + strings.ReplaceAll(command, "|", "-") }
	// EVAL is only sent to a server that has not seen the script, so its turn comes alone.
	require.NoError(t, w.plain.ScriptFlush(t.Context()).Err())
	lacking := w.aclUser("no-eval", without("eval"))
	require.ErrorContains(t, w.start(t.Context(), lacking.NewLock("a")).out(atOnce), "NOPERM")
	w.loadScripts()

	results := make(map[string][]string)
	var mu sync.Mutex
	var tours sync.WaitGroup
	tour := func(name string, rules []string) {
		tours.Go(func() {
			wrong := w.tour(name, rules)
			mu.Lock()
			defer mu.Unlock()
			results[name] = wrong
		})
	}
	tour("all", allow(aclCommands...))
	for _, command := range aclCommands {
		if command != "eval" {
			tour(lack(command), without(command))
		}
	}
	tours.Wait()
	require.Empty(t, results["all"], "the list is enough")
	for _, command := range aclCommands {
		if command != "eval" {
			require.NotEmpty(t, results[lack(command)], "%s could go", command)
		}
	}
	require.NoError(t, w.plain.FlushAll(t.Context()).Err()) // what the lacking ones could not take back
}

func TestWhatGoRedisSendsAsItIsSetUpIsToBeAllowedToo(t *testing.T) {
	w := onOwn(t)
	w.loadScripts()
	for command, setUp := range map[string]func(o *redis.Options){
		"select":         func(o *redis.Options) { o.DB = 5 },
		"client|setname": func(o *redis.Options) { o.ClientName = "relock" },
	} {
		for _, may := range []bool{false, true} {
			rules := allow(aclCommands...)
			if may {
				rules = append(rules, "+"+command)
			}
			w.aclUser("poor", rules)
			p := w.peerOn(func(o *redis.Options) { o.Username, o.Password = "poor", "poor"; setUp(o) })
			l := p.NewLock("a")
			if may {
				w.leave(w.enter(t.Context(), l, soon), l, soon)
			} else {
				require.ErrorContains(t, w.start(t.Context(), l).out(soon), "NOPERM", command)
			}
		}
	}
}

func TestAUserWithoutTheChannelsIsToldWhenItHasToWait(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 users may use all channels unless told otherwise")
	}
	owner := w.peer()
	rules := slices.DeleteFunc(allow(aclCommands...), func(r string) bool { return strings.HasPrefix(r, "&") })
	p := w.aclUser("deaf", rules)
	l, ol := p.NewLock("a"), owner.NewLock("a")
	w.leave(w.enter(t.Context(), l, soon), l, soon)
	section := w.enter(t.Context(), ol, soon)
	err := w.start(t.Context(), l).out(atOnce)
	require.ErrorContains(t, err, "NOPERM")
	require.ErrorContains(t, err, "channel")
	w.leave(section, ol, soon)
}

func TestAUserOutsideOfItsKeysIsToldAtOnce(t *testing.T) {
	w := onOwn(t)
	p := w.aclUser("guest", allow(aclCommands...), relock.WithPrefix("other:"))
	require.ErrorContains(t, w.start(t.Context(), p.NewLock("a")).out(atOnce), "NOPERM")
}

// ---------------------------------------------------------------------------------------------------------------------
// Contexts.

// curious is a context whose methods use the library.
type curious struct {
	context.Context
	ask func()
}

func (c *curious) Err() error {
	c.ask()
	return c.Context.Err()
}

func (c *curious) Deadline() (time.Time, bool) {
	c.ask()
	return c.Context.Deadline()
}

func TestAContextWhoseMethodsUseTheLibraryStopsNobody(t *testing.T) {
	w := onShared(t)
	p := w.peer(relock.WithTTL(600 * time.Millisecond))
	l, other := p.NewLock("a"), p.NewLock("b")
	section := w.enter(t.Context(), other, soon)
	var stuck atomic.Bool
	request := &curious{Context: t.Context(), ask: func() {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_ = other.Held(section)
		}()
		if !stuck.Load() && !w.within(soon, answered) {
			stuck.Store(true)
		}
	}}
	outer := w.enter(request, l, soon)
	inner := w.enter(outer, l, soon)
	third := w.enter(outer, l, soon)
	w.leave(outer, l, soon) // so whether the others are worked in is for the request to say
	w.leave(third, l, soon)
	renewals := w.counter(p, luaRenew)
	redistest.Eventually(t, soon, func() bool { return renewals() >= 3 }, "the leases are renewed")
	require.False(t, stuck.Load())
	require.True(t, l.Held(inner))
	w.leave(inner, l, soon)
	w.leave(section, other, soon)
}

// ---------------------------------------------------------------------------------------------------------------------
// Replicas.

// withReplica is a server with a replica that is in sync.
func withReplica(t *testing.T) (*arena, *redistest.Server) {
	t.Helper()
	w := onOwn(t, "--repl-diskless-sync", "no") // which streams at once
	host, port, _ := strings.Cut(w.server.Addr(), ":")
	replica := redistest.Start(t, "--replicaof", host, port)
	redistest.Eventually(t, 15*time.Second, func() bool {
		// Behind a write on the same connection: else there is nothing that the replica could lack.
		var wait *redis.Cmd
		_, err := w.plain.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "written", 1, time.Millisecond)
			wait = p.Do(t.Context(), "WAIT", 1, 100)
			return nil
		})
		n, _ := wait.Int()
		return err == nil && n == 1
	}, "the replica is in sync")
	return w, replica
}

func TestReplicaAcksConfirmNewHoldsOnly(t *testing.T) {
	w, _ := withReplica(t)
	patient := func(o *redis.Options) { o.ReadTimeout = 2 * soon } // the replica may be slow, on a busy machine
	p, q := w.peerOn(patient, relock.WithReplicaAcks(1, soon)), w.peerOn(patient, relock.WithReplicaAcks(1, soon))
	l := p.NewLock("a")
	outer := w.enter(t.Context(), l, soon)
	require.Equal(t, 1, p.faults.Commands("WAIT"))
	inner := w.enter(outer, l, soon)
	waiter := w.start(t.Context(), q.NewLock("a"))
	w.awaitWaiters("a", 1)
	redistest.Eventually(t, soon, func() bool { return q.faults.Commands("WAIT") == 2 }, "it has asked before and after it subscribed")
	q.faults.Reset()
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	require.Equal(t, 1, p.faults.Commands("WAIT"), "re-entry and exit are not waited for")
	mine := waiter.in(soon)
	require.Equal(t, 1, q.faults.Commands("WAIT"), "a grant is confirmed before it counts")
	w.requireCount("a", 1)
	w.leave(mine, waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestALostReplyWithReplicaAcksEntersOnce(t *testing.T) {
	w, _ := withReplica(t)
	for _, command := range []string{"EVALSHA", "WAIT"} {
		t.Run(command, func(t *testing.T) {
			for name, how := range breaks {
				t.Run(name, func(t *testing.T) {
					w := w.in(t)
					p := w.peer(relock.WithReplicaAcks(1, 100*time.Millisecond))
					l := p.NewLock("a")
					lose := p.faults.Once(redistest.Named(command), redistest.DropReply(how))
					section := w.enter(t.Context(), l, soon)
					require.Equal(t, 1, lose.Hits())
					w.requireCount("a", 1)
					w.leave(section, l, soon)
					w.awaitFree("a", 0)
				})
			}
		})
	}
}

func TestAServerThatBecomesAReplicaWhileItWaitsForReplicasIsAskedAgain(t *testing.T) {
	w, _ := withReplica(t)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 2 * soon }, relock.WithReplicaAcks(1, soon))
	l := p.NewLock("a")
	for _, answer := range []string{
		"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
		// It has become one between the script and WAIT.
		"-ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured " +
			"to be writable (which is not the default) writes to replicas are just local and are not propagated.",
	} {
		for name, lock := range map[string]locking{"Lock": l.Lock, "TryLock": l.TryLock} {
			demoted := p.faults.Once(redistest.Named("WAIT"), redistest.Answer(answer))
			section, err := lock(t.Context())
			require.NoError(t, err, name)
			require.Equal(t, 1, demoted.Hits())
			w.requireCount("a", 1)
			w.leave(section, l, soon)
			w.awaitFree("a", 0)
		}
	}
}

func TestTooFewReplicaAcksUndoExactlyThisEntry(t *testing.T) {
	w, replica := withReplica(t)
	const timeout = 80 * time.Millisecond
	one := w.peer()
	two := one.NewLock("a", relock.WithReplicaAcks(2, timeout))
	refusal := w.start(t.Context(), two).out(timeout + atOnce)
	require.ErrorIs(t, refusal, relock.ErrNotReplicated)
	require.ErrorContains(t, refusal, "1 of 2")
	w.awaitFree("a", 0)

	// With the replica stopped nobody confirms, neither a free lock nor a granted one; and the lock goes on to the next.
	l := one.NewLock("a", relock.WithReplicaAcks(1, timeout))
	owner, next := w.peer().NewLock("a"), w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	waiter := w.start(t.Context(), l)
	w.awaitWaiters("a", 1)
	behind := w.start(t.Context(), next)
	w.awaitWaiters("a", 2)
	replica.Pause()
	w.leave(section, owner, soon)
	require.ErrorIs(t, waiter.out(timeout+atOnce), relock.ErrNotReplicated)
	mine := behind.in(soon)
	w.requireCount("a", 1)
	w.leave(mine, next, soon)
	w.awaitFree("a", 0)
	require.ErrorIs(t, w.start(t.Context(), l).out(timeout+atOnce), relock.ErrNotReplicated)
	w.awaitFree("a", 0)

	// Also where a try of it comes late.
	stuck := one.faults.Once(w.script(luaAcquire), redistest.Hold())
	require.ErrorIs(t, w.start(t.Context(), l).out(timeout+soon), relock.ErrNotReplicated)
	stuck.Release(t)
	w.awaitFree("a", soon)

	// A section that is held already keeps what it has.
	plain := one.NewLock("a")
	outer := w.enter(t.Context(), plain, soon)
	inner := w.enter(outer, l, soon)
	w.requireCount("a", 2)
	w.leave(inner, l, soon)
	w.leave(outer, plain, soon)
	replica.Resume()
	section = w.enter(t.Context(), l, soon)
	w.leave(section, l, soon)
}

func TestWhatTooFewReplicasConfirmIsAbandonedOnlyWhereItsReleaseIsNotSure(t *testing.T) {
	for name, c := range map[string]struct {
		trouble func(w *arena, p *peer, cancel func()) // with an entry that is about to be asked for
		abandon bool
	}{
		"released": {func(*arena, *peer, func()) {}, false},
		"an entry may come late": {func(w *arena, p *peer, _ func()) {
			p.faults.Once(w.script(luaAcquire), redistest.DropReply(redistest.EOF))
		}, true},
		"not released by the end of the wait": {func(w *arena, p *peer, cancel func()) {
			p.faults.On(w.script(luaRelease), redistest.Answer("-LOADING Redis is loading the dataset in memory"))
			p.faults.Once(w.script(luaRelease), redistest.Before(func([]string) { cancel() }))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer(relock.WithReplicaAcks(1, time.Millisecond))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			abandoned := w.counter(p, luaAbandon)
			c.trouble(w, p, cancel)
			require.ErrorIs(t, w.start(ctx, p.NewLock("a")).out(soon), relock.ErrNotReplicated)
			w.awaitFree("a", soon)
			require.NoError(t, p.Close())
			require.Equal(t, c.abandon, abandoned() > 0)
		})
	}
}

// The lease is over when replicas have not confirmed it, so there is nothing to release; but the first in the queue may still be
// this one.
func TestAGrantWhoseLeaseIsOverBeforeTooFewReplicasConfirmItLeavesNoPlaceInTheQueue(t *testing.T) {
	w := onShared(t)
	p := w.peer(relock.WithReplicaAcks(1, time.Millisecond))
	owner, l := w.peer().NewLock("a"), p.NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	waiter := w.start(t.Context(), l)
	redistest.Eventually(t, soon, func() bool { return p.faults.Commands("WAIT") == 2 }, "it has asked before and after it subscribed")
	over := p.faults.Once(redistest.Named("WAIT"), redistest.After(func([]string, string) {
		require.NoError(t, w.plain.Del(context.Background(), baseKey("a")).Err())
	}))
	w.leave(section, owner, soon)
	require.ErrorIs(t, waiter.out(soon), relock.ErrNotReplicated)
	require.Equal(t, 1, over.Hits())
	w.awaitFree("a", soon)
}

func TestReplicaAcksNeedNoMoreThanOneCommandInTheACL(t *testing.T) {
	w, _ := withReplica(t)
	options := relock.WithReplicaAcks(1, 100*time.Millisecond)
	p := w.aclUser("acks", allow(slices.Concat(aclCommands, aclReplicaAcks)...), options)
	l := p.NewLock("a")
	w.leave(w.enter(t.Context(), l, soon), l, soon)
	q := w.aclUser("no-acks", allow(aclCommands...), options)
	require.ErrorContains(t, w.start(t.Context(), q.NewLock("a")).out(atOnce), "NOPERM")
	w.awaitFree("a", soon)
}

func TestTheConfirmationOfAGrantIsWrittenAlsoInTheMillisecondOfTheGrant(t *testing.T) {
	w, _ := withReplica(t)
	patient := func(o *redis.Options) { o.ReadTimeout = 2 * soon }
	p, q := w.peerOn(patient), w.peerOn(patient, relock.WithReplicaAcks(1, soon))
	l, m := p.NewLock("a"), q.NewLock("a")
	const rounds = 30
	grants := 0
	for range rounds {
		section := w.enter(t.Context(), l, soon)
		waiter := w.start(t.Context(), m)
		w.awaitWaiters("a", 1)
		before := w.calls()["pexpire"]
		w.leave(section, l, soon)
		mine := waiter.in(soon)
		grants += w.calls()["pexpire"] - before
		w.leave(mine, m, soon)
		w.awaitFree("a", soon)
	}
	require.Equal(t, 2*rounds, grants, "one for the grant, and one that WAIT waits for")
}

func TestALockThatTooFewReplicasConfirmReturnsAtItsEndAlsoWhenRedisIsSilentThen(t *testing.T) {
	for _, how := range []string{"its context", "its wait", "Close"} {
		t.Run(how, func(t *testing.T) {
			w := onShared(t)
			p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 3 * time.Second }, relock.WithReplicaAcks(1, 50*time.Millisecond))
			l := p.NewLock("a")
			silent := p.faults.Once(w.script(luaRelease), redistest.Hold())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				var err error
				if how == "its wait" {
					_, err = l.TryLockFor(ctx, 200*time.Millisecond)
				} else {
					_, err = l.Lock(ctx)
				}
				done <- err
			}()
			silent.WaitHits(t, 1)
			switch how {
			case "its context":
				cancel()
			case "Close":
				go func() { _ = p.Close() }()
			}
			select {
			case err := <-done:
				require.ErrorIs(t, err, relock.ErrNotReplicated)
			case <-time.After(time.Second):
				t.Error("it has not returned a second later")
			}
			silent.LetGo()
			w.awaitFree("a", soon)
		})
	}
}

func TestExtendWhileUnlockIsOnTheWireIsNoLoss(t *testing.T) {
	for _, answered := range []bool{false, true} {
		t.Run(fmt.Sprintf("Unlock has returned: %t", answered), func(t *testing.T) {
			w := onShared(t)
			var released, lost atomic.Int32
			p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 5 * time.Second },
				relock.WithFixedLease(10*time.Second), relock.WithHooks(relock.Hooks{
					Released: func(relock.Released) { released.Add(1) },
					Lost:     func(relock.Lost) { lost.Add(1) },
				}))
			l := p.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			late := p.faults.Once(w.script(luaRenew), redistest.Hold())
			extended := make(chan error, 1)
			go func() { extended <- l.Extend(context.WithoutCancel(section), 10*time.Second) }()
			late.WaitHits(t, 1)
			goOn := make(chan struct{})
			freed := p.faults.Once(w.script(luaRelease), redistest.After(func([]string, string) { <-goOn }))
			unlocked := make(chan error, 1)
			go func() { unlocked <- l.Unlock(section) }()
			freed.WaitHits(t, 1)
			w.awaitFree("a", soon)
			if answered {
				close(goOn)
				require.NoError(t, <-unlocked)
			}
			late.Release(t)
			require.ErrorIs(t, <-extended, relock.ErrNotHeld)
			if !answered {
				close(goOn)
				require.NoError(t, <-unlocked)
			}
			require.NoError(t, p.Close())
			require.EqualValues(t, 1, released.Load())
			require.Zero(t, lost.Load())
		})
	}
}

func TestAnAcquireThatLandsAfterALeaseIsTakenBack(t *testing.T) {
	w := onShared(t)
	const ttl = 2 * time.Second
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 10 * time.Second }, relock.WithTTL(ttl))
	late := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	ctx, cancel := context.WithCancel(t.Context())
	a := w.start(ctx, p.NewLock("a"))
	late.WaitHits(t, 1)
	cancel()
	require.ErrorIs(t, a.out(soon), context.Canceled)
	sleepUntil(time.Now().Add(ttl + 3*ttl/4)) // it was abandoned once more not long ago, and would not be soon again
	late.Release(t)
	w.awaitFree("a", ttl/2)
}

func TestCloseWithThousandsOfWaitersLeavesNothing(t *testing.T) {
	const waiters = 8000
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 5 * time.Second }, relock.WithTTL(time.Minute))
	l := p.NewLock("a")
	all := make([]*asking, waiters)
	for i := range all {
		all[i] = w.start(t.Context(), l)
		if i%500 == 499 {
			w.awaitWaiters("a", i+1)
		}
	}
	require.NoError(t, p.Close())
	left := w.plain.ZCard(t.Context(), baseKey("a")+":queue").Val()
	for _, a := range all {
		require.ErrorIs(t, a.out(soon), relock.ErrClosed)
	}
	w.leave(section, owner, soon)
	require.Zero(t, left)
}
