package pool

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

func TestStatesFollowTheReports(t *testing.T) {
	two := info(2, "m")
	steps := []struct {
		name string
		do   func(p *Pool)
		want string
	}{
		{"not heard", func(p *Pool) {}, "unknown unknown unknown"},
		{"a answers but does not tell what it serves", func(p *Pool) { p.Observe(0, bad(engine.Info{}, engine.Up)) }, "unknown unknown unknown"},
		{"a is discovered", func(p *Pool) { p.Observe(0, good(two)) }, "ready ready unknown"},
		{"b is refused", func(p *Pool) { p.Observe(1, bad(engine.Info{}, engine.Down)) }, "ready ready down"},
		{"b comes", func(p *Pool) { p.Observe(1, good(info(1, "m"))) }, "ready ready ready"},
		{"a's page breaks", func(p *Pool) { p.Observe(0, bad(two, engine.Up)) }, "ready ready ready"},
		{"a is silent", func(p *Pool) { p.Observe(0, bad(two, engine.Silent)) }, "ready ready ready"},
		{"a is drained in part", func(p *Pool) { _ = p.Drain(1) }, "ready draining ready"},
		{"a goes", func(p *Pool) { p.Observe(0, bad(two, engine.Down)) }, "down down ready"},
		{"a is silent while gone", func(p *Pool) { p.Observe(0, bad(two, engine.Silent)) }, "down down ready"},
		{"a returns, the drain holds", func(p *Pool) { p.Observe(0, good(two)) }, "ready draining ready"},
		{"a has one rank only", func(p *Pool) { p.Observe(0, good(info(1, "m"))) }, "ready down ready"},
		{"its page breaks", func(p *Pool) { p.Observe(0, bad(info(1, "m"), engine.Up)) }, "ready down ready"},
		{"a has three", func(p *Pool) { p.Observe(0, good(info(3, "m"))) }, "ready draining ready"},
		{"the drain ends", func(p *Pool) { _ = p.Resume(1) }, "ready ready ready"},
		{"a serves another model", func(p *Pool) { p.Observe(0, good(info(2, "x", "y"))) }, "down down ready"},
		{"a serves the weights under another name", func(p *Pool) {
			p.Observe(0, good(engine.Info{Ranks: 2, Models: []engine.Model{{ID: "z", Root: "root of m"}}}))
		}, "ready ready ready"},
	}
	p, err := New(Options{Name: "m", ServedName: "m", Servers: []Server{{URL: "a", Ranks: 2}, {URL: "b", Ranks: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		step.do(p)
		if got := states(p); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
}

func TestAProbeThatBeganBeforeTheFailureProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := twoByTwo(t)
		before := good(info(2, "m"))
		time.Sleep(time.Millisecond)
		l := acquire(t, p, pinned(1, 0))
		_ = l.Retry(errRefused)
		l.End(routing.Outcome{})
		p.Observe(0, before)
		wantStates(t, p, "down down ready ready")
		p.Observe(0, good(info(2, "m")))
		wantStates(t, p, "ready ready ready ready")
		older := before
		older.Health, older.Err = engine.Down, errors.New("late news")
		p.Observe(0, older)
		wantStates(t, p, "ready ready ready ready")
	})
}

func TestTroubleIsTold(t *testing.T) {
	tests := []struct {
		name   string
		report func() engine.Report
		want   string
	}{
		{"none", func() engine.Report { return good(info(2, "m")) }, ""},
		{"a broken page", func() engine.Report { return bad(info(2, "m"), engine.Up) }, "scrape failed"},
		{"fewer ranks", func() engine.Report { return good(info(1, "m")) }, "the engine has 1 rank, 2 were expected"},
		{"more ranks", func() engine.Report { return good(info(4, "m")) }, "the engine has 4 ranks, the configuration says 2"},
		{"another model", func() engine.Report { return good(info(2, "x")) }, `serves ["x"], not "m"`},
	}
	for _, test := range tests {
		p, err := New(Options{Name: "m", ServedName: "m", Servers: []Server{{URL: "a", Ranks: 2}}})
		if err != nil {
			t.Fatal(err)
		}
		p.Observe(0, test.report())
		if got := p.View().Servers[0].Error; (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want ...%s...", test.name, got, test.want)
		}
	}
}

// llama-server tells its slots and their sizes apart from its metrics, which it
// may not show at all.
func TestLoadOfAnEngineThatTellsItsCapacityOnce(t *testing.T) {
	i := engine.Info{Kind: "llama.cpp", Ranks: 1, Slots: 2, CapacityTokens: 4096, Models: []engine.Model{{ID: "m", Root: "m"}}}
	p, err := New(Options{Name: "m", ServedName: "m", Servers: []Server{{URL: "a", Ranks: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	p.Observe(0, with(good(i), func(r *engine.Report) { r.Samples = nil }))
	if got := p.View().Replicas[0].Load; got.Capacity != 4096 || got.Slots != 2 || got.Running != -1 || got.Stale {
		t.Errorf("without metrics: %+v", got)
	}
	i.HasMetrics = true
	p.Observe(0, with(good(i), func(r *engine.Report) { r.Samples[0].CapacityTokens = 0 }))
	if got := p.View().Replicas[0].Load; got.Capacity != 4096 || got.Slots != 2 || got.Running != 1 {
		t.Errorf("with metrics: %+v", got)
	}
}

func TestLoadOfAScrape(t *testing.T) {
	p := twoByTwo(t)
	want := routing.Load{Running: 1, Waiting: 2, KVUsed: 0.5, Capacity: 1000, Epoch: 1}
	if diff := cmp.Diff(want, p.View().Replicas[0].Load); diff != "" {
		t.Error(diff)
	}

	p.Observe(0, bad(info(2, "m"), engine.Up))
	want.Stale = true
	if diff := cmp.Diff(want, p.View().Replicas[0].Load); diff != "" {
		t.Error("stale:", diff)
	}
	if p.View().Replicas[2].Load.Stale {
		t.Error("the other server is stale too")
	}

	p.Observe(0, with(good(info(2, "m")), func(r *engine.Report) {
		r.Epoch = 2
		r.Samples[0] = engine.Sample{Running: math.NaN(), Waiting: math.Inf(1), KVUsed: math.NaN()}
	}))
	got := p.View().Replicas[0].Load
	if got.Running != -1 || got.Waiting != math.MaxInt32 || !math.IsNaN(got.KVUsed) || got.Stale || got.Epoch != 2 {
		t.Errorf("%+v", got)
	}
}

func TestAnEngineWithoutMetricsIsReadyAndUnknown(t *testing.T) {
	p := newPool(t, Server{URL: "a"})
	p.Observe(0, good(engine.Info{Kind: "unknown", Ranks: 1, Models: []engine.Model{{ID: "m", Root: "m"}}}))
	wantStates(t, p, "ready")
	r := p.View().Replicas[0]
	if r.Load.Running != -1 || !math.IsNaN(r.Load.KVUsed) || r.Load.Stale || r.ScrapeAge >= 0 || !math.IsNaN(r.PrefixHitPercent) {
		t.Errorf("%+v", r)
	}
}

func TestScrapeAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, Server{URL: "a", Ranks: 1})
		if age := p.View().Replicas[0].ScrapeAge; age >= 0 {
			t.Errorf("before the first scrape: %v", age)
		}
		p.Observe(0, good(info(1, "m")))
		time.Sleep(300 * time.Millisecond)
		p.Observe(0, bad(info(1, "m"), engine.Up))
		if age := p.View().Replicas[0].ScrapeAge; age != 300*time.Millisecond {
			t.Errorf("%v", age)
		}
	})
}

func TestPrefixHitPercent(t *testing.T) {
	type sample = engine.Sample
	scrape := func(epoch int, s sample) engine.Report {
		return with(good(info(1, "m")), func(r *engine.Report) { r.Epoch, r.Samples = epoch, []sample{s} })
	}
	first := sample{PromptTokens: 1000, CachedTokens: 900, PrefixQueries: 5000, PrefixHits: 10}
	tests := []struct {
		name    string
		reports []engine.Report
		want    float64
	}{
		{"nothing asked since", []engine.Report{scrape(1, first)}, math.NaN()},
		{"by the prompt counters", []engine.Report{scrape(1, first),
			scrape(1, sample{PromptTokens: 1200, CachedTokens: 950, PrefixQueries: 9000, PrefixHits: 10})}, 25},
		{"an old engine, by the prefix counters", []engine.Report{
			scrape(1, sample{PromptTokens: 1000, CachedTokens: -1, PrefixQueries: 100, PrefixHits: 10}),
			scrape(1, sample{PromptTokens: 1200, CachedTokens: -1, PrefixQueries: 300, PrefixHits: 110})}, 50},
		{"no counters", []engine.Report{
			scrape(1, sample{PromptTokens: -1, CachedTokens: -1, PrefixQueries: -1, PrefixHits: -1}),
			scrape(1, sample{PromptTokens: -1, CachedTokens: -1, PrefixQueries: -1, PrefixHits: -1})}, math.NaN()},
		{"a new epoch begins anew", []engine.Report{scrape(1, first),
			scrape(2, sample{PromptTokens: 100}), scrape(2, sample{PromptTokens: 300, CachedTokens: 150})}, 75},
	}
	for _, test := range tests {
		p := newPool(t, Server{URL: "a", Ranks: 1})
		for _, r := range test.reports {
			p.Observe(0, r)
		}
		got := p.View().Replicas[0].PrefixHitPercent
		if !near(got, test.want) && !(math.IsNaN(got) && math.IsNaN(test.want)) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestBlindPaths(t *testing.T) {
	p := newPool(t, Server{URL: "a"}, Server{URL: "b"})
	p.Observe(0, good(info(2, "m")))
	p.Observe(1, good(info(1, "m")))
	if diff := cmp.Diff([]string{"/v1/responses"}, p.View().Servers[0].Blind); diff != "" {
		t.Error(diff)
	}
	if got := p.View().Servers[1].Blind; got != nil {
		t.Errorf("a server of one rank is blind on %v", got)
	}
	r := turn(1)
	r.Path = "/v1/responses"
	l := acquire(t, p, r)
	if d := l.Decision(); d.Reason != routing.Engine || l.Target().Rank != routing.None || d.Server != 0 {
		t.Errorf("decision %+v, rank %d", d, l.Target().Rank)
	}
	wantBlind := p.blindOn(r.Path)
	if again := p.blindOn(r.Path); &again[0] != &wantBlind[0] {
		t.Error("the slice is made anew for each request")
	}
	l.End(routing.Outcome{})

	newer := info(2, "m")
	newer.Version = "0.33.0"
	p.Observe(0, good(newer))
	l = acquire(t, p, r)
	if d := l.Decision(); d.Reason == routing.Engine {
		t.Errorf("0.33: %+v", d)
	}
	l.End(routing.Outcome{})
	if got := p.View().Servers[0].Blind; got != nil {
		t.Errorf("0.33 is blind on %v", got)
	}

	for i := range 3 * maxBlindPaths {
		p.blindOn("/v1/responses/" + strings.Repeat("x", i))
	}
	if n := len(p.blind); n > maxBlindPaths {
		t.Errorf("%d paths kept", n)
	}
}

func TestBlindPathIsLearnedFromTheCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, Server{URL: "a"})
		scrape := func(epoch int, prompts ...float64) {
			time.Sleep(time.Second)
			p.Observe(0, with(good(info(2, "m")), func(r *engine.Report) {
				r.Epoch = epoch
				for i, n := range prompts {
					r.Samples[i].PromptTokens = n
				}
			}))
		}
		served := routing.Outcome{OK: true, Known: true, Prompt: 10}
		scrape(1, 100, 100)
		acquire(t, p, pinned(1, 0)).End(served)
		scrape(1, 110, 100)
		acquire(t, p, pinned(1, 1)).End(served)
		scrape(1, 120, 100)
		if diff := cmp.Diff([]string{"/v1/messages", "/v1/responses"}, p.View().Servers[0].Blind); diff != "" {
			t.Error(diff)
		}
		l := acquire(t, p, turn(5))
		if d := l.Decision(); d.Reason != routing.Engine {
			t.Errorf("%+v", d)
		}
		l.End(served)
		scrape(2, 0, 0)
		if diff := cmp.Diff([]string{"/v1/responses"}, p.View().Servers[0].Blind); diff != "" {
			t.Error("a new process is taken for the old one:", diff)
		}
	})
}

func TestTargetModel(t *testing.T) {
	p := newPool(t, Server{URL: "a"}, Server{URL: "b"})
	tiny := engine.Info{Ranks: 1, Models: []engine.Model{
		{ID: "tiny", Root: "/w"}, {ID: "tiny-too", Root: "/w"}, {ID: "sql", Root: "/lora", Parent: "tiny"}}}
	p.Observe(0, good(tiny))
	p.Observe(1, good(engine.Info{Ranks: 1, Models: []engine.Model{{ID: "tiny@b", Root: "/w"}}}))
	tests := []struct {
		replica     int
		asked, want string
	}{
		{0, "m", "tiny"}, {0, "claude-x", "tiny"}, {0, "tiny-too", "tiny-too"}, {0, "sql", "sql"},
		{1, "m", "tiny@b"}, {1, "tiny", "tiny@b"},
	}
	for _, test := range tests {
		l := acquire(t, p, pinned(1, test.replica))
		if got := l.Target().Model(test.asked); got != test.want {
			t.Errorf("%q on replica %d is asked for as %q, want %q", test.asked, test.replica, got, test.want)
		}
		l.End(routing.Outcome{})
	}
	if v := p.View(); v.ServedName != "tiny" || p.ServedName() != "tiny" {
		t.Errorf("served name %q", v.ServedName)
	}
	unheard := newPool(t, Server{URL: "a", Ranks: 1})
	l := acquire(t, unheard, turn(1))
	defer l.End(routing.Outcome{})
	if got := l.Target().Model("m"); got != "m" {
		t.Errorf("before the server was heard: %q", got)
	}
}

func TestChangesAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	p, err := New(Options{Name: "m", Servers: []Server{{URL: "a", Ranks: 1}},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.Observe(0, good(info(1, "m")))
	}
	for range 3 {
		p.Observe(0, bad(info(1, "m"), engine.Down))
	}
	for range 3 {
		p.Observe(0, with(good(info(1, "m")), func(r *engine.Report) { r.Epoch = 2 }))
	}
	for _, want := range []string{"from=unknown to=ready", "from=ready to=down", "from=down to=ready",
		"engine not read", "engine read again", "engine restarted"} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q is there %d times:\n%s", want, n, log.String())
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 6 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
