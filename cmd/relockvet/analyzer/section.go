package relockvet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// A section is one call that takes a lock, and what the function around does with the context that
// the call returns.
type section struct {
	at   inspector.Cursor // the call
	call *ast.CallExpr
	lock string
	in   inspector.Cursor // the innermost function around the call

	stmt   ast.Node   // the assignment or declaration with the call; nil: none
	target ast.Expr   // the first name on its left; nil: none
	ctx    *types.Var // the variable that gets the context; nil: none
	err    *types.Var // the variable that gets the error; nil: none

	carriers map[*types.Var]bool // ctx, and the variables with contexts derived from it
	uses     map[*ast.Ident]use  // of the carriers
}

// A use is what a mention of a section's context does with the section.
type use int

const (
	forWork  use = iota // nothing
	mayLeave            // the section is handed to code that is unknown here, and may be left there
	handsOn             // the section is returned, stored, or handed to a function that unlocks
	unlocked            // Unlock
)

func (u *unit) newSection(c inspector.Cursor, call *ast.CallExpr) *section {
	s := &section{at: c, call: call, lock: u.lockOf(call)}
	s.in, _ = function(c)
	stmt := c.Parent().Node()
	if rhs := values(stmt); len(rhs) == 1 && rhs[0] == ast.Expr(call) {
		lhs := targets(stmt)
		s.stmt, s.target = stmt, lhs[0]
		s.ctx, s.err = u.variable(lhs[0]), u.variable(lhs[len(lhs)-1])
	}
	return s
}

// argument returns the variable whose context the call is given; nil: the argument is none.
func (u *unit) argument(s *section) *types.Var { return u.variable(s.call.Args[0]) }

// follow finds the carriers of a section.
func (u *unit) follow(s *section) {
	s.carriers, s.uses = make(map[*types.Var]bool), make(map[*ast.Ident]use)
	if s.ctx == nil {
		return
	}
	s.carriers[s.ctx] = true
	for more := true; more; {
		more = false
		for c := range u.top.Preorder((*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil)) {
			if c.Node() == s.stmt || !u.isCarried(s, c.Node()) {
				continue
			}
			for _, x := range targets(c.Node()) {
				if v := u.variable(x); v != nil && isContext(v.Type()) && !s.carriers[v] {
					s.carriers[v], more = true, true
				}
			}
		}
	}
}

// isCarried says whether the right-hand side of n has a carrier.
func (u *unit) isCarried(s *section, n ast.Node) bool {
	for _, x := range values(n) {
		for v := range s.carriers {
			if u.mentions(x, v) {
				return true
			}
		}
	}
	return false
}

// classify finds the uses of a section.
func (u *unit) classify(s *section) {
	for c := range u.top.Preorder((*ast.Ident)(nil)) {
		id := c.Node().(*ast.Ident)
		if v, ok := u.pass.TypesInfo.Uses[id].(*types.Var); ok && s.carriers[v] {
			s.uses[id] = u.useOf(c, func(call *ast.CallExpr) bool { return u.isLeft(s, call, v) })
		}
	}
}

// isLeft says whether an Unlock with the context in v leaves the section: the section of the same
// lock that v was made for, or else one that v was derived from. If no section has the lock's name,
// the lock has two names, and the Unlock may leave any of them.
func (u *unit) isLeft(s *section, unlock *ast.CallExpr, v *types.Var) bool {
	lock := u.lockOf(unlock)
	direct, derived := false, false
	for _, other := range u.sections {
		if other.lock == lock {
			direct = direct || other.ctx == v
			derived = derived || other.carriers[v]
		}
	}
	switch {
	case direct:
		return s.lock == lock && s.ctx == v
	case derived:
		return s.lock == lock
	default:
		return true
	}
}

// has says whether there is a use of this kind.
func (s *section) has(kind use) bool {
	for _, k := range s.uses {
		if k == kind {
			return true
		}
	}
	return false
}

// isGivenUp says whether a use may leave the section, or hands it on. A function with an Unlock of
// its own is taken to unlock by itself, also where it calls code that is unknown here.
func (s *section) isGivenUp(kind use) bool {
	return kind >= handsOn || kind == mayLeave && !s.has(unlocked)
}

// useOf says what the expression at c, a section's context, is used for.
func (u *unit) useOf(c inspector.Cursor, isLeft func(*ast.CallExpr) bool) use {
	for {
		kind, i := c.ParentEdge()
		parent := c.Parent()
		switch kind {
		case edge.ParenExpr_X, edge.UnaryExpr_X, edge.TypeAssertExpr_X, edge.KeyValueExpr_Value, edge.CompositeLit_Elts:
			c = parent
		case edge.CallExpr_Args:
			call := parent.Node().(*ast.CallExpr)
			if kind := u.argumentUse(call, isLeft); kind != forWork || !u.derives(call) {
				return kind
			}
			c = parent
		case edge.AssignStmt_Rhs, edge.ValueSpec_Values:
			lhs := targets(parent.Node())
			if i >= len(lhs) {
				return handsOn
			}
			if v := u.variable(lhs[i]); isBlank(lhs[i]) || v != nil && isContext(v.Type()) && isLocal(v, u.top) {
				return forWork // a carrier
			}
			return handsOn
		case edge.ReturnStmt_Results, edge.SendStmt_Value, edge.IndexExpr_Index:
			return handsOn
		default:
			return forWork
		}
	}
}

// depth is how deep a lock may be in a value: a field of a field of a pointer.
const depth = 3

// argumentUse says what a call does with a section that it is given.
func (u *unit) argumentUse(call *ast.CallExpr, isLeft func(*ast.CallExpr) bool) use {
	fun := ast.Unparen(call.Fun)
	if t := u.pass.TypesInfo.Types[fun]; t.IsType() || t.IsBuiltin() {
		return handsOn // a conversion, or append
	}
	fn := u.callee(call)
	switch {
	case fn == nil && u.isLocalFunction(fun):
		return handsOn
	case verbOf(fn) == leaves && isLeft(call):
		return unlocked
	case verbOf(fn) == leaves, isPackage(fn, "context"), isPackage(fn, relockPath) && !isRelock(u.pass.Pkg):
		return forWork
	case fn != nil && u.unlockers[fn.Origin()], slices.ContainsFunc(call.Args, u.hasLock):
		return handsOn
	case fn == nil || u.reachesLock(call, fn):
		return mayLeave
	default:
		return forWork
	}
}

// isLocalFunction says whether x is a variable of this function: a function literal, as a rule.
func (u *unit) isLocalFunction(x ast.Expr) bool {
	v := u.variable(x)
	return v != nil && v.Kind() == types.LocalVar && isLocal(v, u.top)
}

// reachesLock says whether a lock may be in an argument, the receiver or a result of a call.
func (u *unit) reachesLock(call *ast.CallExpr, fn *types.Func) bool {
	sig := fn.Signature()
	if recv := sig.Recv(); recv != nil && (types.IsInterface(recv.Type()) || holdsLock(recv.Type(), depth)) {
		return true
	}
	for _, arg := range call.Args {
		if t := u.pass.TypesInfo.TypeOf(arg); t != nil && holdsLock(t, depth) {
			return true
		}
	}
	for v := range sig.Results().Variables() {
		if holdsLock(v.Type(), depth) {
			return true
		}
	}
	return false
}

// derives says whether a call returns a context, which may be one of the section, too.
func (u *unit) derives(call *ast.CallExpr) bool {
	switch t := u.pass.TypesInfo.TypeOf(call).(type) {
	case *types.Tuple:
		for v := range t.Variables() {
			if isContext(v.Type()) {
				return true
			}
		}
		return false
	case nil:
		return false
	default:
		return isContext(t)
	}
}

// gives says whether the node of a control flow graph gives the section up.
func (s *section) gives(n ast.Node) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if kind, ok := s.uses[id]; ok && s.isGivenUp(kind) {
				found = true
			}
		}
		return !found
	})
	return found
}
