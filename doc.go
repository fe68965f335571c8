// Package relock is a lock for several processes, kept in Redis: reentrant, leased, kept alive, fenced, and first come,
// first served.
//
// # Overview
//
// A [Client] is made once for a process, on a go-redis client. It makes locks by name. The form to prefer is [Lock.Do]:
//
//	client, err := relock.New(rdb) // rdb is a redis.UniversalClient
//	...
//	lock := client.NewLock("orders:42")
//	err = lock.Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is here, in any process
//	})
//
// Do waits for the lock, runs the function, and unlocks, also on a panic. The function's context ends if the lock is lost,
// and the error says so. [Lock.DoFor] limits the wait, but not the work; the function [Do] takes a [Locker].
//
// [Lock.Lock], [Lock.TryLock] and [Lock.TryLockFor] return the section's context, for [Lock.Unlock] to end:
//
//	section, err := lock.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lock.Unlock(section)
//
// After Unlock the section's context is done. Code after it needs the outer context again, so do not give both one name where the
// function goes on.
//
// The words of this documentation: a holder is the identity of one chain of calls; a context carries it. A hold is one stay
// of a holder in a lock, from its first entry to its last exit. An entry (in the code: a frame) is opened by Lock and left
// by Unlock; its context is the section's. The lease is how long Redis keeps a hold that is not renewed (the TTL). A waiter
// is a holder that is queued; a grant gives it the lock. The token is a number that is larger for each new hold.
//
// The scripts use what Redis has since version 6.2. In a cluster pub/sub is sharded from version 7.0 on, and plain before.
//
// # Guarantees
//
// As long as Redis keeps its data, no operator takes a lock away, and the clocks of Redis and of the processes run at rates
// that differ by less than 1 %:
//
//   - At most one hold of a lock is valid at any moment. [Lock.Held] and [Lock.Remaining] of a hold that was not renewed in
//     time say so, and its context ends, before Redis gives the lock to another.
//   - Tokens grow: each new hold of a lock has a larger token than all holds before, in all processes.
//   - Waiters are granted the lock in the order in which they joined its queue in Redis. Nobody overtakes them, not even
//     TryLock of a lock that has just become free. (A waiter whose connection is interrupted when its turn comes is passed
//     over; it has its old place again when it is back. [WithLocalPass] gives this up for a time that it bounds.)
//   - Waiting does not poll. An Unlock grants the lock to the first waiter in the same script, and one message tells it.
//     (With [WithLocalPass] it may pass the lock on inside the process instead.)
//     Besides that a waiter asks only when the lease that it was told of should be over, so the lock of a crashed holder is
//     granted then. (However long that lease is, it asks after about its own TTL at the latest, or after 10 s if that is more;
//     with [WithLocalPass] after about 30 s at the latest.)
//   - The hold count in Redis is what the holder's entries and exits make it, whatever replies were lost and however
//     often a command was sent. Scripts set the count; they do not add to it.
//   - An Unlock, or any other command that arrives late or twice, ends no other hold and no outer entry: commands name the
//     hold, and a hold's name is never used again.
//   - A loss is told: the section's context ends with the cause, Unlock and Do return it, and hooks and the logger get it.
//   - Nothing stays: every key in Redis expires, a waiter that gives up is taken out of the queue, and when [Client.Close]
//     has returned no goroutine or connection of the client is left.
//
// # Not guaranteed
//
// A lock with a lease is a promise between processes that look at their clocks. It ends where they cannot:
//
//   - Redis loses data. It replicates asynchronously, so a failover can forget a lock, and so can a restart, an eviction
//     (use the policy noeviction) or an operator. Then there can be two holders, until the first renews
//     and is told (a third of a TTL), or cannot, and its deadline comes. [WithReplicaAcks] makes it less likely for a
//     failover, not impossible. This is not a consensus system.
//   - A process stands still, or is slow to look. A pause of the runtime or of the machine can be longer than the lease;
//     the context of a lost section ends when the process runs again, and a write that is on its way by then is not
//     called back. While a machine is suspended its monotonic clock may stand still too, and the hold looks valid until
//     the next renewal.
//   - The clock of the Redis server is set. Forward, leases end early, and until the next renewal two may hold the lock;
//     back, a lease that nobody renews or releases lasts that much longer.
//   - An operator uses [Lock.ForceUnlock]. The holder is told at its next renewal and works on until then; under
//     [WithFixedLease], which has no renewals, until it calls Extend or Unlock, or its lease ends.
//
// In all of these the token helps, and nothing else does: give [Lock.Token] to the resource that the lock guards, and let
// the resource refuse a token smaller than the largest it has seen. Take the token when the section begins: after a loss
// Token returns 0, which the resource should refuse as well. (A token can only turn back if Redis has lost the last one and
// at the same time the server's clock is behind it.)
//
// Also not: there is no limit to the number of waiters, no detection of deadlocks between two locks that are taken in
// different order, and no lock for readers.
//
// # State model
//
// One hold, as its process sees it:
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
//	             lost: lease over, gone from Redis, longest hold reached
//
// No state is entered again: the next Lock makes a new hold, with a new token. [Client.Close] ends the contexts of what is
// held; Unlock still works, and what is not unlocked is free when its lease has run out.
//
// In Redis, a lock named N with the prefix P:
//
//	P{N}          hash    the hold that has it, its count, who is next, and whom it was passed to; expires with the lease
//	P{N}:queue    zset    who waits, by arrival
//	P{N}:token    string  the last token that was given or set aside; expires about a day after its last use
//	P{N}:<id>     channel the grants for one client
//
// So each name that was locked keeps about 130 bytes in Redis for a day: what has a new name each time adds up.
//
// A name that has a hash tag of its own, such as "{user:7}:cart", is used without more braces.
//
// # Lease window
//
// A hold is valid until its deadline, on the monotonic clock of its process:
//
//	margin   = TTL / 100 + 2 ms
//	deadline = sent + TTL - margin
//
// sent is the time just before the command that set the lease was sent, not the time of the reply. Redis counts the TTL
// from when it runs the command, which is later, so the deadline is before the end of the lease in Redis, however slow the
// network was. The margin covers clocks that run at different rates, and the resolution of expiry in Redis. For a grant,
// sent is the time before the last command whose reply said that the waiter was still queued; if less than half of the
// TTL is left by that reckoning (of a fixed lease: less than nine tenths), the waiter confirms the grant with one round trip
// before it enters.
//
// One goroutine for each client, the watchdog, renews the lease a third of the TTL after the last success, and goes on
// trying what is not confirmed until the deadline. At the deadline the hold is lost. So others wait up to a TTL after a
// crash. An interruption between holder and Redis may last about half of a TTL, whenever it begins; nearly two thirds, if what was
// sent meanwhile arrives after all. The TTL is no limit to the length of a section; [WithMaxHold] is one. With [WithFixedLease]
// there is no watchdog, and the lease ends unless it is extended.
//
// The watchdog renews only while somebody works under the hold: when the context that was given to Lock is done, it stops.
// A section that goes on after that (to clean up, say) has what [Lock.Remaining] says, and a section that is never
// unlocked ends at most one TTL after its request.
//
// # Re-entry
//
// The context decides. Lock with a context that carries a holder enters as that holder: at once if the holder has the lock,
// one level deeper. Lock with any other context makes a new holder, so two unrelated calls never enter together by
// accident, and two goroutines only if they were given the context of one section.
//
// Each entry is left by its own Unlock, in any order. A second Unlock of one entry is [ErrNotHeld] and changes nothing. The
// lock is free when all are left. The options of the first entry (its TTL, say) hold for the whole stay.
//
// A nested entry asks Redis, and so notices that the outer section was lost ([ErrLockLost]). [WithLocalReentry] saves that
// round trip and relies on the deadline.
//
// If a nested call waits for ever, it was most likely not given the section's context. Three cases are different:
//
//   - Goroutines that were given the context of one section are one holder in every other lock too, and enter it together. Where
//     they must exclude each other, they take it with [WithoutHolder]. Then they must not ask for the lock of the section itself
//     while the section waits for them.
//   - Calls that belong together without a common context share a holder: [NewHolder], [WithHolder].
//   - A holder re-enters only through the Client that took the lock. Two Clients of one process exclude each other like two
//     processes, also with one holder.
//
// # Locks that a whole process wants
//
// With [WithLocalPass] the calls of one Client that wait for a lock stand in a line. One leads: it has the lock, or waits for it
// in Redis in the name of all. A section that ends passes the lock, with its lease, to the next in the line, and nobody is
// asked. For Redis it is one hold throughout, so what is sent about it means the same before and after a pass. The tokens for
// the holds to come are set aside when Redis gives the lock, and those that are left come back when it is released,
// if nobody has changed that key meanwhile.
//
// Waiters of other processes are overtaken while the lock stays inside: for a number of passes and a time that are bounded, and
// begin when Redis gives the lock to the process. The lock is not passed on when half of its lease has gone by without a renewal,
// when it is not known what has become of some command about it, or when Redis could not be told of some exit.
//
// # Redisson
//
// [WithRedissonLayout] makes a client keep its locks as the Java library Redisson does, so that Go and Java services share
// them: [Client.NewLock] is then getLock, and with [WithRedissonFencing] getFencedLock. What is said above of entries,
// leases, losses and commands that are lost, late or repeated holds there too. What is said of the queue and of tokens does
// not: waiters race for a lock that has become free, and only a fenced lock has tokens. docs/REDISSON.md has the details,
// for both sides.
//
// # Failure handling
//
// Errors match one of the sentinels with [errors.Is], and what caused them: a wait for a lock that another has, ended by
// the caller's deadline, is [ErrLocked] and [context.DeadlineExceeded]; if Redis has not said who has the lock, only the
// latter. [*LockedError] says who has the lock, [*LostError]
// what was lost and why. An error of Redis that asking again would not change (NOAUTH, WRONGTYPE, out of memory, ...) is
// returned at once. All other trouble is retried with growing pauses, by this package alone: go-redis is told not to send a
// command again, because only a sender that knows that it was sent twice can tell what the answer means.
//
//	what happens                      what you see
//	Redis does not answer, or         Lock goes on until ctx is done, TryLock tries three times; what they may have left
//	  is failing over                 behind is taken back in the background. A holder's renewals are tried until the
//	                                  deadline; then its context ends (LossExpired).
//	Redis does not answer Unlock      An error after 10 s, or at the end of the lease if that is sooner. The entry is left;
//	                                  the lock is free within its TTL.
//	the holder crashes                The first waiter has the lock when the lease has run out.
//	a waiter crashes                  It is passed over when its turn comes. If the network still shows it as connected,
//	                                  the grant costs one TTL.
//	the pub/sub connection is lost    It is made again, and then every waiter asks Redis and keeps its place.
//	the hold is gone from Redis       The context ends at the next renewal, nested Lock or Unlock (LossTaken).
//	ctx is done during a wait         Lock returns at once; the waiter is taken out of the queue in the background.
//	ctx is done in a section          The section's context ends with it. Unlock works; renewal has stopped.
//	Unlock is forgotten               When the garbage collector finds the context, from the first renewal on (of a fixed
//	                                  lease: at its end), it is reported (logger, Hooks.Leaked), and the lease runs out.
//	                                  Not while a context that was made from it is not cancelled.
//	the client is closed              Waits and contexts end with ErrClosed. Unlock works.
//
// A section that is cut short sees its context end; database drivers and HTTP clients report that as "context canceled".
// [context.Cause] knows the reason, and Do joins it to the error of its function.
package relock
