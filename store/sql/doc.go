// Package relocksql keeps locks in a SQL database: PostgreSQL, MySQL, MariaDB or SQLite.
//
//	store, err := relocksql.New(db, relocksql.Postgres, relocksql.WithListener(pglisten.New(url)))
//	client, err := relock.Open(store)
//
// A lock is rows, not a session: a lease in a row outlives a lost connection, and works through a
// pooler that changes the connection between transactions. Advisory locks and GET_LOCK belong to a
// session, so such a pooler breaks them silently.
//
// # Tables
//
// The table relock_locks has a row for each name: its kind, the number of the last arrival in the
// queue, and the last fencing token. The table relock_holds has a row for each hold and for each
// waiter: until when the database keeps the row, by the clock of the database. [Create] makes both
// tables, and [Schema] returns their statements for a migration.
//
// # States
//
// A row of relock_holds is in one of three states, and each change is part of one transaction that
// locks the row of the name first:
//
//	(no row) -> waiting    a claim finds the lock taken, and gets the next arrival number
//	(no row) -> held       a claim finds the lock free, and nobody waits
//	waiting  -> granted    a transaction that frees the lock gives it to the first live waiter
//	granted  -> held       the first entry or renewal of the hold
//	any      -> (no row)   release, forget, break, or the end of the lease
//
// A place in the queue has a short lease, so a dead waiter is passed over. One waiter of a Store
// renews the places of all its waiters for that name. Entries and renewals are single statements
// that touch one row, and do not lock the row of the name. The statement that takes an expired hold
// out compares the lease once more, so that a renewal and the end of a lease cannot both happen.
//
// # Wake-up
//
// In PostgreSQL with a [Listener], the transaction that grants a lock notifies the client of the
// waiter. Otherwise each Store with waiters asks for its granted rows in one statement, at
// intervals within the bounds of [WithPoll].
package relocksql
