// Package probe takes holds through their lives, to find out what a server lacks.
package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// count is the number of entries that the renewal of the first hold sets.
const count = 2

// Live takes two holds of a mutex with a new name through their lives: the first one takes the
// lock, is renewed and released, and the second one waits, is granted the lock, is broken and
// forgotten. Live reads what each step has done: the first hold keeps the second one out, also
// behind its renewal, and nobody is left at the end. A server that does not serve now is an error
// at once. The error names the first step that fails, and the lock by its name in the server.
func Live(ctx context.Context, s store.Store, a store.Claim, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	step := func(step string, err error) error {
		if err != nil {
			return fmt.Errorf("%s %s: %w", step, name, err)
		}
		return nil
	}
	first, second := a, a
	first.ID, second.ID = store.ID("check:1:"+rand.Text()), store.ID("check:2:"+rand.Text())
	l, err := s.Try(ctx, first)
	if err != nil {
		return step("take the lock", err)
	}
	queued, over := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		defer close(over)
		over <- attempts.Apart(func() error {
			_, err := s.Wait(ctx, second, func(store.Progress) {
				select {
				case queued <- struct{}{}:
				default:
				}
			})
			if err = step("wait for the lock", err); err == nil {
				err = step("break a hold of", s.Break(ctx, second))
			}
			if err == nil {
				err = step("forget a hold of", s.Forget(ctx, []store.Claim{second})[0])
			}
			return err
		})
	}()
	var waited, renewed error
	select {
	case <-queued:
		renewed = step("renew a hold of", s.Renew(ctx, []store.Renewal{{Lease: l, TTL: l.TTL, Count: count}})[0])
		if renewed == nil {
			renewed = step("read the lock", Shows(ctx, s, a, first.ID, count))
		}
	case waited = <-over:
		if waited == nil {
			waited = step("wait for the lock", ErrBeside)
		}
	}
	released := step("release the lock", s.Release(ctx, l))
	if released != nil {
		cancel() // nobody grants the lock
	}
	granted := <-over
	for _, err := range []error{waited, renewed, released, granted} {
		if err != nil {
			return err
		}
	}
	return step("read the lock", Shows(ctx, s, a, "", 0))
}

// Steps that succeed, and should not have, or have done nothing.
var (
	ErrBeside   = errors.New("a second hold is in beside the first one")
	ErrNoEffect = errors.New("the last step had no effect")
)

// Shows looks whether a lock has one hold with a count of entries, and no other; or no hold, if the
// ID is empty. Errors: [ErrBeside], [ErrNoEffect], and those of the store.
func Shows(ctx context.Context, s store.Store, a store.Claim, owner store.ID, count int) error {
	state, err := s.Look(ctx, a)
	switch {
	case err != nil:
		return err
	case owner != "" && state.Owner != "" && state.Owner != owner, len(state.Others) > 0:
		return ErrBeside
	case state.Owner != owner:
		return fmt.Errorf("%w: the holder is %q, and not %q", ErrNoEffect, state.Owner, owner)
	case state.Count != count:
		return fmt.Errorf("%w: the count is %d, and not %d", ErrNoEffect, state.Count, count)
	}
	return nil
}
