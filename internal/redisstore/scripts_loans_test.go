package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// What do loans and moves leave, and what do the other scripts know of them?

func (r *rig) loans() string { return r.base + loansSuffix }

// ticketKey is the key of a ticket that was used.
func (r *rig) ticketKey(t store.Ticket) string {
	r.Cleanup(func() { r.rdb.Del(context.Background(), r.loans()+":"+t.ID) })
	return r.loans() + ":" + t.ID
}

// ticket is good for ten seconds.
func (r *rig) ticket() store.Ticket {
	t := store.Ticket{ID: uuid.NewString(), Expires: time.Now().Add(10 * time.Second)}
	r.ticketKey(t)
	return t
}

// lent is the lease of a hold that may have lent its lock.
func (r *rig) lent(id string) store.Lease {
	l := r.held(id, minute)
	l.Lent = true
	return l
}

// loan is the claim of a loan of a hold.
func (r *rig) loan(client, lender string) store.Claim {
	a := r.claim(newID(client), minute)
	a.Lender = store.ID(lender)
	return a
}

func (r *rig) borrow(a store.Claim, t store.Ticket) store.Lease {
	r.Helper()
	l, err := r.store.Borrow(r.Context(), a, t)
	require.NoError(r, err)
	return l
}

func (r *rig) leave(l store.Lease) {
	r.Helper()
	require.NoError(r, r.store.Release(r.Context(), l))
}

func (r *rig) ttl(key string) time.Duration {
	r.Helper()
	ttl, err := r.rdb.PTTL(r.Context(), key).Result()
	require.NoError(r, err)
	return ttl
}

// ticketCommands are the calls of the store about tickets, for a hold that has lent its lock.
func (r *rig) ticketCommands(lender string, loan store.Lease) map[string]func(ctx context.Context) error {
	s, l := r.store, r.lent(lender)
	return map[string]func(ctx context.Context) error{
		"Borrow": func(ctx context.Context) error { _, err := s.Borrow(ctx, r.loan("b", lender), r.ticket()); return err },
		"Follow": func(ctx context.Context) error { _, err := s.Follow(ctx, loan); return err },
		"Accept": func(ctx context.Context) error {
			_, _, err := s.Accept(ctx, r.claim(newID("b"), minute), l.ID, r.ticket(), true)
			return err
		},
		"Release":          func(ctx context.Context) error { return s.Release(ctx, l) },
		"Forget":           func(ctx context.Context) error { return s.Forget(ctx, []store.Claim{l.Claim})[0] },
		"return":           func(ctx context.Context) error { return s.Release(ctx, loan) },
		"Forget of a loan": func(ctx context.Context) error { return s.Forget(ctx, []store.Claim{loan.Claim})[0] },
	}
}

func TestLoans(t *testing.T) {
	t.Run("have keys that end", func(t *testing.T) {
		r := newRig(t)
		owner, ticket := r.enter("a"), r.ticket()
		loan := r.borrow(r.loan("b", owner), ticket)
		require.InDelta(t, minute+time.Second, r.ttl(r.loans()), float64(time.Second))
		require.InDelta(t, 10*time.Second, r.ttl(r.ticketKey(ticket)), float64(time.Second))
		require.EqualValues(t, 1, r.renew(owner, 2*minute, 1))
		_, err := r.store.Follow(t.Context(), loan)
		require.NoError(t, err)
		require.InDelta(t, 2*minute+time.Second, r.ttl(r.loans()), float64(time.Second))
	})
	t.Run("leave nothing but used tickets", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		first, second := r.borrow(r.loan("b", owner), r.ticket()), r.borrow(r.loan("b", owner), r.ticket())
		for _, l := range []store.Lease{first, r.lent(owner), second} {
			r.leave(l)
		}
		r.free()
		require.Empty(t, r.dump())

		owner = r.enter("a")
		r.leave(r.borrow(r.loan("b", owner), r.ticket()))
		r.leave(r.lent(owner))
		require.Empty(t, r.dump(), "no loan is open")
	})
	t.Run("end soon after the lease of their lender", func(t *testing.T) {
		r := newRig(t)
		id := newID("a")
		_, err := r.acquire(id, 100*time.Millisecond, noPlace)
		require.NoError(t, err)
		r.borrow(r.loan("b", id), r.ticket())
		redistest.Eventually(t, limit, func() bool { return len(r.dump()) == 0 }, "nothing is left")
	})
	t.Run("of a lender that has left are known for as long as its lock", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		r.borrow(r.loan("b", owner), r.ticket())
		require.EqualValues(t, 1, r.renew(owner, 3*minute, 1))
		r.leave(r.lent(owner))
		require.Greater(t, r.ttl(r.loans()), r.ttl(r.base))
	})
	t.Run("are at most 1000", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		for range 999 {
			r.loanInRedis(owner)
		}
		last, ticket := r.loan("b", owner), r.ticket()
		r.borrow(last, ticket)
		r.unchanged(func() {
			_, err := r.store.Borrow(t.Context(), r.loan("b", owner), r.ticket())
			require.ErrorIs(t, err, store.ErrTicket)
			require.ErrorContains(t, err, "1000 open loans")
		})
		r.leave(r.borrow(last, ticket)) // as after a lost reply
		r.borrow(r.loan("b", owner), r.ticket())
	})
	t.Run("need a ticket that ends", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		r.unchanged(func() {
			_, err := r.store.Borrow(t.Context(), r.loan("b", owner), store.Ticket{ID: uuid.NewString()})
			require.ErrorIs(t, err, store.ErrTicket)
		})
	})
	t.Run("are recalled by a message to each client", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		loan := r.borrow(r.loan("b", owner), r.ticket())
		r.borrow(r.loan("c", owner), r.ticket())
		ps := subscribed(t, r.rdb.Subscribe(t.Context(), r.store.control("b")))
		other := subscribed(t, r.rdb.Subscribe(t.Context(), r.store.control("d")))
		r.leave(r.lent(owner))
		require.Equal(t, string(loan.ID), message(t, ps))
		silent(t, other)
	})
}

// loanInRedis writes an open loan.
func (r *rig) loanInRedis(lender string) {
	r.Helper()
	require.NoError(r, r.rdb.HSet(r.Context(), r.loans(), "lender", lender, newID("c"), "9999999999999|nobody").Err())
}

func TestAccept(t *testing.T) {
	t.Run("leaves the keys of a lock, and tells the old client", func(t *testing.T) {
		r := newRig(t)
		owner, id := r.enter("a"), newID("b")
		r.borrow(r.loan("b", owner), r.ticket())
		ps := subscribed(t, r.rdb.Subscribe(t.Context(), r.store.control("a")))
		for range 2 {
			_, wait, err := r.store.Accept(t.Context(), r.claim(id, minute), store.ID(owner), r.ticket(), true)
			require.NoError(t, err)
			require.InDelta(t, minute, wait, float64(time.Second))
			r.owner(id, 1)
			require.InDelta(t, 2*minute, r.ttl(r.base), float64(minute/2))
			require.Len(t, r.dump(), 1, "one hold, and no loans")
		}
		require.Equal(t, owner, message(t, ps))
		silent(t, ps)
	})
}

// TestOtherScriptsKnowNoLoans has a key of a wrong type, which whoever touches it trips over.
func TestOtherScriptsKnowNoLoans(t *testing.T) {
	for what := range newRig(t).commands("") {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			require.NoError(t, r.rdb.SAdd(t.Context(), r.loans(), "x").Err())
			before := r.rdb.Dump(t.Context(), r.loans()).Val()
			r.listen("b")
			id := r.enter("a")
			if what == "Try" {
				require.EqualValues(t, 1, r.release(id))
			}
			require.NoError(t, r.commands(id)[what](t.Context()))
			require.Equal(t, before, r.rdb.Dump(t.Context(), r.loans()).Val())
		})
	}
}

func TestALoanKeyOfAnotherTypeIsAnErrorAndNothingChanges(t *testing.T) {
	uses := map[string][]string{
		"":          {"Borrow", "Follow", "Accept", "Release", "Forget", "return", "Forget of a loan"},
		loansSuffix: {"Borrow", "Follow", "Accept", "Release", "Forget", "return", "Forget of a loan"},
		queueSuffix: {"Release", "Forget"},
	}
	for suffix, users := range uses {
		for _, what := range users {
			t.Run(what+suffix, func(t *testing.T) {
				r := newRig(t)
				id := r.enter("a")
				loan := store.Lease{Claim: r.loan("b", id)}
				require.NoError(t, r.rdb.Del(t.Context(), r.base+suffix).Err())
				require.NoError(t, r.rdb.SAdd(t.Context(), r.base+suffix, "x").Err())
				r.unchanged(func() {
					err := r.ticketCommands(id, loan)[what](t.Context())
					require.ErrorContains(t, err, "WRONGTYPE")
					require.NotErrorIs(t, err, store.ErrUnsure)
				})
			})
		}
	}
	t.Run("Borrow by a ticket", func(t *testing.T) {
		r := newRig(t)
		id, ticket := r.enter("a"), r.ticket()
		require.NoError(t, r.rdb.SAdd(t.Context(), r.ticketKey(ticket), "x").Err())
		r.unchanged(func() {
			_, err := r.store.Borrow(t.Context(), r.loan("b", id), ticket)
			require.ErrorContains(t, err, "WRONGTYPE")
		})
	})
}

func TestOutOfMemoryWithLoans(t *testing.T) {
	server := redistest.Start(t)
	for what, oom := range map[string]bool{
		"Borrow": true, "Follow": false, "Accept": true, "Release": false, "Forget": false, "return": false, "Forget of a loan": false,
	} {
		for _, lent := range []bool{true, false} { // before
			t.Run(fmt.Sprintf("%s, lent %t", what, lent), func(t *testing.T) {
				r := newRigOn(t, server)
				id := r.enter("a")
				loan := store.Lease{Claim: r.loan("b", id)}
				if lent {
					loan = r.borrow(loan.Claim, r.ticket())
				}
				before := r.dump()
				r.full("1")
				defer r.full("0")
				err := r.ticketCommands(id, loan)[what](t.Context())
				switch {
				case oom:
					require.ErrorContains(t, err, "OOM")
					require.NotErrorIs(t, err, store.ErrUnsure)
					require.Equal(t, before, r.dump())
				case what == "Follow" && !lent:
					require.ErrorIs(t, err, store.ErrGone)
				default:
					require.NoError(t, err)
				}
				if lent && (what == "Release" || what == "Forget") {
					_, err := r.store.Follow(t.Context(), loan)
					require.ErrorIs(t, err, store.ErrRecalled)
					r.leave(loan)
					r.free()
				}
			})
		}
	}
}

// TestTicketsNeedNoMoreThanThePrefix has a user with the rule of docs/OPERATIONS.md for loans.
func TestTicketsNeedNoMoreThanThePrefix(t *testing.T) {
	r := withUser(t, "&"+prefix+"*", "~"+prefix+"*", "+@all")
	for what := range r.ticketCommands("", store.Lease{}) {
		id := r.enter("a")
		loan := r.borrow(r.loan("b", id), r.ticket())
		require.NoError(t, r.ticketCommands(id, loan)[what](t.Context()), what)
		require.NoError(t, r.rdb.Del(t.Context(), r.base, r.loans()).Err())
	}
}

func TestAnAcceptThatIsNotConfirmedFreesNothingEarly(t *testing.T) {
	r := newRig(t)
	owner := r.enter("a")
	a := r.claim(newID("b"), minute)
	a.Acks = store.Acks{Replicas: 1, Timeout: 20 * time.Millisecond}
	_, _, err := r.store.Accept(t.Context(), a, store.ID(owner), r.ticket(), true)
	require.ErrorIs(t, err, store.ErrNotReplicated)
	require.ErrorIs(t, err, store.ErrUnsure)
	_, err = r.store.Try(t.Context(), r.claim(newID("c"), minute))
	var busy *store.Busy
	require.ErrorAs(t, err, &busy, "the client of the old hold counts on its lease")

	owner = string(busy.Owner)
	a.ID = store.ID(newID("b"))
	_, _, err = r.store.Accept(t.Context(), a, store.ID(owner), r.ticket(), false)
	require.ErrorIs(t, err, store.ErrNotReplicated)
	require.NotErrorIs(t, err, store.ErrUnsure)
	r.free()
}
