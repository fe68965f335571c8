package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/soak/history"
)

// worker locks, does this and that in its section, and unlocks. It records every call.
type worker struct {
	*soak
	*rand.Rand
	id     int // in the history
	helper int // the same, of a goroutine that helps it
	holder relock.Holder
	last   int // the lock it was at
}

// thing is a lock with the options that matter here.
type thing struct {
	*relock.Lock
	number                int // in locks
	fixed, local, passing bool
}

// section is one entry.
type section struct {
	ctx    context.Context
	lock   thing
	holder string
	token  int64
}

func (w *worker) run() {
	for !w.isOver() {
		w.visit()
	}
}

// visit is one attempt to lock, in a way of its choice, and what follows.
func (w *worker) visit() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if w.IntN(2) == 0 {
		ctx = relock.WithHolder(ctx, w.holder) // the same as for earlier holds
	}
	if w.IntN(2) == 0 {
		w.last = w.IntN(len(locks)) // or the same once more, where its late commands may meet it
	}
	p := w.anyone(w.Rand)
	stop := context.AfterFunc(w.limit, cancel) // nobody waits any more, and who is in takes the time it takes
	s := w.enter(ctx, cancel, w.choose(p, w.last))
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
	var options []relock.Option
	switch w.IntN(10) {
	case 0, 1:
		t.fixed = true
		options = append(options, relock.WithFixedLease(ttl/2))
	case 2:
		t.local = true
		options = append(options, relock.WithLocalReentry())
	case 3:
		options = append(options, relock.WithMaxHold(ttl+ttl/4))
	case 4:
		options = append(options, relock.WithTTL(ttl/4))
	case 5, 6, 7:
		if w.redisson {
			break // it has no such thing
		}
		t.passing = true
		options = append(options, relock.WithLocalPass(1+w.IntN(5), upTo(w.Rand, 300*time.Millisecond).Truncate(time.Millisecond)))
	}
	if w.redisson { // Redis names no holder of several locks, and counts a token for each entry
		t.passing = true
	}
	t.Lock = p.NewLock(locks[number], options...)
	return t
}

// enter locks from outside, in a way of its choice. The section is nil if that failed.
func (w *worker) enter(ctx context.Context, cancel func(), l thing) *section {
	wait := 3 * ttl
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

// try is TryLock: it waits for its turn as long as three tries take, and tries three times, each for as long as go-redis takes to give up
// (a dial, a greeting and the script), and says what was wrong last.
func (w *worker) try(ctx context.Context, l thing, in *section) *section {
	limit := slack
	if w.fake { // where late allows nothing more
		limit += 12 * w.patience
	}
	return w.record(call{ctx: ctx, lock: l, in: in, limit: limit, do: l.TryLock, mayFail: true})
}

func (w *worker) tryFor(ctx context.Context, l thing, wait time.Duration) *section {
	return w.record(call{ctx: ctx, lock: l, limit: wait, waits: true, do: func(ctx context.Context) (context.Context, error) {
		return l.TryLockFor(ctx, wait)
	}})
}

// again enters the lock of an open section once more.
func (w *worker) again(in *section) *section {
	if w.IntN(4) == 0 {
		return w.try(in.ctx, in.lock, in)
	}
	// It tries until the lease is over, which is not renewed for long where this does not get through.
	return w.record(call{ctx: in.ctx, lock: in.lock, in: in, limit: 4 * ttl, waits: true, do: in.lock.Lock.Lock})
}

// call is a call that locks.
type call struct {
	ctx     context.Context
	lock    thing
	in      *section // of the same lock, that it is made in
	limit   time.Duration
	do      func(context.Context) (context.Context, error)
	waits   bool // for its turn, if it has to
	mayFail bool // for whatever reason
}

// record makes a call, and notes what came of it. The result is nil if it failed, or if the lock is lost already.
func (w *worker) record(c call) *section {
	op := w.op(history.Lock, c.lock)
	op.Local, op.Passing = c.lock.local, c.lock.passing
	if h, ok := relock.HolderFrom(c.ctx); ok {
		op.Holder = h.String()
	}
	if c.in != nil {
		op.Section = c.in.token
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
	h, _ := relock.HolderFrom(inner)
	s := &section{ctx: inner, lock: c.lock, holder: h.String()}
	op.Holder = s.holder
	look := w.op(history.Look, c.lock)
	s.token = c.lock.Token(inner)
	look.Return = w.log.Now()
	look.Holder = s.holder
	if s.token == 0 { // lost already: Unlock says which token it was
		look.Outcome = history.Lost
		left, err := w.unlock(s)
		var lost *relock.LostError
		if !errors.As(err, &lost) {
			w.wrong.add("a section has no token, and Unlock does not say that it was lost: %v", err)
			return nil
		}
		op.Token, look.Section, left.Section = lost.Token, lost.Token, lost.Token
		w.log.Add(op)
		w.log.Add(look)
		w.log.Add(left)
		return nil
	}
	op.Token, look.Section = s.token, s.token
	w.log.Add(op)
	w.log.Add(look)
	return s
}

// op begins an operation.
func (w *worker) op(kind history.Kind, l thing) history.Op {
	return history.Op{Kind: kind, Lock: l.Name(), Client: w.id, Call: w.log.Now()}
}

// returned ends one, and checks that it did not take too long.
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
	case errors.As(err, &lost):
		// Not the loss of another section around this call, which has ended its context.
		if lost.Name == op.Lock && lost.Holder.String() == op.Holder {
			op.Outcome, op.Section = history.Lost, lost.Token
		}
	case errors.As(err, &locked):
		op.Outcome = history.Refused
		if !waited { // or it has been so at some time, which says next to nothing, and makes many orders possible
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
	op, _ := w.unlock(s)
	w.log.Add(op)
}

// unlockLimit is how long Unlock tries where the lease is renewed meanwhile, for other entries.
const unlockLimit = 10 * time.Second

func (w *worker) unlock(s *section) (history.Op, error) {
	op := w.op(history.Unlock, s.lock)
	op.Holder, op.Section = s.holder, s.token
	err := s.lock.Unlock(s.ctx)
	w.returned(&op, unlockLimit, err)
	switch {
	case err == nil:
	case errors.Is(err, relock.ErrLockLost):
		op.Outcome = history.Lost
	case errors.Is(err, relock.ErrNotHeld):
		op.Outcome = history.NotHeld
	default:
		op.Outcome = history.Failed
	}
	return op, err
}

// leaveTwice leaves an entry that was left before.
func (w *worker) leaveTwice(s *section) {
	op, _ := w.unlock(s)
	op.Again = true
	w.log.Add(op)
}

// look asks what the holder believes, and says whether it believes that it has the lock.
func (w *worker) look(s *section) bool {
	op := w.op(history.Look, s.lock)
	op.Holder, op.Section = s.holder, s.token
	var holds bool
	switch w.IntN(3) {
	case 0:
		holds = s.lock.Token(s.ctx) == s.token
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
		w.wrong.add("the section of %q with token %d was not told of its loss", s.lock.Name(), s.token)
	}
	return holds
}

// told notes that the section was told of its loss, if it was.
func (w *worker) told(s *section) {
	op := w.op(history.Told, s.lock)
	var lost *relock.LostError
	if !errors.As(context.Cause(s.ctx), &lost) || lost.Name != s.lock.Name() {
		return
	}
	op.Holder, op.Section, op.Outcome, op.Return = s.holder, lost.Token, history.Lost, w.log.Now()
	w.log.Add(op)
}

// abandon waits for the end of a hold whose context is done, and that is not unlocked.
func (w *worker) abandon(s *section) {
	const longest = 3 * ttl
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
	op := w.op(history.Extend, s.lock)
	op.Holder, op.Section, op.Lease = s.holder, s.token, ttl/4+upTo(w.Rand, ttl/2).Truncate(time.Millisecond)
	err := s.lock.Extend(s.ctx, op.Lease)
	w.returned(&op, 4*ttl, err)
	switch {
	case err == nil:
	case errors.Is(err, relock.ErrLockLost):
		op.Outcome = history.Lost
	default:
		op.Outcome = history.Failed
	}
	w.log.Add(op)
}

// inside is what happens in a section. It returns the entries that are open in the end: s, or others of its hold.
func (w *worker) inside(p *peer, s *section) (open []*section) {
	open = []*section{s}
	var left []*section
	steps, slow := w.IntN(10), time.Millisecond
	if w.IntN(16) == 0 { // long enough for its own commands to run late
		steps, slow = 12, ttl/10
	}
	for range steps {
		in := open[w.IntN(len(open))]
		switch w.IntN(12) {
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
				w.pause(ttl + upTo(w.Rand, ttl))
			}
		case 8:
			if in.lock.fixed {
				w.extend(in)
			}
		case 9:
			w.share(in)
		case 10: // somebody else
			if s := w.try(relock.WithoutHolder(in.ctx), in.lock, nil); s != nil {
				w.leave(s)
			}
		case 11: // another lock, always in this order
			if in.lock.number+1 < len(locks) {
				if s := w.tryFor(in.ctx, w.choose(p, in.lock.number+1), 50*time.Millisecond); s != nil {
					w.look(s)
					w.leave(s)
				}
			}
		}
		w.look(open[w.IntN(len(open))])
		if slow > time.Millisecond {
			w.pause(upTo(w.Rand, slow))
		}
	}
	return open
}

// share lets another goroutine enter and leave as the same holder, while this one does so too.
func (w *worker) share(s *section) {
	other := *w
	other.id, other.Rand = w.helper, rand.New(rand.NewPCG(w.Uint64(), w.Uint64()))
	var helping sync.WaitGroup
	helping.Go(func() {
		var inner *section
		if holder, ok := relock.HolderFrom(s.ctx); ok && other.IntN(2) == 0 {
			// It does not know the section, only the holder. If the hold is lost by then, this is a new one.
			inner = other.tryFor(relock.WithHolder(other.limit, holder), s.lock, 100*time.Millisecond)
		} else {
			inner = other.again(s)
		}
		if inner != nil {
			other.look(inner)
			other.leave(inner)
		}
	})
	if inner := w.again(s); inner != nil {
		w.look(inner)
		w.leave(inner)
	}
	helping.Wait()
}
