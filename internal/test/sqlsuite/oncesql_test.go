package sqlsuite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/once/sql"
)

// receipt is a result of a call.
type receipt struct {
	Number int64
	Note   string
}

// onceRig is a test with a database, an empty store in it, and the log.
type onceRig struct {
	*testing.T
	database
	db    *sql.DB
	store *oncesql.Store
}

// eachOnce runs a test on every kind of database.
func eachOnce(t *testing.T, test func(t *onceRig)) {
	t.Helper()
	for _, d := range databases {
		t.Run(d.kind, func(t *testing.T) {
			t.Parallel()
			test(newOnceRig(t, d, d.source(t)))
		})
	}
}

// newOnceRig creates the tables in an empty database.
func newOnceRig(t *testing.T, d database, source string) *onceRig {
	t.Helper()
	db := open(t, d.driver, source)
	s := oncesql.New(db, d.dialect)
	require.NoError(t, s.Create(t.Context()))
	require.NoError(t, s.Create(t.Context()), "a table that exists")
	_, err := db.ExecContext(t.Context(), d.create)
	require.NoError(t, err)
	return &onceRig{T: t, database: d, db: db, store: s}
}

// effect returns a function that appends the number to the log and returns it.
func (d database) effect(key string, number int64) func(context.Context, *sql.Tx) (int64, error) {
	return func(ctx context.Context, tx *sql.Tx) (int64, error) {
		_, err := tx.ExecContext(ctx, d.add, key, number)
		return number, err
	}
}

// effects returns the numbers in the log, in the order in which they were appended.
func (t *onceRig) effects() (numbers []int64) {
	t.Helper()
	rows, err := t.db.QueryContext(t.Context(), "SELECT token FROM log ORDER BY id")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var number int64
		require.NoError(t, rows.Scan(&number))
		numbers = append(numbers, number)
	}
	require.NoError(t, rows.Err())
	return numbers
}

// do calls Do with a function that appends the number, and checks the answer.
func (t *onceRig) do(key string, number, result int64, replayed bool, options ...oncesql.CallOption) {
	t.Helper()
	t.doIn(t.store, key, number, result, replayed, options...)
}

func (t *onceRig) doIn(
	s *oncesql.Store, key string, number, result int64, replayed bool, options ...oncesql.CallOption,
) {
	t.Helper()
	got, again, err := oncesql.Do(t.Context(), s, key, t.effect("effect", number), options...)
	require.NoError(t, err)
	require.Equal(t, result, got)
	require.Equal(t, replayed, again)
}

func TestOnceReplaysTheFirstResult(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		t.do("a", 1, 1, false)
		t.do("a", 2, 1, true)
		t.do("b", 3, 3, false)
		t.do("a", 4, 1, true)
		require.Equal(t, []int64{1, 3}, t.effects())
	})
}

func TestOnceRefusesAnotherInput(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		input := oncesql.Input(map[string]any{"customer": 7, "items": []string{"x", "y"}})
		t.do("with", 1, 1, false, input)
		t.do("with", 2, 1, true, input)
		t.do("with", 2, 1, true, oncesql.Input(struct {
			C int      `json:"customer"`
			I []string `json:"items"`
		}{7, []string{"x", "y"}}))
		t.do("without", 3, 3, false)
		t.do("null", 4, 4, false, oncesql.Input(nil))
		for _, c := range []struct {
			key     string
			options []oncesql.CallOption
		}{
			{"with", []oncesql.CallOption{oncesql.Input(map[string]any{"customer": 8, "items": []string{"x", "y"}})}},
			{"with", nil},
			{"without", []oncesql.CallOption{oncesql.Input(nil)}},
			{"without", []oncesql.CallOption{oncesql.Input("")}},
			{"null", nil},
		} {
			got, replayed, err := oncesql.Do(t.Context(), t.store, c.key, t.effect("effect", 9), c.options...)
			require.ErrorIs(t, err, oncesql.ErrMismatch)
			require.EqualError(t, err, fmt.Sprintf("oncesql: the key was used with another input: key %q", c.key))
			require.Zero(t, got)
			require.False(t, replayed)
		}
		require.Equal(t, []int64{1, 3, 4}, t.effects())
	})
}

var errFailed = errors.New("failed")

// Each failure comes after a write, and nothing of it may stay.
func TestOnceUndoesAFailedFunction(t *testing.T) {
	for _, failure := range []struct {
		name string
		end  func(cancel func()) (any, error)
		err  string // of Do; empty: Do does not return
	}{
		{"error", func(func()) (any, error) { return 9, errFailed }, "failed"},
		{"panic", func(func()) (any, error) { panic(errFailed) }, ""},
		{"goexit", func(func()) (any, error) { runtime.Goexit(); return 9, nil }, ""},
		{"context", func(cancel func()) (any, error) { cancel(); return 9, nil }, "context canceled"},
		{"result without JSON", func(func()) (any, error) { return make(chan int), nil },
			`oncesql: key "a": encode the result: json: unsupported type: chan int`},
	} {
		t.Run(failure.name, func(t *testing.T) {
			eachOnce(t, func(t *onceRig) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var got any
				var replayed, returned bool
				var err error
				var panicked any
				var group sync.WaitGroup
				group.Go(func() {
					defer func() { panicked = recover() }()
					got, replayed, err = oncesql.Do(ctx, t.store, "a", func(ctx context.Context, tx *sql.Tx) (any, error) {
						_, err := tx.ExecContext(ctx, t.add, "effect", 1)
						if err != nil {
							return nil, err
						}
						return failure.end(cancel)
					})
					returned = true
				})
				group.Wait()
				require.Equal(t, failure.err != "", returned)
				require.Nil(t, got)
				require.False(t, replayed)
				if failure.name == "error" {
					require.Equal(t, errFailed, err, "the error must be the one of the function")
				}
				if failure.name == "panic" {
					require.Equal(t, errFailed, panicked)
				}
				if failure.err != "" {
					require.ErrorContains(t, err, failure.err)
				}
				require.Empty(t, t.effects())
				t.do("a", 2, 2, false)
				require.Equal(t, []int64{2}, t.effects())
			})
		})
	}
}

func TestOnceRefusesAResultThatItCannotDecode(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		_, replayed, err := oncesql.Do(t.Context(), t.store, "a", func(context.Context, *sql.Tx) (error, error) {
			return errFailed, nil
		})
		require.ErrorContains(t, err, `oncesql: key "a": decode the result: `)
		require.False(t, replayed)
		t.do("a", 1, 1, false)

		got, replayed, err := oncesql.Do(t.Context(), t.store, "a", func(context.Context, *sql.Tx) (string, error) {
			return "another type", nil
		})
		require.ErrorContains(t, err, `oncesql: key "a": decode the result: `)
		require.False(t, replayed)
		require.Empty(t, got)
		require.Equal(t, []int64{1}, t.effects())
	})
}

func TestOnceComparesKeysByteByByte(t *testing.T) {
	keys := []string{
		"orders", "Orders", "ORDERS", "orders ", " orders", "orders\x00", "ordérs", "orde\u0301rs", "order", "\x00",
		"\x00\x00", "\xff", "\xff\xfe", "'", `"`, "`", `\`, `\x41`, "A", "%", "_", "?", "$1", ":a", "\n", "ß", "ss",
		strings.Repeat("x", 1024), strings.Repeat("x", 1023) + "y", strings.Repeat("\xff", 1024),
	}
	eachOnce(t, func(t *onceRig) {
		for i, key := range keys {
			t.do(key, int64(i), int64(i), false)
		}
		for i, key := range keys {
			t.do(key, 100, int64(i), true)
		}
		for _, key := range []string{"", strings.Repeat("x", 1025)} {
			_, _, err := oncesql.Do(t.Context(), t.store, key, t.effect("effect", 1))
			require.ErrorContains(t, err, "a key must have 1 to 1024 bytes")
		}
	})
}

func TestOnceKeepsResultsOfManyTypes(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		keeps(t, "struct", receipt{42, "ü\u2028<&>\x00"})
		keeps(t, "pointer", &receipt{1 << 62, `"\`})
		keeps(t, "nil pointer", (*receipt)(nil))
		keeps(t, "nil", any(nil))
		keeps(t, "no value", struct{}{})
		keeps(t, "string", "it's ?, $1 and :a")
		keeps(t, "empty string", "")
		keeps(t, "bytes", []byte{0, 0xff, 0xfe})
		keeps(t, "map", map[string][]int{"a": {1}, "b": nil})
		keeps(t, "large", strings.Repeat("0123456789", 100_000))
	})
}

// keeps checks that the first call and the second return the result.
func keeps[T any](t *onceRig, key string, result T) {
	t.Helper()
	for _, replay := range []bool{false, true} {
		got, replayed, err := oncesql.Do(t.Context(), t.store, key, func(context.Context, *sql.Tx) (T, error) { return result, nil })
		require.NoError(t, err, key)
		require.Equal(t, result, got, key)
		require.Equal(t, replay, replayed, key)
	}
}

// What JSON drops is missing in the first answer as in the second.
func TestOnceReturnsTheSameToAll(t *testing.T) {
	type secret struct {
		Shown  int
		Hidden int `json:"-"`
	}
	eachOnce(t, func(t *onceRig) {
		for range 2 {
			got, _, err := oncesql.Do(t.Context(), t.store, "a", func(context.Context, *sql.Tx) (secret, error) {
				return secret{1, 2}, nil
			})
			require.NoError(t, err)
			require.Equal(t, secret{Shown: 1}, got)
		}
	})
}

// The second call of a key waits for the first at every level. Then the first ends in either way.
func TestOnceWaitsAtEachIsolationLevel(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		for _, level := range t.levels {
			s := oncesql.New(t.db, t.dialect, oncesql.WithTxOptions(&sql.TxOptions{Isolation: level}))
			for _, failure := range []error{nil, errFailed} {
				key := fmt.Sprint(level, failure)
				started, end := make(chan struct{}), make(chan struct{})
				first, second := make(chan error, 1), make(chan error, 1)
				go func() {
					_, _, err := oncesql.Do(t.Context(), s, key, func(context.Context, *sql.Tx) (int, error) {
						close(started)
						<-end
						return 1, failure
					})
					first <- err
				}()
				<-started
				var got int
				var replayed bool
				ran := false
				call := func() (err error) {
					got, replayed, err = oncesql.Do(t.Context(), s, key, func(context.Context, *sql.Tx) (int, error) {
						ran = true
						return 2, nil
					})
					return err
				}
				go func() { second <- call() }()
				select {
				case err := <-second:
					t.Fatalf("%s: the second call did not wait: %v", key, err)
				case <-time.After(blocked):
				}
				close(end)
				require.ErrorIs(t, <-first, failure, key)
				err := <-second
				if err != nil { // as documented: some levels of PostgreSQL
					require.True(t, t.again(err), "%s: %v", key, err)
					require.NotErrorIs(t, err, oncesql.ErrUnsure)
					require.False(t, ran, key)
					err = call()
				}
				require.NoError(t, err, key)
				require.Equal(t, failure == nil, replayed, key)
				require.Equal(t, failure != nil, ran, key)
				require.Equal(t, map[bool]int{true: 1, false: 2}[replayed], got, key)
			}
		}
	})
}

// One of those that waited for a call that was rolled back runs, at every level. The others may
// have to try again, but only one of them runs.
func TestOnceRunsOneOfThoseWhoWaited(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		for _, level := range t.levels {
			s := oncesql.New(t.db, t.dialect, oncesql.WithTxOptions(&sql.TxOptions{Isolation: level}))
			key := fmt.Sprint(level)
			var runs, again atomic.Int64
			var group sync.WaitGroup
			_, _, err := oncesql.Do(t.Context(), s, key, func(context.Context, *sql.Tx) (string, error) {
				for range 8 {
					group.Go(func() {
						for {
							got, _, err := oncesql.Do(t.Context(), s, key, func(ctx context.Context, tx *sql.Tx) (string, error) {
								_, err := t.effect(key, 1)(ctx, tx)
								return "second", err
							})
							if err == nil && got == "second" {
								runs.Add(1)
								return
							}
							again.Add(1)
							if !t.again(err) {
								t.Errorf("%s: %q, %v", level, got, err)
								return
							}
						}
					})
				}
				time.Sleep(blocked) // the calls wait in the database
				return "first", errFailed
			})
			require.ErrorIs(t, err, errFailed)
			group.Wait()
			require.Equal(t, int64(8), runs.Load(), level)
			t.Logf("%s: tried again %d times", level, again.Load())
		}
		require.Len(t, t.effects(), len(t.levels))
	})
}

// Options of the connections change how values are sent, and how rows are counted.
func TestOnceWithOptionsOfTheDriver(t *testing.T) {
	for _, d := range databases {
		for _, options := range map[fence.Dialect][]string{
			fence.Postgres: {
				"&default_query_exec_mode=simple_protocol", "&default_query_exec_mode=exec",
				"&default_query_exec_mode=describe_exec", "&timezone=Asia/Tokyo",
			},
			fence.MySQL: {
				"?clientFoundRows=true", "?interpolateParams=true", "?parseTime=true&loc=Local&time_zone=%27-07%3A00%27",
				"?sql_mode=%27%27", "?sql_mode=%27ANSI%27",
			},
		}[d.dialect] {
			t.Run(d.kind+options, func(t *testing.T) {
				t.Parallel()
				r := newOnceRig(t, d, d.source(t)+options)
				r.do("\xff'", 1, 1, false, oncesql.Input("x"))
				r.do("\xff'", 2, 1, true, oncesql.Input("x"))
				keeps(r, "text", "'\"`\\ü\x00")
				r.clock()
				n, err := r.store.Purge(t.Context(), time.Minute)
				require.NoError(t, err)
				require.Zero(t, n)
				n, err = r.store.Purge(t.Context(), 0)
				require.NoError(t, err)
				require.Equal(t, int64(2), n)
				require.Equal(t, []int64{1}, r.effects())
			})
		}
	}
}

func TestOnceStopsWaitingWithItsContext(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		_, _, err := oncesql.Do(t.Context(), t.store, "a", func(ctx context.Context, tx *sql.Tx) (int64, error) {
			late, cancel := context.WithTimeout(t.Context(), blocked)
			defer cancel()
			_, _, err := oncesql.Do(late, t.store, "a", t.effect("effect", 2))
			if err == nil {
				t.Error("the second call did not wait")
			}
			return t.effect("effect", 1)(ctx, tx)
		})
		require.NoError(t, err)
		t.do("a", 3, 1, true)
	})
}

func TestOnceFindsAFunctionThatEndsItsTransaction(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		_, _, err := oncesql.Do(t.Context(), t.store, "commit", func(_ context.Context, tx *sql.Tx) (int, error) {
			return 1, tx.Commit()
		})
		require.ErrorIs(t, err, sql.ErrTxDone)
		_, _, err = oncesql.Do(t.Context(), t.store, "commit", t.effect("effect", 1))
		require.ErrorContains(t, err, "the key has no result", "the function must not run again")

		_, _, err = oncesql.Do(t.Context(), t.store, "rollback", func(ctx context.Context, tx *sql.Tx) (int, error) {
			_, err := tx.ExecContext(ctx, "ROLLBACK") // the database does the same after a deadlock in MySQL
			return 1, err
		})
		require.ErrorContains(t, err, "the row of the key is gone")
		require.Empty(t, t.effects())
		t.do("rollback", 2, 2, false)
	})
}

// A row whose key is another one stands for two keys with one SHA-256.
func TestOnceComparesTheKeyItself(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		t.do("a", 1, 1, false)
		_, err := t.db.ExecContext(t.Context(), "UPDATE relock_once SET name = 'b'")
		require.NoError(t, err)
		_, _, err = oncesql.Do(t.Context(), t.store, "a", t.effect("effect", 2))
		require.ErrorContains(t, err, "another key has the same SHA-256")
	})
}

func TestOnceWithoutItsTable(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		s := oncesql.New(t.db, t.dialect, oncesql.WithTable("nowhere"))
		_, _, err := oncesql.Do(t.Context(), s, "a", t.effect("effect", 1))
		require.ErrorContains(t, err, `oncesql: key "a": insert: `)
		require.ErrorContains(t, err, "nowhere")
		require.NotErrorIs(t, err, oncesql.ErrUnsure)
		_, err = s.Purge(t.Context(), 0)
		require.ErrorContains(t, err, "oncesql: Purge: find old rows: ")
		require.Empty(t, t.effects())
	})
}

func TestOnceInTablesOfOtherNames(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		var schema string
		require.NoError(t, t.db.QueryRowContext(t.Context(), t.schema).Scan(&schema))
		t.do("a", 1, 1, false)
		for i, name := range []string{"order", "Group", schema + ".once", strings.Repeat("x", 55)} {
			other := oncesql.New(t.db, t.dialect, oncesql.WithTable(name))
			require.NoError(t, other.Create(t.Context()), name)
			require.NoError(t, other.Create(t.Context()), name)
			t.doIn(other, "a", int64(i+10), int64(i+10), false)
			t.doIn(other, "a", 2, int64(i+10), true)
			removed, err := other.Purge(t.Context(), 0)
			require.NoError(t, err)
			require.Equal(t, int64(1), removed)
		}
		t.do("a", 2, 1, true)
	})
}

// clock checks that the newest row was created just now.
func (t *onceRig) clock() {
	t.Helper()
	var created int64
	require.NoError(t, t.db.QueryRowContext(t.Context(), "SELECT max(created) FROM relock_once").Scan(&created))
	require.InDelta(t, time.Now().UnixMilli(), created, 5_000, "milliseconds by the clock of the database")
}

func TestOncePurgeRemovesOldKeys(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		purge := func(age time.Duration) int64 {
			n, err := t.store.Purge(t.Context(), age)
			require.NoError(t, err)
			return n
		}
		require.Zero(t, purge(0))
		const old = 503 // more than one batch
		for i := range old {
			t.do(fmt.Sprint("old ", i), 1, 1, false)
		}
		t.clock()
		_, err := t.db.ExecContext(t.Context(), "UPDATE relock_once SET created = created - 3600000")
		require.NoError(t, err)
		t.do("new", 2, 2, false)

		require.Zero(t, purge(2*time.Hour))
		require.Zero(t, purge(1<<63-1))
		require.Equal(t, int64(old), purge(time.Hour))
		require.Zero(t, purge(time.Minute))
		t.do("new", 3, 2, true)
		t.do("old 7", 3, 3, false)
		time.Sleep(2 * time.Millisecond) // the clock is the database's
		require.Equal(t, int64(2), purge(time.Millisecond))
	})
}

// A trigger keeps each row, without an error.
func TestOncePurgeOfRowsThatStayEnds(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		statements := map[fence.Dialect][]string{
			fence.Postgres: {
				"CREATE FUNCTION keep() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql",
				"CREATE TRIGGER keep BEFORE DELETE ON relock_once FOR EACH ROW EXECUTE FUNCTION keep()",
			},
			fence.SQLite: {"CREATE TRIGGER keep BEFORE DELETE ON relock_once BEGIN SELECT RAISE(IGNORE); END"},
		}[t.dialect]
		if statements == nil {
			t.Log("NOT TESTED: a trigger of MariaDB keeps no row")
			return
		}
		for i := range 501 { // more than a batch
			t.do(fmt.Sprint(i), 1, 1, false)
		}
		for _, statement := range statements {
			_, err := t.db.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		<-time.After(time.Millisecond) // the rows are old
		n, err := t.store.Purge(t.Context(), 0)
		require.ErrorContains(t, err, "stay without an error")
		require.Zero(t, n)
	})
}

// Purge must not wait for a transaction that has a new key, nor the transaction for it. SQLite has
// one writer: there a Purge beside a transaction fails, and does so no more behind it.
func TestOncePurgeDoesNotWaitForNewKeys(t *testing.T) {
	eachOnce(t, func(t *onceRig) {
		hasOneWriter, limit := t.dialect == fence.SQLite, 5*time.Second
		if hasOneWriter {
			limit = blocked
		}
		t.do("old", 1, 1, false)
		_, err := t.db.ExecContext(t.Context(), "UPDATE relock_once SET created = created - 3600000")
		require.NoError(t, err)
		_, _, err = oncesql.Do(t.Context(), t.store, "new", func(ctx context.Context, tx *sql.Tx) (int64, error) {
			limited, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			n, err := t.store.Purge(limited, time.Minute)
			if hasOneWriter != (err != nil) || hasOneWriter != (n == 0) {
				t.Errorf("Purge: %d, %v", n, err)
			}
			return t.effect("effect", 2)(ctx, tx)
		})
		require.NoError(t, err)
		if hasOneWriter {
			n, err := t.store.Purge(t.Context(), time.Minute)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		}
	})
}

// The answer of a Commit is lost, or the Commit fails. The second call settles either.
func TestOnceIsUnsureAfterAFailedCommit(t *testing.T) {
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprintf("committed %v", committed), func(t *testing.T) {
			eachOnce(t, func(t *onceRig) {
				broken := sql.OpenDB(&lossy{db: t.db, commits: committed})
				defer func() { _ = broken.Close() }()
				got, replayed, err := oncesql.Do(t.Context(), oncesql.New(broken, t.dialect), "a", t.effect("effect", 1))
				require.ErrorIs(t, err, oncesql.ErrUnsure)
				require.ErrorIs(t, err, errLost)
				require.EqualError(t, err, `oncesql: the transaction may have committed: key "a": commit: lost`)
				require.Zero(t, got)
				require.False(t, replayed)
				if committed {
					t.do("a", 2, 1, true)
				} else {
					t.do("a", 2, 2, false)
				}
				require.Len(t, t.effects(), 1)
			})
		})
	}
}

var errLost = errors.New("lost")

// lossy connects to db's database, and loses the answers of commits.
type lossy struct {
	db      *sql.DB
	commits bool // whether a lost Commit has committed
}

func (l *lossy) Driver() driver.Driver { return l.db.Driver() }

// Connect takes a connection out of db's pool for good: the new owner of the connection closes it.
func (l *lossy) Connect(ctx context.Context) (driver.Conn, error) {
	pooled, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var raw driver.Conn
	err = pooled.Raw(func(c any) error {
		raw = c.(driver.Conn)
		return nil
	})
	return &lossyConn{Conn: raw, pooled: pooled, commits: l.commits}, err
}

type lossyConn struct {
	driver.Conn
	pooled  *sql.Conn
	commits bool
}

func (c *lossyConn) Close() error { return c.pooled.Close() }

func (c *lossyConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	return lossyTx{tx, c.commits}, err
}

type lossyTx struct {
	driver.Tx
	commits bool
}

func (t lossyTx) Commit() error {
	end := t.Rollback
	if t.commits {
		end = t.Tx.Commit
	}
	return errors.Join(end(), errLost)
}
