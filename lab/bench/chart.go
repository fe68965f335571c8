package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// Charts show the first things to see; tables have the rest. Libraries for charts place texts by
// the measures of their own font, and the page is shown in another font. These charts anchor texts
// at their ends, so that the texts fit in any font.

// colours of a system, tuned and (paler) with its defaults.
var colours = map[string][2]string{
	"relock":      {"#d62728", "#d62728"},
	"floor":       {"#777777", "#777777"},
	rawWake:       {"#777777", "#777777"},
	bareGrant:     {"#444444", "#444444"},
	rawRenewal:    {"#777777", "#777777"},
	"redsync":     {"#1f77b4", "#9cc4e4"},
	"redislock":   {"#2ca02c", "#9fd99f"},
	"rueidislock": {"#8455b8", "#c7b0e0"},
}

func colourOf(rec *record) string {
	c := colours[rec.System]
	if rec.Setting == defaults {
		return c[1]
	}
	return c[0]
}

// chart has a bar for each system.
type chart struct {
	workload, which, title string
	metrics                []string // the parts of a bar, from the left; the second is pale
	log                    bool
}

// charts returns the pictures of the page: one for each of four workloads, of its largest case.
func charts(r *report) []chart {
	waiting, held := r.largest("handover"), r.largest("held")
	return []chart{
		{workload: "pair", title: "Lock and unlock, nobody else: µs, less is better", metrics: []string{"us"}},
		{
			workload: "handover", which: waiting, metrics: []string{"p50_us"}, log: true,
			title: "Hand-over in a ring, " + waiting + ": median µs (logarithmic), less is better",
		},
		{
			workload: "hot", metrics: []string{"per_s"}, log: true,
			title: "256 goroutines on one lock: sections a second (logarithmic), more is better",
		},
		{
			workload: "held", which: held, metrics: []string{"client_us", "server_us"},
			title: held + ", one renewal: CPU µs of client and (pale) server, less is better",
		},
	}
}

// drawCharts writes the charts that have figures, and returns their file names by workload.
func drawCharts(dir string, r *report) (map[string]string, error) {
	names := map[string]string{}
	for _, c := range charts(r) {
		drawn := c.draw(r.in(c.workload, c.which))
		if drawn == "" {
			continue
		}
		names[c.workload] = "bench-" + c.workload + ".svg"
		if err := os.WriteFile(filepath.Join(dir, names[c.workload]), []byte(drawn), 0o644); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// svg is a picture in the making.
type svg struct {
	strings.Builder

	width, height float64
}

func newSVG(width, height float64, title string) *svg {
	s := &svg{width: width, height: height}
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13" fill="#222">`+"\n",
		width, height, width, height)
	fmt.Fprintf(s, "<title>%s</title>\n", html.EscapeString(title))
	s.rect(0, 0, width, height, "#ffffff")
	s.text(16, 24, "start", `font-size="15" font-weight="600"`, title)
	return s
}

func (s *svg) rect(x, y, w, h float64, colour string) {
	fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, w, h, colour)
}

// veil makes an area pale.
func (s *svg) veil(x, y, w, h float64) {
	fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#ffffff" fill-opacity="0.6"/>`+"\n", x, y, w, h)
}

func (s *svg) line(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(s, `<path d="M%.1f %.1fL%.1f %.1f" stroke="%s" fill="none"/>`+"\n", x1, y1, x2, y2, colour)
}

func (s *svg) text(x, y float64, anchor, more, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, more, html.EscapeString(text))
}

func (s *svg) end() string { return s.String() + "</svg>\n" }

// axis turns figures into places.
type axis struct {
	from, to float64 // places
	lo, hi   float64 // figures
	log      bool
}

func (a axis) at(v float64) float64 {
	if a.log {
		return a.from + (a.to-a.from)*math.Log(v/a.lo)/math.Log(a.hi/a.lo)
	}
	return a.from + (a.to-a.from)*(v-a.lo)/(a.hi-a.lo)
}

// ticks returns the figures at the axis: powers of ten, or about five round figures.
func (a axis) ticks() []float64 {
	var ticks []float64
	if a.log {
		for v := math.Pow(10, math.Ceil(math.Log10(a.lo)-1e-9)); v <= a.hi*(1+1e-9); v *= 10 {
			ticks = append(ticks, v)
		}
		return ticks
	}
	step := math.Pow(10, math.Floor(math.Log10((a.hi-a.lo)/2)))
	for (a.hi-a.lo)/step > 6 {
		step *= 2
	}
	for v := a.lo; v <= a.hi; v += step {
		ticks = append(ticks, v)
	}
	return ticks
}

// draw returns "" if no system has the figure.
func (c chart) draw(records []*record) string {
	const width, left, right, top, row = 760.0, 200.0, 70.0, 44.0, 24.0
	type bar struct {
		record *record
		parts  []float64
		sum    float64
	}
	var rows []bar
	lo, hi := math.Inf(1), 0.0
	for _, rec := range records {
		b := bar{record: rec}
		for _, metric := range c.metrics {
			b.parts = append(b.parts, rec.median(metric))
			b.sum += rec.median(metric)
		}
		if math.IsNaN(b.sum) || colours[rec.System][0] == "" {
			continue
		}
		rows = append(rows, b)
		if b.sum > 0 {
			lo, hi = min(lo, b.sum), max(hi, b.sum)
		}
	}
	if hi == 0 {
		return ""
	}
	x := axis{from: left, to: width - right, hi: hi, log: c.log}
	if c.log {
		x.lo = math.Pow(10, math.Floor(math.Log10(lo/2)))
	}
	bottom := top + row*float64(len(rows))
	s := newSVG(width, bottom+34, c.title)
	for _, v := range x.ticks() {
		s.line(x.at(v), top-4, x.at(v), bottom+4, "#e4e4e4")
		s.text(x.at(v), bottom+20, "middle", `fill="#666"`, figure(v))
	}
	for i, b := range rows {
		y := top + row*float64(i)
		s.text(left-8, y+16, "end", "", b.record.name())
		from, sum := left, 0.0
		for k, p := range b.parts {
			sum += p
			if sum == 0 {
				continue // zero has no place on a logarithmic axis
			}
			s.rect(from, y+4, x.at(sum)-from, row-8, colourOf(b.record))
			if k == 1 {
				s.veil(from, y+4, x.at(sum)-from, row-8)
			}
			from = x.at(sum)
		}
		s.text(from+6, y+16, "start", "", figure(b.sum))
	}
	return s.end()
}
