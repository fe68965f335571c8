package once_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/once"
)

// What runs in each period, and who runs it?

// ledger notes the runs of periods.
type ledger struct {
	mu    sync.Mutex
	begun map[time.Time]int // runs that were not told of an earlier one, or had none
	ended map[time.Time]int
	cut   int // runs of processes that were killed
}

func newLedger() *ledger { return &ledger{begun: map[time.Time]int{}, ended: map[time.Time]int{}} }

func (l *ledger) begin(t once.Tick) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, seen := l.begun[t.Period]; !t.Interrupted || !seen { // one cut off before its function ran is interrupted, too
		l.begun[t.Period]++
	}
}

func (l *ledger) end(t once.Tick) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[t.Period]++
}

// periods returns those with a run, in order.
func (l *ledger) periods() []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Keys(l.begun), time.Time.Compare)
}

func (l *ledger) requireOnce(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for period, runs := range l.begun {
		require.Equal(t, 1, runs, "runs of %s", period)
	}
	for period, runs := range l.ended {
		require.Equal(t, 1, runs, "ends of %s", period)
	}
}

// Twenty processes have a schedule, and each but one is killed at random: it sends nothing any more, and
// another one begins. RELOCK_SOAK makes the test longer. (In fake time.)
func TestEveryPeriodHasOneRunWhileProcessesDie(t *testing.T) {
	length := 6 * time.Second
	if text := os.Getenv("RELOCK_SOAK"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		const period = 200 * time.Millisecond
		l := newLedger()
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		dead := make(chan struct{}, 20)
		work := func(p *schedule, lives bool) {
			ctx, end := context.WithCancel(ctx)
			defer end()
			kill := func() {
				p.lose() // it sends nothing any more
				end()
			}
			if !lives {
				timer := time.AfterFunc(time.Duration(rand.Int64N(int64(2*time.Second))), kill)
				defer timer.Stop()
			}
			_ = once.Every(ctx, p.once, "tick", period, func(ctx context.Context, tick once.Tick) {
				l.begin(tick)
				if !lives && rand.IntN(10) == 0 {
					kill()
					l.mu.Lock()
					l.cut++
					l.mu.Unlock()
				}
				select {
				case <-time.After(time.Duration(rand.Int64N(int64(period / 2)))):
					l.end(tick)
				case <-ctx.Done():
				}
			}, once.CatchUp(20))
			dead <- struct{}{}
			p.close()
		}
		running := 20
		for i := range running {
			go work(newSchedule(t, w, once.WithLockOptions(relock.WithTTL(time.Second))), i == 0)
		}
		for running > 0 {
			<-dead
			if ctx.Err() != nil {
				running--
				continue
			}
			go work(newSchedule(t, w, once.WithLockOptions(relock.WithTTL(time.Second))), false)
		}
		l.requireOnce(t)
		seen, missed := l.periods(), 0
		for i := 1; i < len(seen); i++ {
			missed += int(seen[i].Sub(seen[i-1])/period) - 1
		}
		t.Logf("%d periods had a run, of which %d were cut off", len(seen), l.cut)
		require.Zero(t, missed)
		require.Greater(t, len(seen), 2)
	})
}

func TestEveryRefusesAWrongSchedule(t *testing.T) {
	p := newRig(t).process()
	nothing := func(context.Context, once.Tick) {}
	for text, call := range map[string]func() error{
		"a period is whole milliseconds": func() error { return once.Every(t.Context(), p.Once, "a", 1500*time.Microsecond, nothing) },
		"of 10ms at least":               func() error { return once.Every(t.Context(), p.Once, "a", time.Millisecond, nothing) },
		"from 0 to 1000 periods":         func() error { return once.Every(t.Context(), p.Once, "a", time.Second, nothing, once.CatchUp(-1)) },
		"a key has 1 to 1024 bytes":      func() error { return once.Every(t.Context(), p.Once, "", time.Second, nothing) },
		"a Once and a function":          func() error { return once.Every(t.Context(), p.Once, "a", time.Second, nil) },
		"needs a context":                func() error { return once.Every(nil, p.Once, "a", time.Second, nothing) }, //lint:ignore SA1012 the mistake
		"a period is at most 2": func() error {
			return once.Every(t.Context(), p.Once, "a", 3000*time.Hour, nothing, once.CatchUp(1000))
		},
	} {
		err := call()
		require.ErrorIs(t, err, relock.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	require.NoError(t, p.locks.Close())
	require.ErrorIs(t, once.Every(t.Context(), p.Once, "a", time.Second, nothing), relock.ErrClosed)
}

// An interrupted run is run again, and is told so; not with FailIfInterrupted.
func TestAnInterruptedPeriodIsRunAgain(t *testing.T) {
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("strict %v", strict), func(t *testing.T) {
			var options []once.Option
			if strict {
				options = append(options, once.FailIfInterrupted())
			}
			p := newRig(t).process(options...)
			const period = time.Hour
			require.Panics(t, func() {
				_ = once.Every(t.Context(), p.Once, "a", period, func(context.Context, once.Tick) { panic("broken") })
			})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			var ticks []once.Tick
			_ = once.Every(ctx, p.Once, "a", period, func(_ context.Context, tick once.Tick) { ticks = append(ticks, tick) })
			if strict {
				require.Empty(t, ticks)
				return
			}
			require.Len(t, ticks, 1)
			require.True(t, ticks[0].Interrupted)
			require.Equal(t, 2, ticks[0].Number)
			require.Zero(t, ticks[0].Period.Minute())
		})
	}
}
