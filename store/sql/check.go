package relocksql

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-relock/relock/store"
)

// errUndo ends the transaction of CheckServer without a trace.
var errUndo = errors.New("undo")

// checkLimit bounds CheckServer.
const checkLimit = 3 * time.Second

// CheckServer implements [store.Checker]. CheckServer takes two holds through their lives in a
// transaction, undoes the transaction, and sends a notification to the Listener. The error names
// the first thing that is missing: a table, a right, a writable server, a table that undoes, or a
// Listener that hears.
func (s *Store) CheckServer(ctx context.Context, a store.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	a.Name, a.ID = "relock-check-"+rand.Text(), store.ID("check:1:"+rand.Text())
	a.Kind, a.Limit, a.TTL, a.Delay = store.Mutex, 1, time.Minute, 0 // all of it is undone
	err := s.run(ctx, command{asking, a, fewTries, slow}, func(ctx context.Context) error {
		if err := s.oneDatabase(ctx, a.Name); err != nil {
			return err
		}
		undo := s.transaction(ctx, func(t *tx) error { return cmp.Or(t.live(a), errUndo) })
		if errors.Is(undo, errUndo) {
			return nil
		}
		return undo
	})
	if err != nil {
		return fmt.Errorf("take a lock in the tables of relocksql.Create: %w", err)
	}
	if state, err := s.Look(ctx, a); err != nil || state.Token > 0 {
		return cmp.Or(err, errors.New("the tables undo nothing: their engine must be InnoDB"))
	}
	if s.listener != nil {
		return s.checkListener(ctx)
	}
	return nil
}

// live takes two holds of a new name through their lives, with each statement that needs a right,
// and reads what each step has done: the second hold waits for the first one, the renewal is in the
// table, a release is a grant to the next hold, and nothing is left.
func (t *tx) live(a store.Claim) error {
	if err := t.seesAll(); err != nil {
		return err
	}
	second := a
	second.ID += "2"
	in := func(id store.ID) (*lock, error) {
		k, err := t.open(a.Name, id, false)
		if err == nil && (!k.has() || len(k.in) != 1) {
			err = fmt.Errorf("%w: the lock of a hold is not in the tables", errNoEffect)
		}
		return k, err
	}
	for _, claim := range []store.Claim{a, second} {
		k, err := t.open(claim.Name, claim.ID, true)
		if err != nil {
			return err
		}
		p, err := k.claim(claim, ways{join: true})
		if err == nil && (p.arrival > 0) != (claim.ID == second.ID) {
			err = fmt.Errorf("%w: a hold does not keep the next one out", errNoEffect)
		}
		if err != nil {
			return err
		}
	}
	const count = 2
	if err := t.change(renewHold, toMicros(a.TTL), count, []byte(a.Name), []byte(a.ID)); err != nil {
		return err
	}
	if k, err := in(a.ID); err != nil || k.own.count != count {
		return cmp.Or(err, fmt.Errorf("%w: a renewal is not in the tables", errNoEffect))
	}
	for _, id := range []store.ID{a.ID, second.ID} { // the first release is a grant to the second hold
		k, err := in(id)
		if err == nil {
			err = k.change(raiseToken, 0, []byte(a.Name))
		}
		if err == nil {
			err = k.remove()
		}
		if err != nil {
			return err
		}
	}
	if k, err := t.open(a.Name, a.ID, false); err != nil || len(k.in)+len(k.line) > 0 {
		return cmp.Or(err, fmt.Errorf("%w: a hold is left behind its release", errNoEffect))
	}
	_, err := t.exec(cleanLocks, toMicros(100*keepNames*365))
	return err
}

// errMemory says that another connection of the pool has another database.
var errMemory = errors.New("each connection has a database in memory of its own")

// oneDatabase finds a database in memory that only its connection has: another connection does not
// see its rows.
func (s *Store) oneDatabase(ctx context.Context, name string) error {
	if s.dialect != SQLite || s.db.Stats().MaxOpenConnections == 1 {
		return nil
	}
	first, err := s.conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = first.Close() }()
	t := &tx{s: s, ctx: ctx, session: first}
	if path, err := t.path(); err != nil || path != "" {
		return err
	}
	if err := t.change(insertLock, []byte(name), int64(store.Mutex)); err != nil {
		return err
	}
	defer func() { _, _ = first.ExecContext(ctx, s.text(deleteLock), []byte(name)) }()
	second, err := s.conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = second.Close() }()
	k := &lock{tx: &tx{s: s, ctx: ctx, session: second}, name: name}
	if err := k.read(); err != nil && s.judge(err) != refused { // a refusal: it has no tables, either
		return err
	}
	if !k.exists {
		return errMemory
	}
	return nil
}

const deleteLock = `DELETE FROM relock_locks WHERE name = ?`

// checkListener sends a notification through the database, and waits for the Listener.
func (s *Store) checkListener(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	channel, heard := "relock_check_"+strings.ToLower(rand.Text()), false
	var sent error
	err := s.listener.Listen(ctx, channel, func() {
		_, sent = s.db.ExecContext(ctx, "SELECT pg_notify($1, 'check')", channel)
		if sent != nil {
			cancel()
		}
	}, func(string) { heard = true; cancel() })
	if heard {
		return nil
	}
	return fmt.Errorf("the Listener hears no notification (does it run through a pooler?): %w", errors.Join(sent, err))
}
