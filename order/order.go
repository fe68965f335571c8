// Package order finds locks that are taken in orders that could close a circle, though nobody has
// waited. A circle of waits needs two calls at an unlucky moment, and is [relock.ErrDeadlock] then;
// the orders are seen in every run:
//
//	var locks = order.Checker{Report: func(err error) { t.Error(err) }}
//
//	client, err := relock.Open(mem.New(), relock.WithHooks(locks.Hooks()))
//
// In production, Report logs. Locks are of classes, such as all accounts, and an order of two
// classes is reported once.
package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/caller"
)

// Checker sees the orders in which sections are inside of each other, in the calls of all clients
// with its hooks. A Checker is not copied after the first call of Hooks.
//
// A call that enters its own section again does not wait, and nor does TryLock. Two readers of one
// lock do not wait for each other. A call under [relock.WithoutHolder] is inside of no section.
type Checker struct {
	// Report is told of each circle, a [*CircleError], by the goroutine of the call that has closed
	// it, before the call waits; and once of [ErrFull].
	Report func(err error)
	// Class returns the class of a lock; empty: the lock is not checked. nil is [Prefix].
	Class func(name string) string
	// Less is the order of the locks of one class that are taken inside of each other. Then every
	// other order is reported. nil: two locks of one class in both orders of their names are
	// reported, so [relock.All] and calls in the order of All agree.
	Less func(outer, inner string) bool

	mu    sync.RWMutex
	pairs map[pair]*Step
	from  map[string][]pair // by the class of outer
	full  bool
}

// MaxPairs is the number of orders of two classes that a [Checker] remembers.
const MaxPairs = 10_000

// ErrFull reports more orders than [MaxPairs]. No new order is checked from then on. The names of
// the classes should come from a bounded set.
var ErrFull = errors.New("order: too many classes of locks")

// CircleError is a circle of locks: the inner class of each step is the outer class of the next
// one, and that of the last step the outer class of the first. The first step is the new one.
type CircleError struct{ Steps []Step }

// Step is a call that was about to take a lock inside of a section of another lock.
type Step struct {
	Outer, Inner           string // the locks
	OuterClass, InnerClass string
	Line                   string // of the call, as dir/file.go:12

	all bool // a call of Locks, whose order is that of the names
}

func (e *CircleError) Error() string {
	var text strings.Builder
	text.WriteString("order: locks could wait for each other in a circle")
	for _, s := range e.Steps {
		fmt.Fprintf(&text, "; %s takes %q inside of %q", s.Line, s.Inner, s.Outer)
	}
	return text.String()
}

// Prefix returns the name up to its first colon, or the whole name.
func Prefix(name string) string {
	class, _, _ := strings.Cut(name, ":")
	return class
}

// pair is an order of two classes. Two locks of one class are in the order of their names, or not.
type pair struct {
	outer, inner             string
	outerShared, innerShared bool
	down                     bool
}

// Hooks returns the hooks of the Checker, for [relock.WithHooks] and [relock.JoinHooks].
func (c *Checker) Hooks() relock.Hooks {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pairs == nil {
		c.pairs, c.from = make(map[pair]*Step), make(map[string][]pair)
	}
	if c.Class == nil {
		c.Class = Prefix
	}
	return relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
		c.started(e)
		return nil, nil
	}}
}

// started looks at a call that is about to take a lock.
func (c *Checker) started(e relock.AcquireStarted) {
	class := c.Class(e.Name)
	if class == "" {
		return
	}
	for outer := range e.Around() {
		if outer == e.Name {
			return // enters again
		}
	}
	for outer, mode := range e.Around() {
		if of := c.Class(outer); of != "" {
			down := of == class && !c.inOrder(outer, e.Name)
			c.see(pair{of, class, mode == relock.ModeShared, e.Mode == relock.ModeShared, down}, outer, e.Name)
		}
	}
}

func (c *Checker) inOrder(outer, inner string) bool {
	if c.Less != nil {
		return c.Less(outer, inner)
	}
	return outer < inner
}

// see looks at one lock inside of another. Only a new order costs more than a look into a map.
func (c *Checker) see(p pair, outer, inner string) {
	c.mu.RLock()
	ignore := c.full || c.pairs[p] != nil
	c.mu.RUnlock()
	if ignore {
		return
	}
	s, waits := Step{Outer: outer, Inner: inner, OuterClass: p.outer, InnerClass: p.inner}, true
	s.Line = caller.Line(func(function string) {
		s.all = s.all || strings.Contains(function, ".(*Locks).")
		waits = waits && !strings.HasSuffix(function, ").TryLock") && !strings.HasSuffix(function, ").TryLockIf")
	})
	if !waits {
		return
	}
	if err := c.add(p, s); err != nil {
		c.Report(err)
	}
}

// add remembers an order, and returns the circle that the order closes.
func (c *Checker) add(p pair, s Step) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.full || c.pairs[p] != nil: // another call was faster
		return nil
	case len(c.pairs) == MaxPairs:
		c.full = true
		return ErrFull
	}
	c.pairs[p] = &s
	c.from[p.outer] = append(c.from[p.outer], p)
	switch {
	case p.outer != p.inner || c.Less == nil:
		return c.circleLocked(p)
	case p.down && !(p.outerShared && p.innerShared):
		return &CircleError{[]Step{s}}
	}
	return nil
}

// meets says whether a call of one order can wait for a section of the next one.
func (p pair) meets(next pair) bool {
	return p != next && p.inner == next.outer && !(p.innerShared && next.outerShared)
}

// circleLocked returns the shortest circle through an order. The circle of two locks of one class
// is both of their orders. All alone makes no circle, as its order is that of the names.
func (c *Checker) circleLocked(first pair) error {
	oneClass := first.outer == first.inner
	before := map[pair]pair{}
	for queue := []pair{first}; len(queue) > 0; queue = queue[1:] {
		last := queue[0]
		if last.meets(first) {
			return c.errorLocked(first, last, before)
		}
		for _, next := range c.from[last.inner] {
			fits := next.outer != next.inner
			if oneClass {
				fits = next.outer == next.inner && next.down != first.down
			}
			if _, seen := before[next]; fits && !seen && last.meets(next) && next != first {
				before[next] = last
				queue = append(queue, next)
			}
		}
	}
	return nil
}

func (c *Checker) errorLocked(first, last pair, before map[pair]pair) error {
	steps, all := []Step{}, true
	for p := last; ; p = before[p] {
		steps, all = append(steps, *c.pairs[p]), all && c.pairs[p].all
		if p == first {
			break
		}
	}
	if all {
		return nil
	}
	slices.Reverse(steps)
	return &CircleError{steps}
}
