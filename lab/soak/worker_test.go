package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/lab/soak/history"
)

// worker locks, works in its section, and unlocks. A worker records every call.
type worker struct {
	*soak
	*rand.Rand
	id     int // in the history
	helper int // the same, of a goroutine that helps the worker
	last   int // the number of the last lock
}

// thing is a lock with the options that matter here.
type thing struct {
	*relock.Lock
	history.Mode
	number int // in locks
	fixed  bool
}

// hold is one hold of the worker. All goroutines of the worker share the hold.
type hold struct {
	number int
	holder string
	caller context.Context // of the Lock that has begun the hold

	mu    sync.Mutex
	token int64 // 0: none was drawn
}

// section is one entry of a hold.
type section struct {
	*hold
	ctx   context.Context
	lock  thing
	outer *section // of the same lock; nil: the first entry
	left  bool
}

// isLost says whether err is the loss of this hold. A context may have ended by the loss of
// another.
func (s *section) isLost(err error) bool {
	var lost *relock.LostError
	return errors.As(err, &lost) && lost.Name == s.lock.Name() && lost.Holder.String() == s.holder
}

// around returns the innermost section that is open; nil: none.
func (s *section) around() *section {
	for s != nil && s.left {
		s = s.outer
	}
	return s
}

func (w *worker) run() {
	for !w.isOver() {
		w.visit()
	}
}

// visit is one attempt to lock, in a random way, and the section behind the attempt.
func (w *worker) visit() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if w.IntN(2) == 0 {
		w.last = w.IntN(len(locks)) // or the last lock again, to meet late commands
	}
	p := w.anyone(w.Rand)
	l := w.choose(p, w.last)
	if w.crowd && w.IntN(4) > 0 {
		l = thing{Lock: w.present()[0].NewLock(locks[0]), Mode: w.mode}
	}
	stop := context.AfterFunc(w.limit, cancel) // ends the wait, and no section
	s := w.enter(ctx, cancel, l)
	stop()
	if s == nil {
		return
	}
	open := w.inside(p, s)
	w.look(open[0]) // as late as possible
	if w.IntN(150) == 0 {
		cancel()
		w.abandon(open[0])
		return
	}
	if w.IntN(4) == 0 {
		cancel() // Unlock works with a context that is done
	}
	for len(open) > 0 {
		_, open = w.leaveOne(open)
	}
}

// choose makes a lock with some options.
func (w *worker) choose(p *peer, number int) thing {
	t := thing{number: number}
	t.Mode = w.mode
	var options []relock.Option
	switch w.IntN(10) {
	case 0, 1:
		t.fixed = true
		options = append(options, relock.WithFixedLease(w.ttl/2))
	case 2:
		t.Local = true
		options = append(options, relock.WithLocalReentry())
	case 3:
		options = append(options, relock.WithMaxHold(w.ttl+w.ttl/4))
	case 4:
		options = append(options, relock.WithTTL(w.ttl/4))
	case 5, 6:
		if l := p.NewLock(locks[number], relock.WithKeep(w.ttl/2)); l.Err() == nil { // the store serves it
			t.Kept, t.Passing, t.Lock = w.ttl/2, true, l
			return t
		}
	}
	t.Lock = p.NewLock(locks[number], options...)
	return t
}

// enter locks from outside, in a way of its choice. The section is nil if that failed.
func (w *worker) enter(ctx context.Context, cancel func(), l thing) *section {
	wait := 3 * w.ttl
	switch w.IntN(8) {
	case 0:
		return w.try(ctx, l, nil)
	case 1:
		return w.tryFor(ctx, l, upTo(w.Rand, 300*time.Millisecond)+time.Millisecond)
	case 2, 3:
		wait = upTo(w.Rand, 100*time.Millisecond)
	}
	stop := time.AfterFunc(wait, cancel)
	defer stop.Stop()
	return w.record(call{ctx: ctx, lock: l, limit: wait, waits: true, do: l.Lock.Lock})
}

// threeTries is how long three attempts may take, each for as long as go-redis takes to give up: a
// dial, a greeting and the script.
func (s *soak) threeTries() time.Duration {
	if s.fake { // where late allows nothing more
		return slack + 12*s.patience
	}
	return slack
}

// try is TryLock.
func (w *worker) try(ctx context.Context, l thing, in *section) *section {
	return w.record(call{ctx: ctx, lock: l, in: in, limit: w.threeTries(), do: l.TryLock, mayFail: true})
}

func (w *worker) tryFor(ctx context.Context, l thing, wait time.Duration) *section {
	return w.record(call{ctx: ctx, lock: l, limit: wait, waits: true, do: func(ctx context.Context) (context.Context, error) {
		return l.TryLockFor(ctx, wait)
	}})
}

// again enters the lock of an open section once more: in the context of the section, or in a
// context that WithSection has put inside the section.
func (w *worker) again(in *section) *section {
	ctx := in.ctx
	if w.IntN(4) == 0 {
		ctx = relock.WithSection(in.caller, in.ctx)
	}
	if w.IntN(4) == 0 {
		return w.try(ctx, in.lock, in)
	}
	// Lock tries until the lease is over. If no attempt gets through, the lease is not renewed,
	// either.
	return w.record(call{ctx: ctx, lock: in.lock, in: in, limit: 4 * w.ttl, waits: true, do: in.lock.Lock.Lock})
}

// call is a call that locks.
type call struct {
	ctx     context.Context
	lock    thing
	in      *section // of the same lock, open; nil: the call begins a hold
	limit   time.Duration
	do      func(context.Context) (context.Context, error)
	waits   bool // for its turn, if necessary
	mayFail bool // for whatever reason
}

// record makes a call, and notes its outcome. The result is nil if the call failed.
func (w *worker) record(c call) *section {
	op := w.op(history.Lock, c.lock)
	op.Mode = c.lock.Mode
	if c.in != nil {
		op.Holder, op.Hold, op.Nested = c.in.holder, c.in.number, true
	}
	if c.waits && c.in == nil {
		w.waits(w.id, wait{c.lock.Name(), time.Now()})
	}
	inner, err := c.do(c.ctx)
	w.waits(w.id, wait{})
	w.returned(&op, c.limit, err)
	if err != nil {
		w.failed(op, err, c.mayFail, c.waits)
		return nil
	}
	s := &section{ctx: inner, lock: c.lock, outer: c.in}
	holder, inSection := relock.HolderFrom(inner)
	if c.in != nil {
		s.hold = c.in.hold
	} else {
		// If the hold is lost by now, its loss names the holder.
		var lost *relock.LostError
		if !inSection && untilDone(inner, w.late()) && errors.As(context.Cause(inner), &lost) {
			holder = lost.Holder
		}
		s.hold = &hold{number: w.log.Hold(), holder: holder.String(), caller: c.ctx}
		op.Hold, op.Holder = s.number, s.holder
	}
	w.log.Add(op)
	if w.look(s) && inSection && holder.String() != s.holder {
		w.wrong.add("a nested Lock of %q has the holder %s, and the hold %s", op.Lock, holder, s.holder)
	}
	return s
}

// op begins an operation.
func (w *worker) op(kind history.Kind, l thing) history.Op {
	return history.Op{Kind: kind, Lock: l.Name(), Client: w.id, Call: w.log.Now()}
}

// opIn begins an operation in a section.
func (w *worker) opIn(kind history.Kind, s *section) history.Op {
	op := w.op(kind, s.lock)
	op.Holder, op.Hold = s.holder, s.number
	return op
}

// returned ends an operation, and checks its duration.
func (w *worker) returned(op *history.Op, limit time.Duration, err error) {
	op.Return = w.log.Now()
	if took := op.Return - op.Call; took > limit+w.late() {
		w.wrong.add("%s of %q came back after %s, its limit was %s: %v", op.Kind, op.Lock, took, limit, err)
	}
}

// failed records a call that did not enter.
func (w *worker) failed(op history.Op, err error, mayFail, waited bool) {
	var lost *relock.LostError
	var locked *relock.LockedError
	op.Outcome = history.Failed
	switch {
	case errors.As(err, &lost): // perhaps a section of another lock around this call
		if op.Nested && lost.Name == op.Lock && lost.Holder.String() == op.Holder {
			op.Outcome = history.Lost
		}
	case errors.As(err, &locked):
		op.Outcome = history.Refused
		if !waited { // a wait says of the owner only that it had the lock at some time
			op.Owner = locked.Holder.String()
		}
	case mayFail, errors.Is(err, relock.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	default:
		w.wrong.add("Lock: %v", err)
	}
	w.log.Add(op)
}

// leaveOne leaves one of the open entries of a hold.
func (w *worker) leaveOne(open []*section) (left *section, rest []*section) {
	i := w.IntN(len(open))
	left = open[i]
	rest = append(append(rest, open[:i]...), open[i+1:]...)
	w.leave(left)
	return left, rest
}

func (w *worker) leave(s *section) {
	w.told(s)
	w.log.Add(w.unlock(s))
	s.left = true
}

// unlockLimit is how long Unlock tries while the lease is renewed, for other entries.
const unlockLimit = 10 * time.Second

func (w *worker) unlock(s *section) history.Op {
	op := w.opIn(history.Unlock, s)
	err := s.lock.Unlock(s.ctx)
	w.returned(&op, unlockLimit, err)
	switch {
	case err == nil:
	case s.isLost(err):
		op.Outcome = history.Lost
	case errors.Is(err, relock.ErrNotHeld):
		op.Outcome = history.NotHeld
	default:
		op.Outcome = history.Failed
	}
	return op
}

// leaveTwice leaves an entry that was left before.
func (w *worker) leaveTwice(s *section) {
	op := w.unlock(s)
	op.Again = true
	w.log.Add(op)
}

// look asks for the belief of the holder, and says whether the holder believes in the lock.
func (w *worker) look(s *section) (holds bool) {
	op := w.opIn(history.Look, s)
	switch w.IntN(3) {
	case 0:
		holds = s.lock.Held(s.ctx)
	case 1:
		op.Count = s.lock.Count(s.ctx)
		holds = op.Count > 0
	case 2:
		op.Remaining = s.lock.Remaining(s.ctx)
		holds = op.Remaining > 0
	}
	op.Return = w.log.Now()
	if !holds {
		op.Outcome = history.Lost
	}
	w.log.Add(op)
	if !holds && !untilDone(s.ctx, w.late()) {
		w.wrong.add("a section of %q, hold %d, was not told of its loss", s.lock.Name(), s.number)
	}
	return holds
}

// draw draws the token of a hold.
func (w *worker) draw(s *section) {
	op := w.opIn(history.Draw, s)
	token, err := s.lock.Token(s.ctx)
	w.returned(&op, w.threeTries(), err)
	switch {
	case err == nil:
		op.Token = token
		s.mu.Lock()
		s.token = token
		s.mu.Unlock()
	case s.isLost(err):
		op.Outcome = history.Lost
	default:
		op.Outcome = history.Failed
	}
	if err != nil && token != 0 {
		w.wrong.add("token %d beside the error %v", token, err)
	}
	w.log.Add(op)
}

// told records the loss of the section, if the section was told of a loss.
func (w *worker) told(s *section) {
	op := w.opIn(history.Told, s)
	var lost *relock.LostError
	if !s.isLost(context.Cause(s.ctx)) || !errors.As(context.Cause(s.ctx), &lost) {
		return
	}
	op.Outcome, op.Return = history.Lost, w.log.Now()
	w.log.Add(op)
	s.mu.Lock()
	defer s.mu.Unlock()
	if lost.Token != 0 && s.token != 0 && lost.Token != s.token {
		w.wrong.add("hold %d of %q drew token %d, and its loss names %d", s.number, op.Lock, s.token, lost.Token)
	}
}

// abandon waits for the end of a hold with a finished context and without an Unlock.
func (w *worker) abandon(s *section) {
	longest := 3 * w.ttl
	for began := time.Now(); w.look(s); {
		if time.Since(began) > longest+w.late() {
			w.wrong.add("%q is still held, %s after its context was done", s.lock.Name(), longest+w.late())
			return
		}
		<-time.After(10 * time.Millisecond)
	}
}

// extend extends a fixed lease.
func (w *worker) extend(s *section) {
	op := w.opIn(history.Extend, s)
	op.Lease = w.ttl/4 + upTo(w.Rand, w.ttl/2).Truncate(time.Millisecond)
	err := s.lock.Extend(s.ctx, op.Lease)
	w.returned(&op, 4*w.ttl, err)
	switch {
	case err == nil:
	case s.isLost(err):
		op.Outcome = history.Lost
	default:
		op.Outcome = history.Failed
	}
	w.log.Add(op)
}

// inside is the work in a section. inside returns the entries left open: s, or other entries of its
// hold.
func (w *worker) inside(p *peer, s *section) (open []*section) {
	open = []*section{s}
	var left []*section
	steps, slow := w.IntN(10), time.Millisecond
	if w.crowd { // a lease is passed on while half of it is left
		steps /= 4
	}
	if w.IntN(16) == 0 { // long enough for its own commands to run late
		steps, slow = 12, w.ttl/10
	}
	for range steps {
		in := open[w.IntN(len(open))]
		switch w.IntN(15) {
		case 0, 1, 2:
			if inner := w.again(in); inner != nil {
				open = append(open, inner)
			}
		case 3, 4:
			if len(open) > 1 {
				var out *section
				out, open = w.leaveOne(open)
				left = append(left, out)
			}
		case 5:
			if len(left) > 0 {
				w.leaveTwice(left[w.IntN(len(left))])
			}
		case 6:
			w.pause(upTo(w.Rand, w.moment()))
		case 7:
			if w.IntN(w.seldom()) == 0 { // past the lease, so that renewal matters
				w.pause(w.ttl + upTo(w.Rand, w.ttl))
			}
		case 8:
			if in.lock.fixed {
				w.extend(in)
			}
		case 9:
			w.share(in)
		case 10: // outside of all sections
			w.tryAndLeave(relock.WithoutHolder(in.ctx), in.lock, nil)
		case 11: // another lock, always in this order
			if in.lock.number+1 < len(locks) {
				w.next(p, in)
			}
		case 12, 13:
			w.draw(in)
		case 14: // a context that was kept is inside the sections around it that are open
			if len(left) > 0 {
				out := left[w.IntN(len(left))]
				w.tryAndLeave(context.WithoutCancel(out.ctx), in.lock, out.around())
			}
		}
		w.look(open[w.IntN(len(open))])
		if slow > time.Millisecond {
			w.pause(upTo(w.Rand, slow))
		}
	}
	return open
}

func (w *worker) tryAndLeave(ctx context.Context, l thing, in *section) {
	if s := w.try(ctx, l, in); s != nil {
		w.leave(s)
	}
}

// next takes the next lock in a section of the one before.
func (w *worker) next(p *peer, in *section) {
	if s := w.tryFor(in.ctx, w.choose(p, in.lock.number+1), 50*time.Millisecond); s != nil {
		w.look(s)
		if w.IntN(2) == 0 {
			w.draw(s)
		}
		w.leave(s)
	}
}

// share lets another goroutine work in a section too. Either both enter the same hold again, or
// both take the next lock, and exclude each other there.
func (w *worker) share(s *section) {
	other := *w
	other.id, other.Rand = w.helper, rand.New(rand.NewPCG(w.Uint64(), w.Uint64()))
	work := func(w *worker) {
		if inner := w.again(s); inner != nil {
			w.look(inner)
			if w.IntN(3) == 0 {
				w.draw(inner)
			}
			w.leave(inner)
		}
	}
	if p := w.anyone(w.Rand); s.lock.number+1 < len(locks) && w.IntN(2) == 0 {
		work = func(w *worker) { w.next(p, s) }
	}
	var helping sync.WaitGroup
	helping.Go(func() { work(&other) })
	work(w)
	helping.Wait()
}
