package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// route is a way to ask for an answer.
type route struct {
	path   string
	stream bool
}

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
	messagesPath    = "/v1/messages"
	responsesPath   = "/v1/responses"
)

func (r route) String() string {
	if r.stream {
		return r.path + " streamed"
	}
	return r.path
}

// message is a part of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// talk is a conversation of texts, the user's first, then in turn.
func talk(texts ...string) []message {
	var all []message
	for i, text := range texts {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		all = append(all, message{role, text})
	}
	return all
}

// body is a request for an answer of so many tokens, always the same ones.
func (r route) body(messages []message, tokens int) map[string]any {
	b := map[string]any{"model": modelName, "temperature": 0, "stream": r.stream}
	limit := "max_tokens"
	switch r.path {
	case completionsPath:
		var prompt strings.Builder
		for _, m := range messages {
			prompt.WriteString(m.Content)
		}
		b["prompt"] = prompt.String()
	case responsesPath:
		b["input"] = messages
		limit = "max_output_tokens"
	default:
		b["messages"] = messages
	}
	b[limit] = tokens
	if r.path == chatPath || r.path == completionsPath {
		b["ignore_eos"] = true
		if r.stream {
			b["stream_options"] = map[string]any{"include_usage": true}
		}
	}
	return b
}

// session is the header that makes a request a turn of a conversation.
func session(id string) http.Header { return http.Header{"X-Warden-Session": {id}} }

// pin is the header that names a replica.
func pin(replica int) http.Header {
	return http.Header{"X-Data-Parallel-Rank": {fmt.Sprint(replica)}}
}

// call is a request under way.
type call struct {
	began chan struct{} // closed at the first byte of the body, or the end
	ended chan struct{}
	answer
}

// send starts a request; at most two minutes later it has ended.
func send(t *testing.T, url string, r route, body map[string]any, header http.Header) *call {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	c := &call{began: make(chan struct{}), ended: make(chan struct{}), answer: answer{route: r, sent: time.Now()}}
	go func() {
		defer close(c.ended)
		defer cancel()
		var received bytes.Buffer
		c.err = c.exchange(ctx, url, body, header, &received)
		c.end = time.Now()
		c.begin()
		c.parse(received.String())
	}()
	t.Cleanup(func() {
		cancel()
		<-c.ended
	})
	return c
}

// exchange returns how the connection ended, nil when regularly.
func (c *call) exchange(ctx context.Context, url string, body map[string]any, header http.Header, received *bytes.Buffer) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+c.route.path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	c.status, c.header = res.StatusCode, res.Header
	buf := make([]byte, 16<<10)
	for {
		n, err := res.Body.Read(buf)
		if n > 0 {
			c.begin()
		}
		received.Write(buf[:n])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// begin marks the first byte, or the end of an answer that has none.
func (c *call) begin() {
	if c.first.IsZero() {
		c.first = time.Now()
		close(c.began)
	}
}

// wait returns the answer when the request has ended.
func (c *call) wait() *answer {
	<-c.ended
	return &c.answer
}

// ask is a request that has to be answered regularly.
func ask(t *testing.T, url string, r route, body map[string]any, header http.Header) *answer {
	t.Helper()
	a := send(t, url, r, body, header).wait()
	if !a.finished() {
		t.Fatalf("%s: %s", r, a)
	}
	return a
}

// answer is what a client got.
type answer struct {
	route            route
	sent, first, end time.Time
	status           int
	header           http.Header
	events           []event // of a stream; another answer is one event
	done             bool    // the stream's last line was [DONE]
	err              error   // the end of a connection that was cut
}

// event has what the tests need of all dialects.
type event struct {
	raw     string
	Type    string
	Error   json.RawMessage
	Choices []struct {
		FinishReason *string `json:"finish_reason"`
		TokenIDs     []int   `json:"token_ids"`
	}
	Usage    *usage
	Response *struct{ Usage *usage }
}

// usage has the names of all dialects.
type usage struct {
	PromptTokens int     `json:"prompt_tokens"`
	Details      *cached `json:"prompt_tokens_details"`

	InputTokens  int     `json:"input_tokens"`
	InputDetails *cached `json:"input_tokens_details"`

	CacheRead    *int `json:"cache_read_input_tokens"`
	CacheCreated int  `json:"cache_creation_input_tokens"`
}

type cached struct {
	Tokens *int `json:"cached_tokens"`
}

func (a *answer) parse(body string) {
	texts := []string{body}
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		texts = nil
		for line := range strings.Lines(body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				texts = append(texts, strings.TrimSpace(data))
			}
		}
	}
	for _, text := range texts {
		if text == "[DONE]" {
			a.done = true
			continue
		}
		e := event{raw: text}
		json.Unmarshal([]byte(text), &e) // what is no JSON has no member
		a.events = append(a.events, e)
	}
}

// failed reports whether the client can tell that it has no whole answer: by the
// status, an error in the stream, or a connection that was cut.
func (a *answer) failed() bool {
	if a.err != nil || a.status != http.StatusOK {
		return true
	}
	for _, e := range a.events {
		if len(e.Error) > 0 && string(e.Error) != "null" {
			return true
		}
	}
	return false
}

// finished reports whether the answer looks whole to a client. Each dialect has
// its end; a finish reason makes an answer whole, whatever it is.
func (a *answer) finished() bool {
	if a.failed() {
		return false
	}
	if !a.route.stream {
		return true
	}
	if a.done {
		return true
	}
	for _, e := range a.events {
		switch e.Type {
		case "message_stop", "response.completed", "response.incomplete":
			return true
		}
		for _, c := range e.Choices {
			if c.FinishReason != nil {
				return true
			}
		}
	}
	return false
}

// prompt returns the length of the prompt and the cached part of it, in tokens;
// the latter is -1 when the engine did not tell it.
func (a *answer) prompt() (tokens, fromCache int) {
	fromCache = -1
	for _, e := range a.events {
		u := e.Usage
		if e.Response != nil && e.Response.Usage != nil {
			u = e.Response.Usage
		}
		if u == nil {
			continue
		}
		tokens = u.PromptTokens + u.InputTokens + u.CacheCreated
		switch {
		case u.CacheRead != nil:
			fromCache = *u.CacheRead
			tokens += fromCache
		case u.Details != nil && u.Details.Tokens != nil:
			fromCache = *u.Details.Tokens
		case u.InputDetails != nil && u.InputDetails.Tokens != nil:
			fromCache = *u.InputDetails.Tokens
		}
	}
	return tokens, fromCache
}

// replica and reason are what the gateway says of its decision.
func (a *answer) replica() string { return a.header.Get("X-Warden-Replica") }
func (a *answer) reason() string  { return a.header.Get("X-Warden-Decision") }

// String says how the answer ended, for messages.
func (a *answer) String() string {
	last := "no event"
	if n := len(a.events); n > 0 {
		last = a.events[n-1].raw
		if len(last) > 300 {
			last = last[:150] + " … " + last[len(last)-150:]
		}
	}
	return fmt.Sprintf("status %d, replica %q (%s), gateway's error %q, first byte after %.2f s, end after %.2f s, %d events, [DONE] %t, connection %v, last event %s",
		a.status, a.replica(), a.reason(), a.header.Get("X-Warden-Error"), a.first.Sub(a.sent).Seconds(), a.end.Sub(a.sent).Seconds(), len(a.events), a.done, a.err, last)
}
