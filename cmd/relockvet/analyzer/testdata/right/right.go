// Package right uses the real relock as its documentation says.
package right

import (
	"context"

	"github.com/go-relock/relock"
)

// Ship unlocks on every path.
func Ship(ctx context.Context, client *relock.Client, work func(context.Context) error) error {
	lock := client.NewLock("orders:42")
	section, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock(section)
	return work(section)
}
