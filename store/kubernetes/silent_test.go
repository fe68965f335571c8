package relockk8s_test

import (
	"context"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/tcptest"
	relockk8s "github.com/go-relock/relock/store/kubernetes"
)

// A machine that dies closes no connection: client-go uses it until a ping has no answer, and without
// the two variables for 45 s.
func TestAConnectionThatGoesSilentCostsNoLock(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "3")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "2")
	s := shared(t)
	target, err := url.Parse(s.url())
	require.NoError(t, err)
	front := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(target))
	front.EnableHTTP2 = true
	front.StartTLS()
	t.Cleanup(front.Close)
	proxy := tcptest.NewProxy(t, front.Listener.Addr().String())
	var dials atomic.Int64
	clients, err := kubernetes.NewForConfig(&rest.Config{
		Host: front.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				address = proxy.Address()
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	})
	require.NoError(t, err)
	st, err := relockk8s.New(clients.CoordinationV1().Leases(s.namespace))
	require.NoError(t, err)
	const ttl = 12 * time.Second
	c, err := relock.Open(st, relock.WithTTL(ttl))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	l := c.NewLock("silent")
	section, err := l.Lock(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, dials.Load())
	proxy.Stall()
	select {
	case <-section.Done():
		require.NoError(t, context.Cause(section))
	case <-time.After(3 * ttl / 2):
	}
	require.NoError(t, l.Unlock(section))
}
