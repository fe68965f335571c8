package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	if groff, err := exec.LookPath("groff"); err == nil {
		out, err := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z", manFile).CombinedOutput()
		require.NoError(t, err)
		require.Empty(t, string(out), "warnings")
	}
}

// man writes a man page.
type man struct{ strings.Builder }

// line writes a request of roff with its text.
func (m *man) line(request string, parts ...string) {
	m.WriteString(strings.TrimSpace(request+" "+strings.Join(parts, " ")) + "\n")
}

// text writes paragraphs.
func (m *man) text(text string) {
	for i, paragraph := range strings.Split(text, "\n\n") {
		if i > 0 {
			m.line(".PP")
		}
		m.line(roff(paragraph))
	}
}

// verbatim writes lines as they are, but for an indent of two.
func (m *man) verbatim(text string) {
	m.line(".PP")
	m.line(".nf")
	m.line(roff(strings.ReplaceAll("\n"+text, "\n  ", "\n")[1:]))
	m.line(".fi")
}

// rows writes the rows of the first table of a section of the page. The first cell is the term.
func (m *man) rows(section string) {
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		if strings.HasPrefix(line, "| ") {
			m.line(".TP")
			m.line(inline(cells[0]))
			m.line(inline(cells[len(cells)-1]))
		}
	}
}

// flags writes flags with their meaning.
func (m *man) flags(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(f)
		term := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			term = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + term
		}
		if value != "" {
			term += ` \fI` + roff(value) + `\fR`
		}
		if !strings.Contains(usage, "(default") && !slices.Contains([]string{"", "0", "0s", "false", "[]"}, f.DefValue) {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		m.line(".TP")
		m.line(term)
		m.line(roff(usage))
	})
}

// escapes has the characters that roff reads as others.
var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "^", `\(ha`, "`", `\(ga`, "~", `\(ti`, "…", `\[u2026]`, "\n.", "\n\\&.")

// roff escapes text. A line that begins with a point would be a request.
func roff(text string) string { return escapes.Replace("\n" + text)[1:] }

var (
	link = regexp.MustCompile(`\[([^]]+)\]\([^)]+\)`)
	code = regexp.MustCompile(`\\\(ga(.+?)\\\(ga`)
)

// inline turns the Markdown of a table's cell into roff.
func inline(cell string) string {
	return code.ReplaceAllString(roff(link.ReplaceAllString(strings.TrimSpace(cell), "$1")), `\fB$1\fR`)
}

// sectionOf returns the text of the page between two others.
func sectionOf(t *testing.T, from, to string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page(t), from)
	require.True(t, ok, from)
	text, _, ok := strings.Cut(rest, to)
	require.True(t, ok, to)
	return text
}

// manPage makes the man page of the commands, with the variables and the exit codes of the page.
func manPage(t *testing.T) string {
	t.Helper()
	root := newRoot()
	commands := slices.DeleteFunc(root.Commands(), func(cmd *cobra.Command) bool { return cmd.Name() == "help" })
	m := &man{}
	m.line(`.\" Made by make man.`)
	m.line(`.TH RELOCK 1 "" relock`)
	m.line(".SH NAME")
	m.line(`relock \- ` + roff(strings.ToLower(root.Short[:1])+root.Short[1:]))
	m.line(".SH SYNOPSIS")
	for i, cmd := range commands {
		if i > 0 {
			m.line(".br")
		}
		m.line(roff(root.Name() + " " + cmd.Use))
	}
	m.line(".SH DESCRIPTION")
	about, _, _ := strings.Cut(root.Long, "\n\n")
	m.text(about)
	m.line(".SH COMMANDS")
	for _, cmd := range commands {
		m.line(".SS", roff(root.Name()+" "+cmd.Use))
		m.text(strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)))
		m.flags(cmd.LocalNonPersistentFlags())
		if cmd.Example != "" {
			m.verbatim(cmd.Example)
		}
	}
	m.line(".SH OPTIONS")
	m.line("All commands have these.")
	m.flags(root.PersistentFlags())
	m.line(".SH ENVIRONMENT")
	m.rows(sectionOf(t, "| variable | meaning |\n", "\n\n"))
	m.line(`.SH "EXIT STATUS"`)
	m.rows(sectionOf(t, "| code | when |\n", "\n\n"))
	m.line(".SH EXAMPLE")
	m.line("A script that holds a lock while its steps run:")
	for _, block := range shellBlocks(t) {
		if strings.Contains(block, "mkfifo") {
			m.verbatim(strings.TrimSpace(block))
		}
	}
	m.line(`.SH "SEE ALSO"`)
	m.line(`.BR flock (1)`)
	m.line(".PP")
	m.line(roff("https://github.com/go-relock/relock/blob/main/docs/CLI.md"))
	return m.String()
}
