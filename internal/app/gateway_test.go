package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim/server"
)

func TestTurnsOfAConversationStayAndConversationsSpread(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 4, nil).url()}, nil).awaitReady()
	var homes []string
	for i := range 4 {
		c := g.conversation(fmt.Sprintf("opening %d", i))
		first := c.turn()
		if first.decision() != "placed" {
			t.Errorf("first turn: %s, want placed", first.decision())
		}
		homes = append(homes, first.replica())
		for range 3 {
			if r := c.turn(); r.decision() != "stayed" || r.replica() != first.replica() {
				t.Errorf("later turn: %s on %s, want stayed on %s", r.decision(), r.replica(), first.replica())
			}
		}
	}
	slices.Sort(homes)
	if got := strings.Join(homes, " "); got != "0 1 2 3" {
		t.Errorf("four conversations live on %s, want one on each replica", got)
	}
	g.checkNothingInFlight()
}

func TestABurstOfFirstTurnsSpreadsEvenly(t *testing.T) {
	e := newEngine(t, 4, func(o *server.Options) { o.Speed = 1 })
	g := startGateway(t, []string{e.url()}, nil).awaitReady()
	replicas := make([]string, 40)
	var began, ended sync.WaitGroup
	began.Add(len(replicas))
	for i := range replicas {
		ended.Go(func() {
			// Long answers, so that none ends before all have begun.
			body := fmt.Sprintf(`{"model":"tiny","stream":true,"max_tokens":4000,"messages":[{"role":"user","content":"burst %d [[tokens 4000]]"}]}`, i)
			res, err := g.client.Post(g.URL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				began.Done()
				return
			}
			replicas[i] = res.Header.Get("X-Warden-Replica")
			began.Done()
			began.Wait()
			res.Body.Close()
		})
	}
	ended.Wait()
	count := map[string]int{}
	for _, r := range replicas {
		count[r]++
	}
	for replica, n := range count {
		if n != 10 {
			t.Errorf("replica %s got %d of 40 first turns, want 10: %v", replica, n, count)
		}
	}
	g.checkNothingInFlight()
}

func TestConversationsSurviveARestartOfTheGateway(t *testing.T) {
	e := newEngine(t, 4, nil)
	data := t.TempDir()
	keep := func(c *config.Config) { c.Data = data }
	first := startGateway(t, []string{e.url()}, keep).awaitReady()
	type open struct {
		*conversation
		home string
	}
	var all []open
	for i := range 8 {
		c := first.conversation(fmt.Sprintf("opening %d", i))
		all = append(all, open{c, c.turn().replica()})
	}
	first.close()

	second := startGateway(t, []string{e.url()}, keep).awaitReady()
	for i, c := range all {
		c.g = second
		if r := c.turn(); r.decision() != "stayed" || r.replica() != c.home {
			t.Errorf("conversation %d: %s on %s after the restart, want stayed on %s", i, r.decision(), r.replica(), c.home)
		}
	}
}

// A gateway that is started before its engine, saves, and is stopped again must
// not lose the homes of the engine it never reached.
func TestHomesOutliveALifeWithoutTheEngine(t *testing.T) {
	e := newEngine(t, 2, nil)
	data := t.TempDir()
	keep := func(c *config.Config) { c.Data = data }
	first := startGateway(t, []string{e.url()}, keep).awaitReady()
	c := first.conversation("opening")
	home := c.turn().replica()
	first.close()
	e.stop()
	startGateway(t, []string{e.url()}, keep).close()

	e.run(e.bind())
	c.g = startGateway(t, []string{e.url()}, keep).awaitReady()
	if r := c.turn(); r.decision() != "stayed" || r.replica() != home {
		t.Errorf("%s on %s, want stayed on %s", r.decision(), r.replica(), home)
	}
}

func TestADamagedTableIsMovedAside(t *testing.T) {
	data := t.TempDir()
	path := filepath.Join(data, conversationsFile)
	if err := os.WriteFile(path, []byte("lmwarden conversations 999\nfrom the future"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, []string{newEngine(t, 1, nil).url()}, func(c *config.Config) { c.Data = data }).awaitReady()
	g.conversation("opening").turn()
	if found, _ := filepath.Glob(path + ".unreadable-*"); len(found) != 1 {
		t.Errorf("the unreadable table was not kept aside: %v", found)
	}
}

func TestAnEngineThatComesLateIsServed(t *testing.T) {
	e := newEngine(t, 2, nil)
	e.stop()
	g := startGateway(t, []string{e.url()}, nil)
	body := []byte(`{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`)
	r := g.post("/v1/messages", body)
	if r.status != http.StatusServiceUnavailable || r.header.Get("X-Warden-Error") != "no-replica" || !bytes.Contains(r.body, []byte(`"type":"error"`)) {
		t.Errorf("without an engine: status %d, %s: %s", r.status, r.header.Get("X-Warden-Error"), r.body)
	}
	if status := g.admin(http.MethodGet, "/readyz", "", nil); status != http.StatusServiceUnavailable {
		t.Errorf("readyz answers %d without an engine, want 503", status)
	}
	if status := g.admin(http.MethodGet, "/healthz", "", nil); status != http.StatusOK {
		t.Errorf("healthz answers %d, want 200", status)
	}
	e.run(e.bind())
	g.awaitReady()
	if r := g.post("/v1/messages", body); r.status != http.StatusOK {
		t.Errorf("after the engine came: status %d: %s", r.status, r.body)
	}
}

func TestSomethingThatIsNoEngine(t *testing.T) {
	g := startGateway(t, []string{htmlEngine(t)}, nil)
	r := g.post("/v1/chat/completions", []byte(`{"model":"tiny","messages":[]}`))
	if r.status != http.StatusServiceUnavailable || r.header.Get("X-Warden-Error") != "no-replica" {
		t.Errorf("status %d, %s: %s", r.status, r.header.Get("X-Warden-Error"), r.body)
	}
	await(t, "readyz to say why", func() error {
		if r := g.send(http.MethodGet, g.AdminURL()+"/readyz", nil); r.status != http.StatusServiceUnavailable || !bytes.Contains(r.body, []byte("/v1/models")) {
			return fmt.Errorf("status %d: %s", r.status, r.body)
		}
		return nil
	})
}

// The conversations of a server that dies move to the others, evenly, and no
// turn fails.
func TestConversationsMoveWhenTheirServerDies(t *testing.T) {
	engines := []*simEngine{newEngine(t, 1, nil), newEngine(t, 1, nil), newEngine(t, 1, nil)}
	g := startGateway(t, []string{engines[0].url(), engines[1].url(), engines[2].url()}, nil).awaitReady()
	var all []*conversation
	homes := map[*conversation]string{}
	for i := range 12 {
		c := g.conversation(fmt.Sprintf("opening %d", i))
		homes[c] = c.turn().replica()
		all = append(all, c)
	}
	engines[1].stop()
	moved := map[string]int{}
	for _, c := range all {
		r := c.turn()
		switch {
		case homes[c] != "1" && (r.decision() != "stayed" || r.replica() != homes[c]):
			t.Errorf("a conversation of replica %s: %s on %s", homes[c], r.decision(), r.replica())
		case homes[c] == "1":
			if r.replica() == "1" {
				t.Error("a turn was answered by the dead replica")
			}
			moved[r.replica()]++
		}
	}
	if moved["0"] != 2 || moved["2"] != 2 {
		t.Errorf("four displaced conversations went %v, want 2 and 2", moved)
	}

	// The dead one comes back: nobody returns to it, new ones go there.
	engines[1].run(engines[1].bind())
	await(t, "the server to be ready again", func() error {
		var m struct{ Replicas []struct{ State string } }
		g.admin(http.MethodGet, "/api/models/tiny", "", &m)
		if m.Replicas[1].State != "ready" {
			return fmt.Errorf("it is %s", m.Replicas[1].State)
		}
		return nil
	})
	for _, c := range all {
		if r := c.turn(); r.decision() != "stayed" {
			t.Errorf("after the return: %s on %s, want stayed", r.decision(), r.replica())
		}
	}
	if r := g.conversation("a new one").turn(); r.replica() != "1" {
		t.Errorf("the new conversation went to %s, want the empty replica 1", r.replica())
	}
	g.checkNothingInFlight()
}

// A restarted engine has lost its caches: its conversations keep their home, and
// the receipt says that it is cold.
func TestARestartedEngineIsANewEpoch(t *testing.T) {
	e := newEngine(t, 2, nil)
	g := startGateway(t, []string{e.url()}, nil).awaitReady()
	c := g.conversation("opening")
	home := c.turn().replica()
	e.restart()
	await(t, "the second epoch", func() error {
		var m struct {
			Replicas []struct {
				Epoch int
				State string
			}
		}
		g.admin(http.MethodGet, "/api/models/tiny", "", &m)
		for _, r := range m.Replicas {
			if r.Epoch != 2 || r.State != "ready" {
				return fmt.Errorf("%+v", m.Replicas)
			}
		}
		return nil
	})
	if r := c.turn(); r.decision() != "stayed" || r.replica() != home {
		t.Errorf("%s on %s, want stayed on %s", r.decision(), r.replica(), home)
	}
}

func TestAffinityCanBeSwitchedAtRunTime(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 4, nil).url()}, nil).awaitReady()
	c := g.conversation("opening")
	home := c.turn().replica()
	var m struct{ Affinity, Policy string }
	if status := g.admin(http.MethodPatch, "/api/models/tiny", `{"affinity":"off"}`, &m); status != http.StatusOK || m.Affinity != "off" {
		t.Fatalf("switch off: status %d, %+v", status, m)
	}
	if r := c.turn(); r.decision() != "off" || r.replica() != "engine" || r.header.Get("X-Warden-Conversation") != "" {
		t.Errorf("with affinity off: %s on %s", r.decision(), r.replica())
	}
	g.admin(http.MethodPatch, "/api/models/tiny", `{"affinity":"on"}`, &m)
	if m.Policy != "patience" {
		t.Errorf("switched on: policy %s", m.Policy)
	}
	if r := c.turn(); r.decision() != "stayed" || r.replica() != home {
		t.Errorf("on again: %s on %s, want stayed on %s", r.decision(), r.replica(), home)
	}
}

func TestADrainedReplicaLosesItsConversationsAtTheirNextTurn(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 2, nil).url()}, nil).awaitReady()
	c := g.conversation("opening")
	home := c.turn().replica()
	if status := g.admin(http.MethodPost, "/api/models/tiny/replicas/"+home+"/drain", "", nil); status != http.StatusOK {
		t.Fatalf("drain: status %d", status)
	}
	if r := c.turn(); r.decision() != "moved" || r.replica() == home {
		t.Errorf("after the drain: %s on %s, want moved away from %s", r.decision(), r.replica(), home)
	}
	c.headers = []string{"X-Data-Parallel-Rank", home}
	if r := c.turn(); r.decision() != "pinned" || r.replica() != home {
		t.Errorf("a pin to a draining replica: %s on %s, want pinned on %s", r.decision(), r.replica(), home)
	}
}

func TestEnginesAreGivenTheirOwnKey(t *testing.T) {
	e := newEngine(t, 1, func(o *server.Options) { o.APIKey = "engine-secret" })
	g := startGateway(t, []string{e.url()}, func(c *config.Config) {
		c.Models[0].Engines[0].APIKey = config.NewSecret("engine-secret")
	}).awaitReady()
	c := g.conversation("opening", "Authorization", "Bearer client-secret", "X-Api-Key", "client-secret")
	c.turn()
	if log := g.log.String(); strings.Contains(log, "secret") || strings.Contains(log, "opening") {
		t.Errorf("a credential or a prompt is in the log: %s", log)
	}
}

func TestOpenAnswersEndWhenTheGatewayStops(t *testing.T) {
	e := newEngine(t, 1, func(o *server.Options) { o.Speed = 1 })
	g := startGateway(t, []string{e.url()}, nil).awaitReady()
	body := `{"model":"tiny","stream":true,"max_tokens":400,"messages":[{"role":"user","content":"go on [[tokens 400]]"}]}`
	res, err := g.client.Post(g.URL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := res.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
		t.Errorf("the open answer did not end: %v, …%q", err, text[max(0, len(text)-80):])
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Bad input: a clear error in the client's dialect, and nothing else happens.
func TestBadInputIsRefusedInTheClientsDialect(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 2, nil).url()}, func(c *config.Config) { c.Limits.Body = 1 << 20 }).awaitReady()
	good := `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
		kind    string
	}{
		"truncated":             {`{"model":"tiny","messages":[`, nil, 400, "bad-request"},
		"empty":                 {``, nil, 400, "bad-request"},
		"an array":              {`[]`, nil, 400, "bad-request"},
		"model twice":           {`{"model":"tiny","model":"tiny","messages":[]}`, nil, 400, "bad-request"},
		"deeply nested":         {`{"model":"tiny","x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, nil, 400, "bad-request"},
		"raw invalid UTF-8":     {"{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", nil, 400, "bad-request"},
		"unknown model":         {strings.Replace(good, "tiny", "nope", 1), nil, 404, "unknown-model"},
		"too large":             {`{"model":"tiny","messages":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 413, "too-large"},
		"pin below zero":        {good, []string{"X-Data-Parallel-Rank", "-1"}, 400, "bad-request"},
		"pin to no replica":     {good, []string{"X-Data-Parallel-Rank", "9"}, 400, "bad-request"},
		"pin that is no number": {good, []string{"X-Data-Parallel-Rank", "abc"}, 400, "bad-request"},
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"} {
			t.Run(name+path, func(t *testing.T) {
				r := g.post(path, []byte(c.body), c.headers...)
				if r.status != c.status || r.header.Get("X-Warden-Error") != c.kind {
					t.Errorf("status %d, %q: %s; want %d, %q", r.status, r.header.Get("X-Warden-Error"), r.body, c.status, c.kind)
				}
				var anthropic struct{ Type string }
				var shape struct {
					Error struct{ Message, Type string }
				}
				if err := json.Unmarshal(r.body, &shape); err != nil || shape.Error.Message == "" || shape.Error.Type == "" {
					t.Errorf("not an error of a dialect: %v: %s", err, r.body)
				}
				json.Unmarshal(r.body, &anthropic)
				if (anthropic.Type == "error") != (path == "/v1/messages") {
					t.Errorf("the wrong dialect's error: %s", r.body)
				}
			})
		}
	}
	g.checkNothingInFlight()
	var conversations struct{ Conversations []any }
	g.admin(http.MethodGet, "/api/conversations", "", &conversations)
	if n := len(conversations.Conversations); n != 0 {
		t.Errorf("%d conversations after nothing but bad requests", n)
	}
}

func TestInputThatIsOddButValidReachesTheEngine(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 2, nil).url()}, nil).awaitReady()
	for name, c := range map[string]struct {
		body    string
		headers []string
	}{
		"escaped lone surrogate": {`{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"cut \ud83d"}]}`, nil},
		"no model":               {`{"max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`, nil},
		"header of 8 kB":         {`{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`, []string{"X-Session-Id", strings.Repeat("s", 8192)}},
		"Claude's model name":    {`{"model":"claude-opus-5-5","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if r := g.post("/v1/chat/completions", []byte(c.body), c.headers...); r.status != http.StatusOK {
				t.Errorf("status %d: %s", r.status, r.body)
			}
		})
	}
}

func TestAPinToAReplicaThatIsDown(t *testing.T) {
	engines := []*simEngine{newEngine(t, 1, nil), newEngine(t, 1, nil)}
	g := startGateway(t, []string{engines[0].url(), engines[1].url()}, nil).awaitReady()
	await(t, "both replicas", func() error {
		var m struct{ Replicas []struct{ State string } }
		g.admin(http.MethodGet, "/api/models/tiny", "", &m)
		if len(m.Replicas) != 2 || m.Replicas[0].State != "ready" || m.Replicas[1].State != "ready" {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	engines[1].stop()
	body := []byte(`{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`)
	r := g.post("/v1/chat/completions", body, "X-Data-Parallel-Rank", "1")
	if r.status/100 != 5 || r.header.Get("X-Warden-Error") == "" {
		t.Errorf("a pin to a dead replica: status %d, %q: %s", r.status, r.header.Get("X-Warden-Error"), r.body)
	}
	await(t, "the pin to be refused", func() error {
		if r := g.post("/v1/chat/completions", body, "X-Data-Parallel-Rank", "1"); r.status != http.StatusServiceUnavailable || r.header.Get("X-Warden-Error") != "no-replica" {
			return fmt.Errorf("status %d, %q: %s", r.status, r.header.Get("X-Warden-Error"), r.body)
		}
		return nil
	})
	g.checkNothingInFlight()
}

func TestMetricsCountWhatWasServed(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 2, nil).url()}, nil).awaitReady()
	c := g.conversation("opening")
	home := c.turn().replica()
	c.turn()
	wanted := []string{
		`warden_requests_total{model="tiny",outcome="ok",reason="placed",replica="` + home + `"} 1`,
		`warden_requests_total{model="tiny",outcome="ok",reason="stayed",replica="` + home + `"} 1`,
		`warden_in_flight{model="tiny",replica="` + home + `"} 0`,
		`warden_conversations{model="tiny",replica="` + home + `"} 1`,
		`warden_completion_tokens_total{model="tiny",replica="` + home + `"} 16`,
	}
	// A request is counted when it has ended here, which the client does not wait
	// for.
	await(t, "the metrics page to count", func() error {
		page := string(g.send(http.MethodGet, g.AdminURL()+"/metrics", nil).body)
		for _, want := range wanted {
			if !strings.Contains(page, want+"\n") {
				return fmt.Errorf("it lacks %s", want)
			}
		}
		return nil
	})
}

func TestTheCardShowsTheModel(t *testing.T) {
	g := startGateway(t, []string{newEngine(t, 4, nil).url()}, nil).awaitReady()
	c := g.conversation("opening")
	c.turn()
	c.turn()
	page := string(g.send(http.MethodGet, g.AdminURL()+"/models/tiny", nil).body)
	for _, want := range []string{"Affinity on", "8 (auto)", "100.0%", "Client-pinned", "Spilled in"} {
		if !strings.Contains(page, want) {
			t.Errorf("the card lacks %q", want)
		}
	}
}

func TestAnAddressThatIsTakenIsSaid(t *testing.T) {
	e := newEngine(t, 1, nil)
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Data = e.address, "127.0.0.1:0", config.MemoryOnly
	var engine config.Engine
	if err := engine.URL.UnmarshalText([]byte(e.url())); err != nil {
		t.Fatal(err)
	}
	cfg.Models = []config.Model{{Engines: []config.Engine{engine}}}
	cfg.Fill()
	g, err := NewGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err == nil || !strings.Contains(err.Error(), e.address) {
		t.Errorf("start on a taken address: %v", err)
	}
}
