package vllm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
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

// outcome is what an arm of the comparison gave.
type outcome struct {
	prompt, cached int           // tokens
	ttft           time.Duration // sum
	requests       int
	ranks          [ranks]float64 // prompt tokens
	took           time.Duration
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
	g := warden.Gateway(t, []string{e.url})
	for _, p := range pressures {
		arms := map[string]outcome{}
		for _, affinity := range []string{"off", "on"} {
			e.emptyCache(t)
			g.SetAffinity(t, modelName, affinity)
			before := e.metric(t, "vllm:prompt_tokens_total")
			o := converse(t, g.URL, fmt.Sprint(p.percent, affinity), p.system, p.turn)
			after := e.metric(t, "vllm:prompt_tokens_total")
			for rank := range o.ranks {
				o.ranks[rank] = after[rank] - before[rank]
			}
			t.Logf("%3d %% of the cache, affinity %-3s: %s", p.percent, affinity, o)
			arms[affinity] = o
		}
		on, off := arms["on"].share(), arms["off"].share()
		if on < off+0.05 {
			t.Errorf("at %d %% of the cache, %.3f of the prompt tokens were cached with affinity and %.3f without, want at least 0.05 more", p.percent, on, off)
		}
		// Nothing is evicted before the cache is full: what is common is cached.
		if want := 0.95 * bestShare(p.system, p.turn); p.percent < 100 && on < want {
			t.Errorf("at %d %% of the cache, %.3f of the prompt tokens were cached with affinity, want at least %.3f", p.percent, on, want)
		}
	}
	if m := g.Model(t, modelName); m.InFlight != 0 {
		t.Errorf("%d in flight after all requests ended", m.InFlight)
	}
}

// converse runs the conversations of an arm to their end.
func converse(t *testing.T, url, arm string, system, turn int) outcome {
	var all sync.WaitGroup
	var mu sync.Mutex
	var sum outcome
	begin := time.Now()
	for c := range conversations {
		think := rand.New(rand.NewPCG(1, uint64(c)))
		all.Go(func() {
			var texts []string
			for n := range turnsEach {
				texts = append(texts, turnTexts(c, n, system, turn)...)
				<-time.After(time.Duration(think.Int64N(int64(thinkAtMost))))
				r := route{chatPath, true}
				a := send(t, url, r, r.body(talk(texts...), answerTokens), session(fmt.Sprint(arm, c))).wait()
				tokens, got := a.prompt()
				mu.Lock()
				if !a.finished() || got < 0 {
					t.Errorf("conversation %d, turn %d: %s", c, n, a)
				}
				sum.prompt += tokens
				sum.cached += got
				sum.ttft += a.first.Sub(a.sent)
				sum.requests++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	sum.took = time.Since(begin)
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
