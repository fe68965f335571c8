package relock

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// The part of the scripts that is there for WithLocalPass: tokens set aside, and the note of whose the lock is.

// apart is a hold that asks for tokens to be set aside.
func (r *rig) apart(n int) *hold {
	r.Helper()
	h := r.hold()
	h.aside = n
	return h
}

// own notes what a hold that is entered has got, as acquiring.own does.
func (r *rig) own(h *hold, token int64) {
	h.usedToken, h.lastToken = token, token+int64(h.aside)
}

func (r *rig) pass(h *hold, number int, to string) bool {
	r.Helper()
	there, err := r.wire.pass(r.Context(), r.keys, h.id, number, to, once)
	require.NoError(r, err)
	return there
}

func TestTokensAreSetAsideOnce(t *testing.T) {
	r := newRig(t)
	h := r.apart(100)
	token := r.ask(h, 1).token
	require.Equal(t, token+100, r.look().token)
	require.Equal(t, token, r.ask(h, 1).token, "asked again, it is told its own")
	require.Equal(t, token+100, r.look().token)

	// The key may be lost meanwhile: then it is another token, with as many behind it.
	r.rdb.Del(r.Context(), r.keys.token)
	again := r.ask(h, 1).token
	require.Greater(t, again, token)
	require.Equal(t, again+100, r.look().token)

	r.own(h, again)
	h.usedToken += 7
	require.True(t, r.release(h, 0))
	require.Equal(t, h.usedToken, r.look().token, "what was not used is given back")
	r.unchanged(func() { require.False(t, r.release(h, 0)) })
	require.Greater(t, r.ask(r.hold(), 1).token, h.usedToken)
}

func TestTokensThatAreLeftAreOnlyGivenBackToWhereTheyCameFrom(t *testing.T) {
	for _, what := range []string{"", "1", "9000000000000000", "gone"} { // what the key has become
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			h := r.apart(100)
			r.own(h, r.ask(h, 1).token)
			switch what {
			case "":
			case "gone":
				r.rdb.Del(r.Context(), r.keys.token)
			default:
				r.rdb.Set(r.Context(), r.keys.token, what, time.Hour)
			}
			before := r.look().token
			require.True(t, r.release(h, 0))
			if what == "" {
				before = h.usedToken
			}
			require.Equal(t, before, r.look().token)
			require.LessOrEqual(t, before+1, r.ask(r.hold(), 1).token)
		})
	}
}

func TestAGrantSetsTokensAside(t *testing.T) {
	r := newRig(t)
	first := r.apart(1_000_000_000) // so that the clock is not beyond them
	token := r.ask(first, 1).token
	r.own(first, token)
	ps := r.listen("a")
	next := r.apart(50)
	queued := r.join(next, "a", 0)
	require.Equal(t, acquireQueued, queued.status)
	require.Equal(t, queued.arrival, r.join(next, "a", queued.arrival).arrival)
	require.Len(t, r.look().queue, 1, "it stands there once")

	first.usedToken += 500_000_000 // nor beyond this one
	require.True(t, r.release(first, 0))
	hold, granted := r.granted(ps)
	require.Equal(t, next.id, hold)
	require.Equal(t, first.usedToken+1, granted, "those that were left are used")
	require.Equal(t, granted+50, r.look().token)
	require.Equal(t, granted, r.ask(next, 1).token, "who asks is told the same")
	r.own(next, granted)
	require.True(t, r.release(next, 0))
	require.Equal(t, granted, r.look().token)
}

func TestAWaiterWithTokensToSetAsideCanBeTakenOutOfTheQueue(t *testing.T) {
	r := newRig(t)
	owner := r.enter()
	for _, tokens := range []int{1, 50} {
		h := r.apart(tokens)
		require.Equal(t, acquireQueued, r.join(h, "a", 0).status)
		r.abandon(h, "a")
		require.Empty(t, r.look().queue, "with %d", tokens)
	}
	require.True(t, r.release(owner, 0))
}

func TestAGrantCanSetAsideASingleToken(t *testing.T) {
	r := newRig(t)
	owner := r.enter()
	ps := r.listen("a")
	next := r.apart(1)
	require.Equal(t, acquireQueued, r.join(next, "a", 0).status)
	require.True(t, r.release(owner, 0))
	hold, granted := r.granted(ps)
	require.Equal(t, next.id, hold)
	require.Equal(t, granted+1, r.look().token)
	r.own(next, granted)
	require.True(t, r.release(next, 0))
	require.Equal(t, granted, r.look().token, "what was not used is given back")
}

func TestOthersAreToldToWhomALockWasPassedAndItStaysTheFirstOnes(t *testing.T) {
	r := newRig(t)
	h, other := r.apart(10), r.hold()
	r.own(h, r.ask(h, 1).token)
	require.True(t, r.pass(h, 2, "x:2:2"))
	r.unchanged(func() { require.True(t, r.pass(h, 1, "x:1:1"), "an earlier one that runs late") })
	r.unchanged(func() {
		require.True(t, r.pass(h, 2, "x:2:2"))
		require.Equal(t, "x:2:2", r.ask(other, 1).owner)
	})
	require.True(t, r.pass(h, 10, "x:10:10"), "numbers, not words")
	s, err := r.wire.state(r.Context(), r.keys, once)
	require.NoError(t, err)
	require.Equal(t, h.id, s.hold)
	require.Equal(t, "x:10:10", s.shown)
	require.Equal(t, 1, s.count)
	require.Equal(t, "x:10:10", r.join(r.hold(), "a", 0).owner)

	// Whatever is done with the lock names the hold to which Redis gave it.
	r.ask(h, 2)
	s, err = r.wire.state(r.Context(), r.keys, once)
	require.NoError(t, err)
	require.Equal(t, 2, s.count)
	require.True(t, r.release(h, 1))
	require.False(t, r.release(other, 0))
	renewed := r.renew(renewal{hold: h, ttl: time.Minute})
	require.NoError(t, renewed[0].err)
	require.False(t, renewed[0].lost)
	r.leaseIs(time.Minute)
}

func TestANoteOfAPassEndsWithItsLock(t *testing.T) {
	for _, how := range []string{"release", "release to a waiter", "release to a waiter that wants tokens too", "abandon", "force"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			h := r.apart(10)
			r.own(h, r.ask(h, 1).token)
			require.True(t, r.pass(h, 1, "x:1:1"))
			left := map[string]string{}
			switch how {
			case "release":
				require.True(t, r.release(h, 0))
			case "release to a waiter":
				ps := r.listen("a")
				next := r.hold()
				require.Equal(t, acquireQueued, r.join(next, "a", 0).status)
				require.True(t, r.release(h, 0))
				_, token := r.granted(ps)
				left = map[string]string{next.id: "1", "token": strconv.FormatInt(token, 10)}
			case "release to a waiter that wants tokens too":
				ps := r.listen("a")
				next := r.apart(10)
				require.Equal(t, acquireQueued, r.join(next, "a", 0).status)
				require.True(t, r.release(h, 0))
				r.granted(ps)
				left = map[string]string{next.id: "1"}
			case "abandon":
				r.abandon(h, "me")
			case "force":
				require.NoError(t, r.wire.forceRelease(context.Background(), r.keys, h.id, once))
			}
			fields, err := r.rdb.HGetAll(r.Context(), r.keys.base).Result()
			require.NoError(t, err)
			require.Equal(t, left, fields)
			r.unchanged(func() { require.False(t, r.pass(h, 2, "x:2:2"), "one that runs late finds nothing") })
		})
	}
}

// passUnseen passes a lock of c from one call to another, and does something before either looks. It returns the hold that the
// lock was passed from, and what becomes of the other call.
func passUnseen(t *testing.T, c *Client, l *Lock, meanwhile func(given *tenure)) (from *hold, next chan entered) {
	t.Helper()
	begin := func(length int) chan entered {
		done := make(chan entered, 1)
		go func() {
			section, err := l.Lock(t.Context())
			done <- entered{section, err}
		}()
		redistest.Eventually(t, 5*time.Second, func() bool {
			c.table.mu.Lock()
			defer c.table.mu.Unlock()
			return c.table.lines[l.keys.base].waiting.Len() == length
		}, "%d stand in the line", length)
		return done
	}
	first, err := l.Lock(t.Context())
	require.NoError(t, err)
	one, two := begin(1), begin(2)
	require.NoError(t, l.Unlock(first))
	leader := <-one
	require.NoError(t, leader.err)

	// What Unlock does, but that something else happens before the next one looks.
	f := frameOf(leader.section, c, l.keys.base)
	h, table := f.hold, c.table
	table.mu.Lock()
	f.left = true
	table.removeLocked(f)
	table.unscheduleLocked(h)
	given := h.tenure
	require.True(t, table.passLocked(h, time.Now()))
	meanwhile(given)
	table.mu.Unlock()
	f.cancel(ErrReleased)
	return h, two
}

// entered is what a call that locks has returned.
type entered struct {
	section context.Context
	err     error
}

// TestAPassThatIsOverWhenItIsSeen: the call to which a lock was passed did not run until the lease was over.
func TestAPassThatIsOverWhenItIsSeen(t *testing.T) {
	r := newRig(t)
	c, err := New(r.rdb, WithLocalPass(0, time.Hour))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	l := c.NewLock(t.Name())
	h, two := passUnseen(t, c, l, func(given *tenure) { given.deadline = time.Now() })

	var next entered
	select {
	case next = <-two:
	case <-time.After(DefaultTTL / 2):
		require.Fail(t, "what was passed is not given back before its lease ends in Redis")
	}
	require.NoError(t, next.err)
	got := frameOf(next.section, c, l.keys.base).hold
	require.NotEqual(t, h.tenure.id, got.id, "it has asked for itself")
	require.Greater(t, l.Token(next.section), h.token)
	require.Equal(t, got.id, r.owner())

	// What was on its way about the old one comes back, and has nothing to say of the new one.
	c.watchdog.renew(&round{batch: []renewal{{hold: h, ttl: time.Second}}})
	require.NoError(t, next.section.Err())
	require.NoError(t, l.Unlock(next.section))
	redistest.Eventually(t, 5*time.Second, func() bool { return r.owner() == "" }, "nothing is left")
}

// The call to which a lock was passed finds its client closed, and does not enter.
func TestAPassWhoseClientIsClosedWhenItIsSeenIsGivenBack(t *testing.T) {
	r := newRig(t)
	c, err := New(r.rdb, WithLocalPass(0, time.Hour))
	require.NoError(t, err)
	l := c.NewLock(t.Name())
	_, two := passUnseen(t, c, l, func(*tenure) { c.end() })
	next := <-two
	require.ErrorIs(t, next.err, ErrClosed)
	require.NoError(t, c.Close())
	require.Empty(t, r.owner(), "Close has waited for that")
}

func TestTokensThatAreSetAsideComeBackFromAnEntryThatIsUndone(t *testing.T) {
	r := newRig(t)
	c, err := New(r.rdb, WithLocalPass(MaxPasses, 0))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ahead := time.Now().Add(time.Hour).UnixMicro() // of the clock, so that tokens are counted and do not follow it
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.token, ahead, time.Hour).Err())
	for range 3 {
		first, err := c.NewLock(t.Name()).Lock(t.Context())
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := c.NewLock(t.Name(), WithReplicaAcks(1, time.Millisecond)).Lock(t.Context())
			done <- err
		}()
		redistest.Eventually(t, 5*time.Second, func() bool {
			c.table.mu.Lock()
			defer c.table.mu.Unlock()
			return c.table.lines[r.keys.base].waiting.Len() == 1
		}, "one stands in the line")
		require.NoError(t, c.NewLock(t.Name()).Unlock(first))
		require.ErrorIs(t, <-done, ErrNotReplicated)
	}
	require.Equal(t, ahead+3*2, r.look().token, "one for each entry")
}

// A negative one would say that there is no lease.
func TestARefusalByALeaseThatIsOverAndNotToldOfYetSaysThatNothingIsLeftOfIt(t *testing.T) {
	r := newRig(t)
	h := r.hold(WithLocalPass(0, 0))
	h.state, h.deadline = held, time.Now().Add(-time.Second)
	refusal := (&line{lead: h}).refusalLocked(r.keys.name)
	require.Equal(t, &LockedError{Name: h.keys.name, Holder: h.holder}, refusal)
	require.NotContains(t, refusal.Error(), "without a lease")
}
