package main

import (
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThePageIsServedOnThisMachineUntilASignal(t *testing.T) {
	s := onShared(t)
	p := start(t, s.on(), "ui", "--listen", "127.0.0.1:0", "--actions")
	address := "http://" + p.expect(&p.stdout, "http://")
	for host, code := range map[string]int{"": http.StatusOK, "localhost": http.StatusOK, "evil.example": http.StatusForbidden} {
		r, err := http.NewRequest(http.MethodGet, address, nil)
		require.NoError(t, err)
		r.Host = host
		reply, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		require.Equal(t, code, reply.StatusCode, host)
	}
	p.signal(syscall.SIGTERM)
	require.Zero(t, p.code())
	require.Empty(t, p.stderr.String())
}

func TestAPageThatCannotBeServedIsAnErrorOfTheSystem(t *testing.T) {
	require.Equal(t, codeInternal, do(t, onShared(t).on(), "ui", "--listen", "127.0.0.1:-1").code)
}
