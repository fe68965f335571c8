package wire

import (
	"context"
	"io"
	"math"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/test/redistest"
)

// sealed is a connection in which go-redis cannot look for its end before it uses it, as with TLS.
type sealed struct{ net.Conn }

// sealedRig is a rig with so many idle connections of that kind, all of which have ended.
func sealedRig(t *testing.T, idle int) *rig {
	t.Helper()
	r := newRig(t, func(o *redis.Options) {
		dial := o.Dialer
		o.PoolSize = idle
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return sealed{conn}, err
		}
	})
	conns := make([]*redis.Conn, idle)
	for i := range conns {
		conns[i] = r.rdb.Conn()
		require.NoError(t, conns[i].Ping(t.Context()).Err())
	}
	for _, c := range conns {
		require.NoError(t, c.Close()) // back into the pool
	}
	var pipes sync.WaitGroup
	pings := r.faults.On(redistest.Named("PING"), redistest.Hold())
	for range 5 { // newer versions of go-redis have a pool for pipelines
		pipes.Go(func() {
			_, _ = r.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Ping(t.Context()).Err() })
		})
	}
	pings.WaitHits(t, 5)
	pings.Remove()
	pings.LetGo()
	pipes.Wait()
	r.faults.Cut()
	return r
}

func TestIdleConnectionsThatHadEndedAreNoTries(t *testing.T) {
	const idle = 20
	t.Run("one", func(t *testing.T) {
		r := sealedRig(t, idle)
		a := r.do(t.Context(), r.tries(1))
		require.True(t, a.Unsure, "go-redis does not tell it from a command that was sent")
		require.Equal(t, idle, r.retries())
		require.Equal(t, 1, r.trouble)
	})
	t.Run("with WAIT", func(t *testing.T) {
		r := sealedRig(t, idle)
		c := r.tries(1)
		c.Acks = attempts.Acks{Replicas: 1, Timeout: 1}
		r.do(t.Context(), c)
	})
	t.Run("many", func(t *testing.T) {
		r := sealedRig(t, idle)
		for _, result := range r.wire.All(t.Context(), setScript, nil, units(r, 2*maxUnits)) {
			require.NoError(t, result.Err)
		}
	})
	t.Run("but those that a server ends are", func(t *testing.T) {
		r := sealedRig(t, idle)
		r.faults.On(scripts, redistest.DropReply(redistest.EOF))
		_, err := r.wire.Do(t.Context(), r.tries(2))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, idle+1, r.retries())
	})
}

// go-redis would wait for its map, whatever the context of a call says.
func TestAnUnknownClusterIsNotAskedForItsIdleConnections(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:1"},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("go-redis has looked for the cluster")
			return nil, io.EOF
		},
	})
	defer func() { require.NoError(t, rdb.Close()) }()
	w, err := New(rdb, Options{})
	require.NoError(t, err)
	fewest := math.MaxInt
	require.False(t, w.wasStale(io.EOF, &fewest))
}

func TestACallRunsWithoutAKeyThatAMigratingSlotHasNot(t *testing.T) {
	r := newRig(t)
	count, first := NewScript("count", `return redis.call('EXISTS', KEYS[1])`), NewScript("set", setScript.Source+" ")
	r.faults.On(scripts.And(redistest.WithArg(setScript.Hash)), redistest.Answer("-TRYAGAIN Multiple keys request during rehashing of slot"))
	c := r.call("first")
	c.Unit.Keys = append(c.Unit.Keys, r.key(1))
	c.Migrating = &Migrating{Second: count, First: first}
	require.NoError(t, r.seen.Set(t.Context(), r.key(1), "is there at first", 0).Err())
	asked := 0
	r.faults.On(scripts.And(redistest.WithArg(count.Hash)), redistest.Before(func([]string) { asked++ }))
	r.retry = func() {
		if r.retries() == 2 {
			require.NoError(t, r.seen.Del(t.Context(), r.key(1)).Err())
		}
	}
	r.do(t.Context(), c)
	require.Equal(t, "first", r.value(0))
	require.Empty(t, r.value(1))
	require.Equal(t, 3, asked)
}
