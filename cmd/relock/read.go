package main

import (
	"cmp"
	"context"
	"errors"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// kindWords has the words for kinds of locks.
var kindWords = map[store.Kind]string{store.Mutex: "mutex", store.ReadWrite: "read_write", store.Semaphore: "semaphore"}

// lockInfo is the JSON of a lock, for show, ls and watch. Fields without a value are left out.
type lockInfo struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind,omitempty"` // empty: nobody has the lock, and nobody waits
	Held    bool      `json:"held"`
	Holders []holding `json:"holders,omitempty"` // the one whose lease ends first is the first
	Count   int       `json:"count,omitempty"`   // of a mutex, which alone has the count in Redis
	Token   int64     `json:"token,omitempty"`   // the last one that was drawn, by whichever hold
	Waiters int       `json:"waiters"`
	WaitMs  *int64    `json:"longest_wait_ms,omitempty"`
	Queue   []waiter  `json:"queue,omitempty"` // by turn; only show

	lock *relock.Lock
}

// holding is one holder of a lock.
type holding struct {
	Holder  string     `json:"holder"`
	Mode    event.Mode `json:"mode"`
	LeaseMs *int64     `json:"lease_ms,omitempty"` // the rest of the lease
}

// waiter is one place in a queue.
type waiter struct {
	Holder string     `json:"holder"`
	Mode   event.Mode `json:"mode"`
	WaitMs *int64     `json:"wait_ms,omitempty"` // nil: a reader that waits to write, before all others
}

// holders returns the names of all holders for people.
func (i lockInfo) holders() string {
	var all []string
	for _, h := range i.Holders {
		all = append(all, printable(h.Holder))
	}
	return strings.Join(all, ", ")
}

// reader reads locks.
type reader struct{ client *relock.Client }

// lockOf returns the lock of a kind, for reading its state and for ForceUnlock.
func (r *reader) lockOf(k store.Kind, name string) *relock.Lock {
	switch k {
	case store.ReadWrite:
		return r.client.NewRWLock(name).Writer()
	case store.Semaphore:
		return r.client.NewSemaphore(name, 1)
	default:
		return r.client.NewLock(name)
	}
}

// lock reads one lock with its queue, and finds its kind. A free lock has no kind.
func (r *reader) lock(ctx context.Context, name string) (lockInfo, error) {
	free, isFree := lockInfo{Name: name, lock: r.client.NewLock(name)}, false
	var another error
	for _, k := range []store.Kind{store.Mutex, store.ReadWrite, store.Semaphore} {
		state, err := r.lockOf(k, name).State(ctx)
		switch {
		case errors.Is(err, errors.ErrUnsupported): // the store has no locks of this kind
		case errors.Is(err, relock.ErrKind):
			another = err
		case err != nil:
			return lockInfo{}, err
		case state.Locked() || state.Waiters > 0:
			return r.info(relock.Listed{Name: name, Kind: k, State: state}), nil
		default:
			free.Token, isFree = state.Token, true // where all leases are over, one kind may refuse
		}
	}
	if !isFree { // the name became another kind meanwhile
		return lockInfo{}, another
	}
	return free, nil
}

// info returns what is known of a lock that somebody has or waits for.
func (r *reader) info(l relock.Listed) lockInfo {
	info := lockInfo{
		Name: l.Name, Kind: kindWords[l.Kind], Held: l.Locked(), Token: l.Token, Waiters: l.Waiters, lock: r.lockOf(l.Kind, l.Name),
	}
	if l.Kind == store.Mutex {
		info.Count = l.Count
	}
	if info.Held {
		for _, h := range append([]relock.Held{{Holder: l.Holder, TTL: l.TTL, Mode: l.Mode}}, l.Others...) {
			info.Holders = append(info.Holders, holding{h.Holder.String(), h.Mode, new(h.TTL.Milliseconds())})
		}
	}
	if l.Queue != nil {
		info.Waiters -= min(info.Waiters, mostQueue) - len(l.Queue) // the rest is counted as the store does
	}
	for _, w := range l.Queue {
		place := waiter{Holder: w.Holder.String(), Mode: w.Mode}
		if !w.Since.IsZero() {
			place.WaitMs = new(max(0, time.Since(w.Since).Milliseconds()))
		}
		info.Queue, info.WaitMs = append(info.Queue, place), cmp.Or(info.WaitMs, place.WaitMs)
	}
	if !info.Held && info.Waiters == 0 {
		info.Kind = ""
	}
	return info
}

// mostQueue is the number of places in a queue that State looks at.
const mostQueue = 100

// list reads all locks that are held or waited for and whose name matches the pattern, if there is
// one, by name. A queue costs a round trip.
func (r *reader) list(ctx context.Context, pattern ...string) ([]lockInfo, error) {
	matches, err := r.matcher(cmp.Or(strings.Join(pattern, ""), "*"))
	if err != nil {
		return nil, err
	}
	listed, err := r.client.List(ctx, matches)
	if err != nil {
		return nil, err
	}
	infos := []lockInfo{}
	for _, l := range listed {
		if l.Waiters > 0 {
			if l.State, err = r.lockOf(l.Kind, l.Name).State(ctx); errors.Is(err, relock.ErrKind) { // by now
				continue
			} else if err != nil {
				return nil, err
			}
		}
		info := r.info(l)
		info.Queue = nil
		if info.Kind != "" { // free by now
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// matcher returns whether a pattern matches a name or its other form: a lock "x" is
// "{x}" too. The pattern is that of package path, and a / has no meaning.
func (r *reader) matcher(pattern string) (func(name string) bool, error) {
	plain := strings.NewReplacer("/", "\x00").Replace
	pattern = plain(pattern)
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, usage("the pattern has a [ without a ], or a \\ at its end")
	}
	return func(name string) bool {
		is, _ := path.Match(pattern, plain(name))
		other, _ := path.Match(pattern, plain("{"+name+"}"))
		return is || other && r.client.NewLock("{"+name+"}").Key() == r.client.NewLock(name).Key()
	}, nil
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
