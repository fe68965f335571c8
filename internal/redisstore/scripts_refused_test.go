package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// What is left when Redis refuses a command of a script?

// commands are all calls of the store about a mutex that id has, or is to have.
func (r *rig) commands(id string) map[string]func(ctx context.Context) error {
	return kindOf(r, store.Mutex).commandsOf(r.claim(id, minute))
}

// commandsOf are all calls of the store about a lock that a hold has, or is to have.
func (r *kindRig) commandsOf(a store.Claim) map[string]func(ctx context.Context) error {
	s, l := r.store, store.Lease{Claim: a}
	other := r.hold("b", 1)
	return map[string]func(ctx context.Context) error{
		"Try":     func(ctx context.Context) error { _, err := s.Try(ctx, other); return err },
		"acquire": func(ctx context.Context) error { _, _, err := s.claim(ctx, other, newPlace, 1); return err },
		"Enter":   func(ctx context.Context) error { _, err := s.Enter(ctx, l, 2); return err },
		"Renew": func(ctx context.Context) error {
			return s.Renew(ctx, []store.Renewal{{Lease: l, TTL: 2 * minute, Count: 2}})[0]
		},
		"Release": func(ctx context.Context) error { return s.Release(ctx, l) },
		"Forget":  func(ctx context.Context) error { return s.Forget(ctx, []store.Claim{a})[0] },
		"Token":   func(ctx context.Context) error { _, err := s.Token(ctx, l); return err },
		"Look":    func(ctx context.Context) error { _, err := s.Look(ctx, a); return err },
		"Break":   func(ctx context.Context) error { return s.Break(ctx, a) },
	}
}

// allKinds are the kinds of locks that the native layout has.
var allKinds = []store.Kind{store.Mutex, store.ReadWrite, store.Semaphore}

func TestAKeyOfAnotherTypeIsAnErrorAndNothingChanges(t *testing.T) {
	for _, kind := range allKinds {
		uses := map[string]string{
			"":                         "Try acquire Enter Renew Release Forget Token Look Break",
			suffix(kind) + queueSuffix: "acquire Release Forget Look Break",
			tokenSuffix:                "Token Look",
		}
		if kind != store.Mutex {
			uses[suffix(kind)] = "acquire Release Forget Break"
		}
		for suffix, users := range uses {
			for _, what := range strings.Fields(users) {
				t.Run(fmt.Sprint(kind, ": ", what, suffix), func(t *testing.T) {
					r := newKindRig(t, kind)
					r.listen("b")
					a := r.enters(r.writer("a"))
					if suffix == "" {
						r.queues(r.writer("b"))
					}
					require.NoError(t, r.rdb.Del(t.Context(), r.base+suffix).Err())
					require.NoError(t, r.rdb.SAdd(t.Context(), r.base+suffix, "x").Err())
					before := r.dump()
					err := r.commandsOf(a)[what](t.Context())
					require.ErrorContains(t, err, "WRONGTYPE")
					require.NotErrorIs(t, err, store.ErrUnsure)
					require.NotErrorIs(t, err, store.ErrKind)
					after := r.dump()
					if suffix == "" && kind != store.Mutex { // a writer's limit may be gone: it is a stale one
						delete(before, r.limits())
						delete(after, r.limits())
					}
					require.Equal(t, before, after)
				})
			}
		}
	}
}

// full sets the maxmemory of the server: "1" leaves no memory.
func (r *rig) full(limit string) {
	r.Helper()
	require.NoError(r, r.rdb.ConfigSet(context.Background(), "maxmemory", limit).Err())
}

func TestOutOfMemory(t *testing.T) {
	server := redistest.Start(t)
	for _, kind := range allKinds {
		for what, oom := range map[string]bool{
			"Try": false, "acquire": true, "Enter": false, "Renew": false, "Release": false, "Forget": false,
			"Token": kind != store.ReadWrite, "Look": false, "Break": false,
		} {
			t.Run(fmt.Sprint(kind, ": ", what), func(t *testing.T) {
				r := kindOf(newRigOn(t, server), kind)
				ps := r.listen("b")
				a := r.enters(r.writer("a"))
				next := r.queues(r.writer("b"))
				r.full("1")
				defer r.full("0")
				err := r.commandsOf(a)[what](t.Context())
				var busy *store.Busy
				switch {
				case oom:
					require.ErrorContains(t, err, "OOM")
					require.NotErrorIs(t, err, store.ErrUnsure)
				case what == "Try":
					require.ErrorAs(t, err, &busy)
				default:
					require.NoError(t, err)
				}
				switch what {
				case "Enter", "Renew":
					if kind == store.Mutex {
						r.owner(string(a.ID), 2)
					}
					require.Equal(t, what == "Renew", r.look().TTL > minute)
				case "Release", "Forget", "Break":
					require.Equal(t, lineOf(next), message(t, ps))
					r.has(next)
					require.InDelta(t, minute, r.look().TTL, float64(2*time.Second))
				}
			})
		}
		t.Run(fmt.Sprint(kind, ": a free lock is not taken"), func(t *testing.T) {
			r := kindOf(newRigOn(t, server), kind)
			r.full("1")
			defer r.full("0")
			for _, a := range []store.Claim{r.writer("a"), r.shared("a")} {
				_, err := r.store.Try(t.Context(), a)
				require.ErrorContains(t, err, "OOM")
				r.free()
			}
		})
		t.Run(fmt.Sprint(kind, ": a waiter keeps its place and gets its grant"), func(t *testing.T) {
			r := kindOf(newRigOn(t, server), kind)
			ps := r.listen("b")
			owner, next := r.enters(r.writer("a")), r.shared("b")
			arrival := fmt.Sprint(r.acquire(next, newPlace).number)
			r.full("1")
			defer r.full("0")
			require.Equal(t, statusQueued, r.acquire(next, arrival).status)
			r.full("0")
			r.lapse(owner)
			r.full("1")
			require.Equal(t, statusBusy, r.acquire(r.writer("c"), noPlace).status)
			require.Equal(t, lineOf(next), message(t, ps))
			require.Equal(t, statusOurs, r.acquire(next, arrival).status)
		})
	}
}

// TestAReplicaIsNotBelieved asks a server that has just become a replica, and has no data yet.
func TestAReplicaIsNotBelieved(t *testing.T) {
	server := redistest.Start(t)
	r, redisson := newRigOn(t, server), newRedissonRig(t, server.Client(), false)
	require.NoError(t, r.rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	t.Cleanup(func() { require.NoError(t, r.rdb.ReplicaOf(context.Background(), "NO", "ONE").Err()) })
	id := newID("a")
	readWrite, semaphore := kindOf(r, store.ReadWrite), kindOf(r, store.Semaphore)
	for layout, commands := range map[string]map[string]func(context.Context) error{
		"a mutex": r.commands(id), "a loan": r.ticketCommands(id, store.Lease{Claim: r.loan("b", id)}), "Redisson": redisson.commands(),
		"a reader": readWrite.commandsOf(readWrite.shared("a")), "a permit": semaphore.commandsOf(semaphore.shared("a")),
	} {
		delete(commands, "Look") // reads, and decides nothing
		for what, command := range commands {
			t.Run(layout+": "+what, func(t *testing.T) { requireReadOnly(t, command) })
		}
	}
}

// requireReadOnly requires that a command, which is repeated until its context ends, says that the
// server is read-only. On a busy machine the first answer may come later than the context ends.
func requireReadOnly(t *testing.T, command func(context.Context) error) {
	t.Helper()
	for limit := 100 * time.Millisecond; ; limit *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := command(ctx)
		isOver := ctx.Err() != nil
		cancel()
		require.Error(t, err)
		if !strings.Contains(err.Error(), "READONLY") && limit < time.Minute {
			continue
		}
		require.ErrorContains(t, err, "READONLY")
		require.NotErrorIs(t, err, store.ErrGone)
		require.True(t, isOver || !errors.Is(err, store.ErrUnsure), "the server says that nothing has run")
		return
	}
}

// withUser is a rig of a user of Redis with these rules.
func withUser(t *testing.T, rules ...any) *rig {
	t.Helper()
	server := redistest.Start(t)
	if !server.AtLeast(6, 2) {
		redistest.NotTested(t, "Redis before 6.2 has no rules for channels")
	}
	r := newRigOn(t, server)
	require.NoError(t, r.rdb.Do(t.Context(), append([]any{"ACL", "SETUSER", "app", "on", ">pw", "resetchannels"}, rules...)...).Err())
	rdb := server.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
	s, err := New(rdb, Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r.store = s.(*nativeStore)
	return r
}

func TestALeaseThatCannotBeSetLeavesNoLockWithoutEnd(t *testing.T) {
	r := withUser(t, "&*", "~*", "+@all", "-pexpire")
	_, err := r.store.Try(t.Context(), r.claim(newID("a"), minute))
	require.ErrorContains(t, err, "can't run this command")
	r.free()

	for _, what := range []string{"Release", "Forget", "Break"} {
		owner := r.enter("a") // as another user
		ps := r.listen("b")
		r.waiter("b")
		require.ErrorContains(t, r.commands(owner)[what](t.Context()), "can't run this command", what)
		silent(t, ps)
		r.free()
	}
}

// A user without PUBLISH can tell nobody of a grant. What a script has written stays, and its error
// says so.
func TestWithoutPublishNoCommandIsHalfDone(t *testing.T) {
	r := withUser(t, "&*", "~*", "+@all", "-publish", "-spublish")
	untold := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, "UNTOLD PUBLISH: ")
		require.ErrorIs(t, err, store.ErrUnsure, "the script has run")
		require.NotErrorIs(t, err, store.ErrUnavailable)
	}
	for _, what := range []string{"Release", "Forget", "Break"} {
		ps := r.listen("b")
		id := r.enter("a")
		next := r.waiter("b")
		untold(r.commands(id)[what](t.Context()))
		r.owner(next, 1)
		require.EqualValues(t, 1, r.release(next))
		require.NoError(t, ps.Close())
	}

	k := kindOf(r, store.ReadWrite)
	ps, other := r.listen("b"), r.listen("c")
	for _, what := range []string{"Release", "Forget", "Break"} {
		writer := k.enters(k.writer("a"))
		readers := []store.Claim{k.queues(k.reader("b")), k.queues(k.reader("c"))}
		untold(k.commandsOf(writer)[what](t.Context()))
		k.has(readers...)
		for _, reader := range readers {
			require.EqualValues(t, 1, k.release(reader))
		}
	}
	require.NoError(t, ps.Close())
	require.NoError(t, other.Close())

	// The next renewal finds what a message on a control channel would have told.
	require.NoError(t, r.store.Break(t.Context(), r.claim(r.enter("a"), minute)))
	r.free()
	lender := r.enter("a")
	loan := r.borrow(r.loan("b", lender), r.ticket())
	require.NoError(t, r.store.Release(t.Context(), r.lent(lender)), "recalled")
	_, err := r.store.Follow(t.Context(), loan)
	require.ErrorIs(t, err, store.ErrRecalled)
	r.leave(loan)
	r.free()
	moved := r.claim(newID("b"), minute)
	_, _, err = r.store.Accept(t.Context(), moved, store.ID(r.enter("a")), r.ticket(), false)
	require.NoError(t, err)
	r.owner(string(moved.ID), 1)
}
