package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"lmwarden/internal/enginesim"
)

// prompt is one sequence to generate: its tokens and the answer it will get.
type prompt struct {
	tokens []enginesim.Token
	answer answer
}

// generation is an admitted request: what its sequences are and what they became.
type generation struct {
	*job
	engine    *engine
	visit     *visit
	prompts   []prompt
	sequences []*sequence
	left      int // sequences that are not done
	aborted   bool
}

// next is job.next, which see, with a count of what is done.
func (g *generation) next(ctx context.Context, idle time.Duration) ([]event, error) {
	events, err := g.job.next(ctx, idle)
	for _, e := range events {
		if e.done {
			g.left--
			g.aborted = g.aborted || e.reason == reasonAbort
		}
	}
	if errors.Is(err, errEngineDead) || errors.Is(err, errEngineGone) {
		g.visit.outcome = failed
	}
	return events, err
}

// end takes out of the engine whatever is still in it.
func (g *generation) end() {
	for _, q := range g.sequences {
		g.engine.abandon(q)
	}
	switch {
	case g.visit.outcome != nil || g.left > 0:
	case g.aborted:
		g.visit.outcome = aborted
	default:
		g.visit.outcome = served
	}
}

// request is a parsed request, ready to be given to the engine.
type request struct {
	prompts []prompt
	salt    string
	params  requestParams
	// rank is the value of the rank header, empty when there is none or the route ignores it.
	rank string
}

// rankHeader chooses the rank that serves a request.
const rankHeader = "X-Data-Parallel-Rank"

// submit picks ranks and gives every sequence of the request to the engine. The caller must
// call end on the generation.
func (s *Server) submit(r *http.Request, q request) (*generation, *apiError) {
	e := s.process().engine
	rank, refusal := pinnedRank(q.rank, e.ranks())
	if refusal != nil {
		return nil, refusal
	}
	g := &generation{job: newJob(), engine: e, visit: visitOf(r), prompts: q.prompts, left: len(q.prompts)}
	for i, p := range q.prompts {
		sequence, err := e.add(g.job, i, rank, &enginesim.Sequence{
			Prompt: p.tokens, Output: p.answer.tokens, Reason: p.answer.reason, Salt: q.salt,
		}, q.params)
		if err != nil {
			g.end()
			if errors.Is(err, errEngineDead) || errors.Is(err, errEngineGone) {
				return nil, engineDead(s.version)
			}
			return nil, badRequest("", "%s", err)
		}
		if i == 0 {
			g.visit.take(sequence.rank)
		}
		g.sequences = append(g.sequences, sequence)
	}
	return g, nil
}

// pinnedRank reads the header as Python's int does: what is not an integer counts as
// absent, an integer that is no rank is refused.
func pinnedRank(header string, ranks int) (int, *apiError) {
	rank, shown, ok := pythonInt(header)
	if !ok {
		return enginesim.AnyRank, nil
	}
	if rank < 0 || rank >= ranks {
		return 0, badRequest("", "data_parallel_rank %s is out of range [0, %d).", shown, ranks)
	}
	return rank, nil
}

// pythonInt parses s as Python's int(s) does, and returns how Python would print it. A number
// beyond the range of int comes back as its nearest.
func pythonInt(s string) (n int, shown string, ok bool) {
	s = strings.TrimSpace(s)
	digits := strings.TrimPrefix(s, "+")
	negative := false
	if digits == s {
		digits = strings.TrimPrefix(s, "-")
		negative = digits != s
	}
	var plain strings.Builder
	for i := range len(digits) {
		switch c := digits[i]; {
		case c >= '0' && c <= '9':
			plain.WriteByte(c)
		case c == '_' && i > 0 && i < len(digits)-1 && digits[i-1] != '_': // only between digits
		default:
			return 0, "", false
		}
	}
	if plain.Len() == 0 {
		return 0, "", false
	}
	shown = strings.TrimLeft(plain.String(), "0")
	if shown == "" {
		return 0, "0", true
	}
	if negative {
		shown = "-" + shown
	}
	n, err := strconv.Atoi(shown)
	if err != nil {
		n = math.MaxInt
		if negative {
			n = math.MinInt
		}
	}
	return n, shown, true
}

// accept is what every generating route does first: it reads the body, and refuses when the
// queue is full or the engine not there any more. On success the caller must call leave.
func (s *Server) accept(r *http.Request) (b *body, leave func(), refusal *apiError) {
	b, refusal = readBody(r)
	if refusal != nil {
		return nil, nil, refusal
	}
	p := s.process()
	switch {
	case p.is(dead):
		return nil, nil, engineDead(s.version)
	case p.is(draining):
		return nil, nil, stopping()
	}
	if in := p.open.Add(1); s.maxQueued > 0 && int(in) > s.maxQueued {
		p.open.Add(-1)
		p.refused.Add(1)
		return nil, nil, busy()
	}
	return b, func() { p.open.Add(-1) }, nil
}

// conversation is what a request of chat, messages or responses asks for.
type conversation struct {
	model       string
	messages    []message
	tools       []tool
	mute        bool // the tools must not be called
	temperature float64
	choices     int
	limits      limits // max is noLimit when the request has none
}

// prepare checks a conversation, renders it and makes up the answers.
func (s *Server) prepare(c conversation) ([]prompt, requestParams, *apiError) {
	if refusal := s.check(c); refusal != nil {
		return nil, requestParams{}, refusal
	}
	if refusal := checkChoices(c.choices, c.temperature); refusal != nil {
		return nil, requestParams{}, refusal
	}
	tokens, refusal := s.render(c.messages, c.tools)
	if refusal != nil {
		return nil, requestParams{}, refusal
	}
	if c.limits.max, refusal = s.maxTokens(c.limits.max, len(tokens)); refusal != nil {
		return nil, requestParams{}, refusal
	}
	if refusal := checkTemperature(c.temperature); refusal != nil {
		return nil, requestParams{}, refusal
	}
	callable := c.tools
	if c.mute {
		callable = nil
	}
	wishes := readWishes(c.messages)
	var prompts []prompt
	for choice := range c.choices {
		prompts = append(prompts, prompt{tokens, s.plan(tokens, wishes, callable, c.limits, choice)})
	}
	return prompts, requestParams{maxTokens: c.limits.max, n: c.choices}, nil
}

// check refuses a conversation that no server with this model takes.
func (s *Server) check(c conversation) *apiError {
	if refusal := s.checkModel(c.model); refusal != nil {
		return refusal
	}
	if len(c.messages) == 0 {
		return badRequest("", "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	return nil
}

// checkModel refuses a model that is not served. An empty name means the only model.
func (s *Server) checkModel(name string) *apiError {
	if name == "" {
		return nil
	}
	for _, served := range s.models {
		if name == served {
			return nil
		}
	}
	return unknownModel(name, strings.Join(s.models, ", "))
}

// noLimit is the max tokens of a request that has none.
const noLimit = math.MinInt

// maxTokens checks a request's max tokens and cuts it to the room that the prompt leaves, without an
// error.
func (s *Server) maxTokens(asked, prompt int) (int, *apiError) {
	room := s.params.ModelLen() - prompt
	if asked == noLimit {
		return room, nil
	}
	if asked < 1 {
		return 0, badRequest("max_tokens", "max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%d)", asked, asked)
	}
	return min(asked, room), nil
}

func checkTemperature(t float64) *apiError {
	if t >= 0 && t <= 2 {
		return nil
	}
	value := pythonFloat(t)
	return badRequest("temperature", "temperature must be in [0, 2], got %s. (parameter=temperature, value=%s)", value, value)
}

// maxChoices bounds n. The engine allows 16,384; here every choice is made up beforehand.
const maxChoices = 128

func checkChoices(n int, temperature float64) *apiError {
	switch {
	case n < 1:
		return badRequest("n", "n must be at least 1, got %d.", n)
	case n > maxChoices:
		return badRequest("n", "n must be at most %d, got %d.", maxChoices, n)
	case n > 1 && temperature == 0:
		return badRequest("", "n must be 1 when using greedy sampling, got %d.", n)
	}
	return nil
}

// charactersPerToken is the length of the longest token of the vocabulary, <|endoftext|>: a
// text of more characters than that many per token is refused unseen.
const charactersPerToken = 13

// render turns a conversation into the model's prompt and checks that it fits.
func (s *Server) render(messages []message, tools []tool) ([]enginesim.Token, *apiError) {
	characters := len("<|im_start|>assistant\n")
	in := make([]enginesim.Message, len(messages))
	for i, m := range messages {
		in[i] = enginesim.Message{Role: m.role, Content: m.content}
		characters += len("<|im_start|>") + len(m.role) + len("\n") + utf8.RuneCountInString(m.content) + len("<|im_end|>\n")
		for _, c := range m.calls {
			in[i].ToolCalls = append(in[i].ToolCalls, enginesim.ToolCall{Name: c.name, Arguments: json.RawMessage(c.arguments)})
		}
	}
	if e := s.checkCharacters(characters); e != nil {
		return nil, e
	}
	offered := make([]json.RawMessage, len(tools))
	for i, t := range tools {
		offered[i] = encode(t.template())
	}
	tokens := s.tokenizer.Render(in, offered, true)
	return tokens, s.checkLength(len(tokens))
}

func (s *Server) checkCharacters(n int) *apiError {
	limit := s.params.ModelLen()
	if n <= limit*charactersPerToken {
		return nil
	}
	return badRequest("input_text", "This model's maximum context length is %d tokens. However, your prompt contains %d characters "+
		"(more than %d characters, which is the upper bound for %d input tokens). Please reduce the length of the input prompt. "+
		"(parameter=input_text, value=%d)", limit, n, limit*charactersPerToken, limit, n)
}

func (s *Server) checkLength(tokens int) *apiError {
	if s.params.CheckPrompt(tokens) == nil {
		return nil
	}
	// The engine stops to tokenize one token behind the limit.
	limit := s.params.ModelLen()
	seen := min(tokens, limit+1)
	return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens, "+
		"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "+
		"(parameter=input_tokens, value=%d)", limit, seen, seen)
}

// result is what became of one sequence.
type result struct {
	tokens int // of its answer
	reason string
}

// whole waits until every sequence is done and returns what became of each.
func (g *generation) whole(ctx context.Context) (usage, []result, error) {
	var u usage
	results := make([]result, len(g.prompts))
	for g.left > 0 {
		events, err := g.next(ctx, 0)
		if err != nil {
			return u, nil, err
		}
		for _, e := range events {
			u.add(e)
			results[e.part].tokens += e.tokens
			results[e.part].reason = e.reason
		}
	}
	return u, results, nil
}

// fingerprint tells the engine's version and its parallel degree.
func (s *Server) fingerprint() string {
	degree := ""
	if ranks := s.process().engine.ranks(); ranks > 1 {
		degree = fmt.Sprintf("-dp%d", ranks)
	}
	return "vllm-" + s.version.text + degree + "-" + s.build
}

// fail answers a request whose generation ended without a result. When the engine died the client is told;
// else it has left, or its connection is cut.
func (s *Server) fail(w http.ResponseWriter, err error, refuse func(http.ResponseWriter, *apiError)) {
	if errors.Is(err, errEngineDead) {
		refuse(w, engineDead(s.version))
	}
}

// failStream ends a chat or completions stream that failed after its headers were sent.
func (s *Server) failStream(out *stream, e *apiError) {
	style := compact
	if !s.version.atLeast(0, 33) {
		style = spaced
	}
	out.raw("data: " + string(appendJSON(nil, e.openAI(), style)) + "\n\n")
	out.done()
}

// requestID is the client's own id of a request, or a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return newID("")
}

// newID returns the prefix and 16 random hexadecimal digits.
func newID(prefix string) string { return fmt.Sprintf("%s%016x", prefix, rand.Uint64()) }

func unixNow() int64 { return time.Now().Unix() }
