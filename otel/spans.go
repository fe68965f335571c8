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

	// Guarded by the mutex of calls.
	section section
	early   *ending // the end of the section was reported before its begin
}

// section is the span of a hold.
type section struct {
	span   trace.Span // nil: not begun
	holder relock.Holder
	begun  time.Time
	ended  time.Time // zero: open
}

// ending is the end of a hold.
type ending struct {
	cause  string // a value of EndKey
	reason relock.LossReason
	held   time.Duration
	depth  int
	err    error // of the Unlock
}

// callKey is the context key of the *call of one Telemetry.
type callKey struct{ t *Telemetry }

// trace begins the span of a call.
func (t *Telemetry) trace(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
	label := t.of(e.Name, e.Mode)
	ctx, span := t.tracer.Start(e.Context, SpanName,
		trace.WithTimestamp(e.Start), trace.WithAttributes(t.attributes(label)...))
	if !span.SpanContext().IsValid() {
		return nil, nil // nobody wants traces
	}
	c := &call{lock: t.calls.started(e.Name), label: label, acquire: span}
	finished := func(section context.Context, e relock.AcquireFinished) context.Context {
		return t.traced(section, c, e)
	}
	return context.WithValue(ctx, callKey{t}, c), finished
}

// traced ends the span of a call, and begins the span of a section.
func (t *Telemetry) traced(ctx context.Context, c *call, e relock.AcquireFinished) context.Context {
	span, now := c.acquire, e.Start.Add(e.Duration)
	span.SetAttributes(results(e)...)
	if o := e.Outcome; o == relock.OutcomeLost || o == relock.OutcomeDeadlock || o == relock.OutcomeError {
		span.SetStatus(codes.Error, valid(describe(e)))
	}
	if before := t.calls.before(c.lock, e); before.IsValid() {
		span.AddLink(trace.Link{SpanContext: before})
	}
	span.End(trace.WithTimestamp(now))
	if e.Depth != 1 {
		t.calls.left(c.lock, e.Name)
		return ctx
	}
	ctx, span = t.tracer.Start(ctx, SectionSpanName, trace.WithTimestamp(now),
		trace.WithAttributes(append(t.attributes(c.label), HolderKey.String(valid(e.Holder.String())))...))
	if end := t.calls.entered(c, e.Name, section{span: span, holder: e.Holder, begun: now}); end != nil {
		c.section.end(end)
	}
	return ctx
}

// results are the attributes of a call that has returned.
func results(e relock.AcquireFinished) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		OutcomeKey.String(string(e.Outcome)), ReentrantKey.Bool(e.Reentrant), WaitedKey.Bool(e.Waited),
		HolderKey.String(valid(e.Holder.String())),
	}
	if e.Depth > 0 {
		attrs = append(attrs, DepthKey.Int(e.Depth))
	}
	if e.Wake != relock.WakeNone {
		attrs = append(attrs, WakeKey.String(string(e.Wake)))
	}
	if e.Owner != (relock.Holder{}) {
		attrs = append(attrs, OwnerKey.String(valid(e.Owner.String())))
	}
	if e.Outcome != relock.OutcomeAcquired {
		attrs = append(attrs, errorTypeKey.String(errorType(e)))
	}
	return attrs
}

// endSection ends the span of a hold whose call had the context ctx, and returns a context with the
// span, for exemplars.
func (t *Telemetry) endSection(ctx context.Context, name string, end ending) context.Context {
	bg := context.Background()
	if ctx == nil {
		return bg
	}
	c, _ := ctx.Value(callKey{t}).(*call)
	if c == nil || !t.calls.ended(c, name, &end) {
		return bg
	}
	c.section.end(&end)
	return trace.ContextWithSpan(bg, c.section.span)
}

// end ends the span of a section.
func (s *section) end(end *ending) {
	span := s.span
	span.SetAttributes(EndKey.String(end.cause), DepthKey.Int(end.depth))
	switch {
	case end.reason != "":
		span.SetAttributes(ReasonKey.String(string(end.reason)), errorTypeKey.String(string(relock.OutcomeLost)))
		span.SetStatus(codes.Error, "lock lost: "+string(end.reason))
	case end.err != nil:
		span.SetAttributes(errorTypeKey.String("unconfirmed"))
		span.SetStatus(codes.Error, "the store did not confirm the release")
	}
	span.End(trace.WithTimestamp(s.begun.Add(end.held)))
}

// errorType returns the outcome, or the code of an error reply of Redis, such as WRONGTYPE.
func errorType(e relock.AcquireFinished) string {
	var reply interface {
		error
		RedisError()
	}
	if e.Outcome == relock.OutcomeError && errors.As(e.Err, &reply) {
		code, _, _ := strings.Cut(reply.Error(), " ")
		if code != "" && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
			return code
		}
	}
	return string(e.Outcome)
}

// describe says what went wrong. The text leaves out the name of the lock.
func describe(e relock.AcquireFinished) string {
	var lost *relock.LostError
	if e.Outcome == relock.OutcomeLost && errors.As(e.Err, &lost) {
		return "lock lost: " + string(lost.Reason)
	}
	if e.Outcome == relock.OutcomeDeadlock { // the error of a circle has the names of its locks
		return relock.ErrDeadlock.Error()
	}
	var op *relock.OpError
	if !errors.As(e.Err, &op) || op.Err == nil || strings.Contains(op.Err.Error(), e.Name) {
		return ""
	}
	return op.Err.Error()
}
