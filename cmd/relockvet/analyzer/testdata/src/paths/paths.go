// Package paths has sections that some path does not unlock, and sections that every path does.
package paths

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/ticket"
	"release"
)

func work(context.Context) error { return nil }

func earlyReturn(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx) // want `section is not unlocked on the path to the return on line 23; write defer l.Unlock\(section\) after the check of the error, or use Do`
	if err != nil {
		return err
	}
	if err := work(section); err != nil {
		return err
	}
	return l.Unlock(section)
}

func sameError(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx) // want `not unlocked on the path to the return on line 34`
	if err != nil {
		return err
	}
	if err = work(section); err != nil {
		return err
	}
	return l.Unlock(section)
}

func never(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx) // want `not unlocked on the path`
	if err != nil {
		return err
	}
	return work(section)
}

func reader(ctx context.Context, rw *relock.RWLock) error {
	section, err := rw.RLock(ctx) // want `write defer rw.Unlock\(section\)`
	if err != nil {
		return err
	}
	return work(section)
}

func ignoresTheError(ctx context.Context, l *relock.Lock) {
	section, _ := l.Lock(ctx) // want `the error is dropped, so the work gets a context that has ended where l.Lock\(ctx\) fails, and nobody says why; write section, err := l.Lock\(ctx\), and check err`
	_ = work(section)
}

func nextRound(ctx context.Context, l *relock.Lock, n int) error {
	for range n {
		section, err := l.Lock(ctx) // want `section is not unlocked before the loop comes to this line again`
		if err != nil {
			return err
		}
		if work(section) != nil {
			continue
		}
		if err := l.Unlock(section); err != nil {
			return err
		}
	}
	return nil
}

func switches(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx) // want `not unlocked on the path to the return on line 85`
	switch {
	case errors.Is(err, relock.ErrLocked):
		return nil
	case err != nil:
		return err
	}
	if section.Err() != nil {
		return section.Err()
	}
	return l.Unlock(section)
}

func joined(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx) // want `not unlocked on the path to the return on line 93`
	if err != nil || section.Err() != nil {
		return context.Cause(section)
	}
	return l.Unlock(section)
}

func ofAnother(ctx context.Context, a, b *relock.Lock) error {
	outer, err := a.Lock(ctx) // want `outer is not unlocked`
	if err != nil {
		return err
	}
	inner, err := b.Lock(outer)
	if err != nil {
		_ = a.Unlock(outer)
		return err
	}
	return b.Unlock(inner)
}

func ofAnotherName(ctx context.Context, c *relock.Client) error {
	outer, err := c.NewLock("a").Lock(ctx) // want `outer is not unlocked`
	if err != nil {
		return err
	}
	inner, err := c.NewLock("b").Lock(outer)
	if err != nil {
		_ = c.NewLock("a").Unlock(outer)
		return err
	}
	limited, cancel := context.WithCancel(inner)
	defer cancel()
	return c.NewLock("b").Unlock(limited)
}

func outerOfTheSame(ctx context.Context, l *relock.Lock) error {
	outer, err := l.Lock(ctx) // want `outer is not unlocked`
	if err != nil {
		return err
	}
	inner, err := l.Lock(outer)
	if err != nil {
		_ = l.Unlock(outer)
		return err
	}
	return l.Unlock(inner)
}

func innerOfTheSame(ctx context.Context, l *relock.Lock) error {
	outer, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(outer)
	inner, err := l.Lock(outer) // want `inner is not unlocked`
	if err != nil {
		return err
	}
	return work(inner)
}

func secondTry(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx) // want `section is not unlocked`
	if err != nil {
		if section, err = l.Lock(ctx); err != nil { // want `section is not unlocked`
			return err
		}
	}
	return work(section)
}

func replaced(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx) // want `section is not unlocked`
	if err != nil {
		return err
	}
	section = ctx
	return work(section)
}

func throughAnInterface(ctx context.Context, l relock.Locker, repo interface{ Save(context.Context) error }) error {
	section, err := l.Lock(ctx) // want `not unlocked on the path to the return on line 177`
	if err != nil {
		return err
	}
	if err := repo.Save(section); err != nil {
		return err
	}
	return l.Unlock(section)
}

func anyLock[L relock.Locker](ctx context.Context, l L) error {
	section, err := l.Lock(ctx) // want `not unlocked`
	if err != nil {
		return err
	}
	return work(section)
}

func otherPackage(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx) // want `not unlocked`
	if err != nil {
		return err
	}
	return release.Save(section)
}

func inALiteral(l *relock.Lock) func(context.Context) error {
	return func(ctx context.Context) error {
		section, err := l.Lock(ctx) // want `not unlocked`
		if err != nil {
			return err
		}
		return work(section)
	}
}

func forgotten(ctx context.Context, l *relock.Lock, valid bool) error {
	section, err := l.Lock(ctx) // want `not unlocked`
	if err != nil {
		return err
	}
	if !valid {
		_ = l.Unlock(section)
		return errors.New("not valid")
	}
	if err := work(section); err != nil {
		return err
	}
	return l.Unlock(section)
}

func byName(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx) // want `not unlocked`
	if err != nil {
		return err
	}
	return workOn(section, l.Name())
}

func workOn(context.Context, string) error { return nil }

// Right.

func deferred(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	if err := work(section); err != nil {
		return err
	}
	return work(section)
}

func deferredLiteral(ctx context.Context, l *relock.Lock) (err error) {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Unlock(section)) }()
	return work(section)
}

func deferredBefore(ctx context.Context, l *relock.Lock) error {
	var section context.Context
	defer func() {
		if section != nil {
			_ = l.Unlock(section)
		}
	}()
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return work(section)
}

func isNil(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx)
	if err == nil {
		defer l.Unlock(section)
	}
	return work(ctx)
}

func bothBranches(ctx context.Context, l *relock.Lock) error {
	if section, err := l.TryLock(ctx); err == nil {
		return errors.Join(work(section), l.Unlock(section))
	} else if !errors.Is(err, relock.ErrLocked) {
		return err
	}
	return nil
}

func sometimes(ctx context.Context, l *relock.Lock, alone bool) error {
	section := ctx
	if alone {
		var err error
		if section, err = l.Lock(ctx); err != nil {
			return err
		}
	}
	err := work(section)
	if alone {
		err = errors.Join(err, l.Unlock(section))
	}
	return err
}

func sometimesAndReturns(ctx context.Context, l *relock.Lock, alone bool) (err error) {
	section := ctx
	if alone {
		if section, err = l.Lock(ctx); err != nil {
			return err
		}
	}
	if alone {
		return errors.Join(work(section), l.Unlock(section))
	}
	return work(section)
}

func flagThatReturns(ctx context.Context, l *relock.Lock, n int) (err error) {
	section, locked := ctx, false
	if n > 3 {
		if section, err = l.Lock(ctx); err != nil {
			return err
		}
		locked = true
	}
	if locked {
		return errors.Join(work(section), l.Unlock(section))
	}
	return work(section)
}

func twoConditions(ctx context.Context, l *relock.Lock, n int) error {
	section, err := l.TryLock(ctx)
	if err != nil && n > 3 {
		return errors.New("busy for the fourth time")
	}
	if !(err == nil || n > 3) {
		return errors.New("busy")
	}
	return l.Unlock(section)
}

func flag(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx)
	locked := err == nil
	err = work(section)
	if locked {
		err = errors.Join(err, l.Unlock(section))
	}
	return err
}

func flagAfterTheCheck(ctx context.Context, l *relock.Lock, n int) error {
	open := false
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	open = true
	if n > 3 {
		_ = l.Unlock(section)
		open = false
	}
	if open {
		return l.Unlock(section)
	}
	return nil
}

func ifHeld(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	err = work(section)
	if l.Held(section) {
		err = errors.Join(err, l.Unlock(section))
	}
	return err
}

func untilTaken(ctx context.Context, l *relock.Lock, n int) error {
	var section context.Context
	var err error
	for range n {
		if section, err = l.TryLock(ctx); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	return work(section)
}

func untilFree(ctx context.Context, l *relock.Lock) error {
	for {
		section, err := l.TryLock(ctx)
		if errors.Is(err, relock.ErrLocked) {
			continue
		}
		if err != nil {
			return err
		}
		err = work(section)
		_ = l.Unlock(section)
		return err
	}
}

func wrapped(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	err = errors.Join(err)
	if err != nil {
		return err
	}
	return l.Unlock(section)
}

func atLast(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx)
	if err != nil {
		if section, err = l.Lock(ctx); err != nil {
			return err
		}
	}
	defer l.Unlock(section)
	return work(section)
}

func derived(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithCancel(section)
	defer cancel()
	return l.Unlock(limited)
}

func throughTheInner(ctx context.Context, a, b *relock.Lock) error {
	outer, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	inner, err := b.Lock(outer)
	if err != nil {
		return errors.Join(err, a.Unlock(outer))
	}
	return errors.Join(b.Unlock(inner), a.Unlock(inner))
}

func otherName(ctx context.Context, c *relock.Client, l *relock.Lock) error {
	mine := l
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return mine.Unlock(section)
}

func oneVariable(ctx context.Context, locks []*relock.Lock) error {
	for _, l := range locks {
		var err error
		if ctx, err = l.Lock(ctx); err != nil {
			return err
		}
		defer l.Unlock(ctx)
	}
	return work(ctx)
}

func modes(ctx context.Context, rw *relock.RWLock) error {
	section, err := rw.RLock(ctx)
	if err != nil {
		return err
	}
	return rw.RLocker().Unlock(section)
}

func fatal(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if err := work(section); err != nil {
		log.Fatal(err)
	}
	if section.Err() != nil {
		os.Exit(1)
	}
	return l.Unlock(section)
}

// Handed on.

type guard struct {
	lock    *relock.Lock
	section context.Context
}

func (g *guard) close() { _ = g.lock.Unlock(g.section) }

func (g *guard) keep(section context.Context) { g.section = section }

func toMethod(ctx context.Context, g *guard) error {
	section, err := g.lock.Lock(ctx)
	if err != nil {
		return err
	}
	g.keep(section)
	return nil
}

func returned(ctx context.Context, l *relock.Lock) (*guard, error) {
	section, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return &guard{l, section}, nil
}

func returnedDerived(ctx context.Context, l *relock.Lock) (context.Context, error) {
	section, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return context.WithValue(section, guard{}, 1), nil
}

func named(ctx context.Context, l *relock.Lock) (section context.Context, err error) {
	section, err = l.Lock(ctx)
	return
}

func kept(ctx context.Context, g *guard) (err error) {
	g.section, err = g.lock.Lock(ctx)
	return err
}

func keptLater(ctx context.Context, g *guard) error {
	section, err := g.lock.Lock(ctx)
	if err != nil {
		return err
	}
	g.section = section
	return nil
}

func collected(ctx context.Context, locks []*relock.Lock) (sections []context.Context, err error) {
	for _, l := range locks {
		section, err := l.Lock(ctx)
		if err != nil {
			return nil, err
		}
		sections = append(sections, section)
	}
	return sections, nil
}

func sent(ctx context.Context, l *relock.Lock, to chan<- context.Context) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	to <- section
	return nil
}

func toGoroutine(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	go func() {
		defer l.Unlock(section)
		_ = work(section)
	}()
	return nil
}

func toFunction(ctx context.Context, l *relock.Lock, now bool) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if now {
		return finish(section, l)
	}
	if s := new(release.Session); s.Section == nil {
		return s.Close(section)
	}
	return l.Unlock(section)
}

func finish(section context.Context, l relock.Locker) error { return l.Unlock(section) }

func newGuard(l *relock.Lock, section context.Context) *guard { return &guard{l, section} }

var guards []*guard

func toConstructor(ctx context.Context, l *relock.Lock, later bool) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if later {
		guards = append(guards, newGuard(l, section))
		return nil
	}
	return l.Unlock(section)
}

func toLiteral(ctx context.Context, l *relock.Lock) error {
	leave := func(section context.Context) error { return l.Unlock(section) }
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if work(section) != nil {
		return leave(section)
	}
	return l.Unlock(section)
}

func toUnknown(ctx context.Context, l *relock.Lock, then func(context.Context) error) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return then(section)
}

// Tests.

func requireNoError(error) {}

type assertions struct{}

func (assertions) NoError(error)        {}
func (assertions) ErrorIs(error, error) {}

func inATest(ctx context.Context, l *relock.Lock, require assertions) {
	refused, err := l.TryLock(ctx)
	require.ErrorIs(err, relock.ErrLocked)
	_ = refused.Err()

	section, err := l.Lock(ctx) // want `not unlocked`
	require.NoError(err)
	_ = work(section)
}

func notUnderstood(ctx context.Context, l *relock.Lock) error {
	section, err := l.TryLock(ctx)
	if isBusy(err) {
		return nil
	}
	return l.Unlock(section)
}

func isBusy(err error) bool { return err != nil }

func borrowed(ctx context.Context, l *relock.Lock, t ticket.Ticket) error {
	section, err := ticket.Borrow(ctx, l, t) // want `write defer l.Unlock\(section\) after the check of the error$`
	if err != nil {
		return err
	}
	if err := work(section); err != nil {
		return err
	}
	return l.Unlock(section)
}

func handedOff(ctx context.Context, l *relock.Lock, t ticket.Ticket) (ticket.Ticket, error) {
	section, err := ticket.Accept(ctx, l, t) // want `defer l.Unlock\(section\)`
	if err != nil {
		return ticket.Ticket{}, err
	}
	if err := work(section); err != nil {
		return ticket.Ticket{}, err
	}
	return ticket.HandOff(section, l)
}
