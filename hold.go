package relock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A hold is one holder's stay in one lock, from the first entry to the last exit. It has a token, one frame for each entry that
// is open, and for its time a tenure.
type hold struct {
	client *Client
	keys   *keys
	holder Holder
	*settings

	// step is the turn of whoever changes the hold in Redis: one entry or exit at a time, so that the local count is the
	// truth that scripts are told. Taken by sending, given back by receiving. It also guards settling, and what the
	// tenure says.
	step     chan struct{}
	settling bool // somebody tries again and again to tell Redis the count; guarded by step
	// queued is closed when the first entry has to wait in the queue, nil if nobody else can know the holder yet.
	queued chan struct{}
	// called is closed when the first entry leads its line, or has been passed the lock. Only for those who stand in one.
	called chan struct{}

	// tenure is the hold's own, unless the lock was passed to it. It does not change once the first entry has sent anything, or
	// has entered.
	*tenure
	own tenure

	// The rest is guarded by the mutex of the client's table. Whoever ends the hold reads it without: nobody else changes it then.

	state holdState
	leads bool          // its line, until it is over, or has had no answer for long
	place *list.Element // in the line, nil if it stands in none

	end     error // why a hold that was entered is over: ErrReleased or a *LostError
	token   int64
	since   time.Time
	deepest int    // the highest count
	leaked  bool   // the context of some entry was dropped without Unlock
	count   int    // of open entries
	frames  *frame // of these, without those whose context was dropped, newest first

	leaks []context.CancelCauseFunc // of entries whose context was dropped, which is not reported yet
}

// tenure is a process's time in a lock as Redis sees it: one field of the hash, and its lease. It is that of one hold, or, where
// locks are passed on inside the process, of several in turn.
type tenure struct {
	id string // the field in Redis; never used again

	// Guarded by the step of the hold that has it.
	steps int64
	aside int  // how many tokens Redis is asked to set aside; not changed after the first time
	doubt bool // the end of some entry or exit is not known: it may run late
	told  int  // the count that Redis has, as far as is known: some exit may not have been told

	// Guarded by the mutex of the client's table.

	hold      *hold // that has it
	queuedFor bool  // it came out of the queue
	unsure    bool  // a command that takes the lock was given up, and may run when the tenure is over
	// Where the lock can be passed on.
	began                time.Time // when Redis gave the lock
	usedToken, lastToken int64     // of those that were set aside
	passed, shown        int       // how often it was, and as far as Redis was told
	showing              bool      // somebody tells Redis

	// deadline is when the lease is over as far as this process can know: the time before the command that set the
	// lease was sent, plus the lease, minus a margin for clocks that run apart.
	deadline time.Time
	extended time.Time // until when an Extend may have made the lease last
	renewed  time.Time // the time before the command that last set the lease was sent
	failures int       // renewals in a row that were not confirmed
	index    int       // in the watchdog's heap, which knows when it looks at this one next; -1 if not in it
	renewing bool      // a renewal is on the wire

	// Guarded by the mutex of the client's orphans: acquires of this tenure for which nobody waits any more.
	unanswered bool // some have ended without an answer, and may run late
	flying     int  // how many are on their way
	landings   int  // how many have come to an end
}

type holdState uint8

const (
	entering holdState = iota // the first entry is being asked for
	held
	leaving // the last exit is on the wire; the watchdog has let go
	over
)

// firstStep is the step of a first entry; each later entry or exit of the hold has the next number. A script that runs
// late has a lower step than what has happened since, and leaves the hold alone.
const firstStep = 1

func (h *hold) nextStep() int64 {
	h.steps++
	return h.steps
}

// noteTokens notes the token that Redis has given, and those behind it that are set aside.
func (h *hold) noteTokens(token int64) {
	t := h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	h.noteTokensLocked(token)
}

func (h *hold) noteTokensLocked(token int64) { h.usedToken, h.lastToken = token, token+int64(h.aside) }

// refresh is the lease that re-entry and partial exit set, as they talk to Redis anyway. It is 0, which leaves the lease
// alone, where it is a fixed one, and for an exit when nobody works in the section any more.
func (h *hold) refresh(entering bool) time.Duration {
	if h.fixed {
		return 0
	}
	t := h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	lease := h.nextLeaseLocked(time.Now())
	if lease < MinTTL || !entering && !t.wantedLocked(h) {
		return 0
	}
	return lease
}

// margin is what a deadline is earlier than the lease in Redis: 1 % for clocks that run at different rates, and 2 ms
// for the resolution of Redis's expiry. (The figures of the Redlock algorithm.)
func margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// safeUntil is the deadline of a lease that was set by a command sent at that time.
func safeUntil(sent time.Time, ttl time.Duration) time.Time { return sent.Add(ttl - margin(ttl)) }

// turn waits for the step for as long as an effort may take, whatever context has ended.
func (h *hold) turn(e effort) error {
	select {
	case h.step <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := e.bound(context.Background())
	defer cancel()
	select {
	case h.step <- struct{}{}:
		return nil
	case <-e.stop:
		return ErrClosed
	case <-ctx.Done():
		return ended(ctx)
	}
}

func (h *hold) endTurn() { <-h.step }

// bound is a context that ends with ctx, when the lease of h is over, and at limit, if there is one. That the lease is renewed
// meanwhile is seen: an answer that takes long is waited for as long as the lock is ours.
func (h *hold) bound(ctx context.Context, limit time.Time) (context.Context, context.CancelFunc) {
	l := &leased{hold: h, limit: limit}
	l.Context, l.cancel = context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(l.left(), l.look)
	return l, l.end
}

// leased is a context that bound has made.
type leased struct {
	context.Context
	cancel context.CancelCauseFunc
	hold   *hold
	limit  time.Time
	over   atomic.Bool // by the lease or the limit

	mu    sync.Mutex
	timer *time.Timer // fires when the lease that was known is over
}

// Err says what a deadline would.
func (l *leased) Err() error {
	err := l.Context.Err()
	if err != nil && l.over.Load() {
		return context.DeadlineExceeded
	}
	return err
}

func (l *leased) left() time.Duration {
	t := l.hold.client.table
	t.mu.Lock()
	until := l.hold.deadline
	t.mu.Unlock()
	if !l.limit.IsZero() && l.limit.Before(until) {
		until = l.limit
	}
	return time.Until(until)
}

func (l *leased) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch left := l.left(); {
	case l.Context.Err() != nil:
	case left > 0:
		l.timer.Reset(left)
	default:
		l.over.Store(true)
		l.cancel(context.DeadlineExceeded)
	}
}

func (l *leased) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel(nil)
	l.timer.Stop()
}

func (h *hold) isEntering() bool {
	t := h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return h.state == entering
}

// frame is one entry of a hold. The context that Lock returns refers to its frame, and once the watchdog has looked at it, the
// frame does not refer to that context any more: so when the caller drops it without Unlock, the garbage collector tells. (The frame
// of an entry inside does refer to it, and so do contexts made from it: they are children of ctx as long as they have not ended.)
type frame struct {
	// Guarded by the mutex of the client's table.
	left       bool   // Unlock was called
	next, prev *frame // in hold.frames
	entry      *entry // what Lock has returned, nil when it is watched
	cleanup    runtime.Cleanup

	ctx    context.Context // ends when the frame ends; parent of everything done inside
	hold   *hold
	outer  *frame // the frame that the caller's context carried, of whichever lock
	cancel context.CancelCauseFunc
	self   carried

	// Asked of the caller's contexts when the frame is made, as what they do then is code that is not ours, and not for under a mutex.
	baseDone <-chan struct{} // that of the context outside all frames
	deadline time.Duration   // of ctx, as in the heap; never if it has none
}

// entry is the context that Lock returns.
type entry struct {
	context.Context
	frame *frame
}

func (e *entry) Value(key any) any {
	if key == (carriedKey{}) {
		return &e.frame.self
	}
	return e.Context.Value(key)
}

// newFrame makes the frame of one more entry, and the context for the caller. What is not entered must be discarded.
func newFrame(parent context.Context, h *hold) (*frame, *entry) {
	f := &frame{hold: h, outer: carriedBy(parent).frame, deadline: never}
	if f.outer != nil {
		f.baseDone = f.outer.baseDone
	} else {
		f.baseDone = parent.Done()
	}
	if deadline, ok := parent.Deadline(); ok {
		f.deadline = time.Since(h.client.table.start) + time.Until(deadline)
	}
	f.ctx, f.cancel = context.WithCancelCause(parent)
	f.self = carried{holder: h.holder, frame: f}
	section := &entry{Context: f.ctx, frame: f}
	f.entry = section
	if h.fixed || h.maxHold > 0 { // the watchdog may look only when it is over
		f.watch()
	}
	return f, section
}

// watch makes the garbage collector tell if the caller drops the context without Unlock.
func (f *frame) watch() {
	f.cleanup = runtime.AddCleanup(f.entry, (*frame).leaked, f)
	f.entry = nil
}

// watchLocked has the open entries watched, when the hold is first due to be renewed: most sections are over by then, and it would be a
// twentieth of what a Lock and an Unlock cost the client. Newer entries come first, so behind one that is watched all are.
func (h *hold) watchLocked() {
	for f := h.frames; f != nil && f.entry != nil; f = f.next {
		f.watch()
	}
}

// discard ends a frame that was not entered.
func (f *frame) discard(err error) {
	f.cancel(err)
	f.cleanup.Stop()
}

// lost ends f, whose hold was lost: whoever has found that out may still be about to tell so.
func (f *frame) lost(end error) error {
	f.cancel(end)
	return end
}

// leaked is called by the garbage collector when nobody can unlock f any more. It leaves a note for the watchdog, and
// touches nothing but that: it runs on a goroutine of the runtime, and outside of any synctest bubble. The hold lets go of f, though
// it goes on to count it: f refers to the context of the entry around it, which may be dropped too.
func (f *frame) leaked() {
	h := f.hold
	t := h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if !f.left {
		f.left = true
		t.unlinkLocked(f)
		h.leaked, h.leaks = true, append(h.leaks, f.cancel)
	}
}

// frameOf is the nearest frame of this lock that ctx carries, open or not. nil: none.
func frameOf(ctx context.Context, c *Client, base string) *frame {
	for f := carriedBy(ctx).frame; f != nil; f = f.outer {
		if f.hold.client == c && f.hold.keys.base == base {
			return f
		}
	}
	return nil
}

// wantedLocked says whether somebody still works under this frame, so that the lease is worth renewing. Its context ends with
// the caller's, and with any frame around it. An outer frame that was left early does not count: this one is still open,
// and lasts as long as the caller's context outside of all frames, and its own deadline.
func (f *frame) wantedLocked() bool {
	if f.left {
		return false
	}
	if f.ctx.Err() == nil {
		return true
	}
	if time.Since(f.hold.client.table.start) >= f.deadline || !errors.Is(context.Cause(f.ctx), ErrReleased) {
		return false
	}
	select {
	case <-f.baseDone:
		return false
	default:
		return true
	}
}

// leave closes an entry: here in every case, and in Redis if it can be had with that effort. That ctx is done does not matter.
func (h *hold) leave(ctx context.Context, f *frame, e effort) error {
	t := h.client.table
	if h.localReentry && t.leaveInner(h, f) {
		return nil
	}
	noTurn := h.turn(e) // not nil: another entry or exit hangs
	if noTurn == nil {
		defer h.endTurn()
	}
	t.mu.Lock()
	if h.state == over {
		defer t.mu.Unlock()
		return h.end
	}
	now := time.Now()
	if !now.Before(h.deadline) { // the watchdog has not come to it yet, or is gone
		t.mu.Unlock()
		return h.lose(LossExpired)
	}
	t.removeLocked(f)
	if count := h.count; count > 0 {
		t.mu.Unlock()
		return h.leavePartly(ctx, count, e, noTurn)
	}
	if noTurn == nil && t.passLocked(h, now) {
		h.tellReleasedLocked(nil)
		t.mu.Unlock()
		return nil
	}
	h.state = leaving
	t.unscheduleLocked(h)
	t.mu.Unlock()
	if noTurn != nil {
		return h.unfreed(noTurn)
	}
	return h.leaveLast(ctx, e)
}

// leavePartly tells Redis how many entries are left. What is not confirmed is told again in the background, until Close.
func (h *hold) leavePartly(ctx context.Context, count int, e effort, noTurn error) error {
	if h.localReentry {
		return nil
	}
	c, confirmed := h.client, false
	defer func() {
		if !confirmed { // also if a hook of the go-redis client panics
			c.workers.start(h.settle)
		}
	}()
	var there bool
	var told answer
	err := noTurn
	if err == nil {
		there, told, err = c.wire.release(context.WithoutCancel(ctx), h, count, e)
	}
	if err != nil {
		if c.isClosed() { // nothing goes on in the background then
			return fmt.Errorf("not confirmed by Redis; left all the same: %w", err)
		}
		return fmt.Errorf("not confirmed by Redis; left all the same, and Redis will be told: %w", err)
	}
	confirmed = true
	if !there {
		return h.lose(LossTaken)
	}
	c.table.renewed(h, told)
	return nil
}

// leaveLast frees the lock in Redis.
func (h *hold) leaveLast(ctx context.Context, e effort) error {
	returned := false
	defer func() {
		if !returned { // a hook of the go-redis client panics
			_ = h.unfreed(errPanicked)
		}
	}()
	there, answer, err := h.client.wire.release(context.WithoutCancel(ctx), h, 0, e)
	returned = true
	switch {
	case err != nil:
		return h.unfreed(err)
	case !there && (!answer.unsure || !time.Now().Before(h.deadline)): // nor was it freed by an earlier try of this very release
		return h.lose(LossTaken)
	}
	lost := h.released(nil)
	if h.unsure {
		h.client.orphans.add(h, true)
	}
	return lost
}

// unfreed ends a hold of which it is not confirmed that it is free, and sees to that in the background. A nested entry or an exit
// that is still on its way finds nothing then.
func (h *hold) unfreed(err error) error {
	lost := h.released(err)
	h.client.orphans.add(h, h.unsure)
	if lost != nil {
		return lost
	}
	return fmt.Errorf("not confirmed by Redis, so the lock is free within %s at the latest: %w", h.longest(time.Now()), err)
}

// leaveInner closes an entry that is not the last one, where Redis is not told, so that it needs nobody's turn. false: there is
// more to do.
func (t *table) leaveInner(h *hold, f *frame) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.state != held || h.count == 1 || !time.Now().Before(h.deadline) {
		return false
	}
	t.removeLocked(f)
	return true
}

// longest is how long Redis may keep the hold from now on if nothing renews it.
func (h *hold) longest(now time.Time) time.Duration {
	t := h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(h.ttl, h.extended.Sub(now).Round(time.Millisecond))
}

// settle sets the count in Redis to the local one, after an entry or a partial exit whose end is not known. It tries until that
// is confirmed, or the hold is over; what Redis refuses is tried again, as its reasons may pass. One at a time does that.
func (h *hold) settle() {
	for tries := 0; h.settleOnce(tries > 0); tries++ {
		select {
		case <-time.After(retryPause(tries, h.ttl)):
		case <-h.client.closed:
			return
		}
	}
}

// settleOnce is one such try. mine: the caller is already the one that keeps trying, and anybody else leaves it to that one. again: the
// caller has to go on, as Redis has refused or did not answer.
func (h *hold) settleOnce(mine bool) (again bool) {
	t := h.client.table
	t.mu.Lock()
	e := effort{stop: h.client.closed, until: h.deadline, lease: h}
	t.mu.Unlock()
	if h.turn(e) != nil {
		return mine
	}
	defer h.endTurn()
	t.mu.Lock()
	state, count := h.state, h.count
	t.mu.Unlock()
	if state != held || h.settling && !mine {
		return false
	}
	h.settling = false // also if a hook of the go-redis client panics
	there, answer, err := h.client.wire.release(h.client.life, h, count, e)
	h.settling = err != nil
	switch {
	case err != nil:
	case there:
		t.renewed(h, answer)
	default:
		_ = h.lose(LossTaken)
	}
	return h.settling
}

// released ends a hold whose last entry was left, and tells so. lost: an Extend has found that it was lost, and that was told.
func (h *hold) released(err error) (lost error) {
	t := h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.state == over {
		return h.end
	}
	t.finishLocked(h, ErrReleased)
	h.tellReleasedLocked(err)
	return nil
}

// tellReleasedLocked tells the hook of a hold that has just ended, unless Close did. With the mutex held, as Close does not wait
// for an Unlock: the end and its event are one, so Close comes before both or after both.
func (h *hold) tellReleasedLocked(err error) {
	if h.hooks.Released == nil || h.client.isClosed() {
		return
	}
	event := Released{
		Name: h.keys.name, Holder: h.holder, Token: h.token, TTL: h.ttl, Held: time.Since(h.since), MaxDepth: h.deepest, Err: err,
	}
	h.client.events.emit(func() { h.hooks.Released(event) })
}

// lose ends a hold that was lost, tells its sections, and returns the error that they get.
func (h *hold) lose(reason LossReason) error {
	t := h.client.table
	t.mu.Lock()
	if h.state == over {
		defer t.mu.Unlock()
		return h.end
	}
	if reason == LossExpired && h.isLongestLocked(h.deadline) {
		reason = LossMaxHold // the watchdog would have said so
	}
	l := t.loseLocked(h, reason)
	t.mu.Unlock()
	l.tell()
	return l.err
}

// table is all holds of a client. Its one mutex guards them, their frames and the watchdog's heap; each section under it
// is a few map and heap operations long, and nothing is called from it that could block.
//
// Where two mutexes are held at once, the order is: redisson's before the hub's, leased's before the table's, and any of them before
// those of events and workers, under which no other is taken. A turn (hold.step, race.turn) is taken before all of these.
type table struct {
	start time.Time // what the heap counts from

	mu     sync.Mutex
	holds  map[holdKey]*hold
	lines  map[string]*line // by the locks' bases
	leases leases
}

type holdKey struct {
	base   string
	holder Holder
}

func newTable() *table { return &table{start: time.Now(), holds: make(map[holdKey]*hold)} }

// close closes c, which for the hooks is the end of every hold that is not over: they are told of this one, and of no other. All
// in one section under the mutex, so each hold ends before, or is told of here. It returns what ends the contexts of the sections,
// and the leaks that the watchdog has not come to.
func (t *table) close(c *Client) (cancels []context.CancelCauseFunc, leaks []leak) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.end()
	for _, h := range t.holds {
		leaks = h.takeLeaksLocked(leaks)
		for f := h.frames; f != nil; f = f.next {
			cancels = append(cancels, f.cancel)
		}
		if (h.state == held || h.state == leaving) && h.hooks.Closed != nil {
			event := Closed{
				Name: h.keys.name, Holder: h.holder, Token: h.token, TTL: h.ttl, Held: time.Since(h.since), MaxDepth: h.deepest,
			}
			c.events.emit(func() { h.hooks.Closed(event) })
		}
	}
	return cancels, leaks
}

// join returns the hold of a holder in a lock. first: there was none, so it is a new one, and it is the caller's turn. id, if
// there is one, names the new hold of a holder that was made just now.
func (t *table) join(key holdKey, l *Lock, id string) (h *hold, first bool) {
	if id != "" {
		h = l.newHold(key.holder, id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h == nil {
		if h = t.holds[key]; h != nil {
			return h, false
		}
		h = l.newHold(key.holder, id)
	}
	t.holds[key] = h
	return h, true
}

// isHeld says whether a holder has a lock.
func (t *table) isHeld(key holdKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.holds[key]
	return h != nil && h.state == held
}

func (t *table) addLocked(h *hold, f *frame) {
	f.next = h.frames
	if f.next != nil {
		f.next.prev = f
	}
	h.frames = f
	h.count++
	h.deepest = max(h.deepest, h.count)
}

func (t *table) removeLocked(f *frame) {
	t.unlinkLocked(f)
	f.hold.count--
}

func (t *table) unlinkLocked(f *frame) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		f.hold.frames = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	f.next, f.prev = nil, nil
}

// finishLocked ends a hold. The frames stay, for whoever has to tell them.
func (t *table) finishLocked(h *hold, end error) {
	h.state, h.end = over, end
	t.unscheduleLocked(h)
	key := holdKey{h.keys.base, h.holder}
	if t.holds[key] == h {
		delete(t.holds, key)
	}
	if h.leads {
		t.stepDownLocked(h)
	}
}

// renewed notes the lease that a command has set, if it did.
func (t *table) renewed(h *hold, a answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.lease > 0 && h.state == held {
		t.confirmLocked(h, a.sent, a.lease, time.Now())
		h.client.watchdog.nudgeLocked()
	}
}

// confirmLocked notes that a command sent at that time has set the lease. A deadline only moves later, and one that has
// passed stays passed: others may have been in since, and what answered yes may be a hold that a late command made anew.
func (t *table) confirmLocked(h *hold, sent time.Time, lease time.Duration, now time.Time) {
	if !now.Before(h.deadline) {
		return
	}
	if sent.After(h.renewed) {
		h.renewed = sent
	}
	if until := safeUntil(sent, lease); until.After(h.deadline) {
		h.deadline = until
	}
	if due := t.renewalLocked(h); !t.isNearLocked(h, due) {
		t.rescheduleLocked(h, due)
	}
}

// isNearLocked says whether h stands in the heap where it should, or by so much before that it would be renewed early
// anyway. Each look puts a lease where its next renewal will be, so that is one move for a renewal, and not two.
func (t *table) isNearLocked(h *hold, due time.Time) bool {
	if h.index < 0 {
		return false
	}
	before := t.at(due) - t.leases[h.index].due
	return before >= -lookSpread && before <= h.earlyLocked()
}

// hasExpired says whether the deadline of h has passed.
func (t *table) hasExpired(h *hold) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !time.Now().Before(h.deadline)
}

// wantedLocked says whether any frame of h is still worked under.
func (t *table) wantedLocked(h *hold) bool {
	for f := h.frames; f != nil; f = f.next {
		if f.wantedLocked() {
			return true
		}
	}
	return false
}

// renewalLocked is when h should be renewed, or its deadline if it should not.
func (t *table) renewalLocked(h *hold) time.Time {
	if h.fixed {
		return h.deadline
	}
	if due := h.renewed.Add(h.ttl / 3); due.Before(h.deadline) {
		return due
	}
	return h.deadline
}

func (t *table) scheduleLocked(h *hold) {
	if h.index < 0 {
		t.leases.add(h.tenure, t.at(t.renewalLocked(h)))
	} else {
		t.rescheduleLocked(h, t.renewalLocked(h))
	}
}

// resumeLocked is for an entry into h: if nobody worked in it, the watchdog has let go until the deadline.
func (t *table) resumeLocked(h *hold) {
	if h.index >= 0 && t.leases[h.index].due >= t.at(h.deadline) {
		t.scheduleLocked(h)
		h.client.watchdog.nudgeLocked()
	}
}

func (t *table) rescheduleLocked(h *hold, due time.Time) {
	if h.deadline.Before(due) {
		due = h.deadline
	}
	if h.index >= 0 {
		t.leases.move(h.index, t.at(due))
	}
}

func (t *table) unscheduleLocked(h *hold) {
	if h.index >= 0 {
		t.leases.remove(h.index)
	}
}

// at is a time as the heap has it.
func (t *table) at(when time.Time) time.Duration { return when.Sub(t.start) }

// leases is a heap of tenures by the time the watchdog looks at them next. The times stand in the heap, and each node has
// leasesBelow side by side below it: with a hundred thousand locks, every one that is read costs as much as the search.
type leases []visit

// visit is when the watchdog looks at a tenure next.
type visit struct {
	due    time.Duration // since the table was made
	tenure *tenure
}

const leasesBelow = 4

func (l *leases) add(h *tenure, due time.Duration) {
	*l = append(*l, visit{})
	l.up(len(*l)-1, visit{due, h})
}

func (l leases) move(i int, due time.Duration) {
	e := visit{due, l[i].tenure}
	if due < l[i].due {
		l.up(i, e)
	} else {
		l.down(i, e)
	}
}

func (l *leases) remove(i int) {
	old := *l
	gone, n := old[i], len(old)-1
	last := old[n]
	old[n] = visit{}
	*l = old[:n]
	gone.tenure.index = -1
	switch {
	case i == n:
	case last.due < gone.due:
		l.up(i, last)
	default:
		l.down(i, last)
	}
}

// up puts e at i, or further up.
func (l leases) up(i int, e visit) {
	for i > 0 {
		above := (i - 1) / leasesBelow
		if l[above].due <= e.due {
			break
		}
		l.put(i, l[above])
		i = above
	}
	l.put(i, e)
}

// down puts e at i, or further down.
func (l leases) down(i int, e visit) {
	for {
		first := leasesBelow*i + 1
		if first >= len(l) {
			break
		}
		next := first
		for j := first + 1; j < min(first+leasesBelow, len(l)); j++ {
			if l[j].due < l[next].due {
				next = j
			}
		}
		if e.due <= l[next].due {
			break
		}
		l.put(i, l[next])
		i = next
	}
	l.put(i, e)
}

func (l leases) put(i int, e visit) {
	l[i] = e
	e.tenure.index = i
}
