package main

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"encoding/pem"
	"errors"
	"maps"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/zktest"
	relocksql "github.com/go-relock/relock/store/sql"
)

// storeSite is a store for one test.
type storeSite struct {
	*testing.T
	url  string
	name string
	kill func() // ends the server; nil: the server is that of all tests
}

// withTables returns a site on an empty SQL database.
func withTables(t *testing.T, name, url string) *storeSite {
	t.Helper()
	require.Equal(t, result{}, do(t, nil, "create-tables", "--store", url))
	return &storeSite{T: t, url: url, name: name}
}

// storeSites start one store of each kind.
var storeSites = map[string]func(t *testing.T) *storeSite{
	"etcd": func(t *testing.T) *storeSite {
		t.Helper()
		server := etcdtest.Start(t, 1)[0]
		return &storeSite{t, strings.Replace(server.URL(), "http", "etcd", 1) + "/locks", "etcd", server.Kill}
	},
	"zookeeper": func(t *testing.T) *storeSite {
		t.Helper()
		server := zktest.Start(t)
		return &storeSite{t, "zookeeper://" + server.Address() + "/app/locks", "ZooKeeper", server.Kill}
	},
	"postgres": func(t *testing.T) *storeSite { t.Helper(); return withTables(t, "PostgreSQL", dbtest.Postgres(t)) },
	"mysql":    func(t *testing.T) *storeSite { t.Helper(); return withTables(t, "MySQL", mariadbURL(t)) },
	"sqlite": func(t *testing.T) *storeSite {
		t.Helper()
		return &storeSite{T: t, url: "sqlite://" + filepath.Join(t.TempDir(), "locks.db"), name: "SQLite"}
	},
}

// mariadbURL returns the URL of an empty database.
func mariadbURL(t *testing.T) string {
	t.Helper()
	return "mysql://" + strings.NewReplacer("tcp(", "", ")", "").Replace(dbtest.MariaDB(t))
}

// onEachStore runs a test on each kind of store, all at once.
func onEachStore(t *testing.T, test func(s *storeSite)) {
	t.Helper()
	onStores(t, slices.Collect(maps.Keys(storeSites)), test)
}

// onStores runs a test on some kinds of stores, all at once.
func onStores(t *testing.T, kinds []string, test func(s *storeSite)) {
	t.Helper()
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(storeSites[kind](t))
		})
	}
}

// on is the setup of a program that finds the store in the environment.
func (s *storeSite) on() []setup { return []setup{env(envStore + "=" + s.url)} }

// startHolding runs a command under a lock that ends with 3 when its standard input does, and
// returns the holder.
func (s *storeSite) startHolding(args ...string) (p *program, holder string) {
	s.Helper()
	p = start(s.T, s.on(), append(append([]string{"run"}, args...), "--", "sh", "-c", "echo holder $RELOCK_HOLDER; read x; exit 3")...)
	return p, p.expect(&p.stdout, "holder ")
}

func TestARunHasItsLockInEachStore(t *testing.T) {
	onEachStore(t, func(s *storeSite) {
		p, holder := s.startHolding("job")
		shown := object(s.T, do(s.T, nil, "show", "job", "--json", "--store", s.url).stdout)
		require.Equal(s, holder, shown["holder"])
		require.Equal(s, "mutex", shown["kind"])
		require.Equal(s, []string{holder}, list(s.T, do(s.T, s.on(), "ls", "j*", "--json").stdout)[0].holders())
		require.Empty(s, list(s.T, do(s.T, s.on(), "ls", "x*", "--json").stdout))
		offered, _ := completed(s.T, s.on(), "show", "")
		require.Equal(s, []string{"job"}, offered)
		for _, flags := range [][]string{{"--no-wait"}, {"--wait", "300ms"}, {"a", "--no-wait"}, {"--no-wait", "-E", "4"}} {
			got := do(s.T, s.on(), append(append([]string{"run", "job"}, flags...), "--", "echo", "never")...)
			want := codeBusy
			if flags[len(flags)-1] == "4" {
				want = 4
			}
			require.Equal(s, want, got.code, "%q: %s", flags, got.stderr)
			require.Contains(s, got.stderr, holder)
			require.Empty(s, got.stdout)
		}
		waiter := start(s.T, s.on(), "run", "--json", "job", "a", "--", "sh", "-c", "echo $RELOCK_TOKENS")
		require.EqualValues(s, 0, waiter.event("waiting")["position"])
		require.EqualValues(s, 1, object(s.T, do(s.T, s.on(), "show", "job", "--json").stdout)["waiters"])
		require.NoError(s, p.stdin.Close())
		require.Equal(s, 3, p.code(), &p.stderr)
		require.Empty(s, p.stderr.String())
		require.Equal(s, 0, waiter.code(), &waiter.stderr)
		tokens := strings.Fields(waiter.stdout.String())
		require.Len(s, tokens, 2)
		require.NotContains(s, tokens, "0", "both were drawn")
		require.Equal(s, false, object(s.T, do(s.T, s.on(), "show", "job", "--json").stdout)["held"])
	})
}

func TestARunInsideARunUsesItsStore(t *testing.T) {
	onEachStore(t, func(s *storeSite) {
		got := do(s.T, s.on(), "run", "job", "--", binary, "run", "job", "--", "echo", "never")
		require.Equal(s, codeBusy, got.code)
		require.Contains(s, got.stderr, "the relock run around this one")
		require.Equal(s, result{stdout: "mine\n"}, do(s.T, s.on(), "run", "job", "--", binary, "run", "other", "--", "echo", "mine"))
	})
}

func TestAHoldHasItsLockInEachStore(t *testing.T) {
	onEachStore(t, func(s *storeSite) {
		p := start(s.T, s.on(), "hold", "job")
		require.NotEqual(s, "0", p.expect(&p.stdout, "held "))
		require.Equal(s, codeBusy, do(s.T, s.on(), "hold", "job", "--no-wait").code)
		require.NoError(s, p.stdin.Close())
		require.Equal(s, 0, p.code(), &p.stderr)
		require.Equal(s, result{stdout: "mine\n"}, do(s.T, s.on(), "run", "job", "--no-wait", "--", "echo", "mine"))
	})
}

func TestAStoreFreesTheLockOfARunThatWasKilled(t *testing.T) {
	onEachStore(t, func(s *storeSite) {
		const ttl = 3 * time.Second
		began := time.Now()
		p, _ := s.startHolding("job", "--ttl", ttl.String())
		waiter := start(s.T, s.on(), "run", "job", "--", "echo", "mine")
		require.NoError(s, p.cmd.Process.Kill())
		require.Equal(s, 0, waiter.code(), &waiter.stderr)
		require.Equal(s, "mine\n", waiter.stdout.String())
		require.Greater(s, time.Since(began), ttl, "not before its lease ends")
	})
}

func TestUnlockEndsARunInEachStore(t *testing.T) {
	onEachStore(t, func(s *storeSite) {
		require.Equal(s, codeNotHeld, do(s.T, s.on(), "unlock", "--force", "job").code)
		p, holder := s.startHolding("job", "--ttl", "6s")
		got := do(s.T, s.on(), "unlock", "--force", "job", "--json")
		require.Equal(s, 0, got.code, got.stderr)
		require.Equal(s, holder, object(s.T, got.stdout)["holder"])
		require.Equal(s, codeLost, p.code())
		require.Contains(s, p.stderr.String(), "stopping the command")
		require.Equal(s, codeNotHeld, do(s.T, s.on(), "unlock", "--force", "job").code)
	})
}

// Databases are left out: their server is that of all tests.
func TestAStoreThatIsAwayForALeaseEndsARun(t *testing.T) {
	onStores(t, []string{"etcd", "zookeeper"}, func(s *storeSite) {
		p, _ := s.startHolding("job", "--ttl", "2s")
		s.kill()
		require.Equal(s, codeLost, p.code())
		require.Contains(s, p.stderr.String(), "stopping the command")
	})
}

func TestEachStoreHasItsKindsOfLocks(t *testing.T) {
	onEachStore(t, func(s *storeSite) {
		calls := [][]string{{"--shared"}, {"--write"}, {"--permits", "2"}}
		if backends[s.scheme()].mutexesOnly {
			for _, flags := range calls {
				got := do(s.T, s.on(), append(append([]string{"run", "job"}, flags...), "--", "echo", "never")...)
				require.Equal(s, codeUsage, got.code)
				require.Contains(s, got.stderr, envStore+": has mutexes only")
			}
			return
		}
		p, _ := s.startHolding("rw", "--shared")
		require.Equal(s, 0, do(s.T, s.on(), "run", "rw", "--shared", "--no-wait", "--", "true").code)
		require.Equal(s, codeBusy, do(s.T, s.on(), "run", "rw", "--write", "--no-wait", "--", "true").code)
		got := do(s.T, s.on(), "run", "rw", "--no-wait", "--", "true")
		require.Equal(s, codeUsage, got.code)
		require.Contains(s, got.stderr, "--shared and --write are for a read-write lock")
		require.Equal(s, "read_write", object(s.T, do(s.T, s.on(), "show", "rw", "--json").stdout)["kind"])
		require.Equal(s, kindReadWrite, list(s.T, do(s.T, s.on(), "ls", "--json").stdout)[0].Kind)
		require.NoError(s, p.stdin.Close())
		p.code()
		if s.scheme() == "zookeeper" {
			got := do(s.T, s.on(), "run", "two", "--permits", "2", "--no-wait", "--", "true")
			require.Equal(s, codeUsage, got.code)
			require.Contains(s, got.stderr, "semaphore")
			return
		}
		p, _ = s.startHolding("two", "--permits", "2")
		require.Equal(s, 0, do(s.T, s.on(), "run", "two", "--permits", "2", "--no-wait", "--", "true").code)
		require.NoError(s, p.stdin.Close())
		p.code()
	})
}

func (s *storeSite) scheme() string {
	scheme, _, _ := strings.Cut(s.url, ":")
	return scheme
}

func TestALimitedWaitOutlastsAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, 1)[0]
	server.Kill()
	p := start(t, nil, "run", "job", "--wait", "1m", "--store", strings.Replace(server.URL(), "http", "etcd", 1), "--", "echo", "mine")
	server.Restart()
	require.Equal(t, 0, p.code(), &p.stderr)
	require.Equal(t, "mine\n", p.stdout.String())
}

func TestAStoreThatIsNotThereIs69(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"etcd://" + closedAddr, "etcd://fox:hunter2@" + closedAddr, "zookeeper://" + closedAddr, "postgres://" + closedAddr + "/db",
		"mysql://" + closedAddr + "/db", "sqlite:///no/such/directory/locks.db", "postgres:///db?host=/no/such/directory",
	} {
		for _, args := range [][]string{
			{"show", "job"}, {"unlock", "--force", "job"}, {"run", "job", "--", "echo", "never"}, {"run", "job", "--wait", "300ms", "--", "echo", "never"},
		} {
			got := do(t, []setup{env(envStore + "=" + target)}, append([]string{"--timeout", "1s"}, args...)...)
			require.Equal(t, codeUnavailable, got.code, "%s %q: %s", target, args, got.stderr)
			u, err := url.Parse(target)
			require.NoError(t, err)
			require.Contains(t, got.stderr, u.Host+u.Path, "it says where")
			require.NotContains(t, got.stderr, "Redis")
			require.NotContains(t, got.stderr, "hunter2")
			require.Len(t, strings.Split(strings.TrimSpace(got.stderr), "\n"), 1)
			require.NotContains(t, got.stderr, `\n`)
			require.Empty(t, got.stdout)
		}
	}
}

func TestMissingTablesAreNamed(t *testing.T) {
	t.Parallel()
	for file, target := range map[string]string{
		"postgres.sql": dbtest.Postgres(t), "mysql.sql": mariadbURL(t),
	} {
		require.FileExists(t, filepath.Join("../../store/sql/schema", file))
		got := do(t, nil, "run", "job", "--store", target, "--", "echo", "never")
		require.Equal(t, codeUnavailable, got.code)
		require.Contains(t, got.stderr, "relock create-tables makes them, or the file sql/schema/"+file)
		for range 2 {
			require.Equal(t, result{}, do(t, nil, "create-tables", "--store", target))
		}
		require.Equal(t, result{stdout: "mine\n"}, do(t, nil, "run", "job", "--store", target, "--", "echo", "mine"))
	}
}

func TestASQLiteFileNeedsNoPreparation(t *testing.T) {
	t.Parallel()
	target := "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
	var runs sync.WaitGroup
	for range 8 { // all of them find no file
		runs.Go(func() {
			assert.Equal(t, result{stdout: "mine\n"}, do(t, nil, "run", "job", "--store", target, "--", "echo", "mine"))
		})
	}
	runs.Wait()
	got := do(t, nil, "run", "job", "--store", "sqlite:///no/such/directory/locks.db", "--", "echo", "never")
	require.Equal(t, codeUnavailable, got.code, got.stderr)
	require.Contains(t, got.stderr, "SQLite in /no/such/directory/locks.db")
}

// recovering is a database whose log another process recovers at the first two statements.
type recovering struct {
	driver.Conn
	statements int
}

func (r *recovering) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r *recovering) Driver() driver.Driver                        { return nil }
func (r *recovering) Close() error                                 { return nil } // of the connection

func (r *recovering) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	if r.statements++; r.statements <= 2 {
		return nil, errors.New("database is locked (261)") // SQLITE_BUSY_RECOVERY, as modernc.org/sqlite writes it
	}
	return driver.ResultNoRows, nil
}

func TestTheTablesAreMadeWhenTheOtherProcessIsDone(t *testing.T) {
	t.Parallel()
	r := &recovering{}
	db := sql.OpenDB(r)
	require.NoError(t, storeURL{backend: backends["sqlite"]}.create(t.Context(), db))
	require.Equal(t, 2+len(relocksql.Schema(relocksql.SQLite)), r.statements)
	require.NoError(t, db.Close())
}

func TestASQLiteFileIsFoundByARelativePath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(p *program) { p.cmd.Dir = dir }
	require.Equal(t, 0, do(t, []setup{in}, "run", "job", "--store", "sqlite:my%20locks.db", "--", "true").code)
	require.FileExists(t, filepath.Join(dir, "my locks.db"))
	got := do(t, nil, "run", "job", "--store", "sqlite://"+dir+"/my%20locks.db?_pragma=synchronous(OFF)", "--", "echo", "mine")
	require.Equal(t, result{stdout: "mine\n"}, got)
}

func TestWhatAStoreCannotDoIs64(t *testing.T) {
	t.Parallel()
	const etcd, database = "etcd://a", "postgres://a/db"
	for text, calls := range map[string][][]string{
		"goes with neither --url": {
			{"show", "job", "--url", "redis://a"}, {"show", "job", "--sentinel", "m@a:1"}, {"show", "job", "--cluster", "a:1"},
			{"show", "job", "--quorum", "redis://a,redis://b,redis://c"},
		},
		"are for Redis only":                     {{"run", "--redisson", "job", "--", "true"}, {"run", "--restart-delay=1s", "job", "--", "true"}},
		"--prefix is for Redis only":             {{"show", "job", "--prefix", "app:"}},
		"relock show NAME counts the waiters":    {{"graph"}},
		"etcd has no tables":                     {{"create-tables"}},
		"create-tables: has no arguments":        {{"create-tables", "x"}},
		"slashes belong into the prefix":         {{"show", "a/b"}, {"run", "a/b", "--", "true"}},
		"--ttl 1ms":                              {{"run", "job", "--ttl", "1ms", "--", "true"}},
		"--store: has mutexes only, and neither": {{"run", "--shared", "job", "--", "true"}},
	} {
		for _, args := range calls {
			got := do(t, nil, append([]string{"--store", etcd}, args...)...)
			require.Equal(t, codeUsage, got.code, "%q: %s", args, got.stderr)
			require.Contains(t, got.stderr, text, "%q", args)
			require.Empty(t, got.stdout)
		}
	}
	got := do(t, nil, "create-tables")
	require.Equal(t, codeUsage, got.code)
	require.Contains(t, got.stderr, "--store names one")
	got = do(t, []setup{env(envStore+"="+database, envQuorum+"=redis://a,redis://b,redis://c")}, "show", "job")
	require.Equal(t, codeUsage, got.code)
	require.Contains(t, got.stderr, "RELOCK_STORE and RELOCK_QUORUM: only one of them")
	got = do(t, nil, "show", "job", "--store", "")
	require.Equal(t, codeUsage, got.code)
	require.Contains(t, got.stderr, "--store: is empty")
}

func TestAFlagForRedisWinsOverTheStoreOfTheEnvironment(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	got := do(t, []setup{env(envStore + "=etcd://" + closedAddr)}, "ls", "--url", s.server.URL())
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "job")
	got = do(t, s.on(), "run", "job", "--no-wait", "--store", withTables(t, "SQLite", "sqlite://"+filepath.Join(t.TempDir(), "l.db")).url, "--", "true")
	require.Equal(t, 0, got.code, "the lock in Redis is another: %s", got.stderr)
}

func TestURLsThatNameNoStoreAre64(t *testing.T) {
	t.Parallel()
	for target, text := range map[string]string{
		"consul://a":                     "must begin with one of etcd, mysql, postgres, postgresql, sqlite, zookeeper, and a colon",
		"redis://:hunter2@a":             "locks in Redis have --url",
		"hunter2":                        "must begin with one of",
		"etcd:":                          "must be etcd://HOST:2379",
		"etcd:a":                         "must be etcd://HOST:2379",
		"etcd:///locks":                  "must be etcd://HOST:2379",
		"mysql:///db":                    "must be mysql://HOST:3306/DATABASE",
		"etcd://a,:hunter2":              "must be etcd://HOST:2379",
		"etcd://a,,b":                    "must be etcd://HOST:2379",
		"etcd://fox:hun#ter2@a":          "must be etcd://HOST:2379",
		"etcd://fox:hun/ter2@a":          "must be etcd://HOST:2379",
		"etcd://fox:12/hunter2@a":        "must be etcd://HOST:2379",
		"mysql://fox:12?hunter2@a/db":    "must be mysql://HOST:3306/DATABASE",
		"postgres://fox:12/hunter2@a/db": "must be postgres://HOST:5432",
		"etcd://a?hunter2=1":             "not known; there are tls, cacert, cert, key",
		"etcd://a?cacert=hunter2":        "need tls=true",
		"etcd://a?tls=hunter2":           "tls must be true or false",
		"zookeeper://fox:hun%ter2@a/app": "must be zookeeper://HOST:2181",
		"zookeeper://a/app/../b":         "the path above the locks",
		"postgres://a:hunter2/db":        "must be postgres://HOST:5432",
		"mysql://a":                      "must be mysql://HOST:3306/DATABASE",
		"mysql://a,b/db":                 "must be mysql://HOST:3306/DATABASE",
		"mysql://a/db?timeout=hunter2":   "must be mysql://HOST:3306/DATABASE",
		"sqlite:":                        "must be sqlite:///PATH",
		"sqlite://hunter2/locks.db":      "must be sqlite:///PATH",
	} {
		for source, got := range map[string]result{
			"--store": do(t, nil, "show", "job", "--store", target), envStore: do(t, []setup{env(envStore + "=" + target)}, "show", "job"),
		} {
			require.Equal(t, codeUsage, got.code, "%s: %s", target, got.stderr)
			require.Contains(t, got.stderr, text, target)
			require.Contains(t, got.stderr, source, target)
			require.NotContains(t, got.stderr, "ter2", target)
		}
	}
}

func TestAUserWhomAStoreRefusesIs77(t *testing.T) {
	t.Parallel()
	run, show := []string{"run", "job", "--no-wait", "--", "echo", "never"}, []string{"show", "job"}
	requireRefused := func(target string, calls ...[]string) {
		t.Helper()
		for _, args := range calls {
			got := do(t, []setup{env(envStore + "=" + target)}, args...)
			require.Equal(t, codeNoPerm, got.code, "%s %q: %s", target, args, got.stderr)
			require.NotContains(t, got.stderr, "hunter2")
		}
	}
	requireServed := func(target string) {
		t.Helper()
		require.Equal(t, result{stdout: "mine\n"}, do(t, []setup{env(envStore + "=" + target)}, "run", "job", "--no-wait", "--", "echo", "mine"))
	}
	requireRefused(strings.Replace(dbtest.Postgres(t), "postgres@", "fox:hunter2@", 1), run, show)
	requireRefused(strings.Replace(mariadbURL(t), "root@", "fox:hunter2@", 1), run, show)

	server := etcdtest.Start(t, 1)[0]
	turnOnUsers(t, server.URL())
	at := strings.TrimPrefix(server.URL(), "http://") + "/locks"
	requireRefused("etcd://"+at, run, show)
	requireRefused("etcd://fox:hunter2@"+at, run, show)
	requireServed("etcd://fox:hun%40ter@" + at)
	requireRefused("etcd://fox:hun%40ter@"+strings.TrimSuffix(at, "/locks"), run, show)

	zoo := zktest.Start(t).Address()
	conn, _, err := zk.Connect([]string{zoo}, soon, zk.WithLogInfo(false))
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Create("/app", nil, 0, zk.DigestACL(zk.PermAll, "fox", "hun@ter"))
	require.NoError(t, err)
	requireRefused("zookeeper://"+zoo+"/app", run)
	requireRefused("zookeeper://fox:hunter2@"+zoo+"/app", run)
	requireServed("zookeeper://fox:hun%40ter@" + zoo + "/app")
}

// turnOnUsers lets user fox lock below /locks/.
func turnOnUsers(t *testing.T, server string) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{server}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close()
	ctx := t.Context()
	for name, password := range map[string]string{"root": "root", "fox": "hun@ter"} {
		_, err := c.RoleAdd(ctx, name)
		require.NoError(t, err)
		_, err = c.UserAdd(ctx, name, password)
		require.NoError(t, err)
		_, err = c.UserGrantRole(ctx, name, name)
		require.NoError(t, err)
	}
	_, err = c.RoleGrantPermission(ctx, "fox", "/locks/", clientv3.GetPrefixRangeEnd("/locks/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = c.AuthEnable(ctx)
	require.NoError(t, err)
}

func TestAStoreBehindTLS(t *testing.T) {
	t.Parallel()
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS() // for its certificate
	certificate, authority := web.TLS.Certificates[0], filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	require.NoError(t, os.WriteFile(authority, text, 0o600))
	web.Close()
	etcd := strings.TrimPrefix(etcdtest.Start(t, 1)[0].URL(), "http://")
	for scheme, server := range map[string]string{"etcd": etcd, "zookeeper": zktest.Start(t).Address()} {
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
		inFrontOf(t, tls.NewListener(plain, config), server, 0)
		target := scheme + "://" + plain.Addr().String() + "/locks?tls=true"
		got := do(t, nil, "run", "job", "--store", target+"&cacert="+url.QueryEscape(authority), "--", "echo", "mine")
		require.Equal(t, result{stdout: "mine\n"}, got)
		got = do(t, nil, "--timeout", "1s", "run", "job", "--store", target, "--", "echo", "never")
		require.Equal(t, codeUnavailable, got.code, "an authority that nobody knows: %s", got.stderr)
		got = do(t, nil, "run", "job", "--store", target+"&cacert=/no/such/file", "--", "echo", "never")
		require.Equal(t, codeUsage, got.code, got.stderr)
		require.Contains(t, got.stderr, "/no/such/file")
	}
}

func TestTheSessionInZooKeeperIsAsLongAsTheLeaseNeeds(t *testing.T) {
	t.Parallel()
	target := "zookeeper://" + zktest.Start(t, "maxSessionTimeout=8000").Address()
	got := do(t, nil, "run", "job", "--ttl", "6s", "--store", target, "--", "echo", "mine")
	require.Equal(t, result{stdout: "mine\n"}, got)
	got = do(t, nil, "run", "job", "--ttl", "10s", "--store", target, "--", "echo", "never")
	require.Equal(t, codeUsage, got.code, got.stderr)
	require.Contains(t, got.stderr, "see --ttl, and maxSessionTimeout of the server")
}

func TestASecretOfAStoreIsTakenOutOfAnyText(t *testing.T) {
	t.Setenv(envStore, "etcd://fox:hun%40ter2@a,b:1")
	c := &connection{}
	require.Equal(t, "*** ***", c.redact("hun@ter2 hun%40ter2"))
	require.Equal(t, "etcd at a,b:1", c.where())
}
