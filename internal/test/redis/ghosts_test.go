package redis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/ticket"
)

// What does a place in the queue do whose wait is over? A replica that was behind brings it back when
// it becomes the master.

// place is a place in the queue of a lock.
type place struct {
	key    string
	member redis.Z
}

// firstPlace returns the first place in a queue, once there is one.
func firstPlace(w *stage.Arena, key string) place {
	w.T.Helper()
	var members []redis.Z
	redistest.Eventually(w.T, w.Limit, func() bool {
		var err error
		members, err = w.Plain.ZRangeWithScores(w.T.Context(), key, 0, 0).Result()
		require.NoError(w.T, err)
		return len(members) > 0
	}, "somebody waits")
	return place{key, members[0]}
}

func TestAWaitThatIsOverGivesItsLockBack(t *testing.T) {
	w := stage.OnShared(t)
	owner, client := w.Peer(), w.Peer()
	mutex := func(c *relock.Client, name string) *relock.Lock { return c.NewLock(name) }
	writer := func(c *relock.Client, name string) *relock.Lock { return c.NewRWLock(name).Writer() }
	reader := func(c *relock.Client, name string) *relock.Lock { return c.NewRWLock(name).RLocker() }
	permit := func(c *relock.Client, name string) *relock.Lock { return c.NewSemaphore(name, 1) }
	for kind, is := range map[string]struct {
		suffix       string
		owner, ghost func(*relock.Client, string) *relock.Lock
	}{
		"mutex":  {":queue", mutex, mutex},
		"reader": {":rw:queue", writer, reader},
		"writer": {":rw:queue", writer, writer},
		"permit": {":permits:queue", permit, permit},
	} {
		t.Run(kind, func(t *testing.T) {
			w := w.In(t)
			name := "ghost of a " + kind
			theirs, queue := is.owner(owner.Client, name), stage.BaseKey(name)+is.suffix

			section := w.Enter(t.Context(), theirs)
			over := w.Start(t.Context(), is.ghost(client.Client, name))
			ghost := firstPlace(w, queue)
			w.Leave(section, theirs)
			over.Leave()

			section = w.Enter(t.Context(), theirs)
			next := w.Start(t.Context(), is.owner(client.Client, name))
			firstPlace(w, queue)
			require.NoError(t, w.Plain.ZAdd(t.Context(), ghost.key, ghost.member).Err())
			require.Equal(t, ghost.member.Member, firstPlace(w, queue).member.Member)
			w.Leave(section, theirs)
			next.Leave()
		})
	}
}

func TestAMessageThatComesTwiceEndsNoHold(t *testing.T) {
	w := stage.OnShared(t)
	owner, client := w.Peer(), w.Peer()
	theirs, ours := owner.NewLock("twice"), client.NewLock("twice")
	section := w.Enter(t.Context(), theirs)
	attempt := w.Start(t.Context(), ours)
	hold, _, _ := strings.Cut(firstPlace(w, stage.BaseKey("twice")+":queue").member.Member.(string), "|")
	w.Leave(section, theirs)
	section = attempt.Section()
	for range 100 {
		require.NoError(t, w.Plain.Publish(t.Context(), stage.BaseKey("twice")+":"+client.ID(), hold).Err())
	}
	next := w.Start(t.Context(), theirs)
	require.False(t, next.Comes(100*time.Millisecond))
	w.Leave(section, ours)
	next.Leave()
}

// TestALateGrantFreesNothingThatLives sends the grant of a hold again when its section has ended, and
// something of the hold is in Redis yet.
func TestALateGrantFreesNothingThatLives(t *testing.T) {
	w := stage.OnShared(t)
	owner, client, far := w.Peer(), w.Peer(), w.Peer()
	for what, leaves := range map[string]func(w *stage.Arena, l *relock.Lock, section context.Context) (unlock func()){
		"an open loan": func(w *stage.Arena, l *relock.Lock, section context.Context) func() {
			given, err := ticket.Lend(section, l)
			require.NoError(w.T, err)
			loan, err := ticket.Borrow(w.T.Context(), far.NewLock(l.Name()), given)
			require.NoError(w.T, err)
			w.Leave(section, l)
			return func() { w.Leave(loan, far.NewLock(l.Name())) }
		},
		"a hand-off": func(w *stage.Arena, l *relock.Lock, section context.Context) func() {
			given, err := ticket.HandOff(section, l)
			require.NoError(w.T, err)
			return func() {
				there, err := ticket.Accept(w.T.Context(), far.NewLock(l.Name()), given)
				require.NoError(w.T, err)
				w.Leave(there, far.NewLock(l.Name()))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := w.In(t)
			theirs, ours := owner.NewLock("late "+what), client.NewLock("late "+what)
			section := w.Enter(t.Context(), theirs)
			attempt := w.Start(t.Context(), ours)
			hold, _, _ := strings.Cut(firstPlace(w, stage.BaseKey(ours.Name())+":queue").member.Member.(string), "|")
			w.Leave(section, theirs)
			unlock := leaves(w, ours, attempt.Section())
			next := w.Start(t.Context(), ours) // which listens on the channel of the grant
			w.AwaitWaiters(ours.Name(), 1)

			answers := client.Faults.On(w.Script(stage.LuaForget, stage.LuaRecall), redistest.After(func([]string, string) {}))
			for _, id := range []string{hold, client.ID() + ":0:0"} { // the answer to the second shows that the first was heard
				require.NoError(t, w.Plain.Publish(t.Context(), stage.BaseKey(ours.Name())+":"+client.ID(), id).Err())
			}
			answers.WaitHits(t, 1)
			require.True(t, next.Waits())
			require.Equal(t, hold, string(w.Owner(ours.Name())))
			unlock()
			next.Leave()
		})
	}
}
