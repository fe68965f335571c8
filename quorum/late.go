package quorum

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-relock/relock/store"
)

// late is a command on a hold that may act behind the end of the hold: members that have not
// answered yet, or members that get the hold again. The end of the hold cancels the command, and
// takes its effects back.
type late struct {
	id store.ID

	// Guarded by quorum.mu.
	cancel func()
	over   bool
}

// enlist notes a command. Every command ends with dismiss.
func (q *quorum) enlist(id store.ID, cancel func()) *late {
	l := &late{id: id, cancel: cancel}
	q.mu.Lock()
	defer q.mu.Unlock()
	l.over = q.ending[id] > 0
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
func (q *quorum) behind(l *late, a store.Ask, members []int, rest func()) {
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

// fill gives a hold again, after fillAfter, to members that do not have the hold: a member was
// missed, or has lost its data. The command l before has the word of a majority that the hold is
// not over. If the hold ends meanwhile, fill does nothing, so the hold does not come back. A member
// that has another hold, or waiters, refuses.
func (q *quorum) fill(l *late, a store.Ask, members []int) {
	if len(members) == 0 || a.TTL == 0 {
		q.dismiss(l)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), fillAfter+attemptLimit(a))
	q.mu.Lock()
	l.cancel = cancel
	over := l.over
	q.mu.Unlock()
	if over {
		cancel()
	}
	q.behind(l, a, members, func() {
		defer cancel()
		select {
		case <-time.After(fillAfter):
		case <-ctx.Done():
			return
		case <-q.life.Done():
			return
		}
		var group sync.WaitGroup
		for _, i := range members {
			group.Go(func() { _, _ = q.members[i].Try(ctx, a) })
		}
		group.Wait()
	})
}

// abandon takes a hold back from the minority that has the hold yet, if err says that a majority
// has lost it. Otherwise a waiter for that minority would wait for the end of the lease.
func (q *quorum) abandon(a store.Ask, err error) {
	if !gone(err) {
		return
	}
	ended := q.over(a.ID)
	q.background(func() {
		defer ended()
		q.takeBack(context.Background(), a, q.all())
	})
}
