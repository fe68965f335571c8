package relock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

func TestTheHeapOfLeasesHasTheEarliestOnTopWhateverIsDoneToIt(t *testing.T) {
	var heap leases
	due := map[*tenure]time.Duration{}
	for range 20_000 {
		d := rand.N(1000 * time.Nanosecond) // so few that many are the same
		switch n := rand.IntN(10); {
		case n < 4 || len(heap) == 0:
			h := &tenure{index: -1}
			heap.add(h, d)
			due[h] = d
		case n < 7:
			h := heap[rand.IntN(len(heap))].tenure
			heap.move(h.index, d)
			due[h] = d
		default:
			h := heap[rand.IntN(len(heap))].tenure
			heap.remove(h.index)
			require.Equal(t, -1, h.index)
			delete(due, h)
		}
		require.Len(t, heap, len(due))
	}
	for i, v := range heap {
		require.Equal(t, i, v.tenure.index)
		require.Equal(t, due[v.tenure], v.due)
	}
	for last := time.Duration(0); len(heap) > 0; heap.remove(0) {
		require.GreaterOrEqual(t, heap[0].due, last)
		last = heap[0].due
	}
}

func TestARequestForAHundredRenewalsAllocatesNoMoreThanOneForOne(t *testing.T) {
	settings := defaults()
	batch := make([]renewal, renewBatch)
	for i := range batch {
		k, err := newKeys(settings.prefix, fmt.Sprint(i))
		require.NoError(t, err)
		batch[i] = renewal{hold: &hold{keys: k, tenure: &tenure{id: "holder:1:2"}, settings: &settings}, ttl: settings.ttl}
	}
	allocations := func(n int) float64 {
		return testing.AllocsPerRun(100, func() { renewRequest(batch[:n]) })
	}
	require.InDelta(t, allocations(1), allocations(renewBatch), 0.5)
}

func TestAGrantThatWasExpectedWakesNoGoroutine(t *testing.T) {
	r := newRig(t)
	other := newTestClient(t, r.rdb, "other").NewLock(r.keys.name)
	l := r.client.NewLock(r.keys.name)
	owned, err := other.Lock(t.Context())
	require.NoError(t, err)
	granted := make(chan context.Context, 1)
	go func() {
		section, err := l.Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		granted <- section
	}()
	table := r.client.table
	armed := func() time.Duration {
		table.mu.Lock()
		defer table.mu.Unlock()
		return r.client.watchdog.armed
	}
	redistest.Eventually(t, 10*time.Second, func() bool { return armed() != never }, "the watchdog expects the lease")
	expected := armed()
	require.NoError(t, other.Unlock(owned))
	section := <-granted
	require.Empty(t, r.client.watchdog.wake)
	require.Equal(t, expected, armed())
	table.mu.Lock()
	require.GreaterOrEqual(t, table.leases[0].due, expected, "it looks in time")
	table.mu.Unlock()
	require.NoError(t, l.Unlock(section))
}

func TestALeaseThatIsOverBeforeTheWatchdogHasWokenWakesItOnceAndNotForEachThatFollows(t *testing.T) {
	r := newRig(t)
	l := r.client.NewLock(r.keys.name)
	pair := func() {
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Unlock(section))
	}
	d := r.client.watchdog
	d.running = true // it is what this test says it is
	pair()
	<-d.wake
	_, next := d.look(time.Now())
	require.NotEqual(t, never, next, "as if it had seen the lease")
	for range 10 {
		pair()
		require.Empty(t, d.wake)
	}
	_, next = d.look(time.Now().Add(DefaultTTL))
	require.Equal(t, never, next, "then it sleeps until the next lease")
	pair()
	require.Len(t, d.wake, 1)
}

func TestAnOrphanIsKeptUntilNothingOfItCanComeAnyMore(t *testing.T) {
	const lease = time.Second
	for name, test := range map[string]struct {
		unanswered bool
		flying     int
		age        time.Duration
		kept       bool
	}{
		"confirmed":                                  {},
		"a command was lost":                         {unanswered: true, kept: true},
		"a command was lost a lease ago":             {unanswered: true, age: 2 * lease},
		"a command is on its way":                    {flying: 1, kept: true},
		"a command is on its way since a lease ago":  {flying: 1, age: 2 * lease, kept: true},
		"one is on its way and one was lost by then": {unanswered: true, flying: 1, age: 2 * lease, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			h := r.hold()
			h.unanswered, h.flying = test.unanswered, test.flying
			o := r.client.orphans
			p := &orphan{hold: h, since: time.Now().Add(-test.age), lease: lease}
			o.abandon([]*orphan{p}, time.Now().Add(time.Minute))
			require.True(t, p.confirmed)
			require.Equal(t, test.kept, len(o.pending) == 1)
		})
	}
}

func TestAnOrphanOfWhichACommandLandedMeanwhileIsTriedAgainAtOnce(t *testing.T) {
	r := newRig(t)
	h, o := r.hold(), r.client.orphans
	h.landings = 1 // since the round trip began
	p := &orphan{hold: h, since: time.Now(), lease: time.Minute}
	o.abandon([]*orphan{p}, time.Now().Add(time.Minute))
	require.False(t, p.confirmedLocked(), "that was before")
	batch, _, _ := o.due(time.Now())
	require.Equal(t, []*orphan{p}, batch)
	o.abandon(batch, time.Now().Add(time.Minute))
	require.True(t, p.confirmedLocked())
	require.Empty(t, o.pending)
}

func TestOrphansAreLookedAtAgainWhenTheNextOfThemIsDue(t *testing.T) {
	r := newRig(t)
	o, now := r.client.orphans, time.Now()
	for _, in := range []time.Duration{2 * time.Second, 50 * time.Millisecond, 0, time.Second} {
		o.pending = append(o.pending, &orphan{hold: r.hold(), next: now.Add(in)})
	}
	batch, next, more := o.due(now)
	require.True(t, more)
	require.Len(t, batch, 1)
	require.Equal(t, now, batch[0].next)
	require.Equal(t, now.Add(50*time.Millisecond), next)
	o.pending = nil
}

func TestACommandThatWasLostIsNotForgottenForOneThatWasAnswered(t *testing.T) {
	for name, answered := range map[string][]bool{"before": {true, false}, "after": {false, true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			h, o := r.hold(), r.client.orphans
			o.running = true // it is what this test says it is
			o.gaveUp(h)
			o.gaveUp(h)
			for _, a := range answered {
				o.landed(h, a)
			}
			o.add(h, false)
			require.True(t, h.unanswered)
			require.Zero(t, h.flying)
			require.Equal(t, 2, h.landings)
		})
	}
}

func TestWhenExtendSaysThatTheLockIsLostItsSectionHasEndedWhoeverIsAboutToTellIt(t *testing.T) {
	r := newRig(t)
	l := r.client.NewLock(t.Name(), WithFixedLease(time.Minute))
	section, err := l.Lock(t.Context())
	require.NoError(t, err)
	table := r.client.table
	table.mu.Lock()
	loss := table.loseLocked(frameOf(section, r.client, l.keys.base).hold, LossExpired)
	table.mu.Unlock()
	defer loss.tell() // as by the watchdog, which has come no further

	require.ErrorIs(t, l.Extend(section, time.Minute), ErrLockLost)
	require.ErrorIs(t, context.Cause(section), ErrLockLost)
}
