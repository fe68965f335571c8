package relock_test

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
	"github.com/go-relock/relock/internal/redistest"
)

// A crowd is a process with many waiters: one for each goroutine, as the race detector allows 8128 of these at a time.
// Its arguments are the server, a file, how many locks and clients there are, and which of all the waiters it has: the
// first, and the one behind the last. Each waiter locks once, marks the lock as taken in the file, which all crowds share
// as memory, and leaves at once. Told "give up", all that wait give up, and the crowd goes on until its clients have nothing
// more to do. At its end it prints, each on a line:
//
//	in <holder> <lock> <token>   for each waiter that was in
//	gave up                      for each that gave up
//	wrong <what>
//	left <goroutines>            that are still there after Close
var _ = func() bool {
	redistest.RegisterChild("crowd", func(args []string, in *bufio.Reader, out io.Writer) {
		var n [4]int
		for i := range n {
			n[i], _ = strconv.Atoi(args[2+i])
		}
		if err := crowdProcess(args[0], args[1], n[0], n[1], n[2], n[3], in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
	return true
}()

func crowdProcess(addr, file string, locks, clients, first, end int, in *bufio.Reader, out io.Writer) error {
	taken, err := shareMemory(file, locks)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = in.ReadString('\n') // no line: the test is over
		cancel()
		_, _ = in.ReadString('\n') // stays, so that goroutines can be counted
	}()
	before := runtime.NumGoroutine()
	var lines names
	var all sync.WaitGroup
	peers := make([]*relock.Client, clients)
	for i := range peers {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		if peers[i], err = relock.New(rdb); err != nil {
			return err
		}
	}
	for i := first; i < end; i++ {
		lock := i % locks
		l := peers[i/locks%clients].NewLock(fmt.Sprint("lock", lock))
		all.Go(func() {
			section, err := l.Lock(ctx)
			if isDone(err) {
				lines.add("gave up")
				return
			}
			if err != nil {
				lines.add(fmt.Sprint("wrong lock: ", err))
				return
			}
			alone := atomic.CompareAndSwapInt32(&taken[lock], 0, 1)
			token := l.Token(section)
			runtime.Gosched() // others come in, if they can
			if !atomic.CompareAndSwapInt32(&taken[lock], 1, 0) || !alone {
				lines.add("wrong: two are in " + l.Name())
			}
			if err := l.Unlock(section); err != nil {
				lines.add(fmt.Sprint("wrong unlock: ", err))
			}
			holder, _ := relock.HolderFrom(section)
			lines.add(fmt.Sprintf("in %s %s %d", holder, l.Name(), token))
		})
	}
	all.Wait()
	quiet := func(within time.Duration, stay int) (left int) {
		for end := time.Now().Add(within); ; {
			left = max(0, runtime.NumGoroutine()-before-stay)
			if left == 0 || time.Now().After(end) {
				return left
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	if ctx.Err() != nil {
		if n := quiet(floodLimit, clients); n > 0 { // each keeps its watchdog
			lines.add(fmt.Sprintf("wrong: %d goroutines still have something to do", n))
		}
	}
	for _, p := range peers {
		if err := p.Close(); err != nil {
			lines.add(fmt.Sprint("wrong close: ", err))
		}
	}
	lines.add(fmt.Sprintf("left %d", quiet(soon, 0)))
	_, err = io.WriteString(out, strings.Join(lines.all(), "\n")+"\n")
	return err
}

// shareMemory maps a file of n numbers.
func shareMemory(path string, n int) ([]int32, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := syscall.Mmap(int(file.Fd()), 0, 4*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

// floodLimit is for what ten thousand do one after another, or all at once.
const floodLimit = 90 * time.Second

func TestTenThousandWaitersOfFourProcessesAreServedOnceEachInTheirOrder(t *testing.T) {
	for _, size := range []struct{ locks, waiters int }{{1, 10_000}, {1000, 10}} {
		t.Run(fmt.Sprintf("%d locks with %d each", size.locks, size.waiters), func(t *testing.T) {
			w := onShared(t)
			total := size.locks * size.waiters
			begin := time.Now()
			f := w.flood(size.locks, size.waiters)
			f.gather(total)
			gathered := time.Since(begin)
			orders := make([][]string, size.locks)
			for i := range orders {
				orders[i] = w.holders(f.owners[i].Name())
				require.Len(t, orders[i], size.waiters)
			}
			before, begin := w.calls(), time.Now()
			sleepUntil(begin.Add(time.Second))
			scripts := float64(w.calls()["evalsha"]-before["evalsha"]) / time.Since(begin).Seconds()
			t.Logf("%d waiters queued within %s; then %.0f script calls a second, %.4f for each",
				total, gathered, scripts, scripts/float64(total))
			// Each asks again when the lease that it knows of should be over.
			require.LessOrEqual(t, scripts, float64(total)/10)

			before, begin = w.calls(), time.Now()
			for i, l := range f.owners {
				w.leave(f.sections[i], l, soon)
			}
			served := make([]map[string]int64, size.locks) // holder → token
			for i := range served {
				served[i] = map[string]int64{}
			}
			f.lines(func(line string) {
				fields := strings.Fields(line)
				require.Equal(t, "in", fields[0], line)
				lock, err := strconv.Atoi(strings.TrimPrefix(fields[2], "lock"))
				require.NoError(t, err)
				served[lock][fields[1]] = tokenOf(t, fields[3])
			})
			took := time.Since(begin)
			t.Logf("%d hand-overs in %s, %s each, %.2f script calls each", total, took, took/time.Duration(total),
				float64(w.calls()["evalsha"]-before["evalsha"])/float64(total))
			require.Less(t, took, floodLimit)
			for i, order := range orders {
				require.Len(t, served[i], size.waiters, "each is in once")
				got := slices.SortedFunc(maps.Keys(served[i]), func(a, b string) int { return cmp.Compare(served[i][a], served[i][b]) })
				require.Equal(t, order, got, "in the order in which they asked")
				w.awaitFree(f.owners[i].Name(), 0)
			}
		})
	}
}

func TestTenThousandWaitersThatGiveUpAtOnceLeaveNothing(t *testing.T) {
	w := onShared(t)
	const waiters = 10_000
	f := w.flood(1, waiters)
	f.gather(waiters / 2) // the others have not even joined the queue
	begin := time.Now()
	for _, process := range f.processes {
		process.Send("give up")
	}
	redistest.Eventually(t, floodLimit, func() bool { return w.waiters("lock0") == 0 }, "the queue is empty")
	t.Logf("%d waiters gave up and were gone from the server within %s", waiters, time.Since(begin))
	gone := 0
	f.lines(func(line string) { require.Equal(t, "gave up", line); gone++ })
	require.Equal(t, waiters, gone)
	w.leave(f.sections[0], f.owners[0], soon)
	w.awaitFree("lock0", 0)
}

// flood is many waiters for locks that are held.
type flood struct {
	w              *arena
	locks, waiters int
	owners         []*relock.Lock
	sections       []context.Context
	processes      []*redistest.Process
}

// flood takes the locks and starts the waiters for each of them, in four processes.
func (w *arena) flood(locks, waiters int) *flood {
	w.t.Helper()
	t := w.t
	const crowds, clients = 4, 2
	f := &flood{w: w, locks: locks, waiters: waiters}
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 3 * time.Second }) // the server is busy with the others
	for i := range locks {
		l := p.NewLock(fmt.Sprint("lock", i))
		f.owners = append(f.owners, l)
		f.sections = append(f.sections, w.enter(t.Context(), l, soon))
	}
	file := filepath.Join(t.TempDir(), "taken")
	require.NoError(t, os.WriteFile(file, make([]byte, 4*locks), 0o600))
	total := locks * waiters
	for i := range crowds {
		f.processes = append(f.processes, redistest.Child(t, "crowd", w.server.Addr(), file, strconv.Itoa(locks),
			strconv.Itoa(clients), strconv.Itoa(i*total/crowds), strconv.Itoa((i+1)*total/crowds)))
	}
	return f
}

// gather waits until n are queued.
func (f *flood) gather(n int) {
	f.w.t.Helper()
	redistest.Eventually(f.w.t, floodLimit, func() bool {
		pipe := f.w.plain.Pipeline()
		cards := make([]*redis.IntCmd, f.locks)
		for i, l := range f.owners {
			cards[i] = pipe.ZCard(context.Background(), baseKey(l.Name())+":queue")
		}
		_, err := pipe.Exec(context.Background())
		require.NoError(f.w.t, err)
		queued := 0
		for _, c := range cards {
			queued += int(c.Val())
		}
		return queued >= n
	}, "%d are queued", n)
}

// lines hands out what the waiters print, until all have ended.
func (f *flood) lines(line func(string)) {
	t := f.w.t
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
		require.NoError(t, process.Wait(soon))
	}
}
