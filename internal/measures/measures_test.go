package measures_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/measures"
)

// constants are the values of all constants of a type in the files of package event.
func constants(t *testing.T, typ string) (values []string) {
	t.Helper()
	files, err := filepath.Glob("../../event/*.go")
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, is := n.(*ast.ValueSpec)
			if !is {
				return true
			}
			if name, is := spec.Type.(*ast.Ident); is && name.Name == typ {
				for _, v := range spec.Values {
					value, err := strconv.Unquote(v.(*ast.BasicLit).Value)
					require.NoError(t, err)
					values = append(values, value)
				}
			}
			return true
		})
	}
	return values
}

func TestCountersOfAllKnownLabelsBeginWithZero(t *testing.T) {
	require.ElementsMatch(t, constants(t, "Outcome"), texts(measures.Outcomes))
	require.ElementsMatch(t, constants(t, "Wake"), append(texts(measures.WakeCauses), string(event.WakeNone)))
	require.ElementsMatch(t, constants(t, "LossReason"), texts(measures.Reasons))
}

func texts[S ~string](values []S) (texts []string) {
	for _, v := range values {
		texts = append(texts, string(v))
	}
	return texts
}
