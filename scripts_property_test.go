package relock

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// Random sequences of commands run against a real server and against a model of the lock, which is plain Go and knows
// only what DESIGN says: a command has its effect once, however often it arrives; a command that arrives late has none on
// what came after it. After each command the server and the model must agree about owner, count, step, queue, lease,
// token and messages.
//
//	RELOCK_SEED=7 RELOCK_SEQUENCES=5000 go test -run TestRandomSequences .
//
// A failure names the sequence: RELOCK_SEQUENCE=123 with the same seed runs that one alone.

const (
	sequences     = 200
	sequenceSteps = 45
	lockCount     = 2
	holderCount   = 6
	clientCount   = 3
)

func TestRandomSequencesOfCommandsLeaveWhatTheModelSays(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := fromEnv(t, "RELOCK_SEED"); s != 0 {
		seed = s
	}
	n := uint64(sequences)
	if s := fromEnv(t, "RELOCK_SEQUENCES"); s != 0 {
		n = s
	} else if testing.Short() {
		n = sequences / 4
	}
	first := uint64(0)
	if s := fromEnv(t, "RELOCK_SEQUENCE"); s != 0 {
		first, n = s, 1
	}
	t.Logf("RELOCK_SEED=%d, %d sequences from %d on", seed, n, first)

	b := newBench(t)
	for i := first; i < first+n; i++ {
		s := &sequence{bench: b, T: t, name: fmt.Sprintf("RELOCK_SEED=%d RELOCK_SEQUENCE=%d", seed, i), rng: rand.New(rand.NewPCG(seed, i))}
		s.run(i)
	}
	if n < sequences {
		return
	}
	// A sequence that never gets anywhere would agree with any model. What follows happens dozens of times and more in a
	// run of the default length.
	for _, event := range []string{
		"acquire ours", "acquire busy", "acquire queued", "acquire lost", "re-entry", "recheck of a waiter",
		"rejoin with the first arrival", "partial release", "last release", "release lost", "renewed", "renewal lost",
		"abandoned owner", "abandoned waiter", "abandoned nothing", "force release", "force release too late",
		"grant by message", "grant by reply", "waiter skipped", "deaf waiter", "lease over", "queue key gone", "token key gone",
		"prepared", "grant that was prepared", "owner in the queue", "lease over of an owner that is in the queue",
		"scripts flushed", "sent twice", "sent thrice", "reply lost", "given up",
		"late command of an older hold of the owner's holder", "late command of the owner, of an older step",
		"late command that takes a free lock", "late command after the end", "queue of three",
		"many in one call", "two of one lock in one call", "entry in a call for many", "exit in a call for many", "late call for many",
	} {
		require.Positive(t, b.seen[event], "%q never happened in %d sequences: %v", event, n, b.seen)
	}
	t.Logf("what happened: %v", b.seen)
}

func fromEnv(t *testing.T, name string) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err, name)
	return n
}

// bench is what sequences have in common: a server, a client whose connections misbehave, and a client that looks.
type bench struct {
	plain   *redis.Client
	faults  *redistest.Faults
	rec     *recorder
	clients []*propertyClient
	loaded  map[string]bool // scripts that the server knows, by name
	seen    map[string]int
}

// propertyClient is one client of the library as the scripts see it: an id, and what it hears.
type propertyClient struct {
	*Client
	ps  *redis.PubSub
	got []*redis.Message
}

func newBench(t *testing.T) *bench {
	t.Helper()
	server := redistest.Start(t)
	b := &bench{
		plain: server.Client(), faults: redistest.NewFaults(), rec: &recorder{},
		loaded: map[string]bool{}, seen: map[string]int{},
	}
	t.Cleanup(b.faults.Close)
	rdb := server.Client(func(o *redis.Options) { o.Dialer, o.DisableIdentity = b.faults.Dialer(nil), true })
	rdb.AddHook(b.rec)
	for i := range clientCount {
		c := &propertyClient{Client: newTestClient(t, rdb, fmt.Sprintf("client-%d", i))}
		c.ps = b.plain.Subscribe(t.Context())
		t.Cleanup(func() { _ = c.ps.Close() })
		c.subscribe(t, controlChannel+c.id)
		b.clients = append(b.clients, c)
	}
	return b
}

// controlChannel is where a client hears a mark, behind which nothing older can come.
const controlChannel = "control:"

func (c *propertyClient) subscribe(t *testing.T, channel string) {
	t.Helper()
	require.NoError(t, c.ps.Subscribe(t.Context(), channel))
	c.readUntil(t, func(m any) bool {
		s, ok := m.(*redis.Subscription)
		return ok && s.Kind == "subscribe" && s.Channel == channel
	})
}

func (c *propertyClient) unsubscribe(t *testing.T, channel string) {
	t.Helper()
	require.NoError(t, c.ps.Unsubscribe(t.Context(), channel))
	c.readUntil(t, func(m any) bool {
		s, ok := m.(*redis.Subscription)
		return ok && s.Kind == "unsubscribe" && s.Channel == channel
	})
}

// readUntil keeps the grants that come before what is waited for.
func (c *propertyClient) readUntil(t *testing.T, is func(any) bool) {
	t.Helper()
	for {
		m, err := c.ps.ReceiveTimeout(t.Context(), 10*time.Second)
		require.NoError(t, err)
		if is(m) {
			return
		}
		if msg, ok := m.(*redis.Message); ok {
			c.got = append(c.got, msg)
		}
	}
}

// recorder remembers the commands that are sent, so that they can be sent again later, and swallows them if told to.
type recorder struct {
	mu      sync.Mutex
	sent    [][]any
	swallow bool
}

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if r.record(cmd) {
			cmd.SetErr(io.ErrUnexpectedEOF) // as from a connection that broke while it was answered
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			r.record(cmd)
		}
		return next(ctx, cmds)
	}
}

func (r *recorder) record(cmd redis.Cmder) (swallow bool) {
	args := plainArgs(cmd.Args())
	if args[0] != "EVALSHA" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, args)
	return r.swallow
}

func (r *recorder) take() [][]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = nil
	return sent
}

func (r *recorder) setSwallow(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.swallow = on
}

// plainArgs is what a command looked like when it was sent: pointers are followed.
func plainArgs(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		if s, ok := a.(*string); ok {
			a = *s
		}
		out[i] = a
	}
	return out
}

// ---------------------------------------------------------------------------------------------------------------------
// The model.

// modelLock is a lock as it should be.
type modelLock struct {
	keys  *keys
	owner *modelHold
	count int
	step  int64
	queue []*modelHold // by arrival
	token int64        // in Redis now, 0 if the key is gone
	top   int64        // the largest that a hold has had

	prepared *prepared  // the next hand-over, as last seen
	before   int64      // the last token before it
	served   *modelHold // the owner, while it has its place in the queue

	subscribed map[*propertyClient]bool

	// What the present command did that only the server knows the numbers of, until check has looked.
	unseen    bool
	handed    bool // it was released, so what was prepared is used up
	newToken  bool
	newWaiter *modelHold
	leaseEnd  int64           // in ms of the server's clock, as last seen; 0: no lease
	leases    []time.Duration // that were set since
}

// modelHold is a hold as its holder knows it, and its place in the model.
type modelHold struct {
	*hold
	lock    *modelLock
	by      *propertyClient
	arrival int64 // its place in the queue, while it has one

	// What its holder knows.
	phase     phase
	first     int64 // its first arrival, 0 before
	local     int   // open entries
	confirmed int64 // the last step that was answered
}

type phase int

const (
	waits phase = iota
	holds
	gone // by its holder's will or knowledge; its commands may still be under way
)

// grantNote is a message that must come.
type grantNote struct {
	hold  *modelHold
	token int64 // 0: another grant has followed within one command, and its number is not known
}

func (l *modelLock) enter(h *modelHold) {
	l.owner, l.count, l.step = h, 1, firstStep
	l.newToken = true
	l.leaseEnd, l.leases = 0, []time.Duration{h.ttl}
}

func (l *modelLock) free() {
	l.served = nil
	l.owner, l.count, l.step, l.leaseEnd, l.leases = nil, 0, 0, 0, nil
}

func (l *modelLock) position(h *modelHold) int { return slices.Index(l.queue, h) }

// leave takes h out of the queue.
func (l *modelLock) leave(h *modelHold) bool {
	i := l.position(h)
	if i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	return i >= 0
}

// grant gives the free lock to the first waiter whose client listens, or that asks itself.
func (s *sequence) grant(l *modelLock, caller *modelHold) {
	for len(l.queue) > 0 {
		h := l.queue[0]
		l.queue = l.queue[1:]
		switch {
		case h == caller:
			s.saw("grant by reply")
		case l.subscribed[h.by]:
			s.saw("grant by message")
			s.expect(h)
		default:
			s.saw("waiter skipped")
			continue
		}
		l.enter(h)
		return
	}
}

// set is what re-entry and partial exit do to the owner.
func (l *modelLock) set(o *op) {
	if o.step < l.step {
		return
	}
	if o.step > firstStep {
		l.count, l.step = o.target, o.step
	}
	if o.lease > 0 {
		l.leases = append(l.leases, o.lease)
	}
}

// op is one command.
type op struct {
	verb    string
	hold    *modelHold
	target  int
	step    int64
	lease   time.Duration
	wait    bool
	arrival int64

	args  []any // as sent
	after int   // number of the command, for messages
}

func (o *op) String() string {
	return fmt.Sprintf("#%d %s %s of %s target=%d step=%d lease=%s wait=%t arrival=%d",
		o.after, o.verb, o.hold.id, o.hold.by.id, o.target, o.step, o.lease, o.wait, o.arrival)
}

const (
	verbAcquire = "acquire"
	verbRelease = "release"
	verbRenew   = "renew"
	verbAbandon = "abandon"
	verbForce   = "force_release"
)

// modelReply is what the model says that a command answers.
type modelReply struct {
	status acquireStatus // acquire
	there  bool          // the others
}

// apply is the whole specification: what a command does when it runs, the first time or the tenth, in time or late.
func (s *sequence) apply(o *op) modelReply {
	h, l := o.hold, o.hold.lock
	l.unseen = true
	mine := l.owner == h
	switch o.verb {
	case verbAcquire:
		return modelReply{status: s.applyAcquire(o)}
	case verbRelease:
		if mine && o.target > 0 {
			l.set(o)
		} else if mine {
			if heir := s.heir(l); heir != nil && !l.handed && l.position(heir) < 0 && l.subscribed[heir.by] {
				l.queue = slices.Insert(l.queue, 0, heir) // the queue's key is gone, but not what is prepared
				s.saw("grant without a queue")
			}
			l.handed = true
			l.free()
			s.grant(l, nil)
		}
	case verbRenew:
		if mine {
			l.leases = append(l.leases, o.lease)
		}
	case verbAbandon:
		queued := l.leave(h)
		if mine {
			l.free()
			s.grant(l, nil)
		}
		return modelReply{there: mine || queued}
	case verbForce:
		if mine {
			l.free()
			s.grant(l, nil)
		}
	}
	return modelReply{there: mine}
}

// heir is the hold for which the next hand-over is prepared, nil if there is none.
func (s *sequence) heir(l *modelLock) *modelHold {
	if l.prepared == nil {
		return nil
	}
	id, _, _ := strings.Cut(l.prepared.member, "|")
	return s.all[slices.IndexFunc(s.all, func(h *modelHold) bool { return h.id == id })]
}

func (s *sequence) applyAcquire(o *op) acquireStatus {
	h, l := o.hold, o.hold.lock
	if l.owner == h {
		l.set(o)
		l.newToken = l.newToken || l.token == 0 && l.before == 0 // the key had gone meanwhile
		return acquireOurs
	}
	if o.target > 1 {
		return acquireLost
	}
	if l.owner == nil {
		s.grant(l, h)
		if l.owner == nil {
			l.enter(h)
		}
		if l.owner == h {
			return acquireOurs
		}
	}
	if !o.wait || !l.subscribed[h.by] { // who cannot hear of a grant is not queued for it
		return acquireBusy
	}
	if l.position(h) < 0 {
		if o.arrival == 0 {
			l.queue = append(l.queue, h)
			l.newWaiter = h
		} else {
			i := slices.IndexFunc(l.queue, func(w *modelHold) bool { return w.arrival > o.arrival })
			if i < 0 {
				i = len(l.queue)
			}
			l.queue = slices.Insert(l.queue, i, h)
			h.arrival = o.arrival
		}
	}
	return acquireQueued
}

// ---------------------------------------------------------------------------------------------------------------------
// One sequence.

type sequence struct {
	*bench
	*testing.T
	name string
	rng  *rand.Rand

	locks   []*modelLock
	holders []Holder
	current map[*modelLock][]*modelHold // by holder, nil if it has none
	all     []*modelHold
	sent    []*op // every command there was
	shared  []*sharedOps
	notes   map[*propertyClient][]*grantNote
	last    map[*modelLock]*grantNote
	trace   []string
	clock   time.Time // the server's, before the present command
}

func (s *sequence) saw(event string) { s.seen[event]++ }
func (s *sequence) one(in int) bool  { return s.rng.IntN(in) == 0 }
func (s *sequence) say(text string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(text, args...))
}

func pick[E any](s *sequence, from []E) E { return from[s.rng.IntN(len(from))] }

func (s *sequence) expect(h *modelHold) {
	n := &grantNote{hold: h}
	s.notes[h.by] = append(s.notes[h.by], n)
	s.last[h.lock] = n
}

func (s *sequence) run(number uint64) {
	s.Helper()
	defer func() {
		if s.Failed() {
			s.Logf("%s:\n%s", s.name, strings.Join(s.trace, "\n"))
		}
	}()
	s.current = map[*modelLock][]*modelHold{}
	s.notes, s.last = map[*propertyClient][]*grantNote{}, map[*modelLock]*grantNote{}
	for i := range lockCount {
		k, err := newKeys(DefaultPrefix, fmt.Sprintf("%d/%d", number, i))
		require.NoError(s, err)
		l := &modelLock{keys: k, subscribed: map[*propertyClient]bool{}}
		s.locks = append(s.locks, l)
		s.current[l] = make([]*modelHold, holderCount)
		for _, c := range s.clients {
			if !s.one(3) {
				s.setSubscribed(l, c, true)
			}
		}
	}
	for range holderCount {
		s.holders = append(s.holders, NewHolder())
	}
	s.clock = s.now()
	for range sequenceSteps {
		s.step()
	}
	s.finish()
}

// ctx is a context that can end, or one that cannot: commands are sent in different ways with them.
func (s *sequence) ctx() context.Context {
	if s.one(2) {
		return context.Background()
	}
	return s.Context()
}

func (s *sequence) now() time.Time {
	s.Helper()
	now, err := s.plain.Time(s.Context()).Result()
	require.NoError(s, err)
	return now
}

func (s *sequence) setSubscribed(l *modelLock, c *propertyClient, on bool) {
	s.Helper()
	s.say("   %s subscribed to %s: %t", c.id, l.keys.name, on)
	l.subscribed[c] = on
	if on {
		c.subscribe(s.T, l.keys.channel(c.id))
	} else {
		c.unsubscribe(s.T, l.keys.channel(c.id))
	}
}

// step is one thing that happens: mostly what some holder does next, sometimes what the world does.
func (s *sequence) step() {
	s.Helper()
	l := pick(s, s.locks)
	l.unseen = true
	switch n := s.rng.IntN(100); {
	case n < 4:
		s.leaseOver(l)
	case n < 5:
		s.tamper(l.keys.queue)
		l.queue, l.served = nil, nil
		s.saw("queue key gone")
	case n < 7:
		s.tamper(l.keys.token)
		l.token = 0
		s.saw("token key gone")
	case n < 13:
		c := pick(s, s.clients)
		s.setSubscribed(l, c, !l.subscribed[c])
	case n < 15:
		s.say("   SCRIPT FLUSH")
		require.NoError(s, s.plain.ScriptFlush(s.Context()).Err())
		clear(s.loaded)
		s.saw("scripts flushed")
	case n < 28:
		s.late()
	case n < 33:
		s.renewMany()
	case n < 35:
		s.force(l)
	case n < 40:
		s.many()
	case n < 42:
		s.lateMany()
	case n < 45 && len(s.all) > 0: // of a hold in whatever state, e.g. by a client that gave up waiting
		s.abandon(pick(s, s.all))
	default:
		i := s.rng.IntN(holderCount)
		if at := slices.Index(s.current[l], l.owner); at >= 0 && s.one(2) {
			i = at // the others can only wait
		}
		if h := s.current[l][i]; h != nil {
			s.act(h)
		} else {
			s.first(l, i)
		}
	}
	s.check(l)
	for _, l := range s.locks {
		for i, h := range s.current[l] {
			if h != nil && h.phase == gone {
				s.current[l][i] = nil
			}
		}
	}
}

func (s *sequence) tamper(key string) {
	s.Helper()
	s.say("   DEL %s", key)
	require.NoError(s, s.plain.Del(s.Context(), key).Err())
}

// leaseOver lets time pass for a lease.
func (s *sequence) leaseOver(l *modelLock) {
	s.Helper()
	if s.one(2) {
		s.tamper(l.keys.base)
	} else {
		s.say("   PEXPIRE %s 1", l.keys.base)
		require.NoError(s, s.plain.PExpire(s.Context(), l.keys.base, time.Millisecond).Err())
		redistest.Eventually(s, 5*time.Second, func() bool { return s.plain.Exists(s.Context(), l.keys.base).Val() == 0 }, "expired")
	}
	if l.owner != nil {
		s.saw("lease over")
	}
	if h := l.served; h != nil { // nobody can tell it from a waiter any more
		l.queue = slices.Insert(l.queue, 0, h)
		s.saw("lease over of an owner that is in the queue")
	}
	l.free()
}

// first is the first entry of a new hold.
func (s *sequence) first(l *modelLock, holder int) {
	s.Helper()
	lease := WithTTL
	if s.one(4) {
		lease = WithFixedLease
	}
	c := pick(s, s.clients)
	h := &modelHold{
		hold: newTestHold(s, c.Client, l.keys, s.holders[holder], lease(time.Duration(10+10*s.rng.IntN(3))*time.Second)),
		lock: l, by: c, confirmed: firstStep,
	}
	s.current[l][holder] = h
	s.all = append(s.all, h)
	s.ask(h, !s.one(3))
}

// ask sends the first entry of h, for the first time or again.
func (s *sequence) ask(h *modelHold, wait bool) {
	s.Helper()
	o := &op{verb: verbAcquire, hold: h, target: 1, step: firstStep, lease: h.ttl, wait: wait}
	if h.first != 0 {
		o.arrival = h.first
		s.saw("recheck of a waiter")
		if h.lock.owner != nil && h.lock.owner != h && h.lock.position(h) < 0 {
			s.saw("rejoin with the first arrival")
		}
	}
	if s.one(12) {
		s.giveUp(o)
		h.phase = gone
		return
	}
	switch r := s.acquire(o); r.status {
	case acquireOurs:
		h.phase, h.local = holds, 1
	case acquireQueued:
		h.phase = waits
		if h.first == 0 {
			h.first = r.arrival
		}
	case acquireBusy:
		if wait {
			s.saw("deaf waiter")
		}
		if h.first == 0 {
			h.phase = gone
		}
	case acquireLost:
		require.Fail(s, "a first entry cannot be lost")
	}
}

// act is what the holder of h does next.
func (s *sequence) act(h *modelHold) {
	s.Helper()
	if h.phase == waits {
		switch {
		case h.lock.owner == h && !s.one(3): // the message has come
			h.phase, h.local = holds, 1
		case s.one(5):
			s.abandon(h)
		case s.one(6): // its client forgets it
			h.phase = gone
		default:
			s.ask(h, true)
		}
		return
	}
	switch n := s.rng.IntN(10); {
	case n < 5 && h.local < 5:
		s.nested(h)
	case n < 6:
		s.extend(h)
	default:
		s.release(h)
	}
}

func (s *sequence) nested(h *modelHold) {
	s.Helper()
	o := &op{verb: verbAcquire, hold: h, target: h.local + 1, step: h.steps + 1, lease: h.renewal()}
	if s.one(8) {
		s.giveUp(o)
		return
	}
	switch r := s.acquire(o); r.status {
	case acquireOurs:
		s.saw("re-entry")
		h.local++
		h.confirmed = o.step
	default:
		require.Equal(s, acquireLost, r.status)
		h.phase = gone
	}
}

// renewal is the lease that re-entry and partial exit ask for.
func (h *modelHold) renewal() time.Duration {
	if h.fixed {
		return 0
	}
	return h.ttl
}

func (s *sequence) release(h *modelHold) {
	s.Helper()
	o := &op{verb: verbRelease, hold: h, target: h.local - 1, step: h.steps + 1, lease: h.renewal()}
	h.local--
	if h.local == 0 {
		h.phase = gone
	}
	if s.one(8) {
		s.giveUp(o)
		return
	}
	s.begin(o)
	want := s.apply(o)
	w := s.disturb()
	there, a, err := h.by.wire.release(s.ctx(), h.hold, o.target, effort{})
	first := w.settle(releaseScript.name)
	s.recorded(o)
	require.NoError(s, err)
	require.Equal(s, w.lost > 0, a.unsure, "unsure")
	// The last release names a hold that the first copy of it has ended.
	require.Equal(s, want.there && (first || o.target > 0), there, "there")
	switch {
	case !want.there:
		s.saw("release lost")
		h.phase = gone
	case o.target > 0:
		s.saw("partial release")
		h.confirmed = o.step
	default:
		s.saw("last release")
	}
}

// acquire sends o, compares the reply with what the model says, and returns it.
func (s *sequence) acquire(o *op) acquisition {
	s.Helper()
	h, l := o.hold, o.hold.lock
	s.begin(o)
	want := s.apply(o).status
	w := s.disturb()
	r, a, err := h.by.wire.acquire(s.ctx(), h.hold, o.target, o.wait, o.arrival, effort{})
	w.settle(acquireScript.name)
	s.recorded(o)
	require.NoError(s, err)
	require.Equal(s, w.lost > 0, a.unsure, "unsure")
	require.Equal(s, want, r.status, "status of the reply %+v", r)
	s.check(l)
	switch r.status {
	case acquireOurs:
		s.saw("acquire ours")
		want := l.token
		if l.before > 0 {
			want = l.before
		}
		require.Equal(s, want, r.token, "token")
		l.top = r.token
	case acquireQueued:
		s.saw("acquire queued")
		require.Equal(s, l.position(h), r.position, "position")
		require.Equal(s, h.arrival, r.arrival, "arrival")
		require.GreaterOrEqual(s, r.token, l.top, "grants from before are not larger")
		if p := l.prepared; p != nil && strings.HasPrefix(p.member, h.id+"|") {
			require.Less(s, r.token, p.token, "the grant to come is")
		} else if l.token > 0 { // else the key had gone
			require.LessOrEqual(s, r.token, l.token, "and neither is any other")
		}
		fallthrough
	case acquireBusy:
		if r.status == acquireBusy {
			s.saw("acquire busy")
		}
		require.Equal(s, l.owner.id, r.owner, "owner")
		left := time.UnixMilli(l.leaseEnd).Sub(s.clock)
		require.InDelta(s, left, r.remaining, float64(time.Second), "remaining")
	case acquireLost:
		s.saw("acquire lost")
	}
	return r
}

// giveUp is a command of which the client has seen no reply, and that has not reached the server either, yet.
func (s *sequence) giveUp(o *op) {
	s.Helper()
	s.begin(o)
	s.say("   given up")
	s.rec.setSwallow(true)
	var err error
	var a answer
	w, once := o.hold.by.wire, effort{tries: 1}
	if o.verb == verbAcquire {
		_, a, err = w.acquire(s.ctx(), o.hold.hold, o.target, o.wait, o.arrival, once)
	} else {
		_, a, err = w.release(s.ctx(), o.hold.hold, o.target, once)
	}
	s.rec.setSwallow(false)
	require.ErrorIs(s, err, io.ErrUnexpectedEOF)
	require.True(s, a.unsure)
	s.recorded(o)
	s.saw("given up")
}

func (s *sequence) extend(h *modelHold) {
	s.Helper()
	o := &op{verb: verbRenew, hold: h, lease: time.Duration(5+s.rng.IntN(60)) * time.Second}
	s.begin(o)
	want := s.apply(o)
	w := s.disturb()
	there, _, err := h.by.wire.extend(s.ctx(), h.hold, o.lease, effort{})
	w.settle(renewScript.name)
	s.recorded(o)
	require.NoError(s, err)
	require.Equal(s, want.there, there, "there")
	s.sawRenewal(h, there)
}

func (s *sequence) sawRenewal(h *modelHold, there bool) {
	if there {
		s.saw("renewed")
		return
	}
	s.saw("renewal lost")
	if h.phase == holds {
		h.phase = gone
	}
}

// renewMany renews holds of both locks in one call, lost ones among them.
func (s *sequence) renewMany() {
	s.Helper()
	var batch []renewal
	var ops []*op
	for _, i := range s.rng.Perm(len(s.all)) {
		if h := s.all[i]; len(batch) < 5 && h.phase == holds {
			o := &op{verb: verbRenew, hold: h, lease: time.Duration(5+s.rng.IntN(40)) * time.Second}
			ops = append(ops, o)
			batch = append(batch, renewal{hold: h.hold, ttl: o.lease})
		}
	}
	if len(batch) == 0 {
		return
	}
	want := make([]modelReply, len(ops))
	for i, o := range ops {
		s.begin(o)
		want[i] = s.apply(o)
	}
	for {
		w := s.disturb()
		for i := range batch {
			batch[i].lost, batch[i].err = false, nil
		}
		s.clients[0].wire.renew(s.Context(), batch)
		w.settle(renewScript.name)
		if batch[0].err == nil {
			break
		}
		require.Positive(s, w.lost, "%v", batch[0].err)
	}
	for i, o := range ops {
		require.NoError(s, batch[i].err)
		require.Equal(s, want[i].there, !batch[i].lost, "%s", o)
		s.sawRenewal(o.hold, want[i].there)
	}
	s.checkAll()
}

func (s *sequence) abandon(h *modelHold) {
	s.Helper()
	o := &op{verb: verbAbandon, hold: h}
	owned := h.lock.owner == h
	s.begin(o)
	switch want := s.apply(o); {
	case owned:
		s.saw("abandoned owner")
	case want.there:
		s.saw("abandoned waiter")
	default:
		s.saw("abandoned nothing")
	}
	for {
		w := s.disturb()
		errs := h.by.wire.abandon(s.Context(), []*orphan{{hold: h.hold}})
		w.settle(abandonScript.name)
		if errs[0] == nil {
			break
		}
		require.Positive(s, w.lost, "%v", errs[0])
	}
	s.recorded(o)
	h.phase = gone
	s.check(h.lock)
}

// force is an operator who frees a lock from the owner that State shows, or that it has shown some time ago.
func (s *sequence) force(l *modelLock) {
	s.Helper()
	if len(s.all) == 0 {
		return
	}
	o := &op{verb: verbForce, hold: pick(s, s.all)}
	if l.owner != nil && !s.one(4) {
		o.hold = l.owner
	}
	s.begin(o)
	if s.apply(o).there {
		s.saw("force release")
	} else {
		s.saw("force release too late")
	}
	w := s.disturb()
	require.NoError(s, s.clients[0].wire.forceRelease(s.ctx(), o.hold.keys, o.hold.id, effort{}))
	w.settle(forceReleaseScript.name)
	s.recorded(o)
	s.check(o.hold.lock)
}

// late delivers a command once more, or for the first time, after whatever has happened since. It must not touch the
// hold of anybody else, a newer hold of its own holder, or what a later step of its own hold has set.
func (s *sequence) late() {
	s.Helper()
	if len(s.sent) == 0 {
		return
	}
	o := pick(s, s.sent)
	l := o.hold.lock
	before := *l
	s.say("   late: %s", o)
	switch {
	case l.owner == nil:
		if s.apply(o); l.owner == o.hold {
			s.saw("late command that takes a free lock")
		}
	case l.owner != o.hold:
		if l.owner.holder == o.hold.holder {
			s.saw("late command of an older hold of the owner's holder")
		}
		s.saw("late command after the end")
		s.apply(o)
		// Not only does the model say so of this one command; it may never say anything else.
		require.Equal(s, before.owner, l.owner)
		require.Equal(s, before.count, l.count)
		require.False(s, l.newToken)
		require.Empty(s, l.leases)
	case o.step != 0 && o.step < l.step && o.target > 0:
		s.saw("late command of the owner, of an older step")
		s.apply(o)
		require.Equal(s, before.owner, l.owner)
		require.Equal(s, before.count, l.count)
		require.Equal(s, before.step, l.step)
	default:
		s.apply(o)
	}
	for range 1 + s.rng.IntN(2) {
		err := s.plain.Do(s.Context(), o.args...).Err()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			source := s.source(o.args[1].(string))
			err = s.plain.Do(s.Context(), slices.Concat([]any{"EVAL", source.source}, o.args[2:])...).Err()
			s.loaded[source.name] = true
		}
		require.NoError(s, err)
	}
	s.check(l)
}

// sharedOps is one script call for many locks: its parts in the order in which they count, and the call.
type sharedOps struct {
	ops  []*op
	args []any
}

// many is several goroutines of one client that enter and leave at once, so that their commands share a script call.
func (s *sequence) many() {
	s.Helper()
	c := pick(s, s.clients)
	var exits, entries []*op
	for _, l := range s.locks {
		for i, h := range s.current[l] {
			switch {
			case h == nil && s.one(3):
				h = &modelHold{
					hold: newTestHold(s, c.Client, l.keys, s.holders[i], WithTTL(time.Duration(10+10*s.rng.IntN(3))*time.Second)),
					lock: l, by: c, confirmed: firstStep,
				}
				s.current[l][i] = h
				s.all = append(s.all, h)
				entries = append(entries, &op{verb: verbAcquire, hold: h, target: 1, step: firstStep, lease: h.ttl})
			case h != nil && h.by == c && h.phase == holds && h.local == 1 &&
				(l.owner == h || l.position(h) < 0): // granted again by an entry of the first copy, it would leave with the second
				exits = append(exits, &op{verb: verbRelease, hold: h, step: h.steps + 1})
			}
		}
	}
	ops := slices.Concat(exits, entries)
	if len(ops) < 2 {
		for _, o := range entries {
			o.hold.phase = gone
		}
		return
	}
	want := make([]modelReply, len(ops))
	for i, o := range ops {
		s.begin(o)
		want[i] = s.apply(o)
		s.saw(map[string]string{verbAcquire: "entry in a call for many", verbRelease: "exit in a call for many"}[o.verb])
	}
	s.saw("many in one call")
	if slices.ContainsFunc(ops[1:], func(o *op) bool { return o.hold.lock == ops[0].hold.lock }) {
		s.saw("two of one lock in one call")
	}

	lanes := &c.wire.lanes
	fillLanes(s.T, lanes)
	got, there, errs := make([]acquisition, len(ops)), make([]bool, len(ops)), make([]error, len(ops))
	var all sync.WaitGroup
	order, next := s.rng.Perm(len(ops)), len(exits)
	for i, n := range order {
		if n >= len(exits) { // entries keep their order, which says who of two has the lock
			order[i], next = next, next+1
		}
	}
	for i, n := range order {
		o := ops[n]
		all.Go(func() {
			if o.verb == verbAcquire {
				got[n], _, errs[n] = c.wire.acquire(s.Context(), o.hold.hold, 1, false, 0, once)
			} else {
				there[n], _, errs[n] = c.wire.release(s.Context(), o.hold.hold, 0, once)
			}
		})
		redistest.Eventually(s, 10*time.Second, func() bool { return lanes.queued() == i+1 }, "it is queued")
	}
	w := s.disturb()
	if w.drop != nil { // with a second try, each would be sent by itself
		w.drop.Remove()
	}
	landLanes(lanes)
	all.Wait()
	first := w.settle(manyScript.name)
	sent := s.rec.take()
	require.NotEmpty(s, sent)
	s.shared = append(s.shared, &sharedOps{ops: ops, args: sent[len(sent)-1]})
	s.checkAll()
	for i, o := range ops {
		require.NoError(s, errs[i])
		h, l := o.hold, o.hold.lock
		if o.verb == verbRelease {
			require.Equal(s, want[i].there && first, there[i], "there, %s", o)
			h.phase, h.local = gone, 0
			continue
		}
		require.Equal(s, want[i].status, got[i].status, "%s: %+v", o, got[i])
		if got[i].status == acquireOurs {
			h.phase, h.local = holds, 1
			require.Equal(s, l.token, got[i].token)
		} else {
			h.phase = gone
			require.Equal(s, l.owner.id, got[i].owner)
		}
	}
}

// lateMany is late for a script call for many locks.
func (s *sequence) lateMany() {
	s.Helper()
	if len(s.shared) == 0 {
		return
	}
	c := pick(s, s.shared)
	s.saw("late call for many")
	for range 1 + s.rng.IntN(2) {
		for _, o := range c.ops {
			s.say("   late, with others: %s", o)
			s.apply(o)
		}
		err := s.plain.Do(s.Context(), c.args...).Err()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			err = s.plain.Do(s.Context(), slices.Concat([]any{"EVAL", manyScript.source}, c.args[2:])...).Err()
			s.loaded[manyScript.name] = true
		}
		require.NoError(s, err)
	}
	s.checkAll()
}

func (s *sequence) source(sha string) *script {
	s.Helper()
	all := []*script{acquireScript, releaseScript, renewScript, abandonScript, stateScript, forceReleaseScript}
	i := slices.IndexFunc(all, func(x *script) bool { return x.sha == sha })
	require.GreaterOrEqual(s, i, 0)
	return all[i]
}

// begin notes a command before it is sent.
func (s *sequence) begin(o *op) {
	o.after = len(s.trace)
	s.say("%s", o)
}

// recorded keeps the last command that was sent, as what o was on the wire.
func (s *sequence) recorded(o *op) {
	s.Helper()
	sent := s.rec.take()
	require.NotEmpty(s, sent)
	o.args = sent[len(sent)-1]
	s.sent = append(s.sent, o)
}

// disturbance is what happens on the wire to one call of the library: each command is sent one to three times in a row,
// any of the replies is the one that arrives, and sometimes none.
type disturbance struct {
	s     *sequence
	keep  redistest.Keep
	rules []*redistest.Rule
	drop  *redistest.Rule

	mu   sync.Mutex
	sent []copies

	lost int // replies, after settle
}

type copies struct {
	eval bool
	n    int
}

func (s *sequence) disturb() *disturbance {
	w := &disturbance{s: s, keep: pick(s, []redistest.Keep{redistest.First, redistest.Last})}
	plan := []int{pick(s, []int{1, 1, 2, 3}), pick(s, []int{1, 2, 3}), pick(s, []int{1, 1, 2})}
	scripts := redistest.Named("EVALSHA", "EVAL")
	w.rules = append(w.rules, s.faults.On(scripts, redistest.DuplicateEach(func(args []string) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := plan[len(w.sent)%len(plan)]
		w.sent = append(w.sent, copies{eval: strings.EqualFold(args[0], "EVAL"), n: n})
		return n
	}, w.keep)))
	if s.one(5) {
		w.drop = s.faults.On(scripts, redistest.DropReply(pick(s, []redistest.Break{redistest.EOF, redistest.Reset}))).Times(1 + s.rng.IntN(2))
		w.rules = append(w.rules, w.drop)
	}
	s.rec.take()
	return w
}

// settle ends the disturbance and says whether the reply that arrived was that of the first run of the script.
func (w *disturbance) settle(script string) (first bool) {
	s := w.s
	for _, r := range w.rules {
		r.Remove()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	runs := 0
	for i, c := range w.sent {
		last := i == len(w.sent)-1
		if !c.eval && !s.loaded[script] {
			continue // the server answered that it does not know the script
		}
		if last && w.keep == redistest.First {
			first = runs == 0
			break
		}
		runs += c.n
		first = runs == 1
	}
	s.loaded[script] = true
	if w.drop != nil {
		w.lost = w.drop.Hits()
	}
	for _, c := range w.sent {
		switch c.n {
		case 2:
			s.saw("sent twice")
		case 3:
			s.saw("sent thrice")
		}
	}
	if w.lost > 0 {
		s.saw("reply lost")
	}
	s.say("   on the wire: %+v, keep %d, replies lost %d", w.sent, w.keep, w.lost)
	return first
}

// ---------------------------------------------------------------------------------------------------------------------
// Looking.

// onDemand is a message that costs nothing until a test fails with it.
type onDemand func() string

func (f onDemand) String() string { return f() }

func (s *sequence) checkAll() {
	s.Helper()
	before := s.clock
	for _, l := range s.locks {
		s.clock = before
		s.check(l)
	}
}

// check compares the server with the model, and takes over the numbers that only the server knows.
func (s *sequence) check(l *modelLock) {
	s.Helper()
	if !l.unseen {
		return
	}
	l.unseen = false
	before := s.clock
	v := look(s.T, s.plain, l.keys)
	s.clock = v.now
	context := onDemand(func() string { return fmt.Sprintf("%s, lock %s: %+v", s.name, l.keys.name, v) })

	// Owner, count and step.
	want := map[string]string{}
	if l.owner != nil {
		want[l.owner.id] = strconv.Itoa(l.count)
		if l.step > firstStep {
			want["step"] = strconv.FormatInt(l.step, 10)
		}
	}
	if !maps.Equal(want, v.hash) {
		require.Equal(s, want, v.hash, context)
	}
	if h := l.owner; h != nil && h.phase == holds && h.confirmed == h.steps && h.confirmed == max(l.step, firstStep) {
		require.Equal(s, h.local, l.count, "what the holder counts; %s", context)
	}

	// The next hand-over, if it is prepared, is that to the first waiter; unless the queue's key is gone.
	before, heir := before, l.prepared
	l.prepared, l.before, l.handed = v.prepared, v.before, false
	if p := v.prepared; p != nil {
		s.saw("prepared")
		require.NotNil(s, l.owner, context)
		require.Greater(s, p.token, v.before, context)
		if len(v.queue) > 0 {
			require.Equal(s, v.queue[0].Member, p.member, context)
		}
	}
	if l.served != nil && v.served == nil {
		l.served = nil
	}
	if z := v.served; z != nil && l.served == nil {
		s.saw("owner in the queue")
		require.Equal(s, l.owner.arrival, int64(z.Score), context)
		require.Equal(s, heir.member, z.Member, "it was granted as it was prepared; %s", context)
		l.served = l.owner
	}

	// The queue, in order.
	if len(l.queue) >= 3 {
		s.saw("queue of three")
	}
	require.Len(s, v.queue, len(l.queue), context)
	for i, h := range l.queue {
		member, arrival := v.queue[i].Member.(string), int64(v.queue[i].Score)
		if h == l.newWaiter {
			h.arrival = arrival
			require.GreaterOrEqual(s, arrival, before.UnixMicro(), context)
			if i > 0 {
				require.Greater(s, arrival, l.queue[i-1].arrival, context)
			}
		}
		if want := fmt.Sprintf("%s|%s|%d", h.id, h.by.id, h.ttl.Milliseconds()); member != want || arrival != h.arrival {
			require.Equal(s, want, member, "place %d; %s", i, context)
			require.Equal(s, h.arrival, arrival, "arrival; %s", context)
		}
	}

	// Tokens only grow, and not from below the clock.
	drawn := v.prepared != nil && (heir == nil || v.prepared.token != heir.token) // for the next hand-over, as the last thing
	given := int64(0)
	switch {
	case l.newToken && heir != nil && strings.HasPrefix(heir.member, l.owner.id+"|") && v.token == l.token:
		s.saw("grant that was prepared")
		given = heir.token
	case l.newToken && !drawn:
		given = v.token
		require.GreaterOrEqual(s, given, before.UnixMicro(), context)
		require.Greater(s, v.tokenEnd, v.now.Add(24*time.Hour-10*time.Second).UnixMilli(), context)
	case l.newToken || drawn:
		require.Greater(s, v.token, l.token, context)
		require.GreaterOrEqual(s, v.token, before.UnixMicro(), context)
	default:
		require.Equal(s, l.token, v.token, context)
	}
	if given > 0 {
		require.Greater(s, given, l.top, context)
	}
	if drawn {
		require.Equal(s, v.token, v.prepared.token, context)
	}
	l.token, l.top = v.token, max(l.top, given)
	if n := s.last[l]; n != nil && l.newToken && l.owner == n.hold {
		n.token = given
	}
	s.last[l] = nil

	// The lease: as set, but never earlier than before.
	if l.owner != nil {
		low, high := l.leaseEnd-v.blurred.Milliseconds(), l.leaseEnd+v.blurred.Milliseconds()
		for _, d := range l.leases {
			low = max(low, before.Add(d-v.slack).UnixMilli())
			high = max(high, v.now.Add(d+v.slack).UnixMilli())
		}
		if v.baseEnd < low || v.baseEnd > high {
			require.Failf(s, "the lease", "ends at %d, not from %d to %d; %s", v.baseEnd, low, high, context)
		}
		l.leaseEnd = v.baseEnd
	}

	// Nothing without a TTL, and a queue that outlives the wait of everybody in it.
	if len(l.queue) > 0 || v.served != nil {
		least := v.now.UnixMilli()
		if h := l.newWaiter; h != nil {
			least = max(l.leaseEnd, v.now.Add(h.ttl).UnixMilli()) + h.ttl.Milliseconds() + 59_000
		}
		require.Greater(s, v.queueEnd, least, context)
	} else {
		require.Zero(s, v.queueEnd, context)
	}
	require.GreaterOrEqual(s, v.tokenEnd, int64(0), context)
	l.newToken, l.newWaiter, l.leases = false, nil, nil
}

// finish gives back whatever is left, in any order. Then nothing is left.
func (s *sequence) finish() {
	s.Helper()
	for _, i := range s.rng.Perm(len(s.all)) {
		if h := s.all[i]; h.lock.owner == h || h.lock.position(h) >= 0 || s.one(10) {
			s.abandon(h)
		}
	}
	// A grant that came after its hold's turn to be abandoned.
	for _, l := range s.locks {
		for l.owner != nil {
			s.abandon(l.owner)
		}
		require.Zero(s, s.plain.Exists(s.Context(), l.keys.base, l.keys.queue).Val(), s.name)
	}
	require.Empty(s, slices.DeleteFunc(redistest.Keys(s, s.plain), func(key string) bool {
		return slices.ContainsFunc(s.locks, func(l *modelLock) bool { return l.keys.token == key })
	}), "keys left over")
	s.messages()
	for _, l := range s.locks {
		for c, on := range l.subscribed {
			if on {
				c.unsubscribe(s.T, l.keys.channel(c.id))
			}
		}
		require.NoError(s, s.plain.Del(s.Context(), l.keys.token).Err())
	}
}

// messages compares what the clients have heard with the grants of the model: each one once.
func (s *sequence) messages() {
	s.Helper()
	top := map[string]int64{}
	for _, c := range s.clients {
		require.NoError(s, s.plain.Publish(s.Context(), controlChannel+c.id, s.name).Err())
		c.readUntil(s.T, func(m any) bool {
			msg, ok := m.(*redis.Message)
			return ok && msg.Channel == controlChannel+c.id
		})
		got := map[string][]*redis.Message{} // by channel: which lock is first in a call for many does not matter
		for _, m := range c.got {
			got[m.Channel] = append(got[m.Channel], m)
		}
		c.got = nil
		clear(top)
		for _, note := range s.notes[c] {
			channel := note.hold.keys.channel(c.id)
			require.NotEmpty(s, got[channel], "%s: no message for %s", s.name, note.hold.id)
			hold, token, ok := grantMessage(got[channel][0].Payload)
			require.True(s, ok, got[channel][0].Payload)
			require.Equal(s, note.hold.id, hold, s.name)
			require.Greater(s, token, top[note.hold.keys.base], s.name)
			top[note.hold.keys.base] = token
			if note.token != 0 {
				require.Equal(s, note.token, token, s.name)
			}
			got[channel] = got[channel][1:]
		}
		for channel, more := range got {
			require.Empty(s, more, "%s: a message too many in %s", s.name, channel)
		}
	}
}
