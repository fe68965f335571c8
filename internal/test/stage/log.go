package stage

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// A Logbook is a slog handler that keeps the records.
type Logbook struct {
	Least slog.Level

	mu    sync.Mutex
	lines []LogLine
}

// Logger returns a logger that writes to the book.
func (b *Logbook) Logger() *slog.Logger { return slog.New(b) }

// A LogLine is a record of a Logbook.
type LogLine struct {
	Level slog.Level
	Msg   string
	Attrs map[string]any
}

// Enabled makes a logbook a slog.Handler.
func (b *Logbook) Enabled(_ context.Context, level slog.Level) bool { return level >= b.Least }

// Handle keeps a record.
func (b *Logbook) Handle(_ context.Context, record slog.Record) error {
	line := LogLine{Level: record.Level, Msg: record.Message, Attrs: map[string]any{}}
	record.Attrs(func(a slog.Attr) bool {
		line.Attrs[a.Key] = a.Value.Any()
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	return nil
}

// WithAttrs is not used by the library.
func (b *Logbook) WithAttrs([]slog.Attr) slog.Handler { return b }

// WithGroup is not used by the library.
func (b *Logbook) WithGroup(string) slog.Handler { return b }

// About returns the lines whose message contains text.
func (b *Logbook) About(text string) []LogLine {
	Settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []LogLine
	for _, line := range b.lines {
		if strings.Contains(line.Msg, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// RequireOne returns the only line about text, after its level and its keys were checked.
func (b *Logbook) RequireOne(t *testing.T, text string, level slog.Level, keys ...string) LogLine {
	t.Helper()
	lines := b.About(text)
	require.Len(t, lines, 1, text)
	require.Equal(t, level, lines[0].Level)
	require.Len(t, lines[0].Attrs, len(keys))
	for _, key := range keys {
		require.Contains(t, lines[0].Attrs, key)
	}
	return lines[0]
}

// UntilLogged lets time pass. A note of the garbage collector arrives from outside of the bubble,
// and the watchdog looks at the note.
func UntilLogged(t *testing.T, log *Logbook, text string) {
	t.Helper()
	for range 1000 {
		runtime.GC()
		if Pass(relock.DefaultTTL / 30); len(log.About(text)) > 0 {
			return
		}
	}
	t.Fatalf("nothing is logged about %q", text)
}
