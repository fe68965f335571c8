package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

// Read-write locks, semaphores and several locks at once. Only relock takes part, and the unit is a
// plain pair of relock in the same run, or a hand-over.

type kindsSizes struct {
	batchRounds, readers    int // readers that wait for a writer
	writerRounds, loops     int // loops of readers, beside one writer
	severalRounds, acquires int // of several locks, for the count of commands
	samples                 int // in a round of batch and writer
	hold                    time.Duration
}

const (
	reading = "for reading"
	writing = "for writing"
	permit  = "a permit"
	ten     = "10 names"
)

// permits is the size of the semaphore of a permit pair.
const permits = 10

// relockAs is relock with another kind of lock.
func relockAs(setting string, newLock func(c *relock.Client, name string) relock.Locker) *system {
	return &system{
		name: "relock", setting: setting,
		open: func(s setup) (process, error) {
			p, err := openRelock(nil)(s)
			if err != nil {
				return nil, err
			}
			return kindProcess{p.(*relockProcess), newLock}, nil
		},
		queued: func(ctx context.Context, rdb *redis.Client, lock string) (int, error) {
			n, err := rdb.ZCard(ctx, relockKey(lock)+":rw:queue").Result()
			return int(n), err
		},
	}
}

type kindProcess struct {
	*relockProcess

	newLock func(c *relock.Client, name string) relock.Locker
}

func (p kindProcess) handle(lock string) handle { return kindHandle{p.newLock(p.client, lock)} }

type kindHandle struct{ l relock.Locker }

func (h kindHandle) lock(ctx context.Context) (context.Context, error) { return h.l.Lock(ctx) }
func (h kindHandle) unlock(section context.Context) error              { return h.l.Unlock(section) }

var (
	relockReading = relockAs(reading, func(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).RLocker() })
	relockWriting = relockAs(writing, func(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Writer() })
	relockPermit  = relockAs(permit, func(c *relock.Client, name string) relock.Locker { return c.NewSemaphore(name, permits) })
	relockSeveral = relockAs(ten, func(c *relock.Client, name string) relock.Locker {
		names := make([]string, 10)
		for i := range names {
			names[i] = "{" + name + "}:" + strconv.Itoa(i) // one slot
		}
		return c.NewLocks(names)
	})
)

// kindSystems has the systems of the workloads with systems of their own.
var kindSystems = map[string][]*system{
	"kinds-pair":    {relockDefaults, relockReading, relockWriting, relockPermit},
	"kinds-batch":   {relockDefaults},
	"kinds-writer":  {relockDefaults},
	"kinds-several": {relockDefaults, relockSeveral},
	"once-pair":     {relockDefaults, relockInSection, onceFirst, onceReplay},
	"once-meet":     {onceMeeting},
	"script":        scriptSystems,

	"quorum-pair":     {quorumRelock, quorumRedsync, quorumFailFast, quorumRueidislock},
	"quorum-fault":    {quorumRelock, quorumDead, quorumSilent, quorumFailFast, quorumFailFastDead, quorumFailFastSilent},
	"quorum-handover": {quorumRelock, quorumRedsync, quorumTuned, quorumRueidislock, singleRueidislock},

	"stores-pair":     storeSystems,
	"stores-handover": storeSystems,
}

// kindsPair is pair with all kinds of locks.
func kindsPair(b *bench) error { return b.pairs(0) }

// kindsSeveral is pair with one lock and with several, and then counts what an acquire sends. A
// client sends one command after the other, so one command is one round trip.
func kindsSeveral(b *bench) error {
	if err := b.pairs(0); err != nil {
		return err
	}
	return b.contest("acquire", b.sizes.kinds.severalRounds, func(s *system, _ *record) (m round, err error) {
		p, err := s.open(setup{addr: b.server.Addr()})
		if err != nil {
			return nil, err
		}
		defer p.close()
		h, n, commands := p.handle(freshLock(b.workload)), b.sizes.kinds.acquires, int64(0)
		for i := range n + 1 {
			var section context.Context
			u, err := b.spent(func() (err error) {
				section, err = h.lock(context.Background()) //nolint:fatcontext // the section is the result
				return err
			})
			if err != nil {
				return nil, err
			}
			if i > 0 { // the first one connects, and loads the scripts
				commands += u.commands()
			}
			if err := h.unlock(section); err != nil {
				return nil, err
			}
		}
		return round{"acquire_commands": float64(commands) / float64(n)}, nil
	})
}

// rwGuard watches a read-write lock, as [guard] watches a lock: a writer counts as below 0.
type rwGuard struct{ inside, broken atomic.Int64 }

const aWriter = -1 << 32

func (g *rwGuard) read() {
	if g.inside.Add(1) <= 0 {
		g.broken.Add(1)
	}
}

func (g *rwGuard) leaveRead() { g.inside.Add(-1) }

func (g *rwGuard) write() {
	if g.inside.Add(aWriter) != aWriter {
		g.broken.Add(1)
	}
}

func (g *rwGuard) leaveWrite() { g.inside.Add(-aWriter) }

// stage is a read-write lock with a client for its writer, and clients for its readers.
type stage struct {
	bench   *bench
	lock    string
	guard   rwGuard
	writer  process
	readers []process
}

func (b *bench) stage(readers int) (*stage, error) {
	st := &stage{bench: b, lock: freshLock(b.workload), readers: make([]process, readers)}
	with := setup{addr: b.server.Addr()}
	var err error
	if st.writer, err = relockWriting.open(with); err != nil {
		return nil, err
	}
	for i := range st.readers {
		if st.readers[i], err = relockReading.open(with); err != nil {
			st.close(&record{})
			return nil, err
		}
	}
	return st, nil
}

// reader returns the handle of reader i.
func (st *stage) reader(i int) handle { return st.readers[i%len(st.readers)].handle(st.lock) }

func (st *stage) close(rec *record) {
	rec.Broken += st.guard.broken.Load()
	st.writer.close()
	for _, p := range st.readers {
		if p != nil {
			p.close()
		}
	}
}

// kindsBatch lets many readers wait for a writer, and measures from the call of its Unlock until
// the last reader is in.
func kindsBatch(b *bench) error {
	size := b.sizes.kinds
	for _, clients := range []int{1, 4} {
		which := fmt.Sprintf("%d waiting readers, clients: %d", size.readers, clients)
		err := b.contest(which, size.batchRounds, func(_ *system, rec *record) (round, error) {
			return b.batchSlice(clients, rec)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) batchSlice(clients int, rec *record) (round, error) {
	st, err := b.stage(clients)
	if err != nil {
		return nil, err
	}
	defer st.close(rec)
	if _, err := st.batch(); err != nil { // connects and subscribes
		return nil, err
	}
	var first, last durations
	published, n := int64(0), b.sizes.kinds.samples
	for range n {
		u, err := b.spent(func() error {
			arrivals, err := st.batch()
			first, last = append(first, arrivals.quantile(0)), append(last, arrivals.quantile(1))
			return err
		})
		if err != nil {
			return nil, err
		}
		published += u.calls["publish"] + u.calls["spublish"]
	}
	return round{
		"first_ms": millis(first.quantile(0.5)), "last_ms": millis(last.quantile(0.5)), "last_max_ms": millis(last.quantile(1)),
		"messages": float64(published) / float64(n*clients),
	}, nil
}

// batch returns how long after the call of Unlock each reader came in.
func (st *stage) batch() (arrivals durations, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	w := st.writer.handle(st.lock)
	section, err := w.lock(ctx)
	if err != nil {
		return nil, err
	}
	st.guard.write()
	n := st.bench.sizes.kinds.readers
	at, errs := make([]time.Time, n), make([]error, n+2)
	var all, in sync.WaitGroup
	in.Add(n)
	for i := range n {
		h := st.reader(i)
		all.Go(func() {
			section, err := h.lock(ctx)
			at[i] = time.Now()
			in.Done()
			if errs[i] = err; err != nil {
				return
			}
			st.guard.read()
			in.Wait() // nobody unlocks while others are on their way in
			st.guard.leaveRead()
			errs[i] = h.unlock(section)
		})
	}
	errs[n] = st.bench.queued(relockWriting, st.lock, n)
	pause(st.bench.sizes.kinds.hold) // for the replies
	st.guard.leaveWrite()
	start := time.Now()
	errs[n+1] = w.unlock(section)
	all.Wait()
	for _, t := range at {
		arrivals = append(arrivals, t.Sub(start))
	}
	return arrivals, errors.Join(errs...)
}

// kindsWriter measures how long a writer waits, beside loops of readers that always want the lock.
// The writer has to wait for readers before it, and for none behind it: for one read, and for the
// messages of a hand-over.
func kindsWriter(b *bench) error {
	which := strconv.Itoa(b.sizes.kinds.loops) + " loops of readers"
	return b.contest(which, b.sizes.kinds.writerRounds, func(_ *system, rec *record) (round, error) {
		return b.writerSlice(rec)
	})
}

func (b *bench) writerSlice(rec *record) (m round, err error) {
	st, err := b.stage(4)
	if err != nil {
		return nil, err
	}
	defer st.close(rec)
	// The hand-overs are between writers of another lock.
	r, err := newRing(b, relockWriting, freshLock(b.workload), setup{addr: b.server.Addr()}, 3)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, r.close())
		rec.Broken += r.guard.broken.Load()
	}()
	if err := r.queueUp(0); err != nil {
		return nil, err
	}
	var waits, rest, busy durations
	n := b.sizes.kinds.samples
	for i := range n + 1 {
		d, err := b.oneHandover(r)
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first owner has not waited
			rest = append(rest, d)
		}
	}
	longest, err := st.readOn(b.sizes.kinds.loops, func() error {
		if _, err := st.write(); err != nil { // the first one connects for messages
			return err
		}
		for range n {
			d, err := st.write()
			if err != nil {
				return err
			}
			waits = append(waits, d)
			if d, err = b.oneHandover(r); err != nil {
				return err
			}
			busy = append(busy, d)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	bound := func(handover time.Duration) float64 { return float64(longest + 3*handover) }
	return round{
		"wait_p50_ms": millis(waits.quantile(0.5)), "wait_max_ms": millis(waits.quantile(1)), "read_max_ms": millis(longest),
		"busy_us": micros(busy.quantile(0.5)), "rest_us": micros(rest.quantile(0.5)),
		"of_bound":     float64(waits.quantile(1)) / bound(busy.quantile(0.5)),
		"p50_of_bound": float64(waits.quantile(0.5)) / bound(busy.quantile(0.5)),
		"of_rest":      float64(waits.quantile(1)) / bound(rest.quantile(0.5)),
	}, nil
}

// oneHandover makes a hand-over in a ring, after a pause.
func (b *bench) oneHandover(r *ring) (time.Duration, error) {
	pause(b.sizes.kinds.hold)
	d, err := r.pass(closeLimit)
	if err == nil {
		err = r.again(closeLimit)
	}
	return d, err
}

// readOn runs loops of readers during f, and returns the longest read, from the return of RLock to
// the call of Unlock.
func (st *stage) readOn(loops int, f func() error) (longest time.Duration, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var stop atomic.Bool
	var wg sync.WaitGroup
	reads, errs := make([]time.Duration, loops), make([]error, loops)
	for i := range loops {
		h := st.reader(i)
		wg.Go(func() {
			for !stop.Load() && errs[i] == nil {
				var read time.Duration
				read, errs[i] = st.read(ctx, h)
				reads[i] = max(reads[i], read)
			}
		})
	}
	pause(10 * st.bench.sizes.kinds.hold) // all have connected, and read
	err = f()
	stop.Store(true)
	hangs := within(closeLimit, func() error { wg.Wait(); return nil })
	if hangs != nil {
		return 0, errors.Join(err, hangs)
	}
	for _, read := range reads {
		longest = max(longest, read)
	}
	return longest, errors.Join(errors.Join(errs...), err)
}

// read is a section of a reader.
func (st *stage) read(ctx context.Context, h handle) (time.Duration, error) {
	section, err := h.lock(ctx)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	st.guard.read()
	pause(st.bench.sizes.kinds.hold)
	st.guard.leaveRead()
	return time.Since(start), h.unlock(section)
}

// write is a short section of the writer, and returns how long the writer has waited. The writer
// asks at any time of the reads.
func (st *stage) write() (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	h := st.writer.handle(st.lock)
	pause(st.bench.sizes.kinds.hold + rand.N(2*st.bench.sizes.kinds.hold))
	start := time.Now()
	section, err := h.lock(ctx)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	st.guard.write()
	st.guard.leaveWrite()
	return took, h.unlock(section)
}
