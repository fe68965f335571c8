package relocksql_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/holds"
	relocksql "github.com/go-relock/relock/store/sql"
)

// client returns a client of a store, until the end of the test.
func client(t *testing.T, s *relocksql.Store, options ...relock.Option) *relock.Client {
	t.Helper()
	c, err := relock.Open(s, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestAKeptLockGoesToWhoeverWantsIt(t *testing.T) {
	onEach(t, func(d *rig) {
		if !d.listens {
			_, err := relock.Open(d.store(d.T), relock.WithKeep(time.Hour))
			require.ErrorIs(d.T, err, errors.ErrUnsupported)
			return
		}
		holds.GoesToWhoeverWantsIt(d.T, client(d.T, d.store(d.T), relock.WithKeep(time.Hour)).NewLock("kept"),
			client(d.T, d.store(d.T)).NewLock("kept"))
	})
}

func TestAClientWhoseListenerCannotConnectKeepsNothingForLong(t *testing.T) {
	d := postgres(t, false)
	l := client(t, d.store(t, relocksql.WithListener(broken{})), relock.WithKeep(time.Hour)).NewLock("a")
	require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // the lease is longer
	defer cancel()
	require.NoError(t, client(t, d.past(t)).NewLock("a").Do(ctx, func(context.Context) error { return nil }))
}
