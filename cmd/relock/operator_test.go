package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

// list reads the JSON of ls.
func list(t *testing.T, text string) []lockInfo {
	t.Helper()
	var infos []lockInfo
	require.NoError(t, json.Unmarshal([]byte(text), &infos), "%s", text)
	return infos
}

func names(infos []lockInfo) []string {
	all := []string{}
	for _, info := range infos {
		all = append(all, info.Name)
	}
	return all
}

func TestLsListsWhatIsHeldOrWaitedFor(t *testing.T) {
	s := onShared(t)
	s.hold("b")
	section, err := s.client.NewLock("a").TryLock(t.Context())
	require.NoError(t, err)
	token, err := s.client.NewLock("a").Token(section)
	require.NoError(t, err)
	s.hold("{tag}:c")
	s.hold("gone")()
	waiter := start(t, s.on(), "run", "b", "--", "true")
	s.waiting("b", 1)

	got := do(t, s.on(), "ls", "--json")
	require.Equal(t, 0, got.code, got.stderr)
	infos := list(t, got.stdout)
	require.Equal(t, []string{"a", "b", "{tag}:c"}, names(infos), "by name, without the one that is free")
	state := s.state("b")
	b := infos[1]
	require.True(t, b.Held)
	require.Equal(t, state.Holder.String(), b.Holder)
	require.Equal(t, token, infos[0].Token)
	require.Zero(t, b.Token, "nobody has drawn one")
	require.Equal(t, 1, b.Count)
	require.Equal(t, 1, b.Waiters)
	require.InDelta(t, 30_000, *b.LeaseMs, 15_000)
	require.GreaterOrEqual(t, *b.WaitMs, int64(0))
	require.Nil(t, infos[0].WaitMs)

	text := do(t, s.on(), "ls").stdout
	lines := strings.Split(strings.TrimSpace(text), "\n")
	require.Len(t, lines, 4)
	require.Regexp(t, `^NAME +MODE +COUNT +LEASE +WAITERS +LONGEST WAIT +HOLDER$`, lines[0])
	require.Regexp(t, `^a +exclusive +1 +\d+s +0 +- +[0-9a-f-]{36}:\d+$`, lines[1])
	require.Regexp(t, `^b +exclusive +1 +\d+s +1 +\d+\.\ds +[0-9a-f-]{36}:\d+$`, lines[2])
	waiter.signal(interruptSignal)
	waiter.code()
}

func TestLsOfNothingIsAnEmptyList(t *testing.T) {
	s := onShared(t)
	require.Equal(t, result{stdout: "[]\n"}, do(t, s.on(), "ls", "--json"))
	require.Equal(t, 1, strings.Count(do(t, s.on(), "ls").stdout, "\n"))
}

func TestLsWithAPattern(t *testing.T) {
	s := onShared(t)
	for _, name := range []string{"orders:1", "orders:2", "orders/a/b", "stock:1", "{x}:1"} {
		s.hold(name)
	}
	for pattern, want := range map[string][]string{
		"orders:*":     {"orders:1", "orders:2"},
		"orders*":      {"orders/a/b", "orders:1", "orders:2"},
		"*:1":          {"orders:1", "stock:1", "{x}:1"},
		"{x}*":         {"{x}:1"},
		"orders:[2-3]": {"orders:2"},
		"order":        {},
		"{stock:1}":    {"stock:1"}, // the same lock
	} {
		got := do(t, s.on(), "ls", "--json", pattern)
		require.Equal(t, want, names(list(t, got.stdout)), pattern)
	}
}

func TestLsDoesNotListWhatIsNoLock(t *testing.T) {
	s := onShared(t)
	ctx := t.Context()
	require.NoError(t, s.rdb.HSet(ctx, "relock:settings", "a", 1).Err())
	require.NoError(t, s.rdb.HSet(ctx, "relock:{user}", "name", "Alice").Err())
	require.NoError(t, s.rdb.ZAdd(ctx, "relock:{best}:queue", redis.Z{Score: 3, Member: "Bob"}).Err())
	require.NoError(t, s.rdb.Set(ctx, "relock:{text}", "x", 0).Err())
	require.NoError(t, s.rdb.SAdd(ctx, "relock:{set}:queue", "x").Err())
	s.hold("real")
	got := do(t, s.on(), "ls", "--json")
	require.Equal(t, []string{"real"}, names(list(t, got.stdout)))
	// show says what is there all the same: it is in the way of a lock of that name.
	require.Contains(t, do(t, s.on(), "show", "user").stdout, "name")
}

func TestLsFindsEachOfManyLocks(t *testing.T) {
	s := onShared(t)
	const n = 1500 // more than one round of SCAN
	pipe := s.rdb.Pipeline()
	for i := range n {
		pipe.Set(t.Context(), fmt.Sprintf("noise:%d", i), "x", time.Minute)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	for i := range n {
		s.hold(fmt.Sprintf("lock:%d", i))
	}
	got := do(t, s.on(), "ls", "--json")
	require.Equal(t, 0, got.code, got.stderr)
	require.Len(t, list(t, got.stdout), n)
}

func TestLsOfADistantDatabaseTakesItsTime(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	pipe := s.rdb.Pipeline()
	for i := range 25_000 {
		pipe.Set(t.Context(), fmt.Sprintf("noise:%d", i), "x", time.Minute)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	s.hold("job")
	// Each of fifty rounds of SCAN has its answer well within the time for one, all together have
	// not.
	const far, timeout = 50 * time.Millisecond, 2 * time.Second
	began := time.Now()
	got := do(t, nil, "ls", "--json", "--url", "redis://"+farFrom(t, s.server.Addr(), far), "--timeout", timeout.String())
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, []string{"job"}, names(list(t, got.stdout)))
	require.Greater(t, time.Since(began), timeout)
}

// farFrom is the address of a server whose answers take that much longer to arrive.
func farFrom(t *testing.T, server string, late time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	inFrontOf(t, listener, server, late)
	return listener.Addr().String()
}

func TestLsFindsTheLocksOfEveryMasterOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, func(c *redistest.ClusterConfig) { c.Replicas = 0 })
	rdb := cluster.Client()
	client := newClient(t, rdb)
	want := []string{}
	masters := map[string]bool{}
	for i := range 20 {
		name := fmt.Sprintf("lock:%02d", i)
		holdWith(t, client, name)
		want = append(want, name)
		masters[cluster.MasterFor(keyOf("relock:", name)).Addr()] = true
	}
	require.Len(t, masters, 3, "the names are spread")
	flags := []string{"--cluster", strings.Join(cluster.Addrs()[:1], ",")}
	got := do(t, nil, append(flags, "ls", "--json")...)
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, want, names(list(t, got.stdout)))

	got = do(t, nil, append(flags, "show", "lock:07", "--json")...)
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, true, object(t, got.stdout)["held"])
	require.Equal(t, 0, do(t, nil, append(flags, "unlock", "--force", "lock:07")...).code)
	got = do(t, nil, append(flags, "run", "lock:07", "--no-wait", "--", "sh", "-c", "exit 3")...)
	require.Equal(t, 3, got.code, got.stderr)
	got = do(t, nil, append(flags, "run", "lock:08", "--no-wait", "--", "true")...)
	require.Equal(t, codeBusy, got.code, got.stderr)
	got = do(t, nil, append(flags, "watch", "--json", "--count", "1")...)
	require.Contains(t, got.stdout, "lock:19")

	waiter := start(t, nil, append(flags, "run", "lock:08", "--", "true")...)
	redistest.Eventually(t, soon, func() bool {
		return list(t, do(t, nil, append(flags, "ls", "--json", "lock:08")...).stdout)[0].Waiters == 1
	}, "counted: a waiter that listens on one node")
	waiter.signal(interruptSignal)
	waiter.code()
}

func TestShowTellsTheWholeQueueByTurn(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	var waiters []*program
	for i := range 3 {
		p := start(t, s.on(), "run", "job", "--json", "--", "true")
		s.waiting("job", i+1)
		waiters = append(waiters, p)
	}
	got := do(t, s.on(), "show", "job", "--json")
	require.Equal(t, 0, got.code, got.stderr)
	var info lockInfo
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &info))
	require.Equal(t, 3, info.Waiters)
	require.Len(t, info.Queue, 3)
	for i, p := range waiters {
		require.Equal(t, p.event("waiting")["holder"], info.Queue[i].Holder)
		require.WithinDuration(t, time.Now(), *info.Queue[i].Since, soon)
		if i > 0 {
			require.True(t, info.Queue[i].Since.After(*info.Queue[i-1].Since))
		}
	}
	text := do(t, s.on(), "show", "job").stdout
	require.Regexp(t, `(?m)^name +job$`, text)
	require.Regexp(t, `(?m)^holder +`+s.state("job").Holder.String()+`$`, text)
	require.Regexp(t, `(?m)^lease +ends in \d+s$`, text)
	require.Regexp(t, `(?m)^waiters +3$`, text)
	require.Regexp(t, `(?m)^ +1\. `+info.Queue[0].Holder+` for `, text)
	for _, p := range waiters {
		p.signal(interruptSignal)
		p.code()
	}
}

func TestWaitersThatAreGoneAreNeitherCountedNorListed(t *testing.T) {
	s := onShared(t)
	for flag, lock := range map[string]*relock.Lock{
		"--owner=cron": s.client.NewLock("job"), "--write": s.client.NewRWLock("price").Writer(), "--permits=1": s.client.NewSemaphore("till", 1),
	} {
		_, leave := s.enter(lock)
		gone := start(t, s.on(), "run", flag, lock.Name(), "--", "true")
		s.queued(lock, 1)
		there := start(t, s.on(), "run", flag, lock.Name(), "--json", "--", "true")
		s.queued(lock, 2)
		require.NoError(t, gone.cmd.Process.Kill())
		gone.code()
		redistest.Eventually(t, soon, func() bool { return s.show(lock.Name()).Waiters == 1 }, "noticed: the end of a client")
		s.queued(lock, 2) // Redis has both places still
		queue := s.show(lock.Name()).Queue
		require.Len(t, queue, 1)
		require.Equal(t, there.event("waiting")["holder"], queue[0].Holder)
		infos := list(t, do(t, s.on(), "ls", "--json").stdout)
		require.Equal(t, []string{lock.Name()}, names(infos))
		require.Equal(t, 1, infos[0].Waiters)
		require.Equal(t, queue[0].Since, s.show(lock.Name()).Queue[0].Since)
		require.InDelta(t, *queue[0].WaitMs, *infos[0].WaitMs, float64(soon.Milliseconds()))

		require.NoError(t, there.cmd.Process.Kill())
		there.code()
		redistest.Eventually(t, soon, func() bool { return s.show(lock.Name()).Waiters == 0 }, "noticed: the end of the other")
		require.EqualValues(t, 0, object(t, do(t, s.on(), "unlock", "--force", "--json", lock.Name()).stdout)["waiters"])
		require.Equal(t, "[]\n", do(t, s.on(), "ls", "--json").stdout)
		leave()
	}
}

func TestTheUserOfThePageMayListLocks(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../docs/DEPLOYMENT.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(readme), "\nACL SETUSER locks ")
	rule, _, _ := strings.Cut(rest, "\n")
	s := onOwn(t)
	args := []any{"acl", "setuser", "locks"}
	for word := range strings.FieldsSeq(rule + " +scan +hrandfield") {
		args = append(args, word)
	}
	require.NoError(t, s.rdb.Do(t.Context(), args...).Err())
	s.hold("job")
	user := []setup{env("REDIS_URL=redis://locks:password@" + s.server.Addr())}
	there := start(t, user, "run", "job", "--", "true")
	s.waiting("job", 1)
	gone := start(t, user, "run", "job", "--", "true")
	s.waiting("job", 2)
	require.NoError(t, gone.cmd.Process.Kill())
	redistest.Eventually(t, soon, func() bool {
		got := do(t, user, "ls", "--json")
		require.Equal(t, 0, got.code, got.stderr)
		return list(t, got.stdout)[0].Waiters == 1
	}, "noticed: the end of a client")
	require.Equal(t, 0, do(t, user, "show", "job").code)
	require.Equal(t, 0, do(t, user, "unlock", "--force", "job").code)
	require.Equal(t, 0, there.code())
}

func TestWhatIsNoPlaceInAQueueIsNotShown(t *testing.T) {
	s := onShared(t)
	// By a score that no clock says. JSON has no such time.
	require.NoError(t, s.rdb.ZAdd(t.Context(), keyOf("relock:", "job")+queueSuffix, redis.Z{
		Score: math.Inf(1), Member: "00000000-0000-0000-0000-000000000000:1:1|1000",
	}).Err())
	got := do(t, s.on(), "show", "job", "--json")
	require.Equal(t, result{stdout: "{\"name\":\"job\",\"held\":false,\"waiters\":0}\n"}, got)
	require.Equal(t, "[]\n", do(t, s.on(), "ls", "--json").stdout)
}

func TestShowOfAFreeLock(t *testing.T) {
	s := onShared(t)
	require.Equal(t, result{stdout: "{\"name\":\"job\",\"held\":false,\"waiters\":0}\n"}, do(t, s.on(), "show", "job", "--json"))
	require.Regexp(t, `(?m)^holder +nobody$`, do(t, s.on(), "show", "job").stdout)
}

func TestUnlockTakesTheLockAndGrantsItToTheFirstWaiter(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	holder := s.state("job").Holder.String()
	waiter := start(t, s.on(), "run", "job", "--", "echo", "mine")
	s.waiting("job", 1)
	got := do(t, s.on(), "unlock", "--force", "job", "--json")
	require.Equal(t, 0, got.code, got.stderr)
	o := object(t, got.stdout)
	require.Equal(t, "job", o["name"])
	require.Equal(t, true, o["unlocked"])
	require.Equal(t, holder, o["holder"])
	require.EqualValues(t, 1, o["waiters"])
	require.Equal(t, 0, waiter.code())
	require.Equal(t, "mine\n", waiter.stdout.String())
}

func TestUnlockWithoutForceChangesNothing(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	require.Equal(t, codeUsage, do(t, s.on(), "unlock", "job").code)
	require.True(t, s.state("job").Locked())
}

func TestUnlockOfAFreeLockIs1(t *testing.T) {
	s := onShared(t)
	got := do(t, s.on(), "unlock", "--force", "job")
	require.Equal(t, codeNotHeld, got.code)
	require.Equal(t, "relock: \"job\": nobody has the lock\n", got.stderr)
	got = do(t, s.on(), "unlock", "--force", "job", "--json")
	require.Equal(t, "not_held", object(t, got.stderr)["error"])
}

func TestWatchWithoutATerminalPrintsOneTableAfterAnother(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	p := start(t, s.on(), "watch", "--interval", "100ms", "--count", "3")
	require.Equal(t, 0, p.code())
	text := p.stdout.String()
	require.Equal(t, 3, strings.Count(text, "NAME "))
	require.Equal(t, 3, strings.Count(text, "1 held, 0 waiting"))
	require.NotContains(t, text, "\x1b", "nothing for a terminal")
}

func TestWatchSeesWhatChanges(t *testing.T) {
	s := onShared(t)
	p := start(t, s.on(), "watch", "--interval", "100ms", "--json", "job*")
	// held is whether the last line says so.
	held := func(want int) {
		t.Helper()
		redistest.Eventually(t, soon, func() bool {
			lines := p.stdout.lines()
			if len(lines) == 0 {
				return false
			}
			locks := object(t, lines[len(lines)-1])["locks"].([]any)
			return len(locks) == want
		}, "seen: %d locks", want)
	}
	held(0)
	release := s.hold("job")
	s.hold("another")
	held(1)
	release()
	held(0)
	p.signal(interruptSignal)
	require.Equal(t, 0, p.code())
}

func TestWatchOutlastsAServerThatIsAway(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	p := start(t, s.on(), "watch", "--interval", "100ms")
	p.expect(&p.stdout, "NAME ")
	s.server.Kill()
	p.expect(&p.stderr, "relock: no answer from Redis")
	s.server.Restart()
	s.hold("job")
	p.expect(&p.stdout, "job ")
	p.signal(interruptSignal)
	require.Equal(t, 0, p.code())
}

func TestASignalEndsAWatchThatASilentServerKeepsWaiting(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	p := start(t, nil, "watch", "--timeout", "45s", "--url", "redis://"+silent.Addr().String())
	conn, err := silent.Accept()
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1)) // from now on it waits for the answer
	require.NoError(t, err)
	began := time.Now()
	p.signal(interruptSignal)
	require.Equal(t, 0, p.code())
	require.Less(t, time.Since(began), bound.Of(5*time.Second))
}

func TestWatchGoesOnAfterASignalThatItWasStartedToIgnore(t *testing.T) {
	s := onShared(t)
	// As nohup does.
	p := startProgram(t, "/bin/sh", s.on(), "-c", `trap "" HUP; exec "$@"`, "sh", binary, "watch", "--interval", "100ms")
	p.expect(&p.stdout, "NAME ")
	p.signal(syscall.SIGHUP)
	seen := strings.Count(p.stdout.String(), "NAME ")
	redistest.Eventually(t, soon, func() bool { return strings.Count(p.stdout.String(), "NAME ") >= seen+3 }, "printed: three more")
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.code())
}

func TestWhatCouldNotBeWrittenIsNoSuccess(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	unwritable, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer unwritable.Close()
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"show", "job"}, {"watch"}, {"unlock", "--force", "job"}, {"--help"}} {
		got := do(t, s.on(func(p *program) { p.cmd.Stdout = unwritable }), args...)
		require.Equal(t, codeInternal, got.code, "%q", args)
		require.Contains(t, got.stderr, "bad file descriptor", "%q", args)
	}
}

func TestNamesThatWouldUpsetATerminalAreQuoted(t *testing.T) {
	s := onShared(t)
	for _, name := range []string{"clear\x1b[2Jscreen", "two\nlines", "tab\there", "\xff\xfe"} {
		release := s.hold(name)
		for _, args := range [][]string{{"ls"}, {"show", name}, {"watch", "--count", "1"}} {
			got := do(t, s.on(), args...)
			require.Equal(t, 0, got.code, got.stderr)
			require.NotContains(t, got.stdout, name)
			require.Contains(t, got.stdout, fmt.Sprintf("%q", name))
		}
		got := do(t, s.on(), "run", name, "--no-wait", "--", "true")
		require.Equal(t, codeBusy, got.code)
		require.NotContains(t, got.stderr, name)
		release()
	}
}

func TestANameThatIsNotTextIsWholeInJSON(t *testing.T) {
	s := onShared(t)
	const name, inBase64 = "\xff\xfe", "//4="
	s.hold(name)
	infos := list(t, do(t, s.on(), "ls", "--json").stdout)
	require.Len(t, infos, 1)
	require.Equal(t, inBase64, infos[0].NameB64)
	require.Equal(t, inBase64, object(t, do(t, s.on(), "show", "--json", name).stdout)["name_base64"])

	busy := do(t, s.on(), "run", "--json", "--no-wait", name, "--", "true")
	require.Equal(t, codeBusy, busy.code)
	require.Equal(t, inBase64, object(t, busy.stderr)["name_base64"])
	require.Equal(t, inBase64, object(t, do(t, s.on(), "unlock", "--json", "--force", name).stdout)["name_base64"])
	for line := range strings.Lines(do(t, s.on(), "run", "--json", name, "--", "true").stderr) {
		require.Equal(t, inBase64, object(t, line)["name_base64"])
	}
}

func TestEveryLockIsListedByANameThatFindsIt(t *testing.T) {
	s := onShared(t)
	random := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"{", "}", "a", "b", ":", ":queue", ":token", "*", "?", "[", "\\", "{}", "{a}", " ", "relock:", "{app}:"}
	for _, prefix := range []string{"relock:", "", "{app}:", "x*["} {
		r := &reader{rdb: s.rdb, client: newPrefixed(t, s.rdb, prefix), prefix: prefix, limit: soon}
		for range 150 {
			var name strings.Builder
			for range 1 + random.IntN(5) {
				name.WriteString(alphabet[random.IntN(len(alphabet))])
			}
			lock := r.client.NewLock(name.String())
			if lock.Err() != nil {
				continue // such a lock cannot be
			}
			section, err := lock.TryLock(t.Context())
			require.NoError(t, err)
			infos, err := r.list(t.Context(), "")
			require.NoError(t, err)
			require.Len(t, infos, 1, "%q %q", prefix, name.String())
			require.Equal(t, keyOf(prefix, name.String()), keyOf(prefix, infos[0].Name))
			again, err := r.client.NewLock(infos[0].Name).State(t.Context())
			require.NoError(t, err)
			holder, _ := relock.HolderFrom(section)
			require.Equal(t, holder, again.Holder, "%q is listed as %q", name.String(), infos[0].Name)
			infos, err = r.list(t.Context(), globEscape(infos[0].Name))
			require.NoError(t, err)
			require.Len(t, infos, 1, "a name is found by itself, escaped")
			require.NoError(t, lock.Unlock(section))
			require.NoError(t, s.rdb.FlushAll(t.Context()).Err())
		}
	}
}

func TestGlobIsThatOfRedis(t *testing.T) {
	s := onShared(t)
	random := rand.New(rand.NewPCG(3, 4))
	word := func(alphabet string, most int) string {
		b := make([]byte, 1+random.IntN(most))
		for i := range b {
			b[i] = alphabet[random.IntN(len(alphabet))]
		}
		return string(b)
	}
	for range 300 {
		require.NoError(t, s.rdb.FlushAll(t.Context()).Err())
		pattern, name := word(`ab*?[]^-\`, 7), word(`abc-]\`, 5)
		if random.IntN(2) == 0 {
			pattern = strings.Replace(globEscape(name), "a", "*", 1)
		}
		require.NoError(t, s.rdb.Set(t.Context(), name, "x", 0).Err())
		keys, err := s.rdb.Keys(t.Context(), pattern).Result()
		require.NoError(t, err)
		require.Equal(t, len(keys) == 1, glob(pattern)(name), "pattern %q, name %q", pattern, name)
	}
}

func TestSpansAreReadable(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "0.0s", 1234: "1.2s", 12_345: "12s", 75_000: "1m15s", 3_700_000: "1h1m", 200_000_000: "2d7h",
	} {
		require.Equal(t, want, span(&ms))
	}
	require.Equal(t, "-", span(nil))
}

func TestAskTellsAHolderThatListens(t *testing.T) {
	s := onShared(t)
	require.Equal(t, codeNotHeld, do(t, s.on(), "ask", "job").code)
	lock := s.client.NewLock("job")
	section, err := lock.Lock(t.Context())
	require.NoError(t, err)
	wanted := lock.Wanted(section)
	redistest.Eventually(t, 10*time.Second, func() bool {
		got := do(t, s.on(), "ask", "job")
		require.Equal(t, 0, got.code, got.stderr)
		holder, _ := relock.HolderFrom(section)
		require.Equal(t, "job: asked "+holder.String()+"\n", got.stdout)
		select {
		case <-wanted:
			return true
		default:
			return false
		}
	}, "the holder hears it")
	require.Equal(t, true, object(t, do(t, s.on(), "ask", "--json", "job").stdout)["asked"])
	require.NoError(t, lock.Unlock(section))
}

func TestCheckSaysWhetherTheServerCanKeepLocks(t *testing.T) {
	s := onShared(t)
	got := do(t, s.on(), "check")
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "ok\n", got.stdout)
	require.Equal(t, true, object(t, do(t, s.on(), "check", "--json").stdout)["ok"])
	require.Equal(t, codeUsage, do(t, s.on(), "check", "orders").code)

	got = do(t, nil, "check", "--url", "redis://"+closedAddr)
	require.Equal(t, codeUnavailable, got.code, got.stderr)
	require.Contains(t, got.stderr, closedAddr)
	require.Empty(t, got.stdout)

	got = do(t, nil, "check", "--store", "sqlite:"+t.TempDir()+"/locks.db")
	require.Equal(t, 0, got.code, got.stderr)
}
