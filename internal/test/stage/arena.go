package stage

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

const (
	// Limit bounds a few round trips on one server. See Stage.Limit.
	Limit = 3 * time.Second
	// Promptly is how long a call may go on after its context is done.
	Promptly = 50 * time.Millisecond
	// AtOnce bounds a call that should not wait for anything.
	AtOnce = 500 * time.Millisecond
	// AfterLease is how much later than the end of a dead holder's lease the next one may be in.
	AfterLease = 500 * time.Millisecond
)

// An Arena is the surroundings of one test: a server, and a view of that server from outside. When
// the test ends, and all its peers are closed, nothing may be left: no key but tokens and used
// tickets, no subscription, and no goroutine of the library.
type Arena struct {
	Stage
	Server     *redistest.Server
	Plain      *redis.Client // has no faults
	TidyWithin time.Duration // until nothing is left; longer for a test with leases that nobody gives back
	wall       wallClock
}

// OnShared is an arena on the server of the whole test binary, emptied, with the scripts loaded.
func OnShared(t *testing.T) *Arena {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	return NewArena(t, redistest.Shared(t))
}

// OnOwn is an arena on a server of its own, for a test that pauses, kills or configures it.
func OnOwn(t *testing.T, args ...string) *Arena {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	return NewArena(t, redistest.Start(t, args...))
}

// Apart is [OnOwn] for a test that mostly waits, and runs in parallel with others of its kind.
func Apart(t *testing.T, args ...string) *Arena {
	t.Helper()
	t.Parallel()
	return NewArena(t, redistest.Start(t, args...))
}

// NewArena is an arena on a server that a test has started in its own way.
func NewArena(t *testing.T, server *redistest.Server) *Arena {
	t.Helper()
	plain := server.Client(func(o *redis.Options) { o.ReadTimeout = 10 * time.Second })
	w := bare(t, Limit, func() redis.UniversalClient { return plain })
	w.Server, w.Plain = server, plain
	t.Cleanup(func() {
		if !t.Failed() { // what has failed half-way leaves what it likes
			w.requireTidy()
		}
	})
	require.NoError(t, w.Plain.FlushAll(t.Context()).Err())
	w.loadScripts()
	return w
}

// bare is an arena without a server. The arena sees locks through rdb.
func bare(t *testing.T, limit time.Duration, rdb func() redis.UniversalClient) *Arena {
	t.Helper()
	w := &Arena{TidyWithin: limit, wall: wallClock{new(atomic.Int64)}}
	look := func(name string) (store.State, error) { return lookIn(rdb(), name) }
	w.Stage = Stage{T: t, clock: w.wall, look: look, Limit: limit}
	t.Cleanup(w.measure())
	return w
}

// lookIn reads a lock in Redis, behind the back of the library.
func lookIn(rdb redis.UniversalClient, name string) (state store.State, err error) {
	ctx, key := context.Background(), BaseKey(name)
	hash, lease, queued := new(redis.MapStringStringCmd), new(redis.DurationCmd), new(redis.IntCmd)
	_, err = rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		hash, lease, queued = p.HGetAll(ctx, key), p.PTTL(ctx, key), p.ZCard(ctx, key+":queue")
		return nil
	})
	if err == nil && len(hash.Val()) > 1 {
		err = fmt.Errorf("one hold owns the lock: %v", hash.Val())
	}
	for hold, count := range hash.Val() {
		state.Owner = store.ID(hold)
		if err == nil {
			state.Count, err = strconv.Atoi(count)
		}
	}
	state.TTL, state.Waiters = lease.Val(), int(queued.Val())
	return state, err
}

// measure notes how late this process is because the machine is busy, until stop is called.
func (w *Arena) measure() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		Every(5*time.Millisecond, quit, func(late time.Duration) { w.wall.late.Store(max(w.wall.late.Load(), int64(late))) })
	}()
	return func() { close(quit); <-done }
}

// Lateness is the longest that this process was late.
func (w *Arena) Lateness() time.Duration { return w.wall.lateness() }

// In returns the arena for a subtest.
func (w *Arena) In(t *testing.T) *Arena {
	t.Helper()
	sub := *w
	sub.T = t
	return &sub
}

// requireTidy waits until nothing is left in Redis that a lock in use would leave.
func (w *Arena) requireTidy() {
	w.T.Helper()
	var left []string
	redistest.Eventually(w.T, w.TidyWithin, func() bool {
		left = slices.DeleteFunc(redistest.Keys(w.T, w.Plain), func(key string) bool {
			return strings.HasSuffix(key, ":token") || strings.Contains(key, ":loans:") // used tickets, until they expire
		})
		left = append(left, redistest.Subscriptions(w.T, w.Plain)...)
		return len(left) == 0
	}, "everything is gone from Redis but tokens and used tickets; keys or subscriptions left: %q", &left)
}

// Draw returns the token of a section.
func (w *Arena) Draw(section context.Context, l *relock.Lock) int64 {
	w.T.Helper()
	token, err := l.Token(section)
	require.NoError(w.T, err)
	require.Positive(w.T, token)
	return token
}

// BaseKey is the key of a lock with the default prefix.
func BaseKey(name string) string {
	if strings.Contains(name, "{") { // {slot}:lock, as tests on a cluster name locks
		return relock.DefaultPrefix + name
	}
	return relock.DefaultPrefix + "{" + name + "}"
}

// Calls is how many commands the server has run, by name.
func (w *Arena) Calls() map[string]int {
	w.T.Helper()
	info, err := w.Plain.Info(context.Background(), "commandstats").Result()
	require.NoError(w.T, err)
	calls := map[string]int{}
	for line := range strings.SplitSeq(info, "\r\n") {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "info" {
			continue
		}
		digits, _, _ := strings.Cut(rest, ",")
		calls[name], err = strconv.Atoi(digits)
		require.NoError(w.T, err)
	}
	return calls
}
