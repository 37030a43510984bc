package vllm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// A closed loop: so many conversations are open at a time, of eight turns each,
// and where one has ended the next begins. None shares anything with another. The
// last prompt of one is 5,000 tokens, so that five fit the caches of both ranks.
const (
	loopSystem, loopTurn = 2000, 350 // length of the texts
	loopTurns            = 240       // of a run that count
)

// load is a closed loop with so many conversations open.
type load struct {
	open  int
	cache string // what all their last prompts take, over what both ranks hold
}

// loop is what a run of the closed loop gave, or several of them.
type loop struct {
	turns, prompt, cached int
	waits                 []time.Duration // to the first byte
	took                  time.Duration
}

func (l *loop) add(m loop) {
	l.turns += m.turns
	l.prompt += m.prompt
	l.cached += m.cached
	l.waits = append(l.waits, m.waits...)
	l.took += m.took
}

func (l loop) share() float64 { return float64(l.cached) / float64(l.prompt) }
func (l loop) rate() float64  { return float64(l.turns) / l.took.Minutes() }

// wait is the time to the first byte that a share of the turns kept within.
func (l loop) wait(share float64) float64 {
	slices.Sort(l.waits)
	return l.waits[int(share*float64(len(l.waits)-1))].Seconds()
}

func (l loop) String() string {
	return fmt.Sprintf("%.3f cached, %4.0f turns/min, first byte p50 %.2f s, p95 %.2f s, longest %.2f s, %d turns in %.0f s",
		l.share(), l.rate(), l.wait(0.5), l.wait(0.95), l.wait(1), l.turns, l.took.Seconds())
}

// Past the caches, sending a rank only what fits keeps them useful; while all
// conversations fit, it costs nothing.
func TestPatienceAgainstAffinity(t *testing.T) {
	e := running(t)
	t.Run("fits", func(t *testing.T) {
		affinity, patience := compare(t, e, load{4, "0.8"})
		noWorse(t, "cached share", affinity, patience, loop.share)
		noWorse(t, "turns a minute", affinity, patience, loop.rate)
		noWorse(t, "median wait", affinity, patience, func(l loop) float64 { return -l.wait(0.5) })
	})
	t.Run("overload", func(t *testing.T) {
		affinity, patience := compare(t, e, load{12, "2.3"})
		a, p := sum(affinity), sum(patience)
		if p.share() < 0.45 {
			t.Errorf("%.3f of the prompt tokens were cached with patience, want at least 0.45", p.share())
		}
		if p.rate() < 1.2*a.rate() {
			t.Errorf("%.0f turns a minute with patience and %.0f with affinity, want at least 20 %% more", p.rate(), a.rate())
		}
		if p.wait(0.5) > 0.5*a.wait(0.5) {
			t.Errorf("the median wait was %.2f s with patience and %.2f s with affinity, want at most half", p.wait(0.5), a.wait(0.5))
		}
	})
}

// compare runs both policies in turn, since other work on the machine may come
// and go, and returns the runs of each.
func compare(t *testing.T, e *engine, l load) (affinity, patience []loop) {
	t.Helper()
	runs := map[string][]loop{}
	for round, policy := range []string{"affinity", "patience", "patience", "affinity"} {
		t.Run(policy, func(t *testing.T) { // whose gateway ends with it
			run := runLoop(t, e, policy, l.open, uint64(round/2))
			t.Logf("%d conversations, %s of the cache, %s: %s", l.open, l.cache, policy, run)
			runs[policy] = append(runs[policy], run)
		})
	}
	if t.Failed() || len(runs) < 2 {
		t.FailNow() // a run is missing
	}
	for _, policy := range []string{"affinity", "patience"} {
		t.Logf("%d conversations, %s of the cache, %s, all runs: %s", l.open, l.cache, policy, sum(runs[policy]))
	}
	return runs["affinity"], runs["patience"]
}

func sum(runs []loop) (all loop) {
	for _, run := range runs {
		all.add(run)
	}
	return all
}

// noWorse asserts that a value, of which more is better, is not lower with
// patience by more than it differs between the runs of one policy. Two runs tell
// little of that, so 2 % are allowed at least: the cached shares of four runs of
// patience were 0.804 to 0.817.
func noWorse(t *testing.T, what string, affinity, patience []loop, value func(loop) float64) {
	t.Helper()
	a, p := value(sum(affinity)), value(sum(patience))
	spread := 0.02 * math.Abs(a)
	for _, runs := range [][]loop{affinity, patience} {
		spread = max(spread, max(value(runs[0]), value(runs[1]))-min(value(runs[0]), value(runs[1])))
	}
	if p < a-spread {
		t.Errorf("%s: %.3f with patience and %.3f with affinity, more than %.3f worse", what, p, a, spread)
	}
}

// runLoop runs the closed loop from an empty cache. From the first conversations
// the gateway learns what a turn takes, as it does once in its life; they do not
// count.
func runLoop(t *testing.T, e *engine, policy string, open int, round uint64) loop {
	t.Helper()
	e.emptyCache(t)
	g := policyGateway(t, e, policy)
	r := route{chatPath, true}
	var begun, conversation atomic.Int64
	var all sync.WaitGroup
	var mu sync.Mutex
	var run loop
	var begin time.Time
	for worker := range open {
		think := rand.New(rand.NewPCG(round, uint64(worker)))
		all.Go(func() {
			for {
				c := int(conversation.Add(1))
				var texts []string
				for n := range turnsEach {
					turn := begun.Add(1) - int64(open*turnsEach)
					if turn > loopTurns {
						return
					}
					if turn == 1 {
						mu.Lock()
						begin = time.Now()
						mu.Unlock()
					}
					<-time.After(time.Duration(think.Int64N(int64(thinkAtMost))))
					texts = append(texts, turnTexts(c, n, loopSystem, loopTurn)...)
					a := send(t, g.URL, r, r.body(talk(texts...), answerTokens), session(fmt.Sprint(c))).wait()
					tokens, cached := a.prompt()
					if !a.finished() || cached < 0 {
						t.Errorf("%s: conversation %d, turn %d: %s", policy, c, n, a)
						return
					}
					if turn < 1 {
						continue
					}
					mu.Lock()
					run.add(loop{turns: 1, prompt: tokens, cached: cached, waits: []time.Duration{a.first.Sub(a.sent)}})
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	run.took = time.Since(begin)
	if len(run.waits) == 0 {
		t.Fatalf("%s: no turn was answered", policy)
	}
	return run
}

// policyGateway runs a gateway with a policy. It sends no keep-alives, which a
// client would take for the first byte.
func policyGateway(t *testing.T, e *engine, policy string) *wardentest.Gateway {
	t.Helper()
	config := filepath.Join(t.TempDir(), "warden.yaml")
	text := fmt.Sprintf("models:\n  - policy: %s\n    engines:\n      - url: %s\nlimits:\n  keep_alive: none\n", policy, e.url)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return warden.Gateway(t, nil, "--config", config)
}
