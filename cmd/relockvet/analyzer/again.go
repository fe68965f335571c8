package relockvet

import (
	"go/ast"
	"go/types"
	"strings"
)

// checkTakenAgain reports a call that takes the lock of an open section from outside of it: the
// next round of a loop with a deferred Unlock, or a second call. Such a call waits for its own
// function.
func (u *unit) checkTakenAgain(s *section) {
	graph := u.graph(s.in)
	if s.ctx == nil || graph == nil || !u.isSteady(u.receiver(s.call)) || u.hasPermits() {
		return
	}
	w := walk{unit: u, section: s, given: u.given(s), seen: make(map[place]bool)}
	w.stop = func(n ast.Node, _ state) bool { return w.second(n) != nil }
	switch end := w.first(graph); {
	case end == nil:
	case end == s.stmt:
		if u.isOutside(s, s.call) && !u.isReader(s.call) && u.isOfLoop(s) {
			u.pass.ReportRangef(s.call, "the Unlock of the round before is deferred to the end of the function, so this call waits for ever; "+
				"unlock at the end of each round, or run the body with Do")
		}
	default:
		u.pass.ReportRangef(w.second(end), "the section of line %d has the lock, and this call is outside of that section, so it waits for its own function; "+
			"give it %s", u.line(s.call), s.ctx.Name())
	}
}

// second returns the call in n that waits for the lock of the section from outside of it; nil:
// there is none.
func (w *walk) second(n ast.Node) (found *ast.CallExpr) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.GoStmt:
			return false
		case *ast.CallExpr:
			if found == nil && n != w.call && w.waits(n) && w.lockOf(n) == w.lock && w.isOutside(w.section, n) &&
				!(w.isReader(n) && w.isReader(w.call)) {
				found = n
			}
		}
		return found == nil
	})
	return found
}

// waits says whether a call waits for a lock without a limit of its own.
func (u *unit) waits(call *ast.CallExpr) bool {
	fn := u.callee(call)
	if verbOf(fn) == none || len(call.Args) == 0 || u.receiver(call) == nil {
		return false
	}
	switch fn.Name() {
	case "Lock", "RLock", "Do", "RDo":
		return isContext(u.pass.TypesInfo.TypeOf(call.Args[0]))
	}
	return false
}

// isOutside says whether a call is surely outside of each section: its context is a variable that
// no section was made of, or that of the program or of a request.
func (u *unit) isOutside(s *section, call *ast.CallExpr) bool {
	if v := u.variable(call.Args[0]); v != nil {
		return !s.carriers[v] && !u.isSection(v)
	}
	made, ok := ast.Unparen(call.Args[0]).(*ast.CallExpr)
	if !ok {
		return false
	}
	fn := u.callee(made)
	isOfProgram := isPackage(fn, "context") && len(made.Args) == 0 // Background, as all other functions take a context
	return isOfProgram || isPackage(fn, "net/http") && fn.Name() == "Context"
}

// isReader says whether a call is for reading. Readers do not wait for each other.
func (u *unit) isReader(call *ast.CallExpr) bool {
	fn := u.callee(call)
	if strings.HasPrefix(fn.Name(), "R") || strings.HasPrefix(fn.Name(), "TryR") {
		return true
	}
	mode, ok := ast.Unparen(u.receiver(call)).(*ast.CallExpr)
	return ok && isPackage(u.callee(mode), relockPath) && u.callee(mode).Name() == "RLocker"
}

// isSteady says whether x is the same lock wherever it stands in the function: a variable, or a
// field of one, that is given a value once.
func (u *unit) isSteady(x ast.Expr) bool {
	for {
		switch e := x.(type) {
		case *ast.SelectorExpr:
			x = e.X
			continue
		case *ast.CallExpr:
			if fn := u.callee(e); isPackage(fn, relockPath) && (fn.Name() == "RLocker" || fn.Name() == "Writer") {
				x = u.receiver(e)
				continue
			}
		}
		break
	}
	v := u.variable(x)
	if v == nil {
		return false
	}
	given := 0
	for c := range u.top.Preorder((*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil)) {
		for _, target := range targets(c.Node()) {
			if u.variable(root(target)) == v {
				given++
			}
		}
	}
	return given == 0 || given == 1 && isLocal(v, u.top)
}

// isOfLoop says whether all rounds of the loop around the call have the same lock, and the same
// caller.
func (u *unit) isOfLoop(s *section) bool {
	v := u.variable(root(u.receiver(s.call)))
	for c := range s.at.Enclosing((*ast.ForStmt)(nil), (*ast.RangeStmt)(nil), (*ast.FuncLit)(nil), (*ast.FuncDecl)(nil)) {
		switch c.Node().(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return v != nil && !isLocal(v, c)
		}
		return false // by goto
	}
	return false
}

// hasPermits says whether the package uses semaphores, which may be taken more than once.
func (u *unit) hasPermits() bool {
	for _, object := range u.pass.TypesInfo.Uses {
		if fn, ok := object.(*types.Func); ok && isPackage(fn, relockPath) && fn.Name() == "NewSemaphore" {
			return true
		}
	}
	return false
}
