package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

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

// engine runs a simulated server in memory until the test ends, and returns its
// URL.
func (m *memory) engine(t *testing.T, address string, o server.Options) string {
	t.Helper()
	o.Models, o.AnswerTokens = []string{testModel}, 100_000 // so that every answer is as long as it may be
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l := m.listen(address)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			t.Errorf("simulated engine: %v", err)
		}
	})
	t.Cleanup(func() { stop(); serving.Wait() })
	return "http://" + address
}

// benchBox is a gateway in front of a simulated box, all in memory, and the
// options that measure it.
func benchBox(t *testing.T, m *memory, ranks int) (*testGateway, BenchOptions) {
	t.Helper()
	params := quarter(t)
	g := m.gateway(t, m.engine(t, "127.0.0.1:8000", server.Options{Params: params, Replicas: ranks, Seed: 2}), nil)
	return g, BenchOptions{
		Target: g.URL(), Admin: g.AdminURL(), Dialect: "anthropic",
		Protocol: bench.Protocol{Arms: []string{"off", "affinity"}, Sessions: []int{8}, Step: 15 * time.Second},
		Workload: quarterWorkload(), Seed: 1, Repeat: 1, Order: "given",
		BytesPerToken: params.BytesPerToken, Speed: 1, Timeout: 10 * time.Minute, Out: filepath.Join(t.TempDir(), "out"),
		dial: m.dial,
	}
}

// gateway runs a gateway in memory until the test ends. change may adjust its
// configuration.
func (m *memory) gateway(t *testing.T, engine string, change func(*config.Config)) *testGateway {
	t.Helper()
	cfg, err := demoConfig(engine)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Models[0].Name = testModel
	if change != nil {
		change(cfg)
	}
	g := &testGateway{t: t, log: &testLog{}, client: &http.Client{Transport: &http.Transport{DialContext: m.dial}}}
	if g.Gateway, err = newGateway(cfg, slog.New(slog.NewJSONHandler(g.log, nil)), m.dial); err != nil {
		t.Fatal(err)
	}
	if err := g.StartOn(Listeners{m.listen("127.0.0.1:8100"), m.listen("127.0.0.1:8101")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	g.awaitReady()
	// It may know its engines and not accept clients yet, which then hang in the dial.
	g.send(http.MethodGet, g.URL()+"/health", nil)
	return g
}

// bench runs a measurement and returns its results and what was printed.
func (o BenchOptions) run(t *testing.T, ctx context.Context) (r *results.Results, out, log string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err = Bench(ctx, IO{&stdout, &stderr}, o)
	if r, readErr := results.Read(o.Out); readErr == nil {
		return r, stdout.String(), stderr.String(), err
	} else if err == nil {
		t.Fatal(readErr)
	}
	return r, stdout.String(), stderr.String(), err
}

// The same experiment, live through a whole gateway and in virtual time, says
// the same of both arms. The arm off chooses at random; the long form has as many
// runs as its mean needs.
func TestLiveAgreesWithVirtualTime(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		_, o := benchBox(t, m, 4)
		o.Protocol.Step = time.Minute
		o.Protocol.Sessions, o.Repeat = []int{12}, 2
		chance := 2.0
		if os.Getenv("LMWARDEN_LIVE_LONG") != "" {
			o.Protocol.Sessions, o.Repeat, chance = []int{4, 12}, 8, 0
		}
		liveAgreesWithVirtualTime(t, o, chance)
	})
}

// The same under an overload, where requests wait at the gateway: neither arm
// draws, so one run says it.
func TestLiveAgreesWithVirtualTimeUnderOverload(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		_, o := benchBox(t, m, 4)
		o.Protocol.Arms, o.Protocol.Sessions, o.Protocol.Step = []string{"affinity", "patience"}, []int{24}, 2*time.Minute
		liveAgreesWithVirtualTime(t, o, 2)
	})
}

// liveAgreesWithVirtualTime compares a measurement with the simulation of it.
// chance is what chance may do to the mean of the runs, in standard errors.
func liveAgreesWithVirtualTime(t *testing.T, o BenchOptions, chance float64) {
	share := chance / math.Sqrt(float64(o.Repeat))
	got, _, log, err := o.run(t, context.Background())
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	want, err := bench.Simulate(context.Background(), bench.Simulation{
		Workload: o.Workload, Protocol: o.Protocol, Seed: 1, Seeds: 16,
		Box: bench.Box{Preset: "quarter", Engine: quarter(t), Replicas: 4},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range o.Protocol.Sessions {
		var live, virtual [2]*results.Step
		for i, arm := range o.Protocol.Arms {
			live[i], virtual[i] = got.Arm(arm).Step(n), want.Arm(arm).Step(n)
			l, v := live[i], virtual[i]
			hits := 3 + share*deviation(v, func(m *results.Measures) *float64 { return m.PrefixHitPercent })
			tokens := 0.1**v.OutputTokensPerMin + share*deviation(v, func(m *results.Measures) *float64 { return m.OutputTokensPerMin })
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
			if d := *b - *a; max(d, -d) > noise && (*la < *lb) != (*a < *b) {
				t.Errorf("%d sessions, %s: %s %.2f, %s %.2f live; %.2f and %.2f in virtual time", n, c.Title, o.Protocol.Arms[0], *la, o.Protocol.Arms[1], *lb, *a, *b)
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

// policyOf is the policy in force, by the API.
func (g *testGateway) policyOf() string {
	g.t.Helper()
	var m struct{ Policy string }
	g.admin(http.MethodGet, "/api/models/"+testModel, "", &m)
	return m.Policy
}

func TestBenchMeasuresBothArmsAndGivesThePolicyBack(t *testing.T) {
	inMemory(t, benchMeasuresBothArmsAndGivesThePolicyBack)
}

func benchMeasuresBothArmsAndGivesThePolicyBack(t *testing.T, m *memory) {
	g, o := benchBox(t, m, 2)
	o.Protocol.Arms, o.Protocol.Sessions, o.Protocol.Cold = []string{"off", "round-robin"}, []int{1, 3}, true
	o.Repeat, o.Order, o.Dialect = 2, "alternate", "openai"
	r, out, log, err := o.run(t, context.Background())
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	if got := g.policyOf(); got != "patience" {
		t.Errorf("the gateway is left with policy %s", got)
	}
	if !strings.Contains(out, "| sessions (off → round-robin) |") || strings.Contains(out, "failed,") {
		t.Errorf("printed:\n%s", out)
	}
	for _, arm := range r.Arms {
		for _, s := range arm.Steps {
			if len(s.Runs) != 2 || s.PrefixHitPercent == nil || s.ReplicasBusy == nil || *s.ReplicasBusy <= 0 || *s.ReplicasBusy > 2 || *s.Turns < 1 {
				t.Errorf("%s, %d sessions: %+v", arm.Name, s.Sessions, s.Measures)
			}
		}
	}
	if s := r.Arm("round-robin").Steps[1]; s.FirstTurnSpread == nil || len(s.Replicas) != 2 {
		t.Errorf("which replica served what is not known: %+v", s.Replicas)
	}
	if s := r.Arm("off").Steps[1]; s.StayedPercent != nil || len(s.Replicas) != 0 {
		t.Errorf("off behind one URL tells of replicas: stayed %v, %v", s.StayedPercent, s.Replicas)
	}
	want := map[string]any{"off": "cold", "round-robin": "cold"}
	if diff := cmp.Diff(want, r.Box["caches_before_arm"]); diff != "" || r.Box["order_of_arms"] != "alternate" {
		t.Errorf("settings of the box (-want +got):\n%s\n%v", diff, r.Box)
	}
}

// after is a writer that does something when a text has been written to it.
type after struct {
	bytes.Buffer
	text string
	do   func()
}

func (a *after) Write(p []byte) (int, error) {
	if strings.Contains(string(p), a.text) {
		a.do()
	}
	return a.Buffer.Write(p)
}

func TestAnInterruptedBenchReportsWhatThereIs(t *testing.T) {
	inMemory(t, anInterruptedBenchReportsWhatThereIs)
}

func anInterruptedBenchReportsWhatThereIs(t *testing.T, m *memory) {
	g, o := benchBox(t, m, 2)
	o.Protocol.Step = time.Hour
	ctx, interrupt := context.WithCancel(context.Background())
	var out bytes.Buffer
	// A line of a step that runs.
	log := &after{text: "off, 8 sessions, 30 of 3600 s", do: interrupt}
	err := Bench(ctx, IO{&out, log}, o)
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	r, err := results.Read(o.Out)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	if s := r.Arm("off").Step(8); s == nil || *s.Turns < 1 || *s.Cut < 1 || s.TTFBP50 == nil {
		t.Errorf("nothing of the step under way: %+v", s)
	}
	if r.Box["stopped"] != "interrupted" {
		t.Errorf("the results do not say that they are not whole: %v", r.Box)
	}
	if r.Arm("affinity") != nil {
		t.Error("an arm that never ran is in the results")
	}
	if !strings.Contains(out.String(), "| 8 | ") {
		t.Errorf("printed:\n%s", &out)
	}
	if got := g.policyOf(); got != "patience" {
		t.Errorf("the gateway is left with policy %s", got)
	}
	g.checkNothingInFlight()
}

func TestAnArmMayBeAnotherRouter(t *testing.T) { inMemory(t, anArmMayBeAnotherRouter) }

func anArmMayBeAnotherRouter(t *testing.T, m *memory) {
	_, o := benchBox(t, m, 2)
	engine := m.engine(t, "127.0.0.1:9000", server.Options{Params: quarter(t), Replicas: 2, OmitPromptTokensDetails: true})
	o.Target, o.Admin = "", ""
	o.Routers, o.EngineMetrics, o.Protocol.Sessions = []string{"direct=" + engine}, []string{engine + "/metrics"}, []int{3}
	r, out, log, err := o.run(t, context.Background())
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	s := r.Arm("direct").Step(3)
	if s.PrefixHitPercent == nil || s.ReplicasBusy == nil || s.OutputTokensPerMin == nil || *s.Turns < 1 {
		t.Errorf("not measured alike: %+v", s.Measures)
	}
	// This engine does not tell the cached tokens of a request, and nobody tells
	// where it went.
	if s.RereadTokens != nil || s.StayedPercent != nil || s.Spills != nil || s.FirstTurnSpread != nil {
		t.Errorf("measured, but not told by anybody: %+v", s.Measures)
	}
	if !strings.Contains(out, " – |") {
		t.Errorf("printed:\n%s", out)
	}

	o.EngineMetrics = nil
	r, _, log, err = o.run(t, context.Background())
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	if s := r.Arm("direct").Step(3); s.PrefixHitPercent != nil || s.ReplicasBusy != nil || s.TTFBP50 == nil {
		t.Errorf("without an engine's counters: %+v", s.Measures)
	}
	if !strings.Contains(log, "no engine is known") {
		t.Errorf("nobody was told:\n%s", log)
	}
}

func TestATargetThatFailsIsCounted(t *testing.T) { inMemory(t, aTargetThatFailsIsCounted) }

func aTargetThatFailsIsCounted(t *testing.T, m *memory) {
	refuses := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"error":{"message":"full"}}`, http.StatusServiceUnavailable)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = refuses.Serve(m.listen("127.0.0.1:9000")) })
	defer serving.Wait()
	defer refuses.Close()
	synctest.Wait()
	_, o := benchBox(t, m, 1)
	o.Protocol.Arms, o.Protocol.Sessions = []string{"affinity"}, []int{2}
	o.Routers, o.EngineMetrics = []string{"broken=http://127.0.0.1:9000"}, nil
	r, out, log, err := o.run(t, context.Background())
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	s := r.Arm("broken").Step(2)
	if *s.Failed < 2 || *s.Turns != 0 || s.TTFBP50 != nil || s.E2EP50 != nil || *s.SessionsPerHour != 0 {
		t.Errorf("failures are in the figures: %+v", s.Measures)
	}
	if *r.Arm("affinity").Step(2).Failed != 0 || !strings.Contains(out, "\nbroken, 2 sessions, seed 1: ") || !strings.Contains(out, " status 503\n") {
		t.Errorf("printed:\n%s", out)
	}
	o.Target, o.Admin = "", ""
	o.Model = testModel
	if _, _, _, err := o.run(t, context.Background()); err == nil || !strings.Contains(err.Error(), "no request was answered") {
		t.Errorf("everything failed, error %v", err)
	}
}

func TestAReplicaDiesInTheMiddleOfAStep(t *testing.T) {
	params := quarter(t)
	var urls []string
	for range 2 {
		urls = append(urls, newEngine(t, 1, func(o *server.Options) { o.Params, o.Speed, o.AnswerTokens = params, 5, 100_000 }).url())
	}
	g := startGateway(t, urls, nil).awaitReady()
	o := BenchOptions{
		Target: g.URL(), Admin: g.AdminURL(), Dialect: "anthropic", Kill: []string{"1@5s+5s"}, DrainReplica: []string{"0@15s+3s"},
		Protocol: bench.Protocol{Arms: []string{"affinity"}, Sessions: []int{4}, Step: 25 * time.Second}, Workload: quarterWorkload(),
		Seed: 1, Repeat: 1, Order: "given", BytesPerToken: 4, Speed: 5, Timeout: time.Minute, Out: filepath.Join(t.TempDir(), "out"),
	}
	r, _, log, err := o.run(t, context.Background())
	if err != nil || strings.Contains(log, "warden bench:") {
		t.Fatalf("%v\n%s", err, log)
	}
	s := r.Arm("affinity").Step(4)
	if *s.Failed+*s.Moves < 1 || s.PrefixHitPercent == nil || s.ReplicasBusy == nil {
		t.Errorf("a replica died: %+v", s.Measures)
	}
	if r.Box["incidents"] != "drain 0@15s+3s, kill 1@5s+5s" {
		t.Errorf("incidents %v", r.Box["incidents"])
	}
	await(t, "both replicas to be ready", func() error {
		for i, replica := range g.models.Pools()[0].View().Replicas {
			if replica.State.String() != "ready" {
				return fmt.Errorf("replica %d is %s", i, replica.State)
			}
		}
		return nil
	})
}

// A slow replica takes as many times as long, and no longer than its step.
func TestASlowReplica(t *testing.T) { inMemory(t, aSlowReplica) }

func aSlowReplica(t *testing.T, m *memory) {
	_, o := benchBox(t, m, 1)
	o.Protocol.Arms, o.Protocol.Sessions = []string{"affinity"}, []int{1}
	w := quarterWorkload()
	w.OutputTokens = bench.Always(8)
	o.Workload = w
	betweenTokens := func(slow ...string) float64 {
		t.Helper()
		o.Slow = slow
		r, _, log, err := o.run(t, context.Background())
		if err != nil || strings.Contains(log, "warden bench:") {
			t.Fatalf("%v\n%s", err, log)
		}
		return *r.Arm("affinity").Step(1).ITLMean
	}
	usual, slowed, after := betweenTokens(), betweenTokens("0x4@0s"), betweenTokens()
	if r := slowed / usual; r < 3.8 || r > 4.2 {
		t.Errorf("the slow replica takes %.2f times as long, want 4", r)
	}
	if r := after / usual; r < 0.95 || r > 1.05 {
		t.Errorf("after its step the slow replica takes %.2f times as long", r)
	}
}

// What can be known to be wrong is said before any load.
func TestBenchRefuses(t *testing.T) { inMemory(t, benchRefuses) }

func benchRefuses(t *testing.T, m *memory) {
	_, sound := benchBox(t, m, 1)
	chat := filepath.Join(t.TempDir(), "chat.jsonl")
	line := `{"id": "a", "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}]}`
	if err := os.WriteFile(chat, []byte(line), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*BenchOptions)
		want   string
	}{
		"nothing":            {func(o *BenchOptions) { o.Target, o.Admin = "", "" }, "nothing to measure"},
		"no target":          {func(o *BenchOptions) { o.Target = "" }, "--admin without --target"},
		"no URL":             {func(o *BenchOptions) { o.Target = "localhost:8100" }, `--target "localhost:8100"`},
		"an unknown policy":  {func(o *BenchOptions) { o.Protocol.Arms = []string{"off", "nope"} }, `arm "nope"`},
		"an unknown model":   {func(o *BenchOptions) { o.Model = "nope" }, `no model "nope"; known: tiny`},
		"an unknown dialect": {func(o *BenchOptions) { o.Dialect = "latin" }, "anthropic, openai"},
		"an unknown order":   {func(o *BenchOptions) { o.Order = "nope" }, "alternate"},
		"no admin API":       {func(o *BenchOptions) { o.Admin = o.Target }, "/api/models"},
		"an arm twice":       {func(o *BenchOptions) { o.Routers = []string{"off=http://127.0.0.1:1"} }, `"off" is there twice`},
		"no name":            {func(o *BenchOptions) { o.Routers = []string{"http://127.0.0.1:1"} }, "NAME=URL"},
		"no replica":         {func(o *BenchOptions) { o.Kill = []string{"4@1s"} }, "kill 4@1s: there is no such replica: 1 are known"},
		"an endless kill":    {func(o *BenchOptions) { o.Kill = []string{"0@1s"}; o.Protocol.Step = 0; o.Trace = []string{chat} }, "say for how long"},
		"no trace":           {func(o *BenchOptions) { o.Trace = []string{"absent.jsonl"} }, "absent.jsonl"},
		"no engine":          {func(o *BenchOptions) { o.Start = []string{"http://127.0.0.1:1"} }, "give URL=COMMAND"},
		"no folder":          {func(o *BenchOptions) { o.Start, o.Out = []string{"http://127.0.0.1:1=true"}, "" }, "--start without --out"},
		"no time to start":   {func(o *BenchOptions) { o.Start = []string{"http://127.0.0.1:1=true"} }, "start within 0s"},
		"half a kill":        {func(o *BenchOptions) { o.Kill = []string{"0"} }, "REPLICA@TIME"},
		"no time":            {func(o *BenchOptions) { o.Timeout = 0 }, "timeout of 0s"},
		"no speed":           {func(o *BenchOptions) { o.Speed = 0 }, "speed of 0"},
		"no bytes":           {func(o *BenchOptions) { o.BytesPerToken = 1 }, "1 bytes a token"},
	} {
		o := sound
		tc.change(&o)
		_, out, _, err := o.run(t, context.Background())
		if err == nil || !strings.Contains(err.Error(), tc.want) || out != "" {
			t.Errorf("%s: %v, want %q in it; printed %q", name, err, tc.want, out)
		}
	}
}
