package relocksql_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
)

// This chapter asks what a store believes of a database that says yes, and does not do it.

// run runs statements, one after another.
func (d *database) run(t testing.TB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := d.db.ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

const (
	noEffect = "is there, and cannot be read or written"
	bypass   = "a role with BYPASSRLS"
)

// policed returns a store of a role with all rights, to whom the policies apply.
func policed(t *testing.T, d *database, policies ...string) *relocksql.Store {
	t.Helper()
	role := "app" + strings.ToLower(rand.Text())
	d.run(t, "CREATE ROLE "+role+" LOGIN", "GRANT ALL ON relock_locks, relock_holds TO "+role,
		"ALTER TABLE relock_locks ENABLE ROW LEVEL SECURITY", "ALTER TABLE relock_holds ENABLE ROW LEVEL SECURITY")
	d.run(t, policies...)
	s, err := relocksql.New(d.open(t, strings.Replace(d.source, "postgres@", role+"@", 1)), d.dialect)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

const (
	allLocks = "CREATE POLICY p ON relock_locks USING (true) WITH CHECK (true)"
	allHolds = "CREATE POLICY q ON relock_holds USING (true) WITH CHECK (true)"
	newHolds = "CREATE POLICY q ON relock_holds FOR INSERT WITH CHECK (true)"
	seeHolds = "CREATE POLICY r ON relock_holds FOR SELECT USING (true)"
	setHolds = "CREATE POLICY s ON relock_holds FOR UPDATE USING (true)"
)

func TestNobodyIsInWhoseRowAPolicyHides(t *testing.T) {
	for name, policies := range map[string][]string{
		"no policy":                {},
		"no policy for locks":      {allHolds},
		"new locks only":           {"CREATE POLICY p ON relock_locks FOR INSERT WITH CHECK (true)", allHolds},
		"no policy for holds":      {allLocks},
		"new holds only":           {allLocks, newHolds},
		"holds are seen, not new":  {allLocks, seeHolds},
		"only holds of a color":    {allLocks, newHolds, "CREATE POLICY r ON relock_holds FOR SELECT USING (inbox = 'red')"},
		"holds change, are unseen": {allLocks, newHolds, setHolds},
	} {
		t.Run(name, func(t *testing.T) {
			d := postgres(t, false)
			s := policed(t, d, policies...)
			require.ErrorContains(t, s.CheckServer(t.Context(), claim(time.Minute)), "row_security_active")
			_, err := s.Try(t.Context(), claim(time.Minute))
			require.ErrorContains(t, err, bypass)
			require.NotErrorIs(t, err, store.ErrUnavailable)
			require.NotErrorIs(t, err, store.ErrUnsure)
			_, err = s.Wait(t.Context(), claim(time.Minute), func(store.Progress) {})
			require.ErrorContains(t, err, bypass)
			require.Zero(t, d.alive(t))
		})
	}
}

// A role reads its rows, and cannot write or delete them.
func TestARowThatAPolicyKeepsIsAnErrorAndNoSilence(t *testing.T) {
	for name, policies := range map[string][]string{
		"no change and no end": {allLocks, newHolds, seeHolds},
		"no end":               {allLocks, newHolds, seeHolds, setHolds},
	} {
		t.Run(name, func(t *testing.T) {
			d := postgres(t, false)
			s := policed(t, d, policies...)
			require.ErrorContains(t, s.CheckServer(t.Context(), claim(time.Minute)), bypass)
			l := holds.Take(t, s, claim(time.Second))
			err := s.Release(t.Context(), l)
			require.ErrorContains(t, err, noEffect)
			require.ErrorContains(t, err, bypass)
			require.Error(t, errors.Join(s.Forget(t.Context(), []store.Claim{l.Claim})...))
			<-time.After(time.Until(l.Sent.Add(2 * time.Second))) // the lease is over
			_, err = s.Wait(t.Context(), claim(time.Minute), func(store.Progress) {})
			require.ErrorContains(t, err, bypass)
		})
	}
}

// Policies that let a role do everything change nothing, but a check cannot know that they hide no
// row of others, and LockTx neither.
func TestLocksWorkUnderPoliciesThatAllowEverything(t *testing.T) {
	d := postgres(t, false)
	s := policed(t, d, allLocks, allHolds)
	l := holds.Take(t, s, claim(time.Minute))
	var busy *store.Busy
	_, err := s.Try(t.Context(), claim(time.Minute))
	require.ErrorAs(t, err, &busy)
	w := holds.Wait(t, s, claim(time.Minute))
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, s.Release(t.Context(), w.Get(t)))
	require.ErrorContains(t, s.CheckServer(t.Context(), claim(time.Minute)), bypass)
	require.NoError(t, d.past(t).CheckServer(t.Context(), claim(time.Minute)), "the owner of the tables")
}

func TestLockTxRefusesPolicies(t *testing.T) {
	d := postgres(t, false)
	role := "app" + strings.ToLower(rand.Text())
	policed(t, d, allLocks, newHolds)
	d.run(t, "CREATE ROLE "+role, "GRANT ALL ON relock_locks, relock_holds TO "+role)
	s := d.past(t)
	l := holds.Take(t, s, claim(time.Minute))
	tx, err := d.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "SET LOCAL ROLE "+role)
	require.NoError(t, err)
	require.ErrorContains(t, s.LockTx(t.Context(), tx, l.Name), bypass)
	require.NoError(t, tx.Rollback())
	require.NoError(t, s.Release(t.Context(), l))
}

// swallow makes a database drop each statement of a kind on the rows of holds, without an error.
func (d *database) swallow(t testing.TB, what string) {
	t.Helper()
	if d.dialect == relocksql.SQLite {
		d.run(t, "CREATE TRIGGER swallow BEFORE "+what+" ON relock_holds BEGIN SELECT RAISE(IGNORE); END")
		return
	}
	d.run(t, "CREATE OR REPLACE FUNCTION swallow() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql",
		"CREATE TRIGGER swallow BEFORE "+what+" ON relock_holds FOR EACH ROW EXECUTE FUNCTION swallow()")
}

func TestAStatementWithoutAnEffectIsNoSuccess(t *testing.T) {
	for name, newDatabase := range map[string]func(t testing.TB) *database{
		"PostgreSQL": func(t testing.TB) *database { t.Helper(); return postgres(t, false) },
		"SQLite":     sqlite,
	} {
		for _, what := range []string{"INSERT", "UPDATE", "DELETE"} {
			t.Run(name+" "+what, func(t *testing.T) {
				d := newDatabase(t)
				s := d.past(t)
				l := holds.Take(t, s, claim(time.Minute))
				d.swallow(t, what)
				require.ErrorContains(t, s.CheckServer(t.Context(), claim(time.Minute)), noEffect)
				next := claim(time.Minute)
				next.Name = "next"
				switch what {
				case "INSERT":
					_, err := s.Try(t.Context(), next)
					require.ErrorContains(t, err, noEffect)
					_, err = s.Wait(t.Context(), next, func(store.Progress) {})
					require.ErrorContains(t, err, noEffect)
				case "UPDATE":
					require.ErrorIs(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: time.Minute, Count: 1}})[0], store.ErrGone)
					_, err := s.Try(t.Context(), l.Claim)
					require.ErrorContains(t, err, noEffect)
				case "DELETE":
					require.ErrorContains(t, s.Release(t.Context(), l), noEffect)
					require.ErrorContains(t, s.Forget(t.Context(), []store.Claim{l.Claim})[0], noEffect)
				}
			})
		}
	}
}

// Each new lease is over at once, so that nobody keeps anybody out.
func TestCheckServerFindsATableThatKeepsNobodyOut(t *testing.T) {
	onEach(t, func(d *rig) {
		statements := map[relocksql.Dialect][]string{
			relocksql.Postgres: {
				"CREATE FUNCTION at_once() RETURNS trigger AS 'BEGIN NEW.kept_until = 0; RETURN NEW; END' LANGUAGE plpgsql",
				"CREATE TRIGGER at_once BEFORE INSERT ON relock_holds FOR EACH ROW EXECUTE FUNCTION at_once()",
			},
			relocksql.MySQL: {"CREATE TRIGGER at_once BEFORE INSERT ON relock_holds FOR EACH ROW SET NEW.kept_until = 0"},
			relocksql.SQLite: {"CREATE TRIGGER at_once AFTER INSERT ON relock_holds BEGIN " +
				"UPDATE relock_holds SET kept_until = 0 WHERE name = NEW.name AND id = NEW.id; END"},
		}
		d.run(d, statements[d.dialect]...)
		require.ErrorContains(d, d.past(d).CheckServer(d.Context(), claim(time.Minute)), "a hold does not keep the next one out")
	})
}
