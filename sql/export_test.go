package relocksql

import (
	"context"
	"time"
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

// Rows returns the statement that reads the rows of a name and the row of a hold.
func (s *Store) Rows() string { return s.text(selectRows) }
