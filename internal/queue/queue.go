// Package queue reads who waits for a lock in Redis, for people. The keys of a lock and the members
// of a queue are described in docs/DESIGN.md.
package queue

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

//go:embed queue.lua
var source string

var script = redis.NewScript(source)

// suffixes has the ends of the keys of queues.
var suffixes = map[store.Kind]string{store.Mutex: ":queue", store.ReadWrite: ":rw:queue", store.Semaphore: ":permits:queue"}

// Place is one place in a queue.
type Place struct {
	Holder string // <client>:<n>
	Mode   event.Mode
	Wait   time.Duration // negative: a reader that waits to write, before all others
}

// Read returns the waiters of a lock that are there, by turn. key is the Key of the lock. A waiter
// is there if its client listens to its channel of the lock; a release skips all others. Read looks
// at no more than the first most places, as a long script keeps Redis from serving others.
func Read(ctx context.Context, rdb redis.UniversalClient, key string, kind store.Kind, most int) (queue []Place, err error) {
	reply, err := script.Run(ctx, rdb, []string{key + suffixes[kind]}, key, most-1).Slice()
	if err != nil {
		return nil, err
	}
	for _, place := range reply {
		fields, _ := place.([]any)
		if len(fields) != 3 {
			return nil, fmt.Errorf("relock: unexpected reply of a script: %v", place)
		}
		wait, _ := fields[2].(int64)
		p := Place{Holder: fmt.Sprint(fields[0]), Mode: event.ModeExclusive, Wait: time.Duration(wait) * time.Millisecond}
		switch {
		case kind == store.Semaphore:
			p.Mode = event.ModePermit
		case fields[1] == "r":
			p.Mode = event.ModeShared
		}
		queue = append(queue, p)
	}
	return queue, nil
}
