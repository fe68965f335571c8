// Package relockotel is OpenTelemetry for relock. The hooks of one or more clients feed metrics,
// and spans for each call and each section.
//
//	telemetry, err := relockotel.New()
//	...
//	client, err := relock.New(rdb, relock.WithHooks(telemetry.Hooks()))
//
// One [Telemetry] serves all clients of a process. To tell clients apart, make a Telemetry for
// each, with [WithClientAttribute]. Without options, New uses the global meter and tracer
// providers. To add hooks of your own, see [event.Join].
//
// # Metrics
//
// Names, kinds and units. Attributes also begin with "relock.", as in relock.outcome.
//
//	relock.client.acquires              counter {acquire}    mode, outcome, reentrant, waited: calls
//	relock.client.acquire.duration      histogram s          mode, outcome: from call to return
//	relock.client.acquire.ttl_ratio     histogram 1          mode: the same in TTLs of the lock
//	relock.client.wakes                 counter {wake}       mode, wake: waits that got the lock
//	relock.client.queue.position        histogram {waiter}   mode: how many were before a waiter
//	relock.client.waiters               up-down {waiter}     mode: waiters in a queue now
//	relock.client.holds                 up-down {hold}       mode: holds now
//	relock.client.hold.max_age          gauge s              mode: age of the oldest hold
//	relock.client.hold.max_age_ttl      gauge 1              mode: largest age in TTLs
//	relock.client.hold.duration         histogram s          end, mode: first entry to last exit
//	relock.client.hold.ttl_ratio        histogram 1          mode: the same in TTLs of the lock
//	relock.client.hold.depth            histogram {entry}    mode: deepest re-entry; 1 is none
//	relock.client.releases.unconfirmed  counter {release}    mode: Unlocks that were not confirmed
//	relock.client.losses                counter {loss}       mode, reason: holds that were lost
//	relock.client.leaks                 counter {leak}       mode: contexts dropped without Unlock
//	relock.client.asks                  counter {hold}       mode: holds asked to give back, and listening
//	relock.client.renewals              counter {renewal}    result: leases renewed, or tried to
//	relock.client.renewal.duration      histogram s          round trips of the watchdog
//	relock.client.retries               counter {retry}      script: commands sent again, or slow (Hooks.Retried)
//	relock.client.reconnects            counter {reconnect}  pub/sub connections that came back
//	relock.client.reconnect.downtime    counter s            how long these were gone
//	relock.client.events.dropped        counter {event}      events that were not counted
//
// Nested entries count in relock.client.acquires alone; relock.client.acquire.ttl_ratio also leaves
// out refusals of TryLock. Durations cover what has ended. A section that hangs shows in the ages
// of open holds. A hold of package leader is long on purpose: it counts as a hold, and has no age
// and no ratio to its TTL. A series begins with its first event, and histograms have a few buckets.
// [WithDetails] gives many buckets, the histograms of queue positions, of depths and of renewals,
// and counters that begin with 0.
//
// The mode is exclusive (a mutex, or a read-write lock for writing), shared (a read-write lock for
// reading) or permit (a semaphore).
//
// An exporter for Prometheus turns relock.client.holds into relock_client_holds, and the module
// relock/prometheus has relock_holds. The names differ so that one registry can serve both modules.
// The page docs/OPERATIONS.md of the repository maps one set of names to the other; the page
// also lists all attribute values, and has alerts and a dashboard.
//
// # Spans
//
// Each call of Lock, TryLock, TryLockFor, Do and DoFor is a span "relock.acquire", from the call to
// its return. Each hold is a span "relock.section", from the lock to the end of the hold: the last
// Unlock, the loss, or Close. Both are children of the span in the caller's context. The spans of
// go-redis for the commands of a call are children of the acquire. The context that Lock returns
// has the span of the section, so the work of the section, and the commands of Unlock, are its
// children. A nested entry is an acquire in the section, and no section of its own.
//
// Two kinds of commands are in no acquire: a command that several calls share, and the one command
// for all locks of a relock.Locks.
//
// Both spans have relock.mode and relock.holder (the holder that asked). An acquire has
// relock.outcome, relock.reentrant, relock.waited, relock.depth, relock.wake, relock.owner (the
// holder that had the lock when the store last refused the call) and error.type. Its status is an
// error for the outcomes lost, deadlock and error; a refusal is an answer. A section has
// relock.end, relock.depth (the deepest re-entry), and after a loss relock.reason. Its status is an
// error after a loss, and after an Unlock that the store did not confirm.
//
// An acquire that was refused, or has waited, has a link to the section of this process that had
// the lock last meanwhile. The section may be of another process: then relock.owner of the acquire
// is relock.holder of the section.
//
// The end of a section comes with its event. After dropped events the spans of some sections are
// missing.
//
// # The lock's name
//
// No metric and no span has the lock's name: names such as "orders:42" are without limit, and may
// say more than a trace should. [WithLockAttribute] adds an attribute relock.lock with what a
// function of yours makes of the name: one of a few values. The attribute is on all metrics but
// those of the whole client: renewals, retries, reconnects and dropped events.
package relockotel
