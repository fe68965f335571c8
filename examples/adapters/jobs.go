package adapters

import (
	"context"
	"errors"

	"github.com/go-co-op/gocron/v2"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
)

// page: gocron

// Elector has the jobs of gocron run where this process leads: gocron.WithDistributedElector.
type Elector struct{ Candidate *leader.Candidacy }

func (e Elector) IsLeader(context.Context) error {
	if e.Candidate.IsLeader() {
		return nil
	}
	return errors.New("another process leads")
}

// Jobs has one process at a time run a job of gocron: gocron.WithDistributedLocker. Once a period is
// another promise: once.Every.
type Jobs struct{ Locks *relock.Client }

func (j Jobs) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock := j.Locks.NewLock("job:" + key)
	section, err := lock.TryLock(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return job{lock, section}, nil
}

type job struct {
	lock    *relock.Lock
	section context.Context
}

func (j job) Unlock(context.Context) error { return j.lock.Unlock(j.section) }

// end
