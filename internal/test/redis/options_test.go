package redis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Which options need Redis, and what do they do?

func TestAWrongOptionOfARedisClientIsToldBeforeAnythingIsSent(t *testing.T) {
	for name, c := range map[string]struct {
		options []relock.Option
		says    []string
	}{
		"a wrong TTL":                 {stage.Options(relock.WithTTL(0)), []string{"WithTTL(0s)", "10ms", "168h"}},
		"a prefix with an empty tag":  {stage.Options(relock.WithPrefix("app{}:")), []string{"WithPrefix", `"app{}:"`, "{app}"}},
		"a prefix that is too long":   {stage.Options(relock.WithPrefix(strings.Repeat("p", relock.MaxNameLen+1))), []string{"WithPrefix", "1025", "1024"}},
		"a prefix in Redisson's":      {stage.Options(relock.WithPrefix("p"), relock.WithRedissonLayout()), []string{"WithPrefix(\"p\")", "no prefix"}},
		"fencing with a prefix":       {stage.Options(relock.WithRedissonFencing(), relock.WithPrefix("a:")), []string{"WithPrefix", "WithRedissonLayout"}},
		"a delay that is too short":   {stage.Options(relock.WithRestartDelay(0)), []string{"WithRestartDelay(0s)", "10ms", "168h"}},
		"a delay in Redisson's":       {stage.Options(relock.WithRestartDelay(time.Second), relock.WithRedissonLayout()), []string{"WithRestartDelay", "own layout only"}},
		"acks as late as ReadTimeout": {stage.Options(relock.WithReplicaAcks(1, 3*time.Second)), []string{"confirmations within 3s", "ReadTimeout (3s)"}},
		"acks later than ReadTimeout": {stage.Options(relock.WithReplicaAcks(1, time.Minute)), []string{"confirmations within 1m0s", "ReadTimeout (3s)"}},
	} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				rdb, net := w.NewRedis()
				client, err := relock.New(rdb, c.options...)
				require.Nil(t, client)
				require.ErrorIs(t, err, relock.ErrInvalid)
				for _, says := range c.says {
					require.ErrorContains(t, err, says)
				}
				require.Zero(t, net.Stats().Dials)
			})
		})
	}
}

func TestANameThatRedisCannotUseIsToldByEveryMethod(t *testing.T) {
	for name, c := range map[string]struct {
		name, prefix, says string
	}{
		"an empty hash tag":                 {"}", "relock:", "must not begin with '}'"},
		"an empty hash tag and more":        {"}a", "relock:", "must not begin with '}'"},
		"an empty hash tag with the prefix": {"}{a}", "p{", "prefix \"p{\" with lock name \"}{a}\""},
		"the queue of another lock":         {"{a}:queue", "relock:", ":queue"},
		"the token of another lock":         {"{a}:token", "relock:", ":token"},
	} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				m := w.NewClient(relock.WithPrefix(c.prefix))
				l := m.NewLock(c.name)
				require.ErrorContains(t, l.Err(), c.says)
				require.Equal(t, c.name, l.Name())
				stage.RequireInvalid(t, nil, l)
				require.Zero(t, m.Net.Stats().Dials)
			})
		})
	}
}

func TestReplicaAcksMayTakeAnyTimeWithoutAReadTimeout(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		for _, none := range []time.Duration{-1, -2} { // with no deadline, or without looking at any
			rdb, _ := w.NewRedis(func(o *redis.Options) { o.ReadTimeout = none })
			client, err := relock.New(rdb, relock.WithReplicaAcks(1, relock.MaxTTL))
			require.NoError(t, err)
			require.NoError(t, client.Close())
		}
		rdb, _ := w.NewRedis(func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond })
		_, err := relock.New(rdb, relock.WithReplicaAcks(1, 200*time.Millisecond))
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.ErrorContains(t, err, "ReadTimeout (200ms)")
		client, err := relock.New(rdb, relock.WithReplicaAcks(100, 199*time.Millisecond))
		require.NoError(t, err)
		require.NoError(t, client.Close())
	})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{ReadTimeout: 300 * time.Millisecond})
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	_, err := relock.New(cluster, relock.WithReplicaAcks(1, 300*time.Millisecond))
	require.ErrorContains(t, err, "ReadTimeout (300ms)")
}

func TestAHoldThatReplicasDoNotConfirmIsUndone(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var r stage.Recorder
		m := w.NewClient(relock.WithReplicaAcks(1, 100*time.Millisecond), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		for _, lock := range []stage.Locking{l.Lock, l.TryLock, stage.TryFor(l, time.Minute)} {
			ctx, err := w.Begin(t.Context(), lock).Result()
			require.ErrorIs(t, err, relock.ErrNotReplicated)
			for _, other := range []error{relock.ErrLocked, relock.ErrLockLost, relock.ErrNotHeld, context.DeadlineExceeded} {
				require.NotErrorIs(t, err, other)
			}
			require.ErrorContains(t, err, "0 of 1 within 100ms")
			require.Equal(t, err, context.Cause(ctx))
			w.RequireTokensOnly()
		}
		for _, e := range stage.EventsOf[event.AcquireFinished](&r) {
			require.Equal(t, event.OutcomeError, e.Outcome)
			require.ErrorIs(t, e.Err, relock.ErrNotReplicated)
		}
	})
}

func TestAWaiterThatReplicasDoNotConfirmHoldsUpNobody(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var r stage.Recorder
		l := w.NewClient(relock.WithReplicaAcks(1, 100*time.Millisecond), relock.WithHooks(r.Hooks())).NewLock("a")
		plain := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), plain)
		unlucky := w.Start(t.Context(), l)
		stage.Pass(time.Millisecond) // else they arrive at the same time, and are queued in any order
		next := w.Start(t.Context(), plain)
		w.Leave(section, plain)
		require.ErrorIs(t, unlucky.Failure(), relock.ErrNotReplicated)
		require.NotErrorIs(t, unlucky.Failure(), relock.ErrLocked)
		finished := stage.EventsOf[event.AcquireFinished](&r)
		require.True(t, finished[len(finished)-1].Waited)
		require.Equal(t, event.WakeNone, finished[len(finished)-1].Wake, "a grant came, but the call has not got the lock")
		require.NoError(t, plain.Unlock(next.Section()))
		w.RequireTokensOnly()
	})
}

func TestAHoldThatReplicasDoNotConfirmIsUndoneLaterIfRedisIsAway(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		m := w.NewClient(relock.WithReplicaAcks(1, 100*time.Millisecond))
		l := m.NewLock("a")
		_, _ = m.NewLock("warm").TryLock(t.Context())                                  // sends the script
		cut := m.Net.On(stage.ScriptCalls, redistest.CutBefore(redistest.EOF)).Skip(1) // after the question that WAIT follows
		err := w.Begin(t.Context(), stage.TryFor(l, time.Second)).Failure()
		require.ErrorIs(t, err, relock.ErrNotReplicated)
		require.NotEmpty(t, w.Redis.Keys())
		cut.Remove()
		stage.Pass(time.Minute)
		w.RequireTokensOnly()
	})
}

func TestWithRestartDelayTakesNoLockOfAYoungServer(t *testing.T) {
	w := stage.Apart(t)
	const delay = 2 * time.Second
	calls := map[string]func(ctx context.Context, c *relock.Client) (context.Context, error){
		"a mutex": func(ctx context.Context, c *relock.Client) (context.Context, error) {
			return c.NewLock("{a}:1").TryLock(ctx)
		},
		"a reader": func(ctx context.Context, c *relock.Client) (context.Context, error) {
			return c.NewRWLock("{a}:2").TryRLock(ctx)
		},
		"a permit": func(ctx context.Context, c *relock.Client) (context.Context, error) {
			return c.NewSemaphore("{a}:3", 2).TryLock(ctx)
		},
		"several": func(ctx context.Context, c *relock.Client) (context.Context, error) {
			return c.NewLocks([]string{"{a}:4", "{a}:5"}).TryLock(ctx)
		},
		"if a script": func(ctx context.Context, c *relock.Client) (context.Context, error) {
			s, _, err := c.NewLock("{a}:6").TryLockIf(ctx, "return locked", nil)
			return s, err
		},
	}
	delayed := w.Peer(relock.WithRestartDelay(delay), relock.WithTTL(delay))
	begun := time.Now()
	waiting := w.Within(2*delay).Start(t.Context(), delayed.NewLock("{a}:0"))
	old := w.Peer(relock.WithTTL(delay)).NewLock("{a}:8") // without the option
	section := w.Enter(t.Context(), old)
	for what, call := range calls {
		_, err := call(t.Context(), delayed.Client)
		require.ErrorIs(t, err, relock.ErrUnavailable, what)
		require.ErrorContains(t, err, "and gives locks after 3 s", what)
	}
	w.Leave(section, old)
	section = waiting.Within(2 * delay).Section()
	require.GreaterOrEqual(t, time.Since(begun), delay-time.Second)
	w.Leave(section, delayed.NewLock("{a}:0"))
	for what, call := range calls {
		redistest.Eventually(t, 2*delay, func() bool {
			section, err := call(t.Context(), delayed.Client)
			return err == nil && section.Err() == nil
		}, "%s is given", what)
	}
	require.NoError(t, delayed.Close())
	w.TidyWithin = 2 * delay
}

// The address of a process as its owner: colons separate the parts of an ID, too.
func TestAnOwnerMayBeAnAddress(t *testing.T) {
	for layout, options := range map[string][]relock.Option{"relock's": nil, "Redisson's": {relock.WithRedissonLayout()}} {
		t.Run(layout, func(t *testing.T) {
			w := stage.OnShared(t)
			holder := w.Peer(append(options, relock.WithOwner("10.0.0.7:8080"))...)
			waiter := w.Peer(append(options, relock.WithOwner("[::1]:8080"))...)
			l, other := holder.NewLock("a"), waiter.NewLock("a")
			section, err := l.Lock(t.Context())
			require.NoError(t, err)
			state, err := other.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, "10.0.0.7:8080", state.Holder.Owner())
			waiting := w.Start(t.Context(), other)
			<-time.After(100 * time.Millisecond) // it is in the queue
			require.True(t, waiting.Waits())
			begun := time.Now()
			require.NoError(t, l.Unlock(section))
			require.NoError(t, waiting.Failure())
			require.Less(t, time.Since(begun), bound.Of(5*time.Second), "a message wakes the waiter")
			<-time.After(300 * time.Millisecond) // then its client listens
			require.NoError(t, l.ForceUnlock(t.Context()))
			<-waiting.Section().Done()
			require.ErrorIs(t, other.Unlock(waiting.Section()), relock.ErrLockLost)
		})
	}
}

func TestAClientOfGoRedisThatCannotBeUsedIsErrInvalid(t *testing.T) {
	client, err := relock.New(nil)
	require.Nil(t, client)
	require.ErrorIs(t, err, relock.ErrInvalid)
}
