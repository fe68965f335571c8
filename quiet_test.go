package relock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// What a fault leaves behind in those that wait: each of them waits on, silently, and is in when its turn comes.

// stand is a lock with an owner, and waiters of two other clients.
type stand struct {
	*arena
	peers []*peer // that wait
	guard guarded
	clock *redistest.Clock
}

// trouble is a fault that comes and goes.
type trouble struct {
	name    string
	own     bool          // needs a server of its own
	clock   bool          // and that server a clock
	empties bool          // the server forgets the owner, and another is in
	unseen  time.Duration // how long nobody may notice it
	do      func(s *stand)
}

func (s *stand) each(f func(p *peer)) {
	for _, p := range s.peers {
		f(p)
	}
}

func (s *stand) kill(kind string) {
	require.NoError(s.t, s.plain.ClientKillByFilter(s.t.Context(), "TYPE", kind).Err())
}

// aWhile is long enough for several tries, and for a silent connection to be noticed by go-redis.
const aWhile = 500 * time.Millisecond

var troubles = []trouble{
	{name: "none", do: func(*stand) {}},
	{name: "pub/sub connections cut", do: func(s *stand) { s.each(func(p *peer) { p.faults.CutPubSub() }) }},
	{name: "all connections cut", do: func(s *stand) { s.each(func(p *peer) { p.faults.Cut() }) }},
	{name: "pub/sub connections half-open", unseen: halfOpen, do: func(s *stand) { s.each(func(p *peer) { p.faults.StallPubSub() }) }},
	{name: "replies of acquire lost", do: func(s *stand) {
		s.each(func(p *peer) {
			p.faults.On(s.script(luaAcquire), redistest.DropReply(redistest.EOF)).Times(2 * waitersEach)
			p.faults.CutPubSub() // so that everybody asks
		})
	}},
	{name: "acquires run late", do: func(s *stand) {
		s.each(func(p *peer) {
			held := p.faults.On(s.script(luaAcquire), redistest.Hold()).Times(3)
			p.faults.CutPubSub()
			held.WaitHits(s.t, 3)
			sleepUntil(time.Now().Add(aWhile))
			held.LetGo()
		})
	}},
	{name: "partition", do: func(s *stand) {
		s.each(func(p *peer) { p.faults.Partition() })
		sleepUntil(time.Now().Add(aWhile))
		s.each(func(p *peer) { p.faults.Heal() })
	}},
	{name: "connections refused", do: func(s *stand) {
		s.each(func(p *peer) { p.faults.Refuse(); p.faults.Cut() })
		sleepUntil(time.Now().Add(aWhile))
		s.each(func(p *peer) { p.faults.Heal() })
	}},
	{name: "CLIENT KILL TYPE normal", do: func(s *stand) { s.kill("normal") }},
	{name: "CLIENT KILL TYPE pubsub", do: func(s *stand) { s.kill("pubsub") }},
	{name: "SCRIPT FLUSH", do: func(s *stand) {
		require.NoError(s.t, s.plain.ScriptFlush(s.t.Context()).Err())
		s.kill("pubsub")
	}},
	{name: "LOADING", do: func(s *stand) {
		s.each(func(p *peer) {
			p.faults.On(s.script(luaAcquire), redistest.Answer("-LOADING Redis is loading the dataset in memory")).Times(2 * waitersEach)
			p.faults.CutPubSub()
		})
	}},
	{name: "READONLY", own: true, do: func(s *stand) { s.orphaned() }},
	{name: "server stopped", own: true, do: func(s *stand) {
		s.server.Pause()
		sleepUntil(time.Now().Add(aWhile))
		s.server.Resume()
	}},
	{name: "server killed, and empty", own: true, empties: true, do: func(s *stand) {
		s.server.Kill()
		s.guard.forget()
		s.server.Restart()
	}},
	{name: "no room for connections", own: true, do: func(s *stand) {
		require.NoError(s.t, s.plain.ConfigSet(s.t.Context(), "maxclients", "1").Err())
		s.each(func(p *peer) { p.faults.Cut() })
		sleepUntil(time.Now().Add(aWhile))
		require.NoError(s.t, s.plain.ConfigSet(s.t.Context(), "maxclients", "1000").Err())
	}},
	{name: "others gave up", do: func(s *stand) {
		before := s.waiters("a")
		ctx, cancel := context.WithCancel(s.t.Context())
		defer cancel()
		var gone []*asking
		s.each(func(p *peer) {
			for range waitersEach {
				gone = append(gone, s.start(ctx, p.NewLock("a")))
			}
		})
		s.awaitWaiters("a", before+len(gone))
		cancel()
		for _, a := range gone {
			require.True(s.t, isDone(a.out(promptly)))
		}
	}},
	{name: "another client closed", do: func(s *stand) {
		before := s.waiters("a")
		other := s.peer()
		var gone []*asking
		for range waitersEach {
			gone = append(gone, s.start(s.t.Context(), other.NewLock("a")))
		}
		s.awaitWaiters("a", before+len(gone))
		require.NoError(s.t, other.Close())
		for _, a := range gone {
			require.Error(s.t, a.out(promptly))
		}
	}},
}

// orphaned makes the server a replica that has lost its master, for a while in which everybody asks it.
func (s *stand) orphaned() {
	host, port := "127.0.0.1", s.server.Addr()[len("127.0.0.1:"):]
	require.NoError(s.t, s.plain.ReplicaOf(s.t.Context(), host, port).Err())
	s.kill("pubsub")
	sleepUntil(time.Now().Add(aWhile))
	require.NoError(s.t, s.plain.ReplicaOf(s.t.Context(), "no", "one").Err())
}

const waitersEach = 10

func TestBlockedWaitersAreSilentAgainAfterEveryFaultAndAllGetIn(t *testing.T) {
	for _, fault := range troubles {
		t.Run(fault.name, func(t *testing.T) {
			s := &stand{}
			switch {
			case fault.clock:
				s.arena, s.clock = onClock(t)
			case fault.own:
				s.arena = onOwn(t)
			default:
				s.arena = onShared(t)
			}
			owner := s.peer() // nothing happens to it
			s.peers = []*peer{s.peer(), s.peer()}
			var errs names
			var all sync.WaitGroup
			leave := make(chan struct{})
			var mu sync.Mutex
			var left time.Time // when the last one began to leave
			var slowest time.Duration
			worker := func(p *peer) {
				l := p.NewLock("a")
				all.Go(func() {
					section, err := l.Lock(t.Context())
					if err != nil {
						errs.add(err.Error())
						return
					}
					mu.Lock()
					if !left.IsZero() {
						slowest = max(slowest, time.Since(left))
					}
					mu.Unlock()
					s.guard.enter(section, l)
					<-leave
					s.guard.leave(section)
					mu.Lock()
					left = time.Now()
					mu.Unlock()
					err = l.Unlock(section)
					if forgotten := fault.empties && p == owner; err != nil && !forgotten {
						errs.add(err.Error())
					}
				})
			}
			worker(owner)
			redistest.Eventually(t, soon, func() bool { hold, _ := s.owner("a"); return hold != "" }, "one is in")
			s.each(func(p *peer) {
				for range waitersEach {
					worker(p)
				}
			})
			waiting := len(s.peers) * waitersEach
			s.awaitWaiters("a", waiting)

			begin := time.Now()
			fault.do(s)
			queued := waiting
			if fault.empties {
				queued--
			}
			const window = 300 * time.Millisecond
			var sum int
			var each string
			redistest.Eventually(t, 4*halfOpen, func() bool {
				before := s.calls()
				sleepUntil(time.Now().Add(window))
				sum, each = s.callsSince(before)
				return sum <= 6 && s.waiters("a") == queued
			}, "%d wait in silence", queued)
			t.Logf("silent within %s: %d commands in %s (%s)", time.Since(begin), sum, window, each)
			close(leave)
			require.NoError(t, s.call(fault.unseen+soon, func() error { all.Wait(); return nil }))
			t.Logf("the slowest hand-over took %s", slowest)
			require.Empty(t, errs.all())
			s.guard.require(t)
			require.Equal(t, waiting+1, s.guard.entries)
			s.awaitFree("a", 0)
		})
	}
}
