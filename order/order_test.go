package order_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/order"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/ticket"
)

// Are orders found that could close a circle, and no others?

// world has a client whose orders are checked.
type world struct {
	*relock.Client
	t     *testing.T
	store *mem.Store
	hooks event.Hooks
	found []error
}

func newWorld(t *testing.T, checker *order.Checker) *world {
	t.Helper()
	w := &world{t: t, store: mem.New(), hooks: checker.Hooks()}
	checker.Report = func(err error) { w.found = append(w.found, err) }
	w.Client = w.use(relock.Open(w.store, relock.WithHooks(w.hooks)))
	return w
}

func (w *world) use(client *relock.Client, err error) *relock.Client {
	w.t.Helper()
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, client.Close()) })
	return client
}

// locks are locks in the order in which nest takes them.
func (w *world) nest(locks ...relock.Locker) {
	w.t.Helper()
	ctx := w.t.Context()
	for _, lock := range locks {
		section, err := lock.Lock(ctx)
		require.NoError(w.t, err)
		defer func() { require.NoError(w.t, lock.Unlock(section)) }()
		ctx = section
	}
}

func (w *world) named(names ...string) (locks []relock.Locker) {
	for _, name := range names {
		locks = append(locks, w.NewLock(name))
	}
	return locks
}

// circle returns the classes of the only circle.
func (w *world) circle() string {
	w.t.Helper()
	require.Len(w.t, w.found, 1)
	var circle *order.CircleError
	require.ErrorAs(w.t, w.found[0], &circle)
	var classes []string
	for _, s := range circle.Steps {
		require.Regexp(w.t, `^order/order_test\.go:\d+$`, s.Line)
		classes = append(classes, s.OuterClass)
	}
	return strings.Join(classes, " > ")
}

func TestTwoOrdersAreACircleThoughNobodyWaits(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	w.nest(w.named("order:1", "stock:5")...)
	require.Empty(t, w.found)
	w.nest(w.named("stock:7", "order:2")...)
	require.Equal(t, "stock > order", w.circle())
	require.Regexp(t, `could wait for each other in a circle; order/order_test\.go:\d+ takes "order:2" inside of "stock:7"; `+
		`order/order_test\.go:\d+ takes "stock:5" inside of "order:1"$`, w.found[0].Error())
	w.nest(w.named("stock:8", "order:3")...)
	require.Len(t, w.found, 1, "a pair is reported once")
}

func TestThreeOrdersAreACircle(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	w.nest(w.named("order:1", "stock:5")...)
	w.nest(w.named("stock:5", "shelf:1", "invoice:1")...)
	require.Empty(t, w.found)
	w.nest(w.named("invoice:1", "order:1")...)
	require.Equal(t, "invoice > order > stock", w.circle())
}

func TestTwoLocksOfOneClassInBothOrdersAreACircle(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	w.nest(w.named("account:9", "account:7")...)
	require.Empty(t, w.found)
	w.nest(relock.All(w.NewLock("account:3"), w.NewLock("account:4")))
	require.Equal(t, "account > account", w.circle())
}

func TestARuleForOneClassIsCheckedInTheFirstOrder(t *testing.T) {
	byNumber := func(outer, inner string) bool {
		return len(outer) < len(inner) || len(outer) == len(inner) && outer < inner
	}
	w := newWorld(t, &order.Checker{Less: byNumber})
	w.nest(w.named("account:7", "account:10")...)
	require.Empty(t, w.found)
	w.nest(w.named("account:10", "account:9")...)
	require.Equal(t, "account", w.circle())
}

func TestWhatCannotWaitIsNoCircle(t *testing.T) {
	for name, test := range map[string]func(w *world){
		"a call that enters again": func(w *world) {
			w.nest(w.named("order", "stock", "order")...)
		},
		"All in any order of its classes": func(w *world) {
			w.nest(relock.All(w.named("1:order", "2:stock")...))
			w.nest(relock.All(w.named("3:stock", "4:order")...))
		},
		"TryLock": func(w *world) {
			w.nest(w.named("order", "stock")...)
			section, err := w.NewLock("stock").Lock(w.t.Context())
			require.NoError(w.t, err)
			inner, err := w.NewLock("order").TryLock(section)
			require.NoError(w.t, err)
			require.NoError(w.t, w.NewLock("order").Unlock(inner))
			require.NoError(w.t, w.NewLock("stock").Unlock(section))
		},
		"readers": func(w *world) {
			a, b := w.NewRWLock("order").RLocker(), w.NewRWLock("stock").RLocker()
			w.nest(a, b)
			w.nest(b, a)
		},
		"TryLockFor and DoFor with a wait of 0": func(w *world) {
			w.nest(w.named("order", "stock")...)
			order := w.NewLock("order")
			free := func(context.Context) error { return nil }
			require.NoError(w.t, w.NewLock("stock").Do(w.t.Context(), func(ctx context.Context) error {
				section, err := order.TryLockFor(ctx, 0)
				return errors.Join(err, order.Unlock(section), order.DoFor(ctx, 0, free), relock.All(order, w.NewLock("shelf")).DoFor(ctx, 0, free))
			}))
		},
		"Borrow and Accept": func(w *world) {
			w.nest(w.named("order", "stock")...)
			order, other := w.NewLock("order"), w.use(relock.Open(w.store, relock.WithHooks(w.hooks)))
			section, err := order.Lock(w.t.Context())
			require.NoError(w.t, err)
			loan, err := ticket.Lend(section, order)
			require.NoError(w.t, err)
			end, err := ticket.ToResume(section, order)
			require.NoError(w.t, err)
			require.NoError(w.t, w.NewLock("stock").Do(w.t.Context(), func(ctx context.Context) error {
				borrowed, err := ticket.Borrow(ctx, other.NewLock("order"), loan)
				return errors.Join(err, other.NewLock("order").Unlock(borrowed))
			}))
			require.NoError(w.t, order.Unlock(section))
			require.NoError(w.t, w.NewLock("stock").Do(w.t.Context(), func(ctx context.Context) error {
				_, err := ticket.Accept(ctx, order, end)
				require.ErrorIs(w.t, err, relock.ErrLockLost)
				return nil
			}))
		},
		"readers of a lock that only TryLock writes": func(w *world) {
			a, b := w.NewRWLock("order"), w.NewRWLock("stock")
			for _, lock := range []*relock.RWLock{a, b} {
				section, err := lock.TryLock(w.t.Context())
				require.NoError(w.t, err)
				require.NoError(w.t, lock.Unlock(section))
			}
			w.nest(a.RLocker(), b.RLocker())
			w.nest(b.RLocker(), a.RLocker())
		},
		"readers of two locks of which one is written": func(w *world) {
			a, b := w.NewRWLock("order"), w.NewRWLock("stock")
			w.nest(a.RLocker(), b.RLocker())
			w.nest(b.RLocker(), a.RLocker())
			w.nest(b)
		},
		"a downgrade": func(w *world) {
			a := w.NewRWLock("order")
			w.nest(a.RLocker(), w.NewLock("stock"))
			w.nest(a, w.NewLock("stock"), a.RLocker())
		},
		"a call after Unlock": func(w *world) {
			w.nest(w.named("order", "stock")...)
			stock := w.NewLock("stock")
			section, err := stock.Lock(w.t.Context())
			require.NoError(w.t, err)
			require.NoError(w.t, stock.Unlock(section))
			inner, err := w.NewLock("order").Lock(context.WithoutCancel(section))
			require.NoError(w.t, err)
			require.NoError(w.t, w.NewLock("order").Unlock(inner))
		},
		"a call outside of all sections": func(w *world) {
			w.nest(w.named("order", "stock")...)
			require.NoError(w.t, w.NewLock("stock").Do(w.t.Context(), func(ctx context.Context) error {
				return w.NewLock("order").Do(relock.WithoutHolder(ctx), func(context.Context) error { return nil })
			}))
		},
		"a lock without a class": func(w *world) {
			w.nest(w.named("order", ":stock")...)
			w.nest(w.named(":stock", "order")...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &order.Checker{Class: func(name string) string {
				number, class, _ := strings.Cut(name, ":")
				if class != "" && number != "" {
					return class
				}
				return number
			}})
			test(w)
			require.Empty(t, w.found)
		})
	}
}

func TestAReaderAndAWriterAreACircle(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	a, b := w.NewRWLock("order"), w.NewRWLock("stock")
	w.nest(a.RLocker(), b)
	w.nest(b.RLocker(), a)
	require.Equal(t, "stock > order", w.circle())
}

func TestReadersWithWritersBetweenThemAreACircle(t *testing.T) {
	for name, take := range map[string]func(w *world, read, write func()){
		"readers first": func(_ *world, read, write func()) { read(); write() },
		"writers first": func(_ *world, read, write func()) { write(); read() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &order.Checker{})
			a, b := w.NewRWLock("order:1"), w.NewRWLock("stock:1")
			take(w, func() {
				w.nest(a.RLocker(), b.RLocker())
				w.nest(b.RLocker(), a.RLocker())
			}, func() {
				w.nest(w.NewRWLock("order:2"))
				w.nest(w.NewRWLock("stock:2"))
			})
			w.circle()
			require.Regexp(t, `takes "order:1" inside of "stock:1", behind the writer of order/order_test\.go:\d+`, w.found[0].Error())
			require.Regexp(t, `takes "stock:1" inside of "order:1", behind the writer of order/order_test\.go:\d+`, w.found[0].Error())
		})
	}
}

func TestReadersOfOneClassWithAWriterBetweenThemAreACircle(t *testing.T) {
	for name, less := range map[string]func(outer, inner string) bool{"in both orders": nil, "against Less": strings.HasPrefix} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &order.Checker{Less: less})
			a, b := w.NewRWLock("account:1"), w.NewRWLock("account:2")
			w.nest(a.RLocker(), b.RLocker())
			if less == nil {
				w.nest(b.RLocker(), a.RLocker())
			}
			require.Empty(t, w.found)
			w.nest(a)
			w.circle()
			w.nest(b)
			require.Len(t, w.found, 1)
		})
	}
}

func TestAnUpgradeCanWait(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	a := w.NewRWLock("order")
	w.nest(a.RLocker(), a)
	require.Empty(t, w.found)
	w.nest(a.RLocker(), w.NewLock("stock"), a)
	require.Equal(t, "stock > order", w.circle())
}

func TestOneNameInTwoClientsIsTwoLocks(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	other := w.use(relock.Open(mem.New(), relock.WithHooks(w.hooks)))
	w.nest(w.NewLock("order"), w.NewLock("stock"), other.NewLock("order"))
	require.Equal(t, "stock > order", w.circle(), "of the locks between")

	w = newWorld(t, &order.Checker{})
	other = w.use(relock.Open(mem.New(), relock.WithHooks(w.hooks)))
	w.nest(w.NewLock("order"), other.NewLock("order"))
	w.nest(w.NewLock("order"), other.NewLock("order"))
	require.Empty(t, w.found)
	w.nest(other.NewLock("order"), w.NewLock("order"))
	require.Equal(t, "order > order", w.circle())
}

func TestTwoNamesOfOneKeyAreOneLock(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	w.Client = w.use(relock.New(rdb, relock.WithHooks(w.hooks)))
	w.nest(w.named("x", "{x}")...)
	w.nest(w.named("{x}", "x")...)
	require.Empty(t, w.found)
	w.nest(w.named("stock", "x")...)
	w.nest(w.named("x", "stock")...)
	require.Equal(t, "x > stock", w.circle())
}

func TestAnOrderUnderTryLockIsSeenWhenACallCanWait(t *testing.T) {
	w := newWorld(t, &order.Checker{})
	stock, held := w.NewLock("stock"), w.NewLock("order")
	for range 2 {
		require.NoError(t, held.Do(t.Context(), func(ctx context.Context) error {
			section, err := stock.TryLock(ctx)
			return errors.Join(err, stock.Unlock(section))
		}))
	}
	w.nest(stock, held)
	require.Empty(t, w.found)
	w.nest(held, stock)
	require.Equal(t, "order > stock", w.circle())
}

func TestTooManyClassesAreReportedOnce(t *testing.T) {
	w := newWorld(t, &order.Checker{Class: func(name string) string { return name }})
	outer := w.NewLock("outer")
	require.NoError(t, outer.Do(t.Context(), func(ctx context.Context) error {
		for i := range order.MaxPairs + 2 {
			if err := w.NewLock(fmt.Sprint("inner-", i)).Do(ctx, func(context.Context) error { return nil }); err != nil {
				return err
			}
		}
		return nil
	}))
	require.Equal(t, []error{order.ErrFull}, w.found)
}

// TestAnOrderThatIsKnownCostsNothing counts the allocations of a nested section with and without a
// Checker: a look at the stack is one.
func TestAnOrderThatIsKnownCostsNothing(t *testing.T) {
	for name, enter := range map[string]func(l *relock.Lock, ctx context.Context) (context.Context, error){
		"Lock":    (*relock.Lock).Lock,
		"TryLock": (*relock.Lock).TryLock,
		"TryLockFor with a wait of 0": func(l *relock.Lock, ctx context.Context) (context.Context, error) {
			return l.TryLockFor(ctx, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(options ...relock.Option) float64 {
				client, err := relock.Open(mem.New(), options...)
				require.NoError(t, err)
				defer client.Close()
				outer, inner := client.NewLock("order:1"), client.NewLock("stock:1")
				section, err := outer.Lock(t.Context())
				require.NoError(t, err)
				defer outer.Unlock(section)
				return testing.AllocsPerRun(1000, func() {
					nested, err := enter(inner, section)
					if err == nil {
						err = inner.Unlock(nested)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			checker := order.Checker{Report: func(err error) { t.Error(err) }}
			require.InDelta(t, cost(), cost(relock.WithHooks(checker.Hooks())), 0.5)
		})
	}
}
