package relockzk_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/tcptest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

func TestNodesAreThoseOfCurator(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	s := open(t, server.Address()+"/app", relockzk.WithRoot("/locks"))
	l := take(t, s, 10*time.Second)
	names := nodes(t, conn, "/app/locks/orders")
	require.Len(t, names, 1)
	require.Regexp(t, `^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-\d{10}$`, names[0])
	data, stat, err := conn.Get("/app/locks/orders/" + names[0])
	require.NoError(t, err)
	require.Equal(t, `127.0.0.1 {"hold":"`+string(l.ID)+`","count":1,"ms":10000}`, string(data))
	require.Equal(t, stat.Czxid, l.Token)
	require.NotZero(t, stat.EphemeralOwner)
	require.NoError(t, s.Release(t.Context(), l))
}

func TestListWalksTheTree(t *testing.T) {
	server := zktest.Start(t)
	for _, root := range []string{"/", "/app"} {
		s := open(t, server.Address(), relockzk.WithRoot(root))
		want := map[string]store.Kind{"orders": store.Mutex, "orders/42": store.ReadWrite, "a/b/c": store.Mutex}
		var leases []store.Lease
		for name, kind := range want {
			a := mode(1)
			a.Name, a.Kind = name, kind
			l, err := s.Try(t.Context(), a)
			require.NoError(t, err)
			leases = append(leases, l)
		}
		found, err := s.List(t.Context(), claim(time.Second))
		require.NoError(t, err)
		require.Equal(t, want, found, "and nothing of the server's own")
		for _, l := range leases {
			require.NoError(t, s.Release(t.Context(), l))
		}
	}
}

func TestNodesOfReadersAndWritersAreThoseOfCurator(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	s := open(t, server.Address())
	form := func(mark, name string) string { return `^_c_[0-9a-f-]{36}-` + mark + name + `\d{10}$` }
	number := func(node string) string { return node[len(node)-10:] }
	writer, reader := mode(1), mode(store.Unlimited)
	w, err := s.Try(t.Context(), writer)
	require.NoError(t, err)
	names := nodes(t, conn, "/orders")
	require.Regexp(t, form("", "__WRIT__"), names[0])

	reader.With = w.ID
	r, err := s.Try(t.Context(), reader)
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), w))
	inside := nodes(t, conn, "/orders")
	require.Len(t, inside, 1)
	require.Regexp(t, form("in-", "__READ__"), inside[0])
	require.Equal(t, number(names[0]), number(inside[0]), "the reader has the place of the writer")

	beside, err := s.Try(t.Context(), mode(store.Unlimited))
	require.NoError(t, err)
	require.Regexp(t, form("", "__READ__"), nodes(t, conn, "/orders")[1])
	upgrade := mode(1)
	upgrade.With = r.ID
	up := holds.Wait(t, s, upgrade)
	names = nodes(t, conn, "/orders")
	require.Len(t, names, 3)
	require.Regexp(t, form("up-[0-9a-f-]{36}-", "__WRIT__"), names[2])
	require.NoError(t, s.Release(t.Context(), beside))
	l := up.Get(t)
	names = nodes(t, conn, "/orders")
	require.Len(t, names, 2)
	for _, name := range names {
		require.Equal(t, number(inside[0]), number(name), "the upgrade has the place of its reader")
	}
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, s.Release(t.Context(), r))
	require.Empty(t, nodes(t, conn, "/orders"))
}

// A reader whose writer is gone is no reader inside a writer any more.
func TestReaderInsideALostWriterQueues(t *testing.T) {
	server := zktest.Start(t)
	s, other := open(t, server.Address()), open(t, server.Address())
	w, err := s.Try(t.Context(), mode(1))
	require.NoError(t, err)
	next := holds.Wait(t, other, mode(1))
	require.NoError(t, other.Break(t.Context(), w.Claim))
	l := next.Get(t)
	inside := mode(store.Unlimited)
	inside.With = w.ID
	_, err = s.Try(t.Context(), inside)
	var busy *store.Busy
	require.ErrorAs(t, err, &busy)
	queued := holds.Wait(t, s, inside)
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, s.Release(t.Context(), queued.Get(t)))
}

// TestLockOfTheClientLibraryExcludesHolds takes the lock with zk.Lock, whose nodes have Curator's
// form, too.
func TestLockOfTheClientLibraryExcludesHolds(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	s := open(t, server.Address())
	theirs := zk.NewLock(conn, "/orders", zk.WorldACL(zk.PermAll))
	require.NoError(t, theirs.Lock())
	_, err := s.Try(t.Context(), claim(time.Second))
	var busy *store.Busy
	require.ErrorAs(t, err, &busy)
	require.Contains(t, string(busy.Owner), nodes(t, conn, "/orders")[0][:20])
	w := wait(t, s, 10*time.Second)
	require.NoError(t, theirs.Unlock())
	l := w.Get(t)

	locked := make(chan error, 1)
	go func() { locked <- theirs.Lock() }()
	require.Eventually(t, func() bool { return len(nodes(t, conn, "/orders")) == 2 }, patience, time.Millisecond)
	require.Empty(t, locked)
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, <-locked)

	state, err := s.Look(t.Context(), claim(time.Second))
	require.NoError(t, err)
	foreign := claim(time.Second)
	foreign.ID = state.Owner
	require.NoError(t, s.Break(t.Context(), foreign), "operators can break a foreign hold")
	require.ErrorIs(t, theirs.Unlock(), zk.ErrNoNode)
}

func TestOtherChildrenOfALockDoNotCount(t *testing.T) {
	server := zktest.Start(t)
	s := open(t, server.Address())
	inner := claim(10 * time.Second)
	inner.Name = "orders/42"
	below, err := s.Try(t.Context(), inner)
	require.NoError(t, err)
	l, err := s.Try(t.Context(), claim(10*time.Second))
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), below))
	require.NoError(t, s.Release(t.Context(), l))
}

func TestCheckRefusesWhatASessionCannotKeep(t *testing.T) {
	s := open(t, "127.0.0.1:1")
	a := claim(30 * time.Second)
	_, err := s.Check(a)
	require.NoError(t, err, "the defaults of relock and of the Store fit")
	a.Delay = time.Millisecond
	_, err = s.Check(a)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "a session of 40s keeps leases of at most 30s with their delay, and not of 30.001s")
	for _, name := range []string{"zookeeper", "/zookeeper/config"} {
		a = claim(time.Second)
		a.Name = name
		_, err = s.Check(a)
		require.ErrorContains(t, err, "belongs to the server")
	}
}

func TestServerWithShorterSessionsRefusesALongLease(t *testing.T) {
	server := zktest.Start(t, "maxSessionTimeout=4000")
	s := open(t, server.Address())
	for _, call := range []func(a store.Claim) error{
		func(a store.Claim) error { _, err := s.Try(t.Context(), a); return err },
		func(a store.Claim) error { _, err := s.Wait(t.Context(), a, holds.Nothing); return err },
		func(a store.Claim) error { return s.CheckServer(t.Context(), a) },
	} {
		err := call(claim(3001 * time.Millisecond))
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "the server grants sessions of 4s")
	}
	require.Empty(t, nodes(t, admin(t, server.Address()), "/orders"))
	require.NoError(t, s.CheckServer(t.Context(), claim(3*time.Second)))
	require.NoError(t, s.Release(t.Context(), take(t, s, 3*time.Second)))
}

func TestDelayKeepsTheLockAfterACrash(t *testing.T) {
	server := zktest.Start(t)
	proxy := tcptest.NewProxy(t, server.Address())
	crashing := open(t, proxy.Address(), relockzk.WithSessionTimeout(2*time.Second))
	a := claim(500 * time.Millisecond)
	a.Delay = time.Second
	_, err := crashing.Check(a)
	require.NoError(t, err)
	l, err := crashing.Try(t.Context(), a)
	require.NoError(t, err)
	w := wait(t, open(t, server.Address()), 10*time.Second)
	proxy.Stall()
	next := w.Get(t)
	require.GreaterOrEqual(t, w.At.Sub(l.Sent), a.Kept(a.TTL))
	proxy.Cut()
	proxy.Resume()
	require.NoError(t, crashing.Release(t.Context(), next))
}

func TestNodesOfOthersAreClosedToStrangers(t *testing.T) {
	server := zktest.Start(t)
	acl := relockzk.WithACL(zk.DigestACL(zk.PermAll, "relock", "secret")...)
	s := open(t, server.Address(), acl, relockzk.WithAuth("digest", []byte("relock:secret")))
	l := take(t, s, 10*time.Second)
	stranger := open(t, server.Address())
	begun := time.Now()
	_, err := stranger.Wait(t.Context(), claim(10*time.Second), holds.Nothing)
	require.ErrorIs(t, err, zk.ErrNoAuth)
	_, err = stranger.Try(t.Context(), claim(10*time.Second))
	require.ErrorIs(t, err, zk.ErrNoAuth)
	require.ErrorIs(t, stranger.CheckServer(t.Context(), claim(time.Second)), zk.ErrNoAuth)
	found, err := stranger.List(t.Context(), claim(time.Second))
	require.NoError(t, err)
	require.Empty(t, found, "it may not see the locks, and sees others")
	require.Less(t, time.Since(begun), bound.Of(5*time.Second), "nothing is tried again")
	require.NoError(t, s.Release(t.Context(), l))
}

func TestCheckServerNamesTheStepThatFails(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	_, err := conn.Create("/closed", nil, 0, zk.WorldACL(zk.PermRead))
	require.NoError(t, err)
	rights := func(perms int32) relockzk.Option { return relockzk.WithACL(zk.WorldACL(perms)...) }
	for _, c := range []struct {
		option relockzk.Option
		step   string
	}{
		{relockzk.WithRoot("/closed"), "take the lock /closed/orders-"},
		{rights(zk.PermAll &^ zk.PermRead), "take the lock /orders-"},
		{rights(zk.PermAll &^ zk.PermDelete), "release the lock /orders-"},
	} {
		s := open(t, server.Address(), c.option)
		begun := time.Now()
		err := s.CheckServer(t.Context(), claim(10*time.Second))
		require.ErrorIs(t, err, zk.ErrNoAuth)
		require.ErrorContains(t, err, c.step)
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, time.Since(begun), bound.Of(patience))
	}
	s := open(t, server.Address(), relockzk.WithRoot("/locks"))
	require.NoError(t, s.CheckServer(t.Context(), claim(10*time.Second)))
	require.Zero(t, s.Users())
	left, _, err := conn.Children("/locks")
	require.NoError(t, err)
	for _, lock := range left {
		require.Empty(t, nodes(t, conn, "/locks/"+lock))
	}
}

func TestDialerIsAsked(t *testing.T) {
	server := zktest.Start(t)
	asked := make(chan string, 100)
	s := open(t, "127.0.0.1:2181", relockzk.WithDialer(
		func(ctx context.Context, network, address string) (net.Conn, error) {
			asked <- address
			return new(net.Dialer).DialContext(ctx, network, server.Address())
		}))
	require.NoError(t, s.Release(t.Context(), take(t, s, time.Second)))
	require.Equal(t, "127.0.0.1:2181", <-asked)
}

func TestServerThatCannotBeReachedIsUnavailable(t *testing.T) {
	s := open(t, "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := s.Try(ctx, claim(time.Second))
	require.ErrorIs(t, err, store.ErrUnavailable)
	_, err = s.Wait(ctx, claim(time.Second), holds.Nothing)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestNewRefusesBadConfigurations(t *testing.T) {
	for _, servers := range []string{"", "zk1:2181,", "zk1:2181, zk2:2181", "zk1:2181/a//b", "zk1:2181/../b"} {
		_, err := relockzk.New(servers)
		require.Error(t, err, servers)
	}
	for _, option := range []relockzk.Option{
		relockzk.WithRoot("/a/./b"), relockzk.WithSessionTimeout(0), relockzk.WithACL(), relockzk.WithDialer(nil),
	} {
		_, err := relockzk.New("zk1:2181", option)
		require.Error(t, err)
	}
}
