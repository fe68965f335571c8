package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// network makes the connections of a go-redis client, and breaks them.
type network struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	down  bool
}

// dial is a Dialer for redis.Options.
func (n *network) dial(ctx context.Context, proto, addr string) (net.Conn, error) {
	if n.isDown() {
		return nil, &net.OpError{Op: "dial", Net: proto, Err: syscall.ECONNREFUSED}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, proto, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.Join(syscall.ECONNREFUSED, conn.Close())
	}
	if n.conns == nil {
		n.conns = make(map[net.Conn]struct{})
	}
	n.conns[conn] = struct{}{}
	return &connection{conn, n}, nil
}

func (n *network) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down
}

// cut breaks every connection. A network that is down makes no new connections until up is called.
func (n *network) cut(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	for conn := range n.conns {
		_ = conn.Close() // go-redis reads an error
	}
	clear(n.conns)
}

func (n *network) up() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}

type connection struct {
	net.Conn
	network *network
}

func (c *connection) Close() error {
	c.network.mu.Lock()
	delete(c.network.conns, c.Conn)
	c.network.mu.Unlock()
	return c.Conn.Close()
}
