package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

var faultTests = []test{
	{name: "A context that is done ends every call", run: contextDone},
	{name: "A silent server holds up no call", run: silentServer, needs: interrupt},
	{name: "Wait outlasts an interruption", run: waitOutlasts, needs: interrupt},
	{name: "A call that cannot go on says why", run: saysWhy, needs: interrupt},
	{name: "A wait in the queue is no failure to report", run: queuedQuietly},
	{name: "Enter and Release outlast an interruption", run: exitOutlasts, needs: interrupt},
	{name: "A lost lock goes to the waiter", run: lostLock, needs: lose},
}

var optionalTests = []test{
	{name: "Token grows with every hold", run: tokens, needs: Tokens},
	{name: "Token is larger than the floor in its lease", run: tokenFloor, needs: Tokens},
	{name: "Check and Token refuse what is not promised", run: refuses},
	{name: "Acks that do not come take the hold back", run: acks, needs: Acks},
	{name: "Watch tells the client of a broken hold", run: watch, needs: Watch},
	{name: "Want tells the client of a hold, and nobody else", run: wanted, needs: Asking},
	{name: "Announce tells those who follow the lock, and nobody else", run: announced, needs: Announcing},
	{name: "CheckServer leaves nothing behind", run: checkServer, needs: CheckServer},
}

// call runs one command: of the hold l that has the lock, or of a new hold with the claim a.
type call = func(ctx context.Context, l store.Lease, a store.Claim) error

func (b *bench) calls() map[string]call {
	st, progress := b.st, func(store.Progress) {}
	return map[string]call{
		"Try": func(ctx context.Context, _ store.Lease, a store.Claim) error { return last(st.Try(ctx, a)) },
		"Wait": func(ctx context.Context, _ store.Lease, a store.Claim) error {
			return last(st.Wait(ctx, a, progress))
		},
		"Enter":   func(ctx context.Context, l store.Lease, _ store.Claim) error { return last(st.Enter(ctx, l, 2)) },
		"Release": func(ctx context.Context, l store.Lease, _ store.Claim) error { return st.Release(ctx, l) },
		"Renew": func(ctx context.Context, l store.Lease, _ store.Claim) error {
			return st.Renew(ctx, []store.Renewal{{Lease: l, TTL: long, Count: 2}})[0]
		},
		"Forget": func(ctx context.Context, l store.Lease, _ store.Claim) error {
			return st.Forget(ctx, []store.Claim{l.Claim})[0]
		},
		"Token": func(ctx context.Context, l store.Lease, _ store.Claim) error { return last(st.Token(ctx, l)) },
		"Look":  func(ctx context.Context, l store.Lease, _ store.Claim) error { return last(st.Look(ctx, l.Claim)) },
		"Break": func(ctx context.Context, l store.Lease, _ store.Claim) error { return st.Break(ctx, l.Claim) },
	}
}

// eachCall runs every command with a context that ends. The command must return promptly. If its
// error does not match ErrUnsure, the command must not have run.
func (b *bench) eachCall(newContext func() context.Context, silence func() (restore func()), check func(name string, err error)) {
	for name, call := range b.calls() {
		if name == "Token" && !b.promises(Tokens) {
			continue
		}
		b.name = b.newName()
		a, l := b.claim(long), b.take(b.st, b.claim(long))
		ctx, restore := newContext(), silence()
		var err error
		b.promptly(func() { err = call(ctx, l, a) })
		restore()
		check(name, err)
		if state := b.look(); err != nil && !errors.Is(err, store.ErrUnsure) {
			require.Equal(b.t, b.named(l.ID), state.Owner, "%s has run: %v", name, err)
			require.Equal(b.t, 1, state.Count, "%s has run: %v", name, err)
			require.Zero(b.t, state.Waiters, "%s has run: %v", name, err)
		}
		b.left[l.ID], b.left[a.ID] = l.Claim, a
		b.requireFree()
	}
}

// done returns contexts that have ended.
func (b *bench) done(cause error) func() context.Context {
	return func() context.Context {
		ctx, cancel := context.WithCancelCause(b.ctx)
		cancel(cause)
		return ctx
	}
}

func contextDone(b *bench) {
	cause := errors.New("the caller has ended the call")
	b.eachCall(b.done(cause), func() func() { return func() {} }, func(name string, err error) {
		if err != nil {
			require.ErrorIs(b.t, err, context.Canceled, name)
			require.ErrorIs(b.t, err, cause, name)
		}
	})
}

// soon returns a context that ends soon.
func (b *bench) soon() context.Context {
	ctx, cancel := context.WithTimeout(b.ctx, 100*time.Millisecond)
	b.t.Cleanup(cancel)
	return ctx
}

func silentServer(b *bench) {
	b.eachCall(b.soon, b.interrupt, func(name string, err error) { require.Error(b.t, err, name) })
}

// waitOutlasts interrupts one Wait before it has asked, and one that is queued while the lease
// ends.
func waitOutlasts(b *bench) {
	restore := b.interrupt()
	w := b.start(b.st, b.claim(long))
	b.pause(b.h.TTL)
	b.waits(w)
	restore()
	b.release(b.get(w))

	l := b.take(b.st, b.claim(b.h.TTL))
	w = b.wait(b.other, b.claim(long))
	restore = b.interrupt()
	b.pause(2 * b.h.TTL)
	restore()
	next := b.get(w)
	b.requireGone(b.st.Release(b.ctx, l))
	b.release(next)
}

// reporter closes heard with the first report.
type reporter struct {
	once  sync.Once
	heard chan struct{}
	err   error
}

func (r *reporter) Retrying(_ string, _ int, _ time.Time, err error) {
	r.once.Do(func() {
		r.err = err
		close(r.heard)
	})
}

// saysWhy waits, and leaves a lock, while the server is interrupted.
func saysWhy(b *bench) {
	for what, call := range map[string]func(a store.Claim) error{
		"Wait":    func(a store.Claim) error { return last(b.st.Wait(b.ctx, a, func(store.Progress) {})) },
		"Release": func(a store.Claim) error { return b.st.Release(b.ctx, store.Lease{Claim: a, Sent: time.Now()}) },
	} {
		b.name = b.newName()
		r := &reporter{heard: make(chan struct{})}
		a := b.claim(b.h.TTL)
		if what == "Release" {
			b.take(b.st, a)
		}
		a.Report = r
		restore := b.interrupt()
		done := make(chan struct{})
		go func() { defer close(done); _ = call(a) }()
		b.happens(what+" reports why it cannot go on", r.heard)
		require.Error(b.t, r.err, what)
		restore()
		b.happens(what+" returns", done)
		b.left[a.ID] = a
	}
}

// reports has the begin of each call that was reported, and when.
type reports chan [2]time.Time

func (r reports) Retrying(_ string, _ int, since time.Time, _ error) {
	select {
	case r <- [2]time.Time{since, time.Now()}:
	default:
	}
}

// queuedQuietly waits in the queue for longer than a call may go on without a report. A call that
// began in the queue may be slow.
func queuedQuietly(b *bench) {
	l, a, heard := b.take(b.st, b.claim(long)), b.claim(long), make(reports, 100)
	a.Report = heard
	w := b.wait(b.other, a)
	queued := time.Now()
	b.pause(1200 * time.Millisecond)
	b.release(l)
	next := b.get(w)
	for len(heard) > 0 {
		report := <-heard
		require.False(b.t, report[0].Before(queued) && report[1].After(queued), "the wait in the queue is reported")
	}
	b.release(next)
}

// exitOutlasts calls Enter, and then Release, while the server is interrupted. If an attempt
// without an answer has freed the lock, Release returns ErrGone together with ErrUnsure.
func exitOutlasts(b *bench) {
	l := b.take(b.st, b.claim(long))
	for _, call := range []func() error{
		func() error { return last(b.st.Enter(b.ctx, l, 2)) },
		func() error { return b.st.Release(b.ctx, l) },
	} {
		require.Equal(b.t, b.named(l.ID), b.look().Owner)
		restore := b.interrupt()
		done := make(chan error, 1)
		go func() { done <- call() }()
		b.pause(100 * time.Millisecond)
		restore()
		select {
		case err := <-done:
			if !errors.Is(err, store.ErrGone) || !errors.Is(err, store.ErrUnsure) {
				require.NoError(b.t, err)
			}
		case <-time.After(patience):
			require.FailNow(b.t, "does not happen: a call returns after the interruption")
		}
	}
	require.Empty(b.t, b.look().Owner)
}

func lostLock(b *bench) {
	var token int64
	l := b.take(b.st, b.claim(4*b.h.TTL))
	if b.promises(Tokens) {
		token = b.token(l)
	}
	w := b.wait(b.other, b.claim(long))
	b.server.Lose(b.name)
	next := b.get(w)
	b.refused(l)
	b.requireOwner(w.claim, 1)
	if b.promises(Tokens) {
		require.Greater(b.t, b.token(next), token)
	}
	b.release(next)
}

func (b *bench) token(l store.Lease) int64 {
	token, err := b.st.Token(b.ctx, l)
	require.NoError(b.t, err)
	return token
}

func tokens(b *bench) {
	var newest int64
	for i := range 6 {
		st := []store.Store{b.st, b.other}[i%2]
		l := b.take(st, b.claim(long))
		token := b.token(l)
		require.Greater(b.t, token, newest, "a newer hold has a token that is not larger")
		newest = b.token(l)
		require.GreaterOrEqual(b.t, newest, token, "a hold draws a smaller token")
		require.Equal(b.t, newest, b.look().Token)
		b.release(l)
	}
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	b.release(l)
	granted := b.get(w)
	require.Greater(b.t, b.token(granted), newest)
	b.requireGone(last(b.st.Token(b.ctx, l)))
	b.release(granted)
}

// tokenFloor draws above a floor that the store has not drawn, and then with a low floor.
func tokenFloor(b *bench) {
	l := b.take(b.st, b.claim(long))
	if l.Token != 0 {
		b.t.Log("NOT TESTED: the store draws a token with each hold")
		b.release(l)
		return
	}
	floored := l
	floored.Token = b.token(l) + 1_000_000_000
	token := b.token(floored)
	require.Greater(b.t, token, floored.Token, "Token draws below the floor")
	floored.Token = 1
	again := b.token(floored)
	require.Greater(b.t, again, token, "a low floor turns the tokens back")
	require.Greater(b.t, b.token(l), again, "Token forgets the tokens above a floor")
	b.release(l)
}

func (b *bench) acked() store.Claim {
	a := b.claim(long)
	a.Acks = store.Acks{Replicas: 1000, Timeout: 50 * time.Millisecond}
	return a
}

func acks(b *bench) {
	a, err := b.st.Check(b.acked())
	require.NoError(b.t, err)
	_, err = b.st.Try(b.ctx, a)
	require.ErrorIs(b.t, err, store.ErrNotReplicated)
	b.failed(a, err)

	l := b.take(b.st, b.claim(long))
	l.Acks = a.Acks
	_, err = b.st.Enter(b.ctx, l, 1)
	require.ErrorIs(b.t, err, store.ErrNotReplicated, "nobody may count on a lease without its confirmations")
	err = b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: long, Count: 1}})[0]
	require.ErrorIs(b.t, err, store.ErrNotReplicated)
	require.NotErrorIs(b.t, err, store.ErrGone)
	l.Acks = store.Acks{}
	b.release(l)
}

func refuses(b *bench) {
	if !b.promises(Acks) {
		require.ErrorIs(b.t, last(b.st.Check(b.acked())), errors.ErrUnsupported)
	}
	if !b.promises(Kinds) {
		for _, a := range []store.Claim{b.reader(), b.writer()} {
			require.ErrorIs(b.t, last(b.st.Check(a)), errors.ErrUnsupported, a.Kind)
		}
	}
	if !b.promises(Semaphores) {
		require.ErrorIs(b.t, last(b.st.Check(b.permit(1))), errors.ErrUnsupported)
		require.ErrorIs(b.t, last(b.st.Check(b.permit(2))), errors.ErrUnsupported)
	}
	b.logPowers()
	l := b.take(b.st, b.claim(long))
	if !b.promises(Tokens) {
		require.ErrorIs(b.t, last(b.st.Token(b.ctx, l)), errors.ErrUnsupported)
	}
	b.release(l)
}

// logPowers logs optional powers of the store that it does not promise.
func (b *bench) logPowers() {
	if _, is := b.st.(store.Several); is && !b.promises(Several) {
		b.t.Log("NOT TESTED: the store is a store.Several, and does not promise it")
	}
	if _, is := b.st.(store.Lending); is && !b.promises(Lending) {
		b.t.Log("NOT TESTED: the store is a store.Lending, and does not promise it")
	}
	if _, is := b.st.(store.WaitGraph); is && !b.promises(WaitGraph) {
		b.t.Log("NOT TESTED: the store is a store.WaitGraph, and does not promise it")
	}
	if _, is := b.st.(store.Listing); is && !b.promises(Listing) {
		b.t.Log("NOT TESTED: the store is a store.Listing, and does not promise it")
	}
}

func watch(b *bench) {
	watcher, ok := b.st.(store.Watcher)
	require.True(b.t, ok, "the store is no store.Watcher: the harness must list Watch in Without")
	who := client(b.claim(long).ID)
	doubts, others := make(chan store.ID, 100), make(chan store.ID, 100)
	stop := watcher.Watch(who, func(id store.ID) { doubts <- id })
	defer watcher.Watch("storetest/other", func(id store.ID) { others <- id })()
	claims := []func() store.Claim{b.exclusive, b.exclusive}
	if b.promises(Kinds) {
		claims = append(claims, b.writer, b.reader)
	}
	if b.promises(Semaphores) {
		claims = append(claims, func() store.Claim { return b.permit(2) })
	}
	for _, claim := range claims {
		b.begin(claim().Kind)
		a := claim()
		a.ID = newID(who)
		l := b.take(b.st, a)
		require.NoError(b.t, b.other.Break(b.ctx, l.Claim))
		b.eventually("Watch tells of the broken hold", func() bool {
			select {
			case doubt := <-doubts:
				return doubt == l.ID || doubt == "" // of all holds
			default:
				return false
			}
		})
	}
	for len(others) > 0 {
		require.Empty(b.t, <-others, "Watch tells another client of the hold")
	}
	stop()
}

func wanted(b *bench) {
	asking, ok := b.st.(store.Asking)
	require.True(b.t, ok, "the store is no store.Asking: the harness must list Asking in Without")
	l := b.take(b.st, b.claim(long))
	heard, others := make(chan store.ID, 100), make(chan store.ID, 100)
	hear := func(c chan store.ID) func(store.ID) {
		return func(id store.ID) {
			if id != "" {
				c <- id
			}
		}
	}
	stop := asking.WatchWanted(client(l.ID), hear(heard))
	defer asking.WatchWanted("storetest/other", hear(others))()
	b.eventually("Want is heard", func() bool { // the watch may not have begun
		require.NoError(b.t, b.other.(store.Asking).Want(b.ctx, l.Claim))
		b.pause(aMoment)
		return len(heard) > 0
	})
	for len(heard) > 0 {
		require.Equal(b.t, l.ID, <-heard)
	}
	require.Empty(b.t, others, "another client hears it")
	b.requireOwner(l.Claim, 1)
	stop()
	b.pause(aMoment)
	for len(heard) > 0 { // on its way at the stop
		<-heard
	}
	require.NoError(b.t, b.other.(store.Asking).Want(b.ctx, l.Claim))
	b.pause(aMoment)
	require.Empty(b.t, heard, "behind stop")
	b.release(l)
	if err := b.other.(store.Asking).Want(b.ctx, l.Claim); err != nil {
		require.ErrorIs(b.t, err, store.ErrGone)
	}
	b.requireFree()
}

// aMoment is time for a message.
const aMoment = 50 * time.Millisecond

func checkServer(b *bench) {
	checker, ok := b.st.(store.Checker)
	require.True(b.t, ok, "the store is no store.Checker: the harness must list CheckServer in Without")
	require.NoError(b.t, checker.CheckServer(b.ctx, b.claim(long)))
}

func announced(b *bench) {
	announcing, ok := b.st.(store.Announcing)
	require.True(b.t, ok, "the store is no store.Announcing: the harness must list Announcing in Without")
	l := b.take(b.other, b.claim(long))
	heard, others := make(chan struct{}, 1000), make(chan struct{}, 1000)
	stop := announcing.Announced(l.Name, func() { heard <- struct{}{} })
	defer announcing.Announced(b.newName(), func() { others <- struct{}{} })()
	announce := func() { require.NoError(b.t, b.other.(store.Announcing).Announce(b.ctx, l.Claim)) }
	quiet := func() { // what is on its way, and what a store says as it begins to listen
		b.pause(aMoment)
		for len(heard)+len(others) > 0 {
			select {
			case <-heard:
			case <-others:
			}
		}
	}
	b.eventually("Announce is heard", func() bool { // the watch may not have begun
		announce()
		b.pause(aMoment)
		return len(heard) > 0
	})
	quiet()
	announce()
	b.pause(aMoment)
	require.NotEmpty(b.t, heard)
	require.Empty(b.t, others, "those who follow another lock hear it")
	b.requireOwner(l.Claim, 1)
	stop()
	quiet()
	announce()
	b.pause(aMoment)
	require.Empty(b.t, heard, "behind stop")
	b.release(l)
	announce() // of a hold that is over
	b.requireFree()
}
