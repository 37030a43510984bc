package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lmwarden/internal/bench"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		os.Exit(fixedDelayServer())
	}
	if at := os.Getenv(engineEnv); at != "" {
		os.Exit(childEngine(at))
	}
	goleak.VerifyTestMain(m)
}

// endpoint is a server of both dialects that answers as its script says.
type endpoint struct {
	t      *testing.T
	url    *url.URL
	script func(w *stream, r *http.Request)

	mu   sync.Mutex
	seen []request // guarded by mu
}

// request is one that an endpoint was sent.
type request struct {
	header http.Header
	path   string
	body   struct {
		Model     string
		MaxTokens int  `json:"max_tokens"`
		Stream    bool `json:"stream"`
		Metadata  struct {
			UserID string `json:"user_id"`
		}
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		System   []struct{ Type, Text string }
		Messages []struct{ Role, Content string }
	}
}

// newEndpoint serves until the test ends.
func newEndpoint(t *testing.T, script func(w *stream, r *http.Request)) *endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newEndpointOn(t, l, script)
}

func newEndpointOn(t *testing.T, l net.Listener, script func(w *stream, r *http.Request)) *endpoint {
	t.Helper()
	e := &endpoint{t: t, script: script}
	e.url = mustURL(t, "http://"+l.Addr().String())
	server := &http.Server{Handler: e}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := request{header: r.Header, path: r.URL.Path}
	body, err := io.ReadAll(r.Body)
	if err == nil && r.Method == http.MethodPost {
		err = json.Unmarshal(body, &q.body)
	}
	if err != nil {
		e.t.Errorf("request body: %v: %s", err, body)
	}
	e.mu.Lock()
	e.seen = append(e.seen, q)
	e.mu.Unlock()
	e.script(&stream{w: w, openAI: r.URL.Path == "/v1/chat/completions"}, r)
}

func (e *endpoint) requests() []request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

// stream writes the events of one answer.
type stream struct {
	w      http.ResponseWriter
	openAI bool
}

func (s *stream) event(format string, args ...any) {
	if s.w.Header().Get("Content-Type") == "" {
		s.w.Header().Set("Content-Type", "text/event-stream")
	}
	fmt.Fprintf(s.w, "data: "+format+"\n\n", args...)
	s.w.(http.Flusher).Flush()
}

func (s *stream) begin() {
	if s.openAI {
		s.event(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
		return
	}
	s.event(`{"type":"message_start","message":{"usage":{"input_tokens":99,"output_tokens":0}}}`)
	s.event(`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
}

func (s *stream) say(text string) {
	if s.openAI {
		s.event(`{"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text)
		return
	}
	s.event(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%q}}`, text)
}

// end ends an answer well. usage is an object in the words of OpenAI, or empty.
func (s *stream) end(prompt, cached, output int) {
	if s.openAI {
		s.event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
		s.event(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, prompt, output, cached)
		s.event(`[DONE]`)
		return
	}
	s.event(`{"type":"content_block_stop","index":0}`)
	s.event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":%d}}`, prompt-cached, cached, output)
	s.event(`{"type":"message_stop"}`)
}

func (s *stream) answer(text string) {
	s.begin()
	s.say(text)
	s.end(100, 40, 7)
}

func mustURL(t testing.TB, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// pipes is a listener without a network, for tests in a bubble of synctest.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p <- far
	return near, nil
}

// newSystem is a System in front of a target, closed with the test.
func newSystem(t testing.TB, target *url.URL, change func(*Options)) *System {
	t.Helper()
	o := Options{
		Target: target, Model: "m", Dialect: Anthropic, BytesPerToken: 4, Speed: 1, Timeout: 20 * time.Second, UserAgent: "test",
	}
	if change != nil {
		change(&o)
	}
	s, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// send sends turns at once and returns their results when all have ended.
func send(t *testing.T, s *System, requests ...bench.Request) []bench.Result {
	t.Helper()
	got := make([]bench.Result, len(requests))
	left := len(requests)
	for i, r := range requests {
		s.Send(r, func(res bench.Result) {
			got[i] = res
			left--
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Run(ctx, maxWait, func() bool { return left == 0 }); err != nil {
		t.Fatalf("%d turns have not ended: %v", left, err)
	}
	return got
}

// question is a turn that begins a session.
func question(tokens int) bench.Turn {
	return bench.Turn{
		Messages: []bench.Message{
			{Role: bench.SystemRole, Spans: []bench.Span{{ID: 1 << 40, Tokens: 5}}},
			{Role: bench.User, Spans: []bench.Span{{ID: 2 << 40, Tokens: tokens}}},
		},
		Answer: bench.Span{ID: 3 << 40, Tokens: 64},
	}
}
