package subs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestAListenerIsNotifiedWhenItsChannelIsConfirmedAgain(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	a, b := r.listen("a", "1"), r.listen("b", "1")
	r.faults.CutPubSub()
	r.confirmed(a)
	r.confirmed(b)
	r.eventually(func() bool { return len(r.backs()) == 1 }, "the outage is over")
	require.Len(t, r.losses(), 1)
	r.hears("a", a)
	r.hears("b", b)
	require.Equal(t, 2, r.faults.Stats().Dials)
}

func TestAServerThatWasDownIsSubscribedAgain(t *testing.T) {
	server := redistest.Start(t)
	r := newRig(t, server)
	l := r.listen("a", "1")
	server.Kill()
	r.eventually(func() bool { return len(r.losses()) >= 3 }, "it tries")
	require.Nil(t, r.Listening(r.topic("a"), "1"))
	server.Restart()
	r.confirmed(l)
	r.hears("a", l)
}

func TestAConnectionThatIsRefusedForGoodIsAnErrorForAll(t *testing.T) {
	server := redistest.Start(t)
	acl := func(rules ...any) {
		t.Helper()
		args := append([]any{"ACL", "SETUSER", "app"}, rules...)
		require.NoError(t, server.Client().Do(t.Context(), args...).Err())
	}
	acl("on", ">old", "~*", "&*", "+@all")
	r := newRig(t, server, func(o *redis.Options) { o.Username, o.Password = "app", "old" })
	a, b := r.listen("a", "1"), r.listen("b", "1")
	acl("resetpass", ">new") // connections that are there go on
	r.hears("a", a)
	r.faults.CutPubSub()
	require.ErrorContains(t, r.next(a).Err, "WRONGPASS")
	require.ErrorContains(t, r.next(b).Err, "WRONGPASS")
	_, err := r.try(r.topic("c"), "1")
	require.ErrorContains(t, err, "WRONGPASS")
	acl(">old")
	a.Close()
	r.hears("a", r.listen("a", "1"))
}

func TestAChannelThatIsRefusedIsAnErrorForItsListenersOnly(t *testing.T) {
	server := redistest.Start(t)
	acl := func(rules ...any) {
		t.Helper()
		args := append([]any{"ACL", "SETUSER", "app"}, rules...)
		require.NoError(t, server.Client().Do(t.Context(), args...).Err())
	}
	acl("on", ">app", "~*", "+@all", "allchannels")
	r := newRig(t, server, func(o *redis.Options) { o.Username, o.Password = "app", "app" })
	channels := []any{"resetchannels"}
	var kept []*Listener
	for i := range 150 {
		name := fmt.Sprint("kept", i)
		kept = append(kept, r.listen(name, "1"))
		channels = append(channels, "&"+r.topic(name).Channel)
	}
	gone := []*Listener{r.listen("gone", "1"), r.listen("gone", "2")}
	acl(channels...) // Redis ends the connection, too
	for _, l := range gone {
		require.ErrorContains(t, r.next(l).Err, "NOPERM")
		l.Close()
	}
	for _, l := range kept {
		r.confirmed(l)
	}
	_, err := r.try(r.topic("gone"), "1")
	require.ErrorContains(t, err, "NOPERM")
	r.hears("kept0", kept[0])
	require.Len(t, r.losses(), 1, "the connection is kept")
	r.faults.Reset()
	r.faults.CutPubSub()
	for _, l := range kept {
		r.confirmed(l)
	}
	require.Equal(t, 2, r.faults.Commands("SUBSCRIBE"), "those that are confirmed are asked for together again")
}

func TestAServerWithoutShardedPubSubIsAskedForPlain(t *testing.T) {
	r := newRig(t, redistest.Start(t, "--rename-command", "SSUBSCRIBE", ""))
	r.sharded.Store(true)
	l := r.listen("a", "1")
	require.False(t, r.sharded.Load())
	r.hears("a", l)
	r.hears("b", r.listen("b", "1"))
	require.Equal(t, 1, r.faults.Commands("SSUBSCRIBE"))
	require.Equal(t, 2, r.faults.Commands("SUBSCRIBE"))
	require.Empty(t, r.losses())
	refuse := r.faults.On(redistest.Named("SUBSCRIBE"), redistest.Answer("-ERR unknown command 'subscribe'"))
	_, err := r.try(r.topic("c"), "1")
	require.ErrorContains(t, err, "unknown command")
	require.Equal(t, 1, refuse.Hits())
}

// A server that is about to go says MOVING, and go-redis hands its connections over by itself.
func TestAConnectionThatGoRedisHandsOverIsMadeAnew(t *testing.T) {
	server := redistest.Shared(t)
	r := newRig(t, server, func(o *redis.Options) {
		o.Protocol = 3
		o.MaintNotificationsConfig = nil // go-redis's own defaults
	})
	r.faults.On(redistest.Named("CLIENT").And(redistest.WithArg("maint_notifications")), redistest.Answer("+OK"))
	l := r.listen("a", "1")
	addr := server.Addr()
	push := fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:1\r\n:30\r\n$%d\r\n%s\r\n", len(addr), addr)
	r.faults.Once(redistest.Named("PING"), redistest.Answer(push+"+PONG\r\n"))
	r.confirmed(l)
	require.Len(t, r.losses(), 1)
	r.hears("a", l)
}

// go-redis would connect anew to send, and subscribe to all channels at once: the answer to that, here
// an error, is no answer to the command of the link.
func TestACommandOnALostConnectionMakesNoOther(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	busy, goOn := make(chan struct{}), make(chan struct{})
	r.Hub.o.Unheard = func(string, string) { close(busy); <-goOn }
	a, c := r.listen("a", "1"), r.listen("c", "1")
	r.publish("a", "nobody")
	<-busy // the reader is, and so does not see the end of the connection
	several := func(args []string) bool { return len(args) > 2 }
	r.faults.Once(redistest.Named("SUBSCRIBE").And(several), redistest.Answer("-CROSSSLOT Keys in request don't hash to the same slot"))
	r.faults.CutPubSub()
	b := make(chan error, 1)
	go func() {
		_, err := r.try(r.topic("b"), "1")
		b <- err
	}()
	pause(200 * time.Millisecond) // the command is sent, in vain
	close(goOn)
	require.NoError(t, <-b)
	for _, l := range []*Listener{a, c} {
		r.confirmed(l)
	}
	require.Len(t, r.losses(), 1)
}

// As with a go-redis that looks at the context of Receive where it has a connection already: here
// Receive makes one.
func TestAReaderCopesWithAStricterGoRedis(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	ps := r.rdb.Subscribe(t.Context())
	l := &link{hub: r.Hub, asked: []*command{newPing(time.Now())}}
	done := make(chan error, 1)
	go func() { done <- l.read(t.Context(), ps) }()
	r.eventually(func() bool { return r.faults.Stats().Dials == 1 }, "it connects")
	require.True(t, l.strict.Load(), "commands get such a context, too")
	require.NoError(t, ps.Ping(t.Context()))
	r.eventually(func() bool { r.Hub.mu.Lock(); defer r.Hub.mu.Unlock(); return len(l.asked) == 0 }, "it reads the answer")
	require.NoError(t, ps.Close())
	require.Error(t, <-done)
}

// As with a go-redis that looks at the context of a command.
func TestCommandsCopeWithAStricterGoRedis(t *testing.T) {
	subscribe := verbs["subscribe"]
	verbs["subscribe"] = func(ps *redis.PubSub, ctx context.Context, channels ...string) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return subscribe(ps, ctx, channels...)
	}
	t.Cleanup(func() { verbs["subscribe"] = subscribe })
	r := newRig(t, redistest.Shared(t))
	t.Cleanup(r.close) // before the verb is as it was
	listens := make(chan error, 1)
	go func() {
		_, err := r.try(r.topic("a"), "1")
		listens <- err
	}()
	r.eventually(func() bool { return len(r.losses()) > 0 }, "the first connection is given up")
	r.Hub.mu.Lock()
	for _, l := range r.links {
		l.strict.Store(true) // as its reader would say
	}
	r.Hub.mu.Unlock()
	require.NoError(t, <-listens)
	require.ErrorIs(t, r.losses()[0].err, errReplaced)
}

func TestCloseDoesNotWaitForAHostThatHasGone(t *testing.T) {
	dialled := make(chan struct{}, 10)
	var dead atomic.Bool
	r := newRig(t, redistest.Shared(t), func(o *redis.Options) {
		o.DialTimeout = time.Minute
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dead.Load() {
				dialled <- struct{}{}
			}
			return dial(ctx, network, addr)
		}
	})
	l := r.listen("a", "1")
	r.faults.Partition()
	dead.Store(true)
	r.faults.CutPubSub()
	<-dialled
	begin := time.Now()
	r.close()
	require.Less(t, time.Since(begin), bound.Of(30*time.Second))
	require.Equal(t, Note{Err: ErrClosed}, r.next(l))
	r.faults.Heal()
	r.eventually(func() bool { return r.subscribers("a") == 0 }, "the server has noticed")
}

func TestCloseAtAnyInstantLeavesNothing(t *testing.T) {
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := newRig(t, redistest.Shared(t))
			const listeners = 200
			done := make(chan error, listeners)
			for j := range listeners {
				go func() {
					l, err := r.try(r.topic(fmt.Sprint(j%20)), fmt.Sprint(j))
					for err == nil {
						err = (<-l.C()).Err
					}
					if l != nil {
						l.Close()
					}
					done <- err
				}()
			}
			if i%2 == 0 {
				time.AfterFunc(rand.N(10*time.Millisecond), r.faults.CutPubSub)
			}
			pause(rand.N(20 * time.Millisecond))
			r.close()
			for range listeners {
				require.Equal(t, ErrClosed, <-done)
			}
			r.eventually(func() bool { conns, _ := r.faults.Conns(); return conns == 0 }, "all connections end")
		})
	}
}

// exchange is a store that announces every change. Whoever listens must not sleep through one.
type exchange struct {
	r      *rig
	values []atomic.Int64
}

// follow waits for the changes of one value, up to last. It listens anew now and then.
func (x *exchange) follow(i int, last int64) error {
	name, id := fmt.Sprint(i), fmt.Sprint("id", i)
	for {
		l, err := x.r.try(x.r.topic(name), id)
		if err != nil {
			return err
		}
		for range 1 + rand.IntN(20) {
			if x.values[i].Load() == last {
				l.Close()
				return nil
			}
			if rand.IntN(50) == 0 {
				l.Suspect()
			}
			select {
			case n := <-l.C():
				if n.Err != nil {
					return n.Err
				}
			case <-time.After(soon):
				return fmt.Errorf("%s sleeps at %d of %d", name, x.values[i].Load(), last)
			}
		}
		l.Close()
	}
}

func TestNoChangeIsMissedWhileConnectionsBreak(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	const values, changes = 20, 300
	x := &exchange{r: r, values: make([]atomic.Int64, values)}
	done := make(chan error, values)
	for i := range values {
		go func() { done <- x.follow(i, changes) }()
	}
	stop := make(chan struct{})
	var breaker sync.WaitGroup
	breaker.Go(func() {
		for {
			select {
			case <-time.After(rand.N(100 * time.Millisecond)):
				r.faults.CutPubSub()
			case <-stop:
				return
			}
		}
	})
	for range changes {
		for i := range values {
			x.values[i].Add(1)
			r.publish(fmt.Sprint(i), fmt.Sprint("id", i))
		}
		pause(rand.N(10 * time.Millisecond))
	}
	for range values {
		require.NoError(t, <-done)
	}
	close(stop)
	breaker.Wait()
	require.NotEmpty(t, r.losses())
}

// nodes is a cluster of two servers by the names of a and b. All keys are on one of them.
func nodes(t *testing.T) (r *rig, a, b *redis.Client, moveTo func(name string, rdb *redis.Client)) {
	t.Helper()
	r = newRig(t, redistest.Shared(t))
	a, b = r.rdb, redistest.Start(t).Client()
	moveTo = func(name string, rdb *redis.Client) {
		r.place(func(context.Context, string, bool) (string, redis.UniversalClient, error) { return name, rdb, nil })
	}
	moveTo("a", a)
	return r, a, b, moveTo
}

func TestALostConnectionIsMadeWhereTheKeysAreThen(t *testing.T) {
	r, _, b, moveTo := nodes(t)
	first, second := r.listen("x", "1"), r.listen("y", "1")
	moveTo("b", b)
	r.hears("x", first)
	third := r.listen("z", "1") // asked for at b
	first.Suspect()
	r.confirmed(first)
	r.confirmed(second)
	r.eventually(func() bool { return slices.Equal(r.backs(), []string{"b"}) }, "back on b, for all of them")
	for name, l := range map[string]*Listener{"x": first, "y": second, "z": third} {
		require.NoError(t, b.Publish(t.Context(), r.topic(name).Channel, "1").Err())
		require.Equal(t, Note{Message: true, Payload: l.id}, r.next(l))
	}
	r.eventually(func() bool { _, pubsub := r.faults.Conns(); return pubsub == 0 }, "nothing is left on a")
}

func TestAClosedClientOfANodeMeansThatTheNodeHasLeft(t *testing.T) {
	r, a, b, moveTo := nodes(t)
	l := r.listen("x", "1")
	require.NoError(t, a.Close())
	r.eventually(func() bool { return len(r.losses()) >= 3 }, "it tries, and looks for the node")
	require.Empty(t, l.C())
	moveTo("b", b)
	r.confirmed(l)
}

func TestAChannelThatTwoNodesRefuseInTurnCausesNoFlood(t *testing.T) {
	r, a, b, moveTo := nodes(t)
	l := r.listen("x", "1")
	var looks atomic.Int64
	r.place(func(context.Context, string, bool) (string, redis.UniversalClient, error) {
		if looks.Add(1)%2 == 0 {
			return "a", a, nil
		}
		return "b", b, nil
	})
	require.NoError(t, b.Close())
	r.faults.Refuse()
	r.faults.CutPubSub()
	pause(time.Second)
	require.Less(t, len(r.losses()), 50, "its pauses grow wherever it is asked for")
	moveTo("a", a)
	r.faults.Heal()
	r.confirmed(l)
}

func TestANodeThatComesBackHasANewClient(t *testing.T) {
	r, a, b, moveTo := nodes(t)
	l := r.listen("x", "1")
	moveTo("a", b)
	require.NoError(t, a.Close())
	r.confirmed(l)
}

func TestWithoutAMapOfTheClusterSubscriptionsStay(t *testing.T) {
	r, a, _, moveTo := nodes(t)
	l := r.listen("x", "1")
	r.place(func(ctx context.Context, _ string, _ bool) (string, redis.UniversalClient, error) {
		return "", nil, context.DeadlineExceeded
	})
	r.faults.CutPubSub()
	r.confirmed(l)
	moveTo("a", a)
	r.hears("x", l)
}

// TestForeignCodeThatDoesNotReturnIsAFailedConnection has a dialer, and a map of the cluster, that
// panic, or end the goroutine, for a while.
func TestForeignCodeThatDoesNotReturnIsAFailedConnection(t *testing.T) {
	for name, act := range map[string]func(){
		"panics":             func() { panic("no dialer today") },
		"ends its goroutine": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			var foul atomic.Bool
			r := newRig(t, redistest.Shared(t), func(o *redis.Options) {
				dial := o.Dialer
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if foul.Load() {
						act()
					}
					return dial(ctx, network, addr)
				}
			})
			l := r.listen("a", "1")
			r.place(func(context.Context, string, bool) (string, redis.UniversalClient, error) {
				if foul.Load() {
					act()
				}
				return "", r.rdb, nil
			})
			for range 2 {
				before := len(r.losses())
				foul.Store(true)
				r.faults.CutPubSub()
				r.eventually(func() bool { return len(r.losses()) >= before+3 }, "each attempt is reported")
				require.ErrorIs(t, r.losses()[before+2].err, errAborted)
				foul.Store(false)
				r.confirmed(l)
				r.hears("a", l)
			}
			require.Less(t, len(r.losses()), 1000, "no hot loop")
		})
	}
}
