package soak

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/lab/soak/history"
)

// The worlds of one Redis server.
var (
	onRedis = setting{begin: startRedis, ttl: time.Second, patience: severalTries, serves: kindNames, mode: history.Mode{Passing: true}}

	// onACluster is a cluster of one node, where pub/sub is sharded.
	onACluster = setting{begin: startCluster, ttl: time.Second, patience: severalTries, serves: kindNames, mode: history.Mode{Passing: true}}

	// onSentinel is a master and a replica, which may lag. Sentinels promote it when the master dies.
	onSentinel = setting{begin: startSentinel, ttl: time.Second, patience: severalTries, serves: kindNames, mode: history.Mode{Passing: true}}

	// In Redisson's layout Redis does not lose the counter of tokens.
	inRedissonsLayout = setting{begin: startRedis, ttl: time.Second, patience: severalTries, mode: history.Mode{Redisson: true}}
)

// redisWorld is a server of Redis, or its likeness in fake time.
type redisWorld struct {
	*soak
	plain   *redis.Client     // without faults, and no client of a cluster
	server  *redistest.Server // nil in fake time
	mini    *mini             // nil in real time
	cluster bool
	sentry  *redistest.Sentinel // nil: there are no sentinels
	held    []*redistest.Rule   // commands on their way
}

func startRedis(s *soak) world {
	// The server never saves by itself. A restart reads saved data.
	w := &redisWorld{soak: s, server: redistest.Start(s.t, "--save", "86400 1000000")}
	w.plain = w.server.Client(func(o *redis.Options) { o.ReadTimeout = nothingTwice })
	return w
}

func startCluster(s *soak) world {
	w := &redisWorld{soak: s, cluster: true, server: redistest.Start(s.t, "--save", "86400 1000000",
		"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")}
	w.plain = w.server.Client(func(o *redis.Options) { o.ReadTimeout = nothingTwice })
	require.NoError(s.t, w.plain.ClusterAddSlotsRange(context.Background(), 0, 16383).Err())
	redistest.Eventually(s.t, 10*time.Second, func() bool {
		return strings.Contains(w.plain.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
	}, "the cluster is up, which it is after two seconds")
	return w
}

func startSentinel(s *soak) world {
	w := &redisWorld{soak: s, sentry: redistest.StartSentinel(s.t)}
	w.plain = w.sentry.Client()
	return w
}

// redisWay is the connections of one peer.
type redisWay struct {
	*redistest.Faults
	world    *redisWorld
	rdb      redis.UniversalClient
	over     func()        // closes the store, if it is not the client's own
	up, down time.Duration // to the server and back, without trouble
}

func (y *redisWay) heal() { y.Heal() }
func (y *redisWay) near() { y.DelayOneWay(near, near) }

func (y *redisWay) last() {
	for _, rule := range y.world.held {
		rule.Remove()
		rule.LetGo()
	}
	y.Heal()
	if y.world.mini != nil {
		y.Cut() // a silent connection may last longer than a lease
	}
}

func (y *redisWay) end() {
	y.over()
	_ = y.rdb.Close()
	y.Close()
}

func (w *redisWorld) join(patience time.Duration) *peer {
	w.t.Helper()
	y := &redisWay{world: w, Faults: redistest.NewFaults(), over: func() {}}
	o := &redis.UniversalOptions{
		IsClusterMode: w.cluster,
		ReadTimeout:   patience,
		WriteTimeout:  patience,
		DialTimeout:   max(patience, 500*time.Millisecond),
		DialerRetries: 1,
	}
	switch {
	case w.mini != nil:
		w.mini.options(o)
		o.Dialer = y.Dialer(w.mini.dial)
		y.On(w.mini.noHotLoop, redistest.Action{})
		y.up, y.down = distance(w.another(), patience)
		y.DelayOneWay(y.up, y.down)
	case w.sentry != nil:
		o.Addrs, o.MasterName, o.Dialer = w.sentry.Addrs(), w.sentry.MasterName(), y.Dialer(nil)
	default:
		o.Addrs, o.Dialer = []string{w.server.Addr()}, y.Dialer(nil)
	}
	y.rdb = redis.NewUniversalClient(o)
	var layout []relock.Option
	if w.mode.Redisson {
		layout = []relock.Option{relock.WithRedissonFencing()}
	}
	if w.defect != nil {
		over, err := relock.RedisStore(y.rdb, layout...)
		require.NoError(w.t, err)
		y.over = func() { _ = over.Close() }
		return &peer{w.open(over), y}
	}
	c, err := relock.New(y.rdb, append(layout, relock.WithTTL(w.ttl), w.hooks())...)
	require.NoError(w.t, err)
	return &peer{c, y}
}

func (w *redisWorld) settle() { require.NoError(w.t, w.plain.Ping(context.Background()).Err()) }

// left leaves out tokens, and used tickets, which stay until they expire.
func (w *redisWorld) left() []string {
	left := slices.DeleteFunc(redistest.Keys(w.t, w.plain), func(key string) bool {
		return strings.HasSuffix(key, ":token") || strings.HasSuffix(key, ":once") || strings.Contains(key, ":loans:") || strings.HasPrefix(key, "redisson_lock_token:")
	})
	for _, name := range redistest.Subscriptions(w.t, w.plain) {
		left = append(left, channel+name)
	}
	return left
}

// channel marks a subscription among what is left.
const channel = "channel "

// baseKey is the key of a lock.
func (w *redisWorld) baseKey(name string) string {
	switch {
	case w.mode.Redisson:
		return name
	case strings.Contains(name, "{"):
		return "relock:" + name
	default:
		return "relock:{" + name + "}"
	}
}

func (w *redisWorld) troubles() []troubles {
	return []troubles{
		{30 * time.Millisecond, w.onCommands},
		{150 * time.Millisecond, w.onNetworks},
		{400 * time.Millisecond, w.atTheServer},
	}
}

// onCommands is trouble with one command of one client.
func (w *redisWorld) onCommands(random *rand.Rand) []fault {
	scripts := redistest.Named("EVALSHA", "EVAL")
	once := func(action redistest.Action) *redistest.Rule {
		return w.anyone(random).way.(*redisWay).Once(scripts, action)
	}
	how := func() redistest.Break {
		return []redistest.Break{redistest.EOF, redistest.Reset, redistest.Silence}[random.IntN(3)]
	}
	return []fault{
		{"reply lost", 4, func() { once(redistest.DropReply(how())) }},
		{"cut before a script", 2, func() { once(redistest.CutBefore(how())) }},
		{"script sent twice", 2, func() { once(redistest.Duplicate(2, redistest.First)) }},
		{"script runs late", 6, func() { w.letGo(once(redistest.Hold()), upTo(random, 600*time.Millisecond)) }},
		{"script runs very late", 1, func() { w.held = append(w.held, once(redistest.Hold())) }},
		{"very late script let go", 1, func() {
			if len(w.held) > 0 {
				i := random.IntN(len(w.held))
				w.held[i].LetGo()
				w.held = append(w.held[:i], w.held[i+1:]...)
			}
		}},
	}
}

// letGo lets a command run after a while, perhaps after the end of the round.
func (w *redisWorld) letGo(rule *redistest.Rule, after time.Duration) {
	w.ending.Go(func() {
		<-time.After(after)
		rule.Remove()
		rule.LetGo()
	})
}

// onNetworks is trouble with the connections of one client.
func (w *redisWorld) onNetworks(random *rand.Rand) []fault {
	anyone := func() *redisWay { return w.anyone(random).way.(*redisWay) }
	return []fault{
		{"all connections cut", 3, func() { anyone().Cut() }},
		{"pub/sub cut", 3, func() { anyone().CutPubSub() }},
		{"pub/sub silent", 1, func() { anyone().StallPubSub() }},
		{"pub/sub late", 5, func() {
			p := anyone()
			p.StallPubSub()
			w.pause(upTo(random, 3*w.ttl/2))
			p.Heal()
		}},
		{"partition", 2, func() {
			p := anyone()
			p.Partition()
			w.pause(upTo(random, 3*w.ttl/2))
			p.Heal()
		}},
		{"connection refused", 1, func() {
			p := anyone()
			p.Refuse()
			p.Cut()
			w.pause(upTo(random, w.ttl/2))
			p.Heal()
		}},
		{"slow network", 2, func() {
			p := anyone()
			p.Delay(upTo(random, 50*time.Millisecond))
			w.pause(upTo(random, 200*time.Millisecond))
			p.DelayOneWay(p.up, p.down)
		}},
	}
}

// atTheServer is trouble for all clients.
func (w *redisWorld) atTheServer(random *rand.Rand) []fault {
	ctx := context.Background()
	anyLock := func() string { return w.anyName(random) }
	faults := append(w.anywhere(random), []fault{
		{"scripts flushed", 2, func() { _ = w.plain.ScriptFlush(ctx).Err() }},
		{"lock deleted", 1, func() {
			name := anyLock()
			w.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error { return w.plain.Del(ctx, w.baseKey(name)).Err() })
		}},
	}...)
	if w.sentry != nil {
		return append(faults, fault{"master killed", 1, w.failOver})
	}
	if w.mini != nil {
		faults = append(faults, fault{"server stopped", 1, func() { w.stopWorld(random) }})
	} else {
		faults = append(faults, fault{"connections killed", 4, func() {
			kind := []string{"normal", "pubsub"}[random.IntN(2)]
			_ = w.plain.ClientKillByFilter(ctx, "TYPE", kind).Err()
		}}, fault{"server stopped", 1, func() {
			w.server.Pause()
			w.pause(upTo(random, 2*w.ttl))
			w.server.Resume()
		}})
	}
	if w.mode.Redisson { // Redisson needs the counter of tokens, and has no queue
		return faults
	}
	if w.mini != nil {
		saved := "{}"
		faults = append(faults,
			fault{"data saved", 2, func() { saved, _ = w.plain.Eval(ctx, saveScript, nil).Text() }},
			fault{"older data is back", 1, func() { w.bringBack(saved) }})
	} else {
		faults = append(faults,
			fault{"data saved", 2, func() { _ = w.plain.Save(ctx).Err() }},
			// The server starts with the data of the last save, like a lagging replica that is
			// promoted.
			fault{"server killed", 1, func() {
				w.gone(history.Op{Kind: history.Wipe, Old: true}, w.names(), func() error { w.server.Kill(); return nil })
				w.pause(upTo(random, w.ttl/4))
				w.server.Restart()
			}})
	}
	return append(faults, []fault{
		{"data flushed", 1, func() {
			w.gone(history.Op{Kind: history.Wipe}, w.names(), func() error { return w.plain.FlushAll(ctx).Err() })
		}},
		{"token deleted", 1, func() {
			name := anyLock()
			w.gone(history.Op{Kind: history.Forget}, []string{name}, func() error { return w.plain.Del(ctx, w.baseKey(name)+":token").Err() })
		}},
		{"queue deleted", 1, func() {
			base := w.baseKey(anyLock())
			_ = w.plain.Del(ctx, base+":queue", base+":rw:queue", base+":permits:queue").Err()
		}},
	}...)
}

// failOver kills the master. The replica may have missed the last commands.
func (w *redisWorld) failOver() {
	w.gone(history.Op{Kind: history.Wipe, Old: true}, w.names(), func() error { w.sentry.KillMaster(); return nil })
	w.sentry.Replica().Restart()
	w.sentry.WaitReplica()
}
