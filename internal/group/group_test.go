package group_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/group"
)

func TestWaitReturnsWhenNothingIsLeft(t *testing.T) {
	for name, join := range map[string]func(g *group.Group, f func()){
		"Go": func(g *group.Group, f func()) { g.Go(f) },
		"GoOpen": func(g *group.Group, f func()) {
			require.True(t, g.GoOpen(f))
		},
		"Add and Leave": func(g *group.Group, f func()) {
			g.Add()
			go func() { defer g.Leave(); f() }()
		},
		"Enter and Leave": func(g *group.Group, f func()) {
			require.True(t, g.Enter())
			go func() { defer g.Leave(); f() }()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g group.Group
				for i := range 10 {
					join(&g, func() { <-time.After(time.Duration(i) * time.Second) })
				}
				start := time.Now()
				g.Close()
				g.Wait()
				require.Equal(t, 9*time.Second, time.Since(start))
			})
		})
	}
}

func TestWaitOfAnEmptyGroupReturnsAtOnce(t *testing.T) {
	var g group.Group
	g.Close()
	g.Wait()
	g.Wait()
}

func TestManyMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		var done atomic.Int64
		g.Go(func() { <-time.After(time.Second) })
		g.Close()
		for range 5 {
			go func() { g.Wait(); done.Add(1) }()
		}
		synctest.Wait()
		require.Zero(t, done.Load())
		<-time.After(time.Second)
		synctest.Wait()
		require.EqualValues(t, 5, done.Load())
	})
}

func TestACallThatIsCountedBeforeCloseMayCloseTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		require.True(t, g.Enter())
		g.Close()
		g.Leave()
		g.Wait()
	})
}

func TestAClosedGroupRefusesEnterAndGoOpenButNotGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		g.Close()
		require.False(t, g.Enter())
		require.False(t, g.GoOpen(func() { t.Error("GoOpen of a closed group has run its function") }))
		ran := false
		g.Go(func() { <-time.After(time.Second); ran = true })
		g.Wait()
		require.True(t, ran)
	})
}

func TestRefusedCallsDoNotHoldUpWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		g.Add()
		g.Close()
		var refused sync.WaitGroup
		for range 4 {
			refused.Go(func() {
				for range 100 {
					require.False(t, g.Enter())
					<-time.After(time.Microsecond)
				}
			})
		}
		go func() { <-time.After(50 * time.Microsecond); g.Leave() }()
		start := time.Now()
		g.Wait()
		require.Equal(t, 50*time.Microsecond, time.Since(start))
		refused.Wait()
	})
}

func TestEveryEnterBeforeCloseIsWaitedFor(t *testing.T) {
	for range 50 {
		var g group.Group
		var inside, entered atomic.Int64
		start := make(chan struct{})
		for range 4 {
			go func() {
				<-start
				for g.Enter() {
					entered.Add(1)
					inside.Add(1)
					inside.Add(-1)
					g.Leave()
				}
			}()
		}
		close(start)
		for entered.Load() == 0 {
			runtime.Gosched()
		}
		g.Close()
		g.Wait()
		require.Zero(t, inside.Load(), "a call was inside when Wait returned")
	}
}

func TestAGoroutineThatPanicsEndsNoProcess(t *testing.T) {
	for name, run := range map[string]func(g *group.Group, f func()){
		"Go":     func(g *group.Group, f func()) { g.Go(f) },
		"GoOpen": func(g *group.Group, f func()) { require.True(t, g.GoOpen(f)) },
	} {
		t.Run(name, func(t *testing.T) {
			var told []any
			for _, g := range []*group.Group{{}, {Panicked: func(reason any) { told = append(told, reason) }}} {
				run(g, func() { panic("of the driver") })
				run(g, runtime.Goexit)
				g.Close()
				g.Wait()
			}
			require.Equal(t, []any{"of the driver"}, told)
		})
	}
}
