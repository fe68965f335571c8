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

// Parts of the name of a node. Curator has chosen them, but for the marks.
const (
	protected = "_c_"
	lockName  = "lock-"
	readName  = "__READ__"
	writeName = "__WRIT__"
	digits    = 10
	uuidSize  = 36

	insideMark  = "in-" // a node with the number of the hold around it, see node.inside
	upgradeMark = "up-" // an upgrade that waits, see node.upgrade
)

// space is the name space of the UUIDs of holds.
var space = uuid.MustParse("3f1b1c1e-9f0d-5c52-9c3a-6a3d0c1f7a55")

func uuidOf(id store.ID) string { return uuid.NewSHA1(space, []byte(id)).String() }

// prefixOf returns the begin of the name of each node of a hold.
func prefixOf(id store.ID) string { return protected + uuidOf(id) + "-" }

// node is a child of a lock that is a place in its queue.
type node struct {
	name   string
	number string // orders the nodes of a lock
	kind   store.Kind
	reads  bool
	// inside is set for a reader inside a writer, and for an upgrade with the lock: such a node has
	// the number of the hold around it, and was made later than its number says.
	inside bool
	// upgrade is the UUID of the reader that waits for the lock of a writer; empty: no upgrade.
	upgrade string
}

// overflow is the last number that the server gives. The counter of a path is an int32 that stays at
// its end: all later nodes get the same number, and some of them a negative one.
const overflow = "2147483647"

// parse returns the node of a child. A child without a sequence number is no node: ok is false.
func parse(child string) (n node, ok bool) {
	split := len(child) - digits
	if split < 0 || strings.Trim(child[split:], "0123456789") != "" {
		return n, false
	}
	n = node{name: child, number: child[split:], kind: store.ReadWrite}
	named := child[:split]
	if strings.HasSuffix(named, "--") || strings.HasSuffix(named, "__-") { // a negative number
		n.number, named = overflow, named[:split-1]
	}
	head, ok := strings.CutSuffix(named, writeName)
	if !ok {
		head, n.reads = strings.CutSuffix(named, readName)
		ok = n.reads
	}
	if !ok {
		n.kind = store.Mutex
		head, ok = strings.CutSuffix(named, lockName)
	}
	if marks := len(protected) + uuidSize + 1; ok && n.kind == store.ReadWrite && len(head) > marks {
		n.inside = head[marks:] == insideMark
		if reader, is := strings.CutPrefix(head[marks:], upgradeMark); is {
			n.upgrade = strings.TrimSuffix(reader, "-")
		}
	}
	return n, ok
}

// isOf says whether the node is of the hold with a UUID.
func (n node) isOf(hold string) bool { return strings.HasPrefix(n.name, protected+hold+"-") }

// newName returns the name of the node for a hold, without the sequence number.
func (n node) newName(id store.ID) string {
	name := prefixOf(id)
	switch {
	case n.inside:
		name += insideMark
	case n.upgrade != "":
		name += upgradeMark + n.upgrade + "-"
	}
	switch {
	case n.kind == store.Mutex:
		return name + lockName
	case n.reads:
		return name + readName
	default:
		return name + writeName
	}
}

// inOrder returns the children that are nodes of a lock, by their numbers. Of nodes with one number
// the writer is the first.
func inOrder(children []string) (nodes []node) {
	for _, child := range children {
		if n, ok := parse(child); ok {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b node) int {
		if c := cmp.Compare(a.number, b.number); c != 0 || a.reads == b.reads {
			return c
		}
		if a.reads {
			return 1
		}
		return -1
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
func decode(n node, data []byte, unknown time.Duration) note {
	address, text, _ := strings.Cut(string(data), " ")
	var known note
	if err := json.Unmarshal([]byte(text), &known); err == nil && known.ID != "" {
		return known
	}
	split := len(n.name) - digits
	return note{
		ID:    store.ID(fmt.Sprintf("%s:%s:%s", strings.ToValidUTF8(address, "?"), n.name[:split], n.name[split:])),
		Count: 1, Kept: unknown.Milliseconds(),
	}
}

// indexOf returns the index of the node of a hold, of this package or of another client; -1: none.
func indexOf(nodes []node, id store.ID) int {
	hold := uuidOf(id)
	rest, number := cutLast(string(id))
	_, name := cutLast(rest)
	return slices.IndexFunc(nodes, func(n node) bool {
		return n.isOf(hold) || name != "" && n.name == name+number
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
