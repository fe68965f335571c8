// Package once does something once: the result of an operation is kept under a key, and given to
// everybody who asks for the operation again.
//
// A lock orders operations, and a repeat after the lock is free runs again. An idempotency key says
// that two requests are the same operation. [Do] brings both together:
//
//	charge := func(ctx context.Context, a once.Attempt) (Receipt, error) {
//		return provider.Charge(ctx, amount)
//	}
//	receipt, replayed, err := once.Do(ctx, o, "payment:"+id, charge, once.Input(request))
//
// The first call runs the function, under a lock of package relock. Calls during the run wait for
// its result, and later calls get the result from Redis, in one round trip.
//
// No store can know the work of a function before its process died. Such an attempt is visible:
// [Attempt.Interrupted] is true for the next attempt, which can ask the outside world, and
// [FailIfInterrupted] refuses to run again. If the effects are in a SQL database, package oncesql
// closes this gap, as the result commits with the effects.
//
// once/README.md says how to choose keys, and when to use which package.
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
	"github.com/go-relock/relock/internal/group"
)

// Errors of this package, for [errors.Is]. Wrong arguments and options are [relock.ErrInvalid].
var (
	// ErrMismatch reports a key that was used with another input. The function has not run.
	ErrMismatch = errors.New("once: the key was used with another input")

	// ErrInFlight reports a running attempt of another call, at the end of the caller's wait. The
	// function of this call has not run.
	ErrInFlight = errors.New("once: another attempt is running")

	// ErrInterrupted reports an earlier attempt that began and never ended, see
	// [FailIfInterrupted]. The function has not run.
	ErrInterrupted = errors.New("once: an earlier attempt was interrupted")

	// ErrNoResult reports an operation that was done without a result to keep: the result was too
	// large, or no JSON. The function does not run again.
	ErrNoResult = errors.New("once: done, and the result is not kept")
)

// FailedError is the stored failure of an operation, see [Permanent].
type FailedError struct{ Text string }

func (e *FailedError) Error() string { return e.Text }

// permanent is an error that is the result of an operation.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// unknown is an error after which the work of a function is unknown.
type unknown struct{ error }

func (u unknown) Unwrap() error { return u.error }

// marked is an error of a function whose mark has had its effect. An operation around this
// operation decides anew.
type marked struct {
	err    error
	stored bool
}

func (m marked) Error() string        { return m.err.Error() }
func (m marked) Is(target error) bool { return errors.Is(m.err, target) }

// As finds everything but the mark, and a FailedError if the error is stored.
func (m marked) As(target any) bool {
	switch target := target.(type) {
	case *permanent, *unknown:
		return false
	case **FailedError:
		if m.stored {
			*target = &FailedError{Text: m.Error()}
			return true
		}
	}
	return errors.As(m.err, target)
}

// Unknown marks an error of a function after which nobody knows the outcome, such as a timeout of a
// payment provider. The attempt counts as interrupted. nil stays nil.
func Unknown(err error) error {
	if err == nil {
		return nil
	}
	return unknown{err}
}

// Permanent marks an error of a function as the final result of the operation: the text of the
// function's error is stored, and all calls get a [*FailedError], the first one together with its
// own error. Other errors are not stored. nil stays nil.
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

	background group.Group // attempts that are taken back

	mu    sync.Mutex
	peers map[string]*peers // by record
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

// WithRetention sets the time for which Redis keeps a result. Afterwards, the same key is a new
// operation. The default is [DefaultRetention]; d is whole milliseconds of at least a second. The
// note of an attempt is kept for the same time from its begin, and for a day at least.
func WithRetention(d time.Duration) Option {
	return func(s *settings) {
		if d < time.Second || d%time.Millisecond != 0 {
			s.err = fmt.Errorf("%w: WithRetention(%s): must be whole milliseconds, at least 1s", relock.ErrInvalid, d)
		}
		s.retention = d
	}
}

// WithMaxResult sets the longest result in bytes of JSON. A longer result is [ErrNoResult]. The
// default is [DefaultMaxResult]. All waiters get the result in a message.
func WithMaxResult(n int) Option {
	return func(s *settings) {
		if n < 1 {
			s.err = fmt.Errorf("%w: WithMaxResult(%d): must be at least 1 byte", relock.ErrInvalid, n)
		}
		s.limit = n
	}
}

// FailIfInterrupted makes [Do] return [ErrInterrupted] if an earlier attempt began and never ended.
// Use FailIfInterrupted for operations that may not run twice in any case, such as payments. Find
// out the outcome, and remove the record with [Once.Forget].
func FailIfInterrupted() Option { return func(s *settings) { s.interrupt = true } }

// WithLockOptions sets options for the locks of attempts, such as [relock.WithTTL]. A crashed
// attempt holds up the next attempt for one TTL.
func WithLockOptions(options ...relock.Option) Option {
	return func(s *settings) { s.lock = append(s.lock, options...) }
}

// New makes a Once over the locks of a client. The client must keep locks in Redis, in relock's own
// layout. The records are beside the locks, under the client's prefix. All processes with the same
// keys must have the same prefix. New does not talk to Redis. Errors: [relock.ErrInvalid].
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
		locks: locks, rdb: rdb, settings: s, peers: make(map[string]*peers),
		news: newNews(rdb, lock.Key()+":"+locks.ID()+":"+rand.Text()),
	}, nil
}

// Close ends the subscription of the Once, and its work in the background. Calls in flight go on,
// and ask Redis again at times in place of waiting for a message. The client is the caller's to
// close.
func (o *Once) Close() error {
	o.background.Close()
	err := o.news.close()
	o.background.Wait()
	return err
}

// Attempt is one run of a function.
type Attempt struct {
	Key string
	// Number is 1 for a new operation, and grows by 1 with each attempt after an interrupted one.
	Number int
	// Interrupted says that an earlier attempt began and never ended: the process died, the lock
	// was lost, the function panicked, or the function did not know its outcome. The earlier
	// attempt may have done anything, and may even be running still.
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

// WaitFor bounds the wait of the call for another attempt. After d, the call returns [ErrInFlight].
// d does not limit the call's own attempt, as the end of ctx does. d must be above 0.
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
	retention           time.Duration
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
	c := &call{key: key, attempt: rand.Text(), retention: o.settings.retention, lock: o.locks.NewLock(lockName(key), o.settings.lock...)}
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

// Do runs fn if the operation of the key was not done yet, and returns its result. If the operation
// was done, Do returns the stored result with replayed true. At most one attempt of a key runs at a
// time, across processes. Calls meanwhile wait for its result, or until ctx is done ([ErrInFlight],
// and ctx's error). The result is stored as JSON.
//
// fn gets a context inside the section of the attempt. The context ends when ctx ends and when the
// lock is lost, and fn should return at its end. If fn goes on behind the end of ctx, the lock is
// kept until fn returns: no other attempt begins meanwhile. The return of fn decides:
//   - nil: the result is stored, and sent to all waiters.
//   - a [Permanent] error: the error is stored.
//   - an [Unknown] error, or any error after the end of fn's context that is not [Permanent]:
//     nothing is stored, and the attempt counts as interrupted.
//   - any other error says that nothing has happened: nothing is stored, and one of the waiting
//     calls runs its fn.
//   - a panic goes on to the caller, and the attempt counts as interrupted.
//
// Calls inside of fn are operations of their own. Two operations that wait for each other wait
// until a context ends.
//
// Errors: those of fn; [ErrMismatch], [ErrInFlight], [ErrInterrupted] and [ErrNoResult];
// [*FailedError]; and those of [relock.Lock.TryLockIf] without a run of fn. If fn has run and its
// result could not be stored, Do returns the result together with an error: [relock.ErrLockLost],
// as a later attempt may have begun, or the error of Redis. The next attempt is told of an
// interrupted one.
func Do[T any](ctx context.Context, o *Once, key string, fn func(ctx context.Context, a Attempt) (T, error),
	options ...CallOption) (result T, replayed bool, err error) {
	c, err := o.newCall(key, options)
	if err != nil {
		return result, false, err
	}
	return do(ctx, o, c, fn)
}

func do[T any](ctx context.Context, o *Once, c *call, fn func(ctx context.Context, a Attempt) (T, error)) (result T, replayed bool, err error) {
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

// Forget removes the record of a key, so that the operation may run again: for an operator who
// knows the outcome of an interrupted attempt. Forget also removes a stored result. While an
// attempt is running, Forget changes nothing, and returns [relock.ErrLocked].
func (o *Once) Forget(ctx context.Context, key string) error {
	c, err := o.newCall(key, nil)
	if err != nil {
		return err
	}
	attempt, err := o.rdb.HGet(ctx, c.record, "attempt").Result()
	if err == redis.Nil { // a reply; the error of a sentinel has it inside
		return nil
	}
	if err != nil {
		return fmt.Errorf("once: forget: %w", err)
	}
	section, _, err := c.lock.TryLockIf(ctx, forgetScript, []string{c.record}, attempt)
	if err != nil {
		return err
	}
	err = c.lock.Unlock(section)
	o.wake(c)
	return err
}
