package redis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What do several locks cost in Redis, and what if a reply about them is lost?

// onTen returns the names of ten locks.
func onTen() (names []string) {
	for i := range 10 {
		names = append(names, fmt.Sprint("ten", i))
	}
	return names
}

func TestTenLocksInRedisCostTwoCommands(t *testing.T) {
	w := stage.OnShared(t)
	l := w.Peer().NewLocks(onTen())
	section := w.EnterAll(t.Context(), l) // connects
	require.NoError(t, l.Unlock(section))
	before := w.Calls()
	section = w.EnterAll(t.Context(), l)
	for _, name := range l.Names() {
		w.RequireOwner(name, section)
		require.InDelta(t, relock.DefaultTTL, w.Lease(name), float64(time.Second))
	}
	require.NoError(t, l.Unlock(section))
	after := w.Calls()
	require.Equal(t, 2, after["evalsha"]-before["evalsha"])
	w.RequireFree(l.Names()...)
}

func TestLocksBehindDeadWaitersAreTaken(t *testing.T) {
	w := stage.OnShared(t)
	key := stage.BaseKey("ten3") + ":queue"
	var dead []redis.Z
	for i := range 150 {
		dead = append(dead, redis.Z{Score: float64(i + 1), Member: fmt.Sprintf("dead:1:%d|30000", i)})
	}
	require.NoError(t, w.Plain.ZAdd(t.Context(), key, dead...).Err())
	require.NoError(t, w.Plain.PExpire(t.Context(), key, time.Minute).Err())
	l := w.Peer().NewLocks(onTen())
	section, err := l.TryLock(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Unlock(section))
	require.Empty(t, redistest.Keys(t, w.Plain))
}

func TestMoreLocksThanOneScriptTakes(t *testing.T) {
	w := stage.OnShared(t)
	p := w.Peer()
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprint("many", i))
	}
	one := w.Counter(p, stage.LuaAll)
	require.NoError(t, p.NewLocks(names[:256]).Do(t.Context(), func(context.Context) error { return nil }))
	require.Equal(t, 1, one())
	require.NoError(t, p.NewLocks(names).Do(t.Context(), func(context.Context) error { return nil }))
	require.Equal(t, 1, one())
}
