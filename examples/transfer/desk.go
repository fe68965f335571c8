package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// desk is the other service: it reviews a transfer, and no transaction of the bank's database can
// include that. A desk must see an account in one review at a time, and finds out if it does not.
type desk struct {
	mu   sync.Mutex
	busy map[string]bool // accounts in a review
}

// review takes a while. Errors: another review of an account runs; the error of ctx.
func (d *desk) review(ctx context.Context, accounts []string) error {
	for i, name := range accounts {
		if !d.begin(name) {
			d.end(accounts[:i])
			return fmt.Errorf("two reviews of %s at once", name)
		}
	}
	defer d.end(accounts)
	select {
	case <-time.After(2 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *desk) begin(account string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[account] {
		return false
	}
	if d.busy == nil {
		d.busy = map[string]bool{}
	}
	d.busy[account] = true
	return true
}

func (d *desk) end(accounts []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range accounts {
		delete(d.busy, name)
	}
}
