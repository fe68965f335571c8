package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

type handoverSizes struct {
	rounds, farRounds   int
	waiters, farWaiters []int
	samples, farSamples int           // in a round
	hold                time.Duration // the length of a section, in which the former owner queues again
	limit               time.Duration // of a system in a round, and of a hand-over
}

// draining is the case in which nobody queues again until the queue is empty.
const draining = "draining"

// handover measures from the call of Unlock until Lock has returned in another client, and counts
// what all clients send meanwhile. Each client has connections of its own, as on other machines.
//
// The unit is the raw wake. The bare grant stands between the raw wake and a lock. Both are
// measured between the hand-overs of a system that is quiet while its clients wait.
//
// A round visits all cases, in a new order every time, before the next round begins, so that no
// case has a better hour of the machine than another.
func handover(b *bench) error {
	s := b.sizes.handover
	var near, distant []*relay
	for _, n := range s.waiters {
		near = append(near, b.relay(0, n, false), b.relay(0, n, true))
	}
	for _, rt := range b.sizes.trips {
		for _, n := range s.farWaiters {
			distant = append(distant, b.relay(rt, n, false))
		}
	}
	if err := b.relays("handover", s.rounds, near); err != nil {
		return err
	}
	return b.relays("handover, far", s.farRounds, distant)
}

// relay is a case of handover, and its records.
type relay struct {
	roundTrip        time.Duration
	waiters, samples int
	drains           bool
	systems          []*system
	records          []*record // of the systems
	bare             map[turn]*record
}

// relay makes a case. Only quiet systems drain a queue, as only they have a queue.
func (b *bench) relay(rt time.Duration, waiters int, drains bool) *relay {
	size := b.sizes.handover
	which := caseName(strconv.Itoa(waiters)+" waiting", trip(rt))
	c := &relay{roundTrip: rt, waiters: waiters, samples: size.samples, drains: drains, systems: b.taking()}
	rounds := size.rounds
	if rt > 0 {
		rounds, c.samples = size.farRounds, size.farSamples
	}
	if drains {
		which = caseName(which, draining)
		c.systems = slices.DeleteFunc(c.systems, func(s *system) bool { return s.queued == nil })
	}
	c.bare = map[turn]*record{
		wake:  b.record(which, &system{name: rawWake}, rounds),
		grant: b.record(which, &system{name: bareGrant}, rounds),
	}
	for _, s := range c.systems {
		c.records = append(c.records, b.record(which, s, rounds))
	}
	return c
}

// relays visits all cases in each round, and in each case all systems.
func (b *bench) relays(what string, rounds int, cases []*relay) error {
	return b.turns(what, rounds, len(cases), func(r, i int) error {
		return inTurns(len(cases[i].systems), func(k int) error {
			return b.relayRound(cases[i], k, r)
		})
	})
}

// relayRound is the turn of the k-th system.
func (b *bench) relayRound(c *relay, k, r int) error {
	rec := c.records[k]
	l := &slice{
		relay: c, limit: b.sizes.handover.limit, hold: b.sizes.handover.hold + 3*c.roundTrip,
		rings: map[turn]*ring{}, took: map[turn]durations{},
	}
	m, err := b.handoverSlice(l, c.systems[k])
	if err = errors.Join(err, l.close(rec)); err != nil {
		rec.failed(r, err)
	}
	rec.set(r, m)
	if len(m) > 0 && l.waker != nil {
		for t, bare := range c.bare {
			bare.set(r, l.figures(t))
		}
	}
	return b.flush()
}

// turn is what a slice measures next.
type turn int

const (
	handOver turn = iota // by the system under test
	wake
	grant
)

// slice is a system's turn in a case: a ring of its clients, and the baselines beside the ring.
type slice struct {
	relay       *relay
	limit, hold time.Duration
	ping        time.Duration // a round trip
	rings       map[turn]*ring
	waker       *waker // nil beside a system that polls
	took        map[turn]durations
}

// handoverSlice opens the clients of a slice and measures.
func (b *bench) handoverSlice(l *slice, s *system) (m round, err error) {
	rdb, err := b.redis(l.relay.roundTrip)
	if err != nil {
		return nil, err
	}
	defer rdb.Close()
	if l.ping, err = roundTrip(context.Background(), rdb, 11); err != nil {
		return nil, err
	}
	if err := l.open(b, s); err != nil {
		return nil, err
	}
	if err := l.measure(); err != nil {
		return nil, err
	}
	m = l.figures(handOver)
	if l.waker != nil {
		m["grant_of_wake"] = l.figures(grant)["p50_us"] / l.figures(wake)["p50_us"]
	}
	return m, l.count(b, s, m)
}

// figures returns the metrics of a kind of turn.
func (l *slice) figures(t turn) round {
	p50, p99 := l.took[t].quantile(0.5), l.took[t].quantile(0.99)
	return round{
		"p50_us": micros(p50), "p99_us": micros(p99), "tail": float64(p99) / float64(p50),
		"trips": float64(p50) / float64(l.ping),
	}
}

// open fills the queues, and lets each ring make a first hand-over, whose owner has not waited.
func (l *slice) open(b *bench, s *system) error {
	rt := l.relay.roundTrip
	addr, err := b.addr(rt)
	if err != nil {
		return err
	}
	lock := freshLock("handover")
	systems := map[turn]*system{handOver: s}
	if s.queued != nil {
		systems[grant] = bareLocks
		rdb, err := b.redis(rt)
		if err != nil {
			return err
		}
		if l.waker, err = newWaker(rdb, lock); err != nil {
			return err
		}
	}
	for t, s := range systems {
		r, err := newRing(b, s, lock+":"+strconv.Itoa(int(t)), setup{addr: addr}, l.relay.waiters+1)
		if err != nil {
			return err
		}
		l.rings[t] = r
		if err := r.queueUp(rt); err != nil {
			return err
		}
		if _, err := l.pass(t); err != nil {
			return err
		}
	}
	pause(l.hold + 10*rt) // the first owners connect and subscribe
	return nil
}

// measure runs all kinds of turns, in a random order, each after the same pause. A machine answers
// faster shortly after much work, so a fixed order would give each kind a machine of its own.
func (l *slice) measure() error {
	kinds := []turn{handOver}
	if l.waker != nil {
		kinds = []turn{handOver, wake, grant}
	}
	turns := make([]turn, l.relay.samples*len(kinds))
	for i, to := range rand.Perm(len(turns)) {
		turns[to] = kinds[i%len(kinds)]
	}
	return l.run(turns, func(t turn, d time.Duration) { l.took[t] = append(l.took[t], d) })
}

// run makes turns until a system that polls has used up its time.
func (l *slice) run(turns []turn, done func(turn, time.Duration)) error {
	over := time.Now().Add(l.limit + time.Duration(len(turns))*(l.hold+2*l.relay.roundTrip))
	for _, t := range turns {
		if l.waker == nil && time.Now().After(over) {
			break
		}
		pause(l.hold)
		d, err := l.pass(t)
		if err != nil {
			return err
		}
		done(t, d)
	}
	pause(l.hold) // the last owner queues again
	return nil
}

// pass makes one turn.
func (l *slice) pass(t turn) (time.Duration, error) {
	r := l.rings[t]
	if r == nil {
		return l.waker.wake()
	}
	if r.waiting == 0 {
		if err := r.refill(); err != nil {
			return 0, err
		}
		pause(l.hold) // for the replies
	}
	d, err := r.pass(l.limit)
	if err == nil && !l.relay.drains {
		err = r.again(l.limit)
	}
	return d, err
}

// count adds what a ring sends for a hand-over, while no baseline sends anything.
func (l *slice) count(b *bench, s *system, m round) error {
	if l.relay.drains {
		return nil
	}
	n := 0.0
	u, err := b.spent(func() error {
		return l.run(make([]turn, (l.relay.samples+3)/4), func(turn, time.Duration) { n++ })
	})
	if err != nil {
		return err
	}
	m["scripts"], m["commands"] = float64(u.scripts())/n, float64(u.commands(s.also...))/n
	m["wire_bytes"] = float64(u.in+u.out) / n
	return nil
}

func (l *slice) close(rec *record) error {
	if l.waker != nil {
		l.waker.close()
	}
	var errs []error
	for t, r := range l.rings {
		errs = append(errs, r.close())
		if t == handOver {
			rec.Broken += r.guard.broken.Load()
		}
	}
	return errors.Join(errs...)
}
