package relock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// How does a test break the link to a store in fake time?

// link is the way of one client to the store of its world. A test breaks a link with faults: the
// latest fault that matches a command decides the fate of the command.
type link struct {
	*mem.Store

	mu     sync.Mutex
	faults []*fault
	calls  map[command]int

	// A loop without a pause would hold the clock for ever.
	instant time.Time // of the last command
	busy    int       // commands since the clock last moved
}

var (
	_ store.Watcher = (*link)(nil)
	_ store.Several = (*link)(nil)
	_ store.Lending = (*link)(nil)
)

// command names a method of [store.Store] that talks to the server.
type command string

const (
	cmdTry     command = "Try"
	cmdWait    command = "Wait"
	cmdEnter   command = "Enter"
	cmdRelease command = "Release"
	cmdRenew   command = "Renew"
	cmdForget  command = "Forget"
	cmdToken   command = "Token"
	cmdLook    command = "Look"
	cmdBreak   command = "Break"

	cmdTryAll     command = "TryAll"
	cmdReleaseAll command = "ReleaseAll"

	cmdBorrow command = "Borrow"
	cmdFollow command = "Follow"
	cmdAccept command = "Accept"
)

// action is the fate of a command. run sends the command, and may be called any number of times.
type action func(ctx context.Context, f *fault, run func() error) error

// fault is what happens to some commands of a link.
type fault struct {
	act      action
	commands []command // empty: all
	left     int       // so many commands more; below 0: until the end
	silent   bool      // messages do not arrive either
	hits     atomic.Int64
	end      func() // ends the fault
	over     chan struct{}
}

func newLink(s *mem.Store) *link { return &link{Store: s, calls: make(map[command]int)} }

// on makes the action happen to all commands of these kinds; to every command if no kind is given.
func (k *link) on(act action, commands ...command) *fault { return k.add(-1, act, commands) }

// once makes the action happen to the next command of these kinds.
func (k *link) once(act action, commands ...command) *fault { return k.add(1, act, commands) }

func (k *link) add(times int, act action, commands []command) *fault {
	f := &fault{act: act, commands: commands, left: times, over: make(chan struct{})}
	f.end = sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.faults = slices.DeleteFunc(k.faults, func(other *fault) bool { return other == f })
		close(f.over)
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = append(k.faults, f)
	return f
}

// cut makes the link silent: no command of these kinds arrives until the fault ends, and no message
// either.
func (k *link) cut(commands ...command) *fault {
	f := k.on(silence, commands...)
	k.mu.Lock()
	defer k.mu.Unlock()
	f.silent = true
	return f
}

// heal ends all faults.
func (k *link) heal() {
	k.mu.Lock()
	faults := slices.Clone(k.faults)
	k.mu.Unlock()
	for _, f := range faults {
		f.end()
	}
}

// sent returns how many commands of these kinds the client has sent since the last reset; of all
// kinds if none is given.
func (k *link) sent(commands ...command) int {
	settle()
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

// reset makes sent begin at 0.
func (k *link) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.calls)
}

func (f *fault) matches(v command) bool {
	return len(f.commands) == 0 || slices.Contains(f.commands, v)
}

// through sends a command, or lets a fault decide.
func (k *link) through(ctx context.Context, v command, run func() error) error {
	f := k.note(v)
	if f == nil {
		return run()
	}
	f.hits.Add(1)
	return f.act(ctx, f, run)
}

// note counts a command, and returns the fault that decides.
func (k *link) note(v command) *fault {
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

// silence keeps a command until the fault ends.
func silence(ctx context.Context, f *fault, run func() error) error {
	select {
	case <-f.over:
		return run()
	case <-ctx.Done():
		return store.Unsure(store.Unavailable(ctx.Err()))
	}
}

// mute runs the command, and keeps the answer until the fault ends.
func mute(ctx context.Context, f *fault, run func() error) error {
	err := run()
	select {
	case <-f.over:
		return err
	case <-ctx.Done():
		return store.Unsure(store.Unavailable(ctx.Err()))
	}
}

// refuse does not run the command. The store says why.
func refuse(err error) action {
	return func(context.Context, *fault, func() error) error { return err }
}

// loseAnswer runs the command, and loses the answer for good.
func loseAnswer(err error) action {
	return func(_ context.Context, _ *fault, run func() error) error {
		_ = run()
		return store.Unsure(err)
	}
}

// sendTwice runs the command twice, as a store does after an attempt without an answer.
func sendTwice(_ context.Context, _ *fault, run func() error) error {
	_ = run()
	err := run()
	if errors.Is(err, store.ErrGone) {
		return store.Unsure(err)
	}
	return err
}

// delay makes a command take time: before the store runs the command, and before the answer
// arrives.
func delay(before, after time.Duration) action {
	pause := func(ctx context.Context, d time.Duration) error {
		if d == 0 {
			return nil
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return store.Unsure(ctx.Err())
		}
	}
	return func(ctx context.Context, _ *fault, run func() error) error {
		if err := pause(ctx, before); err != nil {
			return err
		}
		err := run()
		if late := pause(ctx, after); late != nil {
			return late
		}
		return err
	}
}

// Try implements store.Store.
func (k *link) Try(ctx context.Context, a store.Ask) (l store.Lease, err error) {
	sent := time.Now()
	err = k.through(ctx, cmdTry, func() (err error) { l, err = k.Store.Try(ctx, a); return err })
	if l.Sent.After(sent) {
		l.Sent = sent
	}
	return l, err
}

// TryAll implements store.Several.
func (k *link) TryAll(ctx context.Context, asks []store.Ask) (leases []store.Lease, err error) {
	sent := time.Now()
	err = k.through(ctx, cmdTryAll, func() (err error) { leases, err = k.Store.TryAll(ctx, asks); return err })
	for i := range leases {
		if leases[i].Sent.After(sent) {
			leases[i].Sent = sent
		}
	}
	return leases, err
}

// ReleaseAll implements store.Several.
func (k *link) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	return k.each(ctx, cmdReleaseAll, len(leases), func() []error { return k.Store.ReleaseAll(ctx, leases) })
}

// Wait implements store.Store. A silent link delivers a grant when the fault ends. A wait that ends
// while the link is silent takes nothing back.
func (k *link) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (l store.Lease, err error) {
	err = k.through(ctx, cmdWait, func() (err error) { l, err = k.wait(ctx, a, progress); return err })
	return l, err
}

func (k *link) wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
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
	for {
		select {
		case p := <-steps:
			progress(p)
		case got := <-answers:
			defer cancel()
			if over := k.silent(cmdWait); over != nil {
				select {
				case <-over:
				case <-ctx.Done():
					return got.lease, store.Unsure(store.Unavailable(ctx.Err()))
				}
			}
			return got.lease, got.err
		case <-ctx.Done():
			if over := k.silent(cmdWait); over != nil {
				go func() { <-over; cancel() }()
				return store.Lease{Ask: a}, store.Unsure(store.Unavailable(ctx.Err()))
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

// silent returns a channel that is closed at the end of the silence; nil if the link is not silent.
func (k *link) silent(v command) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range slices.Backward(k.faults) {
		if f.silent && f.matches(v) {
			return f.over
		}
	}
	return nil
}

// Enter implements store.Store.
func (k *link) Enter(ctx context.Context, l store.Lease, count int) (got store.Lease, err error) {
	sent := time.Now()
	err = k.through(ctx, cmdEnter, func() (err error) { got, err = k.Store.Enter(ctx, l, count); return err })
	if err == nil && got.Sent.After(sent) {
		got.Sent = sent
	}
	return got, err
}

// Release implements store.Store.
func (k *link) Release(ctx context.Context, l store.Lease, count int) error {
	return k.through(ctx, cmdRelease, func() error { return k.Store.Release(ctx, l, count) })
}

// Renew implements store.Store.
func (k *link) Renew(ctx context.Context, renewals []store.Renewal) (errs []error) {
	return k.each(ctx, cmdRenew, len(renewals), func() []error { return k.Store.Renew(ctx, renewals) })
}

// Forget implements store.Store.
func (k *link) Forget(ctx context.Context, asks []store.Ask) []error {
	return k.each(ctx, cmdForget, len(asks), func() []error { return k.Store.Forget(ctx, asks) })
}

// each sends one command about n locks.
func (k *link) each(ctx context.Context, v command, n int, run func() []error) []error {
	var errs []error
	err := k.through(ctx, v, func() error { errs = run(); return nil })
	if err != nil || errs == nil {
		errs = slices.Repeat([]error{err}, n)
	}
	return errs
}

// Token implements store.Store.
func (k *link) Token(ctx context.Context, l store.Lease) (n int64, err error) {
	err = k.through(ctx, cmdToken, func() (err error) { n, err = k.Store.Token(ctx, l); return err })
	return n, err
}

// Look implements store.Store.
func (k *link) Look(ctx context.Context, a store.Ask) (s store.State, err error) {
	err = k.through(ctx, cmdLook, func() (err error) { s, err = k.Store.Look(ctx, a); return err })
	return s, err
}

// Break implements store.Store.
func (k *link) Break(ctx context.Context, a store.Ask) error {
	return k.through(ctx, cmdBreak, func() error { return k.Store.Break(ctx, a) })
}

// Borrow implements store.Lending.
func (k *link) Borrow(ctx context.Context, a store.Ask, t store.Ticket) (l store.Lease, err error) {
	err = k.through(ctx, cmdBorrow, func() (err error) { l, err = k.Store.Borrow(ctx, a, t); return err })
	return l, err
}

// Follow implements store.Lending.
func (k *link) Follow(ctx context.Context, l store.Lease) (left time.Duration, err error) {
	err = k.through(ctx, cmdFollow, func() (err error) { left, err = k.Store.Follow(ctx, l); return err })
	return left, err
}

// Accept implements store.Lending.
func (k *link) Accept(ctx context.Context, a store.Ask, old store.ID, t store.Ticket, unaware bool) (
	l store.Lease, wait time.Duration, err error,
) {
	err = k.through(ctx, cmdAccept, func() (err error) { l, wait, err = k.Store.Accept(ctx, a, old, t, unaware); return err })
	return l, wait, err
}

// Watch implements store.Watcher. A silent link loses the messages.
func (k *link) Watch(client string, doubt func(store.ID)) (stop func()) {
	return k.Store.Watch(client, func(id store.ID) {
		if k.silent(cmdRenew) == nil {
			doubt(id)
		}
	})
}
