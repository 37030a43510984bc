package bench

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lmwarden/internal/enginesim"
)

func TestPublishedPrompts(t *testing.T) {
	s, ok := PublishedWorkload().Session(Place{Seed: 1})
	if !ok || s.Turns != 6 {
		t.Fatalf("session of %d turns, %v", s.Turns, ok)
	}
	first := promptTokens(s.Turn(0).Messages)
	if first < 3500+7200 || first > 3500+7500 {
		t.Errorf("the first prompt has %d tokens, published are 10,700 to 11,000", first)
	}
	for n := range s.Turns {
		turn := s.Turn(n)
		if got, want := promptTokens(turn.Messages), first+n*656; got != want {
			t.Errorf("turn %d has %d tokens, want %d", n+1, got, want)
		}
		if turn.Answer.Tokens != 256 || turn.Think != 0 || turn.Agents != nil || turn.Beside != nil {
			t.Errorf("turn %d: %+v", n+1, turn)
		}
	}
}

// Each prompt begins with the one before it and its answer, and Known says how
// long that is.
func TestPromptsGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := PublishedWorkload()
		w.SystemTokens = rapid.IntRange(0, 50).Draw(t, "system")
		w.FirstTokens, w.TurnTokens = Between(1, 90), ParseMust(t, rapid.SampledFrom([]string{"exp:20", "lognormal:10,3", "7"}).Draw(t, "turn"))
		w.OutputTokens = Between(1, 20)
		s, _ := w.Session(Place{Seed: rapid.Uint64().Draw(t, "seed")})
		var before []enginesim.Token
		for n := range s.Turns {
			turn := s.Turn(n)
			prompt := appendPrompt(nil, turn.Messages, 0)
			if turn.Known != len(before) || !slices.Equal(prompt[:turn.Known], before) {
				t.Fatalf("turn %d knows %d tokens, the one before left %d", n+1, turn.Known, len(before))
			}
			before = turn.Answer.appendTokens(prompt)
		}
	})
}

// ParseMust is a distribution that must be one.
func ParseMust(t interface{ Fatal(...any) }, text string) Dist {
	d, err := ParseDist(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestPlacesAndSessions(t *testing.T) {
	w := PublishedWorkload()
	w.Agents, w.Sessionless = 2, 0.5
	prompt := func(p Place) []enginesim.Token {
		s, _ := w.Session(p)
		return appendPrompt(nil, s.Turn(5).Messages, 0)
	}
	at := Place{Seed: 3, Step: 1, Client: 2, N: 4}
	base := prompt(at)
	again := at
	again.Order = 77
	if diff := cmp.Diff(base, prompt(again)); diff != "" {
		t.Errorf("the order of sessions changed one:\n%s", diff)
	}
	for name, change := range map[string]func(*Place){
		"step":   func(p *Place) { p.Step++ },
		"client": func(p *Place) { p.Client++ },
		"number": func(p *Place) { p.N++ },
		"draw":   func(p *Place) { p.Draw++ },
		"arm":    func(p *Place) { p.Arm++ },
	} {
		other := at
		change(&other)
		got := prompt(other)
		if !slices.Equal(got[:w.SystemTokens], base[:w.SystemTokens]) {
			t.Errorf("another %s has another system prompt", name)
		}
		if got[w.SystemTokens] == base[w.SystemTokens] {
			t.Errorf("another %s has the same first message", name)
		}
		if name == "arm" && len(got) != len(base) {
			t.Errorf("another arm has sessions of %d tokens instead of %d", len(got), len(base))
		}
		a, _ := w.Session(at)
		b, _ := w.Session(other)
		if a.Key == b.Key || a.Turn(0).Agents[0].Key == b.Turn(0).Agents[0].Key || a.Key == a.Turn(0).Agents[1].Key {
			t.Errorf("another %s has a key that is in use", name)
		}
	}
	other := at
	other.Seed++
	if prompt(other)[0] == base[0] {
		t.Error("another seed has the same system prompt")
	}
}

func TestSessionlessShare(t *testing.T) {
	w := PublishedWorkload()
	for _, share := range []float64{0, 0.2, 0.5} {
		w.Sessionless = share
		turns, beside := 0, 0
		for n := range 2000 {
			s, _ := w.Session(Place{N: n})
			for i := range s.Turns {
				turns++
				beside += len(s.Turn(i).Beside)
			}
		}
		if got := float64(beside) / float64(turns+beside); got < share-0.01 || got > share+0.01 {
			t.Errorf("%.3f of the requests belong to no session, want %.1f", got, share)
		}
	}
}

func TestWorkloadsThatMakeNoSense(t *testing.T) {
	if err := PublishedWorkload().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ClaudeCode){
		"system prompt": func(w *ClaudeCode) { w.SystemTokens = -1 },
		"turns":         func(w *ClaudeCode) { w.Turns = 0 },
		"agents":        func(w *ClaudeCode) { w.Agents = -1 },
		"agent turns":   func(w *ClaudeCode) { w.Agents, w.AgentTurns = 1, 0 },
		"share":         func(w *ClaudeCode) { w.Sessionless = 0.51 },
	} {
		w := PublishedWorkload()
		change(&w)
		if w.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The text of a span is as many tokens for the simulated engine, and equal IDs
// are equal text.
func TestText(t *testing.T) {
	for bytesPerToken := 2; bytesPerToken <= 7; bytesPerToken++ {
		tokenizer := enginesim.Tokenizer{BytesPerToken: bytesPerToken}
		long := Span{ID: 9, Tokens: 500}.AppendText(nil, bytesPerToken)
		if got := len(tokenizer.Append(nil, string(long))); got != 500 {
			t.Errorf("%d bytes a token: %d tokens, want 500", bytesPerToken, got)
		}
		short := Span{ID: 9, Tokens: 20}.AppendText(nil, bytesPerToken)
		if !slices.Equal(short, long[:len(short)]) {
			t.Errorf("%d bytes a token: a shorter span is no beginning of a longer one", bytesPerToken)
		}
	}
	a, b := Span{ID: contentID(1), Tokens: 200}.AppendText(nil, 4), Span{ID: contentID(2), Tokens: 200}.AppendText(nil, 4)
	same := 0
	for i := 0; i < len(a); i += 4 {
		if slices.Equal(a[i:i+4], b[i:i+4]) {
			same++
		}
	}
	if same > 2 {
		t.Errorf("%d of 200 tokens of two contents are equal", same)
	}
}
