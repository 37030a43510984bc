package doctor

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"lmwarden/internal/engine"
	"lmwarden/internal/enginesim"
	"lmwarden/internal/enginesim/server"
	"lmwarden/internal/llmapi"
)

// simulated starts a vLLM as the options say.
func simulated(t *testing.T, o server.Options) *url.URL {
	t.Helper()
	params, err := enginesim.Preset("h100-8b")
	if err != nil {
		t.Fatal(err)
	}
	o.Params, o.Speed, o.Replicas = params, 1000, max(o.Replicas, 1)
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(ctx, l) })
	t.Cleanup(func() { stop(); serving.Wait() })
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

func examine(t *testing.T, base *url.URL) Report {
	t.Helper()
	client := engine.NewClient()
	defer client.CloseIdleConnections()
	r, err := Examine(t.Context(), client, Engine{Base: base})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// has says whether a finding of that level holds the text.
func has(findings []Finding, level Level, text string) bool {
	for _, f := range findings {
		if f.Level == level && strings.Contains(f.Says, text) {
			return true
		}
	}
	return false
}

func TestAGoodEngineMissesNothing(t *testing.T) {
	r := examine(t, simulated(t, server.Options{Version: "0.33.0"}))
	if worst := Worst(r.Findings); worst == Missing {
		t.Errorf("%+v", r.Findings)
	}
	for _, says := range []string{"cached tokens are told", "tools are parsed", "/v1/messages is served", "/v1/responses is served"} {
		if !has(r.Findings, Good, says) {
			t.Errorf("no finding that %s", says)
		}
	}
}

func TestWhatAnEngineLacksIsSaidWithItsFlag(t *testing.T) {
	r := examine(t, simulated(t, server.Options{Version: "0.32.0", Replicas: 4, OmitPromptTokensDetails: true}))
	for _, f := range r.Findings {
		if f.Level == Missing && f.Remedy == "" {
			t.Errorf("no remedy for: %s", f.Says)
		}
	}
	if !has(r.Findings, Missing, "how much of a prompt was cached") {
		t.Error("that cached tokens are not told is not said")
	}
	if !has(r.Findings, Advice, "/v1/responses (Codex) cannot be kept") {
		t.Error("the blind route is not said")
	}
}

func TestAnEngineThatIsNotThere(t *testing.T) {
	_, err := Examine(t.Context(), engine.NewClient(), Engine{Base: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}})
	if err == nil || !strings.Contains(err.Error(), "is the engine running there?") {
		t.Errorf("error %v does not help", err)
	}
}

func TestJudge(t *testing.T) {
	fine := engine.Info{Kind: "vllm", Version: "0.33.0", Models: []engine.Model{{ID: "m", MaxModelLen: 131072}}, Ranks: 1, HasMetrics: true, PrefixCaching: true}
	ok := reply{status: http.StatusOK}
	answers := seen{
		chat: ok, tools: ok, messages: ok, responses: ok,
		cached: llmapi.Usage{Known: true, Prompt: 100, Cached: 96, CacheState: llmapi.CacheReported},
	}
	for _, test := range []struct {
		name   string
		change func(*engine.Info, *seen)
		level  Level
		says   string
	}{
		{"no prefix caching", func(i *engine.Info, _ *seen) { i.PrefixCaching = false }, Missing, "prefix caching is off"},
		{"cold twice", func(_ *engine.Info, s *seen) { s.cached.Cached = 0 }, Missing, "read twice"},
		{"cached tokens null", func(_ *engine.Info, s *seen) { s.cached.CacheState = llmapi.CacheNull }, Missing, "do not say how much"},
		{"no tool parser", func(_ *engine.Info, s *seen) {
			s.tools = reply{status: 400, body: []byte(`{"error":{"message":"needs a parser"}}`)}
		}, Missing, "needs a parser"},
		{"no messages", func(_ *engine.Info, s *seen) { s.messages = reply{status: 404} }, Missing, "no /v1/messages"},
		{"no responses", func(_ *engine.Info, s *seen) { s.responses = reply{status: 404} }, Advice, "no /v1/responses"},
		{"rank ignored", func(i *engine.Info, _ *seen) { i.Ranks, i.Version = 4, "0.10.2" }, Missing, "cannot be kept on a card"},
		{"attribution line", func(i *engine.Info, _ *seen) { i.Version = "0.17.1" }, Missing, "attribution line"},
		{"small context", func(i *engine.Info, _ *seen) { i.Models[0].MaxModelLen = 8192 }, Missing, "8,192 tokens"},
		{"slash", func(i *engine.Info, _ *seen) { i.Models[0].ID = "a/b" }, Advice, "slash"},
		{"memory to spare", func(_ *engine.Info, s *seen) { s.hostMemory = 256 << 30 }, Advice, "256 GiB"},
		{"tier on", func(i *engine.Info, s *seen) { i.HostTier, s.hostMemory = true, 256<<30 }, Good, "tier is on"},
		{"unknown kind", func(i *engine.Info, _ *seen) { i.Kind, i.HasMetrics = "unknown", false }, Advice, "no metrics page"},
		{"chat fails", func(_ *engine.Info, s *seen) { s.chat = reply{status: 500} }, Missing, "500"},
	} {
		t.Run(test.name, func(t *testing.T) {
			i, s := fine, answers
			i.Models = append([]engine.Model(nil), fine.Models...)
			if before := judge(i, s); has(before, test.level, test.says) {
				t.Fatalf("said of an engine that is fine: %+v", before)
			}
			test.change(&i, &s)
			if got := judge(i, s); !has(got, test.level, test.says) {
				t.Errorf("not said: %+v", got)
			}
		})
	}
}

// Each finding about a kind of engine names that kind's flag, and no other's.
func TestJudgeOtherKinds(t *testing.T) {
	ok := reply{status: http.StatusOK}
	answers := seen{
		chat: ok, tools: ok, messages: ok, responses: ok,
		cached: llmapi.Usage{Known: true, Prompt: 100, Cached: 99, CacheState: llmapi.CacheReported},
	}
	sgl := engine.Info{Kind: "sglang", Version: "0.5.23", Models: []engine.Model{{ID: "m", MaxModelLen: 131072}}, Ranks: 1, HasMetrics: true, PrefixCaching: true}
	llama := engine.Info{Kind: "llama.cpp", Version: "b10434", Models: []engine.Model{{ID: "m", MaxModelLen: 131072}}, Ranks: 1, Slots: 2,
		CapacityTokens: 262144, HasMetrics: true, PrefixCaching: true}
	for _, test := range []struct {
		name   string
		info   engine.Info
		change func(*engine.Info, *seen)
		level  Level
		remedy string
	}{
		{"sglang without metrics", sgl, func(i *engine.Info, _ *seen) { i.HasMetrics = false }, Advice, "--enable-metrics"},
		{"sglang without cached tokens", sgl, func(_ *engine.Info, s *seen) { s.cached.CacheState = llmapi.CacheNull }, Missing, "--enable-cache-report"},
		{"sglang without a cache", sgl, func(i *engine.Info, _ *seen) { i.PrefixCaching = false }, Missing, "--disable-radix-cache"},
		{"sglang without a parser", sgl, func(i *engine.Info, _ *seen) { i.NoToolParser = true }, Missing, "--tool-call-parser"},
		{"sglang that ignores ranks", sgl, func(i *engine.Info, _ *seen) { i.Ranks, i.Version = 4, "0.5.9" }, Missing, "0.5.10"},
		{"sglang that ignores ranks for Codex", sgl, func(i *engine.Info, _ *seen) { i.Ranks, i.Version = 4, "0.5.18" }, Advice, "0.5.20"},
		{"sglang with ranks", sgl, func(i *engine.Info, _ *seen) { i.Ranks = 4 }, Advice, "one server per card"},
		{"sglang with memory to spare", sgl, func(_ *engine.Info, s *seen) { s.hostMemory = 80 << 30 }, Advice, "--hicache-size 64"},
		{"sglang, small context", sgl, func(i *engine.Info, _ *seen) { i.Models[0].MaxModelLen = 8192 }, Missing, "--context-length to 32768"},
		{"llama.cpp without metrics", llama, func(i *engine.Info, _ *seen) { i.HasMetrics = false }, Advice, "--metrics"},
		{"llama.cpp without a template for tools", llama, func(i *engine.Info, _ *seen) { i.NoToolParser = true }, Missing, "--jinja"},
		{"llama.cpp that refuses tools", llama, func(i *engine.Info, s *seen) { i.NoToolParser, s.tools = true, reply{status: 500} }, Missing, "--jinja"},
		{"llama.cpp with one slot", llama, func(i *engine.Info, _ *seen) { i.Slots = 1 }, Advice, "--parallel N"},
		{"llama.cpp with slots of its own choice", llama, func(i *engine.Info, _ *seen) { i.Slots = 4 }, Advice, "give --parallel and -c"},
		{"llama.cpp with small slots", llama, func(i *engine.Info, _ *seen) { i.Models[0].MaxModelLen = 8192 }, Missing, "raise -c so that each slot has 32768"},
		{"llama.cpp with memory to spare", llama, func(_ *engine.Info, s *seen) { s.hostMemory = 80 << 30 }, Advice, "--cache-ram 65536"},
	} {
		t.Run(test.name, func(t *testing.T) {
			helps := func(findings []Finding) bool {
				for _, f := range findings {
					if f.Level == test.level && strings.Contains(f.Remedy, test.remedy) {
						return true
					}
				}
				return false
			}
			i, s := test.info, answers
			i.Models = append([]engine.Model(nil), i.Models...)
			if helps(judge(i, s)) {
				t.Fatalf("said before anything is wrong: %+v", judge(i, s))
			}
			test.change(&i, &s)
			got := judge(i, s)
			if !helps(got) {
				t.Errorf("no %v with %q: %+v", test.level, test.remedy, got)
			}
			for _, f := range got {
				if strings.Contains(f.Remedy, "vLLM") || f.Level == Missing && f.Remedy == "" {
					t.Errorf("finding %+v", f)
				}
			}
		})
	}
	if got := judge(sgl, answers); !has(got, Missing, "attribution line") {
		t.Errorf("that SGLang keeps the attribution line is not said: %+v", got)
	}
	if got := judge(llama, answers); Worst(got) != Good {
		t.Errorf("a llama-server that lacks nothing: %+v", got)
	}
}

// TestWhatAClientSends lets a client take turns and compares what is said of
// them.
func TestWhatAClientSends(t *testing.T) {
	base := simulated(t, server.Options{Version: "0.32.0", Models: []string{"real-name"}})
	var mu sync.Mutex
	var heard [][]Finding
	c, err := NewClients(base, "", "real-name", func(m string) bool { return m == "real-name" }, func(_ string, f []Finding) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, f)
	})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(c)
	defer front.Close()
	send := func(session, system, messages string) {
		t.Helper()
		body := `{"model":"claude-x","max_tokens":2,"stream":true,"system":"` + system + `","messages":[` + messages + `],` +
			`"tools":[{"name":"look","input_schema":{"type":"object"}}]}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL+"/v1/messages", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if session != "" {
			req.Header.Set("X-Claude-Code-Session-Id", session)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), "message_stop") {
			t.Fatalf("status %d: %s", resp.StatusCode, answer)
		}
	}
	const first = `{"role":"user","content":"begin"}`
	const more = first + `,{"role":"assistant","content":"yes"},{"role":"user","content":"go on"}`
	const id = "11111111-2222-4333-8444-555555555555"
	for i, test := range []struct {
		session, system, messages string
		level                     Level
		says                      string
	}{
		{id, "be kind", first, Good, "session id in x-claude-code-session-id"},
		{id, "be kind", more, Good, "continues the prompt of the turn before, 1 messages"},
		{id, "be kind at 12:01", more, Missing, "the system prompt changed"},
		{id, "be kind at 12:01", strings.Replace(more, "begin", "BEGIN", 1), Advice, "message 1 of 3 differs"},
		{"", "x-anthropic-billing-header: cc_version=2.1.120", `{"role":"user","content":"another"}`, Advice, "an attribution line"},
		{"", "be kind", `{"role":"user","content":"a third"}`, Advice, "no session id"},
	} {
		send(test.session, test.system, test.messages)
		mu.Lock()
		if len(heard) != i+1 || !has(heard[i], test.level, test.says) {
			t.Errorf("turn %d: %+v, want %q", i, heard[len(heard)-1], test.says)
		}
		mu.Unlock()
	}
}
