package relock_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// What does a client do under the mutex of its table while it has many holds? Every command and
// every renewal waits for that mutex.

// manyHolds is more than a client looks at before others get the mutex.
const manyHolds = 2500

func enterMany(t *testing.T, w *stage.World, m *stage.Member) (locks []*relock.Lock, sections []context.Context) {
	t.Helper()
	for i := range manyHolds {
		l := m.NewLock(strconv.Itoa(i))
		locks, sections = append(locks, l), append(sections, w.Enter(t.Context(), l))
	}
	return locks, sections
}

func TestOnlyEachLooksAtAllHolds(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	var walks []string
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			var walk string
			switch n := n.(type) {
			case *ast.RangeStmt:
				walk = types.ExprString(n.X)
			case *ast.CallExpr:
				walk = types.ExprString(n.Fun)
			default:
				return true
			}
			for _, all := range []string{"t.holds", "table.holds", "t.wanted", "table.wanted", "leases.All"} {
				if strings.HasSuffix(walk, all) {
					walks = append(walks, f.Name()+" "+walk)
				}
			}
			return true
		})
	}
	require.Equal(t, []string{"hold.go t.holds"}, walks, "table.each lets others have the mutex on its way")
}

func TestADoubtAboutOneHoldLooksAtNoOther(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		enterMany(t, w, m)
		stage.Settle()
		doubt := relock.DoubtOf(m.Client, store.ID(m.ID()+":1:100000")) // no hold
		require.Zero(t, testing.AllocsPerRun(10, doubt), "of a list of all holds")
	})
}

func TestADoubtAboutAllOfManyHoldsRenewsEach(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		enterMany(t, w, m)
		relock.DoubtOf(m.Client, "")()
		stage.Settle()
		renewed := 0
		for _, e := range stage.EventsOf[event.Renewed](&r) {
			renewed += e.Locks
		}
		require.Equal(t, manyHolds, renewed)
	})
}

func TestEachHoldThatEndsWhileItsClientClosesIsReportedOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		locks, sections := enterMany(t, w, m)
		var leaving sync.WaitGroup
		leaving.Go(func() {
			for i, l := range slices.Backward(locks) {
				_ = l.Unlock(sections[i])
			}
		})
		require.NoError(t, m.Close())
		leaving.Wait()
		reported := make(map[string]int)
		for _, e := range stage.EventsOf[event.Closed](&r) {
			reported[e.Name]++
		}
		for _, e := range stage.EventsOf[event.Released](&r) {
			reported[e.Name]++
		}
		require.Len(t, reported, manyHolds)
		for name, times := range reported {
			require.Equal(t, 1, times, name)
		}
	})
}
