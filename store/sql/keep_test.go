package relocksql_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

func TestAKeptLockGoesToWhoeverWantsIt(t *testing.T) {
	onEach(t, func(d *rig) {
		t := d.T
		if !d.listens {
			_, err := relock.Open(d.store(t), relock.WithKeep(time.Hour))
			require.ErrorIs(t, err, errors.ErrUnsupported)
			return
		}
		open := func(options ...relock.Option) *relock.Client {
			client, err := relock.Open(d.store(t), options...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			return client
		}
		keeper, other := open(relock.WithKeep(time.Hour)).NewLock("kept"), open().NewLock("kept")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
			require.Eventually(t, func() bool { visit(keeper); return isKept() }, time.Minute, time.Millisecond)
			visit(keeper)
			visit(other)
		}
	})
}
