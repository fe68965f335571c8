package inflight_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/inflight"
)

var (
	one = inflight.Key{Name: "orders:1", Holder: "h1"}
	two = inflight.Key{Name: "orders:1", Holder: "h2"}
)

// hold makes a hold that begins now.
func hold(ttl time.Duration) inflight.Hold {
	return inflight.Hold{Label: "orders", Asked: time.Now(), Since: time.Now(), TTL: ttl}
}

func pass(d time.Duration) { time.Sleep(d) } // fake time

func TestUsageOfEachLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := inflight.New()
		require.Empty(t, table.Usage())
		require.True(t, table.Know("orders"))
		require.False(t, table.Know("orders"))
		require.True(t, table.Know("carts"))
		require.Equal(t, map[string]inflight.Usage{"orders": {}, "carts": {}}, table.Usage())

		table.Open(one, hold(10*time.Second))
		pass(3 * time.Second)
		table.Open(two, hold(time.Second))
		table.Queue(inflight.Key{Name: "carts:1", Holder: "h3"}, "carts")
		pass(2 * time.Second)
		require.Equal(t, map[string]inflight.Usage{
			"orders": {Holds: 2, Age: 5 * time.Second, AgeTTL: 2}, "carts": {Waiters: 1},
		}, table.Usage())

		table.End(one, 5*time.Second)
		table.Unqueue(inflight.Key{Name: "carts:1", Holder: "h3"})
		require.Equal(t, map[string]inflight.Usage{
			"orders": {Holds: 1, Age: 2 * time.Second, AgeTTL: 2}, "carts": {},
		}, table.Usage())
	})
}

func TestTwoHoldsOfOneKeyAreCountedWithTheAgeOfTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := inflight.New()
		table.Open(one, hold(time.Second))
		pass(time.Second)
		table.Open(one, hold(time.Second))
		require.Equal(t, inflight.Usage{Holds: 2, Age: time.Second, AgeTTL: 1}, table.Usage()["orders"])
		table.End(one, 0)
		require.Equal(t, inflight.Usage{Holds: 1, Age: time.Second, AgeTTL: 1}, table.Usage()["orders"])
		table.End(one, time.Second)
		require.Zero(t, table.Usage()["orders"])
	})
}

func TestAHoldOfALeaderHasNoAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, leader := inflight.New(), inflight.Key{Name: one.Name, Holder: one.Holder, Leader: true}
		table.Open(leader, hold(time.Second))
		pass(time.Minute)
		table.Open(one, hold(time.Second))
		pass(time.Second)
		require.Equal(t, inflight.Usage{Holds: 2, Age: time.Second, AgeTTL: 1}, table.Usage()["orders"])
		table.End(one, time.Second)
		require.Equal(t, inflight.Usage{Holds: 1}, table.Usage()["orders"])
		table.End(leader, 0)
		require.Zero(t, table.Usage()["orders"])
	})
}

func TestAHoldWithoutATTLHasAnAgeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := inflight.New()
		table.Open(one, hold(0))
		pass(time.Second)
		require.Equal(t, inflight.Usage{Holds: 1, Age: time.Second}, table.Usage()["orders"])
	})
}

func TestAnEndBeforeItsBeginLeavesNoHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := inflight.New()
		late := hold(time.Second)
		pass(time.Second)
		table.End(one, time.Second)
		table.Open(one, late)
		require.Zero(t, table.Usage()["orders"])
		pass(time.Millisecond)
		table.Open(one, hold(time.Second))
		require.Equal(t, 1, table.Usage()["orders"].Holds, "the next one of the same holder counts")
	})
}

func TestAnEndWithoutABeginHidesNoLaterHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := inflight.New()
		table.End(one, time.Second)
		pass(time.Second)
		table.Open(one, hold(time.Second))
		require.Equal(t, 1, table.Usage()["orders"].Holds)
	})
}

func TestEndsWithoutABeginAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := inflight.New()
		late := hold(time.Second)
		for i := range 1024 {
			table.End(inflight.Key{Name: fmt.Sprint(i)}, 0)
		}
		table.End(one, 0) // all others are forgotten
		table.Open(inflight.Key{Name: "0"}, late)
		table.Open(one, late)
		require.Equal(t, 1, table.Usage()["orders"].Holds)
	})
}

func TestAWaitThatBeginsBeforeTheEndOfTheLastIsCountedOnce(t *testing.T) {
	table := inflight.New()
	table.Queue(one, "orders")
	table.Queue(one, "orders")
	table.Unqueue(one)
	require.Equal(t, 1, table.Usage()["orders"].Waiters)
	table.Unqueue(one)
	require.Zero(t, table.Usage()["orders"])
	table.Unqueue(one) // the begin is missing
	table.Queue(two, "orders")
	require.Equal(t, 1, table.Usage()["orders"].Waiters)
}

func TestResetForgetsAllButTheLabels(t *testing.T) {
	table := inflight.New()
	table.Know("orders")
	table.Open(one, hold(time.Second))
	table.Queue(two, "orders")
	table.Reset()
	require.Equal(t, map[string]inflight.Usage{"orders": {}}, table.Usage())
}
