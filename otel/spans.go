package relockotel

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-relock/relock"
)

// SpanName is the name of the span of an acquire.
const SpanName = "relock.acquire"

const errorTypeKey = attribute.Key("error.type")

// span makes the span of an acquire that has returned, and returns a context with the span.
func (t *Telemetry) span(e relock.AcquireFinished, label string) context.Context {
	attrs := append(t.attributes(label),
		OutcomeKey.String(string(e.Outcome)), ReentrantKey.Bool(e.Reentrant), WaitedKey.Bool(e.Waited),
		HolderKey.String(valid(e.Holder.String())))
	if e.Depth > 0 {
		attrs = append(attrs, DepthKey.Int(e.Depth))
	}
	if e.Wake != relock.WakeNone {
		attrs = append(attrs, WakeKey.String(string(e.Wake)))
	}
	var locked *relock.LockedError
	if e.Outcome == relock.OutcomeLocked && errors.As(e.Err, &locked) && locked.Holder != (relock.Holder{}) {
		attrs = append(attrs, OwnerKey.String(valid(locked.Holder.String())))
	}
	if e.Outcome != relock.OutcomeAcquired {
		attrs = append(attrs, errorTypeKey.String(errorType(e)))
	}
	// A caller whose context is done wants its span all the more.
	ctx, span := t.tracer.Start(context.WithoutCancel(e.Context), SpanName,
		trace.WithTimestamp(e.Start), trace.WithAttributes(attrs...))
	if o := e.Outcome; o == relock.OutcomeLost || o == relock.OutcomeDeadlock || o == relock.OutcomeError {
		span.SetStatus(codes.Error, valid(describe(e)))
	}
	span.End(trace.WithTimestamp(e.Start.Add(e.Duration)))
	return ctx
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
