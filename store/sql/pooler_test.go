package relocksql_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
	"github.com/go-relock/relock/store/storetest"
)

// pooled returns a database of PostgreSQL behind PgBouncer in a mode, with so many connections to the
// server.
func pooled(t *testing.T, connections int, mode string) *database {
	t.Helper()
	d := postgres(t, true)
	u, err := url.Parse(d.through) // a proxy is between the pooler and the server
	require.NoError(t, err)
	u.Host = dbtest.StartPooler(t, u.Host, mode, connections).Addr()
	u.RawQuery += "&default_query_exec_mode=exec"
	d.through = u.String()
	db := d.open(t, d.through)
	require.Eventually(t, func() bool { return db.PingContext(t.Context()) == nil }, 20*time.Second, 10*time.Millisecond)
	return d
}

func TestStoreBehindAPoolerKeepsThePromisesOfStores(t *testing.T) {
	t.Parallel()
	d := pooled(t, 20, "transaction")
	d.leavesNothing(t)
	storetest.Run(t, storetest.Harness{
		TTL: time.Second,
		Start: func(t *testing.T) storetest.Server {
			t.Helper()
			return storetest.Server{
				New: func() store.Store {
					s, err := relocksql.New(d.open(t, d.through), d.dialect, relocksql.WithListener(pglisten.New(d.source)))
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, s.Close()) })
					return s
				},
				Lose: func(name string) { d.lose(t, name) },
			}
		},
		Around: d.around,
		Without: map[storetest.Promise]string{
			storetest.Acks:       "whether a COMMIT waits for replicas is a setting of the database",
			storetest.Several:    "each lock is a transaction of its own",
			storetest.WaitGraph:  "the store shows no waits",
			storetest.Lending:    "Redis and memory only",
			storetest.Announcing: "followers look by themselves",
		},
	})
}

// The pooler loses its server behind a COMMIT, and answers with an error of its own.
func TestACommitThatThePoolerLosesIsUnsure(t *testing.T) {
	d := pooled(t, 1, "transaction")
	s, err := relocksql.New(d.open(t, d.through), d.dialect)
	require.NoError(t, err)
	l := holds.Take(t, s, claim(time.Minute))
	d.loseCommit(t, nil)
	err = s.Release(t.Context(), l)
	require.ErrorIs(t, err, store.ErrGone)
	require.ErrorIs(t, err, store.ErrUnsure)
}
