// Package code has the Go code of the pages, so that each piece is compiled and run.
//
// A page names a region of a file of this package before each block of Go:
//
//	<!-- code: quickstart_test.go http -->
//
// The region stands between the comments "// page: http" and "// end" inside of a test, or of a
// function that a test calls. "make snippets" writes the blocks from the code.
package code

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var update = flag.Bool("update", false, "write the blocks of the pages from the code")

// root is the root of the repository.
const root = "../.."

// pages returns the paths of all pages, from root.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md", "*/*/*/*.md"} {
		some, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		found = append(found, some...)
	}
	return found
}

// goBlock is a block of Go on a page, with the comment before the block, if there is one.
var goBlock = regexp.MustCompile("(?s)(<!-- code: [^\n]*? -->\n)?```go\n(.*?)```\n")

// noCode is the comment before a block that cannot be run.
var noCode = regexp.MustCompile(`^<!-- code: none, because .* -->\n$`)

// fromCode is the comment that names a region.
var fromCode = regexp.MustCompile(`^<!-- code: ([\w./]+\.go) ([\w-]+) -->\n$`)

func TestTheCodeOnThePagesIsTheCodeOfThisPackage(t *testing.T) {
	blocks := 0
	for _, path := range pages(t) {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		current := goBlock.ReplaceAllStringFunc(string(content), func(text string) string {
			blocks++
			match := goBlock.FindStringSubmatch(text)
			comment, shown := match[1], match[2]
			if noCode.MatchString(comment) {
				return text
			}
			name := fromCode.FindStringSubmatch(comment)
			require.NotNil(t, name, "%s: no comment, or an odd one, names the code of this block:\n%s", path, shown)
			return comment + "```go\n" + region(t, name[1], name[2]) + "```\n"
		})
		if *update && current != string(content) {
			require.NoError(t, os.WriteFile(path, []byte(current), 0o600))
		} else {
			require.Equal(t, current, string(content), "%s has other code than docs/code; make snippets writes it", path)
		}
	}
	require.Greater(t, blocks, 4, "the pages have been found")
}

// region returns the code of a region, without its common indentation.
func region(t *testing.T, file, name string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	begin := regexp.MustCompile(`(?m)^([\t]*)// page: ` + regexp.QuoteMeta(name) + `$\n`).FindStringSubmatchIndex(string(content))
	require.NotNil(t, begin, "%s has no region %s", file, name)
	indent := string(content[begin[2]:begin[3]])
	text, _, ended := strings.Cut(string(content[begin[1]:]), "\n"+indent+"// end\n")
	require.True(t, ended, "the region %s of %s has no end", name, file)
	lines := strings.Split(strings.Trim(text, "\n"), "\n") // gofmt wants an empty line before or behind some marks
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, indent)
	}
	return strings.Join(lines, "\n") + "\n"
}

// link is a link of a page to a file, to a heading of a page, or to both.
var link = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]*))?\)`)

func TestTheLinksOfThePagesLeadToFilesAndHeadings(t *testing.T) {
	for _, path := range pages(t) {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, match := range link.FindAllStringSubmatch(string(content), -1) {
			target := match[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "../security/") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			_, err := os.Stat(file)
			require.NoError(t, err, path)
			if match[2] != "" {
				require.Contains(t, anchors(t, file), match[2], "%s links to a heading of %s", path, file)
			}
		}
	}
}

// heading is a heading of a page, and noAnchor is each character that its anchor leaves out.
var (
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors returns the names by which links lead to the headings of a page.
func anchors(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	var found []string
	for _, match := range heading.FindAllStringSubmatch(string(content), -1) {
		text := noAnchor.ReplaceAllString(strings.ToLower(match[1]), "")
		found = append(found, strings.ReplaceAll(text, " ", "-"))
	}
	return found
}

// run is a command of the examples on a page.
var run = regexp.MustCompile(`(?m)^(?:REDIS_URL=\S+ )?(?:cd (\S+) && )?go run (\./\S+|\.)`)

func TestTheProgramsOfThePagesAreThere(t *testing.T) {
	for _, path := range pages(t) {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, match := range run.FindAllStringSubmatch(string(content), -1) {
			sources, err := filepath.Glob(filepath.Join(root, match[1], match[2], "*.go"))
			require.NoError(t, err)
			require.NotEmpty(t, sources, "%s: %s", path, match[0])
		}
	}
}

// A blank line between two rows ends a table for a reader, and not for its writer.
func TestTheTablesOfThePagesAreWholeAndTheirLinesShort(t *testing.T) {
	for _, path := range pages(t) {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		lines, code := strings.Split(string(content), "\n"), false
		for i, line := range lines {
			row := strings.HasPrefix(line, "|")
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if row && !code && i > 1 && lines[i-1] == "" && strings.HasPrefix(lines[i-2], "|") {
				require.True(t, strings.HasPrefix(lines[i+1], "|-"), "%s:%d: a row without its table", path, i+1)
			}
			if !row && !code && !strings.Contains(path, "decisions") && !strings.Contains(path, "CHANGELOG") && !strings.Contains(path, "testdata") {
				require.LessOrEqual(t, len([]rune(line)), 160, "%s:%d", path, i+1)
			}
		}
	}
}
