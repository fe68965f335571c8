// Package invoices is the job of the examples of this module: several instances of a service write
// invoices into one book, a plain file, and the numbers must have no gap and no repeat. A file has
// no transactions, so an instance reads the last number and writes the next one under a lock.
package invoices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-relock/relock"
)

const (
	instances = 3
	each      = 4                // invoices of an instance
	limit     = 30 * time.Second // of the whole job
)

// Open connects one instance to the store of the locks, and end closes all that it has opened.
type Open func(ctx context.Context) (locks *relock.Client, end func(), err error)

// Write lets the instances write their invoices side by side, and reports each on out. Write returns
// an error if a number is missing or was given twice.
func Write(ctx context.Context, out io.Writer, open Open) error {
	dir, err := os.MkdirTemp("", "relock-invoices-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &book{path: filepath.Join(dir, "book"), lock: "invoices-" + rand.Text()[:8], out: out}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	errs := make([]error, instances)
	var group sync.WaitGroup
	for i := range instances {
		group.Go(func() { errs[i] = b.serve(bounded, string(rune('A'+i)), open) })
	}
	group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx) // in place of the error of each instance
	}
	return errors.Join(errors.Join(errs...), b.audit())
}

// book is the book of invoices.
type book struct {
	path string
	lock string // the name of its lock

	mu  sync.Mutex
	out io.Writer
}

// serve is the life of an instance.
func (b *book) serve(ctx context.Context, instance string, open Open) error {
	locks, end, err := open(ctx)
	if err != nil {
		return err
	}
	defer end()
	lock := locks.NewLock(b.lock)
	for range each {
		err := lock.Do(ctx, func(section context.Context) error { return b.writeNext(section, lock, instance) })
		if err != nil {
			return fmt.Errorf("instance %s: %w", instance, err)
		}
	}
	return nil
}

// entry is a line of the book.
type entry struct {
	number int
	token  int64 // of the lock, by which a reader can tell a write that came too late
	by     string
}

// writeNext writes the next invoice. The caller has the lock.
func (b *book) writeNext(section context.Context, lock *relock.Lock, instance string) error {
	token, err := lock.Token(section)
	if err != nil {
		return err
	}
	all, err := b.read()
	if err != nil {
		return err
	}
	select {
	case <-time.After(10 * time.Millisecond): // the invoice is made
	case <-section.Done(): // the lock is lost, or the program is interrupted
		return context.Cause(section)
	}
	next := entry{len(all) + 1, token, instance}
	if err := b.append(next); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.out, "  invoice %2d by instance %s, token %d\n", next.number, next.by, next.token)
	return nil
}

func (b *book) append(e entry) error {
	file, err := os.OpenFile(b.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, e.number, e.token, e.by)
	return errors.Join(err, file.Close())
}

func (b *book) read() (all []entry, err error) {
	file, err := os.Open(b.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for {
		var e entry
		if _, err := fmt.Fscanln(file, &e.number, &e.token, &e.by); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
}

// audit checks the numbers of all invoices, and that each token is larger than the one before.
func (b *book) audit() error {
	all, err := b.read()
	if err != nil {
		return err
	}
	if len(all) != instances*each {
		return fmt.Errorf("the book has %d invoices and not %d", len(all), instances*each)
	}
	last := int64(0)
	for i, e := range all {
		if e.number != i+1 || e.token <= last {
			return fmt.Errorf("line %d has number %d and token %d, and the token before is %d", i+1, e.number, e.token, last)
		}
		last = e.token
	}
	fmt.Fprintf(b.out, "The book has the invoices 1 to %d, each once.\n", len(all))
	return nil
}
