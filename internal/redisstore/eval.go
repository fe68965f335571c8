package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// CheckScript refuses readers, which must not write, keys that are not in the slot of the lock, and
// arguments that are no text for Redis.
func (*redisStore) CheckScript(a store.Claim, script store.Script) error {
	if a.Limit == store.Unlimited {
		return errors.New("the lock is for reading, and a script may write")
	}
	for _, key := range script.Keys {
		if wire.SlotOf(key) != wire.SlotOf(a.Name) {
			return fmt.Errorf("key %q: the keys of a script must be in the slot of the lock, such as %q", key, "{"+wire.SlotOf(a.Name)+"}:"+key)
		}
	}
	for i, arg := range script.Args {
		switch arg.(type) {
		case string, []byte, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
		default:
			return fmt.Errorf("argument %d of a script is a %T: use a string, bytes, a number or a bool", i+1, arg)
		}
	}
	return nil
}

func (s *redisStore) Eval(ctx context.Context, l store.Lease, script store.Script) (any, error) {
	return s.eval(ctx, l.Claim, s.user("", "eval", script), script, []string{l.Name}, s.field(l.ID))
}

func (s *nativeStore) Eval(ctx context.Context, l store.Lease, script store.Script) (any, error) {
	switch {
	case l.Lender != "":
		return s.eval(ctx, l.Claim, s.user("", "loan", script), script, []string{l.Name, l.Name + loansSuffix}, string(l.Lender), string(l.ID))
	case l.Kind == store.Mutex:
		return s.redisStore.Eval(ctx, l, script)
	default:
		return s.eval(ctx, l.Claim, s.user("", "shared", script), script, []string{l.Name}, string(l.ID)+"|"+letter(l.Claim))
	}
}

// EvalFree knows no lock of Redisson that is free, as it does not look for those that wait.
func (*redisStore) EvalFree(context.Context, store.Claim, store.Script) (any, error) {
	return nil, &store.Busy{}
}

func (s *nativeStore) EvalFree(ctx context.Context, a store.Claim, script store.Script) (any, error) {
	if a.Kind != store.Mutex { // the others are free by more than the lack of a key
		return nil, &store.Busy{}
	}
	_, common := s.entering(s.scripts.mutex.acquire)
	reply, err := s.eval(ctx, a, s.user(s.first(), "free", script), script, []string{a.Name, a.Name + queueSuffix}, common...)
	if errors.Is(err, store.ErrGone) {
		return nil, &store.Busy{}
	}
	return reply, err
}

// user returns a user's script for a verb of scripts/user. first runs before everything else.
func (s *redisStore) user(first, verb string, script store.Script) *wire.Script {
	return s.users.of(s.scripts, first, verb, script.Source)
}

// first stands in front of the verbs that take locks.
func (s *nativeStore) first() string {
	if s.delay > 0 {
		return s.scripts.source("restarted")
	}
	return ""
}

// eval runs a user's script by a verb, with the keys and arguments of the verb.
func (s *redisStore) eval(ctx context.Context, a store.Claim, verb *wire.Script, script store.Script, keys []string, args ...any) (any, error) {
	c := &wire.Call{
		Script: verb, Tries: boundTries, NoRepeat: true, Patience: attemptLimit(a.TTL),
		Unit:   wire.Unit{Keys: append(keys, script.Keys...), Args: append(args, script.Args...)},
		Report: a.Report,
	}
	answer, err := s.wire.Do(ctx, c)
	if err != nil {
		return nil, unsureOf(answer, err)
	}
	var ran int64
	fields, _ := answer.Reply.([]any)
	switch {
	case len(fields) == 0 || !scan(fields[0], &ran):
		return nil, badReply(c.Script, answer.Reply)
	case ran == 0:
		return nil, store.ErrGone
	case len(fields) == 1: // Redis ends a list at the first nil
		return nil, nil
	}
	if err, is := fields[1].(error); is {
		return nil, err
	}
	return fields[1], nil
}

// TryEval is not for Redisson's layout.
func (*redisStore) TryEval(context.Context, store.Claim, store.Script) (store.Lease, any, error) {
	return store.Lease{}, nil, fmt.Errorf("%w: a script that decides about a lock of Redisson", errors.ErrUnsupported)
}

func (s *nativeStore) TryEval(ctx context.Context, a store.Claim, script store.Script) (store.Lease, any, error) {
	if a.Kind != store.Mutex {
		return store.Lease{}, nil, fmt.Errorf("%w: a script that decides about %s", errors.ErrUnsupported, a.Kind)
	}
	_, common := s.entering(s.scripts.mutex.acquire)
	args := func(ttl int64) []any {
		return slices.Concat(common, []any{string(a.ID), ttl}, script.Args)
	}
	c := &wire.Call{
		Script: s.user(s.first(), "try", script), Tries: boundTries, Patience: takingLimit(a), Yields: true,
		Unit:   wire.Unit{Keys: append([]string{a.Name, a.Name + queueSuffix}, script.Keys...), Args: args(lifetime.Millis(a.Kept(a.TTL)))},
		Repeat: func(_ []any, elapsed time.Duration) []any { return args(repeatMillis(a.Kept(a.TTL), elapsed)) },
		Acks:   a.Acks,
		Report: a.Report,
	}
	answer, err := s.wire.Do(ctx, c)
	if err != nil {
		return store.Lease{}, nil, s.explained(ctx, a, unsureOf(answer, err))
	}
	fields, _ := answer.Reply.([]any)
	if len(fields) == 0 {
		return store.Lease{}, nil, badReply(c.Script, answer.Reply)
	}
	var reply any
	if len(fields) > 1 { // Redis ends a list at the first nil
		reply = fields[1]
	}
	switch fields[0] {
	case statusDeclined:
		declined := &store.Declined{Reply: reply}
		if len(fields) > 2 {
			owner, _ := fields[2].(string)
			declined.Owner = store.ID(owner)
		}
		return store.Lease{}, nil, unsureOf(answer, declined)
	case statusFailed:
		failure, _ := reply.(error)
		return store.Lease{}, nil, unsureOf(answer, failure)
	}
	r, err := parseAcquireReply(c.Script, fields[0])
	l, err := s.taken(ctx, a, r, answer, unsureOf(answer, err))
	if err != nil {
		reply = nil
	}
	return l, reply, err
}
