package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

type heldSizes struct {
	locks  []int
	ttl    time.Duration
	rounds int           // each with one renewal of every lease
	loaded time.Duration // with every CPU busy
	rest   time.Duration // for the use of client and server at rest
}

// held measures what many locks cost while nothing but renewal happens.
func held(b *bench) error {
	for _, n := range b.sizes.held.locks {
		which := strconv.Itoa(n) + " locks"
		rest, err := b.atRest(n)
		if err != nil {
			return err
		}
		for _, s := range b.systems {
			if s.renews == 0 || s.setting == defaults && s.name != "relock" && n > b.sizes.held.locks[0] {
				continue
			}
			rec := b.record(which, s, b.sizes.held.rounds)
			start := time.Now()
			if err := b.hold(s, n, rest, rec); err != nil {
				rec.failed(0, err)
			}
			logf("  held, %s, %s: %s", which, s, time.Since(start).Round(time.Second))
			if err := b.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// atRest returns what client and server use with n keys that expire, while nothing happens.
func (b *bench) atRest(n int) (usage, error) {
	keys := "for i = 1, ARGV[1] do redis.call('SET', 'rest:' .. i, ARGV[2], 'EX', 3600) end"
	value := "00000000-0000-0000-0000-000000000000:1" // as long as a hold
	if err := b.admin.Eval(context.Background(), keys, nil, n, value).Err(); err != nil && !errors.Is(err, redis.Nil) {
		return usage{}, err
	}
	u, err := b.spent(func() error { pause(b.sizes.held.rest); return nil })
	return u, errors.Join(err, b.flush())
}

// hoard is many locks that a process holds.
type hoard struct {
	names    []string
	handles  []handle
	sections []context.Context
}

// hold is the turn of a system.
func (b *bench) hold(s *system, n int, rest usage, rec *record) error {
	with := setup{addr: b.server.Addr(), ttl: b.sizes.held.ttl}
	if s.name != "relock" && s.setting == defaults {
		with.ttl = 0
	}
	p, err := s.open(with)
	if err != nil {
		return err
	}
	defer p.close()
	h, taken, err := b.take(p, n)
	if err != nil {
		return err
	}
	for r := range rec.rounds {
		u, err := b.spent(func() error {
			pause(b.sizes.held.ttl / time.Duration(s.renews))
			return nil
		})
		if err != nil {
			return err
		}
		rec.set(r, renewals(s, n, u, rest))
	}
	stop := burn()
	pause(b.sizes.held.loaded)
	stop()
	lost, err := b.lost(s, h.names, h.sections)
	if err != nil {
		return err
	}
	taken["lost"] = float64(lost)
	maps.Copy(rec.rounds[0], taken)
	return h.unlock()
}

// take locks n locks, and returns how much memory each takes.
func (b *bench) take(p process, n int) (*hoard, round, error) {
	h := &hoard{make([]string, n), make([]handle, n), make([]context.Context, n)}
	for i := range n {
		h.names[i] = freshLock("held")
	}
	before := b.memory()
	err := eachOf(n, func(i int) (err error) {
		h.handles[i] = p.handle(h.names[i])
		h.sections[i], err = h.handles[i].lock(context.Background())
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	after := b.memory()
	return h, round{
		"heap_bytes":  float64(after.heap-before.heap) / float64(n),
		"stack_bytes": float64(after.stacks-before.stacks) / float64(n),
		"goroutines":  float64(max(0, after.goroutines-before.goroutines)),
	}, nil
}

// unlock frees all locks.
func (h *hoard) unlock() error {
	err := within(closeLimit, func() error {
		return eachOf(len(h.handles), func(i int) error { return h.handles[i].unlock(h.sections[i]) })
	})
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // all are alike
		return fmt.Errorf("unlock of all: %s", first)
	}
	return nil
}

// renewals returns the metrics of a time of renewals, without the use at rest.
func renewals(s *system, n int, u, rest usage) round {
	part := u.wall.Seconds() / rest.wall.Seconds()
	client := u.client - time.Duration(float64(rest.client)*part)
	server := u.server - time.Duration(float64(rest.server)*part)
	m := round{"commands_per_s": float64(u.commands(s.also...)) / u.wall.Seconds()}
	// Every script sets a lease with one of these commands, and nothing else here sends them.
	count := float64(u.calls["pexpire"] + u.calls["pexpireat"])
	if count == 0 {
		return m
	}
	m["renewals_per_lock"] = count / float64(n)
	m["commands_per_100"] = 100 * float64(u.scripts()) / count
	m["client_us"], m["server_us"] = micros(client)/count, micros(server)/count
	m["allocs"] = float64(u.mallocs) / count
	return m
}

// burn keeps every CPU busy, twice over, until stop.
func burn() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for x := uint64(1); ; {
				for range 1 << 16 {
					x = x*6364136223846793005 + 1442695040888963407
				}
				select {
				case <-done:
					runtime.KeepAlive(x)
					return
				default:
				}
			}
		})
	}
	return func() {
		close(done)
		wg.Wait()
	}
}

// lost counts the locks that are gone for the sections or for Redis. A lock without most of its
// keys is gone.
func (b *bench) lost(s *system, names []string, sections []context.Context) (n int, err error) {
	ctx := context.Background()
	for batch := range slices.Chunk(names, 1000) {
		pipe := b.admin.Pipeline()
		found := make([]*redis.IntCmd, len(batch))
		for i, name := range batch {
			found[i] = pipe.Exists(ctx, s.keys(name)...)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return 0, err
		}
		for i, name := range batch {
			if 2*int(found[i].Val()) <= len(s.keys(name)) || sections[i].Err() != nil {
				n++
			}
		}
		sections = sections[len(batch):]
	}
	return n, nil
}
