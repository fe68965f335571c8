package relock

import (
	"log/slog"
	"time"
)

// This file is what a client says of the pub/sub connections that wake its waiters.

// disconnected reports that a pub/sub connection was lost, or could not be made.
func (c *Client) disconnected(node string, attempt int, err error) {
	level := slog.LevelInfo
	if attempt > 3 {
		level = slog.LevelWarn
	}
	c.log(c.settings.logger, level, "relock: pub/sub connection lost, connecting again",
		slog.String("node", node), slog.Int("attempt", attempt), slog.Any("error", err))
}

// reconnected reports that a pub/sub connection is back.
func (c *Client) reconnected(node string, down time.Duration) {
	c.log(c.settings.logger, slog.LevelInfo, "relock: pub/sub connection is back", slog.String("node", node))
	if hook := c.settings.hooks.Reconnected; hook != nil {
		c.events.Emit(func() { hook(Reconnected{Node: node, Down: down}) })
	}
}
