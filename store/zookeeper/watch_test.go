package relockzk_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	relockzk "github.com/go-relock/relock/store/zookeeper"
)

func TestAnEventOfANodeLooksAtNoOtherHold(t *testing.T) {
	require.True(t, relockzk.FoundAlone())
}
