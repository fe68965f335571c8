package faults_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Are thousands of waiters of several processes served in order?

// A crowd is a process with many waiters, one for each goroutine: the race detector allows 8128 of
// these at a time. Its arguments are the server, a file, how many locks there are, and the first
// waiter and the one behind the last. Each waiter locks once, marks the lock as taken in the file,
// and leaves at once; all crowds share the file as memory. Told "give up", all that wait give up.
// At its end a crowd prints, each on a line:
//
//	in <holder> <lock> <token>   for each waiter that was in
//	gave up                      for each that gave up
//	wrong <what>
//	left <goroutines>            that are still there after Close
var _ = func() bool {
	redistest.RegisterChild("crowd", func(args []string, in *bufio.Reader, out io.Writer) {
		if err := runCrowd(args, in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
	return true
}()

// swarm is the waiters of one process.
type swarm struct {
	taken []int32 // by lock, shared with the other processes
	lines stage.Texts
}

func runCrowd(args []string, in *bufio.Reader, out io.Writer) error {
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(args[2+i])
	}
	locks, first, end := n[0], n[1], n[2]
	var c swarm
	var err error
	if c.taken, err = shareMemory(args[1], locks); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = in.ReadString('\n') // no line: the test is over
		cancel()
		_, _ = in.ReadString('\n') // stays, so that goroutines can be counted
	}()
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer func() { _ = rdb.Close() }()
	before := runtime.NumGoroutine()
	client, err := relock.New(rdb)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for i := first; i < end; i++ {
		lock := i % locks
		all.Go(func() { c.wait(ctx, client.NewLock(fmt.Sprint("lock", lock)), &c.taken[lock]) })
	}
	all.Wait()
	if err := client.Close(); err != nil {
		c.lines.Add(fmt.Sprint("wrong close: ", err))
	}
	left := 0
	for end := time.Now().Add(stage.Limit); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if left = runtime.NumGoroutine() - before; left <= 0 {
			break
		}
	}
	c.lines.Add(fmt.Sprint("left ", max(left, 0)))
	_, err = io.WriteString(out, strings.Join(c.lines.All(), "\n")+"\n")
	return err
}

// wait is one waiter.
func (c *swarm) wait(ctx context.Context, l *relock.Lock, taken *int32) {
	section, err := l.Lock(ctx)
	if stage.IsDone(err) {
		c.lines.Add("gave up")
		return
	}
	if err != nil {
		c.lines.Add(fmt.Sprint("wrong lock: ", err))
		return
	}
	alone := atomic.CompareAndSwapInt32(taken, 0, 1)
	token, err := l.Token(section)
	if err != nil {
		c.lines.Add(fmt.Sprint("wrong token: ", err))
	}
	holder, _ := relock.HolderFrom(section)
	if !atomic.CompareAndSwapInt32(taken, 1, 0) || !alone {
		c.lines.Add("wrong: two are in " + l.Name())
	}
	if err := l.Unlock(section); err != nil {
		c.lines.Add(fmt.Sprint("wrong unlock: ", err))
	}
	c.lines.Add(fmt.Sprintf("in %s %s %d", holder, l.Name(), token))
}

// shareMemory maps a file of n numbers.
func shareMemory(path string, n int) ([]int32, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	b, err := syscall.Mmap(int(file.Fd()), 0, 4*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

// floodLimit is for what thousands do one after another, or all at once.
const floodLimit = 60 * time.Second

// flood is many waiters for locks that are held.
type flood struct {
	w         *stage.Arena
	owners    []*relock.Lock
	sections  []context.Context
	processes []*redistest.Process
}

// newFlood takes the locks and starts the waiters for each of them, in four processes.
func newFlood(w *stage.Arena, locks, waiters int) *flood {
	w.T.Helper()
	const crowds = 4
	f := &flood{w: w}
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout = 3 * time.Second }) // the server is busy with the others
	for i := range locks {
		l := p.NewLock(fmt.Sprint("lock", i))
		f.owners = append(f.owners, l)
		f.sections = append(f.sections, w.Enter(w.T.Context(), l))
	}
	file := filepath.Join(w.T.TempDir(), "taken")
	require.NoError(w.T, os.WriteFile(file, make([]byte, 4*locks), 0o600))
	total := locks * waiters
	for i := range crowds {
		f.processes = append(f.processes, redistest.Child(w.T, "crowd", w.Server.Addr(), file, strconv.Itoa(locks),
			strconv.Itoa(i*total/crowds), strconv.Itoa((i+1)*total/crowds)))
	}
	return f
}

// gather waits until n are queued.
func (f *flood) gather(n int) {
	f.w.T.Helper()
	redistest.Eventually(f.w.T, floodLimit, func() bool {
		pipe := f.w.Plain.Pipeline()
		var cards []*redis.IntCmd
		for _, l := range f.owners {
			cards = append(cards, pipe.ZCard(context.Background(), stage.BaseKey(l.Name())+":queue"))
		}
		_, err := pipe.Exec(context.Background())
		require.NoError(f.w.T, err)
		queued := 0
		for _, c := range cards {
			queued += int(c.Val())
		}
		return queued >= n
	}, "%d are queued", n)
}

// lines hands out what the waiters print, until all have ended.
func (f *flood) lines(line func(string)) {
	t := f.w.T
	t.Helper()
	for _, process := range f.processes {
		for {
			text := process.Line(floodLimit)
			if left, ok := strings.CutPrefix(text, "left "); ok {
				require.Equal(t, "0", left, "goroutines")
				break
			}
			line(text)
		}
		require.NoError(t, process.Wait(stage.Limit))
	}
}

func TestThousandsOfWaitersAreServedOnceEachInOrder(t *testing.T) {
	for _, size := range []struct{ locks, waiters int }{{1, 2_000}, {200, 10}} {
		t.Run(fmt.Sprintf("%d locks with %d each", size.locks, size.waiters), func(t *testing.T) {
			w := stage.OnShared(t)
			total := size.locks * size.waiters
			f := newFlood(w, size.locks, size.waiters)
			f.gather(total)
			orders := make([][]string, size.locks)
			for i, l := range f.owners {
				orders[i] = w.Queue(l.Name())
				require.Len(t, orders[i], size.waiters)
			}
			before, begin := w.Calls(), time.Now()
			stage.SleepUntil(begin.Add(time.Second))
			scripts := float64(w.Calls()["evalsha"]-before["evalsha"]) / time.Since(begin).Seconds()
			t.Logf("%d waiters are blocked: %.0f script calls a second", total, scripts)
			// Each asks again when the lease that it knows of should be over.
			require.LessOrEqual(t, scripts, float64(total)/10)

			before, begin = w.Calls(), time.Now()
			for i, l := range f.owners {
				w.Leave(f.sections[i], l)
			}
			served := make([]map[string]int64, size.locks) // holder -> token
			for i := range served {
				served[i] = map[string]int64{}
			}
			f.lines(func(line string) {
				fields := strings.Fields(line)
				require.Equal(t, "in", fields[0], line)
				lock, err := strconv.Atoi(strings.TrimPrefix(fields[2], "lock"))
				require.NoError(t, err)
				served[lock][fields[1]] = stage.TokenOf(t, fields[3])
			})
			t.Logf("%d hand-overs in %s, %.2f script calls each", total, time.Since(begin),
				float64(w.Calls()["evalsha"]-before["evalsha"])/float64(total))
			for i, order := range orders {
				require.Len(t, served[i], size.waiters, "each is in once")
				got := slices.SortedFunc(maps.Keys(served[i]), func(a, b string) int { return cmp.Compare(served[i][a], served[i][b]) })
				for n, hold := range order {
					require.True(t, strings.HasPrefix(hold, got[n]+":"), "in the order in which they asked")
				}
				w.Within(0).RequireFree(f.owners[i].Name())
			}
		})
	}
}

func TestThousandsOfWaitersThatGiveUpAtOnceLeaveNothing(t *testing.T) {
	const waiters = 5_000
	w := stage.OnShared(t)
	f := newFlood(w, 1, waiters)
	f.gather(waiters / 2) // the others have not even joined the queue
	begin := time.Now()
	for _, process := range f.processes {
		process.Send("give up")
	}
	redistest.Eventually(t, floodLimit, func() bool { return w.Waiters("lock0") == 0 }, "the queue is empty")
	t.Logf("%d waiters gave up and were gone from the server within %s", waiters, time.Since(begin))
	gone := 0
	f.lines(func(line string) { require.Equal(t, "gave up", line); gone++ })
	require.Equal(t, waiters, gone)
	w.Leave(f.sections[0], f.owners[0])
	w.Within(0).RequireFree("lock0")
}
