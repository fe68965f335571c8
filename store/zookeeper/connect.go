package relockzk

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

// dialLimit bounds the look-up of the names before a round of attempts to connect.
const dialLimit = time.Second

// hosts is the list of servers for zk.Conn, which asks for the next server when it connects. Each
// round resolves the names anew, as a server may have moved. A name that has no address stays in
// the list: dialling it fails, and the other servers serve meanwhile.
type hosts struct {
	servers   []string
	addresses []string // of this round, in a random order
	next      int
	tries     int // since the last connection, which counts as one, or the last pause
}

// Init implements [zk.HostProvider]. Init asks nobody.
func (h *hosts) Init(servers []string) error {
	h.servers = servers
	for _, server := range servers {
		if _, _, err := net.SplitHostPort(server); err != nil {
			return err
		}
	}
	return nil
}

// Len implements [zk.HostProvider].
func (h *hosts) Len() int { return len(h.servers) }

// Next implements [zk.HostProvider]. After a round without a connection zk.Conn pauses.
func (h *hosts) Next() (address string, pause bool) {
	if h.next == len(h.addresses) {
		h.resolve()
	}
	address = h.addresses[h.next]
	h.next++
	if h.tries++; h.tries > len(h.addresses) {
		h.tries, pause = 1, true
	}
	return address, pause
}

// Connected implements [zk.HostProvider].
func (h *hosts) Connected() { h.tries = 1 }

func (h *hosts) resolve() {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	h.addresses, h.next = nil, 0
	for _, server := range h.servers {
		host, port, _ := net.SplitHostPort(server)
		all, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			all = []string{host}
		}
		for _, address := range all {
			h.addresses = append(h.addresses, net.JoinHostPort(address, port))
		}
	}
	rand.Shuffle(len(h.addresses), func(i, j int) {
		h.addresses[i], h.addresses[j] = h.addresses[j], h.addresses[i]
	})
}

// dial connects to a server. zk.Conn does not tell why it cannot connect, and not the timeout of
// the session, so dial and conn note both.
func (x *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := x.store.dial(ctx, network, address)
	if err != nil {
		x.failed(err, false)
		return nil, err
	}
	if host, _, err := net.SplitHostPort(c.LocalAddr().String()); err == nil {
		x.address.Store(host)
	}
	return &conn{Conn: c, session: x, server: address}, nil
}

// conn is a connection that shows its first answer to a session.
type conn struct {
	net.Conn
	session *session
	server  string
	head    []byte // of the first answer
}

// Sizes of a first answer: of its length, its version and the timeout at its begin, and the most
// that a server of ZooKeeper sends.
const (
	headSize  = 12
	mostFirst = 1 << 10
)

// SetReadDeadline bounds the wait for bytes to two beats, see session.beat: then zk.Conn tries the
// next server. By itself zk.Conn would wait for two thirds of a session, which is longer than most
// leases last, and for the first answer even longer.
func (c *conn) SetReadDeadline(t time.Time) error {
	if limit := time.Now().Add(max(2*c.session.interval(), dialLimit)); t.After(limit) {
		t = limit
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if len(c.head) == headSize {
		return n, err
	}
	c.head = append(c.head, b[:min(n, headSize-len(c.head))]...)
	switch {
	case len(c.head) >= 4 && binary.BigEndian.Uint32(c.head) > mostFirst:
		err = fmt.Errorf("%s is no server of ZooKeeper: its first answer begins with %q", c.server, c.head)
		c.session.failed(err, true)
		return 0, err
	case len(c.head) == headSize:
		if ms := binary.BigEndian.Uint32(c.head[headSize-4:]); ms > 0 {
			c.session.timeout.Store(int64(time.Duration(ms) * time.Millisecond))
			c.session.trouble.Store(nil)
		}
	case err != nil:
		c.session.failed(fmt.Errorf("%s gives no first answer: %w", c.server, err), false)
	}
	return n, err
}
