// Package relockprom is Prometheus metrics for relock: a [Collector] that the hooks of one or more
// clients feed.
//
//	metrics := relockprom.New()
//	prometheus.MustRegister(metrics)
//	client, err := relock.New(rdb, relock.WithHooks(metrics.Hooks()))
//
// One Collector serves all clients of a process. To tell clients apart, make a Collector for each,
// and register it with a label of its own, see [prometheus.WrapRegistererWith]. With several, or
// with hooks of your own, see [event.Join].
//
// # Metrics
//
//	relock_acquires_total{mode,outcome,reentrant,waited}  calls that asked and have returned
//	relock_acquire_duration_seconds{mode,outcome}         from call to return: the wait for the lock
//	relock_acquire_ttl_ratio{mode}                        the same as a multiple of the lock's TTL
//	relock_wakes_total{mode,wake}                         waits that ended with the lock
//	relock_queue_position{mode}                           how many were before a waiter that joined
//	relock_waiters{mode}                                  waiters in a queue now
//	relock_holds{mode}                                    holds now
//	relock_hold_max_age_seconds{mode}                     the age of the oldest hold
//	relock_hold_max_age_ttl_ratio{mode}                   the largest age as a multiple of the TTL
//	relock_hold_duration_seconds{end,mode}                from first entry to last exit
//	relock_hold_ttl_ratio{mode}                           the same as a multiple of the lock's TTL
//	relock_hold_depth{mode}                               the deepest re-entry; 1 is none
//	relock_releases_unconfirmed_total{mode}               Unlocks that the store did not confirm
//	relock_losses_total{mode,reason}                      holds that ended without Unlock
//	relock_leaks_total{mode}                              contexts that were dropped without Unlock
//	relock_asks_total{mode}                               holds that were asked to give back, and listen
//	relock_renewals_total{result}                         leases renewed, or tried to
//	relock_renewal_duration_seconds                       round trips of the watchdog
//	relock_retries_total{script}                          commands sent again, or slow (Hooks.Retried)
//	relock_reconnects_total                               pub/sub connections that came back
//	relock_reconnect_downtime_seconds_total               how long these connections were gone
//	relock_events_dropped_total                           events that were not counted
//
// Nested entries count in relock_acquires_total alone; relock_acquire_ttl_ratio also leaves out
// refusals of TryLock. Durations cover what has ended. A section that hangs shows in the ages of
// open holds. A hold of package leader is long on purpose: it counts as a hold, and has no age
// and no ratio to its TTL.
//
// The label mode is exclusive (a mutex, or a read-write lock for writing), shared (a read-write
// lock for reading) or permit (a semaphore).
//
// Histograms have classic buckets, and native ones for a Prometheus that asks for them; the alerts
// and the dashboard want the classic ones (always_scrape_classic_histograms). By default there are
// a few buckets, and a series begins with its first event. [WithDetails] gives many buckets, the
// histograms of queue positions, of depths and of renewals, and counters that begin with 0.
//
// The page docs/OPERATIONS.md of the repository has all label values, alerts, and a dashboard.
// The module relock/otel has the same metrics under names of its own, so one registry can serve
// both.
//
// # The lock's name
//
// No metric has the lock's name: names such as "orders:42" are without limit, and each new label
// value is a time series for ever. [WithLockLabel] adds a label "lock" with what a function of
// yours makes of the name: one of a few values. The label is on all metrics but those of the whole
// client: renewals, retries, reconnects and dropped events.
package relockprom
