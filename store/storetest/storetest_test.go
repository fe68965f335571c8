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

// mutant is a fault of a store, and the subtest that must fail.
type mutant struct {
	noticed string
	fault
}

// mutants have one fault each.
var mutants = map[string]mutant{
	"admits everybody": {"Try of a busy lock says who has it", tries(share)},
	"refuses a second Try": {"Try twice is once", fault{try: func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
		if state, err := s.Look(ctx, a); err == nil && state.Owner == a.ID {
			return store.Lease{}, &store.Busy{Owner: a.ID, TTL: state.TTL}
		}
		return s.Try(ctx, a)
	}}},
	"serves the last waiter first": {"Waiters are served in order", lastFirst()},
	"wakes late": {"Wait is woken by the release", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		l, err := s.Wait(ctx, a, progress)
		if l.Woken == store.WakeGrant {
			<-time.After(a.TTL / 2)
		}
		return l, err
	}}},
	"ends leases early": {"Wait gets the lock when its lease has ended", tries(func(a *store.Claim) { a.TTL = a.TTL * 9 / 10 })},
	"waits without its context": {"Wait returns when its context is done", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		return s.Wait(context.WithoutCancel(ctx), a, progress)
	}}},
	"hides the cause of the end": {"A context that is done ends every call", fault{look: func(ctx context.Context, s *mem.Store, a store.Claim) (store.State, error) {
		if ctx.Err() != nil {
			return store.State{}, ctx.Err()
		}
		return s.Look(ctx, a)
	}}},
	"leaves a waiter": {"Wait returns when its context is done", fault{wait: leaveWaiter}},
	"leaves a grant": {"Wait whose context ends with the grant", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		l, err := s.Wait(ctx, a, progress)
		select {
		case <-ctx.Done():
			return store.Lease{}, ctx.Err()
		case <-time.After(time.Millisecond):
			return l, err
		}
	}}},
	"ends Wait when interrupted": {"Wait outlasts an interruption", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		if _, err := s.Look(ctx, a); err != nil {
			return store.Lease{}, err
		}
		return s.Wait(ctx, a, progress)
	}}},
	"adds counts": {"Enter sets the count", fault{enter: func(ctx context.Context, s *mem.Store, l store.Lease, count int) (store.Lease, error) {
		if state, err := s.Look(ctx, l.Claim); err == nil {
			count = state.Count + 1
		}
		return s.Enter(ctx, l, count)
	}}},
	"shows one count": {"Enter sets the count", looks(func(state *store.State) { state.Count = 1 })},
	"takes TTL 0 for a second": {"Enter sets the lease", fault{enter: func(ctx context.Context, s *mem.Store, l store.Lease, count int) (store.Lease, error) {
		if l.TTL == 0 {
			l.TTL = time.Second
			return begin(ctx, s, l, count)
		}
		return s.Enter(ctx, l, count)
	}}},
	"enters what is gone": {"Commands of a hold that never was", fault{enter: func(ctx context.Context, s *mem.Store, l store.Lease, count int) (store.Lease, error) {
		entered, err := s.Enter(ctx, l, count)
		if errors.Is(err, store.ErrGone) {
			return l, nil
		}
		return entered, err
	}}},
	"releases anybody":           {"Commands of an old hold change nothing", fault{release: releaseAny}},
	"is sure of lost answers":    {"A silent server holds up no call", fault{release: releaseSurely}},
	"shortens leases with Enter": {"Enter never shortens a lease", fault{enter: begin}},
	"shortens leases with Renew": {"Renew never shortens a lease", fault{renew: func(ctx context.Context, s *mem.Store, renewals []store.Renewal) []error {
		errs := s.Renew(ctx, renewals)
		for i, r := range renewals {
			if r.Lease.TTL = r.TTL; errs[i] == nil {
				_, errs[i] = begin(ctx, s, r.Lease, r.Count)
			}
		}
		return errs
	}}},
	"accepts a limit of 0": {"Check refuses a claim without a limit", fault{hides: func(s *mem.Store) memory { return limitless{s} }}},
	"revives what is gone": {"Commands of a hold that never was", fault{renew: func(ctx context.Context, s *mem.Store, renewals []store.Renewal) []error {
		errs := s.Renew(ctx, renewals)
		for i, r := range renewals {
			if errors.Is(errs[i], store.ErrGone) {
				_, errs[i] = s.Try(ctx, r.Lease.Claim)
			}
		}
		return errs
	}}},
	"mixes up errors": {"Renew of many says which are gone", fault{renew: func(ctx context.Context, s *mem.Store, renewals []store.Renewal) []error {
		errs := s.Renew(ctx, renewals)
		slices.Reverse(errs)
		return errs
	}}},
	"forgets nothing": {"Forget frees the lock and serves a waiter", fault{forget: func(_ context.Context, _ *mem.Store, claims []store.Claim) []error {
		return make([]error, len(claims))
	}}},
	"draws one token": {"Token grows with every hold", fault{token: oneToken}},
	"draws below the floor": {"Token is larger than the floor in its lease", fault{token: func(ctx context.Context, s *mem.Store, l store.Lease) (int64, error) {
		l.Token = 0
		return s.Token(ctx, l)
	}}},
	"breaks anybody": {"Break frees the lock of that hold only", fault{breaks: func(ctx context.Context, s *mem.Store, a store.Claim) error {
		state, err := s.Look(ctx, a)
		if err != nil {
			return err
		}
		a.ID = state.Owner
		return s.Break(ctx, a)
	}}},
	"tells nobody": {"Watch tells the client of a broken hold", fault{hides: func(s *mem.Store) memory { return tellsNobody{Store: s} }}},
	"leaves a lock out of a list": {"List names each lock that somebody has", lists(func(found map[string]store.Kind) {
		for name := range found {
			delete(found, name)
			break
		}
	})},
	"ends with Close": {"Close leaves commands working", fault{hides: func(s *mem.Store) memory { return &endsWithClose{Store: s} }}},
	"renews for less than it says": {"Renew sets the lease and the count", fault{renew: func(ctx context.Context, s *mem.Store, renewals []store.Renewal) []error {
		renewals = slices.Clone(renewals)
		for i := range renewals {
			renewals[i].TTL = renewals[i].TTL * 4 / 5
		}
		return s.Renew(ctx, renewals)
	}}},
	"lets the seventh jump": {"Waiters are served in order", seventhJumps()},
	"knows no places": {"Waiters are served in order", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		return s.Wait(ctx, a, func(p store.Progress) { p.Position = 0; progress(p) })
	}}},
	// A waiter ends the lease that it has seen, also if the lease was renewed.
	"takes what should be over": {"Renew keeps a lease from ending", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		return s.Wait(ctx, a, func(p store.Progress) {
			seen := a
			seen.ID = p.Busy.Owner
			time.AfterFunc(p.Busy.TTL, func() { s.Forget(context.Background(), []store.Claim{seen}) })
			progress(p)
		})
	}}},
	"has 32 bits for a lease": {"A lease of a month is as long as it says", tries(func(a *store.Claim) {
		a.TTL = max(time.Millisecond, time.Duration(int32(a.TTL.Milliseconds()))*time.Millisecond)
	})},
	"counts Enter from the answer": {"Enter without a TTL leaves the lease unchanged", fault{enter: func(ctx context.Context, s *mem.Store, l store.Lease, count int) (store.Lease, error) {
		l, err := s.Enter(ctx, l, count)
		l.Sent = time.Now()
		return l, err
	}}},
	"guesses the rest of a lease": {"Try of a busy lock says who has it", fault{try: func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
		l, err := s.Try(ctx, a)
		var busy *store.Busy
		if errors.As(err, &busy) {
			busy.TTL = a.TTL
		}
		return l, err
	}}},
	"takes A for a": {"Names that look alike are several locks", tries(func(a *store.Claim) { a.Name = strings.ToLower(a.Name) })},
	"lists one page": {"List names each lock that somebody has", lists(func(found map[string]store.Kind) {
		for name := range found {
			if len(found) > 100 {
				delete(found, name)
			}
		}
	})},
	"tells once": {"Watch tells the client of a broken hold", fault{hides: func(s *mem.Store) memory { return tellsOnce{s} }}},
	"tells of mutexes": {"Watch tells the client of a broken hold", fault{breaks: func(ctx context.Context, s *mem.Store, a store.Claim) error {
		if a.Kind == store.Mutex {
			return s.Break(ctx, a)
		}
		return s.Forget(ctx, []store.Claim{a})[0]
	}}},
	// Forget frees the lock, if the client of the claim has it.
	"forgets all of a client": {"Commands of an old hold change nothing", fault{forget: func(ctx context.Context, s *mem.Store, claims []store.Claim) []error {
		claims = slices.Clone(claims)
		for i, a := range claims {
			client, _, _ := strings.Cut(string(a.ID), ":1:")
			if state, err := s.Look(ctx, a); err == nil && strings.HasPrefix(string(state.Owner), client) {
				claims[i].ID = state.Owner
			}
		}
		return s.Forget(ctx, claims)
	}}},
	// The answer to its own repeat is taken for a loss.
	"takes its release for a loss": {"Enter and Release outlast an interruption", fault{release: func(ctx context.Context, s *mem.Store, l store.Lease) error {
		err := s.Release(ctx, l)
		if errors.Is(err, store.ErrGone) {
			return store.ErrGone
		}
		return err
	}}},
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
				storetest.Run(t, harness(m.store()))
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

// lastFirst has a waiter take the place of the waiter before, who joins the queue again.
func lastFirst() fault {
	var last atomic.Pointer[store.Claim]
	return fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		var once sync.Once
		return s.Wait(ctx, a, func(p store.Progress) {
			once.Do(func() {
				if before := last.Swap(&a); before != nil && p.Position > 0 {
					s.Forget(ctx, []store.Claim{*before})
					for state, err := s.Look(ctx, a); err == nil && state.Waiters <= p.Position; {
						<-time.After(time.Millisecond)
						state, err = s.Look(ctx, a)
					}
				}
			})
			progress(p)
		})
	}}
}

// seventhJumps puts each seventh waiter before the queue, as mem does with a claim inside a hold.
func seventhJumps() fault {
	var n atomic.Int64
	return waits(func(a *store.Claim) {
		if n.Add(1)%7 == 0 {
			a.With = "nobody:1:1"
		}
	})
}

func leaveWaiter(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (l store.Lease, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err = s.Wait(context.WithoutCancel(ctx), a, progress)
	}()
	select {
	case <-done:
		return l, err
	case <-ctx.Done():
		return store.Lease{}, ctx.Err()
	}
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

func releaseAny(ctx context.Context, s *mem.Store, l store.Lease) error {
	if state, err := s.Look(ctx, l.Claim); err == nil {
		l.ID = state.Owner
	}
	return s.Release(ctx, l)
}

func releaseSurely(ctx context.Context, s *mem.Store, l store.Lease) error {
	err := s.Release(ctx, l)
	if errors.Is(err, store.ErrUnsure) {
		return errors.New(err.Error())
	}
	return err
}

func oneToken(ctx context.Context, s *mem.Store, l store.Lease) (int64, error) {
	_, err := s.Token(ctx, l)
	return 1, err
}

type limitless struct{ *mem.Store }

func (s limitless) Check(a store.Claim) (store.Claim, error) {
	if a.Limit == 0 {
		return a, nil
	}
	return s.Store.Check(a)
}

// tellsNobody has a field that hides the method Watch.
type tellsNobody struct {
	*mem.Store
	Watch struct{}
}

type tellsOnce struct{ *mem.Store }

func (s tellsOnce) Watch(client string, doubt func(store.ID)) (stop func()) {
	var once sync.Once
	return s.Store.Watch(client, func(id store.ID) { once.Do(func() { doubt(id) }) })
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
