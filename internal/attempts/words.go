package attempts

import "github.com/go-relock/relock/store"

// The words of package store that are not about locks, for packages that know no locks.
type (
	Acks     = store.Acks
	Reporter = store.Reporter
)

// ErrUnavailable marks errors of a server that could not be reached, or does not serve now.
var ErrUnavailable = store.ErrUnavailable

// Unavailable marks an error with [ErrUnavailable]. The text stays the same; nil stays nil.
func Unavailable(err error) error { return store.Unavailable(err) }
