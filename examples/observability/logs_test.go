package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// levels are those that are no constants.
var levels = map[string]string{
	"relock: pub/sub connection lost, connecting again": "INFO, and WARN from the fourth attempt on",
	"relock: a command has no answer yet":               "DEBUG, and WARN after a second; of a client, then after 2, 4, 8, … s, at most 10 s apart",
}

// logged are the messages that the library logs, found in its source: "LEVEL|message|keys".
func logged(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../*.go")
	require.NoError(t, err)
	files = append(files, "../../internal/events/events.go", "../../leader/campaign.go")
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		var function *ast.FuncDecl // around n
		ast.Inspect(file, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok {
				function = f
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch args := call.Args; sel.Sel.Name {
			case "log", "Log": // client.log(logger, level, message, attrs...), inside.Log(level, message, attrs...)
				if sel.Sel.Name == "log" && len(args) > 0 {
					args = args[1:]
				}
				if len(args) < 2 {
					return true
				}
				for _, message := range texts(t, args[1], function) {
					level := levels[message]
					if l, ok := args[0].(*ast.SelectorExpr); ok {
						level = strings.ToUpper(strings.TrimPrefix(l.Sel.Name, "Level"))
					}
					var keys []string
					for _, attr := range args[2:] {
						keys = append(keys, text(t, attr.(*ast.CallExpr).Args[0]))
					}
					found = append(found, level+"|"+message+"|"+strings.Join(keys, ","))
				}
			case "Panicked": // events.Panicked(logger, message, reason)
				found = append(found, "ERROR|"+text(t, args[1])+"|panic,stack")
			case "Debug", "Info", "Warn", "Error": // logger.Warn(message, key, value, ...)
				if len(call.Args) == 0 {
					return true
				}
				var keys []string
				for i := 1; i < len(call.Args); i += 2 {
					keys = append(keys, text(t, call.Args[i]))
				}
				found = append(found, strings.ToUpper(sel.Sel.Name)+"|"+text(t, call.Args[0])+"|"+strings.Join(keys, ","))
			}
			return true
		})
	}
	slices.Sort(found)
	return slices.Compact(found) // a panic of a hook is logged in two places
}

// texts returns a message. For a variable texts returns all messages in the function around it:
// none where the function passes on what it is given.
func texts(t *testing.T, e ast.Expr, function *ast.FuncDecl) (found []string) {
	t.Helper()
	if _, ok := e.(*ast.BasicLit); ok {
		return []string{text(t, e)}
	}
	ast.Inspect(function, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, `"relock: `) {
			found = append(found, text(t, lit))
		}
		return true
	})
	return found
}

func text(t *testing.T, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	require.True(t, ok, "%T is no literal", e)
	s, err := strconv.Unquote(lit.Value)
	require.NoError(t, err)
	return s
}

func TestThePageListsWhatIsLogged(t *testing.T) {
	page, err := os.ReadFile("../../docs/OPERATIONS.md")
	require.NoError(t, err)
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z]{4,}[^|]*) \| (relock: [^|]+) \| ([^|]+) \|$`).FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1]+"|"+m[2]+"|"+strings.NewReplacer("`", "", ", ", ",").Replace(m[3]))
	}
	slices.Sort(listed)
	require.Equal(t, logged(t), listed)

	keys := map[string]bool{}
	for _, line := range listed {
		for key := range strings.SplitSeq(line[strings.LastIndex(line, "|")+1:], ",") {
			keys[key] = true
		}
	}
	for key := range keys {
		require.Contains(t, string(page), "\n| `"+key+"` | ", "what the key means")
	}
}
