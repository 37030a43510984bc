package stats

import "time"

// Unmeasured stands for a token count that no engine reported.
const Unmeasured = -1

// Replicas that are none.
const (
	EngineChosen = -1 // the engine's balancer picked the replica
	NoReplica    = -2 // no replica was chosen
)

// Record is one finished request.
type Record struct {
	Time  time.Time // of its end
	Model string    // the pool's name, empty when the request named none that exists
	// Replica is an index, EngineChosen or NoReplica. From is the home that the
	// conversation had before a move, or that was full at a spill; NoReplica when
	// there was none.
	Replica, From int
	// Conversation and Parent are names as session.Key.Name makes them
	// ("c-71f2a09c4d5e"), empty for none.
	Conversation, Parent string
	Client               string // the program, or empty
	Reason, Why          string // of the decision, as routing names them; empty when there was none
	Outcome              string // as proxy names it
	// TTFB is 0 when no byte of an answer was sent. Duration runs from the
	// request's arrival to Time.
	TTFB, Duration time.Duration
	// Waited is how long of it the gateway held the request; 0 when it did not.
	Waited time.Duration
	// Prompt, Cached and Completion are the engine's own counts, or Unmeasured.
	Prompt, Cached, Completion int64
	// Cause says why the turn was not cached, as internal/cause names it; empty
	// when nobody asked. Reread is the tokens that the engine had to read again
	// for it.
	Cause  string
	Reread int64
	// Changed is where the client's prompt differs from that of the turn before,
	// when that is the cause.
	Changed Change
}

// Change is a place in a prompt. The zero Change is none.
type Change struct {
	// Part is what holds the place: "system", "tools", "message", or "attribution"
	// for Claude Code's attribution line. Empty for none.
	Part string
	// Message counts from 0 in the history, for the part "message".
	Message int
	// Byte is where that message or part begins in the request's body, or -1 when it
	// is not known.
	Byte int64
	// Offset is the first byte of it that may differ, -1 when it is not known; one of
	// the Within bytes from there on does.
	Offset, Within int64
}

// Sample is one replica at one moment.
type Sample struct {
	Time    time.Time
	Model   string
	Replica int
	// Running and Waiting are the engine's own, -1 when not known.
	Running, Waiting int
	// KVUsed is the part of the cache in use, 0 to 1; negative or NaN when not known.
	KVUsed        float64
	InFlight      int
	Conversations int // live
}

// Tokens are sums over requests.
type Tokens struct {
	// Cached is what engines reported as read from their cache. Computed is the
	// rest of the prompts, with those that no engine measured.
	Cached, Computed int64
	// Unmeasured is the part of Computed for which no engine told what was cached.
	Unmeasured int64
	Completion int64
}

// CachedPercent is the cached share of the prompts, 0 to 100; ok is false while
// there are none.
func (t Tokens) CachedPercent() (percent float64, ok bool) {
	if t.Cached+t.Computed == 0 {
		return 0, false
	}
	return 100 * float64(t.Cached) / float64(t.Cached+t.Computed), true
}

func (t Tokens) all() int64 { return t.Cached + t.Computed + t.Completion }

func (t Tokens) plus(o Tokens) Tokens {
	return Tokens{t.Cached + o.Cached, t.Computed + o.Computed, t.Unmeasured + o.Unmeasured, t.Completion + o.Completion}
}

// tokens splits a request's tokens. An engine's nonsense (below zero, more cached
// than asked for) is bent, so that no sum falls.
func (r *Record) tokens() Tokens {
	prompt := max(r.Prompt, 0)
	t := Tokens{Completion: max(r.Completion, 0)}
	if r.Cached < 0 {
		t.Computed, t.Unmeasured = prompt, prompt
		return t
	}
	t.Cached = min(r.Cached, prompt)
	t.Computed = prompt - t.Cached
	return t
}
