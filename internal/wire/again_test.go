package wire

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// What if a script asks to be called again?

// againScript asks for two more calls, counted in its key.
var againScript = func() *Script {
	s := NewScript("again", `
local replies = {}
for i, key in ipairs(KEYS) do
  replies[i] = redis.call('INCR', key) < 3 and 3 or 1
end
return #KEYS == 1 and replies[1] or replies`)
	s.Again = int64(3)
	return s
}()

func TestDoCallsAScriptAgainThatAsksForIt(t *testing.T) {
	r := newRig(t)
	a, err := r.wire.Do(t.Context(), &Call{Script: againScript, Unit: r.unit(0, "x"), Tries: 1})
	require.NoError(t, err)
	require.EqualValues(t, 1, a.Reply)
	require.Equal(t, "3", r.value(0))
	require.Zero(t, r.retries(), "nothing has failed")
}

func TestAllCallsOnlyTheUnitsAgainThatAskForIt(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.seen.Set(t.Context(), r.key(1), 2, 0).Err())
	for _, result := range r.wire.All(t.Context(), againScript, nil, units(r, 2)) {
		require.NoError(t, result.Err)
		require.EqualValues(t, 1, result.Reply)
	}
	require.Equal(t, "3", r.value(0))
	require.Equal(t, "3", r.value(1))
}

// countdown is a context that ends when it was asked for its error so often.
type countdown struct {
	context.Context
	left int
	done chan struct{}
}

func (e *countdown) Done() <-chan struct{} { return e.done }

func (e *countdown) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestAUnitThatAsksAgainIsNotDoneWhenItsContextEnds(t *testing.T) {
	r := newRig(t)
	script := NewScript("always", `return 3`)
	script.Again = int64(3)
	for left := range 20 {
		ctx := &countdown{Context: context.Background(), left: left, done: make(chan struct{})}
		for _, result := range r.wire.All(ctx, script, nil, units(r, 1)) {
			require.ErrorIs(t, result.Err, context.Canceled, left)
		}
		ctx = &countdown{Context: context.Background(), left: left, done: make(chan struct{})}
		_, err := r.wire.Do(ctx, &Call{Script: script, Unit: r.unit(0, "x")})
		require.ErrorIs(t, err, context.Canceled, left)
	}
}
