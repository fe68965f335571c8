package relock

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// Wait of both layouts: ask, listen, ask again, and wait for a message, the end of the lease of the
// owner, or the end of the context.

// waiting is the state of one call of Wait.
type waiting struct {
	progress func(store.Progress)

	woken  store.Wake // the reason for the last ask
	unsure bool       // a command may run yet
	queued bool       // the waiter may have a place in the queue
	tries  int        // that did not find the node of a channel
}

// error returns the error of the call. Cleanup takes back the rest of the call.
func (w *waiting) error(err error) error {
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

// refused reports that others have the lock.
func (w *waiting) refused(r acquired, queued bool) {
	w.woken = store.WakeNone
	w.progress(store.Progress{Busy: r.busy(), Queued: queued, Position: r.position})
}

// listen subscribes to a topic. listen returns nil when the waiter has to ask again before the
// subscription is confirmed.
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
		pause, cancel := context.WithTimeout(bound, wire.Pause(w.tries+1))
		defer cancel()
		<-pause.Done()
	}
	w.woken = store.WakeRecheck
	return nil, nil
}

// sleep returns true when a message comes, and false when the waiter has to ask again. A message at
// the end of ctx counts more than that end.
func (w *waiting) sleep(ctx context.Context, recheck time.Duration, ears [2]<-chan subs.Note) (message bool, err error) {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	var n subs.Note
	select {
	case n = <-ears[0]:
	case n = <-ears[1]:
	case <-timer.C:
	case <-ctx.Done():
		select {
		case n = <-ears[0]:
		case n = <-ears[1]:
		default:
		}
		if !n.Message {
			return false, lifetime.Ended(ctx)
		}
	}
	if !n.Message {
		w.woken = store.WakeRecheck
	}
	return n.Message, n.Err
}

// Wait queues, and waits for the grant.
//
// The waiter believes a grant if the waiter has asked exactly once with a place in the queue, in
// one attempt: no older grant can be on its way. Otherwise the waiter asks, and the answer confirms
// the grant.
//
// A lost base key leaves a queue that nobody serves. The next call that asks for the lock serves
// the queue, and so does Forget, when the client of the owner has found the loss. If no client
// does, the first waiter asks when the lost lease should be over.
func (s *nativeStore) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	w := waiting{progress: progress}
	topic := s.topic(a)
	listener := s.subs.Listening(topic, string(a.ID))
	defer func() {
		if listener != nil {
			listener.Close()
		}
	}()
	arrival, asked := newPlace, 0
	for {
		place := noPlace
		if listener != nil {
			place = arrival
			asked++
		}
		r, answer, err := s.acquire(ctx, a, place, 0)
		w.unsure = w.unsure || answer.Unsure
		switch {
		case err != nil:
			return store.Lease{}, w.error(err)
		case r.status == statusOurs:
			return confirmed(ctx, w.ours(r.lease(a, answer)), answer.Acked, s.Release)
		case r.status == statusQueued:
			w.queued, arrival = true, strconv.FormatInt(r.number, 10)
		case listener != nil: // nothing hears the channel on the node of the lock
			listener.Odd()
		}
		w.refused(r, w.queued)
		recheck := recheckAfter(a, r)
		if listener == nil {
			if listener, err = w.listen(ctx, s.subs, topic, string(a.ID), recheck); err != nil {
				return store.Lease{}, w.error(err)
			}
			continue
		}
		message, err := w.sleep(ctx, recheck, [2]<-chan subs.Note{listener.C()})
		if err != nil {
			return store.Lease{}, w.error(err)
		}
		if message {
			w.woken = store.WakeGrant
		}
		if message && asked == 1 && !answer.Unsure && a.Acks.Replicas == 0 {
			return w.ours(store.Lease{Ask: a, Sent: answer.Sent}), nil
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

// recheckAfter returns the time after which a waiter asks again by itself: the lease of the owner
// should be over.
func recheckAfter(a store.Ask, r acquired) time.Duration {
	d := min(r.remaining, max(a.TTL, longRecheck))
	if d < 0 { // a foreign key without a lease
		d = a.TTL
	}
	if r.position < promptWaiters {
		return d + time.Millisecond + rand.N(5*time.Millisecond)
	}
	return d + rand.N(a.TTL/3+1)
}

// watcher is one call of Watch.
type watcher struct{ doubt func(store.ID) }

// Watch listens to the control channel of a client, where Break publishes. Watch calls doubt with
// "" when the subscription is confirmed, when the connection of the subscription is back, and when
// the connections for commands are in trouble.
func (s *redisStore) Watch(client string, doubt func(store.ID)) (stop func()) {
	w := &watcher{doubt}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s.group.GoOpen(func() { s.watch(ctx, client, w) })
	return func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}
}

// watch ends with ctx, with the store, or when the server refuses the channel. Without the channel
// the next renewal finds that a hold is broken.
func (s *redisStore) watch(ctx context.Context, client string, w *watcher) {
	channel := s.control(client)
	var l *subs.Listener
	for tries := 2; l == nil; tries++ {
		var err error
		l, err = s.subs.Listen(ctx, subs.Topic{Key: channel, Channel: channel, Plain: true}, "")
		if ctx.Err() != nil || wire.Refused(err) || errors.Is(err, subs.ErrClosed) {
			return
		}
		if err != nil { // the cluster has no node for the channel just now
			pause, cancel := context.WithTimeout(ctx, wire.Pause(tries))
			<-pause.Done()
			cancel()
		}
	}
	defer l.Close()
	w.doubt("") // a hold may have been broken before
	for {
		select {
		case n := <-l.C():
			if n.Err != nil {
				return
			}
			w.doubt("")
		case <-ctx.Done():
			return
		case <-s.closed:
			return
		}
	}
}

// doubtAll tells all watchers that any hold may be gone.
func (s *redisStore) doubtAll() {
	s.mu.Lock()
	watchers := slices.Collect(maps.Keys(s.watchers))
	s.mu.Unlock()
	for _, w := range watchers {
		w.doubt("")
	}
}

// control returns the control channel of a client.
func (s *redisStore) control(client string) string { return s.prefix + "{" + client + "}" }
