package subs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/internal/wire"
)

const (
	// lingerFor is how long a subscription without listeners is kept.
	lingerFor = 2 * time.Second
	// pingEvery is how long a connection may be silent before a PING, and how long an answer may
	// take, both to the nearest tick. A dead connection (no FIN, no RST) goes unnoticed for the
	// sum.
	pingEvery = 2 * time.Second
	// tick is how often a link looks for subscriptions without listeners, and for silence.
	tick = 500 * time.Millisecond
	// limit is for connecting, for one write, and for finding the nodes of all channels.
	limit = 5 * time.Second
	// lived is the age at which a connection counts as a success, and pauses begin anew.
	lived = 500 * time.Millisecond
	// firstGrace and longGrace bound how long a connection is kept that was made after a Suspect.
	firstGrace, longGrace = time.Second, time.Minute
)

// Why a connection ends, beside errors of go-redis and refusals of the server.
var (
	errUnused     = errors.New("the pub/sub connection is not needed any more")
	errSilent     = errors.New("the pub/sub connection is silent")
	errNoMessages = errors.New("the pub/sub connection brings no messages")
	errUnasked    = errors.New("a reply without a command: the server may have ended a subscription")
	errReplaced   = errors.New("go-redis has given up the pub/sub connection")
	errAborted    = errors.New("a dialer or hook of go-redis has panicked, or has ended its goroutine")
)

// link is the pub/sub connection to a node, and the goroutine that makes a new connection after
// each loss. A link ends with its last subscription.
type link struct {
	hub  *Hub
	node string
	wake chan struct{}
	rdb  redis.UniversalClient // used by the goroutine only

	strict atomic.Bool // go-redis takes no context that is done

	// Guarded by Hub.mu.
	subs     map[*subscription]struct{}
	todo     []*subscription // to subscribe; some may have left the link
	leave    []*subscription // to unsubscribe
	asked    []*command      // in flight, oldest first
	made     time.Time       // when the connection was made, or took subscriptions over; or zero
	lastRead time.Time       // when bytes arrived last
	attempt  int             // number of the last attempt that failed
	lost     time.Time       // begin of the outage; zero if all is well
	why      error           // the reason for the latest loss in the outage
	suspect  bool            // the connection ends at the age of grace
	grace    time.Duration
	idle     timers.Heap[*subscription] // of subs without listeners, by the end of lingerFor
}

// linkLocked returns the link to a node, and starts a missing link. nil: the client is closed.
func (h *Hub) linkLocked(node string, rdb redis.UniversalClient) *link {
	if l := h.links[node]; l != nil {
		return l
	}
	l := &link{hub: h, node: node, rdb: rdb, wake: make(chan struct{}, 1)}
	l.subs = map[*subscription]struct{}{}
	if !h.o.Group.GoOpen(l.run) {
		return nil
	}
	h.links[node] = l
	return l
}

func (l *link) adoptLocked(s *subscription) {
	s.link = l
	l.subs[s] = struct{}{}
	s.lingerLocked()
	l.todo = append(l.todo, s)
	l.replan()
}

func (l *link) dropLocked(s *subscription) {
	delete(l.subs, s)
	l.idle.Remove(&s.lingering)
}

// replan makes the goroutine plan again.
func (l *link) replan() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run is the life of a link: connect, serve, and recover, whatever the reason.
func (l *link) run() {
	o := &l.hub.o
	ctx := o.Life
	for !l.isOver(ctx) {
		ps, err := l.connect(ctx)
		// go-redis closes the client of a node that has left a cluster: the channels have moved.
		forGood := wire.Refused(err) && (l.node == "" || !errors.Is(err, redis.ErrClosed))
		if err == nil {
			err = l.serve(ctx, ps)
		}
		attempt := l.lose(err, forGood)
		if ctx.Err() == nil && !errors.Is(err, errUnused) {
			o.Lost(l.node, attempt, err)
			lifetime.Sleep(ctx.Done(), wire.Pause(attempt))
			l.resolve(ctx)
		}
	}
}

// isOver says whether the link has ended: the client is closed, or no subscription is left.
func (l *link) isOver(ctx context.Context) bool {
	if ctx.Err() != nil {
		l.lose(ErrClosed, true)
	}
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.unusedLocked()
}

// unusedLocked takes a link without subscriptions out of the hub.
func (l *link) unusedLocked() bool {
	if len(l.subs) > 0 {
		return false
	}
	if l.hub.links[l.node] == l {
		delete(l.hub.links, l.node)
	}
	return true
}

// guarded runs f in a goroutine, as f may call code of others, which may panic or end its
// goroutine.
func guarded(f func() error) (answer <-chan error) {
	answers := make(chan error, 1)
	go func() {
		err := errAborted
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("%w: %v", errAborted, r)
			}
			answers <- err
		}()
		err = f()
	}()
	return answers
}

// connect makes a connection, with a PING. go-redis takes its own time to connect, also after the
// end of the context, and PubSub.Close would wait. A goroutine closes a connection that is late.
func (l *link) connect(ctx context.Context) (*redis.PubSub, error) {
	ps := l.rdb.Subscribe(context.Background()) // connects with the first command
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	made := guarded(func() error { return ps.Ping(ctx) })
	select {
	case err := <-made:
		if err != nil {
			_ = ps.Close()
		}
		return ps, err
	case <-ctx.Done():
		l.hub.o.Group.Go(func() {
			<-made // late, whatever the answer
			_ = ps.Close()
		})
		return nil, errSilent
	}
}

// serve is the life of a connection, and returns the reason for its end. If the reader is aborted,
// go-redis keeps the mutex of ps for ever, and has closed the connection.
func (l *link) serve(ctx context.Context, ps *redis.PubSub) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	l.begin(time.Now())
	read := make(chan error, 1)
	l.hub.o.Group.Go(func() {
		defer close(read)
		err := <-guarded(func() error { return l.read(ctx, ps) })
		read <- err
		if !errors.Is(err, errAborted) {
			_ = ps.Close() // keeps go-redis from connecting by itself for the next command
		}
	})
	defer func() {
		cancel()
		if !errors.Is(err, errAborted) {
			guarded(ps.Close) // ends the reader, unless the reader is aborted just now
		}
		for range read { // until the reader has ended
		}
	}()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		commands, err := l.plan(time.Now())
		if err == nil {
			err = l.write(ctx, ps, commands, read)
		}
		if err != nil {
			return err
		}
		select {
		case <-l.wake:
		case <-ticker.C:
			l.sweep(time.Now())
		case err := <-read:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// write writes commands, with a context that keeps go-redis from connecting, see
// command.send. An error, of write or of the reader, ends the connection.
func (l *link) write(ctx context.Context, ps *redis.PubSub, commands []*command, read <-chan error) error {
	done, end := context.WithCancel(ctx)
	end()
	for _, c := range commands {
		with := done
		if l.strict.Load() {
			with = ctx
		}
		sent := guarded(func() error { return c.send(with, ps) })
		select {
		case err := <-sent:
			switch {
			case err == nil, errors.Is(err, errAborted): // whose end the reader notices
			case errors.Is(err, context.Canceled):
				return errReplaced
			default:
				return err
			}
		case err := <-read:
			if !errors.Is(err, errAborted) {
				<-sent // as above
			}
			return err
		}
	}
	return nil
}

// begin notes that a connection was made, with a PING. All subscriptions begin anew.
func (l *link) begin(now time.Time) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.made, l.lastRead, l.suspect = now, now, false
	l.asked = []*command{newPing(now)}
	l.todo, l.leave = slices.Collect(maps.Keys(l.subs)), nil
}

// plan returns the commands to send now, or an error if the connection has to end.
func (l *link) plan(now time.Time) ([]*command, error) {
	sharded := l.hub.o.Sharded()
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	age, silent := now.Sub(l.made), isLong(now.Sub(l.lastRead))
	switch {
	case l.unusedLocked():
		return nil, errUnused
	case l.suspect && age >= l.grace:
		if age >= 4*l.grace { // the previous Suspect is long ago
			l.grace = 0
		}
		l.grace = min(max(2*l.grace, firstGrace), longGrace)
		return nil, errNoMessages
	case silent && len(l.asked) > 0 && isLong(now.Sub(l.asked[0].at)):
		return nil, errSilent
	}
	todo := slices.DeleteFunc(l.todo, func(s *subscription) bool { return s.link != l })
	for _, s := range todo {
		s.sharded = sharded && !s.Plain
	}
	leave := slices.DeleteFunc(l.leave, l.hasTwinLocked)
	commands := append(batch("unsubscribe", leave, now), batch("subscribe", todo, now)...)
	if silent && len(l.asked)+len(commands) == 0 {
		commands = append(commands, newPing(now))
	}
	l.asked, l.todo, l.leave = append(l.asked, commands...), nil, nil
	return commands, nil
}

// isLong says that a silence has lasted for pingEvery. Of two ticks the nearer one counts, so that
// a tick that is a little early does not cost a whole one.
func isLong(silence time.Duration) bool { return silence >= pingEvery-tick/2 }

// hasTwinLocked says that UNSUBSCRIBE for s would end another subscription, too. If pub/sub is not
// sharded, the two topics of a channel are the same for the server.
func (l *link) hasTwinLocked(s *subscription) bool {
	twin := l.hub.subs[Topic{Channel: s.Channel, Plain: !s.Plain}]
	return twin != nil && twin.link == l && twin.sharded == s.sharded
}

// sweep ends subscriptions that have lingered for long enough.
func (l *link) sweep(now time.Time) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for item, due := l.idle.First(); due <= now.Sub(l.hub.start); item, due = l.idle.First() {
		l.hub.endLocked(item.Value, nil)
		l.leave = append(l.leave, item.Value)
	}
}

// lose notes that the connection is gone, and returns how many attempts have failed in a row.
// Subscriptions without listeners end. forGood ends all subscriptions.
func (l *link) lose(err error, forGood bool) (attempt int) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	now := time.Now()
	if !l.made.IsZero() && now.Sub(l.made) >= lived {
		l.attempt = 0
	}
	l.attempt++
	l.asked, l.made, l.why = nil, time.Time{}, err
	if l.lost.IsZero() {
		l.lost = now
	}
	for s := range l.subs {
		s.confirmed = false
		if forGood || len(s.listeners) == 0 {
			l.hub.endLocked(s, err)
		}
	}
	return l.attempt
}

// resolve puts each subscription on the link of its channel's node, if the node can be found.
func (l *link) resolve(ctx context.Context) {
	h := l.hub
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	h.mu.Lock()
	all := slices.Collect(maps.Keys(l.subs))
	h.mu.Unlock()
	var moves []func()
	for _, s := range all {
		var node string
		var rdb redis.UniversalClient
		err := <-guarded(func() (err error) { node, rdb, err = h.o.Node(ctx, s.Channel, true); return err })
		switch {
		case err != nil:
		case node == l.node:
			l.rdb = rdb // a node that left and came back has a new client
		default:
			moves = append(moves, func() { l.moveLocked(s, node, rdb) })
		}
	}
	h.mu.Lock() // once: all subscriptions come back together
	defer h.mu.Unlock()
	for _, move := range moves {
		move()
	}
}

// moveLocked puts a subscription on the link of another node. The history moves, too: pauses go on
// growing for a subscription that no node accepts.
func (l *link) moveLocked(s *subscription, node string, rdb redis.UniversalClient) {
	if s.link != l {
		return
	}
	to := l.hub.linkLocked(node, rdb)
	if to == nil {
		return
	}
	l.dropLocked(s)
	to.adoptLocked(s)
	to.attempt = max(to.attempt, l.attempt)
	if to.lost.IsZero() {
		to.lost, to.why = l.lost, l.why
	}
	if !to.made.IsZero() { // grace counts from here, as the moved channels are new to the connection
		to.made = time.Now()
	}
}
