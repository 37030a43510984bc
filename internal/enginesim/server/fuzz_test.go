package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// No body may crash a handler, and every answer that is not a stream is JSON.
func FuzzBodies(f *testing.F) {
	for path, body := range withText("x [[tool]] [[tokens 2]]") {
		f.Add(path, body)
	}
	for _, stream := range []string{"true", "false"} {
		ask, bring := wishing(stream)
		for path := range ask {
			f.Add(path, ask[path])
			f.Add(path, bring[path])
		}
	}
	f.Add("/tokenize", `{"messages": [{"role": "user"}]}`)
	f.Add("/detokenize", `{"tokens": [1, 300, -1]}`)
	f.Add("/v1/messages/count_tokens", `{"model": "tiny", "messages": [{"role": "user", "content": [{}]}]}`)
	f.Add("/sim/fail", `{"kind": "cut", "at": "1s", "after": 3, "reused": true}`)
	o := Options{Replicas: 2, Models: []string{"tiny"}, Speed: maxSpeed, AnswerTokens: 3}
	o.Params = fastPreset(f)
	s, err := New(o)
	if err != nil {
		f.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.process().engine.run(ctx) })
	f.Cleanup(func() { stop(); running.Wait() })
	f.Fuzz(func(t *testing.T, path, body string) {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, " ?#%\r\n\x7f") {
			return
		}
		for _, c := range path {
			if c < ' ' || c > '~' {
				return
			}
		}
		r := httptest.NewRequest(http.MethodPost, "http://vllm.test"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.handle(w, r)
		reply, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(reply) {
			t.Errorf("%s: %d with %q", path, w.Code, reply)
		}
		if open := s.process().open.Load(); open != 0 {
			t.Errorf("%d requests count as open", open)
		}
	})
}
