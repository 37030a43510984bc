package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Trace is a workload from files: recorded sessions with their prefix structure,
// replayed in a closed loop, each once in a step. The seed says with which
// session a step begins; the others follow in the order of the files.
type Trace struct {
	name     string
	options  TraceOptions
	sessions []traceSession
}

// TraceOptions say how a trace is replayed.
type TraceOptions struct {
	// MaxThink bounds the recorded times between an answer and the next turn.
	MaxThink time.Duration
	// BytesPerToken is how recorded text is measured.
	BytesPerToken int
}

// traceSession is a recorded session or sub-agent.
type traceSession struct {
	id    uint64
	turns []traceTurn
}

type traceTurn struct {
	prompt []piece // the whole one
	answer piece
	think  time.Duration
	agents []traceSession // after the answer
}

// piece is recorded content: blocks with consecutive numbers, all of one size.
// Equal scope and number is equal content.
type piece struct {
	role   Role
	scope  uint64
	first  uint64
	blocks int
	tokens int // of each block
	// shared content is the same in all arms and steps, as a system prompt is.
	shared   bool
	answerOf int // as in Message
}

// ReadTrace reads sessions from files of JSON lines, whose form shows in their
// first line:
//
//	Weka       {"id", "block_size", "requests": [{"in", "out", "hash_ranges" or "hash_ids", "think_time"}]}
//	Mooncake   {"timestamp", "input_length", "output_length", "hash_ids"}, perhaps with "session_id" and "delay"
//	AIPerf     {"session_id", "turns": [{"text", "delay", "output_length"}]} (its multi_turn form)
//	chat       {"id", "messages": [{"role", "content"}]}
//
// Errors name file and line.
func ReadTrace(paths []string, o TraceOptions) (*Trace, error) {
	if o.MaxThink < 0 || o.BytesPerToken < 1 {
		return nil, fmt.Errorf("think time of at most %v and %d bytes a token: give 0 or more, and at least 1", o.MaxThink, o.BytesPerToken)
	}
	t := &Trace{options: o}
	for _, path := range paths {
		sessions, err := readTraceFile(path, o)
		if err != nil {
			return nil, fmt.Errorf("read trace: %w", err)
		}
		t.sessions = append(t.sessions, sessions...)
		if t.name != "" {
			t.name += ", "
		}
		t.name += filepath.Base(path)
	}
	if len(t.sessions) == 0 {
		return nil, fmt.Errorf("the trace %s has no sessions", t.name)
	}
	return t, nil
}

// maxTraceLine bounds one line; the longest known has 1 MB.
const maxTraceLine = 64 << 20

func readTraceFile(path string, o TraceOptions) ([]traceSession, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxTraceLine)
	var form traceForm
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if form == nil {
			form, err = formOf(line, o)
		}
		if err == nil {
			err = form.line(line)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("the line is longer than %d MB", maxTraceLine>>20)
		}
		return nil, fmt.Errorf("%s:%d: %w", path, n+1, err)
	}
	if form == nil {
		return nil, fmt.Errorf("%s: %w", path, io.ErrUnexpectedEOF)
	}
	return form.sessions(), nil
}

// traceForm reads one file.
type traceForm interface {
	line(line []byte) error
	sessions() []traceSession
}

// formOf recognises the form of a file by its first line.
func formOf(line []byte, o TraceOptions) (traceForm, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(line, &keys); err != nil {
		return nil, err
	}
	has := func(name string) bool { _, ok := keys[name]; return ok }
	switch {
	case has("requests"):
		return &wekaForm{options: o}, nil
	case has("input_length"):
		return newMooncakeForm(o), nil
	case has("turns"):
		return newAIPerfForm(o), nil
	case has("messages"):
		return &chatForm{options: o}, nil
	}
	return nil, errors.New("unknown form of trace: the first line has none of the keys requests (Weka), input_length (Mooncake), turns (AIPerf) and messages (chat)")
}

// Endless implements Workload.
func (t *Trace) Endless() bool { return false }

// Settings implements Workload.
func (t *Trace) Settings() any {
	return struct {
		Name          string  `json:"name"`
		Files         string  `json:"files"`
		Sessions      int     `json:"sessions"`
		MaxThinkS     float64 `json:"max_think_s"`
		BytesPerToken int     `json:"bytes_per_token"`
	}{"trace", t.name, len(t.sessions), t.options.MaxThink.Seconds(), t.options.BytesPerToken}
}

// Session implements Workload.
func (t *Trace) Session(p Place) (Session, bool) {
	n := uint64(len(t.sessions))
	if uint64(p.Order) >= n {
		return Session{}, false
	}
	start := contentID(p.Seed, uint64(p.Draw)) % n
	s := &t.sessions[(start+uint64(p.Order))%n]
	return s.replay(salts{own: contentID(p.Seed, uint64(p.Arm), uint64(p.Step)), shared: contentID(p.Seed)}), true
}

// salts keep the content of arms and steps apart.
type salts struct{ own, shared uint64 }

func (s *traceSession) replay(salt salts) Session {
	return Session{
		Key: contentID(idSession, salt.own, s.id), Turns: len(s.turns),
		Turn: func(n int) Turn {
			t := &s.turns[n]
			turn := Turn{Messages: messagesOf(t.prompt, salt), Think: t.think, Answer: t.answer.spans(salt)[0]}
			if n > 0 {
				turn.Known = commonTokens(s.turns[n-1], t.prompt)
			}
			for i := range t.agents {
				turn.Agents = append(turn.Agents, t.agents[i].replay(salt))
			}
			return turn
		},
	}
}

func messagesOf(prompt []piece, salt salts) []Message {
	messages := make([]Message, len(prompt))
	for i, r := range prompt {
		messages[i] = Message{Role: r.role, Spans: r.spans(salt), AnswerOf: r.answerOf}
	}
	return messages
}

func (p piece) spans(salt salts) []Span {
	base := contentID(salt.own, p.scope)
	if p.shared {
		base = contentID(salt.shared, p.scope)
	}
	spans := make([]Span, p.blocks)
	for i := range spans {
		spans[i] = Span{mix(base ^ mix(p.first+uint64(i))), p.tokens}
	}
	return spans
}

// commonTokens is how many leading tokens of a prompt stood in the turn before:
// in its prompt, and in its answer where the trace says what that was.
func commonTokens(before traceTurn, prompt []piece) int {
	total := 0
	old := append(before.prompt[:len(before.prompt):len(before.prompt)], before.answer)
	for i := 0; i < len(old) && i < len(prompt); i++ {
		a, b := old[i], prompt[i]
		if a.scope != b.scope || a.first != b.first || a.shared != b.shared {
			break
		}
		if a.tokens != b.tokens {
			total += min(a.tokens, b.tokens)
			break
		}
		total += min(a.blocks, b.blocks) * a.tokens
		if a.blocks != b.blocks {
			break
		}
	}
	return total
}

// textPiece is content that was recorded as text.
func textPiece(role Role, text string, bytesPerToken int) piece {
	return piece{
		role: role, scope: idText, first: xxhash.Sum64String(text), blocks: 1,
		tokens: max((len(text)+bytesPerToken-1)/bytesPerToken, 1),
	}
}
