package relockzk_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/tcptest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// shortSession ends soon. shortLease is the longest lease that it keeps.
const (
	shortSession = 2 * time.Second
	shortLease   = 1500 * time.Millisecond
)

func TestLostAnswersOfACreateLeaveOneNode(t *testing.T) {
	server := zktest.Start(t)
	proxy, conn := tcptest.NewProxy(t, server.Address()), admin(t, server.Address())
	s := open(t, proxy.Address())
	require.NoError(t, s.Release(t.Context(), take(t, s, time.Second)))
	for range 5 {
		proxy.LoseAnswers()
		leases := make(chan store.Lease, 1)
		go func() {
			if l, err := s.Wait(t.Context(), claim(20*time.Second), holds.Nothing); err == nil {
				leases <- l
			}
		}()
		redistest.Eventually(t, patience, func() bool { return len(nodes(t, conn, "/orders")) > 0 }, "the node is made")
		proxy.Cut()
		proxy.Resume()
		select {
		case l := <-leases:
			require.Len(t, nodes(t, conn, "/orders"), 1)
			require.True(t, l.Unsure, "an earlier create may run yet")
			require.NoError(t, s.Release(t.Context(), l))
			require.NoError(t, s.Forget(t.Context(), []store.Claim{l.Claim})[0])
		case <-time.After(patience):
			require.FailNow(t, "the hold does not get the lock")
		}
		require.Empty(t, nodes(t, conn, "/orders"))
	}
}

// A create without an answer may run after the waiter has looked for its node. The waiter then has
// a second node, with a higher number.
func TestNodeThatIsMadeLateDoesNotKeepItsHoldOut(t *testing.T) {
	server := zktest.Start(t)
	s, conn := open(t, server.Address()), admin(t, server.Address())
	l := take(t, s, 20*time.Second)
	before, err := conn.CreateProtectedEphemeralSequential("/orders/lock-", nil, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	w := wait(t, s, 20*time.Second)
	late := "/orders/" + relockzk.NameOf(w.Claim.ID, "", "lock-", before[len(before)-10:])
	_, err = conn.Create(late, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.NoError(t, conn.Delete(before, -1))
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, s.Release(t.Context(), w.Get(t)))
	require.Empty(t, nodes(t, conn, "/orders"))
}

// The answer of each command in turn is lost: of the node of a reader inside, of the node of an
// upgrade, and of the transaction that replaces it.
func TestLostAnswersInsideAHoldLeaveOneNode(t *testing.T) {
	server := zktest.Start(t)
	proxy, conn := tcptest.NewProxy(t, server.Address()), admin(t, server.Address())
	s := open(t, proxy.Address(), long)
	for _, limits := range [][2]int{{1, store.Unlimited}, {store.Unlimited, 1}} {
		outer := mode(limits[0])
		outer.TTL = 10 * time.Minute
		around, err := s.Wait(t.Context(), outer, holds.Nothing)
		require.NoError(t, err)
		inside := mode(limits[1])
		inside.With = around.ID
		for passed := range 7 {
			lost := proxy.LoseAnswersAfter(passed)
			leases := make(chan store.Lease, 1)
			go func() {
				if l, err := s.Wait(t.Context(), inside, holds.Nothing); err == nil {
					leases <- l
				}
			}()
			var l store.Lease
			select {
			case l = <-leases: // with fewer answers
				proxy.Resume()
			case <-lost:
				proxy.Cut()
				proxy.Resume()
				select {
				case l = <-leases:
				case <-time.After(patience):
					require.FailNow(t, "the hold does not get the lock")
				}
			}
			require.Len(t, nodes(t, conn, "/orders"), 2, "answers that passed: %d", passed)
			require.NoError(t, s.Release(t.Context(), l))
			require.NoError(t, s.Forget(t.Context(), []store.Claim{l.Claim})[0])
			require.Len(t, nodes(t, conn, "/orders"), 1)
			inside.ID = mode(1).ID
		}
		require.NoError(t, s.Release(t.Context(), around))
	}
}

// A writer between the upgrade and a later reader gives up while the upgrade takes the place before
// the queue. Nothing shows whether the reader was in before.
func TestUpgradeGoesBackBehindAReaderThatMayBeIn(t *testing.T) {
	server := zktest.Start(t)
	proxy, conn := tcptest.NewProxy(t, server.Address()), admin(t, server.Address())
	s := open(t, proxy.Address(), long)
	r, err := s.Wait(t.Context(), mode(store.Unlimited), holds.Nothing)
	require.NoError(t, err)
	foreign := func(name string) string {
		node, err := conn.CreateProtectedEphemeralSequential("/orders/"+name, nil, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		return node
	}
	writer, reader := foreign("__WRIT__"), foreign("__READ__")
	upgrade := mode(1)
	upgrade.With = r.ID
	const answers = 3 // the nodes, the node of the upgrade, the nodes; then that of the transaction
	lost := proxy.LoseAnswersAfter(answers)
	up := holds.Start(t, s, upgrade)
	<-lost
	require.NoError(t, conn.Delete(writer, -1))
	proxy.Cut()
	proxy.Resume()
	up.AwaitQueued(t)
	names := nodes(t, conn, "/orders")
	require.Len(t, names, 3)
	require.Contains(t, names[2], "-up-", "the upgrade waits behind the reader")
	require.NoError(t, conn.Delete(reader, -1))
	require.NoError(t, s.Release(t.Context(), up.Get(t)))
	require.NoError(t, s.Release(t.Context(), r))
}

func TestUpgradeWithoutItsReaderIsAWaiter(t *testing.T) {
	server := zktest.Start(t)
	s, conn := open(t, server.Address()), admin(t, server.Address())
	reader, upgrade := mode(store.Unlimited), mode(1)
	r, err := s.Try(t.Context(), reader)
	require.NoError(t, err)
	name := relockzk.NameOf(upgrade.ID, relockzk.UpgradeMark(reader.ID), "__WRIT__", "")
	_, err = conn.Create("/orders/"+name, nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), r))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	state, err := s.Look(ctx, reader)
	require.NoError(t, err)
	require.Equal(t, store.State{Waiters: 1}, state)
}

func TestLostAnswersOfADeleteFreeTheLockOnce(t *testing.T) {
	server := zktest.Start(t)
	proxy, conn := tcptest.NewProxy(t, server.Address()), admin(t, server.Address())
	s := open(t, proxy.Address())
	l := take(t, s, 20*time.Second)
	next := wait(t, open(t, server.Address()), 20*time.Second)
	proxy.LoseAnswers()
	released := make(chan error, 1)
	go func() { released <- s.Release(t.Context(), l) }()
	granted := next.Get(t)
	proxy.Cut()
	proxy.Resume()
	err := <-released
	require.ErrorIs(t, err, store.ErrGone)
	require.ErrorIs(t, err, store.ErrUnsure)
	require.NotEmpty(t, nodes(t, conn, "/orders"), "the repeated delete has freed the next hold")
	require.NoError(t, s.Release(t.Context(), granted))
}

// The server does not hear of the end of the session, so the node of the waiter stays for the timeout
// of that session. It is no node of the next session.
func TestNodeOfAnOldSessionGivesNoLock(t *testing.T) {
	server := zktest.Start(t)
	proxy := tcptest.NewProxy(t, server.Address())
	const session, lease = 8 * time.Second, 5 * time.Second
	s, other := open(t, proxy.Address(), relockzk.WithSessionTimeout(session)), open(t, server.Address())
	l := take(t, other, 20*time.Second)
	w := wait(t, s, lease)
	old := nodes(t, admin(t, server.Address()), "/orders")[1]
	proxy.Stall()
	s.EndSession()
	time.Sleep(1100 * time.Millisecond) // for so long zk.Conn tries to say that the session ends
	proxy.Cut()
	proxy.Resume()
	conn := admin(t, server.Address())
	redistest.Eventually(t, patience, func() bool {
		names := nodes(t, conn, "/orders")
		return names[len(names)-1] != old
	}, "the waiter queues again")
	require.NoError(t, other.Release(t.Context(), l))
	held := w.Get(t)
	for gone := time.After(session); ; {
		select {
		case <-gone: // the old session
			require.NoError(t, s.Release(t.Context(), held))
			return
		case <-time.After(50 * time.Millisecond):
		}
		require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: held, TTL: lease, Count: 1}})[0])
	}
}

func TestNodeOfAnOldSessionInsideAHoldIsMadeAnew(t *testing.T) {
	server := zktest.Start(t)
	s, conn := open(t, server.Address()), admin(t, server.Address())
	w, err := s.Try(t.Context(), mode(1))
	require.NoError(t, err)
	writer := nodes(t, conn, "/orders")[0]
	inside := mode(store.Unlimited)
	inside.With = w.ID
	old := "/orders/" + relockzk.NameOf(inside.ID, "in-", "__READ__", writer[len(writer)-10:])
	_, err = conn.Create(old, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	r, err := s.Wait(t.Context(), inside, holds.Nothing)
	require.NoError(t, err)
	_, stat, err := conn.Get(old)
	require.NoError(t, err)
	require.NotEqual(t, conn.SessionID(), stat.EphemeralOwner)
	require.NoError(t, s.Release(t.Context(), r))
	require.NoError(t, s.Release(t.Context(), w))
}

// A renewal that was answered before the release ends after it.
func TestRenewalsThatMeetTheReleaseLeaveNothing(t *testing.T) {
	server := zktest.Start(t)
	s := open(t, server.Address())
	for range 300 {
		l := take(t, s, 20*time.Second)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				renewal := store.Renewal{Lease: l, TTL: 20 * time.Second, Count: 1}
				if err := s.Renew(context.Background(), []store.Renewal{renewal})[0]; err != nil {
					assert.ErrorIs(t, err, store.ErrGone)
				}
			})
		}
		require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: 20 * time.Second, Count: 1}})[0])
		require.NoError(t, s.Release(t.Context(), l))
		all.Wait()
		require.Zero(t, s.Users(), "a hold that is released is kept")
	}
}

func TestSessionThatEndsLosesAllHoldsAndKeepsTheWaiters(t *testing.T) {
	server := zktest.Start(t)
	proxy := tcptest.NewProxy(t, server.Address())
	s := open(t, proxy.Address(), relockzk.WithSessionTimeout(shortSession))
	other := open(t, server.Address())
	l := take(t, s, shortLease)
	doubts := make(chan store.ID, 100)
	defer s.Watch("client", func(id store.ID) { doubts <- id })()
	next, behind := wait(t, other, 20*time.Second), wait(t, s, shortLease)
	proxy.Stall()
	granted := next.Get(t)
	require.False(t, next.At.Before(l.Until()), "another hold has the lock before Lease.Until")
	require.Greater(t, granted.Token, l.Token)
	proxy.Cut()
	proxy.Resume()
	redistest.Eventually(t, patience, func() bool {
		_, err := s.Enter(t.Context(), l, 2)
		return errors.Is(err, store.ErrGone)
	}, "the hold is gone")
	select {
	case id := <-doubts:
		require.Empty(t, id, "all holds are in doubt")
	case <-time.After(patience):
		require.FailNow(t, "Watch does not tell of the end of the session")
	}
	require.NoError(t, other.Release(t.Context(), granted))
	require.NoError(t, s.Release(t.Context(), behind.Get(t)))
}

func TestLeaderThatIsKilledKeepsHoldsAndOrder(t *testing.T) {
	servers := zktest.StartEnsemble(t, 10)
	s, other := open(t, zktest.Addresses(servers)), open(t, zktest.Addresses(servers))
	l := take(t, s, 25*time.Second)
	line := []*holds.Waiter{wait(t, other, 25*time.Second), wait(t, s, 25*time.Second)}
	for _, server := range servers {
		if server.Leads() {
			server.Kill()
			break
		}
	}
	entered, err := s.Enter(t.Context(), l, 2)
	require.NoError(t, err)
	require.Equal(t, l.Token, entered.Token)
	for _, w := range line {
		require.NoError(t, s.Release(t.Context(), l))
		next := w.Get(t)
		require.Greater(t, next.Token, l.Token)
		l = next
	}
	require.NoError(t, s.Release(t.Context(), l))
}

// handOvers returns the number of packets of four hand-overs with n waiters. The first hold has
// ask(0), and the waiters have ask(1) to ask(n).
func handOvers(t *testing.T, server *zktest.Server, n int, claim func(i int) store.Claim) int {
	t.Helper()
	s := open(t, server.Address(), long)
	l, err := s.Try(t.Context(), claim(0))
	require.NoError(t, err)
	var line []*holds.Waiter
	for i := range n {
		line = append(line, holds.Wait(t, s, claim(i+1)))
	}
	before := server.Requests()
	for _, w := range line[:4] {
		require.NoError(t, s.Release(t.Context(), l))
		l = w.Get(t)
	}
	spent := server.Requests() - before
	for _, w := range line[4:] {
		require.NoError(t, s.Release(t.Context(), l))
		l = w.Get(t)
	}
	require.NoError(t, s.Release(t.Context(), l))
	return spent
}

func TestHandOverCostsTheSameForEveryLengthOfTheQueue(t *testing.T) {
	server := zktest.Start(t)
	for name, claim := range map[string]func(i int) store.Claim{
		"mutex": func(int) store.Claim { return claim(10 * time.Minute) },
		"writers and readers in turn": func(i int) store.Claim {
			a := mode([]int{1, store.Unlimited}[i%2])
			a.TTL = 10 * time.Minute
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			few, many := handOvers(t, server, 4, claim), handOvers(t, server, 60, claim)
			t.Logf("packets of four hand-overs: %d with 4 waiting, %d with 60", few, many)
			require.LessOrEqual(t, many, few+8, "the hand-over wakes more than the next waiter")
		})
	}
}

func TestNothingIsLeftOfALock(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	redistest.NoGoroutineLeft(t, "relock/zookeeper", "internal/test/tcptest.(*Proxy)")
	s := open(t, server.Address(), relockzk.WithRoot("/locks"))
	l := take(t, s, 20*time.Second)
	require.NoError(t, s.Close())
	require.NoError(t, s.Release(t.Context(), l), "Close keeps the session for the open hold")
	redistest.Eventually(t, patience, func() bool {
		exists, _, err := conn.Exists("/locks")
		return err == nil && !exists
	}, "the server deletes the empty containers")
}

// The process that has the hold is closed, and its server does not come back.
func TestNoGoroutineWaitsForAServerThatIsGone(t *testing.T) {
	redistest.NoGoroutineLeft(t, "relock/zookeeper", "internal/test/tcptest.(*Proxy)", "zk.(*Conn)")
	server := zktest.Start(t)
	s, err := relockzk.New(server.Address(), relockzk.WithSessionTimeout(shortSession))
	require.NoError(t, err)
	take(t, s, shortLease)
	server.Kill()
	require.NoError(t, s.Close())
}
