package relock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file is relock's own layout in Redis. Waiting is in pubsub.go.

const (
	queueSuffix = ":queue"
	tokenSuffix = ":token"
)

// baseKey returns the key of a lock: prefix{name}, or prefix+name if the name has a hash tag. All
// keys and channels of the lock begin with the base key, and share its slot. A base key is its own
// base key.
func baseKey(prefix, name string) (string, error) {
	base := prefix + "{" + name + "}"
	if hashTag(name) != "" {
		if strings.HasSuffix(name, queueSuffix) || strings.HasSuffix(name, tokenSuffix) {
			return "", fmt.Errorf("lock name %q: a name with a hash tag must not end in %q or %q, which are keys of another lock",
				name, queueSuffix, tokenSuffix)
		}
		base = name
		if !strings.HasPrefix(name, prefix) {
			base = prefix + name
		}
	}
	switch {
	case hashTag(base) != "":
		return base, nil
	case strings.Contains(prefix, "{"):
		return "", fmt.Errorf("prefix %q with lock name %q: the key %q would have an empty hash tag, and the keys of the lock "+
			"different slots in a cluster; a prefix must have no '{', or a whole tag such as {app}", prefix, name, base)
	default:
		return "", fmt.Errorf("lock name %q: the key %q would have an empty hash tag, and the keys of the lock different slots "+
			"in a cluster; a name must not begin with '}'", name, base)
	}
}

// nameOf returns the name of the lock with a base key, without the additions of baseKey.
func nameOf(prefix, base string) string {
	name := strings.TrimPrefix(base, prefix)
	if inner, ok := strings.CutPrefix(name, "{"); ok {
		if inner, ok = strings.CutSuffix(inner, "}"); ok && hashTag(inner) == "" {
			return inner
		}
	}
	return name
}

// hashTag returns the part of a key between the first '{' and the next '}'. The slot in a cluster
// is the slot of the hash tag, or the slot of the whole key if the hash tag is empty.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, ok := strings.Cut(rest, "}")
	if !ok {
		return ""
	}
	return tag
}

// nativeStore keeps locks in relock's own layout. The name of an ask is the base key of its lock.
type nativeStore struct{ *redisStore }

// Check returns the ask with the base key of its lock as its name.
func (s *nativeStore) Check(a store.Ask) (store.Ask, error) {
	err := s.checkAsk(a)
	if err == nil {
		a.Name, err = baseKey(s.prefix, a.Name)
	}
	return a, err
}

// topic returns the topic of a client's waiters for a lock.
func (s *nativeStore) topic(a store.Ask) subs.Topic {
	return subs.Topic{Key: a.Name, Channel: a.Name + ":" + cutLast(string(a.ID), 2)}
}

// unit makes the unit for a lock and its queue.
func (s *nativeStore) unit(name string, args ...any) wire.Unit {
	return wire.Unit{Keys: []string{name, name + queueSuffix}, Args: args}
}

// noPlace is the arrival of a hold that must not queue, and newPlace is the arrival of a new
// waiter.
const noPlace, newPlace = "", "0"

// ask asks for a lock, and queues unless arrival is noPlace.
func (s *nativeStore) ask(ctx context.Context, a store.Ask, arrival string, tries int) (acquireReply, wire.Answer, error) {
	id := string(a.ID)
	c := &wire.Call{
		Script: acquireScript, Shared: s.publish(), Unit: s.unit(a.Name, id, millis(a.TTL), arrival),
		Tries: tries, Patience: attemptLimit(a.TTL), Acks: a.Acks.Replicas, AcksTimeout: a.Acks.Timeout,
	}
	if arrival == noPlace { // a waiter overtakes nobody, and the TTL is part of its place
		c.Repeat = func(elapsed time.Duration) []any { return []any{id, repeatMillis(a.TTL, elapsed), arrival} }
	}
	answer, err := s.wire.Do(ctx, c)
	if err != nil {
		return acquireReply{}, answer, unsureOf(answer, reachable(err))
	}
	r, err := parseAcquireReply(c.Script, answer.Reply)
	return r, answer, unsureOf(answer, err)
}

// repeatMillis returns the lease that a repeat sets. The lease ends when the lease of the first
// attempt would, or whole TTLs later, so a client that hears no answers holds up nobody for longer.
func repeatMillis(ttl, elapsed time.Duration) int64 { return max(millis(ttl-elapsed%ttl), 1) }

// Try takes a free lock for which nobody waits.
func (s *nativeStore) Try(ctx context.Context, a store.Ask) (store.Lease, error) {
	r, answer, err := s.ask(ctx, a, noPlace, boundTries)
	if err == nil && r.status != statusOurs {
		err = unsureOf(answer, r.busy())
	}
	if err != nil {
		return store.Lease{}, err
	}
	return keepOrUndo(ctx, r.toLease(a, answer), answer.Acked, s.Release)
}

// Release sets the count of a hold, or frees its lock.
func (s *nativeStore) Release(ctx context.Context, l store.Lease, count int) error {
	if count > 0 {
		_, err := s.Enter(ctx, l, count)
		return err
	}
	return s.free(ctx, &wire.Call{
		Script: releaseScript, Shared: s.publish(), Unit: s.unit(l.Name, string(l.ID)),
		Patience: attemptLimit(l.TTL),
	})
}

// Forget takes back places in the queue, and locks.
func (s *nativeStore) Forget(ctx context.Context, asks []store.Ask) []error {
	units := make([]wire.Unit, len(asks))
	for i, a := range asks {
		units[i] = s.unit(a.Name, string(a.ID), millis(a.TTL))
	}
	return forgotten(s.all(ctx, forgetScript, s.publish(), units))
}

// Token draws a token above l.Token.
func (s *nativeStore) Token(ctx context.Context, l store.Lease) (int64, error) {
	token, _, err := s.number(ctx, &wire.Call{
		Script: tokenScript, Tries: boundTries, Patience: attemptLimit(l.TTL),
		Unit: wire.Unit{Keys: []string{l.Name, l.Name + tokenSuffix}, Args: []any{string(l.ID), l.Token}},
	})
	if err == nil && token == 0 {
		err = store.ErrGone
	}
	return token, err
}

// Look reads a lock.
func (s *nativeStore) Look(ctx context.Context, a store.Ask) (store.State, error) {
	return s.look(ctx, []string{a.Name, a.Name + tokenSuffix, a.Name + queueSuffix})
}

// Break frees the lock of a hold, and has the client of that hold look at once.
func (s *nativeStore) Break(ctx context.Context, a store.Ask) error {
	return s.free(ctx, &wire.Call{
		Script: breakScript, Shared: s.publish(), Tries: boundTries,
		Unit: s.unit(a.Name, string(a.ID), s.control(cutLast(string(a.ID), 2))),
	})
}

// CheckServer runs each script on a lock that nobody else uses.
func (s *nativeStore) CheckServer(ctx context.Context, a store.Ask) error {
	a = newCheckAsk(a)
	a.Name, _ = baseKey(s.prefix, "check:"+string(a.ID))
	topic := subs.Topic{Key: a.Name, Channel: a.Name + ":" + string(a.ID)}
	return s.checkServer(ctx, s, a, []subs.Topic{topic}, a.Name+tokenSuffix)
}
