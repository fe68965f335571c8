package relockzk

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/store"
)

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	errs := make([]error, len(renewals))
	err := s.once(ctx, func(x *session) error {
		all := make([]*renewal, len(renewals))
		var open []*renewal
		for i, r := range renewals {
			if all[i], errs[i] = x.renewal(r); errs[i] == nil {
				open = append(open, all[i])
			}
		}
		var batches sync.WaitGroup
		for batch := range slices.Chunk(open, batchSize) {
			batches.Go(func() { x.commit(ctx, batch) })
		}
		batches.Wait()
		for i, n := range all {
			if n != nil {
				errs[i] = n.err
			}
		}
		return nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(renewals))
	}
	return errs
}

// batchSize is the number of renewals in one transaction. A server refuses requests of more than
// 1 MB by default (jute.maxbuffer), and a renewal with the longest name has less than 2 kB.
const batchSize = 100

// renewal is the renewal of a hold that the session has.
type renewal struct {
	hold  *hold
	node  string
	ttl   time.Duration
	begun time.Time
	note  note // for the node
	write int  // the number of the write of the note; 0: the node has the note

	lease store.Lease // the result
	err   error
}

// renewal begins a renewal. If two writes of a note overlap, the Store does not know which note the
// node has, and the next renewal writes again.
func (x *session) renewal(r store.Renewal) (*renewal, error) {
	h, err := x.find(r.Lease.ID)
	if err != nil {
		return nil, err
	}
	kept := h.claim.Kept(r.TTL)
	if err := x.fits(kept); err != nil {
		return nil, err
	}
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	n := &renewal{hold: h, node: h.node, ttl: r.TTL, begun: time.Now(), note: h.note}
	n.note.ID, n.note.Count = h.claim.ID, r.Count
	if n.begun.Add(kept).After(h.endLocked()) {
		n.note.Kept = kept.Milliseconds()
	}
	if n.note != h.note {
		h.writes++
		h.writing++
		n.write = h.writes
		h.note = note{Kept: n.note.Kept} // not known
	}
	return n, nil
}

// commit renews holds by one transaction, which checks that each node exists, or writes its note. A
// node that does not exist undoes the transaction, and commit goes on without that node.
func (x *session) commit(ctx context.Context, renewals []*renewal) {
	for open := slices.Clone(renewals); len(open) > 0; {
		operations, e := make([]any, len(open)), reads
		for i, n := range open {
			operations[i] = n.operation()
			e = e || n.write > 0
		}
		failed, err := x.transact(ctx, e, operations...)
		if failed >= 0 {
			open[failed].end(err)
			open = slices.Delete(open, failed, failed+1)
			continue
		}
		for _, n := range open {
			n.end(err)
		}
		return
	}
}

// operation returns the part of the renewal in a transaction.
func (n *renewal) operation() any {
	if n.write == 0 {
		return check(n.node)
	}
	address, _ := n.hold.session.address.Load().(string)
	return &zk.SetDataRequest{Path: n.node, Data: n.note.encode(address), Version: -1}
}

// end ends the renewal with the result of its transaction.
func (n *renewal) end(err error) {
	h := n.hold
	x, s := h.session, h.session.store
	if n.write > 0 {
		s.mu.Lock()
		if h.writing--; err == nil && h.writing == 0 && h.writes == n.write {
			h.note = n.note
		}
		s.mu.Unlock()
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		s.drop(x, h.claim.ID)
		err = store.ErrGone
	case err == nil:
		if n.lease, err = s.keep(h, n.begun, n.ttl); err != nil {
			err = store.ErrGone
		}
	}
	n.err = err
}
