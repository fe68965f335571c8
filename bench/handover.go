package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

type handoverSizes struct {
	rounds, farRounds   int
	waiters, farWaiters []int
	samples, farSamples int           // in a round
	hold                time.Duration // how long each one has the lock, while the last one queues again
	limit               time.Duration // for one system in one round, and for one hand-over
}

// handover lets one lock go round among clients that are as separate as those of different machines: each has
// connections of its own. Measured is the time from Unlock being called by one until Lock has returned to another, and
// what is sent meanwhile by all of them.
//
// The unit is the raw wake, see bare. It is measured between the hand-overs of a system that is quiet while it waits, see mixed.
//
// A round has all numbers of waiters, in a new order every time, before the next round begins: a machine that gets slower
// meanwhile is slower for each of them, and not for those that come last.
func handover(b *bench) error {
	s := b.sizes.handover
	var near, far []*relay
	for _, n := range s.waiters {
		near = append(near, b.relay(0, n, s.rounds, s.samples))
	}
	for _, rt := range b.sizes.trips {
		for _, n := range s.farWaiters {
			far = append(far, b.relay(rt, n, s.farRounds, s.farSamples))
		}
	}
	if err := b.relays("handover", s.rounds, near); err != nil {
		return err
	}
	return b.relays("handover, far", s.farRounds, far)
}

// ping is the name of a record beside those of systems.
const ping = "ping"

func waitersCase(rt time.Duration, n int) string {
	return caseName(strconv.Itoa(n)+" waiting", trip(rt))
}

// relay is a case of handover, and where its figures go.
type relay struct {
	roundTrip        time.Duration
	waiters, samples int
	systems          []*system
	records          []*record // of the systems
	bare             map[turn]*record
	pings            *record
}

func (b *bench) relay(rt time.Duration, waiters, rounds, samples int) *relay {
	which := waitersCase(rt, waiters)
	c := &relay{
		roundTrip: rt, waiters: waiters, samples: samples, systems: b.taking(false),
		bare: map[turn]*record{}, pings: b.recordNamed(which, ping, "", rounds),
	}
	for _, t := range bareTurns {
		c.bare[t] = b.recordNamed(which, t.name(), "", rounds)
	}
	for _, s := range c.systems {
		c.records = append(c.records, b.record(which, s, rounds))
	}
	return c
}

// relays runs all cases of a round, and in each the systems one after the other, before the next round.
func (b *bench) relays(what string, rounds int, cases []*relay) error {
	return b.turns(what, rounds, len(cases), func(r, i int) error {
		for _, k := range rand.Perm(len(cases[i].systems)) {
			if err := b.relayRound(cases[i], k, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// relayRound is the turn of the k-th system.
func (b *bench) relayRound(c *relay, k, r int) error {
	m, took, err := b.handoverSlice(c.systems[k], c.roundTrip, c.waiters, c.samples, &c.records[k].Broken)
	if err != nil {
		c.records[k].failed(r, err)
	}
	if len(m) > 0 {
		c.records[k].set(r, m)
	}
	for t, rec := range c.bare {
		if d := took[t]; len(d) > 0 {
			rec.set(r, round{"p50_us": micros(d.quantile(0.5)), "p99_us": micros(d.quantile(0.99))})
		}
	}
	if len(took[wake]) > 0 {
		c.pings.set(r, round{"us": m["ping_us"]})
	}
	return b.flush()
}

// handoverSlice is one system's turn: its clients are opened, queue up, hand the lock round, and are gone. took is how long each
// turn of a kind took.
func (b *bench) handoverSlice(s *system, rt time.Duration, waiters, samples int, broken *int64) (m round, took map[turn]durations, err error) {
	addr, err := b.addr(rt)
	if err != nil {
		return nil, nil, err
	}
	r := newRing(freshLock("handover"))
	defer func() { *broken += r.guard.broken.Load() }()
	if err := r.open(s, setup{addr: addr}, waiters+1); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.queueUp(b, s, rt); err != nil {
		return nil, nil, err
	}
	rdb, err := b.redis(rt)
	if err != nil {
		return nil, nil, err
	}
	defer rdb.Close()
	pinged, err := roundTrip(r.ctx, rdb, 11)
	if err != nil {
		return nil, nil, err
	}
	kinds := []turn{handOver}
	var beside *bare
	if s.queued != nil { // quiet while it waits
		if beside, err = newBare(r.ctx, func() (*redis.Client, error) { return b.redis(rt) }, r.lock, waiters+1); err != nil {
			return nil, nil, err
		}
		defer beside.close()
		kinds = append(kinds, bareTurns...)
	}

	limit, hold := b.sizes.handover.limit, b.sizes.handover.hold+3*rt
	// The first one to have it had not waited before, so the first hand-over is not like the others.
	if _, err := r.pass(limit); err != nil {
		return nil, nil, err
	}
	pause(hold + 10*rt) // it connects and subscribes
	took = map[turn]durations{}
	run := func(turns []turn) error {
		over := time.Now().Add(limit + time.Duration(len(turns))*(hold+2*rt))
		for _, t := range turns {
			if time.Now().After(over) {
				break
			}
			pause(hold)
			var d time.Duration
			var err error
			if t == handOver {
				d, err = r.pass(limit)
			} else {
				d, err = beside.run(r.ctx, t)
			}
			if err != nil {
				return err
			}
			took[t] = append(took[t], d)
		}
		pause(hold) // the last one queues again
		return nil
	}
	if beside != nil {
		if err := run(mixed(samples, kinds)); err != nil {
			return nil, nil, err
		}
		samples = (samples + 3) / 4 // enough to count what is sent when there is nothing else
	}
	timed := took[handOver]
	before, err := b.now()
	if err != nil {
		return nil, nil, err
	}
	if err := run(mixed(samples, kinds[:1])); err != nil {
		return nil, nil, err
	}
	after, err := b.now()
	if err != nil {
		return nil, nil, err
	}
	d, n := after.since(before), float64(len(took[handOver])-len(timed))
	if beside == nil {
		timed = took[handOver]
	}
	m = round{
		"p50_us": micros(timed.quantile(0.5)), "p90_us": micros(timed.quantile(0.9)), "p99_us": micros(timed.quantile(0.99)),
		"max_us": micros(timed.quantile(1)), "samples": float64(len(timed)),
		"scripts": float64(d.scripts()) / n, "commands": float64(d.commands(s.also...)) / n, "wire_bytes": float64(d.in+d.out) / n,
		"ping_us": micros(pinged),
	}
	if beside != nil {
		m["wake_us"], m["grant_us"] = micros(took[wake].quantile(0.5)), micros(took[grantApart].quantile(0.5))
	}
	return m, took, nil
}

// ring is the clients that hand one lock round.
type ring struct {
	lock     string
	acquired chan arrival
	release  chan struct{} // to the one that has the lock
	rejoin   chan struct{} // to the one that had it
	guard    guard

	ctx     context.Context
	cancel  context.CancelFunc
	clients []process
	running sync.WaitGroup
	called  atomic.Int64 // when Unlock was last called, in nanoseconds since start
	start   time.Time
}

func newRing(lock string) *ring {
	return &ring{lock: lock, acquired: make(chan arrival), release: make(chan struct{}), rejoin: make(chan struct{})}
}

// arrival is a Lock that has returned.
type arrival struct {
	after time.Duration // since Unlock was called
	err   error
}

// openAtOnce is how many clients are opened or closed at the same time.
const openAtOnce = 16

// eachOf calls f for 0..n-1, some at the same time, and returns what failed.
func eachOf(n int, f func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, min(n, openAtOnce))
	var wg sync.WaitGroup
	for k := range errs {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || errs[k] != nil {
					return
				}
				errs[k] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *ring) open(s *system, with setup, n int) error {
	r.start = time.Now()
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.clients = make([]process, n)
	err := eachOf(n, func(i int) (err error) {
		r.clients[i], err = s.open(with)
		return err
	})
	if err != nil {
		return errors.Join(err, r.close())
	}
	return nil
}

// queueUp lets the first client take the lock and the others ask for it, and returns when they wait.
func (r *ring) queueUp(b *bench, s *system, rt time.Duration) error {
	for i, p := range r.clients {
		h := p.handle(r.lock)
		r.running.Go(func() { r.run(h, int64(i+1)) })
		if i > 0 {
			continue
		}
		select {
		case a := <-r.acquired:
			if a.err != nil {
				return a.err
			}
		case <-time.After(closeLimit):
			return errHangs
		}
	}
	n := len(r.clients) - 1
	if s.queued == nil {
		pause(50*time.Millisecond + time.Duration(n)*time.Millisecond + 8*rt)
		return nil
	}
	if err := r.queued(b, s, n); err != nil {
		return err
	}
	pause(20*time.Millisecond + 2*rt) // their answers arrive
	return nil
}

// queued returns when Redis knows of n waiters.
func (r *ring) queued(b *bench, s *system, n int) error {
	for end := time.Now().Add(closeLimit); time.Now().Before(end); pause(time.Millisecond) {
		queued, err := s.queued(r.ctx, b.admin, r.lock)
		if err != nil || queued == n {
			return err
		}
	}
	return fmt.Errorf("not all of %d waiters are queued: %w", n, errHangs)
}

// run is one client: it takes the lock, has it until it is told to let go, and asks again when another has it. (Asking at
// once, it would get the lock back from a system without a queue, before any waiter has looked.)
func (r *ring) run(h handle, who int64) {
	ctx, cancel := context.WithCancel(r.ctx) // none that is shared with the others
	defer cancel()
	for {
		section, err := h.lock(ctx)
		at := time.Since(r.start)
		if err != nil {
			r.tell(arrival{err: err})
			return
		}
		r.guard.enter(who)
		r.tell(arrival{after: at - time.Duration(r.called.Load())})
		select {
		case <-r.release:
		case <-r.ctx.Done():
		}
		r.guard.leave(who)
		r.called.Store(int64(time.Since(r.start)))
		if err := h.unlock(section); err != nil {
			r.tell(arrival{err: fmt.Errorf("unlock: %w", err)})
			return
		}
		select {
		case <-r.rejoin:
		case <-r.ctx.Done():
		}
	}
}

// tell hands an arrival to the conductor, unless the slice is over.
func (r *ring) tell(a arrival) {
	select {
	case r.acquired <- a:
	case <-r.ctx.Done():
	}
}

// pass makes the one who has the lock give it away, and returns how long it took until the next one had it.
func (r *ring) pass(limit time.Duration) (time.Duration, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r.release <- struct{}{}:
	case <-timer.C:
		return 0, errHangs
	}
	var a arrival
	select {
	case a = <-r.acquired:
		if a.err != nil {
			return 0, a.err
		}
	case <-timer.C:
		return 0, fmt.Errorf("nobody had the lock %s after an Unlock", limit)
	}
	select {
	case r.rejoin <- struct{}{}:
		return a.after, nil
	case <-timer.C:
		return 0, fmt.Errorf("unlock: %w", errHangs)
	}
}

// closeLimit is for all clients of a slice to come to an end.
const closeLimit = 30 * time.Second

func (r *ring) close() error {
	r.cancel()
	return within(closeLimit, func() error {
		r.running.Wait()
		return eachOf(len(r.clients), func(i int) error {
			if r.clients[i] != nil {
				r.clients[i].close()
			}
			return nil
		})
	})
}
