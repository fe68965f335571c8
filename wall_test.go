package relock

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Do calls go down, and does the core know Redis?

// redisFiles are the files that know Redis. All other files of the package are the core.
var redisFiles = []string{"scripts.go", "redis.go", "check.go", "shared.go", "native.go", "waits.go", "several.go", "loans.go", "userscripts.go", "pubsub.go", "redisson.go", "new.go"}

// noPackage imports nothing: the wall is about names that this package declares, and about import paths.
type noPackage struct{}

func (noPackage) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

// uses resolves the names of the package.
func uses(files map[string]*ast.File, set *token.FileSet) types.Info {
	all := make([]*ast.File, 0, len(files))
	for _, f := range files {
		all = append(all, f)
	}
	info := types.Info{Uses: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection)}
	config := types.Config{Importer: noPackage{}, Error: func(error) {}}
	_, _ = config.Check("relock", set, all, &info)
	return info
}

// breaches are the uses, in core files, of what a Redis file declares, and the imports of packages that know Redis.
func breaches(files map[string]*ast.File, set *token.FileSet) []string {
	var found []string
	isRedis := func(p token.Pos) bool { return slices.Contains(redisFiles, filepath.Base(set.Position(p).Filename)) }
	for name, use := range uses(files, set).Uses {
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

// fileOrder are the files of the package, from the bottom to the top: a file uses the files before it.
var fileOrder = append([]string{
	"doc.go", "holder.go", "errors.go", "hooks.go", "options.go", "hold.go", "entry.go", "stop.go", "line.go", "cleanup.go", "ends.go",
	"watchdog.go", "client.go", "deadlock.go", "acquiring.go", "reentry.go", "lock.go", "inspect.go", "lend.go", "eval.go", "do.go", "lead.go", "kinds.go", "all.go",
}, redisFiles...)

// upward are the uses against fileOrder that are known: the parts of a Client know their Client.
var upward = map[string]bool{
	"hold.go client.go": true, "entry.go client.go": true, "line.go client.go": true, "cleanup.go client.go": true, "ends.go client.go": true,
	"watchdog.go client.go": true, "acquiring.go lock.go": true,
}

func TestFilesUseTheFilesBelowThem(t *testing.T) {
	files, set := parsePackage(t, nil)
	found := make(map[string]bool)
	for file, used := range usedFiles(files, set) {
		require.Contains(t, fileOrder, file)
		for other := range used {
			if slices.Index(fileOrder, file) < slices.Index(fileOrder, other) {
				found[file+" "+other] = true
			}
		}
	}
	require.Equal(t, upward, found)
}

// usedFiles are the files in which the names are declared that each file uses.
func usedFiles(files map[string]*ast.File, set *token.FileSet) map[string]map[string]bool {
	found := make(map[string]map[string]bool)
	for name, use := range uses(files, set).Uses {
		file, other := filepath.Base(set.Position(name.Pos()).Filename), filepath.Base(set.Position(use.Pos()).Filename)
		if use.Pos().IsValid() && file != other {
			if found[file] == nil {
				found[file] = make(map[string]bool)
			}
			found[file][other] = true
		}
	}
	return found
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

// frames notes the functions of the library behind the first command that go-redis is asked to send.
type frames struct {
	once  sync.Once
	found []string
}

func (f *frames) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *frames) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f.once.Do(func() {
			pcs := make([]uintptr, 64)
			for stack := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)]); ; {
				frame, more := stack.Next()
				_, name, ours := strings.Cut(frame.Function, "go-relock/relock")
				if ours && !strings.HasSuffix(frame.File, "_test.go") {
					f.found = append(f.found, name)
				}
				if !more {
					return
				}
			}
		})
		return next(ctx, cmd)
	}
}

func (f *frames) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestFromLockToGoRedisAreEightCalls(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	var f frames
	rdb.AddHook(&f)
	c, err := New(rdb)
	require.NoError(t, err)
	defer c.Close()
	l := c.NewLock("a")
	section, err := l.Lock(context.Background())
	require.NoError(t, err)
	require.NoError(t, l.Unlock(section))
	slices.Reverse(f.found)
	require.Equal(t, []string{
		".(*Lock).Lock", ".(*acquiring).acquire", ".(*acquiring).enterFirst", ".(*acquiring).ask", ".(*nativeStore).Wait", ".(*nativeStore).ask",
		"/internal/wire.(*Wire).Do", "/internal/wire.(*Wire).attempt", "/internal/wire.(*Wire).exchange",
	}, f.found)
	// A call whose context may end waits in attempt, and a goroutine sends.
	f.once, f.found = sync.Once{}, nil
	section, err = l.Lock(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Unlock(section))
	slices.Reverse(f.found)
	require.Equal(t, []string{"/internal/wire.(*Wire).send", "/internal/wire.(*Wire).exchange"}, f.found[len(f.found)-2:])
}
