package relockprom

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/measures"
)

// lockMetrics count what happens to locks. Behind their own labels are mode and, if there is one,
// the lock label.
type lockMetrics struct {
	acquires    *prometheus.CounterVec
	acquireTime *prometheus.HistogramVec
	acquireTTL  *prometheus.HistogramVec
	wakes       *prometheus.CounterVec
	position    *prometheus.HistogramVec // nil: no details
	holdTime    *prometheus.HistogramVec
	holdTTL     *prometheus.HistogramVec
	depth       *prometheus.HistogramVec // nil: no details
	unconfirmed *prometheus.CounterVec
	losses      *prometheus.CounterVec
	leaks       *prometheus.CounterVec
	asks        *prometheus.CounterVec
}

// clientMetrics count what happens to clients. They have no label of a lock.
type clientMetrics struct {
	renewals    *prometheus.CounterVec
	renewalTime prometheus.Histogram // nil: no details
	retries     *prometheus.CounterVec
	reconnects  *prometheus.CounterVec
	downtime    *prometheus.CounterVec
	dropped     prometheus.Counter
}

// makeLockMetrics makes the metrics of locks.
func (c *Collector) makeLockMetrics(b measures.Bounds) {
	c.acquires = c.counters(measures.Acquires, "outcome", "reentrant", "waited")
	c.acquireTime = c.histograms(measures.AcquireTime, b.Seconds, "outcome")
	c.acquireTTL = c.histograms(measures.AcquireTTL, b.TTLs)
	c.wakes = c.counters(measures.Wakes, "wake")
	c.holdTime = c.histograms(measures.HoldTime, b.Seconds, "end")
	c.holdTTL = c.histograms(measures.HoldTTL, b.TTLs)
	c.unconfirmed = c.counters(measures.Unconfirmed)
	c.losses = c.counters(measures.Losses, "reason")
	c.leaks = c.counters(measures.Leaks)
	c.asks = c.counters(measures.Asks)
	if c.details {
		c.position = c.histograms(measures.Position, b.Positions)
		c.depth = c.histograms(measures.Depth, b.Depths)
	}
}

// makeClientMetrics makes the metrics of clients. With details their series begin with 0.
func (c *Collector) makeClientMetrics(b measures.Bounds) {
	c.renewals = prometheus.NewCounterVec(counter(measures.Renewals), []string{"result"})
	c.retries = prometheus.NewCounterVec(counter(measures.Retries), []string{"script"})
	c.reconnects = prometheus.NewCounterVec(counter(measures.Reconnects), nil)
	c.downtime = prometheus.NewCounterVec(counter(measures.Downtime), nil)
	c.dropped = prometheus.NewCounter(counter(measures.Dropped))
	c.counted = append(c.counted, c.renewals, c.retries, c.reconnects, c.downtime, c.dropped)
	if !c.details {
		return
	}
	c.renewalTime = prometheus.NewHistogram(histogram(measures.RenewalTime, b.RoundTrips))
	c.counted = append(c.counted, c.renewalTime)
	for _, r := range measures.Results {
		c.renewals.WithLabelValues(r)
	}
	for _, s := range measures.Scripts {
		c.retries.WithLabelValues(s)
	}
	c.reconnects.WithLabelValues()
	c.downtime.WithLabelValues()
}

// know makes series of the labels of a lock begin with 0: with details all whose labels are known,
// and otherwise the one without which the share of calls that get the lock is unknown.
func (c *Collector) know(label string) {
	if !c.inflight.Know(label) {
		return
	}
	c.acquires.WithLabelValues(c.with(label, string(event.OutcomeAcquired), "false", "false")...)
	if !c.details {
		return
	}
	for _, o := range measures.Outcomes {
		for _, waited := range []bool{false, true} {
			c.acquires.WithLabelValues(c.with(label, string(o), "false", strconv.FormatBool(waited))...)
			c.acquires.WithLabelValues(c.with(label, string(o), "true", strconv.FormatBool(waited))...)
		}
		c.acquireTime.WithLabelValues(c.with(label, string(o))...)
	}
	for _, w := range measures.WakeCauses {
		c.wakes.WithLabelValues(c.with(label, string(w))...)
	}
	for _, r := range measures.Reasons {
		c.losses.WithLabelValues(c.with(label, string(r))...)
	}
	for _, e := range measures.Ends {
		c.holdTime.WithLabelValues(c.with(label, e)...)
	}
	for _, v := range []*prometheus.CounterVec{c.unconfirmed, c.leaks, c.asks} {
		v.WithLabelValues(c.with(label)...)
	}
	for _, v := range []*prometheus.HistogramVec{c.acquireTTL, c.position, c.holdTTL, c.depth} {
		v.WithLabelValues(c.with(label)...)
	}
}

// lockLabels returns labels, and the labels of each lock behind them: the order of with.
func (c *Collector) lockLabels(labels []string) []string {
	labels = append(labels, "mode")
	if c.label != nil {
		labels = append(labels, "lock")
	}
	return labels
}

func (c *Collector) counters(of measures.Measure, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(counter(of), c.lockLabels(labels))
	c.counted = append(c.counted, v)
	return v
}

func (c *Collector) histograms(of measures.Measure, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(histogram(of, buckets), c.lockLabels(labels))
	c.counted = append(c.counted, v)
	return v
}

func (c *Collector) gauge(of measures.Measure) *prometheus.Desc {
	return prometheus.NewDesc(of.Series, of.Help, c.lockLabels(nil), nil)
}

func counter(of measures.Measure) prometheus.CounterOpts {
	return prometheus.CounterOpts{Name: of.Series, Help: of.Help}
}

func histogram(of measures.Measure, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: of.Series, Help: of.Help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
		NativeHistogramMinResetDuration: time.Hour,
	}
}
