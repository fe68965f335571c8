package once

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
)

//go:embed scripts/every.lua
var everyScript string

// Tick is one run of the function of [Every].
type Tick struct {
	Period  time.Time // the begin of the period, by the clock of Redis
	Attempt           // Interrupted: another process began the run of this period, and died
}

// EveryOption is a setting of a call of [Every].
type EveryOption func(*schedule)

// CatchUp makes [Every] run up to n of the latest periods that passed without a run, oldest first,
// before the present one. Periods before the first call of Every with this name are not missed. The
// default is 0: missed periods are skipped. n is at most 1,000. Redis forgets a schedule that
// nobody has called for 100 periods (n+2, if that is more) and for the time of [WithRetention]; the
// next call is a first call again.
func CatchUp(n int) EveryOption {
	return func(s *schedule) {
		if n < 0 || n > 1000 {
			s.err = fmt.Errorf("%w: CatchUp(%d): must be from 0 to 1000 periods", relock.ErrInvalid, n)
		}
		s.catchUp = int64(n)
	}
}

// keptPeriods is for how many periods a schedule is kept that nobody calls.
const keptPeriods = 100

// schedule is one call of Every.
type schedule struct {
	once    *Once
	name    string
	period  time.Duration
	fn      func(context.Context, Tick)
	catchUp int64
	err     error
	clock   *call // that nobody makes: its lock is free, and stands beside the key of the first period
}

// Every runs fn in each period, once over all processes that call Every with the same name and
// period, until ctx ends. Whoever comes first runs it, and the others wait for the end. Periods are
// counted by the clock of Redis from the Unix epoch: a period of 24 hours begins at midnight UTC.
// The clocks of the processes do not matter.
//
// fn reports its errors by itself: the period is over when fn returns. If the process dies before,
// or loses its lock, or fn panics, another process runs the period again after one TTL, and is told
// by [Attempt.Interrupted]; with [FailIfInterrupted] nobody does. fn gets a context as the function
// of [Do] does.
//
// Periods that pass while the processes wait for such an end, or for a run that takes longer than a
// period, are missed, see [CatchUp]. A process that begins meanwhile runs the present period beside
// the one that goes on.
//
// period is whole milliseconds, of 10 ms at least. The records of two periods, and of those that
// may be caught up, are kept, or those of [WithRetention] if that is longer. Every process needs a
// Redis command a period for the time, and one for the record.
//
// Every goes on while Redis or a replica is away ([relock.ErrUnavailable],
// [relock.ErrNotReplicated]), and says so as [relock.Lock.Lock] does; and after the loss of a lock.
// Errors: the end of ctx; the stop of [relock.WithStop], between two runs; [relock.ErrClosed];
// [relock.ErrInvalid]; [ErrMismatch], if [Do] has used a key of Every; an error of Redis that
// asking again would not change.
func Every(ctx context.Context, o *Once, name string, period time.Duration, fn func(ctx context.Context, t Tick), options ...EveryOption) error {
	s := &schedule{once: o, name: name, period: period, fn: fn}
	for _, option := range options {
		option(s)
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	inside := s.clock.lock.Internal()
	stopped, cancel := inside.Stoppable(ctx)
	defer cancel()
	pause, failures, since := attempts.Pause{}, 0, time.Now()
	for ctx.Err() == nil {
		rest, err := s.round(ctx)
		if err == nil {
			pause, failures, since = attempts.Pause{}, 0, time.Now()
			lifetime.Sleep(stopped.Done(), rest)
			continue
		}
		if passes(err) && stopped.Err() == nil {
			failures++
			inside.Claim.Report.Retrying("every", failures, since, err)
			pause.Wait(stopped.Done())
			err = s.waitForRedis(ctx)
		}
		lasts := !passes(err) || stopped.Err() != nil // whatever the error of the stop is
		if err != nil && ctx.Err() == nil && lasts {
			return err
		}
	}
	return lifetime.Ended(ctx)
}

// passes says whether a schedule goes on after an error: another process, or the next round, runs
// the period. A full queue is that of the processes that come back after an outage.
func passes(err error) bool {
	return attempts.Passes(err) || errors.Is(err, relock.ErrLockLost) || errors.Is(err, relock.ErrQueueFull)
}

// waitForRedis leaves the wait, and the words about it, to a lock that nobody wants.
func (s *schedule) waitForRedis(ctx context.Context) error {
	section, err := s.clock.lock.Lock(ctx)
	if err == nil {
		_ = s.clock.lock.Unlock(section)
	}
	return err
}

func (s *schedule) check(ctx context.Context) error {
	if s.err != nil {
		return s.err
	}
	switch longest := math.MaxInt64 / time.Duration(max(s.catchUp+2, keptPeriods)); {
	case ctx == nil || s.once == nil || s.fn == nil:
		return fmt.Errorf("%w: once.Every needs a context, a Once and a function", relock.ErrInvalid)
	case s.period > longest:
		return fmt.Errorf("%w: once.Every(%s): with CatchUp(%d) a period is at most %s", relock.ErrInvalid, s.period, s.catchUp, longest)
	case s.period < 10*time.Millisecond || s.period%time.Millisecond != 0:
		return fmt.Errorf("%w: once.Every(%s): a period is whole milliseconds, of 10ms at least", relock.ErrInvalid, s.period)
	}
	_, err := s.once.newCall(s.name, nil)
	if err == nil {
		s.clock, err = s.once.newCall(s.key(), nil)
	}
	return err
}

// key is of a schedule: one name may have several.
func (s *schedule) key() string { return s.name + "@" + s.period.String() }

// round runs the present period, and those before it that are to be caught up, unless they are
// over. rest is the time until the next period.
func (s *schedule) round(ctx context.Context) (rest time.Duration, err error) {
	asked := time.Now()
	present, in, first, err := s.now(ctx)
	if err != nil {
		return 0, err
	}
	for number := max(first, present-s.catchUp); number <= present; number++ {
		if err := s.run(ctx, number); err != nil && !errors.Is(err, ErrInterrupted) {
			return 0, err
		}
	}
	return s.period - in - time.Since(asked), nil
}

// run runs a period, or waits for the end of its run.
func (s *schedule) run(ctx context.Context, number int64) error {
	c, err := s.once.newCall(s.key()+"#"+strconv.FormatInt(number, 10), nil)
	if err != nil {
		return err
	}
	c.retention = s.keep(s.catchUp + 2)
	_, _, err = do(ctx, s.once, c, func(ctx context.Context, a Attempt) (none struct{}, _ error) {
		s.fn(ctx, Tick{Period: time.UnixMilli(number * s.period.Milliseconds()), Attempt: a})
		return none, nil
	})
	return err
}

// keep returns how long Redis keeps what is about so many periods.
func (s *schedule) keep(periods int64) time.Duration {
	return max(s.once.settings.retention, time.Duration(periods)*s.period)
}

// now returns the number of the present period, the time since its begin, and the number of the
// first one that was asked for.
func (s *schedule) now(ctx context.Context) (present int64, in time.Duration, first int64, err error) {
	keep := int64(0)
	if s.catchUp > 0 {
		keep = s.keep(max(s.catchUp+2, keptPeriods)).Milliseconds()
	}
	reply, err := s.clock.lock.RunScript(ctx, everyScript, []string{s.clock.record + ":first"}, s.period.Milliseconds(), keep)
	if err != nil {
		return 0, 0, 0, err
	}
	fields, _ := reply.([]any)
	if len(fields) != 3 {
		return 0, 0, 0, fmt.Errorf("once: unexpected reply of a script: %v", reply)
	}
	present, _ = fields[0].(int64)
	ms, _ := fields[1].(int64)
	first, _ = fields[2].(int64)
	if keep == 0 {
		first = present
	}
	return present, time.Duration(ms) * time.Millisecond, first, nil
}
