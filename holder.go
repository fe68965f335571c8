package relock

import (
	"context"
	"iter"
	"strings"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// Holder is the identity of one chain of calls, such as one request. See [event.Holder].
type Holder = event.Holder

// HolderFrom returns the holder of the innermost open section around ctx, and whether ctx is inside
// of one.
func HolderFrom(ctx context.Context) (Holder, bool) {
	if e := openEntry(ctx, func(*entry) bool { return true }); e != nil {
		return e.hold.holder, true
	}
	return "", false
}

// Around returns the open sections around ctx, innermost first, for hooks: the Context of an event
// is around its call while [event.Hooks.Trace] runs. Sections under [WithoutHolder] are around
// nothing.
func Around(ctx context.Context) iter.Seq[event.Section] {
	return func(yield func(event.Section) bool) {
		for at := entryOf(ctx); at != nil; at = at.outer {
			if at.isOpen() && !yield(at.hold.section()) {
				return
			}
		}
	}
}

// hasMade says whether c has made a holder.
func (c *Client) hasMade(h Holder) bool {
	number, is := strings.CutPrefix(string(h), c.id)
	return is && strings.HasPrefix(number, ":")
}

// numberOf returns the number of an ID that no other hold of the client has: the last one, without
// its random digits. A field of Redisson's layout has the same number.
func numberOf(id store.ID) string {
	number := string(id[strings.LastIndexByte(string(id), ':')+1:])
	if len(number) > randomDigits {
		return number[:len(number)-randomDigits]
	}
	return number
}

// holderOf returns the holder of a hold. A foreign ID, as of a thread of Java, is its own holder.
func holderOf(id store.ID) Holder {
	name := string(id)
	unowned := strings.LastIndexByte(name, '/') + 1 // the name of an owner may have colons
	if i := strings.LastIndexByte(name, ':'); i > unowned && strings.IndexByte(name[unowned:i], ':') >= 0 {
		return Holder(name[:i])
	}
	return Holder(name)
}
