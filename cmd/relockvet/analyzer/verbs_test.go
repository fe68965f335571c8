package relockvet

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

func TestEveryMethodOfALockHasItsVerb(t *testing.T) {
	section := reflect.TypeFor[context.Context]()
	function := reflect.TypeFor[func(context.Context) error]()
	found := make(map[verb]bool)
	for _, lock := range []reflect.Type{
		reflect.TypeFor[*relock.Lock](), reflect.TypeFor[*relock.RWLock](),
		reflect.TypeFor[*relock.Locks](), reflect.TypeFor[relock.Locker](),
	} {
		for i := range lock.NumMethod() {
			m := lock.Method(i)
			want := none
			switch in, out := m.Type.NumIn(), m.Type.NumOut(); {
			case out > 1 && m.Type.Out(0) == section:
				want = takes
			case in > 0 && m.Type.In(in-1) == function:
				want = runs
			case m.Name == "Unlock":
				want = leaves
			}
			found[want] = true
			require.Equal(t, want, verbs[m.Name], "%s.%s", lock, m.Name)
		}
	}
	require.Equal(t, map[verb]bool{none: true, takes: true, leaves: true, runs: true}, found)
}
