package relock_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// What if a client hears nothing?

// This file is about clients who hear nothing, waiters who have gone, and holders who are told at
// once.

// ears is a dialer whose connections can become deaf or dead.
type ears struct {
	mu    sync.Mutex
	conns []*earConn
}

// earConn is a connection. A deaf one sends, and hears nothing. A dead one does neither.
type earConn struct {
	net.Conn
	deaf, dead atomic.Bool
}

// Read drops what comes to a deaf connection, until the deadline.
func (c *earConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

// Write drops what is written to a dead connection.
func (c *earConn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (e *ears) dialer(dial redistest.DialFunc) redistest.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &earConn{Conn: conn}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.conns = append(e.conns, c)
		return c, nil
	}
}

// close makes connections deaf, all but the first ones, and dead too.
func (e *ears) close(but int, dead bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns[but:] {
		c.deaf.Store(true)
		c.dead.Store(dead)
	}
}

// deafPeer is a peer with n connections in one pool.
func (w *arena) deafPeer(n int, options ...relock.Option) (*peer, *ears) {
	w.t.Helper()
	e := new(ears)
	p := w.peerOn(func(o *redis.Options) {
		o.Dialer = e.dialer(o.Dialer)
		o.PoolSize, o.ReadTimeout = n, 60*time.Millisecond
	}, options...)
	p.connect(w.t, n)
	return p, e
}

func TestADeafClientKeepsOthersOutForOneLeaseAtMost(t *testing.T) {
	const ttl, conns = 1500 * time.Millisecond, 40
	for name, how := range map[string]func(w *arena, l *relock.Lock) *attempt{
		"Lock": func(w *arena, l *relock.Lock) *attempt { return w.start(w.t.Context(), l) },
		"TryLock, again and again": func(w *arena, l *relock.Lock) *attempt {
			return w.begin(w.t.Context(), func(ctx context.Context) (context.Context, error) {
				for {
					if section, err := l.TryLock(ctx); err == nil {
						return section, nil
					}
					<-time.After(time.Millisecond)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := apart(t)
			p, e := w.deafPeer(conns, relock.WithTTL(ttl))
			l := w.peer().NewLock("a")
			asks := w.counter(p, luaAcquire)
			e.close(0, false)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			deaf := w.start(ctx, p.NewLock("a"))
			redistest.Eventually(t, w.limit, func() bool { return w.count("a") == 1 }, "the deaf client has the lock")
			taken := time.Now()
			other := how(w, l)
			section := other.within(ttl + atOnce).section()
			t.Logf("in after %s; the deaf client has asked %d times", other.ended.Sub(taken), asks())
			require.GreaterOrEqual(t, asks(), 5)
			require.True(t, deaf.waits())
			cancel()
			require.True(t, isDone(deaf.within(promptly).failure()))
			w.leave(section, l)
			w.tidyWithin = ttl + w.limit
		})
	}
}

func TestAnAttemptThatComesLateSetsNoLongerLeaseThanTheFirst(t *testing.T) {
	const ttl = 2 * time.Second
	w := apart(t)
	p, e := w.deafPeer(40, relock.WithTTL(ttl))
	e.close(0, true) // the first attempts never arrive
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := time.Now()
	deaf := w.start(ctx, p.NewLock("a"))
	sleepUntil(begun.Add(ttl / 2))
	e.close(0, false)
	redistest.Eventually(t, w.limit, func() bool { return w.count("a") == 1 }, "an attempt arrives")
	require.LessOrEqual(t, w.lease("a"), ttl-ttl/2+promptly)
	cancel()
	require.True(t, isDone(deaf.within(promptly).failure()))
}

func TestALockIsTakenBackThoughSomeConnectionsAreDead(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("dead %t", dead), func(t *testing.T) {
			w := onShared(t)
			p, e := w.deafPeer(4) // 30 s
			lost := p.faults.Once(w.script(luaAcquire), redistest.DropReply(redistest.Silence))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := w.start(ctx, p.NewLock("a"))
			lost.WaitHits(t, 1)
			e.close(1, dead)
			cancel()
			require.True(t, isDone(a.within(promptly).failure()))
			begun := time.Now()
			w.requireFree("a")
			t.Logf("taken back after %s", time.Since(begun))
		})
	}
}

func TestLockNeverEntersWithADoneContext(t *testing.T) {
	w := onShared(t)
	o := w.peer()
	owner, l := o.NewLock("a"), w.peer().NewLock("a")
	for range 200 {
		section := w.enter(t.Context(), owner)
		ctx, cancel := context.WithCancel(t.Context())
		waiter := w.start(ctx, l)
		w.awaitWaiters("a", 1)
		o.faults.Once(w.script(luaRelease), redistest.Before(func([]string) { cancel() })) // just before the lock is free
		w.leave(section, owner)
		require.ErrorIs(t, waiter.failure(), context.Canceled)
		w.requireFree("a")
	}
}

// addDead puts waiters into a queue whose processes have gone.
func (w *arena) addDead(name string, n int) {
	w.t.Helper()
	members := make([]redis.Z, n)
	for i := range members {
		members[i] = redis.Z{Score: float64(i + 1), Member: fmt.Sprintf("dead:1:%d|30000", i)}
	}
	for part := range slices.Chunk(members, 1000) {
		require.NoError(w.t, w.plain.ZAdd(context.Background(), baseKey(name)+":queue", part...).Err())
	}
}

func TestTwentyThousandDeadWaitersArePassedOverInShortSteps(t *testing.T) {
	const dead, step = 20_000, 100
	w := onOwn(t)
	patient := func(o *redis.Options) { o.ReadTimeout = 5 * time.Second }
	p, other := w.peerOn(patient), w.peerOn(patient)
	l := p.NewLock("a")
	section := w.enter(t.Context(), l)
	w.addDead("a", dead)
	waiter := w.start(t.Context(), w.peerOn(patient).NewLock("a"))
	w.awaitWaiters("a", dead+1)

	calls := w.counter(p, luaRelease)
	stop, stopped := make(chan struct{}), make(chan int)
	go func() { // somebody else uses the server
		served, l := 0, other.NewLock("b")
		for {
			select {
			case <-stop:
				stopped <- served
				return
			default:
				if l.Do(context.Background(), func(context.Context) error { return nil }) == nil {
					served++
				}
			}
		}
	}()
	w.within(10*time.Second).leave(section, l)
	close(stop)
	served := <-stopped
	t.Logf("one Unlock in %d script calls, while %d sections of another client were served", calls(), served)
	require.InDelta(t, dead/step, calls(), 2, "at most %d a script", step)
	require.Greater(t, served, dead/step/10)
	mine := waiter.section()
	require.Zero(t, w.waiters("a"))
	w.leave(mine, waiter.lock)
}

func TestAForcedUnlockIsToldAtOnce(t *testing.T) {
	w := onShared(t)
	l, operator := w.peer().NewLock("a"), w.peer().NewLock("a") // renewed every 10 s
	var took []time.Duration
	for i := range 9 {
		section := w.enter(t.Context(), l)
		if i > 0 { // also a section that has just begun
			sleepUntil(time.Now().Add(250 * time.Millisecond)) // long enough to be watched
		}
		begun := time.Now()
		require.NoError(t, operator.ForceUnlock(t.Context()))
		require.Equal(t, relock.LossTaken, w.within(time.Second).lost(section))
		took = append(took, time.Since(begun))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	}
	slices.Sort(took)
	t.Logf("told after %s in the median, %s at most", took[len(took)/2], took[len(took)-1])
	require.Less(t, took[len(took)/2], 50*time.Millisecond+w.lateness())
}

func TestTheEndOfALockIsToldLongBeforeItsRenewal(t *testing.T) {
	for what, end := range map[string]func(w *arena){
		"when a connection was killed": func(w *arena) {
			require.NoError(w.t, w.plain.Del(w.t.Context(), baseKey("a")).Err())
			require.Positive(w.t, w.plain.ClientKillByFilter(w.t.Context(), "TYPE", "pubsub").Val())
		},
		"when the server comes back empty": func(w *arena) { w.server.Restart() },
	} {
		t.Run(what, func(t *testing.T) {
			w := onOwn(t)
			l := w.peer().NewLock("a") // renewed every 10 s
			section := w.enter(t.Context(), l)
			redistest.Eventually(t, w.limit, func() bool { return len(redistest.Subscriptions(t, w.plain)) == 1 }, "it is watched")
			begun := time.Now()
			end(w)
			require.Equal(t, relock.LossTaken, w.lost(section))
			t.Logf("told after %s", time.Since(begun))
			require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		})
	}
}

// The owner finds out at its next renewal, and serves the first waiter. Without an owner the
// waiter asks when the lease that it was told of should be over. Any other call that asks serves
// the waiter before.
func TestAWaiterOfALockWhoseKeyWasDeletedIsIn(t *testing.T) {
	const third = time.Second
	for _, c := range []struct {
		name   string
		dead   time.Duration // the lease of an owner that is dead; 0: the owner renews, each third
		ask    bool
		within time.Duration
	}{
		{"at the next renewal of its owner", 0, false, third + afterLease},
		{"when the lease of a dead owner should be over", 2 * time.Second, false, 2*time.Second + afterLease},
		{"when somebody else asks", time.Minute, true, atOnce},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := apart(t)
			if c.dead > 0 {
				require.NoError(t, w.plain.HSet(t.Context(), baseKey("a"), "dead:1:1", 1).Err())
				require.NoError(t, w.plain.PExpire(t.Context(), baseKey("a"), c.dead).Err())
			} else {
				l := w.peer(relock.WithTTL(3 * third)).NewLock("a")
				section := w.enter(t.Context(), l)
				defer func() { require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost) }()
			}
			waiters := []*attempt{w.start(t.Context(), w.peer().NewLock("a"))}
			w.awaitWaiters("a", 1)
			waiters = append(waiters, w.start(t.Context(), w.peer().NewLock("a")))
			w.awaitWaiters("a", 2)
			sleepUntil(time.Now().Add(400 * time.Millisecond)) // the owner has looked once, as it began to watch
			begun := time.Now()
			require.NoError(t, w.plain.Del(t.Context(), baseKey("a")).Err())
			if c.ask {
				_, err := w.peer().NewLock("a").TryLock(t.Context())
				require.ErrorIs(t, err, relock.ErrLocked)
			}
			mine := waiters[0].within(c.within).section()
			t.Logf("in after %s", waiters[0].ended.Sub(begun))
			require.True(t, waiters[1].waits())
			w.leave(mine, waiters[0].lock)
			waiters[1].leave()
		})
	}
}
