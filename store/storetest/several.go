package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// severalTests are the promises of [store.Several].
var severalTests = []test{
	{name: "TryAll takes all locks or none", run: allOrNone, needs: Several},
	{name: "TryAll says which lock is taken", run: allNames, needs: Several},
	{name: "TryAll twice is once", run: allTwice, needs: Several},
	{name: "TryAll does not overtake a waiter", run: allOvertakes, needs: Several, also: FIFO},
	{name: "TryAll takes a lock whose hold has ended", run: allAfterExpiry, needs: Several},
	{name: "TryAll that is unsupported changes nothing", run: allUnsupported, needs: Several},
	{name: "TryAll beside another kind of lock changes nothing", run: allOtherKind, needs: Several, also: Kinds},
	{name: "ReleaseAll frees all locks and serves a waiter", run: freeAll, needs: Several},
	{name: "ReleaseAll of one hold and of none", run: freeFew, needs: Several},
	{name: "ReleaseAll twice is once", run: freeTwice, needs: Several},
	{name: "ReleaseAll says which holds are gone", run: freeGone, needs: Several},
	{name: "ReleaseAll leaves to Release what it does not support", run: freeUnsupported, needs: Several, also: Semaphores},
	{name: "ReleaseAll outlasts an interruption", run: freeOutlasts, needs: Several, also: interrupt},
	{name: "A context that is done ends TryAll and ReleaseAll", run: allContextDone, needs: Several},
	{name: "A silent server holds up no TryAll and no ReleaseAll", run: allSilent, needs: Several, also: interrupt},
	{name: "TryAll excludes many at once", run: stressAll, needs: Several},
}

// several returns the power of a store.
func (b *bench) several(st store.Store) store.Several {
	several, ok := st.(store.Several)
	require.True(b.t, ok, "the store is no store.Several: the harness must list Several in Without")
	return several
}

// claims returns claims of a new client for new locks.
func (b *bench) claims(n int) []store.Claim {
	claims := make([]store.Claim, n)
	for i := range claims {
		claims[i] = b.claim(long)
		claims[i].Name = b.newName()
	}
	return ofOneClient(claims)
}

// ofOneClient returns asks of a new client for the same locks.
func ofOneClient(claims []store.Claim) []store.Claim {
	client := "storetest/" + rand.Text()
	claims = slices.Clone(claims)
	for i := range claims {
		claims[i].ID = newID(client)
	}
	return claims
}

// takeAll makes new holds with TryAll.
func (b *bench) takeAll(st store.Store, claims []store.Claim) []store.Lease {
	leases, err := b.several(st).TryAll(b.ctx, claims)
	require.NoError(b.t, err)
	require.Len(b.t, leases, len(claims))
	for i, l := range leases {
		require.Equal(b.t, claims[i], l.Claim)
	}
	return leases
}

func (b *bench) releaseAll(st store.Store, leases []store.Lease) {
	errs := b.several(st).ReleaseAll(b.ctx, leases)
	require.Len(b.t, errs, len(leases))
	require.NoError(b.t, errors.Join(errs...))
}

func (b *bench) lookAt(a store.Claim) store.State {
	state, err := b.other.Look(b.ctx, a)
	require.NoError(b.t, err)
	return state
}

// requireHeld fails unless each claim has its lock, with one entry.
func (b *bench) requireHeld(claims ...store.Claim) {
	for i, a := range claims {
		state := b.lookAt(a)
		require.Equal(b.t, a.ID, state.Owner, "lock %d", i)
		require.Equal(b.t, 1, state.Count, "lock %d", i)
	}
}

// requireUntouched fails unless nobody has any of the locks, and nobody waits.
func (b *bench) requireUntouched(claims ...store.Claim) {
	for i, a := range claims {
		state := b.lookAt(a)
		require.Empty(b.t, state.Owner, "lock %d", i)
		require.Zero(b.t, state.Waiters, "lock %d", i)
	}
}

// requireTaken fails unless err is a refusal that names one of these claims, and its hold.
func (b *bench) requireTaken(err error, taken ...store.Claim) {
	var busy *store.Busy
	require.ErrorAs(b.t, err, &busy)
	require.NotErrorIs(b.t, err, store.ErrUnsure)
	var owners []store.ID
	for _, a := range taken {
		if a.Name == busy.Name {
			owners = append(owners, a.ID)
		}
	}
	require.NotEmpty(b.t, owners, "the refusal names %q", busy.Name)
	b.requireRefusal(busy, owners...)
}

// allOrNone takes locks whose leases differ, and then asks for each of them beside a free lock.
func allOrNone(b *bench) {
	for _, n := range []int{1, 2, 5} {
		claims := b.claims(n)
		for i := range claims {
			claims[i].TTL = long / time.Duration(1+i)
		}
		before := time.Now()
		leases := b.takeAll(b.st, claims)
		b.requireHeld(claims...)
		for i, l := range leases {
			b.requireSent(before, l)
			ttl := b.lookAt(claims[i]).TTL
			require.Greater(b.t, ttl, claims[i].TTL/2)
			require.LessOrEqual(b.t, ttl, claims[i].TTL)
		}
		free := b.claims(2)
		for i, rival := range ofOneClient(claims) {
			_, err := b.several(b.other).TryAll(b.ctx, []store.Claim{free[0], rival, free[1]})
			b.requireTaken(err, claims[i])
			b.requireUntouched(free...)
		}
		b.requireHeld(claims...)
		for _, l := range leases {
			b.release(l)
		}
		b.requireUntouched(claims...)
	}
}

// allNames asks for four locks of which one is taken, and then two.
func allNames(b *bench) {
	claims := b.claims(4)
	for i := range claims {
		var taken []store.Claim
		for _, at := range []int{i, (i + 2) % len(claims)} {
			a := b.claim(long)
			a.Name = claims[at].Name
			taken = append(taken, b.take(b.other, a).Claim)
			for range 2 {
				b.requireTaken(last(b.several(b.st).TryAll(b.ctx, claims)), taken...)
			}
			b.requireHeld(taken...)
		}
		require.NoError(b.t, errors.Join(b.other.Forget(b.ctx, taken)...))
		b.requireUntouched(claims...)
	}
}

// allTwice asks again for what it has. One hold was in before.
func allTwice(b *bench) {
	claims := b.claims(3)
	claims[2].TTL = long / 2
	b.take(b.st, claims[1])
	var leases []store.Lease
	for _, st := range []store.Store{b.st, b.st, b.other} {
		leases = b.takeAll(st, claims)
		b.requireHeld(claims...)
		for i, l := range leases {
			ttl := b.lookAt(claims[i]).TTL
			require.Greater(b.t, ttl, claims[i].TTL/2)
			end := time.Now().Add(ttl)
			require.False(b.t, l.Until().After(end), "TryAll returns a lease that outlasts that of the store")
			require.True(b.t, time.Now().Before(l.Until()))
		}
	}
	b.releaseAll(b.other, leases)
	b.requireUntouched(claims...)
}

func allOvertakes(b *bench) {
	claims := b.claims(3)
	claims[1].Name = b.name
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	released := make(chan error, 1)
	go func() { released <- b.st.Release(b.ctx, l) }()
	for more := true; more; {
		more = len(released) == 0
		err := last(b.several(b.st).TryAll(b.ctx, claims))
		require.Error(b.t, err, "TryAll takes a lock for which another hold waits")
		b.requireTaken(err, store.Claim{Name: b.name, ID: l.ID}, store.Claim{Name: b.name, ID: w.claim.ID})
	}
	require.NoError(b.t, <-released)
	next := b.get(w)
	b.requireUntouched(claims[0], claims[2])
	b.release(next)
	b.releaseAll(b.st, b.takeAll(b.st, claims))
}

// allAfterExpiry takes a lock whose lease has ended, and lets a lease of several end.
func allAfterExpiry(b *bench) {
	claims := b.claims(3)
	rival := b.short(b.claim(long))
	rival.Name = claims[1].Name
	l := b.take(b.other, rival)
	var leases []store.Lease
	b.eventually("TryAll takes a lock whose lease has ended", func() bool {
		var err error
		if leases, err = b.several(b.st).TryAll(b.ctx, claims); err != nil {
			var busy *store.Busy
			require.ErrorAs(b.t, err, &busy)
		}
		return err == nil
	})
	require.False(b.t, time.Now().Before(l.Until()), "another hold has the lock before Lease.Until")
	b.requireGone(b.other.Release(b.ctx, l))
	b.requireHeld(claims...)
	b.releaseAll(b.st, leases)

	claims = b.claims(3)
	claims[1] = b.short(claims[1])
	leases = b.takeAll(b.st, claims)
	b.eventually("the lease ends", func() bool { return b.lookAt(claims[1]).Owner == "" })
	require.False(b.t, time.Now().Before(leases[1].Until()), "the lease ends before Lease.Until")
	b.requireGone(last(b.st.Enter(b.ctx, leases[1], 2)))
	b.requireHeld(claims[0], claims[2])
	errs := b.several(b.st).ReleaseAll(b.ctx, leases)
	require.NoError(b.t, errors.Join(errs[0], errs[2]))
	b.requireGone(errs[1])
	b.requireUntouched(claims...)
}

// mixed returns claims for two mutexes, with a claim of another kind in between.
func (b *bench) mixed(between store.Claim) []store.Claim {
	claims := b.claims(3)
	between.Name, between.ID = claims[1].Name, claims[1].ID
	claims[1] = between
	return claims
}

// allUnsupported asks for what a store may refuse to do in one step.
func allUnsupported(b *bench) {
	var lists [][]store.Claim
	if b.promises(Kinds) {
		lists = append(lists, b.mixed(b.reader()), b.mixed(b.writer()))
	}
	if b.promises(Semaphores) {
		lists = append(lists, b.mixed(b.permit(2)))
	}
	if b.promises(Acks) {
		lists = append(lists, b.mixed(b.acked()))
	}
	for _, claims := range lists {
		leases, err := b.several(b.st).TryAll(b.ctx, claims)
		if err == nil {
			b.requireHeld(claims...)
			for _, l := range leases {
				b.release(l)
			}
			continue
		}
		b.requireUnsupported(err)
		b.requireUntouched(claims...)
	}
}

func (b *bench) requireUnsupported(err error) {
	require.ErrorIs(b.t, err, errors.ErrUnsupported)
	require.NotErrorIs(b.t, err, store.ErrUnsure)
}

func allOtherKind(b *bench) {
	others := []store.Claim{b.reader(), b.writer()}
	if b.promises(Semaphores) {
		others = append(others, b.permit(2))
	}
	for _, in := range others {
		claims := b.mixed(b.claim(long))
		in.Name = claims[1].Name
		l := b.take(b.other, in)
		b.requireUnsupported(last(b.several(b.st).TryAll(b.ctx, claims)))
		b.requireUntouched(claims[0], claims[2])
		b.requireHeld(in)
		b.release(l)
	}
}

func freeAll(b *bench) {
	claims := b.claims(4)
	claims[2].Name = b.name
	leases := b.takeAll(b.st, claims)
	w := b.wait(b.other, b.claim(long))
	b.waits(w)
	b.releaseAll(b.st, leases)
	next := b.get(w)
	b.requireOwner(w.claim, 1)
	b.requireUntouched(claims[0], claims[1], claims[3])
	b.release(next)
}

func freeFew(b *bench) {
	claims := b.claims(1)
	b.releaseAll(b.st, b.takeAll(b.st, claims))
	b.requireUntouched(claims...)
	require.Empty(b.t, b.several(b.st).ReleaseAll(b.ctx, nil))
}

// freeTwice releases again while another hold has one of the locks. As with Release, the second
// call may succeed.
func freeTwice(b *bench) {
	claims := b.claims(3)
	leases := b.takeAll(b.st, claims)
	b.releaseAll(b.st, leases)
	newer := b.claim(long)
	newer.Name = claims[1].Name
	l := b.take(b.other, newer)
	for _, st := range []store.Store{b.st, b.other} {
		errs := b.several(st).ReleaseAll(b.ctx, leases)
		require.Len(b.t, errs, len(leases))
		for _, err := range errs {
			if err != nil {
				b.requireGone(err)
			}
		}
		b.requireHeld(newer)
		b.requireUntouched(claims[0], claims[2])
	}
	b.release(l)
}

// freeGone releases many holds of which some were broken.
func freeGone(b *bench) {
	claims := b.claims(30)
	leases := b.takeAll(b.st, claims)
	gone := func(i int) bool { return i%3 == 0 }
	for i, a := range claims {
		if gone(i) {
			require.NoError(b.t, b.other.Break(b.ctx, a))
		}
	}
	errs := b.several(b.st).ReleaseAll(b.ctx, leases)
	require.Len(b.t, errs, len(leases))
	for i, err := range errs {
		if gone(i) && err != nil {
			b.requireGone(err)
			continue
		}
		require.NoError(b.t, err, "lock %d", i)
	}
	b.requireUntouched(claims...)
}

func freeUnsupported(b *bench) {
	claims := b.mixed(b.permit(2))
	var leases []store.Lease
	for _, a := range claims {
		leases = append(leases, b.take(b.st, a))
	}
	errs := b.several(b.st).ReleaseAll(b.ctx, leases)
	require.Len(b.t, errs, len(leases))
	for i, err := range errs {
		if err != nil {
			b.requireUnsupported(err)
			b.requireHeld(claims[i])
			b.release(leases[i])
		}
	}
	b.requireUntouched(claims...)
}

// freeOutlasts releases while the server is interrupted. If an attempt without an answer has freed
// a lock, its error is ErrGone together with ErrUnsure.
func freeOutlasts(b *bench) {
	claims := b.claims(3)
	leases := b.takeAll(b.st, claims)
	restore := b.interrupt()
	done := make(chan []error, 1)
	go func() { done <- b.several(b.st).ReleaseAll(b.ctx, leases) }()
	b.pause(100 * time.Millisecond)
	restore()
	select {
	case errs := <-done:
		require.Len(b.t, errs, len(leases))
		for _, err := range errs {
			if !errors.Is(err, store.ErrGone) || !errors.Is(err, store.ErrUnsure) {
				require.NoError(b.t, err)
			}
		}
	case <-time.After(patience):
		require.FailNow(b.t, "does not happen: ReleaseAll returns after the interruption")
	}
	b.requireUntouched(claims...)
}

// endAll runs TryAll, and then ReleaseAll, with a context that ends. Each returns promptly. What is
// without ErrUnsure has not run.
func (b *bench) endAll(newContext func() context.Context, silence func() (restore func()), check func(err error)) {
	claims := b.claims(3)
	ctx, restore := newContext(), silence()
	var err error
	b.promptly(func() { _, err = b.several(b.st).TryAll(ctx, claims) })
	restore()
	check(err)
	if !errors.Is(err, store.ErrUnsure) {
		b.requireUntouched(claims...)
	}
	b.cleanUp(claims)

	claims = ofOneClient(claims)
	leases := b.takeAll(b.st, claims)
	ctx, restore = newContext(), silence()
	var errs []error
	b.promptly(func() { errs = b.several(b.st).ReleaseAll(ctx, leases) })
	restore()
	require.Len(b.t, errs, len(leases))
	for i, err := range errs {
		check(err)
		if !errors.Is(err, store.ErrUnsure) {
			b.requireHeld(claims[i])
		}
	}
	b.cleanUp(claims)
}

// cleanUp forgets claims until nothing is left, as a command without an answer may run late.
func (b *bench) cleanUp(claims []store.Claim) {
	b.eventually("nothing is left", func() bool {
		err := errors.Join(b.st.Forget(b.ctx, claims)...)
		return err == nil && !slices.ContainsFunc(claims, func(a store.Claim) bool { return b.lookAt(a).Owner != "" })
	})
}

func allContextDone(b *bench) {
	cause := errors.New("the caller has ended the call")
	b.endAll(b.done(cause), func() func() { return func() {} }, func(err error) {
		require.ErrorIs(b.t, err, context.Canceled)
		require.ErrorIs(b.t, err, cause)
	})
}

func allSilent(b *bench) {
	b.endAll(b.soon, b.interrupt, func(err error) { require.Error(b.t, err) })
}

// stressAll lets many holds take two of four locks each.
func stressAll(b *bench) {
	locks := b.claims(4)
	var rooms [4]hall
	b.many(func(st store.Store, worker, n int) error {
		first := (worker + n) % len(locks)
		second := (first + 1 + worker%3) % len(locks)
		leases, err := b.tryUntilFree(st, []store.Claim{locks[first], locks[second]})
		if err != nil {
			return err
		}
		err = errors.Join(rooms[first].write(0), rooms[second].write(0))
		b.stay()
		rooms[first].writers.Add(-1)
		rooms[second].writers.Add(-1)
		return errors.Join(err, errors.Join(b.several(st).ReleaseAll(b.ctx, leases)...))
	})
	b.requireUntouched(locks...)
}

// tryUntilFree calls TryAll, for a new client, until the locks are free.
func (b *bench) tryUntilFree(st store.Store, claims []store.Claim) ([]store.Lease, error) {
	claims = ofOneClient(claims)
	for {
		leases, err := b.several(st).TryAll(b.ctx, claims)
		if busy := (*store.Busy)(nil); !errors.As(err, &busy) {
			return leases, err
		}
		b.pause(200 * time.Microsecond)
	}
}
