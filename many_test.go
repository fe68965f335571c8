package relock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// What happens where several usual commands share one script call. crowd makes them do so.

// crowd is several locks of one client.
type crowd struct {
	*rig
	hook *manyCalls
	keys []*keys
}

// manyCalls notes the script calls that go-redis is asked to send.
type manyCalls struct {
	mu    sync.Mutex
	calls []string
}

func (m *manyCalls) DialHook(next redis.DialHook) redis.DialHook { return next }
func (m *manyCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.note(cmd)
		return next(ctx, cmd)
	}
}

func (m *manyCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			m.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (m *manyCalls) note(cmd redis.Cmder) {
	args := cmd.Args()
	for _, s := range []*script{acquireScript, releaseScript, manyScript} {
		if len(args) < 2 || args[1] != s.sha && args[1] != s.source {
			continue
		}
		m.mu.Lock()
		m.calls = append(m.calls, strings.ToLower(args[0].(string))+" "+s.name)
		m.mu.Unlock()
	}
}

func (m *manyCalls) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls = nil
	return calls
}

func newCrowd(t *testing.T, r *rig, locks int) *crowd {
	t.Helper()
	c := &crowd{rig: r, hook: &manyCalls{}}
	r.wire.rdb.(*redis.Client).AddHook(c.hook)
	for _, s := range []*script{acquireScript, releaseScript, manyScript} {
		require.NoError(t, r.rdb.ScriptLoad(t.Context(), s.source).Err())
	}
	for i := range locks {
		k, err := newKeys(DefaultPrefix, fmt.Sprintf("%s/%d", t.Name(), i))
		require.NoError(t, err)
		clean := func() { require.NoError(t, r.rdb.Del(context.Background(), k.base, k.queue, k.token).Err()) }
		clean() // with -count
		t.Cleanup(clean)
		c.keys = append(c.keys, k)
	}
	return c
}

// at is the rig of one of the locks.
func (c *crowd) at(i int) *rig {
	r := *c.rig
	r.keys = c.keys[i]
	return &r
}

// entry and exit are usual commands.
type outcomeOf struct {
	acquisition
	there bool
	answer
	err error
}

func (c *crowd) entry(h *hold) func(context.Context) outcomeOf {
	return func(ctx context.Context) (o outcomeOf) {
		o.acquisition, o.answer, o.err = c.wire.acquire(ctx, h, 1, false, 0, once)
		return o
	}
}

func (c *crowd) exit(h *hold) func(context.Context) outcomeOf {
	return func(ctx context.Context) (o outcomeOf) {
		o.there, o.answer, o.err = c.wire.release(ctx, h, 0, once)
		return o
	}
}

// together sends commands that have queued, in this order, and returns what became of them.
func (c *crowd) together(commands ...func(context.Context) outcomeOf) []outcomeOf {
	c.Helper()
	return c.after(func() {}, commands...)
}

// after is together that does something when all are queued.
func (c *crowd) after(queued func(), commands ...func(context.Context) outcomeOf) []outcomeOf {
	c.Helper()
	l := &c.wire.lanes
	fillLanes(c.T, l)
	outcomes := make([]outcomeOf, len(commands))
	var all sync.WaitGroup
	for i, f := range commands {
		all.Go(func() { outcomes[i] = f(c.Context()) })
		redistest.Eventually(c, 10*time.Second, func() bool { return l.queued() == i+1 }, "it is queued")
	}
	c.hook.take()
	queued()
	c.land()
	all.Wait()
	return outcomes
}

// land lets what is queued leave, and frees the lanes that fillLanes has taken.
func (c *crowd) land() {
	l := &c.wire.lanes
	l.mu.Lock()
	l.aloft -= flightsAloft - 1
	l.limit = laneLimit
	l.mu.Unlock()
	l.leave()
}

// requireCalls says which script calls the last commands took.
func (c *crowd) requireCalls(calls ...string) {
	c.Helper()
	require.Equal(c, calls, c.hook.take())
}

func TestUsualCommandsThatWaitTogetherLeaveInOneScriptCall(t *testing.T) {
	c := newCrowd(t, newRig(t), 6)
	free, first, later := c.at(0).hold(WithTTL(20*time.Second)), c.at(1).enter(), c.at(1).hold()
	ps := c.at(2).listen("a")
	owner := c.at(2).enter()
	waiter := c.at(2).waiter("a")
	stranger := c.at(3).hold()
	// Free while somebody waits: the owner's lease is over.
	ps4 := c.at(4).listen("a")
	c.at(4).enter()
	heir := c.at(4).waiter("a")
	require.NoError(t, c.rdb.Del(t.Context(), c.keys[4].base).Err())
	late, left := c.at(4).hold(), c.at(5).enter()
	left.steps = firstStep

	got := c.together(c.entry(free), c.exit(owner), c.entry(later), c.exit(stranger), c.entry(late), c.exit(left))
	c.requireCalls("evalsha many")
	for _, o := range got {
		require.NoError(t, o.err)
		require.False(t, o.unsure)
	}

	require.Equal(t, acquireOurs, got[0].status)
	v := c.at(0).look()
	require.Equal(t, v.token, got[0].token)
	require.Equal(t, map[string]string{free.id: "1"}, v.hash)
	c.at(0).leaseIs(20 * time.Second)

	require.True(t, got[1].there)
	hold, token := c.granted(ps)
	require.Equal(t, waiter.id, hold)
	require.Equal(t, c.at(2).look().token, token)
	require.Equal(t, waiter.id, c.at(2).owner())

	require.Equal(t, acquireBusy, got[2].status)
	require.Equal(t, first.id, got[2].owner)
	require.InDelta(t, DefaultTTL, got[2].remaining, float64(2*time.Second))

	require.False(t, got[3].there)
	require.Zero(t, c.at(3).look().baseEnd)

	require.Equal(t, acquireBusy, got[4].status)
	require.Equal(t, heir.id, got[4].owner)
	hold, _ = c.granted(ps4)
	require.Equal(t, heir.id, hold)

	require.True(t, got[5].there)
	require.Zero(t, c.at(5).look().baseEnd)
}

func TestWhereNobodyHoldsOrWaitsAllAreTakenAndReleasedEachWithItsLease(t *testing.T) {
	c := newCrowd(t, newRig(t), 2*manyBatch+10)
	var entries, exits []func(context.Context) outcomeOf
	var holds []*hold
	for i := range c.keys {
		h := c.at(i).hold(WithTTL(time.Duration(10+i%3) * time.Second))
		holds = append(holds, h)
		entries, exits = append(entries, c.entry(h)), append(exits, c.exit(h))
	}
	half := len(entries) / 2
	for i, o := range c.together(entries[:half]...) {
		require.NoError(t, o.err)
		require.Equal(t, acquireOurs, o.status)
		require.Equal(t, c.at(i).look().token, o.token)
	}
	c.requireCalls(slices.Repeat([]string{"evalsha many"}, 2)...)
	for i, o := range c.together(slices.Concat(exits[:half], entries[half:])...) {
		require.NoError(t, o.err)
		require.Equal(t, i < half, o.there)
	}
	c.requireCalls(slices.Repeat([]string{"evalsha many"}, 3)...)
	for i, h := range holds {
		if i < half {
			require.Zero(t, c.at(i).look().baseEnd)
			continue
		}
		require.Equal(t, h.id, c.at(i).owner())
		c.at(i).leaseIs(h.ttl)
	}
}

func TestAnExitGrantsAlsoWhereTheOthersInItsCallAreOfFreeLocks(t *testing.T) {
	for _, entry := range []bool{true, false} {
		t.Run(fmt.Sprintf("with an entry: %t", entry), func(t *testing.T) {
			c := newCrowd(t, newRig(t), 3)
			ps := c.at(0).listen("a")
			owner, left := c.at(0).enter(), c.at(1).enter()
			waiter := c.at(0).waiter("a")
			commands := []func(context.Context) outcomeOf{c.exit(left), c.exit(owner)}
			if entry {
				commands = append(commands, c.entry(c.at(2).hold()))
			}
			for _, o := range c.together(commands...)[:2] {
				require.NoError(t, o.err)
				require.True(t, o.there)
			}
			c.requireCalls("evalsha many")
			hold, _ := c.granted(ps)
			require.Equal(t, waiter.id, hold)
			require.Equal(t, waiter.id, c.at(0).owner())
			require.Empty(t, c.at(0).look().queue)
		})
	}
}

func TestTwoOfOneLockInOneCallAreTwo(t *testing.T) {
	c := newCrowd(t, newRig(t), 2)
	a, b := c.at(0).hold(), c.at(0).hold()
	got := c.together(c.entry(a), c.entry(b), c.entry(c.at(1).hold()))
	c.requireCalls("evalsha many")
	require.Equal(t, acquireOurs, got[0].status)
	require.Equal(t, acquireBusy, got[1].status)
	require.Equal(t, a.id, got[1].owner)
	require.Equal(t, acquireOurs, got[2].status)

	for _, entryFirst := range []bool{false, true} {
		last := got[0].token
		if entryFirst {
			got = c.together(c.entry(b), c.exit(a))
			got[0], got[1] = got[1], got[0]
		} else {
			got = c.together(c.exit(a), c.entry(b))
		}
		c.requireCalls("evalsha many")
		require.True(t, got[0].there)
		require.Equal(t, acquireOurs, got[1].status)
		require.Greater(t, got[1].token, last)
		require.Equal(t, b.id, c.at(0).owner())
		got[0], a, b = got[1], b, c.at(0).hold()
	}
}

func TestAnErrorOfOneLockIsItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		exit  bool
		spoil func(r *rig)
	}{
		"an entry, and base is no hash":       {false, func(r *rig) { r.set(r.keys.base, "x") }},
		"an entry, and queue is no zset":      {false, func(r *rig) { r.set(r.keys.queue, "x") }},
		"an entry, and token is no string":    {false, func(r *rig) { require.NoError(r, r.rdb.HSet(r.Context(), r.keys.token, "x", 1).Err()) }},
		"an entry, and token is no number":    {false, func(r *rig) { r.set(r.keys.token, "x") }},
		"an entry, and token is too large":    {false, func(r *rig) { r.set(r.keys.token, "99999999999999999999") }},
		"an exit, and base is no hash":        {true, func(r *rig) { r.set(r.keys.base, "x") }},
		"an exit, and queue is no zset":       {true, func(r *rig) { r.set(r.keys.queue, "x") }},
		"an exit with a waiter, and no token": {true, func(r *rig) { r.waiter("a"); r.set(r.keys.token, "x") }},
	} {
		for _, contended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, contended: %t", name, contended), func(t *testing.T) {
				crowd := newCrowd(t, newRig(t), 5)
				free, left, bad := crowd.at(0).hold(), crowd.at(1).enter(), crowd.at(2)
				h, again := bad.hold(), bad.hold()
				if c.exit {
					require.Equal(t, acquireOurs, bad.ask(h, 1).status)
				}
				c.spoil(bad)
				command, alone := crowd.entry(h), crowd.entry(again)
				if c.exit {
					command = crowd.exit(h)
					alone = func(ctx context.Context) outcomeOf { h.steps = firstStep; return crowd.exit(h)(ctx) }
				}
				commands := []func(context.Context) outcomeOf{crowd.entry(free), command, crowd.exit(left)}
				if contended {
					crowd.at(3).enter()
					commands = append(commands, crowd.entry(crowd.at(3).hold()))
				}
				var got []outcomeOf
				bad.unchanged(func() {
					got = crowd.together(commands...)
					verb := map[bool]string{false: "acquire", true: "release"}[c.exit]
					crowd.requireCalls("evalsha many", "evalsha "+verb)
				})
				require.NoError(t, got[0].err)
				require.Equal(t, free.id, crowd.at(0).owner())
				require.Error(t, got[1].err)
				require.Equal(t, alone(t.Context()).err, got[1].err, "the same as by itself")
				require.NoError(t, got[2].err)
				require.True(t, got[2].there)
				require.Zero(t, crowd.at(1).look().baseEnd)
				if contended {
					require.Equal(t, acquireBusy, got[3].status)
				}
			})
		}
	}
}

func (r *rig) set(key, value string) {
	r.Helper()
	require.NoError(r, r.rdb.Set(r.Context(), key, value, 0).Err())
}

func TestAServerOutOfMemoryRefusesEntriesInACallThatReleasesToo(t *testing.T) {
	c := newCrowd(t, newRigOn(t, redistest.Start(t)), 2)
	left := c.at(0).enter()
	got := c.after(func() { require.NoError(t, c.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err()) },
		c.exit(left), c.entry(c.at(1).hold()))
	require.True(t, got[0].there)
	require.Error(t, got[1].err)
	require.Equal(t, "OOM", errorCode(got[1].err.Error()))
	require.NoError(t, c.rdb.Ping(t.Context()).Err(), "the connection is as it should be")
}

func TestAnExitThatFailsInPartOfACallDoesNotSayThatTheLockWasTaken(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	r := newRigOn(t, server)
	user := server.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-publish").Err())
	r.use(user)
	c := newCrowd(t, r, 2)
	ps := c.at(0).listen("a")
	defer func() { _ = ps.Close() }()
	owner := c.at(0).enter()
	c.at(0).waiter("a")
	got := c.together(c.exit(owner), c.entry(c.at(1).hold()))
	require.NoError(t, got[0].err)
	require.True(t, got[0].there || got[0].unsure, "it has left by itself")
	require.NotEqual(t, owner.id, c.at(0).owner())
}

func TestWhatTheServerDoesNotKnowIsSentInFullAndThatIsNoTry(t *testing.T) {
	c := newCrowd(t, newRigOn(t, redistest.Start(t)), 3)
	h := c.at(2).enter()
	got := c.after(func() { require.NoError(t, c.rdb.ScriptFlush(t.Context()).Err()) },
		c.entry(c.at(0).hold()), c.entry(c.at(1).hold()), c.exit(h))
	for _, o := range got { // each had one try
		require.NoError(t, o.err)
		require.False(t, o.unsure)
	}
	c.requireCalls("evalsha many", "eval many")
}

func TestAServerThatTakesNoCallForManyGetsOneForEach(t *testing.T) {
	entries := func(c *crowd) []outcomeOf {
		var commands []func(context.Context) outcomeOf
		for i := range c.keys {
			commands = append(commands, c.entry(c.at(i).hold()))
		}
		return c.together(commands...)
	}
	t.Run("a node of a cluster", func(t *testing.T) {
		server := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "500")
		rdb := server.Client()
		require.NoError(t, rdb.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
		redistest.Eventually(t, 10*time.Second, func() bool {
			return strings.Contains(rdb.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
		}, "the cluster is up")
		k, err := newKeys(DefaultPrefix, t.Name())
		require.NoError(t, err)
		r := &rig{T: t, server: server, rdb: rdb, keys: k}
		r.use(rdb)
		c := newCrowd(t, r, 0)
		for i := range 3 {
			k, err := newKeys(DefaultPrefix, fmt.Sprint(i))
			require.NoError(t, err)
			c.keys = append(c.keys, k)
		}
		for _, o := range entries(c) {
			require.NoError(t, o.err)
			require.Equal(t, acquireOurs, o.status)
			require.False(t, o.unsure)
		}
		calls := c.hook.take()
		require.Equal(t, "evalsha many", calls[0])
		require.NotContains(t, calls[1:], "evalsha many")
		entries(c)
		require.NotContains(t, c.hook.take(), "evalsha many", "it is remembered")
		require.False(t, c.wire.lanes.mayShare())
	})
	t.Run("a user who may not ask for many keys", func(t *testing.T) {
		server := redistest.Start(t)
		r := newRigOn(t, server)
		require.NoError(t, r.rdb.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-mget").Err())
		r.use(server.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" }))
		c := newCrowd(t, r, 3)
		for _, o := range entries(c) {
			require.NoError(t, o.err)
			require.Equal(t, acquireOurs, o.status)
		}
		require.False(t, c.wire.lanes.mayShare())
		c.wire.lanes.apart.Store(0) // the pause is over
		require.True(t, c.wire.lanes.mayShare())
	})
	t.Run("a reply of some other kind", func(t *testing.T) {
		r, f := faulty(t)
		c := newCrowd(t, r, 3)
		f.Once(redistest.WithArg(manyScript.sha), redistest.Answer("*1\r\n:1\r\n"))
		for _, o := range entries(c) {
			require.NoError(t, o.err)
			require.Equal(t, acquireOurs, o.status)
		}
	})
}

func TestAConnectionThatBreaksLeavesTheEndOfAllInTheCallUnknown(t *testing.T) {
	r, f := faulty(t)
	c := newCrowd(t, r, 3)
	owner := c.at(2).enter()
	f.Once(redistest.WithArg(manyScript.sha), redistest.DropReply(redistest.Reset))
	got := c.together(c.entry(c.at(0).hold()), c.entry(c.at(1).hold()), c.exit(owner))
	for _, o := range got {
		require.Error(t, o.err)
		require.Equal(t, unknown, judge(o.err), "%v", o.err)
		require.True(t, o.unsure)
	}
}

func TestACallerThatGivesUpWhileItSharesACallIsToldWhenItLands(t *testing.T) {
	r, f := faulty(t)
	c := newCrowd(t, r, 3)
	hang := f.Once(redistest.WithArg(manyScript.sha), redistest.Hold())
	h, other, left := c.at(0).hold(), c.at(1).hold(), c.at(2).enter()
	l := &c.wire.lanes
	fillLanes(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gone, done := make(chan outcomeOf, 1), make(chan outcomeOf, 2)
	go func() { gone <- c.entry(h)(ctx) }()
	go func() { done <- c.entry(other)(t.Context()) }()
	go func() { done <- c.exit(left)(t.Context()) }()
	redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == 3 }, "all are queued")
	c.land()
	hang.WaitHits(t, 1)
	cancel()
	o := <-gone
	require.ErrorIs(t, o.err, context.Canceled)
	require.True(t, o.gaveUp)
	orphans := c.client.orphans
	flying := func() (int, int) {
		orphans.mu.Lock()
		defer orphans.mu.Unlock()
		return h.flying, h.landings
	}
	n, _ := flying()
	require.Equal(t, 1, n)
	hang.LetGo()
	for range 2 {
		require.NoError(t, (<-done).err)
	}
	redistest.Eventually(t, 10*time.Second, func() bool {
		n, landings := flying()
		return n == 0 && landings == 1
	}, "it has landed")
	require.False(t, h.lost, "and was answered")
	require.Equal(t, h.id, c.at(0).owner(), "so it is known that there is something to take back")
}

func TestAHandOverInACallForManyIsAsPreparedAndLeavesNothingBehind(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf %t", deaf), func(t *testing.T) {
			c := newCrowd(t, newRig(t), 2)
			r, other := c.at(0), c.at(1)
			first := r.listen("a")
			owner := r.enter()
			heir := r.waiter("a")
			prepared := r.look().prepared
			require.Equal(t, r.member(heir, "a"), prepared.member)
			second := r.listen("b")
			next := r.waiter("b")
			heard := first
			if deaf {
				require.NoError(t, first.Close())
				redistest.Eventually(t, 10*time.Second, func() bool {
					n, err := r.rdb.PubSubNumSub(t.Context(), r.keys.base+":a").Result()
					return err == nil && n[r.keys.base+":a"] == 0
				}, "nobody hears it")
				heir, heard = next, second
			}

			got := c.together(c.exit(owner), c.exit(other.enter()))
			c.requireCalls("evalsha many")
			require.NoError(t, got[0].err)
			require.True(t, got[0].there)
			hold, token := r.granted(heard)
			require.Equal(t, heir.id, hold)
			if !deaf {
				require.Equal(t, prepared.token, token)
			}
			require.Equal(t, heir.id, r.owner())

			if !deaf { // the last one leaves its place, and then the lock is free
				r.abandon(next, "b")
			}
			heir.steps = firstStep
			got = c.together(c.exit(heir), c.exit(other.enter()))
			c.requireCalls("evalsha many")
			require.True(t, got[0].there)
			require.Zero(t, r.rdb.Exists(t.Context(), r.keys.base, r.keys.queue).Val())
		})
	}
}
