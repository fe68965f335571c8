package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"
)

// Locker is the part of [Lock] that most services need; depend on it to fake a lock in tests.
type Locker interface {
	Lock(ctx context.Context) (context.Context, error)
	TryLock(ctx context.Context) (context.Context, error)
	Unlock(ctx context.Context) error
}

var _ Locker = (*Lock)(nil)

// Lock is a named lock, made by [Client.NewLock]. It has no state of its own: who holds it is in Redis, in the Client,
// and in the contexts that its methods return. It is safe for concurrent use.
type Lock struct {
	client   *Client
	name     string
	keys     *keys
	settings *settings
	err      error // name or options are wrong
}

// Name returns the name the lock was made with.
func (l *Lock) Name() string { return l.name }

// Err returns what is wrong with the name or the options ([ErrInvalid]), nil if nothing is. Every other method of such a
// lock that returns an error returns this one.
func (l *Lock) Err() error { return l.err }

// Do runs fn while it holds the lock l: it locks, runs fn with the section's context, and unlocks, also when fn panics.
//
// If the lock is lost while fn runs, that context ends, and the error (a [*LostError], [ErrLockLost]) is joined to what fn
// returns: drivers only say "context canceled", and what fn did last may have happened without the lock. Whatever else has
// ended the context, such as [ErrClosed] or the cause of ctx, is joined where fn returns an error. An Unlock that Redis did not
// confirm is joined too. If the lock cannot be had, fn is not run.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return within(section, l, fn)
}

// within runs fn in a section, and leaves it.
func within(section context.Context, l Locker, fn func(ctx context.Context) error) (err error) {
	defer func() {
		if unlockErr := l.Unlock(section); unlockErr != nil && !errors.Is(err, unlockErr) {
			err = errors.Join(err, unlockErr)
		}
	}()
	err = fn(section)
	if cause := context.Cause(section); err != nil && cause != nil && !errors.Is(err, cause) {
		err = errors.Join(err, cause)
	}
	return err
}

// Do is [Do] with this lock.
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return Do(ctx, l, fn)
}

// DoFor is [Lock.Do] that waits for the lock as [Lock.TryLockFor] does: at most wait, and not at all if that is 0. The
// wait is no limit to fn.
func (l *Lock) DoFor(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	if err := l.checkWait("DoFor", wait); err != nil {
		return err
	}
	section, err := l.acquire(ctx, wait)
	if err != nil {
		return err
	}
	return within(section, l, fn)
}

// Lock waits until the holder has the lock, and enters it. Waiters are served first come, first served, across processes
// (with [WithRedissonLayout] in no promised order; with [WithLocalPass] the calls of one client, for a while, before others).
//
// If ctx carries a holder (it, or one of its parents, came from Lock, or from [WithHolder]), the lock is taken as that
// holder, and if the holder has the lock already, the call enters at once, one level deeper. Otherwise a new holder is
// made, so two unrelated calls never enter together by accident.
//
// The context that Lock returns is for the work in the section and for Unlock. It carries the holder and this entry, and
// ends when ctx ends, when the entry is unlocked ([context.Cause] is [ErrReleased]), when the lock is lost ([ErrLockLost])
// and when the client is closed ([ErrClosed]). When ctx is done the lease is not renewed any more, so a section that is
// never unlocked ends at most one TTL after its request. (Where ctx has ended only because an outer section was left first, the
// lease is renewed until ctx's deadline, or until the context outside all sections is done.)
//
// On error the context returned is ctx itself, and the holder has not entered:
//   - [ErrLocked] together with ctx's error: ctx was done while another holder had the lock.
//   - ctx's error alone, with its cause: it was done before Redis said who has the lock. Lock returns promptly also when Redis
//     is silent; what it may have left there is taken back in the background.
//   - [ErrLockLost]: ctx is inside a section of this lock that was lost. (Once that is known, a context that has not ended
//     with the section, such as one of [context.WithoutCancel], counts as outside of it: Lock makes a new hold.)
//   - [ErrReleased]: ctx is inside a section of this lock that was unlocked during the call, though ctx has not ended with it.
//   - [ErrNotReplicated]: see [WithReplicaAcks].
//   - [ErrClosed], [ErrInvalid].
//   - an error reply of Redis that asking again would not change, such as NOAUTH or WRONGTYPE. While Redis cannot be
//     reached, is loading or fails over, Lock goes on trying until ctx is done.
func (l *Lock) Lock(ctx context.Context) (context.Context, error) {
	return l.acquire(ctx, forever)
}

// TryLock enters the lock if it is free, or the holder has it already; otherwise it returns a [*LockedError] at once. It
// does not queue, and a lock that is free while others queue goes to them (with [WithRedissonLayout] to whoever asks first;
// with [WithLocalPass] calls that stand in a line are not in the queue). All else is as for [Lock.Lock].
//
// If Redis does not answer, or answers only when the lease that it gives is over, it is asked up to three times; that a connection
// had ended while it was idle does not count. Each attempt takes as long as go-redis's timeouts allow, which can be long where new
// connections are made: a ctx with a deadline, or TryLockFor, bounds it.
func (l *Lock) TryLock(ctx context.Context) (context.Context, error) {
	return l.acquire(ctx, 0)
}

// TryLockFor is [Lock.Lock] that gives up with a [*LockedError] after wait, which is not a deadline of the context
// that it returns. If Redis has not said who has the lock by then, the error matches [context.DeadlineExceeded] instead. A
// wait of 0 is TryLock; below 0 is [ErrInvalid].
func (l *Lock) TryLockFor(ctx context.Context, wait time.Duration) (context.Context, error) {
	if err := l.checkWait("TryLockFor", wait); err != nil {
		return ctx, err
	}
	return l.acquire(ctx, wait)
}

func (l *Lock) checkWait(verb string, wait time.Duration) error {
	if l.err == nil && wait < 0 {
		return invalid("%s(%s): the wait must be 0 (do not wait) or longer; Lock and Do wait without limit", verb, wait)
	}
	return nil
}

// forever is the wait of Lock.
const forever time.Duration = -1

// waitOverError is the cause of a wait's own end. Like every end of a wait by time, it is a context.DeadlineExceeded.
type waitOverError struct{}

func (waitOverError) Error() string        { return "the wait is over" }
func (waitOverError) Is(target error) bool { return target == context.DeadlineExceeded }

var errWaitOver error = waitOverError{}

// tryAttempts is how often a call that does not wait sends a command that Redis does not answer.
const tryAttempts = 3

// acquire is Lock, TryLock and TryLockFor: it tells the hooks, and leaves the rest to enter.
func (l *Lock) acquire(ctx context.Context, wait time.Duration) (context.Context, error) {
	if l.err != nil {
		return ctx, l.err
	}
	c := l.client
	if !c.workers.enter() {
		return ctx, l.failed("lock", Holder{}, ErrClosed)
	}
	defer c.workers.leave()
	hooks := &l.settings.hooks
	told := hooks.AcquireStarted != nil || hooks.AcquireFinished != nil
	if l.settings.localReentry && !told {
		if section := l.reenter(ctx); section != nil {
			return section, nil
		}
	}
	var start time.Time
	if told {
		start = time.Now()
	}
	if hooks.AcquireStarted != nil {
		c.events.emit(func() { hooks.AcquireStarted(AcquireStarted{Context: ctx, Name: l.name, Start: start}) })
	}
	a := acquirings.Get().(*acquiring)
	*a = acquiring{lock: l, ctx: ctx, waiting: ctx, mayWait: wait != 0}
	if wait > 0 {
		var cancel context.CancelFunc
		a.waiting, cancel = context.WithTimeoutCause(ctx, wait, errWaitOver)
		defer cancel()
	}
	var err error
	if hooks.AcquireFinished == nil {
		err = a.enter()
	} else {
		err = a.enterAndTell(start)
	}
	section := a.section
	*a = acquiring{}
	acquirings.Put(a)
	if err != nil {
		return ctx, err
	}
	return section, nil
}

// enterAndTell is enter, whose end the hook is told, also where a hook of the go-redis client panics.
func (a *acquiring) enterAndTell(start time.Time) (err error) {
	l := a.lock
	err = errPanicked
	defer func() {
		outcome := a.outcome(err)
		if outcome != OutcomeAcquired { // whatever had woken it
			a.wake = WakeNone
		}
		event := AcquireFinished{
			Context: a.ctx, Name: l.name, Holder: a.holder, Start: start, Duration: time.Since(start), Outcome: outcome,
			Reentrant: a.nests || outcome == OutcomeLost, Depth: a.depth, Waited: a.waited, Queued: a.queued, Wake: a.wake,
			Token: a.token, TTL: l.settings.ttl, Err: err,
		}
		if outcome == OutcomeAcquired { // perhaps by another Lock of the same name, with options of its own
			event.TTL = a.section.frame.hold.ttl
		}
		l.client.events.emit(func() { l.settings.hooks.AcquireFinished(event) })
	}()
	err = a.enter()
	return err
}

// reenter enters once more what the section of ctx has, where Redis is not asked, so that it needs nobody's turn. nil: there is
// more to do.
func (l *Lock) reenter(ctx context.Context) context.Context {
	outer := frameOf(ctx, l.client, l.keys.base)
	if outer == nil || !outer.hold.localReentry || ctx.Err() != nil {
		return nil
	}
	h, t := outer.hold, l.client.table
	f, section := newFrame(ctx, h)
	t.mu.Lock()
	entered := h.state == held && time.Now().Before(h.deadline) && !l.client.isClosed()
	if entered {
		t.addLocked(h, f)
		t.resumeLocked(h)
	}
	t.mu.Unlock()
	if !entered {
		f.discard(nil)
		runtime.KeepAlive(section) // until its clean-up is stopped: else it may be taken for a leak, and no entry of h be left in the list
		return nil
	}
	return section
}

// outcome is what has become of the call. The error may carry the cause of the caller's context too, which can be any: that
// another lock was lost or refused, or another client closed, is no outcome of this call.
func (a *acquiring) outcome(err error) Outcome {
	switch err.(type) { //nolint:errorlint // as it is: a cause may be the refusal, or the loss, of another lock
	case nil:
		return OutcomeAcquired
	case *LockedError:
		return OutcomeLocked
	case *LostError:
		return OutcomeLost
	}
	var lost *LostError
	switch {
	case errors.As(err, &lost) && lost.Name == a.lock.name && lost.Holder == a.holder:
		return OutcomeLost
	case errors.Is(err, ErrClosed) && a.lock.client.isClosed():
		return OutcomeClosed
	case a.waiting.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		return OutcomeCanceled
	default:
		return OutcomeError
	}
}

// acquiring is one call on its way to the lock.
type acquiring struct {
	lock    *Lock
	ctx     context.Context // the caller's
	waiting context.Context // ends with it, and with the wait
	mayWait bool
	holder  Holder

	// What is known on the way.
	waiter    *waiter      // set while our channel is heard
	arrival   int64        // our place in the queue, once we have one
	waited    bool         // another holder had the lock, and we may wait
	queued    bool         // others were told that we do
	ungranted time.Time    // the last moment at which we surely did not have the lock
	traces    bool         // Redis may have something of ours
	unsure    bool         // a command was sent that may run later than all that follows
	late      int          // how often Redis said that we have the lock when that lease was over
	nests     bool         // the holder has the lock already
	refusal   *LockedError // what Redis said last
	warned    bool         // that another hold of our own holder has it

	// What has come of it.
	frame   *frame // made, but not entered yet
	section *entry // of the frame
	depth   int
	token   int64
	wake    Wake
}

// acquirings are those that are not needed any more: a tenth of what a pair would allocate.
var acquirings = sync.Pool{New: func() any { return new(acquiring) }}

// enter finds or makes the holder's hold in this lock, and takes its turn with it.
func (a *acquiring) enter() error {
	l := a.lock
	a.holder = carriedBy(a.ctx).holder
	id := "" // of the hold, if the holder is made here: then nobody else can have entered as it, and none need be looked for
	if (a.holder == Holder{}) {
		a.holder, id = l.client.layout.newHolder(l.client.id)
	}
	t, key := l.client.table, holdKey{l.keys.base, a.holder}
	if a.ctx.Err() != nil {
		a.nests = t.isHeld(key)
		return l.failed("lock", a.holder, ended(a.ctx))
	}
	for {
		h, first := t.join(key, l, id)
		if first {
			a.nests = false
			return a.first(h)
		}
		if err := a.awaitTurn(h); err != nil {
			select {
			case <-h.queued:
				if h.isEntering() { // it waits: another holder has the lock
					a.refusal, a.waited = &LockedError{Name: l.name}, a.mayWait
				}
			default:
			}
			a.nests = t.isHeld(key)
			return a.failed(err)
		}
		again, err := a.nested(h)
		if !again {
			return err
		}
	}
}

// first takes the lock for a new hold, and its turn.
func (a *acquiring) first(h *hold) error {
	defer h.endTurn()
	returned := false
	defer func() {
		if !returned && h.isEntering() { // a hook of the go-redis client panics
			a.traces, a.unsure = true, true
			_ = a.giveUp(h, errPanicked)
		}
	}()
	err := h.client.layout.first(a, h)
	returned = true
	return err
}

// errPanicked is the end of a hold whose command did not come back.
var errPanicked = errors.New("a hook of the go-redis client panicked")

// newHold makes a hold whose first entry is about to be asked for, by the caller, whose turn it is. Without an id, the
// holder came with a context, which others may have too.
func (l *Lock) newHold(holder Holder, id string) *hold {
	h := &hold{
		client: l.client, keys: l.keys, holder: holder, settings: l.settings, step: make(chan struct{}, 1),
		own: tenure{id: id, steps: firstStep, told: 1, index: -1},
	}
	h.tenure, h.own.hold = &h.own, h
	if id == "" {
		h.own.id = l.client.layout.newHold(holder)
		h.queued = make(chan struct{})
	}
	h.step <- struct{}{}
	return h
}

// awaitTurn waits for our turn with a hold of our holder. Another call of that holder may be waiting in the queue for
// it; a call that may not wait does not wait for that.
func (a *acquiring) awaitTurn(h *hold) error {
	select {
	case h.step <- struct{}{}:
		return nil
	default:
	}
	var behind <-chan struct{}
	var late <-chan time.Time
	if !a.mayWait {
		if h.isEntering() {
			behind = h.queued
		}
		timer := time.NewTimer(h.client.wire.triesTake())
		defer timer.Stop()
		late = timer.C
	}
	select {
	case h.step <- struct{}{}:
		return nil
	case <-behind:
		a.refusal = &LockedError{Name: a.lock.name}
		return errWaitOver
	case <-late:
		return errGivenUp
	case <-h.client.closed:
		return ErrClosed
	case <-a.waiting.Done():
		return ended(a.waiting)
	}
}

// effort is how hard a command of this call is tried.
func (a *acquiring) effort() effort {
	e := effort{stop: a.lock.client.closed}
	if !a.mayWait {
		e.tries = tryAttempts
	}
	return e
}

// nested enters a hold once more, in a turn that it gives back. again: it was over when our turn came.
func (a *acquiring) nested(h *hold) (again bool, err error) {
	defer h.endTurn()
	t := h.client.table
	t.mu.Lock()
	state, target, deadline := h.state, h.count+1, h.deadline
	expired := !time.Now().Before(deadline) // with the mutex held: else it may be renewed before we look
	t.mu.Unlock()
	if state != held {
		return true, nil
	}
	if expired {
		return a.outlived(h, h.lose(LossExpired)) // the watchdog is about to find out
	}
	a.nests = true
	if !h.localReentry {
		if counted, again, err := a.countInRedis(h, target, deadline); !counted {
			return again, err
		}
	}
	a.prepare(h)
	t.mu.Lock()
	state, end := h.state, h.end
	if state == held {
		err = a.beginLocked(h)
	}
	t.mu.Unlock()
	switch state {
	case held:
	case leaving: // as the other entries were left, and this one could not be waited for
		again, err = a.outlived(h, ErrReleased)
	default:
		again, err = a.outlived(h, end)
	}
	a.discard(err)
	return again, err
}

// countInRedis tells Redis of one more entry, before the lease is over. If that is not counted, again and err are those of nested.
func (a *acquiring) countInRedis(h *hold, target int, deadline time.Time) (counted, again bool, err error) {
	c, t := h.client, h.client.table
	known := false
	defer func() {
		if !known { // Redis may count this entry; also if a hook of the go-redis client panics
			c.workers.start(h.settle)
		}
	}()
	e := a.effort()
	e.until, e.lease = deadline, h
	reply, answer, err := c.wire.acquire(a.waiting, h, target, false, 0, e)
	known = err == nil || !answer.unsure && !answer.gaveUp
	switch {
	case err == nil && reply.status != acquireOurs:
		again, err = a.outlived(h, h.lose(LossTaken))
		return false, again, err
	case err == nil:
		t.renewed(h, answer)
	}
	if t.hasExpired(h) {
		if again, end := a.outlived(h, h.lose(LossExpired)); !again {
			return false, false, end
		}
		if err != nil && a.mayWait && a.waiting.Err() == nil {
			return false, true, nil
		}
	}
	if err != nil {
		return false, false, a.failed(err)
	}
	return true, false, nil
}

// outlived is what becomes of a nested call whose hold has ended. A call from inside of it is told; one that only has the same holder
// asks for a new one.
func (a *acquiring) outlived(h *hold, end error) (again bool, err error) {
	for f := carriedBy(a.ctx).frame; f != nil; f = f.outer {
		if f.hold != h {
			continue
		}
		if errors.Is(end, ErrReleased) {
			end = a.lock.failed("lock", a.holder, end)
		}
		return false, end
	}
	return true, nil
}

// ask sends the first entry of h once, or until Redis answers.
func (a *acquiring) ask(h *hold, wait bool) (acquisition, answer, error) {
	reply, answer, err := h.client.wire.acquire(a.waiting, h, 1, wait, a.arrival, a.effort())
	a.unsure = a.unsure || answer.unsure
	a.traces = a.traces || answer.unsure || answer.gaveUp || err == nil && reply.status != acquireBusy
	return reply, answer, err
}

// ours goes on where Redis says that h has the lock. done: it has entered, or failed for good; otherwise ask once more.
func (a *acquiring) ours(h *hold, token int64, answer answer) (done bool, err error) {
	if h.acks > answer.acked {
		h.noteTokens(token)
		return true, a.undo(h, answer.acked)
	}
	if a.queued && a.wake == WakeNone {
		a.wake = WakeRecheck
	}
	done, err = a.enterFirst(h, token, answer.sent, time.Nanosecond)
	if !done { // the reply has taken longer than the lease
		if a.late++; a.late == tryAttempts && !a.mayWait {
			return true, a.giveUp(h, fmt.Errorf("%d times Redis took longer to answer than the lease of %s lasts", a.late, h.ttl))
		}
	}
	return done, err
}

// refusedBy notes who has the lock.
func (a *acquiring) refusedBy(h *hold, reply acquisition) {
	owner := h.client.layout.holderOf(reply.owner)
	if owner == a.holder && a.mayWait && !a.warned {
		a.warned = true
		h.client.events.log(h.logger, slog.LevelWarn, "relock: waiting for another hold of the same holder",
			slog.String("lock", a.lock.name), slog.String("holder", owner.String()))
	}
	a.refusal = &LockedError{Name: a.lock.name, Holder: owner, TTL: reply.remaining}
	a.waited, a.wake = a.mayWait, WakeNone // whatever has made us ask
	if h.passes > 0 {
		h.client.table.refuse(h, a.refusal)
	}
}

// first takes the lock for a new hold: it asks, and if another holder has the lock, hears the lock's channel, joins the
// queue, and waits.
func (native) first(a *acquiring, h *hold) error {
	c := h.client
	if h.passes > 0 {
		passed, err := a.stand(h)
		if err != nil {
			return a.giveUp(h, err)
		}
		if passed {
			return a.enterPassed(h)
		}
	}
	if a.mayWait {
		a.waiter = c.hub.listen(h.keys, h.id)
	}
	for {
		reply, answer, err := a.askForLine(h)
		if err != nil {
			return a.giveUp(h, err)
		}
		switch reply.status {
		case acquireOurs:
			if done, err := a.ours(h, reply.token, answer); done {
				return err
			}

		case acquireQueued:
			a.refusedBy(h, reply)
			a.ungranted = answer.sent
			a.waiter.heard()
			if a.arrival == 0 {
				a.arrival = reply.arrival
				a.joined(h, reply.position)
				c.watchdog.expect(h, a.ungranted)
			}
			token, err := a.wait(recheckAfter(h, reply), reply.token)
			if err != nil {
				return a.giveUp(h, err)
			}
			if token == 0 {
				continue
			}
			a.wake = WakeGrant
			if h.acks > 0 { // replicas must confirm it: we ask
				continue
			}
			// It is ours, for as long as a lease that began when we last knew that it was not. Where that is too little, we ask,
			// which sets the lease anew: half will do where it is renewed, a fixed one should be nearly whole.
			enough := h.ttl / 2
			if h.fixed {
				enough = h.ttl - h.ttl/10
			}
			if done, err := a.enterFirst(h, token, a.ungranted, enough); done {
				return err
			}

		case acquireBusy:
			a.refusedBy(h, reply)
			recheck := recheckAfter(h, reply)
			switch {
			case !a.mayWait:
				return a.giveUp(h, nil)
			case a.waiter == nil:
				a.waiter, err = c.hub.subscribe(a.waiting, h.keys, h.id, recheck)
			default:
				err = a.waiter.unheard(a.waiting, recheck)
			}
			if err != nil && !errors.Is(err, errNotYet) {
				return a.giveUp(h, err)
			}

		default:
			return a.giveUp(h, badReply(acquireScript, answer.reply))
		}
	}
}

// enterFirst enters a hold that Redis has given us; sent is when the command that set its lease was sent. done: it has entered, or failed
// for good. Otherwise less than enough is left of the lease.
func (a *acquiring) enterFirst(h *hold, token int64, sent time.Time, enough time.Duration) (done bool, err error) {
	a.prepare(h)
	t, deadline := h.client.table, safeUntil(sent, h.ttl)
	t.mu.Lock()
	now := time.Now()
	if deadline.Sub(now) < enough {
		t.mu.Unlock()
		return false, nil
	}
	h.token, h.since, h.began, h.renewed, h.deadline, h.unsure, h.queuedFor = token, now, now, sent, deadline, a.unsure, a.arrival > 0
	h.noteTokensLocked(token)
	err = a.holdLocked(h)
	t.mu.Unlock()
	return true, a.finishFirst(h, err)
}

// enterPassed enters a new hold that was passed the lock.
func (a *acquiring) enterPassed(h *hold) error {
	a.prepare(h)
	t := h.client.table
	t.mu.Lock()
	err := a.holdLocked(h)
	t.mu.Unlock()
	return a.finishFirst(h, err)
}

// holdLocked adds our entry to a hold that is ours now, and gives its lease to the watchdog.
func (a *acquiring) holdLocked(h *hold) error {
	if err := a.beginLocked(h); err != nil {
		return err
	}
	h.state = held
	h.client.table.gotLocked(h)
	h.client.table.scheduleLocked(h)
	h.client.watchdog.nudgeLocked()
	return nil
}

// finishFirst ends the way to a first entry.
func (a *acquiring) finishFirst(h *hold, err error) error {
	if err != nil {
		return a.giveUp(h, err)
	}
	if a.waiter != nil {
		a.waiter.close()
	}
	return nil
}

// prepare makes the frame of our entry. It costs more than all else between a grant and the return of Lock, so a call that
// waits makes it meanwhile.
func (a *acquiring) prepare(h *hold) {
	if a.frame == nil {
		a.frame, a.section = newFrame(a.ctx, h)
	}
}

// discard ends the frame that was made, if it was not entered.
func (a *acquiring) discard(err error) {
	if a.frame != nil {
		a.frame.discard(err)
		a.frame = nil
	}
}

// beginLocked adds our entry to a hold.
func (a *acquiring) beginLocked(h *hold) error {
	if h.client.isClosed() {
		return a.lock.failed("lock", a.holder, ErrClosed)
	}
	h.client.table.addLocked(h, a.frame)
	h.client.table.resumeLocked(h)
	a.frame, a.depth, a.token = nil, h.count, h.token
	return nil
}

// joined tells that we have a place in the queue, the first time.
func (a *acquiring) joined(h *hold, position int) {
	if a.queued {
		return
	}
	a.waited, a.queued = true, true
	a.prepare(h)
	if h.queued != nil {
		close(h.queued)
	}
	if h.hooks.Queued != nil {
		event := Queued{Name: a.lock.name, Holder: a.holder, Position: position}
		h.client.events.emit(func() { h.hooks.Queued(event) })
	}
}

// wait blocks until the grant comes (its token), or there is a reason to ask Redis (no token). A grant that is not newer
// than the last token of the answer that sent us here was made before it, and is over: the message has been on its way
// for longer than a lease.
func (a *acquiring) wait(recheck time.Duration, last int64) (token int64, err error) {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	select {
	case what := <-a.waiter.words:
		if what.token <= last { // also 0: the connection was lost, and what was published meanwhile with it
			return 0, what.err
		}
		return what.token, nil
	case <-timer.C:
		return 0, nil
	case <-a.lock.client.closed:
		return 0, ErrClosed
	case <-a.waiting.Done():
		return 0, ended(a.waiting)
	}
}

// recheckAfter is when a waiter asks for itself: when the owner's lease should be over. The first few are there at once,
// so that a crashed holder costs little more than its lease; the others leave them some time, as one is enough.
// A lease much longer than ours is not waited out: by then the lock may belong to somebody whose lease is shorter. Who asks for a
// line has no long one: those behind it may have a short one, and do not ask.
func recheckAfter(h *hold, reply acquisition) time.Duration {
	const prompt, long = 4, 10 * time.Second
	ttl := h.ttl
	if h.passes > 0 {
		ttl = min(ttl, DefaultTTL)
	}
	d := min(reply.remaining, max(ttl, long))
	if d < 0 { // no lease at all: somebody else wrote this key
		d = ttl
	}
	if reply.position < prompt {
		return d + time.Millisecond + rand.N(5*time.Millisecond)
	}
	return d + rand.N(ttl/3)
}

// giveUp ends a first entry that failed. Whatever it may have left in Redis is taken back in the background.
func (a *acquiring) giveUp(h *hold, err error) error {
	c := h.client
	if a.waiter != nil {
		a.waiter.close()
	}
	a.discard(err)
	c.table.mu.Lock()
	c.table.finishLocked(h, err)
	c.table.mu.Unlock()
	if a.traces {
		c.orphans.add(h, a.unsure)
	}
	return a.failed(err)
}

// undo takes back an entry that too few replicas have confirmed; in the background, where the wait ends before that is done.
func (a *acquiring) undo(h *hold, acked int) error {
	c := h.client
	there, _, err := c.wire.release(a.waiting, h, 0, effort{stop: c.closed, until: time.Now().Add(unlockLimit)})
	a.traces = err != nil || !there || a.unsure // not there: its lease is over, and it may be first in the queue
	a.refusal = nil                             // that was before
	return a.giveUp(h, fmt.Errorf("%w: %d of %d within %s", ErrNotReplicated, acked, h.acks, h.acksTimeout))
}

// failed is the error of a call that did not enter: what Redis said last, and what ended the call.
func (a *acquiring) failed(err error) error {
	refused := a.refusal != nil
	switch {
	case refused && (err == nil || errors.Is(err, errWaitOver)): // also if the caller's context has ended since
		return a.refusal
	case refused && a.ctx.Err() != nil && !(errors.Is(err, ErrClosed) && a.lock.client.isClosed()):
		refusal := *a.refusal // others may read this one
		refusal.Err = err
		return &refusal
	default:
		return a.lock.failed("lock", a.holder, err)
	}
}

// failed wraps an error with what it was about.
func (l *Lock) failed(op string, holder Holder, err error) error {
	return &OpError{Op: op, Name: l.name, Holder: holder, Err: err}
}

// unlockLimit is how long Unlock tries to reach Redis.
const unlockLimit = 10 * time.Second

// Unlock leaves the entry of this lock that ctx carries, the nearest one if there are several. The lock is free, and is
// granted to the next waiter, when all entries of the holder are left, in whatever order. (With [WithLocalPass] it may be
// passed on to the next call of this client instead.) ctx is the context that Lock returned, or one derived from it; it may be
// done already: Unlock has a time limit of its own (10 s, or the end of the lease, which is renewed as long as other entries are
// open). Where go-redis gets a connection only just before that, it can take longer: go-redis's ReadTimeout for each greeting, and
// for the script.
//
// In every case but [ErrInvalid] the entry is left, and its context has ended. Errors:
//   - [ErrNotHeld]: ctx carries no entry of this lock, or it was left before. Nothing was changed, and outer sections
//     keep theirs.
//   - [ErrLockLost]: the lock was lost before this Unlock. What the section did last may have happened without it.
//   - [ErrInvalid]: the name or the options of the lock are wrong. Nothing was changed.
//   - any other: Redis did not confirm. If it was the last entry, the lock is taken back in the background, and free
//     within its TTL at the latest (after [Lock.Extend], when the lease that this has asked for is over); otherwise the
//     holder's other entries are as they were, and Redis is told in the background until it knows, or the client is closed.
func (l *Lock) Unlock(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	f := frameOf(ctx, l.client, l.keys.base)
	if f == nil {
		return l.failed("unlock", Holder{}, ErrNotHeld)
	}
	h, t := f.hold, l.client.table
	t.mu.Lock()
	if f.left {
		t.mu.Unlock()
		return l.failed("unlock", h.holder, ErrNotHeld)
	}
	f.left = true
	limit := time.Now().Add(unlockLimit)
	e := effort{until: limit, lease: h, limit: limit}
	if h.deadline.Before(limit) {
		e.until = h.deadline
	}
	t.mu.Unlock()
	f.cancel(ErrReleased) // the work ends before the lock is free
	err := h.leave(ctx, f, e)
	f.cleanup.Stop() // not before: the next one waits for this
	if err == nil {
		return nil
	}
	var lost *LostError
	if errors.As(err, &lost) {
		return err
	}
	return l.failed("unlock", h.holder, err)
}

// Token returns the fencing token of the section that ctx is in, 0 outside of one or after it was lost. Every new hold of
// a lock has a larger token than all before it, across processes and restarts of Redis. Give it to the resource that the
// lock guards, and let the resource refuse a token smaller than the largest it has seen: then a holder that lost the
// lock without noticing can do no harm.
//
// With [WithRedissonLayout] it is always 0, unless [WithRedissonFencing] is given too; then tokens grow as long as Redis keeps their
// counter.
//
// It is local: no round trip.
func (l *Lock) Token(ctx context.Context) int64 {
	token, _, _ := l.look(ctx)
	return token
}

// Remaining returns how long the lock is still safely ours if no renewal succeeds from now on, 0 outside of a section.
// It is a little less than the lease in Redis. It is local: no round trip.
func (l *Lock) Remaining(ctx context.Context) time.Duration {
	_, remaining, _ := l.look(ctx)
	return remaining
}

// Count returns how many entries the holder has open in this lock, 0 outside of a section. It is local: no round trip.
func (l *Lock) Count(ctx context.Context) int {
	_, _, count := l.look(ctx)
	return count
}

// Held says whether ctx is in a section of this lock whose lease is not over. It is local: no round trip.
func (l *Lock) Held(ctx context.Context) bool {
	return l.Count(ctx) > 0
}

// look is what this process knows of the section that ctx is in; all zero if there is none.
func (l *Lock) look(ctx context.Context) (token int64, remaining time.Duration, count int) {
	if l.err != nil {
		return 0, 0, 0
	}
	f := frameOf(ctx, l.client, l.keys.base)
	if f == nil {
		return 0, 0, 0
	}
	h, t := f.hold, l.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	remaining = time.Until(h.deadline)
	if h.state != held || f.left || remaining <= 0 {
		return 0, 0, 0
	}
	return h.token, remaining, h.count
}

// Extend makes the fixed lease of the section that ctx is in last at least d from now; it never shortens it. d is whole
// milliseconds from [MinTTL] to [MaxTTL].
//
// Errors: [ErrNotHeld]; [ErrLockLost], and then the section's context has ended; [ErrInvalid] for a wrong d, and for a
// hold that was taken without [WithFixedLease], whose lease the watchdog extends; [ErrClosed], ctx's error or that of Redis, and then
// the lease lasts as long as before, or as asked: count on the shorter.
func (l *Lock) Extend(ctx context.Context, d time.Duration) error {
	if l.err != nil {
		return l.err
	}
	if err := checkLease("Extend", d); err != nil {
		return err
	}
	f := frameOf(ctx, l.client, l.keys.base)
	if f == nil {
		return l.failed("extend", Holder{}, ErrNotHeld)
	}
	h, t := f.hold, l.client.table
	if !h.fixed {
		return invalid("Extend of %q: it is for a lock that was taken WithFixedLease; the watchdog renews this one (TTL %s)", l.name, h.ttl)
	}
	closed := l.client.isClosed()
	asks := !closed && ctx.Err() == nil
	t.mu.Lock()
	state, left, end, until := h.state, f.left, h.end, h.deadline
	asks = asks && state != over && !left
	if last := until.Add(d); asks && last.After(h.extended) { // the command may run at any time until then
		h.extended = last
	}
	t.mu.Unlock()
	switch {
	case left:
		return l.failed("extend", h.holder, ErrNotHeld)
	case state == over:
		return f.lost(end)
	case closed:
		return l.failed("extend", h.holder, ErrClosed)
	}
	there, answer, err := l.client.wire.extend(ctx, h, d, effort{stop: l.client.closed, until: until})
	switch {
	case err == nil && !there:
		t.mu.Lock()
		released := h.state == leaving || h.state == over && errors.Is(h.end, ErrReleased)
		t.mu.Unlock()
		if released { // by an Unlock that was faster
			return l.failed("extend", h.holder, ErrNotHeld)
		}
		return f.lost(h.lose(LossTaken))
	case err == nil:
		answer.lease = d
		t.renewed(h, answer)
	}
	switch valid := l.Held(ctx); {
	case valid && err != nil:
		return l.failed("extend", h.holder, err)
	case valid:
		return nil
	}
	// It took longer than the lease, so it has extended nothing.
	t.mu.Lock()
	left = f.left
	t.mu.Unlock()
	if left {
		return l.failed("extend", h.holder, ErrNotHeld)
	}
	return f.lost(h.lose(LossExpired))
}

// State is what Redis says of a lock.
type State struct {
	Holder Holder        // who has it; zero: it is free. WithRedissonLayout: the field in Redis, of Java or Go
	Count  int           // the holder's open entries; 1 if these are WithLocalReentry
	TTL    time.Duration // of the lease; negative if there is a holder without one, which relock never makes
	Token  int64         // the last fencing token, 0 if none is known; or a later one that was set aside, or drawn for a waiter
	// Waiters is how many are queued, including those whose process has died and whose turn has not come yet.
	// WithLocalPass: one for each client, unless Redis is slow to answer it; WithRedissonLayout: 0.
	Waiters int
}

// Locked says whether somebody has the lock.
func (s State) Locked() bool { return s.Holder != Holder{} }

// State asks Redis who has the lock, in one round trip. It changes nothing, and its answer may be outdated when it
// arrives: it is for operators and tests, not for decisions. A server that is silent is asked three times, as by
// [Lock.TryLock]. It works after [Client.Close] too. Errors: ctx's, those of Redis, [ErrInvalid].
func (l *Lock) State(ctx context.Context) (State, error) {
	if l.err != nil {
		return State{}, l.err
	}
	s, err := l.client.wire.state(ctx, l.keys, effort{tries: tryAttempts})
	if err != nil {
		return State{}, l.failed("state", Holder{}, err)
	}
	state := State{Count: s.count, Token: s.token, Waiters: s.waiters}
	if s.hold != "" {
		state.Holder, state.TTL = l.client.layout.holderOf(s.shown), s.ttl
	}
	return state, nil
}

// ForceUnlock takes the lock from whoever has it, and grants it to the first waiter. It is for operators: the holder is
// told at its next renewal, so for up to a third of its TTL two may believe that they have the lock, and only the fencing token
// tells them apart. (Where nothing is renewed, as of a fixed lease or when the section's context is done, the holder is told by
// Extend or Unlock, or at the end of its lease.) It takes the lock from the holder that it finds first, and from no later one
// (with [WithLocalPass], from that holder's process, whichever of its holders has it by then).
//
// A server that is silent is asked three times, as by [Lock.TryLock]. It works after [Client.Close] too.
//
// Errors: [ErrNotHeld] if nobody has the lock; [ErrInvalid]; ctx's or those of Redis, and then the lock may have been taken
// all the same.
func (l *Lock) ForceUnlock(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	e := effort{tries: tryAttempts}
	s, err := l.client.wire.state(ctx, l.keys, e)
	if err != nil {
		return l.failed("force unlock", Holder{}, err)
	}
	if s.hold == "" {
		return l.failed("force unlock", Holder{}, freeError{})
	}
	// Not there any more is as good: that hold is over, by an earlier try of ours or by itself.
	if err := l.client.wire.forceRelease(ctx, l.keys, s.hold, e); err != nil {
		return l.failed("force unlock", l.client.layout.holderOf(s.shown), err)
	}
	return nil
}
