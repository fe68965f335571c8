package oncesql

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// maxKey is the greatest length of a key in bytes.
const maxKey = 1024

// claims is the number of attempts to find a row that was inserted. A second one follows a Purge,
// and more mean that something hides the row, such as a policy of PostgreSQL.
const claims = 10

// CallOption is an option of [Do].
type CallOption func(*call)

// Input names what the result depends on, such as the body of a request. v is encoded as JSON, and
// only the SHA-256 of that is stored. A later call of the same key fails with [ErrMismatch] if its
// input has another SHA-256. Calls without Input count as calls with one and the same input, which
// is no input of other calls. A change of v's type may change its JSON, and then the inputs differ.
func Input(v any) CallOption {
	return func(c *call) { c.input, c.err = json.Marshal(v) }
}

// Do runs fn once for the key, in a transaction of s, and stores fn's result. If the key has a
// stored result, Do returns that, with replayed true, and does not run fn. While another
// transaction runs for the key, Do waits for its end, or for the end of ctx.
//
// fn must write only through tx, and must not end tx. The package documentation says what is not
// covered. A key is 1 to 1,024 bytes of any value; keys are compared byte by byte. The result is
// stored as JSON. Do returns what JSON keeps of the result, also in the call that ran fn, so that
// all calls return the same.
//
// Nothing is stored, and what fn wrote is undone, if fn returns an error, panics or ends its
// goroutine with runtime.Goexit, if ctx ends before the commit, and after each error of Do but
// [ErrUnsure]. A panic goes on.
//
// Errors: the error of fn, as it is; [ErrMismatch]; [ErrUnsure]; the error of ctx; errors of the
// driver, see the package documentation for those that say to try again; a wrong key, dialect,
// option or input; a result that JSON cannot encode or decode; a transaction that fn has ended. The
// result is zero and replayed is false with each error. To call Do again with the same key is safe
// after each error.
func Do[T any](
	ctx context.Context, s *Store, key string, fn func(ctx context.Context, tx *sql.Tx) (T, error),
	options ...CallOption,
) (result T, replayed bool, err error) {
	var zero T
	c, err := s.newCall(key, options)
	if err != nil {
		return zero, false, err
	}
	tx, err := s.db.BeginTx(ctx, s.txOptions)
	if err != nil {
		return zero, false, c.failed("begin", err)
	}
	// Rollback has no effect after Commit. It is deferred for the panics and Goexits of fn.
	defer func() { _ = tx.Rollback() }()
	stored, err := c.claim(ctx, tx)
	if err != nil {
		return zero, false, err
	}
	if stored != nil {
		result, err = decode[T](c, stored)
		return result, err == nil, err
	}
	answer, err := fn(ctx, tx)
	if err != nil {
		return zero, false, err
	}
	encoded, err := json.Marshal(answer)
	if err != nil {
		return zero, false, c.failed("encode the result", err)
	}
	// A result that cannot be decoded must not be stored.
	if result, err = decode[T](c, encoded); err != nil {
		return zero, false, err
	}
	if err := c.finish(ctx, tx, encoded); err != nil {
		return zero, false, err
	}
	return result, false, nil
}

// decode returns the result in its JSON, or zero with an error.
func decode[T any](c *call, encoded []byte) (T, error) {
	var result, zero T
	if err := json.Unmarshal(encoded, &result); err != nil {
		return zero, c.failed("decode the result", err)
	}
	return result, nil
}

// call is one call of [Do].
type call struct {
	store *Store
	key   string
	input []byte // JSON, empty without Input
	err   error  // of Input

	id, fingerprint [sha256.Size]byte
	attempt         [16]byte // tells the row of this call from rows of other calls
}

// newCall returns a call with checked arguments.
func (s *Store) newCall(key string, options []CallOption) (*call, error) {
	if s.err != nil {
		return nil, s.err
	}
	if n := len(key); n == 0 || n > maxKey {
		return nil, fmt.Errorf("oncesql: a key must have 1 to %d bytes, and this one has %d", maxKey, n)
	}
	c := &call{store: s, key: key}
	for _, option := range options {
		option(c)
	}
	if c.err != nil {
		return nil, c.failed("encode the input", c.err)
	}
	c.id = sha256.Sum256([]byte(key))
	c.fingerprint = sha256.Sum256(c.input)
	_, _ = rand.Read(c.attempt[:]) // it never fails
	return c, nil
}

// claim inserts the row of the key, or returns the stored result of the row that exists. A nil
// result says that this call has inserted the row.
func (c *call) claim(ctx context.Context, tx *sql.Tx) (stored []byte, err error) {
	for range claims {
		if err := c.insert(ctx, tx); err != nil {
			return nil, c.failed("insert", err)
		}
		stored, err = c.read(ctx, tx)
		if !errors.Is(err, sql.ErrNoRows) {
			return stored, err
		}
		// A Purge has removed the row since the insert found it. This only happens in PostgreSQL:
		// the other databases lock a row that an insert finds.
	}
	return nil, err
}

// insert inserts the row of the key, if there is none. While another transaction has inserted the
// row, insert waits for its end.
func (c *call) insert(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, c.store.sql.insert, c.id[:], []byte(c.key), c.fingerprint[:], c.attempt[:])
	return err
}

// read returns the result in the row of the key, nil for the row of this call. The number of rows
// that the insert has affected would not do to tell them apart: in MySQL it depends on an option of
// the connection.
func (c *call) read(ctx context.Context, tx *sql.Tx) (stored []byte, err error) {
	var name, fingerprint, attempt []byte
	err = tx.QueryRowContext(ctx, c.store.sql.read, c.id[:]).Scan(&name, &fingerprint, &attempt, &stored)
	switch {
	case err != nil:
		return nil, c.failed("read", err)
	case bytes.Equal(attempt, c.attempt[:]):
		return nil, nil
	case string(name) != c.key:
		return nil, c.failed("read", errors.New("another key has the same SHA-256"))
	case !bytes.Equal(fingerprint, c.fingerprint[:]):
		return nil, fmt.Errorf("%w: key %.64q", ErrMismatch, c.key)
	case stored == nil:
		return nil, c.failed("read", errors.New("the key has no result: the function of an earlier call "+
			"has ended the transaction by itself; look at what it has written, and delete the row of the key"))
	}
	return stored, nil
}

// finish stores the result and commits.
func (c *call) finish(ctx context.Context, tx *sql.Tx, result []byte) error {
	done, err := tx.ExecContext(ctx, c.store.sql.finish, result, c.id[:], c.attempt[:])
	if err != nil {
		return c.failed("store the result", err)
	}
	n, err := done.RowsAffected()
	if err != nil {
		return c.failed("store the result", err)
	}
	if n != 1 { // also after a deadlock in MySQL that fn has ignored
		return c.failed("store the result", errors.New("the row of the key is gone: "+
			"the transaction was rolled back inside of the function"))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: key %.64q: commit: %w", ErrUnsure, c.key, err)
	}
	return nil
}

func (c *call) failed(action string, err error) error {
	return fmt.Errorf("oncesql: key %.64q: %s: %w", c.key, action, err)
}
