package redisstore

import (
	"cmp"
	"fmt"
	"maps"
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
	"github.com/go-relock/relock/store"
)

// What random_test.go asks for read-write locks and semaphores: the server and the model of the rule
// have to agree about the holds, their leases, the queue, the messages and the token.

// kindHold is a hold, and what its client knows of its place.
type kindHold struct {
	store.Claim
	client  string
	around  *kindHold // the hold With
	arrival int64     // the score of its last place; 0: it has not queued

	end    int64         // of its lease, in ms of the server's clock
	fresh  time.Duration // the last call has set this lease; 0: no
	longer time.Duration // the last call has made the lease at least so long; 0: no
}

// member returns the member of base.
func (h *kindHold) member() string { return string(h.ID) + "|" + letter(h.Claim) }

// place returns the member of the queue.
func (h *kindHold) place() string {
	return fmt.Sprintf("%s|%d|%s|%s", h.ID, lifetime.Millis(h.TTL), letter(h.Claim), h.With)
}

// isLimited says whether a hold is in the zset of limits.
func (h *kindHold) isLimited() bool { return h.Limit != store.Unlimited }

// kindModel is a lock as it should be.
type kindModel struct {
	*sequence
	in, queue []*kindHold
	lapsed    map[*kindHold]bool // holds whose lease is over, and that nobody has removed yet
	draws     int                // tokens that the last call has drawn
	lease     time.Duration      // the longest lease that the last call has set
	joined    *kindHold          // the last claim has put this hold into the queue, at a time that the server knows
}

// admits is the rule. leaving is a hold that leaves in this call.
func (m *kindModel) admits(h, leaving *kindHold) bool {
	n, least := 1, h.Limit
	for _, other := range m.in {
		if other != h.around && other != leaving {
			n, least = n+1, min(least, other.Limit)
		}
	}
	return n <= least
}

func (m *kindModel) enter(h *kindHold) {
	m.in = append(m.in, h)
	h.fresh, h.longer = h.TTL, 0
	m.lease = max(m.lease, h.TTL)
	if h.Kind == store.ReadWrite && h.Limit == 1 {
		m.draws++
	}
}

// serve drops waiters that do not listen, and lets the others in for as long as the rule admits the
// first of them. caller hears of its grant by the reply.
func (m *kindModel) serve(caller, leaving *kindHold) {
	clear(m.lapsed)
	grants := map[string][]string{}
	for len(m.queue) > 0 {
		h := m.queue[0]
		if h != caller && !m.listens[h.client] {
			m.saw("dead waiter")
			m.queue = m.queue[1:]
			continue
		}
		if !m.admits(h, leaving) {
			m.saw("head waits")
			break
		}
		m.queue = m.queue[1:]
		m.enter(h)
		if h == caller {
			m.saw("grant by reply")
		} else {
			m.saw("grant by message")
			grants[h.client] = append(grants[h.client], h.member())
		}
	}
	for client, ids := range grants {
		if len(ids) > 1 {
			m.saw("grants in one message")
		}
		m.messages[client] = append(m.messages[client], strings.Join(ids, "\n"))
	}
}

func (m *kindModel) acquire(h *kindHold, place string) acquireReply {
	if slices.Contains(m.in, h) {
		m.saw("has already")
		clear(m.lapsed)
		return acquireReply{status: statusOurs, owner: string(h.ID)}
	}
	m.serve(h, nil)
	switch {
	case slices.Contains(m.in, h):
		return acquireReply{status: statusOurs}
	case (h.around != nil || len(m.queue) == 0) && m.admits(h, nil):
		m.saw(m.kindOf("enters", h))
		if len(m.in) > 0 {
			m.saw(m.kindOf("enters beside", h))
		}
		m.enter(h)
		return acquireReply{status: statusOurs}
	case place == noPlace:
		m.saw("busy")
		return acquireReply{status: statusBusy}
	case !m.listens[h.client]:
		m.saw("deaf")
		return acquireReply{status: statusBusy}
	case h.around != nil && len(m.queue) > 0 && m.queue[0].around != nil && m.queue[0].around != h.around:
		m.saw("circle")
		return acquireReply{status: statusCircle, owner: string(m.queue[0].ID)}
	}
	lost := place != newPlace && !slices.Contains(m.queue, h)
	return acquireReply{status: statusQueued, position: m.join(h, place), lost: lost}
}

// kindOf completes the name of an event with the kind of a hold.
func (m *kindModel) kindOf(event string, h *kindHold) string {
	switch {
	case h.Kind == store.Semaphore:
		return event + ": permit"
	case h.around != nil && h.isLimited():
		return event + ": upgrade"
	case h.around != nil:
		return event + ": reader inside a writer"
	case h.isLimited():
		return event + ": writer"
	}
	return event + ": reader"
}

// join puts a hold into the queue: in the order of arrival, and before all others with a hold
// around it. join returns the position.
func (m *kindModel) join(h *kindHold, place string) int {
	if at := slices.Index(m.queue, h); at >= 0 {
		m.saw("keeps its place")
		return at
	}
	arrival, _ := strconv.ParseInt(place, 10, 64)
	if h.around != nil {
		m.saw(m.kindOf("joins", h))
		h.arrival = 1
	} else if m.saw(m.kindOf("joins", h)); arrival > 0 {
		m.saw("has its place again")
		h.arrival = arrival
	} else {
		m.joined, m.queue = h, append(m.queue, h)
		return len(m.queue) - 1
	}
	m.queue = append(m.queue, h)
	slices.SortFunc(m.queue, func(a, b *kindHold) int {
		return cmp.Or(cmp.Compare(a.arrival, b.arrival), cmp.Compare(a.place(), b.place()))
	})
	return slices.Index(m.queue, h)
}

func remove(holds []*kindHold, h *kindHold) []*kindHold {
	return slices.DeleteFunc(slices.Clone(holds), func(o *kindHold) bool { return o == h })
}

func (m *kindModel) release(h *kindHold) int64 {
	leaving := h
	if !slices.Contains(m.in, h) {
		leaving = nil
	}
	if len(m.queue) > 0 {
		m.serve(nil, leaving)
	}
	if leaving == nil && !m.lapsed[h] {
		m.saw("gone")
		return 0
	}
	if m.lapsed[h] {
		m.saw("leaves after its lease")
	} else {
		m.saw(m.kindOf("leaves", h))
	}
	delete(m.lapsed, h)
	m.in = remove(m.in, h)
	return 1
}

func (m *kindModel) forget(h *kindHold) int64 {
	if slices.Contains(m.queue, h) {
		m.saw("forgets a waiter")
		m.queue = remove(m.queue, h)
		before := len(m.in)
		m.release(h)
		if len(m.in) > before {
			m.saw("forgets a waiter in the way")
		}
		return 1
	}
	return m.release(h)
}

func (m *kindModel) broken(h *kindHold) int64 {
	left := m.release(h)
	if left == 1 {
		m.saw("breaks")
		m.messages["control"] = append(m.messages["control"], string(h.ID))
	}
	return left
}

func (m *kindModel) renew(h *kindHold, ttl time.Duration) int64 {
	if !slices.Contains(m.in, h) {
		m.saw("gone")
		return 0
	}
	m.saw("renews")
	h.longer = max(h.longer, ttl)
	m.lease = max(m.lease, ttl)
	return 1
}

// lapse ends the lease of a hold.
func (m *kindModel) lapse(h *kindHold) {
	m.saw("lease over")
	m.in = remove(m.in, h)
	m.lapsed[h] = true
}

// kindCommand is a call of a script for one hold.
type kindCommand struct {
	script *wire.Script
	hold   *kindHold
	ttl    time.Duration
	extra  any // the argument of the verb
	apply  func() any
}

func (c kindCommand) String() string {
	return fmt.Sprintf("%s %v %s", c.script.Name, c.hold.place(), fmt.Sprint(lifetime.Millis(c.ttl), " ", c.extra))
}

// kindSequence is one run of random commands.
type kindSequence struct {
	*kindModel
	kind    store.Kind
	holds   []*kindHold
	sent    []kindCommand
	now     int64 // of the server at the last check, in ms
	longest int64 // the end of the longest lease since base was there
	token   int64 // the largest so far
	lost    bool  // the token key
}

// newKindPlay prepares sequences of the scripts of these kinds, or of a mutant.
func newKindPlay(t *testing.T, server *redistest.Server, old, mutated string) *play {
	t.Helper()
	k := scripts.kinds
	return newPlay(t, server, old, mutated, k.acquire, k.release, k.renew, k.forget, k.token, k.broken)
}

func startKinds(sequence *sequence) func() {
	s := &kindSequence{kindModel: &kindModel{sequence: sequence, lapsed: map[*kindHold]bool{}}}
	s.kind = []store.Kind{store.ReadWrite, store.Semaphore}[s.rng.IntN(5)/3]
	for _, client := range clients {
		s.listen(client, true)
	}
	return s.step
}

func TestKindsRandomCommands(t *testing.T) {
	newKindPlay(t, redistest.Start(t), "", "").runAll(
		t, 150, startKinds,
		"enters: reader", "enters: writer", "enters: upgrade", "enters: reader inside a writer", "enters: permit",
		"enters beside: reader", "enters beside: upgrade", "enters beside: reader inside a writer", "enters beside: permit",
		"joins: reader", "joins: writer", "joins: upgrade", "joins: permit", "has its place again", "keeps its place",
		"has already", "busy", "deaf", "circle", "head waits", "dead waiter", "grant by message", "grant by reply",
		"grants in one message", "leaves: reader", "leaves: writer", "leaves: upgrade", "leaves: permit", "leaves after its lease",
		"gone", "renews", "forgets a waiter", "breaks", "draws a token", "token of the last writer",
		"lease over", "short lease", "base lost", "queue lost", "token lost", "late", "twice", "several in a call",
	)
}

// TestKindsRandomCommandsNotice runs scripts that have a mistake. Some sequence must notice each.
func TestKindsRandomCommandsNotice(t *testing.T) {
	server := redistest.Start(t)
	for mutant, c := range map[string]struct{ old, mutated string }{
		"the hold around a claim counts":                 {"crowd(lock, lock.leaving, a.with)", "crowd(lock, lock.leaving)"},
		"the hold that leaves counts":                    {"crowd(lock, lock.leaving, a.with)", "crowd(lock, nil, a.with)"},
		"readers ignore the queue":                       {"(a.with or lock.waiting", "(a.with or a.mode == 'r' or lock.waiting"},
		"only the head is served":                        {"reading, a.client = reader", "blocked, a.client = true"},
		"a waiter let in by a late release is taken out": {"elseif not lock.leaving then", "elseif false then"},
		"a dead head is kept":                            {"dead = dead + 1\n", "blocked = true\n break\n"},
		"a dead head is kept, if held up":                {"or hold == caller) then", "or hold == caller or not fits(lock, claim(hold, ttl, mode, with))) then"},
		"limits are not cleaned by leave":                {"call('ZREM', lock.limits, a.member)", "local _ = a"},
		"limits are not cleaned by expire":               {"call('ZREM', lock.limits, unpack(over))", "local _ = over"},
		"leases are not ended":                           {"call('ZREM', lock.base, unpack(over))", "local _ = over"},
		"the smallest limit is not asked":                {"math.min(least, limit(a.mode))", "limit(a.mode)"},
		"the own limit is not asked":                     {"math.min(least, limit(a.mode))", "least"},
		"stale limits count for a claim":                 {"call('DEL', lock.base, lock.limits)", "call('DEL', lock.base)"},
		"stale limits count for a leave":                 {"> 0 and not foreign(lock, a) then", "> 0 then"},
		"an upgrade waits at the end":                    {"a.with and 1 or lock.micros", "lock.micros"},
		"two upgrades wait":                              {"if rival and with ~=", "if false and with ~="},
		"one grant of a message":                         {"table.concat(holds[client], '\\n')", "holds[client][1]"},
		"a writer draws no token":                        {"    if a.mode == 'w' then", "    if false then"},
		"the token of readers is new":                    {"tonumber(a.mode) and 0 or last(lock)", "0"},
		"a place moves":                                  {"if not known then", "if true then"},
		"an old arrival counts for nothing":              {"if arrival == '0' then", "if true then"},
		"a lost place is not named":                      {"known or '-' .. arrival", "known or arrival"},
		"acquire renews":                                 {"return {1, a.hold, ending - now}", "admit(lock, {a})\n return {1, a.hold, ending - now}"},
		"renew shortens":                                 {"ending < now + a.ttl then", "true then"},
		"renew leaves the key":                           {"    outlive(lock.base, a.ttl)\n", ""},
		"renew leaves the limits":                        {"    outlive(lock.limits, a.ttl)\n", ""},
		"a shorter lease shortens the key":               {"outlive(lock.base, longest)", "call('PEXPIRE', lock.base, longest)"},
		"limits have no end":                             {"    outlive(lock.limits, longest)\n", ""},
		"the queue has no end":                           {"    call('PEXPIRE', lock.queue, keep)\n", ""},
		"release serves nobody":                          {"return leave(lock, ARGV[1], a)", "return call('ZREM', lock.base, a.member)"},
		"forget serves nobody":                           {"leave(lock, ARGV[1], a)\n  return", "call('ZREM', lock.base, a.member)\n  return"},
		"forget leaves the place":                        {"call('ZREM', lock.queue, placeOf(a))", "0"},
		"break serves nobody":                            {"leave(lock, ARGV[1], a)\n  if", "call('ZREM', lock.base, a.member)\n  if"},
		"break tells nobody":                             {"tell('PUBLISH', control, a.hold)", "local _ = control"},
	} {
		t.Run(mutant, func(t *testing.T) {
			p := newKindPlay(t, server, c.old, c.mutated)
			for i := range uint64(2000) {
				if failure := p.run(7, i, startKinds).failure; failure != "" {
					require.NotContains(t, failure, "script:", "a mistake in Lua is no mutant")
					t.Logf("noticed by sequence %d", i)
					return
				}
			}
			require.FailNow(t, "not noticed")
		})
	}
}

// step does one thing at random, and compares.
func (s *kindSequence) step() {
	switch p := s.rng.IntN(100); {
	case p < 5 && len(s.in) > 0:
		s.lapseOne(s.in[s.rng.IntN(len(s.in))])
	case p < 7:
		s.shortLease()
	case p < 8:
		s.event("base lost", s.base, func() { s.in = nil; clear(s.lapsed) })
	case p < 9:
		s.event("queue lost", s.base+suffix(s.kind)+queueSuffix, func() { s.queue = nil })
	case p < 10:
		s.event("token lost", s.base+tokenSuffix, func() { s.lost = true })
	case p < 16:
		client := clients[s.rng.IntN(len(clients))]
		s.listen(client, !s.listens[client])
	case p < 24 && len(s.sent) > 0:
		s.saw("late")
		s.call(s.sent[s.rng.IntN(len(s.sent))])
	default:
		s.commands()
	}
	s.check()
}

// commands sends a command, alone or with others of its script, once or twice.
func (s *kindSequence) commands() {
	c := s.command()
	s.sent = append(s.sent, c)
	batch := []kindCommand{c}
	for range s.rng.IntN(4) * s.rng.IntN(2) {
		same := slices.DeleteFunc(slices.Clone(s.sent), func(o kindCommand) bool { return o.script != c.script })
		batch = append(batch, same[s.rng.IntN(len(same))])
	}
	s.call(batch...)
	if s.rng.IntN(4) == 0 {
		s.check()
		s.saw("twice")
		s.call(c)
	}
}

// lapseOne ends the lease of a hold, as time does.
func (s *kindSequence) lapseOne(h *kindHold) {
	s.log = append(s.log, "lease over: "+h.member())
	over := redis.Z{Score: float64(s.now - 1), Member: h.member()}
	require.NoError(s, s.rdb.ZAddXX(s.ctx, s.base, over).Err())
	s.lapse(h)
}

// shortLease has a hold that enters, if it can, and stays for the end of its lease.
func (s *kindSequence) shortLease() {
	h := s.newHold()
	h.TTL = 2 * time.Millisecond
	s.call(s.acquiring(h, noPlace))
	if !slices.Contains(s.in, h) {
		return
	}
	s.saw("short lease")
	s.lapse(h)
	for start := s.time(); s.time() <= start+h.TTL.Milliseconds(); {
	}
}

// time returns the time of the server.
func (s *kindSequence) time() int64 {
	now, err := s.rdb.Time(s.ctx).Result()
	require.NoError(s, err)
	return now.UnixMilli()
}

// hold picks a hold, often one that is in or waits.
func (s *kindSequence) hold() *kindHold {
	switch p := s.rng.IntN(10); {
	case p < 3 && len(s.in) > 0:
		return s.in[s.rng.IntN(len(s.in))]
	case p < 5 && len(s.queue) > 0:
		return s.queue[s.rng.IntN(len(s.queue))]
	case p < 7 && len(s.holds) > 0:
		return s.holds[s.rng.IntN(len(s.holds))]
	}
	h := s.newHold()
	s.holds = append(s.holds, h)
	return h
}

// newHold makes a reader, a writer, a hold inside another one, or a permit.
func (s *kindSequence) newHold() *kindHold {
	client := clients[s.rng.IntN(len(clients))]
	h := &kindHold{client: client, Claim: store.Claim{
		Name: s.base, ID: store.ID(newID(client)), TTL: time.Duration(20+s.rng.IntN(3)*20) * time.Second, Kind: s.kind,
	}}
	switch p := s.rng.IntN(10); {
	case s.kind == store.Semaphore:
		h.Limit = 1 + s.rng.IntN(4)
	case p < 4 && len(s.in) > 0:
		h.around = s.in[s.rng.IntN(len(s.in))]
		if s.rng.IntN(4) == 0 && len(s.holds) > 0 { // perhaps it is gone
			h.around = s.holds[s.rng.IntN(len(s.holds))]
		}
		h.With, h.Limit = h.around.ID, 1
		if h.around.isLimited() {
			h.Limit = store.Unlimited
		}
	case p < 8:
		h.Limit = store.Unlimited
	default:
		h.Limit = 1
	}
	return h
}

// acquiring makes the command of a claim.
func (s *kindSequence) acquiring(h *kindHold, place string) kindCommand {
	return kindCommand{scripts.kinds.acquire, h, h.TTL, place, func() any { return s.acquire(h, place) }}
}

// command makes a command of a hold as the store does.
func (s *kindSequence) command() kindCommand {
	h := s.hold()
	switch p := s.rng.IntN(100); {
	case p < 50:
		place := noPlace
		if s.rng.IntN(4) > 0 {
			place = strconv.FormatInt(h.arrival, 10)
		}
		return s.acquiring(h, place)
	case p < 68:
		return kindCommand{scripts.kinds.release, h, h.TTL, "", func() any { return s.release(h) }}
	case p < 78:
		ttl := time.Duration(s.rng.IntN(4)*25) * time.Second
		return kindCommand{scripts.kinds.renew, h, ttl, "", func() any { return s.renew(h, ttl) }}
	case p < 88:
		return kindCommand{scripts.kinds.forget, h, h.TTL, "", func() any { return s.forget(h) }}
	case p < 95:
		return kindCommand{scripts.kinds.token, h, h.TTL, "", func() any { return slices.Contains(s.in, h) }}
	default:
		return kindCommand{scripts.kinds.broken, h, h.TTL, s.store.control(h.client), func() any { return s.broken(h) }}
	}
}

// call runs commands of one script in one call, and compares the replies.
func (s *kindSequence) call(batch ...kindCommand) {
	var keys []string
	args := []any{"PUBLISH"}
	for _, c := range batch {
		unit := kindUnit(c.hold.Claim, lifetime.Millis(c.ttl), c.extra)
		keys, args = append(keys, unit.Keys...), append(args, unit.Args...)
		s.log = append(s.log, c.String())
	}
	replies := s.replies(batch[0].script, keys, args, len(batch))
	for i, c := range batch {
		s.joined = nil
		want := c.apply()
		s.log = append(s.log, fmt.Sprint("  replies ", replies[i]))
		switch c.script {
		case scripts.kinds.acquire:
			s.compareAcquire(c.hold, want.(acquireReply), replies[i])
		case scripts.kinds.token:
			s.compareToken(c.hold, want.(bool), replies[i].(int64))
		default:
			require.Equal(s, want, replies[i], "%v", c)
		}
	}
}

func (s *kindSequence) compareAcquire(h *kindHold, want acquireReply, reply any) {
	got, err := parseAcquireReply(scripts.kinds.acquire, reply)
	require.NoError(s, err)
	require.Equal(s, want.status, got.status, "status of %s", h.place())
	switch got.status {
	case statusOurs:
		require.Equal(s, want.owner, got.owner)
		if got.known {
			require.InDelta(s, s.endOf(h)-s.now, got.remaining.Milliseconds(), 2000)
		}
		return
	case statusCircle:
		require.Equal(s, want.owner, got.owner)
	default:
		at := slices.IndexFunc(s.in, func(o *kindHold) bool { return string(o.ID) == got.owner })
		require.GreaterOrEqual(s, at, 0, "the owner is in: %s", got.owner)
		require.NotSame(s, h.around, s.in[at], "the hold around a claim is no obstacle")
	}
	others := remove(s.in, h.around)
	first := slices.MinFunc(others, func(a, b *kindHold) int { return cmp.Compare(s.endOf(a), s.endOf(b)) })
	require.InDelta(s, s.endOf(first)-s.now, got.remaining.Milliseconds(), 2000, "the first lease that ends")
	if got.status != statusQueued {
		return
	}
	require.Equal(s, want.position, got.position)
	require.Equal(s, want.lost, got.lost)
	if s.joined != nil { // at a time that only the server knows
		require.InDelta(s, s.now, got.number/1000, 2000)
		h.arrival = got.number
	}
	require.Equal(s, h.arrival, got.number)
}

// endOf returns the end of a lease, also of one that the last call has set.
func (s *kindSequence) endOf(h *kindHold) int64 {
	end := h.end
	if h.fresh > 0 {
		end = s.now + h.fresh.Milliseconds()
	}
	if h.longer > 0 {
		end = max(end, s.now+h.longer.Milliseconds())
	}
	return end
}

func (s *kindSequence) compareToken(h *kindHold, isIn bool, got int64) {
	switch {
	case !isIn:
		require.Zero(s, got)
	case h.Kind == store.Semaphore || s.lost || s.token == 0:
		s.saw("draws a token")
		require.Greater(s, got, s.token, "tokens grow")
		s.token, s.lost = got, false
	default:
		s.saw("token of the last writer")
		require.Equal(s, s.token, got)
	}
}

// kindKeys is what a lock has in Redis.
type kindKeys struct {
	base, limits, queue []redis.Z
	token               string
	ends                [4]int64 // of base, limits, queue and token
}

// read reads the keys of the lock, and the time of the server.
func (s *kindSequence) read() (k kindKeys) {
	unit := kindUnit(store.Claim{Name: s.base, Kind: s.kind}, 0, "")
	var now *redis.TimeCmd
	var zsets [3]*redis.ZSliceCmd
	var token *redis.StringCmd
	var ends [4]*redis.Cmd
	_, err := s.rdb.Pipelined(s.ctx, func(p redis.Pipeliner) error {
		now = p.Time(s.ctx)
		for i := range zsets {
			zsets[i] = p.ZRangeWithScores(s.ctx, unit.Keys[i], 0, -1)
		}
		for i, key := range unit.Keys {
			ends[i] = p.Do(s.ctx, "PEXPIRETIME", key)
		}
		p.Publish(s.ctx, "mark", "")
		token = p.Get(s.ctx, unit.Keys[3])
		return nil
	})
	if err != nil {
		require.ErrorIs(s, err, redis.Nil, "no token")
	}
	for i := range ends {
		k.ends[i] = ends[i].Val().(int64)
	}
	s.now = now.Val().UnixMilli()
	k.base, k.limits, k.queue, k.token = zsets[0].Val(), zsets[1].Val(), zsets[2].Val(), token.Val()
	return k
}

// check compares the server with the model.
func (s *kindSequence) check() {
	k := s.read()
	s.checkMessages()
	queue := []redis.Z{}
	for _, h := range s.queue {
		queue = append(queue, redis.Z{Score: float64(h.arrival), Member: h.place()})
	}
	require.Equal(s, queue, k.queue, "the queue")
	s.checkHolds(k)
	s.checkLimits(k)
	s.checkEnds(k)
	s.checkToken(k)
	if s.rng.IntN(8) == 0 {
		s.checkLook()
	}
}

// checkHolds compares the holds, and the ends of their leases with the ends that were seen before.
func (s *kindSequence) checkHolds(k kindKeys) {
	scores := map[string]int64{}
	for _, z := range k.base {
		scores[z.Member.(string)] = int64(z.Score)
	}
	for _, h := range s.in {
		score, ok := scores[h.member()]
		require.True(s, ok, "%s is in", h.member())
		delete(scores, h.member())
		if h.fresh > 0 || h.longer > 0 {
			require.InDelta(s, s.endOf(h), score, 2000, "the lease of %s", h.member())
			require.True(s, h.fresh > 0 || score >= h.end, "a lease only moves later")
		} else {
			require.Equal(s, h.end, score, "nothing has set the lease of %s", h.member())
		}
		h.end, h.fresh, h.longer = score, 0, 0
	}
	for h := range s.lapsed {
		if score, ok := scores[h.member()]; ok {
			require.LessOrEqual(s, score, s.now)
			delete(scores, h.member())
		} else { // the key has ended
			delete(s.lapsed, h)
		}
	}
	require.Empty(s, scores, "holds that should not be in")
}

// checkLimits compares the zset of limits with the holds.
func (s *kindSequence) checkLimits(k kindKeys) {
	limits := map[string]int{}
	for _, z := range k.limits {
		limits[z.Member.(string)] = int(z.Score)
	}
	for _, h := range s.in {
		if h.isLimited() {
			require.Equal(s, h.Limit, limits[h.member()], "the limit of %s", h.member())
			delete(limits, h.member())
		}
	}
	for h := range s.lapsed {
		delete(limits, h.member())
	}
	if len(k.base) > 0 { // else the next claim removes them
		require.Empty(s, limits, "limits of nobody")
	}
}

// slack is by how much the end of a key may differ: a script may be interrupted between two reads
// of the clock.
const slack = 100

// checkEnds compares the ends of the keys with the leases.
func (s *kindSequence) checkEnds(k kindKeys) {
	for i, end := range k.ends {
		require.NotEqual(s, int64(-1), end, "key %d has no end", i)
	}
	for _, h := range s.in {
		require.GreaterOrEqual(s, k.ends[0]+slack, h.end, "base outlives %s", h.member())
		if h.isLimited() {
			require.GreaterOrEqual(s, k.ends[1]+slack, h.end, "the limits outlive %s", h.member())
		}
	}
	if s.lease > 0 {
		s.longest, s.lease = max(s.longest, s.now+s.lease.Milliseconds()), 0
	}
	for _, end := range k.ends[:2] {
		require.LessOrEqual(s, end, s.longest+slack, "no longer than the longest lease")
	}
	for _, h := range s.queue {
		require.Greater(s, k.ends[2], s.now+h.TTL.Milliseconds(), "the queue outlives the leases of its waiters")
	}
	if len(k.base) == 0 && len(k.limits) == 0 {
		s.longest = 0
	}
}

// checkToken compares the token with the largest token so far.
func (s *kindSequence) checkToken(k kindKeys) {
	token, _ := strconv.ParseInt(k.token, 10, 64)
	switch {
	case s.draws > 0:
		require.GreaterOrEqual(s, token, s.token+int64(s.draws), "tokens grow")
		s.token, s.lost, s.draws = token, false, 0
	case s.lost:
		require.Zero(s, token)
	default:
		require.Equal(s, s.token, token, "nobody has drawn a token")
	}
	if token > 0 {
		require.Greater(s, k.ends[3], s.now+(23*time.Hour).Milliseconds(), "the token lives for a day")
	}
}

// checkLook compares what Look says with the model.
func (s *kindSequence) checkLook() {
	state, err := s.store.Look(s.ctx, store.Claim{Name: s.base, Kind: s.kind})
	require.NoError(s, err)
	require.Equal(s, len(s.queue), state.Waiters)
	want, got := map[store.ID]int{}, map[store.ID]int{}
	for _, h := range s.in {
		want[h.ID] = h.Limit
	}
	if state.Owner != "" {
		got[state.Owner] = state.Limit
	}
	for _, o := range state.Others {
		require.GreaterOrEqual(s, o.TTL, state.TTL, "the owner is the hold whose lease ends first")
		got[o.ID] = o.Limit
	}
	require.True(s, maps.Equal(want, got), "%v and %v", want, got)
}
