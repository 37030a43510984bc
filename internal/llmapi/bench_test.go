package llmapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// agentBody makes a Messages body of about this size as coding agents send it:
// a system prompt and tools in prose, then a history of short answers and long
// tool results that hold code. One byte in 34 is a backslash: in sources of
// Python and JavaScript one in 30 is, of Go one in 11, in prose one in 80.
func agentBody(size int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	prose := strings.Fields("the parser reads one token and returns an error when its state is broken, so that callers need not check “twice”; see «Grundsätze» for more of these rules and their reasons")
	code := []string{
		"\tif err != nil {\n\t\treturn nil, fmt.Errorf(\"read %s: %w\", name, err)\n\t}\n",
		"// next returns the number of bytes that belong to the current event, its blank line included.\n",
		"def merge(self, other: dict[str, list[int]], *, strict: bool = False) -> dict[str, list[int]]:\n",
		"        for key, values in other.items():\n            self.counts[key] = [v for v in values if v < limit]\n",
		"        raise ValueError(f\"unknown key {key!r}, expected one of {sorted(known)}\")\n\n",
		"export function Row({ item, onSelect }: Props) {\n  return <div className=\"row\" onClick={() => onSelect(item)}>{item.name}</div>;\n}\n",
		"    const lines = text.split(\"\\n\").map((line) => line.trimEnd());\n",
		"    12→    return await self.client.post(path, json=payload, timeout=self.timeout)\n",
	}
	write := func(n int, from []string, sep string) string {
		var b strings.Builder
		for b.Len() < n {
			b.WriteString(from[rng.IntN(len(from))])
			b.WriteString(sep)
		}
		return b.String()
	}
	text := func(n int) string { return write(n, prose, " ") }
	type m = map[string]any
	var tools, messages []any
	for i := range 25 {
		tools = append(tools, m{"name": fmt.Sprint("tool", i), "description": text(size / 500),
			"input_schema": m{"type": "object", "properties": m{"path": m{"type": "string", "description": text(60)}}}})
	}
	for total, i := 0, 0; total < size*9/10; i++ {
		result, answer := write(4+rng.IntN(10000), code, ""), text(4+rng.IntN(800))
		total += len(result) + len(answer)
		messages = append(messages,
			m{"role": "assistant", "content": []any{m{"type": "text", "text": answer}, m{"type": "tool_use", "id": fmt.Sprint("toolu_", i), "name": "tool1", "input": m{"path": fmt.Sprint("/src/file", i, ".go")}}}},
			m{"role": "user", "content": []any{m{"type": "tool_result", "tool_use_id": fmt.Sprint("toolu_", i), "content": result}, m{"type": "text", "text": "<system-reminder>" + text(200) + "</system-reminder>"}}})
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m{"model": "claude-opus-5-5", "stream": true, "max_tokens": 32000, "system": []any{m{"type": "text", "text": text(8000)}},
		"tools": tools, "messages": messages, "metadata": m{"user_id": "{\"session_id\":\"x\"}"}}); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// textBody is a body of about this size whose messages are all the same text.
func textBody(text string, size int) []byte {
	message := `{"role":"user","content":` + string(marshal(strings.Repeat(text, 60))) + `}`
	return []byte(`{"model":"m","messages":[` + message + strings.Repeat(","+message, size/len(message)) + `]}`)
}

const (
	// In Go sources one byte in nine is a backslash.
	goText      = "\tif err != nil {\n\t\treturn nil, fmt.Errorf(\"%w: %q\", err, name)\n\t}\n\tfor i := range n {\n\t\tsum += counts[i] * weights[i]\n\t}\n"
	chineseText = "解析器一次读取一个标记，如果状态已损坏，则返回错误，因此调用者无需检查两次。"
)

// asciiBody is agentBody as Python's json.dumps writes it by default, with an
// escape for each character beyond ASCII.
func asciiBody(size int) []byte {
	var out []byte
	for _, r := range string(agentBody(size)) {
		if r < utf8.RuneSelf {
			out = append(out, byte(r))
		} else {
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// BenchmarkParse has a budget for bodies of agents: 0.25 ms for 300 kB and 2 ms
// for 2 MB, of one core.
func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		name string
		body []byte
	}{
		{"agent/20kB", agentBody(2_000)},
		{"agent/300kB", agentBody(270_000)},
		{"agent/2MB", agentBody(1_870_000)},
		{"go/300kB", textBody(goText, 300_000)},
		{"chinese/300kB", textBody(chineseText, 300_000)},
		{"ascii/300kB", asciiBody(260_000)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(RouteMessages, c.body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkYardstick is what else can be done with the 2 MB body, to compare
// BenchmarkParse with on a machine of unknown speed.
func BenchmarkYardstick(b *testing.B) {
	body := agentBody(1_870_000)
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"xxhash", func() { xxhash.Sum64(body) }},
		{"utf8.Valid", func() { utf8.Valid(body) }},
		{"json.Valid", func() { json.Valid(body) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				c.run()
			}
		})
	}
}

const (
	chatDelta     = `data: {"id":"chatcmpl-a7b8cf1df7459732","object":"chat.completion.chunk","created":1795973244,"model":"tiny","choices":[{"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
	chatRunning   = `data: {"id":"chatcmpl-a7b8cf1df7459732","object":"chat.completion.chunk","created":1795973244,"model":"tiny","choices":[{"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":286,"total_tokens":287,"completion_tokens":1,"completion_tokens_details":null}}` + "\n\n"
	messageDelta  = "event: content_block_delta\n" + `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"word "},"index":0}` + "\n\n"
	responseDelta = "event: response.output_text.delta\n" + `data: {"content_index":0,"delta":"word ","item_id":"msg_a954eb4955c693bc","logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}` + "\n\n"
)

// BenchmarkObserve is the cost of one event that arrives in a read of its own.
func BenchmarkObserve(b *testing.B) {
	for _, c := range []struct {
		name  string
		route Route
		event string
	}{
		{"chat", RouteChat, chatDelta},
		{"chat running usage", RouteChat, chatRunning},
		{"messages", RouteMessages, messageDelta},
		{"responses", RouteResponses, responseDelta},
	} {
		b.Run(c.name, func(b *testing.B) {
			o, event := NewObserver(c.route), []byte(c.event)
			b.ReportAllocs()
			for b.Loop() {
				o.Observe(event)
			}
		})
	}
}

func BenchmarkUsageFilter(b *testing.B) {
	f, event := NewUsageFilter(), []byte(chatDelta)
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out = f.Filter(out[:0], event)
	}
}

func BenchmarkSplice(b *testing.B) {
	body := agentBody(300_000)
	f, err := Parse(RouteMessages, body)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		f.Splice(body, "qwen3", false)
	}
}
