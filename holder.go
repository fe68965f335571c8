package relock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"iter"
	"strconv"
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

// newID names a hold of a holder, and makes a holder if holder is zero. One counter numbers both,
// so that the last number of an ID is unique in the client. The number ends with random digits:
// errors and logs show the holder, and nobody can make the ticket of a hold from its holder.
func (c *Client) newID(holder Holder) (store.ID, Holder) {
	n := c.numbers.Add(1)
	var room [128]byte
	id := append(room[:0], holder...)
	if holder == "" {
		id = strconv.AppendInt(append(append(id, c.id...), ':'), n, 10)
	}
	end := len(id)
	id = strconv.AppendInt(append(id, ':'), n, 10)
	name := string(strconv.AppendUint(id, secretDigits(), 10))
	return store.ID(name), Holder(name[:end]) // both in one allocation
}

// randomDigits is the number of digits of secretDigits.
const randomDigits = 12

// secretDigits returns a random number of randomDigits digits.
func secretDigits() uint64 {
	const least, most = 100_000_000_000, 1_000_000_000_000
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return least + binary.NativeEndian.Uint64(random[:])%(most-least)
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
