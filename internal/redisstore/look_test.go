package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// When does a waiter ask again by itself, and when does the answer to another one serve it?

func TestAWaiterAsksInItsTurnBehindTheLeaseOfTheOwner(t *testing.T) {
	for _, c := range []struct {
		ttl, remaining time.Duration
		position       int
		from, to       time.Duration
	}{
		{minute, time.Second, 0, time.Second, time.Second},
		{minute, time.Second, 3, time.Second + 3*stagger, time.Second + 3*stagger},
		{minute, time.Second, 100_000, time.Second, 21 * time.Second},
		{minute, time.Hour, 0, minute, minute},
		{time.Second, time.Hour, 1, time.Second + stagger, time.Second + stagger},
		{time.Second, -time.Millisecond, 0, time.Second, time.Second},
		{time.Millisecond, 0, 9, 0, time.Millisecond / 3},
	} {
		for range 100 {
			a, r := store.Claim{TTL: c.ttl}, acquireReply{remaining: c.remaining, position: c.position}
			d := leaseLeft(a, r) + turn(a, r) - time.Millisecond
			require.True(t, c.from <= d && d <= c.to, "%+v: %s", c, d)
		}
	}
}

// crowded is a crowd of a test in fake time.
type crowded struct {
	*testing.T
	looks
}

// ttl is the TTL of the waiters, and longest the time that each has for an answer.
const ttl, longest = 30 * time.Second, 10 * time.Second

func inCrowd(t *testing.T, test func(c *crowded)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(&crowded{t, looks{of: map[crowd]look{}}}) })
}

// waiter returns a waiter with an arrival, and the answer to its claim.
func (c *crowded) waiter(arrival int64) *looker {
	l := &looker{looks: &c.looks, crowd: crowd{"a", ttl}}
	c.answer(l, arrival, false)
	return l
}

// answer answers a waiter: the owner has a whole lease.
func (c *crowded) answer(l *looker, arrival int64, lost bool) {
	r := acquireReply{status: statusQueued, remaining: ttl, number: arrival, lost: lost}
	l.note(store.Claim{TTL: ttl}, r, wire.Answer{Sent: time.Now()})
}

// rests returns how long a waiter rests.
func rests(l *looker) time.Duration {
	d, _ := l.rest(longest)
	return d
}

func pass(d time.Duration) { <-time.After(d) }

func TestTheAnswerToAWaiterServesThoseBehindIt(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first, second, third := c.waiter(1), c.waiter(2), c.waiter(3)
		pass(ttl)
		require.Zero(t, rests(first))
		for _, l := range []*looker{second, third} {
			require.Equal(t, glance+time.Millisecond, rests(l), "for the answer to the first one")
		}
		pass(time.Second)
		c.answer(first, 1, false)
		d, answer := second.rest(longest)
		require.Equal(t, ttl+time.Millisecond, d)
		require.EqualValues(t, 1, answer.number)
		pass(ttl + time.Millisecond)
		require.Zero(t, rests(second), "the first one has not asked in its turn")
		require.Equal(t, glance+time.Millisecond, rests(third))
	})
}

// A waiter whose grant was lost with a message has no place, and others come behind it for ever.
func TestTheAnswerToAWaiterServesNobodyInFrontOfIt(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first := c.waiter(1)
		pass(ttl)
		for arrival := range int64(10) {
			c.waiter(2 + arrival)
			require.Zero(t, rests(first))
			pass(ttl)
		}
	})
}

// The owner that an older answer names may have left, and the next one may have a short lease.
func TestNoWaiterRestsForAnAnswerThatIsOlderThanItsOwn(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first := c.waiter(1)
		pass(time.Second)
		second := c.waiter(2)
		pass(time.Second)
		require.Zero(t, rests(second))
		require.Zero(t, rests(first), "the answer to another one serves nobody in front of it")
		require.Positive(t, rests(second))
	})
}

func TestAWaiterWithoutAnAnswerHoldsUpTheOthersForALimit(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first, second := c.waiter(1), c.waiter(2)
		pass(ttl)
		require.Zero(t, rests(first))
		asked := time.Now()
		for d := rests(second); d > 0; d = rests(second) {
			pass(d)
		}
		require.Equal(t, longest+time.Millisecond, time.Since(asked))
	})
}

func TestEachWaiterAsksOnceWhenOneHasFoundItsPlaceLost(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first, second, third := c.waiter(1), c.waiter(2), c.waiter(3)
		pass(ttl)
		require.Zero(t, rests(first))
		c.answer(first, 1, true)
		pass(time.Millisecond)
		for arrival, l := range []*looker{second, third} {
			require.Zero(t, rests(l))
			c.answer(l, int64(2+arrival), true)
		}
		pass(ttl)
		require.Zero(t, rests(first))
		for _, l := range []*looker{second, third} {
			require.Positive(t, rests(l), "it has asked since")
		}
	})
}

// The repeat finds the place that the first attempt has made anew.
func TestAnAnswerBehindALostOneServesNobody(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first, second := c.waiter(1), c.waiter(2)
		pass(ttl)
		require.Zero(t, rests(first))
		r := acquireReply{status: statusQueued, remaining: ttl, number: 1}
		first.note(store.Claim{TTL: ttl}, r, wire.Answer{Sent: time.Now(), Unsure: true})
		require.Positive(t, rests(second))
		pass(longest)
		require.Zero(t, rests(second))
	})
}

func TestEachWaiterAsksOnceWhenOneHasTheLockWithoutAMessage(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first, second := c.waiter(1), c.waiter(2)
		pass(ttl)
		require.Zero(t, rests(first))
		first.took()
		first.leave()
		require.Zero(t, rests(second))
	})
}

func TestAWaiterInsideOfAnotherHoldAsksForItselfAlone(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		inside := &looker{looks: &c.looks, crowd: crowd{"a", ttl}}
		inside.note(store.Claim{TTL: ttl, With: "b"}, acquireReply{remaining: ttl, number: 1}, wire.Answer{Sent: time.Now()})
		require.Zero(t, rests(inside))
		require.Empty(t, c.of)
	})
}

func TestNothingIsLeftOfACrowd(t *testing.T) {
	inCrowd(t, func(c *crowded) {
		first, second := c.waiter(1), c.waiter(2)
		c.answer(first, 1, false)
		first.leave()
		first.leave()
		require.Len(t, c.of, 1)
		require.Zero(t, rests(first), "it is in no crowd")
		second.leave()
		require.Empty(t, c.of)
	})
}

// The lease of a grant that is believed counts from the last answer, which may be long ago.
func TestAWaiterThatHasRestedConfirmsItsGrant(t *testing.T) {
	r := newRig(t)
	owner := r.enter("a")
	require.True(t, r.rdb.Persist(t.Context(), r.base).Val()) // so that the waiter asks again after a TTL
	a := r.claim(newID("b"), 300*time.Millisecond)
	r.store.looks.of[crowd{a.Name, a.TTL}] = look{waiters: 1, arrival: 1, until: time.Now().Add(time.Hour)}
	rested, answers := make(chan struct{}), 0
	got := make(chan store.Lease, 1)
	go func() {
		l, err := r.store.Wait(t.Context(), a, func(store.Progress) {
			if answers++; answers == 3 { // one before it listens, and one with its place
				close(rested)
			}
		})
		assert.NoError(t, err)
		got <- l
	}()
	<-rested
	granted := time.Now()
	require.EqualValues(t, 1, r.release(owner))
	l := <-got
	require.True(t, l.Sent.After(granted.Add(-a.TTL/2)), "the first answer came a TTL before")
	require.NoError(t, r.store.Forget(t.Context(), []store.Claim{a})[0])
}
