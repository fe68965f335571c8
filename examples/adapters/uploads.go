package adapters

import (
	"context"
	"errors"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/go-relock/relock"
)

// page: tusd

// Uploads locks the uploads of tusd for all of its instances. Where another request wants an upload,
// tusd gives it up.
type Uploads struct{ Locks *relock.Client }

func (u Uploads) NewLock(id string) (handler.Lock, error) {
	return &upload{lock: u.Locks.NewLock("upload:" + id)}, nil
}

type upload struct {
	lock    *relock.Lock
	section context.Context
}

func (u *upload) Lock(ctx context.Context, requestUnlock func()) error {
	waiting, entered := context.WithCancel(ctx)
	defer entered()
	go func() { // a message may be lost
		for ; waiting.Err() == nil; wait(waiting, time.Second) {
			_ = u.lock.Ask(waiting)
		}
	}()
	section, err := u.lock.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx)) // ctx is for the wait only
	switch {
	case err != nil && ctx.Err() != nil:
		return handler.ErrLockTimeout
	case err != nil:
		return err
	}
	u.section = section
	wanted := u.lock.Wanted(section)
	go func() {
		select {
		case <-wanted:
			requestUnlock()
		case <-section.Done():
			if errors.Is(context.Cause(section), relock.ErrLockLost) {
				requestUnlock()
			}
		}
	}()
	return nil
}

func (u *upload) Unlock() error { return u.lock.Unlock(u.section) }

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// end
