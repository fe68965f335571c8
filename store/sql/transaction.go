package relocksql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// LockTx takes a mutex for the rest of a transaction of the caller, in the database of the locks:
// the data and the lock are committed, or rolled back, in one step. Nobody gets the lock meanwhile,
// and the end of the transaction is the unlock. There is no lease, no token and nothing to renew;
// the transaction must be short, as a call that asks for the same lock waits for its end. Call
// LockTx first in the transaction, and several locks in one order everywhere. A rollback to a
// savepoint from before LockTx gives the lock back, though the transaction goes on (not in SQLite).
//
// LockTx waits for other transactions of LockTx until ctx is done, and does not wait for sections:
// the lock of a section, or a lock that somebody waits for, is a [*relock.LockedError]. Roll back
// then, and after each other error: [relock.ErrInvalid] for a wrong name, [relock.ErrKind], and the
// errors of the database, such as a deadlock or a busy SQLite.
//
// In PostgreSQL the transaction must be READ COMMITTED, the default. At other levels LockTx could
// miss a hold, and is [relock.ErrInvalid]. A policy of row-level security could hide a hold, so
// LockTx refuses a user to whom policies of the tables apply. In MySQL and MariaDB choose
// [sql.LevelReadCommitted] too: at their default, REPEATABLE READ, calls that ask for neighboring
// names wait for the end of the transaction.
func (s *Store) LockTx(ctx context.Context, transaction *sql.Tx, name string) error {
	if transaction == nil {
		return fmt.Errorf("%w: LockTx(%q) without a transaction", relock.ErrInvalid, name)
	}
	a, err := s.Check(store.Claim{Name: name, TTL: time.Second, Limit: 1})
	if err != nil {
		return fmt.Errorf("%w: %w", relock.ErrInvalid, err)
	}
	s.cleanNow()
	t := &tx{s: s, ctx: ctx, session: transaction}
	k, err := t.openNow(a.Name)
	switch {
	case err != nil:
		_, advice := judge(s.dialect, err)
		return refusal(err, advice)
	case len(k.in) > 0 && k.kind != store.Mutex:
		return fmt.Errorf("%w: %q is %s, and not %s", store.ErrKind, name, k.kind, store.Mutex)
	case len(k.in) > 0:
		return &relock.LockedError{Name: name, TTL: k.in[0].left}
	case len(k.line) > 0:
		return &relock.LockedError{Name: name, Err: errors.New("others wait for it")}
	}
	return nil
}

// openNow locks the row of a name in a transaction of the caller, and reads its rows.
func (t *tx) openNow(name string) (*lock, error) {
	if err := cmp.Or(t.s.file.stays(t), t.seesAll()); err != nil {
		return nil, err
	}
	if _, err := t.exec(touchLock, []byte(name)); err != nil { // SQLite locks with the first write
		return nil, err
	}
	k := &lock{tx: t, name: name}
	if err := k.lockRow(true); err != nil {
		return nil, err
	}
	return k, k.loadNow()
}

// havePolicies says whether row-level security of PostgreSQL applies to the user of a session.
const havePolicies = "row_security_active('relock_locks') OR row_security_active('relock_holds')"

// errPolicies refuses policies. The rows of a check cannot show which rows of others a policy hides.
var errPolicies = errors.New("row-level security applies to this user (row_security_active), and may hide the rows of holds")

// seesAll refuses a transaction of PostgreSQL that may miss a hold: its snapshot may be older than
// its lock, or a policy may hide rows from it.
func (t *tx) seesAll() error {
	if t.s.dialect != Postgres {
		return nil
	}
	var level string
	var policies bool
	err := t.query("SELECT current_setting('transaction_isolation'), "+havePolicies,
		func(rows *sql.Rows) error { return rows.Scan(&level, &policies) })
	switch {
	case err != nil:
		return err
	case !strings.HasPrefix(level, "read "): // READ UNCOMMITTED is READ COMMITTED
		return fmt.Errorf("%w: LockTx at isolation level %s, and not read committed", relock.ErrInvalid, level)
	case policies:
		return errPolicies
	}
	return nil
}

const selectNow = `SELECT ` + columns + ` FROM relock_holds WHERE name = ?{all}`

// loadNow reads the live rows of the name. The first read is plain: a locked row of a hold would
// hold up its renewals until the caller rolls back. A plain read misses a new hold if the
// transaction has an older snapshot, so a lock that seems free is read with locks.
func (k *lock) loadNow() error {
	for _, statement := range []string{selectNow, selectNow + `{lock}`} {
		err := k.query(statement, func(rows *sql.Rows) error {
			r, err := scanRow(rows)
			switch {
			case r.left <= 0:
			case r.state == waiting:
				k.line = append(k.line, r)
			default:
				k.in = append(k.in, r)
			}
			return err
		}, []byte(k.name))
		if err != nil || len(k.in)+len(k.line) > 0 {
			return err
		}
	}
	return nil
}
