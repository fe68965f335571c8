// Package inside is the part of a relock.Lock for other packages of this module alone: leader, once,
// ticket.
package inside

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-relock/relock/store"
)

// Lock is the inside of a relock.Lock.
type Lock struct {
	Store store.Store
	Claim store.Claim // of each hold, without its ID

	// Life ends with the Close of the client.
	Life context.Context
	// Go runs f in a goroutine that Close waits for. Go returns false if the client is closed.
	Go func(f func()) bool
	// Log writes to the logger of the lock, and waits for nothing.
	Log func(level slog.Level, text string, attrs ...slog.Attr)
	// Lead is Lock, with Leader set in the events of the hold.
	Lead func(ctx context.Context) (section context.Context, err error)
	// Stoppable returns a context that ends with ctx, and with the stop of WithStop around it.
	Stoppable func(ctx context.Context) (stoppable context.Context, cancel context.CancelFunc)

	Tickets Tickets
}

// Tickets are the verbs of package ticket, with its promises. A Ticket made by them has no expiry.
type Tickets interface {
	Lend(section context.Context) (Ticket, error)
	HandOff(section context.Context) (Ticket, error)
	ToResume(section context.Context) (Ticket, error)
	Borrow(ctx context.Context, t Ticket) (section context.Context, err error)
	Accept(ctx context.Context, t Ticket) (section context.Context, err error)
}

// Ticket is a ticket.Ticket.
type Ticket struct {
	Use     string
	ID      string
	Lock    string
	Hold    string
	Token   int64
	TTL     time.Duration
	Delay   time.Duration
	Expires time.Time
}

// The uses of a ticket.
const (
	Loan    = "loan"
	HandOff = "hand-off"
	Resume  = "resume"
)
