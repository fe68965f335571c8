package relock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Token returns the fencing token of the section around ctx. Give the token to the resource behind
// the lock, and let the resource refuse every token smaller than the largest token so far. Such a
// resource is safe from a holder that lost the lock without noticing.
//
// The first call in a hold draws the token. The draw takes a round trip, and only succeeds while
// the hold has the lock. A token is larger than every token drawn for the lock before, across
// processes and restarts of the store. Later calls in the same hold return the same token, without
// a round trip; behind an upgrade of a reader the next call draws again. With
// [WithRedissonFencing] Redis draws the token with the lock, as Redisson does. Draw the token
// before the section's first write. The token of a reader is negative, so every resource that
// compares tokens refuses it, see [RWLock].
//
// Errors: [ErrNotHeld]; [ErrLockLost], and the section's context has ended; [errors.ErrUnsupported]
// with a store without tokens, such as [WithRedissonLayout] without fencing; [ErrClosed]; ctx's
// error, or errors of the store, and the section goes on. The token is 0 with each error.
func (l *Lock) Token(ctx context.Context) (int64, error) {
	return l.token(ctx, "token")
}

// token is [Lock.Token] for the operation op.
func (l *Lock) token(ctx context.Context, op string) (int64, error) {
	e, err := l.inside(op, ctx)
	if err != nil {
		return 0, err
	}
	h, t := e.hold, &l.client.table
	t.mu.Lock()
	token, lease, inside := h.token, h.lease, h.inside
	t.mu.Unlock()
	if token != 0 {
		return token, nil
	}
	ctx, end := l.client.bound(ctx, 0)
	defer end.Stop()
	limited := lifetime.EndingWith(ctx, e.ctx)
	defer limited.Stop()
	ctx = limited
	token, err = l.client.store.Token(ctx, lease)
	if err := l.settled(op, ctx, h, err); err != nil {
		return 0, err
	}
	if h.isReader() {
		token = -token
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.inside != inside { // a writer has ended inside of this reader, and the next call draws again
		return token, nil
	}
	if h.token == 0 { // otherwise another call was faster, and its token may be in use
		h.token = token
	}
	return h.token, nil
}

// settled returns the error of a section's command: its loss, or else err, the store's error.
func (l *Lock) settled(op string, ctx context.Context, h *hold, err error) error {
	if isGone(ctx, err) {
		_ = h.endOf(true) // and inside says what has become of the section
	}
	_, over := l.inside(op, ctx)
	switch {
	case over != nil:
		return over
	case err == nil:
		return nil
	case l.client.isClosed():
		err = ErrClosed
	}
	return l.opError(op, h.holder, err)
}

// inside returns the entry of this lock around ctx, if its hold is valid.
func (l *Lock) inside(op string, ctx context.Context) (*entry, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	e := l.nearest(ctx)
	if e == nil {
		return nil, l.opError(op, "", ErrNotHeld)
	}
	h := e.hold
	switch end := h.endOf(false); {
	case e.isLeft(), end == ErrReleased: // the end of a hold is not wrapped
		return nil, l.opError(op, h.holder, ErrNotHeld)
	case isLost(end):
		e.cancel(end) // the finder of the loss may still be about to end the context
		return nil, end
	case end != nil:
		return nil, l.opError(op, h.holder, end)
	}
	return e, nil
}

// Remaining returns the time for which the section around ctx still safely has the lock if no
// renewal succeeds from now on, 0 outside of a section. The time is a little less than the lease in
// the store. Remaining is local: no round trip.
func (l *Lock) Remaining(ctx context.Context) time.Duration {
	remaining, _ := l.look(ctx)
	return remaining
}

// Count returns the number of entries in the hold of ctx's section, 0 outside of a section. Count
// is local: no round trip.
func (l *Lock) Count(ctx context.Context) int {
	_, count := l.look(ctx)
	return count
}

// Held says whether ctx is in a section of this lock whose lease is not over. Held is local: no
// round trip.
func (l *Lock) Held(ctx context.Context) bool {
	return l.Count(ctx) > 0
}

// look returns the local state of the section around ctx, zero outside of a section.
func (l *Lock) look(ctx context.Context) (remaining time.Duration, count int) {
	if l.check(ctx) != nil {
		return 0, 0
	}
	e := l.nearest(ctx)
	if e == nil {
		return 0, 0
	}
	h, t := e.hold, &l.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	remaining = h.leftLocked(time.Now())
	if h.state != held || e.left || remaining <= 0 {
		return 0, 0
	}
	return remaining, h.count
}

// Extend makes the fixed lease of the section around ctx last at least d from now. Extend never
// shortens the lease. d is whole milliseconds from [MinTTL] to [MaxTTL].
//
// Errors: [ErrNotHeld]; [ErrLockLost], and the section's context has ended; [ErrInvalid] for a
// wrong d, and for a hold without [WithFixedLease], as the watchdog extends its lease; [ErrClosed],
// ctx's error or an error of the store, and the lease lasts as long as before, or as asked: count
// on the shorter.
func (l *Lock) Extend(ctx context.Context, d time.Duration) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := cmp.Or(checkLease("Extend", d), l.settings.checkTTL(d)); err != nil {
		return err
	}
	e, err := l.inside("extend", ctx)
	if err != nil {
		return err
	}
	h, c, t := e.hold, l.client, &l.client.table
	switch {
	case h.isLoan():
		return invalid("Extend of %q: a loan ends with the lease of its lender", l.name)
	case !h.fixed:
		return invalid("Extend of %q: it is for a lock that was taken WithFixedLease; the watchdog renews this one (TTL %s)", l.name, h.ttl)
	case c.isClosed():
		return l.opError("extend", h.holder, ErrClosed)
	case ctx.Err() != nil:
		return l.opError("extend", h.holder, lifetime.Ended(ctx))
	}
	t.mu.Lock()
	lease, count := h.lease, h.storeCount()
	if last := lease.Until().Add(d); last.After(h.renewal.longest) { // the command may run at any time until the end of the lease
		h.renewal.longest = last
	}
	t.mu.Unlock()
	bounded, end := c.bound(ctx, time.Until(lease.Until()))
	defer end.Stop()
	lease.TTL = d
	lease, err = c.store.Enter(bounded, lease, count)
	if err == nil {
		t.mu.Lock()
		t.confirmLocked(h, lease, time.Now())
		t.mu.Unlock()
	}
	return l.settled("extend", ctx, h, err) // a loss: Extend took longer than the lease, and has extended nothing
}

// State is the state of a lock in the store.
type State struct {
	// Holder has the lock; zero: nobody. Where Unlock has handed the lock on inside a process, other
	// processes see the holder that the store knows: the first one. With [WithRedissonLayout] other
	// processes see the field in Redis: a thread of Java, or <client id>:<n> of Go, where the hold is
	// number n. That is the holder, but of a hold that began inside another section, or had to ask
	// twice.
	Holder Holder
	// Count is the number of open entries in the hold of Holder; 1 with [WithLocalReentry], and in
	// a read-write lock or semaphore in Redis. After a command with a lost reply, and after two
	// commands at once, Count may be wrong until the next entry or renewal.
	Count int
	TTL   time.Duration // of the lease; negative for a holder without a lease, which relock never makes
	Token int64         // the last drawn fencing token, 0 if none is known
	// Waiters is the number of queued waiters, including waiters of dead processes until their turn,
	// and those that the present holder's process has handed the lock to since the store gave it. With
	// [WithRedissonLayout] Waiters is 0.
	Waiters int
	// Queue has the first of these waiters, by turn: at most a hundred, without those whose processes
	// are known to be dead, and in the process of Holder without those that the lock was handed to.
	// Queue is nil where nobody waits, where the store does not tell (see [store.Queueing]; Redis not
	// to a user who may not call ZRANGE, TIME and PUBSUB, ZooKeeper not to one who may not read all
	// waiters), and in [Client.List].
	Queue []Waiter
	Mode  event.Mode // of Holder
	// Kept says that this client keeps the lock, and nobody works in it, see [WithKeep]. Holder was
	// the last one who did.
	Kept bool
	// Others are the other holders of a read-write lock or a semaphore. Holder is the one whose
	// lease ends first.
	Others []Held
}

// Waiter is a waiter in the queue of a lock.
type Waiter struct {
	Holder Holder
	Mode   event.Mode
	// Since is when the waiter got its place, by the clock of this process; zero if the store does not
	// tell. Redis does, but for a reader that waits to write.
	Since time.Time
}

// mostQueue bounds the waiters that State reads.
const mostQueue = 100

// Held is one of several holders of a lock.
type Held struct {
	Holder Holder
	TTL    time.Duration // of its lease
	Mode   event.Mode
}

// Locked says whether somebody has the lock.
func (s State) Locked() bool { return s.Holder != "" }

// State asks the store for the holder of the lock, in one round trip, and for its queue in a second
// one if somebody waits. State changes nothing, and the answer may be outdated on arrival: State is
// for operators and tests, not for decisions. State works after [Client.Close] too. Errors: ctx's;
// [ErrUnavailable], after 2 s without an answer, or 4 s if the store falls silent after the first
// answer; errors of the store; [ErrInvalid].
func (l *Lock) State(ctx context.Context) (State, error) {
	s, err := l.ownerOf("state", ctx)
	if err != nil {
		return State{}, err
	}
	state := l.stateOf(s)
	if queueing, is := l.client.store.(store.Queueing); is && s.Waiters > 0 {
		state.Queue, err = l.queue(ctx, queueing)
	}
	if err != nil {
		return State{}, l.opError("state", "", err)
	}
	served := func(w Waiter) bool { return w.Holder == state.Holder }
	if i := slices.IndexFunc(state.Queue, served); i >= 0 && l.claim.Kind == store.Mutex { // a run, see pass.go
		state.Queue = state.Queue[i+1:]
	}
	return state, nil
}

func (l *Lock) queue(ctx context.Context, s store.Queueing) (queue []Waiter, err error) {
	var waiters []store.Waiter
	err = answered(ctx, func(ctx context.Context) (err error) {
		waiters, err = s.Waiters(ctx, l.claim, mostQueue)
		return err
	})
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	if err == nil {
		queue = make([]Waiter, 0, len(waiters))
	}
	for _, w := range waiters {
		queue = append(queue, Waiter{l.client.holderOf(w.ID), modeOf(l.claim.Kind, w.Limit), w.Since})
	}
	return queue, err
}

func (l *Lock) stateOf(s store.State) State {
	state := State{Count: s.Count, Token: s.Token, Waiters: s.Waiters}
	if s.Owner != "" {
		state.Holder, state.TTL, state.Mode = l.client.holderOf(s.Owner), s.TTL, modeOf(l.claim.Kind, s.Limit)
		state.Kept = l.client.keeps(s.Owner)
	}
	for _, held := range s.Others {
		state.Others = append(state.Others, Held{
			Holder: l.client.holderOf(held.ID), TTL: held.TTL, Mode: modeOf(l.claim.Kind, held.Limit),
		})
	}
	return state
}

func (l *Lock) ownerOf(op string, ctx context.Context) (store.State, error) {
	if err := l.check(ctx); err != nil {
		return store.State{}, err
	}
	var s store.State
	err := answered(ctx, func(ctx context.Context) (err error) {
		s, err = l.client.store.Look(ctx, l.claim)
		return err
	})
	if err != nil {
		return s, l.opError(op, "", err)
	}
	return s, nil
}

// answered makes a call that ends after answerLimit.
func answered(ctx context.Context, call func(context.Context) error) error {
	ctx = &lifetime.Guarded{Context: ctx}
	limited, cancel := context.WithTimeoutCause(ctx, answerLimit, errSilent)
	defer cancel()
	err := call(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return silent(err)
	}
	return err
}

// ForceUnlock takes the lock from its holder (all readers, and all permits of a semaphore), and
// grants the lock to the first waiter. ForceUnlock is for operators. A message notifies the process
// of the holder, and the process ends the section in milliseconds, or at its next renewal if no
// message arrives. Until then two holders may believe in the lock, and only the fencing token tells
// them apart. ForceUnlock takes the lock from the holds found first, and from no later hold:
// sections that a process has handed the lock on to count as one hold, see [Lock.Unlock].
//
// ForceUnlock works after [Client.Close] too. Without an answer it is [ErrUnavailable] after 2 s,
// or 4 s if the store falls silent after the first answer.
//
// Errors: [ErrNotHeld] if nobody has the lock; [ErrInvalid]; ctx's or errors of the store, and the
// lock may have been taken all the same.
func (l *Lock) ForceUnlock(ctx context.Context) error {
	holds, err := l.holds(ctx, "force unlock")
	if err != nil {
		return err
	}
	return l.each(ctx, "force unlock", holds, func(ctx context.Context, claim store.Claim) error {
		if isHeadID(claim.ID) { // the next section would begin with its lease, without a command
			l.client.asked(claim.ID)
			l.client.request(ctx, claim, claim.ID, requestLimit)
		}
		return l.client.store.Break(ctx, claim)
	})
}

// holds returns a claim for each hold that has the lock. If there is none, the error is ErrNotHeld.
func (l *Lock) holds(ctx context.Context, op string) (all []store.Claim, err error) {
	s, err := l.ownerOf(op, ctx)
	if err != nil {
		return nil, err
	}
	if s.Owner == "" {
		return nil, l.opError(op, "", freeError{})
	}
	for _, held := range append([]store.Held{{ID: s.Owner, Limit: s.Limit}}, s.Others...) {
		claim := l.claim
		claim.ID, claim.Limit = held.ID, held.Limit
		all = append(all, claim)
	}
	return all, nil
}

// each sends a command for each of some holds. A hold that is gone is no error: an earlier attempt
// of the command has ended the hold, or the hold has ended by itself.
func (l *Lock) each(ctx context.Context, op string, holds []store.Claim, command func(context.Context, store.Claim) error) error {
	var holder Holder
	err := answered(ctx, func(ctx context.Context) error {
		for _, claim := range holds {
			if err := command(ctx, claim); err != nil && !isGone(ctx, err) {
				holder = l.client.holderOf(claim.ID)
				return err
			}
		}
		return nil
	})
	if err != nil {
		return l.opError(op, holder, err)
	}
	return nil
}
