package relock

import (
	"context"
	"iter"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// Lead runs fn in one of the processes that call Lead of this lock: the leader. Another process takes
// over when the leader ends, crashes, or loses the lock.
//
// Lead campaigns, as [Lock.Lock] waits for the lock, and runs fn with the section's context. If the
// lock is lost, that context ends. When fn has returned then, Lead drops the result of fn, and
// campaigns again, behind those that wait already. If the lock cannot be had for a passing reason
// ([ErrUnavailable], [ErrNotReplicated]), Lead says so, and campaigns again after a third of the TTL.
//
// Lead returns:
//   - when fn has returned, and its context was not ended by a loss. The error is that of
//     [Lock.Do]: of fn, of the Unlock, or nil. So an error of fn ends the candidacy of this
//     process; a leader that shall go on logs errors, and returns when its context is done.
//   - when ctx is done. A running fn is waited for. The error is that of Lock or Do.
//   - when the lock cannot be had for another reason, with the error of Lock: [ErrInvalid],
//     [ErrClosed], [ErrKind], [ErrDeadlock], [ErrQueueFull], the stop of [WithStop], an error of
//     the store that a retry would not change, or the loss of a section of this lock around ctx.
//
// A loss that only Unlock finds is an error, too: fn had come to its end by itself. The error
// matches [NotEntered] if fn has not run since the last campaign began; fn may have run before. A
// panic of fn unlocks, and goes on. [WithMaxHold] makes the leadership change hands after a time.
// The events of a hold of Lead have Leader set, as a long hold is no fault there.
func (l *Lock) Lead(ctx context.Context, fn func(ctx context.Context) error) error {
	switch {
	case ctx == nil:
		return notEntered(errNilContext)
	case fn == nil:
		return notEntered(invalid("Lead: the function is nil"))
	}
	since := time.Now()
	for n := 1; ; n++ {
		a := acquiring{lock: l, ctx: ctx, wait: forever, event: AcquireFinished{Leader: true}}
		section, err := a.run()
		switch {
		case err == nil:
			l.announce(section)
			err = within(section, l, fn)
			l.announce(section)
			if ctx.Err() != nil || !isLost(context.Cause(section)) {
				return err
			}
			n, since = 0, time.Now()
		case ctx.Err() != nil || isStop(err) || !attempts.Passes(err):
			return notEntered(err)
		default:
			(*reporter)(l).Retrying("campaign", n, since, err)
			pause, end := l.client.boundCall(ctx, ctx, l.settings.ttl/3)
			<-pause.Done()
			end.Stop()
		}
	}
}

// announce tells the followers of the lock that its leader has begun or ended, in the background.
func (l *Lock) announce(section context.Context) {
	announcing, is := l.client.store.(store.Announcing)
	if !is {
		return
	}
	h, t := l.nearest(section).hold, &l.client.table
	t.mu.Lock()
	ask := h.lease.Ask
	t.mu.Unlock()
	l.client.group.GoOpen(func() {
		ctx, cancel := context.WithTimeout(l.client.life, answerLimit)
		defer cancel()
		_ = announcing.Announce(ctx, ask) // followers look by themselves, too
	})
}

// Leaders yields who has the lock, for processes that follow the leader of [Lock.Lead] or
// [Lock.Campaign], and yields again when that changes, until ctx ends. The zero [Holder] stands for
// nobody. [Holder.Owner] is the name that the leader's client has by [WithOwner], such as its
// address.
//
// With Redis, a quorum of it and store/mem the leader announces itself by a message. Where a
// message is lost, and in other stores, Leaders hears of a change after a third of the TTL at the
// latest. Of several changes since the last look only the last one is seen. A follower may be late:
// the leader that it knows may have lost the lock.
//
// Errors are those of [Lock.State], with the zero Holder. After [ErrInvalid] and [ErrClosed] the
// sequence ends; otherwise the next look comes after a third of the TTL.
func (l *Lock) Leaders(ctx context.Context) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		if err := l.check(ctx); err != nil {
			yield(Holder{}, err)
			return
		}
		changed, stop := l.changes()
		defer stop()
		for known, isKnown := (Holder{}), false; ; {
			state, err := l.State(ctx)
			if l.client.isClosed() {
				err = l.opError("follow", Holder{}, ErrClosed)
			}
			if ctx.Err() != nil {
				return
			}
			isNew := !isKnown || err != nil || state.Holder != known
			known, isKnown = state.Holder, err == nil
			if isNew && !yield(known, err) || l.client.isClosed() {
				return
			}
			pause, end := l.client.bound(ctx, l.settings.ttl/3)
			select {
			case <-changed:
			case <-pause.Done():
			}
			end.Stop()
		}
	}
}

// changes returns a channel with news of another leader. It never has news from a store that cannot
// tell.
func (l *Lock) changes() (changed <-chan struct{}, stop func()) {
	announcing, is := l.client.store.(store.Announcing)
	if !is {
		return nil, func() {}
	}
	news := make(chan struct{}, 1)
	return news, announcing.Announced(l.ask.Name, func() {
		select {
		case news <- struct{}{}:
		default:
		}
	})
}
