package attempts_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

var (
	errRefused = errors.New("connection refused")
	errDenied  = errors.New("permission denied")
	errCaller  = fmt.Errorf("%w: the caller goes home", context.Canceled)

	refused = store.Unavailable(errRefused)
)

// answers is an attempt that returns one error after another.
func answers(errs ...error) func() error {
	return func() error {
		err := errs[0]
		errs = errs[1:]
		return err
	}
}

func TestPausesGrowUntilAnAttemptIsAnswered(t *testing.T) {
	for name, answer := range map[string]error{"success": nil, "an error": errDenied} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pauses []time.Duration
				last := time.Now()
				err := attempts.Patiently(t.Context(), attempts.Call{}, func() error {
					pauses = append(pauses, time.Since(last)/time.Millisecond)
					if last = time.Now(); len(pauses) > 8 {
						return answer
					}
					return refused
				})
				require.Equal(t, answer, err)
				require.Equal(t, []time.Duration{0, 10, 20, 40, 80, 160, 320, 500, 500}, pauses, "in milliseconds")
			})
		})
	}
}

func TestAPauseEndsWithItsChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		time.AfterFunc(15*time.Millisecond, func() { close(done) })
		var p attempts.Pause
		require.True(t, p.Wait(done))
		start := time.Now()
		require.False(t, p.Wait(done))
		require.Equal(t, 5*time.Millisecond, time.Since(start))
	})
}

func TestADoneContextMakesNoAttempt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCaller)
	err := attempts.Patiently(ctx, attempts.Call{}, func() error { t.Error("an attempt was made"); return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, errCaller)
	require.NotErrorIs(t, err, store.ErrUnavailable)
}

func TestAnAnswerIsUnsureAfterAnAttemptThatMayHaveRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := attempts.Patiently(t.Context(), attempts.Call{}, answers(store.Unsure(refused), refused, store.ErrGone))
		require.ErrorIs(t, err, store.ErrUnsure)
		require.ErrorIs(t, err, store.ErrGone)
		require.NoError(t, attempts.Patiently(t.Context(), attempts.Call{}, answers(store.Unsure(refused), nil)))
		err = attempts.Patiently(t.Context(), attempts.Call{}, answers(refused, store.ErrGone))
		require.NotErrorIs(t, err, store.ErrUnsure)
	})
}

func TestTheEndKeepsTheLastWordOfTheStore(t *testing.T) {
	wordless := func(ctx context.Context) error {
		<-ctx.Done()
		return store.Unavailable(context.Cause(ctx))
	}
	const both = "context canceled: the caller goes home (last: connection refused)"
	for name, test := range map[string]struct {
		attempt func(ctx context.Context, n int) error
		text    string
	}{
		"in a pause": {func(context.Context, int) error { return refused }, both},
		"in an attempt that fails as ctx ends": {
			func(ctx context.Context, _ int) error { <-ctx.Done(); return refused }, both,
		},
		"in a later attempt, which has no word": {
			func(ctx context.Context, n int) error {
				if n == 1 {
					return refused
				}
				return wordless(ctx)
			}, both,
		},
		"in a later attempt of a store that is in reach again": {
			func(ctx context.Context, n int) error {
				if n == 1 {
					return refused
				}
				<-ctx.Done()
				return context.Cause(ctx)
			}, both,
		},
		"in the first attempt, which has no word": {
			func(ctx context.Context, _ int) error { return wordless(ctx) }, "context canceled: the caller goes home",
		},
	} {
		for _, unsure := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancelCause(t.Context())
					time.AfterFunc(25*time.Millisecond, func() { cancel(errCaller) })
					n := 0
					err := attempts.Patiently(ctx, attempts.Call{}, func() error {
						n++
						err := test.attempt(ctx, n)
						if unsure {
							err = store.Unsure(err)
						}
						return err
					})
					require.EqualError(t, err, test.text)
					require.ErrorIs(t, err, context.Canceled)
					require.ErrorIs(t, err, errCaller)
					require.ErrorIs(t, err, store.ErrUnavailable)
					require.Equal(t, unsure, errors.Is(err, store.ErrUnsure))
				})
			})
		}
	}
}

// reports has what a reporter was told, and when.
type reports struct {
	begun time.Time

	mu    sync.Mutex
	texts []string
}

func (r *reports) Retrying(_ string, attempt int, _ time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, fmt.Sprintf("%s: %d, %v", time.Since(r.begun), attempt, err))
}

func TestAnAttemptThatTakesASecondIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reports{begun: time.Now()}
		attempt := answers(refused, refused, nil)
		pauses := []time.Duration{1500 * time.Millisecond, 10 * time.Millisecond, 1300 * time.Millisecond} // of each attempt
		require.NoError(t, attempts.Patiently(t.Context(), attempts.Call{Report: r}, func() error {
			<-time.After(pauses[0])
			pauses = pauses[1:]
			return attempt()
		}))
		<-time.After(time.Hour)
		r.mu.Lock()
		defer r.mu.Unlock()
		require.Equal(t, []string{
			"1s: 0, no answer for 1s", "1.5s: 1, connection refused",
			"1.52s: 2, connection refused", "2.54s: 2, connection refused",
		}, r.texts)
	})
}

func TestAnAnswerCountsAlsoAfterTheEndOfTheContext(t *testing.T) {
	for name, answer := range map[string]error{"success": nil, "an error": errDenied} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			err := attempts.Patiently(ctx, attempts.Call{}, func() error { cancel(); return answer })
			require.Equal(t, answer, err)
		})
	}
}

func TestARepeatEndsWhenItsPauseReturnsFalse(t *testing.T) {
	tries := 0
	enough := func(<-chan struct{}) bool { return tries < 3 }
	err := attempts.Repeat(t.Context(), attempts.Call{}, enough, func() error { tries++; return refused })
	require.Equal(t, refused, err)
	require.Equal(t, 3, tries)
}

func TestEachCallsAFewAtATime(t *testing.T) {
	for _, test := range []struct {
		n, most int
		rounds  int
	}{{0, 4, 0}, {1, 4, 1}, {4, 4, 1}, {5, 4, 2}, {9, 4, 3}, {3, 1, 3}} {
		synctest.Test(t, func(t *testing.T) {
			var running, tooMany atomic.Int64
			start := time.Now()
			errs := attempts.Each(test.n, test.most, func(i int) error {
				if running.Add(1) > int64(test.most) {
					tooMany.Add(1)
				}
				defer running.Add(-1)
				<-time.After(time.Second)
				if i%2 == 1 {
					return errDenied
				}
				return nil
			})
			require.Equal(t, time.Duration(test.rounds)*time.Second, time.Since(start))
			require.Zero(t, tooMany.Load())
			require.Len(t, errs, test.n)
			for i, err := range errs {
				require.Equal(t, i%2 == 1, err != nil, i)
			}
		})
	}
}

func TestWatchersAreToldOfTheHoldsOfTheirClient(t *testing.T) {
	var w attempts.Watchers
	told := make(map[string][]store.ID)
	watch := func(name, client string) (stop func()) {
		return w.Add(client, func(id store.ID) { told[name] = append(told[name], id) })
	}
	w.Tell("")
	watch("a", "one")
	stop := watch("b", "one")
	watch("c", "onemore")
	w.Tell("one:1:2")
	w.Tell("onemore:1:2")
	w.Tell("two:1:2")
	w.Tell("")
	stop()
	stop()
	w.Tell("one:1:3")
	require.Equal(t, map[string][]store.ID{
		"a": {"one:1:2", "", "one:1:3"}, "b": {"one:1:2", ""}, "c": {"onemore:1:2", ""},
	}, told)
	require.Len(t, w.Of("one:1:1"), 1)
	require.Empty(t, w.Of("two:1:1"))
}

func TestAWatcherMayStopWhileItIsTold(t *testing.T) {
	var w attempts.Watchers
	var stops []func()
	for range 2 {
		stops = append(stops, w.Add("one", func(store.ID) {
			for _, stop := range stops {
				stop()
			}
		}))
	}
	w.Tell("")
	require.Empty(t, w.Of(""))
}

func TestACallWithoutAResultHasAnError(t *testing.T) {
	for name, end := range map[string]func(){"panics": func() { panic("of a driver") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			call := func(int) error { end(); return nil }
			errs := []error{attempts.Apart(func() error { return call(0) })}
			done := make(chan struct{})
			go func() { // as the call may end this goroutine
				defer close(done)
				errs = append(errs, attempts.Each(3, 3, call)...)
			}()
			<-done
			for _, err := range errs {
				require.ErrorIs(t, err, attempts.ErrEnded)
				require.ErrorIs(t, err, store.ErrUnsure)
			}
		})
	}
}
