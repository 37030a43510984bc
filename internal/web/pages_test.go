package web

import (
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/access"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
)

// says reports what a page does not say.
func says(t *testing.T, page string, wants ...string) {
	t.Helper()
	text := words(page)
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say: %s", want)
		}
	}
}

func TestOverviewTilesAndEvents(t *testing.T) {
	p := box()
	page := get(t, newHandler(t, talk(p), []Pool{p}, full(t)), "/")
	// One request a second, 50 tokens each; the running minute has just begun and
	// counts as a second.
	says(t, page, "Requests a minute59", "Output tokens a second49", "Cached share of prompt80%", "Time to first byte, p952.8 s",
		"Replica 3 is down: connection refused.", "The warden started.", "in the last hour")
	if n := strings.Count(page, `class="tile"`); n != 4 {
		t.Errorf("%d tiles", n)
	}
	if !strings.Contains(page, `data-time="2026-10-04T10:13:00Z"`) {
		t.Error("the chart has no column an hour ago")
	}
}

func TestYoungGatewayShowsAQuarterOfAnHour(t *testing.T) {
	young := func(o *Options) { o.Now = func() time.Time { return since.Add(3 * time.Minute) } }
	page := get(t, newHandler(t, nil, []Pool{box()}, full(t), young), "/")
	says(t, page, "in the last 15 minutes")
	if n := strings.Count(page, `class="hit"`); n != 90 {
		t.Errorf("%d columns, want 90 of ten seconds", n)
	}
}

func TestPagesWithoutAHistory(t *testing.T) {
	broken := func(o *Options) {
		o.History = &fakeHistory{err: errors.New("the history cannot be read now: disk full")}
	}
	p := box()
	table := talk(p)
	for _, path := range []string{"/", "/models/qwen3-4b-dp4", "/conversations", "/conversations/" + table[0].Name, "/stats", "/stats?measure=ttfb", "/benchmarks", "/settings", "/connect"} {
		get(t, newHandler(t, table, []Pool{p}), path)
		page := get(t, newHandler(t, table, []Pool{p}, broken), path)
		if (path == "/" || strings.HasPrefix(path, "/stats")) && !strings.Contains(words(page), "The history cannot be read now: disk full.") {
			t.Errorf("%s does not say what is wrong", path)
		}
	}
}

func TestModelPageLastHour(t *testing.T) {
	p := box()
	p.view.Routing.WorkingSet.Shared = 100
	h := newHandler(t, talk(p), []Pool{p}, full(t))
	page := get(t, h, "/models/qwen3-4b-dp4")
	says(t, page,
		// 100 of 1000 are found everywhere, the other 700 at one of four: 275.
		"In the last hour 80% of prompt tokens came from the cache; routing without memory would give about 28% (a turn finds its history at one of 4 replicas, the 100 tokens that all share at each).",
		"7 moved, 2 spilled in the last hour.", "home down", "home full",
		"moved872k", "evicted39k",
		"Time to first byte, all3,5400.38 s", "Time to first byte, cached turns",
	)
	if strings.Contains(words(page), "none90") {
		t.Error("turns that were cached stand in the ledger")
	}
	p.view.Routing.Learned = routing.Learned{
		Throughput: routing.Measured{Value: 0.5, Samples: 40}, Rereading: routing.Measured{Value: 0.3, Samples: 50},
		Estimated: routing.Measured{Value: 0.9, Samples: 60},
	}
	p.view.Routing.Queue.Patience = 26 * time.Second
	says(t, get(t, h, "/models/qwen3-4b-dp4"), "throughput30 turns/min40", "pushed out30%50", "0.90 of its tokens60", "kept for it26 s")
	p.view.Routing.Policy = "off"
	if page := get(t, h, "/models/qwen3-4b-dp4"); strings.Contains(page, "without memory") {
		t.Error("an estimate for routing without memory, while that is what is on")
	}
	p.view.Waiting, p.view.Routing.Queue = 3, routing.QueueView{Waiting: 3, Longest: 12 * time.Second, Wait: 20 * time.Second}
	p.view.Routing.Policy, p.view.Routing.Instead, p.view.Routing.InsteadWhy = "patience", "affinity", routing.TierServes
	p.view.Routing.Shadow = &routing.ShadowView{Policy: "round-robin", Requests: 2000, Same: 500, Held: 20}
	says(t, get(t, h, "/models/qwen3-4b-dp4"), "Affinity decides in place of patience: the engines keep in host memory what their caches push out, so that waiting would win nothing.",
		"Shadow round-robin: of 2,000 requests it would have sent 25% to the same replica at once and let 1% wait.")
	p.view.Held = []pool.Held{{RequestID: "r1", Conversation: "c-1", Waiting: routing.Waiting{Waited: 12 * time.Second, Wait: 8 * time.Second, Why: routing.HomeBusy}}, {RequestID: "r2", Waiting: routing.Waiting{Why: routing.NoRoom}}}
	says(t, get(t, h, "/models/qwen3-4b-dp4"), "c-1 waits for 12 s, probably 8 s more: its history is at its home, where it did not fit", "request r2 waits for 0 ms: it fitted on no replica beside what was there",
		"3 requests wait at the gateway until a replica takes them on, the longest for 12 s already; one that came now would wait about 20 s.")
}

func TestDecisionsByReason(t *testing.T) {
	p := box()
	h := newHandler(t, talk(p), []Pool{p})
	page := get(t, h, "/models/qwen3-4b-dp4?reason=spilled")
	says(t, page, "home 2 is full; in flight 1 3", "replica 1: 3 in flight, KV 0.0%, 0 live conversations of 0 tokens")
	if strings.Contains(page, "went home") {
		t.Error("another decision is shown")
	}
	if w := call(h, "GET", "/models/qwen3-4b-dp4?reason=%3Cb%3E", ""); w.Code != 400 || !strings.Contains(words(w.Body.String()), `Reason "<b>": must be one of placed, stayed,`) {
		t.Errorf("%d %s", w.Code, words(w.Body.String()))
	}
}

func TestConversationTable(t *testing.T) {
	p := box()
	table := talk(p)
	h := newHandler(t, table, []Pool{p})
	page := get(t, h, "/conversations?sort=turns&client=claude-cli")
	says(t, page, "12 live conversations, 40 with a home", table[0].Name, "claude-cli", "9k", "88.9%", "sub-agent", "0 s ago")
	for _, want := range []string{
		`aria-sort="descending"><a href="/conversations?client=claude-cli&amp;sort=turns">Turns`,
		`href="/conversations?client=claude-cli&amp;sort=prompt_tokens"`,
		`<a href="/conversations/` + table[0].Name + `">`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("not in the page: %s", want)
		}
	}
	if w := call(h, "GET", "/conversations?sort=bogus", ""); w.Code != 400 || !strings.Contains(words(w.Body.String()), `Sort "bogus": must be one of last_seen.`) {
		t.Errorf("%d %s", w.Code, words(w.Body.String()))
	}
	if w := call(h, "GET", "/conversations?model=none", ""); w.Code != 404 {
		t.Errorf("an unknown model: %d", w.Code)
	}
	w := call(h, "GET", "/conversations?id=c-1%2F2", "")
	if w.Code != 303 || w.Header().Get("Location") != "/conversations/c-1%2F2" {
		t.Errorf("find: %d %s", w.Code, w.Header().Get("Location"))
	}
}

func TestLongConversationTableHasPages(t *testing.T) {
	p := box()
	var table fakeTable
	for i := range 60 {
		k := session.Key{byte(i), 1}
		table = append(table, session.Conversation{Key: k, Name: k.Name(), Model: "qwen3-4b-dp4", FirstSeen: since, LastSeen: now})
	}
	h := newHandler(t, table, []Pool{p})
	page := get(t, h, "/conversations?sort=turns")
	if n := strings.Count(page, "data-conversation="); n != 50 {
		t.Errorf("%d rows", n)
	}
	if !strings.Contains(page, `href="/conversations?cursor=next-page&amp;sort=turns" rel="next"`) {
		t.Error("no link to the next page")
	}
	if page := get(t, h, "/conversations?cursor=x"); !strings.Contains(page, `href="/conversations">First page`) {
		t.Error("no way back to the first page")
	}
	p.view.Routing.Known = 1_000_000
	if page := get(t, h, "/conversations"); !strings.Contains(page, `data-refresh="5000"`) || !strings.Contains(words(page), "1,000,000 with a home") {
		t.Error("a million conversations are listed each second")
	}
}

func TestConversationTurnByTurn(t *testing.T) {
	p := box()
	table := talk(p)
	h := newHandler(t, table, []Pool{p}, full(t))
	path := "/conversations/" + table[0].Name
	page := get(t, h, path)
	says(t, page,
		"3 turns in 3 h 12 min · context 9k tokens", "one request open",
		"Turn 3 read 12.9k tokens again. We moved the conversation to a replica where nothing of it was cached. It was at replica 2 (home down) and went to 1.",
		"Turn 4 read 4.9k tokens again. The client changed its own prompt. Message 6 is not what it sent a turn before: changed at byte 1,216 of the message, within 64 bytes; the message begins at byte 38,204 of the request.",
		"Sub-agents", table[1].Name, "waited 1 s", "1.5 s", "✕ engine error",
	)
	for _, want := range []string{
		`data-api="/api` + path + `/cancel"`, `data-api="/api` + path + `/move" data-field="replica"`, `data-api="/api` + path + `/release"`,
		`<rect class="fill-r2"`, `<text class="on fill-r1"`, `data-say="turn 3: prompt, cached (measured) 0 · prompt, computed 13.2k · completion 100 · replica 1"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("not in the page: %s", want)
		}
	}
	child := get(t, h, "/conversations/"+table[1].Name)
	says(t, child, table[0].Name+" / "+table[1].Name, "home none", "No turn has ended yet.")
	if w := call(h, "GET", path+"?before=x", ""); w.Code != 400 {
		t.Errorf("before=x: %d", w.Code)
	}
	if w := call(h, "GET", "/conversations/%3Cscript%3E", ""); w.Code != 404 || strings.Contains(w.Body.String(), "<script>\"") || !strings.Contains(words(w.Body.String()), `no conversation "<script>"`) {
		t.Errorf("%d %s", w.Code, words(w.Body.String()))
	}
}

func TestManyTurnsHavePages(t *testing.T) {
	p := box()
	table := talk(p)
	f := &fakeHistory{}
	for i := 100; i > 0; i-- {
		f.turns = append(f.turns, stats.Turn{ID: int64(i), Record: stats.Record{Time: now.Add(time.Duration(i-100) * time.Second), Conversation: table[0].Name, Outcome: "ok", Prompt: 10, Cached: 5, Completion: 1}})
	}
	h := newHandler(t, table, []Pool{p}, func(o *Options) { o.History = f })
	page := get(t, h, "/conversations/"+table[0].Name)
	if !strings.Contains(page, `href="/conversations/`+table[0].Name+`?before=61">Earlier turns`) {
		t.Error("no link to earlier turns")
	}
	if page := get(t, h, "/conversations/"+table[0].Name+"?before=61"); !strings.Contains(page, "Latest turns") || !strings.Contains(page, "?before=21") {
		t.Error("no way on from earlier turns")
	}
}

func TestStatsPages(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()}, full(t))
	says(t, get(t, h, "/stats"), "Tokens per second", "80% of prompt tokens came from the prefix cache over the last hour",
		"All3,570,0002,856,000714,0000178,50080.0%", "moved", "We moved the conversation", "By hour and replica",
		"4 Oct 08:00 UTC2evicted39,000", "4 Oct 08:00 UTC0moved12,000")
	says(t, get(t, h, "/stats?group=replica&range=6h"), "By replica", "replica 0", "chosen by the engine", "over the last 6 h")
	says(t, get(t, h, "/stats?measure=requests&model=qwen3-4b-dp4"), "Requests per minute", "3,570 requests ended over the last hour", "Spilled or moved")
	says(t, get(t, h, "/stats?measure=ttfb"), "2.8 s or less to the first byte for 95 of 100 requests", "Requests behind each percentile")
	says(t, get(t, h, "/stats?measure=wait"), "10% of requests waited at the gateway over the last hour", "Wait at the gateway", "357", "4 s", "9 s", "Requests behind each percentile")
	says(t, get(t, h, "/stats?measure=errors&group=client"), "of requests failed", `<b>"évil"</b>`, "no name")
	page := get(t, h, "/stats?range=24h&group=replica&measure=ttfb")
	for _, want := range []string{
		`href="/stats?group=replica&amp;measure=ttfb&amp;range=7d"`, `aria-current="true">Day`, `aria-current="true">By replica`,
		`href="/api/stats/requests?format=csv&amp;group=replica&amp;range=24h&amp;step=1800s" download`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("not in the page: %s", want)
		}
	}
	// Small multiples have one axis.
	page = get(t, h, "/stats?group=replica")
	axes := regexp.MustCompile(`(?s)<svg class="y".*?</svg>`).FindAllString(page, -1)
	if len(axes) != 3 || axes[0] != axes[1] || axes[1] != axes[2] {
		t.Errorf("%d axes that differ", len(axes))
	}
}

func TestWrongStats(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()}, full(t))
	for query, want := range map[string]string{
		"from=2026-10-04T09:00:00Z&to=2026-10-04T08:00:00Z": "must be before to",
		"range=-1h":               "must be a length of time",
		"range=forever":           "must be a length of time",
		"group=colour":            "must be none, replica or client",
		"group=%3Cscript%3E":      "must be none, replica or client",
		"step=7s":                 "multiple of 10s",
		"step=10s&range=2400h":    "kept for",
		"range=1h&from=yesterday": "",
	} {
		for _, path := range []string{"/stats", "/api/stats/tokens", "/api/stats/requests", "/api/stats/moves", "/api/stats/causes", "/api/stats/replicas"} {
			w := call(h, "GET", path+"?"+query, "")
			body := w.Body.String()
			if w.Code != 400 || !strings.Contains(body, want) || strings.Contains(body, "<script>\"") {
				t.Errorf("%s?%s: %d %s", path, query, w.Code, words(body))
			}
		}
	}
	for path, status := range map[string]int{
		"/stats?measure=colour": 400, "/stats?model=none": 404, "/api/stats/tokens?model=none": 404, "/api/stats/tokens?format=xml": 400,
		"/benchmarks?run=before&run=after&run=x": 400, "/benchmarks?run=before&run=none": 404, "/benchmarks/..%2F..%2Fetc": 404, "/benchmarks/before/..%2Fresults.json": 404,
		"/benchmarks/before/results.json": 404, "/benchmarks/none": 404, "/api/benchmarks/none": 404, "/api/benchmarks?run=before": 400,
	} {
		if w := call(h, "GET", path, ""); w.Code != status {
			t.Errorf("%s: %d, want %d", path, w.Code, status)
		}
	}
	for _, path := range []string{"tokens", "requests", "moves", "causes", "replicas"} {
		if w := call(newHandler(t, nil, nil), "GET", "/api/stats/"+path, ""); w.Code != http.StatusNotImplemented {
			t.Errorf("%s without a history: %d", path, w.Code)
		}
	}
}

func TestTokensAsJSONAndCSV(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()}, full(t))
	w := call(h, "GET", "/api/stats/tokens?from=2026-10-04T09:00:00Z&to=2026-10-04T09:00:20Z&step=10s", "")
	sameJSON(t, `{"range": {"model": null, "from": "2026-10-04T09:00:00Z", "to": "2026-10-04T09:00:20Z", "step_s": 10, "group": "none"},
		"series": [{"time": "2026-10-04T09:00:00Z", "group": null, "cached": 8000, "computed": 2000, "unmeasured": 0, "completion": 500},
		{"time": "2026-10-04T09:00:10Z", "group": null, "cached": 8000, "computed": 2000, "unmeasured": 0, "completion": 500}], "cached_percent": 80.0}`, w.Body.String())
	w = call(h, "GET", "/api/stats/tokens?from=2026-10-04T09:00:00Z&to=2026-10-04T09:00:10Z&step=10s&group=client&format=csv", "")
	want := "time,group,cached,computed,unmeasured,completion\n" +
		"2026-10-04T09:00:00Z,\"<b>\"\"évil\"\"</b>\",8000,2000,0,500\n" +
		"2026-10-04T09:00:00Z,'=cmd(),8000,2000,0,500\n" + // not a formula of a spreadsheet
		"2026-10-04T09:00:00Z,,8000,2000,0,500\n"
	if got := w.Body.String(); got != want || w.Header().Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Errorf("%s\n%s", w.Header().Get("Content-Type"), got)
	}
}

func TestBenchmarkPages(t *testing.T) {
	var folder string
	h := newHandler(t, nil, []Pool{box()}, full(t), func(o *Options) { folder = o.Benchmarks })
	if err := os.MkdirAll(filepath.Join(folder, "broken"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "broken", "results.json"), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	says(t, get(t, h, "/benchmarks"), "before", "after", "off → affinity", "16 sessions: output tok/min 9,558 → 9,558", "broken", "cannot be read")
	page := get(t, h, "/benchmarks/before")
	says(t, page, "off → affinity", "3.27 → 2.27", "Workload", `"turns": 6`, "turn 2")
	if !strings.Contains(page, `<img src="/benchmarks/before/ttfb.svg"`) {
		t.Error("no figure")
	}
	says(t, get(t, h, "/benchmarks/broken"), "It cannot be read")
	says(t, get(t, h, "/benchmarks?run=before&run=after"), "off, 16 sessions", "-1.00 to -1.00", "better", "TTFB p50 s")
	w := call(h, "GET", "/benchmarks/before/ttfb.svg", "")
	if w.Code != 200 || w.Header().Get("Content-Type") != "image/svg+xml" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("figure: %d %v", w.Code, w.Header())
	}
	// A link out of the folder is not followed.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.MkdirAll(secret, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(secret, "results.json"), []byte(`{"schema":1}`), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	if w := call(h, "GET", "/benchmarks/link", ""); w.Code != 404 {
		t.Errorf("a link out of the folder: %d", w.Code)
	}
}

func TestSettingsPage(t *testing.T) {
	page := get(t, newHandler(t, nil, []Pool{box()}, full(t)), "/settings")
	says(t, page, "Read from warden.yaml", "The latest reload was taken.", "listen: 127.0.0.1:8100", "Requests for 30 days.", "Commitabc",
		"ciqwen3-*, small8120batch3", "farmallno limitno limitinteractive0", "qwen3-4b-dp424no limit7")
	page = get(t, newHandler(t, nil, nil, func(o *Options) {
		o.Settings = func() Settings { return Settings{Path: "warden.yaml", Failed: "warden.yaml:3:5: <b>unknown key</b>"} }
	}), "/settings")
	says(t, page, "The latest reload was refused", "warden.yaml:3:5: <b>unknown key</b>", "None is set: whoever reaches the listener for clients may ask.")
}

func TestReadingTheConfigurationAgain(t *testing.T) {
	refused := errors.New("warden.yaml:3:5: unknown key")
	h := newHandler(t, nil, []Pool{box()}, full(t), func(o *Options) { o.Reload = func(context.Context) error { return refused } })
	if w := call(h, "POST", "/api/settings/reload", ""); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "stays in force: warden.yaml:3:5") {
		t.Errorf("refused: %d %s", w.Code, w.Body)
	}
	refused = nil
	if w := call(h, "POST", "/api/settings/reload", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"name":"ci"`) {
		t.Errorf("taken: %d %s", w.Code, w.Body)
	}
	if w := call(newHandler(t, nil, nil), "POST", "/api/settings/reload", ""); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "made from flags") {
		t.Errorf("without a file: %d %s", w.Code, w.Body)
	}
}

func TestConversationsOfOneReplica(t *testing.T) {
	p, q := box(), box()
	q.view.Name = "other"
	table := talk(p)
	one, two := newHandler(t, table, []Pool{p}), newHandler(t, table, []Pool{p, q})
	const atHome = `<tr data-conversation="` // of a row
	for _, c := range []struct {
		h      *Handler
		query  string
		status int
		rows   int
	}{
		{one, "replica=2", 200, 1},
		{one, "replica=1", 200, 0},
		{two, "replica=2&model=qwen3-4b-dp4", 200, 1},
		{two, "replica=2", 400, 0},
		{one, "replica=4", 400, 0},
		{one, "replica=-1", 400, 0},
		{one, "replica=" + url.QueryEscape("<b>"), 400, 0},
	} {
		page, list := call(c.h, "GET", "/conversations?"+c.query, ""), call(c.h, "GET", "/api/conversations?"+c.query, "")
		if page.Code != c.status || list.Code != c.status || strings.Contains(page.Body.String(), "replica \"<b>") {
			t.Errorf("%s: page %d, API %d, want %d", c.query, page.Code, list.Code, c.status)
		}
		if n := strings.Count(page.Body.String(), atHome); n != c.rows {
			t.Errorf("%s: %d rows, want %d", c.query, n, c.rows)
		}
		if n := strings.Count(list.Body.String(), `"id":`); n != c.rows {
			t.Errorf("%s: %d rows of the API, want %d", c.query, n, c.rows)
		}
	}
	page := get(t, two, "/conversations?model=qwen3-4b-dp4&replica=2&sort=turns")
	for _, link := range []string{
		`href="/conversations?model=qwen3-4b-dp4&amp;replica=3&amp;sort=turns"`,
		`href="/conversations?model=other&amp;sort=turns"`, // the other model's replicas are others
		`href="/conversations?model=qwen3-4b-dp4&amp;sort=turns"`,
	} {
		if !strings.Contains(page, link) {
			t.Errorf("no link %s", link)
		}
	}
}

func TestConnectPage(t *testing.T) {
	p := box()
	h := newHandler(t, talk(p), []Pool{p}, full(t))
	says(t, get(t, h, "/connect"), "export ANTHROPIC_BASE_URL=http://127.0.0.1:9000", "arrived c-71f2a09c0000", "its id x-claude-code-session-id", "its history no id was sent", "not seen in the last 15 minutes")
	// What an engine calls its model must not become part of a command.
	p.view.Name = "$(rm -rf /)"
	if page := words(get(t, h, "/connect")); strings.Contains(page, "=$(rm") || !strings.Contains(page, "OPENAI_MODEL=MODEL") {
		t.Error("a model's name became a command")
	}
}

func TestOneModelIsItsOwnList(t *testing.T) {
	p, q := box(), box()
	q.view.Name = "org/other"
	if w := call(newHandler(t, nil, []Pool{p}), "GET", "/models", ""); w.Code != 303 || w.Header().Get("Location") != "/models/qwen3-4b-dp4" {
		t.Errorf("%d %s", w.Code, w.Header().Get("Location"))
	}
	page := get(t, newHandler(t, nil, []Pool{p, q}), "/models")
	if !strings.Contains(page, `href="/models/org%2Fother"`) {
		t.Error("no link to the other model")
	}
}

// Each page, with names that people should not choose.
func TestHostileNamesEverywhere(t *testing.T) {
	const evil = `"><script>alert(1)</script>`
	p := box()
	p.view.Name = evil
	k := session.Key{9}
	table := fakeTable{{Key: k, Name: k.Name(), Model: evil, Source: evil, Client: evil, FirstSeen: since, LastSeen: now, Turns: 1}}
	f := &fakeHistory{turns: []stats.Turn{{ID: 1, Record: stats.Record{Time: now, Conversation: k.Name(), Client: evil, Reason: evil, Why: evil, Outcome: evil, Cause: evil, Reread: 1, Changed: stats.Change{Part: evil}}}}}
	h := newHandler(t, table, []Pool{p, box()}, full(t), func(o *Options) {
		o.History = f
		o.Events = func(int) []Event { return []Event{{now, evil, evil, evil}} }
		o.Settings = func() Settings {
			return Settings{YAML: evil, Path: evil, Failed: evil, Keeps: []string{evil}, Keys: []access.View{{Name: evil, Models: []string{evil}}}}
		}
		o.ClientURL = func() string { return evil }
	})
	for _, path := range []string{"/", "/models", "/models/" + url.PathEscape(evil), "/conversations", "/conversations?client=" + url.QueryEscape(evil), "/conversations/" + k.Name(),
		"/stats?group=client", "/stats?model=" + url.QueryEscape(evil), "/settings", "/connect", "/connect?model=" + url.QueryEscape(evil)} {
		if page := get(t, h, path); strings.Contains(page, "<script>alert") || strings.Contains(page, `""><`) {
			t.Errorf("%s carries the script", path)
		}
	}
}

func TestEventsOfPools(t *testing.T) {
	p := box()
	l := NewEventLog(func() []Pool { return []Pool{p} })
	look := func(w watched, known bool) (watched, []string) {
		next, events := w.next(p.view, known, p.Receipts)
		var texts []string
		for _, e := range events {
			texts = append(texts, e.Text)
		}
		return next, texts
	}
	w, texts := look(watched{}, false)
	if len(texts) != 0 {
		t.Errorf("the first look reports %q", texts)
	}
	p.view.Replicas[3].State, p.view.Servers[0].Error = routing.Down, "connection refused"
	p.view.Replicas[0].Load.Epoch = 2
	p.view.Routing.Policy = "off"
	talk(p)
	p.view.Replicas[0].SpilledIn, p.view.Replicas[2].MovedIn = 2, 1
	_, texts = look(w, true)
	want := []string{
		"The policy is off now, it was affinity.",
		"Replica 0 restarted: its cache is cold (epoch 2).",
		"Replica 3 is down: connection refused. 3 conversations move at their next turn.",
		"Conversation c-71f2a09c0000 moved from replica 3 to 2: home down.",
		"Conversation c-71f2a09c0000 spilled from replica 2 to 0: home full.",
	}
	if strings.Join(texts, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(texts, "\n"), strings.Join(want, "\n"))
	}
	for range maxEvents + 5 {
		l.Add("info", "", "again")
	}
	if n := len(l.Newest(1000)); n != maxEvents {
		t.Errorf("%d events are kept", n)
	}
}

func TestManyMovesAreOneEvent(t *testing.T) {
	var receipts []pool.Receipt
	for i := range 7 {
		receipts = append(receipts, pool.Receipt{Time: now.Add(-time.Duration(i) * time.Second), Conversation: "c", Decision: routing.Decision{Reason: routing.Moved, Why: routing.HomeDown, From: 3, Replica: 1}})
	}
	events, latest := leftHome(receipts, now.Add(-5500*time.Millisecond))
	if len(events) != 1 || events[0].Text != "6 conversations moved from replica 3 to 1: home down." || !latest.Equal(now) {
		t.Errorf("%v %v", events, latest)
	}
}

// The whole console must load fast over a bad line.
func TestScriptAndStyleAreSmall(t *testing.T) {
	const most = 60_000
	total := 0
	err := fs.WalkDir(files, "static", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		var n counter
		z := gzip.NewWriter(&n)
		if _, err := z.Write(content); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		total += int(n)
		return nil
	})
	if err != nil || total > most || total == 0 {
		t.Errorf("%d bytes compressed, at most %d; %v", total, most, err)
	}
}

type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}
