package server

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// Tools as agent clients declare them, in JSON Schema.
const (
	bashSchema = `{"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}}, "required": ["command"]}`
	execSchema = `{"type": "object", "properties": {"cmd": {"type": "string"}, "workdir": {"type": "string"}}, "required": ["cmd"]}`
	readSchema = `{"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}`
)

func TestLeastArguments(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		bashSchema: `{"command": "echo hi"}`,
		execSchema: `{"cmd": "echo hi"}`,
		readSchema: `{"file_path": "hi"}`,
		`{"type": "object", "properties": {"a": {"type": "string"}}}`: `{}`,
		`{}`:   `{}`,
		`null`: `{}`,
		`true`: `{}`,
		`{"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"]}`:                                                                           `{"command": ["echo", "hi"]}`,
		`{"type": "object", "properties": {"commands": {"type": "array", "items": {"type": "string"}}}, "required": ["commands"]}`:                                                                         `{"commands": ["echo hi"]}`,
		`{"type": "object", "properties": {"commands": {"type": "array", "items": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}, "required": ["commands"]}`: `{"commands": [{"command": "echo hi"}]}`,
		`{"properties": {"n": {"type": "integer", "minimum": 5}, "f": {"type": "boolean"}, "l": {"type": "array", "items": {"type": "integer"}, "minItems": 2}, "e": {"enum": ["x", "y"]},
		 "c": {"const": 7}, "u": {"type": ["null", "string"]}, "o": {"anyOf": [{"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}, {"type": "null"}]}},
		 "required": ["n", "f", "l", "e", "c", "u", "o"]}`: `{"n": 5, "f": false, "l": [1, 1], "e": "x", "c": 7, "u": null, "o": {"k": "hi"}}`,
	} {
		call, ok := chooseCall(wishes{tool: true}, []tool{{name: "t", parameters: json.RawMessage(schema)}})
		if !ok || call.arguments != want {
			t.Errorf("%s: %+v, want %s", schema, call, want)
		}
	}
}

func TestChosenTool(t *testing.T) {
	t.Parallel()
	offered := func(names ...string) (tools []tool) {
		for _, n := range names {
			tools = append(tools, tool{name: n, parameters: json.RawMessage(readSchema)})
		}
		return tools
	}
	for _, c := range []struct {
		wish    string
		offered []tool
		want    string // empty: no call
	}{
		{"", offered("Agent", "Bash", "Read"), "Bash"},
		{"", offered("exec_command", "write_stdin"), "exec_command"},
		{"", offered("read", "bash"), "bash"},
		{"", offered("lookup", "other"), "lookup"},
		{"Read", offered("Agent", "Bash", "Read"), "Read"},
		{"read", offered("Bash", "Read"), "Read"},
		{"Write", offered("Bash", "Read"), ""},
		{"", nil, ""},
		{"Read", nil, ""},
	} {
		call, ok := chooseCall(wishes{tool: true, toolName: c.wish}, c.offered)
		if ok != (c.want != "") || ok && call.name != c.want {
			t.Errorf("wish %q of %d tools: %+v, want %q", c.wish, len(c.offered), call, c.want)
		}
	}
	if _, ok := chooseCall(wishes{}, offered("Bash")); ok {
		t.Error("a call that nobody wished")
	}
}

func TestReadWishes(t *testing.T) {
	t.Parallel()
	user := func(text string) message { return message{role: "user", content: text} }
	tools, system := message{role: "tool", content: "result"}, message{role: "system", content: "[[tool]]"}
	said := message{role: "assistant", content: "[[tool]]"}
	for name, c := range map[string]struct {
		messages []message
		want     wishes
	}{
		"none":                     {[]message{user("hello")}, wishes{}},
		"any tool":                 {[]message{user("do [[tool]] it")}, wishes{tool: true}},
		"named":                    {[]message{user("[[tool Bash]]")}, wishes{tool: true, toolName: "Bash"}},
		"with arguments":           {[]message{user(`[[tool Bash {"a": [[1]], "b": "]]"}]] x`)}, wishes{tool: true, toolName: "Bash", arguments: json.RawMessage(`{"a": [[1]], "b": "]]"}`)}},
		"arguments without name":   {[]message{user(`[[tool {"a":1} ]]`)}, wishes{tool: true, arguments: json.RawMessage(`{"a":1}`)}},
		"tokens":                   {[]message{user("[[tokens 12]]")}, wishes{tokens: 12}},
		"both":                     {[]message{user("[[tool]] [[tokens 12]]")}, wishes{tool: true, tokens: 12}},
		"a result follows":         {[]message{user("[[tool]] [[tokens 12]]"), said, tools}, wishes{tokens: 12}},
		"result and reminder":      {[]message{user("[[tool]]"), said, tools, user("reminder")}, wishes{}},
		"a system message follows": {[]message{user("[[tool]]"), system}, wishes{tool: true}},
		"only an older message":    {[]message{user("[[tool]]"), said, user("thanks")}, wishes{}},
		"a new wish after a call":  {[]message{user("[[tool]]"), said, tools, said, user("[[tool]]")}, wishes{tool: true}},
		"another word":             {[]message{user("[[tools]] [[toolbox]] [[tokens]] [[tokens -1]] [[tokens x]]")}, wishes{}},
		"not closed":               {[]message{user(`[[tool Bash {"a":`)}, wishes{}},
		"nothing after":            {[]message{user("[[tool")}, wishes{}},
		"no user":                  {[]message{system}, wishes{}},
	} {
		if diff := cmp.Diff(c.want, readWishes(c.messages), cmp.AllowUnexported(wishes{})); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// wishing is a request for a tool call in each dialect, and the one that brings the result.
func wishing(stream string) (ask, bring map[string]string) {
	ask = map[string]string{
		"/v1/chat/completions": `{"messages": [{"role": "user", "content": "[[tool]]"}],
			"tools": [{"type": "function", "function": {"name": "bash", "parameters": ` + bashSchema + `}}], "stream": ` + stream + `}`,
		"/v1/messages": `{"model": "tiny", "max_tokens": 1000, "messages": [{"role": "user", "content": [{"type": "text", "text": "[[tool]]"}]}],
			"tools": [{"name": "bash", "input_schema": ` + bashSchema + `}], "stream": ` + stream + `}`,
		"/v1/responses": `{"input": [{"role": "user", "content": "[[tool]]"}], "tools": [{"type": "function", "name": "bash", "parameters": ` + bashSchema + `}], "stream": ` + stream + `}`,
	}
	bring = map[string]string{
		"/v1/chat/completions": strings.Replace(ask["/v1/chat/completions"], `"content": "[[tool]]"}`, `"content": "[[tool]]"},
			{"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{\"command\":\"echo hi\"}"}}]},
			{"role": "tool", "tool_call_id": "c", "content": "hi"}`, 1),
		"/v1/messages": strings.Replace(ask["/v1/messages"], `"text": "[[tool]]"}]}`, `"text": "[[tool]]"}]},
			{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "echo hi"}}]},
			{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "hi"}]}`, 1),
		"/v1/responses": strings.Replace(ask["/v1/responses"], `"content": "[[tool]]"}`, `"content": "[[tool]]"},
			{"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{\"command\":\"echo hi\"}"},
			{"type": "function_call_output", "call_id": "c", "output": "hi"}`, 1),
	}
	return ask, bring
}

func TestToolCallInEveryDialect(t *testing.T) {
	t.Parallel()
	ask, bring := wishing("false")
	wantCall := map[string]*regexp.Regexp{
		"/v1/chat/completions": regexp.MustCompile(`"content":null,.*"tool_calls":\[\{"id":"chatcmpl-tool-[0-9a-f]{16}","type":"function","function":\{"name":"bash","arguments":"\{\\"command\\": \\"echo hi\\"\}"\}\}\].*"finish_reason":"tool_calls"`),
		"/v1/messages":         regexp.MustCompile(`"content":\[\{"type":"tool_use","id":"chatcmpl-tool-[0-9a-f]{16}","name":"bash","input":\{"command": "echo hi"\}\}\].*"stop_reason":"tool_use"`),
		"/v1/responses":        regexp.MustCompile(`"output":\[\{"arguments":"\{\\"command\\": \\"echo hi\\"\}","call_id":"call_[0-9a-f]{16}","name":"bash","type":"function_call","id":"fc_[0-9a-f]{16}","status":"completed"\}\].*"status":"completed"`),
	}
	wantText := map[string]*regexp.Regexp{
		"/v1/chat/completions": regexp.MustCompile(`"content":"[a-z .]+".*"finish_reason":"stop"`),
		"/v1/messages":         regexp.MustCompile(`"content":\[\{"type":"text","text":"[a-z .]+"\}\].*"stop_reason":"end_turn"`),
		"/v1/responses":        regexp.MustCompile(`"text":"[a-z .]+","type":"output_text".*"status":"completed"`),
	}
	o := recorded(t)
	o.AnswerTokens, o.ResponsesRank = 40, true
	for path := range ask {
		synctest.Test(t, func(t *testing.T) {
			n := serve(t, o)
			_, body := n.roundTrip(t, post(path, ask[path], onRank(0)))
			if !wantCall[path].Match(body) {
				t.Errorf("%s: %s", path, body)
			}
			_, body = n.roundTrip(t, post(path, bring[path], onRank(0)))
			if !wantText[path].Match(body) {
				t.Errorf("%s with the result: %s", path, body)
			}
			// What was generated comes back in the next prompt, in the same tokens: all but the last
			// blocks of it are found.
			cached := regexp.MustCompile(`"(?:cached_tokens|cache_read_input_tokens)":(\d+)`).FindSubmatch(body)
			call := len("\n<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"echo hi\"}}\n</tool_call>")
			first := len(n.prompt(t, path, ask[path]))
			if want := (first + call) / 32 * 32; numbers(string(cached[1]))[0] != want {
				t.Errorf("%s with the result: %s cached, want %d of the call before", path, cached[1], want)
			}
		})
	}
}

// prompt is what the server renders of a request.
func (n *network) prompt(t *testing.T, path, body string) string {
	t.Helper()
	b := &sentBody{}
	if err := json.Unmarshal([]byte(body), b); err != nil {
		t.Fatal(err)
	}
	var messages []message
	var tools []tool
	var refusal *apiError
	switch path {
	case "/v1/chat/completions":
		messages, refusal = chatMessages(b.Messages)
		tools = chatTools(b.Tools)
	case "/v1/messages":
		messages, refusal = anthropicMessages(b.System, b.Messages)
		tools = anthropicTools(b.Tools)
	case "/v1/responses":
		messages, refusal = responsesMessages(b.Instructions, b.Input)
		tools = responsesTools(b.Tools)
	}
	if refusal != nil {
		t.Fatal(refusal.message)
	}
	tokens, refusal := n.server.render(messages, tools)
	if refusal != nil {
		t.Fatal(refusal.message)
	}
	var text strings.Builder
	for _, token := range tokens {
		if token < 256 {
			text.WriteByte(byte(token))
		} else {
			text.WriteString([]string{"!", "<", ">", "_"}[token-256]) // one character for each special token
		}
	}
	return text.String()
}

type sentBody struct {
	Messages, Tools []json.RawMessage
	System, Input   json.RawMessage
	Instructions    string
}

func TestStreamedToolCallInEveryDialect(t *testing.T) {
	t.Parallel()
	ask, _ := wishing("true")
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		streamOf := func(path string) string {
			_, body := n.roundTrip(t, post(path, ask[path]))
			return string(body)
		}
		pieces := func(body, pattern string) (joined string) {
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(body, -1) {
				var piece string
				if err := json.Unmarshal([]byte(m[1]), &piece); err != nil {
					t.Fatal(err)
				}
				joined += piece
			}
			return joined
		}
		const arguments, quoted = `{"command": "echo hi"}`, `("(?:[^"\\]|\\.)*")`

		chat := streamOf("/v1/chat/completions")
		if got := pieces(chat, `"arguments":`+quoted); got != arguments {
			t.Errorf("chat arguments %s", got)
		}
		for pattern, want := range map[string]int{`"name":"bash"`: 1, `"id":"chatcmpl-tool-`: 1, `"finish_reason":"tool_calls"`: 1, `"content":"[^"]`: 0, `\[DONE\]`: 1} {
			if got := len(regexp.MustCompile(pattern).FindAllString(chat, -1)); got != want {
				t.Errorf("chat: %d times %s, want %d", got, pattern, want)
			}
		}

		messages := streamOf("/v1/messages")
		if got := pieces(messages, `"partial_json":`+quoted); got != arguments {
			t.Errorf("messages arguments %s", got)
		}
		want := []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
		if diff := cmp.Diff(want, eventNames(messages)); diff != "" {
			t.Errorf("messages (-want +got)\n%s", diff)
		}
		for _, part := range []string{`"content_block":{"type":"tool_use","id":"chatcmpl-tool-`, `"name":"bash","input":{}}`, `"stop_reason":"tool_use"`} {
			if !strings.Contains(messages, part) {
				t.Errorf("messages: no %s in %s", part, messages)
			}
		}

		responses := streamOf("/v1/responses")
		if got := pieces(responses, `"delta":`+quoted); got != arguments {
			t.Errorf("responses arguments %s", got)
		}
		want = []string{
			"response.created", "response.in_progress", "response.output_item.added", "response.function_call_arguments.delta",
			"response.function_call_arguments.done", "response.output_item.done", "response.completed",
		}
		if diff := cmp.Diff(want, eventNames(responses)); diff != "" {
			t.Errorf("responses (-want +got)\n%s", diff)
		}
	})
}

// eventNames are the names of a stream's events, a repeated one once.
func eventNames(stream string) []string {
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^event: (\S+)$`).FindAllStringSubmatch(stream, -1) {
		if len(names) == 0 || names[len(names)-1] != m[1] {
			names = append(names, m[1])
		}
	}
	return names
}

func TestToolMarkerWithoutEffect(t *testing.T) {
	t.Parallel()
	const tools = `"tools": [{"type": "function", "function": {"name": "bash", "parameters": ` + bashSchema + `}}]`
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.AnswerTokens = 10
		n := serve(t, o)
		for name, body := range map[string]string{
			"no tools":       `{"messages": [{"role": "user", "content": "[[tool]]"}]}`,
			"not wanted":     `{"messages": [{"role": "user", "content": "[[tool]]"}], "tool_choice": "none", ` + tools + `}`,
			"not offered":    `{"messages": [{"role": "user", "content": "[[tool Other]]"}], ` + tools + `}`,
			"too few tokens": `{"messages": [{"role": "user", "content": "[[tool]]"}], "max_tokens": 5, ` + tools + `}`,
			"in the history": `{"messages": [{"role": "user", "content": "[[tool]]"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}], ` + tools + `}`,
		} {
			a := n.chat(t, body)
			if m := a.Choices[0].Message; len(m.ToolCalls) > 0 || m.Content == "" {
				t.Errorf("%s: %+v", name, m)
			}
		}
	})
}
