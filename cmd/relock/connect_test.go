package main

import (
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestTheFlagWinsOverTheEnvironment(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	other := newClient(t, s.server.Client(func(o *redis.Options) { o.DB = 5 }))
	holdWith(t, other, "in-five")
	nowhere := "redis://" + closedAddr
	for _, setups := range [][]setup{{env(envRedis + "=" + nowhere)}, {env(envStore + "=etcd://" + closedAddr)}} {
		got := do(t, setups, "ls", "--store", s.server.URL())
		require.Equal(t, 0, got.code, got.stderr)
		require.Contains(t, got.stdout, "job")
		require.NotContains(t, got.stdout, "in-five")
	}
	got := do(t, []setup{env(envRedis+"="+nowhere, envStore+"="+s.server.URL()+"/5")}, "ls")
	require.Contains(t, got.stdout, "in-five", got.stderr)
}

func TestThePrefixCounts(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job", "--prefix", "app[1]*:")
	require.Equal(t, []string{"app[1]*:{job}", "app[1]*:{job}:token"}, redistest.Keys(t, s.rdb))
	s.hold("elsewhere")
	got := do(t, s.on(), "ls", "--prefix", "app[1]*:")
	require.Contains(t, got.stdout, "job")
	require.NotContains(t, got.stdout, "elsewhere")
	require.NotContains(t, do(t, s.on(), "ls").stdout, "job")
	require.NoError(t, p.stdin.Close())
	p.code()
}

func TestLocksOfRedisson(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job", "--redisson")
	require.Equal(t, []string{"job"}, redistest.Keys(t, s.rdb), "as getLock has it")
	require.Equal(t, codeBusy, do(t, s.on(), "run", "--redisson", "--no-wait", "job", "--", "true").code)
	require.Zero(t, do(t, s.on(), "run", "--no-wait", "job", "--", "true").code, "relock's own of that name is another")
	require.Equal(t, true, object(t, do(t, s.on(), "show", "--redisson", "--json", "job").stdout)["held"])
	require.NoError(t, p.stdin.Close())
	p.code()

	got := do(t, s.on(), "run", "--redisson=fenced", "job", "--", "sh", "-c", "echo $RELOCK_TOKEN")
	require.Equal(t, "1\n", got.stdout)
	require.NoError(t, s.rdb.HSet(t.Context(), "job", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", 1).Err()) // Java has it
	require.Zero(t, do(t, s.on(), "unlock", "--redisson", "--force", "job").code)
	require.Zero(t, s.rdb.Exists(t.Context(), "job").Val())
	for _, args := range [][]string{
		{"ls", "--redisson"}, {"watch", "--redisson"}, {"run", "--redisson=fair", "job", "--", "true"}, {"show", "--redisson=", "job"},
		{"run", "--redisson", "--prefix", "app:", "job", "--", "true"}, {"run", "--redisson", "--shared", "job", "--", "true"},
	} {
		require.Equal(t, codeUsage, do(t, s.on(), args...).code, args)
	}
}

func TestAServerBehindSentinels(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	holdWith(t, newClient(t, sentinel.Client()), "held")
	target := "sentinel+redis://" + sentinel.Addrs()[0] + "?master_name="
	got := do(t, nil, "ls", "--store", target+sentinel.MasterName())
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "held")
	got = do(t, nil, "run", "job", "--store", target+sentinel.MasterName(), "--", "sh", "-c", "exit 3")
	require.Equal(t, 3, got.code, got.stderr)
	got = do(t, nil, "--timeout", "2s", "--store", target+"nobody", "ls")
	require.Equal(t, codeUnavailable, got.code)
	require.Contains(t, got.stderr, "the master nobody of the sentinels "+sentinel.Addrs()[0])
}

func TestAServerThatIsNotThereIs69(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"ls"}, {"show", "job"}, {"watch"}, {"check"}, {"unlock", "--force", "job"},
		{"run", "job", "--", "echo", "never"}, {"run", "job", "--no-wait", "--", "echo", "never"},
		{"run", "job", "--wait", "500ms", "--", "echo", "never"},
		{"ls", "--store", "cluster+redis://" + closedAddr}, {"ls", "--store", "sentinel+redis://" + closedAddr + "?master_name=m"},
	} {
		got := do(t, []setup{env(envRedis + "=redis://" + closedAddr)}, append([]string{"--timeout", "2s"}, args...)...)
		require.Equal(t, codeUnavailable, got.code, "%q: %s", args, got.stderr)
		require.Contains(t, got.stderr, closedAddr, "it says where")
		require.Empty(t, got.stdout)
	}
}

func TestAServerThatIsSilentIs69(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	s.server.Pause()
	defer s.server.Resume()
	for _, args := range [][]string{{"ls"}, {"show", "job"}, {"unlock", "--force", "job"}, {"run", "job", "--", "true"}} {
		got := do(t, s.on(), append([]string{"--timeout", "300ms"}, args...)...)
		require.Equal(t, codeUnavailable, got.code, "%q: %s", args, got.stderr)
		require.Contains(t, got.stderr, "Redis at "+s.server.Addr())
	}
}

func TestALimitedWaitOutlastsAServerThatIsAway(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	s.server.Kill()
	p := start(t, s.on(), "run", "job", "--wait", "1m", "--", "echo", "mine")
	s.server.Restart()
	require.Equal(t, 0, p.code())
	require.Equal(t, "mine\n", p.stdout.String())
}

func TestAServerThatWantsAnotherPasswordIs77(t *testing.T) {
	t.Parallel()
	s := onOwn(t, "--requirepass", "hunter2hunter2")
	for _, target := range []string{"redis://" + s.server.Addr(), "redis://:wrongwrong@" + s.server.Addr()} {
		for _, args := range [][]string{{"ls"}, {"show", "job"}, {"run", "job", "--", "true"}} {
			got := do(t, []setup{env(envStore + "=" + target)}, args...)
			require.Equal(t, codeNoPerm, got.code, "%q: %s", args, got.stderr)
			require.NotContains(t, got.stderr, "wrongwrong")
		}
	}
	require.Equal(t, 0, do(t, s.on(), "run", "job", "--", "true").code)
}

func TestARightThatAScriptLacksIs77(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	s.hold("job")
	require.NoError(t, s.rdb.Do(t.Context(), "acl", "setuser", "fox", "on", ">fox", "~relock:*", "resetchannels", "&relock:*", "+evalsha", "+eval", "+time", "+scan", "+hrandfield").Err())
	for _, args := range [][]string{{"run", "free", "--", "true"}, {"run", "job", "--no-wait", "--", "true"}, {"ls"}, {"show", "job"}, {"unlock", "--force", "job"}} {
		got := do(t, []setup{env("REDIS_URL=redis://fox:fox@" + s.server.Addr())}, args...)
		require.Equal(t, codeNoPerm, got.code, "%q: %s", args, got.stderr)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	s := onOwn(t, "--requirepass", "right")
	// Passwords with all that makes a URL hard to read.
	for i, password := range []string{"hunter2", "hun@ter2", "hun:ter2", "hun/ter2", "hun#ter2", "hun?ter2=1", "hun%ter2", "hun[ter2", "hun ter2", "hun,ter2"} {
		encoded := (&url.URL{Scheme: "redis", User: url.UserPassword("fox", password), Host: s.server.Addr()}).String()
		targets := []string{
			encoded, // refused by the server
			"redis://fox:" + password + "@" + s.server.Addr(),
			"redis://:" + password + "@" + closedAddr + "/0?bogus=" + url.QueryEscape(password),
			"http://fox:" + password + "@" + closedAddr,
			password,
			"cluster+redis://fox:" + password + "@" + closedAddr,
			"sentinel+redis://" + closedAddr + "?master_name=m&password=" + password,
			"etcd://fox:" + password + "@" + closedAddr,
			"redis://a,redis://:" + password + "@a,redis://c",
		}
		if i == 0 { // it takes its time
			targets = append(targets, strings.Replace(encoded, "redis:", "rediss:", 1)) // not a TLS server
		}
		for _, target := range targets {
			got := do(t, []setup{env(envStore + "=" + target)}, "--timeout", "200ms", "run", "job", "--json", "--no-wait", "--", "true")
			require.NotEqual(t, 0, got.code, target)
			require.NotContains(t, got.stdout+got.stderr, "ter2", target)
		}
	}
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"ls", "--bogus"}, {"--version"}, {"redis://fox:hunter2@" + s.server.Addr()}} {
		got := do(t, []setup{env("REDIS_URL=redis://:hunter2@" + s.server.Addr())}, args...)
		require.NotContains(t, got.stdout+got.stderr, "hunter2", "%q", args)
	}
}

func TestAServerThatHasJustStartedGivesNoLock(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	got := do(t, s.on(), "run", "job", "--no-wait", "--restart-delay", "1h", "--", "echo", "never")
	require.Equal(t, codeUnavailable, got.code, got.stderr)
	require.Contains(t, got.stderr, "RESTARTED")
	require.Equal(t, codeUsage, do(t, s.on(), "run", "job", "--restart-delay", "-1s", "--", "true").code)
}

// quorumOfThree starts three independent servers, and returns them with the value of --store.
func quorumOfThree(t *testing.T) (servers []*redistest.Server, target string) {
	t.Helper()
	var urls []string
	for range 3 {
		server := redistest.Start(t)
		servers, urls = append(servers, server), append(urls, server.URL())
	}
	return servers, strings.Join(urls, ",")
}

func TestAQuorumOutlastsEachMember(t *testing.T) {
	t.Parallel()
	servers, target := quorumOfThree(t)
	s := &storeSite{T: t, url: target}
	for i, server := range servers {
		p, holder := s.startHolding("job")
		for _, other := range servers {
			fields, err := other.Client().HKeys(t.Context(), keyOf("relock:", "job")).Result()
			require.NoError(t, err)
			require.Contains(t, strings.Join(fields, " "), holder, "at every member")
		}
		server.Kill()
		require.Equal(t, holder, s.shown("job").holders(), "without member %d", i+1)
		require.Equal(t, codeBusy, do(t, s.on(), "run", "job", "--no-wait", "--", "true").code)
		require.NoError(t, p.stdin.Close())
		require.Equal(t, 3, p.code(), &p.stderr)
		server.Restart()
	}
	servers[0].Kill()
	servers[2].Kill()
	for _, args := range [][]string{{"run", "job", "--", "echo", "never"}, {"show", "job"}, {"unlock", "--force", "job"}} {
		got := do(t, s.on(), args...)
		require.Equal(t, codeUnavailable, got.code, "%q: %s", args, got.stderr)
		require.Contains(t, got.stderr, "the quorum of "+servers[0].Addr()+", ")
		require.Contains(t, got.stderr, "member 1: ", "it says which")
	}
}

func TestTheTagRedisLeavesOutAllOtherStores(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "redis", "-deps", ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "github.com/redis/go-redis/v9")
	for _, heavy := range []string{"go.etcd.io", "google.golang.org/grpc", "go-zookeeper", "jackc/pgx", "go-sql-driver", "modernc.org"} {
		require.NotContains(t, string(out), heavy, "see cmd/relock/README.md")
	}
}
