package relockotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/inflight"
)

// instruments are the metrics; see the package documentation.
type instruments struct {
	lockInstruments
	clientInstruments
	gauges
}

// lockInstruments count what happens to locks.
type lockInstruments struct {
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
}

// clientInstruments count what happens to clients. They have no lock attribute.
type clientInstruments struct {
	renewals    metric.Int64Counter
	renewalTime metric.Float64Histogram
	retries     metric.Int64Counter
	reconnects  metric.Int64Counter
	downtime    metric.Float64Counter
	dropped     metric.Int64Counter
}

// gauges tell what is in flight.
type gauges struct {
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

func (m *maker) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(prefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) seconds(name, description string) metric.Float64Counter {
	c, err := m.meter.Float64Counter(prefix+name, metric.WithUnit("s"), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) histogram(name, unit, description string, bounds ...float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(prefix+name, metric.WithUnit(unit), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

func (m *maker) intHistogram(name, unit, description string, bounds ...float64) metric.Int64Histogram {
	h, err := m.meter.Int64Histogram(prefix+name, metric.WithUnit(unit), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

func (m *maker) upDown(name, unit, description string) metric.Int64ObservableUpDownCounter {
	c, err := m.meter.Int64ObservableUpDownCounter(prefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) gauge(name, unit, description string) metric.Float64ObservableGauge {
	g, err := m.meter.Float64ObservableGauge(prefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return g
}

func newInstruments(meter metric.Meter) (instruments, error) {
	m := &maker{meter: meter}
	i := instruments{m.ofLocks(), m.ofClients(), m.inFlight()}
	return i, errors.Join(m.errs...)
}

func (m *maker) ofLocks() lockInstruments {
	seconds := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
	ttls := []float64{.1, .25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 100, 1000}
	return lockInstruments{
		acquires: m.counter("acquires", "{acquire}", "Calls that asked for a lock and have returned."),
		acquireTime: m.histogram("acquire.duration", "s",
			"Time from the call to its return. Nested entries are left out.", seconds...),
		acquireTTL: m.histogram("acquire.ttl_ratio", "1", "Time from the call to its return as a multiple of the "+
			"lock's TTL. Nested entries and refusals without a wait are left out.", ttls...),
		wakes: m.counter("wakes", "{wake}", "Waits that ended with the lock, by what told the waiter."),
		position: m.intHistogram("queue.position", "{waiter}", "How many waiters were before one that joined the queue.",
			0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
		holdTime: m.histogram("hold.duration", "s", "Time from the first entry of a hold to its last exit.", seconds...),
		holdTTL: m.histogram("hold.ttl_ratio", "1",
			"Time from the first entry of a hold to its last exit as a multiple of the lock's TTL.", ttls...),
		depth: m.intHistogram("hold.depth", "{entry}", "The highest number of open entries of a hold; 1 is no re-entry.",
			1, 2, 3, 4, 5, 8, 16, 32, 64),
		unconfirmed: m.counter("releases.unconfirmed", "{release}", "Last exits of a hold that the store did not confirm."),
		losses:      m.counter("losses", "{loss}", "Holds that ended without Unlock."),
		leaks:       m.counter("leaks", "{leak}", "Reports of entries whose context was dropped without Unlock."),
	}
}

func (m *maker) ofClients() clientInstruments {
	return clientInstruments{
		renewals: m.counter("renewals", "{renewal}", "Renewals of a lease by the watchdog."),
		renewalTime: m.histogram("renewal.duration", "s", "Time of a round trip of the watchdog, which renews many leases.",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10),
		retries:    m.counter("retries", "{retry}", "Scripts that were sent to Redis again."),
		reconnects: m.counter("reconnects", "{reconnect}", "Pub/sub connections that were lost and are back."),
		downtime:   m.seconds("reconnect.downtime", "Time for which the pub/sub connections that are back were gone."),
		dropped: m.counter("events.dropped", "{event}",
			"Events that are in no metric, because too many waited for the hooks."),
	}
}

func (m *maker) inFlight() gauges {
	return gauges{
		waiters:   m.upDown("waiters", "{waiter}", "Waiters that are queued for a lock."),
		holds:     m.upDown("holds", "{hold}", "Holds that are open."),
		maxAge:    m.gauge("hold.max_age", "s", "Age of the oldest hold that is open, 0 if there is none."),
		maxAgeTTL: m.gauge("hold.max_age_ttl", "1", "Largest age of an open hold as a multiple of the lock's TTL."),
	}
}

// The attribute values that are known before anything happens. Their counters begin with 0.
var (
	outcomes = []relock.Outcome{
		relock.OutcomeAcquired, relock.OutcomeLocked, relock.OutcomeCanceled, relock.OutcomeClosed, relock.OutcomeLost,
		relock.OutcomeError,
	}
	wakes   = []relock.Wake{relock.WakeGrant, relock.WakeRecheck, relock.WakeReleased, relock.WakePass}
	reasons = []relock.LossReason{
		relock.LossExpired, relock.LossTaken, relock.LossMaxHold, relock.LossAbandoned, relock.LossLeaked,
	}
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

// begin makes the counters of clients, and of known locks, begin with 0. The first collection calls
// begin: the global meter provider may be set after New, and earlier counts would be lost.
func (t *Telemetry) begin(known map[string]inflight.Usage) {
	bg := context.Background()
	for _, r := range results {
		t.renewals.Add(bg, 0, metric.WithAttributes(ResultKey.String(r)))
	}
	for _, s := range scripts {
		t.retries.Add(bg, 0, metric.WithAttributes(ScriptKey.String(s)))
	}
	t.reconnects.Add(bg, 0)
	t.downtime.Add(bg, 0)
	t.dropped.Add(bg, 0)
	for lock := range known {
		t.beginLock(lock)
	}
}

// know makes the counters of a lock attribute begin with 0.
func (t *Telemetry) know(lock string) {
	if t.inflight.Know(lock) {
		t.beginLock(lock)
	}
}

func (t *Telemetry) beginLock(lock string) {
	bg := context.Background()
	for _, o := range outcomes {
		outcome := OutcomeKey.String(string(o))
		for _, waited := range []bool{false, true} {
			t.acquires.Add(bg, 0, t.with(lock, outcome, ReentrantKey.Bool(false), WaitedKey.Bool(waited)))
		}
		t.acquires.Add(bg, 0, t.with(lock, outcome, ReentrantKey.Bool(true), WaitedKey.Bool(false)))
	}
	for _, w := range wakes {
		t.wakes.Add(bg, 0, t.with(lock, WakeKey.String(string(w))))
	}
	for _, r := range reasons {
		t.losses.Add(bg, 0, t.with(lock, ReasonKey.String(string(r))))
	}
	t.unconfirmed.Add(bg, 0, t.with(lock))
	t.leaks.Add(bg, 0, t.with(lock))
}
