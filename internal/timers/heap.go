// Package timers is a heap of things by the time at which somebody has to look at them.
package timers

import (
	"iter"
	"time"
)

// Never is later than every time in a heap.
const Never = time.Duration(1<<63 - 1)

// Item is what stands in a heap. A zero Item is in none.
type Item[T any] struct {
	Value T
	place int // in the heap, from 1; 0: in none
}

// In says whether the item is in a heap.
func (i *Item[T]) In() bool { return i.place > 0 }

// Heap holds items by their due times, earliest first. The due times stand in the heap itself, with
// four items below each one: a search among a hundred thousand then reads few cache lines. Its zero
// value is empty. It is not safe for concurrent use.
type Heap[T any] struct{ nodes []node[T] }

type node[T any] struct {
	due  time.Duration
	item *Item[T]
}

const arity = 4

// Len is the number of items.
func (h *Heap[T]) Len() int { return len(h.nodes) }

// All is the values of all items, in no order. The heap must not change meanwhile.
func (h *Heap[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, n := range h.nodes {
			if !yield(n.item.Value) {
				return
			}
		}
	}
}

// First is the earliest item and its due time; nil and Never if there is none.
func (h *Heap[T]) First() (*Item[T], time.Duration) {
	if len(h.nodes) == 0 {
		return nil, Never
	}
	return h.nodes[0].item, h.nodes[0].due
}

// Due is when the item is due; Never if it is in no heap.
func (h *Heap[T]) Due(i *Item[T]) time.Duration {
	if i.place == 0 {
		return Never
	}
	return h.nodes[i.place-1].due
}

// Set puts the item into the heap, or moves it to another time.
func (h *Heap[T]) Set(i *Item[T], due time.Duration) {
	n := node[T]{due, i}
	if i.place == 0 {
		h.nodes = append(h.nodes, n)
		h.up(len(h.nodes)-1, n)
		return
	}
	at := i.place - 1
	if due < h.nodes[at].due {
		h.up(at, n)
	} else {
		h.down(at, n)
	}
}

// Remove takes the item out of the heap, if it is in.
func (h *Heap[T]) Remove(i *Item[T]) {
	if i.place == 0 {
		return
	}
	at, last := i.place-1, len(h.nodes)-1
	i.place = 0
	moved, due := h.nodes[last], h.nodes[at].due
	h.nodes[last] = node[T]{}
	h.nodes = h.nodes[:last]
	switch {
	case at == last:
	case moved.due < due:
		h.up(at, moved)
	default:
		h.down(at, moved)
	}
}

// up puts n at i, or nearer to the front.
func (h *Heap[T]) up(i int, n node[T]) {
	for i > 0 {
		above := (i - 1) / arity
		if h.nodes[above].due <= n.due {
			break
		}
		h.put(i, h.nodes[above])
		i = above
	}
	h.put(i, n)
}

// down puts n at i, or farther from the front.
func (h *Heap[T]) down(i int, n node[T]) {
	for {
		first := arity*i + 1
		if first >= len(h.nodes) {
			break
		}
		next := first
		for j := first + 1; j < min(first+arity, len(h.nodes)); j++ {
			if h.nodes[j].due < h.nodes[next].due {
				next = j
			}
		}
		if n.due <= h.nodes[next].due {
			break
		}
		h.put(i, h.nodes[next])
		i = next
	}
	h.put(i, n)
}

func (h *Heap[T]) put(i int, n node[T]) {
	h.nodes[i] = n
	n.item.place = i + 1
}
