package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file keeps mutexes in relock's own layout. Waiting is in wait.go.

// baseKey returns the key of a lock: prefix{name}, or prefix+name if the name has a hash tag. All
// keys and channels of the lock begin with the base key, and share its slot. A base key is its own
// base key.
func baseKey(prefix, name string) (string, error) {
	base := prefix + "{" + name + "}"
	if hashTag(name) != "" {
		suffixes := []string{queueSuffix, tokenSuffix, rwSuffix, permitsSuffix, loansSuffix, waitsSuffix, ticketSuffixOf(name)}
		for _, suffix := range suffixes {
			if suffix != "" && strings.HasSuffix(name, suffix) {
				return "", fmt.Errorf("lock name %q: a name with a hash tag must not end in %q, which is a key of another lock", name, suffix)
			}
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

// ticketSuffixOf returns the suffix of a name that looks like the key of a ticket, an empty string
// for other names. The ID of a ticket is a UUID.
func ticketSuffixOf(name string) string {
	at := max(len(name)-len(ticketInfix)-len(uuid.Nil.String()), 0)
	suffix := name[at:]
	if id, is := strings.CutPrefix(suffix, ticketInfix); is && uuid.Validate(id) == nil {
		return suffix
	}
	return ""
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

// nativeStore keeps locks in relock's own layout. The name of a claim is the base key of its lock.
type nativeStore struct {
	*redisStore
	waited waited
	looks  looks
}

var _ store.Listing = (*nativeStore)(nil)

// Check returns the claim with the base key of its lock as its name.
func (s *nativeStore) Check(a store.Claim) (store.Claim, error) {
	err := s.checkClaim(a)
	switch {
	case err != nil:
	case a.Limit < 1:
		err = fmt.Errorf("a limit of %d holds lets nobody in", a.Limit)
	case a.Kind == store.Mutex && a.Limit != 1:
		err = fmt.Errorf("%w: a mutex lets one in at a time, and not %d", errors.ErrUnsupported, a.Limit)
	case a.Kind < store.Mutex || a.Kind > store.Semaphore:
		err = fmt.Errorf("%w: %s", errors.ErrUnsupported, a.Kind)
	}
	if err == nil {
		a.Name, err = baseKey(s.prefix, a.Name)
	}
	return a, err
}

func (s *nativeStore) topic(a store.Claim) subs.Topic {
	return subs.Topic{Channel: a.Name + ":" + cutLast(string(a.ID), 2)}
}

func (s *nativeStore) unit(name string, args ...any) wire.Unit {
	u := new(struct { // in one allocation
		keys [2]string
		args [3]any
	})
	u.keys = [2]string{name, name + queueSuffix}
	return wire.Unit{Keys: u.keys[:], Args: u.args[:copy(u.args[:], args)]}
}

// noPlace is the arrival of a hold that must not queue, newPlace the arrival of a new waiter.
const noPlace, newPlace = "", "0"

func (s *nativeStore) acquireUnit(a store.Claim, ttl int64, arrival string) wire.Unit {
	if a.Kind == store.Mutex {
		return s.unit(a.Name, string(a.ID), ttl, arrival)
	}
	return kindUnit(a, ttl, arrival)
}

// claim asks for a lock, and queues unless arrival is noPlace.
func (s *nativeStore) claim(ctx context.Context, a store.Claim, arrival string, tries int) (acquireReply, wire.Answer, error) {
	script := s.scripts.mutex.acquire
	if a.Kind != store.Mutex {
		script = s.scripts.kinds.acquire
	}
	c := &wire.Call{
		Unit: s.acquireUnit(a, lifetime.Millis(a.Kept(a.TTL)), arrival), Tries: tries, Patience: takingLimit(a),
		Yields: true, Acks: a.Acks, Report: a.Report,
	}
	c.Script, c.Common = s.entering(script)
	if arrival == noPlace { // a waiter overtakes nobody, and the TTL is part of its place
		c.Repeat = forTheRest
	}
	answer, err := s.wire.Do(ctx, c)
	if err != nil {
		return acquireReply{}, answer, s.explained(ctx, a, unsureOf(answer, err))
	}
	r, err := parseAcquireReply(c.Script, answer.Reply)
	switch {
	case err != nil:
	case r.status == statusKind:
		err = wrongKind(a, r.owner)
	case r.status == statusCircle:
		err = store.ErrDeadlock
	}
	return r, answer, unsureOf(answer, err)
}

// forTheRest makes the arguments of a repeat that takes a lock for the rest of its lease.
func forTheRest(first []any, elapsed time.Duration) []any {
	return withLease(first, repeatMillis(fromMillis(first[1].(int64)), elapsed))
}

// withLease returns arguments of a script acquire or renew, with another lease.
func withLease(args []any, millis int64) []any {
	args = slices.Clone(args)
	args[1] = millis // for each kind of lock
	return args
}

// repeatMillis returns the lease that a repeat sets: after 4 s or 14 s, 6 s of a TTL of 10 s.
func repeatMillis(ttl, elapsed time.Duration) int64 { return max(lifetime.Millis(ttl-elapsed%ttl), 1) }

func (s *nativeStore) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	r, answer, err := s.claim(ctx, a, noPlace, boundTries)
	return s.taken(ctx, a, r, answer, err)
}

// Release needs no queue in a migrating slot: acquire makes none there, and others arrive soon.
func (s *nativeStore) Release(ctx context.Context, l store.Lease) error {
	c := &wire.Call{Common: s.publish(), Patience: attemptLimit(l.TTL), Report: l.Report}
	switch {
	case l.Lender != "" || l.Lent:
		c.Script, c.Unit = s.leavingLoans(l.Claim)
	case hasServed(l):
		c.Script, c.Unit, c.Migrating = s.scripts.served, s.served(l), &s.scripts.migrating
	case l.Kind == store.Mutex:
		c.Script, c.Unit, c.Migrating = s.scripts.mutex.release, s.unit(l.Name, string(l.ID)), &s.scripts.migrating
	default:
		c.Script, c.Unit = s.scripts.kinds.release, kindUnit(l.Claim, 0, "")
	}
	err := s.free(ctx, c)
	if err == nil { // otherwise Forget follows
		s.waited.end(l.ID)
	}
	return err
}

// leavingLoans returns the script that ends a loan, or a hold that may have lent its lock.
func (s *nativeStore) leavingLoans(a store.Claim) (*wire.Script, wire.Unit) {
	keys := []string{a.Name, a.Name + queueSuffix, a.Name + loansSuffix}
	if a.Lender != "" {
		return s.scripts.giveBack, wire.Unit{Keys: keys, Args: []any{string(a.Lender), string(a.ID)}}
	}
	return s.scripts.recall, wire.Unit{Keys: keys, Args: []any{string(a.ID)}}
}

// Enter sets the lease, and the count of a mutex. Other kinds keep no count in Redis.
func (s *nativeStore) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	defer s.waited.lasts(l.ID, l.Kept(l.TTL))
	if l.Kind == store.Mutex {
		return s.redisStore.Enter(ctx, l, count)
	}
	unit := kindUnit(l.Claim, lifetime.Millis(l.Kept(l.TTL)), "")
	return s.enter(ctx, l, &wire.Call{Script: s.scripts.kinds.renew, Common: s.publish(), Unit: unit})
}

func (s *nativeStore) Renew(ctx context.Context, renewals []store.Renewal) []error {
	type group struct {
		isMutex bool
		acks    store.Acks
	}
	of := func(r store.Renewal) group { return group{r.Lease.Kind == store.Mutex, acksOf(r)} }
	defer func() {
		for _, r := range renewals {
			s.waited.lasts(r.Lease.ID, r.Lease.Kept(r.TTL))
		}
	}()
	return inGroups(renewals, of, func(g group, same []store.Renewal) []error {
		if g.isMutex {
			return s.allAcked(ctx, s.scripts.mutex.renew, nil, s.renewals(same), g.acks)
		}
		units := make([]wire.Unit, len(same))
		for i, r := range same {
			units[i] = kindUnit(r.Lease.Claim, lifetime.Millis(r.Lease.Kept(r.TTL)), "")
		}
		return s.allAcked(ctx, s.scripts.kinds.renew, s.publish(), units, g.acks)
	})
}

func (s *nativeStore) Forget(ctx context.Context, claims []store.Claim) []error {
	for _, a := range claims {
		s.waited.end(a.ID)
	}
	scriptOf := func(a store.Claim) *wire.Script { script, _ := s.forgetting(a); return script }
	return forgotten(inGroups(claims, scriptOf, func(script *wire.Script, same []store.Claim) []error {
		units := make([]wire.Unit, len(same))
		for i, a := range same {
			_, units[i] = s.forgetting(a)
		}
		return s.all(ctx, script, s.publish(), units)
	}))
}

func (s *nativeStore) forgetting(a store.Claim) (*wire.Script, wire.Unit) {
	switch kept := lifetime.Millis(a.Kept(a.TTL)); {
	case a.Lender != "" || a.Lent:
		return s.leavingLoans(a)
	case a.Kind == store.Mutex:
		return s.scripts.mutex.forget, s.unit(a.Name, string(a.ID), kept)
	default:
		return s.scripts.kinds.forget, kindUnit(a, kept, "")
	}
}

// Token draws a token above l.Token.
func (s *nativeStore) Token(ctx context.Context, l store.Lease) (int64, error) {
	c := &wire.Call{Tries: boundTries, Patience: attemptLimit(l.TTL), Report: l.Report}
	if l.Kind == store.Mutex {
		c.Script = s.scripts.mutex.token
		c.Unit = wire.Unit{Keys: []string{l.Name, l.Name + tokenSuffix}, Args: []any{string(l.ID), l.Token}}
	} else {
		c.Script, c.Common, c.Unit = s.scripts.kinds.token, s.publish(), kindUnit(l.Claim, 0, "")
	}
	token, _, err := s.number(ctx, c)
	if err == nil && token == 0 {
		err = store.ErrGone
	}
	return token, err
}

func (s *nativeStore) Look(ctx context.Context, a store.Claim) (store.State, error) {
	if a.Kind == store.Mutex {
		state, err := s.look(ctx, a, []string{a.Name, a.Name + tokenSuffix, a.Name + queueSuffix})
		return state, s.explained(ctx, a, err)
	}
	return s.lookKind(ctx, a)
}

// Waiters implements [store.Queueing]. The queue alone does not tell the kind of its lock.
func (s *nativeStore) Waiters(ctx context.Context, a store.Claim, most int) (all []store.Waiter, err error) {
	c := &wire.Call{
		Script: s.scripts.waiters, Common: s.publish(), Tries: boundTries, Report: a.Report, Yields: true,
		Unit: wire.Unit{Keys: []string{a.Name + suffix(a.Kind) + queueSuffix}, Args: []any{a.Name, most - 1}},
	}
	answer, err := s.wire.Do(ctx, c)
	if err != nil {
		return nil, unsureOf(answer, err)
	}
	now := time.Now()
	fields, is := answer.Reply.([]any)
	if !is {
		return nil, fmt.Errorf("%w: the user may not call ZRANGE, TIME or PUBSUB", errors.ErrUnsupported)
	}
	for place := range slices.Chunk(fields, 3) {
		var id, letter string
		var waited int64
		if !scan(place, &id, &letter, &waited) {
			return nil, badReply(c.Script, answer.Reply)
		}
		w := store.Waiter{ID: store.ID(id), Limit: 1}
		if a.Kind != store.Mutex {
			_, w.Limit = ofLetter(letter)
		}
		if waited >= 0 {
			w.Since = now.Add(-fromMillis(waited))
		}
		all = append(all, w)
	}
	return all, nil
}

func (s *nativeStore) Break(ctx context.Context, a store.Claim) error {
	control := s.controlOf(a.ID)
	c := &wire.Call{Common: s.publish(), Tries: boundTries, Report: a.Report}
	if a.Kind == store.Mutex {
		c.Script, c.Unit = s.scripts.mutex.broken, s.unit(a.Name, string(a.ID), control)
	} else {
		c.Script, c.Unit = s.scripts.kinds.broken, kindUnit(a, 0, control)
	}
	return s.free(ctx, c)
}

// Want publishes a hold on the control channel of its client, behind a mark that earlier versions
// take for no hold of theirs.
func (s *nativeStore) Want(ctx context.Context, a store.Claim) error {
	return s.send(ctx, s.controlOf(a.ID), wantMark+string(a.ID))
}

// Announce publishes the hold on a channel of the lock.
func (s *nativeStore) Announce(ctx context.Context, a store.Claim) error {
	return s.send(ctx, a.Name+leaderSuffix, "changed") // an empty message would be dropped
}

func (s *nativeStore) Announced(name string, heard func()) (stop func()) {
	ctx, cancel := context.WithCancel(s.life)
	s.group.GoOpen(func() { s.listen(ctx, name+leaderSuffix, func(string) { heard() }) })
	return cancel
}

// send publishes a message, in one attempt.
func (s *nativeStore) send(ctx context.Context, channel, message string) error {
	sent := make(chan error, 1) // go-redis may wait for longer than ctx lasts
	s.group.Go(func() {
		err := attempts.ErrEnded // if a hook of go-redis ends the goroutine
		defer func() { sent <- err }()
		err = s.rdb.Publish(ctx, channel, message).Err()
	})
	select {
	case err := <-sent:
		if err != nil && !wire.Refused(err) {
			err = store.Unavailable(err)
		}
		return err
	case <-ctx.Done():
		return lifetime.Ended(ctx)
	}
}

const leaderSuffix = ":leader"

const wantMark = "?"

// WatchWanted begins anew if the server refuses the channel, as while its users are configured.
func (s *nativeStore) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	ctx, cancel := context.WithCancel(s.life)
	s.group.GoOpen(func() {
		for ctx.Err() == nil {
			s.listen(ctx, s.control(client), func(message string) {
				if hold, is := strings.CutPrefix(message, wantMark); message == "" || is && cutLast(hold, 2) == client {
					wanted(store.ID(hold))
				}
			})
			if lifetime.Sleep(ctx.Done(), deafPause) {
				wanted("")
			}
		}
	})
	return cancel
}

// deafPause is the time until a client that was refused its control channel listens there again.
const deafPause = 10 * time.Second

func (s *nativeStore) CheckServer(ctx context.Context, a store.Claim) error {
	a = newCheckClaim(a)
	a.Name, _ = baseKey(s.prefix, "check:"+string(a.ID))
	topic := subs.Topic{Channel: a.Name + ":" + string(a.ID)}
	return s.checkServer(ctx, s, a, []subs.Topic{topic}, a.Name+tokenSuffix)
}
