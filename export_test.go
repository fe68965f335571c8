package relock

import (
	"sync/atomic"
	"time"
)

// WallClock is the wall clock of a client. It shows the time, and what Leap has added.
type WallClock struct {
	looks atomic.Int64
	leaps atomic.Pointer[[]leapt]
}

type leapt struct {
	at time.Time
	by time.Duration
}

// SetWallClock gives a client that was not used yet a wall clock.
func SetWallClock(c *Client) *WallClock {
	w := &WallClock{}
	w.leaps.Store(new([]leapt))
	c.table.wall = w.read
	return w
}

// read returns what the clock showed at a time: what was before a leap stays as it was.
func (w *WallClock) read(at time.Time) time.Time {
	w.looks.Add(1)
	shown := wallClock(at)
	for _, l := range *w.leaps.Load() {
		if !at.Before(l.at) {
			shown = shown.Add(l.by)
		}
	}
	return shown
}

// Leap sets the clock ahead, or back. A client on a machine that was suspended for d, with its
// monotonic clock, sees its wall clock leap by d.
func (w *WallClock) Leap(d time.Duration) {
	leaps := append([]leapt{}, *w.leaps.Load()...)
	leaps = append(leaps, leapt{time.Now(), d})
	w.leaps.Store(&leaps)
}

// Looks returns how often the clock was read.
func (w *WallClock) Looks() int { return int(w.looks.Load()) }

// Lines returns how many lines of locks, and heads of lines WithKeep, the client has.
func (c *Client) Lines() int {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	return len(c.table.lines) + len(c.table.heads)
}
