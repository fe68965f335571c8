// Package zktest starts ZooKeeper servers on free ports of this machine, for tests. Each server has
// a directory of its own, and ends with the test, or with the test binary.
package zktest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-relock/relock/internal/test/process"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/tcptest"
)

// Times of a server.
const (
	startLimit = 90 * time.Second
	askLimit   = time.Second
)

// classes has ZooKeeper, and names the other archives that it needs. Debian's package
// libzookeeper-java, which comes with package zookeeper, puts it there.
const classes = "/usr/share/java/zookeeper.jar"

// Server is one server, alone or in an ensemble.
type Server struct {
	t       testing.TB
	dir     string
	address string
	main    string
	// followers is between the server, while it leads, and its followers; nil: the server is alone.
	followers *tcptest.Proxy

	proc *process.Process // nil before the first start
}

// Start starts a server alone. Its sessions may be as short as two ticks of 200 ms, and as long as
// an hour, and it deletes empty containers after a second. Lines add to its configuration.
func Start(t testing.TB, lines ...string) *Server {
	t.Helper()
	s := newServer(t, freePorts(t, 1)[0], "ZooKeeperServerMain", lines)
	s.start()
	s.ready()
	return s
}

// StartEnsemble starts three servers that elect a leader. A leader that has lost its
// followers notices after syncLimit ticks of 200 ms.
func StartEnsemble(t testing.TB, syncLimit int) []*Server {
	t.Helper()
	const n = 3
	ports := freePorts(t, 3*n)
	followers, quorums := make([]*tcptest.Proxy, n), make([]string, n)
	for i := range followers {
		quorums[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[n+2*i]))
		followers[i] = tcptest.NewProxy(t, quorums[i])
	}
	var servers []*Server
	for i := range n {
		var members []string
		for j, proxy := range followers {
			quorum := proxy.Address()
			if j == i {
				quorum = quorums[j]
			}
			members = append(members, fmt.Sprintf("server.%d=%s:%d", j+1, quorum, ports[n+2*j+1]))
		}
		s := newServer(t, ports[i], "quorum.QuorumPeerMain", append(members, "initLimit=25", fmt.Sprintf("syncLimit=%d", syncLimit)))
		s.followers = followers[i]
		if err := os.WriteFile(filepath.Join(s.dir, "myid"), []byte(strconv.Itoa(i+1)), 0o600); err != nil {
			t.Fatal(err)
		}
		s.start()
		servers = append(servers, s)
	}
	for _, s := range servers {
		s.ready()
	}
	return servers
}

// Addresses returns the addresses of servers, as a client writes them.
func Addresses(servers []*Server) string {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.address)
	}
	return strings.Join(addresses, ",")
}

// Address returns the address of the server.
func (s *Server) Address() string { return s.address }

// Leads says whether the server is the leader of its ensemble.
func (s *Server) Leads() bool {
	answer, err := s.ask("srvr")
	return err == nil && strings.Contains(answer, "Mode: leader")
}

// CutFollowers cuts the followers of the server off. They notice at once. The server goes on
// leading for syncLimit ticks.
func (s *Server) CutFollowers() { s.followers.CutClients() }

// Requests returns how many packets of clients the server has received.
func (s *Server) Requests() int {
	s.t.Helper()
	answer, err := s.ask("srvr")
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(answer) {
		if number, ok := strings.CutPrefix(line, "Received: "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(number))
			if err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	s.t.Fatalf("zktest: the server does not tell the packets:\n%s", answer)
	return 0
}

// Pause stops the process with SIGSTOP, so that the server is silent until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	s.must(s.proc.Pause())
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.t.Helper()
	s.must(s.proc.Resume())
}

// Kill ends the process with SIGKILL.
func (s *Server) Kill() {
	s.t.Helper()
	s.must(s.proc.Kill())
}

// Restart kills the server, and starts it again with its data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.start()
	s.ready()
}

// SetCounter starts the server again with another counter of sequential nodes for a node that is
// there.
func (s *Server) SetCounter(node string, counter int32) {
	s.t.Helper()
	s.Restart() // writes a snapshot
	s.Kill()
	snapshots, err := filepath.Glob(filepath.Join(s.dir, "version-2", "snapshot.*"))
	s.must(err)
	// A snapshot with a larger number is of a later state; the names have no leading zeros.
	newest := slices.MaxFunc(snapshots, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	data, err := os.ReadFile(newest)
	s.must(err)
	s.must(setCounter(data, node, counter))
	s.must(os.WriteFile(newest, data, 0o600))
	s.start()
	s.ready()
}

// setCounter changes the counter of a node in a snapshot, and the checksums of the snapshot. A
// record has the length of the path, the path, the length of the data, the data, and numbers of a
// fixed size. A checksum is of all bytes before it, and the path "/" follows it.
func setCounter(data []byte, node string, counter int32) error {
	const beforeCounter = 5*8 + 4 // the ACL, czxid, mzxid, ctime, mtime and version
	record := append(binary.BigEndian.AppendUint32(nil, uint32(len(node))), node...)
	at := bytes.Index(data, record)
	if at < 0 {
		return fmt.Errorf("the snapshot has no node %s", node)
	}
	var sums []int
	for i := at; i+13 <= len(data); i++ {
		if string(data[i+8:i+13]) == "\x00\x00\x00\x01/" && binary.BigEndian.Uint64(data[i:]) == uint64(adler32.Checksum(data[:i])) {
			sums = append(sums, i)
		}
	}
	at += len(record)
	if n := int32(binary.BigEndian.Uint32(data[at:])); n > 0 {
		at += int(n)
	}
	binary.BigEndian.PutUint32(data[at+4+beforeCounter:], uint32(counter))
	for _, i := range sums {
		binary.BigEndian.PutUint64(data[i:], uint64(adler32.Checksum(data[:i])))
	}
	return nil
}

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func newServer(t testing.TB, port int, main string, lines []string) *Server {
	t.Helper()
	if _, err := os.Stat(classes); err != nil {
		redistest.NotTested(t, "there is no ZooKeeper: %v; install it (apt-get install zookeeper)", err)
	}
	if _, err := exec.LookPath("java"); err != nil {
		redistest.NotTested(t, "there is no Java: %v", err)
	}
	s := &Server{t: t, dir: t.TempDir(), address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), main: main}
	config := append([]string{
		"tickTime=200", "minSessionTimeout=400", "maxSessionTimeout=3600000", "maxClientCnxns=0",
		"dataDir=" + s.dir, "clientPortAddress=127.0.0.1", "clientPort=" + strconv.Itoa(port),
		"admin.enableServer=false", "4lw.commands.whitelist=srvr",
	}, lines...)
	if err := os.WriteFile(filepath.Join(s.dir, "config"), []byte(strings.Join(config, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.proc != nil {
			s.Kill()
		}
	})
	return s
}

// start runs the process.
func (s *Server) start() {
	s.t.Helper()
	cmd := exec.CommandContext(context.Background(), "java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dzookeeper.forceSync=no", "-Dznode.container.checkIntervalMs=1000", "-Djava.net.preferIPv4Stack=true",
		"-cp", classes, "org.apache.zookeeper.server."+s.main, filepath.Join(s.dir, "config"))
	cmd.Dir = s.dir
	var err error
	s.proc, err = process.StartLogged(cmd, filepath.Join(s.dir, "log"))
	s.must(err)
}

// ready returns when the server serves.
func (s *Server) ready() {
	s.t.Helper()
	s.must(s.proc.Ready(startLimit, func() error {
		answer, err := s.ask("srvr")
		if err == nil && !strings.Contains(answer, "Mode: ") {
			err = fmt.Errorf("it answers %q", answer)
		}
		return err
	}))
}

// ask sends one of the server's commands of four letters.
func (s *Server) ask(command string) (string, error) {
	conn, err := (&net.Dialer{Timeout: askLimit}).DialContext(context.Background(), "tcp", s.address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(askLimit)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports, err := process.FreePorts(n)
	if err != nil {
		t.Fatal(err)
	}
	return ports
}
