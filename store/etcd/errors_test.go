package relocketcd_test

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/store"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

func TestAWaitOutlastsErrorsThatPass(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	for _, refusal := range []error{
		rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNotLeader,
		rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCTimeout,
		rpctypes.ErrGRPCNotSupportedForLearner, rpctypes.ErrGRPCClusterVersionUnavailable, rpctypes.ErrGRPCInvalidAuthToken,
		rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCCanceled, status.Error(codes.Unavailable, "a proxy has no server"),
		status.Error(codes.Unknown, "something else"), status.Error(codes.Internal, "a frame is broken"),
		status.Error(codes.Aborted, "again, please"),
	} {
		t.Run(rpctypes.ErrorDesc(refusal), func(t *testing.T) {
			w.refuse("/Txn", refusal)
			l, err := s.Wait(t.Context(), claim("passes", minute), nothing)
			require.NoError(t, err)
			require.NoError(t, s.Release(t.Context(), l))
			w.refuse("/Txn", refusal)
			if l, err = s.Try(t.Context(), claim("passes", minute)); err == nil { // the etcd client has sent the command again
				require.NoError(t, s.Release(t.Context(), l))
				return
			}
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, rpctypes.ErrorDesc(refusal))
		})
	}
}

func TestAWaitEndsWithAnErrorThatStays(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	for _, err := range []error{
		rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCUserEmpty, rpctypes.ErrGRPCTooManyOps,
		rpctypes.ErrGRPCLeaseTTLTooLarge, status.Error(codes.Unimplemented, "unknown service etcdserverpb.KV"),
		status.Error(codes.Unauthenticated, "who are you?"), status.Error(codes.PermissionDenied, "a proxy forbids it"),
	} {
		t.Run(rpctypes.ErrorDesc(err), func(t *testing.T) {
			w.refuse("/Txn", err)
			_, waited := s.Wait(t.Context(), claim("stays", minute), nothing)
			require.ErrorContains(t, waited, rpctypes.ErrorDesc(err))
			require.NotErrorIs(t, waited, store.ErrUnavailable)
			require.NotErrorIs(t, waited, store.ErrUnsure)
		})
	}
}

// A hold, a waiter and new calls use an etcd client that is closed.
func TestAClosedEtcdClientEndsCallsAtOnce(t *testing.T) {
	c := new(wire).client(t)
	s := newStore(t, c)
	client, err := relock.Open(s)
	require.NoError(t, err)
	lock := client.NewLock("closed-client")
	section, err := lock.Lock(t.Context())
	require.NoError(t, err)
	waited, queued := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := s.Wait(t.Context(), claim("closed-client", minute), func(store.Progress) { close(queued) })
		waited <- err
	}()
	<-queued
	require.NoError(t, c.Close())
	begun := time.Now()
	_, locked := client.NewLock("another").Lock(t.Context())
	_, tried := lock.TryLock(t.Context())
	for _, err := range []error{locked, tried, lock.Unlock(section), <-waited} {
		require.ErrorContains(t, err, "the etcd client is closed")
		require.NotErrorIs(t, err, relock.ErrUnavailable)
	}
	require.Less(t, time.Since(begun), bound.Of(10*time.Second))
	require.NoError(t, client.Close())
	require.NoError(t, s.Close())
}

// The host of etcd is not in DNS, and then nobody listens there, as in a failover.
func TestALockWaitsForTheAddressOfEtcd(t *testing.T) {
	noHost := &net.DNSError{Err: "no such host", Name: "etcd", IsNotFound: true}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	var dials atomic.Int64
	lock := dialing(t, func() error {
		switch dials.Add(1) {
		case 1, 2:
			return noHost
		case 3, 4:
			return refused
		}
		return nil
	})
	require.NoError(t, lock.Do(t.Context(), func(context.Context) error { return nil }))
	require.Greater(t, dials.Load(), int64(4))

	for _, failure := range []error{noHost, refused} {
		lock = dialing(t, func() error { return failure })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := lock.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, failure.Error())
	}
}

// dialing returns a lock over an etcd client that dials if fail returns nil.
func dialing(t *testing.T, fail func() error) *relock.Lock {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Shared(t).URL()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			if err := fail(); err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 2, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	client, err := relock.Open(newStore(t, c))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client.NewLock("address")
}

func TestNewRefusesAPrefixWithoutASlash(t *testing.T) {
	_, err := relocketcd.New(connect(t), "locks")
	require.ErrorContains(t, err, "slash")
	_, err = relocketcd.New(nil, "")
	require.ErrorContains(t, err, "nil")
}
