package relock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// Most goroutines have a lock of their own, some share theirs with another process. Their commands share script calls, of
// which some lose their reply or their connection; the server forgets its scripts; calls are cancelled at any instant.
func TestSixtyFourGoroutinesWhoseCallsForManyBreakExcludeEachOther(t *testing.T) {
	w := onShared(t)
	const goroutines, shared = 64, 8
	peers := []*peer{w.peer(), w.peer()}
	guards := make([]guarded, len(peers)*goroutines)
	var done tally
	var errs names
	var calls atomic.Int64
	for _, p := range peers {
		p.faults.On(w.script(luaMany), redistest.Before(func([]string) { calls.Add(1) }))
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	var all, trouble sync.WaitGroup
	for n, p := range peers {
		for i := range goroutines {
			name := fmt.Sprintf("lock-%d-%d", n, i)
			g := &guards[n*goroutines+i]
			if i < shared {
				name, g = fmt.Sprintf("shared-%d", i), &guards[i]
			}
			l := p.NewLock(name)
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(n), uint64(i)))
				for {
					select {
					case <-stop:
						return
					default:
					}
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if random.IntN(4) == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(2000))*time.Microsecond)
					}
					lock := l.Lock
					if random.IntN(3) == 0 {
						lock = l.TryLock
					}
					section, err := lock(ctx)
					if err == nil {
						g.enter(section, l)
						g.leave(section)
						err = l.Unlock(section)
						done.add("sections")
					} else {
						done.add("refusals")
					}
					cancel()
					if err != nil && !isDone(err) && outcomeIsOdd(err) {
						errs.add(err.Error())
					}
				}
			})
		}
	}
	trouble.Go(func() {
		kinds := []redistest.Break{redistest.EOF, redistest.Reset}
		n := 0
		every(20*time.Millisecond, ended, func() {
			n++
			p := peers[n%2]
			switch n % 5 {
			case 0:
				p.faults.Once(w.script(luaMany), redistest.CutBefore(kinds[n/5%2]))
			case 1:
				if err := w.plain.ScriptFlush(context.Background()).Err(); err != nil {
					errs.add(err.Error())
				}
			case 2:
				p.faults.Cut()
			default:
				p.faults.Once(w.script(luaMany), redistest.DropReply(kinds[n/5%2]))
			}
			done.add("troubles")
		})
	})
	length := 3 * time.Second
	if testing.Short() {
		length = time.Second
	}
	sleepUntil(time.Now().Add(length))
	close(ended)
	trouble.Wait()
	close(stop)
	require.NoError(t, w.call(10*time.Second, func() error { all.Wait(); return nil }))
	t.Logf("%s; %d calls for many", &done, calls.Load())
	require.Empty(t, errs.all())
	require.Greater(t, int(calls.Load()), 10)
	require.Greater(t, done.of("sections"), 100)
	for i := range guards {
		guards[i].require(t)
	}
	w.loadScripts() // for the tests that share the server
}

// outcomeIsOdd says whether a call may not end like that where connections break: TryLock tries a few times only.
func outcomeIsOdd(err error) bool {
	var locked *relock.LockedError
	var op *relock.OpError
	switch {
	case errors.As(err, &locked):
		return false
	case errors.As(err, &op):
		return op.Op != "lock"
	}
	return true
}
