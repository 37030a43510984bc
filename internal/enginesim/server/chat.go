package server

import (
	"net/http"
)

// openAIStream is what a stream of chat or completions was asked to show of its usage.
type openAIStream struct {
	stream     bool
	usage      bool // one more chunk at the end
	continuous bool // and a plain usage on every chunk
}

func readStreamOptions(b *body) openAIStream {
	o := openAIStream{stream: b.flag("stream")}
	options := b.sub("stream_options")
	o.usage = o.stream && options.flag("include_usage")
	o.continuous = o.usage && options.flag("continuous_usage_stats")
	if options.err != nil {
		b.fail(options.err)
	}
	return o
}

// chat is POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	b, leave, refusal := s.accept(r)
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	defer leave()
	b.require("messages", 0)
	model := b.text("model")
	raw := b.members("messages")
	options := readStreamOptions(b)
	temperature := b.number("temperature", 1)
	n := b.integer("n", 1)
	most := b.integer("max_completion_tokens", b.integer("max_tokens", noLimit))
	l := limits{min: b.integer("min_tokens", 0), ignoreEOS: b.flag("ignore_eos")}
	salt := b.text("cache_salt")
	tools := chatTools(b.members("tools"))
	if b.err != nil {
		s.refuse(w, b.err)
		return
	}
	messages, refusal := chatMessages(raw)
	if refusal == nil {
		refusal = s.checkModel(model)
	}
	if refusal == nil && len(messages) == 0 {
		refusal = emptyConversation()
	}
	if refusal == nil && n > 1 && temperature == 0 {
		refusal = badRequest("", "n must be 1 when using greedy sampling, got %d.", n)
	}
	if refusal == nil && n < 1 {
		refusal = badRequest("n", "n must be at least 1, got %d.", n)
	}
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	tokens, refusal := s.render(messages, tools)
	if refusal == nil {
		l.max, refusal = s.maxTokens(most, len(tokens), s.room(len(tokens)))
	}
	if refusal == nil {
		refusal = checkTemperature(temperature)
	}
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}

	wishes, callable := readWishes(messages), tools
	if b.has("tool_choice") && string(b.fields["tool_choice"]) == `"none"` {
		callable = nil
	}
	q := request{salt: salt, rank: r.Header.Get(rankHeader), params: requestParams{maxTokens: l.max, n: n}}
	for choice := range n {
		q.prompts = append(q.prompts, prompt{tokens, s.plan(tokens, wishes, callable, l, choice)})
	}
	c := chatReply{s: s, id: "chatcmpl-" + requestID(r), created: unixNow(), prompt: len(tokens), options: options}
	if options.stream {
		c.stream(w, r, q)
	} else {
		c.whole(w, r, q)
	}
}

// chatReply writes the answer to one chat request.
type chatReply struct {
	s       *Server
	id      string
	created int64
	prompt  int // tokens
	options openAIStream
}

func (c *chatReply) whole(w http.ResponseWriter, r *http.Request, q request) {
	g, refusal := c.s.submit(q)
	if refusal != nil {
		c.s.refuse(w, refusal)
		return
	}
	defer g.end()
	u, reasons, err := g.whole(r.Context())
	if err != nil {
		c.s.fail(w, err, c.s.refuse)
		return
	}
	choices := list{}
	for i, p := range g.prompts {
		message := object{
			{"role", "assistant"}, {"content", any(p.answer.text)}, {"refusal", nil}, {"annotations", nil},
			{"audio", nil}, {"function_call", nil},
		}
		if call := p.answer.call; call != nil {
			message[1].value = nil
			message = message.with(field{"tool_calls", list{object{
				{"id", newID("chatcmpl-tool-")}, {"type", "function"},
				{"function", object{{"name", call.name}, {"arguments", call.arguments}}},
			}}})
		}
		choice := object{
			{"index", i}, {"message", message.with(field{"reasoning", nil})}, {"logprobs", nil},
			{"finish_reason", p.answer.finishReason(reasons[i])}, {"stop_reason", nil},
			{"token_ids", nil}, {"routed_experts", nil},
		}
		choices = append(choices, c.s.weightVersions(choice))
	}
	writeJSON(w, http.StatusOK, object{
		{"id", c.id}, {"object", "chat.completion"}, {"created", c.created}, {"model", c.s.models[0]},
		{"choices", choices}, {"service_tier", nil}, {"system_fingerprint", c.s.fingerprint()},
		{"usage", c.s.wholeUsage(c.prompt, u, u.created)},
		{"prompt_logprobs", nil}, {"prompt_token_ids", nil}, {"prompt_text", nil},
		{"kv_transfer_params", nil}, {"ec_transfer_params", nil}, {"metrics", nil},
	})
}

func (c *chatReply) stream(w http.ResponseWriter, r *http.Request, q request) {
	out := openStream(w)
	g, refusal := c.s.submit(q)
	if refusal != nil {
		c.s.failStream(out, refusal)
		return
	}
	defer g.end()
	var (
		u        usage
		produced = make([]int, len(g.prompts))
		opened   = false
		left     = len(g.prompts)
	)
	finished := out.follow(r.Context(), g, c.s.sseKeepAlive, func(e event) {
		u.add(e)
		if !opened {
			opened = true
			for i := range g.prompts {
				// The engine makes the role chunks before it counts the tokens that came with them.
				out.data(c.chunk(list{object{
					{"index", i}, {"delta", object{{"role", "assistant"}, {"content", ""}}},
					{"logprobs", nil}, {"finish_reason", nil},
				}}).with(c.runningUsage(0)...).with(field{"prompt_token_ids", nil}, field{"prompt_text", nil}))
			}
		}
		from := produced[e.part]
		produced[e.part] += e.tokens
		answer := &g.prompts[e.part].answer
		delta := chatDelta(answer, from, produced[e.part])
		if len(delta) == 0 && !e.done {
			return
		}
		choice := object{{"index", e.part}, {"delta", delta}, {"logprobs", nil}}
		last := false
		if e.done {
			left--
			last = left == 0 && !c.options.usage
			choice = choice.with(field{"finish_reason", answer.finishReason(e.reason)}, field{"stop_reason", nil}, field{"token_ids", nil})
			choice = c.s.weightVersions(choice)
		} else {
			choice = choice.with(field{"finish_reason", nil}, field{"token_ids", nil})
		}
		chunk := c.chunk(list{choice}).with(c.runningUsage(produced[e.part])...)
		if last {
			chunk = chunk.with(field{"system_fingerprint", c.s.fingerprint()})
		}
		if c.s.version.atLeast(0, 33) {
			chunk = chunk.with(field{"kv_transfer_params", nil})
		}
		out.data(chunk)
	})
	if !finished {
		return
	}
	if c.options.usage {
		out.data(c.chunk(list{}).with(
			field{"usage", c.s.streamUsage(c.prompt, u, true)}, field{"system_fingerprint", c.s.fingerprint()}))
	}
	out.done()
}

func (c *chatReply) chunk(choices list) object {
	return object{
		{"id", c.id}, {"object", "chat.completion.chunk"}, {"created", c.created}, {"model", c.s.models[0]}, {"choices", choices},
	}
}

func (c *chatReply) runningUsage(completion int) []field {
	return runningUsage(c.options, c.prompt, completion)
}

// chatDelta is what the tokens from, up to and without to, add to a chat message.
func chatDelta(a *answer, from, to int) object {
	if a.call == nil {
		if text := a.between(from, to); text != "" {
			return object{{"content", text}}
		}
		return object{}
	}
	arguments := a.argumentsBetween(from, to)
	if from > 0 {
		if arguments == "" {
			return object{}
		}
		return object{{"tool_calls", list{object{{"index", 0}, {"function", object{{"arguments", arguments}}}}}}}
	}
	return object{{"tool_calls", list{object{
		{"id", newID("chatcmpl-tool-")}, {"type", "function"}, {"index", 0},
		{"function", object{{"name", a.call.name}, {"arguments", arguments}}},
	}}}}
}

// weightVersions adds a field that choices have from 0.33 on.
func (s *Server) weightVersions(choice object) object {
	if s.version.atLeast(0, 33) {
		return choice.with(field{"weight_versions", nil})
	}
	return choice
}
