package relockzk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// session is one session at ZooKeeper, with a connection of its own. A session that has ended does
// not come back: the Store opens another one.
type session struct {
	store  *Store
	opened chan struct{} // closed when conn and err are set
	conn   *zk.Conn
	err    error // the session could not be opened
	dead   chan struct{}

	timeout atomic.Int64 // as negotiated; 0: not known yet
	address atomic.Value // of this process, as the server sees it: a string
	trouble atomic.Pointer[trouble]

	// Of the goroutine of conn.
	hosts   hosts
	foreign int // how many servers in a row were no servers of ZooKeeper

	// Guarded by the mutex of the Store.
	over   bool
	proven time.Time // the session had not ended at this time
	holds  map[store.ID]*hold
	nodes  map[string]*hold // the same holds, by the paths that are known
}

// open connects the session. zk.Conn connects again after a failure, so only a bad address and bad
// credentials are errors.
func (x *session) open() {
	defer close(x.opened)
	s := x.store
	x.conn, _, x.err = zk.Connect(s.servers, s.timeout, zk.WithDialer(x.dial), zk.WithHostProvider(&x.hosts),
		zk.WithEventCallback(x.event), zk.WithLogger(silent{}), zk.WithLogInfo(false))
	for _, c := range s.credentials {
		if x.err == nil {
			x.err = x.reason(x.conn.AddAuth(c.scheme, c.auth), false)
		}
	}
	if x.err != nil {
		x.end()
		return
	}
	s.group.Go(x.beat)
}

// beats is the number of beats in the timeout of a session. A long session has more of them.
const (
	beats       = 8
	longestBeat = 5 * time.Second
)

// beat sends a request at regular intervals until the session is over. A server reports the life of
// a session to the leader with a delay. If the server stops behind a transaction, the leader counts
// the session from the request before, which may not be as old as the quarter between the longest
// lease and the session. The client library sends a ping each third of the session only.
//
// A server that is silent for two beats stands still, see conn.SetReadDeadline. The session then goes
// on at another server, before a lease of the longest allowed TTL ends. The leases of a long session
// may be much shorter than the session, so a beat has a longest length.
func (x *session) beat() {
	for {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), x.interval())
		_, _ = x.stat(ctx, "/")
		cancel()
		select {
		case <-x.dead:
			return
		case <-time.After(x.interval() - time.Since(begun)):
		}
	}
}

// interval returns the time between two beats.
func (x *session) interval() time.Duration { return min(x.granted()/beats, longestBeat) }

// granted returns the timeout of the session; before the first answer, the timeout to ask for.
func (x *session) granted() time.Duration {
	return time.Duration(cmp.Or(x.timeout.Load(), int64(x.store.timeout)))
}

// end marks the session as over. All its holds are gone. end does not wait.
func (x *session) end() {
	s := x.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.over {
		return
	}
	x.over = true
	close(x.dead)
	if s.session == x {
		s.session = nil
	}
	for _, h := range x.holds {
		s.dropLocked(h)
	}
	s.group.Go(func() {
		<-x.opened
		if x.conn != nil {
			x.conn.Close()
		}
	})
}

// event serves the events of the connection, in the goroutine of the connection.
func (x *session) event(e zk.Event) {
	s := x.store
	switch {
	case e.Type == zk.EventSession && e.State == zk.StateExpired:
		x.end() // before zk.Conn opens a session of its own
		s.group.Go(func() { s.watchers.Tell("") })
	case e.Type == zk.EventNodeDeleted:
		if h := s.heldAt(x, e.Path); h != nil {
			s.group.Go(func() { s.watchers.Tell(h.claim.ID) })
		}
	case e.Type == zk.EventNodeDataChanged:
		if h := s.heldAt(x, e.Path); h != nil {
			s.group.Go(func() { s.observe(h) })
		}
	}
}

// fits returns an error if the session is too short for a hold.
func (x *session) fits(kept time.Duration) error {
	timeout := time.Duration(x.timeout.Load())
	if kept <= longest(timeout) {
		return nil
	}
	return fmt.Errorf("%w: the server grants sessions of %v, which keep leases of at most %v with their delay, and not of %v: "+
		"see WithSessionTimeout, and maxSessionTimeout of the server", errors.ErrUnsupported, timeout, longest(timeout), kept)
}

// prove notes that the session had not ended at a time. The caller has the answer of a command that
// was sent later, and that a majority has committed.
func (x *session) prove(begun time.Time) {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	x.proveLocked(begun)
}

func (x *session) proveLocked(begun time.Time) {
	if begun.After(x.proven) {
		x.proven = begun
	}
}

// silentSince returns for how long the session is not known to be there, at most since a time.
func (x *session) silentSince(begun time.Time) time.Duration {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	return min(time.Since(begun), time.Since(x.proven))
}

// do runs one request of the session. The request goes on after the end of ctx, so a request that
// writes may run late.
func do[T any](ctx context.Context, x *session, e effect, request func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, lifetime.Ended(ctx)
	}
	select {
	case <-x.opened:
	case <-ctx.Done():
		return none, store.Unavailable(lifetime.Ended(ctx))
	}
	if x.err != nil {
		return none, x.err
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	begun := time.Now()
	go func() {
		value, err := request()
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		err := x.reason(a.err, e)
		if e == writes && err == nil {
			x.prove(begun)
		}
		return a.value, err
	case <-ctx.Done():
		err := lifetime.Ended(ctx)
		if x.conn.State() != zk.StateHasSession {
			err = store.Unavailable(x.with(err))
		}
		return none, e.mark(err)
	case <-x.dead:
		return none, e.mark(store.Unavailable(errOver))
	}
}

// run is do for a request without a result.
func run(ctx context.Context, x *session, e effect, request func() error) error {
	_, err := do(ctx, x, e, func() (none struct{}, err error) { return none, request() })
	return err
}

// check returns the operation of a transaction that fails if a node does not exist.
func check(node string) any { return &zk.CheckVersionRequest{Path: node, Version: -1} }

// transact runs operations in one transaction. A majority commits every transaction, also one that
// changes nothing, so the session had not ended when transact began. If an operation fails, nothing
// is done, and transact returns its index. The index is -1 if all operations or none have failed.
func (x *session) transact(ctx context.Context, e effect, operations ...any) (failed int, err error) {
	begun := time.Now()
	answers, err := do(ctx, x, e, func() ([]zk.MultiResponse, error) { return x.conn.Multi(operations...) })
	if err == nil {
		x.prove(begun)
	}
	if err == nil || errors.Is(err, store.ErrUnavailable) {
		return -1, err
	}
	return slices.IndexFunc(answers, func(a zk.MultiResponse) bool { return a.Error != nil }), err
}

// draw draws a token for a hold that is in: the number of a transaction, which fails without the
// node of the hold.
func (x *session) draw(ctx context.Context, lock, node string) (token int64, err error) {
	begun := time.Now()
	answers, err := do(ctx, x, reads, func() ([]zk.MultiResponse, error) {
		return x.conn.Multi(check(node), &zk.SetDataRequest{Path: lock, Version: -1})
	})
	if err != nil {
		return 0, err
	}
	x.prove(begun)
	return answers[1].Stat.Mzxid, nil
}

// sync asks the leader, so that reads behind the sync see everything that was written before. A
// leader that has lost its followers answers too, so a sync proves nothing of the session.
func (x *session) sync(ctx context.Context) error {
	return run(ctx, x, reads, func() error { _, err := x.conn.Sync("/"); return err })
}

// children returns the nodes of a lock, of all kinds, by their numbers, and the number of the
// transaction that changed them last.
func (x *session) children(ctx context.Context, lock string) (nodes []node, changed int64, err error) {
	names, changed, err := x.names(ctx, lock)
	return inOrder(names), changed, err
}

// names returns the names of all nodes under a path, none if the path is not there, and the number of
// the transaction that changed them last.
func (x *session) names(ctx context.Context, path string) (names []string, changed int64, err error) {
	type list struct {
		children []string
		stat     *zk.Stat
	}
	l, err := do(ctx, x, reads, func() (l list, err error) {
		l.children, l.stat, err = x.conn.Children(path)
		return l, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return l.children, l.stat.Pzxid, nil
}

// fresh is children behind a sync.
func (x *session) fresh(ctx context.Context, lock string) ([]node, error) {
	if err := x.sync(ctx); err != nil {
		return nil, err
	}
	nodes, _, err := x.children(ctx, lock)
	return nodes, err
}

// read is the data and the state of a node, and a watch.
type read struct {
	data    []byte
	stat    *zk.Stat
	changed <-chan zk.Event
}

func (x *session) get(ctx context.Context, node string) (read, error) {
	return do(ctx, x, reads, func() (r read, err error) {
		r.data, r.stat, err = x.conn.Get(node)
		return r, err
	})
}

// watch is get with a watch of the node.
func (x *session) watch(ctx context.Context, node string) (read, error) {
	return do(ctx, x, reads, func() (r read, err error) {
		r.data, r.stat, r.changed, err = x.conn.GetW(node)
		return r, err
	})
}

// stat returns the state of a node. A node that does not exist is zk.ErrNoNode.
func (x *session) stat(ctx context.Context, node string) (*zk.Stat, error) {
	return do(ctx, x, reads, func() (*zk.Stat, error) {
		exists, stat, err := x.conn.Exists(node)
		if err == nil && !exists {
			err = zk.ErrNoNode
		}
		return stat, err
	})
}

// remove deletes a node. A node that does not exist is zk.ErrNoNode.
func (x *session) remove(ctx context.Context, node string) error {
	return run(ctx, x, writes, func() error { return x.conn.Delete(node, -1) })
}

// silent is a logger of zk.Conn: errors reach the callers.
type silent struct{}

func (silent) Printf(string, ...any) {}

// credential is an argument of WithAuth.
type credential struct {
	scheme string
	auth   []byte
}
