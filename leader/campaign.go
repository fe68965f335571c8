package leader

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
)

// Candidacy is the part of this process in the election of one leader, see [Campaign]. A Candidacy
// is safe for concurrent use.
type Candidacy struct {
	candidate candidate
	done      chan struct{}

	mu     sync.Mutex
	term   *term         // nil: this process does not lead
	change chan struct{} // closed at the next change
	err    error         // of the end
}

// term is one leadership of this process.
type term struct {
	section context.Context // ends with the term
	resign  context.CancelCauseFunc
}

// ErrResigned is the cause of a leader's context after [Candidacy.Resign].
var ErrResigned = errors.New("leader: resigned")

// Campaign makes this process a candidate in the background, until ctx ends, and returns at once.
// At most one process leads, whether it calls Campaign or [Run]. Campaign is Run for programs that
// ask whether they lead, such as a health endpoint or a scheduler: what Run says of losses, of
// outages and of what ends a candidacy holds here. The end of a candidacy is logged, unless it is
// the end of ctx or of the client, or a stop of [relock.WithStop].
//
// The leader's address is the name of [relock.WithOwner]: other processes read it by [Follow].
//
// Campaign returns no error: [Candidacy.Err] has the error of a candidacy that has ended, also of
// one that could not begin. [relock.Client.Close] waits for the candidacy.
func Campaign(ctx context.Context, lock *relock.Lock) *Candidacy {
	c := &Candidacy{candidate: newCandidate(lock), done: make(chan struct{}), change: make(chan struct{})}
	if err := check(ctx, lock); err != nil {
		c.end(err)
		return c
	}
	run := func() { c.run(ctx) }
	if !c.candidate.inside.Go(run) {
		run() // which ends at once
	}
	return c
}

func (c *Candidacy) run(ctx context.Context) {
	var err error
	defer func() { c.end(err) }() // also if the store ends the goroutine
	for hasResigned := true; hasResigned; {
		hasResigned = false
		attempts.Outlast(&err, func() error {
			return Run(ctx, c.candidate.lock, func(section context.Context) error {
				err := c.serve(section)
				hasResigned = section.Err() == nil // ErrResigned may be the end of another leader around ctx, too
				return err
			})
		})
	}
	if !c.isAsked(ctx) {
		c.candidate.inside.Log(slog.LevelError, "relock: candidacy ended", slog.String("lock", c.candidate.lock.Name()), slog.Any("error", err))
	}
}

// isAsked says whether this process wants the candidacy to end.
func (c *Candidacy) isAsked(ctx context.Context) bool {
	stoppable, cancel := c.candidate.inside.Stoppable(&lifetime.Guarded{Context: ctx})
	defer cancel()
	return stoppable.Err() != nil || c.candidate.inside.Life.Err() != nil
}

// serve leads until the section ends, or the process resigns.
func (c *Candidacy) serve(section context.Context) error {
	leading, resign := context.WithCancelCause(section)
	defer resign(nil)
	c.set(&term{leading, resign})
	<-leading.Done()
	c.set(nil)
	return context.Cause(leading)
}

func (c *Candidacy) set(t *term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term = t
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
// with the leadership: [context.Cause] is [ErrResigned], the loss of the lock, or that of any other
// section. [relock.Lock.Token], [relock.Lock.Eval] and [relock.Lock.Wanted] take the context.
func (c *Candidacy) Context() context.Context {
	c.mu.Lock()
	t := c.term
	c.mu.Unlock()
	if t == nil || t.section.Err() != nil || !c.candidate.lock.Held(t.section) {
		return nil
	}
	return t.section
}

// Changes returns a channel that is closed at the next change of IsLeader, or at the end of the
// candidacy, and stays closed from then on. Take the channel before the call of IsLeader: then no
// change is missed.
func (c *Candidacy) Changes() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.change
}

// Resign gives the leadership up, if this process leads, and goes on as a candidate behind all that
// wait already. IsLeader is false from then on. Resign does not wait for the Unlock; the context of
// the leader has ended.
func (c *Candidacy) Resign() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term != nil {
		c.term.resign(ErrResigned)
	}
}

// Done is closed when the candidacy has ended: its ctx has ended and the lock is given back, or
// [Run] would have returned an error.
func (c *Candidacy) Done() <-chan struct{} { return c.done }

// Err returns why the candidacy has ended: the error of [Run]; nil before its end.
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
