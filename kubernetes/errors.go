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
	// firstPause and longestPause bound the pause between two attempts.
	firstPause, longestPause = 10 * time.Millisecond, 500 * time.Millisecond
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

// patiently makes attempts until one is answered or ctx is done. The error matches ErrUnsure if an
// earlier attempt without an answer may have run.
func patiently(ctx context.Context, attempt func() error) error {
	if ctx.Err() != nil {
		return lifetime.Ended(ctx)
	}
	unsure := false
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := attempt()
		if err == nil {
			return nil
		}
		again := errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil
		if again && !sleep(ctx, pause) {
			again, err = false, fmt.Errorf("%w: %w", lifetime.Ended(ctx), err)
		}
		unsure = unsure || errors.Is(err, store.ErrUnsure)
		switch {
		case !again && unsure:
			return store.Unsure(err)
		case !again:
			return err
		}
	}
}

// sleep returns false if ctx is done before d has passed.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
