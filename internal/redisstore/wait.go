package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file waits in relock's own layout: ask, listen, ask again for a place in the queue,
// and wait for a message, the end of the lease of the owner, or the end of the context. Wait of
// Redisson's layout is in redisson.go.

// waiting is the state of one call of Wait.
type waiting struct {
	progress func(store.Progress)

	woken  store.Wake // the reason for the last claim
	unsure bool       // a command may run yet
	queued bool       // the waiter may have a place in the queue
	tries  int        // that did not find the node of a channel
}

// fail returns the error of the call. Cleanup takes back the rest of the call.
func (w *waiting) fail(err error) error {
	if w.unsure || w.queued {
		return store.Unsure(err)
	}
	return err
}

// ours completes the lease that the store has given.
func (w *waiting) ours(l store.Lease) store.Lease {
	l.Woken, l.Unsure = w.woken, w.unsure
	return l
}

func (w *waiting) refused(r acquireReply, queued bool) {
	w.woken = store.WakeNone
	w.progress(store.Progress{Busy: r.busy(), Queued: queued, Position: r.position})
}

// listen subscribes to a topic; nil: the waiter has to ask again before a confirmation.
func (w *waiting) listen(ctx context.Context, h *subs.Hub, t subs.Topic, id string, recheck time.Duration) (*subs.Listener, error) {
	bound, cancel := context.WithTimeout(ctx, recheck)
	defer cancel()
	l, err := h.Listen(bound, t, id)
	switch {
	case err == nil:
		return l, nil
	case ctx.Err() != nil:
		return nil, lifetime.Ended(ctx)
	case wire.Refused(err), errors.Is(err, subs.ErrClosed):
		return nil, err
	case bound.Err() == nil: // the cluster has no node for the channel just now
		w.tries++
		lifetime.Sleep(bound.Done(), wire.Pause(w.tries+1))
	}
	w.woken = store.WakeRecheck
	return nil, nil
}

// sleep returns a message when it comes, and no message when the waiter has to ask again. A message
// at the end of ctx counts more than that end. The second channel is Redisson's, in a cluster, or
// that of a sleeper.
func (w *waiting) sleep(ctx context.Context, recheck time.Duration, notes [2]<-chan subs.Note) (n subs.Note, err error) {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	select {
	case n = <-notes[0]:
	case n = <-notes[1]:
	case <-timer.C:
	case <-ctx.Done():
		select {
		case n = <-notes[0]:
		case n = <-notes[1]:
		default:
		}
		if !n.Message {
			return n, lifetime.Ended(ctx)
		}
	}
	if !n.Message {
		w.woken = store.WakeRecheck
	}
	return n, n.Err
}

// Wait queues, and waits for the grant.
//
// Each claim with a place in the queue may be answered by a grant. A waiter that has asked more than
// once cannot tell to which ask a message belongs, and an older grant may be over. So the waiter
// believes a grant after exactly one claim in one attempt. Otherwise the waiter asks, and the answer
// confirms the grant.
//
// A lost base key leaves a queue that nobody serves. The next call that asks for the lock serves
// the queue, and so does Forget, when the client of the owner has found the loss. If no client
// does, the first waiter asks when the lost lease should be over.
func (s *nativeStore) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (l store.Lease, err error) {
	w := waiting{progress: progress}
	topic := s.topic(a)
	listener := s.subs.Listening(topic, string(a.ID))
	defer func() {
		if listener != nil {
			listener.Close()
		}
		s.waited.returns(a, err)
	}()
	arrival, placeAsks := newPlace, 0 // newPlace until the waiter queues; the asks for a place
	var p *sleeper                    // nil: the wait cannot be passed a lease
	for {
		place := noPlace
		if listener != nil {
			if placeAsks++; placeAsks == 1 {
				s.waited.begin(a.ID)
			}
			place = arrival
		}
		r, answer, err := s.claim(ctx, a, place, 0)
		w.unsure = w.unsure || answer.Unsure
		switch {
		case err != nil:
			return store.Lease{}, w.fail(err)
		case r.status == statusOurs:
			return s.keepOrUndo(ctx, w.ours(r.toLease(a, answer)), answer.Acked)
		case r.status == statusQueued:
			w.queued, arrival = true, strconv.FormatInt(r.number, 10)
		case listener != nil: // nothing hears the channel on the node of the lock
			listener.Suspect()
		}
		w.refused(r, w.queued)
		recheck := recheckAfter(a, r)
		if listener == nil {
			if listener, err = w.listen(ctx, s.subs, topic, string(a.ID), recheck); err != nil {
				return store.Lease{}, w.fail(err)
			}
			continue
		}
		if r.status == statusQueued && a.Kind == store.Mutex && !w.unsure {
			p = s.waited.sleep(a)
		}
		n, err := w.sleep(ctx, recheck, [2]<-chan subs.Note{listener.C(), p.woken()})
		if s.waited.wake(p) { // also at the end of ctx
			if s.giveBack(listener, topic, a.ID, n) {
				p.lease.Sent = time.Time{} // the client confirms the lease before it begins
			}
			return *p.lease, nil
		}
		p = nil
		if err != nil {
			return store.Lease{}, w.fail(err)
		}
		if n.Message {
			w.woken = store.WakeGrant
		}
		if n.Message && placeAsks == 1 && !answer.Unsure && a.Acks == (store.Acks{}) {
			return w.ours(store.Lease{Claim: a, Sent: answer.Sent, Run: s.waited.run(a, n.Payload)}), nil
		}
	}
}

const (
	// promptWaiters is the number of queued waiters that ask again as soon as the lease of the
	// owner should be over, so that a crashed owner costs little more than its lease. One is
	// enough, so the other waiters take time.
	promptWaiters = 4
	// longRecheck is the longest part of an owner's lease that a waiter with a shorter lease waits
	// out. The lock may have another owner by the end of longRecheck, with a shorter lease.
	longRecheck = 10 * time.Second
)

// recheckAfter returns when a waiter asks again by itself: the owner's lease should be over.
func recheckAfter(a store.Claim, r acquireReply) time.Duration {
	d := min(r.remaining, max(a.TTL, longRecheck))
	if d < 0 { // a foreign key without a lease
		d = a.TTL
	}
	if r.position < promptWaiters {
		return d + time.Millisecond + rand.N(5*time.Millisecond)
	}
	return d + rand.N(a.TTL/3+1)
}
