//go:build !memory

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/lab/soak/history"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

// The worlds of three members of etcd, without and with users.
var (
	onEtcd        = setting{begin: startEtcd, ttl: 3 * time.Second, mode: history.Mode{Drawn: true}}
	onEtcdOfUsers = setting{begin: startEtcdOfUsers, ttl: 3 * time.Second, mode: history.Mode{Drawn: true}}
)

const etcdPrefix = "relock/"

type etcdWorld struct {
	network
	members []*etcdtest.Server
	plain   *clientv3.Client // past the proxies
	users   bool             // root, and user, with the right to the prefix; the passwords are the names
	wipes   int
}

// lastWipe is the key with the number of the last wipe.
const lastWipe = "wipes"

func startEtcd(s *soak) world {
	w := &etcdWorld{network: network{soak: s}, members: etcdtest.Start(s.t, 3)}
	w.begin()
	return w
}

func startEtcdOfUsers(s *soak) world {
	w := &etcdWorld{network: network{soak: s}, members: etcdtest.Start(s.t, 3, "--bcrypt-cost=4")}
	w.begin()
	ctx := context.Background()
	for _, name := range []string{"root", "user"} {
		_, err := w.plain.RoleAdd(ctx, name)
		require.NoError(s.t, err)
		_, err = w.plain.UserAdd(ctx, name, name)
		require.NoError(s.t, err)
		_, err = w.plain.UserGrantRole(ctx, name, name)
		require.NoError(s.t, err)
	}
	_, err := w.plain.RoleGrantPermission(ctx, "user", etcdPrefix, clientv3.GetPrefixRangeEnd(etcdPrefix), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(s.t, err)
	_, err = w.plain.AuthEnable(ctx)
	require.NoError(s.t, err)
	w.users = true
	s.t.Cleanup(func() { _ = w.plain.Close() }) // of root
	w.plain = w.connect(w.urls(), "root")
	return w
}

func (w *etcdWorld) urls() (all []string) {
	for _, m := range w.members {
		all = append(all, m.URL())
	}
	return all
}

func (w *etcdWorld) begin() {
	for _, m := range w.members {
		w.servers = append(w.servers, strings.TrimPrefix(m.URL(), "http://"))
	}
	plain := w.connect(w.urls(), "")
	w.plain = plain
	w.t.Cleanup(func() { _ = plain.Close() })
	_, err := plain.Put(context.Background(), lastWipe, "0")
	require.NoError(w.t, err)
}

func (w *etcdWorld) connect(endpoints []string, user string) *clientv3.Client {
	w.t.Helper()
	if !w.users {
		user = ""
	}
	var c *clientv3.Client
	var err error
	for range 20 { // a user logs in, for which a member has to answer in time
		c, err = clientv3.New(clientv3.Config{
			Username: user, Password: user,
			Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: w.ttl / 2,
			DialKeepAliveTime: w.ttl / 2, DialKeepAliveTimeout: w.ttl / 4,
		})
		if err == nil {
			break
		}
	}
	require.NoError(w.t, err)
	return c
}

func (w *etcdWorld) join(time.Duration) *peer {
	w.t.Helper()
	y := w.cable()
	c := w.connect(y.addresses(), "user")
	over, err := relocketcd.New(c, etcdPrefix)
	require.NoError(w.t, err)
	y.closing = append(y.closing, func() { _ = c.Close() }, func() { _ = over.Close() })
	return &peer{w.open(over), y}
}

func (w *etcdWorld) settle() {}

func (w *etcdWorld) left() (keys []string) {
	if w.users {
		_ = w.plain.Close()
		w.plain = w.connect(w.urls(), "root")
	}
	all, err := w.plain.Get(context.Background(), etcdPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(w.t, err)
	for _, kv := range all.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func (w *etcdWorld) troubles() []troubles {
	return []troubles{{150 * time.Millisecond, w.onCables}, {600 * time.Millisecond, w.atServers}}
}

func (w *etcdWorld) atServers(random *rand.Rand) []fault {
	member := func() *etcdtest.Server { return w.members[random.IntN(len(w.members))] }
	// A leader is not stopped: before etcd 3.4.30 and 3.5.12 it revokes leases that were renewed
	// meanwhile, when it goes on.
	followers := func() []*etcdtest.Server {
		leader := w.leader()
		return slices.DeleteFunc(slices.Clone(w.members), func(m *etcdtest.Server) bool { return leader == nil || m == leader })
	}
	one := func(members []*etcdtest.Server) []*etcdtest.Server { return members[:min(1, len(members))] }
	faults := append(w.anywhere(random), []fault{
		{"follower stopped", 3, func() { w.stop(one(followers()), upTo(random, 2*w.ttl)) }},
		{"followers stopped", 1, func() { w.stop(followers(), upTo(random, w.ttl)) }},
		{"member killed", 1, func() { member().Restart() }},
	}...)
	if w.users { // the client of root does not log in anew while members restart
		return faults
	}
	return append(faults, []fault{
		{"leader moved", 2, func() { w.moveLeader(random) }},
		{"key deleted", 1, func() {
			name := w.anyName(random)
			w.wipes++
			w.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error { return w.wipe(name) })
		}},
	}...)
}

// wipe deletes the keys of a lock. An attempt without an answer that runs late changes nothing.
func (w *etcdWorld) wipe(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl)
	defer cancel()
	number := fmt.Sprintf("%09d", w.wipes)
	_, err := w.plain.Txn(ctx).If(clientv3.Compare(clientv3.Value(lastWipe), "<", number)).
		Then(clientv3.OpPut(lastWipe, number), clientv3.OpDelete(etcdPrefix+name+"/", clientv3.WithPrefix())).Commit()
	return err
}

// stop stops some members for a while.
func (w *etcdWorld) stop(members []*etcdtest.Server, d time.Duration) {
	var resume []func()
	for _, m := range members {
		resume = append(resume, m.Pause())
	}
	w.pause(d)
	for _, r := range resume {
		r()
	}
}

// leader returns the member that leads; nil: none is known.
func (w *etcdWorld) leader() *etcdtest.Server {
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl/2)
	defer cancel()
	for _, m := range w.members {
		if status, err := w.plain.Status(ctx, m.URL()); err == nil && status.Leader == status.Header.MemberId {
			return m
		}
	}
	return nil
}

// moveLeader makes another member lead.
func (w *etcdWorld) moveLeader(random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl/2)
	defer cancel()
	from := w.leader()
	members, err := w.plain.MemberList(ctx)
	if from == nil || err != nil {
		return
	}
	leader := w.connect([]string{from.URL()}, "root")
	_, _ = leader.MoveLeader(ctx, members.Members[random.IntN(len(members.Members))].ID)
	_ = leader.Close()
}
