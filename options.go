package relock

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// The limits of options.
const (
	// MinTTL is the shortest lease. One slow packet or one scheduling delay would lose a lock with
	// a shorter lease.
	MinTTL = 10 * time.Millisecond
	// MaxTTL is the longest lease: a crashed holder keeps everybody else out for the whole lease.
	MaxTTL = 7 * 24 * time.Hour
	// MaxNameLen is the longest lock name in bytes, and the longest prefix.
	MaxNameLen = 1024
)

// The defaults.
const (
	DefaultTTL    = 30 * time.Second
	DefaultPrefix = "relock:"
)

// Option changes the behavior of locks. An option of [New] or [Open] is the default for all locks
// of the client; an option of [Client.NewLock] holds for the one lock. Most services need no other
// than [WithTTL], [WithOwner], [WithLogger], [WithHooks] and [WithMaxHold]. Later options win over
// earlier options. [WithPrefix], [WithRestartDelay], [WithRedissonLayout] and [WithRedissonFencing]
// are for New and [RedisStore] only. [WithOwner], [WithTTLRange] and [WithReleaseOnClose] are for
// New and Open only. No option takes back [WithReplicaAcks], [WithAOFAcks] or [WithLocalReentry]: a
// client with such an option applies the option to all its locks. The zero Option changes nothing.
type Option struct {
	name  string // of the function that has made the option
	scope scope
	set   func(*settings)
}

// scope says where an option may be given.
type scope string

const (
	ofLock   scope = "New, Open and NewLock"
	ofClient scope = "New and Open"       // it is about all locks of a client
	ofRedis  scope = "New and RedisStore" // it says where Redis keeps locks
)

type settings struct {
	ttl          time.Duration
	fixed        bool          // no watchdog
	fixedHere    bool          // by an option of this call
	maxHold      time.Duration // 0: no limit
	delay        time.Duration // of WithLockDelay
	maxWaiters   int           // 0: no limit
	keep         time.Duration // of WithKeep; 0: free the lock with its Unlock
	acks         store.Acks
	localReentry bool
	logger       *slog.Logger // nil: log nothing
	hooks        event.Hooks
	traces       []func(event.AcquireStarted) (context.Context, event.TraceFinished) // of the hooks

	// Of the client as a whole.
	redis          layout
	owner          string
	shortest       time.Duration // of the TTLs, with WithTTLRange
	longest        time.Duration
	releaseOnClose bool

	err error // of the first wrong option
}

func defaults() settings {
	return settings{redis: defaultLayout(), ttl: DefaultTTL, shortest: MinTTL, longest: MaxTTL}
}

// with returns s changed by options of some scopes, checked.
func (s settings) with(options []Option, allowed ...scope) (settings, error) {
	s.fixedHere = false
	for _, option := range options {
		switch {
		case option.set == nil:
		case !slices.Contains(allowed, option.scope):
			s.check(invalid("%s is for %s only", option.name, option.scope))
		default:
			option.set(&s)
		}
	}
	r := &s.redis
	s.check(s.checkTTL(s.ttl))
	switch {
	case s.err != nil: // of an option by itself
	case s.maxHold > 0 && s.fixed:
		s.err = invalid("WithMaxHold(%s) with WithFixedLease(%s): a fixed lease is its own limit; leave WithMaxHold out, "+
			"or take it back with WithMaxHold(0)", s.maxHold, s.ttl)
	case s.maxHold > 0 && s.maxHold < s.ttl:
		s.err = invalid("WithMaxHold(%s): must be at least the TTL (%s)", s.maxHold, s.ttl)
	case s.keep > 0 && s.fixed:
		s.err = invalid("WithKeep(%s) with WithFixedLease(%s): nobody renews a fixed lease; leave one of them out, or take the first back with WithKeep(0)",
			s.keep, s.ttl)
	case s.keep > 0 && s.maxWaiters > 0:
		s.err = invalid("WithKeep(%s) with WithMaxWaiters(%d): calls of one client wait in no queue; leave one of them out, or take the first back with WithKeep(0)",
			s.keep, s.maxWaiters)
	case r.Redisson && r.hasPrefix:
		s.err = invalid("WithPrefix(%q) with WithRedissonLayout: Redisson's keys have no prefix, put it into the lock's name", r.Prefix)
	case r.Redisson && r.Delay > 0:
		s.err = invalid("WithRestartDelay with WithRedissonLayout: it is for this package's own layout only")
	}
	return s, s.err
}

func (s *settings) check(err error) {
	if s.err == nil {
		s.err = err
	}
}

func checkName(name string) error {
	switch {
	case name == "":
		return invalid("lock name is empty; 1 to %d bytes are allowed", MaxNameLen)
	case len(name) > MaxNameLen:
		return invalid("lock name has %d bytes; at most %d are allowed", len(name), MaxNameLen)
	}
	return nil
}

// checkLease says whether d can be a lease, which is in whole milliseconds.
func checkLease(what string, d time.Duration) error {
	if d < MinTTL || d > MaxTTL || d%time.Millisecond != 0 {
		return invalid("%s(%s): must be whole milliseconds from %s to %s", what, d, MinTTL, MaxTTL)
	}
	return nil
}

func (s *settings) checkTTL(d time.Duration) error {
	if d < s.shortest || d > s.longest {
		return invalid("a lease of %s: WithTTLRange allows this client %s to %s", d, s.shortest, s.longest)
	}
	return nil
}

// WithTTL sets the lease: the time for which the store keeps the lock of a crashed holder. While
// the holder lives, a watchdog renews the lease every third of it, so the TTL is no limit to the
// length of a section. A shorter TTL frees a crashed holder's lock sooner, and survives only
// shorter interruptions between the holder and the store.
//
// The default is [DefaultTTL]. WithTTL for a lock takes back the [WithFixedLease] of its client;
// after a WithFixedLease of the same call, WithTTL is refused. ttl must be whole milliseconds from
// [MinTTL] to [MaxTTL].
func WithTTL(ttl time.Duration) Option {
	return Option{"WithTTL", ofLock, func(s *settings) {
		s.check(checkLease("WithTTL", ttl))
		if s.fixedHere {
			s.check(invalid("WithTTL(%s) after WithFixedLease(%s): a lease is renewed or fixed; leave one of them out", ttl, s.ttl))
		}
		s.ttl, s.fixed = ttl, false
	}}
}

// WithFixedLease makes the hold end after d, unless [Lock.Extend] extends the lease: no watchdog
// renews the lease, and neither does re-entry. The limits of [WithTTL] apply to d. WithFixedLease
// takes back an earlier WithTTL, and excludes [WithMaxHold].
func WithFixedLease(d time.Duration) Option {
	return Option{"WithFixedLease", ofLock, func(s *settings) {
		s.check(checkLease("WithFixedLease", d))
		s.ttl, s.fixed, s.fixedHere = d, true, true
	}}
}

// WithMaxHold limits how long the watchdog keeps one hold alive: at d after the begin of the hold
// the lease ends, the section's context ends with [ErrLockLost] (reason [event.LossMaxHold]), and
// the lock goes to the next waiter. WithMaxHold stops a section that hangs while its process is
// healthy. d must be at least the TTL and whole milliseconds; 0, the default, is no limit.
// WithMaxHold together with [WithFixedLease], in any order, is refused, as a fixed lease is its own
// limit. WithMaxHold(0) takes an earlier WithMaxHold back.
func WithMaxHold(d time.Duration) Option {
	return Option{"WithMaxHold", ofLock, func(s *settings) {
		if d != 0 && (d < MinTTL || d%time.Millisecond != 0) {
			s.check(invalid("WithMaxHold(%s): must be 0 (no limit), or whole milliseconds and at least the TTL", d))
		}
		s.maxHold = d
	}}
}

// WithTTLRange limits the leases that the locks of a client may have: [WithTTL], [WithFixedLease]
// and [Lock.Extend] refuse any other lease with [ErrInvalid]. Use it where the TTLs come
// from a configuration. shortest and longest are
// from [MinTTL] to [MaxTTL], the default range. If [DefaultTTL] is outside of the range, the client
// needs a TTL too. WithTTLRange is for [New] and [Open] only.
func WithTTLRange(shortest, longest time.Duration) Option {
	return Option{"WithTTLRange", ofClient, func(s *settings) {
		if shortest < MinTTL || longest > MaxTTL || shortest > longest {
			s.check(invalid("WithTTLRange(%s, %s): must be a range from %s to %s", shortest, longest, MinTTL, MaxTTL))
		}
		s.shortest, s.longest = shortest, longest
	}}
}

// WithLockDelay keeps a lost lock from everybody for d more. A holder that has not noticed its loss
// yet, as its process stood still, has this time to wake up and stop before the next holder begins.
// A section ends at its TTL, and the store keeps the lock d longer: the lock of a crashed holder is
// free after both. An Unlock, [Lock.ForceUnlock] and [WithReleaseOnClose] free
// the lock at once. A holder that stands still for longer can be stopped by nothing but its fencing
// token. (The idea is the lock-delay of Chubby, and of Consul, where 15 s is usual.)
//
// d is whole milliseconds, up to [MaxTTL]; 0 is the default. [State] and [LockedError] count d as
// part of the lease. All clients that share a lock should have the same d: each hold has its own.
func WithLockDelay(d time.Duration) Option {
	return Option{"WithLockDelay", ofLock, func(s *settings) {
		if d < 0 || d > MaxTTL || d%time.Millisecond != 0 {
			s.check(invalid("WithLockDelay(%s): must be 0, or whole milliseconds up to %s", d, MaxTTL))
		}
		s.delay = d
	}}
}

// WithMaxWaiters refuses a call that would have to wait behind n others: the call ends with
// [ErrQueueFull], which matches [ErrLocked], in place of a wait that is long. A call learns its
// place by joining the queue, and leaves the queue again when refused; a call that does not want to
// wait at all is [Lock.TryLock]. For a service with more work than it can do, a quick refusal is
// better than a queue. Waiters whose processes have died count until their turn. The sections of a
// lock with a limit are not handed on inside the process, so that the queue has nobody who was
// served. A candidate of package leader ends with a refusal.
//
// n is at least 1; 0, the default, is no limit. A store whose waiters race, such as
// [WithRedissonLayout], has no queue to count, so the locks of such a client are [ErrInvalid].
func WithMaxWaiters(n int) Option {
	return Option{"WithMaxWaiters", ofLock, func(s *settings) {
		if n < 0 {
			s.check(invalid("WithMaxWaiters(%d): must be at least 1, or 0 for no limit", n))
		}
		s.maxWaiters = n
	}}
}

// WithKeep makes the client keep the lock after the last Unlock, until somebody else asks for the
// lock, and for d at most: the next Lock of this client enters without a command. WithKeep is for a
// lock that one process takes again and again, and others seldom, such as the cart of a session.
// Where others want the lock all the time it costs messages, and wins nothing. As an option of a
// client it keeps each name that was locked, and renews the lease of each.
//
// For others a lock that is kept is taken, and a crash costs a lease, as ever. In this process no
// section is open, and [State.Kept] is true. A call elsewhere asks the client by a message, as
// [Lock.Ask] does, and the client frees the lock at once, or at the end of the section in progress.
// If the message is lost, the call asks again when it looks at the store next, at the end of the
// lease at the latest. A TryLock elsewhere asks, and tries once more 10 ms later.
//
// Calls of this client stand in a line in the process, first come, first served. They pass the lock
// on without a command if their TTL, [WithLockDelay] and acks are the same. The line ends when
// another client, or a call without WithKeep, asks for the lock: whoever asks comes first, and
// those in the line go to the queue in the store, together, and may change places among each other.
// Then the order is that of the queue, and nothing is kept, until the client has no call and no
// section of the lock for a moment.
//
// The client does not keep a lock that was granted out of the queue, the lock of a leader, a lock
// whose ticket is open, and a lock whose lease is in doubt or half over. The loss of a kept lock
// ends no section: the next Lock asks the store. If the client does not know of the loss yet, as
// after a failover, a section may begin beside another one, and is told at the next renewal; an
// Unlock is not told. Each section has its own token and events. [All] takes such locks one after
// the other. [Client.Close] frees what is kept.
//
// d counts from the store's grant, for all sections with this lease, and is from 0, the default, to
// [MaxTTL]. All clients of a lock need this version of relock or a newer one: an earlier one does
// not ask, and waits for d and a section. WithKeep is [ErrInvalid] with [WithFixedLease] or
// [WithMaxWaiters], for a read-write lock or a semaphore, and with a store that has no queue or
// cannot tell the client ([errors.ErrUnsupported]): ZooKeeper, Kubernetes, SQL but PostgreSQL with
// a Listener, Redis [WithRedissonLayout], and a quorum.
func WithKeep(d time.Duration) Option {
	return Option{"WithKeep", ofLock, func(s *settings) {
		if d < 0 || d > MaxTTL {
			s.check(invalid("WithKeep(%s): must be from 0 to %s", d, MaxTTL))
		}
		s.keep = d
	}}
}

// WithLogger makes the client log to l: losses, leaks and hooks that panic as errors, trouble with
// the store and dropped events as warnings, reconnects and a go-redis client without
// ContextTimeoutEnabled ([New]) at level info, retries at level debug. The default is to log
// nothing. nil is not allowed.
//
// The goroutine of the hooks calls l, and log records wait in one queue with the events: if l is
// slow, both can be dropped, see [event.Hooks]. The logger of a single lock gets its losses, its
// leaks, and warnings of remains in Redis; all else goes to the client's logger.
//
// Attributes: lock, holder, token, reason, error, node, attempt, locks, script, channel, events,
// panic, stack.
func WithLogger(l *slog.Logger) Option {
	return Option{"WithLogger", ofLock, func(s *settings) {
		if l == nil {
			s.check(invalid("WithLogger(nil): leave the option out to log nothing"))
			return
		}
		s.logger = l
	}}
}

// WithHooks sets functions to call for the events of a lock; see [event.Hooks]. WithHooks replaces
// the hooks of an earlier WithHooks. Renewed, Reconnected, Retried and Dropped are hooks of the
// client, and are not called if given to a lock.
func WithHooks(h event.Hooks) Option {
	return Option{"WithHooks", ofLock, func(s *settings) { s.hooks, s.traces = h, h.Traces() }}
}

// WithReplicaAcks makes a new hold count only when n replicas have confirmed it within timeout (the
// WAIT command). If fewer replicas confirm, exactly this entry is undone and Lock returns
// [ErrNotReplicated].
//
// A renewal counts only when n replicas have confirmed it, too. A renewal that fewer replicas
// confirm leaves the deadline of the hold as it is, and is sent again until the deadline. So a hold
// is lost if n replicas confirm nothing for a TTL. [Lock.Extend] returns ErrNotReplicated then, and
// the deadline is as before. Nested entries and exits do not move the deadline.
//
// WithReplicaAcks costs one replication round trip for each new hold, and one for each batch of
// renewals; entries and exits cost none. A replica that has confirmed knows the lock
// until the deadline at least. The usual gap of a failover, a promoted replica without the lock,
// remains only for a replica that was not among the n.
//
// n is from 1 to 100; timeout is whole milliseconds, from 1 ms to [MaxTTL], and shorter than the
// ReadTimeout of the go-redis client, which would give up first. (An AutoPipeline does not show its
// ReadTimeout, so the timeout is not checked: with a longer timeout, and too few replicas, Lock
// asks in vain until ctx is done.)
func WithReplicaAcks(n int, timeout time.Duration) Option {
	return withAcks("WithReplicaAcks", 1, store.Acks{Replicas: n, Timeout: timeout})
}

// WithAOFAcks makes a new hold count only when the server, and n replicas, have the hold in their
// append-only files on disk (the WAITAOF command, of Redis 7.2 or newer, and of Valkey). So a
// server that restarts still knows the lock, also with appendfsync everysec. In all else
// WithAOFAcks is [WithReplicaAcks], also for renewals, and takes back an earlier WithReplicaAcks:
// if fewer servers confirm within timeout, this entry is undone, and Lock returns
// [ErrNotReplicated]. With appendfsync everysec a new hold takes up to a second, with appendfsync
// always about as long as the disk.
//
// n is from 0 to 100. A server without an append-only file refuses, as [Client.Check] tells at the
// start.
func WithAOFAcks(n int, timeout time.Duration) Option {
	return withAcks("WithAOFAcks", 0, store.Acks{Replicas: n, Disk: true, Timeout: timeout})
}

func withAcks(option string, least int, a store.Acks) Option {
	return Option{option, ofLock, func(s *settings) {
		if a.Replicas < least || a.Replicas > 100 {
			s.check(invalid("%s(%d, %s): n must be from %d to 100", option, a.Replicas, a.Timeout, least))
		}
		if a.Timeout < time.Millisecond || a.Timeout > MaxTTL || a.Timeout%time.Millisecond != 0 {
			s.check(invalid("%s(%d, %s): the timeout must be whole milliseconds, from 1ms to %s", option, a.Replicas, a.Timeout, MaxTTL))
		}
		s.acks = a
	}}
}

// WithLocalReentry makes nested entries and exits cost no round trip: this process alone counts
// them, and the count in Redis stays 1 until the last exit. A nested entry relies on the local
// deadline of the lease, before the end of the lease in Redis, and does not ask Redis.
func WithLocalReentry() Option {
	return Option{"WithLocalReentry", ofLock, func(s *settings) { s.localReentry = true }}
}

// WithOwner puts a name in front of the client's ID, such as "orders@pod-7" or "10.0.0.7:8080", so
// that refusals, [State], logs and the command relock name the owner of a lock, and followers find
// the address of a leader. The name is 1 to 64 letters, digits and any of ._@:[]- . WithOwner is
// for [New] and [Open].
func WithOwner(name string) Option {
	return Option{"WithOwner", ofClient, func(s *settings) {
		bad := strings.IndexFunc(name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._@:[]-", r))
		})
		if name == "" || len(name) > 64 || bad >= 0 {
			s.check(invalid("WithOwner(%q): must be 1 to 64 letters, digits and any of ._@:[]-", name))
		}
		s.owner = name
	}}
}

// WithReleaseOnClose makes [Client.Close] free all held locks, in place of leaving each lock to the
// end of its lease. The contexts of the sections end first, but the work in a section may go on for
// a moment: use WithReleaseOnClose if Close comes after the work. Unlock of such a section returns
// [ErrClosed]. WithReleaseOnClose is for [New] and [Open].
func WithReleaseOnClose() Option {
	return Option{"WithReleaseOnClose", ofClient, func(s *settings) { s.releaseOnClose = true }}
}
