package main

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// drawTerminal draws a recorded screen: a command, and below it the screen as it was. A length of
// each line keeps the columns apart in every font.
func drawTerminal(source string) (*canvas, error) {
	lines := strings.Split(strings.TrimRight(source, "\n "), "\n")
	columns := 0
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
		columns = max(columns, utf8.RuneCountInString(lines[i]))
	}
	const wide, high, margin = 7.0, 17.0, 18.0
	c := newCanvas(wide*float64(columns)+2*margin, high*float64(len(lines))+2*margin, lines[0])
	for i, line := range lines {
		if line == "" {
			continue
		}
		begin := utf8.RuneCountInString(line) - utf8.RuneCountInString(strings.TrimLeft(line, " "))
		weight := ""
		if i == 0 {
			weight = ` font-weight="600"`
		}
		at, long := point{margin + wide*float64(begin), margin + high*float64(i) + 12}, wide*float64(utf8.RuneCountInString(line)-begin)
		c.texts = append(c.texts, written{line, area{point{at.x, at.y - 10}, point{at.x + long, at.y + 3}}})
		fmt.Fprintf(c, `<text xml:space="preserve" x="%.1f" y="%.1f" textLength="%.1f" lengthAdjust="spacingAndGlyphs" font-family="%s" font-size="11.5"%s>%s</text>`+"\n",
			at.x, at.y, long, mono, weight, html.EscapeString(strings.TrimLeft(line, " ")))
	}
	return c, nil
}
