package soak

import (
	"context"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/ticket"
)

// errands takes a lock that travels: the visitor lends its section to other clients, or hands it
// off.
func (v *visitor) errands(ctx context.Context, cancel context.CancelFunc) {
	l := v.peer.NewLock(errand, v.options()...)
	s := v.enter(ctx, "errand", l, 1, nil)
	if s == nil {
		return
	}
	v.linger()
	v.eval(s)
	if v.IntN(4*v.seldom()) == 0 {
		v.abandon(cancel, s)
		return
	}
	for v.IntN(2) == 0 {
		if s = v.handOff(s); s == nil {
			return
		}
		v.linger()
	}
	v.lend(s)
}

// byTicket uses a ticket in another client, outside of all sections. The result is nil if the call
// failed. Like a TryLock, it may fail in any trouble.
func (v *visitor) byTicket(what string, t ticket.Ticket, group int,
	verb func(context.Context, *relock.Lock, ticket.Ticket) (context.Context, error)) *stay {
	ctx, cancel := context.WithCancel(context.Background())
	v.ends = append(v.ends, cancel)
	l := v.anyone(v.Rand).NewLock(errand, v.options()...)
	asked, began := v.log.Now(), time.Now()
	inner, err := verb(ctx, l, t)
	if took := time.Since(began); took > v.threeTries()+v.late() {
		v.wrong.add("%s came back after %s: %v", what, took, err)
	}
	if err != nil {
		v.failed(what, err, true)
		return nil
	}
	v.tally(what + ": ok")
	s := v.begin(inner, l, 1, group, asked)
	if token, err := l.Token(inner); err == nil && token != t.Token {
		v.wrong.add("a section by %s has token %d, and its ticket has token %d", what, token, t.Token)
	}
	return s
}

// handOff has another client continue the section. The result is nil if there is no section any
// more.
func (v *visitor) handOff(s *stay) *stay {
	v.look(s)
	at := v.log.Now()
	given, err := ticket.HandOff(s.ctx, s.lock)
	if err != nil { // lost, or no answer about the token
		v.tally("HandOff: failed")
		return s
	}
	s.Left, s.Out = at, v.log.Now()
	if s.Lost == 0 {
		s.Sure = at
	}
	v.record(s)
	if v.IntN(20) == 0 {
		v.tally("HandOff: dropped")
		return nil
	}
	return v.byTicket("Accept", given, v.log.Hold(), ticket.Accept)
}

// lend lends the section to some clients, and leaves before them, or after them. A loan is in the
// group of its lender, and the store names the lender for as long as the loan is open.
func (v *visitor) lend(s *stay) {
	var loans []*stay
	for range v.IntN(4) {
		given, err := ticket.Lend(s.ctx, s.lock)
		if err != nil {
			v.tally("Lend: failed")
			break
		}
		if loan := v.byTicket("Borrow", given, s.Group, ticket.Borrow); loan != nil {
			loan.Holder = s.Holder
			loans = append(loans, loan)
		}
	}
	first := v.IntN(2) == 0
	if first {
		v.leave(s.lock, s)
	}
	for _, loan := range loans {
		v.linger()
		v.leave(loan.lock, loan)
	}
	if !first {
		v.linger()
		v.leave(s.lock, s)
	}
}
