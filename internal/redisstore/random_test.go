package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
)

// Random sequences of commands run on a real server and on a model of the lock in Go. A command
// runs once or more, in time or late, alone or in one call with others. After each call the server
// and the model have to agree. The model of a mutex is in scripts_property_test.go, the one of the
// other kinds in kinds_property_test.go.
//
//	RELOCK_SEED=7 RELOCK_SEQUENCES=5000 go test -run TestRandomCommands .
//
// A failure names its sequence: RELOCK_SEQUENCE=123 with the same seed runs that one alone.

const sequenceSteps = 50

var clients = []string{"a", "web@1/b", "c:d"}

// play is what sequences share.
type play struct {
	ctx     context.Context
	rdb     *redis.Client
	store   *nativeStore
	base    string
	ear     *redis.PubSub
	scripts map[*wire.Script]*redis.Script
	seen    map[string]int
}

// sequence is one run of random commands, with what its model knows of clients.
type sequence struct {
	*play
	failure  string
	rng      *rand.Rand
	listens  map[string]bool     // clients that subscribe to the lock's channel
	messages map[string][]string // that must come, by client; "control" for all control channels
	log      []string
}

// Errorf and FailNow note the failure of a sequence, in place of a test.
func (s *sequence) Errorf(format string, args ...any) { s.failure = fmt.Sprintf(format, args...) }
func (s *sequence) FailNow()                          { runtime.Goexit() }

// newPlay prepares sequences of scripts on a server. In the sources old is replaced by mutated.
func newPlay(t *testing.T, server *redistest.Server, old, mutated string, sources ...*wire.Script) *play {
	t.Helper()
	r := newRigOn(t, server)
	if !r.server.AtLeast(7, 0) {
		redistest.NotTested(t, "Redis before 7 does not say when a key ends")
	}
	p := &play{
		ctx: t.Context(), rdb: r.rdb, store: r.store, base: r.base,
		scripts: map[*wire.Script]*redis.Script{}, seen: map[string]int{},
	}
	changed := false
	for _, s := range sources {
		source := strings.Replace(s.Source, old, mutated, 1)
		changed = changed || source != s.Source
		p.scripts[s] = redis.NewScript(source)
	}
	require.Equal(t, old != "", changed, "%q is in the scripts", old)
	p.ear = subscribed(t, r.rdb.Subscribe(t.Context(), "mark"))
	require.NoError(t, p.ear.PSubscribe(t.Context(), r.store.control("*")))
	_, err := p.ear.ReceiveTimeout(t.Context(), limit)
	require.NoError(t, err)
	return p
}

// run runs a sequence, and returns it with its failure. start returns the step that is done at random.
func (p *play) run(seed, i uint64, start func(*sequence) (step func())) *sequence {
	s := &sequence{play: p, rng: rand.New(rand.NewPCG(seed, i)), listens: map[string]bool{}, messages: map[string][]string{}}
	done := make(chan struct{})
	go func() { // FailNow ends the goroutine
		defer close(done)
		require.NoError(s, s.rdb.FlushAll(s.ctx).Err())
		step := start(s)
		for range sequenceSteps {
			step()
		}
		for _, client := range clients {
			s.listen(client, false)
		}
	}()
	<-done
	return s
}

// runAll runs n sequences, or those of the environment. Each event must happen: a sequence that
// never gets anywhere would agree with any model.
func (p *play) runAll(t *testing.T, n uint64, start func(*sequence) (step func()), events ...string) {
	t.Helper()
	seed, first, least := fromEnv(t, "RELOCK_SEED"), uint64(0), n
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if s := fromEnv(t, "RELOCK_SEQUENCES"); s != 0 {
		n = s
	}
	if s := fromEnv(t, "RELOCK_SEQUENCE"); s != 0 {
		first, n = s, 1
	}
	t.Logf("RELOCK_SEED=%d, %d sequences from %d on", seed, n, first)
	for i := first; i < first+n; i++ {
		if s := p.run(seed, i, start); s.failure != "" {
			require.FailNow(t, s.failure, "RELOCK_SEED=%d RELOCK_SEQUENCE=%d\n%s", seed, i, strings.Join(s.log, "\n"))
		}
	}
	if n < least {
		return
	}
	for _, event := range events {
		require.Positive(t, p.seen[event], "%q never happened: %v", event, p.seen)
	}
	t.Logf("what happened: %v", p.seen)
}

func fromEnv(t *testing.T, name string) uint64 {
	t.Helper()
	if os.Getenv(name) == "" {
		return 0
	}
	n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	require.NoError(t, err, name)
	return n
}

func (p *play) saw(event string) { p.seen[event]++ }

// event takes a key away, as the end of its TTL or a loss of data does.
func (s *sequence) event(what, key string, model func()) {
	if s.rdb.Del(s.ctx, key).Val() > 0 {
		s.saw(what)
	}
	s.log = append(s.log, what)
	model()
}

func (s *sequence) listen(client string, on bool) {
	if s.listens[client] == on {
		return
	}
	s.log = append(s.log, fmt.Sprintf("%s listens: %t", client, on))
	channel := s.base + ":" + client
	do := s.ear.Unsubscribe
	if on {
		do = s.ear.Subscribe
	}
	require.NoError(s, do(s.ctx, channel))
	s.hear(func(m any) bool { sub, ok := m.(*redis.Subscription); return ok && sub.Channel == channel })
	s.listens[client] = on
}

// hear returns the messages, by client, that come before what is waited for.
func (s *sequence) hear(is func(any) bool) map[string][]string {
	got := map[string][]string{}
	for {
		m, err := s.ear.ReceiveTimeout(s.ctx, limit)
		require.NoError(s, err)
		if is(m) {
			return got
		}
		msg, ok := m.(*redis.Message)
		if !ok {
			continue
		}
		client, isHold := strings.CutPrefix(msg.Channel, s.base+":")
		if !isHold {
			client = "control"
			require.Equal(s, s.store.control(cutLast(msg.Payload, 2)), msg.Channel)
		}
		got[client] = append(got[client], msg.Payload)
	}
}

// checkMessages requires that those have come that must. One to the channel "mark" has been published.
func (s *sequence) checkMessages() {
	got := s.hear(func(m any) bool { msg, ok := m.(*redis.Message); return ok && msg.Channel == "mark" })
	require.Equal(s, s.messages, got, "messages")
	clear(s.messages)
}

// replies runs units of one script in one call, and returns what it says of each.
func (s *sequence) replies(script *wire.Script, keys []string, args []any, units int) []any {
	got, err := s.scripts[script].Run(s.ctx, s.rdb, keys, args...).Result()
	require.NoError(s, err)
	replies := []any{got} // a unit that is alone replies without a list
	if units > 1 {
		s.saw("several in a call")
		replies = got.([]any)
	}
	require.Len(s, replies, units)
	return replies
}
