package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/stage"
)

// What does a client send that does nothing?

func TestAClientThatDoesNothingSendsNothing(t *testing.T) {
	for name, use := range map[string]func(w *stage.Embedded, p, other *stage.EmbeddedPeer){
		"is new": func(*stage.Embedded, *stage.EmbeddedPeer, *stage.EmbeddedPeer) {},
		"has held for long": func(w *stage.Embedded, p, _ *stage.EmbeddedPeer) {
			l := p.NewLock("a")
			section := w.Enter(w.T.Context(), l)
			stage.Pass(time.Minute)
			w.Leave(section, l)
		},
		"has listened for asks": func(w *stage.Embedded, p, _ *stage.EmbeddedPeer) {
			l := p.NewLock("a")
			section := w.Enter(w.T.Context(), l)
			require.NotNil(w.T, l.Wanted(section))
			stage.Pass(time.Minute)
			w.Leave(section, l)
		},
		"has waited": func(w *stage.Embedded, p, other *stage.EmbeddedPeer) {
			l := other.NewLock("a")
			section := w.Enter(w.T.Context(), l)
			waiting := w.Start(w.T.Context(), p.NewLock("a"))
			stage.Pass(time.Minute)
			w.Leave(section, l)
			w.Leave(waiting.Section(), p.NewLock("a"))
		},
		"has given up": func(w *stage.Embedded, p, other *stage.EmbeddedPeer) {
			l := other.NewLock("a")
			section := w.Enter(w.T.Context(), l)
			ctx, cancel := context.WithTimeout(w.T.Context(), time.Minute)
			defer cancel()
			_, err := p.NewLock("a").Lock(ctx)
			require.Error(w.T, err)
			w.Leave(section, l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				p, other := w.NewClient(), w.NewClient()
				use(w, p, other)
				require.Equal(t, name != "is new", p.Net.Commands("PING") > 0, "while it holds or waits")
				stage.Pass(time.Minute) // the lease of a call that has given up is over
				p.Net.Reset()
				stage.Pass(time.Hour)
				require.Zero(t, p.Net.Commands())
			})
		})
	}
}
