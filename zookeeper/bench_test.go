package relockzk_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/zktest"
)

// contender locks and unlocks once.
type contender func() error

// ours returns contenders of relock, each with a client and a session of its own.
func ours(b *testing.B, server string, n int) (contenders []contender) {
	b.Helper()
	for range n {
		c, err := relock.Open(open(b, server))
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, c.Close()) })
		l := c.NewLock("ours")
		contenders = append(contenders, func() error {
			section, err := l.Lock(context.Background())
			if err != nil {
				return err
			}
			return l.Unlock(section)
		})
	}
	return contenders
}

// theirs returns contenders of zk.Lock, each with a session of its own.
func theirs(b *testing.B, server string, n int) (contenders []contender) {
	b.Helper()
	for range n {
		l := zk.NewLock(admin(b, server), "/theirs", zk.WorldACL(zk.PermAll))
		contenders = append(contenders, func() error {
			if err := l.Lock(); err != nil {
				return err
			}
			return l.Unlock()
		})
	}
	return contenders
}

// BenchmarkLock measures a pair of Lock and Unlock without others, and hand-overs with so many
// others waiting, beside zk.Lock.
func BenchmarkLock(b *testing.B) {
	server := zktest.Start(b)
	for _, waiting := range []int{0, 1, 8, 64} {
		for _, peer := range []struct {
			name string
			make func(*testing.B, string, int) []contender
		}{{"relock", ours}, {"zk.Lock", theirs}} {
			b.Run(fmt.Sprintf("waiting=%d/%s", waiting, peer.name), func(b *testing.B) {
				contenders := peer.make(b, server.Address(), waiting+1)
				for _, lock := range contenders {
					require.NoError(b, lock())
				}
				rounds := make(chan struct{}, b.N)
				for range b.N {
					rounds <- struct{}{}
				}
				close(rounds)
				before := server.Requests()
				b.ResetTimer()
				var all sync.WaitGroup
				for _, lock := range contenders {
					all.Go(func() {
						for range rounds {
							if err := lock(); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
				b.ReportMetric(float64(server.Requests()-before)/float64(b.N), "packets/op")
			})
		}
	}
}
