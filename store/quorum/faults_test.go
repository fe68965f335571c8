package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/quorum"
)

// pass lets time go by in a bubble.
func pass(d time.Duration) { time.Sleep(d) } // in a synctest bubble

// far is a member behind a network of one process.
type far struct {
	*stage.Link
	hold atomic.Bool // a Try arrives when its caller has given up
}

var errDown = store.Unavailable(errors.New("no route"))

// down lets no command arrive until Heal: a command fails, or waits where package store says so.
func (f *far) down() {
	f.On(stage.Refuse(errDown), stage.CmdTry, stage.CmdRenew, stage.CmdForget, stage.CmdToken, stage.CmdLook)
	f.On(stage.Silence, stage.CmdWait, stage.CmdEnter, stage.CmdRelease)
}

func (f *far) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	if f.hold.Load() {
		<-ctx.Done()
		pass(time.Millisecond) // behind the commands of the caller
		_, _ = f.Store.Try(context.WithoutCancel(ctx), a)
		return store.Lease{}, store.Unsure(context.Cause(ctx))
	}
	return f.Link.Try(ctx, a)
}

// slowly makes a command arrive late, whatever becomes of its caller.
func slowly(d time.Duration) stage.Action {
	return func(_ context.Context, _ *stage.Fault, run func() error) error {
		pass(d)
		return run()
	}
}

// linked returns the store of a process whose links to the members have faults.
func (r *rig) linked(faults func(i int, k *stage.Link)) store.Store {
	r.Helper()
	return r.over(func(i int, m *mem.Store) store.Store {
		k := stage.NewLink(m)
		faults(i, k)
		return k
	})
}

// seen returns the store of a process with members of its own view.
func (r *rig) seen() (store.Store, []*far) {
	r.Helper()
	var view []*far
	s := r.over(func(_ int, m *mem.Store) store.Store {
		view = append(view, &far{Link: stage.NewLink(m)})
		return view[len(view)-1]
	})
	return s, view
}

// subsets calls f with each set of k of n members.
func subsets(n, k int, f func(members []int)) {
	for set := range 1 << n {
		var members []int
		for i := range n {
			if set&(1<<i) != 0 {
				members = append(members, i)
			}
		}
		if len(members) == k {
			f(members)
		}
	}
}

// fake runs a subtest in fake time for each set of k of n members.
func fake(t *testing.T, n, k int, f func(r *rig, members []int)) {
	t.Helper()
	subsets(n, k, func(members []int) {
		t.Run(fmt.Sprint(members, " of ", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { t.Helper(); f(newRig(t, n), members) })
		})
	})
}

// cycle runs each command of a hold, and returns its token.
func (r *rig) cycle() int64 {
	r.Helper()
	l := r.try(minute)
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	l, err := r.store.Enter(ctx, l, 2)
	require.NoError(r, err)
	require.NoError(r, r.store.Renew(ctx, []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
	token, err := r.store.Token(ctx, l)
	require.NoError(r, err)
	state, err := r.store.Look(ctx, l.Claim)
	require.NoError(r, err)
	require.Equal(r, l.ID, state.Owner)
	a := claim(minute)
	next := make(chan store.Lease, 1)
	go func() {
		l, err := r.store.Wait(ctx, a, holds.Nothing)
		require.NoError(r, err)
		next <- l
	}()
	synctest.Wait()
	require.Empty(r, next)
	require.NoError(r, r.store.Release(ctx, l))
	require.NoError(r, r.store.Release(ctx, <-next))
	return token
}

func TestADeadMinorityCostsNoFailure(t *testing.T) {
	for _, n := range []int{3, 5} {
		fake(t, n, n/2, func(r *rig, dead []int) {
			r.interrupt(dead...)
			r.cycle()
			begun := time.Now()
			r.cycle()
			require.Less(r, time.Since(begun), 200*time.Millisecond, "a member that is known to be silent is waited for")
		})
	}
}

// TestAMinorityThatPanicsCostsNoFailure has members whose code ends the goroutine of each command.
func TestAMinorityThatPanicsCostsNoFailure(t *testing.T) {
	for how, end := range map[string]func(){"panics": func() { panic("of the driver") }, "ends its goroutine": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			fake(t, 3, 1, func(r *rig, members []int) {
				s, view := r.seen()
				r.store = s
				view[members[0]].On(func(_ context.Context, _ *stage.Fault, run func() error) error { end(); return run() })
				r.cycle()
			})
		})
	}
}

func TestADeadMajorityIsUnavailable(t *testing.T) {
	for _, n := range []int{3, 5} {
		fake(t, n, n/2+1, func(r *rig, dead []int) {
			restore := r.interrupt(dead...)
			_, err := r.store.Try(r.Context(), claim(minute))
			require.ErrorIs(r, err, store.ErrUnavailable)
			require.NotErrorIs(r, err, store.ErrUnsure)
			ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
			defer cancel()
			a := claim(minute)
			l, err := r.store.Wait(ctx, a, holds.Nothing)
			for err == nil && l.Sent.IsZero() { // as the core does
				require.ErrorIs(r, second(r.store.Enter(ctx, l, 1)), store.ErrGone)
				r.store.Forget(ctx, []store.Claim{a})
				a = claim(minute)
				l, err = r.store.Wait(ctx, a, holds.Nothing)
			}
			require.ErrorIs(r, err, context.DeadlineExceeded)
			r.store.Forget(r.Context(), []store.Claim{a})
			restore()
			for _, owner := range r.owners() {
				require.Empty(r, owner)
			}
		})
	}
}

func TestARenewalThatAMinorityConfirmsIsUnsure(t *testing.T) {
	fake(t, 3, 2, func(r *rig, away []int) {
		s, view := r.seen()
		l, err := s.Try(r.Context(), claim(minute))
		require.NoError(r, err)
		for _, i := range away {
			view[i].down()
		}
		err = s.Renew(r.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0]
		require.ErrorIs(r, err, store.ErrUnsure)
		require.ErrorIs(r, err, store.ErrUnavailable)
		for _, i := range away {
			view[i].Heal()
		}
		require.NoError(r, s.Release(r.Context(), l))
	})
}

func second[T any](_ T, err error) error { return err }

func TestAHoldOutlastsTheLossOfAMinority(t *testing.T) {
	for _, n := range []int{3, 5} {
		fake(t, n, n/2, func(r *rig, emptied []int) {
			l := r.try(minute)
			for _, i := range emptied {
				r.members[i].Lose("orders")
			}
			require.NoError(r, r.store.Renew(r.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
			pass(2 * time.Second)
			for _, owner := range r.owners() {
				require.Equal(r, l.ID, owner, "the member is not filled up")
			}
			for _, i := range emptied {
				r.members[i].Lose("orders")
			}
			require.NoError(r, second(r.store.Enter(r.Context(), l, 2)))
			require.NoError(r, r.store.Release(r.Context(), l))
		})
	}
}

func TestALostMajorityIsGone(t *testing.T) {
	for _, n := range []int{3, 5} {
		fake(t, n, n/2+1, func(r *rig, emptied []int) {
			l := r.try(minute)
			for _, i := range emptied {
				r.members[i].Lose("orders")
			}
			require.ErrorIs(r, r.store.Renew(r.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0], store.ErrGone)
			synctest.Wait()
			for _, owner := range r.owners() {
				require.Empty(r, owner, "a hold that is over comes back, or stays")
			}
			require.ErrorIs(r, second(r.store.Enter(r.Context(), l, 2)), store.ErrGone)
			require.ErrorIs(r, r.store.Release(r.Context(), l), store.ErrGone)
		})
	}
}

func TestTokensGrowWhateverMinorityIsDead(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			r, last := newRig(t, n), int64(0)
			for range 3 {
				subsets(n, n/2, func(dead []int) {
					restore := r.interrupt(dead...)
					token := r.cycle()
					require.Greater(t, token, last, "dead: %v", dead)
					last = token
					restore()
					pass(2 * minute) // leases at the dead members end
				})
			}
		})
	}
}

// fast is a member whose clock, the source of its tokens, runs ahead of the others.
type fast struct {
	*mem.Store
	clock atomic.Int64
}

func (f *fast) Token(ctx context.Context, l store.Lease) (int64, error) {
	l.Token = max(l.Token, f.clock.Add(1000))
	return f.Store.Token(ctx, l)
}

func TestTokensGrowWhenTheFastestClockIsLost(t *testing.T) {
	fake(t, 3, 1, func(r *rig, ahead []int) {
		r.store = r.over(func(i int, m *mem.Store) store.Store {
			if i == ahead[0] {
				return &fast{Store: m}
			}
			return m
		})
		before := r.cycle()
		defer r.interrupt(ahead...)()
		require.Greater(r, r.cycle(), before)
	})
}

// TestAReleaseWaitsForEachMemberThatAnswers has the next hold meet two members: one that was the
// last to release, and one that is away.
func TestAReleaseWaitsForEachMemberThatAnswers(t *testing.T) {
	fake(t, 3, 2, func(r *rig, two []int) {
		for _, late := range two {
			s := r.linked(func(i int, k *stage.Link) {
				if i == late { // most of the 5 ms that a release waits at least
					k.On(slowly(4*time.Millisecond), stage.CmdRelease)
				}
			})
			l, err := s.Try(r.Context(), claim(minute))
			require.NoError(r, err)
			require.NoError(r, s.Release(r.Context(), l))
			back := r.interrupt(two[0] + two[1] - late)
			l, err = s.Try(r.Context(), claim(minute))
			require.NoError(r, err)
			back()
			require.NoError(r, s.Release(r.Context(), l))
		}
	})
}

// floorless draws tokens without a floor.
type floorless struct{ *mem.Store }

func (f floorless) Token(ctx context.Context, l store.Lease) (int64, error) {
	l.Token = 0
	return f.Store.Token(ctx, l)
}

func TestTokenRefusesMembersWithoutAFloor(t *testing.T) {
	r := newRig(t, 3)
	one := true
	r.store = r.over(func(_ int, m *mem.Store) store.Store {
		if one {
			one = false
			return floorless{m}
		}
		return m
	})
	other := claim(minute)
	for _, m := range r.members[1:] { // ahead of the first member
		l, err := m.Try(t.Context(), other)
		require.NoError(t, err)
		l.Token = 100
		require.NoError(t, second(m.Token(t.Context(), l)))
		require.NoError(t, m.Release(t.Context(), l))
	}
	l := r.try(minute)
	require.ErrorIs(t, second(r.store.Token(t.Context(), l)), errors.ErrUnsupported)
}

func TestALateMemberIsTakenBack(t *testing.T) {
	t.Run("after the release", func(t *testing.T) {
		fake(t, 3, 1, func(r *rig, late []int) {
			s, view := r.seen()
			view[late[0]].hold.Store(true)
			a := claim(minute)
			l, err := s.Try(r.Context(), a)
			require.NoError(r, err)
			require.True(r, l.Unsure)
			require.NoError(r, s.Release(r.Context(), l))
			synctest.Wait()
			require.NoError(r, s.Close())
			require.NoError(r, s.Forget(r.Context(), []store.Claim{a})[0]) // cleanup
			for _, owner := range r.owners() {
				require.Empty(r, owner)
			}
		})
	})
	t.Run("after a refusal", func(t *testing.T) {
		fake(t, 3, 2, func(r *rig, late []int) {
			s, view := r.seen()
			for _, i := range late {
				view[i].hold.Store(true)
			}
			_, err := s.Try(r.Context(), claim(minute))
			require.ErrorIs(r, err, store.ErrUnavailable)
			require.NoError(r, s.Close())
			for _, owner := range r.owners() {
				require.Empty(r, owner)
			}
		})
	})
}

// TestAFillBehindAReleaseIsTakenBack fills up a member whose Try arrives after the release.
func TestAFillBehindAReleaseIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		s, view := r.seen()
		l, err := s.Try(t.Context(), claim(minute))
		require.NoError(t, err)
		r.members[2].Lose("orders")
		view[2].hold.Store(true)
		require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
		pass(1100 * time.Millisecond) // the fill has begun
		require.NoError(t, s.Release(t.Context(), l))
		pass(time.Second)
		require.Equal(t, []store.ID{"", "", ""}, r.owners())
	})
}

// A fill waits behind another hold, and its member is silent for more than a lease.
func TestAFillThatGivesUpLeavesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		s, _ := r.seen()
		l, err := s.Try(t.Context(), claim(minute))
		require.NoError(t, err)
		r.members[2].Lose("orders")
		other, err := r.members[2].Try(t.Context(), claim(10*minute))
		require.NoError(t, err)
		renew := func() {
			require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
		}
		renew()
		pass(2 * time.Second) // the fill waits at the member
		state, err := r.members[2].Look(t.Context(), l.Claim)
		require.NoError(t, err)
		require.Equal(t, 1, state.Waiters)
		restore := r.members[2].Interrupt(nil)
		for range 5 {
			pass(minute / 3)
			renew()
		}
		restore()
		pass(time.Second)
		require.NoError(t, s.Release(t.Context(), l))
		pass(5 * time.Second)
		require.NoError(t, r.members[2].Release(t.Context(), other))
		require.Equal(t, []store.ID{"", "", ""}, r.owners())
	})
}

// TestACallEndsWithItsContext has calls whose contexts end while locks are given back. A waiter is
// refused before or after other members have given their locks.
func TestACallEndsWithItsContext(t *testing.T) {
	wait := func(ctx context.Context, s store.Store, a store.Claim) error {
		return second(s.Wait(ctx, a, holds.Nothing))
	}
	try := func(ctx context.Context, s store.Store, a store.Claim) error { return second(s.Try(ctx, a)) }
	for name, c := range map[string]struct {
		call      func(ctx context.Context, s store.Store, a store.Claim) error
		try, wait time.Duration
	}{
		"Try":                 {try, 0, 0},
		"Wait, refused first": {wait, 10 * time.Millisecond, 0},
		"Wait, refused last":  {wait, 0, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 3)
				s := r.linked(func(_ int, k *stage.Link) {
					k.On(slowly(900*time.Millisecond), stage.CmdForget)
					k.On(slowly(c.try), stage.CmdTry)
					k.On(slowly(c.wait), stage.CmdWait)
				})
				_, err := r.members[0].Try(t.Context(), claim(minute))
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				begun := time.Now()
				err = c.call(ctx, s, claim(minute))
				require.Equal(t, 50*time.Millisecond, time.Since(begun))
				require.ErrorIs(t, err, store.ErrUnsure, "the caller takes back what is left")
			})
		})
	}
}

// TestAReleaseOfAKnownEndEndsThere has a context that needs no watch, as the core has it. The commands
// at silent members end a second behind the call, or with the context.
func TestAReleaseOfAKnownEndEndsThere(t *testing.T) {
	release := func(r *rig, silent []int) (took time.Duration, ends []time.Duration, err error) {
		ended := make(chan time.Time, len(silent))
		s := r.linked(func(i int, k *stage.Link) {
			if slices.Contains(silent, i) {
				k.On(func(ctx context.Context, _ *stage.Fault, _ func() error) error {
					<-ctx.Done()
					ended <- time.Now()
					return store.Unsure(ctx.Err())
				}, stage.CmdRelease)
			}
		})
		l, err := s.Try(r.Context(), claim(minute))
		require.NoError(r, err)
		begun := time.Now()
		ctx := lifetime.Until(r.Context(), begun.Add(10*time.Second))
		err = s.Release(ctx, l)
		took = time.Since(begun)
		ctx.Stop()
		for range silent {
			ends = append(ends, (<-ended).Sub(begun))
		}
		return took, ends, err
	}
	fake(t, 3, 1, func(r *rig, silent []int) {
		took, ends, err := release(r, silent)
		require.NoError(r, err)
		require.LessOrEqual(r, took, 50*time.Millisecond)
		require.Equal(r, took+time.Second, ends[0])
	})
	fake(t, 3, 2, func(r *rig, silent []int) {
		took, _, err := release(r, silent)
		require.ErrorIs(r, err, context.DeadlineExceeded)
		require.ErrorIs(r, err, store.ErrUnsure)
		require.Equal(r, 10*time.Second, took)
	})
}

// TestAReleaseThatEndsSoonFreesALateMember ends the call where the lease of the majority ends. The
// lease of a member that a renewal has reached alone is longer.
func TestAReleaseThatEndsSoonFreesALateMember(t *testing.T) {
	fake(t, 3, 1, func(r *rig, late []int) {
		s := r.linked(func(i int, k *stage.Link) {
			if slices.Contains(late, i) {
				k.On(stage.Delay(200*time.Millisecond, 0), stage.CmdRelease)
			}
		})
		l, err := s.Try(r.Context(), claim(minute))
		require.NoError(r, err)
		ctx := lifetime.Until(r.Context(), time.Now().Add(100*time.Millisecond))
		require.NoError(r, s.Release(ctx, l))
		ctx.Stop()
		pass(time.Second)
		state, err := r.members[late[0]].Look(r.Context(), l.Claim)
		require.NoError(r, err)
		require.Empty(r, state.Owner)
	})
}

// nameless is a member that counts its waiters, and knows none of them.
type nameless struct{ store.Store }

// TestAQueueThatItsMemberDoesNotTellIsNotThatOfAnother has waiters at the first member only.
func TestAQueueThatItsMemberDoesNotTellIsNotThatOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		s := r.over(func(i int, m *mem.Store) store.Store {
			if i == 0 {
				return nameless{m}
			}
			return m
		})
		l, a := r.try(minute), claim(minute)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.Wait(ctx, a, holds.Nothing)
			ended <- err
		}()
		synctest.Wait()
		state, err := s.Look(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, 1, state.Waiters)
		found, err := s.(store.Queueing).Waiters(t.Context(), a, 10)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Empty(t, found)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.NoError(t, s.Release(t.Context(), l))
	})
}

// TestAFillBesideABreakDoesNotComeBack renews a hold while the members are freed one by one.
func TestAFillBesideABreakDoesNotComeBack(t *testing.T) {
	for _, apart := range []time.Duration{20 * time.Millisecond, 400 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 3)
			other := r.linked(func(i int, k *stage.Link) { k.On(slowly(time.Duration(i)*apart), stage.CmdBreak) })
			l := r.try(minute)
			broken := make(chan error, 1)
			go func() { broken <- other.Break(t.Context(), l.Claim) }()
			var err error
			for range 200 {
				pass(10 * time.Millisecond)
				if err = r.store.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0]; err != nil {
					break
				}
			}
			require.ErrorIs(t, err, store.ErrGone)
			require.NoError(t, <-broken)
			pass(5 * time.Second)
			require.Equal(t, []store.ID{"", "", ""}, r.owners())
		})
	}
}

// TestABreakThatMissesAMemberIsNotUndone has the holder renew between two members.
func TestABreakThatMissesAMemberIsNotUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		other := r.linked(func(i int, k *stage.Link) {
			k.On([]stage.Action{slowly(0), slowly(100 * time.Millisecond), stage.Refuse(errDown)}[i], stage.CmdBreak)
		})
		r.requireBroken(other, r.try(minute), 50*time.Millisecond)
	})
}

// TestABreakThatMeetsAFillIsNotUndone has a fill be due while a Break is on its way.
func TestABreakThatMeetsAFillIsNotUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		other := r.linked(func(i int, k *stage.Link) {
			k.On(slowly([]time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 0}[i]), stage.CmdBreak)
		})
		l := r.try(minute)
		r.members[2].Lose("orders")
		require.NoError(t, r.renew(l))
		pass(950 * time.Millisecond)
		r.requireBroken(other, l, 150*time.Millisecond)
	})
}

func (r *rig) renew(l store.Lease) error {
	r.Helper()
	return r.store.Renew(r.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0]
}

// requireBroken breaks a hold that is renewed after each message, as the core does, and once more
// meanwhile. The hold must not come back.
func (r *rig) requireBroken(other store.Store, l store.Lease, renewedAfter time.Duration) {
	r.Helper()
	client, _, _ := strings.Cut(string(l.ID), ":")
	var renewals sync.WaitGroup
	stop := r.store.(store.Watcher).Watch(client, func(store.ID) {
		renewals.Go(func() { _ = r.renew(l) })
	})
	broken := make(chan error, 1)
	go func() { broken <- other.Break(r.Context(), l.Claim) }()
	pass(renewedAfter)
	_ = r.renew(l)
	if err := <-broken; err != nil {
		require.ErrorIs(r, err, store.ErrGone, "or the holder has given up the rest by itself")
	}
	pass(5 * time.Second)
	stop()
	renewals.Wait()
	require.ErrorIs(r, r.renew(l), store.ErrGone)
}

// TestAForgottenHoldDoesNotComeBack forgets a hold while a member has not answered yet, and while a
// member is about to get the hold again.
func TestAForgottenHoldDoesNotComeBack(t *testing.T) {
	for what, lose := range map[string]bool{"late": false, "filled": true} {
		t.Run(what, func(t *testing.T) {
			fake(t, 3, 1, func(r *rig, members []int) {
				s, view := r.seen()
				view[members[0]].hold.Store(!lose)
				l, err := s.Try(r.Context(), claim(minute))
				require.NoError(r, err)
				if lose {
					r.members[members[0]].Lose("orders")
					require.NoError(r, s.Renew(r.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
				}
				require.NoError(r, s.Forget(r.Context(), []store.Claim{l.Claim})[0])
				pass(3 * time.Second)
				require.Equal(r, []store.ID{"", "", ""}, r.owners())
			})
		})
	}
}

// lapsed is a member whose grants are over before their answers.
type lapsed struct{ *mem.Store }

func (m lapsed) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := m.Store.Wait(ctx, a, progress)
	m.Lose("orders")
	l.Sent = l.Sent.Add(-minute)
	return l, err
}

// TestAWaiterThatCannotGiveBackAsksWithPauses has a member that the owner misses, and whose answers
// to Forget are lost: each ask of the waiter has its lock, and so spends its ID.
func TestAWaiterThatCannotGiveBackAsksWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		owner := claim(minute)
		for _, m := range r.members[:2] {
			require.NoError(t, second(m.Try(t.Context(), owner)))
		}
		var last *stage.Link
		c, err := relock.Open(r.linked(func(_ int, k *stage.Link) { last = k }))
		require.NoError(t, err)
		last.On(stage.LoseAnswer(errDown), stage.CmdForget)
		_, err = c.NewLock("orders").TryLockFor(t.Context(), minute/2)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.LessOrEqual(t, last.Sent(stage.CmdTry), 70)
		last.Heal()
		require.NoError(t, c.Close())
		for i, m := range r.members {
			state, err := m.Look(t.Context(), owner)
			require.NoError(t, err)
			require.Zero(t, state.Waiters)
			require.Equal(t, i < 2, state.Owner == owner.ID)
		}
	})
}

// TestAGrantThatWasOverSpendsItsAsk has the first member say so when the waiter enters.
func TestAGrantThatWasOverSpendsItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		for _, m := range r.members[1:] {
			require.NoError(t, second(m.Try(t.Context(), claim(minute))))
		}
		s := r.over(func(_ int, m *mem.Store) store.Store { return lapsed{m} })
		begun := time.Now()
		l, err := s.Wait(t.Context(), claim(minute), holds.Nothing)
		require.NoError(t, err)
		require.Zero(t, time.Since(begun))
		require.Zero(t, l.Sent)
	})
}

// TestAFillBesideAReleaseDoesNotComeBack begins a release between the Enter of three members.
func TestAFillBesideAReleaseDoesNotComeBack(t *testing.T) {
	fake(t, 3, 1, func(r *rig, late []int) {
		var l store.Lease
		var s store.Store
		s = r.linked(func(i int, k *stage.Link) {
			if i == late[0] {
				k.On(func(_ context.Context, _ *stage.Fault, run func() error) error {
					pass(time.Millisecond) // the others have entered
					require.NoError(r, s.Release(r.Context(), l))
					return run()
				}, stage.CmdEnter)
			}
		})
		var err error
		l, err = s.Try(r.Context(), claim(minute))
		require.NoError(r, err)
		_, _ = s.Enter(r.Context(), l, 2)
		pass(2 * time.Second)
		require.Equal(r, []store.ID{"", "", ""}, r.owners())
	})
}

// TestAHoldThatIsReleasedIsNotFilled has a release that runs before the answers to an Enter.
func TestAHoldThatIsReleasedIsNotFilled(t *testing.T) {
	fake(t, 3, 1, func(r *rig, emptied []int) {
		var l store.Lease
		var s store.Store
		var begun atomic.Bool
		release := func(_ context.Context, _ *stage.Fault, run func() error) error {
			err := run()
			if begun.CompareAndSwap(false, true) {
				pass(time.Millisecond) // all have entered
				require.NoError(r, s.Release(r.Context(), l))
			}
			pass(10 * time.Millisecond)
			return err
		}
		s = r.linked(func(_ int, k *stage.Link) { k.On(release, stage.CmdEnter) })
		var err error
		l, err = s.Try(r.Context(), claim(minute))
		require.NoError(r, err)
		r.members[emptied[0]].Lose("orders")
		_, _ = s.Enter(r.Context(), l, 2)
		for range 30 {
			pass(100 * time.Millisecond)
			require.Equal(r, []store.ID{"", "", ""}, r.owners())
		}
	})
}

func TestAWaiterMovesOnWhenItsQueueDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		l := r.try(minute)
		order := make(chan store.ID, 3)
		var claims []store.Claim
		for range 3 {
			a := claim(minute)
			claims = append(claims, a)
			go func() {
				l, err := r.store.Wait(t.Context(), a, holds.Nothing)
				assert.NoError(t, err)
				order <- l.ID
				pass(time.Second)
				assert.NoError(t, r.store.Release(t.Context(), l))
			}()
			synctest.Wait()
		}
		restore := r.interrupt(0)
		pass(3 * longestBeat)
		require.NoError(t, r.store.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
		require.Empty(t, order)
		require.NoError(t, r.store.Release(t.Context(), l))
		for range claims {
			<-order
		}
		pass(2 * time.Second)
		restore()
	})
}

const longestBeat = 3 * time.Second // as in wait.go

func TestTryDoesNotPassTheQueueOfTheFirstMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		first, err := r.members[0].Try(t.Context(), claim(minute))
		require.NoError(t, err)
		_, err = r.store.Try(t.Context(), claim(minute))
		var busy *store.Busy
		require.ErrorAs(t, err, &busy)
		require.NotErrorIs(t, err, store.ErrUnsure)
		require.Equal(t, []store.ID{first.ID, "", ""}, r.owners())
	})
}

func TestAMinorityOfOthersIsNoHindrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 5)
		for _, i := range []int{2, 4} {
			_, err := r.members[i].Try(t.Context(), claim(minute))
			require.NoError(t, err)
		}
		l := r.try(minute)
		state, err := r.store.Look(t.Context(), store.Claim{Name: "orders"})
		require.NoError(t, err)
		require.Equal(t, l.ID, state.Owner)
		require.NoError(t, r.store.Release(t.Context(), l))
	})
}

func TestClientsOfOneViewPassTheLockOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		var group sync.WaitGroup
		number, begun := 0, time.Now()
		for range 4 {
			client, err := relock.Open(r.open())
			require.NoError(t, err)
			t.Cleanup(func() { _ = client.Close() })
			for range 4 {
				group.Go(func() {
					for range 20 {
						require.NoError(t, client.NewLock("orders").Do(t.Context(), func(context.Context) error {
							number++
							return nil
						}))
					}
				})
			}
		}
		group.Wait()
		require.Equal(t, 320, number)
		require.Less(t, time.Since(begun), time.Second)
	})
}

// TestNobodyWithAMajorityIsResolved has three clients hold two, two and one of five members, as
// each reached only these at first.
func TestNobodyWithAMajorityIsResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 5)
		begun := time.Now()
		var last atomic.Int64
		var wg sync.WaitGroup
		for _, reached := range [][]int{{0, 1}, {2, 3}, {4}} {
			s, view := r.seen()
			for i, m := range view {
				if !slices.Contains(reached, i) {
					m.down()
				}
			}
			c, err := relock.Open(s, relock.WithTTL(4*time.Second))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			time.AfterFunc(time.Second, func() {
				for _, m := range view {
					m.Heal()
				}
			})
			wg.Go(func() {
				l := c.NewLock("orders")
				section, err := l.Lock(t.Context())
				if assert.NoError(t, err) {
					last.Store(int64(time.Since(begun)))
					assert.NoError(t, l.Unlock(section))
				}
			})
		}
		wg.Wait()
		t.Logf("all three had the lock within %s", time.Duration(last.Load()))
		require.Less(t, time.Duration(last.Load()), 15*time.Second)
	})
}

// TestCrowdsAtDifferentMembersFindTogether has three clients whose callers queue at a member each, as
// each client reached only this one at first.
func TestCrowdsAtDifferentMembersFindTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		begun := time.Now()
		var wg sync.WaitGroup
		for reached := range r.members {
			s, view := r.seen()
			for i, m := range view {
				if i != reached {
					m.down()
					time.AfterFunc(2*time.Second, m.Heal)
				}
			}
			c, err := relock.Open(s, relock.WithTTL(4*time.Second))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			l := c.NewLock("orders")
			for range 50 {
				wg.Go(func() {
					section, err := l.Lock(t.Context())
					if assert.NoError(t, err) {
						assert.NoError(t, l.Unlock(section))
					}
				})
			}
		}
		wg.Wait()
		t.Logf("all had the lock within %s", time.Since(begun))
		require.Less(t, time.Since(begun), 15*time.Second)
	})
}

func TestAWaiterStaysWithAMemberThatAnswersOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		s := r.linked(func(_ int, k *stage.Link) { k.On(stage.Silence, stage.CmdLook) })
		l, err := s.Try(t.Context(), claim(minute))
		require.NoError(t, err)
		done := make(chan store.Lease)
		go func() {
			l, err := s.Wait(t.Context(), claim(minute), holds.Nothing)
			assert.NoError(t, err)
			done <- l
		}()
		for range 10 {
			pass(longestBeat / 2)
			require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
		}
		for i, m := range r.members {
			state, err := m.Look(t.Context(), l.Claim)
			require.NoError(t, err)
			require.Equal(t, map[bool]int{true: 1, false: 0}[i == 0], state.Waiters, "member %d", i)
		}
		require.NoError(t, s.Release(t.Context(), l))
		require.NoError(t, s.Release(t.Context(), <-done))
	})
}

// TestAWaiterThatReachedNobodyFindsTheMembersThatComeBack has a client without a network at first, and
// a member that stays away.
func TestAWaiterThatReachedNobodyFindsTheMembersThatComeBack(t *testing.T) {
	fake(t, 3, 1, func(r *rig, dead []int) {
		s, view := r.seen()
		for _, m := range view {
			m.down()
		}
		done := make(chan store.Lease, 1)
		go func() {
			l, err := s.Wait(r.Context(), claim(minute), holds.Nothing)
			assert.NoError(r, err)
			done <- l
		}()
		pass(minute)
		require.Empty(r, done)
		for i, m := range view {
			if i != dead[0] {
				m.Heal()
			}
		}
		pass(10 * time.Second)
		require.Len(r, done, 1, "the waiter does not see that a majority is back")
		require.NoError(r, s.Release(r.Context(), <-done))
	})
}

// teller is a member that can say again that it refuses a wait.
type teller struct {
	*stage.Link
	again func(store.Progress)
}

func (s *teller) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	s.again = progress
	return s.Link.Wait(ctx, a, progress)
}

// TestAWaiterKeepsNoLockOfAMemberThatItHasLeft has a waiter that goes from the third member back to the
// first one, and then to the second one, where it has a place already.
func TestAWaiterKeepsNoLockOfAMemberThatItHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		owner := r.try(minute)
		var view []*teller
		s := r.over(func(_ int, m *mem.Store) store.Store {
			view = append(view, &teller{Link: stage.NewLink(m)})
			return view[len(view)-1]
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, done := claim(minute), make(chan error)
		go func() { done <- second(s.Wait(ctx, a, holds.Nothing)) }()
		pass(time.Second)
		for _, m := range view[:2] {
			m.On(stage.Refuse(errDown), stage.CmdLook)
		}
		pass(4 * longestBeat) // the waiter queues at the third member
		for i, m := range r.members {
			state, err := m.Look(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, 1, state.Waiters, "member %d", i)
		}
		view[0].again(store.Progress{Busy: &store.Busy{Owner: owner.ID}, Queued: true}) // back to the first member
		pass(longestBeat / 2)
		view[1].Heal()
		pass(2 * longestBeat) // the first member is quiet again
		require.NoError(t, r.members[2].Release(t.Context(), owner))
		pass(longestBeat)
		state, err := r.members[2].Look(t.Context(), a)
		require.NoError(t, err)
		require.Empty(t, state.Owner, "the waiter queues at the second member")
		cancel()
		require.Error(t, <-done)
	})
}

func TestARefusalOfAMemberThatIsAskedAgainIsNoLastWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		owner := r.try(minute)
		full := errors.New("no memory")
		s := r.linked(func(i int, k *stage.Link) {
			switch i {
			case 0:
				k.Once(stage.Refuse(full), stage.CmdWait)
			case 2:
				k.On(stage.Refuse(full), stage.CmdWait)
			}
		})
		done := make(chan store.Lease, 1)
		go func() {
			l, err := s.Wait(t.Context(), claim(minute), holds.Nothing)
			assert.NoError(t, err)
			done <- l
		}()
		pass(time.Second) // the waiter queues at the second member
		require.NoError(t, r.members[1].Release(t.Context(), owner))
		pass(100 * time.Millisecond) // and now at the first one, too
		require.Empty(t, done)
		require.NoError(t, r.members[0].Release(t.Context(), owner))
		require.NoError(t, s.Release(t.Context(), <-done))
	})
}

func TestNewRefusesWhatIsNoQuorum(t *testing.T) {
	for _, members := range [][]store.Store{nil, {mem.New()}, {mem.New(), mem.New()}, {mem.New(), mem.New(), nil},
		{mem.New(), mem.New(), mem.New(), mem.New()}} {
		_, err := quorum.New(members...)
		require.Error(t, err)
	}
}

// spells gives names a spelling of its own.
type spells struct {
	*mem.Store
	prefix string
}

func (s spells) Check(a store.Claim) (store.Claim, error) {
	a.Name = s.prefix + a.Name
	return a, nil
}

// reports is a Reporter that cannot be compared.
type reports []error

func (reports) Retrying(string, int, time.Time, error) {}

func TestCheckWantsOneSpelling(t *testing.T) {
	s, err := quorum.New(spells{mem.New(), ""}, spells{mem.New(), ""}, spells{mem.New(), "app:"})
	require.NoError(t, err)
	_, err = s.Check(claim(minute))
	require.ErrorContains(t, err, "member 3")
	a := claim(minute)
	a.Report = reports{}
	same, err := quorum.New(mem.New(), mem.New(), mem.New())
	require.NoError(t, err)
	require.NoError(t, second(same.Check(a)))
	a.Limit = 2
	_, err = s.Check(a)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// aged is a member whose leases are older than they seem.
type aged struct {
	*mem.Store
	age time.Duration
}

func (m aged) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := m.Store.Try(ctx, a)
	l.Sent = l.Sent.Add(-m.age)
	return l, err
}

func (m aged) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	l, err := m.Store.Enter(ctx, l, count)
	l.Sent = l.Sent.Add(-m.age)
	return l, err
}

func TestTheDeadlineIsThatOfTheMajority(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, n)
			s := r.over(func(i int, m *mem.Store) store.Store { return aged{m, time.Duration(i) * time.Second} })
			l, err := s.Try(t.Context(), claim(minute))
			require.NoError(t, err)
			require.Equal(t, time.Duration(n/2)*time.Second, time.Since(l.Sent))
			l, err = s.Enter(t.Context(), l, 2)
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(l.Sent), time.Duration(n/2)*time.Second)
			require.NoError(t, s.Release(t.Context(), l))
		})
	}
}

// TestASilentMajorityIsFoundAgainByTry has a client that only tries meet a majority that was
// silent.
func TestASilentMajorityIsFoundAgainByTry(t *testing.T) {
	fake(t, 3, 2, func(r *rig, silent []int) {
		restore := r.interrupt(silent...)
		for range 3 {
			_, err := r.store.Try(r.Context(), claim(minute))
			require.ErrorIs(r, err, store.ErrUnavailable)
		}
		restore()
		r.try(minute)
	})
}

// TestALockBesideASilentMemberIsTakenAtOnce has Wait not wait for a member that is known to be
// silent.
func TestALockBesideASilentMemberIsTakenAtOnce(t *testing.T) {
	fake(t, 3, 1, func(r *rig, silent []int) {
		restore := r.interrupt(silent...)
		defer restore()
		r.cycle() // finds out
		for range 3 {
			begun := time.Now()
			l, err := r.store.Wait(r.Context(), claim(minute), holds.Nothing)
			require.NoError(r, err)
			require.Zero(r, time.Since(begun))
			require.NoError(r, r.store.Release(r.Context(), l))
		}
	})
}

// TestAWaiterGivesBackWhatItDoesNotUse refuses a waiter at the first member only.
func TestAWaiterGivesBackWhatItDoesNotUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		first, err := r.members[0].Try(t.Context(), claim(minute))
		require.NoError(t, err)
		a, got := claim(minute), make(chan store.Lease, 1)
		go func() {
			l, err := r.store.Wait(t.Context(), a, holds.Nothing)
			assert.NoError(t, err)
			got <- l
		}()
		synctest.Wait()
		require.Equal(t, []store.ID{first.ID, "", ""}, r.owners())
		require.NoError(t, r.members[0].Release(t.Context(), first))
		require.NoError(t, r.store.Release(t.Context(), <-got))
	})
}

// TestAMinorityIsGivenUp has a waiter at a first member that has lost the hold of a live owner.
func TestAMinorityIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		l := r.try(minute)
		r.members[0].Lose("orders")
		begun, a := time.Now(), claim(minute)
		spent, err := r.store.Wait(t.Context(), a, holds.Nothing)
		require.NoError(t, err)
		require.Less(t, time.Since(begun), 3*time.Second)
		require.Negative(t, time.Until(spent.Until()))
		require.ErrorIs(t, second(r.store.Enter(t.Context(), spent, 1)), store.ErrGone)
		require.NoError(t, r.store.Forget(t.Context(), []store.Claim{a})[0])
		require.NoError(t, r.store.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
		pass(2 * time.Second)
		require.Equal(t, []store.ID{l.ID, l.ID, l.ID}, r.owners())
		require.NoError(t, r.store.Release(t.Context(), l))
	})
}

// balanced is a member whose address leads to two servers in turns.
type balanced struct {
	*mem.Store
	other *mem.Store
}

func (m balanced) Look(ctx context.Context, a store.Claim) (store.State, error) {
	return m.other.Look(ctx, a)
}

// copies is a member that has the locks of another one, too.
type copies struct {
	*mem.Store
	of *mem.Store
}

func (m copies) Look(ctx context.Context, a store.Claim) (store.State, error) {
	pass(time.Millisecond) // the copy comes late
	state, err := m.Store.Look(ctx, a)
	from, _ := m.of.Look(ctx, a)
	state.Others = append(state.Others, store.Held{ID: from.Owner, TTL: from.TTL, Limit: 1})
	return state, err
}

func TestCheckWantsServersOfTheirOwn(t *testing.T) {
	for want, members := range map[string]func(one, two, three *mem.Store) []store.Store{
		"": func(one, two, three *mem.Store) []store.Store { return []store.Store{one, two, three} },
		"they share a server": func(one, two, _ *mem.Store) []store.Store {
			return []store.Store{one, two, one}
		},
		"member 3 has a lock of member 1": func(one, two, three *mem.Store) []store.Store {
			return []store.Store{one, two, copies{three, one}}
		},
		"member 2 does not have a lock that it gave just now": func(one, two, three *mem.Store) []store.Store {
			return []store.Store{one, balanced{two, mem.New()}, three}
		},
		"member 2: the store is unavailable": func(one, two, three *mem.Store) []store.Store {
			two.Interrupt(nil)
			return []store.Store{one, two, three}
		},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := quorum.New(members(mem.New(), mem.New(), mem.New())...)
				require.NoError(t, err)
				err = s.(store.Checker).CheckServer(t.Context(), claim(minute))
				if want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, want)
				}
				require.NoError(t, s.Close())
			})
		})
	}
}
