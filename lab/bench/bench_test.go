package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/fakeredis"
	"github.com/go-relock/relock/internal/test/redistest"
)

// Benchmarks of the library alone, for profiles and allocations. The program has the comparisons.

func newClient(b *testing.B, options ...relock.Option) *relock.Client {
	b.Helper()
	client, err := relock.New(redistest.Shared(b).Client(), options...)
	require.NoError(b, err)
	b.Cleanup(func() { _ = client.Close() })
	return client
}

// pairs locks and unlocks with a context b.N times.
func pairs(ctx context.Context, b *testing.B, lock *relock.Lock) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		section, err := lock.Lock(ctx)
		if err == nil {
			err = lock.Unlock(section)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// section is a context inside the lock until the benchmark ends.
func section(b *testing.B, lock *relock.Lock) context.Context {
	b.Helper()
	ctx, err := lock.Lock(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, lock.Unlock(ctx)) })
	return ctx
}

func BenchmarkPair(b *testing.B) {
	lock := newClient(b).NewLock(freshLock("pair"))
	pairs(b.Context(), b, lock)
}

func BenchmarkPairFloor(b *testing.B) {
	p, err := openFloor(nil)(setup{rdb: redistest.Shared(b).Client()})
	require.NoError(b, err)
	h := p.handle(freshLock("floor"))
	b.ReportAllocs()
	for b.Loop() {
		ctx, err := h.lock(b.Context())
		if err == nil {
			err = h.unlock(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPairLineByLine shows the parts of a pair's time: from two bare commands to the library,
// each line with one thing more than the line before. The lines take turns, in a new order each
// time. Figures are medians, also of the ratios to the floor within a turn, and need some hundred
// turns (BENCHTIME=400x).
func BenchmarkPairLineByLine(b *testing.B) {
	server := redistest.Shared(b)
	rdb := server.Client()
	quick := server.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	background := context.Background()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	base := freshLock("lines")
	nothing := redis.NewScript("return 1")
	for _, s := range []*redis.Script{nothing, compareAndDelete} {
		require.NoError(b, s.Load(ctx, rdb).Err())
	}
	floor, err := openFloor(nil)(setup{rdb: rdb})
	require.NoError(b, err)
	least := floor.handle(base + ":floor")
	pair := func(ctx context.Context, lock *relock.Lock) func() error {
		return func() error {
			section, err := lock.Lock(ctx)
			if err != nil {
				return err
			}
			return lock.Unlock(section)
		}
	}
	client := func(rdb *redis.Client) *relock.Client {
		c, err := relock.New(rdb)
		require.NoError(b, err)
		b.Cleanup(func() { _ = c.Close() })
		return c
	}
	slow, fast := client(rdb), client(quick)

	// The commands of a pair on the wire, and the same with another script.
	watched, sent := server.Client(), &sentCommands{}
	watched.AddHook(sent)
	pairWatched := pair(background, client(watched).NewLock(base+":0"))
	require.NoError(b, pairWatched()) // the scripts are there
	sent.args = nil
	require.NoError(b, pairWatched())
	require.Len(b, sent.args, 2)
	send := func(script string) func() error {
		var commands [2][]any
		for i, args := range sent.args {
			commands[i] = slices.Clone(args)
			if script != "" {
				commands[i][1] = script
			}
		}
		return func() error {
			return errors.Join(rdb.Do(background, commands[0]...).Err(), rdb.Do(background, commands[1]...).Err())
		}
	}
	for _, command := range sent.args { // again, with the same effect
		reply, err := rdb.Do(background, command...).Int64()
		require.NoError(b, err)
		require.EqualValues(b, 1, reply, "taken, and released by its owner")
	}
	empty := func() error { return nothing.EvalSha(background, rdb, nil).Err() }

	lines := []struct {
		name string
		run  func() error
		took durations
	}{
		{name: "floor", run: func() error {
			section, err := least.lock(background)
			if err != nil {
				return err
			}
			return least.unlock(section)
		}},
		{name: "two-pings", run: func() error { return errors.Join(rdb.Ping(background).Err(), rdb.Ping(background).Err()) }},
		{name: "two-empty-scripts", run: func() error { return errors.Join(empty(), empty()) }},
		{name: "with-our-arguments", run: send(nothing.Hash())},
		{name: "our-scripts", run: send("")},
		{name: "lock-background", run: pair(background, fast.NewLock(base+":1"))},
		{name: "lock-cancellable-prompt", run: pair(ctx, fast.NewLock(base+":2"))},
		{name: "lock-cancellable", run: pair(ctx, slow.NewLock(base+":3"))},
	}
	const slice = 50
	for b.Loop() {
		for _, i := range rand.Perm(len(lines)) {
			begin := time.Now()
			for range slice {
				if err := lines[i].run(); err != nil {
					b.Fatal(lines[i].name, err)
				}
			}
			lines[i].took = append(lines[i].took, time.Since(begin))
		}
	}
	b.ReportMetric(0, "ns/op") // of all lines together
	for _, l := range lines {
		ratios := make([]float64, len(l.took))
		for i := range l.took {
			ratios[i] = float64(l.took[i]) / float64(lines[0].took[i])
		}
		b.ReportMetric(quantile(ratios, 0.5), l.name+"-ratio")
		b.ReportMetric(micros(l.took.quantile(0.5))/slice, l.name+"-us")
	}
}

// sentCommands records the arguments of all commands of a client.
type sentCommands struct{ args [][]any }

func (s *sentCommands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sentCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := slices.Clone(cmd.Args())
		for i, a := range args {
			if text, ok := a.(*string); ok {
				args[i] = *text
			}
		}
		s.args = append(s.args, args)
		return next(ctx, cmd)
	}
}

func (s *sentCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// BenchmarkClient shows the CPU of the client alone, over a connection that answers by itself, as a
// ratio to that of a bare pair of go-redis. The lines take turns. Figures are the least of all turns,
// so other programs hardly matter. It needs some hundred turns (BENCHTIME=300x).
func BenchmarkClient(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server := &fakeredis.Server{}
	rdb := server.Client()
	defer func() { _ = rdb.Close() }()
	client, err := relock.New(rdb)
	require.NoError(b, err)
	defer func() { _ = client.Close() }()
	floor, err := openFloor(nil)(setup{rdb: rdb})
	require.NoError(b, err)
	ending, cancel := context.WithCancel(context.Background())
	defer cancel()
	prompt := server.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	defer func() { _ = prompt.Close() }()
	quick, err := relock.New(prompt)
	require.NoError(b, err)
	defer func() { _ = quick.Close() }()
	least, lock, nested := floor.handle("x"), client.NewLock("x"), client.NewLock("y")
	section, err := nested.Lock(ending)
	require.NoError(b, err)
	pair := func(ctx context.Context, l relock.Locker) func() error {
		return func() error {
			section, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			return l.Unlock(section)
		}
	}
	lines := []struct {
		name string
		run  func() error
		cpu  time.Duration
	}{
		{name: "floor", run: func() error {
			ctx, err := least.lock(ending)
			if err != nil {
				return err
			}
			return least.unlock(ctx)
		}},
		{name: "endless", run: pair(context.Background(), lock)},
		{name: "ending", run: pair(ending, lock)},
		{name: "prompt", run: pair(ending, quick.NewLock("x"))},
		{name: "nested", run: pair(section, nested)},
	}
	const slice = 500
	for b.Loop() {
		for i := range lines {
			before := clientCPU()
			for range slice {
				if err := lines[i].run(); err != nil {
					b.Fatal(lines[i].name, err)
				}
			}
			if cpu := clientCPU() - before; lines[i].cpu == 0 || cpu < lines[i].cpu {
				lines[i].cpu = cpu
			}
		}
	}
	require.NoError(b, nested.Unlock(section))
	b.ReportMetric(0, "ns/op") // of all lines together
	for _, l := range lines {
		b.ReportMetric(float64(l.cpu)/float64(lines[0].cpu), l.name+"-ratio")
		b.ReportMetric(micros(l.cpu)/slice, l.name+"-us")
	}
}

// BenchmarkPairParallel measures many goroutines of one process with a lock each.
func BenchmarkPairParallel(b *testing.B) {
	client := newClient(b)
	name := freshLock("parallel")
	numbers := make(chan int, 1)
	numbers <- 0
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		n := <-numbers
		numbers <- n + 1
		lock := client.NewLock(fmt.Sprintf("%s:%d", name, n))
		for pb.Next() {
			ctx, err := lock.Lock(b.Context())
			if err == nil {
				err = lock.Unlock(ctx)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkNestedPair(b *testing.B) {
	lock := newClient(b).NewLock(freshLock("nested"))
	pairs(section(b, lock), b, lock)
}

func BenchmarkNestedPairLocal(b *testing.B) {
	lock := newClient(b).NewLock(freshLock("nested"), relock.WithLocalReentry())
	pairs(section(b, lock), b, lock)
}

// BenchmarkRenewal measures the client's CPU and allocations for a renewal among n locks. The time
// means nothing, as renewals wait until they are due.
func BenchmarkRenewal(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("locks=%d", n), func(b *testing.B) {
			var renewed, lost atomic.Int64
			round := make(chan struct{}, 1)
			client, err := relock.New(redistest.Shared(b).Client(), relock.WithTTL(3*time.Second), relock.WithHooks(event.Hooks{
				Renewed: func(r event.Renewed) {
					renewed.Add(int64(r.Locks))
					lost.Add(int64(r.Lost))
					select {
					case round <- struct{}{}:
					default:
					}
				},
			}))
			require.NoError(b, err)
			b.Cleanup(func() { _ = client.Close() })
			more := func(n int) {
				for until := renewed.Load() + int64(n); renewed.Load() < until; {
					<-round
				}
			}
			locks, sections := make([]*relock.Lock, n), make([]context.Context, n)
			for i := range locks {
				locks[i] = client.NewLock(freshLock("held"))
			}
			require.NoError(b, eachOf(n, func(i int) (err error) {
				sections[i], err = locks[i].Lock(b.Context())
				return err
			}))
			more(2 * n)
			b.ReportAllocs()
			b.ResetTimer()
			before := clientCPU()
			more(b.N)
			b.ReportMetric(float64((clientCPU()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.StopTimer()
			require.Zero(b, lost.Load())
			runtime.KeepAlive(sections)
		})
	}
}

// BenchmarkHandover measures from a client's Unlock until another client's Lock has returned, with
// n clients waiting.
func BenchmarkHandover(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("waiting=%d", n), func(b *testing.B) {
			e := &bench{env: newEnv(b)}
			r, err := newRing(e, relockDefaults, freshLock("handover"), setup{addr: e.server.Addr()}, n+1)
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, r.close()) })
			require.NoError(b, r.queueUp())
			b.ReportAllocs()
			var took durations
			for b.Loop() {
				d, err := r.pass(closeLimit)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, d)
				b.StopTimer() // the former owner queues again
				require.NoError(b, e.queued(relockDefaults, r.lock, n))
				b.StartTimer()
			}
			require.Zero(b, r.guard.broken.Load())
			b.ReportMetric(micros(took.quantile(0.5)), "p50-µs")
			b.ReportMetric(micros(took.quantile(0.99)), "p99-µs")
		})
	}
}

// BenchmarkContended measures many goroutines of one process. Each sees a lock go from another
// client to a waiter: always the same few locks, whose channels stay subscribed, or a new lock each
// time.
func BenchmarkContended(b *testing.B) {
	for _, name := range []string{"few", "new"} {
		b.Run("locks="+name, func(b *testing.B) {
			var queued sync.Map // channels to close, by lock
			owner, client := newClient(b), newClient(b, relock.WithHooks(event.Hooks{Queued: func(q event.Queued) {
				waits, _ := queued.LoadAndDelete(q.Name)
				close(waits.(chan struct{}))
			}}))
			prefix := freshLock("contended")
			var goroutines, locks atomic.Int64
			b.SetParallelism(32)
			b.ReportAllocs()
			b.ResetTimer()
			before := clientCPU()
			b.RunParallel(func(pb *testing.PB) {
				lock := fmt.Sprintf("%s:few:%d", prefix, goroutines.Add(1))
				for pb.Next() {
					if name == "new" {
						lock = fmt.Sprintf("%s:new:%d", prefix, locks.Add(1))
					}
					if err := seeOver(b.Context(), owner.NewLock(lock), client.NewLock(lock), &queued); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((clientCPU()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// seeOver locks, waits until next is queued, unlocks, and returns when next has had the lock.
func seeOver(ctx context.Context, lock, next *relock.Lock, queued *sync.Map) error {
	section, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	waits, done := make(chan struct{}), make(chan error, 1)
	queued.Store(lock.Name(), waits)
	go func() { done <- next.Do(ctx, func(context.Context) error { return nil }) }()
	select {
	case <-waits:
	case err := <-done:
		return errors.Join(err, errors.New("it did not wait"), lock.Unlock(section))
	}
	return errors.Join(lock.Unlock(section), <-done)
}
