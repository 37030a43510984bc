package vllm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// Eight conversations of eight turns at once, whose last prompts fill the cache of
// both ranks to the given share.
const (
	conversations = 8
	turnsEach     = 8
	answerTokens  = 24
	thinkAtMost   = 300 * time.Millisecond
)

var pressures = []struct {
	percent      int
	system, turn int // length of the texts
}{
	{55, 200, 150},
	{98, 800, 250},
	{133, 1500, 300},
}

// Chance plays a part once the cache is full, so each arm has its say twice.
const rounds = 2

// outcome is what an arm of the comparison gave.
type outcome struct {
	prompt, cached int           // tokens
	ttft           time.Duration // sum
	requests       int
	ranks          [ranks]float64 // prompt tokens
	took           time.Duration
}

func (o *outcome) add(p outcome) {
	o.prompt += p.prompt
	o.cached += p.cached
	o.ttft += p.ttft
	o.requests += p.requests
	o.took += p.took
	for rank := range o.ranks {
		o.ranks[rank] += p.ranks[rank]
	}
}

func (o outcome) share() float64 { return float64(o.cached) / float64(o.prompt) }

func (o outcome) String() string {
	return fmt.Sprintf("%5.1f %% cached, mean TTFT %4.0f ms, %6d of %6d prompt tokens computed, by rank %6.0f, %4.1f s",
		100*o.share(), float64(o.ttft.Milliseconds())/float64(o.requests), o.prompt-o.cached, o.prompt, o.ranks, o.took.Seconds())
}

// With affinity, turns find their prefix in the cache as long as all of it fits;
// the engine's own balancer sends them to the rank where it is not.
func TestAffinityAgainstTheEnginesBalancer(t *testing.T) {
	e := running(t)
	g := policyGateway(t, e, "affinity")
	for _, p := range pressures {
		var off, on outcome
		for round := range uint64(rounds) {
			off.add(converse(t, e, g, "off", round, p.system, p.turn))
			on.add(converse(t, e, g, "on", round, p.system, p.turn))
		}
		t.Logf("%3d %% of the cache, affinity off: %s", p.percent, off)
		t.Logf("%3d %% of the cache, affinity on:  %s", p.percent, on)
		if on.share() <= off.share() {
			t.Errorf("at %d %% of the cache, %.3f of the prompt tokens were cached with affinity and %.3f without", p.percent, on.share(), off.share())
		}
		// Nothing is evicted before the cache is full: what is common is cached.
		if want := 0.95 * bestShare(p.system, p.turn); p.percent < 100 && on.share() < want {
			t.Errorf("at %d %% of the cache, %.3f of the prompt tokens were cached with affinity, want at least %.3f", p.percent, on.share(), want)
		}
	}
	if m := g.Model(t, modelName); m.InFlight != 0 {
		t.Errorf("%d in flight after all requests ended", m.InFlight)
	}
}

// converse runs the conversations to their end, from an empty cache.
func converse(t *testing.T, e *engine, g *wardentest.Gateway, affinity string, round uint64, system, turn int) outcome {
	t.Helper()
	e.emptyCache(t)
	g.SetAffinity(t, modelName, affinity)
	before := e.metric(t, "vllm:prompt_tokens_total")
	r := route{chatPath, true}
	var all sync.WaitGroup
	var mu sync.Mutex
	var sum outcome
	begin := time.Now()
	for c := range conversations {
		think := rand.New(rand.NewPCG(round, uint64(c)))
		id := session(fmt.Sprint(affinity, round, system, c))
		all.Go(func() {
			var texts []string
			for n := range turnsEach {
				texts = append(texts, turnTexts(c, n, system, turn)...)
				<-time.After(time.Duration(think.Int64N(int64(thinkAtMost))))
				a := send(t, g.URL, r, r.body(talk(texts...), answerTokens), id).wait()
				tokens, got := a.prompt()
				if !a.finished() || got < 0 {
					t.Errorf("conversation %d, turn %d: %s", c, n, a)
					return
				}
				mu.Lock()
				sum.add(outcome{prompt: tokens, cached: got, ttft: a.first.Sub(a.sent), requests: 1})
				mu.Unlock()
			}
		})
	}
	all.Wait()
	sum.took = time.Since(begin)
	for rank, after := range e.metric(t, "vllm:prompt_tokens_total") {
		sum.ranks[rank] = after - before[rank]
	}
	return sum
}

// turnTexts is what a turn adds to its conversation: the answer before it, always
// the same, and the question. The first question has the system's text as well.
func turnTexts(conversation, n, system, turn int) []string {
	question := text(fmt.Sprintf("%d.%d ", conversation, n), turn)
	if n == 0 {
		return []string{text(fmt.Sprintf("%d ", conversation), system) + question}
	}
	return []string{text("", answerTokens), question}
}

// text begins with start and is of a length.
func text(start string, length int) string {
	return (start + strings.Repeat("lorem ipsum ", length/12+1))[:length]
}

// bestShare is the cached share of conversations that nothing of is evicted.
func bestShare(system, turn int) float64 {
	var prompt, cached int
	for c := range conversations {
		var texts []string
		common := 0
		for n := range turnsEach {
			texts = append(texts, turnTexts(c, n, system, turn)...)
			tokens := opening
			for _, m := range talk(texts...) {
				tokens += rendered(m.Role, m.Content)
			}
			prompt += tokens
			cached += fromCache(common, tokens)
			common = tokens
		}
	}
	return float64(cached) / float64(prompt)
}
