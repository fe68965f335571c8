package main

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// durations is a sample of times.
type durations []time.Duration

// sum of the sample.
func (d durations) sum() time.Duration {
	var sum time.Duration
	for _, t := range d {
		sum += t
	}
	return sum
}

// quantile is the value that a part q of the sample does not exceed.
func (d durations) quantile(q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// quantile of figures, between the two nearest.
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

// jain is the fairness index of Jain: 1 when all shares are equal, 1/n when one has all.
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

// guard watches one lock while it is measured: it counts who enters while another is inside. Its atomics order what the
// sections do also where the lock under test fails to.
type guard struct {
	inside atomic.Int64
	broken atomic.Int64
}

// enter notes that who, not 0, believes it has the lock.
func (g *guard) enter(who int64) {
	if !g.inside.CompareAndSwap(0, who) {
		g.broken.Add(1)
	}
}

// leave is to be called before the unlock.
func (g *guard) leave(who int64) {
	g.inside.CompareAndSwap(who, 0)
}
