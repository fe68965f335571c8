package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/events"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/store"
)

// Client is where the locks of one process come from, see [Client.NewLock]. Make a Client for the
// life of the process, and call [Client.Close] at the end. A Client is safe for concurrent use.
//
// A Client has no connection of its own, and no goroutine but the one that calls its logger, until
// one of its locks is used.
type Client struct {
	id       string
	settings settings
	store    store.Store
	races    bool // the store wants the waiters of a client behind each other
	events   *events.Worker
	group    group.Group // goroutines, and calls that take a lock
	watchdog *watchdog
	cleanup  *cleanup

	life     context.Context // ends with Close
	end      context.CancelCauseFunc
	once     sync.Once
	endStore func()       // closes the store that New has made, once; nil: the store is the caller's
	numbers  atomic.Int64 // of holders and holds
	quiet    atomic.Int64 // no warning before of a command that is sent again, see reporter
	hinted   sync.Map     // lines of the program that waitsForItself has warned of
	strays   atomic.Int64 // as quiet, of an Unlock outside of all sections of its lock
	answers  lifetime.Moments
	asks     asks
	table    table
}

// Open makes a Client that keeps its locks in s. The options are the defaults for the client's
// locks; [WithPrefix], [WithRestartDelay], [WithRedissonLayout] and [WithRedissonFencing] are
// refused, as all four are about Redis. s stays the caller's: s must outlive the Client, and Close
// does not close s. Open does not talk to the store.
//
// Errors: [ErrInvalid].
func Open(s store.Store, options ...Option) (*Client, error) {
	if isNil(s) {
		return nil, invalid("the store is nil")
	}
	set, err := defaults().with(options, ofLock, ofClient)
	if err != nil {
		return nil, err
	}
	c, err := newClient(set)
	if err != nil {
		return nil, err
	}
	return c.use(s)
}

// newClient makes a client without a store.
func newClient(s settings) (*Client, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, err
	}
	c := &Client{id: id.String(), settings: s, table: newTable()}
	if s.owner != "" {
		c.id = s.owner + "/" + c.id
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	var onDrop func(int)
	if dropped := s.hooks.Dropped; dropped != nil {
		onDrop = func(n int) { dropped(event.Dropped{Events: n}) }
	}
	c.events = events.New(s.logger, onDrop)
	c.group.Panicked = func(reason any) { c.events.Panicked(s.logger, "relock: the store panicked", reason) }
	c.answers.Length, c.answers.Shared, c.answers.Cause = answerLimit, answerLimit/20, errSilent
	c.watchdog = &watchdog{client: c, wake: make(chan struct{}, 1), armed: timers.Never, watchAt: timers.Never}
	c.cleanup = &cleanup{client: c, wake: make(chan struct{}, 1)}
	return c, nil
}

// use gives the client its store, if the store can serve the client's options.
func (c *Client) use(s store.Store) (*Client, error) {
	c.store = s
	racing, is := s.(store.Racing)
	c.races = is && racing.Races()
	claim := store.Claim{Name: "check", TTL: c.settings.ttl, Limit: 1, Acks: c.settings.acks, Keeps: c.settings.keep > 0}
	if _, err := c.checkClaim(claim); err != nil {
		return nil, err
	}
	return c, nil
}

// checkClaim returns a claim in the spelling of the store, or the reason why it cannot be served.
func (c *Client) checkClaim(a store.Claim) (store.Claim, error) {
	if a.Keeps {
		_, is := c.store.(store.Asking)
		switch {
		case a.Kind != store.Mutex:
			return a, invalid("WithKeep: it is for mutexes, and not for %s; WithKeep(0) takes it back", a.Kind)
		case !is, c.races:
			return a, invalid("WithKeep: %w: the store has no queue, or cannot tell a client that somebody wants its lock", errors.ErrUnsupported)
		}
	}
	a, err := c.store.Check(a)
	return a, asInvalid(err)
}

// NewLock returns the lock called name, 1 to [MaxNameLen] bytes. NewLock does not talk to the
// store. Locks are cheap: make a Lock for each use, or keep the Lock. Two Locks of one name are the
// same lock.
//
// In Redis a name with a hash tag, such as "{user:7}:cart", is used unchanged, so several locks can
// share a cluster slot. Other names get a hash tag ("x" and "{x}" are the same lock). NewLock
// refuses a name such as "}", as its keys would have no slot in common, and a name such as
// "{x}:queue" or "{x}:token", a key of another lock. With [WithRedissonLayout] every name is used
// unchanged, and in a cluster NewLock refuses a name if Redisson would put its key and its channel
// into different slots.
//
// Every method of the lock with an error result reports a wrong name or option, or a demand beyond
// the store ([errors.ErrUnsupported]), as [ErrInvalid]. [Lock.Err] reports the same error.
func (c *Client) NewLock(name string, options ...Option) *Lock {
	return c.newLock(store.Claim{Name: name, Kind: store.Mutex, Limit: 1}, options)
}

func (c *Client) newLock(claim store.Claim, options []Option) *Lock {
	if c == nil || c.store == nil {
		return &Lock{name: claim.Name, settings: &settings{}, err: errZeroClient}
	}
	l := &Lock{client: c, name: claim.Name, settings: &c.settings}
	if len(options) > 0 {
		s, err := c.settings.with(options, ofLock)
		if err != nil {
			l.err = err
			return l
		}
		l.settings = &s
	}
	if l.settings.maxWaiters > 0 && c.races {
		l.err = invalid("WithMaxWaiters(%d): the waiters of this store race, and have no queue to count", l.settings.maxWaiters)
		return l
	}
	if l.err = checkName(claim.Name); l.err == nil {
		claim.Report = (*reporter)(l)
		claim.TTL, claim.Delay, claim.Acks, claim.Keeps = l.settings.ttl, l.settings.delay, l.settings.acks, l.settings.keep > 0
		l.claim, l.err = c.checkClaim(claim)
	}
	return l
}

// Check asks the store for everything that mutexes with the client's options will need (in Redis:
// commands, pub/sub, replicas), and returns nil, or one error that names all missing parts, or the
// first. A server that does not serve is a single line. Check takes at most 3 s, 6 s with a quorum,
// and the time of [WithReplicaAcks]. In Redis Check does not ask for the six commands that only
// other kinds of locks, loans and the search for deadlocks need, see docs/OPERATIONS.md. Check is
// for the start of a process. Check leaves nothing in the store. The text of an error has a line
// for each missing part. Errors: ctx's, [ErrUnavailable], errors of the store.
func (c *Client) Check(ctx context.Context) error {
	l := c.NewLock("check")
	if err := l.check(ctx); err != nil {
		return err
	}
	ctx = &lifetime.Guarded{Context: ctx}
	claim := l.claim
	claim.ID, _ = c.newID("")
	var err error
	if checker, is := c.store.(store.Checker); is {
		err = checker.CheckServer(ctx, claim)
	} else {
		_, err = c.store.Look(ctx, claim)
	}
	if err != nil {
		err = fmt.Errorf("relock: %w", err)
	}
	return err
}

// ID returns the name of this client: a UUID, with the name of [WithOwner] in front, if one is
// given. The name of each holder of this client begins with the ID, so a refusal, [State] or a log
// line leads to the process with the same ID in its log.
func (c *Client) ID() string { return c.id }

// Close ends the client. Calls that wait for a lock return [ErrClosed], as do later calls. The
// contexts of open sections end with ErrClosed as their cause. Nothing is renewed any more, so a
// lock without Unlock is free after its TTL. Unlock still works. With [WithReleaseOnClose] Close
// frees all held locks.
//
// When Close returns, every goroutine and connection of the client is gone, and the hooks have seen
// every earlier event. Close waits at most 5 s for a hook that hangs. Close takes milliseconds if
// the store answers. If a Redis server is silent, Close takes until go-redis gives up the commands
// in flight: its ReadTimeout, up to four times its ReadTimeout for new connections, and the time of
// DialTimeout and DialerRetries if not even dialling gets an answer. An Unlock in flight can hold
// up Close until the Unlock gives up (10 s).
//
// Closing twice is allowed; both calls wait. Close always returns nil.
func (c *Client) Close() error {
	if c.store == nil { // a zero Client has nothing to end
		return nil
	}
	c.once.Do(func() {
		c.group.Close()
		for _, end := range c.table.close(c) {
			end()
		}
	})
	c.group.Wait() // outside of once, so that a second Close waits where fake time goes on
	c.answers.End()
	if c.endStore != nil {
		c.endStore()
	}
	c.events.Close(hookLimit)
	return nil
}

// hookLimit bounds the wait of Close for a hook that hangs.
const hookLimit = 5 * time.Second

// close ends the life of the client and reports the end of each hold: each hold ends before, or is
// reported here or at its end, whichever comes first. close returns the work to do without the
// mutex.
func (t *table) close(c *Client) (todo []func()) {
	t.mu.Lock()
	t.closed = true
	c.end(ErrClosed)
	t.mu.Unlock()
	todo = append(todo, c.reportLeaks, c.hearAsks)
	t.each(t.holds, func(h *hold) {
		if h.state == over { // and has passed its lease on
			return
		}
		t.foundLocked(h)
		for _, cancel := range h.cancelsLocked() {
			todo = append(todo, func() { cancel(ErrClosed) })
		}
		if report := t.endEventLocked(h, nil); report != nil {
			c.events.Emit(report)
		}
		if h.state == held && (h.kept || c.settings.releaseOnClose) {
			t.finishLocked(h, ErrClosed)
			claim := h.lease.Claim
			todo = append(todo, func() { c.cleanup.add(h, claim, h.longest()) })
		}
	})
	return todo
}

func (c *Client) isClosed() bool { return c.life.Err() != nil }

// isOf says whether e is an entry of this client. Another client numbers its holds by itself.
func (c *Client) isOf(e *entry) bool { return e.hold.client == c }

func (c *Client) log(l *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	c.events.Log(l, level, msg, attrs...)
}
