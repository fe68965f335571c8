//go:build !memory

package soak

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/tcptest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	relocketcd "github.com/go-relock/relock/store/etcd"
	"github.com/go-relock/relock/store/quorum"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// lateness is more than what a busy machine adds.
const lateness = 3 * time.Second

// reach opens a store as its page says, with the defaults of its client, through a network.
type reach func(t *testing.T, through func(address string) (proxy string)) store.Store

var reaches = map[string]reach{
	"redis": func(t *testing.T, through func(string) string) store.Store {
		t.Helper()
		return overRedis(t, through(redistest.Start(t).Addr()))
	},
	"quorum": func(t *testing.T, through func(string) string) store.Store {
		t.Helper()
		var members []store.Store
		for range 3 {
			members = append(members, overRedis(t, through(redistest.Start(t).Addr())))
		}
		s, err := quorum.New(members...)
		require.NoError(t, err)
		return s
	},
	"postgres": func(t *testing.T, through func(string) string) store.Store {
		t.Helper()
		_, url := dbtest.StartPostgres(t)
		url = address.ReplaceAllStringFunc(url, through)
		return overSQL(t, "pgx", url, relocksql.Postgres, relocksql.WithListener(pglisten.New(url)))
	},
	"mariadb": func(t *testing.T, through func(string) string) store.Store {
		t.Helper()
		_, dsn := dbtest.StartMariaDB(t)
		return overSQL(t, "mysql", address.ReplaceAllStringFunc(dsn, through), relocksql.MySQL)
	},
	"etcd": func(t *testing.T, through func(string) string) store.Store {
		t.Helper()
		url := through(strings.TrimPrefix(etcdtest.Start(t, 1)[0].URL(), "http://"))
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		s, err := relocketcd.New(c, "relock/")
		require.NoError(t, err)
		return s
	},
	"zookeeper": func(t *testing.T, through func(string) string) store.Store {
		t.Helper()
		s, err := relockzk.New(through(zktest.Start(t).Address()))
		require.NoError(t, err)
		return s
	},
}

func overRedis(t *testing.T, address string) store.Store {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { _ = rdb.Close() })
	s, err := relock.RedisStore(rdb)
	require.NoError(t, err)
	return s
}

func overSQL(t *testing.T, driver, source string, dialect relocksql.Dialect, options ...relocksql.Option) store.Store {
	t.Helper()
	db, err := sql.Open(driver, source)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	require.NoError(t, relocksql.Create(t.Context(), db, dialect))
	s, err := relocksql.New(db, dialect, options...)
	require.NoError(t, err)
	return s
}

// warnings notes when a log has its first warning.
type warnings struct {
	slog.Handler
	first chan time.Time
}

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		select {
		case w.first <- time.Now():
		default:
		}
	}
	return nil
}

func (w warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// A store is away for a process: it is silent, or refuses connections. Each call without a context
// that ends has a limit of its own, as the table of docs/STORES.md says.
func TestWhatCallsDoWhileTheStoreIsAway(t *testing.T) {
	for name, open := range reaches {
		for how, leave := range map[string]func(*tcptest.Proxy){
			"silent":  func(p *tcptest.Proxy) { p.Stall() },
			"refuses": func(p *tcptest.Proxy) { p.Close() },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				goAway(t, open, leave)
			})
		}
	}
}

func goAway(t *testing.T, open reach, leave func(*tcptest.Proxy)) {
	t.Helper()
	var proxies []*tcptest.Proxy
	s := open(t, func(address string) string {
		p := tcptest.NewProxy(t, address)
		proxies = append(proxies, p)
		return p.Address()
	})
	t.Cleanup(func() { _ = s.Close() })
	w := warnings{first: make(chan time.Time, 1)}
	const ttl = 4 * time.Second
	c, err := relock.Open(s, relock.WithTTL(ttl), relock.WithLogger(slog.New(w)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	ctx := context.Background()
	held := c.NewLock("held")
	section, err := held.Lock(ctx)
	require.NoError(t, err)

	for _, p := range proxies {
		leave(p)
	}
	began := time.Now()
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() { _, _ = c.NewLock("waited").Lock(waiting) }()
	limits := map[string]time.Duration{"TryLock": 2 * time.Second, "State": 2 * time.Second, "Check": 3 * time.Second, "Unlock": ttl}
	type end struct {
		verb string
		took time.Duration
		err  error
	}
	ends := make(chan end, len(limits))
	for verb, call := range map[string]func() error{
		"TryLock": func() error { _, err := c.NewLock("a").TryLock(ctx); return err },
		"State":   func() error { _, err := c.NewLock("b").State(ctx); return err },
		"Check":   func() error { return c.Check(ctx) },
		"Unlock":  func() error { return held.Unlock(section) },
	} {
		go func() {
			err := call()
			ends <- end{verb, time.Since(began), err}
		}()
	}
	warned := (<-w.first).Sub(began)
	t.Logf("warning after %s", warned.Round(time.Millisecond))
	require.Less(t, warned, time.Second+lateness)
	for range limits {
		e := <-ends
		t.Logf("%s: %s: %v", e.verb, e.took.Round(time.Millisecond), e.err)
		if e.verb != "Unlock" || !errors.Is(e.err, relock.ErrLockLost) {
			require.ErrorIs(t, e.err, relock.ErrUnavailable, e.verb)
		}
		require.NotErrorIs(t, e.err, context.Canceled, e.verb)
		require.Less(t, e.took, limits[e.verb]+lateness, e.verb)
	}
}
