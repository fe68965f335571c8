package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/once"
)

const (
	interval = 100 * time.Millisecond // a real schedule has minutes
	lease    = 500 * time.Millisecond // a real leader has the default, 30 s
	// catchUp is for how long the last tick is remembered without any leader. A later leader begins
	// with the next tick. The records of the ticks are kept for longer, so none is repeated.
	catchUp   = 30 * time.Second
	retention = time.Minute
)

// job is the work of one tick.
type job func(ctx context.Context, a once.Attempt, tick time.Time) error

// instance is one process of the service, with a schedule of one job.
type instance struct {
	name  string
	rdb   *redis.Client
	locks *relock.Client
	once  *once.Once
	job   job

	leader  *relock.Lock
	lastKey string // the last tick that is done; beside the lock, in its slot of a cluster

	leads  func(from time.Time) // is called when the instance begins to lead
	gaveUp func(err error)      // is called when the instance has lost the lead
}

func newInstance(options *redis.Options, prefix, name string) (*instance, error) {
	in := &instance{name: name, rdb: redis.NewClient(options), lastKey: prefix + "{cron:report}:last"}
	var err error
	in.locks, err = relock.New(in.rdb, relock.WithPrefix(prefix), relock.WithOwner(name), relock.WithTTL(lease))
	if err != nil {
		return nil, errors.Join(err, in.rdb.Close())
	}
	in.leader = in.locks.NewLock("cron:report")
	if in.once, err = once.New(in.locks, once.WithRetention(retention)); err != nil {
		return nil, errors.Join(err, in.close())
	}
	return in, nil
}

func (in *instance) close() error {
	if in.once != nil {
		in.once.Close()
	}
	in.locks.Close()
	return in.rdb.Close()
}

// run waits for the lead, leads, and waits again after an error, until ctx ends. Any error costs
// the lead, also one of the job: the next leader tries the same tick.
func (in *instance) run(ctx context.Context) error {
	for {
		err := in.leader.Do(ctx, in.lead)
		switch {
		case ctx.Err() != nil:
			return nil // the instance was told to stop, and err says the same
		case errors.Is(err, relock.ErrClosed) || errors.Is(err, relock.ErrInvalid):
			return fmt.Errorf("%s: %w", in.name, err)
		}
		in.gaveUp(err)
		_ = sleep(ctx, interval) // others first
	}
}

// lead does one tick after the other, for as long as the section lasts. The first tick is the one
// after the last tick that any leader has noted as done, so no tick is skipped. A leader that dies
// between a tick and its note has the next leader try the tick again, and the key of the tick keeps
// it from being repeated.
//
// A schedule whose late ticks are worthless begins with the next tick of the clock instead.
func (in *instance) lead(ctx context.Context) error {
	last, err := in.last(ctx)
	if err != nil {
		return err
	}
	in.leads(last.Add(interval))
	for {
		tick := last.Add(interval)
		if err := until(ctx, tick); err != nil {
			return err
		}
		if err := in.tick(ctx, tick); err != nil {
			return err
		}
		if err := in.note(ctx, tick); err != nil {
			return err
		}
		last = tick
	}
}

// tick does the job of one tick once, whoever asks for it. The key has the time of the tick by the
// schedule, and not the time of the call, so that all instances mean the same tick.
//
// The context ends when the lead is lost. An attempt that was cut off in this way is interrupted,
// and the next leader is told so.
func (in *instance) tick(ctx context.Context, tick time.Time) error {
	_, _, err := once.Do(ctx, in.once, fmt.Sprintf("report:%d", tick.UnixMilli()),
		func(ctx context.Context, a once.Attempt) (string, error) { return in.name, in.job(ctx, a, tick) })
	return err
}

// last returns the last tick that is done. The very first leader begins with the present.
func (in *instance) last(ctx context.Context) (time.Time, error) {
	text, err := in.rdb.Get(ctx, in.lastKey).Result()
	if err == redis.Nil { // a reply; the error of a sentinel has it inside
		now := time.Now().Truncate(interval)
		return now, in.note(ctx, now)
	}
	if err != nil {
		return time.Time{}, err
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	return time.UnixMilli(ms), err
}

// note writes the last tick that is done, only while the instance leads: a late leader would set
// the schedule back.
func (in *instance) note(ctx context.Context, tick time.Time) error {
	_, err := in.leader.Eval(ctx, "return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])",
		[]string{in.lastKey}, tick.UnixMilli(), catchUp.Milliseconds())
	return err
}

func until(ctx context.Context, at time.Time) error { return sleep(ctx, time.Until(at)) }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
