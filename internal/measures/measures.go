// Package measures names and describes the metrics that modules otel and prometheus both have.
package measures

import (
	"strings"

	"github.com/go-relock/relock/event"
)

// Label joins the labels of a lock, its mode and what its name maps to, into one text for package
// inflight.
func Label(mode event.Mode, lock string) string { return string(mode) + " " + lock }

// Split takes a text of [Label] apart.
func Split(label string) (mode, lock string) {
	mode, lock, _ = strings.Cut(label, " ") // no mode has a space
	return mode, lock
}

// Measure describes a metric.
type Measure struct {
	Name   string // in OpenTelemetry, behind the prefix of the module
	Unit   string // in OpenTelemetry
	Series string // the name in Prometheus, which ends with the unit
	Help   string
}

// The measures of locks.
var (
	Acquires = Measure{"acquires", "{acquire}", "relock_acquires_total",
		"Calls that asked for a lock and have returned."}
	AcquireTime = Measure{"acquire.duration", "s", "relock_acquire_duration_seconds",
		"Time from the call to its return. Nested entries are left out."}
	AcquireTTL = Measure{"acquire.ttl_ratio", "1", "relock_acquire_ttl_ratio",
		"Acquire time as a multiple of the lock's TTL. Nested entries, refusals without a wait and leaders are left out."}
	Wakes = Measure{"wakes", "{wake}", "relock_wakes_total",
		"Waits that ended with the lock, by the cause of the wake-up."}
	Position = Measure{"queue.position", "{waiter}", "relock_queue_position",
		"Number of waiters before one that joined the queue."}
	HoldTime = Measure{"hold.duration", "s", "relock_hold_duration_seconds",
		"Time from the first entry of a hold to its last exit."}
	HoldTTL = Measure{"hold.ttl_ratio", "1", "relock_hold_ttl_ratio",
		"Time from the first entry of a hold to its last exit as a multiple of the lock's TTL. Leaders are left out."}
	Depth = Measure{"hold.depth", "{entry}", "relock_hold_depth",
		"The highest number of open entries of a hold; 1 is no re-entry."}
	Unconfirmed = Measure{"releases.unconfirmed", "{release}", "relock_releases_unconfirmed_total",
		"Last exits of a hold that the store did not confirm."}
	Losses = Measure{"losses", "{loss}", "relock_losses_total", "Holds that ended without Unlock."}
	Leaks  = Measure{"leaks", "{leak}", "relock_leaks_total",
		"Reports of entries whose context was dropped without Unlock."}
	Asks = Measure{"asks", "{hold}", "relock_asks_total",
		"Holds that were asked to give their lock back, and listen."}
	Waiters = Measure{"waiters", "{waiter}", "relock_waiters", "Waiters that are queued for a lock."}
	Holds   = Measure{"holds", "{hold}", "relock_holds", "Holds that are open."}
	MaxAge  = Measure{"hold.max_age", "s", "relock_hold_max_age_seconds",
		"Age of the oldest hold that is open, 0 if there is none. Leaders are left out."}
	MaxAgeTTL = Measure{"hold.max_age_ttl", "1", "relock_hold_max_age_ttl_ratio",
		"Largest age of an open hold as a multiple of the lock's TTL. Leaders are left out."}
)

// The measures of clients.
var (
	Renewals    = Measure{"renewals", "{renewal}", "relock_renewals_total", "Renewals of a lease by the watchdog."}
	RenewalTime = Measure{"renewal.duration", "s", "relock_renewal_duration_seconds",
		"Time of a round trip of the watchdog, which renews many leases."}
	Retries    = Measure{"retries", "{retry}", "relock_retries_total", "Scripts that were sent to Redis again."}
	Reconnects = Measure{"reconnects", "{reconnect}", "relock_reconnects_total",
		"Pub/sub connections that were lost and are back."}
	Downtime = Measure{"reconnect.downtime", "s", "relock_reconnect_downtime_seconds_total",
		"Time for which the pub/sub connections that are back were gone."}
	Dropped = Measure{"events.dropped", "{event}", "relock_events_dropped_total",
		"Events that are in no metric, because too many waited for the hooks."}
)

// Bounds are the upper bounds of the buckets of histograms.
type Bounds struct {
	Seconds, RoundTrips []float64 // in seconds
	TTLs                []float64 // in TTLs of the lock
	Positions, Depths   []float64
}

// Few are the default bounds: a few time series a lock, and what the alerts ask for.
var Few = Bounds{Seconds: []float64{.01, .1, 1, 10}, TTLs: []float64{1, 2}}

// Details are the bounds for programs that want details.
var Details = Bounds{
	Seconds: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300,
		1800, 3600},
	RoundTrips: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	TTLs:       []float64{.1, .25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 100, 1000},
	Positions:  []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
	Depths:     []float64{1, 2, 3, 4, 5, 8, 16, 32, 64},
}

// The label values that are known before anything happens. With details their counters begin with
// 0.
var (
	Outcomes = []event.Outcome{
		event.OutcomeAcquired, event.OutcomeLocked, event.OutcomeCanceled, event.OutcomeClosed, event.OutcomeLost,
		event.OutcomeDeadlock, event.OutcomeDeclined, event.OutcomeError,
	}
	WakeCauses = []event.Wake{event.WakeGrant, event.WakeRecheck, event.WakeReleased, event.WakePass}
	Reasons    = []event.LossReason{
		event.LossExpired, event.LossTaken, event.LossMaxHold, event.LossAbandoned, event.LossLeaked,
	}
	Ends    = []string{EndReleased, EndLost, EndClosed}
	Results = []string{ResultOK, ResultFailed, ResultLost}
	Scripts = []string{"acquire", "release", "renew", "token", "state", "break"}
)

// The ends of a hold, and the results of a renewal.
const (
	EndReleased = "released" // Unlock
	EndLost     = "lost"
	EndClosed   = "closed" // the client was closed

	ResultOK     = "ok"
	ResultFailed = "failed" // not confirmed, tried again
	ResultLost   = "lost"   // the store did not have the hold any more
)
