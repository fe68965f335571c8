package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/lab/soak/history"
)

// watch asks Redis about the locks, often enough to see the inside of most sections.
func (s *soak) watch(random *rand.Rand, id int) {
	for !s.isOver() {
		op := history.Op{Kind: history.State, Lock: locks[random.IntN(len(locks))], Client: id, Late: s.settles(), Call: s.log.Now()}
		state, err := s.admin.NewLock(op.Lock).State(context.Background())
		op.Return = s.log.Now()
		if err == nil { // the server may be gone
			op.Owner, op.Count, op.Token = state.Holder.String(), state.Count, state.Token
			if s.mode.Drawn { // the token of a hold that has waited is larger than in State
				op.Token = 0
			}
			s.log.Add(op)
		}
		s.pause(upTo(random, 8*time.Millisecond))
	}
}

// settles is how long Redis may count wrong after a call that has changed the count. The next
// renewal corrects the count, and a hold that nothing renews ends within one TTL. A late command may
// change the count at any time.
func (s *soak) settles() time.Duration {
	calm := s.patience == nothingTwice || s.fake && isClosed(s.calm) && time.Since(s.calmed) > 2*s.ttl
	if !calm {
		return time.Hour
	}
	return s.ttl
}

// fault is one kind of trouble. weight is its frequency, compared with other kinds.
type fault struct {
	name   string
	weight int
	do     func()
}

// troubles is one kind of trouble. often is the longest time between two, beside little work.
type troubles struct {
	often  time.Duration
	faults func(*rand.Rand) []fault
}

// trouble makes the trouble of the world, each kind side by side, until s.calm is closed.
func (s *soak) trouble(random *rand.Rand) {
	var all sync.WaitGroup
	calm := []int{1, 3, 10}[random.IntN(3)] // much trouble shows other faults than much work
	for i, kind := range s.world.troubles() {
		random := rand.New(rand.NewPCG(random.Uint64(), uint64(i)))
		all.Go(func() { s.happen(random, time.Duration(calm)*kind.often, kind.faults(random)) })
	}
	all.Wait()
}

// anywhere is trouble that needs no server.
func (s *soak) anywhere(random *rand.Rand) []fault {
	return []fault{
		{"lock forced", 2, func() { s.force(s.anyName(random), 0) }},
		{"client closed", 1, func() { s.replace(random.IntN(clients)) }},
	}
}

// forces takes locks away, and makes no other trouble. All leases are ttl or less.
func (s *soak) forces(random *rand.Rand) {
	s.happen(random, 60*time.Millisecond, []fault{{"lock forced", 1, func() { s.force(locks[random.IntN(len(locks))], s.ttl) }}})
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
	if len(names) > 1 { // all data
		s.kinds.results.gone(op.Return)
	}
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
	p := s.world.join(s.patience)
	s.mu.Lock()
	old := s.peers[i]
	s.peers[i] = p
	s.retired = append(s.retired, old)
	s.mu.Unlock()
	s.ending.Go(func() { _ = old.Close() })
}
