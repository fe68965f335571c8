package stage

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// A Tape is a link on which commands run late: the tape keeps a command, and plays it when the
// caller of the command has gone. A call whose command is kept is asked again after AskAgain, or
// ends with its context.
type Tape struct {
	*Link

	mu   sync.Mutex
	want []Command // the next commands to keep
	kept []func()
}

// AskAgain is how long an attempt may go without an answer before a tape sends the next attempt.
const AskAgain = time.Second

// NewTape returns a Client whose commands can run late.
func (w *World) NewTape(options ...relock.Option) (*Member, *Tape) {
	w.T.Helper()
	p := &Tape{Link: NewLink(w.Store)}
	m := &Member{Link: p.Link}
	var err error
	m.Client, err = relock.Open(p, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() {
		p.Heal()
		require.NoError(w.T, m.Close())
	})
	return m, p
}

// Keep makes the tape keep the next command of each of these kinds.
func (p *Tape) Keep(commands ...Command) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want = append(p.want, commands...)
}

// Play runs what was kept, and returns how many commands these were.
func (p *Tape) Play() int {
	p.mu.Lock()
	kept := p.kept
	p.kept = nil
	p.mu.Unlock()
	for _, run := range kept {
		run()
	}
	Settle()
	return len(kept)
}

// keeps says whether the tape keeps this command.
func (p *Tape) keeps(v Command, run func()) bool {
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
	case <-time.After(AskAgain):
		return nil
	case <-ctx.Done():
		return store.Unsure(store.Unavailable(context.Cause(ctx)))
	}
}

// take sends a command that asks for the lock.
func (p *Tape) take(ctx context.Context, v Command, a store.Claim, run func() (store.Lease, error)) (store.Lease, error) {
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
func (p *Tape) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return p.take(ctx, CmdTry, a, func() (store.Lease, error) { return p.Link.Try(ctx, a) })
}

// Wait implements store.Store.
func (p *Tape) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return p.take(ctx, CmdWait, a, func() (store.Lease, error) { return p.Link.Wait(ctx, a, progress) })
}

// Enter implements store.Store.
func (p *Tape) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if p.keeps(CmdEnter, func() { _, _ = p.Store.Enter(context.Background(), l, count) }) {
		if err := unanswered(ctx); err != nil {
			return l, err
		}
	}
	return p.Link.Enter(ctx, l, count)
}

// Release implements store.Store.
func (p *Tape) Release(ctx context.Context, l store.Lease) error {
	if p.keeps(CmdRelease, func() { _ = p.Store.Release(context.Background(), l) }) {
		if err := unanswered(ctx); err != nil {
			return err
		}
		return store.Unsure(p.Link.Release(ctx, l))
	}
	return p.Link.Release(ctx, l)
}

// Renew implements store.Store.
func (p *Tape) Renew(ctx context.Context, renewals []store.Renewal) []error {
	if p.keeps(CmdRenew, func() { p.Store.Renew(context.Background(), renewals) }) {
		<-ctx.Done()
		return slices.Repeat([]error{store.Unsure(ctx.Err())}, len(renewals))
	}
	return p.Link.Renew(ctx, renewals)
}

// Forget implements store.Store.
func (p *Tape) Forget(ctx context.Context, claims []store.Claim) []error {
	if p.keeps(CmdForget, func() { p.Store.Forget(context.Background(), claims) }) {
		<-ctx.Done()
		return slices.Repeat([]error{store.Unsure(ctx.Err())}, len(claims))
	}
	return p.Link.Forget(ctx, claims)
}
