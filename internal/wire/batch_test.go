package wire

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/test/redistest"
)

// batch sends n calls, of keys 0 to n-1, as one batch.
func (r *rig) batch(n int, mod ...func(i int, c *Call)) []*flight {
	r.Helper()
	flights := make([]*flight, n)
	for i := range flights {
		c := r.call(strconv.Itoa(i))
		c.Unit = r.unit(i, strconv.Itoa(i))
		for _, f := range mod {
			f(i, c)
		}
		spec := r.wire.specOf(c)
		flights[i] = &flight{ctx: r.Context(), spec: &spec, unit: c.Unit, done: make(chan struct{})}
	}
	r.wire.sendAsync(context.Background(), slices.Clone(flights), make(together))
	for _, f := range flights {
		<-f.done
	}
	return flights
}

// sent is the numbers of keys of the script calls that go through the faults from now on.
func (r *rig) sent() func() []string {
	var mu sync.Mutex
	var sent []string
	r.faults.On(scripts, redistest.Before(func(args []string) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, args[2])
	}))
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return sent
	}
}

func TestCallsOfABatchShareScriptCalls(t *testing.T) {
	r := newRig(t)
	sent := r.sent()
	other := NewScript("other", setScript.Source+"-- another one")
	alone := NewScript("alone", setScript.Source+"-- and one alone")
	alone.Alone = true
	for _, script := range []*Script{other, alone} {
		require.NoError(t, r.seen.ScriptLoad(t.Context(), script.Source).Err())
	}
	for i, f := range r.batch(maxUnits+8, func(i int, c *Call) {
		switch i {
		case 3:
			c.Script = other
		case 4, 5:
			c.Common = []any{"a", 1}
		case 6:
			c.Common = []any{"a", 2}
		case 7, 8:
			c.Script = alone
		}
	}) {
		require.NoError(t, f.err)
		require.False(t, f.unsure)
		require.Equal(t, strconv.Itoa(i), r.value(i))
	}
	require.Equal(t, []string{strconv.Itoa(maxUnits), "1", "2", "1", "1", "1", "2"}, sent())
	for i, f := range r.batch(maxUnits) {
		require.Equal(t, strconv.Itoa(i), f.reply, "each has its own reply")
	}
}

func TestAnErrorOfOneUnitIsItsOwn(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.seen.Del(t.Context(), r.key(1)).Err())
	require.NoError(t, r.seen.HSet(t.Context(), r.key(1), "x", 1).Err())
	got := r.batch(3)
	require.NoError(t, got[0].err)
	require.Equal(t, "WRONGTYPE", Code(got[1].err))
	require.True(t, Refused(got[1].err))
	require.False(t, got[1].unsure)
	require.NoError(t, got[2].err)
	alone := r.batch(1, func(_ int, c *Call) { c.Unit = r.unit(1, "x") })
	require.Equal(t, "WRONGTYPE", Code(alone[0].err))
	require.NoError(t, r.seen.Del(t.Context(), r.key(1)).Err())
}

func TestARefusedScriptCallOfSeveralIsSentOnceMoreForEach(t *testing.T) {
	for _, reply := range []string{
		"-NOPERM no access to one of the keys", "-CROSSSLOT Keys in request don't hash to the same slot",
	} {
		t.Run(reply, func(t *testing.T) {
			r := newRig(t)
			sent := r.sent()
			r.faults.Once(scripts, redistest.Answer(reply))
			for i, f := range r.batch(3) {
				require.NoError(t, f.err)
				require.True(t, f.unsure, "nobody knows how far it came")
				require.Equal(t, strconv.Itoa(i), r.value(i))
			}
			require.Equal(t, []string{"3", "1", "1", "1"}, sent())
		})
	}
	t.Run("by the only key that it has", func(t *testing.T) {
		r := newRig(t)
		r.faults.On(scripts, redistest.Answer("-NOPERM no access")).Skip(1)
		r.faults.Once(scripts, redistest.Answer("-NOPERM no access"))
		for _, f := range r.batch(2) {
			require.True(t, Refused(f.err))
		}
	})
}

func TestAnotherErrorOfASharedScriptCallIsThatOfAll(t *testing.T) {
	r := newRig(t)
	for reply, want := range map[string]verdict{"-LOADING": passing, "*1\r\n:1": broken} {
		r.faults.Once(scripts, redistest.Answer(reply))
		for _, f := range r.batch(2) {
			require.Equal(t, want, judge(f.err))
		}
	}
	require.NoError(t, r.rdb.Close())
	for _, f := range r.batch(2) {
		require.ErrorIs(t, f.err, redis.ErrClosed)
		require.False(t, f.unsure)
	}
}

// recorder is a batcher that sends nothing, and what it would have sent.
type recorder struct {
	batcher
	sent chan []*flight
}

func newRecorder() *recorder {
	r := &recorder{sent: make(chan []*flight, 100)}
	r.limit = math.MaxInt
	r.sendAsync = func(_ context.Context, flights []*flight, own slot) {
		if own != nil {
			r.sent <- flights
		}
	}
	return r
}

func TestCallsQueueWhileAllSlotsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRecorder()
		for range maxSends {
			require.True(t, b.enter(&flight{}))
		}
		var queued []*flight
		join := func() {
			f := &flight{}
			queued = append(queued, f)
			require.False(t, b.enter(f))
		}
		join()
		join()
		join()
		require.True(t, b.forget(queued[1]))
		require.False(t, b.forget(queued[1]))
		b.leave()
		require.Equal(t, []*flight{queued[0], queued[2]}, <-b.sent, "first come, first served")
		require.False(t, b.forget(queued[0]), "it is on its way")
		join()
		b.leave()
		require.Equal(t, queued[3:], <-b.sent)
		for range maxSends {
			b.leave()
		}
		time.Sleep(time.Second) // fake time
		require.Empty(t, b.sent)
		require.Zero(t, b.sends)
	})
}

func TestAQueueThatNoSendTakesIsSentSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRecorder()
		for range maxSends {
			b.enter(&flight{})
		}
		for range 2 {
			begun := time.Now()
			for range 3 {
				require.False(t, b.enter(&flight{}))
				time.Sleep(maxQueued / 4) // fake time
			}
			require.Len(t, <-b.sent, 3)
			require.Equal(t, maxQueued, time.Since(begun))
		}
		b.enter(&flight{})
		b.leave()
		require.Empty(t, b.sent, "more are in flight than there are slots")
		b.forget(b.urgent.flights[0])
		time.Sleep(time.Second) // fake time
		require.Empty(t, b.sent)
		require.Equal(t, maxSends+1, b.sends)
	})
}

func TestAQueueThatIsLongerThanABatchLeavesInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRecorder()
		var urgent, yields []*flight
		for i := range maxSends + 2*(2*maxBatch+10) {
			f := &flight{yields: i%2 == 0}
			if b.enter(f) {
				continue
			}
			if f.yields {
				yields = append(yields, f)
			} else {
				urgent = append(urgent, f)
			}
		}
		b.forget(yields[1])
		yields = slices.Delete(yields, 1, 2)
		begun := time.Now()
		b.leave()
		require.Equal(t, slices.Concat(urgent[:maxBatch], yields[:maxBatch]), <-b.sent, "those that yield are behind")
		require.Equal(t, slices.Concat(urgent[maxBatch:2*maxBatch], yields[maxBatch:2*maxBatch]), <-b.sent)
		require.Equal(t, maxQueued+maxFlooded, time.Since(begun), "though no send has ended")
		b.leave()
		require.Empty(t, b.sent, "more are in flight than there are slots")
		begun = time.Now()
		require.Equal(t, slices.Concat(urgent[2*maxBatch:], yields[2*maxBatch:]), <-b.sent)
		require.LessOrEqual(t, time.Since(begun), maxQueued, "this is a flood no more")
		require.Zero(t, b.lenLocked())
		require.Equal(t, maxSends+1, b.sends)
	})
}

func TestManyCallersEachHaveTheirOwnAnswers(t *testing.T) {
	r := newRig(t)
	sent := r.sent()
	const callers, calls = 64, 50
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = context.Background()
			}
			c := r.call("")
			c.Unit.Keys = []string{r.key(i)}
			if err := r.seen.Del(ctx, r.key(i)).Err(); err != nil {
				t.Error(err)
			}
			last := ""
			for n := range calls {
				value := fmt.Sprintf("%d of %d", n, i)
				c.Unit.Args = []any{value}
				a, err := r.wire.Do(ctx, c)
				if err != nil || a.Reply != last || a.Unsure {
					t.Errorf("%+v, %v", a, err)
				}
				last = value
			}
		})
	}
	all.Wait()
	require.Less(t, len(sent()), callers*calls*3/4, "they share script calls")
	r.idle()
}

func TestACallThatIsGivenUpInTheQueueIsNeverSent(t *testing.T) {
	r := newRig(t)
	b := &r.wire.batcher
	b.sends = maxSends
	b.late = time.AfterFunc(time.Hour, func() {})
	b.urgent.add(&flight{}) // so that no timer is set
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		redistest.Eventually(t, ample, func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.lenLocked() == 2
		}, "it is queued")
		cancel()
	}()
	a, err := r.wire.Do(ctx, r.call("x"))
	require.Equal(t, context.Canceled, err)
	require.False(t, a.Unsure)
	require.Equal(t, 1, b.lenLocked())
	require.Zero(t, r.faults.Commands("EVALSHA"))
}

func TestConnectionsThatHangHoldUpNobodyElse(t *testing.T) {
	r := newRig(t, func(o *redis.Options) { o.ReadTimeout = ample })
	hang := r.faults.On(scripts, redistest.Hold()).Times(maxSends)
	var all sync.WaitGroup
	for range maxSends {
		all.Go(func() { _, _ = r.wire.Do(t.Context(), r.call("x")) })
	}
	hang.WaitHits(t, maxSends)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		r.do(ctx, r.call("y"))
		cancel()
	}
	hang.LetGo()
	all.Wait()
	r.idle()
}

func TestACallWithReplicaAcksSharesNothing(t *testing.T) {
	r := newRig(t)
	sent := r.sent()
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			c := r.tries(1)
			c.Acks = attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
			if _, err := r.wire.Do(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Equal(t, strings.Repeat("1", 30), strings.Join(sent(), ""))
	require.Equal(t, 30, r.faults.Commands("WAIT"))
}
