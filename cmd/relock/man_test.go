package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write relock.1 anew")

const manFile = "relock.1"

func TestTheManPageIsThatOfTheCommandsAndTheDocumentation(t *testing.T) {
	text := manPage(t)
	require.NotRegexp(t, "[^\x00-\x7F]", text, "escapes has all others")
	if *update {
		require.NoError(t, os.WriteFile(manFile, []byte(text), 0o644))
	}
	written, err := os.ReadFile(manFile)
	require.NoError(t, err)
	require.Equal(t, text, string(written), "make man writes the page anew")
}

// escapes has the characters that roff reads as others.
var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "^", `\(ha`, "`", `\(ga`, "~", `\(ti`, "…", `\[u2026]`, "\n.", "\n\\&.")

// roff escapes text. A line that begins with a point would be a request.
func roff(text string) string { return escapes.Replace("\n" + text)[1:] }

var (
	link = regexp.MustCompile(`\[([^]]+)\]\([^)]+\)`)
	code = regexp.MustCompile(`\\\(ga(.+?)\\\(ga`)
)

// rows returns the rows of a table of the page. The first cell is the term.
func rows(t *testing.T, head string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page(t), head)
	require.True(t, ok, head)
	table, _, _ := strings.Cut(rest, "\n\n")
	inline := func(cell string) string {
		return code.ReplaceAllString(roff(link.ReplaceAllString(cell, "$1")), `\fB$1\fR`)
	}
	var b strings.Builder
	for line := range strings.Lines(table) {
		if cells := strings.Split(strings.Trim(line, "| \n"), " | "); len(cells) > 1 {
			fmt.Fprintf(&b, ".TP\n%s\n%s\n", inline(cells[0]), inline(cells[len(cells)-1]))
		}
	}
	return b.String()
}

// manPage makes the man page: the help of all commands, with the variables and the exit codes of
// the page.
func manPage(t *testing.T) string {
	t.Helper()
	root := (&app{}).root()
	about, _, _ := strings.Cut(root.Long, "\n\n")
	var b strings.Builder
	fmt.Fprintf(&b, ".\\\" Made by make man.\n.TH RELOCK 1 \"\" relock\n.SH NAME\nrelock \\- %s\n.SH SYNOPSIS\nrelock COMMAND\n", roff(root.Short))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n.SH COMMANDS\n", roff(about))
	for _, cmd := range root.Commands() {
		var help bytes.Buffer
		cmd.SetOut(&help)
		require.NoError(t, cmd.Help())
		fmt.Fprintf(&b, ".SS relock %s\n.nf\n%s\n.fi\n", cmd.Name(), roff(strings.TrimSpace(help.String())))
	}
	b.WriteString(".SH ENVIRONMENT\n" + rows(t, "| variable | meaning |\n"))
	b.WriteString(".SH \"EXIT STATUS\"\n" + rows(t, "| code | when |\n"))
	b.WriteString(".SH \"SEE ALSO\"\n.BR flock (1)\n.PP\n" + roff("https://github.com/go-relock/relock/blob/main/cmd/relock/README.md") + "\n")
	return b.String()
}
