package main

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// tint is a colour of lines, areas and texts, on light and on dark paper.
type tint struct{ name, line, area, darkLine, darkArea string }

var tints = []tint{
	{"grey", "#6e7781", "#f6f8fa", "#8b949e", "#161b22"},
	{"green", "#1a7f37", "#dafbe1", "#3fb950", "#12261e"},
	{"amber", "#9a6700", "#fff8c5", "#d29922", "#2b2310"},
	{"red", "#cf222e", "#ffebe9", "#f85149", "#2d1618"},
	{"blue", "#0969da", "#ddf4ff", "#4493f8", "#12203a"},
	{"violet", "#8250df", "#fbefff", "#ab7df8", "#231c38"},
	{"pink", "#bf3989", "#ffeff7", "#db61a2", "#2d1524"},
}

// styles has a line, an area and a text for each tint. A viewer with a dark scheme gets the second
// half.
func styles() string {
	var light, dark strings.Builder
	for _, t := range tints {
		rule := ".%[1]s{stroke:%[2]s}.%[1]s-area{fill:%[3]s;stroke:%[2]s}.%[1]s-text{fill:%[2]s}\n"
		fmt.Fprintf(&light, rule, t.name, t.line, t.area)
		fmt.Fprintf(&dark, rule, t.name, t.darkLine, t.darkArea)
	}
	return "<style>\ntext{fill:#1f2328}.dim{fill:#59636e}.halo{stroke:#fff;stroke-width:4;stroke-linejoin:round;paint-order:stroke}.paper{fill:#fff;stroke:#d1d9e0}\n" + light.String() +
		"@media (prefers-color-scheme:dark){\n" +
		"text{fill:#e6edf3}.dim{fill:#9198a1}.halo{stroke:#0d1117}.paper{fill:#0d1117;stroke:#3d444d}\n" + dark.String() + "}\n</style>\n"
}

const (
	sans = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
	mono = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
	big  = 14.0
	fine = 12.0
)

type point struct{ x, y float64 }

// area is a rectangle from the upper left corner to the lower right one.
type area struct{ from, to point }

func (a area) touches(b area) bool {
	return a.from.x < b.to.x && b.from.x < a.to.x && a.from.y < b.to.y && b.from.y < a.to.y
}

// written is a text and the area that the text needs in a wide font.
type written struct {
	text string
	area area
}

// canvas is a picture in the making.
type canvas struct {
	strings.Builder

	width, height float64
	texts         []written
}

func newCanvas(width, height float64, title string) *canvas {
	c := &canvas{width: width, height: height}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" font-family="%s" font-size="%g">`+"\n",
		width, height, width, height, sans, fine)
	fmt.Fprintf(c, "<title>%s</title>\n%s", html.EscapeString(title), styles())
	fmt.Fprintf(c, `<rect class="paper" x="0.5" y="0.5" width="%g" height="%g" rx="8"/>`+"\n", width-1, height-1)
	return c
}

func (c *canvas) end() string { return c.String() + "</svg>\n" }

func (c *canvas) rect(a area, class string, round float64) {
	fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="%g" stroke-width="1.3"/>`+"\n",
		class, a.from.x, a.from.y, a.to.x-a.from.x, a.to.y-a.from.y, round)
}

// line draws a line through points. A word behind the tint may be dashed.
func (c *canvas) line(style string, points []point) {
	tint, dashed, _ := strings.Cut(style, "-")
	var path strings.Builder
	for i, p := range points {
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], p.x, p.y)
	}
	dash := ""
	if dashed != "" {
		dash = ` stroke-dasharray="5 4"`
	}
	fmt.Fprintf(c, `<path class="%s" d="%s" fill="none" stroke-width="1.6" stroke-linejoin="round"%s/>`+"\n", tint, path.String(), dash)
}

// arrow draws a line with a head at its last point.
func (c *canvas) arrow(style string, points []point) {
	tint, _, _ := strings.Cut(style, "-")
	tip, before := points[len(points)-1], points[len(points)-2]
	length := max(1, dist(before, tip))
	u := point{(tip.x - before.x) / length, (tip.y - before.y) / length}
	const long, wide = 9.0, 4.0
	base := point{tip.x - long*u.x, tip.y - long*u.y}
	c.line(style, append(append([]point{}, points[:len(points)-1]...), base))
	fmt.Fprintf(c, `<path class="%s-text" d="M%.1f %.1fL%.1f %.1fL%.1f %.1fZ"/>`+"\n", tint,
		tip.x, tip.y, base.x-wide*u.y, base.y+wide*u.x, base.x+wide*u.y, base.y-wide*u.x)
}

// text writes a line of text at its base line. The style is words: an anchor (start, middle, end),
// a tint or dim, bold, big, mono, and halo for a text over lines.
func (c *canvas) text(at point, style, text string) {
	size, wide, anchor, classes, more := fine, 0.56, "start", "", ""
	for word := range strings.FieldsSeq(style) {
		switch word {
		case "start", "middle", "end":
			anchor = word
		case "bold":
			more += ` font-weight="600"`
			wide = 0.6
		case "big":
			size = big
			more += fmt.Sprintf(` font-size="%g"`, big)
		case "mono":
			more += fmt.Sprintf(` font-family="%s"`, mono)
			wide = 0.6
		case "dim", "halo":
			classes += " " + word
		default:
			classes += " " + word + "-text"
		}
	}
	width := wide * size * float64(utf8.RuneCountInString(text))
	left := at.x - width*map[string]float64{"start": 0, "middle": 0.5, "end": 1}[anchor]
	c.texts = append(c.texts, written{text, area{point{left, at.y - 0.8*size}, point{left + width, at.y + 0.2*size}}})
	if classes != "" {
		more += fmt.Sprintf(` class="%s"`, classes[1:])
	}
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", at.x, at.y, anchor, more, html.EscapeString(text))
}
