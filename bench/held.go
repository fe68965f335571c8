package main

import (
	"context"
	"fmt"
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
	rounds int           // each as long as every lease takes to be renewed once
	loaded time.Duration // with every CPU busy
	rest   time.Duration // to see what client and server use when nothing happens
}

// held holds many locks and does nothing else: what it costs to keep them. Its unit is one script call that renews 100
// leases, again and again.
func held(b *bench) error {
	for _, n := range b.sizes.held.locks {
		which := strconv.Itoa(n) + " locks"
		idle, err := b.rawRenewals(which, n)
		if err != nil {
			return err
		}
		for _, s := range b.taking(false) {
			if s.renews == 0 || s.setting == defaults && s.name != "relock" && n > b.sizes.held.locks[0] {
				continue
			}
			rec := b.record(which, s, b.sizes.held.rounds)
			start := time.Now()
			if err := b.hold(s, n, idle, rec); err != nil {
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

// rawRenewal is the name of the unit's records.
const rawRenewal = "one script for 100"

const rawBatch, rawPipeline = 100, 10

var rawRenewScript = redis.NewScript(`
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[i] then redis.call('PEXPIRE', KEYS[i], ARGV[#KEYS + 1]) end;
end
return 0`)

// rawRenewals measures the unit, and before that what client and server use while the keys are there and nothing is done.
func (b *bench) rawRenewals(which string, n int) (idle usage, err error) {
	ctx := context.Background()
	rdb, err := b.redis(0)
	if err != nil {
		return usage{}, err
	}
	defer rdb.Close()
	if err := rawRenewScript.Load(ctx, rdb).Err(); err != nil {
		return usage{}, err
	}
	var commands [][]any
	for first := 0; first < n; first += rawBatch {
		count := min(rawBatch, n-first)
		pipe := rdb.Pipeline()
		args := []any{"evalsha", rawRenewScript.Hash(), count}
		for i := range count {
			key := "raw:" + strconv.Itoa(first+i)
			args = append(args, key)
			pipe.Set(ctx, key, rawValue(first+i), time.Hour)
		}
		for i := range count {
			args = append(args, rawValue(first+i))
		}
		commands = append(commands, append(args, b.sizes.held.ttl.Milliseconds()*1000))
		if _, err := pipe.Exec(ctx); err != nil {
			return usage{}, err
		}
	}
	before, err := b.now()
	if err != nil {
		return usage{}, err
	}
	pause(b.sizes.held.rest)
	after, err := b.now()
	if err != nil {
		return usage{}, err
	}
	idle = after.since(before)

	rec := b.recordNamed(which, rawRenewal, "", b.sizes.held.rounds)
	again := max(1, 200_000/n) // enough for the clocks of CPU time
	for r := range rec.Rounds {
		if before, err = b.now(); err != nil {
			return usage{}, err
		}
		for range again {
			for todo := commands; len(todo) > 0; {
				batch := todo[:min(rawPipeline, len(todo))]
				todo = todo[len(batch):]
				pipe := rdb.Pipeline()
				for _, args := range batch {
					_ = pipe.Do(ctx, args...) // Exec has the error
				}
				if _, err := pipe.Exec(ctx); err != nil {
					return usage{}, err
				}
			}
		}
		if after, err = b.now(); err != nil {
			return usage{}, err
		}
		u, renewals := after.since(before), float64(n*again)
		rec.set(r, round{
			"client_us": micros(u.client) / renewals, "server_us": micros(u.server) / renewals,
			"commands_per_100": 100 * float64(u.scripts()) / renewals, "allocs": float64(u.mallocs) / renewals,
			"wire_bytes": float64(u.in+u.out) / renewals,
		})
	}
	return idle, b.flush()
}

// rawValue is as long as the name of a hold.
func rawValue(i int) string {
	return fmt.Sprintf("00000000-0000-0000-0000-%012d:%d", i, i)
}

// share is the part of what was used while idle that falls into d.
func share(used time.Duration, idle usage, d time.Duration) time.Duration {
	return time.Duration(float64(used) * d.Seconds() / idle.wall.Seconds())
}

// hold is one system's turn.
func (b *bench) hold(s *system, n int, idle usage, rec *record) (err error) {
	ctx := context.Background()
	size := b.sizes.held
	with := setup{addr: b.server.Addr(), ttl: size.ttl}
	if s.name != "relock" && s.setting == defaults {
		with.ttl = 0
	}
	p, err := s.open(with)
	if err != nil {
		return err
	}
	defer p.close()
	names, handles, sections := make([]string, n), make([]handle, n), make([]context.Context, n)
	for i := range n {
		names[i] = freshLock("held")
	}
	serverBefore, err := b.serverMemory()
	if err != nil {
		return err
	}
	memoryBefore := b.memory()
	start := time.Now()
	err = eachOf(n, func(i int) error {
		handles[i] = p.handle(names[i])
		section, err := handles[i].lock(ctx)
		sections[i] = section //nolint:fatcontext // one layer for each lock
		return err
	})
	if err != nil {
		return err
	}
	locking := time.Since(start)
	memoryAfter := b.memory()
	serverAfter, err := b.serverMemory()
	if err != nil {
		return err
	}

	for r := range rec.Rounds {
		before, err := b.now()
		if err != nil {
			return err
		}
		pause(size.ttl / time.Duration(s.renews))
		after, err := b.now()
		if err != nil {
			return err
		}
		u := after.since(before)
		m := round{
			"commands_per_s": float64(u.commands(s.also...)) / u.wall.Seconds(),
			"cpu_client":     (u.client - share(idle.client, idle, u.wall)).Seconds() / u.wall.Seconds(),
			"cpu_server":     (u.server - share(idle.server, idle, u.wall)).Seconds() / u.wall.Seconds(),
		}
		// Scripts set a lease with one of these, and nothing else here uses them.
		if renewals := float64(u.calls["pexpire"] + u.calls["pexpireat"]); renewals > 0 {
			m["renewals_per_lock"] = renewals / float64(n)
			m["commands_per_100"] = 100 * float64(u.scripts()) / renewals
			m["client_us"] = micros(u.client-share(idle.client, idle, u.wall)) / renewals
			m["server_us"] = micros(u.server-share(idle.server, idle, u.wall)) / renewals
			m["allocs"] = float64(u.mallocs) / renewals
			m["alloc_bytes"] = float64(u.allocated) / renewals
			m["wire_bytes"] = float64(u.in+u.out) / renewals
		}
		if r == 0 {
			m["lock_per_s"] = float64(n) / locking.Seconds()
			m["heap_bytes"] = float64(memoryAfter.heap-memoryBefore.heap) / float64(n)
			m["stack_bytes"] = float64(memoryAfter.stacks-memoryBefore.stacks) / float64(n)
			m["goroutines"] = float64(max(0, memoryAfter.goroutines-memoryBefore.goroutines))
			m["server_bytes"] = float64(serverAfter-serverBefore) / float64(n)
		}
		rec.set(r, m)
	}

	stop := burn()
	pause(size.loaded)
	stop()
	lost, least, err := b.lost(s, names, sections)
	if err != nil {
		return err
	}
	rec.Rounds[0]["lost"] = float64(lost)
	rec.Rounds[0]["least_ttl_s"] = least.Seconds()
	err = within(closeLimit, func() error {
		return eachOf(n, func(i int) error { return handles[i].unlock(sections[i]) })
	})
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // they are many, and alike
		return fmt.Errorf("unlocking them: %s", first)
	}
	return nil
}

// burn keeps every CPU busy, twice over, until it is stopped.
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

// lost counts the locks that are gone, as the sections know it or as Redis does, and finds the shortest lease.
func (b *bench) lost(s *system, names []string, sections []context.Context) (n int, least time.Duration, err error) {
	gone := make([]bool, len(names))
	for i, section := range sections {
		gone[i] = section.Err() != nil
	}
	const batch = 1000
	for first := 0; first < len(names); first += batch {
		left, err := b.leases(s, names[first:min(first+batch, len(names))])
		if err != nil {
			return 0, 0, err
		}
		for i, d := range left {
			if d <= 0 {
				gone[first+i] = true
			} else if least == 0 || d < least {
				least = d
			}
		}
	}
	for _, g := range gone {
		if g {
			n++
		}
	}
	return n, least, nil
}

// leases is how long Redis will keep each lock for the one that has it, which is as long as most of its keys are there. Not above 0:
// it does not.
func (b *bench) leases(s *system, names []string) ([]time.Duration, error) {
	ctx := context.Background()
	pipe := b.admin.Pipeline()
	ttls := make([][]*redis.DurationCmd, len(names))
	for i, name := range names {
		for _, key := range s.keys(name) {
			ttls[i] = append(ttls[i], pipe.PTTL(ctx, key))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	left := make([]time.Duration, len(names))
	for i := range names {
		var each durations
		for _, ttl := range ttls[i] {
			each = append(each, ttl.Val())
		}
		slices.Sort(each)
		left[i] = each[len(each)/2] // when this one has gone too, less than most are there
	}
	return left, nil
}

func (b *bench) serverMemory() (int64, error) {
	info, err := b.admin.InfoMap(context.Background(), "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
}
