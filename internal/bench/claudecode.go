package bench

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// ClaudeCode is the workload of the published measurement: a system prompt that
// all sessions share, a first message of its own, and further turns that resend
// the whole history. Sizes are tokens, Think is seconds.
type ClaudeCode struct {
	SystemTokens int  `json:"system_tokens"`
	FirstTokens  Dist `json:"first_tokens"`
	Turns        int  `json:"turns"`
	TurnTokens   Dist `json:"turn_tokens"` // new in each later turn, the answer before it not counted
	OutputTokens Dist `json:"output_tokens"`
	Think        Dist `json:"think_s"` // before each later turn

	// Agents is how many sub-agents a session starts after its first turn. They
	// share a system prompt of their own, of the same length.
	Agents           int  `json:"agents"`
	AgentTurns       int  `json:"agent_turns"`
	AgentFirstTokens Dist `json:"agent_first_tokens"`

	// Sessionless is the share of requests that belong to no session, 0 to 0.5:
	// short ones that are sent beside a turn, as Claude Code asks for titles.
	Sessionless       float64 `json:"sessionless_share"`
	SessionlessTokens Dist    `json:"sessionless_tokens"`
}

// PublishedWorkload is the workload with the published values.
func PublishedWorkload() ClaudeCode {
	return ClaudeCode{
		SystemTokens: 3500,
		FirstTokens:  Between(7200, 7500),
		Turns:        6,
		TurnTokens:   Always(400),
		OutputTokens: Always(256),

		AgentTurns:        3,
		AgentFirstTokens:  Between(1000, 3000),
		SessionlessTokens: Between(200, 600),
	}
}

// sessionlessOutput is the length of the answer to a request beside a turn.
const sessionlessOutput = 30

// Validate reports the first setting that makes no sense.
func (w ClaudeCode) Validate() error {
	switch {
	case w.SystemTokens < 0:
		return fmt.Errorf("system prompt of %d tokens: give 0 or more", w.SystemTokens)
	case w.Turns < 1:
		return fmt.Errorf("%d turns a session: give at least 1", w.Turns)
	case w.Agents < 0 || w.Agents > 0 && w.AgentTurns < 1:
		return fmt.Errorf("%d sub-agents of %d turns: give 0 or more, of at least 1 turn", w.Agents, w.AgentTurns)
	case !(w.Sessionless >= 0 && w.Sessionless <= 0.5):
		return fmt.Errorf("share of sessionless requests %v: give 0 to 0.5", w.Sessionless)
	}
	return nil
}

// What a content ID names.
const (
	idSession uint64 = iota
	idSystem
	idAgent
	idAgentSystem
	idBeside
	idTurn
	idAnswer
	idText  // of a trace
	idBlock // of a trace
	idEstimate
	idPause
)

// Endless implements Workload.
func (w ClaudeCode) Endless() bool { return true }

// Settings implements Workload.
func (w ClaudeCode) Settings() any {
	return struct {
		Name string `json:"name"`
		ClaudeCode
	}{"claude-code", w}
}

// Session implements Workload.
func (w ClaudeCode) Session(p Place) (Session, bool) {
	drawn := contentID(idSession, p.Seed, uint64(p.Draw), uint64(p.Step), uint64(p.Client), uint64(p.N))
	rng := rand.New(rand.NewPCG(drawn, p.Seed))
	key := contentID(drawn, uint64(p.Arm))
	turns := w.conversation(rng, key, Span{contentID(idSystem, p.Seed), w.SystemTokens}, w.FirstTokens, w.Turns)
	for i := range w.Agents {
		agent := contentID(idAgent, key, uint64(i))
		agentTurns := w.conversation(rng, agent, Span{contentID(idAgentSystem, p.Seed), w.SystemTokens}, w.AgentFirstTokens, w.AgentTurns)
		turns[0].Agents = append(turns[0].Agents, newSession(agent, agentTurns))
	}
	if w.Sessionless > 0 {
		for i := range turns {
			if rng.Float64() < w.Sessionless/(1-w.Sessionless) {
				turns[i].Beside = []Turn{{
					Messages: []Message{{Role: User, Spans: []Span{{contentID(idBeside, key, uint64(i)), w.SessionlessTokens.tokens(rng)}}}},
					Answer:   Span{contentID(idAnswer, idBeside, key, uint64(i)), sessionlessOutput},
				}}
			}
		}
	}
	return newSession(key, turns), true
}

func newSession(key uint64, turns []Turn) Session {
	return Session{Key: key, Turns: len(turns), Turn: func(n int) Turn { return turns[n] }}
}

// conversation makes the turns of a session or a sub-agent.
func (w ClaudeCode) conversation(rng *rand.Rand, key uint64, system Span, first Dist, n int) []Turn {
	var messages []Message
	if system.Tokens > 0 {
		messages = append(messages, Message{Role: SystemRole, Spans: []Span{system}})
	}
	turns := make([]Turn, n)
	known := 0
	for i := range turns {
		user := Span{contentID(idTurn, key, uint64(i)), 0}
		if t := &turns[i]; i == 0 {
			user.Tokens = first.tokens(rng)
		} else {
			user.Tokens = w.TurnTokens.tokens(rng)
			t.Think = time.Duration(w.Think.draw(rng) * float64(time.Second))
		}
		messages = append(messages, Message{Role: User, Spans: []Span{user}})
		answer := Span{contentID(idAnswer, key, uint64(i)), w.OutputTokens.tokens(rng)}
		turns[i].Messages, turns[i].Answer, turns[i].Known = messages, answer, known
		known = promptTokens(messages) + answer.Tokens
		messages = append(messages, Message{Role: Assistant, Spans: []Span{answer}, AnswerOf: i + 1})
	}
	return turns
}
