package dbtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-relock/relock/internal/test/process"
)

// Pooler is a PgBouncer of one test. One that ends by itself is started anew, as by the supervisor of
// a service: PgBouncer 1.18 ends now and then beside many cancel requests ("bad client state").
type Pooler struct {
	t    testing.TB
	args []string
	addr string

	mu   sync.Mutex
	proc *process.Process
	down bool // by Crash
	ends int  // how often it has ended by itself
	log  poolerLog
}

// mostEnds is how often a pooler is started anew: one that cannot start would end again and again.
const mostEnds = 1000

// poolerLog is the log of one program after the other.
type poolerLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *poolerLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *poolerLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// StartPooler starts a PgBouncer in front of the PostgreSQL with an address, in a mode (transaction
// or statement), with so many connections to each database.
func StartPooler(t testing.TB, server, mode string, connections int) *Pooler {
	t.Helper()
	path := (&engine{name: "PgBouncer", install: "apt-get install pgbouncer", programs: []string{"pgbouncer"}}).find(t)
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	ports, err := process.FreePorts(1)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "pgbouncer.ini")
	err = os.WriteFile(config, fmt.Appendf(nil, `[databases]
* = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = %d
`, host, port, ports[0], mode, connections), 0o644)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	p := &Pooler{t: t, args: []string{path["pgbouncer"], config}, addr: "127.0.0.1:" + strconv.Itoa(ports[0])}
	if os.Getuid() == 0 { // PgBouncer refuses to be root
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatalf("dbtest: %v", err)
		}
		p.args = append(p.args, "-u", "postgres")
	}
	p.Restart()
	t.Cleanup(func() {
		p.Crash()
		if t.Failed() {
			t.Logf("dbtest: the log of PgBouncer:\n%s", &p.log)
		}
	})
	return p
}

// Addr is where the pooler listens.
func (p *Pooler) Addr() string { return p.addr }

// Crash ends the pooler at once.
func (p *Pooler) Crash() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	if err := p.proc.Kill(); err != nil {
		p.t.Fatalf("dbtest: %v", err)
	}
}

// Restart starts a pooler that has crashed, and returns when it listens.
func (p *Pooler) Restart() {
	p.t.Helper()
	p.mu.Lock()
	err := p.startLocked()
	p.mu.Unlock()
	if err != nil {
		p.t.Fatalf("dbtest: %v", err)
	}
	for range 2000 {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(context.Background(), "tcp", p.addr); err == nil {
			_ = conn.Close()
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	p.t.Fatalf("dbtest: PgBouncer does not listen at %s: %v\n%s", p.addr, err, &p.log)
}

func (p *Pooler) startLocked() error {
	cmd := exec.CommandContext(context.Background(), p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	proc, err := process.Start(cmd)
	if err != nil {
		return err
	}
	p.proc, p.down = proc, false
	go func() {
		<-proc.Done()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ends++; !p.down && p.proc == proc && p.ends < mostEnds {
			_ = p.startLocked()
		}
	}()
	return nil
}
