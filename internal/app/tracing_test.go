package app

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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
