package ticket

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/problem"
)

const typePrefix = "https://pkg.go.dev/github.com/go-relock/relock/ticket#"

// Types of the problems that [Verifier.Handler] sends in place of a handler's response, for clients
// that tell them apart. The handler has not run.
const (
	// TypeMissing is status 400: the request has no ticket.
	TypeMissing = typePrefix + "TypeMissing"

	// TypeSignature is status 401: see [ErrSignature].
	TypeSignature = typePrefix + "TypeSignature"

	// TypeExpired is status 401: see [ErrExpired].
	TypeExpired = typePrefix + "TypeExpired"

	// TypeOther is status 403: the ticket is for another service, or for another lock than the lock
	// of the request.
	TypeOther = typePrefix + "TypeOther"

	// TypeUsed is status 409: the store refuses the ticket. It was used before, or has expired by
	// the clock of the store, or its lender has 1,000 open loans.
	TypeUsed = typePrefix + "TypeUsed"

	// TypeLost is status 409: the hold of the ticket is gone, or its lender has unlocked.
	TypeLost = typePrefix + "TypeLost"

	// TypeUnavailable is status 503: the store does not answer, or this service stops. The ticket
	// may be used up: a lender sends a new one, and who has handed off takes the lock again.
	TypeUnavailable = typePrefix + "TypeUnavailable"

	// TypeInternal is status 500: the lock of the request, or its store, cannot be lent, see
	// [relock.ErrInvalid].
	TypeInternal = typePrefix + "TypeInternal"
)

// problemOf returns the problem for an error of From, Verify, Borrow and Accept.
func problemOf(err error) *problem.Problem {
	switch {
	case errors.Is(err, ErrMissing):
		return &problem.Problem{Type: TypeMissing, Title: "The request has no " + Header, Status: http.StatusBadRequest}
	case errors.Is(err, ErrSignature):
		return &problem.Problem{Type: TypeSignature, Title: "The ticket is not signed by a known issuer", Status: http.StatusUnauthorized}
	case errors.Is(err, ErrExpired):
		return &problem.Problem{Type: TypeExpired, Title: "The ticket has expired", Status: http.StatusUnauthorized}
	case errors.Is(err, ErrAudience), errors.Is(err, errOther):
		return &problem.Problem{Type: TypeOther, Title: "The ticket is for another service or lock", Status: http.StatusForbidden}
	case errors.Is(err, relock.ErrTicket):
		return &problem.Problem{Type: TypeUsed, Title: "The ticket was used, or has expired", Status: http.StatusConflict}
	case errors.Is(err, relock.ErrLockLost):
		return &problem.Problem{Type: TypeLost, Title: "The hold of the ticket is gone", Status: http.StatusConflict}
	case errors.Is(err, relock.ErrInvalid):
		return &problem.Problem{Type: TypeInternal, Title: "The ticket cannot be used here", Status: http.StatusInternalServerError}
	default:
		return &problem.Problem{Type: TypeUnavailable, Title: "The ticket could not be used", Status: http.StatusServiceUnavailable}
	}
}

// refuse sends the problem of an error.
func refuse(w http.ResponseWriter, err error) {
	p := problemOf(err)
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", Header)
	}
	p.Write(w)
}

// errOther reports a ticket for another lock than the lock of the request.
var errOther = because(relock.ErrTicket, "it is for another lock")

// Handler returns a handler that runs next in the section of the request's ticket: a loan beside
// its lender, or a hold that was handed off to this service. The context of the request that next
// gets is inside the section. It ends when the client goes away, when the lender recalls the loan,
// and when the lock is lost; [context.Cause] says why. The section goes on until next returns, also
// if the client has gone away: then it is unlocked.
//
// lockOf returns the lock of what the request is about, such as the lock of the order in its path.
// It is called for a request whose ticket this service may verify, and for no other. The ticket
// must be for this very lock, so a ticket for one order is no use for another order. A Lock is
// cheap to make.
//
// A request that is refused gets a problem of RFC 9457, see [TypeMissing] and the other types. What
// next answers is sent as it is, also if the lock is lost meanwhile: next looks at its context, and
// gives the token of the section to what it changes. next may hand off: then Unlock leaves the hold
// to the next service. A job that goes on after the response needs a context of its own: use
// [From], [Verifier.Verify] and [Accept] in place of Handler.
func (v *Verifier) Handler(lockOf func(*http.Request) *relock.Lock, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asking, keep := lifetime.Outliving(r.Context())
		lock, section, err := v.enter(asking, r, lockOf)
		isInTime := keep()
		if err != nil {
			refuse(w, err)
			return
		}
		// A loss has ended the context of next, and is logged by the client of the lock; a release
		// without an answer is repeated by its cleanup.
		defer func() { _ = lock.Unlock(section) }()
		if !isInTime { // the client has gone away since
			refuse(w, lifetime.Ended(r.Context()))
			return
		}
		work, stop := lifetime.Work(section, r.Context())
		defer stop()
		next.ServeHTTP(w, r.WithContext(work))
	})
}

// enter begins the section of the request's ticket. A request without a valid ticket learns nothing
// of the lock.
func (v *Verifier) enter(ctx context.Context, r *http.Request, lockOf func(*http.Request) *relock.Lock) (
	lock *relock.Lock, section context.Context, err error,
) {
	signed, err := From(r.Header)
	if err != nil {
		return nil, nil, err
	}
	t, err := v.Verify(signed)
	if err != nil {
		return nil, nil, err
	}
	lock = lockOf(r)
	switch {
	case lock.Err() != nil:
		err = lock.Err()
	case t.Lock != lock.Key():
		err = errOther
	case t.Use == UseLoan:
		section, err = Borrow(ctx, lock, t)
	default:
		section, err = Accept(ctx, lock, t)
	}
	return lock, section, err
}
