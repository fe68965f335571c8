package relock

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/redisstore"
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
// Set ContextTimeoutEnabled in the options of rdb: a call whose context can end then takes no
// goroutine and up to half the time, and a silent server keeps no connection beyond the deadline of
// a context. New says once in the log ([WithLogger], level info) that the option is not set, if rdb
// is a [redis.Client] or a [redis.ClusterClient] itself.
//
// Errors: [ErrInvalid].
func New(rdb redis.UniversalClient, options ...Option) (*Client, error) {
	set, err := defaults().with(options, ofLock, ofClient, ofRedis)
	if err != nil {
		return nil, err
	}
	c, err := newClient(set)
	if err != nil {
		return nil, err
	}
	s, err := redisstore.New(rdb, redisstore.Options{
		Layout: set.redis.Layout, Scripts: scripts(), Lost: c.disconnected, Reconnected: c.reconnected,
	})
	if err != nil {
		return nil, asInvalid(err)
	}
	c.endStore = sync.OnceFunc(func() {
		_ = s.Close() // nothing is in flight any more
		if c.cleanup.forgetLast() {
			_ = s.Close()
		}
	})
	if c, err = c.use(s); err == nil {
		c.hintContextTimeout(rdb)
	}
	return c, err
}

// hintContextTimeout says in the log what it costs if rdb does not keep the deadlines of contexts.
func (c *Client) hintContextTimeout(rdb redis.UniversalClient) {
	keeps, costs := true, "if Redis is silent, the connection of a call whose context ends hangs until ReadTimeout"
	switch rdb := rdb.(type) {
	case *redis.Client:
		keeps = rdb.Options().ContextTimeoutEnabled
		costs = "a call whose context can end takes up to twice as long; " + costs
	case *redis.ClusterClient:
		keeps = rdb.Options().ContextTimeoutEnabled
	}
	if !keeps {
		c.log(c.settings.logger, slog.LevelInfo, "relock: the go-redis client has no ContextTimeoutEnabled", slog.String("costs", costs))
	}
}

// RedisStore makes the store that New gives to its Client, for programs that combine stores.
// RedisStore takes the options [WithPrefix], [WithRedissonLayout], [WithRedissonFencing] and
// [WithRestartDelay], and refuses all others, which are for the Client over the store. The caller
// closes the store. The store reports the state of its pub/sub connections to nobody.
//
// Errors: [ErrInvalid].
func RedisStore(rdb redis.UniversalClient, options ...Option) (store.Store, error) {
	set, err := defaults().with(options, ofRedis)
	if err != nil {
		return nil, err
	}
	s, err := redisstore.New(rdb, redisstore.Options{Layout: set.redis.Layout, Scripts: scripts()})
	if err != nil {
		return nil, asInvalid(err)
	}
	return s, nil
}

// Redis returns the client of go-redis behind the locks of c, nil if they are not in Redis.
func (c *Client) Redis() redis.UniversalClient { return redisstore.ClientOf(c.store) }

// layout says how a client keeps its locks in Redis.
type layout struct {
	redisstore.Layout
	hasPrefix bool // the prefix was given
}

func defaultLayout() layout { return layout{Layout: redisstore.Layout{Prefix: DefaultPrefix}} }

// WithPrefix sets the prefix of the Redis keys and channels of locks; the default is
// [DefaultPrefix]. All clients that share a lock must use the same prefix. The prefix may be empty,
// and is at most [MaxNameLen] bytes. A prefix with a whole hash tag, such as "{app}:", puts all
// locks into one slot of a cluster. An empty hash tag, "{}", is refused. Keys of
// [WithRedissonLayout] have no prefix, so WithPrefix is refused there. WithPrefix is for [New] and
// [RedisStore].
func WithPrefix(prefix string) Option {
	return Option{"WithPrefix", ofRedis, func(s *settings) {
		_, tag, _ := strings.Cut(prefix, "{")
		switch {
		case len(prefix) > MaxNameLen:
			s.check(invalid("WithPrefix: %d bytes; at most %d are allowed", len(prefix), MaxNameLen))
		case strings.HasPrefix(tag, "}"):
			s.check(invalid("WithPrefix(%q): it has an empty hash tag, and with it the keys of a lock different slots in a cluster; "+
				"a prefix must have no '{', or a whole tag such as {app}", prefix))
		}
		s.redis.Prefix, s.redis.hasPrefix = prefix, true
	}}
}

// WithRedissonLayout makes a client keep its locks as Redisson does, the Java library, so that Go
// and Java services exclude and wake each other: a lock is the same as Redisson's getLock of the
// same name, or with [WithRedissonFencing] in its place as its getFencedLock. It is for [New]
// and [RedisStore]. docs/MIGRATION.md lists the settings of each side.
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
	return Option{"WithRedissonLayout", ofRedis, func(s *settings) { s.redis.Redisson = true }}
}

// WithRedissonFencing is [WithRedissonLayout] for locks that are the same as Redisson's
// getFencedLock: with a fencing token that grows across Go and Java. All clients of a name must
// agree on fencing: without it, no token is counted.
//
// Redis draws the token with the first entry of a hold, as Redisson does. The token never goes back
// as long as Redis keeps its key, which has no TTL and stays when nobody uses the lock any more. If
// the key is lost, tokens begin again at 1.
func WithRedissonFencing() Option {
	return Option{"WithRedissonFencing", ofRedis, func(s *settings) { s.redis.Redisson, s.redis.Fenced = true, true }}
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
	return Option{"WithRestartDelay", ofRedis, func(s *settings) {
		s.check(checkLease("WithRestartDelay", d))
		s.redis.Delay = d
	}}
}
