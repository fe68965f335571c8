package relockprom

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-relock/relock/internal/measures"
)

// lockMetrics count what happens to locks. Behind their own labels are mode and, if there is one,
// the lock label.
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
	asks        *prometheus.CounterVec
}

// clientMetrics count what happens to clients. They have no label of a lock.
type clientMetrics struct {
	renewals    *prometheus.CounterVec
	renewalTime prometheus.Histogram
	retries     *prometheus.CounterVec
	reconnects  prometheus.Counter
	downtime    prometheus.Counter
	dropped     prometheus.Counter
}

// makeLockMetrics makes the metrics of locks. The buckets are those of durations, in seconds.
func (c *Collector) makeLockMetrics(buckets []float64) {
	c.acquires = c.counters(measures.Acquires, "outcome", "reentrant", "waited")
	c.acquireTime = c.histograms(measures.AcquireTime, buckets, "outcome")
	c.acquireTTL = c.histograms(measures.AcquireTTL, measures.TTLs)
	c.wakes = c.counters(measures.Wakes, "wake")
	c.position = c.histograms(measures.Position, measures.Positions)
	c.holdTime = c.histograms(measures.HoldTime, buckets, "end")
	c.holdTTL = c.histograms(measures.HoldTTL, measures.TTLs)
	c.depth = c.histograms(measures.Depth, measures.Depths)
	c.unconfirmed = c.counters(measures.Unconfirmed)
	c.losses = c.counters(measures.Losses, "reason")
	c.leaks = c.counters(measures.Leaks)
	c.asks = c.counters(measures.Asks)
}

// makeClientMetrics makes the metrics of clients. Their series begin with 0.
func (c *Collector) makeClientMetrics() {
	c.renewals = prometheus.NewCounterVec(counter(measures.Renewals), []string{"result"})
	c.renewalTime = prometheus.NewHistogram(histogram(measures.RenewalTime, measures.RoundTrips))
	c.retries = prometheus.NewCounterVec(counter(measures.Retries), []string{"script"})
	c.reconnects = prometheus.NewCounter(counter(measures.Reconnects))
	c.downtime = prometheus.NewCounter(counter(measures.Downtime))
	c.dropped = prometheus.NewCounter(counter(measures.Dropped))
	c.counted = append(c.counted, c.renewals, c.renewalTime, c.retries, c.reconnects, c.downtime, c.dropped)
	for _, r := range measures.Results {
		c.renewals.WithLabelValues(r)
	}
	for _, s := range measures.Scripts {
		c.retries.WithLabelValues(s)
	}
}

// know makes the series of the labels of a lock begin with 0.
func (c *Collector) know(label string) {
	if !c.inflight.Know(label) {
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
