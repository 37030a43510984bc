package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	"lmwarden/internal/enginesim"
)

// messages is POST /v1/messages.
func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	b, leave, refusal := s.accept(r)
	if refusal != nil {
		s.refuseAnthropic(w, refusal)
		return
	}
	defer leave()
	m, q, refusal := s.readMessages(r, b)
	switch {
	case refusal != nil:
		s.refuseAnthropic(w, refusal)
	case b.flag("stream"):
		m.stream(w, r, q)
	default:
		m.whole(w, r, q)
	}
}

func (s *Server) readMessages(r *http.Request, b *body) (*messageReply, request, *apiError) {
	q := request{rank: r.Header.Get(rankHeader)}
	talk, refusal := readAnthropic(b)
	if refusal != nil {
		return nil, q, refusal
	}
	checkAnthropicLimits(b)
	b.flag("stream")
	talk.limits.max = b.integer("max_tokens", noLimit)
	talk.temperature = b.number("temperature", 1)
	talk.mute = b.sub("tool_choice").text("type") == "none"
	if b.err != nil {
		return nil, q, b.err
	}
	q.prompts, q.params, refusal = s.prepare(talk)
	if refusal != nil {
		return nil, q, refusal
	}
	return &messageReply{s: s, id: "chatcmpl-" + requestID(r), prompt: len(q.prompts[0].tokens)}, q, nil
}

// readAnthropic reads what /v1/messages and its count_tokens have in common.
func readAnthropic(b *body) (conversation, *apiError) {
	b.require("model", 0)
	b.require("messages", 0)
	raw := b.members("messages")
	talk := conversation{model: b.text("model"), tools: anthropicTools(b.members("tools")), choices: 1}
	if b.err != nil {
		return talk, b.err
	}
	var refusal *apiError
	talk.messages, refusal = anthropicMessages(b.fields["system"], raw)
	return talk, refusal
}

// checkAnthropicLimits checks what the schema of the route says about max_tokens and thinking.
func checkAnthropicLimits(b *body) {
	b.require("max_tokens", 0)
	most := b.integer("max_tokens", noLimit)
	if b.err == nil && most < 1 {
		b.fail(valueError(b, "max_tokens", "max_tokens must be positive"))
	}
	thinking := b.sub("thinking")
	if thinking.text("type") == "enabled" && thinking.integer("budget_tokens", 0) >= most {
		b.fail(valueError(b, "", "thinking.budget_tokens must be less than max_tokens"))
	}
}

// valueError is how the schema library words what a validator of a model says. An empty key
// means the whole body.
func valueError(b *body, key, message string) *apiError {
	loc, input := "body", ""
	if key != "" {
		loc, input = "body."+key, pythonInput(b.fields[key])
	} else {
		all, _ := json.Marshal(b.fields)
		input = pythonInput(all)
	}
	return invalid(loc, "'type': 'value_error', 'loc': '"+loc+"', 'msg': 'Value error, "+message+"', 'input': '"+input+
		"', 'ctx': {'error': ValueError('"+message+"')}")
}

// countTokens is POST /v1/messages/count_tokens.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	b, refusal := readBody(r)
	if refusal != nil {
		s.refuseAnthropic(w, refusal)
		return
	}
	talk, refusal := readAnthropic(b)
	if refusal == nil {
		refusal = s.check(talk)
	}
	var tokens []enginesim.Token
	if refusal == nil {
		tokens, refusal = s.render(talk.messages, talk.tools)
	}
	if refusal != nil {
		s.refuseAnthropic(w, refusal)
		return
	}
	writeJSON(w, http.StatusOK, object{
		{"input_tokens", len(tokens)}, {"context_management", object{{"original_input_tokens", len(tokens)}}},
	})
}

// messageReply writes the answer to one request of /v1/messages.
type messageReply struct {
	s      *Server
	id     string
	prompt int // tokens
}

func (m *messageReply) whole(w http.ResponseWriter, r *http.Request, q request) {
	g, refusal := m.s.submit(r, q)
	if refusal != nil {
		m.s.refuseAnthropic(w, refusal)
		return
	}
	defer g.end()
	u, results, err := g.whole(r.Context())
	if err != nil {
		m.s.fail(w, err, m.s.refuseAnthropic)
		return
	}
	answer := &g.prompts[0].answer
	text, call := answer.said(results[0].tokens)
	block := object{{"type", "text"}, {"text", text}}
	if call != nil {
		block = object{
			{"type", "tool_use"}, {"id", newID("chatcmpl-tool-")}, {"name", call.name}, {"input", json.RawMessage(call.arguments)},
		}
	}
	writeJSON(w, http.StatusOK, object{
		{"id", m.id}, {"type", "message"}, {"role", "assistant"}, {"content", list{block}}, {"model", m.s.models[0]},
		{"stop_reason", stopReason(answer, results[0].reason)}, {"usage", m.s.anthropicUsage(m.prompt, u)},
	})
}

func (m *messageReply) stream(w http.ResponseWriter, r *http.Request, q request) {
	out := openStream(w)
	g, refusal := m.s.submit(r, q)
	if refusal != nil {
		m.failStream(out, refusal)
		return
	}
	defer g.end()
	answer := &g.prompts[0].answer
	var (
		u       usage
		started = false
		inBlock = false
	)
	// openBlock starts the one content block when there is something to put into it.
	openBlock := func() {
		if inBlock {
			return
		}
		inBlock = true
		block := object{{"type", "text"}, {"text", ""}}
		if call := answer.call; call != nil {
			block = object{{"type", "tool_use"}, {"id", newID("chatcmpl-tool-")}, {"name", call.name}, {"input", object{}}}
		}
		out.event("content_block_start", object{{"type", "content_block_start"}, {"content_block", block}, {"index", 0}})
	}
	out.follow(r.Context(), g, 0, func(e event) {
		from := u.completion
		u.add(e)
		if !started {
			started = true
			// Made from the first chat chunk, which knows the whole prompt but nothing of the cache.
			out.event("message_start", object{{"type", "message_start"}, {"message", object{
				{"id", m.id}, {"type", "message"}, {"role", "assistant"}, {"content", list{}}, {"model", m.s.models[0]},
				{"stop_reason", nil}, {"stop_sequence", nil},
				{"usage", object{{"input_tokens", m.prompt}, {"output_tokens", 0}}},
			}}})
		}
		if delta := blockDelta(answer, from, u.completion); delta != nil {
			openBlock()
			out.event("content_block_delta", object{{"type", "content_block_delta"}, {"delta", delta}, {"index", 0}})
		}
		if !e.done {
			return
		}
		if answer.call != nil {
			openBlock()
		}
		if inBlock {
			out.event("content_block_stop", object{{"type", "content_block_stop"}, {"index", 0}})
		}
		out.event("message_delta", object{
			{"type", "message_delta"}, {"delta", object{{"stop_reason", stopReason(answer, e.reason)}, {"stop_sequence", nil}}},
			{"usage", m.s.anthropicUsage(m.prompt, u)},
		})
		out.event("message_stop", object{{"type", "message_stop"}})
	}, func() {
		if inBlock && m.s.version.atLeast(0, 33) {
			out.event("content_block_stop", object{{"type", "content_block_stop"}, {"index", 0}})
		}
		m.failStream(out, engineDead(m.s.version))
	})
}

// blockDelta is what the tokens from, up to and without to, add to the content block; nil when nothing.
func blockDelta(a *answer, from, to int) any {
	if a.call != nil {
		if arguments := a.argumentsBetween(from, to); arguments != "" {
			return object{{"type", "input_json_delta"}, {"partial_json", arguments}}
		}
	} else if text := a.between(from, to); text != "" {
		return object{{"type", "text_delta"}, {"text", text}}
	}
	return nil
}

// stopReason is the reason in Anthropic's words; nil for one that it has no word for.
func stopReason(a *answer, reason string) any {
	switch a.finishReason(reason) {
	case "stop":
		return "end_turn"
	case "length":
		return "max_tokens"
	case "tool_calls":
		return "tool_use"
	}
	return nil
}

// failStream ends a stream that failed after its headers were sent. Before 0.33 the
// handler choked on the error chunk of the chat handler below it, and that is what clients see.
func (m *messageReply) failStream(out *stream, e *apiError) {
	if m.s.version.atLeast(0, 33) {
		out.event("error", e.anthropic(m.s.version))
		return
	}
	hint := fmt.Sprintf(" [type=missing, input_value={'error': {'message': '%.2s...am': None, 'code': %d}}, input_type=dict]\n"+
		"    For further information visit https://errors.pydantic.dev/2.14/v/missing", e.message, e.status)
	out.event("error", object{{"type", "error"}, {"error", object{
		{"type", "internal_error"},
		{"message", "2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required" + hint + "\nchoices\n  Field required" + hint},
	}}})
}
