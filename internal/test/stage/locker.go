package stage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
)

// A locker is a process that locks once. It prints, each on a line:
//
//	queued             the locker waits
//	in <token>         the locker has the lock
//	ended <cause>      the section's context has ended: "lost", or another cause
//	out <result>       what Unlock has said: "ok", or an error
//
// It unlocks when it is told "unlock".
var _ = func() bool {
	redistest.RegisterChild("locker", func(args []string, in *bufio.Reader, out io.Writer) {
		if err := lockOnce(args[0], args[1], args[2], in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
	return true
}()

func lockOnce(addr, name, ttl string, in *bufio.Reader, out io.Writer) error {
	lease, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	var mu sync.Mutex // the lines come from several goroutines
	say := func(what string, result any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, what, result)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	client, err := relock.New(rdb, relock.WithTTL(lease), relock.WithHooks(event.Hooks{
		Queued: func(e event.Queued) { say("queued", e.Position) },
	}))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	l := client.NewLock(name)
	section, err := l.Lock(context.Background())
	if err != nil {
		return err
	}
	token, err := l.Token(section)
	if err != nil {
		return err
	}
	say("in", token)
	ended := make(chan struct{})
	stop := context.AfterFunc(section, func() {
		defer close(ended)
		say("ended", inShort(context.Cause(section)))
	})
	defer stop()
	if line, err := in.ReadString('\n'); err != nil || strings.TrimSpace(line) != "unlock" {
		return nil // the test is over
	}
	err = l.Unlock(section)
	<-ended
	say("out", inShort(err))
	return nil
}

func inShort(err error) any {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, relock.ErrLockLost):
		return "lost"
	case errors.Is(err, relock.ErrReleased):
		return "released"
	default:
		return err
	}
}

// Locker starts a process that locks once, as above.
func (w *Arena) Locker(name string, ttl time.Duration) *redistest.Process {
	w.T.Helper()
	return redistest.Child(w.T, "locker", w.Server.Addr(), name, ttl.String())
}

// StartUp bounds the start of a process: the test binary, race detector and all.
const StartUp = 20 * time.Second

// TokenOf reads the token in a line of a locker.
func TokenOf(t testing.TB, line string) int64 {
	t.Helper()
	token, err := strconv.ParseInt(line, 10, 64)
	require.NoError(t, err)
	require.Positive(t, token)
	return token
}
