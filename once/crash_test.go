package once_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/once"
)

// Processes die at random before, in and after their attempts.

func init() { redistest.RegisterChild("worker", worker) }

// worker does all operations in random order, several at a time, and says "done". Before anything
// else, worker notes each attempt in a file.
func worker(args []string, _ *bufio.Reader, out io.Writer) {
	keys, err := strconv.Atoi(args[2])
	must(err)
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	locks, err := relock.New(rdb, relock.WithTTL(time.Second))
	must(err)
	o, err := once.New(locks)
	must(err)
	notes, err := os.OpenFile(args[1], os.O_APPEND|os.O_WRONLY, 0)
	must(err)
	todo := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for key := range todo {
				_, _, err := once.Do(context.Background(), o, fmt.Sprint(key), func(_ context.Context, a once.Attempt) (int, error) {
					_, err := fmt.Fprintf(notes, "%s %d %t\n", a.Key, a.Number, a.Interrupted)
					must(err)
					<-time.After(rand.N(40 * time.Millisecond))
					return a.Number, nil
				})
				if err != nil {
					_, _ = fmt.Fprintln(os.Stderr, err) // a lost lock: the next attempt is told
				}
			}
		})
	}
	for _, key := range rand.Perm(keys) {
		todo <- key
	}
	close(todo)
	wg.Wait()
	_, _ = fmt.Fprintln(out, "done")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// keysOfCrashes is the number of operations, RELOCK_ONCE_KEYS for more.
func keysOfCrashes(t *testing.T) int {
	t.Helper()
	text := os.Getenv("RELOCK_ONCE_KEYS")
	if text == "" {
		return 3000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// noted is the attempts of each key, in order of their notes. True is an attempt that was told of
// an interrupted one.
func noted(t *testing.T, file string) map[string][]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	attempts := map[string][]bool{}
	for line := range strings.Lines(string(text)) {
		var key string
		var number int
		var interrupted bool
		_, err := fmt.Sscan(line, &key, &number, &interrupted)
		require.NoError(t, err, line)
		attempts[key] = append(attempts[key], interrupted)
	}
	return attempts
}

func TestWorkersThatDieAtRandom(t *testing.T) {
	r, keys := newRig(t), keysOfCrashes(t)
	file := filepath.Join(t.TempDir(), "notes")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	start := func() *redistest.Process {
		return redistest.Child(t, "worker", r.server.Addr(), file, strconv.Itoa(keys))
	}
	workers := []*redistest.Process{start(), start(), start()}
	for range 20 + keys/500 {
		<-time.After(time.Duration(20+rand.IntN(100)) * time.Millisecond)
		at := rand.IntN(len(workers))
		workers[at].Kill()
		workers[at] = start()
	}
	for _, w := range workers {
		w.Expect("done", time.Minute+time.Duration(keys)*2*time.Millisecond)
	}

	p, repeats := r.process(), 0
	attempts := noted(t, file)
	require.Len(t, attempts, keys)
	for key, told := range attempts {
		number, replayed, err := once.Do(t.Context(), p.Once, key, func(context.Context, once.Attempt) (int, error) { return 0, nil })
		require.NoError(t, err)
		require.True(t, replayed, key)
		require.GreaterOrEqual(t, number, len(told), "each attempt has a number")
		for i, interrupted := range told {
			require.Equal(t, i > 0 || interrupted, interrupted, "attempt %d of %s was not told of the one before", i+1, key)
		}
		repeats += len(told) - 1
	}
	t.Logf("%d operations, %d attempts were repeated, and each knew", keys, repeats)
	require.Positive(t, repeats, "no worker died in an attempt: this test has shown nothing")
}
