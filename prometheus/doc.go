// Package relockprom is Prometheus metrics of relock: a [Collector] that is fed by the hooks of one or more clients.
//
//	metrics := relockprom.New()
//	prometheus.MustRegister(metrics)
//	client, err := relock.New(rdb, relock.WithHooks(metrics.Hooks()))
//
// One Collector serves all clients of a process; with several, or with hooks of your own, see [relock.JoinHooks].
//
// # Metrics
//
//	relock_acquires_total{outcome,reentrant,waited}  calls of Lock, TryLock, TryLockFor, Do and DoFor that have returned
//	relock_acquire_duration_seconds{outcome}         from call to return, without nested entries: the wait for the lock
//	relock_acquire_ttl_ratio                         the same as a multiple of the lock's TTL, without refusals of TryLock
//	relock_wakes_total{wake}                         waits that ended with the lock, by what told the waiter
//	relock_queue_position                            how many were before a waiter when it joined the queue
//	relock_waiters                                   waiters in a queue now
//	relock_holds                                     holds now
//	relock_hold_max_age_seconds                      the age of the oldest of them
//	relock_hold_max_age_ttl_ratio                    the largest age as a multiple of the TTL
//	relock_hold_duration_seconds{end}                how long holds lasted, from first entry to last exit
//	relock_hold_ttl_ratio                            the same as a multiple of the lock's TTL
//	relock_hold_depth                                the deepest re-entry of each hold; 1 is none
//	relock_releases_unconfirmed_total                Unlocks that Redis did not confirm
//	relock_losses_total{reason}                      holds that ended without Unlock
//	relock_leaks_total                               contexts of entries that were dropped without Unlock
//	relock_renewals_total{result}                    leases that the watchdog renewed, or tried to
//	relock_renewal_duration_seconds                  round trips of the watchdog, each for many leases
//	relock_retries_total{script}                     scripts that were sent again
//	relock_reconnects_total                          pub/sub connections that were lost and came back
//	relock_reconnect_downtime_seconds_total          how long they were gone
//	relock_events_dropped_total                      events that were not counted, because too many waited
//
// Durations are of what has ended. A section that hangs shows in the ages of what is held now. Histograms have classic
// buckets, and native ones for a Prometheus that asks for them; the alerts and the dashboard want the classic ones
// (always_scrape_classic_histograms). Counters begin with 0, not with their first event, so
// that increase() sees that one too, if there was a scrape before it; with a lock label, when the first lock with its value
// is asked for.
//
// The page docs/OBSERVABILITY.md of the repository has all label values, alerts, and a dashboard.
//
// # The lock's name
//
// No metric has the lock's name: names such as "orders:42" are without limit, and each new label value is a time series
// for ever. [WithLockLabel] adds a label "lock" with what a function of yours makes of the name; that must be one of a
// few values. It is on all metrics but those of the whole client: renewals, retries, reconnects and dropped events.
package relockprom
