// Package store is the seam between relock and what keeps its locks. relock brings identity,
// re-entry, deadlines, renewal, loss and cleanup; a Store brings mutual exclusion and a way to
// wait. Package storetest shows whether a Store keeps the promises that are written here.
//
// The package is unstable until two stores that live outside of relock's root package pass that
// suite.
package store

import (
	"context"
	"errors"
	"math"
	"time"
)

// ID names one hold: one stay in one lock, from its first entry to its last exit. An ID is never
// used for a second hold, so a command that runs late cannot touch a newer one. It has the form
// <client>:<n>:<m>: everything before the last two colons names the client, and the last number is
// unique within that client.
type ID string

// Unlimited is the Limit of a hold that any number of others may accompany.
const Unlimited = math.MaxInt32

// Ask says what a hold wants.
type Ask struct {
	// Name is the lock, in the spelling that [Store.Check] has returned.
	Name string
	ID   ID
	// TTL is how long the store keeps the hold if nothing renews it. It is in whole milliseconds.
	TTL time.Duration
	// Limit is how many holds may be in while this one is: 1 is a mutex, n a semaphore, Unlimited a
	// reader. [Store.Check] refuses 0: a limit that was forgotten is an error.
	Limit int
	// Acks is what must confirm a new hold before it counts. The zero value asks for nothing.
	Acks Acks
}

// Acks asks that so many replicas confirm a new hold within Timeout.
type Acks struct {
	Replicas int
	Timeout  time.Duration
}

// Wake says what made a store answer a waiter.
type Wake string

// The ways to get a lock.
const (
	WakeNone     Wake = ""         // it was free when asked for
	WakeGrant    Wake = "grant"    // a message said that the store has given it to this hold
	WakeRecheck  Wake = "recheck"  // asked again, because a lease should have ended or a connection was new
	WakeReleased Wake = "released" // a message said that it was free, and this hold asked first
)

// Lease is what a store has given to a hold. It is a value: a renewal makes a new one.
type Lease struct {
	Ask
	// Sent is a time before the command that set the lease was sent, on the local monotonic clock.
	Sent time.Time
	// Token is the fencing token, where the store draws one with each hold; 0 elsewhere, see
	// [Store.Token].
	Token int64
	Woken Wake
	// Unsure says that an earlier command of this ask may run yet. The ask goes to cleanup after
	// the end of the hold.
	Unsure bool
}

// Until is the deadline of the lease: from then on another hold may have the lock. It counts from
// before the command was sent, and is earlier than the store's own end of the lease by a margin of
// 1 % of the TTL and 2 ms, for clocks that run at different rates and for the resolution of the
// store's clock. (The margin is that of the Redlock algorithm.)
func (l Lease) Until() time.Time { return l.Sent.Add(l.TTL - Margin(l.TTL)) }

// Margin is by how much the deadline of a lease is earlier than its end.
func Margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// Renewal is a lease that is to last for TTL from now on. It never shortens the lease.
type Renewal struct {
	Lease Lease
	// TTL is the new length of the lease; 0 leaves it as it is.
	TTL time.Duration
	// Count is how many entries the hold has open, at least 1. A store shows Count in State, and
	// decides nothing by Count.
	Count int
}

// Progress tells how far a waiter has come.
type Progress struct {
	Busy *Busy // what the store said last
	// Queued says that the hold has a place in the store's queue, or waits as its store lets it
	// wait.
	Queued   bool
	Position int // how many are before it in the queue, as far as the store knows
}

// State is what a store says of a lock.
type State struct {
	Owner   ID // empty: nobody has it
	Count   int
	TTL     time.Duration // what is left of the owner's lease; negative: it has none
	Token   int64         // the last fencing token that was drawn, 0 if none is known
	Waiters int           // how many are queued, also those that are gone and whose turn has not come
}

// Store keeps locks. Its methods are safe for concurrent use.
//
// Every method may be called again with the same ID, with the effect of one call. Every method
// returns promptly when ctx is done, also while the server is silent. An error that matches
// [ErrUnsure] says that the command may have run, or may run yet; every other error says that it
// did not.
//
// The end of ctx gives an error that matches ctx.Err and the cause of that end ([context.Cause]).
// If the store could not be reached by then, the error matches [ErrUnavailable] too.
type Store interface {
	// Check says whether the store can serve such an ask, and returns it as the store keeps it: two
	// names that mean the same lock come back as one. It talks to nobody. Errors: one that says
	// what is allowed, or one that matches [errors.ErrUnsupported].
	Check(a Ask) (Ask, error)

	// Try gives the lock to the hold if it is free and nobody waits for it. It asks a bounded
	// number of times. Errors: [*Busy], [ErrUnavailable], [ErrNotReplicated].
	Try(ctx context.Context, a Ask) (Lease, error)

	// Wait returns when the hold has the lock, or ctx is done. It calls progress, in the goroutine
	// of its caller, whenever the store has said that others have the lock; progress is not nil.
	// While the store cannot be reached it goes on trying. The lease that it returns may be nearly over, as it counts from
	// the last moment at which the hold surely did not have the lock.
	Wait(ctx context.Context, a Ask, progress func(Progress)) (Lease, error)

	// Enter sets the count of a hold that is there, and makes its lease last for l.TTL from now on.
	// It never shortens the lease; a TTL of 0 leaves the lease as it is, and returns the lease that
	// the hold has or the one that was given. It tries until ctx is done. Errors: [ErrGone].
	Enter(ctx context.Context, l Lease, count int) (Lease, error)

	// Release sets the count of a hold; 0 frees the lock and serves whoever waits. With another
	// count it is Enter, but for its result. It tries until ctx is done. Errors: [ErrGone]; it
	// matches ErrUnsure too if an earlier attempt of this very call may have freed the lock.
	Release(ctx context.Context, l Lease, count int) error

	// Renew renews many leases in few round trips, once. It returns an error for each, in order:
	// nil, ErrGone, or why the renewal is not confirmed.
	Renew(ctx context.Context, renewals []Renewal) []error

	// Forget takes back whatever may be left of asks that nobody wants any more: a place in a
	// queue, or a lock that was given to them. It makes one attempt. It returns an error for each
	// that is not confirmed.
	Forget(ctx context.Context, asks []Ask) []error

	// Token draws a fencing token for a hold that has the lock: larger than every token that was
	// drawn for this lock before. Errors: [ErrGone], [errors.ErrUnsupported].
	Token(ctx context.Context, l Lease) (int64, error)

	// Look reads the lock, and changes nothing.
	Look(ctx context.Context, name string) (State, error)

	// Break frees the lock if that hold has it, for operators, and tells its client if the store
	// can. Errors: [ErrGone].
	Break(ctx context.Context, name string, id ID) error

	// Close ends what the store has running by itself. Commands that come later still work; nothing
	// of them lasts.
	Close() error
}

// Racing is what a store says whose waiters race for a lock that has become free: those of one
// client had better wait behind each other, and send one of them into the race. A store without
// this method queues all its waiters.
type Racing interface {
	Store
	Races() bool
}

// Watcher is a store that can tell at once that a hold may be gone.
type Watcher interface {
	Store
	// Watch calls doubt with each hold that a client should renew at once to see whether it is
	// still there, and with "" where that is so of all of them, as when the server has become
	// another one. client is what the IDs of the holds begin with. It ends with stop, which does
	// not wait for doubt.
	Watch(client string, doubt func(ID)) (stop func())
}

// Checker is a store that can ask its server for everything that locks will need.
type Checker interface {
	Store
	// CheckServer returns nil if the server serves asks like a, or an error that says all that is
	// missing. It leaves nothing behind.
	CheckServer(ctx context.Context, a Ask) error
}

// Busy is the refusal of a lock that others have.
type Busy struct {
	Owner ID            // one of them; empty if it is not known
	TTL   time.Duration // what is left of its lease; negative: it has none
}

func (b *Busy) Error() string { return "another hold has the lock" }

// What a store says, for [errors.Is].
var (
	// ErrGone says that the store does not have this hold. Nothing was changed.
	ErrGone = errors.New("the store does not have this hold any more")
	// ErrUnsure says that a command may have run, or may run yet. Who gets it hands the ask to
	// cleanup.
	ErrUnsure = errors.New("the command may have run")
	// ErrUnavailable says that the store could not be reached, or does not serve now.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrNotReplicated says that too few replicas confirmed a new hold. The hold was taken back,
	// unless the error matches ErrUnsure.
	ErrNotReplicated = errors.New("not confirmed by enough replicas")
	// ErrKind says that the name is in use for another kind of lock. Nothing was changed.
	ErrKind = errors.New("the name is in use for another kind of lock")
)

// Unsure marks an error with [ErrUnsure]. The text stays as it is; nil stays nil.
func Unsure(err error) error { return mark(err, ErrUnsure) }

// Unavailable marks an error with [ErrUnavailable]. The text stays as it is; nil stays nil.
func Unavailable(err error) error { return mark(err, ErrUnavailable) }

func mark(err, kind error) error {
	if err == nil || errors.Is(err, kind) {
		return err
	}
	return &marked{err: err, kind: kind}
}

// marked is an error that matches one more kind.
type marked struct{ err, kind error }

func (m *marked) Error() string        { return m.err.Error() }
func (m *marked) Unwrap() error        { return m.err }
func (m *marked) Is(target error) bool { return target == m.kind }
