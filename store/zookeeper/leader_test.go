package relockzk_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/tcptest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// stale is the syncLimit of a leader that leads for longer than a test takes, though its followers
// are gone.
const stale = 500

// election is enough for the followers to elect one of themselves. A follower that is the first to
// miss the leader may choose it again, and try to reach it for initLimit, some times over.
const election = time.Minute

// lead returns the leader of an ensemble, and its followers.
func lead(t *testing.T, servers []*zktest.Server) (leader *zktest.Server, followers []*zktest.Server) {
	t.Helper()
	for _, s := range servers {
		if s.Leads() {
			leader = s
		} else {
			followers = append(followers, s)
		}
	}
	require.NotNil(t, leader)
	return leader, followers
}

// extend makes a lease last until the next hold is in, and returns the last deadline of the lease.
func extend(t *testing.T, l store.Lease, next *holds.Waiter, again func(context.Context) (store.Lease, error)) time.Time {
	t.Helper()
	late := time.After(election + patience)
	for until := l.Until(); ; {
		ctx, cancel := context.WithTimeout(t.Context(), shortLease/5)
		if l, err := again(ctx); err == nil && l.Until().After(until) {
			until = l.Until()
		}
		cancel()
		select {
		case <-next.Done:
			return until
		case <-late:
			return until
		case <-time.After(shortLease / 20):
		}
	}
}

// The followers elect another leader, and the old leader does not notice: it answers its own clients
// while it waits for its followers. The new leader ends the session of the hold, and lets the next
// hold in.
func TestLeaderWithoutFollowersMakesNoLeaseLast(t *testing.T) {
	leader, followers := lead(t, zktest.StartEnsemble(t, stale))
	other := open(t, zktest.Addresses(followers))
	type extended struct {
		next  *holds.Waiter
		until chan time.Time
	}
	all := make(map[string]extended)
	for way, again := range map[string]func(context.Context, *relockzk.Store, store.Lease) (store.Lease, error){
		"renew": func(ctx context.Context, s *relockzk.Store, l store.Lease) (store.Lease, error) {
			l.Sent = time.Now()
			return l, s.Renew(ctx, []store.Renewal{{Lease: l, TTL: l.TTL, Count: 1}})[0]
		},
		"enter": func(ctx context.Context, s *relockzk.Store, l store.Lease) (store.Lease, error) {
			return s.Enter(ctx, l, 1)
		},
		"grant": func(ctx context.Context, s *relockzk.Store, l store.Lease) (store.Lease, error) {
			return s.Try(ctx, l.Claim)
		},
	} {
		s := open(t, leader.Address(), relockzk.WithSessionTimeout(shortSession))
		a, b := claim(shortLease), claim(20*time.Second)
		a.Name, b.Name = way, way
		l, err := s.Wait(t.Context(), a, holds.Nothing)
		require.NoError(t, err)
		h := extended{next: holds.Start(t, other, b), until: make(chan time.Time, 1)}
		go func() {
			h.until <- extend(t, l, h.next, func(ctx context.Context) (store.Lease, error) { return again(ctx, s, l) })
		}()
		h.next.AwaitQueued(t)
		all[way] = h
	}
	leader.CutFollowers()
	elected := func() bool { return followers[0].Leads() || followers[1].Leads() }
	require.Eventually(t, elected, election, election/1000, "the followers elect nobody")
	for way, h := range all {
		h.next.Get(t)
		until := <-h.until
		assert.False(t, h.next.At.Before(until), "%s: another hold is in %v before the lease ends", way, until.Sub(h.next.At))
	}
	require.True(t, leader.Leads(), "the old leader has noticed")
}

// The answer of a renewal is held back. What comes behind counts from before the renewal.
func TestLeaseCountsFromBeforeTheProofOfItsSession(t *testing.T) {
	server := zktest.Start(t)
	proxy := tcptest.NewProxy(t, server.Address())
	s := open(t, proxy.Address(), long)
	l := take(t, s, 10*time.Minute)
	for name, prove := range map[string]func() error{
		"renewal": func() error { return s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: l.TTL, Count: 1}})[0] },
		"entry":   func() error { _, err := s.Enter(t.Context(), l, 1); return err },
		"write":   func() error { _, err := s.Enter(t.Context(), l, 2); return err },
	} {
		held, proved := proxy.Stall(), make(chan error, 1)
		go func() { proved <- prove() }()
		<-held
		sent := time.Now()
		proxy.Resume()
		require.NoError(t, <-proved)
		again, err := s.Try(t.Context(), l.Claim)
		require.NoError(t, err)
		require.True(t, again.Sent.Before(sent), "%s: the lease counts from %v after it was sent", name, again.Sent.Sub(sent))
		require.True(t, again.Sent.After(l.Sent), "%s: the lease is not renewed", name)
		l = again
	}
}

// The session of a waiter was shown to be there when the waiter queued. That is too long ago for a
// lease when its turn comes.
func TestGrantAfterALongWaitHasAWholeLease(t *testing.T) {
	server := zktest.Start(t)
	holder, s := open(t, server.Address(), long), open(t, server.Address(), long)
	for name, claims := range map[string][2]store.Claim{
		"mutex":  {claim(time.Minute), claim(300 * time.Millisecond)},
		"writer": {mode(store.Unlimited), mode(1)},
		"reader": {mode(1), mode(store.Unlimited)},
	} {
		claims[1].TTL = 300 * time.Millisecond
		l, err := holder.Wait(t.Context(), claims[0], holds.Nothing)
		require.NoError(t, err)
		next := holds.Wait(t, s, claims[1])
		<-time.After(claims[1].TTL)
		released := time.Now()
		require.NoError(t, holder.Release(t.Context(), l))
		granted := next.Get(t)
		require.False(t, granted.Sent.Before(released), "%s: the lease counts from %v before its turn", name, released.Sub(granted.Sent))
		if name == "reader" {
			require.Zero(t, granted.Token, "a reader draws its token when it is asked for, as upgrades may come before it")
		}
		require.NoError(t, s.Release(t.Context(), granted))
	}
}

// Packets of a server are counted.
func TestCommandsAreFew(t *testing.T) {
	server := zktest.Start(t)
	s := open(t, server.Address(), long)
	const many = 250
	var renewals []store.Renewal
	for i := range many {
		a := claim(10 * time.Minute)
		a.Name = fmt.Sprint("many/", i)
		l, err := s.Wait(t.Context(), a, holds.Nothing)
		require.NoError(t, err)
		renewals = append(renewals, store.Renewal{Lease: l, TTL: l.TTL, Count: 1})
	}
	one := renewals[0].Lease
	count := func(n int) { renewals[0].Count = n }
	for _, c := range []struct {
		name     string
		commands int
		run      func() error
	}{
		{"pair", 3, func() error { return s.Release(t.Context(), take(t, s, 10*time.Minute)) }},
		{"entry", 1, func() error { _, err := s.Enter(t.Context(), one, 1); return err }},
		{"entry that is noted", 1, func() error { _, err := s.Enter(t.Context(), one, 2); return err }},
		{"renewal", 1, func() error { count(2); return errors.Join(s.Renew(t.Context(), renewals[:1])...) }},
		{"renewal of 250", 3, func() error { return errors.Join(s.Renew(t.Context(), renewals)...) }},
		{"renewal of 250 with a new count", 3, func() error { count(1); return errors.Join(s.Renew(t.Context(), renewals)...) }},
	} {
		require.NoError(t, s.Release(t.Context(), take(t, s, 10*time.Minute))) // the path of the lock
		before := server.Requests() + 1                                        // the question itself
		require.NoError(t, c.run())
		assert.Equal(t, c.commands, server.Requests()-before, c.name)
	}
}

// A follower reports the life of a session to the leader each half tick. Here it stops right behind
// the command that takes the lock, and the client has no other server. Before that command the Store
// had nothing to send for nearly a third of the session, after which the client library sends a ping.
func TestSessionThatWasIdleOutlastsTheLease(t *testing.T) {
	leader, followers := lead(t, zktest.StartEnsemble(t, stale))
	const session = 12 * time.Second
	s, other := open(t, followers[0].Address(), relockzk.WithSessionTimeout(session)), open(t, leader.Address())
	a := claim(session * 3 / 4)
	require.NoError(t, s.CheckServer(t.Context(), a))
	<-time.After(session * 3 / 10)
	l, err := s.Try(t.Context(), a)
	require.NoError(t, err)
	followers[0].Pause()
	next := wait(t, other, 20*time.Second)
	next.Get(t)
	require.False(t, next.At.Before(l.Until()), "another hold is in %v before the lease ends", l.Until().Sub(next.At))
}
