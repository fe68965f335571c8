package redistest

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Faults makes the connections of a go-redis client misbehave. Faults sits in the client's Dialer,
// inside the test process, and parses the passing commands, so that a test can aim a fault at one
// command.
//
// Rules make faults of single commands ([Faults.On]). Cut, Partition, Refuse, StallPubSub and Delay
// are faults of the network. All faults combine. For a fault of one node only, give a Dialer that
// picks one of two Faults by address.
//
// The wire is a model of TCP, with these rules:
//
//   - Each direction keeps its order: a command behind a held-back command waits, as in a socket.
//   - A write never blocks. Commands written before the client closed the connection, or saw the
//     connection break, still reach the server: at once, on release, or after the partition. Only
//     [Faults.Close] throws commands away. So commands can run late, after their client gave up.
//   - The server sees the end of a connection behind all commands on the way to the server.
//   - A silent connection (partition, stall) passes nothing in either direction, not even the end
//     of the connection. Replies that arrive meanwhile are delivered after Heal.
//
// All methods may be called at any time, from anywhere, also from [Before] and [After] functions.
// The exceptions are the methods that wait: Close and [Rule.Release].
type Faults struct {
	wg    sync.WaitGroup // two goroutines for each connection
	bytes bool           // no commands are known, see NewByteFaults

	mu          sync.Mutex
	dials       bell // rung when dials should look again
	closed      bool
	partitioned bool
	refuse      bool
	up, down    time.Duration // delay towards the server, towards the client
	rules       []*Rule       // replaced, never written to
	conns       map[*conn]struct{}
	stats       Stats
}

// Stats counts the traffic.
type Stats struct {
	Commands   map[string]int // put on the wire towards the server, by upper-case name, copies included
	Sent       int64          // bytes of the commands
	Received   int64          // bytes of replies and messages from the server
	RoundTrips int            // times that a connection was written to after a read; a pipeline is one
	Dials      int            // connections made
}

// NewFaults returns Faults without a fault. Its goroutines end when the client has closed all
// connections and nothing is held back, or with Close.
func NewFaults() *Faults {
	return &Faults{
		conns: map[*conn]struct{}{},
		stats: Stats{Commands: map[string]int{}},
	}
}

// NewByteFaults returns Faults for connections to a server of another kind: bytes pass as they come,
// so there are faults of the network and no rules.
func NewByteFaults() *Faults {
	f := NewFaults()
	f.bytes = true
	return f
}

// DialFunc is the type of go-redis's Dialer options.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer returns a Dialer for redis.Options and its relatives. The Dialer dials with base, or with
// a net.Dialer if base is nil.
func (f *Faults) Dialer(base DialFunc) DialFunc {
	if base == nil {
		base = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		fail := func(err error) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		if err := f.mayDial(ctx); err != nil {
			return fail(err)
		}
		wire, err := base(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &conn{f: f, real: wire}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.closed {
			_ = wire.Close()
			return fail(net.ErrClosed)
		}
		f.conns[c] = struct{}{}
		f.stats.Dials++
		f.wg.Go(c.sendLoop)
		f.wg.Go(c.receiveLoop)
		return c, nil
	}
}

// mayDial waits while the network is partitioned, and for one round trip of the delay, as a TCP
// handshake does.
func (f *Faults) mayDial(ctx context.Context) error {
	var delay <-chan time.Time
	for {
		f.mu.Lock()
		changed, wait := f.dials.changeLocked(), f.partitioned
		switch {
		case f.closed:
			f.mu.Unlock()
			return net.ErrClosed
		case f.refuse:
			f.mu.Unlock()
			return os.NewSyscallError("connect", syscall.ECONNREFUSED)
		case !wait && delay == nil:
			if f.up+f.down == 0 {
				f.mu.Unlock()
				return nil
			}
			delay = time.After(f.up + f.down)
		}
		f.mu.Unlock()
		arrived := delay
		if wait {
			arrived = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-arrived:
			return nil
		}
	}
}

// Close breaks all connections, throws away held-back commands and bytes on the way, and waits
// until no goroutine is left. Later dials fail.
func (f *Faults) Close() {
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		c.abandonLocked()
	}
	f.dials.ringLocked()
	f.mu.Unlock()
	f.wg.Wait()
}

// Cut breaks all connections of now. The client reads EOF at once, and bytes on the way to the
// client are lost.
func (f *Faults) Cut() { f.cut(func(*conn) bool { return true }) }

// CutPubSub is Cut for connections with a subscription.
func (f *Faults) CutPubSub() { f.cut(func(c *conn) bool { return c.subscriber }) }

func (f *Faults) cut(which func(*conn) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if which(c) {
			c.cutLocked(io.EOF)
		}
	}
}

// Partition makes every connection silent and lets dials hang until their context
// ends, until Heal. The client sees no error but its own timeouts.
func (f *Faults) Partition() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.partitioned = true
	f.signalAllLocked()
}

// Refuse lets dials fail with "connection refused" until Heal. Open connections go on. Cut and
// Refuse together are a server that is down.
func (f *Faults) Refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = true
	f.signalAllLocked()
}

// StallPubSub makes the connections with a subscription silent until Heal: half-open, as after a
// firewall forgot them. Later connections work; see [Stall] for a stall of later connections.
func (f *Faults) StallPubSub() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if c.subscriber {
			c.stalled = true
			c.signalLocked()
		}
	}
}

// Heal ends Partition, Refuse, StallPubSub and Stall. Bytes on the way arrive now.
func (f *Faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.partitioned, f.refuse = false, false
	for c := range f.conns {
		c.stalled = false
	}
	f.signalAllLocked()
}

// Delay makes every round trip last roundTrip longer, half in each direction. The link becomes no
// narrower: a pipeline is delayed once. Delay(0) ends the delay for later writes.
func (f *Faults) Delay(roundTrip time.Duration) {
	f.DelayOneWay(roundTrip/2, roundTrip-roundTrip/2)
}

// DelayOneWay is Delay with a different delay towards the server (up) and towards
// the client (down).
func (f *Faults) DelayOneWay(up, down time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.up, f.down = up, down
}

// Commands returns the number of commands with these names that were put on the wire towards the
// server since the last Reset. Without names, Commands counts all.
func (f *Faults) Commands(names ...string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0
	for name, n := range f.stats.Commands {
		if len(names) == 0 || slices.ContainsFunc(names, func(s string) bool { return strings.EqualFold(s, name) }) {
			sum += n
		}
	}
	return sum
}

// Stats returns the counters since the last Reset.
func (f *Faults) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Commands = maps.Clone(s.Commands)
	return s
}

// Reset sets all counters to 0.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats = Stats{Commands: map[string]int{}}
}

// Conns returns the number of open connections of the client, and the number with a subscription.
func (f *Faults) Conns() (all, pubsub int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if c.goneLocked() {
			continue
		}
		all++
		if c.subscriber {
			pubsub++
		}
	}
	return all, pubsub
}

func (f *Faults) signalAllLocked() {
	f.dials.ringLocked()
	for c := range f.conns {
		c.signalLocked()
	}
}

// Match chooses commands. args[0] is the name as the client wrote the name. Match is called once
// for each command, in the client's Write. A Match may call the methods of Faults, but must not
// wait.
type Match func(args []string) bool

// Any matches every command, the handshake of a new connection included.
func Any(args []string) bool { return true }

// Named matches commands by name, in any case.
func Named(names ...string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(names, func(s string) bool { return strings.EqualFold(s, args[0]) })
	}
}

// WithArg matches commands with text in an argument.
func WithArg(text string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(args[1:], func(a string) bool { return strings.Contains(a, text) })
	}
}

// And matches commands that match both.
func (m Match) And(other Match) Match {
	return func(args []string) bool { return m(args) && other(args) }
}

// Break is the way in which a connection breaks for the client.
type Break int

const (
	EOF     Break = iota // the other side closed the connection
	Reset                // "connection reset by peer"
	Silence              // nothing: the client waits until its own deadline
)

func (b Break) err() error {
	if b == Reset {
		return os.NewSyscallError("read", syscall.ECONNRESET)
	}
	return io.EOF
}

// Keep chooses the reply of a duplicated command for the client.
type Keep int

const (
	Last Keep = iota
	First
)

// Action is the effect of a rule on a command.
type Action struct {
	apply func(*command)
	hold  bool
}

// DropReply lets the server execute the command, and breaks the connection in place of the reply.
// With Silence, the client reads nothing any more on this connection, while its commands still go
// through.
func DropReply(how Break) Action {
	return Action{apply: func(c *command) { c.dropReply, c.how = true, how }}
}

// CutBefore breaks the connection in place of the command. Neither the command nor later commands
// of the connection reach the server. The client notices with its next read, not while writing.
func CutBefore(how Break) Action {
	return Action{apply: func(c *command) { c.cutBefore, c.how = true, how }}
}

// Hold keeps the command back until [Rule.Release], with all later commands of the connection. Hold
// lasts also if the client closes the connection meanwhile, or the connection is cut.
func Hold() Action {
	return Action{apply: func(*command) {}, hold: true}
}

// Duplicate sends the command n times in a row, and hands one of the replies to the client when all
// have come. Duplicate is not for commands inside MULTI, and not for SUBSCRIBE.
func Duplicate(n int, keep Keep) Action {
	return Action{apply: func(c *command) { c.copies, c.keep = max(1, n), keep }}
}

// Stall makes the connection silent from this command on, as [Faults.StallPubSub] does.
func Stall() Action {
	return Action{apply: func(c *command) { c.stall = true }}
}

// Answer does not send the command, and gives the client reply, such as
// "-LOADING Redis is loading the dataset in memory\r\n". The line end may be left
// out.
func Answer(reply string) Action {
	if !strings.HasSuffix(reply, "\r\n") {
		reply += "\r\n"
	}
	return Action{apply: func(c *command) { c.answer = []byte(reply) }}
}

// Before calls fn just before the command is sent. The command is sent when fn has returned. Only
// this connection waits for fn.
func Before(fn func(args []string)) Action {
	return Action{apply: func(c *command) { c.before = append(c.before, fn) }}
}

// After calls fn when the reply for the client has come; for a SUBSCRIBE, when the last
// confirmation has come. The client gets the reply when fn has returned. Only this connection waits
// for fn.
func After(fn func(args []string, reply string)) Action {
	return Action{apply: func(c *command) { c.after = append(c.after, fn) }}
}

// Rule is an action for all commands of a Match. If several rules match a command, all act on the
// command, in the order in which the rules were made.
type Rule struct {
	f      *Faults
	match  Match
	action Action

	// guarded by f.mu
	skip  int
	limit int // < 0: none
	hits  int
	held  []*held // not yet released
	freed []*held // released and not yet seen by Release
}

// held is a command kept back by a rule. The command is open after the rule has released the
// command.
type held struct {
	conn *conn         // nil until the connection has accepted the command
	open bool          // guarded by Faults.mu
	done chan struct{} // closed when the reply has come, or never will

	// readable once done is closed
	reply string
	err   error
}

// On makes a rule for every match. The rule acts at once.
func (f *Faults) On(match Match, action Action) *Rule { return f.add(match, action, -1) }

// Once makes a rule for the first match only. On(...).Times(1) leaves a moment in which a second
// command could match, and Once does not.
func (f *Faults) Once(match Match, action Action) *Rule { return f.add(match, action, 1) }

func (f *Faults) add(match Match, action Action, limit int) *Rule {
	r := &Rule{f: f, match: match, action: action, limit: limit}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(slices.Clone(f.rules), r)
	return r
}

// Times limits the rule to n matches, earlier matches included.
func (r *Rule) Times(n int) *Rule {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.limit = n
	return r
}

// Skip lets the next n matches pass. A skipped match is no hit.
func (r *Rule) Skip(n int) *Rule {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.skip = n
	return r
}

// Hits returns how many commands the rule has acted on.
func (r *Rule) Hits() int {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return r.hits
}

// WaitHits waits until the rule has acted on n commands, and fails the test after ten seconds.
func (r *Rule) WaitHits(t testing.TB, n int) {
	t.Helper()
	Eventually(t, callLimit, func() bool { return r.Hits() >= n }, "%d commands matched the rule", n)
}

// Remove ends the rule. Held-back commands stay so until Release.
func (r *Rule) Remove() {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.f.rules = slices.DeleteFunc(slices.Clone(r.f.rules), func(o *Rule) bool { return o == r })
	r.limit = 0
}

// Release sends the held-back commands of a [Hold] rule, and waits until the server has answered
// all. Release returns the replies as text, in the order of the commands. The test fails if the
// server does not answer in ten seconds. The rule goes on to hold later matches.
func (r *Rule) Release(t testing.TB) []string {
	t.Helper()
	r.LetGo()
	r.f.mu.Lock()
	freed := r.freed
	r.freed = nil
	r.f.mu.Unlock()
	limit := time.After(callLimit)
	var replies []string
	for i, h := range freed {
		select {
		case <-h.done:
		case <-limit:
			t.Fatalf("redistest: command %d of %d that was held back has no reply %v after its release", i+1, len(freed), callLimit)
		}
		if h.err != nil {
			t.Fatalf("redistest: command %d of %d that was held back: %v", i+1, len(freed), h.err)
		}
		replies = append(replies, h.reply)
	}
	return replies
}

// LetGo is Release without waiting.
func (r *Rule) LetGo() {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	for _, h := range r.held {
		h.open = true
		if h.conn != nil {
			h.conn.signalLocked()
		}
	}
	r.freed = append(r.freed, r.held...)
	r.held = nil
}

// act lets the rule act on a matching command, unless the rule is over. A command counts as a hit
// and as held at the same moment, so that a test can release the command after WaitHits.
func (r *Rule) act(c *command) {
	if !r.match(c.args) {
		return
	}
	r.f.mu.Lock()
	switch {
	case r.limit >= 0 && r.hits >= r.limit:
		r.f.mu.Unlock()
		return
	case r.skip > 0:
		r.skip--
		r.f.mu.Unlock()
		return
	}
	r.hits++
	if r.action.hold {
		h := &held{done: make(chan struct{})}
		c.holds = append(c.holds, h)
		r.held = append(r.held, h)
	}
	r.f.mu.Unlock()
	r.action.apply(c)
}

// errThrownAway is the error of Release for a command that can no longer run.
var errThrownAway = errors.New("its connection ended before it was answered")
