package relockvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/cfg"
)

// checkPaths reports a section that some path to a return, or round a loop to the same Lock, does
// not leave.
func (u *unit) checkPaths(s *section) (wrong bool) {
	graph := u.graph(s.in)
	if s.ctx == nil || graph == nil || !isLocal(s.ctx, s.in) || s.ctx.Kind() == types.ResultVar || s.isGivenUpBefore() {
		return false
	}
	w := walk{unit: u, section: s, given: u.given(s), seen: make(map[place]bool)}
	leak := w.first(graph)
	switch leak {
	case nil:
		return false
	case s.stmt:
		u.pass.ReportRangef(s.call, "%s is not unlocked before the loop comes to this line again, and nothing can unlock it later; "+
			"write %s on each path to the next round, or run the body with Do", s.ctx.Name(), u.unlock(s, ""))
	default:
		do := ", or use Do"
		if name := u.callee(s.call).Name(); name == "Borrow" || name == "Accept" {
			do = "" // by a ticket
		}
		u.pass.ReportRangef(s.call, "%s is not unlocked on the path to the return on line %d; write defer %s after the check of the error%s",
			s.ctx.Name(), u.line(leak), u.unlock(s, ""), do)
	}
	return true
}

// unlock is the Unlock that belongs to the section, as text.
func (u *unit) unlock(s *section, taken string) string {
	text := "Unlock(" + s.name(taken) + ")"
	if x := u.receiver(s.call); x != nil {
		return types.ExprString(x) + "." + text
	}
	return text
}

// name is the variable of the section. A section whose variable has the name taken, or that has
// none, is called section.
func (s *section) name(taken string) string {
	if s.ctx != nil && s.ctx.Name() != taken {
		return s.ctx.Name()
	}
	return "section"
}

// isGivenUpBefore says whether a function literal above the call gives the section up: a deferred
// one, as a rule.
func (s *section) isGivenUpBefore() bool {
	for lit := range s.in.Preorder((*ast.FuncLit)(nil)) {
		if lit != s.in && lit.Node().End() < s.call.Pos() && s.gives(lit.Node()) {
			return true
		}
	}
	return false
}

// given returns what is known at the call, as it stands in an if: the text of each condition, and
// its value.
func (u *unit) given(s *section) map[string]bool {
	known := make(map[string]bool)
	for c := range s.at.Enclosing() {
		if c == s.in {
			break
		}
		if kind := c.ParentEdgeKind(); kind == edge.IfStmt_Body || kind == edge.IfStmt_Else {
			if cond := c.Parent().Node().(*ast.IfStmt).Cond; s.err == nil || !u.mentions(cond, s.err) {
				known[types.ExprString(cond)] = kind == edge.IfStmt_Body
			}
		}
	}
	return known
}

// A walk goes from a call along all paths on which the call may have taken the lock.
type walk struct {
	*unit
	*section

	given map[string]bool
	seen  map[place]bool

	// stop makes the walk look for a node in the open section, in place of the ends of paths. A
	// deferred Unlock leaves the section open until then.
	stop func(ast.Node, state) bool
}

// first returns the first end of a path from the call; nil: there is none.
func (w *walk) first(graph *cfg.CFG) ast.Node {
	start := asked
	if w.err == nil {
		start = taken
	}
	for _, b := range graph.Blocks {
		for i, n := range b.Nodes {
			if n == w.stmt {
				return w.from(b, i+1, start)
			}
		}
	}
	return nil
}

// A state is what is known of the error of the call.
type state int

const (
	asked  state = iota // the error may be nil or not
	taken               // the error is nil
	reused              // the call has taken the lock, and the variable of its error has another value
)

// A place is a block, and what is known at its beginning.
type place struct {
	block *cfg.Block
	state state
}

// from returns the end of a path that does not give the section up: a return, or the statement of
// the call itself, or the node that is looked for; nil: there is none. Where the walk does not
// understand what becomes of the error, it goes no further.
func (w *walk) from(b *cfg.Block, i int, now state) ast.Node {
	for ; i < len(b.Nodes); i++ {
		n := b.Nodes[i]
		if _, deferred := n.(*ast.DeferStmt); w.stop != nil && deferred {
			continue
		}
		switch {
		case n == w.stmt, w.stop != nil && w.stop(n, now):
			return n
		case w.gives(n):
			return nil
		case i == len(b.Nodes)-1 && w.condition(b) != nil:
		case now == asked && w.requiresNoError(n):
			now = taken
		case now == asked && slices.ContainsFunc(read(n), func(x ast.Node) bool { return w.mentions(x, w.err) }):
			return nil
		case w.err != nil && w.isAssignment(n, w.err):
			now = reused
		}
		if ret, ok := n.(*ast.ReturnStmt); ok {
			if w.stop != nil {
				return nil
			}
			return ret
		}
	}
	for k, next := range b.Succs {
		then, ok := w.into(b, k, now)
		if p := (place{next, then}); ok && !w.seen[p] {
			w.seen[p] = true
			if end := w.from(next, 0, then); end != nil {
				return end
			}
		}
	}
	return nil
}

// condition returns the condition at the end of a block with two branches; nil: there is none.
func (w *walk) condition(b *cfg.Block) ast.Expr {
	if len(b.Succs) != 2 || len(b.Nodes) == 0 {
		return nil
	}
	x, _ := b.Nodes[len(b.Nodes)-1].(ast.Expr)
	return x
}

// into returns the state in a branch at the end of a block. False: on that branch the call has not
// taken the lock, or the walk does not understand the condition.
func (w *walk) into(b *cfg.Block, branch int, now state) (state, bool) {
	cond := w.condition(b)
	if cond == nil {
		return now, true
	}
	value := branch == 0
	if given, ok := w.given[types.ExprString(cond)]; ok && given != value || w.isFlag(cond, b.Succs[1-branch]) {
		return now, false
	}
	if now == reused {
		return now, true
	}
	switch w.errorIf(cond, value) {
	case isNil:
		return taken, true
	case isSet:
		return now, false
	case unclear:
		return now, now == taken
	default:
		return now, true
	}
}

// requiresNoError says whether n is a call of a test that goes on only without an error.
func (u *unit) requiresNoError(n ast.Node) bool {
	stmt, ok := n.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := stmt.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	fn := u.callee(call)
	return fn != nil && strings.HasPrefix(fn.Name(), "NoError")
}

// isFlag says whether a condition counts as "the section is open". One branch of the condition
// unlocks, and either the branch goes on like the other branch, or the condition is a variable that
// changes in the section.
func (w *walk) isFlag(cond ast.Expr, branch *cfg.Block) bool {
	if !slices.ContainsFunc(branch.Nodes, w.gives) {
		return false
	}
	isBody := branch.Kind == cfg.KindIfThen || branch.Kind == cfg.KindIfElse
	return isBody && branch.Return() == nil || w.changes(cond)
}

// changes says whether x, or the x of !x, is a variable that is assigned to after the call.
func (w *walk) changes(x ast.Expr) bool {
	if not, ok := ast.Unparen(x).(*ast.UnaryExpr); ok && not.Op == token.NOT {
		x = not.X
	}
	v := w.variable(x)
	if v == nil {
		return false
	}
	for c := range w.in.Preorder((*ast.AssignStmt)(nil)) {
		if n := c.Node().(*ast.AssignStmt); n.Tok == token.ASSIGN && n.Pos() > w.call.Pos() && w.isAssignment(n, v) {
			return true
		}
	}
	return false
}

// A finding is what the value of a condition says about the error of a call.
type finding int

const (
	nothing finding = iota // the call may have taken the lock
	isNil                  // the call has taken the lock
	isSet                  // the call has not
	unclear                // the condition is about the error, and not understood
)

// errorIf returns what is known of the error if the condition x has this value.
func (w *walk) errorIf(x ast.Expr, value bool) finding {
	if w.err == nil || !w.mentions(x, w.err) {
		return nothing
	}
	switch x := x.(type) {
	case *ast.ParenExpr:
		return w.errorIf(x.X, value)
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			return w.errorIf(x.X, !value)
		}
	case *ast.BinaryExpr:
		return w.errorIfBoth(x, value)
	case *ast.CallExpr:
		fn := w.callee(x)
		switch {
		case isPackage(fn, "errors") && (fn.Name() == "Is" || fn.Name() == "As"):
			if value {
				return isSet
			}
			return nothing
		}
	}
	return unclear
}

func (w *walk) errorIfBoth(x *ast.BinaryExpr, value bool) finding {
	switch x.Op {
	case token.LAND, token.LOR:
		left, right := w.errorIf(x.X, value), w.errorIf(x.Y, value)
		switch {
		case left == right:
			return left
		case left == unclear || right == unclear:
			return unclear
		case value == (x.Op == token.LAND): // both sides have the value
			return max(left, right)
		default:
			return nothing
		}
	case token.EQL, token.NEQ:
		equal := value == (x.Op == token.EQL)
		switch {
		case w.variable(x.X) != w.err && w.variable(x.Y) != w.err:
			return unclear
		case !w.isNil(x.X) && !w.isNil(x.Y) && equal:
			return isSet // a sentinel
		case !w.isNil(x.X) && !w.isNil(x.Y):
			return nothing
		case equal:
			return isNil
		default:
			return isSet
		}
	default:
		return unclear
	}
}
