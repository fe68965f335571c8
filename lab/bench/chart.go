package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

// chart is a picture of a metric in the largest case of a workload, with a bar for each system.
type chart struct{ workload, which, metric, title string }

var charts = []chart{
	{"pair", "", "us", "Lock and unlock, nobody else: µs, less is better"},
	{"handover", largest, "p50_us", "Hand-over in a ring with the most waiters: median µs, less is better"},
	{"hot", "", "per_s", "256 goroutines on one lock: sections a second, more is better"},
}

// draw returns "" if no system has the figure. Texts are anchored at their ends, so that they fit
// in any font.
func (c chart) draw(r *report) string {
	if c.which == largest {
		c.which = r.largest(c.workload)
	}
	records := slices.DeleteFunc(r.in(c.workload, c.which), func(rec *record) bool { return math.IsNaN(rec.median(c.metric)) })
	most := 0.0
	for _, rec := range records {
		most = max(most, rec.median(c.metric))
	}
	if most == 0 {
		return ""
	}
	const left, longest, top, row = 190.0, 480.0, 56.0, 24.0
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 %[1]g" width="760" height="%[1]g" role="img" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13" fill="#222">`+"\n"+
		`<title>%[2]s</title>`+"\n"+`<rect width="760" height="%[1]g" fill="#fff"/>`+"\n",
		top+row*float64(len(records))+8, html.EscapeString(c.title))
	text := func(x, y float64, more, text string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, more, html.EscapeString(text))
	}
	text(16, 24, `font-size="15" font-weight="600"`, c.title)
	text(16, 42, `fill="#666"`, caseName(c.which, "commit "+r.Commit, r.Date.Format(time.DateOnly)))
	for i, rec := range records {
		y, colour := top+row*float64(i), "#777" // of a baseline
		if rec.System == "relock" {
			colour = "#d62728"
		} else if slices.Contains(others, rec.System) {
			colour = "#1f77b4"
		}
		v := rec.median(c.metric)
		text(left-8, y+16, `text-anchor="end"`, rec.name())
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", left, y+4, longest*v/most, row-8, colour)
		text(left+longest*v/most+6, y+16, "", figure(v))
	}
	return b.String() + "</svg>\n"
}
