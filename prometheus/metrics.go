package relockprom

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-relock/relock"
)

// lockMetrics count what happens to locks. The lock label, if there is one, comes last.
type lockMetrics struct {
	acquires    *prometheus.CounterVec
	acquireTime *prometheus.HistogramVec
	acquireTTL  *prometheus.HistogramVec
	wakes       *prometheus.CounterVec
	position    *prometheus.HistogramVec
	holdTime    *prometheus.HistogramVec
	holdTTL     *prometheus.HistogramVec
	depth       *prometheus.HistogramVec
	unconfirmed *prometheus.CounterVec
	losses      *prometheus.CounterVec
	leaks       *prometheus.CounterVec
}

// clientMetrics count what happens to clients. They have no lock label.
type clientMetrics struct {
	renewals    *prometheus.CounterVec
	renewalTime prometheus.Histogram
	retries     *prometheus.CounterVec
	reconnects  prometheus.Counter
	downtime    prometheus.Counter
	dropped     prometheus.Counter
}

// The label values that are known before anything happens. Their series begin with 0.
var (
	outcomes = []relock.Outcome{
		relock.OutcomeAcquired, relock.OutcomeLocked, relock.OutcomeCanceled, relock.OutcomeClosed, relock.OutcomeLost,
		relock.OutcomeError,
	}
	wakes   = []relock.Wake{relock.WakeGrant, relock.WakeRecheck, relock.WakeReleased, relock.WakePass}
	reasons = []relock.LossReason{
		relock.LossExpired, relock.LossTaken, relock.LossMaxHold, relock.LossAbandoned, relock.LossLeaked,
	}
	ends    = []string{endReleased, endLost, endClosed}
	results = []string{resultOK, resultFailed, resultLost}
	scripts = []string{"acquire", "release", "renew", "token", "state", "break"}
)

const (
	endReleased = "released" // Unlock
	endLost     = "lost"
	endClosed   = "closed" // the client was closed

	resultOK     = "ok"
	resultFailed = "failed" // not confirmed, tried again
	resultLost   = "lost"   // the store did not have the hold any more
)

// makeLockMetrics makes the metrics of locks. The buckets are those of durations, in seconds.
func (c *Collector) makeLockMetrics(buckets []float64) {
	ttls := []float64{.1, .25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 100, 1000}
	c.acquires = c.counters("relock_acquires_total",
		"Calls that asked for a lock and have returned, by outcome, whether they were nested entries, and whether they "+
			"waited for another holder.", "outcome", "reentrant", "waited")
	c.acquireTime = c.histograms("relock_acquire_duration_seconds",
		"Time from the call to its return, by outcome. Nested entries are left out.", buckets, "outcome")
	c.acquireTTL = c.histograms("relock_acquire_ttl_ratio",
		"Time from the call to its return as a multiple of the lock's TTL. Nested entries and refusals without a wait are "+
			"left out.", ttls)
	c.wakes = c.counters("relock_wakes_total", "Waits that ended with the lock, by what told the waiter.", "wake")
	c.position = c.histograms("relock_queue_position", "How many waiters were before one that joined the queue.",
		[]float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024})
	c.holdTime = c.histograms("relock_hold_duration_seconds",
		"Time from the first entry of a hold to its last exit, by how it ended.", buckets, "end")
	c.holdTTL = c.histograms("relock_hold_ttl_ratio",
		"Time from the first entry of a hold to its last exit as a multiple of the lock's TTL.", ttls)
	c.depth = c.histograms("relock_hold_depth", "The highest number of open entries of a hold; 1 is no re-entry.",
		[]float64{1, 2, 3, 4, 5, 8, 16, 32, 64})
	c.unconfirmed = c.counters("relock_releases_unconfirmed_total", "Last exits of a hold that the store did not confirm.")
	c.losses = c.counters("relock_losses_total", "Holds that ended without Unlock, by reason.", "reason")
	c.leaks = c.counters("relock_leaks_total", "Reports of entries whose context was dropped without Unlock.")
}

// makeClientMetrics makes the metrics of clients. Their series begin with 0.
func (c *Collector) makeClientMetrics() {
	c.renewals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "relock_renewals_total", Help: "Renewals of a lease by the watchdog, by result.",
	}, []string{"result"})
	c.renewalTime = prometheus.NewHistogram(histogram("relock_renewal_duration_seconds",
		"Time of a round trip of the watchdog, which renews many leases.",
		[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}))
	c.retries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "relock_retries_total", Help: "Scripts that were sent to Redis again, by script.",
	}, []string{"script"})
	c.reconnects = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "relock_reconnects_total", Help: "Pub/sub connections that were lost and are back.",
	})
	c.downtime = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "relock_reconnect_downtime_seconds_total", Help: "Time for which the pub/sub connections that are back were gone.",
	})
	c.dropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "relock_events_dropped_total", Help: "Events that are in no metric, because too many waited for the hooks.",
	})
	c.counted = append(c.counted, c.renewals, c.renewalTime, c.retries, c.reconnects, c.downtime, c.dropped)
	for _, r := range results {
		c.renewals.WithLabelValues(r)
	}
	for _, s := range scripts {
		c.retries.WithLabelValues(s)
	}
}

// know makes the series of a lock label begin with 0.
func (c *Collector) know(lock string) {
	if !c.inflight.Know(lock) {
		return
	}
	for _, o := range outcomes {
		for _, waited := range []bool{false, true} {
			c.acquires.WithLabelValues(c.with(lock, string(o), "false", strconv.FormatBool(waited))...)
		}
		c.acquires.WithLabelValues(c.with(lock, string(o), "true", "false")...)
		c.acquireTime.WithLabelValues(c.with(lock, string(o))...)
	}
	for _, w := range wakes {
		c.wakes.WithLabelValues(c.with(lock, string(w))...)
	}
	for _, r := range reasons {
		c.losses.WithLabelValues(c.with(lock, string(r))...)
	}
	for _, e := range ends {
		c.holdTime.WithLabelValues(c.with(lock, e)...)
	}
	for _, v := range []*prometheus.CounterVec{c.unconfirmed, c.leaks} {
		v.WithLabelValues(c.with(lock)...)
	}
	for _, v := range []*prometheus.HistogramVec{c.acquireTTL, c.position, c.holdTTL, c.depth} {
		v.WithLabelValues(c.with(lock)...)
	}
}

func (c *Collector) lockLabels(labels []string) []string {
	if c.label != nil {
		return append(labels, "lock")
	}
	return labels
}

func (c *Collector) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, c.lockLabels(labels))
	c.counted = append(c.counted, v)
	return v
}

func (c *Collector) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(histogram(name, help, buckets), c.lockLabels(labels))
	c.counted = append(c.counted, v)
	return v
}

func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}
}

func (c *Collector) gauge(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, c.lockLabels(nil), nil)
}
