package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// drawCharts writes the charts that have figures, and returns their file names by workload.
func drawCharts(dir string, r *report) (map[string][]string, error) {
	charts := map[string][]string{}
	save := func(workload, name, svg string) error {
		if svg == "" {
			return nil
		}
		name = "bench-" + name + ".svg"
		charts[workload] = append(charts[workload], name)
		return os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644)
	}
	held, idle, crash, storm := r.largest("held"), r.largest("idle"), r.largest("crash"), r.largest("storm")
	for _, c := range []struct {
		workload, which, name string
		chart                 barChart
	}{
		{"pair", "", "pair", barChart{title: "Lock and unlock, nobody else: µs, less is better", parts: medians("us")}},
		{"parallel", "", "parallel", barChart{title: "64 goroutines on own locks: pairs a second, more is better", parts: medians("per_s")}},
		{"hot", "", "hot", barChart{
			title: "256 goroutines on one lock: sections a second (logarithmic), more is better", parts: medians("per_s"), log: true,
		}},
		{"held", held, "held", barChart{
			title: held + ", one renewal: CPU µs of client and (pale) server, less is better",
			parts: medians("client_us", "server_us"), pale: 1,
		}},
		{"held", held, "held-bytes", barChart{
			title: held + ", memory for each: bytes of heap and (pale) of stacks, less is better",
			parts: medians("heap_bytes", "stack_bytes"), pale: 1,
		}},
		{"idle", idle, "idle", barChart{
			title: idle + ", memory for each: bytes of heap and (pale) of stack, less is better",
			parts: medians("heap_bytes", "stack_bytes"), pale: 1,
		}},
		{"idle", idle, "idle-commands", barChart{
			title: idle + ", nothing happens: commands a second (logarithmic), less is better",
			parts: medians("commands_per_s"), log: true,
		}},
		{"crash", crash, "crash", barChart{
			title: "A crash, until the next owner: (pale) rest of the lease, and more, of the TTL",
			parts: crashParts, pale: 0,
		}},
		{"storm", storm, "storm", barChart{
			title: storm + ", all cancelled during an Unlock: ms until the next has it (logarithmic)",
			parts: medians("next_ms"), log: true,
		}},
	} {
		if err := save(c.workload, c.name, c.chart.draw(r.in(c.workload, c.which))); err != nil {
			return nil, err
		}
	}
	return charts, save("handover", "handover", handoverChart(r))
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

const pale = `fill="#666"`

// barChart has a bar for each system.
type barChart struct {
	title string
	// parts of a bar, from the left. A NaN leaves the system out.
	parts func(rec *record) []float64
	pale  int // the number of the pale part
	log   bool
}

// medians returns metrics as the parts of a bar.
func medians(metrics ...string) func(rec *record) []float64 {
	return func(rec *record) []float64 {
		var parts []float64
		for _, m := range metrics {
			parts = append(parts, max(0, rec.median(m))) // a difference of memory may be negative
		}
		return parts
	}
}

// crashParts returns the rest of the dead holder's lease, and the time from there to the next
// owner.
func crashParts(rec *record) []float64 {
	total, late := rec.median("of_ttl"), rec.median("late_ms")*rec.median("of_ttl")/rec.median("total_ms")
	return []float64{total - late, late}
}

// draw returns "" if no system has the figure.
func (c barChart) draw(records []*record) string {
	const width, left, right, top, row = 760.0, 200.0, 70.0, 44.0, 24.0
	type bar struct {
		record *record
		parts  []float64
		sum    float64
	}
	var rows []bar
	lo, hi := math.Inf(1), 0.0
	for _, rec := range records {
		b := bar{record: rec, parts: c.parts(rec)}
		for _, p := range b.parts {
			b.sum += p
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
		s.text(x.at(v), bottom+20, "middle", pale, figure(v))
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
			if len(b.parts) > 1 && k == c.pale {
				s.veil(from, y+4, x.at(sum)-from, row-8)
			}
			from = x.at(sum)
		}
		s.text(from+6, y+16, "start", "", figure(b.sum))
	}
	return s.end()
}

// curve is a system in the chart of hand-overs.
type curve struct {
	record *record
	points [][2]float64
}

// handoverChart shows the time of a hand-over by the number of waiters, with a curve for each
// system.
func handoverChart(r *report) string {
	const width, left, right, top, bottom, height = 760.0, 84.0, 190.0, 50.0, 350.0, 400.0
	var curves []*curve
	x, y := axis{log: true, from: left + 10, to: width - right, lo: math.Inf(1)}, axis{log: true, from: bottom, to: top, lo: math.Inf(1)}
	for _, which := range r.cases("handover") {
		n, err := strconv.ParseFloat(strings.TrimSuffix(which, " waiting"), 64)
		if err != nil {
			continue // draining, or with an added round trip
		}
		for _, rec := range r.in("handover", which) {
			v := rec.median("p50_us")
			if math.IsNaN(v) || v <= 0 || colours[rec.System][0] == "" {
				continue
			}
			i := slices.IndexFunc(curves, func(c *curve) bool { return c.record.name() == rec.name() })
			if i < 0 {
				i = len(curves)
				curves = append(curves, &curve{record: rec})
			}
			curves[i].points = append(curves[i].points, [2]float64{n, v})
			x.lo, x.hi, y.lo, y.hi = min(x.lo, n), max(x.hi, n), min(y.lo, v), max(y.hi, v)
		}
	}
	if len(curves) == 0 || x.lo == x.hi {
		return ""
	}
	y.lo, y.hi = math.Pow(10, math.Floor(math.Log10(y.lo))), math.Pow(10, math.Ceil(math.Log10(y.hi)))
	s := newSVG(width, height, "Hand-over in a ring of separate clients: median µs (logarithmic), less is better")
	for _, v := range y.ticks() {
		s.line(left, y.at(v), width-right, y.at(v), "#e4e4e4")
		s.text(left-8, y.at(v)+4, "end", pale, figure(v))
	}
	for _, v := range x.ticks() {
		s.line(x.at(v), top, x.at(v), bottom, "#e4e4e4")
		s.text(x.at(v), bottom+20, "middle", pale, figure(v))
	}
	s.text((x.from+x.to)/2, bottom+40, "middle", pale, "waiting clients")

	// The names stand in the order of the ends of the curves.
	last := func(c *curve) float64 { return c.points[len(c.points)-1][1] }
	slices.SortStableFunc(curves, func(a, b *curve) int { return -int(math.Copysign(1, last(a)-last(b))) })
	for i, c := range curves {
		var path strings.Builder
		for j, p := range c.points {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(j, 1)], x.at(p[0]), y.at(p[1]))
			fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x.at(p[0]), y.at(p[1]), colourOf(c.record))
		}
		style := `stroke-width="2"`
		if c.record.System == rawWake {
			style += ` stroke-dasharray="5 4"`
		}
		fmt.Fprintf(s, `<path d="%s" stroke="%s" fill="none" %s/>`+"\n", path.String(), colourOf(c.record), style)
		ly := top + 14 + 22*float64(i)
		fmt.Fprintf(s, `<path d="M%.1f %.1fh22" stroke="%s" fill="none" %s/>`+"\n", width-right+14, ly, colourOf(c.record), style)
		s.text(width-right+42, ly+4, "start", "", c.record.name())
	}
	return s.end()
}
