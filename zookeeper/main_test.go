package relockzk_test

import (
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
	relockzk "github.com/go-relock/relock/zookeeper"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// open returns a Store on servers, that is closed with the test.
func open(t testing.TB, servers string, options ...relockzk.Option) *relockzk.Store {
	t.Helper()
	s, err := relockzk.New(servers, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// admin returns a connection that is not of a Store.
func admin(t testing.TB, servers string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(zk.FormatServers([]string{servers}), 20*time.Second, zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}
