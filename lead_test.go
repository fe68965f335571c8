package relock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/stage"
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
		return ctx, c.NewLock("a").Lead(ctx, func(section context.Context) error {
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
		require.False(t, relock.NotEntered(one.Err))
		require.True(t, relock.NotEntered(two.Err))
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
		require.False(t, relock.NotEntered(err))
	})
}

func TestLeadGoesOnAfterPassingTrouble(t *testing.T) {
	for name, trouble := range map[string]error{
		"replicas":  store.ErrNotReplicated,
		"an outage": store.Unavailable(stage.ErrOdd),
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				c := w.NewClient()
				trouble := c.Link.On(stage.Refuse(trouble), stage.CmdWait)
				leading := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
					return ctx, c.NewLock("a").Lead(ctx, func(context.Context) error { return nil })
				})
				stage.Pass(relock.DefaultTTL - time.Second)
				require.True(t, leading.Waits())
				require.EqualValues(t, 3, trouble.Hits.Load(), "once in a third of the TTL")
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
			"no context":     {c.NewLock("a").Lead(none, run), relock.ErrInvalid},
			"no function":    {c.NewLock("a").Lead(t.Context(), nil), relock.ErrInvalid},
			"a wrong name":   {c.NewLock("").Lead(t.Context(), run), relock.ErrInvalid},
			"a zero lock":    {new(relock.Lock).Lead(t.Context(), run), relock.ErrInvalid},
			"closed":         {closed.NewLock("a").Lead(t.Context(), run), relock.ErrClosed},
			"a lost section": {c.NewLock("a").Lead(lost, run), relock.ErrLockLost},
			"refused":        {refused.NewLock("a").Lead(t.Context(), run), stage.ErrOdd},
			"unsure":         {unsure.NewLock("a").Lead(t.Context(), run), stage.ErrOdd},
		} {
			require.ErrorIs(t, r.err, r.want, name)
			require.True(t, relock.NotEntered(r.err), name)
		}
	})
}

func TestCloseEndsALeadThatWaitsForItsNextCampaign(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		c := w.NewClient()
		c.Link.On(stage.Refuse(store.ErrNotReplicated), stage.CmdWait)
		leading := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
			return ctx, c.NewLock("a").Lead(ctx, func(context.Context) error { return nil })
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
		finished := func() relock.AcquireFinished {
			all := stage.EventsOf[relock.AcquireFinished](&r)
			return all[len(all)-1]
		}
		require.NoError(t, l.Lead(t.Context(), func(ctx context.Context) error {
			require.True(t, finished().Leader)
			return l.Do(ctx, func(context.Context) error {
				require.True(t, finished().Leader, "an entry of a hold that Lead has begun")
				return nil
			})
		}))
		require.True(t, stage.EventsOf[relock.Released](&r)[0].Leader)
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.False(t, finished().Leader)
		require.False(t, stage.EventsOf[relock.Released](&r)[1].Leader)

		_ = w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
			return ctx, l.Lead(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		})
		w.Store.Lose("a")
		stage.Pass(relock.DefaultTTL)
		require.True(t, stage.EventsOf[relock.Lost](&r)[0].Leader)
		require.NoError(t, c.Close())
		require.True(t, stage.EventsOf[relock.Closed](&r)[0].Leader)
	})
}
