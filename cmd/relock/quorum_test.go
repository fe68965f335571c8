package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// quorumSite is three independent servers, for one test.
type quorumSite struct {
	t       *testing.T
	servers []*redistest.Server
	rdbs    []*redis.Client
}

func newQuorumSite(t *testing.T) *quorumSite {
	t.Helper()
	q := &quorumSite{t: t}
	for range 3 {
		server := redistest.Start(t)
		q.servers, q.rdbs = append(q.servers, server), append(q.rdbs, server.Client())
	}
	return q
}

// urls is the value of --quorum.
func (q *quorumSite) urls() string {
	var urls []string
	for _, s := range q.servers {
		urls = append(urls, s.URL())
	}
	return strings.Join(urls, ",")
}

// on is the setup of a program that finds the quorum in the environment.
func (q *quorumSite) on() []setup { return []setup{env(envQuorum + "=" + q.urls())} }

// keys are those of each member.
func (q *quorumSite) keys() (all [][]string) {
	q.t.Helper()
	for _, rdb := range q.rdbs {
		all = append(all, redistest.Keys(q.t, rdb))
	}
	return all
}

// holders are those of a lock at each member.
func (q *quorumSite) holders(name string) (all [3]string) {
	q.t.Helper()
	for i, rdb := range q.rdbs {
		fields, err := rdb.HKeys(q.t.Context(), keyOf("relock:", name)).Result()
		require.NoError(q.t, err)
		all[i] = strings.Join(fields, " ")
	}
	return all
}

// startHolding runs a command under a lock that ends with 3 when its standard input does, and
// returns the variables that it finds about the lock.
func (q *quorumSite) startHolding(args ...string) (p *program, token int64, holder string) {
	q.t.Helper()
	p = start(q.t, q.on(), append(append([]string{"run"}, args...), "--", "sh", "-c", "echo token $RELOCK_TOKEN; echo holder $RELOCK_HOLDER; read x; exit 3")...)
	holder = p.expect(&p.stdout, "holder ")
	token, err := strconv.ParseInt(p.expect(&p.stdout, "token "), 10, 64)
	require.NoError(q.t, err)
	return p, token, holder
}

// end ends a command of startHolding.
func (q *quorumSite) end(p *program) {
	q.t.Helper()
	require.NoError(q.t, p.stdin.Close())
	require.Equal(q.t, 3, p.code(), &p.stderr)
}

func TestARunOverAQuorumHasTheLockAtAllMembers(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	p, token, holder := q.startHolding("job")
	require.Positive(t, token)
	for i, field := range q.holders("job") {
		require.Contains(t, field, holder, "member %d", i+1)
	}
	o := object(t, do(t, q.on(), "show", "job", "--json").stdout)
	require.Equal(t, holder, o["holder"])
	require.EqualValues(t, token, o["token"])
	require.Equal(t, []string{holder}, list(t, do(t, q.on(), "ls", "--json").stdout)[0].holders())
	require.Regexp(t, `(?m)^holder +`+holder+`$`, do(t, nil, "show", "job", "--quorum", q.urls()).stdout)
	q.end(p)
	require.Equal(t, [3]string{}, q.holders("job"))
	require.Empty(t, p.stderr.String())

	next, second, _ := q.startHolding("job")
	require.Greater(t, second, token)
	q.end(next)
	require.Equal(t, false, object(t, do(t, q.on(), "show", "job", "--json").stdout)["held"])
}

func TestASecondRunOverAQuorumWaitsOrIsBusy(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	p, _, holder := q.startHolding("b")
	for _, flags := range [][]string{{"--no-wait"}, {"--wait", "300ms"}, {"a", "--no-wait"}} {
		got := do(t, q.on(), append(append([]string{"run", "b"}, flags...), "--", "echo", "never")...)
		require.Equal(t, codeBusy, got.code, "%q: %s", flags, got.stderr)
		require.Contains(t, got.stderr, holder)
		require.Empty(t, got.stdout)
	}
	require.Equal(t, [3]string{}, q.holders("a"), "all or nothing")
	waiter := start(t, q.on(), "run", "--json", "b", "a", "--wait", "1m", "--", "sh", "-c", "echo $RELOCK_TOKENS")
	waiter.event("waiting")
	require.EqualValues(t, 1, object(t, do(t, q.on(), "show", "b", "--json").stdout)["waiters"])
	first := object(t, do(t, q.on(), "show", "b", "--json", "--url", q.servers[0].URL()).stdout)
	require.Len(t, first["queue"], 1, "at the first member")
	q.end(p)
	require.Equal(t, 0, waiter.code())
	require.Len(t, strings.Fields(waiter.stdout.String()), 2)

	got := do(t, q.on(), "run", "b", "--", binary, "run", "b", "--", "echo", "never")
	require.Equal(t, codeBusy, got.code)
	require.Contains(t, got.stderr, "the relock run around this one")
}

func TestAQuorumOutlastsEachMember(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	last := int64(0)
	for i, server := range q.servers {
		held, token, holder := q.startHolding("job")
		server.Kill()
		require.Equal(t, holder, object(t, do(t, q.on(), "show", "job", "--json").stdout)["holder"], "without member %d", i+1)
		require.Equal(t, codeBusy, do(t, q.on(), "run", "job", "--no-wait", "--", "true").code)
		q.end(held)
		next, second, _ := q.startHolding("job")
		require.Greater(t, token, last)
		require.Greater(t, second, token)
		last = second
		q.end(next)
		server.Restart()
	}
}

func TestAQuorumWithoutAMajorityIs69(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	q.servers[0].Kill()
	q.servers[2].Kill()
	for _, args := range [][]string{
		{"run", "job", "--", "echo", "never"}, {"run", "job", "--no-wait", "--", "echo", "never"},
		{"run", "job", "--wait", "500ms", "--", "echo", "never"}, {"show", "job"}, {"unlock", "--force", "job"},
	} {
		got := do(t, q.on(), args...)
		require.Equal(t, codeUnavailable, got.code, "%q: %s", args, got.stderr)
		require.Empty(t, got.stdout)
		require.Contains(t, got.stderr, "the quorum of "+q.servers[0].Addr()+", ")
		require.Contains(t, got.stderr, "member 1: ", "it says which")
	}
}

func TestALostMajorityEndsARunOverAQuorum(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	p, _, _ := q.startHolding("job", "--ttl", "1s")
	q.servers[0].Kill()
	q.servers[1].Pause()
	defer q.servers[1].Resume()
	require.Equal(t, codeLost, p.code())
	require.Contains(t, p.stderr.String(), "stopping the command")
}

func TestUnlockEndsARunOverAQuorum(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	p, _, holder := q.startHolding("job")
	got := do(t, q.on(), "unlock", "--force", "job", "--json")
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, holder, object(t, got.stdout)["holder"])
	require.Equal(t, codeLost, p.code())
	require.Equal(t, [3]string{}, q.holders("job"))
	require.Equal(t, codeNotHeld, do(t, q.on(), "unlock", "--force", "job").code)
}

func TestThePrefixOfAQuorumIsThatOfAllMembers(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	p, _, _ := q.startHolding("job", "--prefix", "app:")
	for _, keys := range q.keys() {
		require.Equal(t, []string{"app:{job}", "app:{job}:token"}, keys)
	}
	got := do(t, q.on(), "ls", "--url", q.servers[1].URL(), "--prefix", "app:")
	require.Equal(t, 0, got.code, "a flag for one server wins over the environment: %s", got.stderr)
	require.Contains(t, got.stdout, "job")
	q.end(p)
}

func TestWhatAQuorumCannotDoIs64(t *testing.T) {
	t.Parallel()
	const three = "redis://a,redis://b,redis://c"
	for text, calls := range map[string][][]string{
		"--quorum: has mutexes only": {
			{"run", "--shared", "job", "--", "true"}, {"run", "--write", "job", "--", "true"}, {"run", "--permits=2", "job", "--", "true"},
		},
		"--redisson":          {{"run", "--redisson", "job", "--", "true"}, {"unlock", "--force", "job", "--redisson"}, {"show", "job", "--redisson"}},
		"name a member with ": {{"graph"}},
		"neither --url":       {{"show", "job", "--url", "redis://a"}, {"show", "job", "--sentinel", "m@a:1"}, {"show", "job", "--cluster", "a:1"}},
	} {
		for _, args := range calls {
			got := do(t, nil, append([]string{"--quorum", three}, args...)...)
			require.Equal(t, codeUsage, got.code, "%q: %s", args, got.stderr)
			require.Contains(t, got.stderr, text, "%q", args)
			require.Empty(t, got.stdout)
		}
	}
	got := do(t, []setup{env(envQuorum + "=" + three)}, "run", "--shared", "job", "--", "true")
	require.Equal(t, codeUsage, got.code)
	require.Contains(t, got.stderr, envQuorum+": has mutexes only")
}

func TestURLsThatMakeNoQuorumAre64(t *testing.T) {
	t.Parallel()
	for urls, text := range map[string]string{
		"":                                            "--quorum: is empty",
		"redis://a":                                   "and not 1",
		"redis://a,redis://b":                         "and not 2",
		"redis://a,redis://b,redis://c,":              "and not 4",
		"redis://a,redis://b,redis://a/2":             "URL 1 and URL 3 are the same server",
		"redis://a,redis://b:6379,rediss://b":         "URL 2 and URL 3 are the same server",
		"redis://a,redis://b,c:6379":                  "URL 3 of --quorum cannot be read",
		"redis://a,redis://:hun#ter2@b,redis://c":     "URL 2 of --quorum cannot be read",
		"redis://fox:hun,ter2@a,redis://b":            "cannot be read",
		"redis://a,redis://b,redis://c?bogus=hunter2": "URL 3 of --quorum cannot be read",
	} {
		got := do(t, nil, "show", "job", "--quorum", urls)
		require.Equal(t, codeUsage, got.code, "%s: %s", urls, got.stderr)
		require.Contains(t, got.stderr, text)
		require.NotContains(t, got.stderr, "ter2")
	}
	got := do(t, []setup{env(envQuorum + "=redis://a,redis://:hunter2@a,redis://c")}, "show", "job")
	require.Equal(t, codeUsage, got.code)
	require.Contains(t, got.stderr, envQuorum+": URL 1 and URL 2 are the same server")
	require.NotContains(t, got.stderr, "hunter2")
}

func TestAPasswordThatAQuorumRefusesIs77(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	var urls []string
	for _, s := range q.servers {
		urls = append(urls, "redis://fox:hunter2@"+s.Addr())
	}
	for _, args := range [][]string{{"show", "job"}, {"run", "job", "--no-wait", "--", "echo", "never"}} {
		got := do(t, []setup{env(envQuorum + "=" + strings.Join(urls, ","))}, args...)
		require.Equal(t, codeNoPerm, got.code, "%q: %s", args, got.stderr)
		require.NotContains(t, got.stderr, "hunter2")
		require.Empty(t, got.stdout)
	}
}

func TestASecretOfAnyMemberIsTakenOutOfAnyText(t *testing.T) {
	t.Setenv(envQuorum, "redis://a,redis://fox:hun%40ter2@b,redis://:cuckoo@c")
	c := &connection{}
	require.Equal(t, "*** *** ***", c.redact("hun@ter2 hun%40ter2 cuckoo"))
	require.Equal(t, "the quorum of a:6379, b:6379, c:6379", c.where())
}

func TestAServerThatHasJustStartedGivesNoLock(t *testing.T) {
	t.Parallel()
	q := newQuorumSite(t)
	for _, setups := range [][]setup{{on(q.servers[0])}, q.on()} {
		got := do(t, setups, "run", "job", "--no-wait", "--restart-delay", "1h", "--", "echo", "never")
		require.Equal(t, codeUnavailable, got.code, got.stderr)
		require.Contains(t, got.stderr, "RESTARTED")
		require.Empty(t, got.stdout)
	}
	got := do(t, q.on(), "run", "job", "--wait", "1m", "--restart-delay", "10ms", "--", "echo", "mine")
	require.Equal(t, result{stdout: "mine\n"}, got)

	for _, flags := range [][]string{{"--restart-delay", "-1s"}, {"--restart-delay", "1s", "--redisson"}} {
		got := do(t, []setup{on(q.servers[0])}, append(append([]string{"run", "job"}, flags...), "--", "true")...)
		require.Equal(t, codeUsage, got.code, "%q", flags)
		require.Contains(t, got.stderr, "--restart-delay")
		require.NotContains(t, got.stderr, "With")
	}
}
