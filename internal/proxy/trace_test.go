package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/routing"
)

const clientTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// traceLog is a Tracer that puts a header on and writes down what it is told.
type traceLog struct {
	told  []string
	ended chan struct{}
}

func (l *traceLog) Begin(_ time.Time, r *http.Request) Trace {
	r.Header["Traceparent"] = []string{"ours"}
	return l
}
func (l *traceLog) ID() string { return "trace-1" }
func (l *traceLog) Attempt(d routing.Decision) {
	l.told = append(l.told, fmt.Sprintf("attempt at %d: %s", d.Replica, d.Reason))
}
func (l *traceLog) Failed(error) { l.told = append(l.told, "failed") }
func (l *traceLog) End(r *Record) {
	l.told = append(l.told, fmt.Sprintf("%s of %s", r.Outcome, r.Trace))
	close(l.ended)
}

func TestATraceIsToldOfEachAttemptAndOfTheEnd(t *testing.T) {
	var sent string
	g := newGateway(t, Limits{}, refusing(t), fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Traceparent")
		answered(200, chatAnswer)(w, r)
	}))
	l := &traceLog{ended: make(chan struct{})}
	g.tracer = l
	g.post(t, "/v1/chat/completions", chatBody, "Traceparent", clientTrace)
	<-l.ended
	want := []string{"attempt at 0: placed", "failed", "attempt at 1: moved", "ok of trace-1"}
	if diff := cmp.Diff(want, l.told); diff != "" {
		t.Error(diff)
	}
	if sent != "ours" {
		t.Errorf("the engine got traceparent %q", sent)
	}
	if line := <-g.lines; !strings.Contains(line, "trace_id=trace-1") {
		t.Errorf("log: %s", line)
	}
}

func TestARefusedRequestEndsItsTrace(t *testing.T) {
	g := newGateway(t, Limits{}, refusing(t))
	l := &traceLog{ended: make(chan struct{})}
	g.tracer = l
	g.post(t, "/v1/chat/completions", `{"model":"nobody","messages":[]}`)
	<-l.ended
	if diff := cmp.Diff([]string{"client_error of trace-1"}, l.told); diff != "" {
		t.Error(diff)
	}
}

// Who traces past us must see the client's own span at the engine.
func TestWithoutATracerTraceHeadersPassUntouched(t *testing.T) {
	var sent http.Header
	g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		sent = r.Header.Clone()
		io.WriteString(w, chatAnswer)
	}))
	g.post(t, "/v1/chat/completions", chatBody, "Traceparent", clientTrace, "Tracestate", "a=1", "Tracestate", "b=2")
	if diff := cmp.Diff([]string{clientTrace}, sent["Traceparent"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a=1", "b=2"}, sent["Tracestate"]); diff != "" {
		t.Error(diff)
	}
	if line := <-g.lines; strings.Contains(line, "trace_id") {
		t.Errorf("log: %s", line)
	}
}

func TestWithoutATracerNothingIsAllocated(t *testing.T) {
	var tracer Tracer = untraced{}
	rec := new(Record)
	if n := testing.AllocsPerRun(100, func() {
		trace := tracer.Begin(rec.Time, nil)
		rec.Trace = trace.ID()
		trace.Attempt(rec.Decision)
		trace.End(rec)
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}
