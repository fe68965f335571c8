// Version lets many editors change one document, whose row has a version column: a write names the
// version that was read, and changes nothing if the row has another one by now.
//
// The column is right without any lock. An editor that meets a conflict reads again, and edits
// again. But each conflict throws an edit away, and under contention most edits are. With a lock
// around reading, editing and writing, no edit is thrown away, and the editors take turns in the
// order in which they came.
//
// The column stays beside the lock. An editor may stand still, lose the lock without noticing, and
// write late: then the version has changed, and the write is refused. No fencing token is needed
// for that, as the write depends on one row only.
//
// The lock is not needed where conflicts are rare, or where an edit is cheap to repeat: then a few
// repeated edits cost less than a lock for each edit, and there is one server less to depend on.
// The lock pays where many editors want the same row and an edit is expensive, such as a call to a
// service that costs money.
//
//	go run ./version
//
// (in examples/sql, a module of its own because of the drivers) needs no server. With
// REDIS_URL=redis://... the locks are on that server, and with DATABASE_URL=postgres://... the
// document is in PostgreSQL, in a schema that the program removes at its end. The exit code is 1 if
// anything is not as told.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/sql/stage"
)

func main() { stage.Main("version", tell) }

const (
	people = 8 // who edit at once, half of them on each instance
	lines  = 3 // of each of them, one after the other
)

// tell lets the editors work without the lock and with it, and then has one of them be late.
func tell(ctx context.Context, out io.Writer, s *stage.Stage) error {
	var edits atomic.Int64
	editors := make([]*editor, 2)
	for i := range editors {
		in, err := s.NewInstance(ctx)
		if err != nil {
			return err
		}
		editors[i] = &editor{db: in.DB, locks: in.Locks, edits: &edits}
	}
	if _, err := editors[0].db.ExecContext(ctx, schema); err != nil {
		return err
	}
	p := &play{out: out, editors: editors, edits: &edits}
	wasted, err := p.round(ctx, "without the lock", (*editor).addWithoutLock)
	if err != nil {
		return err
	}
	if wasted == 0 {
		return errors.New("no edit was thrown away without the lock")
	}
	wasted, err = p.round(ctx, "with the lock", (*editor).addWithLock)
	if err != nil {
		return err
	}
	if wasted != 0 {
		return fmt.Errorf("%d edits were thrown away with the lock", wasted)
	}
	return p.late(ctx)
}

type play struct {
	out     io.Writer
	editors []*editor // one on each instance
	edits   *atomic.Int64
}

// round has all lines added to a new document, and returns how many edits were thrown away.
func (p *play) round(
	ctx context.Context, id string, add func(e *editor, ctx context.Context, id, line string) error,
) (wasted int64, err error) {
	if err := p.create(ctx, id); err != nil {
		return 0, err
	}
	before, begun := p.edits.Load(), time.Now()
	var group sync.WaitGroup
	errs := make([]error, people)
	for i := range people {
		group.Go(func() {
			for n := range lines {
				errs[i] = errors.Join(errs[i], add(p.editors[i%len(p.editors)], ctx, id, line(i, n)))
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	made := p.edits.Load() - before
	wasted = made - people*lines
	fmt.Fprintf(p.out, "%s: %d lines written, %d edits made, %d thrown away, after %v\n",
		id, people*lines, made, wasted, time.Since(begun).Round(time.Millisecond))
	return wasted, p.check(ctx, id)
}

func line(person, n int) string { return fmt.Sprintf("person %d, line %d", person, n) }

func (p *play) create(ctx context.Context, id string) error {
	_, err := p.editors[0].db.ExecContext(ctx, `INSERT INTO document (id, body, version) VALUES ($1, '', 0)`, id)
	return err
}

// check compares the document with what was written: each line is in it once.
func (p *play) check(ctx context.Context, id string) error {
	d, err := read(ctx, p.editors[0].db, id)
	if err != nil {
		return err
	}
	if n := strings.Count(d.body, "\n"); n != people*lines || d.version != people*lines {
		return fmt.Errorf("%s: the document has %d lines and version %d", id, n, d.version)
	}
	for i := range people {
		for n := range lines {
			if strings.Count(d.body, line(i, n)+"\n") != 1 {
				return fmt.Errorf("%s: %q is not in the document once", id, line(i, n))
			}
		}
	}
	return nil
}

// late has an editor lose the lock between its read and its write, and another one write in
// between.
func (p *play) late(ctx context.Context) error {
	const id, lease = "late", 500 * time.Millisecond
	if err := p.create(ctx, id); err != nil {
		return err
	}
	sleeper, other := p.editors[0], p.editors[1]
	// No watchdog: a process that stands still does not renew its lease either.
	lock := sleeper.locks.NewLock("document:"+id, relock.WithFixedLease(lease))
	section, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock(section)
	d, err := read(section, sleeper.db, id)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "late: one editor reads version %d, and stands still for longer than its lease\n", d.version)
	if err := other.addWithLock(ctx, id, "in time"); err != nil { // waits until the lease has run out
		return err
	}
	fmt.Fprintln(p.out, "late: another editor gets the lock, and writes")
	// The context of the section ended long ago, but this write was already on its way.
	err = write(context.WithoutCancel(section), sleeper.db, d, "late\n")
	if !errors.Is(err, errConflict) {
		return fmt.Errorf("the late write: %w", err)
	}
	fmt.Fprintln(p.out, "late: the first editor writes:", err)
	return p.again(ctx, sleeper, id)
}

// again has the editor begin again with a new hold.
func (p *play) again(ctx context.Context, e *editor, id string) error {
	if err := e.addWithLock(ctx, id, "late"); err != nil {
		return err
	}
	d, err := read(ctx, e.db, id)
	if err != nil {
		return err
	}
	if d.body != "in time\nlate\n" || d.version != 2 {
		return fmt.Errorf("the document has version %d, and reads %q", d.version, d.body)
	}
	fmt.Fprintln(p.out, "late: the first editor begins again, and both lines are in the document")
	return nil
}
