package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

// This file reads locks. The file knows two things that the library does not export: the key of a
// lock, and the members of a queue. docs/DESIGN.md describes both.

// keyOf returns the key of a lock: prefix{name}, or prefix+name if the name has a hash tag. A name
// that is such a key already stays as it is.
func keyOf(prefix, name string) string {
	switch {
	case !hasTag(name):
		return prefix + "{" + name + "}"
	case strings.HasPrefix(name, prefix):
		return name
	default:
		return prefix + name
	}
}

// hasTag says whether Redis finds a hash tag in s: something between the first { and the first }
// behind it.
func hasTag(s string) bool {
	_, rest, _ := strings.Cut(s, "{")
	tag, _, closed := strings.Cut(rest, "}")
	return closed && tag != ""
}

// holderForm matches holders of relock: a UUID with the owner's name in front if there is one, and a
// number.
var holderForm = regexp.MustCompile(`^([][A-Za-z0-9._@:-]{1,64}/)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+$`)

// lockInfo is the JSON of a lock, for show, ls and watch. Fields without a value are left out.
type lockInfo struct {
	Name    string      `json:"name"`
	NameB64 string      `json:"name_base64,omitempty"`
	Kind    kind        `json:"kind,omitempty"` // empty: nobody has the lock, and nobody waits
	Held    bool        `json:"held"`
	Holder  string      `json:"holder,omitempty"`
	Mode    relock.Mode `json:"mode,omitempty"`     // of Holder
	Count   int         `json:"count,omitempty"`    // of a mutex, which alone has the count in Redis
	LeaseMs *int64      `json:"lease_ms,omitempty"` // the rest of the lease
	Others  []other     `json:"others,omitempty"`   // the other holders
	Token   int64       `json:"token,omitempty"`    // the last one that was drawn, by whichever hold
	Waiters int         `json:"waiters"`
	WaitMs  *int64      `json:"longest_wait_ms,omitempty"`
	Queue   []waiter    `json:"queue,omitempty"` // by turn; only show

	lock *relock.Lock
}

// other is one more holder of a lock.
type other struct {
	Holder  string      `json:"holder"`
	Mode    relock.Mode `json:"mode"`
	LeaseMs int64       `json:"lease_ms"`
}

// holders returns the names of all holders, the one of lockInfo.Holder first.
func (i lockInfo) holders() []string {
	if !i.Held {
		return nil
	}
	all := []string{i.Holder}
	for _, o := range i.Others {
		all = append(all, o.Holder)
	}
	return all
}

// base64Of returns the base64 of a name that is not UTF-8, and that JSON therefore changes; empty
// for all other names.
func base64Of(name string) string {
	if utf8.ValidString(name) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(name))
}

// waiter is one place in a queue.
type waiter struct {
	Holder string      `json:"holder"`
	Mode   relock.Mode `json:"mode"`
	// A reader that waits to write stands before all others, and Redis does not keep since when.
	Since  *time.Time `json:"since,omitempty"`
	WaitMs *int64     `json:"wait_ms,omitempty"`
}

// reader reads locks.
type reader struct {
	rdb    redis.UniversalClient // nil: a quorum or another store has the locks
	client *relock.Client
	prefix string
	limit  time.Duration // for each answer of Redis, and not for all answers together

	mutexesOnly bool // all locks are mutexes, see connection.mutexesOnly
}

// ask limits the time for one question to Redis.
func (r *reader) ask(ctx context.Context, question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	return question(ctx)
}

// read is ask for a question without the library. Like the library, read asks again when no answer
// comes.
func (r *reader) read(ctx context.Context, question func(context.Context) error) error {
	return r.ask(ctx, func(ctx context.Context) (err error) {
		for range tries {
			err = question(ctx)
			var late net.Error
			if ctx.Err() != nil || !errors.As(err, &late) || !late.Timeout() {
				return err
			}
		}
		return err
	})
}

// state asks Redis about a lock.
func (r *reader) state(ctx context.Context, lock *relock.Lock) (state relock.State, err error) {
	err = r.ask(ctx, func(ctx context.Context) (err error) {
		state, err = lock.State(ctx)
		return err
	})
	return state, err
}

// node returns the server that has a key.
func (r *reader) node(ctx context.Context, key string) (node *redis.Client, err error) {
	switch rdb := r.rdb.(type) {
	case *redis.ClusterClient:
		err = r.read(ctx, func(ctx context.Context) (err error) {
			node, err = rdb.MasterForKey(ctx, key)
			return err
		})
		return node, err
	case *redis.Client:
		return rdb, nil
	default:
		return nil, errors.ErrUnsupported
	}
}

// firstPart is how many waiters ls looks at, as a long answer keeps Redis from serving others. ls
// counts the rest as Redis does.
const firstPart = 1000

// lock reads one lock, as withQueue does. The search for its kind begins with the likely one.
func (r *reader) lock(ctx context.Context, name string, likely kind, whole bool) (lockInfo, error) {
	got, err := r.find(ctx, name, likely)
	if err != nil {
		return lockInfo{}, err
	}
	return r.withQueue(ctx, got, name, whole)
}

// withQueue adds the queue to a lock, or only the number of those who wait there.
func (r *reader) withQueue(ctx context.Context, got seen, name string, whole bool) (lockInfo, error) {
	info := got.info(name)
	if info.Waiters == 0 || r.rdb == nil { // no single Redis has the queue
		return info, nil
	}
	key, last := keyOf(r.prefix, name), int64(firstPart-1)
	if whole {
		last = -1
	}
	var places []redis.Z
	err := r.read(ctx, func(ctx context.Context) (err error) {
		places, err = r.rdb.ZRangeWithScores(ctx, key+queueSuffixOf(got.kind), 0, last).Result()
		return err
	})
	if err != nil {
		return lockInfo{}, err
	}
	queue, err := r.present(ctx, key, readQueue(got.kind, places))
	if err != nil {
		return lockInfo{}, err
	}
	info.Waiters = len(queue)
	if whole {
		info.Queue = queue
	} else {
		info.Waiters += max(0, got.state.Waiters-firstPart)
	}
	if timed := slices.IndexFunc(queue, func(w waiter) bool { return w.WaitMs != nil }); timed >= 0 {
		info.WaitMs = queue[timed].WaitMs
	}
	if !info.Held && info.Waiters == 0 {
		info.Kind = ""
	}
	return info, nil
}

// present returns the waiters that are there, with the time that each has waited. A waiter is there
// if its client listens to its channel of the lock; a release skips all others.
func (r *reader) present(ctx context.Context, key string, queue []waiter) ([]waiter, error) {
	channelOf := func(w waiter) string { return key + ":" + w.Holder[:strings.LastIndexByte(w.Holder, ':')] }
	listeners := map[string]int64{}
	for _, w := range queue {
		listeners[channelOf(w)] = 0
	}
	clock, err := r.countListeners(ctx, key, listeners)
	if err != nil {
		return nil, err
	}
	queue = slices.DeleteFunc(queue, func(w waiter) bool { return listeners[channelOf(w)] == 0 })
	for i, w := range queue {
		if w.Since != nil {
			queue[i].WaitMs = new(max(0, clock.Sub(*w.Since).Milliseconds()))
		}
	}
	return queue, nil
}

// countListeners counts the listeners of channels on the server that has the key, and returns the
// time of that server.
func (r *reader) countListeners(ctx context.Context, key string, listeners map[string]int64) (clock time.Time, err error) {
	node, err := r.node(ctx, key)
	if err != nil {
		return clock, err
	}
	err = r.read(ctx, func(ctx context.Context) error {
		pipe := node.Pipeline()
		now, counts := pipe.Time(ctx), pipe.PubSubNumSub(ctx, slices.Collect(maps.Keys(listeners))...)
		_, err := pipe.Exec(ctx)
		clock = now.Val()
		maps.Copy(listeners, counts.Val())
		return err
	})
	if err != nil {
		return clock, err
	}
	var silent []string // or heard by sharded pub/sub, which Redis before 7.0 does not know
	for channel, n := range listeners {
		if n == 0 {
			silent = append(silent, channel)
		}
	}
	if len(silent) == 0 {
		return clock, nil
	}
	err = r.read(ctx, func(ctx context.Context) error {
		counts, err := node.PubSubShardNumSub(ctx, silent...).Result()
		maps.Copy(listeners, counts)
		return err
	})
	var refusal redis.Error
	if errors.As(err, &refusal) && !errors.Is(err, redis.Nil) { // which is a sentinel's
		err = nil
	}
	return clock, err
}

// info returns what the state of a lock says.
func (s seen) info(name string) lockInfo {
	state := s.state
	info := lockInfo{
		Name: name, NameB64: base64Of(name), Kind: s.kind, Held: state.Locked(), Mode: state.Mode,
		Holder: state.Holder.String(), Token: state.Token, Waiters: state.Waiters, lock: s.lock,
	}
	if s.kind == kindMutex {
		info.Count = state.Count
	}
	if info.Held && state.TTL >= 0 {
		info.LeaseMs = new(state.TTL.Milliseconds())
	}
	for _, o := range state.Others {
		info.Others = append(info.Others, other{o.Holder.String(), o.Mode, o.TTL.Milliseconds()})
	}
	return info
}

// year10000 is a time in microseconds. JSON has no times from that year on.
const year10000 = 253_402_300_800_000_000

// upgrade is the score of a reader that waits to write.
const upgrade = 1

// readQueue reads entries of a queue: "<holder>:<n>|<lease ms>" of a mutex, and
// "<holder>:<n>|<lease ms>|<mode>|<hold around>" of other kinds, with the arrival in microseconds
// as the score. Other entries are not from relock.
func readQueue(k kind, entries []redis.Z) []waiter {
	var queue []waiter
	for _, z := range entries {
		member, _ := z.Member.(string)
		hold, rest, ok := strings.Cut(member, "|")
		_, rest, _ = strings.Cut(rest, "|") // the lease
		mode, _, _ := strings.Cut(rest, "|")
		colon := strings.LastIndexByte(hold, ':')
		if !ok || colon < 0 || !holderForm.MatchString(hold[:colon]) || !validMode(k, mode) || z.Score < 0 || z.Score >= year10000 {
			continue
		}
		w := waiter{Holder: hold[:colon], Mode: modeOf(mode)}
		if z.Score != upgrade {
			since := time.UnixMicro(int64(z.Score)).UTC()
			w.Since = &since
		}
		queue = append(queue, w)
	}
	return queue
}

// list reads all locks that are held or waited for and whose name matches the pattern, by name.
func (r *reader) list(ctx context.Context, pattern string) ([]lockInfo, error) {
	listed, err := r.client.List(ctx, matcher(pattern))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx) // the first failure ends all questions
	defer cancel(nil)
	const lanes = 16 // a queue costs a round trip or two
	infos := make([]lockInfo, len(listed))
	places := make(chan int)
	var wg sync.WaitGroup
	for range min(lanes, len(listed)) {
		wg.Go(func() {
			for i := range places {
				l := listed[i]
				info, err := r.withQueue(ctx, seen{kindOf(l.Kind), lockOf(r.client, kindOf(l.Kind), l.Name), l.State}, l.Name, false)
				if err != nil {
					cancel(err)
				}
				infos[i] = info
			}
		})
	}
	for i := range listed {
		places <- i
	}
	close(places)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(infos, func(info lockInfo) bool { return info.Kind == "" }), nil // free by now
}

// matcher returns whether a pattern, empty for all, matches a name or its other form: a lock "x" is
// "{x}" too.
func matcher(pattern string) func(name string) bool {
	matches := glob(cmp.Or(pattern, "*"))
	return func(name string) bool { return matches(name) || !hasTag(name) && matches("{"+name+"}") }
}

// printable returns text for a terminal. A name may have bytes that are commands to a terminal.
func printable(s string) string {
	for _, r := range s {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}
