// Cron runs a schedule on three instances of a service. One instance leads and does the ticks. The
// leader dies in the middle of a tick, the next one loses its lock in the middle of a tick, and the
// one after stops as in a deployment: each time another instance takes over, and every tick is done
// exactly once.
//
//   - A lock that an instance holds for as long as it lives makes it the leader.
//   - A key of the job and the time of the tick (package once) makes a tick one operation, so a
//     change of leader around a tick does not repeat it.
//   - The last tick that is done is noted beside the lock (Lock.Eval), so no tick is skipped.
//
// The command
//
//	go run ./examples/cron
//
// starts an embedded Redis; with REDIS_URL=redis://... the program uses that server. The
// schedule is in cron.go. The exit code is 1 if anything is not as it should be.
//
// The leader is not needed if a tick is cheap to try: all instances may ask for each tick, the key
// lets one of them do it, and the others pay one round trip. A leader pays off with many jobs,
// short intervals, or work that goes on between the ticks.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/once"
)

func main() { stage.Main("cron", run) }

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	defer end()
	prefix := "relock-cron:" + rand.Text()[:8] + ":"
	fmt.Fprintf(out, "Redis at %s, keys begin with %s\n", options.Addr, prefix)

	bounded, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d := &demo{out: out, start: time.Now(), told: map[int]bool{}, outbox: &outbox{}}
	err = d.tell(bounded, options, prefix)
	if ctx.Err() != nil {
		return context.Cause(ctx) // once, in place of the error of each instance
	}
	return err
}

// The numbers of the ticks in which something happens.
const (
	deadAt    = 5  // the leader dies
	lostAt    = 12 // the leader loses its lock
	stoppedAt = 18 // the leader is told to stop
	lastTick  = 22
)

// demo plays the instances and what happens to them.
type demo struct {
	out      io.Writer
	start    time.Time
	operator *instance // never leads
	outbox   *outbox
	done     context.CancelFunc

	mu   sync.Mutex
	told map[int]bool // ticks whose event has happened
}

// tell runs three instances until the last tick, and looks at what was sent.
func (d *demo) tell(ctx context.Context, options *redis.Options, prefix string) (err error) {
	if d.operator, err = newInstance(options, prefix, "operator"); err != nil {
		return err
	}
	defer d.operator.close() // the connections of a program at its end
	if err := d.operator.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis at %s: %w", options.Addr, err)
	}
	defer d.operator.rdb.Del(context.WithoutCancel(ctx), d.operator.lastKey)

	all, done := context.WithCancel(ctx)
	defer done()
	d.done = done
	names := []string{"A", "B", "C"}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = d.live(all, options, prefix, name) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return d.judge()
}

// live is the life of one instance, until it is stopped or dies.
func (d *demo) live(ctx context.Context, options *redis.Options, prefix, name string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	in, err := newInstance(options, prefix, name)
	if err != nil {
		return err
	}
	in.leads = func(from time.Time) { d.say("%s leads from tick %d", name, d.outbox.number(from)) }
	in.gaveUp = func(err error) { d.say("%s does not lead any more: %v", name, err) }
	in.job = func(ctx context.Context, a once.Attempt, tick time.Time) error {
		return d.report(ctx, in, stop, a, tick)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended) // also if the instance dies
		err = in.run(ctx)
	}()
	<-ended
	in.close() // a dead instance has closed its connections before
	return err
}

// report is the job of a tick: it takes some time, and sends a report.
//
// A report that an interrupted attempt may have sent is not sent without a look into the outbox. A
// mail server would be given the key of the attempt as the id of the message.
func (d *demo) report(ctx context.Context, in *instance, stop func(), a once.Attempt, tick time.Time) error {
	if a.Interrupted {
		wasSent := d.outbox.has(tick)
		d.say("%s is told that tick %d was interrupted, and asks: was it sent? %t", in.name, d.outbox.number(tick), wasSent)
		if wasSent {
			return nil
		}
	}
	number := d.outbox.number(tick)
	switch {
	case number == lostAt && d.first(number):
		d.say("%s loses its lock in tick %d, before the report is sent", in.name, number)
		if err := d.operator.leader.ForceUnlock(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	case number == stoppedAt && d.first(number):
		d.say("%s is told to stop in tick %d", in.name, number)
		stop()
	}
	if err := sleep(ctx, interval/4); err != nil {
		return err
	}
	switch d.outbox.send(tick, in.name); number {
	case deadAt:
		d.say("%s dies in tick %d, after the report is sent", in.name, number)
		in.rdb.Close() // nothing of the instance reaches Redis any more: it neither unlocks nor renews
		runtime.Goexit()
	case lastTick:
		d.done()
	}
	return nil
}

// first says whether the event of a tick happens for the first time.
func (d *demo) first(number int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	isFirst := !d.told[number]
	d.told[number] = true
	return isFirst
}

func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%6.3fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// judge looks for ticks that were skipped or repeated.
func (d *demo) judge() error {
	by := map[string]int{}
	for i, r := range d.outbox.sent {
		if number := d.outbox.number(r.tick); number != i+1 {
			return fmt.Errorf("report %d is of tick %d: %v", i+1, number, d.outbox.sent)
		}
		by[r.by]++
	}
	if len(d.outbox.sent) != lastTick || len(by) != 3 {
		return fmt.Errorf("%d reports of %d ticks: %v", len(d.outbox.sent), lastTick, by)
	}
	d.say("%d ticks, each done once, in order:", lastTick)
	for _, name := range slices.Sorted(maps.Keys(by)) {
		d.say("  %s did %d", name, by[name])
	}
	return nil
}

// outbox is the outside world, which no crash rolls back.
type outbox struct {
	mu    sync.Mutex
	first time.Time
	sent  []sent
}

type sent struct {
	tick time.Time
	by   string
}

func (o *outbox) send(tick time.Time, by string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, sent{tick, by})
}

func (o *outbox) has(tick time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.sent, func(s sent) bool { return s.tick.Equal(tick) })
}

// number counts the ticks from 1. The first tick that is asked for is 1.
func (o *outbox) number(tick time.Time) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first.IsZero() {
		o.first = tick
	}
	return 1 + int(tick.Sub(o.first)/interval)
}
