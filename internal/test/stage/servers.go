package stage

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// OnWire is the timeout of the peers of Sentinel and of a cluster. A server that is gone is noticed
// soon, and a busy machine has time.
const OnWire = 500 * time.Millisecond

// Acked asks for the one replica that there is.
func Acked() relock.Option { return relock.WithReplicaAcks(1, 400*time.Millisecond) }

// surroundings is an arena of several servers, none of them started. Servers and clients share a
// busy machine. The limit is less than DefaultTTL, so a test finds out what only comes at the end
// of a lease.
func surroundings(t *testing.T, rdb func() redis.UniversalClient) *Arena {
	t.Helper()
	if testing.Short() {
		redistest.NotTested(t, "-short leaves out Sentinel and Cluster, which take long")
	}
	redistest.NoGoroutineLeft(t)
	return bare(t, 10*time.Second, rdb)
}

// Replicated waits until the replica of a server has all that was written so far.
func Replicated(t testing.TB, master redis.UniversalClient, key string) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool {
		node, ok := master.(*redis.Client)
		if !ok {
			var err error
			if node, err = master.(*redis.ClusterClient).MasterForKey(context.Background(), key); err != nil {
				return false
			}
		}
		var wait *redis.Cmd
		// WAIT counts replicas that have the writes of its connection, so there must be a write.
		_, err := node.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			p.Set(context.Background(), key, 1, time.Millisecond)
			wait = p.Do(context.Background(), "WAIT", 1, 100)
			return nil
		})
		n, _ := wait.Int()
		return err == nil && n == 1
	}, "the replica has everything")
}

// OnSentinel is an arena on a master with a replica, and three sentinels.
func OnSentinel(t *testing.T) (*Arena, *redistest.Sentinel) {
	t.Helper()
	var w *Arena
	w = surroundings(t, func() redis.UniversalClient { return w.Plain })
	s := redistest.StartSentinel(t)
	w.Server, w.Plain = s.Master(), s.Client()
	t.Cleanup(func() {
		if !t.Failed() {
			w.requireTidy()
		}
	})
	return w, s
}

// SentinelPeer is a peer that asks the sentinels for the master.
func SentinelPeer(w *Arena, s *redistest.Sentinel, options ...relock.Option) *Peer {
	w.T.Helper()
	p := &Peer{Faults: redistest.NewFaults()}
	w.T.Cleanup(p.Faults.Close)
	p.RDB = s.Client(func(o *redis.FailoverOptions) {
		o.Dialer = p.Faults.Dialer(nil)
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout = OnWire, OnWire, OnWire
		o.DialerRetries = 1
	})
	var err error
	p.Client, err = relock.New(p.RDB, options...)
	require.NoError(w.T, err)
	w.Closing(p.Client, p.Faults)
	return p
}

// WithReplica is a server with a replica that is in sync.
func WithReplica(t *testing.T) (*Arena, *redistest.Server) {
	t.Helper()
	w := OnOwn(t, "--repl-diskless-sync", "no") // which streams at once
	host, port, _ := strings.Cut(w.Server.Addr(), ":")
	replica := redistest.Start(t, "--replicaof", host, port)
	redistest.Eventually(t, 15*time.Second, func() bool {
		// Behind a write on the same connection: else there is nothing that the replica could lack.
		var wait *redis.Cmd
		_, err := w.Plain.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "written", 1, time.Millisecond)
			wait = p.Do(t.Context(), "WAIT", 1, 100)
			return nil
		})
		n, _ := wait.Int()
		return err == nil && n == 1
	}, "the replica is in sync")
	return w, replica
}
