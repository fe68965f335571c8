package torture

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Verdict is what a scenario says of a library.
type Verdict struct {
	Scenario, Library string
	Promised          bool     // there is something to break
	Wrong             []string // promises that were broken
	Late              []string // who got no lock in time, which breaks only [Serves]
	Seed              uint64
}

func (v Verdict) String() string {
	switch {
	case !v.Promised:
		return "not promised"
	case len(v.Wrong) > 0:
		return "FAIL"
	case len(v.Late) > 0:
		return "late"
	default:
		return "pass"
	}
}

func (v Verdict) all() []string { return slices.Concat(v.Wrong, v.Late) }

func (v Verdict) note(what string) string {
	seed := fmt.Sprintf(" (seed %d)", v.Seed)
	if v.Seed == 0 { // it did not run, see Library.Ends
		seed = ""
	}
	return shortened(v.Library + " in " + v.Scenario + seed + ": " + what)
}

// Report is what the page says.
type Report struct {
	Date, Commit, Server, Long string
	Verdicts, Controls         []Verdict
}

// find returns the verdict of a scenario on a library.
func (r *Report) find(s *Scenario, l *Library) (Verdict, bool) {
	i := slices.IndexFunc(r.Verdicts, func(v Verdict) bool { return v.Scenario == s.Name && v.Library == l.Name })
	if i < 0 {
		return Verdict{}, false
	}
	return r.Verdicts[i], true
}

// Page writes the results as a page.
func (r *Report) Page() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Torture

What lock libraries do when servers, links and processes fail: one table, made by one command on this machine or yours.

    make torture                        # all, within half an hour: this page
    make torture RUN='cuts|pause'       # scenarios whose names match; writes nothing
    make torture PEER=redsync           # a library; writes nothing

Made on %s, of %s, with %s and %s. The trouble of a crowd lasted %s.

**pass**: no promise was broken, which is not a proof. **FAIL**: a promise was broken; the notes say how. **–**: the
documentation of the library promises nothing that the scenario could break. An empty cell: the server of that library
cannot have the trouble here. Every lock promises mutual exclusion; the table of versions says what else. A holder that
has to watch its lease by itself stops in time here. An Unlock without an error has to free its lock, and may fail in
trouble only. Who waits and gets no lock in time breaks a promise only if the library wakes its waiters, and did so in
the same scenario without its trouble. All others who came late have a list of their own.

A library takes part with an adapter of about fifty lines ([lab/torture/libraries.go](../lab/torture/libraries.go)). The
last column is the mistake of a home-made lock that has to fail in the scenario.

`, r.Date, cmp.Or(r.Commit, "this tree"), r.Server, runtime.Version(), r.Long)
	b.WriteString("| library | version | what its documentation promises |\n|---|---|---|\n")
	for _, l := range Libraries {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", l.Name, cmp.Or(l.Version(), "this tree"), l.Claim)
	}
	b.WriteString("\n|")
	for _, l := range Libraries {
		fmt.Fprintf(&b, " | %s", l.Name)
	}
	fmt.Fprintf(&b, " | fails here |\n|---%s|---|\n", strings.Repeat("|:-:", len(Libraries)))
	var notes, late []string
	for _, s := range Scenarios {
		fmt.Fprintf(&b, "| %s", s.Name)
		for _, l := range Libraries {
			v, there := r.find(s, l)
			wrong := v.Wrong
			if r.wakes(s, l) {
				wrong = v.all()
			}
			switch {
			case !there:
				b.WriteString(" |  ")
			case !v.Promised:
				b.WriteString(" | –")
			case len(wrong) == 0:
				b.WriteString(" | pass")
			default:
				notes = append(notes, v.note(wrong[0]))
				fmt.Fprintf(&b, " | **FAIL** (%d)", len(notes))
			}
			if len(wrong) == 0 && len(v.Late) > 0 {
				late = append(late, v.note(v.Late[0]))
			}
		}
		fmt.Fprintf(&b, " | %s |\n", s.Defect)
	}
	list(&b, "Notes", notes)
	list(&b, "Late", late)
	b.WriteString("\n## Without trouble\n\n| library | runs | |\n|---|--:|---|\n")
	for _, l := range Libraries {
		if runs, failed := r.controls(l); runs > 0 {
			fmt.Fprintf(&b, "| %s | %d | %s |\n", l.Name, runs, cell(failed))
		}
	}
	b.WriteString("\n## Scenarios\n\n| scenario | the trouble, and what fails |\n|---|---|\n")
	for _, s := range Scenarios {
		fmt.Fprintf(&b, "| %s | %s |\n", s.Name, cell(s.Text))
	}
	return b.String()
}

// wakes says whether lateness in a scenario is a failure: the library promises to wake its waiters,
// and was not late in the same scenario without its trouble.
func (r *Report) wakes(s *Scenario, l *Library) bool {
	return l.Promises&Serves != 0 && !slices.ContainsFunc(r.Controls, func(v Verdict) bool {
		return v.Library == l.Name && v.Scenario == s.Name && len(v.Late) > 0
	})
}

// list writes a table of notes with numbers, if there are notes.
func list(b *strings.Builder, title string, notes []string) {
	if len(notes) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n| | |\n|--:|---|\n", title)
	for i, note := range notes {
		fmt.Fprintf(b, "| %d | %s |\n", i+1, cell(note))
	}
}

// cell is a text in a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

// controls counts the runs of a library without trouble, and says what was wrong in them.
func (r *Report) controls(l *Library) (runs int, failed string) {
	bad, first := 0, ""
	for _, v := range r.Controls {
		if v.Library != l.Name || !v.Promised {
			continue
		}
		runs++
		if all := v.all(); len(all) > 0 {
			bad++
			first = cmp.Or(first, v.note(all[0]))
		}
	}
	if bad == 0 {
		return runs, "nothing was wrong"
	}
	return runs, fmt.Sprintf("something was wrong in %d, such as %s", bad, first)
}

// shortened is a note on one line without ports, which differ from run to run.
func shortened(note string) string {
	note = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(note, "the server")
	note, _, _ = strings.Cut(note, "\n")
	if len(note) > 240 {
		note = note[:240] + "…"
	}
	return note
}

// Write writes the page to a file.
func (r *Report) Write(path string) error {
	r.Date = time.Now().UTC().Format(time.DateOnly)
	return os.WriteFile(path, []byte(r.Page()), 0o644)
}
