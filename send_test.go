package relock

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// crowded is as many commands as no test has.
const crowded = 1_000_000

// fillLanes takes all lanes, as if so many commands were on their way that the first lane to be free takes all that is queued,
// and makes the queue wait for it.
func fillLanes(t *testing.T, l *lanes) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		free := l.aloft.Load() == 0 // a command frees its lane a moment after its call has returned
		if free {
			l.carried, l.limit = crowded, time.Hour
			l.aloft.Store(flightsAloft)
		}
		return free
	}, "all lanes are free")
}

// landLanes lets what is queued leave, and frees the lanes that fillLanes has taken.
func landLanes(l *lanes) {
	l.mu.Lock()
	l.limit = laneLimit
	l.aloft.Store(1)
	l.mu.Unlock()
	l.leave()
	l.mu.Lock()
	l.carried -= crowded - 1
	l.mu.Unlock()
}

func (l *lanes) queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// pipelines notes what go-redis is asked to send together.
type pipelines struct {
	mu    sync.Mutex
	sizes []int
}

func (p *pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (p *pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" {
			p.mu.Lock()
			p.sizes = append(p.sizes, len(cmds))
			p.mu.Unlock()
		}
		return next(ctx, cmds)
	}
}

func TestCommandsThatWaitForALaneLeaveInOnePipelineWhenOneLands(t *testing.T) {
	r := newRig(t)
	var seen pipelines
	r.rdb.AddHook(&seen)
	h := r.enter()
	l := &r.wire.lanes
	fillLanes(t, l)
	const calls = 20
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			s, err := r.wire.state(t.Context(), r.keys, once)
			if err != nil || s.hold != h.id {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == calls }, "all are queued")
	l.leave()
	all.Wait()
	require.Equal(t, []int{calls}, seen.sizes)
	redistest.Eventually(t, 10*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.aloft.Load() == flightsAloft-1 && l.carried == crowded-1
	}, "the lane that they had is free")
}

func TestLanesShareWhatThereIsToCarry(t *testing.T) {
	l := &lanes{limit: time.Hour}
	for _, want := range []lane{onlyLane, someLane, someLane, queued} {
		require.Equal(t, want, l.enter())
	}
	var all []*flight
	join := func(n int) {
		for range n {
			f := &flight{}
			all = append(all, f)
			require.Equal(t, queued, l.wait(f))
		}
	}
	take := func(landed []*flight, want int) (got []*flight) { // nil: what was sent without a queue
		t.Helper()
		if landed == nil {
			got = l.landOne()
		} else {
			l.land(landed)
			got = l.reuse(landed)
		}
		require.Len(t, got, want)
		require.True(t, slices.Equal(all[:want], got), "first come, first served")
		if all = all[want:]; len(all) > 0 {
			require.True(t, l.late.Reset(l.limit), "the others do not wait for ever")
		}
		return got
	}
	join(61)
	one := take(nil, 21)   // of 63
	two := take(nil, 21)   // of 62
	three := take(nil, 19) // the rest
	join(30)
	one = take(one, 24) // of 70
	two = take(two, 6)  // the rest, so they have 24, 6 and 19
	join(3)
	one = take(one, 3)
	join(12)
	three = take(three, 7)               // of 21
	two = take(two, 5)                   // the rest, so they have 3, 5 and 7
	l.shortest.Store(int64(l.limit / 4)) // another lane
	for _, want := range []lane{someLane, queued} {
		require.Equal(t, want, l.enter())
	}
	join(11)
	one = take(one, 6) // of 24
	l.shortest.Store(0)
	take(nil, 0) // there is a lane too many
	two = take(two, 5)
	join(9)
	l.smoothed.Store(int64(l.limit)) // whoever stays would not wait for another lane
	one = take(one, 9)
	take(two, 0)
	take(three, 0)
	take(one, 0)
	require.Empty(t, l.unlanded)
	require.Zero(t, l.carried)
	require.Equal(t, onlyLane, l.enter(), "all are free")
}

func TestWhatHasNotLandedIsKnownInWhateverOrderOthersLand(t *testing.T) {
	l := &lanes{limit: time.Hour}
	l.aloft.Store(farAloft)
	var all []*flight
	for range 4 {
		f := &flight{done: make(chan struct{}, 1), stops: true}
		all = append(all, f)
		require.Equal(t, queued, l.wait(f))
	}
	require.True(t, l.forget(all[0]))
	require.True(t, l.forget(all[2]))
	require.ElementsMatch(t, []*flight{all[1], all[3]}, l.unlanded)
	require.True(t, l.late.Stop(), "they do not wait for ever")
	l.aloft.Store(0)
	require.Equal(t, someLane, l.wait(&flight{}), "a lane has become free")
	require.EqualValues(t, 1, l.aloft.Load())
	require.Equal(t, 1, l.carried)
	l.close()
	for i, f := range all {
		require.Equal(t, i%2 == 1, f.stopped)
	}
}

func TestTheQueueIsHurriedWhenItsFirstHasWaitedForLongEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lanes{limit: laneLimit}
		l.aloft.Store(farAloft)
		begun, hurried := time.Now(), make(chan time.Duration, 1)
		l.late = time.AfterFunc(time.Hour, func() { hurried <- time.Since(begun) })
		for range 10 {
			require.Equal(t, queued, l.wait(&flight{}))
			time.Sleep(laneLimit / 4) //nolint:forbidigo // fake time
		}
		require.Equal(t, laneLimit, <-hurried)
	})
}

func TestARushDoesNotMakeTheServerAFarOne(t *testing.T) {
	l := &lanes{limit: laneLimit}
	took := func(d time.Duration, times int) {
		for range times {
			l.timed(time.Now().Add(-d), nil)
		}
	}
	took(laneLimit, 1)
	require.Equal(t, farAloft, l.most())
	took(laneLimit/10, 1)
	require.Equal(t, flightsAloft, l.most(), "at once")
	took(laneLimit, 8)
	require.Equal(t, flightsAloft, l.most())
	took(laneLimit, 100)
	require.Equal(t, farAloft, l.most(), "where it stays so, it is another way")
}

func TestACallThatSendsItsCommandItselfTellsHowLongARoundTripTakes(t *testing.T) {
	r := newRig(t)
	l := &r.wire.lanes
	require.Zero(t, l.smoothed.Load())
	_, err := r.wire.state(context.Background(), r.keys, once)
	require.NoError(t, err)
	require.Positive(t, l.smoothed.Load())
}

func TestACommandThatIsGivenUpBeforeItHasALaneIsNeverSent(t *testing.T) {
	r, f := faulty(t)
	r.owner()
	l := &r.wire.lanes
	fillLanes(t, l)
	for name, giveUp := range map[string]func(cancel context.CancelFunc, stop chan struct{}){
		"its context is done": func(cancel context.CancelFunc, _ chan struct{}) { cancel() },
		"its client closes":   func(_ context.CancelFunc, stop chan struct{}) { close(stop) },
	} {
		t.Run(name, func(t *testing.T) {
			before := f.Commands("EVALSHA", "EVAL")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stop, done := make(chan struct{}), make(chan error, 1)
			h := r.hold()
			go func() {
				_, _, err := r.wire.acquire(ctx, h, 1, false, 0, effort{stop: stop})
				done <- err
			}()
			redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == 1 }, "it is queued")
			giveUp(cancel, stop)
			require.Error(t, <-done)
			require.Zero(t, l.queued())
			require.Equal(t, before, f.Commands("EVALSHA", "EVAL"))
			o := r.client.orphans
			o.mu.Lock()
			defer o.mu.Unlock()
			require.Zero(t, h.flying, "nothing is on its way")
			require.False(t, h.unanswered, "and nothing can run late")
		})
	}
	t.Run("it is no first entry", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := r.wire.state(ctx, r.keys, once)
			done <- err
		}()
		redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == 1 }, "it is queued")
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Zero(t, l.queued())
	})
}

func TestACommandThatNeedsNoLaneFreesNone(t *testing.T) {
	r := newRig(t)
	l := &r.wire.lanes
	h := r.hold(WithReplicaAcks(1, time.Millisecond)) // so it has a connection to itself
	_, a, err := r.wire.acquire(context.Background(), h, 1, false, 0, once)
	require.NoError(t, err)
	require.Zero(t, a.acked)
	require.Zero(t, l.aloft.Load())
	require.Zero(t, l.carried)
}

func TestCloseEndsTheWaitOfWhatIsQueuedAndOfWhatIsOnItsWay(t *testing.T) {
	r, f := faulty(t)
	owned, another := r.enter(), r.hold()
	var err error
	another.keys, err = newKeys(DefaultPrefix, t.Name()+" another")
	require.NoError(t, err)
	_, _, err = r.wire.acquire(t.Context(), another, 1, false, 0, once)
	require.NoError(t, err)
	l := &r.wire.lanes
	enter := func() (*hold, chan error) {
		h, done := r.hold(), make(chan error, 1)
		go func() {
			_, _, err := r.wire.acquire(context.Background(), h, 1, false, 0, effort{stop: r.client.closed})
			done <- err
		}()
		return h, done
	}
	end := func(done chan error) error {
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			return errors.New("it waits still")
		}
	}
	flying := func(h *hold) int {
		o := r.client.orphans
		o.mu.Lock()
		defer o.mu.Unlock()
		return h.flying
	}
	fillLanes(t, l)
	sent, sentDone := enter()
	leave := func(h *hold) chan error {
		left := make(chan error, 1)
		go func() {
			_, _, err := r.wire.release(context.Background(), h, 0, effort{until: time.Now().Add(time.Minute)})
			left <- err
		}()
		return left
	}
	left := leave(owned)
	redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == 2 }, "an entry and an exit are queued")
	hang := f.Once(scripts, redistest.Hold())
	l.leave()
	hang.WaitHits(t, 1)
	l.mu.Lock()
	l.aloft.Store(flightsAloft)
	l.mu.Unlock()
	kept, keptDone := enter()
	redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == 1 }, "another is")
	before := f.Commands("EVALSHA", "EVAL")

	closed := make(chan error, 1)
	go func() { closed <- r.client.Close() }()
	require.ErrorIs(t, end(sentDone), ErrClosed)
	require.ErrorIs(t, end(keptDone), ErrClosed)
	require.Zero(t, l.queued())
	require.Zero(t, flying(kept), "it was never sent")
	require.Equal(t, 1, flying(sent))
	_, late := enter()
	require.ErrorIs(t, end(late), ErrClosed)
	leftLate := leave(another)
	redistest.Eventually(t, 10*time.Second, func() bool { return l.queued() == 1 }, "an exit is queued also after that")
	require.Equal(t, before, f.Commands("EVALSHA", "EVAL"))
	require.Empty(t, left, "Close ends no exit")
	require.Empty(t, closed, "and waits for it")

	hang.LetGo()
	require.NoError(t, end(left))
	require.NoError(t, end(leftLate))
	require.NoError(t, end(closed))
	redistest.Eventually(t, 10*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.unlanded) == 0
	}, "all have landed")
	redistest.Eventually(t, 10*time.Second, func() bool { return flying(sent) == 0 }, "and the entry's cleaner knows")
}

func TestConnectionsThatHangHoldUpNobodyElse(t *testing.T) {
	r, f := faulty(t)
	r.enter()
	hang := f.On(scripts, redistest.Hold()).Times(flightsAloft)
	var all sync.WaitGroup
	for range flightsAloft {
		all.Go(func() { _, _ = r.wire.state(t.Context(), r.keys, once) })
	}
	hang.WaitHits(t, flightsAloft)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // they hang for longer
		_, err := r.wire.state(ctx, r.keys, once)
		cancel()
		require.NoError(t, err)
	}
	hang.LetGo()
	all.Wait()
	l := &r.wire.lanes
	redistest.Eventually(t, 10*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.aloft.Load() == 0 && l.carried == 0
	}, "all have landed")
}

func TestAHurriedCommandIsOnItsWayUntilItHasLanded(t *testing.T) {
	r, f := faulty(t)
	r.enter()
	l := &r.wire.lanes
	fillLanes(t, l)
	carried := func(change time.Duration) int {
		l.mu.Lock()
		defer l.mu.Unlock()
		if change > 0 {
			l.limit = change
		}
		return l.carried
	}
	require.Equal(t, crowded, carried(time.Millisecond))
	hang := f.Once(scripts, redistest.Hold())
	var all sync.WaitGroup
	all.Go(func() { _, _ = r.wire.state(t.Context(), r.keys, once) })
	hang.WaitHits(t, 1)
	require.Equal(t, crowded+1, carried(0))
	hang.LetGo()
	all.Wait()
	redistest.Eventually(t, 10*time.Second, func() bool { return carried(0) == crowded }, "it has landed")
}

// panicking is a hook of the go-redis client that panics.
type panicking struct{ pipelines }

func (*panicking) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("a hook") }
}

func TestAHookThatPanicsInTheCallersGoroutineLeavesTheLaneFree(t *testing.T) {
	for name, prompt := range map[string]bool{"nothing can end the call": false, "go-redis respects deadlines": true} {
		t.Run(name, func(t *testing.T) {
			r, _ := faulty(t)
			if prompt {
				r, _ = brisk(t)
			}
			l := &r.wire.lanes
			free := func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.aloft.Load() == 0
			}
			redistest.Eventually(t, 10*time.Second, free, "all lanes are free")
			r.wire.rdb.AddHook(&panicking{})
			require.Panics(t, func() { _, _ = r.wire.state(context.Background(), r.keys, once) })
			require.True(t, free())
		})
	}
}

// panicOnce is a hook of the go-redis client that panics when it is armed and sees that script.
type panicOnce struct {
	pipelines
	script   atomic.Pointer[script]
	after    bool         // when Redis has run it
	releases atomic.Int64 // that were answered
}

func (p *panicOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s := p.script.Load(); s != nil && len(cmd.Args()) > 1 && (cmd.Args()[1] == s.sha || cmd.Args()[1] == s.source) {
			p.script.Store(nil)
			if p.after {
				_ = next(ctx, cmd)
			}
			panic("a hook")
		}
		err := next(ctx, cmd)
		if len(cmd.Args()) > 1 && cmd.Args()[1] == releaseScript.sha && err == nil {
			p.releases.Add(1)
		}
		return err
	}
}

func TestAHookThatPanicsInTheCallersGoroutineKeepsNoLock(t *testing.T) {
	for _, c := range []struct {
		name   string
		option Option
		after  bool
	}{
		{"before it is sent", WithTTL(DefaultTTL), false},
		{"before it is sent, with the local pass", WithLocalPass(0, 0), false},
		{"when Redis has run it", WithTTL(DefaultTTL), true},
		{"when Redis has run it, with the local pass", WithLocalPass(0, 0), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			rdb := r.server.Client()
			hook := &panicOnce{after: c.after}
			rdb.AddHook(hook)
			client, err := New(rdb, c.option)
			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close()) }()
			l := client.NewLock(t.Name())
			ctx := WithHolder(context.Background(), NewHolder()) // which nothing can end: so the caller sends its command itself
			enter := func() context.Context {
				t.Helper()
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				t.Cleanup(cancel)
				section, err := l.Lock(ctx)
				require.NoError(t, err)
				return section
			}
			require.NoError(t, l.Unlock(enter())) // there is a connection

			hook.script.Store(acquireScript)
			require.Panics(t, func() { _, _ = l.Lock(ctx) })
			section := enter()
			hook.script.Store(acquireScript)
			before := hook.releases.Load()
			require.Panics(t, func() { _, _ = l.Lock(context.WithoutCancel(section)) }, "a nested entry")
			redistest.Eventually(t, 10*time.Second, func() bool {
				s, err := l.State(ctx)
				return err == nil && s.Count == 1 && hook.releases.Load() > before
			}, "Redis counts one entry, and was told so")
			hook.script.Store(releaseScript)
			require.Panics(t, func() { _ = l.Unlock(section) })
			require.ErrorIs(t, l.Unlock(section), ErrNotHeld)
			require.NoError(t, l.Unlock(enter()))
			redistest.Eventually(t, 10*time.Second, func() bool { return !r.exists(l.keys.base) && !r.exists(l.keys.queue) }, "nothing is left")
		})
	}
}

func (r *rig) exists(key string) bool {
	r.Helper()
	n, err := r.rdb.Exists(r.Context(), key).Result()
	require.NoError(r, err)
	return n > 0
}

// brisk is a rig whose next command is sent by its caller.
func brisk(t *testing.T) (*rig, *redistest.Faults) {
	t.Helper()
	r, f := faulty(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	r.enter()
	r.untilBrisk()
	return r, f
}

// untilBrisk returns when the next command is one that its caller sends. On a busy machine round trips may seem long, and a command
// that somebody else has sent frees its lane a moment after its call has returned.
func (r *rig) untilBrisk() {
	r.Helper()
	l := &r.wire.lanes
	redistest.Eventually(r, 10*time.Second, func() bool {
		_, err := r.wire.state(r.Context(), r.keys, once)
		return err == nil && l.isBrisk() && l.aloft.Load() == 0
	}, "answers come soon")
}

func TestWhereGoRedisRespectsDeadlinesACommandThatGetsNoAnswerSoonIsTriedTheOtherWay(t *testing.T) {
	r, f := brisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stall := f.Once(scripts, redistest.Stall())
	retried := 0
	r.wire.retried = func(_ *request, _, _ int, err error) {
		retried++
		require.Equal(t, unknown, judge(err), "%v", err)
		require.False(t, r.wire.lanes.isBrisk(), "the next ones take no risk")
	}
	_, err := r.wire.state(ctx, r.keys, effort{})
	require.NoError(t, err)
	require.Equal(t, 1, stall.Hits())
	require.Equal(t, 1, retried)
}

func TestWhereGoRedisRespectsDeadlinesACallStillReturnsAsSoonAsItsContextIsDone(t *testing.T) {
	r, f := brisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	stall := f.On(scripts, redistest.Stall())
	go func() {
		stall.WaitHits(t, 1)
		cancel()
	}()
	h := r.hold()
	_, a, err := r.wire.acquire(ctx, h, 1, false, 0, effort{})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, a.unsure || a.gaveUp, "it may run yet")
}

func TestACallThatIsEndedAsItAsksAgainSaysWhatRedisHasRefused(t *testing.T) {
	r, f := brisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refusal := f.On(scripts, redistest.Answer("-READONLY You can't write against a read only replica."))
	r.wire.retried = func(*request, int, int, error) { cancel() } // the next try finds it ended, and go-redis says just that
	_, err := r.wire.state(ctx, r.keys, effort{})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "READONLY")
	require.Equal(t, 1, refusal.Hits())
}

func TestADeadlineOfTheCallersOwnIsKept(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ callers, ours, want time.Duration }{
		{0, time.Second, time.Second},
		{time.Minute, time.Second, time.Second},
		{time.Second, time.Minute, time.Second},
	} {
		ctx := context.Background()
		if c.callers > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, now.Add(c.callers))
			defer cancel()
		}
		limit := &limited{Context: ctx, deadline: now.Add(c.ours)}
		deadline, ok := limit.Deadline()
		require.True(t, ok)
		require.Equal(t, c.want, deadline.Sub(now))
	}
}

func TestALimitSaysWhatHasEndedItOnceItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		callers, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, around := range []context.Context{context.Background(), callers} {
			limit := &limited{Context: around, deadline: time.Now().Add(time.Second)}
			require.NoError(t, limit.Err())
			child, cancelChild := context.WithCancel(limit) // as a hook may make one
			require.NoError(t, child.Err())
			require.NoError(t, limit.Err())
			begun := time.Now()
			<-child.Done()
			require.Equal(t, time.Second, time.Since(begun))
			require.Equal(t, errNoConnection, limit.Err())
			cancelChild()
			limit.end()
		}
		limit := &limited{Context: callers, deadline: time.Now().Add(time.Second)}
		defer limit.end()
		require.Equal(t, callers.Done(), limit.Done())
		cancel()
		require.Equal(t, context.Canceled, limit.Err())
		<-limit.Done()
		require.Equal(t, context.Canceled, limit.Err())
	})
}

// seeing is a hook that notes the context of a command when it has been sent.
type seeing struct {
	pipelines

	seen chan context.Context
}

func (s *seeing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.seen <- ctx
		return err
	}
}

func TestACommandThatNeedNotWaitForAConnectionNeedsNoTimer(t *testing.T) {
	for name, prompt := range map[string]bool{"an exit": false, "go-redis respects deadlines": true} {
		t.Run(name, func(t *testing.T) {
			hook := &seeing{seen: make(chan context.Context, 2)} // one more where the server has forgotten the script
			if prompt {
				r, _ := brisk(t)
				r.wire.rdb.AddHook(hook)
				_, err := r.wire.state(t.Context(), r.keys, once)
				require.NoError(t, err)
			} else {
				r, _ := faulty(t)
				h := r.enter()
				r.wire.rdb.AddHook(hook)
				_, _, err := r.wire.release(context.Background(), h, 0, effort{until: time.Now().Add(time.Minute)})
				require.NoError(t, err)
			}
			limit, ok := (<-hook.seen).(*limited)
			require.True(t, ok, "the command has a limit")
			require.True(t, limit.looked.Load(), "go-redis has looked whether it is over")
			require.Nil(t, limit.timed, "and has not waited for it")
		})
	}
}

// limiting is a hook that gives each command a context of its own, and believes that one when it is over.
type limiting struct {
	pipelines

	limit time.Duration
}

func (l *limiting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, cancel := context.WithTimeout(ctx, l.limit)
		defer cancel()
		err := next(ctx, cmd)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
}

func TestWhatAHookSaysOfACommandThatWasSentIsNotBelieved(t *testing.T) {
	r, f := faulty(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	h := r.enter()
	require.False(t, r.release(r.hold(), 0)) // the server has the script now
	r.untilBrisk()
	r.wire.rdb.AddHook(&limiting{limit: time.Minute})
	f.DelayOneWay(0, 4*briskLimit) // Redis runs it, and answers too late
	there, a, err := r.wire.release(context.Background(), h, 0, effort{until: time.Now().Add(5 * time.Second)})
	require.NoError(t, err)
	require.False(t, there, "the second try finds nothing")
	require.True(t, a.unsure, "but the first one may have run")
}

// hasty is a hook that gives a command, or a pipeline, less time than Redis takes for it, and says so as its context does.
type hasty struct {
	pipelines

	left atomic.Int32 // how many more
}

func (h *hasty) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && h.left.Add(-1) >= 0 {
			err = context.DeadlineExceeded
		}
		return err
	}
}

func (h *hasty) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if cmds[0].Name() == "evalsha" && h.left.Add(-1) >= 0 { // and not what sets up a connection
			err = context.DeadlineExceeded
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

func TestTheEndOfAHooksOwnContextDoesNotSayThatACommandWasNotSent(t *testing.T) {
	exit := func(t *testing.T, r *rig, h *hold) {
		t.Helper()
		there, a, err := r.wire.release(context.Background(), h, 0, effort{})
		require.NoError(t, err)
		require.False(t, there, "the second try finds nothing")
		require.True(t, a.unsure, "as the first one has run")
	}
	t.Run("sent by somebody else", func(t *testing.T) {
		r, _ := faulty(t)
		h, hook := r.enter(), &hasty{}
		require.False(t, r.release(r.hold(), 0)) // the server has the script now
		r.wire.rdb.AddHook(hook)
		hook.left.Store(1)
		exit(t, r, h)
	})
	t.Run("sent by the caller", func(t *testing.T) {
		r, _ := brisk(t)
		require.NoError(t, r.rdb.Del(t.Context(), r.keys.base).Err())
		h, hook := r.enter(), &hasty{}
		require.False(t, r.release(r.hold(), 0)) // the server has the script now
		r.wire.rdb.AddHook(hook)
		r.untilBrisk()
		hook.left.Store(1)
		exit(t, r, h)
	})
	t.Run("with WAIT", func(t *testing.T) {
		r, _ := faulty(t)
		require.True(t, r.release(r.enter(), 0))
		hook := &hasty{}
		r.wire.rdb.AddHook(hook)
		hook.left.Store(1)
		_, a, err := r.wire.acquire(t.Context(), r.hold(WithReplicaAcks(1, time.Millisecond)), 1, false, 0, once)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, a.unsure)
	})
	for name, calls := range map[string]int{"in a call for many": 2, "in a pipeline": 1} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, newRig(t), calls)
			hook := &hasty{}
			c.wire.rdb.AddHook(hook)
			var exits []func(context.Context) outcomeOf
			for i := range calls {
				exits = append(exits, c.exit(c.at(i).enter()))
			}
			hook.left.Store(1)
			for _, o := range c.together(exits...) {
				require.ErrorIs(t, o.err, context.DeadlineExceeded)
				require.True(t, o.unsure)
			}
		})
	}
}

func TestWithoutDeadlinesOfConnectionsNoCommandIsSentByItsCallerBecauseOfThem(t *testing.T) {
	for name, c := range map[string]struct {
		o    redis.Options
		want bool
	}{
		"as they come":              {redis.Options{ContextTimeoutEnabled: true}, true},
		"no timeouts but contexts'": {redis.Options{ContextTimeoutEnabled: true, ReadTimeout: -1, WriteTimeout: -1}, true},
		"none for reading":          {redis.Options{ContextTimeoutEnabled: true, ReadTimeout: -2}, false},
		"none for writing":          {redis.Options{ContextTimeoutEnabled: true, WriteTimeout: -2}, false},
		"not by context":            {redis.Options{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Addr = "127.0.0.1:1"
			rdb := redis.NewClient(&c.o)
			t.Cleanup(func() { _ = rdb.Close() })
			require.Equal(t, c.want, newTestClient(t, rdb, "me").wire.lanes.prompt)
		})
	}
}

// cutOff is a rig whose connections are gone, and that gets no new one for as long as go-redis tries.
func cutOff(t *testing.T) (*rig, *redistest.Faults, *hold) {
	t.Helper()
	r, f := faulty(t, func(o *redis.Options) { o.DialTimeout, o.ReadTimeout = 30*time.Second, 100*time.Millisecond })
	h := r.enter()
	f.Cut()
	f.Partition()
	return r, f, h
}

func TestAnExitEndsAtItsLimitWhereGoRedisGetsNoConnection(t *testing.T) {
	const limit, late = 300 * time.Millisecond, 10 * time.Second
	leave := func(r *rig, h *hold) chan error {
		done := make(chan error, 1)
		go func() {
			_, _, err := r.wire.release(context.Background(), h, 0, effort{until: time.Now().Add(limit)})
			done <- err
		}()
		return done
	}
	ends := func(t *testing.T, done chan error) {
		t.Helper()
		select {
		case err := <-done:
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, errNoConnection)
		case <-time.After(late):
			t.Fatal("it waits still")
		}
	}
	t.Run("by itself", func(t *testing.T) {
		r, f, h := cutOff(t)
		ends(t, leave(r, h))
		f.Heal()
		require.True(t, r.release(h, 0))
	})
	t.Run("under a hook with a limit of its own", func(t *testing.T) {
		r, _, h := cutOff(t)
		r.wire.rdb.AddHook(&limiting{limit: 2 * late})
		ends(t, leave(r, h))
	})
	t.Run("with others", func(t *testing.T) {
		r, f, h := cutOff(t)
		other := r.hold()
		l := &r.wire.lanes
		fillLanes(t, l)
		entered := make(chan error, 1)
		go func() {
			_, _, err := r.wire.acquire(context.Background(), other, 1, false, 0, effort{})
			entered <- err
		}()
		done := leave(r, h)
		redistest.Eventually(t, late, func() bool { return l.queued() == 2 }, "both are queued")
		landLanes(l)
		ends(t, done)
		require.Empty(t, entered, "an entry has no limit")
		f.Heal()
		require.NoError(t, <-entered)
	})
}

func TestWhereGoRedisRespectsDeadlinesACommandWaitsForNoConnectionInItsCallersGoroutine(t *testing.T) {
	r, f := brisk(t)
	f.Cut()
	f.Partition()
	r.wire.retried = func(_ *request, attempt, _ int, err error) {
		require.Equal(t, 1, attempt)
		require.ErrorIs(t, err, errNoConnection)
		require.False(t, r.wire.lanes.isBrisk(), "the next ones wait the other way")
		f.Heal()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := r.wire.state(ctx, r.keys, effort{})
	require.NoError(t, err)
	require.NotEmpty(t, s.hold)
}

func TestACallThatBeginsJustAsTheClientIsClosedIsNotCounted(t *testing.T) {
	for range 300 { // in some, the call finds out only when it has been counted
		w := newWorkers()
		begun, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			w.enter()
			close(begun)
			w.leave()
			for w.enter() {
				w.leave()
			}
		}()
		<-begun
		w.close()
		<-ended
		require.EqualValues(t, workersClosed, w.count.Load())
	}
}

func TestCloseWaitsForEveryWorkerAndLetsNoneBeginAfterIt(t *testing.T) {
	for range 200 {
		w := newWorkers()
		var running atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for w.enter() {
					running.Add(1)
					runtime.Gosched()
					running.Add(-1)
					w.leave()
				}
			})
		}
		w.start(func() { // as an Unlock that outlives the client
			for range 10 {
				w.start(runtime.Gosched)
			}
		})
		w.close()
		w.wait()
		require.Zero(t, running.Load())
		require.False(t, w.startOpen(func() { t.Error("begun after close") }))
		all.Wait()
		w.wait()
	}
}

// TestAnEntryWhoseReplyCannotBeReadLeavesNothingBehind has a hook that keeps the replies to itself.
func TestAnEntryWhoseReplyCannotBeReadLeavesNothingBehind(t *testing.T) {
	for _, wait := range []time.Duration{0, 10 * time.Second} {
		r := newRig(t)
		rdb := r.server.Client()
		rdb.AddHook(&keepsReplies{})
		c, err := New(rdb)
		require.NoError(t, err)
		_, err = c.NewLock(t.Name()).TryLockFor(t.Context(), wait)
		require.ErrorContains(t, err, "unexpected reply of script acquire: <nil>")
		redistest.Eventually(t, 10*time.Second, func() bool { return !r.exists(r.keys.base) }, "the lock is free")
		require.NoError(t, c.Close())
	}
}

// keepsReplies is a hook that loses the reply of an acquire.
type keepsReplies struct{ manyCalls }

func (h *keepsReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && len(args) > 1 && (args[1] == acquireScript.sha || args[1] == acquireScript.source) {
			cmd.(command).SetVal(nil)
		}
		return err
	}
}
