package relock

import (
	"strings"
	"time"
)

// layout is how locks are kept in Redis: their keys and fields, the scripts over them, and how a waiter comes to its turn. A
// client has one for all its locks: native, or that of Redisson (redisson.go). All else is the same for both, and
// does not ask which it is.
type layout interface {
	// place says where the lock of that name is. Error: ErrInvalid.
	place(s *settings, name string) (*keys, error)
	// channel is where a client's waiters hear of the lock.
	channel(k *keys, client string) string
	// topics is what the hub knows a channel by.
	topics(channel, client string) []string
	// newHold names the next hold of a holder: the field that stands in Redis while it lasts, and never again.
	newHold(h Holder) string
	// newHolder makes a holder of this client, and names its first hold.
	newHolder(client string) (h Holder, hold string)
	// holderOf is the holder whose hold this is, as far as the field tells.
	holderOf(hold string) Holder

	// One for each script, see the functions of wire, which send them.
	acquire(w *wire, h *hold, c change, wait bool, arrival int64) *request
	acquisition(reply any) (acquisition, error)
	release(w *wire, h *hold, c change) *request
	abandon(w *wire, h *hold) *request
	forceRelease(w *wire, k *keys, hold string) *request
	state(k *keys) *request

	// first takes the lock for a new hold: it asks, and waits where it may and has to.
	first(a *acquiring, h *hold) error
	// received is called with each message that arrives.
	received(b *hub, channel, payload string)
}

// change is what an entry or exit makes of a hold.
type change struct {
	target int           // the count
	step   int64         // its number among the changes of this hold
	lease  time.Duration // 0: leave it alone
}

// native is the layout of this package's own: a queue, and grants. Its parts are where they are used: keys and scripts in
// scripts.go, the wait in lock.go, messages in pubsub.go.
type native struct{}

func (native) place(s *settings, name string) (*keys, error) { return newKeys(s.prefix, name) }

// channel is where grants for a client's waiters arrive.
func (native) channel(k *keys, client string) string { return k.base + ":" + client }

func (native) topics(channel, client string) []string {
	return []string{strings.TrimSuffix(channel, ":"+client)}
}

func (native) newHold(h Holder) string                         { return h.newHold() }
func (native) newHolder(client string) (h Holder, hold string) { return newHolderWithHold(client) }
func (native) holderOf(hold string) Holder                     { return holderOf(hold) }
