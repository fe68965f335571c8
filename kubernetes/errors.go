package relockk8s

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

const (
	// limit bounds each command, so that a silent API server holds up no attempt for longer.
	limit = 3 * time.Second
	// parallel is how many commands of one call are in flight.
	parallel = 16
)

// once runs a command.
func once(ctx context.Context, command func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := command(bounded)
	switch {
	case err == nil || isRefusal(err):
		return err
	case ctx.Err() != nil:
		return store.Unavailable(lifetime.Ended(ctx))
	case bounded.Err() != nil:
		return store.Unavailable(fmt.Errorf("the API server has given no answer in %s", limit))
	default:
		return store.Unavailable(fmt.Errorf("kubernetes: %w", err))
	}
}

// isRefusal says whether the API server has refused a command for a reason that stays: a status
// below 500 that is about this command.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}
