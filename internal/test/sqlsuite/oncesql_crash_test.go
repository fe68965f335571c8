package sqlsuite

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/once/sql"
)

// The parent tells a child in its environment what to do.
const (
	childKind   = "RELOCK_ONCE_CHILD"  // the kind of the database
	childSource = "RELOCK_ONCE_SOURCE" // how to open the database
	childKeys   = "RELOCK_ONCE_NUMBER" // the number of keys
	childMutant = "RELOCK_ONCE_MUTANT" // not empty: look for the key first, and insert it without a unique key
)

// Children that are killed at random moments leave one effect and one result for each key. The
// variable RELOCK_ONCE_KEYS is the number of keys in all databases together.
func TestOnceSurvivesKilledProcesses(t *testing.T) {
	keys := 3000
	if s := os.Getenv("RELOCK_ONCE_KEYS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err, "RELOCK_ONCE_KEYS")
		keys = n
	}
	for _, d := range databases {
		t.Run(d.kind, func(t *testing.T) {
			t.Parallel()
			source := d.source(t)
			c := &crash{onceRig: newOnceRig(t, d, source), source: source, keys: max(keys/len(databases), 1)}
			c.run()
			require.NoError(t, c.check())
			require.NotZero(t, c.kills)
			for range 50 {
				key := crashKey(rand.IntN(c.keys))
				_, replayed, err := oncesql.Do(t.Context(), c.store, key, c.effect(key, -1))
				require.NoError(t, err)
				require.True(t, replayed)
			}
			require.NoError(t, c.check(), "a replay left something")
		})
	}
}

// The check finds the usual mistake: to look for the key first, and to insert it without a unique
// key.
func TestOnceWithoutAUniqueKeyIsFound(t *testing.T) {
	for _, d := range databases {
		t.Run(d.kind, func(t *testing.T) {
			t.Parallel()
			source := d.source(t)
			c := &crash{onceRig: newOnceRig(t, d, source), source: source, keys: 100, mutant: true}
			for _, statement := range []string{"DROP TABLE relock_once", mutants[d.dialect].create} {
				_, err := c.db.ExecContext(t.Context(), statement)
				require.NoError(t, err)
			}
			c.run()
			require.ErrorContains(t, c.check(), "effects")
		})
	}
}

func crashKey(i int) string { return fmt.Sprintf("key-%d", i) }

// crash is a run of children that are killed.
type crash struct {
	*onceRig
	source string
	keys   int
	mutant bool

	mu       sync.Mutex
	answers  map[string][]string // the results that the children got, by key
	kills    int
	failures []string // lines of children that are no answers
}

// run runs three children at a time, and kills each of them at a random moment, until each key has
// a result.
func (c *crash) run() {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute+time.Duration(c.keys)*20*time.Millisecond)
	defer cancel()
	done := make(chan struct{})
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := c.child(ctx); err != nil {
					c.mu.Lock()
					c.failures = append(c.failures, err.Error())
					c.mu.Unlock()
					return
				}
			}
		})
	}
	results := 0
	for results < c.keys && ctx.Err() == nil && len(c.failed()) == 0 {
		err := c.db.QueryRowContext(ctx, "SELECT count(DISTINCT name) FROM relock_once WHERE result IS NOT NULL").
			Scan(&results)
		if err != nil && !c.again(err) {
			c.Errorf("count the results: %v", err)
			break
		}
		time.Sleep(20 * time.Millisecond) // it polls a database
	}
	close(done)
	group.Wait()
	require.Empty(c, c.failed())
	require.Equal(c, c.keys, results, "the time was too short")
	c.Logf("%d keys, %d processes killed, %d answers", c.keys, c.kills, len(slices.Concat(values(c.answers)...)))
}

func values(m map[string][]string) (all [][]string) {
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

func (c *crash) failed() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures
}

// child starts a child, kills it a random time after its first word, and notes its answers.
func (c *crash) child(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childKind+"="+c.kind, childSource+"="+c.source,
		childKeys+"="+strconv.Itoa(c.keys))
	if c.mutant {
		cmd.Env = append(cmd.Env, childMutant+"=1")
	}
	// A child ends at the end of its input: when this process ends, however it ends.
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	if first, err := lines.ReadString('\n'); first != "ready\n" {
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("a child began with %q: %w", first, err), cmd.Wait())
	}
	kill := time.AfterFunc(time.Duration(rand.Int64N(int64(500*time.Millisecond))), func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	c.note(lines)
	_ = cmd.Wait() // it was killed
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kills++
	return nil
}

// note notes the answers of a child until its output ends. A last line without an end is half an
// answer and does not count.
func (c *crash) note(lines *bufio.Reader) {
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		key, result, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		c.mu.Lock()
		if ok && strings.HasPrefix(key, "key-") {
			if c.answers == nil {
				c.answers = map[string][]string{}
			}
			c.answers[key] = append(c.answers[key], result)
		} else {
			c.failures = append(c.failures, line)
		}
		c.mu.Unlock()
	}
}

// check returns an error unless each key has one effect and one result, and the result and each
// answer equal the effect.
func (c *crash) check() error {
	effects := c.pairs("SELECT resource, token FROM log")
	results := c.pairs("SELECT name, result FROM relock_once")
	var wrong []error
	for i := range c.keys {
		key := crashKey(i)
		e, r := effects[key], results[key]
		if len(e) != 1 || len(r) != 1 || e[0] != r[0] {
			wrong = append(wrong, fmt.Errorf("%s has the effects %v and the results %v", key, e, r))
			continue
		}
		for _, answer := range c.answers[key] {
			if answer != e[0] {
				wrong = append(wrong, fmt.Errorf("%s has the effect %s, and a child got %s", key, e[0], answer))
			}
		}
	}
	if len(effects) > c.keys || len(results) > c.keys {
		wrong = append(wrong, fmt.Errorf("%d keys have effects and %d results", len(effects), len(results)))
	}
	return errors.Join(wrong[:min(len(wrong), 10)]...)
}

// pairs returns the rows of a query with two columns, as texts.
func (c *crash) pairs(query string) map[string][]string {
	c.Helper()
	rows, err := c.db.QueryContext(c.Context(), query)
	require.NoError(c, err)
	defer func() { _ = rows.Close() }()
	pairs := map[string][]string{}
	for rows.Next() {
		var name, value []byte
		require.NoError(c, rows.Scan(&name, &value))
		pairs[string(name)] = append(pairs[string(name)], string(value))
	}
	require.NoError(c, rows.Err())
	return pairs
}

// onceChild is the program of a child. It goes through the keys until it is killed.
func onceChild(kind string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent has ended
	}()
	ctx := context.Background()
	i := slices.IndexFunc(databases, func(d database) bool { return d.kind == kind })
	d := databases[i]
	keys, err := strconv.Atoi(os.Getenv(childKeys))
	if err != nil {
		panic(err)
	}
	db, err := sql.Open(d.driver, os.Getenv(childSource))
	if err != nil {
		panic(err)
	}
	db.SetMaxIdleConns(10)
	fmt.Println("ready")
	workers := 4
	if d.dialect == fence.SQLite {
		workers = 1 // it has one writer, and waiting writers sleep
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for {
				for _, key := range d.order(ctx, db, keys) {
					fmt.Printf("%s %s\n", key, d.settle(ctx, db, key))
				}
			}
		})
	}
	group.Wait()
}

// order returns the keys without a result, and some of the others. Once in five times they are in
// ascending order, in which processes meet often, and otherwise in random order. For the mutant
// they are always in ascending order, so that each run finds the mistake.
func (d database) order(ctx context.Context, db *sql.DB, keys int) (order []string) {
	finished := map[string]bool{}
	rows, err := db.QueryContext(ctx, "SELECT name FROM relock_once WHERE result IS NOT NULL")
	if err == nil {
		for rows.Next() {
			var name []byte
			_ = rows.Scan(&name)
			finished[string(name)] = true
		}
		_ = rows.Close()
	}
	numbers := rand.Perm(keys)
	if rand.IntN(5) == 0 || os.Getenv(childMutant) != "" {
		slices.Sort(numbers)
	}
	for _, i := range numbers {
		if key := crashKey(i); !finished[key] || rand.IntN(5) == 0 {
			order = append(order, key)
		}
	}
	return order
}

// settle calls Do, or the mutant, until it has an answer. An error that is no reason to try again
// is the answer.
func (d database) settle(ctx context.Context, db *sql.DB, key string) string {
	for {
		level := d.levels[rand.IntN(len(d.levels))]
		s := oncesql.New(db, d.dialect, oncesql.WithTxOptions(&sql.TxOptions{Isolation: level}))
		number := rand.Int64()
		var result int64
		var err error
		if os.Getenv(childMutant) != "" {
			result, err = d.mutant(ctx, db, key, number)
		} else {
			result, _, err = oncesql.Do(ctx, s, key, d.effect(key, number))
		}
		switch {
		case err == nil:
			return strconv.FormatInt(result, 10)
		case !d.again(err) && !errors.Is(err, oncesql.ErrUnsure):
			return "error: " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
	}
}

// mutants have the statements of a table without a unique key.
var mutants = map[fence.Dialect]struct{ create, read, insert string }{
	fence.Postgres: {
		"CREATE TABLE relock_once (name bytea, result bytea)",
		"SELECT result FROM relock_once WHERE name = $1",
		"INSERT INTO relock_once (name, result) VALUES ($1, $2)",
	},
	fence.MySQL: {
		"CREATE TABLE relock_once (name VARBINARY(50), result LONGBLOB) ENGINE=InnoDB",
		"SELECT result FROM relock_once WHERE name = ?",
		"INSERT INTO relock_once (name, result) VALUES (?, ?)",
	},
	fence.SQLite: {
		"CREATE TABLE relock_once (name BLOB, result BLOB)",
		"SELECT result FROM relock_once WHERE name = ?",
		"INSERT INTO relock_once (name, result) VALUES (?, ?)",
	},
}

// mutant looks for the key, and inserts the effect and the result if there is none.
func (d database) mutant(ctx context.Context, db *sql.DB, key string, number int64) (int64, error) {
	m := mutants[d.dialect]
	var stored []byte
	err := db.QueryRowContext(ctx, m.read, []byte(key)).Scan(&stored)
	if !errors.Is(err, sql.ErrNoRows) {
		n, _ := strconv.ParseInt(string(stored), 10, 64)
		return n, err
	}
	time.Sleep(5 * time.Millisecond) // time for the mistake to show
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := d.effect(key, number)(ctx, tx); err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, m.insert, []byte(key), []byte(strconv.FormatInt(number, 10))); err != nil {
		return 0, err
	}
	return number, tx.Commit()
}
