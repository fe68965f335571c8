package relocksql

import (
	"context"
	"fmt"
	"sync"
)

// urgency is the kind of a command. A command that waits for the row of a name keeps its
// connection meanwhile, and so must leave connections to commands that are more urgent.
type urgency int

const (
	asking    urgency = iota // locks the row of a name, for a caller who can wait
	releasing                // locks the row of a name, for holds and places that are there
	entering                 // is one statement, and waits for no row of a name: an entry, or an inner exit
	renewing                 // is such a statement for the client, and not for one of its callers
	kinds
)

// String is the word for a command in reports.
func (u urgency) String() string { return [kinds]string{"acquire", "release", "enter", "renew"}[u] }

const (
	// abreast is the number of commands of one urgency and one name in flight. The row of the name
	// lets one through, and the next one is on its way meanwhile.
	abreast = 2
	// unlimited is the number of connections that a pool without a limit counts as.
	unlimited = 32
)

// turns gives commands their turns to use the pool, first come, first served: the pool itself
// serves its callers in any order. Asks leave half of the connections to others, asks and releases
// leave a quarter, and so do entries. An eighth, at least one connection, is for renewals alone.
type turns struct {
	pool  lanes
	most  chan struct{} // has a place for each command but renewals
	tight bool          // the pool is too small for quarters

	mu    sync.Mutex
	names map[string]*oneName
}

// lanes has a place for each command of an urgency. Asks have one among the releases, too.
type lanes [kinds]chan struct{}

// oneName has the lanes of the commands of one name.
type oneName struct {
	lanes
	users int
}

// newTurns makes the turns of a pool. 0: the pool has no limit.
func newTurns(connections int) *turns {
	if connections == 0 {
		connections = unlimited
	}
	quarter := max(1, connections/4)
	lane := func(left int) chan struct{} { return make(chan struct{}, max(1, connections-left)) }
	return &turns{
		pool:  lanes{asking: lane(2 * quarter), releasing: lane(quarter), entering: lane(quarter), renewing: lane(0)},
		most:  lane(max(1, quarter/2)),
		tight: connections < 2*quarter+1, names: map[string]*oneName{},
	}
}

// take waits for a turn. leave ends the turn. Commands of no name have the empty name.
func (t *turns) take(ctx context.Context, u urgency, name string) (leave func(), err error) {
	var taken []chan struct{}
	leave = func() {
		for _, lane := range taken {
			<-lane
		}
		t.leave(name)
	}
	wanted := []chan struct{}{t.enter(name).lanes[u], t.pool[u]}
	if u == asking {
		wanted = append(wanted, t.pool[releasing])
	}
	if u != renewing {
		wanted = append(wanted, t.most)
	}
	for i, lane := range wanted {
		select {
		case lane <- struct{}{}:
			taken = append(taken, lane)
		case <-ctx.Done():
			leave()
			if i == 0 {
				return nil, fmt.Errorf("other calls for %q wait for its row: %w", name, ctx.Err())
			}
			return nil, fmt.Errorf("other calls wait for the database: %w", ctx.Err())
		}
	}
	return leave, nil
}

// enter returns the lanes of a name, until leave.
func (t *turns) enter(name string) *oneName {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.names[name]
	if n == nil {
		n = new(oneName)
		for u := range n.lanes {
			n.lanes[u] = make(chan struct{}, abreast)
		}
		t.names[name] = n
	}
	n.users++
	return n
}

func (t *turns) leave(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.names[name]
	n.users--
	if n.users == 0 {
		delete(t.names, name)
	}
}
