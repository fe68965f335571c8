package relocksql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/go-relock/relock/store"
)

// The states of a row of relock_holds.
const (
	waiting = 0
	granted = 1 // and the hold has not entered or renewed since
	held    = 2
)

// row is a row of relock_holds.
type row struct {
	id      store.ID
	state   int
	arrival int64
	limit   int
	with    store.ID
	left    time.Duration // until the end of the lease
	count   int
}

// lock is one name inside a transaction that has locked the row of the name. in and line have no
// row whose lease has ended.
type lock struct {
	*tx
	name     string
	exists   bool // the name has a row
	kind     store.Kind
	arrivals int64
	unused   time.Duration // since the row of the name was written
	in       []row
	line     []row // the first waiters
	more     bool  // there may be waiters behind line
	id       store.ID
	own      *row // the row of id
}

// pageSize is the number of waiters that a transaction reads at once.
const pageSize = 8

const (
	columns = `id, state, arrival, quota, around, kept_until - {now} AS remaining, entries`

	insertLock = `{insert} relock_locks (name, kind, arrivals, token, used) VALUES (?, ?, 0, 0, {now}){/insert}`
	selectLock = `SELECT kind, arrivals, {now} - used FROM relock_locks WHERE name = ?{lock}`
	touchLock  = `UPDATE relock_locks SET used = {now} WHERE name = ?`
	updateLock = `UPDATE relock_locks SET kind = ?, arrivals = ?, used = {now} WHERE name = ?`
	raiseToken = `UPDATE relock_locks SET token = {max}({max}(token, ?) + 1, {now}), used = {now} WHERE name = ?`

	// With + 0 PostgreSQL finds one row by its primary key. Without, it may read all rows of the name.
	selectRows = `SELECT ` + columns + ` FROM relock_holds WHERE name = ? AND state > 0
		UNION ALL SELECT * FROM (SELECT ` + columns + ` FROM relock_holds WHERE name = ? AND state = 0
			ORDER BY arrival LIMIT 8) AS line
		UNION ALL SELECT ` + columns + ` FROM relock_holds WHERE name = ? AND id = ? AND state + 0 = 0{all}`
	deleteEnded = `DELETE FROM relock_holds WHERE name = ? AND kept_until <= {now}`
	deleteRow   = `DELETE FROM relock_holds WHERE name = ? AND id = ?`
	insertRow   = `INSERT INTO relock_holds
		(name, id, state, arrival, quota, around, kept_until, keep, entries, changes, inbox)
		VALUES (?, ?, ?, ?, ?, ?, {now} + ?, ?, 1, 0, ?){returning}`
	keepPlace  = `UPDATE relock_holds SET kept_until = {now} + ?, inbox = ?, changes = changes + 1 WHERE name = ? AND id = ?`
	keepPlaces = `UPDATE relock_holds SET kept_until = {now} + ?, changes = changes + 1 WHERE name = ? AND state = 0 AND inbox = ?`
	countLine  = `SELECT count(*) FROM relock_holds WHERE name = ? AND state = 0 AND arrival < ?`
	renewHold  = `UPDATE relock_holds SET state = 2, kept_until = {max}(kept_until, {now} + ?), entries = ?, changes = changes + 1
		WHERE name = ? AND id = ? AND state + 0 > 0 AND kept_until > {now}`
	renewRow = renewHold + `{alone}`
	enterRow = `UPDATE relock_holds SET state = 2, kept_until = {max}(kept_until, {now} + ?), changes = changes + 1
		WHERE name = ? AND id = ? AND state + 0 > 0`
)

// open locks the row of a name, and reads its rows. A name without a row gets one if create is set;
// otherwise the lock is empty. kind is the kind of a lock that is free.
func (t *tx) open(name string, id store.ID, create bool) (*lock, error) {
	k := &lock{tx: t, name: name, id: id}
	if err := k.lockRow(create); err != nil {
		return nil, err
	}
	if !k.exists {
		return k, nil
	}
	return k, k.load()
}

// mostRows bounds the attempts to find a row that was inserted. A second one follows a cleanup, and
// more mean that something hides the row.
const mostRows = 10

// lockRow locks the row of the name. A name without a row gets one if create is set.
func (k *lock) lockRow(create bool) error {
	err := k.read()
	for n := 0; err == nil && !k.exists && create; n++ { // a cleanup may delete the row before it is locked
		if n == mostRows {
			return errNoEffect
		}
		if _, err = k.exec(insertLock, []byte(k.name), int64(store.Mutex)); err == nil {
			k.s.names.Add(1)
			err = k.read()
		}
	}
	return err
}

// read locks the row of the name.
func (k *lock) read() error {
	var unused int64
	statement := selectLock
	if k.conn != nil && k.s.grammar.wait != "" { // not in a transaction of the caller
		statement += fmt.Sprintf(k.s.grammar.wait, waitSeconds(k.ctx))
	}
	return k.query(statement, func(rows *sql.Rows) error {
		k.exists = true
		err := rows.Scan(&k.kind, &k.arrivals, &unused)
		k.unused = micros(unused)
		return err
	}, []byte(k.name))
}

// waitSeconds returns the rest of an attempt in whole seconds, rounded up, at most 5.
func waitSeconds(ctx context.Context) int {
	const longest = 5
	end, bounded := ctx.Deadline()
	if !bounded {
		return longest
	}
	return min(max(1, int((time.Until(end)+time.Second-1)/time.Second)), longest)
}

// load reads the rows of the name, and takes out the rows whose leases have ended. The row of
// k.id is read also if the row is far behind in the line.
func (k *lock) load() error {
	for {
		ended := false
		k.in, k.line, k.own = nil, nil, nil
		err := k.query(selectRows, func(rows *sql.Rows) error {
			r, err := scanRow(rows)
			switch {
			case r.left <= 0:
				ended = true
			case r.state != waiting:
				k.in = append(k.in, r)
				if r.state == granted {
					k.grants = append(k.grants, r) // the news may be lost
				}
			case !slices.ContainsFunc(k.line, r.same):
				k.line = append(k.line, r)
			}
			if r.id == k.id {
				k.own = &r
			}
			return err
		}, []byte(k.name), []byte(k.name), []byte(k.name), []byte(k.id))
		if err != nil {
			return err
		}
		if !ended {
			slices.SortFunc(k.in, func(a, b row) int { return cmp.Compare(a.left, b.left) })
			slices.SortFunc(k.line, func(a, b row) int { return cmp.Compare(a.arrival, b.arrival) })
			k.line = k.line[:min(len(k.line), pageSize)] // the last one may be the hold's own, far behind
			k.more = len(k.line) == pageSize
			return nil
		}
		if err := k.change(deleteEnded, []byte(k.name)); err != nil {
			return err
		}
	}
}

func (r row) same(other row) bool { return r.id == other.id }

func scanRow(rows *sql.Rows) (r row, err error) {
	var id, with []byte
	var left int64
	err = rows.Scan(&id, &r.state, &r.arrival, &r.limit, &with, &left, &r.count)
	r.id, r.with, r.left = store.ID(id), store.ID(with), micros(left)
	return r, err
}

// micros and toMicros convert the times of the tables.
func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func toMicros(d time.Duration) int64 { return d.Microseconds() }

// admits says whether a hold may enter: the smallest limit bounds the number of holds. The hold
// around it does not count.
func (k *lock) admits(limit int, with store.ID) bool {
	n, least := 1, limit
	for _, other := range k.in {
		if other.id != with {
			n, least = n+1, min(least, other.limit)
		}
	}
	return n <= least
}

// serve grants the lock to the first waiters for as long as the rule admits them.
func (k *lock) serve() error {
	for {
		for len(k.line) > 0 {
			r := k.line[0]
			if !k.admits(r.limit, r.with) {
				return nil
			}
			if err := k.grant(r); err != nil {
				return err
			}
		}
		if !k.more {
			return nil
		}
		if err := k.load(); err != nil {
			return err
		}
	}
}

// grant gives the lock to the first waiter, and notifies the client of the waiter.
func (k *lock) grant(r row) error {
	if err := k.change(k.s.grammar.grant, []byte(k.name), []byte(r.id)); err != nil {
		return err
	}
	k.line = k.line[1:]
	k.grants = append(k.grants, r)
	r.state = granted
	k.in = append(k.in, r)
	if k.own != nil && k.own.id == r.id {
		k.own.state = granted
	}
	return k.written(r.limit)
}

// written draws a token for a writer that enters a read-write lock, as its readers have to see that
// a writer was there.
func (k *lock) written(limit int) error {
	if k.kind != store.ReadWrite || limit != 1 {
		return nil
	}
	return k.change(raiseToken, 0, []byte(k.name))
}

// is returns the error of a claim for another kind of lock.
func (k *lock) is(kind store.Kind) error {
	if k.kind == kind || len(k.in)+len(k.line) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s, and this claim is for %s", store.ErrKind, k.kind, kind)
}

// place is the answer to a claim.
type place struct {
	arrival  int64 // in the queue; 0: the hold is in
	position int
	busy     *store.Busy
}

// ways are the ways of a claim.
type ways struct {
	join    bool // puts a hold that is not let in into the queue
	keepAll bool // keeps the places of all waiters of the store
	next    bool // is of one of the first waiters, who hears of no grant meanwhile
}

// claim lets a hold in, or puts the hold into the queue. A claim of a hold that is in
// makes its lease last from now on.
func (k *lock) claim(a store.Claim, w ways) (p place, err error) {
	if err := k.is(a.Kind); err != nil {
		return p, err
	}
	if err := k.serve(); err != nil {
		return p, err
	}
	keep := toMicros(a.Kept(a.TTL))
	switch {
	case k.own != nil && k.own.state != waiting:
		return p, k.change(enterRow, keep, []byte(k.name), []byte(a.ID))
	case k.own != nil:
		if w.keepAll {
			err = k.change(keepPlaces, toMicros(placeLease), []byte(k.name), k.s.inbox)
		} else {
			err = k.change(keepPlace, toMicros(placeLease), k.s.inbox, []byte(k.name), []byte(a.ID))
		}
		if err != nil {
			return p, err
		}
		return k.placeOf(a, k.own.arrival)
	case (len(k.line) == 0 || a.With != "") && k.admits(a.Limit, a.With):
		return p, k.enter(a, keep)
	case !w.join:
		return p, k.busy(a)
	}
	if err := k.deadlock(a); err != nil {
		return p, err
	}
	arrival := k.arrivals + 1
	if a.With != "" {
		arrival += beforeAll
	}
	if err := k.note(a.Kind, k.arrivals+1); err != nil {
		return p, err
	}
	if err := k.insert(a, waiting, arrival, toMicros(placeLease)); err != nil {
		return p, err
	}
	return k.placeOf(a, arrival)
}

// beforeAll makes the arrival number of a claim inside a hold: such claims go before the queue, and
// keep their own order.
const beforeAll = -1 << 62

// deadlock refuses an upgrade beside the upgrade of another reader.
func (k *lock) deadlock(a store.Claim) error {
	if a.With != "" && len(k.line) > 0 && k.line[0].with != "" && k.line[0].with != a.With {
		return store.ErrDeadlock
	}
	return nil
}

// enter lets a new hold in.
func (k *lock) enter(a store.Claim, keep int64) error {
	if k.kind != a.Kind || k.unused > noteEvery {
		if err := k.note(a.Kind, k.arrivals); err != nil {
			return err
		}
	}
	if err := k.insert(a, held, 0, keep); err != nil {
		return err
	}
	return k.written(a.Limit)
}

// note writes the row of the name.
func (k *lock) note(kind store.Kind, arrivals int64) error {
	k.kind = kind
	return k.change(updateLock, int64(kind), arrivals, []byte(k.name))
}

// insert writes the row of a hold or a waiter. PostgreSQL refuses a row that it would not read back.
func (k *lock) insert(a store.Claim, state int, arrival, kept int64) error {
	return k.change(insertRow, []byte(k.name), []byte(a.ID), state, arrival, a.Limit, []byte(a.With),
		kept, toMicros(a.Kept(a.TTL)), k.s.inbox)
}

// placeOf returns the place of a waiter in the queue.
func (k *lock) placeOf(a store.Claim, arrival int64) (place, error) {
	p := place{arrival: arrival, busy: k.busy(a)}
	return p, k.query(countLine, func(rows *sql.Rows) error { return rows.Scan(&p.position) }, []byte(k.name), arrival)
}

// busy returns the refusal of a claim: of the holds that are in its way, the first one whose lease
// ends.
func (k *lock) busy(a store.Claim) *store.Busy {
	for _, other := range k.in {
		if other.id != a.With {
			return &store.Busy{Owner: other.id, TTL: other.left}
		}
	}
	return &store.Busy{}
}

// remove takes the row of the transaction's hold out, and serves the waiters.
func (k *lock) remove() error {
	if k.own != nil {
		if err := k.change(deleteRow, []byte(k.name), []byte(k.own.id)); err != nil {
			return err
		}
		same := k.own.same
		k.in, k.line = slices.DeleteFunc(k.in, same), slices.DeleteFunc(k.line, same)
		k.grants = slices.DeleteFunc(k.grants, same)
		k.own = nil
	}
	return k.serve()
}

// has says whether the transaction's hold has the lock.
func (k *lock) has() bool { return k.own != nil && k.own.state != waiting }
