package server

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"unicode/utf8"

	"lmwarden/internal/enginesim"
)

// defaultCompletionTokens is what /v1/completions generates when nothing is asked for.
const defaultCompletionTokens = 16

// completions is POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	b, leave, refusal := s.accept(r)
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	defer leave()
	c, q, refusal := s.readCompletions(r, b)
	switch {
	case refusal != nil:
		s.refuse(w, refusal)
	case c.options.stream:
		c.stream(w, r, q)
	default:
		c.whole(w, r, q)
	}
}

func (s *Server) readCompletions(r *http.Request, b *body) (*completionReply, request, *apiError) {
	c := &completionReply{s: s, id: "cmpl-" + requestID(r), created: unixNow(), options: readStreamOptions(b)}
	model := b.text("model")
	temperature := b.number("temperature", 1)
	n := b.integer("n", 1)
	most := b.integer("max_tokens", defaultCompletionTokens)
	bounds := limits{min: b.integer("min_tokens", 0), ignoreEOS: b.flag("ignore_eos")}
	q := request{salt: b.text("cache_salt"), rank: r.Header.Get(rankHeader)}
	if b.err != nil {
		return nil, q, b.err
	}
	for _, refusal := range []*apiError{s.checkModel(model), checkTemperature(temperature), checkChoices(n, temperature)} {
		if refusal != nil {
			return nil, q, refusal
		}
	}
	prompts, refusal := s.completionPrompts(b.fields["prompt"])
	if refusal != nil {
		return nil, q, refusal
	}
	for _, p := range prompts {
		if refusal := s.checkLength(len(p.tokens)); refusal != nil {
			return nil, q, refusal
		}
		if bounds.max, refusal = s.maxTokens(most, len(p.tokens)); refusal != nil {
			return nil, q, refusal
		}
		wishes := wishes{tokens: tokensWish(p.text)}
		for choice := range n {
			q.prompts = append(q.prompts, prompt{p.tokens, s.plan(p.tokens, wishes, nil, bounds, choice)})
		}
		c.prompt += len(p.tokens)
	}
	q.params = requestParams{maxTokens: bounds.max, n: n}
	return c, q, nil
}

// completionPrompt is one prompt of a completions request.
type completionPrompt struct {
	tokens []enginesim.Token
	text   string // empty when it came as token ids
}

// completionPrompts reads a prompt field: a string, token ids, or a list of either.
func (s *Server) completionPrompts(raw json.RawMessage) ([]completionPrompt, *apiError) {
	var text string
	if json.Unmarshal(raw, &text) == nil && text != "" {
		return s.textPrompts(text)
	}
	var several []string
	if json.Unmarshal(raw, &several) == nil && len(several) > 0 {
		return s.textPrompts(several...)
	}
	var ids []int64
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return []completionPrompt{{tokens: s.fromIDs(ids)}}, nil
	}
	var lists [][]int64
	if json.Unmarshal(raw, &lists) == nil && len(lists) > 0 {
		var prompts []completionPrompt
		for _, ids := range lists {
			prompts = append(prompts, completionPrompt{tokens: s.fromIDs(ids)})
		}
		return prompts, nil
	}
	return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)")
}

func (s *Server) textPrompts(texts ...string) ([]completionPrompt, *apiError) {
	var prompts []completionPrompt
	for _, t := range texts {
		if e := s.checkCharacters(utf8.RuneCountInString(t)); e != nil {
			return nil, e
		}
		if t == "" {
			return nil, badRequest("prompt", "The decoder prompt cannot be empty")
		}
		prompts = append(prompts, completionPrompt{s.tokenizer.Append(nil, t), t})
	}
	return prompts, nil
}

type completionReply struct {
	s       *Server
	id      string
	created int64
	prompt  int // tokens of all prompts
	options openAIStream
}

func (c *completionReply) whole(w http.ResponseWriter, r *http.Request, q request) {
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
		text, _ := p.answer.said(results[i].tokens)
		choices = append(choices, c.s.weightVersions(object{
			{"index", i}, {"text", text}, {"logprobs", nil}, {"finish_reason", results[i].reason}, {"stop_reason", nil},
			{"token_ids", nil}, {"prompt_logprobs", nil}, {"prompt_token_ids", nil}, {"routed_experts", nil},
		}))
	}
	writeJSON(w, http.StatusOK, object{
		{"id", c.id}, {"object", "text_completion"}, {"created", c.created}, {"model", c.s.models[0]},
		{"choices", choices}, {"service_tier", nil}, {"system_fingerprint", c.s.fingerprint()},
		{"usage", c.s.wholeUsage(c.prompt, u, nil)},
		{"kv_transfer_params", nil}, {"ec_transfer_params", nil}, {"metrics", nil},
	})
}

func (c *completionReply) stream(w http.ResponseWriter, r *http.Request, q request) {
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
		left     = len(g.prompts)
	)
	finished := out.follow(r.Context(), g, c.s.sseKeepAlive, func(e event) {
		u.add(e)
		from := produced[e.part]
		produced[e.part] += e.tokens
		var reason any
		last := false
		if e.done {
			left--
			reason, last = e.reason, left == 0 && !c.options.usage
		}
		chunk := c.chunk(list{object{
			{"index", e.part}, {"text", g.prompts[e.part].answer.between(from, produced[e.part])}, {"logprobs", nil},
			{"finish_reason", reason}, {"stop_reason", nil}, {"prompt_token_ids", nil}, {"token_ids", nil},
		}}).with(runningUsage(c.options, c.prompt, produced[e.part])...)
		if last {
			chunk = chunk.with(field{"system_fingerprint", c.s.fingerprint()})
		}
		out.data(chunk)
	}, func() { c.s.failStream(out, engineDead(c.s.version)) })
	if !finished {
		return
	}
	if c.options.usage {
		out.data(c.chunk(list{}).with(
			field{"usage", c.s.streamUsage(c.prompt, u, false)}, field{"system_fingerprint", c.s.fingerprint()}))
	}
	out.done()
}

func (c *completionReply) chunk(choices list) object {
	return object{
		{"id", c.id}, {"object", "text_completion"}, {"created", c.created}, {"model", c.s.models[0]}, {"choices", choices},
	}
}

// fromIDs turns token ids into the model's tokens. Where a token is one byte the ids are the
// engine's own; longer tokens have no vocabulary, so ids make tokens of their own.
func (s *Server) fromIDs(ids []int64) []enginesim.Token {
	tokens := make([]enginesim.Token, len(ids))
	for i, id := range ids {
		tokens[i] = enginesim.Token(id)
	}
	return tokens
}

// toIDs is the inverse for what /tokenize shows. A token of several bytes is squeezed into the 31 bits that
// clients expect of an id.
func (s *Server) toIDs(tokens []enginesim.Token) list {
	ids := make(list, len(tokens))
	for i, t := range tokens {
		if t > 1<<31-1 {
			var b [8]byte
			binary.BigEndian.PutUint64(b[:], uint64(t))
			t = enginesim.Token(binary.BigEndian.Uint32(b[:4])^binary.BigEndian.Uint32(b[4:])) & (1<<31 - 1)
		}
		ids[i] = int64(t)
	}
	return ids
}
