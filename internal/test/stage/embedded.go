package stage

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// Embedded is an embedded Redis server and a clock, both of its own, in a testing/synctest bubble.
type Embedded struct {
	Redis *miniredis.Miniredis
	Stage // nobody looks into this store
}

// OnEmbedded runs a test with a server of its own in fake time.
func OnEmbedded(t *testing.T, test func(t *testing.T, w *Embedded)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		w := &Embedded{miniredis.NewMiniRedis(), Stage{T: t, clock: fakeClock{}, Limit: patience}}
		w.Redis.ClockTTL(true)
		t.Cleanup(func() {
			require.Zero(t, Goroutines("go-relock/relock.(*"), "goroutines of the library")
			w.Redis.Close()
			Pass(time.Minute) // go-redis goes on dialling for a while
		})
		test(t, w)
	})
}

// NewRedis returns a go-redis client of the server, and its network.
func (w *Embedded) NewRedis(mod ...func(*redis.Options)) (*redis.Client, *redistest.Faults) {
	faults := redistest.NewFaults()
	w.T.Cleanup(faults.Close)
	o := &redis.Options{
		Addr:        "127.0.0.1:6379", // nobody listens there: the dialer ignores the address
		Dialer:      faults.Dialer(func(context.Context, string, string) (net.Conn, error) { return w.Redis.Dial() }),
		ReadTimeout: 3 * time.Second,
		// A call that waits for a connection uses a timer that go-redis shares between bubbles.
		PoolSize: 1000,
		// Asking for these, go-redis waits for the reply with a mutex held, and time does not pass
		// meanwhile.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true, // nothing but the handshake comes before the first command
	}
	for _, f := range mod {
		f(o)
	}
	rdb := redis.NewClient(o)
	w.T.Cleanup(func() { _ = rdb.Close() })
	return rdb, faults
}

// EmbeddedPeer is a Client on an embedded server, as a process of its own would have it.
type EmbeddedPeer struct {
	*relock.Client
	Net *redistest.Faults
}

// NewClient returns a Client as a process of its own would have it.
func (w *Embedded) NewClient(options ...relock.Option) *EmbeddedPeer {
	w.T.Helper()
	rdb, faults := w.NewRedis()
	c, err := relock.New(rdb, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() { require.NoError(w.T, c.Close()) })
	return &EmbeddedPeer{c, faults}
}

// Warm runs the scripts of a short section once, so that later calls need not send their text.
func (m *EmbeddedPeer) Warm(t *testing.T) {
	t.Helper()
	l := m.NewLock("warm")
	require.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
		return l.Do(ctx, func(context.Context) error { return nil })
	}))
	m.Net.Reset()
}

// RequireTokensOnly fails unless all that is left of locks are tokens.
func (w *Embedded) RequireTokensOnly() {
	w.T.Helper()
	Settle()
	for _, key := range w.Redis.Keys() {
		require.True(w.T, strings.HasSuffix(key, ":token"), key)
	}
}
