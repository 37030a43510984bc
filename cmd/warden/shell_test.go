package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func output(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), args, &out, &errs); code != exitDone {
		t.Fatalf("warden %s: exit %d: %s", strings.Join(args, " "), code, errs.String())
	}
	return out.String()
}

func TestBashCompletesCommandsAndFlags(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	script := filepath.Join(t.TempDir(), "warden")
	if err := os.WriteFile(script, []byte(output(t, "completion", "bash")), 0o600); err != nil {
		t.Fatal(err)
	}
	for typed, want := range map[string]string{
		"warden s":                   "serve sim simulate",
		"warden config ":             "check print --help",
		"warden serve --admin":       "--admin-listen",
		"warden serve --engine x --": "--admin-listen",
		"warden nothing --":          "--help",
	} {
		words := strings.Split(typed, " ")
		do := fmt.Sprintf("source %q; COMP_WORDS=(", script)
		for _, w := range words {
			do += fmt.Sprintf("%q ", w)
		}
		do += fmt.Sprintf("); COMP_CWORD=%d; _warden; echo \"${COMPREPLY[@]}\"", len(words)-1)
		got, err := exec.CommandContext(t.Context(), bash, "-c", do).CombinedOutput()
		if err != nil || !containsWords(string(got), want) {
			t.Errorf("%q completes to %q, want %q among it (%v)", typed, got, want, err)
		}
	}
}

func containsWords(text, words string) bool {
	have := strings.Fields(text)
	for _, w := range strings.Fields(words) {
		found := false
		for _, h := range have {
			found = found || h == w
		}
		if !found {
			return false
		}
	}
	return true
}

func TestEveryShellAndTheManualKnowEveryCommand(t *testing.T) {
	for _, args := range [][]string{{"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}, {"man"}} {
		text := strings.ReplaceAll(output(t, args...), `\-`, "-")
		for _, want := range []string{"serve", "simulate", "check", "admin-listen"} {
			if !strings.Contains(text, want) {
				t.Errorf("warden %s does not know %s", strings.Join(args, " "), want)
			}
		}
	}
}

// A line that begins with a dot is a request to roff; one that does so by chance
// would be lost.
func TestTheManualHasNoStrayRequests(t *testing.T) {
	for line := range strings.Lines(output(t, "man")) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case ".TH", ".SH", ".SS", ".TP", ".B", ".I":
		default:
			if strings.HasPrefix(word, ".") || strings.HasPrefix(word, "'") {
				t.Errorf("stray request: %s", line)
			}
		}
	}
}
