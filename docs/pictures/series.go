package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// drawSeries draws recorded series, a chart for each panel.
func drawSeries(source string) (*canvas, error) {
	var all series
	if err := json.Unmarshal([]byte(source), &all); err != nil {
		return nil, err
	}
	const columns, wide, high, top = 3, 290.0, 210.0, 76.0
	rows := (len(all.Panels) + columns - 1) / columns
	c := newCanvas(columns*wide+20, top+float64(rows)*high+10, all.Title)
	c.text(point{20, 30}, "bold big", all.Title)
	c.text(point{20, 52}, "dim", all.Small)
	for i, p := range all.Panels {
		at := point{16 + wide*float64(i%columns), top + high*float64(i/columns)}
		c.chart(area{at, point{at.x + wide - 12, at.y + high - 12}}, p, all.Step)
	}
	return c, nil
}

// chart draws one panel: its title, the curves over the time in minutes, and their names.
func (c *canvas) chart(a area, p panel, step float64) {
	c.rect(a, "grey-area", 4)
	c.text(point{a.from.x + 10, a.from.y + 18}, "bold", p.Title)
	top, n := 0.0, 1
	for _, curve := range p.Curves {
		n = len(curve.Values)
		for _, v := range curve.Values {
			if v != nil {
				top = max(top, *v)
			}
		}
	}
	top = roundUp(top)
	names := (len(p.Curves) + 2) / 3
	plot := area{point{a.from.x + 58, a.from.y + 30}, point{a.to.x - 14, a.to.y - 26 - 14*float64(names)}}
	x := func(i int) float64 { return plot.from.x + (plot.to.x-plot.from.x)*float64(i)/float64(n-1) }
	y := func(v float64) float64 { return plot.to.y - (plot.to.y-plot.from.y)*v/top }
	for _, v := range []float64{0, top / 2, top} {
		fmt.Fprintf(c, `<path class="grey" d="M%.1f %.1fH%.1f" stroke-width="0.4"/>`+"\n", plot.from.x, y(v), plot.to.x)
		c.text(point{plot.from.x - 6, y(v) + 4}, "end dim", figure(v, p.Unit))
	}
	for i := 0; i < n-1; i += int(300 / step) {
		c.text(point{x(i), plot.to.y + 16}, "middle dim", fmt.Sprintf("%g min", float64(i)*step/60))
	}
	if p.Unit != "s" { // quantiles are in order already
		slices.SortStableFunc(p.Curves, func(a, b curve) int { return cmp.Compare(b.sum(), a.sum()) })
	}
	for i, curve := range p.Curves {
		tint := tints[(i+1)%len(tints)].name
		path, begun := "", false
		for k, v := range curve.Values {
			if v == nil {
				begun = false
				continue
			}
			letter := "M"
			if begun {
				letter = "L"
			}
			path += fmt.Sprintf("%s%.1f %.1f", letter, x(k), y(*v))
			begun = true
		}
		fmt.Fprintf(c, `<path class="%s" d="%s" fill="none" stroke-width="1.5"/>`+"\n", tint, path)
		c.text(point{a.from.x + 12 + (a.to.x-a.from.x-16)/3*float64(i%3), plot.to.y + 34 + 14*float64(i/3)}, tint, curve.Name)
	}
}

func (c curve) sum() (sum float64) {
	for _, v := range c.Values {
		if v != nil {
			sum += *v
		}
	}
	return sum
}

// roundUp returns the next of 1, 2, 5, 10, … above a figure.
func roundUp(v float64) float64 {
	if v == 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if v <= step*power*(1+1e-9) {
			return step * power
		}
	}
	return 10 * power
}

// figure returns a figure with its unit.
func figure(v float64, unit string) string {
	text := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch {
	case v == 0 || unit != "s" && unit != "cps":
		return text(v)
	case unit == "cps":
		return text(v) + "/s"
	case v < 0.001:
		return text(v*1e6) + " µs"
	case v < 1:
		return text(v*1e3) + " ms"
	default:
		return text(v) + " s"
	}
}
