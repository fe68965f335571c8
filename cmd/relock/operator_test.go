package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
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

// enter takes a lock of any kind, until the test ends or what it returns is called.
func (s *site) enter(lock *relock.Lock) (holder string, leave func()) {
	s.t.Helper()
	section, err := lock.TryLock(context.Background())
	require.NoError(s.t, err)
	h, _ := relock.HolderFrom(section)
	leave = func() { _ = lock.Unlock(section) }
	s.t.Cleanup(leave)
	return h.String(), leave
}

// show reads the JSON of show.
func (s *site) show(name string) lockInfo {
	s.t.Helper()
	return (&storeSite{T: s.t, url: s.server.URL()}).shown(name)
}

// queued waits until somebody waits for a lock of any kind.
func (s *site) queued(lock *relock.Lock, n int) {
	s.t.Helper()
	redistest.Eventually(s.t, soon, func() bool {
		state, err := lock.State(s.t.Context())
		require.NoError(s.t, err)
		return state.Waiters == n
	}, "queued: %d for %q", n, lock.Name())
}

func TestLsListsEveryKindOfLockWithAllItsHolders(t *testing.T) {
	s := onShared(t)
	require.Equal(t, result{stdout: "[]\n"}, do(t, s.on(), "ls", "--json"))
	prices := s.client.NewRWLock("prices")
	var readers []string
	for range 2 {
		holder, _ := s.enter(prices.RLocker())
		readers = append(readers, holder)
	}
	permit, _ := s.enter(s.client.NewSemaphore("tills", 3))
	s.hold("{tag}:job")
	s.hold("gone")()
	writer := start(t, s.on(), "run", "--write", "prices", "--json", "--", "true")
	s.queued(prices.Writer(), 1)
	reader := start(t, s.on(), "run", "--shared", "prices", "--json", "--", "true")
	s.queued(prices.Writer(), 2)

	infos := list(t, do(t, s.on(), "ls", "--json").stdout)
	require.Equal(t, []string{"prices", "tills", "{tag}:job"}, names(infos), "by name, without the one that is free")
	price, till, job := infos[0], infos[1], infos[2]
	require.Equal(t, []string{"read_write", "semaphore", "mutex"}, []string{price.Kind, till.Kind, job.Kind})
	require.Equal(t, s.state("{tag}:job").Holder.String(), job.holders())
	require.Equal(t, event.ModeExclusive, job.Holders[0].Mode)
	require.Equal(t, 1, job.Count)
	require.InDelta(t, 30_000, *job.Holders[0].LeaseMs, 15_000)
	require.Nil(t, job.WaitMs)
	require.Equal(t, permit, till.holders())
	require.Len(t, price.Holders, 2)
	require.Zero(t, price.Count, "is not in Redis")
	require.Equal(t, 2, price.Waiters)
	require.GreaterOrEqual(t, *price.WaitMs, int64(0))

	table := do(t, s.on(), "ls").stdout
	require.Len(t, strings.Split(strings.TrimSpace(table), "\n"), 5, "a line for each holder")
	require.Regexp(t, `^NAME +MODE +COUNT +LEASE +WAITERS +LONGEST WAIT +HOLDER\n`, table)
	require.Regexp(t, `(?m)^prices +shared +- +\d+s +2 +\S+s +\S+$`, table)
	require.Regexp(t, `(?m)^prices +shared +- +\d+s +- +- +\S+$`, table)
	require.Regexp(t, `(?m)^tills +permit +- +\d+s +0 +- +`+permit+`$`, table)

	shown := s.show("prices")
	for i, p := range []*program{writer, reader} {
		require.Contains(t, readers, p.event("waiting")["holder"])
		require.Contains(t, shown.Queue[i].Holder, "relock@")
	}
	require.Equal(t, event.ModeExclusive, shown.Queue[0].Mode)
	require.Equal(t, event.ModeShared, shown.Queue[1].Mode)
	text := do(t, s.on(), "show", "prices").stdout
	require.Regexp(t, `(?m)^kind +read_write$`, text)
	require.Regexp(t, `(?m)^holder +\S+ shared, lease \d+s$`, text)
	require.Regexp(t, `(?m)^ +1\. `+shown.Queue[0].Holder+` exclusive for \S+s$`, text)
	for _, p := range []*program{reader, writer} { // the reader would enter as soon as the writer gives up
		p.signal(syscall.SIGINT)
		p.code()
	}
	require.Equal(t, result{stdout: "{\"name\":\"free\",\"held\":false,\"waiters\":0}\n"}, do(t, s.on(), "show", "free", "--json"))
	require.Regexp(t, `(?m)^holder +nobody$`, do(t, s.on(), "show", "free").stdout)
}

func TestLsWithAPattern(t *testing.T) {
	s := onShared(t)
	for _, name := range []string{"orders:1", "orders:2", "orders/a/b", "stock:1", "{x}:1", "a*"} {
		s.hold(name)
	}
	for pattern, want := range map[string][]string{
		"orders:*":     {"orders:1", "orders:2"},
		"orders*":      {"orders/a/b", "orders:1", "orders:2"},
		"*:1":          {"orders:1", "stock:1", "{x}:1"},
		"{x}*":         {"{x}:1"},
		"orders:[2-3]": {"orders:2"},
		"orders?a/b":   {"orders/a/b"},
		`a\*`:          {"a*"},
		"order":        {},
		"{stock:1}":    {"stock:1"}, // the same lock
	} {
		require.Equal(t, want, names(list(t, do(t, s.on(), "ls", "--json", pattern).stdout)), pattern)
	}
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
	flags := []string{"--store", "cluster+redis://" + cluster.Addrs()[0]}
	got := do(t, nil, append(flags, "ls", "--json")...)
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, want, names(list(t, got.stdout)))

	require.Equal(t, 0, do(t, nil, append(flags, "unlock", "--force", "lock:07")...).code)
	got = do(t, nil, append(flags, "run", "lock:07", "--no-wait", "--", "sh", "-c", "exit 3")...)
	require.Equal(t, 3, got.code, got.stderr)
	got = do(t, nil, append(flags, "run", "lock:08", "--no-wait", "--", "true")...)
	require.Equal(t, codeBusy, got.code, got.stderr)
	waiter := start(t, nil, append(flags, "run", "lock:08", "--", "true")...)
	redistest.Eventually(t, soon, func() bool {
		return list(t, do(t, nil, append(flags, "ls", "--json", "lock:08")...).stdout)[0].Waiters == 1
	}, "counted: a waiter that listens on one node")
	waiter.signal(syscall.SIGINT)
	waiter.code()
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
		last := s.show(lock.Name()).Queue[1].Holder
		require.NoError(t, gone.cmd.Process.Kill())
		gone.code()
		redistest.Eventually(t, soon, func() bool { return s.show(lock.Name()).Waiters == 1 }, "noticed: the end of a client")
		s.queued(lock, 2) // Redis has both places still
		require.Equal(t, last, s.show(lock.Name()).Queue[0].Holder)
		require.Equal(t, 1, list(t, do(t, s.on(), "ls", "--json").stdout)[0].Waiters)
		require.NoError(t, there.cmd.Process.Kill())
		there.code()
		leave()
		redistest.Eventually(t, soon, func() bool { return do(t, s.on(), "ls", "--json").stdout == "[]\n" }, "noticed: the end of the other")
	}
}

func TestAReaderThatWaitsToWriteHasNoTime(t *testing.T) {
	s := onShared(t)
	prices := s.client.NewRWLock("prices")
	inside, err := prices.RLock(t.Context())
	require.NoError(t, err)
	_, leave := s.enter(prices.RLocker())
	ctx, cancel := context.WithCancel(inside)
	upgraded := make(chan error, 1)
	go func() {
		_, err := prices.Lock(ctx)
		upgraded <- err
	}()
	s.queued(prices.Writer(), 1)
	require.Nil(t, s.show("prices").Queue[0].WaitMs, "Redis does not keep it")
	require.Contains(t, do(t, s.on(), "show", "prices").stdout, "exclusive for -")
	cancel()
	require.Error(t, <-upgraded)
	leave()
	require.NoError(t, prices.Unlock(inside))
}

func TestTheUserOfThePageMayListLocks(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../docs/OPERATIONS.md")
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

func TestUnlockTakesALockFromAllItsHolders(t *testing.T) {
	s := onShared(t)
	for _, lock := range []*relock.Lock{s.client.NewRWLock("prices").RLocker(), s.client.NewSemaphore("tills", 3)} {
		one, _ := s.enter(lock)
		two, _ := s.enter(lock)
		got := do(t, s.on(), "unlock", "--force", "--json", lock.Name())
		require.Equal(t, 0, got.code, got.stderr)
		require.Contains(t, got.stdout, one)
		require.Contains(t, got.stdout, two)
		require.Equal(t, "unlocked", object(t, got.stdout)["done"])
	}
	s.hold("job")
	waiter := start(t, s.on(), "run", "job", "--", "echo", "mine")
	s.waiting("job", 1)
	require.Equal(t, codeUsage, do(t, s.on(), "unlock", "job").code)
	require.Equal(t, 0, do(t, s.on(), "unlock", "--force", "job").code)
	require.Equal(t, 0, waiter.code())
	require.Equal(t, "mine\n", waiter.stdout.String())
	got := do(t, s.on(), "unlock", "--force", "job")
	require.Equal(t, result{code: codeNotHeld, stderr: "relock: \"job\": nobody has the lock\n"}, got)
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
	require.Equal(t, "asked", object(t, do(t, s.on(), "ask", "--json", "job").stdout)["done"])
	require.NoError(t, lock.Unlock(section))
}

func TestWatchOutlastsAServerThatIsAway(t *testing.T) {
	t.Parallel()
	s := onOwn(t)
	p := start(t, s.on(), "watch", "--interval", "100ms")
	p.expect(&p.stdout, "NAME ")
	s.server.Kill()
	p.expect(&p.stderr, "relock: Redis at ")
	s.server.Restart()
	s.hold("job")
	p.expect(&p.stdout, "job ")
	p.signal(syscall.SIGINT)
	require.Equal(t, 0, p.code())
}

func TestWatchSeesWhatChanges(t *testing.T) {
	s := onShared(t)
	s.hold("another")
	p := start(t, s.on(), "watch", "--interval", "100ms", "--json", "job*")
	seen := func(want int) {
		t.Helper()
		redistest.Eventually(t, soon, func() bool {
			lines := p.stdout.lines()
			return len(lines) > 0 && len(object(t, lines[len(lines)-1])["locks"].([]any)) == want
		}, "seen: %d locks", want)
	}
	seen(0)
	release := s.hold("job")
	seen(1)
	release()
	seen(0)
	p.signal(syscall.SIGINT)
	require.Equal(t, 0, p.code())
	got := do(t, s.on(), "watch", "--interval", "100ms", "--count", "2")
	require.Equal(t, 2, strings.Count(got.stdout, "1 held, 0 waiting\nNAME "))
	require.NotContains(t, got.stdout, "\x1b", "nothing for a terminal")
}

func TestATableOfWatchMarksWhatHasChanged(t *testing.T) {
	const id = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
	lock := func(name, holder string, lease, wait int64) lockInfo {
		info := lockInfo{Name: name, Held: true, Holders: []holding{{holder, event.ModeExclusive, &lease}}}
		if wait > 0 {
			info.Waiters, info.WaitMs = 1, &wait
		}
		return info
	}
	seen := new(history)
	lines := func(infos ...lockInfo) []string {
		return slices.Collect(strings.Lines(seen.table(infos)))[1:]
	}
	got := lines(lock("a", id+":1", 30_000, 0), lock("b", "shop/"+id+":2", 30_000, 0))
	require.Regexp(t, `^a +exclusive +- +████████ 30s +0 +- +f47ac10b:1\n`, got[0], "nothing is new at first")
	require.Regexp(t, `^b +.* shop/f47ac10b:2\n`, got[1])
	got = lines(lock("a", id+":1", 15_000, 0), lock("b", id+":3", 30_000, 9), lock("c", id+":4", 30_000, 10))
	require.Regexp(t, `^c \+ `, got[0], "the longest wait is the first")
	require.Regexp(t, `^b \* `, got[1])
	require.Regexp(t, `^a +exclusive +- +████░░░░ 15s`, got[2])
	got = lines(lock("c", id+":4", 29_000, 11))
	require.Regexp(t, `^c +exclusive `, got[0], "a wait that goes on is no change")
	require.Len(t, seen.longest, 1, "what is gone is forgotten")
}

func TestWhatCouldNotBeWrittenIsNoSuccess(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	unwritable, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer unwritable.Close()
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"show", "job"}, {"watch", "--count", "1"}, {"unlock", "--force", "job"}, {"--help"}} {
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
