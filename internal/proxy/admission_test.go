package proxy

import (
	"net/http"
	"strings"
	"testing"

	"lmwarden/internal/access"
)

// guarded is a gateway of two models, "m" and "secret", that asks for keys: "all"
// may use both, "one" only m with one request at a time.
func guarded(t *testing.T, engine string) *gateway {
	t.Helper()
	g := newGateway(t, Limits{}, engine)
	secret := &fakeModel{name: "secret", served: "org/Secret", reason: g.model.reason, bases: g.model.bases}
	g2 := serve(t, Limits{}, g.model, secret)
	keys := &access.Gate{}
	if err := keys.SetKeys([]access.Key{
		{Name: "all", Hash: access.HashKey("key-all")},
		{Name: "one", Hash: access.HashKey("key-one"), Models: []string{"m*"}, Limits: access.Limits{InFlight: 1}},
	}); err != nil {
		t.Fatal(err)
	}
	g2.access = keys
	return g2
}

func TestWithoutAKeyNothingReachesAnEngine(t *testing.T) {
	g := guarded(t, fakeEngine(t, func(http.ResponseWriter, *http.Request) { t.Error("the engine was asked") }))
	for _, test := range []struct{ path, shape string }{
		{"/v1/chat/completions", `"code":"invalid_api_key"`},
		{"/v1/messages", `"type":"authentication_error"`},
		{"/v1/responses/resp_1/cancel", `"code":"invalid_api_key"`},
	} {
		for _, key := range []string{"", "wrong", access.HashKey("key-all").String()} {
			res := g.post(t, test.path, chatBody, "Authorization", "Bearer "+key)
			if res.status != http.StatusUnauthorized || !strings.Contains(res.body, test.shape) || res.header.Get(headerError) != "unauthorized" {
				t.Errorf("%s with key %q: %d %s", test.path, key, res.status, res.body)
			}
			if r := g.record(t); r.Outcome != ClientError || r.Key != "" || r.BytesIn != 0 {
				t.Errorf("%s with key %q: record %+v", test.path, key, r)
			}
		}
	}
	for _, path := range []string{"/v1/models", "/v1/models/m"} {
		req, _ := http.NewRequest(http.MethodGet, g.url+path, nil)
		if res := g.do(t, req); res.status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", path, res.status, res.body)
		}
	}
	req, _ := http.NewRequest(http.MethodGet, g.url+"/health", nil)
	if res := g.do(t, req); res.status != http.StatusOK {
		t.Errorf("/health: %d: load balancers have no key", res.status)
	}
	g.settled(t)
}

func TestAKeyIsTakenWhereClientsPutIt(t *testing.T) {
	g := guarded(t, fakeEngine(t, answered(200, chatAnswer)))
	for _, header := range [][]string{
		{"Authorization", "Bearer key-all"}, {"Authorization", "bearer  key-all"},
		{"X-Api-Key", "key-all"}, {"Api-Key", "key-all"},
	} {
		if res := g.post(t, "/v1/chat/completions", chatBody, header...); res.status != http.StatusOK {
			t.Errorf("%v: %d %s", header, res.status, res.body)
		}
		if r := g.record(t); r.Key != "all" {
			t.Errorf("%v: recorded as %q", header, r.Key)
		}
	}
	g.settled(t)
}

func TestAKeyLearnsNothingOfOtherModels(t *testing.T) {
	g := guarded(t, fakeEngine(t, answered(200, chatAnswer)))
	body := strings.Replace(chatBody, `"m"`, `"secret"`, 1)
	if body == chatBody {
		t.Fatal("the body names no model m")
	}
	hidden := g.post(t, "/v1/chat/completions", body, "X-Api-Key", "key-one")
	absent := g.post(t, "/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"absent"`, 1), "X-Api-Key", "key-one")
	if hidden.status != http.StatusNotFound || strings.ReplaceAll(hidden.body, "secret", "absent") != absent.body {
		t.Errorf("a model of others: %d %s\none that does not exist: %d %s", hidden.status, hidden.body, absent.status, absent.body)
	}
	for key, want := range map[string]bool{"key-one": false, "key-all": true} {
		req, _ := http.NewRequest(http.MethodGet, g.url+"/v1/models", nil)
		if res := g.do(t, req, "X-Api-Key", key); strings.Contains(res.body, "secret") != want {
			t.Errorf("the list for %s: %s", key, res.body)
		}
		req, _ = http.NewRequest(http.MethodGet, g.url+"/v1/models/secret", nil)
		if res := g.do(t, req, "X-Api-Key", key); (res.status == http.StatusOK) != want {
			t.Errorf("the card for %s: %d", key, res.status)
		}
	}
	g.settled(t)
}

func TestAKeyThatHasTakenWhatItMayComesBackLater(t *testing.T) {
	begun, end := make(chan bool), make(chan bool)
	g := guarded(t, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		begun <- true
		<-end
		answered(200, chatAnswer)(w, r)
	}))
	first := make(chan answer)
	go func() { first <- g.post(t, "/v1/chat/completions", chatBody, "X-Api-Key", "key-one") }()
	<-begun
	res := g.post(t, "/v1/chat/completions", chatBody, "X-Api-Key", "key-one")
	if res.status != http.StatusTooManyRequests || res.header.Get("Retry-After") == "" || !strings.Contains(res.body, "as many as it may") {
		t.Errorf("a second request at once: %d %v %s", res.status, res.header, res.body)
	}
	end <- true
	if res := <-first; res.status != http.StatusOK {
		t.Errorf("the first: %d", res.status)
	}
	g.record(t)
	g.record(t)
	go func() { <-begun; end <- true }()
	if res := g.post(t, "/v1/chat/completions", chatBody, "X-Api-Key", "key-one"); res.status != http.StatusOK {
		t.Errorf("after the first has ended: %d %s", res.status, res.body)
	}
	g.record(t)
	g.settled(t)
}

func TestOneSessionIDOfTwoKeysIsTwoConversations(t *testing.T) {
	g := guarded(t, fakeEngine(t, answered(200, chatAnswer)))
	names := map[string]bool{}
	for _, key := range []string{"key-one", "key-all", "key-one"} {
		res := g.post(t, "/v1/chat/completions", chatBody, "X-Api-Key", key, "X-Warden-Session", "the-same")
		names[res.header.Get(headerConversation)] = true
		g.record(t)
	}
	if len(names) != 2 || names[""] {
		t.Errorf("conversations %v", names)
	}
	g.settled(t)
}

// TestAModelOfWhichAllIsTaken refuses whoever asks, in the words of his client, and
// serves again when something ended.
func TestAModelOfWhichAllIsTaken(t *testing.T) {
	begun, end := make(chan bool), make(chan bool)
	g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		begun <- true
		<-end
		answered(200, chatAnswer)(w, r)
	}))
	gate := &access.Gate{}
	gate.SetModels(map[string]access.Limits{"m": {InFlight: 1}})
	g.access = gate
	first := make(chan answer)
	go func() { first <- g.post(t, "/v1/chat/completions", chatBody) }()
	<-begun
	for path, shape := range map[string]string{
		"/v1/chat/completions": `"code":"rate_limit_exceeded"`,
		"/v1/messages":         `"type":"rate_limit_error"`,
	} {
		res := g.post(t, path, strings.Replace(chatBody, `"m"`, `"mini"`, 1)) // an alias is the same model
		if res.status != http.StatusTooManyRequests || res.header.Get("Retry-After") == "" || res.header.Get(headerError) != "overloaded" ||
			!strings.Contains(res.body, shape) || !strings.Contains(res.body, `model \"m\" has 1 requests open`) {
			t.Errorf("%s: %d %v %s", path, res.status, res.header, res.body)
		}
		if r := g.record(t); r.Outcome != ClientError || r.Model != "m" {
			t.Errorf("%s: record %+v", path, r)
		}
	}
	end <- true
	if res := <-first; res.status != http.StatusOK {
		t.Errorf("the first: %d", res.status)
	}
	g.record(t)
	if _, open := gate.Model("m"); open != 0 {
		t.Errorf("%d open after the last one ended", open)
	}
	g.settled(t)
}

func TestAHeadThatIsTooLargeIsRefused(t *testing.T) {
	g := newGateway(t, Limits{}, fakeEngine(t, answered(200, chatAnswer)))
	if res := g.post(t, "/v1/chat/completions", chatBody, "X-Large", strings.Repeat("x", maxHead/2)); res.status != http.StatusOK {
		t.Errorf("half of what may be: %d", res.status)
	}
	g.record(t)
	if res := g.post(t, "/v1/chat/completions", chatBody, "X-Large", strings.Repeat("x", 2*maxHead)); res.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("twice what may be: %d", res.status)
	}
	g.settled(t)
}

// TestOneRequestIsOneKeys: whoever shows several keys asks with the first, and what
// another may is not added.
func TestOneRequestIsOneKeys(t *testing.T) {
	g := guarded(t, fakeEngine(t, answered(200, chatAnswer)))
	for _, test := range []struct {
		header []string
		key    string
	}{
		{[]string{"Authorization", "Bearer key-one", "X-Api-Key", "key-all"}, "one"},
		{[]string{"X-Api-Key", "key-one", "Api-Key", "key-all"}, "one"},
		{[]string{"Authorization", "Bearer wrong", "X-Api-Key", "key-all"}, ""},
	} {
		res := g.post(t, "/v1/chat/completions", chatBody, test.header...)
		if r := g.record(t); r.Key != test.key || (res.status == http.StatusOK) != (test.key != "") {
			t.Errorf("%v: %d as %q, want %q", test.header, res.status, r.Key, test.key)
		}
	}
	g.settled(t)
}
