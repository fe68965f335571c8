package relock_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheReadmeShowsTheCommandsThatARedisUserNeeds(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	rule := regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindString(string(text))
	require.NotEmpty(t, rule)
	var shown []string
	for _, word := range strings.Fields(rule) {
		if command, ok := strings.CutPrefix(word, "+"); ok {
			shown = append(shown, command)
		}
	}
	require.ElementsMatch(t, aclCommands, shown)
	for _, command := range aclReplicaAcks {
		require.Contains(t, string(text), "`+"+command+"`")
	}
}
