// Package pglisten hears the notifications of PostgreSQL over a connection of pgx.
package pglisten

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Listener implements relocksql.Listener. A Listener has one connection for each call of Listen.
type Listener struct{ url string }

// New makes a Listener for the server of a connection string of pgx. The server is PostgreSQL
// itself, or a pooler in session mode.
func New(url string) *Listener { return &Listener{url} }

const (
	connectLimit = 10 * time.Second
	// aliveEvery is how often a quiet connection is tested, as a dead server sends nothing.
	aliveEvery = 10 * time.Second
	closeLimit = time.Second
)

// Listen implements relocksql.Listener.
func (l *Listener) Listen(ctx context.Context, channel string, ready func(), notify func(payload string)) error {
	connecting, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := pgx.Connect(connecting, l.url)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		_ = conn.Close(closing) // the server ends the subscription in any case
	}()
	if _, err := conn.Exec(connecting, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	ready()
	for {
		waiting, cancel := context.WithTimeout(ctx, aliveEvery)
		n, err := conn.WaitForNotification(waiting)
		quiet := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			notify(n.Payload)
		case !quiet:
			return err
		default:
			alive, cancel := context.WithTimeout(ctx, connectLimit)
			err = conn.Ping(alive)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}
