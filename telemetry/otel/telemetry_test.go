package relockotel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/measurestest"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store/mem"
	relockotel "github.com/go-relock/relock/telemetry/otel"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// collected is a Telemetry with everything that it gives to its providers.
type collected struct {
	*relockotel.Telemetry
	t      *testing.T
	reader *sdkmetric.ManualReader
	spans  *tracetest.InMemoryExporter
	traces *sdktrace.TracerProvider
}

func collect(t *testing.T, options ...relockotel.Option) *collected {
	t.Helper()
	c := &collected{t: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	c.traces = sdktrace.NewTracerProvider(sdktrace.WithSyncer(c.spans))
	var err error
	c.Telemetry, err = relockotel.New(append([]relockotel.Option{
		relockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader))),
		relockotel.WithTracerProvider(c.traces),
	}, options...)...)
	require.NoError(t, err)
	return c
}

func (c *collected) metrics() []metricdata.Metrics {
	c.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(c.t, c.reader.Collect(context.Background(), &all))
	if len(all.ScopeMetrics) == 0 {
		return nil
	}
	require.Len(c.t, all.ScopeMetrics, 1)
	require.Equal(c.t, relockotel.ScopeName, all.ScopeMetrics[0].Scope.Name)
	return all.ScopeMetrics[0].Metrics
}

// values are the samples that were collected, named as package measurestest wants them.
func (c *collected) values() map[string]float64 {
	c.t.Helper()
	all := make(map[string]float64)
	for _, m := range c.metrics() {
		name := strings.TrimPrefix(m.Name, "relock.client.")
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				all[name+labels(p.Attributes)] = float64(p.Value)
			}
		case metricdata.Sum[float64]:
			for _, p := range data.DataPoints {
				all[name+labels(p.Attributes)] = p.Value
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				all[name+labels(p.Attributes)] = p.Value
			}
		case metricdata.Histogram[int64]:
			for _, p := range data.DataPoints {
				all[name+".count"+labels(p.Attributes)] = float64(p.Count)
				all[name+".sum"+labels(p.Attributes)] = float64(p.Sum)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				all[name+".count"+labels(p.Attributes)] = float64(p.Count)
				all[name+".sum"+labels(p.Attributes)] = p.Sum
			}
		default:
			c.t.Fatalf("%s is %T", m.Name, data)
		}
	}
	return all
}

func labels(set attribute.Set) string {
	var all []string
	for _, kv := range set.ToSlice() {
		all = append(all, strings.TrimPrefix(string(kv.Key), "relock.")+"="+kv.Value.String())
	}
	if len(all) == 0 {
		return ""
	}
	return "{" + strings.Join(all, ",") + "}"
}

func TestEventsAreCounted(t *testing.T) {
	measurestest.Run(t, func(t *testing.T, s measurestest.Setup) measurestest.Metrics {
		t.Helper()
		options := []relockotel.Option{relockotel.WithLockAttribute(s.Label)}
		if s.Details {
			options = append(options, relockotel.WithDetails())
		}
		c := collect(t, options...)
		return measurestest.Metrics{Hooks: c.Hooks(), Values: c.values}
	})
}

func TestTwoClientsAtOneProviderAreToldApart(t *testing.T) {
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	c := &collected{t: t, reader: reader, spans: spans}
	for _, name := range []string{"orders", "billing"} {
		telemetry, err := relockotel.New(relockotel.WithMeterProvider(meters), relockotel.WithClientAttribute(name),
			relockotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))))
		require.NoError(t, err)
		locks, err := relock.Open(mem.New(), relock.WithHooks(telemetry.Hooks()))
		require.NoError(t, err)
		require.NoError(t, locks.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, locks.Close())
		_, attrs := c.lastSpan(relockotel.SectionSpanName)
		require.Equal(t, name, attrs["relock.client"])
	}
	got := c.values()
	for sample := range got {
		require.Regexp(t, `client=(orders|billing)[,}]`, sample)
	}
	for _, name := range []string{"orders", "billing"} {
		require.Equal(t, 1., got["acquires{client="+name+",mode=exclusive,outcome=acquired,reentrant=false,waited=false}"])
		require.Contains(t, got, "holds{client="+name+",mode=exclusive}")
		require.Contains(t, got, "events.dropped{client="+name+"}")
	}
}

func TestNameInSpansIsTheMappedOne(t *testing.T) {
	c := collect(t, relockotel.WithLockAttribute(func(string) string { return "orders" }))
	c.happens(event.AcquireFinished{
		Context: t.Context(), Name: "orders:jones", Mode: event.ModeExclusive, Start: time.Now(), Outcome: event.OutcomeLocked,
	})
	_, attrs := c.lastSpan(relockotel.SpanName)
	require.Equal(t, "orders", attrs["relock.lock"])
	require.NotContains(t, fmt.Sprintf("%+v", c.spans.GetSpans()), "jones")
}

// ended are the ended spans of a name, in the order of their ends.
func (c *collected) ended(name string) tracetest.SpanStubs {
	return slices.DeleteFunc(c.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
}

// lastSpan is the last ended span of a name, and its attributes.
func (c *collected) lastSpan(name string) (tracetest.SpanStub, map[string]any) {
	c.t.Helper()
	spans := c.ended(name)
	require.NotEmpty(c.t, spans)
	span := spans[len(spans)-1]
	attrs := make(map[string]any)
	for _, kv := range span.Attributes {
		attrs[string(kv.Key)] = kv.Value.AsInterface()
	}
	return span, attrs
}

// world is a server and a clock, in which time passes only when everybody waits.
type world struct {
	*miniredis.Miniredis
	t *testing.T // of the bubble
}

// bubble runs a test in a world of its own.
func bubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		w := &world{miniredis.NewMiniRedis(), t}
		w.ClockTTL(true)
		t.Cleanup(func() {
			w.Close()
			pass(time.Minute) // go-redis ends
		})
		test(w)
	})
}

func (w *world) client(options ...relock.Option) *relock.Client {
	w.t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:6379", // the dialer ignores it
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return w.Dial() },
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true,
	})
	w.t.Cleanup(func() { _ = rdb.Close() })
	c, err := relock.New(rdb, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func pass(d time.Duration) {
	time.Sleep(d) // fake time
	synctest.Wait()
}

func enter(t *testing.T, ctx context.Context, l *relock.Lock) context.Context {
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	return section
}

// happens reports a call that a test makes up.
func (c *collected) happens(e event.AcquireFinished) {
	hooks := c.Hooks()
	start := event.AcquireStarted{Context: e.Context, Name: e.Name, Mode: e.Mode, Start: e.Start}
	hooks.AcquireStarted(start)
	ctx, finished := hooks.Trace(start)
	e.Context = ctx
	finished(start.Context, e)
	hooks.AcquireFinished(e)
}

func TestTheSpanOfACircleOfWaitsHasNoNames(t *testing.T) {
	c := collect(t)
	c.happens(event.AcquireFinished{
		Context: t.Context(), Name: "jones", Mode: event.ModeShared, Start: time.Now(), Outcome: event.OutcomeDeadlock,
		Err: &relock.DeadlockError{Cycle: []relock.CycleStep{{Lock: "jones"}, {Lock: "smith"}}},
	})
	span, attrs := c.lastSpan(relockotel.SpanName)
	require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "the wait would be a deadlock"}, span.Status)
	require.Equal(t, "shared", attrs["relock.mode"])
}

func TestEachAcquireIsASpanUnderItsCallers(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := collect(t)
		l := w.client(relock.WithHooks(c.Hooks()), relock.WithTTL(10*time.Second)).NewLock("secret:jones")
		tracer := c.traces.Tracer("test")
		ctx, parent := tracer.Start(t.Context(), "request")

		begun := time.Now()
		outer := enter(t, ctx, l)
		synctest.Wait()
		span, attrs := c.lastSpan(relockotel.SpanName)
		holder, _ := relock.HolderFrom(outer)
		require.Equal(t, parent.SpanContext().SpanID(), span.Parent.SpanID())
		require.Equal(t, parent.SpanContext().TraceID(), span.SpanContext.TraceID())
		require.Equal(t, begun, span.StartTime)
		require.Equal(t, begun, span.EndTime)
		require.Equal(t, codes.Unset, span.Status.Code)
		require.Equal(t, map[string]any{
			"relock.mode": "exclusive", "relock.outcome": "acquired", "relock.reentrant": false, "relock.waited": false,
			"relock.depth": int64(1), "relock.holder": holder.String(),
		}, attrs)

		inner := enter(t, outer, l)
		synctest.Wait()
		span, attrs = c.lastSpan(relockotel.SpanName)
		require.Equal(t, parent.SpanContext().TraceID(), span.SpanContext.TraceID(), "its parent is the span of the section")
		require.NotEqual(t, parent.SpanContext().SpanID(), span.Parent.SpanID())
		require.Equal(t, true, attrs["relock.reentrant"])
		require.EqualValues(t, 2, attrs["relock.depth"])
		require.NoError(t, l.Unlock(inner))

		pass(time.Second)
		asked := time.Now()
		_, err := l.TryLockFor(ctx, 2*time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		synctest.Wait()
		span, attrs = c.lastSpan(relockotel.SpanName)
		require.Equal(t, asked, span.StartTime)
		require.Equal(t, asked.Add(2*time.Second), span.EndTime)
		require.Equal(t, codes.Unset, span.Status.Code, "a lock that is taken is an answer")
		require.Equal(t, "locked", attrs["relock.outcome"])
		require.Equal(t, "locked", attrs["error.type"])
		require.Equal(t, true, attrs["relock.waited"])
		require.Equal(t, holder.String(), attrs["relock.owner"], "it says who to look for")
		require.NotEqual(t, holder.String(), attrs["relock.holder"])

		waiting, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			_, err := l.Lock(waiting)
			done <- err
		}()
		pass(time.Second)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		synctest.Wait()
		span, attrs = c.lastSpan(relockotel.SpanName)
		require.Equal(t, time.Second, span.EndTime.Sub(span.StartTime), "also of a caller whose context is done")
		require.Equal(t, "locked", attrs["relock.outcome"])

		go func() {
			section, err := l.Lock(ctx)
			if err == nil {
				err = l.Unlock(section)
			}
			done <- err
		}()
		pass(time.Second)
		require.NoError(t, l.Unlock(outer))
		require.NoError(t, <-done)
		synctest.Wait()
		_, attrs = c.lastSpan(relockotel.SpanName)
		require.Equal(t, "grant", attrs["relock.wake"])
		require.Equal(t, holder.String(), attrs["relock.owner"], "the holder for which it has waited")

		outer = enter(t, ctx, l)
		w.FlushAll()
		_, err = l.Lock(outer)
		require.ErrorIs(t, err, relock.ErrLockLost)
		synctest.Wait()
		span, attrs = c.lastSpan(relockotel.SpanName)
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "lock lost: taken"}, span.Status)
		require.Equal(t, "lost", attrs["error.type"])

		w.SetError("NOAUTH Authentication required.")
		_, err = l.Lock(ctx)
		require.Error(t, err)
		w.SetError("")
		synctest.Wait()
		span, attrs = c.lastSpan(relockotel.SpanName)
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "NOAUTH Authentication required."}, span.Status)
		require.Equal(t, "error", attrs["relock.outcome"])
		require.Equal(t, "NOAUTH", attrs["error.type"])

		require.Len(t, c.ended(relockotel.SpanName), 8, "one for each call")
		require.Len(t, c.ended(relockotel.SectionSpanName), 3, "one for each hold")
		require.NotContains(t, fmt.Sprintf("%+v", c.spans.GetSpans()), "jones", "the name is in no span, not even in the text of an error")
	})
}

func TestTheSpanOfACallInASectionThatEndsSaysNothingOfThatSectionsLock(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := collect(t)
		locks := w.client(relock.WithHooks(c.Hooks()))
		section := enter(t, t.Context(), locks.NewLock("a"))
		_ = enter(t, t.Context(), w.client().NewLock("b"))
		w.Del("relock:{a}")
		_, err := locks.NewLock("b").Lock(section)
		require.ErrorIs(t, err, relock.ErrLocked)
		synctest.Wait()
		span, attrs := c.lastSpan(relockotel.SpanName)
		require.Equal(t, "locked", attrs["relock.outcome"])
		require.Equal(t, sdktrace.Status{Code: codes.Unset}, span.Status)

		_ = enter(t, t.Context(), w.client().NewLock("a"))
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err = locks.NewLock("a").TryLock(ctx)
		cancel(err)
		_, err = locks.NewLock("c").Lock(ctx)
		require.ErrorIs(t, err, relock.ErrLocked)
		synctest.Wait()
		_, attrs = c.lastSpan(relockotel.SpanName)
		require.Equal(t, "canceled", attrs["relock.outcome"])
		require.NotContains(t, attrs, "relock.owner")
	})
}

func TestAnErrorWhoseTextHasTheNameIsNotInTheSpan(t *testing.T) {
	c := collect(t)
	for _, err := range []error{
		&relock.OpError{Op: "lock", Name: "secret", Err: errors.New("no key secret")},
		errors.New("secret"),
	} {
		c.happens(event.AcquireFinished{
			Context: t.Context(), Name: "secret", Mode: event.ModeExclusive, Start: time.Now(), Outcome: event.OutcomeError, Err: err,
		})
		span, attrs := c.lastSpan(relockotel.SpanName)
		require.Equal(t, sdktrace.Status{Code: codes.Error}, span.Status)
		require.Equal(t, "error", attrs["error.type"])
	}
}

func TestWhatIsNoUTF8IsInNoAttribute(t *testing.T) {
	c := collect(t, relockotel.WithLockAttribute(func(name string) string {
		class, _, _ := strings.Cut(name, ":")
		return class
	}))
	c.happens(event.AcquireFinished{
		Context: t.Context(), Name: "caf\xe9:42", Mode: event.ModeExclusive, Start: time.Now(), Outcome: event.OutcomeError,
		Err: &relock.OpError{Op: "lock", Name: "caf\xe9:42", Err: errors.New("ERR \xff")},
	})
	require.Contains(t, c.values(), "holds{lock=caf\uFFFD,mode=exclusive}")
	span, attrs := c.lastSpan(relockotel.SpanName)
	require.Equal(t, "caf\uFFFD", attrs["relock.lock"])
	require.Equal(t, "ERR \uFFFD", span.Status.Description)
}

// A holder that Redis has told of is what somebody else has written there.
func TestAHolderThatIsNoUTF8IsInNoAttribute(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := collect(t)
		l := w.client(relock.WithHooks(c.Hooks()), relock.WithRedissonLayout()).NewLock("orders")
		w.HSet("orders", "caf\xe9:1", "1")
		w.SetTTL("orders", time.Minute)
		_, err := l.TryLock(t.Context())
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		synctest.Wait()
		_, attrs := c.lastSpan(relockotel.SpanName)
		require.Equal(t, `"caf\xe9:1"`, attrs["relock.owner"], "quoted, as a holder prints itself")
	})
}

// What is made before the global provider is set goes to the first one that is set in a process:
// with -count, too.
var (
	globalOnce  sync.Once
	globalFirst map[string]float64
)

func TestCountersBeginWithZeroAlsoWhereTheGlobalProviderIsSetLater(t *testing.T) {
	globalOnce.Do(func() {
		before := otel.GetMeterProvider()
		t.Cleanup(func() { otel.SetMeterProvider(before) })
		telemetry, err := relockotel.New(relockotel.WithDetails())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, telemetry.Close()) })
		c := &collected{Telemetry: telemetry, t: t, reader: sdkmetric.NewManualReader()}
		otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader)))
		globalFirst = c.values()
	})
	for _, sample := range []string{"holds{mode=exclusive}", "leaks{mode=exclusive}", "losses{mode=exclusive,reason=expired}", "events.dropped"} {
		require.Contains(t, globalFirst, sample)
	}
}

func TestExemplarsLeadToTheSpanOfTheAcquire(t *testing.T) {
	c := collect(t)
	ctx, request := c.traces.Tracer("test").Start(t.Context(), "request")
	defer request.End()
	c.happens(event.AcquireFinished{
		Context: ctx, Name: "a", Mode: event.ModeExclusive, Start: time.Now(), Duration: time.Second, Outcome: event.OutcomeAcquired,
		Depth: 1, TTL: time.Second,
	})
	span, _ := c.lastSpan(relockotel.SpanName)
	for _, m := range c.metrics() {
		if m.Name == "relock.client.acquire.duration" {
			exemplars := m.Data.(metricdata.Histogram[float64]).DataPoints[0].Exemplars
			require.Len(t, exemplars, 1)
			id := span.SpanContext.SpanID()
			require.Equal(t, id[:], exemplars[0].SpanID)
			return
		}
	}
	t.Fatal("no relock.client.acquire.duration")
}

func TestCloseEndsWhatTheMeterProviderAsksFor(t *testing.T) {
	c := collect(t)
	require.Contains(t, c.values(), `holds{mode=exclusive}`)
	require.NoError(t, c.Close())
	require.NotContains(t, c.values(), `holds{mode=exclusive}`)
	require.NoError(t, c.Close(), "again")
}

// badProvider gives a meter that refuses counters.
type badProvider struct{ noop.MeterProvider }

func (badProvider) Meter(string, ...metric.MeterOption) metric.Meter { return badMeter{} }

type badMeter struct{ noop.Meter }

var errBadMeter = errors.New("no counters here")

func (badMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errBadMeter
}

func TestAMeterThatRefusesAnInstrumentIsAnError(t *testing.T) {
	_, err := relockotel.New(relockotel.WithMeterProvider(badProvider{}))
	require.ErrorIs(t, err, errBadMeter)
}

func TestAnOptionThatIsNilIsAnError(t *testing.T) {
	_, err := relockotel.New(nil)
	require.ErrorContains(t, err, "nil")
}

func TestWithoutProvidersTheGlobalOnesAreUsed(t *testing.T) {
	telemetry, err := relockotel.New()
	require.NoError(t, err)
	telemetry.Hooks().AcquireFinished(event.AcquireFinished{Context: t.Context(), Outcome: event.OutcomeAcquired}) // noop
	require.NoError(t, telemetry.Close())
}

// The page and the package documentation list the metrics with kind and unit; neither may miss one,
// or have one too many.
func TestTheDocumentationListsEveryMetric(t *testing.T) {
	c := collect(t, relockotel.WithDetails())
	hooks := c.Hooks()
	var h relock.Holder
	hooks.Queued(event.Queued{Name: "a", Mode: event.ModeExclusive, Holder: h})
	hooks.AcquireFinished(event.AcquireFinished{
		Context: t.Context(), Name: "a", Mode: event.ModeExclusive, Holder: h, Outcome: event.OutcomeAcquired, Depth: 1, Waited: true, Queued: true, Wake: event.WakeGrant, TTL: time.Second,
	})
	hooks.Released(event.Released{Name: "a", Mode: event.ModeExclusive, Holder: h, TTL: time.Second, MaxDepth: 1})
	hooks.Renewed(event.Renewed{Locks: 1})
	var want []string
	for _, m := range c.metrics() {
		var kind string
		var attrs []attribute.Set
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			kind = "counter"
			if !data.IsMonotonic {
				kind = "up-down"
			}
			attrs = setsOf(data.DataPoints)
		case metricdata.Sum[float64]:
			kind, attrs = "counter", setsOf(data.DataPoints)
		case metricdata.Gauge[float64]:
			kind, attrs = "gauge", setsOf(data.DataPoints)
		case metricdata.Histogram[int64]:
			kind, attrs = "histogram", []attribute.Set{data.DataPoints[0].Attributes}
		case metricdata.Histogram[float64]:
			kind, attrs = "histogram", []attribute.Set{data.DataPoints[0].Attributes}
		}
		keys := map[string]bool{}
		for _, set := range attrs {
			for _, kv := range set.ToSlice() {
				keys[strings.TrimPrefix(string(kv.Key), "relock.")] = true
			}
		}
		want = append(want, strings.Join([]string{m.Name, kind, m.Unit, strings.Join(slices.Sorted(maps.Keys(keys)), ",")}, " "))
	}
	slices.Sort(want)
	require.Len(t, want, 22)

	for file, pattern := range map[string]string{
		"doc.go":                   `(?m)^//\t(relock\.[\w.]+) +([\w-]+) (\S+) +(?:((?:\w+, )*\w+): )?`,
		"../../docs/OPERATIONS.md": "(?m)^\\| `\\w+(?:\\{[\\w,]+\\})?` \\| `(relock\\.[\\w.]+)` \\| ([\\w-]+), `(\\S+)` \\| (?:`((?:\\w+, )*\\w+)`)? ?\\|",
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var got []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			got = append(got, strings.Join([]string{m[1], m[2], m[3], strings.ReplaceAll(m[4], ", ", ",")}, " "))
		}
		slices.Sort(got)
		require.Equal(t, want, got, file)
	}
}

func setsOf[N int64 | float64](points []metricdata.DataPoint[N]) []attribute.Set {
	var sets []attribute.Set
	for _, p := range points {
		sets = append(sets, p.Attributes)
	}
	return sets
}

// borrowed is a context that its owner uses again when the call has returned, as gin does.
type borrowed struct {
	context.Context
	returned, misused atomic.Bool
}

func (b *borrowed) Value(key any) any {
	if b.returned.Load() {
		b.misused.Store(true)
	}
	return b.Context.Value(key)
}

func TestContextOfACallIsNotAskedBehindTheCall(t *testing.T) {
	for name, tracers := range map[string]trace.TracerProvider{
		"with traces": sdktrace.NewTracerProvider(), "without traces": tracenoop.NewTracerProvider(),
		"without a sample": sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
	} {
		for _, outer := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in a span: %v", name, outer), func(t *testing.T) {
				returned := make(chan struct{})
				blocked := event.Hooks{AcquireStarted: func(event.AcquireStarted) { <-returned }}
				c := collect(t, relockotel.WithTracerProvider(tracers))
				client, err := relock.Open(mem.New(), relock.WithHooks(event.Join(blocked, c.Hooks())))
				require.NoError(t, err)
				ctx := &borrowed{Context: t.Context()}
				if outer {
					var span trace.Span
					ctx.Context, span = sdktrace.NewTracerProvider().Tracer("").Start(t.Context(), "outer")
					defer span.End()
				}
				require.NoError(t, client.NewLock("a").Do(ctx, func(context.Context) error { return nil }))
				ctx.returned.Store(true)
				close(returned)
				require.NoError(t, client.Close())
				require.False(t, ctx.misused.Load())
				require.NotEmpty(t, c.values())
			})
		}
	}
}
