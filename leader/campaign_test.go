package leader_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// Does a candidate know whether it leads?

// isClosed says whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// panics is a context whose Value panics.
type panics struct{ context.Context }

func (panics) Value(any) any { panic("broken") }

// late is a context of another package, whose Err panics when it has ended.
type late struct {
	context.Context
	done chan struct{}
}

func (l *late) Done() <-chan struct{} { return l.done }
func (l *late) Value(any) any         { return nil }
func (l *late) Err() error {
	if isClosed(l.done) {
		panic("broken")
	}
	return nil
}

// leaders says how many of some candidates lead.
func leaders(all ...*leader.Candidacy) (n int) {
	for _, c := range all {
		if c.IsLeader() {
			n++
		}
	}
	return n
}

func TestOneCandidateLeads(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		ctx, stop := context.WithCancel(t.Context())
		first := leader.Campaign(ctx, w.NewClient(relock.WithOwner("10.0.0.7:80")).NewLock("a"))
		stage.Settle()
		second := leader.Campaign(t.Context(), w.NewClient().NewLock("a"))
		stage.Settle()
		third := leader.Campaign(t.Context(), w.NewClient().NewLock("a"))
		stage.Settle()
		require.True(t, first.IsLeader())
		require.Equal(t, 1, leaders(first, second, third))
		require.NoError(t, first.Context().Err())
		require.Nil(t, second.Context())
		state, err := w.NewClient().NewLock("a").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, "10.0.0.7:80", state.Holder.Owner(), "others find the address")

		changes := second.Changes()
		require.False(t, isClosed(changes))
		second.Resign() // does not lead
		require.True(t, first.IsLeader())
		first.Resign()
		stage.Settle()
		require.True(t, isClosed(changes))
		require.True(t, second.IsLeader(), "in the order of their candidacies")
		led := second.Context()
		second.Resign()
		require.False(t, second.IsLeader(), "at once")
		stage.Settle()
		require.Equal(t, leader.ErrResigned, context.Cause(led))
		require.True(t, third.IsLeader())
		third.Resign()
		stage.Settle()
		require.True(t, first.IsLeader(), "who resigns is a candidate again")

		require.NoError(t, first.Err())
		stop()
		stage.Settle()
		require.True(t, isClosed(first.Done()))
		require.ErrorIs(t, first.Err(), context.Canceled)
		require.False(t, first.IsLeader())
		require.True(t, second.IsLeader())
	})
}

// Followers tell leaders apart by their holds.
func TestALeaderDoesNotPassItsLockOn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewPassing()
		var all []*leader.Candidacy
		for range 3 {
			all = append(all, leader.Campaign(t.Context(), m.NewLock("a")))
			stage.Settle()
		}
		for range all[1:] { // the second one is granted the lock with the third one behind it
			owner := w.Owner("a")
			led := slices.IndexFunc(all, (*leader.Candidacy).IsLeader)
			all[led].Resign()
			stage.Pass(time.Second)
			require.Equal(t, 1, leaders(all...))
			require.NotEqual(t, owner, w.Owner("a"))
		}
	})
}

func TestALeaderWithoutAStoreKnowsBeforeTheNextOneLeads(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		first := leader.Campaign(t.Context(), m.NewLock("a"))
		stage.Settle()
		second := leader.Campaign(t.Context(), w.NewClient().NewLock("a"))
		stage.Settle()
		m.Link.Cut()
		for range 100 {
			stage.Pass(relock.DefaultTTL / 40)
			require.LessOrEqual(t, leaders(first, second), 1)
		}
		require.True(t, second.IsLeader())
		m.Link.Heal()
		stage.Pass(time.Second) // it has a place in the queue
		second.Resign()
		stage.Pass(relock.DefaultTTL)
		require.True(t, first.IsLeader(), "it has campaigned again")
	})
}

func TestACandidacyEndsWithItsClientAndWithABadLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		leads, waits := leader.Campaign(t.Context(), m.NewLock("a")), leader.Campaign(t.Context(), m.NewLock("a"))
		bad := leader.Campaign(t.Context(), m.NewLock(""))
		stage.Settle()
		require.ErrorIs(t, bad.Err(), relock.ErrInvalid)
		require.True(t, isClosed(bad.Done()))
		require.True(t, isClosed(bad.Changes()), "nobody waits for a change that never comes")
		require.ErrorIs(t, leader.Campaign(t.Context(), new(relock.Lock)).Err(), relock.ErrInvalid)
		broken := leader.Campaign(panics{t.Context()}, m.NewLock("b"))
		<-broken.Done()
		require.Error(t, broken.Err())
		require.NoError(t, m.Close())
		for _, c := range []*leader.Candidacy{leads, waits} {
			<-c.Done()
			require.ErrorIs(t, c.Err(), relock.ErrClosed)
			require.False(t, c.IsLeader())
			require.True(t, isClosed(c.Changes()))
			c.Resign()
		}
		stage.Pass(time.Minute)
	})
}

func TestAContextThatPanicsInAPauseEndsItsCandidacyOnly(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		away := m.Link.On(stage.Refuse(store.Unavailable(stage.ErrOdd)), stage.CmdWait)
		ctx := &late{t.Context(), make(chan struct{})}
		c := leader.Campaign(relock.WithStop(ctx, t.Context()), m.NewLock("a"))
		stage.Pass(time.Minute)
		require.Positive(t, away.Hits.Load())
		close(ctx.done)
		<-c.Done()
		require.Error(t, c.Err())
		require.NoError(t, m.Close())
	})
}

func TestTheEndOfACandidacyIsLogged(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		other := w.NewClient().NewRWLock("a").Writer()
		w.Enter(t.Context(), other)
		var book stage.Logbook
		m := w.NewClient(relock.WithLogger(book.Logger()))
		wrong := leader.Campaign(t.Context(), m.NewLock("a"))
		<-wrong.Done()
		require.ErrorIs(t, wrong.Err(), relock.ErrKind)
		line := book.RequireOne(t, "candidacy ended", slog.LevelError, "lock", "error")
		require.ErrorIs(t, line.Attrs["error"].(error), relock.ErrKind)

		ctx, cancel := context.WithCancel(t.Context())
		stop, shutDown := context.WithCancel(t.Context())
		first := leader.Campaign(ctx, m.NewLock("b"))
		stage.Settle()
		require.True(t, first.IsLeader())
		second := leader.Campaign(ctx, m.NewLock("b"))
		waits, third := leader.Campaign(relock.WithStop(t.Context(), stop), m.NewLock("b")), leader.Campaign(t.Context(), m.NewLock("b"))
		stage.Settle()
		shutDown()
		<-waits.Done()
		cancel()
		<-first.Done()
		<-second.Done()
		require.NoError(t, m.Close())
		<-third.Done()
		require.Len(t, book.About("candidacy ended"), 1, "the others end as they were told to")
	})
}

// TestTheResignationOfAnotherEndsACandidacyUnderIt is in real time, as a candidacy that goes round
// and round stops fake time.
func TestTheResignationOfAnotherEndsACandidacyUnderIt(t *testing.T) {
	for name, under := range map[string]func(leading context.Context) context.Context{
		"the context of the other": func(leading context.Context) context.Context { return leading },
		"a stop with the other":    func(leading context.Context) context.Context { return relock.WithStop(context.Background(), leading) },
	} {
		t.Run(name, func(t *testing.T) {
			client, err := relock.Open(mem.New())
			require.NoError(t, err)
			end := func(c <-chan struct{}) {
				t.Helper()
				select {
				case <-c:
				case <-time.After(time.Minute): // against a hang
					require.Fail(t, "no end")
				}
			}
			outer := leader.Campaign(t.Context(), client.NewLock("outer"))
			for changes := outer.Changes(); !outer.IsLeader(); changes = outer.Changes() {
				end(changes)
			}
			inner := leader.Campaign(under(outer.Context()), client.NewLock("inner"))
			for changes := inner.Changes(); !inner.IsLeader(); changes = inner.Changes() {
				end(changes)
			}
			outer.Resign()
			inner.Resign() // of a leader under a stop, who goes on
			end(inner.Done())
			require.ErrorIs(t, inner.Err(), leader.ErrResigned)
			require.NoError(t, client.Close())
		})
	}
}

// stuck is a link whose watch of the store never begins, as a store that does not answer: it holds
// the watchdog up.
type stuck struct {
	*stage.Link
	watches chan struct{}
}

func (s *stuck) Watch(string, func(store.ID)) (stop func()) { <-s.watches; return func() {} }

func TestNobodyLeadsBehindItsLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &stuck{stage.NewLink(w.Store), make(chan struct{})}
		client, err := relock.Open(s)
		require.NoError(t, err)
		c := leader.Campaign(t.Context(), client.NewLock("a"))
		stage.Pass(time.Second)
		led := c.Context()
		require.NotNil(t, led)
		stage.Pass(relock.DefaultTTL)
		require.NoError(t, led.Err(), "the watchdog stands still")
		require.False(t, c.IsLeader())
		require.Nil(t, c.Context())
		close(s.watches)
		require.NoError(t, client.Close())
	})
}
