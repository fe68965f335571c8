package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// A round with trouble excuses a call that is late or refused, and a count that is wrong. A calm
// round has no trouble and excuses nothing: callers line up for a lock, one after the other, and
// each has the lock in its turn. The judge of a line asks that
//
//   - a free lock is given, and a lock that somebody has or waits for is refused to TryLock;
//   - the store counts the entries of the holder, and the waiters. A renewal in flight may make the count
//     wrong until the next entry or exit, and a caller with a fixed lease has no renewal;
//   - the lock is free, or a waiter's, as soon as the last Unlock has returned;
//   - the callers are served in the order of their arrival;
//   - nobody waits for a free lock for longer than a fifth of a TTL;
//   - nothing is left, from the moment at which the last caller has left.
//
// The order of events does not depend on how busy the machine is. Times do, so the fifth of a TTL is
// judged in fake time, and counted in real time. In real time a line is excused, and counted, if a
// lease has ended or a command was sent again, as on a machine that stood still.

// calmEvery is how often a round of a soak in real time is calm, from the first one.
const calmEvery = 4

// calmCallers line up for one lock.
const calmCallers = 6

// calmly makes a calm round.
func (s *soak) calmly(number uint64) {
	s.t.Helper()
	random := rand.New(rand.NewPCG(s.seed, number<<8|253))
	var clients []*peer // without remains of earlier trouble
	for range 3 {
		p := s.world.join(nothingTwice)
		if s.fake {
			p.way.near()
		}
		clients = append(clients, p)
	}
	s.warm(clients[0])
	var lines []*line
	for i, kind := range slices.Concat([]string{"", ""}, s.serves) {
		if kind == errand { // a mutex
			continue
		}
		l := &line{soak: s, Rand: random, kind: kind, name: fmt.Sprintf("calm%dx%d", number, i), clients: clients}
		l.run()
		l.judge()
		lines = append(lines, l)
		if len(l.found.list()) > 0 {
			break
		}
	}
	for _, p := range clients {
		p.end() // and all repeats are known
	}
	for _, l := range lines {
		l.say()
	}
}

// warm waits until the servers serve: a new member of a quorum lets some time pass.
func (s *soak) warm(p *peer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l := p.NewLock("warm")
	section, err := l.Lock(ctx)
	if err == nil {
		err = l.Unlock(section)
	}
	if err != nil {
		s.wrong.add("calm: a new lock is not given: %v", err)
	}
}

// hooks is the option of all clients of a soak: it notes the locks whose commands are sent again, and
// counts the leases that are passed on in a process.
func (s *soak) hooks() relock.Option {
	return relock.WithHooks(event.Hooks{
		Retried: func(e event.Retried) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.repeated[e.Name] = true
		},
		AcquireFinished: func(e event.AcquireFinished) {
			if e.Wake == event.WakePass {
				s.passed.Add(1)
			}
		},
	})
}

// line is the callers for one lock, of which nobody else knows.
type line struct {
	*soak
	*rand.Rand
	kind    string // book, pool, or empty: a mutex
	name    string
	clients []*peer

	found   names       // broken promises
	excused atomic.Bool // a lease has ended in real time

	mu      sync.Mutex
	callers []*caller // in the order of their arrival
	seen    []seen
}

// caller is one call for the lock of a line. All times are of the recorder.
type caller struct {
	lock  *relock.Lock
	limit int
	fixed bool // its lease
	ask   time.Duration
	in    time.Duration // 0: the caller has given up
	// left is when the last Unlock has returned, or the call that has given up.
	left   time.Duration
	holder string

	cancel func()
	done   chan struct{}
}

// seen is one answer of the store: who has the lock.
type seen struct {
	call, back time.Duration
	holders    []string
}

// run lets the callers line up behind an opener, and waits until all have left.
func (l *line) run() {
	openers := 1
	if l.kind == pool {
		openers = permits
	}
	var open []context.Context
	var first []*caller
	for i := range openers {
		c := l.caller(i > 0 || l.IntN(2) == 0)
		section, err := c.lock.TryLock(context.Background())
		c.in = l.log.Now()
		if err != nil {
			l.failed("TryLock of a free lock", err)
			return
		}
		c.holder = holderOf(section)
		open, first = append(open, section), append(first, c)
	}

	var waiting []*caller
	for i := range calmCallers {
		c := l.caller(i > 0 && l.IntN(2) == 0) // a writer is first, so that all behind it wait
		ctx, cancel := context.WithTimeout(context.Background(), l.hang())
		c.cancel, c.done = cancel, make(chan struct{})
		random := rand.New(rand.NewPCG(l.Uint64(), 0))
		go l.visit(ctx, c, random)
		waiting = append(waiting, c)
		l.awaitWaiters(len(waiting), waiting)
	}
	for _, p := range l.clients {
		if section, err := l.of(p, false).TryLock(context.Background()); err == nil {
			l.found.add("TryLock of %q enters before %d waiters", l.name, len(waiting))
			_ = l.of(p, false).Unlock(section)
		} else if !errors.Is(err, relock.ErrLocked) {
			l.failed("TryLock of a lock that is held", err)
		}
	}
	for range l.IntN(3) { // somebody gives up
		i := 1 + l.IntN(len(waiting)-1)
		waiting[i].cancel()
		<-waiting[i].done
		waiting = slices.Delete(waiting, i, i+1)
		l.awaitWaiters(len(waiting), waiting)
	}
	if l.fake && l.IntN(2) == 0 {
		l.rest(l.ttl + upTo(l.Rand, l.ttl)) // past the lease, so that renewal matters
	}
	for i, c := range first {
		l.work(c, open[i], l.Rand)
		l.leave(c, open[i])
	}
	for _, c := range waiting {
		<-c.done
	}
	l.nothingLeft()
}

// hang is the time after which a call is taken to hang.
func (l *line) hang() time.Duration {
	if l.fake {
		return 20 * l.ttl
	}
	return time.Minute
}

// soon is the longest time for which a waiter may wait for a free lock.
func (l *line) soon() time.Duration { return l.ttl / 5 }

// rest lets time pass. The pauses of a round end with it.
func (l *line) rest(d time.Duration) { <-time.After(d) }

// races says whether the waiters of the store have no order.
func (l *line) races() bool { return l.mode.Redisson || l.setting.races }

// of returns the lock of the line.
func (l *line) of(p *peer, reads bool, options ...relock.Option) *relock.Lock {
	switch {
	case l.kind == pool:
		return p.NewSemaphore(l.name, permits, options...)
	case l.kind == book && reads:
		return p.NewRWLock(l.name, options...).RLocker()
	case l.kind == book:
		return p.NewRWLock(l.name, options...).Writer()
	default:
		return p.NewLock(l.name, options...)
	}
}

// caller adds a caller at the end of the line.
func (l *line) caller(reads bool) *caller {
	c := &caller{limit: 1, fixed: l.IntN(2) == 0, ask: l.log.Now()}
	var options []relock.Option
	if c.fixed {
		options = append(options, relock.WithFixedLease(cmp.Or(l.longest, 10*l.ttl)))
	}
	c.lock = l.of(l.clients[l.IntN(len(l.clients))], reads, options...)
	switch {
	case l.kind == pool:
		c.limit = permits
	case l.kind == book && reads:
		c.limit = store.Unlimited
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.callers = append(l.callers, c)
	return c
}

// visit waits for the lock, works, and leaves.
func (l *line) visit(ctx context.Context, c *caller, random *rand.Rand) {
	defer close(c.done)
	defer c.cancel()
	section, err := c.lock.Lock(ctx)
	now := l.log.Now()
	if err != nil {
		c.left = now
		if !errors.Is(err, context.Canceled) { // of a caller that was to give up
			l.failed("Lock", err)
		}
		return
	}
	l.mu.Lock()
	c.in, c.holder = now, holderOf(section)
	l.mu.Unlock()
	l.work(c, section, random)
	l.leave(c, section)
}

func holderOf(section context.Context) string {
	holder, _ := relock.HolderFrom(section)
	return holder.String()
}

// failed judges an error. In real time a machine may be too busy to keep a lease.
func (l *line) failed(what string, err error) {
	if !l.fake && (errors.Is(err, relock.ErrLockLost) || errors.Is(err, relock.ErrUnavailable)) {
		l.excused.Store(true)
		return
	}
	l.found.add("%s of %q: %v", what, l.name, err)
}

// work enters the lock of a mutex again, and leaves it, and has the store count.
func (l *line) work(c *caller, section context.Context, random *rand.Rand) {
	defer l.rest(upTo(random, l.moment()))
	if l.kind != "" {
		return
	}
	open := []context.Context{section}
	enter := func() {
		inner, err := c.lock.Lock(open[random.IntN(len(open))])
		if err != nil {
			l.failed("a nested Lock", err)
			return
		}
		open = append(open, inner)
	}
	leave := func() {
		if err := c.lock.Unlock(open[len(open)-1]); err != nil {
			l.failed("a nested Unlock", err)
		}
		open = open[:len(open)-1]
	}
	count := func() {
		wrong := l.miscount(c, section, len(open))
		if wrong != "" && !c.fixed {
			enter()
			wrong = l.miscount(c, section, len(open))
		}
		if wrong != "" {
			l.found.add("%s", wrong)
		}
	}
	count()
	for range random.IntN(3) {
		enter()
		count()
	}
	if random.IntN(2) == 0 { // after two at once the next one sets the count right
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if inner, err := c.lock.Lock(section); err != nil {
					l.failed("a nested Lock", err)
				} else if err := c.lock.Unlock(inner); err != nil {
					l.failed("a nested Unlock", err)
				}
			})
		}
		both.Wait()
		enter()
		count()
	}
	for len(open) > 1 && len(l.found.list()) == 0 {
		leave()
		count()
	}
	for len(open) > 1 {
		leave()
	}
}

// miscount asks the store for the holder and its entries, and says what is wrong with the answer.
func (l *line) miscount(c *caller, section context.Context, entries int) string {
	state, err := l.look()
	switch {
	case !c.lock.Held(section):
		l.failed("a section", context.Cause(section))
	case err != nil:
		l.failed("State", err)
	case state.Count != entries, !l.isNamed(c, state.Holder.String()):
		return fmt.Sprintf("the store has %d entries of %s for %q, and there are %d of %s",
			state.Count, state.Holder, l.name, entries, c.holder)
	}
	return ""
}

// leave is the last Unlock, with a look at the lock right behind it.
func (l *line) leave(c *caller, section context.Context) {
	err := c.lock.Unlock(section)
	l.mu.Lock()
	c.left = l.log.Now()
	l.mu.Unlock()
	if err != nil {
		l.failed("Unlock", err)
	}
	if _, err := l.look(); err != nil {
		l.failed("State", err)
	}
}

// look asks the store, and notes the answer for the judge.
func (l *line) look() (relock.State, error) {
	now := seen{call: l.log.Now()}
	state, err := l.of(l.clients[0], false).State(context.Background())
	now.back = l.log.Now()
	if err != nil {
		return state, err
	}
	if state.Locked() {
		now.holders = append(now.holders, state.Holder.String())
	}
	for _, other := range state.Others {
		now.holders = append(now.holders, other.Holder.String())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, now)
	return state, nil
}

// awaitWaiters waits until the store counts n waiters: the last caller has arrived, or a caller that
// has given up is forgotten.
func (l *line) awaitWaiters(n int, waiting []*caller) {
	if l.races() { // the store does not count them
		l.rest(l.moment())
		return
	}
	limit := l.hang()
	if l.fake {
		limit = l.soon()
	}
	for began := time.Now(); ; l.rest(time.Millisecond) {
		state, err := l.look()
		if err == nil && state.Waiters == n {
			return
		}
		if l.isAnyIn(waiting) { // which the judge sees
			return
		}
		if time.Since(began) > limit {
			l.found.add("the store counts %d waiters for %q after %s, and %d wait; %v", state.Waiters, l.name, limit, n, err)
			return
		}
	}
}

func (l *line) isAnyIn(waiting []*caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(waiting, func(c *caller) bool { return c.in != 0 })
}

// nothingLeft looks at the lock when all have left. A client may keep a channel for a while; the end of
// the soak asks for channels.
func (l *line) nothingLeft() {
	state, err := l.look()
	left := slices.DeleteFunc(l.world.left(), func(what string) bool {
		return !strings.Contains(what, l.name) || strings.Contains(what, channel)
	})
	if err != nil {
		l.failed("State", err)
	} else if state.Locked() || state.Waiters > 0 || len(left) > 0 {
		l.found.add("everybody has left %q, and this is left: %+v %q", l.name, state, left)
	}
}

// say says what is wrong with a line, unless it is excused.
func (l *line) say() {
	l.soak.mu.Lock()
	repeated := l.repeated[l.name]
	l.soak.mu.Unlock()
	if !l.fake && (repeated || l.excused.Load()) {
		l.did["calm line: excused"]++
		return
	}
	l.did["calm line: ok"]++
	for _, what := range l.found.list() {
		l.wrong.add("calm: %s", what)
	}
}

// judge judges what the callers and the looks have seen.
func (l *line) judge() {
	for _, s := range l.seen {
		for _, holder := range s.holders {
			if !slices.ContainsFunc(l.callers, func(c *caller) bool { return l.mayHave(c, s, holder) }) {
				l.found.add("the store says at %s that %s has %q, which is none of those who may have it: %s",
					s.back, holder, l.name, l.describe())
			}
		}
	}
	for i, c := range l.callers {
		if c.in == 0 {
			continue
		}
		for _, later := range l.callers[i+1:] {
			if later.in != 0 && !l.races() && l.isPassed(c, later) {
				l.found.add("a later caller is served first in %q: %s", l.name, l.describe())
			}
		}
		if slept := l.slept(i); slept <= l.soon() {
			l.did["calm turn: ok"]++
		} else if l.did["calm turn: late"]++; l.fake {
			l.found.add("a caller waits for %s for %q, which is free: %s", slept, l.name, l.describe())
		}
	}
}

// mayHave says whether a caller may have been the holder during a look.
func (l *line) mayHave(c *caller, s seen, holder string) bool {
	if c.ask > s.back || c.left != 0 && c.left < s.call {
		return false
	}
	return c.holder == "" || l.isNamed(c, holder)
}

// isNamed says whether the store may call a caller by the name of a holder. In real time a lease may
// be over before its call hears of it: then the call has the lock with a second name.
func (l *line) isNamed(c *caller, holder string) bool {
	client := func(holder string) string { return holder[:max(strings.LastIndexByte(holder, ':'), 0)] }
	return holder == c.holder || l.mode.Redisson || (l.mode.Passing || !l.fake) && client(holder) == client(c.holder)
}

// isPassed says whether a later caller was served first. Callers that may have the lock together are
// served at the same time, and may notice in any order.
func (l *line) isPassed(c, later *caller) bool {
	if min(c.limit, later.limit) == 1 {
		return later.in < c.in
	}
	return l.fake && later.in < c.in-l.soon()
}

// slept is the longest time for which caller i has waited though the lock was free for it.
func (l *line) slept(i int) (longest time.Duration) {
	c := l.callers[i]
	from := c.ask
	for _, earlier := range l.callers[:i] {
		switch {
		case l.races():
		case earlier.in != 0:
			from = max(from, earlier.in)
		default:
			from = max(from, earlier.left)
		}
	}
	moments := []time.Duration{from, c.in}
	for _, other := range l.callers {
		for _, at := range []time.Duration{other.in, other.left} {
			if at > from && at < c.in {
				moments = append(moments, at)
			}
		}
	}
	slices.Sort(moments)
	since := time.Duration(-1)
	for _, at := range moments {
		if since >= 0 {
			longest = max(longest, at-since)
		}
		switch free := l.isFree(c, at); {
		case !free:
			since = -1
		case since < 0:
			since = at
		}
	}
	return longest
}

// isFree says whether the rule of limits admits a caller from a moment on.
func (l *line) isFree(c *caller, at time.Duration) bool {
	n, limit := 1, c.limit
	for _, other := range l.callers {
		if other != c && other.in != 0 && other.in <= at && (other.left == 0 || other.left > at) {
			n, limit = n+1, min(limit, other.limit)
		}
	}
	return n <= limit
}

func (l *line) describe() string {
	var all []string
	for i, c := range l.callers {
		all = append(all, fmt.Sprintf("caller %d (%s) asked at %s, was in at %s, had left at %s", i, c.holder, c.ask, c.in, c.left))
	}
	return strings.Join(all, "; ")
}
