// Package store is the seam between relock and the keeper of its locks. relock brings identity,
// re-entry, deadlines, renewal, loss and cleanup; a Store brings mutual exclusion and a way to
// wait. Package storetest shows whether a Store keeps the promises of this package.
package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// ID names one hold: one stay in one lock, from its first entry to its last exit. An ID is never
// used for a second hold, so a late command cannot touch a newer hold. The form is
// <client>:<n>:<m>: everything before the last two colons names the client, and the last number is
// unique within the client, and cannot be guessed from the first. Of one server, all holds of a
// client are known to one Store.
type ID string

// Unlimited is the Limit of a hold that any number of other holds may accompany.
const Unlimited = math.MaxInt32

// Kind is the kind of a lock. A name is one kind of lock at a time.
type Kind int

// The kinds of locks.
const (
	Mutex     Kind = iota // lets one hold in
	ReadWrite             // lets one writer in (Limit 1), or any number of readers (Limit Unlimited)
	Semaphore             // lets Limit holds in
)

func (k Kind) String() string {
	switch k {
	case Mutex:
		return "a mutex"
	case ReadWrite:
		return "a read-write lock"
	case Semaphore:
		return "a semaphore"
	default:
		return fmt.Sprintf("Kind(%d)", int(k))
	}
}

// A Claim is what a call wants of a lock: a hold, of a kind, for a time.
//
// One rule serves all kinds of locks: a hold is in with at most Limit holds, itself included, and
// never beside a hold whose Limit is smaller than their number. All claims of a name share one
// queue: the first waiter is let in as soon as the rule admits it, and then the next.
type Claim struct {
	// Name is the lock, in the spelling returned by [Store.Check].
	Name string
	ID   ID
	// TTL is the lease: the time for which the hold lasts without a renewal, in whole milliseconds.
	TTL time.Duration
	// Delay is the time for which the store keeps the hold beyond its lease, so that nobody gets
	// the lock sooner after a loss, in whole milliseconds. A release frees the lock at once.
	Delay time.Duration
	Kind  Kind
	// Limit is the number of holds that may have the lock while this hold has the lock: 1 is a
	// mutex or a writer, n a semaphore, Unlimited a reader. [Store.Check] refuses 0: a forgotten
	// limit is an error.
	Limit int
	// With is a hold of the same lock around this claim, which waits for this claim and so is no
	// obstacle: the rule does not count With. Such a claim goes before the queue. A reader that asks
	// to write is an upgrade; two upgrades would wait for each other, so the second one is refused
	// with [ErrDeadlock]. Empty: none.
	With ID
	// Acks must confirm a new hold before the hold counts, and a lease of Enter or Renew before the
	// lease counts. The zero value asks for nothing.
	Acks Acks
	// Lender is the hold that lends its lock to this one, see [Lending]; empty: this hold is no
	// loan. [Store.Release] and [Store.Forget] return the loan.
	Lender ID
	// Report is told of each attempt of a call for this hold that has failed, and is made again.
	// The call goes on, and its error has the last failure. nil: nobody is told.
	Report Reporter
	// Keeps says that the client may keep the hold when nobody works in it, until [Asking] tells that
	// somebody wants the lock. [Store.Check] refuses Keeps if the store cannot tell this client.
	Keeps bool
	// Lent says that the hold may have lent its lock. Release and Forget recall the open loans and
	// return; the last return frees the lock. Without open loans they free it.
	Lent bool
}

// A Reporter is told why a call takes long: of an attempt without an answer, or with an answer that
// passes, such as that of a server that starts. A Reporter is safe for concurrent use.
type Reporter interface {
	// Retrying reports that a call has not succeeded yet. command is acquire, release, renew, or
	// another word of the store. attempt counts the failed attempts of the call, and is 0 while the
	// first one goes on. since is the begin of the first one, and err is the latest failure.
	// Retrying must not block.
	Retrying(command string, attempt int, since time.Time, err error)
}

// Owner returns the hold that has the lock for this claim: the claim's own, or its lender.
func (a Claim) Owner() ID {
	if a.Lender != "" {
		return a.Lender
	}
	return a.ID
}

// Kept returns the time for which the store keeps the hold with a lease of ttl: 0 if ttl is 0.
func (a Claim) Kept(ttl time.Duration) time.Duration {
	if ttl == 0 {
		return 0
	}
	return ttl + a.Delay
}

// Acks demands the confirmation of a new hold by a number of replicas within Timeout. With Disk,
// the server too confirms the hold, and each confirms that the hold is on its disk.
type Acks struct {
	Replicas int
	Disk     bool
	Timeout  time.Duration
}

// Wanted is the number of servers that are to confirm.
func (a Acks) Wanted() int {
	if a.Disk {
		return a.Replicas + 1
	}
	return a.Replicas
}

// Wake is the event that made a store answer a waiter.
type Wake string

// The ways to get a lock.
const (
	WakeNone     Wake = ""         // the lock was free when asked for
	WakeGrant    Wake = "grant"    // a message reported that the store has given the lock to this hold
	WakeRecheck  Wake = "recheck"  // asked again, because a lease should have ended or a connection was new
	WakeReleased Wake = "released" // a message reported a free lock, and this hold asked first
	WakePass     Wake = "pass"     // another hold of the client has passed its lease on, see [Passing]
)

// Lease is the right of a hold to its lock for a time, given by a store. A Lease is a value: a
// renewal makes a new Lease.
type Lease struct {
	Claim
	// Sent is a time before the command that set the lease was sent, as [time.Now] has returned it:
	// with the readings of the monotonic clock and of the wall clock.
	Sent time.Time
	// Token is the fencing token, if the store draws a token with each hold; 0 otherwise, see
	// [Store.Token].
	Token int64
	Woken Wake
	// Unsure marks a claim of which an earlier command may run yet. The claim goes to cleanup after
	// the end of the hold.
	Unsure bool
	// Run has the waits that a [Passing] store can pass the lease on to; nil: none.
	Run *Run
}

// Run is a part of a queue that shares a grant. Only its store looks inside.
type Run struct {
	Behind []ID          // the waits that may have the lease next, in order
	Passed []ID          // the holds that have had it since the grant, the present one too
	Kept   time.Duration // the [Claim.Kept] of each wait
}

// Until returns the deadline of the lease: from the deadline on another hold may have the lock. The
// deadline counts from before the command was sent, and is earlier than the store's own end of the
// lease by a margin of 1 % of the TTL and 2 ms, for clocks that run at different rates and for the
// resolution of the store's clock. (The Redlock algorithm has the same margin.) A lease is over
// when the monotonic clock or the wall clock has passed Until.
func (l Lease) Until() time.Time { return l.Sent.Add(l.TTL - Margin(l.TTL)) }

// Margin returns the time between the deadline of a lease and the end of the lease.
func Margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// Renewal makes a lease last for TTL from now on. A Renewal never shortens the lease.
type Renewal struct {
	Lease Lease
	// TTL is the new length of the lease; 0 leaves the lease unchanged.
	TTL time.Duration
	// Count is the number of open entries of the hold, at least 1. A store shows Count in State,
	// and decides nothing by Count.
	Count int
}

// Progress is the progress of a waiter.
type Progress struct {
	Busy *Busy // the last refusal by the store
	// Queued is set if the hold has a place in the store's queue, or waits in the way of its store.
	Queued   bool
	Position int // the number of earlier waiters in the queue, as far as the store knows
}

// State is the state of a lock in a store. Several holds have the lock at once only if their limits
// say so; Owner is then the hold whose lease ends first.
type State struct {
	Owner   ID // empty: nobody has the lock
	Count   int
	TTL     time.Duration // the rest of the owner's lease; negative: the owner has no lease
	Limit   int           // of the owner
	Others  []Held        // the other holds
	Token   int64         // the last drawn fencing token, 0 if none is known
	Waiters int           // the number of queued waiters, including waiters that are gone, until their turn
}

// Held is one of several holds with a lock.
type Held struct {
	ID    ID
	TTL   time.Duration // the rest of its lease
	Limit int
}

// Store keeps locks. All methods are safe for concurrent use.
//
// Every method may be called again with the same ID, with the effect of one call. Every method
// returns promptly when ctx is done, also while the server is silent. After an error that matches
// [ErrUnsure], the command may have run, or may run yet. After every other error, the command has
// not run and will not run.
//
// The end of ctx gives an error that matches ctx.Err and the cause of the end ([context.Cause]). If
// the store could not be reached before the end, the error matches [ErrUnavailable] too.
// After the end of ctx the error is no word of the store: the cause may be any error of the caller.
type Store interface {
	// Check refuses a claim that the store cannot serve, and returns the claim in the store's
	// spelling: two names of the same lock come back as one name. Check talks to nobody. Errors: an
	// error that names the limits, or an error that matches [errors.ErrUnsupported].
	Check(a Claim) (Claim, error)

	// Try gives the lock to the hold if the lock is free and nobody waits for the lock. Try asks a
	// bounded number of times. Errors: [*Busy], [ErrUnavailable], [ErrNotReplicated], [ErrKind].
	Try(ctx context.Context, a Claim) (Lease, error)

	// Wait returns when the hold has the lock, or ctx is done. Wait calls progress, in the
	// goroutine of its caller, after each refusal by the store; progress is not nil. While the
	// store cannot be reached Wait goes on trying. The returned lease may be nearly over, as the
	// lease counts from the last moment at which the hold surely did not have the lock. If the
	// lease is over, Enter decides: after ErrGone the caller hands the claim to cleanup, and asks
	// again with a new ID. Errors beside the end of ctx: [ErrKind], [ErrDeadlock],
	// [ErrNotReplicated].
	Wait(ctx context.Context, a Claim, progress func(Progress)) (Lease, error)

	// Enter sets the count of an existing hold, and makes its lease last for l.TTL from now on.
	// Enter never shortens the lease. A TTL of 0 leaves the lease unchanged, and Enter returns the
	// lease of the hold, or l. Enter tries until ctx is done. Errors: [ErrGone],
	// [ErrNotReplicated].
	Enter(ctx context.Context, l Lease, count int) (Lease, error)

	// Release frees the lock of a hold, and serves the waiters. Release tries until ctx is done.
	// Errors: [ErrGone], which matches ErrUnsure too if an earlier attempt of this very call may have
	// freed the lock.
	Release(ctx context.Context, l Lease) error

	// Renew renews many leases in few round trips, in one attempt. Renew returns an error for each
	// lease, in order: nil, ErrGone, or the reason why the renewal is not confirmed, such as
	// ErrNotReplicated.
	Renew(ctx context.Context, renewals []Renewal) []error

	// Forget takes back all remains of unwanted claims: a place in a queue, or a lock. Forget makes
	// one attempt. Forget returns an error for each claim, in order: nil if the store has confirmed.
	Forget(ctx context.Context, claims []Claim) []error

	// Token draws a fencing token for a hold with the lock. The token is larger than every token
	// drawn for this lock before, and larger than l.Token: the floor for a store that has drawn
	// elsewhere too. A store that draws a token with each hold returns that token, and has no
	// floor. The token of a reader is the token of the last writer, so two readers with one token
	// saw no writer in between. A store that does not know the last writer draws a token for each
	// reader. Errors: [ErrGone], [errors.ErrUnsupported].
	Token(ctx context.Context, l Lease) (int64, error)

	// Look reads the lock with the name and kind of the claim, and changes nothing. Errors:
	// [ErrKind].
	Look(ctx context.Context, a Claim) (State, error)

	// Break takes the hold a.ID with a.Limit out of the lock, for operators. Break notifies the
	// client of the hold if the store can. Errors: [ErrGone].
	Break(ctx context.Context, a Claim) error

	// Close ends all goroutines and connections of the store itself. Later commands still work, and
	// leave no goroutine or connection behind.
	Close() error
}

// Racing is a store whose waiters may race for a free lock. If Races is true, the waiters of one
// client should wait behind each other, and send one waiter into the race. A store without this
// method queues all its waiters.
type Racing interface {
	Store
	Races() bool
}

// Passing is a store whose grant may serve several waits of one client: those that stand directly
// behind each other in the queue, and want the same lease.
type Passing interface {
	Store
	// Pass hands a lease on to the next wait of its Run, in place of a Release, and talks to nobody.
	// That Wait returns the lease with the ID of l: for the server it is one hold, which the last
	// one of the Run releases. false: no wait can have the lease, and the caller goes on to have it.
	// Pass does not block. Nobody uses l after a Pass that is true.
	Pass(l Lease) bool
}

// Watcher is a store that can report at once that a hold may be gone.
type Watcher interface {
	Store
	// Watch calls doubt with the ID of each hold that the client should renew at once, as the hold
	// may be gone. Watch calls doubt with "" if all holds of the client may be gone, as after a
	// change of the server. The IDs of the client's holds begin with client. Watch does not wait
	// for the server. Watch ends with stop, which waits for nothing.
	Watch(client string, doubt func(ID)) (stop func())
}

// Asking is a store that can tell the client of a hold that somebody wants its lock.
type Asking interface {
	Store
	// Want tells the client of the hold a.ID, and changes nothing. The message may be lost. Want
	// makes one attempt. Errors: [errors.ErrUnsupported] if nobody could hear it; ErrUnavailable.
	Want(ctx context.Context, a Claim) error
	// WatchWanted calls wanted with the ID of each hold of the client that Want has named since,
	// perhaps more than once, and with "" when it may have missed some, as before it has begun to hear.
	// WatchWanted does not wait for the server. It ends with stop, which waits for nothing.
	WatchWanted(client string, wanted func(ID)) (stop func())
}

// Announcing is a store that can tell other processes of a new leader.
type Announcing interface {
	Store
	// Announce tells whoever follows the lock a.Name that the hold a.ID leads, or has led, and
	// changes nothing. The message may be lost. Announce makes one attempt. Errors: ErrUnavailable.
	Announce(ctx context.Context, a Claim) error
	// Announced calls heard after each Announce for the lock since, perhaps more than once, and when
	// an Announce may have been missed. Announced does not wait for the server. It ends with stop,
	// which waits for nothing.
	Announced(name string, heard func()) (stop func())
}

// Queueing is a store that knows who waits for a lock.
type Queueing interface {
	Store
	// Waiters returns the waiters at the first places of the queue of the lock with the name and kind
	// of the claim, by turn, at most most of them, and changes nothing. Waiters that are known to be
	// gone are left out. Errors: [ErrKind], or none, for a lock of another kind;
	// [errors.ErrUnsupported] if the store cannot tell here.
	Waiters(ctx context.Context, a Claim, most int) ([]Waiter, error)
}

// Waiter is a place in a queue.
type Waiter struct {
	ID    ID
	Limit int
	Since time.Time // of the place, by the clock of this process; zero: not known
}

// Listing is a store that can list its locks.
type Listing interface {
	Store
	// List returns the name and the probable kind of each lock that somebody has or waits for, and
	// changes nothing. Check accepts each name. A lock that is held all the while is not left out.
	// A lock may be free by now, or of another kind: Look decides. List may look at all that the
	// server has, and so take long. List uses only a.Report. Errors: [ErrUnavailable], some seconds
	// after the last answer.
	List(ctx context.Context, a Claim) (map[string]Kind, error)
}

// WaitGraph is a store where a call that waits inside a section can show its wait, so that calls
// that wait for each other are found.
type WaitGraph interface {
	Store
	// Show shows a wait under each of w.Holds, for lifetime at least. Without w.For, Show takes the
	// wait back. Show makes one attempt.
	Show(ctx context.Context, w Waiting, lifetime time.Duration) error
	// Shown returns the waits that are shown under any of holds, perhaps more than once.
	Shown(ctx context.Context, holds []ID) ([]Waiting, error)
}

// Waiting is the wait of a call inside a section.
type Waiting struct {
	ID    ID        // of the claim
	Name  string    // of the lock, as its user knows it
	Holds []ID      // the holds around the call: none of them ends before the wait
	For   []ID      // the holds with the lock
	Since time.Time // when the call began to wait
	Round int       // how often the wait was shown
}

// Checker is a store that can ask its server for everything that locks will need.
type Checker interface {
	Store
	// CheckServer returns nil if the server serves asks like a, or one error that names all missing
	// parts. CheckServer leaves nothing behind.
	CheckServer(ctx context.Context, a Claim) error
}

// Several is a store that can take and free several locks in one step.
type Several interface {
	Store
	// TryAll gives each lock to its hold if all locks are free and nobody waits for any of them.
	// Otherwise no hold gets a lock. The names of the claims differ, and there is at least one claim.
	// TryAll returns a lease for each claim, in order. TryAll asks a bounded number of times. After
	// an error that matches [ErrUnsure], any of the holds may have its lock. Errors: [*Busy] with
	// the name of a lock, [ErrUnavailable], and [errors.ErrUnsupported] if the store cannot serve
	// these claims in one step, or refuses one of them for another reason.
	TryAll(ctx context.Context, claims []Claim) ([]Lease, error)

	// ReleaseAll is Release of each lease, in few round trips. ReleaseAll returns
	// an error for each lease, in order. An error that matches [errors.ErrUnsupported] leaves its
	// lease to Release.
	ReleaseAll(ctx context.Context, leases []Lease) []error
}

// Script is a script of a user of a lock, in the language of the store: in Redis, Lua.
type Script struct {
	Source string
	Keys   []string // in the slot of the lock
	Args   []any
}

// Scripts is a store that runs scripts of its users, in one step with a look at a lock. A store
// without this interface has no such scripts.
type Scripts interface {
	Store
	// CheckScript refuses a script that the store cannot run beside the lock of a claim. CheckScript
	// talks to nobody. Errors: an error that names the limits, or one that matches
	// [errors.ErrUnsupported].
	CheckScript(a Claim, s Script) error

	// Eval runs a script once, if the hold has its lock, or the loan is open, at that moment, and
	// returns its reply. Errors: [ErrGone], and the script has not run; ErrUnsure; an error of the
	// script, which may have changed something before.
	Eval(ctx context.Context, l Lease, s Script) (any, error)

	// EvalFree runs a script once if nobody has the lock of a claim at that moment, and nobody waits
	// for it, and returns its reply. Errors: [*Busy], and the script has not run: also if the store
	// cannot tell; ErrUnsure; an error of the script, which may have changed something before.
	EvalFree(ctx context.Context, a Claim, s Script) (any, error)

	// TryEval is Try, and runs a script in the same step. The script knows whether the hold has the
	// lock, and says whether to keep the lock; otherwise the error is [*Declined]. TryEval returns
	// the reply of the script with the lease. The script may run several times, as a repeat after a
	// lost answer does. An error of the script leaves no lock, either.
	TryEval(ctx context.Context, a Claim, s Script) (Lease, any, error)
}

// Lending is a store whose holds of mutexes can be lent, and moved to another client.
//
// A loan lets a second hold in beside its lender, which has the lock. The loan ends with the lease
// of the lender, whether or not its client knows, and never extends the lease. When the lender
// leaves, its loans are recalled: [Watcher.Watch] tells their clients to look, and the lock goes on
// when each loan is returned, or the lease is over.
type Lending interface {
	Store
	// Borrow begins the loan a.ID of the hold a.Lender by a ticket. The ticket may be used once,
	// and until it expires by the clock of the server. Borrow asks a bounded number of times. The
	// lease ends with the lease of the lender. Errors: [ErrGone], [ErrTicket], [ErrUnavailable].
	Borrow(ctx context.Context, a Claim, t Ticket) (Lease, error)

	// Follow returns the rest of the lender's lease. Follow makes one attempt. Errors: [ErrGone];
	// [ErrRecalled], and the loan is open until it is returned.
	Follow(ctx context.Context, l Lease) (time.Duration, error)

	// Accept moves the lock of the hold old to the hold a.ID, which gets a whole lease. A late
	// command of the old hold finds nothing. If the client of the old hold may still count on its
	// lease, unaware is true: the new lease then begins after the old one, and Accept returns the
	// time to wait before anything is done in the new hold. Accept asks a bounded number of times.
	// Errors: [ErrGone], [ErrTicket], [ErrUnavailable], [ErrNotReplicated].
	Accept(ctx context.Context, a Claim, old ID, t Ticket, unaware bool) (l Lease, wait time.Duration, err error)
}

// Ticket is what a store must know of a ticket.
type Ticket struct {
	ID      string
	Expires time.Time // zero, for Accept only: with the hold
}

// Declined is the end of a [Scripts.TryEval] whose script declines the lock.
type Declined struct {
	Reply any
	Owner ID // the hold that has the lock; empty: none
}

func (d *Declined) Error() string { return "the script declines the lock" }

// Busy is the refusal of a lock of other holds.
type Busy struct {
	Name  string        // the lock that refuses, for [Several]; empty otherwise
	Owner ID            // one of the other holds; empty if not known
	TTL   time.Duration // the rest of the owner's lease; negative: the owner has no lease
}

func (b *Busy) Error() string { return "another hold has the lock" }

// Errors of a store, for [errors.Is].
var (
	// ErrGone reports a hold that the store does not have. Nothing was changed.
	ErrGone = errors.New("the store does not have this hold any more")
	// ErrUnsure reports a command that may have run, or may run yet. The caller hands the claim to
	// cleanup.
	ErrUnsure = errors.New("the command may have run")
	// ErrUnavailable reports a store that could not be reached, or does not serve now.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrNotReplicated reports a new hold with too few confirmations. The hold was taken back,
	// unless the error matches ErrUnsure. As an error of Enter and Renew it reports a lease that may
	// have become longer, and on which nobody may count; it matches ErrUnsure then.
	ErrNotReplicated = errors.New("not confirmed by enough servers")
	// ErrKind reports a name in use for another kind of lock. Nothing was changed.
	ErrKind = errors.New("the name is in use for another kind of lock")
	// ErrTicket reports a ticket that was used, or has expired. Nothing was changed.
	ErrTicket = errors.New("the ticket is not valid")
	// ErrRecalled reports a loan whose lender has left.
	ErrRecalled = errors.New("the lender has left, and recalls its loan")
	// ErrDeadlock reports a claim that would wait for a hold that waits for the asker. Nothing was
	// changed.
	ErrDeadlock = errors.New("the wait would be a deadlock")
)

// Unsure marks an error with [ErrUnsure]. The text stays the same; nil stays nil.
func Unsure(err error) error { return mark(err, ErrUnsure) }

// Unavailable marks an error with [ErrUnavailable]. The text stays the same; nil stays nil.
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
