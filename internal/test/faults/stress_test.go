package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Do many goroutines exclude each other on a real server while everything breaks?

// This file is about many goroutines on a real server, while everything breaks.

// The tests below are worth what this one shows.
func TestTheWitnessNoticesTwoAtOnceAndTokensThatDoNotGrow(t *testing.T) {
	w := stage.OnShared(t)
	l, other := w.Peer().NewLock("a"), w.Peer().NewLock("b")
	first, second := w.Enter(t.Context(), l), w.Enter(t.Context(), other)
	w.Draw(first, l)
	token := w.Draw(second, other)
	for _, lost := range []bool{false, true} {
		g := stage.Witness{Lost: lost}
		require.True(t, g.Enter(first, l))
		require.True(t, g.Enter(second, other))
		require.Len(t, g.Faults, 1)
		require.Contains(t, g.Faults[0], "while another still is in")
		g = stage.Witness{Lost: lost, Token: token}
		require.True(t, g.Enter(second, other))
		require.Len(t, g.Faults, 1)
		require.Contains(t, g.Faults[0], "comes after")
	}
	w.Leave(second, other)
	require.NoError(t, l.ForceUnlock(t.Context()))
	w.Lost(first)
	require.False(t, (&stage.Witness{Lost: true}).Enter(first, l))
	var g stage.Witness
	require.False(t, g.Enter(first, l))
	require.Len(t, g.Faults, 1)
	require.ErrorIs(t, l.Unlock(first), relock.ErrLockLost)
}

// traffic is what workers do to locks, until stop.
type traffic struct {
	done    stage.Tally
	errs    stage.Texts
	slowest atomic.Int64
	stop    chan struct{}
	all     sync.WaitGroup
}

// work adds a worker that calls f with a random number, again and again.
func (f *traffic) work(one func()) {
	f.all.Go(func() {
		for !stage.IsClosed(f.stop) {
			one()
		}
	})
}

// end lets the traffic go on for a while, and ends it.
func (f *traffic) end(w *stage.Arena, after time.Duration) {
	w.T.Helper()
	stage.SleepUntil(time.Now().Add(after))
	close(f.stop)
	require.NoError(w.T, w.Within(10*time.Second).Call(func() error { f.all.Wait(); return nil }))
	w.T.Logf("%s; the slowest was in after %s", &f.done, time.Duration(f.slowest.Load()))
	require.Empty(w.T, f.errs.All())
}

// visit is one section, some with a nested one.
func (f *traffic) visit(l *relock.Lock, g *stage.Witness) {
	begin := time.Now()
	section, err := l.Lock(context.Background())
	if err != nil {
		f.errs.Check(err)
		return
	}
	f.slowest.Store(max(f.slowest.Load(), int64(time.Since(begin)))) // nearly exact is enough
	g.Enter(section, l)
	if rand.IntN(3) == 0 {
		inner, err := l.Lock(section)
		f.errs.Check(err)
		f.errs.Check(l.Unlock(inner))
		f.done.Add("nested")
	}
	<-time.After(rand.N(2 * time.Millisecond))
	f.errs.Check(context.Cause(section))
	g.Leave(section)
	f.errs.Check(l.Unlock(section))
	f.done.Add("sections")
}

func TestWorkersExcludeEachOtherWhileConnectionsAreKilled(t *testing.T) {
	const workers, locks = 32, 4
	for _, kind := range []string{"normal", "pubsub"} {
		t.Run(kind, func(t *testing.T) {
			w := stage.Apart(t)
			peers := []*stage.Peer{w.Peer(), w.Peer(), w.Peer(), w.Peer()}
			guards := make([]stage.Witness, locks)
			f := traffic{stop: make(chan struct{})}
			for i := range workers {
				l := peers[i/locks%len(peers)].NewLock(fmt.Sprint("lock", i%locks))
				f.work(func() { f.visit(l, &guards[i%locks]) })
			}
			ended := make(chan struct{})
			var killer sync.WaitGroup
			killer.Go(func() {
				stage.Every(50*time.Millisecond, ended, func(time.Duration) {
					n, err := w.Plain.ClientKillByFilter(context.Background(), "TYPE", kind).Result()
					if err == nil && n > 0 {
						f.done.Add("kills")
					}
				})
			})
			f.end(w, stressFor())
			close(ended)
			killer.Wait()
			require.Less(t, time.Duration(f.slowest.Load())-w.Lateness(), 5*time.Second)
			require.Greater(t, f.done.Of("kills"), 5)
			require.Greater(t, f.done.Of("sections"), 50)
			for i := range guards {
				guards[i].Require(t)
				w.RequireFree(fmt.Sprint("lock", i))
			}
		})
	}
}

// stressFor is how long a test goes on that gets better with time.
func stressFor() time.Duration {
	if testing.Short() {
		return time.Second
	}
	return 3 * time.Second
}

// Most goroutines have a lock of their own, some share theirs with another process. Their commands
// share script calls: some lose their reply or their connection, the server forgets its scripts,
// and calls are cancelled at any instant.
func TestGoroutinesWhoseSharedScriptCallsBreakExcludeEachOther(t *testing.T) {
	const goroutines, shared = 64, 8
	w := stage.Apart(t)
	peers := []*stage.Peer{w.Peer(), w.Peer()}
	guards := make([]stage.Witness, len(peers)*goroutines)
	f := traffic{stop: make(chan struct{})}
	once := func(l *relock.Lock, g *stage.Witness) {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if rand.IntN(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, rand.N(2*time.Millisecond))
		}
		defer cancel()
		lock := l.Lock
		if rand.IntN(3) == 0 {
			lock = l.TryLock
		}
		section, err := lock(ctx)
		switch {
		case err == nil:
			g.Enter(section, l)
			g.Leave(section)
			f.errs.Check(l.Unlock(section))
			f.done.Add("sections")
		case errors.Is(err, relock.ErrLocked), errors.Is(err, relock.ErrUnavailable), stage.IsDone(err):
			f.done.Add("refusals")
		default:
			f.errs.Check(err)
		}
	}
	for n, p := range peers {
		for i := range goroutines {
			name, g := fmt.Sprintf("lock-%d-%d", n, i), &guards[n*goroutines+i]
			if i < shared {
				name, g = fmt.Sprintf("shared-%d", i), &guards[i]
			}
			l := p.NewLock(name)
			f.work(func() { once(l, g) })
		}
	}
	together := peers[0].Faults.On(manyUnits, redistest.Before(func([]string) {}))
	ended := make(chan struct{})
	var trouble sync.WaitGroup
	trouble.Go(func() {
		n := 0
		stage.Every(20*time.Millisecond, ended, func(time.Duration) {
			n++
			p, how := peers[n%2], []redistest.Break{redistest.EOF, redistest.Reset}[n/5%2]
			switch n % 5 {
			case 0:
				p.Faults.Once(manyUnits, redistest.CutBefore(how))
			case 1:
				f.errs.Check(w.Plain.ScriptFlush(context.Background()).Err())
			case 2:
				p.Faults.Cut()
			default:
				p.Faults.Once(manyUnits, redistest.DropReply(how))
			}
		})
	})
	f.end(w, stressFor())
	close(ended)
	trouble.Wait()
	require.Greater(t, together.Hits(), 10, "script calls for many")
	require.Greater(t, f.done.Of("sections"), 100)
	for i := range guards {
		guards[i].Require(t)
	}
}

// manyUnits matches script calls for several locks.
func manyUnits(args []string) bool {
	return redistest.Named("EVALSHA", "EVAL")(args) && len(args) > 2 && args[2] != "1" && args[2] != "2"
}

func TestTokensGrowThroughEveryKindOfEnd(t *testing.T) {
	const ttl = time.Second
	s := stage.OnShared(t).Scene(relock.WithFixedLease(ttl))
	var last int64
	for i := range 16 {
		section := s.Enter(t.Context(), s.L)
		token := s.Draw(section, s.L)
		require.Greater(t, token, last)
		last = token
		switch i % 4 {
		case 0:
			s.Leave(section, s.L)
			continue
		case 1: // runs out
			s.Lost(section)
		case 2:
			if err := s.Far.ForceUnlock(t.Context()); err != nil {
				require.ErrorIs(t, err, relock.ErrNotHeld)
			}
		case 3:
			require.NoError(t, s.Plain.FlushAll(t.Context()).Err())
		}
		require.ErrorIs(t, s.L.Unlock(section), relock.ErrLockLost)
	}
	s.RequireFree("a")
}
