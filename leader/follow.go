package leader

import (
	"context"
	"fmt"
	"iter"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// Follow yields who has the lock, for processes that follow the leader of [Run] or [Campaign], and
// yields again when that changes, until ctx ends. The zero [relock.Holder] stands for nobody.
// [relock.Holder.Owner] is the name that the leader's client has by [relock.WithOwner], such as its
// address.
//
// With Redis, a quorum of it and store/mem the leader announces itself by a message. Where a
// message is lost, and in other stores, Follow hears of a change after a third of the TTL at the
// latest. Of several changes since the last look only the last one is seen. A follower may be late:
// the leader that it knows may have lost the lock.
//
// Errors are those of [relock.Lock.State], with the zero Holder. After [relock.ErrInvalid] and
// [relock.ErrClosed] the sequence ends; otherwise the next look comes after a third of the TTL, and
// after an error the next holder is told again, also if it is the same.
func Follow(ctx context.Context, lock *relock.Lock) iter.Seq2[relock.Holder, error] {
	return func(yield func(relock.Holder, error) bool) {
		if err := check(ctx, lock); err != nil {
			yield("", err)
			return
		}
		c := newCandidate(lock)
		changed, stop := c.changes()
		defer stop()
		for known, isKnown := relock.Holder(""), false; ; {
			state, err := lock.State(ctx)
			isClosed := c.inside.Life.Err() != nil
			if isClosed {
				err = &relock.OpError{Op: "follow", Name: lock.Name(), Err: relock.ErrClosed}
			}
			if ctx.Err() != nil {
				return
			}
			isNew := !isKnown || err != nil || state.Holder != known
			known, isKnown = state.Holder, err == nil
			if isNew && !yield(known, err) || isClosed {
				return
			}
			c.wait(ctx, changed)
		}
	}
}

func check(ctx context.Context, lock *relock.Lock) error {
	if err := lock.Err(); err != nil || ctx != nil {
		return err
	}
	return fmt.Errorf("%w: the context is nil", relock.ErrInvalid)
}

// changes returns a channel with news of another leader. It never has news from a store that cannot
// tell.
func (c candidate) changes() (changed <-chan struct{}, stop func()) {
	announcing, is := c.inside.Store.(store.Announcing)
	if !is {
		return nil, func() {}
	}
	news := make(chan struct{}, 1)
	return news, announcing.Announced(c.inside.Claim.Name, func() {
		select {
		case news <- struct{}{}:
		default:
		}
	})
}
