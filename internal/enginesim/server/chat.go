package server

import "net/http"

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
	c, q, refusal := s.readChat(r, b)
	switch {
	case refusal != nil:
		s.refuse(w, refusal)
	case c.options.stream:
		c.stream(w, r, q)
	default:
		c.whole(w, r, q)
	}
}

func (s *Server) readChat(r *http.Request, b *body) (*chatReply, request, *apiError) {
	b.require("messages", 0)
	raw := b.members("messages")
	c := &chatReply{s: s, id: "chatcmpl-" + requestID(r), created: unixNow(), options: readStreamOptions(b)}
	talk := conversation{
		model:       b.text("model"),
		tools:       chatTools(b.members("tools")),
		mute:        b.is("tool_choice", `"none"`),
		temperature: b.number("temperature", 1),
		choices:     b.integer("n", 1),
		limits: limits{
			max:       b.integer("max_completion_tokens", b.integer("max_tokens", noLimit)),
			min:       b.integer("min_tokens", 0),
			ignoreEOS: b.flag("ignore_eos"),
		},
	}
	q := request{salt: b.text("cache_salt"), rank: r.Header.Get(rankHeader)}
	if b.err != nil {
		return nil, q, b.err
	}
	var refusal *apiError
	if talk.messages, refusal = chatMessages(raw); refusal != nil {
		return nil, q, refusal
	}
	q.prompts, q.params, refusal = s.prepare(talk)
	if refusal != nil {
		return nil, q, refusal
	}
	c.prompt = len(q.prompts[0].tokens)
	return c, q, nil
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
	g, refusal := c.s.submit(r, q)
	if refusal != nil {
		c.s.refuse(w, refusal)
		return
	}
	defer g.end()
	u, results, err := g.whole(r.Context())
	if err != nil {
		c.s.fail(w, err, c.s.refuse)
		return
	}
	choices := list{}
	for i, p := range g.prompts {
		text, call := p.answer.said(results[i].tokens)
		message := object{
			{"role", "assistant"}, {"content", any(text)}, {"refusal", nil}, {"annotations", nil},
			{"audio", nil}, {"function_call", nil},
		}
		if call != nil {
			message[1].value = nil
			message = message.with(field{"tool_calls", list{object{
				{"id", newID("chatcmpl-tool-")}, {"type", "function"},
				{"function", object{{"name", call.name}, {"arguments", call.arguments}}},
			}}})
		}
		choice := object{
			{"index", i}, {"message", message.with(field{"reasoning", nil})}, {"logprobs", nil},
			{"finish_reason", p.answer.finishReason(results[i].reason)}, {"stop_reason", nil},
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
	g, refusal := c.s.submit(r, q)
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
	}, func() { c.s.failStream(out, engineDead(c.s.version)) })
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
