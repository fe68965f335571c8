package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/redistest"
)

// env is where everything is measured: one server, a connection to look at it from outside, and ways to it that take longer.
type env struct {
	t      testing.TB
	server *redistest.Server
	admin  *redis.Client
	links  map[time.Duration]*link
}

// newEnv starts a server that ends with t, a test or the [harness].
func newEnv(t testing.TB) *env {
	t.Helper()
	server := redistest.Start(t, "--maxclients", "12000")
	e := &env{t: t, server: server, links: map[time.Duration]*link{}}
	e.admin = server.Client(func(o *redis.Options) { o.ReadTimeout = 30 * time.Second })
	t.Cleanup(func() {
		for _, l := range e.links {
			if err := l.process.kill(); err != nil {
				t.Errorf("the proxy: %v", err)
			}
		}
	})
	return e
}

// addr is where the server is reached with that round trip added.
func (e *env) addr(roundTrip time.Duration) (string, error) {
	if roundTrip == 0 {
		return e.server.Addr(), nil
	}
	l := e.links[roundTrip]
	if l == nil {
		l = &link{Target: e.server.Addr(), RoundTrip: roundTrip}
		if err := l.start(); err != nil {
			return "", err
		}
		e.links[roundTrip] = l
	}
	return l.addr, nil
}

// redis is a new go-redis client with go-redis's defaults.
func (e *env) redis(roundTrip time.Duration) (*redis.Client, error) {
	addr, err := e.addr(roundTrip)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(&redis.Options{Addr: addr}), nil
}

// flush empties the server between two slices.
func (e *env) flush() error { return e.admin.FlushAll(context.Background()).Err() }

// usage is what client and server have used between two moments.
type usage struct {
	wall      time.Duration
	client    time.Duration // CPU
	server    time.Duration // CPU
	mallocs   uint64
	allocated uint64
	calls     map[string]int64 // commands executed, those inside scripts included, by name
	in, out   int64            // bytes that the server received and sent
}

// moment is what has been used so far. Reading it uses something too, so this process is read before and after.
type moment struct {
	before, after own
	server        time.Duration
	calls         map[string]int64
	in, out       int64
	infoLen       int64 // of the answer that told it
}

// own is what this process has used.
type own struct {
	at                 time.Time
	cpu                time.Duration
	mallocs, allocated uint64
}

func readOwn() own {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return own{time.Now(), clientCPU(), m.Mallocs, m.TotalAlloc}
}

// now reads what has been used so far.
func (e *env) now() (moment, error) {
	u := moment{calls: map[string]int64{}, before: readOwn()}
	info, err := e.admin.Info(context.Background(), "all").Result()
	if err != nil {
		return moment{}, err
	}
	u.infoLen = int64(len(info))
	var cpu float64
	lines := bufio.NewScanner(strings.NewReader(info))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch {
		case key == "used_cpu_user" || key == "used_cpu_sys":
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return moment{}, err
			}
			cpu += f
		case key == "total_net_input_bytes":
			u.in, _ = strconv.ParseInt(value, 10, 64)
		case key == "total_net_output_bytes":
			u.out, _ = strconv.ParseInt(value, 10, 64)
		case strings.HasPrefix(key, "cmdstat_"):
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, err := strconv.ParseInt(calls, 10, 64)
			if err != nil {
				return moment{}, err
			}
			u.calls[strings.TrimPrefix(key, "cmdstat_")] = n
		}
	}
	u.server = time.Duration(cpu * float64(time.Second))
	u.after = readOwn()
	return u, lines.Err()
}

// The command INFO all on the wire, and what RESP3 puts around its answer.
const (
	infoCommand = int64(len("*2\r\n$4\r\ninfo\r\n$3\r\nall\r\n"))
	infoFrame   = int64(len("=12345\r\ntxt:\r\n"))
)

// since is what was used after old. The commands that told it do not count.
func (u moment) since(old moment) usage {
	d := usage{
		wall: u.before.at.Sub(old.after.at), client: u.before.cpu - old.after.cpu, server: u.server - old.server,
		mallocs: u.before.mallocs - old.after.mallocs, allocated: u.before.allocated - old.after.allocated,
		calls: map[string]int64{}, in: u.in - old.in - infoCommand, out: u.out - old.out - old.infoLen - infoFrame,
	}
	for name, n := range u.calls {
		if n -= old.calls[name]; n > 0 && name != "info" {
			d.calls[name] = n
		}
	}
	return d
}

// plus is what both used.
func (u usage) plus(v usage) usage {
	calls := maps.Clone(v.calls)
	for name, n := range u.calls {
		calls[name] += n
	}
	return usage{
		wall: u.wall + v.wall, client: u.client + v.client, server: u.server + v.server,
		mallocs: u.mallocs + v.mallocs, allocated: u.allocated + v.allocated,
		calls: calls, in: u.in + v.in, out: u.out + v.out,
	}
}

// scripts is how many script calls there were.
func (u usage) scripts() int64 { return u.calls["evalsha"] + u.calls["eval"] }

// commands is how many commands clients have sent. The server counts those that scripts run under the same names, so the
// names are given: scripts and what connections need are in any case, also are those that a system sends besides.
func (u usage) commands(also ...string) int64 {
	var n int64
	for name, calls := range u.calls {
		if connectionCommands[name] || slices.Contains(also, name) {
			n += calls
		}
	}
	return n + u.scripts()
}

var connectionCommands = map[string]bool{
	"ping": true, "subscribe": true, "unsubscribe": true, "hello": true, "client|setinfo": true,
	"client|tracking": true, "client|caching": true, "client|maint_notifications": true, "script|load": true,
}

// clientCPU is what this process has used, in user mode and in the kernel.
func clientCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// memory is what this process holds in memory after a garbage collection.
type memory struct {
	heap, stacks int64
	goroutines   int
}

func (e *env) memory() memory {
	runtime.GC()
	runtime.GC() // what finalizers and pools have let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{heap: int64(m.HeapAlloc), stacks: int64(m.StackInuse), goroutines: runtime.NumGoroutine()}
}

// roundTrip is the time of n PINGs, the middle one.
func roundTrip(ctx context.Context, rdb *redis.Client, n int) (time.Duration, error) {
	var all durations
	for range n {
		start := time.Now()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	return all.quantile(0.5), nil
}

// harness is a testing.TB for a program, so that it can start servers as tests do. What fails ends the run.
type harness struct {
	testing.TB // for its unexported method; nothing of it is called

	cleanups []func()
	errs     []error
}

// failure is what Fatalf panics with.
type failure struct{ error }

func (h *harness) Helper()             {}
func (h *harness) Cleanup(f func())    { h.cleanups = append(h.cleanups, f) }
func (h *harness) Failed() bool        { return len(h.errs) > 0 }
func (h *harness) Logf(string, ...any) {}

func (h *harness) Errorf(format string, args ...any) {
	h.errs = append(h.errs, fmt.Errorf(format, args...))
}

func (h *harness) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Skipf is a failure: a program that measures nothing has not done its job.
func (h *harness) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

// end runs the cleanups, in reverse as a test does, and returns what failed. A panic that is not ours goes on.
func (h *harness) end(recovered any) error {
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	if f, ok := recovered.(failure); ok {
		h.errs = append(h.errs, f.error)
	} else if recovered != nil {
		panic(recovered)
	}
	return errors.Join(h.errs...)
}
