package measurestest

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/measures"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/store/mem"
)

// Setup is what a test wants of the metrics.
type Setup struct {
	Details bool
	Label   func(name string) string // nil: no label of the lock
}

// Metrics is the subject of the suite.
type Metrics struct {
	Hooks event.Hooks
	// Values returns what is exported now, as name{label=value,...} with labels in alphabetical
	// order. The name is the Name of a measure. A histogram has two values, name.count and name.sum.
	Values func() map[string]float64
}

// all are all measures.
var all = []measures.Measure{
	measures.Acquires, measures.AcquireTime, measures.AcquireTTL, measures.Wakes, measures.Position, measures.HoldTime,
	measures.HoldTTL, measures.Depth, measures.Unconfirmed, measures.Losses, measures.Leaks, measures.Asks, measures.Waiters,
	measures.Holds, measures.MaxAge, measures.MaxAgeTTL, measures.Renewals, measures.RenewalTime, measures.Retries,
	measures.Reconnects, measures.Downtime, measures.Dropped,
}

// NameOf returns the name of the measure with a series in Prometheus.
func NameOf(series string) string {
	for _, m := range all {
		if m.Series == series {
			return m.Name
		}
	}
	return ""
}

// suite is one subject.
type suite struct {
	open func(t *testing.T, s Setup) Metrics
}

// Run runs the suite. open makes new metrics.
func Run(t *testing.T, open func(t *testing.T, s Setup) Metrics) {
	t.Helper()
	s := suite{open}
	for _, test := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"the story of a lock is counted", s.story},
		{"trouble with the store is counted", s.trouble},
		{"a leak is counted", s.leak},
		{"a connection that comes back is counted", s.reconnect},
		{"each mode is a label", s.modes},
		{"one holder in two locks of one name has two holds", s.twins},
		{"a leader is a hold without an age", s.leader},
		{"events that were dropped leave no hold and no waiter", s.dropped},
		{"the name is no label unless it is mapped", s.names},
		{"a name that is no UTF-8 is replaced", s.notUTF8},
		{"counters begin with 0 if details are wanted", s.zero},
		{"by default a lock has few time series", s.few},
		{"two clients share their metrics", s.clients},
		{"events and collections at once are safe", s.atOnce},
		{"every event is counted somewhere", s.everyHook},
	} {
		t.Run(test.name, test.run)
	}
}

// details returns metrics with details.
func (s suite) details(t *testing.T) Metrics {
	t.Helper()
	return s.open(t, Setup{Details: true})
}

// changed returns the values that are not 0.
func (m Metrics) changed() map[string]float64 {
	all := m.Values()
	maps.DeleteFunc(all, func(_ string, v float64) bool { return v == 0 })
	return all
}

func enter(t *testing.T, ctx context.Context, l *relock.Lock) context.Context {
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	return section
}

// is compares two numbers that are whole, or near enough.
func is(t *testing.T, want, got float64) {
	t.Helper()
	require.InDelta(t, want, got, 1e-9)
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

func acquired(name string, h relock.Holder) event.AcquireFinished {
	return event.AcquireFinished{
		Context: context.Background(), Name: name, Mode: event.ModeExclusive, Holder: h, Start: time.Now(),
		Outcome: event.OutcomeAcquired, Depth: 1, TTL: time.Second,
	}
}

func (s suite) story(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		m := s.details(t)
		locks := w.NewClient(relock.WithHooks(m.Hooks), relock.WithTTL(10*time.Second))
		l := locks.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = l.TryLockFor(t.Context(), 2*time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		synctest.Wait() // the call has left the queue
		next := make(chan context.Context, 1)
		go func() {
			section, err := l.Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			next <- section
		}()
		stage.Pass(3 * time.Second)
		before := m.changed()
		for _, sample := range []string{"renewals{result=ok}", "renewal.duration.count"} {
			require.GreaterOrEqual(t, before[sample], 1.)
			delete(before, sample)
		}
		delete(before, "renewal.duration.sum")
		require.Equal(t, map[string]float64{
			"acquires{mode=exclusive,outcome=acquired,reentrant=false,waited=false}": 1,
			"acquires{mode=exclusive,outcome=acquired,reentrant=true,waited=false}":  1,
			"acquires{mode=exclusive,outcome=locked,reentrant=false,waited=false}":   1,
			"acquires{mode=exclusive,outcome=locked,reentrant=false,waited=true}":    1,
			"acquire.duration.count{mode=exclusive,outcome=acquired}":                1,
			"acquire.duration.count{mode=exclusive,outcome=locked}":                  2,
			"acquire.duration.sum{mode=exclusive,outcome=locked}":                    2,
			"acquire.ttl_ratio.count{mode=exclusive}":                                2,
			"acquire.ttl_ratio.sum{mode=exclusive}":                                  .2,
			"queue.position.count{mode=exclusive}":                                   2,
			"waiters{mode=exclusive}":                                                1,
			"holds{mode=exclusive}":                                                  1,
			"hold.max_age{mode=exclusive}":                                           5,
			"hold.max_age_ttl{mode=exclusive}":                                       .5,
		}, before)

		stage.Pass(20 * time.Second)
		require.NoError(t, l.Unlock(inner))
		require.NoError(t, l.Unlock(outer))
		last := <-next
		synctest.Wait()
		got := m.changed()
		for sample, want := range map[string]float64{
			"acquires{mode=exclusive,outcome=acquired,reentrant=false,waited=true}": 1,
			"acquire.duration.sum{mode=exclusive,outcome=acquired}":                 23,
			"wakes{mode=exclusive,wake=grant}":                                      1,
			"hold.duration.count{end=released,mode=exclusive}":                      1,
			"hold.duration.sum{end=released,mode=exclusive}":                        25,
			"hold.ttl_ratio.sum{mode=exclusive}":                                    2.5,
			"hold.depth.count{mode=exclusive}":                                      1,
			"hold.depth.sum{mode=exclusive}":                                        2,
			"holds{mode=exclusive}":                                                 1,
		} {
			require.InDelta(t, want, got[sample], 1e-9, sample)
		}
		require.NotContains(t, got, "waiters{mode=exclusive}")
		require.NotContains(t, got, "hold.max_age{mode=exclusive}")

		w.Redis.FlushAll()
		<-last.Done()
		require.ErrorIs(t, l.Unlock(last), relock.ErrLockLost)
		synctest.Wait()
		got = m.changed()
		is(t, 1, got["losses{mode=exclusive,reason=taken}"])
		is(t, 1, got["renewals{result=lost}"])
		is(t, 1, got["hold.duration.count{end=lost,mode=exclusive}"])
		is(t, 2, got["hold.depth.count{mode=exclusive}"])
		require.NotContains(t, got, "holds{mode=exclusive}")

		open := enter(t, t.Context(), l)
		stage.Pass(time.Second)
		require.NoError(t, locks.Close())
		got = m.changed()
		is(t, 1, got["hold.duration.count{end=closed,mode=exclusive}"])
		is(t, 1, got["hold.duration.sum{end=closed,mode=exclusive}"])
		require.NotContains(t, got, "holds{mode=exclusive}", "no event tells the end of the hold any more")
		require.NoError(t, l.Unlock(open))
	})
}

func (s suite) trouble(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		m := s.open(t, Setup{})
		l := w.NewClient(relock.WithHooks(m.Hooks), relock.WithTTL(10*time.Second)).NewLock("a")
		section := enter(t, t.Context(), l)
		w.Redis.SetError("LOADING Redis is loading the dataset in memory")
		<-section.Done()
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost) // until here the section is in use, and so no leak
		synctest.Wait()
		got := m.changed()
		is(t, 1, got["losses{mode=exclusive,reason=expired}"])
		require.Greater(t, got["renewals{result=failed}"], 2.)
		require.NotContains(t, got, "renewals{result=ok}")
		require.NotContains(t, got, "holds{mode=exclusive}")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		got = m.changed()
		require.Greater(t, got["retries{script=acquire}"], 2.)
		is(t, 1, got["acquires{mode=exclusive,outcome=canceled,reentrant=false,waited=false}"])

		w.Redis.SetError("")
		section = enter(t, t.Context(), l)
		w.Redis.SetError("NOAUTH Authentication required.")
		require.ErrorContains(t, l.Unlock(section), "NOAUTH")
		_, err = l.Lock(t.Context())
		require.ErrorContains(t, err, "NOAUTH")
		synctest.Wait()
		w.Redis.SetError("")
		got = m.changed()
		is(t, 1, got["releases.unconfirmed{mode=exclusive}"])
		is(t, 1, got["acquires{mode=exclusive,outcome=error,reentrant=false,waited=false}"])
		require.NotContains(t, got, "holds{mode=exclusive}")
	})
}

func (s suite) leak(t *testing.T) {
	server := redistest.Shared(t)
	m := s.open(t, Setup{})
	client, err := relock.New(server.Client(), relock.WithHooks(m.Hooks), relock.WithTTL(2*time.Second))
	require.NoError(t, err)
	defer client.Close()
	_, err = client.NewLock("leak").Lock(t.Context()) // the section's context is dropped
	require.NoError(t, err)
	redistest.Eventually(t, time.Minute, func() bool {
		runtime.GC()
		got := m.Values()
		return got["leaks{mode=exclusive}"] == 1 && got["losses{mode=exclusive,reason=leaked}"] == 1
	}, "the leak and the loss are counted")
	require.Zero(t, m.Values()["holds{mode=exclusive}"])
}

func (s suite) reconnect(t *testing.T) {
	server := redistest.Shared(t)
	faults := redistest.NewFaults()
	defer faults.Close()
	m := s.open(t, Setup{})
	client, err := relock.New(server.Client(func(o *redis.Options) { o.Dialer = faults.Dialer(nil) }), relock.WithHooks(m.Hooks))
	require.NoError(t, err)
	defer client.Close()
	l := client.NewLock("reconnect")
	section := enter(t, t.Context(), l)
	waiting := make(chan error, 1)
	go func() {
		waiting <- l.Do(t.Context(), func(context.Context) error { return nil })
	}()
	count := counter(t, m)
	count("waiters{mode=exclusive}", 1)
	faults.CutPubSub()
	count("reconnects", 1)
	require.Positive(t, m.Values()["reconnect.downtime"])
	require.NoError(t, l.Unlock(section))
	require.NoError(t, <-waiting)
	redistest.Eventually(t, time.Minute, func() bool {
		got := m.Values() // between the two holds there is none, and still a waiter
		return got["holds{mode=exclusive}"] == 0 && got["waiters{mode=exclusive}"] == 0
	}, "both holds have ended, and nobody waits")
}

// counter returns a function that waits for a value.
func counter(t *testing.T, m Metrics) func(sample string, want float64) {
	t.Helper()
	return func(sample string, want float64) {
		t.Helper()
		redistest.Eventually(t, time.Minute, func() bool { return m.Values()[sample] == want }, "counted: %v %s", want, sample)
	}
}

func (s suite) modes(t *testing.T) {
	server := redistest.Shared(t)
	m := s.details(t)
	require.NotContains(t, m.Values(), "holds{mode=shared}", "a program without readers has no series of them")
	client, err := relock.New(server.Client(), relock.WithHooks(m.Hooks))
	require.NoError(t, err)
	defer client.Close()
	count := counter(t, m)
	prices, tills := client.NewRWLock("prices"), client.NewSemaphore("tills", 2)
	one, two := enter(t, t.Context(), prices.RLocker()), enter(t, t.Context(), prices.RLocker())
	permit := enter(t, t.Context(), tills)
	count("holds{mode=shared}", 2)
	count("holds{mode=permit}", 1)
	count("acquires{mode=shared,outcome=acquired,reentrant=false,waited=false}", 2)

	wrote, done := make(chan error, 1), make(chan struct{})
	go func() {
		section, err := prices.Lock(one)
		if err == nil {
			<-done
			err = prices.Unlock(section)
		}
		wrote <- err
	}()
	count("waiters{mode=exclusive}", 1)
	_, err = prices.Lock(two)
	require.ErrorIs(t, err, relock.ErrDeadlock)
	count("acquires{mode=exclusive,outcome=deadlock,reentrant=true,waited=false}", 1)
	require.NoError(t, prices.Unlock(two))
	count("holds{mode=exclusive}", 1) // an upgrade is a hold beside the reader's
	count("holds{mode=shared}", 1)
	close(done)
	require.NoError(t, <-wrote)
	count("holds{mode=exclusive}", 0)
	count("holds{mode=shared}", 1)
	require.NoError(t, prices.Unlock(one))
	require.NoError(t, tills.Unlock(permit))
	count("hold.duration.count{end=released,mode=shared}", 2)
	count("hold.duration.count{end=released,mode=exclusive}", 1)
	count("hold.duration.count{end=released,mode=permit}", 1)
}

// bubble runs a test in fake time, with clients on a store in memory.
func bubble(t *testing.T, test func(t *testing.T, open func(m Metrics) *relock.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		shared := mem.New()
		test(t, func(m Metrics) *relock.Client {
			c, err := relock.Open(shared, relock.WithHooks(m.Hooks))
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			return c
		})
	})
}

func (s suite) twins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := s.open(t, Setup{})
		open := func() *relock.Lock {
			client, err := relock.Open(mem.New(), relock.WithHooks(m.Hooks))
			require.NoError(t, err)
			t.Cleanup(func() { _ = client.Close() })
			return client.NewLock("a")
		}
		one, two := open(), open()
		outer := enter(t, t.Context(), one)
		stage.Pass(time.Second)
		inner := enter(t, outer, two)
		stage.Pass(time.Second)
		is(t, 2, m.Values()["holds{mode=exclusive}"])
		is(t, 2, m.Values()["hold.max_age{mode=exclusive}"])
		require.NoError(t, two.Unlock(inner))
		synctest.Wait()
		is(t, 1, m.Values()["holds{mode=exclusive}"])
		require.NoError(t, one.Unlock(outer))
		synctest.Wait()
		require.Zero(t, m.Values()["holds{mode=exclusive}"])
	})
}

func (s suite) leader(t *testing.T) {
	bubble(t, func(t *testing.T, open func(Metrics) *relock.Client) {
		m := s.open(t, Setup{})
		lead := func(ctx context.Context) <-chan error {
			locks, done := open(m), make(chan error, 1)
			go func() {
				done <- leader.Run(ctx, locks.NewLock("a"), func(ctx context.Context) error { <-ctx.Done(); return nil })
			}()
			synctest.Wait()
			return done
		}
		ctx, stop := context.WithCancel(t.Context())
		first := lead(ctx)
		next, stopNext := context.WithCancel(t.Context())
		second := lead(next)
		stage.Pass(time.Hour)
		got := m.changed()
		is(t, 1, got["holds{mode=exclusive}"])
		is(t, 1, got["waiters{mode=exclusive}"])
		require.NotContains(t, got, "hold.max_age{mode=exclusive}")
		require.NotContains(t, got, "hold.max_age_ttl{mode=exclusive}")
		stop()
		require.NoError(t, <-first)
		stage.Pass(time.Hour)
		stopNext()
		require.NoError(t, <-second)
		synctest.Wait()
		got = m.changed()
		is(t, 2, got["hold.duration.count{end=released,mode=exclusive}"])
		for _, none := range []string{"holds", "waiters", "hold.ttl_ratio.count", "acquire.ttl_ratio.count"} {
			require.NotContains(t, got, none+"{mode=exclusive}")
		}
	})
}

func (s suite) dropped(t *testing.T) {
	m := s.open(t, Setup{})
	one, two := newHolder(t), newHolder(t)
	m.Hooks.AcquireFinished(acquired("a", one))
	m.Hooks.Queued(event.Queued{Name: "a", Mode: event.ModeExclusive, Holder: two})
	is(t, 1, m.Values()["holds{mode=exclusive}"])
	is(t, 1, m.Values()["waiters{mode=exclusive}"])
	m.Hooks.Dropped(event.Dropped{Events: 5})
	is(t, 5, m.Values()["events.dropped"])
	require.Zero(t, m.Values()["holds{mode=exclusive}"])
	require.Zero(t, m.Values()["waiters{mode=exclusive}"])
	m.Hooks.Released(event.Released{Name: "a", Mode: event.ModeExclusive, Holder: one}) // this one was not dropped
	m.Hooks.AcquireFinished(acquired("a", two))
	is(t, 1, m.Values()["holds{mode=exclusive}"])
	is(t, 1, m.Values()["hold.duration.count{end=released,mode=exclusive}"])
}

// class maps "orders:42" to "orders".
func class(name string) string {
	class, _, _ := strings.Cut(name, ":")
	return class
}

func (s suite) names(t *testing.T) {
	for name, label := range map[string]func(string) string{"by default": nil, "mapped": class} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				m := s.open(t, Setup{Details: true, Label: label})
				locks := w.NewClient(relock.WithHooks(m.Hooks))
				l := locks.NewLock("orders:4711")
				section := enter(t, t.Context(), l)
				_, err := l.TryLockFor(t.Context(), time.Second)
				require.Error(t, err)
				w.Redis.FlushAll()
				<-section.Done()
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
				require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
				_ = enter(t, t.Context(), l)
				require.NoError(t, locks.Close())
				got := m.Values()
				require.Greater(t, len(got), 30)
				ofClients := regexp.MustCompile(`^(renewal|retries|reconnect|events)`)
				for sample := range got {
					require.NotContains(t, sample, "4711")
					if label != nil && !ofClients.MatchString(sample) {
						require.Contains(t, sample, "lock=orders")
					} else {
						require.NotContains(t, sample, "lock=")
					}
				}
			})
		})
	}
}

func (s suite) notUTF8(t *testing.T) {
	m := s.open(t, Setup{Label: class})
	m.Hooks.AcquireFinished(acquired("caf\xe9:42", newHolder(t))) // Latin-1
	m.Hooks.AcquireFinished(acquired("orders:42", newHolder(t)))
	is(t, 1, m.Values()["holds{lock=caf\uFFFD,mode=exclusive}"])
	is(t, 1, m.Values()["holds{lock=orders,mode=exclusive}"])
}

func (s suite) zero(t *testing.T) {
	m := s.details(t)
	before := m.Values()
	for sample, v := range before {
		require.Zero(t, v, sample)
	}
	for _, sample := range []string{
		"leaks{mode=exclusive}", "losses{mode=exclusive,reason=expired}", "retries{script=acquire}", "reconnects", "events.dropped",
		"holds{mode=exclusive}", "acquires{mode=exclusive,outcome=locked,reentrant=false,waited=true}",
	} {
		require.Contains(t, before, sample)
	}

	// With a lock label, when the lock is seen first, which is before anything is counted.
	m = s.open(t, Setup{Details: true, Label: func(string) string { return "x" }})
	require.NotContains(t, m.Values(), "leaks{lock=x,mode=exclusive}")
	m.Hooks.AcquireStarted(event.AcquireStarted{Name: "a", Mode: event.ModeExclusive})
	require.Contains(t, m.Values(), "leaks{lock=x,mode=exclusive}")
	require.Contains(t, m.Values(), "holds{lock=x,mode=exclusive}")
}

func (s suite) few(t *testing.T) {
	bubble(t, func(t *testing.T, open func(Metrics) *relock.Client) {
		m := s.open(t, Setup{Label: class})
		m.Hooks.AcquireStarted(event.AcquireStarted{Name: "orders:1", Mode: event.ModeExclusive})
		require.Contains(t, m.Values(), "acquires{lock=orders,mode=exclusive,outcome=acquired,reentrant=false,waited=false}",
			"the share of calls that get the lock is 0 before one does")
		locks := open(m)
		for _, name := range []string{"orders:1", "stock:1"} {
			require.NoError(t, locks.NewLock(name).Do(t.Context(), func(context.Context) error { return nil }))
		}
		require.NoError(t, locks.Close())
		var want []string
		for _, kind := range []string{"orders", "stock"} {
			for _, sample := range []string{
				"acquires{%,outcome=acquired,reentrant=false,waited=false}",
				"acquire.duration.count{%,outcome=acquired}", "acquire.duration.sum{%,outcome=acquired}",
				"acquire.ttl_ratio.count{%}", "acquire.ttl_ratio.sum{%}",
				"hold.duration.count{end=released,%}", "hold.duration.sum{end=released,%}",
				"hold.ttl_ratio.count{%}", "hold.ttl_ratio.sum{%}",
				"waiters{%}", "holds{%}", "hold.max_age{%}", "hold.max_age_ttl{%}",
			} {
				want = append(want, strings.ReplaceAll(sample, "%", "lock="+kind+",mode=exclusive"))
			}
		}
		require.ElementsMatch(t, append(want, "events.dropped"), keys(m.Values()))
	})
}

func keys(values map[string]float64) (keys []string) {
	for key := range values {
		keys = append(keys, key)
	}
	return keys
}

func (s suite) clients(t *testing.T) {
	bubble(t, func(t *testing.T, open func(Metrics) *relock.Client) {
		m := s.open(t, Setup{})
		one, two := open(m), open(m)
		_ = enter(t, t.Context(), one.NewLock("a"))
		section := enter(t, t.Context(), two.NewLock("b"))
		synctest.Wait()
		is(t, 2, m.Values()["holds{mode=exclusive}"])
		require.NoError(t, one.Close())
		is(t, 1, m.Values()["holds{mode=exclusive}"])
		require.NoError(t, two.NewLock("b").Unlock(section))
		synctest.Wait()
		require.Zero(t, m.Values()["holds{mode=exclusive}"])
	})
}

func (s suite) atOnce(t *testing.T) {
	m := s.details(t)
	var work sync.WaitGroup
	for range 4 {
		h := newHolder(t)
		work.Go(func() {
			for range 200 {
				m.Hooks.AcquireStarted(event.AcquireStarted{Name: "a", Mode: event.ModeExclusive})
				m.Hooks.Queued(event.Queued{Name: "a", Mode: event.ModeExclusive, Holder: h})
				e := acquired("a", h)
				e.Waited, e.Queued = true, true
				m.Hooks.AcquireFinished(e)
				m.Hooks.Released(event.Released{Name: "a", Mode: event.ModeExclusive, Holder: h, Err: errors.New("x")})
			}
		})
		work.Go(func() {
			for range 20 {
				m.Values()
			}
		})
	}
	work.Wait()
	require.Zero(t, m.Values()["holds{mode=exclusive}"])
	require.Zero(t, m.Values()["waiters{mode=exclusive}"])
	is(t, 800, m.Values()["releases.unconfirmed{mode=exclusive}"])
}

// everyHook goes over all fields of Hooks, so that a new event wants a metric.
func (s suite) everyHook(t *testing.T) {
	hooks := reflect.ValueOf(s.details(t).Hooks)
	for i := range hooks.NumField() {
		if hook := hooks.Type().Field(i); hook.IsExported() && hook.Name != "Trace" {
			require.False(t, hooks.Field(i).IsNil(), hook.Name)
		}
	}
}
