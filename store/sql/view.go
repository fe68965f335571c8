package relocksql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/go-relock/relock/store"
)

const selectAll = `SELECT ` + columns + ` FROM relock_holds WHERE name = ? AND kept_until > {now} ORDER BY kept_until{all}`

const selectNames = `SELECT name, kind FROM relock_locks
	WHERE name IN (SELECT name FROM relock_holds WHERE kept_until > {now}){all}`

// List implements [store.Listing].
func (s *Store) List(ctx context.Context, a store.Claim) (found map[string]store.Kind, err error) {
	err = s.run(ctx, command{asking, store.Claim{Report: a.Report}, fewTries, listLimit}, func(ctx context.Context) error {
		found = make(map[string]store.Kind)
		return s.transaction(ctx, func(t *tx) error {
			return t.query(selectNames, func(rows *sql.Rows) error {
				var name []byte
				var kind store.Kind
				err := rows.Scan(&name, &kind)
				found[string(name)] = kind
				return err
			})
		})
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Look implements [store.Store].
func (s *Store) Look(ctx context.Context, a store.Claim) (state store.State, err error) {
	err = s.look(ctx, a, func(k *lock) (err error) {
		state = k.state()
		state.Token, err = k.token()
		return err
	})
	return state, err
}

// Waiters implements [store.Queueing]. The tables keep the order of waiters, and not their times.
func (s *Store) Waiters(ctx context.Context, a store.Claim, most int) (all []store.Waiter, err error) {
	err = s.look(ctx, a, func(k *lock) error {
		slices.SortFunc(k.line, func(a, b row) int { return cmp.Compare(a.arrival, b.arrival) })
		all = nil
		for _, r := range k.line[:min(most, len(k.line))] {
			all = append(all, store.Waiter{ID: r.id, Limit: r.limit})
		}
		return nil
	})
	return all, err
}

// look reads all of a lock, and shows it if there is something. Show may be called again.
func (s *Store) look(ctx context.Context, a store.Claim, show func(k *lock) error) error {
	return s.run(ctx, command{asking, a, fewTries, attemptLimit(a.TTL)}, func(ctx context.Context) error {
		return s.transaction(ctx, func(t *tx) error {
			k := &lock{tx: t, name: a.Name}
			if err := k.read(); err != nil || !k.exists {
				return err
			}
			err := k.query(selectAll, func(rows *sql.Rows) error {
				r, err := scanRow(rows)
				if r.state == waiting {
					k.line = append(k.line, r)
				} else {
					k.in = append(k.in, r)
				}
				return err
			}, []byte(a.Name))
			if err != nil {
				return err
			}
			if err := k.is(a.Kind); err != nil {
				return err
			}
			return show(k)
		})
	})
}

// state returns the state of the lock.
func (k *lock) state() store.State {
	state := store.State{Waiters: len(k.line)}
	for i, r := range k.in {
		if i == 0 {
			state.Owner, state.Count, state.TTL, state.Limit = r.id, r.count, r.left, r.limit
			continue
		}
		state.Others = append(state.Others, store.Held{ID: r.id, TTL: r.left, Limit: r.limit})
	}
	return state
}

// Break implements [store.Store]. In PostgreSQL with a Listener, Break tells the client of the
// hold.
func (s *Store) Break(ctx context.Context, a store.Claim) error {
	return s.on(ctx, fewTries, a, func(k *lock) error {
		if !k.has() {
			return store.ErrGone
		}
		if err := k.tell("gone", a); err != nil {
			return err
		}
		return k.remove()
	})
}
