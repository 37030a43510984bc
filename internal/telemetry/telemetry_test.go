package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func newMetrics(t *testing.T, pools ...Pool) (*Metrics, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	m, err := NewMetrics(Options{
		Registerer: r,
		Build:      Build{Version: "0.1.0", Commit: "abc", Go: "go1.26"},
		Pools:      func() []Pool { return pools },

		HistoryDropped: func() int64 { return 3 },
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, r
}

// scrape is the lines of the page, without comments and histogram buckets.
func scrape(t *testing.T, r *prometheus.Registry) []string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(r, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(w.Body.String()), "\n"), func(l string) bool {
		return strings.HasPrefix(l, "#") || strings.Contains(l, "_bucket{")
	})
}

func TestScrape(t *testing.T) {
	m, r := newMetrics(t, Pool{
		Model: "m", EngineInFlight: 1, Waiting: 5,
		Replicas: []Replica{
			{InFlight: 2, Conversations: 3, ScrapeAge: 1500 * time.Millisecond, State: "ready", Running: 2, KVUsed: .25, KVCached: 1600},
			{ScrapeAge: -1, State: "down", Running: -1, Waiting: -1, KVUsed: math.NaN(), KVCached: -1},
		},
	}, Pool{Model: "down", Waiting: -1})
	m.Observe(Request{Model: "m", Replica: "0", Reason: "stayed", Outcome: "ok", TTFB: time.Second, Duration: 2 * time.Second,
		Prompt: 100, Cached: 80, Completion: 7, Known: true, CachedKnown: true})
	m.Observe(Request{Model: "m", Replica: "1", Reason: "spilled", Why: "home full", Outcome: "ok", Duration: time.Second,
		Prompt: 50, Completion: 3, Known: true})
	m.Observe(Request{Model: "m", Replica: "1", Reason: "moved", Why: "home down", Outcome: "cancelled", Duration: time.Second, Waited: 500 * time.Millisecond})
	m.Observe(Request{Outcome: "client_error", Duration: time.Millisecond})
	want := []string{
		`warden_build_info{commit="abc",goversion="go1.26",version="0.1.0"} 1`,
		`warden_completion_tokens_total{model="m",replica="0"} 7`,
		`warden_completion_tokens_total{model="m",replica="1"} 3`,
		`warden_conversations{model="m",replica="0"} 3`,
		`warden_conversations{model="m",replica="1"} 0`,
		`warden_engine_running{model="m",replica="0"} 2`,
		`warden_engine_waiting{model="m",replica="0"} 0`,
		`warden_history_dropped_total 3`,
		`warden_in_flight{model="down",replica="engine"} 0`,
		`warden_in_flight{model="m",replica="0"} 2`,
		`warden_in_flight{model="m",replica="1"} 0`,
		`warden_in_flight{model="m",replica="engine"} 1`,
		`warden_kv_cached_tokens{model="m",replica="0"} 1600`,
		`warden_kv_used_ratio{model="m",replica="0"} 0.25`,
		`warden_moves_total{model="m",replica="1",why="home down"} 1`,
		`warden_prompt_tokens_total{model="m",replica="0",source="cached"} 80`,
		`warden_prompt_tokens_total{model="m",replica="0",source="computed"} 20`,
		`warden_prompt_tokens_total{model="m",replica="1",source="unmeasured"} 50`,
		`warden_replica_state{model="m",replica="0",state="ready"} 1`,
		`warden_replica_state{model="m",replica="1",state="down"} 1`,
		`warden_request_seconds_sum{model="m"} 4`,
		`warden_request_seconds_count{model="m"} 3`,
		`warden_request_seconds_sum{model="none"} 0.001`,
		`warden_request_seconds_count{model="none"} 1`,
		`warden_requests_total{model="m",outcome="cancelled",reason="moved",replica="1"} 1`,
		`warden_requests_total{model="m",outcome="ok",reason="spilled",replica="1"} 1`,
		`warden_requests_total{model="m",outcome="ok",reason="stayed",replica="0"} 1`,
		`warden_requests_total{model="none",outcome="client_error",reason="none",replica="none"} 1`,
		`warden_scrape_age_seconds{model="m",replica="0"} 1.5`,
		`warden_spills_total{model="m",replica="1",why="home full"} 1`,
		`warden_ttfb_seconds_sum{model="m"} 1`,
		`warden_ttfb_seconds_count{model="m"} 1`,
		`warden_wait_seconds_sum{model="m"} 0.5`,
		`warden_wait_seconds_count{model="m"} 1`,
		`warden_waiting{model="m"} 5`,
	}
	if diff := cmp.Diff(want, scrape(t, r)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Tokens{Cached: 80, Computed: 20, Unmeasured: 50, Completion: 10}, m.Tokens("m")); diff != "" {
		t.Error(diff)
	}
}

// TestDocumentation compares docs/metrics.md with what is registered, names and
// labels.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(warden_[a-z_]+\\{[a-z,]*\\})` \\| (\\w+) ").FindAllSubmatch(text, -1) {
		documented = append(documented, string(m[1])+" "+string(m[2]))
	}
	m, r := newMetrics(t, Pool{Model: "m", Replicas: []Replica{{}}})
	for _, reason := range []string{"moved", "spilled"} {
		m.Observe(Request{Model: "m", Replica: "0", Reason: reason, Why: "w", Outcome: "ok", TTFB: 1, Waited: 1, Prompt: 1, Known: true})
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var registered []string
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		registered = append(registered, fmt.Sprintf("%s{%s} %s", f.GetName(), strings.Join(labels, ","), strings.ToLower(f.GetType().String())))
	}
	for i, d := range documented {
		name, rest, _ := strings.Cut(d, "{")
		labels, kind, _ := strings.Cut(rest, "}")
		sorted := strings.Split(labels, ",")
		slices.Sort(sorted)
		documented[i] = name + "{" + strings.Join(sorted, ",") + "}" + kind
	}
	slices.Sort(documented)
	slices.Sort(registered)
	if diff := cmp.Diff(documented, registered); diff != "" {
		t.Errorf("documented -, registered +\n%s", diff)
	}
}

func TestLabelsAreBounded(t *testing.T) {
	m, r := newMetrics(t)
	for i := range 2000 {
		s := fmt.Sprint(i)
		m.Observe(Request{Model: s, Replica: s, Reason: s, Outcome: s})
	}
	models := map[string]bool{}
	for _, l := range scrape(t, r) {
		if s := regexp.MustCompile(`^warden_request_seconds_count\{model="(\w+)"\}`).FindStringSubmatch(l); s != nil {
			models[s[1]] = true
		}
	}
	if len(models) != 257 || !models["other"] {
		t.Errorf("%d models, other: %v", len(models), models["other"])
	}
}

func TestNonsenseOfAnEngineDoesNotPanic(t *testing.T) {
	m, r := newMetrics(t, Pool{Model: "\xff", Replicas: []Replica{{}}})
	m.Observe(Request{Model: "\xff", Replica: "\xfe", Reason: "stayed", Outcome: "ok", Prompt: -5, Cached: 9, Completion: -1, Known: true, CachedKnown: true})
	m.Observe(Request{Model: "\xff", Replica: "0", Reason: "stayed", Outcome: "ok", Prompt: 5, Cached: math.MaxInt64, Completion: 1, Known: true, CachedKnown: true})
	if diff := cmp.Diff(Tokens{Cached: 5, Completion: 1}, m.Tokens("\xff")); diff != "" {
		t.Error(diff)
	}
	scrape(t, r)
}

func TestObserveFromManyGoroutines(t *testing.T) {
	m, r := newMetrics(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				m.Observe(Request{Model: "m", Replica: "0", Reason: "stayed", Outcome: "ok", Prompt: 1, Completion: 1, Known: true})
			}
		})
	}
	wg.Wait()
	if got := m.Tokens("m").Unmeasured; got != 800 {
		t.Errorf("%d tokens", got)
	}
	if want := `warden_requests_total{model="m",outcome="ok",reason="stayed",replica="0"} 800`; !slices.Contains(scrape(t, r), want) {
		t.Errorf("no %s", want)
	}
}

func TestNewMetricsNeedsItsParts(t *testing.T) {
	if _, err := NewMetrics(Options{}); err == nil {
		t.Error("no error without a registerer")
	}
	_, r := newMetrics(t)
	if _, err := NewMetrics(Options{Registerer: r, Pools: func() []Pool { return nil }}); err == nil {
		t.Error("no error for a second registration")
	}
}

func TestRegistryHasTheRuntime(t *testing.T) {
	if page := strings.Join(scrape(t, NewRegistry()), "\n"); !strings.Contains(page, "go_goroutines ") {
		t.Error(page)
	}
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	l, err := NewLogger(&b, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	l.Info("not this")
	l.Warn("this", "n", 1)
	if line := b.String(); !regexp.MustCompile(`^\{"time":"[^"]+Z","level":"WARN","msg":"this","n":1\}\n$`).MatchString(line) {
		t.Error(line)
	}
	for _, c := range [][2]string{{"loud", "text"}, {"info", "xml"}} {
		if _, err := NewLogger(io.Discard, c[0], c[1]); err == nil || !strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("%v: %v", c, err)
		}
	}
}
