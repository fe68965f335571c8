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
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/inflight"
	"github.com/go-relock/relock/internal/measures"
)

// ScopeName is the name of the meter and of the tracer, and the path of this module. Their version
// is the version of this module in the program.
const ScopeName = "github.com/go-relock/relock/telemetry/otel"

// The attributes of metrics and spans. An attribute of metrics has few values, unless a function
// given to [WithLockAttribute] returns many.
const (
	OutcomeKey   = attribute.Key("relock.outcome")   // a event.Outcome
	ReentrantKey = attribute.Key("relock.reentrant") // bool: a nested entry
	WaitedKey    = attribute.Key("relock.waited")    // bool: others had the lock, and the call could wait
	WakeKey      = attribute.Key("relock.wake")      // a event.Wake: "grant", "recheck", "released", "pass"
	EndKey       = attribute.Key("relock.end")       // of a hold: "released", "lost" or "closed"
	ReasonKey    = attribute.Key("relock.reason")    // a event.LossReason
	ResultKey    = attribute.Key("relock.result")    // of a renewal: "ok", "failed" or "lost"
	ScriptKey    = attribute.Key("relock.script")    // the name of a script
	ModeKey      = attribute.Key("relock.mode")      // a event.Mode: "exclusive", "shared", "permit"
	LockKey      = attribute.Key("relock.lock")      // see WithLockAttribute
	ClientKey    = attribute.Key("relock.client")    // see WithClientAttribute

	DepthKey  = attribute.Key("relock.depth")  // of spans only: the hold count after the entry
	HolderKey = attribute.Key("relock.holder") // of spans only: the holder that asked
	OwnerKey  = attribute.Key("relock.owner")  // of spans only: the holder that had the lock
)

// Telemetry makes metrics and spans of the events of locks whose clients have [Telemetry.Hooks]. A
// Telemetry is safe for concurrent use.
type Telemetry struct {
	label   func(name string) string // nil: no attribute
	client  string                   // empty: no attribute
	details bool
	tracer  trace.Tracer
	instruments

	calls        calls
	inflight     *inflight.Table
	registration metric.Registration
	begun        sync.Once
}

// Option is an option of [New].
type Option func(*config)

type config struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	label   func(name string) string
	client  string
	details bool
}

// WithMeterProvider sets where the metrics go. The default is [otel.GetMeterProvider]; for no
// metrics give a provider from the package metric/noop.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithTracerProvider sets where the spans go. The default is [otel.GetTracerProvider]; for no spans
// give a provider from the package trace/noop.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithLockAttribute adds an attribute relock.lock. The function f maps the name of a lock to one of
// a few values, such as "orders:42" to "orders". Each call for a lock, and each event, calls f, so
// f must be safe for concurrent use. Bytes that are not valid UTF-8 become U+FFFD.
func WithLockAttribute(f func(name string) string) Option { return func(c *config) { c.label = f } }

// WithClientAttribute adds an attribute relock.client to all metrics and spans, so that clients
// with a Telemetry each are told apart. Bytes that are not valid UTF-8 become U+FFFD.
func WithClientAttribute(client string) Option {
	return func(c *config) { c.client = valid(client) }
}

// WithDetails gives the histograms many buckets, adds the histograms of queue positions, of
// re-entry and of renewals, and lets all counters begin with 0. A lock kind then has about ten
// times as many time series.
func WithDetails() Option { return func(c *config) { c.details = true } }

// New makes a Telemetry. Make one for each meter provider. New returns an error if an option is
// nil, or if the meter provider refuses an instrument; then nothing is registered.
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
	v := version()
	t := &Telemetry{
		label: cfg.label, client: cfg.client, details: cfg.details, inflight: inflight.New(),
		tracer: cfg.tracers.Tracer(ScopeName, trace.WithInstrumentationVersion(v)),
	}
	meter := cfg.meters.Meter(ScopeName, metric.WithInstrumentationVersion(v))
	bounds := measures.Few
	if t.details {
		bounds = measures.Details
	}
	var err error
	if t.instruments, err = newInstruments(meter, bounds); err != nil {
		return nil, err
	}
	t.registration, err = meter.RegisterCallback(t.observe, t.waiters, t.holds, t.maxAge, t.maxAgeTTL)
	if err != nil {
		return nil, err
	}
	if t.label == nil {
		t.inflight.Know(measures.Label(event.ModeExclusive, ""))
	}
	return t, nil
}

// Close ends the metrics of what is in flight, which the meter provider reads whenever somebody
// collects. Close is needed only if a Telemetry ends before the meter provider does.
func (t *Telemetry) Close() error { return t.registration.Unregister() }

// Hooks returns the hooks that feed the Telemetry, for [relock.WithHooks]. Any number of clients
// may have them. To add hooks of your own, use [event.Join].
func (t *Telemetry) Hooks() event.Hooks {
	bg := context.Background()
	return event.Hooks{
		AcquireStarted:  func(e event.AcquireStarted) { t.of(e.Name, e.Mode) }, // counters begin before they count
		AcquireFinished: t.acquireFinished,
		Trace:           t.trace,
		Queued: func(e event.Queued) {
			label := t.of(e.Name, e.Mode)
			if t.details {
				t.position.Record(bg, int64(e.Position), t.with(label))
			}
			t.inflight.Queue(keyOf(e.Name, e.Mode, e.Holder, false), label)
		},
		Released: func(e event.Released) {
			label := t.of(e.Name, e.Mode)
			if e.Err != nil {
				t.unconfirmed.Add(bg, 1, t.with(label))
			}
			t.ended(keyOf(e.Name, e.Mode, e.Holder, e.Leader), label, e.TTL, e.Held, e.MaxDepth, measures.EndReleased)
		},
		Lost: func(e event.Lost) {
			label := t.of(e.Name, e.Mode)
			t.losses.Add(bg, 1, t.with(label, ReasonKey.String(string(e.Reason))))
			t.ended(keyOf(e.Name, e.Mode, e.Holder, e.Leader), label, e.TTL, e.Held, e.MaxDepth, measures.EndLost)
		},
		Closed: func(e event.Closed) {
			label := t.of(e.Name, e.Mode)
			t.ended(keyOf(e.Name, e.Mode, e.Holder, e.Leader), label, e.TTL, e.Held, e.MaxDepth, measures.EndClosed)
		},
		Wanted: func(e event.Wanted) { t.asks.Add(bg, 1, t.with(t.of(e.Name, e.Mode))) },
		Leaked: func(e event.Leaked) { t.leaks.Add(bg, 1, t.with(t.of(e.Name, e.Mode))) },
		Renewed: func(e event.Renewed) {
			renewed := func(n int, result string) {
				if n > 0 {
					t.renewals.Add(bg, int64(n), t.all(ResultKey.String(result)))
				}
			}
			renewed(e.Locks-e.Failed-e.Lost, measures.ResultOK)
			renewed(e.Failed, measures.ResultFailed)
			renewed(e.Lost, measures.ResultLost)
			if t.details {
				t.renewalTime.Record(bg, e.Duration.Seconds(), t.all())
			}
		},
		Retried: func(e event.Retried) {
			t.retries.Add(bg, 1, t.all(ScriptKey.String(e.Script)))
		},
		Reconnected: func(e event.Reconnected) {
			t.reconnects.Add(bg, 1, t.all())
			t.downtime.Add(bg, e.Down.Seconds(), t.all())
		},
		Dropped: func(e event.Dropped) {
			t.dropped.Add(bg, int64(e.Events), t.all())
			t.inflight.Reset()
			t.calls.reset()
		},
	}
}

func (t *Telemetry) acquireFinished(e event.AcquireFinished) {
	label := t.of(e.Name, e.Mode)
	// Exemplars lead to the span, which trace has noted in the goroutine of the call.
	ctx := trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(e.Context))
	outcome := OutcomeKey.String(string(e.Outcome))
	t.acquires.Add(ctx, 1, t.with(label, outcome, ReentrantKey.Bool(e.Reentrant), WaitedKey.Bool(e.Waited)))
	if e.Queued {
		t.inflight.Unqueue(keyOf(e.Name, e.Mode, e.Holder, false))
	}
	if e.Outcome == event.OutcomeAcquired {
		t.entered(ctx, e, label)
	}
	if e.Reentrant {
		return
	}
	t.acquireTime.Record(ctx, e.Duration.Seconds(), t.with(label, outcome))
	refused := e.Outcome == event.OutcomeLocked && !e.Waited // TryLock: an answer, not a wait
	if !refused && !e.Leader && e.TTL > 0 {
		t.acquireTTL.Record(ctx, float64(e.Duration)/float64(e.TTL), t.with(label))
	}
}

// entered counts an entry. A call for writing inside a section for reading, or the other way round,
// is a nested one and yet begins a hold: its depth is 1.
func (t *Telemetry) entered(ctx context.Context, e event.AcquireFinished, label string) {
	if e.Queued {
		t.wakes.Add(ctx, 1, t.with(label, WakeKey.String(string(e.Wake))))
	}
	if e.Depth == 1 {
		t.inflight.Open(keyOf(e.Name, e.Mode, e.Holder, e.Leader),
			inflight.Hold{Label: label, Asked: e.Start, Since: e.Start.Add(e.Duration), TTL: e.TTL})
	}
}

// keyOf names a hold, or a wait, for the table of what is in flight. A holder may have a hold of
// each mode of a read-write lock.
func keyOf(name string, mode event.Mode, h relock.Holder, leader bool) inflight.Key {
	return inflight.Key{Name: name, Holder: string(mode) + " " + h.String(), Leader: leader}
}

// ended counts a hold that is over.
func (t *Telemetry) ended(key inflight.Key, label string, ttl, held time.Duration, depth int, end string) {
	bg := context.Background()
	t.holdTime.Record(bg, held.Seconds(), t.with(label, EndKey.String(end)))
	if ttl > 0 && !key.Leader {
		t.holdTTL.Record(bg, float64(held)/float64(ttl), t.with(label))
	}
	if t.details {
		t.depth.Record(bg, int64(depth), t.with(label))
	}
	t.inflight.End(key, held)
}

// of returns the attributes of a lock, see [measures.Label].
func (t *Telemetry) of(name string, mode event.Mode) string {
	lock := ""
	if t.label != nil {
		lock = valid(t.label(name))
	}
	label := measures.Label(mode, lock)
	t.know(label)
	return label
}

// valid makes a text fit for an exporter. Invalid UTF-8 in one attribute would cost the whole
// batch, or every scrape until the process ends.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// with returns attributes, and the attributes of a lock.
func (t *Telemetry) with(label string, attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(attrs, t.attributes(label)...)...)
}

// all returns attributes, and the attribute of the client.
func (t *Telemetry) all(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(t.ofClient(attrs)...)
}

// ofClient adds the attribute of the client, if there is one.
func (t *Telemetry) ofClient(attrs []attribute.KeyValue) []attribute.KeyValue {
	if t.client != "" {
		attrs = append(attrs, ClientKey.String(t.client))
	}
	return attrs
}

// attributes returns the attributes of a lock: its mode and, if there are any, the lock attribute
// and that of the client.
func (t *Telemetry) attributes(label string) []attribute.KeyValue {
	mode, lock := measures.Split(label)
	attrs := []attribute.KeyValue{ModeKey.String(mode)}
	if t.label != nil {
		attrs = append(attrs, LockKey.String(lock))
	}
	return t.ofClient(attrs)
}

// observe reports what is in flight when somebody collects metrics.
func (t *Telemetry) observe(_ context.Context, o metric.Observer) error {
	now := t.inflight.Usage()
	t.begun.Do(func() { t.begin(now) })
	for label, u := range now {
		o.ObserveInt64(t.waiters, int64(u.Waiters), t.with(label))
		o.ObserveInt64(t.holds, int64(u.Holds), t.with(label))
		o.ObserveFloat64(t.maxAge, u.Age.Seconds(), t.with(label))
		o.ObserveFloat64(t.maxAgeTTL, u.AgeTTL, t.with(label))
	}
	return nil
}
