package relocketcd_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-relock/relock"
)

// lockers are the ways to lock a name. Each call makes one more locker of the name.
var lockers = []struct {
	name string
	make func(b *testing.B, c *clientv3.Client) func(name string) func() (unlock func())
}{
	{"relock", func(b *testing.B, c *clientv3.Client) func(string) func() func() {
		b.Helper()
		s := newStore(b, c)
		client, err := relock.Open(s)
		require.NoError(b, err)
		b.Cleanup(func() {
			require.NoError(b, client.Close())
			require.NoError(b, s.Close())
		})
		return func(name string) func() func() {
			lock := client.NewLock(name)
			return func() func() {
				section, err := lock.Lock(b.Context())
				require.NoError(b, err)
				return func() { require.NoError(b, lock.Unlock(section)) }
			}
		}
	}},
	{"mutex", func(b *testing.B, c *clientv3.Client) func(string) func() func() {
		b.Helper()
		return func(name string) func() func() {
			session, err := concurrency.NewSession(c, concurrency.WithTTL(30)) // one holder, as each key has the name of its session
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, session.Close()) })
			m := concurrency.NewMutex(session, "mutex/"+name)
			return func() func() {
				require.NoError(b, m.Lock(context.Background()))
				return func() { require.NoError(b, m.Unlock(context.Background())) }
			}
		}
	}},
}

// BenchmarkPair locks and unlocks a free lock.
func BenchmarkPair(b *testing.B) {
	for _, l := range lockers {
		b.Run(l.name, func(b *testing.B) {
			lock := l.make(b, connect(b))("pair")
			lock()()
			for b.Loop() {
				lock()()
			}
		})
	}
}

// BenchmarkHandOver passes a lock around a ring of holders: each one queues again behind the others.
// Each hand-over wakes one of so many waiters.
func BenchmarkHandOver(b *testing.B) {
	for _, waiting := range []int{1, 8, 64} {
		for _, l := range lockers {
			b.Run(fmt.Sprintf("waiting=%d/%s", waiting, l.name), func(b *testing.B) {
				locker := l.make(b, connect(b))
				name := fmt.Sprintf("hand-over-%d", waiting)
				turns := make(chan struct{})
				var group sync.WaitGroup
				for range waiting + 1 {
					lock := locker(name)
					group.Go(func() {
						for {
							unlock := lock()
							_, more := <-turns
							unlock()
							if !more {
								return
							}
						}
					})
				}
				time.Sleep(time.Duration(200+5*waiting) * time.Millisecond) //nolint:forbidigo // until all wait
				for b.Loop() {
					turns <- struct{}{}
				}
				close(turns)
				group.Wait()
			})
		}
	}
}
