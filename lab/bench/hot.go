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
	apartRounds        int // with two clients
}

// apart is the case of two clients.
const apart = "half of them in each of two clients"

// hot lets many goroutines of one process want one lock, as the requests of a service want a busy
// thing. With two clients, each has connections of its own and half of the goroutines: a client
// that favours its own goroutines does so at the cost of the other client.
func hot(b *bench) error {
	err := b.contest("", b.sizes.hot.rounds, func(s *system, rec *record) (round, error) {
		return b.hotSlice(s, 1, rec)
	})
	if err != nil {
		return err
	}
	return b.contest(apart, b.sizes.hot.apartRounds, func(s *system, rec *record) (round, error) {
		return b.hotSlice(s, 2, rec)
	})
}

// rush is many goroutines that want one lock again and again.
type rush struct {
	ctx    context.Context
	cancel context.CancelFunc
	start  time.Time
	all    []wanting
	stays  *stays
	wg     sync.WaitGroup
	guard  guard

	measuring atomic.Bool
	failed    atomic.Pointer[error]
}

// wanting is a goroutine of a rush.
type wanting struct {
	asked    atomic.Int64 // the start of its Lock, in nanoseconds since start; 0: inside
	sections int64
	longest  time.Duration // of its waits
}

func (b *bench) hotSlice(s *system, processes int, rec *record) (round, error) {
	opened := make([]process, processes)
	for i := range opened {
		p, err := s.open(setup{addr: b.server.Addr()})
		if err != nil {
			return nil, err
		}
		defer p.close()
		opened[i] = p
	}
	r := &rush{start: time.Now(), all: make([]wanting, b.sizes.hot.goroutines), stays: newStays(processes)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	lock := freshLock("hot")
	for k := range r.all {
		h := opened[k%processes].handle(lock)
		r.wg.Go(func() {
			if err := r.want(h, k); r.ctx.Err() == nil {
				r.failed.Store(&err)
			}
		})
	}
	pause(b.sizes.hot.slice / 4) // all have asked
	var longest time.Duration
	u, err := b.spent(func() error {
		longest = r.measure(b.sizes.hot.slice)
		return nil
	})
	err = errors.Join(err, r.close())
	rec.Broken += r.guard.broken.Load()
	if err != nil {
		return nil, err
	}
	return r.figures(s, u, longest), nil
}

// want is goroutine k, until an error.
func (r *rush) want(h handle, k int) error {
	who, w := int64(k+1), &r.all[k]
	for {
		asked := time.Since(r.start)
		w.asked.Store(int64(asked))
		section, err := h.lock(r.ctx)
		if err != nil {
			return err
		}
		r.guard.enter(who)
		w.asked.Store(0)
		if r.measuring.Load() {
			now := time.Since(r.start)
			w.sections++
			w.longest = max(w.longest, now-asked)
			r.stays.enter(k%len(r.stays.seen), now)
		}
		r.guard.leave(who)
		if err := h.unlock(context.WithoutCancel(section)); err != nil {
			return err
		}
	}
}

// measure lets the rush go on for a time, and returns the longest wait that is not over.
func (r *rush) measure(length time.Duration) (longest time.Duration) {
	r.stays.begin(time.Since(r.start))
	r.measuring.Store(true)
	pause(length)
	r.measuring.Store(false)
	over := time.Since(r.start)
	r.stays.end(over)
	for k := range r.all {
		if asked := time.Duration(r.all[k].asked.Load()); asked > 0 {
			longest = max(longest, over-asked)
		}
	}
	return longest
}

// close ends the rush, and returns its error.
func (r *rush) close() error {
	r.cancel()
	err := within(closeLimit, func() error { r.wg.Wait(); return nil })
	if failure := r.failed.Load(); failure != nil {
		err = errors.Join(*failure, err)
	}
	return err
}

// figures returns the metrics after the end of the rush.
func (r *rush) figures(s *system, u usage, longest time.Duration) round {
	var sum int64
	shares := make([]int64, len(r.all))
	for k := range r.all {
		shares[k] = r.all[k].sections
		sum += shares[k]
		longest = max(longest, r.all[k].longest)
	}
	each := float64(max(sum, 1))
	m := round{
		"per_s": float64(sum) / u.wall.Seconds(), "jain": jain(shares),
		"longest_wait_ms": millis(longest), "commands": float64(u.commands(s.also...)) / each,
		"client_us": micros(u.client) / each, "server_us": micros(u.server) / each,
	}
	if len(r.stays.seen) > 1 {
		m["in_a_row"], m["away_ms"] = float64(r.stays.most), millis(r.stays.longest)
	}
	return m
}

// stays records the clients that have the lock, in turn. Its own mutex keeps its writers apart, as
// the lock under test may fail to.
type stays struct {
	mu      sync.Mutex
	owner   int             // the client with the lock
	sofar   int             // its sections in a row
	most    int             // sections in a row of any client
	seen    []time.Duration // the last section of each client
	longest time.Duration   // of a client without the lock
	over    bool
}

func newStays(clients int) *stays { return &stays{owner: -1, seen: make([]time.Duration, clients)} }

// begin starts the time of all clients, before the first enter.
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
	if s.owner != client {
		s.owner, s.sofar = client, 0
	}
	s.sofar++
	s.most = max(s.most, s.sofar)
	s.longest = max(s.longest, now-s.seen[client])
	s.seen[client] = now
}

// end counts the time since the last section of each client.
func (s *stays) end(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, seen := range s.seen {
		s.longest = max(s.longest, now-seen)
	}
}
