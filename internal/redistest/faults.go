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

// Faults makes the connections of a go-redis client misbehave. It sits in the
// client's Dialer, inside the test process, and understands the commands that
// pass, so that a fault can be aimed at one of them.
//
// There are faults of single commands, made by rules ([Faults.On]), and faults of
// the network: Cut, Partition, Refuse, StallPubSub, Delay. They combine. For a
// fault of one node only, give a Dialer that picks one of two Faults by address.
//
// The wire is a model of TCP, with these rules:
//
//   - Each direction keeps its order: what is written behind a command that is
//     held back waits behind it, as in a socket.
//   - A write never blocks, and what has been written before the client closed
//     the connection, or saw it break, still reaches the server: at once, or
//     when it is released or the partition healed. Only [Faults.Close] throws
//     it away. Commands can so run late, after their client gave up.
//   - The server sees the end of a connection only when all that was on the way
//     to it has arrived.
//   - A silent connection (partition, stall) passes nothing in either direction,
//     also no end of the connection. What arrived meanwhile is delivered after
//     Heal.
//
// All methods may be called at any time, from anywhere, also from [Before] and
// [After] functions, except those that wait: Close and [Rule.Release].
type Faults struct {
	wg sync.WaitGroup // two goroutines for each connection

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

// Stats counts what has passed.
type Stats struct {
	Commands   map[string]int // put on the wire towards the server, by upper-case name, copies included
	Sent       int64          // bytes of those commands
	Received   int64          // bytes of replies and messages that the server sent
	RoundTrips int            // times that a connection was written to after it was read from; a pipeline is one
	Dials      int            // connections made
}

// NewFaults returns Faults that do nothing yet. Its goroutines end when the
// client has closed all connections and nothing is held back; Close ends them
// in any case.
func NewFaults() *Faults {
	return &Faults{
		conns: map[*conn]struct{}{},
		stats: Stats{Commands: map[string]int{}},
	}
}

// DialFunc is the type of go-redis's Dialer options.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer returns a Dialer for redis.Options and its relatives. It dials with
// base, or with a net.Dialer if base is nil.
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

// mayDial waits while the network is partitioned, and for one round trip if there
// is a delay: that is what a TCP handshake takes.
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

// Close breaks all connections, throws away what was held back or on the way,
// and waits until no goroutine is left. Dials fail from then on.
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

// Cut breaks all connections of now: the client reads EOF at once, whatever was
// on the way to it is lost.
func (f *Faults) Cut() { f.cut(func(*conn) bool { return true }) }

// CutPubSub is Cut for the connections that have subscribed to something.
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

// Refuse lets dials fail with "connection refused" until Heal; connections that
// are there go on. With Cut it is a server that is down.
func (f *Faults) Refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = true
	f.signalAllLocked()
}

// StallPubSub makes the connections that have subscribed to something silent,
// until Heal: half-open, as after a firewall forgot them. Later ones work; to
// stall those, see [Stall].
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

// Heal ends Partition, Refuse, StallPubSub and Stall. What was on the way
// arrives now.
func (f *Faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.partitioned, f.refuse = false, false
	for c := range f.conns {
		c.stalled = false
	}
	f.signalAllLocked()
}

// Delay makes every round trip last roundTrip longer, half of it in each
// direction, without making the link any narrower: a pipeline takes it once.
// Delay(0) ends it for what is written from then on.
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

// Commands returns how many commands of these names have been put on the wire
// towards the server since the last Reset; without names, of all.
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

// Conns returns how many connections the client has open, and how many of them
// have subscribed to something.
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

// Match chooses commands; args[0] is the name as the client wrote it. It is called
// once for each command, in the client's Write; it may call the methods of
// Faults, but must not wait.
type Match func(args []string) bool

// Any matches every command, the handshake of a new connection included.
func Any(args []string) bool { return true }

// Named matches commands by name, in any case.
func Named(names ...string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(names, func(s string) bool { return strings.EqualFold(s, args[0]) })
	}
}

// WithArg matches commands with an argument that contains text.
func WithArg(text string) Match {
	return func(args []string) bool {
		return slices.ContainsFunc(args[1:], func(a string) bool { return strings.Contains(a, text) })
	}
}

// And matches what both match.
func (m Match) And(other Match) Match {
	return func(args []string) bool { return m(args) && other(args) }
}

// Break is what the client sees of a connection that breaks.
type Break int

const (
	EOF     Break = iota // the other side closed it
	Reset                // "connection reset by peer"
	Silence              // nothing: it waits until its own deadline
)

func (b Break) err() error {
	if b == Reset {
		return os.NewSyscallError("read", syscall.ECONNRESET)
	}
	return io.EOF
}

// Keep says which reply of a duplicated command the client gets.
type Keep int

const (
	Last Keep = iota
	First
)

// Action is what a rule does to a command.
type Action struct {
	apply func(*command)
	hold  bool
}

// DropReply lets the server execute the command, and breaks the connection when
// its reply arrives, instead of handing it to the client. With Silence the client
// gets nothing any more on this connection, while its commands still go through.
func DropReply(how Break) Action {
	return Action{apply: func(c *command) { c.dropReply, c.how = true, how }}
}

// CutBefore breaks the connection instead of sending the command: neither it nor
// what follows it on the connection reaches the server. The client learns it when
// it reads, not when it writes.
func CutBefore(how Break) Action {
	return Action{apply: func(c *command) { c.cutBefore, c.how = true, how }}
}

// Hold keeps the command back, and all that follows it on the connection, until
// [Rule.Release]; also if the client closes the connection meanwhile, or it is
// cut.
func Hold() Action {
	return Action{apply: func(*command) {}, hold: true}
}

// Duplicate sends the command n times in a row and hands one of the replies to
// the client, when all have come. It is not for commands inside MULTI, and not for
// SUBSCRIBE.
func Duplicate(n int, keep Keep) Action {
	return DuplicateEach(func([]string) int { return n }, keep)
}

// DuplicateEach is Duplicate with a number chosen for each command, 1 for once.
func DuplicateEach(n func(args []string) int, keep Keep) Action {
	return Action{apply: func(c *command) { c.copies, c.keep = max(1, n(c.args)), keep }}
}

// Stall makes the connection silent, as [Faults.StallPubSub] does, from this
// command on.
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

// Before calls fn when the command is about to be sent; it is sent when fn has
// returned. Only this connection waits for fn.
func Before(fn func(args []string)) Action {
	return Action{apply: func(c *command) { c.before = append(c.before, fn) }}
}

// After calls fn when the reply for the client has come, or the last message that
// confirms a SUBSCRIBE; the client gets it when fn has returned. Only this connection waits
// for fn.
func After(fn func(args []string, reply string)) Action {
	return Action{apply: func(c *command) { c.after = append(c.after, fn) }}
}

// Rule is an action for the commands that match. If several rules match a
// command, all of them act on it, in the order in which they were made.
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

// held is a command that a rule keeps back. It is open when the rule let it go.
type held struct {
	conn *conn         // nil until the connection has accepted the command
	open bool          // guarded by Faults.mu
	done chan struct{} // closed when the reply has come, or never will

	// readable once done is closed
	reply string
	err   error
}

// On makes a rule that acts at once, on every match.
func (f *Faults) On(match Match, action Action) *Rule { return f.add(match, action, -1) }

// Once makes a rule for the first match only. Unlike On(...).Times(1) it leaves
// no moment in which a second command could match.
func (f *Faults) Once(match Match, action Action) *Rule { return f.add(match, action, 1) }

func (f *Faults) add(match Match, action Action, limit int) *Rule {
	r := &Rule{f: f, match: match, action: action, limit: limit}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(slices.Clone(f.rules), r)
	return r
}

// Times limits the rule to n matches, those so far included.
func (r *Rule) Times(n int) *Rule {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.limit = n
	return r
}

// Skip lets the next n matches pass; they do not count as hits.
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

// WaitHits waits until the rule has acted on n commands, and fails the test if
// that takes more than ten seconds.
func (r *Rule) WaitHits(t testing.TB, n int) {
	t.Helper()
	Eventually(t, callLimit, func() bool { return r.Hits() >= n }, "%d commands matched the rule", n)
}

// Remove ends the rule. What it holds back stays so until Release.
func (r *Rule) Remove() {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.f.rules = slices.DeleteFunc(slices.Clone(r.f.rules), func(o *Rule) bool { return o == r })
	r.limit = 0
}

// Release sends the commands that a [Hold] rule keeps back and waits until the
// server has answered them all. It returns the replies in the order of the
// commands, as text. It fails the test if the server does not answer in ten
// seconds. The rule goes on holding what matches later.
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

// act lets the rule act on a command that matches, if it still does that. A
// command counts as a hit and as held at the same moment, so that a test that has
// seen the hit can release it.
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

// errThrownAway is what Release reports for a command that can no longer run.
var errThrownAway = errors.New("its connection ended before it was answered")
