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
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/caller"
)

// Checker sees the orders in which sections are inside of each other, in the calls of all clients
// with its hooks. A Checker is not copied after the first call of Hooks.
//
// A call that enters its own section again does not wait, and nor do TryLock, a wait of 0, Borrow
// and Accept. An upgrade waits. A reader waits for a reader where a writer waits between them: if
// locks of the class are locked for writing, too. A call under [relock.WithoutHolder] is inside of
// no section. One name in two clients is two locks.
//
// [relock.Lock.RunScript] and package once wait without a Lock, and no Checker sees their orders.
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

	mu      sync.RWMutex
	pairs   map[pair]*Step
	from    map[string][]pair // by the class of outer
	readers map[string][]pair // whose call reads, by the class of inner
	written map[string]string // the line of a writer, by its class
	full    bool
}

// MaxPairs is the number of orders of two classes that a [Checker] remembers, and the number of
// classes of which it remembers a writer.
const MaxPairs = 10_000

// ErrFull reports more orders than [MaxPairs]. No new order is checked from then on. The names of
// the classes should come from a bounded set.
var ErrFull = errors.New("order: too many classes of locks")

// CircleError is a circle of locks: the inner class of each step is the outer class of the next
// one, and that of the last step the outer class of the first. The first step is the new one, or
// its Writer is.
type CircleError struct{ Steps []Step }

// Step is a call that was about to take a lock inside of a section of another lock.
type Step struct {
	Outer, Inner           string // the locks
	OuterClass, InnerClass string
	Line                   string // of the call, as dir/file.go:12
	// Writer is the line of a call that locks the inner class for writing. It is set if the call of
	// this step and the section of the next one are readers, with a writer between them.
	Writer string

	all bool // a call of Locks, whose order is that of the names
}

func (e *CircleError) Error() string {
	var text strings.Builder
	text.WriteString("order: locks could wait for each other in a circle")
	for _, s := range e.Steps {
		fmt.Fprintf(&text, "; %s takes %q inside of %q", s.Line, s.Inner, s.Outer)
		if s.Writer != "" {
			fmt.Fprintf(&text, ", behind the writer of %s", s.Writer)
		}
	}
	return text.String()
}

// Prefix returns the name up to its first colon, or the whole name.
func Prefix(name string) string {
	class, _, _ := strings.Cut(name, ":")
	return class
}

// pair is an order of two classes.
type pair struct {
	outer, inner             string
	outerShared, innerShared bool
	from, to                 string // of two locks of one class: low and high, or the clients of one name
}

// The places of two locks of one class.
const low, high = "low", "high"

// Hooks returns the hooks of the Checker, for [relock.WithHooks] and [event.Join].
func (c *Checker) Hooks() event.Hooks {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pairs == nil {
		c.pairs, c.written = make(map[pair]*Step), make(map[string]string)
		c.from, c.readers = make(map[string][]pair), make(map[string][]pair)
	}
	if c.Class == nil {
		c.Class = Prefix
	}
	return event.Hooks{Trace: func(e event.AcquireStarted) (context.Context, event.TraceFinished) {
		c.started(e)
		return nil, nil
	}}
}

// started looks at a call that is about to take a lock.
func (c *Checker) started(e event.AcquireStarted) {
	class := c.Class(e.Name)
	if class == "" || !e.Waits {
		return
	}
	isShared := e.Mode == event.ModeShared
	for outer := range relock.Around(e.Context) {
		if isOf(outer, e) && (isShared || outer.Mode == e.Mode) {
			return // enters again, or reads inside of its own writer
		}
	}
	if e.Mode == event.ModeExclusive {
		c.write(class)
	}
	for outer := range relock.Around(e.Context) {
		if of := c.Class(outer.Name); of != "" && !isOf(outer, e) {
			p := pair{outer: of, inner: class, outerShared: outer.Mode == event.ModeShared, innerShared: isShared}
			if of == class {
				p.from, p.to = c.places(outer, e)
			}
			c.see(p, outer.Name, e.Name)
		}
	}
}

// isOf says whether a section is of the very lock of the call.
func isOf(s event.Section, e event.AcquireStarted) bool {
	return s.Key == e.Key && s.Client == e.Client
}

// places returns the places of two locks of one class.
func (c *Checker) places(outer event.Section, inner event.AcquireStarted) (from, to string) {
	switch {
	case outer.Name == inner.Name:
		return outer.Client, inner.Client
	case c.Less != nil && c.Less(outer.Name, inner.Name), c.Less == nil && outer.Name < inner.Name:
		return low, high
	default:
		return high, low
	}
}

// see looks at one lock inside of another. Only a new order costs more than a look into a map.
func (c *Checker) see(p pair, outer, inner string) {
	c.mu.RLock()
	ignore := c.full || c.pairs[p] != nil
	c.mu.RUnlock()
	if ignore {
		return
	}
	s := Step{Outer: outer, Inner: inner, OuterClass: p.outer, InnerClass: p.inner}
	s.Line = caller.Line(func(function string) { s.all = s.all || strings.Contains(function, ".(*Locks).") })
	if err := c.add(p, s); err != nil {
		c.Report(err)
	}
}

// write looks at a call that locks for writing. Only the first one of a class costs more than a
// look into a map.
func (c *Checker) write(class string) {
	c.mu.RLock()
	ignore := c.full || c.written[class] != "" || len(c.written) == MaxPairs
	c.mu.RUnlock()
	if ignore {
		return
	}
	for _, circle := range c.addWriter(class, cmp.Or(caller.Line(nil), "a candidate")) {
		c.Report(circle)
	}
}

// addWriter remembers a writer, and returns the circles of readers that the writer closes, each
// once.
func (c *Checker) addWriter(class, line string) (circles []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written[class] != "" || len(c.written) == MaxPairs {
		return nil
	}
	c.written[class] = line
	reported := make(map[Step]bool)
	for _, p := range c.readers[class] {
		if circle := c.closesLocked(p, true); circle != nil && !reported[circle.Steps[0]] {
			circles = append(circles, circle)
			for _, s := range circle.Steps {
				reported[s] = true
			}
		}
	}
	return circles
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
	if p.innerShared {
		c.readers[p.inner] = append(c.readers[p.inner], p)
	}
	if circle := c.closesLocked(p, false); circle != nil {
		return circle
	}
	return nil
}

// closesLocked returns the circle that an order closes. With behindWriter the order is known, and
// only its wait for a reader behind a writer is new.
func (c *Checker) closesLocked(p pair, behindWriter bool) *CircleError {
	switch {
	case c.Less == nil || p.from != low && p.from != high:
		return c.circleLocked(p, behindWriter)
	case p.from == high && c.blocksLocked(p, p) && (isBehind(p, p) || !behindWriter):
		return c.errorLocked(p, p, nil)
	}
	return nil
}

// blocksLocked says whether a call of one order can wait for a section of another one.
func (c *Checker) blocksLocked(p, next pair) bool {
	return p.inner == next.outer && (!isBehind(p, next) || c.written[p.inner] != "")
}

// isBehind says whether a call of one order waits for a section of another one only behind a
// writer.
func isBehind(p, next pair) bool { return p.innerShared && next.outerShared }

// circleLocked returns the shortest circle through an order. The circle of two locks of one class
// is both of their orders. All alone makes no circle, as its order is that of the names.
func (c *Checker) circleLocked(first pair, behindWriter bool) *CircleError {
	before := map[pair]pair{}
	for queue := []pair{first}; len(queue) > 0; queue = queue[1:] {
		last := queue[0]
		if last != first && c.blocksLocked(last, first) {
			return c.errorLocked(first, last, before)
		}
		for _, next := range c.from[last.inner] {
			fits := next.outer != next.inner
			if first.outer == first.inner {
				fits = next.from == first.to && next.to == first.from
			}
			if behindWriter && last == first {
				fits = fits && isBehind(last, next)
			}
			if _, seen := before[next]; fits && !seen && next != first && c.blocksLocked(last, next) {
				before[next] = last
				queue = append(queue, next)
			}
		}
	}
	return nil
}

func (c *Checker) errorLocked(first, last pair, before map[pair]pair) *CircleError {
	steps, all := []Step{}, true
	for p, next := last, first; ; p, next = before[p], p {
		s := *c.pairs[p]
		if isBehind(p, next) {
			s.Writer = c.written[p.inner]
		}
		steps, all = append(steps, s), all && s.all
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
