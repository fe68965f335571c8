package faults_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
)

// What if a server refuses commands or lacks replicas?

// This chapter is about servers that refuse, and servers with replicas.

func TestOutOfMemoryRefusesNewLocksAndStillServesThoseHeld(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	w := stage.OnOwn(t, "--maxmemory-policy", "noeviction")
	s := w.Scene(relock.WithTTL(ttl))
	outer, inner := s.Nested()
	waiter := s.Start(t.Context(), s.Far)
	s.AwaitWaiters("a", 1)
	require.NoError(t, s.Plain.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, s.Start(t.Context(), s.Other.NewLock("b")).Within(stage.AtOnce).Failure(), "OOM")
	stage.SleepUntil(time.Now().Add(2 * ttl))
	require.True(t, s.L.Held(outer), "the lease is renewed")
	s.Leave(inner, s.L)
	s.Leave(outer, s.L)
	waiter.Leave()
	require.NoError(t, s.Plain.ConfigSet(t.Context(), "maxmemory", "0").Err())
	s.Start(t.Context(), s.Other.NewLock("b")).Leave()
}

func TestAReadOnlyServerIsWaitedForAndItsHolderIsToldInTime(t *testing.T) {
	const ttl = 600 * time.Millisecond
	for _, serveStale := range []string{"yes", "no"} { // READONLY, MASTERDOWN
		t.Run("serve stale "+serveStale, func(t *testing.T) {
			s := stage.OnOwn(t, "--replica-serve-stale-data", serveStale).Scene(relock.WithTTL(ttl))
			section := s.Enter(t.Context(), s.L)
			host, port, _ := strings.Cut(s.Server.Addr(), ":")
			// The server follows itself, and never comes to a synchronization: a replica without
			// its master.
			require.NoError(t, s.Plain.ReplicaOf(t.Context(), host, port).Err())
			waiter := s.Start(t.Context(), s.Other.NewLock("b"))
			calls := s.Counter(s.Other, stage.LuaAcquire)
			require.Equal(t, event.LossExpired, s.Within(ttl+stage.Promptly).Lost(section))
			require.True(t, waiter.Waits())
			require.LessOrEqual(t, calls(), 15, "no hot loop")
			require.NoError(t, s.Plain.ReplicaOf(t.Context(), "no", "one").Err())
			waiter.Leave()
			s.Start(t.Context(), s.Far).Leave()
			require.ErrorIs(t, s.L.Unlock(section), relock.ErrLockLost)
		})
	}
}

func TestReplicaAcksAreNotForEntriesAndExits(t *testing.T) {
	w, _ := stage.WithReplica(t)
	patient := func(o *redis.Options) { o.ReadTimeout = 2 * w.Limit } // the replica may be slow, on a busy machine
	p, q := w.PeerOn(patient, relock.WithReplicaAcks(1, w.Limit)), w.PeerOn(patient, relock.WithReplicaAcks(1, w.Limit))
	l := p.NewLock("a")
	outer := w.Enter(t.Context(), l)
	require.Equal(t, 1, p.Faults.Commands("WAIT"))
	inner := w.Enter(outer, l)
	waiter := w.Start(t.Context(), q.NewLock("a"))
	w.AwaitWaiters("a", 1)
	redistest.Eventually(t, w.Limit, func() bool { return q.Faults.Commands("WAIT") == 2 }, "asked before and after it listened")
	w.Leave(inner, l)
	w.Leave(outer, l)
	require.Equal(t, 1, p.Faults.Commands("WAIT"), "re-entry and exit are not waited for")
	mine := waiter.Section()
	require.Equal(t, 3, q.Faults.Commands("WAIT"), "a grant is confirmed before it counts")
	w.RequireCount("a", 1)
	w.Leave(mine, waiter.Lock)
	w.RequireFree("a")
}

func TestARenewalCountsWhenTheReplicaHasIt(t *testing.T) {
	const ttl = 3 * time.Second
	w, replica := stage.WithReplica(t)
	patient := func(o *redis.Options) { o.ReadTimeout = 2 * w.Limit }
	p := w.PeerOn(patient, relock.WithTTL(ttl), relock.WithReplicaAcks(1, 200*time.Millisecond))
	acked, plain := p.NewLock("a"), w.Peer(relock.WithTTL(ttl)).NewLock("b")
	section, other := w.Enter(t.Context(), acked), w.Enter(t.Context(), plain)
	redistest.Eventually(t, w.Limit, func() bool { return p.Faults.Commands("WAIT") >= 2 }, "a renewal waits for the replica")
	require.NoError(t, section.Err())
	replica.Pause()
	defer replica.Resume()
	require.Equal(t, event.LossExpired, w.Within(w.Limit).Lost(section), "the server answers, and no replica has the lease")
	require.NoError(t, other.Err())
	w.Leave(other, plain)
}

func TestALostReplyWithReplicaAcksEntersOnce(t *testing.T) {
	w, _ := stage.WithReplica(t)
	p := w.Peer(relock.WithReplicaAcks(1, 100*time.Millisecond))
	l := p.NewLock("a")
	faults := []redistest.Action{
		redistest.Answer("-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"),
		redistest.Answer("-ERR WAIT cannot be used with replica instances."), // has become one between the script and WAIT
	}
	for _, how := range stage.Breaks {
		faults = append(faults, redistest.DropReply(how))
	}
	for i, fault := range faults {
		for _, command := range []string{"EVALSHA", "WAIT"} {
			if i < 2 {
				command = "WAIT"
			}
			rule := p.Faults.Once(redistest.Named(command), fault)
			section := w.Enter(t.Context(), l)
			require.Equal(t, 1, rule.Hits())
			w.RequireCount("a", 1)
			w.Leave(section, l)
			w.RequireFree("a")
		}
	}
}

func TestAOFAcksAreNotForEntriesAndExits(t *testing.T) {
	w := stage.OnShared(t)
	p := w.Peer(relock.WithAOFAcks(1, 100*time.Millisecond))
	l := p.NewLock("a")
	waitAOF := redistest.Named("WAITAOF")
	answers := func(reply string) *redistest.Rule { return p.Faults.Once(waitAOF, redistest.Answer(reply)) }

	var sent []string
	p.Faults.Once(waitAOF, redistest.Before(func(args []string) { sent = args }))
	rule := answers("*2\r\n:1\r\n:2")
	section := w.Enter(t.Context(), l)
	require.Equal(t, 1, rule.Hits())
	require.Equal(t, []string{"WAITAOF", "1", "1", "100"}, sent)
	w.Leave(w.Enter(section, l), l) // asks nobody
	w.Leave(section, l)

	for reply, says := range map[string]string{
		"*2\r\n:0\r\n:2": "1 of 2 within 100ms", // other disks do not stand in for the server's own
		"*2\r\n:1\r\n:0": "1 of 2 within 100ms",
		"*1\r\n:1":       "unexpected reply of WAITAOF",
		"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.": "appendonly is disabled",
	} {
		answers(reply)
		_, err := l.TryLock(t.Context())
		require.ErrorContains(t, err, says)
		w.RequireFree("a")
	}

	alone := p.NewLock("a", relock.WithAOFAcks(0, 100*time.Millisecond))
	answers("*2\r\n:1\r\n:0")
	w.Leave(w.Enter(t.Context(), alone), alone)
}

func TestAProxyWithoutAServerIsWaitedFor(t *testing.T) {
	w := stage.OnShared(t)
	p := w.Peer()
	held := p.NewLock("held")
	section := w.Enter(t.Context(), held)
	away := p.Faults.On(redistest.Named("EVAL", "EVALSHA", "SUBSCRIBE", "SSUBSCRIBE"), redistest.Answer("-no upstream host"))
	_, err := p.NewLock("b").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrUnavailable)
	require.ErrorContains(t, err, "no upstream host")
	waiter := w.Start(t.Context(), p.NewLock("a"))
	led := make(chan error, 1)
	go func() {
		led <- leader.Run(t.Context(), p.NewLock("leader"), func(context.Context) error { return nil })
	}()
	before := away.Hits()
	redistest.Eventually(t, w.Limit, func() bool { return away.Hits() > before+4 }, "both ask again")
	require.True(t, waiter.Waits())
	require.Empty(t, led)
	require.NoError(t, section.Err())
	away.Remove()
	waiter.Leave()
	require.NoError(t, <-led)
	w.Leave(section, held)
}

func TestAClientThatFollowsNoClusterIsToldSoAtOnce(t *testing.T) {
	w := stage.OnShared(t)
	p := w.Peer()
	p.Faults.On(redistest.Named("EVAL", "EVALSHA"), redistest.Answer("-MOVED 3999 127.0.0.1:6381"))
	err := w.Start(t.Context(), p.NewLock("a")).Failure()
	require.ErrorContains(t, err, "use a redis.ClusterClient")
	require.NotErrorIs(t, err, relock.ErrUnavailable)
}

func TestAOFAcksNeedAServerThatHasThem(t *testing.T) {
	for _, aof := range []string{"yes", "no"} {
		w := stage.OnOwn(t, "--appendonly", aof, "--appendfsync", "always")
		patient := func(o *redis.Options) { o.ReadTimeout = 2 * w.Limit } // a disk may be slow
		p := w.PeerOn(patient, relock.WithAOFAcks(0, w.Limit))
		has := w.Plain.Do(t.Context(), "WAITAOF", 0, 0, 0).Err() == nil
		err := p.Check(t.Context())
		switch {
		case !has: // before Redis 7.2
			require.ErrorContains(t, err, "unknown command 'WAITAOF'")
		case aof == "no":
			require.ErrorContains(t, err, "appendonly is disabled")
		default:
			require.NoError(t, err)
			w.Start(t.Context(), p.NewLock("a")).Leave()
		}
		w.RequireFree("a")
	}
}

func TestTooFewReplicaAcksUndoExactlyThisEntry(t *testing.T) {
	const timeout = 80 * time.Millisecond
	w, replica := stage.WithReplica(t)
	one := w.Peer()
	err := w.Start(t.Context(), one.NewLock("a", relock.WithReplicaAcks(2, timeout))).Within(timeout + stage.AtOnce).Failure()
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	require.ErrorContains(t, err, "1 of 2")
	w.RequireFree("a")

	// With the replica stopped nobody confirms a grant; and the lock goes on to the next.
	l := one.NewLock("a", relock.WithReplicaAcks(1, timeout))
	owner := w.Peer().NewLock("a")
	section := w.Enter(t.Context(), owner)
	waiter := w.Start(t.Context(), l)
	w.AwaitWaiters("a", 1)
	behind := w.Start(t.Context(), w.Peer().NewLock("a"))
	w.AwaitWaiters("a", 2)
	replica.Pause()
	w.Leave(section, owner)
	require.ErrorIs(t, waiter.Within(timeout+stage.AtOnce).Failure(), relock.ErrNotReplicated)
	behind.Leave()
	w.RequireFree("a")

	// Also where an attempt comes late.
	stuck := one.Faults.Once(w.Script(stage.LuaAcquire), redistest.Hold())
	require.ErrorIs(t, w.Start(t.Context(), l).Within(timeout+w.Limit).Failure(), relock.ErrNotReplicated)
	stuck.Release(t)
	w.RequireFree("a")

	// A section that is held already keeps what it has.
	plain := one.NewLock("a")
	outer := w.Enter(t.Context(), plain)
	inner := w.Enter(outer, l)
	w.RequireCount("a", 2)
	w.Leave(inner, l)
	w.Leave(outer, plain)
	replica.Resume()
	w.Start(t.Context(), l).Leave()
}

func TestConfirmationsMayTakeLongerThanAThirdOfTheTTL(t *testing.T) {
	w := stage.OnShared(t)
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout = 2 * w.Limit }, relock.WithTTL(time.Second), relock.WithAOFAcks(0, 700*time.Millisecond))
	l := p.NewLock("a")
	slow := func([]string) { <-time.After(600 * time.Millisecond) } // as a disk
	p.Faults.On(redistest.Named("WAITAOF"), redistest.Before(slow))
	answers := p.Faults.On(redistest.Named("WAITAOF"), redistest.Answer("*2\r\n:1\r\n:0"))
	section, err := l.TryLock(t.Context())
	require.NoError(t, err)
	stage.Keep(t, section)
	require.Positive(t, answers.Hits())
	w.Leave(section, l)
	w.RequireFree("a")
}
