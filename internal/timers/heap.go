// Package timers orders items by the time at which the owner has to look at them.
package timers

import (
	"container/heap"
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
type Heap[T any] struct{ nodes nodes[T] }

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
		h.nodes = append(h.nodes, node[T]{item: i}) // no heap.Push: a node in an any allocates
		i.place = len(h.nodes)
	}
	h.nodes[i.place-1].due = due
	heap.Fix(&h.nodes, i.place-1)
}

// Remove takes the item out of the heap. Nothing happens if the item is in none.
func (h *Heap[T]) Remove(i *Item[T]) {
	if i.In() {
		heap.Remove(&h.nodes, i.place-1)
	}
}

// nodes implements heap.Interface. Nodes have the due times, so that a comparison reads no item.
type nodes[T any] []node[T]

type node[T any] struct {
	due  time.Duration
	item *Item[T]
}

func (n nodes[T]) Len() int           { return len(n) }
func (n nodes[T]) Less(i, j int) bool { return n[i].due < n[j].due }
func (n nodes[T]) Swap(i, j int) {
	n[i], n[j] = n[j], n[i]
	n[i].item.place, n[j].item.place = i+1, j+1
}

func (n nodes[T]) Push(any) {} // unused

func (n *nodes[T]) Pop() any {
	last := len(*n) - 1
	(*n)[last].item.place = 0
	(*n)[last] = node[T]{}
	*n = (*n)[:last]
	return nil
}
