package redis_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/ticket"
)

// When does a script of the user run, and what does it find?

// incr adds to KEYS[1].
const incr = "redis.call('INCRBY', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])"

// guard lets nobody in when KEYS[1] exists, and notes who is in.
const guard = `local found = redis.call('GET', KEYS[1])
	if found then return false, found end
	if locked then redis.call('SET', KEYS[1], ARGV[1]) end
	return true, {locked, ARGV[1]}`

func key(name string) []string { return []string{"{" + name + "}:value"} }

// scripted is an arena whose tests run scripts of their own. A script of a user is sent once, so a
// peer waits for the answer of a busy server.
type scripted struct{ *stage.Arena }

// onScripted removes the values of the scripts in the end.
func onScripted(t *testing.T, w *stage.Arena) scripted {
	t.Helper()
	t.Cleanup(func() {
		for _, k := range redistest.Keys(t, w.Plain) {
			if strings.HasSuffix(k, ":value") {
				require.NoError(t, w.Plain.Del(context.Background(), k).Err())
			}
		}
	})
	return scripted{w}
}

func (w scripted) Peer(options ...relock.Option) *stage.Peer {
	w.T.Helper()
	return w.PeerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute }, options...)
}

// deaf is a peer that gives up an answer that is lost.
func (w scripted) deaf(options ...relock.Option) *stage.Peer {
	w.T.Helper()
	return w.PeerOn(func(o *redis.Options) { o.ReadTimeout = time.Second }, append(options, relock.WithTTL(time.Minute))...)
}

func TestEvalRunsWhileTheSectionHasTheLock(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	rw := p.NewRWLock("rw")
	for name, l := range map[string]*relock.Lock{
		"a": p.NewLock("a"), "rw": rw.Writer(), "sem": p.NewSemaphore("sem", 2), "{x}:y": p.NewLock("{x}:y"),
	} {
		section := w.Enter(t.Context(), l)
		keys := []string{"{" + map[bool]string{true: "x", false: name}[name == "{x}:y"] + "}:value"}
		reply, err := l.Eval(section, incr, keys, 7)
		require.NoError(t, err, name)
		require.Equal(t, "7", reply, name)
		reply, err = l.Eval(section, "return {KEYS[1], #KEYS, ARGV[1], ARGV[2], #ARGV}", keys, []byte("b"), true)
		require.NoError(t, err, name)
		require.Equal(t, []any{keys[0], int64(1), "b", "1", int64(2)}, reply, name)
		for script, want := range map[string]any{"return nil": nil, "": nil, "return false": nil, "return 5 -- five": int64(5), "return {}": []any{}} {
			reply, err = l.Eval(section, script, nil)
			require.NoError(t, err, script)
			require.Equal(t, want, reply, script)
		}
		require.NoError(t, p.RDB.Del(t.Context(), keys[0]).Err())
		w.Leave(section, l)
		_, err = l.Eval(section, incr, keys, 1)
		require.ErrorIs(t, err, relock.ErrNotHeld, name)
	}
	_, err := p.NewLock("a").Eval(t.Context(), incr, key("a"), 1)
	require.ErrorIs(t, err, relock.ErrNotHeld)
}

func TestEvalOfALostSectionWritesNothing(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	for name, l := range map[string]*relock.Lock{"a": p.NewLock("a"), "rw": p.NewRWLock("rw").Writer(), "sem": p.NewSemaphore("sem", 2)} {
		section := w.Enter(t.Context(), l)
		require.NoError(t, p.RDB.FlushAll(t.Context()).Err())
		_, err := l.Eval(section, incr, key(name), 1)
		var lost *relock.LostError
		require.ErrorAs(t, err, &lost, name)
		require.Equal(t, event.LossTaken, lost.Reason)
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		require.Empty(t, redistest.Keys(t, w.Plain), name)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	}
}

// TestEvalOfALoanThatIsOverWritesNothing holds a script of a loan up until the loan is over, while
// its lender still has the lock.
func TestEvalOfALoanThatIsOverWritesNothing(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	lender, borrower := w.Peer(relock.WithTTL(4*time.Second)), w.Peer(relock.WithTTL(4*time.Second))
	l, far := lender.NewLock("a"), borrower.NewLock("a")
	section := w.Enter(t.Context(), l)
	given, err := ticket.Lend(section, l)
	require.NoError(t, err)
	loan, err := ticket.Borrow(t.Context(), far, given)
	require.NoError(t, err)
	const set = "redis.call('SET', KEYS[1], ARGV[1]) return ARGV[1]"
	reply, err := far.Eval(loan, set, key("a"), "in time")
	require.NoError(t, err)
	require.Equal(t, "in time", reply)
	require.NoError(t, w.Plain.Del(t.Context(), key("a")...).Err())

	held := borrower.Faults.Once(redistest.WithArg("late"), redistest.Hold())
	_, err = far.Eval(loan, set, key("a"), "late")
	require.ErrorIs(t, err, relock.ErrUnsure)
	w.Leave(loan, far)
	require.Len(t, held.Release(t), 1)
	require.True(t, l.Held(section))
	require.Zero(t, w.Plain.Exists(t.Context(), key("a")...).Val())
	w.Leave(section, l)
}

// TestEvalOfALapsedPermit has a permit whose lease is over, beside one whose lease is not.
func TestEvalOfALapsedPermit(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	late := p.NewSemaphore("sem", 2)
	section, other := w.Enter(t.Context(), late), w.Enter(t.Context(), w.Peer().NewSemaphore("sem", 2))
	members, err := p.RDB.ZRange(t.Context(), stage.BaseKey("sem"), 0, -1).Result()
	require.NoError(t, err)
	mine := slices.IndexFunc(members, func(member string) bool { return strings.Contains(member, p.ID()) }) // both may end at one moment
	require.NoError(t, p.RDB.ZAdd(t.Context(), stage.BaseKey("sem"), redis.Z{Score: 1, Member: members[mine]}).Err())
	_, err = late.Eval(section, incr, key("sem"), 1)
	require.ErrorIs(t, err, relock.ErrLockLost)
	require.Error(t, section.Err())
	require.NoError(t, other.Err())
	require.Zero(t, w.Plain.Exists(t.Context(), key("sem")...).Val())
	require.ErrorIs(t, late.Unlock(section), relock.ErrLockLost)
	require.NoError(t, late.ForceUnlock(t.Context()))
}

func TestEvalSaysWhatIsWrongBeforeItSends(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	l, rw := p.NewLock("a"), p.NewRWLock("rw")
	section, reading := w.Enter(t.Context(), l), w.Enter(t.Context(), rw.RLocker())
	before := w.Calls()["evalsha"] + w.Calls()["eval"]
	for text, call := range map[string]func() error{
		`key "b": the keys of a script must be in the slot of the lock, such as "{a}:b"`: func() error { return stage.ErrorOf(l.Eval(section, incr, []string{"b"}, 1)) },
		`key "{b}:a": the keys of a script must be in the slot of the lock`:              func() error { return last3(l.TryLockIf(t.Context(), incr, []string{"{b}:a"}, 1)) },
		`argument 2 of a script is a time.Time: use a string, bytes, a number or a bool`: func() error { return stage.ErrorOf(l.Eval(section, incr, key("a"), 1, time.Now())) },
		`the lock is for reading, and a script may write`:                                func() error { return stage.ErrorOf(rw.RLocker().Eval(reading, incr, key("rw"), 1)) },
		`TryLockIf inside a section of the same lock`:                                    func() error { return last3(l.TryLockIf(section, guard, key("a"), 1)) },
		`the context is nil`: func() error { return last3(l.TryLockIf(nil, guard, key("a"), 1)) }, //lint:ignore SA1012 a nil context
	} {
		err := call()
		require.ErrorIs(t, err, relock.ErrInvalid, text)
		require.ErrorContains(t, err, text)
	}
	require.Equal(t, before, w.Calls()["evalsha"]+w.Calls()["eval"])
	require.ErrorIs(t, last3(rw.TryLockIf(t.Context(), guard, key("rw"), 1)), errors.ErrUnsupported)
	w.Leave(section, l)
	w.Leave(reading, rw.RLocker())

	c, err := relock.Open(mem.New())
	require.NoError(t, err)
	m := c.NewLock("a")
	require.Nil(t, c.Redis())
	require.Equal(t, "a", m.Key())
	require.Empty(t, c.NewLock("").Key())
	require.Equal(t, stage.BaseKey("a"), l.Key())
	require.Same(t, p.RDB, p.Redis())
	section = w.Enter(t.Context(), m)
	require.ErrorIs(t, stage.ErrorOf(m.Eval(section, incr, key("a"), 1)), errors.ErrUnsupported)
	require.ErrorIs(t, last3(m.TryLockIf(t.Context(), guard, key("a"), 1)), relock.ErrInvalid)
	w.Leave(section, m)
	require.NoError(t, c.Close())
}

func last3[T any](_ T, _ any, err error) error { return err }

func TestAnErrorOfAScriptIsTheErrorOfEval(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	l := p.NewLock("a")
	section := w.Enter(t.Context(), l)
	for script, text := range map[string]string{
		"return redis.call('NOSUCH')":         "Unknown Redis command",
		"error('out of stock')":               "out of stock",
		"return redis.error_reply('EMPTY a')": "EMPTY a",
		"return )":                            "compiling script",
		"\n\nlocal x = nil + 1":               "user_script:3", // as the caller counts lines
	} {
		_, err := l.Eval(section, script, nil)
		require.ErrorContains(t, err, text)
		require.NotErrorIs(t, err, relock.ErrUnsure)
		require.NoError(t, section.Err())
	}
	w.Leave(section, l)
	for script, text := range map[string]string{
		"return redis.call('NOSUCH')":         "Unknown Redis command",
		"error('out of stock')":               "out of stock",
		"return redis.error_reply('EMPTY a')": "EMPTY a",
	} {
		_, _, err := l.TryLockIf(t.Context(), script, nil)
		require.ErrorContains(t, err, text)
		w.RequireFree("a")
	}
}

func TestEvalIsSentOnce(t *testing.T)      { isSentOnce(t, true) }
func TestRunScriptIsSentOnce(t *testing.T) { isSentOnce(t, false) }

// isSentOnce loses the answer to a script, of Eval inside of a section or of RunScript.
func isSentOnce(t *testing.T, isInside bool) {
	t.Helper()
	w := onScripted(t, stage.OnShared(t))
	for what, lose := range stage.Breaks {
		p := w.deaf()
		l := p.NewLock("a")
		ctx, run := t.Context(), l.RunScript
		if isInside {
			ctx, run = w.Enter(ctx, l), l.Eval
		}
		_, err := run(ctx, incr, key("a"), 1)
		require.NoError(t, err)
		rule := p.Faults.Once(redistest.Named("EVALSHA"), redistest.DropReply(lose))
		_, err = run(ctx, incr, key("a"), 1)
		require.ErrorIs(t, err, relock.ErrUnsure, what)
		require.ErrorIs(t, err, relock.ErrUnavailable, what)
		require.Equal(t, 1, rule.Hits())
		reply, err := run(ctx, incr, key("a"), 1)
		require.NoError(t, err)
		require.Equal(t, "3", reply, what) // the first and the lost one, and this
		require.NoError(t, p.RDB.Del(t.Context(), key("a")...).Err())
		if isInside {
			w.Leave(ctx, l)
		}
		require.Empty(t, redistest.Keys(t, w.Plain), "nothing of the lock")
	}
}

// inRun returns a section of a client, and a call that was granted the lock with it.
func inRun(t *testing.T, w *stage.Arena, p *stage.Peer) (*relock.Lock, context.Context, *stage.Attempt) {
	t.Helper()
	before, l := w.Peer().NewLock("a"), p.NewLock("a")
	theirs := w.Enter(t.Context(), before)
	first := w.Start(t.Context(), l)
	w.AwaitWaiters("a", 1)
	second := w.Start(t.Context(), l)
	w.AwaitWaiters("a", 2)
	require.False(t, second.Comes(50*time.Millisecond)) // it knows of its place
	w.Leave(theirs, before)
	return l, first.Section(), second
}

func TestALateEvalDoesNotRunInTheNextSection(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.deaf()
	l, first, waiting := inRun(t, w.Arena, p)
	_, err := l.Eval(first, incr, key("a"), 1) // loads the script
	require.NoError(t, err)
	rule := p.Faults.Once(redistest.WithArg("100"), redistest.Hold())
	_, err = l.Eval(first, incr, key("a"), 100)
	require.ErrorIs(t, err, relock.ErrUnsure)
	require.NoError(t, p.RDB.Del(t.Context(), key("a")...).Err())
	w.Leave(first, l)
	second := waiting.Section()
	rule.Release(t)
	require.Zero(t, w.Plain.Exists(t.Context(), key("a")[0]).Val(), "the script of the first section has run in the second")
	w.Leave(second, l)
}

// An Eval that was answered is over, and costs no pass.
func TestALockIsPassedOnAfterAnEval(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer(relock.WithTTL(5 * time.Second))
	l, first, waiting := inRun(t, w.Arena, p)
	_, err := l.Eval(first, incr, key("a"), 1)
	require.NoError(t, err)
	owner := w.Owner("a")
	w.Leave(first, l)
	second := waiting.Section()
	require.Equal(t, owner, w.Owner("a"))
	w.Leave(second, l)
	require.NoError(t, p.RDB.Del(t.Context(), key("a")...).Err())
}

// TestAnErrorOfAScriptIsNoErrorOfTheServer has scripts write, and then fail with errors that would
// ask for a repeat if they came from the server.
func TestAnErrorOfAScriptIsNoErrorOfTheServer(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	l := w.Peer().NewLock("a")
	for _, failure := range []string{"error({err='BUSY come later'})", "error('max number of clients reached')", "return redis.error_reply('LOADING')"} {
		section := w.Enter(t.Context(), l)
		_, err := l.Eval(section, "redis.call('INCR', KEYS[1]) "+failure, key("a"))
		require.Error(t, err, failure)
		require.NotErrorIs(t, err, relock.ErrUnavailable, failure)
		w.Leave(section, l)
		_, _, err = l.TryLockIf(t.Context(), "redis.call('INCR', KEYS[1]) "+failure, key("a"))
		require.Error(t, err, failure)
		require.NotErrorIs(t, err, relock.ErrUnavailable, failure)
		require.Equal(t, "2", w.Plain.GetDel(t.Context(), key("a")[0]).Val(), failure)
		w.RequireFree("a")
	}
}

func TestEvalOfAServerThatRefusesHasNotRun(t *testing.T) {
	w := onScripted(t, stage.OnOwn(t))
	p := w.Peer(relock.WithTTL(5 * time.Second))
	l := p.NewLock("a")
	section := w.Enter(t.Context(), l)
	ctx, cancel := context.WithCancel(section)
	cancel()
	_, err := l.Eval(ctx, incr, key("a"), 1)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, relock.ErrUnsure)
	require.NoError(t, section.Err())
	w.Server.Kill()
	_, err = l.Eval(section, incr, key("a"), 1)
	require.ErrorIs(t, err, relock.ErrUnavailable)
	w.Server.Restart()
	_ = l.Unlock(section)
}

func TestTryLockIfLetsAScriptDecide(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p, other := w.Peer(), w.Peer()
	l, far := p.NewLock("a"), other.NewLock("a")

	section, reply, err := l.TryLockIf(t.Context(), guard, key("a"), "one")
	require.NoError(t, err)
	require.Equal(t, []any{int64(1), "one"}, reply)
	w.RequireCount("a", 1)
	require.Positive(t, w.Draw(section, l))
	require.Equal(t, "one", w.Plain.Get(t.Context(), key("a")[0]).Val())

	_, _, err = far.TryLockIf(t.Context(), "return not locked", key("a"))
	require.ErrorIs(t, err, relock.ErrLocked)
	var declined *relock.DeclinedError
	ctx, _, err := far.TryLockIf(t.Context(), guard, key("a"), "two")
	require.ErrorAs(t, err, &declined)
	require.Equal(t, err, context.Cause(ctx))
	require.Equal(t, relock.DeclinedError{Name: "a", Reply: "one"}, *declined)
	require.NotContains(t, err.Error(), "one", "the reply is data")
	require.NoError(t, section.Err())
	w.Leave(section, l)

	_, _, err = far.TryLockIf(t.Context(), guard, key("a"), "two")
	require.ErrorAs(t, err, &declined) // and the lock is free again
	w.RequireFree("a")
	require.NoError(t, p.RDB.Del(t.Context(), key("a")...).Err())
}

// TestADeclinedLockGoesToTheNextWaiter has a script decline a lock whose lease has run out, while
// somebody waits for it.
func TestADeclinedLockIsNotTakenFromWaiters(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	l := p.NewLock("a")
	section := w.Enter(t.Context(), l)
	waiter := w.Start(t.Context(), w.Peer().NewLock("a"))
	w.AwaitWaiters("a", 1)
	require.NoError(t, w.Plain.Del(t.Context(), stage.BaseKey("a")).Err())
	_, _, err := w.Peer().NewLock("a").TryLockIf(t.Context(), "return false, 'no'", nil)
	require.ErrorAs(t, err, new(*relock.DeclinedError))
	waiter.Leave()
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
}

func TestALostReplyOfTryLockIfIsAskedForAgain(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.deaf()
	l := p.NewLock("a")
	for what, lose := range stage.Breaks {
		section, _, err := l.TryLockIf(t.Context(), "return locked", nil)
		require.NoError(t, err)
		w.Leave(section, l)
		rule := p.Faults.Once(redistest.Named("EVALSHA"), redistest.DropReply(lose))
		section, _, err = l.TryLockIf(t.Context(), "return locked", nil)
		require.NoError(t, err, what)
		require.Equal(t, 1, rule.Hits())
		w.RequireCount("a", 1)
		w.Leave(section, l)
	}
}

func TestRunScriptIsOneScriptOfAFreeLock(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	l := p.NewLock("a")
	for want := range 3 {
		before := p.Faults.Commands()
		reply, err := l.RunScript(t.Context(), incr, key("a"), 1)
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(want+1), reply)
		if want > 0 { // the first one sends the script's text, too
			require.Equal(t, 1, p.Faults.Commands()-before)
		}
	}
	require.Equal(t, key("a"), redistest.Keys(t, w.Plain), "nothing of the lock")
	require.NoError(t, p.RDB.Del(t.Context(), key("a")...).Err())

	_, err := l.RunScript(t.Context(), "return redis.error_reply('MINE no')", nil)
	require.ErrorContains(t, err, "MINE no")
	require.NotErrorIs(t, err, relock.ErrUnsure)
	_, err = l.RunScript(t.Context(), incr, []string{"elsewhere"})
	require.ErrorIs(t, err, relock.ErrInvalid)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.RunScript(over, incr, key("a"), 1)
	require.ErrorIs(t, err, context.Canceled)
	_, err = new(relock.Lock).RunScript(t.Context(), incr, nil)
	require.ErrorIs(t, err, relock.ErrInvalid)
	require.NoError(t, p.Close())
	_, err = l.RunScript(t.Context(), incr, key("a"), 1)
	require.ErrorIs(t, err, relock.ErrClosed)
	require.Empty(t, redistest.Keys(t, w.Plain))
}

func TestAfterAStopRunScriptRunsNoScript(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	l := w.Peer().NewLock("a")
	stop, shutDown := context.WithCancel(t.Context())
	ctx := relock.WithStop(t.Context(), stop)
	section := w.Enter(ctx, l)
	shutDown()
	_, err := l.RunScript(section, incr, []string{"{a}:inside:value"}, 1)
	require.NoError(t, err, "calls inside of a section go on")
	w.Leave(section, l)
	_, err = l.RunScript(ctx, incr, key("a"), 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "stopped")
	require.NotErrorIs(t, err, relock.ErrUnsure)
	require.Zero(t, w.Plain.Exists(t.Context(), key("a")...).Val(), "the script has not run")
}

// TestRunScriptWaitsItsTurn has a holder that reads, waits and writes, and callers that add in between.
func TestRunScriptWaitsItsTurn(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	const add = "redis.call('INCRBY', KEYS[1], ARGV[1])"
	var all sync.WaitGroup
	for range 4 {
		p := w.Peer()
		l := p.NewLock("a")
		all.Go(func() {
			for range 50 {
				_, err := l.RunScript(t.Context(), add, key("a"), 1)
				assert.NoError(t, err)
			}
		})
		all.Go(func() {
			for range 5 {
				assert.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
					n, _ := p.RDB.Get(ctx, key("a")[0]).Int()
					<-time.After(5 * time.Millisecond)
					return p.RDB.Set(ctx, key("a")[0], n+1, time.Minute).Err()
				}))
			}
		})
	}
	all.Wait()
	require.Equal(t, "220", w.Plain.GetDel(t.Context(), key("a")[0]).Val())
	w.RequireFree("a")
}

func TestRunScriptInsideOfASection(t *testing.T) {
	w := onScripted(t, stage.OnShared(t))
	p := w.Peer()
	rw := p.NewRWLock("rw")
	for name, l := range map[string]*relock.Lock{"a": p.NewLock("a"), "rw": rw.Writer(), "sem": p.NewSemaphore("sem", 2)} {
		section := w.Enter(t.Context(), l)
		reply, err := l.RunScript(section, incr, key(name), 1)
		require.NoError(t, err, name)
		require.Equal(t, "1", reply, name)
		require.Equal(t, 1, l.Count(section), name)
		require.NoError(t, p.RDB.FlushAll(t.Context()).Err())
		_, err = l.Eval(section, "return 1", nil)
		require.ErrorIs(t, err, relock.ErrLockLost, name)
		_, err = l.RunScript(section, incr, key(name), 1)
		require.ErrorIs(t, err, relock.ErrLockLost, name)
		require.Empty(t, redistest.Keys(t, w.Plain), name)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	}
	_, err := p.NewLock("rw").RunScript(t.Context(), "return 1", nil)
	require.NoError(t, err, "nobody is in")
	_, err = rw.RLocker().RunScript(t.Context(), incr, key("rw"), 1)
	require.ErrorIs(t, err, relock.ErrInvalid, "a reader must not write")
}

// TestRunScriptWaitsForAServerThatIsAway has a server that is killed, and gives no locks after its start.
func TestRunScriptWaitsForAServerThatIsAway(t *testing.T) {
	w := onScripted(t, stage.OnOwn(t))
	l := w.Peer(relock.WithTTL(5*time.Second), relock.WithRestartDelay(time.Second)).NewLock("a")
	w.Server.Kill()
	time.AfterFunc(time.Second, w.Server.Restart)
	began := time.Now()
	reply, err := l.RunScript(t.Context(), incr, key("a"), 1)
	require.NoError(t, err)
	require.Equal(t, "1", reply)
	require.Greater(t, time.Since(began), 2*time.Second, "the server runs for a second before it gives locks")
}

func TestUserScriptsWorkOnMiniredisAndInRedissonsLayout(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	for _, options := range [][]relock.Option{nil, {relock.WithRedissonLayout()}} {
		c, err := relock.New(rdb, options...)
		require.NoError(t, err)
		l := c.NewLock("a")
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		m.Del("{a}:value")
		reply, err := l.Eval(section, incr, key("a"), 2)
		require.NoError(t, err)
		require.Equal(t, "2", reply)
		require.NoError(t, l.Unlock(section))
		reply, err = l.RunScript(t.Context(), incr, key("a"), 1)
		require.NoError(t, err)
		require.Equal(t, "3", reply)
		section, _, err = l.TryLockIf(t.Context(), "return locked", nil)
		if options != nil {
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.NoError(t, c.Close())
			continue
		}
		require.NoError(t, err)
		require.NoError(t, l.Unlock(section))
		require.NoError(t, c.Close())
	}
}
