package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Clock is the clock of one server, which a test can turn. Only the time of day changes. The
// server's own timers run on, as on a machine whose clock is set.
type Clock struct {
	server *Server
	file   string // what the server's clock is ahead
	ahead  time.Duration
}

// StartWithClock is [Start] for a server with a clock of its own. The clock shows the right time
// until [Clock.Step]. StartWithClock needs Linux and the program faketime. Without faketime the
// test is skipped, or fails on Linux if RELOCK_REQUIRE_REDIS is 1.
func StartWithClock(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	bin := binary(t)
	preload := faketime(t)
	file := filepath.Join(t.TempDir(), "ahead")
	c := &Clock{file: file}
	if err := c.write(); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	in, err := newInstance(bin, args,
		// libc is preloaded behind faketime, in order to replace the malloc of a separate jemalloc.
		// jemalloc reads the clock before it can allocate, and faketime allocates before it can
		// tell the time: each would wait for the other.
		"LD_PRELOAD="+preload+" libc.so.6",
		"FAKETIME_TIMESTAMP_FILE="+file, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1",
	)
	if err != nil {
		t.Fatalf("redistest: with a clock of its own: %v", err)
	}
	c.server = in.of(t)
	c.check()
	return c.server, c
}

// Step turns the clock by d, back if d is negative, and returns when the server
// shows the new time.
func (c *Clock) Step(d time.Duration) {
	c.server.t.Helper()
	c.ahead += d
	if err := c.write(); err != nil {
		c.server.t.Fatalf("redistest: step %s: %v", d, err)
	}
	c.check()
}

// Ahead returns the sum of all steps.
func (c *Clock) Ahead() time.Duration { return c.ahead }

// write replaces the file as a whole: the server may read it at any time.
func (c *Clock) write() error {
	next := c.file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+.6f\n", c.ahead.Seconds()), 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.file)
}

// check fails the test if the server shows a wrong time.
func (c *Clock) check() {
	c.server.t.Helper()
	before := time.Now()
	reply, err := c.server.call("EVAL", "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", "0")
	after := time.Now()
	micros, parseErr := strconv.ParseInt(reply, 10, 64)
	if err = errors.Join(err, parseErr); err != nil {
		c.server.t.Fatalf("redistest: the server's time: %v", err)
	}
	const rough = 20 * time.Millisecond // for the file's decimals and for clocks of different grain
	shows := time.UnixMicro(micros)
	if shows.Before(before.Add(c.ahead-rough)) || shows.After(after.Add(c.ahead+rough)) {
		c.server.t.Fatalf("redistest: the server's clock is %s ahead and should be %s", shows.Sub(after), c.ahead)
	}
}

// faketime returns the libraries to preload into a program whose clock is to be turned.
func faketime(t testing.TB) string {
	t.Helper()
	// The program knows where its library is.
	out, err := exec.Command("faketime", "-f", "+0", "printenv", "LD_PRELOAD").Output()
	if err == nil {
		return strings.TrimSpace(string(out))
	}
	NotTested(t, "faketime does not run: %v; install it (apt-get install faketime, dnf install libfaketime; it is for Linux only)", err)
	return ""
}

// forgetClock removes the shared memory of faketime, which a killed process leaves behind.
func forgetClock(pid int) {
	_ = os.Remove(fmt.Sprintf("/dev/shm/faketime_shm_%d", pid))
	_ = os.Remove(fmt.Sprintf("/dev/shm/sem.faketime_sem_%d", pid))
}
