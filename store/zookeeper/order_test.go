package relockzk_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// children returns the nodes of a queue that is written in words. R5 is a reader with number 5 and
// ID R5, and W5 is such a writer. R7/W5 is reader R7 inside writer W5, with number 5. W7/R5 is
// writer W7 inside reader R5, with number 5. W9^R5 is an upgrade of R5 that waits, with number 9.
func children(queue string) (names []string) {
	for word := range strings.FieldsSeq(queue) {
		own, around, inside := strings.Cut(word, "/")
		own, reader, upgrade := strings.Cut(own, "^")
		number, mark, name := own[1:], "", map[byte]string{'R': "__READ__", 'W': "__WRIT__"}[own[0]]
		switch {
		case inside:
			number, mark = around[1:], "in-"
		case upgrade:
			mark = relockzk.UpgradeMark(store.ID(reader))
		}
		names = append(names, relockzk.NameOf(store.ID(own), mark, name, fmt.Sprintf("%010s", number)))
	}
	return names
}

func TestReadersAndWritersAreKeptOutByTheNodesBeforeThem(t *testing.T) {
	for _, c := range []struct {
		queue, own, with, queued string
		want                     string // the node in the way; empty: none
	}{
		{queue: "", own: "R"},
		{queue: "", own: "W"},
		{queue: "R1 R2", own: "R"},
		{queue: "R1 R2", own: "W", want: "R2"},
		{queue: "R1 W2 R3", own: "R", want: "W2"},
		{queue: "R1 W2 R3", own: "R1"},
		{queue: "R1 W2 R3", own: "W2", want: "R1"},
		{queue: "R1 W2 R3", own: "R3", want: "W2"},
		{queue: "W1 W2 R3 R4", own: "R4", want: "W2"},
		{queue: "W1 R2/W1 W3", own: "W1"},
		{queue: "W1 R2/W1 W3", own: "W3", want: "R2/W1"},
		{queue: "R2/W1 R3", own: "R3"},

		{queue: "W1 W2 R3", own: "R", with: "W1"},
		{queue: "W1 W2 R3 R4/W1", own: "R4", with: "W1"},
		{queue: "R2/W1 W3", own: "R2", with: "W1"},
		{queue: "R2 W3", own: "R", with: "W1", want: "W3"}, // the writer around the reader is gone

		{queue: "R1", own: "W", with: "R1"},
		{queue: "R1 R2", own: "W", with: "R1", want: "R2"},
		{queue: "R1 R2", own: "W", with: "R2", want: "R1"},
		{queue: "R1 W2 R3", own: "W", with: "R1"},
		{queue: "R1 R2 W3 R4 W5^R1", own: "W5", with: "R1", want: "R2"},
		{queue: "R1 W3 R4 W5^R1 R6", own: "W5", with: "R1"},
		{queue: "R1 W3 R4 W7/R1 R6", own: "W7", with: "R1", queued: "5"},
		{queue: "R1 R4 W7/R1 R6", own: "W7", with: "R1", queued: "5", want: "R4"}, // R4 may have entered before the transaction
		{queue: "R1 W7/R1 R6", own: "W7", with: "R1", queued: "5"},
		{queue: "R1 W2^R1 W3^R1", own: "W2", with: "R1"},
		{queue: "R1 W2^R1 W3^R1", own: "W3", with: "R1", want: "W2^R1"},
		{queue: "R1 W2/R1 W3^R1", own: "W3", with: "R1", want: "W2/R1"},
		{queue: "W0 R1/W0 R2/W0", own: "W", with: "R1", want: "W0"}, // two readers inside a writer
		{queue: "R1/W0 R2/W0", own: "W", with: "R1", want: "R2/W0"},
		{queue: "R1 W2^R1 R3", own: "R", want: "W2^R1"},
		{queue: "R1 W5/R1 W3 R4", own: "R4", want: "W3"},
	} {
		t.Run(fmt.Sprintf("%s with %s in %s", c.own, c.with, c.queue), func(t *testing.T) {
			a := store.Claim{ID: store.ID(c.own), With: store.ID(c.with), Kind: store.ReadWrite, Limit: 1}
			if c.own[0] == 'R' {
				a.Limit = store.Unlimited
			}
			queued := "~"
			if c.queued != "" {
				queued = fmt.Sprintf("%010s", c.queued)
			}
			var want string
			if c.want != "" {
				want = children(c.want)[0]
			}
			if own := strings.Index(c.queue, c.own+"^"); own >= 0 {
				queued = fmt.Sprintf("%010s", c.own[1:])
			}
			got, err := relockzk.Obstacle(children(c.queue), a, queued)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestSecondUpgradeInTheQueueIsADeadlock(t *testing.T) {
	queue := children("R1 R2 W3^R1 W4^R2")
	second := store.Claim{ID: "W4", With: "R2", Kind: store.ReadWrite, Limit: 1}
	_, err := relockzk.Obstacle(queue, second, "0000000004")
	require.ErrorIs(t, err, store.ErrDeadlock)
	first := store.Claim{ID: "W3", With: "R1", Kind: store.ReadWrite, Limit: 1}
	_, err = relockzk.Obstacle(queue, first, "0000000003")
	require.NoError(t, err)
	_, err = relockzk.Obstacle(children("R2 W3^R1 W4^R2"), second, "0000000004")
	require.NoError(t, err, "the reader of the first upgrade is gone")
}
