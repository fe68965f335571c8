package once_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/once"
)

// Trouble beside an attempt, in the same process or in another.

func TestForgetLeavesARunningAttemptAlone(t *testing.T) {
	r := newRig(t)
	p := r.process()
	run := newRunning(t, p, "a")
	require.ErrorIs(t, p.Forget(t.Context(), "a"), relock.ErrLocked)
	require.NotEmpty(t, r.plain.HGetAll(t.Context(), "relock:{once:a}:once").Val())
	run.end("done", nil)
	require.NoError(t, run.err)
	require.NoError(t, p.Forget(t.Context(), "nobody knows it"))
}

// TestALateForgetRemovesNoLaterRecord has the first send of a Forget arrive when the operation has
// been done again.
func TestALateForgetRemovesNoLaterRecord(t *testing.T) {
	r := newRig(t)
	p, other := r.process(), r.process()
	_, _, err := do(t.Context(), p, "a")
	require.NoError(t, err)
	rule := p.faults.On(redistest.Named("EVALSHA", "EVAL"), redistest.Hold()).Times(1)
	forgotten := make(chan error, 1)
	go func() { forgotten <- p.Forget(t.Context(), "a") }()
	require.NoError(t, <-forgotten, "a repeat succeeds")
	result, replayed, err := do(t.Context(), other, "a")
	require.NoError(t, err)
	require.False(t, replayed)
	rule.Release(t)
	r.sleep()
	again, replayed, err := do(t.Context(), other, "a")
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, result, again)
}

func TestWhoWaitsIsWokenWhenAnAttemptEndsWithoutAResult(t *testing.T) {
	for what, end := range map[string]func(run *running, cancel func()){
		"panic": func(run *running, _ func()) {
			run.give <- func() (string, error) { panic("oh") }
		},
		"error after the end of the context": func(run *running, cancel func()) {
			cancel()
			run.give <- func() (string, error) { return "", context.Canceled }
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			p, other := r.process(), r.process()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			run := newRunningIn(ctx, t, p, "a")
			got := make(chan string, 1)
			go func() {
				result, _, _ := do(t.Context(), other, "a")
				got <- result
			}()
			r.sleep()
			begun := time.Now()
			end(run, cancel)
			require.Equal(t, "run 1 attempt 2 interrupted true", <-got)
			require.Less(t, time.Since(begun), bound.Of(lease/2))
			run.wg.Wait()
		})
	}
}

// TestAPermanentErrorIsPermanentForItsOwnOperation returns the final error of an operation from the
// function of another operation.
func TestAPermanentErrorIsPermanentForItsOwnOperation(t *testing.T) {
	r := newRig(t)
	p := r.process()
	cause := errors.New("card expired")
	outer := func() error {
		_, _, err := once.Do(t.Context(), p.Once, "outer", func(ctx context.Context, _ once.Attempt) (int, error) {
			_, _, err := once.Do(ctx, p.Once, "inner", func(context.Context, once.Attempt) (int, error) { return 0, once.Permanent(cause) })
			return 0, fmt.Errorf("pay: %w", err)
		})
		return err
	}
	require.ErrorIs(t, outer(), cause)
	require.ErrorContains(t, outer(), "pay: card expired")
	require.NotErrorIs(t, outer(), cause, "the inner one is a replay")
	require.Zero(t, r.plain.Exists(t.Context(), "relock:{once:outer}:once").Val(), "the outer error is not stored")
}

func TestAnUnknownEndCountsAsInterrupted(t *testing.T) {
	r := newRig(t)
	p := r.process()
	cause := errors.New("timeout")
	_, _, err := once.Do(t.Context(), p.Once, "a", func(context.Context, once.Attempt) (int, error) {
		return 0, fmt.Errorf("charge: %w", once.Unknown(cause))
	})
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, "charge: timeout")
	require.NotErrorAs(t, err, new(*once.FailedError))
	_, _, err = do(t.Context(), r.process(once.FailIfInterrupted()), "a")
	require.ErrorIs(t, err, once.ErrInterrupted)
	require.NoError(t, once.Unknown(nil))
}

func TestAContextThatIsDoneBeginsNothing(t *testing.T) {
	r := newRig(t)
	p := r.process()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	for range 50 {
		_, _, err := do(ctx, p, "a")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "enough")
	}
	require.Empty(t, redistest.Keys(t, r.plain))
}

func TestAnotherInputIsToldAtOnceInTheSameProcess(t *testing.T) {
	r := newRig(t)
	p := r.process()
	run := newRunning(t, p, "a", once.Input(1))
	for _, options := range [][]once.CallOption{{once.Input(2)}, {once.Input(2), once.NoWait()}} {
		_, _, err := do(t.Context(), p, "a", options...)
		require.ErrorIs(t, err, once.ErrMismatch)
	}
	_, _, err := do(t.Context(), p, "a", once.Input(1), once.NoWait())
	require.ErrorIs(t, err, once.ErrInFlight)
	run.end("", nil)
}

// TestWithoutASubscriptionTheResultIsFoundAfterTheLease has a user that may not subscribe.
func TestWithoutASubscriptionTheResultIsFoundAfterTheLease(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.plain.Do(t.Context(), "ACL", "SETUSER", "deaf", "on", ">password", "~*", "resetchannels", "+@all").Err())
	rdb := r.server.Client(func(o *redis.Options) { o.Username, o.Password = "deaf", "password" })
	locks, err := relock.New(rdb, relock.WithTTL(lease))
	require.NoError(t, err)
	o, err := once.New(locks)
	require.NoError(t, err)
	run := newRunning(t, r.process(), "a")
	got := make(chan string, 1)
	go func() {
		result, _, _ := do(t.Context(), &process{Once: o}, "a")
		got <- result
	}()
	r.sleep()
	run.end("done", nil)
	select {
	case result := <-got:
		require.Equal(t, "done", result)
	case <-time.After(3 * lease):
		require.FailNow(t, "the result is not found")
	}
	require.NoError(t, o.Close())
	require.NoError(t, locks.Close())
}

func TestAResultOfWhichTheNewsIsLostIsFoundWhenPubSubIsBack(t *testing.T) {
	r := newRig(t)
	const long = 10 * time.Minute // for which a call without news waits
	p, other := r.processWith(long), r.processWith(long)
	run := newRunning(t, p, "a")
	got := make(chan string, 1)
	go func() {
		result, _, _ := do(t.Context(), other, "a")
		got <- result
	}()
	r.sleep()
	other.faults.StallPubSub()
	run.end("done", nil)
	other.faults.CutPubSub()
	select {
	case result := <-got:
		require.Equal(t, "done", result)
	case <-time.After(time.Minute): // against a hang
		require.Fail(t, "the call waits on")
	}
}

// TestCallsOfAProcessLearnTogetherThatRedisIsAway has many calls of one key ask a silent server.
func TestCallsOfAProcessLearnTogetherThatRedisIsAway(t *testing.T) {
	r := newRig(t)
	p := r.process()
	_, _, err := do(t.Context(), p, "warm")
	require.NoError(t, err)
	r.server.Pause()
	defer r.server.Resume()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	for range 8 {
		wg.Go(func() {
			begun := time.Now()
			_, _, err := do(t.Context(), p, "a", once.NoWait())
			if !errors.Is(err, relock.ErrUnavailable) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(begun))
		})
	}
	wg.Wait()
	shortest, longest := took[0], took[0]
	for _, d := range took {
		shortest, longest = min(shortest, d), max(longest, d)
	}
	require.Less(t, longest-shortest, shortest, "they do not ask one after the other")
}

// scriptOf matches the scripts of an operation, and not those that clean up behind another one.
func scriptOf(key string) redistest.Match {
	return redistest.Named("EVALSHA", "EVAL").And(redistest.WithArg("{once:" + key + "}"))
}

// TestALateBeginIsTakenBack has the begin of a call that was given up arrive after the call.
func TestALateBeginIsTakenBack(t *testing.T) {
	r := newRig(t)
	p, strict := r.process(), r.process(once.FailIfInterrupted())
	for _, by := range []*process{p, strict} {
		_, _, err := do(t.Context(), by, "warm")
		require.NoError(t, err)
	}
	rule := p.faults.On(scriptOf("a"), redistest.Hold()).Times(2)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _, err := do(ctx, p, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	rule.Release(t)
	var result string
	redistest.Eventually(t, 3*lease, func() bool {
		result, _, err = do(t.Context(), strict, "a")
		return err == nil
	}, "the late attempt is taken back: %v", &err)
	require.Equal(t, first, result)
}

// TestALostAnswerToBeginInterruptsNothing loses the first answer, so that begin runs twice.
func TestALostAnswerToBeginInterruptsNothing(t *testing.T) {
	for _, how := range []redistest.Break{redistest.EOF, redistest.Silence} {
		r := newRig(t)
		p := r.process(once.FailIfInterrupted())
		_, _, err := do(t.Context(), p, "warm")
		require.NoError(t, err)
		rule := p.faults.Once(scriptOf("a"), redistest.DropReply(how))
		result, replayed, err := do(t.Context(), p, "a")
		require.NoError(t, err)
		require.Equal(t, 1, rule.Hits())
		require.False(t, replayed)
		require.Equal(t, first, result)
	}
}

// TestACloseOfTheClientTakesTheAttemptBack closes the client while the answer to begin is on its
// way.
func TestACloseOfTheClientTakesTheAttemptBack(t *testing.T) {
	r := newRig(t)
	p, strict := r.process(), r.process(once.FailIfInterrupted())
	_, _, err := do(t.Context(), p, "warm")
	require.NoError(t, err)
	p.faults.On(scriptOf("a"), redistest.DropReply(redistest.Silence)).Times(2)
	failed := make(chan error, 1)
	go func() {
		_, _, err := do(t.Context(), p, "a")
		failed <- err
	}()
	r.sleep()
	require.NoError(t, p.locks.Close())
	require.ErrorIs(t, <-failed, relock.ErrClosed)
	redistest.Eventually(t, 3*lease, func() bool {
		_, _, err = do(t.Context(), strict, "a")
		return err == nil
	}, "the attempt is taken back: %v", &err)
}

func TestAnAttemptWithoutReplicasIsTakenBack(t *testing.T) {
	r := newRig(t)
	acks := once.WithLockOptions(relock.WithReplicaAcks(1, 20*time.Millisecond))
	p, strict := r.process(acks), r.process(once.FailIfInterrupted())
	_, _, err := do(t.Context(), p, "a")
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	result, _, err := do(t.Context(), strict, "a")
	require.NoError(t, err)
	require.Equal(t, first, result)
}

func TestTheNoteOfAnAttemptOutlivesAShortRetention(t *testing.T) {
	r := newRig(t)
	p := r.process(once.WithRetention(time.Second))
	run := newRunning(t, p, "a")
	require.Greater(t, r.plain.PTTL(t.Context(), "relock:{once:a}:once").Val(), 20*time.Hour)
	run.end("done", nil)
	require.LessOrEqual(t, r.plain.PTTL(t.Context(), "relock:{once:a}:once").Val(), time.Second)
}
