package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// Do the scripts of read-write locks and semaphores keep what no random sequence reaches: many
// holds, other kinds of locks, and servers that refuse, move or fall silent?

// kindRig is one read-write lock or semaphore, seen through its scripts and from outside.
type kindRig struct {
	*rig
	kind store.Kind
}

func newKindRig(t *testing.T, kind store.Kind) *kindRig {
	t.Helper()
	return kindOf(newRig(t), kind)
}

// kindOf makes a kindRig of the lock of a rig.
func kindOf(r *rig, kind store.Kind) *kindRig {
	return &kindRig{rig: r, kind: kind}
}

func (r *kindRig) limits() string { return r.base + suffix(r.kind) }
func (r *kindRig) queue() string  { return r.limits() + queueSuffix }

// hold makes the claim of a new hold.
func (r *kindRig) hold(client string, limit int) store.Claim {
	return store.Claim{Name: r.base, ID: store.ID(newID(client)), TTL: minute, Kind: r.kind, Limit: limit}
}

func (r *kindRig) reader(client string) store.Claim { return r.hold(client, store.Unlimited) }
func (r *kindRig) writer(client string) store.Claim { return r.hold(client, 1) }

// shared makes the claim of a hold that others may accompany.
func (r *kindRig) shared(client string) store.Claim {
	return r.hold(client, map[store.Kind]int{store.Mutex: 1, store.Semaphore: 3, store.ReadWrite: store.Unlimited}[r.kind])
}

// run runs a script for one hold.
func (r *kindRig) run(s *wire.Script, a store.Claim, extra string) (any, error) {
	r.Helper()
	unit := kindUnit(a, lifetime.Millis(a.TTL), extra)
	return r.script(s, unit.Keys, append([]any{"PUBLISH"}, unit.Args...)...)
}

// number runs a script that replies with a number.
func (r *kindRig) number(s *wire.Script, a store.Claim) int64 {
	r.Helper()
	reply, err := r.run(s, a, r.store.control(cutLast(string(a.ID), 2)))
	require.NoError(r, err)
	require.IsType(r, int64(0), reply)
	return reply.(int64)
}

func (r *kindRig) release(a store.Claim) int64 {
	r.Helper()
	return r.number(scripts.kinds.release, a)
}

func (r *kindRig) token(a store.Claim) int64 {
	r.Helper()
	return r.number(scripts.kinds.token, a)
}

// acquire asks for the lock, and queues with an arrival.
func (r *kindRig) acquire(a store.Claim, arrival string) acquireReply {
	r.Helper()
	if r.kind == store.Mutex {
		got, err := r.rig.acquire(string(a.ID), a.TTL, arrival)
		require.NoError(r, err)
		return got
	}
	reply, err := r.run(scripts.kinds.acquire, a, arrival)
	require.NoError(r, err)
	if reply == statusAgain {
		return acquireReply{status: statusAgain}
	}
	got, err := parseAcquireReply(scripts.kinds.acquire, reply)
	require.NoError(r, err)
	return got
}

// enters lets a hold in.
func (r *kindRig) enters(a store.Claim) store.Claim {
	r.Helper()
	require.Equal(r, statusOurs, r.acquire(a, noPlace).status)
	return a
}

// queues puts a waiter into the queue. Its client listens.
func (r *kindRig) queues(a store.Claim) store.Claim {
	r.Helper()
	require.Equal(r, statusQueued, r.acquire(a, newPlace).status)
	return a
}

// fillQueue puts dead waiters before all others.
func (r *kindRig) fillQueue(dead int) {
	r.Helper()
	members := make([]redis.Z, dead)
	for i := range members {
		members[i] = redis.Z{Score: float64(i + 2), Member: fmt.Sprintf("gone:1:%d|60000|r|", i)}
	}
	require.NoError(r, r.rdb.ZAdd(r.Context(), r.queue(), members...).Err())
}

// lapse ends the leases of holds, as time does.
func (r *kindRig) lapse(claims ...store.Claim) {
	r.Helper()
	if r.kind == store.Mutex {
		require.NoError(r, r.rdb.Del(r.Context(), r.base).Err())
		return
	}
	for _, a := range claims {
		over := redis.Z{Score: 1, Member: string(a.ID) + "|" + letter(a)}
		require.NoError(r, r.rdb.ZAddXX(r.Context(), r.base, over).Err())
	}
}

func (r *kindRig) look() store.State {
	r.Helper()
	state, err := r.store.Look(r.Context(), store.Claim{Name: r.base, Kind: r.kind})
	require.NoError(r, err)
	return state
}

// has requires that exactly these holds have the lock.
func (r *kindRig) has(claims ...store.Claim) {
	r.Helper()
	got, want := []store.ID{}, []store.ID{}
	state := r.look()
	if state.Owner != "" {
		got = append(got, state.Owner)
	}
	for _, o := range state.Others {
		got = append(got, o.ID)
	}
	for _, a := range claims {
		want = append(want, a.ID)
	}
	require.ElementsMatch(r, want, got)
}

// waits requires that exactly these holds wait, in this order.
func (r *kindRig) waits(claims ...store.Claim) {
	r.Helper()
	got, err := r.rdb.ZRange(r.Context(), r.queue(), 0, -1).Result()
	require.NoError(r, err)
	want := []string{}
	for _, a := range claims {
		want = append(want, fmt.Sprintf("%s|%d|%s|%s", a.ID, lifetime.Millis(a.TTL), letter(a), a.With))
	}
	require.Equal(r, want, got)
}

// free requires that nobody has the lock, and nobody waits.
func (r *kindRig) free() {
	r.Helper()
	require.Zero(r, r.rdb.Exists(r.Context(), r.base, r.limits(), r.queue()).Val())
}

// kindKinds are the kinds of this chapter.
var kindKinds = []store.Kind{store.ReadWrite, store.Semaphore}

// lineOf returns the line of a message that lets a claim in.
func lineOf(a store.Claim) string {
	if a.Kind == store.Mutex {
		return string(a.ID)
	}
	return string(a.ID) + "|" + letter(a)
}

func TestKindsReadersEnterWithOneScriptAndOneMessageAClient(t *testing.T) {
	r := newKindRig(t, store.ReadWrite)
	ears := map[string]*redis.PubSub{}
	for i := range 4 {
		client := fmt.Sprint("client", i)
		ears[client] = r.listen(client)
	}
	writer := r.enters(r.writer("a"))
	want, readers := map[string][]string{}, []store.Claim{}
	for i := range 256 {
		client := fmt.Sprint("client", i%4)
		a := r.queues(r.reader(client))
		readers, want[client] = append(readers, a), append(want[client], lineOf(a))
	}
	last := r.queues(r.writer("client0"))
	require.EqualValues(t, 1, r.release(writer))
	for client, ps := range ears {
		require.Equal(t, strings.Join(want[client], "\n"), message(t, ps))
		silent(t, ps)
	}
	r.has(readers...)
	r.waits(last)
	for i, a := range readers {
		r.waits(last)
		require.EqualValues(t, 1, r.release(a), i)
	}
	require.Equal(t, lineOf(last), message(t, ears["client0"]))
	r.has(last)
}

func TestKindsDeadWaiters(t *testing.T) {
	t.Run("are dropped over several calls, and the hold is in until then", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		ps := r.listen("b")
		writer := r.enters(r.writer("a"))
		next := r.queues(r.reader("b"))
		r.fillQueue(350)
		for left := int64(250); left > 0; left -= 100 {
			require.Equal(t, statusAgain, r.release(writer))
			require.Equal(t, left+1, r.rdb.ZCard(t.Context(), r.queue()).Val())
			r.has(writer)
			silent(t, ps)
		}
		require.EqualValues(t, 1, r.release(writer))
		require.Equal(t, lineOf(next), message(t, ps))
		r.has(next)
	})
	t.Run("are dropped for a claim that the rule holds up", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		r.listen("b")
		writer := r.enters(r.writer("a"))
		r.fillQueue(250)
		claim := r.reader("b")
		require.Equal(t, statusAgain, r.acquire(claim, newPlace).status)
		require.Equal(t, statusAgain, r.acquire(claim, newPlace).status)
		r.queues(claim)
		r.waits(claim)
		r.has(writer)
	})
	t.Run("a dead writer holds up no reader", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		first := r.enters(r.reader("a"))
		r.listening("gone", func() { r.queues(r.writer("gone")) })
		second := r.enters(r.reader("b"))
		r.has(first, second)
		r.waits()
	})
}

func TestKindsCallsOfTheStoreCallAgainForDeadWaiters(t *testing.T) {
	for what, act := range map[string]func(r *kindRig, a store.Claim) error{
		"Release": func(r *kindRig, a store.Claim) error { return r.store.Release(r.Context(), store.Lease{Claim: a}) },
		"Break":   func(r *kindRig, a store.Claim) error { return r.store.Break(r.Context(), a) },
		"Forget":  func(r *kindRig, a store.Claim) error { return r.store.Forget(r.Context(), []store.Claim{a})[0] },
		"Try": func(r *kindRig, a store.Claim) error {
			r.lapse(a)
			l, err := r.store.Try(r.Context(), r.hold("b", 1))
			require.NoError(r, err)
			return r.store.Release(r.Context(), l)
		},
	} {
		for _, kind := range kindKinds {
			t.Run(fmt.Sprint(kind, ": ", what), func(t *testing.T) {
				r := newKindRig(t, kind)
				a := r.enters(r.hold("a", 1))
				r.fillQueue(1000)
				require.NoError(t, act(r, a))
				r.free()
			})
		}
	}
}

func TestKindsManyLeasesThatAreOverEndOverSeveralCalls(t *testing.T) {
	lapsed := func(r *kindRig) {
		members := make([]redis.Z, 2500)
		for i := range members {
			members[i] = redis.Z{Score: 1, Member: fmt.Sprintf("gone:1:%d|r", i)}
		}
		require.NoError(r, r.rdb.ZAdd(r.Context(), r.base, members...).Err())
	}
	t.Run("beside a lease that lasts", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		first, second := r.enters(r.reader("a")), r.reader("b")
		lapsed(r)
		require.Equal(t, statusAgain, r.acquire(second, noPlace).status)
		require.Equal(t, statusAgain, r.acquire(second, noPlace).status)
		r.enters(second)
		r.has(first, second)
		require.EqualValues(t, 2, r.rdb.ZCard(t.Context(), r.base).Val())
	})
	t.Run("for the hold that leaves", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		ps := r.listen("b")
		first := r.enters(r.reader("a"))
		next := r.queues(r.writer("b"))
		lapsed(r)
		require.Equal(t, statusAgain, r.release(first))
		require.Equal(t, statusAgain, r.release(first))
		r.has(first)
		require.EqualValues(t, 1, r.release(first))
		require.Equal(t, lineOf(next), message(t, ps))
		r.has(next)
	})
	t.Run("alone", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		lapsed(r)
		r.has(r.enters(r.writer("a")))
	})
}

func TestKindsBaseWithoutAnEndGetsOneAgain(t *testing.T) {
	for _, kind := range kindKinds {
		r := newKindRig(t, kind)
		first, second := r.enters(r.shared("a")), r.enters(r.shared("b"))
		persist := func() { require.NoError(t, r.rdb.Persist(t.Context(), r.base).Err()) }
		lives := func(ttl time.Duration) {
			t.Helper()
			require.InDelta(t, ttl, r.rdb.PTTL(t.Context(), r.base).Val(), float64(2*time.Second))
		}
		persist()
		require.Equal(t, statusOurs, r.acquire(second, noPlace).status)
		lives(minute)
		persist()
		require.NoError(t, r.commandsOf(second)["Renew"](t.Context()))
		lives(2 * minute)
		r.has(first, second)
	}
}

// claimsBut returns a claim for each kind but one, for the lock of the rig.
func (r *kindRig) claimsBut(kind store.Kind) []store.Claim {
	var claims []store.Claim
	for _, k := range []store.Kind{store.Mutex, store.ReadWrite, store.Semaphore} {
		if k != kind {
			a := r.writer("b")
			a.Kind = k
			claims = append(claims, a)
		}
	}
	return claims
}

func TestKindsNameOfAnotherKind(t *testing.T) {
	for _, kind := range []store.Kind{store.Mutex, store.ReadWrite, store.Semaphore} {
		t.Run(fmt.Sprint("is refused while in use: ", kind), func(t *testing.T) {
			r := newKindRig(t, kind)
			r.listen("b")
			r.tries(r.writer("a"))
			for _, a := range r.claimsBut(kind) {
				r.unchanged(func() {
					_, tryErr := r.store.Try(t.Context(), a)
					_, waitErr := r.store.Wait(t.Context(), a, func(store.Progress) {})
					_, lookErr := r.store.Look(t.Context(), a)
					for _, err := range []error{tryErr, waitErr, lookErr} {
						require.ErrorIs(t, err, store.ErrKind)
						require.NotErrorIs(t, err, store.ErrUnsure)
						require.ErrorContains(t, err, kind.String()+", and not "+a.Kind.String())
					}
				})
			}
		})
	}
	for _, kind := range kindKinds {
		t.Run(fmt.Sprint("is free when all leases are over: ", kind), func(t *testing.T) {
			r := newKindRig(t, kind)
			for _, a := range r.claimsBut(kind) {
				if a.Kind == store.Mutex {
					continue
				}
				r.lapse(r.enters(r.writer("a")))
				require.EqualValues(t, 0, r.look().TTL)
				r.enters(a)
				require.EqualValues(t, 1, r.release(a))
			}
		})
	}
}

// tries lets a hold in through the store.
func (r *kindRig) tries(a store.Claim) store.Lease {
	r.Helper()
	l, err := r.store.Try(r.Context(), a)
	require.NoError(r, err)
	return l
}

// TestKindsWaitersOfAnotherKindAreNotServed has waiters whose lock has become another kind of lock.
func TestKindsWaitersOfAnotherKindAreNotServed(t *testing.T) {
	for what, leave := range map[string]*wire.Script{"Release": scripts.kinds.release, "Forget": scripts.kinds.forget, "Break": scripts.kinds.broken} {
		t.Run(what, func(t *testing.T) {
			r := newKindRig(t, store.Semaphore)
			ps := r.listen("b")
			permit := r.enters(r.hold("a", 1))
			next := r.queues(r.hold("b", 3))
			r.lapse(permit)
			writer := r.writer("c")
			writer.Kind = store.ReadWrite
			r.enters(writer)
			require.EqualValues(t, 0, r.number(leave, permit))
			silent(t, ps)
			r.waits(next)
			require.EqualValues(t, 1, r.release(writer))
			require.Equal(t, statusOurs, r.acquire(next, "1").status)
		})
	}
}

func TestKindsUserNeedsNoMoreThanItsPrefix(t *testing.T) {
	for _, kind := range kindKinds {
		t.Run(kind.String(), func(t *testing.T) {
			r := kindOf(withUser(t, "&"+prefix+"*", "~"+prefix+"*", "+@all"), kind)
			ps := r.listen("b")
			for _, what := range []string{"Release", "Forget", "Break"} {
				a := r.writer("a")
				r.tries(a)
				commands := r.commandsOf(a)
				for _, other := range []string{"acquire", "Enter", "Renew", "Token", "Look", what} {
					require.NoError(t, commands[other](t.Context()), other)
				}
				granted := message(t, ps)
				next := r.writer("b")
				next.ID = r.look().Owner
				require.Equal(t, lineOf(next), granted)
				require.NoError(t, r.store.Forget(t.Context(), []store.Claim{next})[0])
				r.free()
			}
		})
	}
}

func TestKindsUserWithoutACommand(t *testing.T) {
	t.Run("without pexpire takes a lock with an end all the same", func(t *testing.T) {
		r := kindOf(withUser(t, "&*", "~*", "+@all", "-pexpire"), store.ReadWrite)
		_, err := r.store.Try(t.Context(), r.writer("a"))
		require.ErrorContains(t, err, "can't run this command")
		require.LessOrEqual(t, r.look().TTL, minute)
	})
	for command, users := range map[string]string{
		"zadd": "Try acquire Enter Renew Release Forget Break", "zrem": "Release Forget Break",
	} {
		t.Run("without "+command, func(t *testing.T) {
			r := kindOf(withUser(t, "&*", "~*", "+@all", "-"+command), store.ReadWrite)
			for _, what := range strings.Fields(users) {
				r.listening("b", func() {
					a := r.writer("a")
					if what != "Try" { // it is another user who enters and waits
						r.enters(a)
						r.queues(r.writer("b"))
					}
					longer := a
					longer.TTL *= 2 // a lease that would end in the same millisecond is not written
					err := r.commandsOf(longer)[what](t.Context())
					require.ErrorContains(t, err, "can't run this command", what)
					require.NotErrorIs(t, err, store.ErrUnsure)
					if what == "Try" {
						r.free()
					} else {
						require.Equal(t, a.ID, r.look().Owner, what)
					}
					require.NoError(t, r.rdb.Del(t.Context(), r.keys()...).Err())
				})
			}
		})
	}
}

func TestKindsTokens(t *testing.T) {
	t.Run("does not go back with the clock", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		ahead := time.Now().Add(time.Hour).UnixMicro()
		require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, ahead, minute).Err())
		require.Equal(t, ahead+1, r.token(r.enters(r.writer("a"))))
		require.InDelta(t, 25*time.Hour, r.rdb.PTTL(t.Context(), r.base+tokenSuffix).Val(), float64(2*time.Second))
	})
}

func TestKindsTokenKeyThatHoldsNone(t *testing.T) {
	for _, foreign := range []string{"", "x", "1.5", "-1", "1e3", "0x10", "9000000000000001", "99999999999999999999999"} {
		for what, limit := range map[string]int{"reader": store.Unlimited, "writer": 1, "permit": 2} {
			t.Run(fmt.Sprintf("%s, %q", what, foreign), func(t *testing.T) {
				kind := store.ReadWrite
				if what == "permit" {
					kind = store.Semaphore
				}
				r := newKindRig(t, kind)
				r.listen("b")
				a := r.enters(r.hold("a", limit))
				require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, foreign, minute).Err())
				r.unchanged(func() {
					_, err := r.store.Token(t.Context(), store.Lease{Claim: a})
					require.ErrorContains(t, err, "holds no token")
					require.NotErrorIs(t, err, store.ErrUnsure)
				})
			})
		}
	}
	t.Run("keeps a writer out", func(t *testing.T) {
		r := newKindRig(t, store.ReadWrite)
		require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, "x", minute).Err())
		_, err := r.store.Try(t.Context(), r.writer("a"))
		require.ErrorContains(t, err, "holds no token")
		r.free()
		r.has(r.enters(r.reader("a")))
	})
}

// TestKindsMigratingSlot frees locks whose slot is on its way to another node. There Redis refuses
// keys that do not exist any more.
func TestKindsMigratingSlot(t *testing.T) {
	cluster := redistest.StartCluster(t)
	s, err := New(cluster.Client(), Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	master := cluster.MasterFor("relock:{x}")
	lock := func(name string) *kindRig {
		r := &rig{T: t, rdb: master.Client(), store: s.(*nativeStore), base: "relock:{x}:" + name}
		return kindOf(r, store.ReadWrite)
	}
	pair, batch := lock("pair"), lock("batch")
	type scene struct {
		*kindRig
		ps            *redis.PubSub
		writer        store.Claim
		readers, last []store.Claim
	}
	var scenes []*scene
	for _, r := range []*kindRig{pair, batch} {
		sc := &scene{kindRig: r, ps: r.listen("b"), writer: r.enters(r.writer("a"))}
		sc.readers = []store.Claim{r.queues(r.reader("b")), r.queues(r.reader("b"))}
		if r == batch {
			sc.last = []store.Claim{r.queues(r.writer("b"))}
		}
		scenes = append(scenes, sc)
	}
	move := cluster.BeginMove(pair.base, cluster.MasterFor(other(cluster, pair.base)))
	for _, sc := range scenes { // the queue and the limits end with it
		require.NoError(t, s.Release(t.Context(), store.Lease{Claim: sc.writer}))
		require.Equal(t, lineOf(sc.readers[0])+"\n"+lineOf(sc.readers[1]), message(t, sc.ps))
	}
	left := make(chan error, 4)
	for _, sc := range scenes { // no limit is left: a key that exists on neither side
		for _, a := range sc.readers {
			go func() { left <- s.Release(t.Context(), store.Lease{Claim: a}) }()
		}
	}
	move.Finish()
	for range 4 {
		require.NoError(t, <-left)
	}
	for _, sc := range scenes {
		sc.rdb = cluster.MasterFor("relock:{x}").Client()
		sc.free() // nobody listens there yet, so the writer was dropped
		for _, a := range sc.last {
			sc.has(sc.enters(a))
			require.EqualValues(t, 1, sc.release(a))
		}
	}
}

// withSharedReplica returns a lock on a server with a replica that is in sync.
func withSharedReplica(t *testing.T) (*kindRig, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t, "--repl-diskless-sync", "no")
	host, port, _ := strings.Cut(server.Addr(), ":")
	replica := redistest.Start(t, "--replicaof", host, port)
	r := kindOf(newRigOn(t, server), store.ReadWrite)
	redistest.Eventually(t, 15*time.Second, func() bool {
		var wait *redis.Cmd
		_, err := r.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "written", 1, time.Millisecond)
			wait = p.Do(t.Context(), "WAIT", 1, 100)
			return nil
		})
		n, _ := wait.Int()
		return err == nil && n == 1
	}, "the replica is in sync")
	return r, replica
}

func TestKindsReplicasConfirmReaders(t *testing.T) {
	r, replica := withSharedReplica(t)
	confirmed := func(timeout time.Duration) store.Claim {
		a := r.reader("b")
		a.Acks = store.Acks{Replicas: 1, Timeout: timeout}
		return a
	}
	first := confirmed(2 * time.Second)
	r.tries(first)
	r.tries(first) // again: WAIT looks only at the writes of its own connection
	writer := r.writer("a")
	writer.Acks = first.Acks
	require.EqualValues(t, 1, r.release(first))
	r.tries(writer)
	reader := confirmed(2 * time.Second)
	w := r.wait(reader)
	require.EqualValues(t, 1, r.release(writer))
	require.Equal(t, reader, w.get().Claim)
	r.has(reader)

	replica.Pause()
	defer replica.Resume()
	_, err := r.store.Try(t.Context(), confirmed(50*time.Millisecond))
	require.ErrorIs(t, err, store.ErrNotReplicated)
	require.NotErrorIs(t, err, store.ErrUnsure, "taken back")
	r.has(reader)
}

func TestKindsAsksLeaveTheSortedSetOfAnApplicationAlone(t *testing.T) {
	r := newRig(t)
	board := []redis.Z{{Score: 1, Member: "anna"}, {Score: 2, Member: "ben"}}
	for _, kind := range []store.Kind{store.ReadWrite, store.Semaphore} {
		require.NoError(t, r.rdb.ZAdd(t.Context(), r.base, board...).Err())
		claim := r.claim(newID("a"), minute)
		claim.Kind, claim.Limit = kind, 1
		_, err := r.store.Try(t.Context(), claim)
		require.ErrorContains(t, err, "sorted set")
		require.NotErrorIs(t, err, store.ErrKind)
		_, err = r.store.Look(t.Context(), claim)
		require.ErrorContains(t, err, "sorted set")
		require.NoError(t, r.store.Forget(t.Context(), []store.Claim{claim})[0])
		require.Equal(t, board, r.rdb.ZRangeWithScores(t.Context(), r.base, 0, -1).Val())
	}
	_, err := r.store.Try(t.Context(), r.claim(newID("a"), minute))
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NotErrorIs(t, err, store.ErrKind)
}

func TestKindsAsksTellAReadWriteLockOfRedisson(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.rdb.HSet(t.Context(), r.base, "mode", "read", "uuid:1", 1).Err())
	for _, kind := range []store.Kind{store.ReadWrite, store.Semaphore} {
		claim := r.claim(newID("a"), minute)
		claim.Kind, claim.Limit = kind, 1
		_, err := r.store.Try(t.Context(), claim)
		require.ErrorIs(t, err, store.ErrKind)
		require.ErrorContains(t, err, "is a read-write lock of Redisson, and not "+kind.String())
		_, err = r.store.Look(t.Context(), claim)
		require.ErrorIs(t, err, store.ErrKind)
	}
}
