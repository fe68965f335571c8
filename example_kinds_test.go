package relock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-relock/relock"
)

// A price list is read by many and changed by one. A reader that finds it empty becomes its writer
// without leaving: an upgrade.
func ExampleRWLock() {
	client := inMemory()
	defer client.Close()
	lock, ctx := client.NewRWLock("prices"), context.Background()
	prices := map[string]int{}

	look := func(ctx context.Context) error {
		if len(prices) == 0 {
			err := lock.Do(ctx, func(context.Context) error {
				prices["tea"] = 3
				return nil
			})
			if err != nil { // ErrDeadlock: another reader upgrades first, and waits for this one to leave
				return err
			}
		}
		fmt.Println("tea:", prices["tea"])
		return nil
	}
	fmt.Println(lock.RDo(ctx, look))

	reader, _ := lock.RLock(ctx)
	_, err := lock.TryLock(ctx)
	fmt.Println("a writer beside a reader is refused:", errors.Is(err, relock.ErrLocked))
	another, err := lock.TryRLock(ctx)
	fmt.Println("a reader beside a reader:", err)
	_, _ = lock.Unlock(reader), lock.Unlock(another)
	// Output:
	// tea: 3
	// <nil>
	// a writer beside a reader is refused: true
	// a reader beside a reader: <nil>
}

// A writer that has changed something, and wants to look at it together with other readers, reads
// inside of its section, and leaves the outer entry first: a downgrade.
func ExampleRWLock_RLock() {
	client := inMemory()
	defer client.Close()
	lock, ctx := client.NewRWLock("prices"), context.Background()

	writer, _ := lock.Lock(ctx)
	reader, _ := lock.RLock(writer)
	_ = lock.Unlock(writer)
	fmt.Println("the reader goes on:", reader.Err() == nil)
	another, err := lock.TryRLock(ctx)
	fmt.Println("others may read:", err == nil)
	_, _ = lock.Unlock(another), lock.Unlock(reader)
	// Output:
	// the reader goes on: true
	// others may read: true
}

// At most two imports run at a time, in all processes together.
func ExampleClient_NewSemaphore() {
	client := inMemory()
	defer client.Close()
	imports, ctx := client.NewSemaphore("imports", 2), context.Background()

	first, _ := imports.TryLock(ctx)
	second, _ := imports.TryLock(ctx)
	_, err := imports.TryLock(ctx)
	fmt.Println("a third one:", errors.Is(err, relock.ErrLocked))
	state, _ := imports.State(ctx)
	fmt.Println("permits in use:", 1+len(state.Others))
	_ = imports.Unlock(first)
	third, err := imports.TryLock(ctx)
	fmt.Println("after an Unlock:", err)
	_, _ = imports.Unlock(second), imports.Unlock(third)
	// Output:
	// a third one: true
	// permits in use: 2
	// after an Unlock: <nil>
}
