package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// register is a value read and written in the sections of a read-write lock, between two sections.
// Each section is one operation: a section sees one version, and may write another version.
type register struct {
	version int64 // 0: not known
	written int64 // the largest token of a writer
	token   int64 // the largest token
	at      int64 // the version with the token at; 0: not known
}

// visit is one operation on the register. A visit without a section is a cloud.
type visit struct {
	*Section
	cloud
}

func (v visit) String() string {
	if v.Section == nil {
		return "somebody took the lock away"
	}
	return v.Section.String()
}

// step returns the register after an operation. wrong names the promise broken by the operation, if
// any.
func (r register) step(v visit) (next register, wrong string) {
	if v.Section == nil {
		r.version, r.at = 0, 0
		if v.old {
			r.token = 0
		}
		return r, ""
	}
	for _, read := range v.Reads {
		if r.version != 0 && read != r.version {
			return r, fmt.Sprintf("reads version %d, and the last one is %d", read, r.version)
		}
		r.version = read
	}
	if v.Token != 0 {
		if wrong := r.checkToken(v.Section); wrong != "" {
			return r, wrong
		}
	}
	if v.Wrote != 0 {
		r.version = v.Wrote
	}
	if v.Token != 0 {
		r.token, r.at = v.Token, r.version
	}
	if v.Limit == 1 {
		r.written = max(r.written, v.Token)
	}
	return r, ""
}

// checkToken says why a token is wrong. A writer draws a new token, and a reader has the token of
// the last writer.
func (r register) checkToken(s *Section) (wrong string) {
	switch {
	case s.Limit == 1 && s.Token <= max(r.token, r.written):
		return fmt.Sprintf("a writer draws token %d after token %d", s.Token, max(r.token, r.written))
	case s.Token < r.token:
		return fmt.Sprintf("a reader has token %d after token %d", s.Token, r.token)
	case s.Token == r.token && r.at != 0 && r.at != r.version:
		return fmt.Sprintf("token %d is of version %d, and of version %d", s.Token, r.at, r.version)
	}
	return ""
}

// visits returns the operations on the register, as far as the sections are sure not to have met a
// cloud.
func (k *Kinds) visits() (all []porcupine.Operation) {
	clouds := k.clouds()
	add := func(client int, v visit, from, to time.Duration) {
		all = append(all, porcupine.Operation{ClientId: client, Input: v, Call: int64(from), Return: int64(to), Metadata: len(all)})
	}
	for i := range k.Sections {
		s := &k.Sections[i]
		if len(s.Reads) == 0 && s.Wrote == 0 {
			continue
		}
		if !slices.ContainsFunc(clouds, func(c cloud) bool { return s.In <= c.to && s.over() >= c.from }) {
			add(s.Client, visit{Section: s}, s.In, k.until(s))
		}
	}
	if len(all) > 0 {
		for _, c := range clouds {
			add(0, visit{cloud: c}, c.from, c.to)
		}
	}
	return all
}

// register says why the sections of one lock are no operations on a register.
func (k *Kinds) register(limit time.Duration) (wrong []string) {
	all := k.visits()
	m := porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, input, _ any) (bool, any) {
			next, wrong := state.(register).step(input.(visit))
			return wrong == "", next
		},
		DescribeOperation: func(input, _ any) string { return input.(visit).String() },
	}
	if result := porcupine.CheckOperationsTimeout(m, all, limit); result == porcupine.Ok {
		return nil
	} else if result == porcupine.Unknown {
		return []string{"whether the sections are operations on a register is not decided"}
	}
	_, info := porcupine.CheckOperationsVerbose(m, all, limit)
	return []string{explain(all, info.PartialLinearizationsOperations()[0])}
}

// explain names the operations that cannot follow the longest order.
func explain(all []porcupine.Operation, orders [][]porcupine.Operation) string {
	var order []porcupine.Operation
	for _, other := range orders {
		if len(other) > len(order) {
			order = other
		}
	}
	state, in := register{}, map[any]bool{}
	text := fmt.Sprintf("an order was found for %d sections, of which the last are", len(order))
	for i, o := range order {
		state, _ = state.step(o.Input.(visit))
		in[o.Metadata] = true
		if i >= len(order)-5 {
			text += fmt.Sprintf("\n  %s", o.Input)
		}
	}
	text += "\nNone of these can be next:"
	pending := slices.DeleteFunc(slices.Clone(all), func(o porcupine.Operation) bool { return in[o.Metadata] })
	first := slices.MinFunc(pending, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, o := range pending {
		if o.Call <= first.Return {
			_, wrong := state.step(o.Input.(visit))
			text += fmt.Sprintf("\n  %s\n    %s", o.Input, cmp.Or(wrong, "it can, but nothing after it"))
		}
	}
	return text
}
