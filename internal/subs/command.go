package subs

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/wire"
)

// maxBatch is how many channels one SUBSCRIBE or UNSUBSCRIBE names.
const maxBatch = 100

// verbs are the commands of a link, by the kinds of replies in go-redis.
var verbs = map[string]func(*redis.PubSub, context.Context, ...string) error{
	"ping":         (*redis.PubSub).Ping,
	"subscribe":    (*redis.PubSub).Subscribe,
	"unsubscribe":  (*redis.PubSub).Unsubscribe,
	"ssubscribe":   (*redis.PubSub).SSubscribe,
	"sunsubscribe": (*redis.PubSub).SUnsubscribe,
}

// command is a command of a link. Redis answers commands in order: with a reply for each channel in
// the order of the channels, or with a single error.
type command struct {
	verb     string
	channels []string
	at       time.Time
	subs     []*subscription // without a reply yet; guarded by Hub.mu
}

// newPing returns a PING. The reply counts as the reply for a channel with an empty name.
func newPing(now time.Time) *command {
	return &command{verb: "ping", at: now, subs: []*subscription{{}}}
}

// batch makes the commands for subscriptions. Plain channels share commands. A sharded command has
// a single channel, as Redis wants all its channels in the same slot.
func batch(verb string, subs []*subscription, now time.Time) (commands []*command) {
	var plain *command // has room
	for _, s := range subs {
		c := plain
		if c == nil || s.sharded || s.single || len(c.channels) == maxBatch {
			c = &command{verb: verb, at: now}
			commands = append(commands, c)
		}
		if s.sharded {
			c.verb = "s" + verb
		} else if !s.single {
			plain = c
		}
		c.channels, c.subs = append(c.channels, s.Channel), append(c.subs, s)
	}
	return commands
}

// After the end of a connection, go-redis connects again before a command or Receive returns:
// silently, perhaps to the node that has just died, with a mutex held that Close needs, and with a
// command for all channels, whose answers look like those of commands of the link. A context that
// is done keeps go-redis from connecting, and from nothing else. Another go-redis may refuse the
// context at once: it is strict, and gets a context that is not done.

// send writes the command. After an error the connection is of no use any more.
func (c *command) send(ctx context.Context, ps *redis.PubSub) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return verbs[c.verb](ps, ctx, c.channels...)
}

// read handles what arrives until the connection ends, and returns why it has ended.
func (l *link) read(ctx context.Context, ps *redis.PubSub) error {
	done, cancel := context.WithCancel(ctx)
	cancel()
	for first := true; ; first = false {
		msg, err := ps.Receive(done)
		now := time.Now()
		_, isReply := err.(redis.Error) // not one that a sentinel has given while go-redis connects
		switch m := msg.(type) {
		case *redis.Message:
			for _, line := range l.deliver(now, m) {
				l.hub.o.Unheard(m.Channel, line)
			}
		case *redis.Subscription:
			err = l.answered(now, m.Kind, m.Channel)
		case *redis.Pong:
			err = l.answered(now, "ping", "")
		default:
			switch {
			case isReply:
				err = l.refused(now, err)
			case errors.Is(err, context.Canceled) && ctx.Err() == nil && first:
				l.strict.Store(true)
				done, err = ctx, nil
			case errors.Is(err, context.Canceled) && ctx.Err() == nil:
				err = errReplaced
			}
		}
		if err != nil {
			return err
		}
	}
}

// deliver notifies the listeners of a message, and returns the lines without a listener.
func (l *link) deliver(now time.Time, m *redis.Message) (unheard []string) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.lastRead = now
	if m.Payload == "" {
		return nil
	}
	tellLocked := func(id string, n Note) bool {
		sharded := l.hub.subs[Topic{Channel: m.Channel}].tellLocked(id, n)
		plain := l.hub.subs[Topic{Channel: m.Channel, Plain: true}].tellLocked(id, n)
		return sharded || plain
	}
	all := tellLocked("", Note{Message: true, Payload: m.Payload})
	for line := range strings.SplitSeq(m.Payload, "\n") {
		id, _, _ := strings.Cut(line, "|")
		if id != "" && !tellLocked(id, Note{Message: true, Payload: m.Payload}) && !all {
			unheard = append(unheard, line)
		}
	}
	return unheard
}

// tellLocked leaves a note for the listeners with an id, and says whether there are any.
func (s *subscription) tellLocked(id string, n Note) bool {
	if s == nil {
		return false
	}
	for _, l := range s.listeners[id] {
		l.notifyLocked(n)
	}
	return len(s.listeners[id]) > 0
}

// answered handles a reply. A returned error ends the connection.
func (l *link) answered(now time.Time, verb, channel string) error {
	lost, err := l.settle(now, verb, channel)
	if !lost.IsZero() {
		l.hub.o.Reconnected(l.node, now.Sub(lost))
	}
	return err
}

// settle matches a reply with the oldest command. lost is the begin of an outage that is now over.
func (l *link) settle(now time.Time, verb, channel string) (lost time.Time, err error) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.lastRead = now
	if len(l.asked) == 0 || l.asked[0].verb != verb || l.asked[0].subs[0].Channel != channel {
		return lost, errUnasked
	}
	c := l.asked[0]
	s := c.subs[0]
	if c.subs = c.subs[1:]; len(c.subs) == 0 {
		l.asked = l.asked[1:]
	}
	if s.link == l { // after UNSUBSCRIBE, s has no link
		s.confirmed, s.single = true, false
		s.notifyLocked(Note{})
		lost, l.lost, l.why = l.lost, lost, nil
	}
	return lost, nil
}

// refused handles an error reply to the oldest command in flight. A returned error ends the
// connection. As an answer to PING, an error reply is as good as PONG: the server is alive.
func (l *link) refused(now time.Time, err error) error {
	h, c := l.hub, l.pop(now)
	sharded := c.verb == "ssubscribe"
	unknown := sharded && strings.Contains(err.Error(), "unknown command") // before Redis 7
	switch {
	case c.verb == "ping":
		return nil
	case c.verb != "subscribe" && !sharded, !wire.Refused(err):
		return err
	case unknown:
		h.o.NotSharded()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range c.subs {
		switch {
		case s.link != l: // has ended meanwhile
		case unknown, len(c.subs) > 1:
			s.single = !unknown
			l.todo = append(l.todo, s)
		default:
			h.endLocked(s, err)
		}
	}
	l.replan()
	return nil
}

// pop takes the oldest command in flight. An empty command stands for none.
func (l *link) pop(now time.Time) *command {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.lastRead = now
	if len(l.asked) == 0 {
		return &command{}
	}
	c := l.asked[0]
	l.asked = l.asked[1:]
	return c
}
