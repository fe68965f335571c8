package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// many runs goroutines, each with a store of its own and a few rounds.
func (b *bench) many(round func(st store.Store, worker, n int) error) {
	const workers, rounds = 8, 12
	stores := []store.Store{b.st, b.other, b.open(), b.open()}
	var group sync.WaitGroup
	failures := make(chan error, workers)
	for i := range workers {
		group.Go(func() {
			for n := range rounds {
				if err := round(stores[i%len(stores)], i, n); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); group.Wait() }()
	select {
	case <-done:
	case err := <-failures:
		require.NoError(b.t, err)
	case <-time.After(6 * patience):
		require.FailNow(b.t, "does not happen: all holds have had the lock")
	}
	require.Empty(b.t, failures)
}

// stay is the time of a hold in a lock.
func (b *bench) stay() { b.pause(100 * time.Microsecond) }

// hall has the readers and writers that are in.
type hall struct{ readers, writers atomic.Int32 }

// write counts a writer in, beside so many readers of its own.
func (h *hall) write(own int32) error {
	if writers, readers := h.writers.Add(1), h.readers.Load(); writers != 1 || readers != own {
		return fmt.Errorf("a writer is in with %d other writers and %d readers", writers-1, readers-own)
	}
	return nil
}

func (h *hall) read() error {
	h.readers.Add(1)
	if writers := h.writers.Load(); writers != 0 {
		return fmt.Errorf("a reader is in with %d writers", writers)
	}
	return nil
}

func stressReadWrite(b *bench) {
	b.begin(store.ReadWrite)
	var h hall
	b.many(func(st store.Store, worker, n int) error {
		switch (worker + n) % 4 {
		case 0:
			return b.stayWriter(&h, st)
		case 1:
			return b.stayUpgraded(&h, st)
		default:
			return b.stayReader(&h, st)
		}
	})
	require.Zero(b.t, h.readers.Load())
	require.Zero(b.t, h.writers.Load())
}

func (b *bench) stayReader(h *hall, st store.Store) error {
	l, err := st.Wait(b.ctx, b.reader(), func(store.Progress) {})
	if err != nil {
		return err
	}
	err = h.read()
	b.stay()
	h.readers.Add(-1)
	return errors.Join(err, st.Release(b.ctx, l))
}

// stayWriter writes, and then reads on.
func (b *bench) stayWriter(h *hall, st store.Store) error {
	l, err := st.Wait(b.ctx, b.writer(), func(store.Progress) {})
	if err != nil {
		return err
	}
	if err := h.write(0); err != nil {
		return err
	}
	b.stay()
	r, err := st.Try(b.ctx, inside(b.reader(), l))
	if err != nil {
		return err
	}
	h.writers.Add(-1)
	h.readers.Add(1)
	err = st.Release(b.ctx, l)
	b.stay()
	h.readers.Add(-1)
	return errors.Join(err, st.Release(b.ctx, r))
}

// stayUpgraded reads, and writes in between unless another reader is about to write.
func (b *bench) stayUpgraded(h *hall, st store.Store) error {
	l, err := st.Wait(b.ctx, b.reader(), func(store.Progress) {})
	if err != nil {
		return err
	}
	if err := h.read(); err != nil {
		return err
	}
	up, err := st.Wait(b.ctx, inside(b.writer(), l), func(store.Progress) {})
	switch {
	case errors.Is(err, store.ErrDeadlock):
		err = nil
	case err == nil:
		err = h.write(1)
		b.stay()
		h.writers.Add(-1)
		err = errors.Join(err, st.Release(b.ctx, up))
	}
	h.readers.Add(-1)
	return errors.Join(err, st.Release(b.ctx, l))
}

func stressPermits(b *bench) {
	b.begin(store.Semaphore)
	const n = 3
	var in atomic.Int32
	b.many(func(st store.Store, _, _ int) error {
		l, err := st.Wait(b.ctx, b.permit(n), func(store.Progress) {})
		if err != nil {
			return err
		}
		if others := in.Add(1) - 1; others >= n {
			err = fmt.Errorf("%d other holds have a permit", others)
		}
		b.stay()
		in.Add(-1)
		return errors.Join(err, st.Release(b.ctx, l))
	})
	require.Zero(b.t, in.Load())
}
