package relock

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Locks is several locks that a caller enters together or not at all, made by [All] or
// [Client.NewLocks]. A Locks is a [Locker], and safe for concurrent use. Like a [Lock], a Locks has
// no state of its own: two Locks of the same locks are the same.
//
// Every Locks takes its locks in one order, the order of the bytes of their keys. So two calls of
// Locks cannot wait for each other in a circle, whatever the order of their arguments. The order
// does not help a caller that is inside a section of one lock and asks for other ones: take all
// locks in one call.
type Locks struct {
	locks []*Lock // by key, each key once
	err   error
}

var _ Locker = (*Locks)(nil)

// All returns the Locks of several locks: each a [*Lock], a [*RWLock] (its lock for writing;
// [RWLock.RLocker] is the one for reading) or a [*Locks] (all of its locks). A lock that is given
// several times counts once, and with the smallest limit: for writing if it is given for writing
// and for reading, and with the smallest number of permits. All does not talk to the store.
//
// Locks of several clients may be mixed if their names and keys differ. Then the order of keys must
// be the same in all processes: use the same prefixes.
//
// Every method with an error result returns an [ErrInvalid] if there is no lock, if one is nil or
// of another type, if one has an [ErrInvalid] itself, if two locks of one key are of two clients or
// kinds, or if two locks of one name are of two clients. [Locks.Err] returns the same error.
func All(locks ...Locker) *Locks {
	l := new(Locks)
	for _, lock := range locks {
		if l.err = l.add(lock); l.err != nil {
			return l
		}
	}
	if len(l.locks) == 0 {
		l.err = invalid("All: no lock is given; give one lock or more")
		return l
	}
	l.err = l.arrange()
	return l
}

// NewLocks is [All] of [Client.NewLock] of each name, with the same options.
func (c *Client) NewLocks(names []string, options ...Option) *Locks {
	locks := make([]Locker, len(names))
	for i, name := range names {
		locks[i] = c.NewLock(name, options...)
	}
	return All(locks...)
}

func (l *Locks) add(lock Locker) error {
	if isNil(lock) {
		return invalid("All: a lock is nil; each must be a *Lock, *RWLock or *Locks")
	}
	switch lock := lock.(type) {
	case *Lock:
		l.locks = append(l.locks, lock)
		return lock.Err()
	case *RWLock:
		return l.add(lock.forWriting)
	case *Locks:
		l.locks = append(l.locks, lock.locks...)
		return lock.Err()
	default:
		return invalid("All: a lock is a %T; each must be a *Lock, *RWLock or *Locks", lock)
	}
}

// arrange sorts the locks, and drops duplicates.
func (l *Locks) arrange() error {
	slices.SortStableFunc(l.locks, func(a, b *Lock) int { return strings.Compare(a.claim.Name, b.claim.Name) })
	names := make(map[string]bool, len(l.locks))
	kept := l.locks[:0]
	for _, lock := range l.locks {
		var last *Lock
		if len(kept) > 0 && kept[len(kept)-1].claim.Name == lock.claim.Name {
			last = kept[len(kept)-1]
		}
		switch {
		case last == nil && names[lock.name], last != nil && last.client != lock.client:
			return invalid("All: two clients have a lock %q; take the lock of one of them", lock.name)
		case last == nil:
			kept, names[lock.name] = append(kept, lock), true
		case last.claim.Kind != lock.claim.Kind:
			return invalid("All: %q is %s and %s; a name is one kind of lock", lock.name, last.claim.Kind, lock.claim.Kind)
		case lock.claim.Limit < last.claim.Limit:
			kept[len(kept)-1] = lock
		}
	}
	l.locks = kept
	return nil
}

// Names returns the names of the locks, in the order in which they are taken.
func (l *Locks) Names() []string {
	if l.Err() != nil {
		return nil
	}
	names := make([]string, len(l.locks))
	for i, lock := range l.locks {
		names[i] = lock.name
	}
	return names
}

// Err returns an [ErrInvalid] if the locks cannot be entered together, see [All], and nil
// otherwise. Every other method with an error result returns the same error.
func (l *Locks) Err() error {
	if l == nil || len(l.locks) == 0 && l.err == nil {
		return errZeroLocks
	}
	return l.err
}

func (l *Locks) check(ctx context.Context) error {
	if err := l.Err(); err != nil || ctx != nil {
		return err
	}
	return errNilContext
}

// Lock waits until the caller has all locks, and enters them. Free mutexes of one client are
// taken in one step and one round trip, if the store can: memory can, and Redis if the keys are in
// one slot of a cluster. Otherwise Lock waits for one lock after the other, in each
// queue, and keeps the locks that it has. A call with ctx inside a section of some of the locks
// enters these one level deeper.
//
// The context that Lock returns is for the work and for Unlock. The context ends when any of the
// locks is lost, and otherwise as for [Lock.Lock].
//
// On error the context returned has ended, as that of [Lock.Lock], and the caller has entered none
// of the locks. Those that were taken are given back: Lock waits for that for at most 50 ms, and
// cleanup does the rest in the background. The errors are the errors of [Lock.Lock] for one of the
// locks.
func (l *Locks) Lock(ctx context.Context) (context.Context, error) {
	return l.acquire(ctx, forever)
}

// TryLock enters all locks if all are free, or ctx is inside of them already. Otherwise TryLock
// returns at once a [*LockedError] with the name of a taken lock, and changes nothing. Locks that
// cannot be taken in one step, see [Locks.Lock], are taken one after the other and given back: for
// that time others see them taken. All else is as for [Lock.TryLock].
func (l *Locks) TryLock(ctx context.Context) (context.Context, error) {
	return l.acquire(ctx, 0)
}

// TryLockFor is [Locks.Lock] with a limit for the whole wait, as [Lock.TryLockFor]. A wait of 0 is
// TryLock; a wait below 0 is [ErrInvalid].
func (l *Locks) TryLockFor(ctx context.Context, wait time.Duration) (context.Context, error) {
	if err := checkWait("TryLockFor", wait); err != nil {
		return refused(ctx, err), err
	}
	return l.acquire(ctx, wait)
}

// Do is [Do] with these locks.
func (l *Locks) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return Do(ctx, l, fn)
}

// DoFor is [Locks.Do] that waits for the locks as [Locks.TryLockFor] does. The wait is no limit to
// fn.
func (l *Locks) DoFor(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return doFor(ctx, wait, l, l.TryLockFor, fn)
}

// Unlock leaves the entries of the nearest section of these very locks around ctx, all at once:
// their contexts end before the first lock is free. Sections of some of the locks inside or around
// that section keep their entries. All else is as for [Lock.Unlock].
//
// Errors: [ErrNotHeld] if ctx is inside no such section, or the section was left before;
// [ErrInvalid]. Otherwise the section is left, and the error joins the errors of [Lock.Unlock] of
// all locks, such as an [ErrLockLost] of one of them.
func (l *Locks) Unlock(ctx context.Context) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	j := l.nearest(ctx)
	if j == nil || !j.left.CompareAndSwap(false, true) {
		return &OpError{Op: "unlock", Name: strings.Join(l.Names(), ", "), Err: ErrNotHeld}
	}
	return j.leave(ctx, j.close())
}

// Tokens returns the fencing token of each lock, by its name in [Locks.Names], see [Lock.Token].
// section is inside of all locks. Errors: the joined errors of [Lock.Token]; the map is nil then.
func (l *Locks) Tokens(section context.Context) (map[string]int64, error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	if section == nil {
		return nil, errNilContext
	}
	section = &lifetime.Guarded{Context: section}
	drawn := make([]int64, len(l.locks))
	errs := l.locks[0].client.sideBySide(len(l.locks), func(i int) (err error) {
		drawn[i], err = l.locks[i].Token(section)
		return err
	})
	if err := join(errs...); err != nil {
		return nil, err
	}
	tokens := make(map[string]int64, len(drawn))
	for i, token := range drawn {
		tokens[l.locks[i].name] = token
	}
	return tokens, nil
}

// sideBySide runs n calls at the same time, one of them in the goroutine of the caller.
func (c *Client) sideBySide(n int, call func(i int) error) []error {
	c.group.Add() // Close waits for all of them
	defer c.group.Leave()
	return attempts.Each(n, n, call)
}

// joint is the context around one section of a Locks: the parent of its first entry. Each further
// entry is inside of the one before, so the innermost section ends with each of them.
type joint struct {
	context.Context // the caller's
	locks           *Locks

	entries []*entry    // one for each lock, in the same order
	left    atomic.Bool // by Unlock
	cleanup runtime.Cleanup
}

// nearest returns the innermost joint of these locks around ctx, left or not; nil: none.
func (l *Locks) nearest(ctx context.Context) *joint {
	same := func(a, b *Lock) bool {
		return a.client == b.client && a.claim.Name == b.claim.Name && a.claim.Kind == b.claim.Kind
	}
	for e := entryOf(ctx); e != nil; e = e.outer {
		if j, is := e.parent.Context.(*joint); is && slices.EqualFunc(j.locks.locks, l.locks, same) {
			return j
		}
	}
	return nil
}

func (l *Locks) acquire(ctx context.Context, wait time.Duration) (context.Context, error) {
	if err := l.check(ctx); err != nil {
		return refused(ctx, err), err
	}
	if g := &l.locks[0].client.group; g.Enter() { // Close waits for giveUp, too
		defer g.Leave()
	}
	j, begun := &joint{Context: ctx, locks: l}, time.Now()
	returned := false
	defer func() {
		if !returned { // as in aborted
			j.giveUp()
		}
	}()
	inner, done, err := j.atOnce(wait)
	if !done {
		inner, err = j.oneByOne(wait, begun)
	}
	returned = true
	if err != nil {
		j.giveUp()
		runtime.KeepAlive(inner) // an entry that is not left yet would be a leak
		return refused(ctx, err), err
	}
	j.endTogether()
	j.cleanup = runtime.AddCleanup(inner.(*section), (*joint).leaked, j)
	return inner, nil
}

// endTogether ends the innermost section with each section around it, also where a reader outlives
// the writer around it, see entry.outlive.
func (j *joint) endTogether() {
	if !slices.ContainsFunc(j.entries, func(e *entry) bool { return e.hold.isReader() }) {
		return
	}
	last := j.entries[len(j.entries)-1]
	for _, e := range j.entries[:len(j.entries)-1] {
		stop := context.AfterFunc(e.ctx, func() { last.cancel(context.Cause(e.ctx)) })
		context.AfterFunc(last.ctx, func() { stop() })
	}
}

// oneByOne takes one lock after the other. With an error, the entries so far are entered.
func (j *joint) oneByOne(wait time.Duration, begun time.Time) (context.Context, error) {
	var inner context.Context = j
	for _, lock := range j.locks.locks {
		left := wait
		if wait > 0 {
			left = max(wait-time.Since(begun), 1) // 0 would be TryLock, with several attempts
		}
		a := acquiring{lock: lock, ctx: inner, caller: j.Context, wait: left}
		next, err := a.run()
		if err != nil {
			return inner, err
		}
		inner = next
		j.entries = append(j.entries, entryOf(inner))
	}
	return inner, nil
}

// atOnce takes all locks in one step. Without done, nothing was entered, and the locks are to be
// taken one by one: the store cannot take them in one step, or some lock is taken and the caller
// waits, or a client keeps the lock.
func (j *joint) atOnce(wait time.Duration) (inner context.Context, done bool, err error) {
	several, c := j.several(), j.locks.locks[0].client
	if several == nil || !c.group.Enter() {
		return nil, false, nil
	}
	defer c.group.Leave()
	calls, holds, claims := j.newHolds(wait)
	if calls == nil {
		return nil, false, nil
	}
	returned := false
	defer func() {
		if !returned { // as in aborted
			abandonAll(calls)
		}
	}()
	ctx, end := c.boundClaim(j.Context, j.Context, wait, store.Acks{})
	defer end.Stop()
	start := time.Now()
	leases, err := several.TryAll(ctx, claims)
	if err == nil {
		inner, err = j.begin(ctx, start, calls, holds, leases)
		returned = true
		return inner, true, err
	}
	returned = true
	if errors.Is(err, store.ErrUnsure) {
		abandonAll(calls)
	}
	if errors.Is(err, errors.ErrUnsupported) || headIn(err) != "" || wait != 0 && ctx.Err() == nil {
		return nil, false, nil
	}
	return nil, true, refuseAll(ctx, start, calls, err)
}

// abandonAll takes back the holds of all calls that have not entered.
func abandonAll(calls []*acquiring) {
	for _, a := range calls {
		if a.section == nil {
			a.abandon(true)
		}
	}
}

// several returns the store that may take all locks in one step; nil: none.
func (j *joint) several() store.Several {
	c := j.locks.locks[0].client
	for _, lock := range j.locks.locks {
		if lock.client != c || lock.claim.Kind != store.Mutex || lock.settings.keep > 0 {
			return nil
		}
	}
	several, is := c.store.(store.Several)
	if !is || c.races {
		return nil
	}
	return several
}

// newHolds makes a hold for each lock, all of one holder. newHolds returns nothing if a section of
// some lock is around, or the context has ended.
func (j *joint) newHolds(wait time.Duration) (calls []*acquiring, holds []*hold, claims []store.Claim) {
	var holder Holder
	for _, lock := range j.locks.locks {
		a := &acquiring{lock: lock, ctx: j, wait: wait, event: event.AcquireFinished{Holder: holder}}
		if around, err := a.surroundings(); around != nil || err != nil {
			return nil, nil, nil
		}
		h := a.newHold()
		holder = h.holder
		calls, holds, claims = append(calls, a), append(holds, h), append(claims, h.lease.Claim)
	}
	return calls, holds, claims
}

// begin enters the holds that the store has let in. After an error, the rest is cleaned up, and the
// entries so far are entered.
func (j *joint) begin(ctx context.Context, start time.Time, calls []*acquiring, holds []*hold,
	leases []store.Lease) (inner context.Context, err error) {
	inner = j
	for i, a := range calls {
		if err != nil {
			a.abandon(true)
			continue
		}
		a.ctx = inner
		a.started(start)
		limited, end := a.limitQueue(ctx)
		err = a.enter(limited, holds[i], leases[i], nil)
		end()
		if err == nil {
			inner = a.section
			j.entries = append(j.entries, a.section.entry)
		}
		a.finished(err)
	}
	return inner, err
}

// refuseAll reports that no lock was taken, for the lock that the store names, or the first one.
func refuseAll(ctx context.Context, start time.Time, calls []*acquiring, err error) error {
	a := calls[0]
	var busy *store.Busy
	if errors.As(err, &busy) {
		named := func(a *acquiring) bool { return a.lock.claim.Name == busy.Name }
		a = calls[max(slices.IndexFunc(calls, named), 0)]
	}
	a.refusedBy(err)
	err = a.failed(ctx, a.unanswered(ctx, err))
	a.started(start)
	a.finished(err)
	return err
}

// giveBack bounds the wait of a failed call for the release of its locks, which goes on anyway.
const giveBack = 50 * time.Millisecond

// giveUp leaves the entries of a failed call.
func (j *joint) giveUp() {
	if len(j.entries) == 0 {
		return
	}
	errs, done := j.close(), make(chan struct{})
	j.locks.locks[0].client.group.Go(func() {
		defer close(done)
		_ = j.leave(j.Context, errs) // cleanup has what the store does not confirm
	})
	lifetime.Sleep(done, giveBack)
}

// close ends the sections, innermost first. The result has an error for each entry left before.
func (j *joint) close() []error {
	j.cleanup.Stop()
	errs := make([]error, len(j.entries))
	for i, e := range slices.Backward(j.entries) {
		if !e.close() {
			errs[i] = ErrNotHeld
		}
	}
	return errs
}

// leave leaves closed entries, in one step if the store can. errs has the errors of close.
func (j *joint) leave(ctx context.Context, errs []error) error {
	exits := make([]exit, len(errs))
	for i, e := range j.entries {
		if errs[i] == nil {
			exits[i], errs[i] = e.hold.exit(e)
		}
	}
	if several := j.several(); several != nil {
		j.freeAll(ctx, several, exits, errs)
	}
	var calls []int
	for i := range j.entries {
		if exits[i] != exitHere {
			calls = append(calls, i)
		}
	}
	left := j.locks.locks[0].client.sideBySide(len(calls), func(n int) error {
		return j.entries[calls[n]].hold.leave(ctx, exits[calls[n]])
	})
	for n, i := range calls {
		errs[i] = left[n]
	}
	for i, e := range j.entries {
		errs[i] = j.locks.locks[i].unlocked(e, errs[i])
	}
	return join(errs...)
}

// freeAll frees the locks of last exits in one step, if the store can do that.
func (j *joint) freeAll(ctx context.Context, several store.Several, exits []exit, errs []error) {
	var leases []store.Lease
	var places []int
	var limit time.Time
	for i, e := range j.entries {
		if exits[i] == exitLast {
			lease := e.hold.lease // nothing changes the lease any more
			leases, places = append(leases, lease), append(places, i)
			if by := unlockBy(time.Now(), lease); by.After(limit) {
				limit = by
			}
		}
	}
	if len(leases) < 2 {
		return
	}
	limited := lifetime.Until(ctx, limit)
	defer limited.Stop()
	answers := slices.Repeat([]error{errAborted}, len(leases))
	defer func() {
		for n, err := range answers {
			if i := places[n]; !errors.Is(err, errors.ErrUnsupported) {
				exits[i], errs[i] = exitHere, j.entries[i].hold.freed(err)
			}
		}
	}()
	answers = several.ReleaseAll(limited, leases)
}

// leaked notes that nobody can unlock the section any more. Each outer section is a parent of the
// next one: without leaked, each round of the garbage collector would find one of them.
func (j *joint) leaked() {
	for _, e := range j.entries {
		e.leaked()
	}
}
