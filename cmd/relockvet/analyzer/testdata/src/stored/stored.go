// Package stored has sections in variables that outlive them.
package stored

import (
	"context"

	"github.com/go-relock/relock"
)

func work(context.Context) error { return nil }

var (
	current  context.Context
	sections = map[string]context.Context{}
	server   struct{ base context.Context }
	leader   struct {
		lock    *relock.Lock
		section context.Context
	}
)

func inAVariable(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	current = section // want `current is a variable of the package and outlives the Unlock in this function; give the section's context to functions as an argument`
	return work(section)
}

func inAField(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	server.base = section // want `server.base is a variable of the package`
	sections["a"] = section
	return work(section)
}

func inAnElement(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	sections["a"] = section // want `sections\["a"\] is a variable of the package`
	return l.Unlock(section)
}

func directly(ctx context.Context, l *relock.Lock) (err error) {
	if current, err = l.Lock(ctx); err != nil { // want `current is a variable of the package`
		return err
	}
	defer l.Unlock(current)
	return work(current)
}

// Right.

func lead(ctx context.Context) (err error) {
	leader.section, err = leader.lock.Lock(ctx)
	return err
}

func resign() error { return leader.lock.Unlock(leader.section) }

func takenOut(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	current = section
	defer func() { current = nil }()
	return work(section)
}

type worker struct{ base context.Context }

func (w *worker) run(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	w.base = section
	return w.loop()
}

func (w *worker) loop() error { return work(w.base) }
