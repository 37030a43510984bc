package app

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lmwarden/internal/bench"
	"lmwarden/internal/bench/results"
	"lmwarden/internal/config"
	"lmwarden/internal/enginesim"
	"lmwarden/internal/enginesim/server"
)

// quarter is the published box with a quarter of the tokens, each of which takes
// four times as long: the same course of events with a quarter of the bytes.
func quarter(t *testing.T) enginesim.Params {
	t.Helper()
	p, err := enginesim.Preset("tiny-fast")
	if err != nil {
		t.Fatal(err)
	}
	p.KVTokens, p.TokenBudget = 10_000, 512
	p.OverheadMS, p.WeightsMS, p.LinearUSPerToken, p.KVReadUSPerContextToken = 8, 82, 604, 1.5
	p.Balancer = enginesim.BalancerBlind
	return p
}

func quarterWorkload() bench.ClaudeCode {
	w := bench.PublishedWorkload()
	w.SystemTokens, w.FirstTokens, w.TurnTokens, w.OutputTokens = 875, bench.Between(1800, 1875), bench.Always(100), bench.Always(64)
	return w
}

// benchBox is a gateway in front of a simulated box, and the options that
// measure it.
func benchBox(t *testing.T, ranks int, params enginesim.Params, speed float64) (*testGateway, BenchOptions) {
	t.Helper()
	e := newEngine(t, ranks, func(o *server.Options) {
		o.Params, o.Speed = params, speed
		o.AnswerTokens = 100_000 // so that every answer is as long as it may be
	})
	g := startGateway(t, []string{e.url()}, func(c *config.Config) {
		c.ScrapeInterval = config.Duration(float64(time.Second) / speed)
	}).awaitReady()
	return g, BenchOptions{
		Target: g.URL(), Admin: g.AdminURL(), Dialect: "anthropic",
		Protocol: bench.Protocol{Arms: []string{"off", "affinity"}, Sessions: []int{8}, Step: 30 * time.Second},
		Workload: quarterWorkload(), Seed: 1, Repeat: 1, Order: "given",
		BytesPerToken: params.BytesPerToken, Speed: speed, Timeout: 10 * time.Minute, Out: filepath.Join(t.TempDir(), "out"),
	}
}

// bench runs a measurement and returns its results and what was printed.
func (o BenchOptions) run(t *testing.T, ctx context.Context) (r *results.Results, out, log string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err = Bench(ctx, IO{&stdout, &stderr}, o)
	r, _ = results.Read(o.Out)
	return r, stdout.String(), stderr.String(), err
}

// The same experiment, live through a whole gateway and in virtual time, says
// the same of both arms. The long form has more steps, and time for its random
// arm to show its mean.
func TestLiveAgreesWithVirtualTime(t *testing.T) {
	speed, sessions, step, spread := 10.0, []int{12}, 50*time.Second, 2.0
	if os.Getenv("LMWARDEN_LIVE_LONG") != "" {
		speed, sessions, step, spread = 20, []int{4, 8, 16}, 240*time.Second, 0
	}
	params := quarter(t)
	_, o := benchBox(t, 4, params, speed)
	o.Protocol.Sessions, o.Protocol.Step = sessions, step
	got, _, log, err := o.run(t, context.Background())
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	want, err := bench.Simulate(context.Background(), bench.Simulation{
		Workload: o.Workload, Protocol: o.Protocol, Seed: 1, Seeds: 8,
		Box: bench.Box{Preset: "quarter", Engine: params, Replicas: 4},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range sessions {
		var live, virtual [2]*results.Step
		for i, arm := range o.Protocol.Arms {
			live[i], virtual[i] = got.Arm(arm).Step(n), want.Arm(arm).Step(n)
			l, v := live[i], virtual[i]
			// The off arm chooses at random: in a short run it is allowed what single runs
			// in virtual time differ by.
			hits := 3 + spread*deviation(v, func(m *results.Measures) *float64 { return m.PrefixHitPercent })
			tokens := 0.1**v.OutputTokensPerMin + spread*deviation(v, func(m *results.Measures) *float64 { return m.OutputTokensPerMin })
			t.Logf("%s, %d sessions, live and virtual: prefix hits %.1f %.1f (±%.1f), output tokens/min %.0f %.0f (±%.0f)",
				arm, n, *l.PrefixHitPercent, *v.PrefixHitPercent, hits, *l.OutputTokensPerMin, *v.OutputTokensPerMin, tokens)
			if d := *l.PrefixHitPercent - *v.PrefixHitPercent; d > hits || d < -hits {
				t.Errorf("%s, %d sessions: prefix hits %.1f%% live, %.1f%% in virtual time", arm, n, *l.PrefixHitPercent, *v.PrefixHitPercent)
			}
			if d := *l.OutputTokensPerMin - *v.OutputTokensPerMin; d > tokens || d < -tokens {
				t.Errorf("%s, %d sessions: %.0f output tokens a minute live, %.0f in virtual time", arm, n, *l.OutputTokensPerMin, *v.OutputTokensPerMin)
			}
			if *l.Failed > 0 {
				t.Errorf("%s, %d sessions: %v requests failed", arm, n, *l.Failed)
			}
		}
		for _, c := range results.Columns()[:results.Published] {
			a, b := c.Of(&virtual[0].Measures), c.Of(&virtual[1].Measures)
			la, lb := c.Of(&live[0].Measures), c.Of(&live[1].Measures)
			if a == nil || b == nil || la == nil || lb == nil {
				continue // whether off stayed cannot be seen behind one URL
			}
			noise := 2 * max(deviation(virtual[0], c.Of), deviation(virtual[1], c.Of))
			if d := *b - *a; max(d, -d) > noise && cmp.Compare(*la, *lb) != cmp.Compare(*a, *b) {
				t.Errorf("%d sessions, %s: off %.2f, affinity %.2f live; %.2f and %.2f in virtual time", n, c.Title, *la, *lb, *a, *b)
			}
		}
	}
}

// deviation is how much single runs of a step differ.
func deviation(s *results.Step, of func(*results.Measures) *float64) float64 {
	n, sum, squares := 0.0, 0.0, 0.0
	for i := range s.Runs {
		if v := of(&s.Runs[i].Measures); v != nil {
			n++
			sum += *v
			squares += *v * *v
		}
	}
	if n < 2 {
		return 0
	}
	variance := max((squares-sum*sum/n)/(n-1), 0)
	return math.Sqrt(variance)
}
