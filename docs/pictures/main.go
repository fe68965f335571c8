// Pictures draws the pictures of the documentation from their sources in this directory:
//
//	go run ./docs/pictures
//
// The sources stand beside the pictures. Of metrics.svg, which Prometheus recorded from a
// service with one incident, the picture alone is kept.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	dir := flag.String("dir", "docs/pictures", "the `directory` with the sources and the pictures")
	flag.Parse()
	if err := drawAll(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// drawAll draws the pictures of all sources.
func drawAll(dir string) error {
	sources, err := sources(dir)
	if err != nil {
		return err
	}
	for _, source := range sources {
		c, err := draw(source)
		if err != nil {
			return err
		}
		if err := os.WriteFile(pictureOf(source), []byte(c.end()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sources returns the files that pictures are made of.
func sources(dir string) (names []string, err error) {
	for _, ending := range []string{"*.diagram", "*.terminal"} {
		found, err := filepath.Glob(filepath.Join(dir, ending))
		if err != nil {
			return nil, err
		}
		names = slices.Concat(names, found)
	}
	return names, nil
}

func pictureOf(source string) string {
	return strings.TrimSuffix(source, filepath.Ext(source)) + ".svg"
}

// draw draws the picture of a source.
func draw(source string) (*canvas, error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	kinds := map[string]func(string) (*canvas, error){".diagram": drawDiagram, ".terminal": drawTerminal}
	c, err := kinds[filepath.Ext(source)](string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return c, nil
}
