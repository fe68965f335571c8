package main

import (
	"context"
	"net"
	"runtime"
	"sync"
	"time"
)

// link is a way to the server with a longer round trip. The proxy is a process of its own, so that
// its CPU does not count as the clients', and its sleeping threads do not hinder their goroutines.
type link struct {
	Target    string
	RoundTrip time.Duration

	addr    string
	process *child
}

func (l *link) start() (err error) {
	l.process, l.addr, err = startChild(task{Proxy: l})
	return err
}

// run is the proxy's process.
func (l *link) run() error {
	runtime.GOMAXPROCS(2*runtime.NumCPU() + 4) // a thread asleep in a system call keeps a P for a while
	p, err := newProxy(l.Target, l.RoundTrip)
	if err != nil {
		return err
	}
	defer p.close()
	return ready(p.addr())
}

// proxy is a TCP proxy on loopback. The proxy delays all data, and does not limit the throughput.
type proxy struct {
	listener net.Listener
	target   string
	up, down *delayLine
	accepted sync.WaitGroup // and the two readers of each connection

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

func newProxy(target string, roundTrip time.Duration) (*proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{
		listener: listener, target: target, conns: map[net.Conn]struct{}{},
		up: newDelayLine(roundTrip / 2), down: newDelayLine(roundTrip - roundTrip/2),
	}
	p.accepted.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		far, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(context.Background(), "tcp", p.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		if !p.keep(near, far) {
			return
		}
		p.accepted.Go(func() { p.pass(near, far, p.up) })
		p.accepted.Go(func() { p.pass(far, near, p.down) })
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
		} else {
			p.conns[c] = struct{}{}
		}
	}
	return !p.closed
}

// pass puts all data from a connection on the line to another connection.
func (p *proxy) pass(from, to net.Conn, line *delayLine) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			line.put(to, append([]byte(nil), buf[:n]...))
		}
		if err != nil {
			line.put(to, nil)
			p.mu.Lock()
			delete(p.conns, from)
			p.mu.Unlock()
			return
		}
	}
}

// close breaks all connections and returns when nothing of the proxy is left.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.accepted.Wait()
	p.up.close()
	p.down.close()
}

// delayLine delivers each parcel a fixed time after put, in order. A goroutine on a thread of its
// own serves all connections, as the runtime's timers are up to a millisecond late on Linux, and
// the delay may be as short.
type delayLine struct {
	delay time.Duration
	done  chan struct{}

	mu     sync.Mutex
	some   *sync.Cond
	queue  []parcel
	closed bool
}

type parcel struct {
	due  time.Time
	to   net.Conn
	data []byte // nil: the end
}

func newDelayLine(delay time.Duration) *delayLine {
	l := &delayLine{delay: delay, done: make(chan struct{})}
	l.some = sync.NewCond(&l.mu)
	go l.run()
	return l
}

func (l *delayLine) put(to net.Conn, data []byte) {
	due := time.Now().Add(l.delay)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, parcel{due, to, data})
	l.some.Signal()
}

func (l *delayLine) close() {
	l.mu.Lock()
	l.closed = true
	l.some.Signal()
	l.mu.Unlock()
	<-l.done
}

// blockLimit is how long a receiver that does not read may hold up all connections.
const blockLimit = 5 * time.Second

func (l *delayLine) run() {
	defer close(l.done)
	release := ownThread()
	defer release()
	for {
		l.mu.Lock()
		for len(l.queue) == 0 && !l.closed {
			l.some.Wait()
		}
		batch := l.queue
		l.queue = nil
		l.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, p := range batch {
			sleepExactly(time.Until(p.due))
			if p.data == nil {
				_ = p.to.Close()
				continue
			}
			_ = p.to.SetWriteDeadline(time.Now().Add(blockLimit))
			if _, err := p.to.Write(p.data); err != nil {
				_ = p.to.Close() // pass ends with an error
			}
		}
	}
}
