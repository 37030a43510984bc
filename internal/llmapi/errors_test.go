package llmapi

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestErrors(t *testing.T) {
	tests := []struct {
		kind      ErrorKind
		status    int
		openAI    string
		anthropic string
	}{
		{KindBadRequest, 400, "invalid_request_error", "invalid_request_error"},
		{KindUnknownModel, 404, "invalid_request_error", "not_found_error"},
		{KindTooLarge, 413, "invalid_request_error", "request_too_large"},
		{KindUnauthorized, 401, "authentication_error", "authentication_error"},
		{KindNoReplica, 503, "server_error", "overloaded_error"},
		{KindEngineUnreachable, 502, "server_error", "api_error"},
		{KindEngineTimeout, 504, "server_error", "timeout_error"},
		{KindOverloaded, 503, "server_error", "overloaded_error"},
		{KindStopping, 503, "server_error", "overloaded_error"},
	}
	for _, tt := range tests {
		t.Run(string(tt.kind), func(t *testing.T) {
			e := &Error{Kind: tt.kind, Message: `no "x" here`, RetryAfter: 1500 * time.Millisecond}
			for _, d := range []Dialect{OpenAI, Anthropic} {
				w := httptest.NewRecorder()
				if err := e.Write(w, d); err != nil {
					t.Fatal(err)
				}
				if w.Code != tt.status || e.Status() != tt.status {
					t.Errorf("status %d, want %d", w.Code, tt.status)
				}
				for name, want := range map[string]string{"Content-Type": "application/json", "X-Warden-Error": string(tt.kind), "Retry-After": "2"} {
					if got := w.Header().Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				var body map[string]any
				if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
					t.Fatalf("%v: %s", err, w.Body)
				}
				fault := body["error"].(map[string]any)
				want := map[string]any{"type": tt.anthropic, "message": e.Message}
				if d == OpenAI {
					want = map[string]any{"type": tt.openAI, "message": e.Message, "param": nil, "code": fault["code"]}
					if code, _ := fault["code"].(string); code == "" {
						t.Errorf("no code: %s", w.Body)
					}
				} else if body["type"] != "error" {
					t.Errorf("no Anthropic error: %s", w.Body)
				}
				if diff := cmp.Diff(want, fault); diff != "" {
					t.Errorf("%v:\n%s", d, diff)
				}
				if a := ReadAnswer(RouteChat, w.Body.Bytes()); a.Ending != EndError {
					t.Errorf("reads as %v", a.Ending)
				}
			}
		})
	}
}

func TestErrorWithoutRetryAfter(t *testing.T) {
	w := httptest.NewRecorder()
	e := &Error{Kind: KindBadRequest, Message: "x"}
	if err := e.Write(w, OpenAI); err != nil {
		t.Fatal(err)
	}
	if v, ok := w.Header()["Retry-After"]; ok {
		t.Errorf("Retry-After: %q", v)
	}
}

func TestErrorEvent(t *testing.T) {
	const message = "replica 2 broke off\nits answer"
	tests := []struct {
		route Route
		want  string
	}{
		{RouteChat, `data: {"error":{"message":"replica 2 broke off\nits answer","type":"server_error","param":null,"code":"engine_error"}}` + "\n\n"},
		{RouteCompletions, `data: {"error":{"message":"replica 2 broke off\nits answer","type":"server_error","param":null,"code":"engine_error"}}` + "\n\n"},
		{RouteMessages, "event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"replica 2 broke off\nits answer"}}` + "\n\n"},
		{RouteResponses, "event: error\n" + `data: {"type":"error","message":"replica 2 broke off\nits answer","param":null,"code":"engine_error","error":{"message":"replica 2 broke off\nits answer","type":"server_error","param":null,"code":"engine_error"}}` + "\n\n"},
	}
	for _, tt := range tests {
		event := ErrorEvent(tt.route, message)
		if string(event) != tt.want {
			t.Errorf("%v:\n%s\nwant\n%s", tt.route, event, tt.want)
		}
		o := NewObserver(tt.route)
		if o.Observe(event); o.Ending() != EndError {
			t.Errorf("%v: our own event reads as %v", tt.route, o.Ending())
		}
	}
}
