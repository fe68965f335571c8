package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// page returns the documentation of the command.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	return string(text)
}

// shellBlocks returns the blocks of shell commands of the page.
func shellBlocks(t *testing.T) (blocks []string) {
	t.Helper()
	for i, part := range strings.Split(page(t), "\n```") {
		if script, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 {
			blocks = append(blocks, script)
		}
	}
	require.NotEmpty(t, blocks)
	return blocks
}

func TestEveryCommandFlagAndExitCodeIsDocumented(t *testing.T) {
	text := page(t)
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		check := func(f *pflag.Flag) { require.Contains(t, text, "`--"+f.Name+"`", "of %s", cmd.Name()) }
		cmd.LocalFlags().VisitAll(check)
		for _, sub := range cmd.Commands() {
			require.Contains(t, text, "relock "+sub.Name())
			visit(sub)
		}
	}
	visit((&app{}).root())
	for code, word := range kinds {
		require.Contains(t, text, "`"+word+"` ("+strconv.Itoa(code)+")")
		require.Regexp(t, `(?m)^\| [0-9, ]*\b`+strconv.Itoa(code)+`\b.* \|`, text)
	}
}

func TestEveryCallInTheDocumentationIsAccepted(t *testing.T) {
	calls := 0
	for _, block := range shellBlocks(t) {
		for line := range strings.Lines(block) {
			if !strings.HasPrefix(line, "relock ") {
				continue
			}
			calls++
			root := (&app{}).root()
			cmd, args, err := root.Find(shellWords(line)[1:])
			require.NoError(t, err, line)
			require.NotEqual(t, root, cmd, line)
			require.NoError(t, cmd.ParseFlags(args), line)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), line)
		}
	}
	require.Greater(t, calls, 10)
}

// shellWord matches a word of a shell, with its quotes.
var shellWord = regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`)

// shellWords returns the words of a command, up to a redirection, a comment or the next command.
func shellWords(line string) (words []string) {
	for _, word := range shellWord.FindAllString(line, -1) {
		if strings.ContainsAny(word[:1], "<>&|;#") {
			break
		}
		words = append(words, strings.NewReplacer(`'`, "", `"`, "").Replace(word))
	}
	return words
}
