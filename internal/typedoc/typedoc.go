// Package typedoc keeps documents that are made from Go types current. Tests use
// it: they fail when a document is not what the types say, and with UPDATE_DOCS=1
// they write it. What a document looks like is each test's own.
package typedoc

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Comments maps TYPE.FIELD to the field's comment in one line, for the structs in
// the Go files that match a pattern. The name of the field with "is" or "are" is
// cut off from the front, and the last full stop.
func Comments(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources match %s: %v", pattern, err)
	}
	says := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if fields, ok := spec.Type.(*ast.StructType); ok {
					collect(says, spec.Name.Name, fields)
				}
			}
			return true
		})
	}
	return says
}

func collect(says map[string]string, kind string, fields *ast.StructType) {
	for _, f := range fields.Fields.List {
		comment := f.Doc.Text()
		if comment == "" {
			comment = f.Comment.Text()
		}
		for _, name := range f.Names {
			text := strings.Join(strings.Fields(comment), " ")
			for _, lead := range []string{name.Name + " is ", name.Name + " are ", name.Name + " "} {
				if rest, ok := strings.CutPrefix(text, lead); ok {
					text = rest
					break
				}
			}
			says[kind+"."+name.Name] = strings.TrimSuffix(text, ".")
		}
	}
}

// Current compares a file with what it should be, or writes it.
func Current(t *testing.T, path string, want []byte) {
	t.Helper()
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, want) {
		t.Errorf("%s is not what the code says (%v): UPDATE_DOCS=1 go test -run %s", path, err, t.Name())
	}
}

// CurrentPart is Current for the part of a file between two lines.
func CurrentPart(t *testing.T, path, begins, ends, want string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begins)
	_, after, ended := strings.Cut(rest, ends)
	if !ok || !ended {
		t.Fatalf("%s has no place between %q and %q", path, begins, ends)
	}
	Current(t, path, []byte(before+begins+want+ends+after))
}
