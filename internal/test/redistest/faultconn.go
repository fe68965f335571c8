package redistest

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// conn is the client's side of a connection. Three parties share a conn, all under Faults.mu. The
// client writes into queue and reads from inbox. sendLoop moves commands from queue to the server.
// receiveLoop moves replies from the server to inbox.
//
//	client ── Write ──> queue ── sendLoop ──> server
//	client <── Read ─── inbox <─ receiveLoop ── server
//
// sendLoop owns the real connection. When the client is gone and nothing is left to send, sendLoop
// closes the real connection, which ends receiveLoop. Both goroutines belong to Faults.wg.
type conn struct {
	f    *Faults
	real net.Conn

	wmu        sync.Mutex // one Write at a time; taken before Faults.mu
	partial    []byte     // guarded by wmu: the start of a command
	lastAsking []byte     // guarded by wmu: ASKING, if the last command was ASKING

	// guarded by Faults.mu
	sender     bell        // rung when sendLoop should look again
	reader     bell        // rung when Read should look again
	queue      []*command  // written by the client, not yet on the wire
	pending    []*expected // on the wire, reply not yet come
	inbox      []chunk     // come, not yet read by the client
	finDue     time.Time   // when the client's end of the connection arrives
	late       int         // commands held back at some time, without a reply yet
	subscriber bool        // SUBSCRIBE or the like was sent
	stalled    bool        // silent until Heal
	mute       bool        // bytes of the client are lost
	deaf       bool        // bytes of the server are lost
	waiting    bool        // the client has not read since it last wrote
	closed     bool        // by the client
	broken     error       // read by the client behind inbox
	cut        bool        // broken at once, even if silent
	flush      bool        // the client left while something was kept from the server
	halfClosed bool        // the server was told the end of the client's bytes
	ended      bool        // the server's end is gone, nothing can be sent
	left       bool        // sendLoop has returned
	readLimit  time.Time
	writeLimit time.Time
}

// command is one command of the client, with the decisions of the rules.
type command struct {
	name   string // upper case
	args   []string
	raw    []byte
	due    time.Time // when the delay towards the server is over
	called bool      // its before functions have run

	asking    []byte // the ASKING before the command: ASKING counts once, and each copy needs its own
	copies    int
	keep      Keep
	kept      []byte // the reply for the client, until all copies have run
	cutBefore bool
	dropReply bool
	how       Break
	stall     bool
	answer    []byte
	holds     []*held
	before    []func(args []string)
	after     []func(args []string, reply string)
}

func (c *command) openLocked() bool {
	for _, h := range c.holds {
		if !h.open {
			return false
		}
	}
	return true
}

// finish gives the reply or the error to the test that releases the command.
func (c *command) finish(reply string, err error) {
	for _, h := range c.holds {
		h.reply, h.err = reply, err
		close(h.done)
	}
}

// expected is a reply still to come. Replies come in the order of commands.
type expected struct {
	cmd    *command
	pushes int    // messages still to come of the reply to a SUBSCRIBE, 0 for other commands
	keep   bool   // the reply of this copy is for the client
	last   bool   // the command is done with this reply
	answer []byte // the reply, if the server is not asked
}

// chunk is the next thing for the client to read: bytes or the end of the connection.
type chunk struct {
	data []byte
	err  error
	due  time.Time
}

// silentLocked reports whether nothing passes now.
func (c *conn) silentLocked() bool { return c.stalled || c.f.partitioned }

// goneLocked reports whether the client can no longer use the connection.
func (c *conn) goneLocked() bool { return c.closed || c.broken != nil }

func (c *conn) signalLocked() {
	c.sender.ringLocked()
	c.reader.ringLocked()
}

// bell wakes the goroutines that wait for a change of the state under Faults.mu.
type bell struct{ waited chan struct{} }

func (b *bell) ringLocked() {
	if b.waited != nil {
		close(b.waited)
		b.waited = nil
	}
}

// changeLocked returns a channel that is closed at the next ring.
func (b *bell) changeLocked() <-chan struct{} {
	if b.waited == nil {
		b.waited = make(chan struct{})
	}
	return b.waited
}

// leaveLocked is called when the client is gone. Commands of the client still go to the server. If
// some commands cannot go now, sendLoop closes the connection later, after the server has read all.
func (c *conn) leaveLocked() {
	c.flush = c.late > 0 || c.silentLocked()
	c.finDue = time.Now().Add(c.f.up)
	c.signalLocked()
}

// breakLocked ends the connection for the client, behind the bytes in the inbox.
func (c *conn) breakLocked(err error) {
	if c.goneLocked() {
		return
	}
	c.broken = err
	c.inbox = append(c.inbox, chunk{err: err, due: c.arrivalLocked()})
	c.leaveLocked()
}

// cutLocked ends the connection for the client now.
func (c *conn) cutLocked(err error) {
	if c.closed || c.cut {
		return
	}
	was := c.broken
	c.broken, c.cut, c.inbox = err, true, nil
	if was == nil {
		c.leaveLocked()
	}
	c.signalLocked()
}

// abandonLocked ends both sides of the connection.
func (c *conn) abandonLocked() {
	c.cutLocked(net.ErrClosed)
	c.endLocked()
	_ = c.real.Close() // wakes both loops
}

// endLocked is called when nothing can pass between here and the server any more.
func (c *conn) endLocked() {
	c.ended = true
	for _, e := range c.pending {
		if e.last {
			e.cmd.finish("", errThrownAway)
		}
	}
	for _, cmd := range c.queue {
		cmd.finish("", errThrownAway)
	}
	c.pending, c.queue, c.late = nil, nil, 0
	c.signalLocked()
}

// arrivalLocked returns when bytes sent by the server now reach the client: never before earlier
// bytes.
func (c *conn) arrivalLocked() time.Time {
	due := time.Now().Add(c.f.down)
	if n := len(c.inbox); n > 0 && c.inbox[n-1].due.After(due) {
		due = c.inbox[n-1].due
	}
	return due
}

// opError is how package net reports errors.
func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Write parses the client's commands, lets the rules act on each command, and queues the commands.
// Write never blocks.
func (c *conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.f.mu.Lock()
	err := c.writeErrorLocked()
	c.f.mu.Unlock()
	if err != nil {
		return 0, c.opError("write", err)
	}
	if c.f.bytes {
		c.f.mu.Lock()
		defer c.f.mu.Unlock()
		c.acceptLocked(&command{raw: bytes.Clone(p), copies: 1})
		return len(p), nil
	}
	c.partial = append(c.partial, p...)
	var cmds []*command
	for {
		args, n, err := parseCommand(c.partial)
		if err != nil {
			return 0, c.opError("write", err)
		}
		if n == 0 {
			break
		}
		raw := bytes.Clone(c.partial[:n])
		c.partial = c.partial[n:]
		if len(args) == 0 {
			continue
		}
		cmd := c.plan(args, raw)
		cmds = append(cmds, cmd)
		if cmd.cutBefore {
			c.partial = nil // lost, and not to be hit by any rule
			break
		}
	}
	// All at once: the reply to the first must not break the connection before the
	// last is written.
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	for _, cmd := range cmds {
		c.acceptLocked(cmd)
	}
	return len(p), nil
}

// plan lets the rules act on a command. Their functions run outside Faults.mu.
func (c *conn) plan(args []string, raw []byte) *command {
	cmd := &command{name: strings.ToUpper(args[0]), args: args, raw: raw, copies: 1}
	c.f.mu.Lock()
	rules := c.f.rules
	c.f.mu.Unlock()
	for _, r := range rules {
		r.act(cmd)
	}
	return cmd
}

// acceptLocked puts a command into the queue, or loses it.
func (c *conn) acceptLocked(cmd *command) {
	asking := c.lastAsking
	c.lastAsking = nil
	if cmd.name == "ASKING" {
		c.lastAsking = cmd.raw
	}
	if c.goneLocked() || c.ended || c.mute {
		cmd.finish("", errThrownAway)
		return
	}
	if cmd.cutBefore {
		cmd.finish("", errThrownAway)
		if cmd.how == Silence {
			c.mute, c.deaf = true, true
		} else {
			c.breakLocked(cmd.how.err())
		}
		return
	}
	cmd.asking = asking
	c.subscriber = c.subscriber || isPubSub(cmd.name)
	c.stalled = c.stalled || cmd.stall
	if len(cmd.holds) > 0 {
		c.late++
		for _, h := range cmd.holds {
			h.conn = c
		}
	}
	cmd.due = time.Now().Add(c.f.up)
	if n := len(c.queue); n > 0 && c.queue[n-1].due.After(cmd.due) {
		cmd.due = c.queue[n-1].due
	}
	if !c.waiting {
		c.waiting = true
		c.f.stats.RoundTrips++
	}
	c.queue = append(c.queue, cmd)
	c.sender.ringLocked()
}

// writeErrorLocked returns the error of a write by the client now. While the connection is silent,
// the client does not see the end of the server's side.
func (c *conn) writeErrorLocked() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case !c.writeLimit.IsZero() && !time.Now().Before(c.writeLimit):
		return os.ErrDeadlineExceeded
	case c.broken != nil && (c.cut || !c.silentLocked()):
		return os.NewSyscallError("write", syscall.EPIPE)
	}
	return nil
}

// sendLoop moves commands to the server until the server's end is gone, or the client is gone and
// all its commands are sent.
func (c *conn) sendLoop() {
	defer func() {
		c.f.mu.Lock()
		defer c.f.mu.Unlock()
		c.endLocked()
		c.left = true
		c.forgetLocked()
		_ = c.real.Close()
	}()
	for {
		batch, before, ok := c.next()
		if !ok {
			return
		}
		if before != nil {
			for _, fn := range before.before {
				fn(before.args)
			}
			continue
		}
		if _, err := c.real.Write(batch); err != nil {
			return // receiveLoop tells the client
		}
	}
}

// next waits for bytes to send, or for a command whose Before functions must run first. ok is false
// when all is done.
func (c *conn) next() (batch []byte, before *command, ok bool) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	for {
		if c.ended {
			return nil, nil, false
		}
		var due time.Time // when the next step is due that only needs time
		if !c.silentLocked() {
			now := time.Now()
			for len(c.queue) > 0 && c.queue[0].openLocked() {
				cmd := c.queue[0]
				if cmd.due.After(now) {
					due = cmd.due
					break
				}
				if len(cmd.before) > 0 && !cmd.called {
					if len(batch) > 0 {
						break
					}
					cmd.called = true
					return nil, cmd, true
				}
				c.queue = c.queue[1:]
				batch = append(batch, c.wireLocked(cmd)...)
			}
			c.answerLocked()
			if len(batch) > 0 {
				c.f.stats.Sent += int64(len(batch))
				return batch, nil, true
			}
			if c.goneLocked() && len(c.queue) == 0 {
				if c.finDue.After(now) {
					due = c.finDue
				} else if c.finishedLocked() {
					return nil, nil, false
				}
			}
		}
		c.waitLocked(&c.sender, due)
	}
}

// finishedLocked reports whether the connection can be closed, after the client is gone and
// everything is sent. The reply to a held-back command is awaited: Release promises the execution
// of the command. Otherwise, the connection is half-closed if a fault delayed commands. The server
// reads the end behind the commands and closes, even while a command blocks for ever. A full close
// could make the server drop commands before it reads them.
func (c *conn) finishedLocked() bool {
	if c.late > 0 {
		return false
	}
	half, ok := c.real.(interface{ CloseWrite() error })
	if !c.flush || len(c.pending) == 0 || !ok {
		return true
	}
	if !c.halfClosed {
		c.halfClosed = true
		_ = half.CloseWrite() // an error also ends receiveLoop
	}
	return false
}

// waitLocked gives up the mutex until b rings or due has come. A zero due never comes.
func (c *conn) waitLocked(b *bell, due time.Time) {
	changed := b.changeLocked()
	c.f.mu.Unlock()
	defer c.f.mu.Lock()
	if due.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

// wireLocked returns the bytes of a command for the server, and expects the replies.
func (c *conn) wireLocked(cmd *command) []byte {
	if cmd.answer != nil {
		c.pending = append(c.pending, &expected{cmd: cmd, keep: true, last: true, answer: cmd.answer})
		return nil
	}
	if c.f.bytes {
		return cmd.raw
	}
	pushes := 0
	if isPubSub(cmd.name) {
		pushes = max(1, len(cmd.args)-1)
	}
	var wire []byte
	for i := range cmd.copies {
		if i > 0 && cmd.asking != nil {
			c.pending = append(c.pending, &expected{cmd: cmd})
			wire = append(wire, cmd.asking...)
		}
		c.pending = append(c.pending, &expected{
			cmd:    cmd,
			pushes: pushes,
			keep:   cmd.keep == First && i == 0 || cmd.keep == Last && i == cmd.copies-1,
			last:   i == cmd.copies-1,
		})
		wire = append(wire, cmd.raw...)
	}
	c.f.stats.Commands[cmd.name] += cmd.copies
	return wire
}

// answerLocked gives the answers that need no server and are next in order.
func (c *conn) answerLocked() {
	for len(c.pending) > 0 && c.pending[0].answer != nil {
		e := c.pending[0]
		c.pending = c.pending[1:]
		c.settleLocked(e, e.answer)
	}
}

// receiveLoop moves replies and messages to the inbox until the real connection
// ends.
func (c *conn) receiveLoop() {
	read := newReplyReader(c.real).read
	if c.f.bytes {
		buffer := make([]byte, 32<<10)
		read = func() ([]byte, error) {
			n, err := c.real.Read(buffer)
			if n > 0 {
				err = nil // comes again
			}
			return bytes.Clone(buffer[:n]), err
		}
	}
	for {
		raw, err := read()
		if err != nil {
			c.f.mu.Lock()
			defer c.f.mu.Unlock()
			c.breakLocked(err)
			c.endLocked()
			return
		}
		c.receive(raw)
	}
}

// receive finds the command of a reply, and hands raw to the client if the rules allow it.
func (c *conn) receive(raw []byte) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.f.stats.Received += int64(len(raw))
	e := c.answeredLocked(raw)
	if e == nil {
		c.deliverLocked(raw)
		return
	}
	if e.pushes > 1 {
		e.pushes--
		c.handOverLocked(e, raw)
		return
	}
	if e.keep && len(e.cmd.after) > 0 {
		// e stays at the head of pending meanwhile, to keep later answers behind this reply.
		c.f.mu.Unlock()
		for _, fn := range e.cmd.after {
			fn(e.cmd.args, replyText(raw))
		}
		c.f.mu.Lock()
	}
	if c.ended {
		return
	}
	c.pending = c.pending[1:]
	c.settleLocked(e, raw)
	c.answerLocked()
	if c.goneLocked() {
		c.sender.ringLocked() // sendLoop may wait for the last reply
	}
}

// answeredLocked returns the expected reply that raw belongs to, nil for a message outside of
// replies.
func (c *conn) answeredLocked(raw []byte) *expected {
	if c.f.bytes || len(c.pending) == 0 {
		return nil
	}
	kind := pushKind(raw, c.subscriber)
	e := c.pending[0]
	if kind == "" && raw[0] != '>' {
		e.pushes = 0 // an error instead of the confirmations
		return e
	}
	if e.pushes > 0 && strings.EqualFold(kind, e.cmd.name) {
		return e
	}
	return nil
}

// settleLocked ends the wait for a reply.
func (c *conn) settleLocked(e *expected, raw []byte) {
	if e.keep && !e.last {
		e.cmd.kept = raw
		return
	}
	if e.last {
		if len(e.cmd.holds) > 0 {
			c.late--
		}
		e.cmd.finish(replyText(raw), nil)
		if e.cmd.kept != nil {
			e.keep, raw = true, e.cmd.kept
		}
	}
	c.handOverLocked(e, raw)
}

// handOverLocked gives a reply to the client, unless a rule forbids it.
func (c *conn) handOverLocked(e *expected, raw []byte) {
	switch {
	case !e.keep:
	case !e.cmd.dropReply:
		c.deliverLocked(raw)
	case e.cmd.how == Silence:
		c.deaf = true
	default:
		c.breakLocked(e.cmd.how.err())
	}
}

func (c *conn) deliverLocked(raw []byte) {
	if c.deaf || c.goneLocked() {
		return
	}
	c.inbox = append(c.inbox, chunk{data: raw, due: c.arrivalLocked()})
	c.reader.ringLocked()
}

// Read gives the client all arrived bytes, and waits for bytes until the deadline.
func (c *conn) Read(p []byte) (int, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	for {
		now := time.Now()
		var due time.Time
		switch {
		case c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case !c.readLimit.IsZero() && !now.Before(c.readLimit):
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case c.cut:
			return 0, c.readError(c.broken)
		case c.silentLocked() || len(c.inbox) == 0:
		case c.inbox[0].due.After(now):
			due = c.inbox[0].due
		case c.inbox[0].err != nil:
			return 0, c.readError(c.inbox[0].err)
		default:
			n := 0
			for n < len(p) && len(c.inbox) > 0 && c.inbox[0].err == nil && !c.inbox[0].due.After(now) {
				m := copy(p[n:], c.inbox[0].data)
				n += m
				if c.inbox[0].data = c.inbox[0].data[m:]; len(c.inbox[0].data) == 0 {
					c.inbox = c.inbox[1:]
				}
			}
			c.waiting = false
			return n, nil
		}
		if !c.readLimit.IsZero() && (due.IsZero() || c.readLimit.Before(due)) {
			due = c.readLimit
		}
		c.waitLocked(&c.reader, due)
	}
}

func (c *conn) readError(err error) error {
	if err == io.EOF {
		return err
	}
	return c.opError("read", err)
}

// Close ends the connection for the client. Commands already written still go to the server; see
// Faults.
func (c *conn) Close() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	gone := c.goneLocked()
	c.closed, c.inbox = true, nil
	if !gone {
		c.leaveLocked()
	}
	c.forgetLocked()
	c.signalLocked()
	return nil
}

// forgetLocked drops a connection that has ended on both sides. Before the client's Close, Heal and
// Cut must still find the connection.
func (c *conn) forgetLocked() {
	if c.left && c.closed {
		delete(c.f.conns, c)
	}
}

func (c *conn) LocalAddr() net.Addr  { return c.real.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.real.RemoteAddr() }

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetWriteDeadline(t)
	return c.SetReadDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.readLimit = t
	c.reader.ringLocked()
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.writeLimit = t
	return nil
}

// SyscallConn lets go-redis check a pooled connection before each use. Without SyscallConn, the
// first command after a Cut would fail on every idle connection, from which the check saves a
// client of a real server. [CutBefore] is for a connection that breaks right after the check.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.writeErrorLocked(); err != nil {
		return nil, err
	}
	return healthy{}, nil
}

// healthy is a RawConn without a file descriptor, on which go-redis finds no trouble.
type healthy struct{}

func (healthy) Control(func(uintptr)) error    { return nil }
func (healthy) Read(func(uintptr) bool) error  { return nil }
func (healthy) Write(func(uintptr) bool) error { return nil }
