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
)

var (
	//go:embed scripts/begin.lua
	beginScript string
	//go:embed scripts/finish.lua
	finishScript string
	//go:embed scripts/abort.lua
	abortScript string
	//go:embed scripts/wake.lua
	wakeSource string

	wakeScript   = redis.NewScript(wakeSource)
	unlockedUndo = redis.NewScript(abortScript)
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

// group is the calls of this process for one record. One of them has the turn: it asks Redis, waits
// for the message, or runs.
type group struct {
	turn  chan struct{} // full while a call has the turn
	ended chan struct{} // closed when the operation is done
	end   record        // set before ended is closed

	// Guarded by Once.mu.
	calls    int
	inFlight chan struct{} // closed when the call with the turn knows of a running attempt
}

func (o *Once) join(record string) *group {
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[record]
	if g == nil {
		g = &group{turn: make(chan struct{}, 1), ended: make(chan struct{}), inFlight: make(chan struct{})}
		o.groups[record] = g
	}
	g.calls++
	return g
}

func (o *Once) leave(record string, g *group) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g.calls--; g.calls == 0 && o.groups[record] == g {
		delete(o.groups, record)
	}
}

// running tells the calls of the group that will not wait that an attempt is running, until stop.
func (o *Once) running(g *group) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(g.inFlight)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		g.inFlight = make(chan struct{})
	}
}

// inFlight returns the channel that ends the wait for the turn of a call, nil if it waits.
func (o *Once) inFlight(c *call, g *group) <-chan struct{} {
	if !c.noWait {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return g.inFlight
}

// finish gives the end of an operation to all calls of the group. Later calls ask Redis.
func (o *Once) finish(c *call, g *group, end record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.groups[c.record] == g {
		delete(o.groups, c.record)
	}
	g.end = end
	close(g.ended)
}

// do waits for the turn among the calls of this process, or for the end of the operation.
func (o *Once) do(ctx context.Context, c *call) (record, bool, error) {
	if c.lock.Held(ctx) {
		return record{}, false, fmt.Errorf("%w: once.Do of %q inside of its own attempt", relock.ErrInvalid, c.key)
	}
	g := o.join(c.record)
	defer o.leave(c.record, g)
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-g.ended:
	case <-o.inFlight(c, g):
		return record{}, false, ErrInFlight
	case <-c.over:
		return record{}, false, ErrInFlight
	case <-ctx.Done():
		return record{}, false, inFlight(ctx)
	}
	select {
	case <-g.ended:
		return c.replay(g.end)
	default:
	}
	return o.lead(ctx, c, g)
}

func inFlight(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrInFlight, context.Cause(ctx))
}

// replay returns the end of an operation, if the call is the same operation.
func (c *call) replay(end record) (record, bool, error) {
	if end.input != c.input {
		return record{}, false, ErrMismatch
	}
	return end, true, nil
}

// lead asks Redis, and runs or waits, until the operation has ended.
func (o *Once) lead(ctx context.Context, c *call, g *group) (record, bool, error) {
	heard, stop := o.news.listen(c.record)
	defer stop()
	for {
		isListening := o.news.isReady()
		section, number, interrupted, err := o.begin(ctx, c)
		var known *known
		var locked *relock.LockedError
		switch {
		case err == nil:
			defer o.running(g)()
			return o.attempt(section, c, g, number, interrupted)
		case errors.As(err, &known):
			o.finish(c, g, known.record)
			return c.replay(known.record)
		case !errors.As(err, &locked) || locked.Err != nil:
			return record{}, false, err
		case c.noWait:
			return record{}, false, ErrInFlight
		case !isListening:
			if err := o.news.await(ctx, c.over); err != nil {
				return record{}, false, err
			}
			continue
		}
		stop := o.running(g)
		end, err := c.wait(ctx, heard, locked.TTL)
		stop()
		if err != nil {
			return record{}, false, err
		}
		if end.state != "" {
			o.finish(c, g, end)
			return c.replay(end)
		}
	}
}

// shortestLook is the least time between two looks at a record.
const shortestLook = 50 * time.Millisecond

// wait waits for news of an operation, or until the lease of the attempt may have ended. The zero
// record is a reason to look again.
func (c *call) wait(ctx context.Context, heard <-chan record, lease time.Duration) (record, error) {
	timer := time.NewTimer(max(lease, shortestLook))
	defer timer.Stop()
	select {
	case end := <-heard:
		return end, nil
	case <-timer.C:
		return record{}, nil
	case <-c.over:
		return record{}, ErrInFlight
	case <-ctx.Done():
		return record{}, inFlight(ctx)
	}
}

// known is the end of an operation, found by begin.
type known struct{ record }

func (*known) Error() string { return "done" }

// begin asks Redis for the record, and begins an attempt if there is none.
func (o *Once) begin(ctx context.Context, c *call) (section context.Context, number int, interrupted bool, err error) {
	strict := ""
	if o.settings.interrupt {
		strict = "1"
	}
	section, reply, err := c.lock.TryLockIf(ctx, beginScript, []string{c.record, c.waiters},
		c.attempt, c.input, o.settings.retention.Milliseconds(), o.news.channel, strict)
	var declined *relock.DeclinedError
	if errors.As(err, &declined) {
		return nil, 0, false, c.declined(declined)
	}
	if errors.Is(err, relock.ErrUnsure) {
		o.undo(ctx, c)
	}
	if err != nil {
		return nil, 0, false, err
	}
	fields, _ := reply.([]any)
	if len(fields) != 2 {
		_ = c.lock.Unlock(section)
		return nil, 0, false, fmt.Errorf("once: unexpected reply of a script: %v", reply)
	}
	n, _ := fields[0].(int64)
	return section, int(n), fields[1] == int64(1), nil
}

// undo takes back an attempt that perhaps has begun in Redis, and whose function does not run. If
// Redis does not answer, the next attempt is told of an interrupted one.
func (o *Once) undo(ctx context.Context, c *call) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	_ = unlockedUndo.Run(ctx, o.rdb, []string{c.record}, c.attempt).Err()
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
		return fmt.Errorf("once: unexpected reply of a script: %v", d.Reply)
	}
}

// attempt runs the function, and stores its end.
func (o *Once) attempt(section context.Context, c *call, g *group, number int, interrupted bool) (record, bool, error) {
	defer func() { _ = c.lock.Unlock(section) }() // also after a panic; cleanup repeats it
	data, err := c.run(section, Attempt{Key: c.key, Number: number, Interrupted: interrupted, lock: c.lock})
	end := record{state: "done", input: c.input, result: string(data)}
	var final permanent
	switch {
	case errors.As(err, &final):
		end.state, end.result = "failed", final.Error()
	case err != nil && section.Err() != nil:
		return record{}, false, withLoss(section, err)
	case err != nil:
		if abortErr := o.abort(section, c); abortErr != nil {
			err = fmt.Errorf("%w (and the attempt counts as interrupted: %w)", err, abortErr)
		}
		return record{}, false, err
	}
	stored, storeErr := o.eval(section, c, finishScript, []string{c.record, c.waiters},
		c.attempt, number, c.input, end.state, end.result, o.settings.retention.Milliseconds())
	switch {
	case storeErr != nil:
		return record{}, false, errors.Join(err, fmt.Errorf("once: %q has run, and its end is not stored: %w", c.key, storeErr))
	case stored != int64(1):
		return record{}, false, errors.Join(err, fmt.Errorf("once: %q has run, and another attempt has begun since", c.key))
	}
	o.finish(c, g, end)
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

// abort removes the record of an attempt that has failed, frees its lock, and wakes who waits. If
// Redis does not confirm, the next attempt is told of an interrupted one.
func (o *Once) abort(section context.Context, c *call) error {
	if _, err := o.eval(section, c, abortScript, []string{c.record}, c.attempt); err != nil {
		return err
	}
	_ = c.lock.Unlock(section)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(section), storeLimit)
	defer cancel()
	_ = wakeScript.Run(ctx, o.rdb, []string{c.record, c.waiters}).Err() // who hears nothing looks when the lease is over
	return nil
}

const (
	// storeLimit bounds the time in which the end of an attempt is stored.
	storeLimit = 10 * time.Second
	storePause = 20 * time.Millisecond
	// undoLimit bounds the time in which an attempt that does not run is taken back.
	undoLimit = time.Second
)

// eval runs a script of the end of an attempt, also if the caller's context has ended, and repeats
// it until Redis answers. Our scripts are safe to repeat.
func (o *Once) eval(section context.Context, c *call, script string, keys []string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(section), storeLimit)
	defer cancel()
	for {
		reply, err := c.lock.Eval(ctx, script, keys, args...)
		if err == nil || !errors.Is(err, relock.ErrUnavailable) || ctx.Err() != nil {
			return reply, err
		}
		select {
		case <-time.After(storePause):
		case <-ctx.Done():
		}
	}
}

// parseNews reads a message of finish or wake.
func parseNews(text string) (of string, end record, ok bool) {
	parts := strings.SplitN(text, "\n", 4)
	if len(parts) != 4 {
		return "", record{}, false
	}
	return parts[0], record{input: parts[1], state: parts[2], result: parts[3]}, true
}
