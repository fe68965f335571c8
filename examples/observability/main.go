// Observability is a shop under load in which everything goes wrong now and then. The program
// serves the metrics of relock, so that the alerts (alerts.yml) and the dashboard (dashboard.json)
// in this directory have something to show:
//
//	cd examples/observability
//	go run .          # serves metrics until it is interrupted
//
// In another terminal, a Prometheus scrapes the metrics and evaluates the alerts
// (http://localhost:9090/alerts):
//
//	cd examples/observability
//	prometheus --config.file=prometheus.yml --storage.tsdb.path="$(mktemp -d)"
//
// And import dashboard.json in Grafana. The program starts an embedded Redis; with
// REDIS_URL=redis://... it uses that server, under keys of its own.
//
// The metrics are served twice, at /metrics from the module relock/prometheus, and at /otel from
// relock/otel through OpenTelemetry's exporter for Prometheus. The alerts and the dashboard work
// with both. A service has one of the modules, or both in one registry.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"github.com/redis/go-redis/v9"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/go-relock/relock/event"
	relockotel "github.com/go-relock/relock/telemetry/otel"
	relockprom "github.com/go-relock/relock/telemetry/prometheus"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:2112", "serve the metrics at this `address`")
	limit := flag.Duration("for", 0, "end after this `time` (0: when interrupted)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt kills the program, also while Redis is silent
	if *limit > 0 {
		time.AfterFunc(*limit, stop)
	}
	err := run(ctx, os.Stdout, *listen, os.Getenv("REDIS_URL"))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "observability:", err)
		os.Exit(1)
	}
}

// run serves metrics, and runs the shop that causes them, until ctx is done.
func run(ctx context.Context, out io.Writer, listen, redisURL string) error {
	options := &redis.Options{}
	if redisURL != "" {
		var err error
		if options, err = redis.ParseURL(redisURL); err != nil {
			return errors.New("REDIS_URL cannot be read: it must be such as redis://localhost:6379") // err repeats it, and with it a password
		}
	} else {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		server.ClockTTL(true) // keys expire with the clock
		options.Addr = server.Addr()
	}
	options.ContextTimeoutEnabled = true // a call ends at the deadline of its context
	m, err := newMetrics()
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Fprintf(out, "metrics at http://%[1]s/metrics and http://%[1]s/otel\n", l.Addr())

	s := &shop{options: options, hooks: m.hooks, prefix: "relock-observability:" + rand.Text()[:8] + ":"}
	err = s.run(ctx)
	server.Close()
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

// metrics are those of both modules, and their handler.
type metrics struct {
	http.Handler
	hooks event.Hooks
}

// kindOf maps the name of a lock to one of a few values: "orders:42" is "orders".
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, ":")
	switch kind {
	case "orders", "reports", "stock", "carts", "prices", "tills", "leader":
		return kind
	default:
		return "other"
	}
}

func newMetrics() (*metrics, error) {
	registry, otelRegistry := prometheus.NewRegistry(), prometheus.NewRegistry()
	hooks, err := register(registry, otelRegistry,
		otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/otel", promhttp.HandlerFor(otelRegistry, promhttp.HandlerOpts{}))
	return &metrics{Handler: mux, hooks: hooks}, nil
}

// register makes the metrics of both modules. The two registries may be one: no name is in both
// modules. The options are those of the exporter of OpenTelemetry.
func register(registry, otelRegistry prometheus.Registerer, options ...otelprom.Option) (event.Hooks, error) {
	collector := relockprom.New(relockprom.WithDetails(), relockprom.WithLockLabel(kindOf))
	if err := registry.Register(collector); err != nil {
		return event.Hooks{}, err
	}
	exporter, err := otelprom.New(append(options, otelprom.WithRegisterer(otelRegistry))...)
	if err != nil {
		return event.Hooks{}, err
	}
	telemetry, err := relockotel.New(relockotel.WithDetails(), relockotel.WithLockAttribute(kindOf),
		relockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))))
	if err != nil {
		return event.Hooks{}, err
	}
	return event.Join(collector.Hooks(), telemetry.Hooks()), nil
}
