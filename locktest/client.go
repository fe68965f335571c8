package locktest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
)

var clientTests = []test{
	{name: "Close ends waits and sections", run: closeEnds, short: true},
	{name: "After Close only what frees a lock works", run: closeAfter},
	{name: "WithReleaseOnClose frees what is held", run: closeReleases},
	{name: "Close during calls of every kind", run: closeRace},
	{name: "WithOwner names the process", run: ownerName},
	{name: "Check of a store that serves", run: checkServes, short: true},
	{name: "Hooks tell of a hold", run: hooksTell},
	{name: "Wrong names, options and arguments are told", run: invalidTold},
}

var optionalTests = []test{
	{name: "Many calls of one client exclude each other", run: passMany},
	{name: "The calls of one client are served in order", run: passOrder, needs: FIFO},
	{name: "WithReplicaAcks asks the replicas", run: acksAsked, needs: Acks, short: true},
	{name: "Promises that are not made are refused", run: lacksRefused, short: true},
}

func closeEnds(b *bench) {
	closing := b.client()
	a, l, there := b.lock(closing, "a"), b.lock(closing, "b"), b.lock(b.other, "b")
	outer := b.enter(b.ctx, a)
	inner := b.enter(outer, a)
	blocked := b.enter(b.ctx, there)
	waiting, limited := b.wait(b.ctx, l.Lock), b.wait(b.ctx, tryFor(l, long))
	require.NoError(b.t, closing.Close())
	for _, c := range []*call{waiting, limited} {
		b.requireKinds(b.fails(c), relock.ErrClosed)
	}
	require.Equal(b.t, relock.ErrClosed, context.Cause(outer))
	require.Equal(b.t, relock.ErrClosed, context.Cause(inner))
	require.NoError(b.t, closing.Close(), "closing twice is allowed")

	require.Equal(b.t, 2, b.state(a).Count)
	b.unlock(a, inner)
	require.True(b.t, b.state(a).Locked())
	b.unlock(a, outer)
	b.requireKinds(a.Unlock(outer), relock.ErrNotHeld)
	b.unlock(there, blocked)
}

func closeAfter(b *bench) {
	closing := b.client()
	l, there := b.lock(closing, "a"), b.lock(b.other, "a")
	section := b.enter(b.ctx, l)
	fixed := b.lock(closing, "b", relock.WithFixedLease(long))
	other := b.enter(b.ctx, fixed)
	next := b.wait(b.ctx, there.Lock)
	require.NoError(b.t, closing.Close())
	for _, ctx := range []context.Context{b.ctx, context.WithoutCancel(section)} {
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, long)} {
			got, err := lock(ctx)
			b.requireKinds(err, relock.ErrClosed)
			require.Equal(b.t, err, context.Cause(got))
		}
		require.ErrorIs(b.t, l.Do(ctx, nothing), relock.ErrNotEntered)
	}
	b.requireKinds(fixed.Extend(context.WithoutCancel(other), long), relock.ErrClosed)
	require.NoError(b.t, fixed.ForceUnlock(b.ctx))
	b.requireLost(fixed.Unlock(other), fixed, event.LossTaken)

	require.True(b.t, b.state(l).Locked())
	b.unlock(l, section)
	b.unlock(there, b.get(next))
}

func closeReleases(b *bench) {
	closing := b.client(relock.WithReleaseOnClose())
	l, there := b.lock(closing, "a"), b.lock(b.other, "a")
	section := b.enter(b.ctx, l)
	inner := b.enter(section, l)
	c := b.wait(b.ctx, there.Lock)
	require.NoError(b.t, closing.Close())
	b.unlock(there, b.get(c))
	require.Equal(b.t, relock.ErrClosed, context.Cause(section))
	b.requireKinds(l.Unlock(inner), relock.ErrClosed)
	b.requireKinds(l.Unlock(section), relock.ErrClosed)
	b.requireKinds(l.Unlock(section), relock.ErrNotHeld)
}

func closeRace(b *bench) {
	for range 3 {
		closing := b.client(relock.WithReleaseOnClose())
		var wg sync.WaitGroup
		errs := make([]error, 9)
		started := make(chan struct{}, len(errs))
		for i := range errs {
			l := b.lock(closing, []string{"a", "b", "c"}[i%3])
			lock := []locking{l.Lock, l.TryLock, tryFor(l, 5*time.Millisecond)}[i/3]
			wg.Go(func() {
				for round := 0; ; round++ {
					section, err := lock(b.ctx)
					if err == nil {
						err = l.Unlock(section)
					}
					if round == 0 {
						started <- struct{}{}
					}
					switch {
					case errors.Is(err, relock.ErrClosed):
						return
					case err != nil && !errors.Is(err, relock.ErrLocked) && !errors.Is(err, context.DeadlineExceeded):
						errs[i] = err
						return
					}
					<-time.After(time.Millisecond)
				}
			})
		}
		for range errs {
			<-started
		}
		require.NoError(b.t, closing.Close())
		wg.Wait()
		require.NoError(b.t, errors.Join(errs...))
		b.requireFree()
	}
}

func ownerName(b *bench) {
	named := b.client(relock.WithOwner("orders@pod-7"))
	require.True(b.t, strings.HasPrefix(named.ID(), "orders@pod-7/"))
	l, there := b.lock(named, "a"), b.lock(b.other, "a")
	section := b.enter(b.ctx, l)
	require.Contains(b.t, b.holder(section).String(), named.ID())
	b.requireOwner(there, b.holder(section))
	err := last(there.TryLock(b.ctx))
	b.requireRefused(err, l, b.holder(section))
	if b.promises(Names) {
		require.ErrorContains(b.t, err, "orders@pod-7")
	}
	c := b.wait(b.ctx, there.Lock)
	b.unlock(l, section)
	section = b.get(c)
	waits := b.wait(b.ctx, l.Lock)
	b.unlock(there, section)
	b.unlock(l, b.get(waits))
}

func checkServes(b *bench) {
	require.NoError(b.t, b.one.Check(b.ctx))
	done, cancel := context.WithCancel(b.ctx)
	cancel()
	require.ErrorIs(b.t, b.one.Check(done), context.Canceled)
}

func hooksTell(b *bench) {
	var mu sync.Mutex
	var told []any
	tell := func(e any) { mu.Lock(); defer mu.Unlock(); told = append(told, e) }
	c := b.client()
	l := b.lock(c, "a", relock.WithHooks(event.Hooks{
		AcquireStarted:  func(e event.AcquireStarted) { tell(e) },
		AcquireFinished: func(e event.AcquireFinished) { tell(e) },
		Released:        func(e event.Released) { tell(e) },
	}))
	outer := b.enter(b.ctx, l)
	holder := b.holder(outer)
	inner := b.enter(outer, l)
	b.requireRefused(last(l.TryLock(b.ctx)), l, holder)
	b.unlock(l, inner, outer)
	require.NoError(b.t, c.Close())
	mu.Lock()
	defer mu.Unlock()
	require.Len(b.t, told, 7)
	for i, want := range []event.AcquireFinished{
		{Outcome: event.OutcomeAcquired, Depth: 1, TTL: long, Holder: holder},
		{Outcome: event.OutcomeAcquired, Depth: 2, TTL: long, Holder: holder, Reentrant: true},
		{Outcome: event.OutcomeLocked, TTL: long},
	} {
		require.IsType(b.t, event.AcquireStarted{}, told[2*i])
		got, is := told[2*i+1].(event.AcquireFinished)
		require.True(b.t, is)
		require.Equal(b.t, l.Name(), got.Name)
		require.Equal(b.t, want.Outcome, got.Outcome)
		require.Equal(b.t, want.Depth, got.Depth)
		require.Equal(b.t, want.Reentrant, got.Reentrant)
		require.Equal(b.t, want.TTL, got.TTL)
		require.Equal(b.t, want.Outcome == event.OutcomeAcquired, got.Holder == holder)
	}
	released, is := told[6].(event.Released)
	require.True(b.t, is)
	require.Equal(b.t, holder, released.Holder)
	require.Equal(b.t, 2, released.MaxDepth)
	require.NoError(b.t, released.Err)
}

func invalidTold(b *bench) {
	l, _ := b.locks()
	var zero relock.Lock
	for _, wrong := range []*relock.Lock{
		b.one.NewLock(""), b.one.NewLock(strings.Repeat("a", relock.MaxNameLen+1)), b.one.NewLock("a", relock.WithTTL(0)),
		b.one.NewLock("a", relock.WithFixedLease(long), relock.WithMaxHold(long)),
		b.one.NewLock("a", relock.WithMaxHold(relock.MinTTL)), b.one.NewLock("a", relock.WithOwner("a")), nil, &zero,
	} {
		b.requireKinds(wrong.Err(), relock.ErrInvalid)
		for _, lock := range []locking{wrong.Lock, wrong.TryLock, tryFor(wrong, long)} {
			ctx, err := lock(b.ctx)
			b.requireKinds(err, relock.ErrInvalid)
			require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
		}
		require.ErrorIs(b.t, wrong.Do(b.ctx, nothing), relock.ErrNotEntered)
		for _, err := range []error{
			wrong.Unlock(b.ctx), wrong.Extend(b.ctx, long), wrong.ForceUnlock(b.ctx), last(wrong.Token(b.ctx)), last(wrong.State(b.ctx)),
		} {
			b.requireKinds(err, relock.ErrInvalid)
		}
		require.False(b.t, wrong.Held(b.ctx))
		require.Zero(b.t, wrong.Remaining(b.ctx))
	}
	var none context.Context
	for _, err := range []error{
		last(l.Lock(none)), last(l.TryLock(none)), last(l.TryLockFor(none, long)), last(l.TryLockFor(b.ctx, -1)), l.Unlock(none),
		l.Extend(none, long), l.ForceUnlock(none), last(l.Token(none)), last(l.State(none)), l.Do(none, nothing), l.Do(b.ctx, nil),
		l.DoFor(none, long, nothing), l.DoFor(b.ctx, long, nil), relock.Do(b.ctx, nil, nothing), b.one.Check(none),
	} {
		b.requireKinds(err, relock.ErrInvalid)
	}
	require.False(b.t, l.Held(none))
}

func passMany(b *bench) {
	const goroutines, rounds = 9, 20 // of each process
	var guarded room
	var wg sync.WaitGroup
	passing := []*relock.Client{b.one, b.other}
	errs := make([]error, len(passing)*goroutines)
	for i := range errs {
		l := b.lock(passing[i%len(passing)], "a")
		wg.Go(func() {
			for range rounds {
				errs[i] = errors.Join(errs[i], l.Do(b.ctx, func(ctx context.Context) error {
					guarded.visit()
					return l.Do(ctx, nothing)
				}))
			}
		})
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(errs...))
	guarded.requireVisits(b.t, len(errs)*rounds)
}

func passOrder(b *bench) {
	l := b.lock(b.one, "a")
	section := b.enter(b.ctx, l)
	var line []*call
	for range 5 {
		line = append(line, b.wait(b.ctx, l.Lock))
	}
	line[2].cancel(nil)
	require.ErrorIs(b.t, b.fails(line[2]), relock.ErrLocked)
	latest := int64(0)
	for _, c := range append(line[:2:2], line[3:]...) {
		b.waits(c)
		b.unlock(l, section)
		section = b.get(c)
		b.requireBusy(l, b.lock(b.other, "a"))
		if b.promises(Tokens) {
			token, err := l.Token(section)
			require.NoError(b.t, err)
			require.Greater(b.t, token, latest, "a hold that was passed the lock draws its own token")
			latest = token
		}
	}
	b.unlock(l, section)
}

func acksAsked(b *bench) {
	if b.h.Replicas > 0 {
		l, _ := b.locks(relock.WithReplicaAcks(b.h.Replicas, time.Second))
		section := b.enter(b.ctx, l)
		b.unlock(l, b.enter(section, l))
		b.unlock(l, section)
	}
	l, there := b.locks(relock.WithReplicaAcks(b.h.Replicas+1, 100*time.Millisecond))
	for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, long)} {
		ctx, err := lock(b.ctx)
		b.requireKinds(err, relock.ErrNotReplicated)
		require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
		b.eventually("the hold is taken back", func() bool { return !b.state(there).Locked() })
	}
}

func lacksRefused(b *bench) {
	if !b.promises(AnyName) {
		for _, name := range []string{"a:b", "A"} {
			b.requireKinds(b.one.NewLock(name).Err(), relock.ErrInvalid)
		}
	}
	if !b.promises(Acks) {
		b.requireKinds(b.one.NewLock("a", relock.WithReplicaAcks(1, time.Second)).Err(), relock.ErrInvalid, errors.ErrUnsupported)
	}
	var wrong []*relock.Lock
	if !b.promises(Kinds) {
		rw := b.one.NewRWLock("a")
		wrong = append(wrong, rw.Writer(), rw.RLocker())
	}
	if !b.promises(Semaphores) {
		wrong = append(wrong, b.one.NewSemaphore("a", 1), b.one.NewSemaphore("a", 2))
	}
	for _, l := range wrong {
		b.requireKinds(l.Err(), relock.ErrInvalid, errors.ErrUnsupported)
		b.requireKinds(last(l.TryLock(b.ctx)), relock.ErrInvalid, errors.ErrUnsupported)
	}
	if !b.promises(Tokens) {
		l, _ := b.locks()
		section := b.enter(b.ctx, l)
		b.requireKinds(last(l.Token(section)), errors.ErrUnsupported)
		require.True(b.t, l.Held(section))
		b.unlock(l, section)
	}
}
