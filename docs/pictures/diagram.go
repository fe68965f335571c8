package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// A diagram is a text of one drawing a line. Words are apart by spaces, a text is in quotes, and #
// begins a comment. A point is x,y, or a side of a box with an offset along that side: A.r, A.b-20.
//
//	size WIDTH HEIGHT "title"
//	box NAME X Y WIDTH HEIGHT TINT "headline" "small" ...
//	line TINT POINT ...                     a line; TINT-dashed is dashed
//	arrow TINT POINT ... ["label"]          the label stands at the middle of the first stretch
//	text POINT "style" "text"               see canvas.text
//
// A sequence of messages has lanes, and a place that goes down:
//
//	lane NAME X WIDTH TINT "headline" "small"
//	say FROM TO TINT "label" ...            an arrow from lane to lane; the first label is above it
//	note LANE "style" "text"                a text at the right of a lane, or at the left if it is an end
//	begin LANE TINT, end LANE               a bar along a lane
//	skip HEIGHT
type diagram struct {
	*canvas
	boxes map[string]area
	bars  map[string]bar
	y     float64 // the place in a sequence
	last  float64 // the place of the last message or note
}

type bar struct {
	tint string
	from float64
}

var wordOf = regexp.MustCompile(`"[^"]*"|\S+`)

// words returns the words of a line, and its texts without their quotes.
func words(line string) (plain, texts []string) {
	for _, w := range wordOf.FindAllString(line, -1) {
		if strings.HasPrefix(w, `"`) {
			texts = append(texts, strings.Trim(w, `"`))
		} else {
			plain = append(plain, w)
		}
	}
	return plain, texts
}

// drawDiagram draws a diagram.
func drawDiagram(source string) (c *canvas, err error) {
	d := &diagram{boxes: map[string]area{}, bars: map[string]bar{}}
	for n, line := range strings.Split(source, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := d.draw(line); err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", n+1, line, err)
		}
	}
	return d.canvas, nil
}

func (d *diagram) draw(line string) (err error) {
	defer func() {
		if r := recover(); r != nil { // too few words, or a word that is no number
			err = fmt.Errorf("wrong drawing: %v", r)
		}
	}()
	w, texts := words(line)
	switch w[0] {
	case "size":
		d.canvas = newCanvas(number(w[1]), number(w[2]), texts[0])
	case "box":
		d.box(w[1], area{point{number(w[2]), number(w[3])}, point{number(w[2]) + number(w[4]), number(w[3]) + number(w[5])}}, w[6], texts)
	case "line":
		d.line(w[1], d.points(w[2:]))
	case "arrow":
		points := d.points(w[2:])
		d.arrow(w[1], points)
		for _, label := range texts {
			d.text(point{(points[0].x + points[1].x) / 2, (points[0].y+points[1].y)/2 - 6}, "middle halo", label)
		}
	case "text":
		d.text(d.point(w[1]), texts[0], texts[1])
	case "lane":
		x, half := number(w[2]), number(w[3])/2
		d.box(w[1], area{point{x - half, 16}, point{x + half, 62}}, w[4], texts)
		d.line("grey-dashed", []point{{x, 62}, {x, d.height - 14}})
		d.y = 84
	case "say":
		d.say(w[1], w[2], w[3], texts)
	case "note":
		x, offset := d.middle(w[1]), 12.0
		if strings.Contains(texts[0], "end") {
			offset = -12
		}
		d.text(point{x + offset, d.y}, texts[0]+" halo", texts[1])
		d.last = d.y
		d.y += 18
	case "begin":
		d.bars[w[1]] = bar{w[2], d.last}
	case "end":
		x := d.middle(w[1])
		d.rect(area{point{x - 4, d.bars[w[1]].from}, point{x + 4, d.last}}, d.bars[w[1]].tint+"-area", 2)
	case "skip":
		d.y += number(w[1])
		d.last = d.y
	default:
		return fmt.Errorf("no such drawing")
	}
	return nil
}

// box draws a box with its texts in the middle.
func (d *diagram) box(name string, a area, tint string, texts []string) {
	const high = 16.0
	d.boxes[name] = a
	d.rect(a, tint+"-area", 6)
	y := (a.from.y+a.to.y)/2 - high*float64(len(texts)-1)/2 + 4.5
	for i, text := range texts {
		style := "middle dim"
		if i == 0 {
			style = "middle bold big"
		}
		d.text(point{(a.from.x + a.to.x) / 2, y + high*float64(i)}, style, text)
	}
}

// say draws a message between two lanes. Other labels than the first stand below the arrow.
func (d *diagram) say(from, to, tint string, labels []string) {
	a, b := d.middle(from), d.middle(to)
	gap := math.Copysign(5, b-a)
	d.y += 12
	d.last = d.y
	d.arrow(tint, []point{{a + gap, d.y}, {b - gap, d.y}})
	for i, label := range labels {
		y := d.y - 6
		style := "middle halo"
		if i > 0 {
			y = d.y + 15*float64(i)
			style += " dim"
		}
		d.text(point{(a + b) / 2, y}, style, label)
	}
	d.y += 18 + 15*float64(len(labels)-1)
}

func (d *diagram) middle(lane string) float64 {
	a := d.boxes[lane]
	return (a.from.x + a.to.x) / 2
}

func (d *diagram) points(words []string) (points []point) {
	for _, w := range words {
		points = append(points, d.point(w))
	}
	return points
}

var sideOf = regexp.MustCompile(`^(\w+)\.([tblr])([+-]\d+)?$`)

func (d *diagram) point(word string) point {
	if x, y, is := strings.Cut(word, ","); is {
		return point{number(x), number(y)}
	}
	m := sideOf.FindStringSubmatch(word)
	a, is := d.boxes[m[1]]
	if !is {
		panic("no box " + m[1])
	}
	offset := 0.0
	if m[3] != "" {
		offset = number(m[3])
	}
	mid := point{(a.from.x + a.to.x) / 2, (a.from.y + a.to.y) / 2}
	switch m[2] {
	case "t":
		return point{mid.x + offset, a.from.y}
	case "b":
		return point{mid.x + offset, a.to.y}
	case "l":
		return point{a.from.x, mid.y + offset}
	default:
		return point{a.to.x, mid.y + offset}
	}
}

func number(word string) float64 {
	n, err := strconv.ParseFloat(word, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func dist(a, b point) float64 { return math.Hypot(a.x-b.x, a.y-b.y) }
