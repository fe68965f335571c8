package lifetime_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
)

type key struct{}

var errEnd = errors.New("the end of the life")

func TestOfEndsWithTheLifeAndHasTheOtherValues(t *testing.T) {
	life, end := context.WithCancelCause(context.Background())
	ctx := lifetime.Of(life, context.WithValue(context.Background(), key{}, "value"))
	require.Equal(t, "value", ctx.Value(key{}))
	require.NoError(t, ctx.Err())
	require.Equal(t, life.Done(), ctx.Done(), "a command may compare the channels")
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	end(errEnd)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.Equal(t, errEnd, context.Cause(ctx))
	require.Equal(t, errEnd, context.Cause(child))
}

func TestUntilEndsAtItsDeadlineAndNotWithItsParent(t *testing.T) {
	for name, watch := range map[string]func(context.Context){
		"nobody waits": func(context.Context) {},
		"somebody waits": func(ctx context.Context) {
			ctx.Done()
		},
		"a child waits": func(ctx context.Context) {
			child, cancel := context.WithCancel(ctx)
			context.AfterFunc(child, cancel)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
				cancel()
				deadline := time.Now().Add(time.Second)
				ctx := lifetime.Until(parent, deadline)
				defer ctx.Stop()
				watch(ctx)
				require.Equal(t, "value", ctx.Value(key{}))
				got, ok := ctx.Deadline()
				require.True(t, ok)
				require.Equal(t, deadline, got)
				<-time.After(time.Second - time.Nanosecond)
				synctest.Wait()
				require.NoError(t, ctx.Err())
				<-time.After(time.Nanosecond)
				synctest.Wait()
				require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
				require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
				<-ctx.Done()
			})
		})
	}
}

func TestUntilOfATimeThatIsOverHasEnded(t *testing.T) {
	ctx := lifetime.Until(t.Context(), time.Now())
	defer ctx.Stop()
	require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
	<-ctx.Done()
}

func TestUntilThatIsStoppedLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := lifetime.Until(t.Context(), time.Now().Add(time.Hour))
		woken := make(chan struct{})
		go func() { <-ctx.Done(); close(woken) }()
		synctest.Wait()
		ctx.Stop()
		ctx.Stop()
		<-woken
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		unused := lifetime.Until(t.Context(), time.Now().Add(time.Hour))
		unused.Stop()
		require.ErrorIs(t, unused.Err(), context.Canceled, "also where nobody has waited")
		<-unused.Done()
	})
}

func TestWithinSaysWhetherAContextMayEndSoon(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	defer end()
	minute := lifetime.Until(t.Context(), time.Now().Add(time.Minute))
	defer minute.Stop()
	for name, test := range map[string]struct {
		ctx    context.Context
		within time.Duration
		may    bool
	}{
		"a context that never ends":   {context.Background(), time.Hour, false},
		"a context that may end":      {life, time.Nanosecond, true},
		"a long life":                 {lifetime.Of(life, context.Background()), time.Hour, false},
		"until a time that is later":  {minute, time.Second, false},
		"until a time that is sooner": {minute, time.Hour, true},
	} {
		require.Equal(t, test.may, lifetime.Within(test.ctx, test.within), name)
	}
}

func TestMillisRoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Millisecond - 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Minute: 60_000,
	} {
		require.Equal(t, want, lifetime.Millis(d), d)
	}
}

func TestEndingWithEndsWithEither(t *testing.T) {
	watched := map[string]func(context.Context){
		"nobody waits":   func(context.Context) {},
		"somebody waits": func(ctx context.Context) { ctx.Done() },
		"a child waits":  func(ctx context.Context) { _, cancel := context.WithCancel(ctx); defer cancel() },
	}
	for name, watch := range watched {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				callerEnd, errWait := errors.New("the end of the caller"), errors.New("the end of the wait")
				for _, test := range []struct {
					cause error
					end   func(caller, life context.CancelCauseFunc)
				}{
					{callerEnd, func(caller, _ context.CancelCauseFunc) { caller(callerEnd) }},
					{errEnd, func(_, life context.CancelCauseFunc) { life(errEnd) }},
					{errWait, func(_, _ context.CancelCauseFunc) { <-time.After(time.Second) }},
				} {
					caller, endCaller := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
					life, endLife := context.WithCancelCause(t.Context())
					ctx := lifetime.EndingAfter(caller, life, time.Second, errWait)
					watch(ctx)
					require.Equal(t, "value", ctx.Value(key{}))
					require.NoError(t, ctx.Err())
					deadline, is := ctx.Deadline()
					require.True(t, is)
					require.Equal(t, time.Second, time.Until(deadline))
					test.end(endCaller, endLife)
					synctest.Wait()
					require.Error(t, ctx.Err())
					require.Equal(t, test.cause, context.Cause(ctx))
					<-ctx.Done()
					ctx.Stop()
					endCaller(nil)
					endLife(nil)
				}
			})
		})
	}
}

// TestAWaitEndsWithEachEndOfItsContext has contexts in contexts, and one whose ends are too many.
func TestAWaitEndsWithEachEndOfItsContext(t *testing.T) {
	for depth := range 4 {
		for end := range depth + 1 {
			var cancels []context.CancelFunc
			part := func() context.Context {
				ctx, cancel := context.WithCancel(t.Context())
				cancels = append(cancels, cancel)
				return ctx
			}
			ctx := part()
			for range depth {
				e := lifetime.EndingWith(ctx, part())
				defer e.Stop()
				ctx = e
			}
			cancels[end]()
			moment, over := context.WithTimeout(context.Background(), time.Minute) // against a hang
			require.Equal(t, lifetime.AtContext, lifetime.Await(ctx, nil, moment), "depth %d: the end of %d", depth, end)
			over()
			require.Error(t, ctx.Err())
			for _, cancel := range cancels {
				cancel()
			}
		}
	}
}

func TestAWaitForAnAnswerMakesNoEnd(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	defer end()
	ctx := lifetime.EndingWith(t.Context(), life)
	defer ctx.Stop()
	done := make(chan struct{})
	moment, over := context.WithCancel(t.Context())
	over()
	require.Equal(t, lifetime.AtMoment, lifetime.Await(ctx, done, moment))
	close(done)
	require.Equal(t, lifetime.AtDone, lifetime.Await(ctx, done, nil))
	require.True(t, lifetime.IsUnmade(ctx))
}

func TestAnEndIsMadeWhenSomebodyNeedsIt(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	defer end()
	for name, need := range map[string]func(*lifetime.Ending){
		"somebody waits": func(e *lifetime.Ending) { e.Done() },
		"a child waits":  func(e *lifetime.Ending) { _, cancel := context.WithCancel(e); cancel() },
		"it is over":     (*lifetime.Ending).Stop,
	} {
		for _, e := range []*lifetime.Ending{
			lifetime.Until(t.Context(), time.Now().Add(time.Hour)), lifetime.EndingWith(t.Context(), life),
			lifetime.EndingAfter(t.Context(), life, time.Hour, errEnd),
		} {
			require.NoError(t, e.Err())
			require.Nil(t, e.Value(key{}))
			require.True(t, lifetime.IsUnmade(e), name)
			need(e)
			require.False(t, lifetime.IsUnmade(e), name)
			e.Stop()
			require.ErrorIs(t, e.Err(), context.Canceled)
		}
	}
	require.False(t, lifetime.IsUnmade(life))
}
