// Package group counts goroutines and calls, so that whoever has started them can wait for their
// end.
package group

import (
	"sync"
	"sync/atomic"
)

// Group counts goroutines and calls. Its zero value is open and empty. It is safe for concurrent
// use.
type Group struct {
	count atomic.Int64 // member for each that runs, and closed
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

// GoOpen runs f in a goroutine, unless the group is closed. It says whether it did.
func (g *Group) GoOpen(f func()) bool {
	if !g.Enter() {
		return false
	}
	go g.run(f)
	return true
}

func (g *Group) run(f func()) {
	defer g.Leave()
	f()
}

// Add counts one more, which calls Leave at its end.
func (g *Group) Add() { g.count.Add(member) }

// Enter is Add, unless the group is closed. It says whether it did.
func (g *Group) Enter() bool {
	if g.count.Load()&closed != 0 { // else calls on a closed group would hold up Wait
		return false
	}
	if g.count.Add(member)&closed == 0 {
		return true
	}
	g.Leave()
	return false
}

// Leave ends what Add or Enter has counted.
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

// Wait returns when nothing is left, after Close.
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
