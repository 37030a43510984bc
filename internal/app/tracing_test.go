package app

import (
	"compress/gzip"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"lmwarden/internal/config"
)

// A gateway that stops has sent the span of every request, in the trace of its
// client.
func TestEachRequestIsASpanOfItsClientsTrace(t *testing.T) {
	var spans []*otlp.Span
	to := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Authorization"); key != "Bearer k" {
			t.Errorf("the collector got the key %q", key)
		}
		body, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		text, _ := io.ReadAll(body)
		var export collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(text, &export); err != nil {
			t.Error(err)
		}
		for _, from := range export.ResourceSpans {
			for _, scope := range from.ScopeSpans {
				spans = append(spans, scope.Spans...)
			}
		}
	}))
	defer to.Close()
	const trace = "0af7651916cd43dd8448eb211c80319c"
	var log string
	t.Run("gateway", func(t *testing.T) {
		e := newEngine(t, 1, nil)
		g := startGateway(t, []string{e.url()}, func(c *config.Config) {
			c.Tracing.Endpoint = to.URL
			c.Tracing.Headers = []config.Header{{Name: "Authorization", Value: config.NewSecret("Bearer k")}}
		}).awaitReady()
		g.conversation("hello", "Traceparent", "00-"+trace+"-b7ad6b7169203331-01").turn()
		g.post("/v1/chat/completions", []byte(`{"model":"nobody"}`))
		g.checkNothingInFlight()
		log = g.log.String()
	})
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	first := spans[0]
	has := map[string]string{}
	for _, a := range first.Attributes {
		has[a.Key] = a.Value.String()
	}
	if hex.EncodeToString(first.TraceId) != trace || first.Name != "chat "+testModel ||
		!strings.Contains(has["warden.decision"], "placed") || has["gen_ai.usage.output_tokens"] == "" {
		t.Errorf("span %v", first)
	}
	if !strings.Contains(log, `"trace_id":"`+trace+`"`) {
		t.Errorf("the log does not name the trace: %s", log)
	}
}

// Tracing begins and ends with a reload, and a file that cannot be read changes
// nothing.
func TestTracingChangesWithAReload(t *testing.T) {
	var exports atomic.Int64
	to := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { exports.Add(1) }))
	defer to.Close()
	e := newEngine(t, 1, nil)
	g, f := startFromFile(t, e)
	ask := func() (traced bool) {
		before := strings.Count(g.log.String(), `"trace_id"`)
		if r := g.post("/v1/chat/completions", []byte(guardedBody)); r.status != http.StatusOK {
			t.Errorf("%d %s", r.status, r.body)
		}
		g.checkNothingInFlight()
		return strings.Count(g.log.String(), `"trace_id"`) > before
	}
	on := "tracing: {endpoint: " + to.URL + "}\n"
	if ask() {
		t.Error("a request is traced without a collector")
	}
	f.write(on, e)
	g.reload(f)
	if !ask() || len(g.warnings()) != 0 {
		t.Errorf("not traced after the reload; warnings %v", g.warnings())
	}
	f.write("tracing: {endpoint: "+to.URL+", ca: no.pem}\n", e)
	if err := g.Reload(t.Context(), f.read); err == nil || !strings.Contains(err.Error(), "no.pem") || !ask() {
		t.Errorf("a file that is not there: %v", err)
	}
	f.write("", e)
	g.reload(f)
	if ask() {
		t.Error("a request is traced after tracing was taken away")
	}
	await(t, "the spans", func() error {
		if exports.Load() == 0 {
			return errors.New("none was sent")
		}
		return nil
	})
}
