// Package idioms has correct code as services write it. Nothing in it is reported.
package idioms

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/ticket"
)

func run(context.Context) error { return nil }

func rounds(ctx context.Context, l *relock.Lock, tick *time.Ticker) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			section, err := l.TryLock(ctx)
			if err != nil {
				log.Print(err)
				continue
			}
			_ = run(section)
			if err := l.Unlock(section); err != nil {
				log.Print(err)
			}
		}
	}
}

func selects(ctx context.Context, l *relock.Lock, c chan int) error {
	section, err := l.TryLock(ctx)
	if errors.Is(err, relock.ErrLocked) {
		return nil
	} else if err != nil {
		return err
	}
	select {
	case <-section.Done():
		return l.Unlock(section)
	case <-c:
		_ = run(section)
	}
	return l.Unlock(section)
}

func inSwitch(ctx context.Context, l *relock.Lock) error {
	switch section, err := l.TryLock(ctx); {
	case err == nil:
		defer l.Unlock(section)
		return run(section)
	case errors.Is(err, relock.ErrLocked):
		return nil
	default:
		return err
	}
}

func taggedSwitch(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx)
	switch err {
	case nil:
	default:
		return err
	}
	return l.Unlock(section)
}

func errorTypes(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx)
	var locked *relock.LockedError
	if errors.As(err, &locked) {
		return nil
	}
	if err, ok := errors.AsType[*relock.LockedError](err); ok {
		return err
	}
	if err != nil {
		return err
	}
	unlock := sync.OnceFunc(func() { _ = l.Unlock(section) })
	defer unlock()
	return run(section)
}

func handler(l *relock.Lock, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		section, err := l.TryLockFor(r.Context(), time.Second)
		if err != nil {
			http.Error(w, err.Error(), 409)
			return
		}
		defer func() {
			if err := l.Unlock(section); err != nil {
				log.Print(err)
			}
		}()
		next.ServeHTTP(w, r.WithContext(section))
	})
}

func transaction(ctx context.Context, l *relock.Lock, db *sql.DB) (err error) {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Unlock(section)) }()
	tx, err := db.BeginTx(section, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return tx.Commit()
}

type elector struct {
	lock *relock.Lock
	mu   sync.Mutex
	stop func()
}

func (e *elector) start(ctx context.Context) error {
	section, err := e.lock.Lock(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stop = func() { _ = e.lock.Unlock(section) }
	return nil
}

func retry(ctx context.Context, l *relock.Lock) (err error) {
	var section context.Context
	for i := 0; i < 3; i++ {
		section, err = l.TryLock(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, relock.ErrLocked) {
			return err
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		return err
	}
	err = run(section)
	if uerr := l.Unlock(section); err == nil {
		err = uerr
	}
	return err
}

func jumps(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if err = run(section); err != nil {
		goto out
	}
	err = run(section)
out:
	_ = l.Unlock(section)
	return err
}

func anyLock[L relock.Locker](ctx context.Context, l L) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	return run(section)
}

func upgrade(ctx context.Context, rw *relock.RWLock) error {
	read, err := rw.RLock(ctx)
	if err != nil {
		return err
	}
	defer rw.Unlock(read)
	write, err := rw.Lock(read)
	if err != nil {
		return err
	}
	err = run(write)
	if e := rw.Unlock(write); e != nil {
		return e
	}
	return run(read)
}

func async(ctx context.Context, l *relock.Lock) <-chan error {
	done := make(chan error, 1)
	section, err := l.Lock(ctx)
	if err != nil {
		done <- err
		return done
	}
	go func() {
		err := run(section)
		done <- errors.Join(err, l.Unlock(section))
	}()
	return done
}

func afterFunc(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	time.AfterFunc(time.Second, func() { _ = l.Unlock(section) })
	return nil
}

func twoLocks(ctx context.Context, a, b *relock.Lock) (err error) {
	sa, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	sb, err := b.Lock(sa)
	if err != nil {
		return errors.Join(err, a.Unlock(sa))
	}
	err = run(sb)
	err = errors.Join(err, b.Unlock(sb))
	return errors.Join(err, a.Unlock(sa))
}

func (e *elector) inMap(ctx context.Context, locks map[string]*relock.Lock) error {
	held := map[string]context.Context{}
	defer func() {
		for name, s := range held {
			_ = locks[name].Unlock(s)
		}
	}()
	for name, l := range locks {
		section, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		held[name] = section
	}
	return nil
}

func undoList(ctx context.Context, locks []*relock.Lock) error {
	var undo []func() error
	defer func() {
		for _, u := range undo {
			_ = u()
		}
	}()
	for _, l := range locks {
		section, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		undo = append(undo, func() error { return l.Unlock(section) })
		ctx = section
	}
	return run(ctx)
}

func oneInAnother(ctx context.Context, locks []*relock.Lock) error {
	for _, l := range locks {
		inner, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer l.Unlock(inner)
		ctx = inner
	}
	return run(ctx)
}

// handsOff goes on in its section if the hand-off fails.
func handsOff(ctx context.Context, l *relock.Lock, t ticket.Ticket) (ticket.Ticket, error) {
	section, err := ticket.Accept(ctx, l, t)
	if err != nil {
		return ticket.Ticket{}, err
	}
	next, err := ticket.HandOff(section, l)
	if err != nil {
		return ticket.Ticket{}, errors.Join(err, run(section), l.Unlock(section))
	}
	return next, nil
}

func lends(ctx context.Context, l *relock.Lock) (ticket.Ticket, error) {
	section, err := l.Lock(ctx)
	if err != nil {
		return ticket.Ticket{}, err
	}
	defer l.Unlock(section)
	return ticket.Lend(section, l)
}
