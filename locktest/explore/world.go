package explore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/caller"
)

// A World is one run of a program: its clients, and what it does in their sections.
type World struct {
	// Accident is the name of the accident, as in the name of the subtest; empty: this is the run
	// without an accident, in which no call should fail.
	Accident string

	t        *testing.T
	accident accident
	at       point
	ttl      time.Duration // the longest lease of the run without an accident
	limit    time.Duration // of this run
	took     time.Duration

	mu        sync.Mutex
	memory    *server
	redis     *server
	processes []*process
	points    []point
	marks     int
	granted   int
	holds     map[holding]int
	newest    map[string]int // the newest hold with work, by lock
	struck    string         // the accident and its place
	since     time.Time      // of the accident
	found     *finding
	over      bool
}

// process is a client of the program, and its way to the server.
type process struct {
	world  *World
	number int
	client *relock.Client
	server *server
	names  map[string]bool // of its locks
	steps  map[string]int  // by verb
	until  time.Time       // the process stands still
}

// holding is a holder in a lock.
type holding struct {
	lock   string
	holder relock.Holder
}

// section is a section of a lock, in the values of its context.
type section struct {
	holding
	process   *process
	exclusive bool
	number    int // of the hold, in the order of the grants
	ctx       context.Context
	end       time.Time // of ctx
}

type sectionKey struct{}

// Client returns a client whose locks are in memory, as a process of its own has it. All clients of
// a run share their locks, and the run closes them. Hooks of WithHooks are not called.
func (w *World) Client(options ...relock.Option) *relock.Client {
	w.t.Helper()
	w.mu.Lock()
	if w.memory == nil {
		w.memory = newMemory()
	}
	w.mu.Unlock()
	p := w.add(w.memory)
	return p.open(relock.Open(&link{w.memory.store, p}, p.options(options)...))
}

// Redis is Client over a go-redis client of the program, for programs that need Redis, such as
// those with package once. The server is in the bubble, such as miniredis. The program closes rdb
// and the server, in a cleanup.
func (w *World) Redis(rdb *redis.Client, options ...relock.Option) *relock.Client {
	w.t.Helper()
	w.mu.Lock()
	if w.redis == nil {
		w.redis = newRedis(rdb, options)
	}
	w.mu.Unlock()
	p := w.add(w.redis)
	rdb.AddHook(hook{p})
	return p.open(relock.New(rdb, p.options(options)...))
}

func (w *World) add(s *server) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &process{world: w, number: len(w.processes) + 1, server: s, names: make(map[string]bool), steps: make(map[string]int)}
	w.processes = append(w.processes, p)
	return p
}

func (p *process) options(options []relock.Option) []relock.Option {
	return append(options[:len(options):len(options)], relock.WithHooks(relock.Hooks{Trace: p.trace}))
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
	for _, s := range []*server{w.memory, w.redis} {
		if s != nil {
			s.close()
		}
	}
}

// trace puts a section into the context of each call that has entered.
func (p *process) trace(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	p.names[e.Name] = true
	return nil, func(ctx context.Context, e relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.Accident == "" {
			w.ttl = max(w.ttl, e.TTL)
		}
		h := holding{e.Name, e.Holder}
		if e.Depth == 1 {
			w.granted++
			w.holds[h] = w.granted
		}
		s := &section{h, p, e.Mode == relock.ModeExclusive, w.holds[h], ctx, time.Time{}}
		context.AfterFunc(ctx, s.ended)
		return context.WithValue(ctx, sectionKey{}, s), nil
	}
}

// Work marks a moment of work for which the locks around ctx must be held. ctx is the context of a
// section, or one made from it, also without its end. Call Work at the begin and at the end of work
// that takes long.
func (w *World) Work(ctx context.Context) {
	if s := w.section(ctx); s != nil {
		ended := s.isOver()
		s.process.step(mark, "")
		w.check(s, false, ended)
	}
}

// Fenced marks a moment of work that a fence has let in, and is called inside of the fence. Such
// work may come after the end of its section, but not after work of a newer section of one of the
// locks around ctx. The program needs two workers to show anything. Call Step before the fence.
func (w *World) Fenced(ctx context.Context) {
	if s := w.section(ctx); s != nil {
		w.check(s, true, false)
	}
}

// Step is a moment without work, for an accident. Each command is such a moment too.
func (w *World) Step(ctx context.Context) {
	if s := w.section(ctx); s != nil {
		s.process.step(mark, "")
	}
}

// section returns the innermost section around ctx. Work outside of all sections is a finding.
func (w *World) section(ctx context.Context) *section {
	s, _ := ctx.Value(sectionKey{}).(*section)
	if s == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.marks++
		w.findLocked(&finding{cure: outside})
	}
	return s
}

// check looks at a section, and at those around it.
func (w *World) check(inner *section, fenced, ended bool) {
	for s := inner; s != nil && s.holder == inner.holder; s, _ = s.ctx.Value(sectionKey{}).(*section) {
		without := !fenced && !s.isHeld()
		w.mu.Lock()
		w.marks++
		switch {
		case fenced && s.exclusive && s.number < w.newest[s.lock]:
			w.findLocked(&finding{lock: s.lock, cure: badFence})
		case without && ended:
			w.findLocked(&finding{lock: s.lock, cure: stop})
		case without:
			w.findLocked(&finding{lock: s.lock, cure: fence})
		}
		if s.exclusive {
			w.newest[s.lock] = max(w.newest[s.lock], s.number)
		}
		w.mu.Unlock()
	}
}

// findLocked keeps the finding, or the one before.
func (w *World) findLocked(f *finding) {
	if w.found == nil || w.found.cure == fence && f.cure != fence {
		f.place, f.accident = caller.Line(nil), w.struck
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

// isOver says whether the program can know that the section is over: its context ended at an
// earlier moment, or with Unlock.
func (s *section) isOver() bool {
	s.process.world.mu.Lock()
	defer s.process.world.mu.Unlock()
	return !s.end.IsZero() && s.end.Before(time.Now()) || errors.Is(context.Cause(s.ctx), relock.ErrReleased)
}

// isHeld says whether the section has its lock by the word of the server; while the server is away,
// by the word of the client.
func (s *section) isHeld() bool {
	server := s.process.server
	if away, _ := server.isAway(); away {
		cause := context.Cause(s.ctx)
		return !s.isOver() || !errors.Is(cause, relock.ErrLockLost) && !errors.Is(cause, relock.ErrReleased)
	}
	held := false
	server.each(s.lock, func(l lock) error {
		state, err := l.State(context.Background())
		held = held || state.Holder == s.holder
		for _, other := range state.Others {
			held = held || other.Holder == s.holder
		}
		return err
	})
	return held
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
	}
	strikes := at == w.at && !w.over
	if strikes {
		w.struck, w.since = w.accident.describe(at, lock, caller.Line(nil)), time.Now()
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

// eachLock calls do with all locks that the process has used.
func (p *process) eachLock(do func(l lock) error) {
	p.world.mu.Lock()
	var names []string
	for name := range p.names {
		names = append(names, name)
	}
	p.world.mu.Unlock()
	for _, name := range names {
		p.server.each(name, do)
	}
}

func (p *process) forget() { p.eachLock(p.server.forget) }

func (p *process) breakAll() {
	p.eachLock(func(l lock) error { return l.ForceUnlock(context.Background()) })
}

// interrupt takes the server away from all processes for d, or has it lose all answers.
func (p *process) interrupt(d time.Duration, answers bool) {
	p.server.cut(answers)
	time.AfterFunc(d, p.server.restore)
}
