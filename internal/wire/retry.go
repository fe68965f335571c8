package wire

import (
	"math"
	"math/rand/v2"
	"time"
)

const (
	firstPause = 5 * time.Millisecond
	longPause  = 500 * time.Millisecond
)

// Pause is the time to wait after so many failed attempts: none after the first one, then 5 ms, and
// twice as much each time up to 500 ms. A random part, up to half, is left out, so that many
// callers do not return together.
func Pause(attempt int) time.Duration {
	if attempt <= 1 {
		return 0
	}
	d := min(firstPause<<min(attempt-2, 10), longPause)
	return d/2 + rand.N(d/2)
}

// wasStale reports whether an attempt was no real try, as its idle connection had ended long
// before. Over TLS, and over connections of a custom dialer, go-redis notices such an end only when
// using the connection. A restarted server leaves dozens of dead connections, so the next attempt
// needs no pause. fewest is the smallest number of idle connections so far, math.MaxInt at first.
// The number must fall each time, or else a server that ends every connection would be asked
// without an end.
func (w *Wire) wasStale(err error, fewest *int) bool {
	if !hasEnded(err) || w.cluster != nil && !w.reached.Load() { // PoolStats would wait for the map of the cluster
		return false
	}
	stats := w.rdb.PoolStats()
	idle := int(stats.IdleConns)
	if p := stats.PipelineStats; p != nil {
		idle += int(p.IdleConns)
	}
	if idle >= *fewest || idle == 0 && *fewest == math.MaxInt {
		return false
	}
	*fewest = idle
	return true
}

// troublePause is the least time between two calls of [Options.Trouble].
const troublePause = time.Second

// reportTrouble calls Options.Trouble if err means that the server may have lost data.
func (w *Wire) reportTrouble(err error) {
	if c := Code(err); !hasEnded(err) && c != "READONLY" && c != "MOVED" {
		return
	}
	now, last := int64(time.Since(w.start)), w.troubled.Load()
	if (last == 0 || now-last >= int64(troublePause)) && w.troubled.CompareAndSwap(last, max(now, 1)) {
		w.options.Trouble()
	}
}
