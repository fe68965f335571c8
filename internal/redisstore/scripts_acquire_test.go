package redisstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// Does an acquire take, re-enter or refuse a lock, and is its reply understood?

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
			_, err := r.store.Try(t.Context(), r.claim(newID("b"), minute))
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
	a := store.Claim{TTL: minute}
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

func TestMillisOfARepeat(t *testing.T) {
	for elapsed, want := range map[time.Duration]int64{
		0: 60000, time.Second: 59000, minute - 1: 1, minute: 60000, minute + time.Second: 59000,
	} {
		require.Equal(t, want, repeatMillis(minute, elapsed), elapsed)
	}
}
