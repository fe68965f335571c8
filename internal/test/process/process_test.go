package process

import (
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAProgramStopsGoesOnAndEnds(t *testing.T) {
	p, err := Start(exec.CommandContext(t.Context(), "sleep", "60"))
	require.NoError(t, err)
	require.NoError(t, p.Pause())
	require.True(t, stopped(p.Pid()))
	require.NoError(t, p.Resume())
	require.True(t, p.Alive())
	require.NoError(t, p.Stop(syscall.SIGTERM))
	require.False(t, p.Alive())
	var exit *exec.ExitError
	require.ErrorAs(t, p.Err(), &exit)
	require.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal())
	require.NoError(t, p.Kill(), "it has ended")
	require.Error(t, p.Pause())
}

func TestAProgramThatIsStoppedIsKilled(t *testing.T) {
	p, err := Start(exec.CommandContext(t.Context(), "sleep", "60"))
	require.NoError(t, err)
	require.NoError(t, p.Pause())
	require.NoError(t, p.Kill())
	require.False(t, p.Alive())
}

func TestAProgramThatIsNotThereIsAnError(t *testing.T) {
	_, err := Start(exec.CommandContext(t.Context(), "/nowhere/program"))
	require.Error(t, err)
}

func TestFreePortsDiffer(t *testing.T) {
	ports, err := FreePorts(20)
	require.NoError(t, err)
	slices.Sort(ports)
	require.Len(t, slices.Compact(ports), 20)
}
