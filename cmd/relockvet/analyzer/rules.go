package relockvet

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ast/edge"
)

// checkDropped reports a section's context that nobody gets.
func (u *unit) checkDropped(s *section) bool {
	switch kind, _ := s.at.ParentEdge(); kind {
	case edge.ExprStmt_X, edge.DeferStmt_Call, edge.GoStmt_Call:
	default:
		if s.target == nil || !isBlank(s.target) || u.isProbe(s) {
			return false
		}
	}
	ask := ""
	if strings.HasPrefix(u.callee(s.call).Name(), "Try") {
		ask = "; to ask without taking the lock, write State"
	}
	u.pass.ReportRangef(s.call, "the section's context is dropped, so nothing can unlock the section; write section, err := %s, and defer %s%s",
		types.ExprString(s.call), u.unlock(s, ""), ask)
	return true
}

// checkError reports a call that waits, and whose error nobody gets: without the lock its context
// is that of the caller, and the work goes on. A function that asks Held of the section knows.
func (u *unit) checkError(s *section) bool {
	if s.ctx == nil || s.err != nil || !u.waits(s.call) {
		return false
	}
	lhs := targets(s.stmt)
	if !isBlank(lhs[len(lhs)-1]) {
		return false
	}
	for c := range u.top.Preorder((*ast.CallExpr)(nil)) {
		call := c.Node().(*ast.CallExpr)
		if fn := u.callee(call); isPackage(fn, relockPath) && fn.Name() == "Held" && u.variable(call.Args[0]) == s.ctx {
			return false
		}
	}
	u.pass.ReportRangef(s.call, "the error is dropped, so the work gets a context that has ended where %[1]s fails, and nobody says why; write %[2]s, err := %[1]s, and check err",
		types.ExprString(s.call), s.ctx.Name())
	return true
}

// checkUnused reports a section that is only unlocked, in a function that works with the context
// from before the section until then.
func (u *unit) checkUnused(s *section) {
	v, graph := u.argument(s), u.graph(s.in)
	if s.ctx == nil || s.err == nil || graph == nil || v == nil || v == s.ctx || !isLocal(s.ctx, s.in) || !u.waits(s.call) || u.isSection(v) {
		return
	}
	for _, kind := range s.uses {
		if kind != unlocked {
			return
		}
	}
	var use ast.Node
	w := walk{unit: u, section: s, given: u.given(s), seen: make(map[place]bool)}
	w.stop = func(n ast.Node, now state) bool {
		if now != asked && use == nil {
			use = u.workWith(n, v)
		}
		return use != nil
	}
	if w.first(graph); use != nil {
		u.pass.ReportRangef(use, "%[1]s is the context from before the section: it does not end if the lock is lost; write %[2]s, which nothing uses here",
			v.Name(), s.ctx.Name())
	}
}

// isProbe says whether the call expects a refusal: its error first goes to a function such as
// errors.Is, and not to a comparison with nil or to the caller.
func (u *unit) isProbe(s *section) bool {
	if s.err == nil || s.stmt == nil {
		return false
	}
	for c := range u.top.Preorder((*ast.Ident)(nil)) {
		if c.Node().Pos() < s.stmt.End() || u.variable(c.Node().(*ast.Ident)) != s.err {
			continue
		}
		kind, _ := c.ParentEdge()
		if kind != edge.CallExpr_Args {
			return false
		}
		fn := u.callee(c.Parent().Node().(*ast.CallExpr))
		return fn == nil || !strings.HasPrefix(fn.Name(), "NoError")
	}
	return false
}

// checkOtherContext reports an Unlock, or a HandOff, with the context that was given to Lock, in a
// function that does nothing else to unlock.
func (u *unit) checkOtherContext(s *section) bool {
	argument := u.argument(s)
	if s.ctx == nil || argument == nil || u.isSection(argument) || s.has(unlocked) || s.has(handsOn) {
		return false
	}
	for c := range s.in.Preorder((*ast.CallExpr)(nil)) {
		call := c.Node().(*ast.CallExpr)
		if u.verb(call) != leaves || u.lockOf(call) != s.lock || u.variable(call.Args[0]) != argument {
			continue
		}
		right := u.unlock(s, argument.Name())
		if isPackage(u.callee(call), ticketPath) {
			right = types.ExprString(call.Fun) + "(" + s.name(argument.Name()) + ", " + types.ExprString(u.receiver(call)) + ")"
		}
		u.pass.ReportRangef(call, "%s is the context from before the section, so this %s does not leave it; write %s",
			argument.Name(), u.callee(call).Name(), right)
		return true
	}
	return false
}

// isSection says whether v is the context of a section of this function, or derived from one.
func (u *unit) isSection(v *types.Var) bool {
	for _, s := range u.sections {
		if s.carriers[v] {
			return true
		}
	}
	return false
}

// checkStored reports a section's context that is stored where the context outlives the function
// that unlocks it: in a variable of a package, or in a field or element of one.
func (u *unit) checkStored(s *section) bool {
	for c := range u.top.Preorder((*ast.AssignStmt)(nil)) {
		n := c.Node().(*ast.AssignStmt)
		for i, x := range n.Lhs {
			if !u.isOfPackage(x) || u.isAssignedAgain(x, n) {
				continue
			}
			direct := n == s.stmt && i == 0 && u.unlocksText(s, x)
			if direct || i < len(n.Rhs) && s.ctx != nil && u.variable(n.Rhs[i]) == s.ctx && s.has(unlocked) {
				u.pass.ReportRangef(x, "%s is a variable of the package and outlives the Unlock in this function; give the section's context to functions as an argument",
					types.ExprString(x))
				return true
			}
		}
	}
	return false
}

// isOfPackage says whether x is a variable of a package, or a field or element of one.
func (u *unit) isOfPackage(x ast.Expr) bool {
	v := u.variable(root(x))
	return v != nil && v.Kind() == types.PackageVar
}

// isAssignedAgain says whether another assignment of the function has the same left-hand side.
func (u *unit) isAssignedAgain(x ast.Expr, than ast.Node) bool {
	for c := range u.top.Preorder((*ast.AssignStmt)(nil)) {
		for _, y := range targets(c.Node()) {
			if c.Node() != than && u.name(x) == u.name(y) {
				return true
			}
		}
	}
	return false
}

// unlocksText says whether the function unlocks the lock of s with the expression x.
func (u *unit) unlocksText(s *section, x ast.Expr) bool {
	for c := range u.top.Preorder((*ast.CallExpr)(nil)) {
		call := c.Node().(*ast.CallExpr)
		if u.verb(call) == leaves && u.lockOf(call) == s.lock && u.name(call.Args[0]) == u.name(x) {
			return true
		}
	}
	return false
}

// checkFunctions reports a function literal of Do that does not use the section's context, and
// works with the context that was given to Do.
func (u *unit) checkFunctions() {
	for c := range u.top.Preorder((*ast.CallExpr)(nil)) {
		call := c.Node().(*ast.CallExpr)
		if u.verb(call) != runs || len(call.Args) < 2 {
			continue
		}
		lit, ok := c.ChildAt(edge.CallExpr_Args, len(call.Args)-1).Node().(*ast.FuncLit)
		if !ok {
			continue
		}
		if again := u.takenInside(call, lit); again != nil {
			u.pass.ReportRangef(again, "the function of line %d has this lock, and this call is outside of its section, so it waits for its own function; "+
				"give it the context of the function", u.line(call))
			continue
		}
		if u.usesParameter(lit) {
			continue
		}
		name, use := "ctx", u.workOf(lit)
		if outer := u.variable(call.Args[0]); outer != nil {
			if of := u.workWith(lit.Body, outer); of != nil {
				name, use = outer.Name(), of
			}
		}
		if use != nil {
			u.pass.ReportRangef(use, "%[2]s is the context from before the section: it does not end if the lock is lost, and a nested Lock waits for its own section; write func(%[1]s context.Context) error",
				name, types.ExprString(use.(ast.Expr)))
		}
	}
}

// usesParameter says whether a function literal mentions its own context.
func (u *unit) usesParameter(lit *ast.FuncLit) bool {
	for _, field := range lit.Type.Params.List {
		for _, id := range field.Names {
			v := u.variable(id)
			if v != nil && !isBlank(id) && u.mentions(lit.Body, v) {
				return true
			}
		}
	}
	return false
}

// takenInside returns the call in a function of Do that waits for the lock of the Do from outside
// of its section; nil: there is none.
func (u *unit) takenInside(do *ast.CallExpr, lit *ast.FuncLit) (found *ast.CallExpr) {
	outer := u.variable(do.Args[0])
	if outer == nil || u.receiver(do) == nil || !u.waits(do) || !u.isSteady(u.receiver(do)) || u.hasPermits() {
		return nil
	}
	ast.Inspect(lit.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.GoStmt:
			return false
		case *ast.CallExpr:
			if found == nil && u.waits(n) && u.lockOf(n) == u.lockOf(do) && u.variable(n.Args[0]) == outer && !(u.isReader(n) && u.isReader(do)) {
				found = n
			}
		}
		return found == nil
	})
	return found
}

// workOf returns the context of a request, or of a field of a variable of the function around, that
// the function literal works with; nil: there is none.
func (u *unit) workOf(lit *ast.FuncLit) (found ast.Node) {
	ast.Inspect(lit.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return found == nil
		}
		for i, arg := range call.Args {
			if found == nil && u.isWork(call, i) && u.isOfOwner(arg, lit) {
				found = arg
			}
		}
		return found == nil
	})
	return found
}

// isOfOwner says whether x is r.Context() or s.ctx, where r or s is a variable from outside of lit.
func (u *unit) isOfOwner(x ast.Expr, lit *ast.FuncLit) bool {
	switch e := ast.Unparen(x).(type) {
	case *ast.CallExpr:
		if fn := u.callee(e); fn == nil || fn.Name() != "Context" || len(e.Args) > 0 || u.receiver(e) == nil {
			return false
		}
	case *ast.SelectorExpr:
		if _, isField := u.pass.TypesInfo.Selections[e]; !isField {
			return false
		}
	default:
		return false
	}
	v := u.variable(root(x))
	return v != nil && isContext(u.pass.TypesInfo.TypeOf(x)) && !(lit.Pos() <= v.Pos() && v.Pos() < lit.End())
}
