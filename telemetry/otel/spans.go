package relockotel

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/measures"
)

// The names of spans.
const (
	SpanName        = "relock.acquire" // of a call, until it returns
	SectionSpanName = "relock.section" // of a hold, from the lock to its end
)

const errorTypeKey = attribute.Key("error.type")

// call is one call, and the section that it may begin.
type call struct {
	lock    *lockCalls
	label   string
	acquire trace.Span
	section section // guarded by the mutex of calls
}

// section is the span of a hold.
type section struct {
	span   trace.Span // nil: not begun
	holder relock.Holder
	begun  time.Time
	ended  time.Time // zero: open
}

// trace begins the span of a call. The context that trace returns answers for the span by itself,
// so that acquireFinished asks nothing of the context of the caller, which may be in use again.
func (t *Telemetry) trace(e event.AcquireStarted) (context.Context, event.TraceFinished) {
	label := t.of(e.Name, e.Mode)
	ctx, span := t.tracer.Start(e.Context, SpanName,
		trace.WithTimestamp(e.Start), trace.WithAttributes(t.attributes(label)...))
	if !span.SpanContext().IsValid() {
		return trace.ContextWithSpan(e.Context, span), nil // nobody wants traces
	}
	c := &call{lock: t.calls.started(e.Name), label: label, acquire: span}
	return ctx, func(section context.Context, e event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
		return t.traced(section, c, e)
	}
}

// traced ends the span of a call, and begins the span of a section.
func (t *Telemetry) traced(ctx context.Context, c *call, e event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
	span, now := c.acquire, e.Start.Add(e.Duration)
	span.SetAttributes(results(e)...)
	if o := e.Outcome; o == event.OutcomeLost || o == event.OutcomeDeadlock || o == event.OutcomeError {
		span.SetStatus(codes.Error, valid(describe(e)))
	}
	if before := t.calls.before(c.lock, e); before.IsValid() {
		span.AddLink(trace.Link{SpanContext: before})
	}
	span.End(trace.WithTimestamp(now))
	if e.Depth != 1 {
		t.calls.left(c.lock, e.Name)
		return ctx, nil
	}
	ctx, span = t.tracer.Start(ctx, SectionSpanName, trace.WithTimestamp(now),
		trace.WithAttributes(append(t.attributes(c.label), HolderKey.String(valid(e.Holder.String())))...))
	t.calls.entered(c, section{span: span, holder: e.Holder, begun: now})
	return ctx, func(end event.TraceEnded) {
		t.calls.ended(c, e.Name, end.Held)
		c.section.end(end)
	}
}

// results are the attributes of a call that has returned.
func results(e event.AcquireFinished) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		OutcomeKey.String(string(e.Outcome)), ReentrantKey.Bool(e.Reentrant), WaitedKey.Bool(e.Waited),
		HolderKey.String(valid(e.Holder.String())),
	}
	if e.Depth > 0 {
		attrs = append(attrs, DepthKey.Int(e.Depth))
	}
	if e.Wake != event.WakeNone {
		attrs = append(attrs, WakeKey.String(string(e.Wake)))
	}
	if e.Owner != "" {
		attrs = append(attrs, OwnerKey.String(valid(e.Owner.String())))
	}
	if e.Outcome != event.OutcomeAcquired {
		attrs = append(attrs, errorTypeKey.String(errorType(e)))
	}
	return attrs
}

// end ends the span of a section.
func (s *section) end(end event.TraceEnded) {
	span, cause := s.span, measures.EndReleased
	switch {
	case end.Reason != "":
		cause = measures.EndLost
	case end.Closed:
		cause = measures.EndClosed
	}
	span.SetAttributes(EndKey.String(cause), DepthKey.Int(end.MaxDepth))
	switch {
	case end.Reason != "":
		span.SetAttributes(ReasonKey.String(string(end.Reason)), errorTypeKey.String(string(event.OutcomeLost)))
		span.SetStatus(codes.Error, "lock lost: "+string(end.Reason))
	case end.Err != nil:
		span.SetAttributes(errorTypeKey.String("unconfirmed"))
		span.SetStatus(codes.Error, "the store did not confirm the release")
	}
	span.End(trace.WithTimestamp(s.begun.Add(end.Held)))
}

// errorType returns the outcome, or the code of an error reply of Redis, such as WRONGTYPE.
func errorType(e event.AcquireFinished) string {
	var reply interface {
		error
		RedisError()
	}
	if e.Outcome == event.OutcomeError && errors.As(e.Err, &reply) {
		code, _, _ := strings.Cut(reply.Error(), " ")
		if code != "" && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
			return code
		}
	}
	return string(e.Outcome)
}

// describe says what went wrong. The text leaves out the name of the lock.
func describe(e event.AcquireFinished) string {
	var lost *relock.LostError
	if e.Outcome == event.OutcomeLost && errors.As(e.Err, &lost) {
		return "lock lost: " + string(lost.Reason)
	}
	if e.Outcome == event.OutcomeDeadlock { // the error of a circle has the names of its locks
		return relock.ErrDeadlock.Error()
	}
	var op *relock.OpError
	if !errors.As(e.Err, &op) || op.Err == nil || strings.Contains(op.Err.Error(), e.Name) {
		return ""
	}
	return op.Err.Error()
}
