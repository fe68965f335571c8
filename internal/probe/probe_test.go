package probe_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/probe"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// liar is a store in memory with one step that says yes, and does something else.
type liar struct {
	*mem.Store
	wait    func(ctx context.Context, a store.Claim) (store.Lease, error)
	renew   func(ctx context.Context, r []store.Renewal) []error
	release func(ctx context.Context, l store.Lease) error
	end     func() error // Break and Forget
}

func (l liar) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if l.wait != nil {
		return l.wait(ctx, a)
	}
	return l.Store.Wait(ctx, a, progress)
}

func (l liar) Renew(ctx context.Context, r []store.Renewal) []error {
	if l.renew != nil {
		return l.renew(ctx, r)
	}
	return l.Store.Renew(ctx, r)
}

func (l liar) Release(ctx context.Context, lease store.Lease) error {
	if l.release != nil {
		return l.release(ctx, lease)
	}
	return l.Store.Release(ctx, lease)
}

func (l liar) Break(ctx context.Context, a store.Claim) error {
	if l.end != nil {
		return l.end()
	}
	return l.Store.Break(ctx, a)
}

func (l liar) Forget(ctx context.Context, claims []store.Claim) []error {
	if l.end != nil {
		return []error{l.end()}
	}
	return l.Store.Forget(ctx, claims)
}

func TestAStepThatIsAnsweredAndHasNoEffectIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		lie func(l *liar)
		err string
	}{
		"none": {func(*liar) {}, ""},
		"the wait lets in beside the first hold": {func(l *liar) {
			l.wait = func(_ context.Context, a store.Claim) (store.Lease, error) {
				return store.Lease{Claim: a, Sent: time.Now()}, nil
			}
			l.end = func() error { return nil }
		}, "wait for the lock probed: a second hold is in beside the first one"},
		"the renewal does nothing": {func(l *liar) {
			l.renew = func(context.Context, []store.Renewal) []error { return []error{nil} }
		}, "read the lock probed: the last step had no effect: the count is 1, and not 2"},
		"the renewal frees the lock": {func(l *liar) {
			l.renew = func(ctx context.Context, r []store.Renewal) []error {
				return []error{l.Store.Release(ctx, r[0].Lease)}
			}
		}, "read the lock probed: "},
		"the release does nothing": {func(l *liar) {
			l.release = func(context.Context, store.Lease) error { return nil }
		}, "wait for the lock probed: context deadline exceeded"},
		"the end does nothing": {func(l *liar) {
			l.end = func() error { return nil }
		}, "read the lock probed: the last step had no effect: the holder is"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &liar{Store: mem.New()}
				defer func() { require.NoError(t, s.Close()) }()
				c.lie(s)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err := probe.Live(ctx, s, store.Claim{Name: "probed", TTL: time.Minute, Limit: 1}, "probed")
				if c.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.err)
				}
			})
		})
	}
}
