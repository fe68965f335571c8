package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// setScript sets the key of each unit to the argument of that unit, and answers with the old value.
var setScript = NewScript("set", `
local replies = {}
for i, key in ipairs(KEYS) do
  local reply = redis.pcall('GET', key)
  local last = reply or ''
  if type(reply) ~= 'table' then reply = redis.pcall('SET', key, ARGV[#ARGV - #KEYS + i]) end
  if reply.err then
    if #KEYS == 1 then return reply end
    last = '-' .. reply.err
  end
  replies[i] = last
end
return #KEYS == 1 and replies[1] or replies
`)

var scripts = redistest.Named("EVALSHA", "EVAL")

const ample = 10 * time.Second

// rig is a wire whose connections go through faults, and a client that sees what the server sees.
type rig struct {
	*testing.T
	server *redistest.Server
	rdb    *redis.Client
	seen   *redis.Client
	faults *redistest.Faults
	wire   *Wire

	mu      sync.Mutex
	retried []error
	trouble int
	retry   func() // called when a call is sent again
}

func newRig(t *testing.T, mod ...func(*redis.Options)) *rig {
	t.Helper()
	return newRigOn(t, redistest.Shared(t), mod...)
}

func newRigOn(t *testing.T, server *redistest.Server, mod ...func(*redis.Options)) *rig {
	t.Helper()
	redistest.NoGoroutineLeft(t, "relock/internal/wire.")
	r := &rig{T: t, server: server, seen: server.Client(), faults: redistest.NewFaults(), retry: func() {}}
	t.Cleanup(r.faults.Close)
	dial := func(o *redis.Options) { o.Dialer = r.faults.Dialer(nil) }
	r.use(server.Client(append([]func(*redis.Options){dial}, mod...)...))
	require.NoError(t, r.seen.ScriptLoad(t.Context(), setScript.Source).Err())
	return r
}

// use makes the wire one over another client.
func (r *rig) use(rdb *redis.Client) {
	r.Helper()
	r.rdb = rdb
	w, err := New(rdb, Options{Trouble: func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.trouble++
	}})
	require.NoError(r, err)
	r.wire = w
}

// Retrying implements Reporter.
func (r *rig) Retrying(script string, attempt int, since time.Time, err error) {
	if attempt == 0 && errors.Is(err, errNoAnswer) { // the first one goes on
		return
	}
	r.mu.Lock()
	r.retried = append(r.retried, err)
	r.mu.Unlock()
	if script != "set" || attempt < 1 || since.IsZero() {
		r.Errorf("retried %s, attempt %d, since %s", script, attempt, since)
	}
	r.retry()
}

func (r *rig) retries() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.retried)
}

func (r *rig) key(n int) string { return fmt.Sprintf("%s/%d", r.Name(), n) }

func (r *rig) unit(n int, value string) Unit {
	return Unit{Keys: []string{r.key(n)}, Args: []any{value}}
}

// call sets key 0.
func (r *rig) call(value string) *Call {
	return &Call{Script: setScript, Unit: r.unit(0, value), Report: r}
}

// tries is call that is sent so often.
func (r *rig) tries(n int) *Call {
	c := r.call("x")
	c.Tries = n
	return c
}

func (r *rig) value(n int) string {
	r.Helper()
	v, err := r.seen.Get(r.Context(), r.key(n)).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(r, err)
	}
	return v
}

// do is a call that must be answered.
func (r *rig) do(ctx context.Context, c *Call) Answer {
	r.Helper()
	a, err := r.wire.Do(ctx, c)
	require.NoError(r, err)
	return a
}

// waysOut are contexts for the ways of a call: its caller sends it, or another goroutine does.
func waysOut(t *testing.T) map[string]context.Context {
	t.Helper()
	return map[string]context.Context{"sent by the caller": context.Background(), "sent by another goroutine": t.Context()}
}

func TestAnAnswerIsTheReplyToTheUnit(t *testing.T) {
	for name, ctx := range waysOut(t) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			require.NoError(t, r.seen.Del(t.Context(), r.key(0)).Err())
			before := time.Now()
			require.Empty(t, r.do(ctx, r.call("one")).Reply)
			a := r.do(ctx, r.call("two"))
			require.Equal(t, "one", a.Reply)
			require.False(t, a.Unsure)
			require.True(t, a.Sent.After(before))
			require.Equal(t, a.Sent, a.First)
			require.Equal(t, "two", r.value(0))
		})
	}
}

func TestALostReplyIsAnsweredByAskingAgain(t *testing.T) {
	for name, ctx := range waysOut(t) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var sent []time.Time
			r.faults.On(scripts, redistest.Before(func([]string) { sent = append(sent, time.Now()) }))
			lost := r.faults.On(scripts, redistest.DropReply(redistest.Reset)).Times(2)
			a := r.do(ctx, r.call("x"))
			require.Equal(t, "x", a.Reply, "the first attempt has run")
			require.Equal(t, 2, lost.Hits())
			require.True(t, a.Unsure)
			require.Len(t, sent, 3)
			require.False(t, a.First.After(sent[0]))
			require.True(t, a.Sent.After(sent[1]))
			require.False(t, a.Sent.After(sent[2]))
			require.False(t, r.do(ctx, r.call("x")).Unsure, "nothing was lost here")
		})
	}
}

func TestAnAttemptAfterALostReplyMayHaveOtherArguments(t *testing.T) {
	r := newRig(t)
	var elapsed []time.Duration
	c := r.call("first")
	c.Repeat = func(args []any, d time.Duration) []any {
		require.Equal(t, c.Unit.Args, args)
		elapsed = append(elapsed, d)
		return []any{fmt.Sprintf("repeat %d", len(elapsed))}
	}
	r.faults.Once(scripts, redistest.Answer("-LOADING Redis is loading")) // it has not run
	r.faults.On(scripts, redistest.DropReply(redistest.EOF)).Skip(1).Times(2)
	a := r.do(t.Context(), c)
	require.Equal(t, "repeat 1", a.Reply)
	require.Equal(t, "repeat 2", r.value(0))
	require.Len(t, elapsed, 2)
	require.Positive(t, elapsed[0])
	require.Greater(t, elapsed[1], elapsed[0])
	require.LessOrEqual(t, elapsed[1], a.Sent.Sub(a.First))
}

func TestGoRedisSendsACommandOnceForEachAttempt(t *testing.T) {
	for name, send := range map[string]func(r *rig) error{
		"one": func(r *rig) error { _, err := r.wire.Do(r.Context(), r.tries(3)); return err },
		"with WAIT": func(r *rig) error {
			c := r.tries(3)
			c.Acks = attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
			_, err := r.wire.Do(r.Context(), c)
			return err
		},
		"many": func(r *rig) error {
			return r.wire.All(r.Context(), setScript, nil, units(r, 2*maxUnits))[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *redis.Options) { o.MaxRetries = 5 })
			r.faults.On(scripts, redistest.DropReply(redistest.EOF))
			require.ErrorIs(t, send(r), io.EOF)
			perAttempt := map[bool]int{true: 2, false: 1}[name == "many"]
			require.Equal(t, perAttempt*(1+r.retries()), r.faults.Commands("EVALSHA"))
		})
	}
	clone := command{redis.NewCmd(t.Context(), "EVALSHA", "x")}.Clone()
	require.Equal(t, []any{"EVALSHA", "x"}, clone.Args())
	require.True(t, clone.NoRetry())
}

// units is n units.
func units(r *rig, n int) []Unit {
	all := make([]Unit, n)
	for i := range all {
		all[i] = r.unit(i, "x")
	}
	return all
}

func TestAPassingErrorIsTriedAgainAndARefusalIsNot(t *testing.T) {
	for reply, tries := range map[string]int{
		"-LOADING Redis is loading the dataset in memory":                                   3,
		"-READONLY You can't write against a read only replica.":                            3,
		"-BUSY Redis is busy running a script.":                                             3,
		"-ERR max number of clients reached":                                                3,
		"-OOM command not allowed when used memory > 'maxmemory'.":                          1,
		"-NOAUTH Authentication required.":                                                  1,
		"-NOPERM User app has no permissions to run the 'evalsha' command":                  1,
		"-WRONGTYPE Operation against a key holding the wrong kind of value":                1,
		"-ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed": 1,
	} {
		t.Run(reply, func(t *testing.T) {
			r := newRig(t)
			rule := r.faults.On(scripts, redistest.Answer(reply))
			a, err := r.wire.Do(t.Context(), r.tries(3))
			require.ErrorContains(t, err, strings.TrimPrefix(reply, "-"))
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, tries, rule.Hits())
			require.Equal(t, tries-1, r.retries())
			require.False(t, a.Unsure, "it has not run")
			require.Equal(t, tries == 1, Refused(err))
			require.Equal(t, tries > 1, errors.Is(err, attempts.ErrUnavailable))
		})
	}
}

func TestTheWordOfAProxyIsWaitedForAndMayHaveCostAnAnswer(t *testing.T) {
	r := newRig(t)
	rule := r.faults.On(scripts, redistest.Answer("-upstream failure"))
	a, err := r.wire.Do(t.Context(), r.tries(3))
	require.ErrorContains(t, err, "upstream failure")
	require.ErrorIs(t, err, attempts.ErrUnavailable)
	require.Equal(t, 3, rule.Hits())
	require.True(t, a.Unsure, "the proxy may have sent the script")
	err = r.wire.All(t.Context(), setScript, nil, units(r, 1))[0].Err
	require.ErrorIs(t, err, attempts.ErrUnavailable)
	require.False(t, NotRun(err))
	once := r.call("x")
	once.NoRepeat = true
	a, err = r.wire.Do(t.Context(), once)
	require.ErrorIs(t, err, attempts.ErrUnavailable)
	require.True(t, a.Unsure)
	require.Equal(t, 5, rule.Hits(), "a script that adds is not sent again")
	rule.Times(2)
	r.do(t.Context(), r.call("y"))
	require.Equal(t, "y", r.value(0))
}

func TestAScriptThatIsKilledBeforeItWritesIsSentAgain(t *testing.T) {
	for _, reply := range []string{
		"-ERR Error running script (call to f_1): @user_script:1: Script killed by user with SCRIPT KILL...",
		"-ERR Script killed by user with SCRIPT KILL. script: 5b1d, on @user_script:1.",
	} {
		r := newRig(t)
		rule := r.faults.Once(scripts, redistest.Answer(reply))
		a := r.do(t.Context(), r.call("x"))
		require.Equal(t, 1, rule.Hits())
		require.False(t, a.Unsure)
		require.Equal(t, "x", r.value(0))

		rule = r.faults.On(scripts, redistest.Answer(reply))
		alone := *setScript
		alone.Alone = true
		c := r.call("x")
		c.Script, c.NoRepeat = &alone, true
		_, err := r.wire.Do(t.Context(), c)
		require.ErrorContains(t, err, "killed")
		require.True(t, Refused(err), "a user's script may be without an end")
		require.Equal(t, 1, rule.Hits())
	}
}

func TestACertificateThatIsRefusedEndsACall(t *testing.T) {
	stranger := httptest.NewTLSServer(http.NotFoundHandler())
	defer stranger.Close()
	plain := httptest.NewServer(http.NotFoundHandler()) // answers in words that are no TLS
	defer plain.Close()
	for _, server := range []*httptest.Server{stranger, plain} {
		rdb := redis.NewClient(&redis.Options{
			Addr: server.Listener.Addr().String(), TLSConfig: &tls.Config{ServerName: "redis"}, DialerRetries: 1, MaxRetries: -1,
		})
		w, err := New(rdb, Options{})
		require.NoError(t, err)
		a, err := w.Do(t.Context(), &Call{Script: setScript, Unit: Unit{Keys: []string{"k"}, Args: []any{"x"}}})
		require.ErrorContains(t, err, "tls: ")
		require.True(t, Refused(err))
		require.False(t, a.Unsure, "nothing was sent")
		w.Wait()
		require.NoError(t, rdb.Close())
	}
}

// A sentinel that does not know the master answers with nil, which go-redis has in an error of its
// own.
func TestASentinelThatForgetsIsWaitedFor(t *testing.T) {
	forgotten := fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", errors.Join(redis.Nil))
	synctest.Test(t, func(t *testing.T) {
		begun, dials := time.Now(), 0
		rdb := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1, PoolSize: 1000, // else go-redis dials behind us
			Dialer: func(context.Context, string, string) (net.Conn, error) { dials++; return nil, forgotten },
		})
		defer rdb.Close()
		w, err := New(rdb, Options{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		a, err := w.Do(ctx, &Call{Script: setScript, Unit: Unit{Keys: []string{"k"}, Args: []any{"x"}}})
		require.Equal(t, 5*time.Second, time.Since(begun), "to the end of the wait")
		require.ErrorIs(t, err, attempts.ErrUnavailable)
		require.ErrorContains(t, err, "the sentinels do not know a master of this name")
		require.False(t, a.Unsure, "nothing was sent")
		require.Greater(t, dials, 5)
		w.Wait()
	})
}

func TestACallReturnsWhenItsContextIsDoneAndRedisIsSilent(t *testing.T) {
	r := newRig(t)
	r.do(t.Context(), r.call("x"))
	silent := r.faults.On(scripts, redistest.Stall())
	cause := errors.New("my reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		silent.WaitHits(t, 2)
		cancel(cause)
	}()
	all := make(chan []Result, 1)
	go func() { all <- r.wire.All(ctx, setScript, nil, []Unit{r.unit(1, "x")}) }()
	begin := time.Now()
	a, err := r.wire.Do(ctx, r.call("x"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, ErrGivenUp)
	require.True(t, a.Unsure, "it may run yet")
	require.Equal(t, a.Sent, a.First)
	err = (<-all)[0].Err
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, ErrGivenUp)
	require.Less(t, time.Since(begin), bound.Of(2*time.Second), "and not go-redis's three seconds")
	r.faults.Heal()
	r.wire.Wait()
}

func TestAContextThatIsDoneSendsNothing(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("my reason")
	cancel(cause)
	a, err := r.wire.Do(ctx, r.call("x"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, attempts.ErrUnavailable)
	require.Zero(t, a)
	require.Zero(t, r.faults.Commands())
}

func TestACallWhoseContextEndsSaysWhatRedisHasSaidLast(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refusal := r.faults.On(scripts, redistest.Answer("-READONLY You can't write against a read only replica."))
	r.retry = cancel // the attempt that follows finds its context done
	_, err := r.wire.Do(ctx, r.call("x"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "READONLY")
	require.ErrorIs(t, err, attempts.ErrUnavailable)
	require.False(t, Refused(err))
	require.LessOrEqual(t, refusal.Hits(), 2)
}

func TestACallEndsWithItsContextWhileItPauses(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r.faults.On(scripts, redistest.Answer("-LOADING Redis is loading"))
	_, err := r.wire.Do(ctx, r.call("x"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "LOADING")
	require.LessOrEqual(t, r.retries(), 12, "with growing pauses")
}

func TestAnAttemptIsGivenUpWhenItsPatienceIsOver(t *testing.T) {
	const patience = 50 * time.Millisecond
	t.Run("and the next one is sent", func(t *testing.T) {
		r := newRig(t)
		r.faults.Once(scripts, redistest.Stall())
		c := r.call("x")
		c.Patience = patience
		a := r.do(t.Context(), c)
		require.True(t, a.Unsure)
		require.GreaterOrEqual(t, a.Sent.Sub(a.First), patience)
		require.ErrorIs(t, r.retried[0], ErrGivenUp)
	})
	t.Run("after its tries the error says so", func(t *testing.T) {
		r := newRig(t)
		r.faults.On(scripts, redistest.Stall())
		c := r.tries(2)
		c.Patience = patience
		a, err := r.wire.Do(context.Background(), c)
		require.ErrorContains(t, err, "no answer from Redis for ")
		require.ErrorIs(t, err, ErrGivenUp)
		require.ErrorIs(t, err, attempts.ErrUnavailable)
		require.True(t, a.Unsure)
	})
	t.Run("and was never sent if there was no connection", func(t *testing.T) {
		r := newRig(t, func(o *redis.Options) { o.PoolSize = 1 })
		conn := r.rdb.Conn() // takes the only one
		require.NoError(t, conn.Ping(t.Context()).Err())
		c := r.tries(1)
		c.Patience = patience
		a, err := r.wire.Do(t.Context(), c)
		require.ErrorIs(t, err, attempts.ErrUnavailable)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "the call's context is not done")
		require.Equal(t, errors.Is(err, ErrGivenUp), a.Unsure)
		require.Zero(t, r.faults.Commands("EVALSHA"))
		require.NoError(t, conn.Close())
	})
}

func TestACallIsSentByItsCallerOnlyIfItsContextOutlivesGoRedis(t *testing.T) {
	life, end := context.WithCancelCause(t.Context())
	r := newRig(t, func(o *redis.Options) { o.ReadTimeout = time.Second })
	far := lifetime.Until(t.Context(), time.Now().Add(time.Hour))
	defer far.Stop()
	near := lifetime.Until(t.Context(), time.Now().Add(time.Second))
	defer near.Stop()
	for _, c := range []struct {
		ctx      context.Context
		patience time.Duration
		want     bool
	}{
		{context.Background(), 0, true},
		{life, 0, false},
		{lifetime.Of(life, t.Context()), 0, true},
		{lifetime.Of(life, t.Context()), time.Second, true},
		{lifetime.Of(life, t.Context()), time.Second - 1, false},
		{far, 0, true},
		{near, 0, false},
		{t.Context(), 0, false},
	} {
		require.Equal(t, c.want, r.wire.isDirect(&lone{spec: r.wire.specOf(&Call{Patience: c.patience}), flight: flight{ctx: c.ctx}}))
	}
	cause := errors.New("the client is closed")
	end(cause)
	r.do(t.Context(), r.call("x")) // as an Unlock does
	_, err := r.wire.Do(lifetime.Of(life, t.Context()), r.call("x"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
}

func TestACallEndsAtItsDeadlineIfThereIsNoConnection(t *testing.T) {
	for name, queued := range map[string]bool{"alone": false, "in the queue": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = 100*time.Millisecond, time.Minute })
			r.faults.Partition()
			if queued {
				r.wire.batcher.sends = maxSends
			}
			ctx := lifetime.Until(t.Context(), time.Now().Add(silence+50*time.Millisecond))
			defer ctx.Stop()
			begun := time.Now()
			_, err := r.wire.Do(ctx, r.call("x"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, attempts.ErrUnavailable)
			require.Less(t, time.Since(begun), bound.Of(ample))
			r.faults.Heal()
		})
	}
}

func TestWaitReturnsWhenWhatWasGivenUpHasEnded(t *testing.T) {
	r := newRig(t)
	held := r.faults.Once(scripts, redistest.Hold())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		held.WaitHits(t, 1)
		cancel()
	}()
	_, err := r.wire.Do(ctx, r.call("x"))
	require.ErrorIs(t, err, context.Canceled)
	waited := make(chan struct{})
	go func() {
		r.wire.Wait()
		close(waited)
	}()
	select {
	case <-waited:
		t.Fatal("an attempt is still in flight")
	case <-time.After(20 * time.Millisecond):
	}
	held.LetGo()
	<-waited
	r.do(t.Context(), r.call("y"))
}

func TestEveryCallIsSentInFullToAServerThatHasForgottenTheScript(t *testing.T) {
	r := newRigOn(t, redistest.Start(t)) // other tests count on their scripts
	forget := func() { require.NoError(t, r.seen.ScriptFlush(t.Context()).Err()) }
	forget()
	require.Empty(t, r.do(t.Context(), r.call("a")).Reply)
	forget()
	c := r.tries(1)
	c.Acks = attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
	require.Equal(t, "a", r.do(t.Context(), c).Reply)
	forget()
	for i, result := range r.wire.All(t.Context(), setScript, nil, units(r, 2*maxUnits)) {
		require.NoError(t, result.Err, i)
	}
	require.Equal(t, "x", r.value(2*maxUnits-1))
	forget()
	for _, f := range r.batch(3) {
		require.NoError(t, f.err)
	}
	require.Zero(t, r.retries(), "that is no try")
}

func TestAReplyThatNoScriptGivesIsAnErrorAndNotAskedForAgain(t *testing.T) {
	for _, reply := range []string{"+OK", ":-1", "*0", "*3\r\n:1\r\n:1\r\n:1", "$2\r\nhi", "*-1"} {
		t.Run(fmt.Sprintf("%q", reply), func(t *testing.T) {
			r := newRig(t)
			r.faults.On(scripts, redistest.Answer(reply))
			for _, f := range r.batch(2) {
				require.ErrorContains(t, f.err, "unexpected reply of script set: ")
			}
			require.Error(t, r.wire.All(t.Context(), setScript, nil, units(r, 2))[1].Err)
			if reply != "*-1" {
				return // only the caller knows the replies of its script
			}
			a, err := r.wire.Do(t.Context(), r.call("x"))
			require.ErrorContains(t, err, "unexpected reply of script set: ")
			require.True(t, a.Unsure, "the script may have run")
			require.Zero(t, r.retries())
		})
	}
}

func TestTheAnswerSaysHowManyReplicasHaveConfirmed(t *testing.T) {
	acked := func(r *rig) *Call {
		c := r.tries(2)
		c.Acks = attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
		return c
	}
	for name, ctx := range waysOut(t) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			require.Zero(t, r.do(ctx, acked(r)).Acked)
			r.faults.On(redistest.Named("WAIT"), redistest.Answer(":2"))
			a := r.do(ctx, acked(r))
			require.Equal(t, "x", a.Reply)
			require.Equal(t, 2, a.Acked)
		})
	}
	for reply, tries := range map[string]int{
		"-ERR WAIT cannot be used with replica instances.":          2,
		"-LOADING Redis is loading":                                 2,
		"-NOPERM User app has no permissions to run the 'wait' one": 1,
	} {
		t.Run(reply, func(t *testing.T) {
			r := newRig(t)
			rule := r.faults.On(redistest.Named("WAIT"), redistest.Answer(reply))
			a, err := r.wire.Do(t.Context(), acked(r))
			require.ErrorContains(t, err, "the script has run, and WAIT or WAITAOF failed: "+reply[1:])
			require.True(t, a.Unsure, "the script has run")
			require.Equal(t, tries, rule.Hits())
			require.Equal(t, tries > 1, errors.Is(err, attempts.ErrUnavailable))
		})
	}
}

func TestWhatGoRedisCannotSendIsNotUnsure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := l.Addr().String()
	require.NoError(t, l.Close())
	for name, c := range map[string]struct {
		mod  func(*redis.Options)
		want error
	}{
		"no server":     {func(o *redis.Options) { o.Addr, o.Dialer, o.DialerRetries = nobody, nil, 1 }, syscall.ECONNREFUSED},
		"no connection": {func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, time.Millisecond }, redis.ErrPoolTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.mod)
			conn := r.rdb.Conn() // takes the only one
			defer conn.Close()
			_ = conn.Ping(t.Context())
			a, err := r.wire.Do(t.Context(), r.tries(3))
			require.ErrorIs(t, err, c.want)
			require.ErrorIs(t, err, attempts.ErrUnavailable)
			require.False(t, a.Unsure)
			require.Equal(t, 2, r.retries())
		})
	}
	t.Run("a node of a cluster, for a client that follows none", func(t *testing.T) {
		r := newRig(t)
		r.faults.On(scripts, redistest.Answer("-MOVED 3999 127.0.0.1:6381"))
		a, err := r.wire.Do(t.Context(), r.call("x"))
		require.True(t, Refused(err))
		require.NotErrorIs(t, err, attempts.ErrUnavailable)
		require.False(t, a.Unsure)
		require.ErrorContains(t, err, "use a redis.ClusterClient (MOVED 3999 127.0.0.1:6381")
		require.True(t, Refused(r.wire.All(t.Context(), setScript, nil, []Unit{r.unit(0, "x")})[0].Err))
	})
	t.Run("a closed client", func(t *testing.T) {
		r := newRig(t)
		require.NoError(t, r.rdb.Close())
		a, err := r.wire.Do(t.Context(), r.call("x"))
		require.ErrorIs(t, err, redis.ErrClosed)
		require.True(t, Refused(err))
		require.False(t, a.Unsure)
	})
}

func TestTroubleIsReportedWhenAServerIsNotWhatItWas(t *testing.T) {
	r := newRig(t)
	r.do(t.Context(), r.call("x"))
	r.faults.On(scripts, redistest.Answer("-LOADING Redis is loading")).Times(2)
	r.do(t.Context(), r.call("x"))
	require.Zero(t, r.trouble)
	r.faults.On(scripts, redistest.CutBefore(redistest.Reset)).Times(3)
	r.do(t.Context(), r.call("x"))
	require.Equal(t, 1, r.trouble, "once a second")

	r.use(r.rdb)
	r.faults.Once(scripts, redistest.Answer("-READONLY You can't write against a read only replica."))
	err := r.wire.All(t.Context(), setScript, nil, []Unit{r.unit(0, "x")})[0].Err
	require.Equal(t, "READONLY", Code(err))
	require.ErrorIs(t, err, attempts.ErrUnavailable)
	require.Equal(t, 2, r.trouble)
	r.faults.Once(scripts, redistest.Answer("-NOPERM no access"))
	require.True(t, Refused(r.wire.All(t.Context(), setScript, nil, []Unit{r.unit(0, "x")})[0].Err))
	require.Equal(t, 2, r.trouble)
}
