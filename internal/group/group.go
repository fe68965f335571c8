// Package group counts goroutines and calls, so that their owner can wait for their end.
package group

import (
	"sync"
	"sync/atomic"
)

// Group counts goroutines and calls, safe for concurrent use. The zero value is open and empty.
//
// Code of others, such as a driver or a hook, may panic in a goroutine of the group, or end the
// goroutine with [runtime.Goexit]. That goroutine ends, and the process goes on.
type Group struct {
	// Panicked is told the reason of a panic, in the goroutine that ends. Panicked may be nil.
	Panicked func(reason any)

	count atomic.Int64 // member for each running goroutine or call, plus closed
	mu    sync.Mutex
	idle  sync.Cond
}

const (
	closed = 1
	member = 2
)

// Go runs f in a goroutine, also after Close.
func (g *Group) Go(f func()) {
	g.Add()
	go g.run(f)
}

// GoOpen runs f in a goroutine, and returns true, unless the group is closed.
func (g *Group) GoOpen(f func()) bool {
	if !g.Enter() {
		return false
	}
	go g.run(f)
	return true
}

func (g *Group) run(f func()) {
	defer g.Leave()
	defer func() {
		if reason := recover(); reason != nil && g.Panicked != nil {
			g.Panicked(reason)
		}
	}()
	f()
}

// Add counts one more goroutine or call. The goroutine or call ends with Leave.
func (g *Group) Add() { g.count.Add(member) }

// Enter is Add, and returns true, unless the group is closed.
func (g *Group) Enter() bool {
	if g.count.Load()&closed != 0 { // otherwise calls on a closed group would hold up Wait
		return false
	}
	if g.count.Add(member)&closed == 0 {
		return true
	}
	g.Leave()
	return false
}

// Leave takes back one Add or Enter.
func (g *Group) Leave() {
	if g.count.Add(-member) == closed {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.idle.L != nil {
			g.idle.Broadcast()
		}
	}
}

// Close lets Enter and GoOpen count no more.
func (g *Group) Close() { g.count.Or(closed) }

// Wait returns when no goroutine or call is left. Wait is for use after Close.
func (g *Group) Wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle.L == nil {
		g.idle.L = &g.mu
	}
	for g.count.Load() >= member {
		g.idle.Wait()
	}
}
