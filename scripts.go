package relock

import (
	"embed"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/go-relock/relock/internal/redisstore"
)

// This file is the Lua scripts: their sources, and the report of a script that is sent again. What
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

// manyTries is the number of tries after which a call without an answer is worth a warning: about a
// quarter of a second, or longer. Each next warning comes after twice as many tries, so that a
// thousand calls waiting for Redis do not fill the log.
const manyTries = 8

// retried reports that a call for the lock of a key is sent again.
func (c *Client) retried(key, script string, attempt, tries int, err error) {
	name := c.settings.redis.NameOf(key)
	level := slog.LevelDebug
	if tries >= manyTries && tries&(tries-1) == 0 {
		level = slog.LevelWarn
	}
	c.log(c.settings.logger, level, "relock: sending a script again",
		slog.String("script", script), slog.String("lock", name), slog.Int("attempt", attempt), slog.Any("error", err))
	if hook := c.settings.hooks.Retried; hook != nil {
		c.events.Emit(func() { hook(Retried{Name: name, Script: script, Attempt: attempt, Err: err}) })
	}
}
