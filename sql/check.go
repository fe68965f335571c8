package relocksql

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-relock/relock/store"
)

// errUndo ends the transaction of CheckServer without a trace.
var errUndo = errors.New("undo")

// CheckServer implements [store.Checker]. CheckServer takes a lock in a transaction, undoes the
// transaction, and sends a notification to the Listener. Errors name what is missing: a table, a
// right, a writable server, or a Listener that hears.
func (s *Store) CheckServer(ctx context.Context, a store.Ask) error {
	a.Name, a.ID = "relock-check-"+rand.Text(), store.ID("check:1:"+rand.Text())
	err := s.run(ctx, command{asking, a.Name, fewTries, slow}, func(ctx context.Context) error {
		undo := s.transaction(ctx, func(t *tx) error {
			k, err := t.open(a.Name, a.ID, true)
			if err == nil {
				_, err = k.ask(a, ways{join: true})
			}
			if err == nil {
				err = errUndo
			}
			return err
		})
		if errors.Is(undo, errUndo) {
			return nil
		}
		return undo
	})
	if err != nil {
		err = fmt.Errorf("take a lock in the tables of relocksql.Create: %w", err)
	}
	if s.listener != nil {
		err = errors.Join(err, s.checkListener(ctx))
	}
	return err
}

// checkListener sends a notification through the database, and waits for the Listener.
func (s *Store) checkListener(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, limitOf(time.Minute))
	defer cancel()
	channel, heard := "relock_check_"+strings.ToLower(rand.Text()), false
	var sent error
	err := s.listener.Listen(ctx, channel, func() {
		_, sent = s.db.ExecContext(ctx, "SELECT pg_notify($1, 'check')", channel)
		if sent != nil {
			cancel()
		}
	}, func(string) { heard = true; cancel() })
	if heard {
		return nil
	}
	return fmt.Errorf("the Listener hears no notification (does it run through a pooler?): %w", errors.Join(sent, err))
}
