// Package sections shows the sections around a context to the packages for tests.
package sections

import (
	"context"
	"iter"

	"github.com/go-relock/relock/store"
)

// Section is one entry of a hold, open or not.
type Section struct {
	Context context.Context // ends with the section; the same for each look at a section
	Left    bool            // its Unlock was called
	Lease   store.Lease     // of the hold, now
	Count   int             // of the hold, as its store should have it
	Token   int64           // of the hold; 0: none was drawn
}

// Key is the key of the innermost entry around a context, an [Entry].
type Key struct{}

// Entry is an entry as the values of a context have it.
type Entry interface {
	// Outwards returns the section of the entry and the sections around it, innermost first.
	Outwards() iter.Seq[Section]
}

// Around returns the sections around ctx, innermost first.
func Around(ctx context.Context) iter.Seq[Section] {
	if e, is := ctx.Value(Key{}).(Entry); is {
		return e.Outwards()
	}
	return func(func(Section) bool) {}
}
