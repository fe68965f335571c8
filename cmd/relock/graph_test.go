package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// Does graph tell who waits for whom?

func TestGraphLeadsFromAWaiterToTheLockThatHoldsItUp(t *testing.T) {
	s := onShared(t)
	s.hold("a")
	inner, err := relock.New(s.rdb, relock.WithOwner("inner"))
	require.NoError(t, err)
	defer inner.Close()
	section, err := inner.NewLock("b").Lock(t.Context())
	require.NoError(t, err)
	wait, giveUp := context.WithCancel(section)
	waited := make(chan error, 1)
	go func() {
		_, err := inner.NewLock("a").Lock(wait)
		waited <- err
	}()
	outer := start(t, s.on(), "run", "b", "--owner", "outer", "--", "true")
	s.waiting("a", 1)
	s.waiting("b", 1)

	got := do(t, s.on(), "graph", "--json")
	require.Equal(t, 0, got.code, got.stderr)
	var edges []edge
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &edges))
	require.Len(t, edges, 2)
	require.Equal(t, "a", edges[0].Name)
	require.Equal(t, "b", edges[1].Name)
	require.Equal(t, []string{edges[0].Waiter}, edges[1].Holders, "the line leads on")
	require.True(t, strings.HasPrefix(edges[1].Waiter, "outer/"))
	require.NotNil(t, edges[0].WaitMs)

	got = do(t, s.on(), "graph")
	require.Regexp(t, `^inner/\S+ waits \S+ for a of \S+\nouter/\S+ waits \S+ for b of inner/\S+\n$`, got.stdout)
	got = do(t, s.on(), "graph", "--dot", "b")
	require.Regexp(t, `^digraph locks \{\n  "outer/\S+" -> "inner/\S+" \[label="b"\];\n\}\n$`, got.stdout)
	got = do(t, s.on(), "graph", "c*")
	require.Empty(t, got.stdout)
	got = do(t, s.on(), "graph", "--dot", "--json")
	require.Equal(t, codeUsage, got.code)
	require.Contains(t, got.stderr, "two forms of output")

	giveUp()
	require.Error(t, <-waited)
	require.NoError(t, inner.NewLock("b").Unlock(section))
	require.Equal(t, 0, outer.code())
}

func TestGraphNamesEachCircleOnce(t *testing.T) {
	waits := []edge{
		{Name: "a", Waiter: "one", Holders: []string{"two"}},
		{Name: "b", Waiter: "two", Holders: []string{"three", "four"}},
		{Name: "c", Waiter: "four", Holders: []string{"two"}},
		{Name: "d", Waiter: "five", Holders: []string{"one"}},
	}
	require.Equal(t, [][]string{{"two", "four"}}, circles(waits))
	var text strings.Builder
	printWaits(&text, waits)
	require.Contains(t, text.String(), "a circle: two waits for four waits for two\n")
	require.Empty(t, circles(waits[:2]))

	text.Reset()
	printWaits(&text, []edge{{Name: "a", Waiter: "one"}}) // the lock became free between the two looks
	require.Equal(t, "one waits - for a of nobody, just now\n", text.String())
}
