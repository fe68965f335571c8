package relockvet

import (
	"go/ast"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
)

// Analyzer reports wrong uses of relock. The package comment lists its rules.
var Analyzer = &analysis.Analyzer{
	Name: "relockvet",
	Doc: "report wrong uses of relock\n\n" +
		"A section's context that is dropped, ended, not used, or given up without Unlock, an error of Lock that is dropped,\n" +
		"an Unlock with another context, a Lock that waits for its own function, and a function of Do that works with the\n" +
		"context from before the section.",
	URL:      url,
	Run:      run,
	Requires: []*analysis.Analyzer{inspect.Analyzer, ctrlflow.Analyzer, facts},
}

const url = "https://pkg.go.dev/github.com/go-relock/relock/cmd/relockvet/analyzer"

func run(pass *analysis.Pass) (any, error) {
	unlockers := pass.ResultOf[facts].(unlockers)
	if unlockers == nil {
		return nil, nil
	}
	root := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root()
	for c := range root.Preorder((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		if _, inside := function(c.Parent()); !inside {
			newUnit(pass, unlockers, c).check()
		}
	}
	return nil, nil
}

// function returns the innermost function at c or around it.
func function(c inspector.Cursor) (inspector.Cursor, bool) {
	for f := range c.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		return f, true
	}
	return c, false
}

// A unit is one function with all function literals in it.
type unit struct {
	pass      *analysis.Pass
	unlockers unlockers
	top       inspector.Cursor // the function

	sections []*section
}

func newUnit(pass *analysis.Pass, unlockers unlockers, top inspector.Cursor) *unit {
	u := &unit{pass: pass, unlockers: unlockers, top: top}
	for c := range top.Preorder((*ast.CallExpr)(nil)) {
		if call := c.Node().(*ast.CallExpr); u.verb(call) == takes {
			u.sections = append(u.sections, u.newSection(c, call))
		}
	}
	for _, s := range u.sections {
		u.follow(s)
	}
	for _, s := range u.sections { // needs all sections of the unit
		u.classify(s)
	}
	return u
}

func (u *unit) check() {
	for _, s := range u.sections {
		if u.checkDropped(s) || u.checkError(s) || u.checkOtherContext(s) || u.checkStored(s) {
			continue // one mistake, one report
		}
		if !u.checkPaths(s) {
			u.checkTakenAgain(s)
			u.checkUnused(s)
		}
		u.checkOuterVariable(s)
		u.checkEnded(s)
	}
	u.checkFunctions()
}

// graph returns the control flow of a function; nil: it has none.
func (u *unit) graph(f inspector.Cursor) *cfg.CFG {
	graphs := u.pass.ResultOf[ctrlflow.Analyzer].(*ctrlflow.CFGs)
	switch f := f.Node().(type) {
	case *ast.FuncDecl:
		return graphs.FuncDecl(f)
	case *ast.FuncLit:
		return graphs.FuncLit(f)
	}
	return nil
}

func (u *unit) line(n ast.Node) int { return u.pass.Fset.Position(n.Pos()).Line }
