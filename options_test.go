package relock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// wrongOptions are options that cannot be used, with what the message must say: what was given and what is allowed.
var wrongOptions = map[string]struct {
	options []relock.Option
	says    []string
}{
	"a TTL of zero":                  {opts(relock.WithTTL(0)), []string{"WithTTL(0s)", "10ms", "168h"}},
	"a negative TTL":                 {opts(relock.WithTTL(-time.Second)), []string{"WithTTL(-1s)", "10ms"}},
	"a TTL that is too short":        {opts(relock.WithTTL(relock.MinTTL - time.Millisecond)), []string{"WithTTL(9ms)", "10ms"}},
	"a TTL that is too long":         {opts(relock.WithTTL(relock.MaxTTL + time.Millisecond)), []string{"WithTTL(168h0m0.001s)", "168h0m0s"}},
	"a TTL not in milliseconds":      {opts(relock.WithTTL(time.Second + time.Microsecond)), []string{"WithTTL(1.000001s)", "whole milliseconds"}},
	"a TTL given as a number":        {opts(relock.WithTTL(30)), []string{"WithTTL(30ns)", "whole milliseconds"}},
	"a fixed lease of zero":          {opts(relock.WithFixedLease(0)), []string{"WithFixedLease(0s)", "10ms"}},
	"a fixed lease too short":        {opts(relock.WithFixedLease(time.Millisecond)), []string{"WithFixedLease(1ms)", "10ms"}},
	"a fixed lease too long":         {opts(relock.WithFixedLease(relock.MaxTTL + time.Hour)), []string{"WithFixedLease", "168h0m0s"}},
	"a fixed lease not in ms":        {opts(relock.WithFixedLease(time.Second + 1)), []string{"WithFixedLease", "whole milliseconds"}},
	"a max hold below the TTL":       {opts(relock.WithMaxHold(29 * time.Second)), []string{"WithMaxHold(29s)", "at least the TTL", "30s"}},
	"a max hold below a later TTL":   {opts(relock.WithMaxHold(time.Minute), relock.WithTTL(time.Hour)), []string{"WithMaxHold(1m0s)", "1h0m0s"}},
	"a negative max hold":            {opts(relock.WithMaxHold(-time.Minute)), []string{"WithMaxHold(-1m0s)", "at least the TTL"}},
	"a max hold not in ms":           {opts(relock.WithMaxHold(time.Minute + 1)), []string{"WithMaxHold", "whole milliseconds"}},
	"a max hold of a fixed lease":    {opts(relock.WithFixedLease(time.Second), relock.WithMaxHold(time.Minute)), []string{"WithMaxHold(1m0s)", "WithFixedLease(1s)", "WithMaxHold(0)"}},
	"a pass of a fixed lease":        {opts(relock.WithFixedLease(time.Second), relock.WithLocalPass(0, 0)), []string{"WithLocalPass", "WithFixedLease(1s)", "WithTTL"}},
	"no logger":                      {opts(relock.WithLogger(nil)), []string{"WithLogger(nil)", "leave the option out"}},
	"a nil option":                   {opts(relock.WithTTL(time.Second), nil), []string{"Option is nil", "leave it out"}},
	"a prefix with an empty tag":     {opts(relock.WithPrefix("app{}:")), []string{"WithPrefix", `"app{}:"`, "{app}"}},
	"a prefix that is too long":      {opts(relock.WithPrefix(strings.Repeat("p", relock.MaxNameLen+1))), []string{"WithPrefix", "1025", "1024"}},
	"no replicas":                    {opts(relock.WithReplicaAcks(0, time.Second)), []string{"WithReplicaAcks(0, 1s)", "1 to 100"}},
	"negative replicas":              {opts(relock.WithReplicaAcks(-1, time.Second)), []string{"WithReplicaAcks(-1, 1s)", "1 to 100"}},
	"too many replicas":              {opts(relock.WithReplicaAcks(101, time.Second)), []string{"WithReplicaAcks(101, 1s)", "1 to 100"}},
	"no time for replicas":           {opts(relock.WithReplicaAcks(1, 0)), []string{"WithReplicaAcks(1, 0s)", "from 1ms to 168h0m0s"}},
	"negative time for replicas":     {opts(relock.WithReplicaAcks(1, -time.Second)), []string{"WithReplicaAcks(1, -1s)", "from 1ms"}},
	"too much time for replicas":     {opts(relock.WithReplicaAcks(1, relock.MaxTTL+time.Second)), []string{"to 168h0m0s"}},
	"time for replicas not in ms":    {opts(relock.WithReplicaAcks(1, time.Millisecond+1)), []string{"WithReplicaAcks", "whole milliseconds"}},
	"acks as late as ReadTimeout":    {opts(relock.WithReplicaAcks(1, 3*time.Second)), []string{"WithReplicaAcks(1, 3s)", "ReadTimeout (3s)"}},
	"acks later than ReadTimeout":    {opts(relock.WithReplicaAcks(1, time.Minute)), []string{"WithReplicaAcks(1, 1m0s)", "ReadTimeout (3s)"}},
	"the first wrong one of several": {opts(relock.WithTTL(0), relock.WithLogger(nil)), []string{"WithTTL(0s)"}},
}

func opts(options ...relock.Option) []relock.Option { return options }

func TestAWrongOptionOfAClientIsAnErrorThatSaysWhatIsAllowed(t *testing.T) {
	for name, c := range wrongOptions {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
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

func TestAWrongOptionOfALockIsToldByEveryMethod(t *testing.T) {
	for name, c := range wrongOptions {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient()
				l := m.NewLock("a", c.options...)
				for _, says := range c.says {
					require.ErrorContains(t, l.Err(), says)
				}
				requireInvalid(t, m, l)
			})
		})
	}
}

// requireInvalid fails unless every method of the lock returns what Err returns, and nothing is sent.
func requireInvalid(t *testing.T, m *member, l *relock.Lock) {
	t.Helper()
	err := l.Err()
	require.ErrorIs(t, err, relock.ErrInvalid)
	ctx := t.Context()
	run := func(context.Context) error {
		t.Error("it ran")
		return nil
	}
	for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Second), tryFor(l, -1)} {
		got, lockErr := lock(ctx)
		require.Equal(t, err, lockErr)
		require.Equal(t, ctx, got)
	}
	_, stateErr := l.State(ctx)
	for _, got := range []error{
		stateErr, l.Unlock(ctx), l.ForceUnlock(ctx), l.Extend(ctx, time.Second), l.Do(ctx, run), l.DoFor(ctx, time.Second, run),
	} {
		require.Equal(t, err, got)
	}
	require.False(t, l.Held(ctx))
	require.Zero(t, l.Count(ctx))
	require.Zero(t, l.Token(ctx))
	require.Zero(t, l.Remaining(ctx))
	require.Zero(t, m.net.Stats().Dials)
}

func TestANameThatCannotBeUsedIsToldByEveryMethod(t *testing.T) {
	for name, c := range map[string]struct {
		name   string
		prefix string
		says   string
	}{
		"empty":                              {"", "relock:", "1 to 1024 bytes"},
		"too long":                           {strings.Repeat("n", relock.MaxNameLen+1), "relock:", "at most 1024"},
		"too long in bytes, not characters":  {strings.Repeat("ö", relock.MaxNameLen/2+1), "relock:", "1026 bytes"},
		"an empty hash tag":                  {"}", "relock:", "must not begin with '}'"},
		"an empty hash tag and more":         {"}a", "relock:", "must not begin with '}'"},
		"an empty hash tag in the prefix":    {"a", "{}", "empty hash tag"},
		"an empty hash tag with the prefix":  {"}{a}", "p{", "prefix \"p{\" with lock name \"}{a}\""},
		"the queue of another lock":          {"{a}:queue", "relock:", ":queue"},
		"the token of another lock":          {"{a}:token", "relock:", ":token"},
		"a hash tag, and an empty one first": {"{}{a}", "{}", "empty hash tag"},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient()
				l := m.NewLock(c.name, relock.WithPrefix(c.prefix))
				require.ErrorContains(t, l.Err(), c.says)
				require.Equal(t, c.name, l.Name())
				requireInvalid(t, m, l)
			})
		})
	}
}

func TestNamesAndPrefixesThatCanBeUsed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		for name, prefixes := range map[string][]string{
			"a":                                    {"relock:", "", "p", "{p}:", "p{", strings.Repeat("p", relock.MaxNameLen)},
			strings.Repeat("n", relock.MaxNameLen): {"relock:", ""},
			"{a}":                                  {"relock:", ""},
			"{a}b":                                 {"relock:"},
			"a{b}c":                                {"relock:"},
			"{":                                    {"relock:", ""},
			"a{":                                   {"relock:"},
			"a}b":                                  {"relock:"},
			"{}":                                   {"relock:"},
			"{}a":                                  {"relock:"},
			"a:queue":                              {"relock:"},
			"a\x00\xff\r\n|:":                      {"relock:"},
			"日本語 💡":                                {"relock:"},
		} {
			for _, prefix := range prefixes {
				l := m.NewLock(name, relock.WithPrefix(prefix))
				require.NoError(t, l.Err(), "%q %q", prefix, name)
				section := enter(t, t.Context(), l)
				inner, err := l.TryLock(section)
				require.NoError(t, err)
				waiting := begin(t, t.Context(), l.Lock)
				require.True(t, waiting.waits())
				require.NoError(t, l.Unlock(inner))
				require.NoError(t, l.Unlock(section))
				require.NoError(t, l.Unlock(waiting.section()))
				for _, key := range w.Keys() {
					require.True(t, strings.HasPrefix(key, prefix) && strings.HasSuffix(key, ":token"), key)
				}
				w.FlushAll()
				pass(time.Second)
			}
		}
	})
}

func TestAWrongArgumentIsAnErrorThatSaysWhatIsAllowed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		run := func(context.Context) error {
			t.Error("it ran")
			return nil
		}
		_, waitErr := l.TryLockFor(t.Context(), -time.Millisecond)
		for name, c := range map[string]struct {
			err  error
			says []string
		}{
			"a wait below zero":    {waitErr, []string{"TryLockFor(-1ms)", "0", "without limit"}},
			"a wait of DoFor too":  {l.DoFor(t.Context(), -1, run), []string{"DoFor(-1ns)", "without limit"}},
			"Extend by nothing":    {l.Extend(t.Context(), 0), []string{"Extend(0s)", "10ms", "168h0m0s"}},
			"Extend by too little": {l.Extend(t.Context(), time.Millisecond), []string{"Extend(1ms)", "10ms"}},
			"Extend by too much":   {l.Extend(t.Context(), relock.MaxTTL+time.Second), []string{"Extend", "168h0m0s"}},
			"Extend by half a ms":  {l.Extend(t.Context(), time.Second+time.Millisecond/2), []string{"Extend", "whole milliseconds"}},
			"Extend backwards":     {l.Extend(t.Context(), -time.Second), []string{"Extend(-1s)", "10ms"}},
		} {
			require.ErrorIs(t, c.err, relock.ErrInvalid, name)
			for _, says := range c.says {
				require.ErrorContains(t, c.err, says, name)
			}
		}
		require.Zero(t, m.net.Stats().Dials)
	})
}

func TestAWaitOfZeroIsTryLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		section, err := l.TryLockFor(t.Context(), 0)
		require.NoError(t, err)
		a := begin(t, t.Context(), tryFor(l, 0))
		_, err = a.result()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, a.took())
		_, pubsub := m.net.Conns()
		require.Zero(t, pubsub, "it does not queue")
		require.ErrorIs(t, l.DoFor(t.Context(), 0, nil), relock.ErrLocked)
		require.NoError(t, l.Unlock(section))
	})
}

func TestTheLimitsThemselvesAreAllowed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		for _, options := range [][]relock.Option{
			nil,
			opts(relock.WithTTL(relock.MinTTL)),
			opts(relock.WithTTL(relock.MaxTTL)),
			opts(relock.WithFixedLease(relock.MinTTL)),
			opts(relock.WithFixedLease(relock.MaxTTL)),
			opts(relock.WithMaxHold(relock.DefaultTTL)),
			opts(relock.WithMaxHold(0)),
			opts(relock.WithFixedLease(time.Second), relock.WithMaxHold(0)),
			opts(relock.WithMaxHold(time.Second), relock.WithTTL(time.Second)),
			opts(relock.WithMaxHold(relock.MinTTL), relock.WithTTL(relock.MinTTL)),
			opts(relock.WithLocalPass(1, time.Millisecond)),
			opts(relock.WithLocalPass(relock.MaxPasses, relock.MaxTTL)),
			opts(relock.WithPrefix("")),
			opts(relock.WithReplicaAcks(1, time.Millisecond)),
			opts(relock.WithReplicaAcks(100, 2999*time.Millisecond)),
		} {
			m := w.NewClient(options...)
			require.NoError(t, m.NewLock("a", options...).Err())
		}
	})
}

func TestLaterOptionsWinAndThoseOfTheLockWinOverThoseOfTheClient(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(time.Minute), relock.WithTTL(20*time.Second), relock.WithPrefix("p:"))
		lease := func(key string, options ...relock.Option) time.Duration {
			l := m.NewLock("a", options...)
			section := enter(t, t.Context(), l)
			defer func() { require.NoError(t, l.Unlock(section)) }()
			return w.TTL(key)
		}
		require.Equal(t, 20*time.Second, lease("p:{a}"))
		require.Equal(t, 5*time.Second, lease("q:{a}", relock.WithPrefix("q:"), relock.WithTTL(5*time.Second)))
		require.Equal(t, 20*time.Second, lease("p:{a}"), "the client's are as they were")
		require.Equal(t, time.Second, lease("p:{a}", relock.WithTTL(5*time.Second), relock.WithFixedLease(time.Second)))

		// WithTTL after WithFixedLease brings the watchdog back.
		l := m.NewLock("a", relock.WithFixedLease(time.Second), relock.WithTTL(2*time.Second))
		section := enter(t, t.Context(), l)
		pass(time.Minute)
		require.NoError(t, section.Err())
		require.NoError(t, l.Unlock(section))
	})
}

func TestALockThatDoesNotFitItsClientsOptionsIsInvalid(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithMaxHold(time.Minute))
		require.NoError(t, m.NewLock("a", relock.WithTTL(time.Minute)).Err())
		require.ErrorIs(t, m.NewLock("a", relock.WithTTL(2*time.Minute)).Err(), relock.ErrInvalid)
		require.ErrorIs(t, m.NewLock("a", relock.WithFixedLease(time.Second)).Err(), relock.ErrInvalid)
		require.NoError(t, m.NewLock("a", relock.WithFixedLease(time.Second), relock.WithMaxHold(0)).Err())
	})
}

func TestAClientOfGoRedisThatCannotBeUsedIsErrInvalid(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}, HeartbeatFrequency: time.Hour})
	defer func() { _ = ring.Close() }()
	one, many := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _, _ = one.Close(), many.Close() }()
	async, err := one.AsyncAutoPipeline()
	require.NoError(t, err)
	ofCluster, err := many.AutoPipeline()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		rdb  redis.UniversalClient
		says string
	}{
		"nothing":       {nil, "nil"},
		"a nil Client":  {(*redis.Client)(nil), "nil"},
		"a nil cluster": {(*redis.ClusterClient)(nil), "nil"},
		"a nil Ring":    {(*redis.Ring)(nil), "nil"},
		"a Ring":        {ring, "redis.Ring is not supported: use a redis.Client, or a redis.ClusterClient"},
		"a Ring inside": {struct{ *redis.Ring }{ring}, "redis.Ring is not supported"},
		// Its commands have no answer yet when Process returns.
		"one that does not wait": {async, "an AsyncAutoPipeline is not supported"},
		// Taken for one server, the renewal of two locks would be a CROSSSLOT.
		"the AutoPipeline of a cluster": {ofCluster, "*redis.AutoPipeliner of several servers is not supported"},
		"any cluster":                   {struct{ redis.UniversalClient }{many}, "use the redis.ClusterClient itself"},
	} {
		client, err := relock.New(c.rdb)
		require.Nil(t, client, name)
		require.ErrorIs(t, err, relock.ErrInvalid, name)
		require.ErrorContains(t, err, c.says, name)
	}

	blocking, err := one.AutoPipeline()
	require.NoError(t, err)
	for _, rdb := range []redis.UniversalClient{one, many, blocking, struct{ redis.UniversalClient }{one}} {
		client, err := relock.New(rdb)
		require.NoError(t, err, "%T", rdb)
		require.NoError(t, client.Close())
	}
}

func TestReplicaAcksMayTakeAnyTimeWhereGoRedisHasNoReadTimeout(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
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
	})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{ReadTimeout: 300 * time.Millisecond})
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	_, err := relock.New(cluster, relock.WithReplicaAcks(1, 300*time.Millisecond))
	require.ErrorContains(t, err, "ReadTimeout (300ms)")
}

func TestAnEntryThatReplicasDoNotConfirmWasNotRefused(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithReplicaAcks(1, 100*time.Millisecond))
		plain := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), plain)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiter := begin(t, ctx, m.NewLock("a").Lock)
		undo := m.net.On(redistest.Named("EVALSHA"), redistest.Hold()).Skip(1) // after the question that WAIT follows
		require.NoError(t, plain.Unlock(section))
		undo.WaitHits(t, 1)
		cancel()
		_, err := waiter.result()
		require.ErrorIs(t, err, relock.ErrNotReplicated)
		require.NotErrorIs(t, err, relock.ErrLocked)
		undo.LetGo()
	})
}

func TestAHoldThatReplicasDoNotConfirmIsUndone(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithReplicaAcks(1, 100*time.Millisecond), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
			a := begin(t, t.Context(), lock)
			ctx, err := a.result()
			require.ErrorIs(t, err, relock.ErrNotReplicated)
			for _, other := range []error{relock.ErrLocked, relock.ErrLockLost, relock.ErrNotHeld, context.DeadlineExceeded} {
				require.NotErrorIs(t, err, other)
			}
			require.ErrorContains(t, err, "0 of 1 within 100ms")
			require.Equal(t, t.Context(), ctx)
			w.requireNothingLeft("a")
		}
		for _, event := range eventsOf[relock.AcquireFinished](&r) {
			require.Equal(t, relock.OutcomeError, event.Outcome)
			require.ErrorIs(t, event.Err, relock.ErrNotReplicated)
		}

		// The next in the queue is not kept waiting by it.
		plain := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), plain)
		unlucky := begin(t, t.Context(), l.Lock)
		next := begin(t, t.Context(), plain.Lock)
		require.NoError(t, plain.Unlock(section))
		_, err := unlucky.result()
		require.ErrorIs(t, err, relock.ErrNotReplicated)
		finished := eventsOf[relock.AcquireFinished](&r)
		require.True(t, finished[len(finished)-1].Waited)
		require.Equal(t, relock.WakeNone, finished[len(finished)-1].Wake, "a grant came, but it has not got the lock")
		require.NoError(t, plain.Unlock(next.section()))
		w.requireNothingLeft("a")
	})
}

func TestAHoldThatReplicasDoNotConfirmIsUndoneInTheBackgroundWhereRedisDoesNotAnswer(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithReplicaAcks(1, 100*time.Millisecond))
		l := m.NewLock("a")
		cut := m.net.On(redistest.Named("EVALSHA"), redistest.CutBefore(redistest.EOF)).Skip(1) // after the question that WAIT follows
		a := begin(t, t.Context(), tryFor(l, time.Second))
		_, err := a.result()
		require.ErrorIs(t, err, relock.ErrNotReplicated)
		require.Equal(t, time.Second, a.took())
		require.False(t, w.free("a"))
		cut.Remove()
		pass(5 * time.Second)
		w.requireNothingLeft("a")
	})
}
