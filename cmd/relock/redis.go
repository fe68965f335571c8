package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
)

// This file opens locks in Redis. docs/STORES.md describes a quorum.

const formSingle = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix://PATH"

var (
	single  = &backend{form: formSingle, open: openSingle, refuses: redisRefuses}
	cluster = &backend{
		form: "cluster+redis://HOST:PORT?addr=HOST:PORT, or cluster+rediss://", open: openCluster, refuses: redisRefuses,
	}
	sentinel = &backend{
		form: "sentinel+redis://HOST:PORT/DB?addr=HOST:PORT&master_name=NAME, or sentinel+rediss://", open: openSentinel, refuses: redisRefuses,
	}
	quorumOf = &backend{form: "redis://HOST:PORT,redis://HOST:PORT,redis://HOST:PORT", open: openQuorum, refuses: redisRefuses}
)

// refusal matches how Redis refuses a user: by a code, or inside of a script before and from Redis
// 7.2 on. A quorum has the texts of its members' errors, and not their types.
var refusal = regexp.MustCompile(`\b(NOAUTH|WRONGPASS|NOPERM)\b|The user executing the script can't|ACL failure in script`)

func redisRefuses(err error) bool { return refusal.MatchString(err.Error()) }

// tries is how often go-redis asks, as each try must leave time for another connection or node.
const tries = 3

// hurry sets what a URL may leave out: a person or a script has less patience than a service.
func (c *connection) hurry(dial, read, write *time.Duration, dials *int, bounded *bool) {
	*dial = cmp.Or(*dial, min(c.timeout, 5*time.Second))
	*read = cmp.Or(*read, max(min(c.timeout, 3*time.Second), c.timeout/tries))
	*write = cmp.Or(*write, *read)
	*dials, *bounded = 1, true
}

// options reads the URL of one server.
func (c *connection) options(t target) (*redis.Options, error) {
	o, err := redis.ParseURL(t.raw)
	if err != nil || strings.Contains(t.raw, "#") { // go-redis ignores the text behind # in a password
		return nil, t.unreadable()
	}
	c.hurry(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.DialerRetries, &o.ContextTimeoutEnabled)
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, nil
}

func openSingle(c *connection, t target) (opened, error) {
	o, err := c.options(t)
	if err != nil {
		return opened{}, err
	}
	c.where = "Redis at " + o.Addr
	return c.over(redis.NewClient(o))
}

func openCluster(c *connection, t target) (opened, error) {
	o, err := redis.ParseClusterURL(strings.TrimPrefix(t.raw, "cluster+"))
	if err != nil || strings.Contains(t.raw, "#") {
		return opened{}, t.unreadable()
	}
	c.where = "the cluster " + strings.Join(o.Addrs, ",")
	c.hurry(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.DialerRetries, &o.ContextTimeoutEnabled)
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = "" // each node has a name of its own
	}
	return c.over(redis.NewClusterClient(o))
}

func openSentinel(c *connection, t target) (opened, error) {
	o, err := redis.ParseFailoverURL(strings.TrimPrefix(t.raw, "sentinel+"))
	if err != nil || strings.Contains(t.raw, "#") || o.MasterName == "" || o.RouteByLatency || o.RouteRandomly {
		return opened{}, t.unreadable()
	}
	c.where = "the master " + o.MasterName + " of the sentinels " + strings.Join(o.SentinelAddrs, ",")
	c.hurry(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.DialerRetries, &o.ContextTimeoutEnabled)
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = ""
	}
	return c.over(redis.NewFailoverClient(o))
}

// over opens the store in the Redis of rdb.
func (c *connection) over(rdb redis.UniversalClient) (opened, error) {
	o := opened{uses: []io.Closer{rdb}}
	layout, err := c.layout()
	if err != nil {
		return o, err
	}
	o.store, err = relock.RedisStore(rdb, layout...)
	return o, err
}

// openQuorum opens a store over independent servers, a majority of which has a lock.
func openQuorum(c *connection, t target) (o opened, err error) {
	urls := strings.Split(t.raw, ",")
	if n := len(urls); n < 3 || n%2 == 0 {
		return o, usage("%s: a quorum needs an odd number of URLs, at least 3, with commas between them (in a password %%2C), and not %d", t.source, n)
	}
	if c.given.Changed("redisson") {
		return o, usage("%s: --redisson is for one Redis, and not for a quorum", t.source)
	}
	var addrs []string
	var members []store.Store
	for i, raw := range urls {
		options, err := c.options(target{raw, fmt.Sprintf("URL %d of %s", i+1, t.source), formSingle})
		if err != nil {
			return o, err
		}
		if first := slices.Index(addrs, options.Addr); first >= 0 {
			return o, usage("%s: URL %d and URL %d are the same server, and the servers of a quorum must be independent", t.source, first+1, i+1)
		}
		addrs = append(addrs, options.Addr)
		member, err := c.over(redis.NewClient(options))
		o.uses = append(o.uses, member.uses...)
		if err != nil {
			return o, err
		}
		members = append(members, member.store)
	}
	c.where = "the quorum of " + strings.Join(addrs, ", ")
	o.store, err = quorum.New(members...)
	return o, err
}

// The values of --redisson.
const (
	redissonPlain  = "plain"
	redissonFenced = "fenced"
)

// layout returns the options that say how locks are kept in Redis.
func (c *connection) layout() (options []relock.Option, err error) {
	switch {
	case !c.given.Changed("redisson"):
		options = append(options, relock.WithPrefix(c.prefix))
	case c.prefix != relock.DefaultPrefix || c.delay != 0:
		return nil, usage("--redisson: goes with neither --prefix nor --restart-delay")
	case c.redisson == redissonPlain:
		return []relock.Option{relock.WithRedissonLayout()}, nil
	case c.redisson == redissonFenced:
		return []relock.Option{relock.WithRedissonFencing()}, nil
	default:
		return nil, usage("--redisson=%s: must be %s or %s", c.redisson, redissonPlain, redissonFenced)
	}
	if c.delay != 0 {
		options = append(options, relock.WithRestartDelay(c.delay))
	}
	return options, nil
}
