package code

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// declared returns the names that the Go files of the repository declare. Methods and fields stand
// behind the name of their type, as in "Lock.Token".
func declared(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		typeName := ""
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
				if n.Recv != nil {
					owner, _, _ := strings.Cut(types.ExprString(n.Recv.List[0].Type), "[")
					names[strings.TrimPrefix(owner, "*")+"."+n.Name.Name] = true
				}
				return false
			case *ast.TypeSpec:
				typeName, names[n.Name.Name] = n.Name.Name, true
			case *ast.Field:
				for _, name := range n.Names {
					names[typeName+"."+name.Name] = true
				}
			case *ast.ValueSpec:
				for _, name := range n.Names {
					names[name.Name] = true
				}
			}
			return true
		})
		return nil
	}))
	return names
}

// A page of the design may name a word of a script, too. 013 is replaced by 021.
func TestEveryNameInTheDesignIsDeclared(t *testing.T) {
	names := declared(t)
	var others strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && (filepath.Ext(path) == ".lua" || strings.HasSuffix(path, "_test.go")) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			others.Write(text)
		}
		return err
	}))
	words := make(map[string]bool)
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(others.String(), -1) {
		words[word] = true
	}
	var missing []string
	missingOn := func(page string, name *regexp.Regexp) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			_, last, _ := strings.Cut(m[1], ".")
			if last != "lua" && !names[m[1]] && !words[m[1]] && !names[last] {
				missing = append(missing, filepath.Base(page)+": "+m[1])
			}
		}
	}
	missingOn(filepath.Join(root, "docs/DESIGN.md"), regexp.MustCompile("`([A-Za-z]\\w*(?:\\.[A-Za-z]\\w*)?)`"))
	decisions, err := filepath.Glob(filepath.Join(root, "docs/decisions/*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, decisions)
	for _, page := range decisions {
		if !strings.HasPrefix(filepath.Base(page), "013") {
			missingOn(page, regexp.MustCompile("`(Test\\w+)`"))
		}
	}
	require.Empty(t, missing)
}
