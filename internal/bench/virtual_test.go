package bench

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lmwarden/internal/enginesim"
	"lmwarden/internal/routing"
)

// published is the published measurement under some arms.
func published(t testing.TB, seeds int, arms ...string) Simulation {
	s := Simulation{
		Workload: PublishedWorkload(), Protocol: PublishedProtocol(),
		Box:  Box{Preset: "a4000-qwen3-4b", Engine: mustPreset(t, "a4000-qwen3-4b"), Replicas: 4, RoundTrip: 220 * time.Millisecond},
		Seed: 1, Seeds: seeds,
	}
	s.Protocol.Arms = arms
	return s
}

// Whatever runs: requests and tokens add up, and nothing is open at the end.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := PublishedWorkload()
		w.SystemTokens = rapid.IntRange(0, 3000).Draw(rt, "system")
		w.FirstTokens = Between(1, float64(rapid.IntRange(1, 25_000).Draw(rt, "first")))
		w.Turns = rapid.IntRange(1, 5).Draw(rt, "turns")
		w.OutputTokens = Between(1, 60)
		w.Agents, w.AgentTurns = rapid.IntRange(0, 3).Draw(rt, "agents"), 2
		w.Sessionless = rapid.Float64Range(0, 0.5).Draw(rt, "sessionless")
		w.Think = ParseMust(rt, rapid.SampledFrom([]string{"none", "0.2", "exp:0.1"}).Draw(rt, "think"))
		engine := mustPreset(t, "tiny-fast")
		servers := rapid.SampledFrom([]int{1, 2, 4}).Draw(rt, "servers")
		incidents := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) Incident {
			return Incident{
				Kind: rapid.SampledFrom([]IncidentKind{Kill, Slow, DrainReplica}).Draw(rt, "kind"), Replica: rapid.IntRange(0, 3).Draw(rt, "replica"), Factor: 3,
				At: time.Duration(rapid.IntRange(0, 450).Draw(rt, "at")) * time.Millisecond, For: time.Duration(rapid.IntRange(0, 200).Draw(rt, "for")) * time.Millisecond,
			}
		}), 0, 3).Draw(rt, "incidents")
		killed := slices.ContainsFunc(incidents, func(i Incident) bool { return i.Kind == Kill })
		v := newTestBox(t, Box{Engine: engine, Replicas: 4, Servers: servers, RoundTrip: 20 * time.Millisecond, Incidents: incidents}, rapid.Uint64().Draw(rt, "seed"))
		arm := rapid.SampledFrom(Arms()).Draw(rt, "arm")
		p := Protocol{Arms: []string{arm}, Sessions: []int{rapid.IntRange(1, 9).Draw(rt, "sessions"), 12}, Step: 400 * time.Millisecond}
		if rapid.Bool().Draw(rt, "drain") {
			p.Drain = 200 * time.Millisecond
		}
		err := p.Run(context.Background(), 1, w, v, func(o Observation) {
			clients := p.Sessions[o.Sessions]
			m := measure(o, clients, 4, engine.BlockTokens)
			prompt, cached, finished := 0, 0, 0
			for _, r := range o.Records {
				switch {
				case r.End == Failed:
					if !killed && (r.First >= 0 || !strings.Contains(r.Error, "prompt has")) {
						rt.Fatalf("failed with %q after %v", r.Error, r.First)
					}
				case r.End == Finished:
					finished++
					if !(r.Sent < r.First && r.First <= r.Last) || r.Prompt < 1 || r.Cached < 0 || r.Cached >= r.Prompt || r.Replica < 0 {
						rt.Fatalf("record %+v", r)
					}
					prompt += r.Prompt
					cached += r.Cached
				}
			}
			if finished+int(*m.Cut)+int(*m.Failed) != len(o.Records) || finished != int(*m.Turns) {
				rt.Fatalf("%d records, of which %v finished, %v cut and %v failed", len(o.Records), *m.Turns, *m.Cut, *m.Failed)
			}
			// The engines count turns that were cut later, too.
			if o.Moved.PromptTokens < float64(prompt) || o.Moved.CachedTokens < float64(cached) && p.Drain == 0 && o.Sessions == 0 {
				rt.Fatalf("the engines saw %+v, the clients %d and %d", o.Moved, prompt, cached)
			}
			if o.Busy < 0 || o.Busy > 4 || m.Jain != nil && (*m.Jain > 1 || *m.Jain < 1/float64(clients)-1e-4) { // figures are rounded
				rt.Fatalf("%v busy, Jain %v", o.Busy, m.Jain)
			}
		})
		if err != nil {
			rt.Fatal(err)
		}
		if len(v.flights) != 0 || v.core.View(v.wall()).InFlight != 0 {
			rt.Fatalf("%d turns are open, %d in flight", len(v.flights), v.core.View(v.wall()).InFlight)
		}
		// A last step ends whatever was being computed.
		if err := v.Run(context.Background(), v.now+time.Second, func() bool { return false }); err != nil {
			rt.Fatal(err)
		}
		for i, r := range v.replicas {
			if s := r.box.Stats(r.rank); s.Running+s.Waiting > 0 || s.KVUsed > 0 || r.stepping {
				rt.Fatalf("replica %d still has work: %+v", i, s)
			}
		}
	})
}

func newTestBox(t testing.TB, b Box, seed uint64) *virtual {
	t.Helper()
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	v, err := newVirtual(b, seed)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSameSeedSameBytes(t *testing.T) {
	s := published(t, 3, "off", "published-on", "affinity")
	s.Protocol.Sessions, s.Protocol.Step = []int{3, 9}, 20*time.Second
	run := func() []byte {
		r, err := Simulate(context.Background(), s, nil)
		if err != nil {
			t.Fatal(err)
		}
		data, err := r.JSON()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	first := run()
	if !bytes.Equal(first, run()) {
		t.Error("two runs with the same seeds differ")
	}
	s.Seed++
	if bytes.Equal(first, run()) {
		t.Error("another seed gives the same")
	}
}

// A lone session in an idle box: times by the formula of the engine model.
func TestTimesOfALoneTurn(t *testing.T) {
	s := published(t, 1, "affinity")
	s.Protocol.Sessions, s.Protocol.Step, s.Protocol.Drain = []int{1}, time.Minute, 0
	w := PublishedWorkload()
	w.FirstTokens = Always(7350)
	s.Workload = w
	r, err := Simulate(context.Background(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := r.Arms[0].Steps[0]
	// A later turn reads 400 tokens and the rest of a block, at a context of about
	// 12,000: 2 + 61 ms for the linear layers, 67 for attention, and the way.
	if *m.TTFBP50 < 0.33 || *m.TTFBP50 > 0.37 {
		t.Errorf("median TTFB is %v s, want about 0.35", *m.TTFBP50)
	}
	// The first of all reads the system prompt too: 10,850 tokens are 1.638 s for the
	// linear layers and 0.806 for attention, six steps 0.012, and the way 0.22.
	if *m.TTFBMax < 2.66 || *m.TTFBMax > 2.69 {
		t.Errorf("longest TTFB is %v s, want 2.68", *m.TTFBMax)
	}
	// 22.5 ms a token, and 4.6 for a context of 12,600.
	if *m.ITLMean < 26.5 || *m.ITLMean > 27.7 {
		t.Errorf("%v ms between tokens, want about 27.1", *m.ITLMean)
	}
	if *m.StayedPercent != 100 || *m.RereadTokens != 0 || *m.Failed != 0 {
		t.Errorf("stayed %v, re-read %v, failed %v", *m.StayedPercent, *m.RereadTokens, *m.Failed)
	}
}

func TestPromptsThatDoNotFitFail(t *testing.T) {
	s := published(t, 1, "off", "affinity", "published-on")
	w := PublishedWorkload()
	w.FirstTokens = Always(39_000)
	w.SystemTokens = 0
	s.Workload, s.Protocol.Sessions, s.Protocol.Step = w, []int{2}, time.Minute
	r, err := Simulate(context.Background(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range r.Arms {
		m := a.Steps[0]
		// 39,000, 39,656 and then 40,312 tokens, of 40,000 less one block.
		if *m.Failed == 0 || *m.Turns == 0 || *m.SessionsPerHour != 0 || m.SessionMean != nil {
			t.Errorf("%s: %v failed, %v turns, %v sessions/h", a.Name, *m.Failed, *m.Turns, *m.SessionsPerHour)
		}
	}
}

func TestSimulationsThatMakeNoSense(t *testing.T) {
	for name, change := range map[string]func(*Simulation){
		"arm":         func(s *Simulation) { s.Protocol.Arms = []string{"off", "on"} },
		"seeds":       func(s *Simulation) { s.Seeds = 0 },
		"replicas":    func(s *Simulation) { s.Box.Replicas = 0 },
		"servers":     func(s *Simulation) { s.Box.Servers = 3 },
		"round trip":  func(s *Simulation) { s.Box.RoundTrip = -1 },
		"threshold":   func(s *Simulation) { s.Box.SpillThreshold = -1 },
		"engine":      func(s *Simulation) { s.Box.Engine.BlockTokens = 0 },
		"endless":     func(s *Simulation) { s.Protocol.Step = 0 },
		"no sessions": func(s *Simulation) { s.Protocol.Sessions = nil },
	} {
		s := published(t, 1, "off")
		change(&s)
		if _, err := Simulate(context.Background(), s, func(Progress) { t.Errorf("%s: it ran", name) }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSimulateEndsWhenToldTo(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := published(t, 50, "off")
	_, err := Simulate(ctx, s, func(Progress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A router may hold requests and dispatch them later.
func TestHeldRequestsStartLater(t *testing.T) {
	v := newTestBox(t, Box{Engine: mustPreset(t, "tiny-fast"), Replicas: 1}, 1)
	if err := v.Switch("affinity", false); err != nil {
		t.Fatal(err)
	}
	v.router = &oneAtATime{Router: v.core}
	s := script{}
	for key := range uint64(4) {
		s = append(s, plain(key+1, Turn{
			Messages: []Message{{Role: User, Spans: []Span{{contentID(key), 100}}}}, Answer: Span{key, 10},
		}))
	}
	l := newLoad(v, s, Place{}, 4)
	l.start()
	if err := v.Run(context.Background(), time.Minute, l.idle); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(l.records); i++ {
		if before, r := l.records[i-1], l.records[i]; r.First < before.Last || r.End != Finished {
			t.Errorf("turn %d: %+v began before %v", i, r, before.Last)
		}
	}
	if len(l.records) != 4 {
		t.Errorf("%d turns ended, want 4", len(l.records))
	}
}

// oneAtATime holds everything but one request.
type oneAtATime struct {
	routing.Router
	open  bool
	queue []routing.Request
}

func (o *oneAtATime) Arrive(now time.Time, r routing.Request) []routing.Action {
	if o.open {
		o.queue = append(o.queue, r)
		return []routing.Action{{Kind: routing.Hold, ID: r.ID, Position: len(o.queue)}}
	}
	o.open = true
	return o.Router.Arrive(now, r)
}

func (o *oneAtATime) Finish(now time.Time, id routing.RequestID, out routing.Outcome) []routing.Action {
	actions := o.Router.Finish(now, id, out)
	o.open = false
	if len(o.queue) > 0 {
		next := o.queue[0]
		o.queue = o.queue[1:]
		actions = append(actions, o.Arrive(now, next)...)
	}
	return actions
}

func TestColdArmFindsNothing(t *testing.T) {
	for _, cold := range []bool{false, true} {
		v := newTestBox(t, Box{Engine: mustPreset(t, "a4000-qwen3-4b"), Replicas: 1}, 1)
		w := PublishedWorkload()
		w.Turns = 1
		p := Protocol{Arms: []string{"affinity", "round-robin"}, Sessions: []int{1}, Step: 10 * time.Second, Cold: cold}
		var firsts []int
		each := func(o Observation) {
			firsts = append(firsts, o.Records[0].Cached)
			if o.Busy < 0.9 || o.Busy > 1 {
				t.Errorf("%v of 1 replica busy", o.Busy)
			}
		}
		if err := p.Run(context.Background(), 1, w, v, each); err != nil {
			t.Fatal(err)
		}
		want := []int{0, 3488} // the system prompt's whole blocks
		if cold {
			want[1] = 0
		}
		if diff := cmp.Diff(want, firsts); diff != "" {
			t.Errorf("cold %v: cached tokens of each arm's first turn (-want +got):\n%s", cold, diff)
		}
	}
}

// On an engine that takes 1 ms for each token and for nothing else, the seconds of
// busy replicas are the tokens that were computed, and those are what was asked for
// but not found.
func TestBusySecondsAreTheTokensComputed(t *testing.T) {
	engine := mustPreset(t, "h100-8b")
	engine.OverheadMS, engine.WeightsMS, engine.LinearUSPerToken = 0, 0, 1000
	engine.AttentionNSPerTokenContext, engine.KVReadUSPerContextToken = 0, 0
	v := newTestBox(t, Box{Engine: engine, Replicas: 3, RoundTrip: 20 * time.Millisecond}, 1)
	w := PublishedWorkload()
	w.Agents = 2
	p := Protocol{Arms: []string{"affinity"}, Sessions: []int{5}, Step: time.Second, Drain: 24 * time.Hour}
	if err := p.Run(context.Background(), 1, w, v, func(o Observation) {
		computed := 0
		for _, r := range o.Records {
			if r.End != Finished {
				t.Errorf("not drained: %+v", r)
			}
			computed += r.Prompt - r.Cached + r.Output - 1 // the last token is not read
		}
		asked, found := o.Moved.PromptTokens, o.Moved.CachedTokens
		if want := float64(computed) / 1000; len(o.Records) < 30 || math.Abs(o.Moved.BusySeconds-want) > 1e-3 {
			t.Errorf("%d turns: %v s busy, %v s of tokens", len(o.Records), o.Moved.BusySeconds, want)
		}
		prompts := 0
		for _, r := range o.Records {
			prompts += r.Prompt - r.Cached
		}
		if int(asked-found) != prompts {
			t.Errorf("the engines computed %v prompt tokens, the answers say %d", asked-found, prompts)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// No arm can do better than a box whose caches hold everything, perfectly even
// and always full.
func TestNoArmBeatsTheBound(t *testing.T) {
	s := published(t, 1, "off", "affinity", PublishedOn)
	s.Protocol.Sessions, s.Protocol.Step, s.Protocol.Drain = []int{4, 8, 16, 24}, time.Minute, 0
	r, err := Simulate(context.Background(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range r.Arms {
		for _, step := range a.Steps {
			if most := bound(step.Sessions); *step.OutputTokensPerMin > most {
				t.Errorf("%s at %d sessions: %.0f tokens/min, the bound is %.0f", a.Name, step.Sessions, *step.OutputTokensPerMin, most)
			}
			if *step.PrefixHitPercent > 87.6 {
				t.Errorf("%s at %d sessions: %v%% hits, whole sessions have at most 87.5%%", a.Name, step.Sessions, *step.PrefixHitPercent)
			}
		}
	}
}

// bound is the output tokens a minute of four perfectly used replicas, by the
// step time of the preset: a round of m turns on a card reads each one's new
// tokens, then decodes 256 steps of m. What fits a card bounds m.
func bound(sessions int) float64 {
	const fits = 3.95
	m := min(float64(sessions)/4, fits)
	read := (7350*0.151 + 7350*7125*13.7e-6 + 5*(400*0.151+400*12_800*13.7e-6)) / 6 / 1000
	decode := 256 * (22.5 + 0.366e-3*12_618*m) / 1000
	round := m*read + decode
	if float64(sessions)/4 <= fits {
		round += 0.22 // nobody else can use the time in which an answer travels
	}
	// Steps of different turns overlap, and a step begins where the one before ended
	// early: 3% over what policies reach by luck.
	return 1.03 * 4 * m * 256 * 60 / round
}

func BenchmarkPublishedProtocol(b *testing.B) {
	s := published(b, 1, "off", "affinity")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Simulate(context.Background(), s, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func TestEstimatesAreOffByWhatIsSaid(t *testing.T) {
	f := &flight{}
	f.sequence.Prompt = make([]enginesim.Token, 10_000)
	box := Box{Engine: mustPreset(t, "tiny-fast"), Replicas: 1}
	if got := newTestBox(t, box, 1).estimate(f); got != 10_000 {
		t.Errorf("without an error the estimate is %d, want 10000", got)
	}
	box.EstimateError = 0.2
	v := newTestBox(t, box, 1)
	const n = 4000
	sum, squares := 0.0, 0.0
	for i := range n {
		f.id = routing.RequestID(i)
		off := float64(v.estimate(f))/10_000 - 1
		sum, squares = sum+off, squares+off*off
	}
	if mean, spread := sum/n, math.Sqrt(squares/n); math.Abs(mean) > 0.01 || math.Abs(spread-0.2) > 0.01 {
		t.Errorf("estimates are off by %.3f with a spread of %.3f, want 0 and 0.2", mean, spread)
	}
}

// The gateway hears of a replica's requests with the next scrape.
func TestTheGatewayLooksAsOftenAsIsSaid(t *testing.T) {
	for _, every := range []time.Duration{0, 5 * time.Second} {
		v := newTestBox(t, Box{Engine: mustPreset(t, "tiny-fast"), Replicas: 1, ScrapeEvery: every}, 1)
		if err := v.Switch("affinity", false); err != nil {
			t.Fatal(err)
		}
		if err := v.Run(context.Background(), 12*time.Second, func() bool { return false }); err != nil {
			t.Fatal(err)
		}
		last := v.core.View(v.wall()).Replicas[0].Observed
		if ago, want := v.wall().Sub(last), 12*time.Second%v.box.scrapeEvery(); ago != want {
			t.Errorf("every %v: last looked %v ago, want %v", every, ago, want)
		}
	}
}
