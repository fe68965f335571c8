package relock

import (
	"context"
	"iter"
	"runtime"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/sections"
)

// entry is one Lock and its Unlock. The section's context refers to its entry, and the entry does
// not refer to the section's context. So the garbage collector can report a context that is dropped
// without Unlock.
type entry struct {
	hold   *hold
	outer  *entry           // that the caller's context carried, of whichever lock
	parent lifetime.Guarded // the caller's
	ctx    context.Context  // ends with the entry
	cancel context.CancelCauseFunc

	cleanup runtime.Cleanup

	// Guarded by the table's mutex.
	older  *entry // that is open, of the same hold; nil: none
	left   bool   // Unlock was called, or the context was dropped
	worked bool   // the context had not ended when Unlock was called
}

// section is the context that Lock returns.
type section struct {
	context.Context // entry.ctx
	entry           *entry
}

type contextKey uint8

const (
	sectionKey contextKey = iota // of the section of WithSection, which the reference keeps from being reported as a leak
	stopKey                      // of the stop of WithStop
)

// entryKey is the key of the *entry around a context. A nil *entry is outside of all sections.
type entryKey = sections.Key

var _ sections.Entry = (*entry)(nil)

func (s *section) Value(key any) any {
	if key == (entryKey{}) {
		return s.entry
	}
	return s.Context.Value(key)
}

// entryOf returns the innermost entry around ctx, open or not; nil: none.
func entryOf(ctx context.Context) *entry {
	if ctx == nil {
		panic(errNilContext)
	}
	e, _ := ctx.Value(entryKey{}).(*entry)
	return e
}

// newEntry makes an entry of h and the section's context for the caller. The caller enters the
// entry with enterLocked, or cancels the entry: only an entered entry can be a leak.
func newEntry(parent context.Context, h *hold) (*entry, *section) {
	e := &entry{hold: h, outer: entryOf(parent), parent: lifetime.Guarded{Context: parent}}
	if h.isReader() && e.outer.find(e.isWriter) != nil {
		e.outlive(&e.parent)
	} else {
		e.ctx, e.cancel = context.WithCancelCause(&e.parent)
	}
	return e, &section{Context: e.ctx, entry: e}
}

// outlive makes the context of a reader inside a writer. The context ends with parent, but outlives
// the Unlock of the writer: then the reader goes on (a downgrade), with the writer's own parent.
func (e *entry) outlive(parent context.Context) {
	ctx, cancel := context.WithoutCancel(parent), func() {}
	if deadline, ok := parent.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	e.ctx, e.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(e.ctx, cancel) // stops the timer of the deadline
	e.follow(parent, e.outer)
}

// follow ends the context of e with ctx, unless ctx ends with the Unlock of a writer around e. The
// entries around ctx are outer, and the entries around outer.
func (e *entry) follow(ctx context.Context, outer *entry) {
	stop := context.AfterFunc(ctx, func() {
		w := outer.find((*entry).isEndedByUnlock)
		if w != nil && e.isWriter(w) && context.Cause(ctx) == ErrReleased { // as close sets it
			e.follow(&w.parent, w.outer)
			return
		}
		e.cancel(context.Cause(ctx))
	})
	context.AfterFunc(e.ctx, func() { stop() })
}

func (e *entry) isWriter(o *entry) bool {
	return o.hold.client == e.hold.client && o.hold.lease.Name == e.hold.lease.Name && !o.hold.isReader()
}

// close ends the section of an entry that is about to be left, as the work ends before the lock is
// free. close returns false if the entry was left before.
func (e *entry) close() bool {
	t := &e.hold.client.table
	t.mu.Lock()
	if e.left {
		t.mu.Unlock()
		return false
	}
	e.left, e.worked = true, e.ctx.Err() == nil
	t.mu.Unlock()
	e.cancel(ErrReleased)
	e.cleanup.Stop()
	return true
}

// leaked notes for the watchdog that nobody can unlock e any more. The garbage collector calls it
// on a goroutine of the runtime, and outside of every synctest bubble.
func (e *entry) leaked() {
	t := &e.hold.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if !e.left {
		e.left = true
		e.hold.dropLocked(e) // the hold goes on to count the entry
		e.hold.leaks = append(e.hold.leaks, e)
		e.hold.leaked = true
	}
}

// isOpen says whether calls inside of e are inside its lock.
func (e *entry) isOpen() bool {
	t := &e.hold.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return !e.left && e.hold.state == held
}

// openEntry returns the innermost open entry of a kind around ctx; nil: none.
func openEntry(ctx context.Context, is func(*entry) bool) *entry {
	return entryOf(ctx).find(func(e *entry) bool { return is(e) && e.isOpen() })
}

// find returns the first entry of a kind from e outwards; nil: none.
func (e *entry) find(is func(*entry) bool) *entry {
	for e != nil && !is(e) {
		e = e.outer
	}
	return e
}

// Outwards implements [sections.Entry].
func (e *entry) Outwards() iter.Seq[sections.Section] {
	return func(yield func(sections.Section) bool) {
		for at := e; at != nil; at = at.outer {
			h, t := at.hold, &at.hold.client.table
			t.mu.Lock()
			s := sections.Section{Context: at.ctx, Left: at.left, Lease: h.lease, Count: h.storeCount(), Token: h.token}
			t.mu.Unlock()
			if !yield(s) {
				return
			}
		}
	}
}

func (e *entry) isLeft() bool {
	t := &e.hold.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.left
}

// isEndedByUnlock says whether it was the Unlock of e that has ended the context of e.
func (e *entry) isEndedByUnlock() bool {
	t := &e.hold.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.left && e.worked
}

// WithSection returns a context like ctx for calls inside section, a context of Lock. WithSection
// is for callbacks and frameworks with a context of their own: the result ends when ctx ends, has
// the values of ctx, and a Lock of the section's lock enters again. When the section ends, a nested
// Lock in flight ends with the section, and everything else under ctx goes on. If section is inside
// of no section, the result is outside of all sections, too.
func WithSection(ctx, section context.Context) context.Context {
	ctx = context.WithValue(ctx, sectionKey, section)
	return context.WithValue(ctx, entryKey{}, entryOf(section))
}

// WithoutHolder returns a context like ctx for calls outside of all sections, such as the calls of
// a goroutine that is started in a section and must compete for its lock. The result still ends
// when ctx ends.
func WithoutHolder(ctx context.Context) context.Context {
	if entryOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, entryKey{}, (*entry)(nil))
}

// enterLocked adds an entry to its hold, and has a section that is dropped reported as a leak.
func (t *table) enterLocked(e *entry, s *section) {
	h := e.hold
	e.cleanup = runtime.AddCleanup(s, (*entry).leaked, e)
	e.older, h.newest = h.newest, e
	h.count++
	h.deepest = max(h.deepest, h.count)
}

func (h *hold) dropLocked(e *entry) {
	at := &h.newest
	for *at != e {
		at = &(*at).older
	}
	*at, e.older = e.older, nil
}

// isWorkedInLocked says whether anybody still works in a section of h, or has worked there until
// the Unlock that is about to take the entry out of h, or the client keeps the lock.
func (t *table) isWorkedInLocked(h *hold) bool {
	for e := h.newest; e != nil; e = e.older {
		if e.worked || e.ctx.Err() == nil {
			return true
		}
	}
	return h.kept
}

// cancelsLocked returns the functions that end the contexts of h, newest entry first.
func (h *hold) cancelsLocked() (cancels []context.CancelCauseFunc) {
	for e := h.newest; e != nil; e = e.older {
		cancels = append(cancels, e.cancel)
	}
	return cancels
}
