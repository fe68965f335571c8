//go:build kubernetes

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/process"
	"github.com/go-relock/relock/lab/soak/history"
	relockk8s "github.com/go-relock/relock/store/kubernetes"
)

func init() {
	worlds["kubernetes"] = setting{
		begin: startKubernetes, ttl: 3 * time.Second, mode: history.Mode{Drawn: true}, races: true,
		parts: []string{"part0", "part1", "part2", "part3", "part4", "part5"}, // a name of Kubernetes has no braces
	}
}

// kubernetesWorld is two API servers over three members of etcd. The connections of a client spread
// over both servers, as behind a balancer.
type kubernetesWorld struct {
	network
	program string
	etcd    []*etcdtest.Server
	apis    []*process.Process
	plain   coordination.LeaseInterface // past the proxies
}

func startKubernetes(s *soak) world {
	w := &kubernetesWorld{network: network{soak: s}, etcd: etcdtest.Start(s.t, 3)}
	w.program = filepath.Join(s.t.TempDir(), "apiserver")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", w.program, ".")
	build.Dir = "../../store/kubernetes/testdata/apiserver"
	text, err := build.CombinedOutput()
	require.NoError(s.t, err, "%s", text)
	ports, err := process.FreePorts(2)
	require.NoError(s.t, err)
	for i, port := range ports {
		w.servers = append(w.servers, fmt.Sprintf("127.0.0.1:%d", port))
		w.apis = append(w.apis, nil)
		w.serve(i)
		s.t.Cleanup(func() { _ = w.apis[i].Kill() })
	}
	w.plain, _ = w.leases(w.servers)
	return w
}

// serve starts an API server, and returns when it answers.
func (w *kubernetesWorld) serve(i int) {
	var urls []string
	for _, m := range w.etcd {
		urls = append(urls, m.URL())
	}
	cmd := exec.CommandContext(context.Background(), w.program, "-address", w.servers[i], "-etcd", strings.Join(urls, ","))
	var err error
	w.apis[i], err = process.Start(cmd)
	require.NoError(w.t, err)
	client := http.Client{Timeout: time.Second}
	require.Eventually(w.t, func() bool {
		resp, err := client.Get("http://" + w.servers[i] + "/readyz")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
}

// leases returns a client of its own, and what ends its connections.
func (w *kubernetesWorld) leases(servers []string) (coordination.LeaseInterface, func()) {
	w.t.Helper()
	var dials atomic.Int64
	config := &rest.Config{Host: "http://" + servers[0], QPS: -1, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, servers[int(dials.Add(1))%len(servers)])
	}}
	over, err := rest.HTTPClientFor(config)
	require.NoError(w.t, err)
	clients, err := kubernetes.NewForConfigAndClient(config, over)
	require.NoError(w.t, err)
	return clients.CoordinationV1().Leases("locks"), func() { utilnet.CloseIdleConnectionsFor(over.Transport) }
}

func (w *kubernetesWorld) join(time.Duration) *peer {
	w.t.Helper()
	y := w.cable()
	leases, end := w.leases(y.addresses())
	over, err := relockk8s.New(leases)
	require.NoError(w.t, err)
	y.closing = append(y.closing, end, func() { _ = over.Close() })
	return &peer{w.open(over), y}
}

func (w *kubernetesWorld) settle() {}

func (w *kubernetesWorld) left() (names []string) {
	all, err := w.plain.List(context.Background(), meta.ListOptions{})
	require.NoError(w.t, err)
	for i := range all.Items {
		names = append(names, all.Items[i].Name)
	}
	return names
}

func (w *kubernetesWorld) troubles() []troubles {
	return []troubles{{150 * time.Millisecond, w.onCables}, {600 * time.Millisecond, w.atServers}}
}

func (w *kubernetesWorld) atServers(random *rand.Rand) []fault {
	return append(w.anywhere(random), []fault{
		{"API server stopped", 2, func() {
			api := w.apis[random.IntN(len(w.apis))]
			_ = api.Pause()
			w.pause(upTo(random, w.ttl))
			_ = api.Resume()
		}},
		{"API server killed", 1, func() {
			i := random.IntN(len(w.apis))
			_ = w.apis[i].Kill()
			w.serve(i)
		}},
		{"member of etcd stopped", 2, func() {
			resume := w.etcd[random.IntN(len(w.etcd))].Pause()
			w.pause(upTo(random, w.ttl))
			resume()
		}},
		{"member of etcd killed", 1, func() { w.etcd[random.IntN(len(w.etcd))].Restart() }},
		{"Lease deleted", 1, func() {
			name := w.anyName(random)
			w.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error { return w.wipe(name) })
		}},
	}...)
}

// wipe deletes the Lease of a lock, and no later one of the same name.
func (w *kubernetesWorld) wipe(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl)
	defer cancel()
	l, err := w.plain.Get(ctx, name, meta.GetOptions{})
	if err == nil {
		err = w.plain.Delete(ctx, name, *meta.NewPreconditionDeleteOptions(string(l.UID)))
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
