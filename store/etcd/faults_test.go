package relocketcd_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
)

const minute = time.Minute

// What a test does with holds.
var (
	claim   = holds.Claim
	wait    = holds.Wait
	nothing = holds.Nothing
)

// wire counts the commands of an etcd client, and loses replies.
type wire struct {
	commands atomic.Int64
	lose     atomic.Pointer[string] // the end of the method whose next reply is lost
	silent   atomic.Bool            // watches are silent
	held     atomic.Pointer[call]   // the next call of a method that waits before it is sent
	refused  atomic.Pointer[call]   // the next call of a method that is not sent
	answer   atomic.Pointer[call]   // the next message of a stream that waits with its receiver
	streams  atomic.Int64           // that renew leases
	logins   atomic.Int64
}

// call is a call of one method.
type call struct {
	method string        // its end
	late   bool          // the client has an error before the command is sent
	reply  bool          // the call waits with its reply
	err    error         // the answer to a call that is not sent
	begun  chan struct{} // closed when the call begins
	goOn   chan struct{} // sends the call
	done   chan struct{} // closed when the command has run
}

// is says whether a call is the one that p waits for.
func is(p *atomic.Pointer[call], method string) *call {
	if c := p.Load(); c != nil && strings.HasSuffix(method, c.method) && p.CompareAndSwap(c, nil) {
		return c
	}
	return nil
}

// hold lets the next call of a method wait before it is sent.
func (w *wire) hold(method string, late bool) *call {
	c := &call{method: method, late: late, begun: make(chan struct{}), goOn: make(chan struct{}), done: make(chan struct{})}
	w.held.Store(c)
	return c
}

// holdReply lets the next call of a method wait with its reply.
func (w *wire) holdReply(method string) *call {
	c := &call{method: method, reply: true, begun: make(chan struct{}), goOn: make(chan struct{})}
	w.held.Store(c)
	return c
}

// holdAnswer lets the next message of a stream of a method wait with its receiver.
func (w *wire) holdAnswer(method string) *call {
	c := &call{method: method, begun: make(chan struct{}), goOn: make(chan struct{})}
	w.answer.Store(c)
	return c
}

func (w *wire) refuse(method string, err error) { w.refused.Store(&call{method: method, err: err}) }

// client returns an etcd client on the wire.
func (w *wire) client(t testing.TB) *clientv3.Client {
	t.Helper()
	return w.connect(t, clientv3.Config{Endpoints: []string{etcdtest.Shared(t).URL()}})
}

func (w *wire) connect(t testing.TB, config clientv3.Config) *clientv3.Client {
	t.Helper()
	config.Logger = zap.NewNop()
	config.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(w.unary), grpc.WithChainStreamInterceptor(w.stream)}
	c, err := clientv3.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var errLost = status.Error(codes.Unavailable, "the reply is lost")

func (w *wire) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	w.commands.Add(1)
	if strings.HasSuffix(method, "/Authenticate") {
		w.logins.Add(1)
	}
	if c := is(&w.refused, method); c != nil {
		return c.err
	}
	switch c := is(&w.held, method); {
	case c == nil:
	case c.late:
		close(c.begun)
		go func() {
			defer close(c.done)
			<-c.goOn
			_ = invoke(context.WithoutCancel(ctx), method, req, reply, cc, opts...)
		}()
		return errLost
	case c.reply:
		defer func() { close(c.begun); <-c.goOn }()
	default:
		close(c.begun)
		<-c.goOn
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if lost := w.lose.Load(); lost != nil && strings.HasSuffix(method, *lost) && w.lose.CompareAndSwap(lost, nil) {
		return errLost
	}
	return err
}

func (w *wire) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	w.commands.Add(1)
	if c := is(&w.held, method); c != nil {
		close(c.begun)
		<-c.goOn
	}
	s, err := open(ctx, desc, cc, method, opts...)
	switch {
	case err != nil:
		return s, err
	case strings.HasSuffix(method, "/Watch") && w.silent.Load():
		return silent{s}, nil
	case strings.HasSuffix(method, "/LeaseKeepAlive"):
		w.streams.Add(1)
	}
	return held{s, w, method}, nil
}

// held is a stream whose next message may wait with its receiver, see holdAnswer.
type held struct {
	grpc.ClientStream
	wire   *wire
	method string
}

func (s held) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if c := is(&s.wire.answer, s.method); c != nil {
		close(c.begun)
		select {
		case <-c.goOn:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	return err
}

// silent is a stream that delivers nothing.
type silent struct{ grpc.ClientStream }

func (s silent) RecvMsg(any) error {
	<-s.Context().Done()
	return s.Context().Err()
}

func (w *wire) loseReply(method string) { w.lose.Store(&method) }

// keys returns all keys of a lock.
func keys(t testing.TB, c *clientv3.Client, name string) (found []string) {
	t.Helper()
	resp, err := c.Get(t.Context(), "relock/"+name+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		found = append(found, string(kv.Key))
	}
	return found
}

func TestALostReplyLeavesOneHold(t *testing.T) {
	var w wire
	c := w.client(t)
	s := newStore(t, c)
	for _, method := range []string{"/LeaseGrant", "/Txn"} {
		a := claim("lost-reply", minute)
		w.loseReply(method)
		l, err := s.Wait(t.Context(), a, nothing)
		require.NoError(t, err)
		require.Equal(t, method == "/Txn", l.Unsure)
		require.Len(t, keys(t, c, a.Name), 1)
		w.loseReply("/Txn")
		_, err = s.Enter(t.Context(), l, 2)
		require.NoError(t, err)
		state, err := s.Look(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, 2, state.Count)
		require.NoError(t, s.Release(t.Context(), l))
		require.Empty(t, keys(t, c, a.Name))
	}
	a := claim("lost-reply", minute)
	w.loseReply("/Txn")
	_, err := s.Try(t.Context(), a)
	require.ErrorIs(t, err, store.ErrUnsure)
	require.ErrorIs(t, err, store.ErrUnavailable)
	l, err := s.Try(t.Context(), a)
	require.NoError(t, err, "a repeat finds the hold")
	require.Len(t, keys(t, c, a.Name), 1)
	require.NoError(t, s.Release(t.Context(), l))
}

// TestAReleaseThatIsSentAgainSparesTheNextHold loses the reply of a release. Meanwhile a hold of the
// same process gets the lock, with the same etcd lease.
func TestAReleaseThatIsSentAgainSparesTheNextHold(t *testing.T) {
	var w wire
	c := w.client(t)
	s, other := newStore(t, c), newStore(t, connect(t))
	first := claim("sent-again", minute)
	l, err := s.Try(t.Context(), first)
	require.NoError(t, err)
	next := wait(t, other, claim("sent-again", minute))
	w.loseReply("/Txn")
	err = s.Release(t.Context(), l)
	require.ErrorIs(t, err, store.ErrGone)
	require.ErrorIs(t, err, store.ErrUnsure)
	second := next.Get(t)
	require.ErrorIs(t, s.Release(t.Context(), l), store.ErrGone)
	require.NoError(t, s.Forget(t.Context(), []store.Claim{first})[0])
	state, err := s.Look(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, second.ID, state.Owner)
	require.NoError(t, other.Release(t.Context(), second))
}

func TestMutexOfEtcdAndLocksExcludeEachOther(t *testing.T) {
	c := connect(t)
	s := newStore(t, c)
	session, err := concurrency.NewSession(c)
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	m := concurrency.NewMutex(session, "relock/shared")

	require.NoError(t, m.Lock(t.Context()))
	_, err = s.Try(t.Context(), claim("shared", minute))
	var busy *store.Busy
	require.ErrorAs(t, err, &busy)
	require.Equal(t, store.ID(fmt.Sprintf("etcd:%x:0", session.Lease())), busy.Owner)
	first := wait(t, s, claim("shared", minute))
	require.NoError(t, m.Unlock(t.Context()))
	l := first.Get(t)

	require.ErrorIs(t, m.TryLock(t.Context()), concurrency.ErrLocked)
	locked := make(chan error, 1)
	go func() { locked <- m.Lock(t.Context()) }()
	require.Eventually(t, func() bool { return len(keys(t, c, "shared")) == 2 }, 30*time.Second, time.Millisecond)
	second := wait(t, s, claim("shared", minute)) // behind the mutex
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, <-locked)
	state, err := s.Look(t.Context(), claim("shared", minute))
	require.NoError(t, err)
	require.Equal(t, busy.Owner, state.Owner)
	require.Equal(t, 1, state.Waiters)

	require.NoError(t, s.Break(t.Context(), store.Claim{Name: "shared", ID: busy.Owner, Limit: 1}))
	require.NoError(t, s.Release(t.Context(), second.Get(t)))
	_, err = c.TimeToLive(t.Context(), session.Lease())
	require.NoError(t, err, "the session of the other program goes on")
}

func TestACompactedWatchReadsAgain(t *testing.T) {
	c := connect(t, etcdtest.Start(t, 1)...)
	s := newStore(t, c)
	l, err := s.Try(t.Context(), claim("compacted", minute))
	require.NoError(t, err)
	begun := time.Now()
	release := sync.OnceFunc(func() { // between the read of the waiter and its watch
		require.NoError(t, s.Release(t.Context(), l))
		resp, err := c.Put(t.Context(), "another", "key")
		require.NoError(t, err)
		_, err = c.Compact(t.Context(), resp.Header.Revision)
		require.NoError(t, err)
	})
	next, err := s.Wait(t.Context(), claim("compacted", minute), func(store.Progress) { release() })
	require.NoError(t, err)
	require.Less(t, time.Since(begun), bound.Of(15*time.Second))
	require.NoError(t, s.Release(t.Context(), next))
}

func TestASilentWatchHoldsUpAWaiterForAThirdOfItsLease(t *testing.T) {
	var w wire
	w.silent.Store(true)
	s, other := newStore(t, w.client(t)), newStore(t, connect(t))
	l, err := other.Try(t.Context(), claim("silent", minute))
	require.NoError(t, err)
	next := wait(t, s, claim("silent", 12*time.Second))
	require.NoError(t, other.Release(t.Context(), l))
	got := next.GetWithin(t, 10*time.Second)
	require.Equal(t, store.WakeRecheck, got.Woken)
	require.NoError(t, s.Release(t.Context(), got))
}

// TestAHandOverCostsTheSameWithManyWaiting counts the commands of hand-overs.
func TestAHandOverCostsTheSameWithManyWaiting(t *testing.T) {
	cost := func(waiters int) int64 {
		var w wire
		s := newStore(t, w.client(t))
		name := fmt.Sprintf("flat-%d", waiters)
		l, err := s.Try(t.Context(), claim(name, minute))
		require.NoError(t, err)
		var line []*holds.Waiter
		for range waiters {
			line = append(line, wait(t, s, claim(name, minute)))
		}
		begun := w.commands.Load()
		for _, next := range line[:4] {
			require.NoError(t, s.Release(t.Context(), l))
			l = next.Get(t)
		}
		spent := w.commands.Load() - begun
		require.NoError(t, s.Release(t.Context(), l))
		for _, next := range line[4:] {
			require.NoError(t, s.Release(t.Context(), next.Get(t)))
		}
		require.NoError(t, s.Close())
		return spent
	}
	require.EqualValues(t, 4*2, cost(5), "a transaction that releases, and one that reads")
	require.EqualValues(t, 4*2, cost(40))
}

// Locks of etcdctl and of etcd's own mutexes are listed too.
func TestListLooksBeyondOnePage(t *testing.T) {
	c := connect(t)
	s := newStoreAt(t, c, "list/")
	const locks = 1100
	for from := 0; from < locks; from += 100 {
		var puts []clientv3.Op
		for i := range 100 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("list/lock %d/1f", from+i), ""))
		}
		_, err := c.Txn(t.Context()).Then(puts...).Commit()
		require.NoError(t, err)
	}
	for _, other := range []string{"list//broken/c:1:1", "list/deeper/than/a lock", "list/no lock", "lisu/beside/1f"} {
		_, err := c.Put(t.Context(), other, "")
		require.NoError(t, err)
	}
	found, err := s.List(t.Context(), store.Claim{})
	require.NoError(t, err)
	require.Len(t, found, locks)
	require.Contains(t, found, "lock 1099")
	_, err = c.Delete(t.Context(), "lis", clientv3.WithPrefix())
	require.NoError(t, err)
}

func TestANamespaceSharesItsLocks(t *testing.T) {
	plain, c := connect(t), connect(t)
	c.KV, c.Watcher, c.Lease = namespace.NewKV(c.KV, "tenant/"), namespace.NewWatcher(c.Watcher, "tenant/"), namespace.NewLease(c.Lease, "tenant/")
	inside, outside := newStoreAt(t, c, ""), newStoreAt(t, plain, "tenant/")
	l, err := inside.Try(t.Context(), claim("named", minute))
	require.NoError(t, err)
	next := wait(t, outside, claim("named", minute))
	last := wait(t, inside, claim("named", minute))
	require.NoError(t, inside.Release(t.Context(), l))
	require.NoError(t, outside.Release(t.Context(), next.Get(t)))
	require.NoError(t, inside.Release(t.Context(), last.Get(t)))
}

// leader returns the leader of a cluster, and the others.
func leader(t *testing.T, members []*etcdtest.Server) (first *etcdtest.Server, others []*etcdtest.Server) {
	t.Helper()
	for _, m := range members {
		resp, err := connect(t, m).Status(t.Context(), m.URL())
		require.NoError(t, err)
		if resp.Leader == resp.Header.MemberId {
			first = m
		} else {
			others = append(others, m)
		}
	}
	require.NotNil(t, first)
	return first, others
}

func TestSectionsAndWaitersOutlastTheLeader(t *testing.T) {
	for _, fault := range []string{"killed", "stopped"} {
		t.Run(fault, func(t *testing.T) {
			first, others := leader(t, etcdtest.Start(t, 3))
			c := connect(t, append(others, first)...)
			client, err := relock.Open(newStore(t, c), relock.WithTTL(20*time.Second))
			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close()) }()
			lock := client.NewLock("leader")
			section, err := lock.Lock(t.Context())
			require.NoError(t, err)
			next := wait(t, newStore(t, c), claim("leader", 20*time.Second))
			if fault == "killed" {
				first.Kill()
			} else {
				defer first.Pause()()
			}
			inner, err := lock.Lock(section)
			require.NoError(t, err, "the store serves again before the lease ends")
			require.NoError(t, lock.Unlock(inner))
			require.NoError(t, lock.Unlock(section))
			l := next.GetWithin(t, 15*time.Second)
			require.NoError(t, newStore(t, connect(t, others[0])).Release(t.Context(), l))
		})
	}
}
