package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

func TestListLooksBeyondOneScan(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
	t.Cleanup(func() { require.NoError(t, r.rdb.FlushAll(context.Background()).Err()) })
	want := make(map[string]store.Kind)
	for i := range 2*listStep + 1 {
		name := fmt.Sprintf("lock %d", i)
		want[name] = store.Mutex
		require.NoError(t, r.rdb.HSet(t.Context(), prefix+"{"+name+"}", "c:1:1", 1).Err())
	}
	found, err := r.store.List(t.Context(), store.Claim{})
	require.NoError(t, err)
	require.Equal(t, want, found)
}

func TestListAsksAgainForALostAnswer(t *testing.T) {
	for _, command := range []string{"SCAN", "HRANDFIELD"} {
		r := newRig(t)
		require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
		faults := redistest.NewFaults()
		t.Cleanup(faults.Close)
		s, err := New(r.server.Client(func(o *redis.Options) {
			o.Dialer, o.MaxRetries = faults.Dialer(nil), -1 // go-redis does not ask again
		}), Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		require.NoError(t, r.rdb.HSet(t.Context(), prefix+"{a}", "c:1:1", 1).Err())
		lost := faults.Once(redistest.Named(command), redistest.DropReply(redistest.EOF))
		found, err := s.(store.Listing).List(t.Context(), store.Claim{})
		require.NoError(t, err, command)
		require.Equal(t, map[string]store.Kind{"a": store.Mutex}, found)
		require.Equal(t, 1, lost.Hits(), command)
	}
}

func TestListSaysWhatAUserMayNot(t *testing.T) {
	for _, command := range []string{"SCAN", "HRANDFIELD", "ZRANGE"} {
		r, faults := faulty(t)
		require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
		require.NoError(t, r.rdb.HSet(t.Context(), prefix+"{a}", "c:1:1", 1).Err())
		require.NoError(t, r.rdb.ZAdd(t.Context(), prefix+"{b}:queue", redis.Z{Score: 5, Member: "c:1:2|1000"}).Err())
		faults.On(redistest.Named(command), redistest.Answer("-NOPERM this user has no permissions\r\n"))
		_, err := r.store.List(t.Context(), store.Claim{})
		require.ErrorContains(t, err, "NOPERM", command)
		require.NotErrorIs(t, err, store.ErrUnavailable, command)
	}
}

func TestListOfASilentServerEnds(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, redistest.Start(t))
	r.server.Pause()
	begun := time.Now()
	told := make(reports, 10)
	_, err := r.store.List(t.Context(), store.Claim{Report: told})
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "no answer to SCAN in 2s")
	require.Less(t, time.Since(begun), bound.Of(5*listSilence))
	require.NotEmpty(t, told, "after a second")
	r.server.Resume()
}

// reports takes what a call is told of its attempts.
type reports chan error

func (r reports) Retrying(_ string, _ int, _ time.Time, err error) {
	select {
	case r <- err:
	default:
	}
}
