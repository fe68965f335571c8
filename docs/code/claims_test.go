package code

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/ticket"
)

// Is what the pages say true?

// text reads a page, by its path from root.
func text(t *testing.T, page string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	return string(content)
}

// aclRules are the commands that make a Redis user for locks, by the page that shows them.
func aclRules(t *testing.T) map[string][]string {
	t.Helper()
	rules := make(map[string][]string)
	for _, path := range pages(t) {
		page, err := filepath.Rel(root, path)
		require.NoError(t, err)
		if rule := regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindString(text(t, page)); rule != "" {
			rules[page] = strings.Fields(rule)
		}
	}
	require.Len(t, rules, 2, "one page for each layout")
	return rules
}

// The commands that the library sends itself, or names in a variable. All others are in the scripts.
var sentCommands = []string{"eval", "evalsha", "publish", "subscribe", "unsubscribe", "ping"}

func TestThePageShowsTheCommandsThatARedisUserNeeds(t *testing.T) {
	var files []string
	for _, pattern := range []string{"scripts/*.lua", "scripts/kinds/*.lua", "scripts/user/*.lua", "scripts/deadlock/*.lua", "scripts/loans/*.lua"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		files = append(files, found...)
	}
	needs := slices.Clone(sentCommands)
	for _, file := range files {
		script, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?:call|tell)\('([A-Z]+)'`).FindAllStringSubmatch(string(script), -1) {
			switch name := strings.ToLower(m[1]); name {
			case "spublish", "info": // in a cluster, and with WithRestartDelay
			case "pubsub":
				needs = append(needs, "pubsub|numsub")
			default:
				needs = append(needs, name)
			}
		}
	}
	slices.Sort(needs)
	for file, rule := range aclRules(t) {
		if file == "docs/MIGRATION.md" {
			continue
		}
		var shown []string
		for _, word := range rule {
			if command, ok := strings.CutPrefix(word, "+"); ok {
				shown = append(shown, command)
			}
		}
		require.ElementsMatch(t, slices.Compact(needs), shown, file)
	}
}

func TestARedisUserMayDoWhatLocksNeedWithTheRuleOfThePage(t *testing.T) {
	for file, rule := range aclRules(t) {
		t.Run(file, func(t *testing.T) {
			server := redistest.Start(t)
			var options []relock.Option
			name := "orders:42"
			if file == "docs/MIGRATION.md" {
				options, name = append(options, relock.WithRedissonLayout()), "app:42"
			}
			args := make([]any, len(rule))
			for i, word := range rule {
				args[i] = word
			}
			require.NoError(t, server.Client().Do(t.Context(), args...).Err())
			locks := func() *relock.Client {
				rdb := server.Client(func(o *redis.Options) { o.Username, o.Password = rule[2], "password" })
				c, err := relock.New(rdb, options...)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				return c
			}
			one, two := locks().NewLock(name), locks().NewLock(name)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()

			section, err := one.Lock(ctx)
			require.NoError(t, err)
			inner, err := one.Lock(section)
			require.NoError(t, err)
			waited := make(chan error, 1)
			go func() {
				waited <- two.Do(ctx, func(context.Context) error { return two.ForceUnlock(ctx) })
			}()
			redistest.Eventually(t, 10*time.Second, func() bool {
				_, err = two.TryLock(ctx)
				return err != nil
			}, "another call is refused")
			require.ErrorIs(t, err, relock.ErrLocked)
			if file != "docs/MIGRATION.md" {
				_, err = one.Token(inner)
				require.NoError(t, err)
			}
			require.NoError(t, one.Unlock(inner))
			require.NoError(t, one.Unlock(section))
			require.ErrorIs(t, <-waited, relock.ErrLockLost)
			state, err := one.State(ctx)
			require.NoError(t, err)
			require.False(t, state.Locked())
			if file != "docs/MIGRATION.md" {
				travel(t, one, two)
			}
		})
	}
}

// travel lends the lock, and hands it off.
func travel(t *testing.T, one, two *relock.Lock) {
	t.Helper()
	section, err := one.Lock(t.Context())
	require.NoError(t, err)
	given, err := ticket.Lend(section, one)
	require.NoError(t, err)
	loan, err := ticket.Borrow(t.Context(), two, given)
	require.NoError(t, err)
	require.NoError(t, one.Unlock(section))
	require.NoError(t, two.Unlock(loan))
	section, err = one.Lock(t.Context())
	require.NoError(t, err)
	given, err = ticket.HandOff(section, one)
	require.NoError(t, err)
	section, err = ticket.Accept(t.Context(), two, given)
	require.NoError(t, err)
	require.NoError(t, two.Unlock(section))
}

func TestEveryTestThatAPageNamesIsThere(t *testing.T) {
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "*/*/*_test.go", "*/*/*/*_test.go", "locktest/*.go", "store/storetest/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			tests.Write(source)
		}
	}
	var missing []string
	checked := 0
	for _, path := range pages(t) {
		if strings.Contains(path, "decisions") || strings.Contains(path, "CHANGELOG") {
			continue // what was true then
		}
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile("`(?:[a-z]+\\.)?(Test[A-Za-z]+)`").FindAllStringSubmatch(string(content), -1) {
			checked++
			if !strings.Contains(tests.String(), "func "+name[1]+"(") {
				missing = append(missing, filepath.Base(path)+": "+name[1])
			}
		}
	}
	require.Greater(t, checked, 50)
	require.Empty(t, missing)
}
