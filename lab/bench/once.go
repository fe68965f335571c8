package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/once"
)

// Operations that are done once. The units are a plain pair of relock in the same run, and one with a
// script in the section.

type onceSizes struct {
	rounds, clients, calls int // of an operation that many calls want at once
}

const (
	firstRun = "once, first run"
	replay   = "once, replay"
)

// onceKept is the time for which results are kept, so that a long run fills no memory.
const onceKept = 10 * time.Second

// onceProcess is a process with operations.
type onceProcess struct {
	*relockProcess

	once *once.Once
	make func(p *onceProcess, lock string) handle
}

// onceAs is relock with package once.
func onceAs(setting string, handleOf func(p *onceProcess, lock string) handle) *system {
	return &system{
		name: "relock", setting: setting,
		open: func(s setup) (process, error) {
			p, err := openRelock(nil)(s)
			if err != nil {
				return nil, err
			}
			o := &onceProcess{relockProcess: p.(*relockProcess), make: handleOf}
			o.once, err = once.New(o.client, once.WithRetention(onceKept))
			return o, err
		},
	}
}

func (p *onceProcess) handle(lock string) handle { return p.make(p, lock) }

func (p *onceProcess) close() {
	_ = p.once.Close()
	p.relockProcess.close()
}

// onceHandle does an operation in lock.
type onceHandle struct {
	once  *once.Once
	key   string
	fresh bool // each one is a new operation
	n     int
}

func (h *onceHandle) lock(ctx context.Context) (context.Context, error) {
	key := h.key
	if h.n++; h.fresh {
		key += strconv.Itoa(h.n)
	}
	_, _, err := once.Do(ctx, h.once, key, func(context.Context, once.Attempt) (string, error) { return "result", nil })
	return ctx, err
}

func (*onceHandle) unlock(context.Context) error { return nil }

var (
	newOperations = func(p *onceProcess, lock string) handle {
		return &onceHandle{once: p.once, key: lock, fresh: true}
	}
	onceFirst   = onceAs(firstRun, newOperations)
	onceMeeting = onceAs(defaults, newOperations)
	onceReplay  = onceAs(replay, func(p *onceProcess, lock string) handle { return &onceHandle{once: p.once, key: lock} })
)

// oncePair is pair with operations: a call is a pair.
func oncePair(b *bench) error { return b.pairs(0) }

// onceMeet has many calls of several clients meet one attempt.
func onceMeet(b *bench) error {
	size := b.sizes.once
	which := fmt.Sprintf("%d calls, clients: %d", size.clients*size.calls, size.clients)
	return b.contest(which, size.rounds, func(s *system, rec *record) (round, error) {
		processes := make([]*onceProcess, size.clients)
		for i := range processes {
			p, err := s.open(setup{addr: b.server.Addr()})
			if err != nil {
				return nil, err
			}
			defer p.close()
			processes[i] = p.(*onceProcess)
			if _, err := p.handle(freshLock(b.workload)).lock(context.Background()); err != nil { // connects, and subscribes
				return nil, err
			}
		}
		pause(100 * time.Millisecond)
		return b.meet(processes, rec)
	})
}

// meet has calls of all processes want one operation, whose function takes a while.
func (b *bench) meet(processes []*onceProcess, rec *record) (round, error) {
	var runs, last atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, len(processes)*b.sizes.once.calls)
	key, ended := freshLock(b.workload), time.Time{}
	u, err := b.spent(func() error {
		for _, p := range processes {
			for range b.sizes.once.calls {
				wg.Go(func() {
					_, _, err := once.Do(context.Background(), p.once, key, func(context.Context, once.Attempt) (string, error) {
						runs.Add(1)
						pause(100 * time.Millisecond)
						ended = time.Now()
						return "result", nil
					})
					last.Store(max(last.Load(), time.Now().UnixNano()))
					errs <- err
				})
			}
		}
		wg.Wait()
		return nil
	})
	close(errs)
	for failed := range errs {
		if failed != nil {
			return nil, failed
		}
	}
	rec.Broken += runs.Load() - 1
	if err != nil {
		return nil, err
	}
	return round{
		"last_ms":  millis(time.Duration(last.Load() - ended.UnixNano())),
		"commands": float64(u.commands()) / float64(len(processes)),
	}, nil
}
