package relocketcd_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/store"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

// startWithUsers starts a server with the users root, and orders with the rights for the prefix.
// The passwords are the names. A login is cheap, so that a busy machine serves logins in time.
func startWithUsers(t *testing.T, flags ...string) (m *etcdtest.Server, root *clientv3.Client) {
	t.Helper()
	m = etcdtest.Start(t, 1, append(flags, "--bcrypt-cost=4")...)[0]
	c, ctx := connect(t, m), t.Context()
	for _, name := range []string{"root", "orders"} {
		_, err := c.RoleAdd(ctx, name)
		require.NoError(t, err)
		_, err = c.UserAdd(ctx, name, name)
		require.NoError(t, err)
		_, err = c.UserGrantRole(ctx, name, name)
		require.NoError(t, err)
	}
	_, err := c.RoleGrantPermission(ctx, "orders", "relock/", clientv3.GetPrefixRangeEnd("relock/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = c.AuthEnable(ctx)
	require.NoError(t, err)
	return m, new(wire).login(t, m, "root")
}

// login returns the client of a user.
func (w *wire) login(t *testing.T, m *etcdtest.Server, user string) *clientv3.Client {
	t.Helper()
	return w.connect(t, clientv3.Config{Endpoints: []string{m.URL()}, Username: user, Password: user})
}

// TestAUserIsNotAuthenticatedAnew counts the logins of calls of a client with a user.
func TestAUserIsNotAuthenticatedAnew(t *testing.T) {
	m, _ := startWithUsers(t)
	var w wire
	s := newStore(t, w.login(t, m, "orders"))
	client, err := relock.Open(s)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	lock := client.NewLock("flat")
	calls := func() {
		for range 3 {
			section, err := lock.TryLock(t.Context())
			require.NoError(t, err)
			inner, err := lock.Lock(section)
			require.NoError(t, err)
			require.NoError(t, lock.Unlock(inner))
			require.NoError(t, lock.Unlock(section))
			section, err = lock.Lock(t.Context())
			require.NoError(t, err)
			_, err = lock.TryLock(t.Context())
			require.ErrorIs(t, err, relock.ErrLocked)
			next := wait(t, s, claim("flat", minute))
			require.NoError(t, lock.Unlock(section))
			l := next.Get(t)
			require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
			require.NoError(t, s.Release(t.Context(), l))
		}
	}
	calls()
	begun := w.logins.Load()
	calls()
	t.Log("logins before:", begun)
	require.Equal(t, begun, w.logins.Load())
	require.EqualValues(t, 2, w.streams.Load(), "of holds, and of others")
	require.NoError(t, s.Close())
}

func TestHoldsAndWaitersOutlastTheirAuthToken(t *testing.T) {
	m, _ := startWithUsers(t, "--auth-token-ttl=2")
	s := newStore(t, new(wire).login(t, m, "orders"))
	ctx, cancel := context.WithTimeout(t.Context(), minute) // Authenticate repeats itself with a token that has expired
	defer cancel()
	l, err := s.Try(ctx, claim("token", minute))
	require.NoError(t, err)
	next := wait(t, s, claim("token", 3*time.Second))
	<-time.After(4 * time.Second)
	l, err = s.Enter(ctx, l, 2)
	require.NoError(t, err)
	<-time.After(3 * time.Second)
	require.Eventually(t, func() bool { // Renew makes one attempt
		return s.Renew(ctx, []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0] == nil
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, s.Release(ctx, l))
	require.NoError(t, s.Release(ctx, next.Get(t)))
	require.NoError(t, s.Close())
}

// isOld says whether a server lets no user in again whose token has expired.
func isOld(t *testing.T, m *etcdtest.Server, root *clientv3.Client) bool {
	t.Helper()
	resp, err := root.Status(t.Context(), m.URL())
	require.NoError(t, err)
	patch, is34 := strings.CutPrefix(resp.Version, "3.4.")
	n, err := strconv.Atoi(patch)
	return is34 && err == nil && n < 28
}

// requireChecked requires that a check passes, or names an old server.
func requireChecked(t *testing.T, m *etcdtest.Server, root *clientv3.Client, s *relocketcd.Store) {
	t.Helper()
	err := s.CheckServer(t.Context(), claim("check", minute))
	if isOld(t, m, root) {
		require.ErrorIs(t, err, rpctypes.ErrInvalidAuthToken)
		require.ErrorContains(t, err, "update etcd to 3.4.28 or newer")
		return
	}
	require.NoError(t, err)
}

// An etcd client that sends no command for longer than its token lives logs in again.
func TestAnIdleUserLocksAgainOrIsToldWhyNot(t *testing.T) {
	m, root := startWithUsers(t, "--auth-token-ttl=2")
	old := isOld(t, m, root)
	s := newStore(t, new(wire).login(t, m, "orders"))
	client, err := relock.Open(s)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	lock := client.NewLock("idle", relock.WithTTL(minute))
	section, err := lock.Lock(t.Context())
	require.NoError(t, err)
	var tried error
	for idle := 4 * time.Second; idle < minute; idle *= 2 { // a busy server ends a token late
		<-time.After(idle)
		_, tried = lock.TryLock(t.Context())
		if !old || !errors.Is(tried, relock.ErrLocked) {
			break
		}
	}
	if !old {
		require.ErrorIs(t, tried, relock.ErrLocked)
		require.NoError(t, lock.Unlock(section))
		return
	}
	require.ErrorIs(t, tried, relock.ErrUnavailable)
	for _, err := range []error{tried, lock.Unlock(section)} {
		t.Log(err)
		require.ErrorContains(t, err, rpctypes.ErrInvalidAuthToken.Error())
		require.ErrorContains(t, err, "lets no user in again whose token has expired")
	}
	again := newStore(t, new(wire).login(t, m, "orders"))
	_, err = again.Try(t.Context(), claim("other", minute))
	require.NoError(t, err, "a new etcd client gets in")
}
