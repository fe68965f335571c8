package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/test/redistest"
)

// Does a flood of calls leave room for renewals and releases?

var (
	renewScript   = NewScript("renew", setScript.Source+"-- renew")
	releaseScript = NewScript("release", setScript.Source+"-- release")
)

// flood is many calls behind one whose reply is kept back.
type flood struct {
	*rig
	callers sync.WaitGroup
	gate    chan struct{} // closed when replies go on
	open    func()

	mu    sync.Mutex
	names []string // of the scripts that reach the server, in order
}

// newFlood returns when all calls queue.
func newFlood(ctx context.Context, t *testing.T, pool, calls int) *flood {
	t.Helper()
	f := &flood{rig: newRig(t, func(o *redis.Options) { o.PoolSize, o.ReadTimeout = pool, time.Minute }), gate: make(chan struct{})}
	f.open = sync.OnceFunc(func() { close(f.gate) })
	t.Cleanup(f.open)
	nameOf := make(map[string]string)
	for _, s := range []*Script{setScript, renewScript, releaseScript} {
		require.NoError(t, f.seen.ScriptLoad(t.Context(), s.Source).Err())
		nameOf[s.Hash] = s.Name
	}
	f.faults.On(scripts, redistest.Before(func(args []string) {
		f.mu.Lock()
		f.names = append(f.names, nameOf[args[1]])
		f.mu.Unlock()
		if args[1] == setScript.Hash {
			<-f.gate
		}
	}))
	for i := range calls + 1 {
		f.callers.Go(func() {
			c := f.call("")
			c.Unit = f.unit(i, strconv.Itoa(i))
			_, _ = f.wire.Do(ctx, c)
		})
		if i%10 == 0 {
			<-time.After(2 * maxQueued) // a flush is due
		}
	}
	f.queued(calls)
	return f
}

func (f *flood) queued(n int) {
	f.Helper()
	b := &f.wire.batcher
	redistest.Eventually(f.T, 30*time.Second, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.lenLocked() == n
	}, "%d calls are in the queue", n)
}

// urgent sends a renewal, and a release behind the queue of so many calls.
func (f *flood) urgent(queued int) (renewed, released chan error) {
	renewed, released = make(chan error, 1), make(chan error, 1)
	f.callers.Go(func() { renewed <- f.wire.All(f.Context(), renewScript, nil, []Unit{f.unit(0, "x")})[0].Err })
	f.callers.Go(func() {
		c := f.call("")
		c.Script = releaseScript
		_, err := f.wire.Do(f.Context(), c)
		released <- err
	})
	f.queued(queued + 1)
	return renewed, released
}

func (f *flood) end() {
	f.open()
	f.callers.Wait()
	f.idle()
}

func TestAFloodOfCallsLeavesRoomForRenewalsAndReleases(t *testing.T) {
	const calls, together = 1000, (1000 + maxUnits - 1) / maxUnits
	for _, pool := range []int{1, 2} {
		t.Run(fmt.Sprint("pool of ", pool), func(t *testing.T) {
			f := newFlood(t.Context(), t, pool, calls)
			renewed, released := f.urgent(calls)
			if pool > 1 {
				require.NoError(t, <-renewed, "while no other call is answered")
				renewed <- nil
			}
			f.end()
			require.NoError(t, <-renewed)
			require.NoError(t, <-released)
			require.LessOrEqual(t, slices.Index(f.names, "renew"), 1+together+1)
			require.LessOrEqual(t, slices.Index(f.names, "release"), 1+1+together)
			require.Len(t, f.names, 1+together+2, "all that queue share one send")
		})
	}
}

func TestCallsThatAreGivenUpTakeNoConnection(t *testing.T) {
	for _, pool := range []int{1, 2} {
		t.Run(fmt.Sprint("pool of ", pool), func(t *testing.T) {
			ctx, giveUp := context.WithCancel(t.Context())
			f := newFlood(ctx, t, pool, 1000)
			giveUp()
			f.queued(0)
			renewed, released := f.urgent(0)
			f.end()
			require.NoError(t, <-renewed)
			require.NoError(t, <-released)
			slices.Sort(f.names[1:])
			require.Equal(t, []string{"set", "release", "renew"}, f.names)
		})
	}
}

func TestAQueueAtTheLimitIsSentWhenASendEnds(t *testing.T) {
	b := newRecorder()
	b.limit = maxSends + 2
	for range maxSends {
		b.enter(&flight{})
	}
	for range 2 {
		b.enter(&flight{})
		b.flush()
		require.Len(t, <-b.sent, 1)
	}
	b.enter(&flight{})
	b.flush()
	require.Empty(t, b.sent, "the limit is reached")
	b.leave()
	require.Len(t, <-b.sent, 1)
	require.Equal(t, b.limit, b.sends)
}

func TestAQueueThatGrowsAtTheLimitIsSentThough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRecorder()
		b.limit = 2 * maxSends
		for range maxSends {
			b.enter(&flight{})
		}
		for range b.limit - maxSends { // no send ends
			b.enter(&flight{})
			require.Len(t, <-b.sent, 1)
		}
		b.enter(&flight{})
		time.Sleep(maxFlooded)
		for range maxBatch {
			b.enter(&flight{})
		}
		b.leave()
		time.Sleep(2 * maxFlooded)
		require.Len(t, b.sent, 1, "a connection is free, and the others hang")
		require.Equal(t, b.limit, b.sends)
	})
}

func TestSendsLeaveAConnectionOfThePool(t *testing.T) {
	for _, c := range []struct {
		options redis.Options
		limit   int
	}{
		{redis.Options{PoolSize: 1}, 1},
		{redis.Options{PoolSize: 2}, 1},
		{redis.Options{PoolSize: 10}, 9},
		{redis.Options{PoolSize: 10, MaxActiveConns: 5}, 4},
		{redis.Options{PoolSize: 50, PipelineReadBufferSize: 1 << 16}, 9},
		{redis.Options{PoolSize: 50, PipelineWriteBufferSize: 1 << 16, PipelinePoolSize: 4}, 3},
	} {
		rdb := redis.NewClient(&c.options)
		w, err := New(rdb, Options{})
		require.NoError(t, err)
		require.Equal(t, c.limit, w.batcher.limit)
		require.NoError(t, rdb.Close())
	}
}

func TestCallsThatShareNothingLeaveRoomForRenewals(t *testing.T) {
	f := newFlood(t.Context(), t, 2, 0)
	f.open()
	f.callers.Wait()
	f.names = nil
	held := f.faults.On(redistest.Named("WAIT"), redistest.Hold())
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	answers := make(chan Answer, 100)
	for range cap(answers) {
		f.callers.Go(func() {
			c := f.call("x")
			c.Acks = attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
			a, err := f.wire.Do(ctx, c)
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			answers <- a
		})
	}
	held.WaitHits(t, 1)
	require.NoError(t, f.wire.All(f.Context(), renewScript, nil, []Unit{f.unit(0, "x")})[0].Err)
	giveUp()
	unsure := 0
	for range cap(answers) {
		if a := <-answers; a.Unsure {
			unsure++
		}
	}
	require.Equal(t, 1, unsure, "no other call was sent")
	held.LetGo()
	f.end()
	require.Equal(t, []string{"set", "renew"}, f.names)
}

func TestRenewalsThatWaitForReplicasLeaveRoomForOthers(t *testing.T) {
	f := newFlood(t.Context(), t, 3, 0)
	f.open()
	f.callers.Wait()
	f.names = nil
	held := f.faults.On(redistest.Named("WAIT"), redistest.Hold())
	ctx, giveUp := context.WithCancel(t.Context())
	acks := attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
	for range 100 { // rounds, as of holds that are due one after the other
		f.callers.Go(func() {
			for _, r := range f.wire.AllAcked(ctx, setScript, nil, []Unit{f.unit(0, "x"), f.unit(1, "x")}, acks) {
				if !errors.Is(r.Err, context.Canceled) {
					t.Error(r.Err)
				}
			}
		})
	}
	held.WaitHits(t, 2)
	renewed, released := f.urgent(-1)
	require.NoError(t, <-renewed)
	require.NoError(t, <-released)
	giveUp()
	held.LetGo()
	f.end()
	require.Equal(t, []string{"release", "renew", "set", "set"}, slices.Sorted(slices.Values(f.names)), "no other round was sent")
}

func TestRoomsOfNodesThatLeftAreDropped(t *testing.T) {
	r := rooms{limit: 2}
	busy := r.at("busy")
	busy.all <- struct{}{}
	for i := range 100 * mostRooms {
		require.NotNil(t, r.at(strconv.Itoa(i)))
	}
	kept := 0
	r.of.Range(func(any, any) bool { kept++; return true })
	require.LessOrEqual(t, kept, mostRooms+1)
	require.Equal(t, busy, r.at("busy"), "a room in use stays")
}
