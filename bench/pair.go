package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

type pairSizes struct {
	rounds, bursts, pairs int // bursts in a round, pairs in a burst
	farRounds, farPairs   int // with an added round trip, where a round is one burst
}

// competitor is a system in a slice: its process, and where its figures go.
type competitor struct {
	*system
	process process
	record  *record
}

// compete opens all systems that take part, on one go-redis client.
func (b *bench) compete(which string, roundTrip time.Duration, rounds int) (all []*competitor, rdb *redis.Client, closeAll func(), err error) {
	addr, err := b.addr(roundTrip)
	if err != nil {
		return nil, nil, nil, err
	}
	rdb = redis.NewClient(&redis.Options{Addr: addr})
	closeAll = func() {
		for _, c := range all {
			c.process.close()
		}
		_ = rdb.Close()
	}
	for _, s := range b.taking(true) {
		p, err := s.open(setup{addr: addr, rdb: rdb})
		if err != nil {
			closeAll()
			return nil, nil, nil, fmt.Errorf("%s: %w", s, err)
		}
		all = append(all, &competitor{s, p, b.record(which, s, rounds)})
	}
	return all, rdb, closeAll, nil
}

// pair measures Lock and Unlock of a lock that nobody else wants.
func pair(b *bench) error {
	for _, rt := range append([]time.Duration{0}, b.sizes.trips...) {
		rounds, bursts, pairs := b.sizes.pair.rounds, b.sizes.pair.bursts, b.sizes.pair.pairs
		if rt > 0 {
			rounds, bursts, pairs = b.sizes.pair.farRounds, 1, b.sizes.pair.farPairs
		}
		if err := b.pairs(rt, rounds, bursts, pairs); err != nil {
			return err
		}
	}
	return nil
}

// pairs measures each system in bursts, in turns with all others. A round has several bursts of each, so that its sums are
// of the same moments: from one tenth of a second to the next a machine may take twice as long for everything.
func (b *bench) pairs(rt time.Duration, rounds, bursts, pairs int) error {
	which := trip(rt)
	all, rdb, closeAll, err := b.compete(which, rt, rounds)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx := context.Background()
	ping := b.recordNamed(which, "ping", "", rounds)
	handles := make([]handle, len(all))
	guards := make([]guard, len(all))
	took := make([]durations, len(all)+1) // of the round that is measured; the last one's are the PINGs
	burst := func(i, n int) error {
		h, g := handles[i], &guards[i]
		last := time.Now()
		for range n {
			section, err := h.lock(ctx)
			if err != nil {
				return fmt.Errorf("%s: lock: %w", all[i].system, err)
			}
			g.enter(1)
			g.leave(1)
			if err := h.unlock(section); err != nil {
				return fmt.Errorf("%s: unlock: %w", all[i].system, err)
			}
			now := time.Now()
			took[i] = append(took[i], now.Sub(last))
			last = now
		}
		return nil
	}
	for i, c := range all {
		handles[i] = c.process.handle(freshLock("pair"))
		if err := burst(i, min(pairs, 50)); err != nil { // connections, scripts
			return err
		}
	}
	used := make([]usage, len(all))
	turn := func(i int) error {
		if i == len(all) {
			d, err := roundTrip(ctx, rdb, min(pairs, 50))
			took[i] = append(took[i], d)
			return err
		}
		before, err := b.now()
		if err != nil {
			return err
		}
		if err := burst(i, pairs); err != nil {
			return err
		}
		after, err := b.now()
		if err != nil {
			return err
		}
		used[i] = used[i].plus(after.since(before))
		return nil
	}
	tell := func(r int) {
		ping.set(r, round{"us": micros(took[len(all)].quantile(0.5))})
		for i, c := range all {
			u, n := used[i], float64(len(took[i]))
			c.record.set(r, round{
				"us": micros(took[i].sum()) / n, "p50_us": micros(took[i].quantile(0.5)), "p99_us": micros(took[i].quantile(0.99)),
				"client_us": micros(u.client) / n, "server_us": micros(u.server) / n,
				"allocs": float64(u.mallocs) / n, "bytes": float64(u.allocated) / n,
				"commands": float64(u.commands(c.also...)) / n, "wire_bytes": float64(u.in+u.out) / n,
			})
		}
	}
	err = b.rounds("pair "+which, rounds, func(r int) error {
		clear(used)
		for i := range took {
			took[i] = took[i][:0]
		}
		for range bursts {
			if err := inTurns(len(all)+1, turn); err != nil {
				return err
			}
		}
		tell(r)
		return nil
	})
	for i, c := range all {
		c.record.Broken = guards[i].broken.Load()
	}
	return err
}

type parallelSizes struct {
	rounds, goroutines int
	slice              time.Duration
	farRounds          int
}

// parallel measures many goroutines of one process, each with a lock of its own: what can be sent together.
func parallel(b *bench) error {
	for _, rt := range append([]time.Duration{0}, b.sizes.trips...) {
		rounds := b.sizes.parallel.rounds
		if rt > 0 {
			rounds = b.sizes.parallel.farRounds
		}
		if err := b.parallels(rt, rounds); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) parallels(rt time.Duration, rounds int) error {
	which := trip(rt)
	all, _, closeAll, err := b.compete(which, rt, rounds)
	if err != nil {
		return err
	}
	defer closeAll()
	n := b.sizes.parallel.goroutines
	handles := make([][]handle, len(all))
	guards := make([][]guard, len(all))
	slice := func(i int, length time.Duration) (durations, error) {
		took := make([]durations, n)
		var failed atomic.Pointer[error]
		var wg sync.WaitGroup
		end := time.Now().Add(length)
		for k := range n {
			wg.Go(func() {
				h, g := handles[i][k], &guards[i][k]
				for last := time.Now(); last.Before(end); {
					section, err := h.lock(context.Background())
					if err == nil {
						g.enter(1)
						g.leave(1)
						err = h.unlock(section)
					}
					if err != nil {
						failed.Store(&err)
						return
					}
					now := time.Now()
					took[k] = append(took[k], now.Sub(last))
					last = now
				}
			})
		}
		wg.Wait()
		var sum durations
		for _, t := range took {
			sum = append(sum, t...)
		}
		if err := failed.Load(); err != nil {
			return sum, fmt.Errorf("%s: %w", all[i].system, *err)
		}
		return sum, nil
	}
	for i, c := range all {
		guards[i] = make([]guard, n)
		for range n {
			handles[i] = append(handles[i], c.process.handle(freshLock("parallel")))
		}
		if _, err := slice(i, b.sizes.parallel.slice/4); err != nil {
			c.record.failed(0, err)
		}
	}
	err = b.turns("parallel "+which, rounds, len(all), func(r, i int) error {
		before, err := b.now()
		if err != nil {
			return err
		}
		start := time.Now()
		took, err := slice(i, b.sizes.parallel.slice)
		elapsed := time.Since(start)
		if err != nil {
			all[i].record.failed(r, err)
			return nil
		}
		after, err := b.now()
		if err != nil {
			return err
		}
		u, pairs := after.since(before), float64(len(took))
		all[i].record.set(r, round{
			"per_s": pairs / elapsed.Seconds(), "p50_us": micros(took.quantile(0.5)), "p99_us": micros(took.quantile(0.99)),
			"client_us": micros(u.client) / pairs, "server_us": micros(u.server) / pairs,
			"allocs": float64(u.mallocs) / pairs, "wire_bytes": float64(u.in+u.out) / pairs,
		})
		return nil
	})
	for i, c := range all {
		for k := range guards[i] {
			c.record.Broken += guards[i][k].broken.Load()
		}
	}
	return err
}
