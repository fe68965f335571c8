package relockzk

import (
	"context"
	"errors"
	"fmt"
	"net"
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
