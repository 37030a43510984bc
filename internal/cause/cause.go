// Package cause tells why a turn was not cached. It compares what the engine read
// from its cache with what the turn before left there, and names the cause by the
// evidence at hand: our own decision, the engine's restart, a prompt that the
// client changed, a cache that was full. It decides nothing, and keeps of a
// conversation only what its last turn left (Book), no text.
//
// Where to look: cause.go has the rule, desk.go the goroutine that applies it, book.go
// what is remembered; pieces.go cuts a text into what is kept of it, reading.go
// does that with the texts of a body and finds the place at which they changed.
package cause

import (
	"time"

	"lmwarden/internal/llmapi"
)

// Cause is why a turn was not cached. The list is closed.
type Cause string

const (
	Fine      Cause = "fine"           // it was: all that was left, but for what is below notice
	First     Cause = "first"          // no turn before it is known
	Moved     Cause = "moved"          // the gateway gave the conversation another home
	Spilled   Cause = "spilled"        // its home was full, or the turn before was elsewhere for that reason
	Balanced  Cause = "balanced"       // the engine's own balancer, or the client's pin, chose the replica
	Restarted Cause = "restarted"      // the engine's process is another one
	Changed   Cause = "changed-prompt" // the client changed what it had sent before
	Evicted   Cause = "evicted"        // none of these, and the replica's cache was full
	Unknown   Cause = "unknown"        // none of these
)

// Turn is one answered turn whose cached tokens the engine told.
type Turn struct {
	End                        time.Time
	Prompt, Cached, Completion int64 // tokens
	// Replica is where it ran; negative when the engine's balancer chose.
	Replica int
	// Reason is that of the decision, as package routing names it.
	Reason string
	// Cold is set when the engine restarted since the conversation's last turn.
	Cold bool
	Sent Prompt
}

// Prompt is what tells two prompts apart.
type Prompt struct {
	System, Tools, Attribution uint64 // hashes, as llmapi.Facts has them
	Messages                   []llmapi.Sent
	Read                       *Reading // of the body; nil when nobody read it
}

// PromptOf takes from a request's facts what is compared. It shares their
// messages.
func PromptOf(f *llmapi.Facts) Prompt {
	return Prompt{System: f.SystemSent, Tools: f.ToolsSent, Attribution: f.Attribution, Messages: f.Sent}
}

// Cache is what is known of the cache of the replica that a turn ran on.
type Cache struct {
	// Block is its block size in tokens; 0 means that of vLLM, 16.
	Block int64
	// Full is when it was last seen full; zero for never.
	Full time.Time
}

// Verdict is the cause of one turn.
type Verdict struct {
	Cause Cause
	// Reread is the tokens that were left in a cache and were computed again; 0 for
	// Fine and First.
	Reread int64
	// At is where the client changed its prompt, for Changed.
	At Place
}

// Place is a place in a prompt.
type Place struct {
	// Part is PartAttribution, PartSystem, PartTools or PartMessage.
	Part    string
	Message int   // for PartMessage: counted from 0 after the leading system text
	Byte    int64 // where that message or part begins in the request's body; -1 when not known
	// Offset is the first byte of it that may differ, -1 when not known; it is one of
	// the Within bytes from there on that does. With 0 of them the text ends there.
	Offset, Within int64
}

func placeOf(part string, message int, at int64) Place {
	return Place{Part: part, Message: message, Byte: at, Offset: -1}
}

const (
	PartAttribution = "attribution" // the line that Claude Code puts before its system text
	PartSystem      = "system"
	PartTools       = "tools"
	PartMessage     = "message"
)

// defaultBlock is vLLM's block size.
const defaultBlock = 16

// Of names the cause of a turn, given the conversation's turn before it, nil for
// none.
//
// A turn leaves its prompt and its answer in whole blocks, and at most all but one
// token of a prompt can be found: cached = floor(min(common, prompt - 1) / B) * B.
// The answer is not counted on, since clients send it back in other tokens; so
// what must be found is the prompt of the turn before.
func Of(before *Turn, now *Turn, c Cache) Verdict {
	if before == nil {
		return Verdict{Cause: First}
	}
	block := c.Block
	if block <= 0 {
		block = defaultBlock
	}
	left := max(min(before.Prompt, now.Prompt-1)/block*block, 0)
	missing := left - max(now.Cached, 0)
	if missing <= max(2*block, left/20) {
		return Verdict{Cause: Fine}
	}
	v := Verdict{Cause: Unknown, Reread: missing}
	elsewhere := now.Replica != before.Replica
	place, changed := parts(&before.Sent, &now.Sent)
	switch {
	case now.Replica < 0 || elsewhere && (before.Replica < 0 || now.Reason == "pinned" || before.Reason == "pinned"):
		// Whether it ran where it had run before is not known, or was not our choice;
		// but a changed prompt is seen all the same.
		v.Cause = Balanced
		if changed {
			v.Cause, v.At = Changed, place
		}
	case elsewhere && now.Reason == "moved":
		v.Cause = Moved
	case elsewhere && (now.Reason == "spilled" || before.Reason == "spilled"):
		v.Cause = Spilled
	case elsewhere: // placed anew, as after it was released
		v.Cause = Moved
	case now.Cold:
		v.Cause = Restarted
	case changed:
		v.Cause, v.At = Changed, place
	case !c.Full.IsZero() && !c.Full.Before(before.End):
		v.Cause = Evicted
	}
	return v
}

// parts finds the first place at which a prompt differs from the one before that
// it should continue.
func parts(before, now *Prompt) (Place, bool) {
	switch {
	case before.System != now.System && before.Attribution != now.Attribution:
		return placeOf(PartAttribution, 0, -1), true
	case before.System != now.System:
		return placeOf(PartSystem, 0, -1), true
	case before.Tools != now.Tools:
		return placeOf(PartTools, 0, -1), true
	}
	for i, m := range before.Messages {
		if i >= len(now.Messages) {
			return placeOf(PartMessage, i, -1), true // it ends before
		}
		if m.Hash != now.Messages[i].Hash {
			return placeOf(PartMessage, i, int64(now.Messages[i].At)), true
		}
	}
	return Place{}, false
}
