package relock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/inside"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/store"
)

// Locker is the part of [Lock] that most services need. Depend on Locker to fake a lock in tests.
type Locker interface {
	Lock(ctx context.Context) (context.Context, error)
	TryLock(ctx context.Context) (context.Context, error)
	Unlock(ctx context.Context) error
}

var _ Locker = (*Lock)(nil)

// Lock is a named lock, made by [Client.NewLock] or [Client.NewSemaphore], or a part of a [RWLock].
// A Lock has no state of its own: the state of its holds is in the store, in the Client, and in the
// contexts that its methods return. A Lock is safe for concurrent use.
//
// Most programs need only the first of these lines:
//
//	Do, DoFor; Lock, TryLock, TryLockFor, Unlock    a section
//	Token, Held, Remaining, Count, Extend, Wanted   in a section
//	State, Ask, ForceUnlock                         from outside, for operators
//	Eval, RunScript, TryLockIf                      scripts in Redis
type Lock struct {
	client   *Client
	name     string
	claim    store.Claim // the claim of each hold, without the ID
	settings *settings
	err      error // name or options are wrong
}

// Name returns the name that was given to NewLock.
func (l *Lock) Name() string { return l.name }

// Key returns the name of the lock in the spelling of its store: in Redis, its key. In relock's own
// layout a key that begins with Key is in the slot of the lock, and so may be used with
// [Lock.Eval]. Key is empty if the name or the options are wrong.
func (l *Lock) Key() string {
	if l.Err() != nil {
		return ""
	}
	return l.claim.Name
}

// Err returns an [ErrInvalid] if the name or the options are wrong, and nil otherwise. Every other
// method of such a lock with an error result returns the same error. The zero Lock is such a lock,
// too.
func (l *Lock) Err() error {
	if l == nil || l.client == nil && l.err == nil {
		return errZeroLock
	}
	return l.err
}

func (l *Lock) check(ctx context.Context) error {
	if err := l.Err(); err != nil || ctx != nil {
		return err
	}
	return errNilContext
}

// Lock waits until the caller has the lock, and enters it. Waiters are served first come, first
// served, across processes (with [WithRedissonLayout] in no promised order).
//
// If ctx is inside an open section of this very lock (a context of Lock, a child of such a context,
// or a context of [WithSection]), the call enters again, one level deeper. All other calls exclude
// each other, also calls inside of the same section of another lock.
//
// The context that Lock returns is for the work in the section and for Unlock. The context ends
// when ctx ends, when the entry is unlocked ([context.Cause] is [ErrReleased]), when the lock is
// lost ([ErrLockLost]) and when the client is closed ([ErrClosed]). When ctx is done the lease is
// not renewed any more, so a section without Unlock ends at most one TTL later.
//
// On error the caller has not entered, and the context returned has ended already, with the error
// as its cause, and is inside of no section: work that ignores the error does not run without the
// lock. Work that goes on without the lock uses ctx. The errors:
//   - [ErrLocked] together with ctx's error: ctx was done while another hold had the lock.
//   - ctx's error alone, with its cause: ctx was done before the store named the holder. Lock
//     returns promptly also when the store is silent; cleanup takes back all remains of the call in
//     the background. After the deadline of ctx the error then matches [ErrUnavailable], too, as it
//     does when ctx was cancelled after a second or more.
//   - [ErrLockLost]: ctx is inside a lost section of this lock.
//   - [ErrReleased]: ctx is inside a section of this lock, and the section was unlocked during the
//     call.
//   - [ErrNotReplicated]: see [WithReplicaAcks].
//   - [ErrKind]: the name is in use for another kind of lock.
//   - [ErrDeadlock]: the call waited in a circle of calls ([*DeadlockError]), or is a second
//     upgrade of a [RWLock].
//   - [ErrQueueFull]: see [WithMaxWaiters]. The error of a stop: see [WithStop].
//   - [ErrClosed], [ErrInvalid].
//   - an error of the store that a retry would not change, such as NOAUTH or WRONGTYPE. While the
//     store cannot be reached, is loading or fails over, Lock goes on trying until ctx is done.
func (l *Lock) Lock(ctx context.Context) (context.Context, error) {
	return (&acquiring{lock: l, ctx: ctx, wait: forever}).run()
}

// TryLock enters the lock if the lock is free, or if ctx is inside the lock already; otherwise
// TryLock returns a [*LockedError] at once. TryLock does not queue, and does not overtake queued
// waiters: a free lock goes to the queue first. A waiter that has just given up counts as queued
// for as long as a message takes. (With [WithRedissonLayout] a free lock goes to the first caller
// to ask. If another client keeps the lock, see [WithKeep], TryLock asks for the lock, and tries
// again 10 ms later.) All else is as for [Lock.Lock].
//
// A store that gives no answer is [ErrUnavailable] after 2 s (2.1 at most), and the time of
// [WithReplicaAcks] and [WithAOFAcks]. With Redis each of three attempts takes at most a third of
// the TTL: with a short TTL a slow server is ErrUnavailable sooner.
func (l *Lock) TryLock(ctx context.Context) (context.Context, error) {
	return (&acquiring{lock: l, ctx: ctx}).run()
}

// TryLockFor is [Lock.Lock] with a time limit: TryLockFor gives up with a [*LockedError] after
// wait. The limit is no deadline of the returned context. If the store has not named the holder by
// the end of wait, the error matches [context.DeadlineExceeded] and [ErrUnavailable] instead. A
// wait of 0 is TryLock; a wait below 0 is [ErrInvalid].
func (l *Lock) TryLockFor(ctx context.Context, wait time.Duration) (context.Context, error) {
	if err := checkWait("TryLockFor", wait); err != nil {
		return refused(ctx, err), err
	}
	return (&acquiring{lock: l, ctx: ctx, wait: wait}).run()
}

func checkWait(verb string, wait time.Duration) error {
	if wait < 0 {
		return invalid("%s(%s): the wait must be 0 (do not wait) or longer; Lock and Do wait without limit", verb, wait)
	}
	return nil
}

const forever time.Duration = -1

// run enters the section of this very lock around the context again, or a new hold.
func (a *acquiring) run() (context.Context, error) {
	l, ctx := a.lock, a.ctx
	if err := l.check(ctx); err != nil {
		return refused(ctx, err), err
	}
	c := l.client
	if !c.group.Enter() {
		err := a.opError(ErrClosed)
		return refused(ctx, err), err
	}
	defer c.group.Leave()
	var around *entry
	returned := false
	defer func() {
		if !returned {
			a.aborted(around)
		}
	}()
	a.started(time.Time{})
	around, err := a.surroundings()
	again := around != nil && l.isMode(around)
	switch {
	case err != nil:
	case again && a.userScript != nil:
		a.event.Outcome, err = event.OutcomeError, errScriptInside
	case again && a.ticket != nil:
		a.event.Outcome, err = event.OutcomeError, errTicketInside
	case a.ticket != nil:
		err = a.ticket.enter()
	case again:
		err = a.enterAgain(around)
	default:
		err = a.enterFirst(around)
	}
	a.finished(err)
	returned = true
	if err != nil {
		return refused(ctx, err), err
	}
	return a.section, nil
}

// refused returns the context of a call that has not entered. The context has ended and is inside
// of no section, so that a caller who ignores err does no work without the lock, and unlocks
// nothing.
func refused(ctx context.Context, err error) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	ended, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), entryKey{}, (*entry)(nil)))
	cancel(err)
	return ended
}

// aborted takes back the work of a call that has not returned: code of others, such as a context or
// a hook, has panicked, or has ended the goroutine. around is the entry around the call; nil: none.
func (a *acquiring) aborted(around *entry) {
	switch {
	case a.section != nil:
		_ = a.lock.Unlock(a.section) // cleanup has what the store does not confirm
		return
	case a.hold != nil:
		a.abandon(true)
	case around != nil: // the store may count this entry
		t := &a.lock.client.table
		t.mu.Lock()
		t.renewSoonLocked(around.hold)
		t.mu.Unlock()
	}
	a.event.Outcome = event.OutcomeError
	a.finished(a.opError(errAborted))
}

// abandon takes back a hold that was not entered. With unsure the store may have the hold.
func (a *acquiring) abandon(unsure bool) {
	h, c := a.hold, a.lock.client
	c.table.mu.Lock()
	c.table.leaveLineLocked(h)
	c.table.unpassLocked(h)
	claim := h.lease.Claim
	c.table.mu.Unlock()
	if unsure {
		c.cleanup.add(h, claim, h.ttl)
	}
}

// surroundings returns the open entry of this very lock around the context, nil for none, and notes
// the holder of the sections around the context. The entry is in the other mode of a read-write
// lock if none is in the mode of the call. Errors: the loss of a section of this lock, the end of
// the context.
func (a *acquiring) surroundings() (around *entry, err error) {
	around = openEntry(a.ctx, a.lock.isMode)
	if around == nil && a.lock.claim.Kind == store.ReadWrite {
		around = openEntry(a.ctx, a.lock.isOf)
	}
	if around != nil {
		a.event.Holder, a.event.Reentrant = around.hold.holder, true
	} else if lost := a.lock.lostAround(a.ctx); lost != nil {
		a.event.Holder, a.event.Reentrant, a.event.Outcome = lost.Holder, true, event.OutcomeLost
		return nil, lost
	} else if e := openEntry(a.ctx, a.lock.client.isOf); e != nil {
		a.event.Holder = e.hold.holder
	}
	if a.ctx.Err() != nil {
		return nil, a.failed(a.ctx, lifetime.Ended(a.ctx))
	}
	return around, nil
}

// isOf says whether e is an entry of this lock, in any mode.
func (l *Lock) isOf(e *entry) bool {
	return l.client.isOf(e) && e.hold.lease.Name == l.claim.Name && e.hold.lease.Kind == l.claim.Kind
}

// isMode says whether e is an entry of this lock in the same mode: for reading, or not.
func (l *Lock) isMode(e *entry) bool {
	return l.isOf(e) && e.hold.isReader() == (l.claim.Limit == store.Unlimited)
}

// nearest returns the innermost entry of this lock around ctx, open or not; nil: none.
func (l *Lock) nearest(ctx context.Context) *entry {
	return entryOf(ctx).find(l.isOf)
}

// lostAround returns the loss of the innermost lost entry around ctx that is not left; nil: none.
func (l *Lock) lostAround(ctx context.Context) *LostError {
	for e := l.nearest(ctx); e != nil; e = e.outer {
		if !l.isOf(e) {
			continue
		}
		l.client.table.mu.Lock()
		left, end := e.left, e.hold.end
		l.client.table.mu.Unlock()
		if lost, is := end.(*LostError); is && !left { // the end of a hold is not wrapped
			e.cancel(lost) // the finder of the loss may not have come to it, see Lock.inside
			return lost
		}
	}
	return nil
}

func (a *acquiring) newHold() *hold {
	l, c := a.lock, a.lock.client
	h := &hold{client: c, name: l.name, settings: l.settings, leader: a.event.Leader}
	h.renewal.item.Value, h.lease.Claim = h, l.claim
	h.lease.ID, h.holder = c.newID(a.event.Holder)
	a.hold, a.event.Holder = h, h.holder
	return h
}

// enterFirst takes the lock for a new hold. around is an entry in the other mode; nil: none.
func (a *acquiring) enterFirst(around *entry) error {
	h := a.newHold()
	ctx, end := h.client.boundClaim(a.event.Context, cmp.Or(a.caller, a.ctx), a.wait, h.acks)
	defer end.Stop()
	if around != nil { // no obstacle to this call, and its end is the end of this call
		h.around, h.lease.With = around.hold, around.hold.lease.ID
		inside := lifetime.EndingWith(ctx, around.ctx)
		defer inside.Stop()
		ctx = inside
	}
	if a.wait != 0 {
		var cancel context.CancelFunc
		ctx, cancel = h.watchForDeadlock(ctx, a.ctx)
		defer cancel()
	}
	ctx, cancel := a.limitQueue(ctx)
	defer cancel()
	lease, err := a.takeTurn(ctx, h)
	return a.enter(ctx, h, lease, a.unanswered(ctx, err))
}

// takeTurn waits in the line of the lock, if the lock has one, and asks the store, unless the head
// has passed its lease on to h.
func (a *acquiring) takeTurn(ctx context.Context, h *hold) (store.Lease, error) {
	c := a.lock.client
	keeps := h.keep > 0 && !h.leader && a.userScript == nil
	if races := a.wait != 0 && h.around == nil && c.races; keeps || races {
		if err := c.table.waitTurn(ctx, h, a.wait == 0, a.progress); err != nil {
			return store.Lease{}, err
		}
	}
	if h.passing.inherited {
		return h.lease, nil
	}
	if keeps {
		c.hearAsks()
		defer time.AfterFunc(answerLimit, func() { c.table.yield(h) }).Stop() // for those behind h
	}
	return a.sendClaim(ctx, h, h.lease.Claim)
}

// enter begins a hold with the answer of the store. If the process stands still until the lease is
// over, a call that waits gets a whole lease again.
func (a *acquiring) enter(ctx context.Context, h *hold, lease store.Lease, err error) error {
	for err == nil {
		if !h.isEnough(lease) {
			lease, err = a.whole(ctx, h, lease)
		}
		if err == nil && ctx.Err() != nil { // the lock came too late: give the lock back
			err = store.Unsure(lifetime.Ended(ctx))
		}
		if err != nil {
			break
		}
		if err = a.begin(h, lease); err == nil {
			return nil
		}
		if a.wait != 0 && errors.Is(err, errOver) {
			err = nil
		}
	}
	a.abandon(errors.Is(err, store.ErrUnsure))
	return a.failed(ctx, err)
}

// sendClaim asks the store for a new hold. h has the claim of the answer from now on: the given
// claim, or the claim of the hold that has passed its lease on to h.
func (a *acquiring) sendClaim(ctx context.Context, h *hold, claim store.Claim) (lease store.Lease, err error) {
	c := a.lock.client
	h.passing.inherited = false
	h.setClaim(claim)
	switch {
	case a.userScript != nil:
		c.table.freeKept(ctx, claim)
		lease, err = h.insist(ctx, claim, a.userScript)
	case a.wait == 0:
		lease, err = h.insist(ctx, claim, c.store.Try)
	default:
		a.placed = false
		lease, err = c.store.Wait(ctx, claim, func(p store.Progress) {
			a.progress(p)
			c.table.noteRefusal(h, p.Busy)
			a.lock.requestSoon(p)
		})
	}
	if err != nil {
		a.refusedBy(err)
		return lease, err
	}
	h.setClaim(lease.Claim)
	return lease, nil
}

// setClaim notes the claim of a hold that has not begun. A claim with the same ID stays as it is,
// as other calls may read the claim of a head.
func (h *hold) setClaim(claim store.Claim) {
	if h.lease.ID != claim.ID {
		h.lease.Claim = claim
	}
}

// isEnough says whether the watchdog has time to renew a new lease.
func (h *hold) isEnough(l store.Lease) bool {
	enough := h.ttl / 2
	if h.fixed {
		enough = h.ttl - h.ttl/10
	}
	return h.client.table.left(l, time.Now()) >= enough
}

// lateLeases is the number of late leases after which TryLock gives up.
const lateLeases = 3

// whole gets a whole lease in place of a lease that is nearly over, as the answer was slow, or the
// wait for the grant was long. A hold that is gone was over before its begin: whole asks again
// after a pause, for a hold with another ID, as cleanup forgets the old ID.
func (a *acquiring) whole(ctx context.Context, h *hold, late store.Lease) (store.Lease, error) {
	c := a.lock.client
	for n, pause := 1, (attempts.Pause{}); ; n++ {
		lease := late
		lease.TTL = h.ttl
		lease, err := c.store.Enter(ctx, lease, 1)
		switch {
		case err == nil && c.table.left(lease, time.Now()) > 0:
			lease.Woken, lease.Token, lease.Unsure = late.Woken, late.Token, late.Unsure
			return lease, nil
		case err != nil && !isGone(ctx, err):
			return late, store.Unsure(err)
		case a.wait == 0 && n == lateLeases:
			return late, store.Unsure(fmt.Errorf("%d times the answer took longer than the lease of %s lasts", n, h.ttl))
		}
		c.table.unpass(h)
		c.cleanup.add(h, late.Claim, h.ttl)
		pause.Wait(ctx.Done()) // each ID that is over costs the store and cleanup work
		claim := late.Claim
		claim.TTL = h.ttl
		claim.ID, _ = c.newID(h.holder)
		if late, err = a.sendClaim(ctx, h, claim); err != nil || h.isEnough(late) {
			return late, err
		}
	}
}

var errOver = errors.New("was over before it began")

// begin enters a new hold, and gives its lease to the watchdog.
func (a *acquiring) begin(h *hold, lease store.Lease) error {
	c := a.lock.client
	t := &c.table
	e, section := newEntry(a.ctx, h)
	t.mu.Lock()
	now, closed := time.Now(), t.closed
	if closed || t.left(lease, now) <= 0 {
		t.mu.Unlock()
		e.cancel(ErrReleased)
		if closed {
			return store.Unsure(ErrClosed)
		}
		return store.Unsure(fmt.Errorf("the lease of %s %w", h.ttl, errOver))
	}
	defer t.mu.Unlock()
	h.lease, h.token, h.since, h.state = lease, lease.Token, now, held
	if h.keep > 0 {
		t.beginKeepingLocked(h)
	} else {
		t.leaveLineLocked(h)
	}
	t.enterLocked(e, section)
	t.addLocked(h)
	t.scheduleLocked(h, now)
	if h.renewal.soon { // as the lease came into doubt while it was passed on
		t.renewSoonLocked(h)
	}
	c.watchdog.watchLocked()
	a.section, a.event.Depth = section, 1
	if a.event.Queued { // without a wake: the grant came too late, and the call has asked again
		a.event.Wake = cmp.Or(event.Wake(lease.Woken), a.event.Wake, event.WakeRecheck)
	}
	return nil
}

func (l *Lock) opError(op string, holder Holder, err error) error {
	return &OpError{Op: op, Name: l.name, Holder: holder, Err: err}
}

// Unlock leaves the nearest entry of this lock around ctx. The lock is free, and is granted to the
// next waiter, when all entries of its hold are left, in any order. If the next waiter is a call of
// this client, Unlock may hand the lock to that call inside the process, without a command. ctx is
// the context that Lock returned, or a context derived from it. ctx may be done already: Unlock has
// a time limit of its own (10 s, or the end of the lease if that is sooner).
//
// In every case but [ErrInvalid] the entry is left, and its context has ended. Errors:
//   - [ErrNotHeld]: ctx is inside no entry of this lock (which is also logged), or the entry was
//     left before. Nothing was changed, and outer sections keep their entries.
//   - [ErrLockLost]: the lock was lost before this Unlock. The last steps of the section may have
//     happened without the lock. (An Unlock that hands the lock on inside the process does not ask
//     the store. If the store has lost the lock by then, the next section is told so. An Unlock
//     that keeps the lock, see [WithKeep], does not ask the store either: the loss is in the log,
//     as soon as the client finds the loss.)
//   - [ErrClosed]: Close has freed the lock, see [WithReleaseOnClose].
//   - [ErrInvalid]: the name or the options of the lock are wrong. Nothing was changed.
//   - any other: the store did not confirm. After the last entry, cleanup takes the lock back in
//     the background, and the lock is free within its TTL at the latest (after [Lock.Extend], at
//     the end of the lease asked for by Extend). After an inner entry, the other entries of the
//     hold are unchanged, and the count is sent to the store in the background until the store
//     confirms, or the client is closed.
func (l *Lock) Unlock(ctx context.Context) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	e := l.nearest(ctx)
	if e == nil {
		if c := l.client; c.isDue(&c.strays, longestQuiet) { // a deferred Unlock has nobody who reads its error
			c.log(l.settings.logger, slog.LevelWarn, "relock: Unlock with a context that is in no section of the lock: nothing is unlocked",
				slog.String("lock", l.name))
		}
		return l.opError("unlock", "", ErrNotHeld)
	}
	if !e.close() {
		return l.opError("unlock", e.hold.holder, ErrNotHeld)
	}
	rest, err := e.hold.exit(e)
	if err == nil {
		err = e.hold.leave(ctx, rest)
	}
	return l.unlocked(e, err)
}

func (l *Lock) unlocked(e *entry, err error) error {
	if cause := context.Cause(e.ctx); !e.worked && !isEnd(cause) {
		l.client.log(e.hold.logger, slog.LevelDebug, "relock: the caller's context has ended before the Unlock",
			slog.String("lock", l.name), slog.String("holder", e.hold.holder.String()), slog.Any("cause", cause))
	}
	if err == nil || isLost(err) {
		return err
	}
	return l.opError("unlock", e.hold.holder, err)
}

// exit is what an Unlock has to tell the store.
type exit uint8

const (
	exitHere  exit = iota // nothing
	exitInner             // the count
	exitLast              // the lock is to be freed
)

// exit takes an entry out of its hold in this process, and returns what to tell the store.
func (h *hold) exit(e *entry) (exit, error) {
	t := &h.client.table
	t.mu.Lock()
	now := time.Now()
	switch {
	case h.state == over:
		defer t.mu.Unlock()
		return exitHere, h.end
	case h.expiredLocked(now): // the watchdog has not seen the end yet, or is gone
		t.mu.Unlock()
		return exitHere, h.lose(event.LossExpired)
	}
	defer t.mu.Unlock()
	h.dropLocked(e)
	h.count--
	if h.count > 0 {
		return exitInner, nil
	}
	h.state = leaving
	t.leases.Set(&h.renewal.item, timers.Never)
	return exitLast, nil
}

func (h *hold) leave(ctx context.Context, rest exit) error {
	switch rest {
	case exitInner:
		return h.leaveInner(ctx)
	case exitLast:
		if h.keep > 0 && h.keepOn() {
			return nil
		}
		return h.free(ctx)
	default:
		return nil
	}
}

// free ends h after its last exit: the next wait of the run gets the lease, or the store gets it
// back.
func (h *hold) free(ctx context.Context) (err error) {
	limited := lifetime.Until(ctx, unlockBy(time.Now(), h.lease))
	defer limited.Stop()
	answer := errAborted
	defer func() { err = h.freed(answer) }()
	if h.pass() {
		answer = nil
		return nil
	}
	if h.keep > 0 {
		defer time.AfterFunc(slowRelease, func() { h.client.table.yield(h) }).Stop()
	}
	answer = h.client.store.Release(limited, h.lease)
	return nil
}

// freed ends a hold with the store's answer to its release.
func (h *hold) freed(err error) error {
	c, t := h.client, &h.client.table
	again := errors.Is(err, store.ErrUnsure)
	if errors.Is(err, store.ErrGone) {
		if !again || c.table.left(h.lease, time.Now()) <= 0 {
			return h.lose(event.LossTaken)
		}
		err = nil // an earlier attempt of this very release has freed the lock
	}
	t.mu.Lock()
	if h.state == over { // an Extend has found the loss, or Close has freed the lock
		defer t.mu.Unlock()
		return h.end
	}
	t.releaseLocked(h, ErrReleased, err)
	again = again || h.lease.Unsure && !h.passing.done
	t.mu.Unlock()
	if err != nil || again {
		c.cleanup.add(h, h.lease.Claim, h.longest())
	}
	if err != nil {
		return fmt.Errorf("not confirmed by the store, so the lock is free within %s at the latest: %w", h.lease.Kept(h.longest()), err)
	}
	return nil
}

// Internal serves the packages leader, once and ticket of this module. The type of its result is
// internal to the module, so Internal is of no use to other programs.
func (l *Lock) Internal() inside.Lock {
	lead := func(ctx context.Context) (context.Context, error) {
		return (&acquiring{lock: l, ctx: ctx, wait: forever, event: event.AcquireFinished{Leader: true}}).run()
	}
	if l.Err() != nil {
		return inside.Lock{Lead: lead, Tickets: (*tickets)(l)} // which say so
	}
	c := l.client
	return inside.Lock{
		Store: c.store, Claim: l.claim, Life: c.life, Go: c.group.GoOpen, Lead: lead, Tickets: (*tickets)(l),
		Log: func(level slog.Level, text string, attrs ...slog.Attr) {
			c.log(l.settings.logger, level, text, attrs...)
		},
		Stoppable: func(ctx context.Context) (context.Context, context.CancelFunc) {
			stopped, cancel := stoppable(ctx, ctx)
			if cancel == nil {
				return ctx, func() {}
			}
			return stopped, cancel
		},
	}
}
