// Package etcdtest starts etcd servers on free ports of this machine, for tests. A server keeps its
// data in memory where the system has a directory for that, as a busy disk makes etcd wait for
// long. The servers end with the test, and on Linux with the test binary.
package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-relock/relock/internal/test/process"
	"github.com/go-relock/relock/internal/test/redistest"
)

// Times of a server.
const (
	startLimit = 30 * time.Second
	askLimit   = time.Second
)

// Server is one server, alone or in a cluster, through all its restarts. Its methods fail the test
// when the server does not obey.
type Server struct {
	t testing.TB
	*member
}

type member struct {
	dir, url string
	args     []string
	proc     *process.Process // nil before the first start
}

var shared struct {
	sync.Mutex
	*member
	failed error // of the start, which is tried once
}

// Shared returns the one server of this test binary. The first call starts the server, and [Main]
// stops the server. All tests share its keys. A test may pause the server if no other test runs
// meanwhile, but not kill the server.
func Shared(t testing.TB) *Server {
	t.Helper()
	find(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.member == nil && shared.failed == nil {
		var members []*member
		if members, shared.failed = start(1); shared.failed == nil {
			shared.member = members[0]
		}
	}
	if shared.failed != nil {
		t.Fatalf("etcdtest: %v", shared.failed)
	}
	return &Server{t, shared.member}
}

// Main is for TestMain, in place of [redistest.Main]. Main calls redistest.Main, which runs the
// tests, and stops the shared server.
//
//	func TestMain(m *testing.M) { os.Exit(etcdtest.Main(m)) }
func Main(m *testing.M) int {
	code := redistest.Main(m)
	shared.Lock()
	defer shared.Unlock()
	if shared.member == nil {
		return code
	}
	if err := shared.end(); err != nil {
		fmt.Fprintln(os.Stderr, "etcdtest:", err)
		code = max(code, 1)
	}
	return code
}

// Start starts a cluster of n servers; n may be 1. flags come in addition to the required flags.
// The servers end with the test.
func Start(t testing.TB, n int, flags ...string) []*Server {
	t.Helper()
	find(t)
	members, err := start(n, flags...)
	if err != nil {
		t.Fatalf("etcdtest: %v", err)
	}
	var servers []*Server
	for _, m := range members {
		servers = append(servers, &Server{t, m})
		t.Cleanup(func() {
			if err := m.end(); err != nil {
				t.Errorf("etcdtest: %v", err)
			}
		})
	}
	return servers
}

// URL returns the address for clients.
func (s *Server) URL() string { return s.url }

// Pause stops the process with SIGSTOP. The server is silent until resume.
func (s *Server) Pause() (resume func()) {
	s.t.Helper()
	if err := s.proc.Pause(); err != nil {
		s.t.Fatalf("etcdtest: %v", err)
	}
	return func() { _ = s.proc.Resume() }
}

// Kill ends the process with SIGKILL, even if the process is stopped.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.proc.Kill(); err != nil {
		s.t.Fatalf("etcdtest: %v", err)
	}
}

// Restart kills the server, and starts it again with its data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	err := s.run()
	if err == nil {
		err = s.ready()
	}
	if err != nil {
		s.t.Fatalf("etcdtest: %v", err)
	}
}

// find skips or fails a test without etcd.
func find(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		redistest.NotTested(t, "there is no etcd: %v; install it (apt-get install etcd-server, brew install etcd)", err)
	}
}

// start starts n members of a cluster.
func start(n int, flags ...string) (members []*member, err error) {
	defer func() {
		if err != nil {
			for _, m := range members {
				_ = m.end()
			}
		}
	}()
	ports, err := process.FreePorts(2 * n)
	if err != nil {
		return nil, err
	}
	var peers []string
	for i := range n {
		dir, err := os.MkdirTemp(memory(), "relock-etcd-")
		if err != nil {
			return members, err
		}
		m := &member{dir: dir, url: fmt.Sprintf("http://127.0.0.1:%d", ports[i])}
		members, peers = append(members, m), append(peers, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, ports[n+i]))
	}
	for i, m := range members {
		name, peer, _ := strings.Cut(peers[i], "=")
		m.args = append([]string{
			"--name", name, "--data-dir", filepath.Join(m.dir, "data"), "--logger", "zap", "--log-level", "warn",
			"--listen-client-urls", m.url, "--advertise-client-urls", m.url,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(peers, ","),
		}, flags...)
		if err := m.run(); err != nil {
			return members, err
		}
	}
	for _, m := range members {
		if err := m.ready(); err != nil {
			return members, err
		}
	}
	return members, nil
}

// memory returns a directory in memory, "" if there is none.
func memory() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}

// run starts the process.
func (m *member) run() (err error) {
	m.proc, err = process.StartLogged(exec.CommandContext(context.Background(), "etcd", m.args...), filepath.Join(m.dir, "log"))
	return err
}

// ready returns when the server has a leader and answers.
func (m *member) ready() error {
	return m.proc.Ready(startLimit, func() error { _, err := m.ask("/health"); return err })
}

// ask gets a page of the server.
func (m *member) ask(page string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+page, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", page, resp.Status)
	}
	return string(body), err
}

// end kills the process and removes its data.
func (m *member) end() (err error) {
	if m.proc != nil {
		err = m.proc.Kill()
	}
	return errors.Join(err, os.RemoveAll(m.dir))
}
