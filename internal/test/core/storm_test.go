package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// Do holders exclude each other at random faults in fake time?

// believers knows who believes to have which lock, and notices when two do.
type believers struct {
	mu      sync.Mutex
	in      map[*belief]bool
	entries int
	faults  []string
}

type belief struct {
	lock    *relock.Lock
	section context.Context
	last    int64 // token
}

func (b *belief) holds() bool { return b.section.Err() == nil && b.lock.Remaining(b.section) > 0 }

func (g *believers) enter(l *relock.Lock, section context.Context) *belief {
	b := &belief{lock: l, section: section}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entries++
	for other := range g.in {
		if other.lock.Name() == l.Name() && other.holds() && b.holds() {
			g.faults = append(g.faults, fmt.Sprintf("%s: two believe, the old one for another %s", l.Name(), l.Remaining(other.section)))
		}
	}
	g.in[b] = true
	return b
}

func (g *believers) leave(b *belief) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.in, b)
}

// weather breaks a link in random ways, until stop is closed.
func weather(p *stage.Tape, ttl time.Duration, stop <-chan struct{}) {
	commands := []stage.Command{stage.CmdTry, stage.CmdWait, stage.CmdEnter, stage.CmdRelease, stage.CmdRenew, stage.CmdForget, stage.CmdToken}
	for {
		some := []stage.Command{commands[rand.IntN(len(commands))], commands[rand.IntN(len(commands))]}
		var f *stage.Fault
		switch rand.IntN(12) {
		case 0:
			f = p.Cut()
		case 1:
			f = p.On(stage.LoseAnswer(store.Unavailable(stage.ErrBroken)), some...)
		case 2:
			f = p.On(stage.Refuse(store.Unavailable(stage.ErrBroken)), some...)
		case 3:
			f = p.On(stage.SendTwice, some...)
		case 4:
			f = p.On(stage.Delay(rand.N(ttl/2), rand.N(ttl/2)), some...)
		case 5:
			f = p.On(stage.Delay(rand.N(2*ttl), rand.N(2*ttl)), some...)
		case 6:
			f = p.Once(stage.Mute, some...)
		case 7:
			f = p.On(stage.SendTwice) // fine weather, nearly
			<-time.After(2 * ttl)
		default:
			f = p.On(stage.Delay(rand.N(time.Millisecond), rand.N(time.Millisecond)))
			p.Keep(some...)
		}
		select {
		case <-stop:
			f.End()
			return
		case <-time.After(rand.N(ttl)):
		}
		f.End()
		if rand.IntN(2) == 0 {
			p.Replay()
		}
	}
}

// work is one section of a random kind.
func work(ctx context.Context, g *believers, l *relock.Lock, ttl time.Duration, fixed bool) error {
	ctx, cancel := context.WithTimeout(ctx, rand.N(40*ttl))
	defer cancel()
	var section context.Context
	var err error
	switch rand.IntN(3) {
	case 0:
		section, err = l.Lock(ctx)
	case 1:
		section, err = l.TryLockFor(ctx, rand.N(8*ttl))
	default:
		section, err = l.TryLock(ctx)
	}
	if err != nil {
		return nil // the weather is bad
	}
	b := g.enter(l, section)
	defer g.leave(b)
	for range rand.IntN(4) {
		select {
		case <-section.Done():
		case <-time.After(rand.N(ttl)):
		}
		switch rand.IntN(4) {
		case 0:
			if inner, err := l.Lock(section); err == nil {
				if n := l.Count(inner); n < 2 && l.Held(inner) {
					return fmt.Errorf("an inner section counts %d", n)
				}
				_ = l.Unlock(inner)
			}
		case 1:
			token, err := l.Token(section)
			if err == nil && b.last != 0 && token != b.last {
				return fmt.Errorf("token %d after %d", token, b.last)
			}
			if err == nil {
				b.last = token
			}
		case 2:
			if fixed {
				_ = l.Extend(section, ttl/2+ttl)
			}
		}
	}
	if rand.IntN(10) == 0 {
		cancel()
		<-time.After(rand.N(2 * ttl)) // abandoned
	}
	_ = l.Unlock(section)
	return nil
}

func TestNoTwoHoldersBelieveWhateverTheWeather(t *testing.T) {
	const ttl = 200 * time.Millisecond
	for name, kinds := range map[string][][]relock.Option{
		"plain":         {nil, nil, nil},
		"local pass":    {{relock.WithLocalPass(0, 0)}, {relock.WithLocalPass(3, 20*time.Millisecond)}, {relock.WithLocalPass(1000, time.Second)}},
		"local reentry": {{relock.WithLocalReentry()}, {relock.WithLocalReentry(), relock.WithLocalPass(0, 0)}},
		"limits":        {{relock.WithMaxHold(ttl)}, {relock.WithMaxHold(5 * ttl / 2)}, {relock.WithMaxHold(3 * ttl), relock.WithLocalPass(0, 0)}},
		"fixed leases":  {{relock.WithFixedLease(ttl)}, {relock.WithFixedLease(ttl)}, {relock.WithFixedLease(2 * ttl)}},
		"all kinds": {
			nil, {relock.WithLocalPass(0, 0)}, {relock.WithLocalReentry()}, {relock.WithMaxHold(5 * ttl / 2)}, {relock.WithFixedLease(ttl)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				g := believers{in: map[*belief]bool{}}
				stop := make(chan struct{})
				var working, raging sync.WaitGroup
				var tapes []*stage.Tape
				var r stage.Recorder
				hooks := relock.WithHooks(event.Hooks{
					AcquireFinished: r.Hooks().AcquireFinished, Released: r.Hooks().Released, Lost: r.Hooks().Lost,
				})
				for i, options := range kinds {
					m, p := w.NewTape(append([]relock.Option{relock.WithTTL(ttl), hooks}, options...)...)
					fixed := name == "fixed leases" || name == "all kinds" && i == 4
					tapes = append(tapes, p)
					raging.Go(func() { weather(p, ttl, stop) })
					for j := range 4 {
						l := m.NewLock([]string{"a", "b"}[j%2])
						working.Go(func() {
							for range 120 {
								if err := work(t.Context(), &g, l, ttl, fixed); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				working.Wait()
				close(stop)
				raging.Wait()
				for _, p := range tapes {
					p.Calm()
				}
				require.Empty(t, g.faults)
				require.Greater(t, g.entries, 50)
				t.Log(g.entries, "sections")
				stage.Pass(2 * ttl)
				w.RequireFree("a", "b")
				requireOneEndEach(t, &r, g.entries)
				for range 3 { // and everything is as before
					section := w.Enter(t.Context(), w.NewClient().NewLock("a"))
					stage.Pass(time.Second)
					require.NoError(t, section.Err())
					w.Store.Lose("a")
				}
				stage.Pass(2 * time.Minute)
				require.Zero(t, stage.Goroutines("(*cleanup)"))
			})
		})
	}
}

// requireOneEndEach fails unless each hold that was entered has exactly one end.
func requireOneEndEach(t *testing.T, r *stage.Recorder, holds int) {
	t.Helper()
	entered, over := map[relock.Holder]int{}, map[relock.Holder]int{}
	for _, e := range r.All() {
		switch e := e.(type) {
		case event.AcquireFinished:
			if e.Err == nil && !e.Reentrant {
				entered[e.Holder]++
			}
		case event.Released:
			over[e.Holder]++
		case event.Lost:
			over[e.Holder]++
		}
	}
	require.Len(t, entered, holds)
	require.Equal(t, entered, over)
}

func TestCountIsRightSoonAfterTheWeather(t *testing.T) {
	for name, options := range map[string][]relock.Option{"renewed": nil, "fixed": {relock.WithFixedLease(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				const ttl = time.Minute
				m, p := w.NewTape(append([]relock.Option{relock.WithTTL(ttl)}, options...)...)
				l := m.NewLock("a")
				survived := 0
				for range 30 {
					outer := w.Enter(t.Context(), l)
					stop := make(chan struct{})
					var working, raging sync.WaitGroup
					raging.Go(func() { weather(p, time.Second, stop) })
					for range 3 {
						working.Go(func() {
							for range 20 {
								ctx, cancel := context.WithTimeout(outer, rand.N(time.Second))
								if inner, err := l.Lock(ctx); err == nil {
									<-time.After(rand.N(100 * time.Millisecond))
									_ = l.Unlock(inner)
								}
								cancel()
							}
						})
					}
					working.Wait()
					close(stop)
					raging.Wait()
					p.Calm()
					stage.Pass(ttl / 3)
					if name == "fixed" {
						// A late command comes when nothing is renewed. The next entry or exit sets
						// the count right.
						require.NoError(t, l.Unlock(w.Enter(outer, l)))
					}
					if l.Held(outer) {
						survived++
						require.Equal(t, 1, l.Count(outer))
						w.RequireCount("a", 1)
					}
					_ = l.Unlock(outer)
					stage.Pass(ttl)
					w.RequireFree("a")
				}
				require.Greater(t, survived, 10)
			})
		})
	}
}
