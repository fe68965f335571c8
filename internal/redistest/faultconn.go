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

// conn is the client's side of a connection. Three parties meet in it, all under
// Faults.mu: the client, which writes into queue and reads from inbox; sendLoop,
// which moves commands from queue to the server; receiveLoop, which moves replies
// from the server to inbox.
//
//	client ── Write ──> queue ── sendLoop ──> server
//	client <── Read ─── inbox <─ receiveLoop ── server
//
// sendLoop owns the real connection: it closes it when the client is gone and
// nothing is left to send, which ends receiveLoop. Both belong to Faults.wg.
type conn struct {
	f    *Faults
	real net.Conn

	wmu        sync.Mutex // one Write at a time; taken before Faults.mu
	partial    []byte     // guarded by wmu: the start of a command
	lastAsking []byte     // guarded by wmu: ASKING, if it was the last command

	// guarded by Faults.mu
	sender     bell        // rung when sendLoop should look again
	reader     bell        // rung when Read should look again
	queue      []*command  // written by the client, not yet on the wire
	pending    []*expected // on the wire, reply not yet come
	inbox      []chunk     // come, not yet read by the client
	finDue     time.Time   // when the client's end of the connection arrives
	late       int         // commands held back at some time that have no reply yet
	subscriber bool        // it has sent SUBSCRIBE or the like
	stalled    bool        // silent until Heal
	mute       bool        // what the client writes is lost
	deaf       bool        // what the server sends is lost
	waiting    bool        // the client has not read since it last wrote
	closed     bool        // by the client
	broken     error       // what the client reads after inbox
	cut        bool        // broken at once, even if silent
	flush      bool        // the client left while something was kept from the server
	halfClosed bool        // the server has been told that nothing more comes
	ended      bool        // the server's end is gone, nothing can be sent
	left       bool        // sendLoop has returned
	readLimit  time.Time
	writeLimit time.Time
}

// command is one command of the client and what the rules made of it.
type command struct {
	name   string // upper case
	args   []string
	raw    []byte
	due    time.Time // when the delay towards the server is over
	called bool      // its before functions have run

	asking    []byte // the ASKING before it: it counts once, so each copy needs its own
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

// finish tells whoever released the command how it ended.
func (c *command) finish(reply string, err error) {
	for _, h := range c.holds {
		h.reply, h.err = reply, err
		close(h.done)
	}
}

// expected is a reply that must come, as replies come in the order of commands.
type expected struct {
	cmd    *command
	pushes int    // messages still to come that make up the reply to a SUBSCRIBE, 0 for others
	keep   bool   // this copy's reply is for the client
	last   bool   // with it the command is done
	answer []byte // the reply, if the server is not asked
}

// chunk is what the client reads next: bytes or the end of the connection.
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

// bell wakes the goroutines that wait for a change of what Faults.mu guards.
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

// leaveLocked is called when the client is gone. What it wrote goes on to the
// server. If some of that cannot go now, sendLoop must see to it later that the
// server has read it all before the connection is closed.
func (c *conn) leaveLocked() {
	c.flush = c.late > 0 || c.silentLocked()
	c.finDue = time.Now().Add(c.f.up)
	c.signalLocked()
}

// breakLocked ends the connection for the client, after what has arrived.
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

// arrivalLocked returns when what the server sends now reaches the client; never
// before what it sent earlier.
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

// Write takes commands from the client, lets the rules act on them and queues
// them. It never blocks.
func (c *conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.f.mu.Lock()
	err := c.writeErrorLocked()
	c.f.mu.Unlock()
	if err != nil {
		return 0, c.opError("write", err)
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

// writeErrorLocked is what the client sees of an end of the connection when it
// writes. It cannot see one that has not reached it.
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

// sendLoop moves commands to the server until the client is gone and all it wrote
// has been sent, or the server's end is gone.
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

// next waits for something to do: bytes to send, or a command whose Before
// functions must run first. Not ok means that all is done.
func (c *conn) next() (batch []byte, before *command, ok bool) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	for {
		if c.ended {
			return nil, nil, false
		}
		var due time.Time // of the next thing that only needs time
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

// finishedLocked reports whether the connection can be closed, now that the client
// is gone and everything is sent. The reply to a command that was held back is
// waited for: the test wants to know that it has been executed. For the others
// the server is only told that nothing more comes, which it reads after all the
// commands and answers by closing, also if one of them blocks for ever; a plain
// close could make it drop what it has not read.
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

// waitLocked gives up the mutex until b rings or the time has come, if there is
// one.
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

// wireLocked returns the bytes of a command that goes to the server now, and
// expects the replies.
func (c *conn) wireLocked(cmd *command) []byte {
	if cmd.answer != nil {
		c.pending = append(c.pending, &expected{cmd: cmd, keep: true, last: true, answer: cmd.answer})
		return nil
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
	replies := newReplyReader(c.real)
	for {
		raw, err := replies.read()
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

// receive finds the command that raw answers and hands raw to the client, if the
// rules let it.
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
		// e stays at the head of pending meanwhile, so that no answer passes it.
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
		c.sender.ringLocked() // it may wait for the last reply
	}
}

// answeredLocked returns what raw is the reply to, nil for a message that is no
// reply.
func (c *conn) answeredLocked(raw []byte) *expected {
	kind := pushKind(raw, c.subscriber)
	if len(c.pending) == 0 {
		return nil
	}
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

// handOverLocked gives a reply to the client, unless a rule is against it.
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

// Read gives the client what has arrived, and waits for it until the deadline.
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

// Close ends the connection for the client. What it wrote still goes to the
// server; see Faults.
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

// forgetLocked drops a connection that has ended on both sides. While the client
// has it open, Heal and Cut must still find it.
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

// SyscallConn lets go-redis find out, before it uses a connection from its pool
// again, that it has ended, as it does with a real one; without it, the first
// command after a Cut would fail on every idle connection, which happens in life
// only where that does not show, as over TLS. [CutBefore] is for the connection that breaks right after that look.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.writeErrorLocked(); err != nil {
		return nil, err
	}
	return healthy{}, nil
}

// healthy is a RawConn without a file descriptor: there is nothing to be seen on
// it.
type healthy struct{}

func (healthy) Control(func(uintptr)) error    { return nil }
func (healthy) Read(func(uintptr) bool) error  { return nil }
func (healthy) Write(func(uintptr) bool) error { return nil }
