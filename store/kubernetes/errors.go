package relockk8s

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// refusals are the answers of the API server that stay, or that say that a Lease is not as the
// command wants it. All other errors may pass, also 401 while a token is replaced.
var refusals = []func(error) bool{
	apierrors.IsNotFound, apierrors.IsAlreadyExists, apierrors.IsConflict, apierrors.IsGone, apierrors.IsResourceExpired,
	apierrors.IsInvalid, apierrors.IsBadRequest, apierrors.IsMethodNotSupported, apierrors.IsNotAcceptable,
	apierrors.IsUnsupportedMediaType, apierrors.IsRequestEntityTooLargeError,
}

// isRefusal says whether the API server has answered a command with one of refusals, or has refused
// the rights to the command. The answer of a proxy, which is no Status of the API, passes.
func isRefusal(err error) bool {
	switch {
	case apierrors.HasStatusCause(err, meta.CauseTypeUnexpectedServerResponse):
		return false
	case apierrors.IsForbidden(err):
		return !isQuota(err)
	default:
		return slices.ContainsFunc(refusals, func(is func(error) bool) bool { return is(err) })
	}
}

// quoted are the names of users and objects in the text of a Status.
var quoted = regexp.MustCompile(`"[^"]*"`)

// isQuota says whether a 403 is about a ResourceQuota. Such a 403 differs in its text only.
func isQuota(err error) bool {
	return strings.Contains(quoted.ReplaceAllString(err.Error(), ""), "quota")
}

// tooBusy is the error of a command that has met a new version of the Lease each time.
func tooBusy() error {
	return store.Unavailable(fmt.Errorf("the Lease has changed during each of %d attempts", changes))
}

// errChanged reports a command that was refused because the Lease is not as read, or is there.
var errChanged = errors.New("another client has changed the Lease")

// isChanged says whether a command was refused because the Lease is not as read, or is gone.
func isChanged(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }
