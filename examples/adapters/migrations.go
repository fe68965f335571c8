package adapters

import (
	"context"
	"database/sql"

	"github.com/go-relock/relock"
)

// page: goose

// Migrations has one instance at a time run the migrations of goose: goose.WithLocker.
type Migrations struct {
	Of      *relock.Lock
	section context.Context
}

func (m *Migrations) Lock(ctx context.Context, _ *sql.DB) (err error) {
	m.section, err = m.Of.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx))
	return err
}

func (m *Migrations) Unlock(context.Context, *sql.DB) error { return m.Of.Unlock(m.section) }

// end
