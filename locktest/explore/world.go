package explore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/caller"
	"github.com/go-relock/relock/internal/sections"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// A World is one run of a program: its clients, and what it does in their sections.
type World struct {
	// Accident is the name of the accident, as in the name of the subtest; empty: this is the run
	// without an accident, in which no call should fail.
	Accident string

	t        *testing.T
	accident accident
	at       point
	alone    int           // the number of the only lock with the accident; 0: all locks
	ttl      time.Duration // the longest lease of the run without an accident
	limit    time.Duration // of this run
	took     time.Duration

	mu        sync.Mutex
	servers   map[string]*server // by the name in the server; memory has none
	processes []*process
	points    []point
	held      map[point][]int // the locks that the process has there, if there are several
	marks     int
	granted   int
	holds     map[holding]int              // their numbers, in the order of the grants
	entered   map[context.Context]*section // each by the context that ends with it
	open      map[*section]bool            // the first section of each hold that has not ended
	newest    map[place]*section           // the newest hold with work, by lock
	struck    string                       // the accident and its place
	since     time.Time                    // of the accident
	found     *finding
	over      bool
}

// process is a client of the program, and its way to its locks.
type process struct {
	world  *World
	number int
	client *relock.Client
	*access
	names []string       // of its locks, in the order of their first use
	steps map[string]int // by verb
	until time.Time      // the process stands still
}

// place is a lock of a server.
type place struct {
	server *server
	key    string
}

// holding is a hold of a holder, while it is open.
type holding struct {
	lock   string
	holder relock.Holder
	mode   event.Mode
}

// section is a section of a client of the run, as far as its begin has told.
type section struct {
	process   *process
	lock      string
	line      string // of the call of Lock
	exclusive bool
	number    int // of the hold
	ctx       context.Context
	end       time.Time // of ctx
	token     int64     // at its last work
}

// Client returns a client whose locks are in memory, as a process of its own has it. All clients of
// a run share their locks, and the run closes them. Hooks of WithHooks are not called, and a lock
// takes none of its own.
func (w *World) Client(options ...relock.Option) *relock.Client {
	w.t.Helper()
	w.mu.Lock()
	memory := w.servers[""]
	if memory == nil {
		memory = &server{memory: mem.New()}
		w.servers[""] = memory
	}
	w.mu.Unlock()
	p := w.add(inMemory(memory))
	return p.open(relock.Open(&link{memory.memory, p}, p.options(options)...))
}

// Redis is Client over a go-redis client of the program, for programs that need Redis, such as
// those with package once. The server is in the bubble, such as miniredis, and keeps a key of the
// run, "relock:explore": rdbs of one server are known by it. The program closes rdb and the server,
// in a cleanup.
func (w *World) Redis(rdb *redis.Client, options ...relock.Option) *relock.Client {
	w.t.Helper()
	own := redis.NewClient(rdb.Options())
	name := nameOf(own)
	w.mu.Lock()
	if w.servers[name] == nil {
		w.servers[name] = &server{restored: func() {}}
	}
	at := w.servers[name]
	w.mu.Unlock()
	p := w.add(inRedis(at, own, options))
	rdb.AddHook(hook{p})
	return p.open(relock.New(rdb, p.options(options)...))
}

func (w *World) add(a *access) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &process{world: w, number: len(w.processes) + 1, access: a, steps: make(map[string]int)}
	w.processes = append(w.processes, p)
	return p
}

func (p *process) options(options []relock.Option) []relock.Option {
	return append(options[:len(options):len(options)], relock.WithHooks(event.Hooks{Trace: p.trace}))
}

func (p *process) open(client *relock.Client, err error) *relock.Client {
	p.world.t.Helper()
	if err != nil {
		p.world.t.Fatal(err)
	}
	p.client = client
	return client
}

// close ends the accident, and closes all clients.
func (w *World) close() {
	w.mu.Lock()
	w.over = true
	for _, p := range w.processes {
		p.until = time.Time{}
	}
	w.mu.Unlock()
	for _, p := range w.processes {
		p.server.restore()
		if p.client != nil {
			_ = p.client.Close()
		}
	}
	for _, p := range w.processes {
		p.access.close()
	}
}

// trace notes the section of each call that has entered.
func (p *process) trace(e event.AcquireStarted) (context.Context, event.TraceFinished) {
	w, line := p.world, caller.Line(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(p.names, e.Name) {
		p.names = append(p.names, e.Name)
	}
	return nil, func(ctx context.Context, e event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
		if e.Err != nil {
			return nil, nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.Accident == "" {
			w.ttl = max(w.ttl, e.TTL)
		}
		h := holding{e.Name, e.Holder, e.Mode}
		s := &section{process: p, lock: e.Name, line: line, exclusive: e.Mode == event.ModeExclusive, ctx: ctx}
		if e.Depth == 1 {
			w.granted++
			w.holds[h] = w.granted
			w.open[s] = true
		}
		s.number = w.holds[h]
		w.entered[ctx] = s
		context.AfterFunc(ctx, s.ended)
		return nil, s.closed
	}
}

// closed notes the end of the hold that s has begun.
func (s *section) closed(event.TraceEnded) {
	s.process.world.mu.Lock()
	defer s.process.world.mu.Unlock()
	delete(s.process.world.open, s)
}

// Work marks a moment of work for which the locks around ctx must be held. ctx is inside of a
// section: a context of Lock, one made from it, also without its end, or one of
// [relock.WithSection]. Call Work at the begin and at the end of work that takes long.
func (w *World) Work(ctx context.Context) {
	w.mark()
	if all := w.around(ctx); len(all) > 0 {
		needed := needed(all) // as the program can know, before the accident
		all[0].process.step(mark, "")
		w.check(needed)
	}
}

// Fenced marks a moment of work that a fence has let in, and is called inside of the fence. Such
// work may come after the end of its section, but not after work of a newer section of one of the
// locks around ctx. The program needs two workers to show anything. Call Step before the fence.
func (w *World) Fenced(ctx context.Context) {
	w.mark()
	for _, s := range w.around(ctx) {
		if s.exclusive {
			w.checkFence(s.section, place{s.process.server, s.Lease.Name}, s.Token)
		}
	}
}

// Step is a moment without work, for an accident. Each command is such a moment too.
func (w *World) Step(ctx context.Context) {
	if all := w.around(ctx); len(all) > 0 {
		all[0].process.step(mark, "")
	}
}

func (w *World) mark() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks++
}

// surrounding is a section around work.
type surrounding struct {
	*section
	sections.Section

	over bool // as far as the program can know
}

// around returns the sections around ctx, innermost first. Work outside of all sections is a
// finding.
func (w *World) around(ctx context.Context) (all []surrounding) {
	around := slices.Collect(sections.Around(ctx)) // takes mutexes of its own
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range around {
		if known := w.entered[s.Context]; known != nil {
			all = append(all, surrounding{section: known, Section: s})
		}
	}
	if len(all) == 0 {
		w.findLocked(&finding{cure: outside})
	}
	return all
}

// needed returns the sections that work needs, and notes which of them are over. A section that the
// program has left is not needed inside of an open section of the same hold, nor if the innermost
// section goes on without it.
func needed(all []surrounding) (needed []surrounding) {
	for i, s := range all {
		goesOn := func(outer surrounding) bool { return outer.number == s.number && !outer.isLeft() }
		if s.isLeft() && (!all[0].isOver() || slices.ContainsFunc(all[i+1:], goesOn)) {
			continue
		}
		s.over = s.isOver()
		needed = append(needed, s)
	}
	return needed
}

// check looks at the sections that work needs.
func (w *World) check(needed []surrounding) {
	for _, s := range needed {
		if !s.isLeft() && s.isHeld() {
			continue
		}
		w.mu.Lock()
		f := &finding{lock: s.lock, cure: fence}
		switch {
		case s.over || needed[0].over:
			f.cure = stop
		case w.struck == "":
			f.cure = taken
		}
		w.findLocked(f)
		w.mu.Unlock()
	}
}

// checkFence looks at work that a fence has let in. Where both sections have a token, the fence
// knows which one is the newer.
func (w *World) checkFence(s *section, of place, token int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.token = token
	newest := w.newest[of]
	isOlder := newest != nil && s.number < newest.number
	if newest != nil && token != 0 && newest.token != 0 {
		isOlder = token < newest.token
	}
	if isOlder {
		w.findLocked(&finding{lock: s.lock, cure: badFence})
	} else {
		w.newest[of] = s
	}
}

// findOpen looks for sections without an Unlock, at the end of the program.
func (w *World) findOpen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.open {
		if s.ctx.Err() == nil { // otherwise its release may be in flight
			w.findLocked(&finding{place: cmp.Or(s.line, "a candidate"), lock: s.lock, cure: unlock})
		}
	}
}

// findLocked keeps the finding, or the one before.
func (w *World) findLocked(f *finding) {
	if w.found == nil || w.found.cure == fence && f.cure != fence {
		f.place, f.accident = cmp.Or(f.place, caller.Line(nil)), w.struck
		if w.struck != "" {
			f.after = time.Since(w.since)
		}
		w.found = f
	}
}

func (s *section) ended() {
	s.process.world.mu.Lock()
	defer s.process.world.mu.Unlock()
	s.end = time.Now()
}

// isLeft says whether the program has left the section.
func (s surrounding) isLeft() bool {
	return s.Left || errors.Is(context.Cause(s.ctx), relock.ErrHandedOff)
}

// isOver says whether the program can know that the section is over: its context ended at an
// earlier moment, or the program has left it or a section around it.
func (s surrounding) isOver() bool {
	s.process.world.mu.Lock()
	defer s.process.world.mu.Unlock()
	return !s.end.IsZero() && s.end.Before(time.Now()) || s.isLeft() || errors.Is(context.Cause(s.ctx), relock.ErrReleased)
}

// isHeld says whether the hold of the section is in its lock, by the word of the store; while the
// server is away, by the word of the client.
func (s surrounding) isHeld() bool {
	var err error
	if away, _ := s.process.server.isAway(); away {
		err = store.ErrUnavailable
	} else {
		err = s.process.look(s.Section)
	}
	switch {
	case err == nil, errors.Is(err, store.ErrRecalled): // a borrower may finish
		return true
	case errors.Is(err, store.ErrGone):
		return false
	default:
		return !s.isOver() || !errors.Is(context.Cause(s.ctx), relock.ErrLockLost)
	}
}

// step is one step of the process. The accident may happen now.
func (p *process) step(verb, lock string) {
	p.stand()
	w := p.world
	w.mu.Lock()
	p.steps[verb]++
	at := point{p.number, verb, p.steps[verb]}
	if w.Accident == "" && !w.over {
		w.points = append(w.points, at)
		w.held[at] = p.heldLocked()
	}
	strikes := at == w.at && !w.over && w.alone <= len(p.names)
	if strikes {
		w.struck, w.since = w.describe(p, lock, caller.Line(nil)), time.Now()
	}
	w.mu.Unlock()
	if strikes {
		w.accident.strike(p)
		p.stand()
	}
}

func (p *process) standFor(d time.Duration) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.until = time.Now().Add(d)
}

// stand keeps the caller while its process stands still.
func (p *process) stand() {
	p.world.mu.Lock()
	d := time.Until(p.until)
	p.world.mu.Unlock()
	if d > 0 {
		<-time.After(d)
	}
}

// maxAlone bounds the locks of a process that have accidents of their own at one step.
const maxAlone = 5

// heldLocked returns the numbers of the locks that the process has, from 1; none if it has one
// lock only.
func (p *process) heldLocked() (numbers []int) {
	for i, name := range p.names {
		for s := range p.world.open {
			if s.process == p && s.lock == name && s.ctx.Err() == nil && len(numbers) < maxAlone {
				numbers = append(numbers, i+1)
				break
			}
		}
	}
	if len(numbers) < 2 {
		return nil
	}
	return numbers
}

// eachLock calls do with all locks that the process has used, or with the lock of the accident.
func (p *process) eachLock(do func(l lock) error) {
	p.world.mu.Lock()
	names := slices.Clone(p.names)
	p.world.mu.Unlock()
	if n := p.world.alone; n > 0 {
		names = names[n-1 : n]
	}
	for _, name := range names {
		p.each(name, do)
	}
}

func (p *process) forgetLocks() { p.eachLock(p.forget) }

func (p *process) breakLocks() {
	p.eachLock(func(l lock) error { return l.ForceUnlock(context.Background()) })
}

// interrupt takes the server away from all processes for d, or has it lose all answers.
func (p *process) interrupt(d time.Duration, answers bool) {
	p.server.cut(answers)
	time.AfterFunc(d, p.server.restore)
}
