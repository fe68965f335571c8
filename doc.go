// Package relock is a lock for several processes, kept in Redis or another store: reentrant,
// leased, kept alive, fenced, and first come, first served.
//
// # Overview
//
// A process makes one [Client], on a go-redis client ([New]) or on any store ([Open]). The Client
// makes locks by name. Prefer [Lock.Do]:
//
//	client, err := relock.New(rdb) // rdb is a redis.UniversalClient
//	...
//	lock := client.NewLock("orders:42")
//	err = lock.Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is here, in any process
//	})
//
// Do waits for the lock, runs the function, and unlocks, also on a panic. The function's context
// ends if the lock is lost, and the error says so. [Lock.DoFor] limits the wait, but not the work;
// the function [Do] takes a [Locker].
//
// [Lock.Lock], [Lock.TryLock] and [Lock.TryLockFor] return the section's context, for [Lock.Unlock]
// to end:
//
//	section, err := lock.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lock.Unlock(section)
//
// After Unlock the section's context is done. Code after Unlock needs the outer context again, so
// do not give both one name where the function goes on.
//
// # Words
//
//	holder   the identity of one chain of calls; a context carries the holder
//	hold     one holder's stay in one lock, from its first entry to its last exit
//	entry    one Lock and its Unlock
//	section  the time between them, and the context that Lock returns for it
//	lease    the time for which the store keeps a hold that nobody renews (the TTL)
//	waiter   a call that is queued for the lock
//	grant    the store gives the lock to a waiter
//	token    a number larger than every number that was drawn for the lock before, drawn on demand
//	loss     the end of a hold that its holder did not ask for
//	store    keeps the locks: Redis in relock's layout or Redisson's, memory, and others
//
// # Guarantees
//
// As long as the store keeps its data, no operator takes a lock away, and the clocks of the store
// and of the processes run at rates that differ by less than 1 %:
//
//   - At most one hold of a mutex is valid at any moment, and of other kinds as many as their
//     limits allow. A hold that was not renewed in time ends before the store gives the lock to
//     another: [Lock.Held] and [Lock.Remaining] say so, and the section's context ends.
//   - Two calls are in a mutex together only if one is inside the other's section, by its context.
//   - Tokens grow: each token that is drawn is larger than all tokens drawn for the lock before, in
//     all processes.
//   - Waiters are granted the lock in the order in which they joined its queue, by the server's
//     clock. Nobody overtakes them, not even TryLock of a lock that has just become free. A waiter
//     whose connection is interrupted when its turn comes is passed over, and has its old place
//     again when the connection is back.
//   - Waiting does not poll. An Unlock grants the lock to the first waiter in the same script, and
//     one message tells the waiter. A waiter asks by itself only when the lease of the owner should
//     be over, or when its connection was made anew.
//   - A message also names the waiters that stand directly behind the first one, if they are of the
//     same client and have the same TTL and [WithLockDelay]: 63 at most. Unlock then hands the lock
//     to the next of them inside the process, in the order of the queue. The store sees one hold,
//     from the grant to the Unlock of the last of these waiters.
//   - The store frees, keeps or refuses a lock by the hold alone. A count that a lost reply has
//     made wrong is right again with the next entry, exit or renewal.
//   - An Unlock, or any other command that arrives late or twice, ends no other hold and no outer
//     entry: commands name the hold, and the name of a hold is never used again.
//   - A loss is reported: the section's context ends with the cause, Unlock and Do return the
//     cause, and hooks and the logger get it.
//   - Nothing stays: every key expires, a waiter that gives up is taken out of the queue, and when
//     [Client.Close] has returned no goroutine or connection of the client is left.
//
// # Not guaranteed
//
// A lock with a lease is a promise between processes that look at their clocks. The promise ends
// where they cannot:
//
//   - Redis loses data. Redis replicates asynchronously, so a failover can forget a lock, and so
//     can a restart, an eviction (use the policy noeviction) or an operator. There can be two
//     holders then, until the first one renews and is told, or its deadline comes.
//     [WithReplicaAcks] makes that less likely for a failover, not impossible. Redis is not a
//     consensus system.
//   - A process stands still. A pause of the runtime or of the machine can be longer than the
//     lease. The context of a lost section ends when the process runs again, and a write in flight
//     is not called back. The monotonic clock of a suspended machine may stand still too: then the
//     wall clock ends the lease. [Lock.Held] is false at once, and the context ends within a
//     second.
//   - The clock of the server is set. Forward, leases end early; back, a lease that nobody renews
//     or releases lasts longer, and waiters that queue later may come first.
//   - An operator uses [Lock.ForceUnlock]. A message ends the holder's section in milliseconds;
//     where no message arrives, the next renewal does.
//
// In all of these the token helps: give [Lock.Token] to the resource that the lock guards, and let
// the resource refuse a token smaller than the largest one it has seen. Package fence does that for
// SQL databases and over HTTP, and [Lock.Eval] does it for data in Redis. A repeat is another
// matter: see packages once, oncehttp and oncesql. Package leader has one process of many lead.
//
// The number of waiters has no limit, unless [WithMaxWaiters] sets one.
//
// # Other kinds of locks
//
// [Client.NewRWLock] is a lock for one writer or many readers, and [Client.NewSemaphore] a lock for
// n holders. Both share with the mutex of [Client.NewLock]: one queue, first come, first served
// (but a call inside a section of the same read-write lock goes before it), a lease for each hold,
// re-entry by the context, and a report of each loss. A name is one kind of lock at a time; mixing
// kinds is [ErrKind]. A writer draws its token as it enters, and a reader's is minus the token of
// the last writer.
//
//	prices := client.NewRWLock("prices")
//	err = prices.RDo(ctx, read)  // beside other readers
//	err = prices.Do(ctx, write)  // alone
//
//	imports := client.NewSemaphore("imports", 4)
//	err = imports.Do(ctx, run)   // at most 4 at a time, in all processes
//
// [All] and [Client.NewLocks] take several locks, all or none, in one order for everybody:
//
//	err = client.NewLocks([]string{"account:7", "account:9"}).Do(ctx, transfer)
//
// Calls that take locks one inside the other, in different order, may wait for each other. A call
// that waits for longer than a second inside a section looks for such a circle, across processes.
// In a circle, the call that began to wait last returns a [*DeadlockError]. The search sees the
// sections of the Client of each call, and so no circle through the sections of two Clients in one
// process. A wait for one of several permits is no part of a circle, as any of them may become
// free. A quorum and Redisson's layout have no such search.
//
// # State of a hold
//
//	        +----------+   another has it   +--------+
//	Lock -> | entering | -----------------> | queued | -> error: ctx is done,
//	        +----------+                    +--------+    wait over, closed
//	          |      |                          |
//	          |      | it is free               | grant
//	          |      v                          |
//	          |   +------+ <--------------------+
//	          |   | held |   nested Lock: count + 1
//	          |   +------+   Unlock of one entry: count - 1
//	          |    |    |
//	          |    |    | last Unlock
//	          v    |    v
//	       error   |   released; the first waiter is granted the lock
//	               v
//	             lost: lease over, gone from the store, longest hold reached
//
// No state is entered again: the next Lock makes a new hold. [Client.Close] ends the contexts of
// open sections; Unlock still works, and a hold that is not unlocked ends with its lease.
//
// In Redis, a lock named N with the prefix P is:
//
//	P{N}          hash    the hold that has it, and its count; expires with the lease
//	P{N}:queue    zset    who waits, by arrival
//	P{N}:token    string  the last token; only where tokens are drawn; expires a day later
//	P{N}:<id>     channel the grants for one client
//
// A read-write lock or a semaphore is P{N} as a zset of holds by the ends of their leases, with
// P{N}:rw or P{N}:permits for the limits, P{N}:rw:queue or P{N}:permits:queue for who waits, and
// the same token and channels. P{<hold>}:waits shows for a few seconds for whom a call waits inside
// a section.
//
// A name with a hash tag of its own, such as "{user:7}:cart", is used without more braces. The
// scripts use commands that Redis has since version 6.2. In a cluster pub/sub is sharded from
// version 7.0 on.
//
// # Lease window
//
// A hold is valid until its deadline, on the monotonic clock of its process:
//
//	margin   = TTL / 100 + 2 ms
//	deadline = sent + TTL - margin
//
// A hold is also over when the wall clock of its process has passed the deadline, as the monotonic
// clock of a suspended machine may stand still. So a wall clock that is set ahead ends leases
// early. A wall clock that is set back changes nothing.
//
// sent is the time just before the command that set the lease was sent. Redis counts the TTL from
// the moment when it runs the command, which is later, so the deadline comes before the end of the
// lease in Redis, however slow the network was. The margin covers clocks that run at different
// rates, and the resolution of expiry in Redis. For a grant, sent is the time before the command
// whose reply said that the waiter was queued. If less than half of the TTL is left by that
// reckoning (of a fixed lease: nine tenths), one round trip makes the lease whole before Lock
// returns.
//
// One goroutine for each client, the watchdog, renews the lease a third of the TTL after the last
// success, and tries again until the deadline. At the deadline the hold is lost. Others wait up to
// a TTL after a crash. The TTL is no limit to the length of a section; [WithMaxHold] is. A
// [WithFixedLease] has no watchdog, and ends unless [Lock.Extend] makes it last longer. With
// [WithLockDelay] the store keeps a lock for longer than the lease, for a holder that stood still.
//
// The watchdog renews only while somebody works under the hold: when the contexts of all its
// entries are done, renewal stops. A section that goes on after that, to clean up, has the time
// that [Lock.Remaining] says.
//
// # Re-entry
//
// The context decides, and nothing else. A call enters again if its context is inside an open
// section of that very lock, of the same Client. Any other call makes a new hold, and excludes
// others:
//
//   - Goroutines that are started in a section of A and each lock B exclude each other in B. If
//     they lock A, they are inside of A already, and enter.
//   - A server whose base context is a section of A serves requests that exclude each other in B.
//   - A context of an Unlocked section, such as one of [context.WithoutCancel], is inside of
//     nothing.
//   - Two Clients of one process exclude each other like two processes.
//
// [WithSection] puts the calls under a context inside of a section, for callbacks and frameworks
// that bring their own context. [WithoutHolder] puts them outside of all sections.
//
// Each entry is left by its own Unlock, in any order. A second Unlock of one entry is [ErrNotHeld]
// and changes nothing. The lock is free when all entries are left. The options of the first entry
// hold for the whole stay. A nested entry asks the store, and so notices that the outer section was
// lost; [WithLocalReentry] saves that round trip.
//
// A nested call that waits for ever was most likely not given the section's context. A call that
// waits for a second for a hold of its own Client, or for a section around it, is logged, once for
// each line of the program.
//
// # Sections that travel
//
// A ticket takes a section of a mutex to another process, see package ticket. ticket.Lend and
// ticket.Borrow let that process in beside the lender, for as long as the lender has the lock.
// ticket.HandOff ends a section, and ticket.Accept continues it there; the lock is not free in
// between. With a stored ticket of ticket.ToResume a program continues after a restart. The fencing
// token stays the same. The package signs tickets, too, see ticket/README.md.
//
// # Failure handling
//
// Errors match one of the sentinels with [errors.Is], and their cause. An error of Redis that
// asking again would not change (NOAUTH, WRONGTYPE, out of memory) is returned at once. All other
// trouble is retried with growing pauses, by relock alone: go-redis is told not to send a command
// again, as only a sender that knows of both attempts can tell the meaning of the answer.
//
//	event                             effect
//	Redis does not answer, or         Lock goes on until ctx is done, TryLock for 2 s; what they may
//	  is failing over                 have left is taken back in the background. A holder's renewals
//	                                  go on until the deadline; then its context ends.
//	Redis does not answer Unlock      An error after 10 s, or at the end of the lease if that is
//	                                  sooner. The entry is left; the lock is free within its TTL.
//	the holder crashes                The first waiter has the lock when the lease has run out.
//	a waiter crashes                  Its turn is passed over. If the network still shows it as
//	                                  connected, the grant costs one TTL.
//	the pub/sub connection is lost    It is made again, and every waiter asks and keeps its place.
//	the hold is gone from the store   The context ends at the next renewal, nested Lock or Unlock.
//	ctx is done during a wait         Lock returns at once; its place is taken back later.
//	ctx is done in a section          The section's context ends with it. Unlock works.
//	Unlock is forgotten               When the garbage collector finds the context, the leak is
//	                                  reported (logger, Hooks.Leaked), and the lease runs out. A
//	                                  child context that is alive keeps the leak from being found.
//	the service shuts down            With WithStop waits end, and sections go on to their end.
//	the client is closed              Waits and contexts end with ErrClosed. Unlock works.
//
// Database drivers and HTTP clients report the end of a section's context as "context canceled".
// [context.Cause] knows the reason, and Do joins it to the error of its function.
package relock
