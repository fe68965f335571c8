package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// What each script promises in its header, on a real server, through the Go function that sends it. Each lock has a name
// that no other test uses, so the tests share a server; those that bend a server have one of their own.

// rig is one lock, seen from below the Client.
type rig struct {
	*testing.T
	server *redistest.Server
	rdb    *redis.Client // to look, and to meddle
	client *Client       // "me"
	wire   *wire         // of that client
	keys   *keys
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, redistest.Shared(t))
}

func newRigOn(t *testing.T, server *redistest.Server) *rig {
	t.Helper()
	rdb := server.Client()
	k, err := newKeys(DefaultPrefix, t.Name())
	require.NoError(t, err)
	r := &rig{T: t, server: server, rdb: rdb, keys: k}
	r.use(rdb)
	clean := func() { require.NoError(t, rdb.Del(context.Background(), k.base, k.queue, k.token).Err()) }
	clean() // with -count
	t.Cleanup(clean)
	return r
}

// use makes the rig's wire go through rdb.
func (r *rig) use(rdb *redis.Client) {
	r.Helper()
	r.client = newTestClient(r, rdb, "me")
	r.wire = r.client.wire
}

// hold is a new hold of a new holder, in whose section somebody works once it is entered.
func (r *rig) hold(options ...Option) *hold {
	r.Helper()
	return newTestHold(r, r.client, r.keys, NewHolder(), options...)
}

// wireOf is the wire of some other client.
func (r *rig) wireOf(client string) *wire {
	r.Helper()
	return newTestClient(r, r.rdb, client).wire
}

func (r *rig) look() view {
	r.Helper()
	return look(r, r.rdb, r.keys)
}

// once is for commands that must do without a second try.
var once = effort{tries: 1}

// enter takes the lock, which must be free, as a new hold.
func (r *rig) enter(options ...Option) *hold {
	r.Helper()
	h := r.hold(options...)
	require.Equal(r, acquireOurs, r.ask(h, 1).status)
	return h
}

// ask is an acquire that does not wait.
func (r *rig) ask(h *hold, target int) acquisition {
	r.Helper()
	got, _, err := r.wire.acquire(r.Context(), h, target, false, 0, once)
	require.NoError(r, err)
	return got
}

// join is an acquire that waits, as a client's, with an arrival if it has one. A client that does not listen yet does so
// for that moment: who cannot hear of a grant is not queued.
func (r *rig) join(h *hold, client string, arrival int64) acquisition {
	r.Helper()
	if r.listeners(client) == 0 {
		ps := r.listen(client)
		defer r.deafen(ps, client)
	}
	got, _, err := r.wireOf(client).acquire(r.Context(), h, 1, true, arrival, once)
	require.NoError(r, err)
	return got
}

// waiter is a new hold in the queue, of a client.
func (r *rig) waiter(client string, options ...Option) *hold {
	r.Helper()
	h := r.hold(options...)
	require.Equal(r, acquireQueued, r.join(h, client, 0).status)
	return h
}

func (r *rig) release(h *hold, target int) bool {
	r.Helper()
	there, _, err := r.wire.release(r.Context(), h, target, once)
	require.NoError(r, err)
	return there
}

func (r *rig) abandon(h *hold, client string) {
	r.Helper()
	require.Equal(r, []error{nil}, r.wireOf(client).abandon(r.Context(), []*orphan{{hold: h}}))
}

func (r *rig) renew(batch ...renewal) []renewal {
	r.Helper()
	r.wire.renew(r.Context(), batch)
	return batch
}

func (r *rig) owner() string {
	r.Helper()
	s, err := r.wire.state(r.Context(), r.keys, once)
	require.NoError(r, err)
	return s.hold
}

// listen subscribes as a client to the lock's channel.
func (r *rig) listen(client string) *redis.PubSub {
	r.Helper()
	ps := r.rdb.Subscribe(r.Context(), r.keys.channel(client))
	r.Cleanup(func() { _ = ps.Close() })
	_, err := ps.ReceiveTimeout(r.Context(), 10*time.Second)
	require.NoError(r, err)
	return ps
}

// listeners is how many hear the channel of a client.
func (r *rig) listeners(client string) int64 {
	r.Helper()
	channel := r.keys.channel(client)
	n, err := r.rdb.PubSubNumSub(r.Context(), channel).Result()
	require.NoError(r, err)
	return n[channel]
}

// deafen ends what listen began.
func (r *rig) deafen(ps *redis.PubSub, client string) {
	r.Helper()
	require.NoError(r, ps.Close())
	redistest.Eventually(r, 10*time.Second, func() bool { return r.listeners(client) == 0 }, "unsubscribed")
}

// granted is the next message, which must come.
func (r *rig) granted(ps *redis.PubSub) (hold string, token int64) {
	r.Helper()
	m, err := ps.ReceiveTimeout(r.Context(), 10*time.Second)
	require.NoError(r, err)
	msg, ok := m.(*redis.Message)
	require.True(r, ok, "%T", m)
	hold, token, ok = grantMessage(msg.Payload)
	require.True(r, ok, msg.Payload)
	return hold, token
}

// nothingElse says that no message is on its way: none comes before an answer to PING.
func (r *rig) nothingElse(ps *redis.PubSub) {
	r.Helper()
	require.NoError(r, ps.Ping(r.Context()))
	m, err := ps.ReceiveTimeout(r.Context(), 10*time.Second)
	require.NoError(r, err)
	require.IsType(r, &redis.Pong{}, m, "a message too many: %v", m)
}

// leaseIs says that the lease of the owner was set to ttl just now.
func (r *rig) leaseIs(ttl time.Duration) {
	r.Helper()
	v := r.look()
	require.InDelta(r, v.now.Add(ttl).UnixMilli(), v.baseEnd, 2000, "the lease")
}

// unchanged runs f and says that it left every key of the lock as it was, whatever its type, with its end.
func (r *rig) unchanged(f func()) {
	r.Helper()
	before := r.dump()
	f()
	require.Equal(r, before, r.dump(), "f changed the lock")
}

func (r *rig) dump() map[string]string {
	r.Helper()
	all := map[string]string{}
	for _, key := range []string{r.keys.base, r.keys.queue, r.keys.token} {
		var content any
		var err error
		switch kind := r.rdb.Type(r.Context(), key).Val(); kind {
		case "none":
			continue
		case "hash":
			content, err = r.rdb.HGetAll(r.Context(), key).Result()
		case "zset":
			content, err = r.rdb.ZRangeWithScores(r.Context(), key, 0, -1).Result()
		case "string":
			content, err = r.rdb.Get(r.Context(), key).Result()
		case "set":
			content, err = r.rdb.SMembers(r.Context(), key).Result()
		default:
			require.Fail(r, "no way to read a "+kind)
		}
		require.NoError(r, err)
		end, err := r.rdb.Do(r.Context(), "PEXPIRETIME", key).Int64()
		if err != nil { // Redis before 7
			end = 0
		}
		all[strings.TrimPrefix(key, r.keys.base)] = fmt.Sprintf("%v until %d", content, end)
	}
	return all
}

// ---------------------------------------------------------------------------------------------------------------------
// acquire

func TestAFirstEntryTakesAFreeLock(t *testing.T) {
	r := newRig(t)
	before, err := r.rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	h := r.hold(WithTTL(20 * time.Second))
	got := r.ask(h, 1)
	v := r.look()
	require.Equal(t, acquisition{status: acquireOurs, token: v.token}, got)
	require.Equal(t, map[string]string{h.id: "1"}, v.hash)
	require.GreaterOrEqual(t, got.token, before.UnixMicro(), "never below the server's clock")
	require.Empty(t, v.queue)
	r.leaseIs(20 * time.Second)
	require.InDelta(t, v.now.Add(24*time.Hour).UnixMilli(), v.tokenEnd, 2000, "the token's key")

	require.Equal(t, got, r.ask(h, 1), "asked again, it says the same")
	require.Equal(t, v.hash, r.look().hash)
}

func TestAFirstEntryThatWaitsTakesAFreeLockWithoutJoiningTheQueue(t *testing.T) {
	r := newRig(t)
	h := r.hold()
	require.Equal(t, acquireOurs, r.join(h, "a", 0).status)
	require.Empty(t, r.look().queue)
	require.Equal(t, acquireOurs, r.join(h, "a", 0).status, "asked again")
	require.Empty(t, r.look().queue)
}

func TestAnEntryIsRefusedWhileAnotherHoldOwnsTheLock(t *testing.T) {
	r := newRig(t)
	owner := r.enter(WithTTL(20 * time.Second))
	r.unchanged(func() {
		got := r.ask(r.hold(), 1)
		require.Equal(t, acquireBusy, got.status)
		require.Equal(t, owner.id, got.owner)
		require.InDelta(t, 20*time.Second, got.remaining, float64(2*time.Second))
	})
}

func TestAnotherHoldOfTheSameHolderIsAnotherHold(t *testing.T) {
	r := newRig(t)
	owner := r.enter()
	next := r.hold()
	next.holder, next.id = owner.holder, owner.holder.newHold()
	require.Equal(t, acquireBusy, r.ask(next, 1).status)
	require.False(t, r.release(next, 0))
	require.Equal(t, map[string]string{owner.id: "1"}, r.look().hash)
}

func TestReentrySetsTheCountAndTheLease(t *testing.T) {
	r := newRig(t)
	h := r.enter(WithTTL(20 * time.Second))
	token := r.look().token
	require.NoError(t, r.rdb.PExpire(t.Context(), r.keys.base, 5*time.Second).Err())
	require.Equal(t, acquisition{status: acquireOurs, token: token}, r.ask(h, 2))
	require.Equal(t, map[string]string{h.id: "2", "step": "2"}, r.look().hash)
	r.leaseIs(20 * time.Second)
	r.ask(h, 3)
	require.Equal(t, map[string]string{h.id: "3", "step": "3"}, r.look().hash)
	require.Equal(t, token, r.look().token, "one hold, one token")
}

func TestReentryLeavesAFixedLeaseAlone(t *testing.T) {
	r := newRig(t)
	h := r.enter(WithFixedLease(20 * time.Second))
	require.NoError(t, r.rdb.PExpire(t.Context(), r.keys.base, 5*time.Second).Err())
	r.ask(h, 2)
	r.leaseIs(5 * time.Second)
	require.True(t, r.release(h, 1))
	r.leaseIs(5 * time.Second)
}

func TestALeaseOnlyMovesLater(t *testing.T) {
	r := newRig(t)
	h := r.enter(WithTTL(10 * time.Second))
	there, _, err := r.wire.extend(t.Context(), h, 50*time.Second, once)
	require.NoError(t, err)
	require.True(t, there)
	r.leaseIs(50 * time.Second)
	r.ask(h, 1) // the first entry, late
	r.leaseIs(50 * time.Second)
	r.ask(h, 2)
	r.leaseIs(50 * time.Second)
	require.True(t, r.release(h, 1))
	r.leaseIs(50 * time.Second)
	require.False(t, r.renew(renewal{hold: h, ttl: 20 * time.Second})[0].lost)
	r.leaseIs(50 * time.Second)
	require.False(t, r.renew(renewal{hold: h, ttl: 60 * time.Second})[0].lost)
	r.leaseIs(60 * time.Second)
}

// A grant that replicas are to confirm is asked for once more, on a connection that has written nothing of it yet. WAIT looks at
// what its connection has written.
func TestAnEntryThatIsAskedForInTheMillisecondInWhichItsLeaseWasSetSetsItOnceMore(t *testing.T) {
	const lease = 20 * time.Second
	r := newRig(t)
	h := r.enter(WithTTL(lease))
	const call = "local call = redis.call\n"
	require.Contains(t, acquireScript.source, call)
	inThatMillisecond := strings.Replace(acquireScript.source, call, `
local function call(...)
  if ... == 'PTTL' then
    return 20000
  end
  return redis.call(...)
end
`, 1)
	require.NoError(t, r.rdb.PExpire(t.Context(), r.keys.base, time.Second).Err()) // so that it can be seen
	r.eval(inThatMillisecond, native{}.acquire(r.wire, h, change{target: 1, step: 1, lease: lease}, false, 0))
	r.leaseIs(lease)
}

func TestReentryIntoALockThatWasLostTouchesNothing(t *testing.T) {
	for _, after := range []string{"free", "another owner", "a newer hold of the same holder"} {
		t.Run(after, func(t *testing.T) {
			r := newRig(t)
			h := r.enter()
			require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
			switch after {
			case "another owner":
				r.enter()
			case "a newer hold of the same holder":
				next := r.hold()
				next.holder, next.id = h.holder, h.holder.newHold()
				require.Equal(t, acquireOurs, r.ask(next, 1).status)
			}
			r.unchanged(func() { require.Equal(t, acquisition{status: acquireLost}, r.ask(h, 2)) })
		})
	}
}

func TestWaitersQueueInTheOrderOfTheirArrival(t *testing.T) {
	r := newRig(t)
	owner := r.enter(WithTTL(20 * time.Second))
	first, second := r.hold(WithTTL(10*time.Second)), r.hold(WithTTL(40*time.Second))
	before := r.look().now

	a := r.join(first, "a", 0)
	require.Equal(t, acquireQueued, a.status)
	require.Equal(t, owner.id, a.owner)
	require.Zero(t, a.position)
	require.InDelta(t, 20*time.Second, a.remaining, float64(2*time.Second))
	require.GreaterOrEqual(t, a.arrival, before.UnixMicro())
	v := r.look()
	require.GreaterOrEqual(t, v.queueEnd, v.now.Add(20*time.Second+10*time.Second+55*time.Second).UnixMilli(),
		"it outlives the owner's lease, and a lease of the waiter's after that")

	b := r.join(second, "b", 0)
	require.Equal(t, 1, b.position)
	require.Greater(t, b.arrival, a.arrival)
	v = r.look()
	require.Equal(t, []redis.Z{
		{Score: float64(a.arrival), Member: first.id + "|a|10000"},
		{Score: float64(b.arrival), Member: second.id + "|b|40000"},
	}, v.queue)
	require.GreaterOrEqual(t, v.queueEnd, v.now.Add(40*time.Second+40*time.Second+55*time.Second).UnixMilli())

	// Asking again, with the arrival or without, changes nothing, and does not shorten the life of the queue.
	end := v.queueEnd
	for _, arrival := range []int64{0, a.arrival} {
		again := r.join(first, "a", arrival)
		require.Equal(t, a.arrival, again.arrival)
		require.Zero(t, again.position)
	}
	require.Equal(t, v.queue, r.look().queue)
	require.GreaterOrEqual(t, r.look().queueEnd, end)
}

func TestAWaiterThatRejoinsWithItsFirstArrivalHasItsPlaceAgain(t *testing.T) {
	r := newRig(t)
	r.enter()
	first, second := r.hold(), r.hold()
	a := r.join(first, "a", 0)
	r.join(second, "b", 0)
	require.NoError(t, r.rdb.ZRem(t.Context(), r.keys.queue, r.look().queue[0].Member).Err())

	again := r.join(first, "a", a.arrival)
	require.Equal(t, acquireQueued, again.status)
	require.Equal(t, a.arrival, again.arrival)
	require.Zero(t, again.position)
}

func TestANewWaiterIsBehindOneWhoseArrivalLiesAheadOfTheClock(t *testing.T) {
	// As after a clock that was turned back, or two arrivals in one microsecond.
	r := newRig(t)
	r.enter()
	ahead := time.Now().Add(time.Hour).UnixMicro()
	require.Equal(t, ahead, r.join(r.hold(), "a", ahead).arrival)
	for i := range int64(3) {
		next := r.join(r.hold(), "a", 0)
		require.Equal(t, ahead+1+i, next.arrival)
		require.Equal(t, int(1+i), next.position)
	}
}

func TestAWaiterWhoseClientDoesNotListenIsNotQueued(t *testing.T) {
	r := newRig(t)
	owner := r.enter(WithTTL(20 * time.Second))
	r.listen("somebody else")
	h := r.hold()
	var got acquisition
	r.unchanged(func() {
		var err error
		got, _, err = r.wire.acquire(t.Context(), h, 1, true, 0, once)
		require.NoError(t, err)
	})
	require.Equal(t, acquireBusy, got.status)
	require.Equal(t, owner.id, got.owner)
	require.InDelta(t, 20*time.Second, got.remaining, float64(2*time.Second))

	// Whoever stands in the queue already and hears nothing any more is told so too, and keeps its place for the time
	// when it listens again.
	arrival := r.join(h, "me", 0).arrival
	r.unchanged(func() {
		got, _, err := r.wire.acquire(t.Context(), h, 1, true, arrival, once)
		require.NoError(t, err)
		require.Equal(t, acquireBusy, got.status)
	})
	require.Equal(t, arrival, r.join(h, "me", arrival).arrival)
}

func TestAGrantTakesTheWayOnWhichItsClientListens(t *testing.T) {
	for name, c := range map[string]struct {
		sharded bool // the scripts are told so
		plain   bool // how the waiter listens
	}{
		"plain":                         {plain: true},
		"sharded":                       {sharded: true},
		"sharded, and the waiter plain": {sharded: true, plain: true},
		"plain, and the waiter sharded": {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if !c.plain && !r.server.AtLeast(7, 0) {
				redistest.NotTested(t, "Redis before 7 has no sharded pub/sub")
			}
			r.wire.sharded.Store(c.sharded)
			ps := r.rdb.Subscribe(t.Context())
			defer ps.Close()
			if c.plain {
				require.NoError(t, ps.Subscribe(t.Context(), r.keys.channel("me")))
			} else {
				require.NoError(t, ps.SSubscribe(t.Context(), r.keys.channel("me")))
			}
			_, err := ps.ReceiveTimeout(t.Context(), 10*time.Second)
			require.NoError(t, err)
			owner, h := r.enter(), r.hold()
			got, _, err := r.wire.acquire(t.Context(), h, 1, true, 0, once)
			require.NoError(t, err)
			require.Equal(t, acquireQueued, got.status)
			require.True(t, r.release(owner, 0))
			hold, token := r.granted(ps)
			require.Equal(t, h.id, hold)
			require.Equal(t, r.look().token, token)
			require.Equal(t, map[string]string{h.id: "1"}, r.look().hash)
		})
	}
}

// TestAWaiterWithShardedPubSubIsServedByAClientWithoutIt is for two clients of a cluster that have learnt at different times what its
// nodes can do.
func TestAWaiterWithShardedPubSubIsServedByAClientWithoutIt(t *testing.T) {
	for what, free := range map[string]func(r *rig, owner *hold){
		"release": func(r *rig, owner *hold) { require.True(t, r.release(owner, 0)) },
		"force": func(r *rig, owner *hold) {
			require.NoError(t, r.wire.forceRelease(t.Context(), r.keys, owner.id, once))
		},
		"abandon": func(r *rig, owner *hold) { r.abandon(owner, "me") },
		"an entry when the lease is over": func(r *rig, _ *hold) {
			require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
			r.ask(r.hold(), 1)
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			if !r.server.AtLeast(7, 0) {
				redistest.NotTested(t, "Redis before 7 has no sharded pub/sub")
			}
			ps := r.rdb.Subscribe(t.Context())
			defer ps.Close()
			require.NoError(t, ps.SSubscribe(t.Context(), r.keys.channel("b")))
			_, err := ps.ReceiveTimeout(t.Context(), 10*time.Second)
			require.NoError(t, err)
			b := r.wireOf("b")
			b.sharded.Store(true)
			owner, h := r.enter(), r.hold()
			got, _, err := b.acquire(t.Context(), h, 1, true, 0, once)
			require.NoError(t, err)
			require.Equal(t, acquireQueued, got.status)
			free(r, owner)
			hold, _ := r.granted(ps)
			require.Equal(t, h.id, hold)
			require.Equal(t, h.id, r.owner())
		})
	}
}

// TestAReplicaThatDoesNotKnowAHoldIsNotBelieved asks one that has been demoted, and has not heard yet of what its new master has.
func TestAReplicaThatDoesNotKnowAHoldIsNotBelieved(t *testing.T) {
	stale := redistest.Start(t).Client()
	require.NoError(t, stale.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	ctx := t.Context()
	for what, send := range map[string]func(w *wire, h *hold) error{
		"the last exit": func(w *wire, h *hold) error { _, _, err := w.release(ctx, h, 0, once); return err },
		"an inner exit": func(w *wire, h *hold) error { _, _, err := w.release(ctx, h, 1, once); return err },
		"a nested entry": func(w *wire, h *hold) error {
			_, _, err := w.acquire(ctx, h, 2, false, 0, once)
			return err
		},
		"extend":        func(w *wire, h *hold) error { _, _, err := w.extend(ctx, h, time.Minute, once); return err },
		"force release": func(w *wire, h *hold) error { return w.forceRelease(ctx, h.keys, h.id, once) },
		"a pass":        func(w *wire, h *hold) error { _, err := w.pass(ctx, h.keys, h.id, 1, "x:1:1", once); return err },
		"a renewal": func(w *wire, h *hold) error {
			batch := []renewal{{hold: h, ttl: time.Minute}}
			w.renew(ctx, batch)
			require.False(t, batch[0].lost)
			return batch[0].err
		},
	} {
		for layout, options := range map[string][]Option{"": nil, ", Redisson": {WithRedissonLayout()}} {
			t.Run(what+layout, func(t *testing.T) {
				c, err := New(stale, options...)
				require.NoError(t, err)
				defer func() { require.NoError(t, c.Close()) }()
				h := c.NewLock("x").newHold(NewHolder(), "")
				h.frames = &frame{hold: h, ctx: ctx}
				err = send(c.wire, h)
				require.ErrorContains(t, err, "READONLY")
				require.Equal(t, passing, judge(err))
			})
		}
	}
}

func TestAFreeLockGoesToTheHeadOfTheQueueBeforeACallerWhoIsNotInIt(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprintf("caller waits %t", waits), func(t *testing.T) {
			r := newRig(t)
			r.enter()
			ps := r.listen("a")
			r.listen("me")
			head := r.waiter("a", WithTTL(40*time.Second))
			require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
			top := r.look().token

			caller := r.hold()
			got, _, err := r.wire.acquire(t.Context(), caller, 1, waits, 0, once)
			require.NoError(t, err)
			require.Equal(t, head.id, got.owner)
			require.InDelta(t, 40*time.Second, got.remaining, float64(2*time.Second), "the lease that the head asked for")
			v := r.look()
			require.Equal(t, map[string]string{head.id: "1"}, v.hash)
			require.Greater(t, v.token, top)
			hold, token := r.granted(ps)
			require.Equal(t, head.id, hold)
			require.Greater(t, token, top)
			if !waits {
				require.Equal(t, v.token, token)
				require.Equal(t, acquireBusy, got.status)
				require.Empty(t, v.queue)
				return
			}
			require.Equal(t, acquireQueued, got.status)
			require.Zero(t, got.position)
			require.Len(t, v.queue, 1)
			if r.server.AtLeast(7, 2) { // where the time stands still in a script
				require.Nil(t, v.prepared, "a token behind the head's would be ahead of the clock")
			} else {
				require.Greater(t, v.prepared.token, token, "and the caller's turn is prepared")
			}
		})
	}
}

func TestAWaiterThatAsksWhenTheLockIsFreeAndItsTurnHasComeGetsItByTheReply(t *testing.T) {
	r := newRig(t)
	r.enter()
	ps := r.listen("a")
	h := r.waiter("a")
	behind := r.waiter("a")
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
	got := r.join(h, "a", 0)
	v := r.look()
	require.Equal(t, acquisition{status: acquireOurs, token: v.token}, got)
	require.Equal(t, map[string]string{h.id: "1"}, v.hash)
	require.Len(t, v.queue, 1, "%s waits on", behind.id)
	r.nothingElse(ps)
}

func TestAFreeLockIsTakenOverTheHeadsOfClientsThatAreGone(t *testing.T) {
	r := newRig(t)
	r.enter()
	for range 3 {
		r.waiter("gone")
	}
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
	h := r.enter()
	v := r.look()
	require.Equal(t, map[string]string{h.id: "1"}, v.hash)
	require.Zero(t, v.queueEnd, "the queue is gone")
	r.leaseIs(h.ttl)
}

func TestATokenIsAboveTheLastOneAlsoIfTheClockWasTurnedBack(t *testing.T) {
	r := newRig(t)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.token, ahead, time.Hour).Err())
	for i := range int64(3) {
		h := r.hold()
		require.Equal(t, ahead+1+i, r.ask(h, 1).token)
		// A day from when the clock is where it was: else the key would end, and the next token would be lower.
		require.InDelta(t, time.UnixMicro(ahead).Add(24*time.Hour).UnixMilli(), r.look().tokenEnd, 2000)
		require.True(t, r.release(h, 0))
	}
}

func TestATokenIsAboveTheLastOneAlsoIfItsKeyIsGone(t *testing.T) {
	r := newRig(t)
	last := int64(0)
	for range 5 {
		h := r.hold()
		token := r.ask(h, 1).token
		require.Greater(t, token, last)
		last = token
		require.True(t, r.release(h, 0))
		require.NoError(t, r.rdb.Del(t.Context(), r.keys.token).Err())
	}
}

func TestReentryAfterTheTokenKeyIsGoneStillAnswersWithAToken(t *testing.T) {
	r := newRig(t)
	h := r.enter()
	last := r.look().token
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.token).Err())
	got := r.ask(h, 2)
	require.Equal(t, acquireOurs, got.status)
	require.Greater(t, got.token, last)
	require.Equal(t, map[string]string{h.id: "2", "step": "2"}, r.look().hash)
}

// ---------------------------------------------------------------------------------------------------------------------
// release

func TestTheLastReleaseFreesTheLockAndLeavesOnlyTheTokenBehind(t *testing.T) {
	for _, entries := range []int{1, 2, 3} {
		t.Run(strconv.Itoa(entries), func(t *testing.T) {
			r := newRig(t)
			h := r.enter()
			for n := 2; n <= entries; n++ {
				r.ask(h, n)
			}
			token := r.look().token
			require.True(t, r.release(h, 0))
			v := r.look()
			require.Zero(t, v.baseEnd)
			require.Zero(t, v.queueEnd)
			require.Equal(t, token, v.token)
			require.Positive(t, v.tokenEnd)
			require.False(t, r.release(h, 0), "it is not there any more")
		})
	}
}

func TestAPartialReleaseSetsTheCountAndTheLease(t *testing.T) {
	r := newRig(t)
	h := r.enter(WithTTL(20 * time.Second))
	r.ask(h, 2)
	r.ask(h, 3)
	require.NoError(t, r.rdb.PExpire(t.Context(), r.keys.base, 5*time.Second).Err())
	require.True(t, r.release(h, 2))
	require.Equal(t, map[string]string{h.id: "2", "step": "4"}, r.look().hash)
	r.leaseIs(20 * time.Second)
	require.True(t, r.release(h, 1))
	require.Equal(t, map[string]string{h.id: "1", "step": "5"}, r.look().hash)
}

func TestAReleaseOfAHoldThatIsNotTheOwnerTouchesNothing(t *testing.T) {
	for _, target := range []int{0, 1} {
		for _, state := range []string{"free", "another owner"} {
			t.Run(fmt.Sprintf("%d, %s", target, state), func(t *testing.T) {
				r := newRig(t)
				if state == "another owner" {
					r.enter()
					r.waiter("a")
				}
				r.unchanged(func() { require.False(t, r.release(r.hold(), target)) })
			})
		}
	}
}

func TestAStepThatComesLateDoesNotSetTheCount(t *testing.T) {
	r := newRig(t)
	h := r.enter()
	r.ask(h, 2)                      // step 2
	require.True(t, r.release(h, 1)) // step 3
	r.ask(h, 2)                      // step 4
	want := map[string]string{h.id: "2", "step": "4"}
	late := func(step int64) *hold {
		old := *h
		old.steps = step - 1
		return &old
	}
	require.Equal(t, acquireOurs, r.ask(h, 1).status, "the first entry")
	require.Equal(t, want, r.look().hash)
	require.Equal(t, acquireOurs, r.ask(late(2), 3).status)
	require.Equal(t, want, r.look().hash)
	require.True(t, r.release(late(3), 1))
	require.Equal(t, want, r.look().hash)
	require.Equal(t, acquireOurs, r.ask(late(4), 2).status, "the same step again")
	require.Equal(t, want, r.look().hash)
	require.True(t, r.release(late(5), 1), "the next step")
	require.Equal(t, map[string]string{h.id: "1", "step": "5"}, r.look().hash)
}

func TestALateStepDoesNotSetTheLease(t *testing.T) {
	r := newRig(t)
	h := r.enter(WithTTL(20 * time.Second))
	r.ask(h, 2)
	r.ask(h, 3)
	require.NoError(t, r.rdb.PExpire(t.Context(), r.keys.base, 5*time.Second).Err())
	old := *h
	old.steps = 1
	r.ask(&old, 2)
	r.leaseIs(5 * time.Second)
}

func TestNoCommandOfAnOlderHoldTouchesANewerOneOfTheSameHolder(t *testing.T) {
	for name, late := range map[string]func(r *rig, old *hold){
		"first entry": func(r *rig, old *hold) { require.Equal(r, acquireBusy, r.ask(old, 1).status) },
		"re-entry":    func(r *rig, old *hold) { require.Equal(r, acquireLost, r.ask(old, 2).status) },
		"re-entry of a far later step": func(r *rig, old *hold) {
			old.steps = 1000
			require.Equal(r, acquireLost, r.ask(old, 7).status)
		},
		"partial release": func(r *rig, old *hold) { require.False(r, r.release(old, 1)) },
		"last release":    func(r *rig, old *hold) { require.False(r, r.release(old, 0)) },
		"renewal":         func(r *rig, old *hold) { require.True(r, r.renew(renewal{hold: old, ttl: time.Hour})[0].lost) },
		"abandon":         func(r *rig, old *hold) { r.abandon(old, "me") },
		"force release": func(r *rig, old *hold) {
			require.NoError(r, r.wire.forceRelease(r.Context(), r.keys, old.id, once))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			old := r.enter()
			r.ask(old, 2)
			require.True(t, r.release(old, 0))
			newer := newTestHold(t, r.client, r.keys, old.holder)
			require.Equal(t, acquireOurs, r.ask(newer, 1).status)
			r.ask(newer, 2)
			r.waiter("a")
			r.unchanged(func() { late(r, old) })
		})
	}
}

func TestACommandThatWasGivenUpAndRunsLaterFindsALaterStep(t *testing.T) {
	r, f := faulty(t)
	h := r.enter()
	rule := f.Once(scripts, redistest.Hold())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		rule.WaitHits(t, 1)
		cancel()
	}()
	_, a, err := r.wire.acquire(ctx, h, 2, false, 0, effort{})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, a.unsure || a.gaveUp)
	require.Equal(t, acquireOurs, r.ask(h, 2).status, "another entry, which takes the next step")
	require.True(t, r.release(h, 1))
	r.unchanged(func() { require.Len(t, rule.Release(t), 1) })
	require.Equal(t, map[string]string{h.id: "1", "step": "4"}, r.look().hash)
}

func TestTheLastReleaseGrantsInTheOrderOfTheQueue(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	top := r.look().token
	var waiters []*hold
	for i := range 5 {
		waiters = append(waiters, r.waiter("a", WithTTL(time.Duration(20+10*i)*time.Second)))
	}
	for i, next := range waiters {
		require.True(t, r.release(owner, 0))
		hold, token := r.granted(ps)
		require.Equal(t, next.id, hold)
		require.Greater(t, token, top)
		v := r.look()
		require.Equal(t, map[string]string{next.id: "1"}, v.hash)
		require.Equal(t, token, v.token)
		require.Len(t, v.queue, len(waiters)-1-i)
		r.leaseIs(next.ttl)
		require.Equal(t, acquisition{status: acquireOurs, token: token}, r.ask(next, 1), "asking says the same")
		owner, top = next, token
	}
	require.True(t, r.release(owner, 0))
	require.Zero(t, r.look().baseEnd)
	r.nothingElse(ps)
}

func TestAReleaseThatRunsTwiceGrantsOnce(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	first, second := r.waiter("a"), r.waiter("a")
	again := *owner
	require.True(t, r.release(owner, 0))
	r.unchanged(func() { require.False(t, r.release(&again, 0)) })
	hold, _ := r.granted(ps)
	require.Equal(t, first.id, hold)
	r.nothingElse(ps)
	require.Len(t, r.look().queue, 1, second.id)
}

func TestAGrantSkipsWaitersWhoseClientDoesNotListen(t *testing.T) {
	r := newRig(t)
	ps := r.listen("here")
	owner := r.enter()
	r.waiter("gone")
	r.waiter("away")
	heir := r.waiter("here")
	last := r.waiter("gone")
	top := r.look().token
	require.True(t, r.release(owner, 0))
	hold, token := r.granted(ps)
	require.Equal(t, heir.id, hold)
	require.Greater(t, token, top)
	v := r.look()
	require.Equal(t, map[string]string{heir.id: "1"}, v.hash)
	require.Len(t, v.queue, 1, "%s was behind", last.id)
	r.leaseIs(heir.ttl)

	require.True(t, r.release(heir, 0))
	v = r.look()
	require.Zero(t, v.baseEnd, "nobody listens, so it is free")
	require.Zero(t, v.queueEnd)
	require.Positive(t, v.tokenEnd)
	r.nothingElse(ps)
}

func TestAGrantIsSentToTheWaitersClientAlone(t *testing.T) {
	r := newRig(t)
	a, b := r.listen("a"), r.listen("b")
	owner := r.enter()
	r.waiter("b")
	require.True(t, r.release(owner, 0))
	r.granted(b)
	r.nothingElse(a)
}

func TestAGrantSkipsWhatIsNoWaiter(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	for i, junk := range []string{"", "junk", "|", "||", "x|y|", "x|y|-5", "x|y|1.5", "|a|5", "x||5"} {
		require.NoError(t, r.rdb.ZAdd(t.Context(), r.keys.queue, redis.Z{Score: float64(i), Member: junk}).Err())
	}
	h := r.waiter("a")
	require.True(t, r.release(owner, 0))
	hold, _ := r.granted(ps)
	require.Equal(t, h.id, hold)
	v := r.look()
	require.Equal(t, map[string]string{h.id: "1"}, v.hash)
	require.Empty(t, v.queue)
}

func TestAWaiterIsNotBehindWhatStandsInTheQueueAtNoTime(t *testing.T) {
	for _, score := range []float64{math.Inf(1), 1e19, 1e18} {
		t.Run(fmt.Sprint(score), func(t *testing.T) {
			r := newRig(t)
			ps := r.listen("a")
			owner := r.enter()
			require.NoError(t, r.rdb.ZAdd(t.Context(), r.keys.queue, redis.Z{Score: score, Member: "junk"}).Err())
			first, second := r.hold(), r.hold()
			for i, h := range []*hold{first, second} {
				got := r.join(h, "a", 0)
				require.Equal(t, acquireQueued, got.status)
				require.Equal(t, i, got.position)
				require.WithinDuration(t, time.Now(), time.UnixMicro(got.arrival), time.Minute)
			}
			for _, h := range []*hold{first, second} {
				require.True(t, r.release(owner, 0))
				hold, _ := r.granted(ps)
				require.Equal(t, h.id, hold)
				owner = h
			}
		})
	}
}

// backInTime is a script during which the server's clock goes back by more than any lease. Redis sets a lease by its clock, and
// whether it is over by the time at which the script has begun, so what is given one is gone for the rest of the script.
func backInTime(t *testing.T, s *script) string {
	t.Helper()
	const call = "local call = redis.call\n"
	require.Contains(t, s.source, call)
	return strings.Replace(s.source, call, `
local leased = {}
local function call(...)
  local command, key = ...
  if key and leased[key] then
    redis.call('DEL', key)
    leased[key] = nil
  end
  if command == 'PEXPIRE' then
    leased[key] = true
  end
  return redis.call(...)
end
`, 1)
}

// eval runs another source with the arguments of a request.
func (r *rig) eval(source string, q *request) any {
	r.Helper()
	args := q.command(r.Context(), false).Args()
	reply, err := r.rdb.Do(r.Context(), append([]any{"EVAL", source}, args[2:]...)...).Result()
	require.NoError(r, err)
	return reply
}

func TestAScriptDuringWhichTheClockGoesBackLeavesNoKeyWithoutAnEnd(t *testing.T) {
	ends := func(r *rig) {
		r.Helper()
		for _, key := range []string{r.keys.base, r.keys.queue, r.keys.token} {
			left, err := r.rdb.PTTL(t.Context(), key).Result()
			require.NoError(r, err)
			require.NotEqual(r, time.Duration(-1), left, key)
		}
	}
	t.Run("a waiter joins", func(t *testing.T) {
		r := newRig(t)
		r.enter()
		r.listen("me")
		got, err := native{}.acquisition(r.eval(backInTime(t, acquireScript),
			native{}.acquire(r.wire, r.hold(), change{target: 1, step: 1, lease: time.Minute}, true, 0)))
		require.NoError(t, err)
		require.Equal(t, acquireQueued, got.status)
		ends(r)
	})
	t.Run("a waiter joins, and the one before it is granted the lock", func(t *testing.T) {
		r := newRig(t)
		r.listen("me")
		owner := r.enter()
		first := r.waiter("me")
		r.waiter("me") // so that the queue stays
		require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err(), "the lease of %s is over", owner.id)
		require.NoError(t, r.rdb.Expire(t.Context(), r.keys.queue, time.Hour).Err(), "it need not be set")
		got, err := native{}.acquisition(r.eval(backInTime(t, acquireScript),
			native{}.acquire(r.wire, r.hold(), change{target: 1, step: 1, lease: time.Minute}, true, 0)))
		require.NoError(t, err)
		require.Equal(t, acquireQueued, got.status)
		require.Equal(t, first.id, got.owner)
		ends(r)
	})
	t.Run("a release that is prepared", func(t *testing.T) {
		r := newRig(t)
		ps := r.listen("me")
		owner, heir := r.enter(), r.waiter("me")
		require.Equal(t, int64(1), r.eval(backInTime(t, releaseScript), native{}.release(r.wire, owner, change{})))
		hold, _ := r.granted(ps)
		require.Equal(t, heir.id, hold)
		ends(r)
	})
	t.Run("a release that is not", func(t *testing.T) {
		r := newRig(t)
		r.listen("me")
		owner := r.enter()
		r.waiter("me")
		r.waiter("me")
		require.NoError(t, r.rdb.HDel(t.Context(), r.keys.base, "next").Err())
		require.Equal(t, int64(1), r.eval(backInTime(t, releaseScript), native{}.release(r.wire, owner, change{})))
		ends(r)
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// renew

func TestRenewSaysWhichHoldsAreGoneAndRenewsTheOthers(t *testing.T) {
	r := newRig(t)
	const n = 2*renewBatch + 7
	batch := make([]renewal, n)
	for i := range batch {
		k, err := newKeys(DefaultPrefix, fmt.Sprintf("%s/%d", t.Name(), i))
		require.NoError(t, err)
		t.Cleanup(func() { r.rdb.Del(context.Background(), k.base, k.queue, k.token) })
		one := *r
		one.keys = k
		batch[i] = renewal{hold: one.hold(WithTTL(10 * time.Second)), ttl: 40 * time.Second}
		switch i % 5 {
		case 1: // free
		case 2: // owned by another hold
			one.enter(WithTTL(10 * time.Second))
		case 3: // a key of another type, which must not cost the others their renewal
			require.NoError(t, r.rdb.Set(t.Context(), k.base, "x", time.Minute).Err())
		default:
			require.Equal(t, acquireOurs, one.ask(batch[i].hold, 1).status)
		}
	}
	for range 2 { // and again
		r.renew(batch...)
		for i, b := range batch {
			require.NoError(t, b.err, i)
			mine := i%5 == 0 || i%5 == 4
			require.Equal(t, !mine, b.lost, i)
			left, err := r.rdb.PTTL(t.Context(), b.hold.keys.base).Result()
			require.NoError(t, err)
			switch {
			case mine:
				require.InDelta(t, 40*time.Second, left, float64(5*time.Second), i)
			case i%5 == 2:
				require.LessOrEqual(t, left, 10*time.Second, "somebody else's lease, %d", i)
			}
		}
	}
}

// The server is none of a cluster, and answers as one whose slot migrates.
func TestInAClusterLeasesOfOneSlotAreRenewedTogetherAndAloneWhereThatIsRefused(t *testing.T) {
	r, f := faulty(t)
	var batch []renewal
	for _, name := range []string{"{a}:1", "b", "{a}:2", "{a}:3"} {
		k, err := newKeys(DefaultPrefix, name+t.Name())
		require.NoError(t, err)
		t.Cleanup(func() { r.rdb.Del(context.Background(), k.base, k.queue, k.token) })
		one := *r
		one.keys = k
		batch = append(batch, renewal{hold: one.enter(WithTTL(10 * time.Second)), ttl: 40 * time.Second})
	}
	lost := batch[2].hold
	require.NoError(t, r.rdb.Del(t.Context(), lost.keys.base).Err())
	cluster := &oneMap{}
	r.wire.cluster = cluster
	renewed := func(b []renewal) {
		t.Helper()
		for _, one := range b {
			require.NoError(t, one.err)
			require.Equal(t, one.hold == lost, one.lost)
			if !one.lost {
				left, err := r.rdb.PTTL(t.Context(), one.hold.keys.base).Result()
				require.NoError(t, err)
				require.Greater(t, left, 20*time.Second)
			}
		}
	}
	r.renew(batch...) // the server has the script
	f.Reset()
	renewed(r.renew(batch...))
	require.Equal(t, 2, f.Commands("EVALSHA"), "one call for each slot")
	require.Zero(t, cluster.reloads)

	for i := range batch {
		batch[i].lost = false
		require.NoError(t, r.rdb.PExpire(t.Context(), batch[i].hold.keys.base, 10*time.Second).Err())
	}
	together := f.On(redistest.Named("EVALSHA").And(redistest.WithArg("{a}:2")).And(redistest.WithArg("{a}:3")),
		redistest.Answer("-TRYAGAIN Multiple keys request during rehashing of slot"))
	f.Reset()
	renewed(r.renew(batch...))
	require.Equal(t, 1, together.Hits())
	require.Equal(t, 1+3, f.Commands("EVALSHA"), "that of the other slot, and each alone")
	require.Equal(t, 1, cluster.reloads, "the map may be old")
}

func TestRenewAndExtendPutALeaseBackThatSomebodyTookAway(t *testing.T) {
	r := newRig(t)
	h := r.enter()
	require.NoError(t, r.rdb.Persist(t.Context(), r.keys.base).Err())
	require.False(t, r.renew(renewal{hold: h, ttl: 20 * time.Second})[0].lost)
	r.leaseIs(20 * time.Second)
}

func TestExtendSaysWhetherTheHoldWasThere(t *testing.T) {
	r := newRig(t)
	h := r.enter(WithFixedLease(10 * time.Second))
	there, _, err := r.wire.extend(t.Context(), h, 30*time.Second, once)
	require.NoError(t, err)
	require.True(t, there)
	r.leaseIs(30 * time.Second)
	r.unchanged(func() {
		there, _, err = r.wire.extend(t.Context(), r.hold(), time.Minute, once)
		require.NoError(t, err)
		require.False(t, there)
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// abandon and force release

func TestAbandonTakesAWaiterOutOfTheQueue(t *testing.T) {
	r := newRig(t)
	owner := r.enter()
	first, second := r.waiter("a"), r.waiter("a")
	r.abandon(first, "a")
	v := r.look()
	require.Len(t, v.queue, 1)
	require.Equal(t, second.id+"|a|30000", v.queue[0].Member)
	require.Equal(t, map[string]string{owner.id: "1"}, v.hash)
	r.unchanged(func() { r.abandon(first, "a") })
	r.abandon(second, "a")
	require.Zero(t, r.look().queueEnd)
}

func TestAbandonGivesAGrantToTheNext(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	first, second := r.waiter("a"), r.waiter("a")
	require.True(t, r.release(owner, 0))
	r.abandon(first, "a")
	hold, firstToken := r.granted(ps)
	require.Equal(t, first.id, hold)
	hold, secondToken := r.granted(ps)
	require.Equal(t, second.id, hold)
	require.Greater(t, secondToken, firstToken)
	require.Equal(t, map[string]string{second.id: "1"}, r.look().hash)
	r.unchanged(func() { r.abandon(first, "a") })
	r.nothingElse(ps)
	r.abandon(second, "a")
	require.Zero(t, r.look().baseEnd)
}

func TestAbandonFreesWhateverTheCountIs(t *testing.T) {
	r := newRig(t)
	h := r.enter()
	r.ask(h, 2)
	r.ask(h, 3)
	r.abandon(h, "me")
	require.Zero(t, r.look().baseEnd)
}

func TestAbandonOfManyHoldsSaysWhichOnesFailed(t *testing.T) {
	r := newRig(t)
	h := r.enter()
	k, err := newKeys(DefaultPrefix, t.Name()+"/other")
	require.NoError(t, err)
	require.NoError(t, r.rdb.Set(t.Context(), k.queue, "x", time.Minute).Err())
	t.Cleanup(func() { r.rdb.Del(context.Background(), k.queue) })
	broken := r.hold()
	broken.keys = k
	errs := r.wire.abandon(t.Context(), []*orphan{{hold: broken}, {hold: h}})
	require.Len(t, errs, 2)
	require.ErrorContains(t, errs[0], "WRONGTYPE")
	require.NoError(t, errs[1])
	require.Zero(t, r.look().baseEnd)
}

func TestForceReleaseFreesOnlyFromTheHoldThatItNames(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	r.ask(owner, 2)
	next := r.waiter("a")
	r.unchanged(func() { require.NoError(t, r.wire.forceRelease(t.Context(), r.keys, r.hold().id, once)) })
	require.NoError(t, r.wire.forceRelease(t.Context(), r.keys, owner.id, once))
	hold, token := r.granted(ps)
	require.Equal(t, next.id, hold)
	v := r.look()
	require.Equal(t, map[string]string{next.id: "1"}, v.hash)
	require.Equal(t, token, v.token)
	r.unchanged(func() { require.NoError(t, r.wire.forceRelease(t.Context(), r.keys, owner.id, once)) })
	r.nothingElse(ps)
}

// ---------------------------------------------------------------------------------------------------------------------
// The hand-over that is prepared

func (r *rig) member(h *hold, client string) string {
	return fmt.Sprintf("%s|%s|%d", h.id, client, h.ttl.Milliseconds())
}

// preparedFor says for whom the next hand-over is prepared, "" if for nobody.
func (r *rig) preparedFor() string {
	r.Helper()
	if p := r.look().prepared; p != nil {
		return p.member
	}
	return ""
}

func TestWhoJoinsTheQueuePreparesTheNextHandOver(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	top := r.look().token
	first := r.waiter("a", WithTTL(20*time.Second))
	p := r.look().prepared
	require.Equal(t, r.member(first, "a"), p.member)
	require.Greater(t, p.token, top)
	require.Equal(t, p.token, r.look().token, "it is drawn")
	second := r.waiter("a")
	require.Equal(t, p, r.look().prepared, "by the first one only")

	require.True(t, r.release(owner, 0))
	granted, token := r.granted(ps)
	require.Equal(t, first.id, granted)
	require.Equal(t, p.token, token)
	r.leaseIs(20 * time.Second)
	v := r.look()
	require.Nil(t, v.prepared)
	require.Equal(t, r.member(first, "a"), v.served.Member, "the queue was left alone")
	require.Len(t, v.queue, 1)
	s, err := r.wire.state(t.Context(), r.keys, once)
	require.NoError(t, err)
	require.Equal(t, 1, s.waiters, "the owner does not count")

	third := r.hold()
	require.Equal(t, 1, r.join(third, "a", 0).position, "behind the second")
	v = r.look()
	require.Nil(t, v.served, "whoever comes tidies up")
	require.Equal(t, r.member(second, "a"), v.prepared.member)
	for _, next := range []*hold{second, third} {
		require.True(t, r.release(first, 0))
		granted, after := r.granted(ps)
		require.Equal(t, next.id, granted)
		require.Greater(t, after, token)
		first, token = next, after
	}
	require.True(t, r.release(third, 0))
	require.Empty(t, r.look().hash)
	require.Zero(t, r.look().queueEnd, "nothing is left")
	r.nothingElse(ps)
}

func TestAnOwnerThatIsStillInTheQueueIsNotGrantedItsOwnLock(t *testing.T) {
	for name, end := range map[string]func(r *rig, h *hold){
		"release":       func(r *rig, h *hold) { require.True(r, r.release(h, 0)) },
		"abandon":       func(r *rig, h *hold) { r.abandon(h, "a") },
		"force release": func(r *rig, h *hold) { require.NoError(r, r.wire.forceRelease(r.Context(), r.keys, h.id, once)) },
	} {
		for _, others := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, %d waiting", name, others), func(t *testing.T) {
				r := newRig(t)
				ps := r.listen("a")
				owner := r.enter()
				heir := r.waiter("a")
				var next *hold
				if others > 0 {
					next = r.waiter("a")
				}
				require.True(t, r.release(owner, 0))
				granted, _ := r.granted(ps)
				require.Equal(t, heir.id, granted)
				require.NotNil(t, r.look().served)
				end(r, heir)
				v := r.look()
				require.Empty(t, v.queue)
				require.Nil(t, v.served)
				if next == nil {
					require.Empty(t, v.hash)
					r.nothingElse(ps)
					return
				}
				granted, _ = r.granted(ps)
				require.Equal(t, next.id, granted)
				require.Equal(t, map[string]string{next.id: "1"}, v.hash)
			})
		}
	}
}

func TestAHandOverIsPreparedForTheFirstOneWhoeverComesOrGoes(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	late, later := r.waiter("a"), r.waiter("a")
	require.Equal(t, r.member(late, "a"), r.preparedFor())
	early := r.hold()
	require.Zero(t, r.join(early, "a", 1).position, "it was there before, and comes back")
	require.Equal(t, r.member(early, "a"), r.preparedFor())
	r.abandon(late, "a")
	require.Equal(t, r.member(early, "a"), r.preparedFor())
	r.abandon(early, "a")
	require.Empty(t, r.preparedFor())
	require.Equal(t, acquireQueued, r.join(later, "a", 0).status)
	require.Empty(t, r.preparedFor(), "who asks again writes nothing: that may be forbidden for want of memory")
	last := r.waiter("a")
	require.Equal(t, r.member(later, "a"), r.preparedFor(), "by the next one to join")
	for _, next := range []*hold{later, last} {
		require.True(t, r.release(owner, 0))
		granted, _ := r.granted(ps)
		require.Equal(t, next.id, granted)
		owner = next
	}
	require.True(t, r.release(owner, 0))
	r.nothingElse(ps)
}

// One that wants tokens is not prepared for, and comes back to a place before one that was.
func TestAHandOverThatWasPreparedEndsWhereTheFirstOneCannotBePreparedFor(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	late := r.waiter("a")
	require.Equal(t, r.member(late, "a"), r.preparedFor())
	early := r.apart(10)
	require.Zero(t, r.join(early, "a", 1).position)
	require.Empty(t, r.preparedFor())
	for _, next := range []*hold{early, late} {
		require.True(t, r.release(owner, 0))
		granted, _ := r.granted(ps)
		require.Equal(t, next.id, granted)
		owner = next
	}
}

func TestAPreparedHandOverToAClientThatIsGoneGoesToTheNext(t *testing.T) {
	r := newRig(t)
	ps := r.listen("here")
	owner := r.enter()
	r.waiter("gone")
	there := r.waiter("here")
	require.Contains(t, r.preparedFor(), "|gone|")
	prepared := r.look().prepared.token
	require.True(t, r.release(owner, 0))
	hold, token := r.granted(ps)
	require.Equal(t, there.id, hold)
	require.Greater(t, token, prepared)
	v := r.look()
	require.Equal(t, map[string]string{there.id: "1"}, v.hash)
	require.Nil(t, v.prepared)
	require.Zero(t, v.queueEnd)
}

func TestATokenAheadOfTheClockIsNotDrawnInAdvance(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	ahead := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.token, ahead, time.Hour).Err())
	r.waiter("a")
	v := r.look()
	require.Nil(t, v.prepared)
	require.Equal(t, ahead, v.token)
	require.True(t, r.release(owner, 0))
	_, token := r.granted(ps)
	require.Equal(t, ahead+1, token)
}

func TestAnOwnerThatAsksForItsTokenDoesNotGetThatOfTheNext(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	top := r.look().token
	first := r.waiter("a")
	require.Equal(t, acquisition{status: acquireOurs, token: top}, r.ask(owner, 1))
	require.True(t, r.release(owner, 0))
	_, given := r.granted(ps) // the message, which first has not seen
	require.Equal(t, acquisition{status: acquireOurs, token: given}, r.ask(first, 1))
	second := r.waiter("a")
	require.Greater(t, r.look().prepared.token, given)
	require.Equal(t, acquisition{status: acquireOurs, token: given}, r.ask(first, 1))
	r.abandon(second, "a")
	require.Equal(t, acquisition{status: acquireOurs, token: given}, r.ask(first, 1))
	s, err := r.wire.state(t.Context(), r.keys, once)
	require.NoError(t, err)
	require.Equal(t, given, s.token)
}

func TestAWaiterThatAsksAgainKnowsItsPreparedGrantFromAnOlderOne(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	first := r.waiter("a")
	arrival := int64(r.look().queue[0].Score)
	require.True(t, r.release(owner, 0))
	_, old := r.granted(ps)
	// Its lease runs out before it hears of that, and another one is faster.
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.base, r.keys.queue).Err())
	other := r.enter()
	for range 2 {
		got := r.join(first, "a", arrival)
		require.Equal(t, acquireQueued, got.status)
		require.GreaterOrEqual(t, got.token, old, "what was granted before is over")
		require.Less(t, got.token, r.look().prepared.token)
	}
	require.True(t, r.release(other, 0))
	_, token := r.granted(ps)
	require.Greater(t, token, old)
}

func TestAWaiterThatAsksAgainKnowsAnOldGrantAlsoIfTheTokenKeyIsGone(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	first := r.waiter("a")
	arrival := int64(r.look().queue[0].Score)
	require.True(t, r.release(owner, 0))
	_, old := r.granted(ps)
	// Its lease runs out before it hears of that, and another one is faster.
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.base, r.keys.queue).Err())
	other := r.enter()
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.token).Err())
	got := r.join(first, "a", arrival)
	require.Equal(t, acquireQueued, got.status)
	require.GreaterOrEqual(t, got.token, old, "what was granted before is over")
	require.Nil(t, r.look().prepared)
	require.True(t, r.release(other, 0))
	_, token := r.granted(ps)
	require.Greater(t, token, got.token, "and what is granted now is not")
}

func TestWhatOlderDataHasPreparedIsOnlyGivenByARelease(t *testing.T) {
	var owner *hold
	for name, end := range map[string]func(r *rig){
		"the owner is abandoned once more": func(r *rig) { r.abandon(owner, "me") },
		"a force unlock": func(r *rig) {
			require.NoError(r, r.wire.forceRelease(r.Context(), r.keys, owner.id, once))
		},
		"its lease is over, and another one asks": func(r *rig) {
			require.NoError(r, r.rdb.Del(r.Context(), r.keys.base).Err())
			require.Equal(r, acquireBusy, r.ask(r.hold(), 1).status)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			owner = r.enter()
			heir := r.waiter("a")
			older := map[string]string{}
			for _, key := range []string{r.keys.base, r.keys.queue, r.keys.token} {
				older[key] = r.rdb.Dump(t.Context(), key).Val()
			}
			// Nobody hears for the heir just then, so others have the lock.
			r.abandon(owner, "me")
			other := r.enter()
			later := r.look().token
			require.True(t, r.release(other, 0))
			// Then a replica that lagged becomes the master.
			ps := r.listen("a")
			for key, value := range older {
				require.NoError(t, r.rdb.RestoreReplace(t.Context(), key, time.Minute, value).Err())
			}
			require.Less(t, r.look().prepared.token, later)
			end(r)
			hold, token := r.granted(ps)
			require.Equal(t, heir.id, hold)
			require.Greater(t, token, later)
		})
	}
}

func TestAHandOverThatWasPreparedOutlivesTheQueue(t *testing.T) {
	r := newRig(t)
	ps := r.listen("a")
	owner := r.enter()
	heir := r.waiter("a")
	require.NoError(t, r.rdb.Del(t.Context(), r.keys.queue).Err())
	require.True(t, r.release(owner, 0))
	hold, _ := r.granted(ps)
	require.Equal(t, heir.id, hold)
	require.True(t, r.release(heir, 0))
	require.Empty(t, r.look().hash)
}

// ---------------------------------------------------------------------------------------------------------------------
// state

func TestStateReadsALockAndWritesNothing(t *testing.T) {
	r := newRig(t)
	state := func() (s lockState) {
		r.unchanged(func() {
			var err error
			s, err = r.wire.state(t.Context(), r.keys, once)
			require.NoError(t, err)
		})
		return s
	}
	require.Equal(t, lockState{ttl: -2 * time.Millisecond}, state(), "never used")

	h := r.enter(WithTTL(20 * time.Second))
	token := r.look().token
	got := state()
	require.InDelta(t, 20*time.Second, got.ttl, float64(2*time.Second))
	got.ttl = 0
	require.Equal(t, lockState{hold: h.id, shown: h.id, count: 1, token: token}, got)

	r.ask(h, 2)
	r.ask(h, 3)
	r.waiter("a")
	r.waiter("b")
	got = state()
	got.ttl = 0
	require.Equal(t, lockState{hold: h.id, shown: h.id, count: 3, token: token, waiters: 2}, got)

	require.NoError(t, r.rdb.Persist(t.Context(), r.keys.base).Err())
	require.Equal(t, -time.Millisecond, state().ttl, "no lease")
	require.True(t, r.release(h, 0))
	got = state()
	require.GreaterOrEqual(t, got.token, token)
	got.token = 0
	require.Equal(t, lockState{ttl: -2 * time.Millisecond}, got, "nobody listened")
}

// ---------------------------------------------------------------------------------------------------------------------
// What else may be under the lock's name

func TestAHashOfSomebodyElseCountsAsHeld(t *testing.T) {
	for name, hash := range map[string]map[string]any{
		"of another lock library":    {"8743c9c0-0795-4907-87fd-6c719a6b4586:1": 1},
		"whose value is no number":   {"name": "Alice"},
		"with a field called step":   {"step": "3"},
		"with a step that is a word": {"step": "first", "who": "x"},
		"with several fields":        {"a": 1, "b": 2, "c": 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			require.NoError(t, r.rdb.HSet(t.Context(), r.keys.base, hash).Err())
			h := r.hold()
			r.unchanged(func() {
				got := r.ask(h, 1)
				require.Equal(t, acquireBusy, got.status)
				require.Negative(t, got.remaining, "it has no TTL")
				if len(hash) == 1 && hash["step"] == nil {
					require.Contains(t, hash, got.owner)
				}
				require.False(t, r.release(h, 0))
				require.False(t, r.release(h, 1))
				require.True(t, r.renew(renewal{hold: h, ttl: time.Minute})[0].lost)
				r.abandon(h, "me")
				s, err := r.wire.state(t.Context(), r.keys, once)
				require.NoError(t, err)
				require.NotEmpty(t, s.hold)
			})
			got := r.join(h, "me", 0)
			require.Equal(t, acquireQueued, got.status)
			v := r.look()
			require.Positive(t, v.queueEnd, "the queue has a TTL also if the owner has none")
			require.Nil(t, v.prepared, "nothing is noted in it")
		})
	}
}

func TestALeaseThatEndsInAThousandYearsIsReadAsLong(t *testing.T) {
	// More milliseconds than a Duration has: it must not turn into a short one, after which a waiter asks and asks.
	r := newRig(t)
	require.NoError(t, r.rdb.HSet(t.Context(), r.keys.base, "somebody", 1).Err())
	for _, ms := range []int64{18_446_744_073_709, 36_893_488_147_419} { // times 10^6, just beyond 2^64 and 2^65
		require.NoError(t, r.rdb.Do(t.Context(), "PEXPIRE", r.keys.base, ms+1000).Err())
		require.Greater(t, r.ask(r.hold(), 1).remaining, longTime)
		s, err := r.wire.state(t.Context(), r.keys, once)
		require.NoError(t, err)
		require.Greater(t, s.ttl, longTime)
	}
}

func TestAKeyOfAnotherTypeIsAnErrorAndLeavesEverythingAsItWas(t *testing.T) {
	calls := map[string]func(r *rig, owner, waiter *hold) error{
		"acquire": func(r *rig, _, _ *hold) error {
			_, _, err := r.wire.acquire(r.Context(), r.hold(), 1, false, 0, once)
			return err
		},
		"acquire and wait": func(r *rig, _, _ *hold) error {
			_, _, err := r.wire.acquire(r.Context(), r.hold(), 1, true, 0, once)
			return err
		},
		"acquire again": func(r *rig, owner, _ *hold) error {
			_, _, err := r.wire.acquire(r.Context(), owner, 2, false, 0, once)
			return err
		},
		"ask whether the grant has come": func(r *rig, _, waiter *hold) error {
			_, _, err := r.wire.acquire(r.Context(), waiter, 1, true, 1, once)
			return err
		},
		"partial release": func(r *rig, owner, _ *hold) error {
			_, _, err := r.wire.release(r.Context(), owner, 1, once)
			return err
		},
		"last release": func(r *rig, owner, _ *hold) error {
			_, _, err := r.wire.release(r.Context(), owner, 0, once)
			return err
		},
		"abandon an owner": func(r *rig, owner, _ *hold) error {
			return r.wire.abandon(r.Context(), []*orphan{{hold: owner}})[0]
		},
		"abandon a waiter": func(r *rig, _, waiter *hold) error {
			return r.wire.abandon(r.Context(), []*orphan{{hold: waiter}})[0]
		},
		"force release": func(r *rig, owner, _ *hold) error {
			return r.wire.forceRelease(r.Context(), r.keys, owner.id, once)
		},
		"state": func(r *rig, _, _ *hold) error {
			_, err := r.wire.state(r.Context(), r.keys, once)
			return err
		},
	}
	// The keys that a call does not need, so that it may just as well succeed.
	may := map[string][]string{
		"base":  {"abandon a waiter"},
		"queue": {"acquire again", "partial release", "acquire", "last release"},
		"token": {"acquire", "acquire and wait", "acquire again", "ask whether the grant has come", "partial release", "abandon a waiter", "last release", "state"},
	}
	for _, key := range []string{"base", "queue", "token"} {
		for name, call := range calls {
			t.Run(key+", "+name, func(t *testing.T) {
				r := newRig(t)
				r.listen("me")
				owner := r.enter()
				waiter := r.waiter("me")
				broken := map[string]string{"base": r.keys.base, "queue": r.keys.queue, "token": r.keys.token}[key]
				require.NoError(t, r.rdb.Del(t.Context(), broken).Err())
				require.NoError(t, r.rdb.SAdd(t.Context(), broken, "x").Err())
				before := r.dump()
				err := call(r, owner, waiter)
				if err == nil && slices.Contains(may[key], name) {
					return
				}
				require.Error(t, err)
				if r.server.AtLeast(7, 0) {
					require.Equal(t, "WRONGTYPE", errorCode(err.Error()), "%v", err)
				} else { // which says that it is an error of a script, and then which
					require.ErrorContains(t, err, "WRONGTYPE")
				}
				require.Equal(t, refused, judge(err))
				require.Equal(t, before, r.dump(), "an error, and half of the work done")
			})
		}
	}
}

func TestAFreeLockWithATokenKeyOfAnotherTypeIsNotTaken(t *testing.T) {
	for _, queued := range []bool{false, true} {
		t.Run(fmt.Sprintf("queued %t", queued), func(t *testing.T) {
			r := newRig(t)
			if queued {
				r.listen("me")
				r.enter()
				r.waiter("me")
				require.NoError(t, r.rdb.Del(t.Context(), r.keys.base, r.keys.token).Err())
			}
			require.NoError(t, r.rdb.SAdd(t.Context(), r.keys.token, "x").Err())
			r.unchanged(func() {
				_, _, err := r.wire.acquire(t.Context(), r.hold(), 1, true, 0, once)
				require.ErrorContains(t, err, "WRONGTYPE")
			})
		})
	}
}

func TestATokenKeyWithoutANumberIsAnErrorAndNothingChanges(t *testing.T) {
	for junk, want := range map[string]string{
		"junk": "not an integer", "012": "not an integer", "9223372036854775807": "too large for a token",
		"9007199254740992": "too large for a token", "99999999999999999999": "too large for a token",
	} {
		set := func(r *rig) { require.NoError(t, r.rdb.Set(t.Context(), r.keys.token, junk, 0).Err()) }
		t.Run("entering, "+junk, func(t *testing.T) {
			r := newRig(t)
			set(r)
			r.unchanged(func() {
				_, _, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, once)
				require.ErrorContains(t, err, want)
				require.Equal(t, refused, judge(err))
			})
		})
		t.Run("granting, "+junk, func(t *testing.T) {
			r := newRig(t)
			r.listen("next")
			h := r.enter()
			r.waiter("next")
			set(r)
			r.unchanged(func() {
				require.ErrorContains(t, r.wire.forceRelease(t.Context(), r.keys, h.id, once), want)
			})
		})
	}
}

func TestTheTokenKeyLivesForADayAfterItsLastUse(t *testing.T) {
	const day, hour = 24 * time.Hour, time.Hour
	r := newRig(t)
	left := func() time.Duration { return r.rdb.PTTL(t.Context(), r.keys.token).Val() }
	use := func() int64 {
		h := r.enter()
		_, _, err := r.wire.release(t.Context(), h, 0, once)
		require.NoError(t, err)
		return r.look().token
	}
	first := use()
	require.Greater(t, left(), day-hour)

	// The last use was in another hour: the whole day again.
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.token, first-hour.Microseconds(), time.Minute).Err())
	require.Greater(t, use(), first)
	require.Greater(t, left(), day-hour)
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.token, first-first%hour.Microseconds()-1, time.Minute).Err())
	require.Greater(t, use(), first)
	require.Greater(t, left(), day-hour, "also if that is only a little while ago")

	// It was in this one: left alone.
	require.NoError(t, r.rdb.PExpire(t.Context(), r.keys.token, time.Minute).Err())
	before := r.look().token
	if after := use(); after/hour.Microseconds() == before/hour.Microseconds() {
		require.LessOrEqual(t, left(), time.Minute)
	}

	// The clock is behind the last token, and stays there: the whole day each time.
	ahead := first + day.Microseconds()
	require.NoError(t, r.rdb.Set(t.Context(), r.keys.token, ahead, time.Minute).Err())
	require.Equal(t, ahead+1, use())
	require.Greater(t, left(), day-hour)
	require.NoError(t, r.rdb.PExpire(t.Context(), r.keys.token, time.Minute).Err())
	require.Equal(t, ahead+2, use())
	require.Greater(t, left(), day-hour)
}

// ---------------------------------------------------------------------------------------------------------------------
// A server that is full, forgetful or strict

func TestAServerOutOfMemoryRefusesEntriesAndStillFreesAndGrants(t *testing.T) {
	server := redistest.Start(t)
	full := func(r *rig, on bool) {
		limit := "0"
		if on {
			limit = "1"
		}
		require.NoError(r, r.rdb.ConfigSet(r.Context(), "maxmemory", limit).Err())
	}
	oom := func(r *rig, err error) {
		r.Helper()
		require.Error(r, err)
		require.Equal(r, "OOM", errorCode(err.Error()), "%v", err)
		require.Equal(r, refused, judge(err))
	}
	fill := func(t *testing.T) (r *rig, ps *redis.PubSub, owner, waiter *hold) {
		t.Helper()
		r = newRigOn(t, server)
		full(r, false)
		ps = r.listen("a")
		owner = r.enter()
		r.ask(owner, 2)
		waiter = r.waiter("a", WithTTL(20*time.Second))
		full(r, true)
		return r, ps, owner, waiter
	}

	t.Run("a first entry", func(t *testing.T) {
		r := newRigOn(t, server)
		full(r, true)
		r.unchanged(func() {
			_, _, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, once)
			oom(r, err)
			_, _, err = r.wire.acquire(t.Context(), r.hold(), 1, true, 0, once)
			oom(r, err)
		})
	})
	t.Run("joining the queue", func(t *testing.T) {
		r, _, _, _ := fill(t)
		r.listen("me")
		r.unchanged(func() {
			_, _, err := r.wire.acquire(t.Context(), r.hold(), 1, true, 0, once)
			oom(r, err)
		})
	})
	t.Run("re-entry", func(t *testing.T) { // needs next to nothing, and the section is under way
		r, _, owner, _ := fill(t)
		require.Equal(t, acquireOurs, r.ask(owner, 3).status)
		require.Equal(t, "3", r.look().hash[owner.id])
	})
	t.Run("a waiter that asks again keeps its place", func(t *testing.T) {
		r, _, _, waiter := fill(t)
		require.Equal(t, acquireQueued, r.join(waiter, "a", 0).status)
	})
	t.Run("partial release", func(t *testing.T) {
		r, _, owner, _ := fill(t)
		require.True(t, r.release(owner, 1))
		require.Equal(t, "1", r.look().hash[owner.id])
	})
	t.Run("partial release of a fixed lease", func(t *testing.T) {
		r := newRigOn(t, server)
		full(r, false)
		owner := r.enter(WithFixedLease(20 * time.Second))
		r.ask(owner, 2)
		full(r, true)
		require.True(t, r.release(owner, 1))
		require.Equal(t, "1", r.look().hash[owner.id])
	})
	t.Run("renewal", func(t *testing.T) {
		r, _, owner, _ := fill(t)
		renewed := r.renew(renewal{hold: owner, ttl: time.Minute})[0]
		require.NoError(t, renewed.err)
		require.False(t, renewed.lost)
		r.leaseIs(time.Minute)
	})
	for name, free := range map[string]func(r *rig, owner *hold){
		"last release": func(r *rig, owner *hold) { require.True(r, r.release(owner, 0)) },
		"abandon":      func(r *rig, owner *hold) { r.abandon(owner, "me") },
		"force release": func(r *rig, owner *hold) {
			require.NoError(r, r.wire.forceRelease(r.Context(), r.keys, owner.id, once))
		},
		"an entry that finds the lock free": func(r *rig, _ *hold) {
			require.NoError(r, r.rdb.Del(r.Context(), r.keys.base).Err())
			require.Equal(r, acquireBusy, r.ask(r.hold(), 1).status)
		},
	} {
		t.Run(name+" grants", func(t *testing.T) {
			r, ps, owner, waiter := fill(t)
			free(r, owner)
			hold, token := r.granted(ps)
			require.Equal(t, waiter.id, hold)
			v := r.look()
			require.Equal(t, map[string]string{waiter.id: "1"}, v.hash)
			require.Equal(t, token, v.token)
			r.leaseIs(20 * time.Second)
		})
	}
}

func TestEveryScriptIsSentAgainInFullToAServerThatHasForgottenIt(t *testing.T) {
	server := redistest.Start(t) // the others count on their scripts
	r := newRigOn(t, server)
	ps := r.listen("a")
	forget := func() { require.NoError(t, r.rdb.ScriptFlush(t.Context()).Err()) }
	owner, waiter := r.hold(), r.hold()
	forget()
	require.Equal(t, acquireOurs, r.ask(owner, 1).status)
	forget()
	require.Equal(t, acquireOurs, r.ask(owner, 2).status)
	forget()
	require.Equal(t, acquireQueued, r.join(waiter, "a", 0).status)
	forget()
	require.True(t, r.release(owner, 1))
	forget()
	require.False(t, r.renew(renewal{hold: owner, ttl: time.Minute})[0].lost)
	r.leaseIs(time.Minute)
	forget()
	there, _, err := r.wire.extend(t.Context(), owner, 2*time.Minute, once)
	require.NoError(t, err)
	require.True(t, there)
	forget()
	require.Equal(t, owner.id, r.owner())
	forget()
	require.True(t, r.release(owner, 0))
	hold, _ := r.granted(ps)
	require.Equal(t, waiter.id, hold)
	forget()
	require.NoError(t, r.wire.forceRelease(t.Context(), r.keys, waiter.id, once))
	require.Zero(t, r.look().baseEnd)
	last := r.enter()
	forget()
	r.abandon(last, "me")
	require.Zero(t, r.look().baseEnd)
}

func TestScriptsNeedNoMoreThanTheKeysAndChannelsOfTheirPrefix(t *testing.T) {
	server := redistest.Start(t)
	if !server.AtLeast(6, 2) {
		redistest.NotTested(t, "Redis before 6.2 has no rules for channels")
	}
	admin := server.Client()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "resetchannels", "&"+DefaultPrefix+"*", "~"+DefaultPrefix+"*", "+@all").Err())
	r := newRigOn(t, server)
	r.rdb = server.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
	r.use(r.rdb)
	ps := r.listen("a")
	owner := r.enter()
	r.ask(owner, 2)
	waiter, other := r.waiter("a"), r.waiter("gone")
	require.True(t, r.release(owner, 1))
	require.False(t, r.renew(renewal{hold: owner, ttl: time.Minute})[0].lost)
	require.Equal(t, owner.id, r.owner())
	require.NoError(t, r.wire.forceRelease(t.Context(), r.keys, owner.id, once))
	hold, _ := r.granted(ps)
	require.Equal(t, waiter.id, hold)
	r.abandon(waiter, "a")
	r.abandon(other, "gone")
	require.Zero(t, r.look().baseEnd)
}

func TestAScriptIsOneTextWithItsIncludes(t *testing.T) {
	rdb := redistest.Shared(t).Client()
	for _, s := range []*script{acquireScript, releaseScript, manyScript, renewScript, abandonScript, stateScript, forceReleaseScript} {
		t.Run(s.name, func(t *testing.T) {
			require.NotContains(t, s.source, includeDirective)
			sha, err := rdb.ScriptLoad(t.Context(), s.source).Result()
			require.NoError(t, err)
			require.Equal(t, sha, s.sha, "the name under which the server knows it")
			require.Contains(t, s.source, "-- KEYS ")
			require.Contains(t, s.source, "-- Returns ")
			if s != stateScript {
				require.Contains(t, s.source, "-- Idempotent because ")
			}
		})
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// How scripts are sent

// faulty is a rig whose wire goes through faults.
func faulty(t *testing.T, mod ...func(*redis.Options)) (*rig, *redistest.Faults) {
	t.Helper()
	r := newRig(t)
	f := redistest.NewFaults()
	t.Cleanup(f.Close)
	mod = append(mod, func(o *redis.Options) { o.Dialer = f.Dialer(nil) })
	r.use(r.server.Client(mod...))
	return r, f
}

var scripts = redistest.Named("EVALSHA", "EVAL")

func TestGoRedisSendsAScriptOnceForEachTryOfOurs(t *testing.T) {
	r, f := faulty(t, func(o *redis.Options) {
		o.MaxRetries = 5
		o.PoolSize, o.PipelinePoolSize = 1, -1 // so that none is idle when one has ended, see wasStale
	})
	r.owner() // the server has the scripts
	for name, call := range map[string]func() error{
		"one": func() error {
			_, _, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, once)
			return err
		},
		"with WAIT": func() error {
			_, _, err := r.wire.acquire(t.Context(), r.hold(WithReplicaAcks(1, time.Millisecond)), 1, false, 0, once)
			return err
		},
		"a pipeline": func() error { return r.renew(renewal{hold: r.hold(), ttl: time.Second})[0].err },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
			_ = call() // so that the script is loaded
			require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
			f.Reset()
			rule := f.On(scripts, redistest.DropReply(redistest.EOF))
			err := call()
			rule.Remove()
			require.ErrorIs(t, err, io.EOF)
			require.Equal(t, unknown, judge(err))
			require.Equal(t, 1, f.Commands("EVALSHA"))
		})
	}
}

func TestGoRedisSendsAlsoACloneOfACommandOnce(t *testing.T) {
	clone := command{redis.NewCmd(t.Context(), "EVALSHA", "x")}.Clone()
	require.Equal(t, []any{"EVALSHA", "x"}, clone.Args())
	require.True(t, clone.NoRetry())
}

func TestALostReplyIsAnsweredByAskingAgain(t *testing.T) {
	r, f := faulty(t)
	h := r.hold()
	lost := func(n int) *redistest.Rule { return f.On(scripts, redistest.DropReply(redistest.Reset)).Times(n) }

	rule := lost(2)
	got, a, err := r.wire.acquire(t.Context(), h, 1, false, 0, effort{})
	require.NoError(t, err)
	require.Equal(t, acquireOurs, got.status)
	require.True(t, a.unsure)
	require.Equal(t, 2, rule.Hits())
	require.Equal(t, map[string]string{h.id: "1"}, r.look().hash)

	lost(1)
	got, a, err = r.wire.acquire(t.Context(), h, 2, false, 0, effort{})
	require.NoError(t, err)
	require.Equal(t, acquireOurs, got.status)
	require.True(t, a.unsure)
	require.Equal(t, map[string]string{h.id: "2", "step": "2"}, r.look().hash)

	lost(1)
	there, a, err := r.wire.release(t.Context(), h, 1, effort{})
	require.NoError(t, err)
	require.True(t, there)
	require.True(t, a.unsure)
	require.Equal(t, map[string]string{h.id: "1", "step": "3"}, r.look().hash)

	lost(1)
	there, a, err = r.wire.release(t.Context(), h, 0, effort{})
	require.NoError(t, err)
	require.False(t, there, "the first try has freed it")
	require.True(t, a.unsure, "and this says that it may have")
	require.Zero(t, r.look().baseEnd)

	got, a, err = r.wire.acquire(t.Context(), r.hold(), 1, false, 0, effort{})
	require.NoError(t, err)
	require.Equal(t, acquireOurs, got.status)
	require.False(t, a.unsure, "nothing was lost here")
}

func TestTheTimeOfAnAnswerIsWhenTheAnsweredTryWasSent(t *testing.T) {
	// The lease counts from there. An earlier try would be as safe; a later moment would not.
	r, f := faulty(t)
	require.True(t, r.release(r.enter(), 0)) // the server has the script
	var sent []time.Time
	f.On(scripts, redistest.Before(func([]string) { sent = append(sent, time.Now()) }))
	f.Once(scripts, redistest.DropReply(redistest.EOF))
	_, a, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, effort{})
	require.NoError(t, err)
	require.Len(t, sent, 2)
	require.True(t, a.sent.After(sent[0]))
	require.False(t, a.sent.After(sent[1]))
}

func TestTriesAreCountedAlsoWhenOneOfThemFindsNoScript(t *testing.T) {
	for at := 1; at <= tryAttempts; at++ {
		t.Run(fmt.Sprintf("try %d", at), func(t *testing.T) {
			r, f := faulty(t)
			r.owner()
			sent := f.On(scripts, redistest.Answer("-LOADING Redis is loading the dataset in memory"))
			f.On(scripts, redistest.Answer("-NOSCRIPT No matching script. Please use EVAL.")).Skip(at - 1).Times(1)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := r.wire.state(ctx, r.keys, effort{tries: tryAttempts})
			require.ErrorContains(t, err, "LOADING", "it went on until its context ended")
			require.LessOrEqual(t, sent.Hits(), tryAttempts+1)
		})
	}
}

func TestAPassingErrorIsTriedAgainAndAPermanentOneIsNot(t *testing.T) {
	for reply, tries := range map[string]int{
		"-LOADING Redis is loading the dataset in memory":                                   3,
		"-READONLY You can't write against a read only replica.":                            3,
		"-BUSY Redis is busy running a script.":                                             3,
		"-ERR max number of clients reached":                                                3,
		"-OOM command not allowed when used memory > 'maxmemory'.":                          1,
		"-NOAUTH Authentication required.":                                                  1,
		"-NOPERM User app has no permissions to run the 'evalsha' command":                  1,
		"-WRONGTYPE Operation against a key holding the wrong kind of value":                1,
		"-ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed": 1,
	} {
		t.Run(reply, func(t *testing.T) {
			r, f := faulty(t)
			rule := f.On(scripts, redistest.Answer(reply))
			_, a, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, effort{tries: 3})
			require.ErrorContains(t, err, strings.TrimPrefix(reply, "-"))
			require.Equal(t, tries, rule.Hits())
			require.False(t, a.unsure, "it has not run")
		})
	}
}

func TestACallReturnsAsSoonAsItsContextIsDoneAlsoWhenRedisIsSilent(t *testing.T) {
	r, f := faulty(t)
	r.owner()
	f.Partition()
	defer f.Heal()
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan struct{})
	go func() {
		<-sent
		cancel()
	}()
	time.AfterFunc(20*time.Millisecond, func() { close(sent) })
	begin := time.Now()
	_, a, err := r.wire.acquire(ctx, r.hold(), 1, false, 0, effort{})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, a.gaveUp, "it may run yet")
	require.Less(t, time.Since(begin), 2*time.Second, "and not go-redis's three seconds")
	require.Error(t, r.wire.runAll(ctx, []request{*newRequest(stateScript, r.keys, 0)})[0].err)
}

func TestACallEndsWithErrClosedWhenItIsStopped(t *testing.T) {
	r, f := faulty(t)
	r.owner()
	f.Partition()
	defer f.Heal()
	stop := make(chan struct{})
	close(stop)
	_, a, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, effort{stop: stop})
	require.ErrorIs(t, err, ErrClosed)
	require.True(t, a.gaveUp)
}

func TestACallThatWasStoppedBetweenTwoTriesEndsToo(t *testing.T) {
	r, f := faulty(t)
	f.On(scripts, redistest.Answer("-LOADING"))
	stop := make(chan struct{})
	r.wire.retried = func(_ *request, attempt, _ int, err error) {
		require.ErrorContains(t, err, "LOADING")
		if attempt == 3 {
			close(stop)
		}
	}
	_, _, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, effort{stop: stop})
	require.ErrorIs(t, err, ErrClosed)
}

func TestAContextThatIsDoneSendsNothing(t *testing.T) {
	r, f := faulty(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("my reason")
	cancel(cause)
	_, a, err := r.wire.acquire(ctx, r.hold(), 1, false, 0, effort{})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
	require.False(t, a.unsure)
	require.Zero(t, f.Commands())
}

// ---------------------------------------------------------------------------------------------------------------------
// What errors mean

// serverError is an error reply, as go-redis hands it on.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

func TestAnErrorSaysWhetherItMayPassAndWhetherTheCommandMayHaveRun(t *testing.T) {
	timeout := &net.OpError{Op: "read", Net: "tcp", Err: context.DeadlineExceeded}
	for _, c := range []struct {
		err  error
		code string // of an error reply
		want verdict
	}{
		{err: serverError("LOADING Redis is loading the dataset in memory"), code: "LOADING", want: passing},
		{err: serverError("READONLY You can't write against a read only replica."), code: "READONLY", want: passing},
		{err: serverError("READONLY You can't write against a read only replica. script: 5b1d, on @user_script:12."), code: "READONLY", want: passing},
		{err: serverError("ERR Error running script (call to f_5b1d): @user_script:12: -READONLY You can't write against a read only replica."), code: "READONLY", want: passing},
		{err: serverError("ERR Error running script (call to f_5b1d): @user_script:12: @user_script: 12: -READONLY You can't write against a read only replica."), code: "READONLY", want: passing},
		{err: serverError("@user_script: 22: -READONLY You can't write against a read only replica."), code: "READONLY", want: passing},
		{err: serverError("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), code: "MASTERDOWN", want: passing},
		{err: serverError("CLUSTERDOWN Hash slot not served"), code: "CLUSTERDOWN", want: passing},
		{err: serverError("CLUSTERDOWN The cluster is down"), code: "CLUSTERDOWN", want: passing},
		{err: serverError("TRYAGAIN Multiple keys request during rehashing of slot"), code: "TRYAGAIN", want: passing},
		{err: serverError("NOREPLICAS Not enough good replicas to write."), code: "NOREPLICAS", want: passing},
		{err: serverError("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."), code: "BUSY", want: passing},
		{err: serverError("MOVED 3999 127.0.0.1:6381"), code: "MOVED", want: passing},
		{err: serverError("ASK 3999 127.0.0.1:6381"), code: "ASK", want: passing},
		{err: serverError("UNBLOCKED force unblock from blocking operation, instance state changed"), code: "UNBLOCKED", want: passing},
		{err: serverError("ERR max number of clients reached"), code: "ERR", want: passing},
		{err: fmt.Errorf("connecting: %w", serverError("LOADING Redis is loading the dataset in memory")), code: "connecting:", want: passing},

		{err: serverError("OOM command not allowed when used memory > 'maxmemory'."), code: "OOM", want: refused},
		{err: serverError("OOM command not allowed when used memory > 'maxmemory'. script: 5b1d, on @user_script:12."), code: "OOM", want: refused},
		{err: serverError("ERR Error running script (call to f_5b1d): @user_script:12: -OOM command not allowed when used memory > 'maxmemory'."), code: "OOM", want: refused},
		{err: serverError("NOAUTH Authentication required."), code: "NOAUTH", want: refused},
		{err: serverError("WRONGPASS invalid username-password pair or user is disabled."), code: "WRONGPASS", want: refused},
		{err: serverError("NOPERM this user has no permissions to run the 'evalsha' command"), code: "NOPERM", want: refused},
		{err: serverError("WRONGTYPE Operation against a key holding the wrong kind of value"), code: "WRONGTYPE", want: refused},
		{err: serverError("ERR Error running script (call to f_5b1d): @user_script:12: WRONGTYPE Operation against a key"), code: "ERR", want: refused},
		{err: serverError("ERR unknown command 'EVALSHA'"), code: "ERR", want: refused},
		{err: serverError("CROSSSLOT Keys in request don't hash to the same slot"), code: "CROSSSLOT", want: refused},
		{err: serverError("ERR wrong: the text - says LOADING: -LOADING later"), code: "LOADING", want: passing},
		{err: serverError("LOADINGX is another word"), code: "LOADINGX", want: refused},
		{err: serverError("XERR a: -LOADING"), code: "XERR", want: refused},
		{err: serverError(""), code: "", want: refused},
		{err: redis.Nil, code: "redis:", want: refused},
		{err: redis.ErrClosed, code: "redis:", want: refused},

		{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, want: unsent},
		{err: fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ETIMEDOUT}), want: unsent},
		{err: redis.ErrPoolTimeout, want: unsent},
		{err: redis.ErrPoolExhausted, want: unsent},
		{err: fmt.Errorf("get: %w", redis.ErrPoolTimeout), want: unsent},

		{err: io.EOF, want: unknown},
		{err: io.ErrUnexpectedEOF, want: unknown},
		{err: timeout, want: unknown},
		{err: fmt.Errorf("redis: %w", timeout), want: unknown},
		{err: &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, want: unknown},
		{err: &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, want: unknown},
		{err: net.ErrClosed, want: unknown},
		{err: context.DeadlineExceeded, want: unsent}, // what go-redis says of it is tested below
		{err: context.Canceled, want: unsent},
		{err: fmt.Errorf("read: %w", context.DeadlineExceeded), want: unknown},
		{err: fmt.Errorf("read: %w", context.Canceled), want: unknown},
		{err: errGivenUp, want: unknown},
	} {
		require.Equal(t, c.want, judge(c.err), "%v", c.err)
		if c.code != "" {
			require.Equal(t, c.code, errorCode(c.err.Error()), "%v", c.err)
		}
	}
}

func TestOnlyTheEndOfAConnectionMakesItAStaleOne(t *testing.T) {
	for _, err := range []error{
		io.EOF, fmt.Errorf("redis: %w", io.EOF),
		&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
	} {
		require.True(t, hasEnded(err), "%v", err)
	}
	for _, err := range []error{
		nil, io.ErrUnexpectedEOF, serverError("LOADING"), redis.ErrPoolTimeout, context.DeadlineExceeded, errGivenUp,
		&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	} {
		require.False(t, hasEnded(err), "%v", err)
	}
}

// go-redis would wait for its map, whatever the context of a call says.
func TestAClusterThatHasNotAnsweredIsNotAskedHowManyConnectionsAreIdle(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:1"},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("go-redis has looked for the cluster")
			return nil, io.EOF
		},
	})
	defer func() { require.NoError(t, rdb.Close()) }()
	c, err := New(rdb)
	require.NoError(t, err)
	fewest := math.MaxInt
	require.False(t, c.wire.wasStale(io.EOF, &fewest))
}

func TestWhatGoRedisSaysOfAServerThatIsNotThereIsUnsent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	w := newTestClient(t, rdb, "me").wire
	k, err := newKeys("", "x")
	require.NoError(t, err)
	tries := 0
	w.retried = func(*request, int, int, error) { tries++ }
	a, err := w.run(t.Context(), newRequest(stateScript, k, 0), effort{tries: 3})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, unsent, judge(err))
	require.False(t, a.unsure)
	require.Equal(t, 2, tries)
}

func TestWhatGoRedisSaysOfAPoolWithoutAConnectionIsUnsent(t *testing.T) {
	r := newRig(t)
	rdb := r.server.Client(func(o *redis.Options) { o.PoolSize, o.PoolTimeout, o.MaxRetries = 1, time.Millisecond, -1 })
	conn := rdb.Conn() // takes the only one
	defer conn.Close()
	require.NoError(t, conn.Ping(t.Context()).Err())
	_, a, err := newTestClient(t, rdb, "me").wire.acquire(t.Context(), r.hold(), 1, false, 0, once)
	require.ErrorIs(t, err, redis.ErrPoolTimeout)
	require.Equal(t, unsent, judge(err))
	require.False(t, a.unsure)
}

// ending sends a command with a context that ends soon, in each way, also with a go-redis that looks at its deadline. The
// connection is there; with taken, somebody else has it.
func ending(t *testing.T, taken bool, check func(t *testing.T, err error, sent int)) {
	t.Helper()
	for _, enabled := range []bool{false, true} {
		for _, name := range []string{"deadline", "cancelled"} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %v", name, enabled), func(t *testing.T) {
				f := redistest.NewFaults()
				t.Cleanup(f.Close)
				rdb := redistest.Shared(t).Client(func(o *redis.Options) {
					o.Dialer, o.PoolSize, o.ContextTimeoutEnabled, o.ReadTimeout = f.Dialer(nil), 1, enabled, time.Second
				})
				held := f.On(scripts, redistest.Hold())
				conn := rdb.Conn()
				require.NoError(t, conn.Ping(t.Context()).Err())
				if taken {
					defer conn.Close()
				} else {
					require.NoError(t, conn.Close())
				}
				w := newTestClient(t, rdb, "me").wire
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(250*time.Millisecond, cancel)
				if name == "deadline" {
					ctx, cancel = context.WithTimeout(t.Context(), 250*time.Millisecond)
				}
				defer cancel()
				_, _, err := w.process(ctx, &request{args: []any{"EVALSHA", "x", 0}}, false)
				require.Error(t, err)
				check(t, err, held.Hits())
			})
		}
	}
}

func TestWhatGoRedisSaysOfAContextThatEndsBeforeThereIsAConnectionIsUnsent(t *testing.T) {
	ending(t, true, func(t *testing.T, err error, sent int) {
		t.Helper()
		require.Zero(t, sent)
		require.Equal(t, unsent, judge(err), "%v", err)
	})
}

func TestWhatGoRedisSaysOfAContextThatEndsWhileACommandIsOnTheWireIsUnknown(t *testing.T) {
	ending(t, false, func(t *testing.T, err error, sent int) {
		t.Helper()
		require.Equal(t, 1, sent)
		require.Equal(t, unknown, judge(err), "%v", err)
	})
}

// refusing is a hook of the go-redis client that sends no pipeline.
type refusing struct {
	pipelines
	err error
}

func (r *refusing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return r.err }
}

func TestAPipelineThatIsNotSentTellsEachOfItsCommandsWhy(t *testing.T) {
	const loading = serverError("LOADING Redis is loading the dataset in memory")
	open := errors.New("the circuit is open")
	for name, c := range map[string]struct {
		says error
		use  func(r *rig)
	}{
		"Redis says it while a connection is made": {loading, func(r *rig) {
			r.use(r.server.Client(func(o *redis.Options) {
				o.OnConnect = func(context.Context, *redis.Conn) error { return loading }
			}))
		}},
		"a hook says it": {open, func(r *rig) {
			r.use(r.server.Client())
			r.wire.rdb.AddHook(&refusing{err: open})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c.use(r)
			_, a, err := r.wire.acquire(t.Context(), r.hold(WithReplicaAcks(1, time.Millisecond)), 1, false, 0, once)
			require.ErrorIs(t, err, c.says)
			require.Equal(t, judge(c.says) == unknown, a.unsure)
			for _, renewed := range r.renew(renewal{hold: r.hold(), ttl: time.Second}, renewal{hold: r.hold(), ttl: time.Second}) {
				require.ErrorIs(t, renewed.err, c.says)
			}

			l := &r.wire.lanes
			fillLanes(t, l)
			const calls = 2
			errs := make(chan error, calls)
			for range calls {
				go func() {
					_, err := r.wire.state(t.Context(), r.keys, once)
					errs <- err
				}()
			}
			redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == calls }, "all are queued")
			landLanes(l)
			for range calls {
				require.ErrorIs(t, <-errs, c.says)
			}
		})
	}
}

func TestWhatGoRedisSaysAfterItWasClosedIsRefused(t *testing.T) {
	r := newRig(t)
	rdb := r.server.Client()
	require.NoError(t, rdb.Close())
	_, _, err := newTestClient(t, rdb, "me").wire.acquire(t.Context(), r.hold(), 1, false, 0, effort{})
	require.ErrorIs(t, err, redis.ErrClosed)
	require.Equal(t, refused, judge(err))
}

func TestAReplyThatNoScriptGivesIsAnError(t *testing.T) {
	for _, reply := range []string{"+OK", ":-1", "*0", "*1\r\n:1", "*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1", "$2\r\nhi", "*-1"} {
		t.Run(fmt.Sprintf("%q", reply), func(t *testing.T) {
			r, f := faulty(t)
			f.On(scripts, redistest.Answer(reply))
			_, _, err := r.wire.acquire(t.Context(), r.hold(), 1, false, 0, effort{})
			require.Error(t, err, "acquire")
			_, err = r.wire.state(t.Context(), r.keys, effort{})
			require.Error(t, err, "state")
			if reply != ":-1" {
				_, _, err = r.wire.release(t.Context(), r.hold(), 0, effort{})
				require.Error(t, err, "release")
				require.Error(t, r.wire.forceRelease(t.Context(), r.keys, "hold", effort{}), "force release")
				require.Error(t, r.wire.abandon(t.Context(), []*orphan{{hold: r.hold()}})[0], "abandon")
				_, err = r.wire.pass(t.Context(), r.keys, "hold", 1, "next", effort{})
				require.Error(t, err, "pass")
			}
			if reply != "*0" && reply != "*1\r\n:1" {
				_, _, err = r.wire.extend(t.Context(), r.hold(), time.Second, effort{})
				require.Error(t, err, "extend")
				require.Error(t, r.renew(renewal{hold: r.hold(), ttl: time.Second})[0].err, "renew")
			}
		})
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// Fuzzing replies and messages

// decoded turns bytes into a reply of the kinds that go-redis hands on, so that the fuzzer can build any.
func decoded(b []byte) any {
	reply, _ := decode(b, 0)
	return reply
}

func decode(b []byte, depth int) (reply any, rest []byte) {
	if len(b) == 0 {
		return nil, nil
	}
	kind, b := b[0], b[1:]
	switch kind % 8 {
	case 0, 1, 2: // an integer: small, or of eight bytes
		if kind >= 128 && len(b) >= 8 {
			n := int64(0)
			for _, c := range b[:8] {
				n = n<<8 | int64(c)
			}
			return n, b[8:]
		}
		if len(b) == 0 {
			return int64(0), nil
		}
		return int64(int8(b[0])), b[1:]
	case 3: // a string
		if len(b) == 0 {
			return "", nil
		}
		n := min(int(b[0]), len(b)-1)
		return string(b[1 : 1+n]), b[1+n:]
	case 4, 5: // a list
		if len(b) == 0 || depth > 3 {
			return []any{}, b
		}
		n := int(b[0] % 8)
		b = b[1:]
		list := make([]any, 0, n)
		for range n {
			var one any
			one, b = decode(b, depth+1)
			list = append(list, one)
		}
		return list, b
	case 6:
		return []any{nil, true, 1.5, errors.New("x"), map[any]any{}}[len(b)%5], b
	default:
		return nil, b
	}
}

// encoded is the other way, for seeds.
func encoded(reply any) []byte {
	switch r := reply.(type) {
	case int64:
		b := []byte{128}
		for shift := 56; shift >= 0; shift -= 8 {
			b = append(b, byte(r>>shift))
		}
		return b
	case int:
		return encoded(int64(r))
	case string:
		return append([]byte{3, byte(len(r))}, r...)
	case []any:
		b := []byte{4, byte(len(r))}
		for _, one := range r {
			b = append(b, encoded(one)...)
		}
		return b
	default:
		return []byte{7}
	}
}

func TestSeedsOfTheFuzzersSayWhatTheyMean(t *testing.T) {
	for _, reply := range []any{nil, int64(-1), int64(1 << 60), "", "text", []any{}, []any{int64(1), "a", []any{nil}}} {
		require.Equal(t, reply, decoded(encoded(reply)))
	}
}

func seed(f *testing.F, replies ...any) {
	f.Helper()
	for _, r := range replies {
		f.Add(encoded(r))
	}
}

// longTime is about as long as it gets: whatever a server says, no Duration overflows.
const longTime = 90 * 365 * 24 * time.Hour

// milliseconds says that v is an integer, and d as many milliseconds, or a long time where v is even longer. PTTL has two
// negative answers; all the others mean as little as these.
func milliseconds(v any, d time.Duration) bool {
	n, ok := v.(int64)
	switch {
	case !ok:
		return false
	case n > int64(longTime/time.Millisecond):
		return d >= longTime
	case n < -2:
		return d < 0
	default:
		return d == time.Duration(n)*time.Millisecond
	}
}

func FuzzAcquireReply(f *testing.F) {
	seed(f, 0, 1, -1, int64(1795227193519305), nil, "1",
		[]any{}, []any{1}, []any{29_000, "owner"}, []any{-1, "owner"}, []any{29_000, ""}, []any{29_000, 7},
		[]any{29_000, "owner", int64(1795227193519305), 0, int64(1795227193519305)}, []any{29_000, "owner", 1, 2, 0},
		[]any{29_000, "owner", 0, 0, 1}, []any{29_000, "owner", 1, -1, 1}, []any{29_000, "owner", 1, 0, -1},
		[]any{29_000, "owner", 1, 2}, []any{29_000, "owner", 1, 2, nil}, []any{29_000, "owner", 1, 2, 3, 4},
		[]any{int64(1) << 62, "owner"}, []any{int64(-1) << 62, "owner"}, []any{int64(-58493811630788560), "owner"}, []any{nil, "owner"}, []any{[]any{}, "owner"})
	f.Fuzz(func(t *testing.T, b []byte) {
		reply := decoded(b)
		got, err := native{}.acquisition(reply)
		if err != nil {
			require.Equal(t, acquisition{}, got)
			return
		}
		switch got.status {
		case acquireOurs:
			require.Equal(t, reply, got.token)
			require.Positive(t, got.token)
			require.Equal(t, acquisition{status: acquireOurs, token: got.token}, got)
		case acquireLost:
			require.Equal(t, int64(0), reply)
			require.Equal(t, acquisition{status: acquireLost}, got)
		case acquireBusy, acquireQueued:
			fields, ok := reply.([]any)
			require.True(t, ok)
			require.True(t, milliseconds(fields[0], got.remaining), "%v: %s", fields[0], got.remaining)
			require.Equal(t, fields[1], got.owner)
			require.NotEmpty(t, got.owner)
			if got.status == acquireBusy {
				require.Len(t, fields, 2)
				require.Zero(t, got.arrival)
				require.Zero(t, got.position)
				require.Zero(t, got.token)
				return
			}
			require.Len(t, fields, 5)
			require.Equal(t, fields[2], got.arrival)
			require.Equal(t, fields[3], int64(got.position))
			require.Equal(t, fields[4], got.token)
			require.Positive(t, got.arrival)
			require.GreaterOrEqual(t, got.position, 0)
			require.GreaterOrEqual(t, got.token, int64(0))
		default:
			t.Fatalf("status %d of %v", got.status, reply)
		}
	})
}

func FuzzStateReply(f *testing.F) {
	seed(f, nil, 0, []any{"", 0, -2, 0, 0, ""}, []any{"owner", 2, 29_000, int64(1795227193519305), 3, "owner"},
		[]any{"owner", 1, -1, 0, 0, "another"}, []any{"owner", nil, -1, 0, 0, "owner"}, []any{"owner"}, []any{1, 2, 3, 4, 5, 6},
		[]any{"owner", 1, int64(1) << 62, 0, 0, "owner"}, []any{"owner", 1, int64(-58493811630788560), 0, 0, "owner"},
		[]any{"owner", 1, 1, 1, 1}, []any{"owner", 1, 1, 1, 1, 1}, []any{"owner", 1, 1, 1, 1, "owner", 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		reply := decoded(b)
		got, err := parseState(reply)
		if err != nil {
			require.Equal(t, lockState{}, got)
			return
		}
		fields, ok := reply.([]any)
		require.True(t, ok)
		require.Len(t, fields, 6)
		require.Equal(t, fields[0], got.hold)
		require.Equal(t, fields[5], got.shown)
		require.Equal(t, fields[1], int64(got.count))
		require.True(t, milliseconds(fields[2], got.ttl), "%v: %s", fields[2], got.ttl)
		require.Equal(t, fields[3], got.token)
		require.Equal(t, fields[4], int64(got.waiters))
	})
}

func FuzzRenewReply(f *testing.F) {
	for _, n := range []int{1, 2, renewBatch} {
		for _, reply := range []any{nil, 1, []any{}, []any{1}, []any{1, 2}, []any{0}, []any{-1}, []any{101}, []any{"1"}, []any{nil}} {
			f.Add(encoded(reply), n)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		reply := decoded(b)
		lost, err := parseLost(reply, n)
		if err != nil {
			require.Empty(t, lost)
			return
		}
		list, ok := reply.([]any)
		require.True(t, ok)
		require.Len(t, lost, len(list))
		require.True(t, slices.IsSorted(lost))
		require.Len(t, slices.Compact(slices.Clone(lost)), len(lost), "each at most once")
		for i, at := range lost {
			require.Equal(t, list[i], int64(at)+1)
			require.GreaterOrEqual(t, at, 0)
			require.Less(t, at, n)
		}
	})
}

func FuzzGrantMessage(f *testing.F) {
	for _, s := range []string{
		"da395e8e-7ed2-4da8-a6f2-7de969ffac01:956:2351|1795227193519305", "h|1", "h|0", "h|-1", "|1", "h|", "h", "", "|",
		"h|1|2", "h|1x", "h| 1", "h|1 ", "h|+1", "h|0x10", "h|1e5", "h|1_000", "h|9223372036854775807", "h|9223372036854775808",
		"h|\n1", "a|b|1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		hold, token, ok := grantMessage(payload)
		if !ok {
			require.Empty(t, hold)
			require.Zero(t, token)
			return
		}
		require.NotEmpty(t, hold)
		require.Positive(t, token)
		digits, found := strings.CutPrefix(payload, hold+"|")
		require.True(t, found)
		n, err := strconv.ParseInt(digits, 10, 64)
		require.NoError(t, err, "%q is not a whole message", payload)
		require.Equal(t, n, token)
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Figures

func TestMillisRoundsUpToWholeMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Microsecond: 1, time.Millisecond - 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2,
		MinTTL: 10, 30 * time.Second: 30_000, MaxTTL: 7 * 24 * 3600 * 1000, MaxTTL - 1: 7 * 24 * 3600 * 1000,
	} {
		require.Equal(t, want, millis(d), "%s", d)
	}
}

func TestTheMarginIsOnePercentAndTwoMilliseconds(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		MinTTL: 2100 * time.Microsecond, time.Second: 12 * time.Millisecond, 30 * time.Second: 302 * time.Millisecond,
	} {
		require.Equal(t, want, margin(ttl))
	}
}

func TestADeadlineLiesBeforeTheLeaseEndsAndAfterItsRenewal(t *testing.T) {
	sent := time.Now()
	for ttl := MinTTL; ttl <= MaxTTL; ttl = ttl*5/4 + time.Millisecond {
		deadline := safeUntil(sent, ttl)
		require.True(t, deadline.Before(sent.Add(ttl)), "%s", ttl)
		require.True(t, deadline.After(sent.Add(ttl/3)), "%s", ttl)
		require.Equal(t, margin(ttl), sent.Add(ttl).Sub(deadline))
	}
}

func TestTheFirstRetryIsAtOnceAndLaterOnesWaitLongerButNeverLong(t *testing.T) {
	require.Zero(t, pause(0))
	require.Zero(t, pause(1))
	for attempt := 2; attempt < 200; attempt++ {
		longest := min(firstPause<<min(attempt-2, 20), longPause)
		for range 50 {
			d := pause(attempt)
			require.GreaterOrEqual(t, d, longest/2, attempt)
			require.Less(t, d, longest, attempt)
		}
	}
	require.GreaterOrEqual(t, pause(math.MaxInt), longPause/2, "no overflow, however long it lasts")
}

func TestAFailedRenewalIsTriedSeveralTimesBeforeTheDeadline(t *testing.T) {
	for ttl := MinTTL; ttl <= MaxTTL; ttl = ttl*3/2 + time.Millisecond {
		tries, at := 1, ttl/3
		for at < ttl-margin(ttl) && tries < 1000 {
			d := retryPause(tries, ttl)
			require.Positive(t, d)
			require.LessOrEqual(t, d, time.Second)
			require.LessOrEqual(t, d, ttl/12+time.Millisecond)
			at += d
			tries++
		}
		require.GreaterOrEqual(t, tries, 3, "%s", ttl)
		require.GreaterOrEqual(t, retryPause(1, ttl), min(time.Millisecond, ttl/12), "not a hot loop")
	}
	require.Equal(t, time.Second, retryPause(math.MaxInt, MaxTTL), "no overflow, however often")
}

func TestRefreshIsTheLeaseThatEntriesAndExitsAskFor(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer rdb.Close()
	c := newTestClient(t, rdb, "me")
	k, err := newKeys(DefaultPrefix, "x")
	require.NoError(t, err)
	hold := func(options ...Option) *hold { return newTestHold(t, c, k, NewHolder(), options...) }
	for _, entering := range []bool{true, false} {
		require.Equal(t, DefaultTTL, hold().refresh(entering))
		require.Zero(t, hold(WithFixedLease(time.Minute)).refresh(entering), "a fixed lease is left alone")
		limited := hold(WithMaxHold(40 * time.Second))
		limited.since = time.Now().Add(-25 * time.Second)
		require.InDelta(t, 15*time.Second, limited.refresh(entering), float64(time.Second), "not beyond the longest hold")
		limited.since = time.Now().Add(-40 * time.Second)
		require.Zero(t, limited.refresh(entering))
	}
	unwanted := hold()
	unwanted.frames.left = true
	require.Zero(t, unwanted.refresh(false), "nobody works there any more")
	require.Equal(t, DefaultTTL, unwanted.refresh(true))
}

func TestStepsAreNeverUsedTwice(t *testing.T) {
	h := &hold{tenure: &tenure{steps: firstStep}}
	for want := int64(firstStep + 1); want < 10; want++ {
		require.Equal(t, want, h.nextStep())
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// What tests of the scripts share.

// newTestClient is a Client with an id that can be read.
func newTestClient(t testing.TB, rdb redis.UniversalClient, id string) *Client {
	t.Helper()
	c, err := New(rdb)
	require.NoError(t, err)
	c.id, c.wire.client = id, id
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// newTestHold is a hold that is about to be entered. For the lease of its exits, somebody works in its section.
func newTestHold(t testing.TB, c *Client, k *keys, holder Holder, options ...Option) *hold {
	t.Helper()
	l := c.NewLock(k.name, options...)
	require.NoError(t, l.Err())
	l.keys = k
	h := l.newHold(holder, c.layout.newHold(holder))
	h.frames = &frame{hold: h, ctx: context.Background()}
	return h
}

// view is a lock as it is in Redis at one moment. Ends are in ms of the server's clock, 0 for a key that is not there, -1
// for one that never ends.
type view struct {
	now      time.Time
	hash     map[string]string // without what is prepared
	prepared *prepared
	before   int64 // the last token before that
	baseEnd  int64
	queue    []redis.Z // without the owner
	served   *redis.Z  // the owner's place in it, which it may keep until somebody comes
	queueEnd int64
	token    int64
	tokenEnd int64
	slack    time.Duration // how far the ends may be off from when a lease should end
	blurred  time.Duration // how far they may be off from what they were before
}

// prepared is the next hand-over.
type prepared struct {
	member string
	token  int64
}

func look(t testing.TB, rdb *redis.Client, k *keys) view {
	t.Helper()
	ctx := context.Background()
	pipe := rdb.Pipeline()
	hash := pipe.HGetAll(ctx, k.base)
	queue := pipe.ZRangeWithScores(ctx, k.queue, 0, -1)
	token := pipe.Get(ctx, k.token)
	var ends, left [3]*redis.Cmd
	for i, key := range []string{k.base, k.queue, k.token} {
		ends[i], left[i] = pipe.Do(ctx, "PEXPIRETIME", key), pipe.Do(ctx, "PTTL", key)
	}
	now := pipe.Time(ctx)
	_, _ = pipe.Exec(ctx) // each command has its own error
	require.NoError(t, hash.Err())
	require.NoError(t, queue.Err())
	require.NoError(t, now.Err())
	v := view{now: now.Val(), hash: hash.Val(), queue: queue.Val(), slack: 5 * time.Millisecond}
	var err error
	if text, ok := v.hash["next"]; ok {
		delete(v.hash, "next")
		i := strings.LastIndexByte(text, '|')
		require.Positive(t, i, text)
		n, err := strconv.ParseInt(text[i+1:], 10, 64)
		require.NoError(t, err)
		v.prepared = &prepared{text[:i], n}
	}
	if text, ok := v.hash["token"]; ok {
		delete(v.hash, "token")
		v.before, err = strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
	}
	if len(v.queue) > 0 {
		hold, _, _ := strings.Cut(v.queue[0].Member.(string), "|")
		if _, owns := v.hash[hold]; owns {
			v.served, v.queue = &v.queue[0], v.queue[1:]
		}
	}
	if n, err := token.Int64(); !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
		v.token = n
	}
	for i, end := range []*int64{&v.baseEnd, &v.queueEnd, &v.tokenEnd} {
		ms, err := ends[i].Int64()
		if err != nil { // Redis before 7 only says what is left
			ms, err = left[i].Int64()
			require.NoError(t, err)
			if v.slack, v.blurred = time.Second, 100*time.Millisecond; ms >= 0 {
				ms += v.now.UnixMilli()
			}
		}
		*end = max(ms, -1)
		if ms == -2 {
			*end = 0
		}
	}
	return v
}
