package oncehttp

import (
	"errors"
	"net/http"

	"github.com/go-relock/relock/internal/problem"
	"github.com/go-relock/relock/once"
)

const typePrefix = "https://pkg.go.dev/github.com/go-relock/relock/once/http#"

// Types of the problems that the middleware sends in place of a handler's response, for clients
// that tell them apart. The handler has not run for the request that gets a problem. A problem with
// the header Retry-After invites the client to send the same request again after that time.
const (
	// TypeUnknownCaller is status 401: the scope function has not named the caller.
	TypeUnknownCaller = typePrefix + "TypeUnknownCaller"

	// TypeMissingKey is status 400: the request has no Idempotency-Key.
	TypeMissingKey = typePrefix + "TypeMissingKey"

	// TypeMalformedKey is status 400: the Idempotency-Key is empty, longer than 255 bytes, there
	// more than once, or not of the form of [HeaderKey].
	TypeMalformedKey = typePrefix + "TypeMalformedKey"

	// TypeUnreadableBody is status 400: the body of the request ended early.
	TypeUnreadableBody = typePrefix + "TypeUnreadableBody"

	// TypeBodyTooLarge is status 413: the body is longer than [WithMaxBody] allows.
	TypeBodyTooLarge = typePrefix + "TypeBodyTooLarge"

	// TypeMismatch is status 422: the key was used with another method, query or body.
	TypeMismatch = typePrefix + "TypeMismatch"

	// TypeInFlight is status 409, with Retry-After: the first request is running.
	TypeInFlight = typePrefix + "TypeInFlight"

	// TypeInterrupted is status 409, without Retry-After: an earlier attempt began, and nobody
	// knows what it has done. [once.FailIfInterrupted] asks for this.
	TypeInterrupted = typePrefix + "TypeInterrupted"

	// TypeNoResult is status 409, without Retry-After: the request was carried out, and its
	// response was too large to be stored. Every repeat gets this problem.
	TypeNoResult = typePrefix + "TypeNoResult"

	// TypeUnavailable is status 503, with Retry-After: the store does not answer.
	TypeUnavailable = typePrefix + "TypeUnavailable"
)

var (
	unknownCaller = problem.Problem{
		Type: TypeUnknownCaller, Status: http.StatusUnauthorized,
		Title:  "The caller is not known",
		Detail: "An Idempotency-Key belongs to a caller, and the request names none.",
	}
	missingKey = problem.Problem{
		Type: TypeMissingKey, Status: http.StatusBadRequest,
		Title:  "Idempotency-Key is missing",
		Detail: "This operation needs the request header Idempotency-Key.",
	}
	malformedKey = problem.Problem{
		Type: TypeMalformedKey, Status: http.StatusBadRequest,
		Title: "Idempotency-Key is malformed",
	}
	unreadableBody = problem.Problem{
		Type: TypeUnreadableBody, Status: http.StatusBadRequest,
		Title:  "The request body is not readable",
		Detail: "The request body ended early.",
	}
	bodyTooLarge = problem.Problem{
		Type: TypeBodyTooLarge, Status: http.StatusRequestEntityTooLarge,
		Title:  "The request body is too large",
		Detail: "The request body is longer than this operation allows.",
	}
	mismatch = problem.Problem{
		Type: TypeMismatch, Status: http.StatusUnprocessableEntity,
		Title:  "Idempotency-Key is already used",
		Detail: "The key was used with another request. Send this request with a key of its own.",
	}
	inFlight = problem.Problem{
		Type: TypeInFlight, Status: http.StatusConflict,
		Title:      "A request with this Idempotency-Key is running",
		Detail:     "An earlier request with the same key has not ended. Repeat later to get its response.",
		RetryAfter: 1,
	}
	interrupted = problem.Problem{
		Type: TypeInterrupted, Status: http.StatusConflict,
		Title: "An earlier attempt was interrupted",
		Detail: "An earlier request with the same key began and never ended. It may have been carried out. " +
			"Find out before you send the request with another key.",
	}
	noResult = problem.Problem{
		Type: TypeNoResult, Status: http.StatusConflict,
		Title:  "The response is not kept",
		Detail: "The request was carried out before. Its response was too large to be kept.",
	}
	unavailable = problem.Problem{
		Type: TypeUnavailable, Status: http.StatusServiceUnavailable,
		Title: "The request cannot be checked",
		Detail: "The store of idempotency keys does not answer, so this request was not carried out. " +
			"If the same request was sent before, that one may have been. Repeat with the same key.",
		RetryAfter: 1,
	}
)

// problemOf returns the problem for an error of once.Do that has not run the handler.
func problemOf(err error) *problem.Problem {
	switch {
	case errors.Is(err, once.ErrMismatch):
		return &mismatch
	case errors.Is(err, once.ErrInFlight):
		return &inFlight
	case errors.Is(err, once.ErrInterrupted):
		return &interrupted
	case errors.Is(err, once.ErrNoResult):
		return &noResult
	default:
		return &unavailable
	}
}
