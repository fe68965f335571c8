package relocketcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	relocketcd "github.com/go-relock/relock/etcd"
	"github.com/go-relock/relock/internal/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Main(m)
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

const startLimit = 30 * time.Second

// member is an etcd server on loopback, through all its restarts.
type member struct {
	name, dir string
	url, peer string
	args      []string

	cmd  *exec.Cmd
	done chan struct{} // closed when the server has ended
}

// shared is the one server of the test binary.
var shared struct {
	sync.Mutex
	*member
}

// server returns the shared server, started by the first call.
func server(t testing.TB) *member {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.member == nil {
		dir, err := os.MkdirTemp(memory(), "relock-etcd-") //nolint:usetesting // the server outlives the test
		require.NoError(t, err)
		shared.member = newMembers(t, 1, dir)[0]
	}
	return shared.member
}

// memory returns a directory in memory if there is one: a busy disk makes etcd wait for long.
func memory() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}

func (m *member) stop() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.kill(), os.RemoveAll(filepath.Dir(m.dir)))
}

func newMembers(t testing.TB, n int, dir string) (members []*member) {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		redistest.NotTested(t, "there is no etcd: %v; install it (apt-get install etcd-server, brew install etcd)", err)
	}
	var peers []string
	for i := range n {
		name := fmt.Sprintf("m%d", i)
		m := &member{name: name, dir: filepath.Join(dir, name), url: "http://" + freeAddr(t), peer: "http://" + freeAddr(t)}
		members, peers = append(members, m), append(peers, name+"="+m.peer)
	}
	for _, m := range members {
		m.args = []string{
			"--name", m.name, "--data-dir", m.dir, "--logger", "zap", "--log-level", "warn",
			"--listen-client-urls", m.url, "--advertise-client-urls", m.url,
			"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer,
			"--initial-cluster", strings.Join(peers, ","),
		}
		m.start(t)
	}
	for _, m := range members {
		m.ready(t)
	}
	return members
}

// start runs the server. The server is killed if the test binary is.
func (m *member) start(t testing.TB) {
	t.Helper()
	log, err := os.Create(m.dir + ".log")
	require.NoError(t, err)
	m.cmd = exec.CommandContext(context.Background(), "etcd", m.args...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	killWithParent(m.cmd)
	cmd, done, started := m.cmd, make(chan struct{}), make(chan error)
	m.done = done
	go func() {
		runtime.LockOSThread() // Linux kills the server when this thread ends
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(done)
		}
		_ = log.Close()
	}()
	require.NoError(t, <-started)
}

// ready returns when the server answers.
func (m *member) ready(t testing.TB) {
	t.Helper()
	c := m.client(t)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.Get(ctx, "ready")
		return err == nil
	}, startLimit, 20*time.Millisecond, "etcd does not answer: %s", m.log())
}

func (m *member) log() string {
	text, _ := os.ReadFile(m.dir + ".log")
	return string(text[max(0, len(text)-3000):])
}

// kill ends the server with SIGKILL, also a server that is stopped.
func (m *member) kill() error {
	if err := m.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-m.done
	return nil
}

// pause stops the process of the server, and resume lets the process go on.
func (m *member) pause(t testing.TB) (resume func()) {
	t.Helper()
	require.NoError(t, m.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool { return stopped(m.cmd.Process.Pid) }, startLimit, time.Millisecond)
	return func() { _ = m.cmd.Process.Signal(syscall.SIGCONT) }
}

// client returns a client of the servers.
func (m *member) client(t testing.TB, more ...*member) *clientv3.Client {
	t.Helper()
	endpoints := []string{m.url}
	for _, other := range more {
		endpoints = append(endpoints, other.url)
	}
	return dial(t, endpoints...)
}

func dial(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func newStore(t testing.TB, c *clientv3.Client) *relocketcd.Store {
	t.Helper()
	s, err := relocketcd.New(c, "relock/")
	require.NoError(t, err)
	return s
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
