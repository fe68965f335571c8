package relock

import (
	"cmp"
	"log/slog"
	"strings"
	"time"
)

// What an option may be.
const (
	// MinTTL is the shortest lease. Below it, one slow packet or one scheduling delay loses the lock.
	MinTTL = 10 * time.Millisecond
	// MaxTTL is the longest lease: a crashed holder keeps everybody else out that long.
	MaxTTL = 7 * 24 * time.Hour
	// MaxNameLen is the longest lock name in bytes, and the longest prefix.
	MaxNameLen = 1024
)

// The defaults.
const (
	DefaultTTL    = 30 * time.Second
	DefaultPrefix = "relock:"
)

// Option changes how locks behave. Given to [New] it is the default for all locks of the client; given to
// [Client.NewLock] it holds for that lock. Later options win over earlier ones. [WithRedissonLayout] is for New only. No
// option takes back [WithReplicaAcks], [WithLocalReentry] or [WithRedissonFencing]: a client that has one has it for all its locks.
type Option func(*settings)

// settings is what the options come to.
type settings struct {
	prefix       string
	hasPrefix    bool // it was given
	redisson     bool // WithRedissonLayout
	fenced       bool // WithRedissonFencing
	ofClient     bool // the client is made: what is for New comes too late
	ttl          time.Duration
	fixed        bool          // no watchdog
	maxHold      time.Duration // 0: no limit
	acks         int           // 0: no WAIT
	acksTimeout  time.Duration
	localReentry bool
	passes       int           // 0: no local pass
	passLimit    time.Duration // from when Redis gave the lock to this process
	logger       *slog.Logger
	hooks        Hooks

	err error // the first option that was wrong
}

func defaults() settings {
	return settings{prefix: DefaultPrefix, ttl: DefaultTTL, logger: silent}
}

// silent is the logger where none was given.
var silent = slog.New(slog.DiscardHandler)

// with is s changed by options, checked.
func (s settings) with(options []Option) (settings, error) {
	for _, option := range options {
		if option == nil {
			return s, invalid("an Option is nil; leave it out instead")
		}
		option(&s)
	}
	switch {
	case s.err != nil: // of an option by itself
	case s.maxHold > 0 && s.fixed:
		s.err = invalid("WithMaxHold(%s) with WithFixedLease(%s): a fixed lease is its own limit; leave WithMaxHold out, "+
			"or take it back with WithMaxHold(0)", s.maxHold, s.ttl)
	case s.maxHold > 0 && s.maxHold < s.ttl:
		s.err = invalid("WithMaxHold(%s): must be at least the TTL (%s)", s.maxHold, s.ttl)
	case s.redisson && s.hasPrefix:
		s.err = invalid("WithPrefix(%q) with WithRedissonLayout: Redisson's keys have no prefix, put it into the lock's name", s.prefix)
	case s.fenced && !s.redisson:
		s.err = invalid("WithRedissonFencing: it needs WithRedissonLayout, given to New; every other lock has a token by itself")
	case s.passes > 0 && s.fixed:
		s.err = invalid("WithLocalPass(%d, %s) with WithFixedLease(%s): what is passed on is a lease that is renewed; a fixed one begins with its hold; "+
			"use WithTTL in place of it", s.passes, s.passLimit, s.ttl)
	case s.passes > 0 && s.redisson:
		s.err = invalid("WithLocalPass with WithRedissonLayout: it is for this package's own layout only")
	}
	return s, s.err
}

func (s *settings) check(err error) {
	if s.err == nil {
		s.err = err
	}
}

// checkLease says whether d can be a lease in Redis, which counts whole milliseconds.
func checkLease(what string, d time.Duration) error {
	if d < MinTTL || d > MaxTTL || d%time.Millisecond != 0 {
		return invalid("%s(%s): must be whole milliseconds from %s to %s", what, d, MinTTL, MaxTTL)
	}
	return nil
}

// WithTTL sets the lease: how long Redis keeps the lock for a holder that has crashed. While the holder lives, a
// watchdog renews the lease every third of it, so the TTL is no limit to the length of a section. A shorter TTL frees a
// crashed holder's lock sooner, and survives only shorter interruptions between the holder and Redis.
//
// The default is [DefaultTTL]. It must be whole milliseconds from [MinTTL] to [MaxTTL].
func WithTTL(ttl time.Duration) Option {
	return func(s *settings) {
		s.check(checkLease("WithTTL", ttl))
		s.ttl, s.fixed = ttl, false
	}
}

// WithFixedLease makes the hold end after d unless it is extended with [Lock.Extend]: there is no watchdog. Re-entry
// does not renew it. The same limits as for [WithTTL] apply. It takes back an earlier [WithLocalPass], and [WithMaxHold] is
// refused beside it.
func WithFixedLease(d time.Duration) Option {
	return func(s *settings) {
		s.check(checkLease("WithFixedLease", d))
		s.ttl, s.fixed, s.passes = d, true, 0
	}
}

// WithMaxHold limits how long the watchdog keeps one hold alive: d after it began the lease ends, the section's context
// ends with [ErrLockLost] (reason [LossMaxHold]), and the lock goes to the next. It stops a section that hangs while its
// process is healthy. It must be at least the TTL and whole milliseconds; 0, the default, is no limit. With [WithFixedLease], which
// is its own limit, it is refused, whichever comes first; WithMaxHold(0) takes it back.
func WithMaxHold(d time.Duration) Option {
	return func(s *settings) {
		if d != 0 && (d < MinTTL || d%time.Millisecond != 0) {
			s.check(invalid("WithMaxHold(%s): must be 0 (no limit), or whole milliseconds and at least the TTL", d))
		}
		s.maxHold = d
	}
}

// WithPrefix sets what the Redis keys and channels of locks begin with; the default is [DefaultPrefix]. All clients
// that share a lock must use the same prefix. It may be empty, and is at most [MaxNameLen] bytes. A whole hash tag in it, such as
// "{app}:", puts all locks into one slot of a cluster; an empty one, "{}", is refused. With
// [WithRedissonLayout] there is none, and WithPrefix is refused.
func WithPrefix(prefix string) Option {
	return func(s *settings) {
		_, tag, _ := strings.Cut(prefix, "{")
		switch {
		case len(prefix) > MaxNameLen:
			s.check(invalid("WithPrefix: %d bytes; at most %d are allowed", len(prefix), MaxNameLen))
		case strings.HasPrefix(tag, "}"):
			s.check(invalid("WithPrefix(%q): it has an empty hash tag, and with it the keys of a lock different slots in a cluster; "+
				"a prefix must have no '{', or a whole tag such as {app}", prefix))
		}
		s.prefix, s.hasPrefix = prefix, true
	}
}

// WithLogger makes the client log to l: losses, leaks and hooks that panic as errors, trouble with Redis and dropped events as
// warnings, reconnects at level info, retries at level debug. The default is to log nothing. nil is not allowed.
//
// l is called by the goroutine that calls the hooks, and what is logged waits in one line with the events: if l is slow, both
// can be dropped, see [Hooks]. Given to a lock, l gets its losses, its leaks, and what may be left of it in Redis; all else goes to
// the client's logger.
//
// Attributes: lock, holder, token, reason, error, node, attempt, locks, script, channel, events, panic.
func WithLogger(l *slog.Logger) Option {
	return func(s *settings) {
		if l == nil {
			s.check(invalid("WithLogger(nil): leave the option out to log nothing"))
			return
		}
		s.logger = l
	}
}

// WithHooks calls functions of yours when something happens to a lock; see [Hooks]. It replaces the hooks of an earlier
// WithHooks. Of hooks that are given to a lock, Renewed, Reconnected, Retried and Dropped are not called: these are the client's.
func WithHooks(h Hooks) Option {
	return func(s *settings) { s.hooks = h }
}

// WithReplicaAcks makes a new hold count only when n replicas have confirmed it within timeout (the WAIT command). If
// fewer do, exactly this entry is undone and Lock returns [ErrNotReplicated]. It costs one replication round trip for
// each new hold, not for re-entries, renewals or local passes, and closes the usual gap of a failover: that the promoted replica has
// never heard of the lock. It does not close it entirely, since Redis may promote a replica that was not among the n.
//
// n is from 1 to 100; timeout is whole milliseconds, from 1 ms to [MaxTTL], and shorter than the ReadTimeout of the go-redis
// client, which would give up first. (An AutoPipeline does not tell its ReadTimeout, so there nobody checks that: with a longer
// timeout, and too few replicas, Lock asks in vain until ctx is done.)
func WithReplicaAcks(n int, timeout time.Duration) Option {
	return func(s *settings) {
		switch {
		case n < 1 || n > 100:
			s.check(invalid("WithReplicaAcks(%d, %s): n must be from 1 to 100", n, timeout))
		case timeout < time.Millisecond || timeout > MaxTTL || timeout%time.Millisecond != 0:
			s.check(invalid("WithReplicaAcks(%d, %s): the timeout must be whole milliseconds, from 1ms to %s", n, timeout, MaxTTL))
		}
		s.acks, s.acksTimeout = n, timeout
	}
}

// WithLocalReentry makes nested entries and exits cost no round trip: they are counted in this process only, and the
// count in Redis stays 1 until the last exit. A nested entry then relies on the local deadline of the lease (which ends
// before the lease in Redis does), instead of asking Redis.
func WithLocalReentry() Option {
	return func(s *settings) { s.localReentry = true }
}

// The bounds of WithLocalPass where none are given.
const (
	DefaultPasses    = 1000
	DefaultPassLimit = 10 * time.Millisecond
	// MaxPasses is the most passes that are allowed.
	MaxPasses = 10_000
)

// WithLocalPass lets a section that ends pass the lock to the next call of this Client that waits for it, without asking
// Redis. Where many goroutines of a process want one lock, that is many times faster. It is off by default, because it gives
// up order: waiters of other processes are overtaken, for a time that is bounded. (The algorithm is that of lock cohorting, by
// Dice, Marathe and Shavit, 2012.)
//
// A call that finds nobody of its process there takes the lock from Redis as ever, and gives it back there. The next one may
// pass it on: at most passes times, and not any more when limit has gone by since Redis gave the lock; the section that runs
// then is the last one. After that whoever is first in Redis's queue has the lock, and this process asks again, behind those
// who are queued. Until it has asked, a TryLock, or a Lock that comes just then, may be in before those who wait in its line.
// Within the line the order is that of arrival.
//
// passes is from 1 to [MaxPasses]; 0 is [DefaultPasses]. limit is whole milliseconds from 1 ms to [MaxTTL]; 0 is
// [DefaultPassLimit]. Anything else is [ErrInvalid], as are [WithRedissonLayout] and a [WithFixedLease] that is given earlier;
// one that is given later takes this option back, and nothing else does.
//
// What is passed on, and what is as ever:
//   - A lock is passed on only between calls through one Client with this option, the same TTL, and no more
//     [WithReplicaAcks] than the one before; between others it goes through Redis.
//   - Tokens grow as ever. [State.Token] may be ahead by the passes that are left.
//   - [Lock.State] and [LockedError] name the holder to whom the lock was passed some milliseconds later, and never hear of one
//     that has passed it on by then.
//   - [State.Waiters] counts nobody who waits in a line: one for a client that waits in Redis (or one for each call that asks for
//     itself, see below), none for the client that has the lock.
//   - The replicas of [WithReplicaAcks] are asked when Redis gives the lock to the process, not for each pass; [WithMaxHold]
//     counts anew from each pass.
//   - Where the lock is lost, or the call that asks Redis for the line gives up, the next one in the line asks; also where it
//     has had no answer for a third of the TTL, or for 10 s, and then it asks on for itself, with no place in the line any more. A process
//     that dies costs its waiters one TTL at most, as ever.
//   - An Unlock that passes the lock on does not notice that somebody has taken it away in Redis. Whoever has it in the process
//     some milliseconds later is told.
func WithLocalPass(passes int, limit time.Duration) Option {
	return func(s *settings) {
		switch {
		case passes < 0 || passes > MaxPasses:
			s.check(invalid("WithLocalPass(%d, %s): passes must be 0 (%d), or from 1 to %d", passes, limit, DefaultPasses, MaxPasses))
		case limit < 0 || limit > MaxTTL || limit%time.Millisecond != 0:
			s.check(invalid("WithLocalPass(%d, %s): the limit must be 0 (%s), or whole milliseconds from 1ms to %s",
				passes, limit, DefaultPassLimit, MaxTTL))
		}
		s.passes, s.passLimit = cmp.Or(passes, DefaultPasses), cmp.Or(limit, DefaultPassLimit)
	}
}

// millis is the one place where a Duration becomes the milliseconds that Redis wants. It rounds up: a lease is never
// shorter than asked for.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// fromMillis is the way back. Somebody else's key may have a time to live that no Duration can hold; -1 is
// none, and -2 no key.
func fromMillis(ms int64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return time.Duration(max(-2, min(ms, int64(most/time.Millisecond)))) * time.Millisecond
}
