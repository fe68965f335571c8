// Package relockzk keeps locks in ZooKeeper, in the layouts of Curator's InterProcessMutex and
// InterProcessReadWriteLock, so that Go and Java share locks:
//
//	s, err := relockzk.New("zk1:2181,zk2:2181,zk3:2181/app", relockzk.WithRoot("/locks"))
//	...
//	client, err := relock.Open(s)
//	lock := client.NewLock("orders") // as new InterProcessMutex(curator, "/locks/orders"), in /app
//
// # Layout
//
// The path of a lock is a container node. Each hold, and each waiter, is an ephemeral sequential
// node below the path: _c_<uuid>-lock-<10 digits>. The lowest sequence number has the lock, and
// each waiter watches the node before its own. In a read-write lock the name has __READ__ or
// __WRIT__ in place of lock-. A writer is in when its number is the lowest, a reader when no writer
// has a lower number, and a reader that waits watches the last of these writers. The uuid is made
// from the ID of the hold, so that a repeated command, and a command that runs late, find the node
// again. The data of a node is the address of its process, as with Curator, and after a space a
// JSON object: the ID of the hold, the count of its entries, and its lease.
//
// # Sessions and leases
//
// A [Store] has one session. The nodes of the session live on for the timeout of the session after
// ZooKeeper has last heard of the session. A lease is shorter than the session by a quarter, see
// [WithSessionTimeout], so a lease that counts from a moment at which the session had not ended
// ends before the nodes. A transaction that a majority has committed shows such a moment: a write,
// or a transaction that only checks that nodes exist, which renews holds. A sync does not: a leader
// answers it that has lost its followers and does not know. The Store itself deletes the node of a
// hold whose lease is over. A process that died leaves its nodes for the rest of the session.
//
// A connection that is cut is no loss: the session goes on at another server. When ZooKeeper
// reports the end of the session, all holds are gone, and the waiters queue again in a new session.
//
// # States of a hold
//
//	asked    the node may exist: no answer has come        create
//	queued   the node exists, and another keeps it out      a lower node is deleted
//	held     the node exists, and none keeps it out         release, end of the lease
//	gone     the node is deleted, or the session is over
package relockzk
