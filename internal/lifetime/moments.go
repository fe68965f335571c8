package lifetime

import (
	"context"
	"sync/atomic"
	"time"
)

// Moments are ends in time that many contexts share, so that one of many short calls needs no timer
// of its own. The zero value, with its fields set, is ready to use.
type Moments struct {
	Length time.Duration // a moment that a call gets is over so much later, or up to Shared more
	Shared time.Duration // calls that begin within this time get the same moment
	Cause  error         // of the end; nil: DeadlineExceeded
	last   atomic.Pointer[moment]
}

type moment struct {
	context.Context
	last   time.Time // for the begin of a call
	cancel context.CancelFunc
}

// At returns the moment of a call that begins now.
func (s *Moments) At(now time.Time) context.Context {
	m := s.last.Load()
	if m == nil || now.After(m.last) {
		m = &moment{last: now.Add(s.Shared)}
		m.Context, m.cancel = context.WithDeadlineCause(context.Background(), m.last.Add(s.Length), s.Cause)
		s.last.Store(m)
	}
	return m.Context
}

// End ends the last moment now, so that no timer is left.
func (s *Moments) End() {
	if m := s.last.Swap(nil); m != nil {
		m.cancel()
	}
}
