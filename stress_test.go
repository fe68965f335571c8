package relock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// tally counts what happened, by name.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *tally) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, c.counts[what]))
	}
	return strings.Join(parts, ", ")
}

// every calls f at intervals until stop is closed.
func every(interval time.Duration, stop <-chan struct{}, f func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			f()
		case <-stop:
			return
		}
	}
}

// The tests below are worth what this one shows.
func TestTheGuardNoticesTwoAtOnceAndTokensThatDoNotGrow(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	first := w.enter(t.Context(), l, soon)
	require.NoError(t, l.ForceUnlock(t.Context())) // its holder does not know
	second := w.enter(t.Context(), l, soon)
	for _, lost := range []bool{false, true} {
		g := guarded{lost: lost}
		require.True(t, g.enter(first, l))
		require.True(t, g.enter(second, l))
		require.Len(t, g.faults, 1)
		require.Contains(t, g.faults[0], "still is")
		g = guarded{lost: lost}
		require.True(t, g.enter(second, l))
		g.leave(second)
		require.True(t, g.enter(first, l))
		require.Len(t, g.faults, 1)
		require.Contains(t, g.faults[0], "comes after")
	}
	w.leave(second, l, soon)
	_ = l.Unlock(first) // it is lost, and may have been told so
	require.False(t, (&guarded{lost: true}).enter(first, l))
	g := guarded{}
	require.False(t, g.enter(first, l))
	require.Len(t, g.faults, 1)
}

func TestThirtyTwoWorkersExcludeEachOtherWhileTheirConnectionsAreKilled(t *testing.T) {
	for _, kind := range []string{"normal", "pubsub"} {
		t.Run(kind, func(t *testing.T) {
			w := onShared(t)
			const workers, locks, clients = 32, 4, 4
			var peers []*peer
			for range clients {
				peers = append(peers, w.peer())
			}
			guards := make([]guarded, locks)
			var done tally
			var errs names
			var slowest atomic.Int64
			stop, ended := make(chan struct{}), make(chan struct{})
			var all, killer sync.WaitGroup
			for i := range workers {
				g, p := &guards[i%locks], peers[i/locks%clients]
				l := p.NewLock(fmt.Sprint("lock", i%locks))
				all.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(i)))
					for {
						select {
						case <-stop:
							return
						default:
						}
						begin := time.Now()
						section, err := l.Lock(context.Background())
						if err != nil {
							errs.add(err.Error())
							return
						}
						if took := int64(time.Since(begin)); took > slowest.Load() {
							slowest.Store(took)
						}
						g.enter(section, l)
						if random.IntN(3) == 0 {
							inner, err := l.Lock(section)
							if err != nil {
								errs.add(err.Error())
							} else if err := l.Unlock(inner); err != nil {
								errs.add(err.Error())
							}
							done.add("nested")
						}
						<-time.After(time.Duration(random.IntN(2000)) * time.Microsecond)
						if err := section.Err(); err != nil {
							errs.add(fmt.Sprint("in the section: ", context.Cause(section)))
						}
						g.leave(section)
						if err := l.Unlock(section); err != nil {
							errs.add(err.Error())
							return
						}
						done.add("sections")
					}
				})
			}
			killer.Go(func() {
				every(50*time.Millisecond, ended, func() {
					n, err := w.plain.ClientKillByFilter(context.Background(), "TYPE", kind).Result()
					if err == nil && n > 0 {
						done.add("kills")
					}
				})
			})
			duration := 20 * time.Second
			if testing.Short() {
				duration = 1500 * time.Millisecond
			}
			sleepUntil(time.Now().Add(duration))
			close(stop)
			err := w.call(10*time.Second, func() error { all.Wait(); return nil }) // while it goes on
			close(ended)
			killer.Wait()
			require.NoError(t, err)
			t.Logf("%s; the slowest was in after %s", &done, time.Duration(slowest.Load()))
			require.Empty(t, errs.all())
			require.Less(t, time.Duration(slowest.Load()-w.late.Load()), 5*time.Second)
			require.Greater(t, done.of("kills"), 10)
			require.Greater(t, done.of("sections"), 50)
			for i := range guards {
				guards[i].require(t)
				w.awaitFree(fmt.Sprint("lock", i), soon)
			}
		})
	}
}

func TestOneHolderMayBeSharedByManyGoroutinesThatComeAndGoInAnyOrder(t *testing.T) {
	w := onShared(t)
	const goroutines = 16
	p, rival := w.peer(), w.peer().NewLock("a")
	l := p.NewLock("a")
	g := guarded{}
	for range 5 {
		outer := w.enter(t.Context(), l, soon)
		require.True(t, g.enter(outer, l))
		waiter := w.start(t.Context(), rival)
		var errs names
		var all sync.WaitGroup
		for range goroutines {
			all.Go(func() {
				for range 5 {
					inner, err := l.Lock(outer)
					if err != nil {
						errs.add(err.Error())
						return
					}
					if n := l.Count(inner); n < 2 || n > goroutines+1 {
						errs.add(fmt.Sprint("count ", n))
					}
					if err := l.Unlock(inner); err != nil {
						errs.add(err.Error())
					}
				}
			})
		}
		require.NoError(t, w.call(10*time.Second, func() error { all.Wait(); return nil }))
		require.Empty(t, errs.all())
		w.requireCount("a", 1)
		require.True(t, waiter.waiting())
		g.leave(outer)
		w.leave(outer, l, soon)
		mine := waiter.in(soon)
		require.True(t, g.enter(mine, rival))
		g.leave(mine)
		w.leave(mine, rival, soon)
	}
	g.require(t)
	w.awaitFree("a", 0)
}

func TestTokensGrowThroughEveryKindOfEnd(t *testing.T) {
	w := onShared(t)
	const ttl = 60 * time.Millisecond
	p := w.peer()
	operator := w.peer().NewLock("a")
	var last int64
	for i := range 20 {
		l := p.NewLock("a", relock.WithFixedLease(ttl))
		section := w.enter(t.Context(), l, soon)
		token := l.Token(section)
		require.Greater(t, token, last)
		last = token
		switch i % 4 {
		case 0:
			w.leave(section, l, soon)
		case 1: // it runs out
			w.lost(section, soon)
		case 2:
			if err := operator.ForceUnlock(t.Context()); err != nil {
				require.ErrorIs(t, err, relock.ErrNotHeld)
			}
		case 3:
			require.NoError(t, w.plain.FlushAll(t.Context()).Err())
		}
		if i%4 > 1 {
			require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		}
	}
	w.awaitFree("a", soon)
}

// ---------------------------------------------------------------------------------------------------------------------
// The soak.

// TestSoak lets workers lock at random while faults happen at random, for as long as RELOCK_SOAK says (2s if it says
// nothing). RELOCK_SEED repeats the choices of a run; the timing is never the same. It checks that
//
//   - nobody is in while another one is, by the clock of the one that was in first;
//   - tokens grow, as the thing that the lock guards sees them;
//   - a section that has lost the lock is told, and Unlock says so too;
//   - every call comes back, soon after its context is done;
//   - at the end everybody can lock, and nothing is left.
func TestSoak(t *testing.T) {
	duration := 2 * time.Second
	if text := os.Getenv("RELOCK_SOAK"); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err, "RELOCK_SOAK")
	}
	seed := rand.Uint64()
	if text := os.Getenv("RELOCK_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "RELOCK_SEED")
	}
	t.Logf("RELOCK_SOAK=%s RELOCK_SEED=%d", duration, seed)
	s := &soak{arena: onOwn(t), stop: make(chan struct{})}
	s.tidyWithin = soakTTL + soon
	for range soakClients {
		s.peers = append(s.peers, s.peer(relock.WithTTL(soakTTL)))
	}
	for i := range s.things {
		s.things[i].lost = true
	}

	var workers, trouble sync.WaitGroup
	for i := range soakWorkers {
		workers.Go(func() { s.work(rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	trouble.Go(func() { s.trouble(rand.New(rand.NewPCG(seed, soakWorkers))) })
	sleepUntil(time.Now().Add(duration))
	close(s.stop)
	// The trouble ends first, so that what follows is bounded by what a healthy server needs.
	require.NoError(t, s.call(soon, func() error { trouble.Wait(); return nil }))
	require.NoError(t, s.call(2*soakTTL+2*soon, func() error { workers.Wait(); return nil }), "every call comes back")
	t.Logf("did:    %s", &s.did)
	t.Logf("faults: %s", &s.faulted)
	require.Empty(t, s.wrong.all())
	for i := range s.things {
		require.Empty(t, s.things[i].faults)
		for _, p := range s.peers {
			l := p.NewLock(fmt.Sprint("thing", i))
			s.leave(s.enter(t.Context(), l, soakTTL+soon), l, soon)
		}
	}
	require.Positive(t, s.did.of("sections"))
}

const (
	soakClients, soakWorkers, soakLocks = 4, 16, 3

	soakTTL = time.Second
	// slack is how much later than its context's end a call may come back: the machine is busy, so this is more than
	// the promise, which has tests of its own.
	slack = 500 * time.Millisecond
)

type soak struct {
	*arena
	peers  []*peer
	things [soakLocks]guarded
	// epoch counts the restarts of the server, each of which loses all data: what was held then is not exclusive any more.
	epoch atomic.Int64
	stop  chan struct{}

	did, faulted tally
	wrong        names
}

func (s *soak) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// pause waits a little, or until the soak is over.
func (s *soak) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.stop:
	}
}

func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}

// work is one worker: a new holder each time, on a lock of its choice.
func (s *soak) work(random *rand.Rand) {
	for !s.stopped() {
		i := random.IntN(soakLocks)
		p := s.peers[random.IntN(len(s.peers))]
		var options []relock.Option
		switch random.IntN(8) {
		case 0:
			options = append(options, relock.WithFixedLease(soakTTL/2))
		case 1:
			options = append(options, relock.WithLocalReentry())
		}
		s.section(random, &s.things[i], p.NewLock(fmt.Sprint("thing", i), options...))
	}
}

// section is one attempt to lock, in a way of its choice, and what follows.
func (s *soak) section(random *rand.Rand, thing *guarded, l *relock.Lock) {
	epoch := s.epoch.Load()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var limit time.Duration
	begin := time.Now()
	var section context.Context
	var err error
	how := "lock"
	switch random.IntN(8) {
	case 0:
		how = "try"
		// It tries three times, each for as long as go-redis takes to give up.
		limit = 5 * time.Second
		section, err = l.TryLock(ctx)
	case 1:
		how = "try for"
		limit = upTo(random, 300*time.Millisecond) + time.Millisecond
		section, err = l.TryLockFor(ctx, limit)
	case 2, 3:
		how = "cancelled"
		limit = upTo(random, 100*time.Millisecond) + time.Millisecond
		stop := time.AfterFunc(limit, cancel)
		defer stop.Stop()
		section, err = l.Lock(ctx)
	default:
		limit = 3 * soakTTL
		bounded, done := context.WithTimeout(ctx, limit)
		defer done()
		section, err = l.Lock(bounded)
	}
	if took := time.Since(begin); took > limit+slack {
		s.wrong.add(fmt.Sprintf("%s came back after %s, its limit was %s: %v", how, took, limit, err))
	}
	if err != nil {
		switch {
		case errors.Is(err, relock.ErrLocked), isDone(err), how == "try":
			s.did.add(how + " without success")
		default:
			s.wrong.add(fmt.Sprintf("%s: %v", how, err))
		}
		return
	}
	s.did.add("sections")
	in := s.admit(section, thing, l, epoch)
	sections := []context.Context{section}
	for depth := range random.IntN(3) {
		inner, err := l.Lock(sections[min(depth, len(sections)-1)])
		switch {
		case err == nil:
			s.did.add("nested")
			sections = append(sections, inner)
			defer func() { s.unlock(inner, l) }() // after the outer one: any order is allowed
		case errors.Is(err, relock.ErrLockLost), isDone(err):
			s.did.add("nested without success")
		default:
			s.wrong.add(fmt.Sprintf("nested: %v", err))
		}
	}
	if random.IntN(50) == 0 {
		// Past the lease, so that renewal matters.
		s.pause(min(soakTTL+upTo(random, soakTTL), 2*soakTTL))
	} else if random.IntN(2) == 0 {
		s.pause(upTo(random, 5*time.Millisecond))
	}
	if in {
		thing.leave(section)
	}
	if random.IntN(4) == 0 {
		cancel() // Unlock works with a context that is done
	}
	s.unlock(section, l)
}

// admit is what the thing does that the lock guards. A section from before the server lost its data may meet another
// one; then the token tells them apart.
func (s *soak) admit(section context.Context, thing *guarded, l *relock.Lock, epoch int64) bool {
	thing.mu.Lock()
	stale := s.epoch.Load() != epoch && l.Token(section) <= thing.token
	thing.mu.Unlock()
	if stale {
		s.did.add("stale tokens refused")
		return false
	}
	return thing.enter(section, l)
}

func (s *soak) unlock(section context.Context, l *relock.Lock) {
	lost := errors.Is(context.Cause(section), relock.ErrLockLost)
	begin := time.Now()
	err := l.Unlock(section)
	if took := time.Since(begin); took > soakTTL+slack {
		s.wrong.add(fmt.Sprintf("unlock came back after %s: %v", took, err))
	}
	switch {
	case err == nil && lost:
		s.wrong.add("unlock says nothing of the loss that its section was told")
	case err == nil:
	case errors.Is(err, relock.ErrLockLost):
		s.did.add("losses")
	case errors.Is(err, relock.ErrNotHeld):
		s.wrong.add(fmt.Sprintf("unlock: %v", err))
	default:
		s.did.add("unlocks not confirmed")
	}
}

// trouble is what happens meanwhile.
func (s *soak) trouble(random *rand.Rand) {
	anyone := func() *peer { return s.peers[random.IntN(len(s.peers))] }
	scripts := s.script(scriptNames...)
	how := func() redistest.Break {
		return []redistest.Break{redistest.EOF, redistest.Reset, redistest.Silence}[random.IntN(3)]
	}
	var held []*redistest.Rule
	faults := []struct {
		name   string
		weight int
		do     func()
	}{
		{"reply lost", 8, func() { anyone().faults.Once(scripts, redistest.DropReply(how())) }},
		{"cut before a script", 4, func() { anyone().faults.Once(scripts, redistest.CutBefore(how())) }},
		{"script sent twice", 4, func() { anyone().faults.Once(scripts, redistest.Duplicate(2, redistest.First)) }},
		{"script held back", 6, func() {
			held = append(held, anyone().faults.Once(scripts, redistest.Hold()))
		}},
		{"script let go", 6, func() {
			if len(held) > 0 {
				held[0].LetGo()
				held = held[1:]
			}
		}},
		{"all connections cut", 3, func() { anyone().faults.Cut() }},
		{"pub/sub cut", 3, func() { anyone().faults.CutPubSub() }},
		{"pub/sub silent", 2, func() { anyone().faults.StallPubSub() }},
		{"partition", 3, func() {
			p := anyone()
			p.faults.Partition()
			s.pause(upTo(random, 3*soakTTL/2))
			p.faults.Heal()
		}},
		{"connection refused", 2, func() {
			p := anyone()
			p.faults.Refuse()
			p.faults.Cut()
			s.pause(upTo(random, soakTTL/2))
			p.faults.Heal()
		}},
		{"slow network", 2, func() {
			p := anyone()
			p.faults.Delay(upTo(random, 50*time.Millisecond))
			s.pause(upTo(random, 200*time.Millisecond))
			p.faults.Delay(0)
		}},
		{"connections killed", 3, func() {
			kind := []string{"normal", "pubsub"}[random.IntN(2)]
			_ = s.plain.ClientKillByFilter(context.Background(), "TYPE", kind).Err()
		}},
		{"scripts flushed", 2, func() { _ = s.plain.ScriptFlush(context.Background()).Err() }},
		{"server stopped", 1, func() {
			s.server.Pause()
			s.pause(upTo(random, 3*soakTTL/2))
			s.server.Resume()
		}},
		{"server killed", 1, func() {
			s.server.Kill()
			s.epoch.Add(1)
			for i := range s.things { // who was in may meet another one now
				s.things[i].forget()
			}
			s.pause(upTo(random, soakTTL/4))
			s.server.Restart()
		}},
	}
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	for !s.stopped() {
		n := random.IntN(sum)
		for _, f := range faults {
			if n -= f.weight; n < 0 {
				f.do()
				s.faulted.add(f.name)
				break
			}
		}
		s.pause(upTo(random, 40*time.Millisecond))
	}
	for _, rule := range held {
		rule.Remove()
		rule.LetGo()
	}
	for _, p := range s.peers {
		p.faults.Heal()
	}
}
