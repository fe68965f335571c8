package relockzk_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/tcptest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// noHost is an address whose name no resolver knows. Nobody is asked, as the name has an empty part.
const noHost = "zk..invalid:2181"

func TestServerWithoutAnAddressIsLeftOut(t *testing.T) {
	server := zktest.Start(t)
	s := open(t, noHost+","+server.Address())
	for range 5 {
		require.NoError(t, s.Release(t.Context(), take(t, s, time.Second)))
		s.EndSession()
	}
}

// refuses starts a server that ends each connection with an answer.
func refuses(t *testing.T, answer string) (address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

func TestReasonThatPassesIsWaitedForAndNamed(t *testing.T) {
	for name, c := range map[string]struct{ servers, reason string }{
		"no address":                 {noHost, "no such host"},
		"no server":                  {"127.0.0.1:1", "connection refused"},
		"too many connections":       {refuses(t, ""), "gives no first answer"},
		"one of two is no ZooKeeper": {refuses(t, "HTTP/1.1 400 Bad Request\r\n\r\n") + ",127.0.0.1:1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, c.servers)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := s.Try(ctx, claim(time.Second))
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, c.reason)
			_, err = s.Wait(ctx, claim(time.Second), holds.Nothing)
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, c.reason)
		})
	}
}

func TestReasonThatStaysEndsALockAtOnce(t *testing.T) {
	server := zktest.Start(t)
	for name, c := range map[string]struct {
		servers string
		option  relockzk.Option
		reason  string
	}{
		"scheme of a credential":      {server.Address(), relockzk.WithAuth("none", []byte("x")), zk.ErrAuthFailed.Error()},
		"ACL":                         {server.Address(), relockzk.WithACL(zk.ACL{Perms: zk.PermAll, Scheme: "none", ID: "x"}), zk.ErrInvalidACL.Error()},
		"address":                     {"zk:1:2181", long, "too many colons"},
		"server that is no ZooKeeper": {refuses(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), long, "is no server of ZooKeeper"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, c.servers, c.option)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := s.Wait(ctx, claim(time.Second), holds.Nothing)
			require.ErrorContains(t, err, c.reason)
			require.NotErrorIs(t, err, store.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

func TestErrorThatIsNotKnownPasses(t *testing.T) {
	for _, passes := range []error{
		zk.ErrUnknown, zk.ErrConnectionClosed, zk.ErrClosing, zk.ErrAPIError, errors.New("unknown error: -7"), io.ErrUnexpectedEOF,
	} {
		require.ErrorIs(t, relockzk.Reason(passes, false), store.ErrUnavailable)
		require.NotErrorIs(t, relockzk.Reason(passes, false), store.ErrUnsure)
		require.ErrorIs(t, relockzk.Reason(passes, true), store.ErrUnsure)
	}
	for _, moved := range []error{zk.ErrNoServer, zk.ErrSessionMoved} {
		require.ErrorIs(t, relockzk.Reason(moved, true), store.ErrUnavailable)
		require.NotErrorIs(t, relockzk.Reason(moved, true), store.ErrUnsure, "the request has not run")
	}
	for _, stays := range []error{zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, errors.New("unknown error: -6")} {
		require.NotErrorIs(t, relockzk.Reason(stays, true), store.ErrUnavailable)
		require.NotErrorIs(t, relockzk.Reason(stays, true), store.ErrUnsure)
	}
}

// The first server takes the connection, and says nothing.
func TestServerThatIsSilentFromTheStartIsLeftOut(t *testing.T) {
	server := zktest.Start(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	addresses := []string{listener.Addr().String(), server.Address()}
	s := open(t, server.Address(), relockzk.WithSessionTimeout(4*time.Second), relockzk.WithDialer(
		func(ctx context.Context, network, _ string) (net.Conn, error) {
			address := addresses[0]
			addresses = addresses[len(addresses)-1:]
			return new(net.Dialer).DialContext(ctx, network, address)
		}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := s.Wait(ctx, claim(time.Second), holds.Nothing)
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), l))
}

// A server that is starting may take the connection, and never answer on it.
func TestSilentServerIsLeftSoonHoweverLongTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := make(chan time.Time, 2)
		s := open(t, "127.0.0.1:2181", long, relockzk.WithDialer(
			func(ctx context.Context, _, _ string) (net.Conn, error) {
				select {
				case dials <- time.Now():
				default:
				}
				conn, silent := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, silent) }()
				return conn, nil
			}))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := s.Try(ctx, claim(time.Second))
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.Len(t, dials, 2)
		first, second := <-dials, <-dials
		require.LessOrEqual(t, second.Sub(first), 11*time.Second)
	})
}

// The server of a session stands still, and the others do not.
func TestServerThatStandsStillCostsNoLock(t *testing.T) {
	const session, ttl = 24 * time.Second, 12 * time.Second
	server := zktest.Start(t)
	proxy := tcptest.NewProxy(t, server.Address())
	addresses := []string{proxy.Address(), server.Address()}
	s := open(t, server.Address(), relockzk.WithSessionTimeout(session), relockzk.WithDialer(
		func(ctx context.Context, network, _ string) (net.Conn, error) {
			address := addresses[0]
			addresses = addresses[len(addresses)-1:]
			return new(net.Dialer).DialContext(ctx, network, address)
		}))
	c, err := relock.Open(s, relock.WithTTL(ttl))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	l := c.NewLock("orders")
	section, err := l.Lock(t.Context())
	require.NoError(t, err)
	<-time.After(ttl / 4) // the first renewal is not far
	proxy.Stall()
	select {
	case <-section.Done():
		require.NoError(t, context.Cause(section))
	case <-time.After(ttl):
	}
	require.NoError(t, l.Unlock(section))
}
