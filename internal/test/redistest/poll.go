package redistest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-relock/relock/internal/test/bound"
)

// permanentError ends a poll at once.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(err error) error { return permanentError{err} }

// poll calls try every few milliseconds until try returns nil. poll returns the last error when the
// time is up, see package bound.
func poll(within time.Duration, try func() error) error {
	deadline := time.Now().Add(bound.Of(within))
	for pause := time.Millisecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := try()
		var stop permanentError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &stop):
			return stop.error
		case time.Now().After(deadline):
			return fmt.Errorf("after %v: %w", within, err)
		}
		time.Sleep(pause)
	}
}

// tail returns the last lines of a log, for failure messages.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
