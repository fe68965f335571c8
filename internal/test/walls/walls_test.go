package walls

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root    = "../../.." // of the repository
	relock  = "github.com/go-relock/relock/"
	goRedis = "github.com/redis/go-redis/v9"
	uuid    = "github.com/google/uuid"
)

// walls has what the files of a folder may import beside the standard library. A file that is named has a wall of its own.
var walls = map[string][]string{
	// Words, locks and leases: nothing of Redis.
	".": {
		uuid, relock + "event", relock + "internal/attempts", relock + "internal/caller", relock + "internal/events",
		relock + "internal/group", relock + "internal/inside", relock + "internal/lifetime", relock + "internal/sections", relock + "internal/timers", relock + "store",
	},
	// The doors to Redis.
	"new.go":     {goRedis, relock + "internal/redisstore", relock + "store"},
	"scripts.go": {goRedis, relock + "internal/redisstore", relock + "store"},
	// What the hooks get: nothing of locks, so that the root can make it.
	"event": {relock + "internal/events"},
	// Sections that travel: on a lock, and with a library for tokens.
	"ticket": {
		"github.com/golang-jwt/jwt/v5", strings.TrimSuffix(relock, "/"), relock + "event", relock + "internal/inside", relock + "internal/lifetime",
		relock + "internal/problem",
	},
	// The stores in Redis: nothing of clients and locks.
	"internal/redisstore": {
		goRedis, uuid, relock + "internal/attempts", relock + "internal/group", relock + "internal/lifetime",
		relock + "internal/subs", relock + "internal/wire", relock + "store",
	},
	// The ways to a server: nothing of locks.
	"internal/subs": {
		goRedis, relock + "internal/attempts", relock + "internal/group", relock + "internal/lifetime", relock + "internal/timers", relock + "internal/wire",
	},
	"internal/wire": {goRedis, relock + "internal/attempts", relock + "internal/group", relock + "internal/lifetime"},
}

// outside has the folders that are not the library.
var outside = []string{"cmd", "docs", "examples", "internal/test", "lab", "tools"}

// suites has the folders of the library that test the code of others. They import what tests share.
var suites = []string{"locktest", "store/storetest"}

// forbidden matches what the library does not use: a library does not print, exit or sleep.
var forbidden = regexp.MustCompile(`^(print|println|fmt\.Print(f|ln)?|log\..*|os\.(Stdout|Stderr|Exit)|time\.Sleep` +
	`|log/slog\.((Debug|Info|Warn|Error)(Context)?|Log|LogAttrs|SetDefault))$`)

func TestAPackageImportsOnlyWhatItsWallLetsThrough(t *testing.T) {
	met := map[string]bool{}
	for _, f := range library(t) {
		wall := f.name
		if walls[wall] == nil {
			wall = path.Dir(f.name)
		}
		if walls[wall] == nil {
			continue
		}
		met[wall] = true
		for _, imported := range f.imports {
			if !isStandard(imported) && !slices.Contains(walls[wall], imported) {
				t.Errorf("%s imports %s", f.name, imported)
			}
		}
	}
	require.Len(t, met, len(walls), "a wall without files")
}

func TestTheLibraryImportsNothingOfItsTests(t *testing.T) {
	for _, f := range library(t) {
		for _, imported := range f.imports {
			ofTests := strings.HasPrefix(imported, relock+"internal/test/") || strings.HasPrefix(imported, relock+"lab/")
			if ofTests && !slices.Contains(suites, path.Dir(f.name)) || imported == "math/rand" {
				t.Errorf("%s imports %s", f.name, imported)
			}
		}
	}
}

func TestTheLibraryDoesNotPrintExitOrSleep(t *testing.T) {
	for _, f := range library(t) {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			used := "" // a name, with its package if it has one
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Obj == nil && f.names[x.Name] != "" {
					used = f.names[x.Name] + "." + n.Sel.Name
				}
			case *ast.CallExpr:
				if fun, ok := n.Fun.(*ast.Ident); ok && fun.Obj == nil {
					used = fun.Name
				}
			}
			if forbidden.MatchString(used) {
				t.Errorf("%s:%d uses %s", f.name, f.set.Position(n.Pos()).Line, used)
			}
			return true
		})
	}
}

func TestOnlyEachLooksAtAllHolds(t *testing.T) {
	var walks []string
	for _, f := range library(t) {
		if path.Dir(f.name) != "." {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			var walk string
			switch n := n.(type) {
			case *ast.RangeStmt:
				walk = types.ExprString(n.X)
			case *ast.CallExpr:
				walk = types.ExprString(n.Fun)
			default:
				return true
			}
			for _, all := range []string{"t.holds", "table.holds", "t.heads", "table.heads", "leases.All"} {
				if strings.HasSuffix(walk, all) {
					walks = append(walks, f.name+" "+walk)
				}
			}
			return true
		})
	}
	require.Empty(t, walks, "table.each lets others have the mutex on its way")
}

// A file of the library, without tests.
type file struct {
	name    string // with its path in the repository
	imports []string
	names   map[string]string // of imports in the file; to the path
	tree    *ast.File
	set     *token.FileSet
}

// library reads all modules of the repository.
func library(t *testing.T) (files []*file) {
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name != "." && d.Name()[0] == '.' || d.Name() == "testdata" || slices.Contains(outside, name)):
			return fs.SkipDir
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f := &file{name: name, names: map[string]string{}, set: token.NewFileSet()}
		files = append(files, f)
		if f.tree, err = parser.ParseFile(f.set, path.Join(root, name), nil, 0); err != nil {
			return err
		}
		for _, spec := range f.tree.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			as := path.Base(imported)
			if spec.Name != nil {
				as = spec.Name.Name
			}
			f.names[as] = imported
			f.imports = append(f.imports, imported)
		}
		return nil
	})
	require.NoError(t, err)
	return files
}

// isStandard says whether a package is of the standard library: the others begin with a host.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}
