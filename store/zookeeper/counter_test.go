package relockzk_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
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

// What happens when a lock has had 2^31 nodes?

// spent is the reason why nobody gets a lock whose counter is at its end.
const spent = "the server has no new numbers for the nodes of /orders: delete this path when nobody has the lock"

// nearTheEnd returns a server whose lock "orders" has a number of nodes left.
func nearTheEnd(t *testing.T, left int32) (*zktest.Server, *zk.Conn) {
	t.Helper()
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	_, err := conn.Create("/orders", nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	server.SetCounter("/orders", math.MaxInt32-left)
	return server, conn
}

// kinds has a claim for a mutex, for writers and for readers.
var kinds = map[string]func() store.Claim{
	"mutex":  func() store.Claim { return claim(10 * time.Minute) },
	"writer": func() store.Claim { a := mode(1); a.TTL = 10 * time.Minute; return a },
	"reader": func() store.Claim { a := mode(store.Unlimited); a.TTL = 10 * time.Minute; return a },
}

// soon returns a context that ends if the test hangs.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestNobodyIsInWithTheLastNumberOfACounter(t *testing.T) {
	for name, claim := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, conn := nearTheEnd(t, 2)
			s, other := open(t, server.Address(), long), open(t, server.Address(), long)
			l, err := s.Try(t.Context(), claim())
			require.NoError(t, err)
			second := claim()
			w := holds.Start(t, other, second)
			if name != "reader" {
				w.AwaitQueued(t)
			} else {
				w.Get(t)
			}
			refused := func() {
				t.Helper()
				for _, s := range []*relockzk.Store{s, other} {
					_, err := s.Wait(soon(t), claim(), holds.Nothing)
					require.ErrorContains(t, err, spent)
					require.NotErrorIs(t, err, store.ErrUnavailable)
					require.NotErrorIs(t, err, store.ErrUnsure)
				}
			}
			refused()
			require.Len(t, nodes(t, conn, "/orders"), 2)
			require.NoError(t, s.Release(t.Context(), l))
			next := w.Get(t)
			if name != "reader" {
				require.Greater(t, next.Token, l.Token)
			}
			require.NoError(t, other.Release(t.Context(), next))
			refused()
			_, err = s.Try(t.Context(), claim())
			require.ErrorContains(t, err, spent)
			require.Empty(t, nodes(t, conn, "/orders"))
			require.NoError(t, conn.Delete("/orders", -1))
			again, err := other.Try(t.Context(), claim())
			require.NoError(t, err)
			require.NoError(t, other.Release(t.Context(), again))
		})
	}
}

// Commands that are in flight together get negative numbers.
func TestCrowdAtTheEndOfACounterEndsAndLeavesNothing(t *testing.T) {
	const callers, left = 40, 10
	for name, claim := range map[string]func() store.Claim{"mutex": kinds["mutex"], "writer": kinds["writer"]} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, conn := nearTheEnd(t, left)
			s := open(t, server.Address(), long)
			limited := soon(t)
			var in, sections, unsure atomic.Int32
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					l, err := s.Wait(limited, claim(), holds.Nothing)
					if err != nil {
						assert.ErrorContains(t, err, spent)
						if errors.Is(err, store.ErrUnsure) { // the machine is busy
							unsure.Add(1)
						}
						return
					}
					assert.Equal(t, int32(1), in.Add(1))
					sections.Add(1)
					in.Add(-1)
					assert.NoError(t, s.Release(t.Context(), l))
				})
			}
			all.Wait()
			require.Equal(t, int32(left), sections.Load(), "each node that has a number of its own is served")
			require.Empty(t, nodes(t, conn, "/orders"))
			require.LessOrEqual(t, s.Users(), int(unsure.Load()), "a record stays of an unsure call only")
		})
	}
}

func TestLostAnswersAtTheEndOfACounterLeaveNoNode(t *testing.T) {
	server, conn := nearTheEnd(t, 0)
	proxy := tcptest.NewProxy(t, server.Address())
	s := open(t, proxy.Address(), long)
	for range 3 {
		other := claim(time.Second)
		other.Name = "other"
		require.NoError(t, s.Forget(t.Context(), []store.Claim{other})[0], "there is a session")
		proxy.LoseAnswers()
		w := holds.Start(t, s, claim(10*time.Minute))
		redistest.Eventually(t, patience, func() bool { return len(nodes(t, conn, "/orders")) > 0 }, "the node is made")
		proxy.Cut()
		proxy.Resume()
		select {
		case <-w.Done:
		case <-time.After(time.Minute):
			require.FailNow(t, "the call does not end")
		}
		require.ErrorContains(t, w.Err, spent)
		require.ErrorIs(t, w.Err, store.ErrUnsure)
		require.Empty(t, nodes(t, conn, "/orders"))
	}
}

// A member of an ensemble that has lost transactions may count from an old number.
func TestNodeWhoseNumberAnotherNodeHasIsNotIn(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	s := open(t, server.Address(), long)
	l := take(t, s, 10*time.Minute)
	const next = "0000000002" // after the node of l, and this one
	_, err := conn.Create("/orders/"+relockzk.NameOf("theirs", "", "lock-", next), nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = s.Wait(soon(t), claim(10*time.Minute), holds.Nothing)
	require.ErrorContains(t, err, spent)
	require.Len(t, nodes(t, conn, "/orders"), 2)
	require.NoError(t, s.Release(t.Context(), l))
}
