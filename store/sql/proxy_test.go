package relocksql_test

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy is a TCP proxy before a server. A frozen proxy keeps its connections and forwards nothing.
type proxy struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	thawed chan struct{} // closed unless the proxy is frozen
	filter func(up bool, data []byte) (cut bool)
	last   []byte // what a client hears at a cut
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, target: target, conns: map[net.Conn]struct{}{}, thawed: make(chan struct{})}
	close(p.thawed)
	go p.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		p.thaw()
		p.cut()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		p.mu.Lock()
		p.conns[near], p.conns[far] = struct{}{}, struct{}{}
		p.mu.Unlock()
		go p.forward(near, far, true)
		go p.forward(far, near, false)
	}
}

// forward copies one direction of a connection.
func (p *proxy) forward(from, to net.Conn, up bool) {
	defer p.drop(from, to)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		thawed, filter, last := p.thawed, p.filter, p.last
		p.mu.Unlock()
		<-thawed
		if n > 0 && filter != nil && filter(up, buffer[:n]) {
			if !up {
				_, _ = to.Write(last)
			}
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// freeze makes the server silent until thaw.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed = make(chan struct{})
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
	default:
		close(p.thawed)
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// watch sets a function that sees all data, and cuts a connection by returning true.
func (p *proxy) watch(filter func(up bool, data []byte) (cut bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filter = filter
}
