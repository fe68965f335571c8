package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
)

// Does a lock of Redisson's layout work as others do?

// This file sees Redisson's layout from both sides. promises_test.go shows what is as in relock's
// own layout, internal/redisstore what the scripts do, and interop/redisson what the real Redisson
// does with that.

// awaitGone waits until nobody holds a lock. A call that was cancelled may take the lock for a
// moment.
func awaitGone(w *stage.Arena, name string) {
	w.T.Helper()
	redistest.Eventually(w.T, w.Limit, func() bool { return w.Plain.Exists(context.Background(), name).Val() == 0 }, "%q is free", name)
}

// fieldOf is the only field of a lock in Redis.
func fieldOf(w *stage.Arena, name string) (field, count string) {
	w.T.Helper()
	fields, err := w.Plain.HGetAll(context.Background(), name).Result()
	require.NoError(w.T, err)
	require.Len(w.T, fields, 1)
	for field, count = range fields {
		break
	}
	return field, count
}

// refusalOf is the LockedError of a call that waits for a short time.
func refusalOf(w *stage.Arena, l *relock.Lock) *relock.LockedError {
	w.T.Helper()
	_, err := l.TryLockFor(w.T.Context(), 500*time.Millisecond)
	var locked *relock.LockedError
	require.ErrorAs(w.T, err, &locked)
	return locked
}

func TestAHolderFindsItselfInRedissonsLayout(t *testing.T) {
	w := stage.OnShared(t).ForRedisson()
	p, other := w.Peer(stage.InRedisson()...), w.Peer(stage.InRedisson()...)
	holderOf := func(p *stage.Peer, name string) relock.Holder {
		state, err := p.NewLock(name).State(t.Context())
		require.NoError(t, err)
		return state.Holder
	}
	section := w.Enter(t.Context(), p.NewLock("a"))
	require.Equal(t, stage.HolderOf(t, section), holderOf(p, "a"))
	require.Equal(t, stage.HolderOf(t, section), holderOf(other, "a"))
	inner := w.Enter(section, p.NewLock("b"))
	require.Equal(t, stage.HolderOf(t, inner), holderOf(p, "b"))
	require.Equal(t, stage.HolderOf(t, inner), refusalOf(w, p.NewLock("b")).Holder)
	w.Leave(inner, p.NewLock("b"))
	w.Leave(section, p.NewLock("a"))

	require.NoError(t, leader.Run(t.Context(), p.NewLock("a"), func(section context.Context) error {
		for _, follower := range []*stage.Peer{p, other} {
			for led, err := range leader.Follow(section, follower.NewLock("a")) {
				require.NoError(t, err)
				require.Equal(t, stage.HolderOf(t, section), led)
				break
			}
		}
		return nil
	}))
}

func TestANestedCallInRedissonsLayoutIsWarnedOf(t *testing.T) {
	w := stage.OnShared(t).ForRedisson()
	ctx, warned := context.WithCancel(t.Context())
	logger := slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
		if strings.Contains(string(line), "a hold of this very client") {
			warned()
		}
		return len(line), nil
	}), nil))
	l := w.Peer(stage.InRedisson(relock.WithLogger(logger))...).NewLock("a")
	section := w.Enter(t.Context(), l)
	_, err := l.TryLockFor(ctx, time.Minute)
	require.ErrorIs(t, err, context.Canceled, "the warning has ended the wait")
	w.Leave(section, l)
}

type writerFunc func(line []byte) (int, error)

func (f writerFunc) Write(line []byte) (int, error) { return f(line) }

func TestOfTheWaitersOfOneClientAMessageWakesOne(t *testing.T) {
	const waiters = 50
	w := stage.OnShared(t).ForRedisson()
	w.JavaLock("a")
	var queued atomic.Int32
	p := w.Peer(stage.InRedisson(relock.WithHooks(event.Hooks{Queued: func(event.Queued) { queued.Add(1) }}))...)
	asks := w.Answers(p)
	var all []*stage.Attempt
	for i := range waiters {
		all = append(all, w.Start(t.Context(), p.NewLock("a")))
		if i == 0 {
			w.AwaitAsks(asks, 2)
		}
		redistest.Eventually(t, w.Limit, func() bool { return int(queued.Load()) == i+1 }, "it waits")
	}
	require.Equal(t, 2, asks(), "those behind the first have not asked")
	require.Equal(t, 1, p.Faults.Commands("SUBSCRIBE"))
	for n := 3; n < 8; n++ { // Java frees the lock, and takes it again before anybody can ask
		require.NoError(t, w.Plain.Publish(t.Context(), stage.ChannelOf("a"), "0").Err())
		w.AwaitAsks(asks, n)
	}
	require.Equal(t, 7, asks(), "one call for each message")

	// They get in as they came, each with one call that is refused and one that is not.
	w.JavaUnlock("a")
	for i, a := range all {
		section := a.Section()
		for _, later := range all[i+1:] {
			require.True(t, later.Waits())
		}
		w.Leave(section, a.Lock)
	}
	require.LessOrEqual(t, asks(), 7+2*waiters)
	awaitGone(w, "a")
}

// The lease is long and the lock is free at once, so a message that is lost would be noticed.
func TestAWaiterThatGivesUpLeavesTheMessageToTheNext(t *testing.T) {
	w := stage.OnShared(t).ForRedisson()
	l := w.Peer(stage.InRedisson()...).NewLock("a")
	for range 60 {
		redistest.Eventually(t, w.Limit, func() bool { return w.JavaTryLock("a") }, "it is free")
		ctx, cancel := context.WithCancel(t.Context())
		gone := []*stage.Attempt{w.Start(ctx, l), w.Start(ctx, l), w.Start(ctx, l)}
		w.AwaitEars("a", 1)
		stays := w.Start(t.Context(), l)
		go func() {
			<-time.After(rand.N(300 * time.Microsecond))
			cancel()
		}()
		<-time.After(rand.N(300 * time.Microsecond))
		w.JavaUnlock("a")
		var left sync.WaitGroup
		for _, a := range gone {
			left.Go(func() {
				if <-a.Done; a.Err == nil {
					_ = a.Lock.Unlock(a.Ctx)
				}
			})
		}
		w.Leave(stays.Section(), l)
		left.Wait()
		awaitGone(w, "a")
		cancel()
	}
}

func TestACallBehindAnotherOfItsClientIsToldWhoHasTheLock(t *testing.T) {
	w := stage.OnShared(t).ForRedisson()
	p := w.Peer(stage.InRedisson()...)
	l := p.NewLock("a")
	w.JavaLock("a")
	stuck := p.Faults.Once(redistest.Named("SUBSCRIBE"), redistest.Hold())
	asks := w.Answers(p)
	first := w.Start(t.Context(), l)
	stuck.WaitHits(t, 1)
	require.Equal(t, stage.JavaHolder, refusalOf(w, l).Holder.String(), "also while the first one subscribes")
	stuck.LetGo()
	w.AwaitAsks(asks, 2)
	last := w.Start(t.Context(), l)
	w.JavaUnlock("a")
	section := first.Section()
	w.AwaitAsks(asks, 4) // last was refused
	field, _ := fieldOf(w, "a")
	require.Equal(t, field, refusalOf(w, l).Holder.String(), "the one that has it now, not Java")
	w.Leave(section, l)
	w.Leave(last.Section(), l)
}

// The call that asks for all gives up a silent connection, and asks on another one.
func TestASilentConnectionOfOneWaiterDoesNotKeepItsClientOut(t *testing.T) {
	const patient = 20 * time.Second
	w := stage.OnShared(t).ForRedisson()
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = patient, patient }, stage.InRedisson(relock.WithTTL(time.Second))...)
	l := p.NewLock("a")
	w.JavaLock("a")
	asks := w.Answers(p)
	first := w.Start(t.Context(), l)
	w.AwaitAsks(asks, 2)
	behind := w.Start(t.Context(), l)
	stuck := p.Faults.Once(w.Script(stage.LuaRedisson), redistest.Hold())
	w.JavaUnlock("a")
	stuck.WaitHits(t, 1)
	w.Leave(first.Section(), l)
	w.Leave(behind.Section(), l)
	stuck.LetGo()
	awaitGone(w, "a")
}

func TestAnUnlockWhilePubSubIsDownIsMadeUpForWhenItIsBack(t *testing.T) {
	for _, order := range []string{"cut first", "freed first", "down for a while"} {
		t.Run(order, func(t *testing.T) {
			w := stage.OnShared(t).ForRedisson()
			p := w.Peer(stage.InRedisson()...)
			w.JavaLock("a")
			asks := w.Answers(p)
			waiter := w.Start(t.Context(), p.NewLock("a"))
			w.AwaitAsks(asks, 2)
			behind := w.Start(t.Context(), p.NewLock("a"))
			switch order {
			case "cut first":
				p.Faults.CutPubSub()
				w.JavaUnlock("a")
			case "freed first": // the message is in flight when the connection breaks
				p.Faults.StallPubSub()
				w.JavaUnlock("a")
				p.Faults.CutPubSub()
			case "down for a while":
				p.Faults.Refuse()
				p.Faults.Cut()
				w.JavaUnlock("a")
				stage.SleepUntil(time.Now().Add(300 * time.Millisecond))
				require.True(t, waiter.Waits())
				p.Faults.Heal()
			}
			w.Leave(waiter.Section(), waiter.Lock)
			w.Leave(behind.Section(), behind.Lock)
			awaitGone(w, "a")
		})
	}
}

func TestAContendedLockInRedissonsLayoutIsSubscribedOnce(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		const rounds = 20
		java, _ := w.NewRedis()
		p := w.NewClient(stage.InRedisson()...)
		l := p.NewLock("a")
		acquires := func() int { return p.Net.Commands("EVALSHA", "EVAL") }
		var asked []int // in each round
		for range rounds {
			require.NoError(t, java.HSet(t.Context(), "a", stage.JavaHolder, 1).Err())
			require.NoError(t, java.PExpire(t.Context(), "a", time.Minute).Err())
			before := acquires()
			waiter := w.Start(t.Context(), l)
			stage.Settle()
			require.True(t, waiter.Waits())
			require.NoError(t, java.Del(t.Context(), "a").Err())
			require.NoError(t, java.Publish(t.Context(), stage.ChannelOf("a"), "0").Err())
			section := waiter.Section()
			asked = append(asked, acquires()-before)
			w.Leave(section, l)
			stage.Settle() // the message of the release is no message of the next round
		}
		require.Equal(t, 1, p.Net.Commands("SUBSCRIBE"))
		require.Zero(t, p.Net.Commands("UNSUBSCRIBE"))
		require.Equal(t, slices.Repeat([]int{2}, rounds-1), asked[1:], "once subscribed, the first refusal is enough to wait")
	})
}

func TestTwoNamesThatShareAChannelAreStillTwoLocks(t *testing.T) {
	w := stage.OnShared(t).ForRedisson()
	p := w.Peer(stage.InRedisson()...)
	w.JavaLock("a")
	w.JavaLock("{a}")
	bare, braced := w.Start(t.Context(), p.NewLock("a")), w.Start(t.Context(), p.NewLock("{a}"))
	w.AwaitEars("a", 1)
	w.JavaUnlock("{a}")
	w.Leave(braced.Section(), braced.Lock)
	require.True(t, bare.Waits())
	w.JavaUnlock("a")
	w.Leave(bare.Section(), bare.Lock)
}

func TestNestedEntriesAndExitsInRedissonsLayoutNeedNoMemory(t *testing.T) {
	w := stage.OnOwn(t, "--maxmemory-policy", "noeviction").ForRedisson()
	p := w.Peer(stage.InRedisson()...)
	l := p.NewLock("a")
	outer := w.Enter(t.Context(), l)
	inner := w.Enter(outer, l)
	require.NoError(t, w.Plain.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, w.Start(t.Context(), p.NewLock("b")).Failure(), "OOM")
	w.Leave(w.Enter(inner, l), l)
	w.Leave(inner, l)
	w.Leave(outer, l)
	require.Empty(t, redistest.Keys(t, w.Plain))
}

// onACL is an arena on a server that keeps users from channels, and from commands in scripts.
func onACL(t *testing.T) *stage.Arena {
	t.Helper()
	w := stage.OnOwn(t)
	if !w.Server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from channels or from commands in scripts in this way")
	}
	return w.ForRedisson()
}

// newACLUser makes a user, and a client of that user.
func newACLUser(w *stage.Arena, user string, rules []string, options ...relock.Option) *stage.Peer {
	w.T.Helper()
	args := []any{"ACL", "SETUSER", user, "reset", "on", ">" + user}
	for _, rule := range rules {
		args = append(args, rule)
	}
	require.NoError(w.T, w.Plain.Do(context.Background(), args...).Err())
	return w.PeerOn(func(o *redis.Options) { o.Username, o.Password = user, user }, stage.InRedisson(options...)...)
}

func TestARedisUserForRedissonsLayoutNeedsTheListAndNoMore(t *testing.T) {
	w := onACL(t)
	n := 0
	tour := func(without string, options ...relock.Option) error {
		n++
		rules := []string{"~app:*", "&redisson_lock__channel:*", "~redisson_lock_token:*"}
		for _, c := range slices.Concat(stage.RedissonACL, stage.RedissonFencingACL) {
			if c != without {
				rules = append(rules, "+"+c)
			}
		}
		options = append(options, relock.WithTTL(3*time.Second))
		user := fmt.Sprint("user", n)
		m := newACLUser(w, user, rules, options...)
		err := tourOf(w, m.NewLock("app:"+user))
		for again := 0; again < 5 && isLate(err); again++ {
			err = tourOf(w, m.NewLock(fmt.Sprint("app:", user, ":", again)))
		}
		return err
	}
	fencing := relock.WithRedissonFencing()
	require.NoError(t, tour(""))
	require.NoError(t, tour("", fencing))
	for _, c := range stage.RedissonFencingACL {
		require.NoError(t, tour(c), "only fenced locks need %s", c)
		require.Error(t, tour(c, fencing), c)
	}
	for _, c := range stage.RedissonACL {
		switch c {
		case "eval", "unsubscribe", "ping": // needed where a script is new, or seconds later
		default:
			require.Error(t, tour(c), c)
		}
	}
	require.NoError(t, w.Plain.FlushAll(t.Context()).Err())
}

// tourOf does everything that a lock can do, and returns an error that it has met.
// isLate says whether a machine was too busy for a tour. A right that is missing is another error.
func isLate(err error) bool {
	return errors.Is(err, relock.ErrLockLost) || errors.Is(err, context.DeadlineExceeded)
}

func tourOf(w *stage.Arena, l *relock.Lock) error {
	ctx, cancel := context.WithTimeout(w.T.Context(), 2*time.Second)
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
	waiter := w.Start(ctx, l)
	select { // the lease is renewed while somebody waits
	case <-waiter.Done:
		return waiter.Err
	case <-time.After(700 * time.Millisecond):
	}
	if err = l.Unlock(section); err != nil {
		return err
	}
	if <-waiter.Done; waiter.Err != nil {
		return waiter.Err
	}
	return l.ForceUnlock(ctx)
}

func TestAUserWhoMayNotSetLeasesLeavesNoLockWithoutOne(t *testing.T) {
	w := onACL(t)
	for _, options := range [][]relock.Option{nil, {relock.WithRedissonFencing()}} {
		p := newACLUser(w, "lessor", []string{"~*", "&*", "+@all", "-pexpire"}, options...)
		_, err := p.NewLock("a").TryLock(t.Context())
		require.ErrorContains(t, err, "can't run this command")
		w.JavaLock("a") // would wait without limit, if a lock without a lease were left
		w.JavaUnlock("a")
	}
}

func TestAUserWithoutRedissonsChannelsIsToldWhenItHasToWait(t *testing.T) {
	w := onACL(t)
	w.JavaLock("app:a")
	err := w.Start(t.Context(), newACLUser(w, "deaf", []string{"~app:*", "+@all"}).NewLock("app:a")).Failure()
	require.ErrorContains(t, err, "NOPERM")
	require.ErrorContains(t, err, "channel")

	// Waiters are told when they may not listen any more.
	p := newACLUser(w, "listener", []string{"~app:*", "&redisson_lock__channel:*", "+@all"})
	asks := w.Answers(p)
	waiters := []*stage.Attempt{w.Start(t.Context(), p.NewLock("app:a"))}
	w.AwaitAsks(asks, 2)
	for range 2 {
		waiters = append(waiters, w.Start(t.Context(), p.NewLock("app:a")))
	}
	require.NoError(t, w.Plain.Do(t.Context(), "ACL", "SETUSER", "listener", "resetchannels").Err()) // ends its subscriptions
	for _, waiter := range waiters {
		require.ErrorContains(t, waiter.Failure(), "NOPERM")
	}
	w.JavaUnlock("app:a")
}
