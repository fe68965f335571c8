package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/storetest"
)

// The stores on real servers, where connections fail and messages are lost.

func TestRedisStoreKeepsThePromisesOfStores(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client()
	storetest.Run(t, storetest.Harness{
		Start: func(t *testing.T) storetest.Server {
			t.Helper()
			return storetest.Server{
				New: func() store.Store {
					s, err := New(server.Client(), Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
					require.NoError(t, err)
					return s
				},
				Interrupt: func() func() { server.Pause(); return server.Resume },
				Lose:      func(name string) { require.NoError(t, rdb.Del(t.Context(), name).Err()) },
			}
		},
		TTL:       time.Second,
		Parallel:  true,
		BadNames:  []string{"}", "{x}:queue"},
		SameNames: [][2]string{{"x", "{x}"}, {"x", "relock:{x}"}},
	})
}

func TestTheLayoutOfRedissonKeepsThePromisesOfStores(t *testing.T) {
	for name, fenced := range map[string]bool{"RLock": false, "RFencedLock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := server.Client()
			without := map[storetest.Promise]string{
				storetest.FIFO:       "Redisson's lock has no queue: whoever asks first has the lock",
				storetest.Kinds:      "relock's own layout only",
				storetest.Several:    "relock's own layout only",
				storetest.WaitGraph:  "the fields that Redis shows are not the holds that wait",
				storetest.Lending:    "relock's own layout only",
				storetest.Asking:     "relock's own layout only",
				storetest.Announcing: "relock's own layout only",
				storetest.Listing:    "relock's own layout only",
				storetest.Queueing:   "the waiters of Redisson race",
			}
			if !fenced {
				without[storetest.Tokens] = "only a fenced lock of Redisson has tokens"
			}
			storetest.Run(t, storetest.Harness{
				Start: func(t *testing.T) storetest.Server {
					t.Helper()
					return storetest.Server{
						New: func() store.Store {
							s, err := New(server.Client(), Options{Layout: Layout{Redisson: true, Fenced: fenced}, Scripts: scripts})
							require.NoError(t, err)
							return s
						},
						Interrupt: func() func() { server.Pause(); return server.Resume },
						Lose:      func(name string) { require.NoError(t, rdb.Del(t.Context(), name).Err()) },
					}
				},
				Without:  without,
				TTL:      time.Second,
				Parallel: true,
				Shown:    func(id store.ID) store.ID { return store.ID(redissonField(id)) },
			})
		})
	}
}

// faulty is a rig whose store has connections that misbehave.
func faulty(t *testing.T) (*rig, *redistest.Faults) {
	t.Helper()
	r := newRig(t)
	faults := redistest.NewFaults()
	t.Cleanup(faults.Close)
	rdb := r.server.Client(func(o *redis.Options) {
		o.Dialer, o.DisableIdentity, o.ReadTimeout = faults.Dialer(nil), true, limit
	})
	s, err := New(rdb, Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r.store = s.(*nativeStore)
	return r, faults
}

// waiterCall is one call of Wait.
type waiterCall struct {
	*rig
	lease  store.Lease
	err    error
	done   chan struct{}
	queued chan struct{} // each time it is told that it is queued
	cancel context.CancelFunc
}

// wait calls Wait, and returns when the waiter is queued.
func (r *rig) wait(a store.Claim) *waiterCall {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	r.Cleanup(cancel)
	w := &waiterCall{rig: r, done: make(chan struct{}), queued: make(chan struct{}, 100), cancel: cancel}
	go func() {
		defer close(w.done)
		w.lease, w.err = r.store.Wait(ctx, a, func(p store.Progress) {
			if p.Queued && p.Busy != nil {
				w.queued <- struct{}{}
			}
		})
	}()
	w.isQueued()
	return w
}

func (w *waiterCall) isQueued() {
	w.Helper()
	select {
	case <-w.queued:
	case <-w.done:
		require.FailNow(w, "Wait has returned", "%v", w.err)
	case <-time.After(limit):
		require.FailNow(w, "the waiter is not queued")
	}
}

// get returns the lease that Wait returns.
func (w *waiterCall) get() store.Lease {
	w.Helper()
	select {
	case <-w.done:
	case <-time.After(limit):
		require.FailNow(w, "Wait does not return")
	}
	require.NoError(w, w.err)
	return w.lease
}

func TestWaitBelievesAGrant(t *testing.T) {
	r, faults := faulty(t)
	owner := r.enter("a")
	before := time.Now()
	a := r.claim(newID("b"), minute)
	w := r.wait(a)
	asked := time.Now()
	require.Equal(t, 2, faults.Commands("EVALSHA"), "asked before and after it listened")
	scripts := faults.Commands("EVALSHA")
	require.EqualValues(t, 1, r.release(owner))
	l := w.get()
	require.Equal(t, a, l.Claim)
	require.Equal(t, store.WakeGrant, l.Woken)
	require.False(t, l.Unsure)
	require.WithinRange(t, l.Sent, before, asked, "it did not have the lock when it queued")
	require.Equal(t, scripts, faults.Commands("EVALSHA"), "a message is enough")
	r.owner(string(a.ID), 1)

	// The client still listens, so the next waiter queues with its first question.
	scripts = faults.Commands("EVALSHA")
	next := r.wait(r.claim(newID("b"), minute))
	require.Equal(t, scripts+1, faults.Commands("EVALSHA"))
	require.EqualValues(t, 1, r.release(string(a.ID)))
	require.Equal(t, store.WakeGrant, next.get().Woken)
}

func TestWaitConfirmsAGrantThatMayBeOlderThanItsPlace(t *testing.T) {
	r, faults := faulty(t)
	owner := r.enter("a")
	a := r.claim(newID("b"), minute)
	w := r.wait(a)
	faults.CutPubSub() // so the waiter asks again
	w.isQueued()
	scripts := faults.Commands("EVALSHA")
	require.NoError(t, r.rdb.Publish(t.Context(), r.base+":b", string(a.ID)).Err(), "an old message")
	w.isQueued()
	require.Equal(t, scripts+1, faults.Commands("EVALSHA"))

	granted := time.Now()
	require.EqualValues(t, 1, r.release(owner))
	redistest.Eventually(t, limit, func() bool { return r.rdb.PExpire(t.Context(), r.base, 20*time.Second).Val() }, "granted")
	l := w.get()
	require.Equal(t, store.WakeGrant, l.Woken)
	require.Equal(t, scripts+2, faults.Commands("EVALSHA"))
	require.False(t, l.Sent.Add(l.TTL).After(granted.Add(minute+time.Second)), "counts from the end of the lease that it has found")
}

func TestWaitEnds(t *testing.T) {
	t.Run("with what is left", func(t *testing.T) {
		r, _ := faulty(t)
		owner := r.enter("a")
		a := r.claim(newID("b"), minute)
		w := r.wait(a)
		w.cancel()
		<-w.done
		require.ErrorIs(t, w.err, context.Canceled)
		require.ErrorIs(t, w.err, store.ErrUnsure)
		require.Equal(t, []string{string(a.ID)}, r.waiters())
		require.NoError(t, r.store.Forget(t.Context(), []store.Claim{a})[0])
		require.Empty(t, r.waiters())
		r.owner(owner, 1)
	})
	t.Run("when it may not subscribe", func(t *testing.T) {
		r := withUser(t, "~*", "+@all", "&nothing")
		r.enter("a")
		_, err := r.store.Wait(t.Context(), r.claim(newID("b"), minute), func(store.Progress) {})
		require.ErrorContains(t, err, "NOPERM")
		require.NotErrorIs(t, err, store.ErrUnsure)
		require.Empty(t, r.waiters())
	})
	t.Run("with the store", func(t *testing.T) {
		r, _ := faulty(t)
		r.enter("a")
		w := r.wait(r.claim(newID("b"), minute))
		go func() { _ = r.store.Close() }()
		select {
		case <-w.done:
			require.ErrorIs(t, w.err, store.ErrUnsure)
		case <-time.After(100 * time.Millisecond): // Wait ends with its context, which the client ends
			w.cancel()
			<-w.done
		}
	})
}

func TestAMessageAtTheEndOfAWaitCountsMoreThanTheEnd(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 100 { // which of the two is seen first is random
		var notes [2]<-chan subs.Note
		granted := make(chan subs.Note, 1)
		granted <- subs.Note{Message: true}
		notes[i%2] = granted
		n, err := new(waiting).sleep(ended, minute, notes)
		require.NoError(t, err)
		require.True(t, n.Message)
	}
}

func TestRedissonRecheck(t *testing.T) {
	for _, c := range []struct{ ttl, remaining, want time.Duration }{
		{minute, time.Second, time.Second},
		{20 * time.Second, time.Hour, 20 * time.Second},
		{time.Second, time.Hour, longRecheck},
		{time.Hour, time.Hour, usualTTL},
		{time.Second, -time.Millisecond, time.Second},
	} {
		d := redissonRecheck(store.Claim{TTL: c.ttl}, acquireReply{remaining: c.remaining})
		require.True(t, c.want <= d && d <= c.want+6*time.Millisecond, "%+v: %s", c, d)
	}
}

func TestALostReplyOf(t *testing.T) {
	lose := redistest.DropReply(redistest.EOF)
	t.Run("Try", func(t *testing.T) {
		r, faults := faulty(t)
		before := time.Now()
		faults.Once(redistest.Named("EVALSHA"), lose)
		l, err := r.store.Try(t.Context(), r.claim(newID("a"), minute))
		require.NoError(t, err)
		require.True(t, l.Unsure)
		after := time.Now()
		earliest := before.Add(before.Sub(after) - 2*time.Millisecond) // by the time between the attempts, and the server's resolution
		require.WithinRange(t, l.Sent, earliest, after)
		r.owner(string(l.ID), 1)
	})
	t.Run("Try of a busy lock", func(t *testing.T) {
		r, faults := faulty(t)
		r.enter("a")
		faults.Once(redistest.Named("EVALSHA"), lose)
		_, err := r.store.Try(t.Context(), r.claim(newID("b"), minute))
		var busy *store.Busy
		require.ErrorAs(t, err, &busy)
		require.ErrorIs(t, err, store.ErrUnsure, "the first attempt may run yet")
	})
	t.Run("Wait", func(t *testing.T) {
		r, faults := faulty(t)
		owner := r.enter("a")
		r.wait(r.claim(newID("b"), minute)) // the client listens
		faults.Once(redistest.Named("EVALSHA"), lose)
		w := r.wait(r.claim(newID("b"), minute))
		require.Len(t, r.waiters(), 2)
		for id := owner; len(r.waiters()) > 0; id = string(r.look().Owner) {
			require.EqualValues(t, 1, r.release(id))
		}
		l := w.get()
		require.Equal(t, store.WakeGrant, l.Woken)
		require.True(t, l.Unsure)
	})
	t.Run("Enter", func(t *testing.T) {
		r, faults := faulty(t)
		id := r.enter("a")
		faults.Once(redistest.Named("EVALSHA"), lose)
		sent := time.Now()
		l, err := r.store.Enter(t.Context(), r.held(id, minute), 2)
		require.NoError(t, err)
		require.False(t, l.Sent.Before(sent))
		r.owner(id, 2)
	})
	t.Run("Release", func(t *testing.T) {
		r, faults := faulty(t)
		id := r.enter("a")
		faults.Once(redistest.Named("EVALSHA"), lose)
		err := r.store.Release(t.Context(), r.held(id, minute))
		require.ErrorIs(t, err, store.ErrGone)
		require.ErrorIs(t, err, store.ErrUnsure, "the first attempt may have freed it")
		r.free()
	})
	t.Run("Renew", func(t *testing.T) {
		r, faults := faulty(t)
		id := r.enter("a")
		_, err := r.store.Enter(t.Context(), r.held(id, minute), 1) // the server knows the script
		require.NoError(t, err)
		faults.On(redistest.Named("EVALSHA"), lose)
		errs := r.store.Renew(t.Context(), []store.Renewal{{Lease: r.held(id, minute), TTL: minute, Count: 1}})
		require.ErrorIs(t, errs[0], store.ErrUnsure)
	})
}

func TestWatch(t *testing.T) {
	r, faults := faulty(t)
	doubts := make(chan store.ID, 100)
	stop := r.store.Watch("web@1/x", func(id store.ID) { doubts <- id })
	hears := func(want string, what string) {
		t.Helper()
		select {
		case id := <-doubts:
			require.Equal(t, store.ID(want), id, what)
		case <-time.After(limit):
			require.FailNow(t, what)
		}
	}
	hears("", "it begins to listen")
	for _, foreign := range []string{"", "web@2/x:1:1", "x", ":", "\n"} {
		require.NoError(t, r.rdb.Publish(t.Context(), r.store.control("web@1/x"), foreign).Err())
	}
	id := r.enter("web@1/x")
	require.NoError(t, r.store.Break(t.Context(), store.Claim{Name: r.base, ID: store.ID(id)}))
	hears(id, "Break")
	require.NoError(t, r.rdb.Publish(t.Context(), r.store.control("web@1/x"), "web@1/x:7").Err())
	hears("", "a hold of Redisson's layout")
	faults.CutPubSub()
	hears("", "the connection is back")
	stop()
	stop()
	faults.CutPubSub()
	require.NoError(t, r.store.Close())
	require.Empty(t, doubts)
}

func TestCloseLeavesNothing(t *testing.T) {
	redistest.NoGoroutineLeft(t)
	r, faults := faulty(t)
	r.enter("a")
	w := r.wait(r.claim(newID("b"), minute))
	r.store.Watch("b", func(store.ID) {})
	w.cancel()
	<-w.done
	require.NoError(t, r.store.Close())
	require.NoError(t, r.store.Close())
	_, pubsub := faults.Conns()
	require.Zero(t, pubsub)
	_, err := r.store.Look(t.Context(), store.Claim{Name: r.base})
	require.NoError(t, err, "commands still work")
}

func TestCheckServer(t *testing.T) {
	open := func(t *testing.T, rdb redis.UniversalClient, l Layout) (store.Checker, store.Claim) {
		t.Helper()
		l.Prefix = prefix
		s, err := New(rdb, Options{Layout: l, Scripts: scripts})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		a, err := s.Check(store.Claim{Name: "app:x", ID: "a:1:1", TTL: minute, Limit: 1})
		require.NoError(t, err)
		return s.(store.Checker), a
	}
	server := redistest.Start(t)
	// without is what CheckServer says to a user that lacks commands.
	without := func(t *testing.T, commands ...any) error {
		t.Helper()
		user := append([]any{"ACL", "SETUSER", "u", "reset", "on", ">u", "~*", "&*", "+@all"}, commands...)
		require.NoError(t, server.Client().Do(t.Context(), user...).Err())
		s, a := open(t, server.Client(func(o *redis.Options) { o.Username, o.Password = "u", "u" }), Layout{})
		return s.CheckServer(t.Context(), a)
	}
	for what, l := range map[string]Layout{"": {}, "Redisson": {Redisson: true}, "fenced": {Redisson: true, Fenced: true}} {
		t.Run("leaves nothing"+what, func(t *testing.T) {
			rdb := server.Client()
			s, a := open(t, rdb, l)
			require.NoError(t, s.CheckServer(t.Context(), a))
			redistest.Eventually(t, limit, func() bool { return len(redistest.Keys(t, rdb)) == 0 }, "no key is left")
		})
	}
	t.Run("asks for replicas", func(t *testing.T) {
		s, a := open(t, server.Client(), Layout{})
		a.Acks = store.Acks{Replicas: 1, Timeout: 10 * time.Millisecond}
		err := s.CheckServer(t.Context(), a)
		require.ErrorIs(t, err, store.ErrNotReplicated)
	})
	t.Run("says all that is missing", func(t *testing.T) {
		if !server.AtLeast(7, 0) {
			redistest.NotTested(t, "Redis before 7 does not say where a script has failed")
		}
		err := without(t, "-time", "-publish")
		require.ErrorContains(t, err, "draw a token")
		require.ErrorContains(t, err, "call('TIME')")
		require.ErrorContains(t, err, "tell a client")
		require.ErrorContains(t, err, "publish")
		for line := range strings.Lines(err.Error()) {
			require.True(t, strings.HasPrefix(line, "cannot "), line)
		}
		if strings.Contains(err.Error(), "can't run this command") { // later versions name the command
			require.ErrorContains(t, err, "the user needs +time: ")
		}
	})
	t.Run("a grant of which nobody hears", func(t *testing.T) {
		requireOneLine(t, without(t, "-publish"), "UNTOLD PUBLISH: ")
	})
	t.Run("says each cause once", func(t *testing.T) {
		lines := strings.Split(without(t, "-time", "-exists").Error(), "\n")
		for i, line := range lines {
			require.True(t, strings.HasPrefix(line, "cannot "), line)
			_, cause, _ := strings.Cut(line, ": ")
			for _, other := range lines[:i] {
				require.NotContains(t, other, cause)
			}
		}
	})
	t.Run("says each right once", func(t *testing.T) {
		err := without(t, "-hdel")
		requireOneLine(t, err, "(the user needs +hdel: ")
		require.NotContains(t, err.Error(), " -- ", "a comment of the script")
	})
	t.Run("a client of clusters, and a server that is none", func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
		defer rdb.Close()
		s, a := open(t, rdb, Layout{})
		requireOneLine(t, s.CheckServer(t.Context(), a), "the server is no node of a cluster: use a redis.Client (")
	})
	t.Run("a certificate that is refused", func(t *testing.T) {
		dials := 0
		rdb := redis.NewClient(&redis.Options{
			DialerRetries: 1, MaxRetries: -1, PoolSize: 1000, // else go-redis dials behind us
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				dials++
				return nil, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
			},
		})
		defer rdb.Close()
		s, a := open(t, rdb, Layout{})
		requireOneLine(t, s.CheckServer(t.Context(), a), "cannot take a lock: tls: ")
		require.Equal(t, 1, dials, "nothing else is asked for")
	})
	t.Run("a proxy without pub/sub", func(t *testing.T) {
		faults := redistest.NewFaults()
		t.Cleanup(faults.Close)
		s, a := open(t, server.Client(func(o *redis.Options) { o.Dialer = faults.Dialer(nil) }), Layout{})
		faults.On(redistest.Named("SUBSCRIBE", "SSUBSCRIBE"), redistest.CutBefore(redistest.Reset))
		err := s.CheckServer(t.Context(), a)
		requireOneLine(t, err, "cannot subscribe to")
		require.ErrorContains(t, err, "connection reset", "and not only that the time was over")
	})
	t.Run("TLS at one end only", func(t *testing.T) {
		ends, err := net.Listen("tcp", "127.0.0.1:0") // as a server with TLS ends plain connections
		require.NoError(t, err)
		defer ends.Close()
		go func() {
			for {
				conn, err := ends.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = conn.Read(make([]byte, 4096))
					_ = conn.Close()
				}()
			}
		}()
		s, a := open(t, redis.NewClient(&redis.Options{Addr: ends.Addr().String(), MaxRetries: -1}), Layout{})
		requireOneLine(t, s.CheckServer(t.Context(), a), "EOF (TLS at one end only?)")
		plain := server.Client(func(o *redis.Options) { o.TLSConfig = &tls.Config{ServerName: "x"}; o.DialTimeout = time.Minute })
		s, a = open(t, plain, Layout{})
		requireOneLine(t, s.CheckServer(t.Context(), a), "(TLS at one end only?)")
	})
	for what, c := range map[string]struct{ answer, says string }{
		"a replica":                          {"-READONLY You can't write against a read only replica.", "the server is a replica: use its master"},
		"a node of a cluster":                {"-MOVED 3999 127.0.0.1:6381", "use a redis.ClusterClient"},
		"a server that wants to know a user": {"-NOAUTH Authentication required.", "NOAUTH"},
		"a server that is loading":           {"-LOADING Redis is loading the dataset in memory", "LOADING"},
	} {
		t.Run(what, func(t *testing.T) {
			faults := redistest.NewFaults()
			t.Cleanup(faults.Close)
			s, a := open(t, server.Client(func(o *redis.Options) { o.Dialer = faults.Dialer(nil) }), Layout{})
			faults.On(redistest.Named("EVAL", "EVALSHA"), redistest.Answer(c.answer))
			requireOneLine(t, s.CheckServer(t.Context(), a), c.says)
		})
	}
	t.Run("without a server", func(t *testing.T) {
		s, a := open(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}), Layout{})
		err := s.CheckServer(t.Context(), a)
		for n := 0; n < 20 && strings.Contains(fmt.Sprint(err), "no answer"); n++ { // of a busy machine
			err = s.CheckServer(t.Context(), a)
		}
		require.ErrorIs(t, err, store.ErrUnavailable)
		requireOneLine(t, err, "connection refused")
	})
	t.Run("a server that is silent", func(t *testing.T) {
		silent := redistest.Start(t)
		s, a := open(t, silent.Client(), Layout{})
		silent.Pause()
		defer silent.Resume()
		begun := time.Now()
		requireOneLine(t, s.CheckServer(t.Context(), a), "cannot take a lock")
		require.Less(t, time.Since(begun), bound.Of(2*checkLimit))
	})
}

// yes is a store in memory where one verb does nothing, and says that it did.
type yes struct {
	*mem.Store
	verb string
}

func (y yes) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if y.verb == "renew" {
		return l, nil
	}
	return y.Store.Enter(ctx, l, count)
}

func (y yes) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if y.verb == "wait" {
		return store.Lease{Claim: a, Sent: time.Now()}, nil
	}
	return y.Store.Wait(ctx, a, progress)
}

func (y yes) Break(ctx context.Context, a store.Claim) error {
	if y.verb == "end" {
		return nil
	}
	return y.Store.Break(ctx, a)
}

func (y yes) Forget(ctx context.Context, claims []store.Claim) []error {
	if y.verb == "end" {
		return make([]error, len(claims))
	}
	return y.Store.Forget(ctx, claims)
}

func TestCheckServerLooksAtTheEffectOfEachVerb(t *testing.T) {
	s, err := New(redistest.Shared(t).Client(), Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for verb, says := range map[string]string{
		"": "", "renew": "cannot renew a lock: a look", "wait": "cannot keep a second hold out: a look", "end": "cannot clean up: a look",
	} {
		m := mem.New()
		a := newCheckClaim(store.Claim{Name: "x", Limit: 1})
		err := s.(*nativeStore).checkServer(t.Context(), yes{m, verb}, a, nil, "")
		if verb == "" {
			require.NoError(t, err)
		} else {
			requireOneLine(t, err, says)
		}
		require.NoError(t, m.Close())
	}
}

func requireOneLine(t *testing.T, err error, says string) {
	t.Helper()
	require.ErrorContains(t, err, says)
	require.NotContains(t, err.Error(), "\n")
}

func TestRedissonWait(t *testing.T) {
	start := func(r *redissonRig, field string) (got chan store.Lease, waits chan struct{}) {
		got, waits = make(chan store.Lease, 1), make(chan struct{}, 100)
		go func() {
			l, err := r.store.Wait(r.Context(), r.claim(field), func(p store.Progress) {
				if p.Queued {
					waits <- struct{}{}
				}
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				panic(err)
			}
			got <- l
		}()
		return got, waits
	}
	t.Run("is woken when Java unlocks", func(t *testing.T) {
		r := newRedissonRig(t, redistest.Shared(t).Client(), true)
		r.rdb.HSet(t.Context(), redissonName, javaField, 1)
		r.rdb.PExpire(t.Context(), redissonName, redissonTTL)
		got, waits := start(r, "u:1")
		<-waits
		r.rdb.Del(t.Context(), redissonName)
		r.rdb.Publish(t.Context(), redissonChannel+"{"+redissonName+"}", "0")
		l := <-got
		require.Equal(t, store.WakeReleased, l.Woken)
		require.EqualValues(t, 1, l.Token)
		require.False(t, l.Unsure)
		require.NoError(t, r.release("u:1"))
	})
	t.Run("is woken when Go unlocks, in turn", func(t *testing.T) {
		r := newRedissonRig(t, redistest.Shared(t).Client(), false)
		r.take("u:0")
		for i := range 5 {
			got, waits := start(r, fmt.Sprint("u:", i+1))
			<-waits
			require.NoError(t, r.release(fmt.Sprint("u:", i)))
			require.Equal(t, store.WakeReleased, (<-got).Woken)
		}
	})
	t.Run("finds a lock that was freed without a message", func(t *testing.T) {
		r := newRedissonRig(t, redistest.Shared(t).Client(), false)
		r.rdb.HSet(t.Context(), redissonName, javaField, 1)
		r.rdb.PExpire(t.Context(), redissonName, time.Second)
		got, waits := start(r, "u:1")
		<-waits
		require.Equal(t, store.WakeRecheck, (<-got).Woken)
	})
	t.Run("hears both kinds of pub/sub in a cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t)
		rdb := cluster.Client()
		s, err := New(rdb, Options{Layout: Layout{Redisson: true}, Scripts: scripts})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		r := &redissonRig{T: t, store: s.(*redissonStore)}
		for i, publish := range []string{"PUBLISH", "SPUBLISH"} {
			require.NoError(t, rdb.HSet(t.Context(), redissonName, javaField, 1).Err())
			require.NoError(t, rdb.PExpire(t.Context(), redissonName, redissonTTL).Err())
			field := fmt.Sprint("u:", i)
			got, waits := start(r, field)
			<-waits
			require.NoError(t, rdb.Del(t.Context(), redissonName).Err())
			master := cluster.MasterFor(redissonName).Client()
			require.NoError(t, master.Do(t.Context(), publish, redissonChannel+"{"+redissonName+"}", "0").Err())
			require.Equal(t, store.WakeReleased, (<-got).Woken, publish)
			require.NoError(t, r.release(field))
		}
	})
}

func TestRenewalsShareOneWait(t *testing.T) {
	r, faults := faulty(t)
	acks := store.Acks{Replicas: 1, Timeout: 20 * time.Millisecond}
	var renewals []store.Renewal
	hold := func(name string, kind store.Kind, acks store.Acks, ttl time.Duration) {
		a, err := r.store.Check(store.Claim{Name: name, ID: store.ID(newID("b")), TTL: minute, Kind: kind, Limit: 1})
		require.NoError(t, err)
		l, err := r.store.Try(t.Context(), a)
		require.NoError(t, err)
		l.Acks = acks
		renewals = append(renewals, store.Renewal{Lease: l, TTL: ttl, Count: 1})
	}
	for i := range 200 {
		hold(fmt.Sprintf("acked:%d", i), store.Mutex, acks, minute)
	}
	hold("acked:w", store.ReadWrite, acks, minute)
	hold("plain", store.Mutex, store.Acks{}, minute)
	hold("plain:w", store.ReadWrite, store.Acks{}, minute)
	hold("counted", store.Mutex, acks, 0)
	gone := renewals[0].Lease
	gone.ID = store.ID(newID("b"))
	renewals = append(renewals, store.Renewal{Lease: gone, TTL: minute, Count: 1})

	_ = r.store.Renew(t.Context(), renewals) // Redis may not know the scripts yet, and then there are more
	waits := faults.Commands("WAIT")
	errs := r.store.Renew(t.Context(), renewals)
	require.Equal(t, waits+2, faults.Commands("WAIT"), "one for mutexes, one for other kinds")
	for i, err := range errs {
		l := renewals[i].Lease
		switch {
		case l.ID == gone.ID:
			require.ErrorIs(t, err, store.ErrGone)
		case l.Acks == store.Acks{} || renewals[i].TTL == 0:
			require.NoError(t, err, l.Name)
		default:
			require.ErrorIs(t, err, store.ErrNotReplicated, l.Name)
			require.ErrorIs(t, err, store.ErrUnsure, "the server itself keeps the lock for longer")
			require.ErrorContains(t, err, "0 of 1 within 20ms")
		}
	}
	_, err := r.store.Enter(t.Context(), renewals[0].Lease, 1)
	require.ErrorIs(t, err, store.ErrNotReplicated)
	require.ErrorIs(t, err, store.ErrUnsure)

	faults.On(redistest.Named("WAIT"), redistest.Answer(":1"))
	for i, err := range r.store.Renew(t.Context(), renewals[:201]) {
		require.NoError(t, err, i)
	}
	entered, err := r.store.Enter(t.Context(), renewals[0].Lease, 1)
	require.NoError(t, err)
	require.True(t, entered.Sent.After(renewals[0].Lease.Sent))
}

// WAIT looks only at the writes of its own connection, so a renewal that finds a longer lease must
// write, too.
func TestARenewalWritesAlsoWhereTheLeaseIsLonger(t *testing.T) {
	r, _ := faulty(t)
	writes := func() string {
		for line := range strings.Lines(r.rdb.Info(t.Context(), "persistence").Val()) {
			if n, is := strings.CutPrefix(line, "rdb_changes_since_last_save:"); is {
				return n
			}
		}
		return ""
	}
	for kind, name := range map[store.Kind]string{store.Mutex: "m", store.ReadWrite: "w", store.Semaphore: "s"} {
		a, err := r.store.Check(store.Claim{Name: name, ID: store.ID(newID("b")), TTL: time.Hour, Kind: kind, Limit: 1})
		require.NoError(t, err)
		l, err := r.store.Try(t.Context(), a)
		require.NoError(t, err)
		before := writes()
		require.NoError(t, r.store.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
		require.NotEqual(t, before, writes(), name)
		state, err := r.store.Look(t.Context(), a)
		require.NoError(t, err)
		require.Greater(t, state.TTL, minute)
	}
}
