package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/test/redistest"
)

// env is a server, and a connection to look at the server from outside.
type env struct {
	t      testing.TB
	server *redistest.Server
	admin  *redis.Client
	quorum *env     // the first member of quorums, see [bench.onMembers]
	others []string // addresses of members beside this server
}

// newEnv starts a server that ends with t, a test or the [harness].
func newEnv(t testing.TB) *env {
	t.Helper()
	server := redistest.Start(t, "--maxclients", "12000")
	admin := server.Client(func(o *redis.Options) { o.ReadTimeout = 30 * time.Second })
	return &env{t: t, server: server, admin: admin}
}

// setup returns the addresses of the server, and of the members beside it.
func (e *env) setup() setup { return setup{addr: e.server.Addr(), others: e.others} }

// redis opens a go-redis client with go-redis's defaults.
func (e *env) redis() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: e.server.Addr()})
}

// flush empties the server between two slices.
func (e *env) flush() error { return e.admin.FlushAll(context.Background()).Err() }

// spent calls f, and returns what client and server used meanwhile.
func (e *env) spent(f func() error) (usage, error) {
	before, err := e.now()
	if err != nil {
		return usage{}, err
	}
	if err := f(); err != nil {
		return usage{}, err
	}
	after, err := e.now()
	return after.since(before), err
}

// usage is the use of client and server between two moments.
type usage struct {
	wall      time.Duration
	client    time.Duration // CPU
	server    time.Duration // CPU
	mallocs   uint64
	allocated uint64
	calls     map[string]int64 // executed commands by name, also inside scripts
	in, out   int64            // bytes that the server received and sent
}

// moment is the use so far. Reading has a use of its own, so this process is read before and after.
type moment struct {
	before, after own
	server        time.Duration
	calls         map[string]int64
	in, out       int64
	infoLen       int64 // bytes of the reply to INFO
}

// own is the use of this process.
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

// now reads the use so far.
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

// The command INFO all on the wire, and the frame of its reply in RESP3.
const (
	infoCommand = int64(len("*2\r\n$4\r\ninfo\r\n$3\r\nall\r\n"))
	infoFrame   = int64(len("=12345\r\ntxt:\r\n"))
)

// since returns the use after old, without INFO.
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

// plus adds two uses.
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

// scripts counts script calls.
func (u usage) scripts() int64 { return u.calls["evalsha"] + u.calls["eval"] }

// commands counts the commands of clients. The server counts commands inside scripts under the same
// names, so the count is by name: scripts, commands of connections, and the names in also.
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

// clientCPU returns the CPU time of this process, in user mode and in the kernel.
func clientCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// memory is the memory of this process after a garbage collection.
type memory struct {
	heap, stacks int64
	goroutines   int
}

func (e *env) memory() memory {
	runtime.GC()
	runtime.GC() // pools and finalizers let go only now
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{heap: int64(m.HeapAlloc), stacks: int64(m.StackInuse), goroutines: runtime.NumGoroutine()}
}

// harness is a testing.TB for a program, so that the program can start servers as tests do. A
// failure ends the run.
type harness struct {
	testing.TB // for the unexported method; nothing calls the TB

	cleanups []func()
	errs     []error
}

// failure is the panic of Fatalf.
type failure struct{ error }

func (h *harness) Helper()                  {}
func (h *harness) Context() context.Context { return context.Background() }
func (h *harness) Cleanup(f func())         { h.cleanups = append(h.cleanups, f) }
func (h *harness) Failed() bool             { return len(h.errs) > 0 }
func (h *harness) Logf(string, ...any)      {}

func (h *harness) Errorf(format string, args ...any) {
	h.errs = append(h.errs, fmt.Errorf(format, args...))
}

func (h *harness) TempDir() string {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *harness) Fatal(args ...any) { panic(failure{errors.New(fmt.Sprint(args...))}) }

func (h *harness) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Skipf is a failure, as the program has nothing to skip to.
func (h *harness) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

// end runs the cleanups in reverse, as a test does, and joins the failures. A foreign panic goes
// on.
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
