package redisstore

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// What does a store remember of its waits? What it does with it is in internal/test/redis.

func TestAHoldThatHasWaitedIsForgottenWithItsEnd(t *testing.T) {
	r, _ := faulty(t)
	take := func() store.Lease { // after a wait
		t.Helper()
		owner := r.enter("a")
		w := r.wait(r.claim(newID("b"), minute))
		require.EqualValues(t, 1, r.release(owner))
		l := w.get()
		require.True(t, r.store.waited.has(l.ID))
		return l
	}
	for end, f := range map[string]func(){
		"its release": func() { require.NoError(t, r.store.Release(t.Context(), take())) },
		"the last of two": func() {
			l := take()
			_, err := r.store.Enter(t.Context(), l, 1)
			require.NoError(t, err)
			require.True(t, r.store.waited.has(l.ID), "an inner exit")
			require.NoError(t, r.store.Release(t.Context(), l))
		},
		"a release of several": func() {
			other := r.claim(newID("b"), minute)
			other.Name += "2"
			free, err := r.store.Try(t.Context(), other)
			require.NoError(t, err)
			for _, err := range r.store.ReleaseAll(t.Context(), []store.Lease{take(), free}) {
				require.NoError(t, err)
			}
		},
		"a wait that is given up": func() {
			owner := r.enter("a")
			w := r.wait(r.claim(newID("b"), minute))
			w.cancel()
			<-w.done
			require.ErrorIs(t, w.err, store.ErrUnsure)
			require.NoError(t, r.store.Forget(t.Context(), []store.Claim{r.claim(newID("c"), minute)})[0])
			require.Len(t, r.store.waited.holds, 1)
			for id := range r.store.waited.holds {
				require.NoError(t, r.store.Forget(t.Context(), []store.Claim{r.claim(string(id), minute)})[0])
			}
			require.EqualValues(t, 1, r.release(owner))
		},
		"a wait that is refused": func() {
			l := take() // the client listens, so the next wait asks for a place at once
			require.NoError(t, r.store.Release(t.Context(), l))
			rdb := r.server.Client()
			require.NoError(t, rdb.Set(t.Context(), r.base, "text", 0).Err())
			_, err := r.store.Wait(t.Context(), r.claim(newID("b"), minute), func(store.Progress) {})
			require.ErrorContains(t, err, "WRONGTYPE")
			require.NoError(t, rdb.Del(t.Context(), r.base).Err())
		},
	} {
		t.Run(end, func(t *testing.T) {
			f()
			require.Empty(t, r.store.waited.holds)
		})
	}
}

// TestAHoldOfAClosedClientIsForgottenAfterItsLease has holds that nobody releases, as those of a
// client that was closed.
func TestAHoldOfAClosedClientIsForgottenAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waited
		live, waiting := store.ID(newID("a")), store.ID(newID("a"))
		w.begin(live)
		w.begin(waiting)
		for n := range 100_000 {
			<-time.After(time.Second)
			id := store.ID(fmt.Sprintf("b:%d:1", n))
			w.begin(id)
			w.lasts(id, time.Minute)
			w.lasts(live, time.Minute)
			w.lasts(live, 0) // a renewal that leaves the lease unchanged
			require.LessOrEqual(t, len(w.holds), 2048)
		}
		require.True(t, w.has(live), "a hold that is renewed")
		require.True(t, w.has(waiting))
		<-time.After(2 * time.Minute)
		require.False(t, w.has(live), "a hold that nobody has forgotten, as cleanup had too many")
		require.True(t, w.has(waiting))
	})
}

func TestTheLeaseOfAHoldThatHasWaitedIsKnown(t *testing.T) {
	r, _ := faulty(t)
	owner, id := r.enter("a"), store.ID(newID("b"))
	w := r.wait(r.claim(string(id), minute))
	end := func() time.Time {
		r.store.waited.mu.Lock()
		defer r.store.waited.mu.Unlock()
		return r.store.waited.holds[id].end
	}
	require.Zero(t, end())
	lasts := func(ttl time.Duration, command func()) {
		t.Helper()
		begun := time.Now()
		command()
		require.Greater(t, end().Sub(begun), ttl)
	}
	var l store.Lease
	lasts(minute, func() {
		require.EqualValues(t, 1, r.release(owner))
		l = w.get()
	})
	lasts(time.Hour, func() {
		require.NoError(t, r.store.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: time.Hour, Count: 1}})[0])
	})
	lasts(2*time.Hour+minute, func() {
		l.TTL, l.Delay = 2*time.Hour, minute
		_, err := r.store.Enter(t.Context(), l, 2)
		require.NoError(t, err)
	})
	require.NoError(t, r.store.Release(t.Context(), l))
}

func TestAGrantToAWaitThatIsPassedALeaseAtTheSameTimeIsGivenBack(t *testing.T) {
	for _, isRead := range []bool{false, true} {
		t.Run(fmt.Sprintf("read %t", isRead), func(t *testing.T) {
			r, _ := faulty(t)
			owner, id := r.enter("a"), store.ID(newID("b"))
			topic := r.store.topic(r.claim(string(id), minute))
			listener, err := r.store.subs.Listen(t.Context(), topic, string(id))
			require.NoError(t, err)
			defer listener.Close()
			require.Equal(t, statusQueued, r.status(string(id), newPlace))
			require.EqualValues(t, 1, r.release(owner))
			r.owner(string(id), 1)
			redistest.Eventually(t, limit, func() bool { return len(listener.C()) == 1 }, "the message has come")
			var read subs.Note
			if isRead { // the wait was passed the lease before it looked, see waited.wake
				read = <-listener.C()
			}
			require.NoError(t, r.rdb.PExpire(t.Context(), r.base, time.Hour).Err()) // no test waits for that
			require.True(t, r.store.giveBack(listener, topic, id, read))
			redistest.Eventually(t, limit, func() bool { return r.look().Owner == "" }, "the lock is free")
		})
	}
}

func TestARunEndsBeforeAWaitThatAsksJustNow(t *testing.T) {
	r, _ := faulty(t)
	over, claims, sleeps := store.ID(newID("a")), store.ID(newID("a")), store.ID(newID("a"))
	r.store.waited.begin(claims)
	p := r.store.waited.sleep(r.claim(string(sleeps), minute))
	l := r.held(newID("a"), minute)
	l.Run = &store.Run{Behind: []store.ID{over, claims, sleeps}}
	require.False(t, r.store.Pass(l), "the last wait would overtake the one before it")
	require.False(t, r.store.waited.wake(p))
	l.Run = &store.Run{Behind: []store.ID{over, sleeps}}
	require.False(t, r.store.Pass(l), "it is awake")
	p = r.store.waited.sleep(r.claim(string(sleeps), minute))
	require.True(t, r.store.Pass(l))
	require.True(t, r.store.waited.wake(p))
	require.Equal(t, l.ID, p.lease.ID)
	require.Equal(t, []store.ID{sleeps}, l.Run.Passed)
	require.False(t, r.store.waited.has(sleeps), "a grant to its place is given back")
}

// awaitSleep waits until the wait of a hold sleeps.
func (r *rig) awaitSleep(id string) {
	r.Helper()
	w := &r.store.waited
	redistest.Eventually(r, limit, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.holds[store.ID(id)].asleep != nil
	}, "the wait sleeps")
}

func TestAWaitThatWasPassedALeaseReturnsItAlsoBehindTheEndOfItsContext(t *testing.T) {
	r, _ := faulty(t)
	owner, id := r.enter("a"), newID("b")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	queued, done := make(chan struct{}, 10), make(chan error)
	var got store.Lease
	go func() {
		l, err := r.store.Wait(ctx, r.claim(id, minute), func(p store.Progress) {
			if p.Queued {
				queued <- struct{}{}
			}
		})
		got = l
		done <- err
	}()
	<-queued
	w := &r.store.waited
	r.awaitSleep(id)
	l := r.held(owner, minute)
	l.Run = &store.Run{Behind: []store.ID{store.ID(id)}}
	w.mu.Lock()
	cancel()
	require.True(t, w.passLocked(l))
	w.mu.Unlock()
	require.NoError(t, <-done)
	require.Equal(t, store.ID(owner), got.ID)
}

func TestALeaseThatIsPassedOnBesideAGrantIsToBeConfirmed(t *testing.T) {
	r, _ := faulty(t)
	owner, id := r.enter("a"), newID("b")
	queued, done := make(chan struct{}, 10), make(chan store.Lease)
	go func() {
		l, err := r.store.Wait(t.Context(), r.claim(id, minute), func(p store.Progress) {
			if p.Queued {
				queued <- struct{}{}
			}
		})
		assert.NoError(t, err)
		done <- l
	}()
	<-queued
	w := &r.store.waited
	r.awaitSleep(id)
	l := r.held(owner, minute)
	l.Sent, l.Run = time.Now(), &store.Run{Behind: []store.ID{store.ID(id)}}
	topic, mark := r.store.topic(r.claim(id, minute)), newID("b")
	behind, err := r.store.subs.Listen(t.Context(), topic, mark)
	require.NoError(t, err)
	defer behind.Close()
	w.mu.Lock() // the wait cannot look whether it was passed a lease
	require.EqualValues(t, 1, r.release(owner))
	require.NoError(t, r.rdb.Publish(t.Context(), topic.Channel, mark).Err())
	<-behind.C() // so the grant has come
	require.True(t, w.passLocked(l))
	w.mu.Unlock()
	got := <-done
	require.Equal(t, l.ID, got.ID)
	require.Zero(t, got.Sent, "the lease is over in Redis")
}
