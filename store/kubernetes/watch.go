package relockk8s

import (
	"context"
	"strings"

	api "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/store"
)

// Watch implements [store.Watcher]. Watch tells of a hold when its Lease is deleted or taken over,
// and of all holds whenever a watch begins.
func (s *Store) Watch(client string, doubt func(store.ID)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	new(group.Group).Go(func() { // outlives a panic of the client
		for pause := (attempts.Pause{}); ctx.Err() == nil; pause.Wait(ctx.Done()) {
			w, err := s.watch(ctx, meta.ListOptions{LabelSelector: clientLabel + "=" + labelOf(client)})
			if err == nil {
				doubt("")
				report(w, client, doubt)
				pause = attempts.Pause{}
			}
		}
	})
	return cancel
}

// report tells of the holds of a client until the watch ends.
func report(w watch.Interface, client string, doubt func(store.ID)) {
	defer w.Stop()
	for e := range w.ResultChan() {
		lease, is := e.Object.(*api.Lease)
		if !is {
			return
		}
		switch v := viewOf(lease); {
		case !strings.HasPrefix(string(v.ID), client+":"): // another program has written its holder
			doubt("")
		case e.Type == watch.Deleted:
			doubt(v.ID)
		}
	}
}
