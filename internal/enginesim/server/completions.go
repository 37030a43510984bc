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
	model := b.text("model")
	options := readStreamOptions(b)
	temperature := b.number("temperature", 1)
	n := b.integer("n", 1)
	most := b.integer("max_tokens", noLimit)
	l := limits{min: b.integer("min_tokens", 0), ignoreEOS: b.flag("ignore_eos")}
	salt := b.text("cache_salt")
	if b.err != nil {
		s.refuse(w, b.err)
		return
	}
	refusal = s.checkModel(model)
	if refusal == nil {
		refusal = checkTemperature(temperature)
	}
	if refusal == nil && n > 1 && temperature == 0 {
		refusal = badRequest("", "n must be 1 when using greedy sampling, got %d.", n)
	}
	if refusal == nil && n < 1 {
		refusal = badRequest("n", "n must be at least 1, got %d.", n)
	}
	var texts []completionPrompt
	if refusal == nil {
		texts, refusal = s.completionPrompts(b.fields["prompt"])
	}
	q := request{salt: salt, rank: r.Header.Get(rankHeader)}
	total := 0
	for _, t := range texts {
		if refusal == nil {
			refusal = s.checkLength(len(t.tokens))
		}
		if refusal == nil {
			l.max, refusal = s.maxTokens(most, len(t.tokens), defaultCompletionTokens)
		}
		if refusal != nil {
			break
		}
		total += len(t.tokens)
		wishes := wishes{tokens: tokensWish(t.text)}
		for choice := range n {
			q.prompts = append(q.prompts, prompt{t.tokens, s.plan(t.tokens, wishes, nil, l, choice)})
		}
	}
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	q.params = requestParams{maxTokens: l.max, n: n}
	c := completionReply{s: s, id: "cmpl-" + requestID(r), created: unixNow(), prompt: total, options: options}
	if options.stream {
		c.stream(w, r, q)
	} else {
		c.whole(w, r, q)
	}
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
		choices = append(choices, c.s.weightVersions(object{
			{"index", i}, {"text", p.answer.text}, {"logprobs", nil}, {"finish_reason", reasons[i]}, {"stop_reason", nil},
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
	g, refusal := c.s.submit(q)
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
	})
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
