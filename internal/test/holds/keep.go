package holds

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// GoesToWhoeverWantsIt takes a lock that keeper keeps for longer than a minute in turns with a lock
// of another client, which a message has to give the lock.
func GoesToWhoeverWantsIt(t *testing.T, keeper, other *relock.Lock) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	last := int64(0)
	visit := func(l *relock.Lock) {
		require.NoError(t, l.Do(ctx, func(section context.Context) error {
			token, err := l.Token(section)
			require.Greater(t, token, last)
			last = token
			return err
		}))
	}
	isKept := func() bool {
		state, err := keeper.State(ctx)
		return err == nil && state.Kept
	}
	for range 3 { // the first time a request may have been missed
		require.Eventually(t, func() bool { visit(keeper); return isKept() }, hang, time.Millisecond)
		visit(keeper)
		visit(other)
	}
}
