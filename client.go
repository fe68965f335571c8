package relock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"strconv"
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
// A Client has no goroutine and no connection of its own until one of its locks is used.
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
	if _, err := s.Check(store.Ask{Name: "check", TTL: c.settings.ttl, Limit: 1, Acks: c.settings.acks}); err != nil {
		return nil, asInvalid(err)
	}
	return c, nil
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
// reported here or at its end, whichever comes first. close returns the work to do without the mutex.
func (t *table) close(c *Client) (todo []func()) {
	t.mu.Lock()
	t.closed = true
	c.end(ErrClosed)
	t.mu.Unlock()
	todo = append(todo, c.reportLeaks, c.hearAsks)
	t.each(func(h *hold) {
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
		if h.state == held && c.settings.releaseOnClose {
			t.finishLocked(h, ErrClosed)
			ask := h.lease.Ask
			todo = append(todo, func() { c.cleanup.add(h, ask, h.longest()) })
		}
	})
	return todo
}

func (c *Client) isClosed() bool { return c.life.Err() != nil }

// isOf says whether e is an entry of this client. Another client numbers its holds by itself.
func (c *Client) isOf(e *entry) bool { return e.hold.client == c }

// stopper ends a context early.
type stopper interface{ Stop() }

// bound returns a context that ends with ctx, with the client, and after wait if wait is above 0.
func (c *Client) bound(ctx context.Context, wait time.Duration) (context.Context, stopper) {
	switch {
	case wait > 0:
		e := lifetime.EndingAfter(ctx, c.life, wait, errWaitOver)
		return e, e
	case ctx.Done() == nil:
		return lifetime.Of(c.life, ctx), endless{}
	default:
		e := lifetime.EndingWith(ctx, c.life)
		return e, e
	}
}

type endless struct{}

func (endless) Stop() {}

// boundCall is bound for a call that asks for a lock: the stop around caller ends the context, too.
func (c *Client) boundCall(ctx, caller context.Context, wait time.Duration) (context.Context, stopper) {
	ctx, end := c.bound(ctx, wait)
	ctx, cancel := stoppable(ctx, caller)
	if cancel == nil {
		return ctx, end
	}
	return ctx, both{stopFunc(cancel), end}
}

// answerLimit is how long a call that does not wait gives a store to answer, or a little longer.
const answerLimit = 2 * time.Second

// boundAsk is boundCall for the ask of a call, which has answerLimit if it does not wait.
func (c *Client) boundAsk(ctx, caller context.Context, wait time.Duration, acks store.Acks) (context.Context, stopper) {
	ctx, end := c.boundCall(ctx, caller, wait)
	var limited *lifetime.Ending
	switch {
	case wait != 0:
		return ctx, end
	case acks.Timeout > 0:
		limited = lifetime.EndingAfter(ctx, c.life, answerLimit+acks.Timeout, errSilent)
	default:
		limited = lifetime.EndingWith(ctx, c.answers.At(time.Now()))
	}
	return limited, both{limited, end}
}

type both struct{ inner, outer stopper }

func (b both) Stop() { b.inner.Stop(); b.outer.Stop() }

type stopFunc context.CancelFunc

func (f stopFunc) Stop() { f() }

func (c *Client) log(l *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	c.events.Log(l, level, msg, attrs...)
}

// newID names a hold of a holder, and makes a holder if holder is zero. One counter numbers both,
// so that the last number of an ID is unique in the client. The number ends with random digits:
// errors and logs show the holder, and nobody can make the ticket of a hold from its holder.
func (c *Client) newID(holder Holder) (store.ID, Holder) {
	n := c.numbers.Add(1)
	var room [128]byte
	id := append(room[:0], holder...)
	if holder == "" {
		id = strconv.AppendInt(append(append(id, c.id...), ':'), n, 10)
	}
	end := len(id)
	id = strconv.AppendInt(append(id, ':'), n, 10)
	name := string(strconv.AppendUint(id, secretDigits(), 10))
	return store.ID(name), Holder(name[:end]) // both in one allocation
}

// randomDigits is the number of digits of secretDigits.
const randomDigits = 12

// secretDigits returns a random number of randomDigits digits.
func secretDigits() uint64 {
	const least, most = 100_000_000_000, 1_000_000_000_000
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return least + binary.NativeEndian.Uint64(random[:])%(most-least)
}
