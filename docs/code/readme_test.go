package code

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/leader"
)

// ship is the work of a section.
func ship(ctx context.Context, _ int) error { return ctx.Err() }

func TestReadmeWhole(t *testing.T) {
	program := exec.CommandContext(t.Context(), "go", "run", "./first")
	program.Env = append(os.Environ(), "REDIS_ADDR="+redistest.Shared(t).Addr())
	out, err := program.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "nobody else is here")
	require.NotContains(t, string(out), "relock:")
}

func verbs(ctx context.Context, client *relock.Client, fn func(context.Context) error) (err error) {
	lock, leaders := client.NewLock("orders:42"), client.NewLock("leader")
	// page: verbs
	err = lock.Do(ctx, fn)                 // the form to prefer; an error: fn did not run, failed, or lost the lock
	err = lock.DoFor(ctx, time.Second, fn) // waits for the lock for a second at most
	err = leader.Run(ctx, leaders, fn)     // leader election: after a loss it campaigns again

	section, err := lock.Lock(ctx) // by hand; TryLock does not wait, TryLockFor waits for a time
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock(section)) }() // the section's context is for the work, and for Unlock
	token, err := lock.Token(section)                               // fencing token

	prices := client.NewRWLock("prices")                // RLock, RDo, ...; upgrade and downgrade
	imports := client.NewSemaphore("imports", 4)        // lets 4 in
	both := client.NewLocks([]string{"acc:7", "acc:9"}) // all or none; also relock.All(lockA, lockB)
	// end
	if err == nil && token == 0 {
		panic("no token")
	}
	for _, l := range []relock.Locker{prices.RLocker(), prices, imports, both} {
		if err == nil {
			err = relock.Do(ctx, l, fn)
		}
	}
	return err
}

func TestReadmeVerbs(t *testing.T) {
	client := newClient(t)
	ran := 0
	require.NoError(t, verbs(t.Context(), client, func(context.Context) error { ran++; return nil }))
	require.Equal(t, 7, ran)
}

// newClient returns a Client on a real server that is empty.
func newClient(t *testing.T, options ...relock.Option) *relock.Client {
	t.Helper()
	rdb := redistest.Shared(t).Client()
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	client, err := relock.New(rdb, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestReadmeGoroutines(t *testing.T) {
	client, ctx, ids := newClient(t), t.Context(), []string{"a", "b", "a"}
	leader := client.NewLock("leader")
	work := ship1
	// page: goroutines
	err := leader.Do(ctx, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, id := range ids {
			g.Go(func() error { return client.NewLock(id).Do(ctx, work) }) // right: two workers with one id take turns
			g.Go(func() error { return leader.Do(ctx, work) })             // wrong: all of these are inside of leader already
		}
		return g.Wait()
	})
	// end
	require.NoError(t, err)
}

func ship1(ctx context.Context) error { return ship(ctx, 1) }

// Each line of the page but the clone runs in an empty folder, beside this tree.
func TestTheLinesOfInstallBuildAService(t *testing.T) {
	_, block, found := strings.Cut(text(t, "README.md"), "```sh\ngit clone https://github.com/go-relock/relock ../relock\n")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "```")
	tree, err := filepath.Abs(root)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "service")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Symlink(tree, filepath.Join(filepath.Dir(dir), "relock")))
	program, err := os.ReadFile("first/main.go")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), program, 0o600))
	module := "package main\n\nimport _ \"github.com/go-relock/relock/store/sql\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "module.go"), []byte(module), 0o600))
	shell := exec.CommandContext(t.Context(), "sh", "-ec", "go mod init example.com/service\n"+block+"go build -o program .")
	shell.Dir, shell.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	require.FileExists(t, filepath.Join(dir, "program"))
}

// No version is tagged, so such a line would end with 403. With the first tag this test goes.
func TestNoPageInstallsWhatHasNoVersion(t *testing.T) {
	bare := regexp.MustCompile(`go (?:get|install|run) (?:-\S+ \S+ )*github\.com/go-relock\S*`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "CHANGELOG.md" {
			return err
		}
		if ending := filepath.Ext(path); ending == ".md" || ending == ".go" || ending == ".1" {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Empty(t, bare.FindString(string(content)), path)
		}
		return nil
	}))
}
