package bench

import (
	"slices"
	"time"

	"lmwarden/internal/enginesim"
)

// Workload makes sessions. Equal places give equal sessions.
type Workload interface {
	// Session returns the session of a place; false means that there is none left.
	Session(p Place) (Session, bool)
	// Endless says that there is always one more.
	Endless() bool
	// Settings is a struct with json tags that says what the sessions are like.
	Settings() any
}

// Place says where in a measurement a session begins.
type Place struct {
	Seed uint64
	// Arm makes texts and keys of its own: no arm profits from what another left in
	// the caches. Draw is the same in all arms that are to see the same sizes.
	Arm, Draw int
	Step      int
	Client    int // which of the step's sessions at once
	N         int // how many sessions this client had before in the step
	Order     int // how many sessions all clients had before in the step
}

// Session is a conversation and the requests that go with it.
type Session struct {
	Key   uint64 // unique in a measurement
	Turns int
	// Turn returns the n-th turn, from 0.
	Turn func(n int) Turn
}

// Turn is one request of a session.
type Turn struct {
	// Messages are the whole prompt, the newest message last.
	Messages []Message
	// Answer is what the model says: exactly this in virtual time. Live, its length
	// is the most tokens that are asked for.
	Answer Span
	// Known is how many leading tokens of the prompt earlier turns of the session
	// have computed.
	Known int
	// Think is the time between the answer before and this turn.
	Think time.Duration
	// Beside are requests without a session that are sent at the same time.
	Beside []Turn
	// Agents are sub-agents that start when this turn's answer is complete. The
	// next turn waits for all of them.
	Agents []Session
}

// Message is one message of a prompt.
type Message struct {
	Role  Role
	Spans []Span
	// AnswerOf is the turn, from 1, whose answer this is; 0 for none. Live, the
	// answer that really came stands here instead.
	AnswerOf int
}

// Role is who speaks.
type Role string

// Roles of a message.
const (
	SystemRole Role = "system"
	User       Role = "user"
	Assistant  Role = "assistant"
)

// Span is a run of tokens. Spans of one ID have the same content, a longer one
// begins with a shorter one, and spans of different IDs share nothing.
type Span struct {
	ID     uint64
	Tokens int
}

// contentID makes the ID of a span, or the key of a session, from what names it.
func contentID(parts ...uint64) uint64 {
	id := uint64(0)
	for _, p := range parts {
		id = mix(id ^ mix(p))
	}
	return id
}

// mix is the output function of SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// promptTokens is the length of a prompt.
func promptTokens(messages []Message) int {
	n := 0
	for _, m := range messages {
		for _, s := range m.Spans {
			n += s.Tokens
		}
	}
	return n
}

// appendPrompt appends the tokens of a prompt, but for so many at its beginning.
func appendPrompt(dst []enginesim.Token, messages []Message, without int) []enginesim.Token {
	for _, m := range messages {
		for _, s := range m.Spans {
			skip := min(without, s.Tokens)
			without -= skip
			dst = Span{s.ID + uint64(skip), s.Tokens - skip}.appendTokens(dst)
		}
	}
	return dst
}

// appendTokens appends the span's tokens: consecutive numbers from its ID on,
// which IDs far apart do not share.
func (s Span) appendTokens(dst []enginesim.Token) []enginesim.Token {
	n := len(dst)
	dst = slices.Grow(dst, s.Tokens)[:n+s.Tokens]
	for i := range dst[n:] {
		dst[n+i] = enginesim.Token(s.ID + uint64(i))
	}
	return dst
}
