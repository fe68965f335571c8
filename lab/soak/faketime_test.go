package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/lab/soak/history"
)

// In fake time a round is long enough for trouble with most leases.
const (
	fakeRoundTime = 15 * time.Second
	// fakeEnd is the age of a world in which somebody waits for ever. The world ends with the stacks
	// of all goroutines.
	fakeEnd = 365 * 24 * time.Hour
)

// TestSoakInFakeTime does the same in fake time, in a third of the time. Each round has a world of
// its own: miniredis with either layout, a store in memory, or a quorum of three. Time passes only
// while everybody waits. A call of half a lease costs no more than a call of a millisecond, so most
// commands meet the end of a lease, and limits are exact.
func TestSoakInFakeTime(t *testing.T) {
	soakInFakeTime(t, func(seed uint64) setting {
		random := rand.New(rand.NewPCG(seed, 1))
		kind, patient := random.IntN(5), random.IntN(3) == 0
		set := map[int]setting{0: miniRedisson, 1: inMemory, 2: aQuorumInMemory, 3: onMiniredis, 4: onMiniredis}[kind]
		if patient {
			set.patience = set.ttl
		}
		return set
	})
}

// TestSoakInFakeTimeOfAQuorum is TestSoakInFakeTime with quorums only. Members go away, lose answers and
// restart empty, one at a time, and clients reach each member over a way of its own.
func TestSoakInFakeTimeOfAQuorum(t *testing.T) {
	soakInFakeTime(t, func(uint64) setting { return aQuorumInMemory })
}

// TestSoakInFakeTimeConvictsBrokenStores breaks a store in memory. A hundred rounds find that out.
func TestSoakInFakeTimeConvictsBrokenStores(t *testing.T) {
	for _, way := range slices.Sorted(maps.Keys(defects)) {
		t.Run(way, func(t *testing.T) {
			_, seed := settings(t)
			set := inMemory.broken(way)
			set.serves = nil // a kind of a broken store may never be free
			for round := range uint64(100) {
				var s *soak
				synctest.Test(t, func(t *testing.T) {
					s = newSoak(t, seed+round, set)
					if s.calmly(0); len(s.wrong.list()) == 0 {
						s.round(0, fakeRoundTime, s.trouble)
					}
					<-time.After(time.Hour) // waits that nobody wants are over
				})
				s.t = t
				if wrong := s.check(round); wrong != "" {
					t.Logf("found in round %d: %.300s", round, wrong)
					return
				}
			}
			require.Fail(t, "nothing is found")
		})
	}
}

// The worlds of miniredis.
var (
	onMiniredis  = setting{begin: startMini, fake: true, ttl: time.Second, patience: severalTries, serves: kindNames, mode: history.Mode{Passing: true}}
	miniRedisson = setting{begin: startMini, fake: true, ttl: time.Second, patience: severalTries, mode: history.Mode{Redisson: true}}
)

func startMini(s *soak) world {
	w := &redisWorld{soak: s, mini: newMini(s.t)}
	o := &redis.UniversalOptions{Dialer: w.mini.dial}
	w.mini.options(o)
	w.plain = redis.NewClient(o.Simple())
	s.t.Cleanup(func() { _ = w.plain.Close() })
	return w
}

func soakInFakeTime(t *testing.T, choose func(seed uint64) setting) {
	t.Helper()
	duration, seed := settings(t)
	round := uint64(0)
	defer func() {
		if t.Failed() {
			t.Logf("in round %d, which is the first one of RELOCK_SEED=%d", round, seed+round)
		}
	}()
	var all *soak
	for began := time.Now(); time.Since(began) < max(duration/3, 3*time.Second); round++ {
		var s *soak
		synctest.Test(t, func(t *testing.T) {
			end := time.AfterFunc(fakeEnd, func() {
				debug.SetTraceback("all")
				panic(fmt.Sprintf("round %d of RELOCK_SEED=%d waits for something that never comes", round, seed))
			})
			defer end.Stop()
			s = newSoak(t, seed+round, choose(seed+round))
			s.calmly(0)
			s.round(0, fakeRoundTime, s.trouble)
			s.end()
		})
		if t.Failed() {
			return
		}
		s.t = t
		s.require(round) // in real time
		if all == nil {
			all = s
		} else {
			all.add(s)
		}
	}
	all.report()
	require.Positive(t, all.did["Lock: ok"])
}

// wait is a call that waits for a lock.
type wait struct {
	lock  string
	since time.Time
}

// waits notes the lock that a worker waits for; the zero wait is none.
func (s *soak) waits(id int, what wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what.lock == "" {
		delete(s.waiting, id)
	} else {
		s.waiting[id] = what
	}
}

// watchCalm watches a time without trouble. Nobody may wait for a free lock for longer than earlier
// trouble lasts: a silent connection, and a TTL.
func (s *soak) watchCalm() {
	for _, p := range append(s.present(), s.admin) {
		p.way.near()
	}
	longest := 2*s.patience + 2*s.ttl
	free := map[string]time.Time{} // since when
	for began := time.Now(); time.Since(began) < 6*s.ttl; s.pause(5 * time.Millisecond) {
		for _, name := range s.names() {
			now := time.Now()
			if s.isHeld(name) {
				delete(free, name)
				continue
			}
			if free[name].IsZero() {
				free[name] = now
			}
			s.mu.Lock()
			for id, w := range s.waiting {
				if w.lock == name && now.Sub(w.since) > longest && now.Sub(free[name]) > longest {
					s.wrong.add("worker %d waits for %q for %s, which is free for %s", id, name, now.Sub(w.since), now.Sub(free[name]))
					delete(s.waiting, id) // reported once
				}
			}
			s.mu.Unlock()
		}
	}
}

// isHeld says whether a hold has the lock in the store, or all permits are taken.
func (s *soak) isHeld(name string) bool {
	if name == pool {
		holders, err := s.holders(pool)
		return err != nil || len(holders) >= permits
	}
	state, err := lockOf(s.admin, name).State(context.Background())
	return err != nil || state.Locked()
}

// mini is a Redis server in the process, in fake time.
type mini struct {
	*miniredis.Miniredis

	mu      sync.Mutex
	instant time.Time // of the last command
	busy    int       // commands at that instant
}

func newMini(t *testing.T) *mini {
	t.Helper()
	w := &mini{Miniredis: miniredis.NewMiniRedis()}
	w.ClockTTL(true)
	t.Cleanup(func() {
		w.Close()
		<-time.After(time.Minute) // go-redis goes on dialling for a while
	})
	return w
}

// noHotLoop is called for each command, and matches none. A loop without a pause would stop the
// clock for ever.
func (w *mini) noHotLoop([]string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); !now.Equal(w.instant) {
		w.instant, w.busy = now, 0
	}
	if w.busy++; w.busy == 20_000 {
		debug.SetTraceback("all")
		panic("command after command is sent while the clock stands still")
	}
	return false
}

// options sets what go-redis needs in fake time.
func (w *mini) options(o *redis.UniversalOptions) {
	o.Addrs = []string{"127.0.0.1:6379"} // nobody listens there
	// A wait for a connection uses a timer that go-redis shares between bubbles, which is fatal.
	o.PoolSize = 1000
	// For these go-redis waits for a reply with a mutex held, and no time passes while others wait for
	// the mutex.
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.DisableIdentity = true
}

func (w *mini) dial(context.Context, string, string) (net.Conn, error) { return w.Dial() }

// distance returns the way of a client to the server during trouble, less than its patience. Each
// command takes some time, so that time passes.
func distance(random *rand.Rand, patience time.Duration) (up, down time.Duration) {
	far := []time.Duration{time.Millisecond, 10 * time.Millisecond, patience / 10, patience * 2 / 5}[random.IntN(4)]
	return near + upTo(random, far), near + upTo(random, far)
}

// near is the way of each client without trouble.
const near = 50 * time.Microsecond

const (
	saveScript = `
local all = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
	local kind, value = redis.call('TYPE', key).ok, nil
	if kind == 'hash' then
		value = redis.call('HGETALL', key)
	elseif kind == 'zset' then
		value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
	else
		value = {redis.call('GET', key)}
	end
	all[i] = {key, kind, redis.call('PEXPIRETIME', key), value}
end
return cjson.encode(all)`

	restoreScript = `
redis.call('FLUSHALL')
for _, entry in ipairs(cjson.decode(ARGV[1])) do
	local key, kind, ends, value = entry[1], entry[2], entry[3], entry[4]
	for i = 1, #value, 2 do
		if kind == 'hash' then
			redis.call('HSET', key, value[i], value[i + 1])
		elseif kind == 'zset' then
			redis.call('ZADD', key, value[i + 1], value[i])
		else
			redis.call('SET', key, value[1])
		end;
	end
	if ends > 0 then redis.call('PEXPIREAT', key, string.format('%.0f', ends)) end;
end`
)

// stopWorld stops the server for a while.
func (w *redisWorld) stopWorld(random *rand.Rand) {
	for _, p := range w.present() {
		p.way.(*redisWay).Partition()
	}
	w.pause(upTo(random, 2*w.ttl))
	for _, p := range w.present() {
		p.way.(*redisWay).Heal()
	}
}

// bringBack replaces all data by older data, and breaks all connections.
func (w *redisWorld) bringBack(saved string) {
	w.gone(history.Op{Kind: history.Wipe, Old: true}, w.names(), func() error {
		return w.plain.Eval(context.Background(), restoreScript, nil, saved).Err()
	})
	for _, p := range append(w.present(), w.admin) {
		p.way.(*redisWay).Cut()
	}
}

// add adds the numbers of another soak, for the report.
func (s *soak) add(o *soak) {
	for _, m := range []struct{ to, from map[string]int }{{s.did, o.did}, {s.kinds.did, o.kinds.did}, {s.count, o.count}} {
		for name, n := range m.from {
			m.to[name] += n
		}
	}
	s.all.rounds += o.all.rounds
	s.all.calls += o.all.calls
	s.all.largest = max(s.all.largest, o.all.largest)
	s.all.took += o.all.took
	s.all.slowest = max(s.all.slowest, o.all.slowest)
}
