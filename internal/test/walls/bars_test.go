package walls

import (
	"bytes"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The bars of what a reader of the root meets.
const (
	mostNames   = 170 // exported functions, methods, types, values and fields of the root
	mostVerbs   = 22  // methods of Lock
	mostFiles   = 28  // of Go at the top, without tests
	mostTests   = 4   // files of tests at the top
	mostModules = 20
	mostOfUI    = 1600 // lines of module ui without tests, page and style included
)

func TestTheRootShowsFewNames(t *testing.T) {
	names, verbs := exported(t)
	require.LessOrEqual(t, len(names), mostNames, names)
	require.LessOrEqual(t, len(verbs), mostVerbs, verbs)
}

func TestTheTopHasFewFiles(t *testing.T) {
	goFiles, err := filepath.Glob(path.Join(root, "*.go"))
	require.NoError(t, err)
	tests, err := filepath.Glob(path.Join(root, "*_test.go"))
	require.NoError(t, err)
	require.LessOrEqual(t, len(goFiles)-len(tests), mostFiles)
	require.LessOrEqual(t, len(tests), mostTests)
}

func TestTheRepositoryHasFewModules(t *testing.T) {
	var modules []string
	require.NoError(t, fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name != "." && d.Name()[0] == '.' || d.Name() == "testdata"):
			return fs.SkipDir
		case d.Name() == "go.mod":
			modules = append(modules, name)
		}
		return nil
	}))
	require.LessOrEqual(t, len(modules), mostModules, modules)
}

func TestThePageIsSmall(t *testing.T) {
	lines := 0
	for _, pattern := range []string{"*.go", "page.*"} {
		files, err := filepath.Glob(path.Join(root, "ui", pattern))
		require.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			lines += bytes.Count(text, []byte("\n"))
		}
	}
	require.Greater(t, lines, mostOfUI/2)
	require.LessOrEqual(t, lines, mostOfUI)
}

// exported returns the exported names of the root, and of them the methods of Lock.
func exported(t *testing.T) (names, verbs []string) {
	t.Helper()
	for _, f := range library(t) {
		if path.Dir(f.name) != "." {
			continue
		}
		for _, d := range f.tree.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				of := receiver(d)
				if !d.Name.IsExported() || of != "" && !ast.IsExported(of) {
					continue
				}
				names = append(names, of+"."+d.Name.Name)
				if of == "Lock" {
					verbs = append(verbs, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					names = append(names, declared(spec)...)
				}
			}
		}
	}
	return names, verbs
}

// receiver returns the type of a method; empty: of a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if pointer, is := of.(*ast.StarExpr); is {
		of = pointer.X
	}
	return of.(*ast.Ident).Name
}

// declared returns the exported names of a declaration: values, or a type with its fields, or its
// methods if it is an interface.
func declared(spec ast.Spec) (names []string) {
	add := func(of string, idents ...*ast.Ident) {
		for _, x := range idents {
			if x.IsExported() {
				names = append(names, of+x.Name)
			}
		}
	}
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		add("", spec.Names...)
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return nil
		}
		add("", spec.Name)
		var fields *ast.FieldList
		switch shape := spec.Type.(type) {
		case *ast.StructType:
			fields = shape.Fields
		case *ast.InterfaceType:
			fields = shape.Methods
		default:
			return names
		}
		for _, field := range fields.List {
			add(spec.Name.Name+".", field.Names...)
		}
	}
	return names
}
