package fence_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
)

func TestSchemaNamesTheTable(t *testing.T) {
	for _, c := range []struct {
		table *fence.Table
		begin string
	}{
		{fence.SQL(fence.Postgres), `CREATE TABLE IF NOT EXISTS "relock_fence" (`},
		{fence.SQL(fence.MySQL), "CREATE TABLE IF NOT EXISTS `relock_fence` ("},
		{fence.SQL(fence.SQLite), `CREATE TABLE IF NOT EXISTS "relock_fence" (`},
		{fence.SQL(fence.Postgres).Named("Order"), `CREATE TABLE IF NOT EXISTS "Order" (`},
		{fence.SQL(fence.MySQL).Named("billing.fence_2"), "CREATE TABLE IF NOT EXISTS `billing`.`fence_2` ("},
	} {
		require.True(t, strings.HasPrefix(c.table.Schema(), c.begin), "%s", c.table.Schema())
	}
}

func TestNamedLeavesTheFirstTableAsItIs(t *testing.T) {
	table := fence.SQL(fence.SQLite)
	_ = table.Named("other")
	require.Equal(t, fence.SQL(fence.SQLite), table)
}

func TestTableNamesAreIdentifiers(t *testing.T) {
	long := strings.Repeat("x", 63)
	for _, name := range []string{"f", "_", "Fence9", long, long + "." + long} {
		require.NotEmpty(t, fence.SQL(fence.Postgres).Named(name).Schema(), name)
	}
	for _, name := range []string{
		"", ".", "a.", ".b", "a.b.c", "9fence", "a b", "a-b", "a;b", `a"b`, "a`b", "é", "a\n", long + "x",
	} {
		refuses(t, fence.SQL(fence.Postgres).Named(name), "is no name of a table")
	}
}

func TestAnUnknownDialectIsRefused(t *testing.T) {
	for _, d := range []fence.Dialect{0, -1, fence.SQLite + 1} {
		refuses(t, fence.SQL(d), "there is no dialect")
		refuses(t, fence.SQL(d).Named("orders"), "there is no dialect")
	}
}

// refuses asserts that the table cannot be used, and says why before it touches a database.
func refuses(t *testing.T, table *fence.Table, why string) {
	t.Helper()
	require.Empty(t, table.Schema())
	require.ErrorContains(t, table.Create(t.Context(), nil), why)
	require.ErrorContains(t, table.Enter(t.Context(), nil, "orders", 1), why)
}
