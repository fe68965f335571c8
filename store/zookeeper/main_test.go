package relockzk_test

import (
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// patience bounds a hang.
const patience = time.Minute

// open returns a Store. The end of the test closes it, with the holds that the test leaves.
func open(t testing.TB, servers string, options ...relockzk.Option) *relockzk.Store {
	t.Helper()
	s, err := relockzk.New(servers, options...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		s.Crash()
	})
	return s
}

// admin returns a connection that is not of a Store.
func admin(t testing.TB, servers string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(zk.FormatServers([]string{servers}), patience, zk.WithLogInfo(false), zk.WithDialer(
		func(network, address string, _ time.Duration) (net.Conn, error) {
			c, err := (&net.Dialer{Timeout: patience}).Dial(network, address)
			return &newcomer{Conn: c}, err
		}))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// newcomer is a connection that waits five seconds for its first answer. A server that is starting may
// give none, and zk.Conn by itself would wait for minutes.
type newcomer struct {
	net.Conn
	answered bool
}

func (c *newcomer) SetReadDeadline(t time.Time) error {
	if first := time.Now().Add(5 * time.Second); !c.answered && t.After(first) {
		t = first
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *newcomer) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.answered = c.answered || n > 0
	return n, err
}

// retry repeats a request of a connection of admin that a busy server has not answered.
func retry(t testing.TB, request func() error) error {
	t.Helper()
	var err error
	passes := func() bool {
		return errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrSessionExpired)
	}
	redistest.Eventually(t, patience, func() bool { err = request(); return !passes() }, "the server answers")
	return err
}

// claim returns the claim of a new hold of lock "orders".
func claim(ttl time.Duration) store.Claim { return holds.Claim("orders", ttl) }

// mode returns the claim of a new hold of read-write lock "orders".
func mode(limit int) store.Claim {
	a := claim(20 * time.Second)
	a.Kind, a.Limit = store.ReadWrite, limit
	return a
}

// take makes a new hold.
func take(t testing.TB, s store.Store, ttl time.Duration) store.Lease {
	t.Helper()
	l, err := s.Wait(t.Context(), claim(ttl), holds.Nothing)
	require.NoError(t, err)
	return l
}

// wait starts a Wait, and returns when it is queued.
func wait(t testing.TB, s store.Store, ttl time.Duration) *holds.Waiter {
	t.Helper()
	return holds.Wait(t, s, claim(ttl))
}

// nodes returns the nodes of a lock, the holder first. The server deletes the path of a lock without
// nodes when it looks at its containers.
func nodes(t testing.TB, conn *zk.Conn, lock string) []string {
	t.Helper()
	var nodes []string
	err := retry(t, func() (err error) { nodes, _, err = conn.Children(lock); return err })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	require.NoError(t, err)
	slices.SortFunc(nodes, func(a, b string) int {
		return slices.Compare([]byte(a[len(a)-10:]), []byte(b[len(b)-10:]))
	})
	return nodes
}
