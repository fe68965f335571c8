package storetest_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/storetest"
)

// memory is a memory store, or a mutant of one.
type memory interface {
	store.Store
	Interrupt(err error) (restore func())
	Lose(name string)
}

// mutant is a store with one fault, and the subtest that must fail.
type mutant struct {
	broken  memory
	noticed string
}

// mutants have one fault each.
var mutants = map[string]mutant{
	"admits everybody":             {admitsAll{mem.New()}, "Try of a busy lock says who has it"},
	"refuses a second Try":         {refusesTwice{mem.New()}, "Try twice is once"},
	"serves the last waiter first": {&lastFirst{Store: mem.New()}, "Waiters are served in order"},
	"wakes late":                   {wakesLate{mem.New()}, "Wait is woken by the release"},
	"ends leases early":            {endsEarly{mem.New()}, "Wait gets the lock when its lease has ended"},
	"waits without its context":    {neverEnds{mem.New()}, "Wait returns when its context is done"},
	"hides the cause of the end":   {hidesCause{mem.New()}, "A context that is done ends every call"},
	"leaves a waiter":              {leavesWaiter{mem.New()}, "Wait returns when its context is done"},
	"leaves a grant":               {leavesGrant{mem.New()}, "Wait whose context ends with the grant"},
	"ends Wait when interrupted":   {givesUp{mem.New()}, "Wait outlasts an interruption"},
	"adds counts":                  {addsCounts{mem.New()}, "Enter sets the count"},
	"shows one count":              {showsOne{mem.New()}, "Enter sets the count"},
	"takes TTL 0 for a second":     {zeroIsSecond{mem.New()}, "Enter sets the lease"},
	"enters what is gone":          {entersGone{mem.New()}, "Commands of a hold that never was"},
	"releases anybody":             {releasesAny{mem.New()}, "Commands of an old hold change nothing"},
	"is sure of lost answers":      {alwaysSure{mem.New()}, "A silent server holds up no call"},
	"shortens leases with Enter":   {entersShort{mem.New()}, "Enter never shortens a lease"},
	"shortens leases with Renew":   {renewsShort{mem.New()}, "Renew never shortens a lease"},
	"accepts a limit of 0":         {limitless{mem.New()}, "Check refuses a claim without a limit"},
	"revives what is gone":         {revives{mem.New()}, "Commands of a hold that never was"},
	"mixes up errors":              {mixesErrors{mem.New()}, "Renew of many says which are gone"},
	"forgets nothing":              {forgetsNothing{mem.New()}, "Forget frees the lock and serves a waiter"},
	"draws one token":              {oneToken{mem.New()}, "Token grows with every hold"},
	"draws below the floor":        {floorless{mem.New()}, "Token is larger than the floor in its lease"},
	"breaks anybody":               {breaksAny{mem.New()}, "Break frees the lock of that hold only"},
	"tells nobody":                 {tellsNobody{Store: mem.New()}, "Watch tells the client of a broken hold"},
	"leaves a lock out of a list":  {listsLess{mem.New()}, "List names each lock that somebody has"},
	"ends with Close":              {&endsWithClose{Store: mem.New()}, "Close leaves commands working"},
	"renews for less than it says": {renewsLess{mem.New()}, "Renew sets the lease and the count"},
	"lets the seventh jump":        {&jumps{Store: mem.New()}, "Waiters are served in order"},
	"knows no places":              {placeless{mem.New()}, "Waiters are served in order"},
	"takes what should be over":    {takesOver{mem.New()}, "Renew keeps a lease from ending"},
	"has 32 bits for a lease":      {wraps{mem.New()}, "A lease of a month is as long as it says"},
	"counts Enter from the answer": {entersAnew{mem.New()}, "Enter without a TTL leaves the lease unchanged"},
	"guesses the rest of a lease":  {guessesRest{mem.New()}, "Try of a busy lock says who has it"},
	"takes A for a":                {folds{mem.New()}, "Names that look alike are several locks"},
	"lists one page":               {listsPage{mem.New()}, "List names each lock that somebody has"},
	"tells once":                   {tellsOnce{mem.New()}, "Watch tells the client of a broken hold"},
	"tells of mutexes":             {tellsOfMutexes{mem.New()}, "Watch tells the client of a broken hold"},
	"forgets all of a client":      {forgetsClient{mem.New()}, "Commands of an old hold change nothing"},
	"takes its release for a loss": {losesOwn{mem.New()}, "Enter and Release outlast an interruption"},
}

// child is the variable that makes this program run the suite on a mutant.
const child = "STORETEST_MUTANT"

func TestRunNoticesMutants(t *testing.T) {
	all := maps.Clone(mutants)
	maps.Copy(all, kindMutants)
	maps.Copy(all, severalMutants)
	maps.Copy(all, lendMutants)
	for name, m := range all {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(child) != "" {
				storetest.Run(t, harness(m.broken))
				return
			}
			t.Parallel()
			noticed := strings.ReplaceAll(t.Name()+"/"+m.noticed, " ", "_")
			path := "^" + strings.ReplaceAll(noticed, "/", "$/^") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", path, "-test.timeout", "1m")
			cmd.Env = append(os.Environ(), child+"=1")
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "the suite passes")
			require.Contains(t, string(out), "--- FAIL: "+noticed)
		})
	}
}

func TestRunPassesMem(t *testing.T) {
	storetest.Run(t, harness(mem.New()))
}

// harness runs in fake time. Its interruptions lose the answers of commands that run.
func harness(m memory) storetest.Harness {
	return storetest.Harness{
		Start: func(*testing.T) storetest.Server {
			return storetest.Server{
				New:       func() store.Store { return m },
				Interrupt: func() func() { return m.Interrupt(store.Unsure(errors.New("no answer"))) },
				Lose:      m.Lose,
			}
		},
		Around: synctest.Test,
		Without: map[storetest.Promise]string{
			storetest.Acks:        "memory has no replicas",
			storetest.CheckServer: "there is no server that could lack something",
		},
	}
}

type admitsAll struct{ *mem.Store }

func (s admitsAll) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	limit := a.Limit
	a.Limit = store.Unlimited
	l, err := s.Store.Try(ctx, a)
	l.Limit = limit
	return l, err
}

type refusesTwice struct{ *mem.Store }

func (s refusesTwice) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	if state, err := s.Look(ctx, a); err == nil && state.Owner == a.ID {
		return store.Lease{}, &store.Busy{Owner: a.ID, TTL: state.TTL}
	}
	return s.Store.Try(ctx, a)
}

// lastFirst takes the place of the waiter before, who joins the queue again.
type lastFirst struct {
	*mem.Store
	last atomic.Pointer[store.Claim]
}

func (s *lastFirst) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	var once sync.Once
	return s.Store.Wait(ctx, a, func(p store.Progress) {
		once.Do(func() {
			if before := s.last.Swap(&a); before != nil && p.Position > 0 {
				s.Forget(ctx, []store.Claim{*before})
				for state, err := s.Look(ctx, a); err == nil && state.Waiters <= p.Position; {
					<-time.After(time.Millisecond)
					state, err = s.Look(ctx, a)
				}
			}
		})
		progress(p)
	})
}

type wakesLate struct{ *mem.Store }

func (s wakesLate) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := s.Store.Wait(ctx, a, progress)
	if l.Woken == store.WakeGrant {
		<-time.After(a.TTL / 2)
	}
	return l, err
}

type endsEarly struct{ *mem.Store }

func (s endsEarly) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	ttl := a.TTL
	a.TTL = ttl * 9 / 10
	l, err := s.Store.Try(ctx, a)
	l.TTL = ttl
	return l, err
}

type neverEnds struct{ *mem.Store }

func (s neverEnds) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return s.Store.Wait(context.WithoutCancel(ctx), a, progress)
}

type hidesCause struct{ *mem.Store }

func (s hidesCause) Look(ctx context.Context, a store.Claim) (store.State, error) {
	if ctx.Err() != nil {
		return store.State{}, ctx.Err()
	}
	return s.Store.Look(ctx, a)
}

type leavesWaiter struct{ *mem.Store }

func (s leavesWaiter) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (l store.Lease, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err = s.Store.Wait(context.WithoutCancel(ctx), a, progress)
	}()
	select {
	case <-done:
		return l, err
	case <-ctx.Done():
		return store.Lease{}, ctx.Err()
	}
}

type leavesGrant struct{ *mem.Store }

func (s leavesGrant) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := s.Store.Wait(ctx, a, progress)
	select {
	case <-ctx.Done():
		return store.Lease{}, ctx.Err()
	case <-time.After(time.Millisecond):
		return l, err
	}
}

type givesUp struct{ *mem.Store }

func (s givesUp) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if _, err := s.Look(ctx, a); err != nil {
		return store.Lease{}, err
	}
	return s.Store.Wait(ctx, a, progress)
}

type addsCounts struct{ *mem.Store }

func (s addsCounts) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if state, err := s.Look(ctx, l.Claim); err == nil {
		count = state.Count + 1
	}
	return s.Store.Enter(ctx, l, count)
}

type showsOne struct{ *mem.Store }

func (s showsOne) Look(ctx context.Context, a store.Claim) (store.State, error) {
	state, err := s.Store.Look(ctx, a)
	state.Count = 1
	return state, err
}

type limitless struct{ *mem.Store }

func (s limitless) Check(a store.Claim) (store.Claim, error) {
	if a.Limit == 0 {
		return a, nil
	}
	return s.Store.Check(a)
}

// begin gives the lock of a hold to that hold anew, as mem does not shorten a lease.
func begin(ctx context.Context, s *mem.Store, l store.Lease, count int) (store.Lease, error) {
	if err := s.Release(ctx, l); err != nil {
		return l, err
	}
	if _, err := s.Try(ctx, l.Claim); err != nil {
		return l, err
	}
	return s.Enter(ctx, l, count)
}

type zeroIsSecond struct{ *mem.Store }

func (s zeroIsSecond) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if l.TTL == 0 {
		l.TTL = time.Second
		return begin(ctx, s.Store, l, count)
	}
	return s.Store.Enter(ctx, l, count)
}

type entersShort struct{ *mem.Store }

func (s entersShort) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	return begin(ctx, s.Store, l, count)
}

type entersGone struct{ *mem.Store }

func (s entersGone) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	entered, err := s.Store.Enter(ctx, l, count)
	if errors.Is(err, store.ErrGone) {
		return l, nil
	}
	return entered, err
}

type releasesAny struct{ *mem.Store }

func (s releasesAny) Release(ctx context.Context, l store.Lease) error {
	if state, err := s.Look(ctx, l.Claim); err == nil {
		l.ID = state.Owner
	}
	return s.Store.Release(ctx, l)
}

type alwaysSure struct{ *mem.Store }

func (s alwaysSure) Release(ctx context.Context, l store.Lease) error {
	err := s.Store.Release(ctx, l)
	if errors.Is(err, store.ErrUnsure) {
		return errors.New(err.Error())
	}
	return err
}

type renewsShort struct{ *mem.Store }

func (s renewsShort) Renew(ctx context.Context, renewals []store.Renewal) []error {
	errs := s.Store.Renew(ctx, renewals)
	for i, r := range renewals {
		if r.Lease.TTL = r.TTL; errs[i] == nil {
			_, errs[i] = begin(ctx, s.Store, r.Lease, r.Count)
		}
	}
	return errs
}

type revives struct{ *mem.Store }

func (s revives) Renew(ctx context.Context, renewals []store.Renewal) []error {
	errs := s.Store.Renew(ctx, renewals)
	for i, r := range renewals {
		if errors.Is(errs[i], store.ErrGone) {
			_, errs[i] = s.Try(ctx, r.Lease.Claim)
		}
	}
	return errs
}

type mixesErrors struct{ *mem.Store }

func (s mixesErrors) Renew(ctx context.Context, renewals []store.Renewal) []error {
	errs := s.Store.Renew(ctx, renewals)
	slices.Reverse(errs)
	return errs
}

type forgetsNothing struct{ *mem.Store }

func (s forgetsNothing) Forget(_ context.Context, claims []store.Claim) []error {
	return make([]error, len(claims))
}

type oneToken struct{ *mem.Store }

func (s oneToken) Token(ctx context.Context, l store.Lease) (int64, error) {
	_, err := s.Store.Token(ctx, l)
	return 1, err
}

type floorless struct{ *mem.Store }

func (s floorless) Token(ctx context.Context, l store.Lease) (int64, error) {
	l.Token = 0
	return s.Store.Token(ctx, l)
}

type breaksAny struct{ *mem.Store }

func (s breaksAny) Break(ctx context.Context, a store.Claim) error {
	state, err := s.Look(ctx, a)
	if err != nil {
		return err
	}
	a.ID = state.Owner
	return s.Store.Break(ctx, a)
}

// tellsNobody has a field that hides the method Watch.
type tellsNobody struct {
	*mem.Store
	Watch struct{}
}

type listsLess struct{ *mem.Store }

func (s listsLess) List(ctx context.Context, a store.Claim) (map[string]store.Kind, error) {
	found, err := s.Store.List(ctx, a)
	for name := range found {
		delete(found, name)
		break
	}
	return found, err
}

type endsWithClose struct {
	*mem.Store
	closed atomic.Bool
}

func (s *endsWithClose) Close() error {
	s.closed.Store(true)
	return nil
}

func (s *endsWithClose) Release(ctx context.Context, l store.Lease) error {
	if s.closed.Load() {
		return errors.New("the store is closed")
	}
	return s.Store.Release(ctx, l)
}

type renewsLess struct{ *mem.Store }

func (s renewsLess) Renew(ctx context.Context, renewals []store.Renewal) []error {
	renewals = slices.Clone(renewals)
	for i := range renewals {
		renewals[i].TTL = renewals[i].TTL * 4 / 5
	}
	return s.Store.Renew(ctx, renewals)
}

// jumps puts each seventh waiter before the queue, as mem does with a claim inside a hold.
type jumps struct {
	*mem.Store
	n atomic.Int64
}

func (s *jumps) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if s.n.Add(1)%7 == 0 {
		a.With = "nobody:1:1"
	}
	l, err := s.Store.Wait(ctx, a, progress)
	l.With = ""
	return l, err
}

type placeless struct{ *mem.Store }

func (s placeless) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return s.Store.Wait(ctx, a, func(p store.Progress) { p.Position = 0; progress(p) })
}

// takesOver has a waiter end the lease that it has seen, also if the lease was renewed.
type takesOver struct{ *mem.Store }

func (s takesOver) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return s.Store.Wait(ctx, a, func(p store.Progress) {
		seen := a
		seen.ID = p.Busy.Owner
		time.AfterFunc(p.Busy.TTL, func() { s.Forget(context.Background(), []store.Claim{seen}) })
		progress(p)
	})
}

type wraps struct{ *mem.Store }

func (s wraps) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	wrapped := a
	wrapped.TTL = max(time.Millisecond, time.Duration(int32(a.TTL.Milliseconds()))*time.Millisecond)
	l, err := s.Store.Try(ctx, wrapped)
	l.TTL = a.TTL
	return l, err
}

type entersAnew struct{ *mem.Store }

func (s entersAnew) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	l, err := s.Store.Enter(ctx, l, count)
	l.Sent = time.Now()
	return l, err
}

type guessesRest struct{ *mem.Store }

func (s guessesRest) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := s.Store.Try(ctx, a)
	var busy *store.Busy
	if errors.As(err, &busy) {
		busy.TTL = a.TTL
	}
	return l, err
}

type folds struct{ *mem.Store }

func (s folds) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	name := a.Name
	a.Name = strings.ToLower(name)
	l, err := s.Store.Try(ctx, a)
	l.Name = name
	return l, err
}

type listsPage struct{ *mem.Store }

func (s listsPage) List(ctx context.Context, a store.Claim) (map[string]store.Kind, error) {
	found, err := s.Store.List(ctx, a)
	for name := range found {
		if len(found) > 100 {
			delete(found, name)
		}
	}
	return found, err
}

type tellsOnce struct{ *mem.Store }

func (s tellsOnce) Watch(client string, doubt func(store.ID)) (stop func()) {
	var once sync.Once
	return s.Store.Watch(client, func(id store.ID) { once.Do(func() { doubt(id) }) })
}

type tellsOfMutexes struct{ *mem.Store }

func (s tellsOfMutexes) Break(ctx context.Context, a store.Claim) error {
	if a.Kind == store.Mutex {
		return s.Store.Break(ctx, a)
	}
	return s.Forget(ctx, []store.Claim{a})[0]
}

// forgetsClient frees the lock, if the client of the claim has it.
type forgetsClient struct{ *mem.Store }

func (s forgetsClient) Forget(ctx context.Context, claims []store.Claim) []error {
	claims = slices.Clone(claims)
	for i, a := range claims {
		client, _, _ := strings.Cut(string(a.ID), ":1:")
		if state, err := s.Look(ctx, a); err == nil && strings.HasPrefix(string(state.Owner), client) {
			claims[i].ID = state.Owner
		}
	}
	return s.Store.Forget(ctx, claims)
}

// losesOwn takes the answer to its own repeat for a loss.
type losesOwn struct{ *mem.Store }

func (s losesOwn) Release(ctx context.Context, l store.Lease) error {
	err := s.Store.Release(ctx, l)
	if errors.Is(err, store.ErrGone) {
		return store.ErrGone
	}
	return err
}
