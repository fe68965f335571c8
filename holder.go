package relock

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-relock/relock/store"
)

// Holder is the identity of one chain of calls, such as one request: the call outside of all
// sections, and the calls inside its sections. All holds of a chain are named after its holder, so
// that refusals, logs and [State] tell one story. A Holder decides nothing: a call enters a lock
// again because its context is inside an open section of that lock. The zero Holder is no holder.
// Holders are comparable.
type Holder struct {
	id string // "<client id>:<n>"
}

// isOf says whether c has made the holder.
func (h Holder) isOf(c *Client) bool {
	number, is := strings.CutPrefix(h.id, c.id)
	return is && strings.HasPrefix(number, ":")
}

// String returns the holder as shown by errors and logs: the [Client.ID] of its process, and a
// number. A foreign holder is quoted if it has other than printable characters. The string of the
// zero Holder is empty.
func (h Holder) String() string {
	if utf8.ValidString(h.id) && strings.IndexFunc(h.id, isNotPrint) < 0 {
		return h.id
	}
	return strconv.Quote(h.id)
}

func isNotPrint(r rune) bool { return !strconv.IsPrint(r) }

// Owner returns the name that the client of the holder got from [WithOwner]; empty: none.
func (h Holder) Owner() string {
	return h.id[:max(strings.IndexByte(h.id, '/'), 0)]
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
		return Holder{id: name[:i]}
	}
	return Holder{id: name}
}
