// Package wrong uses the real relock, and has a path without Unlock.
package wrong

import (
	"context"

	"github.com/go-relock/relock"
)

// Ship returns from the middle of the section.
func Ship(ctx context.Context, client *relock.Client, work func(context.Context) error) error {
	lock := client.NewLock("orders:42")
	section, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	if err := work(section); err != nil {
		return err
	}
	return lock.Unlock(section)
}
