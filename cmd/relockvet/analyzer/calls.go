package relockvet

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

const (
	relockPath = "github.com/go-relock/relock"
	leaderPath = relockPath + "/leader"
	ticketPath = relockPath + "/ticket"
)

func isRelock(p *types.Package) bool { return p != nil && p.Path() == relockPath }

// isPackage says whether fn is of the package with this path; false: fn is nil or built in.
func isPackage(fn *types.Func, path string) bool {
	return fn != nil && fn.Pkg() != nil && fn.Pkg().Path() == path
}

// A verb is what a call of relock means for a section.
type verb int

const (
	none   verb = iota
	takes       // returns a section's context
	leaves      // Unlock, HandOff
	runs        // runs a function in a section
)

var verbs = map[string]verb{
	"Lock": takes, "TryLock": takes, "TryLockFor": takes, "TryLockIf": takes,
	"RLock": takes, "TryRLock": takes, "TryRLockFor": takes,
	"Unlock": leaves,
	"Do":     runs, "DoFor": runs, "RDo": runs, "RDoFor": runs,
}

var ticketVerbs = map[string]verb{"Borrow": takes, "Accept": takes, "HandOff": leaves}

func verbOf(fn *types.Func) verb {
	switch {
	case isPackage(fn, relockPath):
		return verbs[fn.Name()]
	case isPackage(fn, ticketPath):
		return ticketVerbs[fn.Name()]
	case isPackage(fn, leaderPath) && fn.Name() == "Run":
		return runs
	default:
		return none
	}
}

func (u *unit) callee(call *ast.CallExpr) *types.Func {
	fn, _ := typeutil.Callee(u.pass.TypesInfo, call).(*types.Func)
	return fn
}

func (u *unit) verb(call *ast.CallExpr) verb { return verbOf(u.callee(call)) }

// receiver returns the x of x.Lock(ctx) and of ticket.Borrow(ctx, x, t); nil: the call has none.
func (u *unit) receiver(call *ast.CallExpr) ast.Expr {
	if isPackage(u.callee(call), ticketPath) && len(call.Args) > 1 {
		return call.Args[1]
	}
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return sel.X
	}
	return nil
}

// lockOf names the lock of a call: two calls with one name in one function have one lock, but for
// an index or a variable that has changed in between. Both modes of a read-write lock are one lock.
func (u *unit) lockOf(call *ast.CallExpr) string {
	x := u.receiver(call)
	for {
		mode, ok := x.(*ast.CallExpr)
		if !ok {
			break
		}
		fn := u.callee(mode)
		if !isPackage(fn, relockPath) || fn.Name() != "RLocker" && fn.Name() != "Writer" {
			break
		}
		x = u.receiver(mode)
	}
	return u.name(x)
}

func isContext(t types.Type) bool { return isNamed(t, "context", "Context") }

func isNamed(t types.Type, path, name string) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == name && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path
}

// isLock says whether t is a type of relock whose methods include Unlock.
func isLock(t types.Type) bool {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || !isRelock(n.Obj().Pkg()) {
		return false
	}
	switch n.Obj().Name() {
	case "Lock", "RWLock", "Locks", "Locker":
		return true
	}
	return false
}

// holdsLock says whether a value of type t may have a lock in it, or is a function, which may have
// one too.
func holdsLock(t types.Type, depth int) bool {
	if isLock(t) {
		return true
	}
	if depth == 0 {
		return false
	}
	switch t := t.Underlying().(type) {
	case *types.Pointer:
		return holdsLock(t.Elem(), depth-1)
	case *types.Slice:
		return holdsLock(t.Elem(), depth-1)
	case *types.Map:
		return holdsLock(t.Elem(), depth-1)
	case *types.Signature:
		return true
	case *types.Struct:
		for f := range t.Fields() {
			if holdsLock(f.Type(), depth-1) {
				return true
			}
		}
	}
	return false
}

// hasLock says whether x has a lock in it, and not only what a method of a lock returns.
func (u *unit) hasLock(x ast.Expr) bool {
	found := false
	ast.Inspect(x, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		if t := u.pass.TypesInfo.TypeOf(e); t != nil && isLock(t) {
			found = true
		}
		call, ok := n.(*ast.CallExpr)
		return !found && !(ok && isPackage(u.callee(call), relockPath))
	})
	return found
}

// isWork says whether the i-th argument of a call is a context that the call works with, so that an
// ended one spoils the call. Logs and traces only read values.
func (u *unit) isWork(call *ast.CallExpr, i int) bool {
	sig, ok := u.pass.TypesInfo.TypeOf(call.Fun).(*types.Signature)
	if !ok || i >= sig.Params().Len() || !isContext(sig.Params().At(i).Type()) {
		return false
	}
	fn := u.callee(call)
	if fn == nil || fn.Pkg() == nil {
		return true
	}
	switch path := fn.Pkg().Path(); {
	case path == relockPath, path == leaderPath, path == ticketPath:
		return verbOf(fn) == takes || verbOf(fn) == runs
	case path == "context":
		return fn.Name() != "Cause" && fn.Name() != "WithoutCancel"
	case path == "log/slog", path == "runtime/pprof", path == "runtime/trace", strings.HasPrefix(path, "go.opentelemetry.io/"):
		return false
	}
	lower := strings.ToLower(fn.Name())
	for _, word := range []string{"log", "debug", "info", "warn", "error", "trace", "span", "fromcontext"} {
		if strings.Contains(lower, word) {
			return false
		}
	}
	return true
}
