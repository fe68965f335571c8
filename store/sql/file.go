package relocksql

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"sync"
)

// file is the file of a database of SQLite, as a store has met it. A connection keeps a file that was
// deleted, moved away or replaced, and its locks with it, while others lock in the new file.
type file struct {
	mu    sync.Mutex
	known bool
	path  string
	info  os.FileInfo // nil: the database has no file
}

// errMoved says that the locks of a store are not where others look for locks.
var errMoved = errors.New("the file of the database was deleted, moved or replaced")

// stays returns errMoved if the file of the database is no longer at its path.
func (f *file) stays(t *tx) error {
	if t.s.dialect != SQLite {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.known {
		path, err := t.path()
		if err != nil {
			return err
		}
		f.known, f.path = true, path
		if path != "" {
			f.info, _ = os.Stat(path)
		}
	}
	if f.info == nil {
		return nil
	}
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(f.info, info) {
		return errMoved
	}
	return nil // also after another error, which says nothing of the file
}

// path returns the path of the database of SQLite, or "" for a database in memory.
func (t *tx) path() (path string, err error) {
	err = t.query("PRAGMA database_list", func(rows *sql.Rows) error {
		var n int
		var name, file string
		err := rows.Scan(&n, &name, &file)
		if name == "main" {
			path = file
		}
		return err
	})
	return path, err
}

// connection returns a connection of the pool to the database that others use, too.
func (s *Store) connection(ctx context.Context) (*sql.Conn, error) {
	conn, err := s.conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.file.stays(&tx{s: s, ctx: ctx, session: conn}); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
