package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// withText is a request of one user text in each dialect.
func withText(text string) map[string]string {
	messages := `{"model": "tiny", "max_tokens": 500, "messages": [{"role": "user", "content": "` + text + `"}]}`
	return map[string]string{
		"/v1/chat/completions": messages,
		"/v1/messages":         messages,
		"/v1/completions":      `{"prompt": "` + text + `", "max_tokens": 500}`,
		"/v1/responses":        `{"input": "` + text + `", "max_output_tokens": 500}`,
	}
}

func TestPromptThatIsTooLongAsRecorded(t *testing.T) {
	t.Parallel()
	dialects := map[string]string{
		"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses", "messages": "/v1/messages",
	}
	lengths := map[string]int{"prompt longer than max_model_len": 9000, "1 MiB body (far beyond the context)": 1 << 20}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		compared := 0
		for _, e := range readRecording(t, "errors.txt") {
			title, dialect, _ := strings.Cut(strings.TrimSuffix(e.title, "]"), " [")
			length := lengths[strings.TrimSuffix(title, ", stream")]
			if length == 0 {
				continue
			}
			compared++
			body := withText(strings.Repeat("x", length))[dialects[dialect]]
			if strings.HasSuffix(title, "stream") {
				body = strings.Replace(body, "{", `{"stream": true, `, 1)
			}
			if diff := cmp.Diff(e.want(t), n.send(t, post(dialects[dialect], body))); diff != "" {
				t.Errorf("%s (-recorded +simulated)\n%s", e.title, diff)
			}
		}
		if compared != 7 {
			t.Errorf("%d recorded refusals compared, want 7", compared)
		}
	})
}

// A wish for more tokens than the context has room for is cut without an error.
func TestMaxTokensIsCutToTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		for path, body := range withText(strings.Repeat("x", 8000)) {
			_, reply := n.roundTrip(t, post(path, body))
			prompt := 8000
			if path != "/v1/completions" {
				prompt += 19
			}
			if want := fmt.Sprint(8192 - prompt); !strings.Contains(string(reply), `_tokens":`+want+`,`) && !strings.Contains(string(reply), `_tokens":`+want+`}`) {
				t.Errorf("%s: want %s tokens of output in %.600s", path, want, reply)
			}
		}
	})
}

func TestAnswerLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.AnswerTokens = 100
		n := serve(t, o)
		for _, c := range []struct {
			options string
			tokens  int // 0: by itself
			reason  string
		}{
			{``, 0, "stop"},
			{`"max_tokens": 5, `, 5, "length"},
			{`"max_completion_tokens": 6, "max_tokens": 5, `, 6, "length"},
			{`"max_tokens": 700, `, 0, "stop"},
			{`"max_tokens": 700, "ignore_eos": true, `, 700, "length"},
			{`"max_tokens": 700, "min_tokens": 600, `, 600, "stop"},
		} {
			body := `{` + c.options + `"messages": [{"role": "user", "content": "how long?"}]}`
			a, again := n.chat(t, body), n.chat(t, body)
			tokens, text := a.Usage.CompletionTokens, a.Choices[0].Message.Content
			if c.tokens == 0 && (tokens < 40 || tokens > 160) || c.tokens > 0 && tokens != c.tokens || a.Choices[0].FinishReason != c.reason {
				t.Errorf("%s: %d tokens, %s", c.options, tokens, a.Choices[0].FinishReason)
			}
			if c.reason == "stop" {
				tokens-- // the last one is the mark that ends it
			}
			if len(text) != tokens {
				t.Errorf("%s: a text of %d bytes from %d tokens", c.options, len(text), tokens)
			}
			if text != again.Choices[0].Message.Content {
				t.Errorf("%s: the same request got another answer", c.options)
			}
		}
		if a := n.chat(t, `{"messages": [{"role": "user", "content": "[[tokens 7]]"}]}`); a.Usage.CompletionTokens != 7 {
			t.Errorf("marked with 7 tokens: %d", a.Usage.CompletionTokens)
		}
		if a := fetch[chatAnswer](t, n, "/v1/completions", `{"prompt": "no limit given"}`); a.Usage.CompletionTokens != 16 {
			t.Errorf("a completion without max_tokens has %d, want 16", a.Usage.CompletionTokens)
		}
	})
}

// The streamed pieces of an answer are the whole answer.
func TestStreamAddsUpToTheWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		const rest = `"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 90, "n": 2, "temperature": 1}`
		whole := n.chat(t, `{`+rest)
		_, stream := n.roundTrip(t, post("/v1/chat/completions", `{"stream": true, `+rest))
		got := make([]string, 2)
		for line := range strings.Lines(string(stream)) {
			var chunk struct {
				Choices []struct {
					Index int
					Delta struct{ Content string }
				}
			}
			if data, ok := strings.CutPrefix(line, "data: {"); ok {
				decode(t, "{"+data, &chunk)
				for _, c := range chunk.Choices {
					got[c.Index] += c.Delta.Content
				}
			}
		}
		if diff := cmp.Diff([]string{whole.Choices[0].Message.Content, whole.Choices[1].Message.Content}, got); diff != "" {
			t.Errorf("(-whole +stream)\n%s", diff)
		}
		if got[0] == got[1] {
			t.Error("both choices are the same")
		}
	})
}

func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		deep := `{"messages": ` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`
		for name, c := range map[string]struct{ path, body, want string }{
			"deep JSON":           {"/v1/chat/completions", deep, "json_invalid"},
			"invalid UTF-8":       {"/v1/chat/completions", "{\"model\": \"\xff\"}", "There was an error parsing the body"},
			"null":                {"/v1/chat/completions", "null", "Field required"},
			"text after the JSON": {"/v1/chat/completions", `{} {}`, "json_invalid"},
			"messages as text":    {"/v1/chat/completions", `{"messages": "hi"}`, "Input should be a valid list"},
			"message as text":     {"/v1/chat/completions", `{"messages": ["hi"]}`, "body.messages.0"},
			"model as number":     {"/v1/chat/completions", `{"model": 5, "messages": []}`, "Input should be a valid string"},
			"stream as text":      {"/v1/chat/completions", `{"stream": "maybe", "messages": []}`, "body.stream"},
			"options as text":     {"/v1/chat/completions", `{"stream": true, "stream_options": 1, "messages": []}`, "body.stream_options"},
			"n of 0":              {"/v1/chat/completions", `{"n": 0, "messages": [{"role": "user", "content": "x"}]}`, "n must be at least 1"},
			"n of a million":      {"/v1/chat/completions", `{"n": 1000000, "messages": [{"role": "user", "content": "x"}]}`, "n must be at most 128"},
			"input as number":     {"/v1/responses", `{"input": 5}`, "body.input"},
			"input item as text":  {"/v1/responses", `{"input": ["x"]}`, "body.input.0"},
			"empty input":         {"/v1/responses", `{"input": []}`, "empty conversation"},
			"empty prompt":        {"/v1/completions", `{"prompt": [""]}`, "cannot be empty"},
			"prompt as number":    {"/v1/completions", `{"prompt": 5}`, "Either prompt"},
			"empty list of ids":   {"/v1/completions", `{"prompt": [[]]}`, "at least one"},
			"tokens as text":      {"/detokenize", `{"tokens": "x"}`, "body.tokens"},
		} {
			r, body := n.roundTrip(t, post(c.path, c.body))
			if r.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), c.want) {
				t.Errorf("%s: %s %s, want a 400 with %q", name, r.Status, body, c.want)
			}
		}
		if open := n.server.process().open.Load(); open != 0 {
			t.Errorf("%d requests count as open", open)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Options){
		"version":     func(o *Options) { o.Version = "new" },
		"replicas":    func(o *Options) { o.Replicas = -1 },
		"speed":       func(o *Options) { o.Speed = -1 },
		"answer":      func(o *Options) { o.AnswerTokens = -1 },
		"queued":      func(o *Options) { o.MaxQueuedReqs = -1 },
		"keep-alive":  func(o *Options) { o.SSEKeepAlive = -1 },
		"BlockTokens": func(o *Options) { o.Params.BlockTokens = 0 },
	} {
		o := recorded(t)
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %s, got %v", want, err)
		}
	}
}
