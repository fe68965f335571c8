package relock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThePagesShowTheCommandsThatARedisUserNeeds(t *testing.T) {
	for page, needs := range map[string][]string{"README.md": aclCommands, "docs/REDISSON.md": redissonACL} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		rule := regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindString(string(text))
		require.NotEmpty(t, rule)
		var shown []string
		for _, word := range strings.Fields(rule) {
			if command, ok := strings.CutPrefix(word, "+"); ok {
				shown = append(shown, command)
			}
		}
		require.ElementsMatch(t, needs, shown, page)
		for _, command := range aclReplicaAcks {
			require.Contains(t, string(text), "`+"+command+"`")
		}
		inCluster := slices.Concat(aclInCluster, aclNotInCluster)
		if page != "README.md" {
			require.Contains(t, string(text), "+"+strings.Join(redissonFencingACL, " +"))
			inCluster = redissonClusterACL
		}
		for _, command := range inCluster {
			require.Regexp(t, `(?i)in a cluster[^.]*\+`+regexp.QuoteMeta(command)+"[ `]", string(text))
		}
	}
}

func TestEveryTestThatTheGuaranteesNameIsThere(t *testing.T) {
	page, err := os.ReadFile("docs/GUARANTEES.md")
	require.NoError(t, err)
	var files []string
	for _, pattern := range []string{"*_test.go", "soak/*_test.go", "soak/history/*_test.go"} {
		some, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, some...)
	}
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		tests.Write(text)
	}
	named := regexp.MustCompile("`(Test[A-Za-z]+)(…?)`").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, named)
	for _, name := range named {
		declared := "func " + name[1]
		if name[2] == "" {
			declared += "("
		}
		require.Contains(t, tests.String(), declared)
	}
}
