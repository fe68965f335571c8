package main

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// durations is a sample of times.
type durations []time.Duration

// sum adds all times.
func (d durations) sum() time.Duration {
	var sum time.Duration
	for _, t := range d {
		sum += t
	}
	return sum
}

// quantile returns the time that a part q of the sample does not exceed.
func (d durations) quantile(q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// quantile interpolates between the two nearest figures. Without figures the result is NaN.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(v))
	at := q * float64(len(sorted)-1)
	lo := int(at)
	hi := min(lo+1, len(sorted)-1)
	return sorted[lo] + (sorted[hi]-sorted[lo])*(at-float64(lo))
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// jain returns Jain's fairness index: 1 for equal shares, 1/n if a single share has all.
func jain(shares []int64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// guard watches a lock, and counts entries while another goroutine is inside. Its atomics order the
// sections even if the lock under test fails to.
type guard struct {
	inside atomic.Int64
	broken atomic.Int64
}

// enter notes that who, not 0, believes to have the lock.
func (g *guard) enter(who int64) {
	if !g.inside.CompareAndSwap(0, who) {
		g.broken.Add(1)
	}
}

// leave comes before the unlock.
func (g *guard) leave(who int64) {
	g.inside.CompareAndSwap(who, 0)
}
