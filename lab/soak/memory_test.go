package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/lab/soak/history"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/quorum"
)

// link is the way of one client to a store in memory. A link makes every fault of package store: a
// command is lost, or runs without an answer, or runs late. The core of the library so meets every
// error for which a store may answer store.ErrUnsure.
type link struct {
	*mem.Store
	ttl      time.Duration // of the locks
	patience time.Duration // of a command without an answer

	mu       sync.Mutex
	rand     *rand.Rand
	odds     int           // one command in odds goes wrong; 0: none
	up, down time.Duration // to the store and back
}

// fate is the end of one command.
type fate int

const (
	fine fate = iota
	lost      // never runs
	deaf      // runs without an answer
	late      // runs when nobody waits for an answer any more
)

// fate decides about a command. A late one runs after the delay.
func (k *link) fate() (f fate, delay time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.odds == 0 || k.rand.IntN(k.odds) > 0 {
		return fine, 0
	}
	return fate(1 + k.rand.IntN(3)), upTo(k.rand, 3*k.ttl/4)
}

// setOdds sets the odds for trouble.
func (k *link) setOdds(odds int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.odds = odds
}

// calm makes the way short.
func (k *link) calm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.odds, k.up, k.down = 0, near, near
}

func (k *link) way() (up, down time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.up, k.down
}

// sleep waits, and returns false at the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func ended(ctx context.Context) error { return fmt.Errorf("%w: %w", ctx.Err(), context.Cause(ctx)) }

// answer is the answer to a command.
type answer[T any] struct {
	value  T
	err    error
	unsure bool // an attempt may have run without an answer, or may run yet
}

// send sends a command until the answer comes, with so many attempts (0: until ctx is done).
func send[T any](ctx context.Context, k *link, tries int, command func(context.Context) (T, error)) (a answer[T]) {
	later := func(delay time.Duration) {
		a.unsure = true
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), delay+k.ttl)
			defer cancel()
			if sleep(ctx, delay) {
				_, _ = command(ctx)
			}
		}()
	}
	for try := 1; ; try++ {
		f, delay := k.fate()
		up, down := k.way()
		switch {
		case ctx.Err() != nil:
		case f == lost:
			sleep(ctx, k.patience)
		case f == late:
			later(delay)
			sleep(ctx, k.patience)
		case !sleep(ctx, up):
			later(0)
		default:
			a.value, a.err = command(ctx)
			if ctx.Err() == nil && f == fine && sleep(ctx, down) {
				return a
			}
			a.unsure = true
			sleep(ctx, k.patience)
		}
		if ctx.Err() != nil || try == tries {
			break
		}
	}
	a.err = store.Unavailable(errors.New("no answer"))
	if ctx.Err() != nil {
		a.err = ended(ctx)
	}
	return a
}

// error is the error for a caller that has to know whether the command may have run.
func (a answer[T]) error() error {
	if a.unsure {
		return store.Unsure(a.err)
	}
	return a.err
}

func (k *link) Try(ctx context.Context, claim store.Claim) (store.Lease, error) {
	a := send(ctx, k, 3, func(ctx context.Context) (store.Lease, error) { return k.Store.Try(ctx, claim) })
	a.value.Unsure = a.unsure
	return a.value, a.error()
}

func (k *link) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	a := send(ctx, k, 0, func(ctx context.Context) (store.Lease, error) { return k.Store.Enter(ctx, l, count) })
	if errors.Is(a.err, store.ErrGone) {
		return a.value, a.err
	}
	return a.value, a.error()
}

func (k *link) Release(ctx context.Context, l store.Lease) error {
	return send(ctx, k, 0, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, k.Store.Release(ctx, l)
	}).error()
}

func (k *link) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return k.each(ctx, len(renewals), func(ctx context.Context) []error { return k.Store.Renew(ctx, renewals) })
}

func (k *link) Forget(ctx context.Context, claims []store.Claim) []error {
	return k.each(ctx, len(claims), func(ctx context.Context) []error { return k.Store.Forget(ctx, claims) })
}

// each sends a command about many holds once.
func (k *link) each(ctx context.Context, n int, command func(context.Context) []error) []error {
	a := send(ctx, k, 1, func(ctx context.Context) ([]error, error) { return command(ctx), nil })
	if a.err == nil {
		return a.value
	}
	errs := make([]error, n)
	for i := range errs {
		errs[i] = a.error()
	}
	return errs
}

func (k *link) Token(ctx context.Context, l store.Lease) (int64, error) {
	a := send(ctx, k, 3, func(ctx context.Context) (int64, error) { return k.Store.Token(ctx, l) })
	if a.err != nil {
		return 0, a.err
	}
	return a.value, nil
}

func (k *link) Look(ctx context.Context, claim store.Claim) (store.State, error) {
	a := send(ctx, k, 3, func(ctx context.Context) (store.State, error) { return k.Store.Look(ctx, claim) })
	return a.value, a.err
}

func (k *link) Break(ctx context.Context, claim store.Claim) error {
	a := send(ctx, k, 3, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, k.Store.Break(ctx, claim)
	})
	if a.unsure && errors.Is(a.err, store.ErrGone) {
		return nil
	}
	return a.error()
}

// TryAll is Try of several locks.
func (k *link) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	a := send(ctx, k, 3, func(ctx context.Context) ([]store.Lease, error) { return k.Store.TryAll(ctx, claims) })
	for i := range a.value {
		a.value[i].Unsure = a.unsure
	}
	return a.value, a.error()
}

// ReleaseAll is Release of several locks.
func (k *link) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	a := send(ctx, k, 0, func(ctx context.Context) ([]error, error) { return k.Store.ReleaseAll(ctx, leases), nil })
	errs := make([]error, len(leases))
	for i := range errs {
		if errs[i] = a.error(); a.err == nil {
			errs[i] = answer[error]{err: a.value[i], unsure: a.unsure}.error()
		}
	}
	return errs
}

func (k *link) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	return send(ctx, k, 1, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, k.Store.Show(ctx, w, lifetime)
	}).error()
}

func (k *link) Shown(ctx context.Context, holds []store.ID) ([]store.Waiting, error) {
	a := send(ctx, k, 1, func(ctx context.Context) ([]store.Waiting, error) { return k.Store.Shown(ctx, holds) })
	return a.value, a.err
}

// Watch loses messages.
func (k *link) Watch(client string, doubt func(store.ID)) (stop func()) {
	return k.Store.Watch(client, func(id store.ID) {
		if f, _ := k.fate(); f == fine {
			doubt(id)
		}
	})
}

// Wait asks, and hears of the grant late if its message is lost. A wait that is given up in bad
// weather leaves its place in the queue for a while.
func (k *link) Wait(ctx context.Context, claim store.Claim, progress func(store.Progress)) (store.Lease, error) {
	up, down := k.way()
	if !sleep(ctx, up) {
		return store.Lease{}, ended(ctx)
	}
	waiting, cancel := context.WithCancel(context.Background())
	said, got := make(chan store.Progress, 100), make(chan answer[store.Lease], 1)
	go func() {
		var a answer[store.Lease]
		a.value, a.err = k.Store.Wait(waiting, claim, func(p store.Progress) {
			select {
			case said <- p:
			default:
			}
		})
		got <- a
	}()
	for {
		select {
		case p := <-said:
			progress(p)
		case a := <-got:
			cancel()
			f, delay := k.fate()
			if sleep(ctx, down) && (f == fine || sleep(ctx, delay)) {
				return a.value, a.err
			}
			return store.Lease{}, store.Unsure(ended(ctx))
		case <-ctx.Done():
			if f, delay := k.fate(); f != fine {
				go func() { defer cancel(); <-time.After(delay) }()
				return store.Lease{}, store.Unsure(ended(ctx))
			}
			cancel()
			if a := <-got; a.err == nil {
				return store.Lease{}, store.Unsure(ended(ctx))
			}
			return store.Lease{}, ended(ctx)
		}
	}
}

// The worlds in memory.
var (
	inMemory        = setting{begin: startMemory(1), fake: true, ttl: time.Second, patience: severalTries, serves: kindNames}
	aQuorumInMemory = setting{begin: startMemory(3), fake: true, ttl: time.Second, patience: severalTries, mode: history.Mode{Quorum: true}}
)

// memory is a store in memory, or several for a quorum.
type memory struct {
	*soak
	stores []*mem.Store
}

func startMemory(n int) func(*soak) world {
	return func(s *soak) world {
		w := &memory{soak: s}
		for range n {
			w.stores = append(w.stores, mem.New())
		}
		return w
	}
}

// links is the way of a peer: a link to each store.
type links struct {
	all  []*link
	over store.Store
}

func (y *links) heal() {
	for _, k := range y.all {
		k.setOdds(0)
	}
}

func (y *links) near() {
	for _, k := range y.all {
		k.calm()
	}
}

func (y *links) last() { y.heal() }
func (y *links) end()  { _ = y.over.Close() }

func (w *memory) join(patience time.Duration) *peer {
	w.t.Helper()
	y := &links{}
	var members []store.Store
	for _, m := range w.stores {
		random := w.another()
		k := &link{Store: m, ttl: w.ttl, patience: patience, rand: random}
		k.up, k.down = distance(random, patience)
		y.all, members = append(y.all, k), append(members, k)
	}
	y.over = members[0]
	if len(members) > 1 {
		var err error
		y.over, err = quorum.New(members...)
		require.NoError(w.t, err)
	}
	return &peer{w.open(y.over), y}
}

func (w *memory) settle() {}

func (w *memory) left() (all []string) {
	for i, m := range w.stores {
		locks, err := m.List(context.Background(), store.Claim{})
		if err != nil {
			all = append(all, fmt.Sprintf("store %d: %v", i, err))
		}
		for name := range locks {
			all = append(all, fmt.Sprintf("store %d: %s", i, name))
		}
	}
	return all
}

func (w *memory) troubles() []troubles { return []troubles{{100 * time.Millisecond, w.faults}} }

func (w *memory) faults(random *rand.Rand) []fault {
	anyStore := func() *mem.Store { return w.stores[random.IntN(len(w.stores))] }
	anyLinks := func() []*link { return w.anyone(random).way.(*links).all }
	weather := func(links []*link) {
		for _, k := range links {
			k.setOdds(1 + random.IntN(8))
		}
		w.pause(upTo(random, w.ttl))
		for _, k := range links {
			k.setOdds(0)
		}
	}
	faults := []fault{
		{"bad weather", 8, func() {
			links := anyLinks()
			at := random.IntN(len(links))
			weather(links[at : at+1])
		}},
		{"bad weather everywhere", 4, func() { weather(anyLinks()) }},
		{"store away", 2, func() {
			restore := anyStore().Interrupt(nil)
			w.pause(upTo(random, 2*w.ttl))
			restore()
		}},
		{"answers lost", 2, func() {
			restore := anyStore().Interrupt(store.Unsure(errors.New("no answer")))
			w.pause(upTo(random, w.ttl))
			restore()
		}},
		{"lock lost", 1, func() {
			name := w.anyName(random)
			w.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error {
				for _, m := range w.stores {
					m.Lose(name)
				}
				return nil
			})
		}},
	}
	if len(w.stores) > 1 {
		faults = append(faults, fault{"member restarted empty", 3, func() { w.restart(anyStore()) }})
	}
	return append(faults, w.anywhere(random)...)
}

// restart lets a member of a quorum come back empty. The member stays away for the longest lease, as
// a server with relock.WithRestartDelay does.
func (w *memory) restart(m *mem.Store) {
	restore := m.Interrupt(nil)
	for _, name := range w.names() {
		m.Lose(name)
	}
	<-time.After(w.ttl + w.ttl/4)
	restore()
}
