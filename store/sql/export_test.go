package relocksql

import (
	"context"
	"time"

	"github.com/go-relock/relock/store"
)

// CleanOlder is Clean of rows of another age.
func (s *Store) CleanOlder(ctx context.Context, older time.Duration) error {
	return s.clean(ctx, older)
}

// Verdict returns the judgement of an error as a word.
func Verdict(d Dialect, err error) string {
	v, _ := judge(d, err)
	return map[verdict]string{silent: "silent", refused: "refused", again: "again", down: "down"}[v]
}

// OneRow returns the statements that read or write the row of one hold, with their arguments.
func (s *Store) OneRow(name, id string) map[string][]any {
	n, i := []byte(name), []byte(id)
	return map[string][]any{
		s.text(selectRows): {n, n, n, i}, s.text(renewRow): {1, 1, n, i}, s.text(enterRow): {1, n, i},
		s.text(keepPlace): {1, "inbox", n, i}, s.text(deleteRow): {n, i}, s.text(s.grammar.grant): {n, i},
	}
}

// AskAgain returns the time after which the first waiter asks again by itself. left is the rest of the
// owner's lease.
func AskAgain(ttl, left time.Duration) time.Duration {
	s := &Store{life: context.Background()}
	return s.askAgain(store.Claim{TTL: ttl}, place{busy: &store.Busy{Owner: "a", TTL: left}}, false)
}

// Turns are the turns of a pool.
type Turns struct{ *turns }

// NewTurns returns the turns of a pool with so many connections.
func NewTurns(connections int) Turns { return Turns{newTurns(connections)} }

// Enter takes the turn of an entry.
func (t Turns) Enter(ctx context.Context, name string) (leave func(), err error) {
	return t.take(ctx, entering, name)
}

// Release takes the turn of a release.
func (t Turns) Release(ctx context.Context, name string) (leave func(), err error) {
	return t.take(ctx, releasing, name)
}

// FillAsks takes all turns of asks for a name, until leave.
func (s *Store) FillAsks(ctx context.Context, name string) (leave func(), err error) {
	first, err := s.turns().take(ctx, asking, name)
	if err != nil {
		return nil, err
	}
	second, err := s.turns().take(ctx, asking, name)
	return func() { first(); second() }, err
}
