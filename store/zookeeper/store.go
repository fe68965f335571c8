package relockzk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Store keeps locks in ZooKeeper, with one session of its own. The zero Store is of no use, see
// [New].
type Store struct {
	servers     []string
	root        string // ends with a slash
	timeout     time.Duration
	acl         []zk.ACL
	credentials []credential
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	group       group.Group
	watchers    attempts.Watchers

	mu      sync.Mutex
	session *session // nil: the next command opens one
	users   int      // commands that run, and holds of all sessions
	closed  bool
}

var (
	_ store.Watcher = (*Store)(nil)
	_ store.Checker = (*Store)(nil)
	_ store.Listing = (*Store)(nil)
)

// Option is an option of [New].
type Option func(*Store)

// WithRoot sets the path above all locks. The name of a lock is a path below the root: name
// "orders/42" with root "/locks" is the path /locks/orders/42. Without the option the root is "/".
func WithRoot(path string) Option { return func(s *Store) { s.root = path } }

// WithSessionTimeout sets the timeout of the session to ask for. A server bounds the timeout: from
// 2 to 20 of its ticks by default, which is 4 s to 40 s. A lock may have a TTL, with its delay, of
// three quarters of the timeout: a follower may tell the leader of the life of a session with a
// delay, and the rest covers this delay if the timeout is at least four ticks. After a crash a lock
// stays taken for the whole timeout. Without the option the timeout is 40 s.
func WithSessionTimeout(timeout time.Duration) Option {
	return func(s *Store) { s.timeout = timeout }
}

// WithACL sets who may see and delete the nodes that the Store creates. Without the option
// everybody may, as with Curator.
func WithACL(acl ...zk.ACL) Option { return func(s *Store) { s.acl = acl } }

// WithAuth adds a credential to the session: for digests, WithAuth("digest",
// []byte("user:password")).
func WithAuth(scheme string, auth []byte) Option {
	return func(s *Store) { s.credentials = append(s.credentials, credential{scheme, auth}) }
}

// WithDialer sets how to connect to a server: for TLS, the method DialContext of a tls.Dialer.
func WithDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) Option {
	return func(s *Store) { s.dial = dial }
}

// New makes a Store on the servers of an ensemble, with an optional path at the end, as Java's
// clients write them: "zk1:2181,zk2:2181,zk3:2181/app". All locks are below that path. New connects
// to nobody.
func New(servers string, options ...Option) (*Store, error) {
	hosts, chroot, _ := strings.Cut(servers, "/")
	s := &Store{
		servers: strings.Split(hosts, ","), timeout: 40 * time.Second, acl: zk.WorldACL(zk.PermAll),
		dial: new(net.Dialer).DialContext,
	}
	for _, option := range options {
		option(s)
	}
	for _, host := range s.servers {
		if strings.TrimSpace(host) != host || host == "" {
			return nil, fmt.Errorf("the address %q in %q is no host with a port", host, servers)
		}
	}
	root := "/"
	for _, part := range []string{chroot, s.root} {
		if part = strings.Trim(part, "/"); part == "" {
			continue
		}
		part, err := clean(part)
		if err != nil {
			return nil, fmt.Errorf("the path above the locks: %w", err)
		}
		root += part + "/"
	}
	s.root = root
	if s.timeout < time.Second || len(s.acl) == 0 || s.dial == nil {
		return nil, fmt.Errorf("a session of %v with %d ACLs: at least 1s, 1 ACL and a dialer are needed", s.timeout, len(s.acl))
	}
	return s, nil
}

// longest returns the longest lease that a session keeps.
func longest(timeout time.Duration) time.Duration { return timeout * 3 / 4 }

// Check accepts mutexes and read-write locks whose names are paths. A leading slash makes no
// difference. The first part of a path is not "zookeeper", as that belongs to the server.
func (s *Store) Check(a store.Claim) (store.Claim, error) {
	name, err := clean(a.Name)
	switch kept := a.Kept(a.TTL); {
	case err != nil:
		return a, fmt.Errorf("the name of the lock: %w", err)
	case strings.HasPrefix(s.root+name+"/", "/zookeeper/"):
		return a, fmt.Errorf("the path %s%s belongs to the server", s.root, name)
	case a.Limit < 1:
		return a, fmt.Errorf("a limit of %d holds lets nobody in", a.Limit)
	case a.Limit != 1 && (a.Kind != store.ReadWrite || a.Limit != store.Unlimited), a.Kind != store.Mutex && a.Kind != store.ReadWrite:
		return a, fmt.Errorf("%w: a lock in ZooKeeper is a mutex or a read-write lock, and not %s",
			errors.ErrUnsupported, a.Kind)
	case a.Acks != store.Acks{}:
		return a, fmt.Errorf("%w: a majority of ZooKeeper has every hold already, so there are no acks to ask for", errors.ErrUnsupported)
	case kept > longest(s.timeout):
		return a, fmt.Errorf("%w: a session of %v keeps leases of at most %v with their delay, and not of %v: see WithSessionTimeout",
			errors.ErrUnsupported, s.timeout, longest(s.timeout), kept)
	}
	a.Name = name
	return a, nil
}

// path returns the path of a lock.
func (s *Store) path(a store.Claim) string { return s.root + a.Name }

// use returns the session, and counts a user of the session until leave.
func (s *Store) use() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	if s.session == nil {
		s.session = &session{
			store: s, opened: make(chan struct{}), dead: make(chan struct{}), holds: make(map[store.ID]*hold),
			nodes: make(map[string]*hold),
		}
		s.group.Go(s.session.open)
	}
	return s.session
}

func (s *Store) leave() {
	s.mu.Lock()
	s.users--
	x := s.idleLocked()
	s.mu.Unlock()
	if x != nil {
		x.end()
	}
}

// idleLocked returns the session that a closed Store does not need any more.
func (s *Store) idleLocked() *session {
	if s.closed && s.users == 0 {
		return s.session
	}
	return nil
}

// Close ends the session when the last hold is released, or has ended: the end of a session would
// free its locks. A later command opens a session for itself.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	x, idle := s.idleLocked(), s.users == 0
	s.mu.Unlock()
	if x != nil {
		x.end()
	}
	if idle {
		s.group.Close()
		s.group.Wait()
	}
	return nil
}

// once makes one attempt.
func (s *Store) once(ctx context.Context, attempt func(*session) error) error {
	if ctx.Err() != nil {
		return lifetime.Ended(ctx)
	}
	defer s.leave()
	return attempt(s.use())
}

// patiently makes attempts until one is answered, or ctx is done.
func (s *Store) patiently(ctx context.Context, c attempts.Call, attempt func(x *session) error) error {
	return attempts.Patiently(ctx, c, func() error { return s.once(ctx, attempt) })
}

// Try implements [store.Store]. Try makes a node only if the hold can enter. If another node comes
// before that node in time, Try deletes its node.
func (s *Store) Try(ctx context.Context, a store.Claim) (l store.Lease, err error) {
	err = s.once(ctx, func(x *session) error { l, err = s.try(ctx, x, a); return err })
	return l, err
}

func (s *Store) try(ctx context.Context, x *session, a store.Claim) (store.Lease, error) {
	nodes, _, err := x.children(ctx, s.path(a))
	var p place
	if err == nil {
		p, err = chance(nodes, a)
	}
	if err != nil || p.behind >= 0 { // a follower may know an old state
		if nodes, err = x.fresh(ctx, s.path(a)); err == nil {
			p, err = chance(nodes, a)
		}
	}
	if err != nil {
		return store.Lease{}, err
	}
	if p.behind >= 0 {
		return store.Lease{}, x.busy(ctx, s.path(a), a, p)
	}
	if err := x.fits(a.Kept(a.TTL)); err != nil {
		return store.Lease{}, err
	}
	h := x.hold(a)
	p, err = x.join(ctx, h)
	if err == nil && p.isIn() && !x.ready(h) {
		p, err = x.affirm(ctx, h, p)
	}
	switch {
	case err != nil:
	case p.index < 0:
		err = store.Unavailable(errDeleted)
	case p.behind >= 0:
		err = x.busy(ctx, h.lock, a, p)
	default:
		var l store.Lease
		if l, err = s.grant(h, store.WakeNone); err == nil {
			return l, nil
		}
	}
	return store.Lease{}, s.giveUp(ctx, h, err)
}

// chance returns the place that a new node for a claim would have. The node of a claim that has one
// already is not kept out.
func chance(all []node, a store.Claim) (place, error) {
	nodes, err := ofKind(all, a.Kind)
	p := place{nodes: nodes, index: indexOf(nodes, a.ID), behind: -1}
	if err == nil && p.index < 0 {
		p.behind, err = obstacle(nodes, wanted(nodes, a), a, last)
	}
	return p, err
}

// Enter implements [store.Store].
func (s *Store) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	err := s.patiently(ctx, attempts.Call{Report: l.Report, Command: "renew"}, func(x *session) error {
		n, err := x.renewal(store.Renewal{Lease: l, TTL: l.TTL, Count: count})
		if err != nil {
			return err
		}
		x.commit(ctx, []*renewal{n})
		if n.err == nil {
			n.lease.Woken, l = l.Woken, n.lease
		}
		return n.err
	})
	if ctx.Err() == nil && errors.Is(err, store.ErrGone) {
		err = store.ErrGone // no attempt of Enter frees the lock
	}
	return l, err
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return s.patiently(ctx, attempts.Call{Report: l.Report, Command: "release"}, func(x *session) error { return s.free(ctx, x, l.Claim) })
}

// free deletes the node of a hold that has its lock.
func (s *Store) free(ctx context.Context, x *session, a store.Claim) error {
	var node string
	h, err := x.find(a.ID)
	if err == nil {
		node, _ = x.known(h)
	} else if node, err = x.holder(ctx, a); err != nil {
		return err
	}
	err = x.remove(ctx, node)
	if err == nil || errors.Is(err, zk.ErrNoNode) {
		s.drop(x, a.ID)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return store.ErrGone
	}
	return err
}

// holder returns the path of the node of the claim, if that has the lock.
func (x *session) holder(ctx context.Context, a store.Claim) (string, error) {
	lock := x.store.path(a)
	all, err := x.fresh(ctx, lock)
	if err != nil {
		return "", err
	}
	nodes, err := ofKind(all, a.Kind)
	if err != nil {
		return "", store.ErrGone
	}
	if i := indexOf(nodes, a.ID); i >= 0 && isIn(nodes, i) {
		return lock + "/" + nodes[i].name, nil
	}
	return "", store.ErrGone
}

// Forget implements [store.Store].
func (s *Store) Forget(ctx context.Context, claims []store.Claim) []error {
	return s.each(ctx, len(claims), func(x *session, i int) error { return x.forget(ctx, claims[i]) })
}

// each makes one attempt at each of n commands, all at the same time, behind one sync.
func (s *Store) each(ctx context.Context, n int, attempt func(x *session, i int) error) []error {
	if n == 0 {
		return nil
	}
	var errs []error
	err := s.once(ctx, func(x *session) error {
		if err := x.sync(ctx); err != nil {
			return err
		}
		errs = attempts.Each(n, n, func(i int) error { return attempt(x, i) })
		return nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, n)
	}
	return errs
}

// Token implements [store.Store]. The token is the number of a transaction of ZooKeeper. That of a
// mutex is the czxid of its node, which is the number of the transaction that made the node, or the
// number of a later transaction on the nodes of the lock, before the next node. A writer that has
// waited, and a reader, draw the number of a transaction of their own: an upgrade before them has a
// younger node, and nothing is left of the last writer.
func (s *Store) Token(ctx context.Context, l store.Lease) (token int64, err error) {
	err = s.once(ctx, func(x *session) error {
		node, err := x.holder(ctx, l.Claim)
		if err != nil {
			return err
		}
		if l.Kind == store.ReadWrite && (l.Limit == store.Unlimited || l.Token == 0) {
			token, err = x.draw(ctx, x.store.path(l.Claim), node)
		} else {
			var stat *zk.Stat
			if stat, err = x.stat(ctx, node); err == nil {
				token = max(stat.Czxid, l.Token)
			}
		}
		if errors.Is(err, zk.ErrNoNode) {
			return store.ErrGone
		}
		return err
	})
	return token, err
}
