package main

import (
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
)

// completed returns what a shell offers for the last of args. A shell ignores standard error.
func completed(t *testing.T, setups []setup, args ...string) (offered []string, directive string) {
	t.Helper()
	got := do(t, setups, append([]string{"__complete"}, args...)...)
	require.Equal(t, 0, got.code, got.stderr)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	return lines[:len(lines)-1], lines[len(lines)-1]
}

const files, noFiles = ":0", ":4"

func TestAShellCompletesTheNamesOfLocks(t *testing.T) {
	s := onShared(t)
	for _, name := range []string{"orders:1", "orders:2", "{t}:a b", "two\nlines"} {
		s.hold(name)
	}
	orders, all := []string{"orders:1", "orders:2"}, []string{"orders:1", "orders:2", "{t}:a b"}
	for _, c := range []struct {
		call, begun string
		want        []string
	}{
		{"show", "", all}, {"show", "or", orders}, {"unlock --force", "o", orders}, {"run", "{t", all[2:]}, {"hold --wait 5m", "", all},
		{"run orders:1 --ttl=1m", "", all[1:]}, {"show orders:1", "", []string{}}, {"run", "*", []string{}}, {"show --redisson", "", []string{}},
	} {
		offered, directive := completed(t, s.on(), append(strings.Fields(c.call), c.begun)...)
		require.Equal(t, c.want, offered, "%q", c)
		require.Equal(t, noFiles, directive)
	}
	offered, directive := completed(t, s.on(), "run", "orders:1", "--", "")
	require.Empty(t, offered)
	require.Equal(t, files, directive, "the command of run may be a file")
}

func TestACompletionIsQuietAndQuickWithoutAServer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	require.NoError(t, err)
	defer silent.Close()
	for _, addr := range []string{closedAddr, silent.Addr().String()} {
		began := time.Now()
		offered, directive := completed(t, nil, "show", "--url", "redis://"+addr, "")
		require.Empty(t, offered)
		require.Equal(t, noFiles, directive)
		require.Less(t, time.Since(began), bound.Of(8*time.Second), "the --timeout is 10s")
	}
}

func TestBashCompletesANameWithItsScript(t *testing.T) {
	s := onShared(t)
	s.hold("orders-42")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		got := do(t, nil, "completion", shell)
		require.Equal(t, 0, got.code)
		require.Contains(t, got.stdout, "__complete")
	}
	require.Equal(t, codeUsage, do(t, nil, "completion", "tcsh").code)
	bash, err := exec.LookPath("bash")
	if err != nil {
		return // the scripts are those of cobra
	}
	// Bash sets these variables when a person presses the tab key behind "relock show or".
	script := do(t, nil, "completion", "bash").stdout + `
relock() { "$RELOCK" "$@"; }
COMP_WORDS=(relock show or) COMP_CWORD=2 COMP_LINE="relock show or" COMP_POINT=14 COMP_TYPE=9
_get_comp_words_by_ref() { cur=or prev=show words=("${COMP_WORDS[@]}") cword=2; }
compopt() { :; }
__start_relock
echo "${COMPREPLY[@]}"`
	p := startProgram(t, bash, s.on(env("RELOCK="+binary)), "-c", script)
	require.Equal(t, 0, p.code())
	require.Equal(t, "orders-42", strings.TrimSpace(p.stdout.String()), p.stderr.String())
}
