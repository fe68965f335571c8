//go:build unix

package sqlsuite

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/redistest"
)

// The writers of this file are processes that the test stops while they have the lock. Each of them
// wakes up after others had the lock, and tries to write to PostgreSQL and to Redis.

const (
	orders      = "orders"
	ordersKey   = "{orders}:writes" // a list of tokens in Redis
	leaseEnds   = 100 * time.Millisecond
	leaseStays  = time.Minute // longer than the test
	childLimit  = 30 * time.Second
	startsAhead = 10 // children that start while others lock
)

// A writer's ways to write.
const (
	fenced   = "fenced"
	unfenced = "unfenced"
)

// A writer's answers.
const (
	written = "written"
	refused = "refused"
)

func TestAStoppedWriterWritesNothing(t *testing.T) {
	s := newScene(t)
	writers := s.stop(t, 100, fenced)
	last := s.write(t)
	require.Equal(t, map[string]int{"redis refused": 100, "postgres refused": 100}, s.wake(t, writers))
	require.Equal(t, []int64{last}, s.inPostgres(t))
	require.Equal(t, []int64{last}, s.inRedis(t))
}

// Without the fence the writers of the test above do write: the test would see it.
func TestAStoppedWriterWritesWithoutAFence(t *testing.T) {
	s := newScene(t)
	writers := s.stop(t, 10, unfenced)
	last := s.write(t)
	require.Equal(t, map[string]int{"redis written": 10, "postgres written": 10}, s.wake(t, writers))
	for where, all := range map[string][]int64{"PostgreSQL": s.inPostgres(t), "Redis": s.inRedis(t)} {
		require.Equal(t, last, all[0], where)
		require.Len(t, all[1:], 10, where)
		for _, token := range all[1:] {
			require.Less(t, token, last, where)
		}
	}
}

// scene is a lock and the two resources behind it.
type scene struct {
	redis  *redistest.Server
	rdb    *redis.Client
	url    string // of PostgreSQL
	db     *sql.DB
	fences *fence.Table
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{redis: redistest.Start(t), url: dbtest.Postgres(t), fences: fence.SQL(fence.Postgres)}
	s.rdb = s.redis.Client()
	s.db = open(t, "pgx", s.url)
	require.NoError(t, s.fences.Create(t.Context(), s.db))
	_, err := s.db.ExecContext(t.Context(), `CREATE TABLE writes (id bigserial PRIMARY KEY, token bigint NOT NULL)`)
	require.NoError(t, err)
	return s
}

// stop has n processes take the lock one after the other, and stops each of them with the lock.
func (s *scene) stop(t *testing.T, n int, how string) []*redistest.Process {
	t.Helper()
	var writers []*redistest.Process
	last := int64(0)
	for i := range n {
		for len(writers) < min(n, i+startsAhead) {
			lease := leaseEnds
			if flushes(len(writers)) {
				lease = leaseStays
			}
			writers = append(writers, redistest.Child(t, "writer", s.redis.URL(), s.url, how, lease.String()))
		}
		writers[i].Send("lock")
		token, err := strconv.ParseInt(writers[i].Expect("token ", childLimit), 10, 64)
		require.NoError(t, err)
		require.Greater(t, token, last)
		last = token
		writers[i].Pause()
		if flushes(i) {
			require.NoError(t, s.rdb.FlushAll(t.Context()).Err())
		}
	}
	return writers
}

// flushes reports a writer that loses its lock with all data of Redis, in place of its lease. Such
// a writer still counts on its lease when it wakes up, so Redis itself has to refuse it.
func flushes(i int) bool { return i%10 == 9 }

// write has the last holder of the lock write to both resources, and returns the holder's token.
func (s *scene) write(t *testing.T) (token int64) {
	t.Helper()
	client, err := relock.New(s.rdb)
	require.NoError(t, err)
	defer client.Close()
	lock := client.NewLock(orders)
	require.NoError(t, lock.Do(t.Context(), func(ctx context.Context) error {
		if token, err = lock.Token(ctx); err != nil {
			return err
		}
		if err := toRedis(ctx, lock, token); err != nil {
			return err
		}
		return toPostgres(ctx, s.db, s.fences.Enter, token)
	}))
	return token
}

// wake lets all writers go on at once, each with the order to write, and counts their answers.
func (s *scene) wake(t *testing.T, writers []*redistest.Process) map[string]int {
	t.Helper()
	for _, writer := range writers {
		writer.Send("write") // it reads this when it wakes up
	}
	for _, writer := range writers {
		writer.Resume()
	}
	answers := map[string]int{}
	for _, writer := range writers {
		answers[writer.Line(childLimit)]++
		answers[writer.Line(childLimit)]++
		require.NoError(t, writer.Wait(childLimit))
	}
	return answers
}

func (s *scene) inPostgres(t *testing.T) []int64 {
	t.Helper()
	return tokens(t, s.db, "SELECT token FROM writes ORDER BY id")
}

func (s *scene) inRedis(t *testing.T) (all []int64) {
	t.Helper()
	require.NoError(t, s.rdb.LRange(t.Context(), ordersKey, 0, -1).ScanSlice(&all))
	return all
}

// toRedis appends the token to the list in Redis, if the section still has the lock.
func toRedis(section context.Context, lock *relock.Lock, token int64) error {
	_, err := lock.Eval(section, "return redis.call('RPUSH', KEYS[1], ARGV[1])", []string{ordersKey}, token)
	return err
}

// toPostgres appends the token to the table, if the fence lets it enter.
func toPostgres(ctx context.Context, db *sql.DB, enter enterFunc, token int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after Commit
	if err := enter(ctx, tx, orders, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO writes (token) VALUES ($1)", token); err != nil {
		return err
	}
	return tx.Commit()
}

func init() { redistest.RegisterChild("writer", writerChild) }

// writerChild is a process that takes the lock and says its token, waits for an order, and writes.
// It says how each write went, or what went wrong.
func writerChild(args []string, in *bufio.Reader, out io.Writer) {
	if err := runWriter(args[0], args[1], args[2], args[3], in, out); err != nil {
		fmt.Fprintln(out, "failed:", err)
	}
}

func runWriter(redisURL, postgresURL, how, lease string, in *bufio.Reader, out io.Writer) error {
	options, err := redis.ParseURL(redisURL)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	ttl, err := time.ParseDuration(lease)
	if err != nil {
		return err
	}
	client, err := relock.New(rdb, relock.WithTTL(ttl))
	if err != nil {
		return err
	}
	defer client.Close()
	db, err := sql.Open("pgx", postgresURL)
	if err != nil {
		return err
	}
	defer db.Close()
	lock := client.NewLock(orders)

	if err := order(in, "lock"); err != nil {
		return err
	}
	section, token, err := hold(lock)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "token", token)
	if err := order(in, "write"); err != nil { // the process is stopped here
		return err
	}
	// A write that was already on its way does not see the end of the section.
	ctx := context.WithoutCancel(section)
	if how == unfenced {
		fmt.Fprintln(out, "redis", answer(rdb.RPush(ctx, ordersKey, token).Err()))
		noFence := func(context.Context, *sql.Tx, string, int64) error { return nil }
		fmt.Fprintln(out, "postgres", answer(toPostgres(ctx, db, noFence, token)))
		return nil
	}
	fmt.Fprintln(out, "redis", answer(toRedis(ctx, lock, token)))
	fmt.Fprintln(out, "postgres", answer(toPostgres(ctx, db, fence.SQL(fence.Postgres).Enter, token)))
	return nil
}

// hold takes the lock and draws a token. On a slow machine a short lease may be over before, so
// hold tries again.
func hold(lock *relock.Lock) (section context.Context, token int64, err error) {
	for {
		if section, err = lock.Lock(context.Background()); err != nil {
			return nil, 0, err
		}
		if token, err = lock.Token(section); err == nil || !errors.Is(err, relock.ErrLockLost) {
			return section, token, err
		}
	}
}

// order waits for a line on the standard input.
func order(in *bufio.Reader, want string) error {
	got, err := in.ReadString('\n')
	if err == nil && strings.TrimSpace(got) != want {
		err = fmt.Errorf("the order is %q instead of %q", got, want)
	}
	return err
}

// answer says how a write went.
func answer(err error) string {
	var lost *relock.LostError
	switch {
	case err == nil:
		return written
	case errors.As(err, &lost), errors.Is(err, fence.ErrStale):
		return refused
	}
	return "failed: " + err.Error()
}
