package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// redissonStore keeps locks as Redisson's RLock and RFencedLock do, so that Go and Java exclude and
// wake each other. The facts are in testdata. A lock has no queue: a message reports a
// free lock, and the first to ask gets the lock.
//
// In Redis a hold is <client>:<number>, like a thread of Java: the ID without its middle number,
// and without random digits. Busy and State show this field.
type redissonStore struct {
	*redisStore
	fenced  bool // a token is counted up with each new hold
	cluster bool
}

// Races says that waiters race.
func (*redissonStore) Races() bool { return true }

// randomDigits is how many random digits end an ID. A ticket shows them, and this layout has none.
const randomDigits = 12

// redissonField returns the field of a hold. A field is its own field. The first hold of a chain of
// calls has the holder's name as its field.
func redissonField(id store.ID) string {
	name := string(id)
	unowned := name[strings.LastIndexByte(name, '/')+1:] // the name of an owner may have colons
	if cutLast(unowned, 2) == "" {
		return name
	}
	number := name[len(cutLast(name, 1)):]
	if len(number) > len(":")+randomDigits {
		number = number[:len(number)-randomDigits]
	}
	return cutLast(name, 2) + number
}

// usualTTL is the lease of a lock of Redisson that names none (lockWatchdogTimeout).
const usualTTL = 30 * time.Second

// longRecheck is the longest part of an owner's lease that a waiter with a shorter lease waits out.
const longRecheck = 10 * time.Second

// Prefixes of Redisson's names.
const (
	redissonChannel = "redisson_lock__channel:"
	redissonToken   = "redisson_lock_token:"
)

// braced returns the name as a part of channels and other keys. Redisson asks only whether the name
// has a '{', so some names and their channels are in different slots.
func braced(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// Check returns the claim unchanged: a lock's key is its name.
func (s *redissonStore) Check(a store.Claim) (store.Claim, error) {
	if err := s.checkClaim(a); err != nil {
		return a, err
	}
	if a.Kind != store.Mutex || a.Limit != 1 {
		return a, fmt.Errorf("%w: a lock of Redisson's layout is a mutex, and not %s", errors.ErrUnsupported, a.Kind)
	}
	if s.cluster && wire.SlotOf(redissonChannel+braced(a.Name)) != wire.SlotOf(a.Name) {
		return a, fmt.Errorf("lock name %q: Redisson's key and channel of it are in different slots of a cluster; a name must have "+
			"no braces, or a whole tag such as {user:7}", a.Name)
	}
	return a, nil
}

func (s *redissonStore) keys(name string) []string {
	if s.fenced {
		return []string{name, redissonToken + braced(name)}
	}
	return []string{name}
}

// topics returns the topics of the waiters of a lock. In a cluster a Redisson client publishes on
// sharded or on plain pub/sub, so waiters listen on both.
func (s *redissonStore) topics(name string) []subs.Topic {
	channel := redissonChannel + braced(name)
	if s.wire.Sharded() {
		return []subs.Topic{{Channel: channel}, {Channel: channel, Plain: true}}
	}
	return []subs.Topic{{Channel: channel}}
}

func (s *redissonStore) claim(ctx context.Context, a store.Claim, tries int) (acquireReply, wire.Answer, error) {
	c := &wire.Call{
		Script: s.scripts.redisson.acquire, Tries: tries, Patience: takingLimit(a), Yields: true,
		Unit:   wire.Unit{Keys: s.keys(a.Name), Args: []any{s.field(a.ID), lifetime.Millis(a.Kept(a.TTL))}},
		Acks:   a.Acks,
		Report: a.Report,
		Repeat: forTheRest,
	}
	answer, err := s.wire.Do(ctx, c)
	if err != nil {
		return acquireReply{}, answer, unsureOf(answer, err)
	}
	r, err := parseAcquireReply(c.Script, answer.Reply)
	if err == nil && r.status == statusKind {
		err = fmt.Errorf("%w: %q is %s", store.ErrKind, a.Name, r.owner)
	}
	return r, answer, unsureOf(answer, err)
}

func (s *redissonStore) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	r, answer, err := s.claim(ctx, a, boundTries)
	return s.taken(ctx, a, r, answer, err)
}

// Wait listens, and races for the lock whenever the lock may be free. A message wakes one waiter of
// each client, as callers wait behind each other.
func (s *redissonStore) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	w := waiting{progress: progress}
	var listeners [2]*subs.Listener // on the topics
	defer func() {
		for _, l := range listeners {
			if l != nil {
				l.Close()
			}
		}
	}()
	for i, t := range s.topics(a.Name) {
		listeners[i] = s.subs.Listening(t, "")
	}
	for {
		r, answer, err := s.claim(ctx, a, 0)
		w.unsure = w.unsure || answer.Unsure
		switch {
		case err != nil:
			return store.Lease{}, w.fail(err)
		case r.status == statusOurs:
			return s.keepOrUndo(ctx, w.ours(r.toLease(a, answer)), answer.Acked)
		}
		recheck := redissonRecheck(a, r)
		topics, notes := s.topics(a.Name), [2]<-chan subs.Note{}
		listening := !slices.Contains(listeners[:len(topics)], nil)
		w.refused(r, listening)
		for i, t := range topics {
			if listeners[i] == nil {
				if listeners[i], err = w.listen(ctx, s.subs, t, "", recheck); err != nil {
					return store.Lease{}, w.fail(err)
				}
			}
			if listeners[i] != nil {
				notes[i] = listeners[i].C()
			}
		}
		if !listening { // a message from before is lost
			continue
		}
		n, err := w.sleep(ctx, recheck, notes)
		if err != nil {
			return store.Lease{}, w.fail(err)
		}
		if n.Message {
			w.woken = store.WakeReleased
		}
	}
}

// redissonRecheck returns the time after which a waiter asks again by itself: the lease of the
// owner should be over. The waiter waits out only a part of a much longer lease, as a lock may be
// freed without a message, as by getSpinLock, or get another owner. A long TTL of its own is no
// reason to wait for longer, as waiters behind this waiter may have a short TTL.
func redissonRecheck(a store.Claim, r acquireReply) time.Duration {
	longest := max(min(a.TTL, usualTTL), longRecheck)
	d := min(r.remaining, longest)
	if d < 0 { // no lease
		d = min(a.TTL, longest)
	}
	return d + time.Millisecond + rand.N(5*time.Millisecond)
}

func (s *redissonStore) Release(ctx context.Context, l store.Lease) error {
	return s.free(ctx, &wire.Call{
		Script: s.scripts.redisson.release, Common: s.freeing(""), Unit: s.unit(l.Name, l.ID),
		Patience: attemptLimit(l.TTL), Report: l.Report,
	})
}

// freeing returns the common part of the arguments of release: the publish command, and the control
// channel of the client that has to look, or an empty string.
func (s *redissonStore) freeing(control string) []any {
	return append(slices.Clone(s.publish()), control)
}

func (s *redissonStore) unit(name string, id store.ID) wire.Unit {
	return wire.Unit{Keys: []string{name}, Args: []any{s.field(id), redissonChannel + braced(name)}}
}

func (s *redissonStore) Forget(ctx context.Context, claims []store.Claim) []error {
	units := make([]wire.Unit, len(claims))
	for i, a := range claims {
		units[i] = s.unit(a.Name, a.ID)
	}
	return forgotten(s.all(ctx, s.scripts.redisson.release, s.freeing(""), units))
}

// Token returns the token that was drawn with the hold, if the hold is there.
func (s *redissonStore) Token(ctx context.Context, l store.Lease) (int64, error) {
	if !s.fenced {
		return 0, fmt.Errorf("%w: locks of Redisson's layout have tokens only WithRedissonFencing", errors.ErrUnsupported)
	}
	state, err := s.Look(ctx, l.Claim)
	switch {
	case err != nil:
		return 0, err
	case string(state.Owner) != s.field(l.ID):
		return 0, store.ErrGone
	}
	return l.Token, nil
}

func (s *redissonStore) Look(ctx context.Context, a store.Claim) (store.State, error) {
	return s.look(ctx, a, s.keys(a.Name))
}

func (s *redissonStore) Break(ctx context.Context, a store.Claim) error {
	return s.free(ctx, &wire.Call{
		Script: s.scripts.redisson.release, Common: s.freeing(s.control(cutLast(s.field(a.ID), 1))),
		Unit: s.unit(a.Name, a.ID), Tries: boundTries, Report: a.Report,
	})
}

// CheckServer runs each script on a lock that nobody else uses. Its name begins with the name of a.
func (s *redissonStore) CheckServer(ctx context.Context, a store.Claim) error {
	name := a.Name
	a = newCheckClaim(a)
	a.Name = name + ":check:" + string(a.ID)
	token := ""
	if s.fenced {
		token = redissonToken + braced(a.Name)
	}
	return s.checkServer(ctx, s, a, s.topics(a.Name), token)
}
