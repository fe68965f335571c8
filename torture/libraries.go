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
)

// Libraries are all that take part, in the order of the page.
var Libraries = []*Library{
	{
		Name: "relock", Promises: Renews | Tells | Fences | Follows | Serves | Says, Open: openRelock(),
		Claim: "all of it",
	},
	{
		Name: "relock, Redisson's layout", Promises: Renews | Tells | Follows | Serves | Says, Open: openRelock(relock.WithRedissonLayout()),
		Claim: "all but tokens",
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
		Claim: "renewal; the context ends at once when the keys are lost or Redis is down; a waiter tries again at once when the lock is released",
	},
	{
		Name: "go-zero", Module: "github.com/zeromicro/go-zero", Open: openGoZero,
		Claim: "a try, and a lease of whole seconds",
	},
	HomeMade(Sound),
}

var errNotOurs = errors.New("the lock was not ours any more")

// relock.

type relockLocker struct {
	*relock.Client
	rdb redis.UniversalClient
}

func openRelock(options ...relock.Option) func(Setup) (Locker, error) {
	return func(s Setup) (Locker, error) {
		rdb := s.Redis()
		quiet := slog.New(slog.DiscardHandler)
		c, err := relock.New(rdb, append(options[:len(options):len(options)], relock.WithTTL(s.TTL), relock.WithLogger(quiet))...)
		return relockLocker{c, rdb}, err
	}
}

func (l relockLocker) Lock(ctx context.Context, name string) (*Held, error) {
	lock := l.NewLock(name)
	section, err := lock.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx))
	if err != nil {
		return nil, err
	}
	return &Held{
		Lost:   section.Done(),
		Unlock: func(context.Context) error { return lock.Unlock(section) },
		Token:  func(context.Context) (int64, error) { return lock.Token(section) },
	}, nil
}

func (l relockLocker) Close() {
	_ = l.Client.Close()
	_ = l.rdb.Close()
}

// redsync, with its defaults: 32 tries, 50 to 250 ms between them. A wait is as many Locks as it takes.

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
		return &Held{Until: began.Add(l.ttl), Unlock: lock.Release}, nil
	}
}

func (l redislockLocker) Close() { _ = l.rdb.Close() }

// rueidislock, with one key, as its readme advises for one server. Its default of 20 ms for a try is
// too short for slow links.

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
