package redisstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// TestARunIsOverIfRedisHasServedTheNextOne has messages that are read in another order than they
// were sent: the lease of the first hold was taken by force, and Redis has granted the lock to the
// second hold of its run, whose wait reads its message first.
func TestARunIsOverIfRedisHasServedTheNextOne(t *testing.T) {
	begun := func(read func(w *waited)) *store.Run {
		var w waited
		for _, id := range []store.ID{"a:1:1", "a:1:2", "a:1:3"} {
			w.begin(id)
		}
		read(&w)
		return w.run(store.Claim{ID: "a:1:1", TTL: minute}, "a:1:1\n+a:1:2 a:1:3")
	}
	require.Equal(t, []store.ID{"a:1:2", "a:1:3"}, begun(func(*waited) {}).Behind)
	require.Equal(t, []store.ID{"a:1:2", "a:1:3"}, begun(func(w *waited) {
		w.lasts("a:1:2", time.Minute) // a wait that has given up is passed by
	}).Behind)
	require.Empty(t, begun(func(w *waited) {
		w.granted("a:1:2")
		w.lasts("a:1:2", time.Minute)
	}).Behind)
}
