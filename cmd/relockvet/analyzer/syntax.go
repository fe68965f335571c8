package relockvet

import (
	"fmt"
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
)

// isBlank says whether x is the word _.
func isBlank(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == "_"
}

// isLocal says whether v is a variable of the function f, and not of one around f.
func isLocal(v *types.Var, f inspector.Cursor) bool {
	return f.Node().Pos() <= v.Pos() && v.Pos() < f.Node().End()
}

// root returns the first operand of x.y[z].
func root(x ast.Expr) ast.Expr {
	for {
		switch e := x.(type) {
		case *ast.SelectorExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.ParenExpr:
			x = e.X
		case *ast.StarExpr:
			x = e.X
		case *ast.CallExpr:
			x = e.Fun
		default:
			return x
		}
	}
}

// object returns what the identifier x means; nil: x is none.
func (u *unit) object(x ast.Expr) types.Object {
	if id, ok := x.(*ast.Ident); ok {
		return u.pass.TypesInfo.ObjectOf(id)
	}
	return nil
}

// variable returns the variable that the identifier x means; nil: x is none, or the word _.
func (u *unit) variable(x ast.Expr) *types.Var {
	if isBlank(x) {
		return nil
	}
	v, _ := u.object(ast.Unparen(x)).(*types.Var)
	return v
}

// isAssignment says whether n gives the variable v a value.
func (u *unit) isAssignment(n ast.Node, v *types.Var) bool {
	for _, x := range targets(n) {
		if u.variable(x) == v {
			return true
		}
	}
	return false
}

// targets returns the left-hand side of an assignment or declaration; nil: n is neither.
func targets(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Lhs
	case *ast.ValueSpec:
		return names(n)
	}
	return nil
}

// values returns the right-hand side of an assignment or declaration; nil: n is neither.
func values(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Rhs
	case *ast.ValueSpec:
		return n.Values
	}
	return nil
}

// read returns the parts of n that are read: the right-hand side of an assignment or declaration,
// and otherwise all of n.
func read(n ast.Node) []ast.Node {
	if targets(n) == nil {
		return []ast.Node{n}
	}
	var all []ast.Node
	for _, x := range values(n) {
		all = append(all, x)
	}
	return all
}

func names(spec *ast.ValueSpec) []ast.Expr {
	var all []ast.Expr
	for _, id := range spec.Names {
		all = append(all, id)
	}
	return all
}

// mentions says whether the variable v is in n.
func (u *unit) mentions(n ast.Node, v *types.Var) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && u.object(id) == types.Object(v) {
			found = true
		}
		return !found
	})
	return found
}

// isNil says whether x is the word nil.
func (u *unit) isNil(x ast.Expr) bool {
	_, ok := u.object(ast.Unparen(x)).(*types.Nil)
	return ok
}

// name is the text of an expression, with the identity of the variable that the text begins with.
func (u *unit) name(x ast.Expr) string {
	if x == nil {
		return ""
	}
	return fmt.Sprintf("%p %s", u.object(root(x)), types.ExprString(x))
}
