package invoices

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/locktest/explore"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// in opens clients of a store.
func in(s store.Store) Open {
	return func(context.Context) (*relock.Client, func(), error) {
		locks, err := relock.Open(s)
		return locks, func() { _ = locks.Close() }, err
	}
}

func TestTheNumbersHaveNoGapAndNoRepeat(t *testing.T) {
	redistest.NoGoroutineLeft(t)
	var out bytes.Buffer
	require.NoError(t, Write(t.Context(), &out, in(mem.New())))
	require.Contains(t, out.String(), "invoices 1 to 12, each once")
}

func TestAnAuditFindsWhatALockPrevents(t *testing.T) {
	for text, tamper := range map[string]func(all []entry) []entry{
		"line 5 has number 4":                      func(all []entry) []entry { all[4].number = 4; return all },
		"token 7, and the token before is 7":       func(all []entry) []entry { all[7].token = 7; return all },
		"the book has 11 invoices and not 12":      func(all []entry) []entry { return all[1:] },
		"the book has 13 invoices and not 12":      func(all []entry) []entry { return append(all, entry{13, 13, "A"}) },
		"line 1 has number 2 and token 1, and the": func(all []entry) []entry { all[0].number = 2; return all },
	} {
		b := &book{path: filepath.Join(t.TempDir(), "book"), out: io.Discard}
		var all []entry
		for i := range instances * each {
			all = append(all, entry{i + 1, int64(i + 1), "A"})
		}
		for _, e := range tamper(all) {
			require.NoError(t, b.append(e))
		}
		require.ErrorContains(t, b.audit(), text)
	}
}

func TestAnInterruptAndAStoreThatDoesNotOpenAreReported(t *testing.T) {
	cause := errors.New("interrupted")
	ctx, interrupt := context.WithCancelCause(t.Context())
	interrupt(cause)
	require.Equal(t, cause, Write(ctx, io.Discard, in(mem.New())))
	err := Write(t.Context(), io.Discard, func(context.Context) (*relock.Client, func(), error) { return nil, nil, cause })
	require.ErrorIs(t, err, cause)
}

func TestNoInvoiceIsWrittenAfterTheEndOfItsSection(t *testing.T) {
	explore.RunUnfenced(t, func(t *testing.T, w *explore.World) {
		b := &book{path: filepath.Join(t.TempDir(), "book"), out: io.Discard}
		var all sync.WaitGroup
		defer all.Wait()
		for _, instance := range []string{"A", "B"} {
			lock := w.Client().NewLock("invoices")
			all.Go(func() {
				for range each {
					err := lock.Do(t.Context(), func(section context.Context) error {
						err := b.writeNext(section, lock, instance)
						if err == nil {
							w.Work(section)
						}
						return err
					})
					if w.Accident == "" && err != nil {
						t.Error(err)
					}
				}
			})
			<-time.After(time.Millisecond)
		}
	})
}
