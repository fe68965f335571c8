package redisstore

import (
	"context"
	"errors"
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

	woken    store.Wake // the reason for the last claim
	unsure   bool       // a command may run yet
	queued   bool       // the waiter may have a place in the queue
	tries    int        // that did not find the node of a channel
	place    int        // the number of earlier waiters at the last claim
	timedOut bool       // the last sleep has lasted for its time
	rested   bool       // the waiter has slept on, for the answer to another one
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
	w.woken, w.place = store.WakeNone, r.position
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
	w.timedOut = false
	select {
	case n = <-notes[0]:
	case n = <-notes[1]:
	case <-timer.C:
		w.timedOut = true
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

// rest is sleep in turns with the other waiters of the store: see looker.
func (w *waiting) rest(ctx context.Context, recheck time.Duration, notes [2]<-chan subs.Note, own *looker, limit time.Duration) (n subs.Note, err error) {
	for {
		if n, err = w.sleep(ctx, recheck, notes); !w.timedOut {
			return n, err
		}
		var answer acquireReply
		if recheck, answer = own.rest(limit); recheck == 0 {
			return n, err
		}
		w.rested = true
		w.progress(store.Progress{Busy: answer.busy(), Queued: true, Position: w.place})
	}
}

// Wait queues, and waits for the grant.
//
// Each claim with a place in the queue may be answered by a grant. A waiter that has asked more than
// once cannot tell to which ask a message belongs, and an older grant may be over. So the waiter
// believes a grant after exactly one claim in one attempt, about as long ago as a lease at most.
// Otherwise the waiter asks, and the answer confirms the grant.
//
// A lost base key leaves a queue that nobody serves. The next call that asks for the lock serves
// the queue, and so does Forget, when the client of the owner has found the loss. If no client
// does, the first waiter asks when the lost lease should be over.
func (s *nativeStore) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (l store.Lease, err error) {
	w := waiting{progress: progress}
	topic := s.topic(a)
	listener := s.subs.Listening(topic, string(a.ID))
	own := looker{looks: &s.looks, crowd: crowd{a.Name, a.TTL}}
	defer func() {
		own.leave()
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
			if w.timedOut {
				own.took()
			}
			return s.keepOrUndo(ctx, w.ours(r.toLease(a, answer)), answer.Acked)
		case r.status == statusQueued:
			w.queued, arrival = true, strconv.FormatInt(r.number, 10)
			own.note(a, r, answer)
		case listener != nil: // nothing hears the channel on the node of the lock
			own.leave()
			listener.Suspect()
		}
		w.refused(r, w.queued)
		recheck := leaseLeft(a, r) + turn(a, r)
		if listener == nil {
			if listener, err = w.listen(ctx, s.subs, topic, string(a.ID), recheck); err != nil {
				return store.Lease{}, w.fail(err)
			}
			continue
		}
		if r.status == statusQueued && a.Kind == store.Mutex && !w.unsure {
			p = s.waited.sleep(a)
		}
		n, err := w.rest(ctx, recheck, [2]<-chan subs.Note{listener.C(), p.woken()}, &own, takingLimit(a))
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
		if n.Message && placeAsks == 1 && !w.rested && !answer.Unsure && a.Acks == (store.Acks{}) {
			return w.ours(store.Lease{Claim: a, Sent: answer.Sent, Run: s.waited.run(a, n.Payload)}), nil
		}
	}
}
