package stage

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// A Peer is one process as Redis sees it: a client on a go-redis client of its own, with faults on
// its wire.
type Peer struct {
	*relock.Client
	RDB    *redis.Client
	Faults *redistest.Faults
}

// Peer makes a client that gives up a silent connection soon.
func (w *Arena) Peer(options ...relock.Option) *Peer {
	w.T.Helper()
	return w.PeerOn(func(*redis.Options) {}, options...)
}

// PeerOn is Peer with other go-redis options.
func (w *Arena) PeerOn(mod func(*redis.Options), options ...relock.Option) *Peer {
	w.T.Helper()
	p := &Peer{Faults: redistest.NewFaults()}
	w.T.Cleanup(p.Faults.Close)
	p.RDB = w.Server.Client(func(o *redis.Options) {
		o.Dialer = p.Faults.Dialer(nil)
		o.ReadTimeout, o.WriteTimeout = 150*time.Millisecond, 150*time.Millisecond
		o.DialTimeout, o.DialerRetries = 500*time.Millisecond, 1
		mod(o)
	})
	var err error
	p.Client, err = relock.New(p.RDB, options...)
	require.NoError(w.T, err)
	w.Closing(p.Client, p.Faults)
	return p
}

// Closing closes a client at the end of a test.
func (w *Arena) Closing(c *relock.Client, faults *redistest.Faults) {
	w.T.Helper()
	w.T.Cleanup(func() {
		faults.Heal() // what a failed test has left
		start := time.Now()
		require.NoError(w.T, c.Close())
		require.Less(w.T, time.Since(start), 10*time.Second, "Close waits for no more than what is on the wire")
	})
}

// Connect makes n connections that are ready for commands.
func (p *Peer) Connect(t testing.TB, n int) {
	t.Helper()
	conns := make([]*redis.Conn, n)
	for i := range conns {
		redistest.Eventually(t, Limit, func() bool { // a busy machine may take longer than the timeouts of p
			conns[i] = p.RDB.Conn()
			err := conns[i].Ping(t.Context()).Err()
			if err != nil {
				_ = conns[i].Close()
			}
			return err == nil
		}, "connected")
	}
	for _, c := range conns {
		require.NoError(t, c.Close()) // back into the pool
	}
}

// Breaks are the ways in which a connection can break before the reply has come.
var Breaks = map[string]redistest.Break{
	"end of file": redistest.EOF, "reset": redistest.Reset, "silence": redistest.Silence,
}
