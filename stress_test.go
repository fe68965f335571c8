package relock_test

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
	"github.com/go-relock/relock/internal/redistest"
)

// Do many goroutines exclude each other on a real server while everything breaks?

// This file is about many goroutines on a real server, while everything breaks.

// The tests below are worth what this one shows.
func TestTheWitnessNoticesTwoAtOnceAndTokensThatDoNotGrow(t *testing.T) {
	w := onShared(t)
	l, other := w.peer().NewLock("a"), w.peer().NewLock("b")
	first, second := w.enter(t.Context(), l), w.enter(t.Context(), other)
	w.draw(first, l)
	token := w.draw(second, other)
	for _, lost := range []bool{false, true} {
		g := witness{lost: lost}
		require.True(t, g.enter(first, l))
		require.True(t, g.enter(second, other))
		require.Len(t, g.faults, 1)
		require.Contains(t, g.faults[0], "while another still is in")
		g = witness{lost: lost, token: token}
		require.True(t, g.enter(second, other))
		require.Len(t, g.faults, 1)
		require.Contains(t, g.faults[0], "comes after")
	}
	w.leave(second, other)
	require.NoError(t, l.ForceUnlock(t.Context()))
	w.lost(first)
	require.False(t, (&witness{lost: true}).enter(first, l))
	var g witness
	require.False(t, g.enter(first, l))
	require.Len(t, g.faults, 1)
	require.ErrorIs(t, l.Unlock(first), relock.ErrLockLost)
}

// traffic is what workers do to locks, until stop.
type traffic struct {
	done    tally
	errs    names
	slowest atomic.Int64
	stop    chan struct{}
	all     sync.WaitGroup
}

// work adds a worker that calls f with a random number, again and again.
func (f *traffic) work(one func()) {
	f.all.Go(func() {
		for !isClosed(f.stop) {
			one()
		}
	})
}

// end lets the traffic go on for a while, and ends it.
func (f *traffic) end(w *arena, after time.Duration) {
	w.t.Helper()
	sleepUntil(time.Now().Add(after))
	close(f.stop)
	require.NoError(w.t, w.within(10*time.Second).call(func() error { f.all.Wait(); return nil }))
	w.t.Logf("%s; the slowest was in after %s", &f.done, time.Duration(f.slowest.Load()))
	require.Empty(w.t, f.errs.all())
}

// visit is one section, some with a nested one.
func (f *traffic) visit(l *relock.Lock, g *witness) {
	begin := time.Now()
	section, err := l.Lock(context.Background())
	if err != nil {
		f.errs.check(err)
		return
	}
	f.slowest.Store(max(f.slowest.Load(), int64(time.Since(begin)))) // nearly exact is enough
	g.enter(section, l)
	if rand.IntN(3) == 0 {
		inner, err := l.Lock(section)
		f.errs.check(err)
		f.errs.check(l.Unlock(inner))
		f.done.add("nested")
	}
	<-time.After(rand.N(2 * time.Millisecond))
	f.errs.check(context.Cause(section))
	g.leave(section)
	f.errs.check(l.Unlock(section))
	f.done.add("sections")
}

func TestWorkersExcludeEachOtherWhileConnectionsAreKilled(t *testing.T) {
	const workers, locks = 32, 4
	for _, kind := range []string{"normal", "pubsub"} {
		t.Run(kind, func(t *testing.T) {
			w := apart(t)
			peers := []*peer{w.peer(), w.peer(), w.peer(), w.peer()}
			guards := make([]witness, locks)
			f := traffic{stop: make(chan struct{})}
			for i := range workers {
				l := peers[i/locks%len(peers)].NewLock(fmt.Sprint("lock", i%locks))
				f.work(func() { f.visit(l, &guards[i%locks]) })
			}
			ended := make(chan struct{})
			var killer sync.WaitGroup
			killer.Go(func() {
				every(50*time.Millisecond, ended, func(time.Duration) {
					n, err := w.plain.ClientKillByFilter(context.Background(), "TYPE", kind).Result()
					if err == nil && n > 0 {
						f.done.add("kills")
					}
				})
			})
			f.end(w, stressFor())
			close(ended)
			killer.Wait()
			require.Less(t, time.Duration(f.slowest.Load())-w.lateness(), 5*time.Second)
			require.Greater(t, f.done.of("kills"), 5)
			require.Greater(t, f.done.of("sections"), 50)
			for i := range guards {
				guards[i].require(t)
				w.requireFree(fmt.Sprint("lock", i))
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
	w := apart(t)
	peers := []*peer{w.peer(), w.peer()}
	guards := make([]witness, len(peers)*goroutines)
	f := traffic{stop: make(chan struct{})}
	once := func(l *relock.Lock, g *witness) {
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
			g.enter(section, l)
			g.leave(section)
			f.errs.check(l.Unlock(section))
			f.done.add("sections")
		case errors.Is(err, relock.ErrLocked), errors.Is(err, relock.ErrUnavailable), isDone(err):
			f.done.add("refusals")
		default:
			f.errs.check(err)
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
	together := peers[0].faults.On(manyUnits, redistest.Before(func([]string) {}))
	ended := make(chan struct{})
	var trouble sync.WaitGroup
	trouble.Go(func() {
		n := 0
		every(20*time.Millisecond, ended, func(time.Duration) {
			n++
			p, how := peers[n%2], []redistest.Break{redistest.EOF, redistest.Reset}[n/5%2]
			switch n % 5 {
			case 0:
				p.faults.Once(manyUnits, redistest.CutBefore(how))
			case 1:
				f.errs.check(w.plain.ScriptFlush(context.Background()).Err())
			case 2:
				p.faults.Cut()
			default:
				p.faults.Once(manyUnits, redistest.DropReply(how))
			}
		})
	})
	f.end(w, stressFor())
	close(ended)
	trouble.Wait()
	require.Greater(t, together.Hits(), 10, "script calls for many")
	require.Greater(t, f.done.of("sections"), 100)
	for i := range guards {
		guards[i].require(t)
	}
}

// manyUnits matches script calls for several locks.
func manyUnits(args []string) bool {
	return redistest.Named("EVALSHA", "EVAL")(args) && len(args) > 2 && args[2] != "1" && args[2] != "2"
}

func TestTokensGrowThroughEveryKindOfEnd(t *testing.T) {
	const ttl = 300 * time.Millisecond
	s := onShared(t).scene(relock.WithFixedLease(ttl))
	var last int64
	for i := range 16 {
		section := s.enter(t.Context(), s.l)
		token := s.draw(section, s.l)
		require.Greater(t, token, last)
		last = token
		switch i % 4 {
		case 0:
			s.leave(section, s.l)
			continue
		case 1: // runs out
			s.lost(section)
		case 2:
			if err := s.far.ForceUnlock(t.Context()); err != nil {
				require.ErrorIs(t, err, relock.ErrNotHeld)
			}
		case 3:
			require.NoError(t, s.plain.FlushAll(t.Context()).Err())
		}
		require.ErrorIs(t, s.l.Unlock(section), relock.ErrLockLost)
	}
	s.requireFree("a")
}
