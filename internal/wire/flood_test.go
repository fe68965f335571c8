package wire

import (
	"context"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/fakeredis"
)

// Does a server that is slow for a while become quick again, whatever its callers do meanwhile?

// busy is a server in fake time that does one unit after the other.
type busy struct {
	*testing.T
	server fakeredis.Server
	wire   *Wire
	each   time.Duration // is how long a unit takes
	held   atomic.Int64  // nanoseconds for which an answer is kept back

	mu    sync.Mutex
	free  time.Time      // when all units so far are done
	units map[string]int // that have come, by script
	order []string       // the scripts
}

// newBusy makes a server, and a wire that has had an answer.
func newBusy(t *testing.T, pool int) *busy {
	t.Helper()
	b := &busy{T: t, units: make(map[string]int)}
	nameOf := make(map[string]string)
	for _, s := range []*Script{setScript, renewScript, releaseScript} {
		nameOf[s.Hash] = s.Name
	}
	b.server.Script = func(reply []byte, args [][]byte) []byte {
		b.mu.Lock()
		defer b.mu.Unlock()
		keys, _ := fakeredis.Args(args)
		name := nameOf[string(args[1])]
		b.units[name] += len(keys)
		b.order = append(b.order, name)
		if now := time.Now(); b.free.Before(now) {
			b.free = now
		}
		b.free = b.free.Add(time.Duration(len(keys)) * b.each)
		if len(keys) > 1 {
			reply = fakeredis.AppendList(reply, len(keys))
		}
		return fakeredis.AppendInts(reply, slices.Repeat([]int64{1}, len(keys))...)
	}
	rdb := b.server.Client(func(o *redis.Options) {
		dial := o.Dialer
		o.Addr, o.PoolSize, o.ReadTimeout = "127.0.0.1:6379", pool, -1 // an address that nobody looks up
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			return &busyConn{Conn: c, server: b}, err
		}
	})
	var err error
	b.wire, err = New(rdb, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { b.wire.Wait(); require.NoError(t, rdb.Close()) })
	require.NoError(t, b.call(t.Context(), setScript, 0))
	return b
}

// busyConn keeps answers until they are due.
type busyConn struct {
	net.Conn
	server *busy
	due    atomic.Pointer[time.Time] // for what was written last
}

func (c *busyConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	due := c.server.free.Add(time.Duration(c.server.held.Load()))
	c.due.Store(&due)
	return n, err
}

func (c *busyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	<-time.After(time.Until(*c.due.Load()))
	return n, err
}

func (b *busy) came(script *Script) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.units[script.Name]
}

const busyTTL = 2 * time.Second

// call is a call for the lock of a caller, which takes the lock or frees it. The context ends with
// ctx, as that of a Lock.
func (b *busy) call(ctx context.Context, s *Script, caller int) error {
	ending := lifetime.EndingWith(ctx, context.Background())
	defer ending.Stop()
	_, err := b.wire.Do(ending, &Call{
		Script: s, Unit: Unit{Keys: []string{strconv.Itoa(caller)}}, Patience: busyTTL / 3, Yields: s == setScript,
	})
	return err
}

// TestAServerThatWasHeldBackRecovers has 4,000 callers who take and free locks. The server is always
// busy with them. For two seconds each answer comes 100 ms late. A repeat is far for the few batches
// in flight (77 ms each), and would be near for all callers at once (600 ms).
func TestAServerThatWasHeldBackRecovers(t *testing.T) {
	for _, pool := range []int{1, 2, 10} {
		t.Run("pool of "+strconv.Itoa(pool), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBusy(t, pool)
				b.each = 150 * time.Microsecond
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var callers sync.WaitGroup
				var answers atomic.Int64
				var over atomic.Bool
				for i := range 4000 {
					callers.Go(func() {
						for !over.Load() {
							for _, s := range []*Script{setScript, releaseScript} {
								if b.call(ctx, s, i) == nil {
									answers.Add(1)
								}
							}
						}
					})
				}
				renewed, failed := 0, 0
				for begun := time.Now(); time.Since(begun) < 6*time.Second; time.Sleep(busyTTL / 3) { // fake time
					switch since := time.Since(begun); {
					case since > 3*time.Second:
						b.held.Store(0)
					case since > time.Second:
						b.held.Store(int64(100 * time.Millisecond))
					}
					limited, end := context.WithTimeout(ctx, busyTTL/3)
					if b.wire.All(limited, renewScript, nil, []Unit{{Keys: []string{"renewed"}}})[0].Err != nil {
						failed++
					}
					end()
					renewed++
				}
				over.Store(true)
				callers.Wait()
				sent := int64(b.came(setScript) + b.came(releaseScript) - 1) // one by newBusy
				require.LessOrEqual(t, sent-answers.Load(), int64(maxSends), "a repeat for each quick attempt at most")
				require.GreaterOrEqual(t, answers.Load(), int64(25_000), "the server did nothing else")
				require.Zero(t, failed, "of %d renewals", renewed)
			})
		})
	}
}

func TestEveryCallOfAFloodEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(t, 10)
		b.held.Store(int64(time.Hour))
		ctx, cancel := context.WithCancel(context.Background())
		var callers sync.WaitGroup
		for i := range 3000 {
			callers.Go(func() {
				if b.call(ctx, setScript, i) == nil {
					t.Error("an answer")
				}
			})
		}
		synctest.Wait()
		cancelled := time.Now()
		cancel()
		callers.Wait()
		require.Equal(t, cancelled, time.Now())
		require.Empty(t, b.wire.batcher.yielded.flights, "no memory is left")
		require.LessOrEqual(t, b.came(setScript), 1+maxSends, "all others were in the queue")
		b.held.Store(0)
	})
}

// reports counts what a Reporter is told.
type reports struct{ slow, again int }

func (r *reports) Retrying(_ string, attempt int, _ time.Time, _ error) {
	if attempt == 0 {
		r.slow++
	} else {
		r.again++
	}
}

// TestTheTimeInTheQueueIsNoTimeOfTheAttempt has a call with little patience, and a queue that nobody
// sends for a minute.
func TestTheTimeInTheQueueIsNoTimeOfTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(t, 1)
		q := &b.wire.batcher
		synctest.Wait()
		require.True(t, q.enter(&flight{}))
		var r reports
		go func() {
			time.Sleep(time.Minute) // fake time
			q.leave()
		}()
		begun := time.Now()
		a, err := b.wire.Do(t.Context(), &Call{
			Script: setScript, Unit: Unit{Keys: []string{"x"}}, Tries: 1, Patience: 10 * time.Millisecond, Report: &r,
		})
		require.NoError(t, err)
		require.False(t, a.Unsure)
		require.Equal(t, begun.Add(time.Minute), a.Sent, "a lease counts from the send")
		require.Equal(t, a.Sent, a.First)
		require.Equal(t, reports{slow: 1}, r, "it says that it waits, and is not sent again")
		require.Equal(t, 2, b.came(setScript))
	})
}

// TestEachFlightOfABatchHasItsOwnPatience has a server that is silent.
func TestEachFlightOfABatchHasItsOwnPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(t, 10)
		b.held.Store(int64(time.Minute))
		begun := time.Now()
		var flights []*flight
		for i := range 6 {
			s := &spec{script: setScript, patience: time.Duration(i/2) * time.Second} // none, 1 s, 2 s
			flights = append(flights, &flight{ctx: t.Context(), spec: s, unit: Unit{Keys: []string{"x"}}, done: make(chan struct{})})
		}
		b.wire.sendAsync(t.Context(), flights, make(together))
		for i := 2; i < len(flights); i++ {
			<-flights[i].done
			require.ErrorIs(t, flights[i].err, ErrGivenUp)
			require.ErrorIs(t, flights[i].err, attempts.ErrUnavailable)
			require.Equal(t, flights[i].spec.patience, time.Since(begun))
		}
		for _, f := range flights[:2] {
			<-f.done
			require.NoError(t, f.err)
			require.GreaterOrEqual(t, time.Since(begun), time.Minute)
		}
	})
}

// TestASendThatBeginsLateIsNotLate has a quick attempt whose goroutine has no processor at first.
func TestASendThatBeginsLateIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Wire{start: time.Now()}
		w.quick.moments.Length, w.quick.moments.Shared = quickLimit, quickLimit
		defer w.quick.moments.End()
		l := &lone{flight: flight{ctx: t.Context(), since: time.Now(), done: make(chan struct{})}}
		l.brief.moment = w.quick.moments.At(time.Now())
		l.begun.Store(math.MaxInt64)
		const late = 10 * quickLimit
		go func() {
			time.Sleep(late) // fake time
			l.begun.Store(int64(time.Since(w.start)))
		}()
		require.ErrorIs(t, w.awaitQuick(t.Context(), l).err, ErrGivenUp)
		require.GreaterOrEqual(t, time.Since(w.start), late+quickLimit)
		require.LessOrEqual(t, time.Since(w.start), late+4*quickLimit)
	})
}

func TestTheReplyOfAQuickAttemptHasItsWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &brief{Context: t.Context(), ofReply: true}
		for range 2 { // the write, and the read
			deadline, is := b.Deadline()
			require.True(t, is)
			require.Equal(t, quickLimit, time.Until(deadline))
			time.Sleep(10 * quickLimit) // fake time
		}
	})
}

func TestACallThatDoesNotYieldPassesThoseThatDo(t *testing.T) {
	for name, acks := range map[string]attempts.Acks{"in the queue": {}, "in a room": {Replicas: 1, Timeout: time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBusy(t, 2)
				b.held.Store(int64(50 * time.Millisecond))
				var callers sync.WaitGroup
				send := func(s *Script) {
					callers.Go(func() {
						_, _ = b.wire.Do(context.Background(), &Call{ // the fake server does not know WAIT
							Script: s, Unit: Unit{Keys: []string{"x"}}, Yields: s == setScript, Acks: acks, Tries: 1,
						})
					})
					synctest.Wait()
				}
				for range 100 {
					send(setScript)
				}
				send(releaseScript)
				callers.Wait()
				require.Equal(t, 1, b.came(releaseScript))
				require.LessOrEqual(t, slices.Index(b.order, "release"), 3)
			})
		})
	}
}
