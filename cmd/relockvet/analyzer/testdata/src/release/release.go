// Package release has functions that unlock for other packages.
package release

import (
	"context"

	"github.com/go-relock/relock"
)

type Session struct {
	lock    *relock.Lock
	Section context.Context
}

func (s *Session) Close(ctx context.Context) error { return s.leave(ctx) }

func (s *Session) leave(ctx context.Context) error { return s.lock.Unlock(ctx) }

func Save(context.Context) error { return nil }
