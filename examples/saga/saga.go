package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/ticket"
)

// The verbs of the services.
const (
	do   = "do"
	undo = "undo"
)

// errRefused is a failure for good. All other errors are worth another try.
var errRefused = errors.New("refused")

// worker is one process that works on orders.
type worker struct {
	rdb      *redis.Client
	locks    *relock.Client
	once     *once.Once
	services []*service // in the order of the steps

	stops  string                       // the service after whose step the worker is shut down; empty: none
	diesAt string                       // for the demonstration, see reach
	asked  func(key string, status int) // gets the answer about an interrupted attempt
}

func newWorker(options *redis.Options, prefix string, services []*service) (*worker, error) {
	w := &worker{rdb: redis.NewClient(options), services: services}
	var err error
	// A short lease lets others go on soon after a crash. A service would keep the default.
	if w.locks, err = relock.New(w.rdb, relock.WithPrefix(prefix), relock.WithTTL(2*time.Second)); err != nil {
		return nil, errors.Join(err, w.rdb.Close())
	}
	// The records have to outlive the saga: a step without its record would be done again.
	if w.once, err = once.New(w.locks, once.WithRetention(time.Minute)); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *worker) close() error {
	if w.once != nil {
		w.once.Close()
	}
	w.locks.Close()
	return w.rdb.Close()
}

// process brings an order to its end: all steps are done, or none remains. After an error the order
// is somewhere in between, and process, of any worker, continues from there.
//
// The lock has one worker at a time on an order. Here all that decides is stored under a key, so
// two workers would take the same steps, and the lock spares them that. The lock becomes necessary
// when the saga decides by something that is not stored: the time, or a customer who cancels.
//
// A worker that is shut down hands the order on: process returns a ticket, and the next worker
// continues with the ticket. The lock is not free in between, so nobody who waits for the order
// gets in. A ticket that comes too late is no harm: the worker takes the lock as any other.
func (w *worker) process(ctx context.Context, order string, t *ticket.Ticket) (all bool, next *ticket.Ticket, err error) {
	lock := w.locks.NewLock("saga:" + order)
	section, err := enter(ctx, lock, t)
	if err != nil {
		return false, nil, err
	}
	defer func() {
		if unlocked := lock.Unlock(section); !errors.Is(unlocked, relock.ErrHandedOff) {
			err = errors.Join(err, unlocked)
		}
		all = all && err == nil
	}()
	for i, s := range w.services {
		err := w.step(section, s, order, do)
		var refused *once.FailedError
		if errors.As(err, &refused) {
			return false, nil, w.compensate(section, order, w.services[:i])
		}
		if err != nil {
			return false, nil, fmt.Errorf("%s: %w", s.name, err)
		}
		if w.stops == s.name {
			given, err := ticket.HandOff(section, lock)
			return false, &given, err
		}
	}
	return true, nil, nil
}

// enter continues the section of a worker that was shut down, or waits for the lock.
func enter(ctx context.Context, lock *relock.Lock, t *ticket.Ticket) (context.Context, error) {
	if t != nil {
		section, err := ticket.Accept(ctx, lock, *t)
		if err == nil || !errors.Is(err, relock.ErrLockLost) && !errors.Is(err, relock.ErrTicket) {
			return section, err
		}
	}
	return lock.Lock(ctx)
}

// compensate undoes the steps that are done, the last one first.
func (w *worker) compensate(ctx context.Context, order string, done []*service) error {
	for i := len(done) - 1; i >= 0; i-- {
		if err := w.step(ctx, done[i], order, undo); err != nil {
			return fmt.Errorf("undo %s: %w", done[i].name, err)
		}
	}
	return nil
}

// step does one step of an order once, or returns the stored end of the step.
//
// Only a stored refusal, a [*once.FailedError], starts the compensation: if a refusal is not
// stored, the next worker asks again, may be accepted, and would go forward while others go back.
// After a refusal step therefore asks once more, for the stored end.
func (w *worker) step(ctx context.Context, s *service, order, verb string) error {
	try := func() error {
		_, _, err := once.Do(ctx, w.once, order+":"+s.name+":"+verb, func(ctx context.Context, a once.Attempt) (struct{}, error) {
			return struct{}{}, w.call(ctx, a, s, order, verb)
		})
		return err
	}
	err := try()
	if errors.Is(err, errRefused) {
		err = try()
	}
	return err
}

// call sends one request. An attempt that follows an interrupted one first asks the service what
// has become of the earlier request. The earlier request may even be on its way still, so the
// service gets the same Idempotency-Key again.
func (w *worker) call(ctx context.Context, a once.Attempt, s *service, order, verb string) error {
	if a.Interrupted {
		status, err := request(ctx, http.MethodGet, s.url+"/answers/"+a.Key, "")
		if err != nil {
			return err
		}
		w.asked(a.Key, status)
		if status != http.StatusNotFound {
			return outcome(status)
		}
	}
	w.reach("before " + s.name + " " + verb)
	status, err := request(ctx, http.MethodPost, s.url+"/orders/"+order+"/"+verb, a.Key)
	if err != nil {
		return err // it may have happened all the same: the service knows the key
	}
	w.reach("after " + s.name + " " + verb)
	return outcome(status)
}

func outcome(status int) error {
	switch status {
	case http.StatusNoContent:
		return nil
	case http.StatusConflict:
		return once.Permanent(errRefused)
	default:
		return fmt.Errorf("unexpected status %d", status)
	}
}

func request(ctx context.Context, method, url, key string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// reach plays a process that dies at a point: nothing of it reaches Redis any more, so it neither
// unlocks nor renews, and its locks end with their leases.
func (w *worker) reach(point string) {
	if point == w.diesAt {
		w.rdb.Close()
		runtime.Goexit()
	}
}
