package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/lab/soak/history"
	"github.com/go-relock/relock/store"
)

// Place is where the locks of a scenario are.
type Place int

// The places.
const (
	One      Place = iota // one server
	Kept                  // one server that keeps its data on the disk
	Timed                 // one server with a clock of its own
	Sentinel              // a master, a replica and three sentinels
	Cluster               // three masters and three replicas
)

// World is one run of a scenario with a library: servers, processes, and a record of what all
// holders have believed.
type World struct {
	T        testing.TB
	Library  *Library
	TTL      time.Duration
	Long     time.Duration    // of the trouble in a crowd
	Patience time.Duration    // the longest time in which a lock has to work again after a trouble
	Turns    []Turn           // how clients lock, at random
	Work     [2]time.Duration // how long a holder works in a crowd: least, most

	Server   *redistest.Server // nil with Sentinel, Cluster and a Backend
	Clock    *redistest.Clock
	Sentinel *redistest.Sentinel
	Cluster  *redistest.Cluster
	Admin    redis.UniversalClient
	Backend  *Backend // of a Library with a Store; all of the above are nil then

	Pause, Resume, Restart func()        // of the server; nil with Sentinel and Cluster
	Grace                  time.Duration // Backend.Late

	calm     []string // addresses, see Setup.Calm
	faulty   bool     // false: a control
	rec      *history.Recorder
	groups   atomic.Int64
	register atomic.Int64 // what the lock guards: the version that was written last
	versions atomic.Int64

	mu      sync.Mutex
	random  *rand.Rand
	clients []*Client
	kinds   history.Kinds
	wrong   []string
	late    []string
}

const (
	name     = "guarded" // of the lock in all scenarios
	patience = 15 * time.Second
)

func newWorld(t testing.TB, place Place, l *Library, faulty bool, long time.Duration, seed uint64) *World {
	t.Helper()
	w := &World{T: t, Library: l, TTL: 2 * time.Second, Long: long, Patience: patience, faulty: faulty, rec: history.NewRecorder(), random: rand.New(rand.NewPCG(seed, 0))}
	w.Turns = []Turn{{1, []string{name}, mutex}}
	w.Work = [2]time.Duration{time.Millisecond, 15 * time.Millisecond}
	switch {
	case l.Store != nil:
		w.Backend = l.Store(t, place == Kept)
		w.Pause, w.Resume, w.Restart, w.Grace = w.Backend.Pause, w.Backend.Resume, w.Backend.Restart, w.Backend.Late
		return w
	case place == One:
		w.Server = redistest.Start(t)
	case place == Kept:
		w.Server = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	case place == Timed:
		w.Server, w.Clock = redistest.StartWithClock(t)
	case place == Sentinel:
		w.Sentinel = redistest.StartSentinel(t)
		w.Admin = w.Sentinel.Client()
	case place == Cluster:
		w.Cluster = redistest.StartCluster(t)
		w.Admin = w.Cluster.Client()
	}
	if w.Server != nil {
		w.Admin = w.Server.Client()
		w.Pause, w.Resume, w.Restart = w.Server.Pause, w.Server.Resume, w.Server.Restart
	}
	return w
}

// Client is a process of its own for the library, though it runs in this one.
type Client struct {
	Locker
	Faults *redistest.Faults
	w      *World
	n      int
	in     atomic.Bool // was, at least once
}

// Join opens the library once more.
func (w *World) Join() *Client {
	faults := redistest.NewFaults()
	s := Setup{TTL: w.TTL, Calm: w.aside(), Redis: func(mod ...func(*redis.UniversalOptions)) redis.UniversalClient { return w.redis(faults, mod) }}
	switch {
	case w.Backend != nil:
		faults = redistest.NewByteFaults()
		s.Redis, s.Addr = nil, address.ReplaceAllLiteralString(w.Backend.Source, w.way(faults, address.FindString(w.Backend.Source)))
	case w.Server != nil:
		s.Addr = w.way(faults, w.Server.Addr())
	}
	l, err := w.Library.Open(s)
	if err != nil {
		w.T.Fatalf("open %s: %v", w.Library.Name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &Client{Locker: l, Faults: faults, w: w, n: len(w.clients)}
	w.clients = append(w.clients, c)
	return c
}

func (w *World) redis(faults *redistest.Faults, mod []func(*redis.UniversalOptions)) redis.UniversalClient {
	o := &redis.UniversalOptions{Dialer: faults.Dialer(nil)}
	switch {
	case w.Sentinel != nil:
		o.MasterName, o.Addrs = w.Sentinel.MasterName(), w.Sentinel.Addrs()
	case w.Cluster != nil:
		o.Addrs = w.Cluster.Addrs()
	default:
		o.Addrs = []string{w.Server.Addr()}
	}
	for _, f := range mod {
		f(o)
	}
	return redis.NewUniversalClient(o)
}

// aside returns the addresses of two servers without trouble, see Library.Calm.
func (w *World) aside() []string {
	if w.Library.Calm && w.calm == nil {
		w.calm = []string{redistest.Start(w.T).Addr(), redistest.Start(w.T).Addr()}
	}
	return w.calm
}

// source is how a process without a way of its own finds the server.
func (w *World) source() string {
	if w.Backend != nil {
		return w.Backend.Source
	}
	return w.Server.Addr()
}

// way listens for connections to the server, for libraries that make them by themselves.
func (w *World) way(faults *redistest.Faults, to string) (addr string) {
	near, err := new(net.ListenConfig).Listen(w.T.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = near.Close() })
	dial := faults.Dialer(nil)
	go func() {
		for {
			in, err := near.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := dial(w.T.Context(), "tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					_, _ = io.Copy(out, in)
					_ = out.Close()
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
	return near.Addr().String()
}

// Fault does something to the world, but in a control.
func (w *World) Fault(f func()) {
	if w.faulty {
		f()
	}
}

// Wrong notes a broken promise.
func (w *World) Wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// Late notes a wait that was too long, against the promise [Serves].
func (w *World) Late(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = append(w.late, fmt.Sprintf(format, args...))
}

// Taken runs f, which takes all locks away: the holders of now are promised no exclusion.
func (w *World) Taken(f func()) {
	op := history.Op{Lock: name, Kind: history.Wipe, Call: w.rec.Now()}
	f()
	op.Return = w.rec.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kinds.Ops = append(w.kinds.Ops, op)
}

func (w *World) between(least, most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return least + time.Duration(w.random.Int64N(int64(most-least)))
}

// pick returns a number below n.
func (w *World) pick(n int) int { return int(w.between(0, time.Duration(n))) }

// Turn is a way to lock.
type Turn struct {
	Limit int // 1: alone; n: a permit; store.Unlimited: a reader
	Names []string
	Lock  func(ctx context.Context, l Locker) (*Held, error)
}

func mutex(ctx context.Context, l Locker) (*Held, error) { return l.Lock(ctx, name) }

// guards says whether the register is behind the lock.
func (t *Turn) guards() bool {
	return len(t.Names) == 1 && (t.Limit == 1 || t.Limit == store.Unlimited)
}

// Visit is one turn in the lock.
type Visit struct {
	Err  error     // of the lock; nil: the client was in
	In   time.Time // the lock was there
	Lost time.Time // the holder was told of a loss, or its lease was over; zero: neither
}

// Visit locks, reads what the lock guards, works, writes (but as a reader), and unlocks. The
// visitor stops its work when it is told of a loss, or its lease is over.
func (c *Client) Visit(ctx context.Context, work time.Duration) (v Visit) {
	return c.visit(ctx, c.w.Turns[c.w.pick(len(c.w.Turns))], lasting(work))
}

// lasting is work of a length.
func lasting(work time.Duration) func(since time.Time) (done bool) {
	return func(since time.Time) bool { return time.Since(since) >= work }
}

func (c *Client) visit(ctx context.Context, t Turn, isDone func(since time.Time) bool) (v Visit) {
	w := c.w
	now := w.rec.Now
	s := history.Section{Client: c.n, Group: int(w.groups.Add(1)), Limit: t.Limit, Ask: now()}
	held, err := t.Lock(ctx, c.Locker)
	if err != nil {
		return Visit{Err: err}
	}
	v.In, s.In = time.Now(), now()
	c.in.Store(true)
	if t.guards() {
		s.Reads = []int64{w.register.Load()}
	}
	s.Sure = s.In
	for ; ; time.Sleep(time.Millisecond) {
		sure := now()
		if held.isOver() {
			v.Lost, s.Lost = time.Now(), now()
			break
		}
		if s.Sure = sure; isDone(v.In) {
			if t.guards() && t.Limit == 1 {
				s.Wrote = w.versions.Add(1)
				w.register.Store(s.Wrote)
				s.Late = held.isOver()
			}
			break
		}
	}
	s.Out, s.Left, s.Lease = now(), now(), s.Sure
	w.mu.Lock()
	for _, s.Lock = range t.Names {
		w.kinds.Sections = append(w.kinds.Sections, s)
	}
	w.mu.Unlock()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.TTL)
	defer cancel()
	// In trouble an Unlock may fail, see Unlocks.
	if err := held.Unlock(bounded); err != nil && v.Lost.IsZero() && !w.faulty {
		w.Wrong("unlock without trouble: %v", err)
	}
	return v
}

// Comes says that the client gets the lock within a time.
func (c *Client) Comes(within time.Duration, when string) {
	c.comes(within, when, time.Millisecond)
}

func (c *Client) comes(within time.Duration, when string, work time.Duration) {
	ctx, cancel := context.WithTimeout(c.w.T.Context(), within)
	defer cancel()
	var v Visit
	for began := time.Now(); time.Since(began) < within; time.Sleep(20 * time.Millisecond) {
		if v = c.visit(ctx, c.w.Turns[0], lasting(work)); v.Err == nil {
			return
		}
	}
	c.w.Late("%s: no lock within %s: %v", when, within, v.Err)
}

// Crowd has four processes, with two goroutines each, lock in turns while trouble happens again and
// again. Afterwards each process has to get the lock.
func (w *World) Crowd(trouble func(clients []*Client)) {
	var clients []*Client
	for range 4 {
		clients = append(clients, w.Join())
	}
	end := time.Now().Add(w.Long)
	ctx, cancel := context.WithDeadline(w.T.Context(), end.Add(w.Patience))
	defer cancel()
	var all sync.WaitGroup
	for _, c := range clients {
		for range 2 {
			all.Go(func() {
				for time.Now().Before(end) {
					v := c.Visit(ctx, w.between(w.Work[0], w.Work[1]))
					if errors.Is(ctx.Err(), context.DeadlineExceeded) {
						w.Late("a waiter slept until %s after the trouble: %v", w.Patience, v.Err)
					} else if v.Err != nil {
						time.Sleep(10 * time.Millisecond)
					}
				}
			})
		}
	}
	for time.Now().Before(end) {
		if !w.faulty {
			time.Sleep(time.Until(end))
			break
		}
		trouble(clients)
	}
	for _, c := range clients {
		c.Faults.Heal()
		c.Faults.Delay(0)
	}
	all.Wait()
	for _, c := range clients {
		c.Comes(w.Patience, "after the trouble")
	}
}

// Each is Crowd with a trouble of one process after the other.
func (w *World) Each(pause time.Duration, trouble func(c *Client)) {
	w.Crowd(func(clients []*Client) {
		trouble(clients[w.pick(len(clients))])
		time.Sleep(w.between(pause/2, pause))
	})
}

// waitIn waits until the client is in the lock for the first time. A first connection may take a
// while.
func (c *Client) waitIn() {
	for end := time.Now().Add(c.w.Patience); !c.in.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Keeps has a holder work for over two leases beside a waiter. The holder must not lose the lock.
func (w *World) Keeps(trouble func(holder *Client)) {
	holder, other := w.Join(), w.Join()
	done := make(chan Visit, 1)
	go func() { done <- holder.Visit(w.T.Context(), 5*w.TTL/2) }()
	holder.waitIn()
	time.Sleep(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(w.T.Context(), 5*w.TTL/2+w.Patience)
	defer cancel()
	waited := make(chan Visit, 1)
	go func() { waited <- other.Visit(ctx, time.Millisecond) }()
	for {
		select {
		case v := <-done:
			holder.Faults.Heal()
			if v.Err != nil {
				w.Wrong("the holder did not get the free lock: %v", v.Err)
			} else if !v.Lost.IsZero() {
				w.Wrong("the holder lost the lock after %s", v.Lost.Sub(v.In).Round(time.Millisecond))
			}
			if v := <-waited; v.Err != nil {
				w.Late("the waiter did not get the lock: %v", v.Err)
			}
			return
		default:
			w.Fault(func() { trouble(holder) })
			time.Sleep(w.TTL / 20)
		}
	}
}

// UnlocksLate has an Unlock of the first client arrive when the second one is in. hold keeps the
// Unlock back.
func (w *World) UnlocksLate(first, second *Client, hold func(ctx context.Context, held *Held) (arrive func())) {
	third := w.Join()
	ctx, cancel := context.WithTimeout(w.T.Context(), w.Patience)
	defer cancel()
	held, err := first.Lock(ctx, name)
	if err != nil {
		w.Wrong("the first one gets no free lock: %v", err)
		return
	}
	arrive := func() {}
	if w.faulty {
		arrive = hold(ctx, held)
	} else if err := held.Unlock(ctx); err != nil {
		w.Wrong("unlock: %v", err)
	}
	arrived := make(chan struct{}) // the late Unlock
	var all sync.WaitGroup
	all.Go(func() {
		// The second client works until the late Unlock has long arrived.
		v := second.visit(ctx, w.Turns[0], func(time.Time) bool {
			select {
			case <-arrived:
				return true
			default:
				return false
			}
		})
		if v.Err != nil {
			w.Late("the second one gets no lock after the lease: %v", v.Err)
		}
	})
	second.waitIn()
	for range 20 {
		all.Go(func() { third.Visit(ctx, w.TTL/20) })
	}
	w.Fault(func() {
		arrive()
		time.Sleep(w.TTL / 4) // those who wait find the lock that it has freed
	})
	close(arrived)
	all.Wait()
}

// Unlocks has a client lock and unlock, with a trouble at the Unlock. Each turn has a lock of its
// own, and no lease ends meanwhile: a lock is free only by an Unlock.
func (w *World) Unlocks(trouble func(holder *Client)) {
	w.TTL = 10 * time.Second
	holder, next := w.Join(), w.Join()
	holder.Comes(w.Patience, "before the trouble")
	next.Comes(w.Patience, "before the trouble")
	for i := range 10 {
		guarded := fmt.Sprint(name, i)
		held, err := holder.lockFor(guarded, w.Patience)
		if err != nil {
			w.Late("no free lock within %s: %v", w.Patience, err)
			continue
		}
		w.Fault(func() { trouble(holder) })
		ctx, cancel := context.WithTimeout(w.T.Context(), w.TTL/4)
		err = held.Unlock(ctx)
		cancel()
		switch {
		case err == nil:
			held, err := next.lockFor(guarded, w.TTL/2)
			if err != nil {
				w.Wrong("Unlock says that all is well, and the lock is not free %s later: %v", w.TTL/2, err)
				return
			}
			_ = held.Unlock(w.T.Context())
		case !w.faulty:
			w.Wrong("unlock without trouble: %v", err)
		case errors.Is(err, errNotOurs) && w.Library.Promises&Knows != 0:
			w.Wrong("Unlock of a lock that was held: %v", err)
		}
	}
	if !w.Library.Calm { // a server that the Unlock has not reached may keep its lease
		w.unlocksLast(holder, next)
	}
}

// unlocksLast has a process end when its Unlock has returned: later commands reach no server.
func (w *World) unlocksLast(holder, next *Client) {
	held, err := holder.lockFor(name, w.Patience)
	if err != nil {
		w.Late("no free lock within %s: %v", w.Patience, err)
		return
	}
	w.Fault(func() { holder.Faults.Delay(w.TTL / 100) })
	ctx, cancel := context.WithTimeout(w.T.Context(), w.TTL/4)
	defer cancel()
	err = held.Unlock(ctx)
	w.Fault(holder.Faults.Partition)
	if held, late := next.lockFor(name, w.TTL/2); err == nil && late != nil {
		w.Wrong("Unlock says that all is well, the process ends, and the lock is not free %s later: %v", w.TTL/2, late)
	} else if late == nil {
		_ = held.Unlock(w.T.Context())
	}
	holder.Faults.Delay(0)
	holder.Faults.Heal()
}

func (c *Client) lockFor(guarded string, within time.Duration) (*Held, error) {
	ctx, cancel := context.WithTimeout(c.w.T.Context(), within)
	defer cancel()
	for {
		held, err := c.Lock(ctx, guarded)
		if err == nil || ctx.Err() != nil {
			return held, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Loses has a holder lose its lock by a trouble. The library has to tell the holder within a time,
// and then the work of the holder ends. The next holder works longer: a lost holder that renews the
// lease of the next one is never told.
func (w *World) Loses(within time.Duration, trouble func(holder *Client)) {
	holder, other := w.Join(), w.Join()
	done := make(chan Visit, 1)
	go func() { done <- holder.Visit(w.T.Context(), 2*w.TTL) }()
	holder.waitIn()
	time.Sleep(w.TTL / 4)
	began := time.Now()
	w.Fault(func() { trouble(holder) })
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		other.comes(2*w.TTL+w.Patience, "the next one", 5*w.TTL/4)
	}()
	v := <-done
	switch {
	case v.Err != nil:
		w.Wrong("the holder did not get the free lock: %v", v.Err)
	case w.faulty && v.Lost.IsZero():
		w.Wrong("the holder was not told of its loss")
	case w.faulty && v.Lost.Sub(began) > within:
		w.Wrong("the holder was told of its loss after %s", v.Lost.Sub(began).Round(time.Millisecond))
	case !w.faulty && !v.Lost.IsZero():
		w.Wrong("the holder lost the lock after %s", v.Lost.Sub(v.In).Round(time.Millisecond))
	}
	holder.Faults.Heal()
	<-waited
}

// end closes all processes.
func (w *World) end() {
	for _, c := range w.clients {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			c.Close()
		}()
		select {
		case <-closed:
		case <-time.After(w.Patience):
			w.Wrong("close has not returned within %s", w.Patience)
		}
		c.Faults.Close()
	}
	w.nothingLeft()
	w.kinds.Longest = w.TTL
	w.wrong = append(w.wrong, w.kinds.Check(5*time.Second)...)
}

// nothingLeft looks for keys that outlast a lease.
func (w *World) nothingLeft() {
	var left []string
	for end := time.Now().Add(w.TTL + 3*time.Second + w.Grace); ; time.Sleep(50 * time.Millisecond) {
		if w.Backend != nil {
			var err error
			if left, err = w.Backend.Left(w.T.Context()); err != nil {
				left = []string{err.Error()}
			}
		} else {
			left = slices.DeleteFunc(redistest.Keys(w.T, w.Admin), w.Library.mayLeave)
		}
		if len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(left) > 0 {
		w.Wrong("keys are left over a lease after the last process: %q", left)
	}
}
