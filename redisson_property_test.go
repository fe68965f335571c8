package relock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// Random sequences of what holders in Go and in Java do with one lock. The commands of those in Go are lost, repeated,
// and run late; those of Java are played with what its scripts do. After each step Redis has to say what the holders
// believe, and all that Redisson needs.
func TestRandomSequencesInRedissonsLayoutLeaveWhatTheHoldersBelieve(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprint("fenced ", fenced), func(t *testing.T) {
			seed := fromEnv(t, "RELOCK_SEED")
			if seed == 0 {
				seed = rand.Uint64()
			}
			t.Logf("RELOCK_SEED=%d", seed)
			s := &redissonSequence{rng: rand.New(rand.NewPCG(seed, 0)), rec: &recorder{}, seen: map[string]int{}, fenced: fenced}
			var options []Option
			if fenced {
				options = append(options, WithRedissonFencing())
			}
			server := redistest.Shared(t)
			rdb := server.Client()
			s.redissonRig = newRedissonRig(t, rdb, options...)
			s.plain = server.Client()
			rdb.AddHook(s.rec)
			s.client.wire.retried = func(*request, int, int, error) {
				s.rec.setSwallow(false)
				s.between()
			}
			for _, script := range []*script{redissonAcquire, redissonRelease, redissonState, renewScript} {
				require.NoError(t, s.plain.ScriptLoad(t.Context(), script.source).Err())
			}
			for range 2000 {
				s.step()
				s.check()
			}
			for _, event := range []string{
				"go takes", "go is refused", "go nests", "go leaves", "go frees", "java takes", "java nests", "java leaves", "java frees", "java is refused",
				"lease over", "go is told", "reply lost", "swallowed", "given up", "late", "late takes a free lock", "forced", "renewed",
			} {
				require.Positive(t, s.seen[event], "%q never happened: %v", event, s.seen)
			}
		})
	}
}

type redissonSequence struct {
	*redissonRig
	rng    *rand.Rand
	plain  *redis.Client // is not recorded
	rec    *recorder
	seen   map[string]int
	fenced bool

	// What is true.
	owner string // "": free
	count int
	token int64 // the last one

	holds []*hold // in Go, entered or about to be
	late  [][]any // commands that are still on their way

	between func() // two tries
	frees   int    // messages that must have come
	n       int    // of holds
}

const javaHolder = "f47ac10b-58cc-4372-a567-0e02b2c3d479:42"

// deliver runs a command as the server does, whenever it arrives.
func (s *redissonSequence) deliver(args []any) {
	s.Helper()
	require.NoError(s, s.plain.Do(s.Context(), args...).Err())
}

// sending sends a command of a hold, with what may happen to it on its way. answered is false if its end is not known.
func (s *redissonSequence) sending(send func(e effort) error) (answered bool) {
	s.Helper()
	s.rec.take()
	twice := effort{tries: 2}
	switch fate := s.rng.IntN(10); fate {
	case 0: // the reply is lost: the server has run it when it is sent again
		s.seen["reply lost"]++
		s.rec.setSwallow(true)
		s.between = func() {
			for _, args := range s.rec.take() {
				s.deliver(args)
			}
		}
		require.NoError(s, send(twice))
	case 1: // it does not arrive until later, and is sent again
		s.seen["swallowed"]++
		s.rec.setSwallow(true)
		s.between = func() { s.late = append(s.late, s.rec.take()...) }
		require.NoError(s, send(twice))
	case 2: // the same, and its holder gives it up
		s.seen["given up"]++
		s.rec.setSwallow(true)
		require.Error(s, send(once))
		s.late = append(s.late, s.rec.take()...)
		s.rec.setSwallow(false)
		return false
	default:
		require.NoError(s, send(once))
	}
	return true
}

func (s *redissonSequence) pick() *hold {
	if len(s.holds) == 0 {
		return nil
	}
	return s.holds[s.rng.IntN(len(s.holds))]
}

// step is one thing that happens.
func (s *redissonSequence) step() {
	s.Helper()
	switch s.rng.IntN(13) {
	case 0, 1:
		s.take()
	case 2, 3:
		s.nest()
	case 4, 5:
		s.leave()
	case 6, 7:
		s.java()
	case 8, 9:
		s.runLate()
	case 10:
		if s.rng.IntN(4) == 0 && s.owner != "" {
			s.seen["lease over"]++
			require.NoError(s, s.plain.Del(s.Context(), "orders:42").Err())
			s.owner, s.count = "", 0
		}
	case 11:
		if s.rng.IntN(4) == 0 && s.owner != "" {
			s.seen["forced"]++
			require.NoError(s, s.lock.ForceUnlock(s.Context()))
			s.freed()
		}
	default:
		if h := s.pick(); h != nil {
			s.seen["renewed"]++
			batch := []renewal{{hold: h, ttl: DefaultTTL}}
			s.client.wire.renew(s.Context(), batch)
			require.NoError(s, batch[0].err)
			require.Equal(s, h.id != s.owner, batch[0].lost)
		}
	}
}

func (s *redissonSequence) freed() {
	s.owner, s.count = "", 0
	s.frees++
}

// drop forgets a hold, as its holder does, and takes back what it may have left.
func (s *redissonSequence) drop(h *hold) {
	s.Helper()
	s.holds = slices.DeleteFunc(s.holds, func(other *hold) bool { return other == h })
	require.Equal(s, []error{nil}, s.client.wire.abandon(s.Context(), []*orphan{{hold: h}}))
	if s.owner == h.id {
		s.freed()
	}
}

// take is a first entry.
func (s *redissonSequence) take() {
	s.Helper()
	s.n++
	h := s.hold(fmt.Sprintf("8743c9c0-0795-4907-87fd-6c719a6b4586:%d", s.n), 0)
	var got acquisition
	answered := s.sending(func(e effort) (err error) {
		got, _, err = s.client.wire.acquire(s.Context(), h, 1, false, 0, e)
		return err
	})
	switch {
	case !answered:
		s.drop(h)
	case s.owner != "":
		s.seen["go is refused"]++
		require.Equal(s, acquireBusy, got.status)
		require.Equal(s, s.owner, got.owner)
	default:
		s.seen["go takes"]++
		require.Equal(s, acquireOurs, got.status)
		if s.fenced {
			require.Greater(s, got.token, s.token)
		} else {
			require.Zero(s, got.token)
		}
		s.owner, s.count = h.id, 1
		s.holds = append(s.holds, h)
	}
}

// nest is one more entry.
func (s *redissonSequence) nest() {
	s.Helper()
	h := s.pick()
	if h == nil {
		return
	}
	mine := h.id == s.owner
	target := s.count + 1
	if !mine {
		target = 2 // it does not know yet that it has lost the lock
	}
	var got acquisition
	answered := s.sending(func(e effort) (err error) {
		got, _, err = s.client.wire.acquire(s.Context(), h, target, false, 0, e)
		return err
	})
	switch {
	case !mine:
		if answered {
			s.seen["go is told"]++
			require.Equal(s, acquireLost, got.status)
		}
		s.drop(h)
	case !answered: // as hold.settle
		require.True(s, s.release(h, s.count))
	default:
		s.seen["go nests"]++
		require.Equal(s, acquireOurs, got.status)
		s.count = target
	}
}

// leave is an exit.
func (s *redissonSequence) leave() {
	s.Helper()
	h := s.pick()
	if h == nil {
		return
	}
	mine := h.id == s.owner
	target := 0
	if mine {
		target = s.count - 1
	}
	var there, unsure bool
	answered := s.sending(func(e effort) error {
		var a answer
		var err error
		there, a, err = s.client.wire.release(s.Context(), h, target, e)
		unsure = a.unsure
		return err
	})
	switch {
	case !mine:
		require.False(s, there)
		s.drop(h)
	case target > 0:
		s.seen["go leaves"]++
		s.count = target
		if !answered {
			there = s.release(h, target)
		}
		require.True(s, there)
	default:
		s.seen["go frees"]++
		require.True(s, there || unsure || !answered)
		if answered {
			s.freed()
		}
		s.drop(h)
	}
}

// runLate lets a command arrive that its holder has sent again, or given up, long ago.
func (s *redissonSequence) runLate() {
	s.Helper()
	if len(s.late) == 0 {
		return
	}
	s.seen["late"]++
	i := s.rng.IntN(len(s.late))
	args := s.late[i]
	s.late = slices.Delete(s.late, i, i+1)
	s.deliver(args)
	numKeys := args[2].(int)
	if id := args[3+numKeys].(string); s.owner == "" && args[1] == redissonAcquire.sha && args[4+numKeys] == 1 {
		s.seen["late takes a free lock"]++ // for nobody; then it is abandoned once more
		s.owner, s.count = id, 1
		s.check()
		s.drop(s.hold(id, 1))
	}
}

// java is what Redisson does, with the effects that the vectors show.
func (s *redissonSequence) java() {
	s.Helper()
	ctx, key := s.Context(), "orders:42"
	add := func(n int64) {
		s.Helper()
		require.NoError(s, s.plain.HIncrBy(ctx, key, javaHolder, n).Err())
		require.NoError(s, s.plain.PExpire(ctx, key, DefaultTTL).Err())
		if n > 0 && s.fenced {
			require.NoError(s, s.plain.Incr(ctx, "redisson_lock_token:{orders:42}").Err())
		}
		s.owner, s.count = javaHolder, s.count+int(n)
	}
	switch {
	case s.owner == "":
		s.seen["java takes"]++
		require.Zero(s, s.plain.Exists(ctx, key).Val())
		add(1)
	case s.owner != javaHolder:
		s.seen["java is refused"]++
		require.False(s, s.plain.HExists(ctx, key, javaHolder).Val())
		require.Positive(s, s.plain.PTTL(ctx, key).Val(), "what Java waits for at most")
	case s.rng.IntN(3) == 0:
		s.seen["java nests"]++
		add(1)
	case s.count > 1:
		s.seen["java leaves"]++
		add(-1)
	default:
		s.seen["java frees"]++
		require.NoError(s, s.plain.Del(ctx, key).Err())
		require.NoError(s, s.plain.Publish(ctx, "redisson_lock__channel:{orders:42}", "0").Err())
		s.freed()
	}
}

// check says that Redis agrees.
func (s *redissonSequence) check() {
	s.Helper()
	state := s.state()
	if k, ok := state["orders:42"]; ok {
		fields := k.Value.(map[string]any)
		delete(fields, "relock:step")
		require.Equal(s, map[string]any{s.owner: fmt.Sprint(s.count)}, fields)
		require.Positive(s, k.PTTL, "Java waits without limit for a lock without a lease")
		delete(state, "orders:42")
	} else {
		require.Empty(s, s.owner)
	}
	if k, ok := state["redisson_lock_token:{orders:42}"]; ok && s.fenced {
		token, err := strconv.ParseInt(k.Value.(string), 10, 64)
		require.NoError(s, err)
		require.GreaterOrEqual(s, token, s.token, "a token never goes back")
		require.EqualValues(s, -1, k.PTTL)
		s.token = token
		delete(state, "redisson_lock_token:{orders:42}")
	}
	require.Empty(s, state, "no other keys")
	heard := s.heard()
	require.Len(s, heard, s.frees, "told as often as the lock was freed")
	for _, m := range heard {
		require.Equal(s, published{Channel: "redisson_lock__channel:{orders:42}", Payload: "30"}, m)
	}
	s.frees = 0
}
