package faults_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
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

// newDeafPeer is a peer with n connections in one pool.
func newDeafPeer(w *stage.Arena, n int, options ...relock.Option) (*stage.Peer, *ears) {
	w.T.Helper()
	e := new(ears)
	p := w.PeerOn(func(o *redis.Options) {
		o.Dialer = e.dialer(o.Dialer)
		o.PoolSize, o.ReadTimeout = n, 60*time.Millisecond
	}, options...)
	p.Connect(w.T, n)
	return p, e
}

func TestADeafClientKeepsOthersOutForOneLeaseAtMost(t *testing.T) {
	const ttl, conns = 1500 * time.Millisecond, 40
	for name, how := range map[string]func(w *stage.Arena, l *relock.Lock) *stage.Attempt{
		"Lock": func(w *stage.Arena, l *relock.Lock) *stage.Attempt { return w.Start(w.T.Context(), l) },
		"TryLock, again and again": func(w *stage.Arena, l *relock.Lock) *stage.Attempt {
			return w.Begin(w.T.Context(), func(ctx context.Context) (context.Context, error) {
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
			w := stage.Apart(t)
			p, e := newDeafPeer(w, conns, relock.WithTTL(ttl))
			l := w.Peer().NewLock("a")
			asks := w.Counter(p, stage.LuaAcquire)
			e.close(0, false)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			deaf := w.Start(ctx, p.NewLock("a"))
			redistest.Eventually(t, w.Limit, func() bool { return w.Count("a") == 1 }, "the deaf client has the lock")
			taken := time.Now()
			other := how(w, l)
			section := other.Within(ttl + stage.AtOnce).Section()
			t.Logf("in after %s; the deaf client has asked %d times", other.Ended.Sub(taken), asks())
			require.GreaterOrEqual(t, asks(), 5)
			require.True(t, deaf.Waits())
			cancel()
			require.True(t, stage.IsDone(deaf.Within(stage.Promptly).Failure()))
			w.Leave(section, l)
			w.TidyWithin = ttl + w.Limit
		})
	}
}

func TestAnAttemptThatComesLateSetsNoLongerLeaseThanTheFirst(t *testing.T) {
	const ttl = 2 * time.Second
	w := stage.Apart(t)
	p, e := newDeafPeer(w, 40, relock.WithTTL(ttl))
	e.close(0, true) // the first attempts never arrive
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := time.Now()
	deaf := w.Start(ctx, p.NewLock("a"))
	stage.SleepUntil(begun.Add(ttl / 2))
	e.close(0, false)
	redistest.Eventually(t, w.Limit, func() bool { return w.Count("a") == 1 }, "an attempt arrives")
	require.LessOrEqual(t, w.Lease("a"), ttl-ttl/2+stage.Promptly)
	cancel()
	require.True(t, stage.IsDone(deaf.Within(stage.Promptly).Failure()))
}

func TestALockIsTakenBackThoughSomeConnectionsAreDead(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("dead %t", dead), func(t *testing.T) {
			w := stage.OnShared(t)
			p, e := newDeafPeer(w, 4) // 30 s
			lost := p.Faults.Once(w.Script(stage.LuaAcquire), redistest.DropReply(redistest.Silence))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := w.Start(ctx, p.NewLock("a"))
			lost.WaitHits(t, 1)
			e.close(1, dead)
			cancel()
			require.True(t, stage.IsDone(a.Within(stage.Promptly).Failure()))
			begun := time.Now()
			w.RequireFree("a")
			t.Logf("taken back after %s", time.Since(begun))
		})
	}
}

func TestTheEndOfALockIsToldLongBeforeItsRenewal(t *testing.T) {
	for what, end := range map[string]func(w *stage.Arena){
		"when a connection was killed": func(w *stage.Arena) {
			require.NoError(w.T, w.Plain.Del(w.T.Context(), stage.BaseKey("a")).Err())
			require.Positive(w.T, w.Plain.ClientKillByFilter(w.T.Context(), "TYPE", "pubsub").Val())
		},
		"when the server comes back empty": func(w *stage.Arena) { w.Server.Restart() },
	} {
		t.Run(what, func(t *testing.T) {
			w := stage.OnOwn(t)
			l := w.Peer().NewLock("a") // renewed every 10 s
			section := w.Enter(t.Context(), l)
			redistest.Eventually(t, w.Limit, func() bool { return len(redistest.Subscriptions(t, w.Plain)) == 1 }, "it is watched")
			begun := time.Now()
			end(w)
			require.Equal(t, event.LossTaken, w.Lost(section))
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
		{"at the next renewal of its owner", 0, false, third + stage.AfterLease},
		{"when the lease of a dead owner should be over", 2 * time.Second, false, 2*time.Second + stage.AfterLease},
		{"when somebody else asks", time.Minute, true, stage.AtOnce},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := stage.Apart(t)
			if c.dead > 0 {
				require.NoError(t, w.Plain.HSet(t.Context(), stage.BaseKey("a"), "dead:1:1", 1).Err())
				require.NoError(t, w.Plain.PExpire(t.Context(), stage.BaseKey("a"), c.dead).Err())
			} else {
				l := w.Peer(relock.WithTTL(3 * third)).NewLock("a")
				section := w.Enter(t.Context(), l)
				defer func() { require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost) }()
			}
			waiters := []*stage.Attempt{w.Start(t.Context(), w.Peer().NewLock("a"))}
			w.AwaitWaiters("a", 1)
			waiters = append(waiters, w.Start(t.Context(), w.Peer().NewLock("a")))
			w.AwaitWaiters("a", 2)
			stage.SleepUntil(time.Now().Add(400 * time.Millisecond)) // the owner has looked once, as it began to watch
			begun := time.Now()
			require.NoError(t, w.Plain.Del(t.Context(), stage.BaseKey("a")).Err())
			if c.ask {
				_, err := w.Peer().NewLock("a").TryLock(t.Context())
				require.ErrorIs(t, err, relock.ErrLocked)
			}
			mine := waiters[0].Within(c.within).Section()
			t.Logf("in after %s", waiters[0].Ended.Sub(begun))
			require.True(t, waiters[1].Waits())
			w.Leave(mine, waiters[0].Lock)
			waiters[1].Leave()
		})
	}
}
