package relock

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Does the core know Redis?

// redisFiles are the files that know Redis. All other files of the package are the core.
var redisFiles = []string{"new.go", "redis.go", "scripts.go", "pubsub.go", "redisson.go"}

// noPackage imports nothing: the wall is about names that this package declares, and about import paths.
type noPackage struct{}

func (noPackage) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

// breaches are the uses, in core files, of what a Redis file declares, and the imports of packages that know Redis.
func breaches(files map[string]*ast.File, set *token.FileSet) []string {
	var found []string
	all := make([]*ast.File, 0, len(files))
	for _, f := range files {
		all = append(all, f)
	}
	info := types.Info{Uses: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection)}
	config := types.Config{Importer: noPackage{}, Error: func(error) {}}
	_, _ = config.Check("relock", set, all, &info)
	isRedis := func(p token.Pos) bool { return slices.Contains(redisFiles, filepath.Base(set.Position(p).Filename)) }
	for name, use := range info.Uses {
		if use.Pos().IsValid() && isRedis(use.Pos()) && !isRedis(name.Pos()) {
			found = append(found, set.Position(name.Pos()).String()+": "+name.Name)
		}
	}
	for file, f := range files {
		if slices.Contains(redisFiles, file) {
			continue
		}
		for _, i := range f.Imports {
			for _, part := range []string{"go-redis", "internal/wire", "internal/subs"} {
				if strings.Contains(i.Path.Value, part) {
					found = append(found, file+": imports "+i.Path.Value)
				}
			}
		}
	}
	return found
}

func parsePackage(t *testing.T, extra map[string]string) (map[string]*ast.File, *token.FileSet) {
	t.Helper()
	set, files := token.NewFileSet(), make(map[string]*ast.File)
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files[name], err = parser.ParseFile(set, name, nil, 0)
		require.NoError(t, err)
	}
	for name, source := range extra {
		files[name], err = parser.ParseFile(set, name, source, 0)
		require.NoError(t, err)
	}
	for _, name := range redisFiles {
		require.Contains(t, files, name)
	}
	return files, set
}

func TestTheCoreDoesNotKnowRedis(t *testing.T) {
	files, set := parsePackage(t, nil)
	require.Empty(t, breaches(files, set))
}

func TestTheWallNoticesABreach(t *testing.T) {
	for what, source := range map[string]string{
		"a function":  "package relock\nvar _ = newRedisStore",
		"an import":   "package relock\nimport _ \"github.com/redis/go-redis/v9\"",
		"the batcher": "package relock\nimport _ \"github.com/go-relock/relock/internal/wire\"",
	} {
		files, set := parsePackage(t, map[string]string{"breach.go": source})
		require.NotEmpty(t, breaches(files, set), what)
	}
}
