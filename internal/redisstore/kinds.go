package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file serves read-write locks and semaphores in relock's own layout. Their calls go through
// lock.go and wait.go. Their keys and scripts are their own, so those of the mutex are
// unchanged.

func suffix(kind store.Kind) string {
	switch kind {
	case store.Semaphore:
		return permitsSuffix
	case store.ReadWrite:
		return rwSuffix
	default:
		return ""
	}
}

// kindUnit makes a unit. extra is the arrival of acquire, the control channel of break, else empty.
func kindUnit(a store.Claim, ttl int64, extra any) wire.Unit {
	limits := a.Name + suffix(a.Kind)
	return wire.Unit{
		Keys: []string{a.Name, limits, limits + queueSuffix, a.Name + tokenSuffix},
		Args: []any{string(a.ID), ttl, letter(a), string(a.With), extra},
	}
}

// letter names a hold in scripts: "r" for a reader, "w" for a writer, or the number of permits.
func letter(a store.Claim) string {
	switch {
	case a.Kind == store.Semaphore:
		return strconv.Itoa(a.Limit)
	case a.Limit == store.Unlimited:
		return "r"
	default:
		return "w"
	}
}

// ofLetter returns the kind and the limit of a letter. Any other text has the kind -1.
func ofLetter(letter string) (kind store.Kind, limit int) {
	switch limit, err := strconv.Atoi(letter); {
	case letter == "r":
		return store.ReadWrite, store.Unlimited
	case letter == "w":
		return store.ReadWrite, 1
	case err == nil:
		return store.Semaphore, limit
	default:
		return -1, 0
	}
}

// inGroups sends the items of each group by themselves, as their scripts differ, and all groups at
// once, as a node may be silent. inGroups returns the errors in the order of items.
func inGroups[T any, G comparable](items []T, groupOf func(T) G, send func(G, []T) []error) []error {
	var groups []G
	for _, item := range items {
		if group := groupOf(item); !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	if len(groups) == 1 {
		return send(groups[0], items)
	}
	errs := slices.Repeat([]error{attempts.ErrEnded}, len(items))
	attempts.Each(len(groups), len(groups), func(n int) error {
		var same []T
		var at []int
		for i, item := range items {
			if groupOf(item) == groups[n] {
				same, at = append(same, item), append(at, i)
			}
		}
		for i, err := range send(groups[n], same) {
			errs[at[i]] = err
		}
		return nil
	})
	return errs
}

func (s *redisStore) lookKind(ctx context.Context, a store.Claim) (state store.State, err error) {
	answer, err := s.wire.Do(ctx, &wire.Call{
		Script: s.scripts.kinds.state, Common: s.publish(), Unit: kindUnit(a, 0, ""), Tries: boundTries, Report: a.Report, Yields: true,
	})
	if err != nil {
		return state, unsureOf(answer, err)
	}
	var found string
	var waiters int64
	fields, _ := answer.Reply.([]any)
	if len(fields)%3 != 0 || len(fields) == 0 || !scan(fields[:3], &found, &state.Token, &waiters) {
		return state, badReply(s.scripts.kinds.state, answer.Reply)
	}
	if found != "" {
		return state, wrongKind(a, found)
	}
	state.Waiters = int(waiters)
	for hold := range slices.Chunk(fields[3:], 3) {
		var id, letter string
		var ttl int64
		if !scan(hold, &id, &letter, &ttl) {
			return state, badReply(s.scripts.kinds.state, answer.Reply)
		}
		kind, limit := ofLetter(letter)
		if kind != a.Kind {
			return state, wrongKind(a, "zset")
		}
		if state.Owner == "" {
			state.Owner, state.Count, state.TTL, state.Limit = store.ID(id), 1, fromMillis(ttl), limit
			continue
		}
		state.Others = append(state.Others, store.Held{ID: store.ID(id), TTL: fromMillis(ttl), Limit: limit})
	}
	return state, nil
}

// redissonRW is what scripts find in place of the type of a hash with a mode.
const redissonRW = "Redisson"

// wrongKind is the error of a claim for another kind of lock. found is what scripts say of its key.
func wrongKind(a store.Claim, found string) error {
	kind := store.Mutex
	switch {
	case found == "zset" && a.Kind == store.ReadWrite:
		kind = store.Semaphore
	case found == "zset":
		kind = store.ReadWrite
	case found == redissonRW:
		return fmt.Errorf("%w: %q is a read-write lock of Redisson, and not %s", store.ErrKind, a.Name, a.Kind)
	case found != "hash": // also a sorted set that is no lock
		return fmt.Errorf("WRONGTYPE: the key %q is a %s of Redis, and no lock", a.Name, found)
	}
	return fmt.Errorf("%w: %q is %s, and not %s", store.ErrKind, a.Name, kind, a.Kind)
}

// explained replaces WRONGTYPE for a mutex by ErrKind, if the key is another kind of lock.
func (s *redisStore) explained(ctx context.Context, a store.Claim, err error) error {
	if err == nil || a.Kind != store.Mutex || !strings.Contains(err.Error(), "WRONGTYPE") || errors.Is(err, store.ErrUnsure) {
		return err
	}
	for _, kind := range []store.Kind{store.ReadWrite, store.Semaphore} {
		other := a
		other.Kind = kind
		if _, lookErr := s.lookKind(ctx, other); lookErr == nil {
			return fmt.Errorf("%w: %q is %s, and not %s", store.ErrKind, a.Name, kind, a.Kind)
		}
	}
	return err
}
