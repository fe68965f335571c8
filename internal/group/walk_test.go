package group_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Is every goroutine of the library one of a group? A panic in any other one ends the process.

// others are the functions that begin another goroutine, with what keeps a panic from the process.
var others = map[string]string{
	"attempts.Apart":       "Outlast",
	"attempts.Each":        "Outlast",
	"events.Emit":          "Worker.call",
	"events.run":           "Worker.call",
	"group.Go":             "the group itself",
	"group.GoOpen":         "the group itself",
	"mem.recall":           "no code of others",
	"probe.Live":           "Apart",
	"quorum.ask":           "Outlast",
	"quorum.start":         "Outlast",
	"redisstore.handOver":  "Apart",
	"relock.renewOrFollow": "Outlast",
	"relocketcd.join":      "Apart",
	"relockzk.Renew":       "the client of ZooKeeper calls no code of others there",
	"relockzk.do":          "the same",
	"subs.guarded":         "its recover",
	"wire.sendBehind":      "the recover of exchange",
}

// outside are folders without code of the library.
var outside = []string{
	"bench", "cmd", "docs", "examples", "interop", "lab", "locktest", "model", "relockvet", "soak", "storetest", "testdata", "tools", "torture", "ui",
	"dbtest", "etcdtest", "fakeredis", "measurestest", "process", "promise", "redistest", "sqlsuite", "stage", "suite", "tcptest", "test", "zktest",
}

func TestEveryGoroutineOfTheLibraryIsOneOfAGroup(t *testing.T) {
	found := make(map[string]bool)
	err := filepath.WalkDir(top(t), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(outside, d.Name()) || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && begins(f) {
				found[file.Name.Name+"."+f.Name.Name] = true
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, slices.Sorted(maps.Keys(others)), slices.Sorted(maps.Keys(found)))
}

// top is the top folder of the repository.
func top(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "lock.go")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		require.NotEqual(t, dir, above)
		dir = above
	}
}

// begins says whether a function has a go statement, or a goroutine of a sync.WaitGroup.
func begins(f *ast.FuncDecl) (begins bool) {
	groups := make(map[string]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			begins = true
		case *ast.ValueSpec:
			typed, is := n.Type.(*ast.SelectorExpr)
			for _, name := range n.Names {
				groups[name.Name] = is && typed.Sel.Name == "WaitGroup"
			}
		case *ast.CallExpr:
			called, is := n.Fun.(*ast.SelectorExpr)
			if !is || called.Sel.Name != "Go" {
				break
			}
			of, is := called.X.(*ast.Ident)
			begins = begins || is && groups[of.Name]
		}
		return true
	})
	return begins
}
