package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// turn is what is measured next in a slice of hand-overs: one of a system, or what it costs without a library.
type turn int

const (
	handOver   turn = iota
	wake            // the raw wake: a script that deletes a key and publishes a message, until a subscriber has the message
	wakeApart       // the same among as many clients as hand the lock round, each of which was idle for as long
	grantApart      // among these, a script that does what any lock of this kind has to, see grantScript
)

var bareTurns = []turn{wake, wakeApart, grantApart}

// The names of their records.
const (
	rawWake      = "raw wake"
	rawWakeApart = "raw wake, as many clients"
	bareGrant    = "bare grant, as many clients"
)

func (t turn) name() string { return [...]string{"", rawWake, rawWakeApart, bareGrant}[t] }

// mixed is the order of n turns of each kind. It is random, and each comes after the same pause: a machine answers faster shortly
// after it had much to do, so what always comes behind the same other thing is measured on a machine of its own.
func mixed(n int, kinds []turn) []turn {
	turns := make([]turn, n*len(kinds))
	for i, to := range rand.Perm(len(turns)) {
		turns[to] = kinds[i%len(kinds)]
	}
	return turns
}

// bare measures what a hand-over costs without a library.
type bare struct {
	alone         *subscriber
	ring          []*subscriber
	lock          string // the key of the bare lock
	wakes, grants int    // how many there were in the ring
}

// newBare opens as many clients, and one.
func newBare(ctx context.Context, open func() (*redis.Client, error), name string, n int) (*bare, error) {
	b := &bare{ring: make([]*subscriber, n), lock: "bare:" + name}
	err := eachOf(n+1, func(i int) error {
		rdb, err := open()
		if err != nil {
			return err
		}
		s, err := newSubscriber(ctx, rdb, b.lock+":"+strconv.Itoa(i))
		if err != nil {
			_ = rdb.Close()
			return err
		}
		if i == n {
			b.alone = s
		} else {
			b.ring[i] = s
		}
		return nil
	})
	if err == nil {
		err = wakeScript.Load(ctx, b.alone.rdb).Err()
	}
	if err == nil {
		err = grantScript.Load(ctx, b.alone.rdb).Err()
	}
	if err == nil {
		err = b.alone.rdb.HSet(ctx, b.lock, b.at(0).key, 1).Err()
	}
	if err == nil {
		err = b.prepare(ctx, b.at(1))
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bare) at(i int) *subscriber { return b.ring[i%len(b.ring)] }

// run is one turn.
func (b *bare) run(ctx context.Context, t turn) (time.Duration, error) {
	switch t {
	case wake:
		return b.alone.wake(ctx, b.alone)
	case wakeApart:
		b.wakes++
		return b.at(b.wakes-1).wake(ctx, b.at(b.wakes))
	default:
		b.grants++
		d, err := b.at(b.grants-1).grant(ctx, b.lock, b.at(b.grants))
		if err != nil {
			return 0, err
		}
		return d, b.prepare(ctx, b.at(b.grants+1))
	}
}

// grantScript hands a lock over, and knows before to whom, as that stands beside the owner. It asks whether the owner is the
// owner, and whether the next one can hear; it sets the lease and puts the new owner in place of the old one; and it tells the
// new one.
var grantScript = redis.NewScript(`
local owned, heir, channel = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'next', 'channel'))
if not owned or redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[1], heir, '1')
redis.call('HDEL', KEYS[1], ARGV[1], 'next', 'channel')
redis.call('PUBLISH', channel, heir)
return 1`)

// prepare notes to whom the bare lock goes next.
func (b *bare) prepare(ctx context.Context, s *subscriber) error {
	return s.rdb.HSet(ctx, b.lock, "next", s.key, "channel", s.channel).Err()
}

func (b *bare) close() {
	_ = eachOf(len(b.ring)+1, func(i int) error {
		s := b.alone
		if i < len(b.ring) {
			s = b.ring[i]
		}
		if s != nil {
			s.close()
		}
		return nil
	})
}

// subscriber is a client with a connection for commands, and one that hears its channel.
type subscriber struct {
	rdb     *redis.Client
	ps      *redis.PubSub
	key     string
	channel string
	woken   chan time.Time
	reading chan struct{}
}

var wakeScript = redis.NewScript(`redis.call('DEL', KEYS[1]) return redis.call('PUBLISH', ARGV[1], ARGV[2])`)

// wakePayload is as long as the message of a grant.
const wakePayload = wakeValue + "|1700000000000000"

// What a lock of the floor would be.
const (
	wakeValue = "00000000-0000-0000-0000-000000000000:1:1"
	wakeTTL   = time.Minute
)

// newSubscriber hears a channel with a connection of rdb, which it closes at its end.
func newSubscriber(ctx context.Context, rdb *redis.Client, name string) (*subscriber, error) {
	s := &subscriber{rdb: rdb, key: name, channel: name + ":channel", woken: make(chan time.Time, 1), reading: make(chan struct{})}
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	s.ps = rdb.Subscribe(ctx, s.channel)
	if _, err := s.ps.Receive(ctx); err != nil {
		_ = s.ps.Close()
		return nil, err
	}
	go func() {
		defer close(s.reading)
		for {
			msg, err := s.ps.Receive(context.Background())
			if err != nil {
				return
			}
			if _, ok := msg.(*redis.Message); ok {
				s.woken <- time.Now()
			}
		}
	}()
	return s, nil
}

// wake is one raw wake of another subscriber, or the same.
func (s *subscriber) wake(ctx context.Context, other *subscriber) (time.Duration, error) {
	start := time.Now()
	if err := wakeScript.EvalSha(ctx, s.rdb, []string{s.key}, other.channel, wakePayload).Err(); err != nil {
		return 0, err
	}
	at, err := other.hear()
	if err != nil {
		return 0, err
	}
	return at.Sub(start), s.lock(ctx)
}

// grant gives the bare lock to another.
func (s *subscriber) grant(ctx context.Context, lock string, other *subscriber) (time.Duration, error) {
	start := time.Now()
	granted, err := grantScript.EvalSha(ctx, s.rdb, []string{lock}, s.key, wakeTTL.Milliseconds()).Int()
	if err != nil {
		return 0, err
	}
	if granted != 1 {
		return 0, fmt.Errorf("bare grant: %w", errNotOurs)
	}
	at, err := other.hear()
	return at.Sub(start), err
}

// hear returns when the message came that was sent last.
func (s *subscriber) hear() (time.Time, error) {
	select {
	case at := <-s.woken:
		return at, nil
	case <-time.After(5 * time.Second):
		return time.Time{}, fmt.Errorf("no message: %w", errHangs)
	}
}

// lock makes the key that the next wake deletes, as a lock without owners and waiters would.
func (s *subscriber) lock(ctx context.Context) error {
	return s.rdb.Set(ctx, s.key, wakeValue, wakeTTL).Err()
}

func (s *subscriber) close() {
	_ = s.ps.Close()
	<-s.reading
	_ = s.rdb.Close()
}
