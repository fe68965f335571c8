package redisstore

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
)

// redissonModel is a lock of Redisson's layout as it should be, and a sequence of random commands
// of Go and Java. Commands of Go run once or more, in time or late. See TestRandomCommands.
type redissonModel struct {
	*redissonRig
	rng  *rand.Rand
	seen map[string]int

	fields   []string // of holds
	owner    string
	count    int
	token    int64
	messages int // that must come
	sent     []redissonCommand
	log      []string
}

type redissonCommand struct {
	script *wire.Script
	field  string
	keys   []string
	args   []any
	apply  func() any
}

func TestRandomCommandsOfRedisson(t *testing.T) {
	seed, n := fromEnv(t, "RELOCK_SEED"), uint64(sequences)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if s := fromEnv(t, "RELOCK_SEQUENCES"); s != 0 {
		n = s
	}
	t.Logf("RELOCK_SEED=%d", seed)
	rdb := redistest.Shared(t).Client()
	seen := map[string]int{}
	rigs := []*redissonRig{newRedissonRig(t, rdb, false), newRedissonRig(t, rdb, true)}
	for i := range n {
		m := &redissonModel{redissonRig: rigs[i%2], rng: rand.New(rand.NewPCG(seed, i)), seen: seen}
		if !t.Run(strconv.FormatUint(i, 10), func(t *testing.T) {
			at := *rigs[i%2]
			at.T, m.redissonRig = t, &at
			defer func() {
				if t.Failed() {
					t.Log(strings.Join(m.log, "\n"))
				}
			}()
			m.run()
		}) {
			return
		}
	}
	if n < sequences {
		return
	}
	for _, event := range []string{
		"takes", "has already", "busy", "frees", "gone", "renews", "late", "twice", "lease over", "Java takes", "Java enters again", "Java frees",
	} {
		require.Positive(t, seen[event], "%q never happened: %v", event, seen)
	}
}

func (m *redissonModel) run() {
	require.NoError(m, m.rdb.FlushAll(m.Context()).Err())
	m.heard()
	for range sequenceSteps {
		m.step()
		m.check()
	}
}

func (m *redissonModel) saw(event string) { m.seen[event]++ }

func (m *redissonModel) step() {
	switch p := m.rng.IntN(20); {
	case p == 0:
		m.event("lease over")
		m.owner, m.count = "", 0
		m.rdb.Del(m.Context(), redissonName)
	case p < 4:
		m.java()
	case p < 7 && len(m.sent) > 0:
		m.event("late")
		m.call(m.sent[m.rng.IntN(len(m.sent))])
	default:
		c := m.command()
		m.sent = append(m.sent, c)
		m.call(c)
		if m.rng.IntN(4) == 0 {
			m.event("twice")
			m.call(c)
		}
	}
}

func (m *redissonModel) event(what string) {
	m.saw(what)
	m.log = append(m.log, what)
}

const javaField = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"

// java does what Redisson does with the hash.
func (m *redissonModel) java() {
	ctx := m.Context()
	switch m.owner {
	case "":
		m.event("Java takes")
		m.owner, m.count = javaField, 1
	case javaField:
		if m.rng.IntN(2) == 0 {
			m.event("Java enters again")
			m.count++
			break
		}
		m.event("Java frees")
		m.rdb.Del(ctx, redissonName)
		m.owner, m.count = "", 0
		return
	default:
		return
	}
	require.NoError(m, m.rdb.HIncrBy(ctx, redissonName, javaField, 1).Err())
	require.NoError(m, m.rdb.PExpire(ctx, redissonName, redissonTTL).Err())
	if m.store.fenced {
		m.token = m.rdb.Incr(ctx, m.store.keys(redissonName)[1]).Val()
	}
}

// command makes a command of a hold as the store does.
func (m *redissonModel) command() redissonCommand {
	field := m.owner
	if field == "" || field == javaField || m.rng.IntN(3) == 0 {
		if len(m.fields) == 0 || m.rng.IntN(2) == 0 {
			m.fields = append(m.fields, fmt.Sprintf("7f3c9a52-5b1c-4d0e-8a3f-1f2e3d4c5b6a:%d", len(m.fields)+1))
		}
		field = m.fields[m.rng.IntN(len(m.fields))]
	}
	switch m.rng.IntN(3) {
	case 0:
		return redissonCommand{scripts.redisson.acquire, field, m.store.keys(redissonName), []any{field, lifetime.Millis(redissonTTL)},
			func() any { return m.acquire(field) }}
	case 1:
		count := 1 + m.rng.IntN(3)
		return redissonCommand{scripts.mutex.renew, field, []string{redissonName}, []any{field, lifetime.Millis(redissonTTL), count}, func() any {
			if m.owner != field {
				m.saw("gone")
				return int64(0)
			}
			m.saw("renews")
			m.count = count
			return int64(1)
		}}
	default:
		unit := m.store.unit(redissonName, redissonID(field))
		return redissonCommand{scripts.redisson.release, field, unit.Keys, append(m.store.freeing(""), unit.Args...), func() any {
			if m.owner != field {
				m.saw("gone")
				return int64(0)
			}
			m.saw("frees")
			m.owner, m.count = "", 0
			m.messages++
			return int64(1)
		}}
	}
}

func (m *redissonModel) acquire(field string) any {
	switch m.owner {
	case "":
		m.saw("takes")
		m.owner, m.count = field, 1
		if m.store.fenced {
			m.token++
		}
	case field:
		m.saw("has already")
	default:
		m.saw("busy")
		return acquireReply{status: statusBusy, owner: m.owner, known: true}
	}
	return acquireReply{status: statusOurs, owner: field, known: true, number: m.token}
}

func (m *redissonModel) call(c redissonCommand) {
	m.log = append(m.log, fmt.Sprintf("%s %v", c.script.Name, c.args))
	got, err := m.rdb.Eval(m.Context(), c.script.Source, c.keys, c.args...).Result()
	require.NoError(m, err)
	want := c.apply()
	if _, is := want.(acquireReply); is {
		r, err := parseAcquireReply(c.script, got)
		require.NoError(m, err)
		r.remaining = 0
		require.Equal(m, want, r)
		return
	}
	require.Equal(m, want, got)
}

// check compares the server with the model.
func (m *redissonModel) check() {
	want := map[string]keyVector{}
	if m.owner != "" {
		want[redissonName] = keyVector{Type: "hash", Value: map[string]any{m.owner: strconv.Itoa(m.count)}, PTTL: redissonTTL.Milliseconds()}
	}
	if m.token > 0 {
		want[m.store.keys(redissonName)[1]] = keyVector{Type: "string", Value: strconv.FormatInt(m.token, 10), PTTL: -1}
	}
	m.requireState(want)
	require.Len(m, m.heard(), m.messages)
	m.messages = 0
}
