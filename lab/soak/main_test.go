package soak

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // go-redis logs every connection that a fault breaks
	os.Exit(redistest.Main(m))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// world is where the locks of a soak are kept: its servers, and their faults.
type world interface {
	// join opens the store for one more process, on a way of its own to the servers. The process
	// gives up a silent connection after patience, where the store leaves that to its user.
	join(patience time.Duration) *peer
	// troubles returns what can go wrong, by kind. Kinds of trouble happen side by side.
	troubles() []troubles
	// settle returns when all commands that the servers have read have run.
	settle()
	// left returns what only a lock in use leaves.
	left() []string
}

// peer is one process for the store: a relock client with a way of its own to the store.
type peer struct {
	*relock.Client
	way way
}

// way is the way of a peer to the servers of its world. Each world has faults of its own on it.
type way interface {
	heal() // ends the faults of a round
	near() // makes the way short; in fake time only
	last() // ends all faults for good
	end()  // closes the store and its connections, behind the client
}

// end ends the process. Nobody uses the client any more.
func (p *peer) end() {
	p.way.heal()
	_ = p.Close()
	p.way.end()
}

// open makes the client of a store.
func (s *soak) open(over store.Store) *relock.Client {
	s.t.Helper()
	if s.defect != nil {
		over = s.defect(over)
	}
	c, err := relock.Open(over, relock.WithTTL(s.ttl), s.hooks())
	require.NoError(s.t, err)
	return c
}

// within fails the test, with the stacks of all goroutines, if f does not return in time.
func within(t testing.TB, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("after %s: %s\n%s", limit, what, stacks())
	}
}

// names collects broken promises.
type names struct {
	mu  sync.Mutex
	all []string
}

func (n *names) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, fmt.Sprintf(format, args...))
}

func (n *names) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

// untilDone waits until ctx is done, and says whether that was in time.
func untilDone(ctx context.Context, limit time.Duration) bool {
	select {
	case <-ctx.Done():
		return true
	default:
	}
	select {
	case <-ctx.Done():
		return true
	case <-time.After(limit):
		return false
	}
}
