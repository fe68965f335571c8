package relockprom

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-relock/relock"
)

// Collector is a [prometheus.Collector] of what happens to the locks whose clients have its [Collector.Hooks]. It is safe
// for concurrent use.
type Collector struct {
	label func(name string) string // nil: no label

	// Of locks: with the lock label, if there is one, as the last.
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

	// Of clients.
	renewals    *prometheus.CounterVec
	renewalTime prometheus.Histogram
	retries     *prometheus.CounterVec
	reconnects  prometheus.Counter
	downtime    prometheus.Counter
	dropped     prometheus.Counter

	// What is in flight, asked for when Prometheus scrapes.
	inflight *inflight
	waiters  *prometheus.Desc
	holds    *prometheus.Desc
	maxAge   *prometheus.Desc
	maxTTL   *prometheus.Desc

	counted []prometheus.Collector // all but the gauges
}

var _ prometheus.Collector = (*Collector)(nil)

// Option is an option of [New].
type Option func(*config)

type config struct {
	label   func(name string) string
	buckets []float64
}

// WithLockLabel adds a label "lock" with what f makes of the lock's name, which must be one of a few values: "orders"
// for "orders:42". f is called for each event, by the goroutine that runs the hooks: one for each client, so where several share
// the Collector, f may be called by several at once. What is not valid UTF-8 in it becomes U+FFFD.
func WithLockLabel(f func(name string) string) Option {
	return func(c *config) { c.label = f }
}

// WithDurationBuckets sets the upper bounds, in seconds, of the buckets for the time of acquires and of holds, in
// increasing order; [New] panics if they are not, as [prometheus.NewHistogram] does. The default is from 0.5 ms to an
// hour. With none these histograms are native ones only.
func WithDurationBuckets(seconds ...float64) Option {
	seconds = slices.Clone(seconds)
	return func(c *config) { c.buckets = seconds }
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
	scripts = []string{"acquire", "release", "renew", "state", "force_release", "pass"}
)

const (
	endReleased = "released" // Unlock
	endLost     = "lost"
	endClosed   = "closed" // the client was closed

	resultOK     = "ok"
	resultFailed = "failed" // not confirmed, tried again
	resultLost   = "lost"   // Redis did not have the hold any more
)

// New makes a Collector, for one registry to register. It counts what is told to its [Collector.Hooks]. It panics if an option is
// nil.
func New(options ...Option) *Collector {
	cfg := config{
		buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600},
	}
	for _, option := range options {
		if option == nil {
			panic("relockprom: an Option is nil; leave it out instead")
		}
		option(&cfg)
	}
	prometheus.NewHistogram(histogram("relock", "", cfg.buckets)) // panics if they are wrong; with a lock label the others come later
	c := &Collector{label: cfg.label, inflight: newInflight()}
	ttls := []float64{.1, .25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 100, 1000}

	c.acquires = c.counters("relock_acquires_total",
		"Calls that asked for a lock and have returned, by outcome, whether they were nested entries, and whether they waited for another holder.",
		"outcome", "reentrant", "waited")
	c.acquireTime = c.histograms("relock_acquire_duration_seconds",
		"Time from the call to its return, by outcome. Nested entries are left out.", cfg.buckets, "outcome")
	c.acquireTTL = c.histograms("relock_acquire_ttl_ratio",
		"Time from the call to its return as a multiple of the lock's TTL. Nested entries and refusals without a wait are left out.",
		ttls)
	c.wakes = c.counters("relock_wakes_total", "Waits that ended with the lock, by what told the waiter.", "wake")
	c.position = c.histograms("relock_queue_position", "How many waiters were before one that joined the queue.",
		[]float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024})
	c.holdTime = c.histograms("relock_hold_duration_seconds",
		"Time from the first entry of a hold to its last exit, by how it ended.", cfg.buckets, "end")
	c.holdTTL = c.histograms("relock_hold_ttl_ratio",
		"Time from the first entry of a hold to its last exit as a multiple of the lock's TTL.", ttls)
	c.depth = c.histograms("relock_hold_depth", "The highest number of open entries of a hold; 1 is no re-entry.",
		[]float64{1, 2, 3, 4, 5, 8, 16, 32, 64})
	c.unconfirmed = c.counters("relock_releases_unconfirmed_total", "Last exits of a hold that Redis did not confirm.")
	c.losses = c.counters("relock_losses_total", "Holds that ended without Unlock, by reason.", "reason")
	c.leaks = c.counters("relock_leaks_total", "Reports of entries whose context was dropped without Unlock.")

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

	c.waiters = c.gauge("relock_waiters", "Waiters that are queued for a lock.")
	c.holds = c.gauge("relock_holds", "Holds that are open.")
	c.maxAge = c.gauge("relock_hold_max_age_seconds", "Age of the oldest hold that is open, 0 if there is none.")
	c.maxTTL = c.gauge("relock_hold_max_age_ttl_ratio", "Largest age of an open hold as a multiple of the lock's TTL.")

	c.counted = append(c.counted, c.renewals, c.renewalTime, c.retries, c.reconnects, c.downtime, c.dropped)
	for _, r := range results {
		c.renewals.WithLabelValues(r)
	}
	for _, s := range scripts {
		c.retries.WithLabelValues(s)
	}
	if c.label == nil {
		c.know("")
	}
	return c
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

// know makes the series of a lock label begin with 0.
func (c *Collector) know(lock string) {
	if !c.inflight.know(lock) {
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

// with is label values, and the lock's if there is such a label.
func (c *Collector) with(lock string, values ...string) []string {
	if c.label != nil {
		return append(values, lock)
	}
	return values
}

// lock is the label value for a lock's name. A name may be any bytes, but one label that is no UTF-8 would break every scrape
// until the process ends.
func (c *Collector) lock(name string) string {
	if c.label == nil {
		return ""
	}
	lock := strings.ToValidUTF8(c.label(name), "\uFFFD")
	c.know(lock)
	return lock
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range c.counted {
		v.Describe(ch)
	}
	ch <- c.waiters
	ch <- c.holds
	ch <- c.maxAge
	ch <- c.maxTTL
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, v := range c.counted {
		v.Collect(ch)
	}
	for lock, u := range c.inflight.now() {
		values := c.with(lock)
		ch <- prometheus.MustNewConstMetric(c.waiters, prometheus.GaugeValue, float64(u.waiters), values...)
		ch <- prometheus.MustNewConstMetric(c.holds, prometheus.GaugeValue, float64(u.holds), values...)
		ch <- prometheus.MustNewConstMetric(c.maxAge, prometheus.GaugeValue, u.age.Seconds(), values...)
		ch <- prometheus.MustNewConstMetric(c.maxTTL, prometheus.GaugeValue, u.ageTTL, values...)
	}
}

// Hooks returns the hooks that feed the Collector, for [relock.WithHooks]. Any number of clients may have them. To have
// others beside them, use [relock.JoinHooks].
func (c *Collector) Hooks() relock.Hooks {
	return relock.Hooks{
		AcquireStarted:  func(e relock.AcquireStarted) { c.lock(e.Name) }, // its series begin before it counts
		AcquireFinished: c.acquireFinished,
		Queued: func(e relock.Queued) {
			lock := c.lock(e.Name)
			c.position.WithLabelValues(c.with(lock)...).Observe(float64(e.Position))
			c.inflight.queued(lock, waitKey{e.Name, e.Holder})
		},
		Released: func(e relock.Released) {
			if e.Err != nil {
				c.unconfirmed.WithLabelValues(c.with(c.lock(e.Name))...).Inc()
			}
			c.ended(holdKey{e.Name, e.Holder, e.Token}, endReleased, e.Held, e.TTL, e.MaxDepth)
		},
		Lost: func(e relock.Lost) {
			c.losses.WithLabelValues(c.with(c.lock(e.Name), string(e.Reason))...).Inc()
			c.ended(holdKey{e.Name, e.Holder, e.Token}, endLost, e.Held, e.TTL, e.MaxDepth)
		},
		Closed: func(e relock.Closed) {
			c.ended(holdKey{e.Name, e.Holder, e.Token}, endClosed, e.Held, e.TTL, e.MaxDepth)
		},
		Leaked: func(e relock.Leaked) { c.leaks.WithLabelValues(c.with(c.lock(e.Name))...).Inc() },
		Renewed: func(e relock.Renewed) {
			c.renewals.WithLabelValues(resultOK).Add(float64(e.Locks - e.Failed - e.Lost))
			c.renewals.WithLabelValues(resultFailed).Add(float64(e.Failed))
			c.renewals.WithLabelValues(resultLost).Add(float64(e.Lost))
			c.renewalTime.Observe(e.Duration.Seconds())
		},
		Retried: func(e relock.Retried) { c.retries.WithLabelValues(e.Script).Inc() },
		Reconnected: func(e relock.Reconnected) {
			c.reconnects.Inc()
			c.downtime.Add(e.Down.Seconds())
		},
		Dropped: func(e relock.Dropped) {
			c.dropped.Add(float64(e.Events))
			c.inflight.reset()
		},
	}
}

func (c *Collector) acquireFinished(e relock.AcquireFinished) {
	lock := c.lock(e.Name)
	c.acquires.WithLabelValues(
		c.with(lock, string(e.Outcome), strconv.FormatBool(e.Reentrant), strconv.FormatBool(e.Waited))...).Inc()
	if e.Queued {
		c.inflight.waited(waitKey{e.Name, e.Holder})
	}
	if e.Reentrant {
		return
	}
	c.acquireTime.WithLabelValues(c.with(lock, string(e.Outcome))...).Observe(e.Duration.Seconds())
	refused := e.Outcome == relock.OutcomeLocked && !e.Waited // TryLock: an answer, not a wait
	if !refused && e.TTL > 0 {
		c.acquireTTL.WithLabelValues(c.with(lock)...).Observe(float64(e.Duration) / float64(e.TTL))
	}
	if e.Outcome != relock.OutcomeAcquired {
		return
	}
	if e.Queued {
		c.wakes.WithLabelValues(c.with(lock, string(e.Wake))...).Inc()
	}
	c.inflight.opened(holdKey{e.Name, e.Holder, e.Token}, e.Start, openHold{label: lock, since: e.Start.Add(e.Duration), ttl: e.TTL})
}

// ended counts a hold that is over.
func (c *Collector) ended(key holdKey, end string, held, ttl time.Duration, depth int) {
	lock := c.lock(key.name)
	c.holdTime.WithLabelValues(c.with(lock, end)...).Observe(held.Seconds())
	if ttl > 0 {
		c.holdTTL.WithLabelValues(c.with(lock)...).Observe(float64(held) / float64(ttl))
	}
	c.depth.WithLabelValues(c.with(lock)...).Observe(float64(depth))
	c.inflight.closed(key, held)
}
