package enginesim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// publishedLoad is the load of the published measurement: sessions in a closed
// loop, each of six turns over a system prompt that all share.
type publishedLoad struct {
	sessions int
	length   time.Duration
	sticky   bool // a session stays on one rank, taken in turn; else the balancer chooses
}

const (
	publishedSystem = 3_500
	publishedFirst  = 7_350
	publishedGrowth = 400
	publishedAnswer = 256
	publishedTurns  = 6
	roundTrip       = 220 * time.Millisecond
)

type publishedResult struct {
	answered int // turns that ended within the step
	prompt   int64
	cached   int64
}

func (r publishedResult) hitPercent() float64 { return 100 * float64(r.cached) / float64(r.prompt) }

func (r publishedResult) tokensPerMinute(l publishedLoad) float64 {
	return float64(r.answered*publishedAnswer) / l.length.Minutes()
}

// run lets the load run for its length on a box of four cards.
func (l publishedLoad) run(t testing.TB, seed uint64) publishedResult {
	t.Helper()
	const ranks = 4
	w := newWorld(t, BoxOptions{
		Params: mustPreset(t, "a4000-qwen3-4b"), Ranks: ranks, Rand: rand.New(rand.NewPCG(seed, 0)),
	})
	var result publishedResult
	made := uint64(0)
	text := func(n int) []Token { // new tokens, never seen before
		made++
		tokens := make([]Token, n)
		for i := range tokens {
			tokens[i] = Token(seed<<48 | made<<16 | uint64(i))
		}
		return tokens
	}
	system := text(publishedSystem)
	next := 0 // rank of the next session
	var session func()
	session = func() {
		rank := AnyRank
		if l.sticky {
			rank = next % ranks
			next++
		}
		history := slices.Concat(system, text(publishedFirst))
		turn := 0
		var ask func()
		ask = func() {
			s := Sequence{Prompt: history, Output: text(publishedAnswer), Reason: ReasonLength}
			w.submit(0, rank, s, func(e Emit) {
				if !e.Done {
					return
				}
				result.answered++
				history = slices.Concat(history, s.Output, text(publishedGrowth))
				if turn++; turn < publishedTurns {
					w.after(roundTrip, ask)
				} else {
					w.after(roundTrip, session)
				}
			})
		}
		ask()
	}
	for range l.sessions {
		session()
	}
	w.run(w.now.Add(l.length))
	for rank := range ranks {
		stats := w.box.Stats(rank)
		result.prompt += stats.PromptTokens
		result.cached += stats.CachedTokens
	}
	return result
}

// The published box without affinity, where its balancer was as good as blind.
// Hit share and throughput of one run there; the model was fitted to them within
// 7% on average, single cells within 20%.
func TestBlindBoxNearThePublication(t *testing.T) {
	for _, tc := range []struct {
		sessions        int
		hitPercent      float64
		tokensPerMinute float64
	}{
		{4, 56.2, 5_886},
		{16, 33.2, 9_558},
	} {
		const runs = 2
		l := publishedLoad{sessions: tc.sessions, length: 180 * time.Second}
		var hit, rate float64
		for seed := range uint64(runs) {
			r := l.run(t, seed+1)
			hit += r.hitPercent() / runs
			rate += r.tokensPerMinute(l) / runs
		}
		t.Logf("%d sessions: hits %.1f%% (published %.1f), %.0f tokens/min (published %.0f)",
			tc.sessions, hit, tc.hitPercent, rate, tc.tokensPerMinute)
		if off := hit/tc.hitPercent - 1; math.Abs(off) > 0.2 {
			t.Errorf("%d sessions: hits %.1f%%, published %.1f%%", tc.sessions, hit, tc.hitPercent)
		}
		if off := rate/tc.tokensPerMinute - 1; math.Abs(off) > 0.2 {
			t.Errorf("%d sessions: %.0f tokens/min, published %.0f", tc.sessions, rate, tc.tokensPerMinute)
		}
	}
}

// BenchmarkPublishedExperiment is the whole published measurement: five steps of
// three minutes, once over the balancer and once sticky.
func BenchmarkPublishedExperiment(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		for _, sticky := range []bool{false, true} {
			for _, sessions := range []int{4, 8, 16, 24, 32} {
				publishedLoad{sessions: sessions, length: 180 * time.Second, sticky: sticky}.run(b, 1)
			}
		}
	}
}
