package faults_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What if a server refuses commands or lacks replicas?

// This chapter is about servers that refuse, and servers with replicas.

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
