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
		verb := u.callee(call).Name()
		u.pass.ReportRangef(call, "%s is the context from before the section, so this %s does not leave it; write %s",
			argument.Name(), verb, strings.Replace(u.unlock(s, argument.Name()), "Unlock(", verb+"(", 1))
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
		outer := u.variable(call.Args[0])
		lit, ok := c.ChildAt(edge.CallExpr_Args, len(call.Args)-1).Node().(*ast.FuncLit)
		if outer == nil || !ok || u.usesParameter(lit) {
			continue
		}
		if use := u.workWith(lit.Body, outer); use != nil {
			u.pass.ReportRangef(use, "%[1]s is the context from before the section: it does not end if the lock is lost, and a nested Lock waits for its own section; write func(%[1]s context.Context) error",
				outer.Name())
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
