package code

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/ticket"
)

// ship is the work of a section.
func ship(ctx context.Context, _ int) error { return ctx.Err() }

func TestReadmeWhole(t *testing.T) {
	program := exec.CommandContext(t.Context(), "go", "run", "./first")
	program.Env = append(os.Environ(), "REDIS_ADDR="+redistest.Shared(t).Addr())
	out, err := program.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "nobody else is here")
	require.NotContains(t, string(out), "relock:")
}

func verbs(ctx context.Context, client *relock.Client, fn func(context.Context) error) (err error) {
	lock, leaders := client.NewLock("orders:42"), client.NewLock("leader")
	script, keys := "return redis.call('INCR', KEYS[1])", []string{lock.Key() + ":shipped"}
	// page: verbs
	err = lock.Do(ctx, fn)                 // the form to prefer: unlocks on every path, and reports a loss
	err = lock.DoFor(ctx, time.Second, fn) // waits for the lock for a second at most
	err = leader.Run(ctx, leaders, fn)     // leader election: after a loss it campaigns again
	c := leader.Campaign(ctx, leaders)     // the same in the background: c.IsLeader()

	section, err := lock.Lock(ctx) // by hand; TryLock does not wait, TryLockFor waits for a time
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock(section)) }() // the section's context is for the work, and for Unlock, which reports a loss

	token, err := lock.Token(section)              // fencing token
	reply, err := lock.Eval(section, script, keys) // Lua that runs only while the section has the lock; lock.Run takes the lock for it
	given, err := ticket.Lend(section, lock)       // another process enters beside this one; HandOff: in place of it
	wanted := lock.Wanted(section)                 // closed when somebody calls lock.Ask: give the lock back where you can

	prices := client.NewRWLock("prices")                // RLock, RDo, ...; upgrade and downgrade
	imports := client.NewSemaphore("imports", 4)        // lets 4 in
	both := client.NewLocks([]string{"acc:7", "acc:9"}) // all or none; also relock.All(lockA, lockB)
	// end
	if err == nil && (wanted == nil || c.Err() != nil || token == 0 || reply != int64(1) || given.Token != token) {
		panic("no token, no reply, or no ticket")
	}
	for _, l := range []relock.Locker{prices.RLocker(), prices, imports, both} {
		if err == nil {
			err = relock.Do(ctx, l, fn)
		}
	}
	return err
}

func TestReadmeVerbs(t *testing.T) {
	client := newClient(t)
	ran := 0
	require.NoError(t, verbs(t.Context(), client, func(context.Context) error { ran++; return nil }))
	require.Equal(t, 7, ran)
}

// newClient returns a Client on a real server that is empty.
func newClient(t *testing.T, options ...relock.Option) *relock.Client {
	t.Helper()
	rdb := redistest.Shared(t).Client()
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	client, err := relock.New(rdb, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestReadmeGoroutines(t *testing.T) {
	client, ctx, ids := newClient(t), t.Context(), []string{"a", "b", "a"}
	leader := client.NewLock("leader")
	work := ship1
	// page: goroutines
	err := leader.Do(ctx, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, id := range ids {
			g.Go(func() error { return client.NewLock(id).Do(ctx, work) }) // right: two workers with one id take turns
			g.Go(func() error { return leader.Do(ctx, work) })             // wrong: all of these are inside of leader already
		}
		return g.Wait()
	})
	// end
	require.NoError(t, err)
}

func ship1(ctx context.Context) error { return ship(ctx, 1) }
