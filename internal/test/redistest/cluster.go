package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is the number of slots of a cluster.
const slots = 16384

// ClusterConfig holds the options of StartCluster.
type ClusterConfig struct {
	Masters     int           // 3
	Replicas    int           // of each master, 1
	NodeTimeout time.Duration // silence after which a node counts as failed, 1.5 s
	Args        []string      // more configuration arguments for every node
}

// Cluster is a Redis Cluster that belongs to a test.
type Cluster struct {
	t       testing.TB
	nodes   []*Server // the masters of the start, then their replicas
	ids     []string  // node ids, as nodes
	masters int
}

// StartCluster runs three masters with a replica each, or the cluster of mod's choice. StartCluster
// returns when every node reports a healthy cluster and all replicas are in sync.
func StartCluster(t testing.TB, mod ...func(*ClusterConfig)) *Cluster {
	t.Helper()
	cfg := ClusterConfig{Masters: 3, Replicas: 1, NodeTimeout: 1500 * time.Millisecond}
	for _, f := range mod {
		f(&cfg)
	}
	c := &Cluster{t: t, masters: cfg.Masters, nodes: make([]*Server, cfg.Masters*(1+cfg.Replicas))}
	args := slices.Concat(replicated, []string{
		"--cluster-enabled", "yes",
		"--cluster-node-timeout", strconv.FormatInt(cfg.NodeTimeout.Milliseconds(), 10),
		"--cluster-replica-validity-factor", "0", // a replica may always stand for election
	}, cfg.Args)
	for i := range c.nodes {
		c.nodes[i] = Start(t, args...)
	}
	if err := c.form(); err != nil {
		t.Fatalf("redistest: cluster: %v", err)
	}
	return c
}

// form makes the nodes a cluster, as "redis-cli --cluster create" does. form does not wait for
// seconds, and chooses the master of each replica.
func (c *Cluster) form() error {
	for i, n := range c.nodes {
		id, err := n.call("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		c.ids = append(c.ids, id)
		if _, err := n.call("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if i < c.masters {
			if _, err := n.call(c.slotRange(i)...); err != nil {
				return err
			}
		}
		for _, other := range c.nodes[:i] {
			if _, err := n.call(meet(other)...); err != nil {
				return err
			}
		}
	}
	for i, n := range c.nodes[c.masters:] {
		i := i % c.masters
		err := poll(startLimit, func() error { // until the node knows its master
			_, err := n.call("CLUSTER", "REPLICATE", c.ids[i])
			return err
		})
		if err != nil {
			return err
		}
	}
	owners := map[string]int{}
	for i := range c.masters {
		owners[c.ids[i]] = i
	}
	return c.waitNodes(startLimit, c.nodes, func(n *Server, view []nodeLine) error {
		if len(view) != len(c.nodes) {
			return fmt.Errorf("%s knows %d nodes of %d", n.Addr(), len(view), len(c.nodes))
		}
		replicas := 0
		for _, line := range view {
			if line.master != "" {
				replicas++
			}
			if line.bad() {
				return fmt.Errorf("%s sees %s as %s", n.Addr(), line.id, line.flags)
			}
		}
		if want := len(c.nodes) - c.masters; replicas != want {
			return fmt.Errorf("%s knows %d replicas of %d", n.Addr(), replicas, want)
		}
		if i := slices.Index(c.nodes, n); i >= c.masters {
			return n.inSync(c.nodes[i%c.masters])
		}
		return nil
	})
}

// slotRange is the command that gives master i its share.
func (c *Cluster) slotRange(i int) []string {
	first, last := i*slots/c.masters, (i+1)*slots/c.masters-1
	if c.nodes[i].AtLeast(7, 0) {
		return []string{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)}
	}
	args := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot <= last; slot++ {
		args = append(args, strconv.Itoa(slot))
	}
	return args
}

// meet is the command by which a node gets to know another. The cluster bus is on port+10000, and
// takePort checks port+10000 too.
func meet(other *Server) []string {
	return []string{"CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port)}
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// Nodes returns all nodes: the masters of the start first, and their replicas behind them.
func (c *Cluster) Nodes() []*Server { return slices.Clone(c.nodes) }

// Client returns a new client of the cluster, closed when the test ends. mod may
// change its options first.
func (c *Cluster) Client(mod ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	opt := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, f := range mod {
		f(opt)
	}
	rdb := redis.NewClusterClient(opt)
	c.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Slot returns the slot of a key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	var slot int
	err := c.ask(func(n *Server) error {
		reply, err := n.call("CLUSTER", "KEYSLOT", key)
		if err != nil {
			return err
		}
		slot, err = strconv.Atoi(reply)
		return err
	})
	if err != nil {
		c.t.Fatalf("redistest: slot of %q: %v", key, err)
	}
	return slot
}

// MasterFor returns the master of a key's slot: the node whose own line names the slot.
func (c *Cluster) MasterFor(key string) *Server {
	c.t.Helper()
	slot := c.Slot(key)
	var master *Server
	err := poll(failoverLimit, func() error {
		master = nil
		var last error
		var epoch int
		for _, n := range c.nodes {
			view, err := n.view()
			if err != nil {
				last = err
				continue
			}
			// A master back from the dead may claim the slot for a moment, with an older epoch.
			if self := view.self(); self != nil && self.has(slot) && (master == nil || self.epoch > epoch) {
				master, epoch = n, self.epoch
			}
		}
		if master == nil {
			return errors.Join(fmt.Errorf("no node has slot %d", slot), last)
		}
		return nil
	})
	if err != nil {
		c.t.Fatalf("redistest: master for %q: %v", key, err)
	}
	return master
}

// ReplicaFor returns a replica of the master of a key's slot.
func (c *Cluster) ReplicaFor(key string) *Server {
	c.t.Helper()
	replica, err := c.replicaOf(c.MasterFor(key))
	if err != nil {
		c.t.Fatalf("redistest: replica for %q: %v", key, err)
	}
	return replica
}

func (c *Cluster) replicaOf(master *Server) (*Server, error) {
	id := c.id(master)
	var last error
	for _, n := range c.nodes {
		view, err := n.view()
		if err != nil {
			last = err
			continue
		}
		if self := view.self(); self != nil && self.master == id {
			return n, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%s has no replica", master.Addr()), last)
}

// FailoverFor promotes a replica of a key's master, with the old master's consent. FailoverFor
// returns the new master when all nodes know it, and the old master follows it in sync.
func (c *Cluster) FailoverFor(key string) *Server {
	c.t.Helper()
	slot, old, next := c.Slot(key), c.MasterFor(key), c.ReplicaFor(key)
	_, err := next.call("CLUSTER", "FAILOVER")
	if err == nil {
		err = c.waitOwner(slot, next, c.nodes)
	}
	if err == nil {
		err = poll(failoverLimit, func() error { return old.inSync(next) })
	}
	if err != nil {
		c.t.Fatalf("redistest: failover for %q: %v", key, err)
	}
	return next
}

// KillMasterFor kills the master of a key's slot. KillMasterFor returns the promoted replica when
// all other nodes know the replica as master.
func (c *Cluster) KillMasterFor(key string) *Server {
	c.t.Helper()
	return c.lose(key, (*Server).Kill)
}

func (c *Cluster) lose(key string, how func(*Server)) *Server {
	c.t.Helper()
	slot, old, next := c.Slot(key), c.MasterFor(key), c.ReplicaFor(key)
	how(old)
	others := slices.DeleteFunc(c.Nodes(), func(n *Server) bool { return n == old })
	if err := c.waitOwner(slot, next, others); err != nil {
		c.t.Fatalf("redistest: no new master for %q: %v", key, err)
	}
	return next
}

// WaitReplica waits until a former master follows the master of the key in sync, after Restart or
// Resume.
func (c *Cluster) WaitReplica(key string, old *Server) {
	c.t.Helper()
	master := c.MasterFor(key)
	if err := poll(failoverLimit, func() error { return old.inSync(master) }); err != nil {
		c.t.Fatalf("redistest: %v", err)
	}
}

// waitOwner waits until all nodes name owner as the master of the slot, and report a healthy
// cluster.
func (c *Cluster) waitOwner(slot int, owner *Server, nodes []*Server) error {
	id := c.id(owner)
	return c.waitNodes(failoverLimit, nodes, func(n *Server, view []nodeLine) error {
		for _, line := range view {
			if line.has(slot) && line.master == "" {
				if line.id == id {
					return nil
				}
				return fmt.Errorf("%s says that slot %d is with %s", n.Addr(), slot, line.addr)
			}
		}
		return fmt.Errorf("%s says that slot %d is with nobody", n.Addr(), slot)
	})
}

// SlotMove is the move of a slot to another master, as resharding does it.
type SlotMove struct {
	c    *Cluster
	slot int
	from *Server
	to   *Server
}

// BeginMove begins to move the slot of a key. From now on the old master answers ASK for a key of
// the slot if the key is not on the old master.
func (c *Cluster) BeginMove(key string, to *Server) *SlotMove {
	c.t.Helper()
	m := &SlotMove{c: c, slot: c.Slot(key), from: c.MasterFor(key), to: to}
	if m.from == to {
		c.t.Fatalf("redistest: slot %d is with %s already", m.slot, to.Addr())
	}
	m.setSlot(m.to, "IMPORTING", c.id(m.from))
	m.setSlot(m.from, "MIGRATING", c.id(m.to))
	return m
}

// MoveKeys moves the given keys, or all keys of the slot if none are given. Before Finish, the old
// master answers TRYAGAIN to a command whose keys are on both sides.
func (m *SlotMove) MoveKeys(keys ...string) {
	m.c.t.Helper()
	for all := len(keys) == 0; ; {
		if all {
			reply, err := m.from.call("CLUSTER", "GETKEYSINSLOT", strconv.Itoa(m.slot), "100")
			if err != nil {
				m.c.t.Fatalf("redistest: keys in slot %d: %v", m.slot, err)
			}
			if keys = list(reply); len(keys) == 0 {
				return
			}
		}
		args := append([]string{"MIGRATE", "127.0.0.1", strconv.Itoa(m.to.port), "", "0", "5000", "KEYS"}, keys...)
		if _, err := m.from.call(args...); err != nil {
			m.c.t.Fatalf("redistest: move keys %q: %v", keys, err)
		}
		if !all {
			return
		}
	}
}

// Finish moves the rest of the keys, gives the slot to its new master and returns when all nodes
// know the new master.
func (m *SlotMove) Finish() {
	m.c.t.Helper()
	m.MoveKeys()
	// The new master first. In the other order, each of the two would redirect clients to the other
	// for a moment. Replicas learn the owner from their masters.
	masters := slices.DeleteFunc(m.c.Nodes(), func(n *Server) bool {
		view, err := n.view()
		return n == m.to || n == m.from || err != nil || view.self().master != ""
	})
	for _, n := range append([]*Server{m.to, m.from}, masters...) {
		m.setSlot(n, "NODE", m.c.id(m.to))
	}
	if err := m.c.waitOwner(m.slot, m.to, m.c.nodes); err != nil {
		m.c.t.Fatalf("redistest: move slot %d: %v", m.slot, err)
	}
}

func (m *SlotMove) setSlot(on *Server, state, id string) {
	m.c.t.Helper()
	if _, err := on.call("CLUSTER", "SETSLOT", strconv.Itoa(m.slot), state, id); err != nil {
		m.c.t.Fatalf("redistest: move slot %d: %s on %s: %v", m.slot, state, on.Addr(), err)
	}
}

// MoveSlot moves the slot of a key, with its keys, to another master.
func (c *Cluster) MoveSlot(key string, to *Server) {
	c.t.Helper()
	c.BeginMove(key, to).Finish()
}

func (c *Cluster) id(n *Server) string { return c.ids[slices.Index(c.nodes, n)] }

// ask asks the nodes one after another until a node answers.
func (c *Cluster) ask(what func(*Server) error) error {
	var errs []error
	for _, n := range c.nodes {
		err := what(n)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// waitNodes waits until each node reports a healthy cluster and passes the check.
func (c *Cluster) waitNodes(within time.Duration, nodes []*Server, check func(*Server, []nodeLine) error) error {
	return poll(within, func() error {
		for _, n := range nodes {
			info, err := n.call("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") {
				return fmt.Errorf("%s says that the cluster is not ok", n.Addr())
			}
			view, err := n.view()
			if err != nil {
				return err
			}
			if err := check(n, view); err != nil {
				return err
			}
		}
		return nil
	})
}

// nodeLine is one line of CLUSTER NODES.
type nodeLine struct {
	id, addr string
	flags    []string
	master   string // id of the master of a replica
	epoch    int
	slots    [][2]int
}

type nodeView []nodeLine

// view returns the cluster as the node sees it.
func (s *Server) view() (nodeView, error) {
	reply, err := s.call("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var view nodeView
	for line := range strings.Lines(reply) {
		// id ip:port@cport flags master ping pong epoch link slot slot-slot [moving]
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		n := nodeLine{id: f[0], addr: f[1], flags: strings.Split(f[2], ",")}
		if f[3] != "-" {
			n.master = f[3]
		}
		n.epoch, _ = strconv.Atoi(f[6])
		for _, r := range f[8:] {
			first, last, isRange := strings.Cut(r, "-")
			if !isRange {
				last = first
			}
			a, errA := strconv.Atoi(first)
			b, errB := strconv.Atoi(last)
			if errA == nil && errB == nil { // not "[93-<-id]", a slot on the move
				n.slots = append(n.slots, [2]int{a, b})
			}
		}
		view = append(view, n)
	}
	return view, nil
}

// self returns the node's line about itself.
func (v nodeView) self() *nodeLine {
	for i := range v {
		if slices.Contains(v[i].flags, "myself") {
			return &v[i]
		}
	}
	return nil
}

func (n *nodeLine) has(slot int) bool {
	return slices.ContainsFunc(n.slots, func(r [2]int) bool { return r[0] <= slot && slot <= r[1] })
}

// bad reports whether the node is not reached.
func (n *nodeLine) bad() bool {
	return slices.ContainsFunc(n.flags, func(f string) bool {
		return f == "fail" || f == "fail?" || f == "handshake" || f == "noaddr"
	})
}

// list reads an array of bulk strings.
func list(raw string) []string {
	var items []string
	lines := strings.Split(raw, "\r\n") // *n $len item $len item ...
	for i := 2; i < len(lines); i += 2 {
		items = append(items, lines[i])
	}
	return items
}
