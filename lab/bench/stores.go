package main

import (
	"context"
	"database/sql"
	"hash/fnv"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	relocketcd "github.com/go-relock/relock/store/etcd"
	"github.com/go-relock/relock/store/mem"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// Locks in all stores. The unit is the lock of another library on the same server.

// The stores are the settings of the systems.
const (
	inRedis     = "Redis"
	inQuorum    = "three Redis"
	inEtcd      = "etcd"
	inZooKeeper = "ZooKeeper"
	inPostgres  = "PostgreSQL"
	inMariaDB   = "MariaDB"
	inSQLite    = "SQLite"
	inMemory    = "memory"

	etcdMutex    = "concurrency.Mutex"
	zkLock       = "zk.Lock"
	advisoryLock = "pg_advisory_lock"
	getLock      = "GET_LOCK"
)

// watched is how long a waiter has waited at its turn, at least. etcd takes up to 100 ms until a
// new watch is as prompt as an old one.
const watched = 120 * time.Millisecond

// slowly is ample time for a waiter to queue.
const slowly = 15 * time.Millisecond

// storeServers are the servers of all stores but Redis.
type storeServers struct {
	memory                    *mem.Store
	etcd                      *etcdtest.Server
	zookeeper                 *zktest.Server
	postgres, mariadb, sqlite *database
}

// startStores starts all servers once.
func (e *env) startStores() error {
	if e.stores != nil {
		return nil
	}
	_ = mysql.SetLogger(&mysql.NopLogger{}) // connections that are closed while they wait
	e.t.Cleanup(func() {
		if err := dbtest.Stop(); err != nil {
			e.t.Errorf("%v", err)
		}
	})
	s := &storeServers{memory: mem.New(), etcd: etcdtest.Start(e.t, 1)[0], zookeeper: zktest.Start(e.t)}
	var err error
	if s.postgres, err = openPostgres(e.t); err != nil {
		return err
	}
	if s.mariadb, err = openDatabase(e.t, relocksql.MySQL, "mysql", dbtest.MariaDB(e.t)+"?interpolateParams=true"); err != nil {
		return err
	}
	s.sqlite, err = openDatabase(e.t, relocksql.SQLite, "sqlite", "file:"+filepath.Join(e.t.TempDir(), "locks.db")+
		"?_pragma=busy_timeout(50)&_pragma=synchronous(OFF)&_pragma=journal_mode(WAL)")
	e.stores = s
	return err
}

// database is a database with two stores, which all clients share by turns, as 65 clients would
// need more connections than a server allows.
type database struct {
	*sql.DB

	stores [2]*relocksql.Store
	opened atomic.Int64
	sent   atomic.Int64 // statements, in PostgreSQL
}

func openPostgres(t testing.TB) (*database, error) {
	t.Helper()
	d := &database{}
	url := dbtest.Postgres(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.Tracer = d
	d.DB = stdlib.OpenDB(*config)
	return d, d.open(t, relocksql.Postgres, relocksql.WithListener(pglisten.New(url)))
}

func openDatabase(t testing.TB, dialect relocksql.Dialect, driver, source string) (*database, error) {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	d := &database{DB: db}
	return d, d.open(t, dialect)
}

// open makes the tables and the stores.
func (d *database) open(t testing.TB, dialect relocksql.Dialect, options ...relocksql.Option) (err error) {
	t.Helper()
	d.SetMaxOpenConns(90)
	d.SetMaxIdleConns(90)
	if err := relocksql.Create(context.Background(), d.DB, dialect); err != nil {
		return err
	}
	for i := range d.stores {
		if d.stores[i], err = relocksql.New(d.DB, dialect, options...); err != nil {
			return err
		}
	}
	t.Cleanup(func() {
		for _, c := range []io.Closer{d.stores[0], d.stores[1], d.DB} {
			if err := c.Close(); err != nil {
				t.Errorf("%v", err)
			}
		}
	})
	return nil
}

// TraceQueryStart counts the statements.
func (d *database) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	d.sent.Add(1)
	return ctx
}

// TraceQueryEnd does nothing.
func (d *database) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// relockIn is relock in a store. The closers go after the client.
func relockIn(setting string, received received, open func(*storeServers) (store.Store, []io.Closer, error)) *system {
	return &system{name: "relock", setting: setting, received: received, queues: slowly, open: func(s setup) (process, error) {
		kept, closers, err := open(s.stores)
		if err != nil {
			return nil, err
		}
		client, err := relock.Open(kept)
		if err != nil {
			return nil, err
		}
		return overMembers{&relockProcess{client: client}, closers}, nil
	}}
}

func relockInDatabase(setting string, received received, of func(*storeServers) *database) *system {
	return relockIn(setting, received, func(s *storeServers) (store.Store, []io.Closer, error) {
		d := of(s)
		return d.stores[d.opened.Add(1)%2], nil, nil
	})
}

// received counts the requests of clients that a server has received so far. NaN: nobody counts.
type received func(*storeServers) (float64, error)

func byEtcd(s *storeServers) (float64, error)      { return float64(s.etcd.Requests()), nil }
func byZooKeeper(s *storeServers) (float64, error) { return float64(s.zookeeper.Requests()), nil }
func byPostgres(s *storeServers) (float64, error)  { return float64(s.postgres.sent.Load()), nil }
func byNobody(*storeServers) (float64, error)      { return math.NaN(), nil }

func byMariaDB(s *storeServers) (n float64, err error) {
	var name string
	err = s.mariadb.QueryRowContext(context.Background(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	return n, err
}

// sent calls f, and returns how many commands the server of a system has received meanwhile.
func (b *bench) sent(s *system, f func() error) (float64, error) {
	if s.received == nil {
		u, err := b.spent(f)
		return float64(u.commands(s.also...)), err
	}
	before, err := s.received(b.stores)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := s.received(b.stores)
	return after - before, err
}

func dialEtcd(s *storeServers) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{s.etcd.URL()}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
}

// storeSystems are relock in each store, and behind it the lock of another library there.
var storeSystems = []*system{
	{name: "relock", setting: inRedis, open: openRelock(nil), queued: relockQueued},
	relockOver(inQuorum, allAlive),
	relockIn(inEtcd, byEtcd, func(s *storeServers) (store.Store, []io.Closer, error) {
		c, err := dialEtcd(s)
		if err != nil {
			return nil, nil, err
		}
		kept, err := relocketcd.New(c, "relock/")
		return kept, []io.Closer{kept, c}, err
	}),
	{name: etcdMutex, setting: inEtcd, received: byEtcd, queues: slowly, open: openEtcdMutex},
	relockIn(inZooKeeper, byZooKeeper, func(s *storeServers) (store.Store, []io.Closer, error) {
		kept, err := relockzk.New(s.zookeeper.Address())
		return kept, []io.Closer{kept}, err
	}),
	{name: zkLock, setting: inZooKeeper, received: byZooKeeper, queues: slowly, open: openZKLock},
	relockInDatabase(inPostgres, byPostgres, func(s *storeServers) *database { return s.postgres }),
	{name: advisoryLock, setting: inPostgres, received: byPostgres, queues: slowly, open: func(s setup) (process, error) {
		return sessionProcess{s.stores.postgres.DB, "SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"}, nil
	}},
	relockInDatabase(inMariaDB, byMariaDB, func(s *storeServers) *database { return s.mariadb }),
	{name: getLock, setting: inMariaDB, received: byMariaDB, queues: slowly, open: func(s setup) (process, error) {
		return sessionProcess{s.stores.mariadb.DB, "SELECT GET_LOCK(?, 600)", "SELECT RELEASE_LOCK(?)"}, nil
	}},
	relockInDatabase(inSQLite, byNobody, func(s *storeServers) *database { return s.sqlite }),
	relockIn(inMemory, byNobody, func(s *storeServers) (store.Store, []io.Closer, error) { return s.memory, nil, nil }),
}

// etcd's own mutex. Its keys have the name of their session, so each process is one holder.

type etcdMutexProcess struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func openEtcdMutex(s setup) (process, error) {
	c, err := dialEtcd(s.stores)
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(c, concurrency.WithTTL(int(relock.DefaultTTL/time.Second)))
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return etcdMutexProcess{c, session}, nil
}

func (p etcdMutexProcess) handle(lock string) handle {
	return etcdMutexHandle{concurrency.NewMutex(p.session, "mutex/"+lock)}
}

func (p etcdMutexProcess) close() {
	_ = p.session.Close()
	_ = p.client.Close()
}

type etcdMutexHandle struct{ m *concurrency.Mutex }

func (h etcdMutexHandle) lock(ctx context.Context) (context.Context, error) {
	return ctx, h.m.Lock(ctx)
}

func (h etcdMutexHandle) unlock(ctx context.Context) error {
	return h.m.Unlock(context.WithoutCancel(ctx)) // the ring may have ended
}

// The lock of ZooKeeper's client library. It knows no contexts.

type zkLockProcess struct{ conn *zk.Conn }

func openZKLock(s setup) (process, error) {
	conn, events, err := zk.Connect([]string{s.stores.zookeeper.Address()}, 40*time.Second, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	return zkLockProcess{conn}, within(closeLimit, func() error {
		for e := range events {
			if e.State == zk.StateHasSession {
				return nil
			}
		}
		return zk.ErrClosing
	})
}

func (p zkLockProcess) handle(lock string) handle {
	return zkLockHandle{zk.NewLock(p.conn, "/zk-"+lock, zk.WorldACL(zk.PermAll))}
}

func (p zkLockProcess) close() { p.conn.Close() }

type zkLockHandle struct{ l *zk.Lock }

func (h zkLockHandle) lock(ctx context.Context) (context.Context, error) {
	if err := ctx.Err(); err != nil {
		return ctx, err
	}
	return ctx, h.l.Lock()
}

func (h zkLockHandle) unlock(context.Context) error { return h.l.Unlock() }

// The session locks of databases. Each handle takes a connection while it waits and while it is in.

type sessionProcess struct {
	db                 *sql.DB
	locking, unlocking string
}

func (p sessionProcess) handle(lock string) handle {
	h := fnv.New32()
	_, _ = h.Write([]byte(lock))
	return &sessionHandle{sessionProcess: p, name: strconv.FormatUint(uint64(h.Sum32()), 10)}
}

func (sessionProcess) close() {}

type sessionHandle struct {
	sessionProcess

	name string
	conn *sql.Conn
}

func (h *sessionHandle) lock(ctx context.Context) (_ context.Context, err error) {
	if h.conn, err = h.db.Conn(ctx); err != nil {
		return ctx, err
	}
	if _, err = h.conn.ExecContext(ctx, h.locking, h.name); err != nil {
		_ = h.conn.Close()
	}
	return ctx, err
}

func (h *sessionHandle) unlock(ctx context.Context) error {
	_, err := h.conn.ExecContext(context.WithoutCancel(ctx), h.unlocking, h.name)
	if closed := h.conn.Close(); err == nil {
		err = closed
	}
	return err
}

// inStores returns the workload on the servers of all stores.
func (b *bench) inStores() (*bench, error) {
	on := b.onMembers()
	on.sizes.pair, on.sizes.quorum = b.sizes.stores.pair, b.sizes.stores
	return on, on.startStores()
}

// storesPair is pair in all stores.
func storesPair(b *bench) error {
	b, err := b.inStores()
	if err != nil {
		return err
	}
	err = b.pairs(0)
	b.ofPeers("", "us")
	return err
}

// storesHandover measures rings in all stores.
func storesHandover(b *bench) error {
	b, err := b.inStores()
	if err != nil {
		return err
	}
	hold := b.sizes.kinds.hold
	for _, n := range b.sizes.quorum.waiters {
		which := strconv.Itoa(n) + " waiting"
		b.sizes.kinds.hold = max(hold, watched/time.Duration(n))
		err := b.contest(which, b.sizes.quorum.rounds, func(s *system, rec *record) (round, error) {
			return b.quorumRing(s, rec, n)
		})
		b.ofPeers(which, "p50_us")
		if err != nil {
			return err
		}
	}
	return nil
}

// ofPeers divides a metric of relock in a store by the metric of the other library there, in each
// round.
func (b *bench) ofPeers(which, metric string) {
	all := b.report.in(b.workload, which)
	for _, rec := range all {
		for _, peer := range all {
			if rec.System == "relock" && peer.System != "relock" && peer.Setting == rec.Setting {
				rec.divide("of_peer", metric, peer, metric)
			}
		}
	}
}
