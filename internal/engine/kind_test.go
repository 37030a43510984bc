package engine

import (
	"context"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func fixture(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// llamaServer answers as recorded from llama-server with two slots of 2,048
// tokens.
func llamaServer(t testing.TB) *fakeEngine {
	f := newFakeEngine()
	clear(f.body)
	f.body["/health"] = `{"status":"ok"}`
	f.body["/v1/models"] = fixture(t, "llamacpp/models.json")
	f.body["/props"] = fixture(t, "llamacpp/props.json")
	f.body["/metrics"] = fixture(t, "llamacpp/metrics-after.prom")
	return f
}

// sglangServer answers as the source of SGLang says; none of it is recorded.
func sglangServer(t testing.TB) *fakeEngine {
	f := newFakeEngine()
	clear(f.body)
	f.body["/ready"] = ""
	f.body["/v1/models"] = fixture(t, "sglang/models.json")
	f.body["/server_info"] = fixture(t, "sglang/server_info.json")
	f.body["/metrics"] = fixture(t, "sglang/two-ranks.prom")
	return f
}

func TestDiscoverOtherKinds(t *testing.T) {
	llama := Info{Kind: "llama.cpp", Version: "b1-7e4c0a9", Models: []Model{{ID: "tiny", Root: "tiny", MaxModelLen: 2048}},
		Ranks: 1, CapacityTokens: 4096, Slots: 2, PrefixCaching: true, NoToolParser: true, HasMetrics: true}
	sgl := Info{Kind: "sglang", Version: "0.5.23", Models: []Model{{ID: "tiny", Root: "tiny", MaxModelLen: 8192}, {ID: "sql", Root: "/lora", Parent: "tiny"}},
		Ranks: 2, BlockSize: 1, CapacityTokens: 120000, PrefixCaching: true, HostTier: true, HasMetrics: true}
	with := func(i Info, change func(*Info)) Info { change(&i); return i }
	tests := []struct {
		name   string
		engine *fakeEngine
		change func(*fakeEngine)
		want   Info
	}{
		{"llama-server", llamaServer(t), func(f *fakeEngine) {}, llama},
		{"llama-server without --metrics", llamaServer(t), func(f *fakeEngine) { f.status["/metrics"] = 501 },
			with(llama, func(i *Info) { i.HasMetrics = false })},
		{"llama-server whose /props is closed", llamaServer(t), func(f *fakeEngine) { delete(f.body, "/props") },
			with(llama, func(i *Info) {
				i.Version, i.Slots, i.CapacityTokens, i.NoToolParser = "", 0, 0, false
				i.Models = []Model{{ID: "tiny", Root: "tiny"}}
			})},
		{"llama-server behind something that hides its name", llamaServer(t), func(f *fakeEngine) { f.body["/v1/models"] = `{"data":[{"id":"tiny"}]}` }, llama},
		{"sglang with two ranks", sglangServer(t), func(f *fakeEngine) {}, sgl},
		{"sglang without --enable-metrics", sglangServer(t), func(f *fakeEngine) { delete(f.body, "/metrics") },
			with(sgl, func(i *Info) { i.HasMetrics, i.Ranks = false, 1 })},
		{"sglang before 0.5.6", sglangServer(t), func(f *fakeEngine) {
			f.body["/get_server_info"] = strings.ReplaceAll(f.body["/server_info"], "0.5.23", "0.5.4")
			delete(f.body, "/server_info")
		}, with(sgl, func(i *Info) { i.Version = "0.5.4" })},
		{"sglang without a cache", sglangServer(t), func(f *fakeEngine) { f.body["/server_info"] = `{"disable_radix_cache":true}` },
			with(sgl, func(i *Info) { i.Version, i.PrefixCaching, i.HostTier, i.NoToolParser = "", false, false, true })},
	}
	for _, test := range tests {
		test.change(test.engine)
		info, err := Discover(t.Context(), test.engine.client(), mustBase(t, "http://engine"), "k")
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if diff := cmp.Diff(test.want, info); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestDiscoverNeedsWhatDecidesRanks(t *testing.T) {
	f := sglangServer(t)
	f.status["/server_info"] = -1
	if _, err := Discover(t.Context(), f.client(), mustBase(t, "http://engine"), ""); err == nil || !strings.Contains(err.Error(), "/server_info") {
		t.Errorf("got %v, want an error that names /server_info", err)
	}
}

func TestPagesOfOtherKinds(t *testing.T) {
	nan := math.NaN()
	none := Sample{Running: nan, Waiting: nan, KVUsed: nan, PromptTokens: -1, CachedTokens: -1, PrefixQueries: -1, PrefixHits: -1, GenerationTokens: -1, Preemptions: -1}
	with := func(change func(*Sample)) Sample { s := none; change(&s); return s }
	tests := []struct {
		file string
		want Page
	}{
		{"llamacpp/metrics-start.prom", Page{Kind: "llama.cpp", PrefixCaching: true, Samples: []Sample{with(func(s *Sample) {
			s.Running, s.Waiting, s.PromptTokens, s.CachedTokens, s.GenerationTokens = 0, 0, 0, 0, 0
		})}}},
		// Twice 436 tokens, of which all but the last were found the second time.
		{"llamacpp/metrics-after.prom", Page{Kind: "llama.cpp", PrefixCaching: true, Samples: []Sample{with(func(s *Sample) {
			s.Running, s.Waiting, s.PromptTokens, s.CachedTokens, s.GenerationTokens = 0, 0, 2*436, 435, 2*4
		})}}},
		{"sglang/one-rank.prom", Page{Kind: "sglang", PrefixCaching: true, BlockSize: 64, Samples: []Sample{with(func(s *Sample) {
			s.Running, s.Waiting, s.KVUsed, s.CapacityTokens = 3, 1, 0.25, 120000
			s.PromptTokens, s.CachedTokens, s.GenerationTokens, s.Preemptions = 1500, 512, 90, 2
		})}}},
		{"sglang/two-ranks.prom", Page{Kind: "sglang", PrefixCaching: true, BlockSize: 1, Samples: []Sample{
			with(func(s *Sample) {
				s.Running, s.Waiting, s.KVUsed, s.CapacityTokens = 3, 1, 0.25, 120000
				s.PromptTokens, s.CachedTokens, s.GenerationTokens = 1500, 600, 50
			}),
			with(func(s *Sample) {
				s.Running, s.Waiting, s.KVUsed, s.CapacityTokens = 0, 0, 0, 110000
				s.PromptTokens = 100
			}),
		}}},
	}
	for _, test := range tests {
		got, err := ParsePage([]byte(fixture(t, test.file)), "tiny")
		if err != nil {
			t.Errorf("%s: %v", test.file, err)
			continue
		}
		if diff := cmp.Diff(test.want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.file, diff)
		}
	}
}

func TestRecordedPageOfSlotsInUse(t *testing.T) {
	page, err := ParsePage([]byte(fixture(t, "llamacpp/metrics-load.prom")))
	if err != nil || page.Samples[0].Running != 2 || page.Samples[0].Waiting != 1 {
		t.Errorf("page %+v, error %v; want 2 at work on the two slots and 1 waiting", page, err)
	}
}

func TestPageOfSeveralKinds(t *testing.T) {
	page, err := ParsePage([]byte("sglang:num_running_reqs 1\nvllm:num_requests_running 5\nsglang:num_queue_reqs 2\n"))
	if err != nil || page.Kind != "sglang" || len(page.Samples) != 1 || page.Samples[0].Running != 1 || page.Samples[0].Waiting != 2 {
		t.Errorf("page %+v, error %v; want that of the first kind alone", page, err)
	}
}

// without is the engine when its metrics are off, as llama-server says it.
func without(f *fakeEngine) *fakeEngine {
	f.status["/metrics"] = 501
	return f
}

func TestWatcherOfOtherKinds(t *testing.T) {
	for name, test := range map[string]struct {
		engine *fakeEngine
		health string // the path
		not    string // asked at most once, before the kind was known
	}{
		"llama-server":                   {llamaServer(t), "/health", "/ready"},
		"llama-server without --metrics": {without(llamaServer(t)), "/health", "/ready"},
		"sglang":                         {sglangServer(t), "/ready", "/health"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var last Report
			w, err := NewWatcher(WatcherOptions{Base: mustBase(t, "http://engine"), Client: test.engine.client(), Report: func(r Report) { last = r }})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- w.Run(ctx) }()
			defer func() { cancel(); <-done }()
			time.Sleep(5500 * time.Millisecond)
			synctest.Wait()
			if last.Health != Up || last.Err != nil || (last.Samples == nil) == last.Info.HasMetrics {
				t.Errorf("%s: %+v", name, last)
			}
			if test.engine.count(test.health) < 5 || test.engine.count(test.not) > 1 {
				t.Errorf("%s: asked %s %d times, %s %d times", name, test.health, test.engine.count(test.health), test.not, test.engine.count(test.not))
			}
			test.engine.set(func() {
				test.engine.status[test.health] = 503
				test.engine.body[test.health] = `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`
			})
			time.Sleep(time.Second)
			synctest.Wait()
			if last.Health != Down || last.Err == nil || !strings.Contains(last.Err.Error(), "is loading its model") {
				t.Errorf("%s while it loads: %+v", name, last)
			}
		})
	}
}

func TestRanksOfOtherKinds(t *testing.T) {
	sgl := func(version string) Info { return Info{Kind: "sglang", Version: version, Ranks: 2} }
	tests := []struct {
		info  Info
		blind []string
	}{
		{sgl("0.5.9"), []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}},
		{sgl("0.5.10"), []string{"/v1/responses"}},
		{sgl("0.5.12.post1"), []string{"/v1/responses"}},
		{sgl("0.5.20"), nil},
		{sgl(""), []string{"/v1/responses"}},
		{Info{Kind: "llama.cpp", Version: "b1-7e4c0a9", Ranks: 1}, nil},
	}
	for _, test := range tests {
		if got := BlindPaths(test.info); !slices.Equal(got, test.blind) {
			t.Errorf("%s %s: blind on %v, want %v", test.info.Kind, test.info.Version, got, test.blind)
		}
	}
	for _, test := range []struct{ kind, path, want string }{
		{"vllm", "/v1/responses", "0.33"}, {"sglang", "/v1/responses", "0.5.20"}, {"vllm", "/v1/embeddings", ""}, {"llama.cpp", "/v1/responses", ""},
	} {
		if got := HonouredFrom(test.kind, test.path); got != test.want {
			t.Errorf("%s honours the rank on %s from %q, want %q", test.kind, test.path, got, test.want)
		}
	}
	for _, path := range []string{"/inference/v1/generate", "/v1/embeddings"} {
		if HonoursRank(sgl("0.5.23"), path) {
			t.Errorf("sglang is said to honour the rank on %s", path)
		}
	}
	if HonoursRank(Info{Kind: "llama.cpp", Ranks: 1}, "/v1/chat/completions") {
		t.Error("llama.cpp is said to honour ranks")
	}
}
