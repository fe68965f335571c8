package main

import (
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

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
	url string
}

// withTables makes the tables of an empty database, which runs cannot do without.
func withTables(t *testing.T, target, driver, source string, dialect relocksql.Dialect) *storeSite {
	t.Helper()
	got := do(t, nil, "run", "job", "--store", target, "--", "echo", "never")
	require.Equal(t, codeUnavailable, got.code)
	require.Contains(t, got.stderr, "store/sql/schema")
	db, err := sql.Open(driver, source)
	require.NoError(t, err)
	require.NoError(t, errors.Join(relocksql.Create(t.Context(), db, dialect), db.Close()))
	return &storeSite{T: t, url: target}
}

// storeSites start one store of each kind.
var storeSites = map[string]func(t *testing.T) *storeSite{
	"etcd": func(t *testing.T) *storeSite {
		t.Helper()
		return &storeSite{t, strings.Replace(etcdtest.Start(t, 1)[0].URL(), "http", "etcd", 1) + "/locks"}
	},
	"zookeeper": func(t *testing.T) *storeSite {
		t.Helper()
		return &storeSite{t, "zookeeper://" + zktest.Start(t).Address() + "/app/locks"}
	},
	"postgres": func(t *testing.T) *storeSite {
		t.Helper()
		target := dbtest.Postgres(t)
		return withTables(t, target, "pgx", target, relocksql.Postgres)
	},
	"mysql": func(t *testing.T) *storeSite {
		t.Helper()
		source := dbtest.MariaDB(t)
		return withTables(t, mysqlURL(source), "mysql", source, relocksql.MySQL)
	},
	"sqlite": func(t *testing.T) *storeSite {
		t.Helper()
		return &storeSite{T: t, url: "sqlite://" + filepath.Join(t.TempDir(), "locks.db")}
	},
}

func mysqlURL(source string) string {
	return "mysql://" + strings.NewReplacer("tcp(", "", ")", "").Replace(source)
}

// onEachStore runs a test on each kind of store, all at once.
func onEachStore(t *testing.T, test func(kind string, s *storeSite)) {
	t.Helper()
	t.Parallel()
	for kind, site := range storeSites {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(kind, site(t))
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

// shown reads the JSON of show.
func (s *storeSite) shown(name string) (info lockInfo) {
	s.Helper()
	got := do(s.T, s.on(), "show", "--json", name)
	require.Equal(s, 0, got.code, got.stderr)
	require.NoError(s, json.Unmarshal([]byte(got.stdout), &info))
	return info
}

func TestEachStoreKeepsTheLocksOfEveryCommand(t *testing.T) {
	onEachStore(t, func(kind string, s *storeSite) {
		require.Equal(s, "ok\n", do(s.T, s.on(), "check").stdout)
		p, holder := s.startHolding("job")
		require.Equal(s, holder, s.shown("job").holders())
		require.Equal(s, "mutex", s.shown("job").Kind)
		require.Equal(s, holder, list(s.T, do(s.T, nil, "ls", "j*", "--json", "--store", s.url).stdout)[0].holders())
		require.Empty(s, list(s.T, do(s.T, s.on(), "ls", "x*", "--json").stdout))
		for _, flags := range [][]string{{"--no-wait"}, {"--wait", "300ms"}, {"a", "--no-wait"}} {
			got := do(s.T, s.on(), append(append([]string{"run", "job"}, flags...), "--", "echo", "never")...)
			require.Equal(s, codeBusy, got.code, "%q: %s", flags, got.stderr)
			require.Contains(s, got.stderr, holder)
		}
		waiter := start(s.T, s.on(), "run", "--json", "job", "a", "--", "sh", "-c", "echo $RELOCK_TOKENS")
		require.Equal(s, holder, waiter.event("waiting")["holder"])
		require.NoError(s, p.stdin.Close())
		require.Equal(s, 3, p.code(), &p.stderr)
		require.Empty(s, p.stderr.String())
		require.Equal(s, 0, waiter.code(), &waiter.stderr)
		require.Regexp(s, `^[1-9]\d* [1-9]\d*\n$`, waiter.stdout.String(), "both tokens were drawn")

		require.Equal(s, codeNotHeld, do(s.T, s.on(), "unlock", "--force", "job").code)
		p, holder = s.startHolding("job", "--ttl", "6s")
		require.Equal(s, result{stdout: "job: unlocked " + holder + "\n"}, do(s.T, s.on(), "unlock", "--force", "job"))
		require.Equal(s, codeLost, p.code())
		require.Contains(s, p.stderr.String(), "stopping the command")
		if kind == "etcd" {
			got := do(s.T, s.on(), "run", "job", "--shared", "--", "echo", "never")
			require.Equal(s, codeUsage, got.code, "it has mutexes only: %s", got.stderr)
			return
		}
		p, _ = s.startHolding("rw", "--shared")
		require.Equal(s, 0, do(s.T, s.on(), "run", "rw", "--shared", "--no-wait", "--", "true").code)
		require.Equal(s, codeBusy, do(s.T, s.on(), "run", "rw", "--write", "--no-wait", "--", "true").code)
		require.Equal(s, "read_write", s.shown("rw").Kind)
		require.NoError(s, p.stdin.Close())
		p.code()
	})
}

func TestAStoreThatIsNotThereIs69(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"etcd://" + closedAddr, "etcd://fox:hunter2@" + closedAddr, "zookeeper://" + closedAddr, "postgres://" + closedAddr + "/db",
		"mysql://" + closedAddr + "/db", "sqlite:///no/such/directory/locks.db", "postgres:///db?host=/no/such/directory",
	} {
		for _, args := range [][]string{{"show", "job"}, {"run", "job", "--", "echo", "never"}, {"run", "job", "--wait", "300ms", "--", "echo", "never"}} {
			got := do(t, []setup{env(envStore + "=" + target)}, append([]string{"--timeout", "1s"}, args...)...)
			require.Equal(t, codeUnavailable, got.code, "%s %q: %s", target, args, got.stderr)
			u, err := url.Parse(target)
			require.NoError(t, err)
			require.Contains(t, got.stderr, u.Host+u.Path, "it says where")
			require.NotContains(t, got.stderr, "hunter2")
			require.Equal(t, 1, strings.Count(got.stderr, "\n"))
			require.NotContains(t, got.stderr, `\n`)
		}
	}
}

func TestASQLiteFileNeedsNoPreparation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := []setup{func(p *program) { p.cmd.Dir = dir }}
	var runs sync.WaitGroup
	for range 8 { // all of them find no file
		runs.Go(func() {
			assert.Equal(t, result{stdout: "mine\n"}, do(t, in, "--timeout", "1m", "run", "job", "--store", "sqlite:my%20locks.db", "--", "echo", "mine"))
		})
	}
	runs.Wait()
	got := do(t, nil, "run", "job", "--store", "sqlite://"+dir+"/my%20locks.db?_pragma=synchronous(OFF)", "--", "echo", "mine")
	require.Equal(t, result{stdout: "mine\n"}, got)
}

func TestURLsThatNameNoStoreAre64(t *testing.T) {
	t.Parallel()
	for target, text := range map[string]string{
		"":                               "is empty",
		"consul://a":                     "must begin with one of cluster+redis, ",
		"hunter2":                        "must begin with one of",
		"redis://a:b":                    "must be redis://HOST:PORT/DB",
		"cluster+redis://a?addr=b":       "must be cluster+redis://HOST:PORT",
		"sentinel+redis://a":             "master_name=NAME",
		"etcd:":                          "must be etcd://HOST:2379",
		"etcd:a":                         "must be etcd://HOST:2379",
		"etcd:///locks":                  "must be etcd://HOST:2379",
		"mysql:///db":                    "must be mysql://HOST:3306/DATABASE",
		"etcd://a,:hunter2":              "must be etcd://HOST:2379",
		"etcd://fox:hun#ter2@a":          "must be etcd://HOST:2379",
		"etcd://fox:12/hunter2@a":        "must be etcd://HOST:2379",
		"mysql://fox:12?hunter2@a/db":    "must be mysql://HOST:3306/DATABASE",
		"etcd://a?hunter2=1":             "a ?option=value",
		"etcd://a?cacert=hunter2":        "need tls=true",
		"zookeeper://fox:hun%ter2@a/app": "must be zookeeper://HOST:2181",
		"zookeeper://a/app/../b":         "the path above the locks",
		"postgres://a:hunter2/db":        "must be postgres://HOST:5432",
		"mysql://a,b/db":                 "must be mysql://HOST:3306/DATABASE",
		"mysql://a/db?timeout=hunter2":   "must be mysql://HOST:3306/DATABASE",
		"sqlite:":                        "must be sqlite:///PATH",
		"sqlite://hunter2/locks.db":      "must be sqlite:///PATH",

		// No quorum:
		"redis://a,redis://b":                         "and not 2",
		"redis://a,redis://b,redis://c,":              "and not 4",
		"redis://a,redis://b,redis://a/2":             "URL 1 and URL 3 are the same server",
		"redis://a,redis://b:6379,rediss://b":         "URL 2 and URL 3 are the same server",
		"redis://a,redis://b,c:6379":                  "URL 3 of --store cannot be read",
		"redis://a,redis://b,redis://c?bogus=hunter2": "URL 3 of --store cannot be read",
	} {
		got := do(t, nil, "show", "job", "--store", target)
		require.Equal(t, codeUsage, got.code, "%s: %s", target, got.stderr)
		require.Contains(t, got.stderr, text, target)
		require.Contains(t, got.stderr, "--store", target)
		require.NotContains(t, got.stderr, "ter2", target)
	}
	for _, args := range [][]string{
		{"show", "job", "--prefix", "app:"}, {"show", "job", "--redisson"}, {"run", "--restart-delay=1s", "job", "--", "true"},
		{"show", "a/b"}, {"run", "job", "--ttl", "1ms", "--", "true"},
	} {
		require.Equal(t, codeUsage, do(t, []setup{env(envStore + "=etcd://a")}, args...).code, args)
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
	requireRefused(strings.Replace(mysqlURL(dbtest.MariaDB(t)), "root@", "fox:hunter2@", 1), run, show)

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
	s := onShared(t)
	etcd := strings.TrimPrefix(etcdtest.Start(t, 1)[0].URL(), "http://")
	trusting := []setup{env("SSL_CERT_FILE=" + authority)}
	for scheme, server := range map[string]string{"etcd": etcd, "zookeeper": zktest.Start(t).Address(), "rediss": s.server.Addr()} {
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
		inFrontOf(t, tls.NewListener(plain, config), server)
		target, withFile := scheme+"://"+plain.Addr().String(), trusting
		if scheme != "rediss" {
			target += "/locks?tls=true"
			got := result{code: codeUnavailable}
			for n := 0; n < 20 && got.code == codeUnavailable; n++ { // a busy server may have no answer in time
				got = do(t, nil, "run", "job", "--store", target+"&cacert="+url.QueryEscape(authority), "--", "echo", "mine")
			}
			require.Equal(t, result{stdout: "mine\n"}, got)
			got = do(t, nil, "run", "job", "--store", target+"&cacert=/no/such/file", "--", "echo", "never")
			require.Equal(t, codeUsage, got.code, got.stderr)
		} else if runtime.GOOS == "linux" { // elsewhere the system has its authorities elsewhere
			require.Equal(t, result{stdout: "mine\n"}, do(t, withFile, "run", "job", "--store", target, "--", "echo", "mine"))
		}
		got := do(t, nil, "--timeout", "1s", "run", "job", "--store", target, "--", "echo", "never")
		require.Equal(t, codeUnavailable, got.code, "an authority that nobody knows: %s", got.stderr)
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
