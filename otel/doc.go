// Package relockotel is OpenTelemetry for relock: metrics, and a span for each acquire, made from the hooks of one or
// more clients.
//
//	telemetry, err := relockotel.New()
//	...
//	client, err := relock.New(rdb, relock.WithHooks(telemetry.Hooks()))
//
// One [Telemetry] serves all clients of a process. With no options it uses the global meter and tracer providers. To have
// hooks of your own beside it, see [relock.JoinHooks].
//
// # Metrics
//
// Names, kinds and units. The attributes begin with "relock." too: relock.outcome and so on.
//
//	relock.acquires              counter {acquire}      outcome, reentrant, waited: calls of Lock and its like that have returned
//	relock.acquire.duration      histogram s            outcome: from call to return, without nested entries
//	relock.acquire.ttl_ratio     histogram 1            the same as a multiple of the lock's TTL, without refusals of TryLock
//	relock.wakes                 counter {wake}         wake: waits that ended with the lock, by what told the waiter
//	relock.queue.position        histogram {waiter}     how many were before a waiter when it joined the queue
//	relock.waiters               up-down {waiter}       waiters in a queue now
//	relock.holds                 up-down {hold}         holds now
//	relock.hold.max_age          gauge s                the age of the oldest of them
//	relock.hold.max_age_ttl      gauge 1                the largest age as a multiple of the TTL
//	relock.hold.duration         histogram s            end: how long holds lasted, from first entry to last exit
//	relock.hold.ttl_ratio        histogram 1            the same as a multiple of the lock's TTL
//	relock.hold.depth            histogram {entry}      the deepest re-entry of each hold; 1 is none
//	relock.releases.unconfirmed  counter {release}      Unlocks that Redis did not confirm
//	relock.losses                counter {loss}         reason: holds that ended without Unlock
//	relock.leaks                 counter {leak}         contexts of entries that were dropped without Unlock
//	relock.renewals              counter {renewal}      result: leases that the watchdog renewed, or tried to
//	relock.renewal.duration      histogram s            round trips of the watchdog, each for many leases
//	relock.retries               counter {retry}        script: scripts that were sent again
//	relock.reconnects            counter {reconnect}    pub/sub connections that were lost and came back
//	relock.reconnect.downtime    counter s              how long they were gone
//	relock.events.dropped        counter {event}        events that were not counted, because too many waited
//
// Durations are of what has ended. A section that hangs shows in the ages of what is held now. Counters begin with 0,
// not with their first event; with a lock attribute, when the first lock with its value is asked for. (Histograms begin with
// their first event.) Exported to Prometheus, the metrics have the names of the module relock/prometheus.
//
// The page docs/OBSERVABILITY.md of the repository has all attribute values, alerts, and a dashboard.
//
// # Spans
//
// Each call of Lock, TryLock, TryLockFor, Do and DoFor is a span "relock.acquire", a child of the span in the caller's
// context, from the call to its return; what is done in the section is not in it. It is made when the call has returned,
// by the goroutine that runs the hooks. Its attributes are relock.outcome, relock.reentrant, relock.waited, relock.depth,
// relock.token, relock.wake, relock.holder (who asked), relock.owner (who had the lock, if that refused the call) and
// error.type. The status is an error for the outcomes lost and error; a lock that was taken is an answer.
//
// # The lock's name
//
// No metric and no span has the lock's name: names such as "orders:42" are without limit, and may say more than a trace
// should. [WithLockAttribute] adds an attribute relock.lock with what a function of yours makes of the name; that must be
// one of a few values. It is on all metrics but those of the whole client: renewals, retries, reconnects and dropped
// events.
package relockotel
