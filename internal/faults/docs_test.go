package faults

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/faults.md names tests of other packages; renaming one must not leave it
// behind.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{} // by package
	named := regexp.MustCompile("`([a-z]+)\\.(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 50 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, n := range named {
		pkg, test := n[1], n[2]
		if _, read := sources[pkg]; !read {
			files, err := filepath.Glob("../" + pkg + "/*_test.go")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources[pkg] += string(text)
			}
		}
		if !strings.Contains(sources[pkg], "func "+test+"(") {
			t.Errorf("internal/%s has no %s", pkg, test)
		}
	}
}
