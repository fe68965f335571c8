package fence

import (
	"errors"
	"fmt"
)

// Reasons of a refusal, for [errors.Is].
var (
	// ErrStale reports that a newer token has touched the resource: the caller has lost its lock,
	// and nothing may be written with its token any more.
	ErrStale = errors.New("fence: a newer token has touched the resource")

	// ErrToken reports a token that cannot write: 0 is no token, and the token of a reader is
	// negative.
	ErrToken = errors.New("fence: not the token of a writer")
)

// maxResource is the greatest length of a resource's name in bytes.
const maxResource = 255

// check returns the error of arguments that no fence accepts.
func check(resource string, token int64) error {
	if n := len(resource); n == 0 || n > maxResource {
		return fmt.Errorf("fence: the name of a resource must have 1 to %d bytes, and this one has %d",
			maxResource, n)
	}
	switch {
	case token == 0:
		return fmt.Errorf("%w: 0 means that no token was drawn", ErrToken)
	case token < 0:
		return fmt.Errorf("%w: %d is negative, as the token of a reader is", ErrToken, token)
	}
	return nil
}

// stale returns the error of a token that is too small.
func stale(resource string, token int64) error {
	return fmt.Errorf("%w: resource %q, token %d", ErrStale, resource, token)
}
