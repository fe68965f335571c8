package relockotel

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store/mem"
)

func TestALockIsForgottenWithItsLastCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a busy machine does not use up the wait
		telemetry, err := New(WithTracerProvider(sdktrace.NewTracerProvider()))
		require.NoError(t, err)
		locks, err := relock.Open(mem.New(), relock.WithHooks(telemetry.Hooks()))
		require.NoError(t, err)
		known := func() int {
			telemetry.calls.mu.Lock()
			defer telemetry.calls.mu.Unlock()
			return len(telemetry.calls.locks)
		}
		for _, name := range []string{"a", "b", "c"} {
			l := locks.NewLock(name)
			section, err := l.Lock(t.Context())
			require.NoError(t, err)
			_, err = l.TryLockFor(t.Context(), time.Millisecond)
			require.ErrorIs(t, err, relock.ErrLocked)
			require.NoError(t, l.Do(section, func(context.Context) error { return nil }))
			if name != "c" {
				require.NoError(t, l.Unlock(section))
			}
		}
		require.NotZero(t, known())
		require.NoError(t, locks.Close()) // reports the end of c
		require.Zero(t, known())
	})
}
