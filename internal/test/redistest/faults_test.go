package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

// wired empties the shared server, and returns faults, a client without retries that dials through
// the faults, and a plain client that sees the server's side.
func wired(t *testing.T, mod ...func(*redis.Options)) (f *redistest.Faults, rdb, plain *redis.Client) {
	t.Helper()
	redistest.NoGoroutineLeft(t, "redistest.(*conn)")
	s := redistest.Shared(t)
	plain = s.Client()
	require.NoError(t, plain.FlushAll(t.Context()).Err())
	f = redistest.NewFaults()
	t.Cleanup(f.Close)
	rdb = s.Client(append([]func(*redis.Options){func(o *redis.Options) {
		o.Dialer = f.Dialer(nil)
		o.MaxRetries = -1
		o.ReadTimeout = 300 * time.Millisecond
		o.DialTimeout = 300 * time.Millisecond
		o.DialerRetries = 1
		o.ContextTimeoutEnabled = true
	}}, mod...)...)
	return f, rdb, plain
}

func get(t *testing.T, rdb *redis.Client, key string) string {
	t.Helper()
	v, err := rdb.Get(context.Background(), key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	return v
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestAPipelineIsOneRoundTripAndSingleCommandsAreOneEach(t *testing.T) {
	f, rdb, _ := wired(t)
	ctx := t.Context()
	conn := rdb.Conn()
	defer conn.Close()
	require.NoError(t, conn.Ping(ctx).Err())
	f.Reset()
	for range 3 {
		require.NoError(t, conn.Ping(ctx).Err())
	}
	require.Equal(t, 3, f.Stats().RoundTrips)
	_, err := conn.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range 1000 {
			p.Set(ctx, strconv.Itoa(i), strings.Repeat("x", 100), 0)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 4, f.Stats().RoundTrips)
}

func TestDropReplyExecutesTheCommandAndBreaksTheConnection(t *testing.T) {
	for how, is := range map[redistest.Break]func(error) bool{
		redistest.EOF:     func(err error) bool { return errors.Is(err, io.EOF) },
		redistest.Reset:   func(err error) bool { return errors.Is(err, syscall.ECONNRESET) },
		redistest.Silence: isTimeout,
	} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			f, rdb, plain := wired(t)
			rule := f.Once(redistest.Named("INCR"), redistest.DropReply(how))
			err := rdb.Incr(t.Context(), "n").Err()
			require.Error(t, err)
			require.True(t, is(err), "%v", err)
			require.Equal(t, 1, rule.Hits())
			require.Equal(t, "1", get(t, plain, "n"))
			require.NoError(t, rdb.Incr(t.Context(), "n").Err(), "the rule is spent and a new connection works")
			require.Equal(t, 2, f.Commands("INCR"))
		})
	}
}

func TestCutBeforeKeepsTheCommandAndWhatFollowsFromTheServer(t *testing.T) {
	for how, is := range map[redistest.Break]func(error) bool{
		redistest.EOF:     func(err error) bool { return errors.Is(err, io.EOF) },
		redistest.Reset:   func(err error) bool { return errors.Is(err, syscall.ECONNRESET) },
		redistest.Silence: isTimeout,
	} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			f, rdb, plain := wired(t)
			f.Once(redistest.WithArg("b"), redistest.CutBefore(how))
			_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for _, k := range []string{"a", "b", "c"} {
					p.Set(t.Context(), k, k, 0)
				}
				return nil
			})
			require.True(t, is(err), "%v", err)
			require.NoError(t, rdb.Set(t.Context(), "d", "d", 0).Err())
			redistest.Eventually(t, 30*time.Second, func() bool {
				return slices.Equal(redistest.Keys(t, plain), []string{"a", "d"})
			}, "only a and d reached the server, there is %v", redistest.Keys(t, plain))
		})
	}
}

func TestAHeldCommandRunsAfterItsClientGaveUp(t *testing.T) {
	f, rdb, plain := wired(t)
	rule := f.Once(redistest.Named("INCR"), redistest.Hold())
	err := rdb.Incr(t.Context(), "n").Err()
	require.True(t, isTimeout(err), "%v", err)
	require.Empty(t, get(t, plain, "n"))
	require.NoError(t, rdb.Set(t.Context(), "n", "41", 0).Err(), "on another connection")

	require.Equal(t, []string{"42"}, rule.Release(t))
	require.Equal(t, "42", get(t, plain, "n"))
	require.Empty(t, rule.Release(t), "nothing is held any more")
}

func TestADuplicatedCommandRunsSeveralTimesAndAnswersOnce(t *testing.T) {
	f, rdb, plain := wired(t)
	ctx := t.Context()
	last := f.On(redistest.Named("INCR"), redistest.Duplicate(3, redistest.Last))
	require.Equal(t, int64(3), rdb.Incr(ctx, "n").Val())
	last.Remove()
	first := f.On(redistest.Named("INCR"), redistest.Duplicate(2, redistest.First))
	require.Equal(t, int64(4), rdb.Incr(ctx, "n").Val())
	first.Remove()
	require.Equal(t, int64(6), rdb.Incr(ctx, "n").Val())
	require.Equal(t, "6", get(t, plain, "n"))
	require.Equal(t, 6, f.Commands("INCR"))
}

func TestAnAnswerReplacesTheCommandAndKeepsTheOrder(t *testing.T) {
	f, rdb, plain := wired(t)
	ctx := t.Context()
	f.On(redistest.WithArg("b"), redistest.Answer("-OOM command not allowed"))
	cmds, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, k := range []string{"b", "a", "b", "c", "b"} {
			p.Set(ctx, k, k, 0)
		}
		return nil
	})
	require.ErrorContains(t, err, "OOM")
	for i, c := range cmds {
		if i%2 == 0 {
			require.EqualError(t, c.Err(), "OOM command not allowed")
		} else {
			require.NoError(t, c.Err())
		}
	}
	require.Equal(t, []string{"a", "c"}, redistest.Keys(t, plain))
	require.Equal(t, 2, f.Commands("SET"))
}

func TestBeforeAndAfterRunOnBothSidesOfTheCommand(t *testing.T) {
	f, rdb, plain := wired(t)
	var before, between, reply string
	f.Once(redistest.Named("INCR"), redistest.Before(func([]string) { before = get(t, plain, "n") }))
	f.Once(redistest.Named("INCR"), redistest.After(func(args []string, r string) {
		between, reply = get(t, plain, args[1]), r
		f.Cut()
	}))
	require.ErrorIs(t, rdb.Incr(t.Context(), "n").Err(), io.EOF, "cut before the client got the reply")
	require.Empty(t, before)
	require.Equal(t, "1", between)
	require.Equal(t, "1", reply)
}

func TestSkipAndTimesChooseWhichMatchesAreHit(t *testing.T) {
	f, rdb, _ := wired(t)
	rule := f.On(redistest.Named("INCR"), redistest.Answer("-ERR hit")).Skip(2).Times(2)
	var hit []int
	for i := range 6 {
		if rdb.Incr(t.Context(), "n").Err() != nil {
			hit = append(hit, i)
		}
	}
	require.Equal(t, []int{2, 3}, hit)
	require.Equal(t, 2, rule.Hits())
}

func TestAPartitionIsSilentAndHealingDeliversWhatWasOnTheWay(t *testing.T) {
	f, rdb, plain := wired(t)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	f.Partition()
	require.True(t, isTimeout(rdb.Incr(t.Context(), "n").Err()), "on the connection")
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, rdb.Incr(ctx, "n").Err(), context.DeadlineExceeded, "in the dial")
	require.Less(t, time.Since(began), bound.Of(10*time.Second))
	require.Empty(t, get(t, plain, "n"))

	f.Heal()
	redistest.Eventually(t, 30*time.Second, func() bool { return get(t, plain, "n") == "1" }, "the late INCR arrives")
	redistest.Eventually(t, 30*time.Second, func() bool { return rdb.Ping(t.Context()).Err() == nil }, "healed")
}

func TestStallPubSubSilencesOnlySubscribersUntilHeal(t *testing.T) {
	f, rdb, plain := wired(t)
	ctx := t.Context()
	sub := rdb.Subscribe(ctx, "ch")
	defer sub.Close()
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	f.StallPubSub()
	require.NoError(t, rdb.Ping(ctx).Err())
	require.Equal(t, int64(1), plain.Publish(ctx, "ch", "late").Val(), "the server knows nothing")
	_, err = sub.ReceiveTimeout(ctx, 30*time.Millisecond)
	require.True(t, isTimeout(err), "%v", err)
	f.Heal()
	got, err := sub.ReceiveTimeout(ctx, time.Second)
	require.NoError(t, err)
	require.Equal(t, "late", got.(*redis.Message).Payload)
}

func TestDelayAddsToEveryRoundTripButNotToEachCommandOfAPipeline(t *testing.T) {
	f, rdb, _ := wired(t, func(o *redis.Options) { o.ReadTimeout = 10 * time.Second })
	ctx := t.Context()
	require.NoError(t, rdb.Ping(ctx).Err())
	const delay = 40 * time.Millisecond
	f.Delay(delay)

	began := time.Now()
	require.NoError(t, rdb.Ping(ctx).Err())
	require.GreaterOrEqual(t, time.Since(began), delay)

	began = time.Now()
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 1000 {
			p.Incr(ctx, "n")
		}
		return nil
	})
	require.NoError(t, err)
	took := time.Since(began)
	require.GreaterOrEqual(t, took, delay)
	require.Less(t, took, bound.Of(500*delay), "the commands of a pipeline do not wait for each other")

	began = time.Now()
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 4 {
				rdb.Incr(ctx, "n")
			}
		})
	}
	wg.Wait()
	require.Less(t, time.Since(began), bound.Of(64*4*delay), "connections do not wait for each other")

	f.Delay(0)
	redistest.Eventually(t, 30*time.Second, func() bool {
		began = time.Now()
		return rdb.Ping(ctx).Err() == nil && time.Since(began) < delay
	}, "the delay is over")
}
