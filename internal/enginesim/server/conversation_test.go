package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What becomes of requests in the shape of real clients, as the prompt that the model reads: "<" and ">"
// stand for the marks that begin and end a message.
func TestConversationsBecomePrompts(t *testing.T) {
	t.Parallel()
	s, err := New(recorded(t))
	if err != nil {
		t.Fatal(err)
	}
	n := &network{server: s}
	const end = ">\n<assistant\n"
	for name, c := range map[string]struct{ path, body, want string }{
		"messages: system blocks have no separator, the billing line goes": {
			"/v1/messages", `{"system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.42.abc;"},
				{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": " terse."}],
				"messages": [{"role": "user", "content": "hi"}]}`,
			"<system\nYou are terse.>\n<user\nhi" + end,
		},
		"messages: system as a string": {
			"/v1/messages", `{"system": "S", "messages": [{"role": "user", "content": "hi"}]}`,
			"<system\nS>\n<user\nhi" + end,
		},
		"messages: a system message among the others": {
			"/v1/messages", `{"messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": [{"type": "text", "text": "now"}]}]}`,
			"<user\nhi>\n<system\nnow" + end,
		},
		"messages: text blocks of one message are lines": {
			"/v1/messages", `{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}`,
			"<user\na\nb" + end,
		},
		"messages: tool use, its result before the text of its turn, no thinking, no image": {
			"/v1/messages", `{"messages": [{"role": "user", "content": "hi"},
				{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "d"},
					{"type": "text", "text": "ok"}, {"type": "tool_use", "id": "t", "name": "read", "input": {"path":"a"}}]},
				{"role": "user", "content": [{"type": "text", "text": "go on"}, {"type": "image", "source": {}},
					{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}]}]}`,
			"<user\nhi>\n<assistant\nok\n<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>>\n" +
				"<user\n<tool_response>\nx\ny\n</tool_response>>\n<user\ngo on" + end,
		},
		"messages: a turn of results alone has no user message": {
			"/v1/messages", `{"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}, {"type": "tool_result", "tool_use_id": "u"}]}]}`,
			"<user\n<tool_response>\nr\n</tool_response>>\n<user\n<tool_response>\n\n</tool_response>" + end,
		},
		"chat: parts, null content, calls, tool results, any role": {
			"/v1/chat/completions", `{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]},
				{"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
				{"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]}, {"role": "wizard", "content": "w"}]}`,
			"<system\nS>\n<user\na\nb>\n<assistant\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>>\n" +
				"<user\n<tool_response>\nr\n</tool_response>>\n<wizard\nw" + end,
		},
		"responses: a string": {
			"/v1/responses", `{"input": "hi", "instructions": "S"}`,
			"<system\nS>\n<user\nhi" + end,
		},
		"responses: items of Codex": {
			"/v1/responses", `{"input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
				{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
				{"type": "reasoning", "summary": [], "encrypted_content": "e"},
				{"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"},
				{"type": "function_call_output", "call_id": "c", "output": "a.go"},
				{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done", "annotations": []}]},
				{"role": "user", "content": "more"}]}`,
			"<developer\nD>\n<user\na\nb>\n<assistant\n\n<tool_call>\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"ls\"}}\n</tool_call>>\n" +
				"<user\n<tool_response>\na.go\n</tool_response>>\n<assistant\ndone>\n<user\nmore" + end,
		},
		"tools of messages and of chat read the same": {
			"/v1/messages", `{"tools": [{"name": "f", "description": "d", "input_schema": {"type":"object"}, "defer_loading": true}, {"type": "web_search_20250305", "name": "web_search"}],
				"messages": [{"role": "user", "content": "hi"}]}`,
			n.prompt(t, "/v1/chat/completions", `{"tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
				"messages": [{"role": "user", "content": "hi"}]}`),
		},
	} {
		if diff := cmp.Diff(c.want, n.prompt(t, c.path, c.body)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
