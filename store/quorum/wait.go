package quorum

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

const (
	// longestBeat bounds the interval at which a waiter looks whether its queue is still there.
	longestBeat = 3 * time.Second
	// longestTaking bounds the time for which a waiter with a minority waits for a majority.
	longestTaking = 2 * time.Second
)

// waiting is one call of Wait.
//
// All waiters queue at one member, the anchor: the first member that can be reached. The hold with
// the lock of the anchor waits for the locks of the other members, all at once. Nobody else waits
// there, so waiters do not wait for each other in a circle. Clients that disagree about the anchor
// may hold a minority each. So a hold without a majority in time gives up, at a random moment.
type waiting struct {
	*quorum
	claim    store.Claim
	caller   context.Context
	ctx      context.Context // of the calls at the members
	progress func(store.Progress)
	events   chan event
	open     int // calls at the members
	seats    []seat
	anchor   int
	alarm    *time.Timer
	took     time.Time // when the hold got the lock of an anchor

	taking bool // the hold has the lock of an anchor
	beaten bool // one other hold has a majority
	spent  bool // the ID is of no use any more
	unsure bool
}

// seat is the state of the hold at one member.
type seat struct {
	asking   bool // Try, Wait or Enter is running
	waited   bool // Wait has been called
	refused  bool // Wait is running, and has been refused
	answered bool // the member has answered
	has      bool
	lease    store.Lease
	owner    store.ID // of the last refusal
	err      error    // the last word of Wait
}

// event is news of a call at a member. A call ends with an event without progress.
type event struct {
	member   int
	call     call
	progress *store.Progress
	lease    store.Lease
	err      error
}

type call int

const (
	callTry call = iota
	callWait
	callEnter
	callLook
)

// Wait queues at the anchor, and tries the other members meanwhile, so that a free lock costs one
// round trip.
//
// If the ID is of no use any more, Wait returns a lease that was never sent, and Enter says that
// the lease is gone: the caller asks again with a new ID. The old ID cannot serve, as commands that
// take the old ID back may run late.
func (q *quorum) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if ctx.Err() != nil {
		return store.Lease{}, lifetime.Ended(ctx)
	}
	w := &waiting{
		quorum: q, claim: a, caller: ctx, progress: progress, events: make(chan event), seats: make([]seat, len(q.members)),
		alarm: time.NewTimer(attemptLimit(a)),
	}
	defer w.alarm.Stop()
	var cancel context.CancelCauseFunc
	w.ctx, cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	for i := len(q.members) - 1; i >= 0; i-- {
		if !q.silent[i].Load() {
			w.anchor = i
		}
	}
	w.start(w.anchor, callWait)
	for i := range q.members {
		if i != w.anchor {
			w.start(i, callTry)
		}
	}
	for !w.spent && !w.admitted() && !w.failed() && ctx.Err() == nil {
		select {
		case e := <-w.events:
			w.note(e)
		case <-w.alarm.C:
			w.overdue()
		case <-ctx.Done():
		}
	}
	if !w.spent && w.admitted() {
		return w.in(cancel), nil
	}
	cancel(lifetime.Ended(ctx)) // nil: given up
	w.drain()
	if w.spent && ctx.Err() == nil {
		return store.Lease{Claim: a}, nil
	}
	return store.Lease{}, w.error(ctx)
}

// start begins a call at a member.
func (w *waiting) start(i int, c call) {
	s := &w.seats[i]
	if s.asking && c != callLook || s.has && c == callWait {
		return
	}
	s.asking = s.asking || c != callLook
	if c == callWait {
		s.waited, s.err = true, nil
	}
	w.open++
	m, lease := w.members[i], s.lease
	go func() {
		e := event{member: i, call: c}
		defer func() { w.events <- e }()
		ctx, cancel := w.ctx, context.CancelFunc(func() {})
		if c != callWait {
			ctx, cancel = context.WithTimeout(ctx, attemptLimit(w.claim))
		}
		defer cancel()
		attempts.Outlast(&e.err, func() (err error) {
			switch c {
			case callTry:
				e.lease, err = m.Try(ctx, w.claim)
			case callWait:
				e.lease, err = m.Wait(ctx, w.claim, func(p store.Progress) {
					w.events <- event{member: i, call: c, progress: &p}
				})
			case callEnter:
				e.lease, err = m.Enter(ctx, lease, 1)
			case callLook:
				_, err = m.Look(ctx, w.claim)
			}
			return err
		})
	}()
}

// note takes in one event. The wait is queueing until the hold has the lock of an anchor, and then
// taking. What a member has said and given is noted first, by ended. Other events need no action.
//
//	state     event                                       action
//	each      a refusal by a member, as progress          progressed
//	queueing  a member before the anchor answers          moveBack; go on below
//	queueing  Look fails at the anchor                    if no call has its answers, it is silent, moveOn
//	queueing  Look is answered at the anchor              the next look is due after a beat
//	each      Enter fails at the anchor                   the ID is spent
//	each      a lease from long ago comes                 the hold does not count yet, Enter; go on below
//	queueing  a lease comes from the anchor               take: the state is taking
//	queueing  another lease comes, the anchor has refused giveBack
//	queueing  Wait fails at the anchor                    moveOn
//	queueing  Try fails at the anchor                     Wait there
//	taking    Try fails                                   Wait there
func (w *waiting) note(e event) {
	s := &w.seats[e.member]
	if e.progress != nil {
		w.progressed(e)
		return
	}
	w.ended(e)
	switch {
	case e.call == callLook && e.member == w.anchor && !w.taking:
		if e.err != nil && w.quiet(e.member) >= attemptLimit(w.claim) {
			w.silent[e.member].Store(true)
			w.moveOn()
			return
		}
		w.alarm.Reset(w.beat())
	case e.call == callLook:
	case e.call == callEnter && e.err != nil: // the grant was over before its answer
		w.spent = e.member == w.anchor
	case e.err == nil:
		if e.call != callEnter && time.Until(e.lease.Until()) < w.claim.TTL/2 {
			s.has = false // the lease counts from long ago
			w.start(e.member, callEnter)
		}
		if !w.taking && e.member == w.anchor {
			w.take()
		} else if !w.taking && w.seats[w.anchor].refused {
			w.giveBack()
		}
	case e.call == callWait && e.member == w.anchor && !w.taking:
		w.moveOn()
	case e.call == callTry && (w.taking || e.member == w.anchor):
		w.start(e.member, callWait)
	}
}

// ended notes the end of a call.
func (w *waiting) ended(e event) {
	s := &w.seats[e.member]
	w.open--
	w.unsure = w.unsure || unsure(e.err) || e.lease.Unsure
	if answered(e.err) {
		w.noteAnswer(e.member)
	}
	if e.call == callLook {
		return
	}
	s.asking, s.refused = false, false
	switch {
	case e.err == nil:
		s.has, s.lease, s.owner = true, e.lease, ""
	case e.call == callWait:
		s.err = e.err
	case isBusy(e.err):
		var busy *store.Busy
		errors.As(e.err, &busy)
		w.refusedBy(e.member, busy.Owner)
	}
}

// refusedBy notes the hold that has the lock of a member. If one hold has a majority, the taking
// ends soon: the hold may miss the anchor, where it queues then. A lock that is just passed on has
// left all members after that time.
func (w *waiting) refusedBy(member int, owner store.ID) {
	w.seats[member].owner = owner
	if w.taking && !w.beaten && owner != "" && w.count(func(s seat) bool { return s.owner == owner }) >= w.majority {
		w.beaten = true
		w.resetTaking(w.takingLimit() / 4)
	}
}

// noteAnswer notes that a member can be reached.
func (w *waiting) noteAnswer(i int) {
	w.seats[i].answered = true
	w.hear(i)
	if i < w.anchor && !w.taking {
		w.moveBack(i)
	}
}

// progressed reports a refusal. The first refusal by the anchor gives back what other members have
// given.
func (w *waiting) progressed(e event) {
	w.noteAnswer(e.member)
	p := *e.progress
	if p.Busy != nil {
		w.refusedBy(e.member, p.Busy.Owner)
	}
	if w.taking {
		p.Position = 0
	}
	if s := &w.seats[e.member]; !s.refused {
		s.refused = true
		if e.member == w.anchor && !w.taking {
			w.alarm.Reset(w.beat())
			w.giveBack()
		}
	}
	w.progress(p)
}

// giveBack gives back locks that members have given to a hold that queues. If a member does not
// confirm, that member may have the hold yet, and the ID must not be used there again: the ID is
// spent.
func (w *waiting) giveBack() {
	var members []int
	for i := range w.seats {
		if w.seats[i].has {
			members = append(members, i)
			w.seats[i].has = false
		}
	}
	if !w.takeBack(w.caller, w.claim, members) {
		w.spent, w.unsure = true, true
	}
}

// take waits at all members for a majority.
func (w *waiting) take() {
	w.taking, w.took = true, time.Now()
	for i := range w.seats {
		w.start(i, callWait)
	}
	w.resetTaking(w.takingLimit())
}

func (w *waiting) takingLimit() time.Duration { return min(w.claim.TTL/2, longestTaking) }

// resetTaking ends the taking after half to all of limit, at random.
func (w *waiting) resetTaking(limit time.Duration) { w.alarm.Reset(limit/2 + rand.N(limit/2+1)) }

// overdue acts at the alarm: a majority has not come, the anchor is due for a look, or the anchor
// is silent. An anchor that answers other calls is not silent: the answer for this call is late, as in
// a crowd. If no member has answered, one is as good as another until a look finds one that answers.
func (w *waiting) overdue() {
	s, due := w.seats[w.anchor], attemptLimit(w.claim)
	if s.answered {
		due = w.beat()
	}
	switch quiet := w.quiet(w.anchor); {
	case w.taking:
		w.spent = true
	case quiet < due:
		w.alarm.Reset(due - quiet)
	case s.answered:
		w.start(w.anchor, callLook)
	case w.count(seat.hasAnswered) == 0:
		for i := range w.seats {
			if i != w.anchor { // where the hold waits
				w.start(i, callLook)
			}
		}
		w.alarm.Reset(due)
	default:
		w.silent[w.anchor].Store(true)
		w.moveOn()
	}
}

// moveOn makes the next member the anchor. The wait at the former anchor goes on.
func (w *waiting) moveOn() {
	if w.anchor == len(w.members)-1 {
		return
	}
	w.queueAt(w.anchor + 1)
}

// moveBack makes an earlier member the anchor, as all waiters queue at one member. Otherwise crowds in
// the queues of different members split the locks, and none of their heads gets a majority. The wait
// at the later member goes on, and gives back what it gets.
func (w *waiting) moveBack(i int) { w.queueAt(i) }

// queueAt makes a member the anchor, where the hold may have the lock, or a place in the queue, already.
func (w *waiting) queueAt(i int) {
	w.anchor = i
	w.alarm.Reset(attemptLimit(w.claim))
	switch s := w.seats[i]; {
	case s.has:
		w.take()
	case s.refused:
		w.giveBack()
	default:
		w.start(i, callWait)
	}
}

func (w *waiting) beat() time.Duration { return min(w.claim.TTL/3, longestBeat) }

// admitted reports whether the hold has the lock.
func (w *waiting) admitted() bool { return w.taking && w.count(seat.owned) >= w.majority }

// failed reports whether a majority has refused for good.
func (w *waiting) failed() bool { return w.count(seat.failed) >= w.majority }

func (w *waiting) count(match func(seat) bool) (n int) {
	for _, s := range w.seats {
		if match(s) {
			n++
		}
	}
	return n
}

func (s seat) owned() bool       { return s.has }
func (s seat) failed() bool      { return s.err != nil }
func (s seat) isSilent() bool    { return s.waited && !s.answered }
func (s seat) hasAnswered() bool { return s.answered }

// in returns the lease of the majority. Calls without an answer get a short time more, but for
// those at silent members, and then go on in the background.
func (w *waiting) in(cancel context.CancelCauseFunc) store.Lease {
	w.alarm.Reset(grace(w.took))
	for over := false; w.open > 0 && !over && !w.onlySilent(); {
		select {
		case e := <-w.events:
			w.last(e)
		case <-w.alarm.C:
			over = true
		case <-w.caller.Done():
			over = true
		}
	}
	var leases []store.Lease
	var open []int
	l := store.Lease{Claim: w.claim, Unsure: w.unsure || w.open > 0}
	for i, s := range w.seats {
		if s.asking {
			open = append(open, i)
		}
		if !s.has {
			continue
		}
		leases = append(leases, s.lease)
		if l.Woken == store.WakeNone {
			l.Woken = s.lease.Woken
		}
	}
	l.Sent = w.best(leases).Sent
	if w.open == 0 {
		cancel(nil)
		return l
	}
	end := func() { cancel(context.Canceled) }
	w.behind(w.enlist(w.claim.ID, end), w.claim, open, func() {
		timer := time.AfterFunc(straggle, end)
		defer timer.Stop()
		w.drain()
		end()
	})
	return l
}

// onlySilent reports whether no member is asked that is known to answer.
func (w *waiting) onlySilent() bool {
	for i, s := range w.seats {
		if s.asking && !w.silent[i].Load() {
			return false
		}
	}
	return true
}

// last takes in an event of a wait that is over.
func (w *waiting) last(e event) {
	if e.progress == nil {
		w.ended(e)
	}
}

// drain waits for the end of all calls.
func (w *waiting) drain() {
	for w.open > 0 {
		w.last(<-w.events)
	}
}

// error returns the error of a wait without the lock. Cleanup takes back what is left.
func (w *waiting) error(ctx context.Context) error {
	errs := make([]error, len(w.seats))
	for i, s := range w.seats {
		errs[i] = s.err
	}
	err := named(ctx, errs)
	if silent := w.count(seat.isSilent); !w.failed() && (silent >= w.majority || w.count(seat.hasAnswered) == 0) {
		err = store.Unavailable(err)
	}
	if w.unsure || w.count(seat.owned) > 0 {
		err = store.Unsure(err)
	}
	return err
}
