package leader_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/store"
)

// Who leads, and when does another one take over?

// candidate is a process that calls Lead. Its function reports its context, and goes on until the
// context ends, or until the test gives it a result.
type candidate struct {
	*stage.Member
	*stage.Attempt
	terms  chan context.Context // the section of each run of the function
	result chan error
}

func newCandidate(ctx context.Context, w *stage.World, options ...relock.Option) *candidate {
	w.T.Helper()
	c := &candidate{Member: w.NewClient(options...), terms: make(chan context.Context, 10), result: make(chan error)}
	c.Attempt = w.Begin(ctx, func(ctx context.Context) (context.Context, error) {
		return ctx, leader.Run(ctx, c.NewLock("a"), func(section context.Context) error {
			c.terms <- section
			select {
			case <-section.Done():
				return errMine
			case err := <-c.result:
				return err
			}
		})
	})
	return c
}

// leads says whether the candidate has begun a term since the last look.
func (c *candidate) leads() bool {
	stage.Settle()
	select {
	case <-c.terms:
		return true
	default:
		return false
	}
}

var errMine = errors.New("mine")

func TestOneLeadsAndTheNextOneTakesOver(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		one, two := newCandidate(t.Context(), w), newCandidate(t.Context(), w)
		require.True(t, one.leads())
		stage.Pass(5 * relock.DefaultTTL)
		require.False(t, two.leads(), "the leader is kept alive")
		one.result <- nil
		require.NoError(t, one.Failure())
		require.True(t, two.leads())
		two.result <- errMine
		require.Equal(t, errMine, two.Failure(), "the error of the function, with nothing around it")
		w.RequireFree("a")
	})
}

func TestALeaderThatLosesItsLockCampaignsAgain(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		one, two := newCandidate(t.Context(), w), newCandidate(t.Context(), w)
		require.True(t, one.leads())
		cut := one.Link.Cut()
		stage.Pass(relock.DefaultTTL)
		require.True(t, two.leads(), "a leader without a store is followed")
		cut.End()
		stage.Pass(time.Minute)
		require.True(t, one.Waits(), "the error of a lost term is dropped")
		require.False(t, one.leads())
		two.result <- nil
		require.NoError(t, two.Failure())
		require.True(t, one.leads())
		one.result <- nil
		require.NoError(t, one.Failure())
	})
}

func TestLeadEndsWithItsContext(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		ctx, cancel := context.WithCancelCause(t.Context())
		one, two := newCandidate(ctx, w), newCandidate(ctx, w)
		require.True(t, one.leads())
		cancel(stage.ErrOdd)
		for _, c := range []*candidate{one, two} {
			require.ErrorIs(t, c.Failure(), stage.ErrOdd)
		}
		require.ErrorIs(t, one.Err, errMine, "the function has run")
		require.NotErrorIs(t, one.Err, relock.ErrNotEntered)
		require.ErrorIs(t, two.Err, relock.ErrNotEntered)
		require.ErrorIs(t, two.Err, relock.ErrLocked)
		w.RequireFree("a")
	})
}

func TestALossThatOnlyUnlockFindsEndsLead(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		one := newCandidate(t.Context(), w)
		require.True(t, one.leads())
		w.Store.Lose("a")
		one.result <- nil // before any renewal
		err := one.Failure()
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.NotErrorIs(t, err, relock.ErrNotEntered)
	})
}

func TestLeadGoesOnAfterPassingTrouble(t *testing.T) {
	for name, trouble := range map[string]error{
		"replicas":  store.ErrNotReplicated,
		"an outage": store.Unavailable(stage.ErrOdd),
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var book stage.Logbook
				c := w.NewClient(relock.WithLogger(book.Logger()))
				trouble := c.Link.On(stage.Refuse(trouble), stage.CmdWait)
				leading := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
					return ctx, leader.Run(ctx, c.NewLock("a"), func(context.Context) error { return nil })
				})
				stage.Pass(relock.DefaultTTL - time.Second)
				require.True(t, leading.Waits())
				require.EqualValues(t, 3, trouble.Hits.Load(), "once in a third of the TTL")
				require.NotEmpty(t, book.About("no answer yet"), "nothing waits in silence")
				trouble.End()
				require.NoError(t, leading.Failure())
				w.RequireFree("a")
			})
		})
	}
}

func TestLeadEndsWhereNobodyCanLead(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		run := func(context.Context) error { return errors.New("the function has run") }
		c := w.NewClient()
		closed := w.NewClient()
		require.NoError(t, closed.Close())
		lost := w.Enter(t.Context(), c.NewLock("a"))
		w.Store.Lose("a")
		<-lost.Done()
		var none context.Context
		refused := w.NewClient()
		refused.Link.On(stage.Refuse(stage.ErrOdd), stage.CmdWait)
		unsure := w.NewClient() // as of a server that runs the script, and has no WAITAOF
		unsure.Link.On(stage.Refuse(store.Unsure(stage.ErrOdd)), stage.CmdWait)
		for name, r := range map[string]struct {
			err, want error
		}{
			"no context":     {leader.Run(none, c.NewLock("a"), run), relock.ErrInvalid},
			"no function":    {leader.Run(t.Context(), c.NewLock("a"), nil), relock.ErrInvalid},
			"a wrong name":   {leader.Run(t.Context(), c.NewLock(""), run), relock.ErrInvalid},
			"a zero lock":    {leader.Run(t.Context(), new(relock.Lock), run), relock.ErrInvalid},
			"closed":         {leader.Run(t.Context(), closed.NewLock("a"), run), relock.ErrClosed},
			"a lost section": {leader.Run(lost, c.NewLock("a"), run), relock.ErrLockLost},
			"refused":        {leader.Run(t.Context(), refused.NewLock("a"), run), stage.ErrOdd},
			"unsure":         {leader.Run(t.Context(), unsure.NewLock("a"), run), stage.ErrOdd},
		} {
			require.ErrorIs(t, r.err, r.want, name)
			require.ErrorIs(t, r.err, relock.ErrNotEntered, name)
		}
	})
}

func TestCloseEndsALeadThatWaitsForItsNextCampaign(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		c := w.NewClient()
		c.Link.On(stage.Refuse(store.ErrNotReplicated), stage.CmdWait)
		leading := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
			return ctx, leader.Run(ctx, c.NewLock("a"), func(context.Context) error { return nil })
		})
		require.True(t, leading.Waits())
		require.NoError(t, c.Close())
		require.ErrorIs(t, leading.Failure(), relock.ErrClosed)
		require.Zero(t, leading.Took())
	})
}

func TestTheLongestHoldPassesTheLeadershipOn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		term := relock.WithMaxHold(time.Minute)
		one, two := newCandidate(t.Context(), w, term), newCandidate(t.Context(), w, term)
		for range 3 {
			require.True(t, one.leads())
			stage.Pass(time.Minute)
			require.True(t, two.leads())
			stage.Pass(time.Minute)
		}
	})
}

func TestEventsKnowALeader(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		c := w.NewClient(relock.WithHooks(r.Hooks()))
		l := c.NewLock("a")
		finished := func() event.AcquireFinished {
			all := stage.EventsOf[event.AcquireFinished](&r)
			return all[len(all)-1]
		}
		require.NoError(t, leader.Run(t.Context(), l, func(ctx context.Context) error {
			require.True(t, finished().Leader)
			return l.Do(ctx, func(context.Context) error {
				require.True(t, finished().Leader, "an entry of a hold that Lead has begun")
				return nil
			})
		}))
		require.True(t, stage.EventsOf[event.Released](&r)[0].Leader)
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.False(t, finished().Leader)
		require.False(t, stage.EventsOf[event.Released](&r)[1].Leader)

		_ = w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
			return ctx, leader.Run(ctx, l, func(ctx context.Context) error { <-ctx.Done(); return nil })
		})
		w.Store.Lose("a")
		stage.Pass(relock.DefaultTTL)
		require.True(t, stage.EventsOf[event.Lost](&r)[0].Leader)
		require.NoError(t, c.Close())
		require.True(t, stage.EventsOf[event.Closed](&r)[0].Leader)
	})
}

// follower is a process that reads who leads.
type follower struct {
	*stage.Member
	seen chan string // owners, or errors
}

func newFollower(ctx context.Context, w *stage.World) *follower {
	f := &follower{Member: w.NewClient(), seen: make(chan string, 100)}
	go func() {
		defer close(f.seen)
		for holder, err := range leader.Follow(ctx, f.NewLock("a")) {
			if err != nil {
				f.seen <- "error"
				continue
			}
			f.seen <- holder.Owner()
		}
	}()
	stage.Settle()
	return f
}

// sees returns what the follower has seen since the last look.
func (f *follower) sees() (all []string) {
	stage.Settle()
	for len(f.seen) > 0 {
		all = append(all, <-f.seen)
	}
	return all
}

func TestFollowersSeeEachLeaderAtOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		ctx, stop := context.WithCancel(t.Context())
		f := newFollower(ctx, w)
		require.Equal(t, []string{""}, f.sees(), "nobody leads")
		begun := time.Now()
		one := newCandidate(t.Context(), w, relock.WithOwner("one:80"))
		require.Equal(t, []string{"one:80"}, f.sees())
		two := newCandidate(t.Context(), w, relock.WithOwner("two:80"))
		require.Empty(t, f.sees())
		one.result <- nil
		require.Equal(t, []string{"two:80"}, f.sees())
		two.result <- nil
		require.Equal(t, []string{""}, f.sees())
		require.Zero(t, time.Since(begun), "by messages, and not by looking again")
		stop()
		require.Empty(t, f.sees())
		_, open := <-f.seen
		require.False(t, open)
	})
}

func TestFollowersLookAgainWhereNoMessageComes(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		f := newFollower(t.Context(), w)
		one := newCandidate(t.Context(), w, relock.WithOwner("one"))
		two := newCandidate(t.Context(), w, relock.WithOwner("two"))
		require.Equal(t, []string{"", "one"}, f.sees())

		lost := one.Link.On(stage.Refuse(errMine), stage.CmdAnnounce)
		deaf := two.Link.On(stage.Refuse(errMine), stage.CmdAnnounce)
		one.result <- nil
		require.Empty(t, f.sees())
		stage.Pass(relock.DefaultTTL / 3)
		require.Equal(t, []string{"two"}, f.sees())
		require.Positive(t, lost.Hits.Load()+deaf.Hits.Load())

		cut := f.Link.Cut()
		stage.Pass(relock.DefaultTTL)
		require.Contains(t, f.sees(), "error", "nothing waits in silence")
		cut.End()
		stage.Pass(relock.DefaultTTL)
		seen := f.sees()
		require.Equal(t, "two", seen[len(seen)-1], "and is told again behind an error")

		require.NoError(t, f.Close())
		require.Equal(t, []string{"error"}, f.sees())
		_, open := <-f.seen
		require.False(t, open)
		refused := 0
		for _, err := range leader.Follow(t.Context(), f.NewLock("")) {
			require.ErrorIs(t, err, relock.ErrInvalid)
			refused++
		}
		require.Equal(t, 1, refused)
		two.result <- nil
	})
}

func TestAFollowerHearsAgainThatNobodyLeads(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		f := newFollower(t.Context(), w)
		require.Equal(t, []string{""}, f.sees())
		cut := f.Link.Cut()
		stage.Pass(relock.DefaultTTL)
		require.Contains(t, f.sees(), "error")
		cut.End()
		stage.Pass(relock.DefaultTTL)
		seen := f.sees()
		require.NotEmpty(t, seen)
		require.Empty(t, seen[len(seen)-1], "nobody leads, still")
		stage.Pass(relock.DefaultTTL)
		require.Empty(t, f.sees())
	})
}

func TestAStopEndsTheCampaignsOfALeaderWithoutAStore(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		stop, shutDown := context.WithCancel(t.Context())
		m := w.NewClient()
		m.Link.On(stage.Refuse(store.Unavailable(stage.ErrOdd)), stage.CmdWait)
		leading := w.Begin(relock.WithStop(t.Context(), stop), func(ctx context.Context) (context.Context, error) {
			return ctx, leader.Run(ctx, m.NewLock("a"), nothing)
		})
		stage.Pass(time.Minute + time.Second)
		require.True(t, leading.Waits())
		shutDown()
		require.ErrorIs(t, leading.Failure(), context.Canceled)
		require.Equal(t, time.Minute+time.Second, leading.Took())
	})
}

func TestAStopEndsTheWaitOfACandidateAndNoTerm(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		stop, shutDown := context.WithCancelCause(t.Context())
		ctx := relock.WithStop(t.Context(), stop)
		one, two := newCandidate(ctx, w), newCandidate(ctx, w)
		require.True(t, one.leads())
		stage.Pass(time.Minute)
		shutDown(stage.ErrOdd)
		require.ErrorIs(t, two.Failure(), stage.ErrOdd)
		require.ErrorIs(t, two.Err, relock.ErrNotEntered)
		stage.Pass(time.Minute)
		require.True(t, one.Waits(), "the leader goes on")
		one.result <- nil
		require.NoError(t, one.Failure())
		require.ErrorIs(t, leader.Run(ctx, one.NewLock("a"), nothing), stage.ErrOdd, "and nobody new leads")
		w.RequireFree("a")
	})
}

func nothing(context.Context) error { return nil }
