package relock_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// deaf lets commands through, and loses the messages that a hold is gone.
func (k *link) deaf() {
	f := k.on(func(_ context.Context, _ *fault, run func() error) error { return run() }, cmdRenew)
	k.mu.Lock()
	defer k.mu.Unlock()
	f.silent = true
}

// tape is a link on which commands run late: the tape keeps a command, and plays it when the caller
// of the command has gone. A call whose command is kept is asked again after askAgain, or ends with
// its context.
type tape struct {
	*link

	mu   sync.Mutex
	want []command // the next commands to keep
	kept []func()
}

// askAgain is how long an attempt may go without an answer before a tape sends the next attempt.
const askAgain = time.Second

// NewTape returns a Client whose commands can run late.
func (w *world) NewTape(options ...relock.Option) (*member, *tape) {
	w.t.Helper()
	p := &tape{link: newLink(w.Store)}
	m := &member{link: p.link}
	var err error
	m.Client, err = relock.Open(p, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		p.heal()
		require.NoError(w.t, m.Close())
	})
	return m, p
}

// keep makes the tape keep the next command of each of these kinds.
func (p *tape) keep(commands ...command) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want = append(p.want, commands...)
}

// play runs what was kept, and returns how many commands these were.
func (p *tape) play() int {
	n := p.replay()
	settle()
	return n
}

// replay is play for a goroutine beside the one of the test.
func (p *tape) replay() int {
	p.mu.Lock()
	kept := p.kept
	p.kept = nil
	p.mu.Unlock()
	for _, run := range kept {
		run()
	}
	return len(kept)
}

// calm ends all faults, and plays what was kept.
func (p *tape) calm() {
	p.heal()
	p.mu.Lock()
	p.want = nil
	p.mu.Unlock()
	p.play()
}

// keeps says whether the tape keeps this command.
func (p *tape) keeps(v command, run func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.want, v)
	if at < 0 {
		return false
	}
	p.want = slices.Delete(p.want, at, at+1)
	p.kept = append(p.kept, run)
	return true
}

// unanswered waits until it is time to ask again, or ctx is done.
func unanswered(ctx context.Context) error {
	select {
	case <-time.After(askAgain):
		return nil
	case <-ctx.Done():
		return store.Unsure(store.Unavailable(context.Cause(ctx)))
	}
}

// take sends a command that asks for the lock.
func (p *tape) take(ctx context.Context, v command, a store.Ask, run func() (store.Lease, error)) (store.Lease, error) {
	late := p.keeps(v, func() { _, _ = p.Store.Try(context.Background(), a) })
	if late {
		if err := unanswered(ctx); err != nil {
			return store.Lease{}, err
		}
	}
	l, err := run()
	l.Unsure = late
	if late {
		err = store.Unsure(err)
	}
	return l, err
}

// Try implements store.Store.
func (p *tape) Try(ctx context.Context, a store.Ask) (store.Lease, error) {
	return p.take(ctx, cmdTry, a, func() (store.Lease, error) { return p.link.Try(ctx, a) })
}

// Wait implements store.Store.
func (p *tape) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	return p.take(ctx, cmdWait, a, func() (store.Lease, error) { return p.link.Wait(ctx, a, progress) })
}

// Enter implements store.Store.
func (p *tape) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if p.keeps(cmdEnter, func() { _, _ = p.Store.Enter(context.Background(), l, count) }) {
		if err := unanswered(ctx); err != nil {
			return l, err
		}
	}
	return p.link.Enter(ctx, l, count)
}

// Release implements store.Store.
func (p *tape) Release(ctx context.Context, l store.Lease, count int) error {
	if p.keeps(cmdRelease, func() { _ = p.Store.Release(context.Background(), l, count) }) {
		if err := unanswered(ctx); err != nil {
			return err
		}
		return store.Unsure(p.link.Release(ctx, l, count))
	}
	return p.link.Release(ctx, l, count)
}

// Renew implements store.Store.
func (p *tape) Renew(ctx context.Context, renewals []store.Renewal) []error {
	if p.keeps(cmdRenew, func() { p.Store.Renew(context.Background(), renewals) }) {
		<-ctx.Done()
		return slices.Repeat([]error{store.Unsure(ctx.Err())}, len(renewals))
	}
	return p.link.Renew(ctx, renewals)
}

// Forget implements store.Store.
func (p *tape) Forget(ctx context.Context, asks []store.Ask) []error {
	if p.keeps(cmdForget, func() { p.Store.Forget(context.Background(), asks) }) {
		<-ctx.Done()
		return slices.Repeat([]error{store.Unsure(ctx.Err())}, len(asks))
	}
	return p.link.Forget(ctx, asks)
}
