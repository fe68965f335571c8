//go:build !memory

package soak

import (
	"errors"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/lab/soak/history"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// onZooKeeper is an ensemble of three. A session is twice as long as a lease. The leader stays: a
// member of ZooKeeper 3.8.0 that follows a new leader may lose what was committed, see
// docs/STORES.md.
var onZooKeeper = setting{
	begin: startZooKeeper, ttl: 3 * time.Second, longest: 4500 * time.Millisecond, serves: []string{book}, mode: history.Mode{Drawn: true},
}

type zkWorld struct {
	network
	ensemble []*zktest.Server
	plain    *zk.Conn // past the proxies
}

// syncLimit is the time, in ticks of 200 ms, for which a leader leads without followers: about a
// lease.
const syncLimit = 15

func startZooKeeper(s *soak) world {
	w := &zkWorld{network: network{soak: s}, ensemble: zktest.StartEnsemble(s.t, syncLimit)}
	for _, server := range w.ensemble {
		w.servers = append(w.servers, server.Address())
	}
	var err error
	w.plain, _, err = zk.Connect(zk.FormatServers(w.servers), 20*time.Second, zk.WithLogInfo(false), zk.WithLogger(silentZK{}))
	require.NoError(s.t, err)
	s.t.Cleanup(w.plain.Close)
	return w
}

type silentZK struct{}

func (silentZK) Printf(string, ...any) {}

func (w *zkWorld) join(time.Duration) *peer {
	w.t.Helper()
	y := w.cable()
	over, err := relockzk.New(strings.Join(y.addresses(), ","), relockzk.WithSessionTimeout(2*w.ttl))
	require.NoError(w.t, err)
	y.closing = append(y.closing, func() { _ = over.Close() })
	return &peer{w.open(over), y}
}

func (w *zkWorld) settle() {}

// left returns the nodes of holds and waiters. The ensemble deletes the empty nodes of names.
func (w *zkWorld) left() (nodes []string) {
	for _, name := range w.names() {
		children, _, err := w.plain.Children("/" + name)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			nodes = append(nodes, path.Join(name, err.Error())) // the caller looks again
		}
		for _, child := range children {
			nodes = append(nodes, path.Join(name, child))
		}
	}
	return nodes
}

func (w *zkWorld) troubles() []troubles {
	return []troubles{{150 * time.Millisecond, w.onCables}, {800 * time.Millisecond, w.atServers}}
}

func (w *zkWorld) atServers(random *rand.Rand) []fault {
	return append(w.anywhere(random), []fault{
		{"follower stopped", 3, func() {
			if s := w.ensemble[random.IntN(len(w.ensemble))]; !s.Leads() {
				s.Pause()
				w.pause(upTo(random, 2*w.ttl))
				s.Resume()
			}
		}},
		{"nodes deleted", 1, func() {
			name := w.anyName(random)
			w.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error { return w.wipe(name) })
		}},
	}...)
}

// wipe deletes the nodes of the holds of a lock, and of its waiters, in one transaction.
func (w *zkWorld) wipe(name string) error {
	children, _, err := w.plain.Children("/" + name)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	var deletes []any
	for _, child := range children {
		deletes = append(deletes, &zk.DeleteRequest{Path: path.Join("/", name, child), Version: -1})
	}
	if err == nil && len(deletes) > 0 {
		_, err = w.plain.Multi(deletes...)
	}
	return err
}
