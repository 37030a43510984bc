package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"lmwarden/internal/enginesim"
)

// responses is POST /v1/responses.
func (s *Server) responses(w http.ResponseWriter, r *http.Request) {
	b, leave, refusal := s.accept(r)
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	defer leave()
	p, q, refusal := s.readResponses(r, b)
	switch {
	case refusal != nil:
		s.refuse(w, refusal)
	case b.flag("stream"):
		p.stream(w, r, q)
	default:
		p.whole(w, r, q)
	}
}

func (s *Server) readResponses(r *http.Request, b *body) (*responsesReply, request, *apiError) {
	b.require("input", 1) // its schema has added a field before it complains
	b.flag("stream")
	instructions, previous := b.text("instructions"), b.text("previous_response_id")
	tools := b.members("tools")
	p := &responsesReply{
		s: s, body: b, id: newID("resp_"), itemID: newID("msg_"), callID: newID("call_"), created: unixNow(),
		temperature: b.number("temperature", 1), topP: b.number("top_p", 1), tools: echoTools(tools),
	}
	talk := conversation{
		model:       b.text("model"),
		tools:       responsesTools(tools),
		mute:        b.is("tool_choice", `"none"`),
		temperature: p.temperature,
		choices:     1,
		limits:      limits{max: b.integer("max_output_tokens", noLimit)},
	}
	q := request{salt: b.text("cache_salt")}
	if s.responsesRank {
		q.rank = r.Header.Get(rankHeader)
	}
	if b.err != nil {
		return nil, q, b.err
	}
	var refusal *apiError
	if talk.messages, refusal = responsesMessages(instructions, b.fields["input"]); refusal != nil {
		return nil, q, refusal
	}
	if refusal = s.checkModel(talk.model); refusal == nil && previous != "" {
		refusal = unknownResponse(previous)
	}
	if refusal != nil {
		return nil, q, refusal
	}
	q.prompts, q.params, refusal = s.prepare(talk)
	if refusal != nil {
		return nil, q, refusal
	}
	if q.prompts[0].answer.call != nil {
		p.itemID = newID("fc_")
	}
	p.prompt, p.most = len(q.prompts[0].tokens), q.params.maxTokens
	return p, q, nil
}

// unknownResponse refuses every id, since nothing is stored.
func unknownResponse(id string) *apiError {
	return &apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", param: "response_id",
		message: "Response with id '" + id + "' not found.",
	}
}

// echoTools are the tools as a response object shows them.
func echoTools(raw []json.RawMessage) list {
	tools := list{}
	for _, r := range raw {
		parsed := body{}
		if json.Unmarshal(r, &parsed.fields) != nil {
			continue
		}
		if parsed.text("type") != "function" {
			tools = append(tools, r)
			continue
		}
		tools = append(tools, object{
			{"name", parsed.echo("name")}, {"parameters", parsed.echo("parameters")}, {"strict", parsed.echo("strict")},
			{"type", "function"}, {"allowed_callers", nil}, {"async", nil}, {"defer_loading", nil},
			{"description", parsed.echo("description")}, {"output_schema", nil},
		})
	}
	return tools
}

// responsesReply writes the answer to one request of /v1/responses.
type responsesReply struct {
	s                  *Server
	body               *body
	id, itemID, callID string
	created            int64
	prompt             int // tokens
	temperature, topP  float64
	most               int
	tools              list
	sequence           int // number of the next event
}

// What a response and its items say about themselves.
const (
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
)

func (p *responsesReply) whole(w http.ResponseWriter, r *http.Request, q request) {
	g, refusal := p.s.submit(r, q)
	if refusal != nil {
		p.s.refuse(w, refusal)
		return
	}
	defer g.end()
	u, results, err := g.whole(r.Context())
	if err != nil {
		p.s.fail(w, err, p.s.refuse)
		return
	}
	answer := &g.prompts[0].answer
	status := responseStatus(results[0].reason)
	text, call := answer.said(results[0].tokens)
	if call == nil {
		p.itemID = newID("msg_") // whatever it was going to be
	}
	output := list{p.item(call, p.itemStatus(status), text)}
	writeJSON(w, http.StatusOK, p.response(status, output, responsesUsage(p.prompt, u)))
}

func responseStatus(reason string) string {
	if reason == enginesim.ReasonLength {
		return statusIncomplete
	}
	return statusCompleted
}

// itemStatus is the status of the item of a response: up to 0.32 an item is complete even
// when its response is not.
func (p *responsesReply) itemStatus(response string) string {
	if response == statusIncomplete && p.s.version.atLeast(0, 33) {
		return statusIncomplete
	}
	return statusCompleted
}

// item is the one item of the output, with as much text as there is. A call is shown whole
// once it is completed, without its arguments before.
func (p *responsesReply) item(call *toolCall, status, text string) object {
	if call != nil {
		arguments := call.arguments
		if status == statusInProgress {
			arguments = ""
		}
		return object{
			{"arguments", arguments}, {"call_id", p.callID}, {"name", call.name}, {"type", "function_call"},
			{"id", p.itemID}, {"status", status},
		}
	}
	content := list{}
	if status != statusInProgress {
		content = append(content, textPart(text, nil))
	}
	return object{
		{"id", p.itemID}, {"content", content}, {"role", "assistant"}, {"status", status}, {"type", "message"}, {"phase", nil},
	}
}

func textPart(text string, logprobs any) object {
	return object{{"annotations", list{}}, {"text", text}, {"type", "output_text"}, {"logprobs", logprobs}}
}

// response is the response object at a moment; usage is nil before the end.
func (p *responsesReply) response(status string, output list, usage any) object {
	b := p.body
	var incomplete any
	if status == statusIncomplete {
		incomplete = object{{"reason", "max_output_tokens"}}
	}
	choice := b.echo("tool_choice")
	if choice == nil {
		choice = "auto"
		if len(p.tools) == 0 {
			choice = "none"
		}
	}
	parallel := b.echo("parallel_tool_calls")
	if parallel == nil {
		parallel = true
	}
	o := object{
		{"id", p.id}, {"created_at", p.created}, {"incomplete_details", incomplete},
		{"instructions", b.echo("instructions")}, {"metadata", b.echo("metadata")}, {"model", p.s.models[0]},
		{"object", "response"}, {"output", output}, {"parallel_tool_calls", parallel}, {"temperature", p.temperature},
		{"tool_choice", choice}, {"tools", p.tools}, {"top_p", p.topP}, {"background", false},
		{"max_output_tokens", p.most}, {"max_tool_calls", nil}, {"previous_response_id", nil}, {"prompt", nil},
	}
	if p.s.version.atLeast(0, 33) {
		o = o.with(field{"prompt_cache_options", nil}, field{"prompt_cache_key", b.echo("prompt_cache_key")}, field{"prompt_cache_retention", nil})
	}
	o = o.with(field{"reasoning", b.echo("reasoning")})
	if p.s.version.atLeast(0, 33) {
		o = o.with(field{"safety_identifier", nil})
	}
	return o.with(
		field{"service_tier", "auto"}, field{"status", status}, field{"text", b.echo("text")}, field{"top_logprobs", nil},
		field{"truncation", "disabled"}, field{"usage", usage}, field{"user", b.echo("user")},
		field{"presence_penalty", 0.0}, field{"frequency_penalty", 0.0}, field{"kv_transfer_params", nil},
		field{"ec_transfer_params", nil}, field{"input_messages", nil}, field{"output_messages", nil},
	)
}

func (p *responsesReply) stream(w http.ResponseWriter, r *http.Request, q request) {
	out := openStream(w)
	p.send(out, "response.created", field{"response", p.response(statusInProgress, list{}, nil)})
	p.send(out, "response.in_progress", field{"response", p.response(statusInProgress, list{}, nil)})
	g, refusal := p.s.submit(r, q)
	if refusal != nil {
		out.cut() // the original has no error event here
	}
	defer g.end()
	answer := &g.prompts[0].answer
	var u usage
	out.follow(r.Context(), g, 0, func(e event) {
		from := u.completion
		u.add(e)
		if from == 0 {
			p.sendStart(out, answer)
		}
		if answer.call != nil {
			if delta := answer.argumentsBetween(from, u.completion); delta != "" {
				p.send(out, "response.function_call_arguments.delta",
					field{"delta", delta}, field{"item_id", p.itemID}, field{"output_index", 0})
			}
		} else if delta := answer.between(from, u.completion); delta != "" {
			p.send(out, "response.output_text.delta", field{"content_index", 0}, field{"delta", delta},
				field{"item_id", p.itemID}, field{"logprobs", list{}}, field{"output_index", 0})
		}
		if e.done {
			p.sendEnd(out, answer, responseStatus(e.reason), u)
		}
	}, out.cut) // the original has no error event here either
}

func (p *responsesReply) sendStart(out *stream, a *answer) {
	p.send(out, "response.output_item.added", field{"item", p.item(a.call, statusInProgress, "")}, field{"output_index", 0})
	if a.call == nil {
		p.send(out, "response.content_part.added", field{"content_index", 0}, field{"item_id", p.itemID},
			field{"output_index", 0}, field{"part", textPart("", list{})})
	}
}

// sendEnd ends the output with what there is of it: an aborted one is shown like a complete one.
func (p *responsesReply) sendEnd(out *stream, a *answer, status string, u usage) {
	text, call := "", a.call
	if call != nil {
		call = &toolCall{name: call.name, arguments: a.argumentsBetween(0, u.completion)}
		p.send(out, "response.function_call_arguments.done", field{"arguments", call.arguments}, field{"item_id", p.itemID},
			field{"name", call.name}, field{"output_index", 0})
	} else {
		text = a.between(0, u.completion)
		p.send(out, "response.output_text.done", field{"content_index", 0}, field{"item_id", p.itemID}, field{"logprobs", list{}},
			field{"output_index", 0}, field{"text", text})
		p.send(out, "response.content_part.done", field{"content_index", 0}, field{"item_id", p.itemID},
			field{"output_index", 0}, field{"part", textPart(text, nil)})
	}
	item := p.item(call, p.itemStatus(status), text)
	p.send(out, "response.output_item.done", field{"item", item}, field{"output_index", 0})
	// Up to 0.32 a response that was cut ends like one that was not.
	name := "response.completed"
	if status == statusIncomplete && p.s.version.atLeast(0, 33) {
		name = "response.incomplete"
	}
	p.send(out, name, field{"response", p.response(status, list{item}, responsesUsage(p.prompt, u))})
}

// send writes one numbered event. The engine's event models have their fields in alphabetical order.
func (p *responsesReply) send(out *stream, name string, fields ...field) {
	event := object(fields).with(field{"sequence_number", p.sequence}, field{"type", name})
	slices.SortFunc(event, func(a, b field) int { return strings.Compare(a.key, b.key) })
	out.event(name, event)
	p.sequence++
}
