package relockprom_test

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/measurestest"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store/mem"
	relockprom "github.com/go-relock/relock/telemetry/prometheus"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// values are the samples of a Collector, named as package measurestest wants them.
func values(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	all := make(map[string]float64)
	for _, family := range families {
		name := measurestest.NameOf(family.GetName())
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			suffix := ""
			if len(labels) > 0 {
				suffix = "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetHistogram() != nil:
				all[name+".count"+suffix] = float64(m.GetHistogram().GetSampleCount())
				all[name+".sum"+suffix] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				all[name+suffix] = m.GetCounter().GetValue()
			default:
				all[name+suffix] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

func TestEventsAreCounted(t *testing.T) {
	measurestest.Run(t, func(t *testing.T, s measurestest.Setup) measurestest.Metrics {
		t.Helper()
		options := []relockprom.Option{relockprom.WithLockLabel(s.Label)}
		if s.Details {
			options = append(options, relockprom.WithDetails())
		}
		c := relockprom.New(options...)
		return measurestest.Metrics{Hooks: c.Hooks(), Values: func() map[string]float64 { return values(t, c) }}
	})
}

// scrape returns what Prometheus gets of a registry as text.
func scrape(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return answer.Body.String()
}

// kindOf maps "orders:42" to "orders".
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, ":")
	return kind
}

func TestScrapeOfTwoKindsOfLocksIsSmallByDefault(t *testing.T) {
	size := func(options ...relockprom.Option) int {
		registry := prometheus.NewRegistry()
		c := relockprom.New(append(options, relockprom.WithLockLabel(kindOf))...)
		registry.MustRegister(c)
		locks, err := relock.Open(mem.New(), relock.WithHooks(c.Hooks()))
		require.NoError(t, err)
		for _, name := range []string{"orders:1", "stock:1"} {
			require.NoError(t, locks.NewLock(name).Do(t.Context(), func(context.Context) error { return nil }))
		}
		require.NoError(t, locks.Close())
		text := scrape(t, registry)
		t.Logf("%d bytes, %d lines", len(text), strings.Count(text, "\n"))
		return len(text)
	}
	require.Less(t, size(), 7000)
	require.Greater(t, size(relockprom.WithDetails()), 60_000)
}

func TestTwoClientsInOneRegistryAreToldApart(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"orders", "billing"} {
		c := relockprom.New()
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"client": name}, registry).Register(c))
		locks, err := relock.Open(mem.New(), relock.WithHooks(c.Hooks()))
		require.NoError(t, err)
		require.NoError(t, locks.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, locks.Close())
	}
	text := scrape(t, registry)
	for _, name := range []string{"orders", "billing"} {
		require.Contains(t, text, `relock_acquires_total{client="`+name+`",mode="exclusive",outcome="acquired",reentrant="false",waited="false"} 1`)
		require.Contains(t, text, `relock_events_dropped_total{client="`+name+`"} 0`)
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
	c.Hooks().Released(event.Released{Name: "a", Mode: event.ModeExclusive, Held: 1500 * time.Millisecond})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP relock_hold_duration_seconds Time from the first entry of a hold to its last exit.
# TYPE relock_hold_duration_seconds histogram
relock_hold_duration_seconds_bucket{end="released",le="1",mode="exclusive"} 0
relock_hold_duration_seconds_bucket{end="released",le="2",mode="exclusive"} 1
relock_hold_duration_seconds_bucket{end="released",le="+Inf",mode="exclusive"} 1
relock_hold_duration_seconds_sum{end="released",mode="exclusive"} 1.5
relock_hold_duration_seconds_count{end="released",mode="exclusive"} 1
`), "relock_hold_duration_seconds"))
}

func TestWithoutDurationBucketsHistogramsAreNativeOnly(t *testing.T) {
	c := relockprom.New(relockprom.WithDurationBuckets())
	c.Hooks().Released(event.Released{Name: "a", Mode: event.ModeExclusive, Held: time.Second})
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
	c := relockprom.New(relockprom.WithDetails())
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// The page and the package documentation list the metrics; neither may miss one, or have one too
// many.
func TestTheDocumentationListsEveryMetric(t *testing.T) {
	c := relockprom.New(relockprom.WithDetails())
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
		"../../docs/OPERATIONS.md": "(?m)^\\| `(relock_\\w+(?:\\{[\\w,]+\\})?)`",
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
