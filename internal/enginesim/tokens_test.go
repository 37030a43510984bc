package enginesim

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestTokensAreBytesAndMarks(t *testing.T) {
	got := byteTokens.Append(nil, "hi<|im_end|>\n<|im<|endoftext|><|pad|>ä")
	want := []Token{'h', 'i', EndOfMessage, '\n', '<', '|', 'i', 'm', EndOfText, Pad, 0xc3, 0xa4}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestRunsOfSeveralBytes(t *testing.T) {
	four := Tokenizer{BytesPerToken: 4}
	for text, want := range map[string]int{"": 0, "a": 1, "abcd": 1, "abcde": 2, "abc<|im_start|>d": 3} {
		if got := len(four.Append(nil, text)); got != want {
			t.Errorf("%q gives %d tokens, want %d", text, got, want)
		}
	}
	if slices.Equal(four.Append(nil, "a"), four.Append(nil, "\x00a")) {
		t.Error("a leading zero byte is lost")
	}
	rapid.Check(t, func(t *rapid.T) {
		tok := Tokenizer{BytesPerToken: rapid.IntRange(1, 7).Draw(t, "bytes per token")}
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		ta, tb := tok.Append(nil, a), tok.Append(nil, b)
		if slices.Equal(ta, tb) != (a == b) {
			t.Errorf("%q and %q: tokens %v and %v", a, b, ta, tb)
		}
		if got, want := tok.Append(slices.Clone(ta), b), slices.Concat(ta, tb); !slices.Equal(got, want) {
			t.Errorf("two runs gave %v, want %v", got, want)
		}
	})
}

func TestTextHasItsTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := Tokenizer{BytesPerToken: rapid.IntRange(1, 7).Draw(t, "bytes per token")}
		n, seed := rapid.IntRange(0, 300).Draw(t, "n"), rapid.Uint64().Draw(t, "seed")
		text := tok.Text(n, seed)
		if len(text) != n*tok.BytesPerToken || len(tok.Append(nil, text)) != n {
			t.Fatalf("%d tokens of %q, want %d", len(tok.Append(nil, text)), text, n)
		}
		if text != strings.TrimSpace(text) {
			t.Fatalf("space around %q", text)
		}
		if text != tok.Text(n, seed) || n > 5 && text == tok.Text(n, seed+1) && tok.BytesPerToken > 3 {
			t.Fatalf("the text does not follow from the seed: %q", text)
		}
	})
}

// The prompts of the recorded chat requests, tools and tool calls included, to
// the token.
func TestRenderCountsAsRecorded(t *testing.T) {
	type request struct {
		Messages []struct {
			Role      string
			Content   *string
			ToolCalls []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Tools []json.RawMessage
	}
	var prompt []Token
	answered, withTools, withCalls := 0, 0, 0
	for _, line := range recording(t, "chat.txt") {
		switch {
		case strings.HasPrefix(line, `{"model"`):
			var req request
			if err := json.Unmarshal([]byte(line), &req); err != nil {
				t.Fatal(err)
			}
			var msgs []Message
			for _, m := range req.Messages {
				msg := Message{Role: m.Role}
				if m.Content != nil {
					msg.Content = *m.Content
				}
				for _, call := range m.ToolCalls {
					withCalls++
					msg.ToolCalls = append(msg.ToolCalls, ToolCall{call.Function.Name, json.RawMessage(call.Function.Arguments)})
				}
				msgs = append(msgs, msg)
			}
			if len(req.Tools) > 0 {
				withTools++
			}
			prompt = byteTokens.Render(msgs, req.Tools, true)
		case strings.Contains(line, `"usage":{"prompt_tokens":`):
			answered++
			_, usage, _ := strings.Cut(line, `"prompt_tokens":`)
			if want := numbers(usage)[0]; len(prompt) != want {
				t.Errorf("a prompt of %d tokens, recorded %d: %.80q", len(prompt), want, line)
			}
		}
	}
	if answered < 6 || withTools < 2 || withCalls < 1 {
		t.Errorf("the recording has %d answers, %d requests with tools, %d calls: too few", answered, withTools, withCalls)
	}
}

func TestRenderText(t *testing.T) {
	tools := []json.RawMessage{json.RawMessage(`{"name":"read","n":[1,2.50,{"a\u00e4\n":null}]}`)}
	system, user := Message{Role: "system", Content: "S"}, Message{Role: "user", Content: "U"}
	calls := Message{Role: "assistant", Content: "A", ToolCalls: []ToolCall{
		{"read", json.RawMessage(`{"path":"a"}`)}, {Name: "list"},
	}}
	const toolText = "# Tools\n\nYou may call one or more functions.\n<tools>\n" +
		`{"name": "read", "n": [1, 2.50, {"aä\n": null}]}` +
		"\n</tools>\nAnswer a call as <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call><|im_end|>\n"
	for _, tc := range []struct {
		name     string
		msgs     []Message
		tools    []json.RawMessage
		generate bool
		want     string
	}{
		{"nothing", nil, nil, false, ""},
		{"a question", []Message{user}, nil, true, "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"},
		{"a system message", []Message{system, user}, nil, false, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"},
		{"a later system message", []Message{user, system}, nil, false, "<|im_start|>user\nU<|im_end|>\n<|im_start|>system\nS<|im_end|>\n"},
		{"tools", []Message{user}, tools, false, "<|im_start|>system\n" + toolText + "<|im_start|>user\nU<|im_end|>\n"},
		{"tools and a system message", []Message{system}, tools, false, "<|im_start|>system\nS\n\n" + toolText},
		{"calls and a result", []Message{user, calls, {Role: "tool", Content: "R"}}, nil, false,
			"<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA" +
				"\n<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>" +
				"\n<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call><|im_end|>\n" +
				"<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n"},
	} {
		got := byteTokens.Render(tc.msgs, tc.tools, tc.generate)
		if diff := cmp.Diff(byteTokens.Append([]Token{}, tc.want), got); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", tc.name, diff)
		}
	}
}

// A prompt, the tokens generated for it, and the mark that ended them are the
// beginning of the next turn's prompt, whatever the size of a token.
func TestLongerHistoryExtendsAShorterOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := Tokenizer{BytesPerToken: rapid.IntRange(1, 7).Draw(t, "bytes per token")}
		msgs := []Message{{Role: "system", Content: rapid.String().Draw(t, "system")}}
		tools := rapid.SampledFrom([][]json.RawMessage{nil, {json.RawMessage(`{"a": 1}`)}}).Draw(t, "tools")
		for range rapid.IntRange(1, 4).Draw(t, "turns") {
			msgs = append(msgs, Message{Role: "user", Content: rapid.String().Draw(t, "user")})
			known := tok.Render(msgs, tools, true)
			answer := Message{Role: "assistant", Content: tok.Text(rapid.IntRange(0, 30).Draw(t, "answer"), 1)}
			if rapid.Bool().Draw(t, "call") {
				answer.ToolCalls = []ToolCall{{"read", json.RawMessage(`{"path":"x"}`)}}
			}
			known = append(append(known, tok.Answer(answer)...), EndOfMessage)
			msgs = append(msgs, answer)
			next := tok.Render(msgs, tools, false)
			if len(next) < len(known) || !cmp.Equal(next[:len(known)], known) {
				t.Fatalf("%d tokens were known, the next prompt is %v after %v", len(known), next, known)
			}
		}
	})
}

func TestTemplateJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{}`:                           `{}`,
		"{\n \"b\" : [1 ,2],\"a\":{}}": `{"b": [1, 2], "a": {}}`,
		`"\u003c\/\u00e9\u20ac\ud83d\ude00\u0001\u007f\b\f\n\r\t\"\\"`: `"</é€😀\u0001` + "\x7f" + `\b\f\n\r\t\"\\"`,
		`"a,b:c [ ]"`:       `"a,b:c [ ]"`,
		`[-1.50e+3, true]`:  `[-1.50e+3, true]`,
		`{"open":`:          `{"open":`,
		`"\\"`:              `"\\"`,
		`{"a\"b": "c\\\""}`: `{"a\"b": "c\\\""}`,
	} {
		if got := templateJSON(json.RawMessage(in)); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

func FuzzTemplateJSON(f *testing.F) {
	f.Add(`{"a": [1, "b\u0000", null]}`)
	f.Add(`"\ud800"`)
	f.Add(`{"a":`)
	f.Fuzz(func(t *testing.T, in string) {
		out := templateJSON(json.RawMessage(in))
		if !json.Valid([]byte(in)) {
			if out != in {
				t.Fatalf("%q is not JSON and became %q", in, out)
			}
			return
		}
		var a, b any
		if err := json.Unmarshal([]byte(in), &a); err != nil {
			t.Skip("valid, but out of a float's range: ", err)
		}
		if err := json.Unmarshal([]byte(out), &b); err != nil {
			t.Fatalf("%q became %q: %v", in, out, err)
		}
		if !cmp.Equal(a, b) {
			t.Fatalf("%q became %q, another value", in, out)
		}
		if again := templateJSON(json.RawMessage(out)); again != out {
			t.Fatalf("%q became %q, and that %q", in, out, again)
		}
	})
}
