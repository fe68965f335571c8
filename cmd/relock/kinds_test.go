package main

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

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
func (s *site) show(name string) (info lockInfo) {
	s.t.Helper()
	got := do(s.t, s.on(), "show", "--json", name)
	require.Equal(s.t, 0, got.code, got.stderr)
	require.NoError(s.t, json.Unmarshal([]byte(got.stdout), &info))
	return info
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

func TestRunsThatReadRunSideBySide(t *testing.T) {
	s := onShared(t)
	prices := s.client.NewRWLock("prices")
	one, _ := s.startProbe("plain", "--shared", "prices")
	two, _ := s.startProbe("plain", "prices", "--shared")
	got := do(t, s.on(), "run", "--write", "--no-wait", "prices", "--", "echo", "never")
	require.Equal(t, codeBusy, got.code, got.stderr)
	require.Empty(t, got.stdout)
	info := s.show("prices")
	require.Equal(t, kindReadWrite, info.Kind)
	require.Equal(t, relock.ModeShared, info.Mode)
	require.Len(t, info.Others, 1)
	require.Equal(t, relock.ModeShared, info.Others[0].Mode)

	writer := start(t, s.on(), "run", "--json", "--write", "prices", "--", "echo", "written")
	s.queued(prices.Writer(), 1)
	require.Equal(t, "exclusive", writer.event("waiting")["mode"])
	for _, p := range []*program{one, two} {
		require.NoError(t, p.stdin.Close())
		require.Equal(t, 9, p.code())
	}
	require.Equal(t, 0, writer.code())
	require.Equal(t, "written\n", writer.stdout.String())
	require.Equal(t, "exclusive", writer.event("acquired")["mode"])
}

func TestReadersHaveTheTokenOfTheLastWriter(t *testing.T) {
	s := onShared(t)
	token := func(mode string) string {
		got := do(t, s.on(), "run", mode, "prices", "--", "sh", "-c", "echo $RELOCK_TOKEN")
		require.Equal(t, 0, got.code, got.stderr)
		return got.stdout
	}
	first := token("--write")
	require.Equal(t, "-"+first, token("--shared"))
	require.Equal(t, "-"+first, token("--shared"))
	require.Less(t, first, token("--write"))
}

func TestARunWithPermitsIsOneOfSeveral(t *testing.T) {
	s := onShared(t)
	for range 2 {
		_, _ = s.startProbe("plain", "tills", "--permits", "2")
	}
	got := do(t, s.on(), "run", "--no-wait", "--permits=2", "tills", "--", "true")
	require.Equal(t, codeBusy, got.code, got.stderr)
	info := s.show("tills")
	require.Equal(t, kindSemaphore, info.Kind)
	require.Equal(t, relock.ModePermit, info.Mode)
	require.Len(t, info.Others, 1)
}

func TestARunWithSeveralNamesHasAllLocksOrNone(t *testing.T) {
	s := onShared(t)
	free := s.hold("b")
	got := do(t, s.on(), "run", "c", "b", "a", "--no-wait", "--", "echo", "never")
	require.Equal(t, codeBusy, got.code)
	require.Contains(t, got.stderr, `"b" is locked by `)
	require.Empty(t, got.stdout)
	require.False(t, s.state("a").Locked())

	p := start(t, s.on(), "run", "c", "b", "a", "--json", "--", "sh", "-c",
		"echo $RELOCK_TOKENS; echo ${RELOCK_TOKEN-none}${RELOCK_NAME-none}; echo $RELOCK_HOLDER; echo end; read x")
	require.Equal(t, "b", p.event("waiting")["name"])
	free()
	p.expect(&p.stdout, "end")
	lines := p.stdout.lines()
	tokens := strings.Fields(lines[0])
	require.Equal(t, "nonenone", lines[1], "one of several is not all")
	for i, name := range []string{"c", "b", "a"} {
		state := s.state(name)
		require.Equal(t, lines[2], state.Holder.String())
		require.Equal(t, strconv.FormatInt(state.Token, 10), tokens[i], "in the order of the command line")
	}
	acquired := p.event("acquired")
	require.NotContains(t, acquired, "name")
	locks := acquired["locks"].([]any)
	require.Equal(t, "c", locks[0].(map[string]any)["name"])
	require.Positive(t, locks[2].(map[string]any)["token"])

	require.Equal(t, 0, do(t, s.on(), "unlock", "--force", "b").code)
	require.Equal(t, codeLost, p.code())
	require.Equal(t, "b", p.event("lost")["name"])
	s.free("a")
	s.free("c")
}

func TestSeveralLocksOfRedissonAreTakenTogether(t *testing.T) {
	s := onShared(t)
	got := do(t, s.on(), "run", "b", "a", "--redisson=fenced", "--", "sh", "-c", "echo $RELOCK_TOKENS; "+binary+" run --redisson --no-wait a -- true; echo $?")
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "1 1\n75\n", got.stdout)
}

func TestARunInsideARunDoesNotWaitForItsOwnReadOrPermit(t *testing.T) {
	s := onShared(t)
	for _, flags := range [][2]string{{"--shared", "--write"}, {"--permits=1", "--permits=1"}} {
		got := do(t, s.on(), "run", flags[0], "job", "--", binary, "run", flags[1], "job", "--", "echo", "never")
		require.Equal(t, codeBusy, got.code, flags)
		require.Contains(t, got.stderr, "the relock run around this one", flags)
	}
	got := do(t, s.on(), "run", "b", "--", binary, "run", "a", "b", "--", "echo", "never")
	require.Equal(t, codeBusy, got.code)
	require.Contains(t, got.stderr, `"b" is held by the relock run around this one`)
	require.False(t, s.state("a").Locked())
	got = do(t, s.on(), "run", "--shared", "job", "--", binary, "run", "--shared", "job", "--", "echo", "both")
	require.Equal(t, result{stdout: "both\n"}, got)
}

func TestANameOfAnotherKindIsAWrongCall(t *testing.T) {
	s := onShared(t)
	_, _ = s.enter(s.client.NewRWLock("prices").RLocker())
	_, _ = s.enter(s.client.NewSemaphore("tills", 2))
	s.hold("job")
	for _, args := range [][]string{{"prices"}, {"tills"}, {"--permits=2", "prices"}, {"--shared", "tills"}, {"--write", "job"}, {"x", "tills"}} {
		got := do(t, s.on(), append(append([]string{"run", "--no-wait"}, args...), "--", "echo", "never")...)
		require.Equal(t, codeUsage, got.code, "%q: %s", args, got.stderr)
		require.Contains(t, got.stderr, "--permits is for a semaphore", args)
		require.Empty(t, got.stdout)
	}
}

// The run has begun to wait last: it waits for c, whose holder waits for a of the run.
func TestADeadlockSaysWhatToDo(t *testing.T) {
	s := onShared(t)
	freeB := s.hold("b")
	section, err := s.client.NewLock("c").TryLock(t.Context())
	require.NoError(t, err)
	p := start(t, s.on(), "run", "--json", "a", "b", "c", "--", "echo", "never")
	s.waiting("b", 1)
	other := make(chan error, 1)
	go func() { other <- s.client.NewLock("a").Do(section, func(context.Context) error { return nil }) }()
	s.waiting("a", 1)
	freeB()
	require.Equal(t, codeBusy, p.code())
	require.NoError(t, <-other, "the other one goes on")
	e := p.event("error")
	require.Equal(t, "deadlock", e["error"])
	require.EqualValues(t, codeBusy, e["exit_code"])
	require.Contains(t, e["message"], "in the same order everywhere")
	require.Empty(t, p.stdout.String())
	s.free("a")
	s.free("b")
	require.NoError(t, s.client.NewLock("c").Unlock(section))
}

func TestEveryKindIsListedWithAllItsHolders(t *testing.T) {
	s := onShared(t)
	prices, tills := s.client.NewRWLock("prices"), s.client.NewSemaphore("tills", 3)
	readers := map[string]bool{}
	for range 2 {
		holder, _ := s.enter(prices.RLocker())
		readers[holder] = true
	}
	permit, _ := s.enter(tills)
	s.hold("job")
	writer := start(t, s.on(), "run", "--write", "prices", "--", "true")
	s.queued(prices.Writer(), 1)
	reader := start(t, s.on(), "run", "--shared", "prices", "--", "true")
	s.queued(prices.Writer(), 2)

	infos := list(t, do(t, s.on(), "ls", "--json").stdout)
	require.Equal(t, []string{"job", "prices", "tills"}, names(infos))
	job, price, till := infos[0], infos[1], infos[2]
	require.Equal(t, kindMutex, job.Kind)
	require.Equal(t, relock.ModeExclusive, job.Mode)
	require.Equal(t, 1, job.Count)
	require.Equal(t, kindReadWrite, price.Kind)
	require.Len(t, price.holders(), 2)
	for _, holder := range price.holders() {
		require.True(t, readers[holder])
	}
	require.Zero(t, price.Count, "is not in Redis")
	require.Equal(t, 2, price.Waiters)
	require.NotNil(t, price.WaitMs)
	require.Equal(t, kindSemaphore, till.Kind)
	require.Equal(t, permit, till.Holder)

	table := do(t, s.on(), "ls").stdout
	require.Len(t, strings.Split(strings.TrimSpace(table), "\n"), 5, "a line for each holder")
	require.Regexp(t, `(?m)^prices +shared +- +\d+s +2 +\d+\.\ds +\S+$`, table)
	require.Regexp(t, `(?m)^prices +shared +- +\d+s +- +- +\S+$`, table)
	require.Regexp(t, `(?m)^tills +permit +- +\d+s +0 +- +`+permit+`$`, table)

	queue := s.show("prices").Queue
	require.Len(t, queue, 2)
	require.Equal(t, relock.ModeExclusive, queue[0].Mode)
	require.Equal(t, relock.ModeShared, queue[1].Mode)
	text := do(t, s.on(), "show", "prices").stdout
	require.Regexp(t, `(?m)^kind +read-write lock$`, text)
	require.Regexp(t, `(?m)^others +\S+ shared, lease ends in \d+s$`, text)
	require.Regexp(t, `(?m)^ +1\. `+queue[0].Holder+` exclusive for `, text)
	for _, p := range []*program{reader, writer} { // the reader would enter as soon as the writer gives up
		p.signal(interruptSignal)
		p.code()
	}
}

func TestAReaderThatWaitsToWriteIsShownFirst(t *testing.T) {
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
	queue := s.show("prices").Queue
	require.Len(t, queue, 1)
	require.Nil(t, queue[0].Since, "Redis does not keep it")
	require.Contains(t, do(t, s.on(), "show", "prices").stdout, "exclusive, before all others")
	require.Equal(t, []string{"prices"}, names(list(t, do(t, s.on(), "ls", "--json").stdout)))
	cancel()
	require.Error(t, <-upgraded)
	leave()
	require.NoError(t, prices.Unlock(inside))
}

func TestUnlockTakesALockOfAnyKindFromAllItsHolders(t *testing.T) {
	s := onShared(t)
	for name, lock := range map[string]*relock.Lock{
		"prices": s.client.NewRWLock("prices").RLocker(), "tills": s.client.NewSemaphore("tills", 3),
	} {
		one, _ := s.enter(lock)
		two, _ := s.enter(lock)
		got := do(t, s.on(), "unlock", "--force", "--json", name)
		require.Equal(t, 0, got.code, got.stderr)
		require.Contains(t, got.stdout, one)
		require.Contains(t, got.stdout, two)
		state, err := lock.State(t.Context())
		require.NoError(t, err)
		require.False(t, state.Locked(), "%s: %v", name, state)
		require.Equal(t, codeNotHeld, do(t, s.on(), "unlock", "--force", name).code)
	}
}

func TestKeysBesideThoseOfLocksAreNotListed(t *testing.T) {
	s := onShared(t)
	ctx := t.Context()
	const hold = "00000000-0000-0000-0000-000000000000:1:1"
	require.NoError(t, s.rdb.HSet(ctx, "relock:{"+hold+"}:waits", hold, "{}").Err())
	require.NoError(t, s.rdb.ZAdd(ctx, "relock:{scores}", redis.Z{Score: 3e15, Member: "Bob"}).Err())
	require.NoError(t, s.rdb.ZAdd(ctx, "relock:{left}:rw", redis.Z{Score: 1, Member: hold + "|w"}).Err())
	require.NoError(t, s.rdb.ZAdd(ctx, "relock:{other}:rw:queue", redis.Z{Score: 5, Member: hold + "|1000"}).Err())
	for _, name := range []string{"dead", "waiting"} {
		require.NoError(t, s.rdb.ZAdd(ctx, "relock:{"+name+"}:permits:queue", redis.Z{Score: 5, Member: hold + "|1000|3|"}).Err())
	}
	listener := s.rdb.Subscribe(ctx, "relock:{waiting}:"+hold[:36])
	defer listener.Close()
	_, err := listener.Receive(ctx) // the confirmation
	require.NoError(t, err)
	infos := list(t, do(t, s.on(), "ls", "--json").stdout)
	require.Equal(t, []string{"waiting"}, names(infos))
	require.Equal(t, kindSemaphore, infos[0].Kind)
}
