package relocksql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

const (
	// fewTries is the number of unanswered attempts of a call with a bound.
	fewTries = 3
	// manyTries is the number of attempts that lose against other transactions, of such a call.
	manyTries = 20
	// slow is the age of an attempt without an answer that says that the database is unavailable.
	slow = time.Second
	// listLimit is the time for a search of all rows.
	listLimit = 2 * time.Second
	// rollbackLimit bounds the time of a rollback.
	rollbackLimit = time.Second
)

// longestAttempt bounds an attempt, and the wait of a patient command for its turn.
const longestAttempt = 10 * time.Second

// attemptLimit returns the time limit of an attempt for a hold with this TTL.
func attemptLimit(ttl time.Duration) time.Duration {
	return min(max(ttl/3, slow/2), longestAttempt)
}

// patient lets run go on until ctx is done.
const patient = 0

// command is a call of the store.
type command struct {
	urgency urgency
	claim   store.Claim
	tries   int // bounds the attempts without an answer
	limit   time.Duration
}

// run makes attempts until one is answered.
func (s *Store) run(ctx context.Context, c command, attempt func(ctx context.Context) error) error {
	silences, losses, since := 0, 0, time.Now()
	pause := func(done <-chan struct{}) bool {
		n, over := max(silences, losses), c.tries != patient && (silences >= c.tries || losses >= manyTries)
		if c.urgency == renewing { // the lease ends: no pause grows before the limit
			n, over = 1, silences >= c.tries || time.Since(since) >= c.limit
		}
		return !over && lifetime.Sleep(done, pauseAfter(n))
	}
	return attempts.Repeat(ctx, attempts.Call{Report: c.claim.Report, Command: c.urgency.String()}, pause, func() error {
		begun := time.Now()
		err := s.attempt(ctx, c, attempt)
		if isAnswer(err) {
			return err
		}
		v, advice := judge(s.dialect, err)
		if errors.Is(err, errNoEffect) && losses == 0 {
			v = again // somebody may have deleted the row meanwhile
		}
		switch {
		case v == refused:
			return refusal(err, advice)
		case v == silent && ctx.Err() != nil && time.Since(begun) < slow:
			return fmt.Errorf("%w: %w", lifetime.Ended(ctx), err) // the database had no time
		case v == again:
			losses++
		default:
			silences++
		}
		return store.Unavailable(fmt.Errorf("relocksql: %w", err))
	})
}

// attempt makes one attempt, in its turn. A patient attempt is short in a pool that has no
// connection to spare.
func (s *Store) attempt(ctx context.Context, c command, attempt func(ctx context.Context) error) error {
	t := s.turns()
	if t.tight && c.urgency != renewing {
		c.limit = min(c.limit, slow/2)
	}
	wait := c.limit
	if c.tries == patient { // to give the turn up is to go to the end of its line
		wait = longestAttempt
	}
	turn, cancel := context.WithTimeout(ctx, wait)
	leave, err := t.take(turn, c.urgency, c.claim.Name)
	cancel()
	if err != nil {
		return err
	}
	defer leave()
	bound, cancel := context.WithTimeout(ctx, c.limit) // all of it: a short attempt would be in vain
	defer cancel()
	err = attempt(bound)
	if !isAnswer(err) && bound.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer in %s: %w", c.limit.Round(time.Millisecond), err)
	}
	return err
}

// pauseAfter returns the pause after n failures.
func pauseAfter(n int) time.Duration {
	longest := min(time.Millisecond<<min(n, 10), 200*time.Millisecond)
	return rand.N(longest) + longest/2
}

// statement runs one statement as a transaction of its own. An attempt without an answer is unsure.
// A session whose transactions are read-only by default needs a BEGIN that says otherwise.
func (s *Store) statement(ctx context.Context, text string, args ...any) (rows int64, err error) {
	rows, err = s.oneStatement(ctx, text, args...)
	if err != nil && isReadOnly(err) {
		err = s.transaction(ctx, func(t *tx) error {
			rows, err = t.exec(strings.Replace(text, "{alone}", "", 1), args...)
			return err
		})
	}
	return rows, err
}

func (s *Store) oneStatement(ctx context.Context, text string, args ...any) (rows int64, err error) {
	err = s.alone(ctx, func(conn *sql.Conn) (done bool, err error) {
		result, err := conn.ExecContext(ctx, s.text(text), args...)
		if err == nil {
			rows, err = result.RowsAffected()
		}
		if err != nil && s.judge(err) == silent {
			err = store.Unsure(err)
		}
		return rows > 0, err
	})
	return rows, err
}

// alone runs one statement that is no part of a transaction. Without autocommit the statement is
// not done: it would wait for a COMMIT that nobody sends. alone then turns autocommit on, for this
// session, and runs the statement once more.
func (s *Store) alone(ctx context.Context, statement func(conn *sql.Conn) (done bool, err error)) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	done, err := statement(conn)
	if done || err != nil || s.grammar.autocommit == "" {
		return err
	}
	if _, err := conn.ExecContext(ctx, s.grammar.autocommit); err != nil {
		return err
	}
	_, err = statement(conn)
	return err
}

// conn returns a connection of the pool.
func (s *Store) conn(ctx context.Context) (*sql.Conn, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil && ctx.Err() != nil {
		stats, most := s.db.Stats(), ""
		if stats.MaxOpenConnections > 0 {
			most = fmt.Sprintf(" of at most %d", stats.MaxOpenConnections)
		}
		err = fmt.Errorf("get a connection (%d%s in use): %w", stats.InUse, most, err)
	}
	return conn, err
}

// tx is a transaction. The transaction has its own BEGIN and COMMIT, as SQLite has to lock the
// database at the beginning, and PostgreSQL has to set a time limit.
type tx struct {
	s   *Store
	ctx context.Context
	session
	conn   *sql.Conn // which is the session; nil: the transaction is the caller's
	grants []row     // to the waiters of any store
}

// session runs the statements of a transaction.
type session interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// transaction makes one attempt at a transaction. A COMMIT that fails is unsure, unless the
// database asks to try again: a server or a pooler that goes down may answer in the place of the
// result.
func (s *Store) transaction(ctx context.Context, do func(t *tx) error) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	t := &tx{s: s, ctx: ctx, session: conn, conn: conn}
	for _, begin := range s.grammar.begin {
		if _, err := conn.ExecContext(ctx, begin); err != nil {
			t.rollback()
			return err
		}
	}
	verdict := do(t)
	if !isAnswer(verdict) {
		t.rollback()
		return verdict
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"+s.grammar.end); err != nil {
		t.rollback()
		if s.judge(err) != again {
			err = store.Unsure(err)
		}
		return err
	}
	for _, r := range t.grants { // a waiter of this store need not wait for the news
		s.granted(r.id, r.arrival)
	}
	return verdict
}

// rollback ends the transaction, or the connection. SQLite returns an error if it has rolled back
// by itself, or has not begun.
func (t *tx) rollback() {
	if t.ctx.Err() == nil || t.s.dialect == SQLite {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), rollbackLimit)
		defer cancel()
		_, err := t.conn.ExecContext(ctx, "ROLLBACK"+t.s.grammar.end)
		if err == nil || t.s.dialect == SQLite && strings.Contains(err.Error(), "no transaction is active") {
			return
		}
	}
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
}

func (t *tx) exec(text string, args ...any) (rows int64, err error) {
	result, err := t.ExecContext(t.ctx, t.s.text(text), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// change runs a statement that changes a row that is there.
func (t *tx) change(text string, args ...any) error {
	rows, err := t.exec(text, args...)
	if err == nil && rows == 0 {
		err = errNoEffect
	}
	return err
}

// query reads rows. scan is called for each row.
func (t *tx) query(text string, scan func(*sql.Rows) error, args ...any) error {
	rows, err := t.QueryContext(t.ctx, t.s.text(text), args...)
	if err != nil {
		return err
	}
	return each(rows, scan)
}

func each(rows *sql.Rows, scan func(*sql.Rows) error) error {
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
