package adapters

import (
	"context"
	"sync"

	"github.com/caddyserver/certmagic"

	"github.com/go-relock/relock"
)

// page: certmagic

// Certificates is a storage of certmagic whose locks are those of relock.
type Certificates struct {
	certmagic.Storage
	Locks *relock.Client

	mu      sync.Mutex
	unlocks map[string]func() error
}

func (c *Certificates) Lock(ctx context.Context, name string) error {
	lock := c.Locks.NewLock("certificate:" + name)
	section, err := lock.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unlocks == nil {
		c.unlocks = make(map[string]func() error)
	}
	c.unlocks[name] = func() error { return lock.Unlock(section) }
	return nil
}

func (c *Certificates) Unlock(_ context.Context, name string) error {
	c.mu.Lock()
	unlock := c.unlocks[name]
	delete(c.unlocks, name)
	c.mu.Unlock()
	if unlock == nil {
		return relock.ErrNotHeld
	}
	return unlock()
}

// end
