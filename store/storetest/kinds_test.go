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
	"lets writers in with readers":    {sharesAll{mem.New()}, "Readers enter together and a writer excludes"},
	"lets one reader in":              {readsAlone{mem.New()}, "Readers enter together and a writer excludes"},
	"names the asker as the owner":    {namesAsker{mem.New()}, "An upgrade waits before the queue"},
	"lets readers overtake":           {overtakes{mem.New()}, "A writer waits for earlier readers only"},
	"wakes one reader at a time":      {wakesOne{mem.New()}, "Readers behind a writer enter together"},
	"counts the reader of an upgrade": {countsAround{mem.New()}, "The only reader upgrades at once"},
	"queues an upgrade at the end":    {queuesUpgrade{mem.New()}, "An upgrade waits before the queue"},
	"lets readers in by an upgrade":   {overtakes{mem.New()}, "An upgrade keeps new readers out"},
	"ends the reader that upgrades":   {dropsRead{mem.New()}, "The only reader upgrades at once"},
	"lets two upgrades wait":          {waitsDead{mem.New()}, "A second upgrade is a deadlock"},
	"is unsure of a deadlock":         {unsureDead{mem.New()}, "A second upgrade is a deadlock"},
	"takes two upgrades for one":      {&refusesUpgrade{Store: mem.New()}, "Two upgrades of one reader wait both"},
	"keeps an upgrade that gave up":   {leavesWaiter{mem.New()}, "An upgrade that gives up makes way"},
	"counts the writer of a reader":   {countsAround{mem.New()}, "A reader inside a writer enters at once"},
	"ends the reader of a writer":     {endsInside{mem.New()}, "A released writer leaves its reader in"},
	"keeps readers from a downgrade":  {wakesOne{mem.New()}, "A released writer leaves its reader in"},
	"ends all leases with one":        {endsTogether{mem.New()}, "A reader's lease ends alone"},
	"ends all permits with one":       {endsTogether{mem.New()}, "A permit's lease ends alone"},
	"keeps a head that gave up":       {leavesWaiter{mem.New()}, "A head that gives up makes way"},
	"keeps a forgotten head":          {keepsHead{mem.New()}, "A forgotten head makes way"},
	"lets one permit in":              {readsAlone{mem.New()}, "A semaphore lets n in"},
	"lets one more in":                {oneMore{mem.New()}, "A semaphore lets n in"},
	"counts the limit of the asker":   {ownLimit{mem.New()}, "The smallest limit counts"},
	"Try overtakes":                   {triesFirst{mem.New()}, "Try takes nothing that a waiter waits for"},
	"releases all readers":            {releasesAll{mem.New()}, "Commands of one of several readers"},
	"renews all permits":              {renewsAll{mem.New()}, "Commands of one of several permits"},
	"hides the others":                {hidesOthers{mem.New()}, "Look shows all holds by the ends of their leases"},
	"shows the longest lease first":   {longestFirst{mem.New()}, "Look shows all holds by the ends of their leases"},
	"draws a token for each reader":   {drawsAlways{mem.New()}, "Readers have the token of the last writer"},
	"draws no token for a writer":     {drawsOnDemand{mem.New()}, "Readers have the token of the last writer"},
	"draws the token of before":       {drawsOnDemand{mem.New()}, "Tokens grow with every writer"},
	"hides the reader inside":         {hidesOthers{mem.New()}, "Look shows the writer and the reader inside"},
	"draws no token for an upgrade":   {drawsOnDemand{mem.New()}, "Upgrades draw tokens"},
	"has one token for all permits":   {oneToken{mem.New()}, "Permits draw tokens"},
	"mixes kinds":                     {mixesKinds{mem.New()}, "A name is one kind of lock at a time"},
	"does not name the kinds":         {namesNoKind{mem.New()}, "A name is one kind of lock at a time"},
	"looks at any kind":               {looksAtAny{mem.New()}, "A name is one kind of lock at a time"},
	"lets writers in now and then":    {sharesAll{mem.New()}, "Many readers, writers and upgrades at once"},
	"lets too many in":                {oneMore{mem.New()}, "Many permits at once"},
	"admits a second writer":          {admitsAll{mem.New()}, "Writer: Try of a busy lock says who has it"},
	"admits a second permit":          {admitsAll{mem.New()}, "Permit: Try of a busy lock says who has it"},
}

// claims sends another claim, which change makes. The lease names the claim of the caller.
func claims(ctx context.Context, s *mem.Store, a store.Claim, progress func(store.Progress), change func(a *store.Claim)) (store.Lease, error) {
	changed := a
	change(&changed)
	var l store.Lease
	var err error
	if progress == nil {
		l, err = s.Try(ctx, changed)
	} else {
		l, err = s.Wait(ctx, changed, progress)
	}
	if err == nil {
		l.Claim = a
	}
	return l, err
}

type sharesAll struct{ *mem.Store }

func (s sharesAll) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return claims(ctx, s.Store, a, nil, share)
}

func (s sharesAll) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return claims(ctx, s.Store, a, progress, share)
}

func share(a *store.Claim) { a.Limit = store.Unlimited }

type readsAlone struct{ *mem.Store }

func (s readsAlone) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return claims(ctx, s.Store, a, nil, func(a *store.Claim) { a.Limit = 1 })
}

type namesAsker struct{ *mem.Store }

func (s namesAsker) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := s.Store.Try(ctx, a)
	if busy := (*store.Busy)(nil); errors.As(err, &busy) && a.With != "" {
		busy.Owner = a.With
	}
	return l, err
}

// overtakes asks inside of a hold that does not exist, and so before the queue.
type overtakes struct{ *mem.Store }

func (s overtakes) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return claims(ctx, s.Store, a, nil, overtake)
}

func (s overtakes) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return claims(ctx, s.Store, a, progress, overtake)
}

func overtake(a *store.Claim) {
	if a.Limit == store.Unlimited {
		a.With = "nobody:1:1"
	}
}

// wakesOne lets a reader in that has waited when no other reader is in.
type wakesOne struct{ *mem.Store }

func (s wakesOne) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return claims(ctx, s.Store, a, progress, func(a *store.Claim) {
		if a.With == "" {
			a.Limit = 1
		}
	})
}

type countsAround struct{ *mem.Store }

func (s countsAround) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return claims(ctx, s.Store, a, nil, func(a *store.Claim) { a.With = "" })
}

// queuesUpgrade lets an upgrade wait behind the waiters before it.
type queuesUpgrade struct{ *mem.Store }

func (s queuesUpgrade) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return claims(ctx, s.Store, a, progress, func(a *store.Claim) { a.With = "" })
}

type dropsRead struct{ *mem.Store }

func (s dropsRead) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := s.Store.Try(ctx, a)
	if err == nil && a.With != "" {
		a.ID = a.With
		return l, s.Forget(ctx, []store.Claim{a})[0]
	}
	return l, err
}

type waitsDead struct{ *mem.Store }

func (s waitsDead) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := s.Store.Wait(ctx, a, progress)
	if errors.Is(err, store.ErrDeadlock) {
		<-ctx.Done()
		return l, ctx.Err()
	}
	return l, err
}

type unsureDead struct{ *mem.Store }

func (s unsureDead) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := s.Store.Wait(ctx, a, progress)
	if errors.Is(err, store.ErrDeadlock) {
		err = store.Unsure(err)
	}
	return l, err
}

// refusesUpgrade lets one upgrade wait, whichever reader it is of.
type refusesUpgrade struct {
	*mem.Store
	upgrades atomic.Int32
}

func (s *refusesUpgrade) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if a.With != "" && s.upgrades.Add(1) > 1 {
		return store.Lease{}, store.ErrDeadlock
	}
	return s.Store.Wait(ctx, a, progress)
}

// endsInside ends the hold inside of a hold that is released.
type endsInside struct{ *mem.Store }

func (s endsInside) Release(ctx context.Context, l store.Lease) error {
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
	return s.Store.Release(ctx, l)
}

type endsTogether struct{ *mem.Store }

func (s endsTogether) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := s.Store.Try(ctx, a)
	if err == nil && a.TTL < time.Second {
		time.AfterFunc(a.TTL-time.Millisecond, func() { s.Lose(a.Name) })
	}
	return l, err
}

// keepsHead does not forget the smallest limit.
type keepsHead struct{ *mem.Store }

func (s keepsHead) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if a.Limit == 1 {
		return leavesWaiter(s).Wait(ctx, a, progress)
	}
	return s.Store.Wait(ctx, a, progress)
}

func (s keepsHead) Forget(ctx context.Context, claims []store.Claim) []error {
	claims = slices.DeleteFunc(slices.Clone(claims), func(a store.Claim) bool { return a.Limit == 1 })
	return s.Store.Forget(ctx, claims)
}

type oneMore struct{ *mem.Store }

func (s oneMore) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return claims(ctx, s.Store, a, nil, func(a *store.Claim) { a.Limit++ })
}

func (s oneMore) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return claims(ctx, s.Store, a, progress, func(a *store.Claim) { a.Limit++ })
}

type ownLimit struct{ *mem.Store }

func (s ownLimit) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	state, err := s.Look(ctx, a)
	if err == nil && state.Owner != "" && len(state.Others)+1 >= a.Limit {
		return store.Lease{}, &store.Busy{Owner: state.Owner, TTL: state.TTL}
	}
	return claims(ctx, s.Store, a, nil, share)
}

type triesFirst struct{ *mem.Store }

func (s triesFirst) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return claims(ctx, s.Store, a, nil, func(a *store.Claim) { a.With = "nobody:1:1" })
}

type releasesAll struct{ *mem.Store }

func (s releasesAll) Release(ctx context.Context, l store.Lease) error {
	err := s.Store.Release(ctx, l)
	s.Lose(l.Name)
	return err
}

// renewsAll renews the lease of the last of several holds, too.
type renewsAll struct{ *mem.Store }

func (s renewsAll) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if state, err := s.Look(ctx, l.Claim); err == nil {
		other := l
		other.ID = state.Owner
		if _, err := s.Store.Enter(ctx, other, 1); err != nil {
			return l, err
		}
	}
	return s.Store.Enter(ctx, l, count)
}

type hidesOthers struct{ *mem.Store }

func (s hidesOthers) Look(ctx context.Context, a store.Claim) (store.State, error) {
	state, err := s.Store.Look(ctx, a)
	state.Others = nil
	return state, err
}

type longestFirst struct{ *mem.Store }

func (s longestFirst) Look(ctx context.Context, a store.Claim) (store.State, error) {
	state, err := s.Store.Look(ctx, a)
	slices.Reverse(state.Others)
	return state, err
}

// drawsAlways draws for a reader as for a permit.
type drawsAlways struct{ *mem.Store }

func (s drawsAlways) Token(ctx context.Context, l store.Lease) (int64, error) {
	l.Kind = store.Semaphore
	return s.Store.Token(ctx, l)
}

// drawsOnDemand keeps writers from drawing tokens when they enter.
type drawsOnDemand struct{ *mem.Store }

func (s drawsOnDemand) Token(ctx context.Context, l store.Lease) (int64, error) {
	if _, err := s.Store.Token(ctx, l); err != nil || l.Limit == 1 {
		return 2, err
	}
	return 1, nil
}

type mixesKinds struct{ *mem.Store }

func (s mixesKinds) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return claims(ctx, s.Store, a, nil, func(a *store.Claim) { a.Kind = store.Mutex })
}

func (s mixesKinds) Look(ctx context.Context, a store.Claim) (store.State, error) {
	a.Kind = store.Mutex
	return s.Store.Look(ctx, a)
}

type namesNoKind struct{ *mem.Store }

func (s namesNoKind) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := s.Store.Try(ctx, a)
	if errors.Is(err, store.ErrKind) {
		return l, store.ErrKind
	}
	return l, err
}

type looksAtAny struct{ *mem.Store }

func (s looksAtAny) Look(ctx context.Context, a store.Claim) (state store.State, err error) {
	for _, kind := range []store.Kind{store.Mutex, store.ReadWrite, store.Semaphore} {
		a.Kind = kind
		if state, err = s.Store.Look(ctx, a); err == nil {
			break
		}
	}
	return state, err
}
