// Package torture does to lock libraries what happens to locks: answers that never come, servers
// that stop, restart empty or fail over, links that are slow or silent, processes that are killed
// or stand still. What each library's holders have believed is then checked.
//
// A library takes part with an adapter of some fifty lines, see [Library] and libraries.go. A
// [Scenario] is a workload with one kind of trouble. The verdict is "pass", "FAIL" with a reason,
// or "not promised": the library's documentation promises nothing that the scenario could break.
// Each scenario names a home-made lock with one [Defect] that fails in it, so that a pass means
// something, and runs without its trouble, too.
//
// docs/TORTURE.md has the results. "make torture" makes the page.
package torture

import (
	"context"
	_ "embed"
	"path"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Library is a lock library, used as its documentation advises.
type Library struct {
	Name     string
	Module   string  // whose version the page shows; empty: the version of this repository
	Promises Promise // of its documentation
	Claim    string  // the same in words, for the page
	Calm     bool    // wants Setup.Calm
	// Store starts a server that is not Redis, for a Library that keeps its locks there; one that
	// is to restart keeps its data. Apart are the scenarios that this server cannot have, beside
	// those that only Redis can.
	Store func(t testing.TB, keeps bool) *Backend
	Apart []string
	// Keeps are patterns, as for path.Match, of the keys in Redis that outlast a lock by the
	// documentation of the library, such as counters of tokens. All other keys end with their
	// leases.
	Keeps []string
	// Ends are the scenarios in which a goroutine of the library panics, and how. Such a panic would
	// end this program, so the scenario fails without a run.
	Ends map[string]string
	// Open makes the part of one process.
	Open func(Setup) (Locker, error)
}

// Promise is what a documentation promises beside mutual exclusion.
type Promise uint

// The promises.
const (
	Renews    Promise = 1 << iota // a lock lasts for as long as its holder lives and reaches the server
	Tells                         // a holder that has lost the lock is told before another can have it
	Fences                        // numbers that grow with each hold
	Follows                       // Sentinel and Cluster are served
	Serves                        // who waits gets the lock when it is free, soon after a trouble, too
	Says                          // an error that stays is returned
	Shares                        // read-write locks, semaphores and several locks at once: a Sharer
	Leads                         // one leader: a Leader
	Remembers                     // an operation is done once: a Doer
	HandsOn                       // a lock goes on to another process: a Relay
	Knows                         // Unlock says that the lock was another's only if it was
)

// Setup is what a library is opened with.
type Setup struct {
	TTL time.Duration
	// Redis makes a go-redis client on the process's way to the servers. The caller closes it.
	Redis func(mod ...func(*redis.UniversalOptions)) redis.UniversalClient
	// Calm are the addresses of two more servers, without trouble, for a Library with Calm.
	Calm []string
	// Addr is the same way for libraries with connections of their own; empty with Sentinel and
	// Cluster. For a Library with a Store, it is Backend.Source by that way, and Redis is nil.
	Addr string
}

// Locker is the part of a library in one process. It is used by many goroutines.
type Locker interface {
	// Lock waits until the caller has the lock, or ctx is done. The end of ctx is the end of the
	// wait alone, and not of the hold.
	Lock(ctx context.Context, name string) (*Held, error)
	Close()
}

// Sharer is the Locker of a library with [Shares]. All calls are as Lock.
type Sharer interface {
	Read(ctx context.Context, name string) (*Held, error)
	Write(ctx context.Context, name string) (*Held, error)
	Permit(ctx context.Context, name string, n int) (*Held, error)
	// Several takes all of the locks, or none.
	Several(ctx context.Context, names ...string) (*Held, error)
}

// Leader is the Locker of a library with [Leads].
type Leader interface {
	// Lead waits until the caller leads, and is as Lock otherwise.
	Lead(ctx context.Context, name string) (*Held, error)
}

// Doer is the Locker of a library with [Remembers].
type Doer interface {
	// Do does the operation called key, unless it was done. again says that an earlier attempt may
	// have happened.
	Do(ctx context.Context, key string, do func(again bool)) error
}

// Relay is the Locker of a library with [HandsOn].
type Relay interface {
	// Accept continues with what Held.HandOff has returned in another process.
	Accept(ctx context.Context, name string, ticket any) (*Held, error)
}

// Held is a lock that somebody has.
type Held struct {
	Lost  <-chan struct{} // closed when the holder is told of the loss; nil: nobody tells
	Until time.Time       // the end of a lease that the holder has to watch; zero: renewed
	// Unlock frees the lock. Without an error the lock is free. The error matches errNotOurs if the
	// library says that the lock was another's, or free.
	Unlock func(ctx context.Context) error
	Token  func(ctx context.Context) (int64, error) // nil: no tokens
	// HandOff ends the hold in favour of another process. nil: not promised.
	HandOff func(ctx context.Context) (ticket any, err error)
}

// isOver says whether the holder knows that the lock may be another's.
func (h *Held) isOver() bool {
	select {
	case <-h.Lost:
		return true
	default:
		return !h.Until.IsZero() && !time.Now().Before(h.Until)
	}
}

// scenarios are those that the library's server can have.
func (l *Library) scenarios() (can []*Scenario) {
	for _, s := range Scenarios {
		if l.Store == nil || s.Any && !slices.Contains(l.Apart, s.Name) {
			can = append(can, s)
		}
	}
	return can
}

// mayLeave says whether a key may outlast the locks.
func (l *Library) mayLeave(key string) bool {
	return slices.ContainsFunc(l.Keeps, func(pattern string) bool {
		is, err := path.Match(pattern, key)
		return is && err == nil
	})
}

//go:embed go.mod
var goMod string

// Version returns the version of the library in this program; empty: that of the repository.
func (l *Library) Version() string {
	found := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(l.Module) + ` (v\S+)`).FindStringSubmatch(goMod)
	if l.Module == "" || found == nil {
		return ""
	}
	return found[1]
}
