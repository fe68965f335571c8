package relock

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
)

// Candidacy is the part of this process in the election of one leader, see [Lock.Campaign]. A
// Candidacy is safe for concurrent use.
type Candidacy struct {
	lock *Lock
	done chan struct{}

	mu     sync.Mutex
	led    *leadership   // nil: this process does not lead
	change chan struct{} // closed at the next change
	err    error         // of the end
}

type leadership struct {
	section context.Context // ends with the leadership
	resign  context.CancelCauseFunc
}

// errResigned ends a leadership by Resign.
var errResigned = errors.New("relock: resigned")

// Campaign makes this process a candidate in the background, until ctx ends, and returns at once.
// At most one process leads, whether it campaigns or calls [Lock.Lead]. Campaign is Lead for
// programs that ask whether they lead, such as a health endpoint or a scheduler: what Lead says of
// losses, of outages and of what ends a candidacy holds here. The end of a candidacy whose ctx and
// client go on is logged.
//
// The leader's address is the name of [WithOwner]: other processes read it by [Lock.Leaders].
func (l *Lock) Campaign(ctx context.Context) *Candidacy {
	c := &Candidacy{lock: l, done: make(chan struct{}), change: make(chan struct{})}
	if err := l.check(ctx); err != nil {
		c.end(err)
		return c
	}
	l.client.group.Go(func() {
		err := errResigned
		defer func() { c.end(err) }()
		err = c.run(ctx)
		guarded := lifetime.Guarded{Context: ctx}
		if guarded.Err() == nil && !errors.Is(err, ErrClosed) && !isStop(err) {
			l.client.log(l.settings.logger, slog.LevelError, "relock: candidacy ended", slog.String("lock", l.name), slog.Any("error", err))
		}
	})
	return c
}

func (c *Candidacy) run(ctx context.Context) error {
	err := errResigned
	for errors.Is(err, errResigned) {
		attempts.Outlast(&err, func() error { return c.lock.Lead(ctx, c.serve) })
	}
	return err
}

// serve leads until the section ends, or the process resigns.
func (c *Candidacy) serve(section context.Context) error {
	leading, resign := context.WithCancelCause(section)
	defer resign(nil)
	c.set(&leadership{leading, resign})
	<-leading.Done()
	c.set(nil)
	return context.Cause(leading)
}

func (c *Candidacy) set(led *leadership) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.led = led
	close(c.change)
	c.change = make(chan struct{})
}

// end ends the candidacy. The last channel of Changes stays closed.
func (c *Candidacy) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	close(c.change)
	close(c.done)
}

// IsLeader says whether this process leads: it has the lock, and its lease is not over. IsLeader is
// local. No other process leads while IsLeader is true, on the conditions of every section: a
// process that stands still behind the answer needs a fencing token.
func (c *Candidacy) IsLeader() bool { return c.Context() != nil }

// Context returns the context of the leader's section, nil if this process does not lead. It ends
// with the leadership ([context.Cause] says why), and [Lock.Token], [Lock.Eval] and [Lock.Wanted]
// take it.
func (c *Candidacy) Context() context.Context {
	c.mu.Lock()
	led := c.led
	c.mu.Unlock()
	if led == nil || led.section.Err() != nil || !c.lock.Held(led.section) {
		return nil
	}
	return led.section
}

// Changes returns a channel that is closed at the next change of IsLeader, or at the end of the
// candidacy, and stays closed from then on. Take the channel first, and then ask IsLeader, so that
// no change is missed.
func (c *Candidacy) Changes() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.change
}

// Resign gives the leadership up, if this process leads, and goes on as a candidate behind all that
// wait already. Resign does not wait for the end of the leadership, which [Candidacy.Changes]
// tells.
func (c *Candidacy) Resign() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.led != nil {
		c.led.resign(errResigned)
	}
}

// Done is closed when the candidacy has ended: its ctx has ended and the lock is given back, or
// [Lock.Lead] would have returned an error.
func (c *Candidacy) Done() <-chan struct{} { return c.done }

// Err returns why the candidacy has ended: the error of [Lock.Lead]; nil before its end.
func (c *Candidacy) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
