package event_test

import (
	"context"
	"fmt"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store/mem"
)

func ExampleJoin() {
	metrics := event.Hooks{Released: func(event.Released) { fmt.Println("counted") }}
	audit := event.Hooks{Released: func(e event.Released) { fmt.Println("noted:", e.Name) }}
	client, err := relock.Open(mem.New(), relock.WithHooks(event.Join(metrics, audit)))
	if err != nil {
		fmt.Println(err)
		return
	}

	_ = client.NewLock("orders:42").Do(context.Background(), func(context.Context) error { return nil })
	_ = client.Close()
	// Output:
	// counted
	// noted: orders:42
}
