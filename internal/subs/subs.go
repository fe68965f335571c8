// Package subs brings the messages of Redis channels to the goroutines that wait for them.
//
// A [Hub] has a single pub/sub connection to each node, for any number of channels. All faults have
// the same recovery: anything odd about a connection ends the connection. The hub looks for the
// node of each channel again, makes a new connection, and notifies every listener when its channel
// is confirmed. Messages of the time in between are lost, and a listener with a zero [Note] has to
// ask the store.
package subs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/timers"
)

// ErrClosed is the error of a listener whose client is closed.
var ErrClosed = errors.New("the client is closed")

// Options are the surroundings of a Hub. All fields are required. The functions are called from
// several goroutines, and never with a mutex held. Lost, Unheard and Reconnected must not block.
type Options struct {
	// Node returns the server that has key: its name, which is empty unless the servers are a
	// cluster, and a client for it. With anew the cluster itself is asked.
	Node func(ctx context.Context, key string, anew bool) (string, redis.UniversalClient, error)
	// Sharded says whether pub/sub is sharded. NotSharded notes a server without SSUBSCRIBE.
	Sharded    func() bool
	NotSharded func()
	// Group has the goroutines of the hub. Group is closed together with the client.
	Group *group.Group
	// Life ends with the client, and ends all connections.
	Life context.Context
	// Lost reports a connection to a node that was lost, or could not be made. attempt counts from
	// 1, and begins anew after a connection with a life of 500 ms.
	Lost func(node string, attempt int, err error)
	// Unheard reports a line of a message for which there is no listener.
	Unheard func(channel, line string)
	// Reconnected reports the first channel confirmed after Lost. down counts from the first loss.
	Reconnected func(node string, down time.Duration)
}

// Topic is a channel to listen on, on the node with a key of the same name.
type Topic struct {
	Channel string
	Plain   bool // use SUBSCRIBE even if pub/sub is sharded
}

// Note is news for a listener. The zero Note reports that the server has confirmed the channel,
// perhaps not for the first time. Earlier messages may be lost, and the listener has to ask the
// store.
type Note struct {
	// Message reports a message for the listener.
	Message bool
	// Payload has the lines of all messages that the note reports, also those for other listeners.
	// Without a payload the listener has to ask the store about everything.
	Payload string
	// Err is the reason for which the channel cannot be subscribed. No other Note follows.
	Err error
}

// Hub has the subscriptions of one client. A Hub is safe for concurrent use.
type Hub struct {
	o     Options
	start time.Time // heaps count from here

	mu    sync.Mutex
	subs  map[Topic]*subscription
	links map[string]*link // by node
}

// New returns a Hub without connections.
func New(o Options) *Hub {
	return &Hub{o: o, start: time.Now(), subs: map[Topic]*subscription{}, links: map[string]*link{}}
}

// subscription is a topic with listeners, or a topic that had listeners a moment ago.
type subscription struct {
	Topic

	// Guarded by Hub.mu.
	link      *link                      // nil after the end of the subscription
	lingering timers.Item[*subscription] // in link.idle without listeners
	listeners map[string][]*Listener
	sharded   bool // asked for with SSUBSCRIBE
	confirmed bool // by the server, on the present connection of link
	single    bool // needs a command of its own, after the refusal of a batch
}

// Listener gets the messages of one topic for one id.
type Listener struct {
	hub   *Hub
	sub   *subscription
	id    string
	notes chan Note // sent to with Hub.mu held
}

// Listening returns a new listener if the server has confirmed the channel already, and nil if not:
// with Listening a caller knows, without a round trip, that no message is missed from now on. A
// message goes to the listeners whose id begins a line of the payload, as the whole line or up to a
// "|", and to listeners without an id.
// The caller ends the listener with Close.
func (h *Hub) Listening(t Topic, id string) *Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.subs[t]; s != nil && s.confirmed {
		return h.addLocked(s, id)
	}
	return nil
}

// Listen is Listening, and waits until the server has confirmed the channel. The caller has to ask
// the store afterwards, as earlier messages are lost. Errors: [ErrClosed], an error of
// [Options.Node], the refusal of the server, and an error that matches both ctx.Err and the cause
// of ctx, and says why the connection was lost, if it was. After an error no listener is left.
func (h *Hub) Listen(ctx context.Context, t Topic, id string) (*Listener, error) {
	if l := h.Listening(t, id); l != nil {
		return l, nil
	}
	node, rdb, err := h.o.Node(ctx, t.Channel, false)
	if err != nil {
		return nil, err
	}
	l := h.add(t, id, node, rdb)
	if l == nil {
		return nil, ErrClosed
	}
	select {
	case n := <-l.notes:
		if n.Err == nil {
			return l, nil
		}
		err = n.Err
	case <-h.o.Life.Done():
		err = ErrClosed
	case <-ctx.Done():
		err = lifetime.Ended(ctx)
		if why := l.why(); why != nil {
			err = fmt.Errorf("%w (last: %w)", err, why)
		}
	}
	l.Close()
	return nil, err
}

// why returns why the channel is not confirmed: the loss of its connection, or nil.
func (l *Listener) why() error {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if l.sub.link == nil {
		return nil
	}
	return l.sub.link.why
}

// add makes a listener, and a subscription for a new topic. nil: the client is closed.
func (h *Hub) add(t Topic, id, node string, rdb redis.UniversalClient) *Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.subs[t]
	if s == nil {
		to := h.linkLocked(node, rdb)
		if to == nil {
			return nil
		}
		s = &subscription{Topic: t, listeners: map[string][]*Listener{}}
		s.lingering.Value = s
		h.subs[t] = s
		to.adoptLocked(s)
	}
	l := h.addLocked(s, id)
	if s.confirmed {
		l.notifyLocked(Note{})
	}
	return l
}

func (h *Hub) addLocked(s *subscription, id string) *Listener {
	l := &Listener{hub: h, sub: s, id: id, notes: make(chan Note, 1)}
	s.listeners[id] = append(s.listeners[id], l)
	s.link.idle.Remove(&s.lingering)
	return l
}

// C returns the channel of notes. C has room for a single note. While C is full, later notes are
// merged into that note: the caller asks the store after any note. An error replaces a note that
// nobody has read.
func (l *Listener) C() <-chan Note { return l.notes }

// Close ends the listener. A second call does nothing.
func (l *Listener) Close() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	s, same := l.sub, l.sub.listeners[l.id]
	i := slices.Index(same, l)
	if i < 0 {
		return
	}
	if s.listeners[l.id] = slices.Delete(same, i, i+1); len(same) == 1 {
		delete(s.listeners, l.id)
		s.lingerLocked()
	}
}

// lingerLocked has a subscription that has no listeners and has not ended end after lingerFor.
func (s *subscription) lingerLocked() {
	if len(s.listeners) == 0 && s.link != nil {
		s.link.idle.Set(&s.lingering, time.Since(s.link.hub.start)+lingerFor)
	}
}

// Suspect reports that messages do not seem to reach the listener on a confirmed channel. The
// connection ends and is made anew, and a zero Note follows. The first Suspect takes effect at
// once. A connection that was made after a Suspect is kept for at least 1 s, and for up to 1 min if
// Suspect follows upon Suspect. While C has a note, Suspect does nothing: the note may already be
// the end of the trouble.
func (l *Listener) Suspect() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if l.sub.confirmed && len(l.notes) == 0 {
		l.sub.link.suspect = true
		l.sub.link.replan()
	}
}

// notifyLocked leaves a note.
func (l *Listener) notifyLocked(n Note) {
	select {
	case older := <-l.notes:
		n = older.merge(n)
	default:
	}
	l.notes <- n
}

// longestPayload bounds the payload of merged notes.
const longestPayload = 4096

// merge returns one note for a note that nobody has read and the next one.
func (n Note) merge(next Note) Note {
	switch together := n.Payload + "\n" + next.Payload; {
	case next.Err != nil:
		return next
	case n.Payload == "", next.Payload == "", len(together) > longestPayload:
		n.Payload = ""
	default:
		n.Payload = together
	}
	return n
}

func (s *subscription) notifyLocked(n Note) {
	for _, same := range s.listeners {
		for _, l := range same {
			l.notifyLocked(n)
		}
	}
}

// endLocked ends a subscription. The remaining listeners get err.
func (h *Hub) endLocked(s *subscription, err error) {
	delete(h.subs, s.Topic)
	s.link.dropLocked(s)
	s.link, s.confirmed = nil, false
	s.notifyLocked(Note{Err: err})
}
