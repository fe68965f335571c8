package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Baselines of waiting, without a library: the raw wake and the bare grant.

const (
	rawWake   = "raw wake"
	bareGrant = "bare grant"
)

// The bare grant is the least work of a lock with a queue on Redis: take the lock or join the
// queue; free the lock, or give the lock to the first waiter and send that waiter a message. Each
// script checks the owner, and a grant checks that the waiter can hear. There is no renewal, no
// re-entry, no retry and no recovery.
//
// KEYS are base and queue. A hold is <channel>:<number>.
var (
	bareAcquire = redis.NewScript(`
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return -1
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return -1
end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], 'NX', time[1] * 1000000 + time[2], ARGV[1])
return redis.call('PTTL', KEYS[1])`)

	bareRelease = redis.NewScript(`
if redis.call('ZCARD', KEYS[2]) == 0 then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local heir = redis.call('ZPOPMIN', KEYS[2])[1]
local channel = string.match(heir, '^(.+):')
if redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
  return -1
end
redis.call('HSET', KEYS[1], heir, '1')
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PUBLISH', channel, heir)
return 1`)
)

// bareTTL is long enough for a run, as nothing renews the lease.
const bareTTL = time.Minute

// bareLocks is the system of the bare grant.
var bareLocks = &system{
	name: bareGrant, only: []string{"hot"}, open: openBare,
	queued: func(ctx context.Context, rdb *redis.Client, lock string) (int, error) {
		n, err := rdb.ZCard(ctx, lock+":queue").Result()
		return int(n), err
	},
}

// bareProcess is a go-redis client and a connection that hears the channel of the process.
type bareProcess struct {
	connection
	listener

	holds   atomic.Int64
	mu      sync.Mutex
	waiting map[string]chan struct{} // by hold
}

var bareProcesses atomic.Int64

func openBare(s setup) (process, error) {
	c, err := connect(s, nil)
	if err != nil {
		return nil, err
	}
	// A hold has the length of a hold of relock.
	channel := fmt.Sprintf("00000000-0000-0000-0000-%012d", bareProcesses.Add(1))
	p := &bareProcess{connection: c, waiting: map[string]chan struct{}{}}
	for _, script := range []*redis.Script{bareAcquire, bareRelease} {
		if err := script.Load(context.Background(), c.rdb).Err(); err != nil {
			c.close()
			return nil, err
		}
	}
	if p.listener, err = listen(c.rdb, channel, p.grant); err != nil {
		c.close()
		return nil, err
	}
	return p, nil
}

// grant wakes the waiter of a hold.
func (p *bareProcess) grant(hold string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if woken := p.waiting[hold]; woken != nil {
		close(woken)
		delete(p.waiting, hold)
	}
}

func (p *bareProcess) handle(lock string) handle {
	return &bareHandle{p: p, keys: []string{lock, lock + ":queue"}}
}

func (p *bareProcess) close() {
	p.listener.close()
	p.connection.close()
}

type bareHandle struct {
	p    *bareProcess
	keys []string
	hold string
}

func (h *bareHandle) lock(ctx context.Context) (context.Context, error) {
	h.hold = h.p.channel + ":" + strconv.FormatInt(h.p.holds.Add(1), 10)
	woken := make(chan struct{})
	h.p.mu.Lock()
	h.p.waiting[h.hold] = woken
	h.p.mu.Unlock()
	left, err := bareAcquire.EvalSha(ctx, h.p.rdb, h.keys, h.hold, bareTTL.Milliseconds()).Int()
	if err == nil && left >= 0 {
		select {
		case <-woken:
			return ctx, nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	h.p.mu.Lock()
	delete(h.p.waiting, h.hold)
	h.p.mu.Unlock()
	return ctx, err
}

func (h *bareHandle) unlock(ctx context.Context) error {
	n, err := bareRelease.EvalSha(ctx, h.p.rdb, h.keys, h.hold, bareTTL.Milliseconds()).Int()
	if err == nil && n != 1 {
		err = errNotOurs
	}
	return err
}

// listener is a connection that hears a channel.
type listener struct {
	channel string
	pubsub  *redis.PubSub
	reading chan struct{} // closed after the last message
}

// listen subscribes to a channel, and calls onMessage with the payload of each message.
func listen(rdb redis.UniversalClient, channel string, onMessage func(payload string)) (listener, error) {
	ctx := context.Background()
	l := listener{channel, rdb.Subscribe(ctx, channel), make(chan struct{})}
	if _, err := l.pubsub.Receive(ctx); err != nil {
		_ = l.pubsub.Close()
		return listener{}, err
	}
	go func() {
		defer close(l.reading)
		for {
			msg, err := l.pubsub.Receive(ctx)
			if err != nil {
				return
			}
			if m, ok := msg.(*redis.Message); ok {
				onMessage(m.Payload)
			}
		}
	}()
	return l, nil
}

func (l listener) close() {
	_ = l.pubsub.Close()
	<-l.reading
}

// waker measures the raw wake: a script deletes a key and publishes a message, and a subscriber in
// the same process hears the message. The two connections are always the same.
type waker struct {
	rdb      *redis.Client
	key      string
	listener listener
	woken    chan time.Time
}

var wakeScript = redis.NewScript(
	`redis.call('DEL', KEYS[1]) return redis.call('PUBLISH', ARGV[1], ARGV[2])`)

// wakePayload has the length of a grant of relock.
var wakePayload = strings.Repeat("0", len("00000000-0000-0000-0000-000000000000:1:1"))

// newWaker takes over rdb.
func newWaker(rdb *redis.Client, name string) (*waker, error) {
	w := &waker{rdb: rdb, key: "wake:" + name, woken: make(chan time.Time, 1)}
	err := errors.Join(wakeScript.Load(context.Background(), rdb).Err(), w.lock())
	if err == nil {
		w.listener, err = listen(rdb, w.key+":channel", func(string) { w.woken <- time.Now() })
	}
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	return w, nil
}

// lock sets the key that the next wake deletes.
func (w *waker) lock() error {
	return w.rdb.Set(context.Background(), w.key, wakePayload, bareTTL).Err()
}

// wake makes one raw wake, and returns how long the message took.
func (w *waker) wake() (time.Duration, error) {
	ctx, start := context.Background(), time.Now()
	err := wakeScript.EvalSha(ctx, w.rdb, []string{w.key}, w.listener.channel, wakePayload).Err()
	if err != nil {
		return 0, err
	}
	select {
	case at := <-w.woken:
		return at.Sub(start), w.lock()
	case <-time.After(5 * time.Second):
		return 0, fmt.Errorf("no message: %w", errHangs)
	}
}

func (w *waker) close() {
	w.listener.close()
	_ = w.rdb.Close()
}
