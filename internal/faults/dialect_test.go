package faults

import (
	"encoding/json"
	"fmt"
	"strings"
)

// dialect is one way of talking to a model: a route, its requests, and answers
// as vLLM gives them.
type dialect struct {
	name, path string
	anthropic  bool // errors have Anthropic's form
	// request is a body with this user text; more is put before the closing brace.
	request func(text string, stream bool, more string) string
	// whole is an answer with this text, events the same as a stream.
	whole  func(text string) string
	events func(parts ...string) []string
	// aborted is how an engine that dies ends this dialect: the events behind the
	// parts of a stream, and a whole answer. Responses have none that can be told
	// from a regular end.
	aborted      []string
	abortedWhole string
	// ends are marks of a regular end of a stream, the last event's first; errs is
	// that of an error event.
	ends []string
	errs string
}

const usage = `{"prompt_tokens":30,"total_tokens":34,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}}`

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func data(v string) string           { return "data: " + v + "\n\n" }
func named(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }

func chatChunk(delta, finish string) string {
	return data(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + finish + `}]}`)
}

func chatWhole(text, finish string) string {
	return `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":` +
		quoted(text) + `},"logprobs":null,"finish_reason":"` + finish + `"}],"usage":` + usage + `}`
}

var chat = dialect{
	name: "chat", path: "/v1/chat/completions",
	request: func(text string, stream bool, more string) string {
		return fmt.Sprintf(`{"model":"tiny","messages":[{"role":"system","content":"You are terse."},{"role":"user","content":%s}],"stream":%t%s}`, quoted(text), stream, more)
	},
	whole: func(text string) string { return chatWhole(text, "stop") },
	events: func(parts ...string) []string {
		all := []string{chatChunk(`{"role":"assistant","content":""}`, "null")}
		for _, p := range parts {
			all = append(all, chatChunk(`{"content":`+quoted(p)+`}`, "null"))
		}
		return append(all, chatChunk(`{"content":""}`, `"stop"`), data("[DONE]"))
	},
	aborted:      []string{chatChunk(`{"content":"x"}`, `"abort"`), data("[DONE]")},
	abortedWhole: chatWhole("half of", "abort"),
	ends:         []string{"[DONE]", `"finish_reason":"stop"`, `"finish_reason":"abort"`},
	errs:         `data: {"error":{"message":`,
}

func completionChunk(text, finish string) string {
	return data(`{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":` + quoted(text) + `,"logprobs":null,"finish_reason":` + finish + `}]}`)
}

func completionWhole(text, finish string) string {
	return `{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":` + quoted(text) +
		`,"logprobs":null,"finish_reason":"` + finish + `"}],"usage":` + usage + `}`
}

var completions = dialect{
	name: "completions", path: "/v1/completions",
	request: func(text string, stream bool, more string) string {
		return fmt.Sprintf(`{"model":"tiny","prompt":%s,"stream":%t%s}`, quoted(text), stream, more)
	},
	whole: func(text string) string { return completionWhole(text, "stop") },
	events: func(parts ...string) []string {
		var all []string
		for _, p := range parts {
			all = append(all, completionChunk(p, "null"))
		}
		return append(all, completionChunk("", `"stop"`), data("[DONE]"))
	},
	aborted:      []string{completionChunk("x", `"abort"`), data("[DONE]")},
	abortedWhole: completionWhole("half of", "abort"),
	ends:         []string{"[DONE]", `"finish_reason":"stop"`, `"finish_reason":"abort"`},
	errs:         `data: {"error":{"message":`,
}

func messagesWhole(text, stop string) string {
	return `{"id":"chatcmpl-1","type":"message","role":"assistant","content":[{"type":"text","text":` + quoted(text) + `}],"model":"tiny","stop_reason":` + stop +
		`,"stop_sequence":null,"usage":{"input_tokens":14,"output_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":16}}`
}

func messagesEnd(stop string) []string {
	return []string{
		named("content_block_stop", `{"type":"content_block_stop","index":0}`),
		named("message_delta", `{"type":"message_delta","delta":{"stop_reason":`+stop+`,"stop_sequence":null},"usage":{"input_tokens":14,"output_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":16}}`),
		named("message_stop", `{"type":"message_stop"}`),
	}
}

var messages = dialect{
	name: "messages", path: "/v1/messages", anthropic: true,
	request: func(text string, stream bool, more string) string {
		return fmt.Sprintf(`{"model":"tiny","max_tokens":64,"system":"You are terse.","messages":[{"role":"user","content":%s}],"stream":%t%s}`, quoted(text), stream, more)
	},
	whole: func(text string) string { return messagesWhole(text, `"end_turn"`) },
	events: func(parts ...string) []string {
		all := []string{
			named("message_start", `{"type":"message_start","message":{"id":"chatcmpl-1","type":"message","role":"assistant","content":[],"model":"tiny","stop_reason":null,"usage":{"input_tokens":30,"output_tokens":0}}}`),
			named("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
		}
		for _, p := range parts {
			all = append(all, named("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+quoted(p)+`}}`))
		}
		return append(all, messagesEnd(`"end_turn"`)...)
	},
	aborted:      messagesEnd("null"),
	abortedWhole: messagesWhole("half of", "null"),
	ends:         []string{"message_stop", `"stop_reason":"end_turn"`},
	errs:         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"",
}

func response(status, output string) string {
	return `{"id":"resp_1","created_at":1,"object":"response","model":"tiny","status":"` + status + `","output":[` + output +
		`],"usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":16},"output_tokens":4,"total_tokens":34}}`
}

func responseItem(text string) string {
	return `{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":` + quoted(text) + `,"annotations":[]}]}`
}

var responses = dialect{
	name: "responses", path: "/v1/responses",
	request: func(text string, stream bool, more string) string {
		return fmt.Sprintf(`{"model":"tiny","instructions":"You are terse.","input":[{"type":"message","role":"user","content":%s}],"stream":%t%s}`, quoted(text), stream, more)
	},
	whole: func(text string) string { return response("completed", responseItem(text)) },
	events: func(parts ...string) []string {
		all := []string{named("response.created", `{"type":"response.created","sequence_number":0,"response":`+response("in_progress", "")+`}`)}
		for i, p := range parts {
			all = append(all, named("response.output_text.delta", fmt.Sprintf(`{"type":"response.output_text.delta","sequence_number":%d,"item_id":"msg_1","delta":%s}`, i+1, quoted(p))))
		}
		whole := responseItem(strings.Join(parts, ""))
		return append(all, named("response.completed", fmt.Sprintf(`{"type":"response.completed","sequence_number":%d,"response":%s}`, len(parts)+1, response("completed", whole))))
	},
	ends: []string{"response.completed"},
	errs: "event: error\ndata: {\"type\":\"error\"",
}

var dialects = []dialect{chat, completions, messages, responses}

// reply answers a call of any dialect with a text that depends on nothing but
// the request.
func reply(c *call) {
	for _, d := range dialects {
		if d.path != c.path() {
			continue
		}
		if isStream(c.body) {
			c.stream(d.events("one ", "two ", "three")...)
		} else {
			c.answer(200, d.whole("one two three"))
		}
		return
	}
	c.answer(200, `{"object":"list","data":[],"input_tokens":3,"count":3,"usage":{"prompt_tokens":3,"total_tokens":3}}`)
}

func isStream(body []byte) bool {
	var b struct{ Stream bool }
	return json.Unmarshal(body, &b) == nil && b.Stream
}
