package redis_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
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

func TestANewLeaderIsSeenAfterItsMessage(t *testing.T) {
	w := stage.OnShared(t)
	follower, leads := w.Peer(), w.Peer(relock.WithOwner("10.0.0.7:8080"))
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan string, 10)
	var follows sync.WaitGroup
	follows.Go(func() {
		for holder, err := range leader.Follow(ctx, follower.NewLock("lead")) {
			if err == nil {
				seen <- holder.Owner()
			}
		}
	})
	next := func(want string) {
		t.Helper()
		select {
		case owner := <-seen:
			require.Equal(t, want, owner)
		case <-time.After(relock.DefaultTTL / 4): // without the message it would be a third
			require.FailNow(t, "the change is not seen", want)
		}
	}
	next("")
	redistest.Eventually(t, w.Limit, func() bool { // a message before the channel is open is lost
		return len(w.Plain.PubSubChannels(t.Context(), stage.BaseKey("lead")+":leader").Val()) == 1
	}, "the follower listens")
	before := w.Calls()["publish"]
	candidacy := leader.Campaign(t.Context(), leads.NewLock("lead"))
	next("10.0.0.7:8080")
	require.Equal(t, 1, w.Calls()["publish"]-before, "one message")
	require.NoError(t, leads.Close())
	<-candidacy.Done()
	stop()
	follows.Wait()
}
