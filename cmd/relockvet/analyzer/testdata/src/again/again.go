// Package again has sections that wait for themselves, or that are not used.
package again

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-relock/relock"
)

func work(context.Context) error { return nil }

func other() error { return nil }

type service struct {
	lock *relock.Lock
	ctx  context.Context
	db   *database
}

type database struct{}

func (*database) Query(context.Context, string) error { return nil }

func deferredInALoop(ctx context.Context, l *relock.Lock) error {
	for range 3 {
		section, err := l.Lock(ctx) // want `the Unlock of the round before is deferred to the end of the function, so this call waits for ever; unlock at the end of each round, or run the body with Do`
		if err != nil {
			return err
		}
		defer l.Unlock(section)
		if err := work(section); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) deferredFieldInALoop(ctx context.Context, orders []string) {
	for range orders {
		section, err := s.lock.Lock(ctx) // want `deferred to the end of the function`
		if err != nil {
			continue
		}
		defer func() { _ = s.lock.Unlock(section) }()
		_ = work(section)
	}
}

func twice(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	again, err := l.Lock(ctx) // want `the section of line 52 has the lock, and this call is outside of that section, so it waits for its own function; give it section`
	if err != nil {
		return err
	}
	defer l.Unlock(again)
	return errors.Join(work(section), work(again))
}

func twiceFromBackground(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	if err := work(section); err != nil {
		return err
	}
	return l.Do(context.Background(), work) // want `the section of line 66 has the lock`
}

func upgradeFromOutside(ctx context.Context, l *relock.RWLock) error {
	section, err := l.RLock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	if err := work(section); err != nil {
		return err
	}
	writing, err := l.Lock(ctx) // want `the section of line 78 has the lock`
	if err != nil {
		return err
	}
	return errors.Join(work(writing), l.Unlock(writing))
}

func insideDo(ctx context.Context, l *relock.Lock) error {
	return l.Do(ctx, func(section context.Context) error {
		if err := work(section); err != nil {
			return err
		}
		return l.Do(ctx, work) // want `the function of line 94 has this lock, and this call is outside of its section, so it waits for its own function; give it the context of the function`
	})
}

func onlyUnlocked(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	return work(ctx) // want `ctx is the context from before the section: it does not end if the lock is lost; write section, which nothing uses here`
}

func ofARequest(l *relock.Lock, d *database) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		_ = l.Do(r.Context(), func(context.Context) error {
			return d.Query(r.Context(), "UPDATE") // want `r.Context\(\) is the context from before the section`
		})
	}
}

func (s *service) ofAField(ctx context.Context) error {
	return s.lock.Do(ctx, func(context.Context) error {
		return s.db.Query(s.ctx, "UPDATE") // want `s.ctx is the context from before the section`
	})
}

func noError(ctx context.Context, l *relock.Lock) error {
	section, _ := l.Lock(ctx) // want `the error is dropped`
	defer l.Unlock(section)
	return work(section)
}

// Right.

func differentLocksInALoop(ctx context.Context, locks []*relock.Lock) error {
	var err error
	for _, l := range locks {
		if ctx, err = l.Lock(ctx); err != nil {
			return err
		}
		defer l.Unlock(ctx)
	}
	return work(ctx)
}

func lockOfEachRound(ctx context.Context, c *relock.Client, names []string) error {
	for _, name := range names {
		l := c.NewLock(name)
		section, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer l.Unlock(section)
		if err := work(section); err != nil {
			return err
		}
	}
	return nil
}

func lockOfAnIndex(ctx context.Context, locks []*relock.Lock) error {
	for i := range locks {
		section, err := locks[i].Lock(ctx)
		if err != nil {
			return err
		}
		defer locks[i].Unlock(section)
		if err := work(section); err != nil {
			return err
		}
	}
	return nil
}

func untilItIsIn(ctx context.Context, l *relock.Lock) error {
	for {
		section, err := l.Lock(ctx)
		if err != nil {
			continue
		}
		defer l.Unlock(section)
		return work(section)
	}
}

func oneAfterAnother(ctx context.Context, l *relock.Lock) error {
	first, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(work(first), l.Unlock(first)); err != nil {
		return err
	}
	second, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(work(second), l.Unlock(second))
}

func nestedRight(ctx context.Context, l *relock.Lock) error {
	outer, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(outer)
	inner, err := l.Lock(outer)
	if err != nil {
		return err
	}
	defer l.Unlock(inner)
	third, err := l.Lock(outer)
	if err != nil {
		return err
	}
	return errors.Join(work(third), l.Unlock(third))
}

func twoReaders(ctx context.Context, l *relock.RWLock) error {
	one, err := l.RLock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(one)
	two, err := l.RLock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(two)
	return errors.Join(work(one), work(two))
}

func refusedFromOutside(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	if _, err := l.TryLock(ctx); !errors.Is(err, relock.ErrLocked) {
		return err
	}
	return work(section)
}

func inAGoroutine(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	go func() { _ = l.Do(ctx, work) }() // waits its turn
	return work(section)
}

func fallback(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return work(ctx) // without the lock
	}
	defer l.Unlock(section)
	return other()
}

func afterwards(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(other(), l.Unlock(section)); err != nil {
		return err
	}
	return work(ctx)
}

func bothContexts(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	return errors.Join(work(section), work(ctx))
}

func asksHeld(ctx context.Context, l *relock.Lock) bool {
	section, _ := l.Lock(ctx)
	defer l.Unlock(section)
	return l.Held(section)
}

func otherLock(ctx context.Context, a, b *relock.Lock) error {
	section, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer a.Unlock(section)
	return errors.Join(work(section), b.Do(ctx, work))
}

func ownVariable(ctx context.Context, l *relock.Lock, d *database) error {
	return l.Do(ctx, func(context.Context) error {
		r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1", nil)
		if err != nil {
			return err
		}
		return d.Query(r.Context(), "SELECT")
	})
}

func changes(ctx context.Context, a, b *relock.Lock) error {
	l := a
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer a.Unlock(section)
	l = b
	second, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer b.Unlock(second)
	return errors.Join(work(section), work(second))
}
