package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

type hotSizes struct {
	rounds, goroutines int
	slice              time.Duration
	apartRounds        int // with the goroutines in two clients
}

// hot lets many goroutines of one process want one lock, as the requests of a service do for one busy thing. Then the same
// number in two clients with connections of their own, half in each: what one client's goroutines get from each other is
// at the cost of those of the other.
func hot(b *bench) error {
	for _, c := range []struct {
		which             string
		processes, rounds int
	}{
		{"", 1, b.sizes.hot.rounds},
		{apart, 2, b.sizes.hot.apartRounds},
	} {
		all := b.taking(false)
		records := make([]*record, len(all))
		for i, s := range all {
			records[i] = b.record(c.which, s, c.rounds)
		}
		err := b.turns(caseName("hot", c.which), c.rounds, len(all), func(r, i int) error {
			m, err := b.hotSlice(all[i], c.processes, &records[i].Broken)
			if err != nil {
				records[i].failed(r, err)
				return b.flush()
			}
			records[i].set(r, m)
			return b.flush()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// apart is the case of two clients.
const apart = "half of them in each of two clients"

// wanting is one goroutine that wants the lock again and again.
type wanting struct {
	asked    atomic.Int64 // when, in nanoseconds since the slice began; 0: it is inside
	sections int64
	longest  time.Duration // that it waited
}

func (b *bench) hotSlice(s *system, processes int, broken *int64) (m round, err error) {
	opened := make([]process, processes)
	for i := range opened {
		p, err := s.open(setup{addr: b.server.Addr()})
		if err != nil {
			return nil, err
		}
		defer p.close()
		opened[i] = p
	}
	var g guard
	var failed atomic.Pointer[error]
	lock := freshLock("hot")
	all := make([]wanting, b.sizes.hot.goroutines)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var measuring atomic.Bool
	stays := newStays(processes)
	begin := time.Now()
	var wg sync.WaitGroup
	for k := range all {
		of := k % processes
		h, w := opened[of].handle(lock), &all[k]
		wg.Go(func() {
			for {
				asked := time.Since(begin)
				w.asked.Store(int64(asked))
				section, err := h.lock(ctx)
				if err == nil {
					g.enter(int64(k + 1))
					w.asked.Store(0)
					if measuring.Load() {
						now := time.Since(begin)
						w.sections++
						w.longest = max(w.longest, now-asked)
						stays.enter(of, now)
					}
					g.leave(int64(k + 1))
					err = h.unlock(context.WithoutCancel(section))
				}
				if err != nil {
					if ctx.Err() == nil {
						failed.Store(&err)
					}
					return
				}
			}
		})
	}
	pause(b.sizes.hot.slice / 4) // all have asked
	before, err := b.now()
	if err != nil {
		return nil, err
	}
	stays.begin(time.Since(begin))
	measuring.Store(true)
	pause(b.sizes.hot.slice)
	measuring.Store(false)
	over := time.Since(begin)
	stays.end(over)
	var longest time.Duration
	for k := range all { // some have waited to the end
		if asked := time.Duration(all[k].asked.Load()); asked > 0 {
			longest = max(longest, over-asked)
		}
	}
	after, err := b.now()
	cancel()
	hangs := within(closeLimit, func() error { wg.Wait(); return nil })
	*broken += g.broken.Load()
	if failure := failed.Load(); failure != nil {
		err = errors.Join(err, *failure)
	}
	if err = errors.Join(err, hangs); err != nil {
		return nil, err
	}
	var sum int64
	shares := make([]int64, len(all))
	for k := range all {
		shares[k] = all[k].sections
		sum += shares[k]
		longest = max(longest, all[k].longest)
	}
	u, each := after.since(before), float64(max(sum, 1))
	m = round{
		"per_s": float64(sum) / u.wall.Seconds(), "jain": jain(shares), "sections": float64(sum),
		"longest_wait_ms": millis(longest), "commands": float64(u.commands(s.also...)) / each,
		"client_us": micros(u.client) / each, "server_us": micros(u.server) / each,
	}
	if processes > 1 {
		m["in_a_row"], m["away_ms"] = float64(stays.most), millis(stays.longest)
	}
	return m, nil
}

// stays is how long one client after the other had the lock among its own goroutines. It is not left to the lock under test
// to keep those who write here apart.
type stays struct {
	mu      sync.Mutex
	whose   int             // the client that has the lock
	sofar   int             // sections that it had in a row
	most    int             // that any had
	seen    []time.Duration // when each client last had it
	longest time.Duration   // that a client was without
	over    bool
}

func newStays(clients int) *stays { return &stays{whose: -1, seen: make([]time.Duration, clients)} }

// begin is before the first enter: no client has been without so far.
func (s *stays) begin(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.seen {
		s.seen[i] = now
	}
}

// enter notes a section of a client.
func (s *stays) enter(client int, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if s.whose != client {
		s.whose, s.sofar = client, 0
	}
	s.sofar++
	s.most = max(s.most, s.sofar)
	s.longest = max(s.longest, now-s.seen[client])
	s.seen[client] = now
}

// end counts the clients that have been without since.
func (s *stays) end(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, seen := range s.seen {
		s.longest = max(s.longest, now-seen)
	}
}
