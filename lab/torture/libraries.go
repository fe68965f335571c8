package torture

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/zeromicro/go-zero/core/logx"
	zero "github.com/zeromicro/go-zero/core/stores/redis"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
	"github.com/go-relock/relock/ticket"
)

// Libraries are all that take part, in the order of the page.
var Libraries = []*Library{
	{
		Name: "relock", Promises: Renews | Tells | Fences | Follows | Serves | Says | Shares | Leads | Remembers | HandsOn | Knows, Open: openRelock(),
		Keeps: []string{tokens},
		Claim: "all of it",
	},
	{
		Name: "relock, Redisson's layout", Promises: Renews | Tells | Follows | Serves | Says | Knows, Open: openRelock(relock.WithRedissonLayout()),
		Claim: "all but tokens",
	},
	{
		Name: "relock, a quorum", Promises: Renews | Fences | Serves | Says | Knows, Calm: true, Open: openQuorum,
		Keeps: []string{tokens},
		Claim: "all of it; nothing happens to two of its three servers, so no holder loses its lock",
	},
	{
		Name: "relock, PostgreSQL", Promises: Renews | Tells | Fences | Serves | Says | Shares | Leads | Knows, Open: openPostgres,
		Store: postgres, Apart: []string{"pause", "long-pause"}, Claim: "all but once and loans",
	},
	{
		Name: "relock, etcd", Promises: Renews | Tells | Fences | Serves | Says | Leads | Knows, Open: openEtcd,
		Store: etcd, Claim: "the same for mutexes",
	},
	{
		Name: "relock, ZooKeeper", Promises: Renews | Tells | Fences | Serves | Says | Leads | Knows, Open: openZooKeeper,
		Store: zooKeeper, Claim: "the same for mutexes, and read-write locks",
	},
	{
		Name: "redsync", Module: "github.com/go-redsync/redsync/v4", Promises: Follows, Open: openRedsync,
		Claim: "exclusion; the holder extends its lease and watches its end, the caller tries a number of times",
	},
	{
		Name: "redislock", Module: "github.com/bsm/redislock", Promises: Follows, Open: openRedislock,
		Claim: "exclusion; the holder refreshes its lease, the caller tries by a strategy",
	},
	{
		Name: "rueidislock", Module: "github.com/redis/rueidis", Promises: Renews | Tells | Serves, Open: openRueidislock,
		Ends:  map[string]string{"too-many-clients": "not run here: v1.0.79 ends the process in one of three runs: panic: protocol bug, message handled out of order"},
		Claim: "renewal; the context ends at once when the keys are lost or Redis is down; a waiter tries again at once when the lock is released",
	},
	{
		Name: "go-zero", Module: "github.com/zeromicro/go-zero", Open: openGoZero,
		Claim: "a try, and a lease of whole seconds",
	},
	HomeMade(Sound),
}

// tokens is the pattern of relock's counters of tokens.
const tokens = "relock:*:token"

var errNotOurs = errors.New("the lock was not ours any more")

// relock.

type relockLocker struct {
	*relock.Client
	rdb  redis.UniversalClient
	once *once.Once // nil: none
}

func openRelock(options ...relock.Option) func(Setup) (Locker, error) {
	return func(s Setup) (Locker, error) {
		rdb := s.Redis()
		quiet := slog.New(slog.DiscardHandler)
		c, err := relock.New(rdb, append(options[:len(options):len(options)], relock.WithTTL(s.TTL), relock.WithLogger(quiet))...)
		if err != nil {
			return nil, err
		}
		l := relockLocker{Client: c, rdb: rdb}
		if len(options) == 0 { // in relock's own layout
			l.once, err = once.New(c, once.WithRetention(s.TTL))
		}
		return l, err
	}
}

func (l relockLocker) Lock(ctx context.Context, name string) (*Held, error) {
	lock := l.NewLock(name)
	section, held, err := take(ctx, lock)
	if err == nil {
		held.Token = func(context.Context) (int64, error) { return lock.Token(section) }
		held.HandOff = func(context.Context) (any, error) { return ticket.HandOff(section, lock) }
	}
	return held, err
}

func take(ctx context.Context, lock relock.Locker) (section context.Context, held *Held, err error) {
	section, err = lock.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx))
	if err != nil {
		return nil, nil, err
	}
	return section, &Held{Lost: section.Done(), Unlock: func(context.Context) error { return unlock(lock, section) }}, nil
}

func unlock(lock relock.Locker, section context.Context) error {
	err := lock.Unlock(section)
	if errors.Is(err, relock.ErrNotHeld) || errors.Is(err, relock.ErrLockLost) {
		err = errors.Join(errNotOurs, err)
	}
	return err
}

func (l relockLocker) Read(ctx context.Context, name string) (*Held, error) {
	_, held, err := take(ctx, l.NewRWLock(name).RLocker())
	return held, err
}

func (l relockLocker) Write(ctx context.Context, name string) (*Held, error) {
	_, held, err := take(ctx, l.NewRWLock(name).Writer())
	return held, err
}

func (l relockLocker) Permit(ctx context.Context, name string, n int) (*Held, error) {
	_, held, err := take(ctx, l.NewSemaphore(name, n))
	return held, err
}

func (l relockLocker) Several(ctx context.Context, names ...string) (*Held, error) {
	_, held, err := take(ctx, l.NewLocks(names))
	return held, err
}

func (l relockLocker) Lead(ctx context.Context, name string) (*Held, error) {
	campaigns, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := leader.Campaign(campaigns, l.NewLock(name))
	for {
		changes := c.Changes()
		if section := c.Context(); section != nil {
			return &Held{Lost: section.Done(), Unlock: func(context.Context) error {
				stop()
				<-c.Done()
				return nil
			}}, nil
		}
		select {
		case <-changes:
		case <-ctx.Done():
			stop()
			<-c.Done()
			return nil, ctx.Err()
		}
		if err := c.Err(); err != nil {
			stop()
			return nil, err
		}
	}
}

func (l relockLocker) Do(ctx context.Context, key string, do func(again bool)) error {
	_, _, err := once.Do(ctx, l.once, key, func(_ context.Context, a once.Attempt) (struct{}, error) {
		do(a.Interrupted)
		return struct{}{}, nil
	})
	return err
}

func (l relockLocker) Accept(ctx context.Context, name string, given any) (*Held, error) {
	lock := l.NewLock(name)
	section, err := ticket.Accept(ctx, lock, given.(ticket.Ticket))
	if err != nil {
		return nil, err
	}
	return &Held{Lost: section.Done(), Unlock: func(context.Context) error { return unlock(lock, section) }}, nil
}

func (l relockLocker) Close() {
	if l.once != nil {
		_ = l.once.Close()
	}
	_ = l.Client.Close()
	_ = l.rdb.Close()
}

// relock over three servers, one of which is that of the scenario.

type quorumLocker struct {
	relockLocker
	rdbs []redis.UniversalClient
}

func openQuorum(s Setup) (Locker, error) {
	rdbs := []redis.UniversalClient{s.Redis()}
	for _, addr := range s.Calm {
		rdbs = append(rdbs, redis.NewClient(&redis.Options{Addr: addr}))
	}
	var members []store.Store
	for _, rdb := range rdbs {
		m, err := relock.RedisStore(rdb)
		if err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	three, err := quorum.New(members...)
	if err != nil {
		return nil, err
	}
	c, err := relock.Open(three, relock.WithTTL(s.TTL), relock.WithLogger(slog.New(slog.DiscardHandler)))
	return quorumLocker{relockLocker{Client: c}, rdbs}, err
}

func (l quorumLocker) Close() {
	_ = l.Client.Close()
	for _, rdb := range l.rdbs {
		_ = rdb.Close()
	}
}

// redsync, with its defaults: 32 tries, 50 to 250 ms between them. A wait is as many Locks as it
// takes.

type redsyncLocker struct {
	*redsync.Redsync
	rdb redis.UniversalClient
	ttl time.Duration
}

func openRedsync(s Setup) (Locker, error) {
	rdb := s.Redis()
	return redsyncLocker{redsync.New(redsyncpool.NewPool(rdb)), rdb, s.TTL}, nil
}

func (l redsyncLocker) Lock(ctx context.Context, name string) (*Held, error) {
	m := l.NewMutex(name, redsync.WithExpiry(l.ttl))
	for {
		err := m.LockContext(ctx)
		var taken *redsync.ErrTaken
		if err != nil && ctx.Err() == nil && errors.As(err, &taken) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &Held{Until: m.Until(), Unlock: func(ctx context.Context) error {
			ok, err := m.UnlockContext(ctx)
			if err == nil && !ok {
				err = errNotOurs
			}
			return err
		}}, nil
	}
}

func (l redsyncLocker) Close() { _ = l.rdb.Close() }

// redislock, whose holder watches the lease.

type redislockLocker struct {
	*redislock.Client
	rdb redis.UniversalClient
	ttl time.Duration
}

func openRedislock(s Setup) (Locker, error) {
	rdb := s.Redis()
	return redislockLocker{redislock.New(rdb), rdb, s.TTL}, nil
}

func (l redislockLocker) Lock(ctx context.Context, name string) (*Held, error) {
	for {
		began := time.Now()
		tries := &redislock.Options{RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(20*time.Millisecond), 5)}
		lock, err := l.Obtain(ctx, name, l.ttl, tries)
		if errors.Is(err, redislock.ErrNotObtained) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &Held{Until: began.Add(l.ttl), Unlock: func(ctx context.Context) error {
			err := lock.Release(ctx)
			if errors.Is(err, redislock.ErrLockNotHeld) {
				err = errors.Join(errNotOurs, err)
			}
			return err
		}}, nil
	}
}

func (l redislockLocker) Close() { _ = l.rdb.Close() }

// rueidislock, with one key, as its readme advises for one server. Its default of 20 ms for a try
// is too short for slow links.

type rueidisLocker struct{ rueidislock.Locker }

func openRueidislock(s Setup) (Locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{s.Addr}},
		KeyValidity:  s.TTL, KeyMajority: 1, NoLoopTracking: true, TryNextAfter: s.TTL / 4,
	})
	return rueidisLocker{l}, err
}

func (l rueidisLocker) Lock(ctx context.Context, name string) (*Held, error) {
	hold, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	section, leave, err := l.WithContext(hold, name)
	if !stop() && err == nil {
		leave()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &Held{Lost: section.Done(), Unlock: func(context.Context) error {
		err := section.Err()
		leave()
		cancel()
		if err != nil {
			return errNotOurs
		}
		return nil
	}}, nil
}

// go-zero's RedisLock, which tries once and counts in seconds.

type goZeroLocker struct {
	rds *zero.Redis
	ttl time.Duration
}

func openGoZero(s Setup) (Locker, error) {
	logx.Disable()
	rds, err := zero.NewRedis(zero.RedisConf{Host: s.Addr, Type: zero.NodeType})
	return goZeroLocker{rds, s.TTL}, err
}

func (l goZeroLocker) Lock(ctx context.Context, name string) (*Held, error) {
	lock := zero.NewRedisLock(l.rds, name)
	lock.SetExpire(int(l.ttl.Seconds()))
	for {
		began := time.Now()
		switch ok, err := lock.AcquireCtx(ctx); {
		case err != nil:
			return nil, err
		case ok:
			return &Held{Until: began.Add(l.ttl), Unlock: func(ctx context.Context) error {
				ok, err := lock.ReleaseCtx(ctx)
				if err == nil && !ok {
					err = errNotOurs
				}
				return err
			}}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (goZeroLocker) Close() {} // it keeps its connections, see [World.way]
