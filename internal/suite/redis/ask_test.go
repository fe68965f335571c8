package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/internal/stage"
)

// How is a holder in another process asked for a lock?

func TestAnAskIsHeardAfterOneMessage(t *testing.T) {
	w := stage.OnShared(t)
	holder, asker := w.Peer(), w.Peer()
	for name, of := range map[string]func(*relock.Client) *relock.Lock{
		"a mutex":  func(c *relock.Client) *relock.Lock { return c.NewLock("a") },
		"a reader": func(c *relock.Client) *relock.Lock { return c.NewRWLock("b").RLocker() },
		"a permit": func(c *relock.Client) *relock.Lock { return c.NewSemaphore("c", 2) },
	} {
		l := of(holder.Client)
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		wanted := l.Wanted(section)
		redistest.Eventually(t, 10*time.Second, func() bool { // an ask before the channel is open is lost
			begun := time.Now()
			require.NoError(t, of(asker.Client).Ask(t.Context()))
			select {
			case <-wanted:
				t.Logf("%s: heard %s after the call of Ask", name, time.Since(begun))
				return true
			case <-time.After(100 * time.Millisecond):
				return false
			}
		}, "the ask is heard")
		require.NoError(t, section.Err())
		require.NoError(t, l.Unlock(section))
	}
}
