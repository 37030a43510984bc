package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lmwarden/internal/app"
	"lmwarden/internal/config"
)

// gateway is a whole gateway in front of engines.
type gateway struct {
	*app.Gateway
	t      testing.TB
	config *config.Config
	client *http.Client
	log    *record
}

// gatewayConfig is a configuration for these engines, short in all its times.
func gatewayConfig(t testing.TB, engines []*engine) *config.Config {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Data = "127.0.0.1:0", "127.0.0.1:0", config.MemoryOnly
	cfg.ScrapeInterval = config.Duration(50 * time.Millisecond)
	cfg.StopTimeout = config.Duration(5 * time.Second)
	var m config.Model
	for _, e := range engines {
		var c config.Engine
		if err := c.URL.UnmarshalText([]byte(e.url())); err != nil {
			t.Fatal(err)
		}
		m.Engines = append(m.Engines, c)
	}
	cfg.Models = []config.Model{m}
	return cfg
}

// start runs a gateway in front of engines until the test ends. change may
// adjust its configuration.
func start(t testing.TB, change func(*config.Config), engines ...*engine) *gateway {
	t.Helper()
	cfg := gatewayConfig(t, engines)
	if change != nil {
		change(cfg)
	}
	g := launch(t, cfg)
	g.awaitStates(func(r replicaRow) bool { return r.State == "ready" })
	return g
}

// launch runs a gateway and does not wait for its engines.
func launch(t testing.TB, cfg *config.Config) *gateway {
	t.Helper()
	cfg.Fill()
	if err := cfg.Validate(app.Policies()); err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, config: cfg, log: &record{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	var err error
	if g.Gateway, err = app.NewGateway(cfg, slog.New(slog.NewJSONHandler(g.log, nil))); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		g.client.CloseIdleConnections()
		if err := g.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("the end of the gateway's log, good requests left out:\n%s", g.log.tail())
		}
	})
	return g
}

// record keeps what a gateway logs.
type record struct {
	most int // bytes to keep at least; 0: all

	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most > 0 && r.text.Len() > 2*r.most {
		r.text.Next(r.text.Len() - r.most)
	}
	return r.text.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// tail is the end without the requests that went well.
func (r *record) tail() string {
	const most = 20
	lines := slices.DeleteFunc(strings.SplitAfter(r.String(), "\n"), func(l string) bool { return strings.Contains(l, `"outcome":"ok"`) })
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// answer is what a client got, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (a answer) replica() string  { return a.header.Get("X-Warden-Replica") }
func (a answer) decision() string { return a.header.Get("X-Warden-Decision") }
func (a answer) fault() string    { return a.header.Get("X-Warden-Error") }

// send posts a body as it is; headers are pairs.
func (g *gateway) send(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return g.client.Do(req)
}

// ask sends a request and reads its answer. An error is of the connection: no
// answer came.
func (g *gateway) ask(ctx context.Context, path, body string, headers ...string) (answer, error) {
	res, err := g.send(ctx, path, body, headers...)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text), err}, nil
}

// post is ask where an answer must come.
func (g *gateway) post(path, body string, headers ...string) answer {
	g.t.Helper()
	a, err := g.ask(context.Background(), path, body, headers...)
	if err != nil {
		g.t.Fatalf("POST %s: %v", path, err)
	}
	return a
}

// watch is ask for a stream: it says on began when the first bytes of the body are
// in. What the connection itself reports ends up in the answer's err.
func (g *gateway) watch(path, body string, first int, began chan<- bool, headers ...string) answer {
	res, err := g.send(context.Background(), path, body, headers...)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	text := make([]byte, first)
	n, err := io.ReadFull(res.Body, text)
	a.body, a.err = string(text[:n]), err
	if err != nil {
		return a
	}
	if first > 0 {
		began <- true
	}
	rest, err := io.ReadAll(res.Body)
	a.body, a.err = a.body+string(rest), err
	return a
}

// dial is a client of bare bytes.
func (g *gateway) dial() net.Conn {
	g.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	return c
}

// modelRow is a model in the admin API, as far as tests read it.
type modelRow struct {
	InFlight int    `json:"in_flight"`
	Policy   string `json:"policy"`
	Replicas []replicaRow
	Servers  []struct {
		URL   string
		Error *string
	}
}

type replicaRow struct {
	Index             int
	State             string
	Epoch             *int
	InFlight          int  `json:"in_flight"`
	LiveConversations int  `json:"live_conversations"`
	Running           *int `json:"running"`
	ScrapeAge         *int `json:"scrape_age_ms"`
	Placed, Sticky    int
	SpilledIn         int `json:"spilled_in"`
	MovedIn           int `json:"moved_in"`
}

// admin calls the admin API.
func (g *gateway) admin(method, path, body string, into any) {
	g.t.Helper()
	req, err := http.NewRequest(method, g.AdminURL()+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	res, err := g.client.Do(req)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		g.t.Fatalf("%s %s: %d %v %s", method, path, res.StatusCode, err, text)
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			g.t.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
}

func (g *gateway) model() modelRow {
	g.t.Helper()
	var m struct{ Models []modelRow }
	g.admin(http.MethodGet, "/api/models", "", &m)
	if len(m.Models) != 1 {
		return modelRow{}
	}
	return m.Models[0]
}

// awaitStates waits until every replica is as it should.
func (g *gateway) awaitStates(want func(replicaRow) bool) modelRow {
	g.t.Helper()
	var m modelRow
	await(g.t, "the replicas' states", func() error {
		if m = g.model(); len(m.Replicas) == 0 {
			return fmt.Errorf("no replicas yet")
		}
		for _, r := range m.Replicas {
			if !want(r) {
				return fmt.Errorf("replica %d is %s", r.Index, r.State)
			}
		}
		return nil
	})
	return m
}

// metrics reads the gateway's own metrics page: the values of one metric by its
// labels, as {name="value",…}.
func (g *gateway) metrics(name string) map[string]float64 {
	g.t.Helper()
	values, err := scrape(g.client, g.AdminURL(), name)
	if err != nil {
		g.t.Fatal(err)
	}
	return values
}

func scrape(client *http.Client, admin, name string) (map[string]float64, error) {
	res, err := client.Get(admin + "/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), name)
		if !found || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		at := strings.LastIndexByte(rest, ' ')
		if values[rest[:at]], err = strconv.ParseFloat(rest[at+1:], 64); err != nil {
			return nil, fmt.Errorf("metrics page: %q: %w", lines.Text(), err)
		}
	}
	return values, lines.Err()
}

// label finds the value of a label.
func label(labels, name string) string {
	_, rest, _ := strings.Cut(labels, name+`="`)
	v, _, _ := strings.Cut(rest, `"`)
	return v
}

// outcomes counts finished requests by outcome.
func (g *gateway) outcomes() map[string]int {
	g.t.Helper()
	return byOutcome(g.metrics("warden_requests_total"))
}

func byOutcome(requests map[string]float64) map[string]int {
	counts := map[string]int{}
	for labels, n := range requests {
		counts[label(labels, "outcome")] += int(n)
	}
	return counts
}

// settled waits until nothing is in flight and these many requests have these
// outcomes, since a client has its answer a moment before it is counted.
func (g *gateway) settled(want map[string]int) {
	g.t.Helper()
	await(g.t, fmt.Sprintf("the outcomes %v", want), func() error {
		m := g.model()
		for _, r := range m.Replicas {
			if r.InFlight != 0 {
				return fmt.Errorf("replica %d has %d in flight", r.Index, r.InFlight)
			}
		}
		if m.InFlight != 0 {
			return fmt.Errorf("%d in flight", m.InFlight)
		}
		if got := g.outcomes(); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("outcomes are %v", got)
		}
		return nil
	})
}
