package relock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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

// Redisson's layout, seen from both sides. redisson_suite_test.go shows what is as in relock's own
// layout, redisson_scripts_test.go what the scripts do, and interop/redisson what the real Redisson
// does with that.

func inRedisson(options ...relock.Option) []relock.Option {
	return append([]relock.Option{relock.WithRedissonLayout()}, options...)
}

// luaRedisson is the script that asks for a lock.
const luaRedisson = "redisson/acquire"

// forRedisson makes an arena ready for Redisson's layout: every call is one command, and counters
// are no leftovers.
func (w *arena) forRedisson() *arena {
	w.t.Helper()
	for _, name := range []string{luaRedisson, "redisson/release"} {
		require.NoError(w.t, w.plain.ScriptLoad(w.t.Context(), luaSource(w.t, name)).Err())
	}
	w.t.Cleanup(func() {
		for _, key := range redistest.Keys(w.t, w.plain) {
			if strings.HasPrefix(key, "redisson_lock_token:") {
				require.NoError(w.t, w.plain.Del(context.Background(), key).Err())
			}
		}
	})
	return w
}

// javaHolder is a thread of a Redisson client.
const javaHolder = "f47ac10b-58cc-4372-a567-0e02b2c3d479:42"

// javaTryLock is one attempt of RLock.tryLock, with the effects of Redisson's script as in
// internal/redisstore/testdata/vectors.json.
func (w *arena) javaTryLock(name string) bool {
	w.t.Helper()
	const text = `
		if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
			redis.call('hincrby', KEYS[1], ARGV[2], 1)
			redis.call('pexpire', KEYS[1], ARGV[1])
			return 1
		end
		return 0`
	n, err := w.plain.Eval(context.Background(), text, []string{name}, relock.DefaultTTL.Milliseconds(), javaHolder).Int()
	require.NoError(w.t, err)
	return n == 1
}

func (w *arena) javaLock(name string) {
	w.t.Helper()
	require.True(w.t, w.javaTryLock(name))
}

// javaUnlock is the last unlock of RLock.
func (w *arena) javaUnlock(name string) {
	w.t.Helper()
	ctx := context.Background()
	pipe := w.plain.TxPipeline()
	there := pipe.HExists(ctx, name, javaHolder)
	pipe.Del(ctx, name)
	pipe.Publish(ctx, channelOf(name), "0")
	_, err := pipe.Exec(ctx)
	require.NoError(w.t, err)
	require.True(w.t, there.Val(), "it had the lock")
}

// channelOf is Redisson's channel of a lock.
func channelOf(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return "redisson_lock__channel:" + name
}

// awaitEars waits until so many connections listen to the channel of a lock.
func (w *arena) awaitEars(name string, n int) {
	w.t.Helper()
	redistest.Eventually(w.t, w.limit, func() bool {
		got, err := w.plain.PubSubNumSub(context.Background(), channelOf(name)).Result()
		return err == nil && got[channelOf(name)] == int64(n)
	}, "%d listen to %q", n, name)
}

// awaitGone waits until nobody holds a lock. A call that was cancelled may take the lock for a
// moment.
func (w *arena) awaitGone(name string) {
	w.t.Helper()
	redistest.Eventually(w.t, w.limit, func() bool { return w.plain.Exists(context.Background(), name).Val() == 0 }, "%q is free", name)
}

// answers counts the calls of acquire that Redis has answered from now on. The second call of a
// waiter is the one behind its subscription: from then on only a message or the end of the lease
// wakes the waiter.
func (w *arena) answers(p *peer) func() int {
	w.t.Helper()
	var n atomic.Int64
	p.faults.On(w.script(luaRedisson), redistest.After(func([]string, string) { n.Add(1) }))
	return func() int { return int(n.Load()) }
}

// awaitAsks waits until acquire was called n times.
func (w *arena) awaitAsks(asks func() int, n int) {
	w.t.Helper()
	redistest.Eventually(w.t, w.limit, func() bool { return asks() >= n }, "%d calls of acquire", n)
}

// field is the only field of a lock in Redis.
func (w *arena) field(name string) (field, count string) {
	w.t.Helper()
	fields, err := w.plain.HGetAll(context.Background(), name).Result()
	require.NoError(w.t, err)
	require.Len(w.t, fields, 1)
	for field, count = range fields {
		break
	}
	return field, count
}

// refusal is the LockedError of a call that waits for a short time.
func (w *arena) refusal(l *relock.Lock) *relock.LockedError {
	w.t.Helper()
	_, err := l.TryLockFor(w.t.Context(), 100*time.Millisecond)
	var locked *relock.LockedError
	require.ErrorAs(w.t, err, &locked)
	return locked
}

func TestAJavaUnlockWakesAGoWaiter(t *testing.T) {
	for _, payload := range []string{"0", "1"} { // "1" is of a write lock, and means the same
		w := onShared(t).forRedisson()
		finished := make(chan relock.AcquireFinished, 1)
		p := w.peer(inRedisson(relock.WithHooks(relock.Hooks{AcquireFinished: func(e relock.AcquireFinished) { finished <- e }}))...)
		w.javaLock("a")
		asks := w.answers(p)
		waiter := w.start(t.Context(), p.NewLock("a"))
		w.awaitAsks(asks, 2)
		require.NoError(t, w.plain.Del(t.Context(), "a").Err())
		require.NoError(t, w.plain.Publish(t.Context(), channelOf("a"), payload).Err())
		w.leave(waiter.section(), waiter.lock)
		require.Equal(t, 3, asks())
		e := <-finished
		require.True(t, e.Waited)
		require.Equal(t, relock.WakeReleased, e.Wake)
		require.Zero(t, w.plain.Exists(t.Context(), "a").Val())
	}
}

func TestAGoUnlockTellsJavaOnceAndOnlyWhenTheLockIsFree(t *testing.T) {
	w := onShared(t).forRedisson()
	l := w.peer(inRedisson()...).NewLock("a")
	java := w.plain.Subscribe(t.Context(), channelOf("a"))
	next := func() any {
		t.Helper()
		m, err := java.ReceiveTimeout(t.Context(), w.limit)
		require.NoError(t, err)
		return m
	}
	next()
	outer := w.enter(t.Context(), l)
	require.False(t, w.javaTryLock("a"))
	w.leave(w.enter(outer, l), l)
	require.False(t, w.javaTryLock("a"), "an inner exit frees nothing")
	require.NoError(t, java.Ping(t.Context()))
	require.IsType(t, &redis.Pong{}, next(), "and tells nobody")
	w.leave(outer, l)
	require.Equal(t, "0", next().(*redis.Message).Payload)
	require.NoError(t, java.Close())
	w.javaLock("a")
	w.javaUnlock("a")
}

func TestWhatJavaSeesOfAGoHoldAndGoOfAJavaHold(t *testing.T) {
	w := onShared(t).forRedisson()
	p := w.peer(inRedisson()...)
	l := p.NewLock("a", relock.WithTTL(20*time.Second))
	section := w.enter(t.Context(), l)
	inner := w.enter(section, l)
	field, count := w.field("a")
	require.Equal(t, "2", count)
	require.Regexp(t, `^[0-9a-f-]{36}:[0-9]+$`, field)
	lease := w.plain.PTTL(t.Context(), "a").Val()
	require.Greater(t, lease, 15*time.Second)
	require.LessOrEqual(t, lease, 20*time.Second)
	state, err := l.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, field, state.Holder.String())
	require.Equal(t, 2, state.Count)
	require.Zero(t, state.Waiters)
	w.leave(inner, l)
	w.leave(section, l)
	require.Empty(t, redistest.Keys(t, w.plain), "not even a token")

	w.javaLock("a")
	w.javaLock("a")
	state, err = l.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, javaHolder, state.Holder.String())
	require.Equal(t, 2, state.Count)
	require.Greater(t, state.TTL, 25*time.Second)
	locked := w.refusal(l)
	require.Equal(t, javaHolder, locked.Holder.String())
	require.Greater(t, locked.TTL, 25*time.Second)
	require.NoError(t, l.ForceUnlock(t.Context()))
	require.ErrorIs(t, l.ForceUnlock(t.Context()), relock.ErrNotHeld)
}

func TestAGoHolderIsToldThatJavaHasFreedItsLockByForce(t *testing.T) {
	w := onShared(t).forRedisson()
	l := w.peer(inRedisson(relock.WithTTL(600 * time.Millisecond))...).NewLock("a")
	section := w.enter(t.Context(), l)
	require.NoError(t, w.plain.Del(t.Context(), "a").Err())
	w.javaLock("a")
	require.Equal(t, relock.LossTaken, w.lost(section))
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	w.javaUnlock("a") // Go has not touched the lock
}

func TestAFencedLockSharesItsCounterWithJava(t *testing.T) {
	const counter = "redisson_lock_token:{a}"
	w := onShared(t).forRedisson()
	l := w.peer(inRedisson(relock.WithRedissonFencing())...).NewLock("a")
	require.NoError(t, w.plain.Set(t.Context(), counter, 41, 0).Err()) // Java was here before
	outer := w.enter(t.Context(), l)
	require.EqualValues(t, 42, w.draw(outer, l))
	inner := w.enter(outer, l)
	require.EqualValues(t, 42, w.draw(inner, l), "one hold has one token")
	w.leave(inner, l)
	w.leave(outer, l)
	require.NoError(t, w.plain.Incr(t.Context(), counter).Err()) // Java was in
	section := w.enter(t.Context(), l)
	require.EqualValues(t, 44, w.draw(section, l))
	w.leave(section, l)
	require.Equal(t, []string{counter}, redistest.Keys(t, w.plain))
	require.Equal(t, time.Duration(-1), w.plain.TTL(t.Context(), counter).Val(), "it has no end")

	require.NoError(t, w.plain.Set(t.Context(), counter, "1.5", 0).Err())
	_, err := l.Lock(t.Context())
	require.Error(t, err, "it cannot be counted up")
	w.awaitGone("a")
}

func TestOfTheWaitersOfOneClientAMessageWakesOne(t *testing.T) {
	const waiters = 50
	w := onShared(t).forRedisson()
	w.javaLock("a")
	var queued atomic.Int32
	p := w.peer(inRedisson(relock.WithHooks(relock.Hooks{Queued: func(relock.Queued) { queued.Add(1) }}))...)
	asks := w.answers(p)
	var all []*attempt
	for i := range waiters {
		all = append(all, w.start(t.Context(), p.NewLock("a")))
		if i == 0 {
			w.awaitAsks(asks, 2)
		}
		redistest.Eventually(t, w.limit, func() bool { return int(queued.Load()) == i+1 }, "it waits")
	}
	require.Equal(t, 2, asks(), "those behind the first have not asked")
	require.Equal(t, 1, p.faults.Commands("SUBSCRIBE"))
	for n := 3; n < 8; n++ { // Java frees the lock, and takes it again before anybody can ask
		require.NoError(t, w.plain.Publish(t.Context(), channelOf("a"), "0").Err())
		w.awaitAsks(asks, n)
	}
	require.Equal(t, 7, asks(), "one call for each message")

	// They get in as they came, each with one call that is refused and one that is not.
	w.javaUnlock("a")
	for i, a := range all {
		section := a.section()
		for _, later := range all[i+1:] {
			require.True(t, later.waits())
		}
		w.leave(section, a.lock)
	}
	require.LessOrEqual(t, asks(), 7+2*waiters)
	w.awaitGone("a")
}

// The lease is long and the lock is free at once, so a message that is lost would be noticed.
func TestAWaiterThatGivesUpLeavesTheMessageToTheNext(t *testing.T) {
	w := onShared(t).forRedisson()
	l := w.peer(inRedisson()...).NewLock("a")
	for range 60 {
		redistest.Eventually(t, w.limit, func() bool { return w.javaTryLock("a") }, "it is free")
		ctx, cancel := context.WithCancel(t.Context())
		gone := []*attempt{w.start(ctx, l), w.start(ctx, l), w.start(ctx, l)}
		w.awaitEars("a", 1)
		stays := w.start(t.Context(), l)
		go func() {
			<-time.After(rand.N(300 * time.Microsecond))
			cancel()
		}()
		<-time.After(rand.N(300 * time.Microsecond))
		w.javaUnlock("a")
		var left sync.WaitGroup
		for _, a := range gone {
			left.Go(func() {
				if <-a.done; a.err == nil {
					_ = a.lock.Unlock(a.ctx)
				}
			})
		}
		w.leave(stays.section(), l)
		left.Wait()
		w.awaitGone("a")
		cancel()
	}
}

func TestACallBehindAnotherOfItsClientIsToldWhoHasTheLock(t *testing.T) {
	w := onShared(t).forRedisson()
	p := w.peer(inRedisson()...)
	l := p.NewLock("a")
	w.javaLock("a")
	stuck := p.faults.Once(redistest.Named("SUBSCRIBE"), redistest.Hold())
	asks := w.answers(p)
	first := w.start(t.Context(), l)
	stuck.WaitHits(t, 1)
	require.Equal(t, javaHolder, w.refusal(l).Holder.String(), "also while the first one subscribes")
	stuck.LetGo()
	w.awaitAsks(asks, 2)
	last := w.start(t.Context(), l)
	w.javaUnlock("a")
	section := first.section()
	w.awaitAsks(asks, 4) // last was refused
	field, _ := w.field("a")
	require.Equal(t, field, w.refusal(l).Holder.String(), "the one that has it now, not Java")
	w.leave(section, l)
	w.leave(last.section(), l)
}

// The call that asks for all gives up a silent connection, and asks on another one.
func TestASilentConnectionOfOneWaiterDoesNotKeepItsClientOut(t *testing.T) {
	const patient = 20 * time.Second
	w := onShared(t).forRedisson()
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = patient, patient }, inRedisson(relock.WithTTL(time.Second))...)
	l := p.NewLock("a")
	w.javaLock("a")
	asks := w.answers(p)
	first := w.start(t.Context(), l)
	w.awaitAsks(asks, 2)
	behind := w.start(t.Context(), l)
	stuck := p.faults.Once(w.script(luaRedisson), redistest.Hold())
	w.javaUnlock("a")
	stuck.WaitHits(t, 1)
	w.leave(first.section(), l)
	w.leave(behind.section(), l)
	stuck.LetGo()
	w.awaitGone("a")
}

func TestAnUnlockWhilePubSubIsDownIsMadeUpForWhenItIsBack(t *testing.T) {
	for _, order := range []string{"cut first", "freed first", "down for a while"} {
		t.Run(order, func(t *testing.T) {
			w := onShared(t).forRedisson()
			p := w.peer(inRedisson()...)
			w.javaLock("a")
			asks := w.answers(p)
			waiter := w.start(t.Context(), p.NewLock("a"))
			w.awaitAsks(asks, 2)
			behind := w.start(t.Context(), p.NewLock("a"))
			switch order {
			case "cut first":
				p.faults.CutPubSub()
				w.javaUnlock("a")
			case "freed first": // the message is in flight when the connection breaks
				p.faults.StallPubSub()
				w.javaUnlock("a")
				p.faults.CutPubSub()
			case "down for a while":
				p.faults.Refuse()
				p.faults.Cut()
				w.javaUnlock("a")
				sleepUntil(time.Now().Add(300 * time.Millisecond))
				require.True(t, waiter.waits())
				p.faults.Heal()
			}
			w.leave(waiter.section(), waiter.lock)
			w.leave(behind.section(), behind.lock)
			w.awaitGone("a")
		})
	}
}

func TestAContendedLockInRedissonsLayoutIsSubscribedOnce(t *testing.T) {
	const rounds = 20
	w := onShared(t).forRedisson()
	p := w.peer(inRedisson()...)
	l := p.NewLock("a")
	asks := w.answers(p)
	for range rounds {
		w.javaLock("a")
		before := asks()
		waiter := w.start(t.Context(), l)
		w.awaitAsks(asks, before+1)
		w.javaUnlock("a")
		w.leave(waiter.section(), l)
	}
	require.Equal(t, 1, p.faults.Commands("SUBSCRIBE"))
	require.Zero(t, p.faults.Commands("UNSUBSCRIBE"))
	require.LessOrEqual(t, asks(), 2*rounds+rounds/2, "once subscribed, the first refusal is enough to wait")
}

func TestTwoNamesThatShareAChannelAreStillTwoLocks(t *testing.T) {
	w := onShared(t).forRedisson()
	p := w.peer(inRedisson()...)
	w.javaLock("a")
	w.javaLock("{a}")
	bare, braced := w.start(t.Context(), p.NewLock("a")), w.start(t.Context(), p.NewLock("{a}"))
	w.awaitEars("a", 1)
	w.javaUnlock("{a}")
	w.leave(braced.section(), braced.lock)
	require.True(t, bare.waits())
	w.javaUnlock("a")
	w.leave(bare.section(), bare.lock)
}

func TestNestedEntriesAndExitsInRedissonsLayoutNeedNoMemory(t *testing.T) {
	w := onOwn(t, "--maxmemory-policy", "noeviction").forRedisson()
	p := w.peer(inRedisson()...)
	l := p.NewLock("a")
	outer := w.enter(t.Context(), l)
	inner := w.enter(outer, l)
	require.NoError(t, w.plain.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, w.start(t.Context(), p.NewLock("b")).failure(), "OOM")
	w.leave(w.enter(inner, l), l)
	w.leave(inner, l)
	w.leave(outer, l)
	require.Empty(t, redistest.Keys(t, w.plain))
}

func TestTooFewReplicaAcksInRedissonsLayoutUndoTheEntry(t *testing.T) {
	w, replica := withReplica(t)
	w.forRedisson()
	const timeout = 80 * time.Millisecond
	p := w.peer(inRedisson()...)
	l := p.NewLock("a", relock.WithReplicaAcks(1, timeout))
	w.leave(w.enter(t.Context(), l), l)
	replica.Pause()
	require.ErrorIs(t, w.start(t.Context(), l).within(timeout+w.limit).failure(), relock.ErrNotReplicated)
	w.awaitGone("a")
	replica.Resume()
}

// redissonACL is all that a Redis user needs, beside the names of its locks and
// &redisson_lock__channel:*. docs/REDISSON.md shows the list.
var redissonACL = []string{
	"evalsha", "eval", "subscribe", "unsubscribe", "ping",
	"del", "exists", "hdel", "hexists", "hget", "hgetall", "hset", "pexpire", "pttl", "publish",
}

// redissonFencingACL is for fenced locks, with ~redisson_lock_token:*.
var redissonFencingACL = []string{"get", "incr"}

// onACL is an arena on a server that keeps users from channels, and from commands in scripts.
func onACL(t *testing.T) *arena {
	t.Helper()
	w := onOwn(t)
	if !w.server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from channels or from commands in scripts in this way")
	}
	return w.forRedisson()
}

// aclUser makes a user, and a client of that user.
func (w *arena) aclUser(user string, rules []string, options ...relock.Option) *peer {
	w.t.Helper()
	args := []any{"ACL", "SETUSER", user, "reset", "on", ">" + user}
	for _, rule := range rules {
		args = append(args, rule)
	}
	require.NoError(w.t, w.plain.Do(context.Background(), args...).Err())
	return w.peerOn(func(o *redis.Options) { o.Username, o.Password = user, user }, inRedisson(options...)...)
}

func TestARedisUserForRedissonsLayoutNeedsTheListAndNoMore(t *testing.T) {
	w := onACL(t)
	n := 0
	tour := func(without string, options ...relock.Option) error {
		n++
		rules := []string{"~app:*", "&redisson_lock__channel:*", "~redisson_lock_token:*"}
		for _, c := range slices.Concat(redissonACL, redissonFencingACL) {
			if c != without {
				rules = append(rules, "+"+c)
			}
		}
		options = append(options, relock.WithTTL(600*time.Millisecond))
		user := fmt.Sprint("user", n)
		return w.redissonTour(w.aclUser(user, rules, options...).NewLock("app:" + user))
	}
	fencing := relock.WithRedissonFencing()
	require.NoError(t, tour(""))
	require.NoError(t, tour("", fencing))
	for _, c := range redissonFencingACL {
		require.NoError(t, tour(c), "only fenced locks need %s", c)
		require.Error(t, tour(c, fencing), c)
	}
	for _, c := range redissonACL {
		switch c {
		case "eval", "unsubscribe", "ping": // needed where a script is new, or seconds later
		default:
			require.Error(t, tour(c), c)
		}
	}
	require.NoError(t, w.plain.FlushAll(t.Context()).Err())
}

// redissonTour does everything that a lock can do, and returns an error that it has met.
func (w *arena) redissonTour(l *relock.Lock) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Second)
	defer cancel()
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
	waiter := w.start(ctx, l)
	select { // the lease is renewed while somebody waits
	case <-waiter.done:
		return waiter.err
	case <-time.After(700 * time.Millisecond):
	}
	if err = l.Unlock(section); err != nil {
		return err
	}
	if <-waiter.done; waiter.err != nil {
		return waiter.err
	}
	return l.ForceUnlock(ctx)
}

func TestAUserWhoMayNotSetLeasesLeavesNoLockWithoutOne(t *testing.T) {
	w := onACL(t)
	for _, options := range [][]relock.Option{nil, {relock.WithRedissonFencing()}} {
		p := w.aclUser("lessor", []string{"~*", "&*", "+@all", "-pexpire"}, options...)
		_, err := p.NewLock("a").TryLock(t.Context())
		require.ErrorContains(t, err, "can't run this command")
		w.javaLock("a") // would wait without limit, if a lock without a lease were left
		w.javaUnlock("a")
	}
}

func TestAUserWithoutRedissonsChannelsIsToldWhenItHasToWait(t *testing.T) {
	w := onACL(t)
	w.javaLock("app:a")
	err := w.start(t.Context(), w.aclUser("deaf", []string{"~app:*", "+@all"}).NewLock("app:a")).failure()
	require.ErrorContains(t, err, "NOPERM")
	require.ErrorContains(t, err, "channel")

	// Waiters are told when they may not listen any more.
	p := w.aclUser("listener", []string{"~app:*", "&redisson_lock__channel:*", "+@all"})
	asks := w.answers(p)
	waiters := []*attempt{w.start(t.Context(), p.NewLock("app:a"))}
	w.awaitAsks(asks, 2)
	for range 2 {
		waiters = append(waiters, w.start(t.Context(), p.NewLock("app:a")))
	}
	require.NoError(t, w.plain.Do(t.Context(), "ACL", "SETUSER", "listener", "resetchannels").Err()) // ends its subscriptions
	for _, waiter := range waiters {
		require.ErrorContains(t, waiter.failure(), "NOPERM")
	}
	w.javaUnlock("app:a")
}
