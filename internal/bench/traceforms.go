package bench

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
)

// maxTraceTokens bounds the prompts and answers of a trace.
const maxTraceTokens = 10_000_000

// appendBlocks appends a piece, joined to the last one where it goes on from it.
func appendBlocks(blocks []piece, p piece) []piece {
	if n := len(blocks); n > 0 {
		if last := &blocks[n-1]; last.scope == p.scope && last.shared == p.shared && last.first+uint64(last.blocks) == p.first {
			last.blocks += p.blocks
			return blocks
		}
	}
	return append(blocks, p)
}

// blockPrompt is a prompt of so many tokens: blocks as far as they go, and then
// content that nothing else has.
func blockPrompt(blocks []piece, size, tokens int, unique piece) []piece {
	var prompt []piece
	left := tokens
	for _, r := range blocks {
		whole := min(r.blocks, left/size)
		if whole > 0 {
			w := r
			w.blocks, w.tokens = whole, size
			prompt = append(prompt, w)
			left -= whole * size
		}
		if whole < r.blocks {
			if left > 0 { // a part of a block is content of it
				r.first, r.blocks, r.tokens = r.first+uint64(whole), 1, left
				prompt = append(prompt, r)
			}
			return prompt
		}
	}
	if left > 0 {
		unique.blocks, unique.tokens = 1, left
		prompt = append(prompt, unique)
	}
	return prompt
}

// uniquePiece is content of one request that no other has.
func uniquePiece(role Role, session uint64, what, n int) piece {
	return piece{role: role, scope: contentID(idTurn, session, uint64(what)), first: uint64(n), blocks: 1}
}

// What of a request is unique.
const (
	uniqueTail = iota
	uniqueAnswer
)

// tokensOf checks a recorded number of tokens.
func tokensOf(name string, n int) error {
	if n < 1 || n > maxTraceTokens {
		return fmt.Errorf("%s is %d: it must be between 1 and %d tokens", name, n, maxTraceTokens)
	}
	return nil
}

// think is a recorded time, bounded; one that is missing or makes no sense is 0.
func (o TraceOptions) think(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	return time.Duration(min(s, o.MaxThink.Seconds()) * float64(time.Second))
}

// wekaForm is Claude Code sessions with sub-agents, one a line. Block numbers
// count within a session; the tools and the system prompt at the beginning, given
// as a length, are shared by the sessions that have them of the same length.
type wekaForm struct {
	options TraceOptions
	read    []traceSession
}

type wekaRequest struct {
	Type   string      `json:"type"`
	In     int         `json:"in"`
	Out    int         `json:"out"`
	Think  float64     `json:"think_time"`
	Ranges [][2]uint64 `json:"hash_ranges"`
	IDs    []uint64    `json:"hash_ids"`
	// Of a sub-agent:
	Tools    int           `json:"tool_tokens"`
	System   int           `json:"system_tokens"`
	Requests []wekaRequest `json:"requests"`
}

func (f *wekaForm) sessions() []traceSession { return f.read }

func (f *wekaForm) line(line []byte) error {
	var s struct {
		ID       string        `json:"id"`
		Block    int           `json:"block_size"`
		Tools    int           `json:"tool_tokens"`
		System   int           `json:"system_tokens"`
		Requests []wekaRequest `json:"requests"`
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return err
	}
	if s.Block < 1 || s.Block > maxTraceTokens {
		return fmt.Errorf("block_size is %d: it must be at least 1", s.Block)
	}
	id := contentID(idSession, uint64(len(f.read)), xxhash.Sum64String(s.ID))
	session, err := f.session(id, id, s.Block, s.Tools, s.System, s.Requests)
	if err != nil {
		return err
	}
	if len(session.turns) > 0 {
		f.read = append(f.read, session)
	}
	return nil
}

// session reads the requests of a session or sub-agent; scope is that of their
// block numbers.
func (f *wekaForm) session(id, scope uint64, block, tools, system int, requests []wekaRequest) (traceSession, error) {
	s := traceSession{id: id}
	var early []traceSession // sub-agents before any request
	for i, r := range requests {
		if r.Type == "subagent" {
			agent, err := f.session(contentID(idAgent, id, uint64(i)), scope, block, r.Tools, r.System, r.Requests)
			if err != nil {
				return s, fmt.Errorf("requests[%d]: %w", i, err)
			}
			switch n := len(s.turns); {
			case len(agent.turns) == 0:
			case n == 0:
				early = append(early, agent)
			default:
				s.turns[n-1].agents = append(s.turns[n-1].agents, agent)
			}
			continue
		}
		blocks, err := f.blocks(scope, block, tools, system, r)
		if err == nil {
			err = tokensOf("in", r.In)
		}
		if err != nil {
			return s, fmt.Errorf("requests[%d]: %w", i, err)
		}
		answer := uniquePiece(Assistant, id, uniqueAnswer, i)
		answer.tokens = min(max(r.Out, 1), maxTraceTokens) // some recorded answers are empty
		s.turns = append(s.turns, traceTurn{
			prompt: blockPrompt(blocks, block, r.In, uniquePiece(User, id, uniqueTail, i)),
			answer: answer, think: f.options.think(r.Think),
		})
	}
	if len(s.turns) > 0 {
		s.turns[0].think = 0
		s.turns[0].agents = append(early, s.turns[0].agents...)
	}
	return s, nil
}

// blocks are the recorded blocks of a request, those of tools and system prompt
// as shared ones.
func (f *wekaForm) blocks(scope uint64, size, tools, system int, r wekaRequest) ([]piece, error) {
	ranges := r.Ranges
	for _, id := range r.IDs {
		ranges = append(ranges, [2]uint64{id, id})
	}
	var blocks []piece
	common := max(tools+system, 0) / size
	at := 0
	for _, g := range ranges {
		if g[1] < g[0] || g[1]-g[0] >= maxTraceTokens {
			return nil, fmt.Errorf("hash_ranges has [%d, %d]: a range goes up, by less than %d", g[0], g[1], maxTraceTokens)
		}
		n := int(g[1] - g[0] + 1)
		if at < common {
			k := min(n, common-at)
			blocks = appendBlocks(blocks, piece{
				role: SystemRole, scope: contentID(idSystem, uint64(tools), uint64(system)), first: uint64(at), blocks: k, shared: true,
			})
			g[0] += uint64(k)
			n -= k
			at += k
		}
		if n > 0 {
			blocks = appendBlocks(blocks, piece{role: User, scope: scope, first: g[0], blocks: n})
			at += n
		}
	}
	return blocks, nil
}

// mooncakeForm is requests with blocks of 512 tokens whose numbers count over the
// whole file. Where no session is given, a request belongs to the latest one of
// which it holds all blocks but the last, at least two.
type mooncakeForm struct {
	options TraceOptions
	read    []traceSession
	given   map[string]*mooncakeSession
	byTail  map[uint64]mooncakeTail // by the chain over all blocks of a prompt but the last
}

const mooncakeBlock = 512

type mooncakeSession struct {
	index  int // in read
	ids    []uint64
	tokens int
}

type mooncakeTail struct {
	session, tokens int
	at              float64 // s
}

func newMooncakeForm(o TraceOptions) *mooncakeForm {
	return &mooncakeForm{options: o, given: map[string]*mooncakeSession{}, byTail: map[uint64]mooncakeTail{}}
}

func (f *mooncakeForm) sessions() []traceSession { return f.read }

func (f *mooncakeForm) line(line []byte) error {
	var r struct {
		Timestamp float64  `json:"timestamp"` // ms
		In        int      `json:"input_length"`
		Out       int      `json:"output_length"`
		IDs       []uint64 `json:"hash_ids"`
		Session   string   `json:"session_id"`
		Delay     float64  `json:"delay"` // ms
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	if err := tokensOf("input_length", r.In); err != nil {
		return err
	}
	ids, tokens, index, think := r.IDs, r.In, len(f.read), f.options.think(r.Delay/1000)
	if r.Session == "" {
		index, think = f.infer(ids, r.In, r.Timestamp/1000)
	} else {
		// Lengths and blocks are those of the turn alone.
		s := f.given[r.Session]
		if s == nil {
			s = &mooncakeSession{index: index}
			f.given[r.Session] = s
		}
		s.ids, s.tokens = append(s.ids, ids...), s.tokens+r.In
		ids, tokens, index = s.ids[:len(s.ids):len(s.ids)], s.tokens, s.index
		s.tokens += max(r.Out, 0)
		if err := tokensOf("input_length of the whole session", tokens); err != nil {
			return err
		}
	}
	if index == len(f.read) {
		f.read = append(f.read, traceSession{id: uint64(index)})
		think = 0
	}
	s := &f.read[index]
	n := len(s.turns)
	var blocks []piece
	for _, id := range ids {
		blocks = appendBlocks(blocks, piece{role: User, scope: idBlock, first: id, blocks: 1})
	}
	answer := uniquePiece(Assistant, s.id, uniqueAnswer, n)
	answer.tokens = min(max(r.Out, 1), maxTraceTokens)
	s.turns = append(s.turns, traceTurn{
		prompt: blockPrompt(blocks, mooncakeBlock, tokens, uniquePiece(User, s.id, uniqueTail, n)), answer: answer, think: think,
	})
	return nil
}

// infer finds the session of a request, or says that it is a new one.
func (f *mooncakeForm) infer(ids []uint64, tokens int, at float64) (index int, think time.Duration) {
	index = len(f.read)
	chain := make([]uint64, len(ids))
	h := uint64(0)
	for i, id := range ids {
		h = contentID(h, id)
		chain[i] = h
	}
	for k := len(ids) - 1; k >= 2; k-- {
		if before, ok := f.byTail[chain[k-1]]; ok && before.tokens < tokens {
			index, think = before.session, f.options.think(at-before.at)
			break
		}
	}
	if n := len(ids); n >= 3 {
		f.byTail[chain[n-2]] = mooncakeTail{index, tokens, at}
	}
	return index, think
}

// aiperfForm is AIPerf's multi_turn form: user turns with text; the answers are
// the model's.
type aiperfForm struct {
	options TraceOptions
	read    []traceSession
	byID    map[string]int // index in read
}

// aiperfAnswer is the length in tokens of an answer of which nothing is said.
const aiperfAnswer = 256

func newAIPerfForm(o TraceOptions) *aiperfForm {
	return &aiperfForm{options: o, byID: map[string]int{}}
}

func (f *aiperfForm) sessions() []traceSession { return f.read }

func (f *aiperfForm) line(line []byte) error {
	var s struct {
		ID    string `json:"session_id"`
		Turns []struct {
			Text   string          `json:"text"`
			Texts  json.RawMessage `json:"texts"`
			Delay  float64         `json:"delay"` // ms
			Output int             `json:"output_length"`
			Role   Role            `json:"role"`
		} `json:"turns"`
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return err
	}
	if len(s.Turns) == 0 {
		return fmt.Errorf("session %q has no turns", s.ID)
	}
	index, known := f.byID[s.ID]
	if !known || s.ID == "" {
		index = len(f.read)
		f.byID[s.ID] = index
		f.read = append(f.read, traceSession{id: uint64(index)})
	}
	session := &f.read[index]
	for i, t := range s.Turns {
		text := t.Text
		if len(t.Texts) > 0 {
			text += string(t.Texts) // as long as what is in it, but for some marks
		}
		if text == "" {
			return fmt.Errorf("turns[%d] has neither text nor texts", i)
		}
		if t.Role == "" {
			t.Role = User
		}
		if t.Output == 0 {
			t.Output = aiperfAnswer
		}
		if err := tokensOf("output_length", t.Output); err != nil {
			return fmt.Errorf("turns[%d]: %w", i, err)
		}
		turn := traceTurn{think: f.options.think(t.Delay / 1000)}
		n := len(session.turns)
		if n > 0 {
			before := session.turns[n-1]
			answer := before.answer
			answer.answerOf = n
			turn.prompt = append(turn.prompt, before.prompt...)
			turn.prompt = append(turn.prompt, answer)
		} else {
			turn.think = 0
		}
		turn.prompt = append(turn.prompt, textPiece(t.Role, text, f.options.BytesPerToken))
		turn.answer = uniquePiece(Assistant, session.id, uniqueAnswer, n)
		turn.answer.tokens = t.Output
		session.turns = append(session.turns, turn)
	}
	return nil
}

// chatForm is whole conversations; each message of the assistant was the answer
// to what stands before it.
type chatForm struct {
	options TraceOptions
	read    []traceSession
}

func (f *chatForm) sessions() []traceSession { return f.read }

func (f *chatForm) line(line []byte) error {
	var c struct {
		Messages []struct {
			Role    Role            `json:"role"`
			Content json.RawMessage `json:"content"`
			Calls   json.RawMessage `json:"tool_calls"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(line, &c); err != nil {
		return err
	}
	s := traceSession{id: uint64(len(f.read))}
	var prompt []piece
	for i, m := range c.Messages {
		if m.Role == "" {
			return fmt.Errorf("messages[%d] has no role", i)
		}
		var text string
		if json.Unmarshal(m.Content, &text) != nil {
			text = string(m.Content) // parts
		}
		r := textPiece(m.Role, string(m.Role)+"\n"+text+string(m.Calls), f.options.BytesPerToken)
		if m.Role == Assistant && i > 0 {
			s.turns = append(s.turns, traceTurn{prompt: prompt[:len(prompt):len(prompt)], answer: r})
			r.answerOf = len(s.turns)
		}
		prompt = append(prompt, r)
	}
	if len(s.turns) > 0 {
		f.read = append(f.read, s)
	}
	return nil
}
