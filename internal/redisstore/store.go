package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// redisStore is the common part of the stores of both layouts: the way to the server, and the verbs
// that both layouts share. A verb without a comment is as package store has it.
type redisStore struct {
	wire    *wire.Wire
	subs    *subs.Hub
	rdb     redis.UniversalClient
	scripts *Scripts
	users   userScripts
	prefix  string
	delay   time.Duration                            // of Options.Delay
	field   func(store.ID) string                    // names a hold in the hash of its lock
	release func(context.Context, store.Lease) error // Release of the layout

	group    group.Group     // goroutines of subs and Watch
	life     context.Context // ends with Close
	end      context.CancelFunc
	watchers attempts.Watchers
}

// Close ends the subscriptions and each goroutine of the store. Later commands still work.
func (s *redisStore) Close() error {
	s.group.Close()
	s.end()
	s.group.Wait()
	s.wire.Wait()
	return nil
}

func (s *redisStore) checkClaim(a store.Claim) error {
	switch {
	case a.Name == "":
		return errors.New("the lock name is empty")
	case a.Acks != store.Acks{} && a.Acks.Timeout >= s.wire.ReadTimeout():
		return fmt.Errorf("confirmations within %s: the timeout must be shorter than the go-redis client's ReadTimeout (%s)",
			a.Acks.Timeout, s.wire.ReadTimeout())
	}
	return nil
}

// boundTries is the number of attempts of a bound call. Others go on until their context is done.
const boundTries = 3

// attemptLimit bounds an attempt for a hold with this TTL: three attempts fit into the lease.
func attemptLimit(ttl time.Duration) time.Duration { return ttl / 3 }

// takingLimit bounds an attempt to take a lock, with the time for confirmations of other servers.
func takingLimit(a store.Claim) time.Duration { return attemptLimit(a.TTL) + a.Acks.Timeout }

// unsureOf marks the error of a call that may have run, or may run yet.
func unsureOf(a wire.Answer, err error) error {
	if a.Unsure {
		return store.Unsure(err)
	}
	return err
}

func (s *redisStore) number(ctx context.Context, c *wire.Call) (n int64, a wire.Answer, err error) {
	a, err = s.wire.Do(ctx, c)
	if err == nil && !scan(a.Reply, &n) {
		err = badReply(c.Script, a.Reply)
	}
	return n, a, unsureOf(a, err)
}

// all sends many units once, and returns an error for each: nil for the reply 1, ErrGone for 0.
func (s *redisStore) all(ctx context.Context, script *wire.Script, common []any, units []wire.Unit) []error {
	return s.allAcked(ctx, script, common, units, store.Acks{})
}

// allAcked is all, with an error for each unit that too few servers have confirmed.
func (s *redisStore) allAcked(ctx context.Context, script *wire.Script, common []any, units []wire.Unit, acks store.Acks) []error {
	errs := make([]error, len(units))
	for i, r := range s.wire.AllAcked(ctx, script, common, units, acks) {
		var n int64
		switch {
		case wire.NotRun(r.Err):
			errs[i] = r.Err
		case r.Err != nil:
			errs[i] = store.Unsure(r.Err)
		case !scan(r.Reply, &n):
			errs[i] = badReply(script, r.Reply)
		case n == 0:
			errs[i] = store.ErrGone
		default:
			errs[i] = store.Unsure(tooFew(acks, r.Acked))
		}
	}
	return errs
}

// tooFew returns the error of a command that fewer servers have confirmed than acks demands, or
// nil.
func tooFew(acks store.Acks, acked int) error {
	if wanted := acks.Wanted(); acked < wanted {
		return fmt.Errorf("%w: %d of %d within %s", store.ErrNotReplicated, acked, wanted, acks.Timeout)
	}
	return nil
}

// Enter sets the count and the lease of a hold.
func (s *redisStore) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	args := []any{s.field(l.ID), lifetime.Millis(l.Kept(l.TTL)), count}
	return s.enter(ctx, l, &wire.Call{Script: s.scripts.mutex.renew, Unit: wire.Unit{Keys: []string{l.Name}, Args: args}})
}

// enter sends a call that sets the lease of a hold. A repeat sets a lease that ends with the lease of
// the first attempt, so a client that hears no answers keeps a lock for one TTL.
func (s *redisStore) enter(ctx context.Context, l store.Lease, c *wire.Call) (store.Lease, error) {
	c.Patience, c.Report = attemptLimit(l.TTL), l.Report
	ttl, delay := l.TTL, l.Delay // and not the whole lease, which would be in the closure
	c.Repeat = func(first []any, elapsed time.Duration) []any {
		return withLease(first, lifetime.Millis(store.Claim{Delay: delay}.Kept(max(ttl-elapsed, 0))))
	}
	if l.TTL > 0 {
		c.Acks, c.Patience = l.Acks, c.Patience+l.Acks.Timeout
	}
	n, a, err := s.number(ctx, c)
	switch {
	case err != nil:
		return store.Lease{}, err
	case n == 0:
		return store.Lease{}, store.ErrGone
	case l.TTL > 0:
		l.Sent = a.First
		err = store.Unsure(tooFew(l.Acks, a.Acked))
	}
	return l, err
}

// Renew waits for the confirmations of each group of leases that demand the same.
func (s *redisStore) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return inGroups(renewals, acksOf, func(acks store.Acks, same []store.Renewal) []error {
		return s.allAcked(ctx, s.scripts.mutex.renew, nil, s.renewals(same), acks)
	})
}

// acksOf returns the confirmations without which a renewal does not count: none, if the renewal
// leaves the lease as it is.
func acksOf(r store.Renewal) store.Acks {
	if r.TTL == 0 {
		return store.Acks{}
	}
	return r.Lease.Acks
}

// renewals makes the units of renewal out of four slices, as a client renews thousands of leases.
func (s *redisStore) renewals(renewals []store.Renewal) []wire.Unit {
	n := len(renewals)
	units, names, args := make([]wire.Unit, n), make([]string, 2*n), make([]any, 3*n)
	var lease any
	for i := range renewals {
		r := &renewals[i]
		if kept := lifetime.Millis(r.Lease.Kept(r.TTL)); lease != kept { // neighbours share a boxed one
			lease = kept
		}
		names, arg := names[2*i:2*i+2:2*i+2], args[3*i:3*i+3:3*i+3]
		names[0], names[1] = r.Lease.Name, s.field(r.Lease.ID)
		arg[0], arg[1], arg[2] = &names[1], lease, r.Count
		units[i] = wire.Unit{Keys: names[:1], Args: arg}
	}
	return units
}

// free sends a call that frees a lock. If the hold is gone, an attempt without an answer may have
// freed the lock; then ErrGone is unsure.
func (s *redisStore) free(ctx context.Context, c *wire.Call) error {
	n, a, err := s.number(ctx, c)
	if err == nil && n == 0 {
		return unsureOf(a, store.ErrGone)
	}
	return err
}

// forgotten makes the result of Forget: a hold that is gone is forgotten.
func forgotten(errs []error) []error {
	for i, err := range errs {
		if errors.Is(err, store.ErrGone) {
			errs[i] = nil
		}
	}
	return errs
}

func (s *redisStore) look(ctx context.Context, a store.Claim, keys []string) (store.State, error) {
	answer, err := s.wire.Do(ctx, &wire.Call{
		Script: s.scripts.mutex.state, Common: []any{len(keys)}, Unit: wire.Unit{Keys: keys}, Tries: boundTries, Report: a.Report, Yields: true,
	})
	if err != nil {
		return store.State{}, unsureOf(answer, err)
	}
	var owner string
	var count, ttl, token, waiters int64
	if !scan(answer.Reply, &owner, &count, &ttl, &token, &waiters) {
		return store.State{}, badReply(s.scripts.mutex.state, answer.Reply)
	}
	state := store.State{
		Owner: store.ID(owner), Count: int(count), TTL: fromMillis(ttl), Token: token, Waiters: int(waiters),
	}
	if owner != "" {
		state.Limit = 1
	}
	return state, nil
}

// undoLimit bounds the time in which a hold with too few confirmations is taken back.
const undoLimit = 10 * time.Second

// taken returns the end of an attempt to take a free lock.
func (s *redisStore) taken(ctx context.Context, a store.Claim, r acquireReply, answer wire.Answer, err error) (store.Lease, error) {
	if err == nil && r.status != statusOurs {
		err = unsureOf(answer, r.busy())
	}
	if err != nil {
		return store.Lease{}, err
	}
	return s.keepOrUndo(ctx, r.toLease(a, answer), answer.Acked)
}

// keepOrUndo returns a new lease, or takes the hold back if too few servers have confirmed.
func (s *redisStore) keepOrUndo(ctx context.Context, l store.Lease, acked int) (store.Lease, error) {
	err := tooFew(l.Acks, acked)
	if err == nil {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	if l.Unsure || s.release(ctx, l) != nil {
		err = store.Unsure(err)
	}
	return store.Lease{}, err
}

// entering returns a script that takes locks, and the common part of its arguments.
func (s *redisStore) entering(script *wire.Script) (*wire.Script, []any) {
	if s.delay == 0 {
		return script, s.publish()
	}
	return s.scripts.delayed[script], []any{s.publish()[0], lifetime.Millis(s.delay)}
}

// publish returns the publish command of scripts, as the common part of their arguments.
func (s *redisStore) publish() []any {
	if s.wire.Sharded() {
		return shardedPublish
	}
	return plainPublish
}

var plainPublish, shardedPublish = []any{"PUBLISH"}, []any{"SPUBLISH"}

// cutLast cuts a name before its last colon, n times.
func cutLast(id string, n int) string {
	for range n {
		id = id[:max(strings.LastIndexByte(id, ':'), 0)]
	}
	return id
}

// Watch listens to the control channel of a client, where scripts publish the holds that may be
// gone. Watch calls doubt with "" when the subscription is confirmed, when the connection of the
// subscription is back, and when the connections for commands are in trouble.
func (s *redisStore) Watch(client string, doubt func(store.ID)) (stop func()) {
	remove := s.watchers.Add(client, doubt)
	ctx, cancel := context.WithCancel(s.life)
	s.group.GoOpen(func() {
		s.listen(ctx, s.control(client), func(hold string) {
			switch {
			case hold == "", cutLast(hold, 1) == client: // Redisson's layout has another name for the hold
				doubt("")
			case cutLast(hold, 2) == client:
				doubt(store.ID(hold))
			}
		})
	})
	return func() {
		cancel()
		remove()
	}
}

// listen calls heard with each line of the messages on a channel, and with "" when it begins to
// hear them. It ends with ctx, with the store, or when the server refuses the channel: then the
// next renewal finds that a hold is broken.
func (s *redisStore) listen(ctx context.Context, channel string, heard func(line string)) {
	var l *subs.Listener
	for tries := 2; l == nil; tries++ {
		var err error
		l, err = s.subs.Listen(ctx, subs.Topic{Channel: channel, Plain: true}, "")
		if ctx.Err() != nil || wire.Refused(err) || errors.Is(err, subs.ErrClosed) {
			return
		}
		if err != nil { // the cluster has no node for the channel just now
			lifetime.Sleep(ctx.Done(), wire.Pause(tries))
		}
	}
	defer l.Close()
	heard("") // a hold may have been broken before
	for {
		select {
		case n := <-l.C():
			if n.Err != nil {
				return
			}
			for line := range strings.SplitSeq(n.Payload, "\n") {
				if line != "" || n.Payload == "" {
					heard(line)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// control returns the control channel of a client.
func (s *redisStore) control(client string) string { return s.prefix + "{" + client + "}" }

func (s *redisStore) controlOf(id store.ID) string { return s.control(cutLast(string(id), 2)) }
