package top

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
)

func TestPrintWritesPlainTables(t *testing.T) {
	g := &fake{data: some(t)}
	var out bytes.Buffer
	if err := Print(t.Context(), g, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"6 replicas: 2 draining", "org/llama\n", "hit rate  live  at", " 39,488 ", "~41,000", "http://gpu-1:8000", "c-49", "latest 50", "What the engine of replica 2"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.ContainsAny(out.String(), "\x1b▸") || !strings.HasSuffix(out.String(), "\n") {
		t.Errorf("not plain: %q", out.String())
	}
	g.err = errors.New("gone")
	if err := Print(t.Context(), g, &out); !errors.Is(err, g.err) {
		t.Error(err)
	}
}

// terminal keeps what is drawn, and types q once it shows something.
type terminal struct {
	drawn bytes.Buffer
	typed *io.PipeWriter
}

func (t *terminal) Write(b []byte) (int, error) {
	n, err := t.drawn.Write(b)
	if t.typed != nil && strings.Contains(t.drawn.String(), "LM Warden") {
		go io.WriteString(t.typed, "q")
		t.typed = nil
	}
	return n, err
}

func TestRunDrawsUntilSomebodyQuits(t *testing.T) {
	keys, typed := io.Pipe()
	defer keys.Close()
	screen := terminal{typed: typed}
	err := run(t.Context(), &fake{data: some(t)}, "http://gw", styles(false),
		tea.WithWindowSize(80, 24), tea.WithInput(keys), tea.WithOutput(&screen), tea.WithEnvironment([]string{"TERM=xterm-256color"}))
	if err != nil || !strings.Contains(screen.drawn.String(), "hit rate") {
		t.Errorf("%v: %q", err, screen.drawn.String())
	}
}

func TestStylesWithoutColours(t *testing.T) {
	u := sit(t, &fake{data: some(t)})
	u.theme = styles(false)
	if text := u.text(); strings.Contains(text, "\x1b[3") || strings.Contains(text, ";3") {
		t.Errorf("a colour in %q", text)
	}
}

func TestWithoutAGatewayThereIsNoScreen(t *testing.T) {
	g := &fake{err: errors.New("gone")}
	if err := Run(t.Context(), g, "", strings.NewReader(""), io.Discard, nil); !errors.Is(err, g.err) {
		t.Error(err)
	}
}
