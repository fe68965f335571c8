package relockotel_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	relockotel "github.com/go-relock/relock/telemetry/otel"
)

// inMemory runs a test in fake time with a client whose locks are in memory.
func inMemory(t *testing.T, test func(c *collected, locks *relock.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := collect(t)
		locks, err := relock.Open(mem.New(), relock.WithHooks(c.Hooks()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = locks.Close() })
		test(c, locks)
	})
}

// lockLater locks in a goroutine of its own. The result is inside of no section if that fails.
func lockLater(ctx context.Context, l *relock.Lock) <-chan context.Context {
	entered := make(chan context.Context, 1)
	go func() {
		section, _ := l.Lock(ctx)
		entered <- section
	}()
	return entered
}

// spanID returns the ID of the span of a context.
func spanID(ctx context.Context) trace.SpanID { return trace.SpanContextFromContext(ctx).SpanID() }

// commandSpans is a hook of go-redis that begins a span for each command, as redisotel does.
type commandSpans struct{ tracer trace.Tracer }

func (h commandSpans) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h commandSpans) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, span := h.tracer.Start(ctx, "redis")
		defer span.End()
		return next(ctx, cmd)
	}
}

func (h commandSpans) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestCommandsAreUnderTheAcquireOrTheSection(t *testing.T) {
	c := collect(t)
	rdb := redistest.Start(t).Client()
	rdb.AddHook(commandSpans{c.traces.Tracer("redis")})
	locks, err := relock.New(rdb, relock.WithHooks(c.Hooks()))
	require.NoError(t, err)
	warm, err := relock.New(rdb)
	require.NoError(t, err)
	require.NoError(t, warm.NewLock("a").Do(t.Context(), func(context.Context) error { return nil })) // connects
	require.NoError(t, warm.Close())
	ctx, request := c.traces.Tracer("test").Start(t.Context(), "request")
	l := locks.NewLock("a")
	require.NoError(t, l.Do(ctx, func(ctx context.Context) error {
		require.NoError(t, rdb.Ping(ctx).Err())
		return l.Do(ctx, func(context.Context) error { return nil })
	}))
	require.NoError(t, locks.Close())

	acquires, sections := c.ended(relockotel.SpanName), c.ended(relockotel.SectionSpanName)
	require.Len(t, acquires, 2)
	require.Len(t, sections, 1)
	acquire, section := acquires[0], sections[0]
	for _, span := range []tracetest.SpanStub{acquire, section} {
		require.Equal(t, request.SpanContext().SpanID(), span.Parent.SpanID())
	}
	require.Equal(t, section.SpanContext.SpanID(), acquires[1].Parent.SpanID())
	var parents []trace.SpanID
	for _, span := range c.ended("redis") {
		if span.Parent.TraceID() == request.SpanContext().TraceID() {
			parents = append(parents, span.Parent.SpanID())
		}
	}
	under := section.SpanContext.SpanID()
	require.Equal(t, []trace.SpanID{ // the lock, the work, the entry, both Unlocks
		acquire.SpanContext.SpanID(), under, acquires[1].SpanContext.SpanID(), under,
	}, slices.Compact(parents))
	require.False(t, section.EndTime.Before(c.ended("redis")[len(c.ended("redis"))-1].EndTime), "the section ends with its Unlock")
}

func TestASectionIsASpanFromTheLockToTheEndOfTheHold(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		l := locks.NewLock("a", relock.WithTTL(10*time.Second))
		first := enter(t, t.Context(), l)
		holder, _ := relock.HolderFrom(first)
		waiting := lockLater(t.Context(), l)
		pass(time.Minute)
		inner := enter(t, first, l)
		require.Equal(t, spanID(first), spanID(inner), "a nested entry is in the section")
		require.NoError(t, l.Unlock(inner))
		require.Empty(t, c.ended(relockotel.SectionSpanName))
		begun := time.Now()
		require.NoError(t, l.Unlock(first))
		second := <-waiting
		synctest.Wait()

		span, attrs := c.lastSpan(relockotel.SectionSpanName)
		require.Equal(t, spanID(first), span.SpanContext.SpanID())
		require.Equal(t, time.Minute, span.EndTime.Sub(span.StartTime))
		require.Equal(t, codes.Unset, span.Status.Code)
		require.Equal(t, map[string]any{
			"relock.mode": "exclusive", "relock.holder": holder.String(), "relock.end": "released", "relock.depth": int64(2),
		}, attrs)

		pass(time.Second)
		require.NoError(t, l.Unlock(second))
		synctest.Wait()
		span, _ = c.lastSpan(relockotel.SectionSpanName)
		require.Equal(t, begun, span.StartTime, "the wait is no part of the section")
		require.Equal(t, time.Second, span.EndTime.Sub(span.StartTime))
	})
}

func TestTheSpanOfASectionSaysHowTheHoldEnded(t *testing.T) {
	for name, test := range map[string]struct {
		end    func(locks *relock.Client, l *relock.Lock) error
		err    error // of the Unlock
		attrs  map[string]any
		status string
	}{
		"lost": {
			func(_ *relock.Client, l *relock.Lock) error { return l.ForceUnlock(context.Background()) }, relock.ErrLockLost,
			map[string]any{"relock.end": "lost", "relock.reason": "taken", "error.type": "lost"}, "lock lost: taken",
		},
		"abandoned": {
			func(*relock.Client, *relock.Lock) error { pass(time.Minute); return nil }, relock.ErrLockLost,
			map[string]any{"relock.end": "lost", "relock.reason": "abandoned", "error.type": "lost"}, "lock lost: abandoned",
		},
		"closed": {
			func(locks *relock.Client, _ *relock.Lock) error { return locks.Close() }, nil,
			map[string]any{"relock.end": "closed"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(c *collected, locks *relock.Client) {
				t := c.t
				ctx, cancel := context.WithCancel(t.Context())
				l := locks.NewLock("a")
				section := enter(t, ctx, l)
				cancel()
				require.NoError(t, test.end(locks, l))
				require.ErrorIs(t, l.Unlock(section), test.err)
				pass(time.Minute)
				require.Len(t, c.ended(relockotel.SectionSpanName), 1)
				span, attrs := c.lastSpan(relockotel.SectionSpanName)
				for key, want := range test.attrs {
					require.Equal(t, want, attrs[key], key)
				}
				require.Equal(t, test.status, span.Status.Description)
				require.Equal(t, test.status != "", span.Status.Code == codes.Error)
			})
		})
	}
}

func TestTheSpanOfASectionSaysThatItsReleaseWasNotConfirmed(t *testing.T) {
	bubble(t, func(w *world) {
		c := collect(w.t)
		l := w.client(relock.WithHooks(c.Hooks())).NewLock("secret")
		section := enter(w.t, w.t.Context(), l)
		w.SetError("ERR not now, secret")
		require.Error(w.t, l.Unlock(section))
		w.SetError("")
		synctest.Wait()
		span, attrs := c.lastSpan(relockotel.SectionSpanName)
		require.Equal(w.t, sdktrace.Status{Code: codes.Error, Description: "the store did not confirm the release"}, span.Status)
		require.Equal(w.t, "unconfirmed", attrs["error.type"])
		require.Equal(w.t, "released", attrs["relock.end"])
	})
}

func TestTheSpanOfALeakedSectionEndsWithItsHold(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		func() { _ = enter(t, t.Context(), locks.NewLock("a")) }()
		for len(c.ended(relockotel.SectionSpanName)) == 0 {
			runtime.GC()
			pass(time.Second)
		}
		_, attrs := c.lastSpan(relockotel.SectionSpanName)
		require.Equal(t, "leaked", attrs["relock.reason"])
	})
}

// givenUp is a store that gives the lock when the caller has gone.
type givenUp struct {
	*mem.Store
	gone func()
}

func (s givenUp) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	lease, err := s.Store.Try(ctx, a)
	s.gone()
	return lease, err
}

func TestALockThatIsGivenBackHasNoSection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := collect(t)
		ctx, cancel := context.WithCancel(t.Context())
		locks, err := relock.Open(givenUp{mem.New(), cancel}, relock.WithHooks(c.Hooks()))
		require.NoError(t, err)
		_, err = locks.NewLock("a").TryLock(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, locks.Close())
		span, attrs := c.lastSpan(relockotel.SpanName)
		require.Equal(t, "canceled", attrs["relock.outcome"])
		require.False(t, span.EndTime.IsZero())
		require.Empty(t, c.ended(relockotel.SectionSpanName))
	})
}

func TestTwoHoldsOfOneHolderAreTwoSections(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		outer := enter(t, t.Context(), locks.NewLock("outer"))
		s := locks.NewSemaphore("permits", 2)
		one, two := enter(t, outer, s), enter(t, outer, s)
		for _, section := range []context.Context{one, two} {
			h, _ := relock.HolderFrom(section)
			want, _ := relock.HolderFrom(outer)
			require.Equal(t, want, h)
		}
		require.NoError(t, s.Unlock(one))
		pass(time.Second)
		require.NoError(t, s.Unlock(two))
		synctest.Wait()
		ended := c.ended(relockotel.SectionSpanName)
		require.Len(t, ended, 2)
		require.Equal(t, spanID(one), ended[0].SpanContext.SpanID())
		require.Equal(t, spanID(two), ended[1].SpanContext.SpanID())
		require.Equal(t, time.Second, ended[1].EndTime.Sub(ended[1].StartTime))
	})
}

func TestEachHoldOfAReadWriteLockIsASection(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		l := locks.NewRWLock("a")
		reading, err := l.RLock(t.Context())
		require.NoError(t, err)
		writing, err := l.Lock(reading) // an upgrade
		require.NoError(t, err)
		require.NotEqual(t, spanID(reading), spanID(writing))
		require.NoError(t, l.Unlock(writing))
		require.NoError(t, l.Unlock(reading))
		synctest.Wait()
		ended := c.ended(relockotel.SectionSpanName)
		require.Len(t, ended, 2)
		require.Equal(t, spanID(reading), ended[0].Parent.SpanID())
		require.Empty(t, c.ended(relockotel.SpanName)[1].Links)
	})
}

func TestLocksThatAreTakenTogetherAreSectionsInEachOther(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		all := locks.NewLocks([]string{"a", "b"})
		section, err := all.Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, all.Unlock(section))
		synctest.Wait()
		require.Len(t, c.ended(relockotel.SpanName), 2)
		ended := c.ended(relockotel.SectionSpanName)
		require.Len(t, ended, 2)
		parents := map[trace.SpanID]bool{ended[0].Parent.SpanID(): true, ended[1].Parent.SpanID(): true}
		require.True(t, parents[ended[0].SpanContext.SpanID()] || parents[ended[1].SpanContext.SpanID()])
	})
}

// linkOf returns the span to which the last acquire has its only link; zero: it has none.
func linkOf(t *testing.T, c *collected) trace.SpanID {
	t.Helper()
	synctest.Wait()
	span, _ := c.lastSpan(relockotel.SpanName)
	if len(span.Links) == 0 {
		return trace.SpanID{}
	}
	require.Len(t, span.Links, 1)
	return span.Links[0].SpanContext.SpanID()
}

func TestAWaiterIsLinkedToTheSectionBeforeIt(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		l := locks.NewLock("a")
		section := enter(t, t.Context(), l)
		require.Zero(t, linkOf(t, c), "nobody was before")
		var waiting []<-chan context.Context
		for range 2 {
			waiting = append(waiting, lockLater(t.Context(), l))
			pass(time.Second)
		}
		for _, next := range waiting {
			before := spanID(section)
			require.NoError(t, l.Unlock(section))
			section = <-next
			require.Equal(t, before, linkOf(t, c))
		}
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.Zero(t, linkOf(t, c), "the lock was free")
	})
}

func TestARefusedCallIsLinkedToTheSectionThatHasTheLock(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		l := locks.NewLock("a")
		section := enter(t, t.Context(), l)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, spanID(section), linkOf(t, c))
		_, err = l.TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, spanID(section), linkOf(t, c))
		require.NoError(t, l.Unlock(section))
	})
}

func TestAWaitForAnotherProcessHasNoLinkButItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, c := mem.New(), collect(t)
		locks, err := relock.Open(shared, relock.WithHooks(c.Hooks()))
		require.NoError(t, err)
		defer locks.Close()
		other, err := relock.Open(shared)
		require.NoError(t, err)
		defer other.Close()
		require.NoError(t, locks.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		theirs := enter(t, t.Context(), other.NewLock("a"))
		pass(time.Second)
		_, err = locks.NewLock("a").TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Zero(t, linkOf(t, c))
		holder, _ := relock.HolderFrom(theirs)
		_, attrs := c.lastSpan(relockotel.SpanName)
		require.Equal(t, holder.String(), attrs["relock.owner"])
	})
}

func TestDroppedEventsChangeNothingForLaterSections(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		l := locks.NewLock("a")
		section := enter(t, t.Context(), l)
		synctest.Wait()
		c.Hooks().Dropped(event.Dropped{Events: 1})
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		synctest.Wait()
		require.Len(t, c.ended(relockotel.SectionSpanName), 2)
	})
}

func TestTwoTelemetriesHaveTheirOwnSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := collect(t), collect(t)
		locks, err := relock.Open(mem.New(), relock.WithHooks(event.Join(one.Hooks(), two.Hooks())))
		require.NoError(t, err)
		require.NoError(t, locks.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, locks.Close())
		for _, c := range []*collected{one, two} {
			require.Len(t, c.ended(relockotel.SpanName), 1)
			require.Len(t, c.ended(relockotel.SectionSpanName), 1)
		}
		outer, _ := one.lastSpan(relockotel.SectionSpanName)
		inner, _ := two.lastSpan(relockotel.SectionSpanName)
		require.Equal(t, outer.SpanContext.SpanID(), inner.Parent.SpanID())
	})
}

func TestWithoutATracerNoSpanIsMade(t *testing.T) {
	telemetry, err := relockotel.New(relockotel.WithTracerProvider(tracenoop.NewTracerProvider()))
	require.NoError(t, err)
	ctx, finished := telemetry.Hooks().Trace(event.AcquireStarted{Context: t.Context(), Name: "a", Start: time.Now()})
	require.False(t, trace.SpanContextFromContext(ctx).IsValid())
	require.Nil(t, finished)
}

func TestASpanOfACallThatEndsAtOnce(t *testing.T) {
	inMemory(t, func(c *collected, locks *relock.Client) {
		t := c.t
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the user is gone"))
		_, err := locks.NewLock("a").Lock(ctx)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		_, attrs := c.lastSpan(relockotel.SpanName)
		require.Equal(t, "canceled", attrs["relock.outcome"])
	})
}
