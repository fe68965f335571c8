package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/go-relock/relock"
)

// system is one way to lock, in one setting.
type system struct {
	name, setting string
	// only lists the workloads of the system; nil: all.
	only []string
	// open makes one process's part of the system.
	open func(s setup) (process, error)
	// keys names the keys of a lock in Redis. The owner has most of the keys.
	keys func(lock string) []string
	// also names the commands besides scripts.
	also []string
	// queued counts the waiters in Redis; nil: the system polls, and Redis knows no waiters.
	queued func(ctx context.Context, rdb *redis.Client, lock string) (int, error)
	// cycle is the longest interval of all that the system does by itself; 0: the system polls.
	cycle time.Duration
	// renews is how often in a TTL the system renews a lease; 0: never.
	renews int
}

// setup is what a process is opened with.
type setup struct {
	addr string
	rdb  *redis.Client // for all systems on go-redis; nil: each opens a client of its own
	ttl  time.Duration // 0: the system's default

	others []string // addresses of members of a quorum beside addr
}

// process is a process's part of a system: connections, and all that goroutines share.
type process interface {
	// handle is for one goroutine and one lock.
	handle(lock string) handle
	close()
}

// handle locks and unlocks one lock, in turns.
type handle interface {
	// lock waits for the lock until ctx is done. The section is for unlock.
	lock(ctx context.Context) (section context.Context, err error)
	unlock(section context.Context) error
}

// The pauses between two tries of systems that poll. The default of redsync is 50 to 250 ms. 100 ms
// is from the first example of redislock with a wait. The tuned pause is 5 ms: a shorter pause
// wakes a few waiters faster, but with many waiters keeps the server busy with tries, and delays
// the Unlock.
const (
	redislockPause = 100 * time.Millisecond
	tunedPause     = 5 * time.Millisecond
)

// redislockTTL stands for the default that redislock does not have.
const redislockTTL = 30 * time.Second

// rueidislockCycle is two renewals. Each may wake the waiters.
const rueidislockCycle = 5 * time.Second

const (
	defaults      = "defaults"
	tuned         = "tuned"
	localReentry  = "local re-entry"
	kept          = "kept"
	autoPipelined = "auto-pipelined"
	ending        = "can end"
)

// relockWith is relock in a setting, for all workloads or only some.
func relockWith(setting string, only []string, how through, options ...relock.Option) *system {
	return &system{
		name: "relock", setting: setting, only: only, open: openRelock(how, options...), queued: relockQueued,
		keys:   func(lock string) []string { return []string{relockKey(lock)} },
		renews: 3,
		cycle:  relock.DefaultTTL * 4 / 3, // every waiter has asked once about the owner's lease
	}
}

// The systems, in the order of the tables.
var (
	relockDefaults = relockWith(defaults, nil, nil)
	relockLocal    = relockWith(localReentry, []string{"nested"}, nil, relock.WithLocalReentry())

	systems = []*system{
		{name: "floor", open: openFloor(nil), also: []string{"set"}, only: []string{"pair", "parallel"}},
		{name: "floor", setting: autoPipelined, open: openFloor(auto), also: []string{"set"}, only: []string{"parallel"}},
		bareLocks,
		relockDefaults,
		relockWith(ending, []string{"pair"}, nil),
		relockWith(kept, []string{"pair", "hot"}, nil, relock.WithKeep(time.Minute)),
		relockWith(autoPipelined, []string{"parallel"}, auto),
		{name: "redsync", setting: defaults, open: openRedsync(nil), keys: sameKey, also: []string{"set"}},
		{
			name: "redsync", setting: tuned, keys: sameKey, also: []string{"set"},
			open: openRedsync(nil, redsync.WithTries(1<<30), redsync.WithRetryDelay(tunedPause)),
		},
		{
			name: "redsync", setting: autoPipelined, keys: sameKey, also: []string{"set"}, only: []string{"parallel"},
			open: openRedsync(auto, redsync.WithTries(1<<30), redsync.WithRetryDelay(tunedPause)),
		},
		{name: "redislock", setting: defaults, open: openRedislock(nil, redislockPause), keys: sameKey},
		{name: "redislock", setting: tuned, open: openRedislock(nil, tunedPause), keys: sameKey},
		{name: "redislock", setting: autoPipelined, open: openRedislock(auto, tunedPause), keys: sameKey, only: []string{"parallel"}},
		{name: "rueidislock", setting: defaults, open: openRueidislock(rueidislock.LockerOption{}), keys: rueidislockKeys(3), cycle: rueidislockCycle, renews: 2},
		{
			name: "rueidislock", setting: tuned, keys: rueidislockKeys(1), cycle: rueidislockCycle, renews: 2,
			open: openRueidislock(rueidislock.LockerOption{
				KeyMajority: 1, NoLoopTracking: true, TryNextAfter: time.Second,
			}),
		},
	}
)

// settings explains for the page a system in its setting, a system, or a setting of several
// systems.
var settings = [][2]string{
	{"floor", "`SET NX PX` and a compare-and-delete `EVALSHA` through the same go-redis client: no waiting, " +
		"no renewal, no re-entry; the least cost of a lock whose commands are sent one by one"},
	{rawWake, "a script that deletes a key and publishes a message, until a subscriber has the message: the " +
		"least cost of a hand-over; always on the same two connections"},
	{bareGrant, "the smallest scripts of a lock with a queue, sent by plain go-redis, with one pub/sub " +
		"connection a client: take the lock or join the queue; free the lock, or check that the first waiter " +
		"can hear, make that waiter the owner and send a message. No renewal, no re-entry, no recovery"},
	{autoPipelined, "the same on `rdb.AutoPipeline()` of go-redis, which sends concurrent commands together " +
		"on one connection"},
	{"relock, defaults", "`relock.New(rdb)`"},
	{"relock, " + ending, "the same with a context like that of a request. All other systems in a pair get a " +
		"context that cannot end"},
	{"relock, " + kept, "with `WithKeep(time.Minute)`: the process keeps the lock between the sections"},
	{"relock, " + localReentry, "with `WithLocalReentry()`"},
	{"redsync, defaults", "one pool; 8 s, 32 tries, 50 to 250 ms between tries; after the last try asked again"},
	{"redsync, tuned", "tries without limit, 5 ms between tries"},
	{"redsync, " + failFast, "with `WithFailFast(true)`: it goes on when a majority has answered"},
	{"rueidislock, " + threeServers, "one of its three keys on each server, by a `ClientBuilder` that is no part of rueidislock"},
	{oneDead, "one of three servers is killed; redsync with `WithFailFast(true)`"},
	{oneSilent, "one of three servers is stopped; redsync with `WithFailFast(true)`"},
	{"redislock, defaults", "`LinearBackoff(100ms)` as in an example of its documentation, but without a limit, " +
		"as redislock does not wait by itself; a TTL of 30 s, as redislock has no default"},
	{"redislock, tuned", "`LinearBackoff(5ms)`"},
	{"rueidislock, defaults", "2 of 3 keys, 5 s, renewed every 2.5 s"},
	{"rueidislock, tuned", "`KeyMajority: 1` and `NoLoopTracking: true`, as the readme advises for one server; " +
		"and `TryNextAfter: 1s`"},
}

func (s *system) String() string {
	if s.setting == "" {
		return s.name
	}
	return s.name + ", " + s.setting
}

// auto sends concurrent commands together on one connection.
func auto(rdb *redis.Client) (redis.UniversalClient, error) { return rdb.AutoPipeline() }

// through makes the go-redis client of a system from a plain client.
type through func(rdb *redis.Client) (redis.UniversalClient, error)

// connection is a go-redis client, shared or owned by a process.
type connection struct {
	own *redis.Client
	rdb redis.UniversalClient
}

func connect(s setup, how through) (connection, error) {
	var c connection
	rdb := s.rdb
	if rdb == nil {
		c.own = redis.NewClient(&redis.Options{Addr: s.addr})
		rdb = c.own
	}
	var err error
	if c.rdb = rdb; how != nil {
		c.rdb, err = how(rdb)
	}
	return c, err
}

func (c connection) close() {
	if c.own != nil {
		_ = c.own.Close()
	}
}

// The floor.

var compareAndDelete = redis.NewScript(`if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end`)

type floorProcess struct {
	connection
	ttl time.Duration
}

func openFloor(how through) func(setup) (process, error) {
	return func(s setup) (process, error) {
		c, err := connect(s, how)
		if err != nil {
			return nil, err
		}
		if err := compareAndDelete.Load(context.Background(), c.rdb).Err(); err != nil {
			return nil, err
		}
		return &floorProcess{c, cmp.Or(s.ttl, relock.DefaultTTL)}, nil
	}
}

func (p *floorProcess) handle(lock string) handle { return &floorHandle{p: p, keys: []string{lock}} }

type floorHandle struct {
	p     *floorProcess
	keys  []string
	value string
}

var floorValues atomic.Int64

func (h *floorHandle) lock(ctx context.Context) (context.Context, error) {
	h.value = "floor:" + strconv.FormatInt(floorValues.Add(1), 10)
	set := redis.NewStatusCmd(ctx, "set", h.keys[0], h.value, "nx", "px", h.p.ttl.Milliseconds())
	return ctx, h.p.rdb.Process(ctx, set) // redis.Nil: taken
}

func (h *floorHandle) unlock(ctx context.Context) error {
	n, err := compareAndDelete.EvalSha(ctx, h.p.rdb, h.keys, h.value).Int()
	if err == nil && n != 1 {
		err = errNotOurs
	}
	return err
}

var errNotOurs = errors.New("the lock was not ours any more")

// relock.

type relockProcess struct {
	connection
	client *relock.Client
}

func openRelock(how through, options ...relock.Option) func(setup) (process, error) {
	return func(s setup) (process, error) {
		c, err := connect(s, how)
		if err != nil {
			return nil, err
		}
		all := options
		if s.ttl != 0 {
			all = append(all[:len(all):len(all)], relock.WithTTL(s.ttl))
		}
		client, err := relock.New(c.rdb, all...)
		if err != nil {
			return nil, err
		}
		return &relockProcess{c, client}, nil
	}
}

func (p *relockProcess) handle(lock string) handle { return relockHandle{p.client.NewLock(lock)} }

func (p *relockProcess) close() {
	_ = p.client.Close()
	p.connection.close()
}

type relockHandle struct{ l *relock.Lock }

func (h relockHandle) lock(ctx context.Context) (context.Context, error) { return h.l.Lock(ctx) }
func (h relockHandle) unlock(section context.Context) error              { return h.l.Unlock(section) }

func relockKey(lock string) string { return relock.DefaultPrefix + "{" + lock + "}" }

func relockQueued(ctx context.Context, rdb *redis.Client, lock string) (int, error) {
	n, err := rdb.ZCard(ctx, relockKey(lock)+":queue").Result()
	return int(n), err
}

// redsync.

func sameKey(lock string) []string { return []string{lock} }

type redsyncProcess struct {
	connection
	sync    *redsync.Redsync
	options []redsync.Option
}

func openRedsync(how through, options ...redsync.Option) func(setup) (process, error) {
	return func(s setup) (process, error) {
		c, err := connect(s, how)
		if err != nil {
			return nil, err
		}
		all := options
		if s.ttl != 0 {
			all = append(all[:len(all):len(all)], redsync.WithExpiry(s.ttl))
		}
		return &redsyncProcess{c, redsync.New(redsyncpool.NewPool(c.rdb)), all}, nil
	}
}

func (p *redsyncProcess) handle(lock string) handle {
	return redsyncHandle{p.sync.NewMutex(lock, p.options...)}
}

type redsyncHandle struct{ m *redsync.Mutex }

func (h redsyncHandle) lock(ctx context.Context) (context.Context, error) {
	for {
		err := h.m.LockContext(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx, err
		}
		var taken *redsync.ErrTaken
		if !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken) {
			return ctx, err
		}
	}
}

func (h redsyncHandle) unlock(ctx context.Context) error {
	ok, err := h.m.UnlockContext(ctx)
	if err == nil && !ok {
		err = errNotOurs
	}
	return err
}

// redislock.

type redislockProcess struct {
	connection
	client *redislock.Client
	ttl    time.Duration
	pause  time.Duration
}

func openRedislock(how through, pause time.Duration) func(setup) (process, error) {
	return func(s setup) (process, error) {
		c, err := connect(s, how)
		if err != nil {
			return nil, err
		}
		return &redislockProcess{c, redislock.New(c.rdb), cmp.Or(s.ttl, redislockTTL), pause}, nil
	}
}

func (p *redislockProcess) handle(lock string) handle {
	return &redislockHandle{p: p, name: lock, options: &redislock.Options{RetryStrategy: redislock.LinearBackoff(p.pause)}}
}

type redislockHandle struct {
	p       *redislockProcess
	name    string
	options *redislock.Options
	held    *redislock.Lock
}

func (h *redislockHandle) lock(ctx context.Context) (context.Context, error) {
	for {
		var err error
		h.held, err = h.p.client.Obtain(ctx, h.name, h.p.ttl, h.options)
		if err == nil || ctx.Err() != nil {
			return ctx, err
		}
		// Without a deadline of ctx, Obtain gives up after one TTL.
		if !errors.Is(err, redislock.ErrNotObtained) && !errors.Is(err, context.DeadlineExceeded) {
			return ctx, err
		}
	}
}

func (h *redislockHandle) unlock(ctx context.Context) error { return h.held.Release(ctx) }

// rueidislock.

func rueidislockKeys(n int) func(lock string) []string {
	return func(lock string) []string {
		keys := make([]string, n)
		for i := range keys {
			keys[i] = "rueidislock:" + strconv.Itoa(i) + ":" + lock
		}
		return keys
	}
}

type rueidislockProcess struct{ locker rueidislock.Locker }

func openRueidislock(o rueidislock.LockerOption) func(setup) (process, error) {
	return func(s setup) (process, error) {
		o := o
		o.ClientOption = rueidis.ClientOption{InitAddress: []string{s.addr}}
		o.KeyValidity = s.ttl
		locker, err := rueidislock.NewLocker(o)
		if err != nil {
			return nil, fmt.Errorf("rueidislock: %w", err)
		}
		return rueidislockProcess{locker}, nil
	}
}

func (p rueidislockProcess) handle(lock string) handle {
	return &rueidislockHandle{locker: p.locker, name: lock}
}

func (p rueidislockProcess) close() { p.locker.Close() }

type rueidislockHandle struct {
	locker rueidislock.Locker
	name   string
	cancel context.CancelFunc
}

func (h *rueidislockHandle) lock(ctx context.Context) (context.Context, error) {
	section, cancel, err := h.locker.WithContext(ctx, h.name)
	if err != nil {
		return ctx, err
	}
	h.cancel = cancel
	return section, nil
}

// unlock learns from the section's context whether the lock was held to the end.
func (h *rueidislockHandle) unlock(section context.Context) error {
	err := section.Err()
	h.cancel()
	if err != nil {
		return errNotOurs
	}
	return nil
}
