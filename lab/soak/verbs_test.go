package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/lab/soak/history"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/once"
)

// leads campaigns for a while. Each term is a section. Some visits do a job once instead.
func (v *visitor) leads(ctx context.Context, cancel context.CancelFunc) {
	if !v.fake && v.IntN(3) == 0 {
		v.job(ctx)
		return
	}
	l := v.peer.NewLock(chief, v.options()...)
	stop := time.AfterFunc(upTo(v.Rand, 3*v.ttl), cancel) // ends the wait, or the term
	defer stop.Stop()
	asked := v.log.Now()
	err := leader.Run(ctx, l, func(term context.Context) error {
		s := v.begin(term, l, 1, v.log.Hold(), asked)
		for range v.IntN(4) {
			v.linger()
			v.look(s)
			v.draw(s)
			v.eval(s)
		}
		v.look(s)
		s.Left = s.Out
		v.record(s)
		asked = v.log.Now() // of the next campaign, after a loss
		return nil
	})
	if err == nil {
		v.tally("Lead: ok")
		return
	}
	v.failed("Lead", err, !errors.Is(err, relock.ErrNotEntered)) // otherwise the error is of an Unlock
}

// eval asks Redis for a look at the lock, where the store has scripts.
func (v *visitor) eval(s *stay) {
	if v.IntN(3) > 0 {
		return
	}
	at := v.log.Now()
	_, err := s.lock.Eval(s.ctx, "return 1", nil)
	s.Out = v.log.Now()
	switch {
	case errors.Is(err, errors.ErrUnsupported):
	case err == nil:
		v.tally("Eval: ok")
		s.Sure = max(s.Sure, at)
	case s.isLost(err):
		v.tally("Eval: lost")
		if s.Lost == 0 {
			s.Lost = s.Out
		}
	default:
		v.tally("Eval: failed")
	}
}

// transactor is a world in which a transaction of the caller can have a lock.
type transactor interface {
	// transact runs work in a transaction with the lock. Without an error the transaction is
	// committed.
	transact(ctx context.Context, p *peer, name string, work func()) error
}

// transacts takes one of the parts for a transaction. Only a commit shows that the transaction has
// had the lock to its end.
func (v *visitor) transacts(ctx context.Context, w transactor) {
	s := &stay{Section: history.Section{
		Lock: v.parts[v.IntN(len(v.parts))], Client: v.id, Group: v.log.Hold(), Limit: 1, Ask: v.log.Now(),
	}}
	ctx, cancel := context.WithTimeout(ctx, 3*v.ttl)
	defer cancel()
	err := w.transact(ctx, v.peer, s.Lock, func() {
		s.In = v.log.Now()
		v.linger()
		s.Sure = v.log.Now()
	})
	switch {
	case err == nil:
		v.tally("LockTx: ok")
		s.Lease, s.Left, s.Out = s.Sure, s.Sure, v.log.Now()
		v.record(s)
	case errors.Is(err, relock.ErrLocked):
		v.tally("LockTx: refused")
	default:
		v.tally("LockTx: failed")
	}
}

// job does a job of this moment once, with a result of its own. Whoever asks gets the same result,
// unless a fault has taken it out of Redis.
func (v *visitor) job(ctx context.Context) {
	o, err := once.New(v.peer.Client, once.WithRetention(time.Hour))
	if err != nil { // other stores, and Redisson's layout
		return
	}
	defer o.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*v.ttl)
	defer cancel()
	asked := v.log.Now()
	key := fmt.Sprint("job", int(asked/(300*time.Millisecond))-v.IntN(3))
	result, _, err := once.Do(ctx, o, key, func(context.Context, once.Attempt) (int, error) {
		v.linger()
		if v.IntN(8) == 0 {
			return 0, errors.New("not done")
		}
		return v.log.Hold(), nil
	})
	if err != nil {
		v.tally("once: failed")
		return
	}
	v.tally("once: ok")
	if other := v.kinds.results.other(key, result, asked); other != 0 {
		v.wrong.add("%q was done with the results %d and %d", key, other, result)
	}
}

// results are those of the jobs since a fault has last taken data away.
type results struct {
	mu    sync.Mutex
	since time.Duration
	all   map[string]int
}

// other returns an earlier result of a job if it is another one. 0: there is none. A call that began
// before the last loss of data says nothing.
func (r *results) other(key string, result int, asked time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if asked < r.since {
		return 0
	}
	if other, is := r.all[key]; is && other != result {
		return other
	}
	r.all[key] = result
	return 0
}

func (r *results) gone(at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since, r.all = at, map[string]int{}
}

func TestTwoResultsOfAJobAreNoticed(t *testing.T) {
	var r results
	r.gone(0)
	require.Zero(t, r.other("a", 1, 1))
	require.Zero(t, r.other("a", 1, 2))
	require.Equal(t, 1, r.other("a", 2, 3))
	r.gone(4)
	require.Zero(t, r.other("a", 3, 3))
	require.Zero(t, r.other("a", 2, 5))
}
