// Package oncesql does something once for each key, in the caller's own SQL database. A key is, for
// example, the number of an order, or the idempotency key of a request.
//
// [Do] runs a function in a transaction. The key, the writes of the function and its result commit
// together, or not at all. A later call with the same key returns the stored result and does not
// run the function:
//
//	payments := oncesql.New(db, fence.Postgres)
//
//	receipt, replayed, err := oncesql.Do(ctx, payments, "payment:42",
//		func(ctx context.Context, tx *sql.Tx) (Receipt, error) {
//			... // writes through tx
//			return receipt, nil
//		}, oncesql.Input(request))
//
// # What is once
//
// Only what the function writes through its transaction is once. A write through another connection
// stays when the transaction is rolled back, and so does an effect outside of the database, such as
// a mail or an HTTP request: the function may run again after it. To cover such an effect, write it
// through the transaction as a job for later, and give the job's receiver the key.
//
// The function must leave the end of the transaction to Do: no Commit, no Rollback, and no
// statement that commits by itself, as those do that create or change tables in MySQL. The tables
// that it writes must be transactional, which in MySQL means InnoDB.
//
// # Concurrent calls
//
// The key is unique in the table, and Do inserts it before it runs the function. A concurrent call
// with the same key waits in the database for the end of the first transaction. The call returns
// the first one's result, or runs its own function if the first one was rolled back.
//
// So Do needs no lock to be right. A lock with the name of the key, taken before Do, spares the
// database the waiting transactions.
//
// # Isolation levels
//
// Do is right at every isolation level, see [WithTxOptions]. Calls that meet at a key may fail,
// with an error of the driver that says to try the transaction again:
//
//   - PostgreSQL at the levels RepeatableRead and Serializable: 40001, for a call that has waited
//     for the first one's commit. A read at such a level cannot see the row that it has waited for.
//     The default, ReadCommitted, has no such error.
//   - MySQL and MariaDB: 1213 (deadlock) if several calls waited for a call that was rolled back,
//     and 1205 after a wait of innodb_lock_wait_timeout.
//   - SQLite: SQLITE_BUSY if the writers do not wait for each other. Set busy_timeout.
//
// To repeat Do with the same key is safe after every error, whatever the error is. Do never repeats
// anything by itself.
//
// # Retention
//
// A key stays in the table until [Store.Purge] removes it. After that the key is new again. Call
// Purge from time to time, with an age above the age of the oldest call that may still be repeated.
package oncesql
