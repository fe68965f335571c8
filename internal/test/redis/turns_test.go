package redis_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// The waiters of a client take turns to ask whether the owner is dead, and the queue still there. What
// happens if so?

// crowds are the waiters of two clients for the lock of a third one, in the order of the queue.
func crowds(w *stage.Embedded, owner *stage.EmbeddedPeer, each int) (waiting []*stage.Attempt, names []string) {
	w.T.Helper()
	one, other := w.NewClient(), w.NewClient()
	w.Enter(w.T.Context(), owner.NewLock("a"))
	for range each {
		for _, p := range []*stage.EmbeddedPeer{one, other} {
			waiting = append(waiting, w.Start(w.T.Context(), p.NewLock("a")))
			stage.Pass(time.Millisecond) // arrivals are in the order of the microseconds of the server
		}
	}
	return waiting, places(w)
}

// places returns the places of the queue in order.
func places(w *stage.Embedded) []string {
	w.T.Helper()
	names, err := w.Redis.ZMembers(stage.BaseKey("a") + ":queue")
	if err != nil { // there is none
		return nil
	}
	return names
}

func TestTheNextOneIsInTwoMillisecondsAfterTheLeaseOfADeadOwner(t *testing.T) {
	for _, each := range []int{1, 2, 3, 4, 5, 20} { // it was random once
		t.Run(strconv.Itoa(2*each)+" wait", func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				owner := w.NewClient()
				waiting, _ := crowds(w, owner, each)
				stage.Pass(time.Minute)
				require.NoError(t, owner.Close())
				end := time.Now().Add(w.Redis.TTL(stage.BaseKey("a")))
				waiting[0].Section()
				require.LessOrEqual(t, waiting[0].Ended.Sub(end), 2*time.Millisecond)
				for _, a := range waiting {
					a.Leave()
				}
			})
		})
	}
}

// The next owner has a short lease, and dies behind a long lease that the waiter has seen.
func TestAWaiterSleepsNoLongerBesideAFreeLockThanItsOwnTTL(t *testing.T) {
	const long, short = time.Minute, time.Second
	for _, ttl := range []time.Duration{100 * time.Millisecond, short, 5 * time.Second, long} {
		for _, takesOver := range []string{"from the queue", "from a queue that is lost"} {
			t.Run(ttl.String()+", the next owner has the lock "+takesOver, func(t *testing.T) {
				stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
					first, p := w.NewClient(relock.WithTTL(long)).NewLock("a"), w.NewClient(relock.WithTTL(ttl))
					dies := w.NewClient(relock.WithTTL(short))
					section := w.Enter(t.Context(), first)
					var waiting *stage.Attempt
					if takesOver == "from the queue" {
						next := w.Start(t.Context(), dies.NewLock("a"))
						stage.Pass(time.Millisecond)
						waiting = w.Start(t.Context(), p.NewLock("a"))
						w.Leave(section, first)
						next.Section()
					} else {
						waiting = w.Start(t.Context(), p.NewLock("a"))
						w.Redis.FlushAll()
						w.Enter(t.Context(), dies.NewLock("a"))
					}
					require.NoError(t, dies.Close())
					free := time.Now().Add(w.Redis.TTL(stage.BaseKey("a")))
					waiting.Section()
					require.Less(t, waiting.Ended.Sub(free), ttl, "the lock is free")
					waiting.Leave()
				})
			})
		}
	}
}

func TestEachWaiterOfAQueueThatIsLostHasItsPlaceAgain(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		owner := w.NewClient()
		waiting, before := crowds(w, owner, 30)
		require.Len(t, before, len(waiting))
		w.Redis.Del(stage.BaseKey("a") + ":queue")
		stage.Pass(relock.DefaultTTL * 4 / 3)
		require.Equal(t, before, places(w))
		require.NoError(t, owner.Close())
		for _, a := range waiting {
			a.Leave()
		}
	})
}

func TestARefusalNamesTheOwnerThatAnotherWaiterHasSeen(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		p, owner := w.NewClient(), w.NewClient()
		section := w.Enter(t.Context(), owner.NewLock("a"))
		var waiting []*stage.Attempt
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			waiting = append(waiting, w.Start(ctx, p.NewLock("a")))
			stage.Pass(time.Millisecond)
		}
		w.Leave(section, owner.NewLock("a"))
		next := stage.HolderOf(t, waiting[0].Section())
		stage.Pass(3 * relock.DefaultTTL)
		cancel()
		for _, a := range waiting[1:] {
			var refusal *relock.LockedError
			require.ErrorAs(t, a.Failure(), &refusal)
			require.Equal(t, next, refusal.Holder)
		}
		waiting[0].Leave()
	})
}

func TestWaitersOfALostQueueAreInAtMostALeaseLater(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		owner := w.NewClient()
		w.Enter(t.Context(), owner.NewLock("a"))
		var waiting []*stage.Attempt
		for range 2 {
			l := w.NewClient().NewLock("a")
			for range 30 {
				waiting = append(waiting, w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
					section, err := l.Lock(ctx)
					require.NoError(t, err)
					return section, l.Unlock(section)
				}))
				stage.Pass(time.Millisecond)
			}
		}
		w.Redis.FlushAll()
		lost := time.Now()
		require.NoError(t, owner.Close())
		for _, a := range waiting {
			_, err := a.Result()
			require.NoError(t, err)
			require.LessOrEqual(t, a.Ended.Sub(lost), relock.DefaultTTL*4/3)
		}
	})
}

func TestEachWaiterOfALostQueueAsksOnce(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		owner, p := w.NewClient(), w.NewClient()
		w.Enter(t.Context(), owner.NewLock("a"))
		const waiters = 30
		var waiting []*stage.Attempt
		for range waiters {
			waiting = append(waiting, w.Start(t.Context(), p.NewLock("a")))
			stage.Pass(time.Millisecond)
		}
		w.Redis.Del(stage.BaseKey("a") + ":queue")
		p.Net.Reset()
		stage.Pass(relock.DefaultTTL * 10)
		require.LessOrEqual(t, p.Net.Commands("EVALSHA"), waiters+12)
		require.NoError(t, owner.Close())
		for _, a := range waiting {
			a.Leave()
		}
	})
}

// The waiters in front were told of an owner with a long lease, and sleep for ten seconds.
func TestAWaiterKnowsThatTheNextOwnerHasAShorterLease(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		long, short := w.NewClient(relock.WithTTL(time.Hour)), w.NewClient(relock.WithTTL(time.Second))
		p := w.NewClient(relock.WithTTL(time.Second))
		section := w.Enter(t.Context(), long.NewLock("a"))
		next := w.Start(t.Context(), short.NewLock("a"))
		stage.Pass(time.Millisecond)
		first := w.Start(t.Context(), p.NewLock("a"))
		stage.Pass(time.Millisecond)
		w.Leave(section, long.NewLock("a"))
		next.Section()
		second := w.Start(t.Context(), p.NewLock("a"))
		require.NoError(t, short.Close()) // its lease ends by itself
		end := time.Now().Add(w.Redis.TTL(stage.BaseKey("a")))
		first.Section()
		require.LessOrEqual(t, first.Ended.Sub(end), time.Second, "the lock was free for longer than a TTL")
		first.Leave()
		second.Leave()
	})
}

func TestALostAnswerHidesNoLostQueue(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		owner, p := w.NewClient(), w.NewClient()
		w.Enter(t.Context(), owner.NewLock("a"))
		var waiting []*stage.Attempt
		for range 30 {
			waiting = append(waiting, w.Start(t.Context(), p.NewLock("a")))
			stage.Pass(time.Millisecond)
		}
		before := places(w)
		w.Redis.Del(stage.BaseKey("a") + ":queue")
		p.Net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		stage.Pass(relock.DefaultTTL * 10)
		require.Equal(t, before, places(w))
		require.NoError(t, owner.Close())
		for _, a := range waiting {
			a.Leave()
		}
	})
}

// The next waiters are due before the first one has its answer, which says that the queue is lost.
func TestWaitersOfALostQueueDoNotRestBehindTheAnswerThatSaysSo(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		owner, p := w.NewClient(), w.NewClient()
		w.Enter(t.Context(), owner.NewLock("a"))
		p.Net.Delay(5 * time.Millisecond)
		l := p.NewLock("a")
		var waiting []*stage.Attempt
		for range 30 {
			waiting = append(waiting, w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
				section, err := l.Lock(ctx)
				require.NoError(t, err)
				return section, l.Unlock(section)
			}))
			stage.Pass(10 * time.Millisecond)
		}
		w.Redis.FlushAll()
		lost := time.Now()
		require.NoError(t, owner.Close())
		for _, a := range waiting {
			_, err := a.Result()
			require.NoError(t, err)
			require.LessOrEqual(t, a.Ended.Sub(lost), relock.DefaultTTL+time.Second)
		}
	})
}
