package relocketcd_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/holds"
)

func TestAKeptLockGoesToWhoeverWantsIt(t *testing.T) {
	c := connect(t)
	open := func(options ...relock.Option) *relock.Client {
		client, err := relock.Open(newStore(t, c), options...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		return client
	}
	holds.GoesToWhoeverWantsIt(t, open(relock.WithKeep(time.Hour)).NewLock("kept"), open().NewLock("kept"))
}
