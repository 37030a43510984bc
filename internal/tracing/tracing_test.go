package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/proxy"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
	sampled     = "00-" + traceID + "-" + clientSpan + "-01"
	notSampled  = "00-" + traceID + "-" + clientSpan + "-00"
	collectorAt = "/v1/traces"
)

// received is what a collector got.
type received struct {
	spans   []*otlp.Span
	service map[string]string
	header  http.Header
}

// collect starts a collector.
func collect(t testing.TB) (url string, got *received) {
	t.Helper()
	got = &received{service: map[string]string{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != collectorAt {
			t.Errorf("an export to %s", r.URL.Path)
		}
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			body, _ = gzip.NewReader(r.Body)
		}
		b, err := io.ReadAll(body)
		var export collector.ExportTraceServiceRequest
		if err = errors.Join(err, proto.Unmarshal(b, &export)); err != nil {
			t.Error(err)
		}
		got.header = r.Header
		for _, from := range export.ResourceSpans {
			for _, a := range from.Resource.Attributes {
				got.service[a.Key] = a.Value.GetStringValue()
			}
			for _, scope := range from.ScopeSpans {
				got.spans = append(got.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, got
}

func attributes(s *otlp.Span) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		all[a.Key] = strings.Trim(strings.SplitN(a.Value.String(), ":", 2)[1], `"`)
	}
	return all
}

func begin(t testing.TB, tr *Tracer, header ...string) (proxy.Trace, http.Header) {
	t.Helper()
	r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return tr.Begin(time.Unix(1_790_000_000, 0), r), r.Header
}

func start(t testing.TB, o Options) *Tracer {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	tr, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	tr.Start()
	t.Cleanup(tr.Stop)
	return tr
}

// turn is a request that was answered at the second attempt.
func turn() *proxy.Record {
	return &proxy.Record{
		Time: time.Unix(1_790_000_000, 0), RequestID: "req-1", Model: "qwen", Path: "/v1/messages", Stream: true,
		Facts:    &llmapi.Facts{Model: "claude-x", MaxTokens: 256},
		Identity: session.Identity{Name: "c-1"}, Client: "claude-code", Key: "ci",
		Decision: routing.Decision{Replica: 2, Reason: routing.Moved, Why: routing.Failed},
		Attempts: 2, Waited: 250 * time.Millisecond, Status: 200, Outcome: proxy.OK, TTFB: 1500 * time.Millisecond, Duration: 4 * time.Second,
		Usage: llmapi.Usage{Known: true, Prompt: 7200, Cached: 6800, CacheState: llmapi.CacheReported, Completion: 90},
	}
}

func TestASpanTellsWhatBecameOfARequest(t *testing.T) {
	url, got := collect(t)
	tr := start(t, Options{Endpoint: url, Headers: map[string]string{"X-Key": "k"}, Version: "1.2"})
	trace, _ := begin(t, tr, "Traceparent", sampled)
	trace.Attempt(routing.Decision{Replica: 0, Reason: routing.Stayed})
	trace.Failed(errors.New("connection refused"))
	trace.Attempt(routing.Decision{Replica: 2, Reason: routing.Moved})
	trace.End(turn())
	tr.Stop()

	if len(got.spans) != 1 {
		t.Fatalf("%d spans", len(got.spans))
	}
	s := got.spans[0]
	if s.Name != "chat qwen" || s.Kind != otlp.Span_SPAN_KIND_SERVER || s.Status.GetCode() != otlp.Status_STATUS_CODE_UNSET {
		t.Errorf("span %q of kind %v, status %v", s.Name, s.Kind, s.Status)
	}
	if fmt.Sprintf("%x", s.TraceId) != traceID || fmt.Sprintf("%x", s.ParentSpanId) != clientSpan {
		t.Errorf("trace %x, parent %x", s.TraceId, s.ParentSpanId)
	}
	if d := time.Duration(s.EndTimeUnixNano - s.StartTimeUnixNano); d != 4*time.Second {
		t.Errorf("it took %v", d)
	}
	want := map[string]string{
		"http.request.method": "POST", "url.path": "/v1/messages", "http.response.status_code": "200",
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.conversation.id": "c-1",
		"gen_ai.request.model": "claude-x", "gen_ai.request.max_tokens": "256", "gen_ai.request.stream": "true",
		"gen_ai.response.model": "qwen", "gen_ai.response.time_to_first_chunk": "1.5",
		"gen_ai.usage.input_tokens": "7200", "gen_ai.usage.cache_read.input_tokens": "6800", "gen_ai.usage.output_tokens": "90",
		"warden.request_id": "req-1", "warden.client": "claude-code", "warden.key": "ci",
		"warden.replica": "2", "warden.decision": "moved", "warden.why": string(routing.Failed), "warden.attempts": "2", "warden.waited_s": "0.25",
	}
	if diff := cmp.Diff(want, attributes(s)); diff != "" {
		t.Error(diff)
	}
	var events []string
	for _, e := range s.Events {
		events = append(events, e.Name)
	}
	if diff := cmp.Diff([]string{"attempt", "attempt failed", "attempt", "first byte"}, events); diff != "" {
		t.Error(diff)
	}
	if first := s.Events[3]; time.Duration(first.TimeUnixNano-s.StartTimeUnixNano) != 1500*time.Millisecond {
		t.Errorf("first byte at %v", time.Unix(0, int64(first.TimeUnixNano)))
	}
	if got.service["service.name"] != "lmwarden" || got.service["service.version"] != "1.2" || got.header.Get("X-Key") != "k" {
		t.Errorf("exported by %v with %v", got.service, got.header)
	}
}

func TestASpanOfAFailureSaysSo(t *testing.T) {
	for _, c := range []struct {
		outcome proxy.Outcome
		status  otlp.Status_StatusCode
		code    string
	}{
		{proxy.EngineError, otlp.Status_STATUS_CODE_ERROR, "502"},
		{proxy.GatewayError, otlp.Status_STATUS_CODE_ERROR, "502"},
		{proxy.ClientError, otlp.Status_STATUS_CODE_UNSET, "502"},
		{proxy.Cancelled, otlp.Status_STATUS_CODE_UNSET, ""},
	} {
		t.Run(string(c.outcome), func(t *testing.T) {
			url, got := collect(t)
			tr := start(t, Options{Endpoint: url + collectorAt, Sample: 1})
			trace, _ := begin(t, tr)
			trace.End(&proxy.Record{Path: "/tokenize", Status: 502, Outcome: c.outcome, Error: "why"})
			tr.Stop()
			s := got.spans[0]
			a := attributes(s)
			if s.Name != "POST /tokenize" || s.Status.GetCode() != c.status || a["error.type"] != string(c.outcome) ||
				a["warden.error"] != "why" || a["http.response.status_code"] != c.code || a["gen_ai.usage.input_tokens"] != "" {
				t.Errorf("%s %v %v", s.Name, s.Status, a)
			}
		})
	}
}

// What a span may be called is a small list, no text is longer than its bound, and
// none keeps the others from being sent.
func TestWhatClientsWriteMakesSpansNeitherManyNorLarge(t *testing.T) {
	url, got := collect(t)
	tr := start(t, Options{Endpoint: url, Sample: 1})
	for _, rec := range []proxy.Record{
		{Path: "/v1/chat/completions", Facts: &llmapi.Facts{Model: strings.Repeat("m", 1<<20)}},
		{Path: "/v1/responses/resp_1", Outcome: proxy.EngineError, Error: "caf\xe9", Facts: &llmapi.Facts{Model: "m\xff"}},
	} {
		trace, _ := begin(t, tr)
		trace.Failed(errors.New(rec.Error))
		trace.End(&rec)
	}
	tr.Stop()
	if n := len(attributes(got.spans[0])["gen_ai.request.model"]); n != maxText {
		t.Errorf("a model's name of %d bytes", n)
	}
	if a, b := got.spans[0].Name, got.spans[1].Name; a != "chat" || b != "POST /v1/responses/{id}" {
		t.Errorf("spans %q, %q", a, b)
	}
}

func TestTheEnginesParentIsOurSpan(t *testing.T) {
	for name, c := range map[string]struct {
		header    []string
		continued bool
		flags     string
		state     []string
	}{
		"none":               {nil, false, "00", nil},
		"sampled":            {[]string{"Traceparent", sampled, "Tracestate", "a=1", "Tracestate", "b=2"}, true, "01", []string{"a=1,b=2"}},
		"not sampled":        {[]string{"Traceparent", notSampled, "Tracestate", "a=1"}, true, "00", []string{"a=1"}},
		"not understood":     {[]string{"Traceparent", "00-xyz", "Tracestate", "a=1"}, false, "00", nil},
		"several":            {[]string{"Traceparent", sampled, "Traceparent", sampled}, false, "00", nil},
		"a broken state":     {[]string{"Traceparent", sampled, "Tracestate", "=,,="}, true, "01", nil},
		"a state without it": {[]string{"Tracestate", "a=1"}, false, "00", nil},
		"a later version":    {[]string{"Traceparent", "cc-" + traceID + "-" + clientSpan + "-01-more"}, true, "01", nil},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := collect(t)
			tr := start(t, Options{Endpoint: url})
			trace, h := begin(t, tr, c.header...)
			parts := strings.Split(strings.Join(h["Traceparent"], " "), "-")
			if len(parts) != 4 || parts[0] != "00" || parts[3] != c.flags || parts[2] == clientSpan || (parts[1] == traceID) != c.continued {
				t.Errorf("the engine gets %q", h["Traceparent"])
			}
			if diff := cmp.Diff(c.state, h["Tracestate"]); diff != "" {
				t.Error(diff)
			}
			if trace.ID() != parts[1] {
				t.Errorf("the log gets %s", trace.ID())
			}
		})
	}
}

func TestTheShareDecidesWhereTheClientDidNot(t *testing.T) {
	for _, c := range []struct {
		share  float64
		parent string
		spans  int
	}{{0, "", 0}, {1, "", 1}, {0, sampled, 1}, {1, notSampled, 0}} {
		url, got := collect(t)
		tr := start(t, Options{Endpoint: url, Sample: c.share})
		var header []string
		if c.parent != "" {
			header = []string{"Traceparent", c.parent}
		}
		trace, _ := begin(t, tr, header...)
		trace.Attempt(routing.Decision{})
		trace.End(turn())
		tr.Stop()
		if len(got.spans) != c.spans {
			t.Errorf("share %v, client %q: %d spans", c.share, c.parent, len(got.spans))
		}
	}
}

// hanging is a collector that takes exports and never answers.
type hanging struct{ exports chan int }

func (h hanging) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	h.exports <- len(spans)
	<-ctx.Done()
	return ctx.Err()
}
func (hanging) Shutdown(context.Context) error { return nil }

func TestACollectorThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		exports := make(chan int, 100)
		tr := newTracer(Options{Sample: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))}, hanging{exports}, nil)
		tr.Start()
		began := time.Now()
		for range 3 * maxQueued {
			trace, _ := begin(t, tr)
			trace.End(turn())
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("requests waited %v", took)
		}
		if n := tr.out.waiting.Load(); n != maxQueued {
			t.Errorf("%d spans wait, at most %d may", n, maxQueued)
		}
		stopped := time.Now()
		tr.Stop()
		if took := time.Since(stopped); took > stopFor {
			t.Errorf("stopping took %v", took)
		}
		if n := strings.Count(log.String(), "spans were lost"); n != 2 {
			t.Errorf("the log has %d lines of lost spans, want the first and the rest: %s", n, log.String())
		}
		if last := fmt.Sprintf("spans=%d", 3*maxQueued-1); !strings.Contains(log.String(), last) {
			t.Errorf("no %s in the log: %s", last, log.String())
		}
		if n := tr.out.waiting.Load(); n != 0 {
			t.Errorf("%d spans still count as waiting", n)
		}
	})
}

func TestACollectorThatIsNotThereIsToldOnce(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	var log bytes.Buffer
	tr := start(t, Options{Endpoint: gone.URL, Sample: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		trace, _ := begin(t, tr)
		trace.End(turn())
	}
	tr.Stop()
	if !strings.Contains(log.String(), "spans=3") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("log: %s", log.String())
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, o := range []Options{{Endpoint: "http://127.0.0.1:4318"}, {Logger: log}, {Endpoint: "127.0.0.1:4318", Logger: log}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// BenchmarkRequest is what tracing costs a request on the data path.
func BenchmarkRequest(b *testing.B) {
	for name, share := range map[string]float64{"sampled": 1, "not sampled": 0} {
		b.Run(name, func(b *testing.B) {
			tr := newTracer(Options{Sample: share, Logger: slog.New(slog.DiscardHandler)}, nothing{}, nil)
			tr.Start()
			defer tr.Stop()
			r, rec := httptest.NewRequest("POST", "/v1/messages", nil), turn()
			b.ReportAllocs()
			for b.Loop() {
				delete(r.Header, headerParent)
				trace := tr.Begin(rec.Time, r)
				rec.Trace = trace.ID()
				trace.Attempt(rec.Decision)
				trace.End(rec)
			}
		})
	}
}

type nothing struct{}

func (nothing) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (nothing) Shutdown(context.Context) error                        { return nil }
