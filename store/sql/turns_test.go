package relocksql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
)

// steady is a database whose statements each take a time, and change a row. It has no other rows.
type steady struct {
	each time.Duration
	tap  func(query string) error // nil: no statement fails
}

func (d steady) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (steady) Driver() driver.Driver                          { return nil }
func (steady) Prepare(string) (driver.Stmt, error)            { return nil, errors.ErrUnsupported }
func (steady) Close() error                                   { return nil }
func (steady) Begin() (driver.Tx, error)                      { return nil, errors.ErrUnsupported }

func (d steady) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	select {
	case <-time.After(d.each):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d.tap != nil {
		return driver.RowsAffected(1), d.tap(query)
	}
	return driver.RowsAffected(1), nil
}

func (steady) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return noRows{}, nil
}

type noRows struct{}

func (noRows) Columns() []string         { return nil }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }

// 1,000 callers enter 10 sections of their client again and again. The sections, and 20 quiet holds,
// are renewed meanwhile.
func TestACrowdThatEntersAgainCostsNoRenewal(t *testing.T) {
	const each, attempt, crowded, quiet = 10 * time.Millisecond, time.Second, 10, 20
	for _, connections := range []int{2, 4, 10} {
		synctest.Test(t, func(t *testing.T) {
			db := sql.OpenDB(steady{each: each})
			db.SetMaxOpenConns(connections)
			s, err := relocksql.New(db, relocksql.Postgres)
			require.NoError(t, err)
			var renewals []store.Renewal
			for i := range crowded + quiet {
				a := claim(3 * attempt)
				a.Name = fmt.Sprint(i)
				renewals = append(renewals, store.Renewal{Lease: store.Lease{Claim: a, Sent: time.Now()}, TTL: a.TTL, Count: 1})
			}
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			for i := range 1000 {
				group.Go(func() {
					for ctx.Err() == nil {
						_, _ = s.Enter(ctx, renewals[i%crowded].Lease, 2)
					}
				})
			}
			for range 5 {
				<-time.After(attempt)
				begun := time.Now()
				require.NoError(t, errors.Join(s.Renew(ctx, renewals)...))
				// A quarter of the connections is enough, and each renewal waits for one statement before it.
				require.LessOrEqual(t, time.Since(begun), 2*each*time.Duration(len(renewals)), "by the fake clock")
			}
			cancel()
			group.Wait()
			require.NoError(t, errors.Join(s.Close(), db.Close()))
		})
	}
}

// Entries of many names, too, leave their turns to the releases.
func TestACrowdThatEntersAgainCostsNoRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := relocksql.NewTurns(10)
		var crowd sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 1000 {
			crowd.Go(func() {
				for ctx.Err() == nil {
					if leave, err := turns.Enter(ctx, fmt.Sprint(i)); err == nil {
						<-time.After(time.Millisecond)
						leave()
					}
				}
			})
		}
		<-time.After(time.Second)
		begun := time.Now()
		leave, err := turns.Release(ctx, "other")
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(begun), 2*time.Millisecond, "by the fake clock")
		leave()
		cancel()
		crowd.Wait()
	})
}

// Many callers of one name wait for their turns for longer than an attempt lasts.
func TestCallersKeepTheirPlacesInALongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, attempt, callers = 10 * time.Millisecond, 500 * time.Millisecond, 400
		db := sql.OpenDB(steady{each: each})
		db.SetMaxOpenConns(2)
		s, err := relocksql.New(db, relocksql.Postgres)
		require.NoError(t, err)
		l := store.Lease{Claim: claim(time.Second), Sent: time.Now()}
		l.Report = reporter(func(err error) {
			if errors.Is(err, context.DeadlineExceeded) {
				t.Error("a call gives its turn up:", err)
			}
		})
		begun := time.Now()
		var group sync.WaitGroup
		for range callers {
			group.Go(func() {
				if _, err := s.Enter(t.Context(), l, 2); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		require.Greater(t, time.Since(begun), 2*attempt, "by the fake clock")
		require.Equal(t, callers*each, time.Since(begun), "no time between the turns")
		require.NoError(t, errors.Join(s.Close(), db.Close()))
	})
}

// reporter is told why a call takes long.
type reporter func(err error)

func (r reporter) Retrying(_ string, _ int, _ time.Time, err error) { r(err) }
