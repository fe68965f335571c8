package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/soak/history"
)

// watch asks Redis about the locks, often enough to see the inside of most sections.
func (s *soak) watch(random *rand.Rand, id int) {
	for !s.isOver() {
		op := history.Op{Kind: history.State, Lock: locks[random.IntN(len(locks))], Client: id, Late: s.settles(), Call: s.log.Now()}
		state, err := s.admin.NewLock(op.Lock).State(context.Background())
		op.Return = s.log.Now()
		if err == nil { // the server may be gone
			op.Owner, op.Count, op.Token = state.Holder.String(), state.Count, state.Token
			s.log.Add(op)
		}
		s.pause(upTo(random, 8*time.Millisecond))
	}
}

// settles is how long Redis may count wrong after a call that has changed the count. The next
// renewal corrects the count, and a hold that nothing renews ends within one TTL. A late command may
// change the count at any time.
func (s *soak) settles() time.Duration {
	calm := s.patience == nothingTwice || s.fake && isClosed(s.calm) && time.Since(s.calmed) > 2*ttl
	if !calm {
		return time.Hour
	}
	return ttl
}

// fault is one kind of trouble. weight is its frequency, compared with other kinds.
type fault struct {
	name   string
	weight int
	do     func()
}

// trouble makes trouble with single commands, with the networks of clients, and at the server, side
// by side. trouble ends with s.calm.
func (s *soak) trouble(random *rand.Rand) {
	var all sync.WaitGroup
	calm := []int{1, 3, 10}[random.IntN(3)] // much trouble shows other faults than much work
	if len(s.memory) > 0 {
		s.happen(random, time.Duration(calm)*100*time.Millisecond, s.inMemory(random))
		return
	}
	for i, kind := range []struct {
		often  time.Duration // the longest time between two
		faults func(*rand.Rand) []fault
	}{
		{30 * time.Millisecond, s.onCommands}, {150 * time.Millisecond, s.onNetworks}, {400 * time.Millisecond, s.atTheServer},
	} {
		random := rand.New(rand.NewPCG(random.Uint64(), uint64(i)))
		all.Go(func() { s.happen(random, time.Duration(calm)*kind.often, kind.faults(random)) })
	}
	all.Wait()
}

// forces takes locks away, and makes no other trouble. All leases are ttl or less.
func (s *soak) forces(random *rand.Rand) {
	s.happen(random, 60*time.Millisecond, []fault{{"lock forced", 1, func() { s.force(locks[random.IntN(len(locks))], ttl) }}})
}

// happen lets one fault happen after another.
func (s *soak) happen(random *rand.Rand, often time.Duration, faults []fault) {
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	for !isClosed(s.calm) {
		n := random.IntN(sum)
		for _, f := range faults {
			if n -= f.weight; n < 0 {
				from := s.log.Now()
				f.do()
				s.happened(history.Fault{Name: f.name, From: from, Until: s.log.Now()})
				break
			}
		}
		s.pause(upTo(random, often))
	}
}

func (s *soak) happened(f history.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// onCommands is trouble with one command of one client.
func (s *soak) onCommands(random *rand.Rand) []fault {
	scripts := redistest.Named("EVALSHA", "EVAL")
	once := func(action redistest.Action) *redistest.Rule {
		return s.anyone(random).faults.Once(scripts, action)
	}
	how := func() redistest.Break {
		return []redistest.Break{redistest.EOF, redistest.Reset, redistest.Silence}[random.IntN(3)]
	}
	return []fault{
		{"reply lost", 4, func() { once(redistest.DropReply(how())) }},
		{"cut before a script", 2, func() { once(redistest.CutBefore(how())) }},
		{"script sent twice", 2, func() { once(redistest.Duplicate(2, redistest.First)) }},
		{"script runs late", 6, func() { s.letGo(once(redistest.Hold()), upTo(random, 600*time.Millisecond)) }},
		{"script runs very late", 1, func() { s.held = append(s.held, once(redistest.Hold())) }},
		{"very late script let go", 1, func() {
			if len(s.held) > 0 {
				i := random.IntN(len(s.held))
				s.held[i].LetGo()
				s.held = append(s.held[:i], s.held[i+1:]...)
			}
		}},
	}
}

// letGo lets a command run after a while, perhaps after the end of the round.
func (s *soak) letGo(rule *redistest.Rule, after time.Duration) {
	s.ending.Go(func() {
		<-time.After(after)
		rule.Remove()
		rule.LetGo()
	})
}

// onNetworks is trouble with the connections of one client.
func (s *soak) onNetworks(random *rand.Rand) []fault {
	anyone := func() *peer { return s.anyone(random) }
	return []fault{
		{"all connections cut", 3, func() { anyone().faults.Cut() }},
		{"pub/sub cut", 3, func() { anyone().faults.CutPubSub() }},
		{"pub/sub silent", 1, func() { anyone().faults.StallPubSub() }},
		{"pub/sub late", 5, func() {
			p := anyone()
			p.faults.StallPubSub()
			s.pause(upTo(random, 3*ttl/2))
			p.faults.Heal()
		}},
		{"partition", 2, func() {
			p := anyone()
			p.faults.Partition()
			s.pause(upTo(random, 3*ttl/2))
			p.faults.Heal()
		}},
		{"connection refused", 1, func() {
			p := anyone()
			p.faults.Refuse()
			p.faults.Cut()
			s.pause(upTo(random, ttl/2))
			p.faults.Heal()
		}},
		{"slow network", 2, func() {
			p := anyone()
			p.faults.Delay(upTo(random, 50*time.Millisecond))
			s.pause(upTo(random, 200*time.Millisecond))
			p.faults.DelayOneWay(p.up, p.down)
		}},
		{"client closed", 1, func() { s.replace(random.IntN(clients)) }},
	}
}

// atTheServer is trouble for all clients.
func (s *soak) atTheServer(random *rand.Rand) []fault {
	ctx := context.Background()
	anyLock := func() string { return s.anyName(random) }
	faults := []fault{
		{"scripts flushed", 2, func() { _ = s.plain.ScriptFlush(ctx).Err() }},
		{"lock deleted", 1, func() {
			name := anyLock()
			s.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error { return s.plain.Del(ctx, s.baseKey(name)).Err() })
		}},
		{"lock forced", 2, func() { s.force(anyLock(), 0) }},
	}
	if s.fake {
		faults = append(faults, fault{"server stopped", 1, func() { s.stopWorld(random) }})
	} else {
		faults = append(faults, fault{"connections killed", 4, func() {
			kind := []string{"normal", "pubsub"}[random.IntN(2)]
			_ = s.plain.ClientKillByFilter(ctx, "TYPE", kind).Err()
		}}, fault{"server stopped", 1, func() {
			s.server.Pause()
			s.pause(upTo(random, 2*ttl))
			s.server.Resume()
		}})
	}
	if s.redisson { // Redisson needs the counter of tokens, and has no queue
		return faults
	}
	if s.fake {
		saved := "{}"
		faults = append(faults,
			fault{"data saved", 2, func() { saved, _ = s.plain.Eval(ctx, saveScript, nil).Text() }},
			fault{"older data is back", 1, func() { s.bringBack(saved) }})
	} else {
		faults = append(faults,
			fault{"data saved", 2, func() { _ = s.plain.Save(ctx).Err() }},
			// The server starts with the data of the last save, like a lagging replica that is
			// promoted.
			fault{"server killed", 1, func() {
				s.gone(history.Op{Kind: history.Wipe, Old: true}, s.names(), func() error { s.server.Kill(); return nil })
				s.pause(upTo(random, ttl/4))
				s.server.Restart()
			}})
	}
	return append(faults, []fault{
		{"data flushed", 1, func() {
			s.gone(history.Op{Kind: history.Wipe}, s.names(), func() error { return s.plain.FlushAll(ctx).Err() })
		}},
		{"token deleted", 1, func() {
			name := anyLock()
			s.gone(history.Op{Kind: history.Forget}, []string{name}, func() error { return s.plain.Del(ctx, s.baseKey(name)+":token").Err() })
		}},
		{"queue deleted", 1, func() {
			base := s.baseKey(anyLock())
			_ = s.plain.Del(ctx, base+":queue", base+":rw:queue", base+":permits:queue").Err()
		}},
	}...)
}

// troubler is the client number of trouble in the history.
const troubler = 2*workers + 1

// gone makes Redis forget locks, or their tokens.
func (s *soak) gone(op history.Op, names []string, do func() error) {
	op.Client, op.Call = troubler, s.log.Now()
	for range 100 {
		if do() == nil {
			break
		}
	}
	op.Return = s.log.Now()
	for _, op.Lock = range names {
		s.log.Add(op)
	}
}

func (s *soak) force(name string, within time.Duration) {
	op := history.Op{Kind: history.Force, Lock: name, Client: troubler, Within: within, Call: s.log.Now()}
	err := lockOf(s.admin, name).ForceUnlock(context.Background())
	op.Return = s.log.Now()
	switch {
	case err == nil:
	case errors.Is(err, relock.ErrNotHeld):
		op.Outcome = history.NotHeld
	default:
		op.Outcome = history.Failed
	}
	s.log.Add(op)
}

// replace closes a client in the midst of its work, and lets another take its place.
func (s *soak) replace(i int) {
	p := s.newPeer(s.patience)
	s.mu.Lock()
	old := s.peers[i]
	s.peers[i] = p
	s.retired = append(s.retired, old)
	s.mu.Unlock()
	s.ending.Go(func() { _ = old.Close() })
}
