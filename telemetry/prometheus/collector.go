package relockprom

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/inflight"
	"github.com/go-relock/relock/internal/measures"
)

// Collector is a [prometheus.Collector] of the events of locks whose clients have
// [Collector.Hooks]. A Collector is safe for concurrent use.
type Collector struct {
	label   func(name string) string // nil: no label
	details bool
	lockMetrics
	clientMetrics

	// What is in flight is read when Prometheus scrapes.
	inflight *inflight.Table
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
	details bool
	buckets *[]float64 // nil: the default
}

// WithLockLabel adds a label "lock". The function f maps the name of a lock to one of a few values,
// such as "orders:42" to "orders". The goroutine that runs a client's hooks calls f for each event,
// so f must be safe for concurrent use if several clients share the Collector. Bytes that are not
// valid UTF-8 become U+FFFD.
func WithLockLabel(f func(name string) string) Option {
	return func(c *config) { c.label = f }
}

// WithDetails gives the histograms many buckets, adds the histograms of queue positions, of
// re-entry and of renewals, and lets all counters begin with 0. A lock kind then has about 350
// lines in a scrape, in place of 30.
func WithDetails() Option { return func(c *config) { c.details = true } }

// WithDurationBuckets sets the upper bounds, in seconds, of the buckets for the time of acquires
// and of holds, in increasing order; otherwise [New] panics, as [prometheus.NewHistogram] does. The
// default is 10 ms, 100 ms, 1 s and 10 s, and with [WithDetails] 0.5 ms to an hour. With no bounds
// these histograms are native ones only.
func WithDurationBuckets(seconds ...float64) Option {
	seconds = slices.Clone(seconds)
	return func(c *config) { c.buckets = &seconds }
}

// New makes a Collector, for one registry to register. The Collector counts the events of
// [Collector.Hooks]. New panics if an option is nil.
func New(options ...Option) *Collector {
	var cfg config
	for _, option := range options {
		if option == nil {
			panic("relockprom: an Option is nil; leave it out instead")
		}
		option(&cfg)
	}
	bounds := measures.Few
	if cfg.details {
		bounds = measures.Details
	}
	if cfg.buckets != nil {
		bounds.Seconds = *cfg.buckets
	}
	// With a lock label the histograms are made later, so wrong buckets panic here.
	prometheus.NewHistogram(histogram(measures.HoldTime, bounds.Seconds))
	c := &Collector{label: cfg.label, details: cfg.details, inflight: inflight.New()}
	c.makeLockMetrics(bounds)
	c.makeClientMetrics(bounds)
	c.waiters = c.gauge(measures.Waiters)
	c.holds = c.gauge(measures.Holds)
	c.maxAge = c.gauge(measures.MaxAge)
	c.maxTTL = c.gauge(measures.MaxAgeTTL)
	if c.label == nil {
		c.know(measures.Label(event.ModeExclusive, ""))
	}
	return c
}

// of returns the labels of a lock, see [measures.Label]. Invalid UTF-8 in one label would break
// every scrape until the process ends.
func (c *Collector) of(name string, mode event.Mode) string {
	lock := ""
	if c.label != nil {
		lock = strings.ToValidUTF8(c.label(name), "\uFFFD")
	}
	label := measures.Label(mode, lock)
	c.know(label)
	return label
}

// with returns label values, and the values of the lock behind them.
func (c *Collector) with(label string, values ...string) []string {
	mode, lock := measures.Split(label)
	values = append(values, mode)
	if c.label != nil {
		values = append(values, lock)
	}
	return values
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
	for label, u := range c.inflight.Usage() {
		values := c.with(label)
		ch <- prometheus.MustNewConstMetric(c.waiters, prometheus.GaugeValue, float64(u.Waiters), values...)
		ch <- prometheus.MustNewConstMetric(c.holds, prometheus.GaugeValue, float64(u.Holds), values...)
		ch <- prometheus.MustNewConstMetric(c.maxAge, prometheus.GaugeValue, u.Age.Seconds(), values...)
		ch <- prometheus.MustNewConstMetric(c.maxTTL, prometheus.GaugeValue, u.AgeTTL, values...)
	}
}

// Hooks returns the hooks that feed the Collector, for [relock.WithHooks]. Any number of clients
// may have them. To add hooks of your own, use [event.Join].
func (c *Collector) Hooks() event.Hooks {
	return event.Hooks{
		AcquireStarted:  func(e event.AcquireStarted) { c.of(e.Name, e.Mode) }, // series begin before they count
		AcquireFinished: c.acquireFinished,
		Queued: func(e event.Queued) {
			label := c.of(e.Name, e.Mode)
			if c.details {
				c.position.WithLabelValues(c.with(label)...).Observe(float64(e.Position))
			}
			c.inflight.Queue(keyOf(e.Name, e.Mode, e.Holder, false), label)
		},
		Released: func(e event.Released) {
			label := c.of(e.Name, e.Mode)
			if e.Err != nil {
				c.unconfirmed.WithLabelValues(c.with(label)...).Inc()
			}
			c.ended(keyOf(e.Name, e.Mode, e.Holder, e.Leader), label, measures.EndReleased, e.Held, e.TTL, e.MaxDepth)
		},
		Lost: func(e event.Lost) {
			label := c.of(e.Name, e.Mode)
			c.losses.WithLabelValues(c.with(label, string(e.Reason))...).Inc()
			c.ended(keyOf(e.Name, e.Mode, e.Holder, e.Leader), label, measures.EndLost, e.Held, e.TTL, e.MaxDepth)
		},
		Closed: func(e event.Closed) {
			label := c.of(e.Name, e.Mode)
			c.ended(keyOf(e.Name, e.Mode, e.Holder, e.Leader), label, measures.EndClosed, e.Held, e.TTL, e.MaxDepth)
		},
		Leaked: func(e event.Leaked) { c.leaks.WithLabelValues(c.with(c.of(e.Name, e.Mode))...).Inc() },
		Wanted: func(e event.Wanted) { c.asks.WithLabelValues(c.with(c.of(e.Name, e.Mode))...).Inc() },
		Renewed: func(e event.Renewed) {
			renewed := func(n int, result string) {
				if n > 0 {
					c.renewals.WithLabelValues(result).Add(float64(n))
				}
			}
			renewed(e.Locks-e.Failed-e.Lost, measures.ResultOK)
			renewed(e.Failed, measures.ResultFailed)
			renewed(e.Lost, measures.ResultLost)
			if c.details {
				c.renewalTime.Observe(e.Duration.Seconds())
			}
		},
		Retried: func(e event.Retried) { c.retries.WithLabelValues(e.Script).Inc() },
		Reconnected: func(e event.Reconnected) {
			c.reconnects.WithLabelValues().Inc()
			c.downtime.WithLabelValues().Add(e.Down.Seconds())
		},
		Dropped: func(e event.Dropped) {
			c.dropped.Add(float64(e.Events))
			c.inflight.Reset()
		},
	}
}

func (c *Collector) acquireFinished(e event.AcquireFinished) {
	label := c.of(e.Name, e.Mode)
	c.acquires.WithLabelValues(
		c.with(label, string(e.Outcome), strconv.FormatBool(e.Reentrant), strconv.FormatBool(e.Waited))...).Inc()
	if e.Queued {
		c.inflight.Unqueue(keyOf(e.Name, e.Mode, e.Holder, false))
	}
	if e.Outcome == event.OutcomeAcquired {
		c.entered(e, label)
	}
	if e.Reentrant {
		return
	}
	c.acquireTime.WithLabelValues(c.with(label, string(e.Outcome))...).Observe(e.Duration.Seconds())
	refused := e.Outcome == event.OutcomeLocked && !e.Waited // TryLock: an answer, not a wait
	if !refused && !e.Leader && e.TTL > 0 {
		c.acquireTTL.WithLabelValues(c.with(label)...).Observe(float64(e.Duration) / float64(e.TTL))
	}
}

// entered counts an entry. A call for writing inside a section for reading, or the other way round,
// is a nested one and yet begins a hold: its depth is 1.
func (c *Collector) entered(e event.AcquireFinished, label string) {
	if e.Queued {
		c.wakes.WithLabelValues(c.with(label, string(e.Wake))...).Inc()
	}
	if e.Depth == 1 {
		c.inflight.Open(keyOf(e.Name, e.Mode, e.Holder, e.Leader),
			inflight.Hold{Label: label, Asked: e.Start, Since: e.Start.Add(e.Duration), TTL: e.TTL})
	}
}

// keyOf names a hold, or a wait, for the table of what is in flight. A holder may have a hold of
// each mode of a read-write lock.
func keyOf(name string, mode event.Mode, h relock.Holder, leader bool) inflight.Key {
	return inflight.Key{Name: name, Holder: string(mode) + " " + h.String(), Leader: leader}
}

// ended counts a hold that is over.
func (c *Collector) ended(key inflight.Key, label, end string, held, ttl time.Duration, depth int) {
	c.holdTime.WithLabelValues(c.with(label, end)...).Observe(held.Seconds())
	if ttl > 0 && !key.Leader {
		c.holdTTL.WithLabelValues(c.with(label)...).Observe(float64(held) / float64(ttl))
	}
	if c.details {
		c.depth.WithLabelValues(c.with(label)...).Observe(float64(depth))
	}
	c.inflight.End(key, held)
}
