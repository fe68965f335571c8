package main

import (
	"context"
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

// held measures what many locks cost while nothing but renewal happens. The unit is a script call
// that renews 100 leases, again and again.
func held(b *bench) error {
	for _, n := range b.sizes.held.locks {
		which := strconv.Itoa(n) + " locks"
		rest, err := b.rawRenewals(which, n)
		if err != nil {
			return err
		}
		for _, s := range b.taking() {
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

// rawRenewal is the name of the unit's records.
const rawRenewal = "one script for 100"

const rawBatch, rawPipeline = 100, 10

var rawRenewScript = redis.NewScript(`
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[i] then redis.call('PEXPIRE', KEYS[i], ARGV[#KEYS + 1]) end;
end
return 0`)

// rawRenewals measures the unit, and returns what client and server use at rest with n keys.
func (b *bench) rawRenewals(which string, n int) (rest usage, err error) {
	rdb, err := b.redis(0)
	if err != nil {
		return usage{}, err
	}
	defer rdb.Close()
	commands, err := b.rawCommands(rdb, n)
	if err != nil {
		return usage{}, err
	}
	rest, err = b.spent(func() error { pause(b.sizes.held.rest); return nil })
	if err != nil {
		return usage{}, err
	}
	rec := b.record(which, &system{name: rawRenewal}, b.sizes.held.rounds)
	again := max(1, 200_000/n) // enough for the clocks of CPU time
	for r := range rec.rounds {
		u, err := b.spent(func() error {
			for range again {
				if err := pipelined(rdb, commands); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return usage{}, err
		}
		renewals := float64(n * again)
		rec.set(r, round{
			"client_us": micros(u.client) / renewals, "server_us": micros(u.server) / renewals,
			"commands_per_100": 100 * float64(u.scripts()) / renewals, "allocs": float64(u.mallocs) / renewals,
		})
	}
	return rest, b.flush()
}

// rawCommands sets n keys, and returns the commands that renew all of them.
func (b *bench) rawCommands(rdb *redis.Client, n int) ([][]any, error) {
	ctx := context.Background()
	if err := rawRenewScript.Load(ctx, rdb).Err(); err != nil {
		return nil, err
	}
	var commands [][]any
	for first := 0; first < n; first += rawBatch {
		count := min(rawBatch, n-first)
		pipe := rdb.Pipeline()
		keys, values := []any{"evalsha", rawRenewScript.Hash(), count}, []any{}
		for i := first; i < first+count; i++ {
			key := "raw:" + strconv.Itoa(i)
			value := fmt.Sprintf("00000000-0000-0000-0000-%012d:%d", i, i) // as long as a hold
			keys, values = append(keys, key), append(values, value)
			pipe.Set(ctx, key, value, time.Hour)
		}
		commands = append(commands, append(append(keys, values...), b.sizes.held.ttl.Milliseconds()*1000))
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, err
		}
	}
	return commands, nil
}

// pipelined sends commands in pipelines.
func pipelined(rdb *redis.Client, commands [][]any) error {
	ctx := context.Background()
	for batch := range slices.Chunk(commands, rawPipeline) {
		pipe := rdb.Pipeline()
		for _, args := range batch {
			_ = pipe.Do(ctx, args...) // Exec has the error
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
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
		h.sections[i], err = h.handles[i].lock(context.Background()) //nolint:fatcontext // one layer for each lock
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

// lost counts the locks that are gone for the sections or for Redis.
func (b *bench) lost(s *system, names []string, sections []context.Context) (n int, err error) {
	for batch := range slices.Chunk(names, 1000) {
		left, err := b.leases(s, batch)
		if err != nil {
			return 0, err
		}
		for i, d := range left {
			if d <= 0 || sections[i].Err() != nil {
				n++
			}
		}
		sections = sections[len(batch):]
	}
	return n, nil
}

// leases returns how long most keys of each lock will live. A lock without most of its keys is
// free: the result is not above 0.
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
		left[i] = each[len(each)/2]
	}
	return left, nil
}
