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
// The unit is the raw wake: a script that deletes a key and publishes a message, until a subscriber has the message. It is
// measured between the hand-overs of a system that is quiet while it waits, see mixed.
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

// The names of records beside those of systems.
const (
	rawWake = "raw wake"
	ping    = "ping"
)

func waitersCase(rt time.Duration, n int) string {
	return caseName(strconv.Itoa(n)+" waiting", trip(rt))
}

// relay is a case of handover, and where its figures go.
type relay struct {
	roundTrip        time.Duration
	waiters, samples int
	systems          []*system
	records          []*record // of the systems
	wakes, pings     *record
}

func (b *bench) relay(rt time.Duration, waiters, rounds, samples int) *relay {
	which := waitersCase(rt, waiters)
	c := &relay{
		roundTrip: rt, waiters: waiters, samples: samples, systems: b.taking(false),
		wakes: b.recordNamed(which, rawWake, "", rounds), pings: b.recordNamed(which, ping, "", rounds),
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
	m, unit, err := b.handoverSlice(c.systems[k], c.roundTrip, c.waiters, c.samples, &c.records[k].Broken)
	if err != nil {
		c.records[k].failed(r, err)
	}
	if len(m) > 0 {
		c.records[k].set(r, m)
	}
	if unit.wakes > 0 {
		c.wakes.set(r, round{"p50_us": micros(unit.wake), "p99_us": micros(unit.wakeP99)})
		c.pings.set(r, round{"us": micros(unit.ping)})
	}
	return b.flush()
}

// mixed is the order of n hand-overs and, if wanted, as many raw wakes (true). It is random, and each comes after the same
// pause: a machine answers faster shortly after it had much to do, so what always comes behind the same other thing is
// measured on a machine of its own.
func mixed(n int, wakes bool) []bool {
	if !wakes {
		return make([]bool, n)
	}
	turns := make([]bool, 2*n)
	for _, i := range rand.Perm(2 * n)[:n] {
		turns[i] = true
	}
	return turns
}

// unit is what the hand-overs of a slice are compared with.
type unit struct {
	wakes               int
	wake, wakeP99, ping time.Duration
}

// handoverSlice is one system's turn: its clients are opened, queue up, hand the lock round, and are gone.
func (b *bench) handoverSlice(s *system, rt time.Duration, waiters, samples int, broken *int64) (m round, u unit, err error) {
	addr, err := b.addr(rt)
	if err != nil {
		return nil, u, err
	}
	r := newRing(freshLock("handover"))
	defer func() { *broken += r.guard.broken.Load() }()
	if err := r.open(s, setup{addr: addr}, waiters+1); err != nil {
		return nil, u, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.queueUp(b, s, rt); err != nil {
		return nil, u, err
	}
	rdb, err := b.redis(rt)
	if err != nil {
		return nil, u, err
	}
	defer rdb.Close()
	if u.ping, err = roundTrip(r.ctx, rdb, 11); err != nil {
		return nil, u, err
	}
	var w *waker
	if s.queued != nil { // quiet while it waits
		if w, err = newWaker(r.ctx, rdb, r.lock); err != nil {
			return nil, u, err
		}
		defer w.close()
	}

	hold := b.sizes.handover.hold + 3*rt
	// The first one to have it had not waited before, so the first hand-over is not like the others.
	if _, err := r.pass(b.sizes.handover.limit); err != nil {
		return nil, u, err
	}
	pause(hold + 10*rt) // it connects and subscribes
	turns := mixed(samples, w != nil)
	over := time.Now().Add(b.sizes.handover.limit + time.Duration(len(turns))*(hold+2*rt))
	var took, wakes durations
	before, err := b.now()
	if err != nil {
		return nil, u, err
	}
	for _, isWake := range turns {
		if time.Now().After(over) {
			break
		}
		pause(hold)
		if isWake {
			d, err := w.wake(r.ctx)
			if err != nil {
				return nil, u, err
			}
			wakes = append(wakes, d)
			continue
		}
		d, err := r.pass(b.sizes.handover.limit)
		if err != nil {
			return nil, u, err
		}
		took = append(took, d)
	}
	pause(hold) // the last one queues again
	after, err := b.now()
	if err != nil {
		return nil, u, err
	}
	d, n := after.since(before), float64(len(took))
	m = round{
		"p50_us": micros(took.quantile(0.5)), "p90_us": micros(took.quantile(0.9)), "p99_us": micros(took.quantile(0.99)),
		"max_us": micros(took.quantile(1)), "samples": n,
		"scripts": float64(d.scripts()-int64(len(wakes))) / n, "commands": float64(d.commands(s.also...)-int64(len(wakes))) / n,
		"wire_bytes": (float64(d.in+d.out) - float64(int64(len(wakes))*w.wireBytes())) / n,
		"ping_us":    micros(u.ping),
	}
	if w != nil {
		u.wakes, u.wake, u.wakeP99 = len(wakes), wakes.quantile(0.5), wakes.quantile(0.99)
		m["wake_us"] = micros(u.wake)
	}
	return m, u, nil
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
	for {
		section, err := h.lock(r.ctx)
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

// waker measures raw wakes.
type waker struct {
	rdb     *redis.Client
	ps      *redis.PubSub
	key     string
	channel string
	woken   chan time.Time
	reading chan struct{}
}

var wakeScript = redis.NewScript(`redis.call('DEL', KEYS[1]) return redis.call('PUBLISH', ARGV[1], ARGV[2])`)

// wakePayload is as long as the message of a grant.
const wakePayload = wakeValue + "|1700000000000000"

// What a lock of the floor would be.
const (
	wakeValue = "00000000-0000-0000-0000-000000000000:1:1"
	wakeTTL   = time.Minute
)

// newWaker subscribes with a connection of rdb. The name separates it from others.
func newWaker(ctx context.Context, rdb *redis.Client, name string) (*waker, error) {
	w := &waker{
		rdb: rdb, key: "wake:" + name, channel: "wake:" + name + ":channel", woken: make(chan time.Time, 1),
		reading: make(chan struct{}),
	}
	if err := wakeScript.Load(ctx, rdb).Err(); err != nil {
		return nil, err
	}
	if err := w.lock(ctx); err != nil {
		return nil, err
	}
	w.ps = rdb.Subscribe(ctx, w.channel)
	if _, err := w.ps.Receive(ctx); err != nil {
		_ = w.ps.Close()
		return nil, err
	}
	go func() {
		defer close(w.reading)
		for {
			msg, err := w.ps.Receive(context.Background())
			if err != nil {
				return
			}
			if _, ok := msg.(*redis.Message); ok {
				w.woken <- time.Now()
			}
		}
	}()
	return w, nil
}

// wake is one raw wake.
func (w *waker) wake(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if err := wakeScript.EvalSha(ctx, w.rdb, []string{w.key}, w.channel, wakePayload).Err(); err != nil {
		return 0, err
	}
	select {
	case at := <-w.woken:
		return at.Sub(start), w.lock(ctx)
	case <-time.After(5 * time.Second):
		return 0, fmt.Errorf("raw wake: %w", errHangs)
	}
}

// lock makes the key that the next wake deletes, as a lock without owners and waiters would. No system sends SETEX, so it is not
// among what is counted.
func (w *waker) lock(ctx context.Context) error {
	return w.rdb.Do(ctx, "setex", w.key, int(wakeTTL.Seconds()), wakeValue).Err()
}

// wireBytes is what one wake moves: the two commands, their answers, and the message.
func (w *waker) wireBytes() int64 {
	if w == nil {
		return 0
	}
	bulk := func(s string) int64 { return int64(len("$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n")) }
	command := int64(len("*6\r\n")) + bulk("evalsha") + bulk(wakeScript.Hash()) + bulk("1") + bulk(w.key) + bulk(w.channel) +
		bulk(wakePayload)
	lock := int64(len("*4\r\n")) + bulk("setex") + bulk(w.key) + bulk("60") + bulk(wakeValue)
	return command + int64(len(":1\r\n")) + int64(len(">3\r\n")) + bulk("message") + bulk(w.channel) + bulk(wakePayload) +
		lock + int64(len("+OK\r\n"))
}

func (w *waker) close() {
	_ = w.ps.Close()
	<-w.reading
}
