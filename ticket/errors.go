package ticket

import (
	"fmt"

	"github.com/go-relock/relock"
)

// Errors of a signed ticket. Each matches [relock.ErrTicket]. No error text has a part of the
// ticket or of a key.
var (
	// ErrMissing reports a request without a ticket.
	ErrMissing = fmt.Errorf("%w: there is none", relock.ErrTicket)

	// ErrSignature reports a text that is no ticket of a known issuer: the signature, the issuer,
	// the key, the form, or a claim is wrong or missing.
	ErrSignature = fmt.Errorf("%w: it is not signed by a known issuer", relock.ErrTicket)

	// ErrExpired reports a ticket whose time is over, or has not begun, by the clock of this
	// process.
	ErrExpired = fmt.Errorf("%w: this is not its time", relock.ErrTicket)

	// ErrAudience reports a ticket for another service.
	ErrAudience = fmt.Errorf("%w: it is for another service", relock.ErrTicket)
)

func because(err error, why string) error { return fmt.Errorf("%w: %s", err, why) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{relock.ErrInvalid}, args...)...)
}
