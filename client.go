package relock

import (
	"context"
	"log/slog"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Client is what the locks of one go-redis client share: one watchdog, one pub/sub connection for each Redis node, one
// table of holds. Make one for the life of the process, and [Client.Close] it at the end. It is safe for concurrent use.
//
// Until one of its locks is used a Client has no goroutine and no connection of its own.
type Client struct {
	id       string
	settings settings
	layout   layout
	wire     *wire
	table    *table
	watchdog *watchdog
	hub      *hub
	orphans  *orphans
	events   *events
	workers  *workers

	life      context.Context // ends with Close
	closed    <-chan struct{} // when it ends
	end       context.CancelFunc
	closeOnce sync.Once
}

// New makes a Client that keeps its locks in Redis behind rdb. The options are the defaults for the client's locks. rdb is
//   - a [redis.Client], for a standalone server or one behind Sentinel, or the AutoPipeline of one;
//   - a [redis.ClusterClient];
//   - or a struct that embeds one of these.
//
// Others are refused: a [redis.Ring], an AsyncAutoPipeline, the AutoPipeline of a ClusterClient.
//
// New does not talk to Redis. rdb stays the caller's: it must outlive the Client, and Close does not close it. Its
// timeouts bound how long a goroutine of the Client can hang on a server that is silent. Commands share its pool of
// connections with the caller's: where all are in use, they wait for one as go-redis does (PoolTimeout).
//
// Hooks of rdb may delay, refuse or end commands, but must not do two things. None may return ctx.Err() in place of go-redis's error
// for a command that was sent: that hides that the command may still run, and what a call has left behind can then stay for a TTL.
// And none may send a command again: an Unlock whose script has run already would find nothing, and say that the lock was lost.
//
// Errors: [ErrInvalid].
func New(rdb redis.UniversalClient, options ...Option) (*Client, error) {
	if rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil() {
		return nil, invalid("the go-redis client is nil")
	}
	if err := checkKind(rdb); err != nil {
		return nil, err
	}
	s, err := defaults().with(options)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, err
	}
	c := &Client{
		id:       id.String(),
		settings: s,
		layout:   native{},
		table:    newTable(),
		workers:  newWorkers(),
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.closed = c.life.Done()
	c.events = newEvents(c)
	c.watchdog = newWatchdog(c)
	c.orphans = newOrphans(c)
	c.hub = newHub(c)
	c.wire = &wire{rdb: rdb, client: c.id, patience: readTimeout(rdb), workers: c.workers, orphans: c.orphans, mapping: make(chan struct{}, 1), retried: c.retried}
	c.wire.cluster, _ = rdb.(clusterClient)
	c.wire.lanes.init(c.wire)
	// A cluster client with slots of its own is one for servers that are no cluster: masters and replicas of Sentinel.
	cluster := c.wire.cluster != nil && c.wire.cluster.Options().ClusterSlots == nil
	c.wire.sharded.Store(cluster)
	if s.redisson {
		c.layout = newRedisson(cluster)
	}
	if err := c.checkAcks(s); err != nil {
		return nil, err
	}
	c.settings.ofClient = true
	return c, nil
}

// What tells the clients of go-redis apart, also where one is embedded in a struct of the caller's.
type (
	plainClient   interface{ Options() *redis.Options }
	clusterClient interface {
		Options() *redis.ClusterOptions
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
		ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error
		ReloadState(ctx context.Context)
	}
)

// checkKind refuses what cannot send a script and wait for the answer, and what spreads commands over servers without telling which.
func checkKind(rdb redis.UniversalClient) error {
	switch rdb := rdb.(type) {
	case plainClient, clusterClient:
		return nil
	case interface{ Options() *redis.RingOptions }:
		return invalid("redis.Ring is not supported: use a redis.Client, or a redis.ClusterClient")
	case interface{ IsBlocking() bool }:
		if !rdb.IsBlocking() {
			return invalid("an AsyncAutoPipeline is not supported, as it does not wait for answers: use AutoPipeline, or the client itself")
		}
	}
	single := false // without keys, nothing is sent, and only a client of one server calls the function
	_ = rdb.Watch(context.Background(), func(*redis.Tx) error { single = true; return nil })
	if !single {
		return invalid("%T of several servers is not supported, as it does not tell where a lock is: use the redis.ClusterClient itself", rdb)
	}
	return nil
}

// readTimeout is how long the go-redis client waits for a reply; hardly ever, if it has no limit.
func readTimeout(rdb redis.UniversalClient) time.Duration {
	var d time.Duration
	switch rdb := rdb.(type) {
	case plainClient:
		d = rdb.Options().ReadTimeout
	case clusterClient:
		d = rdb.Options().ReadTimeout
	}
	if d <= 0 {
		return math.MaxInt64
	}
	return d
}

// checkAcks refuses a WAIT that go-redis would give up before Redis answers.
func (c *Client) checkAcks(s settings) error {
	if s.acks > 0 && s.acksTimeout >= c.wire.patience {
		return invalid("WithReplicaAcks(%d, %s): the timeout must be shorter than the go-redis client's ReadTimeout (%s)",
			s.acks, s.acksTimeout, c.wire.patience)
	}
	return nil
}

// ID returns the UUID with which the name of each holder begins that this client makes, as a [LockedError], [State] and the logs show
// it. Log it at the start of a process, and such a name says which process has the lock. (Holders that [NewHolder] makes begin with a UUID
// that all clients of their process share.)
func (c *Client) ID() string { return c.id }

// NewLock returns the lock of that name, 1 to [MaxNameLen] bytes. It does not talk to Redis. Locks are cheap: make one
// where it is needed, or keep it; two of the same name and prefix are the same lock.
//
// A name with a Redis hash tag, such as "{user:7}:cart", is used as it is, so that several locks can share a cluster
// slot; other names get one ("x" and "{x}" are the same lock). Refused are a name such as "}", whose keys would have no slot in
// common, and one such as "{x}:queue" or "{x}:token", a key of another lock. With [WithRedissonLayout] every name is used as it is, and
// in a cluster one whose key and channel Redisson would put into different slots is refused.
//
// A wrong name or option is told by every method of the lock that returns an error ([ErrInvalid]), and by [Lock.Err].
func (c *Client) NewLock(name string, options ...Option) *Lock {
	l := &Lock{client: c, name: name, settings: &c.settings}
	if len(options) > 0 {
		s, err := c.settings.with(options)
		if err == nil {
			err = c.checkAcks(s)
		}
		if err != nil {
			l.err = err
			return l
		}
		l.settings = &s
	}
	l.keys, l.err = c.layout.place(l.settings, name)
	return l
}

// Close ends the client: calls that wait for a lock return [ErrClosed], as do later ones; the contexts of open sections
// end with ErrClosed as their cause; nothing is renewed any more, so what is not unlocked is free after its TTL. Unlock
// still works. When Close returns, every goroutine and connection of the client is gone, and the hooks have seen every
// event before it; a hook that does not return is waited for 5 s, and left. Where the server answers, Close takes
// milliseconds. Where it is silent, Close takes until go-redis gives up the commands that are on the wire: its ReadTimeout, and
// up to four times that for new connections; where not even dialling gets an answer, what its DialTimeout and DialerRetries
// allow. Calls of Unlock that are trying to reach Redis then can hold it up until they give up (10 s), and calls of State and
// ForceUnlock for as long as there are any.
//
// Closing twice is allowed; both calls wait. It always returns nil.
func (c *Client) Close() error {
	c.closeOnce.Do(func() {
		c.workers.close()
		cancels, leaks := c.table.close(c)
		c.wire.lanes.close()
		for _, cancel := range cancels {
			cancel(ErrClosed)
		}
		for _, l := range leaks {
			l.tell(time.Since(l.hold.since))
		}
	})
	c.workers.wait()
	c.events.close()
	return nil
}

func (c *Client) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// returnGrant gives back a grant that no waiter waits for, unless its hold is known: then the waiter has learnt of it
// by asking.
func (c *Client) returnGrant(base, id string) {
	c.table.mu.Lock()
	h := c.table.holds[holdKey{base, holderOf(id)}]
	known := h != nil && h.id == id || c.table.isGivenLocked(base, id)
	c.table.mu.Unlock()
	if !known {
		c.orphans.add(&hold{client: c, keys: keysAt(base, base), holder: holderOf(id), tenure: &tenure{id: id, index: -1}, settings: &c.settings}, false)
	}
}

// manyTries is after how many a call that Redis does not answer is worth a warning: about a quarter of a second, or longer. The next
// one comes with twice as many, so that a thousand calls that wait for Redis do not fill the log. Idle connections that had ended do
// not count: where a server has ended dozens, they are all found out at once, and the call is answered.
const manyTries = 8

func (c *Client) retried(r *request, attempt, tries int, err error) {
	level := slog.LevelDebug
	if tries >= manyTries && tries&(tries-1) == 0 {
		level = slog.LevelWarn
	}
	c.events.log(c.settings.logger, level, "relock: sending a script again",
		slog.String("script", r.script.name), slog.String("lock", r.name), slog.Int("attempt", attempt), slog.Any("error", err))
	if c.settings.hooks.Retried != nil {
		event := Retried{Name: r.name, Script: r.script.name, Attempt: attempt, Err: err}
		c.events.emit(func() { c.settings.hooks.Retried(event) })
	}
}

func (c *Client) reconnected(node string, down time.Duration) {
	c.events.log(c.settings.logger, slog.LevelInfo, "relock: pub/sub connection is back", slog.String("node", node))
	if c.settings.hooks.Reconnected != nil {
		c.events.emit(func() { c.settings.hooks.Reconnected(Reconnected{Node: node, Down: down}) })
	}
}

// workers counts the goroutines of a client, and the calls that take a lock, so that Close can wait for them. Not counted are the
// goroutine of the hooks, for which events.close waits, and callbacks of timers, which do not block.
type workers struct {
	count atomic.Int64 // oneWorker for each that runs, and workersClosed
	mu    sync.Mutex
	idle  *sync.Cond
}

const (
	workersClosed = 1
	oneWorker     = 2
)

func newWorkers() *workers {
	w := &workers{}
	w.idle = sync.NewCond(&w.mu)
	return w
}

// add counts a goroutine that the caller starts, and that calls leave at its end.
func (w *workers) add() { w.count.Add(oneWorker) }

// start runs f in a goroutine. It works after Close too, for the Unlock of a section that outlives the client.
func (w *workers) start(f func()) {
	w.add()
	go w.run(f)
}

// startOpen is start for goroutines that a closed client must not begin. It says whether it did.
func (w *workers) startOpen(f func()) bool {
	if !w.enter() {
		return false
	}
	go w.run(f)
	return true
}

func (w *workers) run(f func()) {
	defer w.leave()
	f()
}

// enter counts a call like a goroutine, so that Close waits for it and for what it still has to clean up. false: closed.
func (w *workers) enter() bool {
	if w.count.Load()&workersClosed != 0 { // else calls on a closed client would hold up Close
		return false
	}
	if w.count.Add(oneWorker)&workersClosed == 0 {
		return true
	}
	w.leave()
	return false
}

func (w *workers) leave() {
	if w.count.Add(-oneWorker) == workersClosed {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.idle.Broadcast()
	}
}

// close lets no long-lived goroutine, and no call, begin any more.
func (w *workers) close() { w.count.Or(workersClosed) }

// wait returns when nothing is left running, after close.
func (w *workers) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.count.Load() >= oneWorker {
		w.idle.Wait()
	}
}
