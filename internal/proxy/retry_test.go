package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// counted counts the requests that reach an engine.
func counted(n *atomic.Int32, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		h(w, r)
	}
}

// resetting is an engine that takes a request, sends these bytes and resets the
// connection.
func resetting(t testing.TB, n *atomic.Int32, sent string) string {
	return rawEngine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := take(r); err == nil {
			n.Add(1)
			io.WriteString(c, sent)
		}
	})
}

// redirecting is an engine behind a server that knows better where it is.
func redirecting(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "https://10.1.2.3"+r.URL.Path, http.StatusTemporaryRedirect)
}

// A redirect would lead the client past the gateway, or nowhere.
func TestARedirectIsAnErrorThatSaysSo(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions":      chatBody,
		"/v1/messages":              strings.ReplaceAll(messagesBody, "claude-x", "m"),
		"/v1/messages/count_tokens": strings.ReplaceAll(messagesBody, "claude-x", "m"),
		"/v1/embeddings":            `{"model":"m","input":"hello"}`,
		"/v1/audio/speech":          `{"model":"m","input":"hello"}`,
	} {
		t.Run(path, func(t *testing.T) {
			g := newGateway(t, Limits{}, fakeEngine(t, redirecting))
			got := g.post(t, path, body)
			if got.status != http.StatusBadGateway || !strings.Contains(got.body, "redirect") ||
				strings.Contains(got.body, "10.1.2.3") || got.header.Get("Location") != "" {
				t.Errorf("got %d %v %s", got.status, got.header, got.body)
			}
			if rec := g.record(t); rec.Outcome != EngineError || !strings.Contains(rec.Error, "https://10.1.2.3"+path) {
				t.Errorf("record: %+v", rec)
			}
			g.settled(t)
		})
	}
}

// What no client has seen is answered by another replica.
func TestFailureBeforeTheFirstByteIsRetriedElsewhere(t *testing.T) {
	var n atomic.Int32
	chat := scripts["/v1/chat/completions"]
	tests := []struct {
		name   string
		broken func(t *testing.T) string
		stream bool
	}{
		{"refused", func(t *testing.T) string { return refusing(t) }, false},
		{"refused", func(t *testing.T) string { return refusing(t) }, true},
		{"reset before headers", func(t *testing.T) string { return resetting(t, &n, "") }, false},
		{"reset before headers", func(t *testing.T) string { return resetting(t, &n, "") }, true},
		{"reset after headers", func(t *testing.T) string {
			return resetting(t, &n, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		}, true},
		{"reset within the first event", func(t *testing.T) string {
			return resetting(t, &n, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n")
		}, true},
		{"reset within the body", func(t *testing.T) string {
			return resetting(t, &n, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(chatAnswer), chatAnswer[:20]))
		}, false},
		{"body cut without a length", func(t *testing.T) string {
			return fakeEngine(t, answered(200, chatAnswer[:50]))
		}, false},
		{"no HTTP", func(t *testing.T) string { return resetting(t, &n, "hello\r\n\r\n") }, false},
		{"aborted answer", func(t *testing.T) string { return fakeEngine(t, answered(200, chatAborted)) }, false},
		{"aborted stream", func(t *testing.T) string {
			return fakeEngine(t, streamed(data(`{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`, "[DONE]")...))
		}, true},
		{"empty stream", func(t *testing.T) string { return fakeEngine(t, streamed()) }, true},
		{"HTML", func(t *testing.T) string {
			return fakeEngine(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>It works!</html>") })
		}, false},
		{"redirect", func(t *testing.T) string { return fakeEngine(t, redirecting) }, false},
		{"redirect", func(t *testing.T) string { return fakeEngine(t, redirecting) }, true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s/stream=%v", tt.name, tt.stream), func(t *testing.T) {
			n.Store(0)
			body, good, want := chatBody, answered(200, chatAnswer), chatAnswer
			if tt.stream {
				body, good, want = chat.body, streamed(chat.events...), strings.Join(chat.events, "")
			}
			g := newGateway(t, Limits{}, tt.broken(t), fakeEngine(t, good))
			got := g.post(t, "/v1/chat/completions", body)
			if got.status != 200 || got.body != want || got.err != nil {
				t.Errorf("got %d %v %q", got.status, got.err, got.body)
			}
			if got.header.Get(headerReplica) != "1" || got.header.Get(headerDecision) != "moved" {
				t.Errorf("the headers are those of the failed attempt: %v", got.header)
			}
			rec := g.record(t)
			if rec.Outcome != OK || rec.Attempts != 2 || rec.Decision.Replica != 1 {
				t.Errorf("record: %+v", rec)
			}
			if c := n.Load(); c > 1 {
				t.Errorf("the broken engine was asked %d times", c)
			}
			g.settled(t)
		})
	}
}

// An engine announces a response before it reads its prompt, which may take long: if
// it dies in that time, another replica answers, with an announcement of its own.
func TestAnAnnouncedAnswerIsMadeElsewhere(t *testing.T) {
	script := scripts["/v1/responses"]
	cancelled := "event: response.completed\ndata: {\"response\":{\"status\":\"cancelled\"}}\n\n"
	long := func(size int) string {
		return "event: response.created\ndata: {\"response\":{\"instructions\":\"" + strings.Repeat("x", size) + "\"}}\n\n"
	}
	for _, tt := range []struct {
		name  string
		sent  []string
		again bool
	}{
		{"then cut", []string{long(10)}, true},
		{"then aborted", []string{long(10), cancelled}, true},
		{"in several reads", []string{long(100_000), strings.ReplaceAll(long(100_000), "created", "in_progress")}, true},
		{"longer than is held", []string{long(announcementLimit)}, false},
		{"then begun", []string{long(10), script.events[1]}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, Limits{}, fakeEngine(t, streamed(tt.sent...)), fakeEngine(t, streamed(script.events...)))
			got := g.post(t, "/v1/responses", script.body)
			rec := g.record(t)
			if !tt.again {
				failed(t, "/v1/responses", got, strings.Join(tt.sent, ""))
				if rec.Outcome != EngineError || rec.Attempts != 1 {
					t.Errorf("record: %+v", rec)
				}
				return
			}
			if got.status != 200 || got.body != strings.Join(script.events, "") || got.err != nil {
				t.Errorf("got %d %v %q", got.status, got.err, got.body)
			}
			if rec.Outcome != OK || rec.Attempts != 2 || rec.Decision.Replica != 1 {
				t.Errorf("record: %+v", rec)
			}
			g.settled(t)
		})
	}
}

func TestAtMostThreeServersAreTried(t *testing.T) {
	var n atomic.Int32
	var engines []string
	for range 5 {
		engines = append(engines, resetting(t, &n, ""))
	}
	g := newGateway(t, Limits{}, engines...)
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		n.Store(0)
		got := g.post(t, path, chatBody)
		if got.status != http.StatusBadGateway || got.header.Get(headerError) != "engine-unreachable" {
			t.Errorf("got %d %v %q", got.status, got.header, got.body)
		}
		if c := n.Load(); c != 3 {
			t.Errorf("%d requests were sent, want 3", c)
		}
		if strings.Contains(got.body, "127.0.0.1") || !strings.Contains(got.body, "replica 2") || !strings.Contains(got.body, "3 attempts") {
			t.Errorf("body %q", got.body)
		}
		if anthropic := strings.HasPrefix(got.body, `{"type":"error"`); anthropic != (path == "/v1/messages") {
			t.Errorf("%s: wrong dialect: %s", path, got.body)
		}
		if rec := g.record(t); rec.Outcome != EngineError || rec.Attempts != 3 || rec.Status != 502 {
			t.Errorf("record: %+v", rec)
		}
	}
	g.settled(t)
}

func TestAnAnswerThatIsAbortedEverywhereIsAnError(t *testing.T) {
	g := newGateway(t, Limits{}, fakeEngine(t, answered(200, chatAborted)), fakeEngine(t, answered(200, chatAborted)))
	got := g.post(t, "/v1/chat/completions", chatBody)
	if got.status != http.StatusBadGateway || !strings.Contains(got.body, "short") {
		t.Errorf("got %d %q", got.status, got.body)
	}
	if rec := g.record(t); rec.Outcome != EngineError || rec.Attempts != 2 {
		t.Errorf("record: %+v", rec)
	}
}

func TestTheEnginesOwnErrorsPassUnchangedAfterOneAttempt(t *testing.T) {
	for _, status := range []int{400, 401, 404, 422, 429, 500, 502} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			var n atomic.Int32
			body := fmt.Sprintf(`{"error": {"message":"no","code":%d}}`, status)
			e := fakeEngine(t, counted(&n, answered(status, body, "Retry-After", "7", "X-Should-Retry", "false")))
			g := newGateway(t, Limits{}, e, e)
			got := g.post(t, "/v1/chat/completions", chatStream)
			if got.status != status || got.body != body || got.header.Get("Retry-After") != "7" || got.header.Get("X-Should-Retry") != "false" {
				t.Errorf("got %d %q %v", got.status, got.body, got.header)
			}
			if got.header.Get(headerError) != "" {
				t.Error("the engine's error claims to be the gateway's")
			}
			if c := n.Load(); c != 1 {
				t.Errorf("%d attempts", c)
			}
			want := ClientError
			if status >= 500 {
				want = EngineError
			}
			if rec := g.record(t); rec.Outcome != want || rec.Status != status {
				t.Errorf("record: %+v", rec)
			}
		})
	}
}

func TestABusyEngineIsReplacedOnce(t *testing.T) {
	const busy = `{"error":{"message":"The engine is currently busy","code":503}}`
	var n atomic.Int32
	full := func(header ...string) string {
		return fakeEngine(t, counted(&n, answered(503, busy, header...)))
	}
	free := fakeEngine(t, counted(&n, answered(200, chatAnswer)))
	tests := []struct {
		name       string
		engines    []string
		status     int
		attempts   int32
		retryAfter string
	}{
		{"another is free", []string{full(), free}, 200, 2, ""},
		{"another is busy too", []string{full(), full(), free}, 503, 2, "2"},
		{"its own Retry-After is kept", []string{full(), full("Retry-After", "11")}, 503, 2, "11"},
		{"there is no other", []string{full()}, 503, 1, "2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n.Store(0)
			g := newGateway(t, Limits{}, tt.engines...)
			got := g.post(t, "/v1/chat/completions", chatBody)
			if got.status != tt.status || got.header.Get("Retry-After") != tt.retryAfter || n.Load() != tt.attempts {
				t.Errorf("got %d, Retry-After %q, %d attempts", got.status, got.header.Get("Retry-After"), n.Load())
			}
			if tt.status == 503 && got.body != busy {
				t.Errorf("body %q", got.body)
			}
			if rec := g.record(t); rec.Status != tt.status || rec.Attempts != int(tt.attempts) {
				t.Errorf("record: %+v", rec)
			}
			g.settled(t)
		})
	}
}

// An engine that closes each connection after one answer, without saying so,
// must cost no request and not count as failing.
func TestAConnectionThatTheEngineClosedCostsNothing(t *testing.T) {
	ways := map[string]func(c net.Conn, r *bufio.Reader){
		"reset when the next request comes": func(c net.Conn, r *bufio.Reader) { r.Peek(1) },
		"reset when it is complete":         func(c net.Conn, r *bufio.Reader) { take(r) },
		"reset at once":                     func(c net.Conn, r *bufio.Reader) {},
		"closed when the next request comes": func(c net.Conn, r *bufio.Reader) {
			r.Peek(1)
			c.(*net.TCPConn).CloseWrite()
			r.Discard(1 << 30)
		},
	}
	for name, end := range ways {
		for _, size := range []int{100, 200 << 10} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				var served atomic.Int32
				g := newGateway(t, Limits{}, rawEngine(t, func(_ int, c net.Conn, r *bufio.Reader) {
					if _, _, err := take(r); err != nil {
						return
					}
					served.Add(1)
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(chatAnswer), chatAnswer)
					end(c, r)
				}))
				body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
				for i := range 30 {
					if got := g.post(t, "/v1/chat/completions", body); got.status != 200 {
						t.Fatalf("request %d: %d %q", i, got.status, got.body)
					}
					if rec := g.record(t); rec.Attempts != 1 {
						t.Fatalf("request %d counts %d attempts", i, rec.Attempts)
					}
				}
				if n := served.Load(); n != 30 {
					t.Errorf("the engine answered %d requests", n)
				}
			})
		}
	}
}

func TestUnreadAnswersPassByteForByte(t *testing.T) {
	var accept string
	sound := strings.Repeat("\x00\xff", 50_000)
	g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		accept = r.Header.Get("Accept-Encoding")
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "audio/wav")
		io.WriteString(w, sound)
	}))
	got := g.post(t, "/v1/audio/speech", `{"model":"mini","input":"hello"}`, "Accept-Encoding", "gzip")
	if got.body != sound || got.err != nil {
		t.Errorf("%v; %s", got.err, cmp.Diff(len(sound), len(got.body)))
	}
	if accept != "gzip" {
		t.Errorf("Accept-Encoding at the engine: %q", accept)
	}
	if rec := g.record(t); rec.Outcome != OK || rec.BytesOut != int64(len(sound)) {
		t.Errorf("record: %+v", rec)
	}
}
