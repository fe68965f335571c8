package redisstore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
)

// Random sequences of commands run on a real server and on a model of the lock in Go. A command
// runs once or more, in time or late, alone or in one call with others. After each call the server
// and the model have to agree about the owner, the count, the lease, the queue and the messages.
//
//	RELOCK_SEED=7 RELOCK_SEQUENCES=5000 go test -run TestRandomCommands .
//
// A failure names its sequence: RELOCK_SEQUENCE=123 with the same seed runs that one alone.

const (
	sequences     = 200
	sequenceSteps = 50
)

// modelHold is a hold, and what its client knows of its place.
type modelHold struct {
	id, client string
	ttl        time.Duration
	arrival    int64 // its first; 0: it has not queued
}

// modelLock is a lock as it should be.
type modelLock struct {
	owner *modelHold
	count int
	queue []*modelHold // by arrival
	token int64

	listens  map[string]bool     // clients that subscribe to the lock's channel
	messages map[string][]string // that must come, by client; "control" for all control channels

	newLease time.Duration // the lease is a new one; 0: no
	longer   time.Duration // the lease is at least so long now; 0: no demand
	joined   *modelHold    // the last call has put it into the queue, at a time that the server knows
}

// command is a call of a script for one hold.
type command struct {
	script *wire.Script
	hold   *modelHold
	args   []any // of the unit
	apply  func(l *modelLock) any
}

// sequence is one run of random commands.
type sequence struct {
	*testing.T
	modelLock
	r        *rig
	rng      *rand.Rand
	holds    []*modelHold
	sent     []command
	ears     map[string]*redis.PubSub
	seen     map[string]int
	leaseEnd int64 // in ms of the server's clock
	log      []string
}

func TestRandomCommands(t *testing.T) {
	seed, first, n := fromEnv(t, "RELOCK_SEED"), uint64(0), uint64(sequences)
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
	r := newRigOn(t, redistest.Start(t))
	if !r.server.AtLeast(7, 0) {
		redistest.NotTested(t, "Redis before 7 does not say when a key ends")
	}
	seen := map[string]int{}
	ears := map[string]*redis.PubSub{"control": r.rdb.PSubscribe(t.Context(), r.store.control("*"))}
	for _, client := range clients {
		ears[client] = r.rdb.Subscribe(t.Context(), "mark")
	}
	for _, ps := range ears {
		subscribed(t, ps)
	}
	for i := first; i < first+n; i++ {
		s := &sequence{r: r, rng: rand.New(rand.NewPCG(seed, i)), ears: ears, seen: seen}
		s.modelLock = modelLock{listens: map[string]bool{}, messages: map[string][]string{}}
		name := fmt.Sprintf("RELOCK_SEED=%d RELOCK_SEQUENCE=%d", seed, i)
		if !t.Run(strconv.FormatUint(i, 10), func(t *testing.T) {
			s.T = t
			defer func() {
				if t.Failed() {
					t.Logf("%s\n%s", name, strings.Join(s.log, "\n"))
				}
			}()
			s.run()
		}) {
			return
		}
	}
	if n < sequences {
		return
	}
	for _, event := range []string{ // a sequence that never gets anywhere would agree with any model
		"takes", "takes in one step", "has already", "busy", "joins", "keeps its place", "has its place again", "deaf", "grant by message", "grant by reply",
		"dead waiter", "frees", "gone", "renews", "forgets a waiter", "forgets an owner", "serves a queue without an owner", "breaks", "draws a token", "lease over",
		"queue lost", "token lost", "names a run", "takes served places out", "late", "late after the end", "twice", "several in a call",
	} {
		require.Positive(t, seen[event], "%q never happened: %v", event, seen)
	}
	t.Logf("what happened: %v", seen)
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

var clients = []string{"a", "web@1/b", "c:d"}

func (s *sequence) saw(event string) { s.seen[event]++ }

func (s *sequence) run() {
	require.NoError(s, s.r.rdb.FlushAll(s.Context()).Err())
	for range sequenceSteps {
		s.step()
	}
	for _, client := range clients {
		s.listen(client, false)
	}
}

// step does one thing at random, and compares.
func (s *sequence) step() {
	switch p := s.rng.IntN(100); {
	case p < 4:
		s.leaseOver()
	case p < 5, p == 99 && len(s.queue) > 0:
		s.event("queue lost", s.r.base+queueSuffix, func() { s.queue = nil })
	case p < 6:
		s.event("token lost", s.r.base+tokenSuffix, func() {})
	case p < 14:
		client := clients[s.rng.IntN(len(clients))]
		s.listen(client, !s.listens[client])
	case p < 24 && len(s.sent) > 0:
		c := s.sent[s.rng.IntN(len(s.sent))]
		s.saw("late")
		if s.owner != c.hold && !slices.Contains(s.queue, c.hold) {
			s.saw("late after the end")
		}
		s.call(c)
	case p < 32 && len(s.queue) > 0: // who asks next, or gives up next, serves the first waiter
		s.leaseOver()
		c := s.acquiring(s.hold())
		if s.rng.IntN(2) == 0 {
			c = s.forgetting(s.hold())
		}
		s.sent = append(s.sent, c)
		s.call(c)
	case p < 36 && s.owner != nil: // the end of a run that has served the wait of another hold
		first := s.owner
		s.claim(s.like(first))
		c := s.serving(first)
		s.sent = append(s.sent, c)
		s.call(c)
	case p < 40 && len(s.queue) > 0: // a run grows, and its client may die
		last := s.queue[len(s.queue)-1]
		s.claim(s.like(last))
		if s.rng.IntN(4) == 0 {
			s.check() // hears the messages before
			s.listen(last.client, false)
		}
	default:
		c := s.command()
		s.sent = append(s.sent, c)
		batch := []command{c}
		for range s.rng.IntN(3) * s.rng.IntN(2) { // others of this script, or this one again
			if c.script == scripts.all { // which is for several locks, and not for one lock several times
				break
			}
			same := slices.DeleteFunc(slices.Clone(s.sent), func(o command) bool { return o.script != c.script })
			batch = append(batch, same[s.rng.IntN(len(same))])
		}
		if s.rng.IntN(4) > 0 {
			s.call(c)
		} else {
			s.call(batch...)
		}
		if s.rng.IntN(4) == 0 {
			s.saw("twice")
			s.call(c)
		}
	}
	s.check()
}

func (s *sequence) leaseOver() {
	s.event("lease over", s.r.base, func() { s.owner, s.count = nil, 0 })
}

// event takes a key away, as the end of its TTL or a loss of data does.
func (s *sequence) event(what, key string, model func()) {
	if s.r.rdb.Del(s.Context(), key).Val() > 0 {
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
	channel := s.r.base + ":" + client
	do := s.ears[client].Unsubscribe
	if on {
		do = s.ears[client].Subscribe
	}
	require.NoError(s, do(s.Context(), channel))
	s.hear(client, func(m any) bool { sub, ok := m.(*redis.Subscription); return ok && sub.Channel == channel })
	s.listens[client] = on
}

// hear returns the messages that come before what is waited for.
func (s *sequence) hear(client string, is func(any) bool) (got []string) {
	for {
		m, err := s.ears[client].ReceiveTimeout(s.Context(), limit)
		require.NoError(s, err)
		if is(m) {
			return got
		}
		if msg, ok := m.(*redis.Message); ok {
			got = append(got, msg.Payload)
		}
	}
}

// hold picks a hold, often the owner or a waiter.
func (s *sequence) hold() *modelHold {
	switch p := s.rng.IntN(10); {
	case p < 4 && s.owner != nil:
		return s.owner
	case p < 6 && len(s.queue) > 0:
		return s.queue[s.rng.IntN(len(s.queue))]
	case p < 8 && len(s.holds) > 0:
		return s.holds[s.rng.IntN(len(s.holds))]
	}
	client := clients[s.rng.IntN(len(clients))]
	h := &modelHold{id: newID(client), client: client, ttl: time.Duration(20+s.rng.IntN(3)*20) * time.Second}
	s.holds = append(s.holds, h)
	return h
}

// like makes a hold of the same client, with the same lease.
func (s *sequence) like(h *modelHold) *modelHold {
	other := &modelHold{id: newID(h.client), client: h.client, ttl: h.ttl}
	s.holds = append(s.holds, other)
	return other
}

// claim has a hold ask for the lock.
func (s *sequence) claim(h *modelHold) {
	c := s.acquiring(h)
	s.sent = append(s.sent, c)
	s.call(c)
}

// command makes a command of a hold as the store does.
func (s *sequence) command() command {
	h := s.hold()
	switch p := s.rng.IntN(100); {
	case p < 5:
		return command{scripts.all, h, []any{h.id, lifetime.Millis(h.ttl)}, func(*modelLock) any { return s.all(h) }}
	case p < 45:
		return s.acquiring(h)
	case p < 50:
		return s.serving(h)
	case p < 65:
		return command{scripts.mutex.release, h, []any{h.id}, func(*modelLock) any { return s.release(h) }}
	case p < 78:
		ttl, count := time.Duration(s.rng.IntN(4)*25)*time.Second, 1+s.rng.IntN(3)
		return command{scripts.mutex.renew, h, []any{h.id, lifetime.Millis(ttl), count}, func(l *modelLock) any { return s.renew(h, ttl, count) }}
	case p < 88:
		return s.forgetting(h)
	case p < 94:
		return command{scripts.mutex.token, h, []any{h.id, 0}, func(*modelLock) any { return s.drawn(h) }}
	default:
		return command{scripts.mutex.broken, h, []any{h.id, s.r.store.control(h.client)}, func(*modelLock) any { return s.broken(h) }}
	}
}

func (s *sequence) acquiring(h *modelHold) command {
	place := noPlace
	if s.rng.IntN(4) > 0 {
		place = strconv.FormatInt(h.arrival, 10)
	}
	return command{scripts.mutex.acquire, h, []any{h.id, lifetime.Millis(h.ttl), place}, func(l *modelLock) any { return s.acquire(h, place) }}
}

// serving releases a lock behind a run of holds with the same lease, of which some are over.
func (s *sequence) serving(h *modelHold) command {
	var passed []*modelHold
	var ids []string
	for _, other := range s.holds {
		if other != h && other.client == h.client && other.ttl == h.ttl && s.rng.IntN(2) == 0 {
			passed, ids = append(passed, other), append(ids, other.id)
		}
	}
	args := []any{h.id, lifetime.Millis(h.ttl), strings.Join(ids, " ")}
	if len(ids) == 0 {
		return s.forgetting(h)
	}
	return command{scripts.served, h, args, func(*modelLock) any { return s.served(h, passed) }}
}

func (s *sequence) forgetting(h *modelHold) command {
	return command{scripts.mutex.forget, h, []any{h.id, lifetime.Millis(h.ttl)}, func(*modelLock) any { return s.forget(h) }}
}

// call runs commands of one script in one call, and compares the replies.
func (s *sequence) call(batch ...command) {
	script := batch[0].script
	var keys []string
	var args []any
	switch script {
	case scripts.mutex.renew, scripts.mutex.token:
	default:
		args = append(args, "PUBLISH")
	}
	for _, c := range batch {
		keys = append(keys, s.r.base)
		switch script {
		case scripts.mutex.renew:
		case scripts.mutex.token:
			keys = append(keys, s.r.base+tokenSuffix)
		default:
			keys = append(keys, s.r.base+queueSuffix)
		}
		args = append(args, c.args...)
		s.log = append(s.log, fmt.Sprintf("%s %v", script.Name, c.args))
	}
	if len(batch) > 1 {
		s.saw("several in a call")
	}
	got, err := s.r.rdb.Eval(s.Context(), script.Source, keys, args...).Result()
	require.NoError(s, err)
	replies := []any{got} // a unit that is alone replies without a list
	if len(batch) > 1 {
		replies = got.([]any)
	}
	require.Len(s, replies, len(batch))
	for i, c := range batch {
		s.joined = nil
		s.compare(c, c.apply(&s.modelLock), replies[i])
	}
}

// compare compares what a script has said with what the model says.
func (s *sequence) compare(c command, want, got any) {
	if c.script == scripts.mutex.token {
		if want == int64(0) {
			require.Equal(s, want, got)
			return
		}
		require.Greater(s, got, s.token, "tokens grow")
		s.token = got.(int64)
		return
	}
	var r acquireReply
	var err error
	switch c.script {
	case scripts.mutex.acquire:
		r, err = parseAcquireReply(c.script, got)
	case scripts.all:
		r, _, err = parseAllReply(c.script, got, 1)
	default:
		require.Equal(s, want, got, "%s %v", c.script.Name, c.args)
		return
	}
	require.NoError(s, err)
	w := want.(acquireReply)
	if w.status != statusOurs {
		w.known = true
	}
	if r.known {
		require.LessOrEqual(s, r.remaining, 2*minute)
		require.Positive(s, r.remaining)
	}
	if s.joined != nil { // at a time that only the server knows
		s.joined.arrival = r.number
	}
	if w.status == statusQueued {
		require.Positive(s, r.number)
		w.number = r.number
	}
	w.remaining = r.remaining
	require.Equal(s, w, r, "%s %v", c.script.Name, c.args)
}

// check compares the server with the model.
func (s *sequence) check() {
	hash, err := s.r.rdb.HGetAll(s.Context(), s.r.base).Result()
	require.NoError(s, err)
	want := map[string]string{}
	if s.owner != nil {
		want[s.owner.id] = strconv.Itoa(s.count)
	}
	require.Equal(s, want, hash)
	members, err := s.r.rdb.ZRange(s.Context(), s.r.base+queueSuffix, 0, -1).Result()
	require.NoError(s, err)
	queue := []string{}
	for _, h := range s.queue {
		queue = append(queue, fmt.Sprintf("%s|%d", h.id, lifetime.Millis(h.ttl)))
	}
	require.Equal(s, queue, members)
	s.checkLease()
	require.NoError(s, s.r.rdb.Publish(s.Context(), "mark", "").Err())
	require.NoError(s, s.r.rdb.Publish(s.Context(), s.r.store.control("mark"), "").Err())
	for client := range s.ears {
		got := s.hear(client, func(m any) bool {
			msg, ok := m.(*redis.Message)
			return ok && (msg.Channel == "mark" || msg.Channel == s.r.store.control("mark"))
		})
		require.Equal(s, s.messages[client], got, "messages for %s", client)
	}
	clear(s.messages)
}

// checkLease compares the end of the lease with the end that was seen before.
func (s *sequence) checkLease() {
	now, err := s.r.rdb.Time(s.Context()).Result()
	require.NoError(s, err)
	for _, key := range append(s.r.both(), s.r.base+tokenSuffix) {
		end := s.r.rdb.Do(s.Context(), "PEXPIRETIME", key).Val().(int64)
		require.NotEqual(s, int64(-1), end, "%s has no end", key)
		switch {
		case key == s.r.base+queueSuffix && end > 0:
			for _, h := range s.queue {
				require.Greater(s, end, now.Add(h.ttl).UnixMilli(), "the queue outlives the leases of its waiters")
			}
		case key != s.r.base || s.owner == nil:
		case s.newLease > 0:
			require.InDelta(s, now.Add(max(s.newLease, s.longer)).UnixMilli(), end, 2000, "the lease")
		default:
			require.InDelta(s, max(s.leaseEnd, now.Add(s.longer).UnixMilli()), end, 2000, "the lease")
			require.GreaterOrEqual(s, end, s.leaseEnd, "a lease only moves later")
			if s.longer == 0 {
				require.Equal(s, s.leaseEnd, end, "nothing has set the lease")
			}
		}
		if key == s.r.base {
			s.leaseEnd = end
		}
	}
	s.newLease, s.longer = 0, 0
}

// What follows is the whole specification: what a command does when it runs, in time or late, for
// the first time or again.

func (s *sequence) acquire(h *modelHold, place string) any {
	l := &s.modelLock
	if l.owner == h {
		s.saw("has already")
		return acquireReply{status: statusOurs, owner: h.id, known: true}
	}
	if l.owner == nil {
		if heir := s.grant(h); heir == nil {
			s.saw("takes")
			s.enter(h)
		}
		if l.owner == h {
			return acquireReply{status: statusOurs}
		}
	}
	if place == noPlace || !l.listens[h.client] {
		s.saw(map[bool]string{true: "busy", false: "deaf"}[place == noPlace])
		return acquireReply{status: statusBusy, owner: l.owner.id}
	}
	at := slices.Index(l.queue, h)
	if at >= 0 {
		s.saw("keeps its place")
		return acquireReply{status: statusQueued, owner: l.owner.id, position: at}
	}
	at = len(l.queue)
	if place == newPlace {
		s.saw("joins")
		l.joined = h
	} else {
		s.saw("has its place again")
		h.arrival, _ = strconv.ParseInt(place, 10, 64)
		at = slices.IndexFunc(l.queue, func(o *modelHold) bool { return o.arrival > h.arrival })
		if at < 0 {
			at = len(l.queue)
		}
	}
	l.queue = slices.Insert(l.queue, at, h)
	return acquireReply{status: statusQueued, owner: l.owner.id, position: at, lost: place != newPlace}
}

// all is a call for one lock alone.
func (s *sequence) all(h *modelHold) any {
	l := &s.modelLock
	if l.owner == h {
		s.saw("has already")
		return acquireReply{status: statusOurs, known: true}
	}
	if l.owner == nil {
		if heir := s.grant(nil); heir == nil || heir == h {
			s.saw("takes in one step")
			s.enter(h)
			return acquireReply{status: statusOurs}
		}
	}
	s.saw("busy")
	return acquireReply{status: statusBusy, owner: l.owner.id}
}

func (s *sequence) enter(h *modelHold) {
	s.owner, s.count, s.newLease, s.longer = h, 1, h.ttl, 0
}

// grant gives the lock to the first waiter that is there.
func (s *sequence) grant(caller *modelHold) *modelHold {
	for len(s.queue) > 0 {
		h := s.queue[0]
		s.queue = s.queue[1:]
		switch {
		case h == s.owner:
			continue
		case h == caller:
			s.saw("grant by reply")
		case s.listens[h.client]:
			s.saw("grant by message")
			s.messages[h.client] = append(s.messages[h.client], s.message(h))
		default:
			s.saw("dead waiter")
			continue
		}
		s.enter(h)
		return h
	}
	return nil
}

// message names the hold, and those that may be passed its lease.
func (s *sequence) message(h *modelHold) string {
	text, before := h.id, "\n+"
	for i, other := range s.queue {
		if i == 63 || other.client != h.client || other.ttl != h.ttl {
			break
		}
		s.saw("names a run")
		text, before = text+before+other.id, " "
	}
	return text
}

func (s *sequence) served(h *modelHold, passed []*modelHold) any {
	places := len(s.queue)
	s.queue = slices.DeleteFunc(s.queue, func(o *modelHold) bool { return slices.Contains(passed, o) })
	if len(s.queue) < places {
		s.saw("takes served places out")
	}
	return s.release(h)
}

func (s *sequence) release(h *modelHold) any {
	if s.owner != h {
		s.saw("gone")
		return int64(0)
	}
	if s.grant(nil) == nil {
		s.saw("frees")
		s.owner, s.count = nil, 0
	}
	return int64(1)
}

func (s *sequence) renew(h *modelHold, ttl time.Duration, count int) any {
	if s.owner != h {
		s.saw("gone")
		return int64(0)
	}
	s.saw("renews")
	s.count, s.longer = count, max(s.longer, ttl)
	return int64(1)
}

func (s *sequence) forget(h *modelHold) any {
	if s.owner == h {
		s.saw("forgets an owner")
		return s.release(h)
	}
	left := int64(0)
	if i := slices.Index(s.queue, h); i >= 0 {
		s.saw("forgets a waiter")
		s.queue = slices.Delete(s.queue, i, i+1)
		left = 1
	}
	if s.owner == nil && s.grant(nil) != nil {
		s.saw("serves a queue without an owner")
	}
	return left
}

func (s *sequence) drawn(h *modelHold) any {
	if s.owner != h {
		return int64(0)
	}
	s.saw("draws a token")
	return int64(1) // or whichever
}

func (s *sequence) broken(h *modelHold) any {
	done := s.release(h)
	if done == int64(1) {
		s.saw("breaks")
		s.messages["control"] = append(s.messages["control"], h.id)
	}
	return done
}
