// Package fence is the resource's side of a fencing token: it refuses a holder that has lost its
// lock without noticing.
//
// A lock with a lease cannot stop a holder that stands still, such as a virtual machine that is
// moved: another holder gets the lock after the lease, and the first one goes on writing when it
// wakes up. The resource can stop it. A section draws a token from its lock (Lock.Token), each
// token is larger than all before, and the resource refuses a token smaller than the largest it has
// seen.
//
// For a SQL database the fence is a table with one row a resource. A transaction enters first:
//
//	var fences = fence.SQL(fence.Postgres)
//
//	token, err := lock.Token(section)
//	...
//	tx, err := db.BeginTx(section, nil)
//	...
//	defer tx.Rollback()
//	if err := fences.Enter(section, tx, "account:42", token); err != nil {
//		return err // fence.ErrStale: a later holder has been here
//	}
//	... // the work
//	return tx.Commit()
//
// For a service, [SetToken] puts the token into a request, and [Handler] takes it out again.
// [Memory] is the fence of a resource inside one process. The package needs the standard library
// only, and works with the tokens of any lock.
package fence
