package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// A Link is the way of one client to the store of its world. A test breaks a link with faults: the
// latest fault that matches a command decides the fate of the command.
type Link struct {
	*mem.Store
	Passes bool // leases are passed on, see Pass

	mu     sync.Mutex
	asleep []*sleeper // waits with a place in the queue, in its order
	faults []*Fault
	calls  map[Command]int

	// A loop without a pause would hold the clock for ever.
	instant time.Time // of the last command
	busy    int       // commands since the clock last moved
}

var (
	_ store.Watcher = (*Link)(nil)
	_ store.Several = (*Link)(nil)
	_ store.Lending = (*Link)(nil)
)

// NewLink returns a link that works.
func NewLink(s *mem.Store) *Link { return &Link{Store: s, calls: make(map[Command]int)} }

// Sent returns how many commands of these kinds the client has sent since the last reset; of all
// kinds if none is given.
func (k *Link) Sent(commands ...Command) int {
	Settle()
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for v, calls := range k.calls {
		if len(commands) == 0 || slices.Contains(commands, v) {
			n += calls
		}
	}
	return n
}

// Reset makes sent begin at 0.
func (k *Link) Reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.calls)
}

// through sends a command, or lets a fault decide.
func (k *Link) through(ctx context.Context, v Command, run func() error) error {
	f := k.note(v)
	if f == nil {
		return run()
	}
	f.Hits.Add(1)
	return f.act(ctx, f, run)
}

// note counts a command, and returns the fault that decides.
func (k *Link) note(v Command) *Fault {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls[v]++
	if now := time.Now(); !now.Equal(k.instant) {
		k.instant, k.busy = now, 0
	}
	if k.busy++; k.busy == 100_000 {
		panic(fmt.Sprintf("sends %s after %s while the clock stands still", v, v))
	}
	for _, f := range slices.Backward(k.faults) {
		if f.left != 0 && f.matches(v) {
			f.left--
			return f
		}
	}
	return nil
}

// Try implements store.Store.
func (k *Link) Try(ctx context.Context, a store.Claim) (l store.Lease, err error) {
	sent := time.Now()
	err = k.through(ctx, CmdTry, func() (err error) { l, err = k.Store.Try(ctx, a); return err })
	if l.Sent.After(sent) {
		l.Sent = sent
	}
	return l, err
}

// TryAll implements store.Several.
func (k *Link) TryAll(ctx context.Context, claims []store.Claim) (leases []store.Lease, err error) {
	sent := time.Now()
	err = k.through(ctx, CmdTryAll, func() (err error) { leases, err = k.Store.TryAll(ctx, claims); return err })
	for i := range leases {
		if leases[i].Sent.After(sent) {
			leases[i].Sent = sent
		}
	}
	return leases, err
}

// ReleaseAll implements store.Several.
func (k *Link) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	return k.each(ctx, CmdReleaseAll, len(leases), func() []error { return k.Store.ReleaseAll(ctx, leases) })
}

// Wait implements store.Store. A silent link delivers a grant when the fault ends. A wait that ends
// while the link is silent takes nothing back.
func (k *Link) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (l store.Lease, err error) {
	err = k.through(ctx, CmdWait, func() (err error) { l, err = k.wait(ctx, a, progress); return err })
	return l, err
}

// wait has two exits. The store answers: a silent link keeps the answer until the fault ends. Or
// the caller gives up: a silent link leaves the store to its wait until the fault ends, and wait
// returns at once; otherwise wait returns the store's own end. So the store waits in a goroutine,
// under a context of its own.
func (k *Link) wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	type answer struct {
		lease store.Lease
		err   error
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	answers, steps := make(chan answer, 1), make(chan store.Progress)
	go func() {
		lease, err := k.Store.Wait(inner, a, func(p store.Progress) {
			select {
			case steps <- p:
			case <-inner.Done():
			}
		})
		answers <- answer{lease, err}
	}()
	p := &sleeper{wake: make(chan struct{})}
	take := func() (store.Lease, error) {
		cancel()
		<-answers
		k.Store.Forget(context.Background(), []store.Claim{a}) // its place
		return p.lease, nil
	}
	for {
		select {
		case step := <-steps:
			k.sleep(p, a, step.Queued)
			progress(step)
		case <-p.wake:
			return take()
		case got := <-answers:
			if k.wakes(p) {
				answers <- got
				return take()
			}
			defer cancel()
			if k.Passes && a.Kind == store.Mutex {
				got.lease.Run = &store.Run{}
			}
			if over := k.silent(CmdWait); over != nil {
				select {
				case <-over:
				case <-ctx.Done():
					return got.lease, store.Unsure(store.Unavailable(ctx.Err()))
				}
			}
			return got.lease, got.err
		case <-ctx.Done():
			if k.wakes(p) {
				return take()
			}
			if over := k.silent(CmdWait); over != nil {
				go func() { <-over; cancel() }()
				return store.Lease{Claim: a}, store.Unsure(store.Unavailable(ctx.Err()))
			}
			cancel()
			got := <-answers
			if got.err != nil && !errors.Is(got.err, store.ErrUnsure) {
				got.err = ctx.Err()
			}
			return got.lease, got.err
		}
	}
}

// Enter implements store.Store.
func (k *Link) Enter(ctx context.Context, l store.Lease, count int) (got store.Lease, err error) {
	sent := time.Now()
	err = k.through(ctx, CmdEnter, func() (err error) { got, err = k.Store.Enter(ctx, l, count); return err })
	if err == nil && got.Sent.After(sent) {
		got.Sent = sent
	}
	return got, err
}

// Release implements store.Store.
func (k *Link) Release(ctx context.Context, l store.Lease) error {
	return k.through(ctx, CmdRelease, func() error { return k.Store.Release(ctx, l) })
}

// Renew implements store.Store.
func (k *Link) Renew(ctx context.Context, renewals []store.Renewal) (errs []error) {
	return k.each(ctx, CmdRenew, len(renewals), func() []error { return k.Store.Renew(ctx, renewals) })
}

// Forget implements store.Store.
func (k *Link) Forget(ctx context.Context, claims []store.Claim) []error {
	return k.each(ctx, CmdForget, len(claims), func() []error { return k.Store.Forget(ctx, claims) })
}

// each sends one command about n locks.
func (k *Link) each(ctx context.Context, v Command, n int, run func() []error) []error {
	var errs []error
	err := k.through(ctx, v, func() error { errs = run(); return nil })
	if err != nil || errs == nil {
		errs = slices.Repeat([]error{err}, n)
	}
	return errs
}

// Token implements store.Store.
func (k *Link) Token(ctx context.Context, l store.Lease) (n int64, err error) {
	err = k.through(ctx, CmdToken, func() (err error) { n, err = k.Store.Token(ctx, l); return err })
	return n, err
}

// Look implements store.Store.
func (k *Link) Look(ctx context.Context, a store.Claim) (s store.State, err error) {
	err = k.through(ctx, CmdLook, func() (err error) { s, err = k.Store.Look(ctx, a); return err })
	return s, err
}

// Break implements store.Store.
func (k *Link) Break(ctx context.Context, a store.Claim) error {
	return k.through(ctx, CmdBreak, func() error { return k.Store.Break(ctx, a) })
}

// Borrow implements store.Lending.
func (k *Link) Borrow(ctx context.Context, a store.Claim, t store.Ticket) (l store.Lease, err error) {
	err = k.through(ctx, CmdBorrow, func() (err error) { l, err = k.Store.Borrow(ctx, a, t); return err })
	return l, err
}

// Follow implements store.Lending.
func (k *Link) Follow(ctx context.Context, l store.Lease) (left time.Duration, err error) {
	err = k.through(ctx, CmdFollow, func() (err error) { left, err = k.Store.Follow(ctx, l); return err })
	return left, err
}

// Accept implements store.Lending.
func (k *Link) Accept(ctx context.Context, a store.Claim, old store.ID, t store.Ticket, unaware bool) (
	l store.Lease, wait time.Duration, err error,
) {
	err = k.through(ctx, CmdAccept, func() (err error) { l, wait, err = k.Store.Accept(ctx, a, old, t, unaware); return err })
	return l, wait, err
}

// Want implements store.Asking.
func (k *Link) Want(ctx context.Context, a store.Claim) error {
	return k.through(ctx, CmdWant, func() error { return k.Store.Want(ctx, a) })
}

// WatchWanted implements store.Asking. A silent link loses the messages.
func (k *Link) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	return k.Store.WatchWanted(client, func(id store.ID) {
		if k.silent(CmdRenew) == nil {
			wanted(id)
		}
	})
}

// Announce implements store.Announcing.
func (k *Link) Announce(ctx context.Context, a store.Claim) error {
	return k.through(ctx, CmdAnnounce, func() error { return k.Store.Announce(ctx, a) })
}

// Announced implements store.Announcing. A silent link loses the messages.
func (k *Link) Announced(name string, heard func()) (stop func()) {
	return k.Store.Announced(name, func() {
		if k.silent(CmdRenew) == nil {
			heard()
		}
	})
}

// Watch implements store.Watcher. A silent link loses the messages.
func (k *Link) Watch(client string, doubt func(store.ID)) (stop func()) {
	return k.Store.Watch(client, func(id store.ID) {
		if k.silent(CmdRenew) == nil {
			doubt(id)
		}
	})
}
