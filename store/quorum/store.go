// Package quorum keeps locks in several independent stores. A hold has a lock while a majority of
// the stores keeps its lease, so locks outlast the loss of any minority of them:
//
//	var members []store.Store
//	for _, rdb := range servers { // independent servers, not replicas of one
//		m, err := relock.RedisStore(rdb)
//		...
//		members = append(members, m)
//	}
//	s, err := quorum.New(members...)
//	...
//	client, err := relock.Open(s)
//
// All processes must name the same members in the same order. docs/STORES.md has the algorithm, and
// says what no quorum protects from.
package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// quorum is a store over members. Waiters queue at the first member that answers.
type quorum struct {
	members  []store.Store
	majority int
	silent   []atomic.Bool  // the member gave no answer in time, and no answer since
	heard    []atomic.Int64 // when the member answered last: a time since begun; 0: never
	begun    time.Time
	group    group.Group     // goroutines of calls that have returned
	life     context.Context // ends with Close
	end      context.CancelFunc

	mu     sync.Mutex
	late   map[store.ID][]*late // commands on open holds
	ending map[store.ID]int     // commands in flight that end the hold
	fills  map[place]*time.Timer
}

var (
	_ store.Watcher = (*quorum)(nil)
	_ store.Checker = (*quorum)(nil)
	_ store.Racing  = (*quorum)(nil)
	_ store.Listing = (*quorum)(nil)
)

// New makes a store over members: an odd number, at least 3. The members must not share a server.
// The order of the members is part of the configuration, and must be the same in all processes.
// Close closes the members.
func New(members ...store.Store) (store.Store, error) {
	n := len(members)
	if n < 3 || n%2 == 0 {
		return nil, fmt.Errorf("a quorum needs an odd number of members, at least 3, and not %d", n)
	}
	if i := slices.Index(members, nil); i >= 0 {
		return nil, fmt.Errorf("member %d of the quorum is nil", i+1)
	}
	life, end := context.WithCancel(context.Background())
	return &quorum{
		members: slices.Clone(members), majority: n/2 + 1, life: life, end: end,
		silent: make([]atomic.Bool, n), heard: make([]atomic.Int64, n), begun: time.Now(), late: make(map[store.ID][]*late), ending: make(map[store.ID]int),
		fills: make(map[place]*time.Timer),
	}, nil
}

// Check accepts a claim that all members accept, in one spelling. Kinds other than a
// mutex are [errors.ErrUnsupported]: majorities of semaphores do not add up to one.
func (q *quorum) Check(a store.Claim) (store.Claim, error) {
	if a.Kind != store.Mutex || a.Limit != 1 {
		return a, fmt.Errorf("%w: a lock in a quorum is a mutex, and not %s", errors.ErrUnsupported, a.Kind)
	}
	if a.Keeps {
		return a, fmt.Errorf("%w: a lock in a quorum is not kept", errors.ErrUnsupported)
	}
	checked, err := q.members[0].Check(a)
	for i, m := range q.members[1:] {
		if err != nil {
			break
		}
		var other store.Claim
		if other, err = m.Check(a); err == nil && !isSame(other, checked) {
			err = fmt.Errorf("member %d spells the lock %+v, and member 1 %+v: do all have the same prefix?", i+2, other, checked)
		}
	}
	return checked, err
}

// isSame compares two spellings of a claim without the Report, whose type may not be comparable.
func isSame(a, b store.Claim) bool {
	a.Report, b.Report = nil, nil
	return a == b
}

// Try asks all members at once. The hold has the lock when a majority has given its lease, and the
// first member that can be reached is among them. A refusal by that member is a refusal of the
// lock, as the waiters queue there.
func (q *quorum) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	if ctx.Err() != nil {
		return store.Lease{}, lifetime.Ended(ctx)
	}
	begun := time.Now()
	admitted := func(r *round[store.Lease]) bool {
		first, known := r.first()
		return known && first.done && first.err == nil && r.count(done) >= q.majority
	}
	r := ask(ctx, q, attemptLimit(a), func(r *round[store.Lease]) bool { return admitted(r) || r.settled() },
		func(ctx context.Context, i int) (store.Lease, error) { return q.members[i].Try(ctx, a) })
	if admitted(r) {
		r.linger(ctx, begun, r.complete)
	}
	if !admitted(r) || ctx.Err() != nil {
		return store.Lease{}, q.refused(ctx, a, r)
	}
	errs, leases := r.errs(), r.values()
	l := store.Lease{Claim: a, Sent: q.best(leases).Sent, Unsure: count(errs, unsure) > 0}
	for _, given := range leases {
		l.Unsure = l.Unsure || given.Unsure
	}
	if r.open > 0 {
		q.behind(q.enlist(a.ID, func() { r.cancel(nil) }), a, where(errs, unsure), r.rest)
	}
	return l, nil
}

// refused takes back all leases of a hold that does not have the lock, and returns the error of
// Try.
func (q *quorum) refused(ctx context.Context, a store.Claim, r *round[store.Lease]) error {
	r.finish()
	errs := r.errs()
	err := failed(ctx, errs)
	busy, first := where(errs, isBusy), where(errs, answered)
	if len(busy) > 0 && ctx.Err() == nil && (busy[0] == first[0] || len(first) >= q.majority) {
		err = errs[busy[0]]
	}
	if !q.takeBack(ctx, a, where(errs, func(err error) bool { return done(err) || unsure(err) })) {
		err = store.Unsure(err)
	}
	return err
}

// all returns all members.
func (q *quorum) all() []int {
	return where(make([]error, len(q.members)), done)
}

// takeBack forgets a claim at members, and reports whether all of them have confirmed. takeBack does
// not wait for silent members, nor beyond the end of ctx, and has a time limit.
func (q *quorum) takeBack(ctx context.Context, a store.Claim, members []int) bool {
	if len(members) == 0 {
		return true
	}
	confirmed := make(chan bool, 1)
	q.background(func() {
		r := ask(context.Background(), q, attemptLimit(a), (*round[struct{}]).complete,
			func(ctx context.Context, i int) (none struct{}, err error) {
				if !slices.Contains(members, i) {
					return none, errNotAsked
				}
				return none, q.members[i].Forget(ctx, []store.Claim{a})[0]
			})
		confirmed <- r.count(done) == len(members)
		r.rest()
	})
	select {
	case all := <-confirmed:
		return all
	case <-ctx.Done():
		return false
	}
}

// Enter sends the count and the lease to all members. Members that do not have the hold get the
// hold again, once a majority has confirmed. A lease that was never sent is gone, see Wait.
func (q *quorum) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if l.Sent.IsZero() {
		return store.Lease{}, store.ErrGone
	}
	command := q.enlist(l.ID, func() {})
	r := ask(ctx, q, 0, (*round[store.Lease]).decided,
		func(ctx context.Context, i int) (store.Lease, error) { return q.members[i].Enter(ctx, l, count) })
	defer r.behind()
	errs, leases := r.errs(), r.values()
	if err := q.verdict(ctx, errs); err != nil {
		q.dismiss(command)
		q.abandon(l.Claim, errs)
		return store.Lease{}, err
	}
	q.fill(command, l.Claim, where(errs, gone))
	entered := l
	if l.TTL > 0 {
		kept := q.best(leases)
		entered.Sent, entered.TTL = kept.Sent, kept.TTL
	}
	return entered, nil
}

// Release frees the lock at all members. Release waits a little for each member that is not
// silent: a member that still has the old hold refuses the next one, which then lacks a majority if
// another member is away. A member that does not have the hold forgets the hold.
func (q *quorum) Release(ctx context.Context, l store.Lease) error {
	ended := q.over(l.ID)
	begun := time.Now()
	r := ask(ctx, q, 0, (*round[struct{}]).decided,
		func(ctx context.Context, i int) (none struct{}, err error) {
			err = q.members[i].Release(ctx, l)
			if gone(err) { // a fill that gave up may have left a place in the queue
				_ = q.members[i].Forget(ctx, []store.Claim{l.Claim})
			}
			return none, err
		})
	r.linger(ctx, begun, r.complete)
	if r.open == 0 {
		ended()
	} else {
		q.background(func() {
			defer ended()
			r.rest()
		})
	}
	return q.verdict(ctx, r.errs())
}

// Forget takes back the remains at all members. A claim is forgotten when all members have
// confirmed; the error names the others.
func (q *quorum) Forget(ctx context.Context, claims []store.Claim) []error {
	for _, a := range claims {
		defer q.over(a.ID)()
	}
	r := ask(ctx, q, 0, func(*round[[]error]) bool { return false },
		func(ctx context.Context, i int) ([]error, error) {
			errs := q.members[i].Forget(ctx, claims)
			return errs, unreached(errs)
		})
	results := make([]error, len(claims))
	for n := range claims {
		errs := make([]error, len(r.answers))
		for i, a := range r.answers {
			errs[i] = word(a, n)
		}
		if count(errs, done) < len(errs) {
			results[n] = failed(ctx, errs)
			if count(errs, done)+count(errs, unsure) > 0 {
				results[n] = store.Unsure(results[n])
			}
		}
	}
	return results
}

// Token draws in two rounds, each with a majority. M is the largest token of the first round, and
// the floor of the second round. Token returns the k-th largest token of the second round, where k
// is the majority.
//
// The token is larger than every token V that was returned before. When V was returned, k members
// had a last token of at least V. Two majorities share a member, so the first round has the answer
// of one of these k members, and M is larger than V. All tokens of the second round are larger than
// M. At the end, k members have a last token of at least the new token, and never go below it. One
// round would not do: its k-th largest token may come from a member that has never heard of V.
func (q *quorum) Token(ctx context.Context, l store.Lease) (int64, error) {
	var token int64
	for range 2 {
		floored := l // a copy for members that go on behind the round
		r := ask(ctx, q, attemptLimit(l.Claim), (*round[int64]).settled,
			func(ctx context.Context, i int) (int64, error) { return q.members[i].Token(ctx, floored) })
		r.behind()
		errs, drawn := r.errs(), r.values()
		if err := q.verdict(ctx, errs); err != nil {
			return 0, err
		}
		if slices.Min(drawn) <= l.Token {
			return 0, fmt.Errorf("%w: a member draws tokens without a floor", errors.ErrUnsupported)
		}
		l.Token = slices.Max(drawn)
		token = nth(drawn, q.majority, func(t int64) int64 { return t })
	}
	return token, nil
}

// Races reports whether waiters race at a member: the waiters of the quorum queue at a member.
func (q *quorum) Races() bool {
	return slices.ContainsFunc(q.members, func(m store.Store) bool {
		r, ok := m.(store.Racing)
		return ok && r.Races()
	})
}

// Close waits for the goroutines behind earlier calls, at most a few seconds, and closes the
// members.
func (q *quorum) Close() error {
	q.group.Close()
	q.end()
	q.group.Wait()
	var errs []error
	for _, m := range q.members {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
