// Package timers orders items by the time at which the owner has to look at them.
package timers

import (
	"iter"
	"time"
)

// Never is later than every time in a heap.
const Never = time.Duration(1<<63 - 1)

// Item is a value in at most one heap. A zero Item is in none.
type Item[T any] struct {
	Value T
	place int // index in the heap, from 1; 0: in none
}

// In reports whether the item is in a heap.
func (i *Item[T]) In() bool { return i.place > 0 }

// Heap orders items by due time, earliest first. A Heap is not safe for concurrent use.
type Heap[T any] struct{ nodes []node[T] }

// node has the due time of an item, so that a comparison reads no item.
type node[T any] struct {
	due  time.Duration
	item *Item[T]
}

// Len returns the number of items.
func (h *Heap[T]) Len() int { return len(h.nodes) }

// All yields the values of all items, in no order. The heap must not change meanwhile.
func (h *Heap[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, n := range h.nodes {
			if !yield(n.item.Value) {
				return
			}
		}
	}
}

// First returns the earliest item and its due time, or nil and Never from an empty heap.
func (h *Heap[T]) First() (*Item[T], time.Duration) {
	if len(h.nodes) == 0 {
		return nil, Never
	}
	return h.nodes[0].item, h.nodes[0].due
}

// Due returns the due time of the item, or Never if the item is in no heap.
func (h *Heap[T]) Due(i *Item[T]) time.Duration {
	if !i.In() {
		return Never
	}
	return h.nodes[i.place-1].due
}

// Set puts the item into the heap, or gives an item in the heap another due time.
func (h *Heap[T]) Set(i *Item[T], due time.Duration) {
	if !i.In() {
		h.nodes = append(h.nodes, node[T]{})
		i.place = len(h.nodes)
	}
	h.put(i.place-1, node[T]{due, i})
}

// Remove takes the item out of the heap. Nothing happens if the item is in none.
func (h *Heap[T]) Remove(i *Item[T]) {
	if !i.In() {
		return
	}
	at, last := i.place-1, len(h.nodes)-1
	moved := h.nodes[last]
	h.nodes[last] = node[T]{}
	h.nodes = h.nodes[:last]
	if i.place = 0; at < last {
		h.put(at, moved)
	}
}

// put puts n near the free place at, and moves the nodes in between by one level.
func (h *Heap[T]) put(at int, n node[T]) {
	for at > 0 && n.due < h.nodes[(at-1)/2].due {
		h.place(at, h.nodes[(at-1)/2])
		at = (at - 1) / 2
	}
	for child := 2*at + 1; child < len(h.nodes); child = 2*at + 1 {
		if child+1 < len(h.nodes) && h.nodes[child+1].due < h.nodes[child].due {
			child++
		}
		if n.due <= h.nodes[child].due {
			break
		}
		h.place(at, h.nodes[child])
		at = child
	}
	h.place(at, n)
}

func (h *Heap[T]) place(at int, n node[T]) {
	h.nodes[at] = n
	n.item.place = at + 1
}
