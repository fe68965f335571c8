package relockotel

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/go-relock/relock/event"
)

// calls finds the section for which a call has waited, in this process. A lock is known while a
// call asks for it, or has it. Locks of one name count as one lock.
type calls struct {
	mu    sync.Mutex
	locks map[string]*lockCalls
}

// lockCalls is the calls for one lock.
type lockCalls struct {
	n    int      // in flight, or with an open section
	last *section // that began last; nil: none
}

// started counts a call.
func (s *calls) started(name string) *lockCalls {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[name]
	if l == nil {
		l = &lockCalls{}
		if s.locks == nil {
			s.locks = make(map[string]*lockCalls)
		}
		s.locks[name] = l
	}
	l.n++
	return l
}

// before returns the span of the section that had the lock last while a call waited for the lock,
// or was refused.
func (s *calls) before(l *lockCalls, e event.AcquireFinished) trace.SpanContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := l.last
	refused := e.Waited || e.Owner != ""
	if refused && last != nil && last.holder != e.Holder && (last.ended.IsZero() || !last.ended.Before(e.Start)) {
		return last.span.SpanContext()
	}
	return trace.SpanContext{}
}

// left notes that a call has returned without a new section.
func (s *calls) left(l *lockCalls, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leftLocked(l, name)
}

// leftLocked forgets a lock with its last call.
func (s *calls) leftLocked(l *lockCalls, name string) {
	if l.n--; l.n == 0 && s.locks[name] == l {
		delete(s.locks, name)
	}
}

// entered notes the section of a call.
func (s *calls) entered(c *call, begun section) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.section = begun
	c.lock.last = &c.section
}

// ended notes the end of a section.
func (s *calls) ended(c *call, name string, held time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.section.ended = c.section.begun.Add(held)
	s.leftLocked(c.lock, name)
}

// reset forgets all locks, after ends of sections were dropped.
func (s *calls) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.locks)
}
