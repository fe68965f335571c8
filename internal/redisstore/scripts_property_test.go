package redisstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
)

// What random_test.go asks for a mutex: the server and the model have to agree about the owner, the
// count, the lease, the queue and the messages.

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

	newLease time.Duration // the lease is a new one; 0: no
	longer   time.Duration // the lease is at least so long now; 0: no demand
	joined   *modelHold    // the last call has put it into the queue, at a time that the server knows
}

// command is a call of a script for one hold.
type command struct {
	script *wire.Script
	hold   *modelHold
	args   []any // of the unit
	apply  func() any
}

// mutexSequence is one run of random commands.
type mutexSequence struct {
	*sequence
	modelLock
	holds    []*modelHold
	sent     []command
	leaseEnd int64 // in ms of the server's clock
}

func TestRandomCommands(t *testing.T) {
	m := scripts.mutex
	p := newPlay(t, redistest.Start(t), "", "", m.acquire, m.release, m.renew, m.forget, m.token, m.broken, scripts.all, scripts.served)
	p.runAll(
		t, 200, func(s *sequence) func() { return (&mutexSequence{sequence: s}).step },
		"takes", "takes in one step", "has already", "busy", "joins", "keeps its place", "has its place again", "deaf", "grant by message", "grant by reply",
		"dead waiter", "frees", "gone", "renews", "forgets a waiter", "forgets an owner", "serves a queue without an owner", "breaks", "draws a token", "lease over",
		"queue lost", "token lost", "names a run", "takes served places out", "late", "late after the end", "twice", "several in a call",
	)
}

// step does one thing at random, and compares.
func (s *mutexSequence) step() {
	switch p := s.rng.IntN(100); {
	case p < 4:
		s.leaseOver()
	case p < 5, p == 99 && len(s.queue) > 0:
		s.event("queue lost", s.base+queueSuffix, func() { s.queue = nil })
	case p < 6:
		s.event("token lost", s.base+tokenSuffix, func() {})
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

func (s *mutexSequence) leaseOver() {
	s.event("lease over", s.base, func() { s.owner, s.count = nil, 0 })
}

// hold picks a hold, often the owner or a waiter.
func (s *mutexSequence) hold() *modelHold {
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
func (s *mutexSequence) like(h *modelHold) *modelHold {
	other := &modelHold{id: newID(h.client), client: h.client, ttl: h.ttl}
	s.holds = append(s.holds, other)
	return other
}

// claim has a hold ask for the lock.
func (s *mutexSequence) claim(h *modelHold) {
	c := s.acquiring(h)
	s.sent = append(s.sent, c)
	s.call(c)
}

// command makes a command of a hold as the store does.
func (s *mutexSequence) command() command {
	h := s.hold()
	switch p := s.rng.IntN(100); {
	case p < 5:
		return command{scripts.all, h, []any{h.id, lifetime.Millis(h.ttl)}, func() any { return s.all(h) }}
	case p < 45:
		return s.acquiring(h)
	case p < 50:
		return s.serving(h)
	case p < 65:
		return command{scripts.mutex.release, h, []any{h.id}, func() any { return s.release(h) }}
	case p < 78:
		ttl, count := time.Duration(s.rng.IntN(4)*25)*time.Second, 1+s.rng.IntN(3)
		return command{scripts.mutex.renew, h, []any{h.id, lifetime.Millis(ttl), count}, func() any { return s.renew(h, ttl, count) }}
	case p < 88:
		return s.forgetting(h)
	case p < 94:
		return command{scripts.mutex.token, h, []any{h.id, 0}, func() any { return s.drawn(h) }}
	default:
		return command{scripts.mutex.broken, h, []any{h.id, s.store.control(h.client)}, func() any { return s.broken(h) }}
	}
}

func (s *mutexSequence) acquiring(h *modelHold) command {
	place := noPlace
	if s.rng.IntN(4) > 0 {
		place = strconv.FormatInt(h.arrival, 10)
	}
	return command{scripts.mutex.acquire, h, []any{h.id, lifetime.Millis(h.ttl), place}, func() any { return s.acquire(h, place) }}
}

// serving releases a lock behind a run of holds with the same lease, of which some are over.
func (s *mutexSequence) serving(h *modelHold) command {
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
	return command{scripts.served, h, args, func() any { return s.served(h, passed) }}
}

func (s *mutexSequence) forgetting(h *modelHold) command {
	return command{scripts.mutex.forget, h, []any{h.id, lifetime.Millis(h.ttl)}, func() any { return s.forget(h) }}
}

// call runs commands of one script in one call, and compares the replies.
func (s *mutexSequence) call(batch ...command) {
	script := batch[0].script
	var keys []string
	var args []any
	switch script {
	case scripts.mutex.renew, scripts.mutex.token:
	default:
		args = append(args, "PUBLISH")
	}
	for _, c := range batch {
		keys = append(keys, s.base)
		switch script {
		case scripts.mutex.renew:
		case scripts.mutex.token:
			keys = append(keys, s.base+tokenSuffix)
		default:
			keys = append(keys, s.base+queueSuffix)
		}
		args = append(args, c.args...)
		s.log = append(s.log, fmt.Sprintf("%s %v", script.Name, c.args))
	}
	replies := s.replies(script, keys, args, len(batch))
	for i, c := range batch {
		s.joined = nil
		s.compare(c, c.apply(), replies[i])
	}
}

// compare compares what a script has said with what the model says.
func (s *mutexSequence) compare(c command, want, got any) {
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
func (s *mutexSequence) check() {
	hash, err := s.rdb.HGetAll(s.ctx, s.base).Result()
	require.NoError(s, err)
	want := map[string]string{}
	if s.owner != nil {
		want[s.owner.id] = strconv.Itoa(s.count)
	}
	require.Equal(s, want, hash)
	members, err := s.rdb.ZRange(s.ctx, s.base+queueSuffix, 0, -1).Result()
	require.NoError(s, err)
	queue := []string{}
	for _, h := range s.queue {
		queue = append(queue, fmt.Sprintf("%s|%d", h.id, lifetime.Millis(h.ttl)))
	}
	require.Equal(s, queue, members)
	s.checkLease()
	require.NoError(s, s.rdb.Publish(s.ctx, "mark", "").Err())
	s.checkMessages()
}

// checkLease compares the end of the lease with the end that was seen before.
func (s *mutexSequence) checkLease() {
	now, err := s.rdb.Time(s.ctx).Result()
	require.NoError(s, err)
	for _, key := range append([]string{s.base, s.base + queueSuffix}, s.base+tokenSuffix) {
		end := s.rdb.Do(s.ctx, "PEXPIRETIME", key).Val().(int64)
		require.NotEqual(s, int64(-1), end, "%s has no end", key)
		switch {
		case key == s.base+queueSuffix && end > 0:
			for _, h := range s.queue {
				require.Greater(s, end, now.Add(h.ttl).UnixMilli(), "the queue outlives the leases of its waiters")
			}
		case key != s.base || s.owner == nil:
		case s.newLease > 0:
			require.InDelta(s, now.Add(max(s.newLease, s.longer)).UnixMilli(), end, 2000, "the lease")
		default:
			require.InDelta(s, max(s.leaseEnd, now.Add(s.longer).UnixMilli()), end, 2000, "the lease")
			require.GreaterOrEqual(s, end, s.leaseEnd, "a lease only moves later")
			if s.longer == 0 {
				require.Equal(s, s.leaseEnd, end, "nothing has set the lease")
			}
		}
		if key == s.base {
			s.leaseEnd = end
		}
	}
	s.newLease, s.longer = 0, 0
}

// What follows is the whole specification: what a command does when it runs, in time or late, for
// the first time or again.

func (s *mutexSequence) acquire(h *modelHold, place string) any {
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
	if place == noPlace || !s.listens[h.client] {
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
func (s *mutexSequence) all(h *modelHold) any {
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

func (s *mutexSequence) enter(h *modelHold) {
	s.owner, s.count, s.newLease, s.longer = h, 1, h.ttl, 0
}

// grant gives the lock to the first waiter that is there.
func (s *mutexSequence) grant(caller *modelHold) *modelHold {
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
func (s *mutexSequence) message(h *modelHold) string {
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

func (s *mutexSequence) served(h *modelHold, passed []*modelHold) any {
	places := len(s.queue)
	s.queue = slices.DeleteFunc(s.queue, func(o *modelHold) bool { return slices.Contains(passed, o) })
	if len(s.queue) < places {
		s.saw("takes served places out")
	}
	return s.release(h)
}

func (s *mutexSequence) release(h *modelHold) any {
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

func (s *mutexSequence) renew(h *modelHold, ttl time.Duration, count int) any {
	if s.owner != h {
		s.saw("gone")
		return int64(0)
	}
	s.saw("renews")
	s.count, s.longer = count, max(s.longer, ttl)
	return int64(1)
}

func (s *mutexSequence) forget(h *modelHold) any {
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

func (s *mutexSequence) drawn(h *modelHold) any {
	if s.owner != h {
		return int64(0)
	}
	s.saw("draws a token")
	return int64(1) // or whichever
}

func (s *mutexSequence) broken(h *modelHold) any {
	done := s.release(h)
	if done == int64(1) {
		s.saw("breaks")
		s.messages["control"] = append(s.messages["control"], h.id)
	}
	return done
}
