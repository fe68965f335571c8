package relock

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// Holder is the identity of one logical call chain, such as one request. Whoever carries the same holder in a context
// enters the same lock together. The zero Holder is no holder. Holders are comparable.
type Holder struct {
	id string // "<uuid>:<n>"
}

// String is the holder as errors and the logs show it: `<uuid>:<n>`. What stands in Redis is a hold of it, `<uuid>:<n>:<m>`
// ([WithRedissonLayout]: the holder). It is empty for the zero Holder.
func (h Holder) String() string { return h.id }

// holders and holds of this process are numbered by one counter each, so a number is never used twice with one uuid. The holds of
// a holder that came with a context have a counter that begins anywhere, far above the others: it may be a holder of another
// process, of whom Redis has told (State.Holder), and that process numbers holds for it too.
var (
	holderNumber  atomic.Int64
	holdNumber    atomic.Int64
	carriedNumber = anywhere()
	processID     = sync.OnceValue(uuid.NewString)
)

// anywhere is a counter that no other process begins near, with room for as many numbers as there will ever be.
func anywhere() *atomic.Int64 {
	n := new(atomic.Int64)
	n.Store(1<<62 + rand.Int64N(1<<61))
	return n
}

// NewHolder makes a holder that nobody else has. [Lock.Lock] makes one by itself where the context carries none, so
// this is for code that wants goroutines, or calls that do not share a section's context, to enter locks together.
func NewHolder() Holder { return newHolder(processID()) }

func newHolder(id string) Holder {
	return Holder{id: numbered(id, holderNumber.Add(1))}
}

// newHold names the next hold of h: the field that stands in Redis while it lasts, and never again.
func (h Holder) newHold() string {
	return numbered(h.id, carriedNumber.Add(1))
}

// newHolderWithHold is both in one allocation: the name of a hold begins with that of its holder.
func newHolderWithHold(id string) (h Holder, hold string) {
	hold = numbered(id, holderNumber.Add(1), holdNumber.Add(1))
	return holderOf(hold), hold
}

// numbered is "<id>:<n>", or "<id>:<n>:<m>", in one allocation.
func numbered(id string, numbers ...int64) string {
	var room [96]byte
	name := append(room[:0], id...)
	for _, n := range numbers {
		name = strconv.AppendInt(append(name, ':'), n, 10)
	}
	return string(name)
}

// holderOf is the holder whose hold this is.
func holderOf(hold string) Holder {
	if i := strings.LastIndexByte(hold, ':'); i >= 0 {
		return Holder{id: hold[:i]}
	}
	return Holder{id: hold}
}

// carried is what a context carries for this package: a holder, and the innermost frame that it has entered.
type carried struct {
	holder Holder
	frame  *frame
}

// carriedKey is the context key of *carried.
type carriedKey struct{}

func carriedBy(ctx context.Context) carried {
	if c, ok := ctx.Value(carriedKey{}).(*carried); ok {
		return *c
	}
	return carried{}
}

// WithHolder returns a context that carries h, so that locks taken with it are taken as h. If ctx carries h already, the
// sections it has entered stay in place; those of another holder are hidden, as by [WithoutHolder]. A zero h is the same
// as WithoutHolder.
//
// A holder re-enters a lock only through the [Client] that has taken it. With one of another process, as [Lock.State] and
// [LockedError] tell of it, a lock that it has is refused like anybody else's.
func WithHolder(ctx context.Context, h Holder) context.Context {
	if carriedBy(ctx).holder == h {
		return ctx
	}
	return context.WithValue(ctx, carriedKey{}, &carried{holder: h})
}

// HolderFrom returns the holder that ctx carries, and whether there is one.
func HolderFrom(ctx context.Context) (Holder, bool) {
	h := carriedBy(ctx).holder
	return h, h != Holder{}
}

// WithoutHolder returns a context without holder and entered sections, for a goroutine that is started inside a critical
// section and must compete for itself. It still ends when ctx ends.
func WithoutHolder(ctx context.Context) context.Context {
	return WithHolder(ctx, Holder{})
}
