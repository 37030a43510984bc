package tracing

import (
	"bytes"
	"encoding/pem"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/proxy"
)

func opened(t *testing.T, s *Switch) proxy.Trace {
	t.Helper()
	return s.Begin(time.Now(), httptest.NewRequest("POST", "/v1/chat/completions", nil))
}

// A request ends with the collector that it began with, and new ones go to the new
// one.
func TestACollectorThatChangesLosesNoSpan(t *testing.T) {
	to := func(url string) *Tracer {
		tr, err := New(Options{Endpoint: url, Sample: 1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	firstURL, first := collect(t)
	secondURL, second := collect(t)
	var s Switch
	if opened(t, &s) != nil {
		t.Error("a request is traced before anything is set")
	}
	s.Set(to(firstURL))
	early := opened(t, &s)
	s.Set(to(secondURL))
	late := opened(t, &s)
	early.End(turn())
	late.End(turn())
	s.Set(nil)
	if opened(t, &s) != nil {
		t.Error("a request is traced when nothing is")
	}
	s.Stop()
	if len(first.spans) != 1 || len(second.spans) != 1 {
		t.Errorf("%d spans at the first, %d at the second", len(first.spans), len(second.spans))
	}
}

func TestAnOpenRequestDoesNotHoldUpTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Switch
		tracer := func() *Tracer {
			return newTracer(Options{Sample: 1, Logger: slog.New(slog.DiscardHandler)}, nothing{}, nil)
		}
		s.Set(tracer())
		before := opened(t, &s)
		s.Set(tracer())
		after := opened(t, &s)
		s.Stop()
		before.End(turn())
		after.End(turn())
		s.stopping.Wait()
	})
}

func TestWhomToTrust(t *testing.T) {
	collector := httptest.NewTLSServer(nil)
	defer collector.Close()
	collector.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	dir := t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := file("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: collector.Certificate().Raw}))
	for trusted, lost := range map[string]bool{ca: false, "": true} {
		var log bytes.Buffer
		tr := start(t, Options{Endpoint: collector.URL, CA: trusted, Sample: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		trace, _ := begin(t, tr)
		trace.End(turn())
		tr.Stop()
		// The server answers 404, which is lost as well, but over a sound connection.
		if strings.Contains(log.String(), "certificate") != lost {
			t.Errorf("trust in %q: %s", trusted, log.String())
		}
	}
	for bad, want := range map[string]string{file("no.pem", []byte("text")): "holds no certificate", filepath.Join(dir, "gone"): "no such file"} {
		if _, err := New(Options{Endpoint: collector.URL, CA: bad, Logger: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
