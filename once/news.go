package once

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
)

// news is the channel of one Once for the ends of operations. The subscription begins with the
// first call, and is kept until close.
type news struct {
	rdb     redis.UniversalClient
	channel string

	mu        sync.Mutex
	listeners map[string]chan record
	started   bool
	ready     chan struct{} // closed when the subscription is confirmed
	life      context.Context
	end       context.CancelFunc
	group     group.Group // run
}

func newNews(rdb redis.UniversalClient, channel string) *news {
	n := &news{
		rdb: rdb, channel: channel, listeners: make(map[string]chan record), ready: make(chan struct{}),
	}
	n.life, n.end = context.WithCancel(context.Background())
	return n
}

// listen returns the channel for the news of a record, until stop. The call with the turn listens.
func (n *news) listen(of string) (heard <-chan record, stop func()) {
	c := make(chan record, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[of] = c
	n.started = n.started || n.group.GoOpen(n.run)
	return c, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.listeners[of] == c { // else a call of the next group listens
			delete(n.listeners, of)
		}
	}
}

// unready returns a channel that ends when the subscription is confirmed. unready returns nil if
// the subscription is confirmed already, or after close.
func (n *news) unready() <-chan struct{} {
	select {
	case <-n.ready:
		return nil
	case <-n.life.Done():
		return nil
	default:
		return n.ready
	}
}

// healthCheck is the interval of the PING with which go-redis finds a dead connection.
const healthCheck = 15 * time.Second

// run listens until close, also after a dialer or hook of go-redis has panicked.
func (n *news) run() {
	var pause attempts.Pause
	for {
		_ = attempts.Apart(func() error { n.hear(); return nil })
		if !pause.Wait(n.life.Done()) {
			return
		}
	}
}

// hear listens. go-redis subscribes again after a broken connection, and reports the new
// subscription. Messages may have been missed meanwhile, so every waiter looks at its record.
func (n *news) hear() {
	sub := n.rdb.Subscribe(n.life, n.channel)
	defer func() { _ = sub.Close() }()
	messages := sub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(healthCheck))
	for {
		select {
		case <-n.life.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			switch m := m.(type) {
			case *redis.Subscription:
				n.subscribed()
			case *redis.Message:
				if of, end, ok := parseNews(m.Payload); ok {
					n.tell(of, end)
				}
			}
		}
	}
}

func (n *news) subscribed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.ready:
	default:
		close(n.ready)
	}
	for _, c := range n.listeners {
		put(c, record{})
	}
}

func (n *news) tell(of string, end record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.listeners[of]; c != nil {
		put(c, end)
	}
}

// put puts the newest news into a channel of one.
func put(c chan record, end record) {
	select {
	case <-c:
	default:
	}
	c <- end
}

func (n *news) close() error {
	n.group.Close()
	n.end()
	n.group.Wait()
	return nil
}
