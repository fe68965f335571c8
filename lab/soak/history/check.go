package history

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is the result of a check.
type Verdict int

// The verdicts.
const (
	Kept      Verdict = iota // there is an order without a broken promise
	Broken                   // there is no such order
	Undecided                // the check took too long
)

var verdicts = [...]string{"kept", "broken", "not decided"}

func (v Verdict) String() string { return verdicts[v] }

// Report is a verdict, with its reasons.
type Report struct {
	Verdict Verdict
	Ops     int           // with the operations made up by Check
	Took    time.Duration // to check

	broken []found
}

// found is a lock whose history is broken, and the longest possible order.
type found struct {
	lock    string
	order   []porcupine.Operation
	pending []porcupine.Operation // not in the order
}

// Check looks for an order of the operations, lock by lock, without a broken promise, for at most
// limit. At the end of a history nobody believes in a hold, except crashed processes.
//
// Check takes time and memory in proportion to the square of the operations on one lock. Check a
// long recording in parts, see [Recorder.Take].
func Check(ops []Op, limit time.Duration) *Report {
	began := time.Now()
	all := whole(ops)
	r := &Report{Ops: len(all)}
	m := model(state{})
	switch porcupine.CheckOperationsTimeout(m, all, limit) {
	case porcupine.Ok:
		r.Verdict = Kept
	case porcupine.Illegal:
		r.Verdict = Broken
	default:
		r.Verdict = Undecided
	}
	r.Took = time.Since(began)
	if r.Verdict == Broken { // again, for the explanation
		_, info := porcupine.CheckOperationsVerbose(m, all, limit)
		parts := m.Partition(all)
		for i, orders := range info.PartialLinearizationsOperations() {
			if f := furthest(parts[i], orders); len(f.pending) > 0 {
				r.broken = append(r.broken, f)
			}
		}
	}
	return r
}

// model is one lock, with its first state. An Op is the input of the model, and has the answer of
// the call too. There is no output. The metadata is the number of the operation.
func model(at state) porcupine.Model {
	return porcupine.Model{
		Partition: partition,
		Init:      func() any { return at },
		Step: func(s, input, _ any) (bool, any) {
			next, wrong := step(s.(state), input.(*Op))
			return wrong == "", next
		},
		Equal:                     func(a, b any) bool { return a.(state).equal(b.(state)) },
		Hash:                      func(s any) uint64 { return s.(state).hash() },
		DescribeOperation:         func(input, _ any) string { return input.(*Op).String() },
		DescribeState:             func(s any) string { return s.(state).String() },
		DescribeOperationMetadata: func(number any) string { return fmt.Sprint("operation ", number) },
	}
}

// partition divides a history by lock.
func partition(all []porcupine.Operation) [][]porcupine.Operation {
	locks := map[string][]porcupine.Operation{}
	for _, o := range all {
		name := o.Input.(*Op).Lock
		locks[name] = append(locks[name], o)
	}
	var parts [][]porcupine.Operation
	for _, name := range slices.Sorted(maps.Keys(locks)) {
		parts = append(parts, locks[name])
	}
	return parts
}

// furthest is the longest of porcupine's orders for some of the operations on one lock.
func furthest(all []porcupine.Operation, orders [][]porcupine.Operation) found {
	f := found{lock: all[0].Input.(*Op).Lock}
	for _, order := range orders {
		// The choice among orders of one length is always the same.
		if cmp.Or(cmp.Compare(len(order), len(f.order)), -slices.CompareFunc(order, f.order, byNumber)) > 0 {
			f.order = order
		}
	}
	in := map[any]bool{}
	for _, o := range f.order {
		in[o.Metadata] = true
	}
	for _, o := range all {
		if !in[o.Metadata] {
			f.pending = append(f.pending, o)
		}
	}
	return f
}

func byNumber(a, b porcupine.Operation) int { return cmp.Compare(a.Metadata.(int), b.Metadata.(int)) }

// state returns the state after the first n operations of the order.
func (f found) state(n int) state {
	s := state{}
	for _, o := range f.order[:n] {
		s, _ = step(s, o.Input.(*Op))
	}
	return s
}

// stuck returns the pending operations that may be next: all that began before the first end of a
// pending operation.
func (f found) stuck() []porcupine.Operation {
	first := slices.MinFunc(f.pending, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	return slices.DeleteFunc(slices.Clone(f.pending), func(o porcupine.Operation) bool { return o.Call > first.Return })
}

// shown is how many operations at the end of the order are in a picture.
const shown = 100

// Explain returns, for each lock with a broken history, the end of the longest order, and why no
// operation can follow.
func (r *Report) Explain() string {
	if r.Verdict != Broken {
		return r.Verdict.String()
	}
	var b strings.Builder
	for _, f := range r.broken {
		n := len(f.order)
		s := f.state(n)
		fmt.Fprintf(&b, "%q: an order was found for %d operations, of which the last are\n", f.lock, n)
		for _, o := range f.order[max(0, n-shown/10):] {
			fmt.Fprintf(&b, "  %s\n", line(o))
		}
		fmt.Fprintf(&b, "Then it is: %s\nNone of these can be next:\n", s)
		for _, o := range f.stuck() {
			_, wrong := step(s, o.Input.(*Op))
			fmt.Fprintf(&b, "  %s\n      %s\n", line(o), cmp.Or(wrong, "it can, but nothing after it"))
		}
	}
	return b.String()
}

func line(o porcupine.Operation) string {
	until := "the end"
	if o.Return != int64(never) {
		until = time.Duration(o.Return).String()
	}
	return fmt.Sprintf("%s to %s, client %d: %s", time.Duration(o.Call), until, o.ClientId, o.Input)
}

// Draw writes porcupine's picture of where a history is broken, an HTML page for each lock, into
// files that begin with prefix, and returns their names. The picture has the faults too.
func (r *Report) Draw(prefix string, faults []Fault) ([]string, error) {
	var files []string
	for _, f := range r.broken {
		// Only the last part of the order is in the picture, as a whole recording is too much.
		n := max(0, len(f.order)-shown)
		part := append(slices.Clone(f.order[n:]), f.stuck()...)
		m := model(f.state(n))
		_, info := porcupine.CheckOperationsVerbose(m, part, time.Minute)
		from, to := part[0].Call, part[0].Call
		for _, o := range part {
			from, to = min(from, o.Call), max(to, o.Call)
		}
		var notes []porcupine.Annotation
		for _, fault := range faults {
			if int64(fault.Until) >= from && int64(fault.From) <= to {
				notes = append(notes, porcupine.Annotation{Tag: "faults", Start: int64(fault.From), End: int64(fault.Until), Description: fault.Name})
			}
		}
		info.AddAnnotations(notes)
		file := fmt.Sprintf("%s-%s.html", prefix, url.PathEscape(f.lock))
		if err := porcupine.VisualizePath(m, info, file); err != nil {
			return files, err
		}
		files = append(files, file)
	}
	return files, nil
}

// Fault is trouble during the recording of a history.
type Fault struct {
	Name        string
	From, Until time.Duration
}

// stay is everything that a history says of one hold.
type stay struct {
	stayKey
	holder   string
	ops      []*Op
	entered  int
	left     int
	lost     int           // how many Unlocks returned the loss
	believed time.Duration // the last call with the answer that the hold lasts
	lease    time.Duration // the end of the lease, unless somebody takes the lock away
	told     time.Duration // the first word of the loss; never: no word
	freeing  time.Duration // the call of the first Unlock that returned the loss; never: no such call
	exact    bool          // no two calls were made at the same time
}

const never time.Duration = math.MaxInt64

// margin is how much earlier a lease ends for its holder than in Redis: 1 % and 2 ms, as the
// library documents.
func margin(lease time.Duration) time.Duration { return lease/100 + 2*time.Millisecond }

// ahead is how late the times of a recording may be, see [Recorder.Now].
const ahead = time.Microsecond

// stayKey identifies a hold.
type stayKey struct {
	lock string
	hold int
}

// key returns the hold of a call; false: the call is about no hold.
func (o *Op) key() (k stayKey, ok bool) {
	return stayKey{o.Lock, o.Hold}, o.Hold != 0 && !o.Again
}

// stays finds the holds of a history.
func stays(ops []Op) map[stayKey]*stay {
	all := map[stayKey]*stay{}
	for i := range ops {
		op := &ops[i]
		key, ok := op.key()
		if !ok {
			continue
		}
		if all[key] == nil {
			all[key] = &stay{stayKey: key, told: never, freeing: never}
		}
		all[key].note(op)
	}
	for _, h := range all {
		slices.SortFunc(h.ops, func(a, b *Op) int { return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.Return, b.Return)) })
		h.exact = true
		until := time.Duration(-1)
		for _, op := range h.ops {
			h.exact = h.exact && op.Call > until
			until = max(until, op.Return)
		}
	}
	return all
}

func (h *stay) note(op *Op) {
	h.ops = append(h.ops, op)
	switch {
	case op.Outcome == Lost || op.Kind == Told:
		h.told = min(h.told, op.Return)
		if op.Kind == Unlock {
			h.lost, h.freeing = h.lost+1, min(h.freeing, op.Call)
		}
		return
	case op.Outcome == OK && op.Kind != Unlock:
		h.believed = max(h.believed, op.Call)
	case op.Kind == Unlock && op.Outcome != NotHeld:
		h.believed = max(h.believed, op.Call)
		h.left++
	}
	if op.Outcome != OK {
		return
	}
	switch {
	case op.Kind == Lock:
		h.entered++
		if !op.Nested {
			h.holder = op.Holder
		}
	case op.Kind == Look && op.Remaining > 0:
		h.lease = max(h.lease, op.Call+op.Remaining-ahead)
	case op.Kind == Extend:
		h.lease = max(h.lease, op.Call+op.Lease-margin(op.Lease)-ahead)
	}
}

// end is when nobody believes in the hold any more.
func (h *stay) end() time.Duration {
	switch {
	case h.told != never:
		return h.told
	case h.left < h.entered:
		return never
	}
	end := time.Duration(0)
	for _, op := range h.ops {
		end = max(end, op.Return)
	}
	return end
}

// loss is the end of a hold that was lost, or that no later call reports on.
func (h *stay) loss() (op Op, ok bool) {
	op = Op{Lock: h.lock, Kind: loss, Outcome: Lost, Holder: h.holder, Hold: h.hold, Return: h.told}
	switch {
	case h.entered == 0:
		return Op{}, false // the hold has no beginning, so every call in the hold is wrong
	case h.told == never:
		op.Call = max(h.believed, h.lease)
		return op, h.left < h.entered
	}
	op.derived.early = h.told < h.lease
	op.Call = h.believed
	if !op.derived.early {
		op.Call = max(op.Call, h.lease)
	}
	if h.lost == 1 && h.left+1 == h.entered { // an Unlock without an answer frees the lock, and reports the loss at its end
		op.Call = min(op.Call, max(h.believed, h.freeing))
	}
	op.Call = min(op.Call, op.Return)
	return op, true
}

// splits says whether the order of the answers of Redis may differ from the order of the entries
// and exits, and matter: goroutines share the hold, and somebody may have taken the lock away.
func (h *stay) splits(ops []Op) bool {
	first, local := h.ops[0], h.ops[0].Mode.Local
	return !h.exact && !local && (first.Mode.Passing || slices.ContainsFunc(ops, func(op Op) bool {
		return takesAway(op) && meets(op, h.lock, first.Call, h.end())
	}))
}

// saysNothing is true of a failed Lock. The place of a failed Lock in the order makes no
// difference, and trying all places takes long.
func saysNothing(op *Op) bool {
	return op.Kind == Lock && op.Owner == "" && (op.Outcome == Failed || op.Outcome == Refused && !op.Nested)
}

// unsettledBy says whether Redis may count wrong in the State o because of another call during o or
// shortly before.
func (o *Op) unsettledBy(other Op) bool {
	changes := takesAway(other) || other.Kind == Unlock || other.Nested
	return changes && meets(other, o.Lock, o.Call-o.Late, o.Return)
}

// whole is a history with the operations made up by Check, for porcupine.
func whole(ops []Op) []porcupine.Operation {
	holds := stays(ops)
	splits := map[int]bool{}
	for _, h := range holds {
		splits[h.hold] = h.splits(ops)
	}
	clients := 0
	all := make([]porcupine.Operation, 0, len(ops)+len(holds)/2)
	add := func(op *Op) {
		all = append(all, porcupine.Operation{
			ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(op.Return), Metadata: len(all),
		})
	}
	for _, op := range ops {
		clients = max(clients, op.Client+1)
		if saysNothing(&op) {
			continue
		}
		op.derived.settled = op.Kind == State && !slices.ContainsFunc(ops, op.unsettledBy)
		op.derived.split = splits[op.Hold] && op.Outcome == OK && (op.Nested || op.Kind == Unlock)
		add(&op)
	}
	for _, op := range ops {
		switch { // with a row of its own in the picture
		case op.Kind == Unlock && op.Outcome == Lost:
			op.Kind, op.Client = exit, clients
			add(&op)
		case splits[op.Hold] && op.Outcome == OK && !op.Again && (op.Nested || op.Kind == Unlock):
			op.Kind, op.Client = confirm, clients
			add(&op)
		}
	}
	for _, h := range holds {
		if end, ok := h.loss(); ok {
			end.Client = clients
			add(&end)
		}
	}
	return all
}

func takesAway(op Op) bool { return op.Kind == Force || op.Kind == Wipe || op.Kind == Forget }

// meets says whether a call on that lock was under way at any time between two moments.
func meets(op Op, lock string, from, to time.Duration) bool {
	return op.Lock == lock && op.Call <= to && op.Return >= from
}
