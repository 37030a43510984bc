package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/engine"
	"lmwarden/internal/pool"
	"lmwarden/internal/session"
)

type onePool struct{ *pool.Pool }

func (o onePool) Lookup(name string) (*pool.Pool, bool) {
	return o.Pool, name == "" || name == o.Name() || name == "alias"
}

func (o onePool) Pools() []*pool.Pool { return []*pool.Pool{o.Pool} }

// The handler with a real pool, core and session table: a conversation stays,
// moves when its home dies in the middle of an attempt, and stays there.
func TestAConversationStaysAndMovesWhenItsHomeDies(t *testing.T) {
	at := make(chan seen, 1)
	var servers []*httptest.Server
	var options pool.Options
	for range 2 {
		s := httptest.NewServer(nil)
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			at <- seen{line: s.URL, header: r.Header}
			answered(200, chatAnswer)(w, r)
		})
		defer s.Close()
		servers = append(servers, s)
		options.Servers = append(options.Servers, pool.Server{URL: s.URL, Key: "k", Ranks: 1})
	}
	options.Name = "m"
	p, err := pool.New(options)
	if err != nil {
		t.Fatal(err)
	}
	for i := range servers {
		p.Observe(i, engine.Report{Time: time.Now(), Health: engine.Up, Epoch: 1, Info: engine.Info{
			Models: []engine.Model{{ID: "org/Served"}}, Ranks: 1,
		}})
	}
	sessions, err := session.New(session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := make(records, 10)
	h, err := New(Options{Models: onePool{p}, Sessions: sessions, Recorder: got})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(h)
	defer front.Close()
	defer h.Close()
	g := &gateway{Handler: h, url: front.URL, client: front.Client(), records: got}

	type turn struct{ Decision, Replica, Conversation string }
	var turns []turn
	for i := range 4 {
		if i == 2 {
			home := turns[0].Replica[0] - '0'
			servers[home].CloseClientConnections()
			servers[home].Close()
		}
		res := g.post(t, "/v1/chat/completions", `{"model":"alias","messages":[{"role":"user","content":"hello"}]}`, "X-Session-Id", "s-1")
		if res.status != 200 || res.body != chatAnswer {
			t.Fatalf("turn %d: %d %s", i, res.status, res.body)
		}
		s := <-at
		if s.header.Get("Authorization") != "Bearer k" {
			t.Errorf("turn %d: Authorization %q", i, s.header.Get("Authorization"))
		}
		turns = append(turns, turn{res.header.Get(headerDecision), res.header.Get(headerReplica), res.header.Get(headerConversation)})
		wantAttempts := 1
		if i == 2 {
			wantAttempts = 2
		}
		if rec := g.record(t); rec.Attempts != wantAttempts || rec.Outcome != OK || rec.Identity.Name != turns[i].Conversation {
			t.Errorf("turn %d: record %+v", i, rec)
		}
	}
	first, name := turns[0].Replica, turns[0].Conversation
	other := map[string]string{"0": "1", "1": "0"}[first]
	want := []turn{{"placed", first, name}, {"stayed", first, name}, {"moved", other, name}, {"stayed", other, name}}
	if d := cmp.Diff(want, turns); d != "" || name == "" {
		t.Error(d)
	}
	if c, ok := sessions.Find(name); !ok || c.Open != 0 || c.Turns != 4 || c.PromptTokens != 20 || c.CachedTokens != 16 {
		t.Errorf("the session table has %+v", c)
	}
	v := p.View()
	if v.Routing.InFlight != 0 || v.Routing.Replicas[0].InFlight != 0 || v.Routing.Replicas[1].InFlight != 0 {
		t.Errorf("in flight after the end: %+v", v.Routing)
	}
	res := g.post(t, "/v1/chat/completions", chatBody, headerRank, "7")
	if res.status != 400 || res.header.Get(headerError) != "bad-request" {
		t.Errorf("rank 7: %d %s", res.status, res.body)
	}
	g.record(t)
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error without models")
	}
	if _, err := New(Options{Models: onePool{}}); err == nil {
		t.Error("no error without sessions")
	}
}
