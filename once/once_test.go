package once_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/store/mem"
)

// rig is the processes that share operations on one server.
type rig struct {
	*testing.T
	server *redistest.Server
	plain  *redis.Client
	limit  time.Duration // in which a process has an answer, or takes it for lost; 0: 300 ms
}

func newRig(t *testing.T) *rig {
	t.Helper()
	server := redistest.Start(t)
	return &rig{T: t, server: server, plain: server.Client()}
}

// process is one process of its own.
type process struct {
	*once.Once
	locks   *relock.Client
	faults  *redistest.Faults
	retried atomic.Int64 // reports of calls that have no answer yet
}

const lease = 6 * time.Second

func (r *rig) process(options ...once.Option) *process {
	r.Helper()
	return r.processWith(lease, options...)
}

func (r *rig) processWith(ttl time.Duration, options ...once.Option) *process {
	r.Helper()
	p := &process{faults: redistest.NewFaults()}
	r.Cleanup(p.faults.Close)
	rdb := r.server.Client(func(o *redis.Options) {
		o.Dialer = p.faults.Dialer(nil)
		limit := cmp.Or(r.limit, 300*time.Millisecond)
		o.ReadTimeout, o.WriteTimeout = limit, limit
	})
	var err error
	p.locks, err = relock.New(rdb, relock.WithTTL(ttl), relock.WithHooks(event.Hooks{Retried: func(event.Retried) { p.retried.Add(1) }}))
	require.NoError(r, err)
	p.Once, err = once.New(p.locks, options...)
	require.NoError(r, err)
	r.Cleanup(func() {
		require.NoError(r, p.Close())
		require.NoError(r, p.locks.Close())
	})
	return p
}

// requireClean says that Redis has records, and nothing else of an operation.
func (r *rig) requireClean() {
	r.Helper()
	redistest.Eventually(r, 3*time.Second, func() bool {
		for _, key := range redistest.Keys(r, r.plain) {
			if !strings.HasSuffix(key, ":once") && !strings.HasSuffix(key, ":token") {
				return false
			}
		}
		return true
	}, "only records are left")
}

// answer is a function of an operation that counts its runs.
type answer struct{ runs atomic.Int64 }

func (a *answer) give(_ context.Context, attempt once.Attempt) (string, error) {
	return fmt.Sprint("run ", a.runs.Add(1), " attempt ", attempt.Number, " interrupted ", attempt.Interrupted), nil
}

func do(ctx context.Context, p *process, key string, options ...once.CallOption) (string, bool, error) {
	return once.Do(ctx, p.Once, key, new(answer).give, options...)
}

const first = "run 1 attempt 1 interrupted false"

func TestDoRunsOnceAndReplays(t *testing.T) {
	r := newRig(t)
	p, other := r.process(), r.process()
	for _, key := range []string{"a", "user:7/pay", "{x}", "#a", "ü\x00\n", strings.Repeat("k", once.MaxKeyLen)} {
		result, replayed, err := do(t.Context(), p, key)
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, first, result)
		for _, again := range []*process{p, other} {
			result, replayed, err = once.Do(t.Context(), again.Once, key, func(context.Context, once.Attempt) (string, error) {
				return "", errors.New("runs again")
			})
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, first, result)
		}
	}
	r.requireClean()
}

func TestWrongArguments(t *testing.T) {
	r := newRig(t)
	p := r.process()
	for _, key := range []string{"", strings.Repeat("k", once.MaxKeyLen+1)} {
		_, _, err := do(t.Context(), p, key)
		require.ErrorIs(t, err, relock.ErrInvalid)
	}
	_, _, err := do(t.Context(), p, "a", once.Input(math.Inf(1)))
	require.ErrorIs(t, err, relock.ErrInvalid)
	for _, o := range []once.Option{
		once.WithRetention(time.Millisecond), once.WithMaxResult(0), once.WithLockOptions(relock.WithTTL(1)),
	} {
		_, err := once.New(p.locks, o)
		require.ErrorIs(t, err, relock.ErrInvalid)
	}
	memory, err := relock.Open(mem.New())
	require.NoError(t, err)
	for _, c := range []*relock.Client{nil, memory} {
		_, err := once.New(c)
		require.ErrorIs(t, err, relock.ErrInvalid)
	}
	require.NoError(t, memory.Close())
	require.Empty(t, redistest.Keys(t, r.plain))
	redisson, err := relock.New(r.plain, relock.WithRedissonLayout())
	require.NoError(t, err)
	_, err = once.New(redisson)
	require.ErrorIs(t, err, relock.ErrInvalid)
	require.NoError(t, redisson.Close())
}

func TestAnotherInputIsAMismatch(t *testing.T) {
	r := newRig(t)
	p := r.process()
	input := func(n int) once.CallOption { return once.Input(map[string]int{"amount": n}) }
	_, _, err := do(t.Context(), p, "a", input(1))
	require.NoError(t, err)
	result, replayed, err := do(t.Context(), p, "a", input(1))
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, first, result)
	for _, options := range [][]once.CallOption{{input(2)}, nil} {
		_, _, err = do(t.Context(), r.process(), "a", options...)
		require.ErrorIs(t, err, once.ErrMismatch)
	}
	r.requireClean()
}

// TestAnotherInputMeanwhile has calls with two inputs wait for one attempt, in its process and in
// another.
func TestAnotherInputMeanwhile(t *testing.T) {
	r := newRig(t)
	p := r.process()
	running := newRunning(t, p, "a", once.Input(1))
	for _, by := range []*process{p, r.process()} {
		for input, want := range map[int]error{1: nil, 2: once.ErrMismatch} {
			running.wg.Go(func() {
				_, _, err := do(t.Context(), by, "a", once.Input(input))
				if !errors.Is(err, want) || want == nil && err != nil {
					t.Errorf("input %d: %v", input, err)
				}
			})
		}
	}
	r.sleep()
	running.end("done", nil)
	running.wg.Wait()
}

func (*rig) sleep() { <-time.After(100 * time.Millisecond) }

// running is an attempt that goes on until end.
type running struct {
	wg      sync.WaitGroup
	attempt once.Attempt
	section context.Context
	give    chan func() (string, error)
	result  string
	err     error
}

func newRunning(t *testing.T, p *process, key string, options ...once.CallOption) *running {
	t.Helper()
	return newRunningIn(t.Context(), t, p, key, options...)
}

func newRunningIn(ctx context.Context, t *testing.T, p *process, key string, options ...once.CallOption) *running {
	t.Helper()
	g := &running{give: make(chan func() (string, error))}
	begun := make(chan struct{})
	g.wg.Go(func() {
		defer func() { _ = recover() }()
		g.result, _, g.err = once.Do(ctx, p.Once, key, func(ctx context.Context, a once.Attempt) (string, error) {
			g.section, g.attempt = ctx, a
			close(begun)
			return (<-g.give)()
		}, options...)
	})
	<-begun
	return g
}

// end ends the function, and waits for its Do.
func (g *running) end(result string, err error) {
	g.give <- func() (string, error) { return result, err }
	g.wg.Wait()
}

func TestManyCallsMeetOneAttempt(t *testing.T) {
	const processes, calls = 8, 32
	r := newRig(t)
	var all []*process
	for range processes {
		all = append(all, r.process())
		_, _, err := do(t.Context(), all[len(all)-1], fmt.Sprint("warm", len(all)))
		require.NoError(t, err)
	}
	run := newRunning(t, all[0], "a")
	var wg sync.WaitGroup
	var late atomic.Int64
	ended := make(chan time.Time, 1)
	for _, p := range all {
		for range calls {
			wg.Go(func() {
				result, replayed, err := do(t.Context(), p, "a")
				if err != nil || !replayed || result != "result" {
					t.Errorf("%q %t %v", result, replayed, err)
				}
				at := <-ended
				ended <- at
				late.Store(max(late.Load(), int64(time.Since(at))))
			})
		}
	}
	r.sleep()
	before := r.calls()
	run.give <- func() (string, error) { ended <- time.Now(); return "result", nil }
	wg.Wait()
	run.wg.Wait()
	t.Logf("%d calls have the result within %s", processes*calls, time.Duration(late.Load()))
	after := r.calls()
	require.Less(t, after["evalsha"]-before["evalsha"], 10, "finish and unlock, which a busy machine may repeat")
	r.requireClean()
}

// fragile is a hook that panics in the next dial, while it is armed.
type fragile struct{ armed atomic.Bool }

func (f *fragile) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if f.armed.CompareAndSwap(true, false) {
			panic("of a dialer")
		}
		return next(ctx, network, addr)
	}
}
func (*fragile) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (*fragile) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestAPanicOfADialerCostsNoNews(t *testing.T) {
	r := newRig(t)
	const long = 10 * time.Minute // for which a call without news waits
	p, waits := r.processWith(long), r.processWith(long)
	run := newRunning(t, p, "a")
	hook := new(fragile)
	rdb := waits.locks.Redis()
	rdb.AddHook(hook)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	hook.armed.Store(true) // commands have a connection, and the subscription has none
	got := make(chan string)
	go func() {
		result, _, err := do(t.Context(), waits, "a")
		got <- fmt.Sprint(result, " ", err)
	}()
	redistest.Eventually(t, time.Minute, func() bool {
		return slices.ContainsFunc(redistest.Keys(t, r.plain), func(key string) bool { return strings.HasSuffix(key, ":waiters") })
	}, "the call waits")
	run.end("result", nil)
	select {
	case result := <-got:
		require.Equal(t, "result <nil>", result)
	case <-time.After(time.Minute): // against a hang
		require.Fail(t, "the call waits on")
	}
	require.False(t, hook.armed.Load())
}

// calls counts the commands of the server.
func (r *rig) calls() map[string]int {
	r.Helper()
	info, err := r.plain.Info(r.Context(), "commandstats").Result()
	require.NoError(r, err)
	calls := map[string]int{}
	for line := range strings.SplitSeq(info, "\r\n") {
		var n int
		if name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls="); ok {
			_, _ = fmt.Sscanf(rest, "%d", &n)
			calls[name] = n
		}
	}
	return calls
}

func TestCommandsOfACall(t *testing.T) {
	r := newRig(t)
	p, other := r.process(), r.process()
	for _, warm := range []*process{p, other} {
		_, _, err := do(t.Context(), warm, "warm")
		require.NoError(t, err)
	}
	r.sleep()
	count := func(f func()) int {
		before := r.calls()["evalsha"]
		f()
		return r.calls()["evalsha"] - before
	}
	require.Equal(t, 3, count(func() { _, _, _ = do(t.Context(), p, "a") }), "begin, finish, unlock")
	require.Equal(t, 1, count(func() { _, _, _ = do(t.Context(), p, "a") }), "a replay")
	run := newRunning(t, p, "b")
	var wg sync.WaitGroup
	require.Equal(t, 1, count(func() {
		for range 16 {
			wg.Go(func() { _, _, _ = do(t.Context(), other, "b") })
		}
		r.sleep()
	}), "16 duplicates of a client")
	run.end("", nil)
	wg.Wait()
}

func TestAnErrorIsNotStored(t *testing.T) {
	r := newRig(t)
	p, other := r.process(), r.process()
	run := newRunning(t, p, "a")
	results := make(chan string, 2)
	var wg sync.WaitGroup
	for _, by := range []*process{p, other} {
		wg.Go(func() {
			result, _, err := do(t.Context(), by, "a")
			if err != nil {
				t.Error(err)
			}
			results <- result
		})
	}
	r.sleep()
	begun := time.Now()
	run.end("", errors.New("no money"))
	require.EqualError(t, run.err, "no money")
	wg.Wait()
	require.Less(t, time.Since(begun), bound.Of(lease/2), "who waits does not wait for the lease")
	require.Equal(t, first, <-results)
	require.Equal(t, first, <-results)
	r.requireClean()
}

func TestAPermanentErrorIsStored(t *testing.T) {
	r := newRig(t)
	p := r.process()
	cause := errors.New("card expired")
	fail := func(context.Context, once.Attempt) (int, error) {
		return 0, fmt.Errorf("charge: %w", once.Permanent(cause))
	}
	_, replayed, err := once.Do(t.Context(), p.Once, "a", fail)
	require.ErrorIs(t, err, cause)
	require.ErrorAs(t, err, new(*once.FailedError))
	require.False(t, replayed)
	for _, by := range []*process{p, r.process()} {
		_, replayed, err = once.Do(t.Context(), by.Once, "a", fail)
		var failed *once.FailedError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "charge: card expired", failed.Text)
		require.True(t, replayed)
	}
	require.NoError(t, once.Permanent(nil))
}

func TestAnInterruptedAttemptIsTold(t *testing.T) {
	for what, interrupt := range map[string]func(t *testing.T, p *process, key string){
		"panic": func(t *testing.T, p *process, key string) {
			require.PanicsWithValue(t, "oh", func() {
				_, _, _ = once.Do(t.Context(), p.Once, key, func(context.Context, once.Attempt) (int, error) { panic("oh") })
			})
		},
		"end of the goroutine": func(t *testing.T, p *process, key string) {
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _, _ = once.Do(t.Context(), p.Once, key, func(context.Context, once.Attempt) (int, error) {
					runtime.Goexit()
					return 0, nil
				})
			})
			wg.Wait()
		},
		"error after the end of the context": func(t *testing.T, p *process, key string) {
			ctx, cancel := context.WithCancel(t.Context())
			_, _, err := once.Do(ctx, p.Once, key, func(ctx context.Context, _ once.Attempt) (int, error) {
				cancel()
				return 0, ctx.Err()
			})
			require.ErrorIs(t, err, context.Canceled)
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			p := r.process()
			interrupt(t, p, "a")
			strict := r.process(once.FailIfInterrupted())
			_, _, err := do(t.Context(), strict, "a")
			require.ErrorIs(t, err, once.ErrInterrupted)
			require.ErrorContains(t, err, `attempt 1 of "a"`)
			interrupt(t, p, "a")
			result, replayed, err := do(t.Context(), p, "a")
			require.NoError(t, err)
			require.False(t, replayed)
			require.Equal(t, "run 1 attempt 3 interrupted true", result)
			result, _, err = do(t.Context(), strict, "a")
			require.NoError(t, err)
			require.Equal(t, "run 1 attempt 3 interrupted true", result)

			interrupt(t, p, "b")
			require.NoError(t, strict.Forget(t.Context(), "b"))
			result, _, err = do(t.Context(), strict, "b")
			require.NoError(t, err)
			require.Equal(t, first, result)
			r.requireClean()
		})
	}
}

// TestALateAttemptStoresNothing has an attempt lose its lock, and end after the next one has begun,
// or has ended.
func TestALateAttemptStoresNothing(t *testing.T) {
	for what, late := range map[string]error{"result": nil, "error": errors.New("late"), "permanent error": once.Permanent(errors.New("late"))} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			p, other := r.process(), r.process()
			run := newRunning(t, p, "a")
			require.NoError(t, r.plain.Del(t.Context(), "relock:{once:a}").Err())
			next := newRunning(t, other, "a")
			require.True(t, next.attempt.Interrupted)
			require.Equal(t, 2, next.attempt.Number)
			run.end("late", late)
			require.ErrorIs(t, run.err, relock.ErrLockLost)
			next.end("second", nil)
			require.NoError(t, next.err)
			result, replayed, err := do(t.Context(), p, "a")
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, "second", result)

			run = newRunning(t, p, "b")
			require.NoError(t, r.plain.Del(t.Context(), "relock:{once:b}").Err())
			result, _, err = do(t.Context(), other, "b")
			require.NoError(t, err)
			require.Equal(t, "run 1 attempt 2 interrupted true", result)
			run.end("late", late)
			require.Error(t, run.err)
			again, replayed, err := do(t.Context(), other, "b")
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, result, again)
			r.requireClean()
		})
	}
}

func TestAWaiterThatGivesUpLeavesNothing(t *testing.T) {
	r := newRig(t)
	p := r.process()
	run := newRunning(t, p, "a")
	for _, by := range []*process{p, r.process()} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
		begun := time.Now()
		_, _, err := do(ctx, by, "a")
		cancel()
		require.ErrorIs(t, err, once.ErrInFlight)
		require.ErrorContains(t, err, "enough")
		require.Less(t, time.Since(begun), bound.Of(10*time.Second))
		for _, o := range []once.CallOption{once.NoWait(), once.WaitFor(time.Second)} {
			begun = time.Now()
			_, _, err = do(t.Context(), by, "a", o)
			require.ErrorIs(t, err, once.ErrInFlight)
			require.Less(t, time.Since(begun), bound.Of(10*time.Second))
		}
	}
	_, _, err := do(t.Context(), p, "a", once.WaitFor(0))
	require.ErrorIs(t, err, relock.ErrInvalid)
	require.ErrorIs(t, p.Forget(t.Context(), "a"), relock.ErrLocked)
	run.end("done", nil)
	require.NoError(t, run.err)
	r.requireClean()
}

func TestNoWaitOfADoneOperationReplays(t *testing.T) {
	r := newRig(t)
	p := r.process()
	_, _, err := do(t.Context(), p, "a")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if result, replayed, err := do(t.Context(), p, "a", once.NoWait()); err != nil || !replayed || result != first {
				t.Errorf("%q %t %v", result, replayed, err)
			}
		})
	}
	wg.Wait()
}

func TestADeadAttemptIsFollowedAtTheEndOfItsLease(t *testing.T) {
	r := newRig(t)
	p, other := r.process(), r.process()
	run := newRunning(t, p, "a")
	p.faults.Partition() // the process is gone, as far as Redis sees
	begun := time.Now()
	const waiters = "relock:{once:a}:waiters" // whom nobody tells
	meet := func() time.Duration {
		_, _, err := do(t.Context(), r.process(), "a", once.NoWait())
		require.ErrorIs(t, err, once.ErrInFlight)
		return r.plain.PTTL(t.Context(), waiters).Val()
	}
	ttl := meet()
	require.Positive(t, ttl)
	require.LessOrEqual(t, ttl, lease+time.Second)
	require.NoError(t, r.plain.PExpire(t.Context(), waiters, time.Hour).Err()) // one has met a longer lease
	require.Greater(t, meet(), time.Minute)
	require.NoError(t, r.plain.Del(t.Context(), waiters).Err())
	result, _, err := do(t.Context(), other, "a")
	require.NoError(t, err)
	require.Equal(t, "run 1 attempt 2 interrupted true", result)
	require.Less(t, time.Since(begun), bound.Of(2*lease))
	p.faults.Heal()
	run.end("late", nil)
	require.ErrorIs(t, run.err, relock.ErrLockLost)
}

func TestALostReplyAtEachStep(t *testing.T) {
	r := newRig(t)
	p := r.process()
	for step := range 3 { // begin, finish, unlock
		key := fmt.Sprint("step", step)
		sent := 0
		rule := p.faults.On(func(args []string) bool {
			if !redistest.Named("EVALSHA", "EVAL")(args) {
				return false
			}
			sent++
			return sent == step+1
		}, redistest.DropReply(redistest.EOF))
		result, replayed, err := do(t.Context(), p, key)
		require.NoError(t, err, key)
		require.False(t, replayed)
		require.Equal(t, first, result)
		require.Equal(t, 1, rule.Hits(), key)
		rule.Remove()
		result, replayed, err = do(t.Context(), p, key)
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, first, result)
	}
	r.requireClean()
}

func TestAStoreThatIsAwayFailsClosed(t *testing.T) {
	r := newRig(t)
	p := r.process()
	_, _, err := do(t.Context(), p, "warm")
	require.NoError(t, err)
	r.server.Kill()
	runs := new(answer)
	_, _, err = once.Do(t.Context(), p.Once, "a", runs.give)
	require.ErrorIs(t, err, relock.ErrUnavailable)
	require.Zero(t, runs.runs.Load())
	r.server.Restart()
}

func TestAResultThatCannotBeKept(t *testing.T) {
	r := newRig(t)
	p := r.process(once.WithMaxResult(10))
	long := func(context.Context, once.Attempt) (string, error) { return strings.Repeat("x", 20), nil }
	result, _, err := once.Do(t.Context(), p.Once, "a", long)
	require.ErrorIs(t, err, once.ErrNoResult)
	require.Len(t, result, 20)
	_, replayed, err := once.Do(t.Context(), p.Once, "a", long)
	require.ErrorIs(t, err, once.ErrNoResult)
	require.True(t, replayed)
	_, _, err = once.Do(t.Context(), p.Once, "b", func(context.Context, once.Attempt) (float64, error) { return math.NaN(), nil })
	require.ErrorIs(t, err, once.ErrNoResult)
	_, _, err = once.Do(t.Context(), p.Once, "c", func(context.Context, once.Attempt) (int, error) { return 1, nil })
	require.NoError(t, err)
	_, _, err = once.Do(t.Context(), p.Once, "c", func(context.Context, once.Attempt) ([]int, error) { return nil, nil })
	require.ErrorContains(t, err, "another type")
}

func TestRetentionEnds(t *testing.T) {
	r := newRig(t)
	p := r.process(once.WithRetention(time.Second))
	_, _, err := do(t.Context(), p, "a")
	require.NoError(t, err)
	ttl := r.plain.PTTL(t.Context(), "relock:{once:a}:once").Val()
	require.Positive(t, ttl)
	require.LessOrEqual(t, ttl, time.Second)
	redistest.Eventually(t, 30*time.Second, func() bool {
		_, replayed, err := do(t.Context(), p, "a")
		return err == nil && !replayed
	}, "the operation is new again")
}

func TestDoInsideOfItsOwnAttempt(t *testing.T) {
	r := newRig(t)
	p := r.process()
	_, _, err := once.Do(t.Context(), p.Once, "a", func(ctx context.Context, a once.Attempt) (string, error) {
		token, err := a.Token(ctx)
		require.NoError(t, err)
		require.Positive(t, token)
		_, _, err = do(ctx, p, "b") // another key is another operation
		require.NoError(t, err)
		result, _, err := do(ctx, p, "a")
		return result, err
	})
	require.ErrorIs(t, err, relock.ErrInvalid)
}

func TestClosedOnceStillWorks(t *testing.T) {
	r := newRig(t)
	p, other := r.process(), r.process()
	run := newRunning(t, other, "a")
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	var wg sync.WaitGroup
	wg.Go(func() {
		if result, _, err := do(t.Context(), p, "a"); err != nil || result != "done" {
			t.Errorf("%q %v", result, err)
		}
	})
	r.sleep()
	run.end("done", nil)
	wg.Wait()
}

func TestOneTimeTokens(t *testing.T) {
	r := newRig(t)
	p, other := r.process(), r.process()
	token, err := p.Issue(t.Context(), "reset 7", time.Minute)
	require.NoError(t, err)
	require.NotContains(t, strings.Join(redistest.Keys(t, r.plain), " "), token)
	data, err := other.Redeem(t.Context(), token, "request 1")
	require.NoError(t, err)
	require.Equal(t, "reset 7", data)
	data, err = p.Redeem(t.Context(), token, "request 1") // as after a lost answer
	require.NoError(t, err)
	require.Equal(t, "reset 7", data)
	_, err = p.Redeem(t.Context(), token, "request 2")
	require.ErrorIs(t, err, once.ErrRedeemed)
	_, err = p.Redeem(t.Context(), token+"x", "request 1")
	require.ErrorIs(t, err, once.ErrUnknownToken)
	_, err = p.Redeem(t.Context(), token, "")
	require.ErrorIs(t, err, relock.ErrInvalid)
	_, err = p.Issue(t.Context(), "", 0)
	require.ErrorIs(t, err, relock.ErrInvalid)

	token, err = p.Issue(t.Context(), "", time.Minute)
	require.NoError(t, err)
	p.faults.Once(redistest.Named("EVALSHA", "EVAL"), redistest.DropReply(redistest.EOF))
	_, err = p.Redeem(t.Context(), token, "request 1")
	if err != nil {
		_, err = p.Redeem(t.Context(), token, "request 1")
	}
	require.NoError(t, err)

	token, err = p.Issue(t.Context(), "", 50*time.Millisecond)
	require.NoError(t, err)
	redistest.Eventually(t, 30*time.Second, func() bool {
		_, err := p.Redeem(t.Context(), token, "request 1")
		return errors.Is(err, once.ErrUnknownToken)
	}, "the token is over")
}

func TestOneOfManyRedeems(t *testing.T) {
	r := newRig(t)
	r.limit = time.Minute
	p := r.process()
	token, err := p.Issue(t.Context(), "", time.Minute)
	require.NoError(t, err)
	var wg sync.WaitGroup
	var redeemed atomic.Int64
	for i := range 64 {
		wg.Go(func() {
			if _, err := p.Redeem(t.Context(), token, fmt.Sprint(i)); err == nil {
				redeemed.Add(1)
			} else if !errors.Is(err, once.ErrRedeemed) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, redeemed.Load())
}

func TestARedisUserMayDoWhatOnceNeedsWithTheRulesOfThePages(t *testing.T) {
	r := newRig(t)
	var rule []any
	for file, pattern := range map[string]string{
		"../docs/OPERATIONS.md": `(?m)^ACL SETUSER locks .*$`, "README.md": "(?s)`\\+hmget .*?`.*?`\\+multi .*?`",
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		words := regexp.MustCompile(pattern).FindString(string(text))
		require.NotEmpty(t, words, file)
		for _, word := range regexp.MustCompile("[^`\\s]+").FindAllString(words, -1) {
			if strings.HasPrefix(word, "+") {
				rule = append(rule, word)
			}
		}
	}
	user := append([]any{"ACL", "SETUSER", "locks", "on", ">password", "~relock:*", "resetchannels", "&relock:*"}, rule...)
	require.NoError(t, r.plain.Do(t.Context(), user...).Err())
	rdb := r.server.Client(func(o *redis.Options) { o.Username, o.Password = "locks", "password" })
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	o, err := once.New(locks)
	require.NoError(t, err)
	p := &process{Once: o, locks: locks}
	run := newRunning(t, p, "a")
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, replayed, err := do(t.Context(), r.process(), "a"); err != nil || !replayed {
			t.Error(err)
		}
	})
	r.sleep()
	run.end("done", nil)
	require.NoError(t, run.err)
	wg.Wait()
	run = newRunning(t, p, "b")
	run.end("", errors.New("no"))
	require.EqualError(t, run.err, "no")
	token, err := o.Issue(t.Context(), "data", time.Minute)
	require.NoError(t, err)
	_, err = o.Redeem(t.Context(), token, "caller")
	require.NoError(t, err)
	require.NoError(t, o.Close())
	require.NoError(t, locks.Close())
}

// TestARecordThatRedisHasLost has Redis evict the record of a running attempt.
func TestARecordThatRedisHasLost(t *testing.T) {
	r := newRig(t)
	p := r.process()
	run := newRunning(t, p, "a")
	require.NoError(t, r.plain.Del(t.Context(), "relock:{once:a}:once").Err())
	run.end("done", nil)
	require.NoError(t, run.err)
	result, replayed, err := do(t.Context(), p, "a")
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, "done", result)
	require.Positive(t, r.plain.PTTL(t.Context(), "relock:{once:a}:once").Val())
}

func TestOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	var all []*process
	for range 2 {
		locks, err := relock.New(cluster.Client())
		require.NoError(t, err)
		o, err := once.New(locks)
		require.NoError(t, err)
		all = append(all, &process{Once: o, locks: locks})
	}
	for i := range 8 { // in several slots
		key := fmt.Sprint("key", i)
		run := newRunning(t, all[0], key)
		var wg sync.WaitGroup
		wg.Go(func() {
			result, replayed, err := do(t.Context(), all[1], key)
			if err != nil || !replayed || result != key {
				t.Errorf("%s: %q %t %v", key, result, replayed, err)
			}
		})
		<-time.After(50 * time.Millisecond)
		begun := time.Now()
		run.end(key, nil)
		require.NoError(t, run.err)
		wg.Wait()
		require.Less(t, time.Since(begun), bound.Of(5*time.Second), "the message crosses the nodes")
		token, err := all[0].Issue(t.Context(), key, time.Minute)
		require.NoError(t, err)
		data, err := all[1].Redeem(t.Context(), token, "caller")
		require.NoError(t, err)
		require.Equal(t, key, data)
	}
	for _, p := range all {
		require.NoError(t, p.Close())
		require.NoError(t, p.locks.Close())
	}
}

// TestAnErrorDoesNotHideAnInterruptedAttempt has an attempt fail after an interrupted attempt.
func TestAnErrorDoesNotHideAnInterruptedAttempt(t *testing.T) {
	r := newRig(t)
	p := r.process()
	require.Panics(t, func() {
		_, _, _ = once.Do(t.Context(), p.Once, "a", func(context.Context, once.Attempt) (int, error) { panic("oh") })
	})
	for n := 2; n < 5; n++ {
		run := newRunning(t, p, "a")
		require.True(t, run.attempt.Interrupted)
		require.Equal(t, n, run.attempt.Number)
		run.end("", errors.New("cannot ask"))
		require.EqualError(t, run.err, "cannot ask")
	}
	_, _, err := do(t.Context(), r.process(once.FailIfInterrupted()), "a")
	require.ErrorIs(t, err, once.ErrInterrupted)
	run := newRunning(t, p, "a")
	run.end("done", nil)
	require.NoError(t, run.err)
	r.requireClean()
}

// TestAnAttemptThatDoesNotRunIsNotInterrupted has the context of a call end while the answer to its
// begin is on its way.
func TestAnAttemptThatDoesNotRunIsNotInterrupted(t *testing.T) {
	r := newRig(t)
	p := r.process()
	strict := r.process(once.FailIfInterrupted())
	_, _, err := do(t.Context(), p, "warm")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	p.faults.On(scriptOf("a"), redistest.DropReply(redistest.Silence)).Times(2)
	_, _, err = do(ctx, p, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var result string
	redistest.Eventually(t, time.Minute, func() bool { // on a busy machine the begin arrives behind its first taking back
		result, _, err = do(t.Context(), strict, "a")
		return err == nil
	}, "the attempt is taken back: %v", &err)
	require.Equal(t, first, result)
}
