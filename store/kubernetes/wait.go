package relockk8s

import (
	"context"
	"errors"
	"time"

	api "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// watchPause is the pause after a watch that has failed, or was ended by the API server.
const watchPause = 100 * time.Millisecond

// Wait implements [store.Store]. Wait watches the Lease, and asks again when the Lease is deleted
// or its lease is over. A watch that is silent holds up the waiter until the end of the lease that
// the waiter has read last.
func (s *Store) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	unsure := false // an earlier command without an answer may run yet
	for woken := store.WakeNone; ; {
		var l store.Lease
		var other *view
		err := attempts.Patiently(ctx, attempts.Call{Report: a.Report, Command: "acquire"}, func() (err error) {
			l, other, err = s.take(ctx, a)
			unsure = unsure || errors.Is(err, store.ErrUnsure)
			return err
		})
		var busy *store.Busy
		switch {
		case err == nil:
			l.Woken, l.Unsure = woken, l.Unsure || unsure
			return l, nil
		case !errors.As(err, &busy):
			if unsure {
				err = store.Unsure(err)
			}
			return store.Lease{}, err
		}
		progress(store.Progress{Busy: busy, Queued: true})
		woken = s.await(ctx, a, other)
	}
}

// await returns when the lock may be free, or ctx is done.
func (s *Store) await(ctx context.Context, a store.Claim, v *view) store.Wake {
	w, err := s.watch(ctx, meta.ListOptions{
		FieldSelector: meta.ObjectNameField + "=" + a.Name, ResourceVersion: v.lease.ResourceVersion,
	})
	if err != nil {
		lifetime.Sleep(ctx.Done(), watchPause)
		return store.WakeRecheck
	}
	defer w.Stop()
	end := time.NewTimer(v.rest())
	defer end.Stop()
	for {
		select {
		case e := <-w.ResultChan():
			lease, is := e.Object.(*api.Lease)
			if !is { // the API server has ended the watch
				lifetime.Sleep(ctx.Done(), watchPause)
				return store.WakeRecheck
			}
			if e.Type == watch.Deleted {
				return store.WakeReleased
			}
			v, err := s.note(lease)
			if err != nil || !v.held() || v.owner() == a.ID {
				return store.WakeReleased
			}
			end.Reset(v.rest())
		case <-end.C:
			return store.WakeRecheck
		case <-ctx.Done():
			return store.WakeNone
		}
	}
}

// watcher is a watch that ends with Stop.
type watcher struct {
	watch.Interface
	cancel context.CancelFunc
}

func (w watcher) Stop() {
	w.cancel()
	w.Interface.Stop()
}

// watch begins a watch. An API server that is silent does not hold up the call.
func (s *Store) watch(ctx context.Context, options meta.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	silent := time.AfterFunc(limit, cancel)
	defer silent.Stop()
	w, err := s.leases.Watch(ctx, options)
	if err != nil {
		cancel()
		return nil, err
	}
	return watcher{w, cancel}, nil
}
