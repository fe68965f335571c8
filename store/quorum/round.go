package quorum

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

const (
	// longestLimit bounds the time limit of an attempt at one member.
	longestLimit = time.Second
	// straggle is the time for which members without an answer go on, behind a call that returned.
	straggle = time.Second
	// shortestGrace and longestGrace bound the time for which a call with a majority waits for the
	// other members.
	shortestGrace, longestGrace = 5 * time.Millisecond, 50 * time.Millisecond
)

// attemptLimit returns the time limit of an attempt at one member: a quarter of the TTL, at most
// longestLimit, and the time for the replicas of the member.
func attemptLimit(a store.Claim) time.Duration { return min(a.TTL/4, longestLimit) + a.Acks.Timeout }

// answer is the answer of one member. silent says that the member was silent when the round began:
// the quorum's own flag changes with an answer that the round has not taken in yet.
type answer[T any] struct {
	value        T
	err          error
	done, silent bool
}

// round is one command to all members.
type round[T any] struct {
	quorum  *quorum
	answers []answer[T]
	open    int // members without an answer

	came   chan int // members with an answer, before the answer is read
	made   []answer[T]
	cancel context.CancelCauseFunc
}

// ask sends a command to all members. ask returns when enough says so, or when all members have
// answered. The end of ctx ends the command at all members, without its cause, as the cause may
// look like the word of a member. A member without an answer within limit is unavailable; limit 0
// is no limit. After ask has returned, the other members go on, and the caller ends the round with
// finish or behind.
func ask[T any](ctx context.Context, q *quorum, limit time.Duration, enough func(r *round[T]) bool,
	call func(ctx context.Context, i int) (T, error)) *round[T] {
	n := len(q.members)
	r := &round[T]{quorum: q, answers: make([]answer[T], n), made: make([]answer[T], n), open: n, came: make(chan int, n)}
	for i := range n {
		r.answers[i].silent = q.silent[i].Load()
	}
	run, stop := r.begin(ctx, limit)
	defer stop()
	for i := range n {
		go func() {
			defer func() { r.came <- i }()
			a := &r.made[i]
			a.done = true
			attempts.Outlast(&a.err, func() (err error) { a.value, err = within(run, q, i, limit, call); return err })
		}()
	}
	for r.open > 0 && !enough(r) {
		r.take(<-r.came)
	}
	return r
}

// begin returns the context of the commands of a round, which ends with ctx until stop, at the time
// limit, and with r.cancel. A command whose context is known to end late enough needs no goroutine
// of its own, see package lifetime. Such a context ends with ctx also after stop, so the end has to
// leave each member the time of straggle.
func (r *round[T]) begin(ctx context.Context, limit time.Duration) (run context.Context, stop func() bool) {
	if end, is := ctx.Deadline(); is && limit == 0 && !lifetime.Within(ctx, straggle) { // nothing else ends ctx
		until := lifetime.Until(ctx, end)
		r.cancel = func(error) { until.Stop() }
		return until, func() bool { return true }
	}
	run, stopTimer := context.WithoutCancel(ctx), context.CancelFunc(func() {})
	if limit > 0 {
		run, stopTimer = context.WithTimeout(run, limit)
	}
	run, cancel := context.WithCancelCause(run)
	r.cancel = func(cause error) { cancel(cause); stopTimer() }
	if ctx.Err() != nil {
		r.cancel(ctx.Err()) // before any command
	}
	return run, context.AfterFunc(ctx, func() { r.cancel(ctx.Err()) })
}

// within calls one member, and notes whether the member is silent. ctx has the time limit, and ends
// in another way if the round is over before.
func within[T any](ctx context.Context, q *quorum, i int, limit time.Duration,
	call func(ctx context.Context, i int) (T, error)) (T, error) {
	v, err := call(ctx, i)
	end := ctx.Err()
	if overdue := limit > 0 && end == context.DeadlineExceeded; overdue && err != nil {
		err, end = store.Unavailable(err), nil
	}
	switch {
	case answered(err):
		q.hear(i)
	case unavailable(err) && end == nil:
		q.silent[i].Store(true)
	}
	return v, err
}

// hear notes an answer of a member.
func (q *quorum) hear(i int) {
	q.silent[i].Store(false)
	q.heard[i].Store(max(1, int64(time.Since(q.begun))))
}

// quiet returns the time since the last answer of a member to any call.
func (q *quorum) quiet(i int) time.Duration {
	last := q.heard[i].Load()
	if last == 0 {
		return math.MaxInt64
	}
	return time.Since(q.begun) - time.Duration(last)
}

func (r *round[T]) take(i int) {
	r.answers[i] = r.made[i]
	if r.open--; r.open == 0 {
		r.cancel(nil)
	}
}

// linger waits until enough says so, or until a call with a majority has cost twice its time,
// within shortestGrace and longestGrace, but not beyond the end of ctx.
func (r *round[T]) linger(ctx context.Context, since time.Time, enough func() bool) {
	if r.open == 0 || enough() {
		return
	}
	timer := time.NewTimer(grace(since))
	defer timer.Stop()
	for r.open > 0 && !enough() {
		select {
		case i := <-r.came:
			r.take(i)
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// grace returns the time for which a call that has begun at since, and has a majority, waits on.
func grace(since time.Time) time.Duration {
	return min(max(time.Since(since), shortestGrace), longestGrace)
}

// complete reports whether all members have answered but the silent ones. A member that has
// answered needs no cleanup.
func (r *round[T]) complete() bool {
	for _, a := range r.answers {
		if !a.done && !a.silent {
			return false
		}
	}
	return true
}

// finish ends the command at members without an answer, and takes in the errors of these members.
func (r *round[T]) finish() {
	r.cancel(nil)
	for r.open > 0 {
		r.take(<-r.came)
	}
}

// rest waits for the members without an answer, and ends the command there after straggle. Nobody
// reads their answers, so rest may run beside a reader of the round.
func (r *round[T]) rest() {
	timer := time.AfterFunc(straggle, func() { r.cancel(nil) })
	defer timer.Stop()
	for range r.open {
		<-r.came
	}
	r.cancel(nil)
}

// behind lets the members without an answer go on behind the call.
func (r *round[T]) behind() {
	if r.open > 0 {
		r.quorum.background(r.rest)
	}
}

// first returns the answer of the first member that can be reached. first returns false while that
// member is not known.
func (r *round[T]) first() (a answer[T], known bool) {
	for _, a := range r.answers {
		if a.done && answered(a.err) {
			return a, true
		}
		if !a.done && !a.silent {
			return a, false
		}
	}
	return a, true
}

// settled reports whether a majority has answered, and all members but the silent ones.
func (r *round[T]) settled() bool {
	return r.complete() && len(r.answers)-r.open >= r.quorum.majority
}

// count returns the number of members that have answered with an error that matches.
func (r *round[T]) count(match func(error) bool) (n int) {
	for _, a := range r.answers {
		if a.done && match(a.err) {
			n++
		}
	}
	return n
}

// decided is quorum.decided of the answers so far.
func (r *round[T]) decided() bool {
	return r.count(done) >= r.quorum.majority || r.count(gone) >= r.quorum.majority
}

// values returns the answers without an error.
func (r *round[T]) values() (values []T) {
	for _, a := range r.answers {
		if a.done && a.err == nil {
			values = append(values, a.value)
		}
	}
	return values
}

// errs returns the error of each member.
func (r *round[T]) errs() []error {
	errs := make([]error, len(r.answers))
	for i, a := range r.answers {
		if errs[i] = a.err; !a.done {
			errs[i] = errOpen
		}
	}
	return errs
}

// best returns the lease that a majority keeps: the k-th longest lease of the members, where k is
// the majority. There are at least k leases.
func (q *quorum) best(leases []store.Lease) store.Lease {
	slices.SortFunc(leases, func(a, b store.Lease) int { return b.Until().Compare(a.Until()) })
	return leases[q.majority-1]
}
