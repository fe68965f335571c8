// Package redisson_test has Go services and Java services share locks: relock here, the real Redisson in a process
// beside it, on real servers.
package redisson_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestGoAndJavaShareLocksOnOneServer(t *testing.T) {
	built(t)
	redistest.NoGoroutineLeft(t)
	server := redistest.Start(t)
	crossTests(newWorld(t, servers{Kind: "single", Addrs: []string{server.Addr()}}))
}

func TestGoAndJavaShareLocksWithSentinel(t *testing.T) {
	built(t)
	redistest.NoGoroutineLeft(t)
	s := redistest.StartSentinel(t)
	crossTests(newWorld(t, servers{Kind: "sentinel", Addrs: s.Addrs(), Master: s.MasterName()}))
}

func TestGoAndJavaShareLocksOnACluster(t *testing.T) {
	built(t)
	redistest.NoGoroutineLeft(t)
	cluster := redistest.StartCluster(t)
	for _, kind := range []string{"cluster-sharded", "cluster-plain"} {
		t.Run(kind, func(t *testing.T) {
			crossTests(newWorld(t, servers{Kind: kind, Addrs: cluster.Addrs()}))
		})
	}
}

// crossTests is what has to hold wherever Redis is.
func crossTests(w *world) {
	// One after another: they see from what Redis counts that a waiter sleeps.
	w.run("JavaEntersAsSoonAsGoUnlocks", javaEntersAsSoonAsGoUnlocks)
	w.run("GoEntersAsSoonAsJavaUnlocks", goEntersAsSoonAsJavaUnlocks)
	w.run("ANestedLockIsFreeWhenItsLastLevelIsLeft", aNestedLockIsFreeWhenItsLastLevelIsLeft)
	w.run("EachSideSeesTheOthersHoldCountAndLease", eachSideSeesTheOthersHoldCountAndLease)
	w.run("EachSideIsRefusedWhatTheOtherHolds", eachSideIsRefusedWhatTheOtherHolds)
	w.run("AForcedUnlockInGoEndsTheHoldInJava", aForcedUnlockInGoEndsTheHoldInJava)
	w.run("FencingTokensGrowAcrossBothSides", fencingTokensGrowAcrossBothSides)
	w.run("ALockWithAHashTagOfItsOwnIsShared", aLockWithAHashTagOfItsOwnIsShared)
	w.run("OneHolderInGoHasTwoLocksAgainstJava", oneHolderInGoHasTwoLocksAgainstJava)
	w.run("NoIncrementOfAGuardedCounterIsLost", noIncrementOfAGuardedCounterIsLost)
	// These wait for leases, so they do it together. The group ends when all have.
	w.run("Leases", func(w *world) {
		for name, test := range map[string]func(*world){
			"JavaEntersAfterTheLeaseOfAKilledGoProcess": javaEntersAfterTheLeaseOfAKilledGoProcess,
			"GoEntersAfterTheLeaseOfAKilledJavaProcess": goEntersAfterTheLeaseOfAKilledJavaProcess,
			"AKilledJavaWaiterIsInNobodysWay":           aKilledJavaWaiterIsInNobodysWay,
			"AKilledGoWaiterIsInNobodysWay":             aKilledGoWaiterIsInNobodysWay,
			"AForcedUnlockInJavaEndsTheSectionInGo":     aForcedUnlockInJavaEndsTheSectionInGo,
			"BothWatchdogsKeepTheirLockPastItsLease":    bothWatchdogsKeepTheirLockPastItsLease,
			"AFixedLeaseOfJavaEndsAndGoEnters":          aFixedLeaseOfJavaEndsAndGoEnters,
			"AFixedLeaseOfGoEndsAndJavaEnters":          aFixedLeaseOfGoEndsAndJavaEnters,
			"AWaiterThatGivesUpIsInNobodysWay":          aWaiterThatGivesUpIsInNobodysWay,
		} {
			w.run(name, func(w *world) {
				w.t.Parallel()
				test(w)
			})
		}
	})
	w.run("NothingIsLeftInRedis", func(w *world) { w.tidy() })
}

// rounds is how many hand-overs are made each way: a message that is lost now and then shows.
const rounds = 20

func javaEntersAsSoonAsGoUnlocks(w *world) {
	name := w.name()
	lock := w.peer().NewLock(name)
	java := w.java.thread(w.t, "a")
	java.do("lock", name, -1) // so that Redis has the scripts
	java.do("unlock", name)
	var took handovers
	for range rounds {
		section := w.enter(w.t.Context(), lock)
		var entry *answer
		w.asleep(name, func() { entry = java.ask("lock", name, -1) })
		plain, sharded := w.subscribers(name)
		require.EqualValues(w.t, 1, plain+sharded)
		require.Equal(w.t, w.Kind == "cluster-sharded", sharded == 1, "Java listens as it was told to")
		entry.pending("Java is in while Go holds the lock")
		start := time.Now()
		w.leave(section, lock)
		entry.in(soon)
		took = append(took, time.Since(start))
		java.do("unlock", name)
	}
	w.t.Logf("Go to Java, %s: %v", w.Kind, took)
	w.free(name)
}

func goEntersAsSoonAsJavaUnlocks(w *world) {
	name := w.name()
	first := w.peer().NewLock(name)
	java := w.java.thread(w.t, "a")
	w.leave(w.enter(w.t.Context(), first), first) // so that Redis has the scripts
	var took handovers
	for range rounds {
		// A subscription lingers for a while, for the next wait. A new client makes one of its own.
		client := w.peer()
		lock := client.NewLock(name)
		java.do("lock", name, -1)
		var entry *waiter
		w.asleep(name, func() { entry = w.start(lock) })
		entry.pending("Go is in while Java holds the lock")
		start := time.Now()
		java.do("unlock", name)
		section := entry.in(soon)
		took = append(took, entry.at.Sub(start))
		w.leave(section, lock)
		require.NoError(w.t, client.Close())
	}
	w.t.Logf("Java to Go, %s: %v", w.Kind, took)
	w.free(name)
}

func aNestedLockIsFreeWhenItsLastLevelIsLeft(w *world) {
	name := w.name()
	lock := w.peer().NewLock(name)
	java := w.java.thread(w.t, "a")

	outer := w.enter(w.t.Context(), lock)
	inner := w.enter(outer, lock)
	entry := java.ask("lock", name, -1)
	w.listening(name, 1)
	w.leave(inner, lock)
	require.Equal(w.t, map[string]string{w.holder(name, outer): "1"}, w.fields(name))
	entry.pending("Java is in while Go has the outer level")
	w.leave(outer, lock)
	entry.in(soon)

	java.do("lock", name, -1) // the inner one of Java
	back := w.start(lock)
	w.listening(name, 1)
	java.do("unlock", name)
	require.Equal(w.t, map[string]string{java.holder(): "1"}, w.fields(name))
	back.pending("Go is in while Java has the outer level")
	java.do("unlock", name)
	w.leave(back.in(soon), lock)
	w.free(name)
}

func eachSideSeesTheOthersHoldCountAndLease(w *world) {
	name := w.name()
	lock := w.peer(relock.WithTTL(20 * time.Second)).NewLock(name)
	java, other := w.java.thread(w.t, "a"), w.java.thread(w.t, "b")

	section := w.enter(w.t.Context(), lock)
	w.between(java.do("remainTimeToLive", name), 20*time.Second-soon, 20*time.Second)
	second := w.enter(section, lock)
	third := w.enter(second, lock)
	require.Equal(w.t, w.holder(name, section)+"=3", java.do("fields", name))
	require.Equal(w.t, "true", java.do("isLocked", name))
	require.Equal(w.t, "0", java.do("holdCount", name), "no thread of Java holds it")
	w.between(java.do("remainTimeToLive", name), 20*time.Second-soon, 20*time.Second)
	for _, level := range []context.Context{third, second, section} {
		w.leave(level, lock)
	}
	require.Equal(w.t, "false", java.do("isLocked", name))
	require.Equal(w.t, "-2", java.do("remainTimeToLive", name))

	java.do("lock", name, 25000)
	java.do("lock", name, 25000)
	require.Equal(w.t, "2", java.do("holdCount", name))
	state, err := lock.State(w.t.Context())
	require.NoError(w.t, err)
	require.Equal(w.t, java.holder(), state.Holder.String())
	require.Equal(w.t, 2, state.Count)
	require.Greater(w.t, state.TTL, 25*time.Second-soon)
	require.LessOrEqual(w.t, state.TTL, 25*time.Second)
	require.Equal(w.t, "0", other.do("holdCount", name))
	java.do("unlock", name)
	java.do("unlock", name)
	state, err = lock.State(w.t.Context())
	require.NoError(w.t, err)
	require.False(w.t, state.Locked())
}

func eachSideIsRefusedWhatTheOtherHolds(w *world) {
	name := w.name()
	lock := w.peer().NewLock(name)
	java := w.java.thread(w.t, "a")

	section := w.enter(w.t.Context(), lock)
	require.Equal(w.t, "false", java.do("tryLock", name, 0, -1))
	require.Equal(w.t, "false", java.do("tryLock", name, 100, -1))
	require.Contains(w.t, java.refused("unlock", name), "IllegalMonitorStateException")
	require.True(w.t, lock.Held(section))
	w.leave(section, lock)

	require.Equal(w.t, "true", java.do("tryLock", name, 0, -1))
	for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
		_, err := lock.TryLockFor(w.t.Context(), wait)
		var locked *relock.LockedError
		require.ErrorAs(w.t, err, &locked)
		require.Equal(w.t, java.holder(), locked.Holder.String())
		require.Greater(w.t, locked.TTL, long-soon)
		require.LessOrEqual(w.t, locked.TTL, long)
	}
	java.do("unlock", name)
	w.free(name)
}

func aForcedUnlockInJavaEndsTheSectionInGo(w *world) {
	name := w.name()
	// A renewal is due each third of the lease: it tells of the loss long before the lease would have ended.
	client := w.peer(relock.WithTTL(soon))
	lock := client.NewLock(name)
	java := w.java.thread(w.t, "a")

	section := w.enter(w.t.Context(), lock)
	next := w.start(w.peer().NewLock(name))
	w.listening(name, 1)
	require.Equal(w.t, "true", java.do("forceUnlock", name))
	var lost *relock.LostError
	require.ErrorAs(w.t, w.ended(section), &lost)
	require.ErrorIs(w.t, lost, relock.ErrLockLost)
	require.Equal(w.t, event.LossTaken, lost.Reason)
	require.ErrorIs(w.t, lock.Unlock(section), relock.ErrLockLost)
	w.leave(next.in(soon), next.lock)

	require.Equal(w.t, "false", java.do("forceUnlock", name), "there is nothing to unlock any more")
	w.free(name)
}

func aForcedUnlockInGoEndsTheHoldInJava(w *world) {
	name := w.name()
	lock := w.peer().NewLock(name)
	java, next := w.java.thread(w.t, "a"), w.java.thread(w.t, "b")

	java.do("lock", name, -1)
	entry := next.ask("lock", name, -1)
	w.listening(name, 1)
	require.NoError(w.t, lock.ForceUnlock(w.t.Context()))
	entry.in(soon)
	require.Equal(w.t, "0", java.do("holdCount", name))
	require.Contains(w.t, java.refused("unlock", name), "IllegalMonitorStateException")
	require.Equal(w.t, map[string]string{next.holder(): "1"}, w.fields(name))
	next.do("unlock", name)
	w.free(name)
}

func fencingTokensGrowAcrossBothSides(w *world) {
	name := w.name()
	lock := w.peer(relock.WithRedissonFencing()).NewLock(name)
	java, other := w.java.thread(w.t, "a"), w.java.thread(w.t, "b")
	var tokens []int64
	got := func(token int64, err error) {
		w.t.Helper()
		require.NoError(w.t, err)
		if len(tokens) > 0 {
			require.Greater(w.t, token, tokens[len(tokens)-1], "tokens so far: %v", tokens)
		}
		tokens = append(tokens, token)
	}
	parsed := func(answer string) (int64, error) { return strconv.ParseInt(answer, 10, 64) }
	for range 3 {
		section := w.enter(w.t.Context(), lock)
		got(lock.Token(section))
		require.Equal(w.t, "null", other.do("tryLockAndGetToken", name, 100, -1))
		w.leave(section, lock)
		got(parsed(java.do("lockAndGetToken", name, -1)))
		require.Equal(w.t, strconv.FormatInt(tokens[len(tokens)-1], 10), java.do("getToken", name))
		got(parsed(java.do("tryLockAndGetToken", name, 0, -1))) // re-entry there has a token of its own
		java.do("unlockFenced", name)
		java.do("unlockFenced", name)
		got(parsed(other.do("tryLockAndGetToken", name, 0, 20000)))
		// The hand-over to a waiter grows it, too.
		entry := w.start(lock)
		w.listening(name, 1)
		other.do("unlockFenced", name)
		section = entry.in(soon)
		got(lock.Token(section))
		back := java.ask("lockAndGetToken", name, -1)
		w.listening(name, 2) // Go's subscription lingers
		w.leave(section, lock)
		got(parsed(back.in(soon)))
		java.do("unlockFenced", name)
	}
	state, err := lock.State(w.t.Context())
	require.NoError(w.t, err)
	require.Equal(w.t, tokens[len(tokens)-1], state.Token)
	w.free(name)
}

func aLockWithAHashTagOfItsOwnIsShared(w *world) {
	name := "customers:{" + w.name() + "}:cart"
	lock := w.peer().NewLock(name)
	java := w.java.thread(w.t, "a")
	section := w.enter(w.t.Context(), lock)
	entry := java.ask("lock", name, -1)
	w.listening(name, 1)
	entry.pending("Java is in while Go holds the lock")
	w.leave(section, lock)
	entry.in(soon)
	back := w.start(lock)
	w.listening(name, 1)
	java.do("unlock", name)
	w.leave(back.in(soon), lock)
	w.free(name)
}

// oneHolderInGoHasTwoLocksAgainstJava is about a section within a section: the holder is one, the locks are two.
func oneHolderInGoHasTwoLocksAgainstJava(w *world) {
	client := w.peer()
	outer, inner := client.NewLock(w.name()), client.NewLock(w.name())
	a, b := w.java.thread(w.t, "a"), w.java.thread(w.t, "b")
	section := w.enter(w.t.Context(), outer)
	both := w.enter(section, inner)
	inA, inB := a.ask("lock", outer.Name(), -1), b.ask("lock", inner.Name(), -1)
	w.listening(outer.Name(), 1)
	w.listening(inner.Name(), 1)
	inB.pending("Java has the inner lock")
	w.leave(both, inner)
	inB.in(soon)
	inA.pending("Java has the outer lock")
	w.leave(section, outer)
	inA.in(soon)
	a.do("unlock", outer.Name())
	b.do("unlock", inner.Name())
	w.free(outer.Name())
	w.free(inner.Name())
}

func noIncrementOfAGuardedCounterIsLost(w *world) {
	const each, total = 250, 2000
	name := w.name()
	counter := "counter:" + name
	lock := w.peer().NewLock(name)
	start := time.Now()
	var java []*answer
	for i := range 4 {
		java = append(java, w.java.thread(w.t, fmt.Sprint("counter", i)).ask("increment", name, counter, each))
	}
	errs := make(chan error, 4)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range each {
				err := lock.Do(w.t.Context(), func(ctx context.Context) error {
					n, err := w.plain.Get(ctx, counter).Int()
					if err != nil && !errors.Is(err, redis.Nil) {
						return err
					}
					return w.plain.Set(ctx, counter, n+1, 0).Err()
				})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(w.t, err)
	}
	for _, a := range java {
		a.in(time.Minute)
	}
	n, err := w.plain.Get(w.t.Context(), counter).Int()
	require.NoError(w.t, err)
	require.Equal(w.t, total, n)
	w.t.Logf("%d sections of 4 Java threads and 4 goroutines, %s: %v", total, w.Kind, time.Since(start).Round(time.Millisecond))
	w.free(name)
}

// afterLease checks that somebody got in after the lease of a dead holder, of which left was left at the time since.
func (w *world) afterLease(since time.Time, left time.Duration) {
	w.t.Helper()
	require.Positive(w.t, left, "the lease ended before the test could look: this machine is too busy")
	// Redis rounds to milliseconds.
	require.GreaterOrEqual(w.t, time.Since(since), left-5*time.Millisecond, "the lease of the dead holder had not ended")
}

func javaEntersAfterTheLeaseOfAKilledGoProcess(w *world) {
	name := w.name()
	child := w.locker(name, short)
	child.Expect("in", soon)
	entry := w.java.thread(w.t, "a").ask("lock", name, -1)
	w.listening(name, 1)
	child.Kill()
	since := time.Now()
	left := w.ttl(name)
	entry.pending("Java is in before the lease has ended")
	entry.in(short + soon)
	w.afterLease(since, left)
	w.java.thread(w.t, "a").do("unlock", name)
	w.free(name)
}

func goEntersAfterTheLeaseOfAKilledJavaProcess(w *world) {
	name := w.name()
	lock := w.peer().NewLock(name)
	victim := startJava(w.t, w.servers, short)
	victim.thread(w.t, "a").do("lock", name, -1)
	entry := w.start(lock)
	w.listening(name, 1)
	victim.kill(w.t)
	since := time.Now()
	left := w.ttl(name)
	entry.pending("Go is in before the lease has ended")
	section := entry.in(short + soon)
	w.afterLease(since, left)
	w.leave(section, lock)
	w.free(name)
}

func aKilledJavaWaiterIsInNobodysWay(w *world) {
	name := w.name()
	holder, next := w.peer().NewLock(name), w.peer().NewLock(name)
	victim := startJava(w.t, w.servers, short)
	section := w.enter(w.t.Context(), holder)
	victim.thread(w.t, "a").ask("lock", name, -1)
	w.listening(name, 1)
	victim.kill(w.t)
	w.unheard(name)
	java := w.java.thread(w.t, "a")
	inJava, inGo := java.ask("lock", name, -1), w.start(next)
	w.listening(name, 2)
	w.leave(section, holder)
	w.both(name, java, inJava, inGo)
}

func aKilledGoWaiterIsInNobodysWay(w *world) {
	name := w.name()
	holder := w.java.thread(w.t, "holder")
	holder.do("lock", name, -1)
	child := w.locker(name, short)
	w.listening(name, 1)
	child.Kill()
	w.unheard(name)
	java := w.java.thread(w.t, "a")
	inJava, inGo := java.ask("lock", name, -1), w.start(w.peer().NewLock(name))
	w.listening(name, 2)
	holder.do("unlock", name)
	w.both(name, java, inJava, inGo)
}

// aWaiterThatGivesUpIsInNobodysWay is about a Java thread whose tryLock ends, and a Go call whose context does.
func aWaiterThatGivesUpIsInNobodysWay(w *world) {
	name := w.name()
	holder := w.java.thread(w.t, "holder")
	holder.do("lock", name, -1)
	java, gone := w.java.thread(w.t, "a"), w.java.thread(w.t, "gone")
	inJava, inGo := java.ask("lock", name, -1), w.start(w.peer().NewLock(name))
	w.listening(name, 2)
	require.Equal(w.t, "false", gone.do("tryLock", name, 200, -1))
	ctx, cancel := context.WithTimeout(w.t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := w.peer().NewLock(name).Lock(ctx)
	require.ErrorIs(w.t, err, context.DeadlineExceeded)
	holder.do("unlock", name)
	w.both(name, java, inJava, inGo)
}

// both waits until a Java thread and a Go call have had their turns, in either order.
func (w *world) both(name string, java *thread, inJava *answer, inGo *waiter) {
	w.t.Helper()
	select {
	case <-inGo.done:
		section := inGo.in(soon)
		inJava.pending("both are in")
		w.leave(section, inGo.lock)
		inJava.in(soon)
		java.do("unlock", name)
	case reply := <-inJava.reply:
		inJava.reply <- reply
		inJava.in(soon)
		inGo.pending("both are in")
		java.do("unlock", name)
		w.leave(inGo.in(soon), inGo.lock)
	case <-time.After(soon):
		require.Fail(w.t, "neither gets in")
	}
	w.free(name)
}

// bothWatchdogsKeepTheirLockPastItsLease has Java and Go hold one lock after another, each for longer than its lease, while
// the next one waits.
func bothWatchdogsKeepTheirLockPastItsLease(w *world) {
	name := w.name()
	lock := w.peer(relock.WithTTL(short)).NewLock(name)
	java := w.hasty.thread(w.t, "a")
	// outlive returns when more than a lease has passed, in all of which the holder has it.
	outlive := func(holder string, pending func(string)) {
		w.t.Helper()
		const section = short * 4 / 3
		start := time.Now()
		redistest.Eventually(w.t, section+soon, func() bool {
			over := time.Since(start) > section // before the look, so that there is one after the time
			require.Equal(w.t, map[string]string{holder: "1"}, w.fields(name))
			require.LessOrEqual(w.t, w.ttl(name), short)
			pending("it is in while the lock is held")
			return over
		}, "a section is longer than its lease")
	}
	java.do("lock", name, -1)
	inGo := w.start(lock)
	outlive(java.holder(), inGo.pending)
	java.do("unlock", name)
	section := inGo.in(soon)
	inJava := java.ask("lock", name, -1)
	outlive(w.holder(name, section), inJava.pending)
	require.NoError(w.t, section.Err())
	w.leave(section, lock)
	inJava.in(soon)
	inGo = w.start(lock)
	java.do("unlock", name)
	w.leave(inGo.in(soon), lock)
	w.free(name)
}

func aFixedLeaseOfJavaEndsAndGoEnters(w *world) {
	name := w.name()
	lock := w.peer().NewLock(name)
	java := w.java.thread(w.t, "a")
	java.do("lock", name, short.Milliseconds())
	since := time.Now()
	left := w.ttl(name)
	entry := w.start(lock)
	section := entry.in(short + soon)
	w.afterLease(since, left)
	require.Contains(w.t, java.refused("unlock", name), "IllegalMonitorStateException")
	require.NoError(w.t, section.Err())
	w.leave(section, lock)
	w.free(name)
}

func aFixedLeaseOfGoEndsAndJavaEnters(w *world) {
	name := w.name()
	lock := w.peer(relock.WithFixedLease(short)).NewLock(name)
	java := w.java.thread(w.t, "a")
	section := w.enter(w.t.Context(), lock)
	java.ask("lock", name, -1).in(short + soon)
	// The section ends a little before the lease does, and then Go gives the rest of the lease back.
	require.ErrorIs(w.t, context.Cause(section), relock.ErrLockLost, "the section has ended before anybody else is in")
	require.ErrorIs(w.t, lock.Unlock(section), relock.ErrLockLost)
	require.Equal(w.t, "1", java.do("holdCount", name))
	java.do("unlock", name)
	w.free(name)
}
