package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// Who waits, as Redis knows it?

func TestOnlyWaitersThatListenAreNamed(t *testing.T) {
	server := redistest.Start(t)
	open := func(change ...func(*redis.Options)) (*nativeStore, store.Claim) {
		s, err := New(server.Client(change...), Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		a, err := s.Check(store.Claim{Name: "a", ID: "a:1:1", TTL: minute, Limit: 1})
		require.NoError(t, err)
		return s.(*nativeStore), a
	}
	s, a := open()
	lease, err := s.Try(t.Context(), a)
	require.NoError(t, err)
	dead := redis.Z{Score: 1e15, Member: "dead:1:1|60000"}
	require.NoError(t, server.Client().ZAdd(t.Context(), a.Name+queueSuffix, dead).Err())

	second := a
	second.ID = "b:1:1"
	begin := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	queued, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := s.Wait(ctx, second, func(p store.Progress) {
			if p.Queued {
				close(queued)
			}
		})
		ended <- err
	}()
	<-queued
	found, err := s.Waiters(t.Context(), a, 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, second.ID, found[0].ID)
	require.WithinRange(t, found[0].Since, begin.Add(-time.Second), time.Now().Add(time.Second), "one clock here")
	found, err = s.Waiters(t.Context(), a, 1)
	require.NoError(t, err)
	require.Empty(t, found, "the first place is that of a dead process")

	for _, right := range []string{"-zrange", "-time", "-pubsub"} {
		user := []any{"ACL", "SETUSER", "u", "reset", "on", ">u", "~*", "&*", "+@all", right}
		require.NoError(t, server.Client().Do(t.Context(), user...).Err())
		weak, _ := open(func(o *redis.Options) { o.Username, o.Password = "u", "u" })
		state, err := weak.Look(t.Context(), a)
		require.NoError(t, err, right)
		require.Equal(t, 2, state.Waiters)
		_, err = weak.Waiters(t.Context(), a, 10)
		require.ErrorIs(t, err, errors.ErrUnsupported, right)
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, s.Forget(t.Context(), []store.Claim{second})[0])
	require.NoError(t, s.Release(t.Context(), lease))
}
