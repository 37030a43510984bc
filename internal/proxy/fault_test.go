package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

// The pool is told of each attempt that failed through its engine, once, and of
// no other.
func TestThePoolIsToldOfTheEnginesFaults(t *testing.T) {
	chat := scripts["/v1/chat/completions"]
	cut := func(w http.ResponseWriter, r *http.Request) {
		streamed(chat.events[0])(w, r)
		panic(http.ErrAbortHandler)
	}
	page := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte("<html>"))
	}
	tests := []struct {
		name   string
		engine http.HandlerFunc
		body   string
		want   error // nil for no fault; errAny for any that is none of the pool's
	}{
		{"a good stream", streamed(chat.events...), chatStream, nil},
		{"a good answer", answered(200, chatAnswer), chatBody, nil},
		{"a refused request", answered(400, `{"error":{}}`), chatBody, nil},
		{"too many requests", answered(429, `{"error":{}}`), chatBody, nil},
		{"a full queue", answered(503, `{"error":{}}`), chatBody, pool.ErrBusy},
		{"a dead engine's 500", answered(500, `{"error":{}}`), chatBody, errAny},
		{"a web page", page, chatBody, errAny},
		{"a web page's 502", answered(502, "<html>"), chatBody, errAny},
		{"an aborted stream", streamed(append(chat.events[:2:2], data(`{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`, "[DONE]")...)...), chatStream, pool.ErrAborted},
		{"an aborted answer", answered(200, chatAborted), chatBody, pool.ErrAborted},
		{"an error event", streamed(append(chat.events[:2:2], data(`{"error":{"message":"boom","type":"InternalServerError","code":500}}`, "[DONE]")...)...), chatStream, errAny},
		{"a cut stream", cut, chatStream, errAny},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, Limits{}, fakeEngine(t, tt.engine))
			g.post(t, "/v1/chat/completions", tt.body)
			g.record(t)
			l := g.model.leases[0]
			told := append(l.failures, l.retries...)
			switch {
			case tt.want == nil && len(told) > 0, tt.want != nil && len(told) != 1:
				t.Fatalf("the pool was told %v", told)
			case tt.want == nil:
				return
			}
			known := errors.Is(told[0], pool.ErrBusy) || errors.Is(told[0], pool.ErrAborted)
			if tt.want == errAny && known || tt.want != errAny && !errors.Is(told[0], tt.want) {
				t.Errorf("the pool was told %q", told[0])
			}
		})
	}
}

var errAny = errors.New("any fault")

func TestEveryReadOfAnAnswerIsProgress(t *testing.T) {
	chat := scripts["/v1/chat/completions"]
	g := newGateway(t, Limits{}, fakeEngine(t, streamed(chat.events...)))
	g.post(t, "/v1/chat/completions", chatStream)
	g.record(t)
	if l := g.model.leases[0]; l.first != 1 || l.progress < 1 {
		t.Errorf("first byte %d times, progress %d times", l.first, l.progress)
	}

	// An answer that is read whole before it is passed on.
	g = newGateway(t, Limits{}, fakeEngine(t, answered(200, strings.Replace(chatAnswer, "hi", strings.Repeat("long ", 100_000), 1))))
	g.post(t, "/v1/chat/completions", chatBody)
	g.record(t)
	if l := g.model.leases[0]; l.progress < 2 {
		t.Errorf("progress %d times in half a megabyte", l.progress)
	}
}

// A gateway that is out of file descriptors must not take its engines for dead.
func TestWantOfDescriptorsIsNoFaultOfAnEngine(t *testing.T) {
	m := &fakeModel{name: "m", served: "m", reason: routing.Placed, bases: []*url.URL{{Scheme: "http", Host: "a"}, {Scheme: "http", Host: "b"}}}
	g := build(t, Limits{}, func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	}, m)
	w := httptest.NewRecorder()
	g.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chatBody)))
	if w.Code != 503 || w.Header().Get(headerError) != "overloaded" || w.Header().Get("Retry-After") != "2" {
		t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
	if l := m.leases[0]; len(l.retries) > 0 || len(l.failures) > 0 {
		t.Errorf("the pool was told %v, %v", l.retries, l.failures)
	}
	if rec := g.record(t); rec.Outcome != GatewayError || !strings.Contains(rec.Error, syscall.EMFILE.Error()) {
		t.Errorf("record: %+v", rec)
	}
	g.settled(t)
}
