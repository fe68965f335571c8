package relock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// Redisson's layout, seen from both sides. What is the same as in our own is shown by redisson_suite_test.go; what the
// real Redisson does with it, by the tests in interop/redisson.

func inRedisson(options ...relock.Option) []relock.Option {
	return append([]relock.Option{relock.WithRedissonLayout()}, options...)
}

// java is a thread of a Redisson client as Redis sees it, with the effects of Redisson's scripts as in
// testdata/redisson/vectors.json.
type java struct {
	w      *arena
	holder string
	lease  time.Duration
}

func (w *arena) java() java {
	return java{w: w, holder: "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", lease: relock.DefaultTTL}
}

// tryLock is one attempt of RLock.tryLock.
func (j java) tryLock(name string) bool {
	j.w.t.Helper()
	const text = `
		if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
			redis.call('hincrby', KEYS[1], ARGV[2], 1)
			redis.call('pexpire', KEYS[1], ARGV[1])
			return 1
		end
		return 0`
	n, err := j.w.plain.Eval(context.Background(), text, []string{name}, j.lease.Milliseconds(), j.holder).Int()
	require.NoError(j.w.t, err)
	return n == 1
}

func (j java) lock(name string) {
	j.w.t.Helper()
	require.True(j.w.t, j.tryLock(name))
}

// lockSoon is lock where calls were cancelled: each of them may take it for a moment.
func (j java) lockSoon(name string) {
	j.w.t.Helper()
	redistest.Eventually(j.w.t, soon, func() bool { return j.tryLock(name) }, "%q is free", name)
}

// unlock is the last unlock.
func (j java) unlock(name string) {
	j.w.t.Helper()
	ctx := context.Background()
	pipe := j.w.plain.TxPipeline()
	there := pipe.HExists(ctx, name, j.holder)
	pipe.Del(ctx, name)
	pipe.Publish(ctx, redissonChannelOf(name), "0")
	_, err := pipe.Exec(ctx)
	require.NoError(j.w.t, err)
	require.True(j.w.t, there.Val(), "it had the lock")
}

func redissonChannelOf(name string) string {
	if strings.Contains(name, "{") {
		return "redisson_lock__channel:" + name
	}
	return "redisson_lock__channel:{" + name + "}"
}

// awaitEars waits until so many connections hear of a lock.
func (w *arena) awaitEars(name string, n int) {
	w.t.Helper()
	channel := redissonChannelOf(name)
	redistest.Eventually(w.t, soon, func() bool {
		got, err := w.plain.PubSubNumSub(context.Background(), channel).Result()
		return err == nil && got[channel] == int64(n)
	}, "%d hear of %q", n, name)
}

// awaitGone waits until nobody holds a lock. Soon, and not at once: a call that was cancelled may take it for a moment.
func (w *arena) awaitGone(name string) {
	w.t.Helper()
	redistest.Eventually(w.t, soon, func() bool {
		n, err := w.plain.Exists(context.Background(), name).Result()
		return err == nil && n == 0
	}, "%q is free", name)
}

// answers counts the calls of acquire that p has made from now on, and that Redis has answered.
func (w *arena) answers(p *peer) func() int {
	w.t.Helper()
	var n atomic.Int64
	p.faults.On(w.script("redisson/acquire"), redistest.After(func([]string, string) { n.Add(1) }))
	return func() int { return int(n.Load()) }
}

// awaitAsks waits until acquire was called n times. The second call of a waiter is the one since its channel is heard:
// from then on only a message or the end of the lease wakes it.
func (w *arena) awaitAsks(asks func() int, n int) {
	w.t.Helper()
	redistest.Eventually(w.t, soon, func() bool { return asks() >= n }, "%d calls of acquire", n)
}

func TestAJavaUnlockWakesAGoWaiter(t *testing.T) {
	for _, payload := range []string{"0", "1"} { // the second is that of a write lock's release: it means the same
		w := onShared(t)
		j, p := w.java(), w.peer(inRedisson()...)
		j.lock("a")
		asks := w.answers(p)
		waiter := w.start(t.Context(), p.NewLock("a"))
		w.awaitAsks(asks, 2)
		require.NoError(t, w.plain.Del(t.Context(), "a").Err())
		require.NoError(t, w.plain.Publish(t.Context(), redissonChannelOf("a"), payload).Err())
		w.leave(waiter.in(soon), waiter.lock, soon)
		require.Equal(t, 3, asks())
		require.Zero(t, w.plain.Exists(t.Context(), "a").Val())
	}
}

func TestAGoUnlockTellsJavaOnceAndOnlyWhenTheLockIsFree(t *testing.T) {
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	l := p.NewLock("a")
	ears := w.plain.Subscribe(t.Context(), redissonChannelOf("a"))
	_, err := ears.ReceiveTimeout(t.Context(), soon)
	require.NoError(t, err)
	outer := w.enter(t.Context(), l, soon)
	require.False(t, j.tryLock("a"))
	w.leave(w.enter(outer, l, soon), l, soon)
	require.False(t, j.tryLock("a"), "an inner exit frees nothing")
	require.NoError(t, ears.Ping(t.Context()))
	m, err := ears.ReceiveTimeout(t.Context(), soon)
	require.NoError(t, err)
	require.IsType(t, &redis.Pong{}, m, "and tells nobody")
	w.leave(outer, l, soon)
	m, err = ears.ReceiveTimeout(t.Context(), soon)
	require.NoError(t, err)
	require.Equal(t, "0", m.(*redis.Message).Payload)
	require.NoError(t, ears.Close())
	j.lock("a")
	j.unlock("a")
}

func TestWhatJavaSeesOfAGoHoldAndGoOfAJavaHold(t *testing.T) {
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	l := p.NewLock("a", relock.WithTTL(20*time.Second))
	section := w.enter(t.Context(), l, soon)
	inner := w.enter(section, l, soon)
	holder, _ := relock.HolderFrom(section)
	require.Equal(t, map[string]string{holder.String(): "2"}, w.plain.HGetAll(t.Context(), "a").Val(),
		"the field is the holder that Lock has made")
	lease := w.plain.PTTL(t.Context(), "a").Val()
	require.Greater(t, lease, 15*time.Second)
	require.LessOrEqual(t, lease, 20*time.Second)
	state, err := l.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, holder, state.Holder)
	require.Equal(t, 2, state.Count)
	require.Zero(t, state.Waiters)
	w.leave(inner, l, soon)
	w.leave(section, l, soon)
	require.Equal(t, []string{}, redistest.Keys(t, w.plain), "nothing is left, not even a token")

	j.lock("a")
	j.lock("a")
	state, err = l.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, j.holder, state.Holder.String())
	require.Equal(t, 2, state.Count)
	require.Greater(t, state.TTL, 25*time.Second)
	_, err = l.TryLock(t.Context())
	var locked *relock.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, j.holder, locked.Holder.String())
	require.Greater(t, locked.TTL, 25*time.Second)
	require.NoError(t, l.ForceUnlock(t.Context()))
	require.ErrorIs(t, l.ForceUnlock(t.Context()), relock.ErrNotHeld)
}

func TestAGoHolderIsToldThatJavaHasFreedItsLockByForce(t *testing.T) {
	w := onShared(t)
	p := w.peer(inRedisson(relock.WithTTL(600 * time.Millisecond))...)
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	require.NoError(t, w.plain.Del(t.Context(), "a").Err())
	j := w.java()
	j.lock("a")
	require.Equal(t, relock.LossTaken, w.lost(section, soon).Reason)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	j.unlock("a") // and nothing of Go's has touched it
}

func TestAPlainLockHasNoTokenAndAFencedOneSharesItsCounterWithJava(t *testing.T) {
	w := onShared(t)
	p := w.peer(inRedisson()...)
	plain := p.NewLock("plain")
	section := w.enter(t.Context(), plain, soon)
	require.Zero(t, plain.Token(section))
	require.True(t, plain.Held(section))
	w.leave(section, plain, soon)

	const counter = "redisson_lock_token:{a}"
	l := p.NewLock("a", relock.WithRedissonFencing())
	require.NoError(t, w.plain.Set(t.Context(), counter, 41, 0).Err()) // Java was here before
	outer := w.enter(t.Context(), l, soon)
	require.EqualValues(t, 42, l.Token(outer))
	inner := w.enter(outer, l, soon)
	require.EqualValues(t, 42, l.Token(inner), "one stay has one token")
	require.Equal(t, "43", w.plain.Get(t.Context(), counter).Val(), "but each success is counted, as Redisson does")
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	require.Equal(t, "43", w.plain.Get(t.Context(), counter).Val())
	section = w.enter(t.Context(), l, soon)
	require.EqualValues(t, 44, l.Token(section))
	w.leave(section, l, soon)
	require.Equal(t, []string{counter}, redistest.Keys(t, w.plain))
	require.Equal(t, time.Duration(-1), w.plain.TTL(t.Context(), counter).Val(), "it has no end")
}

func TestATokenThatCannotBeCountedUpIsAnErrorAndTheHoldStaysAsItIs(t *testing.T) {
	for _, junk := range []string{"1.5", "1e3", " 5", "012", "-1", "-2", "-5", "9007199254740992", "9223372036854775807"} {
		t.Run(junk, func(t *testing.T) {
			w := onShared(t)
			p := w.peer(inRedisson(relock.WithRedissonFencing())...)
			l := p.NewLock("a")
			set := func() {
				require.NoError(t, w.plain.Set(t.Context(), "redisson_lock_token:{a}", junk, 0).Err())
			}
			outer := w.enter(t.Context(), l, soon)
			set()
			_, err := l.Lock(outer)
			require.Error(t, err)
			require.Equal(t, 1, l.Count(outer))
			holder, _ := relock.HolderFrom(outer)
			require.Equal(t, "1", w.plain.HGet(t.Context(), "a", holder.String()).Val(), "Redis does not count what has failed")
			w.leave(outer, l, soon)
			set()
			_, err = l.Lock(t.Context())
			require.Error(t, err)
			w.awaitGone("a")
			require.NoError(t, w.plain.Del(t.Context(), "redisson_lock_token:{a}").Err())
		})
	}
}

func TestOfTheWaitersOfOneClientAMessageWakesOne(t *testing.T) {
	const waiters = 50
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	j.lock("a")
	asks := w.answers(p)
	ctx, cancel := context.WithCancel(t.Context())
	all := []*asking{w.start(ctx, p.NewLock("a"))}
	w.awaitAsks(asks, 2)
	var queued atomic.Int32
	counting := relock.WithHooks(relock.Hooks{Queued: func(e relock.Queued) {
		require.Equal(t, int(queued.Add(1)), e.Position, "how many of this client are before")
	}})
	for range waiters - 1 {
		all = append(all, w.start(ctx, p.NewLock("a", counting)))
		n := int32(len(all) - 1)
		redistest.Eventually(t, soon, func() bool { return queued.Load() == n }, "it waits")
	}
	require.Equal(t, 2, asks(), "those behind the first have not asked")
	require.Equal(t, 1, p.faults.Commands("SUBSCRIBE"))

	// Java frees it and takes it again before anybody can ask.
	for n := 3; n < 8; n++ {
		require.NoError(t, w.plain.Publish(t.Context(), redissonChannelOf("a"), "0").Err())
		w.awaitAsks(asks, n)
	}
	require.Equal(t, 7, asks(), "one call for each message")

	// They are in one after another, in the order in which they came: one call each, and one to leave.
	j.unlock("a")
	for i, a := range all {
		section := a.in(soon)
		for _, later := range all[i+1:] {
			require.True(t, later.waiting())
		}
		w.leave(section, a.lock, soon)
	}
	cancel()
	require.LessOrEqual(t, asks(), 7+2*waiters)
	w.awaitGone("a")
}

func TestAWaiterThatGivesUpAtTheMomentOfTheMessageLeavesItToTheNext(t *testing.T) {
	// The lease is long and the lock is free at once, so a wake-up that is lost would be noticed.
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	l := p.NewLock("a")
	for range 150 {
		j.lockSoon("a")
		ctx, cancel := context.WithCancel(t.Context())
		gone := []*asking{w.start(ctx, l), w.start(ctx, l), w.start(ctx, l)}
		w.awaitEars("a", 1)
		stays := w.start(t.Context(), l)
		go func() {
			<-time.After(rand.N(300 * time.Microsecond))
			cancel()
		}()
		<-time.After(rand.N(300 * time.Microsecond))
		j.unlock("a")
		var left sync.WaitGroup
		for _, a := range gone {
			left.Go(func() {
				if <-a.done; a.err == nil {
					_ = a.lock.Unlock(a.section)
				}
			})
		}
		w.leave(stays.in(soon), l, soon)
		left.Wait()
		w.awaitGone("a")
		cancel()
	}
}

func TestWhoWaitsBehindAnotherOfItsClientIsToldWhoHasTheLock(t *testing.T) {
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	l := p.NewLock("a")
	j.lock("a")
	asks := w.answers(p)
	first := w.start(t.Context(), l)
	w.awaitAsks(asks, 2)
	last := w.start(t.Context(), l) // the race goes on
	j.unlock("a")
	section := first.in(soon)
	refused := func(want relock.Holder) {
		t.Helper()
		_, err := l.TryLockFor(t.Context(), 50*time.Millisecond)
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, want, locked.Holder, "the one that has it now, not Java")
	}
	holder, _ := relock.HolderFrom(section)
	refused(holder)
	w.leave(section, l, soon)
	w.leave(last.in(soon), l, soon)

	// The channel is still heard, so the next race begins without a question. Who joins it meanwhile knows no more than the runner.
	stuck := p.faults.Once(w.script("redisson/acquire"), redistest.Hold())
	runner := w.start(t.Context(), l)
	stuck.WaitHits(t, 1)
	queued := make(chan struct{})
	behind := p.NewLock("a", relock.WithHooks(relock.Hooks{Queued: func(relock.Queued) { close(queued) }}))
	refusal := make(chan error, 1)
	go func() {
		_, err := behind.TryLockFor(t.Context(), 300*time.Millisecond)
		refusal <- err
	}()
	<-queued
	stuck.LetGo()
	section = runner.in(soon)
	require.ErrorIs(t, <-refusal, relock.ErrLocked)
	w.leave(section, l, soon)
}

func TestWhoWaitsBehindACallThatSubscribesIsToldWhoHasTheLock(t *testing.T) {
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	l := p.NewLock("a")
	j.lock("a")
	stuck := p.faults.Once(redistest.Named("SUBSCRIBE"), redistest.Hold())
	runner := w.start(t.Context(), l)
	stuck.WaitHits(t, 1)
	_, err := l.TryLockFor(t.Context(), 50*time.Millisecond)
	var locked *relock.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, j.holder, locked.Holder.String())
	stuck.LetGo()
	j.unlock("a")
	w.leave(runner.in(soon), l, soon)
}

func TestAllOfARaceAreToldWhoHasHadTheLockLast(t *testing.T) {
	const one, two = "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "f47ac10b-58cc-4372-a567-0e02b2c3d479:43"
	has := func(w *world, holder string) {
		w.Del("a")
		w.HSet("a", holder, "1")
		w.SetTTL("a", time.Minute)
	}
	refusal := func(t *testing.T, a *attempt) *relock.LockedError {
		t.Helper()
		_, err := a.result()
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		return locked
	}
	t.Run("asked for by its runner", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(inRedisson()...)
			l := m.NewLock("a")
			has(w, one)
			runner := begin(t, t.Context(), tryFor(l, 4*time.Second))
			var behind []*attempt
			for _, wait := range []time.Duration{2 * time.Second, 3 * time.Second, time.Minute, 10 * time.Second} {
				behind = append(behind, begin(t, t.Context(), tryFor(l, wait)))
			}
			pass(time.Second)
			has(w, two)
			w.Publish(redissonChannelOf("a"), "0")
			settle()
			m.net.Partition() // what is known is all that there is
			for _, a := range []*attempt{behind[0], behind[1], runner, behind[3]} {
				locked := refusal(t, a)
				require.Equal(t, two, locked.Holder.String())
				*locked = relock.LockedError{} // it is the caller's
			}
			m.net.Heal()
		})
	})
	t.Run("asked for by one that comes", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(inRedisson()...)
			w.warm(m)
			l := m.NewLock("a")
			has(w, one)
			late := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
			comes := begin(t, t.Context(), tryFor(l, 2*time.Second)) // there is no race yet
			runner := begin(t, t.Context(), tryFor(l, 4*time.Second))
			has(w, two)
			late.Release(t)
			behind := begin(t, t.Context(), tryFor(l, time.Second))
			require.Equal(t, two, refusal(t, behind).Holder.String())
			require.Equal(t, two, refusal(t, comes).Holder.String())
			require.ErrorIs(t, refusal(t, runner), relock.ErrLocked)
		})
	})
}

func TestASilentConnectionOfOneWaiterDoesNotKeepTheOthersOfItsClientOut(t *testing.T) {
	const patient = 20 * time.Second
	w := onShared(t)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = patient, patient }, inRedisson(relock.WithTTL(time.Second))...)
	j := w.java()
	l := p.NewLock("a")
	j.lock("a")
	asks := w.answers(p)
	ctx, cancel := context.WithCancel(t.Context())
	runner := w.start(ctx, l)
	w.awaitAsks(asks, 2)
	behind := w.start(t.Context(), l)
	stuck := p.faults.Once(w.script("redisson/acquire"), redistest.Hold())
	j.unlock("a")
	stuck.WaitHits(t, 1)
	w.leave(behind.in(soon), l, soon)
	cancel()
	require.ErrorIs(t, runner.out(soon), context.Canceled)
	stuck.LetGo()
	w.awaitGone("a")
}

func TestASilentConnectionOfAWaiterWithALongTTLDoesNotKeepThoseBehindItOutForLong(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = time.Hour, time.Hour }, inRedisson()...)
		long, short := m.NewLock("a", relock.WithTTL(time.Hour)), m.NewLock("a", relock.WithTTL(time.Second))
		w.HSet("a", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
		w.SetTTL("a", time.Hour)
		runner := begin(t, t.Context(), long.Lock)
		behind := begin(t, t.Context(), tryFor(short, time.Minute))
		stuck := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		w.Del("a")
		w.Publish(redissonChannelOf("a"), "0")
		freed := time.Now()
		section := behind.section()
		require.LessOrEqual(t, time.Since(freed), 10*time.Second)
		stuck.LetGo()
		require.NoError(t, short.Unlock(section))
		require.NoError(t, long.Unlock(runner.section()))
	})
}

func TestAWaiterThatGivesUpWhileItAsksDoesNotMakeTheNextOneDoubtTheSubscription(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(inRedisson()...)
		l, other := m.NewLock("a"), m.NewLock("b")
		for _, name := range []string{"a", "b"} {
			w.HSet(name, "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
			w.SetTTL(name, 30*time.Second)
		}
		ctx, cancel := context.WithCancel(t.Context())
		runner := begin(t, ctx, l.Lock)
		behind := begin(t, t.Context(), l.Lock)
		bystander := begin(t, t.Context(), other.Lock)
		pass(5 * time.Second) // a connection that is younger is not doubted
		m.net.Reset()
		stuck := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		w.Del("a")
		w.Publish(redissonChannelOf("a"), "0")
		settle()
		stuck.WaitHits(t, 1)
		cancel()
		_, err := runner.result()
		require.ErrorIs(t, err, context.Canceled)
		section := behind.section()
		stuck.LetGo()
		pass(time.Second)
		require.Zero(t, m.net.Commands("SUBSCRIBE"))
		require.NoError(t, l.Unlock(section))
		require.NoError(t, other.Unlock(bystander.section()))
	})
}

// A waiter who has lost its turn to the next, as its answer took so long, does not ask again for that.
func TestWaitersOverASlowLinkInRedissonsLayoutWaitForTheMessageToo(t *testing.T) {
	for _, waiters := range []int{1, 3} {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(inRedisson(relock.WithTTL(time.Second))...)
			l := m.NewLock("a")
			w.HSet("a", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
			w.SetTTL("a", time.Hour)
			m.net.Delay(400 * time.Millisecond) // more than a third of the TTL
			var all []*attempt
			for range waiters {
				all = append(all, begin(t, t.Context(), func(ctx context.Context) (context.Context, error) {
					return ctx, l.Do(ctx, func(context.Context) error { return nil })
				}))
			}
			pass(5 * time.Second) // all have asked, and the channel is heard
			m.net.Reset()
			pass(30 * time.Second)
			require.LessOrEqual(t, m.scripts(), 3*waiters, "each of them every 10 s, as it might be freed without a message")
			m.net.Delay(0)
			pass(15 * time.Second)
			require.Zero(t, m.net.Commands("SUBSCRIBE"), "it is known who had it")
			m.net.Delay(400 * time.Millisecond)
			w.Publish(redissonChannelOf("a"), "0")
			pass(450 * time.Millisecond) // the first has been refused once more, and has not heard of it
			m.net.Delay(0)
			freed := time.Now()
			w.Del("a")
			w.Publish(redissonChannelOf("a"), "0")
			for _, a := range all { // in whatever order
				_ = a.section()
			}
			require.Less(t, time.Since(freed), time.Second, "by the message")
		})
	}
}

func TestALateAnswerIsNoReasonToWaitOnceThereIsNews(t *testing.T) {
	// Two wait, and the first has been refused late. Nobody has heard anything since.
	const ttl = time.Second
	late := func(t *testing.T, w *world, m *member) (first, second *attempt, leave [2]func(), answer *redistest.Rule) {
		t.Helper()
		w.HSet("a", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
		w.SetTTL("a", time.Hour)
		l := m.NewLock("a", relock.WithTTL(ttl))
		ctx1, leave1 := context.WithCancel(t.Context())
		ctx2, leave2 := context.WithCancel(t.Context())
		first, second = begin(t, ctx1, l.Lock), begin(t, ctx2, l.Lock)
		hold := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		answer = m.net.On(redistest.Named("EVALSHA"), redistest.Hold()).Skip(1).Times(1)
		w.Publish(redissonChannelOf("a"), "0")
		pass(ttl / 2) // the second has the turn, and asks
		answer.WaitHits(t, 1)
		hold.LetGo()
		settle()
		return first, second, [2]func(){leave1, leave2}, answer
	}
	soon := func(t *testing.T, m *member, a *attempt) {
		t.Helper()
		begun := time.Now()
		require.NoError(t, m.NewLock("a").Unlock(a.section()))
		require.Less(t, time.Since(begun), 2*ttl)
	}
	t.Run("a message for one that gives up", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(inRedisson()...)
			first, second, leave, answer := late(t, w, m)
			pass(ttl / 2) // the first has the turn again
			answer.LetGo()
			settle()
			stuck := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
			w.Del("a")
			w.Publish(redissonChannelOf("a"), "0")
			settle()
			stuck.WaitHits(t, 1)
			leave[0]()
			_, err := first.result()
			require.ErrorIs(t, err, context.Canceled)
			soon(t, m, second)
			stuck.LetGo()
		})
	})
	t.Run("an answer for one that gives up", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(inRedisson()...)
			first, second, leave, answer := late(t, w, m)
			w.SetTTL("a", ttl) // it has become somebody else's
			answer.LetGo()
			settle()
			leave[1]()
			_, err := second.result()
			require.ErrorIs(t, err, context.Canceled)
			soon(t, m, first)
		})
	})
}

func TestAWaiterThatPanicsLeavesTheMessageToTheNext(t *testing.T) {
	// The lease is long, so a wake-up that is lost would be noticed.
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	hook := &panicking{}
	p.rdb.AddHook(hook)
	l := p.NewLock("a")
	j.lock("a")
	asks := w.answers(p)
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		_, _ = l.Lock(context.Background()) // which sends by itself
	}()
	w.awaitAsks(asks, 2)
	behind := w.start(t.Context(), l)
	hook.armed.Store(true)
	j.unlock("a")
	require.Equal(t, "a hook of go-redis", <-panicked)
	w.leave(behind.in(soon), l, soon)
}

func TestAMasterThatIsAnotherServerNowIsHeardAfterTheFirstLease(t *testing.T) {
	const ttl = 3 * time.Second
	w, replica := withReplica(t)
	var address atomic.Pointer[string]
	move := func(to string) { address.Store(&to) }
	move(w.server.Addr())
	follow := func(o *redis.Options) {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, *address.Load())
		}
		o.ConnMaxLifetime = 50 * time.Millisecond // commands soon go where the name leads
	}
	options := inRedisson(relock.WithTTL(ttl))
	owner, waiting := w.peerOn(follow, options...), w.peerOn(follow, options...)
	l := waiting.NewLock("a")
	section := w.enter(t.Context(), owner.NewLock("a"), soon)
	asks := w.answers(waiting)
	waiter := w.start(t.Context(), l)
	w.awaitAsks(asks, 2)
	last := w.start(t.Context(), l)
	replicated(t, w.plain, "x")
	old := w.plain
	w.plain = replica.Client()
	t.Cleanup(func() { w.plain = old })
	require.NoError(t, w.plain.ReplicaOf(t.Context(), "NO", "ONE").Err())
	move(replica.Addr()) // and the old one lives on, alone
	sleepUntil(time.Now().Add(100 * time.Millisecond))
	w.leave(section, owner.NewLock("a"), soon)
	w.leave(waiter.in(ttl+soon), l, soon) // nobody could tell it
	w.leave(last.in(soon), l, soon)       // its own client did

	section = w.enter(t.Context(), owner.NewLock("a"), soon)
	waiter = w.start(t.Context(), l)
	w.awaitEars("a", 1)
	w.leave(section, owner.NewLock("a"), soon)
	begun := time.Now()
	w.leave(waiter.in(ttl+soon), l, soon)
	require.Less(t, time.Since(begun), ttl/2, "it hears the new one")
}

func TestAThousandWaitersInRedissonsLayoutAreInOnceEachAndSilentUntilThen(t *testing.T) {
	const waiters, clients = 1000, 4
	w := onShared(t)
	j := w.java()
	j.lock("a")
	peers := make([]*relock.Client, clients)
	for i := range peers {
		var err error
		peers[i], err = relock.New(w.server.Client(), inRedisson(relock.WithRedissonFencing())...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, peers[i].Close()) })
	}
	var g guarded
	var errs names
	var all sync.WaitGroup
	for i := range waiters {
		l := peers[i%clients].NewLock("a")
		all.Go(func() {
			err := l.Do(t.Context(), func(ctx context.Context) error {
				g.enter(ctx, l)
				g.leave(ctx)
				return nil
			})
			if err != nil {
				errs.add(err.Error())
			}
		})
	}
	w.awaitEars("a", clients)
	// What they still have to ask has been answered when nothing more is asked for a while.
	before := w.calls()
	redistest.Eventually(t, 20*time.Second, func() bool {
		sleepUntil(time.Now().Add(500 * time.Millisecond))
		was := before["evalsha"]
		before = w.calls()
		return before["evalsha"] == was
	}, "those who wait are silent")
	j.unlock("a")
	require.NoError(t, w.call(30*time.Second, func() error { all.Wait(); return nil }))
	scripts := w.calls()["evalsha"] - before["evalsha"]
	t.Logf("%d hand-overs, %.2f script calls each", waiters, float64(scripts)/waiters)
	require.Empty(t, errs.all())
	g.require(t)
	require.Equal(t, waiters, g.entries)
	// One to leave, and at most one of each client to ask.
	require.LessOrEqual(t, scripts, waiters*(1+clients)+100)
}

func TestAnUnlockWhilePubSubIsDownIsMadeUpForWhenItIsBack(t *testing.T) {
	for _, order := range []string{"cut first", "freed first", "down for a while"} {
		t.Run(order, func(t *testing.T) {
			w := onShared(t)
			j, p := w.java(), w.peer(inRedisson()...)
			j.lock("a")
			asks := w.answers(p)
			waiter := w.start(t.Context(), p.NewLock("a"))
			w.awaitAsks(asks, 2)
			behind := w.start(t.Context(), p.NewLock("a"))
			switch order {
			case "cut first":
				p.faults.CutPubSub()
				j.unlock("a")
			case "freed first": // the message is on its way when the connection breaks: it is lost
				p.faults.StallPubSub()
				j.unlock("a")
				p.faults.CutPubSub()
			case "down for a while":
				p.faults.Refuse()
				p.faults.Cut()
				j.unlock("a")
				sleepUntil(time.Now().Add(300 * time.Millisecond))
				require.True(t, waiter.waiting())
				p.faults.Heal()
			}
			w.leave(waiter.in(soon), waiter.lock, soon)
			w.leave(behind.in(soon), behind.lock, soon)
			w.awaitGone("a")
		})
	}
}

func TestASilentPubSubConnectionCostsAWaiterInRedissonsLayoutSeconds(t *testing.T) {
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	j.lock("a")
	asks := w.answers(p)
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.awaitAsks(asks, 2)
	p.faults.StallPubSub()
	j.unlock("a")
	w.leave(waiter.in(halfOpen), waiter.lock, soon)
	p.faults.Heal()
}

func TestALockThatIsContendedAgainAndAgainInRedissonsLayoutIsSubscribedOnce(t *testing.T) {
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	l := p.NewLock("a")
	asks := w.answers(p)
	const rounds = 20
	for range rounds {
		j.lock("a")
		before := asks()
		waiter := w.start(t.Context(), l)
		w.awaitAsks(asks, before+1)
		j.unlock("a")
		w.leave(waiter.in(soon), l, soon)
	}
	require.Equal(t, 1, p.faults.Commands("SUBSCRIBE"))
	require.Zero(t, p.faults.Commands("UNSUBSCRIBE"))
	// Else it would be three calls a round. Now and then the message of the last round wakes the waiter of the next.
	require.LessOrEqual(t, asks(), 2*rounds+rounds/2, "once subscribed, the first refusal is enough to wait")
}

func TestTwoNamesThatShareAChannelAreStillTwoLocks(t *testing.T) {
	w := onShared(t)
	j, p := w.java(), w.peer(inRedisson()...)
	j.lock("a")
	j.lock("{a}")
	bare, braced := w.start(t.Context(), p.NewLock("a")), w.start(t.Context(), p.NewLock("{a}"))
	w.awaitEars("a", 1)
	j.unlock("{a}")
	w.leave(braced.in(soon), braced.lock, soon)
	require.True(t, bare.waiting())
	j.unlock("a")
	w.leave(bare.in(soon), bare.lock, soon)
}

// A getSpinLock has no channel, and a lock that was put there by hand may have no lease.
func TestALockThatIsFreedWithoutAMessageIsFoundFree(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			name  string
			lease time.Duration
			ttl   time.Duration // of the waiter
			asks  time.Duration // at least this often
		}{
			{"at the end of its lease", 20 * time.Second, 30 * time.Second, 20 * time.Second},
			{"a lease much longer than ours", time.Hour, 30 * time.Second, 30 * time.Second},
			{"a lease much longer than our short one", time.Hour, time.Second, 10 * time.Second},
			{"a lease much longer than any need be, and so is ours", 2 * time.Hour, time.Hour, 30 * time.Second},
			{"no lease", 0, 30 * time.Second, 10 * time.Second},
			{"no lease, and ours is short", 0, time.Second, time.Second},
		} {
			w.HSet("a", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
			if c.lease > 0 {
				w.SetTTL("a", c.lease)
			}
			m := w.NewClient(inRedisson(relock.WithTTL(c.ttl))...)
			l := m.NewLock("a")
			waiter := begin(t, t.Context(), l.Lock)
			m.net.Reset()
			pass(c.asks - time.Millisecond)
			require.True(t, waiter.waits(), c.name)
			require.LessOrEqual(t, m.scripts(), 1, c.name)
			if c.lease != 20*time.Second {
				w.Del("a")
			}
			section := waiter.section()
			require.LessOrEqual(t, waiter.took(), c.asks+10*time.Millisecond, c.name)
			require.NoError(t, l.Unlock(section))
			require.NoError(t, m.Close())
		}
	})
}

func TestALeaseThatItsOwnerRenewsIsNoReasonToSubscribeAnew(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(inRedisson()...)
		l := m.NewLock("a")
		w.HSet("a", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
		w.SetTTL("a", 30*time.Second)
		first, second := begin(t, t.Context(), l.Lock), begin(t, t.Context(), l.Lock)
		pass(5 * time.Second) // a connection that is younger is not doubted
		m.net.Reset()
		for range 10 {
			w.SetTTL("a", 30*time.Second)
			pass(10 * time.Second)
		}
		require.Positive(t, m.scripts(), "it has asked")
		asked := m.scripts()
		w.Del("a")
		w.Publish(redissonChannelOf("a"), "0")
		section := first.section()
		pass(5 * time.Second)
		require.Equal(t, asked+1, m.scripts(), "who is next waits for the message")
		pass(100 * time.Second) // renewed by this client
		require.True(t, second.waits())
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Unlock(second.section()))
		require.Zero(t, m.net.Commands("SUBSCRIBE"))
	})
}

func TestWhoWaitsBehindALongLeaseOfItsClientAsksInTimeToo(t *testing.T) {
	for _, pubsub := range []bool{true, false} {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(inRedisson()...)
			if !pubsub {
				m.net.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
			}
			long, short := m.NewLock("a", relock.WithFixedLease(time.Hour)), m.NewLock("a", relock.WithTTL(time.Second))
			w.HSet("a", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
			w.SetTTL("a", 5*time.Second)
			owner := begin(t, t.Context(), long.Lock)
			waiter := begin(t, t.Context(), short.Lock)
			pass(6 * time.Second)
			section := owner.section()
			require.True(t, waiter.waits())
			w.Del("a") // without a message
			freed := time.Now()
			require.NoError(t, short.Unlock(waiter.section()))
			require.LessOrEqual(t, time.Since(freed), 11*time.Second, "with pub/sub: %t", pubsub)
			require.ErrorIs(t, long.Unlock(section), relock.ErrLockLost)
		})
	}
}

// It is asked for by the first of its client, whose patience is its own.
func TestAShortWaiterBehindALongOneFindsALockThatIsFreedWithoutAMessage(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(inRedisson()...)
		long, short := m.NewLock("a", relock.WithTTL(time.Hour)), m.NewLock("a", relock.WithTTL(time.Second))
		w.HSet("a", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", "1")
		w.SetTTL("a", time.Hour)
		first := begin(t, t.Context(), long.Lock)
		second := begin(t, t.Context(), short.Lock)
		w.Del("a")
		freed := time.Now()
		require.NoError(t, long.Unlock(first.section()))
		require.NoError(t, short.Unlock(second.section()))
		require.LessOrEqual(t, time.Since(freed), 31*time.Second)
	})
}

func TestHooksInRedissonsLayoutTellOfTheWait(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(inRedisson(relock.WithHooks(r.Hooks()))...)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), l.Lock)
		pass(2 * time.Second)
		require.NoError(t, l.Unlock(section))
		section = waiting.section()
		require.NoError(t, l.Unlock(section))
		// Each holder's are in order. The message may be there before the reply of the release that has sent it.
		require.Equal(t, []string{"AcquireStarted", "AcquireFinished", "AcquireStarted", "Queued"}, r.kinds()[:4])
		owner := eventsOf[relock.AcquireFinished](&r)[0].Holder
		var owners, waiters []string
		for i, e := range r.all() {
			holder := reflect.ValueOf(e).FieldByName("Holder")
			switch {
			case !holder.IsValid(): // nobody has one when a call begins
			case holder.Interface() == any(owner):
				owners = append(owners, r.kinds()[i])
			default:
				waiters = append(waiters, r.kinds()[i])
			}
		}
		require.Equal(t, []string{"AcquireFinished", "Released"}, owners)
		require.Equal(t, []string{"Queued", "AcquireFinished", "Released"}, waiters)
		finished := eventsOf[relock.AcquireFinished](&r)
		require.False(t, finished[0].Waited)
		require.Equal(t, relock.WakeNone, finished[0].Wake)
		require.True(t, finished[1].Waited)
		require.Equal(t, relock.WakeReleased, finished[1].Wake)
		require.Equal(t, 2*time.Second, finished[1].Duration)
		require.Zero(t, eventsOf[relock.Queued](&r)[0].Position)

		// Refused at once, and with nobody to wait for: no wait is told.
		section = enter(t, t.Context(), l)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, l.Unlock(section))
		require.Len(t, eventsOf[relock.Queued](&r), 1)

		// The channel is still heard, so this one begins to wait before it has asked.
		section = enter(t, t.Context(), l)
		waiting = begin(t, t.Context(), l.Lock)
		settle()
		require.Len(t, eventsOf[relock.Queued](&r), 2)
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Unlock(waiting.section()))
		finished = eventsOf[relock.AcquireFinished](&r)
		require.True(t, finished[len(finished)-1].Waited)
	})
}

func TestNestedEntriesAndExitsInRedissonsLayoutNeedNoMemory(t *testing.T) {
	w := onOwn(t, "--maxmemory-policy", "noeviction")
	p := w.peer(inRedisson()...)
	l := p.NewLock("a")
	outer := w.enter(t.Context(), l, soon)
	inner := w.enter(outer, l, soon)
	require.NoError(t, w.plain.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, w.start(t.Context(), p.NewLock("b")).out(soon), "OOM")
	w.leave(w.enter(inner, l, soon), l, soon)
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	require.Equal(t, []string{}, redistest.Keys(t, w.plain))
}

func TestTooFewReplicaAcksInRedissonsLayoutUndoTheEntry(t *testing.T) {
	w, replica := withReplica(t)
	const timeout = 80 * time.Millisecond
	p := w.peer(inRedisson()...)
	l := p.NewLock("a", relock.WithReplicaAcks(1, timeout))
	w.leave(w.enter(t.Context(), l, soon), l, soon)
	replica.Pause()
	require.ErrorIs(t, w.start(t.Context(), l).out(timeout+soon), relock.ErrNotReplicated)
	require.Zero(t, w.plain.Exists(t.Context(), "a").Val())

	// Also where a try of it comes late.
	stuck := p.faults.Once(w.script("redisson/acquire"), redistest.Hold())
	require.ErrorIs(t, w.start(t.Context(), l).out(timeout+soon), relock.ErrNotReplicated)
	stuck.Release(t)
	w.awaitGone("a")

	// A waiter too, and the lock goes on to the next.
	j := w.java()
	j.lock("a")
	waiter := w.start(t.Context(), l)
	w.awaitEars("a", 1)
	next := w.start(t.Context(), w.peer(inRedisson()...).NewLock("a"))
	w.awaitEars("a", 2)
	j.unlock("a")
	w.leave(next.in(soon), next.lock, soon)
	require.ErrorIs(t, waiter.out(timeout+soon), relock.ErrNotReplicated)
	replica.Resume()
}

func TestAProcessThatIsKilledInRedissonsLayoutCostsNoMoreThanItsLease(t *testing.T) {
	redissonLayout = true // for the process
	defer func() { redissonLayout = false }()
	w := onShared(t)
	holder := w.locker("a", time.Second)
	holder.Expect("in ", startUp)
	waiter := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitEars("a", 1)
	holder.Kill()
	w.leave(waiter.in(w.lease("a")+soon), waiter.lock, soon)

	// And who is killed while it waits is in nobody's way.
	section := w.enter(t.Context(), waiter.lock, soon)
	dead := w.locker("a", time.Second)
	dead.Expect("queued", startUp)
	last := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitEars("a", 3)
	dead.Kill()
	w.leave(section, waiter.lock, soon)
	w.leave(last.in(soon), last.lock, soon)
}

// redissonACL is the fewest commands that a user needs for everything, on a server that is no cluster, beside the names of
// its locks and `&redisson_lock__channel:*`. docs/REDISSON.md shows it.
var redissonACL = []string{
	"evalsha", "eval", "subscribe", "unsubscribe", "ping",
	"del", "exists", "hdel", "hexists", "hget", "hgetall", "hset", "pexpire", "pttl", "publish",
}

// redissonFencingACL is what fenced locks need in addition, with `~redisson_lock_token:*`.
var redissonFencingACL = []string{"get", "incr"}

// redissonClusterACL is what a cluster needs in addition.
var redissonClusterACL = []string{"ssubscribe", "sunsubscribe", "spublish", "cluster|slots", "command", "asking"}

func TestTheRedisUserForRedissonsLayoutMayDoNoMoreThanItNeeds(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from channels or from commands in scripts in this way")
	}
	rules := func(fenced bool, without string) []string {
		list := []string{"~app:*", "&redisson_lock__channel:*"}
		commands := redissonACL
		if fenced {
			list = append(list, "~redisson_lock_token:*")
			commands = append(commands[:len(commands):len(commands)], redissonFencingACL...)
		}
		for _, c := range commands {
			if c != without {
				list = append(list, "+"+c)
			}
		}
		return list
	}
	n := 0
	tour := func(rules []string, options ...relock.Option) error {
		n++
		return w.redissonTour(fmt.Sprint("user", n), rules, options...)
	}
	fencing := relock.WithRedissonFencing()
	require.NoError(t, tour(rules(false, "")))
	require.NoError(t, tour(rules(true, ""), fencing))
	require.ErrorContains(t, tour(rules(false, ""), fencing), "NOPERM")
	for _, c := range redissonACL {
		switch c {
		case "eval", "unsubscribe", "ping": // seen where a script is new, or seconds after
		default:
			require.Error(t, tour(rules(false, c)), c)
		}
	}
	for _, c := range redissonFencingACL {
		require.Error(t, tour(rules(true, c), fencing), c)
	}
	require.NoError(t, w.plain.FlushAll(t.Context()).Err())
}

// redissonTour does everything that a lock can do as one user, and returns what went wrong.
func (w *arena) redissonTour(user string, rules []string, options ...relock.Option) error {
	var renewals atomic.Value
	p := w.aclUser(user, rules, inRedisson(append(options, relock.WithTTL(600*time.Millisecond), relock.WithHooks(relock.Hooks{
		Renewed: func(e relock.Renewed) {
			if e.Err != nil {
				renewals.CompareAndSwap(nil, e.Err)
			}
		},
	}))...)...)
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	l := p.NewLock("app:" + user)
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	inner, err := l.Lock(section)
	if err != nil {
		_ = l.Unlock(section)
		return err
	}
	if _, err = l.State(ctx); err != nil {
		return err
	}
	if err = l.Unlock(inner); err != nil {
		return err
	}
	// Its lease is renewed while somebody waits.
	waiter := w.start(ctx, l)
	select {
	case <-waiter.done:
		return waiter.err
	case <-time.After(700 * time.Millisecond):
	}
	if err, ok := renewals.Load().(error); ok {
		return err
	}
	if err = l.Unlock(section); err != nil {
		return err
	}
	if <-waiter.done; waiter.err != nil {
		return waiter.err
	}
	return l.ForceUnlock(ctx)
}

func TestInRedissonsLayoutAUserWhoMayNotSetLeasesLeavesNoLockWithoutOne(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from commands in scripts in this way")
	}
	for _, options := range [][]relock.Option{nil, {relock.WithRedissonFencing()}} {
		p := w.aclUser("lessor", []string{"~*", "&*", "+@all", "-pexpire"}, inRedisson(options...)...)
		_, err := p.NewLock("a").TryLock(t.Context())
		require.ErrorContains(t, err, "can't run this command")
		w.java().lock("a") // else it would wait without limit, and so would everybody
		w.java().unlock("a")
	}
}

func TestAUserWithoutRedissonsChannelsIsToldWhenItHasToWait(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 users may use all channels unless told otherwise")
	}
	j := w.java()
	j.lock("app:a")
	p := w.aclUser("deaf", []string{"~app:*", "+@all"}, inRedisson()...)
	err := w.start(t.Context(), p.NewLock("app:a")).out(soon)
	require.ErrorContains(t, err, "NOPERM")
	require.ErrorContains(t, err, "channel")
	j.unlock("app:a")
}

func TestEachWaiterIsToldThatItMayNotHearTheChannelAnyMore(t *testing.T) {
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 users may use all channels unless told otherwise")
	}
	j := w.java()
	j.lock("app:a")
	p := w.aclUser("listener", []string{"~app:*", "&redisson_lock__channel:*", "+@all"}, inRedisson()...)
	asks := w.answers(p)
	waiters := []*asking{w.start(t.Context(), p.NewLock("app:a"))}
	w.awaitAsks(asks, 2)
	for range 2 {
		waiters = append(waiters, w.start(t.Context(), p.NewLock("app:a")))
	}
	require.NoError(t, w.plain.Do(t.Context(), "ACL", "SETUSER", "listener", "resetchannels").Err()) // which ends its subscriptions
	for _, waiter := range waiters {
		require.ErrorContains(t, waiter.out(soon), "NOPERM")
	}
	j.unlock("app:a")
}

func TestTheOptionsOfRedissonsLayout(t *testing.T) {
	rdb := redistest.Shared(t).Client()
	for _, c := range []struct {
		options []relock.Option
		says    []string
	}{
		{opts(relock.WithRedissonLayout(), relock.WithPrefix("app:")), []string{"WithPrefix(\"app:\")", "WithRedissonLayout", "name"}},
		{opts(relock.WithPrefix(""), relock.WithRedissonLayout()), []string{"WithPrefix", "WithRedissonLayout"}},
		{opts(relock.WithRedissonFencing()), []string{"WithRedissonFencing", "WithRedissonLayout"}},
	} {
		_, err := relock.New(rdb, c.options...)
		require.ErrorIs(t, err, relock.ErrInvalid)
		for _, says := range c.says {
			require.ErrorContains(t, err, says)
		}
	}
	ours, err := relock.New(rdb)
	require.NoError(t, err)
	theirs, err := relock.New(rdb, relock.WithRedissonLayout())
	require.NoError(t, err)
	for _, l := range []*relock.Lock{
		ours.NewLock("a", relock.WithRedissonLayout()), theirs.NewLock("a", relock.WithRedissonLayout()),
	} {
		require.ErrorIs(t, l.Err(), relock.ErrInvalid)
		require.ErrorContains(t, l.Err(), "WithRedissonLayout")
		require.ErrorContains(t, l.Err(), "New")
	}
	require.ErrorIs(t, ours.NewLock("a", relock.WithRedissonFencing()).Err(), relock.ErrInvalid)
	require.ErrorIs(t, theirs.NewLock("a", relock.WithPrefix("app:")).Err(), relock.ErrInvalid)
	require.NoError(t, theirs.NewLock("a", relock.WithRedissonFencing(), relock.WithTTL(time.Second)).Err())
	for _, name := range []string{"a}b", "a{b", "a{}b", "{"} {
		require.NoError(t, theirs.NewLock(name).Err(), "only a cluster cannot have it")
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	clustered, err := relock.New(cluster, relock.WithRedissonLayout())
	require.NoError(t, err)
	for _, name := range []string{"a}b", "a{b", "a{}b", "{"} {
		require.ErrorIs(t, clustered.NewLock(name).Err(), relock.ErrInvalid)
	}
	require.NoError(t, clustered.NewLock("{a}b").Err())
}
