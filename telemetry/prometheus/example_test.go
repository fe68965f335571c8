package relockprom_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	relockprom "github.com/go-relock/relock/telemetry/prometheus"
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

	metrics := relockprom.New(relockprom.WithLockLabel(func(name string) string {
		kind, _, _ := strings.Cut(name, ":") // "orders:42" is "orders"
		return kind
	}))
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	client, err := relock.New(rdb, relock.WithHooks(metrics.Hooks()), relock.WithTTL(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = client.NewLock("orders:42").Do(context.Background(), func(context.Context) error { return nil })
	if err != nil {
		fmt.Println(err)
	}
	client.Close() // after it every event is counted

	scrape := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(scrape.Body.String()) {
		if strings.HasPrefix(line, "relock_acquires_total") && strings.HasSuffix(line, " 1\n") {
			fmt.Print(line)
		}
	}
	// Output:
	// relock_acquires_total{lock="orders",mode="exclusive",outcome="acquired",reentrant="false",waited="false"} 1
}
