// Package event has the events of the locks of package relock, and the hooks that get them, for
// metrics, traces and logs.
//
//	client, err := relock.New(rdb, relock.WithHooks(event.Hooks{
//		Lost: func(e event.Lost) { losses.Add(1) },
//	}))
//
// Packages telemetry/otel and telemetry/prometheus make hooks of OpenTelemetry and of Prometheus.
// Names such as Lock.Ask and WithRedissonLayout are of package relock.
package event
