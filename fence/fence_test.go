package fence_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
)

// A case here has arguments that every fence refuses before it does anything.
func TestWrongArgumentsAreRefused(t *testing.T) {
	for name, enter := range map[string]func(resource string, token int64) error{
		"Table": func(resource string, token int64) error {
			return fence.SQL(fence.Postgres).Enter(t.Context(), nil, resource, token)
		},
		"Memory": func(resource string, token int64) error {
			_, err := new(fence.Memory).Enter(t.Context(), resource, token)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := enter("orders", 0)
			require.ErrorIs(t, err, fence.ErrToken)
			require.EqualError(t, err, "fence: not the token of a writer: 0 means that no token was drawn")
			err = enter("orders", -7)
			require.ErrorIs(t, err, fence.ErrToken)
			require.EqualError(t, err, "fence: not the token of a writer: -7 is negative, as the token of a reader is")
			require.EqualError(t, enter("", 1),
				"fence: the name of a resource must have 1 to 255 bytes, and this one has 0")
			require.EqualError(t, enter(strings.Repeat("é", 128), 1),
				"fence: the name of a resource must have 1 to 255 bytes, and this one has 256")
		})
	}
}
