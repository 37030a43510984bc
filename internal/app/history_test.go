package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/cause"
	"lmwarden/internal/llmapi"
	"lmwarden/internal/proxy"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
	"lmwarden/internal/telemetry"
)

// lastHour asks for all that a test does.
func lastHour() stats.Query {
	now := time.Now()
	return stats.Query{From: now.Add(-time.Hour), To: now.Add(time.Minute), Step: 10 * time.Second}
}

// awaitHistory waits until n requests are in the history and returns their sums.
func (g *testGateway) awaitHistory(n int64) stats.Tokens {
	g.t.Helper()
	await(g.t, "the history", func() error {
		if err := g.history.Flush(g.t.Context()); err != nil {
			return err
		}
		chart, err := g.history.Requests(g.t.Context(), lastHour())
		if err == nil && chart.Series[0].Total.Requests != n {
			err = fmt.Errorf("%d requests, want %d", chart.Series[0].Total.Requests, n)
		}
		return err
	})
	chart, err := g.history.Tokens(g.t.Context(), lastHour())
	if err != nil {
		g.t.Fatal(err)
	}
	return chart.Total
}

// Cached, computed and completion tokens of the history are what the engine told
// its clients.
func TestTheHistoryAddsUp(t *testing.T) {
	e := newEngine(t, 3, nil)
	g := startGateway(t, []string{e.url()}, nil).awaitReady()
	var want stats.Tokens
	n := int64(0)
	for i := range 4 {
		c := g.conversation(fmt.Sprint(i, strings.Repeat(" lorem ipsum", 100)))
		for range 3 {
			var usage struct {
				Usage struct {
					PromptTokens     int64 `json:"prompt_tokens"`
					CompletionTokens int64 `json:"completion_tokens"`
					Details          struct {
						CachedTokens int64 `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			if err := json.Unmarshal(c.turn().body, &usage); err != nil {
				t.Fatal(err)
			}
			u := usage.Usage
			want.Cached += u.Details.CachedTokens
			want.Computed += u.PromptTokens - u.Details.CachedTokens
			want.Completion += u.CompletionTokens
			n++
		}
	}
	g.post("/v1/chat/completions", []byte(`{"model":"unknown"}`))
	if got := g.awaitHistory(n + 1); got != want || got.Cached == 0 {
		t.Errorf("the history has %+v, the answers %+v", got, want)
	}
}

// Each turn that was not cached has its cause, and what it cost.
func TestWhyATurnWasNotCached(t *testing.T) {
	e := newEngine(t, 2, nil)
	g := startGateway(t, []string{e.url()}, nil).awaitReady()
	c := g.conversation(strings.Repeat("lorem ipsum ", 200), "X-Session-Id", "why-not-cached")
	api := "/api/conversations/" + c.turn().header.Get("X-Warden-Conversation")
	c.turn()

	var shown struct{ Home int }
	g.admin(http.MethodGet, api, "", &shown)
	if code := g.admin(http.MethodPost, api+"/move", fmt.Sprintf(`{"replica": %d}`, 1-shown.Home), nil); code != http.StatusOK {
		t.Fatalf("move: %d", code)
	}
	c.turn()

	epoch := func() (n int) {
		var m struct{ Replicas []struct{ Epoch int } }
		g.admin(http.MethodGet, "/api/models/"+testModel, "", &m)
		for _, r := range m.Replicas {
			n += r.Epoch
		}
		return n
	}
	was := epoch()
	e.restart()
	await(t, "the restart to be seen", func() error {
		if err := g.models.Ready(); err != nil || epoch() < was+2 {
			return errors.Join(err, fmt.Errorf("epochs %d", epoch()))
		}
		return nil
	})
	c.turn()

	c.history[1]["content"] = "In other words: " + c.history[1]["content"]
	c.turn()
	c.history[0]["content"] = "x-anthropic-billing-header: cc_version=2.1.120.abc; cch=00001;\n\nYou are terse."
	c.turn()
	c.history[0]["content"] = "x-anthropic-billing-header: cc_version=2.1.120.abc; cch=00002;\n\nYou are terse."
	c.turn()
	c.turn()
	g.awaitHistory(8)

	turns, _, err := g.history.Turns(t.Context(), strings.TrimPrefix(api, "/api/conversations/"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(turns)
	type verdict struct {
		Cause, Part string
		Reread      bool
		Placed      bool // the byte is told
	}
	var got []verdict
	for _, turn := range turns {
		got = append(got, verdict{turn.Cause, turn.Changed.Part, turn.Reread > 300, turn.Changed.Within > 0})
	}
	want := []verdict{
		{string(cause.First), "", false, false},
		{string(cause.Fine), "", false, false},
		{string(cause.Moved), "", true, false},
		{string(cause.Restarted), "", true, false},
		{string(cause.Changed), cause.PartMessage, true, true},
		{string(cause.Changed), cause.PartAttribution, true, false},
		{string(cause.Changed), cause.PartAttribution, true, false},
		{string(cause.Fine), "", false, false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	ledger, err := g.history.Ledger(t.Context(), lastHour())
	if err != nil {
		t.Fatal(err)
	}
	var sum, of int64
	for _, l := range ledger {
		sum += l.Reread
	}
	for _, turn := range turns {
		of += turn.Reread
	}
	if sum != of {
		t.Errorf("the ledger has %d tokens, the turns %d", sum, of)
	}
}

// Samples hold what the engines say of each rank.
func TestSamplesOfReplicas(t *testing.T) {
	e := newEngine(t, 2, nil)
	g := startGateway(t, []string{e.url()}, nil).awaitReady()
	all := samples(time.Now(), g.models)
	if len(all) != 2 || all[1].Replica != 1 || all[1].Model != testModel || all[1].Running != 0 || all[1].KVUsed < 0 {
		t.Errorf("samples %+v", all)
	}
}

// What a record costs the data path: at most 2 µs. The goroutines that take it over
// do their work meanwhile, and outside of the measurement when much of it waits.
func BenchmarkRecord(b *testing.B) {
	history, err := stats.New(stats.Options{Path: stats.MemoryOnly, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	metrics, err := telemetry.NewMetrics(telemetry.Options{Registerer: telemetry.NewRegistry(), Pools: func() []telemetry.Pool { return nil }})
	if err != nil {
		b.Fatal(err)
	}
	turns := cause.NewDesk()
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() { turns.Run(ctx) })
	working.Go(func() { history.Run(ctx) })
	defer working.Wait()
	defer stop()
	facts := &llmapi.Facts{}
	for i := range 200 {
		facts.Sent = append(facts.Sent, llmapi.Sent{Hash: uint64(i)})
	}
	r := recorder{metrics, history, turns, &caches{}}
	rec := proxy.Record{
		Model: testModel, Identity: session.Identity{Key: session.Key{1}, Name: "c-010000000000", Turn: true}, Client: "claude-cli",
		Decision: routing.Decision{Replica: 1, Home: 1, From: 1, Reason: routing.Stayed}, Outcome: proxy.OK,
		TTFB: time.Second, Duration: 2 * time.Second, Facts: facts,
	}
	rec.Usage = llmapi.Usage{Known: true, Prompt: 50_000, Cached: 49_000, CacheState: llmapi.CacheReported, Completion: 200}
	settle := func(b *testing.B) {
		b.StopTimer()
		defer b.StartTimer()
		judged := make(chan struct{})
		turns.Judge(session.Key{1}, cause.Turn{}, cause.Cache{}, func(cause.Verdict) { close(judged) })
		<-judged
		if err := history.Flush(ctx); err != nil {
			b.Fatal(err)
		}
	}
	for name, record := range map[string]func(){
		"metrics and history": func() { r.Record(rec) },
		"history":             func() { r.keep(time.Now(), &rec) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				if record(); i%4096 == 0 {
					settle(b)
				}
			}
		})
	}
}
