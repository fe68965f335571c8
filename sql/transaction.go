package relocksql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// LockTx takes a mutex for the rest of a transaction of the caller, in the database of the locks:
// the data and the lock are committed, or rolled back, in one step. Nobody gets the lock meanwhile,
// and the end of the transaction is the unlock. There is no lease, no token and nothing to renew;
// the transaction must be short, as a call that asks for the same lock waits for its end. Call
// LockTx first in the transaction, and several locks in one order everywhere.
//
// LockTx waits for other transactions of LockTx until ctx is done, and does not wait for sections:
// the lock of a section, or a lock that somebody waits for, is a [*relock.LockedError]. Roll back
// then, and after each other error: [relock.ErrInvalid] for a wrong name, [relock.ErrKind], and the
// errors of the database, such as a deadlock or a busy SQLite.
func (s *Store) LockTx(ctx context.Context, transaction *sql.Tx, name string) error {
	if transaction == nil {
		return fmt.Errorf("%w: LockTx(%q) without a transaction", relock.ErrInvalid, name)
	}
	a, err := s.Check(store.Ask{Name: name, TTL: time.Second, Limit: 1})
	if err != nil {
		return fmt.Errorf("%w: %w", relock.ErrInvalid, err)
	}
	t := &tx{s: s, ctx: ctx, session: transaction}
	if _, err := t.exec(touchLock, []byte(a.Name)); err != nil { // SQLite locks with the first write
		return fmt.Errorf("relocksql: %w", err)
	}
	k, err := t.open(a.Name, "", true)
	switch {
	case err != nil:
		return fmt.Errorf("relocksql: %w", err)
	case len(k.in) > 0 && k.kind != store.Mutex:
		return fmt.Errorf("%w: %q is %s, and not %s", store.ErrKind, name, k.kind, store.Mutex)
	case len(k.in) > 0:
		return &relock.LockedError{Name: name, TTL: k.in[0].left}
	case len(k.line) > 0:
		return &relock.LockedError{Name: name, Err: errors.New("others wait for it")}
	}
	return nil
}
