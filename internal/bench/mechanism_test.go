package bench

import (
	"bytes"
	"context"
	"os"
	"testing"

	"lmwarden/internal/bench/report"
)

// docs/mechanism.svg shows what a simulated run did:
//
//	UPDATE_DOCS=1 go test -run Mechanism ./internal/bench
func TestDrawingOfTheMechanismIsOfARun(t *testing.T) {
	s := published(t, 1, "off", "affinity")
	s.Protocol.Sessions = s.Protocol.Sessions[:1]
	r, err := Simulate(context.Background(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	drawing, ok := report.Mechanism(r)
	if !ok {
		t.Fatal("no conversation came to its end")
	}
	const path = "../../docs/mechanism.svg"
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, drawing.SVG(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, drawing.SVG()) {
		t.Errorf("%s is not of this run (%v): UPDATE_DOCS=1 go test -run Mechanism ./internal/bench", path, err)
	}
}
