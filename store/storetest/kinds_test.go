package storetest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// kindMutants break promises of read-write locks and semaphores.
var kindMutants = map[string]mutant{
	"lets writers in with readers": {"Readers enter together and a writer excludes", asks(share)},
	"lets one reader in":           {"Readers enter together and a writer excludes", tries(alone)},
	"names the asker as the owner": {"An upgrade waits before the queue", fault{try: func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
		l, err := s.Try(ctx, a)
		if busy := (*store.Busy)(nil); errors.As(err, &busy) && a.With != "" {
			busy.Owner = a.With
		}
		return l, err
	}}},
	"lets readers overtake":           {"A writer waits for earlier readers only", asks(overtake)},
	"wakes one reader at a time":      {"Readers behind a writer enter together", waits(wakeOne)},
	"counts the reader of an upgrade": {"The only reader upgrades at once", tries(outside)},
	"queues an upgrade at the end":    {"An upgrade waits before the queue", waits(outside)},
	"lets readers in by an upgrade":   {"An upgrade keeps new readers out", asks(overtake)},
	"ends the reader that upgrades": {"The only reader upgrades at once", fault{try: func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
		l, err := s.Try(ctx, a)
		if err == nil && a.With != "" {
			a.ID = a.With
			return l, s.Forget(ctx, []store.Claim{a})[0]
		}
		return l, err
	}}},
	"lets two upgrades wait": {"A second upgrade is a deadlock", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		l, err := s.Wait(ctx, a, progress)
		if errors.Is(err, store.ErrDeadlock) {
			<-ctx.Done()
			return l, ctx.Err()
		}
		return l, err
	}}},
	"is unsure of a deadlock": {"A second upgrade is a deadlock", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		l, err := s.Wait(ctx, a, progress)
		if errors.Is(err, store.ErrDeadlock) {
			err = store.Unsure(err)
		}
		return l, err
	}}},
	"takes two upgrades for one":     {"Two upgrades of one reader wait both", oneUpgrade()},
	"keeps an upgrade that gave up":  {"An upgrade that gives up makes way", fault{wait: leaveWaiter}},
	"counts the writer of a reader":  {"A reader inside a writer enters at once", tries(outside)},
	"ends the reader of a writer":    {"A released writer leaves its reader in", fault{release: endInside}},
	"keeps readers from a downgrade": {"A released writer leaves its reader in", waits(wakeOne)},
	"ends all leases with one":       {"A reader's lease ends alone", fault{try: endTogether}},
	"ends all permits with one":      {"A permit's lease ends alone", fault{try: endTogether}},
	"keeps a head that gave up":      {"A head that gives up makes way", fault{wait: leaveWaiter}},
	// The smallest limit is not forgotten.
	"keeps a forgotten head": {"A forgotten head makes way", fault{
		wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
			if a.Limit == 1 {
				return leaveWaiter(ctx, s, a, progress)
			}
			return s.Wait(ctx, a, progress)
		},
		forget: func(ctx context.Context, s *mem.Store, claims []store.Claim) []error {
			return s.Forget(ctx, slices.DeleteFunc(slices.Clone(claims), func(a store.Claim) bool { return a.Limit == 1 }))
		},
	}},
	"lets one permit in": {"A semaphore lets n in", tries(alone)},
	"lets one more in":   {"A semaphore lets n in", asks(oneMore)},
	"counts the limit of the asker": {"The smallest limit counts", fault{try: func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
		state, err := s.Look(ctx, a)
		if err == nil && state.Owner != "" && len(state.Others)+1 >= a.Limit {
			return store.Lease{}, &store.Busy{Owner: state.Owner, TTL: state.TTL}
		}
		return tries(share).try(ctx, s, a)
	}}},
	"Try overtakes": {"Try takes nothing that a waiter waits for", tries(func(a *store.Claim) { a.With = "nobody:1:1" })},
	"releases all readers": {"Commands of one of several readers", fault{release: func(ctx context.Context, s *mem.Store, l store.Lease) error {
		err := s.Release(ctx, l)
		s.Lose(l.Name)
		return err
	}}},
	// The lease of the last of several holds is renewed, too.
	"renews all permits": {"Commands of one of several permits", fault{enter: func(ctx context.Context, s *mem.Store, l store.Lease, count int) (store.Lease, error) {
		if state, err := s.Look(ctx, l.Claim); err == nil {
			other := l
			other.ID = state.Owner
			if _, err := s.Enter(ctx, other, 1); err != nil {
				return l, err
			}
		}
		return s.Enter(ctx, l, count)
	}}},
	"hides the others":              {"Look shows all holds by the ends of their leases", looks(hideOthers)},
	"shows the longest lease first": {"Look shows all holds by the ends of their leases", looks(func(state *store.State) { slices.Reverse(state.Others) })},
	"draws a token for each reader": {"Readers have the token of the last writer", fault{token: func(ctx context.Context, s *mem.Store, l store.Lease) (int64, error) {
		l.Kind = store.Semaphore
		return s.Token(ctx, l)
	}}},
	"draws no token for a writer":   {"Readers have the token of the last writer", fault{token: drawOnDemand}},
	"draws the token of before":     {"Tokens grow with every writer", fault{token: drawOnDemand}},
	"hides the reader inside":       {"Look shows the writer and the reader inside", looks(hideOthers)},
	"draws no token for an upgrade": {"Upgrades draw tokens", fault{token: drawOnDemand}},
	"has one token for all permits": {"Permits draw tokens", fault{token: oneToken}},
	"mixes kinds": {"A name is one kind of lock at a time", fault{
		try: tries(func(a *store.Claim) { a.Kind = store.Mutex }).try,
		look: func(ctx context.Context, s *mem.Store, a store.Claim) (store.State, error) {
			a.Kind = store.Mutex
			return s.Look(ctx, a)
		},
	}},
	"does not name the kinds": {"A name is one kind of lock at a time", fault{try: func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
		l, err := s.Try(ctx, a)
		if errors.Is(err, store.ErrKind) {
			return l, store.ErrKind
		}
		return l, err
	}}},
	"looks at any kind": {"A name is one kind of lock at a time", fault{look: func(ctx context.Context, s *mem.Store, a store.Claim) (state store.State, err error) {
		for _, kind := range []store.Kind{store.Mutex, store.ReadWrite, store.Semaphore} {
			a.Kind = kind
			if state, err = s.Look(ctx, a); err == nil {
				break
			}
		}
		return state, err
	}}},
	"lets writers in now and then": {"Many readers, writers and upgrades at once", asks(share)},
	"lets too many in":             {"Many permits at once", asks(oneMore)},
	"admits a second writer":       {"Writer: Try of a busy lock says who has it", tries(share)},
	"admits a second permit":       {"Permit: Try of a busy lock says who has it", tries(share)},
}

func share(a *store.Claim)   { a.Limit = store.Unlimited }
func alone(a *store.Claim)   { a.Limit = 1 }
func oneMore(a *store.Claim) { a.Limit++ }
func outside(a *store.Claim) { a.With = "" }

// overtake asks inside of a hold that does not exist, and so before the queue.
func overtake(a *store.Claim) {
	if a.Limit == store.Unlimited {
		a.With = "nobody:1:1"
	}
}

// wakeOne lets a reader in that has waited when no other reader is in.
func wakeOne(a *store.Claim) {
	if a.With == "" {
		a.Limit = 1
	}
}

func hideOthers(state *store.State) { state.Others = nil }

// oneUpgrade lets one upgrade wait, whichever reader it is of.
func oneUpgrade() fault {
	var upgrades atomic.Int32
	return fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		if a.With != "" && upgrades.Add(1) > 1 {
			return store.Lease{}, store.ErrDeadlock
		}
		return s.Wait(ctx, a, progress)
	}}
}

// endInside ends the hold inside of a hold that is released.
func endInside(ctx context.Context, s *mem.Store, l store.Lease) error {
	state, err := s.Look(ctx, l.Claim)
	if err != nil {
		return err
	}
	others := []store.ID{state.Owner}
	for _, other := range state.Others {
		others = append(others, other.ID)
	}
	client, _, _ := strings.Cut(string(l.ID), ":")
	for _, id := range others {
		if inside := l.Claim; l.Limit == 1 && strings.HasPrefix(string(id), client) {
			inside.ID = id
			s.Forget(ctx, []store.Claim{inside})
		}
	}
	return s.Release(ctx, l)
}

func endTogether(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
	l, err := s.Try(ctx, a)
	if err == nil && a.TTL < time.Second {
		time.AfterFunc(a.TTL-time.Millisecond, func() { s.Lose(a.Name) })
	}
	return l, err
}

// drawOnDemand keeps writers from drawing tokens when they enter.
func drawOnDemand(ctx context.Context, s *mem.Store, l store.Lease) (int64, error) {
	if _, err := s.Token(ctx, l); err != nil || l.Limit == 1 {
		return 2, err
	}
	return 1, nil
}
