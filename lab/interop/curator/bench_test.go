package curator_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// BenchmarkBesideCurator lets clients take one lock by turns, each with a session of its own: relock
// in this process, and InterProcessMutex in a Java process, on one server. A client that leaves asks
// again at once, so all others wait; without others a section is a pair of Lock and Unlock. Each
// turn of the loop measures both, in alternating order. The figures are medians.
func BenchmarkBesideCurator(b *testing.B) {
	for _, waiting := range []int{0, 1, 8, 64} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			const sections, warm, length = 300, 3000, 30 * time.Second
			w := newWorld(b)
			curator := w.run(length, "-XX:+TieredCompilation", "relock.interop.Measure", strconv.Itoa(waiting+1))
			theirs := func(sections int) float64 {
				curator.send(strconv.Itoa(sections))
				ns, err := strconv.ParseFloat(curator.answer(), 64)
				require.NoError(b, err)
				return ns
			}
			var locks []*relock.Lock
			for range waiting + 1 {
				s, err := relockzk.New(w.server.Address(), relockzk.WithRoot("/relock"))
				require.NoError(b, err)
				c, err := relock.Open(s)
				require.NoError(b, err)
				b.Cleanup(func() {
					require.NoError(b, c.Close())
					require.NoError(b, s.Close())
				})
				locks = append(locks, c.NewLock("orders"))
			}
			ours := func(sections int) float64 { return perSection(b, locks, sections) }
			theirs(warm)
			ours(warm)

			var relocks, curators, ratios []float64
			for b.Loop() {
				var us, them float64
				if len(ratios)%2 == 0 {
					us = ours(sections)
					them = theirs(sections)
				} else {
					them = theirs(sections)
					us = ours(sections)
				}
				relocks, curators, ratios = append(relocks, us), append(curators, them), append(ratios, us/them)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(relocks)/1000, "relock-µs")
			b.ReportMetric(median(curators)/1000, "curator-µs")
			b.ReportMetric(median(ratios), "of-curator")
		})
	}
}

// perSection returns the mean time of a section in nanoseconds. All locks together have the given
// number of sections.
func perSection(b *testing.B, locks []*relock.Lock, sections int) float64 {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(sections))
	start := time.Now()
	var all sync.WaitGroup
	for _, l := range locks {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				section, err := l.Lock(context.Background())
				if err == nil {
					err = l.Unlock(section)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return float64(time.Since(start).Nanoseconds()) / float64(sections)
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
