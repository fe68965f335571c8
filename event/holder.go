package event

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Holder is the identity of one chain of calls, such as one request: the call outside of all
// sections, and the calls inside its sections. All holds of a chain are named after its holder, so
// that refusals, logs and relock.State tell one story. A Holder decides nothing: a call enters a
// lock again because its context is inside an open section of that lock. The zero Holder is no
// holder. It is "<client ID>:<number>".
type Holder string

// String returns the holder as shown by errors and logs: the ID of its client, and a number. A
// foreign holder is quoted if it has other than printable characters. The string of the
// zero Holder is empty.
func (h Holder) String() string {
	if utf8.ValidString(string(h)) && strings.IndexFunc(string(h), isNotPrint) < 0 {
		return string(h)
	}
	return strconv.Quote(string(h))
}

func isNotPrint(r rune) bool { return !strconv.IsPrint(r) }

// Owner returns the name that the client of the holder got from WithOwner; empty: none.
func (h Holder) Owner() string {
	return string(h[:max(strings.IndexByte(string(h), '/'), 0)])
}
