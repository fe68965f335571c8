package relock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// What if a server refuses commands or lacks replicas?

// This chapter is about servers that refuse, and servers with replicas.

func TestOutOfMemoryRefusesNewLocksAndStillServesThoseHeld(t *testing.T) {
	const ttl = 600 * time.Millisecond
	w := onOwn(t, "--maxmemory-policy", "noeviction")
	s := w.scene(relock.WithTTL(ttl))
	outer, inner := s.nested()
	waiter := s.start(t.Context(), s.far)
	s.awaitWaiters("a", 1)
	require.NoError(t, s.plain.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, s.start(t.Context(), s.other.NewLock("b")).within(atOnce).failure(), "OOM")
	sleepUntil(time.Now().Add(2 * ttl))
	require.True(t, s.l.Held(outer), "the lease is renewed")
	s.leave(inner, s.l)
	s.leave(outer, s.l)
	waiter.leave()
	require.NoError(t, s.plain.ConfigSet(t.Context(), "maxmemory", "0").Err())
	s.start(t.Context(), s.other.NewLock("b")).leave()
}

func TestAReadOnlyServerIsWaitedForAndItsHolderIsToldInTime(t *testing.T) {
	const ttl = 600 * time.Millisecond
	for _, serveStale := range []string{"yes", "no"} { // READONLY, MASTERDOWN
		t.Run("serve stale "+serveStale, func(t *testing.T) {
			s := onOwn(t, "--replica-serve-stale-data", serveStale).scene(relock.WithTTL(ttl))
			section := s.enter(t.Context(), s.l)
			host, port, _ := strings.Cut(s.server.Addr(), ":")
			// The server follows itself, and never comes to a synchronization: a replica without its master.
			require.NoError(t, s.plain.ReplicaOf(t.Context(), host, port).Err())
			waiter := s.start(t.Context(), s.other.NewLock("b"))
			calls := s.counter(s.other, luaAcquire)
			require.Equal(t, relock.LossExpired, s.within(ttl+promptly).lost(section))
			require.True(t, waiter.waits())
			require.LessOrEqual(t, calls(), 15, "no hot loop")
			require.NoError(t, s.plain.ReplicaOf(t.Context(), "no", "one").Err())
			waiter.leave()
			s.start(t.Context(), s.far).leave()
			require.ErrorIs(t, s.l.Unlock(section), relock.ErrLockLost)
		})
	}
}

// withReplica is a server with a replica that is in sync.
func withReplica(t *testing.T) (*arena, *redistest.Server) {
	t.Helper()
	w := onOwn(t, "--repl-diskless-sync", "no") // which streams at once
	host, port, _ := strings.Cut(w.server.Addr(), ":")
	replica := redistest.Start(t, "--replicaof", host, port)
	redistest.Eventually(t, 15*time.Second, func() bool {
		// Behind a write on the same connection: else there is nothing that the replica could lack.
		var wait *redis.Cmd
		_, err := w.plain.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "written", 1, time.Millisecond)
			wait = p.Do(t.Context(), "WAIT", 1, 100)
			return nil
		})
		n, _ := wait.Int()
		return err == nil && n == 1
	}, "the replica is in sync")
	return w, replica
}

func TestReplicaAcksConfirmNewHoldsOnly(t *testing.T) {
	w, _ := withReplica(t)
	patient := func(o *redis.Options) { o.ReadTimeout = 2 * w.limit } // the replica may be slow, on a busy machine
	p, q := w.peerOn(patient, relock.WithReplicaAcks(1, w.limit)), w.peerOn(patient, relock.WithReplicaAcks(1, w.limit))
	l := p.NewLock("a")
	outer := w.enter(t.Context(), l)
	require.Equal(t, 1, p.faults.Commands("WAIT"))
	inner := w.enter(outer, l)
	waiter := w.start(t.Context(), q.NewLock("a"))
	w.awaitWaiters("a", 1)
	redistest.Eventually(t, w.limit, func() bool { return q.faults.Commands("WAIT") == 2 }, "asked before and after it listened")
	w.leave(inner, l)
	w.leave(outer, l)
	require.Equal(t, 1, p.faults.Commands("WAIT"), "re-entry and exit are not waited for")
	mine := waiter.section()
	require.Equal(t, 3, q.faults.Commands("WAIT"), "a grant is confirmed before it counts")
	w.requireCount("a", 1)
	w.leave(mine, waiter.lock)
	w.requireFree("a")
}

func TestALostReplyWithReplicaAcksEntersOnce(t *testing.T) {
	w, _ := withReplica(t)
	p := w.peer(relock.WithReplicaAcks(1, 100*time.Millisecond))
	l := p.NewLock("a")
	faults := []redistest.Action{
		redistest.Answer("-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"),
		redistest.Answer("-ERR WAIT cannot be used with replica instances."), // has become one between the script and WAIT
	}
	for _, how := range breaks {
		faults = append(faults, redistest.DropReply(how))
	}
	for i, fault := range faults {
		for _, command := range []string{"EVALSHA", "WAIT"} {
			if i < 2 {
				command = "WAIT"
			}
			rule := p.faults.Once(redistest.Named(command), fault)
			section := w.enter(t.Context(), l)
			require.Equal(t, 1, rule.Hits())
			w.requireCount("a", 1)
			w.leave(section, l)
			w.requireFree("a")
		}
	}
}

func TestAOFAcksConfirmNewHoldsOnly(t *testing.T) {
	w := onShared(t)
	p := w.peer(relock.WithAOFAcks(1, 100*time.Millisecond))
	l := p.NewLock("a")
	waitAOF := redistest.Named("WAITAOF")
	answers := func(reply string) *redistest.Rule { return p.faults.Once(waitAOF, redistest.Answer(reply)) }

	var sent []string
	p.faults.Once(waitAOF, redistest.Before(func(args []string) { sent = args }))
	rule := answers("*2\r\n:1\r\n:2")
	section := w.enter(t.Context(), l)
	require.Equal(t, 1, rule.Hits())
	require.Equal(t, []string{"WAITAOF", "1", "1", "100"}, sent)
	w.leave(w.enter(section, l), l) // asks nobody
	w.leave(section, l)

	for reply, says := range map[string]string{
		"*2\r\n:0\r\n:2": "1 of 2 within 100ms", // other disks do not stand in for the server's own
		"*2\r\n:1\r\n:0": "1 of 2 within 100ms",
		"*1\r\n:1":       "unexpected reply of WAITAOF",
		"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.": "appendonly is disabled",
	} {
		answers(reply)
		_, err := l.TryLock(t.Context())
		require.ErrorContains(t, err, says)
		w.requireFree("a")
	}

	alone := p.NewLock("a", relock.WithAOFAcks(0, 100*time.Millisecond))
	answers("*2\r\n:1\r\n:0")
	w.leave(w.enter(t.Context(), alone), alone)
}

func TestAOFAcksNeedAServerThatHasThem(t *testing.T) {
	for _, aof := range []string{"yes", "no"} {
		w := onOwn(t, "--appendonly", aof, "--appendfsync", "always")
		patient := func(o *redis.Options) { o.ReadTimeout = 2 * w.limit } // a disk may be slow
		p := w.peerOn(patient, relock.WithAOFAcks(0, w.limit))
		has := w.plain.Do(t.Context(), "WAITAOF", 0, 0, 0).Err() == nil
		err := p.Check(t.Context())
		switch {
		case !has: // before Redis 7.2
			require.ErrorContains(t, err, "unknown command 'WAITAOF'")
		case aof == "no":
			require.ErrorContains(t, err, "appendonly is disabled")
		default:
			require.NoError(t, err)
			w.start(t.Context(), p.NewLock("a")).leave()
		}
		w.requireFree("a")
	}
}

func TestTooFewReplicaAcksUndoExactlyThisEntry(t *testing.T) {
	const timeout = 80 * time.Millisecond
	w, replica := withReplica(t)
	one := w.peer()
	err := w.start(t.Context(), one.NewLock("a", relock.WithReplicaAcks(2, timeout))).within(timeout + atOnce).failure()
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	require.ErrorContains(t, err, "1 of 2")
	w.requireFree("a")

	// With the replica stopped nobody confirms a grant; and the lock goes on to the next.
	l := one.NewLock("a", relock.WithReplicaAcks(1, timeout))
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner)
	waiter := w.start(t.Context(), l)
	w.awaitWaiters("a", 1)
	behind := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 2)
	replica.Pause()
	w.leave(section, owner)
	require.ErrorIs(t, waiter.within(timeout+atOnce).failure(), relock.ErrNotReplicated)
	behind.leave()
	w.requireFree("a")

	// Also where an attempt comes late.
	stuck := one.faults.Once(w.script(luaAcquire), redistest.Hold())
	require.ErrorIs(t, w.start(t.Context(), l).within(timeout+w.limit).failure(), relock.ErrNotReplicated)
	stuck.Release(t)
	w.requireFree("a")

	// A section that is held already keeps what it has.
	plain := one.NewLock("a")
	outer := w.enter(t.Context(), plain)
	inner := w.enter(outer, l)
	w.requireCount("a", 2)
	w.leave(inner, l)
	w.leave(outer, plain)
	replica.Resume()
	w.start(t.Context(), l).leave()
}

func TestConfirmationsMayTakeLongerThanAThirdOfTheTTL(t *testing.T) {
	w := onShared(t)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 2 * w.limit }, relock.WithTTL(time.Second), relock.WithAOFAcks(0, 700*time.Millisecond))
	l := p.NewLock("a")
	slow := func([]string) { <-time.After(600 * time.Millisecond) } // as a disk
	p.faults.On(redistest.Named("WAITAOF"), redistest.Before(slow))
	answers := p.faults.On(redistest.Named("WAITAOF"), redistest.Answer("*2\r\n:1\r\n:0"))
	section, err := l.TryLock(t.Context())
	require.NoError(t, err)
	keep(t, section)
	require.Equal(t, 1, answers.Hits())
	w.leave(section, l)
	w.requireFree("a")
}
