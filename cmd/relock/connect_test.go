package main

import (
	"net"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestTheURLOfTheFlagWinsOverTheEnvironment(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	got := do(t, []setup{env("REDIS_URL=redis://" + closedAddr)}, "ls", "--url", s.server.URL())
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "job")
}

func TestTheDatabaseOfTheURLCounts(t *testing.T) {
	s := onShared(t)
	other := newClient(t, s.server.Client(func(o *redis.Options) { o.DB = 5 }))
	holdWith(t, other, "in-five")
	require.NotContains(t, do(t, s.on(), "ls").stdout, "in-five")
	require.Contains(t, do(t, nil, "ls", "--url", s.server.URL()+"/5").stdout, "in-five")
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
	require.NotContains(t, do(t, s.on(), "ls", "--prefix", "app1x:").stdout, "job", "a prefix is no pattern")
	require.NoError(t, p.stdin.Close())
	p.code()
}

func TestLocksOfRedisson(t *testing.T) {
	s := onShared(t)
	p, _ := s.startProbe("plain", "job", "--redisson")
	require.Equal(t, []string{"job"}, redistest.Keys(t, s.rdb), "as getLock has it")
	require.Equal(t, 75, do(t, s.on(), "run", "--redisson", "--no-wait", "job", "--", "true").code)
	require.Zero(t, do(t, s.on(), "run", "--no-wait", "job", "--", "true").code, "relock's own of that name is another")
	waiter := start(t, s.on(), "run", "--redisson", "--json", "job", "--", "true")
	require.NotContains(t, waiter.event("waiting"), "position", "nobody knows")
	second := start(t, s.on(), "run", "--redisson", "--verbose", "job", "--", "true")
	second.expect(&second.stderr, `relock: "job" is locked, waiting`)
	require.NoError(t, p.stdin.Close())
	p.code()
	require.Zero(t, waiter.code())
	require.Zero(t, second.code())
	require.NotContains(t, second.stderr.String(), "before this")

	got := do(t, s.on(), "run", "--redisson=fenced", "job", "--", "sh", "-c", "echo $RELOCK_TOKEN")
	require.Equal(t, "1\n", got.stdout)
	require.Contains(t, redistest.Keys(t, s.rdb), "redisson_lock_token:{job}")

	require.NoError(t, s.rdb.HSet(t.Context(), "job", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", 1).Err()) // Java has it
	got = do(t, s.on(), "unlock", "--redisson", "--force", "--json", "job")
	require.Zero(t, got.code)
	require.NotContains(t, object(t, got.stdout), "waiters", "nobody knows")
	require.Zero(t, s.rdb.Exists(t.Context(), "job").Val())

	for _, args := range [][]string{
		{"ls", "--redisson"}, {"show", "--redisson", "job"}, {"watch", "--redisson"}, {"run", "--redisson=fair", "job", "--", "true"},
		{"run", "--redisson", "--prefix", "app:", "job", "--", "true"},
	} {
		require.Equal(t, 64, do(t, s.on(), args...).code, args)
	}
}

func TestAUnixSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "redis.sock")
	s := onOwn(t, "--unixsocket", socket)
	s.hold("job")
	got := do(t, nil, "ls", "--url", "unix://"+socket)
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "job")
}

func TestAServerBehindSentinels(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	holdWith(t, newClient(t, sentinel.Client()), "held")
	flags := []string{"--sentinel", sentinel.MasterName() + "@" + strings.Join(sentinel.Addrs(), ",")}
	got := do(t, nil, append(flags, "ls")...)
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "held")
	got = do(t, nil, append(flags, "run", "job", "--", "sh", "-c", "exit 3")...)
	require.Equal(t, 3, got.code, got.stderr)

	got = do(t, nil, "--timeout", "2s", "--sentinel", "nobody@"+sentinel.Addrs()[0], "ls")
	require.Equal(t, codeUnavailable, got.code)
	require.Contains(t, got.stderr, "the master nobody of the sentinels")
}

func TestTheOptionsOfTheURLCountWhereverTheServersAre(t *testing.T) {
	const options = "redis://fox:secret@h/?protocol=2&client_name=cron&max_retries=7&min_retry_backoff=2ms&max_retry_backoff=70ms" +
		"&dial_timeout=4s&read_timeout=2s&write_timeout=1s&pool_fifo=true&pool_size=20&pool_timeout=6s&min_idle_conns=1&max_idle_conns=5" +
		"&max_active_conns=30&max_concurrent_dials=4&pipeline_pool_size=3&pipeline_read_buffer_size=8192&pipeline_write_buffer_size=4096" +
		"&conn_max_idle_time=8m&conn_max_lifetime=9m&conn_max_lifetime_jitter=1m"
	want, err := redis.ParseURL(options)
	require.NoError(t, err)
	for _, c := range []connection{{}, {sentinel: "m@" + closedAddr}, {cluster: []string{closedAddr}}} {
		c.url, c.timeout, c.given = options, time.Minute, &pflag.FlagSet{}
		rdb, err := c.open()
		require.NoError(t, err)
		var got reflect.Value
		switch rdb := rdb.(type) {
		case *redis.Client:
			got = reflect.ValueOf(*rdb.Options())
		case *redis.ClusterClient:
			got = reflect.ValueOf(*rdb.Options())
		}
		for field, value := range reflect.ValueOf(*want).Fields() {
			if value.IsZero() || field.Name == "Addr" || field.Name == "Network" {
				continue
			}
			require.Equal(t, value.Interface(), got.FieldByName(field.Name).Interface(), "%s of %s", field.Name, c.where())
		}
		require.NoError(t, rdb.Close())
	}
}

func TestAServerThatIsNotThereIs69(t *testing.T) {
	t.Parallel()
	nowhere := []setup{env("REDIS_URL=redis://" + closedAddr)}
	for _, args := range [][]string{
		{"ls"}, {"show", "job"}, {"watch"}, {"unlock", "--force", "job"},
		{"run", "job", "--", "echo", "never"}, {"run", "job", "--no-wait", "--", "echo", "never"},
		{"run", "job", "--wait", "500ms", "--", "echo", "never"},
		{"ls", "--cluster", closedAddr}, {"ls", "--sentinel", "m@" + closedAddr, "--timeout", "2s"},
	} {
		got := do(t, nowhere, args...)
		require.Equal(t, codeUnavailable, got.code, "%q: %s", args, got.stderr)
		require.Contains(t, got.stderr, closedAddr, "it says where")
		require.Empty(t, got.stdout)
	}
}

func TestAServerThatIsSilentIs69AfterTheTimeout(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	s.server.Pause()
	defer s.server.Resume()
	for _, args := range [][]string{
		{"ls"}, {"show", "job"}, {"unlock", "--force", "job"}, {"run", "job", "--", "true"}, {"run", "job", "--no-wait", "--", "true"},
	} {
		began := time.Now()
		got := do(t, s.on(), append(args[:1:1], append([]string{"--timeout", "300ms"}, args[1:]...)...)...)
		require.Equal(t, codeUnavailable, got.code, "%q: %s", args, got.stderr)
		require.Contains(t, got.stderr, "no answer from Redis at "+s.server.Addr())
		require.Less(t, time.Since(began), bound.Of(10*time.Second), "%q", args)
	}
}

func TestAllTriesTogetherHaveTheTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{300 * time.Millisecond, 10 * time.Second, time.Minute, time.Hour} {
		c := connection{url: defaultURL, timeout: timeout, given: &pflag.FlagSet{}}
		rdb, err := c.open()
		require.NoError(t, err)
		try := rdb.(*redis.Client).Options().ReadTimeout
		require.LessOrEqual(t, try, timeout)
		require.GreaterOrEqual(t, tries*try+time.Microsecond, timeout)
		require.NoError(t, rdb.Close())
	}
}

func TestAnAnswerThatDoesNotComeIsAskedForAgain(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	for _, args := range [][]string{{"ls"}, {"show", "job"}, {"watch", "--count", "1"}, {"unlock", "--force", "job"}} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		silent := make(chan net.Conn, 1)
		go func() { // nobody serves the first connection
			conn, _ := listener.Accept()
			silent <- conn
			inFrontOf(t, listener, s.server.Addr(), 0)
		}()
		got := do(t, nil, append(args, "--url", "redis://"+listener.Addr().String()+"/?read_timeout=300ms")...)
		require.Equal(t, 0, got.code, "%q: %s", args, got.stderr)
		require.Contains(t, got.stdout, "job", "%q", args)
		_ = (<-silent).Close()
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
			got := do(t, nil, append(args[:1:1], append([]string{"--url", target}, args[1:]...)...)...)
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

func TestAKeyOfAnotherTypeIs69(t *testing.T) {
	s := onShared(t)
	require.NoError(t, s.rdb.Set(t.Context(), keyOf("relock:", "job"), "text", time.Minute).Err())
	for _, args := range [][]string{{"show", "job"}, {"unlock", "--force", "job"}, {"run", "job", "--", "true"}} {
		got := do(t, s.on(), args...)
		require.Equal(t, codeUnavailable, got.code)
		require.Contains(t, got.stderr, "WRONGTYPE")
	}
	require.Equal(t, 0, do(t, s.on(), "ls").code, "it is no lock")
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	s := onOwn(t, "--requirepass", "right")
	// A user, and passwords with all that makes a URL hard to read.
	for i, password := range []string{"hunter2", "hun@ter2", "hun:ter2", "hun/ter2", "hun#ter2", "hun?ter2=1", "hun%ter2", "hun[ter2", "hun ter2", "100%hunter2"} {
		encoded := (&url.URL{Scheme: "redis", User: url.UserPassword("fox", password), Host: s.server.Addr()}).String()
		for _, target := range []string{
			encoded, // refused by the server
			strings.Replace(encoded, "redis:", "rediss:", 1), // not a TLS server
			"redis://fox:" + password + "@" + s.server.Addr(),
			"redis://" + password + "@" + closedAddr,
			"redis://:" + password + "@" + closedAddr + "/0?bogus=" + url.QueryEscape(password),
			"http://fox:" + password + "@" + closedAddr,
			"redis://" + closedAddr + "/" + password,
			password,
			strings.Replace(encoded, "redis:", "rediss:", 1), // not a TLS server
		} {
			if i > 0 && strings.HasPrefix(target, "rediss:") {
				continue // it takes its time
			}
			for where, got := range map[string]result{
				"flag":        do(t, nil, "--timeout", "200ms", "--url", target, "ls"),
				"environment": do(t, []setup{env("REDIS_URL=" + target)}, "--timeout", "200ms", "run", "job", "--json", "--no-wait", "--", "true"),
			} {
				require.NotEqual(t, 0, got.code)
				require.NotContains(t, got.stdout+got.stderr, "ter2", "%s %q", where, target)
			}
		}
	}
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"ls", "--bogus"}, {"--version"}} {
		got := do(t, []setup{env("REDIS_URL=redis://:hunter2@" + s.server.Addr())}, args...)
		require.NotContains(t, got.stdout+got.stderr, "hunter2", "%q", args)
	}
	// What go-redis would read as an address.
	for _, flags := range [][]string{
		{"--url", "redis://fox:20241#hunter2@" + closedAddr}, {"--url", "redis://hunter2#20241@" + closedAddr},
		{"--cluster", "fox:hunter2@" + closedAddr}, {"--cluster", `fox:hun"ter2@` + closedAddr}, {"--cluster", "fox:0,hunter2,x@" + closedAddr},
		{"--sentinel", "m@fox:hunter2@" + closedAddr}, {"--sentinel", "fox:hunter2@" + closedAddr}, {"--sentinel", "redis://:hunter2@" + closedAddr},
	} {
		got := do(t, nil, append(flags, "ls")...)
		require.Equal(t, codeUsage, got.code, "%q", flags)
		require.NotContains(t, got.stderr, "ter2", "%q", flags)
		require.NotContains(t, got.stderr, "20241", "%q", flags)
	}
	// Where a URL has no business.
	got := do(t, s.on(), "redis://fox:hunter2@"+s.server.Addr())
	require.Equal(t, codeUsage, got.code)
	require.NotContains(t, got.stderr, "hunter2")
}

func TestASentinelsPasswordIsNeverPrinted(t *testing.T) {
	t.Parallel()
	s := onOwn(t, "--requirepass", "right") // it refuses the password, as a sentinel would
	got := do(t, []setup{env("RELOCK_SENTINEL_PASSWORD=hunter2")}, "--timeout", "2s", "ls", "--sentinel", "m@"+s.server.Addr())
	require.NotEqual(t, 0, got.code)
	require.NotContains(t, got.stderr, "hunter2")
	require.Contains(t, got.stderr, s.server.Addr())
}

func TestRedactTakesSecretsOutOfAnyText(t *testing.T) {
	t.Setenv(envURL, "redis://fox:hun%40ter2@localhost/0")
	t.Setenv(envSentinelPassword, "cuckoo")
	c := &connection{}
	require.Equal(t, "at redis://***@localhost: *** *** ***", c.redact("at redis://a:b@localhost: hun@ter2 hun%40ter2 cuckoo"))
	require.Equal(t, "nothing to hide", c.redact("nothing to hide"))
}
