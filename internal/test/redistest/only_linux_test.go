package redistest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// Tests for Linux only: servers die with the test binary, and have clocks that can be turned.

func TestAServerDiesWithTheTestBinary(t *testing.T) {
	redistest.Shared(t)
	child := redistest.Child(t, "server")
	pid := child.Line(20 * time.Second)
	alive := func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err == nil && !strings.Contains(string(stat), ") Z ") // or the zombie is not reaped yet
	}
	require.True(t, alive())
	child.Kill()
	redistest.Eventually(t, 30*time.Second, func() bool { return !alive() }, "the server is gone")
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "redistest-*", "redis.log"))
	for _, log := range dirs { // nobody was left to remove its directory
		if b, _ := os.ReadFile(log); strings.Contains(string(b), "pid="+pid+",") {
			_ = os.RemoveAll(filepath.Dir(log))
		}
	}
}

func TestAClockThatIsTurnedTurnsTheServersTimeAndExpiry(t *testing.T) {
	server, clock := redistest.StartWithClock(t)
	rdb := server.Client()
	ahead := func() time.Duration {
		now, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		return time.Until(now)
	}
	left := func() time.Duration {
		ttl, err := rdb.PTTL(t.Context(), "k").Result()
		require.NoError(t, err)
		return ttl
	}
	const lease, rough = 100 * time.Second, 30 * time.Second
	require.NoError(t, rdb.Set(t.Context(), "k", "v", lease).Err())
	require.InDelta(t, 0, ahead(), float64(rough))
	require.InDelta(t, lease, left(), float64(rough))
	clock.Step(-time.Hour)
	require.InDelta(t, -time.Hour, ahead(), float64(rough))
	require.InDelta(t, lease+time.Hour, left(), float64(rough))
	clock.Step(time.Hour)
	require.Zero(t, clock.Ahead())
	require.InDelta(t, lease, left(), float64(rough))

	server.Restart()
	clock.Step(24 * time.Hour)
	require.InDelta(t, 24*time.Hour, ahead(), float64(rough), "after a restart too")
	require.NoError(t, rdb.Set(t.Context(), "k", "v", lease).Err())
	clock.Step(lease + time.Second)
	require.ErrorIs(t, rdb.Get(t.Context(), "k").Err(), redis.Nil)

	pid := server.Pid()
	server.Kill()
	for _, name := range []string{"faketime_shm_%d", "sem.faketime_sem_%d"} {
		require.NoFileExists(t, filepath.Join("/dev/shm", fmt.Sprintf(name, pid)))
	}
}
