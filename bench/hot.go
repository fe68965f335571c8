package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

type hotSizes struct {
	rounds, goroutines int
	slice              time.Duration
}

// hot lets many goroutines of one process want one lock, as the requests of a service do for one busy thing.
func hot(b *bench) error {
	rounds, n := b.sizes.hot.rounds, b.sizes.hot.goroutines
	all := b.taking(false)
	records := make([]*record, len(all))
	for i, s := range all {
		records[i] = b.record("", s, rounds)
	}
	return b.turns(fmt.Sprintf("hot, %d goroutines", n), rounds, len(all), func(r, i int) error {
		m, err := b.hotSlice(all[i], n, &records[i].Broken)
		if err != nil {
			records[i].failed(r, err)
			return b.flush()
		}
		records[i].set(r, m)
		return b.flush()
	})
}

func (b *bench) hotSlice(s *system, n int, broken *int64) (m round, err error) {
	p, err := s.open(setup{addr: b.server.Addr()})
	if err != nil {
		return nil, err
	}
	defer p.close()
	var g guard
	var failed atomic.Pointer[error]
	lock := freshLock("hot")
	sections := make([]int64, n)
	longest := make(durations, n) // the longest wait of each goroutine
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var measuring atomic.Bool
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() {
			h := p.handle(lock)
			for {
				asked := time.Now()
				section, err := h.lock(ctx)
				if err == nil {
					g.enter(int64(k + 1))
					if measuring.Load() {
						sections[k]++
						longest[k] = max(longest[k], time.Since(asked))
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
	measuring.Store(true)
	pause(b.sizes.hot.slice)
	measuring.Store(false)
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
	for _, c := range sections {
		sum += c
	}
	u, each := after.since(before), float64(max(sum, 1))
	return round{
		"per_s": float64(sum) / u.wall.Seconds(), "jain": jain(sections), "sections": float64(sum),
		"longest_wait_ms": millis(longest.quantile(1)), "commands": float64(u.commands(s.also...)) / each,
		"client_us": micros(u.client) / each, "server_us": micros(u.server) / each,
	}, nil
}
