package stage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// A Witness is what a lock guards. It notices two that are in at once, and a token that is not
// larger than all tokens before.
type Witness struct {
	Lost bool // leases may be lost: a section that is over by its own clock is not in

	mu      sync.Mutex
	lock    *relock.Lock
	section context.Context // nil: nobody is in

	// Also guarded by mu, until all are out.
	Token   int64 // the largest so far
	Entries int
	Faults  []string
}

// Enter is called with the section's context. It returns false if the section is over already.
func (g *Witness) Enter(section context.Context, l *relock.Lock) bool {
	g.mu.Lock()
	if g.section != nil && (!g.Lost || g.lock.Held(g.section) && l.Held(section)) {
		g.Faults = append(g.Faults, fmt.Sprintf("a section of %q begins while another still is in", l.Name()))
	}
	g.lock, g.section = l, section
	g.Entries++
	g.mu.Unlock()
	token, err := l.Token(section)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err == nil && token <= g.Token && (!g.Lost || l.Held(section)):
		g.Faults = append(g.Faults, fmt.Sprintf("token %d comes after token %d", token, g.Token))
	case errors.Is(err, relock.ErrLockLost):
		if !g.Lost {
			g.Faults = append(g.Faults, fmt.Sprintf("a section of %q is over before it began: %v", l.Name(), err))
		}
		return false
	}
	g.Token = max(token, g.Token)
	return true
}

// Leave is called before Unlock.
func (g *Witness) Leave(section context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.section == section {
		g.section = nil
	}
}

// Require fails the test with all that the witness has noticed.
func (g *Witness) Require(t testing.TB) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Empty(t, g.Faults)
}

// A Crowd is many who wait for one lock, go through it one by one, and leave at once.
type Crowd struct {
	Witness
	Arena *Arena
	all   sync.WaitGroup
	errs  Texts
}

// Joins adds one who locks, stays for a moment, and unlocks.
func (c *Crowd) Joins(l *relock.Lock) {
	c.all.Go(func() {
		c.errs.Check(l.Do(context.Background(), func(section context.Context) error {
			c.Enter(section, l)
			<-time.After(time.Millisecond)
			c.Leave(section)
			return context.Cause(section)
		}))
	})
}

// Through waits until everybody was in.
func (c *Crowd) Through(limit time.Duration, entries int) {
	c.Arena.T.Helper()
	_ = c.Arena.Within(limit).Call(func() error { c.all.Wait(); return nil })
	require.Empty(c.Arena.T, c.errs.All())
	c.Require(c.Arena.T)
	require.Equal(c.Arena.T, entries, c.Entries)
}
