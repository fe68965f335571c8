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
				ctx, stop := lifetime.Until(parent, deadline)
				defer stop()
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
	ctx, stop := lifetime.Until(t.Context(), time.Now())
	defer stop()
	require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
	<-ctx.Done()
}

func TestUntilThatIsStoppedLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := lifetime.Until(t.Context(), time.Now().Add(time.Hour))
		woken := make(chan struct{})
		go func() { <-ctx.Done(); close(woken) }()
		synctest.Wait()
		stop()
		stop()
		<-woken
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		unused, stop := lifetime.Until(t.Context(), time.Now().Add(time.Hour))
		stop()
		require.ErrorIs(t, unused.Err(), context.Canceled, "also where nobody has waited")
		<-unused.Done()
	})
}

func TestWithinSaysWhetherAContextMayEndSoon(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	defer end()
	minute, stop := lifetime.Until(t.Context(), time.Now().Add(time.Minute))
	defer stop()
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
