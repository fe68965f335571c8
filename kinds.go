package relock

import (
	"context"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// This file has the locks other than the mutex. All kinds go one way in and out (lock.go). A claim
// says its kind, and how many holds it bears beside it, see [store.Claim].

// RWLock is a lock for one writer or any number of readers, made by [Client.NewRWLock]. It has all
// methods of [Lock]: Lock, TryLock, TryLockFor, Do and DoFor are for writing, and Unlock leaves the
// nearest entry, in whichever mode. An RWLock is safe for concurrent use.
//
// Waiters are served first come, first served: a writer waits for the readers before it, and for
// none behind it, and a reader for the writers before it. Readers that are next to each other in
// the queue enter together. Each reader has a lease of its own, so a crashed reader costs its own
// lease and nobody else's.
//
// A call inside a section of the same lock:
//   - A reader in a reader, and a writer in a writer, enter again, as in a [Lock].
//   - A reader in a writer enters at once. If the writer's entry is left first, the reader goes on
//     with its own hold and lets other readers in: a downgrade. The reader's context outlives the
//     Unlock of the writer.
//   - A writer in a reader is an upgrade. The only reader enters at once. Otherwise the call waits
//     at the head of the queue for the other readers to leave, keeps its own read, and nobody new
//     gets in. Two readers that both wait to write would wait for each other, so the second call
//     returns [ErrDeadlock] at once, and must unlock its read so that the other can go on.
//
// Each hold for writing draws a new token. [Lock.Token] of a reader is minus the token of the last
// writer, or of a new one if none is known: two readers with one token saw no writer in between,
// and a resource refuses a reader that writes, as its token is smaller than all others. (In
// ZooKeeper each reader has a negative token of its own.)
type RWLock struct {
	*forWriting
	read *Lock
}

// forWriting lets RWLock embed Lock: a field called Lock would hide the method Lock.
type forWriting = Lock

// NewRWLock returns the read-write lock called name. Names and options are as for [Client.NewLock].
// A name is one kind of lock: while a mutex or a semaphore of this name is in use, calls return
// [ErrKind]. A store without read-write locks, such as one [WithRedissonLayout], is [ErrInvalid]
// ([errors.ErrUnsupported]).
func (c *Client) NewRWLock(name string, options ...Option) *RWLock {
	claim := store.Claim{Name: name, Kind: store.ReadWrite, Limit: 1}
	write := c.newLock(claim, options)
	claim.Limit = store.Unlimited
	return &RWLock{forWriting: write, read: c.newLock(claim, options)}
}

// RLock is [Lock.Lock] for reading.
func (l *RWLock) RLock(ctx context.Context) (context.Context, error) { return l.RLocker().Lock(ctx) }

// TryRLock is [Lock.TryLock] for reading.
func (l *RWLock) TryRLock(ctx context.Context) (context.Context, error) {
	return l.RLocker().TryLock(ctx)
}

// TryRLockFor is [Lock.TryLockFor] for reading.
func (l *RWLock) TryRLockFor(ctx context.Context, wait time.Duration) (context.Context, error) {
	return l.RLocker().TryLockFor(ctx, wait)
}

// RDo is [Lock.Do] for reading.
func (l *RWLock) RDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return l.RLocker().Do(ctx, fn)
}

// RDoFor is [Lock.DoFor] for reading.
func (l *RWLock) RDoFor(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return l.RLocker().DoFor(ctx, wait, fn)
}

// Writer returns the lock for writing as a Lock of its own.
func (l *RWLock) Writer() *Lock {
	if l == nil {
		return nil
	}
	return l.forWriting
}

// RLocker returns the lock for reading as a Lock of its own. Its Unlock, Held and Count, as those
// of Writer, are about the nearest entry in any mode.
func (l *RWLock) RLocker() *Lock {
	if l == nil {
		return nil
	}
	return l.read
}

// NewSemaphore returns the semaphore called name: a [Lock] that lets n holds in at a time, each
// with a lease of its own, first come, first served. Names and options are as for
// [Client.NewRWLock].
//
// Each caller asks with its own n, and the smallest n among the holds counts while they last: with
// an old deployment of 3 and a new one of 5, a fourth holder enters when nobody with a 3 is in.
// Calls inside a section of the semaphore enter the same hold again, and take no second permit.
// Tokens are drawn as for a mutex, so each permit has its own, and a larger token says only which
// permit was asked later.
func (c *Client) NewSemaphore(name string, n int, options ...Option) *Lock {
	if n < 1 || n >= store.Unlimited {
		err := invalid("NewSemaphore(%q, %d): n must be 1 to %d permits", name, n, store.Unlimited-1)
		return &Lock{client: c, name: name, settings: &c.settings, err: err}
	}
	return c.newLock(store.Claim{Name: name, Kind: store.Semaphore, Limit: n}, options)
}

func modeOf(kind store.Kind, limit int) event.Mode {
	switch {
	case kind == store.Semaphore:
		return event.ModePermit
	case limit == store.Unlimited:
		return event.ModeShared
	default:
		return event.ModeExclusive
	}
}

func (h *hold) section() event.Section {
	claim := &h.lease.Claim // a part that stays as it is
	return event.Section{Name: h.name, Mode: modeOf(claim.Kind, claim.Limit), Client: h.client.id, Key: claim.Name}
}
