package relock

import (
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// New makes a Client that keeps its locks in Redis behind rdb. The options are the defaults for the
// client's locks. rdb is one of:
//   - a [redis.Client], for a standalone server or a server behind Sentinel
//   - the AutoPipeline of a redis.Client
//   - a [redis.ClusterClient]
//   - a struct that embeds one of the above
//
// New refuses all other clients: a [redis.Ring], an AsyncAutoPipeline, the AutoPipeline of a
// ClusterClient.
//
// New does not talk to Redis; [Client.Check] does. rdb stays the caller's: rdb must outlive the
// Client, and Close does not close rdb. The timeouts of rdb bound the time for which a goroutine of
// the Client can hang on a silent server. Commands share the connection pool of rdb with the
// commands of the caller: if all connections are in use, commands wait for a connection as go-redis
// does (PoolTimeout).
//
// Hooks of rdb may delay, refuse or end commands, but must not do two things. A hook must not
// return ctx.Err() in place of go-redis's error for a command that was sent: the bare error hides
// that the command may still run, and the rest of a call can stay in Redis for a TTL. And a hook
// must not send a command again: an Unlock whose script has run already would find nothing, and
// report a loss.
//
// Errors: [ErrInvalid].
func New(rdb redis.UniversalClient, options ...Option) (*Client, error) {
	set, err := redisOptionsOf(rdb, options)
	if err != nil {
		return nil, err
	}
	c, err := newClient(set)
	if err != nil {
		return nil, err
	}
	s, err := newRedisStore(rdb, redisOptions{
		redisSettings: set.redis, retried: c.retried, lost: c.disconnected, reconnected: c.reconnected,
	})
	if err != nil {
		return nil, asInvalid(err)
	}
	c.owned = true
	if err := c.use(s); err != nil {
		return nil, err
	}
	return c, nil
}

// RedisStore makes the store that New gives to its Client, for programs that combine stores.
// RedisStore takes the options [WithPrefix], [WithRedissonLayout] and [WithRedissonFencing]; other
// options have no effect. The caller closes the store. The store reports nothing to loggers and
// hooks.
//
// Errors: [ErrInvalid].
func RedisStore(rdb redis.UniversalClient, options ...Option) (store.Store, error) {
	set, err := redisOptionsOf(rdb, options)
	if err != nil {
		return nil, err
	}
	s, err := newRedisStore(rdb, redisOptions{redisSettings: set.redis})
	if err != nil {
		return nil, asInvalid(err)
	}
	return s, nil
}

func redisOptionsOf(rdb redis.UniversalClient, options []Option) (settings, error) {
	if isNil(rdb) {
		return settings{}, invalid("the go-redis client is nil")
	}
	return defaults().with(options)
}

// WithRedissonLayout makes a client keep its locks as Redisson does, the Java library, so that Go
// and Java services exclude and wake each other: a lock is the same as Redisson's getLock of the
// same name, or with [WithRedissonFencing] as its getFencedLock. WithRedissonLayout is for [New]
// only. docs/REDISSON.md lists the settings of each side.
//
// Differences from relock's own layout:
//   - A lock has no queue, since Redisson's RLock has none. When the lock becomes free a message
//     wakes the waiters, one of each client, and the first to ask Redis has the lock. The order is
//     not the order of arrival, except among the waiters of one client.
//   - A lock has no tokens ([errors.ErrUnsupported]), unless it is fenced.
//   - A lock's key is its name, without a prefix; [WithPrefix] is refused.
//   - Redis knows a hold by a field like a field of Redisson, an ID and a number. [State.Holder]
//     and [LockedError.Holder] are the field.
//   - [State.Waiters] is 0, as nobody knows the number.
//
// All else holds: re-entry, counts that are set and not added to, renewal, the report of a loss,
// and the cleanup of all remains.
func WithRedissonLayout() Option {
	return func(s *settings) {
		s.forClient("WithRedissonLayout")
		s.redis.redisson = true
	}
}

// WithRedissonFencing makes locks the same as Redisson's getFencedLock: with a fencing token that
// grows across Go and Java. WithRedissonFencing needs [WithRedissonLayout], and is for [New] only.
// All clients of a name must agree on fencing: without it, no token is counted.
//
// Redis draws the token with the first entry of a hold, as Redisson does. The token never goes back
// as long as Redis keeps its key, which has no TTL and stays when nobody uses the lock any more. If
// the key is lost, tokens begin again at 1.
func WithRedissonFencing() Option {
	return func(s *settings) {
		s.forClient("WithRedissonFencing")
		s.redis.fenced = true
	}
}

// WithRestartDelay makes clients take no lock of a Redis server that runs for less than d: the
// server may have come back without the locks that it had, and their holders are still in. With the
// longest TTL of all clients as d, the leases of all lost locks are over by then, so a restart
// without data lets no second holder in. Meanwhile calls find the server unavailable
// ([ErrUnavailable]), and Lock goes on trying. Holders that the server remembers go on.
//
// WithRestartDelay is for servers that are restarted in place, and above all for the members of a
// quorum (package quorum): pass it to [RedisStore]. It cannot know of a failover to a replica that
// lagged. It is not needed where Redis writes each command to disk (appendfsync always). The age of
// a server counts by its own clock, in whole seconds, so that up to a second is added to d.
//
// d must be whole milliseconds from [MinTTL] to [MaxTTL]; the default is no delay. WithRestartDelay
// is for [New] and [RedisStore] only, and not for [WithRedissonLayout].
func WithRestartDelay(d time.Duration) Option {
	return func(s *settings) {
		s.forClient("WithRestartDelay")
		s.check(checkLease("WithRestartDelay", d))
		s.redis.delay = d
	}
}

// manyTries is the number of tries after which a call without an answer is worth a warning: about a
// quarter of a second, or longer. Each next warning comes after twice as many tries, so that a
// thousand calls waiting for Redis do not fill the log.
const manyTries = 8

// retried reports that a call for the lock of a key is sent again.
func (c *Client) retried(key, script string, attempt, tries int, err error) {
	name := key
	if r := c.settings.redis; !r.redisson {
		name = nameOf(r.prefix, key)
	}
	level := slog.LevelDebug
	if tries >= manyTries && tries&(tries-1) == 0 {
		level = slog.LevelWarn
	}
	c.log(c.settings.logger, level, "relock: sending a script again",
		slog.String("script", script), slog.String("lock", name), slog.Int("attempt", attempt), slog.Any("error", err))
	if hook := c.settings.hooks.Retried; hook != nil {
		c.events.Emit(func() { hook(Retried{Name: name, Script: script, Attempt: attempt, Err: err}) })
	}
}

// disconnected reports that a pub/sub connection was lost, or could not be made.
func (c *Client) disconnected(node string, attempt int, err error) {
	level := slog.LevelInfo
	if attempt > 3 {
		level = slog.LevelWarn
	}
	c.log(c.settings.logger, level, "relock: pub/sub connection lost, connecting again",
		slog.String("node", node), slog.Int("attempt", attempt), slog.Any("error", err))
}

// reconnected reports that a pub/sub connection is back.
func (c *Client) reconnected(node string, down time.Duration) {
	c.log(c.settings.logger, slog.LevelInfo, "relock: pub/sub connection is back", slog.String("node", node))
	if hook := c.settings.hooks.Reconnected; hook != nil {
		c.events.Emit(func() { hook(Reconnected{Node: node, Down: down}) })
	}
}

// redisOptions are the options of a Redis store. Each function may be nil.
type redisOptions struct {
	redisSettings
	retried     func(key, script string, attempt, tries int, err error)
	lost        func(node string, attempt int, err error)
	reconnected func(node string, down time.Duration)
}

// newRedisStore makes the store that keeps locks behind rdb, and sends nothing. newRedisStore
// refuses the same kinds of rdb as New.
func newRedisStore(rdb redis.UniversalClient, o redisOptions) (store.Store, error) {
	s := &redisStore{rdb: rdb, prefix: o.prefix, delay: o.delay, closed: make(chan struct{}), watchers: make(map[*watcher]struct{})}
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
