package torture

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	relocketcd "github.com/go-relock/relock/store/etcd"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// This file is relock on servers that are not Redis.

// Backend is such a server.
type Backend struct {
	Source                 string // how clients find it; has one 127.0.0.1:port
	Pause, Resume, Restart func() // nil: Library.Apart names the scenarios that need them
	// Left returns what the locks have left.
	Left func(ctx context.Context) ([]string, error)
	// Late is how much longer than its lease the lock of a dead process may last.
	Late time.Duration
}

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// storeLocker is relock on a store, and what has to be closed behind its client.
type storeLocker struct {
	relockLocker
	closers []func()
}

func openStore(s Setup, over store.Store, closers ...func()) (Locker, error) {
	c, err := relock.Open(over, relock.WithTTL(s.TTL), relock.WithLogger(slog.New(slog.DiscardHandler)))
	return storeLocker{relockLocker{Client: c}, closers}, err
}

func (l storeLocker) Close() {
	_ = l.Client.Close()
	for _, end := range l.closers {
		end()
	}
}

// PostgreSQL.

func postgres(t testing.TB, keeps bool) *Backend {
	t.Helper()
	var b Backend
	if keeps {
		var server *dbtest.Server
		server, b.Source = dbtest.StartPostgres(t)
		b.Restart = func() {
			server.Crash()
			server.Restart()
		}
	} else {
		b.Source = dbtest.Postgres(t)
	}
	db, err := sql.Open("pgx", b.Source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := relocksql.Create(t.Context(), db, relocksql.Postgres); err != nil {
		t.Fatal(err)
	}
	b.Left = func(ctx context.Context) (ids []string, err error) {
		rows, err := db.QueryContext(ctx, "SELECT id FROM relock_holds WHERE kept_until > "+strconv.FormatInt(time.Now().UnixMicro(), 10))
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var id []byte
			if err := rows.Scan(&id); err != nil {
				return nil, err
			}
			ids = append(ids, string(id))
		}
		return ids, rows.Err()
	}
	return &b
}

func openPostgres(s Setup) (Locker, error) {
	db, err := sql.Open("pgx", s.Addr)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	over, err := relocksql.New(db, relocksql.Postgres, relocksql.WithListener(pglisten.New(s.Addr)))
	if err != nil {
		return nil, err
	}
	return openStore(s, over, func() { _ = over.Close() }, func() { _ = db.Close() })
}

// etcd.

const etcdPrefix = "locks/"

func etcd(t testing.TB, _ bool) *Backend {
	t.Helper()
	server := etcdtest.Start(t, 1)[0]
	plain, err := connectEtcd(server.URL(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	resume := func() {}
	return &Backend{
		Source: server.URL(), Late: 2 * time.Second, // it ends leases late, and begins all anew after a restart
		Pause: func() { resume = server.Pause() }, Resume: func() { resume() }, Restart: server.Restart,
		Left: func(ctx context.Context) (keys []string, err error) {
			all, err := plain.Get(ctx, etcdPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				return nil, err
			}
			for _, kv := range all.Kvs {
				keys = append(keys, string(kv.Key))
			}
			return keys, nil
		},
	}
}

func connectEtcd(url string, ttl time.Duration) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{url}, Logger: zap.NewNop(), DialTimeout: ttl / 2,
		DialKeepAliveTime: ttl / 2, DialKeepAliveTimeout: ttl / 4,
	})
}

func openEtcd(s Setup) (Locker, error) {
	c, err := connectEtcd(s.Addr, s.TTL)
	if err != nil {
		return nil, err
	}
	over, err := relocketcd.New(c, etcdPrefix)
	if err != nil {
		return nil, err
	}
	return openStore(s, over, func() { _ = over.Close() }, func() { _ = c.Close() })
}

// ZooKeeper, with sessions twice as long as leases.

func zooKeeper(t testing.TB, _ bool) *Backend {
	t.Helper()
	server := zktest.Start(t)
	plain, _, err := zk.Connect([]string{server.Address()}, 20*time.Second, zk.WithLogInfo(false), zk.WithLogger(silentZK{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.Close)
	return &Backend{
		Source: server.Address(), Late: 3 * time.Second, // a session, and its begin anew after a restart
		Pause: server.Pause, Resume: server.Resume, Restart: server.Restart,
		Left: func(context.Context) ([]string, error) {
			nodes, _, err := plain.Children("/" + name)
			if errors.Is(err, zk.ErrNoNode) { // the server has deleted the path
				err = nil
			}
			return nodes, err
		},
	}
}

type silentZK struct{}

func (silentZK) Printf(string, ...any) {}

func openZooKeeper(s Setup) (Locker, error) {
	// The client library waits for a second after each round of all servers, of which there are
	// three.
	over, err := relockzk.New(s.Addr+","+s.Addr+","+s.Addr, relockzk.WithSessionTimeout(2*s.TTL))
	if err != nil {
		return nil, err
	}
	return openStore(s, over, func() { _ = over.Close() })
}
