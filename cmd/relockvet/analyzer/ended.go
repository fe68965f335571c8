package relockvet

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
)

// checkEnded reports work with a section's context where its Unlock has run before, on every path.
func (u *unit) checkEnded(s *section) {
	graph := u.graph(s.in)
	if s.ctx == nil || graph == nil || !isLocal(s.ctx, s.in) || u.isSharedVariable(s) {
		return
	}
	ended := u.endedAt(s, graph)
	for _, b := range graph.Blocks {
		if !b.Live {
			continue
		}
		unlock := ended[b]
		for _, n := range b.Nodes {
			if unlock.IsValid() {
				if use := u.workWith(n, s.ctx); use != nil {
					u.reportEnded(s, use, unlock)
					return // the first is enough
				}
			}
			unlock = u.after(s, n, unlock)
		}
	}
	if s.ctx == u.argument(s) {
		u.checkLoop(s, graph)
	}
}

// isSharedVariable says whether a function literal assigns to the variable of the section, so that
// its value is not known.
func (u *unit) isSharedVariable(s *section) bool {
	for lit := range s.in.Preorder((*ast.FuncLit)(nil)) {
		if lit == s.in {
			continue
		}
		for c := range lit.Preorder((*ast.AssignStmt)(nil)) {
			if u.isAssignment(c.Node(), s.ctx) {
				return true
			}
		}
	}
	return false
}

// after returns the Unlock that has ended the section when n has run.
func (u *unit) after(s *section, n ast.Node, before token.Pos) token.Pos {
	if u.isAssignment(n, s.ctx) {
		return token.NoPos
	}
	if at := u.unlocksNow(s, n); at.IsValid() {
		return at
	}
	return before
}

// endedAt returns for each block the Unlock that has ended the section on every path to the block.
func (u *unit) endedAt(s *section, graph *cfg.CFG) map[*cfg.Block]token.Pos {
	const unknown = token.Pos(-1) // not reached yet
	ended := make(map[*cfg.Block]token.Pos)
	for _, b := range graph.Blocks {
		ended[b] = unknown
	}
	ended[graph.Blocks[0]] = token.NoPos
	for queue := []*cfg.Block{graph.Blocks[0]}; len(queue) > 0; queue = queue[1:] {
		unlock := ended[queue[0]]
		for _, n := range queue[0].Nodes {
			unlock = u.after(s, n, unlock)
		}
		for _, next := range queue[0].Succs {
			if old := ended[next]; old == unknown || old.IsValid() && !unlock.IsValid() {
				ended[next] = unlock
				queue = append(queue, next)
			}
		}
	}
	return ended
}

// unlocksNow returns the Unlock of the section's own context in n; none: there is none, or the
// Unlock runs later (defer, go, a function literal).
func (u *unit) unlocksNow(s *section, n ast.Node) token.Pos {
	at := token.NoPos
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.DeferStmt, *ast.GoStmt, *ast.FuncLit:
			return false
		case *ast.CallExpr:
			isUnlock := u.verb(n) == leaves && u.callee(n).Name() == "Unlock" // after an error of HandOff the section goes on
			if isUnlock && u.lockOf(n) == s.lock && u.variable(n.Args[0]) == s.ctx {
				at = n.Pos()
			}
		}
		return true
	})
	return at
}

// workWith returns a mention of v in n as a context to work with; nil: there is none.
func (u *unit) workWith(n ast.Node, v *types.Var) (found ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			for i, arg := range call.Args {
				if u.variable(arg) == v && u.isWork(call, i) && found == nil {
					found = arg
				}
			}
		}
		return found == nil
	})
	return found
}

func (u *unit) reportEnded(s *section, at ast.Node, unlock token.Pos) {
	line := u.pass.Fset.Position(unlock).Line
	if s.ctx == u.argument(s) {
		u.pass.ReportRangef(at, "%[1]s is the section's context, and the Unlock on line %[2]d has ended it; write section, err := %[3]s on line %[4]d, so that %[1]s stays the caller's",
			s.ctx.Name(), line, types.ExprString(s.call), u.line(s.call))
		return
	}
	u.pass.ReportRangef(at, "%s has ended with the Unlock on line %d; write %s, the context from before the section, or unlock later",
		s.ctx.Name(), line, types.ExprString(s.call.Args[0]))
}

// checkLoop reports ctx, err = l.Lock(ctx) in a loop whose Unlock ends the context that the next
// round gives to Lock.
func (u *unit) checkLoop(s *section, graph *cfg.CFG) {
	seen := make(map[*cfg.Block]bool)
	var comesBack func(b *cfg.Block, nodes []ast.Node) bool
	comesBack = func(b *cfg.Block, nodes []ast.Node) bool {
		for _, n := range nodes {
			if n == s.stmt || u.isAssignment(n, s.ctx) {
				return n == s.stmt
			}
		}
		for _, next := range b.Succs {
			if !seen[next] {
				seen[next] = true
				if comesBack(next, next.Nodes) {
					return true
				}
			}
		}
		return false
	}
	for _, b := range graph.Blocks {
		for i, n := range b.Nodes {
			unlock := u.unlocksNow(s, n)
			if !unlock.IsValid() || !comesBack(b, b.Nodes[i+1:]) {
				continue
			}
			u.pass.ReportRangef(s.call, "in the next round of the loop %[1]s is the context that the Unlock on line %[2]d has ended; write section, err := %[3]s, so that %[1]s stays the caller's",
				s.ctx.Name(), u.pass.Fset.Position(unlock).Line, types.ExprString(s.call))
			return
		}
	}
}

// checkOuterVariable reports ctx, err = l.Lock(ctx) in a function literal that unlocks, where ctx
// is a variable of the function around.
func (u *unit) checkOuterVariable(s *section) {
	if s.ctx == nil || s.ctx != u.argument(s) || isLocal(s.ctx, s.in) {
		return
	}
	for id, kind := range s.uses {
		if kind != unlocked || !contains(s.in, id) {
			continue
		}
		u.pass.ReportRangef(s.call, "this assigns to %[1]s of the function around, where it is an ended context after the Unlock; write section, err := %[2]s",
			s.ctx.Name(), types.ExprString(s.call))
		return
	}
}

func contains(c inspector.Cursor, n ast.Node) bool {
	return c.Node().Pos() <= n.Pos() && n.End() <= c.Node().End()
}
