package routing

import "testing"

// Of the two ways to guess a prompt the one is taken that was closer of late.
func TestPromptsAreGuessedTheCloserWay(t *testing.T) {
	const context = 10_000
	learn := func(texts ...int64) *prompts {
		p := &prompts{}
		for i := range 20 {
			g := p.guess(texts[i%len(texts)], context)
			p.learn(g, context, context+500)
		}
		return p
	}
	tests := []struct {
		name string
		p    *prompts
		text int64
		want int64
	}{
		{"nothing is known but the text", &prompts{}, 9000, 9000},
		{"nothing is known but the context", &prompts{}, 0, context},
		{"the text is exact", learn(10_500), 12_000, 12_000},
		{"the text is far off", learn(8000, 13_000), 12_000, 10_500},
		{"the text says another prompt", learn(10_000, 11_000), 4000, 4000},
		{"there is no text", learn(10_500), 0, 10_500},
	}
	for _, test := range tests {
		if got := test.p.guess(test.text, context).best; got != test.want {
			t.Errorf("%s: guessed %d, want %d", test.name, got, test.want)
		}
	}
}
