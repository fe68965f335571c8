package relocketcd

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

const (
	// takeBackLimit bounds how long a wait that ends takes back its key.
	takeBackLimit = 500 * time.Millisecond
	// watchPause is the pause after a watch that etcd has ended.
	watchPause = 100 * time.Millisecond
)

// waiting is one call of Wait. The key is in the queue if revision is not 0.
type waiting struct {
	*Store
	claim store.Claim

	hold
	before   string // the key before this one; empty: the hold has the lock
	position int
	seen     int64 // the revision at which etcd was read
	unsure   bool  // a command without an answer may have made the key, or may make the key yet
}

// Wait implements [store.Store]. A waiter renews its etcd lease every third of the lease, and then
// reads its place too: a watch that is silent holds up the waiter no longer than that.
func (s *Store) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	w := &waiting{Store: s, claim: a}
	call := attempts.Call{Report: a.Report, Command: "acquire"}
	for woken := store.WakeNone; ; woken = w.sleep(ctx) {
		if err := attempts.Patiently(ctx, call, func() error { return w.look(ctx) }); err != nil {
			return store.Lease{}, w.giveUp(ctx, err)
		}
		if w.before == "" {
			return store.Lease{Claim: a, Sent: w.lease.sent, Token: w.seen, Woken: woken, Unsure: w.unsure}, nil
		}
		if busy, err := w.refusal(ctx); err == nil && busy != nil {
			progress(store.Progress{Busy: busy, Queued: true, Position: w.position})
		}
	}
}

// giveUp takes back the key of a wait, and returns the error of the wait.
func (w *waiting) giveUp(ctx context.Context, err error) error {
	if w.revision == 0 && !w.unsure {
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackLimit)
	defer cancel()
	if w.Forget(bounded, []store.Claim{w.claim})[0] != nil {
		return store.Unsure(err)
	}
	return err
}

// look reads the place of the hold. A hold without a place gets one.
func (w *waiting) look(ctx context.Context) error {
	if w.revision == 0 {
		return w.join(ctx)
	}
	if sent := time.Now(); !sent.Before(w.beat()) {
		switch err := w.renew(ctx, &w.others, []clientv3.LeaseID{w.lease.id})[0]; {
		case err == nil:
			w.lease.sent = sent
			w.pool.set(w.claim.ID, w.hold)
		case !errors.Is(err, store.ErrGone):
			return err
		}
	}
	resp, err := w.get(ctx, w.lastTwo(w.claim, w.revision))
	if err != nil {
		return err
	}
	if !w.place(resp.Header.Revision, resp.Responses[0]) { // the etcd lease has ended
		w.revision = 0
		w.pool.drop(w.claim.ID)
		return w.join(ctx)
	}
	return nil
}

// beat returns when to renew the etcd lease.
func (w *waiting) beat() time.Time {
	return w.lease.sent.Add(time.Duration(w.lease.ttl) * time.Second / 3)
}

// join makes the key of the hold, unless an earlier command has made the key.
func (w *waiting) join(ctx context.Context) error {
	h, _, err := w.reserve(ctx, w.claim, w.claim.TTL/20)
	if err != nil {
		return err
	}
	resp, err := w.change(ctx,
		clientv3.Compare(clientv3.CreateRevision(h.key), "=", 0),
		[]clientv3.Op{
			put(h.key, record{ID: w.claim.ID, Count: 1, TTL: h.lease.ttl}, clientv3.WithLease(h.lease.id)), w.lastTwo(w.claim, 0),
		},
		[]clientv3.Op{clientv3.OpGet(h.key)},
	)
	if err != nil {
		w.unsure = w.unsure || errors.Is(err, store.ErrUnsure)
		return err
	}
	w.position = math.MaxInt
	if resp.Succeeded {
		h.revision = resp.Header.Revision
	} else {
		h.revision = resp.Responses[0].GetResponseRange().Kvs[0].CreateRevision
	}
	w.hold = h
	w.pool.set(w.claim.ID, h)
	if !resp.Succeeded {
		return w.look(ctx)
	}
	w.place(resp.Header.Revision, resp.Responses[1])
	return nil
}

// place notes the place of the hold from an answer to lastTwo. place returns false if the key is
// gone.
func (w *waiting) place(revision int64, answer *pb.ResponseOp) bool {
	keys := answer.GetResponseRange()
	if len(keys.Kvs) == 0 || string(keys.Kvs[0].Key) != w.key || keys.Kvs[0].CreateRevision != w.revision {
		return false
	}
	w.seen, w.before = revision, ""
	if len(keys.Kvs) > 1 {
		w.before = string(keys.Kvs[1].Key)
	}
	w.position = min(w.position, max(0, int(keys.Count)-2)) // beside the owner and the hold
	return true
}

// refusal returns the refusal by the owner, or nil if no other hold has the lock just now.
func (w *waiting) refusal(ctx context.Context) (*store.Busy, error) {
	owner, _, err := w.owner(ctx, w.claim)
	if err != nil || owner.key == "" || owner.ID == w.claim.ID {
		return nil, err
	}
	return w.busy(ctx, owner)
}

// sleep returns when the key before the hold is gone, when it is time to renew the etcd lease, or
// when ctx is done.
func (w *waiting) sleep(ctx context.Context) store.Wake {
	w.keepStream()
	watched, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	wake := make(chan store.Wake, 1)
	w.group.Go(func() { // as Watch waits for etcd
		defer close(wake)
		events := w.client.Watch(watched, w.before, clientv3.WithRev(w.seen+1), clientv3.WithFilterPut())
		if resp, open := <-events; open && resp.Err() == nil {
			wake <- store.WakeGrant
			return
		}
		lifetime.Sleep(watched.Done(), watchPause)
	})
	defer func() {
		cancel()
		for range wake { // ends at once
		}
	}()
	beat := time.NewTimer(time.Until(w.beat()))
	defer beat.Stop()
	select {
	case woken := <-wake:
		return cmp.Or(woken, store.WakeRecheck)
	case <-beat.C:
		return store.WakeRecheck
	case <-ctx.Done():
		return store.WakeNone
	}
}
