package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

// seen is what an engine received.
type seen struct {
	line   string
	header http.Header
	body   string
}

// watched is an engine that keeps what it receives.
func watched(t testing.TB, into chan<- seen, h http.HandlerFunc) string {
	return fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		into <- seen{r.Method + " " + r.RequestURI, r.Header, string(b)}
		h(w, r)
	})
}

func TestRequestsReachTheEngineByteForByte(t *testing.T) {
	const odd = "{ \"z\" : 1E2,\t\"n\":12345678901234567890, \"unknown\":{\"b\":1,\"a\":[null,{}]},\r\n" +
		`"lone":"\ud800", "model":"org/Served","messages":[{"role":"user","content":[{"type":"new_block","x":0.10}]}], "prompt":"é","input":"x" }` + "\n"
	got := make(chan seen, 1)
	g := newGateway(t, Limits{}, watched(t, got, answered(400, `{}`)))
	for _, path := range []string{
		"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
		"/v1/embeddings", "/v1/rerank", "/score", "/pooling", "/tokenize", "/detokenize", "/v1/audio/speech",
	} {
		t.Run(path, func(t *testing.T) {
			const query = "?beta=true&x=%zz&y=a;b&&z="
			g.post(t, path+query, odd,
				"X-Odd", "one", "X-Odd", "two", "X-Session-Id", "opaque/=,; ü", "X-Vllm-Priority", "3", "Anthropic-Beta", "a,b",
				"User-Agent", "odd/1.0")
			s := <-got
			if want := "POST " + path + query; s.line != want {
				t.Errorf("%q, want %q", s.line, want)
			}
			if s.body != odd {
				t.Error(cmp.Diff(odd, s.body))
			}
			for name, want := range map[string][]string{
				"X-Odd": {"one", "two"}, "X-Session-Id": {"opaque/=,; ü"}, "X-Vllm-Priority": {"3"},
				"Anthropic-Beta": {"a,b"}, "User-Agent": {"odd/1.0"}, "Content-Type": {"application/json"},
				"Content-Length": {fmt.Sprint(len(odd))}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"http"},
			} {
				if d := cmp.Diff(want, s.header[name]); d != "" {
					t.Errorf("%s: %s", name, d)
				}
			}
		})
	}
}

func TestWhatBelongsToTheClientStaysHere(t *testing.T) {
	got := make(chan seen, 1)
	e := watched(t, got, answered(200, chatAnswer, "Keep-Alive", "timeout=5", "Connection", "x-hop", "X-Hop", "1", "X-Engine", "yes", "X-Warden-Error", "no"))
	for _, key := range []string{"", "engine-key"} {
		t.Run("key="+key, func(t *testing.T) {
			g := newGateway(t, Limits{}, e)
			g.model.key = key
			res := g.post(t, "/v1/chat/completions", chatBody,
				"Authorization", "Bearer client", "X-Api-Key", "client", "Api-Key", "client", "Cookie", "a=b",
				"Connection", "X-Hop, keep-alive", "X-Hop", "1", "Keep-Alive", "timeout=9", "Te", "trailers",
				"Proxy-Authorization", "Basic eA==", "Accept-Encoding", "gzip, br", "X-Request-Id", "client-id-1",
				"X-Forwarded-For", "10.0.0.1", "X-Kept", "yes")
			s := <-got
			for _, name := range []string{"X-Api-Key", "Api-Key", "Cookie", "Connection", "X-Hop", "Keep-Alive", "Te",
				"Proxy-Authorization", "Accept-Encoding", "Expect", headerRank} {
				if v, ok := s.header[name]; ok {
					t.Errorf("%s reached the engine: %q", name, v)
				}
			}
			want := http.Header{"X-Kept": {"yes"}, "X-Forwarded-For": {"10.0.0.1, 127.0.0.1"}, "X-Request-Id": {"client-id-1"}}
			if key != "" {
				want["Authorization"] = []string{"Bearer engine-key"}
			} else if v, ok := s.header["Authorization"]; ok {
				t.Errorf("Authorization reached the engine: %q", v)
			}
			for name, v := range want {
				if d := cmp.Diff(v, s.header[name]); d != "" {
					t.Errorf("%s: %s", name, d)
				}
			}
			if res.header.Get("X-Request-Id") != "client-id-1" || res.header.Get("X-Engine") != "yes" || res.header.Get("Keep-Alive")+res.header.Get("X-Hop")+res.header.Get("X-Warden-Error") != "" {
				t.Errorf("answer's headers: %v", res.header)
			}
		})
	}
}

func TestRequestIDsThatAreNotSaneAreReplaced(t *testing.T) {
	got := make(chan seen, 1)
	g := newGateway(t, Limits{}, watched(t, got, answered(200, chatAnswer)))
	for _, id := range []string{"", "with space", "ü", "a\"b", strings.Repeat("x", 129)} {
		res := g.post(t, "/v1/chat/completions", chatBody, "X-Request-Id", id)
		ours := res.header.Get("X-Request-Id")
		if len(ours) != len("req-")+16 || !strings.HasPrefix(ours, "req-") {
			t.Errorf("%q became %q", id, ours)
		}
		if s := <-got; s.header.Get("X-Request-Id") != ours {
			t.Errorf("the engine saw %q, the client %q", s.header.Get("X-Request-Id"), ours)
		}
		if rec := g.record(t); rec.RequestID != ours {
			t.Errorf("the record has %q", rec.RequestID)
		}
	}
}

func TestEngineURL(t *testing.T) {
	got := make(chan seen, 1)
	e := watched(t, got, answered(200, chatAnswer))
	for base, want := range map[string]string{
		"": "/v1/messages?beta=true", "/prefix": "/prefix/v1/messages?beta=true", "/a%2Fb": "/a%2Fb/v1/messages?beta=true",
		"?k=1": "/v1/messages?k=1&beta=true", "/": "/v1/messages?beta=true",
	} {
		g := newGateway(t, Limits{}, e+base)
		g.post(t, "/v1/messages?beta=true", chatBody)
		if s := <-got; s.line != "POST "+want {
			t.Errorf("base %q: %q, want %q", base, s.line, want)
		}
	}
}

func TestEveryNameOfAModelArrivesUnderItsServedName(t *testing.T) {
	got := make(chan seen, 1)
	g := newGateway(t, Limits{}, watched(t, got, answered(200, chatAnswer)))
	for _, name := range []string{"m", "mini", "org/Served", "claude-haiku-4-5", "claude-sonnet-5", "claude-opus-5[1m]"} {
		g.post(t, "/v1/messages", fmt.Sprintf(`{"max_tokens":1,"model":%q,"messages":[]}`, name))
		if s, want := <-got, `{"max_tokens":1,"model":"org/Served","messages":[]}`; s.body != want {
			t.Errorf("%s: %s", name, s.body)
		}
		if rec := g.record(t); rec.Model != "m" {
			t.Errorf("%s is recorded as %q", name, rec.Model)
		}
	}
	// The only model is the one that is meant when none is named.
	g.post(t, "/v1/messages", `{"messages":[]}`)
	if s, want := <-got, `{"model":"org/Served","messages":[]}`; s.body != want {
		t.Errorf("no model: %s", s.body)
	}
}

func TestPinsAreTranslatedToTheEnginesRank(t *testing.T) {
	got := make(chan seen, 1)
	e := watched(t, got, answered(200, chatAnswer))
	g := newGateway(t, Limits{}, e, e, e, e)
	g.model.rankOf = func(replica int) int { return replica % 2 } // two servers of two ranks
	for pin, rank := range []string{"0", "1", "0", "1"} {
		res := g.post(t, "/v1/chat/completions", chatBody, "x-data-parallel-rank", fmt.Sprint(pin))
		if s := <-got; !slices.Equal(s.header[headerRank], []string{rank}) {
			t.Errorf("pin %d: rank %q, want %s", pin, s.header[headerRank], rank)
		}
		if res.header.Get(headerReplica) != fmt.Sprint(pin) || res.header.Get(headerDecision) != "pinned" {
			t.Errorf("pin %d: %v", pin, res.header)
		}
	}
}

func TestDecisionHeaders(t *testing.T) {
	g := newGateway(t, Limits{}, fakeEngine(t, answered(200, chatAnswer)))
	tests := []struct {
		path, body string
		reason     routing.Reason
		named      bool
	}{
		{"/v1/chat/completions", chatBody, routing.Stayed, true},
		{"/v1/chat/completions", chatBody, routing.Off, false},
		{"/v1/messages/count_tokens", chatBody, routing.Unbound, false},
		{"/v1/embeddings", `{"model":"m","input":"x"}`, routing.Unbound, false},
	}
	for _, tt := range tests {
		g.model.reason = tt.reason
		res := g.post(t, tt.path, tt.body, "X-Session-Id", "s-1")
		name := res.header.Get(headerConversation)
		if res.header.Get(headerDecision) != string(tt.reason) || (name != "") != tt.named {
			t.Errorf("%s %s: %v", tt.path, tt.reason, res.header)
		}
		req := g.model.requests[len(g.model.requests)-1]
		if (req.Key != routing.Key{}) != (tt.path == "/v1/chat/completions") || req.Path != tt.path {
			t.Errorf("%s: asked the pool for %+v", tt.path, req)
		}
	}
}

// bad input: refused in the client's dialect, and no engine is called.
func TestBadInput(t *testing.T) {
	deep := `{"model":"m","messages":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`
	tests := []struct {
		name, body string
		header     []string
		status     int
		kind       string
		says       string
	}{
		{"truncated", `{"model":"m","messages":[{"role":`, nil, 400, "bad-request", "byte"},
		{"empty", ``, nil, 400, "bad-request", ""},
		{"array", `[1]`, nil, 400, "bad-request", "object"},
		{"deep", deep, nil, 400, "bad-request", ""},
		{"repeated model", `{"model":"m","model":"m"}`, nil, 400, "bad-request", "more than once"},
		{"model of another type", `{"model":7}`, nil, 400, "bad-request", "model"},
		{"raw invalid UTF-8", "{\"model\":\"m\",\"x\":\"\xff\"}", nil, 400, "bad-request", "UTF-8"},
		{"byte order mark", "\xef\xbb\xbf{}", nil, 400, "bad-request", "byte order mark"},
		{"NaN", `{"model":"m","temperature":NaN}`, nil, 400, "bad-request", ""},
		{"compressed", "\x1f\x8b", []string{"Content-Encoding", "gzip"}, 400, "bad-request", "compressed"},
		{"unknown model", `{"model":"nope","messages":[]}`, nil, 404, "unknown-model", `"m"`},
		{"rank -1", chatBody, []string{headerRank, "-1"}, 400, "bad-request", "0 to 1"},
		{"rank 9", chatBody, []string{headerRank, "9"}, 400, "bad-request", "0 to 1"},
		{"rank abc", chatBody, []string{headerRank, "abc"}, 400, "bad-request", "0 to 1"},
		{"rank 1.0", chatBody, []string{headerRank, "1.0"}, 400, "bad-request", "0 to 1"},
		{"rank empty", chatBody, []string{headerRank, ""}, 400, "bad-request", "0 to 1"},
		{"rank too large", chatBody, []string{headerRank, "99999999999999999999"}, 400, "bad-request", "0 to 1"},
		{"two ranks", chatBody, []string{headerRank, "0", headerRank, "1"}, 400, "bad-request", "0 to 1"},
	}
	calls := make(chan seen, 100)
	e := watched(t, calls, answered(200, chatAnswer))
	g := newGateway(t, Limits{}, e, e)
	for _, tt := range tests {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/embeddings"} {
			t.Run(tt.name+path, func(t *testing.T) {
				got := g.post(t, path, tt.body, tt.header...)
				if got.status != tt.status || got.header.Get(headerError) != tt.kind || !strings.Contains(got.body, strings.ReplaceAll(tt.says, `"`, `\"`)) {
					t.Errorf("got %d %s %s", got.status, got.header.Get(headerError), got.body)
				}
				anthropic := strings.HasPrefix(got.body, `{"type":"error","error":{`)
				if want := strings.HasPrefix(path, "/v1/messages"); anthropic != want || !want && !strings.HasPrefix(got.body, `{"error":{"message":`) {
					t.Errorf("the wrong dialect: %s", got.body)
				}
				if rec := g.record(t); rec.Outcome != ClientError || rec.Status != tt.status || rec.Attempts != 0 || rec.Error == "" {
					t.Errorf("record: %+v", rec)
				}
			})
		}
	}
	if len(calls) > 0 {
		t.Errorf("an engine was called %d times", len(calls))
	}
	g.settled(t)
}

func TestLongHeadersAndEscapedSurrogatesPass(t *testing.T) {
	got := make(chan seen, 1)
	g := newGateway(t, Limits{}, watched(t, got, answered(200, chatAnswer)))
	long := strings.Repeat("v", 8<<10)
	body := `{"model":"org/Served","messages":[{"role":"user","content":"\ud83d"}]}`
	res := g.post(t, "/v1/chat/completions", body, "X-Session-Id", long, "X-Long", long)
	if s := <-got; res.status != 200 || s.body != body || s.header.Get("X-Long") != long {
		t.Errorf("%d, body %q", res.status, s.body)
	}
}

func TestNoReplica(t *testing.T) {
	tests := []struct {
		err    error
		status int
		kind   string
		retry  string
	}{
		{&pool.Refused{Why: routing.NoReplica}, 503, "no-replica", "2"},
		{&pool.Refused{Why: routing.PinDown, RetryAfter: 7e9}, 503, "no-replica", "7"},
		{&pool.Refused{Why: routing.HomeFull, RetryAfter: 300e9}, 503, "overloaded", "30"},
		{fmt.Errorf("something else"), 503, "no-replica", "2"},
	}
	for _, tt := range tests {
		g := newGateway(t, Limits{}, refusing(t))
		g.model.refuse = tt.err
		got := g.post(t, "/v1/chat/completions", chatBody)
		if got.status != tt.status || got.header.Get(headerError) != tt.kind || got.header.Get("Retry-After") != tt.retry {
			t.Errorf("%v: %d %v", tt.err, got.status, got.header)
		}
		if rec := g.record(t); rec.Outcome != GatewayError || rec.Status != tt.status {
			t.Errorf("record: %+v", rec)
		}
		if n := g.sessions.Len(); n != 0 {
			t.Errorf("%d conversations came of a refused request", n)
		}
	}
}

func TestRequestWithoutModelNeedsOneModel(t *testing.T) {
	a := &fakeModel{name: "a", served: "A", reason: routing.Placed}
	b := &fakeModel{name: "b", served: "B", reason: routing.Placed}
	g := serve(t, Limits{}, a, b)
	got := g.post(t, "/v1/chat/completions", `{"messages":[]}`)
	if got.status != 400 || !strings.Contains(got.body, `\"a\", \"b\"`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// Nothing in the request says which model keeps a response.
func TestStoredResponsesAreLookedForAtEveryModel(t *testing.T) {
	got := make(chan seen, 10)
	none := answered(404, `{"error":{"message":"no such response"}}`)
	var models []*fakeModel
	for i, h := range []http.HandlerFunc{none, answered(200, `{"id":"resp_1"}`), none} {
		u, err := url.Parse(watched(t, got, h))
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, &fakeModel{name: fmt.Sprint("m", i), reason: routing.Unbound, bases: []*url.URL{u}})
	}
	g := serve(t, Limits{}, models...)
	ask := func(method, path string) answer {
		req, err := http.NewRequest(method, g.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return g.do(t, req)
	}
	for method, path := range map[string]string{"GET": "/v1/responses/resp_1", "DELETE": "/v1/responses/resp_1", "POST": "/v1/responses/resp_1/cancel"} {
		if res := ask(method, path); res.status != 200 || res.body != `{"id":"resp_1"}` {
			t.Errorf("%s: %d %s", method, res.status, res.body)
		}
		if rec := g.record(t); rec.Model != "m1" || rec.Attempts != 2 || len(got) != 2 {
			t.Errorf("%s: %d engines were asked; record %+v", method, len(got), rec)
		}
		<-got
		<-got
	}
	models[0].refuse = &pool.Refused{Why: routing.NoReplica}
	if res := ask("GET", "/v1/responses/resp_1"); res.status != 200 {
		t.Errorf("the first model is down: %d %s", res.status, res.body)
	}
	g.record(t)
	models[1].refuse = models[0].refuse
	if res := ask("GET", "/v1/responses/resp_1"); res.status != 404 || !strings.Contains(res.body, "no such response") {
		t.Errorf("at none: %d %s", res.status, res.body)
	}
	g.record(t)
	models[2].refuse = models[0].refuse
	if res := ask("GET", "/v1/responses/resp_1"); res.status != 503 || res.header.Get(headerError) != "no-replica" {
		t.Errorf("all are down: %d %s", res.status, res.body)
	}
	g.record(t)
	g.settled(t)
}

func TestNoModelYet(t *testing.T) {
	g := newGateway(t, Limits{}, refusing(t))
	g.Handler.models = fakeModels{}
	if got := g.post(t, "/v1/messages", chatBody); got.status != 503 || got.header.Get(headerError) != "no-replica" || got.header.Get("Retry-After") != "2" {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
}

func TestRoutes(t *testing.T) {
	got := make(chan seen, 1)
	g := newGateway(t, Limits{}, watched(t, got, answered(200, `{"ok":true}`)))
	tests := []struct {
		method, path string
		header       []string
		status       int
		engine       string // path at the engine, empty when it must not be asked
	}{
		{"GET", "/health", nil, 200, ""},
		{"HEAD", "/health", nil, 200, ""},
		{"HEAD", "/", nil, 200, ""},
		{"HEAD", "/api/hello", nil, 200, ""},
		{"GET", "/", nil, 404, ""},
		{"GET", "/metrics", nil, 404, ""},
		{"GET", "/readyz", nil, 404, ""},
		{"POST", "/v1/nothing", nil, 404, ""},
		{"POST", "/v1beta/models/gemini:generateContent", nil, 404, ""},
		{"POST", "//v1/chat/completions", nil, 404, ""},
		{"POST", "/v1/../v1/chat/completions", nil, 404, ""},
		{"GET", "/v1/chat/completions", nil, 405, ""},
		{"OPTIONS", "/v1/chat/completions", []string{"Origin", "http://x", "Access-Control-Request-Headers", "a\tb"}, 405, ""},
		{"DELETE", "/v1/models", nil, 405, ""},
		{"GET", "/v1/responses", []string{"Connection", "Upgrade", "Upgrade", "websocket"}, 426, ""},
		{"GET", "/v1/responses", nil, 405, ""},
		{"POST", "/v1/embeddings/", nil, 200, "/v1/embeddings"},
		{"POST", "/tokenize", nil, 200, "/tokenize"},
		{"POST", "/v1/audio/transcriptions", nil, 200, "/v1/audio/transcriptions"},
		{"GET", "/v1/responses/resp_1?x=1", nil, 200, "/v1/responses/resp_1?x=1"},
		{"DELETE", "/v1/responses/resp_1", nil, 200, "/v1/responses/resp_1"},
		{"POST", "/v1/responses/resp_1/cancel", nil, 200, "/v1/responses/resp_1/cancel"},
		{"GET", "/v1/responses/..", nil, 404, ""},
		{"GET", "/v1/responses/a/b", nil, 404, ""},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, g.url+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.method == "POST" {
				req.Body = io.NopCloser(strings.NewReader(`{"model":"m"}`))
			}
			res := g.do(t, req, tt.header...)
			if res.status != tt.status || res.header.Get("X-Request-Id") == "" {
				t.Errorf("got %d %v %s", res.status, res.header, res.body)
			}
			if tt.status >= 400 && (res.header.Get(headerError) != "bad-request" || !strings.HasPrefix(res.body, `{"error":{"message":`)) {
				t.Errorf("got %v %s", res.header, res.body)
			}
			select {
			case s := <-got:
				if want := tt.method + " " + tt.engine; s.line != want {
					t.Errorf("the engine saw %q, want %q", s.line, want)
				}
			default:
				if tt.engine != "" {
					t.Error("the engine was not asked")
				}
			}
		})
	}
}

func TestModelLists(t *testing.T) {
	a := &fakeModel{name: "a", served: "org/A", aliases: []string{"org/A", "claude-*"}}
	b := &fakeModel{name: "b", served: "B"}
	g := serve(t, Limits{}, a, b)
	const openAI = `{"object":"list","data":[` +
		`{"id":"a","object":"model","created":1790000000,"owned_by":"lm-warden","root":"org/A"},` +
		`{"id":"org/A","object":"model","created":1790000000,"owned_by":"lm-warden","root":"org/A"},` +
		`{"id":"b","object":"model","created":1790000000,"owned_by":"lm-warden","root":"B"}]}`
	const anthropic = `{"data":[` +
		`{"type":"model","id":"a","display_name":"a","created_at":"2026-09-21T14:13:20Z"},` +
		`{"type":"model","id":"org/A","display_name":"org/A","created_at":"2026-09-21T14:13:20Z"},` +
		`{"type":"model","id":"b","display_name":"b","created_at":"2026-09-21T14:13:20Z"}],` +
		`"has_more":false,"first_id":"a","last_id":"b"}`
	get := func(path string, header ...string) answer {
		req, err := http.NewRequest("GET", g.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return g.do(t, req, header...)
	}
	if got := get("/v1/models").body; got != openAI+"\n" {
		t.Error(cmp.Diff(openAI, got))
	}
	if got := get("/v1/models", "Anthropic-Version", "2023-06-01").body; got != anthropic+"\n" {
		t.Error(cmp.Diff(anthropic, got))
	}
	for _, path := range []string{"/v1/models/org/A", "/v1/models/org%2FA", "/v1/models/claude-opus-5"} {
		if got := get(path); got.status != 200 || !strings.Contains(got.body, `"root":"org/A"`) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if got := get("/v1/models/nope"); got.status != 404 || got.header.Get(headerError) != "unknown-model" {
		t.Errorf("%d %s", got.status, got.body)
	}
}
