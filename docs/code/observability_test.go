package code

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	relockotel "github.com/go-relock/relock/telemetry/otel"
	relockprom "github.com/go-relock/relock/telemetry/prometheus"
)

// page: client
// observed makes a client with logs, metrics and traces.
func observed(rdb redis.UniversalClient, logger *slog.Logger) (*relock.Client, error) {
	metrics := relockprom.New() // github.com/go-relock/relock/telemetry/prometheus
	if err := prometheus.Register(metrics); err != nil {
		return nil, err
	}
	telemetry, err := relockotel.New() // github.com/go-relock/relock/telemetry/otel
	if err != nil {
		return nil, err
	}
	return relock.New(rdb, relock.WithLogger(logger),
		relock.WithHooks(event.Join(metrics.Hooks(), telemetry.Hooks()))) // or the hooks of one module
}

// end

// page: apart
// apart makes hooks for one of several clients of a process, whose metrics have the label client.
func apart(name string, registry prometheus.Registerer, meters metric.MeterProvider) (event.Hooks, error) {
	metrics := relockprom.New()
	if err := prometheus.WrapRegistererWith(prometheus.Labels{"client": name}, registry).Register(metrics); err != nil {
		return event.Hooks{}, err
	}
	telemetry, err := relockotel.New(relockotel.WithMeterProvider(meters), relockotel.WithClientAttribute(name))
	if err != nil {
		return event.Hooks{}, err
	}
	return event.Join(metrics.Hooks(), telemetry.Hooks()), nil
}

// end

func TestClientsAreToldApartAsThePageSays(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"orders", "billing"} {
		_, err := apart(name, registry, noop.NewMeterProvider())
		require.NoError(t, err)
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		require.Len(t, family.GetMetric(), 2, family.GetName())
	}
}

// page: label
// kindOf maps the name of a lock to one of a few values.
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, ":") // "orders:42" is "orders"
	return kind
}

// newMetrics makes metrics with a label lock, and an attribute relock.lock.
func newMetrics() (*relockprom.Collector, *relockotel.Telemetry, error) {
	telemetry, err := relockotel.New(relockotel.WithLockAttribute(kindOf))
	return relockprom.New(relockprom.WithLockLabel(kindOf)), telemetry, err
}

// end

func TestObservabilityClient(t *testing.T) {
	registry := prometheus.NewRegistry() // in place of the one of the process, which keeps its metrics
	before := prometheus.DefaultRegisterer
	prometheus.DefaultRegisterer = registry
	defer func() { prometheus.DefaultRegisterer = before }()
	client, err := observed(redistest.Shared(t).Client(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, client.NewLock("orders:42").Do(t.Context(), ship1))
	require.NoError(t, client.Close()) // waits for the events
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Contains(t, metricNames(families), "relock_acquires_total")
}

// metricNames returns the names of metric families.
func metricNames[F interface{ GetName() string }](families []F) (names []string) {
	for _, f := range families {
		names = append(names, f.GetName())
	}
	return names
}

func TestObservabilityLabel(t *testing.T) {
	metrics, telemetry, err := newMetrics()
	require.NoError(t, err)
	client := newClient(t, relock.WithHooks(event.Join(metrics.Hooks(), telemetry.Hooks())))
	require.NoError(t, client.NewLock("orders:42").Do(t.Context(), ship1))
	require.NoError(t, client.Close())
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	families, err := registry.Gather()
	require.NoError(t, err)
	i := slices.Index(metricNames(families), "relock_acquires_total")
	require.GreaterOrEqual(t, i, 0)
	label := families[i].GetMetric()[0].GetLabel()[0]
	require.Equal(t, "lock orders", label.GetName()+" "+label.GetValue())
}
