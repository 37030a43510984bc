// Package internal holds no code of its own, only the test of which package may
// import which.
package internal

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport is the architecture of docs/design.md: an edge that is not here is
// an error. A leaf has an empty list.
var mayImport = map[string][]string{
	"cmd/warden": {"internal/app"},
	"internal/app": {
		"internal/access", "internal/bench", "internal/bench/live", "internal/bench/report", "internal/bench/results", "internal/cause", "internal/certs", "internal/config", "internal/doctor", "internal/enginesim", "internal/enginesim/server", "internal/engine", "internal/kvevents", "internal/llmapi",
		"internal/pool", "internal/proxy", "internal/rawtcp", "internal/routing", "internal/session", "internal/stats", "internal/systemd", "internal/telemetry", "internal/top", "internal/tracing", "internal/web",
	},
	"internal/web":              {"internal/access", "internal/kvevents", "internal/pool", "internal/session", "internal/stats", "internal/routing", "internal/engine", "internal/bench/results"},
	"internal/doctor":           {"internal/engine", "internal/kvevents", "internal/llmapi", "internal/session"},
	"internal/proxy":            {"internal/access", "internal/pool", "internal/session", "internal/llmapi", "internal/routing", "internal/upstream"},
	"internal/pool":             {"internal/routing", "internal/engine"},
	"internal/session":          {"internal/llmapi"},
	"internal/bench":            {"internal/bench/results", "internal/routing", "internal/enginesim", "internal/llmapi"},
	"internal/bench/aiperf":     {"internal/bench/results"},
	"internal/bench/live":       {"internal/bench", "internal/bench/results", "internal/engine", "internal/llmapi", "internal/upstream"},
	"internal/bench/report":     {"internal/bench/aiperf", "internal/bench/results"},
	"internal/bench/results":    {},
	"internal/enginesim/server": {"internal/enginesim", "internal/llmapi", "internal/zmtp"},
	"internal/enginesim":        {},
	"internal/access":           {},
	"internal/cause":            {"internal/llmapi"},
	"internal/certs":            {},
	"internal/config":           {"internal/access"},
	"internal/kvevents":         {"internal/zmtp"},
	"internal/llmapi":           {},
	"internal/rawtcp":           {},
	"internal/routing":          {},
	"internal/engine":           {},
	"internal/systemd":          {},
	"internal/stats":            {},
	"internal/telemetry":        {},
	"internal/typedoc":          {},
	"internal/top":              {},
	"internal/tracing":          {"internal/llmapi", "internal/proxy", "internal/routing"},
	"internal/upstream":         {"internal/rawtcp"},
	"internal/zmtp":             {},
}

// standardOnly are the packages that may use nothing but the standard library.
var standardOnly = []string{"internal/routing", "internal/pool", "internal/engine", "internal/proxy", "internal/rawtcp", "internal/systemd", "internal/upstream"}

func TestImportsFollowTheArchitecture(t *testing.T) {
	const module = "lmwarden/"
	for path, imports := range packages(t) {
		allowed, known := mayImport[path]
		if !known {
			t.Errorf("%s is not in the architecture: add it to docs/design.md and to this test", path)
			continue
		}
		for _, imp := range imports {
			own, isOwn := strings.CutPrefix(imp, module)
			switch {
			case isOwn && !slices.Contains(allowed, own):
				t.Errorf("%s imports %s; it may import %v", path, own, allowed)
			case strings.HasPrefix(imp, "go.opentelemetry.io/") && path != "internal/tracing":
				t.Errorf("%s imports %s; only internal/tracing may", path, imp)
			case !isOwn && slices.Contains(standardOnly, path) && strings.Contains(strings.Split(imp, "/")[0], "."):
				t.Errorf("%s imports %s; it may use the standard library only", path, imp)
			}
		}
	}
}

func TestNoCgo(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if .CgoFiles}}{{.ImportPath}}{{end}}", "lmwarden/cmd/warden").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		// The standard library's cgo parts have plain Go twins for CGO_ENABLED=0.
		if strings.Contains(strings.Split(path, "/")[0], ".") {
			t.Errorf("%s needs cgo", path)
		}
	}
}

// packages maps each package of the module, without the module's name, to what
// its non-test files import.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles", "lmwarden/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath       string
			Imports, GoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list output: %v", err)
		}
		if len(p.GoFiles) > 0 { // packages of tests only may use what they test
			found[strings.TrimPrefix(p.ImportPath, "lmwarden/")] = p.Imports
		}
	}
	if len(found) < len(mayImport) {
		missing := slices.DeleteFunc(slices.Sorted(maps.Keys(mayImport)), func(p string) bool { _, ok := found[p]; return ok })
		t.Errorf("the architecture lists packages that do not exist: %v", missing)
	}
	return found
}
