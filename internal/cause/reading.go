package cause

import (
	"hash/maphash"

	"lmwarden/internal/llmapi"
)

// Reading is what the body of a request told beyond its facts: hashes of the pieces
// of its texts, and the first place at which it differs from the turn before.
type Reading struct {
	system, tools pieces
	messages      []pieces // as Prompt.Messages
	// at is the place, and since the turn that the body was compared with, by its
	// number in the book; 0 for none.
	at    Place
	since int64
}

// size is what a reading takes in bytes, at most: what it shares with earlier ones
// is counted.
func (r *Reading) size() int {
	if r == nil {
		return 0
	}
	const one = 32 // a pieces itself
	n := one*(len(r.messages)+2) + 4*(len(r.system.sums)+len(r.tools.sums))
	for i := range r.messages {
		n += 4 * len(r.messages[i].sums)
	}
	return n
}

// read makes the reading of a prompt from its body. What is known from the turn
// before is taken from there, so each text is read once. last is nil when there is
// none.
func read(r *Reading, last *Turn, f *llmapi.Facts, body []byte, seed maphash.Seed) {
	var before Prompt
	known := &Reading{}
	if last != nil && last.Sent.Read != nil {
		before, known = last.Sent, last.Sent.Read
		r.at = changedAt(known, &before, f, body, seed)
	}
	if r.system = known.system; before.System != f.SystemSent {
		r.system = cut(seed, body, f.SystemTexts)
	}
	if r.tools = known.tools; before.Tools != f.ToolsSent {
		r.tools = cut(seed, body, f.ToolsTexts)
	}
	r.messages = make([]pieces, len(f.Sent))
	for i, m := range f.Sent {
		if i < len(known.messages) && before.Messages[i].Hash == m.Hash {
			r.messages[i] = known.messages[i]
		} else {
			r.messages[i] = cut(seed, body, f.TextsOf(i))
		}
	}
}

// changedAt is the first place at which a prompt differs from the one before it,
// which is known.
func changedAt(known *Reading, before *Prompt, f *llmapi.Facts, body []byte, seed maphash.Seed) Place {
	now := PromptOf(f)
	place, changed := parts(before, &now)
	if !changed {
		return Place{}
	}
	var was pieces
	var text []llmapi.Text
	switch place.Part {
	case PartSystem:
		was, text = known.system, f.SystemTexts
	case PartTools:
		was, text = known.tools, f.ToolsTexts
	case PartMessage:
		if place.Message < len(f.Sent) {
			was, text = known.messages[place.Message], f.TextsOf(place.Message)
		}
	}
	if len(text) == 0 {
		return place
	}
	if place.Byte < 0 {
		place.Byte = int64(text[0].From)
	}
	if from, to, ok := was.differs(seed, body, text); ok {
		place.Offset, place.Within = int64(from)-place.Byte, int64(to-from)
	}
	return place
}
