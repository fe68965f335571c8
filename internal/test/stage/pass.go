package stage

import (
	"slices"

	"github.com/go-relock/relock/store"
)

// sleeper is a wait that may be passed a lease.
type sleeper struct {
	claim store.Claim
	wake  chan struct{} // closed with the pass
	lease store.Lease   // that was passed
	over  bool
}

// Pass implements store.Passing, if the link passes leases on: all waits of the client that have a
// place count as a run.
func (k *Link) Pass(l store.Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.asleep) == 0 {
		return false
	}
	p := k.asleep[0]
	if p.claim.Name != l.Name || p.claim.TTL+p.claim.Delay != l.TTL+l.Delay || p.claim.Delay != l.Delay || p.claim.Acks != l.Acks {
		return false
	}
	k.asleep = k.asleep[1:]
	p.over, p.lease = true, l
	p.lease.Report, p.lease.Woken = p.claim.Report, store.WakePass
	close(p.wake)
	return true
}

// sleep notes that a wait has a place.
func (k *Link) sleep(p *sleeper, a store.Claim, queued bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Passes && queued && a.Kind == store.Mutex && !slices.Contains(k.asleep, p) {
		p.claim = a
		k.asleep = append(k.asleep, p)
	}
}

// wakes ends the sleep of a wait, and says whether the wait was passed a lease before.
func (k *Link) wakes(p *sleeper) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	passed := p.over
	p.over = true
	k.asleep = slices.DeleteFunc(k.asleep, func(o *sleeper) bool { return o == p })
	return passed
}
