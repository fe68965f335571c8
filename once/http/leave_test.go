package oncehttp_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/once/http"
)

// pod is a process of a service in fake time.
func pod(t *testing.T, w *stage.Embedded, handler http.HandlerFunc) http.Handler {
	t.Helper()
	o, err := once.New(w.NewClient().Client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	idempotent, err := oncehttp.New(o, tenantOf, oncehttp.WithWait(time.Hour))
	require.NoError(t, err)
	return idempotent(handler)
}

func TestARetryOfAClientThatHasLeftRunsNothingTwice(t *testing.T) {
	for name, same := range map[string]bool{"on one pod": true, "on another pod": false} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				runs := 0
				slow := func(w http.ResponseWriter, r *http.Request) { // does not look at its context
					runs++
					<-time.After(4 * relock.DefaultTTL)
					created(w, r)
				}
				one, other := pod(t, w, slow), pod(t, w, slow)
				if same {
					other = one
				}
				ctx, leave := context.WithCancel(t.Context())
				first := make(chan int, 1)
				go func() { first <- send(one, post(t).WithContext(ctx)).Code }()
				stage.Pass(200 * time.Millisecond)
				leave()
				stage.Pass(2 * relock.DefaultTTL)
				again := send(other, post(t))
				require.Equal(t, http.StatusCreated, again.Code)
				require.Equal(t, "true", again.Header().Get(oncehttp.HeaderReplayed))
				require.Equal(t, http.StatusCreated, <-first)
				require.Equal(t, 1, runs)
			})
		})
	}
}
