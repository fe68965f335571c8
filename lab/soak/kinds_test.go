package soak

import (
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
	"github.com/go-relock/relock/lab/soak/history"
	"github.com/go-relock/relock/store"
)

// Beside the workers, some visitors use the other kinds of locks: a read-write lock around a page, a
// semaphore, several locks at once, a lock that is lent and handed off, one for a leader, and in
// databases a lock that is the transaction's.
const (
	book, pool, errand, chief = "book", "pool", "errand", "chief"

	visitors = 15
	permits  = 2 // of the pool; some callers ask for one more
)

// parts are taken several at once. The first three share a slot of a cluster.
var parts = []string{"{part}0", "{part}1", "{part}2", "part3", "part4", "part5"}

// kindNames are the locks of the visitors that some stores do not serve.
var kindNames = []string{book, pool, errand}

// names returns the names of all locks that the store can serve.
func (s *soak) names() []string {
	return slices.Concat(s.serves, []string{chief}, s.parts, locks)
}

// anyName is a lock of a worker as often as one of a visitor.
func (s *soak) anyName(random *rand.Rand) string {
	if random.IntN(2) == 0 {
		return locks[random.IntN(len(locks))]
	}
	names := s.names()
	return names[random.IntN(len(names)-len(locks))]
}

// kinds is what the visitors share and record.
type kinds struct {
	page    atomic.Int64 // the version that was written last, in sections of the book
	results results

	mu sync.Mutex
	history.Kinds
	did map[string]int
}

// calmed notes when the trouble was over.
func (k *kinds) calmed(at time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Calm = at
}

// visitor locks, works in its section, and unlocks. A visitor records its sections.
type visitor struct {
	*soak
	*rand.Rand
	id   int      // in the history
	peer *peer    // of this visit
	ends []func() // of the contexts of this visit

	brief bool // calls do not wait for long
}

// visitors lets all visitors work, and watches their locks, until the round is over. A waiting call
// is not cut off at the end of the round: the call must return without help.
func (s *soak) visitors(working *sync.WaitGroup, random func(id int) *rand.Rand) {
	const first = troubler + 2
	for i := range visitors {
		v := &visitor{soak: s, Rand: random(first + i), id: first + i}
		visit := v.collects
		switch kind := []string{book, pool, errand, "", chief}[i%5]; {
		case kind == chief:
			visit = v.leads
		case !slices.Contains(s.serves, kind):
		case kind == book:
			visit = v.reads
		case kind == pool:
			visit = v.permits
		case kind == errand:
			visit = v.errands
		}
		working.Go(func() {
			for !v.isOver() {
				v.peer = v.anyone(v.Rand)
				ctx, cancel := context.WithCancel(context.Background())
				visit(ctx, cancel)
				v.end(cancel)
			}
		})
	}
	if !s.mode.Redisson && !s.mode.Quorum { // they name no holder, or holds on their way too
		watcher := random(first + visitors)
		working.Go(func() { s.watchKinds(watcher) })
	}
}

func (v *visitor) end(cancel context.CancelFunc) {
	cancel()
	for _, end := range v.ends {
		end()
	}
	v.ends = nil
}

// lockOf returns the lock of a name as an operator sees it.
func lockOf(p *peer, name string) *relock.Lock {
	switch name {
	case book:
		return p.NewRWLock(name).Writer()
	case pool:
		return p.NewSemaphore(name, permits)
	default:
		return p.NewLock(name)
	}
}

// holders asks the store for all holders of a lock.
func (s *soak) holders(name string) (all []string, err error) {
	state, err := lockOf(s.admin, name).State(context.Background())
	if err != nil || !state.Locked() {
		return nil, err
	}
	all = append(all, state.Holder.String())
	for _, other := range state.Others {
		all = append(all, other.Holder.String())
	}
	return all, nil
}

func (s *soak) watchKinds(random *rand.Rand) {
	for !s.isOver() {
		names := slices.Concat(s.serves, s.parts, []string{chief})
		if s.mode.Passing { // a mutex may have the name of an earlier holder; each leader has its own
			names = slices.DeleteFunc(names, func(name string) bool { return name != book && name != pool && name != chief })
		}
		seen := history.Seen{Lock: names[random.IntN(len(names))], Call: s.log.Now()}
		holders, err := s.holders(seen.Lock)
		if err == nil { // the server may be gone
			seen.Return, seen.Holders = s.log.Now(), holders
			s.kinds.mu.Lock()
			s.kinds.Seen = append(s.kinds.Seen, seen)
			s.kinds.mu.Unlock()
		}
		s.pause(upTo(random, 20*time.Millisecond))
	}
}

// stay is one open section.
type stay struct {
	history.Section
	ctx      context.Context
	lock     *relock.Lock
	upgraded bool // a reader has the token from before its upgrade
}

// isLost says whether err is the loss of this hold. Inside a section of the same lock, as in an upgrade,
// it may be the loss of that section, by the same holder, while this hold lasts.
func (s *stay) isLost(err error) bool {
	var lost *relock.LostError
	return errors.As(err, &lost) && lost.Name == s.Lock && !s.lock.Held(s.ctx)
}

// record ends the recording of a section.
func (s *soak) record(in *stay) {
	s.kinds.mu.Lock()
	defer s.kinds.mu.Unlock()
	s.kinds.Sections = append(s.kinds.Sections, in.Section)
}

func (s *soak) tally(what string) {
	s.kinds.mu.Lock()
	defer s.kinds.mu.Unlock()
	s.kinds.did[what]++
}

// waitingLock is a lock, or several.
type waitingLock interface {
	relock.Locker
	TryLockFor(ctx context.Context, wait time.Duration) (context.Context, error)
}

// call locks in a way of its choice. Only some calls end their wait themselves.
func (v *visitor) call(ctx context.Context, what string, l waitingLock) (inner context.Context, err error) {
	ctx, cancel := context.WithCancel(ctx)
	v.ends = append(v.ends, cancel)
	began, limit, mayFail := time.Now(), time.Hour, false
	some := upTo(v.Rand, 300*time.Millisecond) + time.Millisecond
	ways := 8
	if v.brief {
		ways = 3
	}
	switch v.IntN(ways) {
	case 0:
		limit, mayFail = v.threeTries()*time.Duration(len(v.parts)), true
		inner, err = l.TryLock(ctx)
	case 1:
		limit = some
		inner, err = l.TryLockFor(ctx, some)
	case 2:
		limit = some
		stop := time.AfterFunc(some, cancel)
		inner, err = l.Lock(ctx)
		stop.Stop()
	default:
		inner, err = l.Lock(ctx)
	}
	const giveBack = 50 * time.Millisecond // of what was taken of several locks
	if took := time.Since(began); took > limit+giveBack+v.late() {
		v.wrong.add("%s came back after %s, its limit was %s: %v", what, took, limit, err)
	}
	if err == nil {
		v.tally(what + ": ok")
		return inner, nil
	}
	v.failed(what, err, mayFail)
	if !errors.Is(context.Cause(inner), err) {
		v.wrong.add("%s returns a context that has not ended with its error: %v", what, err)
	}
	return nil, err
}

// failed checks the error of a call.
func (v *visitor) failed(what string, err error, mayFail bool) {
	outcome := ": failed"
	switch {
	case errors.Is(err, relock.ErrDeadlock):
		outcome = ": deadlock"
		// The youngest call of a circle gives up, and may be a call outside of all sections.
		if !strings.Contains(what, "inside") && what != "several" {
			v.wrong.add("%s is a deadlock: %v", what, err)
		}
	case errors.Is(err, relock.ErrLocked):
		outcome = ": refused"
	case errors.Is(err, relock.ErrLockLost): // of the section around
	case mayFail, errors.Is(err, relock.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	default:
		v.wrong.add("%s: %v", what, err)
	}
	v.tally(what + outcome)
}

// enter locks, and begins the recording of a section. around is a section of the same lock; nil:
// none. The result is nil if the call failed.
func (v *visitor) enter(ctx context.Context, what string, l *relock.Lock, limit int, around *stay) *stay {
	asked, group := v.log.Now(), v.log.Hold()
	if around != nil {
		group = around.Group
	} else {
		v.waits(v.id, wait{l.Name(), time.Now()})
	}
	inner, err := v.call(ctx, what, l)
	v.waits(v.id, wait{})
	if err != nil {
		return nil
	}
	return v.begin(inner, l, limit, group, asked)
}

func (v *visitor) begin(inner context.Context, l *relock.Lock, limit, group int, asked time.Duration) *stay {
	now := v.log.Now()
	s := &stay{ctx: inner, lock: l, Section: history.Section{
		Lock: l.Name(), Client: v.id, Group: group, Limit: limit, Ask: asked, In: now, Sure: now, Out: now,
	}}
	if holder, ok := relock.HolderFrom(inner); ok {
		s.Holder = holder.String()
	}
	v.look(s)
	return s
}

// look asks for the belief of the holder, and says whether the holder believes in the lock.
func (v *visitor) look(s *stay) (holds bool) {
	at := v.log.Now()
	left := s.lock.Remaining(s.ctx)
	s.Out = v.log.Now()
	if left > 0 {
		s.Sure, s.Lease = at, max(s.Lease, at+left)
		return true
	}
	if s.Lost == 0 {
		s.Lost = s.Out
	}
	if !untilDone(s.ctx, v.late()) {
		v.wrong.add("a section of %q was not told of its loss", s.Lock)
	}
	return false
}

// leave leaves the section of one lock, or of several.
func (v *visitor) leave(l relock.Locker, all ...*stay) {
	for _, s := range all {
		v.look(s)
	}
	at, began := v.log.Now(), time.Now()
	err := l.Unlock(all[0].ctx)
	if took := time.Since(began); took > unlockLimit+v.late() {
		v.wrong.add("Unlock of %q came back after %s: %v", all[0].Lock, took, err)
	}
	if errors.Is(err, relock.ErrNotHeld) {
		v.wrong.add("an open section of %q is said not to be held: %v", all[0].Lock, err)
	}
	for _, s := range all {
		s.Left, s.Out = at, v.log.Now()
		switch {
		case s.Lost != 0:
		case s.isLost(err):
			s.Lost = s.Out
		case !errors.Is(err, relock.ErrLockLost):
			s.Sure = at
		}
		v.record(s)
	}
}

// abandon waits for the end of holds with a finished context and without an Unlock.
func (v *visitor) abandon(cancel func(), all ...*stay) {
	cancel()
	v.tally("abandoned")
	for _, s := range all {
		for began := time.Now(); v.look(s); <-time.After(10 * time.Millisecond) {
			if time.Since(began) > 3*v.ttl+v.late() {
				v.wrong.add("%q is still held, %s after its context was done", s.Lock, time.Since(began))
				break
			}
		}
		v.record(s)
	}
}

// options chooses the options of a lock.
func (v *visitor) options() []relock.Option {
	switch v.IntN(8) {
	case 0:
		return []relock.Option{relock.WithFixedLease(v.ttl / 2)}
	case 1:
		return []relock.Option{relock.WithTTL(v.ttl / 4)}
	default:
		return nil
	}
}

// linger is a pause in a section. Some are longer than a lease.
func (v *visitor) linger() {
	v.pause(upTo(v.Rand, v.moment()))
	if v.IntN(2*v.seldom()) == 0 {
		v.pause(v.ttl + upTo(v.Rand, v.ttl))
	}
}

// reads looks at the page of the book, or writes it.
func (v *visitor) reads(ctx context.Context, cancel context.CancelFunc) {
	l := v.peer.NewRWLock(book, v.options()...)
	if v.IntN(3) == 0 {
		v.writes(ctx, l)
		return
	}
	r := v.enter(ctx, "RLock", l.RLocker(), store.Unlimited, nil)
	if r == nil {
		return
	}
	v.read(r)
	if v.IntN(3) == 0 {
		v.upgrade(l, r)
	}
	v.read(r)
	if v.IntN(4*v.seldom()) == 0 {
		v.abandon(cancel, r)
		return
	}
	v.leave(l, r)
}

// upgrade writes the page in a section of a reader. The reader sees another version afterwards, so
// its recording begins anew.
func (v *visitor) upgrade(l *relock.RWLock, r *stay) {
	w := v.enter(r.ctx, "Lock inside RLock", l.Writer(), 1, r)
	if w == nil {
		return
	}
	v.look(r)
	v.record(r)
	r.Reads, r.Token, r.In, r.upgraded = nil, 0, r.Sure, true
	v.write(w)
	v.leave(l, w)
}

// writes changes the page. Some writers go on as readers.
func (v *visitor) writes(ctx context.Context, l *relock.RWLock) {
	w := v.enter(ctx, "Lock", l.Writer(), 1, nil)
	if w == nil {
		return
	}
	v.write(w)
	var r *stay
	if v.IntN(3) == 0 {
		r = v.enter(w.ctx, "RLock inside Lock", l.RLocker(), store.Unlimited, w)
	}
	v.leave(l, w)
	if r != nil {
		v.read(r)
		v.leave(l, r)
	}
}

// read reads the page, twice as a rule.
func (v *visitor) read(s *stay) {
	for range 1 + v.IntN(2) {
		version := v.kinds.page.Load()
		if v.look(s) { // the lock was held at the time of look
			s.Reads = append(s.Reads, version)
		}
		v.linger()
	}
	v.draw(s)
}

func (v *visitor) write(s *stay) {
	v.read(s)
	version := int64(v.log.Hold())
	v.eval(s)
	if v.IntN(5) == 0 || !v.look(s) {
		return
	}
	v.kinds.page.Store(version)
	if v.look(s) {
		s.Wrote = version
	} else {
		s.Late = true
	}
}

// draw draws the token of the hold.
func (v *visitor) draw(s *stay) {
	if v.IntN(2) == 0 || s.upgraded {
		return
	}
	token, err := s.lock.Token(s.ctx)
	if err != nil {
		return
	}
	if token < 0 { // a reader's: minus the token of the last writer
		token = -token
	}
	if s.Token != 0 && s.Token != token {
		v.wrong.add("a section of %q has token %d, and had token %d", s.Lock, token, s.Token)
	}
	s.Token = token
}

// permits takes a permit of the pool.
func (v *visitor) permits(ctx context.Context, cancel context.CancelFunc) {
	n := permits + max(0, v.IntN(4)-2)
	l := v.peer.NewSemaphore(pool, n, v.options()...)
	s := v.enter(ctx, "permit", l, n, nil)
	if s == nil {
		return
	}
	for range v.IntN(4) {
		v.linger()
		v.look(s)
		v.draw(s)
		v.eval(s)
	}
	if v.IntN(3) == 0 { // takes no second permit
		if inner, err := v.call(s.ctx, "permit inside a permit", l); err == nil {
			v.look(s)
			_ = l.Unlock(inner)
		}
	}
	if v.IntN(4*v.seldom()) == 0 {
		v.abandon(cancel, s)
		return
	}
	v.leave(l, s)
}

// collects takes several locks at once.
func (v *visitor) collects(ctx context.Context, cancel context.CancelFunc) {
	if w, is := v.world.(transactor); is && v.IntN(3) == 0 {
		v.transacts(ctx, w)
		return
	}
	v.brief = false
	ctx, leave := v.known(ctx)
	defer leave()
	names := v.choose()
	l, all := v.several(ctx, "several", names, nil)
	if l == nil {
		v.requireNone(ctx, names)
		return
	}
	for range v.IntN(3) {
		v.linger()
		v.look(all[v.IntN(len(all))])
	}
	// Nested waits may be a deadlock, which takes seconds to find. In fake time the seconds are
	// free. In Redisson's layout, and in a quorum, deadlocks are not found.
	if v.fake && len(v.serves) > 0 && v.IntN(6) == 0 {
		if inner, more := v.several(all[0].ctx, "several inside several", v.choose(), all); inner != nil {
			v.linger()
			v.leave(inner, more...)
		}
	}
	if v.IntN(4*v.seldom()) == 0 {
		v.abandon(cancel, all...)
		return
	}
	v.leave(l, all...)
}

// known enters a lock of the visitor alone: a failed call has a known holder only inside of a
// section. known does so when the last trouble has ended long ago.
func (v *visitor) known(ctx context.Context) (section context.Context, leave func()) {
	if !v.fake || len(v.serves) == 0 || !isClosed(v.calm) || time.Since(v.calmed) < 2*v.ttl {
		return ctx, func() {}
	}
	v.brief = true
	own := v.peer.NewLock(fmt.Sprint("visitor", v.id))
	section, err := own.Lock(ctx)
	if err != nil {
		v.wrong.add("nobody else wants %q: %v", own.Name(), err)
		return ctx, func() {}
	}
	return section, func() { _ = own.Unlock(section) }
}

// requireNone fails if a call of known has failed, and has kept a lock.
func (v *visitor) requireNone(section context.Context, names []string) {
	holder, ok := relock.HolderFrom(section)
	if !ok {
		return
	}
	<-time.After(v.ttl / 10)
	v.tally("several: none of them kept")
	for _, name := range names {
		holders, err := v.holders(name)
		if err != nil || slices.Contains(holders, holder.String()) {
			v.wrong.add("%q is not given back by %s, whose call has failed: %v", name, holder, err)
		}
	}
}

// choose chooses 2 to 4 of the parts.
func (v *visitor) choose() (names []string) {
	for _, i := range v.Perm(len(v.parts))[:2+v.IntN(3)] {
		names = append(names, v.parts[i])
	}
	return names
}

// several takes several locks at once, and returns the sections of the locks that are not around.
// The Locks is nil if the call failed.
func (v *visitor) several(ctx context.Context, what string, names []string, around []*stay) (*relock.Locks, []*stay) {
	l := v.peer.NewLocks(names, v.options()...)
	asked, group := v.log.Now(), v.log.Hold()
	inner, err := v.call(ctx, what, l)
	if err != nil {
		return nil, nil
	}
	all := []*stay{}
	for _, name := range l.Names() {
		isAround := false
		for _, s := range around {
			isAround = isAround || s.Lock == name
		}
		if !isAround {
			all = append(all, v.begin(inner, v.peer.NewLock(name), 1, group, asked))
		}
	}
	if len(all) == 0 { // all are around
		_ = l.Unlock(inner)
		return nil, nil
	}
	return l, all
}

// takeKinds returns the recording of a round.
func (s *soak) takeKinds(ops []history.Op) *history.Kinds {
	s.kinds.mu.Lock()
	defer s.kinds.mu.Unlock()
	k := s.kinds.Kinds
	s.kinds.Kinds = history.Kinds{}
	k.Ops, k.Quorum, k.Longest = ops, s.mode.Quorum, 2*s.ttl+2*s.patience
	return &k
}
