package quorum

import (
	"context"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// late is a command on a hold that may act behind the end of the hold: members that have not
// answered yet, or members that get the hold again. The end of the hold cancels the command, and
// takes its effects back.
type late struct {
	id     store.ID
	cancel func()
	over   bool // guarded by quorum.mu
}

// enlist notes a command. Every command ends with dismiss.
func (q *quorum) enlist(id store.ID, cancel func()) *late {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.enlistLocked(id, cancel)
}

func (q *quorum) enlistLocked(id store.ID, cancel func()) *late {
	l := &late{id: id, cancel: cancel, over: q.ending[id] > 0}
	q.late[id] = append(q.late[id], l)
	return l
}

// dismiss ends a command, and reports whether the hold is over.
func (q *quorum) dismiss(l *late) (over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.late[l.id] = slices.DeleteFunc(q.late[l.id], func(other *late) bool { return other == l })
	if len(q.late[l.id]) == 0 {
		delete(q.late, l.id)
	}
	return l.over
}

// over cancels the commands on a hold that ends. Call over before the command that ends the hold,
// and ended after that command: commands that begin in between must not bring the hold back either.
func (q *quorum) over(id store.ID) (ended func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ending[id]++
	for _, l := range q.late[id] {
		l.over = true
		l.cancel()
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.ending[id]--; q.ending[id] == 0 {
			delete(q.ending, id)
		}
	}
}

// background runs f in a goroutine that Close waits for. After Close, the caller runs f.
func (q *quorum) background(f func()) {
	if !q.group.GoOpen(f) {
		f()
	}
}

// behind runs the rest of a command in the background. If the hold is over by then, members forget
// the hold.
func (q *quorum) behind(l *late, a store.Claim, members []int, rest func()) {
	q.background(func() {
		rest()
		if q.dismiss(l) {
			q.takeBack(context.Background(), a, members)
		}
	})
}

// fillAfter is the time for which a member is without a hold before the member gets the hold again.
// A Break takes no longer to reach all members: filled one by one as they are freed, they would
// have the broken hold again.
const fillAfter = longestLimit

// place is a hold at a member.
type place struct {
	id     store.ID
	member int
}

// fill gives a hold again, after fillAfter, to members that do not have the hold: a member was
// missed, or has lost its data. The command l before has the word of a majority that the hold is
// not over. If the hold ends meanwhile, fill does nothing, so the hold does not come back.
//
// A waiter may have the lock of the member, and others wait there. So the hold queues, and goes on
// for as long as a majority confirms the hold once in a lease.
func (q *quorum) fill(l *late, a store.Claim, members []int) {
	if a.TTL == 0 {
		members = nil
	}
	var begun []func()
	q.mu.Lock()
	for _, i := range members {
		if !l.over {
			begun = append(begun, q.fillLocked(a, i))
		}
	}
	q.mu.Unlock()
	for _, begin := range begun {
		begin()
	}
	q.dismiss(l)
}

// fillLocked returns the function that begins to fill one member. If a fill is under way there,
// fillLocked lets the fill go on for another lease.
func (q *quorum) fillLocked(a store.Claim, member int) (begin func()) {
	at := place{a.ID, member}
	if end := q.fills[at]; end != nil {
		end.Reset(a.TTL)
		return func() {}
	}
	ctx, cancel := context.WithCancel(q.life)
	end := time.AfterFunc(fillAfter+a.TTL, cancel)
	q.fills[at] = end
	l := q.enlistLocked(a.ID, cancel)
	return func() {
		q.behind(l, a, []int{member}, func() {
			defer cancel()
			select {
			case <-time.After(fillAfter):
				_ = attempts.Apart(func() error {
					_, err := q.members[member].Wait(ctx, a, func(store.Progress) {})
					return err
				})
			case <-ctx.Done():
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			end.Stop()
			delete(q.fills, at)
		})
	}
}

// abandon takes a hold back from the minority that has the hold yet, if a majority has lost it, by
// the errors of all members. Otherwise a waiter for that minority would wait for the end of the
// lease.
func (q *quorum) abandon(a store.Claim, errs []error) {
	if count(errs, gone) < q.majority {
		return
	}
	ended := q.over(a.ID)
	q.background(func() {
		defer ended()
		q.takeBack(context.Background(), a, q.all())
	})
}
