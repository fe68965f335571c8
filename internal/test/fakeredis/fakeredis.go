// Package fakeredis answers the commands of go-redis inside the process: without a server, a system
// call or an allocation. So tests can count, and benchmarks can time, the work of the client alone.
package fakeredis

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server answers the connections of its clients. The zero value is ready.
type Server struct {
	// Script appends the reply to an EVALSHA with these arguments. Script runs with the mutex of the
	// server held, and must not keep args. nil: the reply is 1.
	Script func(reply []byte, args [][]byte) []byte

	Commands, Scripts atomic.Int64
	Bytes             atomic.Int64 // written and read by the clients

	mu    sync.Mutex
	conns []*conn // that have subscribed
}

// Client returns a client of the server, with options that mod changes. The caller closes the
// client.
func (s *Server) Client(mod ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{
		Addr: "127.0.0.1:6379", Protocol: 2, DisableIdentity: true, // go-redis would look a name up
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			c := &conn{server: s}
			c.ready.L = &s.mu
			return c, nil
		},
	}
	for _, m := range mod {
		m(o)
	}
	return redis.NewClient(o)
}

// PublishLocked sends a message to all subscribers of a channel. Script may call PublishLocked.
func (s *Server) PublishLocked(channel, payload []byte) {
	for _, c := range s.conns {
		if c.channels[string(channel)] {
			c.out = AppendStrings(c.out, []byte("message"), channel, payload)
			c.ready.Signal()
		}
	}
}

// Args returns KEYS and ARGV of an EVALSHA.
func Args(args [][]byte) (keys, argv [][]byte) {
	n := number(args[2])
	return args[3 : 3+n], args[3+n:]
}

// number reads digits without an allocation.
func number(digits []byte) (n int) {
	for _, d := range digits {
		n = 10*n + int(d-'0')
	}
	return n
}

// AppendStrings appends a list of strings.
func AppendStrings(to []byte, list ...[]byte) []byte {
	return appendStrings(AppendList(to, len(list)), list...)
}

func appendStrings(to []byte, list ...[]byte) []byte {
	for _, text := range list {
		to = append(strconv.AppendInt(append(to, '$'), int64(len(text)), 10), "\r\n"...)
		to = append(append(to, text...), "\r\n"...)
	}
	return to
}

// AppendList begins a list of n replies.
func AppendList(to []byte, n int) []byte {
	return append(strconv.AppendInt(append(to, '*'), int64(n), 10), "\r\n"...)
}

// AppendInts appends numbers, each as a reply of its own.
func AppendInts(to []byte, list ...int64) []byte {
	for _, n := range list {
		to = append(strconv.AppendInt(append(to, ':'), n, 10), "\r\n"...)
	}
	return to
}

// answer appends the reply to a command.
func (s *Server) answer(c *conn, args [][]byte) {
	s.Commands.Add(1)
	switch name := args[0]; {
	case bytes.EqualFold(name, []byte("EVALSHA")):
		s.Scripts.Add(1)
		if s.Script == nil {
			c.out = AppendInts(c.out, 1)
		} else {
			c.out = s.Script(c.out, args)
		}
	case bytes.EqualFold(name, []byte("SUBSCRIBE")):
		if c.channels == nil {
			c.channels = make(map[string]bool)
			s.conns = append(s.conns, c)
		}
		for _, channel := range args[1:] {
			c.channels[string(channel)] = true
			c.out = appendStrings(AppendList(c.out, 3), []byte("subscribe"), channel)
			c.out = AppendInts(c.out, int64(len(c.channels)))
		}
	case bytes.EqualFold(name, []byte("PING")) && c.channels != nil:
		c.out = AppendStrings(c.out, []byte("pong"), nil)
	case bytes.EqualFold(name, []byte("HELLO")):
		c.out = append(c.out, "-ERR unknown command\r\n"...)
	default:
		c.out = append(c.out, "+OK\r\n"...)
	}
}

// conn is a connection. The mutex of the server guards all of it.
type conn struct {
	server *Server

	in, out  []byte
	args     [][]byte // of the latest command: slices of in
	channels map[string]bool
	ready    sync.Cond
	closed   bool
}

// Write answers the whole commands so far.
func (c *conn) Write(b []byte) (int, error) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	before := len(c.out)
	c.in = append(c.in, b...)
	rest := c.in
	for {
		size := c.parse(rest)
		if size == 0 {
			break
		}
		c.server.answer(c, c.args)
		rest = rest[size:]
	}
	c.in = append(c.in[:0], rest...)
	c.server.Bytes.Add(int64(len(b) + len(c.out) - before))
	c.ready.Signal()
	return len(b), nil
}

// parse reads a command into args, and returns its size; 0: the command is not complete.
func (c *conn) parse(b []byte) (size int) {
	whole := b
	line := func() (n int, ok bool) {
		head, rest, ok := bytes.Cut(b, []byte("\r\n"))
		if !ok {
			return 0, false
		}
		b = rest
		return number(head[1:]), true
	}
	n, ok := line()
	c.args = c.args[:0]
	for ; ok && n > 0; n-- {
		var size int
		if size, ok = line(); !ok || len(b) < size+2 {
			return 0
		}
		c.args = append(c.args, b[:size])
		b = b[size+2:]
	}
	if !ok {
		return 0
	}
	return len(whole) - len(b)
}

// Read waits for replies and messages.
func (c *conn) Read(b []byte) (int, error) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for len(c.out) == 0 && !c.closed {
		c.ready.Wait()
	}
	if c.closed {
		return 0, io.EOF
	}
	n := copy(b, c.out)
	c.out = append(c.out[:0], c.out[n:]...)
	return n, nil
}

func (c *conn) Close() error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.closed = true
	c.ready.Broadcast()
	return nil
}

// Deadlines are not kept, as each answer is there at once.

func (*conn) SetDeadline(time.Time) error      { return nil }
func (*conn) SetReadDeadline(time.Time) error  { return nil }
func (*conn) SetWriteDeadline(time.Time) error { return nil }
func (*conn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*conn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
