package routing

import "math"

// prompts predicts the length of prompts: of first turns, or of later ones. There
// are two ways, and the one is taken that was closer of late. The text says a
// length, which is off where a token has more or fewer bytes than usual; and
// prompts grow by about as much each time, which is off where they do not.
type prompts struct {
	growth             average // tokens beyond the context before, which a first turn has none of
	textOff, growthOff average // mean distance of either way, as a share of the prompt
}

// guess is what is expected of a prompt, in tokens; 0 is not known.
type guess struct{ byText, byGrowth, best int64 }

const (
	// enoughPrompts is how many prompts must have been compared before growth is
	// trusted.
	enoughPrompts = 8
	// unusual is how many of its usual distances the text must be away to be right
	// after all: the history was compacted, or a file came in.
	unusual = 4
)

// prompts are the like of q's.
func (l *learned) prompts(q *request) *prompts {
	if q.context > 0 {
		return &l.later
	}
	return &l.first
}

// guess predicts a prompt from its text and from the context of the conversation
// before it.
func (p *prompts) guess(byText, context int64) guess {
	g := guess{byText: byText, best: byText}
	if context > 0 || p.growth.samples > 0 {
		g.byGrowth = context + int64(p.growth.or(0))
	}
	usual := math.Abs(float64(byText-g.byGrowth)) <= unusual*p.textOff.value*float64(g.byGrowth)
	if byText == 0 || usual && p.growthOff.samples >= enoughPrompts && p.growthOff.value < p.textOff.value {
		g.best = g.byGrowth
	}
	return g
}

// learn compares a guess with the engine's count.
func (p *prompts) learn(g guess, context, prompt int64) {
	const weight = 1.0 / 32
	off := func(guessed int64) float64 { return math.Abs(float64(guessed-prompt)) / float64(prompt) }
	if g.byText > 0 {
		p.textOff.add(off(g.byText), weight)
	}
	if p.growth.samples > 0 {
		p.growthOff.add(off(g.byGrowth), weight)
	}
	p.growth.add(float64(prompt-context), weight)
}
