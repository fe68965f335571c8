package curator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// takes gets a free lock of Java.
func (j *java) takes(lock string) {
	j.Helper()
	j.send("lock " + lock)
	j.expect("locked " + lock)
}

func (j *java) frees(lock string) {
	j.Helper()
	j.send("unlock " + lock)
	j.expect("unlocked " + lock)
}

func TestReadersOfBothLanguagesEnterTogether(t *testing.T) {
	w := newWorld(t)
	first, second := w.java(), w.java()
	first.takes("read")
	reader := w.has(t.Context(), w.rw.RLock)
	second.takes("read")
	_, err := w.rw.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)

	writer := w.begin(t.Context(), w.rw.Lock)
	w.waitNodes(4)
	second.frees("read")
	second.send("lock read") // behind the writer
	w.waitNodes(4)
	first.frees("read")
	require.Empty(t, writer)
	require.NoError(t, w.rw.Unlock(reader))
	section := w.get(writer)
	require.Empty(t, second.answers)

	first.send("lock write")
	w.waitNodes(3)
	late := w.begin(t.Context(), w.rw.RLock) // behind both
	w.waitNodes(4)
	require.NoError(t, w.rw.Unlock(section))
	second.expect("locked read")
	require.Empty(t, first.answers)
	require.Empty(t, late)
	second.frees("read")
	first.expect("locked write")
	_, err = w.rw.TryRLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	require.Empty(t, late)
	first.frees("write")
	require.NoError(t, w.rw.Unlock(w.get(late)))
}

func TestDowngradesLetReadersOfTheOtherLanguageIn(t *testing.T) {
	w := newWorld(t)
	j := w.java()
	j.takes("write")
	j.takes("read")
	reader := w.begin(t.Context(), w.rw.RLock)
	w.waitNodes(3)
	writer := w.begin(t.Context(), w.rw.Lock)
	w.waitNodes(4)
	require.Empty(t, reader)
	j.frees("write")
	section := w.get(reader)
	require.NoError(t, w.rw.Unlock(section))
	w.waitNodes(2)
	require.Empty(t, writer)
	j.frees("read")
	outer := w.get(writer)

	inner := w.has(outer, w.rw.RLock)
	j.send("lock read")
	w.waitNodes(3)
	other := w.java()
	other.send("lock write")
	w.waitNodes(4)
	require.Empty(t, j.answers)
	require.NoError(t, w.rw.Unlock(outer))
	j.expect("locked read")
	j.frees("read")
	w.waitNodes(2)
	require.Empty(t, other.answers)
	require.NoError(t, w.rw.Unlock(inner))
	other.expect("locked write")
	other.frees("write")
}

func TestUpgradeOfGoWaitsForReadersOfJava(t *testing.T) {
	w := newWorld(t)
	beside, late := w.java(), w.java()
	beside.takes("read")
	reader := w.has(t.Context(), w.rw.RLock)
	writer := w.begin(reader, w.rw.Lock)
	w.waitNodes(3)
	late.send("lock read")
	w.waitNodes(4)
	require.Empty(t, writer)
	beside.frees("read")
	section := w.get(writer)
	beside.send("lock write")
	w.waitNodes(4)
	require.Empty(t, late.answers, "the upgrade keeps new readers out")
	require.NoError(t, w.rw.Unlock(section))
	late.expect("locked read")
	late.frees("read")
	w.waitNodes(2)
	require.Empty(t, beside.answers)
	require.NoError(t, w.rw.Unlock(reader))
	beside.expect("locked write")
	beside.frees("write")
}

func TestReadersThatAreKilledLetTheOtherLanguageWrite(t *testing.T) {
	w := newWorld(t)
	holder := w.java()
	holder.takes("read")
	writer := w.begin(t.Context(), w.rw.Lock)
	w.waitNodes(2)
	holder.kill()
	require.NoError(t, w.rw.Unlock(w.get(writer)))
}

// hall has the readers and writers of both languages that are in.
type hall struct{ readers, writers atomic.Int32 }

func (h *hall) read() error {
	h.readers.Add(1)
	if n := h.writers.Load(); n != 0 {
		return fmt.Errorf("a reader is in with %d writers", n)
	}
	return nil
}

func (h *hall) write(own int32) error {
	if writers, readers := h.writers.Add(1), h.readers.Load(); writers != 1 || readers != own {
		return fmt.Errorf("a writer is in with %d other writers and %d readers", writers-1, readers-own)
	}
	return nil
}

// stay is the time of a visit.
func stay() { <-time.After(time.Duration(rand.IntN(1000)) * time.Microsecond) }

// TestManyOfBothLanguages lets everybody read, write, read on after a write, and, in Go, write inside
// of a read.
func TestManyOfBothLanguages(t *testing.T) {
	w := newWorldOf(t, patience) // whose leases a busy machine does not miss
	const rounds = 60
	var h hall
	var all sync.WaitGroup
	errs := make(chan error, 1000)
	for range 3 {
		j := w.java()
		j.takes("read")
		j.frees("read")
		all.Go(func() {
			for range rounds {
				if err := h.visitOfJava(j); err != nil {
					errs <- err
				}
			}
		})
	}
	for range 6 {
		all.Go(func() {
			for range rounds {
				if err := h.visitOfGo(t.Context(), w.rw); err != nil {
					errs <- err
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	w.waitNodes(0)
}

func (h *hall) visitOfJava(j *java) (err error) {
	if rand.IntN(2) == 0 {
		j.takes("read")
		err = h.read()
		stay()
		h.readers.Add(-1)
		j.frees("read")
		return err
	}
	j.takes("write")
	err = h.write(0)
	stay()
	if rand.IntN(2) == 0 {
		h.writers.Add(-1)
		j.frees("write")
		return err
	}
	j.takes("read")
	h.writers.Add(-1)
	h.readers.Add(1)
	j.frees("write")
	stay()
	h.readers.Add(-1)
	j.frees("read")
	return err
}

func (h *hall) visitOfGo(ctx context.Context, l *relock.RWLock) error {
	switch rand.IntN(3) {
	case 0:
		return h.downgrade(ctx, l)
	case 1:
		return l.RDo(ctx, func(ctx context.Context) error {
			err := h.read()
			defer h.readers.Add(-1)
			stay()
			up := l.Do(ctx, func(context.Context) error {
				defer h.writers.Add(-1)
				return h.write(1)
			})
			if errors.Is(up, relock.ErrDeadlock) {
				up = nil // another reader waits to write
			}
			return errors.Join(err, up)
		})
	default:
		return l.RDo(ctx, func(context.Context) error {
			defer h.readers.Add(-1)
			stay()
			return h.read()
		})
	}
}

// downgrade writes, and reads on when the writer is out.
func (h *hall) downgrade(ctx context.Context, l *relock.RWLock) error {
	writer, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	err = h.write(0)
	stay()
	reader, failed := l.RLock(writer)
	h.writers.Add(-1)
	if failed != nil {
		return errors.Join(err, failed, l.Unlock(writer))
	}
	h.readers.Add(1)
	err = errors.Join(err, l.Unlock(writer))
	stay()
	h.readers.Add(-1)
	return errors.Join(err, l.Unlock(reader))
}
