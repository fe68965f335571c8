package attempts

import (
	"slices"
	"strings"
	"sync"

	"github.com/go-relock/relock/store"
)

// Watchers are the calls of [store.Watcher.Watch] that have not been stopped. The zero value has
// none. Watchers are safe for concurrent use.
type Watchers struct {
	mu  sync.Mutex
	all []*watcher
}

type watcher struct {
	prefix string // of the holds of the client
	doubt  func(store.ID)
}

// Add adds a call of Watch, until stop.
func (w *Watchers) Add(client string, doubt func(store.ID)) (stop func()) {
	added := &watcher{client + ":", doubt}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, added)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all = slices.DeleteFunc(w.all, func(other *watcher) bool { return other == added })
	}
}

// Of returns the doubt functions of those who watch the client of a hold; of all if id is empty.
func (w *Watchers) Of(id store.ID) (doubts []func(store.ID)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, added := range w.all {
		if id == "" || strings.HasPrefix(string(id), added.prefix) {
			doubts = append(doubts, added.doubt)
		}
	}
	return doubts
}

// Tell calls the functions of [Watchers.Of] with id.
func (w *Watchers) Tell(id store.ID) {
	for _, doubt := range w.Of(id) {
		doubt(id)
	}
}
