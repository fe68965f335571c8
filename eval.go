package relock

import (
	"context"
	"errors"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Eval runs a Lua script of the caller in Redis, and returns its reply, if the section around ctx
// has the lock at that moment. The look at the lock and the script are one step, so no late holder
// writes: Eval is the fence for data that is kept beside the lock.
//
// In the script KEYS and ARGV are keys and args, as in a script of EVAL without a shebang line. All
// keys must be in the slot of the lock, also without a cluster: keys with the hash tag of the
// lock's name, "{orders}:total" for the lock "orders". Args are strings, numbers, booleans or
// bytes.
//
// The script runs at most once: Eval does not repeat it after a lost answer. Eval waits for the
// answer also if ctx ends meanwhile, for at most 10 s and not beyond the lease. Errors:
//   - [ErrLockLost]: the lock was lost, and the script has not run.
//   - [ErrUnsure], together with the reason: the script may have run, or may run yet, while the
//     section has the lock.
//   - [ErrNotHeld]: ctx is inside no section of this lock; the script has not run.
//   - [ErrInvalid]: a wrong key or argument; a lock for reading, as a reader must not write; a
//     store without scripts, such as a store in memory or a quorum ([errors.ErrUnsupported]).
//   - ctx's error, if ctx was done before: the script has not run.
//   - [ErrClosed], [ErrUnavailable]: without ErrUnsure the script has not run.
//   - the error of the script. What the script has written before its error stays, as always in
//     Redis.
//
// The section goes on after all errors but ErrLockLost.
func (l *Lock) Eval(ctx context.Context, script string, keys []string, args ...any) (any, error) {
	e, err := l.inside("eval", ctx)
	if err != nil {
		return nil, err
	}
	h, t := e.hold, &l.client.table
	t.mu.Lock()
	lease := h.lease
	t.mu.Unlock()
	s, run, err := l.withScript(lease.Claim, script, keys, args)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, l.opError("eval", h.holder, lifetime.Ended(ctx))
	}
	reply, err := h.eval(ctx, s, run)
	if err == nil {
		return reply, nil
	}
	if errors.Is(err, store.ErrGone) {
		_ = h.endOf(true) // and inside says what has become of the section
		if _, over := l.inside("eval", ctx); over != nil {
			return nil, over
		}
	}
	return nil, l.opError("eval", h.holder, err)
}

// eval runs a script. A script that may run yet finds the ID of the hold, so the next hold must not
// get that ID, see mayPassLocked.
func (h *hold) eval(ctx context.Context, s store.Scripts, run store.Script) (any, error) {
	t := &h.client.table
	t.mu.Lock()
	lease, isHeld := h.lease, h.state == held
	h.passing.scripts++
	t.mu.Unlock()
	if !isHeld { // since Eval has looked
		return nil, store.ErrGone
	}
	bound := lifetime.Until(ctx, unlockBy(time.Now(), lease))
	defer bound.Stop()
	reply, err := s.Eval(bound, lease, run)
	if !errors.Is(err, store.ErrUnsure) {
		t.mu.Lock()
		h.passing.scripts--
		t.mu.Unlock()
	}
	return reply, err
}

// RunScript runs a Lua script of the caller in Redis while nobody else has the lock, and returns
// its reply. RunScript waits its turn as [Lock.Lock] does, and its errors are those of Lock and of
// [Lock.Eval]; ctx may be inside a section of this lock. A mutex that is free, and for which nobody
// waits, costs one round trip, as the script looks at the lock in its own step. Otherwise RunScript
// is Lock, Eval and Unlock.
//
// The script and its keys are as for Eval. It runs at most once: without [ErrUnsure] an error of
// RunScript says that the script has not run, or is the error of the script. RunScript waits for
// the answer to a script that it has sent, for at most 10 s and not beyond the TTL, also if ctx
// ends meanwhile. The hooks know nothing of a script that did not have to wait.
func (l *Lock) RunScript(ctx context.Context, script string, keys []string, args ...any) (any, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	s, run, err := l.withScript(l.claim, script, keys, args)
	if err != nil {
		return nil, err
	}
	if l.nearest(ctx) == nil {
		reply, err := l.runFree(ctx, s, run)
		if err == nil {
			return reply, nil
		}
		var busy *store.Busy
		waits := errors.As(err, &busy) || errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnsure)
		if !waits {
			return nil, l.opError("run a script of", "", err)
		}
	}
	section, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Unlock(section) }() // the script has its answer, and cleanup has what is not confirmed
	return l.Eval(section, script, keys, args...)
}

// runFree runs a script if the lock is free.
func (l *Lock) runFree(ctx context.Context, s store.Scripts, run store.Script) (any, error) {
	stopped, cancel := stoppable(ctx, ctx)
	if cancel != nil {
		defer cancel()
	}
	switch {
	case l.client.isClosed():
		return nil, ErrClosed
	case ctx.Err() != nil:
		return nil, lifetime.Ended(ctx)
	case stopped.Err() != nil:
		return nil, context.Cause(stopped)
	}
	bound := lifetime.Until(ctx, time.Now().Add(min(unlockLimit, l.claim.TTL)))
	defer bound.Stop()
	return s.EvalFree(bound, l.claim, run)
}

// TryLockIf is [Lock.TryLock] with a script that decides in the same step whether the caller gets
// the lock: one round trip to look at data beside the lock, to take the lock, and to note that the
// work begins. The script and its keys are as for [Lock.Eval], and it returns two values: whether
// to keep the lock, and a reply. In the script the variable locked says whether the caller has just
// got the lock. The script runs also while another hold has the lock: then locked is false, the
// script must not write what only a holder may write, and TryLockIf returns a [*LockedError] if the
// script would keep the lock. If the script returns false, the caller does not get the lock, and
// TryLockIf returns a [*DeclinedError] with the reply. "return true, redis.call('GET', KEYS[1])"
// keeps the lock.
//
// After a lost answer, and where another client may keep the lock, see [WithKeep], the script runs
// again for the same call: it must do no harm twice. An error of the script is returned, and leaves
// no lock.
//
// TryLockIf is for a mutex. Inside a section of the same lock it is [ErrInvalid]. All else is as
// for TryLock.
func (l *Lock) TryLockIf(ctx context.Context, script string, keys []string, args ...any) (section context.Context, reply any, err error) {
	if err := l.Err(); err != nil {
		return refused(ctx, err), nil, err
	}
	s, run, err := l.withScript(l.claim, script, keys, args)
	if err != nil {
		return refused(ctx, err), nil, err
	}
	a := acquiring{lock: l, ctx: ctx}
	a.userScript = func(ctx context.Context, claim store.Claim) (lease store.Lease, err error) {
		lease, reply, err = s.TryEval(ctx, claim, run)
		return lease, err
	}
	section, err = a.run()
	return section, reply, err
}

// withScript makes a script that the store can run beside the lock of a claim.
func (l *Lock) withScript(a store.Claim, source string, keys []string, args []any) (store.Scripts, store.Script, error) {
	run := store.Script{Source: source, Keys: keys, Args: args}
	s, is := l.client.store.(store.Scripts)
	if !is {
		return nil, run, invalid("a script for %q: %w: the store runs no scripts", l.name, errors.ErrUnsupported)
	}
	if err := s.CheckScript(a, run); err != nil {
		return nil, run, asInvalid(err)
	}
	return s, run, nil
}
