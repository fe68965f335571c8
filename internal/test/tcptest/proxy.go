// Package tcptest puts a network with faults between clients and a server of any kind, for tests.
package tcptest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a network between clients and a server. It can stall and cut the connections.
type Proxy struct {
	server  string
	address string

	mu     sync.Mutex
	conns  map[net.Conn]bool // true: of a client
	open   chan struct{}     // closed while bytes pass
	held   chan struct{}     // closed when bytes are held back
	half   bool              // the clients are cut off, and the server does not notice
	silent bool              // answers of the server are thrown away
	passes int               // so many answers pass before that
	lost   chan struct{}     // closed when an answer is thrown away; nil: nobody asks
	delay  time.Duration     // of each way
	watch  func(request bool, data []byte) (cut bool)
	last   []byte // of Farewell
	closed bool

	close func()
}

// NewProxy starts a Proxy before a server.
func NewProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		server: server, address: listener.Addr().String(),
		conns: make(map[net.Conn]bool), open: make(chan struct{}),
	}
	close(p.open)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(client) })
		}
	})
	p.close = sync.OnceFunc(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.Resume()
		p.Cut()
		all.Wait()
	})
	t.Cleanup(p.close)
	return p
}

// Close ends the proxy and its connections. The end of the test does so too.
func (p *Proxy) Close() { p.close() }

// Address returns the address for clients.
func (p *Proxy) Address() string { return p.address }

// Stall holds all bytes back, in both directions, until Resume. The channel is closed when bytes
// are held back.
func (p *Proxy) Stall() (held <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default: // Resume ends both
	}
	p.held = make(chan struct{})
	return p.held
}

// Delay holds all bytes back for that long, in each direction, until Resume.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Resume ends all other faults but a Cut.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent, p.half, p.delay = false, false, 0
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// LoseAnswers throws the answers of the server away until Resume. Requests pass.
func (p *Proxy) LoseAnswers() { p.LoseAnswersAfter(0) }

// LoseAnswersAfter is LoseAnswers after n answers that pass. The channel is closed when an answer
// is lost.
func (p *Proxy) LoseAnswersAfter(n int) (lost <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent, p.passes, p.lost = true, n, make(chan struct{})
	return p.lost
}

// loses says whether to throw an answer away.
func (p *Proxy) loses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.silent {
		return false
	}
	if p.passes > 0 {
		p.passes--
		return false
	}
	if p.lost != nil {
		close(p.lost)
		p.lost = nil
	}
	return true
}

// Watch sets a function that sees all bytes, of requests and of answers, and cuts a connection by
// returning true. nil ends that.
func (p *Proxy) Watch(watch func(request bool, data []byte) (cut bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = watch
}

// Farewell sets the bytes that a client reads in place of an answer at which Watch cuts.
func (p *Proxy) Farewell(last []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = last
}

// Cut closes all connections, and ends a LoseAnswers: no connection goes on behind a hole.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = false
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// CutClients closes all connections at the side of the clients, and refuses new ones until Resume.
// The server does not notice: its connections stay open and silent, until the server closes them.
func (p *Proxy) CutClients() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.half = true
	for conn, client := range p.conns {
		if client {
			_ = conn.Close()
		}
	}
}

func (p *Proxy) isHalf() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.half
}

func (p *Proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	p.mu.Lock()
	refused := p.half || p.closed
	p.conns[client], p.conns[server] = true, false
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
		delete(p.conns, server)
	}()
	if refused {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client, false) })
	both.Go(func() { p.copy(client, server, true) })
	both.Wait()
}

// copy passes bytes on until one side is closed, and then closes the other side. Without the client
// the bytes of the server are thrown away.
func (p *Proxy) copy(to, from net.Conn, answers bool) {
	defer func() {
		if answers || !p.isHalf() {
			_ = to.Close()
		}
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		watch, last := p.pass()
		if n > 0 && watch != nil && watch(!answers, buffer[:n]) {
			if answers {
				_, _ = to.Write(last)
			}
			return
		}
		if n > 0 && !(answers && p.loses()) {
			if _, err := to.Write(buffer[:n]); err != nil && !(answers && p.isHalf()) {
				return
			}
		}
		if err != nil {
			if err != io.EOF { // as io.Reader says
				_ = from.Close()
			}
			return
		}
	}
}

// pass waits while bytes are held back. It returns what Watch and Farewell have set.
func (p *Proxy) pass() (watch func(request bool, data []byte) (cut bool), last []byte) {
	p.mu.Lock()
	open, delay := p.open, p.delay
	watch, last = p.watch, p.last
	select {
	case <-open:
	default:
		if p.held != nil {
			close(p.held)
			p.held = nil
		}
	}
	p.mu.Unlock()
	if delay > 0 {
		<-time.After(delay)
	}
	<-open
	return watch, last
}
