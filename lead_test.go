package relock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// Who leads, and when does another one take over?

// candidate is a process that calls Lead. Its function reports its context, and goes on until the
// context ends, or until the test gives it a result.
type candidate struct {
	*member
	*attempt
	terms  chan context.Context // the section of each run of the function
	result chan error
}

func (w *world) newCandidate(ctx context.Context, options ...relock.Option) *candidate {
	w.t.Helper()
	c := &candidate{member: w.NewClient(options...), terms: make(chan context.Context, 10), result: make(chan error)}
	c.attempt = w.begin(ctx, func(ctx context.Context) (context.Context, error) {
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
	settle()
	select {
	case <-c.terms:
		return true
	default:
		return false
	}
}

var errMine = errors.New("mine")

func TestOneLeadsAndTheNextOneTakesOver(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		one, two := w.newCandidate(t.Context()), w.newCandidate(t.Context())
		require.True(t, one.leads())
		pass(5 * relock.DefaultTTL)
		require.False(t, two.leads(), "the leader is kept alive")
		one.result <- nil
		require.NoError(t, one.failure())
		require.True(t, two.leads())
		two.result <- errMine
		require.Equal(t, errMine, two.failure(), "the error of the function, with nothing around it")
		w.requireFree("a")
	})
}

func TestALeaderThatLosesItsLockCampaignsAgain(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		one, two := w.newCandidate(t.Context()), w.newCandidate(t.Context())
		require.True(t, one.leads())
		cut := one.link.cut()
		pass(relock.DefaultTTL)
		require.True(t, two.leads(), "a leader without a store is followed")
		cut.end()
		pass(time.Minute)
		require.True(t, one.waits(), "the error of a lost term is dropped")
		require.False(t, one.leads())
		two.result <- nil
		require.NoError(t, two.failure())
		require.True(t, one.leads())
		one.result <- nil
		require.NoError(t, one.failure())
	})
}

func TestLeadEndsWithItsContext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancelCause(t.Context())
		one, two := w.newCandidate(ctx), w.newCandidate(ctx)
		require.True(t, one.leads())
		cancel(errOdd)
		for _, c := range []*candidate{one, two} {
			require.ErrorIs(t, c.failure(), errOdd)
		}
		require.ErrorIs(t, one.err, errMine, "the function has run")
		require.False(t, relock.NotEntered(one.err))
		require.True(t, relock.NotEntered(two.err))
		require.ErrorIs(t, two.err, relock.ErrLocked)
		w.requireFree("a")
	})
}

func TestALossThatOnlyUnlockFindsEndsLead(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		one := w.newCandidate(t.Context())
		require.True(t, one.leads())
		w.Lose("a")
		one.result <- nil // before any renewal
		err := one.failure()
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.False(t, relock.NotEntered(err))
	})
}

func TestLeadGoesOnAfterPassingTrouble(t *testing.T) {
	for name, trouble := range map[string]error{
		"replicas":  store.ErrNotReplicated,
		"an outage": store.Unavailable(errOdd),
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				c := w.NewClient()
				trouble := c.link.on(refuse(trouble), cmdWait)
				leading := w.begin(t.Context(), func(ctx context.Context) (context.Context, error) {
					return ctx, c.NewLock("a").Lead(ctx, func(context.Context) error { return nil })
				})
				pass(relock.DefaultTTL - time.Second)
				require.True(t, leading.waits())
				require.EqualValues(t, 3, trouble.hits.Load(), "once in a third of the TTL")
				trouble.end()
				require.NoError(t, leading.failure())
				w.requireFree("a")
			})
		})
	}
}

func TestLeadEndsWhereNobodyCanLead(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		run := func(context.Context) error { return errors.New("the function has run") }
		c := w.NewClient()
		closed := w.NewClient()
		require.NoError(t, closed.Close())
		lost := w.enter(t.Context(), c.NewLock("a"))
		w.Lose("a")
		<-lost.Done()
		var none context.Context
		refused := w.NewClient()
		refused.link.on(refuse(errOdd), cmdWait)
		unsure := w.NewClient() // as of a server that runs the script, and has no WAITAOF
		unsure.link.on(refuse(store.Unsure(errOdd)), cmdWait)
		for name, r := range map[string]struct {
			err, want error
		}{
			"no context":     {c.NewLock("a").Lead(none, run), relock.ErrInvalid},
			"no function":    {c.NewLock("a").Lead(t.Context(), nil), relock.ErrInvalid},
			"a wrong name":   {c.NewLock("").Lead(t.Context(), run), relock.ErrInvalid},
			"a zero lock":    {new(relock.Lock).Lead(t.Context(), run), relock.ErrInvalid},
			"closed":         {closed.NewLock("a").Lead(t.Context(), run), relock.ErrClosed},
			"a lost section": {c.NewLock("a").Lead(lost, run), relock.ErrLockLost},
			"refused":        {refused.NewLock("a").Lead(t.Context(), run), errOdd},
			"unsure":         {unsure.NewLock("a").Lead(t.Context(), run), errOdd},
		} {
			require.ErrorIs(t, r.err, r.want, name)
			require.True(t, relock.NotEntered(r.err), name)
		}
	})
}

func TestCloseEndsALeadThatWaitsForItsNextCampaign(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		c.link.on(refuse(store.ErrNotReplicated), cmdWait)
		leading := w.begin(t.Context(), func(ctx context.Context) (context.Context, error) {
			return ctx, c.NewLock("a").Lead(ctx, func(context.Context) error { return nil })
		})
		require.True(t, leading.waits())
		require.NoError(t, c.Close())
		require.ErrorIs(t, leading.failure(), relock.ErrClosed)
		require.Zero(t, leading.took())
	})
}

func TestTheLongestHoldPassesTheLeadershipOn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		term := relock.WithMaxHold(time.Minute)
		one, two := w.newCandidate(t.Context(), term), w.newCandidate(t.Context(), term)
		for range 3 {
			require.True(t, one.leads())
			pass(time.Minute)
			require.True(t, two.leads())
			pass(time.Minute)
		}
	})
}

func TestEventsKnowALeader(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		c := w.NewClient(relock.WithHooks(r.Hooks()))
		l := c.NewLock("a")
		finished := func() relock.AcquireFinished {
			all := eventsOf[relock.AcquireFinished](&r)
			return all[len(all)-1]
		}
		require.NoError(t, l.Lead(t.Context(), func(ctx context.Context) error {
			require.True(t, finished().Leader)
			return l.Do(ctx, func(context.Context) error {
				require.True(t, finished().Leader, "an entry of a hold that Lead has begun")
				return nil
			})
		}))
		require.True(t, eventsOf[relock.Released](&r)[0].Leader)
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.False(t, finished().Leader)
		require.False(t, eventsOf[relock.Released](&r)[1].Leader)

		_ = w.begin(t.Context(), func(ctx context.Context) (context.Context, error) {
			return ctx, l.Lead(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		})
		w.Lose("a")
		pass(relock.DefaultTTL)
		require.True(t, eventsOf[relock.Lost](&r)[0].Leader)
		require.NoError(t, c.Close())
		require.True(t, eventsOf[relock.Closed](&r)[0].Leader)
	})
}
