package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock"
)

const schema = `CREATE TABLE document (id TEXT PRIMARY KEY, body TEXT NOT NULL, version BIGINT NOT NULL)`

// errConflict reports that the document has changed since it was read. Nothing was written.
var errConflict = errors.New("conflict: the document has another version by now")

// document is a row of the table. Each write makes its version greater by one.
type document struct {
	id, body string
	version  int64
}

func read(ctx context.Context, db *sql.DB, id string) (d document, err error) {
	d.id = id
	err = db.QueryRowContext(ctx, `SELECT body, version FROM document WHERE id = $1`, id).Scan(&d.body, &d.version)
	return d, err
}

// write stores a body that was made from the document as d has it. One statement compares the
// version and writes, so nothing comes between.
func write(ctx context.Context, db *sql.DB, d document, body string) error {
	result, err := db.ExecContext(ctx,
		`UPDATE document SET body = $1, version = version + 1 WHERE id = $2 AND version = $3`, body, d.id, d.version)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errConflict
}

// effort is the time that an edit takes: the work that is lost if the edit cannot be written.
const effort = 15 * time.Millisecond

// editor adds lines to documents, and counts its edits, those that were thrown away too.
type editor struct {
	db    *sql.DB
	locks *relock.Client
	edits *atomic.Int64
}

// edit makes the new body. It is the expensive part.
func (e *editor) edit(ctx context.Context, d document, line string) (body string, err error) {
	e.edits.Add(1)
	select {
	case <-time.After(effort):
		return d.body + line + "\n", nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// try reads, edits and writes once.
func (e *editor) try(ctx context.Context, id, line string) error {
	d, err := read(ctx, e.db, id)
	if err != nil {
		return err
	}
	body, err := e.edit(ctx, d, line)
	if err != nil {
		return err
	}
	return write(ctx, e.db, d, body)
}

// addWithoutLock adds a line, and begins again after each conflict.
func (e *editor) addWithoutLock(ctx context.Context, id, line string) error {
	for {
		if err := e.try(ctx, id, line); !errors.Is(err, errConflict) {
			return err
		}
	}
}

// addWithLock adds a line under the lock of the document. A conflict is an error here: this editor
// was late, or somebody has written without the lock.
func (e *editor) addWithLock(ctx context.Context, id, line string) error {
	err := e.locks.NewLock("document:"+id).Do(ctx, func(section context.Context) error {
		return e.try(section, id, line)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	return nil
}
