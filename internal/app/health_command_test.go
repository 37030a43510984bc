package app

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 1, nil).url()}, nil)
	if err := Health(t.Context(), g.URL()); err != nil {
		t.Error(err)
	}
	stops := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			t.Errorf("%s was asked for", r.URL.Path)
		}
		http.Error(w, "stopping", http.StatusServiceUnavailable)
	}))
	if err := Health(t.Context(), stops.URL); err == nil || !strings.Contains(err.Error(), "503 Service Unavailable stopping") {
		t.Errorf("a gateway that stops: %v", err)
	}
	stops.Close()
	if err := Health(t.Context(), stops.URL); err == nil || !strings.Contains(err.Error(), stops.URL) {
		t.Errorf("a gateway that is gone: %v", err)
	}
	for _, bad := range []string{"127.0.0.1:8100", "ftp://host", "http://"} {
		if err := Health(t.Context(), bad); !errors.As(err, new(UsageError)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
