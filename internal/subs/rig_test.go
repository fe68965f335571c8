package subs

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// soon bounds every wait for what should happen at once.
const soon = 10 * time.Second

// rig is a hub on a server, with faults on its connections.
type rig struct {
	*Hub
	t       testing.TB
	rdb     *redis.Client // of the hub
	plain   *redis.Client // without faults
	faults  *redistest.Faults
	group   group.Group
	life    context.Context
	end     context.CancelFunc
	close   func()
	sharded atomic.Bool

	mu      sync.Mutex
	node    nodeFunc
	lost    []loss
	back    []string
	unheard []string // channels and ids // nodes of calls of Reconnected
}

type loss struct {
	node    string
	attempt int
	err     error
}

type nodeFunc func(ctx context.Context, key string, anew bool) (string, redis.UniversalClient, error)

// newRig makes a rig on a server of redistest.
func newRig(t testing.TB, server *redistest.Server, mod ...func(*redis.Options)) *rig {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	r := &rig{t: t, plain: server.Client(), faults: redistest.NewFaults()}
	t.Cleanup(r.faults.Close)
	r.rdb = server.Client(func(o *redis.Options) {
		o.Dialer = r.faults.Dialer(nil)
		for _, f := range mod {
			f(o)
		}
	})
	r.start()
	r.place(func(context.Context, string, bool) (string, redis.UniversalClient, error) { return "", r.rdb, nil })
	return r
}

// fake runs a test on a rig with a server and a clock of its own, in a testing/synctest bubble.
// Time stands still while anything can run.
func fake(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		r := &rig{t: t, faults: redistest.NewFaults()}
		client := func(dial redistest.DialFunc) *redis.Client {
			return redis.NewClient(&redis.Options{
				Addr:   "127.0.0.1:6379", // no name, which go-redis would look up; the dialer ignores it
				Dialer: dial, DisableIdentity: true, PoolSize: 100,
				// go-redis asks for them with a mutex held, where time does not pass for others.
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
		}
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return server.Dial()
		}
		r.plain, r.rdb = client(dial), client(r.faults.Dialer(dial))
		t.Cleanup(func() {
			_, _ = r.plain.Close(), r.rdb.Close()
			r.faults.Close()
			server.Close()
			pass(time.Minute) // what go-redis has running ends
		})
		r.place(func(context.Context, string, bool) (string, redis.UniversalClient, error) { return "", r.rdb, nil })
		r.start()
		test(t, r)
	})
}

// pass lets fake time pass, and then lets everything happen that is due.
func pass(d time.Duration) {
	time.Sleep(d) // fake time
	synctest.Wait()
}

// place says where keys are from now on.
func (r *rig) place(node nodeFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = node
}

// start makes the hub.
func (r *rig) start() {
	r.life, r.end = context.WithCancel(context.Background())
	r.Hub = New(Options{
		Node: func(ctx context.Context, key string, anew bool) (string, redis.UniversalClient, error) {
			r.mu.Lock()
			node := r.node
			r.mu.Unlock()
			return node(ctx, key, anew)
		},
		Sharded: r.sharded.Load, NotSharded: func() { r.sharded.Store(false) },
		Group: &r.group, Life: r.life,
		Lost: func(node string, attempt int, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.lost = append(r.lost, loss{node, attempt, err})
		},
		Unheard: func(channel, id string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.unheard = append(r.unheard, channel+" "+id)
		},
		Reconnected: func(node string, _ time.Duration) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.back = append(r.back, node)
		},
	})
	r.close = sync.OnceFunc(func() {
		r.end()
		r.group.Close()
		r.group.Wait()
		require.Empty(r.t, r.subs)
		require.Empty(r.t, r.links)
	})
	r.t.Cleanup(r.close)
}

func (r *rig) losses() []loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]loss{}, r.lost...)
}

func (r *rig) backs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.back...)
}

// topic is a channel that belongs to this test.
func (r *rig) topic(name string) Topic {
	return Topic{Channel: r.t.Name() + ":" + name}
}

// listen listens on the channel of that name.
func (r *rig) listen(name, id string) *Listener {
	r.t.Helper()
	l, err := r.try(r.topic(name), id)
	require.NoError(r.t, err)
	return l
}

func (r *rig) try(t Topic, id string) (*Listener, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return r.Listen(ctx, t, id)
}

// publish sends a message past the faults.
func (r *rig) publish(name, id string) {
	r.t.Helper()
	require.NoError(r.t, r.plain.Publish(context.Background(), r.topic(name).Channel, id).Err())
}

// next waits for a note.
func (r *rig) next(l *Listener) Note {
	r.t.Helper()
	select {
	case n := <-l.C():
		return n
	case <-time.After(soon):
		require.Fail(r.t, "no note comes")
		return Note{}
	}
}

// confirmed waits for a zero note.
func (r *rig) confirmed(l *Listener) {
	r.t.Helper()
	require.Equal(r.t, Note{}, r.next(l))
}

// hears sends a message to a listener and waits for it.
func (r *rig) hears(name string, l *Listener) {
	r.t.Helper()
	r.publish(name, l.id)
	require.Equal(r.t, Note{Message: true, Payload: l.id}, r.next(l))
}

func (r *rig) eventually(cond func() bool, msg string, args ...any) {
	r.t.Helper()
	redistest.Eventually(r.t, soon, cond, msg, args...)
}

// subscribers is how many connections the server has for a channel.
func (r *rig) subscribers(name string) int {
	r.t.Helper()
	channel := r.topic(name).Channel
	counts, err := r.plain.PubSubNumSub(context.Background(), channel).Result()
	require.NoError(r.t, err)
	return int(counts[channel])
}

// pause lets real time pass.
func pause(d time.Duration) { <-time.After(d) }
