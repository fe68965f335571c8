package redisstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// Does an acquire take, re-enter or refuse a lock, and is its reply understood?

func TestAcquire(t *testing.T) {
	t.Run("takes a free lock", func(t *testing.T) {
		for _, arrival := range []string{noPlace, newPlace, "1700000000000000"} {
			r := newRig(t)
			id := newID("a")
			got, err := r.acquire(id, 20*time.Second, arrival)
			require.NoError(t, err)
			require.Equal(t, acquireReply{status: statusOurs}, got)
			r.owner(id, 1)
			r.lease(20 * time.Second)
			require.Empty(t, r.waiters())
			r.release(id)
		}
	})
	t.Run("says who has a busy lock", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		r.unchanged(func() {
			got, err := r.acquire(newID("a"), minute, noPlace)
			require.NoError(t, err)
			require.Equal(t, statusBusy, got.status)
			require.Equal(t, owner, got.owner)
			require.InDelta(t, minute, got.remaining, float64(2*time.Second))
		})
	})
	t.Run("does not extend the lease when it runs again", func(t *testing.T) {
		r := newRig(t)
		id := newID("a")
		_, err := r.acquire(id, 5*time.Second, noPlace)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.renew(id, 0, 3))
		for _, arrival := range []string{noPlace, newPlace} {
			r.unchanged(func() {
				got, err := r.acquire(id, minute, arrival)
				require.NoError(t, err)
				require.Equal(t, statusOurs, got.status)
				require.True(t, got.known)
				require.InDelta(t, 5*time.Second, got.remaining, float64(2*time.Second))
			})
		}
	})
	t.Run("does not queue without a subscriber", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.unchanged(func() { require.Equal(t, statusBusy, r.status(newID("b"), newPlace)) })
	})
	t.Run("gives a free lock to whoever queues", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		ps := r.listen("b")
		first, second := r.waiter("b"), r.waiter("b")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err(), "the lease of %s ends", owner)
		got, err := r.acquire(newID("c"), 2*minute, noPlace)
		require.NoError(t, err)
		require.Equal(t, statusBusy, got.status)
		require.Equal(t, first, got.owner)
		require.Equal(t, first, message(t, ps))
		r.owner(first, 1)
		r.lease(minute)
		require.Equal(t, []string{second}, r.waiters())
	})
	t.Run("gives a free lock to the caller whose turn it is", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.queue("gone")
		ps := r.listen("b")
		id := r.waiter("b")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
		require.Equal(t, statusOurs, r.status(id, newPlace))
		r.owner(id, 1)
		silent(t, ps)
		require.Empty(t, r.waiters())
	})
	t.Run("passes over waiters that are gone", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.queue("gone")
		r.queue("gone")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
		id := r.enter("b")
		r.owner(id, 1)
		require.Empty(t, r.waiters())
	})
}

// TestForeignHash has a key of somebody else's making where a lock is to be.
func TestForeignHash(t *testing.T) {
	for what, c := range map[string]struct {
		fields []any
		owner  string
	}{
		"one field":         {[]any{"someone", "x"}, "someone"},
		"several fields":    {[]any{"one", "1", "two", "2"}, "one"},
		"an empty field":    {[]any{"", "1"}, ""},
		"a read-write lock": {[]any{"mode", "read", "someone", "x"}, "someone"},
		"a mode alone":      {[]any{"mode", "read"}, "mode"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.listen("b")
			require.NoError(t, r.rdb.HSet(t.Context(), r.base, c.fields...).Err())
			want := &store.Busy{Owner: store.ID(c.owner), TTL: -time.Millisecond}
			_, err := r.store.Try(t.Context(), r.ask(newID("b"), minute))
			require.Equal(t, want, err)
			got, err := r.acquire(newID("b"), minute, newPlace)
			require.NoError(t, err)
			require.Equal(t, statusQueued, got.status)
			require.Equal(t, want, got.busy())
			require.EqualValues(t, 0, r.renew(newID("b"), minute, 1))
			require.EqualValues(t, 0, r.release(newID("b")))
			require.EqualValues(t, c.owner, r.look().Owner)
			require.Len(t, r.rdb.HGetAll(t.Context(), r.base).Val(), len(c.fields)/2)
		})
	}
}

func TestOddRepliesAreErrors(t *testing.T) {
	for _, reply := range []any{
		nil, "", "x", int64(0), int64(2), int64(4), int64(-1), []any{}, []any{int64(1)}, []any{int64(0), "x"},
		[]any{int64(2), "x", int64(1)}, []any{"0", "x", int64(1)}, []any{int64(0), int64(1), int64(1)},
		[]any{int64(2), "x", int64(1), int64(0), int64(0)}, []any{int64(2), "x", int64(1), int64(1), int64(-1)},
		[]any{int64(0), "x", int64(1), int64(1), int64(1)}, []any{int64(1), "x", int64(1), int64(-1)},
		[]any{int64(2), "x", int64(1), int64(1), int64(1), int64(1)}, []any{nil, nil, nil},
	} {
		_, err := parseAcquireReply(scripts.mutex.acquire, reply)
		require.ErrorIs(t, err, store.ErrUnsure, "%v", reply)
		require.ErrorContains(t, err, "acquire")
	}
}

func FuzzParseAcquired(f *testing.F) {
	for _, seed := range [][]byte{{1}, {2, 0, 's', 1}, {3, 2, 's', 100, 5, 0}, {5, 's', 1}, {255, 255, 0}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var reply []any
		for _, b := range data {
			if b == 's' {
				reply = append(reply, "x")
			} else {
				reply = append(reply, int64(int8(b)))
			}
		}
		r, err := parseAcquireReply(scripts.mutex.acquire, reply)
		if err != nil {
			require.Equal(t, acquireReply{}, r)
			return
		}
		require.Contains(t, []int64{statusBusy, statusOurs, statusQueued, statusKind, statusCircle}, r.status)
		if r.status == statusCircle { // of a read-write lock
			require.Len(t, reply, 3)
		}
		require.GreaterOrEqual(t, r.position, 0)
		require.GreaterOrEqual(t, r.number, int64(0))
	})
}

func TestLeaseOfAReply(t *testing.T) {
	first := time.Now()
	sent := first.Add(10 * time.Second)
	answer := wire.Answer{First: first, Sent: sent}
	a := store.Ask{TTL: minute}
	for _, c := range []struct {
		reply acquireReply
		want  time.Time
	}{
		{acquireReply{status: statusOurs}, first}, // a repeat sets a shorter lease
		{acquireReply{status: statusOurs, known: true, remaining: minute}, sent},
		{acquireReply{status: statusOurs, known: true, remaining: 2 * minute}, sent},
		{acquireReply{status: statusOurs, known: true, remaining: minute / 4}, sent.Add(-minute * 3 / 4)},
		{acquireReply{status: statusOurs, known: true, remaining: -time.Millisecond}, sent.Add(-minute)},
	} {
		require.Equal(t, c.want, c.reply.toLease(a, answer).Sent, "%+v", c.reply)
	}
}

func TestMillis(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000, minute: 60000,
	} {
		require.Equal(t, want, lifetime.Millis(d), d)
	}
	for elapsed, want := range map[time.Duration]int64{
		0: 60000, time.Second: 59000, minute - 1: 1, minute: 60000, minute + time.Second: 59000,
	} {
		require.Equal(t, want, repeatMillis(minute, elapsed), elapsed)
	}
}
