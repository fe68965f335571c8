package explore_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/locktest/explore"
	"github.com/go-relock/relock/ticket"
)

// Do all verbs and layouts of relock fit into a program, right or wrong?

// script is a program of some processes. A piece of work takes a third of a lease.
type script struct {
	t *testing.T
	w *explore.World
}

const (
	ttl    = 3 * time.Second
	pieces = 3
)

func (s script) client(options ...relock.Option) *relock.Client {
	s.t.Helper()
	return s.w.Client(append(options, relock.WithTTL(ttl))...)
}

// redis is a client on a server in the bubble.
func (s script) redis(server *miniredis.Miniredis, options ...relock.Option) *relock.Client {
	s.t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Dialer:   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		Addr:     "127.0.0.1:6379", // nobody listens there
		PoolSize: 100, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	s.t.Cleanup(func() { _ = rdb.Close() })
	return s.w.Redis(rdb, append(options, relock.WithTTL(ttl))...)
}

func (s script) server() *miniredis.Miniredis {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	s.t.Cleanup(func() {
		server.Close()
		<-time.After(time.Minute) // go-redis goes on dialling for a while
	})
	return server
}

// check fails the test for an error of a run without an accident.
func (s script) check(err error) {
	s.t.Helper()
	if s.w.Accident == "" && err != nil {
		s.t.Error(err)
	}
}

// twice runs a process twice, the second one a moment later.
func (s script) twice(process func(n int)) {
	var all sync.WaitGroup
	for n := range 2 {
		all.Go(func() { process(n) })
		<-time.After(time.Millisecond)
	}
	all.Wait()
}

// work is some pieces of work in a section: with care, it ends with its context.
type work func(ctx context.Context, w *explore.World) error

func with(ctx context.Context, w *explore.World) error {
	for range pieces {
		select {
		case <-time.After(ttl / 3):
			w.Work(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func without(ctx context.Context, w *explore.World) error {
	for range pieces {
		<-time.After(ttl / 3)
		w.Work(ctx)
	}
	return nil
}

// shapes are programs around work, which are right if the work is.
var shapes = map[string]func(s script, do work){
	"one lock": func(s script, do work) {
		s.twice(func(int) {
			s.check(s.client().NewLock("a").Do(s.t.Context(), func(ctx context.Context) error { return do(ctx, s.w) }))
		})
	},
	"a context that does not end": func(s script, do work) {
		s.check(s.client().NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
			endless := relock.WithSection(context.Background(), ctx)
			for range 2 {
				if err := do(ctx, s.w); err != nil {
					return err
				}
				if ctx.Err() == nil {
					s.w.Work(endless)
				}
			}
			return nil
		}))
	},
	"two calls of one client": func(s script, do work) {
		c := s.client()
		s.twice(func(int) {
			s.check(c.NewLock("a").Do(s.t.Context(), func(ctx context.Context) error { return do(ctx, s.w) }))
		})
	},
	"a loan": func(s script, do work) {
		a, other := s.client().NewLock("a"), s.client().NewLock("a")
		s.check(a.Do(s.t.Context(), func(ctx context.Context) error {
			given, err := ticket.Lend(ctx, a)
			if err != nil {
				return err
			}
			borrowed, err := ticket.Borrow(s.t.Context(), other, given)
			if err != nil {
				return err
			}
			return errors.Join(do(borrowed, s.w), other.Unlock(borrowed), do(ctx, s.w))
		}))
	},
	"a hand-off": func(s script, do work) {
		a, other := s.client().NewLock("a"), s.client().NewLock("a")
		section, err := a.Lock(s.t.Context())
		if err != nil {
			s.check(err)
			return
		}
		err = do(section, s.w)
		given, handed := ticket.HandOff(section, a)
		if err = errors.Join(err, handed); err != nil {
			s.check(err)
			_ = a.Unlock(section)
			return
		}
		section, err = ticket.Accept(s.t.Context(), other, given)
		if err == nil {
			err = errors.Join(do(section, s.w), other.Unlock(section))
		}
		s.check(err)
	},
	"Redis": func(s script, do work) {
		server := s.server()
		s.twice(func(n int) {
			if c := s.redis(server); n == 0 {
				s.check(c.NewRWLock("a").RLocker().Do(s.t.Context(), func(ctx context.Context) error { return do(ctx, s.w) }))
			} else {
				s.check(c.NewRWLock("a").RLocker().Do(s.t.Context(), func(ctx context.Context) error {
					return c.NewSemaphore("b", 2).Do(ctx, func(ctx context.Context) error { return do(ctx, s.w) })
				}))
			}
		})
	},
	"Redisson's layout": func(s script, do work) {
		server := s.server()
		s.twice(func(int) {
			c := s.redis(server, relock.WithRedissonLayout())
			s.check(c.NewLock("a").Do(s.t.Context(), func(ctx context.Context) error { return do(ctx, s.w) }))
		})
	},
	"two prefixes": func(s script, do work) {
		server := s.server()
		one, two := s.redis(server, relock.WithPrefix("one:")), s.redis(server, relock.WithPrefix("two:"))
		s.check(one.NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
			return two.NewLock("a").Do(ctx, func(ctx context.Context) error { return do(ctx, s.w) })
		}))
	},
	"two servers": func(s script, do work) {
		one, two := s.redis(s.server()), s.redis(s.server())
		s.check(one.NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
			return two.NewLock("a").Do(ctx, func(ctx context.Context) error { return do(ctx, s.w) })
		}))
	},
	"a section of another client": func(s script, do work) {
		s.twice(func(int) {
			one, two := s.client(), s.client()
			s.check(one.NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
				return two.NewLock("b").Do(ctx, func(ctx context.Context) error { return do(ctx, s.w) })
			}))
		})
	},
	"an upgrade and a downgrade": func(s script, do work) {
		a := s.client().NewRWLock("a")
		s.check(a.RLocker().Do(s.t.Context(), func(ctx context.Context) error {
			return a.Do(ctx, func(ctx context.Context) error { return do(ctx, s.w) })
		}))
		writer, err := a.Lock(s.t.Context())
		if err != nil {
			s.check(err)
			return
		}
		reader, err := a.RLocker().Lock(writer)
		err = errors.Join(err, a.Unlock(writer))
		if err == nil {
			err = do(reader, s.w)
		}
		s.check(errors.Join(err, a.RLocker().Unlock(reader)))
	},
	"one lock after another": func(s script, do work) {
		a, b := s.client().NewLock("a"), s.client().NewLock("b")
		first, err := a.Lock(s.t.Context())
		if err != nil {
			s.check(err)
			return
		}
		second, err := b.Lock(context.WithoutCancel(first))
		s.check(a.Unlock(first))
		if err == nil {
			err = errors.Join(do(second, s.w), b.Unlock(second))
		}
		s.check(err)
	},
	"calls outside of a section": func(s script, do work) {
		c := s.client()
		s.check(c.NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
			return c.NewLock("b").Do(relock.WithoutHolder(context.WithoutCancel(ctx)), func(ctx context.Context) error { return do(ctx, s.w) })
		}))
	},
	"a leader": func(s script, do work) {
		s.twice(func(int) {
			ctx, resign := context.WithCancel(s.t.Context())
			err := leader.Run(ctx, s.client().NewLock("a"), func(ctx context.Context) error {
				defer resign()
				return do(ctx, s.w)
			})
			if !errors.Is(err, context.Canceled) {
				s.check(err)
			}
		})
	},
}

func TestARightProgramIsNotAccusedWhateverItsShape(t *testing.T) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			explore.RunUnfenced(t, func(t *testing.T, w *explore.World) {
				t.Helper()
				shape(script{t, w}, with)
			})
		})
	}
}

func TestAProgramThatIgnoresItsContextIsFoundWhateverItsShape(t *testing.T) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			cures, texts := explore.Findings(t, func(t *testing.T, w *explore.World) {
				t.Helper()
				shape(script{t, w}, without)
			})
			require.NotZero(t, cures[explore.Stop], "%q", texts)
			for _, text := range texts {
				require.Contains(t, text, "after", "nothing without an accident")
			}
		})
	}
}

// mistakes are wrong programs, and the cure that each has a finding with.
var mistakes = map[string]struct {
	cure    string
	program func(s script)
}{
	"work looks at the inner lock only": {explore.Stop, func(s script) {
		c := s.client()
		a, b := c.NewLock("a"), c.NewLock("b")
		s.check(a.Do(s.t.Context(), func(ctx context.Context) error {
			return b.Do(ctx, func(ctx context.Context) error { return whileHeld(ctx, s.w, b) })
		}))
	}},
	"work looks at the inner lock of another client only": {explore.Stop, func(s script) {
		a, b := s.client().NewLock("a"), s.client().NewLock("b")
		s.check(a.Do(s.t.Context(), func(ctx context.Context) error {
			return b.Do(ctx, func(ctx context.Context) error { return whileHeld(ctx, s.w, b) })
		}))
	}},
	"an inner section outlives the loss of the outer one": {explore.Stop, func(s script) {
		a, b := s.client().NewLock("a"), s.client().NewLock("b")
		s.check(a.Do(s.t.Context(), func(ctx context.Context) error {
			return b.Do(context.WithoutCancel(ctx), func(ctx context.Context) error { return with(ctx, s.w) })
		}))
	}},
	"Unlock is never reached": {explore.Unlock, func(s script) {
		section, err := s.client().NewLock("a").Lock(s.t.Context())
		s.check(err)
		if err == nil {
			s.check(with(section, s.w))
		}
	}},
	"Unlock is not reached on an error": {explore.Unlock, func(s script) {
		c := s.client()
		a, b := c.NewLock("a"), c.NewLock("b")
		section, err := a.Lock(s.t.Context())
		if err != nil {
			s.check(err)
			return
		}
		if err := b.DoFor(section, ttl/10, func(ctx context.Context) error { return with(ctx, s.w) }); err != nil {
			s.check(err)
			return
		}
		s.check(a.Unlock(section))
	}},
	"work after Unlock": {explore.Stop, func(s script) {
		a := s.client().NewLock("a")
		section, err := a.Lock(s.t.Context())
		s.check(errors.Join(err, a.Unlock(section)))
		s.w.Work(section)
	}},
	"work after Unlock of the outer section": {explore.Stop, func(s script) {
		c := s.client()
		a, b := c.NewLock("a"), c.NewLock("b")
		outer, err := a.Lock(s.t.Context())
		if err != nil {
			return
		}
		inner, err := b.Lock(outer)
		s.check(errors.Join(err, a.Unlock(outer)))
		s.w.Work(inner)
		s.check(b.Unlock(inner))
	}},
	"work after Unlock where another call of the client waits": {explore.Stop, func(s script) {
		c := s.client()
		s.twice(func(n int) {
			var late context.Context
			s.check(c.NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
				late = ctx
				return with(ctx, s.w)
			}))
			if n == 0 && late != nil {
				s.w.Work(late)
			}
		})
	}},
	"work of a loan that was returned": {explore.Stop, func(s script) {
		a, other := s.client().NewLock("a"), s.client().NewLock("a")
		s.check(a.Do(s.t.Context(), func(ctx context.Context) error {
			given, err := ticket.Lend(ctx, a)
			if err != nil {
				return err
			}
			borrowed, err := ticket.Borrow(s.t.Context(), other, given)
			if err == nil {
				err = other.Unlock(borrowed)
				s.w.Work(borrowed)
			}
			return err
		}))
	}},
	"work after HandOff": {explore.Stop, func(s script) {
		a := s.client().NewLock("a")
		section, err := a.Lock(s.t.Context())
		s.check(err)
		_, err = ticket.HandOff(section, a)
		s.check(err)
		s.w.Work(section)
	}},
	"work while somebody resumes the section": {explore.Taken, func(s script) {
		a, other := s.client().NewLock("a"), s.client().NewLock("a")
		section, err := a.Lock(s.t.Context())
		s.check(err)
		given, err := ticket.ToResume(section, a)
		s.check(err)
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() {
			resumed, err := ticket.Accept(s.t.Context(), other, given)
			s.check(err)
			_ = other.Unlock(resumed)
		})
		<-time.After(time.Millisecond)
		s.w.Work(section)
		_ = a.Unlock(section)
	}},
	"work after an error of Lock": {explore.Outside, func(s script) {
		s.twice(func(int) {
			a := s.client().NewLock("a")
			section, err := a.TryLock(s.t.Context())
			if err != nil {
				section = s.t.Context()
			}
			_ = with(section, s.w)
			if err == nil {
				_ = a.Unlock(section)
			}
		})
	}},
	"a goroutine goes on": {explore.Stop, func(s script) {
		var all sync.WaitGroup
		defer all.Wait()
		s.check(s.client().NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
			all.Go(func() { _ = without(ctx, s.w) })
			return nil
		}))
	}},
	"a look at the lock once": {explore.Stop, func(s script) {
		a := s.client().NewLock("a")
		s.check(a.Do(s.t.Context(), func(ctx context.Context) error {
			if a.Held(ctx) {
				_ = without(ctx, s.w)
			}
			return nil
		}))
	}},
	"the next chunk begins without a look": {explore.Stop, func(s script) {
		s.check(s.client().NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
			_ = with(ctx, s.w)
			s.w.Work(ctx)
			return nil
		}))
	}},
	"no fence": {explore.BadFence, func(s script) {
		s.twice(func(int) {
			s.check(s.client().NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
				for range pieces {
					<-time.After(ttl / 3)
					s.w.Step(ctx)
					s.w.Fenced(ctx)
				}
				return nil
			}))
		})
	}},
	"no work": {explore.Unmarked, func(s script) {
		s.check(s.client().NewLock("a").Do(s.t.Context(), func(ctx context.Context) error {
			s.w.Step(ctx)
			return nil
		}))
	}},
	"no step of the first run": {explore.Unexplored, func(s script) {
		if s.w.Accident != "" {
			return
		}
		s.check(s.client().NewLock("a").Do(s.t.Context(), func(ctx context.Context) error { return with(ctx, s.w) }))
	}},
}

func whileHeld(ctx context.Context, w *explore.World, l *relock.Lock) error {
	for range pieces {
		<-time.After(ttl / 3)
		if !l.Held(ctx) {
			return relock.ErrLockLost
		}
		w.Work(ctx)
	}
	return nil
}

func TestAWrongProgramIsFound(t *testing.T) {
	for name, m := range mistakes {
		t.Run(name, func(t *testing.T) {
			cures, texts := explore.Findings(t, func(t *testing.T, w *explore.World) {
				t.Helper()
				m.program(script{t, w})
			})
			require.NotZero(t, cures[m.cure], "%q", texts)
		})
	}
}

// TestSeveralHoldersWorkBehindAFence has work in turns: of a lender and its borrower, with one
// token, and of the holders of permits.
func TestSeveralHoldersWorkBehindAFence(t *testing.T) {
	turns := func(w *explore.World, first, second context.Context) {
		for range 2 {
			w.Fenced(first)
			w.Fenced(second)
		}
	}
	t.Run("permits", func(t *testing.T) {
		explore.Run(t, func(t *testing.T, w *explore.World) {
			t.Helper()
			s := script{t, w}
			one, two := s.client().NewSemaphore("a", 2), s.client().NewSemaphore("a", 2)
			s.check(one.Do(t.Context(), func(first context.Context) error {
				return two.Do(t.Context(), func(second context.Context) error { turns(w, first, second); return nil })
			}))
		})
	})
	t.Run("a loan", func(t *testing.T) {
		explore.Run(t, func(t *testing.T, w *explore.World) {
			t.Helper()
			s := script{t, w}
			one, two := s.client().NewLock("a"), s.client().NewLock("a")
			s.check(one.Do(t.Context(), func(first context.Context) error {
				given, err := ticket.Lend(first, one)
				if err != nil {
					return err
				}
				second, err := ticket.Borrow(t.Context(), two, given)
				if err == nil {
					turns(w, first, second)
					err = two.Unlock(second)
				}
				return err
			}))
		})
	})
}
