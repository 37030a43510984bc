package routing

import (
	"testing"
	"time"
)

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

// One estimate that is far off does not spoil the next.
func TestAnEstimateIsOneOfMany(t *testing.T) {
	c, err := New(Options{Policy: "patience", Replicas: []Replica{{}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	id := RequestID(0)
	turn := func(tokens int64) int64 {
		id++
		c.Arrive(now, Request{ID: id, Key: Key{1}, Pin: None, Tokens: tokens})
		guessed := c.requests[id].guess.byText
		c.Finish(now, id, Outcome{OK: true, Known: true, Prompt: 1000})
		return guessed
	}
	for range 40 {
		turn(1000)
	}
	turn(100)
	if got := turn(1000); got > 2000 {
		t.Errorf("after one estimate of a tenth the next says %d tokens, want at most twice the right 1000", got)
	}
}
