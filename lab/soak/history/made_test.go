package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A made-up history is a possible recording of a lock that keeps every promise. play makes the
// history by playing the lock: one event happens after another, each in the middle of a call that
// began before and ends later. The history has an order by its making, and Check must find an
// order. play shares nothing with the model but Op.
type play struct {
	*rand.Rand
	now     time.Duration
	ops     []Op
	clients []*playClient
	trouble bool // the lock is taken away now and then

	// Redis
	owner  *playHold
	leased time.Duration // the owner's lease in Redis ends then
	count  int           // of the owner
	token  int64
	// forgotten says that the token is not in Redis until the next draw. (The clock is.)
	forgotten bool
	holds     int
}

type playClient struct {
	free time.Duration // its last call ended then
	hold *playHold
}

type playHold struct {
	number   int
	holder   string
	token    int64 // 0: none was drawn
	entries  int
	deadline time.Duration // for its holder; earlier than in Redis
	local    bool
	told     bool // its holder knows the end
}

const playTTL = 2000

// made is a history of about n calls by that many clients. A holder may be shared by two clients.
func made(seed uint64, clients, n int, trouble bool) []Op {
	p := &play{Rand: rand.New(rand.NewPCG(seed, 1)), trouble: trouble, token: 100}
	for range clients + 1 {
		p.clients = append(p.clients, &playClient{})
	}
	for tries := 0; len(p.ops) < n && tries < 100*n; tries++ {
		p.now += 1 + time.Duration(p.IntN(30))
		if p.owner != nil && p.now >= p.leased {
			p.owner = nil
		}
		c := p.IntN(clients)
		switch {
		case p.clients[clients].free < p.now && p.IntN(8) == 0:
			p.operator(clients)
		case p.clients[c].free >= p.now:
		case p.clients[c].hold == nil:
			p.outside(c)
		case p.now >= p.clients[c].hold.deadline || p.clients[c].hold.told:
			p.over(c)
		default:
			p.inside(c)
		}
	}
	// Whoever is in has crashed.
	p.Shuffle(len(p.ops), func(i, j int) { p.ops[i], p.ops[j] = p.ops[j], p.ops[i] })
	return p.ops
}

// call records what happens now as part of a call.
func (p *play) call(client int, op Op) {
	c := p.clients[client]
	op.Lock, op.Client = "made up", client
	op.Call = max(c.free+1, p.now-time.Duration(p.IntN(100)))
	op.Return = p.now + time.Duration(p.IntN(100))
	c.free = op.Return
	p.ops = append(p.ops, op)
}

func (p *play) operator(client int) {
	switch n := p.IntN(20); {
	case n == 0 && p.trouble:
		p.owner = nil
		p.call(client, Op{Kind: Wipe})
	case n == 1 && p.trouble && p.owner != nil:
		p.owner = nil
		outcome := OK
		if p.IntN(4) == 0 {
			outcome = Failed // Redis did the work, and the reply was lost
		}
		p.call(client, Op{Kind: Force, Outcome: outcome})
	case n == 2 && p.trouble:
		p.call(client, Op{Kind: Force, Outcome: Failed}) // Redis did nothing
	case n == 3 && p.trouble:
		p.forgotten = true
		p.call(client, Op{Kind: Forget})
	case n == 4 && p.owner == nil:
		p.call(client, Op{Kind: Force, Outcome: NotHeld})
	default:
		op := Op{Kind: State}
		if !p.forgotten {
			op.Token = p.token
		}
		if p.owner != nil {
			op.Owner, op.Count = p.owner.holder, p.count
			if p.count != p.owner.entries { // after a call that failed
				op.Late = time.Hour
			}
		}
		p.call(client, op)
	}
}

// outside is an action of a client without a hold.
func (p *play) outside(client int) {
	holder := fmt.Sprint("h", len(p.ops))
	if p.IntN(3) == 0 {
		holder = "h" // of another hold too
	}
	switch {
	case p.IntN(6) == 0:
		p.call(client, Op{Kind: Lock, Outcome: Failed, Holder: holder})
	case p.owner != nil:
		p.call(client, Op{Kind: Lock, Outcome: Refused, Holder: holder, Owner: p.owner.holder})
	default:
		p.holds++
		h := &playHold{number: p.holds, holder: holder, entries: 1, deadline: p.now + playTTL, local: p.IntN(5) == 0}
		p.owner, p.leased, p.count = h, h.deadline+20, 1
		p.clients[client].hold = h
		p.call(client, Op{Kind: Lock, Holder: holder, Hold: h.number, Mode: Mode{Local: h.local}})
	}
}

// over is an action of a client with a lost hold.
func (p *play) over(client int) {
	h := p.clients[client].hold
	h.told = true
	op := Op{Outcome: Lost, Holder: h.holder, Hold: h.number}
	op.Kind = []Kind{Lock, Extend, Look, Told, Draw, Unlock}[p.IntN(6)]
	op.Nested = op.Kind == Lock
	p.call(client, op)
	if op.Kind == Unlock {
		p.leave(client)
	}
}

func (p *play) leave(client int) {
	h := p.clients[client].hold
	if h.entries--; h.entries <= 0 {
		for _, c := range p.clients {
			if c.hold == h {
				c.hold = nil
			}
		}
	}
}

// inside is an action of a client that believes in its hold.
func (p *play) inside(client int) {
	h := p.clients[client].hold
	mine := p.owner == h
	told := func() { p.over(client) }
	op := Op{Holder: h.holder, Hold: h.number}
	if mine && p.IntN(3) == 0 { // the watchdog
		h.deadline = max(h.deadline, p.now+playTTL)
		p.leased = h.deadline + 20
	}
	switch n := p.IntN(32); {
	case n == 0 && p.IntN(3) == 0: // a crash
		for _, c := range p.clients {
			if c.hold == h {
				c.hold = nil
			}
		}
	case n == 1 && p.IntN(3) == 0:
		p.now = h.deadline // the client sleeps, and the whole world too
	case n == 2 && p.IntN(2) == 0:
		c := p.clients[p.IntN(len(p.clients)-1)]
		if c.hold == nil {
			c.hold = h // the client shares the holder
		}
	case n < 7:
		op.Kind, op.Count = Look, h.entries
		p.call(client, op)
	case n < 10:
		op.Kind, op.Remaining = Look, h.deadline-p.now
		p.call(client, op)
	case n < 16: // a nested entry
		op.Kind, op.Nested = Lock, true
		switch {
		case !mine && !h.local:
			told()
			return
		case !h.local && p.IntN(10) == 0:
			op.Outcome = Failed
			p.count = h.entries + p.IntN(2)
		default:
			h.entries++
			if !h.local {
				p.count = h.entries
			}
		}
		p.call(client, op)
	case n == 16:
		op.Kind, op.Lease = Extend, playTTL+time.Duration(p.IntN(playTTL))
		if !mine {
			told()
			return
		}
		h.deadline = max(h.deadline, p.now+op.Lease)
		p.leased = h.deadline + 20
		p.call(client, op)
	case n == 17:
		op.Kind, op.Again, op.Outcome = Unlock, true, NotHeld
		p.call(client, op)
	case n < 24:
		op.Kind = Draw
		switch {
		case h.token == 0 && !mine:
			told()
			return
		case h.token == 0 && p.IntN(6) == 0:
			op.Outcome = Failed
			p.token += int64(p.IntN(3)) // perhaps it was drawn
		case h.token == 0:
			p.token += 1 + int64(p.IntN(3))
			h.token, p.forgotten = p.token, false
		}
		if op.Outcome == OK {
			op.Token = h.token
		}
		p.call(client, op)
	case h.entries > 1: // an inner exit
		op.Kind = Unlock
		switch {
		case !mine && !h.local:
			told()
			return
		case !h.local && p.IntN(10) == 0:
			op.Outcome = Failed
			p.count = h.entries - p.IntN(2)
		case !h.local:
			p.count = h.entries - 1
		}
		p.call(client, op)
		p.leave(client)
	default: // the last exit
		op.Kind = Unlock
		switch {
		case !mine:
			if p.IntN(2) == 0 { // if not, the release was sent twice and cannot tell
				told()
				return
			}
		case p.IntN(10) == 0:
			op.Outcome = Failed // Redis keeps the lock until its lease is over
		default:
			p.owner = nil
		}
		p.call(client, op)
		p.leave(client)
	}
}

// scaled turns the small units of a made-up history into nanoseconds of a lease with a margin.
func scaled(ops []Op) []Op {
	ops = slices.Clone(ops)
	for i := range ops {
		op := &ops[i]
		for _, d := range []*time.Duration{&op.Call, &op.Return, &op.Remaining, &op.Lease} {
			*d = time.Duration(d.Nanoseconds()) * time.Millisecond
		}
	}
	return ops
}
