package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// This file is the kinds of locks: how run takes each, and how a reader tells one from another.

// kind is a kind of lock, as show and JSON name it.
type kind string

const (
	kindMutex     kind = "mutex"
	kindReadWrite kind = "read_write"
	kindSemaphore kind = "semaphore"
)

// String returns the kind in words.
func (k kind) String() string {
	if k == kindReadWrite {
		return "read-write lock"
	}
	return string(k)
}

// entrance is the way into the locks of a run: of a single one, or of several at once.
type entrance interface {
	relock.Locker
	TryLockFor(ctx context.Context, wait time.Duration) (context.Context, error)
	Err() error
}

// open makes the locks of a run.
func (r *runner) open(client *relock.Client) error {
	for _, name := range r.names {
		r.locks = append(r.locks, r.lockCalled(client, name))
	}
	r.all = r.locks[0]
	if len(r.locks) == 1 {
		return r.all.Err()
	}
	lockers := make([]relock.Locker, len(r.locks))
	for i, lock := range r.locks {
		lockers[i] = lock
	}
	all := relock.All(lockers...)
	r.all = all
	if err := all.Err(); err != nil {
		return err
	}
	if len(all.Names()) != len(r.names) {
		return usage("run: two names before -- are the same lock")
	}
	return nil
}

// lockCalled makes a lock of the kind that the flags ask for.
func (r *runner) lockCalled(client *relock.Client, name string) *relock.Lock {
	switch {
	case r.shared:
		return client.NewRWLock(name).RLocker()
	case r.write:
		return client.NewRWLock(name).Writer()
	case r.permitsSet:
		return client.NewSemaphore(name, r.permits)
	default:
		return client.NewLock(name)
	}
}

// isHeld says whether the lease of no lock is over.
func (r *runner) isHeld() bool {
	return !slices.ContainsFunc(r.locks, func(l *relock.Lock) bool { return !l.Held(r.section) })
}

// mode returns the mode in which a run holds its locks.
func (r *runner) mode() relock.Mode {
	switch {
	case r.shared:
		return relock.ModeShared
	case r.permitsSet:
		return relock.ModePermit
	default:
		return relock.ModeExclusive
	}
}

// token returns the token of lock i, 0 if none was drawn.
func (r *runner) token(i int) int64 {
	if i >= len(r.tokens) {
		return 0
	}
	return r.tokens[i]
}

// tokenTexts returns all tokens, in the order of names.
func (r *runner) tokenTexts() []string {
	texts := make([]string, len(r.names))
	for i := range texts {
		texts[i] = strconv.FormatInt(r.token(i), 10)
	}
	return texts
}

// quoted returns the names of locks for people.
func quoted(names []string) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = strconv.Quote(name)
	}
	return strings.Join(texts, ", ")
}

// The suffixes of the keys of a lock. A base key is a hash for a mutex, and a zset for both other
// kinds. docs/DESIGN.md has all keys.
const (
	queueSuffix   = ":queue"
	rwSuffix      = ":rw"
	permitsSuffix = ":permits"
)

// queueSuffixOf returns the suffix of the queue of a kind of lock.
func queueSuffixOf(k kind) string {
	switch k {
	case kindReadWrite:
		return rwSuffix + queueSuffix
	case kindSemaphore:
		return permitsSuffix + queueSuffix
	default:
		return queueSuffix
	}
}

// kindOf returns the kind by the library's name for it.
func kindOf(k store.Kind) kind {
	switch k {
	case store.ReadWrite:
		return kindReadWrite
	case store.Semaphore:
		return kindSemaphore
	default:
		return kindMutex
	}
}

// lockOf returns the lock of a kind, for reading its state and for ForceUnlock.
func lockOf(client *relock.Client, k kind, name string) *relock.Lock {
	switch k {
	case kindReadWrite:
		return client.NewRWLock(name).Writer()
	case kindSemaphore:
		return client.NewSemaphore(name, 1)
	default:
		return client.NewLock(name)
	}
}

// seen is a lock as it was found.
type seen struct {
	kind  kind // empty: a free lock has no kind
	lock  *relock.Lock
	state relock.State
}

// find finds the kind of a lock, and reads its state. The search begins with the likely kind. A
// free lock has no kind, and its state has no more than the token.
func (r *reader) find(ctx context.Context, name string, likely kind) (seen, error) {
	free, isFree := seen{lock: r.client.NewLock(name)}, false
	var other error
	for _, k := range r.kindsFrom(likely) {
		lock := lockOf(r.client, k, name)
		state, err := r.state(ctx, lock)
		switch {
		case errors.Is(err, errors.ErrUnsupported): // the store has no locks of this kind
		case errors.Is(err, relock.ErrKind):
			other = err
		case err != nil:
			return seen{}, err
		case state.Locked() || state.Waiters > 0:
			return seen{kind: k, lock: lock, state: state}, nil
		default:
			free.state.Token, isFree = state.Token, true // where all leases are over, one kind may refuse
		}
	}
	if isFree {
		return free, nil
	}
	return seen{}, other // the name became another kind meanwhile
}

// kindsFrom returns all kinds of locks, the likely one first.
func (r *reader) kindsFrom(likely kind) []kind {
	if r.mutexesOnly {
		return []kind{kindMutex}
	}
	kinds := []kind{likely}
	for _, k := range []kind{kindMutex, kindReadWrite, kindSemaphore} {
		if k != likely {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// modeOf returns the mode of a place in a queue: r for a reader, w for a writer, or the number of
// permits. Mutexes have no such text.
func modeOf(text string) relock.Mode {
	switch text {
	case "r":
		return relock.ModeShared
	case "", "w":
		return relock.ModeExclusive
	default:
		return relock.ModePermit
	}
}

// validMode says whether a text is the mode of a place in a queue of a kind.
func validMode(k kind, text string) bool {
	switch k {
	case kindReadWrite:
		return text == "r" || text == "w"
	case kindSemaphore:
		n, err := strconv.Atoi(text)
		return err == nil && n > 0
	default:
		return text == ""
	}
}
