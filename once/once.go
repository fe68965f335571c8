// Package once does something once: it keeps the result of an operation under a key, and gives it
// to everybody who asks for the operation again.
//
// A lock orders operations, and a repeat after the lock is free runs again. An idempotency key says
// that two requests are the same operation. [Do] brings both together:
//
//	receipt, replayed, err := once.Do(ctx, o, "payment:"+id, func(ctx context.Context, a once.Attempt) (Receipt, error) {
//		return provider.Charge(ctx, amount)
//	}, once.Input(request))
//
// The first call runs the function, under a lock of package relock. Calls during the run wait for
// its result, and later calls get the result from Redis, in one round trip.
//
// No store can know what a function has done before its process died. Such an attempt is visible:
// [Attempt.Interrupted] is true for the next one, which can ask the outside world, and
// [FailIfInterrupted] refuses to run again. Where the effects are in a SQL database, package oncesql
// closes this gap, as the result commits with the effects.
//
// docs/IDEMPOTENCY.md says how to choose keys, and when to use what.
package once

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

// Errors of this package, for [errors.Is]. Wrong arguments and options are [relock.ErrInvalid].
var (
	// ErrMismatch reports a key that was used with another input. The function has not run.
	ErrMismatch = errors.New("once: the key was used with another input")

	// ErrInFlight reports an attempt of another call that had not ended when the caller would not
	// wait any longer. The function of this call has not run.
	ErrInFlight = errors.New("once: another attempt is running")

	// ErrInterrupted reports an earlier attempt that began and never ended, see
	// [FailIfInterrupted]. The function has not run.
	ErrInterrupted = errors.New("once: an earlier attempt was interrupted")

	// ErrNoResult reports an operation that was done, and whose result could not be kept: it was too
	// large, or no JSON. The function does not run again.
	ErrNoResult = errors.New("once: done, and the result is not kept")
)

// FailedError is the stored failure of an operation, see [Permanent].
type FailedError struct{ Text string }

func (e *FailedError) Error() string { return e.Text }

// permanent is an error that is the result of an operation.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent marks an error of a function as the final result of the operation: the error is stored,
// and later calls get it as a [*FailedError] without a run. Other errors are not stored. nil stays
// nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

// Once keeps operations of one kind. A Once is safe for concurrent use.
type Once struct {
	locks    *relock.Client
	rdb      redis.UniversalClient
	settings settings
	news     *news

	mu     sync.Mutex
	groups map[string]*group // by record
}

type settings struct {
	retention time.Duration
	limit     int
	interrupt bool // an interrupted attempt is the last one
	lock      []relock.Option
	err       error
}

// Option is a setting of a [Once].
type Option func(*settings)

// DefaultRetention is the time for which results are kept.
const DefaultRetention = 24 * time.Hour

// DefaultMaxResult is the longest result in bytes.
const DefaultMaxResult = 1 << 20

// WithRetention sets the time for which Redis keeps a result, and the note of an attempt that never
// ended. After it, the same key is a new operation. The default is [DefaultRetention]; d is whole
// milliseconds of at least a second.
func WithRetention(d time.Duration) Option {
	return func(s *settings) {
		if d < time.Second || d%time.Millisecond != 0 {
			s.err = fmt.Errorf("%w: WithRetention(%s): must be whole milliseconds, at least 1s", relock.ErrInvalid, d)
		}
		s.retention = d
	}
}

// WithMaxResult sets the longest result in bytes of JSON. A longer one is [ErrNoResult]. The
// default is [DefaultMaxResult]. All who wait get the result in a message, so keep it small.
func WithMaxResult(n int) Option {
	return func(s *settings) {
		if n < 1 {
			s.err = fmt.Errorf("%w: WithMaxResult(%d): must be at least 1 byte", relock.ErrInvalid, n)
		}
		s.limit = n
	}
}

// FailIfInterrupted makes [Do] return [ErrInterrupted] if an earlier attempt began and never ended,
// for operations that may not run twice in any case, such as payments. Find out what has happened,
// and remove the record with [Once.Forget].
func FailIfInterrupted() Option { return func(s *settings) { s.interrupt = true } }

// WithLockOptions sets options for the locks of attempts, such as [relock.WithTTL]: a crashed
// attempt holds up the next one for one TTL.
func WithLockOptions(options ...relock.Option) Option {
	return func(s *settings) { s.lock = append(s.lock, options...) }
}

// New makes a Once over the locks of a client, which must keep them in Redis in relock's own layout.
// Its records are beside the locks, under the client's prefix. All processes that share keys must
// have the same prefix. New does not talk to Redis. Errors: [relock.ErrInvalid].
func New(locks *relock.Client, options ...Option) (*Once, error) {
	s := settings{retention: DefaultRetention, limit: DefaultMaxResult}
	for _, option := range options {
		option(&s)
	}
	switch {
	case locks == nil || locks.Redis() == nil:
		return nil, fmt.Errorf("%w: once.New needs a relock.Client whose locks are in Redis", relock.ErrInvalid)
	case s.err != nil:
		return nil, s.err
	}
	lock := locks.NewLock("once", s.lock...)
	switch {
	case lock.Err() != nil:
		return nil, lock.Err()
	case !strings.Contains(lock.Key(), "{"):
		return nil, fmt.Errorf("%w: once.New needs locks in relock's own layout, and not in Redisson's", relock.ErrInvalid)
	}
	rdb := locks.Redis()
	return &Once{
		locks: locks, rdb: rdb, settings: s, groups: make(map[string]*group),
		news: newNews(rdb, lock.Key()+":"+locks.ID()+":"+rand.Text()),
	}, nil
}

// Close ends the subscription of the Once. Calls in flight go on, and ask Redis again at times in
// place of waiting for a message. The client is the caller's to close.
func (o *Once) Close() error { return o.news.close() }

// Attempt is one run of a function.
type Attempt struct {
	Key    string
	Number int // of the attempt: 1, and one more after each interrupted attempt
	// Interrupted says that an earlier attempt began and never ended: its process died, it lost its
	// lock, or its context ended. It may have done anything, and may even be running still.
	Interrupted bool

	lock *relock.Lock
}

// Token returns the fencing token of the attempt, see [relock.Lock.Token]. ctx is the context of
// the function.
func (a Attempt) Token(ctx context.Context) (int64, error) { return a.lock.Token(ctx) }

// CallOption is a setting of one call of [Do].
type CallOption func(*call)

// Input makes the call an operation on an input: the same key with another input is [ErrMismatch].
// Redis keeps the SHA-256 of the input's JSON.
func Input(input any) CallOption {
	return func(c *call) {
		data, err := json.Marshal(input)
		if err != nil {
			c.err = fmt.Errorf("%w: Input: %w", relock.ErrInvalid, err)
		}
		sum := sha256.Sum256(data)
		c.input = hex.EncodeToString(sum[:])
	}
}

// NoWait makes the call return [ErrInFlight] at once while another attempt is running.
func NoWait() CallOption { return func(c *call) { c.noWait = true } }

// WaitFor bounds the time for which the call waits for another attempt; then it returns
// [ErrInFlight]. The time is no limit of the call's own attempt, as the end of ctx is. d must be
// above 0.
func WaitFor(d time.Duration) CallOption {
	return func(c *call) {
		if d <= 0 {
			c.err = fmt.Errorf("%w: WaitFor(%s): must be above 0; NoWait does not wait", relock.ErrInvalid, d)
		}
		c.over = time.After(d)
	}
}

// call is one call of Do.
type call struct {
	key, attempt, input string
	noWait              bool
	over                <-chan time.Time // of WaitFor
	err                 error

	lock            *relock.Lock
	record, waiters string
	run             func(context.Context, Attempt) ([]byte, error)
}

// MaxKeyLen is the longest key in bytes.
const MaxKeyLen = 1024

// newCall makes the call for a key of any bytes.
func (o *Once) newCall(key string, options []CallOption) (*call, error) {
	if key == "" || len(key) > MaxKeyLen {
		return nil, fmt.Errorf("%w: once: a key has 1 to %d bytes, and not %d", relock.ErrInvalid, MaxKeyLen, len(key))
	}
	c := &call{key: key, attempt: rand.Text(), lock: o.locks.NewLock(lockName(key), o.settings.lock...)}
	for _, option := range options {
		option(c)
	}
	c.record, c.waiters = c.lock.Key()+":once", c.lock.Key()+":waiters"
	return c, errors.Join(c.err, c.lock.Err())
}

// lockName returns the name of the lock for a key: the key itself if it is readable, otherwise its
// hash.
func lockName(key string) string {
	isOdd := func(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }
	if len(key) > 200 || strings.ContainsFunc(key, isOdd) || strings.HasPrefix(key, "#") {
		sum := sha256.Sum256([]byte(key))
		key = "#" + hex.EncodeToString(sum[:])
	}
	return "once:" + key
}

// Do runs fn if the operation of the key was not done yet, and returns its result, or returns the
// stored result with replayed true. At most one attempt of a key runs at a time, across processes.
// Calls meanwhile wait for its result, or until ctx is done ([ErrInFlight], and ctx's error). The
// result is stored as JSON.
//
// fn gets the context of a section, which ends when ctx ends and when the lock is lost. Then fn
// should return. What fn returns decides:
//   - nil: the result is stored, and told to all who wait.
//   - a [Permanent] error: the error is stored.
//   - any other error: nothing is stored. It says that nothing has happened, and one of the calls
//     that wait runs its own fn. If the context of fn has ended by then, nobody knows what has
//     happened, and the attempt counts as interrupted.
//   - a panic goes on to the caller, and the attempt counts as interrupted.
//
// Errors: those of fn; [ErrMismatch], [ErrInFlight], [ErrInterrupted] and [ErrNoResult];
// [*FailedError]; and those of [relock.Lock.TryLockIf] without a run of fn. If fn has run and its
// result could not be stored, Do returns the result together with an error: [relock.ErrLockLost],
// as a later attempt may have begun, or the error of Redis. Then the next attempt is told of an
// interrupted one.
func Do[T any](ctx context.Context, o *Once, key string, fn func(ctx context.Context, a Attempt) (T, error),
	options ...CallOption) (result T, replayed bool, err error) {
	c, err := o.newCall(key, options)
	if err != nil {
		return result, false, err
	}
	c.run = func(ctx context.Context, a Attempt) ([]byte, error) {
		var err error
		if result, err = fn(ctx, a); err != nil {
			return nil, err
		}
		data, bad := json.Marshal(result)
		if bad != nil || len(data) > o.settings.limit {
			data = nil // the operation is done all the same, see ErrNoResult
		}
		return data, nil
	}
	stored, replayed, err := o.do(ctx, c)
	if err != nil || !replayed {
		return result, false, err
	}
	err = stored.decode(&result)
	return result, true, err
}

// Forget removes the record of a key, so that the operation may run again: for an operator who has
// found out what an interrupted attempt has done. While an attempt is running, Forget is
// [relock.ErrLocked].
func (o *Once) Forget(ctx context.Context, key string) error {
	c, err := o.newCall(key, nil)
	if err != nil {
		return err
	}
	section, _, err := c.lock.TryLockIf(ctx, "redis.call('DEL', KEYS[1]) return true", []string{c.record})
	if err != nil {
		return err
	}
	return c.lock.Unlock(section)
}
