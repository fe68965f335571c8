package ticket

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/inside"
)

// The uses of a ticket.
const (
	UseLoan    = inside.Loan    // Borrow, beside the section of the lender
	UseHandOff = inside.HandOff // Accept, in place of a section that has ended
	UseResume  = inside.Resume  // Accept, in place of a section whose process may have ended
)

// Life is the time for which a ticket of [Lend] or [HandOff] can be used. Set [Ticket.Expires] for
// another time.
const Life = 5 * time.Minute

// Ticket lets another process take part in a hold, or take the hold over. A ticket is a secret:
// whoever has the ticket gets in. Its String shows nothing of use to a stranger. Send it over a
// channel that nobody else reads, and signed by a [Signer] where its way is not trusted. All fields
// survive encoding/json, if the name of the lock is in UTF-8. A Ticket works once. The store keeps
// nothing of a ticket until it is used, so whoever may change the fields of a ticket can do more:
// make more loans, or take the lock over.
type Ticket struct {
	Use   string        `json:"use"`   // UseLoan, UseHandOff or UseResume
	ID    string        `json:"id"`    // of the ticket: unique
	Lock  string        `json:"lock"`  // the [relock.Lock.Key] of the lock
	Hold  string        `json:"hold"`  // that the ticket is about
	Token int64         `json:"token"` // the fencing token of the hold
	TTL   time.Duration `json:"ttl"`   // of the lease of the hold
	Delay time.Duration `json:"delay"` // of its [relock.WithLockDelay]
	// Expires is the end of the ticket: a time of this process's clock, which the server that keeps
	// the lock compares with its own. Zero: the ticket of [ToResume] ends with its hold.
	Expires time.Time `json:"expires,omitzero"`
}

// String returns the use and the lock of the ticket, without its secrets.
func (t Ticket) String() string { return fmt.Sprintf("%s ticket for %q", t.Use, t.Lock) }

// GoString is [Ticket.String].
func (t Ticket) GoString() string { return t.String() }

// LogValue is [Ticket.String], for package slog.
func (t Ticket) LogValue() slog.Value { return slog.StringValue(t.String()) }

// Lend returns a ticket with which another process enters the section around ctx, with [Borrow].
// One ticket is for one loan. Lend draws the fencing token of the hold, see [relock.Lock.Token], as
// the lender and its borrowers have one token.
//
// Unlock of the last entry recalls all open loans: the contexts of the borrowed sections end, with
// the cause [relock.ErrRecalled]. Unlock does not wait for them. The lock goes on to the next
// waiter when each loan is returned by its Unlock, or the lease has run out.
//
// In Redis a lender has 1,000 open loans at most: the next Borrow is [relock.ErrTicket].
//
// Errors: [relock.ErrInvalid] together with [errors.ErrUnsupported] for a store that cannot lend
// (only relock's own layout in Redis and package mem can), and for a lock that is no mutex;
// ErrInvalid inside a borrowed section; and the errors of Token. The section goes on, unless its
// lock was lost.
func Lend(ctx context.Context, lock *relock.Lock) (Ticket, error) {
	return expiring(lock.Internal().Tickets.Lend(ctx))
}

// HandOff ends the section around ctx, with all entries of its hold, and returns a ticket with
// which another process continues, with [Accept]: with the same fencing token, and a lease of its
// own. The contexts of the section end with the cause [relock.ErrHandedOff], which each Unlock
// returns. Nothing is renewed until Accept: if nobody accepts, the lock is free when the lease has
// run out.
//
// Errors: those of [Lend]; [relock.ErrInvalid] for a hold that has lent its lock, also if the loan
// was returned. The section goes on, unless its lock was lost.
func HandOff(ctx context.Context, lock *relock.Lock) (Ticket, error) {
	return expiring(lock.Internal().Tickets.HandOff(ctx))
}

// ToResume returns a ticket for the case that this process ends without Unlock. A program that is
// to go on after a restart, such as a workflow engine, stores the ticket beside its progress, and
// continues with [Accept] while the lease lasts. Nothing changes for the section around ctx until
// then; it is lost as soon as somebody accepts.
//
// Errors: those of [Lend].
func ToResume(ctx context.Context, lock *relock.Lock) (Ticket, error) {
	t, err := lock.Internal().Tickets.ToResume(ctx)
	return Ticket(t), err
}

// expiring gives a new ticket its expiry.
func expiring(t inside.Ticket, err error) (Ticket, error) {
	if err == nil {
		t.Expires = time.Now().Add(Life)
	}
	return Ticket(t), err
}

// Borrow enters the section for which [Lend] has made the ticket, beside its lender. Borrow does
// not wait. The borrowed section has the fencing token of the lender. Nested calls of Lock enter at
// once.
//
// The context that Borrow returns ends when ctx ends, at the Unlock, and
//   - when the lender unlocks: the cause is [relock.ErrRecalled]. Finish, and Unlock: the lock goes
//     on when each loan is returned.
//   - when the lender has lost the lock, or its lease has run out as far as this process knows: the
//     cause is [relock.ErrLockLost]. A borrowed section never extends the lease of the lender. It
//     asks for the rest of the lease whenever a third of the rest that it knows has passed.
//
// Borrow asks a store up to three times. Errors: [relock.ErrTicket]; [relock.ErrLockLost] if the
// lender does not have the lock any more, or has unlocked; [relock.ErrInvalid], as for [Lend], and
// inside a section of this lock; [relock.ErrClosed]; ctx's error, or an error of the store, and the
// ticket may be used up.
func Borrow(ctx context.Context, lock *relock.Lock, t Ticket) (context.Context, error) {
	return lock.Internal().Tickets.Borrow(ctx, inside.Ticket(t))
}

// Accept continues a hold of which [HandOff] or [ToResume] has made the ticket, in a new section:
// the lock is not free in between, and the fencing token is the same. The section has the options
// of this Lock. Accept waits for no other hold.
//
// With a ticket of HandOff the section begins at once. With a ticket of ToResume the former process
// may run and know nothing: Accept takes the lock from it, and begins after the end of the lease
// that the former process may count on, at most its TTL later. If ctx ends before, or too few
// servers confirm, nobody has the lock until the lease has run out.
//
// Accept asks a store up to three times. Errors: [relock.ErrTicket]; [relock.ErrLockLost] if the
// hold is gone, or was continued by somebody else; [relock.ErrInvalid], as for [Lend], and inside a
// section of this lock; [relock.ErrNotReplicated]; [relock.ErrClosed]; ctx's error, or an error of
// the store, and the ticket may be used up.
func Accept(ctx context.Context, lock *relock.Lock, t Ticket) (context.Context, error) {
	return lock.Internal().Tickets.Accept(ctx, inside.Ticket(t))
}
