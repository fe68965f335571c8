package relockzk

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/go-relock/relock/store"
)

// Parts of the name of a node. Curator has chosen them.
const (
	protected = "_c_"
	lockName  = "lock-"
	digits    = 10
)

// space is the name space of the UUIDs of holds.
var space = uuid.MustParse("3f1b1c1e-9f0d-5c52-9c3a-6a3d0c1f7a55")

// prefixOf returns the name of the node of a hold, without the sequence number.
func prefixOf(id store.ID) string {
	return protected + uuid.NewSHA1(space, []byte(id)).String() + "-" + lockName
}

// sequence returns the digits that order the nodes of a lock. A child without a sequence number is
// no node of the lock: ok is false.
func sequence(child string) (number string, ok bool) {
	i := strings.LastIndex(child, lockName)
	if i < 0 || len(child)-i-len(lockName) != digits {
		return "", false
	}
	number = child[i+len(lockName):]
	return number, strings.Trim(number, "0123456789") == ""
}

// inOrder returns the children that are nodes of the lock, the holder first.
func inOrder(children []string) []string {
	nodes := slices.DeleteFunc(children, func(child string) bool { _, ok := sequence(child); return !ok })
	slices.SortFunc(nodes, func(a, b string) int {
		first, _ := sequence(a)
		second, _ := sequence(b)
		return cmp.Compare(first, second)
	})
	return nodes
}

// note is the part of a node's data that Curator's nodes do not have.
type note struct {
	ID    store.ID `json:"hold"`
	Count int      `json:"count"`
	Kept  int64    `json:"ms"` // the lease and the delay
}

// encode returns the data of a node.
func (n note) encode(address string) []byte {
	text, err := json.Marshal(n)
	if err != nil { // of strings and numbers
		panic(err)
	}
	return append([]byte(address+" "), text...)
}

// decode returns the note in the data of a node. A node of another client, such as Curator, has no
// note: its ID names the address of the client and the node, and its lease is unknown.
func decode(child string, data []byte, unknown time.Duration) note {
	address, text, _ := strings.Cut(string(data), " ")
	var n note
	if err := json.Unmarshal([]byte(text), &n); err == nil && n.ID != "" {
		return n
	}
	number, _ := sequence(child)
	return note{
		ID:    store.ID(fmt.Sprintf("%s:%s:%s", strings.ToValidUTF8(address, "?"), strings.TrimSuffix(child, number), number)),
		Count: 1, Kept: unknown.Milliseconds(),
	}
}

// indexOf returns the index of the node of a hold, of this package or of another client; -1: none.
func indexOf(nodes []string, id store.ID) int {
	prefix := prefixOf(id)
	rest, number := cutLast(string(id))
	_, name := cutLast(rest)
	return slices.IndexFunc(nodes, func(node string) bool {
		return strings.HasPrefix(node, prefix) || name != "" && node == name+number
	})
}

func cutLast(s string) (before, after string) {
	i := strings.LastIndexByte(s, ':')
	return s[:max(i, 0)], s[i+1:]
}

// clean returns the one spelling of a path, without a slash at its begin.
func clean(name string) (string, error) {
	trimmed := strings.TrimPrefix(name, "/")
	if trimmed == "" {
		return "", errors.New("the name is empty")
	}
	for part := range strings.SplitSeq(trimmed, "/") {
		if part == "" || part == "." || part == ".." {
			return "", fmt.Errorf("%q has the part %q, which no path of ZooKeeper may have", name, part)
		}
	}
	for _, r := range trimmed {
		if r < 0x20 || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 && r <= 0xffff {
			return "", fmt.Errorf("%q has the character %U, which no path of ZooKeeper may have", name, r)
		}
	}
	return trimmed, nil
}
