package relock_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// This file is about WithLocalPass. The first hold of a lock that nobody else of its process wants has no tokens set aside:
// there the tests begin with the second one, whose lock can be passed on.

// passing is a client, and calls of it that stand in the line of one lock behind a section whose lock can be passed on.
func passing(t *testing.T, w *world, n int, options ...relock.Option) (m *member, l *relock.Lock, section context.Context, waiting []*attempt) {
	t.Helper()
	m = w.NewClient(options...)
	w.warm(m)
	l = m.NewLock("a")
	first := enter(t, t.Context(), l)
	for range n + 1 {
		waiting = append(waiting, begin(t, t.Context(), l.Lock))
	}
	require.NoError(t, l.Unlock(first))
	section = waiting[0].section()
	keep(t, section)
	m.net.Reset()
	return m, l, section, waiting[1:]
}

// handOn unlocks a section and returns that of the call that is to have the lock then.
func handOn(t *testing.T, l *relock.Lock, section context.Context, next *attempt) context.Context { //nolint:revive // t comes first in a test helper
	t.Helper()
	token := l.Token(section)
	require.True(t, next.waits())
	require.NoError(t, l.Unlock(section))
	require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
	entered := next.section()
	keep(t, entered)
	require.Greater(t, l.Token(entered), token)
	return entered
}

func TestALockIsPassedOnInsideTheProcessWithoutAsking(t *testing.T) {
	w := onShared(t)
	p := w.peer(relock.WithLocalPass(0, 0))
	l := p.NewLock("hot")
	before := w.calls()
	const goroutines, rounds = 16, 250
	inside, last, sections := 0, int64(0), 0
	var wg sync.WaitGroup
	start := time.Now()
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				section, err := l.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				inside++
				if inside != 1 {
					t.Errorf("%d inside", inside)
				}
				token := l.Token(section)
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
				sections++
				inside--
				if err := l.Unlock(section); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Log(time.Since(start)/(goroutines*rounds), "a section")
	require.Equal(t, goroutines*rounds, sections)
	sum, each := w.callsSince(before)
	require.Less(t, sum, sections/4, each)
	t.Log(each)
	state, err := l.State(context.Background())
	require.NoError(t, err)
	require.Equal(t, relock.State{Token: last}, state, "what was set aside and not used is given back")
}

func TestWithLocalPassTheLineIsServedInOrderAndRedisIsToldOfWhoHasTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 3, relock.WithLocalPass(0, 0))
		mine, _ := relock.HolderFrom(section)
		for _, next := range waiting {
			section = handOn(t, l, section, next) //nolint:fatcontext // they do not nest
		}
		require.Zero(t, m.scripts(), "nobody was asked")
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, mine, state.Holder, "until it is told, Redis knows the one to whom it gave the lock")

		m.net.Reset()
		pass(2 * time.Millisecond)
		holder, _ := relock.HolderFrom(section)
		state, err = l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, holder, state.Holder)
		require.Equal(t, 1, state.Count)
		require.Equal(t, relock.DefaultTTL, (state.TTL + 2*time.Millisecond), "a pass renews nothing")
		_, err = w.NewClient().NewLock("a").TryLock(t.Context())
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, holder, refusal.Holder)
		require.LessOrEqual(t, m.scripts(), 3, "State, and one command for three passes, with its text where the server does not know it")

		token := l.Token(section)
		require.NoError(t, l.Unlock(section))
		require.True(t, w.free("a"))
		w.requireNothingLeft("a")
		state, err = l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, relock.State{Token: token}, state, "what was set aside and not used has come back")
	})
}

func TestWithLocalPassWaitersOfOthersAreOvertakenNoLongerThanIsSaid(t *testing.T) {
	for _, c := range []struct {
		name   string
		option relock.Option
		each   time.Duration // how long a section lasts
		passes int           // that others see
	}{
		{"passes", relock.WithLocalPass(3, time.Hour), time.Second, 3},
		{"time", relock.WithLocalPass(100, 10*time.Millisecond), 3 * time.Millisecond, 3}, // at 3, 6 and 9 ms
		{"sections longer than the limit", relock.WithLocalPass(100, 10*time.Millisecond), 10 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				_, l, section, waiting := passing(t, w, c.passes+2, c.option)
				other := w.NewClient().NewLock("a")
				remote := begin(t, t.Context(), other.Lock)
				for _, next := range waiting[:c.passes] {
					pass(c.each)
					section = handOn(t, l, section, next) //nolint:fatcontext // they do not nest
					require.True(t, remote.waits())
				}
				pass(c.each)
				token := l.Token(section)
				require.NoError(t, l.Unlock(section))
				theirs := remote.section()
				require.Greater(t, other.Token(theirs), token)
				rest := waiting[c.passes:]
				require.True(t, rest[0].waits())
				require.Len(t, w.queue("a"), 1, "one waits in Redis, for all in the line")
				token = other.Token(theirs)
				require.NoError(t, other.Unlock(theirs))
				section = rest[0].section()
				require.Greater(t, l.Token(section), token)
				section = handOn(t, l, section, rest[1])
				require.NoError(t, l.Unlock(section))
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestWithLocalPassAWaiterInTheLineMayGiveUpAtAnyPlace(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, 0))
		holder, _ := relock.HolderFrom(section)
		ctx, cancel := context.WithCancel(t.Context())
		one := begin(t, ctx, l.Lock)
		two := begin(t, t.Context(), tryFor(l, time.Second))
		last := begin(t, t.Context(), l.Lock)
		require.True(t, one.waits())
		cancel()
		_, err := one.result()
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Zero(t, one.took())
		_, err = two.result()
		require.Equal(t, time.Second, two.took())
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, "a", refusal.Name)
		require.Equal(t, holder, refusal.Holder)
		require.InDelta(t, relock.DefaultTTL-time.Second, refusal.TTL, float64(time.Second))
		_, err = begin(t, t.Context(), l.TryLock).result()
		require.ErrorIs(t, err, relock.ErrLocked, "who does not wait is not put into the line")
		for _, next := range append(waiting, last)[:2] {
			require.True(t, next.waits())
		}
		require.NoError(t, l.Unlock(section)) // the limit is over
		for _, next := range append(waiting, last) {
			section = next.section() //nolint:fatcontext // they do not nest
			require.NoError(t, l.Unlock(section))
		}
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassEachLockHasALineOfItsOwn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithLocalPass(0, 0))
		var locks []*relock.Lock
		var sections []context.Context
		var waiting []*attempt
		for _, name := range []string{"a", "b", "c"} {
			l := m.NewLock(name)
			locks, sections = append(locks, l), append(sections, enter(t, t.Context(), l))
			waiting = append(waiting, begin(t, t.Context(), l.Lock))
		}
		for i, l := range locks {
			require.True(t, waiting[i].waits())
			require.NoError(t, l.Unlock(sections[i]))
			require.NoError(t, l.Unlock(waiting[i].section()))
			w.requireNothingLeft(l.Name())
		}
	})
}

func TestWithLocalPassWhenTheLeadGivesUpTheNextOneAsks(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewLock("a")
		theirs := enter(t, t.Context(), other)
		l := w.NewClient(relock.WithLocalPass(0, 0)).NewLock("a")
		ctx, cancel := context.WithCancel(t.Context())
		lead := begin(t, ctx, l.Lock)
		next := begin(t, t.Context(), tryFor(l, time.Minute))
		third := begin(t, t.Context(), tryFor(l, time.Second))
		require.Len(t, w.queue("a"), 1)
		_, err := third.result()
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal, "it knows what Redis said to the lead")
		holder, _ := relock.HolderFrom(theirs)
		require.Equal(t, holder, refusal.Holder)

		cancel()
		_, err = lead.result()
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, next.waits())
		require.Len(t, w.queue("a"), 1)
		require.NoError(t, other.Unlock(theirs))
		section := next.section()
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassASilentConnectionOfTheLeadDoesNotKeepTheOthersOut(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = time.Second
		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		theirs := enter(t, t.Context(), other)
		m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute }, relock.WithTTL(ttl), relock.WithLocalPass(0, 0))
		w.warm(m)
		l := m.NewLock("a")
		lead := begin(t, t.Context(), l.Lock)
		behind := begin(t, t.Context(), tryFor(l, 30*time.Second))
		stuck := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		m.net.CutPubSub() // so it asks
		stuck.WaitHits(t, 1)
		require.NoError(t, other.Unlock(theirs))
		freed := time.Now()
		section := behind.section()
		require.LessOrEqual(t, time.Since(freed), 2*ttl)
		stuck.LetGo()
		require.True(t, lead.waits())
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Unlock(lead.section()))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassAShortWaiterBehindALongOneFindsALockThatIsFreedWithoutAMessage(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		enter(t, t.Context(), w.NewClient(relock.WithTTL(time.Hour)).NewLock("a"))
		m := w.NewClient(relock.WithLocalPass(0, 0))
		long, short := m.NewLock("a", relock.WithTTL(time.Hour)), m.NewLock("a", relock.WithTTL(time.Second))
		first := begin(t, t.Context(), long.Lock)
		second := begin(t, t.Context(), short.Lock)
		w.Del(base("a"))
		freed := time.Now()
		require.NoError(t, long.Unlock(first.section()))
		require.NoError(t, short.Unlock(second.section()))
		require.LessOrEqual(t, time.Since(freed), 31*time.Second)
	})
}

func TestWithLocalPassALockThatIsLostIsLostForOneAndTheOthersGoOn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, 0))
		section = handOn(t, l, section, waiting[0])
		w.Del(base("a"))
		took, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.LessOrEqual(t, took, 2*time.Millisecond, "when Redis is told who has it")
		next := waiting[1].section()
		require.Positive(t, l.Token(next))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.NoError(t, l.Unlock(next))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassNoWordOfWhoHasTheLockIsNoLoss(t *testing.T) {
	t.Run("Redis does not answer, and is told of the next pass", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m, l, section, waiting := passing(t, w, 3, relock.WithLocalPass(0, time.Hour))
			for _, next := range waiting[:2] {
				m.net.Partition()
				section = handOn(t, l, section, next) //nolint:fatcontext // they do not nest
				pass(5 * time.Second)
				m.net.Heal()
				require.NoError(t, section.Err())
			}
			section = handOn(t, l, section, waiting[2])
			pass(5 * time.Millisecond)
			state, err := l.State(t.Context())
			require.NoError(t, err)
			holder, _ := relock.HolderFrom(section)
			require.Equal(t, holder, state.Holder)
			require.NoError(t, l.Unlock(section))
			w.requireNothingLeft("a")
		})
	})
	t.Run("Redis hears of it when the lock is free", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			var r recorder
			m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0), relock.WithHooks(r.Hooks()))
			late := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
			section = handOn(t, l, section, waiting[0])
			pass(2 * time.Millisecond)
			require.Equal(t, 1, late.Hits())
			require.NoError(t, l.Unlock(section))
			late.LetGo()
			pass(time.Second)
			require.Empty(t, eventsOf[relock.Lost](&r))
			require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
			w.requireNothingLeft("a")
		})
	})
}

func TestWithLocalPassALockThatWasPassedIsRenewed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0), relock.WithTTL(3*time.Second))
		section = handOn(t, l, section, waiting[0])
		for range 100 {
			pass(time.Second)
			require.NoError(t, section.Err())
			require.GreaterOrEqual(t, w.lease("a"), 2*time.Second)
		}
		require.LessOrEqual(t, m.scripts(), 105)
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassALeaseThatIsHalfOverIsNotPassedOn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, time.Hour), relock.WithTTL(3*time.Second))
		m.net.Partition()
		pass(1600 * time.Millisecond) // no renewal has come through
		m.net.Heal()
		require.NoError(t, l.Unlock(section))
		next := waiting[0].section()
		require.Greater(t, l.Remaining(next), 2*time.Second, "it has a lease of its own")
		require.NoError(t, l.Unlock(next))
	})
}

func TestWithLocalPassALockOfWhichACommandMayRunLateIsNotPassedOn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, time.Hour))
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.Silence))
		ctx, cancel := context.WithTimeout(section, time.Second)
		defer cancel()
		_, err := l.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		pass(time.Second) // Redis was told the count once more
		m.net.Reset()
		require.NoError(t, l.Unlock(section))
		section = waiting[0].section()
		require.Equal(t, 2, m.scripts(), "Redis was given the lock, and was asked for it")
		m.net.Reset()
		section = handOn(t, l, section, waiting[1])
		require.Zero(t, m.scripts(), "of this hold nothing can be on its way")
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassALockOfWhichRedisWasNotToldAnExitIsNotPassedOn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, time.Hour))
		inner := enter(t, section, l)
		refuse := m.net.On(redistest.Named("EVALSHA"), redistest.Answer("-MISCONF no snapshots"))
		require.ErrorContains(t, l.Unlock(inner), "MISCONF")
		settle() // Redis was told once more, and will be again
		require.Equal(t, 2, refuse.Hits())
		refuse.Remove()
		require.NoError(t, l.Unlock(section))
		section = waiting[0].section()
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Count)
		m.net.Reset()
		section = handOn(t, l, section, waiting[1])
		require.Zero(t, m.scripts(), "of this hold Redis knows the count")
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassNestedEntriesOfASectionThatWasPassedTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, 0))
		for range 2 {
			inner := enter(t, section, l)
			state, err := l.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, 2, state.Count)
			require.NoError(t, l.Unlock(inner))
			require.Equal(t, 1, l.Count(section))
			section, waiting = handOn(t, l, section, waiting[0]), waiting[1:] //nolint:fatcontext // they do not nest
			require.Equal(t, 1, l.Count(section))
			state, err = l.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, state.Count)
		}
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassAnUnlockedFrameStaysUnlockedWhoeverHasTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0))
		next := handOn(t, l, section, waiting[0])
		require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		require.Zero(t, l.Token(section))
		require.False(t, l.Held(section))
		require.True(t, l.Held(next))
		// A call under the context of a section that is over comes as its holder, and stands in the line like any other.
		again := begin(t, context.WithoutCancel(section), l.Lock)
		require.True(t, again.waits())
		section = handOn(t, l, next, again)
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassAGrantThatIsHeardOfTwiceDoesNotGiveTheLockAway(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewLock("a")
		theirs := enter(t, t.Context(), other)
		l := w.NewClient(relock.WithLocalPass(0, 0)).NewLock("a")
		var line []*attempt
		for range 3 {
			line = append(line, begin(t, t.Context(), l.Lock))
		}
		require.NoError(t, other.Unlock(theirs))
		require.NoError(t, l.Unlock(line[0].section())) // it has waited in Redis, so its client hears the channel for a while
		section := line[1].section()
		fields, err := w.HKeys(base("a"))
		require.NoError(t, err)
		require.Len(t, fields, 1)
		next := handOn(t, l, section, line[2])
		// The message of a grant that its waiter had learnt of by asking comes late, when the lock has been passed on.
		hold, client := fields[0], fields[0][:36]
		heard := w.Publish(base("a")+":"+client, hold+"|"+strconv.FormatInt(l.Token(next)-1, 10))
		require.Equal(t, 1, heard)
		pass(time.Second)
		require.NoError(t, next.Err())
		require.True(t, l.Held(next))
		fields, err = w.HKeys(base("a"))
		require.NoError(t, err)
		require.Contains(t, fields, hold)
		require.NoError(t, l.Unlock(next))
		w.requireNothingLeft("a")
	})
}

// endedBy is a context that is done, and does something before it says so.
type endedBy struct {
	context.Context

	before func()
}

func (c *endedBy) Err() error {
	if before := c.before; before != nil && c.Context.Err() != nil {
		c.before = nil
		before()
	}
	return c.Context.Err()
}

// endedInLine lets two calls stand in the line and ends the first, of which before happens just before it finds out.
func endedInLine(t *testing.T, l *relock.Lock, before func()) (one, two *attempt) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ending := &endedBy{Context: ctx}
	one, two = begin(t, ending, l.Lock), begin(t, t.Context(), l.Lock)
	ending.before = before
	cancel()
	return one, two
}

func TestWithLocalPassACallThatEndsJustWhenItIsCalledHasTheLockOrLeads(t *testing.T) {
	t.Run("it is passed the lock", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			var r recorder
			_, l, section, _ := passing(t, w, 0, relock.WithLocalPass(0, 0), relock.WithHooks(r.Hooks()))
			one, two := endedInLine(t, l, func() { require.NoError(t, l.Unlock(section)) })
			entered := one.section()
			require.ErrorIs(t, context.Cause(entered), context.Canceled)
			settle()
			finished := eventsOf[relock.AcquireFinished](&r)
			require.Equal(t, relock.WakePass, finished[len(finished)-1].Wake)
			require.True(t, two.waits())
			require.NoError(t, l.Unlock(entered))
			require.NoError(t, l.Unlock(two.section()))
			w.requireNothingLeft("a")
		})
	})
	t.Run("what it is passed is renewed before it finds out", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m, l, section, _ := passing(t, w, 0, relock.WithLocalPass(0, time.Hour))
			late := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
			pass(relock.DefaultTTL / 3)
			require.Equal(t, 1, late.Hits(), "a renewal is on its way")
			one, two := endedInLine(t, l, func() {
				require.NoError(t, l.Unlock(section))
				late.LetGo()
				time.Sleep(time.Nanosecond) //nolint:forbidigo // fake time
			})
			entered := one.section()
			require.Equal(t, relock.DefaultTTL-margin(relock.DefaultTTL)-time.Nanosecond, l.Remaining(entered))
			require.True(t, two.waits())
			require.NoError(t, l.Unlock(entered))
			require.NoError(t, l.Unlock(two.section()))
			w.requireNothingLeft("a")
		})
	})
	t.Run("what it is passed is over when it finds out", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m, l, section, _ := passing(t, w, 0, relock.WithLocalPass(0, 0))
			one, two := endedInLine(t, l, func() {
				require.NoError(t, l.Unlock(section))
				m.net.Partition()
				time.Sleep(relock.DefaultTTL - time.Millisecond) //nolint:forbidigo // fake time
				m.net.Heal()
			})
			_, err := one.result()
			require.ErrorIs(t, err, context.Canceled)
			begun := time.Now()
			section = two.section()
			require.Zero(t, time.Since(begun), "what nobody has any more is given back, and not waited for")
			require.NoError(t, l.Unlock(section))
			w.requireNothingLeft("a")
		})
	})
	t.Run("it leads", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			var r recorder
			l := w.NewClient(relock.WithLocalPass(0, 0), relock.WithHooks(r.Hooks())).NewLock("a")
			section := enter(t, t.Context(), l)
			one, two := endedInLine(t, l, func() { require.NoError(t, l.Unlock(section)) })
			_, err := one.result()
			require.ErrorIs(t, err, context.Canceled)
			for _, finished := range eventsOf[relock.AcquireFinished](&r) {
				if finished.Err != nil {
					require.Equal(t, relock.WakeNone, finished.Wake, "what it was told gave it no lock")
				}
			}
			require.NoError(t, l.Unlock(two.section()))
			w.requireNothingLeft("a")
		})
	})
}

func TestWithLocalPassOnlyAmongCallsOfOneTTL(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0))
		short := m.NewLock("a", relock.WithTTL(3*time.Second))
		third := begin(t, t.Context(), short.Lock)
		section = handOn(t, l, section, waiting[0])
		require.NoError(t, l.Unlock(section))
		section = third.section()
		require.Zero(t, third.ended.Sub(third.begun), "it did not have to wait for the end of a lease")
		require.LessOrEqual(t, short.Remaining(section), 3*time.Second)
		require.LessOrEqual(t, w.lease("a"), 3*time.Second)
		require.NoError(t, short.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassMaxHoldIsThatOfEachHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl, most = 3 * time.Second, 6 * time.Second
		_, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, time.Hour), relock.WithTTL(ttl), relock.WithMaxHold(most))
		pass(2 * time.Second)
		section = handOn(t, l, section, waiting[0])
		took, cause := ends(t, section)
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, relock.LossMaxHold, lost.Reason)
		require.InDelta(t, most, took, float64(100*time.Millisecond))
	})
}

func TestWithLocalPassCloseEndsTheLine(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 3, relock.WithLocalPass(0, 0))
		section = handOn(t, l, section, waiting[0])
		require.NoError(t, m.Close())
		require.ErrorIs(t, context.Cause(section), relock.ErrClosed)
		for _, a := range waiting[1:] {
			_, err := a.result()
			require.ErrorIs(t, err, relock.ErrClosed)
		}
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassHooksTellOfEachHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		_, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0), relock.WithHooks(r.Hooks()))
		token := l.Token(section)
		holder, _ := relock.HolderFrom(section)
		section = handOn(t, l, section, waiting[0])
		settle()
		released := eventsOf[relock.Released](&r)
		last := released[len(released)-1]
		require.Equal(t, relock.Released{Name: "a", Holder: holder, Token: token, TTL: relock.DefaultTTL, MaxDepth: 1}, last)
		finished := eventsOf[relock.AcquireFinished](&r)
		entered := finished[len(finished)-1]
		require.Equal(t, relock.WakePass, entered.Wake)
		require.Equal(t, relock.WakePass, finished[len(finished)-2].Wake, "to the one before it was left to ask Redis, and the lock was free")
		require.True(t, entered.Waited)
		require.Equal(t, token+1, entered.Token)
		require.NoError(t, l.Unlock(section))
	})
}

func TestWithLocalPassManyProcessesManyGoroutinesAndABadNetwork(t *testing.T) {
	w := onShared(t)
	var g guarded
	const clients, goroutines = 3, 8
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for range clients {
		p := w.peer(relock.WithLocalPass(20, 5*time.Millisecond), relock.WithTTL(500*time.Millisecond))
		l := p.NewLock("hot")
		wg.Go(func() { // connections break
			for time.Now().Before(end) {
				p.faults.Cut()
				sleepUntil(time.Now().Add(30 * time.Millisecond))
			}
		})
		for i := range goroutines {
			wg.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if (i+n)%3 == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(n%20)*time.Millisecond)
					}
					section, err := l.Lock(ctx)
					if err == nil {
						if g.enter(section, l) && n%4 == 0 {
							if inner, err := l.Lock(section); err == nil {
								_ = l.Unlock(inner)
							}
						}
						g.leave(section)
						_ = l.Unlock(section)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	g.require(t)
	require.Greater(t, g.entries, 100)
	t.Log(g.entries, "sections")
	w.awaitFree("hot", soon)
	redistest.Eventually(t, soon, func() bool { return w.waiters("hot") == 0 }, "nobody waits")
}

func TestWithLocalPassWhoGivesUpInTheLineIsToldWhatItsLeadWasTold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewLock("a")
		theirs := enter(t, t.Context(), other)
		holder, _ := relock.HolderFrom(theirs)
		m := w.NewClient(relock.WithLocalPass(0, 0))
		w.warm(m)
		l := m.NewLock("a")
		m.net.Delay(time.Millisecond) // so that all are in the line before Redis has said anything
		var waiting []*attempt
		for range 5 {
			waiting = append(waiting, begin(t, t.Context(), tryFor(l, time.Second)))
		}
		for _, a := range waiting {
			_, err := a.result()
			var refusal *relock.LockedError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, holder, refusal.Holder)
		}
		m.net.Delay(0)
		pass(time.Second) // what was in the queue is taken back
		require.NoError(t, other.Unlock(theirs))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassWhoGivesUpBeforeANewLeadHasAnAnswerIsToldWhoHadTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithLocalPass(0, 0))
		w.warm(m)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		holder, _ := relock.HolderFrom(section)
		lead := begin(t, t.Context(), l.Lock)
		behind := begin(t, t.Context(), tryFor(l, time.Second))
		m.net.Delay(600 * time.Millisecond) // so the new lead has its answer after 1.2 s
		require.NoError(t, l.Unlock(section))
		_, err := behind.result()
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, holder, refusal.Holder)
		require.True(t, lead.waits())
		require.NoError(t, l.Unlock(lead.section()))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassWhoGivesUpInTheLineIsToldTheNameOfItsOwnLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithLocalPass(0, 0))
		l, other := m.NewLock("a"), m.NewLock("{a}")
		refused := func() string {
			t.Helper()
			_, err := other.TryLockFor(t.Context(), time.Second)
			var refusal *relock.LockedError
			require.ErrorAs(t, err, &refusal)
			return refusal.Name
		}
		section := enter(t, t.Context(), l)
		require.Equal(t, "{a}", refused(), "by who has it in this process")
		require.NoError(t, l.Unlock(section))
		theirs := w.NewClient().NewLock("a")
		section = enter(t, t.Context(), theirs)
		lead := begin(t, t.Context(), l.Lock)
		settle()
		require.Equal(t, "{a}", refused(), "by what the lead was told")
		require.NoError(t, theirs.Unlock(section))
		require.NoError(t, l.Unlock(lead.section()))
	})
}

func TestWithLocalPassWhoGivesUpBeforeANewLeadHasAnAnswerIsNotToldOfAHolderLongGone(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewLock("a")
		theirs := enter(t, t.Context(), other)
		m := w.NewClient(relock.WithLocalPass(0, 0))
		w.warm(m)
		l := m.NewLock("a")
		first := begin(t, t.Context(), l.Lock) // is told of them
		require.NoError(t, other.Unlock(theirs))
		section := first.section()
		holder, _ := relock.HolderFrom(section)
		lead := begin(t, t.Context(), l.Lock)
		behind := begin(t, t.Context(), tryFor(l, time.Second))
		m.net.Delay(600 * time.Millisecond) // so the new lead has its answer after 1.2 s
		require.NoError(t, l.Unlock(section))
		late := begin(t, t.Context(), tryFor(l, 200*time.Millisecond)) // when nobody is known to have the lock
		_, err := behind.result()
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, holder, refusal.Holder)
		_, err = late.result()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, relock.ErrLocked)
		require.True(t, lead.waits())
		require.NoError(t, l.Unlock(lead.section()))
		w.requireNothingLeft("a")
	})
}

func TestWithLocalPassTheWakeIsThatOfTheLastWord(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		_, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(1, time.Millisecond), relock.WithHooks(r.Hooks()))
		crashed := w.NewClient(relock.WithTTL(10 * time.Second))
		begin(t, t.Context(), crashed.NewLock("a").Lock)
		pass(2 * time.Millisecond)
		require.NoError(t, l.Unlock(section)) // the limit is over: the other has it, and the next of the line leads, and queues
		require.True(t, waiting[0].waits())
		require.NoError(t, crashed.Close())
		section = waiting[0].section()
		settle()
		finished := eventsOf[relock.AcquireFinished](&r)
		require.Equal(t, relock.WakeRecheck, finished[len(finished)-1].Wake)
		require.NoError(t, l.Unlock(section))
	})
}

func TestWithLocalPassALockIsNotPassedToOneThatWantsMoreReplicas(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, _ := passing(t, w, 0, relock.WithLocalPass(0, 0))
		sure := begin(t, t.Context(), m.NewLock("a", relock.WithReplicaAcks(1, 20*time.Millisecond)).Lock)
		require.True(t, sure.waits())
		require.NoError(t, l.Unlock(section))
		_, err := sure.result()
		require.Error(t, err, "it asks Redis, and there is no replica")
		w.requireNothingLeft("a")
	})
}

func TestAnOptionMayBeUsedByManyAtOnce(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	option := relock.WithLocalPass(0, 0)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := p.NewLock("a", option).Err(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestWithLocalPassWrongBoundsAreRefused(t *testing.T) {
	w := onShared(t)
	for _, option := range []relock.Option{
		relock.WithLocalPass(-1, 0), relock.WithLocalPass(relock.MaxPasses+1, 0), relock.WithLocalPass(1, -time.Millisecond),
		relock.WithLocalPass(1, time.Millisecond+1), relock.WithLocalPass(1, time.Microsecond),
		relock.WithLocalPass(1, relock.MaxTTL+time.Millisecond),
	} {
		_, err := relock.New(w.plain, option)
		require.ErrorIs(t, err, relock.ErrInvalid)
		t.Log(err)
	}
	_, err := relock.New(w.plain, relock.WithFixedLease(time.Second), relock.WithLocalPass(0, 0))
	require.ErrorIs(t, err, relock.ErrInvalid)
	_, err = relock.New(w.plain, relock.WithRedissonLayout(), relock.WithLocalPass(0, 0))
	require.ErrorIs(t, err, relock.ErrInvalid)
	c, err := relock.New(w.plain, relock.WithLocalPass(relock.MaxPasses, time.Hour))
	require.NoError(t, err)
	require.NoError(t, c.NewLock("a", relock.WithFixedLease(time.Second)).Err(), "a fixed lease takes it back")
	require.NoError(t, c.Close())
}

// TestOnceMoreWithLocalPass runs tests once more with clients that pass locks on. It holds those in which calls of one client
// meet at a lock while something goes wrong. Missing are those about the queue, in which one of a line stands for all.
func TestOnceMoreWithLocalPass(t *testing.T) {
	onceMore(t, &localPass, []namedTest{
		{"TestALostReplyOfLockEntersOnce", TestALostReplyOfLockEntersOnce},
		{"TestManyLostRepliesOfLockEnterOnce", TestManyLostRepliesOfLockEnterOnce},
		{"TestALostReplyOfLockOnABusyLockQueuesOnce", TestALostReplyOfLockOnABusyLockQueuesOnce},
		{"TestALostReplyOfANestedLockCountsOnce", TestALostReplyOfANestedLockCountsOnce},
		{"TestALostReplyOfAnInnerUnlockLeavesTheOuterSectionItsHold", TestALostReplyOfAnInnerUnlockLeavesTheOuterSectionItsHold},
		{"TestALostReplyOfTheLastUnlockIsNoLoss", TestALostReplyOfTheLastUnlockIsNoLoss},
		{"TestALostReplyOfTheLastUnlockIsNoLossWhenTheNextIsInAlready", TestALostReplyOfTheLastUnlockIsNoLossWhenTheNextIsInAlready},
		{"TestALostReplyOfARenewalIsNoLoss", TestALostReplyOfARenewalIsNoLoss},
		{"TestALateLockTouchesNothingOfTheSameHolderThatHasLockedAgain", TestALateLockTouchesNothingOfTheSameHolderThatHasLockedAgain},
		{"TestALateLockThatNobodyWantsIsTakenBackLongBeforeItsLeaseEnds", TestALateLockThatNobodyWantsIsTakenBackLongBeforeItsLeaseEnds},
		{"TestALateNestedLockDoesNotRaiseTheCount", TestALateNestedLockDoesNotRaiseTheCount},
		{"TestALateInnerUnlockDoesNotLowerTheCount", TestALateInnerUnlockDoesNotLowerTheCount},
		{"TestALateLastUnlockDoesNotFreeWhatIsHeldByThen", TestALateLastUnlockDoesNotFreeWhatIsHeldByThen},
		{"TestUnlocksThatAllHangFreeTheLockSoonAndTouchNothingWhenTheyRun", TestUnlocksThatAllHangFreeTheLockSoonAndTouchNothingWhenTheyRun},
		{"TestALateRenewalDoesNotExtendWhatIsHeldByThen", TestALateRenewalDoesNotExtendWhatIsHeldByThen},
		{"TestAConnectionMayBreakAtAnyCommandOfTheStory", TestAConnectionMayBreakAtAnyCommandOfTheStory},
		{"TestACommandThatRunsTwiceOrThreeTimesDoesWhatItDoesOnce", TestACommandThatRunsTwiceOrThreeTimesDoesWhatItDoesOnce},
		{"TestContextsCancelledAtRandomInstantsReturnPromptlyAndLeaveNothing", TestContextsCancelledAtRandomInstantsReturnPromptlyAndLeaveNothing},
		{"TestAClientMayBeClosedAtAnyInstant", TestAClientMayBeClosedAtAnyInstant},
		{"TestCloseEndsWaitsAndSectionsOnAStoppedServerToo", TestCloseEndsWaitsAndSectionsOnAStoppedServerToo},
		{"TestAHolderThatIsStoppedPastItsLeaseIsToldWhenItGoesOn", TestAHolderThatIsStoppedPastItsLeaseIsToldWhenItGoesOn},
		{"TestAHolderThatIsPartitionedIsToldBeforeAnotherIsIn", TestAHolderThatIsPartitionedIsToldBeforeAnotherIsIn},
		{"TestThirtyTwoWorkersExcludeEachOtherWhileTheirConnectionsAreKilled", TestThirtyTwoWorkersExcludeEachOtherWhileTheirConnectionsAreKilled},
		{"TestOneHolderMayBeSharedByManyGoroutinesThatComeAndGoInAnyOrder", TestOneHolderMayBeSharedByManyGoroutinesThatComeAndGoInAnyOrder},
		{"TestManyContendersAreNeverInsideTogether", TestManyContendersAreNeverInsideTogether},
		{"TestManyGoroutinesOfOneSectionReenterAndLeaveInAnyOrder", TestManyGoroutinesOfOneSectionReenterAndLeaveInAnyOrder},
		{"TestTryLockOfASiblingWhileAnotherCallOfItsHolderQueuesIsErrLockedAtOnce", TestTryLockOfASiblingWhileAnotherCallOfItsHolderQueuesIsErrLockedAtOnce},
		{"TestANestedCallInALostSectionIsErrLockLost", TestANestedCallInALostSectionIsErrLockLost},
		{"TestASiblingThatComesWhileTheLastExitIsOnTheWireTakesANewHold", TestASiblingThatComesWhileTheLastExitIsOnTheWireTakesANewHold},
		{"TestDoForWaitsNoLongerThanItMay", TestDoForWaitsNoLongerThanItMay},
		{"TestARefusalSaysWhoHasTheLockAndForHowLong", TestARefusalSaysWhoHasTheLockAndForHowLong},
		{"TestAWaiterGetsInAfterTheLeaseOfAHolderThatCrashed", TestAWaiterGetsInAfterTheLeaseOfAHolderThatCrashed},
		{"TestAWaitThatEndsLeavesNothingInRedis", TestAWaitThatEndsLeavesNothingInRedis},
		{"TestCancellingAWaitReturnsAtOnceAlsoWhenRedisIsSilent", TestCancellingAWaitReturnsAtOnceAlsoWhenRedisIsSilent},
		{"TestAReplyThatTakesLongerThanTheLeaseIsNoLock", TestAReplyThatTakesLongerThanTheLeaseIsNoLock},
		{"TestWhateverTheNetworkDoesTwoAreNeverInsideAndNothingIsLeft", TestWhateverTheNetworkDoesTwoAreNeverInsideAndNothingIsLeft},
		{"TestCloseEndsWaitsAndSectionsAndUnlockStillWorks", TestCloseEndsWaitsAndSectionsAndUnlockStillWorks},
		{"TestCloseDuringCallsOfEveryKindLeavesNothingBehind", TestCloseDuringCallsOfEveryKindLeavesNothingBehind},
		{"TestASectionLastsAHundredTTLs", TestASectionLastsAHundredTTLs},
		{"TestALeakedHoldIsReportedAndItsLeaseRunsOut", TestALeakedHoldIsReportedAndItsLeaseRunsOut},
		{"TestWithMaxHoldEndsTheHoldThen", TestWithMaxHoldEndsTheHoldThen},
		{"TestUnlockWithoutAnAnswerReturnsInTimeAndTheLockIsTakenBackInTheBackground", TestUnlockWithoutAnAnswerReturnsInTimeAndTheLockIsTakenBackInTheBackground},
		{"TestTheNextHolderNeverEntersBeforeThePreviousSectionHasEnded", TestTheNextHolderNeverEntersBeforeThePreviousSectionHasEnded},
		{"TestALossIsToldAtTheNextRenewal", TestALossIsToldAtTheNextRenewal},
		{"TestReplicaAcksConfirmNewHoldsOnly", TestReplicaAcksConfirmNewHoldsOnly},
	})
}
