package relockk8s_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/process"
	relockk8s "github.com/go-relock/relock/store/kubernetes"
)

// server is an API server on the shared etcd, through all its restarts.
type server struct {
	t         testing.TB
	program   string
	port      int
	namespace string // of its own; there are no objects for namespaces
	proc      *process.Process
}

// dir has the program of the API server, and the log.
var dir string

// program builds the API server once.
var program = sync.OnceValues(func() (path string, err error) {
	if dir, err = os.MkdirTemp("", "relock-apiserver-"); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "apiserver")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join("testdata", "apiserver")
	if text, err := cmd.CombinedOutput(); err != nil {
		return path, fmt.Errorf("go build: %w\n%s", err, text)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := etcdtest.Main(m)
	if common != nil {
		_ = common.proc.Kill()
	}
	if dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// common is the API server of most tests, which [shared] starts.
var common *server

// shared returns a namespace of its own on one API server for all tests. The test fails if it
// leaves a Lease.
func shared(t testing.TB) *server {
	t.Helper()
	if common == nil {
		common = launch(t)
	}
	s := *common
	s.t, s.namespace = t, "ns-"+strings.ToLower(rand.Text())
	t.Cleanup(s.requireNone)
	return &s
}

func launch(t testing.TB) *server {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	ports, err := process.FreePorts(1)
	require.NoError(t, err)
	s := &server{t: t, program: path, port: ports[0], namespace: "ns-" + strings.ToLower(rand.Text())}
	s.run()
	return s
}

// requireNone fails if a Lease is left.
func (s *server) requireNone() {
	s.t.Helper()
	list, err := s.leases().List(context.Background(), meta.ListOptions{})
	require.NoError(s.t, err)
	require.Empty(s.t, list.Items)
}

func (s *server) url() string { return fmt.Sprintf("http://127.0.0.1:%d", s.port) }

// run starts the process, and returns when the server answers.
func (s *server) run() {
	s.t.Helper()
	cmd := exec.CommandContext(context.Background(), s.program,
		"-address", fmt.Sprintf("127.0.0.1:%d", s.port), "-etcd", etcdtest.Shared(s.t).URL())
	var err error
	s.proc, err = process.StartLogged(cmd, filepath.Join(dir, "log"))
	require.NoError(s.t, err)
	client := http.Client{Timeout: time.Second}
	require.NoError(s.t, s.proc.Ready(time.Minute, func() error {
		resp, err := client.Get(s.url() + "/readyz")
		if err == nil && resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
		if resp != nil {
			err = errors.Join(err, resp.Body.Close())
		}
		return err
	}))
}

// pause makes the server silent.
func (s *server) pause() (resume func()) {
	s.t.Helper()
	require.NoError(s.t, s.proc.Pause())
	return func() { _ = s.proc.Resume() }
}

// leases returns a client of its own, whose requests go through wires.
func (s *server) leases(wires ...*wire) coordination.LeaseInterface {
	s.t.Helper()
	config := &rest.Config{Host: s.url(), QPS: -1}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		for _, w := range wires {
			w.next = next
			next = w
		}
		return next
	})
	clients, err := kubernetes.NewForConfig(config)
	require.NoError(s.t, err)
	return clients.CoordinationV1().Leases(s.namespace)
}

func (s *server) store(wires ...*wire) *relockk8s.Store {
	s.t.Helper()
	st, err := relockk8s.New(s.leases(wires...))
	require.NoError(s.t, err)
	return st
}
