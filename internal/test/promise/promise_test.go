package promise_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/promise"
)

var suite = promise.Suite[string]{
	Without: map[string]string{"FIFO": "waiters race", "Kinds": ""},
	Hooks:   map[string]bool{"lose": true, "interrupt": false},
}

func TestAPromiseThatIsLeftOutHasAReason(t *testing.T) {
	require.Empty(t, suite.Reason("Tokens"))
	require.Empty(t, suite.Reason(""))
	require.Equal(t, "waiters race", suite.Reason("FIFO"))
	require.Equal(t, "no reason is given", suite.Reason("Kinds"))
	require.Equal(t, "no reason is given", suite.Reason("ReaderTokens"), "a part of Kinds")
}

func TestASubtestRunsIfAllItsNeedsAreMet(t *testing.T) {
	require.True(t, suite.Has(t))
	require.True(t, suite.Has(t, "Tokens", "", "lose"))
	require.False(t, suite.Has(t, "", "FIFO"))
	require.False(t, suite.Has(t, "Tokens", "Semaphores"))
	require.False(t, suite.Has(t, "interrupt"))
}

func TestSubtestsCanRunBesideEachOther(t *testing.T) {
	first, second := make(chan struct{}), make(chan struct{})
	meet := func(mine, other chan struct{}) func(*testing.T) {
		return func(*testing.T) { close(mine); <-other }
	}
	promise.Run(t, "first", true, nil, meet(first, second))
	promise.Run(t, "second", true, nil, meet(second, first))
}

func TestTheBodyOfASubtestRunsInsideOfAround(t *testing.T) {
	var ran []string
	note := func(text string) func(*testing.T) {
		return func(t *testing.T) { t.Helper(); ran = append(ran, text+" in "+t.Name()) }
	}
	promise.Run(t, "plain", false, nil, note("body"))
	around := func(t *testing.T, body func(*testing.T)) { t.Helper(); note("around")(t); body(t) }
	promise.Run(t, "bubble", false, around, note("body"))
	require.Equal(t, []string{
		"body in " + t.Name() + "/plain", "around in " + t.Name() + "/bubble", "body in " + t.Name() + "/bubble",
	}, ran)
}
