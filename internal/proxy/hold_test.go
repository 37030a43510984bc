package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

const (
	pingEvent   = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
	commentLine = ": waiting\n\n"
)

// heldFor holds a request as a pool does, and then ends the wait with err.
func heldFor(d time.Duration, end error) func(context.Context, pool.Request) error {
	return func(ctx context.Context, r pool.Request) error {
		for over := time.After(d); ; {
			var beat <-chan time.Time
			if r.Beat != nil {
				beat = time.After(r.BeatEvery)
			}
			select {
			case <-over:
				return end
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-beat:
				if err := r.Beat(); err != nil {
					return err
				}
			}
		}
	}
}

// forM is a script's body for the model of a gateway in a bubble.
func forM(path string) string {
	return strings.ReplaceAll(scripts[path].body, "claude-x", "m")
}

func TestAStreamThatWaitsIsKeptAlive(t *testing.T) {
	tests := []struct {
		path     string
		how      KeepAlive
		waits    time.Duration
		wantKept string
	}{
		{"/v1/messages", KeepAliveAuto, 40 * time.Second, pingEvent + pingEvent},
		{"/v1/chat/completions", KeepAliveAuto, 40 * time.Second, commentLine + commentLine},
		{"/v1/responses", "", 40 * time.Second, commentLine + commentLine},
		{"/v1/messages", KeepAliveAuto, 14 * time.Second, ""},
		{"/v1/messages", KeepAlivePing, 16 * time.Second, pingEvent},
		{"/v1/chat/completions", KeepAlivePing, 40 * time.Second, ""},
		{"/v1/messages", KeepAliveComment, 16 * time.Second, commentLine},
		{"/v1/messages", KeepAliveNone, 40 * time.Second, ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.path, tt.how, tt.waits), func(t *testing.T) {
			script := scripts[tt.path]
			inBubble(t, Limits{KeepAlive: tt.how}, streamed(script.events...), func(t *testing.T, g *gateway) {
				g.model.hold = heldFor(tt.waits, nil)
				req, err := http.NewRequest("POST", g.url+tt.path, strings.NewReader(forM(tt.path)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Session-Id", "s-1")
				began := time.Now()
				res, err := g.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				head := time.Since(began)
				b, err := io.ReadAll(res.Body)
				if want := tt.wantKept + strings.Join(script.events, ""); err != nil || string(b) != want || res.StatusCode != 200 {
					t.Errorf("%d %v %q, want %q", res.StatusCode, err, b, want)
				}
				signed := res.Header
				if tt.wantKept != "" {
					if head != 15*time.Second || res.Header.Get(headerReplica) != "" || res.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
						t.Errorf("after %v: %v", head, res.Header)
					}
					signed = res.Trailer
				}
				if signed.Get(headerReplica) != "0" || signed.Get(headerDecision) != "placed" || res.Header.Get(headerConversation) == "" {
					t.Errorf("header %v, trailer %v", res.Header, res.Trailer)
				}
				rec := g.record(t)
				if rec.Outcome != OK || rec.Status != 200 || rec.Waited != tt.waits || rec.TTFB != tt.waits || !rec.Usage.Known || rec.BytesOut != int64(len(b)) {
					t.Errorf("record: %+v", rec)
				}
				if line := <-g.lines; !strings.Contains(line, fmt.Sprintf("waited_ms=%d", tt.waits.Milliseconds())) {
					t.Errorf("log line %s", line)
				}
			})
		})
	}
}

// Nothing is written before an answer that does not stream: its status and its
// headers are still to come.
func TestAnAnswerThatDoesNotStreamWaitsInSilence(t *testing.T) {
	inBubble(t, Limits{}, answered(200, chatAnswer), func(t *testing.T, g *gateway) {
		g.model.hold = heldFor(time.Minute, nil)
		got := g.post(t, "/v1/chat/completions", chatBody)
		if got.status != 200 || got.body != chatAnswer || got.header.Get(headerReplica) != "0" {
			t.Errorf("%d %v %q", got.status, got.header, got.body)
		}
		if rec := g.record(t); rec.Waited != time.Minute || rec.TTFB != time.Minute {
			t.Errorf("record: %+v", rec)
		}
	})
}

// What goes wrong after a keep-alive stands in the dialect's error event, and the
// stream is cut after it.
func TestFailuresAfterAKeepAlive(t *testing.T) {
	queueFull := &pool.Refused{Why: routing.QueueFull, RetryAfter: 7 * time.Second}
	stopped := &pool.Refused{Why: pool.Stopping, RetryAfter: time.Second}
	never := func(http.ResponseWriter, *http.Request) {}
	tests := []struct {
		name, path string
		ends       error
		engine     http.HandlerFunc
		want       string
		outcome    Outcome
	}{
		{"refused, messages", "/v1/messages", queueFull, never,
			event("error", `{"type":"error","error":{"type":"overloaded_error","message":"too many requests wait for this model; try again in a moment"}}`), GatewayError},
		{"stopping, chat", "/v1/chat/completions", stopped, never,
			"data: " + `{"error":{"message":"the gateway is stopping; try again in a moment","type":"server_error","param":null,"code":"stopping"}}` + "\n\n", GatewayError},
		{"the engine refuses, messages", "/v1/messages", nil, answered(400, `{"type":"error","error":{"type":"invalid_request_error","message":"too long"}}`),
			event("error", `{"type":"error","error":{"type":"invalid_request_error","message":"too long"}}`), ClientError},
		{"the engine fails, chat", "/v1/chat/completions", nil, answered(500, `{"object":"error","message":"oops","code":500}`),
			"data: " + `{"error":{"message":"oops","type":"server_error","param":null,"code":"internal_error"}}` + "\n\n", EngineError},
		{"the engine is busy, responses", "/v1/responses", nil, answered(503, `busy`),
			event("error", `{"type":"error","message":"busy","param":null,"code":"overloaded","error":{"message":"busy","type":"server_error","param":null,"code":"overloaded"}}`), EngineError},
		{"no stream, messages", "/v1/messages", nil, answered(200, messagesAnswer),
			event("error", `{"type":"error","error":{"type":"api_error","message":"replica 0 answered without a stream"}}`), EngineError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, Limits{}, tt.engine, func(t *testing.T, g *gateway) {
				g.model.hold = heldFor(20*time.Second, tt.ends)
				kept := commentLine
				if tt.path == "/v1/messages" {
					kept = pingEvent
				}
				got := g.post(t, tt.path, forM(tt.path))
				if got.status != 200 || got.body != kept+tt.want || !isCut(got.err) {
					t.Errorf("%d %v\n%q, want\n%q", got.status, got.err, got.body, kept+tt.want)
				}
				if rec := g.record(t); rec.Outcome != tt.outcome || rec.Status != 200 || rec.Waited != 20*time.Second {
					t.Errorf("record: %+v", rec)
				}
			})
		})
	}
}

func TestRefusalsOfTheQueue(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions": `{"error":{"message":"too many requests wait for this model; try again in a moment","type":"server_error","param":null,"code":"overloaded"}}`,
		"/v1/messages":         `{"type":"error","error":{"type":"overloaded_error","message":"too many requests wait for this model; try again in a moment"}}`,
	} {
		inBubble(t, Limits{}, silent(""), func(t *testing.T, g *gateway) {
			for after, header := range map[time.Duration]string{7 * time.Second: "7", time.Hour: "30", 0: "2"} {
				g.model.refuse = &pool.Refused{Why: routing.QueueFull, RetryAfter: after}
				got := g.post(t, path, forM(path))
				if got.status != 503 || got.body != want || got.header.Get("Retry-After") != header || got.header.Get(headerError) != "overloaded" {
					t.Errorf("%d %v %s", got.status, got.header, got.body)
				}
				if rec := g.record(t); rec.Outcome != GatewayError || rec.Waited != 0 {
					t.Errorf("record: %+v", rec)
				}
			}
		})
	}
}

// Until the first byte of an answer another replica may be tried, whatever keeps
// the client waiting.
func TestAKeptStreamIsRetried(t *testing.T) {
	script := scripts["/v1/messages"]
	attempts := 0
	engine := func(w http.ResponseWriter, r *http.Request) {
		if attempts++; attempts == 1 {
			panic(http.ErrAbortHandler)
		}
		streamed(script.events...)(w, r)
	}
	inBubble(t, Limits{}, engine, func(t *testing.T, g *gateway) {
		g.model.bases = append(g.model.bases, &url.URL{Scheme: "http", Host: "other"})
		g.model.hold = heldFor(20*time.Second, nil) // the first attempt, and the second
		got := g.post(t, "/v1/messages", forM("/v1/messages"))
		if want := pingEvent + pingEvent + strings.Join(script.events, ""); got.status != 200 || got.err != nil || got.body != want {
			t.Errorf("%d %v %q", got.status, got.err, got.body)
		}
		if rec := g.record(t); rec.Outcome != OK || rec.Attempts != 2 || rec.Waited != 40*time.Second {
			t.Errorf("record: %+v", rec)
		}
	})
}

func TestAClientThatLeavesWhileItWaits(t *testing.T) {
	for _, after := range []time.Duration{5 * time.Second, 20 * time.Second} { // before and after a keep-alive
		inBubble(t, Limits{}, silent(""), func(t *testing.T, g *gateway) {
			g.model.hold = heldFor(time.Hour, nil)
			ctx, leave := context.WithTimeout(t.Context(), after)
			defer leave()
			req, err := http.NewRequestWithContext(ctx, "POST", g.url+"/v1/messages", strings.NewReader(forM("/v1/messages")))
			if err != nil {
				t.Fatal(err)
			}
			if res, err := g.client.Do(req); err == nil {
				if b, err := io.ReadAll(res.Body); err == nil {
					t.Errorf("read to the end: %q", b)
				}
				res.Body.Close()
			}
			status := statusCancelled
			if after > 15*time.Second {
				status = 200
			}
			if rec := g.record(t); rec.Outcome != Cancelled || rec.Waited != after || rec.Status != status || rec.Attempts != 0 {
				t.Errorf("record: %+v", rec)
			}
		})
	}
}
