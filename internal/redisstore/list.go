package redisstore

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

const (
	// listStep is how many keys one SCAN looks at.
	listStep = 1000
	// listSilence is how long List goes on without an answer.
	listSilence = 2 * time.Second
)

// List implements [store.Listing] with SCAN on every master, which serves others in between. In a
// slot that moves a key may be seen twice. go-redis takes its own time, also after the end of ctx.
func (s *nativeStore) List(ctx context.Context, a store.Claim) (map[string]store.Kind, error) {
	if ctx.Err() != nil {
		return nil, lifetime.Ended(ctx)
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(listSilence, cancel)
	defer silence.Stop()
	found := make(map[string]store.Kind)
	ended := make(chan error, 1)
	s.group.Go(func() {
		err := attempts.ErrEnded
		defer func() { ended <- err }()
		attempts.Outlast(&err, func() error {
			see := &search{found: found, report: a.Report, heard: func() { silence.Reset(listSilence) }}
			return s.scan(limited, see)
		})
	})
	select {
	case err := <-ended:
		switch {
		case err == nil:
			return found, nil
		case wire.Refused(err):
			return nil, err
		case limited.Err() == nil:
			return nil, store.Unavailable(err)
		}
	case <-limited.Done():
	}
	if ctx.Err() != nil {
		return nil, store.Unavailable(lifetime.Ended(ctx))
	}
	return nil, store.Unavailable(fmt.Errorf("no answer to SCAN in %s", listSilence))
}

// search is what a List has found, and who is told of its trouble.
type search struct {
	report store.Reporter
	heard  func() // is called after each round

	mu    sync.Mutex
	found map[string]store.Kind
}

func (f *search) add(names map[string]store.Kind) {
	f.heard()
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.found, names)
}

// question asks a few times for an answer.
func (f *search) question(ctx context.Context, claim func() error) error {
	tries := 0
	pause := func(done <-chan struct{}) bool {
		tries++
		return tries < boundTries && lifetime.Sleep(done, wire.Pause(tries))
	}
	return attempts.Repeat(ctx, attempts.Call{Report: f.report, Command: "list"}, pause, func() error {
		err := claim()
		if err == nil || wire.Refused(err) {
			return err
		}
		return store.Unavailable(err)
	})
}

// scan finds the locks on all servers.
func (s *nativeStore) scan(ctx context.Context, f *search) error {
	each := func(ctx context.Context, node *redis.Client) (err error) { // in a goroutine of go-redis
		attempts.Outlast(&err, func() error { return s.scanNode(ctx, node, f) })
		return err
	}
	switch rdb := s.rdb.(type) { // perhaps a type that has one of go-redis in it
	case interface { // a cluster
		ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error
	}:
		return rdb.ForEachMaster(ctx, each)
	case interface { // a ring
		ForEachShard(ctx context.Context, f func(context.Context, *redis.Client) error) error
	}:
		return rdb.ForEachShard(ctx, each)
	default:
		return s.scanNode(ctx, rdb, f)
	}
}

// scanNode finds the locks on one server, in rounds.
func (s *nativeStore) scanNode(ctx context.Context, node redis.Cmdable, f *search) error {
	for _, keyType := range []string{"hash", "zset"} {
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			var keys, kept []string
			var next uint64
			err := f.question(ctx, func() (err error) {
				keys, next, err = node.ScanType(ctx, cursor, literally(s.prefix)+"*", listStep, keyType).Result()
				return err
			})
			if err == nil {
				err = f.question(ctx, func() (err error) { kept, err = ofHolds(ctx, node, keyType, keys); return err })
			}
			if err != nil {
				return err
			}
			cursor = next
			names := make(map[string]store.Kind)
			for _, key := range kept {
				base, kind := lockBehind(key, keyType)
				if name, is := nameBehind(s.prefix, base); is {
					names[name] = kind
				}
			}
			f.add(names)
		}
	}
	return nil
}

// ofHolds returns the keys whose value looks like one of relock: it has the name of a hold.
func ofHolds(ctx context.Context, node redis.Cmdable, keyType string, keys []string) (kept []string, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	firsts := make([]*redis.StringSliceCmd, len(keys))
	_, err = node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			if keyType == "hash" {
				firsts[i] = p.HRandField(ctx, key, 1)
			} else {
				firsts[i] = p.ZRange(ctx, key, 0, 0)
			}
		}
		return nil
	})
	if err != nil && wire.Code(err) == "" {
		return nil, err
	}
	for i, first := range firsts {
		switch wire.Code(first.Err()) {
		case "WRONGTYPE", "MOVED", "ASK": // of another type by now, or at another master, which lists it
		case "":
			if slices.ContainsFunc(first.Val(), holdForm.MatchString) {
				kept = append(kept, keys[i])
			}
		default:
			return nil, first.Err()
		}
	}
	return kept, nil
}

// holdForm matches what the fields of a hash and the members of a queue begin with: the name of a
// client, and two numbers.
var holdForm = regexp.MustCompile(`^[^|]+:[0-9]+:[0-9]+(\||$)`)

// literally returns a pattern of Redis that only s matches.
func literally(s string) string { return special.ReplaceAllString(s, `\$0`) }

var special = regexp.MustCompile(`[][*?\\^-]`)

// lockBehind returns the base key of the lock with a key, and the kind that the lock probably has.
// A lock shows a holder in its base key, which is a hash for mutexes alone, and waiters in its
// queue.
func lockBehind(key, keyType string) (base string, kind store.Kind) {
	if keyType == "hash" {
		return key, store.Mutex
	}
	for _, kind := range []store.Kind{store.ReadWrite, store.Semaphore} {
		if base, is := strings.CutSuffix(key, suffix(kind)+queueSuffix); is {
			return base, kind
		}
	}
	if base, is := strings.CutSuffix(key, queueSuffix); is {
		return base, store.Mutex
	}
	return key, store.ReadWrite
}

// nameBehind returns the shortest name of the lock with a base key; false if no lock has the key,
// as it is a token, a limit, or no key of relock.
func nameBehind(prefix, base string) (name string, is bool) {
	rest, is := strings.CutPrefix(base, prefix)
	inner := strings.TrimSuffix(strings.TrimPrefix(rest, "{"), "}")
	for _, name := range []string{inner, rest, base} {
		if key, err := baseKey(prefix, name); is && name != "" && err == nil && key == base {
			return name, true
		}
	}
	return "", false
}
