package relockprom_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	relockprom "github.com/go-relock/relock/prometheus"
	"github.com/go-relock/relock/store/mem"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// value is one sample of what a Collector exports, as name{label="value",...}, with labels in
// alphabetical order. Of a histogram there are name_count and name_sum.
func value(t *testing.T, c prometheus.Collector, sample string) float64 {
	t.Helper()
	all := values(t, c)
	v, ok := all[sample]
	require.True(t, ok, "no %s in\n%v", sample, slices.Sorted(maps.Keys(all)))
	return v
}

func values(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	all := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			suffix := ""
			if len(labels) > 0 {
				suffix = "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetHistogram() != nil:
				all[family.GetName()+"_count"+suffix] = float64(m.GetHistogram().GetSampleCount())
				all[family.GetName()+"_sum"+suffix] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				all[family.GetName()+suffix] = m.GetCounter().GetValue()
			default:
				all[family.GetName()+suffix] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

// changed is what of the values is not 0.
func changed(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	all := values(t, c)
	for s, v := range all {
		if v == 0 {
			delete(all, s)
		}
	}
	return all
}

// world is a server and a clock, in which time passes only when everybody waits.
type world struct {
	*miniredis.Miniredis
	t *testing.T // of the bubble
}

// bubble runs a test in a world of its own.
func bubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		w := &world{miniredis.NewMiniRedis(), t}
		w.ClockTTL(true)
		t.Cleanup(func() {
			w.Close()
			pass(time.Minute) // go-redis ends
		})
		test(w)
	})
}

func (w *world) client(options ...relock.Option) *relock.Client {
	w.t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:6379", // the dialer ignores it
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return w.Dial() },
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true,
	})
	w.t.Cleanup(func() { _ = rdb.Close() })
	c, err := relock.New(rdb, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // fake time
	synctest.Wait()
}

// is compares two numbers that are whole, or near enough.
func is(t *testing.T, want, got float64, msg ...any) {
	t.Helper()
	require.InDelta(t, want, got, 1e-9, msg...)
}

func enter(t *testing.T, ctx context.Context, l *relock.Lock) context.Context { //nolint:revive // t comes first in tests
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	return section
}

// newHolder makes a holder for events that a test makes up.
func newHolder(t *testing.T) relock.Holder {
	t.Helper()
	c, err := relock.Open(mem.New())
	require.NoError(t, err)
	defer c.Close()
	section, err := c.NewLock("a").Lock(t.Context())
	require.NoError(t, err)
	holder, _ := relock.HolderFrom(section)
	return holder
}

func TestTheStoryOfALockIsCounted(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := relockprom.New()
		locks := w.client(relock.WithHooks(c.Hooks()), relock.WithTTL(10*time.Second))
		l := locks.NewLock("a")

		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = l.TryLockFor(t.Context(), 2*time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		synctest.Wait() // it has left the queue
		next := make(chan context.Context, 1)
		go func() {
			section, err := l.Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			next <- section
		}()
		pass(3 * time.Second)
		before := changed(t, c)
		for _, sample := range []string{`relock_renewals_total{result="ok"}`, `relock_renewal_duration_seconds_count`} {
			require.GreaterOrEqual(t, before[sample], 1.)
			delete(before, sample)
		}
		require.Equal(t, map[string]float64{
			`relock_acquires_total{mode="exclusive",outcome="acquired",reentrant="false",waited="false"}`: 1,
			`relock_acquires_total{mode="exclusive",outcome="acquired",reentrant="true",waited="false"}`:  1,
			`relock_acquires_total{mode="exclusive",outcome="locked",reentrant="false",waited="false"}`:   1,
			`relock_acquires_total{mode="exclusive",outcome="locked",reentrant="false",waited="true"}`:    1,
			`relock_acquire_duration_seconds_count{mode="exclusive",outcome="acquired"}`:                  1,
			`relock_acquire_duration_seconds_count{mode="exclusive",outcome="locked"}`:                    2,
			`relock_acquire_duration_seconds_sum{mode="exclusive",outcome="locked"}`:                      2,
			`relock_acquire_ttl_ratio_count{mode="exclusive"}`:                                            2,
			`relock_acquire_ttl_ratio_sum{mode="exclusive"}`:                                              .2,
			`relock_queue_position_count{mode="exclusive"}`:                                               2,
			`relock_waiters{mode="exclusive"}`:                                                            1,
			`relock_holds{mode="exclusive"}`:                                                              1,
			`relock_hold_max_age_seconds{mode="exclusive"}`:                                               5,
			`relock_hold_max_age_ttl_ratio{mode="exclusive"}`:                                             .5,
		}, before)

		pass(20 * time.Second)
		require.NoError(t, l.Unlock(inner))
		require.NoError(t, l.Unlock(outer))
		last := <-next
		synctest.Wait()
		got := changed(t, c)
		is(t, 1, got[`relock_acquires_total{mode="exclusive",outcome="acquired",reentrant="false",waited="true"}`])
		is(t, 23, got[`relock_acquire_duration_seconds_sum{mode="exclusive",outcome="acquired"}`])
		is(t, 1, got[`relock_wakes_total{mode="exclusive",wake="grant"}`])
		is(t, 1, got[`relock_hold_duration_seconds_count{end="released",mode="exclusive"}`])
		is(t, 25, got[`relock_hold_duration_seconds_sum{end="released",mode="exclusive"}`])
		is(t, 2.5, got[`relock_hold_ttl_ratio_sum{mode="exclusive"}`])
		is(t, 1, got[`relock_hold_depth_count{mode="exclusive"}`])
		is(t, 2, got[`relock_hold_depth_sum{mode="exclusive"}`])
		is(t, 1, got[`relock_holds{mode="exclusive"}`])
		require.NotContains(t, got, `relock_waiters{mode="exclusive"}`)
		require.NotContains(t, got, `relock_hold_max_age_seconds{mode="exclusive"}`)

		w.FlushAll()
		<-last.Done()
		require.ErrorIs(t, l.Unlock(last), relock.ErrLockLost)
		synctest.Wait()
		got = changed(t, c)
		is(t, 1, got[`relock_losses_total{mode="exclusive",reason="taken"}`])
		is(t, 1, got[`relock_renewals_total{result="lost"}`])
		is(t, 1, got[`relock_hold_duration_seconds_count{end="lost",mode="exclusive"}`])
		is(t, 2, got[`relock_hold_depth_count{mode="exclusive"}`])
		require.NotContains(t, got, `relock_holds{mode="exclusive"}`)

		open := enter(t, t.Context(), l)
		pass(time.Second)
		require.NoError(t, locks.Close())
		got = changed(t, c)
		is(t, 1, got[`relock_hold_duration_seconds_count{end="closed",mode="exclusive"}`])
		is(t, 1, got[`relock_hold_duration_seconds_sum{end="closed",mode="exclusive"}`])
		require.NotContains(t, got, `relock_holds{mode="exclusive"}`, "nobody tells of its end any more")
		require.NoError(t, l.Unlock(open))
	})
}

func TestTroubleWithRedisIsCounted(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := relockprom.New()
		l := w.client(relock.WithHooks(c.Hooks()), relock.WithTTL(10*time.Second)).NewLock("a")
		section := enter(t, t.Context(), l)
		w.SetError("LOADING Redis is loading the dataset in memory")
		<-section.Done()
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost) // until here it is in use, and so no leak
		synctest.Wait()
		got := changed(t, c)
		is(t, 1, got[`relock_losses_total{mode="exclusive",reason="expired"}`])
		require.Greater(t, got[`relock_renewals_total{result="failed"}`], 2.)
		require.NotContains(t, got, `relock_renewals_total{result="ok"}`)
		require.NotContains(t, got, `relock_holds{mode="exclusive"}`)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		got = changed(t, c)
		require.Greater(t, got[`relock_retries_total{script="acquire"}`], 2.)
		is(t, 1, got[`relock_acquires_total{mode="exclusive",outcome="canceled",reentrant="false",waited="false"}`])

		w.SetError("")
		section = enter(t, t.Context(), l)
		w.SetError("NOAUTH Authentication required.")
		require.ErrorContains(t, l.Unlock(section), "NOAUTH")
		_, err = l.Lock(t.Context())
		require.ErrorContains(t, err, "NOAUTH")
		synctest.Wait()
		w.SetError("")
		got = changed(t, c)
		is(t, 1, got[`relock_releases_unconfirmed_total{mode="exclusive"}`])
		is(t, 1, got[`relock_acquires_total{mode="exclusive",outcome="error",reentrant="false",waited="false"}`])
		require.NotContains(t, got, `relock_holds{mode="exclusive"}`)
	})
}

func TestALeakIsCounted(t *testing.T) {
	server := redistest.Shared(t)
	c := relockprom.New()
	client, err := relock.New(server.Client(), relock.WithHooks(c.Hooks()), relock.WithTTL(2*time.Second))
	require.NoError(t, err)
	defer client.Close()
	_, err = client.NewLock("leak").Lock(t.Context()) // the section's context is dropped
	require.NoError(t, err)
	redistest.Eventually(t, 20*time.Second, func() bool {
		runtime.GC()
		return value(t, c, `relock_leaks_total{mode="exclusive"}`) == 1 && value(t, c, `relock_losses_total{mode="exclusive",reason="leaked"}`) == 1
	}, "the leak and the loss were told")
	require.Zero(t, value(t, c, `relock_holds{mode="exclusive"}`))
}

func TestAPubSubConnectionThatComesBackIsCounted(t *testing.T) {
	server := redistest.Shared(t)
	faults := redistest.NewFaults()
	defer faults.Close()
	c := relockprom.New()
	client, err := relock.New(server.Client(func(o *redis.Options) { o.Dialer = faults.Dialer(nil) }), relock.WithHooks(c.Hooks()))
	require.NoError(t, err)
	defer client.Close()
	l := client.NewLock("reconnect")
	section := enter(t, t.Context(), l)
	waiting := make(chan error, 1)
	go func() {
		waiting <- l.Do(t.Context(), func(context.Context) error { return nil })
	}()
	redistest.Eventually(t, 10*time.Second, func() bool { return value(t, c, `relock_waiters{mode="exclusive"}`) == 1 }, "one waits")
	faults.CutPubSub()
	redistest.Eventually(t, 10*time.Second, func() bool { return value(t, c, `relock_reconnects_total`) == 1 }, "it is back")
	require.Positive(t, value(t, c, `relock_reconnect_downtime_seconds_total`))
	require.NoError(t, l.Unlock(section))
	require.NoError(t, <-waiting)
	redistest.Eventually(t, 10*time.Second, func() bool { // holds are 0 between the two, too
		return value(t, c, `relock_waiters{mode="exclusive"}`) == 0 && value(t, c, `relock_holds{mode="exclusive"}`) == 0
	}, "both holds have ended")
}

func TestEachModeHasItsOwnSeries(t *testing.T) {
	server := redistest.Shared(t)
	c := relockprom.New()
	require.NotContains(t, values(t, c), `relock_holds{mode="shared"}`, "a program without readers has no series of them")
	client, err := relock.New(server.Client(), relock.WithHooks(c.Hooks()))
	require.NoError(t, err)
	defer client.Close()
	count := func(sample string, want float64) {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func() bool { return values(t, c)[sample] == want }, "counted: %v %s", want, sample)
	}
	prices, tills := client.NewRWLock("prices"), client.NewSemaphore("tills", 2)
	one, two := enter(t, t.Context(), prices.RLocker()), enter(t, t.Context(), prices.RLocker())
	permit := enter(t, t.Context(), tills)
	count(`relock_holds{mode="shared"}`, 2)
	count(`relock_holds{mode="permit"}`, 1)
	count(`relock_acquires_total{mode="shared",outcome="acquired",reentrant="false",waited="false"}`, 2)

	wrote, done := make(chan error, 1), make(chan struct{})
	go func() {
		section, err := prices.Lock(one)
		if err == nil {
			<-done
			err = prices.Unlock(section)
		}
		wrote <- err
	}()
	count(`relock_waiters{mode="exclusive"}`, 1)
	_, err = prices.Lock(two)
	require.ErrorIs(t, err, relock.ErrDeadlock)
	count(`relock_acquires_total{mode="exclusive",outcome="deadlock",reentrant="true",waited="false"}`, 1)
	require.NoError(t, prices.Unlock(two))
	count(`relock_holds{mode="exclusive"}`, 1) // an upgrade is a hold beside the reader's
	count(`relock_holds{mode="shared"}`, 1)
	close(done)
	require.NoError(t, <-wrote)
	count(`relock_holds{mode="exclusive"}`, 0)
	count(`relock_holds{mode="shared"}`, 1)
	require.NoError(t, prices.Unlock(one))
	require.NoError(t, tills.Unlock(permit))
	count(`relock_hold_duration_seconds_count{end="released",mode="shared"}`, 2)
	count(`relock_hold_duration_seconds_count{end="released",mode="exclusive"}`, 1)
	count(`relock_hold_duration_seconds_count{end="released",mode="permit"}`, 1)
}

// Everything below feeds a Collector by hand, with what is hard to make happen.

func feed() (*relockprom.Collector, relock.Hooks) {
	c := relockprom.New()
	return c, c.Hooks()
}

func acquired(name string, h relock.Holder) relock.AcquireFinished {
	return relock.AcquireFinished{
		Context: context.Background(), Name: name, Mode: relock.ModeExclusive, Holder: h, Start: time.Now(), Outcome: relock.OutcomeAcquired, Depth: 1,
		TTL: time.Second,
	}
}

func TestOneHolderInTwoLocksOfOneNameHasTwoHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relockprom.New()
		open := func() *relock.Lock {
			client, err := relock.Open(mem.New(), relock.WithHooks(c.Hooks()))
			require.NoError(t, err)
			t.Cleanup(func() { _ = client.Close() })
			return client.NewLock("a")
		}
		one, two := open(), open()
		outer := enter(t, t.Context(), one)
		pass(time.Second)
		inner := enter(t, outer, two)
		pass(time.Second)
		is(t, 2, value(t, c, `relock_holds{mode="exclusive"}`))
		is(t, 2, value(t, c, `relock_hold_max_age_seconds{mode="exclusive"}`))
		require.NoError(t, two.Unlock(inner))
		synctest.Wait()
		is(t, 1, value(t, c, `relock_holds{mode="exclusive"}`))
		require.NoError(t, one.Unlock(outer))
		synctest.Wait()
		require.Zero(t, value(t, c, `relock_holds{mode="exclusive"}`))
	})
}

func TestALeaderIsAHoldWithoutAnAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := mem.New()
		c := relockprom.New()
		lead := func(ctx context.Context) <-chan error {
			locks, err := relock.Open(shared, relock.WithHooks(c.Hooks()))
			require.NoError(t, err)
			t.Cleanup(func() { _ = locks.Close() })
			done := make(chan error, 1)
			go func() {
				done <- locks.NewLock("a").Lead(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
			}()
			synctest.Wait()
			return done
		}
		ctx, stop := context.WithCancel(t.Context())
		first := lead(ctx)
		next, stopNext := context.WithCancel(t.Context())
		second := lead(next)
		pass(time.Hour)
		is(t, 1, value(t, c, `relock_holds{mode="exclusive"}`))
		is(t, 1, value(t, c, `relock_waiters{mode="exclusive"}`))
		require.Zero(t, value(t, c, `relock_hold_max_age_seconds{mode="exclusive"}`))
		require.Zero(t, value(t, c, `relock_hold_max_age_ttl_ratio{mode="exclusive"}`))
		stop()
		require.NoError(t, <-first)
		pass(time.Hour)
		stopNext()
		require.NoError(t, <-second)
		synctest.Wait()
		require.Zero(t, value(t, c, `relock_holds{mode="exclusive"}`))
		require.Zero(t, value(t, c, `relock_waiters{mode="exclusive"}`))
		is(t, 2, value(t, c, `relock_hold_duration_seconds_count{end="released",mode="exclusive"}`))
		require.Zero(t, value(t, c, `relock_hold_ttl_ratio_count{mode="exclusive"}`))
		require.Zero(t, value(t, c, `relock_acquire_ttl_ratio_count{mode="exclusive"}`))
	})
}

func TestDroppedEventsDoNotLeaveHoldsAndWaitersForEver(t *testing.T) {
	c, hooks := feed()
	one, two := newHolder(t), newHolder(t)
	hooks.AcquireFinished(acquired("a", one))
	hooks.Queued(relock.Queued{Name: "a", Mode: relock.ModeExclusive, Holder: two})
	hooks.Dropped(relock.Dropped{Events: 5})
	is(t, 5, value(t, c, `relock_events_dropped_total`))
	require.Zero(t, value(t, c, `relock_holds{mode="exclusive"}`))
	require.Zero(t, value(t, c, `relock_waiters{mode="exclusive"}`))
	hooks.Released(relock.Released{Name: "a", Mode: relock.ModeExclusive, Holder: one}) // it was not among the dropped
	hooks.AcquireFinished(acquired("a", two))
	is(t, 1, value(t, c, `relock_holds{mode="exclusive"}`), "what comes later counts")
	is(t, 1, value(t, c, `relock_hold_duration_seconds_count{end="released",mode="exclusive"}`))
}

func TestTheNameIsNoLabelUnlessItIsMapped(t *testing.T) {
	for _, test := range []struct {
		name    string
		options []relockprom.Option
		lock    string
	}{
		{name: "by default"},
		{name: "mapped", options: []relockprom.Option{relockprom.WithLockLabel(func(name string) string {
			class, _, _ := strings.Cut(name, ":")
			return class
		})}, lock: "orders"},
		{name: "mapped by nil", options: []relockprom.Option{relockprom.WithLockLabel(nil)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				t := w.t
				c := relockprom.New(test.options...)
				locks := w.client(relock.WithHooks(c.Hooks()))
				l := locks.NewLock("orders:4711")
				section := enter(t, t.Context(), l)
				_, err := l.TryLockFor(t.Context(), time.Second)
				require.Error(t, err)
				w.FlushAll()
				<-section.Done()
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
				require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
				_ = enter(t, t.Context(), l)
				require.NoError(t, locks.Close())
				got := values(t, c)
				require.Greater(t, len(got), 30)
				ofClients := regexp.MustCompile(`^relock_(renewal|retries|reconnect|events)`)
				for sample := range got {
					require.NotContains(t, sample, "4711")
					if test.lock != "" && !ofClients.MatchString(sample) {
						require.Contains(t, sample, `lock="`+test.lock+`"`)
					} else {
						require.NotContains(t, sample, "lock=")
					}
				}
			})
		})
	}
}

func TestANameThatIsNoUTF8DoesNotBreakTheScrape(t *testing.T) {
	class := func(name string) string { class, _, _ := strings.Cut(name, ":"); return class }
	c := relockprom.New(relockprom.WithLockLabel(class))
	hooks := c.Hooks()
	hooks.AcquireFinished(acquired("caf\xe9:42", newHolder(t))) // Latin-1
	hooks.AcquireFinished(acquired("orders:42", newHolder(t)))
	is(t, 1, value(t, c, "relock_holds{lock=\"caf\uFFFD\",mode=\"exclusive\"}"))
	is(t, 1, value(t, c, `relock_holds{lock="orders",mode="exclusive"}`))
}

func TestSeriesBeginWithZero(t *testing.T) {
	c, _ := feed()
	before := values(t, c)
	for sample, v := range before {
		require.Zero(t, v, sample)
	}
	for _, sample := range []string{
		`relock_leaks_total{mode="exclusive"}`, `relock_losses_total{mode="exclusive",reason="expired"}`, `relock_hold_ttl_ratio_count{mode="exclusive"}`,
		`relock_acquires_total{mode="exclusive",outcome="locked",reentrant="false",waited="true"}`, `relock_retries_total{script="acquire"}`,
	} {
		require.Contains(t, before, sample)
	}

	// With a lock label, when the lock is seen first, which is before anything is counted.
	c = relockprom.New(relockprom.WithLockLabel(func(string) string { return "x" }))
	require.NotContains(t, values(t, c), `relock_leaks_total{lock="x",mode="exclusive"}`)
	c.Hooks().AcquireStarted(relock.AcquireStarted{Name: "a", Mode: relock.ModeExclusive})
	require.Contains(t, values(t, c), `relock_leaks_total{lock="x",mode="exclusive"}`)
	require.Contains(t, values(t, c), `relock_holds{lock="x",mode="exclusive"}`)
}

func TestEveryHookIsUsed(t *testing.T) {
	_, hooks := feed()
	v := reflect.ValueOf(hooks)
	for i := range v.NumField() {
		if hook := v.Type().Field(i); hook.IsExported() {
			require.Equal(t, hook.Name == "Trace", v.Field(i).IsNil(), "%s: a new hook wants a metric", hook.Name)
		}
	}
}

func TestAnOptionThatIsNilIsToldAsSuch(t *testing.T) {
	require.PanicsWithValue(t, "relockprom: an Option is nil; leave it out instead", func() { relockprom.New(nil) })
}

func TestDurationBucketsCanBeChosen(t *testing.T) {
	bounds := []float64{1, 2}
	chosen := relockprom.WithDurationBuckets(bounds...)
	bounds[0] = 3 // is the caller's
	c := relockprom.New(chosen)
	c.Hooks().Released(relock.Released{Name: "a", Mode: relock.ModeExclusive, Holder: newHolder(t), Held: 1500 * time.Millisecond})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP relock_hold_duration_seconds Time from the first entry of a hold to its last exit.
# TYPE relock_hold_duration_seconds histogram
relock_hold_duration_seconds_bucket{end="closed",le="1",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="closed",le="2",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="closed",le="+Inf",mode="exclusive"} 0
relock_hold_duration_seconds_sum{end="closed",mode="exclusive"} 0
relock_hold_duration_seconds_count{end="closed",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="lost",le="1",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="lost",le="2",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="lost",le="+Inf",mode="exclusive"} 0
relock_hold_duration_seconds_sum{end="lost",mode="exclusive"} 0
relock_hold_duration_seconds_count{end="lost",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="released",le="1",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="released",le="2",mode="exclusive"} 1
relock_hold_duration_seconds_bucket{end="released",le="+Inf",mode="exclusive"} 1
relock_hold_duration_seconds_sum{end="released",mode="exclusive"} 1.5
relock_hold_duration_seconds_count{end="released",mode="exclusive"} 1
`), "relock_hold_duration_seconds"))
}

func TestWithoutDurationBucketsHistogramsAreNativeOnly(t *testing.T) {
	c := relockprom.New(relockprom.WithDurationBuckets())
	c.Hooks().Released(relock.Released{Name: "a", Mode: relock.ModeExclusive, Holder: newHolder(t), Held: time.Second})
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	seen := 0
	for _, family := range families {
		if strings.HasSuffix(family.GetName(), "_duration_seconds") && !strings.Contains(family.GetName(), "renewal") {
			for _, m := range family.GetMetric() {
				require.Empty(t, m.GetHistogram().GetBucket())
				seen += len(m.GetHistogram().GetPositiveSpan())
			}
		}
	}
	require.Positive(t, seen)
}

func TestDurationBucketsThatDoNotGrowAreToldAtOnce(t *testing.T) {
	wrong := relockprom.WithDurationBuckets(2, 1)
	require.Panics(t, func() { relockprom.New(wrong) })
	require.Panics(t, func() { relockprom.New(wrong, relockprom.WithLockLabel(strings.ToUpper)) })
}

func TestTheMetricsKeepToPrometheusConventions(t *testing.T) {
	c, _ := feed()
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestScrapesAndEventsAtOnceAreSafe(t *testing.T) {
	c, hooks := feed()
	var work sync.WaitGroup
	for range 4 {
		h := newHolder(t)
		work.Go(func() {
			for range 200 {
				hooks.AcquireStarted(relock.AcquireStarted{Name: "a", Mode: relock.ModeExclusive})
				hooks.Queued(relock.Queued{Name: "a", Mode: relock.ModeExclusive, Holder: h})
				e := acquired("a", h)
				e.Waited, e.Queued = true, true
				hooks.AcquireFinished(e)
				hooks.Released(relock.Released{Name: "a", Mode: relock.ModeExclusive, Holder: h, Err: errors.New("x")})
			}
		})
		work.Go(func() {
			for range 20 {
				testutil.CollectAndCount(c)
			}
		})
	}
	work.Wait()
	require.Zero(t, value(t, c, `relock_holds{mode="exclusive"}`))
	require.Zero(t, value(t, c, `relock_waiters{mode="exclusive"}`))
	is(t, 800, value(t, c, `relock_releases_unconfirmed_total{mode="exclusive"}`))
}

// The page and the package documentation list the metrics; neither may miss one, or have one too
// many.
func TestTheDocumentationListsEveryMetric(t *testing.T) {
	c, _ := feed()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	var want []string
	for _, family := range families {
		labels := map[string]bool{}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		names := slices.Sorted(maps.Keys(labels))
		suffix := ""
		if len(names) > 0 {
			suffix = "{" + strings.Join(names, ",") + "}"
		}
		want = append(want, family.GetName()+suffix)
	}
	for file, pattern := range map[string]string{
		"doc.go":                   `(?m)^//\t(relock_\w+(?:\{[\w,]+\})?)`,
		"../docs/OBSERVABILITY.md": "(?m)^\\| `(relock_\\w+(?:\\{[\\w,]+\\})?)`",
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var got []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			got = append(got, m[1])
		}
		slices.Sort(got)
		require.Equal(t, want, got, file)
	}
}

func TestTwoClientsShareACollector(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		c := relockprom.New()
		one, two := w.client(relock.WithHooks(c.Hooks())), w.client(relock.WithHooks(c.Hooks()))
		_ = enter(t, t.Context(), one.NewLock("a"))
		section := enter(t, t.Context(), two.NewLock("b"))
		synctest.Wait()
		is(t, 2, value(t, c, `relock_holds{mode="exclusive"}`))
		require.NoError(t, one.Close())
		is(t, 1, value(t, c, `relock_holds{mode="exclusive"}`))
		require.NoError(t, two.NewLock("b").Unlock(section))
		synctest.Wait()
		require.Zero(t, value(t, c, `relock_holds{mode="exclusive"}`))
	})
}
