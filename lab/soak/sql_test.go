//go:build !memory

package soak

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/lab/soak/history"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
)

// The worlds of SQL databases.
var (
	onPostgres  = setting{begin: startPostgres, ttl: 2 * time.Second, serves: sqlKinds}
	onPgBouncer = setting{begin: startPgBouncer, ttl: 2 * time.Second, serves: sqlKinds}
	onMariaDB   = setting{begin: startMariaDB, ttl: 2 * time.Second, serves: sqlKinds}
	onSQLite    = setting{begin: startSQLite, ttl: 2 * time.Second, serves: sqlKinds}
)

var sqlKinds = []string{book, pool}

// database is a database with its server, if it has one.
type database struct {
	network
	dialect relocksql.Dialect
	driver  string
	source  string         // past the proxies, and past the pooler
	pooler  *dbtest.Pooler // nil: none
	server  *dbtest.Server // nil: none
	hang    string         // the statement that ends all other connections to the database
	plain   *sql.DB        // past the proxies
	pools   []int          // the connections that a peer may have
	stores  sync.Map       // *inDatabase by the way of its peer
}

// inDatabase is what a peer uses besides its client.
type inDatabase struct {
	db    *sql.DB
	store *relocksql.Store
}

// endOthers ends all other connections to a database of PostgreSQL.
const endOthers = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

func startPostgres(s *soak) world {
	server, url := dbtest.StartPostgres(s.t)
	w := &database{dialect: relocksql.Postgres, driver: "pgx", server: server, source: url, hang: endOthers}
	return w.start(s)
}

// startPgBouncer gives all peers fewer sessions than they have connections.
func startPgBouncer(s *soak) world {
	server, url := dbtest.StartPostgres(s.t)
	w := &database{dialect: relocksql.Postgres, driver: "pgx", server: server, source: url, hang: endOthers}
	w.pooler = dbtest.StartPooler(s.t, address.FindString(url), "transaction", 8)
	return w.start(s)
}

func startMariaDB(s *soak) world {
	_ = mysql.SetLogger(log.New(io.Discard, "", 0)) // it logs every connection that a fault breaks
	server, dsn := dbtest.StartMariaDB(s.t)
	w := &database{dialect: relocksql.MySQL, driver: "mysql", server: server, source: dsn + "?interpolateParams=true&innodb_lock_wait_timeout=10&idle_transaction_timeout=5", hang: `
BEGIN NOT ATOMIC
	FOR p IN (SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()) DO
		BEGIN
			DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
			KILL p.id;
		END;
	END FOR;
END`}
	return w.start(s)
}

func startSQLite(s *soak) world {
	w := &database{dialect: relocksql.SQLite, driver: "sqlite", source: "file:" + filepath.Join(s.t.TempDir(), "locks.db") +
		"?_pragma=busy_timeout(50)&_pragma=synchronous(OFF)&_pragma=journal_mode(WAL)"}
	return w.start(s)
}

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

func (w *database) start(s *soak) world {
	w.soak, w.pools = s, []int{1, 2, 10}
	if w.server != nil {
		w.servers = address.FindAllString(w.source, 1)
	}
	if w.pooler != nil {
		w.servers = []string{w.pooler.Addr()}
	}
	w.plain = w.connect(w.source, 2)
	s.t.Cleanup(func() { _ = w.plain.Close() })
	require.NoError(s.t, relocksql.Create(context.Background(), w.plain, w.dialect))
	return w
}

func (w *database) connect(source string, connections int) *sql.DB {
	w.t.Helper()
	db, err := sql.Open(w.driver, source)
	require.NoError(w.t, err)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

func (w *database) join(time.Duration) *peer {
	w.t.Helper()
	y, source := w.cable(), w.source
	if w.server != nil {
		source = address.ReplaceAllString(source, y.addresses()[0])
	}
	listening := source
	if w.pooler != nil { // which lets no listener through
		source, listening = source+"&default_query_exec_mode=exec", w.source
	}
	random := w.another()
	db := w.connect(source, w.pools[random.IntN(len(w.pools))])
	var options []relocksql.Option
	if w.dialect == relocksql.Postgres && random.IntN(2) == 0 {
		options = append(options, relocksql.WithListener(pglisten.New(listening)))
	}
	over, err := relocksql.New(db, w.dialect, options...)
	require.NoError(w.t, err)
	y.closing = append(y.closing, func() { _ = db.Close() }, func() { _ = over.Close() })
	w.stores.Store(way(y), &inDatabase{db, over})
	return &peer{w.open(over), y}
}

// transact implements transactor.
func (w *database) transact(ctx context.Context, p *peer, name string, work func()) error {
	of, _ := w.stores.Load(p.way)
	d := of.(*inDatabase)
	options := &sql.TxOptions{}
	if w.dialect == relocksql.MySQL {
		options.Isolation = sql.LevelReadCommitted
	}
	tx, err := d.db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	if err := d.store.LockTx(ctx, tx, name); err != nil {
		_ = tx.Rollback()
		return err
	}
	work()
	return tx.Commit()
}

func (w *database) settle() {}

// left returns the rows of holds and waiters whose time is not over.
func (w *database) left() (ids []string) {
	rows, err := w.plain.QueryContext(context.Background(), "SELECT name, id FROM relock_holds WHERE kept_until > "+
		strconv.FormatInt(time.Now().UnixMicro(), 10))
	require.NoError(w.t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name, id string
		require.NoError(w.t, rows.Scan(&name, &id))
		ids = append(ids, name+" "+id)
	}
	require.NoError(w.t, rows.Err())
	return ids
}

func (w *database) troubles() []troubles {
	here := troubles{400 * time.Millisecond, w.atTheServer}
	if w.server == nil {
		return []troubles{here}
	}
	return []troubles{{150 * time.Millisecond, w.onCables}, here}
}

func (w *database) atTheServer(random *rand.Rand) []fault {
	ctx := context.Background()
	faults := append(w.anywhere(random), fault{"rows deleted", 1, func() {
		name := w.anyName(random)
		w.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error {
			_, err := w.plain.ExecContext(ctx, fmt.Sprintf("DELETE FROM relock_holds WHERE name = '%s'", name))
			return err
		})
	}})
	if w.server == nil {
		return append(faults, fault{"database locked", 4, func() { w.lockFile(ctx, upTo(random, w.ttl)) }})
	}
	if w.pooler != nil {
		faults = append(faults, fault{"pooler crashed", 2, func() {
			w.pooler.Crash()
			w.pause(upTo(random, w.ttl/4))
			w.pooler.Restart()
		}})
	}
	return append(faults,
		fault{"sessions ended", 4, func() { _, _ = w.plain.ExecContext(ctx, w.hang) }},
		fault{"server crashed", 1, func() {
			w.server.Crash()
			w.pause(upTo(random, w.ttl/4))
			w.server.Restart()
		}})
}

// lockFile keeps everybody else from writing to the file.
func (w *database) lockFile(ctx context.Context, d time.Duration) {
	conn, err := w.plain.Conn(ctx)
	require.NoError(w.t, err)
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return // somebody writes
	}
	w.pause(d)
	_, err = conn.ExecContext(ctx, "ROLLBACK")
	require.NoError(w.t, err)
}
