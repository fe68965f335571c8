package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/fakeredis"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
)

// What does each hot path cost? The table has the budget of each. A change that costs more, or less,
// changes the table, and its commit says why.

// cost is what one operation costs.
type cost struct {
	allocations, heap int // heap is in bytes
	goroutines        int // that are started
	commands, scripts int // scripts are the script calls among the commands
	wire              int // bytes that are written and read
}

var budgets = map[string]cost{
	// allocations, heap, goroutines, commands, scripts, wire
	"pair, endless":          {28, 3064, 0, 2, 2, 401},
	"pair, ending":           {30, 3320, 1, 2, 2, 401},
	"pair, prompt":           {28, 3144, 0, 2, 2, 401},
	"pair, for a time":       {44, 4352, 1, 2, 2, 401},
	"lock made anew":         {2, 208, 0, 0, 0, 0},
	"kept pair":              {11, 1680, 0, 0, 0, 0},
	"nested":                 {28, 2721, 1, 2, 2, 338},
	"nested, ending":         {28, 2720, 1, 2, 2, 338},
	"nested, local":          {7, 560, 0, 0, 0, 0},
	"inside another section": {47, 4696, 1, 2, 2, 396},
	"pair and token":         {43, 4424, 1, 3, 3, 588},
	"eval":                   {14, 1040, 0, 1, 1, 177},
	"run, free":              {13, 1080, 0, 1, 1, 154},
	"read pair":              {42, 3784, 0, 2, 2, 534},
	"write pair":             {42, 3784, 0, 2, 2, 534},
	"permit pair":            {42, 3801, 0, 2, 2, 556},
	"all of 10":              {194, 37050, 0, 2, 2, 2535},
	"try a busy lock":        {31, 2512, 1, 1, 1, 232},
	"state":                  {22, 1560, 1, 1, 1, 176},
	"once, first":            {113, 8459, 1, 3, 3, 973},
	"once, replay":           {79, 5392, 1, 1, 1, 442},
	"quorum pair":            {119, 13746, 9, 6, 6, 1197},
	"quorum pair, prompt":    {113, 13221, 6, 6, 6, 1197},
	"hand-over":              {70, 5448, 2, 2, 2, 432},
	"renewal of 1000":        {181, 766892, 4, 17, 16, 103957},
}

// goVersion has the compiler that the allocations were counted with. Another one may have others.
const goVersion = "go1.26"

// exact says that allocations are as in the table.
var exact = strings.HasPrefix(runtime.Version(), goVersion)

// rig is a client over a fake server.
type rig struct {
	*testing.T
	server *fakeredis.Server
	*relock.Client
}

func newRig(t *testing.T, options ...relock.Option) *rig {
	t.Helper()
	r := &rig{T: t, server: &fakeredis.Server{}}
	r.Client = r.client(options...)
	return r
}

func (r *rig) client(options ...relock.Option) *relock.Client {
	r.Helper()
	return r.over(r.server.Client(), options...)
}

func (r *rig) over(rdb *redis.Client, options ...relock.Option) *relock.Client {
	r.Helper()
	r.Cleanup(func() { _ = rdb.Close() })
	c, err := relock.New(rdb, options...)
	require.NoError(r, err)
	r.Cleanup(func() { _ = c.Close() })
	return c
}

// owner is the holder of a busy lock, in replies.
const owner = "$6\r\nc:1:12\r\n"

func endless() context.Context { return context.Background() }

func ending(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

// must ends the test at an error, also in the goroutine of an operation.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func done(err error) {
	if err != nil {
		panic(err)
	}
}

func pair(ctx context.Context, l relock.Locker) func() {
	return func() { done(l.Unlock(must(l.Lock(ctx)))) }
}

// entered is a context inside a lock until the end of the test.
func entered(t *testing.T, l *relock.Lock) context.Context {
	t.Helper()
	section := must(l.Lock(endless()))
	t.Cleanup(func() { done(l.Unlock(section)) })
	return section
}

// spending is what the process has spent so far.
type spending struct {
	memory                  runtime.MemStats
	started                 [1]metrics.Sample
	commands, scripts, wire int64
}

func (s *spending) read(server *fakeredis.Server) {
	s.started[0].Name = "/sched/goroutines-created:goroutines" // since Go 1.26
	s.commands, s.scripts, s.wire = server.Commands.Load(), server.Scripts.Load(), server.Bytes.Load()
	metrics.Read(s.started[:])
	runtime.ReadMemStats(&s.memory)
}

// measure returns what one of n operations costs.
func measure(server *fakeredis.Server, n int, run func()) cost {
	var before, after spending
	before.read(server)
	run()
	after.read(server)
	each := func(all uint64) int { return int(math.Round(float64(all) / float64(n))) }
	c := cost{
		allocations: each(after.memory.Mallocs - before.memory.Mallocs),
		heap:        each(after.memory.TotalAlloc - before.memory.TotalAlloc),
		commands:    each(uint64(after.commands - before.commands)),
		scripts:     each(uint64(after.scripts - before.scripts)),
		wire:        each(uint64(after.wire - before.wire)),
	}
	if after.started[0].Value.Kind() == metrics.KindUint64 {
		c.goroutines = each(after.started[0].Value.Uint64() - before.started[0].Value.Uint64())
	}
	return c
}

// count counts what op costs, once all is warm: the least of several rounds, as a busy machine adds
// timers and repeats to some of them. No collection empties pools in a round.
func count(server *fakeredis.Server, op func()) cost {
	const rounds, n = 30, 100
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 2 * n {
		op()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	got := most
	for range rounds {
		runtime.GC()
		got = got.min(measure(server, n, func() {
			for range n {
				op()
			}
		}))
	}
	return got
}

// most is above every cost.
var most = cost{math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt}

// min returns the least of both in each number.
func (c cost) min(o cost) cost {
	return cost{
		min(c.allocations, o.allocations), min(c.heap, o.heap), min(c.goroutines, o.goroutines),
		min(c.commands, o.commands), min(c.scripts, o.scripts), min(c.wire, o.wire),
	}
}

// requireBudget compares with the table. Counts may be off by 1 %: IDs have numbers of any length in
// them, and maps and lists grow at times.
func requireBudget(t *testing.T, got cost) {
	t.Helper()
	name := strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestBudget/"), "_", " ")
	line := fmt.Sprintf("%q: {%d, %d, %d, %d, %d, %d},", name, got.allocations, got.heap, got.goroutines, got.commands, got.scripts, got.wire)
	t.Log("today:", line)
	want := budgets[name]
	if !exact {
		want.allocations, want.heap, want.goroutines = got.allocations, got.heap, got.goroutines
	}
	for _, near := range []struct{ want, got *int }{
		{&want.allocations, &got.allocations}, {&want.heap, &got.heap}, {&want.wire, &got.wire}, {&want.commands, &got.commands},
	} {
		if math.Abs(float64(*near.want-*near.got)) <= 0.01*float64(*near.want) {
			*near.got = *near.want
		}
	}
	if want != got {
		t.Errorf("the budget is %+v", want)
	}
}

func TestBudget(t *testing.T) {
	op := func(name string, begin func(r *rig) func()) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			requireBudget(t, count(r.server, begin(r)))
		})
	}
	op("pair, endless", func(r *rig) func() { return pair(endless(), r.NewLock("x")) })
	op("pair, ending", func(r *rig) func() { return pair(ending(r.T), r.NewLock("x")) })
	t.Run("pair, prompt", func(t *testing.T) {
		r := &rig{T: t, server: &fakeredis.Server{}}
		r.Client = r.over(r.server.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true }))
		requireBudget(t, count(r.server, pair(ending(t), r.NewLock("x"))))
	})
	op("pair, for a time", func(r *rig) func() {
		l, ctx := r.NewLock("x"), ending(r.T)
		return func() { done(l.Unlock(must(l.TryLockFor(ctx, time.Second)))) }
	})
	op("kept pair", func(r *rig) func() { return pair(endless(), r.NewLock("x", relock.WithKeep(time.Hour))) })
	op("lock made anew", func(r *rig) func() { return func() { r.NewLock("x") } })
	op("nested", func(r *rig) func() { l := r.NewLock("x"); return pair(entered(r.T, l), l) })
	op("nested, ending", func(r *rig) func() {
		l := r.NewLock("x")
		section := must(l.Lock(ending(r.T)))
		r.Cleanup(func() { done(l.Unlock(section)) })
		return pair(section, l)
	})
	op("nested, local", func(r *rig) func() {
		l := r.NewLock("x", relock.WithLocalReentry())
		return pair(entered(r.T, l), l)
	})
	op("inside another section", func(r *rig) func() { return pair(entered(r.T, r.NewLock("y")), r.NewLock("x")) })
	op("pair and token", func(r *rig) func() {
		l := r.NewLock("x")
		return func() {
			section := must(l.Lock(endless()))
			must(l.Token(section))
			done(l.Unlock(section))
		}
	})
	op("eval", func(r *rig) func() {
		l := r.NewLock("x")
		section := entered(r.T, l)
		r.server.Script = func(reply []byte, args [][]byte) []byte {
			if keys, _ := fakeredis.Args(args); len(keys) == 2 && string(keys[1]) == "{x}:y" {
				return fakeredis.AppendInts(fakeredis.AppendList(reply, 2), 1, 7)
			}
			return fakeredis.AppendInts(reply, 1)
		}
		keys := []string{"{x}:y"}
		return func() { must(l.Eval(section, "return 7", keys, "z")) }
	})
	op("run, free", func(r *rig) func() {
		l := r.NewLock("x")
		r.server.Script = func(reply []byte, _ [][]byte) []byte {
			return fakeredis.AppendInts(fakeredis.AppendList(reply, 2), 1, 7)
		}
		keys := []string{"{x}:y"}
		return func() { must(l.RunScript(endless(), "return 7", keys, "z")) }
	})
	op("read pair", func(r *rig) func() { return pair(endless(), r.NewRWLock("x").RLocker()) })
	op("write pair", func(r *rig) func() { return pair(endless(), r.NewRWLock("x").Writer()) })
	op("permit pair", func(r *rig) func() { return pair(endless(), r.NewSemaphore("x", 10)) })
	op("all of 10", func(r *rig) func() {
		var locks []relock.Locker
		for i := range 10 {
			locks = append(locks, r.NewLock("{x}:"+strconv.Itoa(i)))
		}
		r.server.Script = func(reply []byte, args [][]byte) []byte {
			if keys, argv := fakeredis.Args(args); len(keys) == 20 && len(argv) == 11 { // the release
				return fakeredis.AppendInts(fakeredis.AppendList(reply, 10), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
			}
			return fakeredis.AppendInts(reply, 1)
		}
		return pair(endless(), relock.All(locks...))
	})
	op("try a busy lock", func(r *rig) func() {
		r.server.Script = func(reply []byte, _ [][]byte) []byte {
			reply = fakeredis.AppendInts(fakeredis.AppendList(reply, 3), 0)
			reply = append(reply, owner...)
			return fakeredis.AppendInts(reply, 1000)
		}
		l := r.NewLock("x")
		return func() {
			if _, err := l.TryLock(endless()); !errors.Is(err, relock.ErrLocked) {
				panic(err)
			}
		}
	})
	op("state", func(r *rig) func() {
		r.server.Script = func(reply []byte, _ [][]byte) []byte {
			reply = append(fakeredis.AppendList(reply, 5), owner...)
			return fakeredis.AppendInts(reply, 1, 1000, 0, 0)
		}
		l := r.NewLock("x")
		return func() { must(l.State(endless())) }
	})
	op("once, first", first)
	op("once, replay", func(r *rig) func() {
		r.server.Script = func(reply []byte, _ [][]byte) []byte {
			reply = fakeredis.AppendList(fakeredis.AppendInts(fakeredis.AppendList(reply, 2), 6), 3)
			return append(reply, "$4\r\ndone\r\n:1\r\n$1\r\n7\r\n"...)
		}
		return doOnce(r, func(int) string { return "x" })
	})
	for name, prompt := range map[string]bool{"quorum pair": false, "quorum pair, prompt": true} {
		t.Run(name, func(t *testing.T) {
			server := &fakeredis.Server{}
			var members []store.Store
			for range 3 {
				rdb := server.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = prompt })
				t.Cleanup(func() { _ = rdb.Close() })
				members = append(members, must(relock.RedisStore(rdb)))
			}
			c := must(relock.Open(must(quorum.New(members...))))
			t.Cleanup(func() { _ = c.Close() })
			requireBudget(t, count(server, pair(endless(), c.NewLock("x"))))
		})
	}
	op("hand-over", handOver)
	t.Run("renewal of 1000", renewal)
}

// first runs an operation with another key each time.
func first(r *rig) func() {
	r.server.Script = func(reply []byte, args [][]byte) []byte {
		switch keys, argv := fakeredis.Args(args); {
		case len(keys) == 4: // begin
			reply = fakeredis.AppendInts(fakeredis.AppendList(reply, 2), 1)
			return fakeredis.AppendInts(fakeredis.AppendList(reply, 2), 1, 0)
		case len(keys) == 3 && len(argv) > 3: // finish
			return fakeredis.AppendInts(fakeredis.AppendList(reply, 2), 1, 1)
		}
		return fakeredis.AppendInts(reply, 1)
	}
	return doOnce(r, strconv.Itoa)
}

func doOnce(r *rig, key func(n int) string) func() {
	o := must(once.New(r.Client))
	r.Cleanup(func() { _ = o.Close() })
	ctx, n := endless(), 10000
	return func() {
		n++
		_, _, err := once.Do(ctx, o, key(n), func(context.Context, once.Attempt) (int, error) { return 7, nil })
		done(err)
	}
}

// handOver lets a lock go from one client to another that waits, and back with the next call.
func handOver(r *rig) func() {
	joined := make(chan struct{}, 1)
	var held bool
	var channel, heir []byte
	r.server.Script = func(reply []byte, args [][]byte) []byte {
		keys, argv := fakeredis.Args(args)
		switch hold := argv[1]; {
		case len(argv) == 2 && len(heir) == 0: // a release
			held = false
		case len(argv) == 2:
			r.server.PublishLocked(channel, heir)
			heir = heir[:0]
		case !held:
			held = true
		default:
			if len(argv[3]) == 0 { // the client does not listen yet
				reply = append(fakeredis.AppendInts(fakeredis.AppendList(reply, 3), 0), owner...)
				return fakeredis.AppendInts(reply, 10_000)
			}
			client := hold
			for range 2 {
				client = client[:strings.LastIndexByte(string(client), ':')]
			}
			channel = append(append(append(channel[:0], keys[0]...), ':'), client...)
			heir = append(heir[:0], hold...)
			joined <- struct{}{}
			reply = append(fakeredis.AppendInts(fakeredis.AppendList(reply, 5), 2), owner...)
			return fakeredis.AppendInts(reply, 10_000, 1, 0)
		}
		return fakeredis.AppendInts(reply, 1)
	}
	holder, waiter := r.NewLock("x"), r.client().NewLock("x")
	ctx := ending(r.T)
	section := must(holder.Lock(ctx))
	got := make(chan context.Context)
	return func() {
		go func() { got <- must(waiter.Lock(ctx)) }()
		<-joined
		done(holder.Unlock(section))
		section = <-got
		holder, waiter = waiter, holder
	}
}

// renewal counts what the renewals of a round cost, in fake time.
func renewal(t *testing.T) {
	const locks, rounds = 1000, 20
	var got cost
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relock.WithTTL(3*time.Second))
		r.server.Script = func(reply []byte, args [][]byte) []byte {
			keys, argv := fakeredis.Args(args)
			if len(argv) == 2*len(keys) || len(keys) == 1 || len(keys) == 2 && len(argv) < 6 {
				return fakeredis.AppendInts(reply, 1)
			}
			reply = fakeredis.AppendList(reply, len(keys))
			for range keys {
				reply = fakeredis.AppendInts(reply, 1)
			}
			return reply
		}
		var sections []context.Context
		for i := range locks {
			sections = append(sections, must(r.NewLock(fmt.Sprint(i)).Lock(endless())))
		}
		time.Sleep(10 * time.Second)
		runtime.GC()
		got = most
		for range 3 {
			got = got.min(measure(r.server, rounds, func() { time.Sleep(rounds * time.Second) }))
		}
		runtime.KeepAlive(sections)
	})
	requireBudget(t, got)
}
