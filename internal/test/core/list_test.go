package core_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

func TestListHasEachLockWithItsKindAndState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, far := mem.New(), relock.WithTTL(time.Minute)
		holder, err := relock.Open(m, far)
		require.NoError(t, err)
		waiter, err := relock.Open(m, far)
		require.NoError(t, err)
		defer func() { require.NoError(t, errors.Join(holder.Close(), waiter.Close())) }()
		section, err := holder.NewLock("b").Lock(t.Context())
		require.NoError(t, err)
		_, err = holder.NewRWLock("a").RLock(t.Context())
		require.NoError(t, err)
		_, err = holder.NewSemaphore("c", 3).Lock(t.Context())
		require.NoError(t, err)
		free, err := holder.NewLock("free").Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, holder.NewLock("free").Unlock(free))
		go func() { _, _ = waiter.NewLock("b").Lock(t.Context()) }()
		synctest.Wait()

		all, err := waiter.List(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, all, 3)
		for i, want := range []struct {
			name string
			kind store.Kind
			mode event.Mode
		}{
			{"a", store.ReadWrite, event.ModeShared}, {"b", store.Mutex, event.ModeExclusive}, {"c", store.Semaphore, event.ModePermit},
		} {
			require.Equal(t, want.name, all[i].Name)
			require.Equal(t, want.kind, all[i].Kind)
			require.Equal(t, want.mode, all[i].Mode)
		}
		owner, _ := relock.HolderFrom(section)
		require.Equal(t, owner, all[1].Holder)
		require.Equal(t, 1, all[1].Waiters)
		require.InDelta(t, time.Minute, all[1].TTL, float64(time.Second))
		some, err := waiter.List(t.Context(), func(name string) bool { return strings.HasPrefix(name, "c") })
		require.NoError(t, err)
		require.Equal(t, all[2:], some)
	})
}

// lister has a list that is not up to date, and counts the looks.
type lister struct {
	*mem.Store
	found map[string]store.Kind
	err   error
	looks atomic.Int64
}

func (l *lister) List(context.Context, store.Claim) (map[string]store.Kind, error) {
	return l.found, l.err
}

func (l *lister) Look(ctx context.Context, a store.Claim) (store.State, error) {
	l.looks.Add(1)
	return l.Store.Look(ctx, a)
}

func TestListLooksAtWhatTheStoreHasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lister{Store: mem.New(), found: map[string]store.Kind{"gone": store.Mutex, "a": store.Mutex, "": store.Mutex}}
		c, err := relock.Open(s)
		require.NoError(t, err)
		section, err := c.NewRWLock("a").Lock(t.Context())
		require.NoError(t, err)
		all, err := c.List(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, store.ReadWrite, all[0].Kind, "it has become another one")
		require.NoError(t, c.NewRWLock("a").Unlock(section))
		require.NoError(t, c.Close())

		defer s.Interrupt(store.Unavailable(errors.New("away")))()
		for i := range 1000 {
			s.found[strings.Repeat("x", i+1)] = store.Mutex
		}
		before := s.looks.Load()
		all, err = c.List(t.Context(), nil)
		require.ErrorIs(t, err, relock.ErrUnavailable, "also of a client that is closed")
		require.Empty(t, all)
		require.Less(t, s.looks.Load()-before, int64(100), "the first failure ends the list")
	})
}

func TestListThatCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("no right to search")
		c, err := relock.Open(&lister{Store: mem.New(), err: cause})
		require.NoError(t, err)
		_, err = c.List(t.Context(), nil)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "relock: list: ")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c, err = relock.Open(mem.New())
		require.NoError(t, err)
		_, err = c.List(ctx, nil)
		require.ErrorIs(t, err, context.Canceled)
		c, err = relock.Open(struct{ store.Store }{mem.New()})
		require.NoError(t, err)
		_, err = c.List(t.Context(), nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = (*relock.Client)(nil).List(t.Context(), nil)
		require.ErrorIs(t, err, relock.ErrInvalid)
	})
}
