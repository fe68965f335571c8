package relockotel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-relock/relock"
)

// ScopeName is the name of the meter and of the tracer.
const ScopeName = "github.com/go-relock/relock/otel"

// The attributes of metrics and spans. Those of metrics have few values, unless a function given to [WithLockAttribute]
// says otherwise.
const (
	OutcomeKey   = attribute.Key("relock.outcome")   // a relock.Outcome
	ReentrantKey = attribute.Key("relock.reentrant") // bool: a nested entry
	WaitedKey    = attribute.Key("relock.waited")    // bool: another holder had the lock, and the call could wait for it
	WakeKey      = attribute.Key("relock.wake")      // a relock.Wake: "grant", "recheck", "released" or "pass"
	EndKey       = attribute.Key("relock.end")       // of a hold: "released", "lost" or "closed"
	ReasonKey    = attribute.Key("relock.reason")    // a relock.LossReason
	ResultKey    = attribute.Key("relock.result")    // of a renewal: "ok", "failed" or "lost"
	ScriptKey    = attribute.Key("relock.script")
	LockKey      = attribute.Key("relock.lock") // see WithLockAttribute

	DepthKey  = attribute.Key("relock.depth")  // of spans only: the hold count after the entry
	TokenKey  = attribute.Key("relock.token")  // of spans only
	HolderKey = attribute.Key("relock.holder") // of spans only: who asked
	OwnerKey  = attribute.Key("relock.owner")  // of spans only: who had the lock
)

// Telemetry makes metrics and spans of what happens to the locks whose clients have its [Telemetry.Hooks]. It is safe for
// concurrent use.
type Telemetry struct {
	label  func(name string) string // nil: no attribute
	tracer trace.Tracer
	instruments

	inflight     *inflight
	registration metric.Registration
	begun        sync.Once
}

// Option is an option of [New].
type Option func(*config)

type config struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	label   func(name string) string
}

// WithMeterProvider sets where the metrics go. The default is [otel.GetMeterProvider].
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithTracerProvider sets where the spans go. The default is [otel.GetTracerProvider]; for no spans give a provider from
// the package trace/noop.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithLockAttribute adds an attribute relock.lock with what f makes of the lock's name, which must be one of a few
// values: "orders" for "orders:42". f is called for each event, by the goroutine that runs the hooks: one for each client, so where
// several share the Telemetry, f may be called by several at once. What is not valid UTF-8 in it becomes U+FFFD.
func WithLockAttribute(f func(name string) string) Option { return func(c *config) { c.label = f } }

// New makes a Telemetry. Make one for each meter provider. An error is that of a meter provider that refuses an
// instrument, or says that an option is nil; then nothing is registered.
func New(options ...Option) (*Telemetry, error) {
	var cfg config
	for _, option := range options {
		if option == nil {
			return nil, errors.New("relockotel: an Option is nil; leave it out instead")
		}
		option(&cfg)
	}
	if cfg.meters == nil {
		cfg.meters = otel.GetMeterProvider()
	}
	if cfg.tracers == nil {
		cfg.tracers = otel.GetTracerProvider()
	}
	t := &Telemetry{label: cfg.label, tracer: cfg.tracers.Tracer(ScopeName), inflight: newInflight()}
	meter := cfg.meters.Meter(ScopeName)
	var err error
	if t.instruments, err = newInstruments(meter); err != nil {
		return nil, err
	}
	t.registration, err = meter.RegisterCallback(t.observe, t.waiters, t.holds, t.maxAge, t.maxAgeTTL)
	if err != nil {
		return nil, err
	}
	if t.label == nil {
		t.inflight.know("")
	}
	return t, nil
}

// Close ends the metrics of what is in flight, which the meter provider asks for each time it collects. It is needed only
// where a Telemetry ends before its meter provider does.
func (t *Telemetry) Close() error { return t.registration.Unregister() }

// Hooks returns the hooks that feed the Telemetry, for [relock.WithHooks]. Any number of clients may have them. To have
// others beside them, use [relock.JoinHooks].
func (t *Telemetry) Hooks() relock.Hooks {
	bg := context.Background()
	return relock.Hooks{
		AcquireStarted:  func(e relock.AcquireStarted) { t.lock(e.Name) }, // its counters begin before they count
		AcquireFinished: t.acquireFinished,
		Queued: func(e relock.Queued) {
			lock := t.lock(e.Name)
			t.position.Record(bg, int64(e.Position), t.with(lock))
			t.inflight.queued(lock, waitKey{e.Name, e.Holder})
		},
		Released: func(e relock.Released) {
			if e.Err != nil {
				t.unconfirmed.Add(bg, 1, t.with(t.lock(e.Name)))
			}
			t.ended(holdKey{e.Name, e.Holder, e.Token}, endReleased, e.Held, e.TTL, e.MaxDepth)
		},
		Lost: func(e relock.Lost) {
			t.losses.Add(bg, 1, t.with(t.lock(e.Name), ReasonKey.String(string(e.Reason))))
			t.ended(holdKey{e.Name, e.Holder, e.Token}, endLost, e.Held, e.TTL, e.MaxDepth)
		},
		Closed: func(e relock.Closed) {
			t.ended(holdKey{e.Name, e.Holder, e.Token}, endClosed, e.Held, e.TTL, e.MaxDepth)
		},
		Leaked: func(e relock.Leaked) { t.leaks.Add(bg, 1, t.with(t.lock(e.Name))) },
		Renewed: func(e relock.Renewed) {
			t.renewals.Add(bg, int64(e.Locks-e.Failed-e.Lost), metric.WithAttributes(ResultKey.String(resultOK)))
			t.renewals.Add(bg, int64(e.Failed), metric.WithAttributes(ResultKey.String(resultFailed)))
			t.renewals.Add(bg, int64(e.Lost), metric.WithAttributes(ResultKey.String(resultLost)))
			t.renewalTime.Record(bg, e.Duration.Seconds())
		},
		Retried: func(e relock.Retried) { t.retries.Add(bg, 1, metric.WithAttributes(ScriptKey.String(e.Script))) },
		Reconnected: func(e relock.Reconnected) {
			t.reconnects.Add(bg, 1)
			t.downtime.Add(bg, e.Down.Seconds())
		},
		Dropped: func(e relock.Dropped) {
			t.dropped.Add(bg, int64(e.Events))
			t.inflight.reset()
		},
	}
}

func (t *Telemetry) acquireFinished(e relock.AcquireFinished) {
	lock := t.lock(e.Name)
	ctx := t.span(e, lock) // exemplars lead to the span
	outcome := OutcomeKey.String(string(e.Outcome))
	t.acquires.Add(ctx, 1, t.with(lock, outcome, ReentrantKey.Bool(e.Reentrant), WaitedKey.Bool(e.Waited)))
	if e.Queued {
		t.inflight.waited(waitKey{e.Name, e.Holder})
	}
	if e.Reentrant {
		return
	}
	t.acquireTime.Record(ctx, e.Duration.Seconds(), t.with(lock, outcome))
	refused := e.Outcome == relock.OutcomeLocked && !e.Waited // TryLock: an answer, not a wait
	if !refused && e.TTL > 0 {
		t.acquireTTL.Record(ctx, float64(e.Duration)/float64(e.TTL), t.with(lock))
	}
	if e.Outcome != relock.OutcomeAcquired {
		return
	}
	if e.Queued {
		t.wakes.Add(ctx, 1, t.with(lock, WakeKey.String(string(e.Wake))))
	}
	t.inflight.opened(holdKey{e.Name, e.Holder, e.Token}, e.Start, openHold{label: lock, since: e.Start.Add(e.Duration), ttl: e.TTL})
}

// ended counts a hold that is over.
func (t *Telemetry) ended(key holdKey, end string, held, ttl time.Duration, depth int) {
	ctx, lock := context.Background(), t.lock(key.name)
	t.holdTime.Record(ctx, held.Seconds(), t.with(lock, EndKey.String(end)))
	if ttl > 0 {
		t.holdTTL.Record(ctx, float64(held)/float64(ttl), t.with(lock))
	}
	t.depth.Record(ctx, int64(depth), t.with(lock))
	t.inflight.closed(key, held)
}

// lock is the attribute's value for a lock's name.
func (t *Telemetry) lock(name string) string {
	if t.label == nil {
		return ""
	}
	lock := valid(t.label(name))
	t.know(lock)
	return lock
}

// valid is what an exporter can send of a text that somebody else has made: one attribute that is no UTF-8 would cost the whole
// batch that it is in, or every scrape until the process ends.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// with is attributes, and the lock's if there is such an attribute.
func (t *Telemetry) with(lock string, attrs ...attribute.KeyValue) metric.MeasurementOption {
	if t.label != nil {
		attrs = append(attrs, LockKey.String(lock))
	}
	return metric.WithAttributes(attrs...)
}

// observe is called when metrics are collected.
func (t *Telemetry) observe(_ context.Context, o metric.Observer) error {
	now := t.inflight.now()
	t.begun.Do(func() { t.begin(now) })
	for lock, u := range now {
		o.ObserveInt64(t.waiters, int64(u.waiters), t.with(lock))
		o.ObserveInt64(t.holds, int64(u.holds), t.with(lock))
		o.ObserveFloat64(t.maxAge, u.age.Seconds(), t.with(lock))
		o.ObserveFloat64(t.maxAgeTTL, u.ageTTL, t.with(lock))
	}
	return nil
}

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

	renewals    metric.Int64Counter
	renewalTime metric.Float64Histogram
	retries     metric.Int64Counter
	reconnects  metric.Int64Counter
	downtime    metric.Float64Counter
	dropped     metric.Int64Counter

	waiters   metric.Int64ObservableUpDownCounter
	holds     metric.Int64ObservableUpDownCounter
	maxAge    metric.Float64ObservableGauge
	maxAgeTTL metric.Float64ObservableGauge
}

// maker makes instruments and keeps what goes wrong.
type maker struct {
	meter metric.Meter
	errs  []error
}

func (m *maker) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) histogram(name, unit, description string, bounds ...float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

func (m *maker) intHistogram(name, unit, description string, bounds ...float64) metric.Int64Histogram {
	h, err := m.meter.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

func (m *maker) upDown(name, unit, description string) metric.Int64ObservableUpDownCounter {
	c, err := m.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) gauge(name, unit, description string) metric.Float64ObservableGauge {
	g, err := m.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return g
}

func newInstruments(meter metric.Meter) (instruments, error) {
	m := &maker{meter: meter}
	seconds := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
	ttls := []float64{.1, .25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 100, 1000}
	i := instruments{
		acquires: m.counter("relock.acquires", "{acquire}", "Calls that asked for a lock and have returned."),
		acquireTime: m.histogram("relock.acquire.duration", "s",
			"Time from the call to its return. Nested entries are left out.", seconds...),
		acquireTTL: m.histogram("relock.acquire.ttl_ratio", "1", "Time from the call to its return as a multiple of the lock's TTL. "+
			"Nested entries and refusals without a wait are left out.", ttls...),
		wakes: m.counter("relock.wakes", "{wake}", "Waits that ended with the lock, by what told the waiter."),
		position: m.intHistogram("relock.queue.position", "{waiter}", "How many waiters were before one that joined the queue.",
			0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
		holdTime: m.histogram("relock.hold.duration", "s", "Time from the first entry of a hold to its last exit.", seconds...),
		holdTTL: m.histogram("relock.hold.ttl_ratio", "1",
			"Time from the first entry of a hold to its last exit as a multiple of the lock's TTL.", ttls...),
		depth: m.intHistogram("relock.hold.depth", "{entry}", "The highest number of open entries of a hold; 1 is no re-entry.",
			1, 2, 3, 4, 5, 8, 16, 32, 64),
		unconfirmed: m.counter("relock.releases.unconfirmed", "{release}", "Last exits of a hold that Redis did not confirm."),
		losses:      m.counter("relock.losses", "{loss}", "Holds that ended without Unlock."),
		leaks:       m.counter("relock.leaks", "{leak}", "Reports of entries whose context was dropped without Unlock."),
		renewals:    m.counter("relock.renewals", "{renewal}", "Renewals of a lease by the watchdog."),
		renewalTime: m.histogram("relock.renewal.duration", "s", "Time of a round trip of the watchdog, which renews many leases.",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10),
		retries:    m.counter("relock.retries", "{retry}", "Scripts that were sent to Redis again."),
		reconnects: m.counter("relock.reconnects", "{reconnect}", "Pub/sub connections that were lost and are back."),
		dropped:    m.counter("relock.events.dropped", "{event}", "Events that are in no metric, because too many waited for the hooks."),
		waiters:    m.upDown("relock.waiters", "{waiter}", "Waiters that are queued for a lock."),
		holds:      m.upDown("relock.holds", "{hold}", "Holds that are open."),
		maxAge:     m.gauge("relock.hold.max_age", "s", "Age of the oldest hold that is open, 0 if there is none."),
		maxAgeTTL:  m.gauge("relock.hold.max_age_ttl", "1", "Largest age of an open hold as a multiple of the lock's TTL."),
	}
	var err error
	i.downtime, err = meter.Float64Counter("relock.reconnect.downtime", metric.WithUnit("s"),
		metric.WithDescription("Time for which the pub/sub connections that are back were gone."))
	return i, errors.Join(append(m.errs, err)...)
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

// begin makes the counters of clients begin with 0, and those of locks that are known. Only when metrics are collected for the
// first time: the global meter provider may be set after New, and what is counted before that is lost.
func (t *Telemetry) begin(known map[string]usage) {
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
	if t.inflight.know(lock) {
		t.beginLock(lock)
	}
}

func (t *Telemetry) beginLock(lock string) {
	bg := context.Background()
	for _, o := range outcomes {
		for _, waited := range []bool{false, true} {
			t.acquires.Add(bg, 0, t.with(lock, OutcomeKey.String(string(o)), ReentrantKey.Bool(false), WaitedKey.Bool(waited)))
		}
		t.acquires.Add(bg, 0, t.with(lock, OutcomeKey.String(string(o)), ReentrantKey.Bool(true), WaitedKey.Bool(false)))
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
