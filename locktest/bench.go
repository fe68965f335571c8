package locktest

import (
	"context"
	"crypto/rand"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/promise"
)

// Times that suit real servers.
const (
	long     = time.Minute      // a lease that does not end
	patience = 30 * time.Second // at most, until a thing happens that should happen at once
	prompt   = 20 * time.Second // at most, until a call returns whose context is done

	// brief is the patience of a call that gives up: time for a few commands on a busy machine.
	brief = time.Second
)

// bench serves one subtest: two processes.
type bench struct {
	t       *testing.T
	ctx     context.Context
	h       Harness
	server  Server
	suite   promise.Suite[Promise]
	one     *relock.Client
	other   *relock.Client
	suffix  string
	names   map[string]maker // of all locks
	queued  chan string      // the name of a lock, whenever a call waits for it
	renewed atomic.Bool      // a lease was, of any process
}

// maker makes the lock of a name.
type maker func(c *relock.Client, name string) *relock.Lock

func mutex(c *relock.Client, name string) *relock.Lock { return c.NewLock(name) }

// oneLock is a Lock, or an RWLock for writing.
type oneLock interface {
	relock.Locker
	TryLockFor(ctx context.Context, wait time.Duration) (context.Context, error)
	Name() string
	Count(ctx context.Context) int
	Held(ctx context.Context) bool
	State(ctx context.Context) (relock.State, error)
}

func newBench(t *testing.T, h Harness) *bench {
	t.Helper()
	b := &bench{
		t: t, ctx: t.Context(), h: h, server: h.Start(t), suffix: "-" + strings.ToLower(rand.Text()[:10]),
		names: make(map[string]maker), queued: make(chan string, event.Backlog),
	}
	b.suite = promise.Suite[Promise]{Without: h.Without, Hooks: map[Promise]bool{lose: b.server.Lose != nil}}
	b.one, b.other = b.client(), b.client()
	return b
}

// client makes a process. Leases do not end while a subtest runs, unless an option says so.
func (b *bench) client(options ...relock.Option) *relock.Client {
	b.t.Helper()
	options = slices.Concat([]relock.Option{relock.WithTTL(long), relock.WithHooks(event.Hooks{
		Queued:  func(e event.Queued) { b.queued <- e.Name },
		Renewed: func(event.Renewed) { b.renewed.Store(true) },
	})}, options)
	c := b.server.NewClient(options...)
	b.t.Cleanup(func() { require.NoError(b.t, c.Close()) })
	return c
}

// lock returns a lock of a process.
func (b *bench) lock(c *relock.Client, name string, options ...relock.Option) *relock.Lock {
	b.t.Helper()
	l := c.NewLock(b.name(name), options...)
	require.NoError(b.t, l.Err())
	return l
}

// name returns the name of a lock that no other subtest uses.
func (b *bench) name(name string) string {
	if b.names[name+b.suffix] == nil {
		b.names[name+b.suffix] = mutex
	}
	return name + b.suffix
}

// locks returns the lock "a" of the first process and of the other one.
func (b *bench) locks(options ...relock.Option) (here, there *relock.Lock) {
	b.t.Helper()
	return b.lock(b.one, "a", options...), b.lock(b.other, "a", options...)
}

// promises says whether the store makes a promise.
func (b *bench) promises(p Promise) bool { return b.suite.Reason(p) == "" }

// last returns the error of a call.
func last[T any](_ T, err error) error { return err }

// locking is Lock or TryLock, or TryLockFor with its wait bound to it.
type locking func(context.Context) (context.Context, error)

// tryFor returns TryLockFor with its wait.
func tryFor(l oneLock, wait time.Duration) locking {
	return func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, wait) }
}

// enter enters a lock at once.
func (b *bench) enter(ctx context.Context, l relock.Locker) context.Context {
	b.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	b.t.Cleanup(cancel)
	late := time.AfterFunc(patience, cancel)
	section, err := l.Lock(ctx)
	late.Stop()
	require.NoError(b.t, err)
	b.t.Cleanup(func() { runtime.KeepAlive(section) }) // a dropped section is a leak
	return section
}

func (b *bench) unlock(l relock.Locker, sections ...context.Context) {
	b.t.Helper()
	for _, section := range sections {
		require.NoError(b.t, l.Unlock(section))
	}
}

// holder returns the holder of a section.
func (b *bench) holder(section context.Context) relock.Holder {
	b.t.Helper()
	holder, ok := relock.HolderFrom(section)
	require.True(b.t, ok, "the context is in no open section")
	return holder
}

func (b *bench) state(l oneLock) relock.State {
	b.t.Helper()
	state, err := l.State(b.ctx)
	require.NoError(b.t, err)
	return state
}

// requireCount looks for the entries of a section, in its process and in the store.
func (b *bench) requireCount(l oneLock, section context.Context, count int) {
	b.t.Helper()
	require.Equal(b.t, count, l.Count(section))
	require.True(b.t, l.Held(section))
	b.eventually("the store has the count", func() bool {
		if b.state(l).Count == count {
			return true
		}
		if b.renewed.Load() { // perhaps beside an entry or exit: then the next entry sets the count
			b.unlock(l, b.enter(section, l))
		}
		return false
	})
	b.requireOwner(l, b.holder(section))
}

// requireOwner fails unless the store says that this holder has the lock.
func (b *bench) requireOwner(l oneLock, holder relock.Holder) {
	b.t.Helper()
	state := b.state(l)
	require.True(b.t, state.Locked())
	if b.promises(Names) {
		require.Equal(b.t, holder, state.Holder)
	}
}

// requireKinds fails unless err matches these kinds, and no other.
func (b *bench) requireKinds(err error, kinds ...error) {
	b.t.Helper()
	require.Error(b.t, err)
	for _, kind := range kinds {
		require.ErrorIs(b.t, err, kind)
	}
	for _, kind := range append(sentinels, context.Canceled, context.DeadlineExceeded) {
		if !slices.Contains(kinds, kind) {
			require.NotErrorIs(b.t, err, kind)
		}
	}
	require.NotContains(b.t, err.Error(), "\n", "an error is one line")
}

// requireRefused fails unless err says that this holder has the lock. want has the other kinds that
// err must match.
func (b *bench) requireRefused(err error, l oneLock, holder relock.Holder, want ...error) {
	b.t.Helper()
	b.requireKinds(err, append(want, relock.ErrLocked)...)
	var refusal *relock.LockedError
	require.ErrorAs(b.t, err, &refusal)
	require.Equal(b.t, l.Name(), refusal.Name)
	if b.promises(Names) {
		require.Equal(b.t, holder, refusal.Holder)
	}
	require.Positive(b.t, refusal.TTL)
	require.LessOrEqual(b.t, refusal.TTL, long)
	require.Equal(b.t, len(want) > 0, refusal.Err != nil, "what has ended the context: %v", refusal.Err)
}

// requireLost fails unless err says that this lock was lost for that reason.
func (b *bench) requireLost(err error, l oneLock, reason event.LossReason) {
	b.t.Helper()
	require.ErrorIs(b.t, err, relock.ErrLockLost)
	var lost *relock.LostError
	require.ErrorAs(b.t, err, &lost)
	require.Equal(b.t, l.Name(), lost.Name)
	require.Equal(b.t, reason, lost.Reason)
	require.NotEmpty(b.t, lost.Holder)
}

// requireBusy fails unless a call outside of all sections is refused.
func (b *bench) requireBusy(locks ...relock.Locker) {
	b.t.Helper()
	for _, l := range locks {
		b.requireKinds(last(l.TryLock(b.ctx)), relock.ErrLocked)
	}
}

// requireFree waits until nobody has any of the locks, and nobody waits.
func (b *bench) requireFree() {
	b.t.Helper()
	observer := b.client()
	for name, lock := range b.names {
		b.eventually("nothing is left of "+name, func() bool {
			state := b.state(lock(observer, name))
			return !state.Locked() && state.Waiters == 0
		})
	}
}

// eventually waits until ok returns true.
func (b *bench) eventually(want string, ok func() bool) {
	b.t.Helper()
	late := time.After(patience)
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-late:
			require.FailNow(b.t, "does not happen: "+want)
		}
	}
}

// happens waits until a channel is closed.
func (b *bench) happens(want string, c <-chan struct{}) {
	b.t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		require.FailNow(b.t, "does not happen: "+want)
	}
}

// ends waits until a section ends, and returns the cause.
func (b *bench) ends(section context.Context) error {
	b.t.Helper()
	b.happens("the section ends", section.Done())
	return context.Cause(section)
}

// pause lets time pass.
func (b *bench) pause(d time.Duration) { <-time.After(d) }

// call is a call of Lock, or the like, in a goroutine of its own.
type call struct {
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed behind section, err and at
	section context.Context
	err     error
	at      time.Time
}

// start begins a call.
func (b *bench) start(ctx context.Context, lock locking) *call {
	b.t.Helper()
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.section, c.err = lock(ctx)
		c.at = time.Now()
	}()
	b.t.Cleanup(func() {
		cancel(nil)
		b.happens("the call returns", c.done)
		runtime.KeepAlive(c.section)
	})
	return c
}

// wait begins a call that has to wait, and returns when the call waits.
func (b *bench) wait(ctx context.Context, lock locking) *call {
	b.t.Helper()
	c := b.start(ctx, lock)
	select {
	case <-b.queued:
	case <-c.done:
		require.FailNow(b.t, "a call does not wait", "%v", c.err)
	case <-time.After(patience):
		require.FailNow(b.t, "does not happen: the call waits")
	}
	return c
}

// waits fails if the call has returned.
func (b *bench) waits(c *call) {
	b.t.Helper()
	select {
	case <-c.done:
		require.FailNow(b.t, "a call has returned that should wait", "%v", c.err)
	default:
	}
}

// get waits until the call has entered.
func (b *bench) get(c *call) context.Context {
	b.t.Helper()
	b.happens("the call returns", c.done)
	require.NoError(b.t, c.err)
	return c.section
}

// fails waits until the call has failed, and returns the error.
func (b *bench) fails(c *call) error {
	b.t.Helper()
	b.happens("the call returns", c.done)
	require.Error(b.t, c.err)
	return c.err
}

// room is guarded by a lock, and notices when two are inside at one moment.
type room struct{ inside, visits, clashes atomic.Int64 }

func (r *room) visit() {
	if r.inside.Add(1) != 1 {
		r.clashes.Add(1)
	}
	r.visits.Add(1)
	runtime.Gosched()
	r.inside.Add(-1)
}

// requireVisits fails unless so many visits were made, one at a time.
func (r *room) requireVisits(t *testing.T, visits int) {
	t.Helper()
	require.Zero(t, r.clashes.Load(), "two were inside at one moment")
	require.EqualValues(t, visits, r.visits.Load())
}

var errMine = errors.New("an error of the caller")
