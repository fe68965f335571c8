package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// Layout says how locks are kept in Redis. The zero value is relock's own layout without a prefix.
type Layout struct {
	Prefix   string        // of keys and channels; not for Redisson
	Redisson bool          // the layout of Redisson's RLock
	Fenced   bool          // with Redisson: the layout of RFencedLock
	Delay    time.Duration // no lock of a server that runs for less; 0: none
}

// Options are the options of a store. Each function may be nil.
type Options struct {
	Layout
	Scripts *Scripts

	Lost        func(node string, attempt int, err error) // a pub/sub connection is lost, or cannot be made
	Reconnected func(node string, down time.Duration)     // a pub/sub connection is back
}

// New makes the store that keeps locks behind rdb, a client of relock.New. New sends nothing.
func New(rdb redis.UniversalClient, o Options) (store.Store, error) {
	s := &redisStore{
		scripts: o.Scripts, rdb: rdb, prefix: o.Prefix, delay: o.Delay,
	}
	s.life, s.end = context.WithCancel(context.Background())
	var err error
	s.wire, err = wire.New(rdb, wire.Options{Trouble: func() { s.watchers.Tell("") }})
	if err != nil {
		return nil, err
	}
	if o.Lost == nil {
		o.Lost = func(string, int, error) {}
	}
	if o.Reconnected == nil {
		o.Reconnected = func(string, time.Duration) {}
	}
	listening := subs.Options{
		Node: s.wire.Node, Sharded: s.wire.Sharded, NotSharded: s.wire.NotSharded,
		Group: &s.group, Life: s.life, Lost: o.Lost, Reconnected: o.Reconnected, Unheard: func(string, string) {},
	}
	if o.Redisson {
		redisson := &redissonStore{redisStore: s, fenced: o.Fenced, cluster: s.wire.Sharded()}
		s.field, s.release = redissonField, redisson.Release
		s.subs = subs.New(listening)
		return redisson, nil
	}
	native := &nativeStore{redisStore: s, looks: looks{of: make(map[crowd]look)}}
	s.field, s.release = func(id store.ID) string { return string(id) }, native.Release
	listening.Unheard = native.unheard
	s.subs = subs.New(listening)
	return native, nil
}

// ClientOf returns the client of go-redis behind a store, nil if the store is not of this package.
func ClientOf(s store.Store) redis.UniversalClient {
	if s, is := s.(interface{ client() redis.UniversalClient }); is {
		return s.client()
	}
	return nil
}

func (s *redisStore) client() redis.UniversalClient { return s.rdb }
