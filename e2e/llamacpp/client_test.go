package llamacpp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// answer is what a client got.
type answer struct {
	status          int
	replica, reason string
	whole           bool // it ended as its dialect says
	prompt, cached  int64
	took            time.Duration
	err             error
	body            string
}

// stream is a request under way.
type stream struct {
	began chan struct{} // closed with the first byte, or at the end
	ended chan struct{}
	answer
}

// send starts a request in a conversation; at most two minutes later it has ended.
func send(t *testing.T, base, path, session string, streamed bool, tokens int, texts ...string) *stream {
	t.Helper()
	var messages, items []map[string]any
	for i, text := range texts {
		role, part := "user", "input_text"
		if i%2 == 1 {
			role, part = "assistant", "output_text"
		}
		messages = append(messages, map[string]any{"role": role, "content": text})
		items = append(items, map[string]any{"type": "message", "role": role, "content": []map[string]string{{"type": part, "text": text}}})
	}
	body := map[string]any{"model": modelName, "stream": streamed, "temperature": 0, "ignore_eos": true}
	if path == "/v1/responses" {
		body["input"], body["max_output_tokens"] = items, tokens
	} else {
		body["messages"], body["max_tokens"] = messages, tokens
	}
	if streamed && path == chatPath {
		body["stream_options"] = map[string]any{"include_usage": true} // for the test; the gateway knows without
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	s := &stream{began: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		defer cancel()
		sent := time.Now()
		s.exchange(ctx, base+path, session, b)
		s.took = time.Since(sent)
	}()
	t.Cleanup(func() {
		cancel()
		<-s.ended
	})
	return s
}

func (s *stream) exchange(ctx context.Context, url, session string, body []byte) {
	begin := sync.OnceFunc(func() { close(s.began) })
	defer begin()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		s.err = err
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Warden-Session", session)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.err = err
		return
	}
	defer res.Body.Close()
	s.status = res.StatusCode
	s.replica, s.reason = res.Header.Get("X-Warden-Replica"), res.Header.Get("X-Warden-Decision")
	r := bufio.NewReader(res.Body)
	_, _ = r.Peek(1)
	begin()
	text, err := io.ReadAll(r)
	s.body, s.err = string(text), err
	s.whole = err == nil && s.status == http.StatusOK && !strings.Contains(s.body, `"error"`)
	s.prompt, s.cached = usage(s.body)
}

// usage finds the counts of the last usage object, as the engine wrote them: on
// /v1/messages the prompt without what was cached.
func usage(body string) (prompt, cached int64) {
	for line := range strings.Lines(body) {
		var found struct {
			Usage    *counts
			Message  struct{ Usage *counts }
			Response struct{ Usage *counts }
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &found) != nil {
			continue
		}
		for _, u := range []*counts{found.Usage, found.Message.Usage, found.Response.Usage} {
			if u != nil && u.Prompt+u.Input > 0 {
				cached = u.Chat.Cached + u.Responses.Cached + u.Read
				prompt = u.Prompt + u.Input + u.Read
			}
		}
	}
	return prompt, cached
}

type details struct {
	Cached int64 `json:"cached_tokens"`
}

type counts struct {
	Prompt    int64   `json:"prompt_tokens"`
	Input     int64   `json:"input_tokens"`
	Read      int64   `json:"cache_read_input_tokens"`
	Chat      details `json:"prompt_tokens_details"`
	Responses details `json:"input_tokens_details"`
}
