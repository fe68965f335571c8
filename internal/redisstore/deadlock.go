package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file shows waits in relock's own layout, for the search for circles in deadlock.go: a hash
// for each hold whose section waits, <waiting hold> -> wait. (In Redisson's layout a hold is known
// by another name.)

func (s *nativeStore) waitsKey(hold store.ID) string {
	return s.prefix + "{" + string(hold) + "}" + waitsSuffix
}

func (s *nativeStore) Show(ctx context.Context, w store.Waiting, kept time.Duration) error {
	text := []byte{}
	if len(w.For) > 0 {
		var err error
		if text, err = json.Marshal(w); err != nil {
			return err
		}
	}
	units := make([]wire.Unit, len(w.Holds))
	for i, hold := range w.Holds {
		units[i] = wire.Unit{Keys: []string{s.waitsKey(hold)}, Args: []any{string(w.ID), string(text)}}
	}
	return errors.Join(s.all(ctx, s.scripts.show, []any{lifetime.Millis(kept)}, units)...)
}

func (s *nativeStore) Shown(ctx context.Context, holds []store.ID) ([]store.Waiting, error) {
	units := make([]wire.Unit, len(holds))
	for i, hold := range holds {
		units[i] = wire.Unit{Keys: []string{s.waitsKey(hold)}}
	}
	var waits []store.Waiting
	for _, r := range s.wire.All(ctx, s.scripts.shown, nil, units) {
		if r.Err != nil {
			return nil, r.Err
		}
		texts, _ := r.Reply.([]any)
		for _, text := range texts {
			var w store.Waiting
			if t, is := text.(string); !is || json.Unmarshal([]byte(t), &w) != nil {
				return nil, badReply(s.scripts.shown, r.Reply)
			}
			waits = append(waits, w)
		}
	}
	return waits, nil
}
