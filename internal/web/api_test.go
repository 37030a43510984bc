package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
)

// sameJSON compares an answer with the wanted text, key order and spaces aside.
func sameJSON(t *testing.T, want, got string) {
	t.Helper()
	var w, g any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("wanted text: %v", err)
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Error(diff)
	}
}

// message is an error's text in the API's form.
func message(t *testing.T, body string) string {
	t.Helper()
	var e struct{ Error struct{ Message string } }
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Error.Message == "" {
		t.Errorf("not an error of the API: %s", body)
	}
	return e.Error.Message
}

func TestModelAsJSON(t *testing.T) {
	p := box()
	p.view.Replicas = p.view.Replicas[:1]
	h := newHandler(t, nil, []Pool{p})
	want := `{"name": "qwen3-4b-dp4", "served_name": "Qwen/Qwen3-4B-Instruct-2507", "aliases": [],
		"affinity": "on", "policy": "affinity", "instead": null, "shadow": null, "spill_threshold": {"value": 8, "auto": true},
		"sticky_percent": 97.4, "in_flight": 11, "queue": {"waiting": 0, "longest_s": null, "likely_wait_s": null, "patience_s": null}, "learned": {"shared_prefix_tokens": null, "request_tokens": null, "answer_tokens": null, "reading_tokens_per_s": null, "place_s": null, "hold_s": null, "turns_per_s": null, "rereading_share": null, "estimate_ratio": null}, "counters_since": "2026-10-04T08:00:00Z",
		"conversations": {"live": 12, "known": 40},
		"working_set": {"tokens": 118000, "capacity_tokens": 160000, "conversations_that_fit": 16},
		"replicas": [{"index": 0, "url": "http://127.0.0.1:8000", "rank": 0, "state": "ready",
			"in_flight": 1, "placed": 3, "sticky": 38, "spilled_in": 1, "moved_in": 0, "client_pinned": 0, "unbound": 3,
			"running": 1, "waiting": 0, "kv_used_percent": 31.0, "prefix_hit_percent": 82.2, "live_conversations": 3,
			"epoch": 1, "scrape_age_ms": 412, "cached_tokens_estimate": 0, "kv_events": null}],
		"servers": [{"url": "http://127.0.0.1:8000", "kind": "vllm", "version": "0.26.0", "error": null, "rank_ignored_on": []}]}`
	one := call(h, "GET", "/api/models/qwen3-4b-dp4", "")
	sameJSON(t, want, one.Body.String())
	if got := one.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	sameJSON(t, `{"models": [`+want+`]}`, call(h, "GET", "/api/models", "").Body.String())
	sameJSON(t, `{"models": []}`, call(newHandler(t, nil, nil), "GET", "/api/models", "").Body.String())
}

func TestWhatWasLearnedStandsInTheAPI(t *testing.T) {
	p := box()
	p.view.Routing.Learned = routing.Learned{Place: routing.Measured{Value: 1.5, Samples: 7}}
	var m struct{ Learned map[string]*measured }
	body := call(newHandler(t, nil, []Pool{p}), "GET", "/api/models/qwen3-4b-dp4", "").Body.Bytes()
	if err := json.Unmarshal(body, &m); err != nil || m.Learned["place_s"] == nil || *m.Learned["place_s"] != (measured{1.5, 7}) || m.Learned["hold_s"] != nil {
		t.Errorf("%v: %s", err, body)
	}
}

func TestWhatIsNotMeasuredIsNull(t *testing.T) {
	p := &fakePool{view: pool.View{Name: "m", Since: since, Routing: routing.View{
		Policy: "off", SpillThreshold: 5, WorkingSet: routing.WorkingSet{Tokens: -1, Capacity: -1, Fits: -1, Shared: -1},
	}, Replicas: []pool.ReplicaView{
		{URL: "http://a", Rank: routing.None, PrefixHitPercent: math.NaN(), ScrapeAge: -1},
		{URL: "http://b", Rank: routing.None, PrefixHitPercent: math.NaN(), ReplicaView: routing.ReplicaView{
			State: routing.Ready, Observed: now, Load: routing.Load{KVUsed: math.NaN(), Epoch: 2}}},
	}, Servers: []pool.ServerView{{URL: "http://a", Error: "refused"}}}}
	want := `{"name": "m", "served_name": "", "aliases": [], "affinity": "off", "policy": "off", "instead": null, "shadow": null,
		"spill_threshold": {"value": 5, "auto": false}, "sticky_percent": null, "in_flight": 0, "queue": {"waiting": 0, "longest_s": null, "likely_wait_s": null, "patience_s": null}, "learned": {"shared_prefix_tokens": null, "request_tokens": null, "answer_tokens": null, "reading_tokens_per_s": null, "place_s": null, "hold_s": null, "turns_per_s": null, "rereading_share": null, "estimate_ratio": null},
		"counters_since": "2026-10-04T08:00:00Z", "conversations": {"live": 0, "known": 0},
		"working_set": {"tokens": null, "capacity_tokens": null, "conversations_that_fit": null},
		"replicas": [
			{"index": 0, "url": "http://a", "rank": null, "state": "unknown", "in_flight": 0, "placed": 0, "sticky": 0, "spilled_in": 0,
			 "moved_in": 0, "client_pinned": 0, "unbound": 0, "running": null, "waiting": null, "kv_used_percent": null,
			 "prefix_hit_percent": null, "live_conversations": 0, "epoch": null, "scrape_age_ms": null, "cached_tokens_estimate": 0, "kv_events": null},
			{"index": 1, "url": "http://b", "rank": null, "state": "ready", "in_flight": 0, "placed": 0, "sticky": 0, "spilled_in": 0,
			 "moved_in": 0, "client_pinned": 0, "unbound": 0, "running": 0, "waiting": 0, "kv_used_percent": null,
			 "prefix_hit_percent": null, "live_conversations": 0, "epoch": 2, "scrape_age_ms": 0, "cached_tokens_estimate": 0, "kv_events": null}],
		"servers": [{"url": "http://a", "kind": null, "version": null, "error": "refused", "rank_ignored_on": []}]}`
	sameJSON(t, want, call(newHandler(t, nil, []Pool{p}), "GET", "/api/models/m", "").Body.String())
}

func TestPercentHasOneDecimal(t *testing.T) {
	for p, want := range map[percent]string{0: "0.0", 100: "100.0", 61.24: "61.2", -1: "null", percent(math.Inf(1)): "null"} {
		if b, err := json.Marshal(p); string(b) != want || err != nil {
			t.Errorf("%v: %s, %v; want %s", float64(p), b, err, want)
		}
	}
}

func TestPatch(t *testing.T) {
	for _, c := range []struct {
		body   string
		status int
		asked  string // what the pool was asked, or the error's message
	}{
		{`{"affinity": "off"}`, 200, "affinity false"},
		{`{"affinity": "on"}`, 200, "affinity true"},
		{`{"policy": "session-hash"}`, 200, "policy session-hash"},
		{`{"spill_threshold": 12}`, 200, "threshold 12"},
		{`{"spill_threshold": "auto"}`, 200, "threshold 0"},
		{`{"affinity": "on", "spill_threshold": 3}`, 200, "affinity true; threshold 3"},
		{`{"affinity": "on", "policy": "affinity"}`, 200, "policy affinity"},
		{`{"affinity": "off", "policy": "affinity"}`, 400, `affinity "off" and policy "affinity" contradict each other; write one of them`},
		{`{"policy": "bogus", "spill_threshold": 3}`, 400, `unknown policy "bogus"; known: off, affinity`},
		{`{"affinity": "maybe"}`, 400, `affinity "maybe": must be "on" or "off"`},
		{`{"affinity": true}`, 400, "affinity: a bool where another kind of value belongs"},
		{`{"spill_threshold": 0}`, 400, `spill_threshold 0: must be "auto" or a whole number from 1`},
		{`{"spill_threshold": 2.5}`, 400, `spill_threshold 2.5: must be "auto" or a whole number from 1`},
		{`{"spill_threshold": 99999999999}`, 400, `spill_threshold 99999999999: must be "auto" or a whole number from 1`},
		{`{"spill_threshold": "12"}`, 400, `spill_threshold "12": must be "auto" or a whole number from 1`},
		{`{"affinity": "on", "spil": 3}`, 400, `unknown field "spil"`},
		{`{}`, 400, `nothing to change; write affinity ("on" or "off"), policy or spill_threshold ("auto" or a number)`},
		{`{"affinity": null}`, 400, `nothing to change; write affinity ("on" or "off"), policy or spill_threshold ("auto" or a number)`},
		{``, 400, "the body must be a JSON object"},
		{`null`, 400, "the body must be a JSON object"},
		{`[]`, 400, "the body must be a JSON object"},
		{`{"affinity": "on"`, 400, "the body ends in the middle of the JSON object"},
		{`{"affinity": "on"} {}`, 400, "the body must be one JSON object"},
		{`{"policy": "` + strings.Repeat("x", maxBody) + `"}`, 400, "the body is larger than 65536 bytes"},
	} {
		p := box()
		w := call(newHandler(t, nil, []Pool{p}), "PATCH", "/api/models/qwen3-4b-dp4", c.body)
		got := strings.Join(p.asked, "; ")
		if w.Code != 200 {
			if len(p.asked) > 0 {
				t.Errorf("%.60s: refused, yet asked %v", c.body, p.asked)
			}
			got = message(t, w.Body.String())
		}
		if w.Code != c.status || got != c.asked {
			t.Errorf("%.60s: %d %s; want %d %s", c.body, w.Code, got, c.status, c.asked)
		}
		if w.Code == 200 && !bytes.HasPrefix(w.Body.Bytes(), []byte(`{"name":"qwen3-4b-dp4"`)) {
			t.Errorf("%s: answers %s", c.body, w.Body)
		}
	}
}

func TestDrainAndResume(t *testing.T) {
	p := box()
	h := newHandler(t, nil, []Pool{p})
	for _, c := range []struct {
		path   string
		status int
		asked  string
	}{
		{"3/drain", 200, "drain 3"},
		{"0/resume", 200, "resume 0"},
		{"4/drain", 404, `no replica "4"; there are 0 to 3`},
		{"-1/drain", 404, `no replica "-1"; there are 0 to 3`},
		{"x/resume", 404, `no replica "x"; there are 0 to 3`},
	} {
		p.asked = nil
		w := call(h, "POST", "/api/models/qwen3-4b-dp4/replicas/"+c.path, "")
		got := strings.Join(p.asked, "; ")
		if w.Code != 200 {
			got = message(t, w.Body.String())
		}
		if w.Code != c.status || got != c.asked {
			t.Errorf("%s: %d %s", c.path, w.Code, got)
		}
	}
	p.refuse = errors.New("replica 1 is the last one")
	if w := call(h, "POST", "/api/models/qwen3-4b-dp4/replicas/1/drain", ""); w.Code != 409 || message(t, w.Body.String()) != "replica 1 is the last one" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Names of models that were not configured are those of Hugging Face.
func TestModelNamesWithSlashes(t *testing.T) {
	p := box()
	p.view.Name = "Qwen/Qwen3 4B?"
	h := newHandler(t, nil, []Pool{p})
	for _, path := range []string{"/api/models/Qwen%2FQwen3%204B%3F", "/api/models/Qwen/Qwen3%204B%3F", "/models/Qwen%2FQwen3%204B%3F", "/models/Qwen/Qwen3%204B%3F"} {
		if w := call(h, "GET", path, ""); w.Code != 200 || !strings.Contains(w.Body.String(), "Qwen/Qwen3 4B?") {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	for _, path := range []string{"/api/models/Qwen%2FQwen3%204B%3F/replicas/1/drain", "/api/models/Qwen/Qwen3%204B%3F/replicas/1/drain"} {
		if w := call(h, "POST", path, ""); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestConversations(t *testing.T) {
	p := box()
	table := talk(p)
	h := newHandler(t, table, []Pool{p})
	first, second := table[0].Name, table[1].Name
	one := `{"id": "` + first + `", "model": "qwen3-4b-dp4", "home": 2, "turns": 3, "prompt_tokens": 9000, "cached_tokens": 8000,
		"source": "x-claude-code-session-id", "client": "claude-cli", "key": "alice", "parent": null,
		"first_seen": "2026-10-04T08:00:00Z", "last_seen": "2026-10-04T11:12:00Z", "in_flight": 1, "spills": 1, "moves": 0`
	two := `{"id": "` + second + `", "model": "gone", "home": null, "turns": 1, "prompt_tokens": null, "cached_tokens": null,
		"source": "fingerprint", "client": null, "key": null, "parent": "` + first + `",
		"first_seen": "2026-10-04T08:00:00Z", "last_seen": "2026-10-04T11:12:00Z", "in_flight": 0, "spills": 0, "moves": 0`
	get := func(path string) string { return call(h, "GET", path, "").Body.String() }
	sameJSON(t, `{"conversations": [`+one+`},`+two+`}], "next": null}`, get("/api/conversations"))
	sameJSON(t, `{"conversations": [`+one+`}], "next": null}`, get("/api/conversations?model=qwen3-4b-dp4&sort=turns"))
	sameJSON(t, `{"conversations": [`+one+`}], "next": "next-page"}`, get("/api/conversations?limit=1"))
	sameJSON(t, two+`, "history": [], "before": null}`, get("/api/conversations/"+second))
	const unmeasured = `"outcome": null, "prompt_tokens": null, "cached_tokens": null, "completion_tokens": null,
		"ttfb_s": null, "duration_s": null, "waited_s": 0, "cause": null, "reread_tokens": 0, "changed": null`
	sameJSON(t, one+`, "before": null, "history": [
		{"time": "2026-10-04T11:11:55Z", "request_id": "r1", "replica": 3, "from": 3, "reason": "stayed", "why": null, `+unmeasured+`},
		{"time": "2026-10-04T11:11:57Z", "request_id": "r3", "replica": 2, "from": 3, "reason": "moved", "why": "home down", `+unmeasured+`},
		{"time": "2026-10-04T11:11:58Z", "request_id": "r4", "replica": 0, "from": 2, "reason": "spilled", "why": "home full", `+unmeasured+`}]}`, get("/api/conversations/"+first))
	sameJSON(t, `{"conversations": [], "next": null}`, call(newHandler(t, nil, nil), "GET", "/api/conversations", "").Body.String())
}

func TestConversationActions(t *testing.T) {
	for _, c := range []struct {
		path, body string
		status     int
		asked      string
	}{
		{"A/release", "", 200, "release A"},
		{"A/move", `{"replica": 0}`, 200, "move A to 0"},
		{"A/move", `{"replica": 4}`, 400, `the body must name a replica, 0 to 3: {"replica": 0}`},
		{"A/move", `{}`, 400, `the body must name a replica, 0 to 3: {"replica": 0}`},
		{"A/move", `{"replica": "0"}`, 400, "replica: a string where another kind of value belongs"},
		{"A/move", `{"to": 0}`, 400, `unknown field "to"`},
		{"A/cancel", "", 501, "this gateway cannot cancel requests; end the client instead, its request ends with it"},
		{"c-none/release", "", 404, `no conversation "c-none"; GET /api/conversations lists those that are known`},
		{"c-none/cancel", "", 404, `no conversation "c-none"; GET /api/conversations lists those that are known`},
		{"B/release", "", 409, `the conversation's model "gone" is not served any more`},
	} {
		p := box()
		table := talk(p)
		names := strings.NewReplacer("A", table[0].Name, "B", table[1].Name)
		w := call(newHandler(t, table, []Pool{p}), "POST", "/api/conversations/"+names.Replace(c.path), c.body)
		got := strings.Join(p.asked, "; ")
		if w.Code != 200 {
			got = message(t, w.Body.String())
		}
		if w.Code != c.status || got != names.Replace(c.asked) {
			t.Errorf("%s %s: %d %s", c.path, c.body, w.Code, got)
		}
	}
	p := box()
	table := talk(p)
	h := newHandler(t, table, []Pool{p}, func(o *Options) { o.Cancel = func(session.Key) int { return 2 } })
	sameJSON(t, `{"cancelled": 2}`, call(h, "POST", "/api/conversations/"+table[0].Name+"/cancel", "").Body.String())
}

func TestDecisions(t *testing.T) {
	p := box()
	table := talk(p)
	other := &fakePool{view: pool.View{Name: "other"}, receipts: []pool.Receipt{{Time: now.Add(-1500 * time.Millisecond), RequestID: "o1",
		Decision: routing.Decision{Reason: routing.Unbound, Home: -1, From: -1}}}}
	h := newHandler(t, table, []Pool{p, other})
	placed := `{"time": "2026-10-04T11:11:59Z", "request_id": "r5", "model": "qwen3-4b-dp4", "conversation": "` + table[1].Name + `",
		"replica": 3, "reason": "placed", "why": null, "home": 3, "from": null, "waited_ms": 0, "held": null, "position": null, "likely_wait_s": null, "candidates": [
		{"index": 0, "in_flight": 2, "kv_used_percent": 50.0, "live_conversations": 3},
		{"index": 3, "in_flight": 0, "kv_used_percent": null, "live_conversations": 0}]}`
	unbound := `{"time": "2026-10-04T11:11:58.5Z", "request_id": "o1", "model": "other", "conversation": null,
		"replica": 0, "reason": "unbound", "why": null, "home": null, "from": null, "waited_ms": 0, "held": null, "position": null, "likely_wait_s": null, "candidates": []}`
	sameJSON(t, `{"decisions": [`+placed+`,`+unbound+`]}`, call(h, "GET", "/api/decisions?limit=2", "").Body.String())
	sameJSON(t, `{"decisions": [`+unbound+`]}`, call(h, "GET", "/api/decisions?model=other", "").Body.String())
	all := call(h, "GET", "/api/decisions", "").Body.String()
	if !strings.Contains(all, `"replica":null,"reason":"engine"`) {
		t.Errorf("no replica where the engine chose: %s", all)
	}
}

func TestWrongRequests(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()})
	for _, c := range []struct {
		method, path string
		status       int
		message      string
		allow        string
	}{
		{"GET", "/api/models/none", 404, `no model "none"; known: qwen3-4b-dp4`, ""},
		{"PATCH", "/api/models/none", 404, `no model "none"; known: qwen3-4b-dp4`, ""},
		{"GET", "/api/models/", 404, `no model ""; known: qwen3-4b-dp4`, ""},
		{"GET", "/api/decisions?model=none", 404, `no model "none"; known: qwen3-4b-dp4`, ""},
		{"GET", "/api/conversations?model=none", 404, `no model "none"; known: qwen3-4b-dp4`, ""},
		{"GET", "/api/conversations?sort=bogus", 400, `sort "bogus": must be one of last_seen`, ""},
		{"GET", "/api/conversations?limit=0", 400, `limit "0": must be 1 to 1000`, ""},
		{"GET", "/api/decisions?limit=x", 400, `limit "x": must be 1 to 1000`, ""},
		{"GET", "/api/none", 404, "no such route: /api/none", ""},
		{"POST", "/api/models", 405, "POST is not a method of /api/models; allowed: GET, HEAD", "GET, HEAD"},
		{"DELETE", "/api/models/qwen3-4b-dp4", 405, "DELETE is not a method of /api/models/qwen3-4b-dp4; allowed: GET, HEAD, PATCH", "GET, HEAD, PATCH"},
		{"GET", "/api/models/qwen3-4b-dp4/replicas/0/drain", 405, "GET is not a method of /api/models/qwen3-4b-dp4/replicas/0/drain; allowed: POST", "POST"},
		{"PUT", "/metrics", 405, "PUT is not a method of /metrics; allowed: GET, HEAD", "GET, HEAD"},
	} {
		w := call(h, c.method, c.path, "{}")
		if got := message(t, w.Body.String()); w.Code != c.status || got != c.message || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s: %d %s, Allow %q", c.method, c.path, w.Code, got, w.Header().Get("Allow"))
		}
	}
	if w := call(newHandler(t, nil, nil), "GET", "/api/models/a", ""); message(t, w.Body.String()) != `no model "a"; none is known yet` {
		t.Error(w.Body)
	}
}

func TestProbes(t *testing.T) {
	down := box()
	down.view.Name = "down"
	for i := range down.view.Replicas {
		down.view.Replicas[i].State = routing.Down
	}
	down.view.Replicas[0].State = routing.Draining
	for _, c := range []struct {
		name   string
		pools  []Pool
		ready  func() error
		status int
		text   string
	}{
		{"ready", []Pool{box()}, nil, 200, "ready\n"},
		{"one model down", []Pool{box(), down}, nil, 503, "no replica is ready: down\n"},
		{"no model", nil, nil, 503, "no model is known yet\n"},
		{"stopping", []Pool{box()}, func() error { return errors.New("the gateway is stopping") }, 503, "the gateway is stopping\n"},
	} {
		h := newHandler(t, nil, c.pools, func(o *Options) { o.Ready = c.ready })
		if w := call(h, "GET", "/readyz", ""); w.Code != c.status || w.Body.String() != c.text {
			t.Errorf("%s: %d %q", c.name, w.Code, w.Body)
		}
		if w := call(h, "GET", "/healthz", ""); w.Code != http.StatusOK {
			t.Errorf("%s: healthz %d", c.name, w.Code)
		}
		if w := call(h, "GET", "/metrics", ""); w.Code != http.StatusOK || w.Body.String() != "warden_build_info 1\n" {
			t.Errorf("%s: metrics %d %s", c.name, w.Code, w.Body)
		}
	}
}
