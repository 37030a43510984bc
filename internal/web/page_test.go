package web

import (
	"html"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/engine"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

var tag = regexp.MustCompile(`<[^>]*>`)

// words is what a person reads of a piece of HTML.
func words(piece string) string {
	return html.UnescapeString(strings.Join(strings.Fields(tag.ReplaceAllString(piece, "")), " "))
}

// get fetches a page that must be there.
func get(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	w := call(h, "GET", path, "")
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%s: %d %s", path, w.Code, w.Header().Get("Content-Type"))
	}
	return w.Body.String()
}

// all is the words of each match's first group.
func all(page, pattern string) []string {
	var out []string
	for _, m := range regexp.MustCompile("(?s)"+pattern).FindAllStringSubmatch(page, -1) {
		out = append(out, words(m[1]))
	}
	return out
}

func pills(page string) []string { return all(page, `<span class="pill[^>]*>(.*?)</span>`) }

// rows is the words of each replica's cells.
func rows(page string) [][]string {
	var out [][]string
	for _, m := range regexp.MustCompile(`(?s)<tr data-replica.*?</tr>`).FindAllString(page, -1) {
		out = append(out, all(m, `<t[hd] [^>]*>(.*?)</t[hd]>`))
	}
	return out
}

func TestRoutingCard(t *testing.T) {
	p := box()
	p.view.Aliases = []string{"qwen", "claude-*"}
	page := get(t, newHandler(t, talk(p), []Pool{p}, func(o *Options) { o.DefaultAlias = "claude-*" }), "/models/qwen3-4b-dp4")
	if diff := cmp.Diff([]string{"Affinity on", "Spill threshold 8 (auto)", "Sticky 99.1%", "In flight 11"}, pills(page)); diff != "" {
		t.Error(diff)
	}
	heads := []string{"Replica", "In flight", "Sticky", "Spilled in", "Client-pinned", "Running", "Waiting", "Live", "KV used", "Prefix-cache hit rate", "Actions"}
	if diff := cmp.Diff(heads, all(page, `<th scope="col"[^>]*>(.*?)</th>`)[:len(heads)]); diff != "" {
		t.Error(diff)
	}
	want := [][]string{
		{"0 ready", "1", "38", "1", "0", "1", "0", "3", "31.0%", "82.2%", "Drain"},
		{"1 ready", "1", "21", "0", "0", "1", "0", "2", "28.7%", "86.0%", "Drain"},
		{"2 ready", "8", "19", "0", "0", "6", "2", "4", "93.4%", "69.0%", "Drain"},
		{"3 ready", "0", "29", "0", "1", "0", "0", "3", "0.0%", "80.0%", "Drain"},
	}
	if diff := cmp.Diff(want, rows(page)); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{
		"Qwen/Qwen3-4B-Instruct-2507 · vLLM 0.26.0 · 4 replicas behind one server · 32k context · policy affinity",
		"claude-* maps here by default, since this is the only model.", "Also answers to qwen.",
		"89% of turns went to their conversation’s replica, 10% were new, under 1% moved or spilled.",
		"1 request was placed by the engine’s own balancer.",
		"Counters run since the warden started, 4 October 2026 08:00 UTC, 3 h 12 min ago.",
		"12 conversations, 118k of 160k tokens (74%). About 4 more of this size fit before replicas begin to forget.",
		"Replica 2 holds 46k of live context and caches 40k: its conversations push each other out.",
		"new conversation; in flight 2 0", "home 2 is full; in flight 1 3", "home down, was at replica 3", "went home",
		"All 4 replicas are ready.",
	} {
		if !strings.Contains(words(page), want) {
			t.Errorf("the page does not say: %s", want)
		}
	}
	if got := len(regexp.MustCompile(`class="bar full"`).FindAllString(page, -1)); got != 1 {
		t.Errorf("%d bars are full, want that of replica 2", got)
	}
}

func TestCardBeforeTheFirstRequest(t *testing.T) {
	p := &fakePool{view: pool.View{Name: "m", Since: now, Routing: routing.View{Policy: "affinity", SpillThreshold: 8, SpillAuto: true,
		WorkingSet: routing.WorkingSet{Tokens: -1, Capacity: -1, Fits: -1}},
		Replicas: []pool.ReplicaView{{URL: "http://a", Rank: -1, PrefixHitPercent: math.NaN(), ScrapeAge: -1}},
		Servers:  []pool.ServerView{{URL: "http://a"}}}}
	page := get(t, newHandler(t, nil, []Pool{p}), "/models/m")
	if diff := cmp.Diff([]string{"Affinity on", "Spill threshold 8 (auto)", "Sticky –", "In flight 0"}, pills(page)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([][]string{{"0 unknown", "0", "0", "0", "0", "–", "–", "0", "–", "–", "Drain"}}, rows(page)); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{"No turn yet.", "Not measured yet", "not heard from yet", "No request yet.", "1 replica behind one server"} {
		if !strings.Contains(words(page), want) {
			t.Errorf("the page does not say: %s", want)
		}
	}
	if strings.Contains(page, `class="alert`) {
		t.Error("nothing is wrong yet, but something is reported")
	}
}

func TestControlsShowWhatIsInForce(t *testing.T) {
	p := box()
	p.view.Routing.Policy, p.view.Routing.SpillAuto, p.view.Routing.SpillThreshold = "off", false, 5
	p.view.Replicas[1].State = routing.Draining
	page := get(t, newHandler(t, nil, []Pool{p}), "/models/qwen3-4b-dp4")
	if diff := cmp.Diff([]string{"Affinity off", "Spill threshold 5"}, pills(page)[:2]); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{
		`name="value" value="5"`,
		`aria-checked="false" data-method="PATCH" data-api="/api/models/qwen3-4b-dp4" data-body="{&quot;affinity&quot;:&quot;on&quot;}"`,
		`data-method="POST" data-api="/api/models/qwen3-4b-dp4/replicas/1/resume"`,
		`data-method="POST" data-api="/api/models/qwen3-4b-dp4/replicas/2/drain" data-ask="Drain replica 2? It takes no new conversations; its 4 live conversations move at the next turn."`,
		`data-replica="1" data-state="draining"`,
		"The engine’s own balancer chooses",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("not in the page: %s", want)
		}
	}
}

func TestNotes(t *testing.T) {
	const url = "http://127.0.0.1:8000"
	info := engine.Info{Kind: "vllm", Version: "0.32.0", HasMetrics: true, PrefixCaching: true}
	for _, c := range []struct {
		name   string
		change func(*pool.View)
		tokens Tokens
		want   []string // beginnings
	}{
		{"all is well", func(*pool.View) {}, Tokens{Cached: 1, Computed: 1}, nil},
		{"the rank is ignored", func(v *pool.View) { v.Servers[0].Blind = []string{"/v1/responses"} }, Tokens{},
			[]string{"/v1/responses: http://127.0.0.1:8000 ignores the choice of a rank on this route, so its own balancer places these requests; they count as “engine”, never as sticky. What helps: vLLM 0.33, or one server per card."}},
		{"the rank is ignored on routes that no version honours", func(v *pool.View) { v.Servers[0].Blind = []string{"/v1/embeddings"} }, Tokens{},
			[]string{"/v1/embeddings: http://127.0.0.1:8000 ignores the choice of a rank on this route, so its own balancer places these requests; they count as “engine”, never as sticky. One server per card helps."}},
		{"cached tokens are not measured", func(*pool.View) {}, Tokens{Unmeasured: 1000},
			[]string{"The engine did not tell the cached part of 100% of 1k prompt tokens, so the cached share leaves them out. Start vLLM with --enable-prompt-tokens-details"}},
		{"old scrapes", func(v *pool.View) {
			v.Replicas[1].Load.Stale, v.Replicas[1].ScrapeAge = true, 14*time.Second
			v.Replicas[3].ScrapeAge = 14 * time.Second
		}, Tokens{}, []string{"The metrics of replicas 1, 3 are 14 s old."}},
		{"no metrics", func(v *pool.View) { v.Servers[0].Info = engine.Info{Kind: "unknown"} }, Tokens{}, []string{url + " has no metrics page that can be read"}},
		{"no prefix cache", func(v *pool.View) { v.Servers[0].Info.PrefixCaching = false }, Tokens{}, []string{url + " says that its prefix cache is off"}},
		{"the worst first", func(v *pool.View) {
			v.Servers[0].Info.PrefixCaching, v.Servers[0].Error = false, "connection refused"
		}, Tokens{}, []string{url + ": connection refused.", url + " says that its prefix cache is off"}},
		{"not heard from", func(v *pool.View) { v.Servers[0].Info = engine.Info{} }, Tokens{}, nil},
	} {
		p := box()
		p.view.Servers[0].Info = info
		p.view.Routing.WorkingSet.Capacity = -1
		c.change(&p.view)
		page := get(t, newHandler(t, nil, []Pool{p}, func(o *Options) { o.Tokens = func(string) Tokens { return c.tokens } }), "/models/qwen3-4b-dp4")
		got := all(page, `<p class="alert[^>]*>(.*?)</p>`)
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestOverfullWorkingSet(t *testing.T) {
	p := box()
	p.view.Routing.WorkingSet.Tokens, p.view.Routing.WorkingSet.Fits = 640_000, 3
	for i := range p.view.Replicas {
		p.view.Replicas[i].LiveConversations, p.view.Replicas[i].LiveTokens = 3, 160_000+7000
	}
	page := get(t, newHandler(t, nil, []Pool{p}), "/models/qwen3-4b-dp4")
	for _, want := range []string{
		"12 conversations, 640k of 160k tokens (400%). Only 3 of this size fit: replicas forget, and turns are read again.",
		"Replicas 0, 1, 2, 3 hold more live context than they cache: their conversations push each other out.",
	} {
		if !strings.Contains(words(page), want) {
			t.Errorf("the page does not say: %s", want)
		}
	}
	// Four equal parts, and the capacity marked after the first.
	for _, want := range []string{`class="fill-r0" x="0.0" width="248.0"`, `class="fill-r3" x="750.0" width="248.0"`, `class="limit" x="250.0"`} {
		if !strings.Contains(page, want) {
			t.Errorf("not in the page: %s", want)
		}
	}
}

func TestOldNumbersStandGrey(t *testing.T) {
	p := box()
	p.view.Replicas[0].Load.Stale = true
	p.view.Replicas[2].ScrapeAge = 6 * time.Second
	page := get(t, newHandler(t, nil, []Pool{p}), "/models/qwen3-4b-dp4")
	var got []string
	for _, m := range regexp.MustCompile(`<tr data-replica="(\d)" data-state="ready" class="stale">`).FindAllStringSubmatch(page, -1) {
		got = append(got, m[1])
	}
	if diff := cmp.Diff([]string{"0", "2"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestOverview(t *testing.T) {
	p, q := box(), box()
	q.view.Name, q.view.Replicas[0].State, q.view.Replicas[1].State = "other", routing.Down, routing.Stuck
	page := get(t, newHandler(t, nil, []Pool{p, q}, func(o *Options) {
		o.Warnings = func() []string { return []string{"Clients need no key."} }
		o.DefaultAlias = "claude-*"
	}), "/")
	for _, want := range []string{
		"8 replicas: 1 down, 1 stuck, 6 ready.",
		"24 conversations live, 22 requests in flight, 4 waiting in the engines’ queues.",
		"All 4 replicas are ready.", "4 replicas: 1 down, 1 stuck, 2 ready.", "Clients need no key.", "version 0.1.0",
	} {
		if !strings.Contains(words(page), want) {
			t.Errorf("the page does not say: %s", want)
		}
	}
	for _, want := range []string{`<a href="/models/qwen3-4b-dp4">`, `<a href="/models/other">`} {
		if !strings.Contains(page, want) {
			t.Errorf("no link %s", want)
		}
	}
	if len(rows(page)) != 8 || strings.Contains(page, "data-api") {
		t.Errorf("%d rows; the overview has no buttons", len(rows(page)))
	}
	unreached := func(o *Options) {
		o.Unassigned = func() []pool.ServerView {
			return []pool.ServerView{{URL: "http://gpu7:8000", Error: "connection refused"}}
		}
	}
	page = words(get(t, newHandler(t, nil, nil, unreached), "/"))
	for _, want := range []string{"No model is known yet.", "Engines without a model", "http://gpu7:8000", "connection refused"} {
		if !strings.Contains(page, want) {
			t.Errorf("without a model the overview does not say %q", want)
		}
	}
}

func TestHostileNames(t *testing.T) {
	const evil = `"><script>alert(1)</script>`
	p := box()
	table := talk(p)
	p.view.Name, p.view.ServedName, p.view.Aliases = evil, evil+"2", []string{evil + "3"}
	p.view.Servers[0].Error, p.view.Servers[0].URL, p.view.Servers[0].Info.Version = evil, "javascript:"+evil, evil
	p.view.Servers[0].Blind = []string{evil}
	p.view.Replicas[0].URL = evil
	p.receipts[0].Conversation, p.receipts[0].Decision.Reason, p.receipts[2].Decision.Why = evil, evil, evil
	h := newHandler(t, table, []Pool{p}, func(o *Options) {
		o.Warnings, o.Version, o.DefaultAlias = func() []string { return []string{evil} }, evil, evil
	})
	for _, path := range []string{"/", "/models/" + strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(evil, "/", "%2F"), `"`, "%22"), "<", "%3C"), ">", "%3E")} {
		page := get(t, h, path)
		if strings.Contains(page, "<script>alert") || strings.Contains(page, `""><`) {
			t.Errorf("%s carries the script", path)
		}
		if regexp.MustCompile(`(href|src)="javascript:`).MatchString(page) {
			t.Errorf("%s carries a script as a link", path)
		}
	}
	w := call(h, "GET", "/models/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "")
	if w.Code != 404 || strings.Contains(w.Body.String(), "<script>alert") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The policy default-src 'self' forbids styles and scripts within a page, and
// pages must work on a machine without a network.
func TestPagesNeedNothingElse(t *testing.T) {
	p := box()
	h := newHandler(t, talk(p), []Pool{p})
	for _, path := range []string{"/", "/models/qwen3-4b-dp4", "/none"} {
		page := call(h, "GET", path, "").Body.String()
		for _, bad := range []string{` style=`, `<style`, ` onclick=`, `<script>`, `href="http`, `src="http`, `="//`} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %s", path, bad)
			}
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="(/static/[^"]+)"`).FindAllStringSubmatch(page, -1) {
			if w := call(h, "GET", m[1], ""); w.Code != 200 {
				t.Errorf("%s: %d", m[1], w.Code)
			}
		}
	}
	for _, file := range []string{"/static/console.css", "/static/console.js"} {
		if body := call(h, "GET", file, "").Body.String(); regexp.MustCompile(`https?://|@import|url\(`).MatchString(body) {
			t.Errorf("%s fetches something", file)
		}
	}
}

func TestUnknownPages(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()})
	for path, want := range map[string]string{
		"/none":        "There is no page /none.",
		"/models/none": `There is no model "none". Known: qwen3-4b-dp4.`,
	} {
		if w := call(h, "GET", path, ""); w.Code != 404 || !strings.Contains(words(w.Body.String()), want) {
			t.Errorf("%s: %d %s", path, w.Code, words(w.Body.String()))
		}
	}
}

func TestAssetsAreTagged(t *testing.T) {
	h := newHandler(t, nil, nil)
	first := call(h, "GET", "/static/console.css", "")
	if got := first.Header().Get("Content-Type"); got != "text/css; charset=utf-8" {
		t.Errorf("Content-Type %q", got)
	}
	if w := call(h, "GET", "/static/console.css", "", "If-None-Match", first.Header().Get("ETag")); w.Code != http.StatusNotModified {
		t.Errorf("again: %d", w.Code)
	}
	if w := call(h, "GET", "/static/none.css", ""); w.Code != 404 {
		t.Errorf("none: %d", w.Code)
	}
}

func TestMoreThanFourReplicasHaveNoColours(t *testing.T) {
	p := box()
	p.view.Replicas = append(p.view.Replicas, p.view.Replicas[0])
	if page := get(t, newHandler(t, nil, []Pool{p}), "/models/qwen3-4b-dp4"); strings.Contains(page, `class="rep r0"`) || strings.Contains(page, "fill-r0") {
		t.Error("a fifth replica would repeat a colour")
	}
}

func TestNumbersInWords(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1k", 12_400: "12.4k", 99_949: "99.9k", 118_000: "118k", 999_499: "999k", 999_500: "1M", 3_140_000: "3.1M"} {
		if got := tokens(n); got != want {
			t.Errorf("%d tokens: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0 s", 59 * time.Second: "59 s", time.Hour - 1: "59 min", 3*time.Hour + 12*time.Minute: "3 h 12 min", 50 * time.Hour: "2 d 2 h"} {
		if got := span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	for p, want := range map[percent]string{0: "0%", 0.2: "under 1%", 0.5: "under 1%", 61.2: "61%", 99.1: "over 99%", 100: "100%", -1: "–"} {
		if got := about(p); got != want {
			t.Errorf("about %v: %s, want %s", float64(p), got, want)
		}
	}
}

func TestNewNeedsItsParts(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error")
	}
}
