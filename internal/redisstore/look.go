package redisstore

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file says when a waiter asks again by itself: when the lease of the owner should be over, as
// the owner may be dead, and the queue may be lost. The waiters of a store for one lock take turns:
// the answer to one of them serves all behind it.

const (
	// stagger is the time between a waiter and the one before it in the queue: the first one has the
	// lock by then, unless it is dead, too.
	stagger = time.Millisecond
	// glance is how long a waiter rests while another one awaits its answer: the answer may say that
	// the queue is lost, or be the lock.
	glance = 50 * time.Millisecond
)

// leaseLeft returns for how long the owner's lease should last from an answer on. Of a lease that is
// longer than its own, or has no end, a waiter waits out as much as its own: the lock may have
// another owner by then, with a shorter lease.
func leaseLeft(a store.Claim, r acquireReply) time.Duration {
	if r.remaining < 0 { // a foreign key without a lease
		return a.TTL
	}
	return min(r.remaining, a.TTL)
}

// turn returns how long behind the end of a lease a waiter asks: at once, if it is the first one.
// Redis ends a lease up to a millisecond late.
func turn(a store.Claim, r acquireReply) time.Duration {
	behind, longest := time.Duration(r.position)*stagger, a.TTL/3
	if behind > longest {
		behind = rand.N(longest + 1)
	}
	return time.Millisecond + behind
}

// looks is what the waiters of a store know together.
type looks struct {
	mu sync.Mutex
	of map[crowd]look
}

// crowd is the waiters for one lock with the same TTL, of any kind: they all wait for the same owner.
type crowd struct {
	name string
	ttl  time.Duration
}

// look is the last answer to a crowd, or to the earlier one of two waiters.
type look struct {
	waiters int   // in the crowd
	arrival int64 // of the waiter with the answer
	answer  acquireReply
	asked   time.Time // when the command of the answer was sent, or is sent now
	until   time.Time // the lease of the owner should be over; while an answer is awaited, a limit
	awaited bool      // that answer
	lost    time.Time // when the places of all waiters were in doubt last
}

// looker is a waiter in its crowd. A waiter inside of another hold has other obstacles than the
// waiters behind it, and so no crowd.
type looker struct {
	*looks
	crowd   crowd
	arrival int64
	asked   time.Time // when the command of the last answer was sent, or the place was back
	turn    time.Duration
	joined  bool
}

// note notes the answer to a waiter with a place.
func (l *looker) note(a store.Claim, r acquireReply, answer wire.Answer) {
	before, now := l.asked, time.Now()
	l.arrival, l.asked, l.turn = r.number, answer.Sent, turn(a, r)
	if a.With != "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.of[l.crowd]
	if !l.joined {
		l.joined = true
		k.waiters++
	}
	if r.lost && !before.Before(k.lost) { // a new loss: the others may have lost their places, too
		k.lost = now
	}
	if r.lost { // the place is back
		l.asked = now
	}
	if l.arrival <= k.arrival || now.After(k.until) {
		k.arrival, k.answer, k.asked = l.arrival, r, l.asked
		if !answer.Unsure { // else the lost answer may have said that the place was lost: the next one asks, too
			k.until, k.awaited = now.Add(leaseLeft(a, r)), false
		}
	}
	l.of[l.crowd] = k
}

// rest returns how long the waiter goes on to sleep when its time is over, as an earlier waiter has
// a newer answer that holds, and that answer. An older answer may name a former owner, whose lease
// was longer than that of the owner that the waiter has seen. 0: the waiter asks, and the others wait
// for the answer until limit.
func (l *looker) rest(limit time.Duration) (time.Duration, acquireReply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, now := l.of[l.crowd], time.Now()
	switch left := k.until.Sub(now); {
	case !l.joined, l.asked.Before(k.lost):
		return 0, k.answer
	case left > 0 && k.arrival < l.arrival && k.asked.After(l.asked):
		if k.awaited {
			left = min(left, glance)
		}
		return left + l.turn, k.answer
	}
	k.arrival, k.asked, k.until, k.awaited = l.arrival, now, now.Add(limit), true
	l.of[l.crowd] = k
	return 0, k.answer
}

// took notes that the waiter has the lock without a message: the owner is dead, or the queue is lost.
func (l *looker) took() {
	if !l.joined {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.of[l.crowd]
	k.lost = time.Now()
	l.of[l.crowd] = k
}

// leave takes the waiter out of its crowd: the waiter asks by itself, or has ended.
func (l *looker) leave() {
	if !l.joined {
		return
	}
	l.joined = false
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.of[l.crowd]
	if k.waiters--; k.waiters == 0 {
		delete(l.of, l.crowd)
		return
	}
	l.of[l.crowd] = k
}
