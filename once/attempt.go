package once

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
)

var (
	//go:embed scripts/begin.lua
	beginScript string
	//go:embed scripts/finish.lua
	finishScript string
	//go:embed scripts/abort.lua
	abortScript string
	//go:embed scripts/forget.lua
	forgetScript string
	//go:embed scripts/wake.lua
	wakeScript string

	abort = redis.NewScript(abortScript) // without a lock
	wake  = redis.NewScript(wakeScript)
)

// record is the end of an operation.
type record struct {
	state  string // done or failed
	input  string
	result string // JSON, or the text of an error; empty: not kept
}

func (r record) decode(into any) error {
	switch {
	case r.state == "failed":
		return &FailedError{Text: r.result}
	case r.result == "":
		return ErrNoResult
	}
	if err := json.Unmarshal([]byte(r.result), into); err != nil {
		return fmt.Errorf("once: the stored result is of another type: %w", err)
	}
	return nil
}

// peers are the calls of this process for one record. One call has the turn, and asks Redis, waits
// for the message, or runs.
type peers struct {
	turn  chan struct{} // full while a call has the turn
	ended chan struct{} // closed when all calls may return
	end   record        // of the operation; set before ended is closed
	err   error         // in place of end: Redis is away

	// Guarded by Once.mu.
	count    int
	inFlight chan struct{} // closed when the call with the turn knows of a running attempt
	input    string        // of the running attempt
}

func (o *Once) join(record string) *peers {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.peers[record]
	if p == nil {
		p = &peers{turn: make(chan struct{}, 1), ended: make(chan struct{}), inFlight: make(chan struct{})}
		o.peers[record] = p
	}
	p.count++
	return p
}

func (o *Once) leave(record string, p *peers) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.count--; p.count == 0 && o.peers[record] == p {
		delete(o.peers, record)
	}
}

// running tells the peers of a call that an attempt with the input of c is running, until stop.
func (o *Once) running(c *call, p *peers) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p.input = c.input
	close(p.inFlight)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		p.inFlight = make(chan struct{})
	}
}

// end lets all peers return with the end of the operation, or with an error. Later calls ask Redis.
func (o *Once) end(c *call, p *peers, end record, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.peers[c.record] == p {
		delete(o.peers, c.record)
	}
	p.end, p.err = end, err
	close(p.ended)
}

// do waits for the turn among the calls of this process, or for the end of the operation.
func (o *Once) do(ctx context.Context, c *call) (record, bool, error) {
	switch {
	case ctx.Err() != nil:
		return record{}, false, lifetime.Ended(ctx)
	case c.lock.Held(ctx):
		return record{}, false, fmt.Errorf("%w: once.Do of %q inside of its own attempt", relock.ErrInvalid, c.key)
	}
	p := o.join(c.record)
	defer o.leave(c.record, p)
	if err := o.await(ctx, c, p); err != nil {
		return record{}, false, err
	}
	select {
	case <-p.ended: // perhaps at the same time
		if p.err != nil {
			return record{}, false, p.err
		}
		return c.replay(p.end)
	default:
		defer func() { <-p.turn }()
		return o.lead(ctx, c, p)
	}
}

// await returns when the call has the turn, or the peers have ended.
func (o *Once) await(ctx context.Context, c *call, p *peers) error {
	o.mu.Lock()
	inFlight := p.inFlight
	o.mu.Unlock()
	for {
		select {
		case p.turn <- struct{}{}:
			return nil
		case <-p.ended:
			return p.err
		case <-inFlight:
			if err := o.besides(c, p); err != nil {
				return err
			}
			inFlight = nil
		case <-c.over:
			return ErrInFlight
		case <-ctx.Done():
			return inFlightUntil(ctx)
		}
	}
}

// besides returns the error of a call that does not wait for the running attempt.
func (o *Once) besides(c *call, p *peers) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case p.input != c.input:
		return ErrMismatch
	case c.noWait:
		return ErrInFlight
	default:
		return nil
	}
}

func inFlightUntil(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrInFlight, lifetime.Ended(ctx))
}

// replay returns the end of an operation, if the call is the same operation.
func (c *call) replay(end record) (record, bool, error) {
	if end.input != c.input {
		return record{}, false, ErrMismatch
	}
	return end, true, nil
}

// lead asks Redis, and runs or waits, until the operation has ended.
func (o *Once) lead(ctx context.Context, c *call, p *peers) (record, bool, error) {
	heard, stop := o.news.listen(c.record)
	defer stop()
	for {
		// Read before the question: Redis publishes the end of the operation to our channel, and a
		// message behind the answer is lost if the subscription was not there yet.
		ready := o.news.unready()
		section, number, interrupted, err := o.begin(ctx, c)
		var found *known
		var locked *relock.LockedError
		switch {
		case err == nil:
			defer o.running(c, p)() // once: the loop ends here
			return o.attempt(ctx, section, c, p, number, interrupted)
		case errors.As(err, &found):
			o.end(c, p, found.record, nil)
			return c.replay(found.record)
		case errors.Is(err, relock.ErrUnavailable) && ctx.Err() == nil:
			o.end(c, p, record{}, err) // the others would find the same, one after the other
			return record{}, false, err
		case !errors.As(err, &locked) || locked.Err != nil:
			return record{}, false, err
		case c.noWait:
			return record{}, false, ErrInFlight
		}
		stopped := o.running(c, p)
		end, err := c.wait(ctx, heard, ready, locked.TTL)
		stopped()
		if err != nil {
			return record{}, false, err
		}
		if end.state != "" {
			o.end(c, p, end, nil)
			return c.replay(end)
		}
	}
}

// shortestLook is the least time between two looks at a record.
const shortestLook = 50 * time.Millisecond

// wait waits for news of an operation, until the subscription is ready, or until the lease of the
// attempt may have ended. The zero record is a reason to look again.
func (c *call) wait(ctx context.Context, heard <-chan record, ready <-chan struct{}, lease time.Duration) (record, error) {
	timer := time.NewTimer(max(lease, shortestLook))
	defer timer.Stop()
	select {
	case end := <-heard:
		return end, nil
	case <-ready:
		return record{}, nil
	case <-timer.C:
		return record{}, nil
	case <-c.over:
		return record{}, ErrInFlight
	case <-ctx.Done():
		return record{}, inFlightUntil(ctx)
	}
}

// known is the end of an operation, found by begin.
type known struct{ record }

func (*known) Error() string { return "done" }

// begin asks Redis for the record, and begins an attempt if there is none. The section outlives
// ctx, because the function may.
func (o *Once) begin(ctx context.Context, c *call) (section context.Context, number int, interrupted bool, err error) {
	strict := ""
	if o.settings.interrupt {
		strict = "1"
	}
	asking, keep := lifetime.Outliving(ctx)
	section, reply, err := c.lock.TryLockIf(asking, beginScript, []string{c.record, c.waiters},
		c.attempt, c.input, max(c.retention, shortestNote).Milliseconds(), o.news.channel, strict)
	isInTime := keep()
	var declined *relock.DeclinedError
	if errors.As(err, &declined) {
		return nil, 0, false, c.declined(declined)
	}
	if err != nil {
		if mayHaveBegun(err) {
			o.takeBack(c)
		}
		return nil, 0, false, asOf(ctx, err)
	}
	if !isInTime { // ctx has ended since
		_, _ = o.eval(section, c, abortScript, []string{c.record}, c.attempt)
		_ = c.lock.Unlock(section)
		o.wake(c)
		return nil, 0, false, lifetime.Ended(ctx)
	}
	fields, _ := reply.([]any)
	if len(fields) != 2 {
		_ = c.lock.Unlock(section)
		return nil, 0, false, fmt.Errorf("once: unexpected reply of a script: a %T", reply)
	}
	n, _ := fields[0].(int64)
	return section, int(n), fields[1] == int64(1), nil
}

// asOf returns the error of an ask that ctx may have cancelled: after a deadline it is no
// [context.Canceled].
func asOf(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded { // Err of a context is one of two
		return overdue{err}
	}
	return err
}

type overdue struct{ error }

func (e overdue) Is(target error) bool {
	return target != context.Canceled && errors.Is(e.error, target)
}
func (e overdue) As(target any) bool { return errors.As(e.error, target) }

// mayHaveBegun says whether TryLockIf may have noted an attempt that has not got the lock.
func mayHaveBegun(err error) bool {
	isCertain := errors.Is(err, relock.ErrInvalid) || errors.As(err, new(*relock.LockedError)) ||
		errors.Is(err, relock.ErrUnavailable) && !errors.Is(err, relock.ErrUnsure)
	return !isCertain
}

// takeBack takes back an attempt whose function does not run, and which Redis may have noted. A
// command of the attempt may run late, so takeBack repeats in the background. takeBack holds up the
// call for at most takeBackWait. If Redis never answers, the next attempt is told of an interrupted
// one.
func (o *Once) takeBack(c *call) {
	first := make(chan struct{})
	begun := o.background.GoOpen(func() {
		pause := takeBackPause
		for n := range takeBackTimes {
			ctx, cancel := context.WithTimeout(o.news.life, storeLimit)
			_ = abort.Run(ctx, o.rdb, []string{c.record}, c.attempt).Err()
			cancel()
			o.wake(c)
			if n == 0 {
				close(first)
			}
			select {
			case <-time.After(pause):
				pause *= 4
			case <-o.news.life.Done():
				return
			}
		}
	})
	if begun {
		select {
		case <-first:
		case <-time.After(takeBackWait):
		}
	}
}

// declined returns the reason why there is no attempt.
func (c *call) declined(d *relock.DeclinedError) error {
	fields, _ := d.Reply.([]any)
	fields = append(fields, nil, nil, nil)
	state, _ := fields[0].(string)
	number, _ := fields[1].(int64)
	result, _ := fields[2].(string)
	switch state {
	case "mismatch":
		return ErrMismatch
	case "interrupted":
		return fmt.Errorf("%w: attempt %d of %q began and never ended", ErrInterrupted, number, c.key)
	case "done", "failed":
		return &known{record{state: state, input: c.input, result: result}}
	default:
		return fmt.Errorf("once: unexpected reply of a script: a %T", d.Reply)
	}
}

// attempt runs the function, and stores its end. The client's cleanup frees the lock if Unlock does
// not reach Redis.
func (o *Once) attempt(ctx, section context.Context, c *call, p *peers, number int, interrupted bool) (record, bool, error) {
	told := false
	work, stop := lifetime.Work(section, ctx)
	defer func() { // also after a panic
		stop()
		if err := c.lock.Unlock(section); err == nil && !told {
			o.wake(c)
		}
	}()
	data, err := c.run(work, Attempt{Key: c.key, Number: number, Interrupted: interrupted, lock: c.lock})
	end := record{state: "done", input: c.input, result: string(data)}
	switch {
	case errors.As(err, new(permanent)):
		end.state, end.result, err = "failed", err.Error(), marked{err, true}
	case errors.As(err, new(unknown)):
		return record{}, false, withLoss(section, marked{err, false})
	case err != nil && work.Err() != nil:
		return record{}, false, withLoss(section, err)
	case err != nil:
		_, abortErr := o.eval(section, c, abortScript, []string{c.record}, c.attempt)
		if abortErr != nil {
			err = fmt.Errorf("%w (and the attempt counts as interrupted: %w)", err, abortErr)
		}
		return record{}, false, err
	}
	stored, storeErr := o.eval(section, c, finishScript, []string{c.record, c.waiters},
		c.attempt, number, c.input, end.state, end.result, c.retention.Milliseconds())
	switch {
	case storeErr != nil:
		return record{}, false, errors.Join(err, fmt.Errorf("once: %q has run, and its end is not stored: %w", c.key, storeErr))
	case stored != int64(1):
		return record{}, false, errors.Join(err, fmt.Errorf("once: %q has run, and another attempt has begun since: %w", c.key, relock.ErrLockLost))
	}
	told = true
	o.end(c, p, end, nil)
	if err == nil && end.result == "" {
		err = ErrNoResult
	}
	return record{}, false, err
}

// withLoss adds the loss of the lock to the error of a function.
func withLoss(section context.Context, err error) error {
	if cause := context.Cause(section); errors.Is(cause, relock.ErrLockLost) && !errors.Is(err, relock.ErrLockLost) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// wake tells all waiters that an attempt is over, and its lock is free. A waiter without the
// message looks when the lease is over.
func (o *Once) wake(c *call) {
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	_ = wake.Run(ctx, o.rdb, []string{c.record, c.waiters}).Err()
}

const (
	// storeLimit bounds the time in which the end of an attempt is stored.
	storeLimit = 10 * time.Second

	// takeBackTimes is how often an attempt that does not run is taken back, within half a minute.
	takeBackTimes = 5
	takeBackPause = 100 * time.Millisecond
	takeBackWait  = 200 * time.Millisecond

	// shortestNote is the least time for which the note of an attempt is kept.
	shortestNote = DefaultRetention
)

// eval runs a script of the end of an attempt, even if the caller's context has ended, and repeats
// the script until Redis answers, or the storeLimit is over: [relock.ErrUnavailable]. Our scripts
// are safe to repeat.
func (o *Once) eval(section context.Context, c *call, script string, keys []string, args ...any) (reply any, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(section), storeLimit)
	defer cancel()
	err = attempts.Patiently(ctx, attempts.Call{}, func() (err error) {
		reply, err = c.lock.Eval(ctx, script, keys, args...)
		return err
	})
	return reply, err
}

// parseNews reads a message of finish or wake.
func parseNews(text string) (of string, end record, ok bool) {
	parts := strings.SplitN(text, "\n", 4)
	if len(parts) != 4 {
		return "", record{}, false
	}
	return parts[0], record{input: parts[1], state: parts[2], result: parts[3]}, true
}
