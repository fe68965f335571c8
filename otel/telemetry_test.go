package relockotel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"reflect"
	"regexp"
	"runtime"
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
	"github.com/go-relock/relock/internal/redistest"
	relockotel "github.com/go-relock/relock/otel"
	"github.com/go-relock/relock/store/mem"
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

// values is what was collected, as name{attribute=value,...}; of a histogram the count, and the sum
// as name.sum{...}.
func (c *collected) values() map[string]float64 {
	c.t.Helper()
	all := make(map[string]float64)
	for _, m := range c.metrics() {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				all[m.Name+labels(p.Attributes)] = float64(p.Value)
			}
		case metricdata.Sum[float64]:
			for _, p := range data.DataPoints {
				all[m.Name+labels(p.Attributes)] = p.Value
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				all[m.Name+labels(p.Attributes)] = p.Value
			}
		case metricdata.Histogram[int64]:
			for _, p := range data.DataPoints {
				all[m.Name+labels(p.Attributes)] = float64(p.Count)
				all[m.Name+".sum"+labels(p.Attributes)] = float64(p.Sum)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				all[m.Name+labels(p.Attributes)] = float64(p.Count)
				all[m.Name+".sum"+labels(p.Attributes)] = p.Sum
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

// changed is what of the values is not 0.
func (c *collected) changed() map[string]float64 {
	c.t.Helper()
	all := c.values()
	maps.DeleteFunc(all, func(_ string, v float64) bool { return v == 0 })
	return all
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
	time.Sleep(d) //nolint:forbidigo // fake time
	synctest.Wait()
}

// is compares two numbers that are whole, or near enough.
func is(t *testing.T, want, got float64, msg ...any) {
	t.Helper()
	require.InDelta(t, want, got, 1e-9, msg...)
}

func enter(t *testing.T, ctx context.Context, l *relock.Lock) context.Context { //nolint:revive // t comes first in tests
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	return section
}

// happens reports a call that a test makes up.
func (c *collected) happens(e relock.AcquireFinished) {
	hooks := c.Hooks()
	start := relock.AcquireStarted{Context: e.Context, Name: e.Name, Mode: e.Mode, Start: e.Start}
	hooks.AcquireStarted(start)
	ctx, finished := hooks.Trace(start)
	e.Context = ctx
	finished(start.Context, e)
	hooks.AcquireFinished(e)
}

// newHolder makes a holder for events that a test makes up.
func newHolder(t *testing.T) relock.Holder {
	t.Helper()
	c, err := relock.Open(mem.New())
	require.NoError(t, err)
	defer c.Close()
	section, err := c.NewLock("a").Lock(t.Context())
	require.NoError(t, err)
	holder, _ := relock.HolderFrom(section)
	return holder
}

func TestTheStoryOfALockIsCounted(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := collect(t)
		locks := w.client(relock.WithHooks(c.Hooks()), relock.WithTTL(10*time.Second))
		l := locks.NewLock("a")

		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = l.TryLockFor(t.Context(), 2*time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		synctest.Wait() // it has left the queue
		next := make(chan context.Context, 1)
		go func() {
			section, err := l.Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			next <- section
		}()
		pass(3 * time.Second)
		before := c.changed()
		for _, sample := range []string{`relock.client.renewals{result=ok}`, `relock.client.renewal.duration`} {
			require.GreaterOrEqual(t, before[sample], 1.)
			delete(before, sample)
		}
		require.Equal(t, map[string]float64{
			`relock.client.acquires{mode=exclusive,outcome=acquired,reentrant=false,waited=false}`: 1,
			`relock.client.acquires{mode=exclusive,outcome=acquired,reentrant=true,waited=false}`:  1,
			`relock.client.acquires{mode=exclusive,outcome=locked,reentrant=false,waited=false}`:   1,
			`relock.client.acquires{mode=exclusive,outcome=locked,reentrant=false,waited=true}`:    1,
			`relock.client.acquire.duration{mode=exclusive,outcome=acquired}`:                      1,
			`relock.client.acquire.duration{mode=exclusive,outcome=locked}`:                        2,
			`relock.client.acquire.duration.sum{mode=exclusive,outcome=locked}`:                    2,
			`relock.client.acquire.ttl_ratio{mode=exclusive}`:                                      2,
			`relock.client.acquire.ttl_ratio.sum{mode=exclusive}`:                                  .2,
			`relock.client.queue.position{mode=exclusive}`:                                         2,
			`relock.client.waiters{mode=exclusive}`:                                                1,
			`relock.client.holds{mode=exclusive}`:                                                  1,
			`relock.client.hold.max_age{mode=exclusive}`:                                           5,
			`relock.client.hold.max_age_ttl{mode=exclusive}`:                                       .5,
		}, before)

		pass(20 * time.Second)
		require.NoError(t, l.Unlock(inner))
		require.NoError(t, l.Unlock(outer))
		last := <-next
		synctest.Wait()
		got := c.changed()
		is(t, 1, got[`relock.client.acquires{mode=exclusive,outcome=acquired,reentrant=false,waited=true}`])
		is(t, 23, got[`relock.client.acquire.duration.sum{mode=exclusive,outcome=acquired}`])
		is(t, 1, got[`relock.client.wakes{mode=exclusive,wake=grant}`])
		is(t, 1, got[`relock.client.hold.duration{end=released,mode=exclusive}`])
		is(t, 25, got[`relock.client.hold.duration.sum{end=released,mode=exclusive}`])
		is(t, 2.5, got[`relock.client.hold.ttl_ratio.sum{mode=exclusive}`])
		is(t, 1, got[`relock.client.hold.depth{mode=exclusive}`])
		is(t, 2, got[`relock.client.hold.depth.sum{mode=exclusive}`])
		is(t, 1, got[`relock.client.holds{mode=exclusive}`])
		require.NotContains(t, got, `relock.client.waiters{mode=exclusive}`)

		w.FlushAll()
		<-last.Done()
		require.ErrorIs(t, l.Unlock(last), relock.ErrLockLost)
		synctest.Wait()
		got = c.changed()
		is(t, 1, got[`relock.client.losses{mode=exclusive,reason=taken}`])
		is(t, 1, got[`relock.client.renewals{result=lost}`])
		is(t, 1, got[`relock.client.hold.duration{end=lost,mode=exclusive}`])
		is(t, 2, got[`relock.client.hold.depth{mode=exclusive}`])
		require.NotContains(t, got, `relock.client.holds{mode=exclusive}`)

		open := enter(t, t.Context(), l)
		pass(time.Second)
		require.NoError(t, locks.Close())
		got = c.changed()
		is(t, 1, got[`relock.client.hold.duration{end=closed,mode=exclusive}`])
		require.NotContains(t, got, `relock.client.holds{mode=exclusive}`, "nobody tells of its end any more")
		require.NoError(t, l.Unlock(open))
	})
}

func TestTroubleWithRedisIsCounted(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := collect(t)
		l := w.client(relock.WithHooks(c.Hooks()), relock.WithTTL(10*time.Second)).NewLock("a")
		section := enter(t, t.Context(), l)
		w.SetError("LOADING Redis is loading the dataset in memory")
		<-section.Done()
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost) // until here it is in use, and so no leak
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		got := c.changed()
		is(t, 1, got[`relock.client.losses{mode=exclusive,reason=expired}`])
		require.Greater(t, got[`relock.client.renewals{result=failed}`], 2.)
		require.NotContains(t, got, `relock.client.renewals{result=ok}`)
		require.NotContains(t, got, `relock.client.holds{mode=exclusive}`)
		require.Greater(t, got[`relock.client.retries{script=acquire}`], 2.)
		is(t, 1, got[`relock.client.acquires{mode=exclusive,outcome=canceled,reentrant=false,waited=false}`])

		w.SetError("")
		section = enter(t, t.Context(), l)
		w.SetError("NOAUTH Authentication required.")
		require.ErrorContains(t, l.Unlock(section), "NOAUTH")
		synctest.Wait()
		w.SetError("")
		got = c.changed()
		is(t, 1, got[`relock.client.releases.unconfirmed{mode=exclusive}`])
		require.NotContains(t, got, `relock.client.holds{mode=exclusive}`)
	})
}

func TestALeakIsCounted(t *testing.T) {
	server := redistest.Shared(t)
	c := collect(t)
	client, err := relock.New(server.Client(), relock.WithHooks(c.Hooks()), relock.WithTTL(2*time.Second))
	require.NoError(t, err)
	defer client.Close()
	_, err = client.NewLock("leak").Lock(t.Context()) // the section's context is dropped
	require.NoError(t, err)
	redistest.Eventually(t, 20*time.Second, func() bool {
		runtime.GC()
		got := c.changed()
		return got[`relock.client.leaks{mode=exclusive}`] == 1 && got[`relock.client.losses{mode=exclusive,reason=leaked}`] == 1
	}, "the leak and the loss were told")
	require.Zero(t, c.values()[`relock.client.holds{mode=exclusive}`])
}

func TestAPubSubConnectionThatComesBackIsCounted(t *testing.T) {
	server := redistest.Shared(t)
	faults := redistest.NewFaults()
	defer faults.Close()
	c := collect(t)
	client, err := relock.New(server.Client(func(o *redis.Options) { o.Dialer = faults.Dialer(nil) }), relock.WithHooks(c.Hooks()))
	require.NoError(t, err)
	defer client.Close()
	l := client.NewLock("reconnect")
	section := enter(t, t.Context(), l)
	waiting := make(chan error, 1)
	go func() {
		waiting <- l.Do(t.Context(), func(context.Context) error { return nil })
	}()
	redistest.Eventually(t, 10*time.Second, func() bool { return c.values()[`relock.client.waiters{mode=exclusive}`] == 1 }, "one waits")
	faults.CutPubSub()
	redistest.Eventually(t, 10*time.Second, func() bool { return c.values()[`relock.client.reconnects`] == 1 }, "it is back")
	require.Positive(t, c.values()[`relock.client.reconnect.downtime`])
	require.NoError(t, l.Unlock(section))
	require.NoError(t, <-waiting)
	redistest.Eventually(t, 10*time.Second, func() bool {
		values := c.values() // between the two holds there is none, and still a waiter
		return values[`relock.client.holds{mode=exclusive}`] == 0 && values[`relock.client.waiters{mode=exclusive}`] == 0
	}, "both holds have ended, and nobody waits")
}

func TestEachModeIsAnAttribute(t *testing.T) {
	server := redistest.Shared(t)
	c := collect(t)
	require.NotContains(t, c.values(), `relock.client.holds{mode=shared}`, "a program without readers has no series of them")
	client, err := relock.New(server.Client(), relock.WithHooks(c.Hooks()))
	require.NoError(t, err)
	defer client.Close()
	count := func(sample string, want float64) {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func() bool { return c.values()[sample] == want }, "counted: %v %s", want, sample)
	}
	prices, tills := client.NewRWLock("prices:jones"), client.NewSemaphore("tills", 2)
	permit := enter(t, t.Context(), tills)
	count(`relock.client.holds{mode=permit}`, 1)
	_, attrs := c.lastSpan(relockotel.SpanName)
	require.Equal(t, "permit", attrs["relock.mode"])
	one, two := enter(t, t.Context(), prices.RLocker()), enter(t, t.Context(), prices.RLocker())
	count(`relock.client.holds{mode=shared}`, 2)
	count(`relock.client.acquires{mode=shared,outcome=acquired,reentrant=false,waited=false}`, 2)

	wrote, done := make(chan error, 1), make(chan struct{})
	go func() {
		section, err := prices.Lock(one)
		if err == nil {
			<-done
			err = prices.Unlock(section)
		}
		wrote <- err
	}()
	count(`relock.client.waiters{mode=exclusive}`, 1)
	_, err = prices.Lock(two)
	require.ErrorIs(t, err, relock.ErrDeadlock)
	count(`relock.client.acquires{mode=exclusive,outcome=deadlock,reentrant=true,waited=false}`, 1)
	span, attrs := c.lastSpan(relockotel.SpanName)
	require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "the wait would be a deadlock"}, span.Status)
	require.Equal(t, "deadlock", attrs["relock.outcome"])
	require.Equal(t, "deadlock", attrs["error.type"])
	require.Equal(t, "exclusive", attrs["relock.mode"])
	require.NoError(t, prices.Unlock(two))
	count(`relock.client.holds{mode=exclusive}`, 1) // an upgrade is a hold beside the reader's
	count(`relock.client.holds{mode=shared}`, 1)
	close(done)
	require.NoError(t, <-wrote)
	count(`relock.client.holds{mode=exclusive}`, 0)
	count(`relock.client.holds{mode=shared}`, 1)
	require.NoError(t, prices.Unlock(one))
	require.NoError(t, tills.Unlock(permit))
	count(`relock.client.hold.duration{end=released,mode=shared}`, 2)
	count(`relock.client.hold.duration{end=released,mode=exclusive}`, 1)
	count(`relock.client.hold.duration{end=released,mode=permit}`, 1)
	require.NotContains(t, fmt.Sprintf("%+v", c.spans.GetSpans()), "jones")
}

func TestTheSpanOfACircleOfWaitsHasNoNames(t *testing.T) {
	c := collect(t)
	c.happens(relock.AcquireFinished{
		Context: t.Context(), Name: "jones", Mode: relock.ModeShared, Start: time.Now(), Outcome: relock.OutcomeDeadlock,
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
		c.happens(relock.AcquireFinished{
			Context: t.Context(), Name: "secret", Mode: relock.ModeExclusive, Start: time.Now(), Outcome: relock.OutcomeError, Err: err,
		})
		span, attrs := c.lastSpan(relockotel.SpanName)
		require.Equal(t, sdktrace.Status{Code: codes.Error}, span.Status)
		require.Equal(t, "error", attrs["error.type"])
	}
}

func TestTheNameIsNoAttributeUnlessItIsMapped(t *testing.T) {
	for _, test := range []struct {
		name    string
		options []relockotel.Option
		lock    string
	}{
		{name: "by default"},
		{name: "mapped", options: []relockotel.Option{relockotel.WithLockAttribute(func(name string) string {
			class, _, _ := strings.Cut(name, ":")
			return class
		})}, lock: "orders"},
		{name: "mapped by nil", options: []relockotel.Option{relockotel.WithLockAttribute(nil)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				t := w.t
				c := collect(t, test.options...)
				locks := w.client(relock.WithHooks(c.Hooks()))
				l := locks.NewLock("orders:jones")
				section := enter(t, t.Context(), l)
				_, err := l.TryLockFor(t.Context(), time.Second)
				require.Error(t, err)
				w.FlushAll()
				<-section.Done()
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
				require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
				_ = enter(t, t.Context(), l)
				require.NoError(t, locks.Close())
				got := c.values()
				require.Greater(t, len(got), 30)
				ofClients := regexp.MustCompile(`^relock\.client\.(renewal|retries|reconnect|events)`)
				for sample := range got {
					require.NotContains(t, sample, "jones")
					if test.lock != "" && !ofClients.MatchString(sample) {
						require.Contains(t, sample, "lock="+test.lock)
					} else {
						require.NotContains(t, sample, "lock=")
					}
				}
				_, attrs := c.lastSpan(relockotel.SpanName)
				if test.lock != "" {
					require.Equal(t, test.lock, attrs["relock.lock"])
				} else {
					require.NotContains(t, attrs, "relock.lock")
				}
				require.NotContains(t, fmt.Sprintf("%+v", c.spans.GetSpans()), "jones")
			})
		})
	}
}

func TestWhatIsNoUTF8IsInNoAttribute(t *testing.T) {
	c := collect(t, relockotel.WithLockAttribute(func(name string) string {
		class, _, _ := strings.Cut(name, ":")
		return class
	}))
	c.happens(relock.AcquireFinished{
		Context: t.Context(), Name: "caf\xe9:42", Mode: relock.ModeExclusive, Start: time.Now(), Outcome: relock.OutcomeError,
		Err: &relock.OpError{Op: "lock", Name: "caf\xe9:42", Err: errors.New("ERR \xff")},
	})
	require.Contains(t, c.values(), "relock.client.leaks{lock=caf\uFFFD,mode=exclusive}")
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

func TestCountersBeginWithZero(t *testing.T) {
	c := collect(t)
	before := c.values()
	for sample, v := range before {
		require.Zero(t, v, sample)
	}
	for _, sample := range []string{
		`relock.client.leaks{mode=exclusive}`, `relock.client.losses{mode=exclusive,reason=expired}`, `relock.client.holds{mode=exclusive}`, `relock.client.retries{script=acquire}`,
		`relock.client.acquires{mode=exclusive,outcome=locked,reentrant=false,waited=true}`,
	} {
		require.Contains(t, before, sample)
	}

	// With a lock attribute, when the lock is seen first, which is before anything is counted.
	c = collect(t, relockotel.WithLockAttribute(func(string) string { return "x" }))
	require.NotContains(t, c.values(), `relock.client.leaks{lock=x,mode=exclusive}`)
	c.Hooks().AcquireStarted(relock.AcquireStarted{Name: "a", Mode: relock.ModeExclusive})
	require.Contains(t, c.values(), `relock.client.leaks{lock=x,mode=exclusive}`)
	require.Contains(t, c.values(), `relock.client.holds{lock=x,mode=exclusive}`)
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
		telemetry, err := relockotel.New()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, telemetry.Close()) })
		c := &collected{Telemetry: telemetry, t: t, reader: sdkmetric.NewManualReader()}
		otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader)))
		globalFirst = c.values()
	})
	for _, sample := range []string{"relock.client.holds{mode=exclusive}", "relock.client.leaks{mode=exclusive}", "relock.client.losses{mode=exclusive,reason=expired}", "relock.client.events.dropped"} {
		require.Contains(t, globalFirst, sample)
	}
}

func TestEveryHookIsUsed(t *testing.T) {
	v := reflect.ValueOf(collect(t).Hooks())
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() {
			require.False(t, v.Field(i).IsNil(), "%s: a new hook wants a metric", f.Name)
		}
	}
}

func TestExemplarsLeadToTheSpanOfTheAcquire(t *testing.T) {
	c := collect(t)
	ctx, request := c.traces.Tracer("test").Start(t.Context(), "request")
	defer request.End()
	c.happens(relock.AcquireFinished{
		Context: ctx, Name: "a", Mode: relock.ModeExclusive, Start: time.Now(), Duration: time.Second, Outcome: relock.OutcomeAcquired,
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

func TestALeaderIsAHoldWithoutAnAge(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- locks.NewLock("a").Lead(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		}()
		pass(time.Hour)
		is(t, 1, c.values()[`relock.client.holds{mode=exclusive}`])
		require.Zero(t, c.values()[`relock.client.hold.max_age{mode=exclusive}`])
		require.Zero(t, c.values()[`relock.client.hold.max_age_ttl{mode=exclusive}`])
		stop()
		require.NoError(t, <-done)
		synctest.Wait()
		require.Zero(t, c.values()[`relock.client.holds{mode=exclusive}`])
		is(t, 1, c.values()[`relock.client.hold.duration{end=released,mode=exclusive}`])
		require.NotContains(t, c.values(), `relock.client.hold.ttl_ratio{mode=exclusive}`)
		require.NotContains(t, c.values(), `relock.client.acquire.ttl_ratio{mode=exclusive}`)
	})
}

func TestDroppedEventsDoNotLeaveHoldsAndWaitersForEver(t *testing.T) {
	c := collect(t)
	hooks := c.Hooks()
	h := newHolder(t)
	hooks.AcquireFinished(relock.AcquireFinished{
		Context: t.Context(), Name: "a", Mode: relock.ModeExclusive, Holder: h, Start: time.Now(), Outcome: relock.OutcomeAcquired, Depth: 1,
	})
	hooks.Queued(relock.Queued{Name: "a", Mode: relock.ModeExclusive, Holder: newHolder(t)})
	is(t, 1, c.values()[`relock.client.holds{mode=exclusive}`])
	is(t, 1, c.values()[`relock.client.waiters{mode=exclusive}`])
	hooks.Dropped(relock.Dropped{Events: 5})
	is(t, 5, c.values()[`relock.client.events.dropped`])
	require.Zero(t, c.values()[`relock.client.holds{mode=exclusive}`])
	require.Zero(t, c.values()[`relock.client.waiters{mode=exclusive}`])
}

func TestCloseEndsWhatTheMeterProviderAsksFor(t *testing.T) {
	c := collect(t)
	require.Contains(t, c.values(), `relock.client.holds{mode=exclusive}`)
	require.NoError(t, c.Close())
	require.NotContains(t, c.values(), `relock.client.holds{mode=exclusive}`)
	require.NoError(t, c.Close(), "again")
}

func TestCollectingAndEventsAtOnceAreSafe(t *testing.T) {
	c := collect(t)
	hooks := c.Hooks()
	var work sync.WaitGroup
	for range 4 {
		h := newHolder(t)
		work.Go(func() {
			for range 200 {
				hooks.AcquireStarted(relock.AcquireStarted{Name: "a", Mode: relock.ModeExclusive})
				hooks.Queued(relock.Queued{Name: "a", Mode: relock.ModeExclusive, Holder: h})
				hooks.AcquireFinished(relock.AcquireFinished{
					Context: context.Background(), Name: "a", Mode: relock.ModeExclusive, Holder: h, Start: time.Now(), Outcome: relock.OutcomeAcquired,
					Depth: 1, Waited: true, Queued: true,
				})
				hooks.Released(relock.Released{Name: "a", Mode: relock.ModeExclusive, Holder: h, Err: errors.New("x")})
			}
		})
		work.Go(func() {
			for range 20 {
				_ = c.reader.Collect(context.Background(), &metricdata.ResourceMetrics{})
			}
		})
	}
	work.Wait()
	require.Zero(t, c.values()[`relock.client.holds{mode=exclusive}`])
	require.Zero(t, c.values()[`relock.client.waiters{mode=exclusive}`])
	is(t, 800, c.values()[`relock.client.releases.unconfirmed{mode=exclusive}`])
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
	telemetry.Hooks().AcquireFinished(relock.AcquireFinished{Context: t.Context(), Outcome: relock.OutcomeAcquired}) // noop
	require.NoError(t, telemetry.Close())
}

// The page and the package documentation list the metrics with kind and unit; neither may miss one,
// or have one too many.
func TestTheDocumentationListsEveryMetric(t *testing.T) {
	c := collect(t)
	hooks := c.Hooks()
	h := newHolder(t)
	hooks.Queued(relock.Queued{Name: "a", Mode: relock.ModeExclusive, Holder: h})
	hooks.AcquireFinished(relock.AcquireFinished{
		Context: t.Context(), Name: "a", Mode: relock.ModeExclusive, Holder: h, Outcome: relock.OutcomeAcquired, Depth: 1, Waited: true, Queued: true, Wake: relock.WakeGrant, TTL: time.Second,
	})
	hooks.Released(relock.Released{Name: "a", Mode: relock.ModeExclusive, Holder: h, TTL: time.Second, MaxDepth: 1})
	hooks.Renewed(relock.Renewed{Locks: 1})
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
		"../docs/OBSERVABILITY.md": "(?m)^\\| `\\w+(?:\\{[\\w,]+\\})?` \\| `(relock\\.[\\w.]+)` \\| ([\\w-]+), `(\\S+)` \\| (?:`((?:\\w+, )*\\w+)`)? ?\\|",
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
				blocked := relock.Hooks{AcquireStarted: func(relock.AcquireStarted) { <-returned }}
				c := collect(t, relockotel.WithTracerProvider(tracers))
				client, err := relock.Open(mem.New(), relock.WithHooks(relock.JoinHooks(blocked, c.Hooks())))
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
