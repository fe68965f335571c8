package relocksql

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/store"
)

// maxName is the largest number of bytes of a name, and of an ID.
const maxName = 255

const (
	// placeLease is the time for which a waiter keeps its place without a sign of life.
	placeLease = 15 * time.Second
	// beat is the interval at which a waiter renews its place.
	beat = placeLease / 3
)

// Store keeps locks in a SQL database. Stores over one database share their locks.
type Store struct {
	db      *sql.DB
	dialect Dialect
	grammar grammar
	turns   func() *turns
	file    file

	listener         Listener
	pollMin, pollMax time.Duration
	inbox            string // names the store in the rows of its waiters

	life     context.Context // of the goroutine that hears of grants
	end      context.CancelFunc
	group    group.Group
	watchers attempts.Watchers
	askers   attempts.Watchers
	names    atomic.Int64 // rows of relock_locks that this store has made since the last cleanup

	mu      sync.Mutex
	hearing bool // the goroutine runs
	waiters map[store.ID]*waiter
	scout   map[string]*waiter // of each name that has one
	fresh   chan struct{}      // rings when a waiter comes
	cleaned time.Time
}

var (
	_ store.Watcher = (*Store)(nil)
	_ store.Checker = (*Store)(nil)
	_ store.Listing = (*Store)(nil)
)

// Option is an option of [New].
type Option func(*Store) error

// WithListener gives the Store of a PostgreSQL database a connection of its own that hears of
// grants. Without a Listener the Store polls.
func WithListener(l Listener) Option {
	return func(s *Store) error {
		if l == nil || s.dialect != Postgres {
			return errors.New("relocksql: WithListener needs a Listener, and PostgreSQL")
		}
		s.listener = l
		return nil
	}
}

// WithPoll bounds the interval at which a Store without a Listener asks whether its waiters have
// been granted their locks: one statement for all waiters of the Store. The interval is shortest
// after the arrival of a waiter and after a grant, and grows by half each time. The defaults are 5
// ms and 100 ms. A Store without waiters does not poll.
func WithPoll(shortest, longest time.Duration) Option {
	return func(s *Store) error {
		if shortest < time.Millisecond || longest < shortest || longest > beat {
			return fmt.Errorf("relocksql: WithPoll(%s, %s): want at least 1ms, at most %s, the shortest first",
				shortest, longest, beat)
		}
		s.pollMin, s.pollMax = shortest, longest
		return nil
	}
}

// New makes a Store over a database with the tables of [Create]. The Store needs no connection of
// its own in db, and returns each connection after one transaction. New talks to nobody. Errors: a
// dialect that does not exist, or a wrong option.
func New(db *sql.DB, d Dialect, options ...Option) (*Store, error) {
	if db == nil {
		return nil, errors.New("relocksql: the database is nil")
	}
	if err := known(d); err != nil {
		return nil, err
	}
	s := &Store{
		db: db, dialect: d, grammar: grammars[d],
		turns:   sync.OnceValue(func() *turns { return newTurns(db.Stats().MaxOpenConnections) }),
		pollMin: 5 * time.Millisecond, pollMax: 100 * time.Millisecond,
		waiters: make(map[store.ID]*waiter), scout: make(map[string]*waiter), fresh: make(chan struct{}, 1),
	}
	for _, option := range options {
		if err := option(s); err != nil {
			return nil, err
		}
	}
	s.inbox = "poll_" + strings.ToLower(rand.Text())
	if s.listener != nil {
		s.inbox = "relock_" + strings.ToLower(rand.Text())
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Close ends the goroutine and the connection of the Listener. Later commands still work: later
// waits ask again at the longest interval of [WithPoll]. Close does not close the database.
func (s *Store) Close() error {
	s.group.Close()
	s.end()
	s.group.Wait()
	s.wakeAll() // nobody else wakes the waiters now
	return nil
}

// Check accepts names and IDs of 1 to 255 bytes, of which any may stand in them. Acknowledgements
// are [errors.ErrUnsupported]: whether a COMMIT waits for replicas is a setting of the database.
func (s *Store) Check(a store.Claim) (store.Claim, error) {
	switch {
	case a.Name == "":
		return a, errors.New("the lock name is empty")
	case len(a.Name) > maxName:
		return a, fmt.Errorf("the lock name has %d bytes, and the tables keep %d", len(a.Name), maxName)
	case len(a.ID) > maxName:
		return a, fmt.Errorf("the ID of the hold has %d bytes, and the tables keep %d", len(a.ID), maxName)
	case a.Limit < 1:
		return a, fmt.Errorf("a limit of %d holds lets nobody in", a.Limit)
	case a.Keeps && s.listener == nil:
		return a, fmt.Errorf("%w: a word to the holder without a Listener", errors.ErrUnsupported)
	case a.Acks != store.Acks{}:
		return a, fmt.Errorf("replicas of a SQL database confirm to the database: %w", errors.ErrUnsupported)
	}
	return a, nil
}

// on runs a command of a hold in a transaction that has locked the row of the name.
func (s *Store) on(ctx context.Context, tries int, a store.Claim, do func(k *lock) error) error {
	return gone(s.run(ctx, command{releasing, a, tries, attemptLimit(a.TTL)}, func(ctx context.Context) error {
		return s.transaction(ctx, func(t *tx) error {
			k, err := t.open(a.Name, a.ID, false)
			if err != nil {
				return err
			}
			return do(k)
		})
	}))
}

// Try implements [store.Store].
func (s *Store) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	_, l, err := s.claim(ctx, fewTries, a, ways{})
	return l, err
}

// claim makes one claim. The lease counts from before the attempt that was answered: the row lock
// makes sure that no earlier attempt runs behind that attempt.
func (s *Store) claim(ctx context.Context, tries int, a store.Claim, w ways) (p place, l store.Lease, err error) {
	l.Claim = a
	u := asking
	if w.keepAll || w.next {
		u = releasing // places must not lapse, nor a grant find nobody, while new waiters come
	}
	err = s.run(ctx, command{u, a, tries, attemptLimit(a.TTL)}, func(ctx context.Context) error {
		if !l.Sent.IsZero() { // the attempt before may have joined the queue
			l.Woken = store.WakeRecheck
		}
		l.Sent = time.Now()
		return s.transaction(ctx, func(t *tx) error {
			k, err := t.open(a.Name, a.ID, true)
			if err == nil {
				p, err = k.claim(a, w)
			}
			return err
		})
	})
	s.cleanNow()
	return p, l, err
}

// Enter implements [store.Store].
func (s *Store) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	err := s.run(ctx, command{entering, l.Claim, patient, attemptLimit(l.TTL)}, func(ctx context.Context) error {
		sent := time.Now()
		err := s.renew(ctx, l, l.TTL, count)
		if err == nil && l.TTL > 0 {
			l.Sent = sent
		}
		return err
	})
	if ctx.Err() == nil && errors.Is(err, store.ErrGone) {
		err = store.ErrGone // no attempt of Enter frees the lock
	}
	return l, gone(err)
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return s.on(ctx, patient, l.Claim, func(k *lock) error {
		if !k.has() {
			return store.ErrGone
		}
		return k.remove()
	})
}

// parallel is how many commands Renew and Forget have in flight.
const parallel = 8

// allByName runs a command for each claim, the commands of one name one after another: a name that is
// held up does not hold up the others.
func allByName(claims []store.Claim, command func(i int) error) []error {
	names := map[string][]int{}
	for i, a := range claims {
		names[a.Name] = append(names[a.Name], i)
	}
	groups, errs := slices.Collect(maps.Values(names)), slices.Repeat([]error{attempts.ErrEnded}, len(claims))
	attempts.Each(len(groups), parallel, func(g int) error {
		for _, i := range groups[g] {
			errs[i] = command(i)
		}
		return nil
	})
	return errs
}

// Forget implements [store.Store].
func (s *Store) Forget(ctx context.Context, claims []store.Claim) []error {
	return allByName(claims, func(i int) error { return s.on(ctx, 1, claims[i], (*lock).remove) })
}

// Token implements [store.Store]. A token is larger than the last one, and never below the clock of
// the database in microseconds: so the tokens grow also after the row of the name was cleaned up.
func (s *Store) Token(ctx context.Context, l store.Lease) (token int64, err error) {
	err = s.on(ctx, fewTries, l.Claim, func(k *lock) error {
		if !k.has() {
			return store.ErrGone
		}
		token, err = k.token()
		if err != nil || token > 0 && l.Kind == store.ReadWrite {
			return err
		}
		if err := k.change(raiseToken, l.Token, []byte(l.Name)); err != nil {
			return err
		}
		token, err = k.token()
		return err
	})
	if ctx.Err() == nil && errors.Is(err, store.ErrGone) {
		err = store.ErrGone // no attempt of Token frees the lock
	}
	return token, err
}

const selectToken = `SELECT token FROM relock_locks WHERE name = ?`

// token reads the last token of the name.
func (k *lock) token() (token int64, err error) {
	err = k.query(selectToken, func(rows *sql.Rows) error { return rows.Scan(&token) }, []byte(k.name))
	return token, err
}
