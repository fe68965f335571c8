package relocketcd

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

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
	ask store.Ask

	lease    lease  // of the key
	revision int64  // at which the key was made
	before   string // the key before this one; empty: the hold has the lock
	owner    stay
	position int
	seen     int64 // the revision at which etcd was read
	unsure   bool  // a command without an answer may have made the key, or may make the key yet
}

// Wait implements [store.Store]. A waiter renews its etcd lease every third of the lease, and then
// reads its place too: a watch that is silent holds up the waiter no longer than that.
func (s *Store) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	w := &waiting{Store: s, ask: a}
	for woken := store.WakeNone; ; woken = w.sleep(ctx) {
		if _, err := patiently(ctx, func() error { return w.look(ctx) }); err != nil {
			return store.Lease{}, w.giveUp(ctx, err)
		}
		if w.before == "" {
			return store.Lease{Ask: a, Sent: w.lease.sent, Token: w.seen, Woken: woken, Unsure: w.unsure}, nil
		}
		if busy, err := s.busy(ctx, w.owner); err == nil {
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
	if w.Forget(bounded, []store.Ask{w.ask})[0] != nil {
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
		switch err := w.renew(ctx, []clientv3.LeaseID{w.lease.id})[0]; {
		case err == nil:
			w.lease.sent = sent
		case !errors.Is(err, store.ErrGone):
			return err
		}
	}
	resp, err := w.get(ctx, w.lastTwo(w.ask, w.revision), w.oldest(w.ask))
	if err != nil {
		return err
	}
	if !w.place(resp.Header.Revision, resp.Responses) { // the etcd lease has ended
		w.revision = 0
		return w.join(ctx)
	}
	return nil
}

// beat returns when to renew the etcd lease.
func (w *waiting) beat() time.Time {
	return w.lease.sent.Add(time.Duration(w.lease.ttl) * time.Second / 3)
}

// join makes the key of the hold. If an earlier command has made the key, join renews its lease.
func (w *waiting) join(ctx context.Context) error {
	lease, err := w.takeLease(ctx, seconds(w.ask.Kept(w.ask.TTL)))
	if err != nil {
		return err
	}
	key := w.key(w.ask)
	resp, err := w.write(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		[]clientv3.Op{
			put(key, record{ID: w.ask.ID, Count: 1, TTL: lease.ttl}, clientv3.WithLease(lease.id)),
			w.lastTwo(w.ask, 0), w.oldest(w.ask),
		},
		[]clientv3.Op{clientv3.OpGet(key)},
	)
	if err != nil {
		w.unsure = w.unsure || errors.Is(err, store.ErrUnsure)
		return err
	}
	if resp.Succeeded {
		w.lease, w.revision = lease, resp.Header.Revision
		w.position = int(resp.Responses[2].GetResponseRange().Count)
		w.place(resp.Header.Revision, resp.Responses[1:])
		return nil
	}
	w.giveLease(ctx, lease)
	st := stayOf(resp.Responses[0].GetResponseRange().Kvs[0])
	sent, errs := w.keep(ctx, []store.Renewal{{Lease: store.Lease{Ask: w.ask}, TTL: w.ask.TTL, Count: st.Count}})
	if errs[0] != nil {
		return cmp.Or(store.Unavailable(errs[0]), errs[0])
	}
	w.lease.sent, w.lease.ttl, w.revision = sent, st.TTL, st.revision
	w.position = math.MaxInt
	return w.look(ctx)
}

// place notes the place of the hold from an answer to lastTwo and first. place returns false if the
// key is gone.
func (w *waiting) place(revision int64, answers []*pb.ResponseOp) bool {
	mine, all := answers[0].GetResponseRange().Kvs, answers[1].GetResponseRange()
	own := first(answers[0])
	if own == nil || own.revision != w.revision || own.key != w.key(w.ask) {
		return false
	}
	w.seen, w.before = revision, ""
	w.lease.id, w.lease.ttl = own.lease, own.TTL
	if len(mine) > 1 {
		w.before = string(mine[1].Key)
	}
	w.owner = stayOf(all.Kvs[0])
	w.position = min(w.position, int(all.Count)-2) // beside the owner and the hold
	return true
}

// sleep returns when the key before the hold is gone, when it is time to renew the etcd lease, or
// when ctx is done.
func (w *waiting) sleep(ctx context.Context) store.Wake {
	watched, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	wake := make(chan store.Wake, 1)
	go func() { // as Watch waits for etcd
		defer close(wake)
		events := w.client.Watch(watched, w.before, clientv3.WithRev(w.seen+1), clientv3.WithFilterPut())
		if resp, open := <-events; open && resp.Err() == nil {
			wake <- store.WakeGrant
			return
		}
		select {
		case <-time.After(watchPause):
		case <-watched.Done():
		}
	}()
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
