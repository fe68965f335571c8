package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/test/process"
)

// masterName is the sentinels' name of the master.
const masterName = "relock"

// failoverLimit bounds every wait for a new master.
const failoverLimit = 30 * time.Second

// mood is the settings of sentinels. A busy machine can keep a server silent for seconds, so
// sentinels detect a dead master fast only while a test wants a failover.
type mood struct {
	// downAfter is the silence after which a server counts as dead.
	downAfter time.Duration
	// failoverTimeout bounds the steps of a failover. A sentinel that voted waits twice as long
	// before the next try.
	failoverTimeout time.Duration
	// publishPeriod, times four, is the time for which a sentinel watches two masters before the
	// sentinel makes the wrong master a replica.
	publishPeriod time.Duration
}

var (
	// Nothing fails over, and a second master is demoted in about a second.
	calm = mood{time.Minute, time.Minute, 200 * time.Millisecond}
	// For a failover on demand. The leading sentinel reads the role of the new master only once a
	// second, so another sentinel can see the new master before the leader announces the change.
	// With 200 ms, another sentinel demoted the new master after 800 ms. All sentinels were left
	// with a master in the role of a replica, counted the master as dead, and failed over back to
	// the old master.
	patient = mood{time.Minute, time.Minute, 10 * time.Second}
	// For a dead master.
	alert = mood{time.Second, 2 * time.Second, 10 * time.Second}
)

// Sentinel is a master, a replica and three sentinels, for one test.
type Sentinel struct {
	t         testing.TB
	data      [2]*Server
	sentinels []*sentinelProc
}

// sentinelProc is one sentinel.
type sentinelProc struct {
	id   string
	port int
	dir  string
	proc *process.Process
}

// StartSentinel runs a master, a replica and three sentinels with a quorum of two. A busy machine
// causes no failover: only the test does. StartSentinel returns when all sentinels know each other
// and the replica is in sync.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t}
	s.data[0] = Start(t, replicated...)
	s.data[1] = Start(t, append(slices.Clone(replicated), "--replicaof", "127.0.0.1", strconv.Itoa(s.data[0].port))...)
	if err := poll(startLimit, func() error { return s.data[1].inSync(s.data[0]) }); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	// Sentinels need seconds to discover each other, so each sentinel starts with the addresses of
	// all.
	for range 3 {
		p, err := newSentinelProc()
		if err != nil {
			t.Fatalf("redistest: %v", err)
		}
		t.Cleanup(func() {
			if err := p.stop(); err != nil {
				t.Errorf("redistest: %v", err)
			}
		})
		s.sentinels = append(s.sentinels, p)
	}
	for _, p := range s.sentinels {
		if err := p.run(s); err != nil {
			t.Fatalf("redistest: sentinel: %v", err)
		}
	}
	if err := s.waitHealthy(s.data[0], startLimit); err != nil {
		t.Fatalf("redistest: sentinels: %v", err)
	}
	return s
}

// MasterName returns the sentinels' name of the master.
func (s *Sentinel) MasterName() string { return masterName }

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string {
	var addrs []string
	for _, p := range s.sentinels {
		addrs = append(addrs, p.addr())
	}
	return addrs
}

// Client returns a client that asks the sentinels for the master. The client is closed when the
// test ends. mod may change its options first.
func (s *Sentinel) Client(mod ...func(*redis.FailoverOptions)) *redis.Client {
	opt := &redis.FailoverOptions{MasterName: masterName, SentinelAddrs: s.Addrs()}
	for _, f := range mod {
		f(opt)
	}
	rdb := redis.NewFailoverClient(opt)
	s.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Master returns the master according to the first sentinel.
func (s *Sentinel) Master() *Server {
	s.t.Helper()
	addr, err := s.sentinels[0].master()
	if err != nil {
		s.t.Fatalf("redistest: ask a sentinel for the master: %v", err)
	}
	for _, d := range s.data {
		if d.Addr() == addr {
			return d
		}
	}
	s.t.Fatalf("redistest: the sentinels' master is a stranger: %s", addr)
	return nil
}

// Replica returns the other server.
func (s *Sentinel) Replica() *Server {
	s.t.Helper()
	if s.Master() == s.data[0] {
		return s.data[1]
	}
	return s.data[0]
}

// Failover makes the replica master while the master is healthy. Failover returns the new master
// when all sentinels know the new master, and the old master follows in sync.
func (s *Sentinel) Failover() *Server {
	s.t.Helper()
	old, next := s.Master(), s.Replica()
	s.set(patient)
	// Sentinels may give up a failover. When all sentinels agree on the old master again, Failover
	// asks again.
	for try := 1; ; try++ {
		// A sentinel refuses while the replica's data counts as too old, or while the last failover
		// is not finished.
		err := poll(failoverLimit, func() error {
			_, err := s.sentinels[0].call("SENTINEL", "FAILOVER", masterName)
			return err
		})
		if err == nil {
			err = s.waitKnown(next)
		}
		if err == nil {
			break
		}
		if try == 3 || s.healthy(old) != nil {
			s.t.Fatalf("redistest: failover: %v", err)
		}
		s.t.Logf("redistest: failover was given up, try %d: %v", try, err)
	}
	s.set(calm)
	if err := s.waitHealthy(next, failoverLimit); err != nil {
		s.t.Fatalf("redistest: after the failover: %v", err)
	}
	return next
}

// KillMaster kills the master and returns the new master when all sentinels know the new master.
// The killed server becomes [Sentinel.Replica], and its Restart brings the server back.
func (s *Sentinel) KillMaster() *Server {
	s.t.Helper()
	next := s.Replica()
	s.Master().Kill()
	return s.Replace(next)
}

// Replace lets the sentinels notice the dead master, and returns when all sentinels know the next
// master. Before Replace, sentinels do not notice a dead master.
func (s *Sentinel) Replace(next *Server) *Server {
	s.t.Helper()
	s.set(alert)
	if err := s.waitKnown(next); err != nil {
		s.t.Fatalf("redistest: no new master: %v", err)
	}
	s.set(calm)
	return next
}

// WaitReplica waits until the replica follows the master and is in sync, as after
// the old master came back.
func (s *Sentinel) WaitReplica() {
	s.t.Helper()
	if err := s.waitHealthy(s.Master(), failoverLimit); err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
}

// set changes the mood of all sentinels.
func (s *Sentinel) set(m mood) {
	s.t.Helper()
	for _, p := range s.sentinels {
		if err := p.set(m, s.data[0].bin); err != nil {
			s.t.Fatalf("redistest: sentinel %s: %v", p.addr(), err)
		}
	}
}

// waitKnown waits until all sentinels know the master.
func (s *Sentinel) waitKnown(master *Server) error {
	err := poll(failoverLimit, func() error { return s.known(master) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, s.logs())
	}
	return nil
}

// logs returns the last lines of each sentinel's log.
func (s *Sentinel) logs() string {
	var b strings.Builder
	for _, p := range s.sentinels {
		fmt.Fprintf(&b, "the end of the log of sentinel %s:\n%s\n", p.addr(), tail(p.log(), 30))
	}
	return b.String()
}

// known reports whether master is a master, and all sentinels agree.
func (s *Sentinel) known(master *Server) error {
	role, err := master.call("ROLE")
	if err != nil {
		return err
	}
	if !strings.Contains(role, "\r\nmaster\r\n") {
		return fmt.Errorf("%s is not master yet", master.Addr())
	}
	for _, p := range s.sentinels {
		addr, err := p.master()
		if err != nil {
			return err
		}
		if addr != master.Addr() {
			return fmt.Errorf("sentinel %s says that %s is master, not %s", p.addr(), addr, master.Addr())
		}
	}
	return nil
}

// waitHealthy waits until all is well with the master.
func (s *Sentinel) waitHealthy(master *Server, within time.Duration) error {
	err := poll(within, func() error { return s.healthy(master) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, s.logs())
	}
	return nil
}

// healthy reports whether all sentinels know the master, its replica and each
// other, and the replica is in sync.
func (s *Sentinel) healthy(master *Server) error {
	replica := s.data[0]
	if replica == master {
		replica = s.data[1]
	}
	if err := s.known(master); err != nil {
		return err
	}
	for _, p := range s.sentinels {
		about, err := p.call("SENTINEL", "MASTER", masterName)
		if err != nil {
			return err
		}
		info := pairs(about)
		if info["flags"] != "master" || info["num-slaves"] != "1" || info["num-other-sentinels"] != "2" {
			return fmt.Errorf("sentinel %s: flags %s, %s replicas, %s other sentinels", p.addr(),
				info["flags"], info["num-slaves"], info["num-other-sentinels"])
		}
		others, err := p.call("SENTINEL", "SENTINELS", masterName)
		if err != nil {
			return err
		}
		if n := strings.Count(others, "\r\nsentinel\r\n"); n != 2 {
			return fmt.Errorf("sentinel %s has no link to %d others", p.addr(), 2-n)
		}
	}
	return replica.inSync(master)
}

// replicated are the arguments of servers with replicas.
//
// With diskless sync, a master sends a new replica nothing for up to a second after both report the
// link as up. A replica promoted in that second was empty.
var replicated = []string{"--repl-diskless-sync", "no", "--repl-ping-replica-period", "1"}

// inSync reports whether the server is a replica of master with everything that master has written
// so far.
func (s *Server) inSync(master *Server) error {
	theirs, err := master.call("INFO", "replication")
	if err != nil {
		return err
	}
	info, err := s.call("INFO", "replication")
	if err != nil {
		return err
	}
	has := func(line string) bool { return strings.Contains(info, line+"\r\n") }
	switch {
	case !has("role:slave"):
		return fmt.Errorf("%s is not a replica", s.Addr())
	case !has("master_port:" + strconv.Itoa(master.port)):
		return fmt.Errorf("%s is not a replica of %s", s.Addr(), master.Addr())
	case !has("master_link_status:up"):
		return fmt.Errorf("%s has no link to its master", s.Addr())
	}
	if had, has := offset(theirs, "master_repl_offset"), offset(info, "slave_repl_offset"); has < had {
		return fmt.Errorf("%s has %d bytes of its master's %d", s.Addr(), has, had)
	}
	return nil
}

// offset reads a number from INFO.
func offset(info, name string) int {
	_, rest, _ := strings.Cut(info, "\r\n"+name+":")
	digits, _, _ := strings.Cut(rest, "\r\n")
	n, _ := strconv.Atoi(digits)
	return n
}

// pairs reads a flat list of bulk strings as a map.
func pairs(raw string) map[string]string {
	m := map[string]string{}
	lines := strings.Split(raw, "\r\n") // *n $len key $len value ...
	for i := 2; i+2 < len(lines); i += 4 {
		m[lines[i]] = lines[i+2]
	}
	return m
}

func newSentinelProc() (*sentinelProc, error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	port, err := takePort()
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	id := make([]byte, 20)
	for i := range id {
		id[i] = byte(rand.Uint32())
	}
	return &sentinelProc{id: fmt.Sprintf("%x", id), port: port, dir: dir}, nil
}

// run starts the process. The other sentinels know the port already, so run waits until a port in
// use is free.
func (p *sentinelProc) run(s *Sentinel) error {
	return poll(startLimit, func() error {
		err := p.tryRun(s)
		if err != nil && !errors.Is(err, errBind) {
			return permanent(err)
		}
		return err
	})
}

func (p *sentinelProc) tryRun(s *Sentinel) error {
	var conf bytes.Buffer
	fmt.Fprintf(&conf, "port %d\nbind 127.0.0.1\ndir %s\n", p.port, p.dir)
	fmt.Fprintf(&conf, "sentinel myid %s\n", p.id)
	fmt.Fprintf(&conf, "sentinel monitor %s 127.0.0.1 %d 2\n", masterName, s.data[0].port)
	fmt.Fprintf(&conf, "sentinel down-after-milliseconds %s %d\n", masterName, calm.downAfter.Milliseconds())
	fmt.Fprintf(&conf, "sentinel failover-timeout %s %d\n", masterName, calm.failoverTimeout.Milliseconds())
	fmt.Fprintf(&conf, "sentinel known-replica %s 127.0.0.1 %d\n", masterName, s.data[1].port)
	for _, other := range s.sentinels {
		if other != p {
			fmt.Fprintf(&conf, "sentinel known-sentinel %s 127.0.0.1 %d %s\n", masterName, other.port, other.id)
		}
	}
	// Each sentinel has a file of its own, as a sentinel rewrites its file.
	file := filepath.Join(p.dir, "sentinel.conf")
	if err := os.WriteFile(file, conf.Bytes(), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(s.data[0].bin, file, "--sentinel")
	cmd.Dir = p.dir
	proc, err := startLogged(cmd, p.log())
	if err != nil {
		return err
	}
	p.proc = proc
	return waitReady(proc, p.log(), func() error {
		// The sentinel's timers are made for networks, not for tests. Since 7.0 the timers can be
		// changed; before, tests take some seconds longer.
		//
		// Two facts bound the ping-period. A replica cannot become master if its INFO is older than
		// five ping-periods, and while the master is down a replica is asked for INFO only once a
		// second: with 100 ms a failover took up to 30 s. And a new link gets its first ping after
		// one period, but counts as silent from its start: with 500 ms and a down-after of 500 ms a
		// new master counted as dead at once, and a second failover followed.
		_, err := p.call("PING")
		if err == nil && atLeast(s.data[0].bin, 7, 0) {
			_, err = p.call("SENTINEL", "DEBUG", "info-period", "200", "ping-period", "400",
				"ask-period", "100", "election-timeout", "2000")
		}
		if err == nil {
			err = p.set(calm, s.data[0].bin)
		}
		return err
	})
}

func (p *sentinelProc) set(m mood, bin string) error {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	// The publish period first: a sentinel that detects a dead master has all new periods.
	if atLeast(bin, 7, 0) {
		if _, err := p.call("SENTINEL", "DEBUG", "publish-period", ms(m.publishPeriod)); err != nil {
			return err
		}
	}
	_, err := p.call("SENTINEL", "SET", masterName,
		"failover-timeout", ms(m.failoverTimeout), "down-after-milliseconds", ms(m.downAfter))
	return err
}

func (p *sentinelProc) stop() error {
	defer givePort(p.port)
	defer os.RemoveAll(p.dir)
	if p.proc == nil {
		return nil
	}
	var died error
	if !p.proc.Alive() {
		died = fmt.Errorf("sentinel %s ended by itself (%v):\n%s", p.addr(), p.proc.Err(), tail(p.log(), 40))
	}
	return errors.Join(died, p.proc.Kill())
}

func (p *sentinelProc) addr() string { return "127.0.0.1:" + strconv.Itoa(p.port) }

func (p *sentinelProc) log() string { return filepath.Join(p.dir, "sentinel.log") }

func (p *sentinelProc) call(args ...string) (string, error) { return call(p.addr(), "", args...) }

// master asks for the address of the master.
func (p *sentinelProc) master() (string, error) {
	reply, err := p.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName)
	if err != nil {
		return "", err
	}
	lines := strings.Split(reply, "\r\n") // *2 $9 127.0.0.1 $5 12345
	if len(lines) < 5 {
		return "", fmt.Errorf("sentinel %s: no master: %q", p.addr(), reply)
	}
	return net.JoinHostPort(lines[2], lines[4]), nil
}
