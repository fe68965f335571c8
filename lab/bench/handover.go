package main

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"time"
)

type handoverSizes struct {
	rounds, samples int
	waiters         []int
	hold            time.Duration // the length of a section, in which the former owner queues again
	limit           time.Duration // of a system that polls in a round, and of each hand-over
}

// handover measures from the call of Unlock until Lock has returned in another client, and counts
// what all clients send meanwhile. Each client has connections of its own, as on other machines.
//
// The unit is the raw wake. The bare grant stands between the raw wake and a lock. Both are
// measured between the hand-overs of a system that is quiet while its clients wait.
func handover(b *bench) error { return b.handovers(b.sizes.handover, true) }

// handovers visits all cases in each round, in a new order every time, so that no case has a better
// hour of the machine than another.
func (b *bench) handovers(size handoverSizes, baselines bool) error {
	var relays []*relay
	for _, n := range size.waiters {
		c := &relay{handoverSizes: size, waiting: n}
		which := strconv.Itoa(n) + " waiting"
		if baselines {
			c.bare = map[turn]*record{
				wake:  b.record(which, &system{name: rawWake}, size.rounds),
				grant: b.record(which, &system{name: bareGrant}, size.rounds),
			}
		}
		for _, s := range b.systems {
			c.records = append(c.records, b.record(which, s, size.rounds))
		}
		relays = append(relays, c)
	}
	return b.turns(b.workload, size.rounds, len(relays), func(r, i int) error {
		return inTurns(len(b.systems), func(k int) error { return b.relayRound(relays[i], k, r) })
	})
}

// relay is a case of handover, and its records.
type relay struct {
	handoverSizes

	waiting int
	records []*record // of the systems
	bare    map[turn]*record
}

// relayRound is the turn of the k-th system.
func (b *bench) relayRound(c *relay, k, r int) error {
	l := &slice{relay: c, rings: map[turn]*ring{}, took: map[turn]durations{}}
	rec := c.records[k]
	m, err := b.handoverSlice(l, b.systems[k])
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
	*relay

	rings map[turn]*ring
	waker *waker // nil without baselines
	took  map[turn]durations
}

// handoverSlice opens the clients of a slice, measures, and counts what the ring sends while no
// baseline sends anything.
func (b *bench) handoverSlice(l *slice, s *system) (round, error) {
	if err := l.open(b, s); err != nil {
		return nil, err
	}
	if err := l.measure(s); err != nil {
		return nil, err
	}
	n := 0.0
	u, err := b.spent(func() error {
		return l.run(s, make([]turn, (l.samples+3)/4), func(turn, time.Duration) { n++ })
	})
	if err != nil {
		return nil, err
	}
	m := l.figures(handOver)
	m["scripts"], m["commands"] = float64(u.scripts())/n, float64(u.commands(s.also...))/n
	m["wire_bytes"] = float64(u.in+u.out) / n
	return m, nil
}

// figures returns the metrics of a kind of turn.
func (l *slice) figures(t turn) round {
	p50, p99 := l.took[t].quantile(0.5), l.took[t].quantile(0.99)
	return round{"p50_us": micros(p50), "p99_us": micros(p99), "tail": float64(p99) / float64(p50)}
}

// open fills the queues, and lets each ring make a first hand-over, whose owner has not waited.
func (l *slice) open(b *bench, s *system) (err error) {
	lock := freshLock("handover")
	systems := map[turn]*system{handOver: s}
	if l.bare != nil && s.queued != nil {
		systems[grant] = bareLocks
		if l.waker, err = newWaker(b.redis(), lock); err != nil {
			return err
		}
	}
	for t, s := range systems {
		r, err := newRing(b, s, lock+":"+strconv.Itoa(int(t)), b.setup(), l.waiting+1)
		if err != nil {
			return err
		}
		l.rings[t] = r
		if err := r.queueUp(); err != nil {
			return err
		}
		if _, err := r.pass(l.limit); err != nil {
			return err
		}
	}
	pause(l.hold) // the first owners connect and subscribe
	return nil
}

// measure runs all kinds of turns, in a random order, each after the same pause. A machine answers
// faster shortly after much work, so a fixed order would give each kind a machine of its own.
func (l *slice) measure(s *system) error {
	kinds := []turn{handOver}
	if l.waker != nil {
		kinds = []turn{handOver, wake, grant}
	}
	turns := make([]turn, l.samples*len(kinds))
	for i, to := range rand.Perm(len(turns)) {
		turns[to] = kinds[i%len(kinds)]
	}
	return l.run(s, turns, func(t turn, d time.Duration) { l.took[t] = append(l.took[t], d) })
}

// run makes turns until a system that polls has used up its time.
func (l *slice) run(s *system, turns []turn, done func(turn, time.Duration)) error {
	over := time.Now().Add(l.limit + time.Duration(len(turns))*l.hold)
	for _, t := range turns {
		if s.queued == nil && time.Now().After(over) {
			break
		}
		pause(l.hold)
		var d time.Duration
		var err error
		if r := l.rings[t]; r != nil {
			d, err = r.pass(l.limit)
		} else {
			d, err = l.waker.wake()
		}
		if err != nil {
			return err
		}
		done(t, d)
	}
	pause(l.hold) // the last owner queues again
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
