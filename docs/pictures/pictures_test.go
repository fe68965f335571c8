package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPicturesAreCurrent(t *testing.T) {
	sources, err := sources(".")
	require.NoError(t, err)
	require.Len(t, sources, 6)
	for _, source := range sources {
		c, err := draw(source)
		require.NoError(t, err)
		picture, err := os.ReadFile(pictureOf(source))
		require.NoError(t, err)
		require.Equal(t, c.end(), string(picture), "%s is not of this source: run make pictures", pictureOf(source))
		require.Less(t, len(picture), 60_000, pictureOf(source))
	}
}

func TestTextsOfPicturesDoNotTouch(t *testing.T) {
	sources, err := sources(".")
	require.NoError(t, err)
	for _, source := range sources {
		c, err := draw(source)
		require.NoError(t, err)
		require.NotEmpty(t, c.texts, source)
		for i, a := range c.texts {
			require.True(t, a.area.from.x >= 4 && a.area.from.y >= 4 && a.area.to.x <= c.width-4 && a.area.to.y <= c.height-4,
				"%s: %q leaves the picture", source, a.text)
			for _, b := range c.texts[:i] {
				require.False(t, a.area.touches(b.area), "%s: %q touches %q", source, a.text, b.text)
			}
		}
	}
}

func TestWrongDrawingsAreErrors(t *testing.T) {
	for _, line := range []string{"circle 1 2 3", "box A 1 2", "box A x 2 3 4 grey", "line grey A.l B.r", "size 10 10"} {
		_, err := drawDiagram("size 100 100 \"title\"\n" + line)
		require.ErrorContains(t, err, "line 2: "+line)
	}
}
