package relockvet

import (
	"go/ast"
	"go/types"
	"reflect"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// unlocks is the fact that a function calls Unlock, by itself or through functions that are known
// when it is compiled. A section that is handed to such a function may be unlocked there.
type unlocks struct{}

func (*unlocks) AFact() {}

func (*unlocks) String() string { return "unlocks" }

// unlockers is the result of the facts for one package: its functions, and those that the package
// calls, that have the fact. The result is nil for a package that does not depend on relock.
type unlockers map[*types.Func]bool

var facts = &analysis.Analyzer{
	Name:       "relockunlocks",
	Doc:        "find the functions that call Unlock of relock",
	URL:        url,
	Run:        runFacts,
	Requires:   []*analysis.Analyzer{inspect.Analyzer},
	FactTypes:  []analysis.Fact{new(unlocks)},
	ResultType: reflect.TypeFor[unlockers](),
}

func runFacts(pass *analysis.Pass) (any, error) {
	if !isRelock(pass.Pkg) && len(pass.AllObjectFacts()) == 0 {
		return unlockers(nil), nil // Unlock itself has the fact: no package below this one is relock
	}
	found := make(unlockers)
	callers := make(map[*types.Func][]*types.Func)
	var mark func(fn *types.Func)
	mark = func(fn *types.Func) {
		if found[fn] {
			return
		}
		found[fn] = true
		if fn.Pkg() == pass.Pkg {
			pass.ExportObjectFact(fn, new(unlocks))
		}
		for _, caller := range callers[fn] {
			mark(caller)
		}
	}
	var first []*types.Func
	root := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root()
	for c := range root.Preorder((*ast.FuncDecl)(nil)) {
		caller, ok := pass.TypesInfo.Defs[c.Node().(*ast.FuncDecl).Name].(*types.Func)
		if !ok {
			continue
		}
		if verbOf(caller) == leaves {
			first = append(first, caller)
		}
		for call := range c.Preorder((*ast.CallExpr)(nil)) {
			fn, ok := typeutil.Callee(pass.TypesInfo, call.Node().(*ast.CallExpr)).(*types.Func)
			if !ok {
				continue
			}
			fn = fn.Origin()
			callers[fn] = append(callers[fn], caller)
			if verbOf(fn) == leaves || fn.Pkg() != pass.Pkg && pass.ImportObjectFact(fn, new(unlocks)) {
				first = append(first, fn)
			}
		}
	}
	for _, fn := range first {
		mark(fn)
	}
	return found, nil
}
