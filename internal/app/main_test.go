package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim"
	"lmwarden/internal/enginesim/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// These tests run whole gateways on loopback against simulated engines.

const testModel = "tiny"

// simEngine is a simulated server that can be stopped and started on one address.
type simEngine struct {
	t       *testing.T
	options server.Options
	address string
	server  *server.Server
	stop    func()
}

func newEngine(t *testing.T, ranks int, change func(*server.Options)) *simEngine {
	t.Helper()
	params, err := enginesim.Preset("tiny-fast")
	if err != nil {
		t.Fatal(err)
	}
	e := &simEngine{t: t, address: "127.0.0.1:0", options: server.Options{
		Params: params, Replicas: ranks, Models: []string{testModel}, Speed: 20, AnswerTokens: 16,
	}}
	if change != nil {
		change(&e.options)
	}
	l := e.bind()
	e.address = l.Addr().String()
	e.run(l)
	t.Cleanup(func() { e.stop() })
	return e
}

func (e *simEngine) url() string { return "http://" + e.address }

func (e *simEngine) bind() net.Listener {
	e.t.Helper()
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		e.t.Fatal(err)
	}
	return l
}

func (e *simEngine) run(l net.Listener) {
	e.t.Helper()
	s, err := server.New(e.options)
	if err != nil {
		e.t.Fatal(err)
	}
	e.server = s
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			e.t.Errorf("simulated engine: %v", err)
		}
	})
	e.stop = sync.OnceFunc(func() { cancel(); serving.Wait() })
}

// restart starts the engine anew on its address, with an empty cache.
func (e *simEngine) restart() {
	e.t.Helper()
	e.stop()
	e.run(e.bind())
}

// testGateway is a running gateway.
type testGateway struct {
	*Gateway
	t      *testing.T
	client *http.Client
	log    *testLog
}

// startGateway runs a gateway until the test ends. change may adjust its
// configuration.
func startGateway(t *testing.T, engines []string, change func(*config.Config)) *testGateway {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Data = "127.0.0.1:0", "127.0.0.1:0", config.MemoryOnly
	cfg.ScrapeInterval = config.Duration(50 * time.Millisecond)
	cfg.StopTimeout = config.Duration(5 * time.Second)
	var m config.Model
	for _, url := range engines {
		var e config.Engine
		if err := e.URL.UnmarshalText([]byte(url)); err != nil {
			t.Fatal(err)
		}
		m.Engines = append(m.Engines, e)
	}
	cfg.Models = []config.Model{m}
	if change != nil {
		change(cfg)
	}
	cfg.Fill()
	if err := cfg.Validate(Policies()); err != nil {
		t.Fatal(err)
	}
	g := &testGateway{t: t, log: &testLog{}, client: &http.Client{Transport: &http.Transport{}}}
	var err error
	if g.Gateway, err = NewGateway(cfg, slog.New(slog.NewJSONHandler(g.log, nil))); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

func (g *testGateway) close() {
	g.client.CloseIdleConnections()
	if err := g.Stop(); err != nil {
		g.t.Errorf("stop: %v", err)
	}
}

// testLog keeps what a gateway logs.
type testLog struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (g *testGateway) awaitReady() *testGateway {
	g.t.Helper()
	await(g.t, "the gateway to be ready", g.models.Ready)
	return g
}

// await polls until check succeeds, for at most ten seconds.
func await(t *testing.T, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 10 s for %s: %v", what, err)
		}
	}
}

// reply is an answer, read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error // of reading the body
}

func (r reply) replica() string  { return r.header.Get("X-Warden-Replica") }
func (r reply) decision() string { return r.header.Get("X-Warden-Decision") }

// send makes a request; headers are pairs.
func (g *testGateway) send(method, url string, body []byte, headers ...string) reply {
	g.t.Helper()
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := g.client.Do(req)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, text, err}
}

func (g *testGateway) post(path string, body []byte, headers ...string) reply {
	g.t.Helper()
	return g.send(http.MethodPost, g.URL()+path, body, headers...)
}

// admin calls the admin API and decodes its answer.
func (g *testGateway) admin(method, path, body string, into any) int {
	g.t.Helper()
	r := g.send(method, g.AdminURL()+path, []byte(body))
	if into != nil {
		if err := json.Unmarshal(r.body, into); err != nil {
			g.t.Fatalf("%s %s: %v: %s", method, path, err, r.body)
		}
	}
	return r.status
}

// inFlight is what the API shows, over all replicas and in the model's pill.
func (g *testGateway) inFlight() (model int, replicas int) {
	g.t.Helper()
	var m struct {
		InFlight int `json:"in_flight"`
		Replicas []struct {
			InFlight int `json:"in_flight"`
		}
	}
	g.admin(http.MethodGet, "/api/models/"+testModel, "", &m)
	for _, r := range m.Replicas {
		replicas += r.InFlight
	}
	return m.InFlight, replicas
}

// checkNothingInFlight waits for the counts, since a client has its answer a
// moment before the gateway lets go of the lease.
func (g *testGateway) checkNothingInFlight() {
	g.t.Helper()
	await(g.t, "nothing to be in flight", func() error {
		if model, replicas := g.inFlight(); model != 0 || replicas != 0 {
			return fmt.Errorf("%d in the model, %d on replicas", model, replicas)
		}
		return nil
	})
}

// conversation is a chat without an id, as plain SDKs have it.
type conversation struct {
	g       *testGateway
	history []map[string]string
	headers []string
}

func (g *testGateway) conversation(opening string, headers ...string) *conversation {
	return &conversation{g: g, headers: headers, history: []map[string]string{
		{"role": "system", "content": "You are terse."}, {"role": "user", "content": opening},
	}}
}

// turn sends the history, asserts a good answer, and appends to it.
func (c *conversation) turn() reply {
	c.g.t.Helper()
	body, err := json.Marshal(map[string]any{"model": testModel, "messages": c.history, "max_tokens": 8})
	if err != nil {
		c.g.t.Fatal(err)
	}
	r := c.g.post("/v1/chat/completions", body, c.headers...)
	if r.status != http.StatusOK || r.err != nil {
		c.g.t.Fatalf("turn: status %d, %v: %s", r.status, r.err, r.body)
	}
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(r.body, &answer); err != nil {
		c.g.t.Fatal(err)
	}
	c.history = append(c.history,
		map[string]string{"role": "assistant", "content": answer.Choices[0].Message.Content},
		map[string]string{"role": "user", "content": fmt.Sprintf("question %d", len(c.history))})
	return r
}

// htmlEngine answers every path with a page, as something that is no engine.
func htmlEngine(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<html><body>It works!</body></html>")
	}))
	t.Cleanup(s.Close)
	return s.URL
}
