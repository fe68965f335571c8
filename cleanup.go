package relock

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/store"
)

// cleanup takes back all remains of orphan claims in the store: the queue place of a waiter that
// gave up, a late grant, a lock that a command takes after its caller has gone.
//
// A claim is forgotten until the store confirms it, and again at growing intervals for one lease,
// as a command may run late. One goroutine works on all claims, many in a round trip, and ends with
// the last claim.
type cleanup struct {
	client *Client
	wake   chan struct{}

	mu      sync.Mutex
	pending timers.Heap[*orphan]
	last    []store.Claim // confirmed when the client was closed
	running bool
}

// orphan is a claim without a caller.
type orphan struct {
	item      timers.Item[*orphan]
	claim     store.Claim
	name      string       // of the lock, as its user knows it
	logger    *slog.Logger // of the lock
	confirmed bool         // by some attempt
	delayed   bool         // the store is to keep the claim until next
	tries     int
	next      time.Time
	until     time.Time // the store keeps nothing of the claim from this time on
}

const (
	// firstForget is the time between the first two attempts. The interval doubles with each
	// attempt, up to longForget, until the store has confirmed an attempt. After the confirmation
	// the interval grows four times with each attempt.
	firstForget = 50 * time.Millisecond
	longForget  = 2 * time.Second
	forgetLimit = 2 * time.Second // for one round trip
	forgetBatch = 256
	// mostPending is how many claims cleanup keeps while the store does not confirm. When there are
	// more, a new claim is left to the end of its lease: calls give up faster than a store that is
	// silent forgets.
	mostPending = 1 << 16
	// oftenAtMost is how many unconfirmed claims are tried within longForget. When there are more,
	// each is tried less often, but once in longestForget.
	oftenAtMost   = 1024
	longestForget = time.Minute
	// mostRepeated is how many claims cleanup keeps to forget them again. When there are more, a
	// claim that was forgotten twice is dropped: a crowd of calls that give up does not fill the
	// memory.
	mostRepeated = 4096
	// keepForgetting is the time beyond the lease for which cleanup retries an unconfirmed claim. A
	// queue place may last longer still: a grant to such a place goes on to the next waiter, or
	// costs one lease.
	keepForgetting = time.Minute
	// closeLimit bounds the wait of Close for unconfirmed claims, anew from each confirmation.
	closeLimit = time.Second
)

// add takes in a claim. Its lease may last for longest from now on.
func (u *cleanup) add(h *hold, claim store.Claim, longest time.Duration) {
	u.addAfter(0, h, claim, longest)
}

// addAfter takes in a claim that is to be forgotten no sooner than after delay. If the client is
// closed before, the claim is left to the end of its lease.
func (u *cleanup) addAfter(delay time.Duration, h *hold, claim store.Claim, longest time.Duration) {
	now := time.Now()
	claim.TTL = h.ttl // as in the queue; renewals may have set another TTL
	u.mu.Lock()
	defer u.mu.Unlock()
	if delay > 0 && u.client.isClosed() {
		return
	}
	if u.pending.Len() >= mostPending {
		if u.client.isDue(&u.client.quiet, longestQuiet) {
			u.client.log(h.logger, slog.LevelWarn, "relock: too many calls have given up while the store is silent: what they have left there ends with its lease",
				slog.String("lock", h.name), slog.Int("pending", mostPending))
		}
		return
	}
	w := &orphan{
		claim: claim, name: h.name, logger: h.logger, delayed: delay > 0,
		until: now.Add(delay + claim.Kept(max(longest, claim.TTL))),
	}
	w.item.Value = w
	u.pushLocked(w, now.Add(delay))
	if !u.running {
		u.running = true
		u.client.group.Go(u.run) // also after Close, for a section that outlives the client
		return
	}
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// run ends when nothing is pending, or soon after Close.
func (u *cleanup) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	closing := time.Time{} // when to give up, once the client is closed
	for {
		now := time.Now()
		if closing.IsZero() && u.client.isClosed() {
			closing = now.Add(closeLimit)
			u.hurry(now)
		}
		due, next, more := u.due(now)
		if len(due) > 0 {
			if u.forget(due, closing) && !closing.IsZero() {
				closing = time.Now().Add(closeLimit)
			}
			continue
		}
		if !more || !closing.IsZero() && !now.Before(closing) {
			if u.stop(more) {
				return
			}
			continue
		}
		timer.Reset(time.Until(next))
		if !closing.IsZero() {
			<-timer.C
			continue
		}
		select {
		case <-timer.C:
		case <-u.wake:
		case <-u.client.life.Done():
		}
	}
}

// due takes out a batch of claims to try now. due returns the time of the next attempt too, and
// whether any claim is left.
func (u *cleanup) due(now time.Time) (due []*orphan, next time.Time, more bool) {
	t := &u.client.table
	u.mu.Lock()
	defer u.mu.Unlock()
	first, at := u.pending.First()
	for ; first != nil && at <= t.at(now) && len(due) < forgetBatch; first, at = u.pending.First() {
		u.pending.Remove(first)
		due = append(due, first.Value)
	}
	return due, t.start.Add(at), first != nil
}

// hurry moves confirmed claims to last, drops claims that the store is to keep, and has the rest
// tried soon. From then on each claim is tried every firstForget, until it is confirmed.
func (u *cleanup) hurry(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range slices.Collect(u.pending.All()) {
		switch {
		case w.confirmed:
			u.last = append(u.last, w.claim)
			u.pending.Remove(&w.item)
		case w.delayed && w.next.After(now):
			u.pending.Remove(&w.item)
		case w.next.After(now.Add(firstForget)):
			u.pushLocked(w, now.Add(firstForget))
		}
	}
}

// pushLocked has a claim tried at a time.
func (u *cleanup) pushLocked(w *orphan, next time.Time) {
	w.next = next
	u.pending.Set(&w.item, u.client.table.at(next))
}

// forget tries a batch, keeps unfinished claims, and says whether the store has confirmed any.
func (u *cleanup) forget(batch []*orphan, closing time.Time) (answered bool) {
	life, end := u.client.life, time.Now().Add(forgetLimit)
	if !closing.IsZero() {
		life, end = context.Background(), closing
	}
	ctx, cancel := context.WithDeadline(life, end)
	defer cancel()
	claims := make([]store.Claim, len(batch))
	for i, w := range batch {
		claims[i] = w.claim
	}
	errs := apart(len(claims), func() []error { return u.client.store.Forget(ctx, claims) })
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	longest := u.longPauseLocked()
	if !closing.IsZero() {
		longest = firstForget
	}
	for i, w := range batch {
		w.tries, w.delayed = w.tries+1, false
		keptUntil := w.until
		var next time.Time
		if err := errs[i]; err == nil {
			answered = true
			if !w.confirmed {
				w.confirmed, w.tries = true, 1
			}
			if w.tries > 1 && u.pending.Len() >= mostRepeated {
				continue
			}
			if !closing.IsZero() {
				u.last = append(u.last, w.claim)
				continue
			}
			next = now.Add(firstForget << min(2*(w.tries-1), 20))
			if next.After(keptUntil) {
				next = keptUntil // once more at the end of everything
			}
		} else {
			if !w.confirmed {
				keptUntil = keptUntil.Add(keepForgetting)
			}
			next = now.Add(min(firstForget<<min(w.tries-1, 20), longest))
			if !now.Before(keptUntil) {
				u.client.log(w.logger, slog.LevelWarn, "relock: could not confirm that nothing is left in the store",
					slog.String("lock", w.name), slog.String("holder", holderOf(w.claim.ID).String()), slog.Any("error", err))
			}
		}
		if now.Before(keptUntil) {
			u.pushLocked(w, next)
		}
	}
	return answered
}

// longPauseLocked returns the longest pause between two attempts to forget a claim.
func (u *cleanup) longPauseLocked() time.Duration {
	return min(max(1, time.Duration(u.pending.Len()/oftenAtMost))*longForget, longestForget)
}

// apart runs a command of the store about n holds in a goroutine of its own. If code of the store
// ends that goroutine or panics, or has another number of results, each hold has an error.
func apart(n int, command func() []error) (errs []error) {
	err := attempts.Apart(func() error {
		if errs = command(); len(errs) != n {
			return store.Unsure(fmt.Errorf("the store has %d results for %d holds", len(errs), n))
		}
		return nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, n)
	}
	return errs
}

// stop ends the goroutine. Without giveUp the goroutine goes on if claims are pending.
func (u *cleanup) stop(giveUp bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending.Len() > 0 && !giveUp {
		return false
	}
	u.pending, u.running = timers.Heap[*orphan]{}, false
	return true
}

// forgetLast forgets once more what was confirmed before the last command; false: nothing was.
func (u *cleanup) forgetLast() bool {
	u.mu.Lock()
	claims := u.last
	u.last = nil
	u.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	for batch := range slices.Chunk(claims, forgetBatch) {
		apart(len(batch), func() []error { return u.client.store.Forget(ctx, batch) }) // the store answered just now, and leases end
	}
	return len(claims) > 0
}
