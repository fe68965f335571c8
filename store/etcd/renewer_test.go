package relocketcd_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

const keepAlive = "/LeaseKeepAlive"

func renewal(l store.Lease) []store.Renewal {
	return []store.Renewal{{Lease: l, TTL: minute, Count: 1}}
}

// A renewal ends after the release of its hold. The etcd lease of the hold serves another hold by
// then.
func TestALateRenewalSparesTheNextHoldOfItsLease(t *testing.T) {
	var w wire
	c := w.client(t)
	s := newStore(t, c)
	first, err := s.Try(t.Context(), claim("late-renewal", minute))
	require.NoError(t, err)
	renewed := make(chan error, 1)
	answer := w.holdAnswer(keepAlive)
	go func() { renewed <- s.Renew(t.Context(), renewal(first))[0] }()
	begins(t, answer)
	require.NoError(t, s.Release(t.Context(), first))
	close(answer.goOn)
	if err := <-renewed; err != nil {
		t.Log("the renewal:", err) // the hold is gone
	}
	next, err := s.Try(t.Context(), claim("late-renewal", minute))
	require.NoError(t, err)
	require.NoError(t, s.Forget(t.Context(), []store.Claim{first.Claim})[0])
	requireOwner(t, s, next.Claim)
	require.NoError(t, s.Renew(t.Context(), renewal(next))[0], "the etcd lease is there")
	require.NoError(t, s.Release(t.Context(), next))
	require.NoError(t, s.Close())
}

// On a busy machine each answer may take a good part of the TTL.
func TestARenewalDoesNotWaitForItsRead(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	l, err := s.Try(t.Context(), claim("beside-its-read", minute))
	require.NoError(t, err)
	read, answer := w.holdReply("/Txn"), w.holdAnswer(keepAlive)
	renewed := make(chan error, 1)
	go func() { renewed <- s.Renew(t.Context(), renewal(l))[0] }()
	begins(t, read)
	begins(t, answer)
	close(answer.goOn)
	close(read.goOn)
	require.NoError(t, <-renewed)
	require.NoError(t, s.Release(t.Context(), l))
}

// A call gives up the renewal of a spare before its answer. The next call finds that its spare has
// ended.
func TestALateAnswerIsNoAnswerToTheNextRenewal(t *testing.T) {
	var w wire
	c := w.client(t)
	s := newStore(t, c)
	first, err := s.Try(t.Context(), claim("first", minute))
	require.NoError(t, err)
	second, err := s.Try(t.Context(), claim("second", minute))
	require.NoError(t, err)
	resp, err := c.Get(t.Context(), keys(t, c, "first")[0])
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), first))
	require.NoError(t, s.Release(t.Context(), second)) // the spare that is taken first
	_, err = c.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
	require.NoError(t, err)

	answer := w.holdAnswer(keepAlive)
	ctx, cancel := context.WithCancel(t.Context())
	tried := make(chan error, 1)
	try := func(ctx context.Context) {
		l, err := s.Try(ctx, claim("late-answer", minute))
		tried <- errors.Join(err, s.Release(t.Context(), l))
	}
	go try(ctx)
	begins(t, answer)
	cancel()
	require.ErrorIs(t, <-tried, context.Canceled)
	go try(t.Context())
	<-time.After(100 * time.Millisecond) // the renewal is in flight
	close(answer.goOn)
	require.NoError(t, <-tried)
	require.NoError(t, s.Close())
}

// A stream gives no answer any more. The renewal goes on in another stream, and so do the renewals
// behind the first one.
func TestASilentStreamCostsNoLease(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	l, err := s.Try(t.Context(), claim("silent-stream", minute))
	require.NoError(t, err)
	require.NoError(t, s.Renew(t.Context(), renewal(l))[0])
	w.holdAnswer(keepAlive)
	begun := time.Now()
	for range 20 { // each attempt ends before the stream does
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		err = s.Renew(ctx, renewal(l))[0]
		cancel()
		if err == nil {
			break
		}
	}
	require.NoError(t, err)
	require.EqualValues(t, 2, w.streams.Load())
	t.Log("renewed after", time.Since(begun))
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, s.Close())
}

// The renewal of a spare has no answer, for which its stream waits a second.
func TestOtherRenewalsDoNotHoldUpThoseOfHolds(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	l, err := s.Try(t.Context(), claim("held", minute))
	require.NoError(t, err)
	fastest := minute
	for range 5 { // a busy machine may hold up one renewal
		spare, err := s.Try(t.Context(), claim("other", minute))
		require.NoError(t, err)
		require.NoError(t, s.Release(t.Context(), spare))
		answer := w.holdAnswer(keepAlive)
		tried := make(chan error, 1)
		go func() {
			l, err := s.Try(t.Context(), claim("other", minute))
			tried <- errors.Join(err, s.Release(t.Context(), l))
		}()
		begins(t, answer)
		begun := time.Now()
		require.NoError(t, s.Renew(t.Context(), renewal(l))[0])
		fastest = min(fastest, time.Since(begun))
		close(answer.goOn)
		require.NoError(t, <-tried)
	}
	require.Less(t, fastest, 500*time.Millisecond)
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, s.Close())
}

// A login takes longer than an attempt to renew. The attempts wait for one login.
func TestASlowLoginIsWaitedFor(t *testing.T) {
	m, _ := startWithUsers(t)
	var w wire
	s := newStore(t, w.login(t, m, "orders"))
	l, err := s.Try(t.Context(), claim("slow-login", minute))
	require.NoError(t, err)
	logins := w.logins.Load()
	login := w.holdReply("/Authenticate")
	time.AfterFunc(700*time.Millisecond, func() { close(login.goOn) })
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err = s.Renew(ctx, renewal(l))[0]
		cancel()
		if err == nil {
			break
		}
	}
	require.NoError(t, err)
	require.Equal(t, logins+1, w.logins.Load())
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, s.Close())
}

// The etcd client stays open.
func TestNothingOfAStoreIsLeftAfterClose(t *testing.T) {
	c := connect(t, etcdtest.Start(t, 1)...)
	s := newStore(t, c)
	for _, what := range []string{"a call before Close", "a call after Close"} {
		t.Run(what, func(t *testing.T) {
			redistest.NoGoroutineLeft(t, "relock/etcd.")
			l, err := s.Try(t.Context(), claim("closed", minute))
			require.NoError(t, err)
			require.NoError(t, s.Renew(t.Context(), renewal(l))[0])
			next := wait(t, s, claim("closed", minute))
			require.NoError(t, s.Release(t.Context(), l))
			require.NoError(t, s.Release(t.Context(), next.Get(t)))
			if what == "a call before Close" {
				require.NoError(t, s.Close())
			}
			leases, err := c.Leases(t.Context())
			require.NoError(t, err)
			require.Empty(t, leases.Leases)
		})
	}
	require.NoError(t, s.Close())
}

// hostile is a stream whose methods panic once, in goroutines of the store.
type hostile struct {
	grpc.ClientStream
	at func(method string)
}

func (h hostile) SendMsg(m any) error { h.at("SendMsg"); return h.ClientStream.SendMsg(m) }
func (h hostile) RecvMsg(m any) error { h.at("RecvMsg"); return h.ClientStream.RecvMsg(m) }

func TestAnInterceptorThatPanicsEndsItsStreamOnly(t *testing.T) {
	for _, method := range []string{"opening", "SendMsg", "RecvMsg"} {
		t.Run(method, func(t *testing.T) {
			var panicked atomic.Bool
			at := func(here string) {
				if here == method && panicked.CompareAndSwap(false, true) {
					panic("of an interceptor")
				}
			}
			c, err := clientv3.New(clientv3.Config{
				Endpoints: []string{etcdtest.Shared(t).URL()}, Logger: zap.NewNop(),
				DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
					name string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					s, err := open(ctx, desc, cc, name, opts...)
					if err != nil || !strings.HasSuffix(name, keepAlive) {
						return s, err
					}
					at("opening")
					return hostile{s, at}, nil
				})},
			})
			require.NoError(t, err)
			defer c.Close()
			s := newStore(t, c)
			l, err := s.Try(t.Context(), claim("panic-"+method, minute))
			require.NoError(t, err)
			redistest.Eventually(t, minute, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				return s.Renew(ctx, renewal(l))[0] == nil && panicked.Load()
			}, "the next stream renews")
			require.NoError(t, s.Release(t.Context(), l))
			require.NoError(t, s.Close())
		})
	}
}
