package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// Which options and arguments are refused?

// wrongOptions are options that cannot be used, with what the message must say: what was given, and
// what is allowed.
var wrongOptions = map[string]struct {
	options []relock.Option
	says    []string
}{
	"a TTL of zero":                  {stage.Options(relock.WithTTL(0)), []string{"WithTTL(0s)", "10ms", "168h"}},
	"a negative TTL":                 {stage.Options(relock.WithTTL(-time.Second)), []string{"WithTTL(-1s)", "10ms"}},
	"a TTL that is too short":        {stage.Options(relock.WithTTL(relock.MinTTL - time.Millisecond)), []string{"WithTTL(9ms)", "10ms"}},
	"a TTL that is too long":         {stage.Options(relock.WithTTL(relock.MaxTTL + time.Millisecond)), []string{"WithTTL(168h0m0.001s)", "168h0m0s"}},
	"a TTL not in milliseconds":      {stage.Options(relock.WithTTL(time.Second + time.Microsecond)), []string{"WithTTL(1.000001s)", "whole milliseconds"}},
	"a TTL given as a number":        {stage.Options(relock.WithTTL(30)), []string{"WithTTL(30ns)", "whole milliseconds"}},
	"a fixed lease of zero":          {stage.Options(relock.WithFixedLease(0)), []string{"WithFixedLease(0s)", "10ms"}},
	"a fixed lease too short":        {stage.Options(relock.WithFixedLease(time.Millisecond)), []string{"WithFixedLease(1ms)", "10ms"}},
	"a fixed lease too long":         {stage.Options(relock.WithFixedLease(relock.MaxTTL + time.Hour)), []string{"WithFixedLease", "168h0m0s"}},
	"a fixed lease not in ms":        {stage.Options(relock.WithFixedLease(time.Second + 1)), []string{"WithFixedLease", "whole milliseconds"}},
	"a max hold below the TTL":       {stage.Options(relock.WithMaxHold(29 * time.Second)), []string{"WithMaxHold(29s)", "at least the TTL", "30s"}},
	"a max hold below a later TTL":   {stage.Options(relock.WithMaxHold(time.Minute), relock.WithTTL(time.Hour)), []string{"WithMaxHold(1m0s)", "1h0m0s"}},
	"a negative max hold":            {stage.Options(relock.WithMaxHold(-time.Minute)), []string{"WithMaxHold(-1m0s)", "at least the TTL"}},
	"a max hold not in ms":           {stage.Options(relock.WithMaxHold(time.Minute + 1)), []string{"WithMaxHold", "whole milliseconds"}},
	"a max hold of a fixed lease":    {stage.Options(relock.WithFixedLease(time.Second), relock.WithMaxHold(time.Minute)), []string{"WithMaxHold(1m0s)", "WithFixedLease(1s)", "WithMaxHold(0)"}},
	"a fixed lease and a TTL":        {stage.Options(relock.WithFixedLease(time.Second), relock.WithTTL(time.Minute)), []string{"WithTTL(1m0s)", "WithFixedLease(1s)"}},
	"no logger":                      {stage.Options(relock.WithLogger(nil)), []string{"WithLogger(nil)", "leave the option out"}},
	"no replicas":                    {stage.Options(relock.WithReplicaAcks(0, time.Second)), []string{"WithReplicaAcks(0, 1s)", "1 to 100"}},
	"negative replicas":              {stage.Options(relock.WithReplicaAcks(-1, time.Second)), []string{"WithReplicaAcks(-1, 1s)", "1 to 100"}},
	"too many replicas":              {stage.Options(relock.WithReplicaAcks(101, time.Second)), []string{"WithReplicaAcks(101, 1s)", "1 to 100"}},
	"no time for replicas":           {stage.Options(relock.WithReplicaAcks(1, 0)), []string{"WithReplicaAcks(1, 0s)", "from 1ms to 168h0m0s"}},
	"negative time for replicas":     {stage.Options(relock.WithReplicaAcks(1, -time.Second)), []string{"WithReplicaAcks(1, -1s)", "from 1ms"}},
	"too much time for replicas":     {stage.Options(relock.WithReplicaAcks(1, relock.MaxTTL+time.Second)), []string{"to 168h0m0s"}},
	"time for replicas not in ms":    {stage.Options(relock.WithReplicaAcks(1, time.Millisecond+1)), []string{"WithReplicaAcks", "whole milliseconds"}},
	"replicas of a store in memory":  {stage.Options(relock.WithReplicaAcks(1, time.Second)), []string{"memory has no replicas"}},
	"a negative number of AOF acks":  {stage.Options(relock.WithAOFAcks(-1, time.Second)), []string{"WithAOFAcks(-1, 1s)", "0 to 100"}},
	"no time for AOF acks":           {stage.Options(relock.WithAOFAcks(0, 0)), []string{"WithAOFAcks(0, 0s)", "from 1ms to 168h0m0s"}},
	"AOF acks of a store in memory":  {stage.Options(relock.WithAOFAcks(0, time.Second)), []string{"no disk"}},
	"a negative delay":               {stage.Options(relock.WithLockDelay(-time.Second)), []string{"WithLockDelay(-1s)", "up to 168h0m0s"}},
	"a delay not in milliseconds":    {stage.Options(relock.WithLockDelay(time.Microsecond)), []string{"WithLockDelay(1µs)", "whole milliseconds"}},
	"a delay that is too long":       {stage.Options(relock.WithLockDelay(relock.MaxTTL + time.Second)), []string{"WithLockDelay(168h0m1s)", "168h0m0s"}},
	"a negative number of waiters":   {stage.Options(relock.WithMaxWaiters(-1)), []string{"WithMaxWaiters(-1)", "at least 1", "0 for no limit"}},
	"the first wrong one of several": {stage.Options(relock.WithTTL(0), relock.WithLogger(nil)), []string{"WithTTL(0s)"}},
}

func TestAWrongOptionOfAClientIsAnErrorThatSaysWhatIsAllowed(t *testing.T) {
	for name, c := range wrongOptions {
		t.Run(name, func(t *testing.T) {
			client, err := relock.Open(mem.New(), c.options...)
			require.Nil(t, client)
			require.ErrorIs(t, err, relock.ErrInvalid)
			for _, says := range c.says {
				require.ErrorContains(t, err, says)
			}
		})
	}
}

func TestANameThatCannotBeUsedIsToldByEveryMethod(t *testing.T) {
	for name, c := range map[string]struct{ name, says string }{
		"empty":                             {"", "1 to 1024 bytes"},
		"too long":                          {strings.Repeat("n", relock.MaxNameLen+1), "at most 1024"},
		"too long in bytes, not characters": {strings.Repeat("ö", relock.MaxNameLen/2+1), "1026 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient()
				l := m.NewLock(c.name)
				require.ErrorContains(t, l.Err(), c.says)
				require.Equal(t, c.name, l.Name())
				stage.RequireInvalid(t, m, l)
			})
		})
	}
	client, err := relock.Open(mem.New())
	require.NoError(t, err)
	require.NoError(t, client.NewLock(strings.Repeat("n", relock.MaxNameLen)).Err())
	require.NoError(t, client.Close())
}

func TestALockThatNewLockHasNotMadeIsToldByEveryMethod(t *testing.T) {
	stage.RequireInvalid(t, nil, &relock.Lock{})
	for _, l := range []*relock.Lock{{}, nil} {
		require.ErrorContains(t, l.Err(), "not made by Client.NewLock")
		_, err := l.Lock(t.Context())
		require.Equal(t, l.Err(), err)
		require.Equal(t, l.Err(), l.Unlock(t.Context()))
		require.ErrorIs(t, l.Do(t.Context(), func(context.Context) error { return nil }), relock.ErrInvalid)
	}
}

func TestAWrongArgumentIsAnErrorThatSaysWhatIsAllowed(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		run := func(context.Context) error { return errors.New("the function has run") }
		_, waitErr := l.TryLockFor(t.Context(), -time.Millisecond)
		for name, c := range map[string]struct {
			err  error
			says []string
		}{
			"a zero Client":         {new(relock.Client).NewSemaphore("a", 2).Err(), []string{"not made by New or Open"}},
			"a Check of none":       {new(relock.Client).Check(t.Context()), []string{"not made by New or Open"}},
			"a wait below zero":     {waitErr, []string{"TryLockFor(-1ms)", "0", "without limit"}},
			"a wait of DoFor too":   {l.DoFor(t.Context(), -1, run), []string{"DoFor(-1ns)", "without limit"}},
			"a Do of no function":   {l.Do(t.Context(), nil), []string{"the function is nil"}},
			"a DoFor of none":       {l.DoFor(t.Context(), 0, nil), []string{"DoFor", "the function is nil"}},
			"Extend by nothing":     {l.Extend(t.Context(), 0), []string{"Extend(0s)", "10ms", "168h0m0s"}},
			"Extend by too little":  {l.Extend(t.Context(), time.Millisecond), []string{"Extend(1ms)", "10ms"}},
			"Extend by too much":    {l.Extend(t.Context(), relock.MaxTTL+time.Second), []string{"Extend", "168h0m0s"}},
			"Extend by half a ms":   {l.Extend(t.Context(), time.Second+time.Millisecond/2), []string{"Extend", "whole milliseconds"}},
			"Extend backwards":      {l.Extend(t.Context(), -time.Second), []string{"Extend(-1s)", "10ms"}},
			"a store that is nil":   {openErr(nil), []string{"the store is nil"}},
			"a nil pointer as one":  {openErr((*mem.Store)(nil)), []string{"the store is nil"}},
			"a prefix for a store":  {openErr(mem.New(), relock.WithPrefix("p:")), []string{"WithPrefix", "for New"}},
			"a layout for a store":  {openErr(mem.New(), relock.WithRedissonLayout()), []string{"WithRedissonLayout", "for New"}},
			"fencing for a store":   {openErr(mem.New(), relock.WithRedissonFencing()), []string{"for New"}},
			"a delay for a store":   {openErr(mem.New(), relock.WithRestartDelay(time.Second)), []string{"WithRestartDelay", "for New"}},
			"an owner without text": {openErr(mem.New(), relock.WithOwner("")), []string{`WithOwner("")`, "1 to 64 letters"}},
			"an owner with a space": {openErr(mem.New(), relock.WithOwner("a b")), []string{`WithOwner("a b")`, "letters, digits"}},
			"an owner with a slash": {openErr(mem.New(), relock.WithOwner("a/b")), []string{`WithOwner("a/b")`, "letters, digits"}},
			"an owner too long":     {openErr(mem.New(), relock.WithOwner(strings.Repeat("o", 65))), []string{"1 to 64 letters"}},
		} {
			require.ErrorIs(t, c.err, relock.ErrInvalid, name)
			for _, says := range c.says {
				require.ErrorContains(t, c.err, says, name)
			}
		}
		require.Zero(t, m.Link.Sent())
	})
}

// openErr returns the error of Open.
func openErr(s store.Store, options ...relock.Option) error {
	_, err := relock.Open(s, options...)
	return err
}

func TestAnOptionOfTheClientAsAWholeIsNoOptionOfALock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		for name, option := range map[string]relock.Option{
			"WithPrefix":          relock.WithPrefix("p:"),
			"WithRedissonLayout":  relock.WithRedissonLayout(),
			"WithRedissonFencing": relock.WithRedissonFencing(),
			"WithRestartDelay":    relock.WithRestartDelay(time.Second),
			"WithOwner":           relock.WithOwner("o"),
			"WithReleaseOnClose":  relock.WithReleaseOnClose(),
		} {
			err := m.NewLock("a", option).Err()
			require.ErrorIs(t, err, relock.ErrInvalid, name)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "is for New and ")
		}
	})
}

func TestTheOwnerIsInFrontOfTheClientsID(t *testing.T) {
	for _, owner := range []string{"orders@pod-7.eu_1", "10.0.0.7:8080", "[::1]:8080", ":", "a:1:2"} {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m := w.NewClient(relock.WithOwner(owner))
			require.True(t, strings.HasPrefix(m.ID(), owner+"/"), m.ID())
			l := m.NewLock("a")
			section := w.Enter(t.Context(), l)
			require.True(t, strings.HasPrefix(stage.HolderOf(t, section).String(), m.ID()+":"))
			_, err := w.NewClient().NewLock("a").TryLock(t.Context())
			require.ErrorContains(t, err, "is locked by "+owner+"/")
			state, err := l.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, stage.HolderOf(t, section), state.Holder)
			require.Equal(t, owner, state.Holder.Owner())
			w.Leave(section, l)
		})
	}
}

func TestAWaitOfZeroIsTryLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		section, err := l.TryLockFor(t.Context(), 0)
		require.NoError(t, err)
		a := w.Begin(t.Context(), stage.TryFor(l, 0))
		require.ErrorIs(t, a.Failure(), relock.ErrLocked)
		require.NotErrorIs(t, a.Failure(), context.DeadlineExceeded)
		require.Zero(t, a.Took())
		err = l.DoFor(t.Context(), 0, func(context.Context) error { return errors.New("the function has run") })
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Zero(t, m.Link.Sent(stage.CmdWait), "nothing queues")
		w.Leave(section, l)
	})
}

func TestTheLimitsThemselvesAreAllowed(t *testing.T) {
	for _, options := range [][]relock.Option{
		nil,
		stage.Options(relock.WithTTL(relock.MinTTL)),
		stage.Options(relock.WithTTL(relock.MaxTTL)),
		stage.Options(relock.WithFixedLease(relock.MinTTL)),
		stage.Options(relock.WithFixedLease(relock.MaxTTL)),
		stage.Options(relock.WithMaxHold(relock.DefaultTTL)),
		stage.Options(relock.WithMaxHold(0)),
		stage.Options(relock.WithFixedLease(time.Second), relock.WithMaxHold(0)),
		stage.Options(relock.WithMaxHold(time.Second), relock.WithTTL(time.Second)),
		stage.Options(relock.WithMaxHold(relock.MinTTL), relock.WithTTL(relock.MinTTL)),
	} {
		client, err := relock.Open(mem.New(), options...)
		require.NoError(t, err)
		require.NoError(t, client.NewLock("a", options...).Err())
		require.NoError(t, client.Close())
	}
	require.NoError(t, openErr(mem.New(), relock.WithOwner(strings.Repeat("o", 64))))
}

func TestLaterOptionsWinAndThoseOfTheLockOverThoseOfTheClient(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(time.Minute), relock.WithTTL(20*time.Second))
		lease := func(options ...relock.Option) time.Duration {
			l := m.NewLock("a", options...)
			section := w.Enter(t.Context(), l)
			defer func() { w.Leave(section, l) }()
			return w.Lease("a")
		}
		require.Equal(t, 20*time.Second, lease())
		require.Equal(t, 5*time.Second, lease(relock.WithTTL(5*time.Second)))
		require.Equal(t, 20*time.Second, lease(), "the client's options are as they were")
		require.Equal(t, time.Second, lease(relock.WithTTL(5*time.Second), relock.WithFixedLease(time.Second)))

		// WithTTL after the WithFixedLease of the client brings the watchdog back.
		l := w.NewClient(relock.WithFixedLease(time.Second)).NewLock("a", relock.WithTTL(2*time.Second))
		section := w.Enter(t.Context(), l)
		stage.Pass(time.Minute)
		require.NoError(t, section.Err())
		w.Leave(section, l)
	})
}

func TestALockThatDoesNotFitItsClientsOptionsIsInvalid(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithMaxHold(time.Minute))
		require.NoError(t, m.NewLock("a", relock.WithTTL(time.Minute)).Err())
		require.ErrorIs(t, m.NewLock("a", relock.WithTTL(2*time.Minute)).Err(), relock.ErrInvalid)
		require.ErrorIs(t, m.NewLock("a", relock.WithFixedLease(time.Second)).Err(), relock.ErrInvalid)
		require.NoError(t, m.NewLock("a", relock.WithFixedLease(time.Second), relock.WithMaxHold(0)).Err())
	})
}

func TestADemandThatTheStoreCannotServeIsUnsupported(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		acks := relock.WithReplicaAcks(1, time.Second)
		require.ErrorIs(t, openErr(w.Store, acks), errors.ErrUnsupported)
		err := w.NewClient().NewLock("a", acks).Err()
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorIs(t, err, relock.ErrInvalid)
	})
}

func TestARangeOfTTLsBindsEveryLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		limits := relock.WithTTLRange(time.Second, time.Minute)
		m := w.NewClient(limits)
		for d, fits := range map[time.Duration]bool{
			time.Second: true, time.Minute: true, 999 * time.Millisecond: false, time.Minute + time.Millisecond: false,
		} {
			for _, option := range stage.Options(relock.WithTTL(d), relock.WithFixedLease(d)) {
				err := m.NewLock("a", option).Err()
				require.Equal(t, fits, err == nil, "%s: %v", d, err)
				require.Equal(t, fits, openErr(w.Store, limits, option) == nil)
				if !fits {
					require.ErrorIs(t, err, relock.ErrInvalid)
					require.EqualError(t, err, "relock: invalid: a lease of "+d.String()+": WithTTLRange allows this client 1s to 1m0s")
				}
			}
			l := m.NewLock("a", relock.WithFixedLease(2*time.Second))
			section := w.Enter(t.Context(), l)
			require.Equal(t, fits, l.Extend(section, d) == nil)
			w.Leave(section, l)
		}
		require.ErrorIs(t, m.NewLock("a", limits).Err(), relock.ErrInvalid)
		require.ErrorContains(t, m.NewLock("a", limits).Err(), "for New")

		err := openErr(w.Store, relock.WithTTLRange(time.Second, 10*time.Second))
		require.ErrorContains(t, err, "a lease of 30s", "the default is none")
		for _, wrong := range []relock.Option{
			relock.WithTTLRange(0, time.Second), relock.WithTTLRange(time.Second, 0), relock.WithTTLRange(time.Minute, time.Second),
			relock.WithTTLRange(time.Second, relock.MaxTTL+time.Second),
		} {
			require.ErrorContains(t, openErr(w.Store, wrong), "must be a range from 10ms to 168h0m0s")
		}
	})
}
