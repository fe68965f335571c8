package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
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

const queueSuffix = ":queue"

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

// nameOf returns the shortest name of the lock that has this key; false if no lock has the key. The
// library may refuse the name.
func nameOf(prefix, key string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return "", false
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(rest, "{"), "}")
	for _, name := range []string{inner, rest, key} {
		if name != "" && keyOf(prefix, name) == key {
			return name, true
		}
	}
	return "", false
}

// hasTag says whether Redis finds a hash tag in s: something between the first { and the first }
// behind it.
func hasTag(s string) bool {
	_, rest, _ := strings.Cut(s, "{")
	tag, _, closed := strings.Cut(rest, "}")
	return closed && tag != ""
}

// holderForm matches holders of relock: a UUID with the owner's name in front if there is one, and
// a number. A hash with another field is no lock of relock.
var holderForm = regexp.MustCompile(`^([A-Za-z0-9._@-]{1,64}/)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+$`)

// lockInfo is the JSON of a lock, for show, ls and watch. Fields without a value are left out.
type lockInfo struct {
	Name    string   `json:"name"`
	NameB64 string   `json:"name_base64,omitempty"`
	Held    bool     `json:"held"`
	Holder  string   `json:"holder,omitempty"`
	Count   int      `json:"count,omitempty"`
	LeaseMs *int64   `json:"lease_ms,omitempty"` // the rest of the lease
	Token   int64    `json:"token,omitempty"`    // the last one that was drawn, by whichever hold
	Waiters int      `json:"waiters"`
	WaitMs  *int64   `json:"longest_wait_ms,omitempty"`
	Queue   []waiter `json:"queue,omitempty"` // by turn; only show
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
	Holder string    `json:"holder"`
	Since  time.Time `json:"since"`
	WaitMs int64     `json:"wait_ms"`
}

// reader reads locks.
type reader struct {
	rdb    redis.UniversalClient
	client *relock.Client
	prefix string
	limit  time.Duration // for each answer of Redis, and not for all answers together
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

// masters returns all servers that have locks.
func (r *reader) masters(ctx context.Context) (nodes []*redis.Client, err error) {
	switch rdb := r.rdb.(type) {
	case *redis.ClusterClient:
		var mu sync.Mutex
		err = r.read(ctx, func(ctx context.Context) error {
			nodes = nil
			return rdb.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				nodes = append(nodes, node)
				return nil
			})
		})
		return nodes, err
	case *redis.Client:
		return []*redis.Client{rdb}, nil
	default:
		return nil, errors.ErrUnsupported
	}
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

// lock reads one lock, with the whole queue or only its head. clock is the time on the server.
func (r *reader) lock(ctx context.Context, name string, clock time.Time, all bool) (lockInfo, error) {
	state, err := r.state(ctx, r.client.NewLock(name))
	if err != nil {
		return lockInfo{}, err
	}
	info := lockInfo{Name: name, NameB64: base64Of(name), Held: state.Locked(), Count: state.Count, Token: state.Token, Waiters: state.Waiters}
	if info.Held {
		info.Holder = state.Holder.String()
		if state.TTL >= 0 {
			info.LeaseMs = new(state.TTL.Milliseconds())
		}
	}
	if info.Waiters == 0 {
		return info, nil
	}
	last := int64(0)
	if all {
		last = -1
	}
	var entries []redis.Z
	err = r.read(ctx, func(ctx context.Context) (err error) {
		entries, err = r.rdb.ZRangeWithScores(ctx, keyOf(r.prefix, name)+queueSuffix, 0, last).Result()
		return err
	})
	if err != nil {
		return lockInfo{}, err
	}
	queue := readQueue(entries, clock)
	if len(queue) > 0 {
		info.WaitMs = &queue[0].WaitMs
	}
	if all {
		info.Queue = queue
	}
	return info, nil
}

// year10000 is a time in microseconds. JSON has no times from that year on.
const year10000 = 253_402_300_800_000_000

// readQueue reads entries of a queue: "<holder>:<n>|<lease ms>" with the arrival in microseconds as
// the score. Other entries are not from relock.
func readQueue(entries []redis.Z, clock time.Time) []waiter {
	var queue []waiter
	for _, z := range entries {
		member, _ := z.Member.(string)
		hold, _, ok := strings.Cut(member, "|")
		colon := strings.LastIndexByte(hold, ':')
		if !ok || colon < 0 || !holderForm.MatchString(hold[:colon]) || z.Score < 0 || z.Score >= year10000 {
			continue
		}
		since := time.UnixMicro(int64(z.Score)).UTC()
		queue = append(queue, waiter{Holder: hold[:colon], Since: since, WaitMs: max(0, clock.Sub(since).Milliseconds())})
	}
	return queue
}

// found is a lock that a scan has found. ahead is the lead of the server's clock over this one.
type found struct {
	name  string
	ahead time.Duration
}

// list reads all locks that are held or waited for and whose name matches the pattern, by name.
func (r *reader) list(ctx context.Context, pattern string) ([]lockInfo, error) {
	names, err := r.scan(ctx, pattern)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx) // the first failure ends all questions
	defer cancel()
	// Each lock costs a round trip, so several are read at a time.
	const lanes = 16
	next := make(chan found)
	infos := []lockInfo{} // an empty list is [] in JSON, not null
	var firstErr error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range min(lanes, len(names)) {
		wg.Go(func() {
			for f := range next {
				info, err := r.lock(ctx, f.name, time.Now().Add(f.ahead), false)
				mu.Lock()
				switch {
				case err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE"):
					firstErr = cmp.Or(firstErr, err)
					cancel()
				case err == nil && listed(info):
					infos = append(infos, info)
				}
				mu.Unlock()
			}
		})
	}
	for _, f := range names {
		next <- f
	}
	close(next)
	wg.Wait()
	if firstErr != nil {
		return nil, firstErr
	}
	slices.SortFunc(infos, func(a, b lockInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// listed says whether ls shows a lock. ls leaves out locks that have become free since the scan,
// and keys of other programs that look like the key of a lock.
func listed(info lockInfo) bool {
	return info.Held && holderForm.MatchString(info.Holder) || !info.Held && info.WaitMs != nil
}

// scan finds the names of all locks that have a holder or a queue, on every master. scan uses SCAN
// and not KEYS, so that Redis serves other clients in between.
func (r *reader) scan(ctx context.Context, pattern string) ([]found, error) {
	nodes, err := r.masters(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var firstErr error
	names := map[string]time.Duration{} // a slot that moves can be seen on two masters
	var wg sync.WaitGroup
	for _, node := range nodes {
		wg.Go(func() {
			err := r.scanNode(ctx, node, func(name string, ahead time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				if matches(pattern, name) {
					names[name] = ahead
				}
			})
			mu.Lock()
			defer mu.Unlock()
			firstErr = cmp.Or(firstErr, err)
		})
	}
	wg.Wait()
	if firstErr != nil {
		return nil, firstErr
	}
	all := make([]found, 0, len(names))
	for name, ahead := range names {
		all = append(all, found{name: name, ahead: ahead})
	}
	return all, nil
}

// matches says whether the pattern, empty for all, matches a name or its other form: a lock "x" is
// "{x}" too.
func matches(pattern, name string) bool {
	return pattern == "" || glob(pattern, name) || !hasTag(name) && glob(pattern, "{"+name+"}")
}

// scanNode calls see with the names on one server, and with how far the clock there is ahead of
// this one.
func (r *reader) scanNode(ctx context.Context, node *redis.Client, see func(name string, ahead time.Duration)) error {
	ahead, err := r.clockOf(ctx, node)
	if err != nil {
		return err
	}
	for _, kind := range []struct{ suffix, redisType string }{{"", "hash"}, {queueSuffix, "zset"}} {
		var cursor uint64
		for more := true; more; more = cursor != 0 {
			var keys []string
			err := r.read(ctx, func(ctx context.Context) (err error) {
				keys, cursor, err = node.ScanType(ctx, cursor, globEscape(r.prefix)+"*"+kind.suffix, 1000, kind.redisType).Result()
				return err
			})
			if err != nil {
				return err
			}
			for _, key := range keys {
				name, ok := nameOf(r.prefix, strings.TrimSuffix(key, kind.suffix))
				if ok && r.client.NewLock(name).Err() == nil {
					see(name, ahead)
				}
			}
		}
	}
	return nil
}

// clockOf returns how far the clock of a server is ahead of this one, to about a round trip.
func (r *reader) clockOf(ctx context.Context, node *redis.Client) (ahead time.Duration, err error) {
	err = r.read(ctx, func(ctx context.Context) error {
		t, err := node.Time(ctx).Result()
		ahead = time.Until(t)
		return err
	})
	return ahead, err
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
