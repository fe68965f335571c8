package relockzk

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/store"
)

// trouble is the reason why the session could not connect the last time.
type trouble struct {
	err   error
	stays bool
}

// failed notes why a connection has failed. A round of servers that are all foreign stays a
// failure: none of them is a server of ZooKeeper.
func (x *session) failed(err error, foreign bool) {
	if x.foreign++; !foreign {
		x.foreign = 0
	}
	x.trouble.Store(&trouble{err: err, stays: x.foreign >= len(x.hosts.addresses) && foreign})
}

// with adds the reason why the session could not connect to an error.
func (x *session) with(err error) error {
	if t := x.trouble.Load(); t != nil {
		return fmt.Errorf("%w: %w", err, t.err)
	}
	return err
}

var errOver = errors.New("the session at ZooKeeper has ended")

// effect is the effect of a command: a read has none.
type effect bool

const (
	reads  effect = false
	writes effect = true
)

// mark marks an error of a command that may have run.
func (e effect) mark(err error) error {
	if e == writes {
		return store.Unsure(err)
	}
	return err
}

// refusals are errors that stay: without the rights, or with arguments that the server does not
// take, a request cannot pass.
var refusals = []error{
	zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrInvalidPath, zk.ErrBadArguments, zk.ErrNoChildrenForEphemerals,
}

// errUnimplemented is the answer of a server that is too old for a request.
var errUnimplemented = errors.New("the server does not know the request")

// unimplemented is the text of an error that the client library has no value for.
const unimplemented = "unknown error: -6"

// reason returns the error of a request in the terms of package store. An unknown error passes.
func (x *session) reason(err error, e effect) error {
	switch {
	case err == nil, errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists):
		return err
	case errors.Is(err, zk.ErrNoServer):
		if t := x.trouble.Load(); t != nil && t.stays {
			return t.err
		}
		return store.Unavailable(x.with(err))
	case errors.Is(err, zk.ErrSessionMoved):
		return store.Unavailable(err)
	case errors.Is(err, zk.ErrSessionExpired):
		x.end()
		return e.mark(store.Unavailable(err))
	case err.Error() == unimplemented:
		return errUnimplemented
	case slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) }):
		return err
	default:
		return e.mark(store.Unavailable(err))
	}
}

// spentAt returns the error of a lock whose nodes have no numbers of their own any more.
func spentAt(lock string) error {
	return fmt.Errorf("the server has no new numbers for the nodes of %s: delete this path when nobody has the lock", lock)
}

var errDeleted = errors.New("another client has deleted the node")
