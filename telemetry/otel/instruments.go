package relockotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/inflight"
	"github.com/go-relock/relock/internal/measures"
)

// instruments are the metrics; see the package documentation.
type instruments struct {
	acquires    metric.Int64Counter
	acquireTime metric.Float64Histogram
	acquireTTL  metric.Float64Histogram
	wakes       metric.Int64Counter
	position    metric.Int64Histogram
	holdTime    metric.Float64Histogram
	holdTTL     metric.Float64Histogram
	depth       metric.Int64Histogram
	unconfirmed metric.Int64Counter
	losses      metric.Int64Counter
	leaks       metric.Int64Counter
	asks        metric.Int64Counter

	// Of clients, without the attributes of a lock.
	renewals    metric.Int64Counter
	renewalTime metric.Float64Histogram
	retries     metric.Int64Counter
	reconnects  metric.Int64Counter
	downtime    metric.Float64Counter
	dropped     metric.Int64Counter

	// Of what is in flight.
	waiters   metric.Int64ObservableUpDownCounter
	holds     metric.Int64ObservableUpDownCounter
	maxAge    metric.Float64ObservableGauge
	maxAgeTTL metric.Float64ObservableGauge
}

// maker makes instruments, and keeps the errors.
type maker struct {
	meter metric.Meter
	errs  []error
}

// prefix begins the name of each metric. It differs from the prefix of the module
// relock/prometheus, so that one Prometheus registry can have the metrics of both modules.
const prefix = "relock.client."

func (m *maker) counter(of measures.Measure) metric.Int64Counter {
	c, err := m.meter.Int64Counter(prefix+of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) floatCounter(of measures.Measure) metric.Float64Counter {
	c, err := m.meter.Float64Counter(prefix+of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) histogram(of measures.Measure, bounds []float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(prefix+of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

func (m *maker) intHistogram(of measures.Measure, bounds []float64) metric.Int64Histogram {
	h, err := m.meter.Int64Histogram(prefix+of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

func (m *maker) upDown(of measures.Measure) metric.Int64ObservableUpDownCounter {
	c, err := m.meter.Int64ObservableUpDownCounter(prefix+of.Name, metric.WithUnit(of.Unit),
		metric.WithDescription(of.Help))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) gauge(of measures.Measure) metric.Float64ObservableGauge {
	g, err := m.meter.Float64ObservableGauge(prefix+of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help))
	m.errs = append(m.errs, err)
	return g
}

func newInstruments(meter metric.Meter, b measures.Bounds) (instruments, error) {
	m := &maker{meter: meter}
	i := instruments{
		acquires:    m.counter(measures.Acquires),
		acquireTime: m.histogram(measures.AcquireTime, b.Seconds),
		acquireTTL:  m.histogram(measures.AcquireTTL, b.TTLs),
		wakes:       m.counter(measures.Wakes),
		position:    m.intHistogram(measures.Position, b.Positions),
		holdTime:    m.histogram(measures.HoldTime, b.Seconds),
		holdTTL:     m.histogram(measures.HoldTTL, b.TTLs),
		depth:       m.intHistogram(measures.Depth, b.Depths),
		unconfirmed: m.counter(measures.Unconfirmed),
		losses:      m.counter(measures.Losses),
		leaks:       m.counter(measures.Leaks),
		asks:        m.counter(measures.Asks),

		renewals:    m.counter(measures.Renewals),
		renewalTime: m.histogram(measures.RenewalTime, b.RoundTrips),
		retries:     m.counter(measures.Retries),
		reconnects:  m.counter(measures.Reconnects),
		downtime:    m.floatCounter(measures.Downtime),
		dropped:     m.counter(measures.Dropped),

		waiters:   m.upDown(measures.Waiters),
		holds:     m.upDown(measures.Holds),
		maxAge:    m.gauge(measures.MaxAge),
		maxAgeTTL: m.gauge(measures.MaxAgeTTL),
	}
	return i, errors.Join(m.errs...)
}

// begin makes counters of clients, and of known locks, begin with 0. The first collection calls
// begin: the global meter provider may be set after New, and earlier counts would be lost.
func (t *Telemetry) begin(known map[string]inflight.Usage) {
	bg := context.Background()
	t.dropped.Add(bg, 0, t.all())
	for label := range known {
		t.beginLock(label)
	}
	if !t.details {
		return
	}
	for _, r := range measures.Results {
		t.renewals.Add(bg, 0, t.all(ResultKey.String(r)))
	}
	for _, s := range measures.Scripts {
		t.retries.Add(bg, 0, t.all(ScriptKey.String(s)))
	}
	t.reconnects.Add(bg, 0, t.all())
	t.downtime.Add(bg, 0, t.all())
}

// know makes counters of the attributes of a lock begin with 0.
func (t *Telemetry) know(label string) {
	if t.inflight.Know(label) {
		t.beginLock(label)
	}
}

// beginLock makes the counters begin whose attributes are known, with details; and otherwise the
// one without which the share of calls that get the lock is unknown.
func (t *Telemetry) beginLock(label string) {
	bg := context.Background()
	acquires := func(o event.Outcome, reentrant, waited bool) {
		t.acquires.Add(bg, 0, t.with(label, OutcomeKey.String(string(o)), ReentrantKey.Bool(reentrant), WaitedKey.Bool(waited)))
	}
	acquires(event.OutcomeAcquired, false, false)
	if !t.details {
		return
	}
	for _, o := range measures.Outcomes {
		for _, waited := range []bool{false, true} {
			acquires(o, false, waited)
			acquires(o, true, waited)
		}
	}
	for _, w := range measures.WakeCauses {
		t.wakes.Add(bg, 0, t.with(label, WakeKey.String(string(w))))
	}
	for _, r := range measures.Reasons {
		t.losses.Add(bg, 0, t.with(label, ReasonKey.String(string(r))))
	}
	t.unconfirmed.Add(bg, 0, t.with(label))
	t.leaks.Add(bg, 0, t.with(label))
	t.asks.Add(bg, 0, t.with(label))
}
