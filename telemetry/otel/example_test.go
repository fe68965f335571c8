package relockotel_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/go-relock/relock"
	relockotel "github.com/go-relock/relock/telemetry/otel"
)

func Example() {
	server, err := miniredis.Run() // in your service: a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	// In your service: the providers of your SDK set-up. Without the first two options the global ones
	// are used.
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter()
	telemetry, err := relockotel.New(
		relockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
		relockotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))),
		relockotel.WithLockAttribute(func(name string) string {
			kind, _, _ := strings.Cut(name, ":") // "orders:42" is "orders"
			return kind
		}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := relock.New(rdb, relock.WithHooks(telemetry.Hooks()))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = client.NewLock("orders:42").Do(context.Background(), func(context.Context) error { return nil })
	if err != nil {
		fmt.Println(err)
	}
	client.Close() // after it every event is counted

	for _, span := range spans.GetSpans() {
		fmt.Println("span", span.Name)
	}
	var metrics metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &metrics); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range metrics.ScopeMetrics[0].Metrics {
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "relock.client.hold.duration" {
			p := h.DataPoints[0]
			fmt.Println(m.Name, p.Count, p.Attributes.Encoded(attribute.DefaultEncoder()))
		}
	}
	// Output:
	// span relock.acquire
	// span relock.section
	// relock.client.hold.duration 1 relock.end=released,relock.lock=orders,relock.mode=exclusive
}
