package relock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// redisOptions are the options of a Redis store. Each function may be nil.
type redisOptions struct {
	prefix   string // of keys and channels; in Redisson's layout of the control channel only
	redisson bool   // keep locks as Redisson does
	fenced   bool   // and draw a token with each hold, as getFencedLock does there

	retried     func(subject, script string, attempt, tries int, err error)
	lost        func(node string, attempt int, err error)
	reconnected func(node string, down time.Duration)
}

// redisStore is the common part of the stores of both layouts: the way to the server, and the verbs
// that both layouts share.
type redisStore struct {
	wire   *wire.Wire
	subs   *subs.Hub
	prefix string
	field  func(store.ID) string // names a hold in the hash of its lock

	group  group.Group // goroutines of subs and Watch
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// newRedisStore makes the store that keeps locks behind rdb, and sends nothing. newRedisStore
// refuses the same kinds of rdb as New.
func newRedisStore(rdb redis.UniversalClient, o redisOptions) (store.Store, error) {
	s := &redisStore{prefix: o.prefix, closed: make(chan struct{}), watchers: make(map[*watcher]struct{})}
	var err error
	s.wire, err = wire.New(rdb, wire.Options{Retried: o.retried, Trouble: s.doubtAll})
	if err != nil {
		return nil, err
	}
	if o.lost == nil {
		o.lost = func(string, int, error) {}
	}
	if o.reconnected == nil {
		o.reconnected = func(string, time.Duration) {}
	}
	s.subs = subs.New(subs.Options{
		Node: s.wire.Node, Sharded: s.wire.Sharded, NotSharded: s.wire.NotSharded,
		Group: &s.group, Closed: s.closed, Lost: o.lost, Reconnected: o.reconnected,
	})
	if o.redisson {
		s.field = redissonField
		return &redissonStore{redisStore: s, fenced: o.fenced, cluster: s.wire.Sharded()}, nil
	}
	s.field = func(id store.ID) string { return string(id) }
	return &nativeStore{s}, nil
}

// Close ends the subscriptions, and waits for each goroutine of the store. Later commands still
// work.
func (s *redisStore) Close() error {
	s.once.Do(func() {
		s.group.Close()
		close(s.closed)
	})
	s.group.Wait()
	s.wire.Wait()
	return nil
}

// checkAsk refuses an ask that neither layout can serve.
func (s *redisStore) checkAsk(a store.Ask) error {
	switch {
	case a.Name == "":
		return errors.New("the lock name is empty")
	case a.Limit != 1:
		return fmt.Errorf("%w: a lock in Redis lets one in at a time, and not %d", errors.ErrUnsupported, a.Limit)
	case a.Acks.Replicas > 0 && a.Acks.Timeout >= s.wire.ReadTimeout():
		return fmt.Errorf("%d replicas within %s: the timeout must be shorter than the go-redis client's ReadTimeout (%s)",
			a.Acks.Replicas, a.Acks.Timeout, s.wire.ReadTimeout())
	}
	return nil
}

// boundTries is the number of attempts of a call with a bound. Other calls go on until their
// context is done.
const boundTries = 3

// patience returns the time limit of an attempt for a hold with this TTL. Three attempts fit into
// the lease.
func patience(ttl time.Duration) time.Duration { return ttl / 3 }

// unsureOf marks the error of a call that may have run, or may run yet.
func unsureOf(a wire.Answer, err error) error {
	if a.Unsure {
		return store.Unsure(err)
	}
	return err
}

// reachable marks the error of a server that could not be reached.
func reachable(err error) error {
	if errors.Is(err, wire.ErrUnavailable) {
		return store.Unavailable(err)
	}
	return err
}

// number sends a call, and reads a number from the reply.
func (s *redisStore) number(ctx context.Context, c *wire.Call) (n int64, a wire.Answer, err error) {
	a, err = s.wire.Do(ctx, c)
	if err == nil && !scan(a.Reply, &n) {
		err = badReply(c.Script, a.Reply)
	}
	return n, a, unsureOf(a, reachable(err))
}

// all sends many units in few round trips, once. all returns an error for each unit: nil for the
// reply 1, store.ErrGone for 0.
func (s *redisStore) all(ctx context.Context, script *wire.Script, shared []any, units []wire.Unit) []error {
	errs := make([]error, len(units))
	for i, r := range s.wire.All(ctx, script, shared, units) {
		var n int64
		switch {
		case wire.Code(r.Err) != "", wire.Refused(r.Err): // the server says that the unit has not run
			errs[i] = r.Err
		case r.Err != nil:
			errs[i] = store.Unsure(reachable(r.Err))
		case !scan(r.Reply, &n):
			errs[i] = badReply(script, r.Reply)
		case n == 0:
			errs[i] = store.ErrGone
		}
	}
	return errs
}

// Enter sets the count and the lease of a hold. A repeat sets a lease that ends with the lease of
// the first attempt, so a client that hears no answers keeps a lock for one TTL.
func (s *redisStore) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	n, a, err := s.number(ctx, &wire.Call{
		Script: renewScript, Unit: s.renewal(l, l.TTL, count), Patience: patience(l.TTL),
		Repeat: func(elapsed time.Duration) []any { return s.renewal(l, max(l.TTL-elapsed, 0), count).Args },
	})
	switch {
	case err != nil:
		return store.Lease{}, err
	case n == 0:
		return store.Lease{}, store.ErrGone
	case l.TTL > 0:
		l.Sent = a.First
	}
	return l, nil
}

// Renew sets the counts and the leases of many holds.
func (s *redisStore) Renew(ctx context.Context, renewals []store.Renewal) []error {
	units := make([]wire.Unit, len(renewals))
	for i, r := range renewals {
		units[i] = s.renewal(r.Lease, r.TTL, r.Count)
	}
	return s.all(ctx, renewScript, nil, units)
}

func (s *redisStore) renewal(l store.Lease, ttl time.Duration, count int) wire.Unit {
	return wire.Unit{Keys: []string{l.Name}, Args: []any{s.field(l.ID), millis(ttl), count}}
}

// free sends a call that frees a lock. If the hold is gone, an attempt without an answer may have
// freed the lock; then ErrGone is unsure.
func (s *redisStore) free(ctx context.Context, c *wire.Call) error {
	n, a, err := s.number(ctx, c)
	if err == nil && n == 0 {
		return unsureOf(a, store.ErrGone)
	}
	return err
}

// forgotten makes the result of Forget: a hold that is gone is forgotten.
func forgotten(errs []error) []error {
	for i, err := range errs {
		if errors.Is(err, store.ErrGone) {
			errs[i] = nil
		}
	}
	return errs
}

// look reads the lock with these keys.
func (s *redisStore) look(ctx context.Context, keys []string) (store.State, error) {
	a, err := s.wire.Do(ctx, &wire.Call{
		Script: stateScript, Shared: []any{len(keys)}, Unit: wire.Unit{Keys: keys}, Tries: boundTries,
	})
	if err != nil {
		return store.State{}, unsureOf(a, reachable(err))
	}
	var owner string
	var count, ttl, token, waiters int64
	if !scan(a.Reply, &owner, &count, &ttl, &token, &waiters) {
		return store.State{}, badReply(stateScript, a.Reply)
	}
	return store.State{
		Owner: store.ID(owner), Count: int(count), TTL: fromMillis(ttl), Token: token, Waiters: int(waiters),
	}, nil
}

// undoLimit bounds the time in which a hold with too few confirming replicas is taken back.
const undoLimit = 10 * time.Second

// confirmed returns a new lease if enough replicas have confirmed the hold. Otherwise confirmed
// takes the hold back with release.
func confirmed(ctx context.Context, l store.Lease, acked int,
	release func(context.Context, store.Lease, int) error) (store.Lease, error) {
	if acked >= l.Acks.Replicas {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	err := fmt.Errorf("%w: %d of %d within %s", store.ErrNotReplicated, acked, l.Acks.Replicas, l.Acks.Timeout)
	if l.Unsure || release(ctx, l, 0) != nil {
		err = store.Unsure(err)
	}
	return store.Lease{}, err
}

// publish returns the publish command of scripts, as the shared part of their arguments.
func (s *redisStore) publish() []any {
	if s.wire.Sharded() {
		return shardedPublish
	}
	return plainPublish
}

var plainPublish, shardedPublish = []any{"PUBLISH"}, []any{"SPUBLISH"}

// cutLast cuts a name before its last colon, n times.
func cutLast(id string, n int) string {
	for range n {
		id = id[:max(strings.LastIndexByte(id, ':'), 0)]
	}
	return id
}

// checkTTL is the lease of the holds that check a server.
const checkTTL = 2 * time.Second

// checkServer runs each verb of st on a lock that nobody else uses, and returns all failures.
// Waiters of that lock listen on topics, and token is the key of its token.
func (s *redisStore) checkServer(ctx context.Context, st store.Store, a store.Ask, topics []subs.Topic, token string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*checkTTL)
	defer cancel()
	first, second := a, a
	first.ID, second.ID = a.ID+":0:1", a.ID+":0:2"
	second.Acks = store.Acks{}
	var c checks

	lease, err := st.Try(ctx, first)
	c.note("take a lock", err)
	lease.Ask = first // also after a refusal: something else may be missing, too
	_, err = st.Enter(ctx, lease, 2)
	c.note("renew a lock", err)
	_, err = st.Token(ctx, lease)
	c.note("draw a token", err)
	_, err = st.Look(ctx, a.Name)
	c.note("read a lock", err)
	for _, topic := range topics {
		l, err := s.subs.Listen(ctx, topic, string(second.ID))
		c.note("subscribe to "+topic.Channel, err)
		if err == nil {
			defer l.Close()
		}
	}
	c.note("wait for a lock", c.handOver(ctx, st, lease, second))
	c.note("break a lock", st.Break(ctx, a.Name, second.ID))
	c.note("clean up", errors.Join(st.Forget(ctx, []store.Ask{first, second})...))
	if _, rdb, err := s.wire.Node(ctx, token, false); err == nil && token != "" {
		c.note("remove a token", rdb.PExpire(ctx, token, time.Millisecond).Err())
	}
	return errors.Join(c.missing...)
}

// checks collects what is missing on a server.
type checks struct{ missing []error }

// note adds an error, unless another verb has added the same error.
func (c *checks) note(verb string, err error) {
	var busy *store.Busy
	if err == nil || errors.Is(err, store.ErrGone) || errors.Is(err, errors.ErrUnsupported) || errors.As(err, &busy) {
		return
	}
	cause, _, _ := strings.Cut(err.Error(), " script: ")
	if line := scriptLine(err.Error()); line != "" {
		cause = line // the same command is missing in all verbs
		err = fmt.Errorf("%w (%s)", err, line)
	}
	for _, m := range c.missing {
		if strings.Contains(m.Error(), cause) {
			return
		}
	}
	c.missing = append(c.missing, fmt.Errorf("cannot %s: %w", verb, err))
}

var scriptError = regexp.MustCompile(`script: ([0-9a-f]{40}), on @user_script:(\d+)`)

// scriptLine returns the line at which a script has failed, as Redis 7 does not name the command
// forbidden to a user. For other errors scriptLine returns an empty string.
func scriptLine(text string) string {
	found := scriptError.FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	for _, s := range scripts {
		if at, _ := strconv.Atoi(found[2]); s.Hash == found[1] {
			return strings.TrimSpace(strings.Split(s.Source, "\n")[at-1])
		}
	}
	return ""
}

// handOver frees a lock for which another hold waits.
func (c *checks) handOver(ctx context.Context, st store.Store, lease store.Lease, next store.Ask) error {
	waits, done := make(chan struct{}), make(chan error, 1)
	go func() {
		queued := sync.OnceFunc(func() { close(waits) })
		got, err := st.Wait(ctx, next, func(p store.Progress) {
			if p.Queued {
				queued()
			}
		})
		if err == nil && got.Woken == store.WakeRecheck {
			err = errors.New("the message did not come")
		}
		done <- err
	}()
	select {
	case <-waits:
		c.note("release a lock", st.Release(ctx, lease, 0))
		return <-done
	case err := <-done: // Break needs some of the commands that a waiter would have needed
		c.note("break a lock", st.Break(ctx, lease.Name, lease.ID))
		c.note("release a lock", st.Release(ctx, lease, 0))
		return err
	}
}

// newCheckAsk returns an ask like a, for the holds that check a server. The ID of the ask is the
// client of the holds.
func newCheckAsk(a store.Ask) store.Ask {
	a.ID, a.TTL = store.ID(uuid.NewString()), checkTTL
	return a
}
