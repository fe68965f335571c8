package main

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
)

// Locks over three independent servers. The unit is redsync over the same servers.

type quorumSizes struct {
	pair     pairSizes
	handover handoverSizes
}

const (
	failFast  = "fail fast"
	oneDead   = "one dead"
	oneSilent = "one silent"

	threeServers = "three servers"
)

// The members of quorums by number. Three are alive. A quorum with a fault has a dead or a silent
// member in front, where waiters queue.
const (
	deadMember   = 3
	silentMember = 4
)

var (
	allAlive    = []int{0, 1, 2}
	deadFirst   = []int{deadMember, 0, 1}
	silentFirst = []int{silentMember, 0, 1}
)

// onMembers returns the workload on members of quorums, which it starts once. Member 0 is the
// server that figures are read from.
func (b *bench) onMembers() *bench {
	if b.quorum == nil {
		b.quorum = newEnv(b.t)
		for i := 1; i <= silentMember; i++ {
			s := redistest.Start(b.t)
			b.quorum.others = append(b.quorum.others, s.Addr())
			switch i {
			case deadMember:
				s.Kill()
			case silentMember:
				s.Pause()
			}
		}
	}
	on := *b
	on.env = b.quorum
	return &on
}

// overMembers is a process with a go-redis client for each member of its quorum.
type overMembers struct {
	process

	closers []io.Closer
}

func (p overMembers) close() {
	p.process.close()
	for _, c := range p.closers {
		_ = c.Close()
	}
}

// connectMembers opens a client for each of the members.
func connectMembers(s setup, members []int) (clients []*redis.Client, closers []io.Closer) {
	addrs := append([]string{s.addr}, s.others...)
	for _, i := range members {
		rdb := redis.NewClient(&redis.Options{Addr: addrs[i]})
		clients, closers = append(clients, rdb), append(closers, rdb)
	}
	return clients, closers
}

// relockOver is relock over a quorum.
func relockOver(setting string, members []int) *system {
	return &system{name: "relock", setting: setting, queued: relockQueued, open: func(s setup) (process, error) {
		clients, closers := connectMembers(s, members)
		stores := make([]store.Store, len(clients))
		var err error
		for i, rdb := range clients {
			if stores[i], err = relock.RedisStore(rdb); err != nil {
				return nil, err
			}
		}
		q, err := quorum.New(stores...)
		if err != nil {
			return nil, err
		}
		client, err := relock.Open(q)
		if err != nil {
			return nil, err
		}
		return overMembers{&relockProcess{client: client}, append([]io.Closer{q}, closers...)}, nil
	}}
}

// freshRedsync makes a Mutex for each Lock: with WithFailFast the last Unlock may still read its
// own.
type freshRedsync struct{ *redsyncProcess }

func (p freshRedsync) handle(lock string) handle {
	return &freshHandle{process: p.redsyncProcess, name: lock}
}

type freshHandle struct {
	redsyncHandle

	process *redsyncProcess
	name    string
}

func (h *freshHandle) lock(ctx context.Context) (context.Context, error) {
	h.m = h.process.sync.NewMutex(h.name, h.process.options...)
	return h.redsyncHandle.lock(ctx)
}

// redsyncOver is redsync with a pool of each member.
func redsyncOver(setting string, members []int, options ...redsync.Option) *system {
	return &system{name: "redsync", setting: setting, also: []string{"set"}, open: func(s setup) (process, error) {
		clients, closers := connectMembers(s, members)
		var pools []redsyncredis.Pool
		for _, rdb := range clients {
			pools = append(pools, redsyncpool.NewPool(rdb))
		}
		return overMembers{freshRedsync{&redsyncProcess{sync: redsync.New(pools...), options: options}}, closers}, nil
	}}
}

// rueidislockOver is rueidislock with one of its three keys on each member. rueidislock takes one
// server or one cluster, and has no option for independent servers. So a client of three servers
// goes in by ClientBuilder.
func rueidislockOver(setting string, members []int) *system {
	return &system{name: "rueidislock", setting: setting, open: func(s setup) (process, error) {
		addrs := append([]string{s.addr}, s.others...)
		return openRueidislock(rueidislock.LockerOption{ClientBuilder: func(o rueidis.ClientOption) (rueidis.Client, error) {
			var c keyClient
			for _, i := range members {
				o.InitAddress = []string{addrs[i]}
				member, err := rueidis.NewClient(o)
				if err != nil {
					c.Close()
					return nil, err
				}
				c.members, c.Client = append(c.members, member), member
			}
			return c, nil
		}})(s)
	}}
}

// keyClient sends a script with key rueidislock:i:name to member i.
type keyClient struct {
	rueidis.Client // the last member

	members []rueidis.Client
}

func (c keyClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if args := cmd.Commands(); len(args) > 3 {
		key, _ := strings.CutPrefix(args[3], "rueidislock:")
		number, _, _ := strings.Cut(key, ":")
		if i, err := strconv.Atoi(number); err == nil {
			return c.members[i].Do(ctx, cmd)
		}
	}
	return c.Client.Do(ctx, cmd)
}

func (c keyClient) Close() {
	for _, member := range c.members {
		member.Close()
	}
}

// Without WithFailFast, redsync waits for all members, and an Unlock waits for a silent member for
// many seconds: faults are measured with the option only. Hand-overs are measured without it, as
// two were inside at once with it: all tries of a Lock have the same value, so a late release of
// one try may delete a key of the next try.
var (
	quorumRelock      = relockOver(defaults, allAlive)
	quorumRedsync     = redsyncOver(defaults, allAlive)
	quorumFailFast    = redsyncOver(failFast, allAlive, redsync.WithFailFast(true))
	quorumRueidislock = rueidislockOver(threeServers, allAlive)

	quorumAlive  = []*system{quorumRelock, quorumRedsync, quorumFailFast, quorumRueidislock}
	quorumFaults = []*system{
		quorumRelock, relockOver(oneDead, deadFirst), relockOver(oneSilent, silentFirst), quorumFailFast,
		redsyncOver(oneDead, deadFirst, redsync.WithFailFast(true)),
		redsyncOver(oneSilent, silentFirst, redsync.WithFailFast(true)),
	}
	quorumRings = []*system{
		quorumRelock, quorumRedsync,
		redsyncOver(tuned, allAlive, redsync.WithTries(1<<30), redsync.WithRetryDelay(tunedPause)),
		quorumRueidislock,
		{name: "rueidislock", setting: defaults, open: openRueidislock(rueidislock.LockerOption{})},
	}
)

// quorumPair is pair over three members.
func quorumPair(b *bench) error { return b.onMembers().pairs(b.sizes.quorum.pair) }

// quorumFault is pair over three members, of which one does not answer. Calls behind a pair are
// still there while others are measured, and take CPU from them.
func quorumFault(b *bench) error {
	logging.Disable() // go-redis logs every failure to connect
	defer logging.Enable()
	return quorumPair(b)
}

// quorumHandover measures rings over three members.
func quorumHandover(b *bench) error { return b.onMembers().handovers(b.sizes.quorum.handover, false) }
