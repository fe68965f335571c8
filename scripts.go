package relock

import (
	"embed"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/go-relock/relock/internal/redisstore"
)

// This file is the Lua scripts: their sources, and the report of a command that is sent again. What
// each script does, its header says. What is sent to which script, package redisstore says.

//go:embed scripts/*.lua scripts/*/*.lua
var sources embed.FS

// scripts returns the scripts, loaded once for all clients of the process.
var scripts = sync.OnceValue(func() *redisstore.Scripts {
	folder, err := fs.Sub(sources, "scripts")
	if err != nil {
		panic(err) // the folder is part of the build
	}
	return redisstore.LoadScripts(folder)
})

// quietly is the time for which a call may fail before a warning, and longestQuiet the longest time
// between two warnings of a client.
const quietly, longestQuiet = time.Second, 10 * time.Second

// reporter reports the failed attempts of calls for a lock.
type reporter Lock

// Retrying implements [store.Reporter]. A client warns of a call that has failed for a second. The
// next warning comes after as long again, so that a thousand calls in one outage do not fill the
// log.
func (r *reporter) Retrying(command string, attempt int, since time.Time, err error) {
	c, level, elapsed := r.client, slog.LevelDebug, time.Since(since)
	now, quiet := int64(time.Since(c.table.start)), c.quiet.Load()
	if elapsed >= quietly && now >= quiet && c.quiet.CompareAndSwap(quiet, now+int64(min(elapsed, longestQuiet))) {
		level = slog.LevelWarn
	}
	c.log(c.settings.logger, level, "relock: sending a command again", slog.String("command", command),
		slog.String("lock", r.name), slog.Int("attempt", attempt), slog.Duration("for", elapsed), slog.Any("error", err))
	if hook := c.settings.hooks.Retried; hook != nil {
		c.events.Emit(func() { hook(Retried{Name: r.name, Script: command, Attempt: attempt, Err: err}) })
	}
}
